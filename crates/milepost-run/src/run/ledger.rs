//! What a run knows of itself: the state's sections `execution` and `memory`, and below them the same for the parts of steps. Every change is noted as paths and values,
//! so that a step costs what it changed.

use std::collections::{BTreeMap, BTreeSet};

use milepost::{Event, Together};
use milepost_model::delta::StatePath;
use milepost_model::{State, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::actions::Repeat;

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

impl Status {
    fn is_waiting(self) -> bool {
        matches!(self, Self::Retrying | Self::Waiting)
    }
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
    /// When it was begun.
    pub since: Timestamp,
    /// Until when it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// How often in a row it was told to come again later, which counts as no attempt.
    #[serde(skip_serializing_if = "is_zero")]
    pub limits: u32,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took from its beginning until it was done, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// A loop leads here again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Parameters in place of those that the graph says, for this round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Value>,
    /// What a second time means with the parameters that it was begun with, where that is not what they say before they are
    /// filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Repeat>,
    /// Of a node that loops leave: whether the run has gone on from it, or is stuck there. What was left is not decided again.
    /// Nobody noted it in older ledgers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<bool>,
    /// It had its effect, or may have had, and failed after it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub happened: bool,
    /// No attempt is open, or somebody said that it runs again: it takes what there is now, and with another input it gets
    /// another key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub free: bool,
    /// What a part of a step was begun with, while it is open, when that is not much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with: Option<Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Where a ledger lies in the state: the run's own in `execution`, that of a step's parts below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At(Vec<String>);

impl At {
    pub fn root() -> Self {
        Self(vec!["execution".to_owned()])
    }

    /// Of the parts of a step.
    pub fn below(&self, name: &str) -> Self {
        let mut parts = self.0.clone();
        parts.extend(["below".to_owned(), name.to_owned()]);
        Self(parts)
    }

    /// As keys, one inside of the other.
    pub fn keys(&self) -> &[String] {
        &self.0
    }

    /// How many steps it lies below.
    pub fn depth(&self) -> usize {
        self.0.len() / 2
    }

    fn is_root(&self) -> bool {
        self.0.len() == 1
    }

    fn path(&self, more: &[&str]) -> StatePath {
        let own = self.0.iter().map(String::as_str);
        own.chain(more.iter().copied()).fold(StatePath::root(), StatePath::key)
    }

    /// What lies there.
    pub fn find<'s>(&self, state: &'s State) -> Option<&'s Value> {
        let mut value = state.as_value();
        for part in &self.0 {
            value = value.get(part)?;
        }
        Some(value).filter(|value| !value.is_null())
    }
}

/// The ledger, and what of it is not stored yet.
#[derive(Debug)]
pub struct Ledger {
    at: At,
    nodes: BTreeMap<String, Entry>,
    /// Those of them that wait or are to be tried again.
    waiting: BTreeSet<String>,
    /// Parts of steps, by their whole names.
    parts: BTreeMap<String, Entry>,
    edges: BTreeMap<String, Decided>,
    rounds: BTreeMap<String, u32>,
    outputs: Map<String, Value>,
    memory: Map<String, Value>,
    /// Keys of the memory whose values somebody put there by hand.
    by_hand: BTreeSet<String>,
    data: Map<String, Value>,
    path: usize,
    is_there: bool,
    metrics: Metrics,
    changes: Together,
}

/// The most nodes with failures that are named (1,000).
const MAX_FAILED_NODES: usize = 1000;

