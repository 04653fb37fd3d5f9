//! Writing through [`SessionWriter`]: order, groups, repeated batches, states, restores and branches, and futures
//! that are dropped half-way. Also the backend that other tests use to hold, fail and count calls.

mod appends;
mod batches;
mod damage;
mod dropped;
mod entries;
mod timelines;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use milepost_model::{
    BatchId, Body, Channel, Checkpoint, CheckpointId, Delta, Event, Position, Seq, SessionId, SessionPatch, Status,
    TimelineId, Timestamp, Trigger, WorkspaceId,
};
use milepost_store::backend::*;
use milepost_store::sqlite::{SqliteBackend, SqliteOptions};
use milepost_store::{
    Append, Error, MarkQuery, MessageQuery, NewMark, NewSession, Options, Receipt, Result, SessionWriter, Store,
};
use serde_json::{Map, Value, json};

use crate::support::{START, Scratch, claim, create, state, step, user};

// What other files of this binary use too.

/// A backend that can hold appends, fail them before or after they are stored, fail a later record, and that counts.
pub struct Watched {
    inner: Arc<dyn Backend>,
    pub appends: AtomicUsize,
    /// Taken for writing by a test that wants appends to wait before they reach the store,
    pub before: tokio::sync::RwLock<()>,
    /// or after they were stored but before anyone is told.
    pub after: tokio::sync::RwLock<()>,
    /// Entries that were read.
    pub entries_read: AtomicUsize,
    /// The next append is not stored and fails.
    pub fail_before: AtomicBool,
    /// The next append is stored and fails.
    pub fail_after: AtomicBool,
    /// So many more records are written; then each write fails. Negative: none fails.
    pub records_left: AtomicI64,
    /// The next removal of blobs fails.
    pub fail_drop: AtomicBool,
    /// The next making anew of what is derived fails.
    pub fail_rebuild: AtomicBool,
}

impl Watched {
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            appends: AtomicUsize::new(0),
            before: tokio::sync::RwLock::new(()),
            after: tokio::sync::RwLock::new(()),
            entries_read: AtomicUsize::new(0),
            fail_before: AtomicBool::new(false),
            fail_after: AtomicBool::new(false),
            records_left: AtomicI64::new(-1),
            fail_drop: AtomicBool::new(false),
            fail_rebuild: AtomicBool::new(false),
        })
    }

    fn broken() -> Error {
        Error::Io { what: "the test's device".into(), why: "it was told to fail".into() }
    }
}

macro_rules! delegate {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        #[async_trait]
        impl Backend for Watched {
            fn features(&self) -> Features {
                self.inner.features()
            }
            async fn append(&self, workspace: &WorkspaceId, batch: Batch) -> Result<Appended> {
                drop(self.before.read().await);
                self.appends.fetch_add(1, Ordering::SeqCst);
                if self.fail_before.swap(false, Ordering::SeqCst) {
                    return Err(Self::broken());
                }
                let outcome = self.inner.append(workspace, batch).await;
                drop(self.after.read().await);
                if self.fail_after.swap(false, Ordering::SeqCst) {
                    return Err(Self::broken());
                }
                outcome
            }
            async fn read(&self, workspace: &WorkspaceId, range: Range) -> Result<Vec<(Seq, StoredEntry)>> {
                let found = self.inner.read(workspace, range).await?;
                self.entries_read.fetch_add(found.len(), Ordering::SeqCst);
                Ok(found)
            }
            async fn put_record(&self, workspace: &WorkspaceId, record: Record, expected: Option<u64>) -> Result<()> {
                let left = self.records_left.load(Ordering::SeqCst);
                if left == 0 {
                    return Err(Self::broken());
                }
                if left > 0 {
                    self.records_left.store(left - 1, Ordering::SeqCst);
                }
                self.inner.put_record(workspace, record, expected).await
            }
            async fn drop_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>, before: Timestamp) -> Result<u64> {
                if self.fail_drop.swap(false, Ordering::SeqCst) {
                    return Err(Self::broken());
                }
                self.inner.drop_blobs(workspace, ids, before).await
            }
            async fn rebuild(&self, workspace: &WorkspaceId, row: SessionRow, marks: Vec<MarkRow>) -> Result<()> {
                if self.fail_rebuild.swap(false, Ordering::SeqCst) {
                    return Err(Self::broken());
                }
                self.inner.rebuild(workspace, row, marks).await
            }
            $(async fn $name(&self, $($arg: $type),*) -> $out {
                self.inner.$name($($arg),*).await
            })*
        }
    };
}

