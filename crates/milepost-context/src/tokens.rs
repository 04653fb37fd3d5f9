//! How many tokens a text costs, offline.
//!
//! A [`Tokenizer`] is chosen by the model's name. The vocabularies are in the program; the one that
//! is needed is unpacked at its first use (about a seventh of a second and 60 MB for `o200k_base`)
//! and then shared.
//!
//! | models | counted with | margin |
//! |---|---|---|
//! | OpenAI `gpt-5…`, `gpt-4.1…`, `gpt-4o…`, `o1`, `o3`, `o4-mini` | `o200k_base` | exact |
//! | OpenAI `gpt-4`, `gpt-3.5…`, `text-embedding-3…` | `cl100k_base` | exact |
//! | `gpt-oss…` | `o200k_harmony` | exact |
//! | open models whose vocabulary is public: Llama 3, Qwen, DeepSeek, Mistral, Kimi, GLM, MiniMax | their own | exact |
//! | Claude | `o200k_base` | estimate: × 1.35. There is no public tokenizer; recent models count up to about a third more on prose and code |
//! | all others | `o200k_base` | estimate: × 1.2 |
//!
//! "Exact" is about text. What a provider adds around messages is not published for all models:
//! [`MESSAGE_OVERHEAD`], [`BLOCK_OVERHEAD`] and [`IMAGE_TOKENS`] stand for it and are generous.
//!
//! Text is counted in pieces of at most [`PIECE_BYTES`], cut where two words meet, so that a huge
//! text of one character costs time in proportion to its length. Where a cut falls inside a word of
//! that size, the count may differ from the provider's by one or two per piece.
//!
//! ```
//! use milepost_context::tokens::Tokenizer;
//!
//! let tokenizer = Tokenizer::for_model("gpt-4o");
//! assert_eq!(tokenizer.count_text("Where were we?"), 4);
//! assert!(tokenizer.is_exact());
//! assert!(!Tokenizer::for_model("claude-sonnet-4-5").is_exact());
//! ```

use std::fmt;

use milepost_model::{Block, Content, Message};
use serde_json::Value;
use tiktoken::CoreBpe;

/// Tokens that a message costs beyond its content: its role and what separates it from the next.
pub const MESSAGE_OVERHEAD: usize = 4;
/// Tokens that a call, a result or another block that is not text costs beyond its content.
pub const BLOCK_OVERHEAD: usize = 8;
/// Tokens that a picture counts for, whatever its size.
pub const IMAGE_TOKENS: usize = 1600;
/// The longest piece of text that is counted at once, in bytes.
pub const PIECE_BYTES: usize = 16 * 1024;

/// The factor for Claude, in hundredths.
const CLAUDE_PERCENT: usize = 135;
/// The factor for models that nothing is known of, in hundredths.
const OTHER_PERCENT: usize = 120;
/// What models are counted with that have no public vocabulary.
const FALLBACK: &str = "o200k_base";

/// Counts the tokens of one model.
#[derive(Clone, Copy)]
pub struct Tokenizer {
    /// None when the vocabulary is not in the program; then a token is taken to be two bytes.
    vocabulary: Option<&'static CoreBpe>,
    name: &'static str,
    percent: usize,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.name).field("percent", &self.percent).finish()
    }
}

impl Default for Tokenizer {
    /// The tokenizer of current OpenAI models, without a margin.
    fn default() -> Self {
        Self::named(FALLBACK, 100)
    }
}

impl Tokenizer {
    /// The tokenizer for a model, by its name; a provider's prefix (`anthropic/…`) and the case do
    /// not matter.
    pub fn for_model(model: &str) -> Self {
        let name = model.to_ascii_lowercase();
        if name.contains("claude") {
            return Self::named(FALLBACK, CLAUDE_PERCENT);
        }
        let bare = name.rsplit(['/', ':']).find(|part| part.chars().any(char::is_alphabetic)).unwrap_or(&name);
        match tiktoken::model_to_encoding(bare) {
            Some(encoding) => Self::named(encoding, 100),
            None => Self::named(FALLBACK, OTHER_PERCENT),
        }
    }

    fn named(name: &'static str, percent: usize) -> Self {
        Self { vocabulary: tiktoken::get_encoding(name), name, percent }
    }

    /// Whether texts are counted as the model's provider counts them.
    pub fn is_exact(&self) -> bool {
        self.percent == 100 && self.vocabulary.is_some()
    }

