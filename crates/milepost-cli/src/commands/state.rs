//! Reading and changing a session's state, and taking checkpoints of it.

use anyhow::Result;
use milepost::{NewMark, Point, Trigger};
use serde_json::{Value, json};

use super::sessions::sets;
use crate::app::App;
use crate::args::{self, State};
use crate::errors::Usage;

pub async fn run(app: &mut App, command: State) -> Result<()> {
    match command {
        State::Get { session, path, checkpoint, reveal } => {
            get(app, &session, path.as_deref(), checkpoint.as_deref(), reveal).await
        }
        State::Set { session, values } => set(app, &session, &values).await,
    }
}

async fn get(app: &mut App, session: &str, path: Option<&str>, checkpoint: Option<&str>, reveal: bool) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let state = match checkpoint {
        Some(text) => {
            let mark = app.mark(&engine, id, &text.parse::<Point>()?).await?;
            engine.store().load(mark.checkpoint.id).await.map_err(milepost::Error::from)?.state
        }
        None => engine.store().state(id).await.map_err(milepost::Error::from)?,
    };
    let mut value = state.into_value();
    if let Some(path) = path {
        let pointer = if path.starts_with('/') || path.is_empty() {
            path.to_owned()
        } else {
            format!("/{}", path.replace('.', "/"))
        };
        let Some(found) = value.pointer_mut(&pointer) else {
            return Err(milepost::store::Error::NotFound { what: "value", id: format!("{path} in the state of {id}") }
                .into_engine());
        };
        value = found.take();
    }
    if reveal {
        value = engine.reveal(value).await?;
    }
    match value {
        // A text alone is written as it is, for scripts.
        Value::String(text) if !app.out.json => app.out.text(&text),
        value => app.out.json(&value),
    }
}

/// Errors of the store as the engine's.
trait IntoEngine {
    fn into_engine(self) -> anyhow::Error;
}

impl IntoEngine for milepost::store::Error {
    fn into_engine(self) -> anyhow::Error {
        milepost::Error::from(self).into()
    }
}

async fn set(app: &mut App, session: &str, values: &[String]) -> Result<()> {
    let values = sets(values)?;
    let id = app.session_to_write(session).await?;
    let held = app.engine().await?.hold(id).await?;
    let done = held.set(&values).await;
    super::give_back_with_caution(app, held, done).await?;
    if app.out.json {
        let paths: Vec<String> = values.iter().map(|(path, _)| path.to_string()).collect();
        return app.out.json(&json!({ "sessionId": id, "set": paths }));
    }
    app.out.line(format!("set {} value{} of {id}", values.len(), if values.len() == 1 { "" } else { "s" }))
}

/// A trigger that is none, with the one that was probably meant.
pub fn no_trigger(name: &str) -> Usage {
    // Comparing is quadratic in length; nothing that long is a misspelt name.
    let given: String = name.chars().take(64).collect();
    let known: Vec<&str> = Trigger::KNOWN.iter().map(Trigger::as_str).collect();
    let near = known.iter().map(|known| (strsim::osa_distance(&given, known), known)).min();
    let hint = match near {
        Some((distance, near)) if distance <= (given.len() / 3).max(1) => format!("did you mean {near}? Else "),
        _ => String::new(),
    };
    Usage(format!("{name:?} is no trigger: {hint}use one of {}", known.join(", ")))
}

pub async fn checkpoint(app: &mut App, args: args::Checkpoint) -> Result<()> {
    let trigger = Trigger::from(args.trigger);
    if let Trigger::Other(name) = &trigger {
        return Err(no_trigger(name).into());
    }
    let id = app.session_to_write(&args.session).await?;
    let mark = NewMark { label: args.label, description: args.description, ..NewMark::new(trigger) };
    let held = app.engine().await?.hold(id).await?;
    let done = held.checkpoint(mark).await;
    let checkpoint = super::give_back_with_caution(app, held, done).await?;
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "checkpointId": checkpoint }));
    }
    app.out.line(checkpoint.to_string())
}
