//! What a model is asked.

use milepost_model::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::limits::DEFAULT_MAX_TOKENS;

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    #[serde(default)]
    pub description: String,
    /// Its arguments, as a JSON schema.
    #[serde(default = "any_object")]
    pub input_schema: Value,
}

fn any_object() -> Value {
    serde_json::json!({"type": "object"})
}

/// What a model is asked: a conversation, and what it may do.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Instructions.
    pub system: Option<String>,
    /// The conversation: one channel's messages, in the order of the log. It may hold whatever a crash left behind; the
    /// client sends a valid view of it.
    pub messages: Vec<Message>,
    /// The tools that the model may call.
    pub tools: Vec<Tool>,
    /// The most tokens of the answer.
    pub max_tokens: u32,
    /// How much chance there is in the answer; none leaves it to the provider. Several models take no other value.
    pub temperature: Option<f64>,
    /// Texts at which the answer ends.
    pub stop: Vec<String>,
    /// The same key for every attempt of the same call, for providers that honour it.
    pub idempotency_key: Option<String>,
    /// Further fields of the request's body, as the provider names them.
    pub extra: Map<String, Value>,
}

impl Request {
    /// Asks for the next message of a conversation.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            system: None,
            messages,
            tools: Vec::new(),
            max_tokens: DEFAULT_MAX_TOKENS,
            temperature: None,
            stop: Vec::new(),
            idempotency_key: None,
            extra: Map::new(),
        }
    }

    /// Puts the further fields into a body. Those that the client itself decides about stay as they are.
    pub(crate) fn add_extra(&self, body: &mut Map<String, Value>) {
        for (name, value) in &self.extra {
            body.entry(name.as_str()).or_insert_with(|| value.clone());
        }
    }
}
