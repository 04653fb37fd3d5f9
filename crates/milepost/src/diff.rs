//! What differs between two checkpoints, of one session or of two.

use std::collections::BTreeSet;

use milepost_model::{CheckpointId, Position, Seq, SessionId, State};
use milepost_store::{Mark, MessageQuery, StoredMessage};
use serde::Serialize;
use serde_json::Value;

use crate::engine::Milepost;
use crate::error::Result;
use crate::usage::Usage;

/// What differs between two checkpoints.
#[derive(Debug, Clone)]
pub struct Diff {
    /// The first.
    pub a: Mark,
    /// The second.
    pub b: Mark,
    /// The last entry that both have; none when they share nothing, also where both begin with copies of the same.
    pub common: Option<Position>,
    /// Messages that only the first has: those after the last entry that both have or, where there is none, after the
    /// last of the first messages that are equal.
    pub only_a: Vec<StoredMessage>,
    /// Messages that only the second has.
    pub only_b: Vec<StoredMessage>,
    /// Values of the state that differ.
    pub state: Vec<PathDiff>,
    /// What was spent on the way to the first since they part; all of it when they share nothing.
    pub usage_a: Usage,
    /// What was spent on the way to the second since they part.
    pub usage_b: Usage,
}

/// A value of the state that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathDiff {
    /// Where.
    pub path: String,
    /// What the first has there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What the second has there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

impl Milepost {
    /// Compares two checkpoints, also of different sessions.
    pub async fn diff(&self, a: CheckpointId, b: CheckpointId) -> Result<Diff> {
        let (a, b) = (self.store().load(a).await?, self.store().load(b).await?);
        let common = self.common(a.mark.at, b.mark.at).await?;
        let after = MessageQuery { from: common.map(|at| at.seq.next()), ..MessageQuery::default() };
        let mut only_a = self.store().messages_at(a.mark.at, &after).await?;
        let mut only_b = self.store().messages_at(b.mark.at, &after).await?;
        if common.is_none() {
            // A branch that was copied (archived, pushed, imported) has its own copies of what it shares.
            let is_same = |(a, b): &(&StoredMessage, &StoredMessage)| a.message == b.message;
            let same = only_a.iter().zip(&only_b).take_while(is_same).count();
            only_a.drain(..same);
            only_b.drain(..same);
        }
        let spent = |messages: &[StoredMessage]| messages.iter().map(|stored| Usage::of(&stored.message)).sum();
        Ok(Diff {
            usage_a: spent(&only_a),
            usage_b: spent(&only_b),
            state: state_diff(&a.state, &b.state),
            a: a.mark,
            b: b.mark,
            common,
            only_a,
            only_b,
        })
    }

    /// The last entry that two positions share.
    async fn common(&self, a: Position, b: Position) -> Result<Option<Position>> {
        let (mut ways, mut shared) = ([self.way(a).await?, self.way(b).await?].into_iter(), None);
        let (first, second) = (ways.next().unwrap_or_default(), ways.next().unwrap_or_default());
        for (one, other) in first.iter().zip(&second) {
            if one.timeline != other.timeline {
                break;
            }
            shared = Some(Position { timeline: one.timeline, seq: one.seq.min(other.seq) });
        }
        Ok(shared)
    }

    /// The last entry on every timeline that leads to a position, oldest first.
    pub(crate) async fn way(&self, to: Position) -> Result<Vec<Position>> {
        let mut way = vec![to];
        let mut at = to;
        let store = self.store();
        loop {
            let line = store.backend().timeline(store.workspace(), at.timeline).await?;
            let line =
                line.ok_or_else(|| milepost_store::Error::NotFound { what: "timeline", id: at.timeline.to_string() })?;
            match line.parent {
                Some(parent) => way.push(parent),
                None => break,
            }
            at = way.last().copied().unwrap_or(to);
        }
        way.reverse();
        Ok(way)
    }
}

impl Diff {
    /// The sessions of the two.
    pub fn sessions(&self) -> (SessionId, SessionId) {
        (self.a.session, self.b.session)
    }

    /// The entry from which they differ.
    pub fn differs_from(&self) -> Seq {
        self.common.map_or(Seq(0), |at| at.seq.next())
    }
}

/// Which values of two states differ, by their paths: those of objects one by one, a list or a text that changed whole, since
/// its parts have moved.
pub fn state_diff(before: &State, after: &State) -> Vec<PathDiff> {
    let mut found = Vec::new();
    compare("", Some(before.as_value()), Some(after.as_value()), &mut found);
    found
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<PathDiff>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
                let name = key.replace('~', "~0").replace('/', "~1");
                compare(&format!("{path}/{name}"), before.get(key), after.get(key), found);
            }
        }
        (before, after) => {
            found.push(PathDiff { path: path.to_owned(), before: before.cloned(), after: after.cloned() });
        }
    }
}
