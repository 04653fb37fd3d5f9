//! The calls of a backend: each brings what it needs up to date, and lets memory answer.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use milepost_model::{CheckpointId, Epoch, Seq, SessionId, TimelineId, Timestamp, WorkspaceId};

use super::blobs::ToldBy;
use super::fold::{LogState, Turn};
use super::format::{self, Appending, Base, Index, Op, Segment, Step};
use super::log::{Decision, Log};
use super::merge::Into;
use super::names::{self, LogName};
use super::{ObjectBackend, Shared};
use crate::backend::*;
use crate::error::{Conflict, Error, Result};
use crate::memory::{Workspace, next_lease};
use crate::store::Durability;

/// So often a batch is checked anew because someone branched meanwhile.
const MAX_TRIES: usize = 64;

impl Shared {
    /// Fails when the store is closed.
    fn ensure_open(&self) -> Result<()> {
        self.cache.lock().map(drop)
    }

    async fn refresh_session(&self, workspace: &WorkspaceId, id: SessionId) -> Result<()> {
        self.ensure_open()?;
        self.refresh(workspace, &LogName::Session(id)).await
    }

    async fn refresh_kind(&self, workspace: &WorkspaceId, kind: &str) -> Result<()> {
        self.ensure_open()?;
        self.refresh(workspace, &LogName::Records(kind.to_owned())).await
    }

    /// Brings a timeline up to date, unless all that is asked for lies below the length that is known.
    async fn refresh_timeline(&self, workspace: &WorkspaceId, id: TimelineId, to: Option<Seq>) -> Result<()> {
        self.ensure_open()?;
        let known =
            self.cache.with(workspace, |w| Ok(w.timelines.get(&id).map(|line| (line.session, line.length()))))?;
        if let (Some((session, length)), Some(to)) = (known, to) {
            let log = self.log(workspace, &LogName::Session(session));
            let state = log.lock().await;
            if to.0 <= length && self.is_fresh(&state) {
                return Ok(());
            }
        }
        match self.session_of_timeline(workspace, id).await? {
            Some(session) => self.refresh_session(workspace, session).await,
            None => Ok(()),
        }
    }

    /// Every kind of records, up to date.
    async fn refresh_kinds(&self, workspace: &WorkspaceId) -> Result<()> {
        self.ensure_open()?;
        for folder in self.bucket.folders(&names::records_steps(workspace)).await? {
            if let Some(name) = LogName::kind_of_folder(&folder) {
                self.refresh(workspace, &name).await?;
            }
        }
        Ok(())
    }

    async fn append(self: &Arc<Self>, workspace: &WorkspaceId, mut batch: Batch) -> Result<Appended> {
        self.ensure_open()?;
        let blobs = std::mem::take(&mut batch.blobs);
        let is_branch = batch.open.as_ref().is_some_and(|open| open.parent.is_some());
        let mut pinned = None;
        if !blobs.is_empty() || is_branch {
            // What is refused leaves nothing behind, so it is checked before anything is written.
            if let Some(answer) = self.check(workspace, &batch).await? {
                return Ok(answer);
            }
            pinned = self.pin_parent(workspace, &batch).await?;
            self.put_blobs(workspace, &blobs, ToldBy::Step).await?;
        }
        let appending = Appending {
            batch,
            blobs: blobs.iter().map(|blob| blob.id).collect(),
            parent: pinned.map(|(parent, _)| parent),
        };
        let outcome = self.append_step(workspace, &appending, pinned.map(|(_, since)| since)).await;
        if let (Err(error), Some((parent, _))) = (&outcome, pinned)
            && !matches!(error, Error::Io { .. })
        {
            self.unpin(workspace, parent, &appending.batch).await?;
        }
        outcome
    }

    /// Whether a batch would be taken, as far as others have written.
    async fn check(&self, workspace: &WorkspaceId, batch: &Batch) -> Result<Option<Appended>> {
        if let Some(parent) = batch.open.as_ref().and_then(|open| open.parent) {
            self.refresh_timeline(workspace, parent.timeline, Some(parent.seq.next())).await?;
        }
        if let Ok(answer) = self.cache.with(workspace, |w| w.check(batch)) {
            return Ok(answer);
        }
        self.refresh_session(workspace, batch.session).await?;
        self.cache.with(workspace, |w| w.check(batch))
    }

