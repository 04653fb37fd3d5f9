//! Parts of a step as steps of their own: an agent's turns and calls, a check's rounds, the nodes of a sub-graph. They
//! have their lines in a ledger below the step's, with intent, outcome and key as every step.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use milepost::{Event, Milepost, NewMark, Together};
use milepost_model::delta::StatePath;
use milepost_model::{Message, Policy, SessionId};
use milepost_models::Cancel;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::action::{Failed, OpenBecause, OpenPart, Step};
use super::compare::differences;
use super::ledger::{At, Ledger, Status};
use super::secrets::given_again;
use super::{Settle, next_key, step_key};
use crate::graph::actions::Repeat;

/// What a part was begun with is kept while it is open, to tell what is different later, if it has at most so many bytes (4 KiB).
const MAX_WITH_BYTES: usize = 4 << 10;

/// Something that a part of a step wants stored.
pub(crate) struct Note {
    pub all: Vec<Together>,
    /// The node of the run to which it belongs.
    pub node: String,
    pub done: oneshot::Sender<()>,
}

/// The way to the one who writes.
#[derive(Debug, Clone)]
pub(crate) struct Journal(mpsc::Sender<Note>);

impl Journal {
    pub fn new() -> (Self, mpsc::Receiver<Note>) {
        let (sender, receiver) = mpsc::channel(64);
        (Self(sender), receiver)
    }

    /// Returns when it is durable.
    pub async fn store(&self, node: &str, mut all: Vec<Together>) -> Result<(), Failed> {
        all.retain(|together| !together.is_empty());
        if all.is_empty() {
            return Ok(());
        }
        let gone = || Failed::Transient("the run ended".to_owned());
        let (done, stored) = oneshot::channel();
        self.0.send(Note { all, node: node.to_owned(), done }).await.map_err(|_| gone())?;
        stored.await.map_err(|_| gone())
    }
}

/// Where the parts of a step are, and who they belong to.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub engine: Milepost,
    pub journal: Journal,
    pub session: SessionId,
    pub head: String,
    pub at: At,
    /// The beginning of their names.
    pub scope: String,
    /// The node of the run to which they belong.
    pub node: String,
    /// What somebody found out, by whole names.
    pub settle: Arc<BTreeMap<String, Settle>>,
    /// Values of the state that somebody gave, in clear.
    pub given: Arc<[(StatePath, Value)]>,
    /// The file of the graph that the step stands in.
    pub path: Arc<str>,
    /// The session's working directory, if it has one that is there: whoever goes on with it may stand elsewhere.
    pub directory: Option<Arc<Path>>,
    /// The session's policy.
    pub policy: Arc<Policy>,
    pub grace_ms: u64,
}

/// How a part ended.
pub(crate) struct Ended {
    pub status: Status,
    pub output: Option<Value>,
    pub error: Option<String>,
    pub messages: Vec<Message>,
    pub mark: Option<NewMark>,
    /// It had its effect, or may have had, whatever else is said.
    pub happened: bool,
}

impl Ended {
    pub fn completed(output: Option<Value>, messages: Vec<Message>) -> Self {
        Self { status: Status::Completed, output, error: None, messages, mark: None, happened: false }
    }

    pub fn failed(why: String, messages: Vec<Message>) -> Self {
        Self { status: Status::Failed, output: None, error: Some(why), messages, mark: None, happened: false }
    }
}

/// What to do about a part.
pub(crate) enum Begun {
    /// Run it.
    Run(Box<Step>),
    /// Somebody said that it happened, and gave this.
    Happened(Value),
}

impl Parts {
    /// The parts as they are recorded.
    pub async fn open(&self) -> Result<Open, Failed> {
        let state = self.engine.store().state(self.session).await;
        let state = given_again(state.map_err(|error| Failed::Transient(error.to_string()))?, &self.given);
        let ledger = Ledger::read_at(&state, self.at.clone()).map_err(|error| Failed::Fatal(error.to_string()))?;
        Ok(Open { parts: self.clone(), ledger })
    }
}

