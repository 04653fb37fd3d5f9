//! Which checkpoint a step takes: the policy chooses among the reasons that there are.

use std::sync::Arc;

use milepost::{NewMark, Trigger};
use milepost_model::Policy;

use super::Turn;
use crate::graph::Node;
use crate::run::action::{Action, Step};

/// What an action is, in the words of the policy's `risky_kinds`; its own name is one, too.
fn kind(action: &str) -> &str {
    match action {
        "http" => "api",
        "shell" | "mcp" => "tool",
        other => other,
    }
}

fn is_risky(policy: &Policy, action: &str) -> bool {
    policy.smart.is_risky(action) || policy.smart.is_risky(kind(action))
}

/// What is known of a step when it is done.
pub(super) struct Done {
    /// How long it took.
    pub took_ms: u64,
    /// How many keys of the memory it changed.
    pub changed_keys: usize,
    /// The round that begins with it, when a loop goes on.
    pub round: Option<u32>,
}

impl Turn<'_> {
    /// The checkpoint before steps that are about to begin.
    pub(super) fn mark_before(&mut self, begun: &[(usize, Step, Arc<dyn Action>)]) -> NewMark {
        let names: Vec<&str> = begun.iter().map(|(_, step, _)| step.node.as_str()).collect();
        let names = names.join(", ");
        let policy = &self.parts.policy;
        let is_risky = begun.iter().any(|(number, ..)| is_risky(policy, &self.graph.nodes[*number].action));
        let trigger = if is_risky && policy.takes(&Trigger::Smart) { Trigger::Smart } else { Trigger::NodeStart };
        let mut mark = NewMark::new(trigger).description(format!("before {names}"));
        mark.clean = false;
        self.note_current(names);
        mark
    }

    /// The checkpoint after a step that is done: the most telling reason that the policy takes one for.
    pub(super) fn mark_after(&self, node: &Node, done: &Done) -> NewMark {
        let policy = &self.parts.policy;
        let is_round = done.round.is_some_and(|round| round.is_multiple_of(policy.every_iterations.max(1)));
        let smart = &policy.smart;
        let reasons = [
            (node.safe_point, Trigger::SafePoint),
            (is_round, Trigger::LoopIteration),
            (smart.is_slow(done.took_ms) || smart.is_large_change(done.changed_keys), Trigger::Smart),
            (self.graph.is_plan, Trigger::Step),
            (true, Trigger::NodeComplete),
        ];
        let taken = reasons.into_iter().find(|(holds, trigger)| *holds && policy.takes(trigger));
        let trigger = taken.map_or(Trigger::NodeComplete, |(_, trigger)| trigger);
        let mut mark = NewMark::new(trigger).description(format!("after {}", node.id));
        mark.clean = self.tasks.is_empty();
        mark
    }

    /// The checkpoint on the way to the next nodes, when the policy takes such ones.
    pub(super) fn mark_between(&self, node: &Node, next: &[String]) -> Option<NewMark> {
        if next.is_empty() || !self.parts.policy.takes(&Trigger::EdgeTransition) {
            return None;
        }
        let described = format!("{} to {}", node.id, next.join(", "));
        let mut mark = NewMark::new(Trigger::EdgeTransition).description(described);
        mark.clean = self.tasks.is_empty();
        Some(mark)
    }

    /// Notes at which node the run is.
    pub(super) fn note_current(&mut self, node: String) {
        if self.parts.scope.is_empty() && self.current != node {
            self.ledger.set_of_run(&["current_node"], node.as_str().into());
            self.current = node;
        }
    }

    /// Notes that the run stops at a node, and enters there when it goes on.
    pub(super) fn note_stop(&mut self, node: &str) {
        self.note_current(self.name(node));
        self.note_next(&[]);
    }

    /// Notes which nodes come next.
    pub(super) fn note_next(&mut self, next: &[String]) {
        if self.parts.scope.is_empty() {
            let next = if next.is_empty() { serde_json::Value::Null } else { next.join(", ").into() };
            self.ledger.set_of_run(&["next_node"], next);
        }
    }
}
