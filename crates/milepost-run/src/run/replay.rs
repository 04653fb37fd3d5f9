//! Recorded decisions, made again: the log is read from its beginning, and every edge that was decided is decided anew with
//! the state that the run had right then.

use std::collections::{BTreeMap, BTreeSet};

use milepost::SessionId;
use milepost_model::delta::{Delta, PathPart};
use milepost_model::{Body, EntryKind, Seq, State};
use serde_json::{Map, Value};

use super::Runner;
use super::compare::{About, Break, Replay, begun_with, compare};
use super::error::{Error, Result};
use super::flow::edge_name;
use super::ledger::{Decided, Entry, Ledger, Status};
use crate::graph::{Edge, Graph, OnError};

/// How many entries are read at once.
const PAGE: u64 = 4096;

impl Runner {
    /// Checks a recorded session against a graph: what is different and no problem, what it could not go on with, and
    /// whether every decision that was made would be made again. Decisions are looked at as they stood when they were made,
    /// whichever checkpoints there still are.
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
        let own = self.own_actions();
        let (mut changes, breaks) = compare(graph, &state, &BTreeSet::new(), &own)?;
        let nearest = if breaks.is_empty() { None } else { self.nearest(id, graph, &BTreeSet::new()).await? };
        let mut again = Again::new(graph, id, &own);
        again.breaks = breaks;
        let mut from = 0;
        loop {
            let page = store.entries(id, Seq(from), Seq(from + PAGE)).await.map_err(milepost::Error::from)?;
            if page.is_empty() {
                break;
            }
            for entry in page.into_iter().filter(|entry| entry.kind == EntryKind::State) {
                let known = match entry.body {
                    Some(Body::State(delta)) => again.step(&delta),
                    _ => false,
                };
                if !known {
                    // Changes that were given up: a later state may stand whole.
                    again.now = store.state_at(entry.at).await.ok().map(State::into_value);
                    again.lost = true;
                }
            }
            from += PAGE;
        }
        if again.lost {
            changes.push("part of the log was given up: what was decided there is not looked at".to_owned());
        }
        let (breaks, decisions) = (again.breaks, again.decisions);
        Ok(Replay { session: id, changes, breaks, nearest, decisions })
    }
}

/// The edges that leave nodes and were decided, or could have been, in one change of the state.
#[derive(Default)]
struct Touched {
    /// Everything may have changed.
    all: bool,
    graph: bool,
    edges: BTreeSet<String>,
    nodes: BTreeSet<String>,
}

impl Touched {
    fn by(delta: &Delta) -> Self {
        let mut touched = Self::default();
        for (path, _) in delta.changes() {
            let keys: Vec<&str> = path
                .parts()
                .iter()
                .map_while(|part| match part {
                    PathPart::Key(key) => Some(key.as_str()),
                    _ => None,
                })
                .collect();
            match keys.as_slice() {
                [] | ["execution"] | ["execution", "edges" | "nodes"] => (touched.all, touched.graph) = (true, true),
                ["execution", "graph", ..] => touched.graph = true,
                ["execution", "edges", name, ..] => drop(touched.edges.insert((*name).to_owned())),
                ["execution", "nodes", id, ..] => drop(touched.nodes.insert((*id).to_owned())),
                _ => {}
            }
        }
        touched
    }
}

/// A state, as far as decisions go.
struct View<'v>(&'v Value);

impl View<'_> {
    fn get(&self, section: &str, key: &str) -> Option<&Value> {
        self.0.get("execution")?.get(section)?.get(key).filter(|value| !value.is_null())
    }

    fn edge(&self, name: &str) -> Option<Decided> {
        serde_json::from_value(self.get("edges", name)?.clone()).ok()
    }

    fn edges(&self) -> impl Iterator<Item = &String> {
        self.0.pointer("/execution/edges").and_then(Value::as_object).into_iter().flat_map(Map::keys)
    }

    fn rounds(&self, name: &str) -> u32 {
        self.get("rounds", name).and_then(Value::as_u64).and_then(|rounds| u32::try_from(rounds).ok()).unwrap_or(0)
    }

    fn node(&self, id: &str) -> Option<Entry> {
        serde_json::from_value(self.get("nodes", id)?.clone()).ok()
    }

    fn map(&self, pointer: &str) -> Value {
        self.0.pointer(pointer).cloned().unwrap_or_else(|| Value::Object(Map::new()))
    }
}