delegate! {
    session(workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionHead>>;
    timeline(workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Timeline>>;
    timelines(workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>>;
    children(workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>>;
    lease(workspace: &WorkspaceId, session: SessionId, action: LeaseAction) -> Result<Lease>;
    remove(workspace: &WorkspaceId, session: SessionId, epoch: milepost_model::Epoch) -> Result<()>;
    put_blobs(workspace: &WorkspaceId, blobs: Vec<Blob>) -> Result<()>;
    get_blobs(workspace: &WorkspaceId, ids: Vec<BlobId>) -> Result<Vec<Option<Vec<u8>>>>;
    list_blobs(workspace: &WorkspaceId, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobInfo>>;
    blob_refs(workspace: &WorkspaceId) -> Result<Vec<BlobId>>;
    record(workspace: &WorkspaceId, key: RecordKey) -> Result<Option<Record>>;
    delete_record(workspace: &WorkspaceId, key: RecordKey, expected: u64) -> Result<()>;
    scan_records(workspace: &WorkspaceId, scan: RecordScan) -> Result<Vec<Record>>;
    record_kinds(workspace: &WorkspaceId) -> Result<Vec<String>>;
    session_ids(workspace: &WorkspaceId) -> Result<Vec<SessionId>>;
    workspaces() -> Result<Vec<WorkspaceId>>;
    sessions(workspace: &WorkspaceId, filter: SessionFilter) -> Result<Vec<SessionRow>>;
    marks(workspace: &WorkspaceId, filter: MarkFilter) -> Result<Vec<MarkRow>>;
    mark(workspace: &WorkspaceId, id: CheckpointId) -> Result<Option<MarkRow>>;
    keyframe(workspace: &WorkspaceId, at: Position) -> Result<Option<Keyframe>>;
    keyframes(workspace: &WorkspaceId, timeline: TimelineId) -> Result<Vec<(Seq, bool)>>;
    search(workspace: &WorkspaceId, query: TextQuery) -> Result<Option<Vec<TextHit>>>;
    usage(workspace: &WorkspaceId) -> Result<Usage>;
    check(depth: Depth) -> Result<Vec<Finding>>;
    backup(to: &Path) -> Result<bool>;
    compact() -> Result<()>;
    close() -> Result<()>;
}

/// A store whose backend can be watched.
pub async fn watched(scratch: &Scratch) -> (Arc<Watched>, Store) {
    let source = scratch.options.source.clone().unwrap();
    let mut options = SqliteOptions::default();
    options.text_index = scratch.options.keys.master.is_none();
    let inner = SqliteBackend::open(&scratch.path(), &options, source).unwrap();
    let backend = Watched::new(Arc::new(inner));
    let store = Store::with_backend(backend.clone(), scratch.options.clone()).await.unwrap();
    (backend, store)
}

/// The texts of a session's messages.
pub async fn texts(store: &Store, session: SessionId) -> Vec<String> {
    let found = store.messages(session, &MessageQuery::default()).await.unwrap();
    found.into_iter().map(|stored| stored.message.text().into_owned()).collect()
}

/// Fails unless verification finds nothing at all.
pub async fn assert_whole(store: &Store) {
    let report = store.verify().await.unwrap();
    assert!(report.sessions > 0, "nothing was looked at");
    assert!(report.is_whole(), "{:#?}", report.problems);
}

/// Changes the store's file behind its back; returns how many rows.
pub fn sql(path: &Path, statement: &str) -> usize {
    let db = rusqlite::Connection::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute(statement, []).unwrap()
}

/// The key of an entry in the tables.
pub fn entry_key(path: &Path, at: Position) -> i64 {
    let db = rusqlite::Connection::open(path).unwrap();
    let no: i64 =
        db.query_row("SELECT no FROM timelines WHERE id = ?1", [at.timeline.to_string()], |row| row.get(0)).unwrap();
    no << 32 | at.seq.0 as i64
}

/// Flips a bit in the middle of an entry's stored body.
pub fn damage(path: &Path, at: Position) {
    let db = rusqlite::Connection::open(path).unwrap();
    let key = entry_key(path, at);
    let mut body: Vec<u8> = db.query_row("SELECT body FROM entries WHERE id = ?1", [key], |row| row.get(0)).unwrap();
    let middle = body.len() / 2;
    body[middle] ^= 1;
    assert_eq!(db.execute("UPDATE entries SET body = ?2 WHERE id = ?1", rusqlite::params![key, body]).unwrap(), 1);
}

fn last(receipt: &Receipt) -> Position {
    Position { seq: Seq(receipt.length - 1), ..receipt.first }
}

async fn mark_ids(store: &Store, session: SessionId) -> Vec<CheckpointId> {
    let query = MarkQuery { oldest_first: true, ..MarkQuery::default() };
    store.marks(session, &query).await.unwrap().iter().map(|mark| mark.checkpoint.id).collect()
}

/// A session whose first append is under way and held, so that what is appended next waits together.
struct Held {
    scratch: Scratch,
    backend: Arc<Watched>,
    store: Store,
    writer: Arc<SessionWriter>,
}

impl Held {
    async fn new(adjust: impl FnOnce(&mut Options)) -> Self {
        let mut scratch = Scratch::new();
        adjust(&mut scratch.options);
        let (backend, store) = watched(&scratch).await;
        let writer = Arc::new(create(&store).await);
        Self { scratch, backend, store, writer }
    }

    /// Appends `first`, and while it is under way all of `rest`; returns what each was answered.
    async fn group(&self, first: Append, rest: Vec<Append>) -> (Result<Receipt>, Vec<Result<Receipt>>) {
        let hold = self.backend.before.write().await;
        let start = |append| {
            let writer = Arc::clone(&self.writer);
            tokio::spawn(async move { writer.append(append).await })
        };
        let first = start(first);
        self.idle().await;
        let mut tasks = Vec::new();
        for append in rest {
            tasks.push(start(append));
            self.idle().await;
        }
        drop(hold);
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        (first.await.unwrap(), answers)
    }

    /// Lets other tasks go as far as they can without the store,
    async fn idle(&self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    /// and with it.
    async fn idle_long(&self) {
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

fn batch(number: u128) -> BatchId {
    milepost_model::Id::from_bits(number)
}
