//! Operations with everything picked: what is called on every store, and what it answers.

use milepost_model::{
    BatchId, Channel, CheckpointId, Delta, Event, Message, Position, Resumable, Retention, Role, SessionId,
    SessionPatch, State, Timestamp, Trigger,
};
use milepost_store::{Append, Deleted, NewMark, Purged, Receipt, Result};
use serde_json::{Value, json};

use super::ops::{Change, Item, noise, text};

/// What an operation answers; errors are compared by what they say.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Done,
    Began(SessionId, Position),
    Stored(Receipt),
    Each(Vec<Result<Receipt, String>>),
    Pruned(Vec<CheckpointId>),
    Purged(Purged),
    Deleted(Deleted),
    Collected(Vec<SessionId>, u64),
    Redacted(u64, u64),
    Emptied(Purged, Vec<SessionId>),
    /// Whether the writer before was refused.
    TakenOver(Option<bool>),
}

/// An operation with everything picked: the same call for every store.
#[derive(Debug, Clone)]
pub enum Call {
    Create(SessionPatch),
    Append(SessionId, Vec<Part>, BatchId),
    /// Their batch ids are given: which draw comes first depends on who waits for whom.
    Together(SessionId, Vec<(Vec<Part>, BatchId)>),
    Patch(SessionId, SessionPatch),
    File(SessionId, u8),
    Branch(Position, SessionPatch),
    Restore(SessionId, Position),
    Prune(SessionId, Retention),
    TrashMark(SessionId, CheckpointId),
    UntrashMark(SessionId, CheckpointId),
    Purge(SessionId, Timestamp),
    Trash(SessionId),
    Untrash(SessionId),
    Delete(SessionId, milepost_store::DeleteMode),
    EmptyTrash(Retention),
    Collect,
    Reopen,
    Advance(i64),
    TakeOver(SessionId),
    Release(SessionId),
    Redact(&'static str),
    Reindex,
}

/// One entry to append.
#[derive(Debug, Clone)]
pub enum Part {
    Message(Message),
    State(Value),
    Delta(Value, Value),
    Mark(NewMark),
    Event,
    Misfit,
}

pub fn build(parts: &[Part], batch: BatchId) -> Append {
    parts.iter().cloned().fold(Append::new().batch(batch), |append, part| match part {
        Part::Message(message) => append.message(message),
        Part::State(value) => append.state(State::try_from(value).unwrap()),
        Part::Delta(before, after) => append.delta(Delta::diff(&before, &after).unwrap()),
        Part::Mark(mark) => append.mark(mark),
        Part::Event => append.event(Event::new("note", json!({ "what": "something" }))),
        Part::Misfit => append.delta(Delta::builder().remove("/nowhere/at all").build().unwrap()),
    })
}

pub fn title_of(patch: &SessionPatch) -> Option<String> {
    patch.0.get("title").and_then(Value::as_str).map(str::to_owned)
}

pub fn is_misfit(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part, Part::Misfit))
}

/// Turns items into entries; `state` becomes the state after them.
pub fn resolve(items: &[Item], state: &mut Value) -> Vec<Part> {
    let channels = ["main", "main", "side", "sub \u{1f9ed}"];
    let triggers = [Trigger::Step, Trigger::Messages, Trigger::Manual, Trigger::Pause, Trigger::Other("own".into())];
    let part = |item: &Item| match item {
        Item::Message { words, channel, large } => {
            let mut said = text(words);
            if *large {
                said += &noise(*channel, 20_000);
            }
            let channel = Channel::new(channels[usize::from(*channel)]).unwrap();
            Part::Message(Message::new(Role::User, said).in_channel(channel))
        }
        Item::State(change) => {
            apply(change, state);
            Part::State(state.clone())
        }
        Item::Delta(change) => {
            let before = state.clone();
            apply(change, state);
            Part::Delta(before, state.clone())
        }
        Item::Mark { trigger, label, clean, resumable } => {
            let mut mark = NewMark::new(triggers[usize::from(*trigger)].clone());
            mark.label = label.map(|label| format!("label {label}"));
            mark.clean = *clean;
            mark.resumable = if *resumable { Resumable::Yes } else { Resumable::No("busy".into()) };
            Part::Mark(mark)
        }
        Item::Event => Part::Event,
        Item::Misfit => Part::Misfit,
    };
    items.iter().map(part).collect()
}

fn apply(change: &Change, state: &mut Value) {
    let key = |number: &u8| format!("key {number}");
    let memory = &mut state.as_object_mut().unwrap();
    match change {
        Change::Nothing => {}
        Change::Set(number, words) => {
            drop(memory.insert(key(number), json!({ "text": text(words), "n": words.len() })));
        }
        Change::Long(seed) => drop(memory.insert("long".into(), json!(noise(*seed, 400)))),
        Change::Remove(number) => drop(memory.remove(&key(number))),
        Change::Push(number, words) => {
            let list = memory.entry("list").or_insert_with(|| json!([]));
            list.as_array_mut().unwrap().push(json!([number, text(words)]));
        }
        Change::Clear => memory.clear(),
    }
}