struct Again<'a> {
    graph: &'a Graph,
    /// The edges by their names, loops aside.
    ways: BTreeMap<String, &'a Edge>,
    id: SessionId,
    own: &'a [&'a str],
    /// The state so far; none while it cannot be known.
    now: Option<Value>,
    /// The names of the edges of the graph that the run had then.
    recorded: BTreeSet<String>,
    breaks: Vec<Break>,
    decisions: usize,
    lost: bool,
}

impl<'a> Again<'a> {
    fn new(graph: &'a Graph, id: SessionId, own: &'a [&'a str]) -> Self {
        let (breaks, recorded) = (Vec::new(), BTreeSet::new());
        let now = Some(Value::Object(Map::new()));
        let ways = graph.edges.iter().filter(|edge| edge.limit.is_none());
        let ways = ways.map(|edge| (edge_name(graph, edge), edge)).collect();
        Self { graph, ways, id, own, now, recorded, breaks, decisions: 0, lost: false }
    }

    /// Makes the decisions again that came with a change of the state; whether the state is known after it.
    fn step(&mut self, delta: &Delta) -> bool {
        let Some(mut now) = self.now.take() else { return false };
        let touched = Touched::by(delta);
        let before = View(&now);
        let loops: Vec<&Edge> = self.graph.edges.iter().filter(|edge| edge.limit.is_some()).collect();
        let looped: Vec<(u32, Option<Entry>)> = loops
            .iter()
            .map(|edge| (before.rounds(&edge_name(self.graph, edge)), before.node(&self.graph.nodes[edge.from].id)))
            .collect();
        let mut names = touched.edges.clone();
        if touched.all {
            names.extend(before.edges().cloned());
        }
        let was_decided: BTreeSet<String> = names.iter().filter(|name| before.edge(name).is_some()).cloned().collect();
        let was_over: BTreeSet<String> = touched.nodes.iter().filter(|id| self.is_over(&before, id)).cloned().collect();
        if delta.apply(&mut now).is_err() {
            return false;
        }
        if touched.graph {
            let then = State::try_from(now.clone()).ok().and_then(|state| begun_with(&state, self.own));
            self.recorded =
                then.iter().flat_map(|graph| graph.edges.iter().map(|edge| edge_name(graph, edge))).collect();
        }
        let after = View(&now);
        if touched.all {
            names.extend(after.edges().cloned());
        }
        for name in names.difference(&was_decided) {
            if let Some(decided) = after.edge(name) {
                self.decided(&after, name, decided);
            }
        }
        for (edge, (rounds, entry)) in loops.into_iter().zip(looped) {
            let from = &self.graph.nodes[edge.from].id;
            if !touched.all && !touched.nodes.contains(from) && after.rounds(&edge_name(self.graph, edge)) == rounds {
                continue;
            }
            self.looped(&after, edge, rounds, entry);
        }
        for id in touched.nodes.difference(&was_over).filter(|id| self.is_over(&after, id)).cloned().collect::<Vec<_>>()
        {
            self.new_ways(&after, &id);
        }
        self.now = Some(now);
        true
    }

    fn is_over(&self, state: &View<'_>, id: &str) -> bool {
        let goes_on = || self.graph.find(id).is_some_and(|number| self.graph.nodes[number].on_error == OnError::GoOn);
        match state.node(id).map(|entry| entry.status) {
            Some(Status::Completed) => true,
            Some(Status::Failed) => goes_on(),
            _ => false,
        }
    }

    /// An edge that was decided.
    fn decided(&mut self, state: &View<'_>, name: &str, decided: Decided) {
        let Some(edge) = self.ways.get(name).copied() else {
            let is_loop = self.graph.edges.iter().any(|edge| edge_name(self.graph, edge) == *name);
            let why = if is_loop { "it was taken, and closes a loop now" } else { "it was taken, and is gone" };
            if decided == Decided::Taken {
                self.decisions += 1;
                self.differs(name, why.to_owned());
            }
            return;
        };
        let entry = state.node(&self.graph.nodes[edge.from].id).unwrap_or_default();
        if entry.status != Status::Skipped {
            self.compare(state, edge, &entry, decided);
        }
    }

    /// A loop that began again, or was left when it might have. At its limit nothing is decided.
    fn looped(&mut self, state: &View<'_>, edge: &Edge, was: u32, before: Option<Entry>) {
        let (name, id) = (edge_name(self.graph, edge), &self.graph.nodes[edge.from].id);
        let is = state.rounds(&name);
        let now = state.node(id).unwrap_or_default();
        let was_over = before.as_ref().is_some_and(|entry| match entry.status {
            Status::Completed => true,
            Status::Failed => self.graph.nodes[edge.from].on_error == OnError::GoOn,
            _ => false,
        });
        // A node that is stuck has not been gone on from.
        let mut others = self.graph.outgoing(edge.from).filter(|(_, edge)| edge.limit.is_none());
        let is_left = others.all(|(_, edge)| state.edge(&edge_name(self.graph, edge)).is_some());
        // How a round failed is forgotten when the next begins.
        let asks_how =
            edge.when.as_ref().is_some_and(|when| ["failed", "error"].iter().any(|name| when.text().contains(name)));
        let is_over = self.is_over(state, id);
        let is_another = before.as_ref().map(|entry| entry.iteration) != Some(now.iteration);
        match is.saturating_sub(was) {
            0 if is < edge.limit.unwrap_or(0) && is_left && is_over && (!was_over || is_another) => {
                self.compare(state, edge, &now, Decided::Passed);
            }
            // What was decided with must still be there: no further round has ended.
            1 if !is_over && !asks_how => {
                // The round that ended, not the one that begins with it.
                let ended = before.unwrap_or_default();
                let entry = Entry { iteration: now.iteration.saturating_sub(1), status: Status::Completed, ..ended };
                self.compare(state, edge, &entry, Decided::Taken);
            }
            _ => {}
        }
    }

    /// Edges that the run did not know, and that would be taken from a node that is done.
    fn new_ways(&mut self, state: &View<'_>, id: &str) {
        let Some(number) = self.graph.find(id) else { return };
        let entry = state.node(id).unwrap_or_default();
        for (_, edge) in self.graph.outgoing(number).filter(|(_, edge)| edge.limit.is_none()) {
            let name = edge_name(self.graph, edge);
            if self.recorded.contains(&name) || state.edge(&name).is_some() {
                continue;
            }
            self.decisions += 1;
            match self.holds(state, edge, &entry) {
                Ok(true) => self.differs(&name, "it is new, and would be taken".to_owned()),
                Ok(false) => {}
                Err(why) => self.differs(&name, format!("its condition cannot be evaluated: {why}")),
            }
        }
    }

    fn compare(&mut self, state: &View<'_>, edge: &Edge, entry: &Entry, decided: Decided) {
        self.decisions += 1;
        let why = match (self.holds(state, edge, entry), decided) {
            (Ok(true), Decided::Taken) | (Ok(false), Decided::Passed) => return,
            (Ok(true), Decided::Passed) => "it was passed, and would be taken now".to_owned(),
            (Ok(false), Decided::Taken) => "it was taken, and would be passed now".to_owned(),
            (Err(why), _) => format!("its condition cannot be evaluated: {why}"),
        };
        self.differs(&edge_name(self.graph, edge), why);
    }

    fn differs(&mut self, name: &str, why: String) {
        self.breaks.push(Break { about: About::Edge(name.to_owned()), why });
    }

    fn holds(&self, state: &View<'_>, edge: &Edge, entry: &Entry) -> Result<bool, String> {
        let Some(when) = &edge.when else { return Ok(true) };
        let from = &self.graph.nodes[edge.from];
        let names = Map::from_iter([
            ("memory".to_owned(), state.map("/memory")),
            ("outputs".to_owned(), state.map("/execution/outputs")),
            ("output".to_owned(), state.get("outputs", &from.output).cloned().unwrap_or_default()),
            ("node".to_owned(), from.id.clone().into()),
            ("session".to_owned(), self.id.to_string().into()),
            ("key".to_owned(), entry.key.clone().into()),
            ("attempt".to_owned(), entry.attempt.into()),
            ("iteration".to_owned(), entry.iteration.into()),
            ("failed".to_owned(), (entry.status == Status::Failed).into()),
            ("error".to_owned(), entry.error.clone().into()),
        ]);
        when.holds(&names)
    }
}
