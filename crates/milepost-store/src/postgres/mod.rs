//! A store in a PostgreSQL database, for several machines at once.
//!
//! An append is one round trip and one transaction: a function in the database checks epoch, length and head under the
//! lock of the session's row, and answers with a code. Appends that wait at the same time share a commit. Texts are
//! indexed a moment later, and before any search. Leases go by
//! the server's clock. Nothing is kept in a connection between statements, so that a pooler in transaction mode may
//! stand between. The tables are made to be read with `psql` (see `sql/`); the schema is `milepost` unless the URL says
//! `?schema=…`.
//!
//! `db.rs` is the one place that talks to the server: connections, timeouts, when to try again, what an error means.

mod batch;
mod changes;
mod check;
mod config;
mod db;
mod group;
mod grow;
mod log;
mod outside;
mod rows;
mod schema;
mod text;
mod tls;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use milepost_model::{CheckpointId, Epoch, Position, Seq, SessionId, Source, TimelineId, Timestamp, WorkspaceId};
use tokio::runtime::{Builder, Handle};
use tokio::sync::broadcast::WeakSender;
use tokio::sync::oneshot;

use crate::backend::*;
use crate::error::{Error, Result};
use config::Target;
use db::{Db, Patience};
use group::Groups;
use outside::Outside;

/// Whose clock leases and blobs go by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LeaseClock {
    /// The server's: the same for all machines.
    #[default]
    Server,
    /// The [`Source`]'s: for tests that move time.
    Source,
}

/// How to open a store in a database.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// Whether a new store gets a text index, and keeps short texts readable in its tables. An existing store stays as
    /// it was made.
    pub text_index: bool,
    /// Appends waiting to be sent; a further one waits for a place.
    pub queue: usize,
    /// Connections at most (8).
    pub connections: u32,
    /// Whose clock leases go by.
    pub clock: LeaseClock,
    /// How long a connection may take to be made (10 s), unless the URL or PGCONNECT_TIMEOUT says otherwise.
    pub connect_ms: u64,
    /// How long an answer may take (30 s).
    pub statement_ms: u64,
    /// An object store (`s3://BUCKET/PREFIX`, …) for blobs of more than `blobs_above` bytes; none keeps them in the
    /// database. A store that has some there is always opened with it.
    pub blobs: Option<String>,
    /// The size above which a blob goes to the object store (16 KiB).
    pub blobs_above: u64,
    /// How long an object that nothing refers to is left alone, as what refers to it may be on the way (1 h).
    pub orphan_ms: i64,
    /// How often something that did not happen is tried before it is an error (8), with growing pauses between: enough
    /// for a server that restarts.
    pub tries: u32,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            text_index: true,
            queue: 1024,
            connections: 8,
            clock: LeaseClock::Server,
            connect_ms: 10_000,
            statement_ms: 30_000,
            blobs: None,
            blobs_above: 16 << 10,
            orphan_ms: 3_600_000,
            tries: 8,
        }
    }
}

/// A connection to a database for reading tables of another program, reached as a store is: by the same URLs, with the same TLS,
/// environment and limits. Needs a tokio runtime, on which it runs until the client is dropped.
pub async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    let options = PostgresOptions::default();
    let patience = Patience {
        connect: Duration::from_millis(options.connect_ms),
        statement: Duration::from_millis(options.statement_ms),
        tries: options.tries,
    };
    let db = Db::new(Target::from_url(url)?, crate::system_source()?, false, patience, 1)?;
    db.connect("connecting").await.map_err(|failed| failed.error)
}

/// The thread on which everything that waits for the server runs: callers need no runtime of their own.
struct Engine {
    handle: Handle,
    running: Mutex<Option<Running>>,
}

struct Running {
    /// The thread ends when this is gone,
    stop: oneshot::Sender<()>,
    /// which is gone when everything that ran there was dropped.
    dropped: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Engine {
    fn start() -> Result<Self> {
        let failed = |error: std::io::Error| Error::Io { what: "starting a thread".into(), why: error.to_string() };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let (ended, dropped) = oneshot::channel::<()>();
        let serve = move || {
            drop(runtime.block_on(stopped));
            drop(runtime);
            drop(ended);
        };
        let thread = std::thread::Builder::new().name("milepost-postgres".into()).spawn(serve).map_err(failed)?;
        Ok(Self { handle, running: Mutex::new(Some(Running { stop, dropped, thread })) })
    }

    /// Ends the thread and waits for it. A process that forks after this has no connection that its child would keep open:
    /// the server would wait for the child, with whatever that connection had locked.
    async fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { stop, dropped, thread }) = running else { return };
        drop(stop);
        drop(dropped.await);
        drop(thread.join());
    }

    /// Runs something to its end, also when whoever waits for it goes away.
    async fn run<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        // Only a runtime that was stopped drops what it was given.
        self.handle.spawn(work).await.unwrap_or(Err(Error::Closed))
    }
}

