//! A recorded run against a graph: what is different and no problem, and what the run cannot go on with.

use std::collections::{BTreeMap, BTreeSet};

use milepost::{Mark, MarkQuery, Point, Resume, SessionId};
use milepost_model::delta::PathPart;
use milepost_model::{CheckpointId, State, Timestamp};
use serde_json::{Map, Value, json};

use super::budget;
use super::error::{Error, Result};
use super::flow::edge_name;
use super::ledger::{Ledger, Status};
use super::{Changes, Runner, Settle};
use crate::graph::{Edge, Graph, Node, OnLimit, reread, template_paths};

/// The most checkpoints that are looked at (1,000).
const MAX_MARKS: usize = 1000;

/// Something that a recorded run cannot go on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// What it is about.
    pub about: About,
    /// What is different.
    pub why: String,
}

/// What a break is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// A step that was begun and is another now.
    Step(String),
    /// A step that was begun and is gone.
    Gone(String),
    /// A key of the shared memory that is missing.
    Memory(String),
    /// An edge that was decided otherwise.
    Edge(String),
}

/// A checkpoint that a run can go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nearest {
    /// Which.
    pub checkpoint: CheckpointId,
    /// What it says of itself.
    pub description: String,
    /// When it was taken.
    pub time: Timestamp,
}

/// How a recorded session stands to a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The session.
    pub session: SessionId,
    /// What is different, and no problem.
    pub changes: Changes,
    /// What the session cannot go on with.
    pub breaks: Vec<Break>,
    /// The newest checkpoint from which it can, when a step or a memory key is in the way. Decisions that would be others
    /// stand in nobody's way.
    pub nearest: Option<Nearest>,
    /// How many decisions were made again and compared.
    pub decisions: usize,
}

/// Compares the graph that a state's run was begun with to another. `given` are memory keys that will be there.
pub(super) fn compare(
    graph: &Graph,
    state: &State,
    given: &BTreeSet<String>,
    own_actions: &[&str],
) -> Result<(Changes, Vec<Break>)> {
    let ledger = Ledger::read(state)?;
    let (mut changes, mut breaks) = (Vec::new(), Vec::new());
    let is_same = Ledger::graph_text(state).is_some_and(|(_, text)| text == *graph.text);
    if !is_same {
        compare_nodes(graph, state, &ledger, own_actions, &mut changes, &mut breaks);
        // What cannot be read any more is compared as far as its nodes were noted.
        if let Some(before) = begun_with(state, own_actions) {
            changes.extend(compare_ways(&before, graph));
        }
    }
    let missing = graph.memory.keys().filter(|key| !ledger.memory().contains_key(*key));
    changes.extend(missing.map(|key| format!("memory key {key} is new, and begins as the graph says")));
    breaks.extend(missing_keys(graph, &ledger, given));
    Ok((changes, breaks))
}

fn compare_nodes(
    graph: &Graph,
    state: &State,
    ledger: &Ledger,
    own_actions: &[&str],
    changes: &mut Changes,
    breaks: &mut Vec<Break>,
) {
    let before = Ledger::fingerprints(state);
    for (id, print) in &before {
        let status = ledger.status(id);
        let is_open = matches!(status, Status::Running | Status::Retrying | Status::Waiting | Status::Uncertain);
        match graph.find(id).map(|number| graph.node_fingerprint(&graph.nodes[number])) {
            None if is_open => {
                let why = "the graph has no such node any more".to_owned();
                breaks.push(Break { about: About::Gone(id.clone()), why });
            }
            None => changes.push(format!("node {id} is gone")),
            Some(now) if now == *print => {}
            Some(_) if is_open => {
                let why = step_difference(graph, state, id, own_actions);
                breaks.push(Break { about: About::Step(id.clone()), why });
            }
            Some(_) if status == Status::Completed => {
                changes.push(format!("node {id} is another, and was done as it was"));
            }
            Some(_) => changes.push(format!("node {id} is another")),
        }
    }
    let new = graph.nodes.iter().filter(|node| !before.contains_key(&node.id));
    changes.extend(new.map(|node| format!("node {} is new", node.id)));
}

/// The graph that a state's run was begun with, or last resumed with.
pub(super) fn begun_with(state: &State, own_actions: &[&str]) -> Option<Graph> {
    let (path, text) = Ledger::graph_text(state)?;
    reread(path.as_ref(), &text, own_actions)
}

