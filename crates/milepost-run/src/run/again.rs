//! A step run again with other input, on a branch; and what a branch found brought home.

use std::collections::BTreeSet;

use milepost::store::Error as StoreError;
use milepost::store::backend::Kinds;
use milepost::{Event, Milepost, NewSession, SessionId, Together};
use milepost_model::delta::StatePath;
use milepost_model::{Body, Entry as LogEntry, EntryKind, Message, Position, Role, Seq, State, Timestamp};
use serde_json::{Map, Value, json};

use super::beside::Beside;
use super::error::{Error, Result};
use super::ledger::{Entry, Ledger};
use super::{As, End, Runner, secrets};
use crate::graph::Graph;

/// The longest summary (64 KiB).
const MAX_SUMMARY_BYTES: usize = 64 << 10;

/// A step that is to be run again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Again {
    /// The node.
    pub node: String,
    /// The round of its loop, from 0; the last one when none.
    pub round: Option<u32>,
    /// Parameters in place of those of the same names.
    pub input: Map<String, Value>,
}

/// What is brought home from a branch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MergeBack {
    /// Keys of the shared memory.
    pub memory: Vec<String>,
    /// What nodes gave, by the names of their outputs.
    pub outputs: Vec<String>,
    /// What to say about it.
    pub summary: Option<String>,
}

/// What was brought home.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// The session it was brought to.
    pub into: SessionId,
    /// Whether it had been before, and nothing was done.
    pub was_done: bool,
}

impl Runner {
    /// Runs a session again from a step, with its input replaced, on a branch. What came before is shared, what ran beside it is
    /// taken over as it was done, and what follows it runs again ([`Runner::happens_again`] names its effects); the session
    /// itself is left alone. Without a graph the branch goes on with the one that the run was begun with.
    pub async fn rerun(
        &self,
        id: SessionId,
        again: &Again,
        graph: Option<&Graph>,
        new: NewSession,
    ) -> Result<(SessionId, End)> {
        let Found { graph: As { graph, lost, .. }, round, at, beside } = self.find_again(id, again, graph).await?;
        if !self.repeats_effects && !beside.others.is_empty() {
            return Err(Error::Repeats { steps: beside.others });
        }
        let session = self.engine.branch_at(at, new).await?;
        let branch = session.id();
        let replaced = (!again.input.is_empty()).then(|| Value::Object(again.input.clone()));
        let state = session.state().await?;
        let mut ledger = Ledger::read(&state)?;
        beside.take_over(&mut ledger);
        ledger.forget_parts(&again.node);
        ledger.set_node(&again.node, Entry { iteration: round, again: true, replaced, ..Entry::default() });
        if Ledger::graph_text(&state).is_none_or(|(_, text)| text != *graph.text) {
            ledger.set_graph(&graph);
        }
        let mut together = ledger.take_changes();
        let told = json!({"node": again.node, "iteration": round, "of": id.to_string(), "input": again.input});
        together.events.push(Event::new("step_again", told));
        session.record(together).await?;
        session.activate().await?;
        // What is stored of the input is redacted; the step begins with what it was given.
        let place = ["execution", "nodes", again.node.as_str(), "replaced"];
        let given = [(place.into_iter().fold(StatePath::root(), StatePath::key), Value::Object(again.input.clone()))];
        let state = secrets::given_again(session.state().await?, &given);
        let graph = As { lost, ..As::given(graph) };
        let end = Box::pin(self.run(session, graph, &state, &Default::default())).await?;
        Ok((branch, end))
    }

    /// The effects that running a step again lets happen again, as somebody who runs it wants: its own and those of what follows it,
    /// each with the key that it had. Those that do not follow it are taken over, or refused ([`Error::Repeats`]).
    pub async fn happens_again(
        &self,
        id: SessionId,
        again: &Again,
        graph: Option<&Graph>,
    ) -> Result<Vec<(String, String)>> {
        Ok(self.find_again(id, again, graph).await?.beside.asked_for)
    }

