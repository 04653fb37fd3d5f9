//! What is wrong with a graph as a whole: circles, nodes that nothing leads to, two that write to one place.

use std::collections::BTreeMap;

use milepost_document::Reader;

use super::{Edge, Fault, Graph, Loose};

/// Along the edges, or against them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// Which ways with a mistake in them count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// Those of which the ends are known, or probably meant.
    Read,
    /// Also those that name a node which nobody knows: it may be any.
    Any,
}

/// Which nodes can be reached from one without closing a loop, itself included. Ways with a mistake in them count as whatever
/// they may have meant.
pub(super) fn reach(graph: &Graph, from: usize, direction: Direction) -> Vec<bool> {
    reach_by(graph, Ways::Any, from, direction)
}

fn reach_by(graph: &Graph, ways: Ways, from: usize, direction: Direction) -> Vec<bool> {
    let counts = |way: &&Loose| way.fault != Fault::Start && (ways == Ways::Any || !way.is_unknown());
    reach_all(graph, graph.loose.iter().filter(counts), &[from], direction)
}

fn reach_all<'g>(
    graph: &Graph,
    loose: impl Iterator<Item = &'g Loose>,
    from: &[usize],
    direction: Direction,
) -> Vec<bool> {
    let count = graph.nodes.len();
    // Two more than there are nodes: a way that leads anywhere, and one that comes from anywhere.
    let (anywhere, from_anywhere) = (count, count + 1);
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); count + 2];
    let mut add = |from: usize, to: usize| match direction {
        Direction::Forward => next[from].push(to),
        Direction::Backward => next[to].push(from),
    };
    for edge in graph.edges.iter().filter(|edge| edge.limit.is_none()) {
        add(edge.from, edge.to);
    }
    let mut loose = loose.filter(|way| !way.closes_loop).peekable();
    if loose.peek().is_some() {
        (0..count).for_each(|node| add(anywhere, node));
        (0..count).for_each(|node| add(node, from_anywhere));
    }
    for way in loose {
        add(way.from.unwrap_or(from_anywhere), way.to.unwrap_or(anywhere));
    }
    let mut seen = vec![false; count + 2];
    let mut open: Vec<usize> = from.to_vec();
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut seen[node], true) {
            open.extend(&next[node]);
        }
    }
    seen.truncate(count);
    seen
}

pub(super) fn check(graph: &Graph, reader: &mut Reader) {
    let circling = circles(graph, reader);
    twins(graph, reader);
    loops(graph, reader);
    lonely(graph, reader);
    outputs(graph, reader);
    // What else is wrong is looked for as if the circles had the limits that were asked for.
    let mut mended = graph.clone();
    circling.into_iter().for_each(|edge| mended.edges[edge].limit = Some(1));
    unreachable(&mended, reader);
    races(&mended, reader);
}

