//! Compaction: many messages become a summary, and nothing is lost.
//!
//! It has two phases, so that a model can be asked in between by whoever can wait for it.
//! [`prepare`] chooses which messages go and writes the prompt; [`CompactionPlan::accept`] takes the
//! answer, and refuses one that does not parse, says nothing, forgets a pinned fact, or saves
//! nothing. Only an accepted [`Compaction`] is worth a new chapter; the messages stay in the log, and
//! the dropped range says which they were.
//!
//! [`Extractive`] is a summarizer that needs no model: it takes sentences out of the conversation by
//! what they say, and never writes one of its own.
//!
//! The agent that compacts has no tools, and a conversation that is itself a compaction is refused
//! ([`PrepareError::Nested`]).
//!
//! ```
//! use milepost_context::compact::{Extractive, Source, Summarizer, prepare};
//! use milepost_context::tokens::Tokenizer;
//! use milepost_model::{Message, Role};
//!
//! let messages: Vec<Message> = (0..40)
//!     .map(|i| Message::new(Role::Assistant, format!("I fixed parser fault {i}. It took a while, as these things do, and there was nothing special about it.")))
//!     .collect();
//! let source = Source { messages: &messages, ..Source::default() };
//! let plan = prepare(&source, 4, &Tokenizer::default()).unwrap();
//! let answer = Extractive::default().summarize(plan.old.as_ref(), plan.messages(&messages), &plan.pinned).unwrap();
//! let compaction = plan.accept(&answer, &Tokenizer::default()).unwrap();
//! assert_eq!(compaction.dropped, 0..36);
//! assert!(compaction.tokens_saved > 0);
//! ```

mod extract;
mod summary;

use std::collections::HashMap;
use std::ops::Range;

use milepost_model::Message;

use crate::history::calls_and_results;
use crate::tokens::Tokenizer;

pub use extract::Extractive;
pub use summary::{Summary, SummaryError};

/// The fewest messages that are worth a compaction.
pub const LEAST_MESSAGES: usize = 2;
/// The largest answer that is read, in bytes.
pub const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// The largest text of one message in the prompt, in characters; longer ones are cut in the middle.
pub const MAX_MESSAGE_CHARS: usize = 8_000;

/// Writes a summary.
pub trait Summarizer: Send + Sync {
    /// The JSON of a [`Summary`] of what the old summary and the messages say, with every pinned
    /// fact in it.
    fn summarize(
        &self,
        old: Option<&Summary>,
        messages: &[Message],
        pinned: &[String],
    ) -> Result<String, SummarizerError>;
}

/// Why there is no summary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no summary was written: {why}; the conversation stays as it is, try again later or with another summarizer")]
pub struct SummarizerError {
    /// What went wrong.
    pub why: String,
}

/// What is compacted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Source<'a> {
    /// The summary so far.
    pub old: Option<&'a Summary>,
    /// The messages of the current chapter, in order.
    pub messages: &'a [Message],
    /// Facts that every summary keeps, word for word.
    pub pinned: &'a [String],
    /// Whether the conversation is itself one that compacts another.
    pub compacting: bool,
}

/// Why a compaction does not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// A compaction never runs inside a compaction.
    #[error(
        "a compaction is under way in this conversation: wait for it to end, and compact the conversation that it is for"
    )]
    Nested,
    /// There is too little to compact.
    #[error("only {messages} messages could be summarised, {LEAST_MESSAGES} are the fewest: nothing to compact yet")]
    TooLittle {
        /// How many could go.
        messages: usize,
    },
}

/// Which messages go, and what a model is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionPlan {
    /// The messages that go: indexes into the chapter.
    pub dropped: Range<usize>,
    /// The summary so far.
    pub old: Option<Summary>,
    /// The facts that the new one must keep.
    pub pinned: Vec<String>,
    /// The tokens of what is replaced: the old summary and the messages that go.
    pub tokens_before: usize,
    /// What a model is asked. It answers in JSON and has no tools.
    pub prompt: String,
}

/// A compaction that can be committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Compaction {
    /// The new summary.
    pub summary: Summary,
    /// The messages that it stands for: indexes into the chapter.
    pub dropped: Range<usize>,
    /// The tokens of what it replaces.
    pub tokens_before: usize,
    /// Its own tokens.
    pub tokens_after: usize,
    /// The difference.
    pub tokens_saved: usize,
}

