//! What can be appended: the forms that callers fill in, and what they get back.

use std::sync::Arc;

use milepost_model::{
    BatchId, CheckpointId, Delta, Event, Message, Position, Resumable, Retention, SessionId, SessionPatch, State,
    TimelineId, Trigger,
};
use serde_json::{Map, Value};

use super::fold;
use crate::backend::BlobId;

/// Who wants to write, and how much they want it.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Who, in words a person understands: program, machine, process.
    pub holder: String,
    /// Take the session even if someone else holds it.
    pub take_over: bool,
}

impl Claim {
    /// Asks for a session that nobody else holds.
    pub fn new(holder: impl Into<String>) -> Self {
        Self { holder: holder.into(), take_over: false }
    }

    /// Takes a session whoever holds it.
    #[must_use]
    pub fn take_over(self) -> Self {
        Self { take_over: true, ..self }
    }
}

/// A session to begin.
#[derive(Debug, Clone, Default)]
pub struct NewSession {
    /// Its id; a new one when none.
    pub id: Option<SessionId>,
    /// What a list shows of it.
    pub patch: SessionPatch,
}

/// A checkpoint to take. Its id, its counts and the hash of its state are filled in.
#[derive(Debug, Clone)]
pub struct NewMark {
    /// Its id, for adapters that find it by a name of their own; a new one when none. Never the same twice.
    pub id: Option<CheckpointId>,
    /// Why.
    pub trigger: Trigger,
    /// A short name; labelled checkpoints are not pruned.
    pub label: Option<String>,
    /// What is going on.
    pub description: Option<String>,
    /// Nothing is under way.
    pub clean: bool,
    /// Whether a session can go on from here.
    pub resumable: Resumable,
    /// Whatever else is to be kept with it.
    pub extra: Map<String, Value>,
}

impl NewMark {
    /// A clean, resumable checkpoint.
    pub fn new(trigger: Trigger) -> Self {
        Self {
            id: None,
            trigger,
            label: None,
            description: None,
            clean: true,
            resumable: Resumable::Yes,
            extra: Map::new(),
        }
    }

    /// With a label.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: Some(label.into()), ..self }
    }

    /// With a description.
    #[must_use]
    pub fn description(self, text: impl Into<String>) -> Self {
        Self { description: Some(text.into()), ..self }
    }
}

/// One thing to append.
#[derive(Clone)]
pub(super) enum Item {
    Message(Message),
    State(Arc<State>),
    Delta(Delta),
    Event(Event, Vec<BlobId>),
    Mark(Box<NewMark>),
}

/// What to append, in order. All of it is stored, or nothing.
#[derive(Clone, Default)]
pub struct Append {
    pub(super) id: Option<BatchId>,
    pub(super) after: Option<(TimelineId, u64)>,
    pub(super) items: Vec<Item>,
    pub(super) prune: Option<Retention>,
}

impl Append {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to append.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The same without its checkpoints.
    #[must_use]
    pub fn without_marks(mut self) -> Self {
        self.items.retain(|item| !matches!(item, Item::Mark(_)));
        self
    }

    /// Checkpoints that a retention does not keep go into the trash in the same batch. If that cannot be done, the rest is
    /// stored all the same: see [`Receipt::pruned`].
    #[must_use]
    pub fn prune(mut self, keep: &Retention) -> Self {
        self.prune = Some(keep.clone());
        self
    }

    /// Whether checkpoints are to go into the trash with it.
    pub fn prunes(&self) -> bool {
        self.prune.is_some()
    }

    /// Under an id of the caller's: the same append sent again is recognised and not added twice.
    #[must_use]
    pub fn batch(mut self, id: BatchId) -> Self {
        self.id = Some(id);
        self
    }

    /// Only if the head is this timeline with so many entries; else it is refused as a conflict.
    #[must_use]
    pub fn after(mut self, timeline: TimelineId, length: u64) -> Self {
        self.after = Some((timeline, length));
        self
    }

    /// Something said.
    #[must_use]
    pub fn message(mut self, message: Message) -> Self {
        self.items.push(Item::Message(message));
        self
    }

    /// The whole state as it is now; what changed is found out. A caller that goes on with it shares it in an `Arc`
    /// and changes it by [`Arc::make_mut`]: once the append is done, nobody else has it and nothing is copied.
    #[must_use]
    pub fn state(mut self, state: impl Into<Arc<State>>) -> Self {
        self.items.push(Item::State(state.into()));
        self
    }

    /// What changed in the state, for a caller who knows.
    #[must_use]
    pub fn delta(mut self, delta: Delta) -> Self {
        self.items.push(Item::Delta(delta));
        self
    }

    /// Something that happened.
    #[must_use]
    pub fn event(self, event: Event) -> Self {
        self.event_with(event, Vec::new())
    }

    /// Something that happened and needs these blobs.
    #[must_use]
    pub fn event_with(mut self, event: Event, blobs: Vec<BlobId>) -> Self {
        self.items.push(Item::Event(event, blobs));
        self
    }

    /// A change of what a list shows of the session.
    #[must_use]
    pub fn patch(self, patch: SessionPatch) -> Self {
        self.event(fold::patch_event(patch))
    }

    /// A checkpoint of everything before it.
    #[must_use]
    pub fn mark(mut self, mark: NewMark) -> Self {
        self.items.push(Item::Mark(Box::new(mark)));
        self
    }
}

/// What an append was given: it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its first entry.
    pub first: Position,
    /// The number the next entry will have.
    pub length: u64,
    /// Checkpoints it took.
    pub checkpoints: Vec<CheckpointId>,
    /// Checkpoints that went into the trash with it, oldest first; none when that was not asked for, or could not be done.
    pub pruned: Option<Vec<CheckpointId>>,
    /// It was stored before: nothing was added.
    pub repeated: bool,
}
