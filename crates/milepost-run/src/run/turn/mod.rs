//! One process's turn at a run: begin what can begin, record what ended, until nothing more can be done now.

mod attempt;
mod end;
mod outcome;

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::{Event, NewMark, Session, Timestamp, Trigger};
use milepost_models::Cancel;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::action::{Action, Failed, Step};
use super::error::{Error, Result};
use super::ledger::{Entry, Ledger, Status};
use super::{End, Runner, Settle, fill, flow};
use crate::graph::actions::Repeat;
use crate::graph::{Graph, OnError};
use attempt::attempt;

/// The largest value that a step may give (8 MiB).
pub const MAX_OUTPUT_BYTES: usize = 8 << 20;

pub(super) struct Turn<'r> {
    runner: &'r Runner,
    session: Session,
    graph: Graph,
    ledger: Ledger,
    actions: BTreeMap<String, Arc<dyn Action>>,
    head: String,
    events: Vec<Event>,
    tasks: JoinSet<(usize, Result<Value, Failed>)>,
    cancels: BTreeMap<usize, Cancel>,
    /// What waits for what, in words.
    waits: BTreeMap<String, String>,
    /// Why nothing new is begun.
    pausing: Option<(Option<String>, String)>,
    boundary: u64,
}

impl<'r> Turn<'r> {
    pub fn new(
        runner: &'r Runner,
        session: Session,
        graph: Graph,
        ledger: Ledger,
        actions: BTreeMap<String, Arc<dyn Action>>,
        head: String,
    ) -> Self {
        Self {
            runner,
            session,
            graph,
            ledger,
            actions,
            head,
            events: Vec::new(),
            tasks: JoinSet::new(),
            cancels: BTreeMap::new(),
            waits: BTreeMap::new(),
            pausing: None,
            boundary: 0,
        }
    }

    pub fn into_session(self) -> Session {
        self.session
    }

    pub fn note_graph(&mut self) {
        self.ledger.set_graph(&self.graph);
    }

    fn now(&self) -> Timestamp {
        self.runner.engine.source().now()
    }

    fn cross(&mut self) -> Result<()> {
        self.boundary += 1;
        match &self.runner.at_boundary {
            Some(hook) if hook(self.boundary) => Err(Error::Stopped { boundary: self.boundary }),
            _ => Ok(()),
        }
    }

    /// Stores everything that is noted.
    async fn commit(&mut self, mark: Option<NewMark>) -> Result<()> {
        let mut together = self.ledger.take_changes();
        together.events = std::mem::take(&mut self.events);
        together.mark = mark;
        if together.events.is_empty()
            && together.set.is_empty()
            && together.gained.is_empty()
            && together.mark.is_none()
        {
            return Ok(());
        }
        self.cross()?;
        self.session.record(together).await?;
        self.cross()
    }

    fn event(&mut self, kind: &str, data: Value) {
        self.events.push(Event::new(kind, data));
    }

    pub async fn go(&mut self, settle: &BTreeMap<String, Settle>) -> Result<End> {
        self.take_up(settle).await?;
        loop {
            if self.pausing.is_none() {
                self.begin().await?;
            }
            if self.tasks.is_empty() {
                match self.rest().await? {
                    Some(end) => return Ok(end),
                    None => continue,
                }
            }
            let ended = tokio::select! {
                ended = self.tasks.join_next() => ended,
                () = self.runner.cancel.cancelled() => return self.stop().await,
            };
            match ended {
                Some(Ok((node, result))) => self.ended(node, result).await?,
                Some(Err(error)) => {
                    let why = format!("an action broke off: {error}");
                    let broken: Vec<usize> = self.cancels.keys().copied().collect();
                    for node in broken {
                        self.ended(node, Err(Failed::Fatal(why.clone()))).await?;
                    }
                }
                None => {}
            }
        }
    }

