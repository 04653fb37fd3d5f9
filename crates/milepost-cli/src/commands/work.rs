//! The process that goes on with runs, and with conversations, whose wait is over.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use milepost::store::Error as StoreError;
use milepost::{Milepost, Resume, SessionId, Status};
use milepost_models::Cancel;
use milepost_run::chat::{Chat, Said};
use milepost_run::models::Models;
use milepost_run::run::{End, Error, Runner, Wakeup};
use serde_json::json;
use tokio::task::JoinSet;

use super::chat;
use super::run::{engine_for, remembered_model, runner, told};
use super::tell::{Teller, line};
use crate::app::App;
use crate::args::Work;
use crate::errors::INTERRUPTED;
use crate::holder;
use crate::out::{count, plain, short};

/// How often is looked for what is due.
const LOOK_MS: u64 = 500;
/// So many of those that wait are looked at to know whether there is anything to wait for.
const MAX_LOOKED_AT: usize = 1000;
/// How long is waited for a store that does not answer.
const AWAY_MS: u64 = 5000;

/// How something ended, in a word, and why.
struct Ended {
    id: SessionId,
    word: &'static str,
    why: String,
}

type Going = Pin<Box<dyn Future<Output = Ended> + Send>>;

pub async fn run(app: &mut App, args: Work) -> Result<ExitCode> {
    app.set("model", args.how.model.clone());
    let engine = app.engine().await?;
    let models = app.models().await?;
    let watcher = Runner::new(&engine);
    let cancel = app.cancel.clone();
    let mut runs: JoinSet<Ended> = JoinSet::new();
    let mut idle = Idle::default();
    if !args.once && !args.until_idle {
        app.out.note("waiting for what is due; Ctrl-C ends this");
    }
    loop {
        while !cancel.is_cancelled() && runs.len() < args.parallel {
            let due = match watcher.claim_due(args.parallel - runs.len()).await {
                Ok(due) => due,
                // A store that is away comes back; whoever asked for an end is told.
                Err(error) if !args.once && !args.until_idle => {
                    app.out.note(format!("{} {}", app.styles().warn("warning:"), plain(&error.to_string())));
                    pause(&cancel, AWAY_MS).await;
                    break;
                }
                Err(error) => return Err(told(error)),
            };
            if due.is_empty() {
                break;
            }
            for id in due {
                // What takes long is due again while this process goes on with it.
                if idle.going.contains(&id) {
                    continue;
                }
                match Box::pin(begin(app, &engine, &models, id, &args)).await {
                    Ok(Begun::Goes(run)) => {
                        idle.going.insert(id);
                        runs.spawn(run);
                    }
                    Ok(Begun::Over) => {}
                    Ok(Begun::Held) => {
                        idle.held.insert(id);
                    }
                    Err(error) => {
                        let (word, why) = in_vain(&watcher, id, format!("{error:#}")).await;
                        idle.tell(app, &Ended { id, word, why });
                    }
                }
            }
        }
        if runs.is_empty() {
            let is_over = args.once
                || cancel.is_cancelled()
                || (args.until_idle && idle.is_idle(&watcher.wakeups(MAX_LOOKED_AT).await.map_err(told)?));
            if is_over {
                break;
            }
        }
        // Nothing is due before the next wake-up, unless somebody adds one.
        tokio::select! {
            Some(ended) = runs.join_next() => {
                if let Ok(ended) = ended {
                    idle.tell(app, &ended);
                }
            }
            () = cancel.cancelled(), if !cancel.is_cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(LOOK_MS)) => {}
        }
    }
    if args.until_idle && !cancel.is_cancelled() {
        idle.tell_left(app, &watcher.wakeups(MAX_LOOKED_AT).await.map_err(told)?);
    }
    Ok(if cancel.is_cancelled() && (args.once || args.until_idle) {
        ExitCode::from(INTERRUPTED)
    } else {
        ExitCode::SUCCESS
    })
}

