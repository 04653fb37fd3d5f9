//! The first stage: settings as they were typed. A tree is compared with the schema; every value that fits is kept
//! under its canonical path with its origin, everything else is reported, all of it.

use std::collections::BTreeMap;

use milepost_document::{Data, Diagnostic, Node, Origin};
use milepost_model::Trigger;
use serde_json::Value;

use super::limits::{MAX_ITEMS, MAX_NAME_BYTES, MAX_PATTERN_BYTES, MAX_TEXT_BYTES};
use super::schema::{self, Field, Shape};
use super::suggest;

/// The largest amount of money.
const MAX_AMOUNT: f64 = 1_000_000.0;

/// Settings as typed: canonical path, value, origin.
#[derive(Debug, Clone, Default)]
pub(super) struct Typed(pub BTreeMap<Vec<String>, (Value, Origin)>);

impl Typed {
    /// Takes over what a later layer says.
    pub fn overlay(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// The value at a path.
    pub fn get(&self, path: &str) -> Option<&(Value, Origin)> {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        self.0.get(&path)
    }

    /// Where the value at a path came from.
    pub fn origin(&self, path: &str) -> Origin {
        self.get(path).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// What lies below a path, as one JSON value.
    pub fn tree(&self, below: &[&str]) -> Value {
        let mut root = Value::Object(serde_json::Map::new());
        for (path, (value, _)) in &self.0 {
            let starts = path.len() > below.len() && path.iter().zip(below).all(|(a, b)| a == b);
            if starts {
                insert(&mut root, &path[below.len()..], value.clone());
            }
        }
        root
    }
}

fn insert(root: &mut Value, path: &[String], value: Value) {
    let mut at = root;
    for part in path {
        let Value::Object(map) = at else { return };
        at = map.entry(part.clone()).or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    *at = value;
}

/// Reads a tree against a shape.
pub(super) struct Reader<'a> {
    pub typed: Typed,
    pub found: &'a mut Vec<Diagnostic>,
    /// Triggers with names that are not known are a program's own.
    own_triggers: bool,
}

impl<'a> Reader<'a> {
    pub fn new(found: &'a mut Vec<Diagnostic>) -> Self {
        Self { typed: Typed::default(), found, own_triggers: false }
    }

    /// Takes triggers that are a program's own.
    pub fn with_own_triggers(mut self) -> Self {
        self.own_triggers = true;
        self
    }

    fn error(&mut self, origin: &Origin, path: &[String], why: impl Into<String>, instead: impl Into<String>) {
        self.found.push(Diagnostic::error(origin, suggest::show(path), why, instead));
    }

    /// Reads one node. `path` is where it stands, `to` where it belongs when that is elsewhere.
    pub fn read(&mut self, node: &Node, shape: &'static Shape, path: &[String], to: Option<&'static str>) {
        match (shape, &node.data) {
            (_, Data::Nothing) => {}
            (Shape::Section(fields), Data::Map(items)) => self.section(items, fields, path),
            (Shape::Named(shape), Data::Map(items)) => self.named(items, shape, path),
            (Shape::Section(_) | Shape::Named(_), _) => {
                let why = format!("it is a section, but {} stands here", node.kind());
                self.error(&node.origin, path, why, "write its settings below it, indented");
            }
            _ => {
                if let Some(value) = self.leaf(node, shape, path) {
                    self.keep(node, path, to, value);
                }
            }
        }
    }

    fn keep(&mut self, node: &Node, path: &[String], to: Option<&'static str>, value: Value) {
        let canonical = match to {
            Some(to) => to.split('.').map(str::to_owned).collect(),
            None => path.to_vec(),
        };
        if let Some((_, first)) = self.typed.0.get(&canonical) {
            let why = format!("{} was set before, at {first}", suggest::show(&canonical));
            self.error(&node.origin, path, why, "keep one of them");
        } else {
            self.typed.0.insert(canonical, (value, node.origin.clone()));
        }
    }

    fn section(&mut self, items: &[(String, Origin, Node)], fields: &'static [&'static [Field]], path: &[String]) {
        for (key, origin, node) in items {
            match schema::lookup(fields, &schema::snake(key)) {
                Some(field) => {
                    let below = [path, &[field.name.to_owned()]].concat();
                    self.read(node, &field.shape, &below, field.to);
                }
                None => {
                    let key: String = key.chars().take(80).collect();
                    let instead = match key.as_str() {
                        "<<" => "merge keys are not part of YAML 1.2: write the values out".to_owned(),
                        _ => suggest::for_key(&key, path, fields),
                    };
                    self.error(origin, path, format!("there is no setting {key:?}"), instead);
                }
            }
        }
    }

    fn named(&mut self, items: &[(String, Origin, Node)], shape: &'static Shape, path: &[String]) {
        if items.len() > MAX_ITEMS {
            let why = format!("it has {} entries, the limit MAX_ITEMS is {MAX_ITEMS}", items.len());
            if let Some((_, origin, _)) = items.first() {
                self.error(origin, path, why, "keep fewer");
            }
            return;
        }
        for (key, origin, node) in items {
            if key.is_empty() || key.len() > MAX_NAME_BYTES || key.chars().any(char::is_control) {
                let why = format!("a name has 1 to {MAX_NAME_BYTES} bytes (MAX_NAME_BYTES) and no control characters");
                self.error(origin, path, why, "use another name");
                continue;
            }
            if !self.own_triggers
                && path.last().is_some_and(|last| last == "triggers")
                && let Trigger::Other(name) = Trigger::from(key.clone())
            {
                let known: Vec<&str> = Trigger::KNOWN.iter().map(Trigger::as_str).collect();
                let instead = match suggest::nearest(&name, known.iter().copied()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("use one of {}", known.join(", ")),
                };
                self.error(origin, path, format!("there is no trigger {name:?}"), instead);
                continue;
            }
            let below = [path, std::slice::from_ref(key)].concat();
            self.read(node, shape, &below, None);
        }
    }

    fn leaf(&mut self, node: &Node, shape: &'static Shape, path: &[String]) -> Option<Value> {
        if let Shape::Texts | Shape::Patterns = shape {
            return self.list(node, shape, path);
        }
        let Data::Text { text, quoted, .. } = &node.data else {
            let why = format!("{} stands here", node.kind());
            self.error(&node.origin, path, why, format!("write {}", wanted(shape)));
            return None;
        };
        match shape {
            Shape::Flag => match text.as_str() {
                "true" | "True" | "TRUE" if !quoted => Some(Value::Bool(true)),
                "false" | "False" | "FALSE" if !quoted => Some(Value::Bool(false)),
                _ => self.wrong(node, shape, path, text),
            },
            Shape::Number { min, max } => match text.parse::<u64>() {
                Ok(number) if !quoted && (*min..=*max).contains(&number) => Some(Value::from(number)),
                Ok(number) if !quoted => {
                    let why = format!("{number} is out of range");
                    self.error(&node.origin, path, why, format!("write {}", wanted(shape)));
                    None
                }
                _ => self.wrong(node, shape, path, text),
            },
            Shape::Amount => match text.parse::<f64>() {
                Ok(amount) if !quoted && (0.0..=MAX_AMOUNT).contains(&amount) => Some(Value::from(amount)),
                _ => self.wrong(node, shape, path, text),
            },
            Shape::Choice(words) => match words.contains(&text.as_str()) {
                true => Some(Value::from(text.as_str())),
                false => {
                    let instead = match suggest::nearest(text, words.iter().copied()) {
                        Some(word) => format!("did you mean {word}? It is one of {}", words.join(", ")),
                        None => format!("write one of {}", words.join(", ")),
                    };
                    let text: String = text.chars().take(40).collect();
                    self.error(&node.origin, path, format!("{text:?} is not known"), instead);
                    None
                }
            },
            _ => self.text(node, text, path),
        }
    }

    fn text(&mut self, node: &Node, text: &str, path: &[String]) -> Option<Value> {
        if text.len() > MAX_TEXT_BYTES {
            let why = format!("it has {} bytes, the limit MAX_TEXT_BYTES is {MAX_TEXT_BYTES}", text.len());
            self.error(&node.origin, path, why, "shorten it");
            return None;
        }
        if text.trim().is_empty() || text.contains('\0') {
            self.error(
                &node.origin,
                path,
                "the text is empty or has a NUL character",
                "write a text, or remove the setting",
            );
            return None;
        }
        Some(Value::from(text))
    }

    fn list(&mut self, node: &Node, shape: &'static Shape, path: &[String]) -> Option<Value> {
        let one = std::slice::from_ref(node);
        let items = match &node.data {
            Data::List(items) => items.as_slice(),
            Data::Text { .. } => one,
            Data::Nothing | Data::Map(_) => {
                self.error(&node.origin, path, "a section stands here", format!("write {}", wanted(shape)));
                return None;
            }
        };
        if items.len() > MAX_ITEMS {
            let why = format!("the list has {} items, the limit MAX_ITEMS is {MAX_ITEMS}", items.len());
            self.error(&node.origin, path, why, "shorten it");
            return None;
        }
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            let Data::Text { text, .. } = &item.data else {
                let why = format!("{} stands in a list of texts", item.kind());
                self.error(&item.origin, path, why, "write a text, in quotes where it has a special character");
                return None;
            };
            if let Shape::Patterns = shape {
                self.pattern(item, text, path)?;
            }
            out.push(self.text(item, text, path)?);
        }
        Some(Value::Array(out))
    }

