//! Writing to a session without holding it: for adapters of frameworks that know no owner, where several processes add to
//! the same session.

use std::sync::Arc;

use milepost_model::delta::StatePath;
use milepost_model::{BatchId, Event, Message, Position, Seq, SessionId, SessionPatch, State, TimelineId};
use milepost_store::backend::Kinds;
use milepost_store::{Append, NewMark, Receipt, SessionWriter};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::engine::Milepost;
use crate::error::Result;
use crate::session::NewSession;

/// How often an addition is tried again when others write at the same time (4,096). Behind another process that adds without a
/// pause few tries win, and each of them loses a few milliseconds.
const TRIES: usize = 4096;

/// What to add, all or nothing, in this order.
#[derive(Debug, Clone, Default)]
pub struct Add {
    /// Messages.
    pub messages: Vec<Message>,
    /// Something that happened.
    pub event: Option<Event>,
    /// Values of the state to set by their paths.
    pub set: Vec<(StatePath, Value)>,
    /// A change of what a list shows.
    pub patch: SessionPatch,
    /// A checkpoint of everything before it.
    pub mark: Option<NewMark>,
    /// The same addition sent again is recognised by it.
    pub batch: Option<BatchId>,
}

/// A session that is written to without its lease. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Shared {
    engine: Milepost,
    writer: Arc<SessionWriter>,
    /// Held while a state is read and changed.
    changing: Arc<Mutex<()>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("session", &self.id()).finish_non_exhaustive()
    }
}

impl Milepost {
    /// Begins a session that nobody holds.
    pub async fn create_shared(&self, new: NewSession) -> Result<Shared> {
        let NewSession { id, mut patch, mut state, policy } = new;
        if let Some(policy) = policy {
            crate::config::policy_patch(&policy)?;
            patch.0.insert(crate::session::POLICY_KEY.to_owned(), policy);
        }
        self.redaction().patch(&mut patch)?;
        let found = self.redaction().state(&mut state);
        crate::redaction::keep(self, found).await?;
        let writer = self.store().create_shared(milepost_store::NewSession { id, patch }).await?;
        if state != State::default() {
            writer.append(Append::new().state(state)).await?;
        }
        Ok(Shared { engine: self.clone(), writer: Arc::new(writer), changing: Arc::default() })
    }

    /// Writes to a session beside whoever else does.
    pub async fn share(&self, id: SessionId) -> Result<Shared> {
        let writer = self.store().join(id).await?;
        if writer.session().await.hidden {
            return Err(crate::session::hidden(self, "writing to", id).await?);
        }
        Ok(Shared { engine: self.clone(), writer: Arc::new(writer), changing: Arc::default() })
    }
}

impl Shared {
    /// The session.
    pub fn id(&self) -> SessionId {
        self.writer.id()
    }