/// The parts of one step, while it runs.
pub(crate) struct Open {
    pub parts: Parts,
    pub ledger: Ledger,
}

impl Open {
    pub fn name(&self, part: &str) -> String {
        format!("{}{part}", self.parts.scope)
    }

    /// Records that a part is about to run, before it does.
    pub async fn begin(
        &mut self,
        of: &Step,
        part: &str,
        action: &str,
        repeat: Repeat,
        parameters: Value,
    ) -> Result<Begun, Failed> {
        let name = self.name(part);
        let now = self.parts.engine.source().now();
        let mut entry = self.ledger.node(part).cloned().unwrap_or_default();
        let mut events = Vec::new();
        let input = milepost_model::Hash(milepost_model::hash_value(&parameters)).to_string();
        // Whose input follows from what the run has said, and whose key goes to nobody, is the same whatever it is.
        let is_keyed = repeat != Repeat::Harmless && !matches!(action, "model" | "agent");
        let is_other = is_keyed
            && !entry.input.is_empty()
            && entry.input != input
            && entry.timeline == self.parts.head
            && entry.status != Status::Pending;
        if matches!(entry.status, Status::Running | Status::Uncertain) {
            match self.parts.settle.get(&name).cloned() {
                Some(Settle::Happened(output)) => {
                    let told = json!({"node": name, "key": entry.key, "happened": true});
                    self.store(vec![Event::new("step_settled", told)], Vec::new(), None).await?;
                    return Ok(Begun::Happened(output));
                }
                Some(Settle::RunAgain) => {
                    events.push(Event::new("step_settled", json!({"node": name, "key": entry.key, "happened": false})));
                }
                None if repeat == Repeat::Effect => {
                    return Err(self.uncertain(part, "its outcome was not recorded").await);
                }
                None if is_other => {
                    let difference = match &entry.with {
                        Some(with) => differences("", with, &parameters).join("; "),
                        None => "its parameters are others than those it was begun with".to_owned(),
                    };
                    return Err(Failed::Changed { node: name, difference });
                }
                None => {
                    events.push(Event::new(
                        "step_uncertain",
                        json!({"node": name, "key": entry.key, "runs_again": true}),
                    ));
                }
            }
        }
        if entry.status == Status::Pending || entry.timeline != self.parts.head {
            entry.key = step_key(self.parts.session, &self.parts.head, &name, 0);
            entry.timeline.clone_from(&self.parts.head);
            entry.since = now;
            entry.attempt = 0;
        } else if is_other {
            // No attempt is open: it is another step, with a key of its own.
            entry.key = next_key(&entry.key);
        }
        entry.attempt += 1;
        entry.status = Status::Running;
        (entry.until, entry.error, entry.happened) = (None, None, false);
        entry.input = input;
        entry.with = Some(&parameters).filter(|with| is_keyed && with.to_string().len() <= MAX_WITH_BYTES).cloned();
        events.push(Event::new(
            "step_intent",
            json!({
                "node": name, "action": action, "iteration": 0, "attempt": entry.attempt, "key": entry.key,
                "input": entry.input, "repeat": repeat.word(),
            }),
        ));
        let step = Step {
            session: self.parts.session,
            node: name,
            iteration: 0,
            attempt: entry.attempt,
            key: entry.key.clone(),
            parameters,
            now,
            since: entry.since,
            cancel: Cancel::new(),
            progress: Arc::clone(&of.progress),
            said: Arc::new(Mutex::default()),
            parts: self.below(part),
            purse: Arc::clone(&of.purse),
            names: Arc::clone(&of.names),
            written: None,
        };
        self.ledger.set_node(part, entry);
        self.store(events, Vec::new(), None).await?;
        Ok(Begun::Run(Box::new(step)))
    }

    fn below(&self, part: &str) -> Parts {
        Parts {
            at: self.parts.at.below(part),
            scope: super::ledger::scope(&self.parts.scope, part, 0),
            ..self.parts.clone()
        }
    }

