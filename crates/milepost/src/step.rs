//! What a step of a run leaves behind: messages, events, changes of the state and a checkpoint, in one batch.

use milepost_model::delta::{PathPart, StatePath};
use milepost_model::{Delta, Event, Message, SessionPatch};
use milepost_store::{Append, NewMark};
use serde_json::{Map, Value};

use crate::error::Result;
use crate::redaction::Secret;
use crate::session::{Session, is_lost};

/// Things that happened together. All of it is stored, or nothing; costs what changed, not what the state weighs.
#[derive(Debug, Clone, Default)]
pub struct Together {
    /// What was said, before everything else.
    pub messages: Vec<Message>,
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

impl Together {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.events.is_empty()
            && self.set.is_empty()
            && self.gained.is_empty()
            && self.patch.is_none()
            && self.mark.is_none()
    }
}

impl Session {
    /// Stores things that happened together; returns when they are durable. A checkpoint that cannot be taken is told
    /// and owed, and everything else is stored without it.
    pub async fn record(&self, together: Together) -> Result<()> {
        self.record_all(vec![together]).await
    }

    /// As [`Session::record`], for things that happened one after another: all of it is stored, or nothing, with one wait
    /// for the disk. Each checkpoint holds what came before it.
    pub async fn record_all(&self, all: Vec<Together>) -> Result<()> {
        let mut found = Vec::new();
        let mut append = Append::new();
        let mut marks = Vec::new();
        let mut said = 0;
        for together in all {
            said += together.messages.len() as u64;
            append = self.add_together(append, together, &mut marks, &mut found)?;
        }
        self.keep_secrets(found).await?;
        self.count_messages(said);
        if append.is_empty() {
            return Ok(());
        }
        if marks.is_empty() {
            self.writer().append(append).await?;
            return Ok(());
        }
        let start = self.now();
        let whole = self.with_prune(append.clone(), &marks).await;
        let was_due = whole.prunes();
        match self.writer().append(whole).await {
            Ok(receipt) => {
                self.appended(&marks, &receipt, was_due, start).await;
                Ok(())
            }
            Err(error) if is_lost(&error) => Err(error.into()),
            Err(error) => {
                let rest = append.without_marks();
                if !rest.is_empty() {
                    self.writer().append(rest).await?;
                }
                let error = error.into();
                marks.into_iter().for_each(|mark| self.mark_failed(mark, &error));
                Ok(())
            }
        }
    }

    /// Adds what happened together to an append, with the checkpoint if the policy takes such ones.
    fn add_together(
        &self,
        mut append: Append,
        together: Together,
        marks: &mut Vec<NewMark>,
        found: &mut Vec<Secret>,
    ) -> Result<Append> {
        for mut message in together.messages {
            found.extend(self.redaction().message(&mut message));
            append = append.message(message);
        }
        for mut event in together.events {
            found.extend(self.redaction().event(&mut event)?);
            append = append.event(event);
        }
        let delta = self.delta(together.set, together.gained, found)?;
        if !delta.is_empty() {
            append = append.delta(delta);
        }
        if let Some(mut patch) = together.patch {
            self.redaction().patch(&mut patch)?;
            append = append.patch(patch);
        }
        if let Some(mark) = together.mark.filter(|mark| self.policy().takes(&mark.trigger)) {
            let mark = self.redaction().mark(mark);
            append = append.mark(mark.clone());
            marks.push(mark);
        }
        Ok(append)
    }

    /// A change of the state, without its secrets.
    pub(crate) fn delta(
        &self,
        set: Vec<(StatePath, Value)>,
        gained: Vec<(StatePath, Vec<Value>)>,
        found: &mut Vec<Secret>,
    ) -> Result<Delta> {
        let mut delta = Delta::builder();
        for (path, value) in set {
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
        for (path, items) in gained {
            let mut items = Value::Array(items);
            found.extend(self.redaction().value(&mut items));
            if let Value::Array(items) = items {
                delta = delta.append(path, items);
            }
        }
        Ok(delta.build().map_err(milepost_store::Error::from)?)
    }
}
