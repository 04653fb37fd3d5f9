//! Running a graph, step by durable step. ARCHITECTURE.md, "A run, step by step", says how it hangs together.
//!
//! [`Runner`] starts and resumes runs, says what a resume will do and cost ([`Runner::preview`]), checks recorded sessions
//! against today's graph ([`Runner::verify_replay`]) and runs a step again on a branch ([`Runner::rerun`]). [`answer`] answers
//! questions, [`change_answer`] answers them anew, [`merge_back`] brings what a branch found home. [`Ledger`] is what a run knows of itself.

mod action;
mod actions;
mod again;
mod asked;
mod back;
mod beside;
pub(crate) mod budget;
mod compare;
mod error;
mod fill;
mod flow;
mod forecast;
mod input;
mod ledger;
mod parts;
mod replay;
mod secrets;
mod turn;
pub(crate) mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use milepost::{Event, Milepost, NewSession, Point, Resume, Session, SessionId, State, Timestamp};
use milepost_model::delta::StatePath;
use milepost_models::{Cancel, Model, Piece, Timer};
use serde_json::{Map, Value, json};

pub use action::{Action, After, Failed, OpenBecause, OpenPart, Step};
pub use actions::{Answer, Answered, answer, change_answer, end_commands};
pub use again::{Again, MergeBack, Merged, merge_back};
pub use asked::Asked;
pub use budget::{Budget, Spent};
pub use compare::{About, Break, Nearest, Replay};
pub use error::{Error, Result};
pub use forecast::{Basis, Forecast, Preview, StepForecast};
pub use ledger::{Decided, Entry, Ledger, Status};
pub use wake::{Wakeup, wake};

use crate::graph::{Graph, Rules, check_by};
use budget::Purse;
use ledger::At;
use parts::{Journal, Parts};
use turn::{Log, Turn};

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