/// What is known of sessions that need not be waited for.
#[derive(Default)]
struct Idle {
    /// Those that this process goes on with.
    going: BTreeSet<SessionId>,
    /// Those that somebody else works on.
    held: BTreeSet<SessionId>,
    /// Those of which it was told how they are.
    told: BTreeSet<SessionId>,
}

impl Idle {
    /// Whether nothing is to be waited for. What waits for nothing but another try is not: it may never get anywhere.
    fn is_idle(&self, wakeups: &[Wakeup]) -> bool {
        wakeups.iter().all(|wakeup| wakeup.tries > 0 || self.held.contains(&wakeup.session))
    }

    /// Says how something ended.
    fn tell(&mut self, app: &App, ended: &Ended) {
        self.going.remove(&ended.id);
        self.held.remove(&ended.id);
        self.told.insert(ended.id);
        tell(app, ended);
    }

    /// Says what is left, and when it is tried again.
    fn tell_left(&self, app: &App, wakeups: &[Wakeup]) {
        for Wakeup { session: id, due, tries } in wakeups {
            let why = match self.held.contains(id) {
                true => "somebody else works on it".to_owned(),
                false if self.told.contains(id) => continue,
                false => format!("until {due}, to try again after {} in vain", count(*tries, "try")),
            };
            tell(app, &Ended { id: *id, word: "waiting", why });
        }
        if !wakeups.is_empty() && !app.out.json {
            let sessions = count(wakeups.len(), "session");
            app.out.note(format!("{sessions} left for later: `milepost work` goes on when it is time"));
        }
    }
}

/// What became of a session that is due.
enum Begun {
    /// It goes on.
    Goes(Going),
    /// There is nothing to go on with any more.
    Over,
    /// Somebody works on it. It is looked at again when the claim is over.
    Held,
}

/// Goes on with a session that is due.
async fn begin(app: &mut App, engine: &Milepost, models: &Models, id: SessionId, args: &Work) -> Result<Begun> {
    let watcher = Runner::new(engine);
    match may_go_on(engine, id).await {
        Ok(true) => {}
        // Somebody paused or ended it, or it is gone: nothing waits any more.
        Ok(false) => {
            watcher.forget_wakeup(id).await.map_err(told)?;
            return Ok(Begun::Over);
        }
        Err(()) => return Ok(Begun::Held),
    }
    let store = engine.store();
    let (info, state) = (store.session(id).await?, store.state(id).await?);
    // What was said for all of them stands over what was said for one when it began.
    let known = remembered_model(&state).filter(|_| args.how.model.is_none());
    let models = &models.with_usual(known);
    if info.agent.as_deref() == Some(chat::AGENT) {
        return go_on_talking(app, engine, models, id).await.map(Begun::Goes);
    }
    let graph = watcher.recorded(id).await.map_err(told)?;
    app.free_from_the_dead(id).await?;
    let engine = engine_for(app, &graph).await?;
    let runner = runner(app, &engine, models, &graph, &args.how, None).watch(Teller::new(app, &graph, true).watch());
    tell_woken(app, id, &graph.name);
    Ok(Begun::Goes(Box::pin(async move {
        let ended = runner.resume(id, Resume::latest(), None, &Default::default()).await;
        let (word, why) = match ended {
            Ok((end, _)) => ended_in_words(end),
            // Whoever took it goes on with it.
            Err(Error::Engine(milepost::Error::Store(held @ StoreError::Held { .. }))) => ("failed", held.to_string()),
            Err(error) => in_vain(&runner, id, error.to_string()).await,
        };
        Ended { id, word, why }
    })))
}

fn tell_woken(app: &App, id: SessionId, name: &str) {
    if app.out.json {
        line(&json!({ "event": "woken", "sessionId": id }));
    } else {
        app.out.note(format!("{}  {} goes on", short(id), plain(name)));
    }
}

