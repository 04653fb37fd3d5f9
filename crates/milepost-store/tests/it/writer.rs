//! Writing through [`SessionWriter`]: order, groups, repeated batches, states, restores and branches, and futures
//! that are dropped half-way. Also the backend that other tests use to hold, fail and count calls.

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
    /// The next append is not stored and fails.
    pub fail_before: AtomicBool,
    /// The next append is stored and fails.
    pub fail_after: AtomicBool,
    /// So many more records are written; then each write fails. Negative: none fails.
    pub records_left: AtomicI64,
}

impl Watched {
    pub fn new(inner: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            appends: AtomicUsize::new(0),
            before: tokio::sync::RwLock::new(()),
            after: tokio::sync::RwLock::new(()),
            fail_before: AtomicBool::new(false),
            fail_after: AtomicBool::new(false),
            records_left: AtomicI64::new(-1),
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
            $(async fn $name(&self, $($arg: $type),*) -> $out {
                self.inner.$name($($arg),*).await
            })*
        }
    };
}

delegate! {
    read(workspace: &WorkspaceId, range: Range) -> Result<Vec<(Seq, StoredEntry)>>;
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
    drop_blobs(workspace: &WorkspaceId, ids: Vec<BlobId>, touched_before: Timestamp) -> Result<u64>;
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
    rebuild(workspace: &WorkspaceId, row: SessionRow, marks: Vec<MarkRow>) -> Result<()>;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_from_many_tasks_stay_in_order() {
    const TASKS: usize = 12;
    const EACH: usize = 20;
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = Arc::new(create(&store).await);
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let writer = Arc::clone(&writer);
        tasks.push(tokio::spawn(async move {
            let mut receipts = Vec::new();
            for number in 0..EACH {
                let append = Append::new()
                    .message(user(&format!("{task}/{number}")))
                    .event(Event::new("seen", json!({ "task": task, "number": number })));
                receipts.push(writer.append(append).await.unwrap());
            }
            receipts
        }));
    }
    let mut places = BTreeMap::new();
    for (task, handle) in tasks.into_iter().enumerate() {
        for (number, receipt) in handle.await.unwrap().into_iter().enumerate() {
            assert_eq!(receipt.length, receipt.first.seq.0 + 2);
            assert!(!receipt.repeated);
            assert!(places.insert(receipt.first.seq, (task, number)).is_none(), "two appends got one place");
        }
    }
    drop(writer);
    store.close().await.unwrap();
    let store = scratch.open().await;
    let id = store.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let entries = store.entries(id, Seq(1), Seq::MAX).await.unwrap();
    assert_eq!(entries.len(), 2 * TASKS * EACH);
    let mut next = [0; TASKS];
    for pair in entries.chunks(2) {
        let (task, number) = places[&pair[0].at.seq];
        assert_eq!(next[task], number, "the appends of one task are in its order");
        next[task] += 1;
        let Some(Body::Message(message)) = &pair[0].body else { panic!("{pair:?}") };
        assert_eq!(message.text(), format!("{task}/{number}"));
        let Some(Body::Event(event)) = &pair[1].body else { panic!("{pair:?}") };
        assert_eq!((&event.data["task"], &event.data["number"]), (&json!(task), &json!(number)));
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn appends_that_wait_share_one_write() {
    let held = Held::new(|_| {}).await;
    let before = held.backend.appends.load(Ordering::SeqCst);
    let rest = (0..30).map(|n| Append::new().message(user(&format!("waits {n}")))).collect();
    let (first, rest) = held.group(Append::new().message(user("first")), rest).await;
    for (next, receipt) in (first.unwrap().length..).zip(rest) {
        let receipt = receipt.unwrap();
        assert_eq!((receipt.first.seq.0, receipt.length), (next, next + 1));
    }
    assert_eq!(held.backend.appends.load(Ordering::SeqCst) - before, 2);
    let mut expected = vec!["first".to_owned()];
    expected.extend((0..30).map(|n| format!("waits {n}")));
    assert_eq!(texts(&held.store, held.writer.id()).await, expected);
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn one_refused_append_does_not_hurt_the_others() {
    let held = Held::new(|options| options.limits.max_entry_bytes = 4096).await;
    let misfit = || Delta::builder().append("/memory/list", [1]).build().unwrap();
    let rest = vec![
        Append::new().message(user("good 1")).state(state(json!({"memory": {"n": 1}}))),
        // Refused after it has changed the state.
        Append::new().message(user("bad 1")).state(state(json!({"memory": {"n": 99}}))).delta(misfit()),
        Append::new().delta(Delta::builder().set("/memory/m", 2).build().unwrap()).mark(NewMark::new(Trigger::Step)),
        Append::new(),
        Append::new().message(user(&"x".repeat(5000))),
        Append::new().message(user("bad 2")).message(user(&"x".repeat(5000))),
        Append::new().message(user("bad 3")).event(Event::new("bad\0name", Value::Null)),
        Append::new().message(user("good 2")).mark(NewMark::new(Trigger::Manual)),
    ];
    let (first, answers) = held.group(Append::new().message(user("first")), rest).await;
    first.unwrap();
    let outcome: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(outcome, [true, false, true, false, false, false, false, true]);
    assert!(matches!(answers[1], Err(Error::Invalid { .. })), "{:?}", answers[1]);
    assert!(matches!(answers[3], Err(Error::Invalid { .. })), "{:?}", answers[3]);
    assert!(matches!(answers[4], Err(Error::TooLarge { limit: "max_entry_bytes", .. })), "{:?}", answers[4]);
    let (id, expected) = (held.writer.id(), json!({"memory": {"n": 1, "m": 2}}));
    assert_eq!(texts(&held.store, id).await, ["first", "good 1", "good 2"]);
    assert_eq!(held.writer.state().await.unwrap(), state(expected.clone()));
    assert_eq!(held.store.state(id).await.unwrap(), state(expected.clone()));
    assert_eq!(held.store.session(id).await.unwrap().messages(), 3);
    for mark in mark_ids(&held.store, id).await {
        assert_eq!(held.store.load(mark).await.unwrap().state, state(expected.clone()));
    }
    // What is written next goes on from the right state.
    held.writer.append(Append::new().delta(Delta::builder().set("/memory/n", 3).build().unwrap())).await.unwrap();
    assert_eq!(held.store.state(id).await.unwrap(), state(json!({"memory": {"n": 3, "m": 2}})));
    assert_whole(&held.store).await;
    held.store.close().await.unwrap();
    let store = held.scratch.open().await;
    assert_eq!(store.state(id).await.unwrap(), state(json!({"memory": {"n": 3, "m": 2}})));
}

#[tokio::test]
async fn limits_of_an_append_are_not_shared_by_those_that_wait_with_it() {
    let held = Held::new(|options| {
        options.limits.max_batch_entries = 10;
        options.limits.max_batch_bytes = 20_000;
    })
    .await;
    let noise = |n: u64| milepost_model::SeededEntropy::from_u64(n);
    let text = |n: u64| {
        let mut bytes = [0u8; 1500];
        noise(n).fill_salted(0, &mut bytes);
        bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    let rest: Vec<Append> =
        (0..12u64).map(|n| Append::new().message(user(&text(n))).message(user("b")).message(user("c"))).collect();
    let (first, answers) = held.group(Append::new().message(user("first")), rest).await;
    first.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        assert!(answer.is_ok(), "append {n} alone is within every limit: {answer:?}");
    }
    let too_many = (0..11).fold(Append::new(), |append, n| append.message(user(&n.to_string())));
    let error = held.writer.append(too_many).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: "max_batch_entries", .. }), "{error}");
    assert_eq!(texts(&held.store, held.writer.id()).await.len(), 37);
    assert_whole(&held.store).await;
}

