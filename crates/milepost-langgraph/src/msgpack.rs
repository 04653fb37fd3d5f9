//! As much of MessagePack as the adapter needs: where the items of an array begin, and what a message says. What LangGraph's
//! serializer wrote is never written anew: items are cut out of arrays and put into arrays as they are.

use std::borrow::Cow;
use std::collections::HashSet;

use milepost_model::{Block, Content, Message, Role};
use milepost_store::Redactor;
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Deeper values are not looked into.
const MAX_DEPTH: usize = 64;
/// Out of deeper ones nothing is taken.
const MAX_CLEAN_DEPTH: usize = 256;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// One value, looked at but not into.
enum Seen<'a> {
    Text(&'a str),
    Array(usize),
    Map(usize),
    /// A value of the serializer's own: its kind and its bytes.
    Ext(i8, &'a [u8]),
    Other(Value),
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Option<usize> {
        usize::try_from(self.number(bytes)?).ok()
    }

    fn text(&mut self, length: usize) -> Option<Seen<'a>> {
        Some(Seen::Text(std::str::from_utf8(self.take(length)?).ok()?))
    }

    fn ext(&mut self, length: usize) -> Option<Seen<'a>> {
        let kind = self.take(1)?.first()?.cast_signed();
        Some(Seen::Ext(kind, self.take(length)?))
    }

    fn signed(&mut self, bytes: usize) -> Option<Seen<'a>> {
        let shift = 64 - 8 * bytes as u32;
        Some(Seen::Other(Value::from((self.number(bytes)? << shift).cast_signed() >> shift)))
    }

    fn next(&mut self) -> Option<Seen<'a>> {
        let first = *self.take(1)?.first()?;
        Some(match first {
            0x00..=0x7f => Seen::Other(first.into()),
            0x80..=0x8f => Seen::Map(usize::from(first & 0xf)),
            0x90..=0x9f => Seen::Array(usize::from(first & 0xf)),
            0xa0..=0xbf => return self.text(usize::from(first & 0x1f)),
            0xc0 => Seen::Other(Value::Null),
            0xc2 | 0xc3 => Seen::Other(Value::Bool(first == 0xc3)),
            0xc4..=0xc6 => {
                let length = self.length(1 << (first - 0xc4))?;
                self.take(length)?;
                Seen::Other(Value::Null)
            }
            0xc7..=0xc9 => {
                let length = self.length(1 << (first - 0xc7))?;
                return self.ext(length);
            }
            0xca => Seen::Other(Value::from(f64::from(f32::from_bits(u32::try_from(self.number(4)?).ok()?)))),
            0xcb => Seen::Other(Value::from(f64::from_bits(self.number(8)?))),
            0xcc..=0xcf => Seen::Other(Value::from(self.number(1 << (first - 0xcc))?)),
            0xd0..=0xd3 => return self.signed(1 << (first - 0xd0)),
            0xd4..=0xd8 => return self.ext(1 << (first - 0xd4)),
            0xd9..=0xdb => {
                let length = self.length(1 << (first - 0xd9))?;
                return self.text(length);
            }
            0xdc | 0xdd => Seen::Array(self.length(2 << (first - 0xdc))?),
            0xde | 0xdf => Seen::Map(self.length(2 << (first - 0xde))?),
            0xe0..=0xff => Seen::Other(Value::from(first.cast_signed())),
            0xc1 => return None,
        })
    }

    /// Passes over one value, however deep.
    fn skip(&mut self) -> Option<()> {
        let mut left = 1usize;
        while left > 0 {
            left -= 1;
            left = match self.next()? {
                Seen::Array(count) => left.checked_add(count)?,
                Seen::Map(count) => left.checked_add(count.checked_mul(2)?)?,
                Seen::Text(_) | Seen::Ext(..) | Seen::Other(_) => left,
            };
            if left > self.bytes.len() {
                return None;
            }
        }
        Some(())
    }

    /// Those of a map's entries that tell what a message says; the others are passed over.
    fn fields(&mut self) -> Option<Map<String, Value>> {
        let Seen::Map(count) = self.next()? else { return None };
        let mut fields = Map::new();
        for _ in 0..count {
            let from = self.at;
            match self.next()? {
                Seen::Text(name) if TOLD.contains(&name) => {
                    fields.insert(name.to_owned(), self.json(0)?);
                    continue;
                }
                Seen::Array(_) | Seen::Map(_) => {
                    self.at = from;
                    self.skip()?;
                }
                Seen::Text(_) | Seen::Ext(..) | Seen::Other(_) => {}
            }
            self.skip()?;
        }
        Some(fields)
    }

    fn json(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        Some(match self.next()? {
            Seen::Text(text) => Value::from(text),
            Seen::Other(value) => value,
            Seen::Ext(..) => Value::Null,
            Seen::Array(count) => Value::Array((0..count).map(|_| self.json(depth + 1)).collect::<Option<_>>()?),
            Seen::Map(count) => {
                let mut map = Map::new();
                for _ in 0..count {
                    let key = match self.json(depth + 1)? {
                        Value::String(key) => key,
                        other => other.to_string(),
                    };
                    map.insert(key, self.json(depth + 1)?);
                }
                Value::Object(map)
            }
        })
    }
}

