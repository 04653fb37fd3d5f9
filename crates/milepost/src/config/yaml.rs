//! A YAML text as a tree in which every value knows its line and column.
//!
//! Plain values stay texts: what they mean is decided by the setting that they are for, so that `workspace: no` is a
//! workspace called "no". Size, depth and the copies that aliases make are limited.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::limits::{MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH, MAX_CONFIG_VALUES};
use super::origin::{Diagnostic, Origin};

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub origin: Origin,
    pub data: Data,
}

/// What a value is, before it is known what it is for.
#[derive(Debug, Clone)]
pub(super) enum Data {
    /// Nothing, `~` or `null`: the default.
    Nothing,
    Text {
        text: String,
        quoted: bool,
    },
    List(Vec<Node>),
    /// In the order of the file; a key stands there once.
    Map(Vec<(String, Origin, Node)>),
}

impl Node {
    /// The node of a text that is not from a file.
    pub fn plain(text: &str, origin: Origin) -> Self {
        Self { origin, data: scalar(text, false) }
    }

    /// The node of a JSON value, which stands nowhere in a file.
    pub fn from_json(value: &serde_json::Value, origin: &Origin) -> Self {
        use serde_json::Value;
        let data = match value {
            Value::Null => Data::Nothing,
            Value::Bool(_) | Value::Number(_) => Data::Text { text: value.to_string(), quoted: false },
            Value::String(text) => Data::Text { text: text.clone(), quoted: true },
            Value::Array(items) => Data::List(items.iter().map(|item| Self::from_json(item, origin)).collect()),
            Value::Object(map) => Data::Map(
                map.iter().map(|(key, item)| (key.clone(), origin.clone(), Self::from_json(item, origin))).collect(),
            ),
        };
        Self { origin: origin.clone(), data }
    }

    /// A word for what is there.
    pub fn kind(&self) -> &'static str {
        match &self.data {
            Data::Nothing => "nothing",
            Data::Text { quoted: true, .. } => "a quoted text",
            Data::Text { .. } => "a text",
            Data::List(_) => "a list",
            Data::Map(_) => "a section",
        }
    }

    /// How many values these are. A long text counts for several, so that copies of it are limited too.
    fn size(&self) -> usize {
        1 + match &self.data {
            Data::Nothing => 0,
            Data::Text { text, .. } => text.len() / 256,
            Data::List(items) => items.iter().map(Node::size).sum(),
            Data::Map(items) => items.iter().map(|(_, _, node)| node.size()).sum(),
        }
    }

    fn depth(&self) -> usize {
        1 + match &self.data {
            Data::Nothing | Data::Text { .. } => 0,
            Data::List(items) => items.iter().map(Node::depth).max().unwrap_or(0),
            Data::Map(items) => items.iter().map(|(_, _, node)| node.depth()).max().unwrap_or(0),
        }
    }
}

fn scalar(text: &str, quoted: bool) -> Data {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if !quoted => Data::Nothing,
        _ => Data::Text { text: text.to_owned(), quoted },
    }
}

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
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    values: usize,
    root: Option<Node>,
    found: &'a mut Vec<Diagnostic>,
}

/// Reads a text. What is wrong is added to `found`; when the text is not YAML or passes a limit there is no tree.
pub(super) fn parse(path: &Path, text: &str, found: &mut Vec<Diagnostic>) -> Option<Node> {
    let path: Arc<Path> = path.into();
    let whole = Origin::File { path: Arc::clone(&path), line: 0, column: 0 };
    if text.len() > MAX_CONFIG_BYTES {
        let why = format!("it has {} bytes, the limit MAX_CONFIG_BYTES is {MAX_CONFIG_BYTES}", text.len());
        found.push(Diagnostic::error(&whole, "", why, "keep long texts in files of their own, and name those"));
        return None;
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder { path, open: Vec::new(), anchors: HashMap::new(), values: 0, root: None, found };
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

    /// Takes an event; none when reading cannot go on.
    fn take(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_tag(tag.as_deref(), &span);
                let quoted = style != ScalarStyle::Plain;
                let node = Node { origin: self.at(&span.start), data: scalar(&text, quoted) };
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
                if self.open.len() + node.depth() > MAX_CONFIG_DEPTH {
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
        if self.open.len() >= MAX_CONFIG_DEPTH {
            self.too_deep(span);
            return None;
        }
        self.count(1, span)?;
        self.open.push(Open { origin: self.at(&span.start), anchor, data, key: None, seen: BTreeMap::new() });
        Some(())
    }

    fn too_deep(&mut self, span: &Span) {
        let why = format!("the values lie deeper than the limit MAX_CONFIG_DEPTH, {MAX_CONFIG_DEPTH}");
        self.fail(&span.start, why, "no setting lies that deep: remove it");
    }

    fn count(&mut self, values: usize, span: &Span) -> Option<()> {
        self.values += values;
        if self.values > MAX_CONFIG_VALUES {
            let why = format!(
                "with what aliases copy, there are more values than the limit MAX_CONFIG_VALUES, {MAX_CONFIG_VALUES}"
            );
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
