//! Workload L: the conversation and the state changes that every benchmark saves.
//!
//! Each step adds a user and an assistant message and replaces the value of one key of a 20 KB state. A thousand
//! steps are 1.75 MB of new JSON. The text is made from a seed, so that Milepost and its peers save the same bytes,
//! today and on another machine: changing what comes out changes what every figure means (a test holds it).
//!
//! The text is words of documentation drawn with the skew of language, mixed with code, numbers, paths and ids. No
//! sentence comes twice. A compression dictionary trained on this text, or on `words.txt`, would measure itself.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

/// Steps of the workload as the bars define it.
pub const STEPS_L: usize = 1_000;

/// The seed that every figure uses.
pub const SEED: u64 = 0x6d69_6c65_706f_7374;

const STATE_KEYS: usize = 36;

/// One message, as its JSON has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `user` or `assistant`.
    pub role: &'static str,
    /// The text, about 560 bytes: 1.75 MB is reached with values of about 530.
    pub content: String,
}

impl Message {
    /// `{"role": …, "content": …}`.
    pub fn to_json(&self) -> Value {
        json!({"role": self.role, "content": self.content})
    }
}

/// What one save adds.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The user's message, then the assistant's.
    pub messages: [Message; 2],
    /// The key of the state that changed.
    pub key: String,
    /// Its new value.
    pub value: Value,
}

impl Step {
    /// The line of the workload file that holds this step.
    pub fn to_json(&self) -> Value {
        let [user, assistant] = &self.messages;
        json!({
            "messages": [user.to_json(), assistant.to_json()],
            "key": self.key,
            "value": self.value,
        })
    }

    /// Bytes of new information as JSON: the two messages, the key and its value.
    pub fn json_bytes(&self) -> usize {
        let messages: usize = self.messages.iter().map(|m| m.to_json().to_string().len()).sum();
        messages + json!({&self.key: &self.value}).to_string().len()
    }
}

/// The steps of one session, without end. Sessions of one seed differ from each other.
#[derive(Debug, Clone)]
pub struct Workload {
    text: Text,
    state: Map<String, Value>,
    keys: Vec<String>,
    step: usize,
}

impl Workload {
    /// The workload of one session.
    pub fn new(seed: u64, session: u64) -> Self {
        let mut text = Text::new(seed, session);
        let keys: Vec<String> = (0..STATE_KEYS).map(|i| format!("{}_{i:02}", text.identifier())).collect();
        let state = keys.iter().map(|key| (key.clone(), text.state_value())).collect();
        Self { text, state, keys, step: 0 }
    }

    /// The state before the first step.
    pub fn initial_state(&self) -> &Map<String, Value> {
        &self.state
    }

    /// Write the initial state and the first `steps` steps, one JSON object a line.
    pub fn write_jsonl(self, steps: usize, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", json!({"state": self.initial_state()}))?;
        for step in self.take(steps) {
            writeln!(out, "{}", step.to_json())?;
        }
        out.flush()
    }
}

impl Iterator for Workload {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        // Mostly round robin; every fourth step goes back to some other key, as an agent's state does.
        let index = if self.text.rng.one_in(4) { self.text.rng.below(STATE_KEYS) } else { self.step % STATE_KEYS };
        self.step += 1;
        let user = self.text.user_message();
        let assistant = self.text.assistant_message();
        Some(Step {
            messages: [Message { role: "user", content: user }, Message { role: "assistant", content: assistant }],
            key: self.keys[index].clone(),
            value: self.text.state_value(),
        })
    }
}

/// SplitMix64: small, fast, the same everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Bytes that do not compress.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(count + 8);
        while out.len() < count {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(count);
        out
    }

    /// Characters of base64, as bytes that do not compress give them.
    pub(crate) fn base64(&mut self, count: usize) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        self.bytes(count).into_iter().map(|byte| char::from(ALPHABET[usize::from(byte & 63)])).collect()
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Varied text, for messages that are only to be many.
#[derive(Debug, Clone)]
pub struct Prose(Text);

