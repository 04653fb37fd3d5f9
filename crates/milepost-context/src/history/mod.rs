//! Always-valid history: the conversation as a model may be given it, whatever a crash left behind.
//!
//! [`Rules::view`] reads messages as they were recorded and gives a [`View`]: the same conversation
//! in which every tool call has exactly one result right after it, ids are unique, links hold, and
//! nothing is empty. The record is never changed. What the view changed is in [`View::repairs`], in
//! words for a person. [`View::to_wire`] writes the view as the messages of a request, and [`check()`]
//! judges such messages by the provider's rules, knowing nothing of how they were made.
//!
//! A conversation is one channel: give the messages of one channel, in the order of the log.
//!
//! ```
//! use milepost_context::history::{Dialect, RepairKind, check, view};
//! use milepost_model::{Block, Message, Role};
//! use serde_json::json;
//!
//! // The process died between the call and its result.
//! let record = vec![
//!     Message::new(Role::User, "List the files."),
//!     Message::blocks(Role::Assistant, vec![Block::tool_call("c1", "ls", json!({"path": "."}))]),
//! ];
//! let view = view(&record, Dialect::Anthropic);
//! assert_eq!(view.repairs[0].kind, RepairKind::MissingResult);
//!
//! let wire = view.to_wire();
//! assert!(check(&wire.messages, Dialect::Anthropic).is_empty());
//! assert_eq!(wire.messages[2]["content"][0]["tool_use_id"], "c1");
//! ```

mod chain;
mod check;
mod heal;
mod ids;
mod pair;
mod read;
mod tidy;
mod wire;

use std::fmt;

use milepost_model::{Block, Channel, Content, Message, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use check::{Violation, check};
pub use heal::{heal_json, heal_text};
pub use read::{blocks, readable};
pub use wire::Wire;

/// Whose rules the conversation has to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// The Messages API of Anthropic.
    Anthropic,
    /// The Chat Completions API of OpenAI, and of the many that speak it.
    OpenAi,
}

impl Dialect {
    /// The longest id of a tool call, in characters.
    pub fn max_call_id(self) -> usize {
        match self {
            Dialect::Anthropic => 64,
            Dialect::OpenAi => 40,
        }
    }

    /// The longest name of a tool, in characters.
    pub fn max_tool_name(self) -> usize {
        match self {
            Dialect::Anthropic => 128,
            Dialect::OpenAi => 64,
        }
    }
}

/// What becomes of a tool result whose call is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Orphans {
    /// It is left out.
    #[default]
    Drop,
    /// It is kept as text, so that the model still sees what the tool said.
    AsText,
}

/// What is made of the links between messages (`parentUuid` and the like).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Links {
    /// The order of the log rules; a link that does not hold is cut.
    #[default]
    Check,
    /// Only the messages that lead to the last one are seen; the others are on another branch.
    Follow,
}

/// How a conversation is made valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Whose rules it has to follow.
    pub dialect: Dialect,
    /// What becomes of a result without a call.
    pub orphans: Orphans,
    /// What is made of links between messages.
    pub links: Links,
    /// Whether terminal control sequences are taken out of texts.
    pub strip_ansi: bool,
}

impl Rules {
    /// The rules of a dialect, with orphans dropped, links checked and terminal sequences kept.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, orphans: Orphans::Drop, links: Links::Check, strip_ansi: false }
    }

    /// The valid view of a conversation. Deterministic; a view of a view changes nothing.
    pub fn view(&self, messages: &[Message]) -> View {
        let mut log = Log::default();
        let mut items: Vec<Item> = Vec::with_capacity(messages.len());
        for index in chain::order(messages, self.links, &mut log) {
            if let Some(message) = messages.get(index) {
                items.push(read::item(index, message));
            }
        }
        heal::items(&mut items, self.strip_ansi, &mut log);
        chain::mend(&mut items, &mut log);
        let links = chain::links(&items);
        tidy::blocks(&mut items, self.dialect, &mut log);
        let mut items = pair::pair(items, self, &mut log);
        tidy::edges(&mut items, self.dialect, &mut log);
        chain::relink(&mut items, links);
        log.0.sort_by_key(|repair| repair.source.unwrap_or(usize::MAX));
        View { dialect: self.dialect, messages: items.into_iter().map(Item::into_seen).collect(), repairs: log.0 }
    }
}

/// The valid view of a conversation under the default rules of a dialect.
pub fn view(messages: &[Message], dialect: Dialect) -> View {
    Rules::new(dialect).view(messages)
}

