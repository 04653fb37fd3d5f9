//! What the rules share: an open backend with a clock, raw batches, and a picture of everything stored.

use std::sync::Arc;

use milepost_model::{
    BatchId, CheckpointId, EntryKind, Epoch, Hash, ManualClock, OwnerId, Position, Seq, SessionId, Source, Status,
    TimelineId, Timestamp, WorkspaceId,
};

use super::{Failure, Outcome, Place};
use crate::backend::*;
use crate::codec;
use crate::store::{Options, Store};

/// Fails the rule when something does not hold.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Failure::new(format!($($what)+)));
        }
    };
}

/// Fails the rule when two things are not the same.
macro_rules! same {
    ($found:expr, $expected:expr, $($what:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                if found != expected {
                    let what = format!($($what)+);
                    let why = format!("{what}: found {found:?}, expected {expected:?}");
                    return Err($crate::conformance::Failure::new(why));
                }
            }
        }
    };
}

/// Fails the rule unless an outcome is this error.
macro_rules! refused {
    ($outcome:expr, $error:pat $(if $guard:expr)?, $($what:tt)+) => {
        match $outcome {
            Err($error) $(if $guard)? => {}
            other => {
                let (what, expected) = (format!($($what)+), stringify!($error $(if $guard)?));
                return Err($crate::conformance::Failure::new(format!("{what}: expected {expected}, got {other:?}")));
            }
        }
    };
}

pub(super) use {ensure, refused, same};

/// The moment at which every rule begins.
pub(super) const START: Timestamp = Timestamp(1_767_225_600_000);

/// An open backend and what it was opened with.
pub(super) struct Scene<'a> {
    place: &'a dyn Place,
    pub clock: Arc<ManualClock>,
    pub source: Source,
    pub backend: Arc<dyn Backend>,
    pub workspace: WorkspaceId,
}

impl<'a> Scene<'a> {
    pub async fn new(place: &'a dyn Place) -> Outcome<Self> {
        let clock = Arc::new(ManualClock::new(START));
        let source = Source::seeded(1, Arc::clone(&clock));
        let backend = place.open(source.clone()).await?;
        Ok(Self { place, clock, source, backend, workspace: WorkspaceId::default() })
    }

    /// Another opening of the same place, as another process would have it.
    pub async fn another(&self) -> Outcome<Arc<dyn Backend>> {
        Ok(self.place.open(self.source.clone()).await?)
    }

    /// Closes and opens again.
    pub async fn reopen(&mut self) -> Outcome {
        self.backend.close().await?;
        self.backend = self.another().await?;
        Ok(())
    }

    pub fn options(&self) -> Options {
        Options { source: Some(self.source.clone()), workspace: self.workspace.clone(), ..Options::default() }
    }

    /// A store on the open backend.
    pub async fn store(&self) -> Outcome<Store> {
        Ok(Store::with_backend(Arc::clone(&self.backend), self.options()).await?)
    }

    /// Closes a store and opens it again.
    pub async fn reopen_store(&mut self, store: &Store) -> Outcome<Store> {
        store.close().await?;
        self.backend = self.another().await?;
        self.store().await
    }

    pub fn id<T: milepost_model::Id>(&self) -> T {
        self.source.id()
    }

    pub async fn append(&self, batch: Batch) -> crate::Result<Appended> {
        self.backend.append(&self.workspace, batch).await
    }

    /// Begins a session of one event, held by nobody.
    pub async fn begin(&self) -> Outcome<Line> {
        let line = Line { session: self.id(), timeline: self.id(), length: 0, epoch: None };
        self.append(self.opening(&line, None)).await?;
        Ok(Line { length: 1, ..line })
    }

    /// The batch that begins a session, or a timeline that continues another.
    pub fn opening(&self, line: &Line, parent: Option<Position>) -> Batch {
        let mut batch = self.batch(line, vec![entry(EntryKind::Event, "begin")]);
        batch.open = Some(Opening { parent, head: MAIN_HEAD.to_owned(), replaces: None });
        batch
    }

