//! What comes back.

use milepost_model::{Block, Content, Message, Role, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::prices::Cost;

/// A piece of an answer, as it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece<'a> {
    /// More text.
    Text(&'a str),
    /// More of what the model thinks.
    Thinking(&'a str),
    /// A tool is about to be called.
    Call {
        /// The call's id.
        id: &'a str,
        /// The tool.
        name: &'a str,
    },
    /// More of the arguments of the call that was named last.
    Input(&'a str),
}

/// Who hears the pieces.
pub type Heard<'a> = &'a mut (dyn FnMut(Piece<'_>) + Send);

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The model was done.
    End,
    /// The model wants tools to be called.
    Tools,
    /// The answer reached its limit of tokens.
    MaxTokens,
    /// The answer reached one of the request's stop texts.
    StopText,
    /// The model or its provider would not answer.
    Refusal,
    /// Something else, in the provider's word.
    Other(String),
}

/// The tokens of a call, as the provider counted them. No token is in two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens that were sent and not cached.
    pub input_tokens: u64,
    /// Tokens of the answer, thinking included.
    pub output_tokens: u64,
    /// Tokens that were sent and read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Tokens that were sent and written to the provider's cache.
    pub cache_write_tokens: u64,
}

impl Usage {
    /// All that was sent.
    pub fn sent(&self) -> u64 {
        self.input_tokens.saturating_add(self.cache_read_tokens).saturating_add(self.cache_write_tokens)
    }
}

/// An answer, or what arrived of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The message, ready to be appended. Its other fields hold the provider's id, model, stop reason and usage as they
    /// came, `cost_usd` and `cost_as_of` when it is known, and `incomplete` with the reason when the answer is not whole.
    pub message: Message,
    /// Why it ended; none when it was cut.
    pub stop: Option<Stop>,
    /// Tokens.
    pub usage: Usage,
    /// What it cost; none when the model's price is not known.
    pub cost: Option<Cost>,
    /// When the next call makes sense: the provider said that this one used up a limit.
    pub ready_at: Option<Timestamp>,
}

/// The provider will not answer before a moment. Not a failure: whoever asked waits, or sleeps until then.
#[derive(Debug, Clone, PartialEq)]
pub struct Limited {
    /// When to ask again.
    pub until: Timestamp,
    /// What the provider said.
    pub why: String,
    /// Who said until when.
    pub told: Told,
    /// What had arrived when the limit was met in the middle of an answer.
    pub partial: Option<Box<Answer>>,
}

/// Who said when a limit ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The provider, with this header or in its message.
    Provider(&'static str),
    /// Nobody: [`crate::limits::DEFAULT_LIMIT_MS`] from now.
    Nobody,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The whole answer.
    Whole(Answer),
    /// The beginning of an answer. It is a valid message; calls of tools that were not complete are not in it. It may be empty,
    /// when nothing came but what it costs.
    Cut {
        /// What arrived.
        answer: Answer,
        /// Why no more did.
        why: Error,
    },
    /// Nothing before a moment.
    Limited(Limited),
}

/// A tool call whose arguments may not be complete.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OpenCall {
    pub id: String,
    pub name: String,
    pub input: String,
    pub extra: Map<String, Value>,
}

impl OpenCall {
    /// The call as a block. Arguments that are not JSON stay a text: whoever runs the tool tells the model.
    pub fn into_block(self) -> Block {
        let input = match self.input.trim() {
            "" => Value::Object(Map::new()),
            text => serde_json::from_str(text).unwrap_or(Value::String(self.input)),
        };
        Block::ToolCall { id: self.id, name: self.name, input, extra: self.extra }
    }

    /// The call as a note beside the message, when its arguments did not arrive in full.
    pub fn into_note(self) -> Value {
        serde_json::json!({"id": self.id, "name": self.name, "input": self.input})
    }
}

/// The message of these blocks: a lone text as plain text.
pub(crate) fn message(mut blocks: Vec<Block>, extra: Map<String, Value>) -> Message {
    let content = match blocks.as_mut_slice() {
        [] => Content::Text(String::new()),
        [Block::Text { text, extra }] if extra.is_empty() => Content::Text(std::mem::take(text)),
        _ => Content::Blocks(blocks),
    };
    Message { role: Role::Assistant, content, channel: Default::default(), extra }
}

/// Notes on a message that it is not whole.
pub(crate) fn note_incomplete(extra: &mut Map<String, Value>, why: &Error, calls: Vec<OpenCall>) {
    extra.insert("incomplete".to_owned(), Value::String(why.to_string()));
    if !calls.is_empty() {
        let calls = calls.into_iter().map(OpenCall::into_note).collect();
        extra.insert("incomplete_calls".to_owned(), Value::Array(calls));
    }
}