impl Prose {
    /// The same text for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(Text::new(seed, 0))
    }

    /// The next text, of about so many bytes.
    pub fn text(&mut self, bytes: usize) -> String {
        self.0.prose(bytes)
    }
}

/// Makes varied text that looks like the work of a coding agent.
#[derive(Debug, Clone)]
struct Text {
    rng: Rng,
    words: Vec<&'static str>,
}

impl Text {
    fn new(seed: u64, session: u64) -> Self {
        let mut start = Rng(seed);
        let rng = Rng(start.next() ^ session.wrapping_mul(0xd605_1e9c_5e4b_7f35));
        Self { rng, words: include_str!("words.txt").split_whitespace().collect() }
    }

    /// Frequent words come first in the list; multiplying two draws gives the skew of language.
    fn word(&mut self) -> &'static str {
        let (a, b) = (self.rng.below(self.words.len()), self.rng.below(self.words.len()));
        self.words[a * b / self.words.len()]
    }

    fn rare_word(&mut self) -> &'static str {
        let common = self.words.len() / 5;
        self.words[common + self.rng.below(self.words.len() - common)]
    }

    fn identifier(&mut self) -> String {
        format!("{}_{}", self.rare_word(), self.rare_word())
    }

    fn hex(&mut self, digits: usize) -> String {
        format!("{:016x}", self.rng.next())[..digits].to_owned()
    }

    fn path(&mut self) -> String {
        let extension = self.rng.pick(&["rs", "py", "ts", "toml", "md", "sql"]);
        format!("src/{}/{}.{extension}", self.rare_word(), self.identifier())
    }

    /// What stands between plain words in technical prose.
    fn token(&mut self) -> String {
        match self.rng.below(8) {
            0 => self.rng.between(2, 99_999).to_string(),
            1 => format!("`{}`", self.identifier()),
            2 => self.path(),
            3 => format!("{}.{}%", self.rng.below(100), self.rng.below(10)),
            4 => format!("`{}::{}`", self.rare_word(), self.rare_word()),
            5 => format!("#{}", self.rng.between(100, 9_999)),
            6 => self.hex(8),
            _ => format!("{} ms", self.rng.between(2, 4_000)),
        }
    }

    fn sentence(&mut self) -> String {
        let mut out = String::new();
        let words = self.rng.between(6, 17);
        for i in 0..words {
            if i > 0 {
                out.push_str(if self.rng.one_in(11) { ", " } else { " " });
            }
            if self.rng.one_in(8) {
                out.push_str(&self.token());
            } else {
                out.push_str(self.word());
            }
        }
        if out.is_char_boundary(1) {
            out[..1].make_ascii_uppercase();
        }
        out.push_str(self.rng.pick(&[".", ".", ".", ".", ".", ".", "?", "!", ":", "…", " ✓"]));
        out
    }

    fn code_line(&mut self) -> String {
        let (a, b, c) = (self.identifier(), self.rare_word(), self.identifier());
        let n = self.rng.between(1, 65_535);
        match self.rng.below(6) {
            0 => format!("let {a} = {b}.{c}({n})?;"),
            1 => format!("if {a}[{n}] != {b}({c}) {{"),
            2 => format!("    return {{\"{b}\": {a}, \"{c}\": {n}}}"),
            3 => format!("SELECT {a}, {c} FROM {b} WHERE id = {n};"),
            4 => format!("error[E{n:05}]: {b} `{a}` at {}:{n}", self.path()),
            _ => format!("{a}.{b}(\"{c}\", 0x{});", self.hex(6)),
        }
    }

    fn prose(&mut self, bytes: usize) -> String {
        let mut out = self.sentence();
        while out.len() < bytes {
            out.push_str(if self.rng.one_in(6) { "\n\n" } else { " " });
            out.push_str(&self.sentence());
        }
        cut(&mut out, bytes);
        out
    }

    fn user_message(&mut self) -> String {
        let bytes = self.rng.between(420, 680);
        self.prose(bytes)
    }

    fn assistant_message(&mut self) -> String {
        let bytes = self.rng.between(440, 710);
        if self.rng.one_in(2) {
            return self.prose(bytes);
        }
        let before = self.rng.between(bytes / 4, bytes / 2);
        let mut out = self.prose(before);
        out.push_str("\n```\n");
        while out.len() < bytes {
            out.push_str(&self.code_line());
            out.push('\n');
        }
        cut(&mut out, bytes - 4);
        out.push_str("\n```");
        out
    }

    /// One key's value: an object whose JSON has about 530 bytes.
    fn state_value(&mut self) -> Value {
        let bytes = self.rng.between(430, 640);
        let mut value = json!({
            "status": self.rng.pick(&["open", "done", "blocked", "running"]),
            "revision": self.hex(12),
            "tokens": self.rng.between(10, 200_000),
            "files": (0..self.rng.between(1, 4)).map(|_| self.path()).collect::<Vec<_>>(),
        });
        let used = value.to_string().len() + r#","note":"""#.len();
        let note = self.prose(bytes.saturating_sub(used).max(40));
        value["note"] = note.into();
        value
    }
}