    /// Where a step that is to be run again began, and what stands beside it.
    async fn find_again(&self, id: SessionId, again: &Again, graph: Option<&Graph>) -> Result<Found> {
        let what = || format!("running {} of session {id} again", again.node);
        let store = self.engine.store();
        let state = store.state(id).await.map_err(milepost::Error::from)?;
        let graph = match graph {
            Some(graph) => As::given(graph.clone()),
            None => As::recorded(self.recorded_graph(&state)?, &state),
        };
        let Some(node) = graph.graph.find(&again.node) else {
            return Err(Error::refused(what(), "the graph has no such node", "name one of its nodes"));
        };
        let last = Ledger::read(&state)?.node(&again.node).map_or(0, |entry| entry.iteration);
        let round = again.round.unwrap_or(last);
        // Parts begin with their steps.
        let mut begun = self.beginnings(id).await?;
        begun.retain(|one| !one.node.contains('/'));
        let is_it = |one: &Beginning| one.node == again.node && one.round == round;
        let Some(number) = begun.iter().position(is_it) else {
            let why = format!("round {} of it was never begun", round + 1);
            return Err(Error::refused(what(), why, "choose a step and a round that ran: `steps` lists them"));
        };
        let at = begun[number].before;
        if let Err(error) = store.state_at(at).await {
            let gone = match &error {
                StoreError::Pruned { .. } => "was given up when old checkpoints were purged",
                error if error.is_damage() => "is damaged",
                _ => return Err(milepost::Error::from(error).into()),
            };
            let nearest = self.nearest_whole(&begun, number).await;
            let instead = match nearest {
                Some(one) if one.round > 0 => {
                    format!("run {} of round {} again, the nearest that works", one.node, one.round + 1)
                }
                Some(one) => format!("run {} again, the nearest step that works", one.node),
                None => "no step of it can be run again: begin a new run".to_owned(),
            };
            let why = format!("the state with which it began {gone} ({error})");
            return Err(Error::refused(what(), why, instead));
        }
        let beside = self.beside(id, &graph.graph, node, at).await?;
        Ok(Found { graph, round, at, beside })
    }

    /// Where the steps of a session began, in order, once for each input, parts of steps included: the log tells it, whichever
    /// checkpoints were taken and kept.
    pub(super) async fn beginnings(&self, id: SessionId) -> Result<Vec<Beginning>> {
        let (mut begun, mut seen) = (Vec::new(), BTreeSet::new());
        for Group { before, events } in grouped(self.event_entries(id).await?) {
            let is_beginning = |event: &&Event| matches!(event.kind.as_str(), "step_intent" | "step_outcome");
            for event in events.iter().filter(is_beginning) {
                let text = |key: &str| event.data.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
                let (node, key, input) = (text("node"), text("key"), text("input"));
                let Some(before) = before.filter(|_| !node.is_empty()) else { continue };
                let round = event.data.get("iteration").and_then(Value::as_u64).unwrap_or(0);
                let round = u32::try_from(round).unwrap_or(u32::MAX);
                // The end of a step that has an intent is no beginning.
                let is_first = seen.insert((node.clone(), round, String::new(), String::new()));
                if is_first | (!input.is_empty() && seen.insert((node.clone(), round, key.clone(), input.clone()))) {
                    begun.push(Beginning { node, round, before, key, input });
                }
            }
        }
        Ok(begun)
    }

    /// The events of a session along its head, each with its time, also where other entries are damaged.
    pub async fn events(&self, id: SessionId) -> Result<Vec<(Timestamp, Event)>> {
        let told = self.event_entries(id).await?.into_iter().filter_map(|entry| match entry.body {
            Some(Body::Event(event)) => Some((entry.time, event)),
            _ => None,
        });
        Ok(told.collect())
    }

    pub(super) async fn event_entries(&self, id: SessionId) -> Result<Vec<LogEntry>> {
        let store = self.engine.store();
        let head = store.session(id).await.map_err(milepost::Error::from)?.head;
        let lines = store.backend().timelines(store.workspace(), id).await.map_err(milepost::Error::from)?;
        let length = lines.iter().find(|line| line.id == head).map_or(0, |line| line.length);
        let Some(last) = length.checked_sub(1) else { return Ok(Vec::new()) };
        let end = Position { timeline: head, seq: Seq(last) };
        self.events_until(end, Seq(0)).await
    }

    /// The events from an entry on up to another, along the timelines that lead there. Entries that are damaged are left out, and
    /// hide no others.
    pub(super) async fn events_until(&self, end: Position, from: Seq) -> Result<Vec<LogEntry>> {
        let store = self.engine.store();
        let (mut open, mut found) = (vec![(from.0, end.seq.0)], Vec::new());
        while let Some((first, last)) = open.pop() {
            let to = Position { seq: Seq(last), ..end };
            match store.entries_at(to, Seq(first), Kinds::only(EntryKind::Event)).await {
                Ok(events) => found.extend(events),
                // The halves beside what is damaged are whole.
                Err(error) if error.is_damage() && first < last => {
                    let middle = first + (last - first) / 2;
                    open.extend([(middle + 1, last), (first, middle)]);
                }
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(milepost::Error::from(error).into()),
            }
        }
        Ok(found)
    }

    /// The step nearest to one, the later ones first, whose beginning can still be read.
    async fn nearest_whole<'b>(&self, begun: &'b [Beginning], number: usize) -> Option<&'b Beginning> {
        for one in begun[number..].iter().chain(begun[..number].iter().rev()) {
            if self.engine.store().state_at(one.before).await.is_ok() {
                return Some(one);
            }
        }
        None
    }
}

/// A step that is to be run again.
struct Found {
    graph: As,
    round: u32,
    /// The last entry before it began.
    at: Position,
    beside: Beside,
}

/// Events that were stored together.
pub(super) struct Group {
    /// The last entry before them.
    pub before: Option<Position>,
    pub events: Vec<Event>,
}

