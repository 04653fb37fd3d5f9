//! One process's turn at a run: begin what can begin, record what ended, until nothing more can be done now.

mod attempt;
mod begin;
mod end;
mod marks;
mod outcome;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use milepost::{Event, NewMark, Session, Timestamp, Together};
use milepost_model::{Message, State};
use milepost_models::Cancel;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use tokio::time::{Interval, MissedTickBehavior};

use super::action::{Action, Failed, Said};
use super::budget::{self, Purse, Spent};
use super::error::{Error, Result};
use super::ledger::{Entry, Ledger, Status};
use super::parts::{Note, Parts};
use super::secrets::Lost;
use super::{End, Runner, Settle, flow};
use crate::graph::actions::Repeat;
use crate::graph::{Graph, OnError};
pub(super) use attempt::attempt;

/// The largest value that a step may give (8 MiB).
pub const MAX_OUTPUT_BYTES: usize = 8 << 20;

/// So many steps that are done at once are stored in one batch (64),
const MAX_HELD: usize = 64;
/// or about so many bytes of what they gave (1 MiB).
const MAX_HELD_BYTES: usize = 1 << 20;

/// Where a turn's steps are stored.
pub(super) enum Log {
    /// In the session, which it holds.
    Session(Session),
    /// By the turn that it is a part of.
    Parent,
}

pub(super) struct Turn<'r> {
    runner: &'r Runner,
    log: Log,
    graph: Graph,
    /// The graph that the run went by before, where it is another.
    before: Option<Graph>,
    ledger: Ledger,
    actions: BTreeMap<String, Arc<dyn Action>>,
    /// What the steps of this turn are parts of.
    parts: Parts,
    purse: Arc<Purse>,
    notes: Option<mpsc::Receiver<Note>>,
    usage: BTreeMap<String, Spent>,
    /// What is said in steps that run, and to which node of the run that counts.
    said: BTreeMap<usize, (Said, String)>,
    messages: Vec<Message>,
    events: Vec<Event>,
    /// What is complete, and stored in one batch with what it leads to.
    held: Vec<Together>,
    /// About how many bytes of values that is.
    held_bytes: usize,
    tasks: JoinSet<(usize, Result<Value, Failed>)>,
    /// A step that was done as soon as it was begun.
    at_once: Option<(usize, Result<Value, Failed>)>,
    /// The edges that lead to each node.
    incoming: Vec<Vec<usize>>,
    /// Nodes to which something happened since it was last looked which can begin.
    touched: BTreeSet<usize>,
    /// Nodes whose action runs: how it is told to end, and its task.
    running: BTreeMap<usize, (Cancel, Id)>,
    /// What the templates of steps that were begun by this turn saw: another attempt is the same step.
    seen: BTreeMap<usize, Arc<Map<String, Value>>>,
    /// What waits for what, in words: parts by their whole names.
    waits: BTreeMap<String, Vec<(String, String)>>,
    /// The parts of uncertain steps that are, with their keys.
    uncertain: BTreeMap<String, Vec<(String, String)>>,
    /// The nodes that were written with a secret, which the record of the graph does not have.
    lost: BTreeSet<String>,
    lost_by: Lost,
    /// A step cannot be begun without a secret that is not kept.
    misses_secret: bool,
    /// Why nothing new is begun.
    pausing: Option<(Option<String>, String)>,
    /// A step that is another than the one that was recorded: nothing new is begun, and this is told.
    changed: Option<Error>,
    /// The last request to look for answers that this turn has followed.
    heard: Option<Vec<u8>>,
    /// When the run is woken in case that this process is gone, while it waits for something itself.
    in_case: Option<Timestamp>,
    /// The node that the state names as the current one.
    current: String,
    boundary: u64,
}

