//! What a run knows of itself: the state's sections `execution` and `memory`. Every change is noted as paths and values,
//! so that a step costs what it changed.

use std::collections::BTreeMap;

use milepost::Together;
use milepost_model::delta::StatePath;
use milepost_model::{State, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use crate::graph::Graph;

/// The longest path of nodes that is kept (10,000).
const MAX_PATH: usize = 10_000;

/// Where a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not begun in this round.
    #[default]
    Pending,
    /// Begun; how it ended is not known.
    Running,
    /// Failed, and to be tried again.
    Retrying,
    /// Waits for a time or a person.
    Waiting,
    /// Nobody knows whether it ran, and it may not run twice.
    Uncertain,
    /// Done.
    Completed,
    /// Failed for good.
    Failed,
    /// No way led to it.
    Skipped,
}

/// Whether an edge was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decided {
    /// Its condition held.
    Taken,
    /// Its condition did not hold.
    Passed,
}

/// A node's line of the ledger.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// Where it is.
    pub status: Status,
    /// The round, from 0.
    pub iteration: u32,
    /// The attempt of this round, from 1.
    pub attempt: u32,
    /// The key of this round's effects.
    pub key: String,
    /// The timeline on which it was begun.
    pub timeline: String,
    /// The hash of the parameters with which it was begun.
    pub input: String,
    /// The fingerprint of the node when it was begun.
    pub fingerprint: String,
    /// When it was begun.
    pub since: Timestamp,
    /// Until when it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// A loop leads here again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// The ledger, and what of it is not stored yet.
#[derive(Debug, Default)]
pub struct Ledger {
    nodes: BTreeMap<String, Entry>,
    edges: BTreeMap<String, Decided>,
    rounds: BTreeMap<String, u32>,
    outputs: Map<String, Value>,
    memory: Map<String, Value>,
    path: usize,
    changes: Together,
}

fn path(parts: &[&str]) -> StatePath {
    parts.iter().fold(StatePath::root(), |path, part| path.key(*part))
}

impl Ledger {
    /// The state with which a run of this graph begins.
    pub fn initial(graph: &Graph, mut state: State) -> State {
        let memory = state.section_mut("memory");
        for (key, value) in &graph.memory {
            if memory.get(key).is_none() {
                memory[key] = value.clone();
            }
        }
        *state.section_mut("execution") = json!({
            "graph": described(graph), "query": graph.query, "nodes": {}, "edges": {}, "rounds": {}, "outputs": {}, "path": [],
        });
        state
    }

    /// Reads the ledger of a state.
    pub fn read(state: &State) -> Result<Self> {
        let execution = state.section("execution").cloned().unwrap_or_default();
        let wrong = |what: &str, error: serde_json::Error| {
            Error::refused(format!("reading execution.{what}"), error.to_string(), "resume from an older checkpoint")
        };
        let part = |name: &str| execution.get(name).cloned().unwrap_or_else(|| json!({}));
        Ok(Self {
            nodes: serde_json::from_value(part("nodes")).map_err(|error| wrong("nodes", error))?,
            edges: serde_json::from_value(part("edges")).map_err(|error| wrong("edges", error))?,
            rounds: serde_json::from_value(part("rounds")).map_err(|error| wrong("rounds", error))?,
            outputs: part("outputs").as_object().cloned().unwrap_or_default(),
            memory: state.section("memory").and_then(Value::as_object).cloned().unwrap_or_default(),
            path: execution.get("path").and_then(Value::as_array).map_or(0, Vec::len),
            changes: Together::default(),
        })
    }

    /// The path and text of the graph that a state's run was begun with.
    pub fn graph_text(state: &State) -> Option<(String, String)> {
        let graph = state.pointer("/execution/graph")?;
        Some((graph.get("path")?.as_str()?.to_owned(), graph.get("text")?.as_str()?.to_owned()))
    }

    /// The fingerprints of the nodes that a state's run was begun with.
    pub fn fingerprints(state: &State) -> BTreeMap<String, String> {
        let nodes = state.pointer("/execution/graph/nodes").and_then(Value::as_object);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        nodes.into_iter().flatten().map(|(id, print)| (id.clone(), text(print))).collect()
    }

    /// A node's line; none when it was never begun.
    pub fn node(&self, id: &str) -> Option<&Entry> {
        self.nodes.get(id)
    }

    /// All lines.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.nodes.iter().map(|(id, entry)| (id.as_str(), entry))
    }

    /// Where a node is.
    pub fn status(&self, id: &str) -> Status {
        self.nodes.get(id).map_or(Status::Pending, |entry| entry.status)
    }

    /// Whether an edge was taken; none when that is not decided.
    pub fn edge(&self, name: &str) -> Option<Decided> {
        self.edges.get(name).copied()
    }

    /// How often a loop's edge was taken.
    pub fn rounds(&self, name: &str) -> u32 {
        self.rounds.get(name).copied().unwrap_or(0)
    }

    /// What the nodes gave.
    pub fn outputs(&self) -> &Map<String, Value> {
        &self.outputs
    }

    /// The shared memory.
    pub fn memory(&self) -> &Map<String, Value> {
        &self.memory
    }

    pub(super) fn set_node(&mut self, id: &str, entry: Entry) {
        let value = serde_json::to_value(&entry).unwrap_or_default();
        self.changes.set.push((path(&["execution", "nodes", id]), value));
        self.nodes.insert(id.to_owned(), entry);
    }

    pub(super) fn set_edge(&mut self, name: &str, decided: Option<Decided>) {
        match decided {
            Some(decided) => {
                let value = serde_json::to_value(decided).unwrap_or_default();
                self.changes.set.push((path(&["execution", "edges", name]), value));
                self.edges.insert(name.to_owned(), decided);
            }
            None => {
                if self.edges.remove(name).is_some() {
                    let value = serde_json::to_value(&self.edges).unwrap_or_default();
                    self.changes.set.push((path(&["execution", "edges"]), value));
                }
            }
        }
    }

    pub(super) fn set_rounds(&mut self, name: &str, rounds: u32) {
        self.changes.set.push((path(&["execution", "rounds", name]), rounds.into()));
        self.rounds.insert(name.to_owned(), rounds);
    }

    pub(super) fn set_output(&mut self, name: &str, value: Value) {
        self.changes.set.push((path(&["execution", "outputs", name]), value.clone()));
        self.outputs.insert(name.to_owned(), value);
    }

    pub(super) fn remember(&mut self, key: &str, value: Value) {
        self.changes.set.push((path(&["memory", key]), value.clone()));
        self.memory.insert(key.to_owned(), value);
    }

    pub(super) fn walked(&mut self, id: &str) {
        if self.path < MAX_PATH {
            self.path += 1;
            self.changes.gained.push((path(&["execution", "path"]), vec![id.into()]));
        }
    }

    pub(super) fn set_error(&mut self, error: Value) {
        self.changes.set.push((path(&["execution", "last_error"]), error));
    }

    pub(super) fn set_graph(&mut self, graph: &Graph) {
        self.changes.set.push((path(&["execution", "graph"]), described(graph)));
    }

    /// What is not stored yet.
    pub(super) fn take_changes(&mut self) -> Together {
        std::mem::take(&mut self.changes)
    }
}

fn described(graph: &Graph) -> Value {
    let nodes: Map<String, Value> =
        graph.nodes.iter().map(|node| (node.id.clone(), graph.node_fingerprint(node).into())).collect();
    json!({
        "name": graph.name, "path": graph.path, "text": *graph.text, "fingerprint": graph.fingerprint(), "nodes": nodes,
    })
}
