//! Goes through messages and JSON values, remembering where it is.

use std::collections::HashMap;

use milepost_model::{Block, Channel, Content, Message, Role};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use super::rules::KeyRule;
use super::{Found, KEY_KIND, MAX_DEPTH, Redactor, assign};

pub(super) struct Walk<'a> {
    redactor: &'a Redactor,
    place: Vec<String>,
    found: Vec<Found>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(redactor: &'a Redactor) -> Self {
        Self { redactor, place: Vec::new(), found: Vec::new() }
    }

    pub(super) fn value(mut self, value: &mut Value) -> Vec<Found> {
        self.visit(value);
        self.found
    }

    pub(super) fn message(mut self, message: &mut Message) -> Vec<Found> {
        match &mut message.content {
            Content::Text(text) => self.at("content", |walk| walk.string(text)),
            Content::Blocks(blocks) => self.at("content", |walk| {
                for (index, block) in blocks.iter_mut().enumerate() {
                    walk.at(&index.to_string(), |walk| walk.block(block));
                }
            }),
        }
        if let Role::Other(name) = &mut message.role {
            self.at("role", |walk| walk.string(name));
        }
        if !message.channel.is_main() {
            let mut name = message.channel.as_str().to_owned();
            self.at("channel", |walk| walk.string(&mut name));
            // A name with a token in it may be too long for a channel; then it is no channel of its own.
            message.channel = Channel::new(name).unwrap_or_default();
        }
        self.map(&mut message.extra);
        self.found
    }

    fn at(&mut self, part: &str, visit: impl FnOnce(&mut Self)) {
        self.place.push(match part.contains(['~', '/']) {
            true => part.replace('~', "~0").replace('/', "~1"),
            false => part.to_owned(),
        });
        visit(self);
        self.place.pop();
    }

    fn pointer(place: &[String]) -> String {
        place.iter().flat_map(|part| ["/", part.as_str()]).collect()
    }

    fn block(&mut self, block: &mut Block) {
        let extra = match block {
            Block::Text { text, extra } => {
                self.at("text", |walk| walk.string(text));
                extra
            }
            Block::Thinking { text, extra } => {
                let before = self.found.len();
                self.at("text", |walk| walk.string(text));
                if self.found.len() > before {
                    extra.remove("signature");
                }
                extra
            }
            Block::ToolCall { id, name, input, extra } => {
                self.at("id", |walk| walk.string(id));
                self.at("name", |walk| walk.string(name));
                self.at("input", |walk| walk.visit(input));
                extra
            }
            Block::ToolResult { call_id, content, extra, .. } => {
                self.at("call_id", |walk| walk.string(call_id));
                self.at("content", |walk| walk.visit(content));
                extra
            }
            Block::Image { source, extra } => {
                self.at("source", |walk| walk.visit(source));
                extra
            }
            Block::Unknown(value) => return self.visit(value),
        };
        self.map(extra);
    }

    fn string(&mut self, text: &mut String) {
        let Self { redactor, place, found } = self;
        if let Some(clean) = redactor.clean(text, &|| Self::pointer(place), found) {
            *text = clean;
        }
    }

    fn visit(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => self.string(text),
            Value::Array(_) | Value::Object(_) if self.place.len() >= MAX_DEPTH => self.hide(value),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.at(&index.to_string(), |walk| walk.visit(item));
                }
            }
            Value::Object(map) => self.map(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn map(&mut self, map: &mut Map<String, Value>) {
        let schema = self.place.last().is_some_and(|part| part == "properties");
        let named = named(map);
        for (key, value) in map.iter_mut() {
            self.at(key, |walk| {
                // A value may have its name beside it.
                let name = if key == "value" { named.as_ref() } else { None };
                let is_secret = |name: &str| walk.is_secret(name, value, schema);
                if is_secret(key) || name.is_some_and(|name| is_secret(name)) {
                    walk.hide(value);
                } else {
                    walk.visit(value);
                }
            });
        }
        let mut renamed = Vec::new();
        for key in map.keys() {
            let Self { redactor, place, found } = self;
            if let Some(clean) = redactor.clean(key, &|| Self::pointer(place), found) {
                renamed.push((key.clone(), clean));
            }
        }
        let mut rounds: HashMap<String, usize> = HashMap::new();
        for (key, clean) in renamed {
            let Some(value) = map.remove(&key) else { continue };
            let round = rounds.entry(clean.clone()).or_default();
            let mut free = clean.clone();
            while map.contains_key(&free) {
                *round += 1;
                free = format!("{clean} {}", *round + 1);
            }
            map.insert(free, value);
        }
    }

    /// Whether the value under this key is a secret for its key alone.
    fn is_secret(&self, key: &str, value: &Value, schema: bool) -> bool {
        let empty = match value {
            Value::Null | Value::Bool(_) => true,
            Value::String(text) => text.is_empty() || assign::is_token(text),
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Number(_) => false,
        };
        if empty {
            return false;
        }
        match self.redactor.rules.key(key) {
            Some(KeyRule::Named | KeyRule::NamedDefault) => true,
            // The description of a parameter is not its value.
            Some(KeyRule::Default) => !(schema && value.is_object()),
            None if !self.redactor.rules.well_known => false,
            None => {
                let is_secret = |value: &Value| value.as_str().is_some_and(|text| assign::is_secret_under(key, text));
                is_secret(value) || value.as_array().is_some_and(|items| items.iter().any(is_secret))
            }
        }
    }

    fn hide(&mut self, value: &mut Value) {
        let secret = Zeroizing::new(value.to_string());
        let (token, id) = self.redactor.token(KEY_KIND, &secret);
        self.found.push(Found { kind: KEY_KIND.to_owned(), id, place: Self::pointer(&self.place), secret });
        *value = Value::String(token);
    }
}

/// The name of a value that stands in the same object: `{"name": "GITHUB_TOKEN", "value": "…"}`, as lists of environment
/// variables, headers and cookies have it.
fn named(map: &Map<String, Value>) -> Option<String> {
    if !map.get("value").is_some_and(Value::is_string) {
        return None;
    }
    ["name", "key"].into_iter().find_map(|key| map.get(key)?.as_str()).map(str::to_owned)
}
