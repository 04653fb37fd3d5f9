//! What was said: messages and their content blocks. A block of a kind that Milepost does not know,
//! and a field that it does not know, are kept as they came.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Why a text is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The JSON does not parse, or is not a message.
    #[error("not a message: {0}")]
    Json(String),
    /// A channel's name has a character or a length that is not allowed.
    #[error("{0:?} is not a channel name: use 1 to 128 characters without control characters")]
    Channel(String),
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Role {
    /// A person, or a program in a person's place.
    User,
    /// The model.
    Assistant,
    /// Instructions.
    System,
    /// A tool's answer, in formats that give it a message of its own.
    Tool,
    /// Someone else.
    Other(String),
}

impl Role {
    /// The word for it.
    pub fn as_str(&self) -> &str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
            Role::Tool => "tool",
            Role::Other(name) => name,
        }
    }
}

impl From<String> for Role {
    fn from(name: String) -> Self {
        match name.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            "tool" => Role::Tool,
            _ => Role::Other(name),
        }
    }
}

impl From<Role> for String {
    fn from(role: Role) -> String {
        role.as_str().to_owned()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which conversation of a session a message belongs to: `main`, a node's, a subagent's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Channel(Cow<'static, str>);

impl Channel {
    /// The main conversation.
    pub const MAIN: Channel = Channel(Cow::Borrowed("main"));
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 128;

    /// Checks and takes a name.
    pub fn new(name: impl Into<String>) -> Result<Self, MessageError> {
        let name = name.into();
        if name.is_empty() || name.len() > Self::MAX_LEN || name.chars().any(char::is_control) {
            return Err(MessageError::Channel(crate::id::shorten(&name)));
        }
        Ok(Self(Cow::Owned(name)))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the main conversation.
    pub fn is_main(&self) -> bool {
        *self == Self::MAIN
    }
}

impl Default for Channel {
    fn default() -> Self {
        Self::MAIN
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Channel {
    type Error = MessageError;
    fn try_from(name: String) -> Result<Self, MessageError> {
        Self::new(name)
    }
}

impl From<Channel> for String {
    fn from(channel: Channel) -> String {
        channel.0.into_owned()
    }
}

/// Where formats keep calls and results of tools that are not in the content.
const BESIDE: [&str; 5] = ["toolCalls", "tool_calls", "function_call", "toolResults", "tool_results"];

/// Fields of calls and results that only name them.
const NAMES: [&str; 8] = ["id", "type", "callId", "call_id", "toolCallId", "tool_call_id", "tool_use_id", "toolUseId"];

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// Which conversation it belongs to.
    #[serde(default, skip_serializing_if = "Channel::is_main")]
    pub channel: Channel,
    /// Every other field.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of plain text in the main channel.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, content: Content::Text(text.into()), channel: Channel::MAIN, extra: Map::new() }
    }

    /// A message of blocks in the main channel.
    pub fn blocks(role: Role, blocks: Vec<Block>) -> Self {
        Self { role, content: Content::Blocks(blocks), channel: Channel::MAIN, extra: Map::new() }
    }

    /// The same message in another channel.
    #[must_use]
    pub fn in_channel(mut self, channel: Channel) -> Self {
        self.channel = channel;
        self
    }

    /// Reads a message from JSON that came from outside. A lone surrogate, a wrong type or trailing
    /// text is an error that says where.
    pub fn from_json(json: &[u8]) -> Result<Self, MessageError> {
        serde_json::from_slice(json).map_err(|error| MessageError::Json(error.to_string()))
    }

    /// The text a person would read or search: text, thinking, tool calls' names and inputs, tool
    /// results, one after the other.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.content {
            Content::Text(text) => Cow::Borrowed(text),
            Content::Blocks(blocks) => match blocks.as_slice() {
                [Block::Text { text, .. }] => Cow::Borrowed(text),
                many => {
                    let mut out = String::new();
                    many.iter().for_each(|block| block.push_text(&mut out));
                    Cow::Owned(out)
                }
            },
        }
    }

    /// The text to search: [`Message::text`], and what formats with calls and results of tools beside the content have there.
    pub fn search_text(&self) -> Cow<'_, str> {
        let text = self.text();
        let beside: Vec<&Value> = BESIDE.iter().filter_map(|key| self.extra.get(*key)).collect();
        if beside.is_empty() {
            return text;
        }
        let mut out = text.into_owned();
        for value in beside {
            said(value, &mut |text| push_line(&mut out, text));
        }
        Cow::Owned(out)
    }

    /// How many tools it calls.
    pub fn tool_calls(&self) -> usize {
        match &self.content {
            Content::Text(_) => 0,
            Content::Blocks(blocks) => blocks.iter().filter(|b| matches!(b, Block::ToolCall { .. })).count(),
        }
    }
}

/// What is said: plain text, or blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "content must be a text or a list of blocks")]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Blocks.
    Blocks(Vec<Block>),
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Every other field.
        extra: Map<String, Value>,
    },
    /// The model asks for a tool to be run.
    ToolCall {
        /// Pairs the call with its result.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
        /// Every other field.
        extra: Map<String, Value>,
    },
    /// What a tool answered.
    ToolResult {
        /// The call it answers.
        call_id: String,
        /// The answer: text, blocks, or any JSON.
        content: Value,
        /// Whether the tool failed.
        is_error: bool,
        /// Every other field.
        extra: Map<String, Value>,
    },
    /// A picture: inline data, a URL or a reference.
    Image {
        /// Where the picture is.
        source: Value,
        /// Every other field.
        extra: Map<String, Value>,
    },
    /// What the model thought before it spoke.
    Thinking {
        /// The thought.
        text: String,
        /// Every other field, such as the provider's signature.
        extra: Map<String, Value>,
    },
    /// A block of another kind, kept as it came.
    Unknown(Value),
}

