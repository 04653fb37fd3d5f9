//! What is next: graph and ledger in, steps out. Pure, so that the same ledger always leads to the same decisions.

use serde_json::{Map, Value};

use super::ledger::{Decided, Ledger, Status};
use crate::graph::{Edge, Graph, OnLimit};

/// What the end of a node leads to.
#[derive(Debug, Default)]
pub(super) struct Followed {
    /// Edges that are decided now, by their numbers.
    pub decided: Vec<(usize, Decided)>,
    /// The loop that begins again.
    pub again: Option<usize>,
    /// Why the run cannot go on.
    pub stuck: Option<String>,
}

/// The name of an edge, which survives changes of the file.
pub(super) fn edge_name(graph: &Graph, edge: &Edge) -> String {
    format!("{}>{}", graph.nodes[edge.from].id, graph.nodes[edge.to].id)
}

fn holds(edge: &Edge, names: &Map<String, Value>) -> Result<bool, String> {
    match &edge.when {
        None => Ok(true),
        Some(when) => when
            .holds(names)
            .map_err(|why| format!("the condition of the edge at {} cannot be evaluated: {why}", edge.origin)),
    }
}

/// Decides the edges that leave a node that is done or failed. `names` is what conditions see.
pub(super) fn follow(graph: &Graph, ledger: &Ledger, node: usize, names: &Map<String, Value>) -> Followed {
    let mut followed = Followed::default();
    // Loops first: while one goes on, the other edges wait for its last round.
    for (number, edge) in graph.outgoing(node).filter(|(_, edge)| edge.limit.is_some()) {
        match holds(edge, names) {
            Err(why) => followed.stuck = Some(why),
            Ok(false) => {}
            Ok(true) => {
                let limit = edge.limit.unwrap_or(0);
                if ledger.rounds(&edge_name(graph, edge)) < limit {
                    followed.again = Some(number);
                    return followed;
                }
                if edge.on_limit == OnLimit::Pause {
                    let name = edge_name(graph, edge);
                    let times = if limit == 1 { "once".to_owned() } else { format!("{limit} times") };
                    followed.stuck =
                        Some(format!("the loop {name} was taken {times}, its limit, and its condition still holds"));
                }
            }
        }
    }
    if followed.stuck.is_some() {
        return followed;
    }
    decide(graph, node, names, |_| true, followed)
}

/// Whether a node is left by edges that are not decided, loops aside.
pub(super) fn has_new(graph: &Graph, ledger: &Ledger, node: usize) -> bool {
    let mut edges = graph.outgoing(node).filter(|(_, edge)| edge.limit.is_none());
    edges.any(|(_, edge)| ledger.edge(&edge_name(graph, edge)).is_none())
}

/// Decides the edges that leave a node which the run has gone on from, and are new. Its loops were left: what is done is not
/// done again.
pub(super) fn follow_new(graph: &Graph, ledger: &Ledger, node: usize, names: &Map<String, Value>) -> Followed {
    let is_new = |edge: &Edge| ledger.edge(&edge_name(graph, edge)).is_none();
    decide(graph, node, names, is_new, Followed::default())
}

/// Whether one of a node's loops keeps the run from going on.
pub(super) fn is_stuck(graph: &Graph, ledger: &Ledger, node: usize, names: &Map<String, Value>) -> bool {
    let mut loops = graph.outgoing(node).filter_map(|(_, edge)| Some((edge, edge.limit?)));
    loops.any(|(edge, limit)| match holds(edge, names) {
        Err(_) => true,
        Ok(holds) => holds && edge.on_limit == OnLimit::Pause && ledger.rounds(&edge_name(graph, edge)) >= limit,
    })
}

/// Decides edges that close no loop.
fn decide(
    graph: &Graph,
    node: usize,
    names: &Map<String, Value>,
    which: impl Fn(&Edge) -> bool,
    mut followed: Followed,
) -> Followed {
    for (number, edge) in graph.outgoing(node).filter(|(_, edge)| edge.limit.is_none() && which(edge)) {
        match holds(edge, names) {
            Ok(true) => followed.decided.push((number, Decided::Taken)),
            Ok(false) => followed.decided.push((number, Decided::Passed)),
            Err(why) => {
                followed.stuck = Some(why);
                return followed;
            }
        }
    }
    followed
}

/// The nodes that can run now, and those that never will in this round.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Next {
    pub ready: Vec<usize>,
    pub skipped: Vec<usize>,
}

/// The edges that lead to each node without closing a loop, by their numbers.
pub(super) fn incoming(graph: &Graph) -> Vec<Vec<usize>> {
    let mut incoming = vec![Vec::new(); graph.nodes.len()];
    for (number, edge) in graph.edges.iter().enumerate().filter(|(_, edge)| edge.limit.is_none()) {
        incoming[edge.to].push(number);
    }
    incoming
}

/// What becomes of some nodes: whoever knows which of them something happened to need not ask about all.
pub(super) fn next(
    graph: &Graph,
    ledger: &Ledger,
    incoming: &[Vec<usize>],
    among: impl IntoIterator<Item = usize>,
) -> Next {
    let mut next = Next::default();
    for number in among {
        let node = &graph.nodes[number];
        if ledger.status(&node.id) != Status::Pending {
            continue;
        }
        let is_start = match &graph.start {
            Some(start) => start.contains(&number),
            None => incoming[number].is_empty(),
        };
        // The first node of a loop that begins again needs no other edge.
        let is_called = ledger.node(&node.id).is_some_and(|entry| entry.again);
        if is_called || is_start && incoming[number].is_empty() {
            next.ready.push(number);
            continue;
        }
        let (mut taken, mut open) = (is_start, false);
        for edge in &incoming[number] {
            match ledger.edge(&edge_name(graph, &graph.edges[*edge])) {
                Some(Decided::Taken) => taken = true,
                Some(Decided::Passed) => {}
                None => open = true,
            }
        }
        match (open, taken) {
            (true, _) => {}
            (false, true) => next.ready.push(number),
            (false, false) => next.skipped.push(number),
        }
    }
    next
}

/// What is forgotten when a loop begins again: the nodes of its body, and whatever was skipped because of them.
pub(super) fn reset(graph: &Graph, ledger: &Ledger, edge: &Edge) -> (Vec<usize>, Vec<usize>) {
    let body = graph.body(edge);
    let mut nodes = body.clone();
    let mut open = body.clone();
    while let Some(node) = open.pop() {
        for (_, edge) in graph.outgoing(node).filter(|(_, edge)| edge.limit.is_none()) {
            let is_skipped = ledger.status(&graph.nodes[edge.to].id) == Status::Skipped;
            if is_skipped && !nodes.contains(&edge.to) {
                nodes.push(edge.to);
                open.push(edge.to);
            }
        }
    }
    let edges = graph.edges.iter().enumerate().filter(|(_, edge)| edge.limit.is_none() && nodes.contains(&edge.from));
    // What was taken out of the body stays taken: what lies behind it runs once.
    let edges = edges
        .filter(|(_, edge)| nodes.contains(&edge.to) || ledger.edge(&edge_name(graph, edge)) != Some(Decided::Taken));
    let edges = edges.map(|(number, _)| number).collect();
    (nodes, edges)
}
