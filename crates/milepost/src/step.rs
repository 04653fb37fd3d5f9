//! What a step of a run leaves behind: events, changes of the state and a checkpoint, in one batch.

use milepost_model::delta::{PathPart, StatePath};
use milepost_model::{CheckpointId, Delta, Event, SessionPatch};
use milepost_store::{Append, NewMark};
use serde_json::{Map, Value};

use crate::error::Result;
use crate::session::{Session, is_lost};

/// Things that happened together. All of it is stored, or nothing; costs what changed, not what the state weighs.
#[derive(Debug, Clone, Default)]
pub struct Together {
    /// What happened.
    pub events: Vec<Event>,
    /// Values of the state that are new, by their paths. What a path leads through has to be there.
    pub set: Vec<(StatePath, Value)>,
    /// Items that lists of the state gained.
    pub gained: Vec<(StatePath, Vec<Value>)>,
    /// What a list of sessions shows.
    pub patch: Option<SessionPatch>,
    /// The checkpoint that follows, when the policy takes such ones.
    pub mark: Option<NewMark>,
}

impl Session {
    /// Stores things that happened together; returns when they are durable. A checkpoint that cannot be taken is told
    /// and owed, and everything else is stored without it.
    pub async fn record(&self, together: Together) -> Result<Option<CheckpointId>> {
        let mut found = Vec::new();
        let mut append = Append::new();
        for mut event in together.events {
            let mut data = Value::Object(std::mem::take(&mut event.data));
            found.extend(self.redaction().value(&mut data));
            if let Value::Object(data) = data {
                event.data = data;
            }
            append = append.event(event);
        }
        let mut delta = Delta::builder();
        for (path, value) in together.set {
            // A named key is left out by its name, which is the last part of the path.
            let name = match path.parts().last() {
                Some(PathPart::Key(key)) => key.clone(),
                _ => String::new(),
            };
            let mut named = Value::Object(Map::from_iter([(name.clone(), value)]));
            found.extend(self.redaction().value(&mut named));
            let Some(value) = named.as_object_mut().and_then(|map| map.remove(&name)) else { continue };
            delta = delta.set(path, value);
        }
        for (path, items) in together.gained {
            let mut items = Value::Array(items);
            found.extend(self.redaction().value(&mut items));
            if let Value::Array(items) = items {
                delta = delta.append(path, items);
            }
        }
        let delta = delta.build().map_err(milepost_store::Error::from)?;
        self.keep_secrets(found).await?;
        if !delta.is_empty() {
            append = append.delta(delta);
        }
        if let Some(mut patch) = together.patch {
            self.redaction().patch(&mut patch);
            append = append.patch(patch);
        }
        let Some(mark) = together.mark.filter(|mark| self.policy().takes(&mark.trigger)) else {
            if !append.is_empty() {
                self.writer().append(append).await?;
            }
            return Ok(None);
        };
        let mark = self.redaction().mark(mark);
        let start = self.now();
        match self.writer().append(append.clone().mark(mark.clone())).await {
            Ok(receipt) => {
                let made = self.marked(&mark, &receipt, start).await;
                self.prune_if_due().await;
                Ok(made)
            }
            Err(error) if is_lost(&error) => Err(error.into()),
            Err(error) => {
                if !append.is_empty() {
                    self.writer().append(append).await?;
                }
                self.mark_failed(mark, &error.into());
                Ok(None)
            }
        }
    }
}