impl<'r> Turn<'r> {
    pub fn new(
        runner: &'r Runner,
        log: Log,
        graph: Graph,
        ledger: Ledger,
        actions: BTreeMap<String, Arc<dyn Action>>,
        parts: Parts,
        purse: Arc<Purse>,
    ) -> Self {
        let (incoming, touched) = (flow::incoming(&graph), (0..graph.nodes.len()).collect());
        Self {
            runner,
            log,
            graph,
            before: None,
            incoming,
            touched,
            ledger,
            actions,
            parts,
            purse,
            notes: None,
            usage: BTreeMap::new(),
            said: BTreeMap::new(),
            messages: Vec::new(),
            events: Vec::new(),
            held: Vec::new(),
            held_bytes: 0,
            tasks: JoinSet::new(),
            at_once: None,
            running: BTreeMap::new(),
            seen: BTreeMap::new(),
            waits: BTreeMap::new(),
            uncertain: BTreeMap::new(),
            lost: BTreeSet::new(),
            lost_by: Lost::default(),
            misses_secret: false,
            pausing: None,
            changed: None,
            heard: None,
            in_case: None,
            current: String::new(),
            boundary: 0,
        }
    }

    /// Stores what parts of steps note.
    pub fn listen(&mut self, notes: mpsc::Receiver<Note>) {
        self.notes = Some(notes);
    }

    /// A request to look for answers that was made before the run looks at all of them anyway.
    pub fn has_heard(&mut self, asked: Option<Vec<u8>>) {
        self.heard = asked;
    }

    pub fn into_session(self) -> Option<Session> {
        match self.log {
            Log::Session(session) => Some(session),
            Log::Parent => None,
        }
    }

    /// Notes the budget and what is spent, when they are others than those that are recorded.
    pub fn note_budget(&mut self, state: &State) {
        let (budget, spent) = (self.purse.budget(), self.purse.spent());
        let nodes =
            self.graph.nodes.iter().filter_map(|node| Some((&node.id, budget::recorded(state, Some(&node.id))?)));
        self.usage = nodes.map(|(id, spent)| (id.clone(), spent)).collect();
        if budget != budget::recorded_budget(state) {
            self.ledger.set_of_run(&["budget"], budget::to_value(&budget));
        }
        if spent.answers != budget::recorded(state, None).unwrap_or_default().answers {
            self.ledger.set_of_run(&["spent"], budget::to_value(&spent));
        }
        if self.graph.budget != budget::recorded_of_graph(state) {
            self.ledger.set_of_run(&["graph_budget"], budget::to_value(&self.graph.budget));
        }
    }

    /// Which nodes were written with a secret that is not there any more, and why it is not.
    pub fn has_lost(&mut self, lost: BTreeSet<String>, lost_by: Lost) {
        (self.lost, self.lost_by) = (lost, lost_by);
    }

    /// Whether it paused because somebody has to give a secret again.
    pub fn misses_secret(&self) -> bool {
        self.misses_secret
    }

    /// Notes the graph, which takes the place of the one that the run went by before.
    pub fn note_graph(&mut self, before: Option<Graph>) {
        self.ledger.set_graph(&self.graph);
        self.before = before;
    }

    fn now(&self) -> Timestamp {
        self.runner.engine.source().now()
    }

    fn cross(&mut self) -> Result<()> {
        if let Log::Parent = self.log {
            return Ok(());
        }
        self.boundary += 1;
        match &self.runner.at_boundary {
            Some(hook) if hook(self.boundary) => Err(Error::Stopped { boundary: self.boundary }),
            _ => Ok(()),
        }
    }

    /// Stores everything that is noted.
    async fn commit(&mut self, mark: Option<NewMark>) -> Result<()> {
        self.hold(mark).await?;
        self.flush().await
    }