    /// Adds; returns when it is durable. When another writes at the same moment, it is tried again behind it. No
    /// policy takes checkpoints here: whoever wants one adds it.
    pub async fn add(&self, add: Add) -> Result<Receipt> {
        let set = add.set.clone();
        let (append, mark) = self.clean(add).await?;
        let _changing = if set.is_empty() { None } else { Some(self.changing.lock().await) };
        let mut tries = 0;
        loop {
            match self.writer.append(self.whole(&append, None, &set, mark.as_ref()).await?).await {
                Err(milepost_store::Error::Conflict(_)) if tries < TRIES => tries += 1,
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Where the head is now: its timeline, and the number that its next entry gets.
    pub async fn head(&self) -> Result<(TimelineId, u64)> {
        Ok(self.writer.refresh().await?)
    }

    /// Adds only if the head is still where it was; else it is a conflict and nothing is stored. With `back_to`, the
    /// session is set back to that entry first, in the same step; what came after stays, on the old timeline.
    pub async fn add_at(&self, head: (TimelineId, u64), back_to: Option<Seq>, add: Add) -> Result<Receipt> {
        let set = add.set.clone();
        let (append, mark) = self.clean(add).await?;
        let append = append.after(head.0, head.1);
        let _changing = if set.is_empty() { None } else { Some(self.changing.lock().await) };
        let mut again = true;
        loop {
            let outcome = match back_to {
                None => self.writer.append(self.whole(&append, None, &set, mark.as_ref()).await?).await,
                Some(seq) => {
                    let at = self.entry(head.0, head.1, seq).await?;
                    let whole = self.whole(&append, Some(at), &set, mark.as_ref()).await?;
                    self.writer.restore_with(at, whole).await
                }
            };
            match outcome {
                // The writer itself may not have known yet where the head is.
                Err(milepost_store::Error::Conflict(_)) if again && self.writer.refresh().await? == head => {
                    again = false;
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Begins a session that shares everything up to and with an entry, and that nobody holds. Nothing is copied.
    pub async fn branch_at(&self, seq: Seq, new: NewSession) -> Result<SessionId> {
        let (timeline, length) = self.head().await?;
        let at = self.entry(timeline, length, seq).await?;
        let NewSession { id, mut patch, .. } = new;
        self.engine.redaction().patch(&mut patch)?;
        let new = milepost_store::NewSession { id, patch };
        let writer = self.engine.store().branch(at, new, &self.engine.claim()).await?;
        let id = writer.id();
        writer.release().await?;
        Ok(id)
    }

    /// Where the entry with a number lies, along the timelines that lead to a head.
    async fn entry(&self, timeline: TimelineId, length: u64, seq: Seq) -> Result<Position> {
        let missing = || milepost_store::Error::NotFound { what: "entry", id: format!("{} of {}", seq.0, self.id()) };
        if seq.0 >= length {
            return Err(missing().into());
        }
        let found = self.engine.store().entries_at(Position { timeline, seq }, seq, Kinds::ALL).await?;
        Ok(found.first().map(|entry| entry.at).ok_or_else(missing)?)
    }

    /// What is to be stored, without its secrets.
    async fn clean(&self, add: Add) -> Result<(Append, Option<NewMark>)> {
        let redaction = self.engine.redaction();
        let mut append = Append::new();
        let mut found = Vec::new();
        for mut message in add.messages {
            found.extend(redaction.message(&mut message));
            append = append.message(message);
        }
        if let Some(mut event) = add.event {
            found.extend(redaction.event(&mut event)?);
            append = append.event(event);
        }
        if !add.patch.is_empty() {
            let mut patch = add.patch;
            redaction.patch(&mut patch)?;
            append = append.patch(patch);
        }
        let batch = add.batch.unwrap_or_else(|| self.engine.source().id());
        append = append.batch(batch);
        let mark = add.mark.map(|mark| redaction.mark(mark));
        crate::redaction::keep(&self.engine, found).await?;
        Ok((append, mark))
    }

    /// The same with the state as it is to be (changed from that at the head, or at an entry), and the checkpoint of all
    /// that.
    async fn whole(
        &self,
        append: &Append,
        at: Option<Position>,
        set: &[(StatePath, Value)],
        mark: Option<&NewMark>,
    ) -> Result<Append> {
        let mut append = append.clone();
        if !set.is_empty() {
            append = append.state(self.changed(at, set).await?);
        }
        Ok(match mark {
            Some(mark) => append.mark(mark.clone()),
            None => append,
        })
    }

    async fn changed(&self, at: Option<Position>, set: &[(StatePath, Value)]) -> Result<State> {
        let state = match at {
            Some(at) => self.engine.store().state_at(at).await?,
            None => self.writer.state().await?,
        };
        let mut state = state.into_value();
        for (path, value) in set {
            crate::point::set(&mut state, path, value.clone())?;
        }
        let mut state: State = state.try_into().map_err(milepost_store::Error::from)?;
        let found = self.engine.redaction().state(&mut state);
        crate::redaction::keep(&self.engine, found).await?;
        Ok(state)
    }
}