/// The fields of a message that say who speaks and what is said.
const TOLD: [&str; 4] = ["role", "type", "content", "tool_calls"];

/// The items of an array; none when the bytes are no array and nothing else.
pub(crate) fn items(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut reader = Reader { bytes, at: 0 };
    let Seen::Array(count) = reader.next()? else { return None };
    let mut items = Vec::with_capacity(count.min(bytes.len()));
    for _ in 0..count {
        let from = reader.at;
        reader.skip()?;
        items.push(&bytes[from..reader.at]);
    }
    (reader.at == bytes.len()).then_some(items)
}

/// The entries of a map: the key if it is a text, its bytes, and the value's. None when the bytes are no map and nothing else.
#[expect(clippy::type_complexity, reason = "two uses, next door")]
pub(crate) fn entries(bytes: &[u8]) -> Option<Vec<(Option<&str>, &[u8], &[u8])>> {
    let mut reader = Reader { bytes, at: 0 };
    let Seen::Map(count) = reader.next()? else { return None };
    let mut entries = Vec::with_capacity(count.min(bytes.len()));
    for _ in 0..count {
        let from = reader.at;
        reader.skip()?;
        let between = reader.at;
        reader.skip()?;
        let (key, value) = (&bytes[from..between], &bytes[between..reader.at]);
        let word = match (Reader { bytes: key, at: 0 }).next() {
            Some(Seen::Text(word)) => Some(word),
            _ => None,
        };
        entries.push((word, key, value));
    }
    (reader.at == bytes.len()).then_some(entries)
}

