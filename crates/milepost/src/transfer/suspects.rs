//! What looks like a secret in a bundle. It is told, not changed: a bundle is what was exported, or nothing.

use std::collections::BTreeSet;

use milepost_model::delta::{Change, PathPart};
use milepost_model::{Body, Delta};
use serde_json::{Map, Value};

use super::beside::Beside;
use super::outgoing::PieceEntry;
use crate::engine::Milepost;
use crate::redaction::Secret;

/// Looks through entries and what lies beside them, one after the other.
pub(super) struct Suspects<'a> {
    engine: &'a Milepost,
    entries: u64,
    blobs: u64,
    artifacts: BTreeSet<String>,
    lines: u64,
    kinds: BTreeSet<String>,
}

impl<'a> Suspects<'a> {
    pub fn new(engine: &'a Milepost) -> Self {
        Self { engine, entries: 0, blobs: 0, artifacts: BTreeSet::new(), lines: 0, kinds: BTreeSet::new() }
    }

    /// Whether a text holds something; what it is, is kept.
    fn holds(&mut self, text: &str) -> bool {
        let found = self.engine.redaction().value(&mut Value::String(text.to_owned()));
        let holds = !found.is_empty();
        self.kinds.extend(found.into_iter().map(|secret| secret.kind));
        holds
    }

    /// Looks at an artifact or at lines of the log. What is no text is not looked at.
    pub fn look_beside(&mut self, piece: &Beside) {
        match piece {
            Beside::Artifact(artifact) => {
                let content = std::str::from_utf8(&artifact.content).unwrap_or_default();
                if self.holds(&artifact.name) | self.holds(content) {
                    self.artifacts.insert(artifact.name.clone());
                }
            }
            Beside::Log(_, lines) => {
                for line in lines {
                    self.lines += u64::from(self.holds(&line.text));
                }
            }
        }
    }

    /// Looks at a blob that entries name, when it is a text.
    pub fn look_at_blob(&mut self, content: &[u8]) {
        let text = std::str::from_utf8(content).unwrap_or_default();
        self.blobs += u64::from(self.holds(text));
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
        let counts = [
            (self.entries, "entry", "entries"),
            (self.blobs, "blob", "blobs"),
            (self.artifacts.len() as u64, "artifact", "artifacts"),
            (self.lines, "line of the log", "lines of the log"),
        ];
        let total: u64 = counts.iter().map(|(count, ..)| count).sum();
        let named = counts.into_iter().filter(|(count, ..)| *count > 0);
        let named: Vec<String> =
            named.map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many })).collect();
        let what = match (total, named.join(" and ")) {
            (0, _) => return None,
            (1, what) => format!("{what} looks as if it held secrets"),
            (_, what) => format!("{what} look as if they held secrets"),
        };
        let kinds = self.kinds.into_iter().collect::<Vec<_>>().join(", ");
        let how = match self.engine.store().is_encrypted() {
            true => "`milepost redact`, with each of them",
            false => "`milepost redact --known`",
        };
        Some(format!("{what} ({kinds}); they were imported as they are: erase them with {how}"))
    }
}