    /// Closes what is noted with a checkpoint. It is stored with what is begun next, in one batch: a step that leads to
    /// another costs one wait for the disk, not two. Whoever waits for anything else flushes before.
    async fn hold(&mut self, mark: Option<NewMark>) -> Result<()> {
        let mut together = self.ledger.take_changes();
        together.events = std::mem::take(&mut self.events);
        together.messages = std::mem::take(&mut self.messages);
        together.mark = mark;
        if together.is_empty() {
            return Ok(());
        }
        self.held_bytes += together.set.iter().map(|(_, value)| weight(value)).sum::<usize>();
        // Answers of a graph inside are counted by the one who writes, before the next step looks at the budget.
        let counts = matches!(self.log, Log::Parent) && !together.messages.is_empty();
        self.held.push(together);
        match counts || self.held.len() >= MAX_HELD || self.held_bytes >= MAX_HELD_BYTES {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Stores what is held.
    async fn flush(&mut self) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let held = std::mem::take(&mut self.held);
        self.held_bytes = 0;
        match &self.log {
            Log::Parent => {
                // When the one who writes is gone, so is this turn.
                let ended = |_| Error::refused("storing a step", "the run ended", "resume it");
                self.parts.journal.store(&self.parts.node, held).await.map_err(ended)
            }
            Log::Session(_) => self.write(held).await,
        }
    }

    async fn write(&mut self, mut all: Vec<Together>) -> Result<()> {
        // What goes wrong anywhere in the run comes by here.
        for together in &mut all {
            let metrics = self.ledger.count_failures(&together.events);
            together.set.extend(metrics);
        }
        self.cross()?;
        let told = self.runner.watch.as_ref().map(|hook| {
            let events: Vec<Event> = all.iter().flat_map(|together| together.events.iter().cloned()).collect();
            (hook, events)
        });
        if let Log::Session(session) = &self.log {
            session.record_all(all).await?;
            if let Some((hook, events)) = told {
                events.iter().for_each(|event| hook(session.id(), event));
            }
        }
        self.cross()
    }

    /// Stores what a part of a step noted, with what it cost.
    async fn store_note(&mut self, note: Note) -> Result<()> {
        // Whoever noted it was dropped: it is as if it had been killed before.
        if note.done.is_closed() {
            return Ok(());
        }
        self.flush().await?;
        let mut all = note.all;
        for together in &mut all {
            let spent = Spent::of(&together.messages);
            if spent.answers > 0 {
                self.account(&note.node, &spent);
                let mut accounts = self.ledger.take_changes();
                accounts.set.append(&mut together.set);
                together.set = accounts.set;
                together.gained.extend(accounts.gained);
            }
        }
        self.write(all).await?;
        self.barrier().await;
        // Whoever noted it may be gone by now.
        let _ = note.done.send(());
        Ok(())
    }

    /// Counts what a node's answers cost.
    fn account(&mut self, node: &str, spent: &Spent) {
        let own = self.usage.entry(node.to_owned()).or_default();
        own.add(spent);
        let own = budget::to_value(own);
        let all = self.purse.spend(spent);
        self.ledger.set_of_run(&["usage", node], own);
        self.ledger.set_of_run(&["spent"], budget::to_value(&all));
    }

    async fn barrier(&self) {
        if let Log::Session(session) = &self.log {
            session.barrier().await;
        }
    }

    fn event(&mut self, kind: &str, data: Value) {
        self.events.push(Event::new(kind, data));
    }

    /// The whole name of a node.
    fn name(&self, node: &str) -> String {
        format!("{}{node}", self.parts.scope)
    }

    pub async fn go(&mut self) -> Result<End> {
        self.take_up().await?;
        let every = Duration::from_millis(end::LOOK_MS);
        let mut look = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.pausing.is_none() && self.changed.is_none() {
                self.begin().await?;
            }
            if let Some((node, result)) = self.at_once.take() {
                self.ended(node, result).await?;
                if self.runner.cancel.is_cancelled() {
                    return self.stop().await;
                }
                continue;
            }
            if self.tasks.is_empty() {
                match self.rest().await? {
                    Some(end) => return Ok(end),
                    None => continue,
                }
            }
            self.flush().await?;
            let until = self.due_beside();
            if let Some(until) = until {
                self.wake_in_case(until).await?;
            }
            let due = until.map(|until| u64::try_from(until.since_ms(self.now())).unwrap_or(0).max(1));
            let (renew, is_looking) = (self.renew_every_ms(), self.is_looking());
            let ended = tokio::select! {
                biased;
                () = self.runner.cancel.cancelled() => return self.stop().await,
                ended = self.tasks.join_next() => ended,
                Some(note) = noted(&mut self.notes) => {
                    self.store_note(note).await?;
                    continue;
                }
                () = after(due, |ms| self.runner.timer.wait_ms(ms)) => continue,
                () = tick(&mut look, is_looking) => {
                    self.look().await?;
                    continue;
                }
                () = after(renew, |ms| tokio::time::sleep(Duration::from_millis(ms))) => {
                    self.renew().await?;
                    continue;
                }
            };
            match ended {
                Some(Ok((node, result))) => self.ended(node, result).await?,
                Some(Err(error)) => {
                    let broken = self.running.iter().find(|(_, (_, id))| *id == error.id());
                    if let Some(node) = broken.map(|(node, _)| *node) {
                        self.ended(node, Err(Failed::Uncertain(format!("its action broke off: {error}")))).await?;
                    }
                }
                None => {}
            }
        }
    }

