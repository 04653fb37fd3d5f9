//! Reading and changing a session's state, and taking checkpoints of it.

use anyhow::Result;
use milepost::{NewMark, Point, Trigger};
use serde_json::{Value, json};

use super::sessions::sets;
use crate::app::App;
use crate::args::{self, State};
use crate::errors::{Failed, Usage};
use crate::out::{count, shell_word, short};

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
            let at = checkpoint.map(|given| format!(" --checkpoint {}", shell_word(given))).unwrap_or_default();
            let all = format!("milepost state get {}{at}", short(id));
            let why = what_is_there(&value, &pointer);
            let what = format!("no value {path} in the state of {id}: {why}; look at all of it");
            return Err(Failed::missing_with(what, vec![("all of it", all)]).into());
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

/// So many names are told of what is there.
const TOLD_NAMES: usize = 10;

/// What a state has on the way to where a pointer leads, as far as it goes.
fn what_is_there(state: &Value, pointer: &str) -> String {
    let (mut at, mut gone) = (state, Vec::new());
    for part in pointer.split('/').skip(1) {
        let Some(inner) = at.pointer(&format!("/{part}")) else { break };
        (at, gone) = (inner, [gone, vec![part]].concat());
    }
    let place = if gone.is_empty() { "the state".to_owned() } else { gone.join(".") };
    match at {
        Value::Object(map) if map.is_empty() => format!("{place} is empty"),
        Value::Object(map) => {
            let names: Vec<&str> = map.keys().take(TOLD_NAMES).map(String::as_str).collect();
            let more =
                if map.len() > TOLD_NAMES { format!(" and {} more", map.len() - TOLD_NAMES) } else { String::new() };
            format!("{place} has {}{more}", names.join(", "))
        }
        Value::Array(items) => format!("{place} has {}", count(items.len(), "item")),
        Value::String(_) => format!("{place} is a text"),
        Value::Number(_) => format!("{place} is a number"),
        Value::Bool(_) => format!("{place} is a truth value"),
        Value::Null => format!("{place} is null"),
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