/// Shorten to at most `bytes`, at a character's boundary.
fn cut(text: &mut String, bytes: usize) {
    let end = (0..=bytes.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    text.truncate(end);
    let trimmed = text.trim_end().len();
    text.truncate(trimmed);
}

/// A short fingerprint of the first `steps` steps: two runs that print the same saved the same.
pub fn fingerprint(workload: Workload, steps: usize) -> String {
    let mut lines = Fnv(0xcbf2_9ce4_8422_2325);
    // Writing into a hash cannot fail.
    let _ = workload.write_jsonl(steps, &mut lines);
    let mut out = String::new();
    let _ = write!(out, "{:016x}", lines.0);
    out
}

/// FNV-1a over what is written.
struct Fnv(u64);

impl Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload_l() -> Workload {
        Workload::new(SEED, 0)
    }

    #[test]
    fn workload_l_is_frozen() {
        assert_eq!(fingerprint(workload_l(), STEPS_L), "b97ae33f62b5a34b");
    }

    #[test]
    fn new_json_is_1_75_mb_within_3_percent() {
        let bytes: usize = workload_l().take(STEPS_L).map(|step| step.json_bytes()).sum();
        assert!((1_697_500..=1_802_500).contains(&bytes), "{bytes}");
    }

    #[test]
    fn state_stays_near_20_kb() {
        let mut workload = workload_l();
        let mut state = workload.initial_state().clone();
        for _ in 0..STEPS_L {
            let bytes = Value::Object(state.clone()).to_string().len();
            assert!((19_000..=21_500).contains(&bytes), "{bytes}");
            let step = workload.next().expect("the workload has no end");
            assert!(state.insert(step.key, step.value).is_some());
        }
        assert_eq!(state.len(), STATE_KEYS);
    }

    #[test]
    fn sessions_differ() {
        assert_ne!(fingerprint(Workload::new(SEED, 0), 1), fingerprint(Workload::new(SEED, 1), 1));
    }

    #[test]
    fn no_sentence_comes_twice() {
        let mut seen = std::collections::HashSet::new();
        for step in workload_l().take(STEPS_L) {
            for message in step.messages {
                for sentence in message.content.split_inclusive(['.', '?', '!']).filter(|s| s.len() > 40) {
                    assert!(seen.insert(sentence.to_owned()), "twice: {sentence}");
                }
            }
        }
    }

    #[test]
    fn single_messages_compress_to_more_than_half() {
        let (mut plain, mut packed) = (0, 0);
        for step in workload_l().take(STEPS_L) {
            for message in &step.messages {
                plain += message.content.len();
                packed += zstd::bulk::compress(message.content.as_bytes(), 3).expect("compresses").len();
            }
        }
        let ratio = packed as f64 / plain as f64;
        assert!((0.58..0.75).contains(&ratio), "{ratio}");
    }
}