fn batch(number: u128) -> BatchId {
    milepost_model::Id::from_bits(number)
}

#[tokio::test]
async fn a_batch_sent_again_adds_nothing_and_gets_the_first_receipt() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let append = || step(1).batch(batch(7));
    let first = writer.append(append()).await.unwrap();
    writer.append(step(2)).await.unwrap();
    let again = writer.append(append()).await.unwrap();
    assert_eq!(again, Receipt { repeated: true, ..first.clone() });
    assert!(!first.repeated);
    assert_eq!(first.checkpoints.len(), 1);
    writer.release().await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    let writer = store.write(id, &claim()).await.unwrap();
    let again = writer.append(append()).await.unwrap();
    assert_eq!(again, Receipt { repeated: true, ..first.clone() });
    // Also when what is sent under it is not what it was.
    let other = writer.append(Append::new().message(user("something else")).batch(batch(7))).await;
    assert!(!matches!(&other, Ok(receipt) if !receipt.repeated), "{other:?}");
    assert_eq!(texts(&store, id).await, ["step 1", "step 2"]);
    assert_eq!(mark_ids(&store, id).await.len(), 2);
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_batch_sent_twice_at_once_is_added_once() {
    let held = Held::new(|_| {}).await;
    let append = || Append::new().message(user("once")).mark(NewMark::new(Trigger::Step)).batch(batch(9));
    let (first, answers) = held.group(Append::new().message(user("first")), vec![append(), append(), append()]).await;
    first.unwrap();
    let receipts: Vec<Receipt> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(receipts.iter().filter(|receipt| !receipt.repeated).count(), 1);
    for receipt in &receipts {
        assert_eq!((receipt.first, receipt.length), (receipts[0].first, receipts[0].length));
        assert_eq!(receipt.checkpoints, receipts[0].checkpoints);
    }
    assert_eq!(texts(&held.store, held.writer.id()).await, ["first", "once"]);
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn a_long_batch_is_recognised_too() {
    let held = Held::new(|_| {}).await;
    let id = held.writer.id();
    let long = || (0..700).fold(Append::new(), |append, n| append.message(user(&n.to_string()))).batch(batch(8));
    // Stored, but nobody was told: it is settled by looking at where it begins.
    held.backend.fail_after.store(true, Ordering::SeqCst);
    let first = held.writer.append(long().mark(NewMark::new(Trigger::Step))).await.unwrap();
    assert!(!first.repeated);
    held.store.close().await.unwrap();
    let store = held.scratch.open().await;
    let writer = store.write(id, &claim().take_over()).await.unwrap();
    let again = writer.append(long().mark(NewMark::new(Trigger::Step))).await.unwrap();
    assert_eq!(again, Receipt { repeated: true, ..first });
    assert_eq!(texts(&store, id).await.len(), 700);
}

#[tokio::test]
async fn a_batch_sent_again_after_a_restore_is_no_damage() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let start = writer.append(step(1)).await.unwrap();
    writer.append(step(2).batch(batch(5))).await.unwrap();
    writer.restore(last(&start)).await.unwrap();
    // On the new timeline the work was not done yet: it may be done again, and nothing is damaged by it.
    writer.append(step(2).batch(batch(5))).await.unwrap();
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_write_whose_end_is_unknown_is_settled_by_looking() {
    let held = Held::new(|_| {}).await;
    let id = held.writer.id();
    held.backend.fail_after.store(true, Ordering::SeqCst);
    let receipt = held.writer.append(step(1)).await.unwrap();
    assert!(!receipt.repeated);
    held.backend.fail_before.store(true, Ordering::SeqCst);
    let error = held.writer.append(step(2).batch(batch(3))).await.unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains("same batch id"), "{error}");
    assert_eq!(texts(&held.store, id).await, ["step 1"]);
    held.writer.append(step(2).batch(batch(3))).await.unwrap();
    assert_eq!(texts(&held.store, id).await, ["step 1", "step 2"]);
    assert_eq!(held.writer.state().await.unwrap(), state(json!({"memory": {"step": 2}})));
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn every_append_of_a_group_is_settled_when_its_end_is_unknown() {
    let held = Held::new(|_| {}).await;
    let hold = held.backend.before.write().await;
    let start = |n: u64| {
        let writer = Arc::clone(&held.writer);
        tokio::spawn(async move { writer.append(step(n)).await })
    };
    let first = start(0);
    held.idle().await;
    let rest: Vec<_> = (1..4).map(start).collect();
    held.idle().await;
    drop(hold);
    first.await.unwrap().unwrap();
    held.backend.fail_after.store(true, Ordering::SeqCst);
    let mut receipts = Vec::new();
    for task in rest {
        receipts.push(task.await.unwrap().unwrap());
    }
    assert_eq!(texts(&held.store, held.writer.id()).await, ["step 0", "step 1", "step 2", "step 3"]);
    let again = held.writer.append(Append::new().message(user("next"))).await.unwrap();
    assert_eq!(again.first.seq.0, receipts.last().unwrap().length);
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn states_come_whole_or_as_deltas_and_misfits_are_refused() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let whole = json!({"memory": {"list": [1, 2], "text": "a"}, "agent": {"status": "running"}});
    writer.append(Append::new().state(state(whole.clone()))).await.unwrap();
    let delta = Delta::builder().append("/memory/list", [3]).append_str("/memory/text", "b").remove("/agent/status");
    writer.append(Append::new().delta(delta.build().unwrap())).await.unwrap();
    let expected = json!({"memory": {"list": [1, 2, 3], "text": "ab"}, "agent": {}});
    assert_eq!(store.state(id).await.unwrap(), state(expected.clone()));

    let misfits = [
        Delta::builder().remove("/agent/status"),
        Delta::builder().append("/agent", [1]),
        Delta::builder().splice("/memory/list", 2, 9, [0]),
        Delta::builder().append_str("/memory/list/0", "x"),
        // The first part fits and is taken back with the second.
        Delta::builder().set("/memory/new", 1).append("/memory/text", [1]),
    ];
    let length = store.entries(id, Seq(0), Seq::MAX).await.unwrap().len();
    for misfit in misfits {
        let error = writer.append(Append::new().delta(misfit.build().unwrap())).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert_eq!(writer.state().await.unwrap(), state(expected.clone()));
    }
    // Something that is not a state: the root must stay an object.
    let root = writer.append(Append::new().delta(Delta::builder().set("", 7).build().unwrap())).await;
    assert!(root.is_err(), "a state that is no object was stored");
    assert_eq!(writer.state().await.unwrap(), state(expected.clone()));

    let receipt = writer.append(Append::new().state(state(expected.clone()))).await.unwrap();
    assert_eq!(receipt.length, receipt.first.seq.0, "an unchanged state adds no entry");
    let receipt = writer.append(Append::new().delta(Delta::default())).await.unwrap();
    assert_eq!(receipt.length, receipt.first.seq.0);
    assert_eq!(store.entries(id, Seq(0), Seq::MAX).await.unwrap().len(), length);
    let marked =
        writer.append(Append::new().state(state(expected.clone())).mark(NewMark::new(Trigger::Step))).await.unwrap();
    assert_eq!(store.load(marked.checkpoints[0]).await.unwrap().state, state(expected.clone()));
    assert_eq!(store.state(id).await.unwrap(), state(expected));
    assert_whole(&store).await;
}

#[tokio::test]
async fn deep_and_wide_states_come_back_as_they_were() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let nest = |levels: usize| {
        (0..levels).fold(json!("core"), |inner, n| if n % 2 == 0 { json!([inner]) } else { json!({ "k": inner }) })
    };
    let wide: Map<String, Value> =
        (0..5000).map(|n| (format!("key {n}"), json!({ "n": n, "x": n as f64 / 7.0 }))).collect();
    let document = json!({
        "deep": nest(250), "wide": wide, "numbers": [u64::MAX, i64::MIN, -0.0, 1e300, 0.1],
        "text": ["\u{0}", "\u{1f980}", "\r\n\"\\", ""], "": { "": null },
    });
    writer.append(Append::new().state(state(document.clone())).mark(NewMark::new(Trigger::Step))).await.unwrap();
    let error = writer.append(Append::new().state(state(json!({ "deep": nest(300) })))).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let mut expected = document;
    for n in 0..20 {
        expected["wide"][format!("key {}", n * 17)] = json!([n]);
        let delta = Delta::builder().set(format!("/wide/key {}", n * 17).as_str(), json!([n])).build().unwrap();
        writer.append(Append::new().delta(delta).mark(NewMark::new(Trigger::Step))).await.unwrap();
    }
    assert_eq!(store.state(id).await.unwrap(), state(expected.clone()));
    store.close().await.unwrap();
    let store = scratch.open().await;
    let loaded = store.load_latest(id, &MarkQuery::default()).await.unwrap();
    assert_eq!(loaded.state, state(expected));
    assert_eq!(loaded.state.section("numbers").unwrap()[2].as_f64().unwrap().to_bits(), (-0.0f64).to_bits());
    assert_whole(&store).await;
}