/// What is different about the ways between nodes, and about the graph as a whole.
fn compare_ways(before: &Graph, now: &Graph) -> Changes {
    let ways = |graph: &Graph| {
        let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for edge in &graph.edges {
            all.entry(edge_name(graph, edge)).or_default().push(described_edge(edge));
        }
        all
    };
    let (old, new) = (ways(before), ways(now));
    let mut changes = Vec::new();
    for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        match (old.get(name), new.get(name)) {
            (Some(_), None) => changes.push(format!("edge {name} is gone")),
            (None, Some(edges)) => {
                let when = edges.first().and_then(|edge| edge.get("when")).map(told);
                let when = when.map(|when| format!(", when {when}")).unwrap_or_default();
                changes.push(format!("edge {name} is new{when}"));
            }
            (Some(before), Some(now)) if before != now => {
                let differences = match (before.as_slice(), now.as_slice()) {
                    ([before], [now]) => differences("", before, now).join("; "),
                    (before, now) => {
                        format!("it was {} and is {}", told(&before.into()), told(&now.into()))
                    }
                };
                changes.push(format!("edge {name} is another: {differences}"));
            }
            _ => {}
        }
    }
    let (before, now) = (described_whole(before), described_whole(now));
    changes.extend(differences("", &before, &now));
    changes
}

fn described_edge(edge: &Edge) -> Value {
    let mut out = Map::new();
    if let Some(when) = &edge.when {
        out.insert("when".to_owned(), when.text().into());
    }
    if let Some(limit) = edge.limit {
        out.insert("limit".to_owned(), limit.into());
        let on_limit = if edge.on_limit == OnLimit::GoOn { "go_on" } else { "pause" };
        out.insert("on_limit".to_owned(), on_limit.into());
    }
    Value::Object(out)
}

/// What a graph says beside its nodes and edges, as its file names it.
fn described_whole(graph: &Graph) -> Value {
    let outputs: Map<String, Value> =
        graph.outputs.iter().map(|(key, value)| (key.clone(), value.text().into())).collect();
    let mut out = json!({"outputs": outputs, "parallel": graph.parallel});
    if let Some(start) = &graph.start {
        out["start"] = start.iter().map(|number| graph.nodes[*number].id.clone()).collect();
    }
    if let Some(budget) = &graph.budget {
        out["budget"] = budget::to_value(budget);
    }
    out
}

/// What is different about a step of the graph that a state's run was begun with.
fn step_difference(graph: &Graph, state: &State, id: &str, own_actions: &[&str]) -> String {
    let before = begun_with(state, own_actions);
    let node = |graph: &Graph| graph.find(id).map(|number| described(&graph.nodes[number]));
    match (before.as_ref().and_then(node), node(graph)) {
        (Some(before), Some(now)) => differences("", &before, &now).join("; "),
        _ => "its action, parameters or output are others now".to_owned(),
    }
}

/// What of a node has to stay the same, as its file names it.
fn described(node: &Node) -> Value {
    let remember: Map<String, Value> =
        node.remember.iter().map(|(key, value)| (key.clone(), value.text().into())).collect();
    json!({"action": node.action, "with": node.parameters, "output": node.output, "remember": remember})
}

/// The most differences that are told (5).
const MAX_DIFFERENCES: usize = 5;
/// So much of a value is told, in bytes.
const MAX_TOLD_BYTES: usize = 120;

/// Where two values differ, each place with what was there and what is there now.
pub(super) fn differences(place: &str, before: &Value, now: &Value) -> Vec<String> {
    let mut found = Vec::new();
    differ(place, before, now, &mut found);
    if found.len() > MAX_DIFFERENCES {
        let more = found.len() - MAX_DIFFERENCES;
        found.truncate(MAX_DIFFERENCES);
        found.push(format!("and {more} more"));
    }
    found
}

fn differ(place: &str, before: &Value, now: &Value, found: &mut Vec<String>) {
    if before == now {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, now) else {
        return found.push(format!("{place} was {} and is {}", told(before), told(now)));
    };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
        match (old.get(key), new.get(key)) {
            (Some(before), Some(now)) => differ(&place, before, now, found),
            (Some(before), None) => found.push(format!("{place} was {} and is gone", told(before))),
            (None, Some(now)) => found.push(format!("{place} is new: {}", told(now))),
            (None, None) => {}
        }
    }
}