/// A map of these entries.
#[cfg(feature = "import")]
pub(crate) fn map(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut out = map_head(entries.len());
    for (key, value) in entries {
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
    out
}

/// What a map of so many entries begins with.
pub(crate) fn map_head(count: usize) -> Vec<u8> {
    match count {
        0..=15 => vec![0x80 | count as u8],
        16..=0xffff => [&[0xde], (count as u16).to_be_bytes().as_slice()].concat(),
        _ => [&[0xdf], (count as u32).to_be_bytes().as_slice()].concat(),
    }
}

/// An array of these items.
pub(crate) fn array<'a>(count: usize, items: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let items: Vec<&[u8]> = items.collect();
    let mut out = Vec::with_capacity(5 + items.iter().map(|item| item.len()).sum::<usize>());
    match count {
        0..=15 => out.push(0x90 | count as u8),
        16..=0xffff => {
            out.push(0xdc);
            out.extend_from_slice(&(count as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend_from_slice(&(count as u32).to_be_bytes());
        }
    }
    items.iter().for_each(|item| out.extend_from_slice(item));
    out
}

/// A value without what `redactor` finds in its texts, names and numbers; none when it has none of it. An error when it is
/// there, but in what cannot be read: too deep, or no MessagePack.
pub(crate) fn clean(bytes: &[u8], redactor: &Redactor) -> Result<Option<Vec<u8>>, String> {
    clean_at(bytes, redactor, 0)
}

fn clean_at(bytes: &[u8], redactor: &Redactor, depth: usize) -> Result<Option<Vec<u8>>, String> {
    let mut cleaner = Cleaner { reader: Reader { bytes, at: 0 }, out: Vec::with_capacity(bytes.len()), redactor };
    match cleaner.value(depth) {
        Some(is_found) if cleaner.reader.at == bytes.len() => Ok(is_found.then_some(cleaner.out)),
        _ if redactor.clean_bytes(bytes).is_none() => Ok(None),
        _ => Err("a value holds it that is too deep, or not of the serializer's form".to_owned()),
    }
}

/// Writes a value anew while it is read.
struct Cleaner<'a, 'b> {
    reader: Reader<'a>,
    out: Vec<u8>,
    redactor: &'b Redactor,
}

impl Cleaner<'_, '_> {
    /// One value; whether anything was found in it. None when it is not to be read.
    fn value(&mut self, depth: usize) -> Option<bool> {
        if depth > MAX_CLEAN_DEPTH {
            return None;
        }
        let from = self.reader.at;
        let seen = self.reader.next()?;
        let written = self.reader.bytes.get(from..self.reader.at)?;
        let count = match seen {
            Seen::Text(text) => return Some(self.text(text, written, None)),
            Seen::Ext(kind, inner) => return self.ext(kind, inner, written, depth),
            Seen::Other(Value::Number(number)) => return Some(self.text(&number.to_string(), written, None)),
            Seen::Other(_) if matches!(written.first(), Some(0xc4..=0xc6)) => return Some(self.bytes(written)),
            Seen::Other(_) => 0,
            Seen::Array(count) => count,
            Seen::Map(count) => {
                self.out.extend_from_slice(written);
                return self.map(count, depth);
            }
        };
        self.out.extend_from_slice(written);
        let mut is_found = false;
        for _ in 0..count {
            is_found |= self.value(depth + 1)?;
        }
        Some(is_found)
    }

    /// The names and values of a map. Names that become the same are numbered: no value is lost.
    fn map(&mut self, count: usize, depth: usize) -> Option<bool> {
        let (mut is_found, mut names) = (false, HashSet::new());
        for _ in 0..count {
            let from = self.reader.at;
            if let Seen::Text(name) = self.reader.next()? {
                let written = self.reader.bytes.get(from..self.reader.at)?;
                is_found |= self.text(name, written, Some(&mut names));
            } else {
                self.reader.at = from;
                is_found |= self.value(depth + 1)?;
            }
            is_found |= self.value(depth + 1)?;
        }
        Some(is_found)
    }

    /// A text, or a name among others.
    fn text(&mut self, text: &str, written: &[u8], names: Option<&mut HashSet<String>>) -> bool {
        let mut clean = self.redactor.clean(text);
        if let Some(names) = names {
            let name = clean.as_deref().unwrap_or(text);
            let mut free = name.to_owned();
            for number in 2.. {
                if !names.contains(&free) {
                    break;
                }
                free = format!("{name} {number}");
            }
            clean = clean.is_some().then(|| free.clone()).or_else(|| (free != text).then(|| free.clone()));
            names.insert(free);
        }
        match &clean {
            None => self.out.extend_from_slice(written),
            Some(clean) => {
                match clean.len() {
                    short @ 0..=31 => self.out.push(0xa0 | short as u8),
                    length => self.length([0xd9, 0xda, 0xdb], length),
                }
                self.out.extend_from_slice(clean.as_bytes());
            }
        }
        clean.is_some()
    }

    fn bytes(&mut self, written: &[u8]) -> bool {
        // The first byte says how many of the length's follow.
        let front = 1 + (1 << (written[0] - 0xc4));
        let clean = self.redactor.clean_bytes(written.get(front..).unwrap_or_default());
        match &clean {
            None => self.out.extend_from_slice(written),
            Some(clean) => {
                self.length([0xc4, 0xc5, 0xc6], clean.len());
                self.out.extend_from_slice(clean);
            }
        }
        clean.is_some()
    }

    /// The serializer's own values hold others, most often.
    fn ext(&mut self, kind: i8, inner: &[u8], written: &[u8], depth: usize) -> Option<bool> {
        let clean = clean_at(inner, self.redactor, depth + 1).ok()?;
        match &clean {
            None => self.out.extend_from_slice(written),
            Some(clean) => {
                self.length([0xc7, 0xc8, 0xc9], clean.len());
                self.out.push(kind.cast_unsigned());
                self.out.extend_from_slice(clean);
            }
        }
        Some(clean.is_some())
    }

    /// A length in as few bytes as it needs, behind what says how many those are.
    fn length(&mut self, marks: [u8; 3], length: usize) {
        match length {
            0..=0xff => self.out.extend([marks[0], length as u8]),
            0x100..=0xffff => {
                self.out.push(marks[1]);
                self.out.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                self.out.push(marks[2]);
                self.out.extend_from_slice(&(length as u32).to_be_bytes());
            }
        }
    }
}

/// What a message says, for people: who, and texts that lie in its bytes one after the other.
pub(crate) struct Said {
    role: Role,
    texts: Vec<String>,
    calls: Vec<Block>,
}

/// Ids of the serializer's values that hold `(module, class, fields, …)` of a pydantic object.
const PYDANTIC: [i8; 2] = [4, 5];

/// A message in one of the forms that agents use; none when it is something else.
fn said(item: &[u8]) -> Option<Said> {
    let fields = match (Reader { bytes: item, at: 0 }).next()? {
        Seen::Map(_) => (Reader { bytes: item, at: 0 }).fields()?,
        Seen::Ext(kind, inner) if PYDANTIC.contains(&kind) => {
            let mut reader = Reader { bytes: inner, at: 0 };
            let Seen::Array(3..) = reader.next()? else { return None };
            reader.skip()?;
            reader.skip()?;
            reader.fields()?
        }
        _ => return None,
    };
    let word = |name: &str| fields.get(name).and_then(Value::as_str);
    let role = match word("role").or_else(|| word("type"))? {
        "human" | "HumanMessageChunk" => Role::User,
        "ai" | "AIMessageChunk" => Role::Assistant,
        "function" => Role::Tool,
        "remove" => return None,
        other => Role::from(other.to_owned()),
    };
    let texts = match fields.get("content")? {
        Value::String(text) => vec![text.clone()],
        Value::Array(blocks) => {
            let text = |block: &Value| block.as_str().or_else(|| block.get("text")?.as_str()).map(str::to_owned);
            blocks.iter().filter_map(text).collect()
        }
        Value::Null => Vec::new(),
        _ => return None,
    };
    let calls = fields.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let calls = calls.iter().filter_map(|call| {
        let (id, name) = (call.get("id").and_then(Value::as_str), call.get("name").and_then(Value::as_str));
        Some(Block::tool_call(id.unwrap_or_default(), name?, call.get("args").cloned().unwrap_or_default()))
    });
    Some(Said { role, texts, calls: calls.collect() })
}

/// Where a message keeps the bytes that are not its text.
pub(crate) const FIELD: &str = "langgraph";

/// A serialised message as a message of the session: its texts are its content, the bytes between them lie beside it. None
/// when it is no message.
pub(crate) fn to_message(item: &[u8]) -> Option<Message> {
    let said = said(item)?;
    let (mut pieces, mut texts, mut from) = (Vec::new(), Vec::new(), 0);
    for text in said.texts.into_iter().filter(|text| !text.is_empty()) {
        if let Some(at) = find(&item[from..], text.as_bytes()) {
            pieces.push(Value::String(crate::bytes::to_text(&item[from..from + at])));
            from += at + text.len();
            texts.push(text);
        }
    }
    pieces.push(Value::String(crate::bytes::to_text(&item[from..])));
    let mut blocks: Vec<Block> = texts.into_iter().map(Block::text).collect();
    let mut message = match (blocks.as_slice(), said.calls.is_empty()) {
        ([Block::Text { text, .. }], true) => Message::new(said.role, text.clone()),
        ([], true) => Message::new(said.role, ""),
        _ => {
            blocks.extend(said.calls);
            Message::blocks(said.role, blocks)
        }
    };
    message.extra.insert(FIELD.to_owned(), Value::Array(pieces));
    Some(message)
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    let first = part.first()?;
    let mut from = 0;
    loop {
        let at = from + bytes.get(from..)?.iter().position(|byte| byte == first)?;
        if bytes[at..].starts_with(part) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// The bytes that a message was made from; none when it was not made by [`to_message`].
pub(crate) fn from_message(message: &Message) -> Option<Vec<u8>> {
    let pieces: Vec<&str> = message.extra.get(FIELD)?.as_array()?.iter().map(Value::as_str).collect::<Option<_>>()?;
    let texts: Vec<&str> = match &message.content {
        Content::Text(text) => vec![text],
        Content::Blocks(blocks) => blocks
            .iter()
            .filter_map(|block| match block {
                Block::Text { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect(),
    };
    join(&pieces, &texts)
}

/// The same of a message's JSON, without making the message.
pub(crate) fn from_json(json: &[u8]) -> Option<Vec<u8>> {
    let kept: Kept<'_> = serde_json::from_slice(json).ok()?;
    let pieces: Vec<&str> = kept.pieces.iter().map(|piece| piece.0.as_ref()).collect();
    let texts: Vec<&str> = kept.content.0.iter().map(AsRef::as_ref).collect();
    join(&pieces, &texts)
}

/// Texts with the bytes that lie between them.
fn join(pieces: &[&str], texts: &[&str]) -> Option<Vec<u8>> {
    let texts = if texts == [""] { &[] } else { texts };
    if pieces.len() != texts.len() + 1 {
        return None;
    }
    let mut item = Vec::with_capacity(pieces.iter().chain(texts).map(|part| part.len()).sum());
    for (number, piece) in pieces.iter().enumerate() {
        crate::bytes::append_text(piece, &mut item).ok()?;
        item.extend_from_slice(texts.get(number).copied().unwrap_or_default().as_bytes());
    }
    Some(item)
}

/// What is needed of a message's JSON.
#[derive(serde::Deserialize)]
struct Kept<'a> {
    #[serde(borrow)]
    content: Texts<'a>,
    #[serde(borrow, rename = "langgraph")]
    pieces: Vec<Text<'a>>,
}

#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// The texts of a content: itself, or those of its blocks.
struct Texts<'a>(Vec<Cow<'a, str>>);

#[derive(serde::Deserialize)]
struct TextBlock<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Texts<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or blocks")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Texts<'de>, E> {
                Ok(Texts(vec![Cow::Borrowed(text)]))
            }

            fn visit_str<E>(self, text: &str) -> Result<Texts<'de>, E> {
                Ok(Texts(vec![Cow::Owned(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut blocks: A) -> Result<Texts<'de>, A::Error> {
                let mut texts = Vec::new();
                while let Some(block) = blocks.next_element::<TextBlock<'de>>()? {
                    texts.extend(block.text.filter(|_| block.kind == "text"));
                }
                Ok(Texts(texts))
            }
        }
        from.deserialize_any(Either)
    }
}

/// A serialised object of one of LangChain's classes of messages that has nothing but texts and numbers in it.
pub struct Plain<'a> {
    /// Its bytes without the texts that differ from message to message: objects of one form are alike but for these.
    pub form: Vec<u8>,
    /// The names of its fields.
    pub fields: Vec<&'a str>,
    /// Those texts, with their fields' names.
    pub texts: Vec<(&'a str, &'a str)>,
}

/// The classes whose objects are looked at so: LangGraph's serializer always makes these again, and what they check of a text
/// is only that it is one.
const CLASSES: [(&str, &str); 4] = [
    ("langchain_core.messages.human", "HumanMessage"),
    ("langchain_core.messages.ai", "AIMessage"),
    ("langchain_core.messages.system", "SystemMessage"),
    ("langchain_core.messages.tool", "ToolMessage"),
];
const TEXTS: [&str; 4] = ["content", "id", "name", "tool_call_id"];
/// Stands for a text: no value of MessagePack begins with it.
const CUT: u8 = 0xc1;

/// A message that is plain; none when it is something else.
pub(crate) fn plain(item: &[u8]) -> Option<Plain<'_>> {
    let mut outer = Reader { bytes: item, at: 0 };
    let Seen::Ext(5, inner) = outer.next()? else { return None };
    let mut reader = Reader { bytes: inner, at: 0 };
    let (Seen::Array(4), Seen::Text(module), Seen::Text(class), Seen::Map(count)) =
        (reader.next()?, reader.next()?, reader.next()?, reader.next()?)
    else {
        return None;
    };
    if !CLASSES.contains(&(module, class)) || count > 32 || outer.at != item.len() {
        return None;
    }
    let mut found = Plain { form: Vec::with_capacity(256), fields: Vec::with_capacity(count), texts: Vec::new() };
    found.form.extend_from_slice(&inner[..reader.at]);
    for _ in 0..count {
        let from = reader.at;
        let Seen::Text(name) = reader.next()? else { return None };
        found.fields.push(name);
        found.form.extend_from_slice(&inner[from..reader.at]);
        let from = reader.at;
        match reader.next()? {
            Seen::Text(text) if TEXTS.contains(&name) => {
                found.texts.push((name, text));
                found.form.push(CUT);
                continue;
            }
            Seen::Text(_) | Seen::Array(0) | Seen::Map(0) => {}
            Seen::Other(_) if !matches!(inner[from], 0xc4..=0xc6) => {}
            _ => return None,
        }
        found.form.extend_from_slice(&inner[from..reader.at]);
    }
    let Seen::Text(_) = reader.next()? else { return None };
    (reader.at == inner.len()).then_some(found)
}