impl Block {
    /// A block of text.
    pub fn text(text: impl Into<String>) -> Self {
        Block::Text { text: text.into(), extra: Map::new() }
    }

    /// A call of a tool.
    pub fn tool_call(id: impl Into<String>, name: impl Into<String>, input: Value) -> Self {
        Block::ToolCall { id: id.into(), name: name.into(), input, extra: Map::new() }
    }

    /// A tool's answer.
    pub fn tool_result(call_id: impl Into<String>, content: Value) -> Self {
        Block::ToolResult { call_id: call_id.into(), content, is_error: false, extra: Map::new() }
    }

    fn push_text(&self, out: &mut String) {
        let mut line = |text: &str| push_line(out, text);
        match self {
            Block::Text { text, .. } | Block::Thinking { text, .. } => line(text),
            Block::ToolCall { name, input, .. } => {
                line(name);
                strings(input, &mut line);
            }
            Block::ToolResult { content, .. } => strings(content, &mut line),
            Block::Image { .. } => {}
            Block::Unknown(value) => strings(value, &mut line),
        }
    }
}

fn push_line(out: &mut String, text: &str) {
    if !text.is_empty() {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(text);
    }
}

/// Every string of calls or results, but for what only names them.
fn said(value: &Value, line: &mut impl FnMut(&str)) {
    let calls = match value {
        Value::Array(calls) => calls.as_slice(),
        one => std::slice::from_ref(one),
    };
    for call in calls {
        match call {
            Value::Object(fields) => {
                fields
                    .iter()
                    .filter(|(key, _)| !NAMES.contains(&key.as_str()))
                    .for_each(|(_, value)| strings(value, line));
            }
            other => strings(other, line),
        }
    }
}

/// Every string of a JSON value, in order. Bounded by the depth a parser gives, and by a stack of our own.
fn strings(value: &Value, line: &mut impl FnMut(&str)) {
    let mut stack = vec![value];
    while let Some(value) = stack.pop() {
        match value {
            Value::String(text) => line(text),
            Value::Array(items) => stack.extend(items.iter().rev()),
            Value::Object(map) => stack.extend(map.values().rev()),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Takes a string field out of a block; puts nothing back, so call it only when all will be there.
fn take_text(map: &mut Map<String, Value>, key: &str) -> String {
    match map.remove(key) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}

impl From<Value> for Block {
    fn from(value: Value) -> Self {
        let Value::Object(mut map) = value else { return Block::Unknown(value) };
        let is_text = |key: &str| map.get(key).is_some_and(Value::is_string);
        let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
        let known = match kind {
            "text" | "thinking" => is_text("text"),
            "tool_call" => is_text("id") && is_text("name") && map.contains_key("input"),
            "tool_result" => {
                is_text("call_id")
                    && map.contains_key("content")
                    && map.get("is_error").is_none_or(|e| *e == Value::Bool(true))
            }
            "image" => map.contains_key("source"),
            _ => false,
        };
        if !known {
            return Block::Unknown(Value::Object(map));
        }
        match take_text(&mut map, "type").as_str() {
            "text" => Block::Text { text: take_text(&mut map, "text"), extra: map },
            "thinking" => Block::Thinking { text: take_text(&mut map, "text"), extra: map },
            "tool_call" => Block::ToolCall {
                id: take_text(&mut map, "id"),
                name: take_text(&mut map, "name"),
                input: map.remove("input").unwrap_or_default(),
                extra: map,
            },
            "tool_result" => Block::ToolResult {
                call_id: take_text(&mut map, "call_id"),
                content: map.remove("content").unwrap_or_default(),
                is_error: map.remove("is_error").is_some(),
                extra: map,
            },
            _ => Block::Image { source: map.remove("source").unwrap_or_default(), extra: map },
        }
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Block::from)
    }
}

impl Serialize for Block {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        if let Block::Unknown(value) = self {
            return value.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        let none = Map::new();
        let extra = match self {
            Block::Unknown(_) => &none,
            Block::Text { text, extra } => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
                extra
            }
            Block::Thinking { text, extra } => {
                map.serialize_entry("type", "thinking")?;
                map.serialize_entry("text", text)?;
                extra
            }
            Block::ToolCall { id, name, input, extra } => {
                map.serialize_entry("type", "tool_call")?;
                map.serialize_entry("id", id)?;
                map.serialize_entry("name", name)?;
                map.serialize_entry("input", input)?;
                extra
            }
            Block::ToolResult { call_id, content, is_error, extra } => {
                map.serialize_entry("type", "tool_result")?;
                map.serialize_entry("call_id", call_id)?;
                map.serialize_entry("content", content)?;
                if *is_error {
                    map.serialize_entry("is_error", is_error)?;
                }
                extra
            }
            Block::Image { source, extra } => {
                map.serialize_entry("type", "image")?;
                map.serialize_entry("source", source)?;
                extra
            }
        };
        for (key, value) in extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}
