//! A view as the messages of a request, in the exact form of each provider.

use milepost_model::{Block, Role};
use serde_json::{Map, Value, json};

use super::{Dialect, View};

/// How much of a block of an unknown kind is shown as text, in characters.
const MAX_UNKNOWN_TEXT: usize = 4096;

/// The conversation of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wire {
    /// What goes into the field `system`: the system messages at the beginning. Only for Anthropic;
    /// elsewhere they are messages.
    pub system: Option<String>,
    /// The messages.
    pub messages: Vec<Value>,
}

impl Wire {
    /// The fields of the request: `messages` and, when there is one, `system`.
    pub fn into_value(self) -> Value {
        match self.system {
            Some(system) => json!({"system": system, "messages": self.messages}),
            None => json!({"messages": self.messages}),
        }
    }
}

pub(super) fn write(view: &View) -> Wire {
    match view.dialect {
        Dialect::Anthropic => anthropic(view),
        Dialect::OpenAi => Wire { system: None, messages: open_ai(view) },
    }
}

/// A message, seen by role and blocks, whatever its content's form.
fn parts(view: &View) -> impl Iterator<Item = (&Role, Vec<&Block>, Option<&str>)> {
    view.messages.iter().map(|seen| match &seen.message.content {
        milepost_model::Content::Text(text) => (&seen.message.role, Vec::new(), Some(text.as_str())),
        milepost_model::Content::Blocks(blocks) => (&seen.message.role, blocks.iter().collect(), None),
    })
}

fn anthropic(view: &View) -> Wire {
    let mut system: Vec<String> = Vec::new();
    let mut merged: Vec<(&'static str, Vec<Value>)> = Vec::new();
    for (role, blocks, plain) in parts(view) {
        let side = if *role == Role::Assistant { "assistant" } else { "user" };
        let content: Vec<Value> = if *role == Role::System {
            let text = instructions(plain, &blocks);
            if merged.is_empty() {
                system.push(text);
                continue;
            }
            vec![text_block(format!("<system>\n{text}\n</system>"))]
        } else {
            let blocks = blocks.into_iter().map(|block| anthropic_block(block, side));
            plain.into_iter().map(text_block).chain(blocks).collect()
        };
        match merged.last_mut() {
            Some((last, all)) if *last == side => all.extend(content),
            _ => merged.push((side, content)),
        }
    }
    let messages = merged.into_iter().map(|(role, mut content)| {
        let lone = match content.as_mut_slice() {
            [Value::Object(block)] if block.get("type") == Some(&json!("text")) => block.remove("text"),
            _ => None,
        };
        json!({"role": role, "content": lone.unwrap_or(Value::Array(content))})
    });
    let messages = messages.collect();
    Wire { system: (!system.is_empty()).then(|| system.join("\n\n")), messages }
}

/// A system message is text, whatever it holds.
fn instructions(plain: Option<&str>, blocks: &[&Block]) -> String {
    let texts = blocks.iter().map(|block| match block {
        Block::Text { text, .. } | Block::Thinking { text, .. } => text.clone(),
        Block::Unknown(value) => unknown_text(value),
        Block::Image { .. } => "[image]".to_owned(),
        Block::ToolCall { .. } | Block::ToolResult { .. } => String::new(),
    });
    let all: Vec<String> =
        plain.map(str::to_owned).into_iter().chain(texts).filter(|text| !text.trim().is_empty()).collect();
    if all.is_empty() { "[empty]".to_owned() } else { all.join("\n\n") }
}

fn text_block(text: impl Into<String>) -> Value {
    json!({"type": "text", "text": text.into()})
}

fn anthropic_block(block: &Block, side: &str) -> Value {
    match block {
        Block::Text { text, .. } => text_block(text.as_str()),
        Block::ToolCall { id, name, input, .. } => json!({"type": "tool_use", "id": id, "name": name, "input": input}),
        Block::ToolResult { call_id, content, is_error, .. } => {
            let mut result = json!({"type": "tool_result", "tool_use_id": call_id});
            let content = anthropic_result(content);
            let empty = content.as_str().is_some_and(str::is_empty) || content.as_array().is_some_and(Vec::is_empty);
            result["content"] = if empty && *is_error { json!("the tool failed without a word") } else { content };
            if *is_error {
                result["is_error"] = Value::Bool(true);
            }
            result
        }
        Block::Thinking { text, extra } => {
            json!({"type": "thinking", "thinking": text, "signature": extra.get("signature").cloned().unwrap_or_default()})
        }
        Block::Image { source, .. } if side == "user" => anthropic_image(source),
        Block::Image { .. } => text_block("[image]"),
        Block::Unknown(value) => anthropic_unknown(value, side),
    }
}

fn anthropic_unknown(value: &Value, side: &str) -> Value {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or_default();
    let passes = match (side, kind) {
        ("assistant", "redacted_thinking") => value.get("data").is_some_and(Value::is_string),
        ("assistant", "server_tool_use" | "mcp_tool_use") => true,
        ("assistant", kind) => kind.ends_with("_tool_result"),
        (_, "document" | "search_result") => value.get("source").is_some(),
        _ => false,
    };
    if passes { value.clone() } else { text_block(unknown_text(value)) }
}

/// The content of a result: text, or the blocks that a result may hold.
fn anthropic_result(content: &Value) -> Value {
    let Value::Array(items) = content else { return Value::String(plain_text(content)) };
    let known = |item: &Value| {
        matches!(item.get("type").and_then(Value::as_str), Some("text" | "image" | "document" | "search_result"))
    };
    if items.is_empty() || !items.iter().all(known) {
        return Value::String(plain_text(content));
    }
    let blocks = items.iter().filter_map(|item| match item["type"].as_str() {
        Some("text") => item["text"].as_str().filter(|text| !text.trim().is_empty()).map(text_block),
        Some("image") => Some(anthropic_image(&item["source"])),
        _ if item.get("source").is_some() => Some(item.clone()),
        _ => Some(text_block(unknown_text(item))),
    });
    Value::Array(blocks.collect())
}

/// A picture, wherever it is: inline, at an address, or in the provider's files.
enum Picture<'a> {
    Inline { media_type: &'a str, data: &'a str },
    Address(&'a str),
    File(&'a str),
    Elsewhere,
}

fn picture(source: &Value) -> Picture<'_> {
    let text = |key: &str| source.get(key).and_then(Value::as_str);
    let address = source.as_str().or_else(|| text("url"));
    if let (Some(media_type), Some(data)) = (text("media_type"), text("data")) {
        return Picture::Inline { media_type, data };
    }
    if let Some(id) = text("file_id") {
        return Picture::File(id);
    }
    match address {
        Some(url) if url.starts_with("https://") || url.starts_with("http://") => Picture::Address(url),
        Some(url) => match url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) {
            Some((media_type, data)) => Picture::Inline { media_type, data },
            None => Picture::Elsewhere,
        },
        None => Picture::Elsewhere,
    }
}

