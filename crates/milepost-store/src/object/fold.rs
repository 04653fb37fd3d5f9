//! Folding a log: what its steps come to, in the memory backend's own structures.

use std::collections::{BTreeMap, BTreeSet};

use milepost_model::{Epoch, Position, Seq, SessionId, TimelineId, Timestamp};

use super::format::{Appending, Base, IndexRow, Op, Pin, SessionBase, Step, TimelineBase, upper};
use super::names::LogName;
use super::sealed::Chain;
use crate::backend::{Appended, BlobId, MAIN_HEAD};
use crate::memory::{SessionState, TimelineState, Workspace};

/// What is known of a log besides what it says.
#[derive(Debug, Default)]
pub(super) struct LogState {
    /// The number of the next step.
    pub next: u64,
    /// What is known to be sealed: the newest base, and the segments after it, oldest first.
    pub chain: Chain,
    /// The moment before the last request that proved this to be all.
    pub fresh: Option<Timestamp>,
    /// Something was replaced or removed in a step above the base: its old bytes are to go when the store is tidied.
    pub has_rewrite: bool,
    /// Something was erased in a step above the base: no segment may carry its old bytes on.
    pub has_erasure: bool,
    pub side: Side,
    /// Appends of the current turn: in memory, not yet in the bucket.
    pub turn: Turn,
}

/// Appends that wait for the end of their turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub appends: Vec<Appending>,
    pub epoch: Option<Epoch>,
    pub bytes: usize,
    pub begun: Timestamp,
}

impl Turn {
    pub fn is_empty(&self) -> bool {
        self.appends.is_empty()
    }

    pub fn ops(&self) -> Vec<Op> {
        self.appends.iter().map(|appending| Op::Append(Box::new(appending.clone()))).collect()
    }

    pub fn push(&mut self, appending: Appending, epoch: Option<Epoch>, now: Timestamp) {
        if self.is_empty() {
            self.begun = now;
        }
        self.epoch = epoch;
        self.bytes += appending.bytes();
        self.appends.push(appending);
    }
}

/// What the memory backend has no place for.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// In the order they were made.
    pub timelines: Vec<TimelineId>,
    pub pins: Vec<Pin>,
    pub touched: BTreeMap<BlobId, Timestamp>,
    pub parents: BTreeMap<TimelineId, SessionId>,
    /// Timelines with a parent elsewhere that are gone: their pins hold nothing any more.
    pub ended: BTreeSet<TimelineId>,
}

impl LogState {
    /// Steps that are not sealed.
    pub fn loose_steps(&self) -> u64 {
        self.next.saturating_sub(self.chain.end())
    }
}

/// Applies a step. Gives the answer of its last append.
pub(super) fn apply(w: &mut Workspace, name: &LogName, state: &mut LogState, step: Step) -> Option<Appended> {
    let mut answer = None;
    for op in step.ops {
        match op {
            Op::Append(appending) => {
                let touched = appending.blobs.iter().map(|id| (*id, step.time));
                state.side.touched.extend(touched);
                if let Some(parent) = appending.parent {
                    state.side.parents.insert(appending.batch.timeline, parent);
                    state.side.ended.remove(&appending.batch.timeline);
                }
                if appending.batch.open.is_some() {
                    state.side.timelines.push(appending.batch.timeline);
                }
                let rewrite = &appending.batch.rewrite;
                let is_erasure = !rewrite.entries.is_empty() || !rewrite.truncate.is_empty();
                state.has_erasure |= is_erasure;
                state.has_rewrite |= is_erasure || !rewrite.marks.is_empty() || !rewrite.drop_marks.is_empty();
                answer = Some(w.apply(appending.batch, step.time));
            }
            Op::Lease(lease) => {
                if let Some(session) = session_of(name).and_then(|id| w.sessions.get_mut(&id)) {
                    session.lease = lease;
                }
            }
            Op::Branch(pin) => {
                state.side.pins.retain(|old| old.timeline != pin.timeline);
                state.side.pins.push(pin);
            }
            Op::Unbranch(timeline) => state.side.pins.retain(|pin| pin.timeline != timeline),
            Op::Rebuild { row, marks } => {
                w.rebuild(*row, marks, step.time);
                state.has_rewrite = true;
            }
            Op::Remove => {
                if let Some(id) = session_of(name) {
                    w.remove(id);
                }
                let side = std::mem::take(&mut state.side);
                // Blobs that it leaves behind are as old as they were.
                state.side.touched = side.touched;
                state.side.ended = side.ended;
                state.side.ended.extend(side.parents.into_keys());
                state.has_rewrite = true;
                state.has_erasure = true;
            }
            Op::PutRecord(record) => {
                state.has_rewrite |= w.records.insert(record.key.clone(), record).is_some();
            }
            Op::DeleteRecord(key) => {
                w.records.remove(&key);
                state.has_rewrite = true;
            }
        }
    }
    answer
}

