//! Graphs as files: nodes, edges with conditions, loops with limits, shared memory, outputs. A plan is a graph whose
//! edges are its steps' dependencies.
//!
//! [`check`] reads a text and finds everything that is wrong with it, each with line and column. What it gives is
//! [`Graph`], in which nothing is left to go wrong before the run: names are resolved, expressions compiled, templates
//! parsed. [`draw()`] makes a picture, [`schema()`] what editors complete and check with.
//!
//! How a graph runs:
//! - When a node is done, the conditions of the edges that leave it are evaluated. An edge whose condition holds is taken.
//! - A node runs when every edge that leads to it is decided and at least one was taken; it is skipped when none was.
//! - An edge with a `limit` leads back: it closes a loop. It is looked at first, and when it is taken, what lies between
//!   its ends runs again; the other edges of that node wait for the last round.

pub mod actions;
mod draw;
mod expression;
mod inside;
pub mod limits;
mod numbers;
mod parameters;
mod read;
mod rules;
mod schema;
mod shape;
mod shell;
mod template;
mod tools;
mod types;
mod words;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use milepost_document::{Diagnostic, Format, Origin, Reader, Severity};
use serde_json::{Map, Value, json};

pub use crate::run::Budget;
pub use draw::draw;
pub use expression::Expression;
pub use inside::check_files;
pub(crate) use inside::{in_order, inner_text};
pub use milepost_document::parse_duration_ms;
pub use schema::schema;
pub use template::{Quote, render};
pub(crate) use template::{is_template, paths as template_paths};

/// A graph in which nothing is wrong.
#[derive(Debug, Clone)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The task, as a plan names it.
    pub query: Option<String>,
    /// How many nodes may run at the same time.
    pub parallel: usize,
    /// What the session may cost.
    pub budget: Option<Budget>,
    /// The shared memory when the run begins.
    pub memory: Map<String, Value>,
    /// The nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// The edges, in the order of the file.
    pub edges: Vec<Edge>,
    /// What the run gives at its end.
    pub outputs: Vec<(String, Expression)>,
    /// The numbers of the nodes with which the run begins, when the file says so; those that no edge leads to otherwise.
    pub start: Option<Vec<usize>>,
    /// Whether it was written as a plan.
    pub is_plan: bool,
    /// The file that it was read from.
    pub path: String,
    /// The file's text, so that a run can go on without it.
    pub text: Arc<str>,
    /// The numbers of the nodes by their names.
    numbers: HashMap<String, usize>,
    /// The numbers of the edges that leave each node.
    leaving: Vec<Vec<usize>>,
    /// Ways with a mistake in them, which was told. There are none in a graph that runs.
    loose: Vec<Loose>,
}

/// An edge, a dependency or a start with a name that is not there. An end is known, or is the one that was probably meant, or
/// could be any: what is wrong whatever was meant is a further mistake, what may be mended with it no more than a doubt.
#[derive(Debug, Clone)]
struct Loose {
    from: Option<usize>,
    to: Option<usize>,
    when: Option<Expression>,
    closes_loop: bool,
    fault: Fault,
    origin: Origin,
}

/// What is wrong with a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It names a node that is not there.
    Name,
    /// It cannot be read at all, and may be any number of ways.
    Unreadable,
    /// It is no way but a start: it leads from nowhere.
    Start,
}

impl Loose {
    /// Whether it names a node that nobody knows.
    fn is_unknown(&self) -> bool {
        self.fault == Fault::Name && (self.from.is_none() || self.to.is_none())
    }
}