    /// How often this turn holds its session for longer; none when it holds none.
    fn renew_every_ms(&self) -> Option<u64> {
        match &self.log {
            Log::Session(session) => Some(session.renew_every_ms()),
            Log::Parent => None,
        }
    }

    /// Holds the session for longer: a step may take hours, and nobody is to think that this process is gone.
    async fn renew(&self) -> Result<()> {
        let Log::Session(session) = &self.log else { return Ok(()) };
        match session.renew().await {
            Err(milepost::Error::Store(error @ milepost::store::Error::Fenced { .. })) => {
                Err(milepost::Error::from(error).into())
            }
            // A store that is away for a moment is asked again; one that stays away fails the next append.
            _ => Ok(()),
        }
    }

    /// When something that waits can begin beside what runs.
    fn due_beside(&self) -> Option<Timestamp> {
        if self.tasks.len() >= self.graph.parallel || self.pausing.is_some() || self.changed.is_some() {
            return None;
        }
        self.ledger.waiting().filter_map(|(_, entry)| entry.until).min()
    }

    /// Before this process waits for something itself: it may be killed meanwhile, and the run is to be woken all the same.
    async fn wake_in_case(&mut self, until: Timestamp) -> Result<()> {
        let (session, heard) = (self.parts.session, self.heard.as_deref());
        let noted = Some(self.runner.wake_in_case(session, until, self.in_case, heard).await?);
        if noted != self.in_case {
            self.in_case = noted;
            self.cross()?;
        }
        Ok(())
    }

    /// Takes up what an earlier turn left: steps of which the outcome is not known, failures, waits.
    async fn take_up(&mut self) -> Result<()> {
        let open: Vec<(usize, Entry)> =
            self.ledger.own().filter_map(|(id, entry)| Some((self.graph.find(id)?, entry.clone()))).collect();
        for (number, mut entry) in open {
            let node = self.graph.nodes[number].clone();
            if self.settle(number, &mut entry).await? {
                continue;
            }
            match entry.status {
                Status::Running | Status::Uncertain => {
                    let is_harmless = self.may_repeat(number);
                    if !is_harmless && entry.status == Status::Uncertain {
                        continue;
                    }
                    let told = json!({"node": self.name(&node.id), "key": entry.key, "runs_again": is_harmless});
                    self.event("step_uncertain", told);
                    if is_harmless && entry.status == Status::Running {
                        // Nothing was tried in vain: the process was gone.
                        entry.attempt = entry.attempt.saturating_sub(1);
                    }
                    entry.status = if is_harmless { Status::Retrying } else { Status::Uncertain };
                    entry.until = None;
                    self.ledger.set_node(&node.id, entry);
                }
                // What failed for good gets as many attempts again.
                Status::Failed if node.on_error == OnError::Pause => {
                    entry.status = Status::Retrying;
                    (entry.attempt, entry.until, entry.free) = (0, None, true);
                    self.ledger.set_node(&node.id, entry);
                }
                // Whoever said when to come again is not asked before.
                Status::Waiting if entry.limits > 0 && entry.until.is_some_and(|until| until > self.now()) => {
                    let why = format!("a limit: {}", entry.error.unwrap_or_default());
                    self.waits.insert(node.id.clone(), vec![(self.name(&node.id), why)]);
                }
                // A wait is looked at again: the answer may be there.
                Status::Waiting if entry.until.is_none_or(|until| until > self.now()) => {
                    entry.until = None;
                    entry.status = Status::Retrying;
                    entry.attempt = entry.attempt.saturating_sub(1);
                    self.ledger.set_node(&node.id, entry);
                }
                // What was decided stays so; edges that are new are not.
                Status::Completed | Status::Failed if self.is_left(number, &entry) => self.follow_new(number),
                // A condition that could not be evaluated, or a loop at its limit.
                Status::Completed | Status::Failed => drop(self.follow(number)),
                // An edge that was not there when it was skipped.
                Status::Skipped => self.pass_by(number),
                _ => {}
            }
        }
        self.commit(None).await
    }