    /// The name of the vocabulary.
    pub fn vocabulary(&self) -> &'static str {
        self.name
    }

    /// The tokens of a text.
    pub fn count_text(&self, text: &str) -> usize {
        self.with_margin(pieces(text).map(|piece| self.raw(piece)).sum())
    }

    /// Whether a text has at most `limit` tokens, and how many. Stops counting when it has more.
    pub fn count_up_to(&self, text: &str, limit: usize) -> Option<usize> {
        let mut raw = 0;
        for piece in pieces(text) {
            raw += self.raw(piece);
            if self.with_margin(raw) > limit {
                return None;
            }
        }
        Some(self.with_margin(raw))
    }

    /// The tokens of a message: its content, and what the provider adds around it.
    pub fn count_message(&self, message: &Message) -> usize {
        let content = match &message.content {
            Content::Text(text) => self.count_text(text),
            Content::Blocks(blocks) => blocks.iter().map(|block| self.count_block(block)).sum(),
        };
        // Calls that another provider's form keeps beside the content.
        let beside: usize = ["tool_calls", "toolCalls", "toolResults", "tool_results"]
            .iter()
            .filter_map(|key| message.extra.get(*key))
            .map(|value| self.count_value(value) + BLOCK_OVERHEAD)
            .sum();
        MESSAGE_OVERHEAD + content + beside
    }

    /// The tokens of messages.
    pub fn count_messages<'a>(&self, messages: impl IntoIterator<Item = &'a Message>) -> usize {
        messages.into_iter().map(|message| self.count_message(message)).sum()
    }

    /// The tokens of a JSON value, written without white space.
    pub fn count_value(&self, value: &Value) -> usize {
        match value {
            Value::String(text) => self.count_text(text) + 1,
            other => self.count_text(&other.to_string()),
        }
    }

    fn count_block(&self, block: &Block) -> usize {
        match block {
            Block::Text { text, .. } => self.count_text(text) + 1,
            Block::Thinking { text, extra } => {
                let signature = extra.get("signature").map_or(0, |signature| self.count_value(signature));
                self.count_text(text) + signature + BLOCK_OVERHEAD
            }
            Block::ToolCall { id, name, input, .. } => {
                self.count_text(id) + self.count_text(name) + self.count_value(input) + BLOCK_OVERHEAD
            }
            Block::ToolResult { call_id, content, .. } => {
                self.count_text(call_id) + self.count_content(content) + BLOCK_OVERHEAD
            }
            Block::Image { .. } => IMAGE_TOKENS,
            Block::Unknown(value) => self.count_content(value) + BLOCK_OVERHEAD,
        }
    }

    /// A tool's answer: a picture in it counts as a picture, not as the letters of its bytes.
    fn count_content(&self, content: &Value) -> usize {
        let one = |item: &Value| match item.get("type").and_then(Value::as_str) {
            Some("image" | "image_url" | "input_image") => IMAGE_TOKENS,
            _ => self.count_value(item),
        };
        match content {
            Value::Array(items) => items.iter().map(|item| one(item) + 1).sum::<usize>() + 2,
            other => one(other),
        }
    }

    fn raw(&self, piece: &str) -> usize {
        match self.vocabulary {
            Some(vocabulary) => vocabulary.count(piece),
            None => piece.len().div_ceil(2),
        }
    }

    /// Rounded up, so that an estimate is never below its vocabulary's count.
    fn with_margin(&self, raw: usize) -> usize {
        if self.percent == 100 { raw } else { raw.saturating_mul(self.percent).div_ceil(100) }
    }
}

/// The text in pieces of at most [`PIECE_BYTES`], cut before the white space nearest to the end of
/// each, or where there is none, between two characters.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(cut(rest));
        rest = after;
        Some(piece)
    })
}

fn cut(text: &str) -> usize {
    if text.len() <= PIECE_BYTES {
        return text.len();
    }
    let end = text.floor_char_boundary(PIECE_BYTES);
    let window = text.get(..end).unwrap_or(text).as_bytes();
    // A single space between two letters or digits: every vocabulary begins a new word there.
    let between = |at: usize| {
        let near = |at: usize| window.get(at).is_some_and(u8::is_ascii_alphabetic);
        window.get(at) == Some(&b' ') && near(at + 1) && at > 0 && near(at - 1)
    };
    (PIECE_BYTES / 2..end).rev().find(|at| between(*at)).unwrap_or(end)
}
