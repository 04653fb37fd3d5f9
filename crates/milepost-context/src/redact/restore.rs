//! Puts secrets back in the place of their tokens.

use std::sync::LazyLock;

use milepost_model::{Block, Content, Message};
use regex::{Captures, Regex};
use serde_json::{Map, Value};

use super::{KEY_KIND, MAX_ROUNDS};

#[allow(clippy::expect_used, reason = "the pattern is a constant that a test compiles")]
static TOKEN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\[redacted:([a-z0-9-]{1,32}):([0-9a-f]{12})\]").expect("a valid pattern"));

/// Puts back what `lookup` knows, given a kind and an id. Tokens that it does not know stay.
/// Keys of objects are put back too.
pub fn restore(value: &mut Value, mut lookup: impl FnMut(&str, &str) -> Option<String>) {
    put_back(value, &mut lookup);
}

/// Puts back what `lookup` knows in a message.
pub fn restore_message(message: &mut Message, mut lookup: impl FnMut(&str, &str) -> Option<String>) {
    let lookup: &mut Lookup = &mut lookup;
    match &mut message.content {
        Content::Text(text) => string(text, lookup),
        Content::Blocks(blocks) => blocks.iter_mut().for_each(|one| block(one, lookup)),
    }
    map(&mut message.extra, lookup);
}

/// The text with everything put back that `lookup` knows.
pub fn restore_text(text: &str, mut lookup: impl FnMut(&str, &str) -> Option<String>) -> String {
    let mut text = text.to_owned();
    string(&mut text, &mut lookup);
    text
}

type Lookup<'a> = dyn FnMut(&str, &str) -> Option<String> + 'a;

fn block(block: &mut Block, lookup: &mut Lookup) {
    let extra = match block {
        Block::Text { text, extra } | Block::Thinking { text, extra } => {
            string(text, lookup);
            extra
        }
        Block::ToolCall { id, name, input, extra } => {
            string(id, lookup);
            string(name, lookup);
            put_back(input, lookup);
            extra
        }
        Block::ToolResult { call_id, content, extra, .. } => {
            string(call_id, lookup);
            put_back(content, lookup);
            extra
        }
        Block::Image { source, extra } => {
            put_back(source, lookup);
            extra
        }
        Block::Unknown(value) => return put_back(value, lookup),
    };
    map(extra, lookup);
}

fn put_back(root: &mut Value, lookup: &mut Lookup) {
    let mut stack = vec![root];
    while let Some(value) = stack.pop() {
        match value {
            Value::String(text) => match whole(text, lookup) {
                Some(restored) => *value = restored,
                None => string(text, lookup),
            },
            Value::Array(items) => stack.extend(items),
            Value::Object(map) => {
                keys(map, lookup);
                stack.extend(map.values_mut());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn map(map: &mut Map<String, Value>, lookup: &mut Lookup) {
    keys(map, lookup);
    map.values_mut().for_each(|value| put_back(value, lookup));
}

fn keys(map: &mut Map<String, Value>, lookup: &mut Lookup) {
    let held: Vec<String> = map.keys().filter(|key| TOKEN.is_match(key)).cloned().collect();
    for key in held {
        let mut clear = key.clone();
        string(&mut clear, lookup);
        if clear != key
            && !map.contains_key(&clear)
            && let Some(value) = map.remove(&key)
        {
            map.insert(clear, value);
        }
    }
}

/// The value that stood under a named key.
fn whole(text: &str, lookup: &mut Lookup) -> Option<Value> {
    let token = TOKEN.captures(text).filter(|token| token.get_match().len() == text.len())?;
    let (kind, id) = (token.get(1)?.as_str(), token.get(2)?.as_str());
    if kind != KEY_KIND {
        return None;
    }
    serde_json::from_str(&lookup(kind, id)?).ok()
}

fn string(text: &mut String, lookup: &mut Lookup) {
    // What was taken out in a second look may hold the token of the first.
    for _ in 0..=MAX_ROUNDS {
        if !TOKEN.is_match(text) {
            return;
        }
        let restored = TOKEN.replace_all(text, |token: &Captures<'_>| {
            let part = |group| token.get(group).map_or("", |part| part.as_str());
            let secret = lookup(part(1), part(2));
            match secret {
                Some(json) if part(1) == KEY_KIND => serde_json::from_str::<String>(&json).unwrap_or(json),
                Some(secret) => secret,
                None => part(0).to_owned(),
            }
        });
        let restored = restored.into_owned();
        if restored == *text {
            return;
        }
        *text = restored;
    }
}