fn session_of(name: &LogName) -> Option<SessionId> {
    match name {
        LogName::Session(id) => Some(*id),
        LogName::Records(_) => None,
    }
}

/// Takes everything of a log out of memory.
pub(super) fn forget(w: &mut Workspace, name: &LogName) {
    match name {
        LogName::Session(id) => w.remove(*id),
        LogName::Records(kind) => w.records.retain(|key, _| key.kind != *kind),
    }
}

/// Puts a base in place of what is in memory.
pub(super) fn install(w: &mut Workspace, name: &LogName, state: &mut LogState, base: Base) {
    forget(w, name);
    state.side = Side {
        timelines: base.session.iter().flat_map(|session| &session.timelines).map(|line| line.id).collect(),
        pins: base.pins,
        touched: base.touched.into_iter().collect(),
        parents: base.parents.into_iter().collect(),
        ended: base.ended.into_iter().collect(),
    };
    state.has_rewrite = false;
    state.has_erasure = false;
    w.records.extend(base.records.into_iter().map(|record| (record.key.clone(), record)));
    let (Some(id), Some(session)) = (session_of(name), base.session) else { return };
    for line in session.timelines {
        w.made += 1;
        let entries = line.entries.into_iter().collect();
        let state = TimelineState { made: w.made, session: id, parent: line.parent, head: line.head, entries };
        w.timelines.insert(line.id, state);
    }
    w.marks.extend(session.marks.into_iter().map(|row| (row.at, row)));
    w.keyframes.extend(session.keyframes.into_iter().map(|frame| (frame.at, frame)));
    let state = SessionState { row: session.row, noted_length: session.noted_length, lease: session.lease };
    w.sessions.insert(id, state);
}

/// The base of what is in memory.
pub(super) fn snapshot(w: &Workspace, name: &LogName, side: &Side) -> Base {
    let records = match name {
        LogName::Session(_) => Vec::new(),
        LogName::Records(kind) => w.records.values().filter(|record| record.key.kind == *kind).cloned().collect(),
    };
    Base {
        session: session_of(name).and_then(|id| session_base(w, id, side)),
        records,
        pins: side.pins.clone(),
        touched: side.touched.iter().map(|(id, time)| (*id, *time)).collect(),
        parents: side.parents.iter().map(|(line, session)| (*line, *session)).collect(),
        ended: side.ended.iter().copied().collect(),
    }
}

fn of_line<T: Clone>(map: &BTreeMap<Position, T>, timeline: TimelineId) -> impl Iterator<Item = T> {
    let at = |seq| Position { timeline, seq: Seq(seq) };
    map.range(at(0)..=at(u64::MAX)).map(|(_, value)| value.clone())
}

/// A session's timelines, in the order they were made.
fn lines<'a>(w: &'a Workspace, side: &Side) -> Vec<(TimelineId, &'a TimelineState)> {
    side.timelines.iter().filter_map(|id| Some((*id, w.timelines.get(id)?))).collect()
}

fn session_base(w: &Workspace, id: SessionId, side: &Side) -> Option<SessionBase> {
    let session = w.sessions.get(&id)?;
    let own = lines(w, side);
    Some(SessionBase {
        row: session.row.clone(),
        noted_length: session.noted_length,
        lease: session.lease.clone(),
        marks: own.iter().flat_map(|(line, _)| of_line(&w.marks, *line)).collect(),
        keyframes: own.iter().flat_map(|(line, _)| of_line(&w.keyframes, *line)).collect(),
        timelines: own
            .into_iter()
            .map(|(id, line)| TimelineBase {
                id,
                parent: line.parent,
                head: line.head.clone(),
                entries: line.entries.iter().map(|(seq, entry)| (*seq, entry.clone())).collect(),
            })
            .collect(),
    })
}

/// What the index says of a session.
/// Marks up to a session's head that are not in the trash; none where it continues another session's timeline, whose marks
/// may go without it.
pub(super) fn own_marks(w: &Workspace, id: SessionId, state: &LogState) -> Option<u64> {
    let own = lines(w, &state.side);
    let (head, _) = own.iter().find(|(_, line)| line.head.as_deref() == Some(MAIN_HEAD))?;
    let is_foreign = |line: &TimelineState| {
        line.parent.is_some_and(|at| w.timelines.get(&at.timeline).is_none_or(|parent| parent.session != id))
    };
    match own.iter().any(|(_, line)| is_foreign(line)) {
        true => None,
        false => Some(w.marks_up_to(*head).count),
    }
}

pub(super) fn index_row(w: &Workspace, id: SessionId, state: &LogState, now: Timestamp) -> IndexRow {
    let own = lines(w, &state.side);
    IndexRow {
        next: state.next,
        untidy: state.has_rewrite,
        noted: (state.next, now),
        settled: 0,
        row: w.sessions.get(&id).map(|session| session.row.clone()),
        marks: own.iter().flat_map(|(line, _)| of_line(&w.marks, *line)).map(|row| upper(row.id)).collect(),
        timelines: own.into_iter().map(|(id, _)| id).collect(),
    }
}
