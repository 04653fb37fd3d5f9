//! What a model gets to see of a session, and what never reaches the store.
//!
//! - [`history`]: the conversation, always valid for the model, whatever a crash left behind;
//! - [`tokens`]: what a text costs, counted offline;
//! - [`request`]: a request within a budget of tokens;
//! - [`compact`]: many messages become a summary, and nothing is lost;
//! - [`redact`]: secrets are taken out before anything is written.
//!
//! Nothing here does I/O, tells the time or waits. Everything is a function of what it is given.
//!
//! ```
//! use milepost_context::history::{Dialect, view};
//! use milepost_context::redact::Rules;
//! use milepost_context::request::{AgentDescription, RequestParts, build_messages};
//! use milepost_context::tokens::Tokenizer;
//! use milepost_model::{Block, Message, Policy, Role};
//! use serde_json::json;
//!
//! // Before a message is written, secrets are taken out of it.
//! let redactor = Rules::from_policy(&Policy::default()).build();
//! let mut call = Message::blocks(Role::Assistant, vec![Block::tool_call("c1", "login", json!({"password": "hunter2"}))]);
//! assert_eq!(redactor.message(&mut call).len(), 1);
//!
//! // After a crash the call has no result. What the model is given is valid all the same.
//! let record = vec![Message::new(Role::User, "Log in."), call];
//! let shown = view(&record, Dialect::Anthropic);
//! assert_eq!(shown.repairs[0].to_string(), "message 1: call \"c1\" has no result: shown as interrupted");
//!
//! // And it fits.
//! let parts = RequestParts {
//!     agent: AgentDescription::built_in("dev").unwrap_or_default(),
//!     messages: record,
//!     user_prompt: "Go on.".into(),
//!     ..RequestParts::default()
//! };
//! let tokenizer = Tokenizer::for_model("claude-sonnet-4-5");
//! let request = build_messages(&parts, Dialect::Anthropic, 4_000, &tokenizer).unwrap();
//! assert!(request.total_tokens <= 4_000);
//! assert_eq!(request.view.to_wire().messages.len(), 3);
//! ```

pub mod compact;
pub mod history;
pub mod redact;
pub mod request;
pub mod tokens;