    /// Takes up what an earlier turn left: steps of which the outcome is not known, failures, waits.
    async fn take_up(&mut self, settle: &BTreeMap<String, Settle>) -> Result<()> {
        let open: Vec<(usize, Entry)> =
            self.ledger.nodes().filter_map(|(id, entry)| Some((self.graph.find(id)?, entry.clone()))).collect();
        for (number, mut entry) in open {
            let node = self.graph.nodes[number].clone();
            match entry.status {
                Status::Running | Status::Uncertain => match settle.get(&node.id) {
                    Some(Settle::Happened(output)) => {
                        self.event("step_settled", json!({"node": node.id, "key": entry.key, "happened": true}));
                        self.done(number, output.clone()).await?;
                    }
                    Some(Settle::RunAgain) => {
                        self.event("step_settled", json!({"node": node.id, "key": entry.key, "happened": false}));
                        entry.status = Status::Retrying;
                        entry.until = None;
                        self.ledger.set_node(&node.id, entry);
                    }
                    None => {
                        let repeat = match node.idempotent {
                            Some(true) => Repeat::Idempotent,
                            Some(false) => Repeat::Effect,
                            None => {
                                self.actions.get(&node.action).map_or(Repeat::Effect, |a| a.repeat(&node.parameters))
                            }
                        };
                        let is_harmless = repeat != Repeat::Effect;
                        if !is_harmless && entry.status == Status::Uncertain {
                            continue;
                        }
                        self.event(
                            "step_uncertain",
                            json!({"node": node.id, "key": entry.key, "runs_again": is_harmless}),
                        );
                        entry.status = if is_harmless { Status::Retrying } else { Status::Uncertain };
                        entry.until = None;
                        self.ledger.set_node(&node.id, entry);
                    }
                },
                // What failed for good gets as many attempts again.
                Status::Failed if node.on_error == OnError::Pause => {
                    entry.status = Status::Retrying;
                    (entry.attempt, entry.until) = (0, None);
                    self.ledger.set_node(&node.id, entry);
                }
                // A wait is looked at again: the answer may be there.
                Status::Waiting if entry.until.is_none_or(|until| until > self.now()) => {
                    entry.until = None;
                    entry.status = Status::Retrying;
                    entry.attempt = entry.attempt.saturating_sub(1);
                    self.ledger.set_node(&node.id, entry);
                }
                // A condition that could not be evaluated, or a loop at its limit.
                Status::Completed | Status::Failed => {
                    let is_open = self.graph.outgoing(number).filter(|(_, edge)| edge.limit.is_none());
                    let is_open = is_open.map(|(_, edge)| flow::edge_name(&self.graph, edge));
                    let is_open = is_open.collect::<Vec<_>>().iter().any(|name| self.ledger.edge(name).is_none());
                    let only_loops = self.graph.outgoing(number).any(|(_, edge)| edge.limit.is_some());
                    if is_open && !self.is_repeated(number) || only_loops && self.unfinished_loop(number) {
                        self.follow(number);
                    }
                }
                _ => {}
            }
        }
        self.commit(None).await
    }

    /// Whether a node waits to run again in a loop: then its edges are rightly open.
    fn is_repeated(&self, number: usize) -> bool {
        self.ledger.status(&self.graph.nodes[number].id) == Status::Pending
    }

    /// A node whose only way on is a loop that paused at its limit.
    fn unfinished_loop(&self, number: usize) -> bool {
        self.graph.outgoing(number).all(|(_, edge)| edge.limit.is_some())
    }

    fn names(&self, number: usize, entry: &Entry) -> Map<String, Value> {
        let node = &self.graph.nodes[number];
        Map::from_iter([
            ("memory".to_owned(), Value::Object(self.ledger.memory().clone())),
            ("outputs".to_owned(), Value::Object(self.ledger.outputs().clone())),
            ("node".to_owned(), node.id.clone().into()),
            ("session".to_owned(), self.session.id().to_string().into()),
            ("key".to_owned(), entry.key.clone().into()),
            ("attempt".to_owned(), entry.attempt.into()),
            ("iteration".to_owned(), entry.iteration.into()),
        ])
    }

    fn key(&self, node: &str, iteration: u32) -> String {
        let named = json!([self.session.id().to_string(), self.head, node, iteration]);
        milepost_model::Hash(milepost_model::hash_value(&named)).to_string()[..32].to_owned()
    }