/// A store in a PostgreSQL database.
pub struct PostgresBackend {
    db: Arc<Db>,
    groups: Groups,
    text: bool,
    engine: Engine,
}

impl std::fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresBackend").field("at", &self.db.target.words).finish_non_exhaustive()
    }
}

impl PostgresBackend {
    /// Opens the store in the database that a URL (`postgres://USER:PASSWORD@HOST:PORT/DATABASE`) names, or makes it.
    /// What the URL leaves out comes from the usual variables (PGHOST, PGUSER, PGPASSWORD, …) and `~/.pgpass`.
    pub async fn open(url: &str, options: &PostgresOptions, source: Source) -> Result<Self> {
        let patience = Patience {
            connect: Duration::from_millis(options.connect_ms),
            statement: Duration::from_millis(options.statement_ms),
            tries: options.tries.max(1),
        };
        let own_clock = options.clock == LeaseClock::Source;
        let mut db = Db::new(Target::from_url(url)?, source.clone(), own_clock, patience, options.connections)?;
        if let Some(place) = &options.blobs {
            db.outside = Some(Outside::new(place, options.blobs_above, options.orphan_ms, source)?);
        }
        let db = Arc::new(db);
        let engine = Engine::start()?;
        let (server, text_index) = (Arc::clone(&db), options.text_index);
        let text = engine.run(async move { schema::prepare(&server, text_index).await }).await?;
        let groups = Groups::start(&engine.handle, Arc::clone(&db), options.queue, text);
        if text {
            drop(engine.handle.spawn(text::keep_up(Arc::clone(&db))));
        }
        Ok(Self { db, groups, text, engine })
    }

    /// Runs work with the server on the engine's thread.
    async fn run<T, F>(&self, work: impl FnOnce(Arc<Db>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if self.db.is_closed() {
            return Err(Error::Closed);
        }
        self.engine.run(work(Arc::clone(&self.db))).await
    }
}

/// A method that hands its arguments to a function of the same kind on the engine's thread.
macro_rules! on_engine {
    ($self:ident, $workspace:ident, |$db:ident, $w:ident| $work:expr) => {{
        let $w = $workspace.clone();
        $self.run(move |$db| async move { $work.await }).await
    }};
}

#[async_trait]
impl Backend for PostgresBackend {
    fn features(&self) -> Features {
        Features { name: "postgres", text: self.text, lingers_ms: 0 }
    }

    async fn append(&self, workspace: &WorkspaceId, mut batch: Batch) -> Result<Appended> {
        if self.db.is_closed() {
            return Err(Error::Closed);
        }
        if let Some(outside) = self.db.outside.as_ref().filter(|_| !batch.blobs.is_empty()) {
            batch.blobs = outside.put(workspace, &batch.blobs).await?.in_time()?;
        }
        self.groups.append(workspace.clone(), batch).await
    }

    async fn read(&self, workspace: &WorkspaceId, range: Range) -> Result<Vec<(Seq, StoredEntry)>> {
        on_engine!(self, workspace, |db, w| log::read(&db, &w, &range))
    }