/// A node: one action, and how to go about it.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name.
    pub id: String,
    /// What it is for.
    pub description: String,
    /// What it does: an action of [`actions::ACTIONS`], or one of the embedder's.
    pub action: String,
    /// The action's parameters, templates not filled in.
    pub parameters: Value,
    /// The same, with their places.
    pub(crate) written: Option<Arc<milepost_document::Node>>,
    /// The name under which others find what it gives, in `outputs`.
    pub output: String,
    /// What it puts into the shared memory when it is done.
    pub remember: Vec<(String, Expression)>,
    /// How often it is tried.
    pub retry: Retry,
    /// How long an attempt may take, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// How long an attempt may go on without a sign of life, in milliseconds.
    pub no_progress_ms: Option<u64>,
    /// Whether it may run again when nobody knows whether it ran; the action's own answer when it does not say.
    pub idempotent: Option<bool>,
    /// What becomes of the run when it fails for good.
    pub on_error: OnError,
    /// Whether a checkpoint that is safe to go back to follows it.
    pub safe_point: bool,
    /// Where it stands in its file.
    pub origin: Origin,
}

/// What becomes of a run when a node fails for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// It pauses, with the reason.
    #[default]
    Pause,
    /// It goes on; the edges of the node see `failed` and `error`.
    GoOn,
}

/// How often an action is tried, and how long to wait in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// All attempts, the first included.
    pub attempts: u32,
    /// The wait after the first attempt, in milliseconds. It doubles.
    pub backoff_ms: u64,
    /// The longest wait, in milliseconds.
    pub max_backoff_ms: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 3, backoff_ms: 1000, max_backoff_ms: 60_000 }
    }
}

/// An edge from one node to another.
#[derive(Debug, Clone)]
pub struct Edge {
    /// The number of the node that it leaves.
    pub from: usize,
    /// The number of the node that it leads to.
    pub to: usize,
    /// When it is taken; always when there is none.
    pub when: Option<Expression>,
    /// How often it may be taken, when it closes a loop.
    pub limit: Option<u32>,
    /// What happens when its condition still holds then.
    pub on_limit: OnLimit,
    /// Where it stands in its file.
    pub origin: Origin,
}

/// What happens when a loop has run as often as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnLimit {
    /// The run pauses, with the reason.
    #[default]
    Pause,
    /// The loop is left as if its condition did not hold.
    GoOn,
}

/// What was found in a file.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The graph, when there is no error.
    pub graph: Option<Graph>,
    /// Errors and warnings, in the order of the file.
    pub found: Vec<Diagnostic>,
}

impl Checked {
    /// The errors.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.found.iter().filter(|one| one.severity == Severity::Error)
    }
}

/// Reads a graph or a plan and finds everything that is wrong with it. `path` names the text and, by its end, its
/// language; `own_actions` are the embedder's.
pub fn check(path: &Path, text: &str, own_actions: &[&str]) -> Checked {
    check_by(path, text, own_actions, Rules::Todays)
}

/// Reads a graph that a run was begun with: rules that are newer than the run do not stop it.
pub(crate) fn reread(path: &Path, text: &str, own_actions: &[&str]) -> Option<Graph> {
    check_by(path, text, own_actions, Rules::OfOld).graph
}

/// By which rules a graph is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    /// By all.
    Todays,
    /// By those that there have always been.
    OfOld,
}

pub(crate) fn check_by(path: &Path, text: &str, own_actions: &[&str], rules: Rules) -> Checked {
    let mut reader = Reader::default();
    let tree = milepost_document::read(path, text, Format::of(path), &limits::DOCUMENT, &mut reader.found);
    let graph = tree.and_then(|tree| {
        let mut graph = read::read(&tree, path, own_actions, &mut reader)?;
        graph.text = text.into();
        whole(&graph, path, own_actions, &mut reader, (rules, 0));
        Some(graph)
    });
    let place = |one: &Diagnostic| match &one.origin {
        Origin::File { line, column, .. } => (*line, *column),
        _ => (0, 0),
    };
    let mut found = reader.found;
    found.sort_by_key(place);
    found.dedup();
    found.truncate(limits::MAX_FOUND);
    let is_whole = found.iter().all(|one| one.severity != Severity::Error);
    Checked { graph: graph.filter(|_| is_whole), found }
}

