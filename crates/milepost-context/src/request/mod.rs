//! A request that fits: who the agent is, what it works on, how far it came, what was said last, and
//! what the user asks, always within a budget of tokens.
//!
//! The system prompt has the parts role, instructions, context, work progress and recent
//! conversation, in this order; a part without content is left out. What does not fit is shed in a
//! fixed order, and [`Request::left_out`] says what and why:
//!
//! 1. messages, the oldest first, down to the newest that have a quarter of the budget together;
//! 2. parts of the context, the least important first (see [`context_parts`]), and with them the
//!    other messages; the last part that has some room is cut at a line;
//! 3. items of the work progress: what is done, then decisions, then blockers, then what is to do, in
//!    each the oldest first; pinned facts last of all.
//!
//! The role, the instructions and the user's prompt are never cut. When they alone do not fit,
//! [`RequestError::TooLarge`] names the limit.
//!
//! ```
//! use milepost_context::request::{AgentDescription, RequestParts, build_request};
//! use milepost_context::tokens::Tokenizer;
//! use milepost_model::{Message, Role};
//!
//! let parts = RequestParts {
//!     agent: AgentDescription::built_in("dev").unwrap_or_default(),
//!     messages: vec![Message::new(Role::User, "The login page is blank.")],
//!     user_prompt: "Find out why.".into(),
//!     ..RequestParts::default()
//! };
//! let request = build_request(&parts, 2_000, &Tokenizer::default()).unwrap();
//! assert!(request.total_tokens <= 2_000);
//! assert!(request.system_prompt.contains("The login page is blank."));
//! ```

mod agent;
mod fit;
mod render;

use milepost_model::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::compact::Summary;
use crate::history::{Dialect, View};
use crate::tokens::{MESSAGE_OVERHEAD, Tokenizer};

pub use agent::AgentDescription;
pub use render::context_parts;

/// The budget when none is given, in tokens.
pub const DEFAULT_BUDGET: usize = 100_000;
/// How many messages a request shows when nothing else is said.
pub const DEFAULT_MESSAGES: usize = 50;
/// What an estimate keeps free for the user's prompt when nothing else is said, in tokens.
pub const RESERVED_FOR_PROMPT: usize = 1_000;

/// What the agent works on.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Context {
    /// Nothing is known.
    #[default]
    None,
    /// Text, shown as it is.
    Text(String),
    /// A document: each field of it is a part.
    Structured(Value),
}

/// What a request is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestParts {
    /// Who the agent is.
    pub agent: AgentDescription,
    /// What it works on.
    pub context: Context,
    /// How far it came.
    pub summary: Option<Summary>,
    /// What was said, in order.
    pub messages: Vec<Message>,
    /// How many of the messages are shown at most, from the end.
    pub last_messages: usize,
    /// What the user asks.
    pub user_prompt: String,
    /// What an estimate keeps free for the user's prompt, in tokens.
    pub reserve_tokens: usize,
}

impl Default for RequestParts {
    fn default() -> Self {
        Self {
            agent: AgentDescription::default(),
            context: Context::None,
            summary: None,
            messages: Vec::new(),
            last_messages: DEFAULT_MESSAGES,
            user_prompt: String::new(),
            reserve_tokens: RESERVED_FOR_PROMPT,
        }
    }
}

/// A request within its budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// Everything but the user's prompt.
    pub system_prompt: String,
    /// What the user asks.
    pub user_prompt: String,
    /// The tokens of both, with what the provider adds around them.
    pub total_tokens: usize,
    /// The tokens of each part.
    pub parts: PartTokens,
    /// What did not fit.
    pub left_out: Vec<LeftOut>,
}

/// A request as a system prompt and a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagesRequest {
    /// The system prompt, without the conversation.
    pub system_prompt: String,
    /// The conversation, valid for the dialect, the user's prompt at its end.
    pub view: View,
    /// The tokens of everything.
    pub total_tokens: usize,
    /// The tokens of each part.
    pub parts: PartTokens,
    /// What did not fit.
    pub left_out: Vec<LeftOut>,
}

/// The tokens of each part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartTokens {
    /// The role and the instructions.
    pub agent: usize,
    /// The context.
    pub context: usize,
    /// The work progress.
    pub summary: usize,
    /// The conversation.
    pub messages: usize,
    /// The user's prompt.
    pub user_prompt: usize,
}

/// Something that is not in the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// What it is.
    pub what: String,
    /// Why it is not there.
    pub why: String,
}

/// Why there is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// What is never cut does not fit.
    #[error(
        "the request does not fit its budget: {what} needs {tokens} tokens, the limit budget is {budget}; shorten it or raise the budget"
    )]
    TooLarge {
        /// What does not fit.
        what: &'static str,
        /// How many tokens it needs.
        tokens: usize,
        /// The budget.
        budget: usize,
    },
}

/// Builds a request of at most `budget` tokens.
pub fn build_request(parts: &RequestParts, budget: usize, tokenizer: &Tokenizer) -> Result<Request, RequestError> {
    let mut fit = fit::Fit::new(parts, budget, tokenizer)?;
    if !fit.all() {
        fit.summary();
        fit.context();
        fit.conversation();
        fit.settle();
    }
    let system_prompt = fit.system_prompt();
    let (total_tokens, part_tokens) = (fit.total(&system_prompt), fit.part_tokens());
    Ok(Request {
        system_prompt,
        user_prompt: parts.user_prompt.clone(),
        total_tokens,
        parts: part_tokens,
        left_out: fit.left_out(),
    })
}

/// Builds a request of at most `budget` tokens whose conversation is messages, valid for the dialect.
/// What does not fit is shed in the same order.
pub fn build_messages(
    parts: &RequestParts,
    dialect: Dialect,
    budget: usize,
    tokenizer: &Tokenizer,
) -> Result<MessagesRequest, RequestError> {
    let mut fit = fit::Fit::new(parts, budget, tokenizer)?;
    fit.summary();
    fit.context();
    fit.settle();
    let (system_prompt, view, total_tokens, conversation) = fit.window(dialect);
    let part_tokens = PartTokens { messages: conversation, ..fit.part_tokens() };
    Ok(MessagesRequest { system_prompt, view, total_tokens, parts: part_tokens, left_out: fit.left_out() })
}

/// The tokens that a request would have with nothing shed, with `reserve_tokens` kept
/// free for the user's prompt. Over the budget, it is time to compact.
pub fn estimate_request_size(parts: &RequestParts, tokenizer: &Tokenizer) -> usize {
    let whole = fit::whole(parts);
    tokenizer.count_text(&whole) + parts.reserve_tokens + 2 * MESSAGE_OVERHEAD
}