#[tokio::test]
async fn marks_count_the_messages_of_each_channel() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let side = Channel::new("node/plan").unwrap();
    let mark = || NewMark::new(Trigger::Messages);
    let receipt = writer
        .append(
            Append::new()
                .mark(mark())
                .message(user("1"))
                .message(user("a").in_channel(side.clone()))
                .mark(mark())
                .message(user("2"))
                .event(Event::new("noise", Value::Null))
                .mark(mark()),
        )
        .await
        .unwrap();
    let counts = |main: u64, other: u64| {
        let all = [(Channel::MAIN, main), (side.clone(), other)];
        all.into_iter().filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>()
    };
    for (id, expected) in receipt.checkpoints.iter().zip([counts(0, 0), counts(1, 1), counts(2, 1)]) {
        assert_eq!(store.mark(*id).await.unwrap().checkpoint.counts, expected);
    }
    let first = store.mark(receipt.checkpoints[1]).await.unwrap();
    writer.restore(first.at).await.unwrap();
    assert_eq!(writer.session().await.counts, counts(1, 1));
    let receipt = writer.append(Append::new().message(user("b").in_channel(side.clone())).mark(mark())).await.unwrap();
    assert_eq!(store.mark(receipt.checkpoints[0]).await.unwrap().checkpoint.counts, counts(1, 2));
    let branch = store.branch(first.at, NewSession::default(), &claim()).await.unwrap();
    let receipt = branch.append(Append::new().message(user("2'")).mark(mark())).await.unwrap();
    assert_eq!(store.mark(receipt.checkpoints[0]).await.unwrap().checkpoint.counts, counts(2, 1));
    assert_eq!(store.session(branch.id()).await.unwrap().counts, counts(2, 1));
    assert_eq!(store.session(id).await.unwrap().counts, counts(1, 2));
    assert_whole(&store).await;
}

