//! A document's values, each with its place.

use serde_json::{Map, Number, Value};

use crate::origin::Origin;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it stands.
    pub origin: Origin,
    /// What it is.
    pub data: Data,
}

/// What a value is, before it is known what it is for.
#[derive(Debug, Clone)]
pub enum Data {
    /// Nothing, `~` or `null`: the default.
    Nothing,
    /// A text, a number, a date, true or false.
    Text {
        /// As it was written, without quotes.
        text: String,
        /// Whether it stood in quotes, and is a text whatever it looks like.
        quoted: bool,
        /// Where its characters stand, when that is known.
        inside: Option<Inside>,
    },
    /// A list.
    List(Vec<Node>),
    /// In the order of the file; a key stands there once.
    Map(Vec<(String, Origin, Node)>),
}

/// Where the characters of a text stand in the file. Lines and columns count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inside {
    /// The line of the first character.
    pub line: usize,
    /// Its column.
    pub column: usize,
    /// The column at which every further line of the text begins.
    pub indent: usize,
}

impl Node {
    /// The node of a text that is not from a file.
    pub fn plain(text: &str, origin: Origin) -> Self {
        Self { origin, data: scalar(text, false, None) }
    }

    /// The node of a JSON value, which stands nowhere in a file.
    pub fn from_json(value: &Value, origin: &Origin) -> Self {
        let text = |text: String, quoted| Data::Text { text, quoted, inside: None };
        let data = match value {
            Value::Null => Data::Nothing,
            Value::Bool(_) | Value::Number(_) => text(value.to_string(), false),
            Value::String(own) => text(own.clone(), true),
            Value::Array(items) => Data::List(items.iter().map(|item| Self::from_json(item, origin)).collect()),
            Value::Object(map) => Data::Map(
                map.iter().map(|(key, item)| (key.clone(), origin.clone(), Self::from_json(item, origin))).collect(),
            ),
        };
        Self { origin: origin.clone(), data }
    }

    /// The value as JSON. A text without quotes is a number, true or false when it looks like one (YAML 1.2, core
    /// schema); a number that JSON cannot hold stays a text.
    pub fn to_json(&self) -> Value {
        match &self.data {
            Data::Nothing => Value::Null,
            Data::Text { text, quoted: true, .. } => Value::String(text.clone()),
            Data::Text { text, .. } => plain_value(text),
            Data::List(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Data::Map(items) => {
                Value::Object(items.iter().map(|(key, _, node)| (key.clone(), node.to_json())).collect::<Map<_, _>>())
            }
        }
    }

    /// The same as a text, with the keys in the order of the file.
    pub fn to_json_text(&self) -> String {
        let joined = |parts: Vec<String>| parts.join(",");
        match &self.data {
            Data::Nothing | Data::Text { .. } => self.to_json().to_string(),
            Data::List(items) => format!("[{}]", joined(items.iter().map(Node::to_json_text).collect())),
            Data::Map(items) => {
                let item = |(key, _, node): &(String, Origin, Node)| {
                    format!("{}:{}", Value::from(key.as_str()), node.to_json_text())
                };
                format!("{{{}}}", joined(items.iter().map(item).collect()))
            }
        }
    }

    /// The value of a key, when this is a section that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let Data::Map(items) = &self.data else { return None };
        items.iter().find(|(name, _, _)| name == key).map(|(_, _, node)| node)
    }

    /// The text, when this is one.
    pub fn text(&self) -> Option<&str> {
        match &self.data {
            Data::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The place of a character of this text, by its line and column in the text (both from 0). The place of the
    /// whole value when the file writes the text in another way than it reads.
    pub fn place(&self, line: usize, column: usize) -> Origin {
        let Data::Text { inside: Some(inside), .. } = &self.data else { return self.origin.clone() };
        let Origin::File { path, .. } = &self.origin else { return self.origin.clone() };
        let first = if line == 0 { inside.column } else { inside.indent };
        Origin::File { path: path.clone(), line: inside.line + line, column: first + column }
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
    pub(crate) fn size(&self) -> usize {
        1 + match &self.data {
            Data::Nothing => 0,
            Data::Text { text, .. } => text.len() / 256,
            Data::List(items) => items.iter().map(Node::size).sum(),
            Data::Map(items) => items.iter().map(|(_, _, node)| node.size()).sum(),
        }
    }

    pub(crate) fn depth(&self) -> usize {
        1 + match &self.data {
            Data::Nothing | Data::Text { .. } => 0,
            Data::List(items) => items.iter().map(Node::depth).max().unwrap_or(0),
            Data::Map(items) => items.iter().map(|(_, _, node)| node.depth()).max().unwrap_or(0),
        }
    }
}

pub(crate) fn scalar(text: &str, quoted: bool, inside: Option<Inside>) -> Data {
    match text {
        "" | "~" | "null" | "Null" | "NULL" if !quoted => Data::Nothing,
        _ => Data::Text { text: text.to_owned(), quoted, inside },
    }
}

fn plain_value(text: &str) -> Value {
    let number = || -> Option<Number> {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        if digits.starts_with("0x") || digits.starts_with("0o") {
            let radix = if digits.starts_with("0x") { 16 } else { 8 };
            return u64::from_str_radix(digits.get(2..)?, radix).ok().map(Number::from);
        }
        let numeric = digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
        if !numeric || !digits.bytes().any(|b| b.is_ascii_digit()) || digits.starts_with(['e', 'E', '+', '-']) {
            return None;
        }
        let whole = text.strip_prefix('+').unwrap_or(text);
        if let Ok(number) = whole.parse::<i64>() {
            return Some(Number::from(number));
        }
        if let Ok(number) = whole.parse::<u64>() {
            return Some(Number::from(number));
        }
        whole.parse::<f64>().ok().and_then(Number::from_f64)
    };
    match text {
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number().map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}
