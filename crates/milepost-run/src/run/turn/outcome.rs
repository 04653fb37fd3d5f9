//! What becomes of a step when it ends, and what its end leads to.

use milepost::{NewMark, Trigger};
use serde_json::{Value, json};

use super::{MAX_OUTPUT_BYTES, Turn};
use crate::graph::{OnError, Retry};
use crate::run::action::Failed;
use crate::run::error::Result;
use crate::run::flow;
use crate::run::ledger::{Decided, Entry, Status};

impl Turn<'_> {
    pub(super) fn skip(&mut self, number: usize) {
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
        names.iter().for_each(|name| self.ledger.set_edge(name, Some(Decided::Passed)));
        self.event("step_skipped", json!({"node": node.id}));
    }

    pub(super) async fn ended(&mut self, number: usize, result: Result<Value, Failed>) -> Result<()> {
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
    pub(super) fn backoff(&self, retry: &Retry, attempt: u32) -> u64 {
        let doubled = retry.backoff_ms.saturating_mul(1 << attempt.saturating_sub(1).min(20)).min(retry.max_backoff_ms);
        let mut random = [0u8; 8];
        self.runner.engine.source().fill(&mut random);
        doubled / 2 + u64::from_le_bytes(random) % (doubled / 2 + 1)
    }

    pub(super) async fn failed(&mut self, number: usize, why: String) -> Result<()> {
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
    pub(super) async fn done(&mut self, number: usize, output: Value) -> Result<()> {
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
    pub(super) fn follow(&mut self, number: usize) -> bool {
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
}