/// Whether a message has an id of its own: then a graph keeps it as it is, and else gives it one. None when it is of no class
/// that has ids.
pub(crate) fn is_named(item: &[u8]) -> Option<bool> {
    let Some(Seen::Ext(kind, inner)) = (Reader { bytes: item, at: 0 }).next() else { return None };
    if !PYDANTIC.contains(&kind) {
        return None;
    }
    let fields = (Reader { bytes: inner, at: 0 }).json(0);
    Some(fields.is_some_and(|parts| parts.get(2).and_then(|fields| fields.get("id")).is_some_and(Value::is_string)))
}

#[cfg(test)]
mod tests {
    use super::{from_json, from_message, to_message};

    /// A message whose content is a text or a list of texts.
    fn message(texts: &[String], is_list: bool) -> Vec<u8> {
        let text = |text: &str| [&[0xdb][..], &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        let mut item = vec![0x82];
        item.extend([text("role"), text("human"), text("content")].concat());
        match is_list {
            false => item.extend(text(texts.first().map_or("", String::as_str))),
            true => {
                item.push(0x90 | texts.len() as u8);
                texts.iter().for_each(|part| item.extend(text(part)));
            }
        }
        item
    }

    proptest::proptest! {
        #[test]
        fn a_message_and_its_json_give_back_the_bytes(texts in proptest::collection::vec("\\PC{0,20}[\"\n\\\\é]?", 0..5), is_list: bool) {
            let item = message(&texts, is_list);
            let made = to_message(&item).unwrap();
            let json = serde_json::to_vec(&made).unwrap();
            proptest::prop_assert_eq!(from_message(&made), Some(item.clone()));
            proptest::prop_assert_eq!(from_json(&json), Some(item));
        }
    }

    #[test]
    fn json_that_no_thread_wrote_gives_nothing() {
        for json in
            ["", "{}", "[]", r#"{"role":"user","content":"a"}"#, r#"{"role":"user","content":"a","langgraph":["la"]}"#]
        {
            assert_eq!(from_json(json.as_bytes()), None, "{json}");
        }
    }
}
