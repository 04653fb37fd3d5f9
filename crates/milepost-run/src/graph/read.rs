//! From a document to a graph: keys, shapes and names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use milepost_document::{Data, Node as Tree, Origin, Reader, nearest};
use serde_json::{Map, Value};

use super::actions;
use super::expression::Expression;
use super::limits::{
    MAX_ATTEMPTS, MAX_DURATION_MS, MAX_EDGES, MAX_LOOP_ROUNDS, MAX_NAME_BYTES, MAX_NODES, MAX_PARALLEL,
};
use super::parameters::check_parameters;
use super::{Edge, Fault, Graph, Loose, Node, OnError, OnLimit, Retry};

/// The keys of a graph's file.
pub(super) const GRAPH: &[&str] = &[
    "name",
    "description",
    "query",
    "parallel",
    "budget",
    "memory",
    "start",
    "nodes",
    "edges",
    "outputs",
    "steps",
    "plan",
];
/// The keys of a node, and of a step.
pub(super) const NODE: &[&str] = &[
    "id",
    "description",
    "action",
    "parameters",
    "with",
    "dependencies",
    "needs",
    "output",
    "remember",
    "retry",
    "timeout",
    "no_progress",
    "idempotent",
    "on_error",
    "safe_point",
    "status",
];
pub(super) const RETRY: &[&str] = &["attempts", "backoff", "max_backoff"];
pub(super) const BUDGET: &[&str] = &["tokens", "cost_usd"];
pub(super) const EDGE: &[&str] = &["from", "to", "when", "limit", "on_limit"];
pub(super) const ON_ERROR: &[&str] = &["pause", "go_on"];
pub(super) const ON_LIMIT: &[&str] = &["pause", "go_on"];

/// A dependency as it was written: who needs whom.
struct Need {
    of: usize,
    /// None when it could not be read, which was told.
    on: Option<String>,
    origin: Origin,
}

/// A node as a file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Known(usize),
    /// There is no such node, but one with nearly that name.
    Meant(usize),
    Unknown,
}

impl Named {
    fn known(self) -> Option<usize> {
        match self {
            Named::Known(number) => Some(number),
            Named::Meant(_) | Named::Unknown => None,
        }
    }

    fn probable(self) -> Option<usize> {
        match self {
            Named::Known(number) | Named::Meant(number) => Some(number),
            Named::Unknown => None,
        }
    }
}

