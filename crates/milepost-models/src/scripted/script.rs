//! The script: replies, read with the place of every mistake.

use std::io::Read;
use std::path::Path;

use milepost_document::{Data, Diagnostic, Format, Limit, Limits, Node, Origin, nearest, read as read_document};
use serde_json::Value;

use crate::answer::{Stop, Usage};
use crate::error::Error;

/// The largest script (1 MiB).
const MAX_SCRIPT_BYTES: usize = 1 << 20;
const LIMITS: Limits = Limits {
    bytes: Limit { name: "MAX_SCRIPT_BYTES", at: MAX_SCRIPT_BYTES },
    depth: Limit { name: "MAX_SCRIPT_DEPTH", at: 32 },
    values: Limit { name: "MAX_SCRIPT_VALUES", at: 100_000 },
};
/// The longest delay of a piece, in milliseconds (1 hour).
const MAX_DELAY_MS: u64 = 3_600_000;

#[derive(Debug)]
pub(super) struct Script {
    pub place: String,
    pub name: String,
    pub replies: Vec<Reply>,
    pub repeats_last: bool,
}

#[derive(Debug)]
pub(super) enum Reply {
    Says { when: Option<String>, spoken: Spoken },
    Fails { when: Option<String>, failure: Failure, times: u32 },
}

impl Reply {
    pub fn fits(&self, asked: &str) -> bool {
        let (Reply::Says { when, .. } | Reply::Fails { when, .. }) = self;
        when.as_ref().is_none_or(|when| asked.contains(when.as_str()))
    }
}

#[derive(Debug, Default)]
pub(super) struct Spoken {
    pub thinking: Vec<String>,
    pub pieces: Vec<String>,
    pub calls: Vec<Call>,
    pub delay_ms: u64,
    pub stop: Option<Stop>,
    pub usage: Option<Usage>,
    pub cost_usd: Option<f64>,
    pub cut: Option<String>,
}

#[derive(Debug)]
pub(super) struct Call {
    pub id: Option<String>,
    pub name: String,
    pub input: Value,
}

#[derive(Debug)]
pub(super) enum Failure {
    Limited { after_ms: i64, why: String },
    Unavailable(String),
    Unreachable(String),
    Refused(String),
    TooLong(String),
}

pub(super) fn read_file(path: &Path) -> Result<String, Error> {
    let failed = |error: std::io::Error| {
        let why = format!("the script cannot be read: {error}");
        Error::config(path.display().to_string(), why, "check that it is there and may be read")
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_SCRIPT_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| failed(std::io::Error::other("it is not UTF-8")))
}

pub(super) fn read(path: &Path, text: &str) -> Result<Script, Error> {
    let mut found = Vec::new();
    let tree = read_document(path, text, Format::of(path), &LIMITS, &mut found);
    let mut reader = Reader { found };
    let script = tree.and_then(|tree| reader.script(&tree, path));
    match (reader.found.first(), script) {
        (None, Some(script)) => Ok(script),
        (Some(first), _) => Err(Error::config(first.origin.to_string(), first.told(), first.instead.clone())),
        (None, None) => Err(Error::config(path.display().to_string(), "it is not a script", "write replies: […]")),
    }
}

struct Reader {
    found: Vec<Diagnostic>,
}

const SCRIPT: &[&str] = &["name", "replies", "after_last"];
const REPLY: &[&str] = &[
    "when", "text", "pieces", "thinking", "calls", "delay_ms", "stop", "usage", "cost_usd", "cut", "limited", "error",
    "times",
];
const STOPS: &[&str] = &["end", "tools", "max_tokens", "stop_text", "refusal"];
const ERRORS: &[&str] = &["unavailable", "unreachable", "refused", "too_long"];

impl Reader {
    fn wrong(&mut self, at: &Origin, key: &str, why: impl Into<String>, instead: impl Into<String>) {
        self.found.push(Diagnostic::error(at, key, why, instead));
    }