#[tokio::test]
async fn restoring_goes_back_to_marks_entries_and_other_timelines_and_loses_nothing() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let mut ends = Vec::new();
    for n in 1..=4 {
        ends.push(last(&writer.append(step(n)).await.unwrap()));
        scratch.clock.advance_ms(1000);
    }
    let at_step = |n: u64| state(json!({"memory": {"step": n}}));
    let first_line = ends[0].timeline;

    // To a mark.
    let restored = writer.restore(ends[1]).await.unwrap();
    assert_ne!(restored.first.timeline, first_line);
    assert_eq!(restored.first.seq, ends[1].seq.next());
    assert_eq!(texts(&store, id).await, ["step 1", "step 2"]);
    assert_eq!(writer.state().await.unwrap(), at_step(2));
    assert_eq!(store.state(id).await.unwrap(), at_step(2));
    assert_eq!(store.session(id).await.unwrap().preview.as_deref(), Some("step 2"));
    assert_eq!(mark_ids(&store, id).await.len(), 2);
    assert_whole(&store).await;
    let on_second = last(&writer.append(step(30)).await.unwrap());
    assert_eq!(texts(&store, id).await, ["step 1", "step 2", "step 30"]);

    // To an entry that is no mark: the message of step 4, on the timeline that was left.
    let message = Position { timeline: first_line, seq: Seq(ends[3].seq.0 - 2) };
    writer.restore(message).await.unwrap();
    assert_eq!(texts(&store, id).await, ["step 1", "step 2", "step 3", "step 4"]);
    assert_eq!(writer.state().await.unwrap(), at_step(3));
    assert_whole(&store).await;

    // To the other timeline that was left, twice the same.
    for _ in 0..2 {
        writer.restore(on_second).await.unwrap();
        assert_eq!(texts(&store, id).await, ["step 1", "step 2", "step 30"]);
        assert_eq!(writer.state().await.unwrap(), at_step(30));
        assert_eq!(store.session(id).await.unwrap().checkpoints, 3);
        assert_whole(&store).await;
    }
    // To the very beginning.
    writer.restore(Position { timeline: first_line, seq: Seq(0) }).await.unwrap();
    assert_eq!(texts(&store, id).await, [""; 0]);
    assert_eq!(writer.state().await.unwrap(), state(json!({})));
    assert_whole(&store).await;

    // Nothing of what was left is lost.
    for (n, end) in ends.iter().enumerate() {
        assert_eq!(store.state_at(*end).await.unwrap(), at_step(n as u64 + 1));
        assert_eq!(store.messages_at(*end, &MessageQuery::default()).await.unwrap().len(), n + 1);
    }
    // What is not of this session is refused, and the writer goes on.
    let other = create(&store).await;
    let foreign = last(&other.append(step(1)).await.unwrap());
    for wrong in [foreign, Position { timeline: first_line, seq: Seq(99) }, Position { seq: Seq(1), ..on_second }] {
        let error = writer.restore(wrong).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }
    writer.append(step(5)).await.unwrap();
    assert_eq!(texts(&store, id).await, ["step 5"]);
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(texts(&store, id).await, ["step 5"]);
    assert_eq!(store.state(id).await.unwrap(), at_step(5));
    assert_whole(&store).await;
}