fn anthropic_image(source: &Value) -> Value {
    let source = match picture(source) {
        Picture::Inline { media_type, data } => json!({"type": "base64", "media_type": media_type, "data": data}),
        Picture::Address(url) => json!({"type": "url", "url": url}),
        Picture::File(id) => json!({"type": "file", "file_id": id}),
        Picture::Elsewhere => return text_block("[image]"),
    };
    json!({"type": "image", "source": source})
}

fn open_ai_image(source: &Value) -> Value {
    let url = match picture(source) {
        Picture::Inline { media_type, data } => format!("data:{media_type};base64,{data}"),
        Picture::Address(url) => url.to_owned(),
        Picture::File(_) | Picture::Elsewhere => return text_block("[image]"),
    };
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn open_ai(view: &View) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    // The assistant's turn so far: its text and its calls.
    let mut turn: Option<(Vec<String>, Vec<Value>)> = None;
    let mut pictures: Vec<Value> = Vec::new();
    for (role, blocks, plain) in parts(view) {
        if *role == Role::Assistant {
            flush_pictures(&mut pictures, &mut out);
            let (text, calls) = turn.get_or_insert_default();
            text.extend(plain.map(str::to_owned));
            blocks.into_iter().for_each(|block| open_ai_turn(block, text, calls));
            continue;
        }
        end_turn(&mut turn, &mut out);
        if *role == Role::System {
            flush_pictures(&mut pictures, &mut out);
            out.push(json!({"role": "system", "content": instructions(plain, &blocks)}));
            continue;
        }
        let mut content: Vec<Value> = plain.into_iter().map(text_block).collect();
        for block in blocks {
            match block {
                Block::ToolResult { call_id, content, is_error, .. } => {
                    out.push(
                        json!({"role": "tool", "tool_call_id": call_id, "content": tool_text(content, *is_error)}),
                    );
                    pictures.extend(images_of(content, call_id));
                }
                other => content.push(open_ai_part(other)),
            }
        }
        if content.is_empty() {
            continue;
        }
        flush_pictures(&mut pictures, &mut out);
        out.push(user(content));
    }
    end_turn(&mut turn, &mut out);
    flush_pictures(&mut pictures, &mut out);
    out
}

