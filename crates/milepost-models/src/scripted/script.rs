//! The script: replies, read with the place of every mistake.

use std::io::Read;
use std::path::Path;

use milepost_document::{Data, Format, Limit, Limits, Node, Reader, read as read_document};
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
    let script = tree.and_then(|tree| script(&mut reader, &tree, path));
    match (reader.found.first(), script) {
        (None, Some(script)) => Ok(script),
        (Some(first), _) => Err(Error::config(first.origin.to_string(), first.told(), first.instead.clone())),
        (None, None) => Err(Error::config(path.display().to_string(), "it is not a script", "write replies: […]")),
    }
}

const SCRIPT: &[&str] = &["name", "replies", "after_last"];
const REPLY: &[&str] = &[
    "when", "text", "pieces", "thinking", "calls", "delay_ms", "stop", "usage", "cost_usd", "cut", "limited", "error",
    "times",
];
const STOPS: &[&str] = &["end", "tools", "max_tokens", "stop_text", "refusal"];
const ERRORS: &[&str] = &["unavailable", "unreachable", "refused", "too_long"];

fn script(reader: &mut Reader, tree: &Node, path: &Path) -> Option<Script> {
    reader.section(tree, "", SCRIPT)?;
    let name = tree.get("name").and_then(|node| reader.text(node, "name")).unwrap_or_else(|| "scripted".to_owned());
    let repeats_last = match tree.get("after_last") {
        Some(node) => reader.choice(node, "after_last", &["fail", "repeat"])? == "repeat",
        None => false,
    };
    let replies = match tree.get("replies").map(|node| &node.data) {
        Some(Data::List(items)) => items.iter().filter_map(|item| reply(reader, item)).collect(),
        _ => {
            reader.wrong(&tree.origin, "replies", "there is no list of replies", "write replies: and a list below it");
            return None;
        }
    };
    Some(Script { place: path.display().to_string(), name, replies, repeats_last })
}

fn reply(reader: &mut Reader, node: &Node) -> Option<Reply> {
    reader.section(node, "reply", REPLY)?;
    let when = node.get("when").and_then(|when| reader.text(when, "when"));
    let times = node.get("times").map_or(Some(1), |times| reader.number(times, "times", 0, 1_000_000));
    let times = u32::try_from(times?).ok()?;
    if let Some(limited) = node.get("limited") {
        reader.section(limited, "limited", &["after_ms", "why"])?;
        let after = limited.get("after_ms").map_or(Some(60_000), |ms| reader.number(ms, "after_ms", 0, 691_200_000));
        let why = limited.get("why").and_then(|why| reader.text(why, "why"));
        let why = why.unwrap_or_else(|| "the script says so".to_owned());
        let failure = Failure::Limited { after_ms: i64::try_from(after?).ok()?, why };
        return Some(Reply::Fails { when, failure, times });
    }
    if let Some(error) = node.get("error") {
        reader.section(error, "error", &["kind", "why"])?;
        let kind = error.get("kind").map_or(Some("unavailable"), |kind| reader.choice(kind, "kind", ERRORS));
        let why = error.get("why").and_then(|why| reader.text(why, "why"));
        let why = why.unwrap_or_else(|| "the script says so".to_owned());
        let failure = match kind? {
            "unavailable" => Failure::Unavailable(why),
            "unreachable" => Failure::Unreachable(why),
            "too_long" => Failure::TooLong(why),
            _ => Failure::Refused(why),
        };
        return Some(Reply::Fails { when, failure, times });
    }
    let mut spoken = Spoken {
        thinking: node.get("thinking").map_or(Some(Vec::new()), |node| reader.texts(node, "thinking"))?,
        delay_ms: node.get("delay_ms").map_or(Some(0), |node| reader.number(node, "delay_ms", 0, MAX_DELAY_MS))?,
        cut: node.get("cut").and_then(|cut| reader.text(cut, "cut")),
        ..Spoken::default()
    };
    spoken.pieces = match (node.get("text"), node.get("pieces")) {
        (Some(text), None) => vec![reader.text(text, "text")?],
        (None, Some(pieces)) => reader.texts(pieces, "pieces")?,
        (None, None) => Vec::new(),
        (Some(text), Some(_)) => {
            reader.wrong(&text.origin, "text", "there are text and pieces", "keep one of them");
            return None;
        }
    };
    if let Some(calls) = node.get("calls") {
        let Data::List(calls) = &calls.data else {
            reader.wrong(&calls.origin, "calls", "it is no list", "write a list of calls");
            return None;
        };
        spoken.calls = calls.iter().map(|node| call(reader, node)).collect::<Option<_>>()?;
    }
    if let Some(stop) = node.get("stop") {
        spoken.stop = Some(match reader.choice(stop, "stop", STOPS)? {
            "end" => Stop::End,
            "tools" => Stop::Tools,
            "max_tokens" => Stop::MaxTokens,
            "stop_text" => Stop::StopText,
            _ => Stop::Refusal,
        });
    }
    if let Some(usage) = node.get("usage") {
        reader.section(usage, "usage", &["input_tokens", "output_tokens"])?;
        let mut count = |key: &str| usage.get(key).map_or(Some(0), |node| reader.number(node, key, 0, 1 << 40));
        let (input_tokens, output_tokens) = (count("input_tokens")?, count("output_tokens")?);
        spoken.usage = Some(Usage { input_tokens, output_tokens, ..Usage::default() });
    }
    if let Some(cost) = node.get("cost_usd") {
        spoken.cost_usd = match cost.to_json().as_f64().filter(|cost| (0.0..=1e6).contains(cost)) {
            Some(cost) => Some(cost),
            None => {
                reader.wrong(&cost.origin, "cost_usd", "it is not an amount", "write dollars, such as 0.02");
                return None;
            }
        };
    }
    if spoken.pieces.is_empty() && spoken.calls.is_empty() && spoken.thinking.is_empty() {
        let instead = "write text, pieces, calls, limited or error";
        reader.wrong(&node.origin, "reply", "it says nothing", instead);
    }
    Some(Reply::Says { when, spoken })
}

fn call(reader: &mut Reader, node: &Node) -> Option<Call> {
    reader.section(node, "call", &["id", "name", "input"])?;
    let Some(name) = node.get("name") else {
        reader.wrong(&node.origin, "call", "it has no name", "write name: and the tool's name");
        return None;
    };
    let input = node.get("input").map_or_else(|| serde_json::json!({}), Node::to_json);
    let id = node.get("id").and_then(|id| reader.text(id, "id"));
    Some(Call { id, name: reader.text(name, "name")?, input })
}
