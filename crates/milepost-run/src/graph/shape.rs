//! What is wrong with a graph as a whole: circles, nodes that nothing leads to, two that write to one place.

use std::collections::BTreeMap;

use milepost_document::Reader;

use super::{Edge, Graph};

/// Along the edges, or against them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// Which nodes can be reached from one without closing a loop, itself included.
pub(super) fn reach(graph: &Graph, from: usize, direction: Direction) -> Vec<bool> {
    reach_all(graph, &[from], direction)
}

fn reach_all(graph: &Graph, from: &[usize], direction: Direction) -> Vec<bool> {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for edge in graph.edges.iter().filter(|edge| edge.limit.is_none()) {
        match direction {
            Direction::Forward => next[edge.from].push(edge.to),
            Direction::Backward => next[edge.to].push(edge.from),
        }
    }
    let mut seen = vec![false; graph.nodes.len()];
    let mut open: Vec<usize> = from.to_vec();
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut seen[node], true) {
            open.extend(&next[node]);
        }
    }
    seen
}

pub(super) fn check(graph: &Graph, reader: &mut Reader) {
    let has_circle = circles(graph, reader);
    twins(graph, reader);
    if !has_circle && !graph.is_torn {
        loops(graph, reader);
        unreachable(graph, reader);
        races(graph, reader);
    }
    outputs(graph, reader);
}

/// Circles of edges without a limit. True when there is one.
fn circles(graph: &Graph, reader: &mut Reader) -> bool {
    // 0: not seen, 1: on the way, 2: done. The way is a stack of our own: a graph may be deep.
    let mut state = vec![0u8; graph.nodes.len()];
    let mut next: Vec<Vec<(usize, &Edge)>> = vec![Vec::new(); graph.nodes.len()];
    for edge in graph.edges.iter().filter(|edge| edge.limit.is_none()) {
        next[edge.from].push((edge.to, edge));
    }
    let mut found = false;
    for start in 0..graph.nodes.len() {
        if state[start] != 0 {
            continue;
        }
        let mut way: Vec<(usize, usize)> = vec![(start, 0)];
        state[start] = 1;
        while let Some((node, at)) = way.last_mut() {
            let Some((to, edge)) = next[*node].get(*at).copied() else {
                state[*node] = 2;
                way.pop();
                continue;
            };
            *at += 1;
            match state[to] {
                0 => {
                    state[to] = 1;
                    way.push((to, 0));
                }
                1 => {
                    found = true;
                    let ids = way.iter().map(|(node, _)| *node).skip_while(|node| *node != to);
                    let names: Vec<&str> = ids.chain([to]).map(|node| graph.nodes[node].id.as_str()).collect();
                    let why = format!("these nodes run in a circle that never ends: {}", names.join(" → "));
                    let instead = match graph.is_plan {
                        true => "remove one of the dependencies",
                        false => "write limit: and a number at the edge that leads back, and when: and a condition",
                    };
                    reader.wrong(&edge.origin, "", why, instead);
                }
                _ => {}
            }
        }
    }
    found
}

/// The same edge twice.
fn twins(graph: &Graph, reader: &mut Reader) {
    let mut seen: BTreeMap<(usize, usize), &Edge> = BTreeMap::new();
    for edge in &graph.edges {
        match seen.get(&(edge.from, edge.to)) {
            Some(first) => {
                let (from, to) = (&graph.nodes[edge.from].id, &graph.nodes[edge.to].id);
                let why = format!("an edge from {from} to {to} is there already, at {}", first.origin);
                reader.wrong(&edge.origin, "", why, "make one of both, with || between their conditions");
            }
            None => {
                seen.insert((edge.from, edge.to), edge);
            }
        }
    }
}

