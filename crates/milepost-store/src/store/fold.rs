//! How a session's row follows from its entries. Appending and rebuilding use the same rule, so that
//! they cannot disagree.

use std::collections::HashMap;

use milepost_model::{
    Body, Checkpoint, CheckpointId, Event, Message, Position, Session, SessionPatch, TimelineId, Timestamp,
};
use serde_json::{Map, Value};

use crate::backend::{MarkRow, SessionRow};
use crate::codec::Codec;
use crate::error::{Error, Result};

/// Events that the store itself writes.
pub(super) mod event {
    /// What a list shows of the session changed.
    pub const SESSION: &str = "session";
    /// The session began as a branch of another.
    pub const BRANCHED: &str = "branched";
    /// The session was set back to an earlier entry.
    pub const RESTORED: &str = "restored";
    /// Marks were put into the trash.
    pub const PRUNED: &str = "pruned";
    /// Marks were taken out of the trash.
    pub const UNPRUNED: &str = "unpruned";
    /// Marks in the trash were erased.
    pub const PURGED: &str = "purged";
    /// Entries were replaced because they held a secret.
    pub const REDACTED: &str = "redacted";

    /// All of them.
    pub const OWN: [&str; 7] = [SESSION, BRANCHED, RESTORED, PRUNED, UNPRUNED, PURGED, REDACTED];
}

/// Whether the store itself writes such events.
pub fn is_own_event(event: &Event) -> bool {
    event::OWN.contains(&event.kind.as_str())
}

/// Takes over one entry of the session's lineage.
pub(super) fn fold(session: &mut Session, time: Timestamp, body: &Body) {
    session.active = session.active.max(time);
    match body {
        Body::Message(message) => {
            *session.counts.entry(message.channel.clone()).or_default() += 1;
            if let Some(preview) = preview(message) {
                session.preview = Some(preview);
            }
        }
        Body::Mark(mark) => {
            session.checkpoints = mark.number;
            session.checkpoint = Some(mark.id);
        }
        Body::Event(event) => fold_event(session, event),
        Body::State(_) => {}
    }
}

fn fold_event(session: &mut Session, event: &Event) {
    let patch = |key: &str| event.data.get(key).and_then(Value::as_object).cloned().map(SessionPatch);
    match event.kind.as_str() {
        event::SESSION => {
            if let Some(patch) = patch("set") {
                session.patch(&patch);
            }
        }
        event::BRANCHED | event::RESTORED => {
            forget_meta(session);
            session.patch(&patch("set").unwrap_or_default());
        }
        _ => {}
    }
}

/// The session event that records a patch.
pub(super) fn patch_event(patch: SessionPatch) -> Event {
    Event { kind: event::SESSION.to_owned(), data: Map::from_iter([("set".to_owned(), Value::Object(patch.0))]) }
}

/// Everything about a session that a patch can set, as a patch: a restore and a branch carry it on.
pub(super) fn meta(session: &Session) -> SessionPatch {
    let mut patch = SessionPatch(session.extra.clone()).status(session.status);
    let texts = [
        ("title", &session.title),
        ("project", &session.project),
        ("agent", &session.agent),
        ("feature", &session.feature),
        ("task", &session.task),
        ("stage", &session.stage),
        ("error", &session.error),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            patch = patch.with(key, Value::String(text.clone()));
        }
    }
    if session.tags.is_empty() { patch } else { patch.tags(session.tags.iter().cloned()) }
}

fn forget_meta(session: &mut Session) {
    let fresh = Session::new(session.id, session.head, session.created);
    *session = Session {
        active: session.active,
        counts: std::mem::take(&mut session.counts),
        checkpoints: session.checkpoints,
        checkpoint: session.checkpoint,
        branch: session.branch,
        preview: session.preview.take(),
        ..fresh
    };
}

/// The beginning of a message's text on one line; none when it has no text.
pub(super) fn preview(message: &Message) -> Option<String> {
    let text = message.text();
    let clean = |c: char| if c.is_whitespace() || c.is_control() { ' ' } else { c };
    let line: String = text.trim().chars().map(clean).take(Session::PREVIEW_CHARS).collect();
    let line = line.trim_end();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The row of a session. In an encrypted workspace, texts are tokens or only in the sealed detail.
pub(super) fn session_to_row(codec: &Codec, session: &Session) -> Result<SessionRow> {
    let plain = serde_json::to_vec(session).map_err(|error| Error::invalid("session", error.to_string()))?;
    let clear = |text: &Option<String>| text.clone().filter(|text| codec.cipher.is_none() && !text.contains('\0'));
    let token = |column: &str, text: &Option<String>| text.as_deref().map(|text| codec.token(column, text));
    Ok(SessionRow {
        id: session.id,
        status: session.status,
        created: session.created,
        active: session.active,
        messages: session.messages(),
        checkpoints: session.checkpoints,
        trashed: session.trashed,
        hidden: session.hidden,
        title: clear(&session.title),
        preview: clear(&session.preview),
        keys: [
            token("project", &session.project),
            token("agent", &session.agent),
            token("feature", &session.feature),
            token("task", &session.task),
            token("stage", &session.stage),
        ],
        tags: session.tags.iter().map(|tag| codec.token("tag", tag)).collect(),
        detail: codec.encode_bytes("session", &session.id.to_bytes(), &plain)?,
    })
}

/// The session of a row.
pub(super) fn session_from_row(codec: &Codec, row: &SessionRow) -> Result<Session> {
    let plain = codec.decode_bytes("session", &row.id.to_bytes(), &row.detail)?;
    serde_json::from_slice(&plain)
        .map_err(|error| Error::corrupt(format!("the row of session {}", row.id), error.to_string()))
}

/// What is known of a session whose detail cannot be read.
pub(super) fn bare(row: &SessionRow) -> Session {
    let mut session = Session::new(row.id, TimelineId::from_bytes([0; 16]), row.created);
    session.status = row.status;
    session.active = row.active;
    session.checkpoints = row.checkpoints;
    session.counts.insert(milepost_model::Channel::MAIN, row.messages);
    session.trashed = row.trashed;
    session.hidden = row.hidden;
    session
}

/// The row of a mark.
pub(super) fn mark_to_row(codec: &Codec, at: Position, time: Timestamp, mark: &Checkpoint) -> MarkRow {
    MarkRow {
        at,
        id: mark.id,
        time,
        trigger: match &mark.trigger {
            milepost_model::Trigger::Other(name) => codec.token("trigger", name),
            known => known.as_str().to_owned(),
        },
        label: mark.label.as_deref().map(|label| codec.token("label", label)),
        clean: mark.clean,
        resumable: mark.resumable.is_yes(),
        kept: mark.is_kept(),
        messages: mark.messages(),
        trashed: None,
    }
}

/// Sets when marks were put into the trash, as the log's events say.
pub(super) fn trash_marks(rows: &mut [MarkRow], events: &[(Timestamp, Event)]) {
    let mut trashed: HashMap<CheckpointId, Option<Timestamp>> = HashMap::new();
    for (time, event) in events {
        let since = match event.kind.as_str() {
            event::PRUNED => Some(*time),
            event::UNPRUNED => None,
            _ => continue,
        };
        let ids = event.data.get("checkpoints").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        trashed.extend(ids.iter().filter_map(|id| id.as_str()?.parse().ok()).map(|id| (id, since)));
    }
    for row in rows {
        row.trashed = trashed.get(&row.id).copied().flatten();
    }
}
