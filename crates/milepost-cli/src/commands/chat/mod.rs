//! Talking with a model: in a terminal, on a pipe, or one message.

mod lines;
mod talk;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use milepost::context::history::Dialect;
use milepost::store::Error as StoreError;
use milepost::{Milepost, NewSession, Resume, SessionId, SessionPatch, SessionQuery, State, Status};
use milepost_models::{Model, Provider};
use milepost_run::chat::{Chat, Left};
use milepost_run::models::Models;
use milepost_run::run::Budget;
use serde_json::json;

use super::cost::budget;
use super::resume::tell_anew;
use super::run::{remember_model, said_model};
use crate::app::{App, interrupts};
use crate::args;
use crate::errors::{Failed, Usage};
use crate::out::{clip, count, plain, short};
use lines::{Heard, Lines};
use talk::Talk;

/// The kind of agent of sessions that are conversations.
pub const AGENT: &str = "chat";
/// The longest title that a first message gives, in characters.
const MAX_TITLE_CHARS: usize = 60;

/// Where the conversation takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A person sits at a terminal.
    Terminal,
    /// Lines come from a pipe, or there is one message.
    Pipe,
}

/// A conversation that has not begun in the store: nothing is left of one in which nothing was said.
pub struct Fresh {
    engine: Milepost,
    model: Arc<dyn Model>,
    dialect: Dialect,
    title: Option<String>,
    system: Option<String>,
    /// The model that was said, when it is another than the usual one.
    said: Option<String>,
    max_tokens: Option<u32>,
    budget: Option<Budget>,
}

impl Fresh {
    /// Begins it with what is said first.
    async fn begin(&self, first: &str) -> Result<Chat> {
        let line = first.split_whitespace().collect::<Vec<_>>().join(" ");
        let title = self.title.clone().unwrap_or_else(|| clip(&plain(&line), MAX_TITLE_CHARS));
        let patch = SessionPatch::new().title(title).with("agent", json!(AGENT));
        let mut state = State::default();
        if let Some(system) = &self.system {
            *state.section_mut("context") = json!({ "systemPrompt": system });
        }
        remember_model(&mut state, self.said.as_deref());
        let new = NewSession { patch, state, ..NewSession::default() };
        let chat = Chat::begin(&self.engine, new, Arc::clone(&self.model), self.dialect).await?;
        Ok(chat.max_tokens(self.max_tokens).budget(self.budget).await?)
    }
}

/// The model to talk with, and the rules of its messages.
pub async fn usual_model(models: &Models) -> Result<(Arc<dyn Model>, Dialect)> {
    let Some(name) = models.usual() else {
        let instead = "say --model PROVIDER/MODEL, or set MILEPOST_MODEL, or model in milepost.yaml";
        return Err(Usage(format!("no model is set: {instead}")).into());
    };
    let model = models.open(name).await.map_err(|error| Usage(error.to_string()))?;
    let dialect = match models.config(name).map_err(|error| Usage(error.to_string()))?.provider {
        Provider::Anthropic => Dialect::Anthropic,
        _ => Dialect::OpenAi,
    };
    Ok((model, dialect))
}

pub async fn run(app: &mut App, args: args::Chat) -> Result<ExitCode> {
    app.set("model", args.model.clone());
    let engine = app.engine().await?;
    let models = app.models().await?;
    let (model, dialect) = usual_model(&models).await?;
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let place = if is_terminal && args.message.is_none() && !app.out.json { Place::Terminal } else { Place::Pipe };
    let mut lines = match &args.message {
        Some(message) => Lines::one(message.clone()),
        None => Lines::of_input(),
    };
    let signals = interrupts()?;
    let mut session = match &args.session {
        Some(session) => Some(app.session_to_write(session).await?),
        None => None,
    };
    if session.is_none() && !args.new && place == Place::Terminal && args.title.is_none() && args.system.is_none() {
        session = offer(app, &engine, &mut lines).await?;
        if let Some(id) = session {
            app.free_from_the_dead(id).await?;
        }
    }
    let fresh = Fresh {
        engine: engine.clone(),
        model: Arc::clone(&model),
        dialect,
        title: args.title,
        system: args.system,
        said: said_model(args.model),
        max_tokens: args.max_tokens,
        budget: budget(&args.budgets, Budget::default()),
    };
    let (chat, left) = match session {
        Some(id) => {
            let how = Resume { take_over: args.take_over, reopen: true, begin_anew: true, ..Resume::default() };
            let resumed = Chat::resume(&engine, id, how, model, dialect).await;
            let (chat, left) = resumed.map_err(|error| match error {
                milepost::Error::Store(held @ StoreError::Held { .. }) => {
                    let again = format!("milepost chat --session {} --take-over", short(id));
                    Failed::held(&held, id, again).into()
                }
                error => anyhow::Error::from(error),
            })?;
            let id = chat.session().id();
            if let Some(anew) = &left.anew {
                tell_anew(app, anew, Some(id));
            }
            tell_left(app, id, &left);
            let budget = budget(&args.budgets, chat.may_cost());
            (Some(chat.max_tokens(args.max_tokens).budget(budget).await?), Some(left))
        }
        None => (None, None),
    };
    let greets = place == Place::Terminal && !args.no_greeting;
    let talk = Talk { app, chat, fresh, signals, lines, place, code: 0 };
    // Who waits for an answer is not greeted: the model would answer the greeting instead.
    talk.go(left.filter(|left| greets && !left.last.is_empty() && !left.is_unanswered)).await
}

/// Asks whether to go on with the last conversation.
async fn offer(app: &App, engine: &Milepost, lines: &mut Lines) -> Result<Option<SessionId>> {
    let status = vec![Status::Active, Status::Paused, Status::Waiting];
    let query = SessionQuery { agent: Some(AGENT.to_owned()), status, limit: Some(1), ..SessionQuery::default() };
    let page = engine.sessions(&query).await?;
    let Some(last) = page.sessions.into_iter().find(|session| session.messages() > 0) else { return Ok(None) };
    let title = last.title.as_deref().map(plain).unwrap_or_default();
    let said = count(last.messages(), "message");
    app.out.note(format!("the last conversation: {} “{title}”, {said}, {}", short(last.id), app.out.time(last.active)));
    if let Some(preview) = &last.preview {
        app.out.note(app.styles().dim(&format!("  … {}", clip(&plain(preview), app.out.width().saturating_sub(6)))));
    }
    talk::prompt(app, "go on with it? [Y/n] ")?;
    match lines.next().await {
        Heard::Line(line) if matches!(line.trim().to_lowercase().as_str(), "" | "y" | "yes") => Ok(Some(last.id)),
        _ => Ok(None),
    }
}

/// Says where a conversation was left.
fn tell_left(app: &App, id: SessionId, left: &Left) {
    let styles = app.styles();
    let title = left.info.title.as_deref().map(plain).unwrap_or_default();
    let said = count(left.info.messages(), "message");
    let when = app.out.time(left.info.active);
    app.out.note(format!("{} {title}, {said}, last active {when}", styles.bold(&id.to_string())));
    for stored in &left.last {
        let text = plain(&stored.message.text());
        let line = clip(&format!("{:>9}  {text}", stored.message.role.as_str()), app.out.width());
        app.out.note(styles.dim(&line));
    }
    if left.mended {
        app.out.note("the last answer was cut off when the process ended; what had arrived of it was kept");
    }
    if left.is_unanswered {
        app.out.note("your last message has no answer yet: /retry asks again");
    }
}
