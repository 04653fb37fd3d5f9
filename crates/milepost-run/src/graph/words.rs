//! Names and types in conditions, expressions and templates.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost_document::{Data, Node as Tree, Reader};

use super::actions::{self, Given};
use super::expression::Expression;
use super::shape::{Direction, reach};
use super::types::Type;
use super::{Graph, Node, OnError, template};

type Names = BTreeMap<String, Type>;

/// What a run knows of itself.
const ALWAYS: [(&str, Type); 5] = [
    ("node", Type::Text),
    ("session", Type::Text),
    ("key", Type::Text),
    ("attempt", Type::Number),
    ("iteration", Type::Number),
];

pub(super) fn check(graph: &Graph, reader: &mut Reader) {
    let names = names(graph);
    for (number, node) in graph.nodes.iter().enumerate() {
        if let Some(written) = &node.written {
            let mut walk = Walk { graph, node: number, names: &names, reader };
            match (node.action.as_str(), &written.data) {
                ("agent" | "checks", Data::Map(items)) => {
                    let mut inner = names.clone();
                    inner.insert("input".to_owned(), Type::Any);
                    for (key, _, item) in items {
                        walk.names = if key == "tools" { &inner } else { &names };
                        walk.value(item, key);
                    }
                }
                // What stands in a graph inside sees what is inside.
                ("graph", Data::Map(items)) => {
                    items.iter().filter(|(key, ..)| key != "graph").for_each(|(key, _, item)| walk.value(item, key));
                }
                _ => walk.value(written, "parameters"),
            }
        }
        let mut own = names.clone();
        own.insert("output".to_owned(), gives(node));
        for (key, value) in &node.remember {
            expression(value, &own, key, None, reader);
        }
    }
    for edge in &graph.edges {
        let Some(when) = &edge.when else { continue };
        condition(when, gives(&graph.nodes[edge.from]), &names, reader);
        for (path, giver) in late(graph, edge.from, true, &when.paths()) {
            let column = when.text().find(&path).unwrap_or(0);
            let instead = format!("add an edge from {giver}, or ask has({path}) first");
            reader.doubt(&when.at(0, column), "when", unsure(giver), instead);
        }
    }
    for way in &graph.loose {
        let given = way.from.map_or(Type::Any, |from| gives(&graph.nodes[from]));
        way.when.iter().for_each(|when| condition(when, given.clone(), &names, reader));
    }
    let mut last = names;
    last.retain(|name, _| name == "memory" || name == "outputs" || name == "session");
    for (key, value) in &graph.outputs {
        expression(value, &last, key, None, reader);
    }
}

/// The condition of an edge, and what the node that it leaves gives.
fn condition(when: &Expression, given: Type, names: &Names, reader: &mut Reader) {
    let mut own = names.clone();
    own.insert("output".to_owned(), given);
    own.insert("failed".to_owned(), Type::Bool);
    own.insert("error".to_owned(), Type::Any);
    expression(when, &own, "when", Some(&Type::Bool), reader);
}

/// What is known everywhere.
fn names(graph: &Graph) -> Names {
    let outputs: BTreeMap<String, Type> = graph.nodes.iter().map(|node| (node.output.clone(), gives(node))).collect();
    let mut memory: BTreeMap<String, Type> =
        graph.memory.iter().map(|(key, value)| (key.clone(), Type::of(value))).collect();
    let mut names: Names = ALWAYS.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    names.insert("outputs".to_owned(), Type::Keys(Arc::new(outputs)));
    // What is written during the run may be of another type than at its beginning.
    let mut written: Vec<(String, Type)> = Vec::new();
    for node in &graph.nodes {
        for (key, value) in &node.remember {
            let mut own = names.clone();
            own.insert("output".to_owned(), gives(node));
            own.insert("memory".to_owned(), Type::Map);
            written.push((key.clone(), value.check(&own).0));
        }
        if node.action == "set" {
            let items = node.parameters.as_object().into_iter().flatten();
            written.extend(items.map(|(key, value)| {
                let is_computed = value.as_object().is_some_and(|map| map.len() == 1 && map.contains_key("cel"));
                (key.clone(), if is_computed { Type::Any } else { Type::of(value) })
            }));
        }
    }
    for (key, of) in written {
        let known = memory.remove(&key);
        memory.insert(key, known.map_or(Type::Any, |known| known.or(of)));
    }
    names.insert("memory".to_owned(), Type::Keys(Arc::new(memory)));
    names
}

