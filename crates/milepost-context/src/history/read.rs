//! Reads a recorded message into blocks, whichever provider's form its calls and results are in.

use milepost_model::{Block, Content, Message, Role};
use serde_json::{Map, Value};

use super::Item;

/// The message at `index` of the record, with every call and result as a block of Milepost's own.
pub(super) fn item(index: usize, message: &Message) -> Item {
    let mut extra = message.extra.clone();
    let (mut blocks, mut plain) = match &message.content {
        Content::Text(text) if text.is_empty() => (Vec::new(), true),
        Content::Text(text) => (vec![Block::text(text.clone())], true),
        Content::Blocks(blocks) => (blocks.iter().cloned().map(known).collect(), false),
    };
    let role = match &message.role {
        Role::Other(name) if name == "function" => Role::Tool,
        Role::Other(name) if name == "model" => Role::Assistant,
        Role::Other(name) if name == "developer" => Role::System,
        role => role.clone(),
    };
    for key in ["tool_calls", "toolCalls"] {
        let calls = listed(&extra, key, call);
        if !calls.is_empty() {
            extra.remove(key);
            plain = false;
            blocks.extend(calls);
        }
    }
    for key in ["tool_results", "toolResults"] {
        let results = listed(&extra, key, result);
        if !results.is_empty() {
            extra.remove(key);
            plain = false;
            blocks.extend(results);
        }
    }
    if role == Role::Tool && !blocks.iter().any(|block| matches!(block, Block::ToolResult { .. })) {
        let id = ["tool_call_id", "toolCallId", "call_id"].iter().find_map(|key| match extra.get(*key) {
            Some(Value::String(id)) => Some(((*key).to_owned(), id.clone())),
            _ => None,
        });
        let call_id = id.map(|(key, id)| {
            extra.remove(&key);
            id
        });
        let content = tool_content(&message.content);
        blocks = vec![Block::tool_result(call_id.unwrap_or_default(), content)];
        plain = false;
    }
    Item { source: Some(index), role, blocks, plain, channel: message.channel.clone(), extra }
}

fn tool_content(content: &Content) -> Value {
    match content {
        Content::Text(text) => Value::String(text.clone()),
        Content::Blocks(blocks) => serde_json::to_value(blocks).unwrap_or_default(),
    }
}

/// Every item of a list that reads; nothing when one does not, so that no call is lost unseen.
fn listed(extra: &Map<String, Value>, key: &str, read: fn(&Map<String, Value>) -> Option<Block>) -> Vec<Block> {
    let Some(Value::Array(items)) = extra.get(key) else { return Vec::new() };
    let blocks: Option<Vec<Block>> = items.iter().map(|item| item.as_object().and_then(read)).collect();
    blocks.unwrap_or_default()
}

fn text<'a>(map: &'a Map<String, Value>, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| map.get(*key).and_then(Value::as_str))
}

fn value(map: &Map<String, Value>, keys: &[&str]) -> Option<Value> {
    keys.iter().find_map(|key| map.get(*key).cloned())
}

fn call(map: &Map<String, Value>) -> Option<Block> {
    let function = map.get("function").and_then(Value::as_object).unwrap_or(map);
    let id = text(map, &["id", "callId", "call_id", "toolCallId", "tool_call_id"])?;
    let name = text(function, &["name", "toolName", "tool"])?;
    let input = value(function, &["arguments", "input", "parameters", "args"]).unwrap_or_default();
    Some(Block::tool_call(id, name, input))
}

fn result(map: &Map<String, Value>) -> Option<Block> {
    let id = text(map, &["call_id", "callId", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "id"])?;
    let content = value(map, &["content", "output", "result"]).unwrap_or_default();
    let is_error = ["is_error", "isError"].iter().any(|key| map.get(*key) == Some(&Value::Bool(true)));
    Some(Block::ToolResult { call_id: id.to_owned(), content, is_error, extra: Map::new() })
}

/// A block in a provider's own form, as Milepost's.
fn known(block: Block) -> Block {
    let Block::Unknown(Value::Object(mut map)) = block else { return block };
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let read = match kind.as_str() {
        "tool_use" | "function_call" | "tool_call" => call(&map),
        "tool_result" | "function_call_output" => result(&map),
        "input_text" | "output_text" => text(&map, &["text"]).map(Block::text),
        "thinking" => text(&map, &["thinking"]).map(str::to_owned).map(|text| {
            map.remove("type");
            map.remove("thinking");
            Block::Thinking { text, extra: std::mem::take(&mut map) }
        }),
        "image_url" | "input_image" => {
            value(&map, &["image_url", "source", "file_id"]).map(|source| Block::Image { source, extra: Map::new() })
        }
        _ => None,
    };
    read.unwrap_or(Block::Unknown(Value::Object(map)))
}