    /// The section's entries, when it is one and has only keys that are known.
    fn section<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Option<&'n Node> {
        let Data::Map(items) = &node.data else {
            self.wrong(&node.origin, what, format!("{} stands here", node.kind()), "write its keys below it");
            return None;
        };
        for (key, at, _) in items {
            if !known.contains(&key.as_str()) {
                let instead = nearest(key, known.iter().copied()).map_or_else(
                    || format!("write one of {}", known.join(", ")),
                    |name| format!("did you mean {name}?"),
                );
                let key: String = key.chars().take(80).collect();
                self.wrong(at, what, format!("there is no key {key:?}"), instead);
            }
        }
        Some(node)
    }

    fn script(&mut self, tree: &Node, path: &Path) -> Option<Script> {
        let tree = self.section(tree, "", SCRIPT)?;
        let name = tree.get("name").and_then(|node| self.text(node, "name")).unwrap_or_else(|| "scripted".to_owned());
        let repeats_last = match tree.get("after_last") {
            Some(node) => self.choice(node, "after_last", &["fail", "repeat"])? == "repeat",
            None => false,
        };
        let replies = match tree.get("replies").map(|node| &node.data) {
            Some(Data::List(items)) => items.iter().filter_map(|item| self.reply(item)).collect(),
            _ => {
                self.wrong(
                    &tree.origin,
                    "replies",
                    "there is no list of replies",
                    "write replies: and a list below it",
                );
                return None;
            }
        };
        Some(Script { place: path.display().to_string(), name, replies, repeats_last })
    }

    fn reply(&mut self, node: &Node) -> Option<Reply> {
        let node = self.section(node, "reply", REPLY)?;
        let when = node.get("when").and_then(|when| self.text(when, "when"));
        let times = node.get("times").map_or(Some(1), |times| self.number(times, "times", 1_000_000));
        let times = u32::try_from(times?).ok()?;
        if let Some(limited) = node.get("limited") {
            let limited = self.section(limited, "limited", &["after_ms", "why"])?;
            let after = limited.get("after_ms").map_or(Some(60_000), |ms| self.number(ms, "after_ms", 691_200_000));
            let why = limited.get("why").and_then(|why| self.text(why, "why"));
            let why = why.unwrap_or_else(|| "the script says so".to_owned());
            let failure = Failure::Limited { after_ms: i64::try_from(after?).ok()?, why };
            return Some(Reply::Fails { when, failure, times });
        }
        if let Some(error) = node.get("error") {
            let error = self.section(error, "error", &["kind", "why"])?;
            let kind =
                error.get("kind").map_or(Some("unavailable".to_owned()), |kind| self.choice(kind, "kind", ERRORS));
            let why = error.get("why").and_then(|why| self.text(why, "why"));
            let why = why.unwrap_or_else(|| "the script says so".to_owned());
            let failure = match kind?.as_str() {
                "unavailable" => Failure::Unavailable(why),
                "unreachable" => Failure::Unreachable(why),
                "too_long" => Failure::TooLong(why),
                _ => Failure::Refused(why),
            };
            return Some(Reply::Fails { when, failure, times });
        }
        let mut spoken = Spoken {
            thinking: node.get("thinking").map_or(Some(Vec::new()), |node| self.texts(node, "thinking"))?,
            delay_ms: node.get("delay_ms").map_or(Some(0), |node| self.number(node, "delay_ms", MAX_DELAY_MS))?,
            cut: node.get("cut").and_then(|cut| self.text(cut, "cut")),
            ..Spoken::default()
        };
        spoken.pieces = match (node.get("text"), node.get("pieces")) {
            (Some(text), None) => vec![self.text(text, "text")?],
            (None, Some(pieces)) => self.texts(pieces, "pieces")?,
            (None, None) => Vec::new(),
            (Some(text), Some(_)) => {
                self.wrong(&text.origin, "text", "there are text and pieces", "keep one of them");
                return None;
            }
        };
        if let Some(calls) = node.get("calls") {
            let Data::List(calls) = &calls.data else {
                self.wrong(&calls.origin, "calls", "it is no list", "write a list of calls");
                return None;
            };
            spoken.calls = calls.iter().map(|call| self.call(call)).collect::<Option<_>>()?;
        }
        if let Some(stop) = node.get("stop") {
            spoken.stop = Some(match self.choice(stop, "stop", STOPS)?.as_str() {
                "end" => Stop::End,
                "tools" => Stop::Tools,
                "max_tokens" => Stop::MaxTokens,
                "stop_text" => Stop::StopText,
                _ => Stop::Refusal,
            });
        }
        if let Some(usage) = node.get("usage") {
            let usage = self.section(usage, "usage", &["input_tokens", "output_tokens"])?;
            let mut count = |key: &str| usage.get(key).map_or(Some(0), |node| self.number(node, key, 1 << 40));
            let (input_tokens, output_tokens) = (count("input_tokens")?, count("output_tokens")?);
            spoken.usage = Some(Usage { input_tokens, output_tokens, ..Usage::default() });
        }
        if let Some(cost) = node.get("cost_usd") {
            spoken.cost_usd = match cost.to_json().as_f64().filter(|cost| (0.0..=1e6).contains(cost)) {
                Some(cost) => Some(cost),
                None => {
                    self.wrong(&cost.origin, "cost_usd", "it is not an amount", "write dollars, such as 0.02");
                    return None;
                }
            };
        }
        if spoken.pieces.is_empty() && spoken.calls.is_empty() && spoken.thinking.is_empty() {
            let instead = "write text, pieces, calls, limited or error";
            self.wrong(&node.origin, "reply", "it says nothing", instead);
        }
        Some(Reply::Says { when, spoken })
    }

    fn call(&mut self, node: &Node) -> Option<Call> {
        let node = self.section(node, "call", &["id", "name", "input"])?;
        let Some(name) = node.get("name") else {
            self.wrong(&node.origin, "call", "it has no name", "write name: and the tool's name");
            return None;
        };
        let input = node.get("input").map_or_else(|| serde_json::json!({}), Node::to_json);
        let id = node.get("id").and_then(|id| self.text(id, "id"));
        Some(Call { id, name: self.text(name, "name")?, input })
    }

    fn text(&mut self, node: &Node, key: &str) -> Option<String> {
        let text = node.text().map(str::to_owned);
        if text.is_none() {
            self.wrong(&node.origin, key, format!("{} stands here", node.kind()), "write a text");
        }
        text
    }

    fn texts(&mut self, node: &Node, key: &str) -> Option<Vec<String>> {
        match &node.data {
            Data::List(items) => items.iter().map(|item| self.text(item, key)).collect(),
            _ => self.text(node, key).map(|text| vec![text]),
        }
    }

    fn number(&mut self, node: &Node, key: &str, max: u64) -> Option<u64> {
        let number = node.to_json().as_u64().filter(|number| *number <= max);
        if number.is_none() {
            self.wrong(&node.origin, key, "it does not fit", format!("write a whole number from 0 to {max}"));
        }
        number
    }

    fn choice(&mut self, node: &Node, key: &str, words: &[&str]) -> Option<String> {
        let word = node.text().filter(|word| words.contains(word)).map(str::to_owned);
        if word.is_none() {
            self.wrong(&node.origin, key, "it is not known", format!("write one of {}", words.join(", ")));
        }
        word
    }
}
