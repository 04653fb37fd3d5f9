//! Judges the messages of a request by the provider's published rules. Knows nothing of views.

use std::collections::HashSet;
use std::fmt;

use serde_json::Value;

use super::Dialect;

/// A rule that a request breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The index of the message.
    pub message: usize,
    /// The rule, in words.
    pub rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "messages[{}]: {}", self.message, self.rule)
    }
}

/// Every rule of the dialect that the messages break; empty when the provider would take them.
pub fn check(messages: &[Value], dialect: Dialect) -> Vec<Violation> {
    let mut court = Court { dialect, found: Vec::new(), at: 0, ids: HashSet::new() };
    match dialect {
        Dialect::Anthropic => court.anthropic(messages),
        Dialect::OpenAi => court.open_ai(messages),
    }
    court.found
}

struct Court {
    dialect: Dialect,
    found: Vec<Violation>,
    at: usize,
    ids: HashSet<String>,
}

fn blank(text: &str) -> bool {
    text.trim().is_empty()
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Court {
    fn must(&mut self, holds: bool, rule: impl Into<String>) {
        if !holds {
            self.found.push(Violation { message: self.at, rule: rule.into() });
        }
    }

    /// An id and a name of a call.
    fn call(&mut self, id: &str, name: &str) {
        let allowed = |text: &str, max: usize| {
            !text.is_empty()
                && text.len() <= max
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        self.must(allowed(id, self.dialect.max_call_id()), format!("{id:?} is not an id of a call"));
        self.must(allowed(name, self.dialect.max_tool_name()), format!("{name:?} is not a name of a tool"));
        let new = self.ids.insert(id.to_owned());
        self.must(new, format!("the id {id:?} is used twice"));
    }

    fn anthropic(&mut self, messages: &[Value]) {
        let mut called: Vec<String> = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            self.at = at;
            let role = text(message, "role");
            let wanted = if at % 2 == 0 { "user" } else { "assistant" };
            self.must(role == wanted, format!("the role is {role:?}, not {wanted:?}: roles alternate, the user first"));
            let lone = message.get("content").and_then(Value::as_str);
            let blocks = array(message, "content");
            self.must(lone.is_some_and(|text| !blank(text)) || !blocks.is_empty(), "the content is empty");
            let keys = message.as_object().map(serde_json::Map::len).unwrap_or_default();
            self.must(keys == 2, "a message has a role and a content, nothing else");
            let expected = std::mem::take(&mut called);
            match role {
                "assistant" => {
                    self.must(expected.is_empty(), "calls are answered in the very next message");
                    called = self.anthropic_turn(blocks);
                }
                _ => self.anthropic_user(blocks, &expected),
            }
            let last = at + 1 == messages.len();
            if last && role == "assistant" {
                let end = lone.or_else(|| blocks.last().map(|block| text(block, "text"))).unwrap_or_default();
                self.must(!end.ends_with(char::is_whitespace), "the last answer ends with white space");
            }
        }
        self.must(called.is_empty(), "the last calls have no results");
    }

    fn anthropic_turn(&mut self, blocks: &[Value]) -> Vec<String> {
        let mut called = Vec::new();
        let mut open: HashSet<&str> = HashSet::new();
        for block in blocks {
            match text(block, "type") {
                "text" => self.must(!blank(text(block, "text")), "a text block is blank"),
                "thinking" => {
                    self.must(!text(block, "signature").is_empty(), "a thought has no signature");
                    self.must(block.get("thinking").is_some_and(Value::is_string), "a thought has no text");
                }
                "redacted_thinking" => self.must(!text(block, "data").is_empty(), "a redacted thought has no data"),
                "tool_use" => {
                    self.call(text(block, "id"), text(block, "name"));
                    self.must(block.get("input").is_some_and(Value::is_object), "a call's input is not an object");
                    called.push(text(block, "id").to_owned());
                }
                "server_tool_use" | "mcp_tool_use" => {
                    open.insert(text(block, "id"));
                }
                kind if kind.ends_with("_tool_result") => {
                    let paired = open.remove(text(block, "tool_use_id"));
                    self.must(paired, "a provider's tool result has no call before it");
                }
                kind => self.must(false, format!("the assistant has no blocks of kind {kind:?}")),
            }
        }
        self.must(open.is_empty(), "a provider's tool call has no result");
        let last = blocks.last().map(|block| text(block, "type")).unwrap_or_default();
        self.must(!matches!(last, "thinking" | "redacted_thinking"), "the turn ends with a thought");
        called
    }

    fn anthropic_user(&mut self, blocks: &[Value], expected: &[String]) {
        let mut answered: HashSet<&str> = HashSet::new();
        let mut other_before = false;
        for block in blocks {
            match text(block, "type") {
                "tool_result" => {
                    let id = text(block, "tool_use_id");
                    self.must(!other_before, "results come first in a message");
                    self.must(expected.iter().any(|call| call == id), format!("{id:?} was not called just before"));
                    self.must(answered.insert(id), format!("{id:?} has two results"));
                    self.anthropic_result(block);
                    continue;
                }
                "text" => self.must(!blank(text(block, "text")), "a text block is blank"),
                "image" => self.image(block),
                "document" | "search_result" => self.must(block.get("source").is_some(), "a document has no source"),
                kind => self.must(false, format!("the user has no blocks of kind {kind:?}")),
            }
            other_before = true;
        }
        for call in expected {
            self.must(answered.contains(call.as_str()), format!("call {call:?} has no result in the next message"));
        }
    }

    fn image(&mut self, block: &Value) {
        let source = block.get("source").unwrap_or(&Value::Null);
        let whole = match text(source, "type") {
            "base64" => {
                source.get("media_type").is_some_and(Value::is_string)
                    && source.get("data").is_some_and(Value::is_string)
            }
            "url" => text(source, "url").starts_with("http"),
            "file" => source.get("file_id").is_some_and(Value::is_string),
            _ => false,
        };
        self.must(whole, "an image's source is not one");
    }

    fn anthropic_result(&mut self, block: &Value) {
        let is_error = block.get("is_error") == Some(&Value::Bool(true));
        match block.get("content") {
            Some(Value::String(text)) => self.must(!(is_error && text.is_empty()), "an error has no content"),
            Some(Value::Array(items)) => {
                self.must(!(is_error && items.is_empty()), "an error has no content");
                for item in items {
                    match text(item, "type") {
                        "text" => self.must(!blank(text(item, "text")), "a text block of a result is blank"),
                        "image" => self.image(item),
                        "document" | "search_result" => {}
                        kind => self.must(false, format!("a result has no blocks of kind {kind:?}")),
                    }
                }
            }
            None => self.must(!is_error, "an error has no content"),
            Some(_) => self.must(false, "a result's content is text or blocks"),
        }
    }

    fn open_ai(&mut self, messages: &[Value]) {
        let mut waiting: HashSet<String> = HashSet::new();
        for (at, message) in messages.iter().enumerate() {
            self.at = at;
            let role = text(message, "role");
            if role != "tool" {
                self.must(waiting.is_empty(), format!("calls without results before it: {}", waiting.len()));
                waiting.clear();
            }
            match role {
                "assistant" => self.open_ai_turn(message, &mut waiting),
                "tool" => {
                    let id = text(message, "tool_call_id");
                    self.must(waiting.remove(id), format!("{id:?} was not called just before, or has two results"));
                    self.must(message.get("content").is_some_and(Value::is_string), "a result's content is not text");
                }
                "user" => self.open_ai_user(message),
                "system" | "developer" => {
                    self.must(!blank(text(message, "content")), "a system message is empty");
                }
                other => self.must(false, format!("there is no role {other:?}")),
            }
        }
        self.must(waiting.is_empty(), "the last calls have no results");
    }

    fn open_ai_turn(&mut self, message: &Value, waiting: &mut HashSet<String>) {
        let calls = array(message, "tool_calls");
        let said = !blank(text(message, "content"));
        self.must(said || !calls.is_empty(), "the assistant says and calls nothing");
        let listed = message.get("tool_calls").is_none() || !calls.is_empty();
        self.must(listed, "tool_calls is empty");
        for call in calls {
            let function = call.get("function").unwrap_or(&Value::Null);
            self.must(text(call, "type") == "function", "a call is not of type function");
            self.call(text(call, "id"), text(function, "name"));
            let arguments: Result<Value, _> = serde_json::from_str(text(function, "arguments"));
            self.must(arguments.is_ok_and(|value| value.is_object()), "a call's arguments are not JSON of an object");
            waiting.insert(text(call, "id").to_owned());
        }
    }

    fn open_ai_user(&mut self, message: &Value) {
        let parts = array(message, "content");
        self.must(!blank(text(message, "content")) || !parts.is_empty(), "the user says nothing");
        for part in parts {
            match text(part, "type") {
                "text" => self.must(!blank(text(part, "text")), "a text part is blank"),
                "image_url" => {
                    let url = part.get("image_url").map(|image| text(image, "url")).unwrap_or_default();
                    self.must(url.starts_with("http") || url.starts_with("data:"), "an image has no address");
                }
                "file" | "input_audio" => {}
                kind => self.must(false, format!("the user has no parts of kind {kind:?}")),
            }
        }
    }
}