/// Events that lie beside each other were stored together, before the change of the state that they brought.
pub(super) fn grouped(entries: Vec<LogEntry>) -> Vec<Group> {
    let (mut groups, mut expected): (Vec<Group>, _) = (Vec::new(), None);
    for entry in entries {
        let at = entry.at;
        let Some(Body::Event(event)) = entry.body else { continue };
        let is_of_step = event.kind.starts_with("step_") || event.kind == "loop_again";
        match groups.last_mut().filter(|_| expected == Some(at)) {
            Some(group) => group.events.push(event),
            None => {
                let before = at.seq.0.checked_sub(1).map(|seq| Position { seq: Seq(seq), ..at });
                groups.push(Group { before, events: vec![event] });
            }
        }
        expected = is_of_step.then_some(Position { seq: at.seq.next(), ..at });
    }
    groups
}

/// Where a step began.
pub(super) struct Beginning {
    /// Its whole name.
    pub node: String,
    pub round: u32,
    /// The last entry before it.
    pub before: Position,
    pub key: String,
    /// The hash of its parameters; nothing, of a step without an intent.
    pub input: String,
}

/// Brings conclusions of a branch to the session that it was branched from: values of the memory into its memory, outputs
/// into `merged`, and a message that says so. The same again does nothing.
pub async fn merge_back(engine: &Milepost, branch: SessionId, what: &MergeBack) -> Result<Merged> {
    let doing = || format!("bringing conclusions of {branch} home");
    let refused = |why: String, instead: &str| Error::refused(doing(), why, instead);
    let store = engine.store();
    let info = store.session(branch).await.map_err(milepost::Error::from)?;
    let Some(from) = info.branch else {
        return Err(refused("it is not a branch".to_owned(), "name a session that was branched from another"));
    };
    let into = from.session;
    if what.summary.as_ref().is_some_and(|summary| summary.len() > MAX_SUMMARY_BYTES) {
        let why = format!("the summary is longer than MAX_SUMMARY_BYTES, {MAX_SUMMARY_BYTES}");
        return Err(refused(why, "say it in fewer words"));
    }
    if what.memory.is_empty() && what.outputs.is_empty() && what.summary.is_none() {
        return Err(refused("nothing was chosen".to_owned(), "name memory keys or outputs, or write a summary"));
    }
    let state = store.state(branch).await.map_err(milepost::Error::from)?;
    let memory = chosen(&state, "/memory", &what.memory)
        .map_err(|key| refused(format!("its memory has no {key:?}"), "name keys that it has"))?;
    let outputs = chosen(&state, "/execution/outputs", &what.outputs)
        .map_err(|name| refused(format!("it has no output {name:?}"), "name outputs that it has"))?;
    let merged = json!({"memory": memory, "outputs": outputs, "summary": what.summary});
    let digest = milepost_model::Hash(milepost_model::hash_value(&merged)).to_string();
    let session = engine.hold(into).await?;
    let now = session.state().await?;
    let name = branch.to_string();
    let known = now.pointer("/merged").and_then(|merged| merged.get(&name)).and_then(|one| one.get("digest"));
    if known.and_then(Value::as_str) == Some(&digest) {
        session.release().await?;
        return Ok(Merged { into, was_done: true });
    }
    let mut together = Together::default();
    let mut note = merged.clone();
    note["digest"] = digest.into();
    let root = StatePath::root;
    if now.section("merged").is_none() {
        together.set.push((root().key("merged"), json!({})));
    }
    together.set.push((root().key("merged").key(name.as_str()), note));
    if now.section("memory").is_none() && !memory.is_empty() {
        together.set.push((root().key("memory"), json!({})));
    }
    for (key, value) in &memory {
        together.set.push((root().key("memory").key(key.as_str()), value.clone()));
    }
    let mut message = Message::new(Role::User, told(&name, what.summary.as_deref(), &memory, &outputs));
    message.extra.insert("merged_from".to_owned(), name.clone().into());
    together.messages.push(message);
    together
        .events
        .push(Event::new("merged_back", json!({"from": name, "memory": what.memory, "outputs": what.outputs})));
    session.record(together).await?;
    session.release().await?;
    Ok(Merged { into, was_done: false })
}

fn chosen(state: &State, pointer: &str, names: &[String]) -> Result<Map<String, Value>, String> {
    let found = state.pointer(pointer);
    names
        .iter()
        .map(|name| Ok((name.clone(), found.and_then(|found| found.get(name)).cloned().ok_or_else(|| name.clone())?)))
        .collect()
}

/// The longest value that is told in the message; the whole of it is in the state.
const MAX_TOLD_CHARS: usize = 2000;

fn told(branch: &str, summary: Option<&str>, memory: &Map<String, Value>, outputs: &Map<String, Value>) -> String {
    let mut text = format!("From the branch {branch}:");
    if let Some(summary) = summary {
        text.push_str(&format!("\n{summary}"));
    }
    for (name, value) in memory.iter().chain(outputs) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let value: String = value.chars().take(MAX_TOLD_CHARS).collect();
        text.push_str(&format!("\n{name}: {value}"));
    }
    text
}
