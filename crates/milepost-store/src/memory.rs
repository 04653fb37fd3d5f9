//! A backend that keeps everything in memory: the reference that others are compared with, and what
//! tests use. Nothing survives the process; clones of one [`MemoryBackend`] share their content, and
//! each is closed for itself, so that a test can close a store and open it again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use milepost_model::{CheckpointId, Epoch, Position, Seq, SessionId, Source, TimelineId, Timestamp, WorkspaceId};

use crate::backend::*;
use crate::error::{Conflict, Error, Result};

/// A store in memory.
pub struct MemoryBackend {
    source: Source,
    inner: Arc<Mutex<BTreeMap<WorkspaceId, Workspace>>>,
    is_closed: AtomicBool,
}

impl Clone for MemoryBackend {
    /// The same content, opened once more.
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), inner: Arc::clone(&self.inner), is_closed: AtomicBool::new(false) }
    }
}

/// What one workspace holds. Other backends fold their logs into the same.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(crate) sessions: BTreeMap<SessionId, SessionState>,
    pub(crate) timelines: BTreeMap<TimelineId, TimelineState>,
    pub(crate) marks: BTreeMap<Position, MarkRow>,
    pub(crate) keyframes: BTreeMap<Position, Keyframe>,
    pub(crate) blobs: BTreeMap<BlobId, (Vec<u8>, Timestamp)>,
    pub(crate) records: BTreeMap<RecordKey, Record>,
    /// How many timelines were ever made.
    pub(crate) made: u64,
}

/// Marks that were counted along timelines.
pub(crate) struct MarksUpTo {
    pub(crate) count: u64,
    /// The entry up to and with which it goes on, on a timeline that is not here.
    pub(crate) beyond: Option<Position>,
}

pub(crate) struct SessionState {
    pub(crate) row: SessionRow,
    pub(crate) noted_length: u64,
    pub(crate) lease: Lease,
}

pub(crate) struct TimelineState {
    /// Timelines are listed in the order they were made.
    pub(crate) made: u64,
    pub(crate) session: SessionId,
    pub(crate) parent: Option<Position>,
    pub(crate) head: Option<String>,
    pub(crate) entries: BTreeMap<Seq, StoredEntry>,
}

impl TimelineState {
    fn begins(&self) -> u64 {
        self.parent.map_or(0, |at| at.seq.0 + 1)
    }
    pub(crate) fn length(&self) -> u64 {
        self.entries.last_key_value().map_or(self.begins(), |(seq, _)| seq.0 + 1)
    }
    pub(crate) fn info(&self, id: TimelineId) -> Timeline {
        Timeline {
            id,
            session: self.session,
            parent: self.parent,
            head: self.head.clone(),
            length: self.length(),
            chain: self.entries.last_key_value().and_then(|(_, entry)| entry.chain),
        }
    }
    /// The answer that a batch got when it was first added at `expected`.
    fn repeated(&self, expected: u64, batch: &Batch) -> Option<Appended> {
        let id = batch.entries.first()?.batch?;
        if self.entries.get(&Seq(expected))?.batch != Some(id) {
            return None;
        }
        Some(Appended { length: expected + batch.entries.len() as u64, repeated: true })
    }
}

