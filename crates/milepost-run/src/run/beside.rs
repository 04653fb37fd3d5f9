//! What ran beside a step that is run again on a branch. It does not follow the step: it is taken over as it was done, and does not
//! happen again.

use std::collections::BTreeSet;

use milepost::SessionId;
use milepost_model::{Event, Position, State};
use serde_json::Value;

use super::Runner;
use super::again::{Group, grouped};
use super::back::Begun;
use super::compare::writes;
use super::error::Result;
use super::flow::edge_name;
use super::ledger::{At, Decided, Entry, Ledger, Status};
use crate::graph::Graph;

/// A node that is taken over.
struct Taken {
    id: String,
    entry: Entry,
    output: Option<(String, Value)>,
    parts: Option<Value>,
    edges: Vec<(String, Option<Decided>)>,
    rounds: Vec<(String, u32)>,
    /// When it was done, among what was stored.
    done: Option<usize>,
}

/// What stands beside a step that is run again, and what happens again with it.
pub(super) struct Beside {
    taken: Vec<Taken>,
    memory: Vec<(String, Value)>,
    /// Effects of the step, and of what follows it.
    pub asked_for: Vec<(String, String)>,
    /// Effects that do not follow it, and would happen again all the same: they cannot be taken over.
    pub others: Vec<(String, String)>,
}

impl Beside {
    /// Notes what is taken over.
    pub fn take_over(&self, ledger: &mut Ledger) {
        for taken in &self.taken {
            ledger.set_node(&taken.id, taken.entry.clone());
            if let Some((name, value)) = &taken.output {
                ledger.set_output(name, value.clone());
            }
            if let Some(parts) = &taken.parts {
                ledger.set_parts(&taken.id, parts.clone());
            }
            taken.edges.iter().for_each(|(name, decided)| ledger.set_edge(name, *decided));
            taken.rounds.iter().for_each(|(name, rounds)| ledger.set_rounds(name, *rounds));
            if taken.done.is_some() {
                ledger.walked(&taken.id);
            }
        }
        self.memory.iter().for_each(|(key, value)| ledger.remember(key, value.clone()));
    }
}

impl Runner {
    /// What stands beside a step that began at a position.
    pub(super) async fn beside(&self, id: SessionId, graph: &Graph, node: usize, at: Position) -> Result<Beside> {
        let store = self.engine.store();
        let then = Ledger::read(&store.state_at(at).await.map_err(milepost::Error::from)?)?;
        let mut groups = grouped(self.event_entries(id).await?);
        let first = groups.iter().position(|group| group.before == Some(at)).unwrap_or(groups.len());
        groups.drain(..first);
        // The round of the step ends where a loop around it begins again.
        let is_over = |group: &Group| group.events.iter().any(|event| begins_again(graph, node, event));
        let round = groups.iter().position(is_over).unwrap_or(groups.len());
        // What cannot be read is not taken over.
        let read = |state: State| Some((Ledger::read(&state).ok()?, state));
        let now = store.state(id).await.ok().and_then(read);
        let end = match groups.get(round).and_then(|group| group.before) {
            Some(end) => store.state_at(end).await,
            None => store.state(id).await,
        };
        let end = end.ok().and_then(read);
        let (after, follows) = (graph.after(node), follows(graph, node));
        let mut taken = Vec::new();
        for number in (0..graph.nodes.len()).filter(|number| !after[*number]) {
            // What a loop leads to from the step ran beside it in its round; the rest in all of its own.
            let (state, groups) = match follows[number] {
                true => (&end, &groups[..round]),
                false => (&now, &groups[..]),
            };
            let one = state.as_ref().and_then(|state| take(graph, number, &then, state, groups));
            taken.extend(one.map(|one| (number, one)));
        }
        taken.sort_by_key(|(_, one)| one.done);
        let mut memory = Vec::new();
        for (number, one) in &taken {
            let state = if follows[*number] { &end } else { &now };
            for key in writes(&graph.nodes[*number]) {
                // What the step, or something that follows it, wrote over it is not there yet.
                let mut others =
                    (0..graph.nodes.len()).filter(|other| after[*other] || follows[*other] && *other != *number);
                let is_contested = others.any(|other| writes(&graph.nodes[other]).contains(&key));
                let then_done = one.done.and_then(|done| groups.get(done + 1)?.before).filter(|_| is_contested);
                let before = match then_done {
                    Some(done) => store.state_at(done).await.ok(),
                    None => None,
                };
                let state = before.as_ref().or(state.as_ref().map(|(_, state)| state));
                let found = state.and_then(|state| state.section("memory")?.get(key));
                memory.extend(found.filter(|_| one.done.is_some()).map(|value| (key.to_owned(), value.clone())));
            }
        }
        let taken: Vec<Taken> = taken.into_iter().map(|(_, one)| one).collect();
        let mut beside = Beside { taken, memory, asked_for: Vec::new(), others: Vec::new() };
        let events = |groups: &[Group]| groups.iter().flat_map(|group| group.events.clone()).collect::<Vec<_>>();
        let effects = |groups| self.effects(graph, events(groups), now.as_ref().map(|(ledger, _)| ledger));
        let place = |step: &Begun| graph.find(step.name.split(['/', '#']).next().unwrap_or_default());
        let ids: BTreeSet<String> = beside.taken.iter().map(|one| one.id.clone()).collect();
        let is_taken = |number: usize| ids.contains(&graph.nodes[number].id);
        for step in effects(&groups[..]) {
            match place(&step) {
                Some(number) if !follows[number] && !after[number] && !is_taken(number) => {
                    beside.others.push((step.name, step.key));
                }
                Some(number) if after[number] => beside.asked_for.push((step.name, step.key)),
                _ => {}
            }
        }
        for step in effects(&groups[..round]) {
            if place(&step).is_some_and(|number| follows[number] && !after[number] && !is_taken(number)) {
                beside.others.push((step.name, step.key));
            }
        }
        for step in effects(&groups[round..]) {
            if place(&step).is_some_and(|number| follows[number] && !after[number]) {
                beside.asked_for.push((step.name, step.key));
            }
        }
        Ok(beside)
    }
}

