//! What an entry says, as plain bytes: JSON for messages and events, binary for deltas and marks.
//! The commitment is made over these bytes.

use milepost_model::delta::{decode_value, encode_value};
use milepost_model::{Block, Body, Checkpoint, CheckpointId, Content, Delta, EntryKind, Event, Hash, Message};
use serde_json::Value;

use crate::error::{Error, Result};

/// The plain bytes of an entry.
pub(super) fn to_plain(body: &Body) -> Result<Vec<u8>> {
    match body {
        Body::Message(message) => json(message),
        Body::Event(event) => json(event),
        Body::State(delta) => Ok(delta.encode()),
        Body::Mark(mark) => mark_to_plain(mark),
    }
}

fn json(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::invalid("entry", error.to_string()))
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

/// Id and state hash as bytes, the rest as a compact value: the bytes of hashes do not compress.
fn mark_to_plain(mark: &Checkpoint) -> Result<Vec<u8>> {
    let mut rest = serde_json::to_value(mark).map_err(|error| Error::invalid("checkpoint", error.to_string()))?;
    if let Value::Object(map) = &mut rest {
        map.remove("id");
        map.remove("state");
    }
    let mut out = Vec::with_capacity(96);
    out.extend_from_slice(&mark.id.to_bytes());
    out.extend_from_slice(&mark.state.0);
    out.extend_from_slice(&encode_value(&rest));
    Ok(out)
}

fn mark_from_plain(plain: &[u8]) -> Option<Checkpoint> {
    let (id, rest) = plain.split_first_chunk::<16>()?;
    let (state, rest) = rest.split_first_chunk::<32>()?;
    let mut value = decode_value(rest).ok()?;
    let map = value.as_object_mut()?;
    map.insert("id".into(), Value::String(CheckpointId::from_bytes(*id).to_string()));
    map.insert("state".into(), Value::String(Hash(*state).to_string()));
    serde_json::from_value(value).ok()
}

/// A message's leading text and where its JSON string lies in the plain bytes, when a person could
/// read it in a table.
pub(super) fn clear_text<'a>(message: &'a Message, plain: &[u8]) -> Option<(usize, &'a str)> {
    let role = serde_json::to_string(&message.role).ok()?;
    let (text, block) = match &message.content {
        Content::Text(text) => (text, ""),
        Content::Blocks(blocks) => match blocks.first()? {
            Block::Text { text, .. } => (text, "[{\"type\":\"text\",\"text\":"),
            _ => return None,
        },
    };
    if text.is_empty() || text.len() > super::CLEAR_TEXT_MAX || text.contains('\0') {
        return None;
    }
    let offset = "{\"role\":".len() + role.len() + ",\"content\":".len() + block.len();
    let literal = serde_json::to_string(text).ok()?;
    (plain.get(offset..)?.starts_with(literal.as_bytes())).then_some((offset, text))
}