/// Reads a document. None when there is nothing to look at further.
pub(super) fn read(tree: &Tree, path: &Path, own_actions: &[&str], reader: &mut Reader) -> Option<Graph> {
    reader.section(tree, "", GRAPH)?;
    let steps = tree.get("steps").or_else(|| tree.get("plan"));
    let (listed, nodes) = match (steps, tree.get("nodes")) {
        (Some(steps), None) => (steps, read_steps(steps, own_actions, reader)?),
        (None, Some(nodes)) => (nodes, read_nodes(nodes, own_actions, reader)?),
        (Some(steps), Some(_)) => {
            let why = "a plan's steps and a graph's nodes stand in one file";
            reader.wrong(&steps.origin, "", why, "keep one of them");
            return None;
        }
        (None, None) => {
            reader.wrong(&tree.origin, "", "it has neither nodes nor steps", "write nodes: and one below it");
            return None;
        }
    };
    let (nodes, needs): (Vec<Node>, Vec<Vec<Need>>) = nodes.into_iter().unzip();
    if nodes.is_empty() {
        let is_empty = match &listed.data {
            Data::Map(items) => items.is_empty(),
            Data::List(items) => items.is_empty(),
            Data::Nothing | Data::Text { .. } => true,
        };
        if is_empty {
            reader.wrong(&listed.origin, "", "there are no nodes", "write at least one");
        }
        return None;
    }
    if nodes.len() > MAX_NODES {
        let why = format!("there are {} nodes, the limit MAX_NODES is {MAX_NODES}", nodes.len());
        reader.wrong(&listed.origin, "", why, "split it into several graphs");
        return None;
    }
    let text = |key: &str, reader: &mut Reader| tree.get(key).and_then(|node| reader.text(node, key));
    let name = text("name", reader).unwrap_or_else(|| {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| "graph".to_owned())
    });
    let parallel = tree.get("parallel").map_or(Some(4), |node| reader.number(node, "parallel", 1, MAX_PARALLEL));
    let mut graph = Graph {
        numbers: nodes.iter().enumerate().map(|(number, node)| (node.id.clone(), number)).collect(),
        leaving: vec![Vec::new(); nodes.len()],
        name,
        description: text("description", reader).unwrap_or_default(),
        query: text("query", reader),
        parallel: parallel.and_then(|number| usize::try_from(number).ok()).unwrap_or(4),
        budget: tree.get("budget").and_then(|budget| read_budget(budget, reader)),
        memory: tree.get("memory").map(|memory| read_memory(memory, reader)).unwrap_or_default(),
        nodes,
        edges: Vec::new(),
        outputs: Vec::new(),
        start: None,
        is_plan: steps.is_some(),
        path: path.display().to_string(),
        text: "".into(),
        loose: Vec::new(),
    };
    for need in needs.into_iter().flatten() {
        let (to, origin) = (need.of, need.origin);
        let from = named(&graph, need.on.as_deref(), &origin, "dependencies", reader);
        match from.known() {
            Some(from) => graph.add(Edge { from, to, when: None, limit: None, on_limit: OnLimit::default(), origin }),
            None => {
                let from = from.probable();
                let (to, fault) = (Some(to), Fault::Name);
                graph.loose.push(Loose { from, to, when: None, closes_loop: false, fault, origin });
            }
        }
    }
    if let Some(edges) = tree.get("edges") {
        read_edges(edges, &mut graph, reader);
    }
    if let Some(start) = tree.get("start") {
        let mut starts = Vec::new();
        for need in read_needs(0, start, "start", reader) {
            match named(&graph, need.on.as_deref(), &need.origin, "start", reader).probable() {
                Some(number) => starts.push(number),
                None => graph.loose.push(Loose {
                    from: None,
                    to: None,
                    when: None,
                    closes_loop: false,
                    fault: Fault::Start,
                    origin: need.origin,
                }),
            }
        }
        graph.start = Some(starts);
    }
    if let Some(outputs) = tree.get("outputs") {
        graph.outputs = expressions(outputs, "outputs", reader);
    }
    Some(graph)
}

fn read_nodes(tree: &Tree, own: &[&str], reader: &mut Reader) -> Option<Vec<(Node, Vec<Need>)>> {
    if let Data::List(_) = &tree.data {
        return read_steps(tree, own, reader);
    }
    let items = reader.entries(tree, "nodes")?;
    let read = items.iter().enumerate().filter_map(|(number, (id, origin, node))| {
        if let Some(id) = node.get("id") {
            reader.wrong(&id.origin, "id", "a node below nodes has its name before the colon", "remove id");
        }
        read_node(number, id, origin, node, own, reader)
    });
    Some(renumber(read.collect()))
}

fn read_steps(tree: &Tree, own: &[&str], reader: &mut Reader) -> Option<Vec<(Node, Vec<Need>)>> {
    let items = reader.list(tree, "steps")?;
    let mut seen: BTreeMap<String, Origin> = BTreeMap::new();
    let mut all = Vec::new();
    for (number, node) in items.iter().enumerate() {
        let given = node.get("id").map(|id| (id.text().map(str::to_owned), id.origin.clone()));
        let (id, origin) = match given {
            Some((Some(id), origin)) => (id, origin),
            Some((None, origin)) => {
                reader.wrong(&origin, "id", "it is no text", "write a name");
                continue;
            }
            None => (format!("step_{}", number + 1), node.origin.clone()),
        };
        if let Some(first) = seen.get(&id) {
            let why = format!("{id:?} is the name of another step, at {first}");
            reader.wrong(&origin, "id", why, "give each step a name of its own");
            continue;
        }
        seen.insert(id.clone(), origin.clone());
        all.extend(read_node(number, &id, &origin, node, own, reader));
    }
    Some(renumber(all))
}