#[tokio::test]
async fn what_a_list_shows_is_carried_over_a_restore_and_a_branch() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let patch = SessionPatch::new().title("before").project("p").tags(["x"]).with("own", json!([1]));
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let at = last(&writer.append(step(1)).await.unwrap());
    writer.append(step(2)).await.unwrap();
    writer.append(Append::new().patch(SessionPatch::new().title("after").status(Status::Paused))).await.unwrap();
    writer.restore(at).await.unwrap();
    let session = store.session(writer.id()).await.unwrap();
    assert_eq!((session.title.as_deref(), session.status), (Some("after"), Status::Paused));
    assert_eq!((session.project.as_deref(), &session.extra["own"]), (Some("p"), &json!([1])));
    let new = NewSession { id: None, patch: SessionPatch::new().title("branch") };
    let branch = store.branch(at, new, &claim()).await.unwrap();
    let session = store.session(branch.id()).await.unwrap();
    assert_eq!((session.title.as_deref(), session.status), (Some("branch"), Status::Active));
    assert_eq!((session.project.as_deref(), session.tags.contains("x")), (Some("p"), true));
    assert_eq!(session.branch.unwrap().at, at);
    assert_eq!(session.preview.as_deref(), Some("step 1"));
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    assert_eq!(store.session(branch.id()).await.unwrap(), session);
}

#[tokio::test]
async fn a_branch_can_be_restored_to_before_it_began() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let one = last(&writer.append(step(1)).await.unwrap());
    let two = last(&writer.append(step(2)).await.unwrap());
    let three = last(&writer.append(step(3)).await.unwrap());
    scratch.clock.advance_ms(60_000);
    let branch = store.branch(two, NewSession::default(), &claim()).await.unwrap();
    branch.append(step(20)).await.unwrap();
    let before = store.session(branch.id()).await.unwrap();
    scratch.clock.advance_ms(60_000);
    branch.restore(one).await.unwrap();
    assert_eq!(texts(&store, branch.id()).await, ["step 1"]);
    assert_eq!(branch.state().await.unwrap(), state(json!({"memory": {"step": 1}})));
    let error = branch.restore(three).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "beyond where it began, the parent is not its own: {error}");
    let after = store.session(branch.id()).await.unwrap();
    assert_eq!((after.created, after.branch), (before.created, before.branch));
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    assert_eq!(store.session(branch.id()).await.unwrap(), after);
}

#[tokio::test]
async fn branches_of_branches_keep_every_state_and_get_keyframes() {
    const DEPTH: u64 = 20;
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let root = create(&store).await;
    let mut expected = json!({ "filler": "x".repeat(4000), "path": [] });
    let mut receipt = root.append(Append::new().state(state(expected.clone())).message(user("root"))).await.unwrap();
    let mut writers = vec![(root, expected.clone())];
    for depth in 1..=DEPTH {
        let writer = store.branch(last(&receipt), NewSession::default(), &claim()).await.unwrap();
        assert_eq!(writer.state().await.unwrap(), state(expected.clone()), "a branch begins with its parent's state");
        let path = expected["path"].as_array_mut().unwrap();
        path.push(json!(depth));
        let delta = Delta::builder().append("/path", [depth]).build().unwrap();
        let append =
            Append::new().delta(delta).message(user(&format!("level {depth}"))).mark(NewMark::new(Trigger::Step));
        receipt = writer.append(append).await.unwrap();
        // What the parent does afterwards is its own.
        let (parent, parent_state) = writers.last_mut().unwrap();
        parent_state["path"].as_array_mut().unwrap().push(json!("later"));
        parent.append(Append::new().delta(Delta::builder().append("/path", ["later"]).build().unwrap())).await.unwrap();
        writers.push((writer, expected.clone()));
    }
    let mut frames = 0;
    for (depth, (writer, expected)) in writers.iter().enumerate() {
        let id = writer.id();
        assert_eq!(store.state(id).await.unwrap(), state(expected.clone()), "at depth {depth}");
        let mut said = vec!["root".to_owned()];
        said.extend((1..=depth).map(|n| format!("level {n}")));
        assert_eq!(texts(&store, id).await, said);
        for line in store.backend().timelines(store.workspace(), id).await.unwrap() {
            frames += store.backend().keyframes(store.workspace(), line.id).await.unwrap().len();
        }
    }
    // One whole state after every four timelines crossed, not one for each and not none.
    assert!((4..=10).contains(&frames), "{frames} keyframes over {DEPTH} timelines");
    assert_whole(&store).await;
    // They are derived: without them every state is the same.
    assert!(sql(&scratch.path(), "DELETE FROM keyframes") > 0);
    for (writer, expected) in &writers {
        assert_eq!(store.state(writer.id()).await.unwrap(), state(expected.clone()));
    }
}