    async fn append_step(
        self: &Arc<Self>,
        workspace: &WorkspaceId,
        appending: &Appending,
        pinned: Option<Timestamp>,
    ) -> Result<Appended> {
        let batch = &appending.batch;
        let name = LogName::Session(batch.session);
        for _ in 0..MAX_TRIES {
            let branches = match batch.rewrite.truncate.is_empty() {
                true => None,
                false => Some(self.branches(workspace, batch.session).await?),
            };
            let decide = |w: &Workspace, state: &LogState, now: Timestamp| {
                if let Some(answer) = w.check(batch)? {
                    return Ok(Decision::Answer(Some(answer)));
                }
                if let Some(branches) = &branches {
                    if state.side.pins.len() != branches.pins {
                        return Ok(Decision::Answer(None));
                    }
                    Self::check_cuts(batch, branches)?;
                }
                // A pin that is about to run out holds nothing.
                if pinned.is_some_and(|since| now.since_ms(since) > self.options.idle_ms) {
                    return Err(Error::Busy {
                        what: format!("beginning a branch in session {}", batch.session),
                        waited_ms: self.options.idle_ms as u64,
                    });
                }
                match self.may_wait(state, appending, now) {
                    true => Ok(Decision::Later(Box::new(appending.clone()), None)),
                    false => Ok(Decision::Write(vec![Op::Append(Box::new(appending.clone()))], None)),
                }
            };
            let (answer, appended) = self.commit(workspace, &name, batch.epoch, decide).await?;
            if let Some(answer) = answer.or(appended) {
                self.end_turn_later(workspace, &name).await;
                self.merge_if_long(workspace, &name).await;
                return Ok(answer);
            }
        }
        Err(Error::Busy { what: format!("cutting timelines of session {}", batch.session), waited_ms: 0 })
    }

    /// Whether an append may wait for the end of its turn: a mark ends it, and so does a limit.
    fn may_wait(&self, state: &LogState, appending: &Appending, now: Timestamp) -> bool {
        let (batch, turn, options) = (&appending.batch, &state.turn, &self.options);
        let is_plain = batch.epoch.is_some()
            && batch.open.is_none()
            && batch.marks.is_empty()
            && batch.rewrite == Rewrite::default();
        let is_short = turn.is_empty()
            || (now.since_ms(turn.begun) < options.turn_ms && turn.bytes + appending.bytes() <= options.turn_bytes);
        options.durability == Durability::Turn && is_plain && is_short && self.is_fresh(state)
    }

    /// A turn that has just begun ends by itself after a while.
    async fn end_turn_later(self: &Arc<Self>, workspace: &WorkspaceId, name: &LogName) {
        if self.options.durability == Durability::Full || self.log(workspace, name).lock().await.turn.appends.len() != 1
        {
            return;
        }
        let (shared, wait_ms) = (Arc::downgrade(self), self.options.turn_ms);
        // Without a thread to spare the next append or the close ends it.
        let _ = super::bucket::spawn(async move {
            tokio::time::sleep(std::time::Duration::from_millis(wait_ms.max(0) as u64)).await;
            if let Some(shared) = shared.upgrade() {
                let is_due = |turn: &Turn| shared.source.now().since_ms(turn.begun) >= wait_ms;
                // What fails is tried again by the next append, flush or close, which tells.
                let _ = shared.end_turns(is_due).await;
            }
        });
    }

    /// Writes what turns hold: of all logs, or of those that have waited long enough.
    pub async fn end_turns(&self, is_due: impl Fn(&Turn) -> bool) -> Result<()> {
        let logs: Vec<_> = {
            let logs = self.logs();
            let named = |(workspace, own): (&WorkspaceId, &std::collections::BTreeMap<LogName, Log>)| {
                own.iter().map(|(name, log)| (workspace.clone(), name.clone(), Arc::clone(log))).collect::<Vec<_>>()
            };
            logs.iter().flat_map(named).collect()
        };
        let mut outcome = Ok(());
        for (workspace, name, log) in logs {
            let mut state = log.lock().await;
            if !state.turn.is_empty() && is_due(&state.turn) {
                outcome = outcome.and(self.end_turn(&workspace, &name, &mut state).await);
            }
        }
        outcome
    }

