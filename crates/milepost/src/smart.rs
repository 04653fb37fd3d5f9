//! The trigger `smart`, as far as the state alone tells: a change of many keys is worth a checkpoint.

use std::collections::BTreeSet;

use milepost_model::{State, Trigger};
use serde_json::{Map, Value};

use crate::error::Result;
use crate::session::Session;

impl Session {
    /// Whether the policy wants a checkpoint after a change of the state to this one. The state is only read when it may.
    pub(crate) async fn is_large_change(&self, state: &State) -> Result<bool> {
        if !self.policy().takes(&Trigger::Smart) {
            return Ok(false);
        }
        let before = self.state().await?;
        Ok(self.policy().smart.is_large_change(changed_keys(before.as_value(), state.as_value())))
    }
}

/// How many keys of the sections differ. A section that was not there, or is there no more, counts by its keys.
fn changed_keys(before: &Value, after: &Value) -> usize {
    let empty = Map::new();
    let (before, after) = (before.as_object().unwrap_or(&empty), after.as_object().unwrap_or(&empty));
    let sections: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differing = sections.into_iter().map(|section| {
        let (old, new) = (before.get(section), after.get(section));
        match [old, new].map(|part| part.map_or(Some(&empty), Value::as_object)) {
            [Some(old), Some(new)] => {
                let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
                keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).count()
            }
            _ => usize::from(old != new),
        }
    });
    differing.sum()
}