/// Nodes that could not be read leave gaps in the numbers.
fn renumber(all: Vec<(Node, Vec<Need>)>) -> Vec<(Node, Vec<Need>)> {
    let numbered = all.into_iter().enumerate();
    numbered.map(|(of, (node, needs))| (node, needs.into_iter().map(|need| Need { of, ..need }).collect())).collect()
}

/// Whether a name can stand in an expression.
pub(super) fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.len() <= MAX_NAME_BYTES
}

pub(super) fn name(name: &str, origin: &Origin, key: &str, reader: &mut Reader) -> bool {
    let fits = is_name(name);
    if !fits {
        let why = format!(
            "{:?} is no name: letters, digits and _, at most MAX_NAME_BYTES, {MAX_NAME_BYTES}, and no digit first",
            name.chars().take(80).collect::<String>()
        );
        let better: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(64).collect();
        let instead = if is_name(&better) { format!("write {better}") } else { "choose another".to_owned() };
        reader.wrong(origin, key, why, instead);
    }
    fits
}

fn read_node(
    number: usize,
    id: &str,
    origin: &Origin,
    tree: &Tree,
    own: &[&str],
    reader: &mut Reader,
) -> Option<(Node, Vec<Need>)> {
    name(id, origin, "", reader);
    let is_section = reader.section(tree, id, NODE).is_some();
    let action = match tree.get("action") {
        Some(node) => reader.text(node, id).map(|action| (action, node.origin.clone())),
        // What is wrong was told. The node stays, so that those who name it are not told that it is not there.
        None if !is_section || is_misspelt(tree, "action", NODE) => None,
        None => {
            let all = actions::ACTIONS.iter().map(|action| action.name).collect::<Vec<_>>().join(", ");
            reader.wrong(origin, id, "it has no action", format!("write action: and one of {all}"));
            None
        }
    };
    let parameters = match (tree.get("parameters"), tree.get("with")) {
        (Some(_), Some(with)) => {
            reader.wrong(
                &with.origin,
                id,
                "with is another name of parameters, and both are there",
                "keep one of them",
            );
            None
        }
        (one, other) => one.or(other),
    };
    let misspelt = ["parameters", "with"].iter().any(|key| is_misspelt(tree, key, NODE));
    if let Some((action, at)) = &action {
        match actions::find(action) {
            Some(_) if parameters.is_none() && misspelt => {}
            Some(known) => check_parameters(known, parameters, &at.clone(), id, own, reader),
            None if own.contains(&action.as_str()) => {}
            None => {
                let known = actions::ACTIONS.iter().map(|action| action.name).chain(own.iter().copied());
                reader.unknown(at, id, "there is no action", action, known);
            }
        }
    }
    let output = match tree.get("output") {
        Some(node) => reader.text(node, "output").filter(|output| name(output, &node.origin, "output", reader)),
        None => None,
    };
    let flag = |key: &str, reader: &mut Reader| tree.get(key).and_then(|node| reader.flag(node, key));
    let time =
        |key: &str, reader: &mut Reader| tree.get(key).and_then(|node| reader.duration_ms(node, key, MAX_DURATION_MS));
    let on_error = tree.get("on_error").and_then(|node| reader.choice(node, "on_error", ON_ERROR));
    let node = Node {
        id: id.to_owned(),
        description: tree.get("description").and_then(|node| reader.text(node, "description")).unwrap_or_default(),
        action: action.map(|(action, _)| action).unwrap_or_default(),
        parameters: parameters.map_or_else(|| Value::Object(Map::new()), Tree::to_json),
        written: parameters.cloned().map(Arc::new),
        output: output.unwrap_or_else(|| id.to_owned()),
        remember: tree.get("remember").map(|node| expressions(node, "remember", reader)).unwrap_or_default(),
        retry: tree.get("retry").and_then(|node| read_retry(node, reader)).unwrap_or_default(),
        timeout_ms: time("timeout", reader),
        no_progress_ms: time("no_progress", reader),
        idempotent: flag("idempotent", reader),
        on_error: if on_error == Some("go_on") { OnError::GoOn } else { OnError::Pause },
        safe_point: flag("safe_point", reader).unwrap_or(false),
        origin: origin.clone(),
    };
    let needs = tree.get("dependencies").or_else(|| tree.get("needs"));
    Some((node, needs.map(|needs| read_needs(number, needs, "dependencies", reader)).unwrap_or_default()))
}