    async fn merge_if_long(self: &Arc<Self>, workspace: &WorkspaceId, name: &LogName) {
        let log = self.log(workspace, name);
        let is_due = {
            let state = log.lock().await;
            state.loose_steps() > self.options.max_steps || state.has_erasure
        };
        if is_due {
            self.merge_later(workspace, name);
        }
    }

    async fn remove(&self, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()> {
        let name = LogName::Session(session);
        for _ in 0..MAX_TRIES {
            let branches = self.branches(workspace, session).await?;
            let count = (branches.there.len() + branches.beginning.len()) as u64;
            let decide = |w: &Workspace, state: &LogState, _: Timestamp| {
                w.check_epoch(session, epoch)?;
                if state.side.pins.len() != branches.pins {
                    return Ok(Decision::Answer(false));
                }
                if count > 0 {
                    return Err(Conflict::Branches { session, branches: count }.into());
                }
                Ok(Decision::Write(vec![Op::Remove], true))
            };
            let (is_done, _) = self.commit(workspace, &name, Some(epoch), decide).await?;
            if is_done {
                // An empty base seals what was there, so that it can be deleted.
                return self.merge(workspace, &name, Into::Base).await;
            }
        }
        Err(Error::Busy { what: format!("removing session {session}"), waited_ms: 0 })
    }

    async fn write_record(
        self: &Arc<Self>,
        workspace: &WorkspaceId,
        key: &RecordKey,
        expected: Option<u64>,
        op: Op,
    ) -> Result<()> {
        self.ensure_open()?;
        let name = LogName::Records(key.kind.clone());
        let decide =
            |w: &Workspace, _: &LogState, _: Timestamp| match w.records.get(key).map(|old| old.version) == expected {
                true => Ok(Decision::Write(vec![op.clone()], ())),
                false => Err(Conflict::Record { key: key.key.clone() }.into()),
            };
        self.commit(workspace, &name, None, decide).await?;
        self.merge_if_long(workspace, &name).await;
        Ok(())
    }

    /// Reads every object, and says which cannot be.
    async fn check_objects(&self, workspace: &WorkspaceId) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        for (folder, kind) in [("s/log", 0), ("r/log", 0), ("s/base", 1), ("r/base", 1), ("s/index", 2)] {
            let folder = format!("{workspace}/{folder}");
            let listed = self.bucket.list(&folder, None).await?;
            let key = |object: &super::bucket::Listed| match kind {
                2 => format!("{folder}/{}", object.name),
                _ => format!("{folder}/{}/{}", object.folder, object.name),
            };
            let keys: Vec<String> = listed.iter().map(key).collect();
            for (key, bytes) in keys.iter().zip(self.bucket.get_all(&keys).await?) {
                // What was deleted meanwhile is no damage.
                let Some(bytes) = bytes else { continue };
                let read = match kind {
                    0 => format::decode::<Step>(key, &bytes).map(drop),
                    1 => match names::sealed_of(key.rsplit('/').next().unwrap_or_default()) {
                        Some((Some(_), ..)) => format::decode::<Segment>(key, &bytes).map(drop),
                        _ => format::decode::<Base>(key, &bytes).map(drop),
                    },
                    _ => format::decode::<Index>(key, &bytes).map(drop),
                };
                if let Err(error) = read {
                    found.push(Finding { derived: kind == 2, what: error.to_string() });
                }
            }
        }
        Ok(found)
    }
}

#[async_trait]
impl Backend for ObjectBackend {
    fn features(&self) -> Features {
        Features { name: "object", text: false, lingers_ms: self.shared.options.delete_after_ms }
    }

    async fn append(&self, workspace: &WorkspaceId, batch: Batch) -> Result<Appended> {
        self.shared.append(workspace, batch).await
    }

    async fn read(&self, workspace: &WorkspaceId, range: Range) -> Result<Vec<(Seq, StoredEntry)>> {
        self.shared.refresh_timeline(workspace, range.timeline, Some(range.to)).await?;
        self.shared.cache.read(workspace, range).await
    }

