//! A summary without a model: sentences taken out of the conversation by what they say.

use std::collections::HashSet;

use milepost_model::{Block, Message, Role};
use serde_json::{Value, json};

use super::{Summarizer, SummarizerError, Summary};

/// Takes the sentences that tell what was done, is to do, was decided or is in the way, the latest
/// of each, and the files that were touched. Writes no word of its own, and the same conversation
/// always gives the same summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extractive {
    /// At most so many items of each kind.
    pub max_items: usize,
    /// At most so many characters an item; a longer one is cut at a word.
    pub max_chars: usize,
}

impl Default for Extractive {
    fn default() -> Self {
        Self { max_items: 12, max_chars: 200 }
    }
}

const DONE: [&str; 22] = [
    "fixed",
    "implemented",
    "added",
    "done",
    "completed",
    "created",
    "finished",
    "removed",
    "updated",
    "renamed",
    "wrote",
    "committed",
    "merged",
    "moved",
    "replaced",
    "refactored",
    "installed",
    "pass",
    "passes",
    "passed",
    "works now",
    "[x]",
];
const TO_DO: [&str; 14] = [
    "todo",
    "next",
    "still need",
    "remaining",
    "need to",
    "needs to",
    "have to",
    "will need",
    "left to do",
    "should",
    "not yet",
    "later",
    "[ ]",
    "pending",
];
const DECIDED: [&str; 15] = [
    "decided",
    "decision",
    "we will use",
    "we'll use",
    "let's use",
    "going with",
    "chose",
    "instead of",
    "agreed",
    "must",
    "always",
    "never",
    "prefer",
    "from now on",
    "because",
];
const BLOCKED: [&str; 14] = [
    "blocked",
    "blocker",
    "cannot",
    "can't",
    "fails",
    "failed",
    "failing",
    "error",
    "missing",
    "waiting for",
    "permission denied",
    "not found",
    "timed out",
    "unable to",
];
/// Fields of a call's arguments that name a file.
const FILE_KEYS: [&str; 6] = ["path", "file_path", "filePath", "filename", "file", "notebook_path"];

#[derive(Default)]
struct Taken {
    done: Vec<String>,
    to_do: Vec<String>,
    decided: Vec<String>,
    blocked: Vec<String>,
    files: Vec<String>,
    asked: Vec<String>,
}

impl Summarizer for Extractive {
    fn summarize(
        &self,
        old: Option<&Summary>,
        messages: &[Message],
        pinned: &[String],
    ) -> Result<String, SummarizerError> {
        let mut taken = Taken::default();
        for message in messages {
            self.read(message, &mut taken);
        }
        let empty = Summary::default();
        let old = old.unwrap_or(&empty);
        let none = [&taken.done, &taken.to_do, &taken.decided, &taken.blocked].iter().all(|list| list.is_empty());
        if none {
            taken.to_do.append(&mut taken.asked);
        }
        let mut summary = Summary {
            version: old.version,
            completed_items: self.latest(&old.completed_items, taken.done),
            pending_items: self.latest(&old.pending_items, taken.to_do),
            decisions: self.latest(&old.decisions, taken.decided),
            blockers: self.latest(&[], taken.blocked),
            pinned_facts: pinned.to_vec(),
            extra: old.extra.clone(),
        };
        let earlier: Vec<String> = match old.extra.get("filesTouched") {
            Some(Value::Array(files)) => files.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let files = self.latest(&earlier, taken.files);
        if !files.is_empty() {
            summary.extra.insert("filesTouched".to_owned(), json!(files));
        }
        if summary.is_empty() {
            return Err(SummarizerError { why: "the messages hold no text to take a summary from".to_owned() });
        }
        Ok(summary.to_json())
    }
}

impl Extractive {
    fn read(&self, message: &Message, taken: &mut Taken) {
        for block in crate::history::blocks(message) {
            match block {
                Block::Text { text, .. } => self.text(&message.role, &text, taken),
                Block::ToolCall { input, .. } => {
                    let file = FILE_KEYS.iter().find_map(|key| input.get(*key).and_then(Value::as_str));
                    taken.files.extend(file.and_then(|file| self.item(file)));
                }
                Block::ToolResult { content, is_error: true, .. } => {
                    let text = crate::history::result_text(&content);
                    let line = text.lines().find(|line| !line.trim().is_empty());
                    taken.blocked.extend(line.and_then(|line| self.item(line)));
                }
                _ => {}
            }
        }
    }

    fn text(&self, role: &Role, text: &str, taken: &mut Taken) {
        if !matches!(role, Role::User | Role::Assistant) {
            return;
        }
        let mut first = true;
        for sentence in sentences(text) {
            let Some(item) = self.item(sentence) else { continue };
            let words = words(sentence);
            let says = |cues: &[&str]| cues.iter().any(|cue| words.contains(&format!(" {cue} ")));
            if *role == Role::User && std::mem::take(&mut first) {
                taken.asked.push(item.clone());
            }
            let list = if says(&BLOCKED) {
                &mut taken.blocked
            } else if says(&TO_DO) {
                &mut taken.to_do
            } else if says(&DECIDED) {
                &mut taken.decided
            } else if *role == Role::Assistant && says(&DONE) {
                &mut taken.done
            } else {
                continue;
            };
            list.push(item);
        }
    }

    /// A sentence without its bullet, cut at a word when it is too long.
    fn item(&self, sentence: &str) -> Option<String> {
        let text = sentence.trim().trim_start_matches(['-', '*', '#', '>', ' ']).trim();
        if text.chars().filter(|c| c.is_alphanumeric()).count() < 3 {
            return None;
        }
        let end = text.char_indices().nth(self.max_chars).map_or(text.len(), |(at, _)| {
            let head = text.get(..at).unwrap_or_default();
            head.rfind(char::is_whitespace).filter(|space| *space > at / 2).unwrap_or(at)
        });
        Some(text.get(..end).unwrap_or_default().trim_end().to_owned())
    }

    /// The old items and the new ones, each once, the latest of them.
    fn latest(&self, old: &[String], new: Vec<String>) -> Vec<String> {
        let mut seen = HashSet::new();
        let all = old.iter().cloned().chain(new).rev().filter(|item| seen.insert(item.clone()));
        let mut items: Vec<String> = all.take(self.max_items).collect();
        items.reverse();
        items
    }
}

/// The sentences of a text: lines, cut after a full stop, a question mark or an exclamation mark
/// that white space follows.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines()
        .filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            fenced ^= fence;
            !fenced && !fence
        })
        .flat_map(|line| line.split_inclusive(". ").flat_map(|part| part.split_inclusive("? ")))
        .flat_map(|part| part.split_inclusive("! "))
        .map(str::trim)
        .filter(|sentence| !sentence.is_empty())
}

/// The words of a sentence in lower case, a space around each.
fn words(sentence: &str) -> String {
    let mut out = String::from(" ");
    for word in sentence.split_whitespace() {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric() && !matches!(c, '[' | ']'));
        out.extend(word.chars().flat_map(char::to_lowercase));
        out.push(' ');
    }
    out
}