    async fn session(&self, workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionHead>> {
        on_engine!(self, workspace, |db, w| log::session(&db, &w, id))
    }

    async fn timeline(&self, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Timeline>> {
        on_engine!(self, workspace, |db, w| log::timeline(&db, &w, id))
    }

    async fn timelines(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        on_engine!(self, workspace, |db, w| log::timelines(&db, &w, session))
    }

    async fn children(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        on_engine!(self, workspace, |db, w| log::children(&db, &w, session))
    }

    async fn session_ids(&self, workspace: &WorkspaceId) -> Result<Vec<SessionId>> {
        on_engine!(self, workspace, |db, w| log::session_ids(&db, &w))
    }

    async fn lease(&self, workspace: &WorkspaceId, session: SessionId, action: LeaseAction) -> Result<Lease> {
        on_engine!(self, workspace, |db, w| log::lease(&db, &w, session, action))
    }

    async fn remove(&self, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()> {
        on_engine!(self, workspace, |db, w| log::remove(&db, &w, session, epoch))
    }

    async fn put_blobs(&self, workspace: &WorkspaceId, blobs: Vec<Blob>) -> Result<()> {
        on_engine!(self, workspace, |db, w| rows::put_blobs(&db, &w, blobs))
    }

    async fn get_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>) -> Result<Vec<Option<Vec<u8>>>> {
        on_engine!(self, workspace, |db, w| rows::get_blobs(&db, &w, &ids))
    }

    async fn list_blobs(&self, workspace: &WorkspaceId, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobInfo>> {
        on_engine!(self, workspace, |db, w| rows::list_blobs(&db, &w, after, limit))
    }

    async fn blob_refs(&self, workspace: &WorkspaceId) -> Result<Vec<BlobId>> {
        on_engine!(self, workspace, |db, w| rows::blob_refs(&db, &w))
    }

    async fn drop_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>, touched_before: Timestamp) -> Result<u64> {
        on_engine!(self, workspace, |db, w| rows::drop_blobs(&db, &w, &ids, touched_before))
    }

    async fn record(&self, workspace: &WorkspaceId, key: RecordKey) -> Result<Option<Record>> {
        on_engine!(self, workspace, |db, w| rows::record(&db, &w, &key))
    }

    async fn put_record(&self, workspace: &WorkspaceId, record: Record, expected: Option<u64>) -> Result<()> {
        on_engine!(self, workspace, |db, w| rows::put_record(&db, &w, &record, expected))
    }

    async fn delete_record(&self, workspace: &WorkspaceId, key: RecordKey, expected: u64) -> Result<()> {
        on_engine!(self, workspace, |db, w| rows::delete_record(&db, &w, &key, expected))
    }

    async fn scan_records(&self, workspace: &WorkspaceId, scan: RecordScan) -> Result<Vec<Record>> {
        on_engine!(self, workspace, |db, w| rows::scan_records(&db, &w, &scan))
    }

    async fn record_kinds(&self, workspace: &WorkspaceId) -> Result<Vec<String>> {
        on_engine!(self, workspace, |db, w| rows::record_kinds(&db, &w))
    }

    async fn workspaces(&self) -> Result<Vec<WorkspaceId>> {
        self.run(|db| async move { rows::workspaces(&db).await }).await
    }

    async fn sessions(&self, workspace: &WorkspaceId, filter: SessionFilter) -> Result<Vec<SessionRow>> {
        on_engine!(self, workspace, |db, w| rows::sessions(&db, &w, &filter))
    }

    async fn marks(&self, workspace: &WorkspaceId, filter: MarkFilter) -> Result<Vec<MarkRow>> {
        on_engine!(self, workspace, |db, w| rows::marks(&db, &w, &filter))
    }

    async fn count_marks(&self, workspace: &WorkspaceId, sessions: Vec<SessionId>) -> Result<Vec<u64>> {
        on_engine!(self, workspace, |db, w| rows::count_marks(&db, &w, &sessions))
    }

    async fn mark(&self, workspace: &WorkspaceId, id: CheckpointId) -> Result<Option<MarkRow>> {
        on_engine!(self, workspace, |db, w| rows::mark(&db, &w, id))
    }

    async fn keyframe(&self, workspace: &WorkspaceId, at: Position) -> Result<Option<Keyframe>> {
        on_engine!(self, workspace, |db, w| rows::keyframe(&db, &w, at))
    }

    async fn keyframes(&self, workspace: &WorkspaceId, timeline: TimelineId) -> Result<Vec<(Seq, bool)>> {
        on_engine!(self, workspace, |db, w| rows::keyframes(&db, &w, timeline))
    }

    async fn search(&self, workspace: &WorkspaceId, query: TextQuery) -> Result<Option<Vec<TextHit>>> {
        if !self.text {
            return if self.db.is_closed() { Err(Error::Closed) } else { Ok(None) };
        }
        on_engine!(self, workspace, |db, w| text::search(&db, &w, &query)).map(Some)
    }

    async fn text_gaps(&self, workspace: &WorkspaceId) -> Result<Vec<(SessionId, TextGap)>> {
        match self.text {
            true => on_engine!(self, workspace, |db, w| text::gaps(&db, &w)),
            false => Ok(Vec::new()),
        }
    }

    async fn rebuild(&self, workspace: &WorkspaceId, row: SessionRow, marks: Vec<MarkRow>) -> Result<()> {
        let text = self.text;
        let w = workspace.clone();
        self.run(move |db| async move { Ok(rows::rebuild(&db, &w, &row, &marks, text).await?) }).await
    }

    async fn usage(&self, workspace: &WorkspaceId) -> Result<Usage> {
        on_engine!(self, workspace, |db, w| check::usage(&db, &w))
    }

    async fn check(&self, depth: Depth) -> Result<Vec<Finding>> {
        let text = self.text;
        self.run(move |db| async move { Ok(check::check(&db, depth, text).await?) }).await
    }

    async fn backup(&self, _: &Path) -> Result<bool> {
        // `pg_dump` does that; through here everything would have to be read.
        if self.db.is_closed() { Err(Error::Closed) } else { Ok(false) }
    }

    async fn compact(&self) -> Result<()> {
        self.run(|db| async move { Ok(check::compact(&db).await?) }).await
    }

    fn tell(&self, to: WeakSender<Change>) {
        drop(self.engine.handle.spawn(changes::listen(Arc::clone(&self.db), to)));
    }

    async fn close(&self) -> Result<()> {
        if !self.db.shut() {
            return Ok(());
        }
        self.groups.stop().await;
        let db = Arc::clone(&self.db);
        let hang_up = async move {
            db.hang_up().await;
            Ok(())
        };
        let ended = self.engine.run(hang_up).await;
        self.engine.stop().await;
        ended
    }
}
