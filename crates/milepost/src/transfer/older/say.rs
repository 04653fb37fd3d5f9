//! Messages of any tool as messages.

use milepost_model::{Block, Channel, Content, Message, Role, Timestamp};
use serde_json::{Map, Value};

use crate::transfer::export::{ROLE_NAME, TOOL_NAMES};
use crate::transfer::when::parse_time;

/// A message with the time it brought along.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub time: Option<Timestamp>,
    pub message: Message,
}

/// Reads a message. Whatever has no place of its own stays in its extra fields.
pub(super) fn said(value: Value) -> Result<Said, String> {
    let Value::Object(mut map) = value else { return Err("a message is no object".to_owned()) };
    let role = match map.remove("role") {
        Some(Value::String(role)) if !role.is_empty() => role,
        _ => return Err("a message has no role".to_owned()),
    };
    let ours = match role.as_str() {
        "human" => Some(Role::User),
        "ai" => Some(Role::Assistant),
        _ => None,
    };
    let role = match ours {
        Some(ours) => {
            map.insert(ROLE_NAME.to_owned(), role.into());
            ours
        }
        None => Role::from(role),
    };
    let time = ["timestamp", "createdAt", "created_at", "time"].iter().find_map(|key| parse_time(map.get(*key)?));
    // A time in our own form says no more than the entry's.
    let is_ours = time.is_some_and(|time| map.get("timestamp").and_then(Value::as_str) == Some(&*time.to_string()));
    if is_ours {
        map.remove("timestamp");
    }
    let content = content(&mut map);
    let channel = match map.remove("channel") {
        None => Channel::MAIN,
        Some(Value::String(name)) if Channel::new(name.clone()).is_ok() => Channel::new(name).unwrap_or_default(),
        Some(other) => {
            map.insert("original_channel".into(), other);
            Channel::MAIN
        }
    };
    Ok(Said { time, message: Message { role, content, channel, extra: map } })
}

fn content(map: &mut Map<String, Value>) -> Content {
    let said = map.remove("content").or_else(|| map.remove("text")).unwrap_or_default();
    let names = tool_names(map);
    let calls = take_blocks(map, "toolCalls", tool_call);
    let results = take_blocks(map, "toolResults", tool_result);
    if !(names.is_empty() || calls.is_empty() && results.is_empty()) {
        map.insert(TOOL_NAMES.to_owned(), Value::Object(names));
    }
    let mut blocks = match said {
        Value::String(text) if calls.is_empty() && results.is_empty() => return Content::Text(text),
        Value::Null if calls.is_empty() && results.is_empty() => return Content::Text(String::new()),
        Value::String(text) if text.is_empty() => Vec::new(),
        Value::Null => Vec::new(),
        Value::String(text) => vec![Block::text(text)],
        Value::Array(items) => items.into_iter().map(block).collect(),
        other => vec![Block::Unknown(other)],
    };
    blocks.extend(calls);
    blocks.extend(results);
    Content::Blocks(blocks)
}

/// Under which names the fields of tool calls and results were written, where they are not ours: they are written so again.
/// A list in which they differ from item to item is written with ours.
fn tool_names(map: &Map<String, Value>) -> Map<String, Value> {
    let all = |list: &str, key: &str, is: &dyn Fn(&Value) -> bool| {
        let items = map.get(list).and_then(Value::as_array).filter(|items| !items.is_empty());
        items.is_some_and(|items| items.iter().all(|item| item.get(key).is_some_and(is)))
    };
    let mut names = Map::new();
    if all("toolCalls", "arguments", &|_| true) {
        names.insert("input".into(), "arguments".into());
    }
    for key in ["id", "toolCallId"] {
        if all("toolResults", key, &Value::is_string) && !all("toolResults", "callId", &Value::is_string) {
            names.insert("callId".into(), key.into());
        }
    }
    let results = map.get("toolResults").and_then(Value::as_array);
    if results.is_some_and(|items| items.iter().all(|item| item.get("isError").is_none())) {
        names.insert("isError".into(), false.into());
    }
    names
}

fn block(value: Value) -> Block {
    match value {
        Value::String(text) => Block::text(text),
        other => Block::from(other),
    }
}

/// Takes a list whose items all are what they should be; another list stays where it is.
fn take_blocks(map: &mut Map<String, Value>, key: &str, read: fn(&Value) -> Option<Block>) -> Vec<Block> {
    let list = map.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let blocks: Option<Vec<Block>> = list.iter().map(read).collect();
    match blocks {
        Some(blocks) if !blocks.is_empty() => {
            map.remove(key);
            blocks
        }
        _ => Vec::new(),
    }
}

fn rest(value: &Value, taken: &[&str]) -> Option<Map<String, Value>> {
    let own = ["type", "id", "name", "input", "call_id", "content", "is_error"];
    let map: Map<String, Value> = value
        .as_object()?
        .iter()
        .filter(|(key, _)| !taken.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    // A field that a block has itself cannot stand beside it.
    own.iter().all(|key| !map.contains_key(*key)).then_some(map)
}

fn tool_call(value: &Value) -> Option<Block> {
    let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
    let extra = rest(value, &["id", "name", "input", "arguments"])?;
    let input = value.get("input").or_else(|| value.get("arguments"))?.clone();
    Some(Block::ToolCall { id: text("id")?, name: text("name")?, input, extra })
}

fn tool_result(value: &Value) -> Option<Block> {
    let id = ["callId", "toolCallId", "id"].iter().find(|key| value.get(**key).is_some_and(Value::is_string))?;
    let extra = rest(value, &[*id, "content", "isError"])?;
    let is_error = value.get("isError").and_then(Value::as_bool).unwrap_or(false);
    let call_id = value.get(*id)?.as_str()?.to_owned();
    Some(Block::ToolResult { call_id, content: value.get("content")?.clone(), is_error, extra })
}