/// Why an answer is refused. The conversation stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It is too long to read.
    #[error(
        "the summary has {bytes} bytes, the limit is {MAX_ANSWER_BYTES}: nothing was compacted, ask again for a shorter one"
    )]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It is not the JSON of a summary.
    #[error("the summary cannot be read: {0}; nothing was compacted, ask again")]
    Unreadable(SummaryError),
    /// It has no item.
    #[error("the summary says nothing: nothing was compacted, ask again")]
    Empty,
    /// A pinned fact is not in it.
    #[error("the summary forgets a pinned fact, {0:?}: nothing was compacted, ask again")]
    Forgot(String),
    /// It is as long as what it would replace.
    #[error(
        "the summary has {after} tokens and would replace {before}: nothing was compacted, wait until there is more"
    )]
    SavesNothing {
        /// The tokens of what it would replace.
        before: usize,
        /// Its own tokens.
        after: usize,
    },
}

/// Chooses the messages that go: all but the last `keep`, and never so that a call goes and its
/// result stays.
pub fn prepare(source: &Source<'_>, keep: usize, tokenizer: &Tokenizer) -> Result<CompactionPlan, PrepareError> {
    if source.compacting {
        return Err(PrepareError::Nested);
    }
    let end = boundary(source.messages, source.messages.len().saturating_sub(keep));
    if end < LEAST_MESSAGES {
        return Err(PrepareError::TooLittle { messages: end });
    }
    let going = source.messages.get(..end).unwrap_or_default();
    let old = source.old.cloned();
    let mut pinned: Vec<String> = old.iter().flat_map(|old| old.pinned_facts.clone()).collect();
    for fact in source.pinned.iter().filter(|fact| !fact.trim().is_empty()) {
        if !pinned.contains(fact) {
            pinned.push(fact.clone());
        }
    }
    let before = old.as_ref().map_or(0, |old| tokenizer.count_text(&old.to_json()));
    Ok(CompactionPlan {
        dropped: 0..end,
        tokens_before: before + tokenizer.count_messages(going),
        prompt: summary::prompt(old.as_ref(), going, &pinned),
        old,
        pinned,
    })
}

/// The last place at or before `wanted` where no call goes whose result stays.
fn boundary(messages: &[Message], wanted: usize) -> usize {
    // How many more calls than results are open at each place, as changes from one to the next.
    let mut change = vec![0isize; messages.len() + 2];
    let mut open: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        let (calls, results) = calls_and_results(message);
        for call in calls {
            open.entry(call).or_default().push(index);
        }
        for result in results {
            if let Some(call) = open.get_mut(&result).and_then(Vec::pop) {
                let marks = [(call + 1, 1), (index + 1, -1)];
                for (at, by) in marks {
                    if let Some(mark) = change.get_mut(at) {
                        *mark += by;
                    }
                }
            }
        }
    }
    let mut depth = 0;
    let mut whole = 0;
    for (place, change) in change.iter().enumerate().take(wanted.min(messages.len()) + 1) {
        depth += change;
        if depth == 0 {
            whole = place;
        }
    }
    whole
}

impl CompactionPlan {
    /// The messages that go.
    pub fn messages<'a>(&self, chapter: &'a [Message]) -> &'a [Message] {
        chapter.get(self.dropped.clone()).unwrap_or_default()
    }

    /// Takes a summarizer's answer, or says why not. Fences and words around the JSON do not matter.
    pub fn accept(&self, answer: &str, tokenizer: &Tokenizer) -> Result<Compaction, Rejected> {
        if answer.len() > MAX_ANSWER_BYTES {
            return Err(Rejected::TooLong { bytes: answer.len() });
        }
        let mut summary = Summary::from_answer(answer).map_err(Rejected::Unreadable)?;
        if summary.is_empty() {
            return Err(Rejected::Empty);
        }
        if let Some(fact) = self.pinned.iter().find(|fact| !summary.says(fact)) {
            return Err(Rejected::Forgot(fact.clone()));
        }
        summary.pinned_facts.clone_from(&self.pinned);
        summary.version = self.old.as_ref().map_or(0, |old| old.version).saturating_add(1);
        let after = tokenizer.count_text(&summary.to_json());
        if after >= self.tokens_before {
            return Err(Rejected::SavesNothing { before: self.tokens_before, after });
        }
        Ok(Compaction {
            summary,
            dropped: self.dropped.clone(),
            tokens_before: self.tokens_before,
            tokens_after: after,
            tokens_saved: self.tokens_before - after,
        })
    }
}