/// Edges with a limit that do not lead back, and loops without a condition.
fn loops(graph: &Graph, reader: &mut Reader) {
    for edge in graph.edges.iter().filter(|edge| edge.limit.is_some()) {
        let (from, to) = (&graph.nodes[edge.from].id, &graph.nodes[edge.to].id);
        if !reach(graph, edge.to, Direction::Forward)[edge.from] {
            let why = format!("it has a limit, but leads from {from} on to {to}: nothing runs twice");
            reader.wrong(&edge.origin, "limit", why, format!("remove limit, or add the way from {to} to {from}"));
        } else if edge.when.is_none() {
            let why = "the loop has no condition and always runs as often as it may";
            reader.doubt(&edge.origin, "limit", why, "write when: and the condition to go on");
        }
    }
}

fn unreachable(graph: &Graph, reader: &mut Reader) {
    let reached = reach_all(graph, &graph.starts(), Direction::Forward);
    for (number, node) in graph.nodes.iter().enumerate() {
        if !reached[number] {
            let instead = "add an edge to it, or name it in start";
            reader.wrong(&node.origin, &node.id, "no way leads to this node: it never runs", instead);
        }
    }
    if graph.is_plan || graph.start.is_some() || graph.nodes.len() == 1 || graph.edges.is_empty() {
        return;
    }
    for (number, node) in graph.nodes.iter().enumerate() {
        if graph.edges.iter().all(|edge| edge.from != number && edge.to != number) {
            let why = "no edge leads to this node or away from it";
            reader.wrong(&node.origin, &node.id, why, "add an edge to it, or name it in start");
        }
    }
}

fn outputs(graph: &Graph, reader: &mut Reader) {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for node in &graph.nodes {
        match seen.get(node.output.as_str()) {
            Some(first) => {
                let why = format!("its output {:?} is the output of {first} too", node.output);
                reader.wrong(&node.origin, &node.id, why, "give one of them another name with output:");
            }
            None => {
                seen.insert(&node.output, &node.id);
            }
        }
    }
}

/// The memory keys that a node writes.
pub(super) fn writes(node: &super::Node) -> Vec<&str> {
    let set = node.parameters.as_object().filter(|_| node.action == "set");
    let set = set.into_iter().flat_map(|map| map.keys().map(String::as_str));
    node.remember.iter().map(|(key, _)| key.as_str()).chain(set).collect()
}

/// Two nodes that may run at the same time and write one memory key: which one wins would be chance.
fn races(graph: &Graph, reader: &mut Reader) {
    let mut writers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, node) in graph.nodes.iter().enumerate() {
        let mut keys = writes(node);
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().for_each(|key| writers.entry(key).or_default().push(number));
    }
    for (key, nodes) in writers {
        for (at, second) in nodes.iter().enumerate().skip(1) {
            let after = reach(graph, *second, Direction::Forward);
            let before = reach(graph, *second, Direction::Backward);
            let rival = nodes[..at]
                .iter()
                .find(|first| !after[**first] && !before[**first] && !exclusive(graph, **first, *second));
            if let Some(first) = rival {
                let (first, second) = (&graph.nodes[*first], &graph.nodes[*second]);
                let why = format!("it may run at the same time as {} and both write memory.{key}", first.id);
                let instead = "put an edge between them, or let each write a key of its own";
                reader.wrong(&second.origin, &second.id, why, instead);
                break;
            }
        }
    }
}

/// Whether two nodes lie behind edges of one node that both have conditions: such branches are usually one or the other.
fn exclusive(graph: &Graph, first: usize, second: usize) -> bool {
    let before = |node: usize| reach(graph, node, Direction::Backward);
    let (one, other) = (before(first), before(second));
    (0..graph.nodes.len()).filter(|fork| one[*fork] && other[*fork]).any(|fork| {
        let branches: Vec<&Edge> = graph
            .outgoing(fork)
            .map(|(_, edge)| edge)
            .filter(|edge| edge.limit.is_none() && edge.when.is_some())
            .collect();
        let leads = |to: usize| branches.iter().position(|edge| reach(graph, edge.to, Direction::Forward)[to]);
        matches!((leads(first), leads(second)), (Some(a), Some(b)) if a != b)
    })
}
