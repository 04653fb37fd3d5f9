//! What becomes of a step when it ends, and what its end leads to.

use milepost::{NewMark, Trigger};
use serde_json::{Value, json};

use super::marks::Done;
use super::{Log, MAX_OUTPUT_BYTES, Turn};
use crate::graph::actions::Repeat;
use crate::graph::{OnError, Retry};
use crate::run::action::{Failed, OpenBecause, OpenPart, taken};
use crate::run::actions::ends;
use crate::run::budget::Spent;
use crate::run::error::{Error, Result};
use crate::run::flow;
use crate::run::input::written;
use crate::run::ledger::{Decided, Entry, Status};

/// How much of the end of each text that a failed step said is kept (8 KiB).
const MAX_SAID_BYTES: usize = 8 << 10;

/// What the end of a node led to.
#[derive(Default)]
pub(super) struct Followed {
    /// The nodes at the ends of the edges that were taken.
    pub next: Vec<String>,
    /// The round of the loop that begins again.
    pub round: Option<u32>,
}

impl Turn<'_> {
    pub(super) fn skip(&mut self, number: usize) {
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        entry.status = Status::Skipped;
        self.ledger.set_node(&node.id, entry);
        self.ledger.set_output(&node.output, Value::Null);
        self.pass_by(number);
        self.event("step_skipped", json!({"node": self.name(&node.id)}));
    }

    /// No edge that leaves a skipped node is taken.
    pub(super) fn pass_by(&mut self, number: usize) {
        let edges = self.graph.outgoing(number).filter(|(_, edge)| edge.limit.is_none());
        let edges: Vec<(usize, String)> =
            edges.map(|(_, edge)| (edge.to, flow::edge_name(&self.graph, edge))).collect();
        for (to, name) in edges {
            if self.ledger.edge(&name).is_none() {
                self.ledger.set_edge(&name, Some(Decided::Passed));
                self.touched.insert(to);
            }
        }
    }

    pub(super) async fn ended(&mut self, number: usize, result: Result<Value, Failed>) -> Result<()> {
        self.running.remove(&number);
        self.hear(number);
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        let now = self.now();
        let (result, said) = match result {
            Err(Failed::Said { why, gave }) => (Err(Failed::Transient(why)), Some(ends(gave, MAX_SAID_BYTES))),
            other => (other, None),
        };
        let result = match result {
            Err(Failed::Uncertain(why)) if self.may_repeat(number) => Err(Failed::Transient(why)),
            Err(Failed::AfterEffect(after)) if self.may_repeat(number) => Err(match (after.until, after.is_final) {
                (Some(until), _) => Failed::Limited { until, why: after.why },
                (None, true) => Failed::Fatal(after.why),
                (None, false) => Failed::Transient(after.why),
            }),
            Err(Failed::Limited { why, .. }) if entry.limits >= self.runner.max_limits => {
                let most = self.runner.max_limits;
                Err(Failed::Transient(format!(
                    "{why}; it was told to come again later {most} times in a row, MAX_LIMITS"
                )))
            }
            other => other,
        };
        // Whatever else comes of it begins anew to count.
        if !matches!(result, Err(Failed::Limited { .. })) {
            entry.limits = 0;
        }
        match result {
            Err(Failed::Uncertain(why)) => {
                let told = json!({"node": self.name(&node.id), "key": entry.key, "runs_again": false, "why": why});
                self.event("step_uncertain", told);
                entry.status = Status::Uncertain;
                entry.error = Some(why.clone());
                self.ledger.set_node(&node.id, entry);
                self.commit(Some(NewMark::new(Trigger::Error).description(format!("{}: {why}", node.id)))).await
            }
            Err(Failed::AfterEffect(after)) => self.failed_after(number, after.why, after.output).await,
            Err(Failed::Changed { node: part, difference }) => {
                entry.status = Status::Retrying;
                entry.until = None;
                entry.attempt = entry.attempt.saturating_sub(1);
                self.ledger.set_node(&node.id, entry);
                self.changed = Some(Error::Changed { node: part, difference });
                self.commit(None).await
            }
            Ok(output) => {
                let size = output.to_string().len();
                if size > MAX_OUTPUT_BYTES {
                    let why = format!("it gave {size} bytes, the limit MAX_OUTPUT_BYTES is {MAX_OUTPUT_BYTES}");
                    return self.failed_after(number, why, None).await;
                }
                self.done(number, output).await
            }
            Err(Failed::Waits { until, what }) => {
                self.event(
                    "step_waits",
                    json!({"node": self.name(&node.id), "iteration": entry.iteration, "until": until, "what": what}),
                );
                entry.status = Status::Waiting;
                entry.until = until;
                entry.attempt = entry.attempt.saturating_sub(1);
                self.waits.insert(node.id.clone(), vec![(self.name(&node.id), what.clone())]);
                self.ledger.set_node(&node.id, entry);
                self.commit(Some(NewMark::new(Trigger::UserCheckpoint).description(what))).await
            }
            Err(Failed::Limited { until, why }) => {
                self.event("step_limited", json!({"node": self.name(&node.id), "until": until, "why": why}));
                entry.status = Status::Waiting;
                entry.until = Some(until);
                entry.limits += 1;
                entry.error = Some(why.clone());
                entry.attempt = entry.attempt.saturating_sub(1);
                self.waits.insert(node.id.clone(), vec![(self.name(&node.id), format!("a limit: {why}"))]);
                self.ledger.set_node(&node.id, entry);
                self.commit(Some(NewMark::new(Trigger::RateLimit).description(why))).await
            }
            Err(Failed::Parts(open)) => self.open(number, open).await,
            Err(Failed::Pause(why)) => {
                entry.status = Status::Retrying;
                entry.until = None;
                entry.attempt = entry.attempt.saturating_sub(1);
                self.ledger.set_node(&node.id, entry);
                self.pausing = Some((Some(node.id), why));
                self.commit(None).await
            }
            Err(Failed::Transient(why)) if entry.attempt < node.retry.attempts => {
                let wait = self.backoff(&node.retry, entry.attempt);
                let mut told = json!({
                    "node": self.name(&node.id), "iteration": entry.iteration, "attempt": entry.attempt, "key": entry.key, "ok": false,
                    "error": why, "retry_in_ms": wait,
                });
                if let Some(said) = said {
                    told["said"] = said;
                }
                self.event("step_outcome", told);
                entry.status = Status::Retrying;
                entry.until = Some(now.plus_ms(i64::try_from(wait).unwrap_or(i64::MAX)));
                entry.error = Some(why.clone());
                self.ledger.set_node(&node.id, entry);
                self.commit(Some(NewMark::new(Trigger::Error).description(format!("{}: {why}", node.id)))).await
            }
            Err(Failed::Transient(why) | Failed::Fatal(why)) => self.failed_saying(number, why, said).await,
            Err(Failed::Said { why, .. }) => self.failed(number, why).await,
        }
    }

    /// Whether a node may run again when nobody knows whether it ran: with the parameters that it was begun with.
    pub(super) fn may_repeat(&self, number: usize) -> bool {
        let node = &self.graph.nodes[number];
        let own = || {
            let Some(action) = self.actions.get(&node.action) else { return false };
            let Some(entry) = self.ledger.node(&node.id) else {
                return action.repeat(&node.parameters) != Repeat::Effect;
            };
            entry.repeat.unwrap_or_else(|| action.repeat(&written(node, entry))) != Repeat::Effect
        };
        node.action == "set" || node.idempotent.unwrap_or_else(own)
    }

    /// Takes what was said in a step: it is stored with whatever is stored next.
    pub(super) fn hear(&mut self, number: usize) {
        let Some((said, node)) = self.said.remove(&number) else { return };
        let messages = taken(&said);
        // What is said inside of a step is counted by the one who writes it.
        let spent = if matches!(self.log, Log::Session(_)) { Spent::of(&messages) } else { Spent::default() };
        if spent.answers > 0 {
            self.account(&node, &spent);
        }
        self.messages.extend(messages);
    }

    /// Parts of a step wait, or are uncertain: so is the step.
    async fn open(&mut self, number: usize, open: Vec<OpenPart>) -> Result<()> {
        let node = self.graph.nodes[number].id.clone();
        let mut entry = self.ledger.node(&node).cloned().unwrap_or_default();
        let (mut waits, mut uncertain, mut untils) = (Vec::new(), Vec::new(), Vec::new());
        for part in open {
            match part.why {
                OpenBecause::Waits { until, what } => {
                    untils.extend(until);
                    waits.push((part.name, what));
                }
                OpenBecause::Uncertain => uncertain.push((part.name, part.key)),
            }
        }
        entry.status = if uncertain.is_empty() { Status::Waiting } else { Status::Uncertain };
        entry.until = untils.into_iter().min().filter(|_| uncertain.is_empty());
        entry.attempt = entry.attempt.saturating_sub(1);
        self.ledger.set_node(&node, entry);
        let told: Vec<String> = waits.iter().map(|(name, what)| format!("{name} waits for {what}")).collect();
        self.waits.insert(node.clone(), waits);
        self.uncertain.insert(node, uncertain);
        self.commit(Some(NewMark::new(Trigger::UserCheckpoint).description(told.join("; ")))).await
    }

    /// Between half and all of the doubled wait.
    pub(super) fn backoff(&self, retry: &Retry, attempt: u32) -> u64 {
        let doubled = retry.backoff_ms.saturating_mul(1 << attempt.saturating_sub(1).min(20)).min(retry.max_backoff_ms);
        let mut random = [0u8; 8];
        self.runner.engine.source().fill(&mut random);
        doubled / 2 + u64::from_le_bytes(random) % (doubled / 2 + 1)
    }

    /// A step had its effect, or may have had, and failed after it. Where that may not happen twice it is asked about, as what is
    /// uncertain is, and what it gave is kept.
    async fn failed_after(&mut self, number: usize, why: String, output: Option<Value>) -> Result<()> {
        if self.may_repeat(number) {
            return self.failed(number, why).await;
        }
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        entry.happened = true;
        if node.on_error == OnError::GoOn {
            self.ledger.set_node(&node.id, entry);
            return self.failed(number, why).await;
        }
        if let Some(output) = output {
            self.ledger.set_output(&node.output, output);
        }
        let told =
            json!({"node": self.name(&node.id), "key": entry.key, "runs_again": false, "happened": true, "why": why});
        self.event("step_uncertain", told);
        (entry.status, entry.error, entry.until) = (Status::Uncertain, Some(why.clone()), None);
        self.ledger.set_node(&node.id, entry);
        self.ledger.set_error(json!({"node": node.id, "message": why, "timestamp": self.now()}));
        self.commit(Some(NewMark::new(Trigger::Error).description(format!("{}: {why}", node.id)))).await
    }

    pub(super) async fn failed(&mut self, number: usize, why: String) -> Result<()> {
        self.failed_saying(number, why, None).await
    }

    /// A step failed for good; the end of what it said, if it said anything.
    async fn failed_saying(&mut self, number: usize, why: String, said: Option<Value>) -> Result<()> {
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        let took_ms = u64::try_from(self.now().since_ms(entry.since)).unwrap_or(0);
        let mut told = json!({
            "node": self.name(&node.id), "iteration": entry.iteration, "attempt": entry.attempt, "key": entry.key, "ok": false,
            "error": why, "final": true, "ms": took_ms,
        });
        if entry.happened {
            told["effect"] = true.into();
        }
        if let Some(said) = said {
            told["said"] = said;
        }
        self.event("step_outcome", told);
        entry.status = Status::Failed;
        entry.error = Some(why.clone());
        (entry.until, entry.limits) = (None, 0);
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
    pub(super) async fn done(&mut self, number: usize, output: Value) -> Result<()> {
        let node = self.graph.nodes[number].clone();
        let mut entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        let mut names = serde_json::Map::new();
        if !node.remember.is_empty() {
            names = self.names(number, &entry);
            names.insert("output".to_owned(), output.clone());
        }
        let mut remembered = Vec::new();
        for (key, value) in &node.remember {
            match value.evaluate(&names) {
                Ok(value) => remembered.push((key.clone(), value)),
                Err(why) => {
                    let why = format!("what it gave cannot be remembered as {key}: {why}");
                    return self.failed_after(number, why, Some(output)).await;
                }
            }
        }
        let took_ms = u64::try_from(self.now().since_ms(entry.since)).unwrap_or(0);
        self.event(
            "step_outcome",
            json!({
                "node": self.name(&node.id), "iteration": entry.iteration, "attempt": entry.attempt, "key": entry.key, "ok": true,
                "ms": took_ms,
            }),
        );
        entry.status = Status::Completed;
        (entry.error, entry.until, entry.took_ms, entry.limits) = (None, None, Some(took_ms), 0);
        entry.happened = false;
        self.waits.remove(&node.id);
        self.seen.remove(&number);
        self.ledger.set_node(&node.id, entry);
        let set = if node.action == "set" { output.as_object().map_or(0, serde_json::Map::len) } else { 0 };
        let changed_keys = remembered.len() + set;
        self.ledger.set_output(&node.output, output);
        remembered.into_iter().for_each(|(key, value)| self.ledger.remember(&key, value));
        self.ledger.walked(&node.id);
        let followed = self.follow(number);
        self.note_current(self.name(&node.id));
        self.note_next(&followed.next);
        let done = Done { took_ms, changed_keys, round: followed.round };
        self.hold(Some(self.mark_after(&node, &done))).await?;
        match self.mark_between(&node, &followed.next) {
            Some(mark) => self.hold(Some(mark)).await,
            None => Ok(()),
        }
    }

    /// What the conditions of the edges that leave a node see; nothing, when there are none.
    pub(super) fn names_after(&self, number: usize) -> serde_json::Map<String, Value> {
        match self.graph.outgoing(number).any(|(_, edge)| edge.when.is_some()) {
            true => self.names_of_conditions(number),
            false => serde_json::Map::new(),
        }
    }

    pub(super) fn names_of_conditions(&self, number: usize) -> serde_json::Map<String, Value> {
        let node = &self.graph.nodes[number];
        let entry = self.ledger.node(&node.id).cloned().unwrap_or_default();
        let mut names = self.names(number, &entry);
        let output = self.ledger.outputs().get(&node.output).cloned().unwrap_or_default();
        names.insert("output".to_owned(), output);
        names.insert("failed".to_owned(), (entry.status == Status::Failed).into());
        names.insert("error".to_owned(), entry.error.clone().into());
        names
    }

    /// Notes whether the run has gone on from a node that loops leave.
    fn note_left(&mut self, number: usize, left: bool) {
        let id = self.graph.nodes[number].id.clone();
        let has_loops = self.graph.outgoing(number).any(|(_, edge)| edge.limit.is_some());
        if let Some(mut entry) = self.ledger.node(&id).cloned().filter(|entry| has_loops && entry.left != Some(left)) {
            entry.left = Some(left);
            self.ledger.set_node(&id, entry);
        }
    }

    /// Notes what was decided; the nodes at the ends of the edges that were taken.
    fn note_decided(&mut self, all: Vec<(usize, Decided)>) -> Vec<String> {
        let mut next = Vec::new();
        for (edge, decided) in all {
            let edge = &self.graph.edges[edge];
            self.touched.insert(edge.to);
            if decided == Decided::Taken {
                next.push(self.graph.nodes[edge.to].id.clone());
            }
            self.ledger.set_edge(&flow::edge_name(&self.graph, edge), Some(decided));
        }
        next
    }

    /// Decides the edges that leave a node which the run has gone on from, and are new.
    pub(super) fn follow_new(&mut self, number: usize) {
        self.note_left(number, true);
        // What conditions see may be much, and most nodes have none that is new.
        if !flow::has_new(&self.graph, &self.ledger, number) {
            return;
        }
        let followed = flow::follow_new(&self.graph, &self.ledger, number, &self.names_after(number));
        match followed.stuck {
            Some(why) => self.pausing = Some((Some(self.graph.nodes[number].id.clone()), why)),
            None => drop(self.note_decided(followed.decided)),
        }
    }

    /// Decides the edges that leave a node.
    pub(super) fn follow(&mut self, number: usize) -> Followed {
        let followed = flow::follow(&self.graph, &self.ledger, number, &self.names_after(number));
        if let Some(why) = followed.stuck {
            self.note_left(number, false);
            self.pausing = Some((Some(self.graph.nodes[number].id.clone()), why));
            return Followed::default();
        }
        let next = self.note_decided(followed.decided);
        let Some(edge) = followed.again else {
            self.note_left(number, true);
            return Followed { next, round: None };
        };
        let edge = self.graph.edges[edge].clone();
        let name = flow::edge_name(&self.graph, &edge);
        let rounds = self.ledger.rounds(&name) + 1;
        self.ledger.set_rounds(&name, rounds);
        let (nodes, edges) = flow::reset(&self.graph, &self.ledger, &edge);
        // Loops in between have all their rounds again.
        let inner = self
            .graph
            .edges
            .iter()
            .filter(|one| one.limit.is_some() && nodes.contains(&one.from) && nodes.contains(&one.to));
        let inner: Vec<String> = inner.map(|one| flow::edge_name(&self.graph, one)).collect();
        for inner in inner.iter().filter(|inner| **inner != name) {
            if self.ledger.rounds(inner) > 0 {
                self.ledger.set_rounds(inner, 0);
            }
        }
        for number in nodes {
            self.touched.insert(number);
            let id = self.graph.nodes[number].id.clone();
            let iteration = self.ledger.node(&id).map_or(0, |entry| entry.iteration) + 1;
            self.ledger.set_node(&id, Entry { iteration, again: number == edge.to, ..Entry::default() });
            if matches!(self.graph.nodes[number].action.as_str(), "agent" | "checks" | "graph") {
                self.ledger.forget_parts(&id);
            }
        }
        for number in edges {
            let name = flow::edge_name(&self.graph, &self.graph.edges[number]);
            self.ledger.set_edge(&name, None);
        }
        self.event("loop_again", json!({"edge": name, "round": rounds}));
        Followed { next: vec![self.graph.nodes[edge.to].id.clone()], round: Some(rounds) }
    }
}