/// Whether an event says that a loop around a node begins again.
fn begins_again(graph: &Graph, node: usize, event: &Event) -> bool {
    let name = event.data.get("edge").and_then(Value::as_str).filter(|_| event.kind == "loop_again");
    let edge =
        name.and_then(|name| graph.edges.iter().find(|edge| edge.limit.is_some() && edge_name(graph, edge) == name));
    edge.is_some_and(|edge| graph.body(edge).contains(&node))
}

/// The nodes to which any way leads from a node, loops included.
fn follows(graph: &Graph, node: usize) -> Vec<bool> {
    let (mut found, mut open) = (vec![false; graph.nodes.len()], vec![node]);
    while let Some(node) = open.pop() {
        for (_, edge) in graph.outgoing(node) {
            if !std::mem::replace(&mut found[edge.to], true) {
                open.push(edge.to);
            }
        }
    }
    found
}

/// A node as it stands in a state, when something happened to it since.
fn take(
    graph: &Graph,
    number: usize,
    then: &Ledger,
    (now, state): &(Ledger, State),
    groups: &[Group],
) -> Option<Taken> {
    let node = &graph.nodes[number];
    let entry = now.node(&node.id).filter(|entry| then.node(&node.id) != Some(entry))?;
    let parts = At::root().below(&node.id).find(state).cloned();
    let is_over = matches!(entry.status, Status::Completed | Status::Failed | Status::Skipped | Status::Pending);
    // What is open goes on from what was said in it, which the branch does not have.
    if !is_over && parts.is_some() {
        return None;
    }
    let names = || graph.outgoing(number).map(|(_, edge)| (edge, edge_name(graph, edge)));
    let edges = names().filter(|(edge, name)| edge.limit.is_none() && now.edge(name) != then.edge(name));
    let rounds = names().filter(|(edge, name)| edge.limit.is_some() && now.rounds(name) != then.rounds(name));
    let is_done = |event: &Event| {
        let text = |key: &str| event.data.get(key).and_then(Value::as_str);
        event.kind == "step_outcome" && text("node") == Some(&node.id) && text("key") == Some(&entry.key)
    };
    let done = groups.iter().rposition(|group| group.events.iter().any(is_done));
    Some(Taken {
        id: node.id.clone(),
        entry: entry.clone(),
        output: now.outputs().get(&node.output).map(|value| (node.output.clone(), value.clone())),
        parts,
        edges: edges.map(|(_, name)| (name.clone(), now.edge(&name))).collect(),
        rounds: rounds.map(|(_, name)| (name.clone(), now.rounds(&name))).collect(),
        done: done.filter(|_| matches!(entry.status, Status::Completed | Status::Failed)),
    })
}
