//! Running a graph, step by durable step. ARCHITECTURE.md, "A run, step by step", says how it hangs together.

mod action;
mod actions;
mod error;
mod fill;
mod flow;
mod ledger;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::{Milepost, NewSession, Resume, Session, SessionId, State, Timestamp};
use milepost_models::{Cancel, Model, Timer};
use serde_json::{Map, Value};

pub use action::{Action, Failed, Step};
pub use actions::{Answered, answer};
pub use error::{Error, Result};
pub use ledger::{Decided, Entry, Ledger, Status};

use crate::graph::{Graph, check};
use turn::Turn;

/// The kind of records that wake-ups are.
const WAKEUP: &str = "wakeup";
/// How long whoever claimed a wake-up has until another may, in milliseconds.
const WAKEUP_LEASE_MS: i64 = 60_000;

/// How a run ended, for now.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// Every node is done or skipped.
    Completed {
        /// What the graph gives.
        outputs: Map<String, Value>,
    },
    /// It cannot go on by itself. The session is paused; a resume tries again.
    Paused {
        /// The node that it stopped at.
        node: Option<String>,
        /// Why.
        why: String,
    },
    /// It waits for a time or a person. The session is waiting.
    Waiting {
        /// When it goes on by itself.
        until: Option<Timestamp>,
        /// For what, by node.
        what: Vec<(String, String)>,
    },
    /// Nobody knows whether these steps had their effect, and they may not run twice. The session is paused until
    /// somebody settles them.
    Uncertain {
        /// The steps, each with its key.
        steps: Vec<(String, String)>,
    },
    /// It was told to stop. The session is paused.
    Stopped,
}

/// What somebody found out about an uncertain step.
#[derive(Debug, Clone, PartialEq)]
pub enum Settle {
    /// It did not happen, or may happen twice: run it again.
    RunAgain,
    /// It happened, and gave this.
    Happened(Value),
}

/// What is different about a graph since its run began, and is no problem.
pub type Changes = Vec<String>;

/// Called before and after every append with the boundary's number; true stops the run there, as a kill would.
pub type AtBoundary = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// Runs graphs on an engine.
#[derive(Clone)]
pub struct Runner {
    engine: Milepost,
    actions: BTreeMap<String, Arc<dyn Action>>,
    models: actions::Models,
    timer: Timer,
    cancel: Cancel,
    patience_ms: u64,
    grace_ms: u64,
    at_boundary: Option<AtBoundary>,
}

impl Runner {
    /// A runner with the built-in actions.
    pub fn new(engine: &Milepost) -> Self {
        Self {
            engine: engine.clone(),
            actions: actions::built_in(engine),
            models: actions::Models::default(),
            timer: Timer::real(),
            cancel: Cancel::new(),
            patience_ms: 5000,
            grace_ms: 5000,
            at_boundary: None,
        }
    }

    /// With an action of one's own.
    #[must_use]
    pub fn action(mut self, name: impl Into<String>, action: Arc<dyn Action>) -> Self {
        self.actions.insert(name.into(), action);
        self
    }

    /// With the model that nodes ask which name none.
    #[must_use]
    pub fn model(mut self, model: Arc<dyn Model>) -> Self {
        self.models.usual = Some(model);
        self
    }

    /// With a model that nodes ask by this name.
    #[must_use]
    pub fn named_model(mut self, name: impl Into<String>, model: Arc<dyn Model>) -> Self {
        self.models.named.insert(name.into(), model);
        self
    }

    /// With another way to wait, for tests and simulations.
    #[must_use]
    pub fn timer(mut self, timer: Timer) -> Self {
        self.timer = timer;
        self
    }

    /// Waits of at most so long are waited out; longer ones end the run, to be resumed (5 seconds by default).
    #[must_use]
    pub fn patience_ms(mut self, ms: u64) -> Self {
        self.patience_ms = ms;
        self
    }

    /// How long actions may take to end when the run is stopped (5 seconds by default).
    #[must_use]
    pub fn grace_ms(mut self, ms: u64) -> Self {
        self.grace_ms = ms;
        self
    }

    /// Stops the run when it is cancelled.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Calls this before and after every append.
    #[must_use]
    pub fn at_boundary(mut self, hook: AtBoundary) -> Self {
        self.at_boundary = Some(hook);
        self
    }

    /// The names of the actions that are not built in, for [`check`].
    pub fn own_actions(&self) -> Vec<&str> {
        let built_in = crate::graph::actions::ACTIONS;
        let own = self.actions.keys().filter(|name| built_in.iter().all(|action| action.name != name.as_str()));
        own.map(String::as_str).collect()
    }

    /// Begins a run in a new session.
    pub async fn start(&self, graph: &Graph, mut new: NewSession) -> Result<(SessionId, End)> {
        new.state = Ledger::initial(graph, new.state);
        if new.patch.is_empty() {
            new.patch = milepost::SessionPatch::new().title(graph.name.clone());
        }
        let session = self.engine.create(new).await?;
        let id = session.id();
        let end = self.run(session, graph.clone(), &BTreeMap::new(), false).await?;
        Ok((id, end))
    }