fn told(value: &Value) -> String {
    let whole = value.to_string();
    match whole.len() > MAX_TOLD_BYTES {
        true => format!("{}…", whole.get(..whole.floor_char_boundary(MAX_TOLD_BYTES)).unwrap_or_default()),
        false => whole,
    }
}

/// Memory keys that steps which are left read, and that steps which are done should have written and did not: they were
/// done as they were then.
fn missing_keys(graph: &Graph, ledger: &Ledger, given: &BTreeSet<String>) -> Vec<Break> {
    let is_left = |node: &&Node| !matches!(ledger.status(&node.id), Status::Completed | Status::Skipped);
    let done = graph.nodes.iter().filter(|node| ledger.status(&node.id) == Status::Completed);
    let promised: BTreeSet<&str> = done.flat_map(writes).collect();
    let left: Vec<&Node> = graph.nodes.iter().filter(is_left).collect();
    let to_come: BTreeSet<&str> = left.iter().flat_map(|node| writes(node)).collect();
    let is_missing = |key: &str| {
        let is_there = ledger.memory().contains_key(key) || graph.memory.contains_key(key) || given.contains(key);
        promised.contains(key) && !is_there && !to_come.contains(key)
    };
    let mut breaks = Vec::new();
    let mut told = BTreeSet::new();
    for node in left {
        for path in reads(graph, node) {
            let [first, key, ..] = path.as_slice() else { continue };
            if first == "memory" && is_missing(key) && told.insert(key.clone()) {
                let why =
                    format!("{} needs memory.{key}, which a step that is done would have written and did not", node.id);
                breaks.push(Break { about: About::Memory(key.clone()), why });
            }
        }
    }
    breaks
}

/// The memory keys that a node writes.
pub(super) fn writes(node: &Node) -> Vec<&str> {
    let mut keys: Vec<&str> = node.remember.iter().map(|(key, _)| key.as_str()).collect();
    if node.action == "set" {
        keys.extend(node.parameters.as_object().into_iter().flatten().map(|(key, _)| key.as_str()));
    }
    keys
}

/// The names that a node and the edges that leave it use.
fn reads(graph: &Graph, node: &Node) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    // What stands in a graph inside is about that graph's memory.
    if node.action != "graph" {
        walk(&node.parameters, &mut paths);
    }
    let number = graph.find(&node.id).unwrap_or_default();
    let conditions = graph.outgoing(number).filter_map(|(_, edge)| edge.when.as_ref());
    conditions.for_each(|when| paths.extend(when.paths()));
    node.remember.iter().for_each(|(_, value)| paths.extend(value.paths()));
    paths
}

/// The names that templates and expressions in parameters use.
pub(super) fn names_in(parameters: &Value) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    walk(parameters, &mut paths);
    paths
}

/// The names that templates in a value use.
fn walk(value: &Value, paths: &mut Vec<Vec<String>>) {
    match value {
        Value::String(text) => paths.extend(template_paths(text)),
        Value::Array(items) => items.iter().for_each(|item| walk(item, paths)),
        Value::Object(map) => match (map.len(), map.get("cel").and_then(Value::as_str)) {
            (1, Some(text)) => {
                let written = milepost_document::Node::plain(text, milepost_document::Origin::Default);
                if let Ok(expression) = crate::graph::Expression::compile(&written) {
                    paths.extend(expression.paths());
                }
            }
            _ => map.values().for_each(|item| walk(item, paths)),
        },
        _ => {}
    }
}

/// The memory keys that a resume sets.
pub(super) fn given(how: &Resume) -> BTreeSet<String> {
    let keys = how.set.iter().filter_map(|(path, _)| match path.parts() {
        [PathPart::Key(first), PathPart::Key(key), ..] if first == "memory" => Some(key.clone()),
        _ => None,
    });
    keys.collect()
}

impl Runner {
    /// The state that a resume goes on with.
    pub(super) async fn state_to_resume(&self, id: SessionId, how: &Resume) -> Result<State> {
        Ok(self.whole_to_resume(id, how).await?.0)
    }