/// Circles of edges without a limit: the edges that close them.
fn circles(graph: &Graph, reader: &mut Reader) -> Vec<usize> {
    // 0: not seen, 1: on the way, 2: done. The way is a stack of our own: a graph may be deep.
    let mut state = vec![0u8; graph.nodes.len()];
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for (number, edge) in graph.edges.iter().enumerate().filter(|(_, edge)| edge.limit.is_none()) {
        next[edge.from].push(number);
    }
    let mut found = Vec::new();
    for start in 0..graph.nodes.len() {
        if state[start] != 0 {
            continue;
        }
        let mut way: Vec<(usize, usize)> = vec![(start, 0)];
        state[start] = 1;
        while let Some((node, at)) = way.last_mut() {
            let Some(&number) = next[*node].get(*at) else {
                state[*node] = 2;
                way.pop();
                continue;
            };
            *at += 1;
            let edge = &graph.edges[number];
            let to = edge.to;
            match state[to] {
                0 => {
                    state[to] = 1;
                    way.push((to, 0));
                }
                1 => {
                    let ids = way.iter().map(|(node, _)| *node).skip_while(|node| *node != to);
                    let names: Vec<&str> = ids.chain([to]).map(|node| graph.nodes[node].id.as_str()).collect();
                    let why = format!("these nodes run in a circle that never ends: {}", names.join(" → "));
                    let instead = match graph.is_plan {
                        true => "remove one of the dependencies",
                        false => "write limit: and a number at the edge that leads back, and when: and a condition",
                    };
                    reader.wrong(&edge.origin, "", why, instead);
                    found.push(number);
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
        let leads_back = |ways| reach_by(graph, ways, edge.to, Direction::Forward)[edge.from];
        if !leads_back(Ways::Any) {
            let why = format!("it has a limit, but leads from {from} on to {to}: nothing runs twice");
            reader.wrong(&edge.origin, "limit", why, format!("remove limit, or add the way from {to} to {from}"));
        } else if let Some(way) = unread(graph).filter(|_| !leads_back(Ways::Read)) {
            let why = format!("it has a limit, and no way that can be read leads from {to} to {from}");
            let instead = format!("mend the way at {}; if it is not that one, remove limit", way.origin);
            reader.doubt(&edge.origin, "limit", why, instead);
        } else if edge.when.is_none() {
            let why = "the loop has no condition and always runs as often as it may";
            reader.doubt(&edge.origin, "limit", why, "write when: and the condition to go on");
        }
    }
}

/// Nodes that no way leads to from the beginning.
fn unreachable(graph: &Graph, reader: &mut Reader) {
    let lead_somewhere = graph.loose.iter().filter(|way| way.to.is_some());
    let reached = reach_all(graph, lead_somewhere, &graph.starts(), Direction::Forward);
    // It may be what is meant there, and may as well not be.
    let meant = graph.loose.iter().find(|way| way.to.is_none() && !way.closes_loop);
    for (number, node) in graph.nodes.iter().enumerate().filter(|(number, _)| !reached[*number]) {
        match meant {
            None => {
                let instead = "add an edge to it, or name it in start";
                reader.wrong(&node.origin, &node.id, "no way leads to this node: it never runs", instead);
            }
            Some(way) if graph.incoming(number).next().is_none() => {
                let instead = format!("name it at {}, or add an edge to it", way.origin);
                reader.doubt(&node.origin, &node.id, "no way that can be read leads to this node", instead);
            }
            Some(_) => {}
        }
    }
}

/// Nodes beside a graph of others: whoever drew edges probably forgot theirs.
fn lonely(graph: &Graph, reader: &mut Reader) {
    let has_no_edges = graph.edges.is_empty() && graph.loose.is_empty();
    if graph.is_plan || graph.start.is_some() || graph.nodes.len() == 1 || has_no_edges {
        return;
    }
    let mut has_edge = vec![false; graph.nodes.len()];
    let ends = graph.edges.iter().flat_map(|edge| [edge.from, edge.to]);
    let loose_ends = graph.loose.iter().flat_map(|way| [way.from, way.to]).flatten();
    ends.chain(loose_ends).for_each(|node| has_edge[node] = true);
    let meant = graph.loose.iter().find(|way| way.from.is_none() || way.to.is_none());
    for (node, _) in graph.nodes.iter().zip(has_edge).filter(|(_, has_edge)| !has_edge) {
        match meant {
            None => {
                let why = "no edge leads to this node or away from it";
                reader.wrong(&node.origin, &node.id, why, "add an edge to it, or name it in start");
            }
            Some(way) => {
                let why = "no edge that can be read leads to this node or away from it";
                let instead = format!("name it at {}, or add an edge to it", way.origin);
                reader.doubt(&node.origin, &node.id, why, instead);
            }
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

/// Two nodes that may run at the same time and write one memory key: which one wins would be chance. Where a way that leads
/// nobody knows where may keep them apart, that is told too, and is no more than a doubt.
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
            let told = |first: usize| {
                format!("it may run at the same time as {} and both write memory.{key}", graph.nodes[first].id)
            };
            let node = &graph.nodes[*second];
            let apart = "put an edge between them, or let each write a key of its own";
            if let Some(first) = rival(graph, Ways::Any, &nodes[..at], *second) {
                reader.wrong(&node.origin, &node.id, told(first), apart);
            } else if let Some(way) = unread(graph)
                && let Some(first) = rival(graph, Ways::Read, &nodes[..at], *second)
            {
                let why = format!("{}, unless the way at {} keeps them apart", told(first), way.origin);
                reader.doubt(&node.origin, &node.id, why, format!("mend that way; if they still may, {apart}"));
            }
        }
    }
}

/// The first way that names a node which nobody knows.
fn unread(graph: &Graph) -> Option<&Loose> {
    graph.loose.iter().find(|way| way.is_unknown() && !way.closes_loop)
}

/// The first of some nodes that may run at the same time as another.
fn rival(graph: &Graph, ways: Ways, among: &[usize], node: usize) -> Option<usize> {
    let after = reach_by(graph, ways, node, Direction::Forward);
    let before = reach_by(graph, ways, node, Direction::Backward);
    let is_apart = |other: usize| after[other] || before[other] || exclusive(graph, ways, other, node);
    among.iter().copied().find(|other| !is_apart(*other))
}

/// Whether two nodes lie behind edges of one node that both have conditions: such branches are usually one or the other.
fn exclusive(graph: &Graph, ways: Ways, first: usize, second: usize) -> bool {
    let before = |node: usize| reach_by(graph, ways, node, Direction::Backward);
    let (one, other) = (before(first), before(second));
    (0..graph.nodes.len()).filter(|fork| one[*fork] && other[*fork]).any(|fork| {
        let branches: Vec<&Edge> = graph
            .outgoing(fork)
            .map(|(_, edge)| edge)
            .filter(|edge| edge.limit.is_none() && edge.when.is_some())
            .collect();
        let leads = |to: usize| branches.iter().position(|edge| reach_by(graph, ways, edge.to, Direction::Forward)[to]);
        matches!((leads(first), leads(second)), (Some(a), Some(b)) if a != b)
    })
}