    async fn session(&self, workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionHead>> {
        self.shared.refresh_session(workspace, id).await?;
        self.shared.cache.session(workspace, id).await
    }

    async fn timeline(&self, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Timeline>> {
        self.shared.refresh_timeline(workspace, id, None).await?;
        self.shared.cache.timeline(workspace, id).await
    }

    async fn timelines(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        self.shared.refresh_session(workspace, session).await?;
        self.shared.cache.timelines(workspace, session).await
    }

    async fn children(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        self.shared.ensure_open()?;
        Ok(self.shared.branches(workspace, session).await?.there)
    }

    async fn session_ids(&self, workspace: &WorkspaceId) -> Result<Vec<SessionId>> {
        self.shared.ensure_open()?;
        self.shared.all_ids(workspace).await
    }

    async fn lease(&self, workspace: &WorkspaceId, session: SessionId, action: LeaseAction) -> Result<Lease> {
        self.shared.ensure_open()?;
        let name = LogName::Session(session);
        let decide = |w: &Workspace, _: &LogState, now: Timestamp| {
            let old = w.sessions.get(&session).ok_or_else(|| Error::not_found("session", session))?;
            let lease = next_lease(session, &old.lease, action.clone(), now)?;
            Ok(Decision::Write(vec![Op::Lease(lease.clone())], lease))
        };
        let (lease, _) = self.shared.commit(workspace, &name, None, decide).await?;
        self.shared.merge_if_long(workspace, &name).await;
        Ok(lease)
    }

    async fn remove(&self, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()> {
        self.shared.ensure_open()?;
        self.shared.remove(workspace, session, epoch).await
    }

    async fn put_blobs(&self, workspace: &WorkspaceId, blobs: Vec<Blob>) -> Result<()> {
        self.shared.ensure_open()?;
        self.shared.put_blobs(workspace, &blobs, ToldBy::Touch).await
    }

    async fn get_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>) -> Result<Vec<Option<Vec<u8>>>> {
        self.shared.ensure_open()?;
        self.shared.get_blobs(workspace, &ids).await
    }

    async fn list_blobs(&self, workspace: &WorkspaceId, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobInfo>> {
        self.shared.ensure_open()?;
        self.shared.list_blobs(workspace, after, limit).await
    }

    async fn blob_refs(&self, workspace: &WorkspaceId) -> Result<Vec<BlobId>> {
        self.shared.ensure_open()?;
        self.shared.load_all(workspace).await?;
        self.shared.cache.blob_refs(workspace).await
    }

    async fn drop_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>, touched_before: Timestamp) -> Result<u64> {
        self.shared.ensure_open()?;
        self.shared.drop_blobs(workspace, ids, touched_before).await
    }

    async fn record(&self, workspace: &WorkspaceId, key: RecordKey) -> Result<Option<Record>> {
        self.shared.refresh_kind(workspace, &key.kind).await?;
        self.shared.cache.record(workspace, key).await
    }

    async fn put_record(&self, workspace: &WorkspaceId, record: Record, expected: Option<u64>) -> Result<()> {
        let key = record.key.clone();
        self.shared.write_record(workspace, &key, expected, Op::PutRecord(record)).await
    }

    async fn delete_record(&self, workspace: &WorkspaceId, key: RecordKey, expected: u64) -> Result<()> {
        self.shared.write_record(workspace, &key, Some(expected), Op::DeleteRecord(key.clone())).await
    }

    async fn scan_records(&self, workspace: &WorkspaceId, scan: RecordScan) -> Result<Vec<Record>> {
        self.shared.refresh_kind(workspace, &scan.kind).await?;
        self.shared.cache.scan_records(workspace, scan).await
    }

    async fn record_kinds(&self, workspace: &WorkspaceId) -> Result<Vec<String>> {
        self.shared.refresh_kinds(workspace).await?;
        self.shared.cache.record_kinds(workspace).await
    }

    async fn workspaces(&self) -> Result<Vec<WorkspaceId>> {
        self.shared.ensure_open()?;
        let mut used = Vec::new();
        for folder in self.shared.bucket.folders("").await? {
            let Ok(workspace) = WorkspaceId::new(folder) else { continue };
            self.shared.refresh_kinds(&workspace).await?;
            let has_records = self.shared.cache.with(&workspace, |w| Ok(!w.records.is_empty()))?;
            if has_records || !self.shared.all_ids(&workspace).await?.is_empty() {
                used.push(workspace);
            }
        }
        Ok(used)
    }

    async fn sessions(&self, workspace: &WorkspaceId, filter: SessionFilter) -> Result<Vec<SessionRow>> {
        self.shared.ensure_open()?;
        let (rows, is_stale) = self.shared.list(workspace, &filter).await?;
        if is_stale {
            self.shared.index_later(workspace);
        }
        Ok(rows)
    }

    async fn marks(&self, workspace: &WorkspaceId, filter: MarkFilter) -> Result<Vec<MarkRow>> {
        self.shared.refresh_timeline(workspace, filter.timeline, Some(filter.to)).await?;
        self.shared.cache.marks(workspace, filter).await
    }

    async fn count_marks(&self, workspace: &WorkspaceId, sessions: Vec<SessionId>) -> Result<Vec<u64>> {
        self.shared.ensure_open()?;
        self.shared.count_marks(workspace, &sessions).await
    }

    async fn mark(&self, workspace: &WorkspaceId, id: CheckpointId) -> Result<Option<MarkRow>> {
        self.shared.ensure_open()?;
        for session in self.shared.sessions_of_mark(workspace, id).await? {
            self.shared.refresh_session(workspace, session).await?;
        }
        self.shared.cache.mark(workspace, id).await
    }

    async fn keyframe(&self, workspace: &WorkspaceId, at: milepost_model::Position) -> Result<Option<Keyframe>> {
        self.shared.refresh_timeline(workspace, at.timeline, Some(at.seq.next())).await?;
        self.shared.cache.keyframe(workspace, at).await
    }

    async fn keyframes(&self, workspace: &WorkspaceId, timeline: TimelineId) -> Result<Vec<(Seq, bool)>> {
        self.shared.refresh_timeline(workspace, timeline, None).await?;
        self.shared.cache.keyframes(workspace, timeline).await
    }

    async fn search(&self, workspace: &WorkspaceId, query: TextQuery) -> Result<Option<Vec<TextHit>>> {
        self.shared.cache.search(workspace, query).await
    }

    async fn rebuild(&self, workspace: &WorkspaceId, row: SessionRow, marks: Vec<MarkRow>) -> Result<()> {
        self.shared.ensure_open()?;
        let name = LogName::Session(row.id);
        let row = Box::new(row);
        let decide = |w: &Workspace, _: &LogState, _: Timestamp| match w.sessions.contains_key(&row.id) {
            true => Ok(Decision::Write(vec![Op::Rebuild { row: row.clone(), marks: marks.clone() }], ())),
            false => Err(Error::not_found("session", row.id)),
        };
        self.shared.commit(workspace, &name, None, decide).await?;
        self.shared.merge_if_long(workspace, &name).await;
        Ok(())
    }

    async fn usage(&self, workspace: &WorkspaceId) -> Result<Usage> {
        self.shared.ensure_open()?;
        self.shared.load_all(workspace).await?;
        self.shared.refresh_kinds(workspace).await?;
        let mut usage = self.shared.cache.usage(workspace).await?;
        let blobs = self.shared.bucket.list(&names::blobs(workspace), None).await?;
        blobs.iter().for_each(|blob| usage.blobs.add(blob.bytes as usize));
        Ok(usage)
    }

    async fn check(&self, _: Depth) -> Result<Vec<Finding>> {
        self.shared.ensure_open()?;
        let mut found = Vec::new();
        for folder in self.shared.bucket.folders("").await? {
            if let Ok(workspace) = WorkspaceId::new(folder) {
                found.extend(self.shared.check_objects(&workspace).await?);
            }
        }
        Ok(found)
    }

    async fn backup(&self, _: &Path) -> Result<bool> {
        self.shared.ensure_open().map(|()| false)
    }

    async fn compact(&self) -> Result<()> {
        self.shared.ensure_open()?;
        for folder in self.shared.bucket.folders("").await? {
            if let Ok(workspace) = WorkspaceId::new(folder) {
                self.shared.tidy(&workspace).await?;
            }
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.shared.ensure_open()?;
        self.shared.end_turns(|_| true).await
    }

    async fn close(&self) -> Result<()> {
        let flushed = match self.shared.ensure_open() {
            Ok(()) => self.shared.end_turns(|_| true).await,
            Err(_) => Ok(()),
        };
        self.shared.settle().await;
        self.shared.cache.close().await?;
        flushed
    }
}