/// Pictures that tools gave follow all the results: a tool's message holds only text.
fn flush_pictures(pictures: &mut Vec<Value>, out: &mut Vec<Value>) {
    if !pictures.is_empty() {
        out.push(json!({"role": "user", "content": std::mem::take(pictures)}));
    }
}

fn user(mut content: Vec<Value>) -> Value {
    let lone = match content.as_mut_slice() {
        [Value::Object(part)] if part.get("type") == Some(&json!("text")) => part.remove("text"),
        _ => None,
    };
    json!({"role": "user", "content": lone.unwrap_or(Value::Array(content))})
}

fn end_turn(turn: &mut Option<(Vec<String>, Vec<Value>)>, out: &mut Vec<Value>) {
    let Some((text, calls)) = turn.take() else { return };
    if text.is_empty() && calls.is_empty() {
        return;
    }
    let content = if text.is_empty() { Value::Null } else { Value::String(text.join("\n\n")) };
    let mut message = json!({"role": "assistant", "content": content});
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    out.push(message);
}

fn open_ai_turn(block: &Block, text: &mut Vec<String>, calls: &mut Vec<Value>) {
    match block {
        Block::ToolCall { id, name, input, .. } => calls
            .push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input.to_string()}})),
        Block::Text { text: said, .. } => text.push(said.clone()),
        Block::Thinking { .. } | Block::ToolResult { .. } => {}
        Block::Image { .. } => text.push("[image]".to_owned()),
        Block::Unknown(value) if value["type"] == "redacted_thinking" => {}
        Block::Unknown(value) => text.push(unknown_text(value)),
    }
}

fn open_ai_part(block: &Block) -> Value {
    match block {
        Block::Text { text, .. } | Block::Thinking { text, .. } if !text.trim().is_empty() => text_block(text.as_str()),
        Block::Image { source, .. } => open_ai_image(source),
        Block::Unknown(value) if matches!(value["type"].as_str(), Some("file" | "input_audio")) => value.clone(),
        Block::Unknown(value) => text_block(unknown_text(value)),
        _ => text_block("[empty]"),
    }
}

fn tool_text(content: &Value, is_error: bool) -> String {
    let text = plain_text(content);
    match (is_error, text.is_empty()) {
        (true, true) => "[error] the tool failed without a word".to_owned(),
        (true, false) => format!("[error] {text}"),
        (false, _) => text,
    }
}

fn images_of(content: &Value, call_id: &str) -> Vec<Value> {
    let items = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let images: Vec<Value> =
        items.iter().filter(|item| item["type"] == "image").map(|item| open_ai_image(&item["source"])).collect();
    if images.is_empty() {
        return images;
    }
    let label = text_block(format!("The picture that call {call_id} gave:"));
    std::iter::once(label).chain(images).collect()
}

/// A result's content as text: a string as it is, text blocks joined, other JSON as JSON.
pub(super) fn plain_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(items) if !items.is_empty() && items.iter().all(|item| item["type"].is_string()) => {
            let texts: Vec<String> = items
                .iter()
                .map(|item| match item["type"].as_str() {
                    Some("text") => item["text"].as_str().unwrap_or_default().to_owned(),
                    Some("image") => "[image]".to_owned(),
                    _ => unknown_text(item),
                })
                .filter(|text| !text.trim().is_empty())
                .collect();
            texts.join("\n")
        }
        Value::Array(items) if items.is_empty() => String::new(),
        other => other.to_string(),
    }
}

/// A block of a kind the provider does not take, as text: its own text when it has one, else its JSON.
pub(super) fn unknown_text(value: &Value) -> String {
    let own = value.get("text").and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    if let Some(text) = own {
        return text.to_owned();
    }
    let kind = value.get("type").and_then(Value::as_str).filter(|kind| !kind.trim().is_empty()).unwrap_or("data");
    let mut fields =
        value.as_object().cloned().unwrap_or_else(|| Map::from_iter([("value".to_owned(), value.clone())]));
    fields.remove("type");
    let json = Value::Object(fields).to_string();
    match json.char_indices().nth(MAX_UNKNOWN_TEXT) {
        Some((at, _)) => format!("[{kind}] {}…", json.get(..at).unwrap_or_default()),
        None => format!("[{kind}] {json}"),
    }
}
