//! What late redaction looks for, and how it is taken out of whatever is stored.

use std::collections::HashMap;
use std::sync::Arc;

use base64_simd::STANDARD;
use milepost_model::delta::{Change, PathPart};
use milepost_model::{Block, Channel, Checkpoint, Content, Delta, Event, Message, Resumable, Role, Session, Trigger};
use serde_json::{Map, Value};

use super::fold::{self, event};
use super::literal::Literal;
use crate::error::{Error, Result};

/// What to look for: given a text, the text without the secret, or none when it has none.
#[derive(Clone)]
pub struct Redactor {
    find: Arc<Find>,
    records: fn(&str) -> Texts,
    fields: fn(&str) -> Texts,
}

type Find = dyn Fn(&str) -> Option<String> + Send + Sync;

/// What of a record, or of a field of a session, is a person's, so that it may hold a secret. The rest is the program's: names of
/// fields, numbers, ids.
#[derive(Debug, Clone, Copy)]
pub enum Texts {
    /// All of it.
    All,
    /// The texts in these fields of its JSON.
    In(&'static [&'static str]),
    /// What this takes it out of in its JSON; it says whether it was there.
    By(fn(&Redactor, &mut Value) -> bool),
    /// Nothing.
    None,
}

/// What a session's list row shows that a person said.
const SESSION_TEXTS: [&str; 8] = ["title", "project", "agent", "feature", "task", "stage", "error", "tags"];
/// What it shows in words of the store's own.
const SESSION_OWN: [&str; 3] = ["status", "trashed", "hidden"];

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// Looks for what `f` finds.
    pub fn new(f: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { find: Arc::new(f), records: |_| Texts::All, fields: |_| Texts::All }
    }

    /// Of records of these kinds, only what is a person's is looked at.
    #[must_use]
    pub fn with_records(self, records: fn(&str) -> Texts) -> Self {
        Self { records, ..self }
    }

    /// Of these fields of sessions, only what is a person's is looked at. The store's own are never looked at.
    #[must_use]
    pub fn with_fields(self, fields: fn(&str) -> Texts) -> Self {
        Self { fields, ..self }
    }

    /// A record without what is looked for; none when it has none of it.
    pub(super) fn clean_record(&self, kind: &str, value: &[u8]) -> Option<Vec<u8>> {
        let texts = (self.records)(kind);
        if let Texts::All = texts {
            return self.clean_bytes(value);
        }
        let mut value = serde_json::from_slice(value).ok()?;
        self.texts(&mut value, texts).then(|| serde_json::to_vec(&value).ok()).flatten()
    }

    /// Whether anything in records of a kind is looked at.
    pub(super) fn looks_into(&self, kind: &str) -> bool {
        !matches!((self.records)(kind), Texts::None)
    }

    /// Takes it out of what is a person's.
    fn texts(&self, value: &mut Value, texts: Texts) -> bool {
        match texts {
            Texts::All => self.value_with(value, Numbers::Not),
            Texts::In(names) => self.fields(value, names),
            Texts::By(clean) => clean(self, value),
            Texts::None => false,
        }
    }

    /// Takes it out of the texts in some fields, wherever they are.
    fn fields(&self, value: &mut Value, names: &[&str]) -> bool {
        match value {
            Value::Array(items) => items.iter_mut().fold(false, |found, item| self.fields(item, names) | found),
            Value::Object(map) => map.iter_mut().fold(false, |found, (name, value)| {
                found
                    | match names.contains(&name.as_str()) {
                        true => self.value_with(value, Numbers::Not),
                        false => self.fields(value, names),
                    }
            }),
            _ => false,
        }
    }

    /// Looks for one text and puts another in its place, also where it stands in JSON that a text holds, and is escaped.
    pub fn literal(secret: impl Into<String>, instead: impl Into<String>) -> Result<Self> {
        let (secret, instead) = (secret.into(), instead.into());
        if secret.is_empty() {
            return Err(Error::invalid("the secret", "it is empty: name the text to erase"));
        }
        if instead.contains(&secret) {
            return Err(Error::invalid("the replacement", "it contains the secret: use another"));
        }
        let literal = Literal::new(&secret, &instead);
        Ok(Self::new(move |text| literal.erase(text)))
    }

    /// A text without what is looked for; none when it has none of it.
    pub fn clean(&self, text: &str) -> Option<String> {
        (self.find)(text).or_else(|| self.clean_stored(text))
    }

    /// The same of the text of bytes that are mostly none, as adapters store them: `b` and their base64.
    fn clean_stored(&self, text: &str) -> Option<String> {
        let bytes = STANDARD.decode_to_vec(text.strip_prefix('b')?).ok()?;
        self.clean_bytes(&bytes).map(|clean| format!("b{}", STANDARD.encode_to_string(clean)))
    }

    fn text(&self, text: &mut String) -> bool {
        match self.clean(text) {
            Some(clean) => {
                *text = clean;
                true
            }
            None => false,
        }
    }

    /// Bytes without what is looked for; none when they have none of it. JSON is looked through value by value, since it
    /// writes some characters in another way; of what is no text, every part that is one.
    pub fn clean_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let Ok(text) = std::str::from_utf8(bytes) else {
            let mut found = false;
            let mut clean = Vec::with_capacity(bytes.len());
            for chunk in bytes.utf8_chunks() {
                let part = self.clean(chunk.valid());
                found |= part.is_some();
                clean.extend_from_slice(part.as_deref().unwrap_or(chunk.valid()).as_bytes());
                clean.extend_from_slice(chunk.invalid());
            }
            return found.then_some(clean);
        };
        let clean = self.clean(text);
        let is_json = |text: &str| matches!(text.trim_start().bytes().next(), Some(b'{' | b'[' | b'"'));
        let read = |text: &str| is_json(text).then(|| serde_json::from_str::<Value>(text).ok()).flatten();
        let Some(mut value) = read(text) else { return clean.map(String::into_bytes) };
        if !self.value(&mut value) {
            // What is found in the text alone is in how it is written.
            return clean.map(String::into_bytes);
        }
        // As it was written, where that is enough.
        let as_written = clean.filter(|clean| read(clean).is_some_and(|found| found == value));
        let is_pretty = text.trim_end().contains('\n');
        let anew = || if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        Some(as_written.unwrap_or_else(|| anew().unwrap_or_default()).into_bytes())
    }

    pub(super) fn map(&self, map: &mut Map<String, Value>) -> bool {
        self.map_with(map, Numbers::Too)
    }

    fn map_with(&self, map: &mut Map<String, Value>, numbers: Numbers) -> bool {
        let mut found = false;
        for value in map.values_mut() {
            found |= self.value_with(value, numbers);
        }
        let renamed: Vec<(String, String)> =
            map.keys().filter_map(|key| self.clean(key).map(|clean| (key.clone(), clean))).collect();
        let mut rounds: HashMap<String, usize> = HashMap::new();
        for (key, clean) in renamed {
            found = true;
            let Some(value) = map.remove(&key) else { continue };
            // Names that become the same are numbered: no value is lost.
            let round = rounds.entry(clean.clone()).or_default();
            let mut free = clean.clone();
            while map.contains_key(&free) {
                *round += 1;
                free = format!("{clean} {}", *round + 1);
            }
            map.insert(free, value);
        }
        found
    }

    pub(super) fn value(&self, value: &mut Value) -> bool {
        self.value_with(value, Numbers::Too)
    }

    /// Takes it out of a value; whether it was there.
    pub fn clean_value(&self, value: &mut Value) -> bool {
        self.value(value)
    }

    fn value_with(&self, value: &mut Value, numbers: Numbers) -> bool {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter_mut().fold(false, |found, item| self.value_with(item, numbers) | found),
            Value::Object(map) => self.map_with(map, numbers),
            Value::Number(number) => match (numbers, self.clean(&number.to_string())) {
                (Numbers::Too, Some(clean)) => {
                    *value = Value::String(clean);
                    true
                }
                _ => false,
            },
            Value::Null | Value::Bool(_) => false,
        }
    }

    /// Whether what a list shows of a session holds it.
    pub(super) fn is_in_session(&self, session: &Session) -> bool {
        let mut channels = session.counts.keys().filter(|channel| !channel.is_main()).map(Channel::as_str);
        let is_in = |text: &str| self.clean(text).is_some();
        session.preview.as_deref().is_some_and(is_in) || channels.any(is_in) || self.set(&mut fold::meta(session).0)
    }

    /// Takes it out of a checkpoint; whether it was there.
    pub(super) fn mark(&self, mark: &mut Checkpoint) -> bool {
        let mut found = self.map(&mut mark.extra);
        if let Trigger::Other(text) = &mut mark.trigger {
            found |= self.text(text);
        }
        if let Resumable::No(text) = &mut mark.resumable {
            found |= self.text(text);
        }
        for text in [&mut mark.label, &mut mark.description].into_iter().flatten() {
            found |= self.text(text);
        }
        let counts = std::mem::take(&mut mark.counts);
        for (mut channel, count) in counts {
            found |= self.channel(&mut channel);
            *mark.counts.entry(channel).or_default() += count;
        }
        found
    }

    fn channel(&self, channel: &mut Channel) -> bool {
        let clean = if channel.is_main() { None } else { self.clean(channel.as_str()) };
        let found = clean.is_some();
        if let Some(clean) = clean {
            // What is put in its place may not be a name.
            *channel = Channel::new(clean).or_else(|_| Channel::new("redacted")).unwrap_or_default();
        }
        found
    }

    /// Takes it out of what was set of a session: the names and values that are the store's own stay, and those of its callers.
    fn set(&self, set: &mut Map<String, Value>) -> bool {
        let (mut found, mut known, mut others) = (false, Map::new(), Map::new());
        for (name, mut value) in std::mem::take(set) {
            let is_text = SESSION_TEXTS.contains(&name.as_str());
            let texts = if SESSION_OWN.contains(&name.as_str()) { Texts::None } else { (self.fields)(&name) };
            if matches!(texts, Texts::All) && !is_text {
                others.insert(name, value);
                continue;
            }
            if self.texts(&mut value, texts) {
                found = true;
                if is_text {
                    drop_empty(&mut value);
                }
            }
            known.insert(name, value);
        }
        found |= self.map(&mut others);
        set.extend(others);
        set.extend(known);
        found
    }

    /// Takes it out of a message; whether it was there.
    pub fn message(&self, message: &mut Message) -> bool {
        let mut found = self.map(&mut message.extra);
        if let Role::Other(name) = &mut message.role {
            found |= self.text(name);
        }
        found |= self.channel(&mut message.channel);
        match &mut message.content {
            Content::Text(text) => found |= self.text(text),
            Content::Blocks(blocks) => {
                for block in blocks {
                    // A block is a JSON object; what it becomes is read again as a block.
                    let mut value = serde_json::to_value(&*block).unwrap_or_default();
                    if self.value(&mut value) {
                        *block = Block::from(value);
                        found = true;
                    }
                }
            }
        }
        found
    }

    /// Takes it out of an event; whether it was there.
    pub fn event(&self, event: &mut Event) -> bool {
        if !event::OWN.contains(&event.kind.as_str()) {
            return self.map(&mut event.data) | self.text(&mut event.kind);
        }
        // The rest of the store's own events is numbers, ids and hashes.
        let set = event.data.get_mut("set").and_then(Value::as_object_mut).is_some_and(|set| self.set(set));
        event.data.get_mut("why").is_some_and(|why| self.value(why)) | set
    }

    /// Whether a delta holds it, also in what later parts of the delta take away again.
    pub(super) fn is_in_delta(&self, delta: &Delta) -> bool {
        delta.changes().any(|(path, change)| {
            let in_path = path.parts().iter().any(|part| match part {
                PathPart::Key(key) => self.clean(key).is_some(),
                PathPart::Index(_) => false,
            });
            in_path || self.value(&mut change_value(change))
        })
    }
}

/// What is left of a session's text when nothing was put in the place of it all: none. A tag has no line feed.
fn drop_empty(value: &mut Value) {
    match value {
        Value::String(text) if text.is_empty() => *value = Value::Null,
        Value::Array(tags) => {
            tags.retain(|tag| tag.as_str() != Some(""));
            for tag in tags {
                if let Value::String(text) = tag {
                    *text = text.replace('\n', " ");
                }
            }
        }
        _ => {}
    }
}

/// Whether numbers are looked at, by their text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Too,
    Not,
}

/// The texts of a change, as a value to look into.
fn change_value(change: Change<'_>) -> Value {
    match change {
        Change::Set(value) => value.clone(),
        Change::Append(items) | Change::Splice { insert: items, .. } => Value::Array(items.to_vec()),
        Change::AppendStr(text) | Change::SpliceStr { insert: text, .. } => Value::String(text.to_owned()),
        _ => Value::Null,
    }
}
