//! Ids that change on the way, and the places that name them.

use std::collections::HashMap;

use milepost_model::{Id, SessionId};
use serde_json::{Map, Value};

/// Old names and the new ones. Only whole strings of what events and marks carry are changed, never what was said.
#[derive(Debug, Default)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    pub fn insert(&mut self, old: impl ToString, new: impl ToString) {
        let (old, new) = (old.to_string(), new.to_string());
        if old != new {
            self.0.insert(old, new);
        }
    }

    /// The new id of one that may have changed.
    pub fn id<T: Id>(&self, old: T) -> T {
        self.0.get(&old.to_string()).and_then(|new| new.parse().ok()).unwrap_or(old)
    }

    /// Changes every string that is an old name.
    pub fn rename(&self, map: &mut Map<String, Value>) {
        if self.0.is_empty() {
            return;
        }
        let keys: Vec<String> = map.keys().filter(|key| self.0.contains_key(*key)).cloned().collect();
        for key in keys {
            if let (Some(value), Some(new)) = (map.remove(&key), self.0.get(&key)) {
                map.insert(new.clone(), value);
            }
        }
        map.values_mut().for_each(|value| self.rename_value(value));
    }

    fn rename_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(new) = self.0.get(text) {
                    text.clone_from(new);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.rename_value(item)),
            Value::Object(map) => self.rename(map),
            _ => {}
        }
    }
}

/// The id that something of another session has in a copy of `session`: always the same, and nobody else's. It sorts
/// where the old one does.
pub(crate) fn derived<T: Id>(session: SessionId, old: T) -> T {
    let mut hasher = blake3::Hasher::new_derive_key("milepost 1 shared beginning");
    hasher.update(&session.to_bytes()).update(&old.bits().to_be_bytes());
    let mut tail = [0u8; 16];
    tail[6..].copy_from_slice(&hasher.finalize().as_bytes()[..10]);
    T::from_bits(old.bits() >> 80 << 80 | u128::from_be_bytes(tail))
}