#[tokio::test]
async fn message_ranges_follow_the_timelines() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let side = Channel::new("side").unwrap();
    // Everything on the path to the head, in order: number, channel, text.
    let mut path: Vec<(u64, Channel, String)> = Vec::new();
    let mut number = 0;
    for round in 0..4u64 {
        for n in 0..9u64 {
            let channel = if n % 3 == 0 { side.clone() } else { Channel::MAIN };
            let text = format!("message {number}");
            number += 1;
            let append =
                Append::new().event(Event::new("tick", Value::Null)).message(user(&text).in_channel(channel.clone()));
            let receipt = writer.append(append).await.unwrap();
            path.push((receipt.length - 1, channel, text));
        }
        let to = path[path.len() - 4].0;
        let timeline = store.session(id).await.unwrap().head;
        if round < 3 {
            writer.restore(Position { timeline, seq: Seq(to) }).await.unwrap();
            path.retain(|(seq, _, _)| *seq <= to);
        }
    }
    assert_eq!(path.len(), 9 + 3 * 6);
    let end = path.last().unwrap().0 + 1;
    let mut checked = 0;
    for channel in [None, Some(Channel::MAIN), Some(side), Some(Channel::new("none").unwrap())] {
        for (from, to) in [
            (None, None),
            (Some(5), None),
            (None, Some(20)),
            (Some(12), Some(31)),
            (Some(30), Some(10)),
            (Some(end), None),
        ] {
            for (first, last) in [
                (None, None),
                (Some(1), None),
                (Some(7), None),
                (None, Some(1)),
                (None, Some(7)),
                (None, Some(0)),
                (Some(1000), None),
            ] {
                let mut expected: Vec<(u64, String)> = path
                    .iter()
                    .filter(|(seq, own, _)| {
                        channel.as_ref().is_none_or(|c| c == own)
                            && *seq >= from.unwrap_or(0)
                            && *seq < to.unwrap_or(u64::MAX)
                    })
                    .map(|(seq, _, text)| (*seq, text.clone()))
                    .collect();
                if let Some(first) = first {
                    expected.truncate(first);
                }
                if let Some(last) = last {
                    expected = expected.split_off(expected.len().saturating_sub(last));
                }
                let query =
                    MessageQuery { channel: channel.clone(), from: from.map(Seq), to: to.map(Seq), last, first };
                let found = store.messages(id, &query).await.unwrap();
                let found: Vec<(u64, String)> =
                    found.into_iter().map(|m| (m.at.seq.0, m.message.text().into_owned())).collect();
                assert_eq!(found, expected, "{query:?}");
                checked += usize::from(!expected.is_empty());
            }
        }
    }
    assert!(checked > 50, "most queries must find something");
}

#[tokio::test]
async fn the_mark_nearest_to_a_moment_is_found() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let error = store.mark_near(writer.id(), START).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let mut marks = Vec::new();
    for n in [0, 1000, 2000, 10_000] {
        scratch.clock.set(START.plus_ms(n));
        marks.push(writer.append(step(n as u64)).await.unwrap().checkpoints[0]);
    }
    let cases =
        [(-5000, 0), (0, 0), (400, 0), (500, 1), (501, 1), (1499, 1), (1500, 2), (5999, 2), (6000, 3), (99_000, 3)];
    for (ms, expected) in cases {
        let near = store.mark_near(writer.id(), START.plus_ms(ms)).await.unwrap();
        assert_eq!(near.checkpoint.id, marks[expected], "near {ms} ms");
    }
}

#[tokio::test]
async fn the_newest_whole_mark_is_loaded_and_the_damaged_ones_are_named() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let mut marks = Vec::new();
    for n in 0..5 {
        marks.push(writer.append(step(n)).await.unwrap().checkpoints[0]);
    }
    let newest = store.load_latest(id, &MarkQuery::default()).await.unwrap();
    assert_eq!((newest.mark.checkpoint.id, newest.skipped.len()), (marks[4], 0));
    writer.release().await.unwrap();
    store.close().await.unwrap();

    // The newest mark itself, and the state change that the one before it needs.
    damage(&scratch.path(), newest.mark.at);
    let store = scratch.open().await;
    let before = store.mark(marks[3]).await.unwrap();
    damage(&scratch.path(), Position { seq: Seq(before.at.seq.0 - 1), ..before.at });
    sql(&scratch.path(), "DELETE FROM keyframes");
    let loaded = store.load_latest(id, &MarkQuery::default()).await.unwrap();
    assert_eq!(loaded.mark.checkpoint.id, marks[2]);
    assert_eq!(loaded.state, state(json!({"memory": {"step": 2}})));
    let skipped: Vec<CheckpointId> = loaded.skipped.iter().map(|skipped| skipped.id).collect();
    assert_eq!(skipped, [marks[4], marks[3]]);
    assert!(loaded.skipped.iter().all(|skipped| skipped.why.contains("checksum")), "{:?}", loaded.skipped);
    assert!(store.load(marks[4]).await.unwrap_err().is_damage());
    assert!(store.load(marks[3]).await.unwrap_err().is_damage());
    let report = store.verify().await.unwrap();
    let named: Vec<Position> = report.problems.iter().filter_map(|problem| problem.at).collect();
    assert!(named.contains(&newest.mark.at), "{report:?}");
    // From the whole one the session goes on, also once the store had time to index its texts, and could not.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let writer = store.write(id, &claim()).await.unwrap();
    writer.restore(loaded.mark.at).await.unwrap();
    writer.append(step(9)).await.unwrap();
    assert_eq!(store.state(id).await.unwrap(), state(json!({"memory": {"step": 9}})));
}

