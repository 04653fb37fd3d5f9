//! Writing to a session without holding it: for adapters of frameworks that know no owner, where several processes add to
//! the same session.

use std::sync::Arc;

use milepost_model::delta::StatePath;
use milepost_model::{BatchId, Event, Message, SessionId, SessionPatch, State};
use milepost_store::{Append, NewMark, Receipt, SessionWriter};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::engine::Milepost;
use crate::error::Result;
use crate::session::NewSession;

/// How often an addition is tried again when others write at the same time.
const TRIES: usize = 64;

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
        self.redaction().patch(&mut patch);
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
        let redaction = self.engine.redaction();
        let mut append = Append::new();
        let mut found = Vec::new();
        for mut message in add.messages {
            found.extend(redaction.message(&mut message));
            append = append.message(message);
        }
        if let Some(mut event) = add.event {
            let mut data = Value::Object(std::mem::take(&mut event.data));
            found.extend(redaction.value(&mut data));
            if let Value::Object(data) = data {
                event.data = data;
            }
            append = append.event(event);
        }
        if !add.patch.is_empty() {
            let mut patch = add.patch;
            redaction.patch(&mut patch);
            append = append.patch(patch);
        }
        let batch = add.batch.unwrap_or_else(|| self.engine.source().id());
        append = append.batch(batch);
        let mark = add.mark.map(|mark| redaction.mark(mark));
        crate::redaction::keep(&self.engine, found).await?;
        let _changing = if add.set.is_empty() { None } else { Some(self.changing.lock().await) };
        let mut tries = 0;
        loop {
            let mut append = append.clone();
            if !add.set.is_empty() {
                append = append.state(self.changed(&add.set).await?);
            }
            if let Some(mark) = &mark {
                append = append.mark(mark.clone());
            }
            match self.writer.append(append).await {
                Err(milepost_store::Error::Conflict(_)) if tries < TRIES => tries += 1,
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn changed(&self, set: &[(StatePath, Value)]) -> Result<State> {
        let mut state = self.writer.state().await?.into_value();
        for (path, value) in set {
            crate::point::set(&mut state, path, value.clone())?;
        }
        let mut state: State = state.try_into().map_err(milepost_store::Error::from)?;
        let found = self.engine.redaction().state(&mut state);
        crate::redaction::keep(&self.engine, found).await?;
        Ok(state)
    }
}
