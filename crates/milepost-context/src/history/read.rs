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

/// What a message holds, every call and result as a block of Milepost's own, whichever provider's form it is in:
/// Anthropic's `tool_use`, OpenAI's `tool_calls` and `function_call`, `toolCalls` beside the content. What does not read as
/// a whole is read as far as it goes; nothing is left out.
pub fn blocks(message: &Message) -> Vec<Block> {
    let Item { mut blocks, extra, .. } = item(0, message);
    let of = |key: &str| extra.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for call in ["tool_calls", "toolCalls"].into_iter().flat_map(of) {
        blocks.push(loose_call(call));
    }
    if let Some(call @ Value::Object(_)) = extra.get("function_call") {
        blocks.push(loose_call(call));
    }
    for found in ["tool_results", "toolResults"].into_iter().flat_map(of) {
        let read = found.as_object().and_then(result);
        blocks.push(read.unwrap_or_else(|| Block::tool_result("", found.clone())));
    }
    for block in &mut blocks {
        // Some write the arguments as a text of JSON.
        if let Block::ToolCall { input, .. } = block
            && let Some(object @ Value::Object(_)) = input.as_str().and_then(|text| serde_json::from_str(text).ok())
        {
            *input = object;
        }
    }
    blocks
}

/// A call without an id, or without a name.
fn loose_call(value: &Value) -> Block {
    let Some(map) = value.as_object() else { return Block::tool_call("", "tool", value.clone()) };
    let function = map.get("function").and_then(Value::as_object).unwrap_or(map);
    let name = text(function, &["name", "toolName", "tool"]).unwrap_or("tool");
    let input = value_of(function, &["arguments", "input", "parameters", "args"]).unwrap_or_default();
    Block::tool_call(text(map, &["id", "callId", "call_id"]).unwrap_or_default(), name, input)
}

/// What a message says, for a person to read: its text, the tools that it calls with their arguments, and what they
/// answered.
pub fn readable(message: &Message) -> String {
    let is_plain_result = message.role == Role::Tool && matches!(message.content, Content::Text(_));
    if let (true, Content::Text(text)) = (is_plain_result, &message.content) {
        return text.clone();
    }
    blocks(message).iter().map(readable_block).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

fn readable_block(block: &Block) -> String {
    match block {
        Block::Text { text, .. } | Block::Thinking { text, .. } => text.clone(),
        Block::ToolCall { name, input: Value::Null, .. } => format!("[calls {name}]"),
        Block::ToolCall { name, input, .. } => format!("[calls {name} {input}]"),
        Block::ToolResult { content, is_error, .. } => {
            format!("[{}: {}]", if *is_error { "error" } else { "result" }, super::result_text(content).trim())
        }
        Block::Image { .. } => "[image]".to_owned(),
        Block::Unknown(value) => super::wire::unknown_text(value),
    }
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

fn value_of(map: &Map<String, Value>, keys: &[&str]) -> Option<Value> {
    keys.iter().find_map(|key| map.get(*key).cloned())
}

fn call(map: &Map<String, Value>) -> Option<Block> {
    let function = map.get("function").and_then(Value::as_object).unwrap_or(map);
    let id = text(map, &["id", "callId", "call_id", "toolCallId", "tool_call_id"])?;
    let name = text(function, &["name", "toolName", "tool"])?;
    let input = value_of(function, &["arguments", "input", "parameters", "args"]).unwrap_or_default();
    Some(Block::tool_call(id, name, input))
}

fn result(map: &Map<String, Value>) -> Option<Block> {
    let id = text(map, &["call_id", "callId", "tool_call_id", "toolCallId", "tool_use_id", "toolUseId", "id"])?;
    let content = value_of(map, &["content", "output", "result"]).unwrap_or_default();
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
            value_of(&map, &["image_url", "source", "file_id"]).map(|source| Block::Image { source, extra: Map::new() })
        }
        _ => None,
    };
    read.unwrap_or(Block::Unknown(Value::Object(map)))
}