/// What is known of what a node gives.
fn gives(node: &Node) -> Type {
    let Some(action) = actions::find(&node.action) else { return Type::Any };
    if action.gives.is_empty() || node.on_error == OnError::GoOn {
        return Type::Any;
    }
    let field = |given: &Given| match given {
        Given::Any => Type::Any,
        Given::Text => Type::Text,
        Given::Number => Type::Number,
        Given::Flag => Type::Bool,
        Given::Map => Type::Map,
    };
    Type::Keys(Arc::new(action.gives.iter().map(|(name, given)| ((*name).to_owned(), field(given))).collect()))
}

fn expression(value: &Expression, names: &Names, key: &str, wanted: Option<&Type>, reader: &mut Reader) {
    let (given, found) = value.check(names);
    for mistake in &found {
        reader.wrong(&value.at(mistake.line, mistake.column), key, mistake.why.clone(), mistake.instead.clone());
    }
    if wanted == Some(&Type::Bool) && found.is_empty() && !matches!(given, Type::Any | Type::Bool) {
        let why = format!("a condition gives true or false, this one gives {}", given.word());
        reader.wrong(&value.at(0, 0), key, why, "compare it with something");
    }
}

/// Outputs of nodes that are not sure to have run before a node: the path, and who gives it.
fn late<'g>(graph: &'g Graph, node: usize, own: bool, paths: &[Vec<String>]) -> Vec<(String, &'g str)> {
    let mut found = Vec::new();
    for path in paths {
        let [first, output, ..] = path.as_slice() else { continue };
        let giver = graph.nodes.iter().position(|node| node.output == *output);
        let Some(giver) = giver.filter(|_| first == "outputs") else { continue };
        let is_before = reach(graph, node, Direction::Backward)[giver] && (own || giver != node);
        let in_loop = graph.edges.iter().filter(|edge| edge.limit.is_some()).any(|edge| {
            let body = graph.body(edge);
            body.contains(&giver) && body.contains(&node)
        });
        if !is_before && !in_loop {
            found.push((format!("outputs.{output}"), graph.nodes[giver].id.as_str()));
        }
    }
    found
}

fn unsure(giver: &str) -> String {
    format!("{giver} is not sure to have run before")
}

/// Goes through a node's parameters.
struct Walk<'a> {
    graph: &'a Graph,
    node: usize,
    names: &'a Names,
    reader: &'a mut Reader,
}

impl Walk<'_> {
    fn value(&mut self, tree: &Tree, key: &str) {
        match &tree.data {
            Data::Nothing => {}
            Data::Text { text, .. } => self.text(tree, text, key),
            Data::List(items) => items.iter().for_each(|item| self.value(item, key)),
            Data::Map(items) => match items.as_slice() {
                [(word, _, value)] if word == "cel" => self.computed(value, key),
                many => many.iter().for_each(|(key, _, item)| self.value(item, key)),
            },
        }
    }

    fn text(&mut self, tree: &Tree, text: &str, key: &str) {
        for mistake in template::check(text, self.names) {
            self.reader.wrong(&tree.place(mistake.line, mistake.column), key, mistake.why, mistake.instead);
        }
        for (path, giver) in late(self.graph, self.node, false, &template::paths(text)) {
            let (line, column) = template::place_of(text, &path);
            let instead = format!("add an edge from {giver}, or test {path} for none");
            self.reader.doubt(&tree.place(line, column), key, unsure(giver), instead);
        }
    }

    fn computed(&mut self, tree: &Tree, key: &str) {
        if tree.text().is_none() {
            let why = format!("{} stands here", tree.kind());
            self.reader.wrong(&tree.origin, key, why, "write a CEL expression, such as memory.count + 1");
            return;
        }
        match Expression::compile(tree) {
            Ok(value) => expression(&value, self.names, key, None, self.reader),
            Err(mistake) => {
                self.reader.wrong(&tree.place(mistake.line, mistake.column), key, mistake.why, mistake.instead);
            }
        }
    }
}
