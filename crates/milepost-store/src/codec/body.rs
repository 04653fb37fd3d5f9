//! What an entry says, as plain bytes: JSON for messages and events, binary for deltas and marks.
//! The commitment is made over these bytes.

use std::borrow::Cow;

use milepost_model::delta::{check_depth, decode_value, encode_value};
use milepost_model::{
    Block, Body, Channel, Checkpoint, CheckpointId, Content, Delta, EntryKind, Event, Hash, Message, Trigger,
};
use serde_json::Value;

use super::varint;
use crate::error::{Error, Result};

/// The plain bytes of an entry.
pub(super) fn to_plain(body: &Body) -> Result<Vec<u8>> {
    match body {
        Body::Message(message) => json("message", message),
        Body::Event(event) => json("event", event),
        Body::State(delta) => Ok(delta.encode()),
        Body::Mark(mark) => mark_to_plain(mark),
    }
}

/// How deep the JSON of a message or an event may nest: what the parser that reads it again takes.
const MAX_JSON_DEPTH: usize = 127;

fn json(kind: &str, value: &impl serde::Serialize) -> Result<Vec<u8>> {
    let plain = serde_json::to_vec(value).map_err(|error| Error::invalid("entry", error.to_string()))?;
    let depth = depth(&plain);
    if depth > MAX_JSON_DEPTH {
        let why = format!(
            "its JSON nests {depth} levels, the limit MAX_JSON_DEPTH is {MAX_JSON_DEPTH}: keep it flatter, or store the deep part as a string"
        );
        return Err(Error::invalid(format!("the {kind}"), why));
    }
    Ok(plain)
}

/// How deep a JSON text nests.
fn depth(plain: &[u8]) -> usize {
    let opens = |byte: &&u8| matches!(byte, b'[' | b'{');
    // Most have fewer of them than they may nest.
    let count = plain.iter().filter(opens).count();
    if count <= MAX_JSON_DEPTH {
        return count;
    }
    let (mut depth, mut deepest, mut in_text, mut escaped) = (0usize, 0, false, false);
    for byte in plain {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// What plain bytes say.
pub(super) fn from_plain(kind: EntryKind, plain: &[u8]) -> Result<Body> {
    let bad = |why: String| Error::corrupt(format!("a {} entry", kind.as_str()), why);
    Ok(match kind {
        EntryKind::Message => {
            Body::Message(serde_json::from_slice::<Message>(plain).map_err(|error| bad(error.to_string()))?)
        }
        EntryKind::Event => {
            Body::Event(serde_json::from_slice::<Event>(plain).map_err(|error| bad(error.to_string()))?)
        }
        EntryKind::State => Body::State(Delta::decode(plain).map_err(|error| bad(error.to_string()))?),
        EntryKind::Mark => Body::Mark(mark_from_plain(plain).ok_or_else(|| bad("it cannot be read".into()))?),
    })
}

const CLEAN: u8 = 1;
/// All messages are in the main channel: one number instead of a map.
const ONLY_MAIN: u8 = 2;
/// A value with the remaining fields follows.
const MORE: u8 = 4;

/// What nearly every mark has as bytes, the rest as a compact value: hashes and ids do not compress.
fn mark_to_plain(mark: &Checkpoint) -> Result<Vec<u8>> {
    let bad = |error: serde_json::Error| Error::invalid("checkpoint", error.to_string());
    let only_main = (mark.counts.len() == 1).then(|| mark.counts.get(&Channel::MAIN)).flatten();
    let mut rest = mark.extra.clone();
    let mut also = |field: &str, value: Value| rest.insert(field.to_owned(), value);
    if let Some(label) = &mark.label {
        also("label", label.as_str().into());
    }
    if let Some(description) = &mark.description {
        also("description", description.as_str().into());
    }
    if !mark.resumable.is_yes() {
        also("resumable", serde_json::to_value(&mark.resumable).map_err(bad)?);
    }
    if only_main.is_none() && !mark.counts.is_empty() {
        also("counts", serde_json::to_value(&mark.counts).map_err(bad)?);
    }
    let trigger = mark.trigger.as_str();
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let mut out = Vec::with_capacity(80);
    out.push(flag(mark.clean, CLEAN) | flag(only_main.is_some(), ONLY_MAIN) | flag(!rest.is_empty(), MORE));
    out.extend_from_slice(&mark.id.to_bytes());
    out.extend_from_slice(&mark.state.0);
    varint::push(&mut out, mark.number);
    varint::push(&mut out, trigger.len() as u64);
    out.extend_from_slice(trigger.as_bytes());
    if let Some(count) = only_main {
        varint::push(&mut out, *count);
    }
    if !rest.is_empty() {
        let rest = Value::Object(rest);
        check_depth(&rest)?;
        out.extend_from_slice(&encode_value(&rest));
    }
    Ok(out)
}

fn mark_from_plain(plain: &[u8]) -> Option<Checkpoint> {
    let (&flags, rest) = plain.split_first()?;
    let (id, rest) = rest.split_first_chunk::<16>()?;
    let (state, mut rest) = rest.split_first_chunk::<32>()?;
    let number = varint::pull(&mut rest)?;
    let trigger_len = usize::try_from(varint::pull(&mut rest)?).ok()?;
    let (trigger, mut rest) = rest.split_at_checked(trigger_len)?;
    let main = if flags & ONLY_MAIN != 0 { Some(varint::pull(&mut rest)?) } else { None };
    let mut mark =
        Checkpoint::new(CheckpointId::from_bytes(*id), Trigger::from(String::from_utf8(trigger.to_vec()).ok()?));
    mark.number = number;
    mark.clean = flags & CLEAN != 0;
    mark.state = Hash(*state);
    if let Some(count) = main {
        mark.counts.insert(Channel::MAIN, count);
    }
    if flags & MORE == 0 {
        return rest.is_empty().then_some(mark);
    }
    let Value::Object(mut more) = decode_value(rest).ok()? else { return None };
    let text = |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned));
    mark.label = text(more.remove("label"));
    mark.description = text(more.remove("description"));
    if let Some(resumable) = more.remove("resumable") {
        mark.resumable = serde_json::from_value(resumable).ok()?;
    }
    if let Some(counts) = more.remove("counts") {
        mark.counts = serde_json::from_value(counts).ok()?;
    }
    mark.extra = more;
    Some(mark)
}

