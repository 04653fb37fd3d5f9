//! YAML as a tree. Plain values stay texts; the copies that aliases make are counted.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use crate::limits::Limits;
use crate::node::{Data, Inside, Node, scalar};
use crate::origin::{Diagnostic, Origin};

/// A list or a section that is not closed yet.
struct Open {
    origin: Origin,
    anchor: usize,
    data: Data,
    /// The key whose value comes next.
    key: Option<(String, Origin)>,
    seen: BTreeMap<String, Origin>,
}

struct Builder<'a> {
    path: Arc<Path>,
    limits: &'a Limits,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    values: usize,
    root: Option<Node>,
    found: &'a mut Vec<Diagnostic>,
}

/// Reads a text that keeps to the limit of its size.
pub(crate) fn parse(path: Arc<Path>, text: &str, limits: &Limits, found: &mut Vec<Diagnostic>) -> Option<Node> {
    let whole = Origin::File { path: Arc::clone(&path), line: 0, column: 0 };
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder { path, limits, open: Vec::new(), anchors: HashMap::new(), values: 0, root: None, found };
    let mut documents = 0;
    while let Some(event) = parser.next_event() {
        match event {
            Ok((Event::StreamEnd, _)) => break,
            Ok((Event::DocumentStart(_), span)) => {
                documents += 1;
                if documents > 1 {
                    builder.fail(&span.start, "a second document begins here", "keep one document in the file");
                    return None;
                }
            }
            Ok((event, span)) => builder.take(event, span)?,
            Err(error) => {
                let why = format!("this is not YAML: {}", error.info());
                builder.fail(error.marker(), why, "look at the indentation, colons and quotes there");
                return None;
            }
        }
    }
    Some(builder.root.unwrap_or(Node { origin: whole, data: Data::Nothing }))
}

impl Builder<'_> {
    fn at(&self, marker: &Marker) -> Origin {
        Origin::File { path: Arc::clone(&self.path), line: marker.line(), column: marker.col() + 1 }
    }

    fn fail(&mut self, marker: &Marker, why: impl Into<String>, instead: &str) {
        let origin = self.at(marker);
        self.found.push(Diagnostic::error(&origin, "", why, instead));
    }

    /// Where the characters of a text stand, when each stands there as it is.
    fn inside(style: ScalarStyle, span: &Span, text: &str) -> Option<Inside> {
        let (line, column) = (span.start.line(), span.start.col() + 1);
        match style {
            ScalarStyle::Plain if span.start.line() == span.end.line() => Some(Inside { line, column, indent: 1 }),
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted if span.start.line() == span.end.line() => {
                Some(Inside { line, column: column + 1, indent: 1 })
            }
            ScalarStyle::Literal => {
                // The parser gives the place of the first line that is not empty.
                let empty = text.lines().take_while(|content| content.is_empty()).count();
                Some(Inside { line: line.checked_sub(empty)?, column, indent: column })
            }
            _ => None,
        }
    }

    /// Takes an event; none when reading cannot go on.
    fn take(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_tag(tag.as_deref(), &span);
                let quoted = style != ScalarStyle::Plain;
                let inside = Self::inside(style, &span, &text);
                let node = Node { origin: self.at(&span.start), data: scalar(&text, quoted, inside) };
                let size = node.size();
                self.place(anchor, node, size, &span)
            }
            Event::SequenceStart(anchor, tag) => self.begin(anchor, tag.as_deref(), Data::List(Vec::new()), &span),
            Event::MappingStart(anchor, tag) => self.begin(anchor, tag.as_deref(), Data::Map(Vec::new()), &span),
            Event::SequenceEnd | Event::MappingEnd => {
                let open = self.open.pop()?;
                // Its values were counted as they came.
                self.values = self.values.saturating_sub(1);
                self.place(open.anchor, Node { origin: open.origin, data: open.data }, 1, &span)
            }
            Event::Alias(anchor) => {
                let Some(mut node) = self.anchors.get(&anchor).cloned() else {
                    self.fail(&span.start, "this alias stands inside of what it names", "write the value out");
                    return None;
                };
                node.origin = self.at(&span.start);
                if self.open.len() + node.depth() > self.limits.depth.at {
                    self.too_deep(&span);
                    return None;
                }
                let size = node.size();
                self.place(0, node, size, &span)
            }
            _ => Some(()),
        }
    }

    fn check_tag(&mut self, tag: Option<&Tag>, span: &Span) {
        if let Some(tag) = tag.filter(|tag| !tag.is_yaml_core_schema() && tag.handle != "!!") {
            self.fail(&span.start, format!("the tag {tag} means nothing here"), "remove it");
        }
    }

    fn begin(&mut self, anchor: usize, tag: Option<&Tag>, data: Data, span: &Span) -> Option<()> {
        self.check_tag(tag, span);
        if self.open.len() >= self.limits.depth.at {
            self.too_deep(span);
            return None;
        }
        self.count(1, span)?;
        self.open.push(Open { origin: self.at(&span.start), anchor, data, key: None, seen: BTreeMap::new() });
        Some(())
    }

    fn too_deep(&mut self, span: &Span) {
        let why = format!("the values lie deeper than the limit {}", self.limits.depth);
        self.fail(&span.start, why, "nothing that is known lies that deep: remove it");
    }

    fn count(&mut self, values: usize, span: &Span) -> Option<()> {
        self.values += values;
        if self.values > self.limits.values.at {
            let why = format!("with what aliases copy, there are more values than the limit {}", self.limits.values);
            self.fail(&span.start, why, "write fewer values");
            return None;
        }
        Some(())
    }

    fn place(&mut self, anchor: usize, node: Node, size: usize, span: &Span) -> Option<()> {
        self.count(size, span)?;
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(top) = self.open.last_mut() else {
            self.root = Some(node);
            return Some(());
        };
        match &mut top.data {
            Data::List(items) => items.push(node),
            Data::Map(items) => match (top.key.take(), node.data) {
                (Some((key, origin)), data) => {
                    // A key that stands there twice was reported; the first one counts.
                    if top.seen.get(&key) == Some(&origin) {
                        items.push((key, origin, Node { origin: node.origin, data }));
                    }
                }
                (None, Data::Text { text, .. }) => {
                    if let Some(first) = top.seen.get(&text) {
                        let why = format!("the key {text:?} stands here a second time; the first is at {first}");
                        self.found.push(Diagnostic::error(&node.origin, "", why, "keep one of them"));
                    } else {
                        top.seen.insert(text.clone(), node.origin.clone());
                    }
                    top.key = Some((text, node.origin));
                }
                (None, _) => {
                    self.found.push(Diagnostic::error(
                        &node.origin,
                        "",
                        "a key has to be a text",
                        "write a name before the colon",
                    ));
                    return None;
                }
            },
            Data::Nothing | Data::Text { .. } => {}
        }
        Some(())
    }
}