#[tokio::test]
async fn damage_that_indexing_meets_keeps_nobody_from_writing() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (hurt, other) = (create(&store).await, create(&store).await);
    let first = hurt.append(step(1)).await.unwrap();
    other.append(step(1)).await.unwrap();
    damage(&scratch.path(), last(&first));
    // Texts are indexed when nobody wrote for a moment: by then it has met the damage.
    tokio::time::sleep(Duration::from_millis(400)).await;
    other.append(step(2)).await.unwrap();
    assert_eq!(store.state(other.id()).await.unwrap(), state(json!({"memory": {"step": 2}})));
}

#[tokio::test]
async fn a_future_dropped_before_the_write_leaves_nothing_and_the_writer_usable() {
    let held = Held::new(|_| {}).await;
    held.writer.append(step(1)).await.unwrap();
    {
        let _hold = held.backend.before.write().await;
        let dropped = tokio::time::timeout(Duration::from_millis(50), held.writer.append(step(2))).await;
        assert!(dropped.is_err());
    }
    let receipt = held.writer.append(step(3)).await.unwrap();
    assert_eq!(receipt.first.seq, Seq(4));
    assert_eq!(texts(&held.store, held.writer.id()).await, ["step 1", "step 3"]);
    assert_eq!(held.store.state(held.writer.id()).await.unwrap(), state(json!({"memory": {"step": 3}})));
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn a_future_dropped_after_the_write_is_found_again_by_its_batch_id() {
    let held = Held::new(|_| {}).await;
    held.writer.append(step(1)).await.unwrap();
    {
        let _hold = held.backend.after.write().await;
        let append = held.writer.append(step(2).batch(batch(4)));
        assert!(tokio::time::timeout(Duration::from_millis(300), append).await.is_err());
    }
    let again = held.writer.append(step(2).batch(batch(4))).await.unwrap();
    assert!(again.repeated);
    assert_eq!(again.checkpoints.len(), 1);
    held.writer.append(step(3)).await.unwrap();
    assert_eq!(texts(&held.store, held.writer.id()).await, ["step 1", "step 2", "step 3"]);
    assert_eq!(held.store.state(held.writer.id()).await.unwrap(), state(json!({"memory": {"step": 3}})));
    assert_whole(&held.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_at_any_moment_leave_the_session_whole() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = Arc::new(create(&store).await);
    let id = writer.id();
    let mut acknowledged = Vec::new();
    let mut dropped = 0;
    for n in 0..120u64 {
        let task = {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move { writer.append(step(n)).await })
        };
        // From "not begun" to "long done".
        let wait = Duration::from_micros(n * 37 % 3000);
        let handle = task.abort_handle();
        tokio::time::sleep(wait).await;
        handle.abort();
        match task.await {
            Ok(receipt) => {
                receipt.unwrap();
                acknowledged.push(format!("step {n}"));
            }
            Err(_) => dropped += 1,
        }
        if n % 10 == 9 {
            writer.append(step(1000 + n)).await.unwrap();
            acknowledged.push(format!("step {}", 1000 + n));
        }
    }
    assert!(dropped > 5, "nothing was dropped: the test is too slow or too fast");
    let said = texts(&store, id).await;
    let mut unique = said.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), said.len(), "something was stored twice");
    let mut rest = said.iter();
    for text in &acknowledged {
        assert!(rest.any(|said| said == text), "{text} was acknowledged and is missing or out of order");
    }
    let newest: u64 = said.last().unwrap().strip_prefix("step ").unwrap().parse().unwrap();
    assert_eq!(store.state(id).await.unwrap(), state(json!({"memory": {"step": newest}})));
    assert_eq!(writer.state().await.unwrap(), state(json!({"memory": {"step": newest}})));
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_dropped_append_does_not_fail_those_that_wait_with_it() {
    let held = Held::new(|_| {}).await;
    held.writer.append(step(0)).await.unwrap();
    let hold = held.backend.before.write().await;
    let start = |n: u64| {
        let writer = Arc::clone(&held.writer);
        tokio::spawn(async move { writer.append(step(n)).await })
    };
    let leader = start(1);
    held.idle().await;
    let waiting: Vec<_> = (2..5).map(start).collect();
    held.idle().await;
    // The first of those that wait takes the others along. When its caller gives up, theirs must not.
    leader.abort();
    let _ = leader.await;
    held.idle_long().await;
    waiting[0].abort();
    held.idle_long().await;
    drop(hold);
    for (n, task) in waiting.into_iter().enumerate().skip(1) {
        let answer = task.await.unwrap();
        assert!(answer.is_ok(), "append {} was given up with another's: {answer:?}", n + 2);
    }
    let said = texts(&held.store, held.writer.id()).await;
    assert_eq!(said.iter().filter(|text| ["step 3", "step 4"].contains(&text.as_str())).count(), 2, "{said:?}");
    assert_whole(&held.store).await;
}