    /// Begins whatever can begin: intents of all of it in one batch, then the actions.
    async fn begin(&mut self) -> Result<()> {
        loop {
            let next = flow::next(&self.graph, &self.ledger);
            if next.skipped.is_empty() {
                break;
            }
            for number in next.skipped {
                self.skip(number);
            }
        }
        let now = self.now();
        let next = flow::next(&self.graph, &self.ledger);
        let due = self.graph.nodes.iter().enumerate().filter(|(_, node)| {
            self.ledger.node(&node.id).is_some_and(|entry| {
                matches!(entry.status, Status::Retrying | Status::Waiting)
                    && entry.until.is_none_or(|until| until <= now)
                    && !(entry.status == Status::Waiting && entry.until.is_none())
            })
        });
        let all: Vec<usize> = next.ready.into_iter().chain(due.map(|(number, _)| number)).collect();
        let room = self.graph.parallel.saturating_sub(self.tasks.len());
        let mut begun: Vec<(usize, Step, Arc<dyn Action>)> = Vec::new();
        let mut inline = false;
        for number in all.into_iter().take(room) {
            let node = self.graph.nodes[number].clone();
            let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
            if entry.status == Status::Pending || entry.timeline != self.head {
                entry.key = self.key(&node.id, entry.iteration);
                entry.timeline = self.head.clone();
                entry.since = now;
                entry.attempt = 0;
            }
            entry.again = false;
            entry.attempt += 1;
            entry.fingerprint = self.graph.node_fingerprint(&node);
            let parameters = match fill::fill(&node, &self.names(number, &entry)) {
                Ok(parameters) => parameters,
                Err(why) => {
                    self.ledger.set_node(&node.id, entry);
                    self.ended(number, Err(Failed::Fatal(why))).await?;
                    inline = true;
                    continue;
                }
            };
            let input = milepost_model::Hash(milepost_model::hash_value(&parameters)).to_string();
            let is_same = entry.input.is_empty() || entry.attempt == 1 || entry.input == input;
            if !is_same && !self.is_harmless(&node.action, &parameters) && node.idempotent != Some(true) {
                let difference = "its parameters are others than those it was begun with".to_owned();
                return Err(Error::Changed { node: node.id, difference });
            }
            entry.input = input;
            entry.until = None;
            entry.error = None;
            if node.action == "set" {
                self.ledger.set_node(&node.id, entry);
                for (key, value) in parameters.as_object().into_iter().flatten() {
                    self.ledger.remember(key, value.clone());
                }
                self.done(number, parameters).await?;
                inline = true;
                continue;
            }
            entry.status = Status::Running;
            let Some(action) = self.actions.get(&node.action).cloned() else { continue };
            self.event(
                "step_intent",
                json!({
                    "node": node.id, "action": node.action, "iteration": entry.iteration, "attempt": entry.attempt,
                    "key": entry.key, "input": entry.input,
                }),
            );
            let step = Step {
                session: self.session.id(),
                node: node.id.clone(),
                iteration: entry.iteration,
                attempt: entry.attempt,
                key: entry.key.clone(),
                parameters,
                now,
                since: entry.since,
                cancel: Cancel::new(),
                progress: Arc::new(Notify::new()),
            };
            self.ledger.set_node(&node.id, entry);
            begun.push((number, step, action));
        }
        if begun.is_empty() {
            if inline {
                return Box::pin(self.begin()).await;
            }
            return Ok(());
        }
        let names: Vec<&str> = begun.iter().map(|(_, step, _)| step.node.as_str()).collect();
        let mut mark = NewMark::new(Trigger::NodeStart).description(format!("before {}", names.join(", ")));
        mark.clean = false;
        self.commit(Some(mark)).await?;
        self.session.barrier().await;
        for (number, step, action) in begun {
            self.cancels.insert(number, step.cancel.clone());
            let node = &self.graph.nodes[number];
            let (whole, still, grace) = (node.timeout_ms, node.no_progress_ms, self.runner.grace_ms);
            self.tasks.spawn(async move { (number, attempt(action, step, whole, still, grace).await) });
        }
        Ok(())
    }

    fn is_harmless(&self, action: &str, parameters: &Value) -> bool {
        self.actions.get(action).is_some_and(|action| action.repeat(parameters) != Repeat::Effect)
    }
}