    /// A branch of one event, in a session of its own.
    pub async fn branch(&self, at: Position) -> Outcome<Line> {
        let line = Line { session: self.id(), timeline: self.id(), length: at.seq.0 + 1, epoch: None };
        self.append(self.opening(&line, Some(at))).await?;
        Ok(Line { length: line.length + 1, ..line })
    }

    /// A batch of these entries at the end of a line, with the row of its session.
    pub fn batch(&self, line: &Line, entries: Vec<StoredEntry>) -> Batch {
        let mut batch = Batch {
            session: line.session,
            timeline: line.timeline,
            expected: line.length,
            epoch: line.epoch,
            renew_ms: 30_000,
            holder: None,
            open: None,
            entries,
            blobs: Vec::new(),
            row: Some(row(line.session, self.source.now())),
            marks: Vec::new(),
            keyframes: Vec::new(),
            rewrite: Rewrite::default(),
        };
        seal(&mut batch, self.id());
        batch
    }

    /// Adds messages with these bodies.
    pub async fn say(&self, line: &mut Line, bodies: &[&str]) -> Outcome<Appended> {
        let entries = bodies.iter().map(|body| entry(EntryKind::Message, *body)).collect();
        let appended = self.append(self.batch(line, entries)).await?;
        line.length = appended.length;
        Ok(appended)
    }

    /// A timeline's own entries.
    pub async fn entries(&self, timeline: TimelineId) -> Outcome<Vec<(Seq, StoredEntry)>> {
        Ok(self.backend.read(&self.workspace, everything(timeline)).await?)
    }

    /// The bodies of a timeline's own entries, as texts.
    pub async fn bodies(&self, timeline: TimelineId) -> Outcome<Vec<String>> {
        let entries = self.entries(timeline).await?;
        Ok(entries.iter().map(|(_, entry)| String::from_utf8_lossy(&entry.body).into_owned()).collect())
    }

    pub async fn lease(&self, line: &Line, action: LeaseAction) -> crate::Result<Lease> {
        self.backend.lease(&self.workspace, line.session, action).await
    }

    pub async fn head(&self, line: &Line) -> Outcome<SessionHead> {
        let found = self.backend.session(&self.workspace, line.session).await?;
        found.ok_or_else(|| Failure::new(format!("session {} is not there", line.session)))
    }

    /// Everything that is stored in the workspace, to see that nothing changed.
    pub async fn picture(&self) -> Outcome<Picture> {
        picture(&*self.backend, &self.workspace).await
    }
}

/// The end of a timeline, as a writer knows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub session: SessionId,
    pub timeline: TimelineId,
    pub length: u64,
    pub epoch: Option<Epoch>,
}

impl Line {
    pub fn at(&self, seq: u64) -> Position {
        Position { timeline: self.timeline, seq: Seq(seq) }
    }
}

/// Everything that a workspace holds.
#[derive(Debug, PartialEq)]
pub(super) struct Picture {
    sessions: Vec<SessionId>,
    heads: Vec<SessionHead>,
    timelines: Vec<Timeline>,
    entries: Vec<(TimelineId, Seq, StoredEntry)>,
    marks: Vec<MarkRow>,
    keyframes: Vec<Keyframe>,
    blobs: Vec<(BlobInfo, Option<Vec<u8>>)>,
    records: Vec<Record>,
}