/// The beginning of a message's leading text, and where it lies in the plain bytes: what a person
/// reads in a table. It is cut out of the payload and put in again by [`escape`].
pub(super) fn clear_text<'a>(message: &'a Message, plain: &[u8]) -> Option<(usize, &'a str)> {
    let role = serde_json::to_string(&message.role).ok()?;
    let (text, block) = match &message.content {
        Content::Text(text) => (text, ""),
        Content::Blocks(blocks) => match blocks.first()? {
            Block::Text { text, .. } => (text, "[{\"type\":\"text\",\"text\":"),
            _ => return None,
        },
    };
    let end = text.floor_char_boundary(super::CLEAR_TEXT_MAX);
    let text = text.get(..end)?;
    if text.is_empty() || text.contains('\0') {
        return None;
    }
    let offset = "{\"role\":".len() + role.len() + ",\"content\":".len() + block.len() + "\"".len();
    plain.get(offset..)?.starts_with(escape(text).as_bytes()).then_some((offset, text))
}

/// Whether a message may have a text, by a glance at its plain bytes: one that has none for sure is a list of pictures, or
/// empty. A call of a tool and a block of an unknown kind have texts, too.
pub(super) fn may_have_text(plain: &[u8]) -> bool {
    const PICTURE: &[u8] = b"{\"type\":\"image\",\"source\":";
    let Some(role) = plain.strip_prefix(b"{\"role\":\"") else { return true };
    let Some(end) = memchr::memchr2(b'"', b'\\', role) else { return true };
    let Some(list) = role[end..].strip_prefix(b"\",\"content\":[") else { return true };
    // What follows an object is another picture, or it is not known what it is: a field, a text, a tool.
    let all_pictures = || {
        let mut followed = memchr::memmem::find_iter(list, b"},").map(|at| &list[at + b"},".len()..]);
        list.starts_with(PICTURE) && followed.all(|next| next.starts_with(PICTURE))
    };
    !(list.starts_with(b"]") || all_pictures())
}

/// A text as it stands inside a JSON string.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| (byte >= 0x20) & (byte != b'"') & (byte != b'\\');
    // To the end in any case: many bytes are looked at at once.
    if text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
        return Cow::Borrowed(text);
    }
    let mut literal = serde_json::to_string(text).unwrap_or_default();
    literal.pop();
    Cow::Owned(literal.split_off(literal.len().min(1)))
}