    fn pattern(&mut self, node: &Node, text: &str, path: &[String]) -> Option<()> {
        if text.len() > MAX_PATTERN_BYTES {
            let why =
                format!("the pattern has {} bytes, the limit MAX_PATTERN_BYTES is {MAX_PATTERN_BYTES}", text.len());
            self.error(&node.origin, path, why, "split it into several");
            return None;
        }
        let Err(error) = regex_syntax::Parser::new().parse(text) else { return Some(()) };
        let told = error.to_string();
        let last = told.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        self.error(
            &node.origin,
            path,
            format!("the pattern is not a regular expression: {last}"),
            "escape special characters with \\",
        );
        None
    }

    /// A value that is not of the wanted kind. It is named, except where it might be a secret.
    fn wrong(&mut self, node: &Node, shape: &'static Shape, path: &[String], text: &str) -> Option<Value> {
        let text: String = text.chars().take(40).collect();
        let hint = match text.to_ascii_lowercase().as_str() {
            "yes" | "on" => " (true)",
            "no" | "off" => " (false)",
            _ if matches!(node.data, Data::Text { quoted: true, .. }) => ", without quotes",
            _ => "",
        };
        let instead = format!("write {}{hint}", wanted(shape));
        self.error(&node.origin, path, format!("{text:?} does not fit"), instead);
        None
    }
}