/// Asks the model again for the answer that a limit, or a failure, stood in the way of.
async fn go_on_talking(app: &mut App, engine: &Milepost, models: &Models, id: SessionId) -> Result<Going> {
    let (model, dialect) = chat::usual_model(models).await?;
    app.free_from_the_dead(id).await?;
    let (chat, left) = Chat::resume(engine, id, Resume::latest(), model, dialect).await?;
    tell_woken(app, id, &left.info.title.unwrap_or_else(|| "the conversation".to_owned()));
    let (cancel, watcher) = (app.cancel.clone(), Runner::new(engine));
    Ok(Box::pin(async move {
        let (word, why) = match talk(chat, &cancel).await {
            Ok(Some(Said::Whole(_))) => ("answered", String::new()),
            Ok(Some(Said::Limited(limited))) => ("waiting", format!("until {}: {}", limited.until, limited.why)),
            Ok(Some(Said::Failed(why))) => match watcher.due(id).await {
                Ok(Some(until)) => ("waiting", format!("until {until}, to ask again: {why}")),
                _ => ("paused", why.to_string()),
            },
            Ok(Some(Said::Cut { why, .. })) => ("paused", why.to_string()),
            Ok(None) => ("paused", "there is nothing to answer".to_owned()),
            Ok(Some(Said::OverBudget(why))) => ("paused", why),
            Err(error @ milepost::Error::Store(StoreError::Held { .. })) => ("failed", error.to_string()),
            Err(error) => in_vain(&watcher, id, error.to_string()).await,
        };
        Ended { id, word, why }
    }))
}

async fn talk(chat: Chat, cancel: &Cancel) -> milepost::Result<Option<Said>> {
    let said = chat.woken(cancel, |_| {}).await;
    // Whatever became of it: the session is left in order, if the store lets it.
    let left = chat.leave().await;
    let said = said?;
    left.map(|()| said)
}

/// Waits, unless it is to stop.
async fn pause(cancel: &Cancel, ms: u64) {
    tokio::select! {
        () = cancel.cancelled() => {}
        () = tokio::time::sleep(Duration::from_millis(ms)) => {}
    }
}

/// Whether a session waits, or was left by a process that is gone. An error when somebody works on it.
async fn may_go_on(engine: &Milepost, id: SessionId) -> Result<bool, ()> {
    let store = engine.store();
    let Ok(session) = store.session(id).await else { return Ok(false) };
    let lease = store.lease(id).await.map_err(drop)?;
    let is_held = lease.is_some_and(|lease| {
        lease.owner.is_some() && lease.until > engine.source().now() && !holder::is_gone(&lease.holder)
    });
    match session.status {
        _ if is_held => Err(()),
        Status::Waiting | Status::Active => Ok(true),
        // What was denied was answered anew.
        Status::Paused => Runner::new(engine).is_answered_anew(id).await.map_err(drop),
        _ => Ok(false),
    }
}

/// A session could not be gone on with: what becomes of it now.
async fn in_vain(runner: &Runner, id: SessionId, why: String) -> (&'static str, String) {
    match runner.woken_in_vain(id, &why).await {
        Ok(Some(until)) => ("waiting", format!("until {until}, to try again: {why}")),
        Ok(None) => ("paused", why),
        Err(error) => ("failed", format!("{why}; nor can it be paused: {error}")),
    }
}

fn ended_in_words(end: End) -> (&'static str, String) {
    match end {
        End::Completed { .. } => ("completed", String::new()),
        End::Paused { node, why } => ("paused", format!("{}: {why}", node.unwrap_or_default())),
        End::Waiting { what, .. } => {
            let what: Vec<String> = what.into_iter().map(|(node, what)| format!("{node} waits for {what}")).collect();
            ("waiting", what.join("; "))
        }
        End::Uncertain { steps } => {
            let steps: Vec<String> = steps.into_iter().map(|(node, _)| node).collect();
            ("uncertain", format!("nobody knows whether {} had its effect", steps.join(", ")))
        }
        End::Stopped => ("stopped", "it is paused".to_owned()),
    }
}

fn tell(app: &App, Ended { id, word, why }: &Ended) {
    if app.out.json {
        return line(&json!({ "event": "end", "sessionId": id, "end": word, "why": why }));
    }
    let colon = if why.is_empty() { "" } else { ": " };
    app.out.note(format!("{}  {word}{colon}{}", short(*id), plain(why)));
}
