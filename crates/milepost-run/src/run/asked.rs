//! Which question goes by a name: of a node, of a node of a graph inside, or of a part of a step.

use milepost_model::State;
use serde_json::Value;

use super::Runner;
use super::ledger::{Ledger, Status};
use crate::graph::limits::MAX_GRAPHS_DEEP;
use crate::graph::{Graph, Node, reread};

/// A question to a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Whether it is for a yes: the node's action is `approve`.
    pub is_approval: bool,
    /// The answers that are taken; none where any is, or where they follow from the run.
    pub choices: Vec<String>,
}

impl Asked {
    fn of(node: &Node) -> Option<Self> {
        let choices = match node.action.as_str() {
            "approve" => vec!["yes".to_owned(), "no".to_owned()],
            "ask" => {
                let list = node.parameters.get("choices").and_then(Value::as_array);
                let texts = list.into_iter().flatten().filter_map(|one| one.as_str().map(str::to_owned));
                let texts: Vec<String> = texts.collect();
                let is_filled_in = texts.iter().any(|text| text.contains("{{") || text.contains("{%"));
                if is_filled_in { Vec::new() } else { texts }
            }
            _ => return None,
        };
        Some(Self { is_approval: node.action == "approve", choices })
    }
}

impl Runner {
    /// The question that goes by a whole name in a run: `node`, `node/node` inside of a graph, `node/part` of an agent that
    /// waits. It need not be asked yet, but for those of agents, whose names follow from what they do.
    pub fn asked(&self, state: &State, graph: &Graph, name: &str) -> Option<Asked> {
        let below = state.pointer("/execution/below");
        if let Some(asked) = self.asked_below(graph, below, name, 0) {
            return Some(asked);
        }
        let ledger = Ledger::read(state).ok()?;
        // Calls of an agent have a dot in their names, nodes have none.
        let is_call = name.rsplit_once('/').is_some_and(|(_, part)| part.contains('.'));
        let waits = ledger.line(name).is_some_and(|entry| entry.status == Status::Waiting);
        (is_call && waits).then(|| Asked { is_approval: false, choices: Vec::new() })
    }

    fn asked_below(&self, graph: &Graph, below: Option<&Value>, name: &str, depth: usize) -> Option<Asked> {
        let (id, rest) = split(name);
        let node = &graph.nodes[graph.find(id)?];
        let Some(rest) = rest else { return Asked::of(node) };
        if node.action != "graph" || depth >= MAX_GRAPHS_DEEP {
            return None;
        }
        let inside = below.and_then(|below| below.get(id));
        let text = |name: &str| inside?.get("data")?.get("graph")?.get(name)?.as_str().map(str::to_owned);
        let inner = match (text("path"), text("text")) {
            (Some(path), Some(text)) => reread(path.as_ref(), &text, &self.own_actions()),
            // It has not begun: a file is taken as it is now.
            _ => graph.inside(node, &self.own_actions()),
        };
        let graph = inner?;
        self.asked_below(&graph, inside.and_then(|inside| inside.get("below")), rest, depth + 1)
    }

    /// The whole name of the question that is meant: a name without rounds means the one that waits now, in whichever round.
    pub fn meant(&self, state: &State, name: &str) -> String {
        let ledger = Ledger::read(state).ok();
        let waits = ledger.iter().flat_map(Ledger::nodes).filter(|(_, entry)| entry.status == Status::Waiting);
        let meant = waits.map(|(whole, _)| whole).filter(|whole| without_rounds(whole) == name);
        meant.last().unwrap_or(name).to_owned()
    }

    /// The names of the questions that a run can ask, or asks now.
    pub fn questions(&self, state: &State, graph: &Graph) -> Vec<String> {
        let own = graph.nodes.iter().map(|node| node.id.as_str());
        let ledger = Ledger::read(state).ok();
        let parts = ledger.iter().flat_map(Ledger::nodes).map(|(name, _)| name).filter(|name| name.contains('/'));
        own.chain(parts).filter(|name| self.asked(state, graph, name).is_some()).map(str::to_owned).collect()
    }
}

fn without_rounds(name: &str) -> String {
    let parts = name.split('/').map(|part| part.split_once('#').map_or(part, |(id, _)| id));
    parts.collect::<Vec<_>>().join("/")
}

/// The node that a name begins with, without its round; what comes after it.
fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('/') {
        Some((first, rest)) => (first.split_once('#').map_or(first, |(id, _)| id), Some(rest)),
        None => (name, None),
    }
}