fn read_needs(of: usize, tree: &Tree, key: &str, reader: &mut Reader) -> Vec<Need> {
    let one = std::slice::from_ref(tree);
    let items = match &tree.data {
        Data::List(items) => items.as_slice(),
        Data::Nothing => &[],
        _ => one,
    };
    items.iter().map(|item| Need { of, on: reader.text(item, key), origin: item.origin.clone() }).collect()
}

fn read_retry(tree: &Tree, reader: &mut Reader) -> Option<Retry> {
    let mut retry = Retry::default();
    // A number alone is the number of attempts.
    if let Data::Text { .. } = &tree.data {
        retry.attempts = u32::try_from(reader.number(tree, "retry", 1, MAX_ATTEMPTS)?).ok()?;
        return Some(retry);
    }
    reader.section(tree, "retry", RETRY)?;
    if let Some(node) = tree.get("attempts") {
        retry.attempts = u32::try_from(reader.number(node, "attempts", 1, MAX_ATTEMPTS)?).ok()?;
    }
    if let Some(node) = tree.get("backoff") {
        retry.backoff_ms = reader.duration_ms(node, "backoff", MAX_DURATION_MS)?;
        retry.max_backoff_ms = retry.max_backoff_ms.max(retry.backoff_ms);
    }
    if let Some(node) = tree.get("max_backoff") {
        retry.max_backoff_ms = reader.duration_ms(node, "max_backoff", MAX_DURATION_MS)?;
    }
    Some(retry)
}

fn read_memory(tree: &Tree, reader: &mut Reader) -> Map<String, Value> {
    let Some(items) = reader.entries(tree, "memory") else { return Map::new() };
    let all = items.iter().filter(|(key, origin, _)| name(key, origin, "memory", reader));
    all.map(|(key, _, node)| (key.clone(), node.to_json())).collect()
}

fn read_budget(tree: &Tree, reader: &mut Reader) -> Option<super::Budget> {
    reader.section(tree, "budget", BUDGET)?;
    let tokens = tree.get("tokens").and_then(|node| reader.number(node, "tokens", 1, 1 << 50));
    let cost_usd = tree.get("cost_usd").and_then(|node| {
        let cost = node.to_json().as_f64().filter(|cost| *cost > 0.0 && cost.is_finite());
        if cost.is_none() {
            reader.wrong(&node.origin, "cost_usd", "it is not an amount", "write dollars, such as 0.50");
        }
        cost
    });
    Some(super::Budget { tokens, cost_usd })
}

/// The value of a key that is missing, but is there under a name that nobody knows, and that was told.
fn misspelt<'t>(tree: &'t Tree, key: &str, known: &[&str]) -> Option<&'t Tree> {
    let Data::Map(items) = &tree.data else { return None };
    let mut strange = items.iter().filter(|(name, ..)| !known.contains(&name.as_str()));
    strange.find(|(name, ..)| nearest(name, known.iter().copied()) == Some(key)).map(|(_, _, value)| value)
}

pub(super) fn is_misspelt(tree: &Tree, key: &str, known: &[&str]) -> bool {
    misspelt(tree, key, known).is_some()
}

/// Expressions with names. One that is wrong is told, and something stands in for it: whoever uses its name is not told that it
/// is not there.
fn expressions(tree: &Tree, what: &str, reader: &mut Reader) -> Vec<(String, Expression)> {
    let Some(items) = reader.entries(tree, what) else { return Vec::new() };
    let mut all = Vec::new();
    for (key, origin, node) in items {
        if name(key, origin, what, reader) {
            let value = expression(node, what, reader).or_else(|| stand_in(node));
            all.extend(value.map(|value| (key.clone(), value)));
        }
    }
    all
}