/// What went wrong in a run, as its checkpoints tell it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Metrics {
    /// How often something that failed was to be tried again.
    total_retries: u64,
    /// The nodes that failed at least once, by their whole names.
    nodes_with_failures: Vec<String>,
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
        let measured = state.section_mut("metrics");
        if let (Value::Object(known), Ok(Value::Object(none))) =
            (&mut *measured, serde_json::to_value(Metrics::default()))
        {
            for (name, value) in none {
                known.entry(name).or_insert(value);
            }
        }
        *state.section_mut("execution") = json!({
            "graph": described(graph), "query": graph.query, "nodes": {}, "edges": {}, "rounds": {}, "outputs": {}, "path": [],
            "below": {}, "usage": {},
        });
        state
    }

    /// Reads the ledger of a state.
    pub fn read(state: &State) -> Result<Self> {
        Self::read_at(state, At::root())
    }

    /// Reads the ledger that lies somewhere.
    pub(super) fn read_at(state: &State, at: At) -> Result<Self> {
        let found = at.find(state);
        let wrong = |what: &str, error: serde_json::Error| {
            Error::refused(format!("reading execution.{what}"), error.to_string(), "resume from an older checkpoint")
        };
        let part = |name: &str| found.and_then(|found| found.get(name)).filter(|part| !part.is_null());
        let fields = |name: &str| part(name).and_then(Value::as_object);
        let nodes: BTreeMap<String, Entry> = read_part(part("nodes")).map_err(|error| wrong("nodes", error))?;
        let memory = match at.is_root() {
            true => state.section("memory").and_then(Value::as_object),
            false => fields("memory"),
        };
        let mut parts = BTreeMap::new();
        for (name, below) in fields("below").into_iter().flatten() {
            let round = nodes.get(name).map_or(0, |entry| entry.iteration);
            read_parts(&scope("", name, round), below, 0, &mut parts);
        }
        let waiting = nodes.iter().filter(|(_, entry)| entry.status.is_waiting()).map(|(id, _)| id.clone()).collect();
        let mut ledger = Self {
            nodes,
            waiting,
            parts,
            edges: read_part(part("edges")).map_err(|error| wrong("edges", error))?,
            rounds: read_part(part("rounds")).map_err(|error| wrong("rounds", error))?,
            outputs: fields("outputs").cloned().unwrap_or_default(),
            memory: memory.cloned().unwrap_or_default(),
            by_hand: if at.is_root() { keys_by_hand(state) } else { BTreeSet::new() },
            data: fields("data").cloned().unwrap_or_default(),
            path: found.and_then(|found| found.get("path")).and_then(Value::as_array).map_or(0, Vec::len),
            is_there: found.is_some(),
            // What others measured in its place is not counted on.
            metrics: state.section("metrics").and_then(|found| Metrics::deserialize(found).ok()).unwrap_or_default(),
            changes: Together::default(),
            at,
        };
        // Runs that began before there were parts of steps, or usage, have no place for them.
        if ledger.at.is_root() && ledger.is_there {
            for name in ["below", "usage"] {
                if found.is_some_and(|found| found.get(name).is_none()) {
                    ledger.changes.set.push((ledger.at.path(&[name]), json!({})));
                }
            }
            if state.section("metrics").is_none_or(|found| !found.is_object()) {
                let none = serde_json::to_value(Metrics::default()).unwrap_or_default();
                ledger.changes.set.push((StatePath::root().key("metrics"), none));
            }
        }
        Ok(ledger)
    }

    /// What the parts of steps gave, by their whole names (`node/part`). What an agent's turns and calls gave stands in the
    /// conversation.
    pub fn part_outputs(state: &State) -> BTreeMap<String, &Value> {
        let mut out = BTreeMap::new();
        if let Some(found) = At::root().find(state) {
            read_part_outputs("", found, 0, &mut out);
        }
        out
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

    /// The line of a node, or of a part of a step by its whole name (`node/part`).
    pub fn line(&self, name: &str) -> Option<&Entry> {
        self.nodes.get(name).or_else(|| self.parts.get(name))
    }

    /// Whether the run has gone on from a node: an edge that leaves it is decided.
    pub(super) fn has_left(&self, id: &str) -> bool {
        self.edges.keys().any(|name| name.split_once('>').is_some_and(|(from, _)| from == id))
    }

    /// All lines: of nodes, and of the parts of steps by their whole names (`node/part`).
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.nodes.iter().chain(&self.parts).map(|(id, entry)| (id.as_str(), entry))
    }

    /// The lines of this ledger's own.
    pub(super) fn own(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.nodes.iter().map(|(id, entry)| (id.as_str(), entry))
    }

    /// The lines of this ledger's own that wait or are to be tried again.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.waiting.iter().filter_map(|id| self.nodes.get_key_value(id)).map(|(id, entry)| (id.as_str(), entry))
    }

    /// Something that a step notes for itself.
    pub(super) fn data(&self, key: &str) -> Option<&Value> {
        self.data.get(key)
    }

    pub(super) fn set_data(&mut self, key: &str, value: Value) {
        self.set(&["data", key], value.clone());
        self.data.insert(key.to_owned(), value);
    }

    fn set(&mut self, parts: &[&str], value: Value) {
        if !self.is_there {
            let empty = json!({
                "nodes": {}, "edges": {}, "rounds": {}, "outputs": {}, "path": [], "memory": {}, "data": {}, "below": {},
            });
            self.changes.set.push((self.at.path(&[]), empty));
            self.is_there = true;
        }
        self.changes.set.push((self.at.path(parts), value));
    }

    /// Forgets the parts of a step, which begins anew.
    pub(super) fn forget_parts(&mut self, id: &str) {
        self.set(&["below", id], Value::Null);
    }

    /// Puts the parts of a step there, as they stand in another ledger.
    pub(super) fn set_parts(&mut self, id: &str, parts: Value) {
        self.set(&["below", id], parts);
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

    /// The keys of the memory whose values somebody put there by hand, and no step since.
    pub(super) fn by_hand(&self) -> impl Iterator<Item = &str> {
        self.by_hand.iter().map(String::as_str)
    }

    /// The shared memory.
    pub fn memory(&self) -> &Map<String, Value> {
        &self.memory
    }

    pub(super) fn set_node(&mut self, id: &str, entry: Entry) {
        let before = self.nodes.get(id).map(|entry| serde_json::to_value(entry).unwrap_or_default());
        match (before, serde_json::to_value(&entry).unwrap_or_default()) {
            // Of a line that is there, what changed.
            (Some(Value::Object(before)), Value::Object(now)) if before.keys().all(|key| now.contains_key(key)) => {
                for (key, value) in now.into_iter().filter(|(key, value)| before.get(key) != Some(value)) {
                    self.set(&["nodes", id, &key], value);
                }
            }
            (_, now) => self.set(&["nodes", id], now),
        }
        match entry.status.is_waiting() {
            true => drop(self.waiting.insert(id.to_owned())),
            false => drop(self.waiting.remove(id)),
        }
        self.nodes.insert(id.to_owned(), entry);
    }

    pub(super) fn set_edge(&mut self, name: &str, decided: Option<Decided>) {
        match decided {
            Some(decided) => {
                let value = serde_json::to_value(decided).unwrap_or_default();
                self.set(&["edges", name], value);
                self.edges.insert(name.to_owned(), decided);
            }
            None => {
                if self.edges.remove(name).is_some() {
                    let value = serde_json::to_value(&self.edges).unwrap_or_default();
                    self.set(&["edges"], value);
                }
            }
        }
    }

    pub(super) fn set_rounds(&mut self, name: &str, rounds: u32) {
        self.set(&["rounds", name], rounds.into());
        self.rounds.insert(name.to_owned(), rounds);
    }

    pub(super) fn set_output(&mut self, name: &str, value: Value) {
        self.set(&["outputs", name], value.clone());
        self.outputs.insert(name.to_owned(), value);
    }

    pub(super) fn remember(&mut self, key: &str, value: Value) {
        match self.at.is_root() {
            true => self.changes.set.push((StatePath::root().key("memory").key(key), value.clone())),
            false => self.set(&["memory", key], value.clone()),
        }
        if self.by_hand.remove(key) {
            let left = self.by_hand.iter().map(String::as_str).collect();
            self.set_of_run(&[BY_HAND], left);
        }
        self.memory.insert(key.to_owned(), value);
    }

    pub(super) fn walked(&mut self, id: &str) {
        if self.path < MAX_PATH {
            self.path += 1;
            self.changes.gained.push((self.at.path(&["path"]), vec![id.into()]));
        }
    }

    /// Counts what went wrong, as events tell it; the changes of the state that say so.
    pub(super) fn count_failures(&mut self, events: &[Event]) -> Vec<(StatePath, Value)> {
        let before = (self.metrics.total_retries, self.metrics.nodes_with_failures.len());
        for event in events.iter().filter(|event| event.kind == "step_outcome") {
            // Parts of agents say neither: the model deals with what fails there.
            let (is_retried, is_final) = (event.data.contains_key("retry_in_ms"), event.data.contains_key("final"));
            let Some(node) = event.data.get("node").and_then(Value::as_str).filter(|_| is_retried || is_final) else {
                continue;
            };
            self.metrics.total_retries += u64::from(is_retried);
            let named = &mut self.metrics.nodes_with_failures;
            if named.len() < MAX_FAILED_NODES && !named.iter().any(|known| known == node) {
                named.push(node.to_owned());
            }
        }
        if before == (self.metrics.total_retries, self.metrics.nodes_with_failures.len()) {
            return Vec::new();
        }
        let at = |name: &str| StatePath::root().key("metrics").key(name);
        vec![
            (at("total_retries"), self.metrics.total_retries.into()),
            (at("nodes_with_failures"), self.metrics.nodes_with_failures.iter().map(String::as_str).collect()),
        ]
    }

    pub(super) fn set_error(&mut self, error: Value) {
        self.changes.set.push((At::root().path(&["last_error"]), error));
    }

    pub(super) fn set_graph(&mut self, graph: &Graph) {
        self.set(&["graph"], described(graph));
    }

    /// Something of the whole run: `execution.NAME`.
    pub(super) fn set_of_run(&mut self, parts: &[&str], value: Value) {
        self.changes.set.push((At::root().path(parts), value));
    }

    /// What is not stored yet.
    pub(super) fn take_changes(&mut self) -> Together {
        std::mem::take(&mut self.changes)
    }
}

