//! Messages as other tools write them.

use milepost_model::Message;
use serde_json::Value;

use crate::error::{Error, Result};

/// Reads a message from JSON that came from outside. OpenAI writes `"content": null` where a message only calls tools: it
/// says nothing, and is kept so.
pub fn parse_message(mut value: Value) -> Result<Message> {
    if let Value::Object(map) = &mut value {
        let calls = ["tool_calls", "toolCalls", "function_call", "tool_results", "toolResults"];
        let has_calls = calls.iter().any(|key| map.contains_key(*key));
        if map.get("content").is_none_or(Value::is_null) && (has_calls || map.contains_key("content")) {
            map.insert("content".to_owned(), Value::String(String::new()));
        }
    }
    serde_json::from_value(value).map_err(|error| {
        Error::malformed("this is not a message", error.to_string(), "write {\"role\": \"user\", \"content\": \"…\"}")
    })
}
