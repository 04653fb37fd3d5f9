//! What a thread's session holds, in the order in which it came: to be brought into the session that takes its place.

use milepost_model::delta::{PathPart, StatePath};
use milepost_model::{
    BatchId, Body, Checkpoint, EntryKind, Event, Message, Position, Seq, SessionId, SessionPatch, TimelineId,
};
use milepost_store::backend::{Kinds, Timeline};
use milepost_store::{Append, Error, NewMark, Redactor, Result, is_own_event};
use serde_json::{Value, json};

use crate::msgpack;
use crate::read::{Marked, record_of, writes_of};
use crate::record::Writes;
use crate::thread::{BUILDING, LEFT, Saver};

/// Something that a session holds.
pub(crate) enum Step {
    /// A timeline begins, which goes on from an entry of another.
    Back(Position),
    /// One of LangGraph's checkpoints.
    Checkpoint(Box<Marked>),
    /// What was written for one, by its id.
    Writes(String, Writes),
    /// What people added themselves.
    Added(Added),
}

/// What people added to a thread's session.
pub(crate) enum Added {
    Message(Message),
    Event(Event),
    Mark(NewMark),
    /// What they have a list show of it.
    Patch(SessionPatch),
    /// The state after they changed it.
    State(Value),
}

/// Up to where a session was read: its head has so many entries. A timeline that another follows gets no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reached {
    pub timeline: TimelineId,
    pub length: u64,
}

impl Reached {
    pub fn to_json(self) -> Value {
        json!([self.timeline, self.length])
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        Some(Self { timeline: value.get(0)?.as_str()?.parse().ok()?, length: value.get(1)?.as_u64()? })
    }
}

/// An entry that is added again under this id is added once.
pub(crate) fn batch_of(at: Position) -> BatchId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&at.timeline.to_bytes());
    hasher.update(&at.seq.0.to_le_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    BatchId::from_bytes(id)
}

impl Saver {
    /// What a session holds, oldest first, with where it lies; only what came after it was read before, if it was. And up to
    /// where it was read now.
    pub(crate) async fn steps(
        &self,
        session: SessionId,
        before: Option<Reached>,
        redactor: Option<&Redactor>,
    ) -> Result<(Vec<(Position, Step)>, Reached)> {
        let lines = self.store.backend().timelines(self.store.workspace(), session).await?;
        let Some(last) = lines.last() else { return Err(Error::NotFound { what: "session", id: session.to_string() }) };
        let reached = Reached { timeline: last.id, length: last.length };
        let known = before.and_then(|before| lines.iter().position(|line| line.id == before.timeline));
        let mut steps = Vec::new();
        for line in lines.iter().skip(known.unwrap_or(0)) {
            let here = before.filter(|before| before.timeline == line.id);
            self.steps_of(line, (before.is_some(), here), redactor, &mut steps).await?;
        }
        Ok((steps, reached))
    }

    async fn steps_of(
        &self,
        line: &Timeline,
        (is_late, before): (bool, Option<Reached>),
        redactor: Option<&Redactor>,
        steps: &mut Vec<(Position, Step)>,
    ) -> Result<()> {
        let from = before.map_or(line.begins(), |before| before.length);
        // Writes that name no checkpoint are for the one before them.
        let mut newest = None;
        match (before, line.parent) {
            (Some(_), _) if from > line.begins() && from < line.length => {
                let end = Position { timeline: line.id, seq: Seq(from - 1) };
                for entry in self.store.entries_at(end, Seq(line.begins()), Kinds::only(EntryKind::Mark)).await? {
                    let Some(Body::Mark(mark)) = entry.body else { continue };
                    newest = record_of(&mark)?.map(|record| record.id);
                }
            }
            (None, Some(parent)) => {
                let begins = Position { timeline: line.id, seq: parent.seq };
                steps.push((begins, Step::Back(parent)));
            }
            _ => {}
        }
        if from >= line.length {
            return Ok(());
        }
        let end = Position { timeline: line.id, seq: Seq(line.length - 1) };
        for entry in self.store.entries_at(end, Seq(from), Kinds::ALL).await? {
            if let Some(writes) = writes_of(&entry)? {
                let checkpoint = writes.checkpoint.clone().or_else(|| newest.clone());
                steps.extend(checkpoint.map(|id| (entry.at, Step::Writes(id, writes))));
                continue;
            }
            let added = match entry.body {
                Some(Body::Mark(mark)) => {
                    let record = record_of(&mark)?;
                    newest = record.as_ref().map(|record| record.id.clone());
                    match record {
                        Some(record) => {
                            let marked = Marked { record, at: entry.at, counts: mark.counts, until: entry.at };
                            steps.push((entry.at, Step::Checkpoint(Box::new(marked))));
                            None
                        }
                        None => Some(Added::Mark(mark_of(mark, redactor))),
                    }
                }
                Some(Body::Message(mut message)) if !message.extra.contains_key(msgpack::FIELD) => {
                    let _found = redactor.is_some_and(|redactor| redactor.message(&mut message));
                    Some(Added::Message(message))
                }
                Some(Body::Event(mut event)) => {
                    let _found = redactor.is_some_and(|redactor| redactor.event(&mut event));
                    match is_own_event(&event) {
                        false => Some(Added::Event(event)),
                        // What it showed when it was read is known.
                        true if is_late => patch_of(&event).map(Added::Patch),
                        true => None,
                    }
                }
                Some(Body::State(delta)) if delta.changes().any(|(path, _)| !is_own_path(&path)) => {
                    let mut state = self.store.state_at(entry.at).await?.into_value();
                    let _found = redactor.is_some_and(|redactor| redactor.clean_value(&mut state));
                    Some(Added::State(state))
                }
                _ => None,
            };
            steps.extend(added.map(|added| (entry.at, Step::Added(added))));
        }
        Ok(())
    }
}

impl Added {
    /// To be appended once, however often it is tried.
    pub fn append(&self, at: Position) -> Append {
        let append = Append::new().batch(batch_of(at));
        match self {
            Added::Message(message) => append.message(message.clone()),
            Added::Event(event) => append.event(event.clone()),
            Added::Mark(mark) => append.mark(mark.clone()),
            Added::Patch(patch) => append.patch(patch.clone()),
            // Where the writes lie that came early or late is the new session's own.
            Added::State(_) => append,
        }
    }
}

/// What people changed of what a list shows.
fn patch_of(event: &Event) -> Option<SessionPatch> {
    let mut set = event.data.get("set").filter(|_| event.kind == "session")?.as_object()?.clone();
    [BUILDING, LEFT].iter().for_each(|name| drop(set.remove(*name)));
    (!set.is_empty()).then_some(SessionPatch(set))
}

/// Whether the adapter keeps something there.
fn is_own_path(path: &StatePath) -> bool {
    matches!(path.parts().first(), Some(PathPart::Key(section)) if section == "langgraph")
}

/// The same checkpoint once more, of what is there by then.
fn mark_of(mark: Checkpoint, redactor: Option<&Redactor>) -> NewMark {
    let (label, description, mut extra) = (mark.label, mark.description, Value::Object(mark.extra));
    let clean = |text: String| redactor.and_then(|redactor| redactor.clean(&text)).unwrap_or(text);
    let _found = redactor.is_some_and(|redactor| redactor.clean_value(&mut extra));
    NewMark {
        id: None,
        trigger: mark.trigger,
        label: label.map(clean),
        description: description.map(clean),
        clean: mark.clean,
        resumable: mark.resumable,
        extra: extra.as_object().cloned().unwrap_or_default(),
    }
}