    /// Follows what somebody said of a step of which an attempt is open. Whether somebody did.
    async fn settle(&mut self, number: usize, entry: &mut Entry) -> Result<bool> {
        let node = &self.graph.nodes[number];
        let Some(settle) = self.parts.settle.get(&self.name(&node.id)).cloned() else { return Ok(false) };
        match entry.status {
            Status::Running | Status::Uncertain | Status::Retrying => {}
            // A question that is another now is asked as it is now, and a limit is not waited for; whoever knows an answer gives
            // that.
            Status::Waiting if settle == Settle::RunAgain => entry.attempt = entry.attempt.saturating_sub(1),
            _ => return Ok(false),
        }
        let happened = matches!(settle, Settle::Happened(_));
        let told = json!({"node": self.name(&node.id), "key": entry.key, "happened": happened});
        match settle {
            Settle::Happened(output) => {
                // Whoever says no more than that means what it gave, where that was kept.
                let kept = self.ledger.outputs().get(&node.output);
                let kept = kept.filter(|_| entry.happened && output.is_null()).cloned();
                self.event("step_settled", told);
                self.done(number, kept.unwrap_or(output)).await?;
            }
            Settle::RunAgain => {
                entry.status = Status::Retrying;
                entry.until = None;
                // Whoever says so means it as it is now.
                entry.free = true;
                let id = node.id.clone();
                self.event("step_settled", told);
                self.ledger.set_node(&id, entry.clone());
            }
        }
        Ok(true)
    }

    /// Whether the run has gone on from a node that is done: its loops were left.
    fn is_left(&self, number: usize, entry: &Entry) -> bool {
        if let Some(left) = entry.left {
            return left;
        }
        let mut edges = self.graph.outgoing(number);
        let is_decided = edges.any(|(_, edge)| self.ledger.edge(&flow::edge_name(&self.graph, edge)).is_some());
        // Ledgers of before do not say it of nodes that only loops leave: what was stuck there by the graph of then is, and the
        // rest was left.
        let before = self.before.as_ref().and_then(|graph| Some((graph, graph.find(&self.graph.nodes[number].id)?)));
        let (graph, node) = before.unwrap_or((&self.graph, number));
        is_decided || !flow::is_stuck(graph, &self.ledger, node, &self.names_of_conditions(number))
    }

    /// Whether an action is never begun with another input under a key that was used.
    fn is_keyed(&self, action: &str, parameters: &Value) -> bool {
        let action = self.actions.get(action);
        action.is_some_and(|action| action.is_keyed() && action.repeat(parameters) != Repeat::Harmless)
    }
}

/// About how many bytes a value takes.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + weight(value)).sum(),
        _ => 8,
    }
}

/// Waits, or for ever when there is nothing to wait for.
async fn after<F: Future<Output = ()>>(ms: Option<u64>, wait: impl FnOnce(u64) -> F) {
    match ms {
        Some(ms) => wait(ms).await,
        None => std::future::pending().await,
    }
}

/// The next moment to look for something; never, when there is nothing to look for.
async fn tick(every: &mut Interval, is_looking: bool) {
    match is_looking {
        true => drop(every.tick().await),
        false => std::future::pending().await,
    }
}

/// The next note; never, when nobody takes notes.
async fn noted(notes: &mut Option<mpsc::Receiver<Note>>) -> Option<Note> {
    match notes {
        Some(notes) => notes.recv().await,
        None => std::future::pending().await,
    }
}