pub(super) async fn picture(backend: &dyn Backend, workspace: &WorkspaceId) -> Outcome<Picture> {
    let mut sessions = backend.session_ids(workspace).await?;
    sessions.sort_unstable();
    let mut picture = Picture {
        sessions,
        heads: Vec::new(),
        timelines: Vec::new(),
        entries: Vec::new(),
        marks: Vec::new(),
        keyframes: Vec::new(),
        blobs: Vec::new(),
        records: Vec::new(),
    };
    for trashed in [false, true] {
        let filter = SessionFilter { trashed, hidden: true, limit: usize::MAX, ..SessionFilter::default() };
        for row in backend.sessions(workspace, filter).await? {
            picture.heads.extend(backend.session(workspace, row.id).await?);
            picture.timelines.extend(backend.timelines(workspace, row.id).await?);
        }
    }
    for line in &picture.timelines {
        let found = backend.read(workspace, everything(line.id)).await?;
        picture.entries.extend(found.into_iter().map(|(seq, entry)| (line.id, seq, entry)));
        let filter = MarkFilter { trashed: None, ..MarkFilter::of(line.id, Seq(0), Seq(u64::MAX)) };
        picture.marks.extend(backend.marks(workspace, filter).await?);
        for (seq, _) in backend.keyframes(workspace, line.id).await? {
            picture.keyframes.extend(backend.keyframe(workspace, Position { timeline: line.id, seq }).await?);
        }
    }
    let blobs = backend.list_blobs(workspace, None, usize::MAX).await?;
    let bytes = backend.get_blobs(workspace, blobs.iter().map(|info| info.id).collect()).await?;
    picture.blobs = blobs.into_iter().zip(bytes).collect();
    for kind in backend.record_kinds(workspace).await? {
        let scan = RecordScan { kind, order: RecordOrder::Key { after: None }, limit: usize::MAX };
        picture.records.extend(backend.scan_records(workspace, scan).await?);
    }
    Ok(picture)
}

/// All entries of a timeline, oldest first.
pub(super) fn everything(timeline: TimelineId) -> Range {
    Range {
        timeline,
        from: Seq(0),
        to: Seq(u64::MAX),
        kinds: Kinds::ALL,
        channel: None,
        order: Order::Forward,
        limit: usize::MAX,
    }
}

/// An entry that means nothing.
pub(super) fn entry(kind: EntryKind, body: impl Into<Vec<u8>>) -> StoredEntry {
    StoredEntry {
        version: codec::FORMAT,
        kind,
        time: START,
        label: None,
        channel: None,
        text: None,
        body: body.into(),
        refs: Vec::new(),
        batch: None,
        chain: None,
        mac: None,
        sum: 0,
    }
}

/// Sets what a writer sets when a batch is complete: its id, its chain hash, every checksum.
pub(super) fn seal(batch: &mut Batch, id: BatchId) {
    if let Some(first) = batch.entries.first_mut() {
        first.batch = Some(id);
    }
    if let Some(last) = batch.entries.last_mut() {
        let mut chain = [7; 32];
        chain[..16].copy_from_slice(&id.to_bytes());
        last.chain = Some(Hash(chain));
    }
    for (number, entry) in batch.entries.iter_mut().enumerate() {
        let at = Position { timeline: batch.timeline, seq: Seq(batch.expected + number as u64) };
        entry.sum = codec::checksum(at, entry);
    }
}

/// A row of a session that says little.
pub(super) fn row(id: SessionId, time: Timestamp) -> SessionRow {
    SessionRow {
        id,
        status: Status::Active,
        created: START,
        active: time,
        messages: 0,
        checkpoints: 0,
        trashed: None,
        hidden: false,
        title: None,
        preview: None,
        keys: Default::default(),
        tags: Vec::new(),
        detail: b"detail".to_vec(),
    }
}

/// A row of a mark that says little.
pub(super) fn mark(at: Position, id: CheckpointId) -> MarkRow {
    MarkRow {
        at,
        id,
        time: START,
        trigger: "step".to_owned(),
        label: None,
        clean: true,
        resumable: true,
        kept: false,
        messages: 0,
        trashed: None,
    }
}

pub(super) fn keyframe(at: Position, body: &str) -> Keyframe {
    Keyframe { at, body: body.into(), pinned: false }
}

/// A blob whose name is one byte over and over.
pub(super) fn blob(name: u8, bytes: impl Into<Vec<u8>>) -> Blob {
    Blob { id: BlobId([name; 32]), bytes: bytes.into() }
}

pub(super) fn take(owner: OwnerId, holder: &str, ttl_ms: i64) -> LeaseAction {
    LeaseAction::Take { owner, holder: holder.to_owned(), ttl_ms }
}

pub(super) fn take_over(owner: OwnerId, holder: &str, ttl_ms: i64) -> LeaseAction {
    LeaseAction::TakeOver { owner, holder: holder.to_owned(), ttl_ms }
}