/// What a graph's file says, as JSON; none when it cannot be read.
pub(crate) fn to_json(path: &Path, text: &str) -> Option<Value> {
    milepost_document::read(path, text, Format::of(path), &limits::DOCUMENT, &mut Vec::new()).map(|tree| tree.to_json())
}

/// Checks what hangs together, also in the graphs inside.
fn whole(graph: &Graph, path: &Path, own_actions: &[&str], reader: &mut Reader, (rules, depth): (Rules, usize)) {
    shape::check(graph, reader);
    words::check(graph, reader);
    if rules == Rules::Todays {
        rules::check(graph, reader);
    }
    for node in &graph.nodes {
        let Some(inner) = node.inner_tree() else { continue };
        if depth >= limits::MAX_GRAPHS_DEEP {
            let why =
                format!("graphs lie inside of each other deeper than MAX_GRAPHS_DEEP, {}", limits::MAX_GRAPHS_DEEP);
            reader.wrong(&inner.origin, &node.id, why, "put the inner one into a file of its own");
        } else if let Some(inner) = read::read(inner, path, own_actions, reader) {
            whole(&inner, path, own_actions, reader, (rules, depth + 1));
        }
    }
}

impl Node {
    fn inner_tree(&self) -> Option<&milepost_document::Node> {
        self.written.as_ref().filter(|_| self.action == "graph")?.get("graph")
    }
}

impl Graph {
    /// The number of a node.
    pub fn find(&self, id: &str) -> Option<usize> {
        self.numbers.get(id).copied()
    }

    fn add(&mut self, edge: Edge) {
        self.leaving[edge.from].push(self.edges.len());
        self.edges.push(edge);
    }

    /// The edges that lead to a node without closing a loop.
    pub fn incoming(&self, node: usize) -> impl Iterator<Item = (usize, &Edge)> {
        self.edges.iter().enumerate().filter(move |(_, edge)| edge.to == node && edge.limit.is_none())
    }

    /// The nodes with which the run begins.
    pub fn starts(&self) -> Vec<usize> {
        let implied = || (0..self.nodes.len()).filter(|node| self.incoming(*node).next().is_none()).collect();
        self.start.clone().unwrap_or_else(implied)
    }

    /// The edges that leave a node.
    pub fn outgoing(&self, node: usize) -> impl Iterator<Item = (usize, &Edge)> {
        self.leaving[node].iter().map(|number| (*number, &self.edges[*number]))
    }

    /// Which nodes can be reached from one without closing a loop, itself included.
    pub fn after(&self, node: usize) -> Vec<bool> {
        shape::reach(self, node, shape::Direction::Forward)
    }

    /// The nodes between the ends of a loop's edge, the ends included.
    pub fn body(&self, edge: &Edge) -> Vec<usize> {
        let forward = shape::reach(self, edge.to, shape::Direction::Forward);
        let backward = shape::reach(self, edge.from, shape::Direction::Backward);
        (0..self.nodes.len()).filter(|node| forward[*node] && backward[*node]).collect()
    }

    /// What of a node has to stay the same for a step that was recorded to be its own.
    pub fn node_fingerprint(&self, node: &Node) -> String {
        let remember: Map<String, Value> =
            node.remember.iter().map(|(key, value)| (key.clone(), value.text().into())).collect();
        let all = json!({
            "id": node.id, "action": node.action, "parameters": node.parameters, "output": node.output,
            "remember": remember,
        });
        milepost_model::Hash(milepost_model::hash_value(&all)).to_string()
    }

    /// What of the graph has to stay the same for nothing about it to have changed.
    pub fn fingerprint(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| self.node_fingerprint(node)).collect();
        let edges: Vec<Value> = self
            .edges
            .iter()
            .map(|edge| json!([edge.from, edge.to, edge.when.as_ref().map(Expression::text), edge.limit]))
            .collect();
        milepost_model::Hash(milepost_model::hash_value(
            &json!({"nodes": nodes, "edges": edges, "memory": self.memory}),
        ))
        .to_string()
    }
}