fn wanted(shape: &Shape) -> String {
    match shape {
        Shape::Flag => "true or false".to_owned(),
        Shape::Number { min, max } => format!("a whole number from {min} to {max}"),
        Shape::Amount => format!("dollars from 0 to {MAX_AMOUNT}, such as 2.5"),
        Shape::Text => "a text".to_owned(),
        Shape::Url => "a URL".to_owned(),
        Shape::Path => "a path".to_owned(),
        Shape::Choice(words) => format!("one of {}", words.join(", ")),
        Shape::Texts | Shape::Patterns => "a list of texts".to_owned(),
        Shape::Section(_) | Shape::Named(_) => "a section".to_owned(),
    }
}

/// Reads one setting from a text: of a variable, or of a flag. Lists are separated by commas.
pub(super) fn read_text(
    text: &str,
    field: &'static Field,
    path: &[String],
    origin: &Origin,
    found: &mut Vec<Diagnostic>,
) -> Typed {
    let node = match field.shape {
        Shape::Texts => Node {
            origin: origin.clone(),
            data: Data::List(
                text.split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(|item| Node::plain(item, origin.clone()))
                    .collect(),
            ),
        },
        _ => Node::plain(text, origin.clone()),
    };
    let mut reader = Reader::new(found);
    reader.read(&node, &field.shape, path, field.to);
    reader.typed
}