/// Called with a step's name and a piece of what a model says in it.
pub type OnPiece = Arc<dyn Fn(&str, Piece<'_>) + Send + Sync>;

/// Called with every event of a run when it is durable.
pub type Watch = Arc<dyn Fn(SessionId, &Event) + Send + Sync>;

/// How often in a row a step may be told to come again later, by a limit that says when, before that is a failed attempt (1,000).
pub const MAX_LIMITS: u32 = 1000;

/// How long a node's request over HTTP may take unless the node says otherwise with `timeout` (10 minutes).
pub const HTTP_TIMEOUT_MS: u64 = 600_000;

/// The graph of a run, and how it came to it.
struct As {
    graph: Graph,
    /// The nodes that were written with a secret, which the record of the graph does not have.
    lost: BTreeSet<String>,
    is_changed: bool,
    /// Values of the state that somebody gave, in clear.
    given: Arc<[(StatePath, Value)]>,
}

impl As {
    /// As somebody gave it.
    fn given(graph: Graph) -> Self {
        Self { graph, lost: BTreeSet::new(), is_changed: false, given: Arc::default() }
    }

    /// As the record has it.
    fn recorded(graph: Graph, state: &State) -> Self {
        Self { lost: secrets::of_graph(&graph, state), ..Self::given(graph) }
    }
}

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
    max_limits: u32,
    http_timeout_ms: u64,
    budget: Option<Budget>,
    repeats_effects: bool,
    heard: Option<OnPiece>,
    at_boundary: Option<AtBoundary>,
    watch: Option<Watch>,
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
            max_limits: MAX_LIMITS,
            http_timeout_ms: HTTP_TIMEOUT_MS,
            budget: None,
            repeats_effects: false,
            heard: None,
            at_boundary: None,
            watch: None,
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

    /// How often in a row a step may be told to come again later before that is a failed attempt ([`MAX_LIMITS`] by default).
    #[must_use]
    pub fn max_limits(mut self, times: u32) -> Self {
        self.max_limits = times;
        self
    }

    /// How long a node's request over HTTP may take that says nothing of it ([`HTTP_TIMEOUT_MS`] by default).
    #[must_use]
    pub fn http_timeout_ms(mut self, ms: u64) -> Self {
        self.http_timeout_ms = ms;
        self
    }

    /// With a budget for the session, in place of the graph's and of the one it had.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Lets steps happen again that happened after the point from which a run that was set back goes on, though they may not
    /// be repeated by themselves. Without it, such a resume is refused and names them ([`Error::Repeats`]).
    #[must_use]
    pub fn repeat_effects(mut self) -> Self {
        self.repeats_effects = true;
        self
    }

    /// Calls this with every piece of a model's answer as it arrives, and the step that asked.
    #[must_use]
    pub fn on_piece(mut self, heard: OnPiece) -> Self {
        self.heard = Some(heard);
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

    /// Tells of every step as soon as what happened is durable.
    #[must_use]
    pub fn watch(mut self, hook: Watch) -> Self {
        self.watch = Some(hook);
        self
    }

    /// The names of the actions that are not built in, for [`check`](crate::graph::check).
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
        // What is stored of it is redacted; the run begins with what it was given.
        let memory = new.state.section("memory").cloned().unwrap_or_default();
        let session = self.engine.create(new).await?;
        let id = session.id();
        let mut state = session.state().await?;
        *state.section_mut("memory") = memory;
        let end = Box::pin(self.run(session, As::given(graph.clone()), &state, &BTreeMap::new())).await?;
        Ok((id, end))
    }

    /// Begins a run in a session that is there and has none. `memory` stands over the graph's own.
    pub async fn start_in(&self, id: SessionId, graph: &Graph, memory: Map<String, Value>) -> Result<End> {
        let session = self.engine.resume(id, Resume::latest()).await?.session;
        let mut state = session.state().await?;
        if Ledger::graph_text(&state).is_some() {
            session.release().await?;
            let what = format!("running {} in session {id}", graph.name);
            return Err(Error::refused(what, "it has a run of a graph already", "resume that, or begin a session"));
        }
        if let Value::Object(known) = state.section_mut("memory") {
            known.extend(memory);
        } else {
            *state.section_mut("memory") = Value::Object(memory);
        }
        let given = Ledger::initial(graph, state);
        session.set_state(given.clone()).await?;
        let mut state = session.state().await?;
        *state.section_mut("memory") = given.section("memory").cloned().unwrap_or_default();
        Box::pin(self.run(session, As::given(graph.clone()), &state, &BTreeMap::new())).await
    }

    /// The graph that a session's run was begun with.
    pub async fn recorded(&self, id: SessionId) -> Result<Graph> {
        self.recorded_graph(&self.whole_state(id).await?.0)
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
        let (state, point) = self.whole_to_resume(id, &how).await?;
        let how = Resume { point, ..how };
        let As { graph, lost, .. } = match graph {
            Some(graph) => As::given(graph.clone()),
            None => As::recorded(self.recorded_graph(&state)?, &state),
        };
        let changes = self.accept(id, &graph, &state, &how, settle).await?;
        self.refuse_repeats(id, &graph, &state, &how).await?;
        self.refuse_other_input(id, &graph, &state, &how, settle).await?;
        // A run reads what is stored, whatever its caller is to be shown.
        let mut stored = Resume { reveal: false, ..how.clone() };
        let by_hand = compare::given(&how);
        if !by_hand.is_empty() && Ledger::graph_text(&state).is_some() {
            let (path, keys) = ledger::note_by_hand(&state, by_hand);
            stored = stored.set(path, keys);
        }
        drop(state);
        let resumed = self.engine.resume(id, stored).await?;
        // The end could be read, and its checkpoint is damaged: the engine went back to an older one by itself.
        if resumed.moved && how.point == Point::Latest {
            let is_fine = match self.accept(id, &graph, &resumed.state, &how, settle).await {
                Ok(_) => self.refuse_repeats(id, &graph, &resumed.state, &how).await,
                Err(error) => Err(error),
            };
            if let Err(error) = is_fine {
                resumed.session.release().await?;
                return Err(error);
            }
        }
        let state = secrets::given_again(resumed.state, &how.set);
        let graph = As { graph, lost, is_changed: !changes.is_empty(), given: how.set.into() };
        let end = Box::pin(self.run(resumed.session, graph, &state, settle)).await?;
        Ok((end, changes))
    }

    fn recorded_graph(&self, state: &State) -> Result<Graph> {
        let nothing = || Error::refused("resuming the run", "the session has no run of a graph", "name a graph's file");
        let (path, text) = Ledger::graph_text(state).ok_or_else(nothing)?;
        let checked = check_by(path.as_ref(), &text, &self.own_actions(), Rules::OfOld);
        let why = checked.errors().next().map(ToString::to_string).unwrap_or_default();
        checked.graph.ok_or_else(|| Error::refused("resuming the run with its own graph", why, "name a graph's file"))
    }

    async fn run(&self, session: Session, how: As, state: &State, settle: &BTreeMap<String, Settle>) -> Result<End> {
        let As { graph, lost, is_changed, given } = how;
        let mut ledger = Ledger::read(state)?;
        for (key, value) in &graph.memory {
            if !ledger.memory().contains_key(key) {
                ledger.remember(key, value.clone());
            }
        }
        let actions = self.all_actions();
        has_actions(&graph, &actions)?;
        let budget = budget::choose(self.budget, graph.budget, state);
        let spent = budget::spent_by(&self.engine, session.id(), state).await?;
        let purse = Arc::new(Purse::new(budget, spent));
        let head = session.info().await.head.to_string();
        if self.repeats_effects {
            ledger.set_of_run(&[back::ACCEPTED], head.clone().into());
        }
        let (journal, notes) = Journal::new();
        let parts = Parts {
            engine: self.engine.clone(),
            journal,
            session: session.id(),
            head,
            at: At::root(),
            scope: String::new(),
            node: String::new(),
            settle: Arc::new(settle.clone()),
            given,
            path: graph.path.as_str().into(),
            directory: working_directory(state),
            policy: Arc::new(session.policy().clone()),
            grace_ms: self.grace_ms,
        };
        let id = session.id();
        let asked = self.asked_to_wake(id).await?;
        let mut turn = Turn::new(self, Log::Session(session), graph, ledger, actions, parts, purse);
        turn.listen(notes);
        turn.has_heard(asked);
        turn.has_lost(lost, secrets::Lost::Recorded);
        if is_changed {
            turn.note_graph(compare::begun_with(state, &self.own_actions()));
        }
        turn.note_budget(state);
        let end = turn.go().await;
        let Some(session) = turn.into_session() else {
            return Err(Error::refused(format!("running session {id}"), "it is held by nobody", "resume it"));
        };
        match end {
            Ok(end) => {
                if !matches!(end, End::Waiting { .. }) {
                    self.forget_wakeup(session.id()).await?;
                }
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

    /// Every action: built in, one's own, and those that need the runner's models.
    fn all_actions(&self) -> BTreeMap<String, Arc<dyn Action>> {
        let mut all = self.actions.clone();
        for (name, action) in actions::of_runner(self) {
            all.entry(name).or_insert(action);
        }
        all
    }
}

/// Where a session's commands run, if that is there.
fn working_directory(state: &State) -> Option<Arc<Path>> {
    let path = Path::new(state.pointer("/context/workingDirectory")?.as_str()?);
    path.is_dir().then(|| path.into())
}

/// The key of a step: the same for every attempt and after every crash, another after a restore.
fn step_key(session: SessionId, head: &str, name: &str, iteration: u32) -> String {
    let named = json!([session.to_string(), head, name, iteration]);
    milepost_model::Hash(milepost_model::hash_value(&named)).to_string()[..32].to_owned()
}

/// The key of a step that is begun with another input than the one under this key.
fn next_key(key: &str) -> String {
    milepost_model::Hash(milepost_model::hash_value(&json!([key]))).to_string()[..32].to_owned()
}

fn has_actions(graph: &Graph, actions: &BTreeMap<String, Arc<dyn Action>>) -> Result<()> {
    let missing = graph.nodes.iter().find(|node| node.action != "set" && !actions.contains_key(&node.action));
    match missing {
        None => Ok(()),
        Some(node) => {
            let what = format!("running {}", graph.name);
            let why = format!("node {} wants the action {:?}, which this program does not have", node.id, node.action);
            Err(Error::refused(what, why, "run it with the program that has it"))
        }
    }
}
