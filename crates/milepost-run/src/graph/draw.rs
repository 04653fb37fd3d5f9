//! A graph as a picture, in Mermaid's language.

use std::fmt::Write;

use super::{Edge, Expression, Graph};

/// Words that mean something to Mermaid.
const RESERVED: &[&str] = &[
    "end",
    "graph",
    "flowchart",
    "subgraph",
    "style",
    "class",
    "classDef",
    "click",
    "linkStyle",
    "default",
    "direction",
    "call",
    "href",
    "o",
    "x",
];

/// The graph as a Mermaid flowchart. Loops are drawn with dotted arrows, people's nodes as hexagons, timers as circles.
pub fn draw(graph: &Graph) -> String {
    let mut out = String::from("flowchart TD\n");
    for node in &graph.nodes {
        let label = match node.description.is_empty() {
            true => format!("{}<br/>{}", escape(&node.id), escape(&node.action)),
            false => {
                format!("{}<br/>{}<br/>{}", escape(&node.id), escape(&node.action), escape(&short(&node.description)))
            }
        };
        let (open, close) = match node.action.as_str() {
            "ask" | "approve" => ("{{\"", "\"}}"),
            "wait" => ("((\"", "\"))"),
            "graph" => ("[[\"", "\"]]"),
            _ => ("[\"", "\"]"),
        };
        let _ = writeln!(out, "  {}{open}{label}{close}", name(&node.id));
    }
    for edge in &graph.edges {
        let (from, to) = (name(&graph.nodes[edge.from].id), name(&graph.nodes[edge.to].id));
        let arrow = if edge.limit.is_some() { "-.->" } else { "-->" };
        let _ = match label(edge) {
            Some(label) => writeln!(out, "  {from} {arrow}|\"{}\"| {to}", escape(&label)),
            None => writeln!(out, "  {from} {arrow} {to}"),
        };
    }
    out
}

fn name(id: &str) -> String {
    if RESERVED.contains(&id) { format!("{id}_") } else { id.to_owned() }
}

fn label(edge: &Edge) -> Option<String> {
    let when = edge.when.as_ref().map(Expression::text).map(short);
    let limit = edge.limit.map(|limit| format!("at most {limit} times"));
    match (when, limit) {
        (Some(when), Some(limit)) => Some(format!("{when}, {limit}")),
        (one, other) => one.or(other),
    }
}

fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", line.get(..at).unwrap_or_default()),
        None => line,
    }
}

/// A text inside of Mermaid's quotes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("#quot;"),
            '#' => out.push_str("#35;"),
            '<' => out.push_str("#lt;"),
            '>' => out.push_str("#gt;"),
            '&' => out.push_str("#amp;"),
            '`' => out.push_str("#96;"),
            '\\' => out.push_str("#92;"),
            '|' => out.push_str("#124;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
