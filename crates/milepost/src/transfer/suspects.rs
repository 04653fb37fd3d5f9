//! What looks like a secret in a bundle. It is told, not changed: a bundle is what was exported, or nothing.

use std::collections::BTreeSet;

use milepost_model::delta::{Change, PathPart};
use milepost_model::{Body, Delta};
use serde_json::{Map, Value};

use super::outgoing::PieceEntry;
use crate::engine::Milepost;
use crate::redaction::Secret;

/// Looks through entries, one after the other.
pub(super) struct Suspects<'a> {
    engine: &'a Milepost,
    entries: u64,
    kinds: BTreeSet<String>,
}

impl<'a> Suspects<'a> {
    pub fn new(engine: &'a Milepost) -> Self {
        Self { engine, entries: 0, kinds: BTreeSet::new() }
    }

    pub fn look(&mut self, piece: PieceEntry) {
        let redaction = self.engine.redaction();
        let mut found = match piece.entry.body {
            None => Vec::new(),
            Some(Body::Message(mut message)) => redaction.message(&mut message),
            Some(Body::State(delta)) => self.delta(&delta),
            Some(Body::Event(event)) => redaction.value(&mut Value::Object(event.data)),
            Some(Body::Mark(mark)) => {
                let texts = [mark.label, mark.description].into_iter().flatten();
                let mut found: Vec<Secret> = texts.flat_map(|text| redaction.value(&mut Value::String(text))).collect();
                found.extend(redaction.value(&mut Value::Object(mark.extra)));
                found
            }
        };
        if let Some(mut whole) = piece.whole {
            found.extend(redaction.state(&mut whole));
        }
        self.entries += u64::from(!found.is_empty());
        self.kinds.extend(found.into_iter().map(|secret| secret.kind));
    }

    /// Each value under the name that it gets: some are secrets for their name alone.
    fn delta(&self, delta: &Delta) -> Vec<Secret> {
        let mut found = Vec::new();
        for (path, change) in delta.changes() {
            let value = match change {
                Change::Set(value) => value.clone(),
                Change::Append(items) | Change::Splice { insert: items, .. } => Value::Array(items.to_vec()),
                Change::AppendStr(text) | Change::SpliceStr { insert: text, .. } => Value::String(text.to_owned()),
                _ => continue,
            };
            let mut named = match path.parts().last() {
                Some(PathPart::Key(key)) => Value::Object(Map::from_iter([(key.clone(), value)])),
                _ => value,
            };
            found.extend(self.engine.redaction().value(&mut named));
        }
        found
    }

    /// What was found, in words; none when nothing was.
    pub fn note(self) -> Option<String> {
        let what = match self.entries {
            0 => return None,
            1 => "1 entry looks as if it held secrets".to_owned(),
            many => format!("{many} entries look as if they held secrets"),
        };
        let kinds = self.kinds.into_iter().collect::<Vec<_>>().join(", ");
        let how = match self.engine.store().is_encrypted() {
            true => "`milepost redact`, with each of them",
            false => "`milepost redact --known`",
        };
        Some(format!("{what} ({kinds}); they were imported as they are: erase them with {how}"))
    }
}
