//! Reading a tree against what is known, collecting everything that is wrong.

use serde_json::Value;

use crate::node::{Data, Node};
use crate::origin::{Diagnostic, Origin};
use crate::suggest::nearest;

/// The longest piece of somebody's text that is repeated in a message, in characters.
const MAX_REPEATED: usize = 80;

/// Collects what is wrong while a tree is read.
#[derive(Debug, Default)]
pub struct Reader {
    /// What was found.
    pub found: Vec<Diagnostic>,
}

impl Reader {
    /// Something cannot be used.
    pub fn wrong(&mut self, at: &Origin, key: &str, why: impl Into<String>, instead: impl Into<String>) {
        self.found.push(Diagnostic::error(at, key, why, instead));
    }

    /// Something is probably not what was meant.
    pub fn doubt(&mut self, at: &Origin, key: &str, why: impl Into<String>, instead: impl Into<String>) {
        self.found.push(Diagnostic::warning(at, key, why, instead));
    }

    /// The entries of a section. Keys that are not known are told, with the nearest that is.
    pub fn section<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Option<&'n [(String, Origin, Node)]> {
        let items = self.entries(node, what)?;
        for (key, at, _) in items {
            if !known.contains(&key.as_str()) {
                self.unknown(at, what, "there is no key", key, known.iter().copied());
            }
        }
        Some(items)
    }

    /// The entries of a section whose keys are the user's own.
    pub fn entries<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n [(String, Origin, Node)]> {
        match &node.data {
            Data::Map(items) => Some(items),
            _ => {
                self.wrong(&node.origin, what, format!("{} stands here", node.kind()), "write its keys below it");
                None
            }
        }
    }

    /// A name that is not known: the nearest one is suggested, or all are listed.
    pub fn unknown<'a>(
        &mut self,
        at: &Origin,
        key: &str,
        what: &str,
        given: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) {
        let instead = match nearest(given, known.clone()) {
            Some(name) => format!("did you mean {name}?"),
            None => match known.collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => "remove it".to_owned(),
                all => format!("what is known: {all}"),
            },
        };
        self.wrong(at, key, format!("{what} {:?}", shorten(given)), instead);
    }

    /// A text.
    pub fn text(&mut self, node: &Node, key: &str) -> Option<String> {
        let text = node.text().map(str::to_owned);
        if text.is_none() {
            self.wrong(&node.origin, key, format!("{} stands here", node.kind()), "write a text");
        }
        text
    }

    /// A list of texts; one text is a list of one.
    pub fn texts(&mut self, node: &Node, key: &str) -> Option<Vec<String>> {
        match &node.data {
            Data::List(items) => items.iter().map(|item| self.text(item, key)).collect(),
            _ => self.text(node, key).map(|text| vec![text]),
        }
    }

    /// The items of a list.
    pub fn list<'n>(&mut self, node: &'n Node, key: &str) -> Option<&'n [Node]> {
        match &node.data {
            Data::List(items) => Some(items),
            _ => {
                self.wrong(&node.origin, key, format!("{} stands here", node.kind()), "write a list");
                None
            }
        }
    }

    /// A whole number in a range.
    pub fn number(&mut self, node: &Node, key: &str, min: u64, max: u64) -> Option<u64> {
        let number = node.to_json().as_u64().filter(|number| (min..=max).contains(number));
        if number.is_none() {
            let why = format!("{} does not fit", repeat(node));
            self.wrong(&node.origin, key, why, format!("write a whole number from {min} to {max}"));
        }
        number
    }

    /// True or false.
    pub fn flag(&mut self, node: &Node, key: &str) -> Option<bool> {
        match node.to_json() {
            Value::Bool(flag) => Some(flag),
            _ => {
                let why = format!("{} does not fit", repeat(node));
                self.wrong(&node.origin, key, why, "write true or false");
                None
            }
        }
    }

    /// One of some words.
    pub fn choice<'w>(&mut self, node: &Node, key: &str, words: &[&'w str]) -> Option<&'w str> {
        let given = self.text(node, key)?;
        let word = words.iter().copied().find(|word| *word == given);
        if word.is_none() {
            let instead = match nearest(&given, words.iter().copied()) {
                Some(near) => format!("did you mean {near}? It is one of {}", words.join(", ")),
                None => format!("write one of {}", words.join(", ")),
            };
            self.wrong(&node.origin, key, format!("{:?} is not known", shorten(&given)), instead);
        }
        word
    }

    /// A length of time in milliseconds, such as `1h30m`, `20s` or `500ms`, that is not longer than `max_ms`.
    pub fn duration_ms(&mut self, node: &Node, key: &str, max_ms: u64) -> Option<u64> {
        let text = node.text().unwrap_or_default();
        match parse_duration_ms(text) {
            Some(ms) if ms <= max_ms => Some(ms),
            Some(_) => {
                let why = format!("{} is longer than {}", repeat(node), show_duration(max_ms));
                self.wrong(&node.origin, key, why, "write a shorter time");
                None
            }
            None => {
                let is_bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let instead = match is_bare {
                    true => format!("write a unit too, such as {text}s or {text}ms"),
                    false => "write a number and a unit, such as 500ms, 20s, 5m, 1h30m or 2d".to_owned(),
                };
                self.wrong(&node.origin, key, format!("{} is not a length of time", repeat(node)), instead);
                None
            }
        }
    }
}

/// A value for a message: a text in quotes, anything else by its kind.
fn repeat(node: &Node) -> String {
    node.text().map_or_else(|| node.kind().to_owned(), |text| format!("{:?}", shorten(text)))
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_REPEATED) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// The units of a length of time.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A length of time as people write it: `1h30m`, `20s`, `500ms`, `1.5h`.
pub fn parse_duration_ms(text: &str) -> Option<u64> {
    let mut rest = text.trim();
    let mut all = 0.0f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(digits);
        let end = unit.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(unit.len());
        let (unit, after) = unit.split_at(end);
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
        all += number.parse::<f64>().ok()? * *factor as f64;
        rest = after.trim_start();
    }
    (all.is_finite() && all <= 9e15).then_some(all.round() as u64)
}

/// A length of time as [`parse_duration_ms`] reads it.
pub fn show_duration(ms: u64) -> String {
    let mut rest = ms;
    let mut out = String::new();
    for (unit, factor) in UNITS.iter().rev() {
        if rest >= *factor {
            out.push_str(&format!("{}{unit}", rest / factor));
            rest %= factor;
        }
    }
    if out.is_empty() { "0ms".to_owned() } else { out }
}
