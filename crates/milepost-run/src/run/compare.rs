//! A recorded run against a graph: what is different and no problem, and what the run cannot go on with.

use std::collections::BTreeSet;

use milepost::{Mark, MarkQuery, Point, Resume, SessionId};
use milepost_model::delta::PathPart;
use milepost_model::{CheckpointId, State, Timestamp};
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use super::flow::edge_name;
use super::ledger::{Decided, Entry, Ledger, Status};
use super::{Changes, Runner};
use crate::graph::{Edge, Graph, Node, OnError, check, template_paths};

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

/// What is different about a step of the graph that a state's run was begun with.
fn step_difference(graph: &Graph, state: &State, id: &str, own_actions: &[&str]) -> String {
    let before = Ledger::graph_text(state).and_then(|(path, text)| check(path.as_ref(), &text, own_actions).graph);
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
fn writes(node: &Node) -> Vec<&str> {
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
    pub(super) async fn accept(&self, id: SessionId, graph: &Graph, state: &State, how: &Resume) -> Result<Changes> {
        let given = given(how);
        let (changes, breaks) = compare(graph, state, &given, &self.own_actions())?;
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
    async fn nearest(&self, id: SessionId, graph: &Graph, given: &BTreeSet<String>) -> Result<Option<Nearest>> {
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

    /// Checks a recorded session against a graph: what is different and no problem, what it could not go on with, and
    /// whether every decision that was made would be made again. Decisions are looked at as they stood at the next
    /// checkpoint.
    pub async fn verify_replay(&self, graph: &Graph, id: SessionId) -> Result<Replay> {
        let store = self.engine.store();
        let state = store.state(id).await.map_err(milepost::Error::from)?;
        if Ledger::graph_text(&state).is_none() {
            let why = "the session has no run of a graph";
            return Err(Error::refused(
                format!("checking session {id} against {}", graph.name),
                why,
                "name a session of a run",
            ));
        }
        let (mut changes, mut breaks) = compare(graph, &state, &BTreeSet::new(), &self.own_actions())?;
        let nearest = if breaks.is_empty() { None } else { self.nearest(id, graph, &BTreeSet::new()).await? };
        let query = MarkQuery { oldest_first: true, limit: Some(MAX_MARKS), ..MarkQuery::default() };
        let mut seen = Ledger::read(&State::default())?;
        let mut decisions = 0;
        for mark in store.marks(id, &query).await.map_err(milepost::Error::from)? {
            let then = Ledger::read(&store.state_at(mark.at).await.map_err(milepost::Error::from)?)?;
            decisions += decide_again(graph, id, &seen, &then, &mut breaks);
            seen = then;
        }
        decisions += decide_again(graph, id, &seen, &Ledger::read(&state)?, &mut breaks);
        let recorded = state.pointer("/execution/edges").and_then(Value::as_object);
        let names: BTreeSet<String> = graph.edges.iter().map(|edge| edge_name(graph, edge)).collect();
        let gone = recorded.into_iter().flatten().filter(|(name, _)| !names.contains(*name));
        changes.extend(gone.map(|(name, _)| format!("edge {name} is gone")));
        Ok(Replay { session: id, changes, breaks, nearest, decisions })
    }
}

/// Makes the decisions again that were made between two moments; how many those were.
fn decide_again(graph: &Graph, id: SessionId, before: &Ledger, now: &Ledger, breaks: &mut Vec<Break>) -> usize {
    let mut decisions = 0;
    for edge in &graph.edges {
        let name = edge_name(graph, edge);
        let from = &graph.nodes[edge.from];
        let mut entry = now.node(&from.id).cloned().unwrap_or_default();
        let decided = match edge.limit {
            None => now.edge(&name).filter(|_| before.edge(&name).is_none()),
            Some(limit) => loop_decided(graph, before, now, edge, limit),
        };
        let Some(decided) = decided else { continue };
        if edge.limit.is_some() && decided == Decided::Taken {
            // The round that ended, not the one that begins with it.
            let ended = before.node(&from.id).cloned().unwrap_or_default();
            entry = Entry { iteration: entry.iteration.saturating_sub(1), status: Status::Completed, ..ended };
        }
        if entry.status == Status::Skipped {
            continue;
        }
        decisions += 1;
        let names = Map::from_iter([
            ("memory".to_owned(), Value::Object(now.memory().clone())),
            ("outputs".to_owned(), Value::Object(now.outputs().clone())),
            ("output".to_owned(), now.outputs().get(&from.output).cloned().unwrap_or_default()),
            ("node".to_owned(), from.id.clone().into()),
            ("session".to_owned(), id.to_string().into()),
            ("key".to_owned(), entry.key.clone().into()),
            ("attempt".to_owned(), entry.attempt.into()),
            ("iteration".to_owned(), entry.iteration.into()),
            ("failed".to_owned(), (entry.status == Status::Failed).into()),
            ("error".to_owned(), entry.error.clone().into()),
        ]);
        let holds = edge.when.as_ref().map_or(Ok(true), |when| when.holds(&names));
        let why = match (holds, decided) {
            (Ok(true), Decided::Taken) | (Ok(false), Decided::Passed) => continue,
            (Ok(true), Decided::Passed) => "it was passed, and would be taken now".to_owned(),
            (Ok(false), Decided::Taken) => "it was taken, and would be passed now".to_owned(),
            (Err(why), _) => format!("its condition cannot be evaluated: {why}"),
        };
        breaks.push(Break { about: About::Edge(name), why });
    }
    decisions
}

/// Whether a loop began again between two moments, or was left when it might have. At its limit nothing is decided.
fn loop_decided(graph: &Graph, before: &Ledger, now: &Ledger, edge: &Edge, limit: u32) -> Option<Decided> {
    let (name, from) = (edge_name(graph, edge), &graph.nodes[edge.from]);
    let (was, is) = (before.rounds(&name), now.rounds(&name));
    let is_over = |ledger: &Ledger| match ledger.status(&from.id) {
        Status::Completed => true,
        Status::Failed => from.on_error == OnError::GoOn,
        _ => false,
    };
    let round = |ledger: &Ledger| ledger.node(&from.id).map(|entry| entry.iteration);
    // A node that is stuck has not been gone on from.
    let mut others = graph.outgoing(edge.from).filter(|(_, edge)| edge.limit.is_none());
    let is_left = others.all(|(_, edge)| now.edge(&edge_name(graph, edge)).is_some());
    // How a round failed is forgotten when the next begins.
    let asks_how =
        edge.when.as_ref().is_some_and(|when| ["failed", "error"].iter().any(|name| when.text().contains(name)));
    match is.saturating_sub(was) {
        0 if is < limit && is_left && is_over(now) && (!is_over(before) || round(before) != round(now)) => {
            Some(Decided::Passed)
        }
        // What was decided with must still be there: no further round has ended.
        1 if !is_over(now) && !asks_how => Some(Decided::Taken),
        _ => None,
    }
}

fn nearest(mark: &Mark) -> Nearest {
    Nearest {
        checkpoint: mark.checkpoint.id,
        description: mark.checkpoint.description.clone().unwrap_or_default(),
        time: mark.time,
    }
}