/// A conversation that can be handed to a model, and what had to be repaired for it.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Whose rules it follows.
    pub dialect: Dialect,
    /// The messages, in order.
    pub messages: Vec<Seen>,
    /// What differs from the record, in its order.
    pub repairs: Vec<Repair>,
}

impl View {
    /// The messages alone.
    pub fn into_messages(self) -> Vec<Message> {
        self.messages.into_iter().map(|seen| seen.message).collect()
    }

    /// The messages of a request, as the dialect's provider takes them.
    pub fn to_wire(&self) -> Wire {
        wire::write(self)
    }
}

/// One message of a view.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// The message.
    pub message: Message,
    /// Which recorded message it comes from; none when it was made for the view.
    pub source: Option<usize>,
}

/// One difference between the record and the view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repair {
    /// What kind of difference.
    pub kind: RepairKind,
    /// The index of the recorded message it is about.
    pub source: Option<usize>,
    /// What was wrong and what the view does about it, for a person.
    pub why: String,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(index) => write!(f, "message {index}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// The kinds of difference between a record and its view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RepairKind {
    /// A call has no result; one that says so was put in.
    MissingResult,
    /// A result has no call.
    OrphanResult,
    /// A result stands elsewhere than right after its call; it was moved.
    MovedResult,
    /// A second result for one call was left out.
    DuplicateResult,
    /// The same call was recorded twice; the second was left out.
    DuplicateCall,
    /// The same message was recorded twice; one was left out.
    DuplicateMessage,
    /// Two different messages have one id; both are kept.
    SharedId,
    /// A call's id is used twice, or is not one the provider takes; it was renamed.
    RenamedCall,
    /// A tool's name is not one the provider takes; it was renamed.
    RenamedTool,
    /// A call stands in a message that is not the assistant's; it is kept as text.
    MisplacedCall,
    /// A call's arguments are not an object; they were wrapped.
    WrappedInput,
    /// A link to a message that is not there, or comes later, was cut.
    BrokenParent,
    /// Links that lead back to where they began were cut.
    Cycle,
    /// The message does not lead to the last one and links are followed.
    OtherBranch,
    /// Characters that no text should have were taken out.
    HealedText,
    /// A block without content was left out.
    EmptyBlock,
    /// A message without content was left out.
    EmptyMessage,
    /// A thought without the provider's signature was left out.
    UnsignedThinking,
    /// A thought with nothing after it was left out.
    TrailingThinking,
    /// A provider's own tool call or result without its counterpart was left out.
    UnpairedServerTool,
    /// The conversation begins with the assistant; a user's message was put before it.
    NoOpening,
    /// White space at the end of the last answer was left out.
    TrailingSpace,
}

/// Collects repairs.
#[derive(Debug, Default)]
struct Log(Vec<Repair>);

impl Log {
    fn add(&mut self, kind: RepairKind, source: Option<usize>, why: impl Into<String>) {
        self.0.push(Repair { kind, source, why: why.into() });
    }
}

/// A message while it is worked on: always blocks.
#[derive(Debug, Clone, PartialEq)]
struct Item {
    source: Option<usize>,
    role: Role,
    blocks: Vec<Block>,
    /// The record had plain text.
    plain: bool,
    channel: Channel,
    extra: Map<String, Value>,
}

impl Item {
    fn new(source: Option<usize>, role: Role, blocks: Vec<Block>, channel: Channel) -> Self {
        Self { source, role, blocks, plain: false, channel, extra: Map::new() }
    }

    fn is_assistant(&self) -> bool {
        self.role == Role::Assistant
    }

    fn into_seen(mut self) -> Seen {
        let content = match self.blocks.as_mut_slice() {
            [Block::Text { text, extra }] if self.plain && extra.is_empty() => Content::Text(std::mem::take(text)),
            _ => Content::Blocks(self.blocks),
        };
        Seen {
            source: self.source,
            message: Message { role: self.role, content, channel: self.channel, extra: self.extra },
        }
    }
}

/// The ids that a message calls, and those that it answers.
pub(crate) fn calls_and_results(message: &Message) -> (Vec<String>, Vec<String>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    for block in read::item(0, message).blocks {
        match block {
            Block::ToolCall { id, .. } => calls.push(id),
            Block::ToolResult { call_id, .. } => results.push(call_id),
            _ => {}
        }
    }
    (calls, results)
}

/// A tool result's content as text.
pub(crate) fn result_text(content: &Value) -> String {
    wire::plain_text(content)
}

/// A name for a message, short enough for a line.
fn short(text: &str) -> String {
    const MAX: usize = 48;
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("{:?}…", text.get(..at).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
