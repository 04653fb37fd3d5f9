//! Graphs inside of nodes: written there, or in a file beside the graph's own.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use milepost_document::{Node as Tree, Reader};
use serde_json::Value;

use super::limits::{MAX_FOUND, MAX_GRAPH_BYTES, MAX_GRAPH_FILES, MAX_GRAPHS_DEEP};
use super::{Checked, Graph, Node, check, read, reread};

/// The path and text of a file beside a graph's own; or why it cannot be had.
pub(crate) fn read_beside(path: &str, file: &str) -> Result<(PathBuf, String), String> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !Path::new(file).components().all(is_plain) {
        return Err(format!("{file:?} does not lie beside the graph; name a file below its directory"));
    }
    let path = Path::new(path).parent().unwrap_or(Path::new("")).join(file);
    let failed = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let mut found = Vec::new();
    let open = std::fs::File::open(&path).map_err(failed)?;
    open.take(MAX_GRAPH_BYTES as u64 + 1).read_to_end(&mut found).map_err(failed)?;
    let found = String::from_utf8(found).map_err(|_| failed(std::io::Error::other("it is not UTF-8")))?;
    Ok((path, found))
}

/// The text of a graph in the order of the file, when it is the one that is written inside of a node: its checks run in that
/// order. `written` are the node's parameters as its file has them.
pub(crate) fn in_order(graph: &Value, written: Option<&Tree>) -> Option<String> {
    let same = written.and_then(|written| written.get("graph")).filter(|tree| tree.to_json() == *graph);
    same.map(Tree::to_json_text)
}

/// The path and text of the graph inside of a node of the graph at `path`. `written` are the node's parameters as its file
/// has them.
pub(crate) fn inner_text(
    node: &str,
    parameters: &Value,
    written: Option<&Tree>,
    path: &str,
) -> Result<(String, String), String> {
    let Some(file) = parameters.get("file").and_then(Value::as_str) else {
        let graph = parameters.get("graph").cloned().unwrap_or_default();
        // It lies where the file lies that it is written in, and so do the files that it names.
        let path = Path::new(path).with_file_name(format!("{}.json", node.replace('/', ".")));
        let text = in_order(&graph, written).unwrap_or_else(|| graph.to_string());
        return Ok((path.display().to_string(), text));
    };
    let (path, text) = read_beside(path, file)?;
    Ok((path.display().to_string(), text))
}

impl Graph {
    /// The graph inside of a node, as it is now; none when it cannot be read.
    pub(crate) fn inside(&self, node: &Node, own_actions: &[&str]) -> Option<Graph> {
        if node.action != "graph" {
            return None;
        }
        let (path, text) = inner_text(&node.id, &node.parameters, node.written.as_deref(), &self.path).ok()?;
        reread(path.as_ref(), &text, own_actions)
    }

    /// Calls `f` with every node, also of the graphs inside, as far as they can be read; with none for one that cannot.
    pub(crate) fn each_node(&self, own_actions: &[&str], f: &mut dyn FnMut(Option<&Node>)) {
        let mut left = MAX_GRAPH_FILES;
        self.each_below(own_actions, 0, &mut left, f);
    }

    fn each_below(&self, own_actions: &[&str], depth: usize, left: &mut usize, f: &mut dyn FnMut(Option<&Node>)) {
        for node in &self.nodes {
            f(Some(node));
            if node.action != "graph" || depth >= MAX_GRAPHS_DEEP || *left == 0 {
                continue;
            }
            *left -= 1;
            match self.inside(node, own_actions) {
                Some(inner) => inner.each_below(own_actions, depth + 1, left, f),
                None => f(None),
            }
        }
    }
}

/// Checks a graph, and the files that its nodes name: each mistake with the path of the file that it is in.
pub fn check_files(path: &Path, text: &str, own_actions: &[&str]) -> Checked {
    let mut checked = check(path, text, own_actions);
    let Some(graph) = &checked.graph else { return checked };
    let mut files = Files { own_actions, seen: BTreeSet::new(), way: vec![path.to_owned()], found: Reader::default() };
    files.of(graph);
    checked.found.append(&mut files.found.found);
    checked.found.truncate(MAX_FOUND);
    if checked.errors().next().is_some() {
        checked.graph = None;
    }
    checked
}

struct Files<'a> {
    own_actions: &'a [&'a str],
    /// Those that were looked at.
    seen: BTreeSet<PathBuf>,
    /// Those that lead to the one that is looked at.
    way: Vec<PathBuf>,
    found: Reader,
}

impl Files<'_> {
    fn of(&mut self, graph: &Graph) {
        for node in graph.nodes.iter().filter(|node| node.action == "graph") {
            let Some(written) = &node.written else { continue };
            if let Some(inner) = written.get("graph").filter(|_| self.way.len() <= MAX_GRAPHS_DEEP) {
                // What is wrong with it was told.
                let inner = read::read(inner, graph.path.as_ref(), self.own_actions, &mut Reader::default());
                self.way.push(PathBuf::new());
                inner.iter().for_each(|inner| self.of(inner));
                self.way.pop();
            }
            let Some(file) = written.get("file") else { continue };
            let (path, text) = match read_beside(&graph.path, file.text().unwrap_or_default()) {
                Ok(read) => read,
                Err(why) => {
                    self.found.wrong(&file.origin, "file", why, "write the file, or name another");
                    continue;
                }
            };
            let is_inside_itself = self.way.contains(&path);
            if is_inside_itself || self.way.len() > MAX_GRAPHS_DEEP {
                let why = match is_inside_itself {
                    true => format!("{} runs itself, without end", path.display()),
                    false => {
                        format!("graphs lie inside of each other deeper than MAX_GRAPHS_DEEP, {MAX_GRAPHS_DEEP}")
                    }
                };
                self.found.wrong(&file.origin, "file", why, "write a loop with a limit instead");
                continue;
            }
            if self.seen.len() >= MAX_GRAPH_FILES || !self.seen.insert(path.clone()) {
                continue;
            }
            let mut checked = check(&path, &text, self.own_actions);
            self.found.found.append(&mut checked.found);
            if let Some(inner) = checked.graph {
                self.way.push(path);
                self.of(&inner);
                self.way.pop();
            }
        }
    }
}