fn expression(node: &Tree, key: &str, reader: &mut Reader) -> Option<Expression> {
    if node.text().is_none() {
        let why = format!("{} stands here", node.kind());
        reader.wrong(&node.origin, key, why, "write a CEL expression, such as output.score");
        return None;
    }
    match Expression::compile(node) {
        Ok(expression) => Some(expression),
        Err(mistake) => {
            reader.wrong(&node.place(mistake.line, mistake.column), key, mistake.why, mistake.instead);
            None
        }
    }
}

/// An expression of which nothing is known, in place of one that is wrong.
fn stand_in(node: &Tree) -> Option<Expression> {
    Expression::compile(&Tree::plain("dyn(true)", node.origin.clone())).ok()
}

/// Which node a name means. One that is not there is told.
fn named(graph: &Graph, id: Option<&str>, at: &Origin, key: &str, reader: &mut Reader) -> Named {
    let Some(id) = id else { return Named::Unknown };
    if let Some(number) = graph.find(id) {
        return Named::Known(number);
    }
    let all = graph.nodes.iter().map(|node| node.id.as_str());
    reader.unknown(at, key, "there is no node", id, all.clone());
    nearest(id, all).and_then(|id| graph.find(id)).map_or(Named::Unknown, Named::Meant)
}

fn read_edges(tree: &Tree, graph: &mut Graph, reader: &mut Reader) {
    let items = reader.list(tree, "edges").filter(|items| {
        let fits = items.len() <= MAX_EDGES;
        if !fits {
            let why = format!("there are {} edges, the limit MAX_EDGES is {MAX_EDGES}", items.len());
            reader.wrong(&tree.origin, "edges", why, "split it into several graphs");
        }
        fits
    });
    let Some(items) = items else {
        let (origin, fault) = (tree.origin.clone(), Fault::Unreadable);
        graph.loose.push(Loose { from: None, to: None, when: None, closes_loop: false, fault, origin });
        return;
    };
    for item in items {
        read_edge(item, graph, reader);
    }
}

fn read_edge(tree: &Tree, graph: &mut Graph, reader: &mut Reader) {
    let is_section = reader.section(tree, "edge", EDGE).is_some();
    let mut end = |key: &str| match tree.get(key) {
        Some(node) => {
            let id = reader.text(node, key);
            named(graph, id.as_deref(), &node.origin, key, reader)
        }
        None if !is_section => Named::Unknown,
        None => match misspelt(tree, key, EDGE) {
            // The wrong key was told, which is enough.
            Some(node) => node.text().and_then(|id| graph.find(id)).map_or(Named::Unknown, Named::Meant),
            None => {
                let instead = format!("write {key}: and a node's name");
                reader.wrong(&tree.origin, "edge", format!("it has no {key:?}"), instead);
                Named::Unknown
            }
        },
    };
    let (from, to) = (end("from"), end("to"));
    // An edge whose condition or limit is wrong stays an edge: what it leads to is not to blame.
    let when = tree.get("when").and_then(|node| expression(node, "when", reader).or_else(|| stand_in(node)));
    let limit = tree.get("limit").map(|node| reader.number(node, "limit", 1, MAX_LOOP_ROUNDS).unwrap_or(1));
    let on_limit = tree.get("on_limit").and_then(|node| {
        if limit.is_none() {
            reader.wrong(&node.origin, "on_limit", "the edge has no limit", "write limit: too, or remove it");
        }
        reader.choice(node, "on_limit", ON_LIMIT)
    });
    let origin = tree.origin.clone();
    match (from.known(), to.known()) {
        (Some(from), Some(to)) => graph.add(Edge {
            from,
            to,
            when,
            limit: limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
            on_limit: if on_limit == Some("go_on") { OnLimit::GoOn } else { OnLimit::Pause },
            origin,
        }),
        _ => graph.loose.push(Loose {
            from: from.probable(),
            to: to.probable(),
            when,
            closes_loop: limit.is_some(),
            fault: if is_section { Fault::Name } else { Fault::Unreadable },
            origin,
        }),
    }
}