    /// Records how a part ended.
    pub async fn end(&mut self, part: &str, ended: Ended) -> Result<(), Failed> {
        let mut entry = self.ledger.node(part).cloned().unwrap_or_default();
        let is_over = matches!(ended.status, Status::Completed | Status::Failed | Status::Retrying);
        let mut told = json!({
            "node": self.name(part), "iteration": 0, "attempt": entry.attempt, "key": entry.key,
            "ok": ended.status == Status::Completed,
        });
        if let Some(error) = &ended.error {
            told["error"] = error.as_str().into();
        }
        if matches!(ended.status, Status::Completed | Status::Failed) && entry.attempt > 0 {
            let now = self.parts.engine.source().now();
            let took_ms = u64::try_from(now.since_ms(entry.since)).unwrap_or(0);
            told["ms"] = took_ms.into();
            entry.took_ms = Some(took_ms);
        }
        if ended.happened {
            told["effect"] = true.into();
        }
        (entry.status, entry.error, entry.happened, entry.with) = (ended.status, ended.error, ended.happened, None);
        self.ledger.set_node(part, entry);
        if let Some(output) = ended.output {
            self.ledger.set_output(part, output);
        }
        let events = if is_over { vec![Event::new("step_outcome", told)] } else { Vec::new() };
        self.store(events, ended.messages, ended.mark).await
    }

    /// A part waits. What it is run with is the same when it is run again.
    pub async fn wait(&mut self, part: &str, why: OpenBecause) -> Failed {
        let mut entry = self.ledger.node(part).cloned().unwrap_or_default();
        let name = self.name(part);
        let key = entry.key.clone();
        if let OpenBecause::Waits { until, what } = &why {
            entry.status = Status::Waiting;
            entry.until = *until;
            entry.attempt = entry.attempt.saturating_sub(1);
            self.ledger.set_node(part, entry);
            let told = json!({"node": name, "iteration": 0, "until": until, "what": what});
            if let Err(failed) = self.store(vec![Event::new("step_waits", told)], Vec::new(), None).await {
                return failed;
            }
        }
        Failed::Parts(vec![OpenPart { name, key, why }])
    }

    /// Nobody knows whether a part had its effect.
    pub async fn uncertain(&mut self, part: &str, why: &str) -> Failed {
        let mut entry = self.ledger.node(part).cloned().unwrap_or_default();
        let (name, key) = (self.name(part), entry.key.clone());
        if entry.status != Status::Uncertain {
            (entry.status, entry.error) = (Status::Uncertain, Some(why.to_owned()));
            self.ledger.set_node(part, entry);
            let told = json!({"node": name, "key": key, "runs_again": false, "why": why});
            if let Err(failed) = self.store(vec![Event::new("step_uncertain", told)], Vec::new(), None).await {
                return failed;
            }
        }
        Failed::Parts(vec![OpenPart { name, key, why: OpenBecause::Uncertain }])
    }

    /// A part did not come to its end, and is known to have done nothing that may not be repeated: it is begun again when
    /// the step is. Gives back why.
    pub async fn rest(&mut self, part: &str, why: Failed) -> Failed {
        let mut entry = self.ledger.node(part).cloned().unwrap_or_default();
        entry.status = Status::Retrying;
        entry.attempt = entry.attempt.saturating_sub(1);
        self.ledger.set_node(part, entry);
        match self.store(Vec::new(), Vec::new(), None).await {
            Ok(()) => why,
            Err(failed) => failed,
        }
    }

    /// Whether a part has its outcome.
    pub fn is_over(&self, part: &str) -> bool {
        matches!(self.ledger.status(part), Status::Completed | Status::Failed)
    }

    /// What a part gave.
    pub fn output(&self, part: &str) -> Option<&Value> {
        self.ledger.outputs().get(part)
    }

    /// Stores what was noted, and this.
    pub async fn store(
        &mut self,
        events: Vec<Event>,
        messages: Vec<Message>,
        mark: Option<NewMark>,
    ) -> Result<(), Failed> {
        let mut together = self.ledger.take_changes();
        (together.events, together.messages, together.mark) = (events, messages, mark);
        self.parts.journal.store(&self.parts.node, vec![together]).await
    }
}