    /// Goes on with a run. Without a graph it goes on with the one it was begun with. `settle` says what somebody found
    /// out about uncertain steps.
    pub async fn resume(
        &self,
        id: SessionId,
        how: Resume,
        graph: Option<&Graph>,
        settle: &BTreeMap<String, Settle>,
    ) -> Result<(End, Changes)> {
        let state = self.engine.store().state(id).await.map_err(milepost::Error::from)?;
        let graph = match graph {
            Some(graph) => graph.clone(),
            None => self.recorded_graph(&state)?,
        };
        let changes = compare(&graph, &state)?;
        let resumed = self.engine.resume(id, how).await?;
        let end = self.run(resumed.session, graph, settle, !changes.is_empty()).await?;
        Ok((end, changes))
    }

    fn recorded_graph(&self, state: &State) -> Result<Graph> {
        let nothing = || Error::refused("resuming the run", "the session has no run of a graph", "name a graph's file");
        let (path, text) = Ledger::graph_text(state).ok_or_else(nothing)?;
        let checked = check(path.as_ref(), &text, &self.own_actions());
        let why = checked.errors().next().map(ToString::to_string).unwrap_or_default();
        checked.graph.ok_or_else(|| Error::refused("resuming the run with its own graph", why, "name a graph's file"))
    }

    async fn run(
        &self,
        session: Session,
        graph: Graph,
        settle: &BTreeMap<String, Settle>,
        is_changed: bool,
    ) -> Result<End> {
        let state = session.state().await?;
        let ledger = Ledger::read(&state)?;
        let mut actions = self.actions.clone();
        actions.insert("model".to_owned(), actions::model(self.models.clone()));
        let missing = graph.nodes.iter().find(|node| node.action != "set" && !actions.contains_key(&node.action));
        if let Some(node) = missing {
            let what = format!("running {}", graph.name);
            let why = format!("node {} wants the action {:?}, which this program does not have", node.id, node.action);
            return Err(Error::refused(what, why, "run it with the program that has it"));
        }
        let head = session.info().await.head.to_string();
        let mut turn = Turn::new(self, session, graph, ledger, actions, head);
        if is_changed {
            turn.note_graph();
        }
        let end = turn.go(settle).await;
        let session = turn.into_session();
        match end {
            Ok(end) => {
                self.note_wakeup(session.id(), &end).await?;
                session.release().await?;
                Ok(end)
            }
            // Nothing more may be stored, nor given back: that is what a crash leaves.
            Err(error @ Error::Stopped { .. }) => Err(error),
            Err(error) => {
                // The first error is the one to tell; a session that is not given back is free when its lease is over.
                let _ = session.release().await;
                Err(error)
            }
        }
    }

    /// Notes when a waiting run is to go on, and forgets the note of one that does not wait.
    async fn note_wakeup(&self, id: SessionId, end: &End) -> Result<()> {
        let store = self.engine.store();
        let key = id.to_string();
        let known = store.record(WAKEUP, &key).await.map_err(milepost::Error::from)?;
        let version = known.map(|record| record.version);
        let stored = match (end, version) {
            (End::Waiting { until: Some(until), .. }, version) => {
                store.put_record(WAKEUP, &key, version, Some(*until), b"{}").await.map(drop)
            }
            (_, Some(version)) => store.delete_record(WAKEUP, &key, version).await,
            (_, None) => Ok(()),
        };
        Ok(stored.map_err(milepost::Error::from)?)
    }

    /// The sessions whose waits are over, claimed for this process: nobody else is given them for a minute.
    pub async fn claim_due(&self, limit: usize) -> Result<Vec<SessionId>> {
        let store = self.engine.store();
        let now = self.engine.source().now();
        let mut claimed = Vec::new();
        for record in store.records_due(WAKEUP, now, limit).await.map_err(milepost::Error::from)? {
            let again = now.plus_ms(WAKEUP_LEASE_MS);
            let taken = store.put_record(WAKEUP, &record.key, Some(record.version), Some(again), &record.value).await;
            if let (Ok(_), Ok(id)) = (taken, record.key.parse()) {
                claimed.push(id);
            }
        }
        Ok(claimed)
    }
}

/// What is different about a graph since its run began. A step that was begun and is another now is an error.
fn compare(graph: &Graph, state: &State) -> Result<Changes> {
    let ledger = Ledger::read(state)?;
    let before = Ledger::fingerprints(state);
    let mut changes = Vec::new();
    for (id, print) in &before {
        let status = ledger.status(id);
        let is_open = matches!(status, Status::Running | Status::Retrying | Status::Waiting | Status::Uncertain);
        match graph.find(id).map(|number| graph.node_fingerprint(&graph.nodes[number])) {
            None if is_open => {
                let difference = "the graph has no such node any more".to_owned();
                return Err(Error::Changed { node: id.clone(), difference });
            }
            None => changes.push(format!("node {id} is gone")),
            Some(now) if now == *print => {}
            Some(_) if is_open => {
                let difference = "its action, parameters or output are others now".to_owned();
                return Err(Error::Changed { node: id.clone(), difference });
            }
            Some(_) if status == Status::Completed => {
                changes.push(format!("node {id} is another, and was done as it was"));
            }
            Some(_) => changes.push(format!("node {id} is another")),
        }
    }
    changes.extend(
        graph.nodes.iter().filter(|node| !before.contains_key(&node.id)).map(|node| format!("node {} is new", node.id)),
    );
    Ok(changes)
}