impl MemoryBackend {
    /// An empty store.
    pub fn new(source: Source) -> Self {
        Self { source, inner: Arc::default(), is_closed: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, BTreeMap<WorkspaceId, Workspace>>> {
        match self.is_closed.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(self.inner.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    pub(crate) fn with<T>(&self, workspace: &WorkspaceId, f: impl FnOnce(&mut Workspace) -> Result<T>) -> Result<T> {
        f(self.lock()?.entry(workspace.clone()).or_default())
    }
}

impl Workspace {
    pub(crate) fn main_head(&self, session: SessionId) -> Option<TimelineId> {
        self.head(session, MAIN_HEAD)
    }

    fn head(&self, session: SessionId, name: &str) -> Option<TimelineId> {
        let is_head = |line: &TimelineState| line.session == session && line.head.as_deref() == Some(name);
        self.timelines.iter().find(|(_, line)| is_head(line)).map(|(id, _)| *id)
    }

    /// The main heads of all sessions.
    pub(crate) fn main_heads(&self) -> BTreeMap<SessionId, TimelineId> {
        let heads = self.timelines.iter().filter(|(_, line)| line.head.as_deref() == Some(MAIN_HEAD));
        heads.map(|(id, line)| (line.session, *id)).collect()
    }

    /// Counts the marks up to the end of a timeline that are not in the trash, as far back as timelines are here.
    pub(crate) fn marks_up_to(&self, head: TimelineId) -> MarksUpTo {
        let (mut count, mut next) = (0, Some(Position { timeline: head, seq: Seq(u64::MAX) }));
        while let Some(last) = next {
            let Some(line) = self.timelines.get(&last.timeline) else { break };
            let marks = self.marks.range(Position { seq: Seq(0), ..last }..=last);
            count += marks.filter(|(_, row)| row.trashed.is_none()).count() as u64;
            next = line.parent.map(|at| Position { seq: at.seq.min(last.seq), ..at });
        }
        MarksUpTo { count, beyond: next }
    }

    pub(crate) fn check_epoch(&self, session: SessionId, epoch: Epoch) -> Result<()> {
        let Some(state) = self.sessions.get(&session) else { return Err(Error::not_found("session", session)) };
        let current = state.lease.epoch;
        if epoch != current {
            return Err(Error::Fenced { session, epoch, current, holder: state.lease.holder.clone() });
        }
        Ok(())
    }

    fn append(&mut self, batch: Batch, now: Timestamp) -> Result<Appended> {
        match self.check(&batch)? {
            Some(answer) => Ok(answer),
            None => Ok(self.apply(batch, now)),
        }
    }

    /// Whether a batch may be added; the first answer when it was added already.
    pub(crate) fn check(&self, batch: &Batch) -> Result<Option<Appended>> {
        if let Some(answer) = self.timelines.get(&batch.timeline).and_then(|line| line.repeated(batch.expected, batch))
        {
            return Ok(Some(answer));
        }
        if let (Some(epoch), true) = (batch.epoch, self.sessions.contains_key(&batch.session)) {
            self.check_epoch(batch.session, epoch)?;
        }
        match &batch.open {
            Some(open) => self.check_opening(batch, open)?,
            None => self.check_growth(batch)?,
        }
        self.check_rest(batch)?;
        Ok(None)
    }

    fn check_opening(&self, batch: &Batch, open: &Opening) -> Result<()> {
        if self.timelines.contains_key(&batch.timeline) {
            return Err(Conflict::Exists { what: "timeline", id: batch.timeline.to_string() }.into());
        }
        let begins = match open.parent {
            None => 0,
            Some(at) => {
                let parent = self.timelines.get(&at.timeline);
                if parent.is_none_or(|line| at.seq.0 >= line.length() || at.seq.0 < line.begins()) {
                    return Err(Error::not_found("entry", at));
                }
                at.seq.0 + 1
            }
        };
        if begins != batch.expected {
            return Err(Conflict::Length { timeline: batch.timeline, expected: batch.expected, actual: begins }.into());
        }
        let exists = self.sessions.contains_key(&batch.session);
        if !exists && batch.row.is_none() {
            return Err(Error::not_found("session", batch.session));
        }
        let holder = self.head(batch.session, &open.head);
        if holder == open.replaces {
            return Ok(());
        }
        match (holder, open.replaces) {
            (Some(_), None) => Err(Conflict::Exists { what: "session", id: batch.session.to_string() }.into()),
            (_, replaces) => Err(Conflict::NotHead { timeline: replaces.unwrap_or(batch.timeline) }.into()),
        }
    }

    fn check_growth(&self, batch: &Batch) -> Result<()> {
        let line = self
            .timelines
            .get(&batch.timeline)
            .filter(|line| line.session == batch.session)
            .ok_or_else(|| Error::not_found("timeline", batch.timeline))?;
        if line.head.is_none() {
            return Err(Conflict::NotHead { timeline: batch.timeline }.into());
        }
        if line.length() != batch.expected {
            return Err(
                Conflict::Length { timeline: batch.timeline, expected: batch.expected, actual: line.length() }.into()
            );
        }
        Ok(())
    }

    /// Every timeline that the batch touches besides its own must be there, and what branches of other
    /// sessions begin at must stay.
    fn check_rest(&self, batch: &Batch) -> Result<()> {
        let rewrite = &batch.rewrite;
        let touched = (batch.keyframes.iter().map(|frame| frame.at))
            .chain(rewrite.entries.iter().map(|(at, _)| *at))
            .chain(rewrite.marks.iter().map(|row| row.at))
            .chain(
                [&rewrite.truncate, &rewrite.drop_marks, &rewrite.drop_keyframes, &rewrite.texts]
                    .into_iter()
                    .flatten()
                    .copied(),
            );
        for at in touched {
            if at.timeline != batch.timeline && !self.timelines.contains_key(&at.timeline) {
                return Err(Error::not_found("timeline", at.timeline));
            }
        }
        for cut in &rewrite.truncate {
            let needs = |line: &&TimelineState| {
                line.session != batch.session
                    && line.parent.is_some_and(|at| at.timeline == cut.timeline && at.seq >= cut.seq)
            };
            let branches = self.timelines.values().filter(needs).count() as u64;
            if branches > 0 {
                return Err(Conflict::Branches { session: batch.session, branches }.into());
            }
        }
        Ok(())
    }

    pub(crate) fn apply(&mut self, batch: Batch, now: Timestamp) -> Appended {
        if let Some(open) = batch.open {
            if let Some(old) = open.replaces.and_then(|id| self.timelines.get_mut(&id)) {
                old.head = None;
            }
            self.made += 1;
            let line = TimelineState {
                made: self.made,
                session: batch.session,
                parent: open.parent,
                head: Some(open.head),
                entries: BTreeMap::new(),
            };
            self.timelines.insert(batch.timeline, line);
        }
        let mut length = batch.expected;
        if let Some(line) = self.timelines.get_mut(&batch.timeline) {
            for entry in batch.entries {
                line.entries.insert(Seq(length), entry);
                length += 1;
            }
        }
        for blob in batch.blobs {
            self.blobs.entry(blob.id).or_insert((blob.bytes, now)).1 = now;
        }
        self.marks.extend(batch.marks.into_iter().map(|row| (row.at, row)));
        self.keyframes.extend(batch.keyframes.into_iter().map(|frame| (frame.at, frame)));
        self.rewrite(batch.rewrite);
        length = self.timelines.get(&batch.timeline).map_or(length, TimelineState::length);
        let until = now.plus_ms(batch.renew_ms);
        let is_new = !self.sessions.contains_key(&batch.session);
        self.note(batch.session, batch.row, batch.epoch, length, until);
        if let (true, Some((owner, holder)), Some(state)) =
            (is_new, batch.holder, self.sessions.get_mut(&batch.session))
        {
            state.lease = Lease { epoch: Epoch(1), owner: Some(owner), holder, until };
        }
        Appended { length, repeated: false }
    }

    pub(crate) fn note(
        &mut self,
        id: SessionId,
        row: Option<SessionRow>,
        epoch: Option<Epoch>,
        length: u64,
        until: Timestamp,
    ) {
        match (self.sessions.get_mut(&id), row) {
            (Some(state), row) => {
                if let Some(row) = row {
                    state.row = row;
                    state.noted_length = length;
                }
                if epoch.is_some() {
                    state.lease.until = state.lease.until.max(until);
                }
            }
            (None, Some(row)) => {
                let lease = Lease { epoch: Epoch(0), owner: None, holder: String::new(), until: Timestamp(0) };
                self.sessions.insert(id, SessionState { row, noted_length: length, lease });
            }
            (None, None) => {}
        }
    }

    fn rewrite(&mut self, rewrite: Rewrite) {
        for (at, entry) in rewrite.entries {
            if let Some(line) = self.timelines.get_mut(&at.timeline) {
                line.entries.insert(at.seq, entry);
            }
        }
        for at in rewrite.truncate {
            if let Some(line) = self.timelines.get_mut(&at.timeline) {
                line.entries.retain(|seq, _| *seq < at.seq);
            }
            self.marks.retain(|mark, _| mark.timeline != at.timeline || mark.seq < at.seq);
            self.keyframes.retain(|frame, _| frame.timeline != at.timeline || frame.seq < at.seq);
        }
        self.marks.extend(rewrite.marks.into_iter().map(|row| (row.at, row)));
        for at in rewrite.drop_marks {
            self.marks.remove(&at);
        }
        for at in rewrite.drop_keyframes {
            self.keyframes.remove(&at);
        }
    }

    fn lease(&mut self, session: SessionId, action: LeaseAction, now: Timestamp) -> Result<Lease> {
        let state = self.sessions.get_mut(&session).ok_or_else(|| Error::not_found("session", session))?;
        state.lease = next_lease(session, &state.lease, action, now)?;
        Ok(state.lease.clone())
    }

    pub(crate) fn rebuild(&mut self, row: SessionRow, marks: Vec<MarkRow>, now: Timestamp) {
        let id = row.id;
        let own: BTreeSet<TimelineId> =
            self.timelines.iter().filter(|(_, line)| line.session == id).map(|(id, _)| *id).collect();
        let length = self.main_head(id).and_then(|head| self.timelines.get(&head)).map_or(0, TimelineState::length);
        self.marks.retain(|at, _| !own.contains(&at.timeline));
        self.keyframes.retain(|at, frame| frame.pinned || !own.contains(&at.timeline));
        self.marks.extend(marks.into_iter().map(|row| (row.at, row)));
        let is_lost = !self.sessions.contains_key(&id);
        self.note(id, Some(row), None, length, Timestamp(0));
        if let (true, Some(state)) = (is_lost, self.sessions.get_mut(&id)) {
            state.lease = Lease::lost(now);
        }
    }

    pub(crate) fn remove(&mut self, session: SessionId) {
        let gone: BTreeSet<TimelineId> =
            self.timelines.iter().filter(|(_, line)| line.session == session).map(|(id, _)| *id).collect();
        self.sessions.remove(&session);
        self.timelines.retain(|id, _| !gone.contains(id));
        self.marks.retain(|at, _| !gone.contains(&at.timeline));
        self.keyframes.retain(|at, _| !gone.contains(&at.timeline));
    }

    pub(crate) fn children(&self, session: SessionId) -> Vec<Timeline> {
        let of_session = |at: Position| self.timelines.get(&at.timeline).is_some_and(|line| line.session == session);
        let continues = |line: &TimelineState| line.session != session && line.parent.is_some_and(of_session);
        let mut found: Vec<_> = self.timelines.iter().filter(|(_, line)| continues(line)).collect();
        found.sort_by_key(|(_, line)| line.made);
        found.into_iter().map(|(id, line)| line.info(*id)).collect()
    }

    pub(crate) fn needed_blobs(&self) -> BTreeSet<BlobId> {
        self.timelines.values().flat_map(|line| line.entries.values()).flat_map(|entry| entry.refs.clone()).collect()
    }
}

/// The lease after an action: the rule that every backend keeps.
pub(crate) fn next_lease(session: SessionId, old: &Lease, action: LeaseAction, now: Timestamp) -> Result<Lease> {
    let fenced = |epoch: Epoch| Error::Fenced { session, epoch, current: old.epoch, holder: old.holder.clone() };
    match action {
        LeaseAction::Take { owner, holder, ttl_ms } => {
            if old.owner.is_some_and(|other| other != owner) && old.until > now {
                return Err(Error::Held { session, holder: old.holder.clone(), epoch: old.epoch, until: old.until });
            }
            Ok(Lease { epoch: Epoch(old.epoch.0 + 1), owner: Some(owner), holder, until: now.plus_ms(ttl_ms) })
        }
        LeaseAction::TakeOver { owner, holder, ttl_ms } => {
            Ok(Lease { epoch: Epoch(old.epoch.0 + 1), owner: Some(owner), holder, until: now.plus_ms(ttl_ms) })
        }
        LeaseAction::Renew { epoch, ttl_ms } if epoch == old.epoch && old.owner.is_some() => {
            Ok(Lease { until: now.plus_ms(ttl_ms), ..old.clone() })
        }
        LeaseAction::Release { epoch } if epoch == old.epoch => Ok(Lease { owner: None, until: now, ..old.clone() }),
        LeaseAction::Renew { epoch, .. } | LeaseAction::Release { epoch } => Err(fenced(epoch)),
    }
}

fn page<T>(rows: impl Iterator<Item = T>, limit: usize) -> Vec<T> {
    rows.take(limit).collect()
}

#[async_trait]
impl Backend for MemoryBackend {
    fn features(&self) -> Features {
        Features { name: "memory", text: false, lingers_ms: 0 }
    }

    async fn append(&self, workspace: &WorkspaceId, batch: Batch) -> Result<Appended> {
        let now = self.source.now();
        self.with(workspace, |w| w.append(batch, now))
    }

    async fn read(&self, workspace: &WorkspaceId, range: Range) -> Result<Vec<(Seq, StoredEntry)>> {
        self.with(workspace, |w| {
            let Some(line) = w.timelines.get(&range.timeline) else { return Ok(Vec::new()) };
            if range.from >= range.to {
                return Ok(Vec::new());
            }
            let wanted = |(_, entry): &(&Seq, &StoredEntry)| {
                range.kinds.has(entry.kind) && range.channel.as_ref().is_none_or(|channel| entry.channel == *channel)
            };
            let rows = line.entries.range(range.from..range.to);
            Ok(match range.order {
                Order::Forward => page(rows.filter(wanted).map(|(s, e)| (*s, e.clone())), range.limit),
                Order::Backward => page(rows.rev().filter(wanted).map(|(s, e)| (*s, e.clone())), range.limit),
            })
        })
    }

    async fn session(&self, workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionHead>> {
        self.with(workspace, |w| {
            let Some(state) = w.sessions.get(&id) else { return Ok(None) };
            let head = w.main_head(id).and_then(|head| Some((head, w.timelines.get(&head)?)));
            let Some((head, line)) = head else {
                return Err(Error::corrupt(format!("session {id}"), "it has no head"));
            };
            Ok(Some(SessionHead {
                row: state.row.clone(),
                timeline: line.info(head),
                noted_length: state.noted_length,
                lease: state.lease.clone(),
            }))
        })
    }

    async fn timeline(&self, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Timeline>> {
        self.with(workspace, |w| Ok(w.timelines.get(&id).map(|line| line.info(id))))
    }

    async fn timelines(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        self.with(workspace, |w| {
            let mut own: Vec<_> = w.timelines.iter().filter(|(_, line)| line.session == session).collect();
            own.sort_by_key(|(_, line)| line.made);
            Ok(own.into_iter().map(|(id, line)| line.info(*id)).collect())
        })
    }

    async fn children(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        self.with(workspace, |w| Ok(w.children(session)))
    }

    async fn session_ids(&self, workspace: &WorkspaceId) -> Result<Vec<SessionId>> {
        self.with(workspace, |w| {
            let ids: BTreeSet<SessionId> = w.timelines.values().map(|line| line.session).collect();
            Ok(ids.into_iter().collect())
        })
    }

    async fn lease(&self, workspace: &WorkspaceId, session: SessionId, action: LeaseAction) -> Result<Lease> {
        let now = self.source.now();
        self.with(workspace, |w| w.lease(session, action, now))
    }

    async fn remove(&self, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()> {
        self.with(workspace, |w| {
            w.check_epoch(session, epoch)?;
            let branches = w.children(session).len() as u64;
            if branches > 0 {
                return Err(Conflict::Branches { session, branches }.into());
            }
            w.remove(session);
            Ok(())
        })
    }

    async fn put_blobs(&self, workspace: &WorkspaceId, blobs: Vec<Blob>) -> Result<()> {
        let now = self.source.now();
        self.with(workspace, |w| {
            for blob in blobs {
                w.blobs.entry(blob.id).or_insert((blob.bytes, now)).1 = now;
            }
            Ok(())
        })
    }

    async fn get_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>) -> Result<Vec<Option<Vec<u8>>>> {
        self.with(workspace, |w| Ok(ids.iter().map(|id| w.blobs.get(id).map(|(bytes, _)| bytes.clone())).collect()))
    }

    async fn list_blobs(&self, workspace: &WorkspaceId, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobInfo>> {
        self.with(workspace, |w| {
            let rows = w.blobs.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
            let info = |(id, (bytes, touched)): (&BlobId, &(Vec<u8>, Timestamp))| BlobInfo {
                id: *id,
                bytes: bytes.len() as u64,
                touched: *touched,
            };
            Ok(page(rows.map(info), limit))
        })
    }

    async fn blob_refs(&self, workspace: &WorkspaceId) -> Result<Vec<BlobId>> {
        self.with(workspace, |w| Ok(w.needed_blobs().into_iter().collect()))
    }

    async fn drop_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>, touched_before: Timestamp) -> Result<u64> {
        self.with(workspace, |w| {
            let needed = w.needed_blobs();
            let mut dropped = 0;
            for id in ids {
                let old = w.blobs.get(&id).is_some_and(|(_, touched)| *touched < touched_before);
                if old && !needed.contains(&id) {
                    w.blobs.remove(&id);
                    dropped += 1;
                }
            }
            Ok(dropped)
        })
    }

    async fn record(&self, workspace: &WorkspaceId, key: RecordKey) -> Result<Option<Record>> {
        self.with(workspace, |w| Ok(w.records.get(&key).cloned()))
    }

    async fn put_record(&self, workspace: &WorkspaceId, record: Record, expected: Option<u64>) -> Result<()> {
        self.with(workspace, |w| {
            if w.records.get(&record.key).map(|old| old.version) != expected {
                return Err(Conflict::Record { key: record.key.key }.into());
            }
            w.records.insert(record.key.clone(), record);
            Ok(())
        })
    }

    async fn delete_record(&self, workspace: &WorkspaceId, key: RecordKey, expected: u64) -> Result<()> {
        self.with(workspace, |w| {
            if w.records.get(&key).map(|old| old.version) != Some(expected) {
                return Err(Conflict::Record { key: key.key }.into());
            }
            w.records.remove(&key);
            Ok(())
        })
    }

    async fn scan_records(&self, workspace: &WorkspaceId, scan: RecordScan) -> Result<Vec<Record>> {
        self.with(workspace, |w| {
            let mut rows: Vec<&Record> = w.records.values().filter(|record| record.key.kind == scan.kind).collect();
            match &scan.order {
                RecordOrder::Key { after } => {
                    rows.retain(|record| after.as_ref().is_none_or(|after| record.key.key > *after));
                }
                RecordOrder::Due { until, after } => {
                    let place = |record: &Record| record.due.map(|due| (due, record.key.key.clone()));
                    rows.retain(|record| {
                        place(record).is_some_and(|at| at.0 <= *until && after.as_ref().is_none_or(|after| at > *after))
                    });
                    rows.sort_by_key(|record| place(record));
                }
            }
            Ok(page(rows.into_iter().cloned(), scan.limit))
        })
    }

    async fn record_kinds(&self, workspace: &WorkspaceId) -> Result<Vec<String>> {
        self.with(workspace, |w| {
            let kinds: BTreeSet<String> = w.records.keys().map(|key| key.kind.clone()).collect();
            Ok(kinds.into_iter().collect())
        })
    }

    async fn workspaces(&self) -> Result<Vec<WorkspaceId>> {
        let used = |w: &&Workspace| !w.records.is_empty() || !w.sessions.is_empty();
        Ok(self.lock()?.iter().filter(|(_, w)| used(w)).map(|(id, _)| id.clone()).collect())
    }

    async fn sessions(&self, workspace: &WorkspaceId, filter: SessionFilter) -> Result<Vec<SessionRow>> {
        self.with(workspace, |w| {
            let mut rows: Vec<&SessionRow> =
                w.sessions.values().map(|state| &state.row).filter(|row| filter.accepts(row)).collect();
            rows.sort_by_key(|row| std::cmp::Reverse((filter.sort_time(row), row.id)));
            Ok(page(rows.into_iter().cloned(), filter.limit))
        })
    }

    async fn marks(&self, workspace: &WorkspaceId, filter: MarkFilter) -> Result<Vec<MarkRow>> {
        self.with(workspace, |w| {
            let rows = w.marks.values().filter(|row| filter.accepts(row)).cloned();
            Ok(match filter.order {
                Order::Forward => page(rows, filter.limit),
                Order::Backward => page(rows.rev(), filter.limit),
            })
        })
    }

    async fn count_marks(&self, workspace: &WorkspaceId, sessions: Vec<SessionId>) -> Result<Vec<u64>> {
        self.with(workspace, |w| {
            let heads = w.main_heads();
            let count = |id: &SessionId| heads.get(id).map_or(0, |head| w.marks_up_to(*head).count);
            Ok(sessions.iter().map(count).collect())
        })
    }

    async fn mark(&self, workspace: &WorkspaceId, id: CheckpointId) -> Result<Option<MarkRow>> {
        self.with(workspace, |w| Ok(w.marks.values().find(|row| row.id == id).cloned()))
    }

    async fn keyframe(&self, workspace: &WorkspaceId, at: Position) -> Result<Option<Keyframe>> {
        self.with(workspace, |w| {
            let first = Position { timeline: at.timeline, seq: Seq(0) };
            Ok(w.keyframes.range(first..=at).next_back().map(|(_, frame)| frame.clone()))
        })
    }

    async fn keyframes(&self, workspace: &WorkspaceId, timeline: TimelineId) -> Result<Vec<(Seq, bool)>> {
        self.with(workspace, |w| {
            let own = w.keyframes.values().filter(|frame| frame.at.timeline == timeline);
            Ok(own.map(|frame| (frame.at.seq, frame.pinned)).collect())
        })
    }

    async fn search(&self, _: &WorkspaceId, _: TextQuery) -> Result<Option<Vec<TextHit>>> {
        self.lock().map(|_| None)
    }

    async fn rebuild(&self, workspace: &WorkspaceId, row: SessionRow, marks: Vec<MarkRow>) -> Result<()> {
        let now = self.source.now();
        self.with(workspace, |w| {
            w.rebuild(row, marks, now);
            Ok(())
        })
    }

    async fn usage(&self, workspace: &WorkspaceId) -> Result<Usage> {
        self.with(workspace, |w| {
            let mut usage = Usage::default();
            for session in w.sessions.keys() {
                let mut own =
                    SessionUsage { session: *session, kinds: Default::default(), keyframes: KindUsage::default() };
                for (id, line) in w.timelines.iter().filter(|(_, line)| line.session == *session) {
                    for entry in line.entries.values() {
                        let text = entry.text.as_ref().map_or(0, String::len);
                        own.kinds[entry.kind as usize - 1].add(entry.body.len() + text);
                    }
                    for frame in w.keyframes.values().filter(|frame| frame.at.timeline == *id) {
                        own.keyframes.add(frame.body.len());
                    }
                }
                usage.sessions.push(own);
            }
            w.blobs.values().for_each(|(bytes, _)| usage.blobs.add(bytes.len()));
            w.records.values().for_each(|record| usage.records.add(record.value.len()));
            Ok(usage)
        })
    }

    async fn check(&self, _: Depth) -> Result<Vec<Finding>> {
        self.lock().map(|_| Vec::new())
    }

    async fn backup(&self, _: &Path) -> Result<bool> {
        self.lock().map(|_| false)
    }

    async fn compact(&self) -> Result<()> {
        self.lock().map(|_| ())
    }

    async fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}
