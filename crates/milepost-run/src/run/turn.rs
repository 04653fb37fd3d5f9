//! One process's turn at a run: begin what can begin, record what ended, until nothing more can be done now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use milepost::{Event, NewMark, Session, Timestamp, Trigger};
use milepost_models::Cancel;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::action::{Action, Failed, Step};
use super::error::{Error, Result};
use super::ledger::{Entry, Ledger, Status};
use super::{End, Runner, Settle, fill, flow};
use crate::graph::actions::Repeat;
use crate::graph::{Graph, OnError};

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

    fn skip(&mut self, number: usize) {
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        entry.status = Status::Skipped;
        self.ledger.set_node(&node.id, entry);
        self.ledger.set_output(&node.output, Value::Null);
        let names: Vec<String> = self
            .graph
            .outgoing(number)
            .filter(|(_, edge)| edge.limit.is_none())
            .map(|(_, edge)| flow::edge_name(&self.graph, edge))
            .collect();
        names.iter().for_each(|name| self.ledger.set_edge(name, Some(super::Decided::Passed)));
        self.event("step_skipped", json!({"node": node.id}));
    }

    async fn ended(&mut self, number: usize, result: Result<Value, Failed>) -> Result<()> {
        self.cancels.remove(&number);
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        let now = self.now();
        match result {
            Ok(output) => {
                let size = output.to_string().len();
                if size > MAX_OUTPUT_BYTES {
                    let why = format!("it gave {size} bytes, the limit MAX_OUTPUT_BYTES is {MAX_OUTPUT_BYTES}");
                    return self.failed(number, why).await;
                }
                self.done(number, output).await
            }
            Err(Failed::Waits { until, what }) => {
                self.event(
                    "step_waits",
                    json!({"node": node.id, "iteration": entry.iteration, "until": until, "what": what}),
                );
                entry.status = Status::Waiting;
                entry.until = until;
                entry.attempt = entry.attempt.saturating_sub(1);
                self.waits.insert(node.id.clone(), what.clone());
                self.ledger.set_node(&node.id, entry);
                self.commit(Some(NewMark::new(Trigger::UserCheckpoint).description(what))).await
            }
            Err(Failed::Limited { until, why }) => {
                self.event("step_limited", json!({"node": node.id, "until": until, "why": why}));
                entry.status = Status::Waiting;
                entry.until = Some(until);
                entry.error = Some(why.clone());
                entry.attempt = entry.attempt.saturating_sub(1);
                self.waits.insert(node.id.clone(), format!("a limit: {why}"));
                self.ledger.set_node(&node.id, entry);
                self.commit(Some(NewMark::new(Trigger::RateLimit).description(why))).await
            }
            Err(Failed::Transient(why)) if entry.attempt < node.retry.attempts => {
                let wait = self.backoff(&node.retry, entry.attempt);
                self.event("step_outcome", json!({
                    "node": node.id, "iteration": entry.iteration, "attempt": entry.attempt, "key": entry.key, "ok": false,
                    "error": why, "retry_in_ms": wait,
                }));
                entry.status = Status::Retrying;
                entry.until = Some(now.plus_ms(i64::try_from(wait).unwrap_or(i64::MAX)));
                entry.error = Some(why.clone());
                self.ledger.set_node(&node.id, entry);
                self.commit(Some(NewMark::new(Trigger::Error).description(format!("{}: {why}", node.id)))).await
            }
            Err(Failed::Transient(why) | Failed::Fatal(why)) => self.failed(number, why).await,
        }
    }

    /// Between half and all of the doubled wait.
    fn backoff(&self, retry: &crate::graph::Retry, attempt: u32) -> u64 {
        let doubled = retry.backoff_ms.saturating_mul(1 << attempt.saturating_sub(1).min(20)).min(retry.max_backoff_ms);
        let mut random = [0u8; 8];
        self.runner.engine.source().fill(&mut random);
        doubled / 2 + u64::from_le_bytes(random) % (doubled / 2 + 1)
    }

    async fn failed(&mut self, number: usize, why: String) -> Result<()> {
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        self.event(
            "step_outcome",
            json!({
                "node": node.id, "iteration": entry.iteration, "attempt": entry.attempt, "key": entry.key, "ok": false,
                "error": why, "final": true,
            }),
        );
        entry.status = Status::Failed;
        entry.error = Some(why.clone());
        entry.until = None;
        self.ledger.set_node(&node.id, entry);
        self.ledger.set_error(json!({"node": node.id, "message": why, "timestamp": self.now()}));
        match node.on_error {
            OnError::GoOn => {
                self.ledger.set_output(&node.output, Value::Null);
                self.ledger.walked(&node.id);
                self.follow(number);
            }
            OnError::Pause => self.pausing = Some((Some(node.id.clone()), why.clone())),
        }
        self.commit(Some(NewMark::new(Trigger::Error).description(format!("{}: {why}", node.id)))).await
    }

    /// A step is done: what it gave, what is remembered, which ways are open now, in one batch.
    async fn done(&mut self, number: usize, output: Value) -> Result<()> {
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        let mut names = self.names(number, &entry);
        names.insert("output".to_owned(), output.clone());
        let mut remembered = Vec::new();
        for (key, value) in &node.remember {
            match value.evaluate(&names) {
                Ok(value) => remembered.push((key.clone(), value)),
                Err(why) => {
                    return self.failed(number, format!("what it gave cannot be remembered as {key}: {why}")).await;
                }
            }
        }
        self.event(
            "step_outcome",
            json!({
                "node": node.id, "iteration": entry.iteration, "attempt": entry.attempt, "key": entry.key, "ok": true,
                "ms": self.now().since_ms(entry.since),
            }),
        );
        entry.status = Status::Completed;
        entry.error = None;
        entry.until = None;
        self.waits.remove(&node.id);
        self.ledger.set_node(&node.id, entry);
        self.ledger.set_output(&node.output, output);
        remembered.into_iter().for_each(|(key, value)| self.ledger.remember(&key, value));
        self.ledger.walked(&node.id);
        let is_again = self.follow(number);
        let trigger = match (node.safe_point, is_again, self.graph.is_plan) {
            (true, _, _) => Trigger::SafePoint,
            (_, true, _) if self.session.policy().takes(&Trigger::LoopIteration) => Trigger::LoopIteration,
            (_, _, true) => Trigger::Step,
            _ => Trigger::NodeComplete,
        };
        let mut mark = NewMark::new(trigger).description(format!("after {}", node.id));
        mark.clean = self.tasks.is_empty();
        self.commit(Some(mark)).await
    }

    /// Decides the edges that leave a node. True when a loop begins again.
    fn follow(&mut self, number: usize) -> bool {
        let node = self.graph.nodes[number].clone();
        let entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        let mut names = self.names(number, &entry);
        let output = self.ledger.outputs().get(&node.output).cloned().unwrap_or_default();
        names.insert("output".to_owned(), output);
        names.insert("failed".to_owned(), (entry.status == Status::Failed).into());
        names.insert("error".to_owned(), entry.error.clone().into());
        let followed = flow::follow(&self.graph, &self.ledger, number, &names);
        if let Some(why) = followed.stuck {
            self.pausing = Some((Some(node.id), why));
            return false;
        }
        for (edge, decided) in followed.decided {
            let name = flow::edge_name(&self.graph, &self.graph.edges[edge]);
            self.ledger.set_edge(&name, Some(decided));
        }
        let Some(edge) = followed.again else { return false };
        let edge = self.graph.edges[edge].clone();
        let name = flow::edge_name(&self.graph, &edge);
        let rounds = self.ledger.rounds(&name) + 1;
        self.ledger.set_rounds(&name, rounds);
        let (nodes, edges) = flow::reset(&self.graph, &self.ledger, &edge);
        for number in nodes {
            let id = self.graph.nodes[number].id.clone();
            let iteration = self.ledger.node(&id).map_or(0, |entry| entry.iteration) + 1;
            self.ledger.set_node(&id, Entry { iteration, again: number == edge.to, ..Entry::default() });
        }
        for number in edges {
            let name = flow::edge_name(&self.graph, &self.graph.edges[number]);
            self.ledger.set_edge(&name, None);
        }
        self.event("loop_again", json!({"edge": name, "round": rounds}));
        true
    }

    /// Nothing runs. The end of the turn, or none when there is something to begin again.
    async fn rest(&mut self) -> Result<Option<End>> {
        if self.runner.cancel.is_cancelled() {
            return self.stop().await.map(Some);
        }
        if let Some((node, why)) = self.pausing.take() {
            self.commit(None).await?;
            let told = node.as_ref().map_or_else(|| why.clone(), |node| format!("{node}: {why}"));
            self.cross()?;
            self.session.pause(Some(&told)).await?;
            self.cross()?;
            return Ok(Some(End::Paused { node, why }));
        }
        let now = self.now();
        let waiting =
            self.ledger.nodes().filter(|(_, entry)| matches!(entry.status, Status::Retrying | Status::Waiting));
        let waiting: Vec<(String, Option<Timestamp>)> =
            waiting.map(|(id, entry)| (id.to_owned(), entry.until)).collect();
        let soonest = waiting.iter().filter_map(|(_, until)| *until).min();
        if let Some(until) = soonest {
            let ms = u64::try_from(until.since_ms(now)).unwrap_or(0);
            if ms <= self.runner.patience_ms {
                tokio::select! {
                    () = self.runner.timer.wait_ms(ms.max(1)) => {}
                    () = self.runner.cancel.cancelled() => {}
                }
                return Ok(None);
            }
        }
        let uncertain: Vec<(String, String)> = self
            .ledger
            .nodes()
            .filter(|(_, entry)| entry.status == Status::Uncertain)
            .map(|(id, entry)| (id.to_owned(), entry.key.clone()))
            .collect();
        if !uncertain.is_empty() {
            self.commit(None).await?;
            let names: Vec<&str> = uncertain.iter().map(|(id, _)| id.as_str()).collect();
            let why = format!("nobody knows whether {} had its effect: settle it", names.join(", "));
            self.cross()?;
            self.session.pause(Some(&why)).await?;
            self.cross()?;
            return Ok(Some(End::Uncertain { steps: uncertain }));
        }
        if !waiting.is_empty() {
            self.commit(None).await?;
            let word = |id: &str| self.waits.get(id).cloned().unwrap_or_else(|| "the next attempt".to_owned());
            let what: Vec<(String, String)> = waiting.iter().map(|(id, _)| (id.clone(), word(id))).collect();
            let told: Vec<String> = what.iter().map(|(id, what)| format!("{id} waits for {what}")).collect();
            self.cross()?;
            self.session.wait(&told.join("; ")).await?;
            self.cross()?;
            return Ok(Some(End::Waiting { until: soonest, what }));
        }
        self.complete().await.map(Some)
    }

    async fn complete(&mut self) -> Result<End> {
        let names = Map::from_iter([
            ("memory".to_owned(), Value::Object(self.ledger.memory().clone())),
            ("outputs".to_owned(), Value::Object(self.ledger.outputs().clone())),
            ("session".to_owned(), self.session.id().to_string().into()),
        ]);
        let mut outputs = Map::new();
        for (name, value) in self.graph.outputs.clone() {
            match value.evaluate(&names) {
                Ok(value) => drop(outputs.insert(name, value)),
                Err(why) => {
                    let why = format!("the output {name} cannot be evaluated: {why}");
                    self.commit(None).await?;
                    self.cross()?;
                    self.session.pause(Some(&why)).await?;
                    self.cross()?;
                    return Ok(End::Paused { node: None, why });
                }
            }
        }
        self.event("run_completed", json!({"outputs": outputs}));
        self.commit(None).await?;
        self.cross()?;
        self.session.complete().await?;
        self.cross()?;
        Ok(End::Completed { outputs })
    }

    /// Ends what runs, with grace; what does not end in time stays without an outcome.
    async fn stop(&mut self) -> Result<End> {
        self.cancels.values().for_each(Cancel::cancel);
        let grace = Duration::from_millis(self.runner.grace_ms);
        let _ = timeout(grace, async {
            while let Some(ended) = self.tasks.join_next().await {
                let Ok((number, result)) = ended else { continue };
                match result {
                    Ok(output) => self.ended(number, Ok(output)).await?,
                    Err(_) => {
                        // It says itself that it did not come to its end: it is tried again, and this was no attempt.
                        let id = self.graph.nodes[number].id.clone();
                        let mut entry = self.ledger.node(&id).cloned().unwrap_or_default();
                        let is_safe = self.is_harmless(&self.graph.nodes[number].action, &Value::Null)
                            || self.graph.nodes[number].idempotent == Some(true);
                        if is_safe {
                            entry.status = Status::Retrying;
                            entry.attempt = entry.attempt.saturating_sub(1);
                            self.ledger.set_node(&id, entry);
                        }
                    }
                }
            }
            Ok::<(), Error>(())
        })
        .await;
        self.tasks.abort_all();
        self.commit(None).await?;
        self.cross()?;
        self.session.pause(Some("it was told to stop")).await?;
        self.cross()?;
        Ok(End::Stopped)
    }
}

/// One attempt, within its times. When a time is over the action is told to end, and after a grace time dropped.
async fn attempt(
    action: Arc<dyn Action>,
    step: Step,
    whole_ms: Option<u64>,
    still_ms: Option<u64>,
    grace_ms: u64,
) -> Result<Value, Failed> {
    let (cancel, progress) = (step.cancel.clone(), step.progress.clone());
    let mut running = action.run(step);
    let over = async {
        match whole_ms {
            Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            None => std::future::pending().await,
        }
    };
    let still = async {
        let Some(ms) = still_ms else { return std::future::pending().await };
        while timeout(Duration::from_millis(ms), progress.notified()).await.is_ok() {}
    };
    let why = tokio::select! {
        ended = &mut running => return ended,
        () = over => format!("it took longer than its timeout, {} ms", whole_ms.unwrap_or(0)),
        () = still => format!("it gave no sign of life for {} ms", still_ms.unwrap_or(0)),
    };
    cancel.cancel();
    let _ = timeout(Duration::from_millis(grace_ms), running).await;
    Err(Failed::Transient(why))
}