/// Where a run notes which keys of the memory somebody changed by hand: a step that is open and reads them is another step then.
const BY_HAND: &str = "by_hand";

fn keys_by_hand(state: &State) -> BTreeSet<String> {
    let keys = state.pointer(&format!("/execution/{BY_HAND}")).and_then(Value::as_array);
    keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// What notes that somebody sets keys of a state's memory by hand.
pub(super) fn note_by_hand(state: &State, set: BTreeSet<String>) -> (StatePath, Value) {
    let keys: BTreeSet<String> = keys_by_hand(state).into_iter().chain(set).collect();
    (At::root().path(&[BY_HAND]), keys.into_iter().collect())
}

/// What a part of the ledger says; nothing when it is not there.
fn read_part<T: Default + for<'de> Deserialize<'de>>(part: Option<&Value>) -> serde_json::Result<T> {
    part.map_or_else(|| Ok(T::default()), T::deserialize)
}

fn described(graph: &Graph) -> Value {
    let nodes: Map<String, Value> =
        graph.nodes.iter().map(|node| (node.id.clone(), graph.node_fingerprint(node).into())).collect();
    json!({
        "name": graph.name, "path": graph.path, "text": *graph.text, "fingerprint": graph.fingerprint(), "nodes": nodes,
    })
}

/// The beginning of the names of a step's parts: the round is part of it, but for the first.
pub(super) fn scope(outer: &str, name: &str, round: u32) -> String {
    if round == 0 { format!("{outer}{name}/") } else { format!("{outer}{name}#{round}/") }
}

/// The deepest parts of parts that are read (16).
const MAX_DEPTH: usize = 16;

fn read_parts(prefix: &str, below: &Value, depth: usize, out: &mut BTreeMap<String, Entry>) {
    let Some(nodes) = below.get("nodes").and_then(Value::as_object).filter(|_| depth < MAX_DEPTH) else { return };
    for (name, entry) in nodes {
        let entry: Entry = serde_json::from_value(entry.clone()).unwrap_or_default();
        if let Some(deeper) = below.get("below").and_then(|below| below.get(name)) {
            read_parts(&scope(prefix, name, entry.iteration), deeper, depth + 1, out);
        }
        out.insert(format!("{prefix}{name}"), entry);
    }
}

fn read_part_outputs<'s>(prefix: &str, found: &'s Value, depth: usize, out: &mut BTreeMap<String, &'s Value>) {
    let below = found.get("below").and_then(Value::as_object).filter(|_| depth < MAX_DEPTH);
    for (name, below) in below.into_iter().flatten() {
        let round = found.pointer(&format!("/nodes/{name}/iteration")).and_then(Value::as_u64).unwrap_or(0);
        let inner = scope(prefix, name, u32::try_from(round).unwrap_or(u32::MAX));
        let text = |key: &str| below.pointer(&format!("/data/graph/{key}")).and_then(Value::as_str);
        // Nodes of a graph inside may give under another name than their own.
        let graph = text("path").zip(text("text"));
        let graph = graph.and_then(|(path, text)| crate::graph::reread(path.as_ref(), text, &[]));
        for part in below.get("nodes").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            let node = graph.as_ref().and_then(|graph| Some(&graph.nodes[graph.find(part)?]));
            let given = node.map_or(part.as_str(), |node| node.output.as_str());
            if let Some(value) = below.get("outputs").and_then(|outputs| outputs.get(given)) {
                out.insert(format!("{inner}{part}"), value);
            }
        }
        read_part_outputs(&inner, below, depth + 1, out);
    }
}