    /// The state that a resume goes on with, and from where: where the end of the session is damaged, from the newest checkpoint that
    /// is whole, as if somebody had gone back to it.
    pub(super) async fn whole_to_resume(&self, id: SessionId, how: &Resume) -> Result<(State, Point)> {
        let store = self.engine.store();
        let (at, point) = match &how.point {
            Point::Latest => match store.state(id).await {
                Ok(state) => return Ok((state, Point::Latest)),
                Err(error) if error.is_damage() => {
                    let from = self.engine.resume_preview(id, how).await?.from;
                    let from = from.ok_or_else(|| milepost::Error::from(error))?;
                    (from.at, Point::Checkpoint(from.checkpoint.id))
                }
                Err(error) => return Err(milepost::Error::from(error).into()),
            },
            point => (self.engine.mark(id, point).await?.at, point.clone()),
        };
        Ok((store.state_at(at).await.map_err(milepost::Error::from)?, point))
    }

    /// A session's state, for whoever only looks: at its end, or at the newest checkpoint that is whole where the end is damaged,
    /// with what is damaged in words.
    pub async fn whole_state(&self, id: SessionId) -> Result<(State, Vec<String>)> {
        let error = match self.engine.store().state(id).await {
            Ok(state) => return Ok((state, Vec::new())),
            Err(error) if error.is_damage() => error,
            Err(error) => return Err(milepost::Error::from(error).into()),
        };
        let how = Resume { reopen: true, ..Resume::latest() };
        let seen = self.engine.resume_preview(id, &how).await?;
        let Some(from) = seen.from else { return Err(milepost::Error::from(error).into()) };
        let state = self.engine.store().state_at(from.at).await.map_err(milepost::Error::from)?;
        let skipped =
            seen.skipped.iter().map(|skipped| format!("checkpoint {} is passed over: {}", skipped.id, skipped.why));
        Ok((state, skipped.chain(seen.damaged).collect()))
    }

    /// What is different about a graph; an error with the nearest checkpoint that works when the run cannot go on with it.
    /// What somebody said of a step that is another now stands in nobody's way.
    pub(super) async fn accept(
        &self,
        id: SessionId,
        graph: &Graph,
        state: &State,
        how: &Resume,
        settle: &BTreeMap<String, Settle>,
    ) -> Result<Changes> {
        let given = given(how);
        let (mut changes, mut breaks) = compare(graph, state, &given, &self.own_actions())?;
        breaks.retain(|one| match &one.about {
            About::Step(node) => match settle.get(node) {
                Some(Settle::RunAgain) => {
                    changes.push(format!("node {node} is another, and runs again as it is now: {}", one.why));
                    false
                }
                Some(Settle::Happened(_)) => {
                    changes.push(format!("node {node} is another, and was done as it was"));
                    false
                }
                None => true,
            },
            _ => true,
        });
        let Some(first) = breaks.into_iter().next() else { return Ok(changes) };
        Err(match first.about {
            About::Step(node) => Error::Changed { node, difference: first.why },
            About::Gone(name) | About::Memory(name) | About::Edge(name) => {
                let nearest = self.nearest(id, graph, &given).await?.map(Box::new);
                Error::Incompatible { name, why: first.why, nearest }
            }
        })
    }

    /// The newest checkpoint from which a run can go on with a graph.
    pub(super) async fn nearest(
        &self,
        id: SessionId,
        graph: &Graph,
        given: &BTreeSet<String>,
    ) -> Result<Option<Nearest>> {
        let query = MarkQuery { resumable: Some(true), limit: Some(MAX_MARKS), ..MarkQuery::default() };
        let own = self.own_actions();
        for mark in self.engine.store().marks(id, &query).await.map_err(milepost::Error::from)? {
            // What cannot be read cannot be gone on from.
            let Ok(state) = self.engine.store().state_at(mark.at).await else { continue };
            let is_run = state.pointer("/execution/graph").is_some();
            if is_run && compare(graph, &state, given, &own).is_ok_and(|(_, breaks)| breaks.is_empty()) {
                return Ok(Some(nearest(&mark)));
            }
        }
        Ok(None)
    }
}

fn nearest(mark: &Mark) -> Nearest {
    Nearest {
        checkpoint: mark.checkpoint.id,
        description: mark.checkpoint.description.clone().unwrap_or_default(),
        time: mark.time,
    }
}
