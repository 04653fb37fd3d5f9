//! What a document of another design said that a session has no place for, or says in words of its own: kept beside what was
//! made of it, and put over what an export makes, so that a tree that was imported comes out with what it had.

use milepost_model::Session;
use serde_json::{Map, Value, json};

use super::origin;

/// Where marks and sessions keep it.
pub(super) const AS_WRITTEN: &str = "as_written";
/// Where a session says what it was called where it came from.
pub(super) const IMPORTED_ID: &str = "imported_id";
/// When the session was last at work as it was imported: what is said of it as a whole holds until it goes on.
const ACTIVE: &str = "active";
/// So much is kept of the documents that say something of a session as a whole.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// What a checkpoint keeps of its document.
pub(super) fn of_mark(layout: &str, document: Map<String, Value>) -> Value {
    json!({ "layout": layout, "document": document })
}

/// What a session keeps of the documents that say something of it as a whole.
pub(super) fn of_session(active_ms: i64, documents: Map<String, Value>) -> Value {
    let mut kept = documents;
    kept.insert(ACTIVE.into(), active_ms.into());
    Value::Object(kept)
}

/// Puts what a checkpoint's document said over what was made of the checkpoint. A checkpoint never changes.
pub(super) fn over_mark(made: &mut Map<String, Value>, layout: &str) {
    let Some(kept) = made.get(AS_WRITTEN).filter(|kept| kept.get("layout").and_then(Value::as_str) == Some(layout))
    else {
        return;
    };
    let document = kept.get("document").cloned().unwrap_or_default();
    made.remove(AS_WRITTEN);
    let mut whole = Value::Object(std::mem::take(made));
    put(&mut whole, &document, true);
    if let Value::Object(whole) = whole {
        *made = whole;
    }
}

/// Puts what a document said of a session as a whole over what was made. Of a session that went on since, only what it has
/// no words for.
pub(super) fn over_session(made: &mut Value, session: &Session, document: &str) {
    let Some(kept) = session.extra.get(AS_WRITTEN) else { return };
    let is_unchanged = kept.get(ACTIVE).and_then(Value::as_i64) == Some(session.active.unix_ms());
    if let Some(document) = kept.get(document) {
        put(made, document, is_unchanged);
    }
}

/// The same for fields that are there, and no others.
pub(super) fn over_fields(made: &mut Value, session: &Session, document: &str) {
    let mut whole = made.clone();
    over_session(&mut whole, session, document);
    if let (Value::Object(made), Value::Object(mut whole)) = (made, whole) {
        made.iter_mut().for_each(|(key, value)| *value = whole.remove(key).unwrap_or_default());
    }
}

/// What an import kept of a session under a name.
pub(super) fn kept<'a>(session: &'a Session, name: &str) -> Option<&'a Value> {
    session.extra.get(AS_WRITTEN)?.get(name)
}

fn put(made: &mut Value, kept: &Value, over: bool) {
    let (Value::Object(made), Value::Object(kept)) = (made, kept) else { return };
    for (key, value) in kept {
        match made.get_mut(key) {
            Some(inner @ Value::Object(_)) if value.is_object() => put(inner, value, over),
            Some(inner) if over => *inner = value.clone(),
            Some(_) => {}
            None => drop(made.insert(key.clone(), value.clone())),
        }
    }
}

/// What a session is called in files for other tools: as it was called where it came from, when that is no id of ours. What
/// was branched from it since is another.
pub(super) fn name(session: &Session) -> String {
    let original = session.extra.get(IMPORTED_ID).and_then(Value::as_str);
    let is_foreign = |name: &&str| name.parse::<milepost_model::SessionId>().is_err();
    match original.filter(is_foreign).filter(|_| origin(session).is_none()) {
        Some(name) => name.to_owned(),
        None => session.id.to_string(),
    }
}