/// Fields beside the known ones may not be called like them: what is stored could not be read again.
#[tokio::test]
async fn extra_fields_cannot_hide_known_ones() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    writer.append(step(1)).await.unwrap();
    let object = |key: &str, value: Value| Map::from_iter([(key.to_owned(), value)]);
    let mut hostile: Vec<(String, Append)> = Vec::new();
    for key in ["role", "content", "channel"] {
        let mut message = user("hello");
        message.extra = object(key, json!("x"));
        hostile.push((format!("message.{key}"), Append::new().message(message)));
    }
    hostile.push(("event.type".into(), Append::new().event(Event::new("tool", json!({"type": "bash"})))));
    for key in ["id", "trigger", "label", "clean", "resumable", "counts", "state", "description"] {
        let mark = NewMark { extra: object(key, json!(["x"])), ..NewMark::new(Trigger::Step) };
        hostile.push((format!("mark.{key}"), Append::new().mark(mark)));
    }
    for key in ["id", "head", "created", "active", "counts", "checkpoints", "checkpoint", "branch", "preview"] {
        let patch = SessionPatch::new().with(key, json!("x"));
        hostile.push((format!("session.{key}"), Append::new().patch(patch)));
    }
    for (name, append) in hostile {
        let outcome = writer.append(append).await;
        if let Err(error) = &outcome {
            assert!(matches!(error, Error::Invalid { .. }), "{name}: {error}");
        }
        let report = store.verify().await.unwrap();
        assert!(report.is_whole(), "{name} was taken ({outcome:?}) and cannot be read: {:?}", report.problems);
        store.session(id).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        writer.state().await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // The first patch of a session is checked like every other.
    for patch in [
        SessionPatch::new().with("id", json!("x")),
        SessionPatch::new().title("nul \0"),
        SessionPatch::new().with("status", json!("sleeping")),
        SessionPatch::new().title("x".repeat(2000)),
    ] {
        let new = NewSession { id: None, patch: patch.clone() };
        let outcome = store.create(new, &claim()).await;
        assert!(outcome.is_err(), "{patch:?} was taken");
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_clock_that_goes_back_disturbs_neither_order_nor_rows() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let at = last(&writer.append(step(1)).await.unwrap());
    scratch.clock.set(START.plus_ms(-3_600_000));
    writer.append(step(2)).await.unwrap();
    let branch = store.branch(at, NewSession::default(), &claim()).await.unwrap();
    branch.append(step(3)).await.unwrap();
    writer.restore(at).await.unwrap();
    writer.append(step(4)).await.unwrap();
    for id in [writer.id(), branch.id()] {
        let times: Vec<Timestamp> = store.entries(id, Seq(0), Seq::MAX).await.unwrap().iter().map(|e| e.time).collect();
        assert!(times.is_sorted(), "{times:?}");
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn all_kinds_of_entries_come_back_as_they_were_written() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let messages = crate::golden::messages();
    let events = [
        Event::new("paused", json!({"by": "user", "n": [1, null]})),
        Event::new("plain", Value::Null),
        Event::new("odd", json!([1])),
    ];
    let mark = NewMark {
        label: Some("before lunch".into()),
        description: Some("a\nb".into()),
        clean: false,
        resumable: milepost_model::Resumable::No("open call".into()),
        extra: Map::from_iter([("node".to_owned(), json!({"id": 3}))]),
        ..NewMark::new(Trigger::Other("own".into()))
    };
    let mut append = messages.iter().cloned().fold(Append::new(), Append::message);
    append = events.iter().cloned().fold(append, Append::event);
    let receipt = writer.append(append.mark(mark.clone())).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    let found = store.entries(writer.id(), receipt.first.seq, Seq::MAX).await.unwrap();
    let mut bodies = found.into_iter().map(|entry| entry.body.unwrap());
    for message in messages {
        assert_eq!(bodies.next(), Some(Body::Message(message)));
    }
    for event in events {
        assert_eq!(bodies.next(), Some(Body::Event(event)));
    }
    let Some(Body::Mark(found)) = bodies.next() else { panic!("the mark is missing") };
    let expected = Checkpoint {
        label: mark.label,
        description: mark.description,
        clean: false,
        resumable: mark.resumable,
        extra: mark.extra,
        ..found.clone()
    };
    assert_eq!((found.trigger.clone(), &found), (Trigger::Other("own".into()), &expected));
    assert_eq!(bodies.next(), None);
}

/// Of several who begin the same session, those that are refused find it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_refused_because_of_another_is_told_when_that_is_stored() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for _ in 0..40 {
        let id: SessionId = store.source().id();
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    let new = NewSession { id: Some(id), ..NewSession::default() };
                    match store.create(new, &claim()).await {
                        Ok(_) => true,
                        Err(Error::Conflict(_)) => {
                            store.session(id).await.expect("it is there");
                            false
                        }
                        Err(error) => panic!("{error}"),
                    }
                })
            })
            .collect();
        let mut made = 0;
        for task in tasks {
            made += usize::from(task.await.unwrap());
        }
        assert_eq!(made, 1);
    }
}
