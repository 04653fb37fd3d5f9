//! A store in one SQLite file: WAL, `synchronous=FULL`, one writing thread that lets waiting appends
//! share a commit, a few reading threads, FTS5 over message text. The tables are made to be read with
//! `sqlite3` (see `schema.rs`).

mod log;
mod readers;
mod rows;
mod salvage;
mod schema;
mod text;
mod wal;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use milepost_model::{
    CheckpointId, EntryKind, Epoch, Position, Seq, SessionId, Source, TimelineId, Timestamp, WorkspaceId,
};

use crate::backend::*;
use crate::error::{Error, Result};
use crate::keys::KEY_KIND;
use readers::Readers;
pub use salvage::{Salvaged, salvage};
use schema::{Mode, fail};
use writer::Writer;

/// How to open a store file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// Whether a new store gets a text index, and keeps short texts readable in its tables. An
    /// existing store stays as it was made.
    pub text_index: bool,
    /// Appends waiting for the writer; a further one waits for a place.
    pub queue: usize,
    /// Open a store whose write-ahead log is damaged, without what lies after the damage.
    pub accept_damage: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { text_index: true, queue: 1024, accept_damage: false }
    }
}

/// A store in one SQLite file.
pub struct SqliteBackend {
    path: PathBuf,
    source: Source,
    writer: Writer,
    readers: Readers,
    text: bool,
    /// A check or a search found the text index damaged: the next rebuild makes it anew.
    text_damaged: AtomicBool,
}

impl SqliteBackend {
    /// Opens the store in this file, or makes it.
    pub fn open(path: &Path, options: &SqliteOptions, source: Source) -> Result<Self> {
        if path.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(Error::invalid(
                format!("{:?}", path.display().to_string()),
                "it has a NUL character: remove it",
            ));
        }
        check_wal(path, options.accept_damage)?;
        let connection = schema::connect(path, Mode::Write)?;
        schema::prepare(&connection, path, options.text_index)?;
        wal::settle(&connection, path)?;
        let text = schema::has_text_index(&connection)?;
        let writer = Writer::start(connection, path.to_owned(), text, options.queue)?;
        Ok(Self {
            path: path.to_owned(),
            source,
            writer,
            readers: Readers::start(path)?,
            text,
            text_damaged: AtomicBool::new(false),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn write<T, F>(&self, workspace: &WorkspaceId, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&rusqlite::Connection, &WorkspaceId, Timestamp) -> Result<T> + Send + 'static,
    {
        let (workspace, source) = (workspace.clone(), self.source.clone());
        self.writer.write(0, move |db| work(db, &workspace, source.now())).await
    }

    fn note_damage(&self, is_damaged: bool) {
        self.text_damaged.fetch_or(is_damaged, Ordering::Relaxed);
    }

    async fn look<T, F>(&self, workspace: &WorkspaceId, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Connection, &WorkspaceId) -> Result<T> + Send + 'static,
    {
        let workspace = workspace.clone();
        self.readers.read(move |db| work(db, &workspace)).await
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn features(&self) -> Features {
        Features { name: "sqlite", text: self.text, lingers_ms: 0 }
    }

    async fn append(&self, workspace: &WorkspaceId, batch: Batch) -> Result<Appended> {
        let messages = batch.entries.iter().filter(|entry| entry.kind == EntryKind::Message).count();
        let (workspace, source, text) = (workspace.clone(), self.source.clone(), self.text);
        self.writer.write(messages, move |db| log::append(db, &workspace, &batch, source.now(), text)).await
    }

    async fn read(&self, workspace: &WorkspaceId, range: Range) -> Result<Vec<(Seq, StoredEntry)>> {
        self.look(workspace, move |db, w| log::read(db, w, &range)).await
    }

    async fn session(&self, workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionHead>> {
        self.look(workspace, move |db, w| log::session(db, w, id)).await
    }

    async fn timeline(&self, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Timeline>> {
        self.look(workspace, move |db, w| log::timeline(db, w, id)).await
    }

    async fn timelines(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        self.look(workspace, move |db, w| log::timelines(db, w, session)).await
    }

    async fn children(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
        self.look(workspace, move |db, w| log::children(db, w, session)).await
    }

    async fn session_ids(&self, workspace: &WorkspaceId) -> Result<Vec<SessionId>> {
        self.look(workspace, log::session_ids).await
    }

    async fn lease(&self, workspace: &WorkspaceId, session: SessionId, action: LeaseAction) -> Result<Lease> {
        self.write(workspace, move |db, w, now| log::lease(db, w, session, &action, now)).await
    }

    async fn remove(&self, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()> {
        self.write(workspace, move |db, w, _| log::remove(db, w, session, epoch)).await
    }

    async fn put_blobs(&self, workspace: &WorkspaceId, blobs: Vec<Blob>) -> Result<()> {
        self.write(workspace, move |db, w, now| rows::put_blobs(db, w, &blobs, now)).await
    }

    async fn get_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>) -> Result<Vec<Option<Vec<u8>>>> {
        self.look(workspace, move |db, w| rows::get_blobs(db, w, &ids)).await
    }

    async fn list_blobs(&self, workspace: &WorkspaceId, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobInfo>> {
        self.look(workspace, move |db, w| rows::list_blobs(db, w, after, limit)).await
    }

    async fn blob_refs(&self, workspace: &WorkspaceId) -> Result<Vec<BlobId>> {
        self.look(workspace, rows::blob_refs).await
    }

    async fn drop_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>, touched_before: Timestamp) -> Result<u64> {
        self.write(workspace, move |db, w, _| rows::drop_blobs(db, w, &ids, touched_before)).await
    }

    async fn record(&self, workspace: &WorkspaceId, key: RecordKey) -> Result<Option<Record>> {
        self.look(workspace, move |db, w| rows::record(db, w, &key)).await
    }

    async fn put_record(&self, workspace: &WorkspaceId, record: Record, expected: Option<u64>) -> Result<()> {
        self.write(workspace, move |db, w, _| rows::put_record(db, w, &record, expected)).await
    }

    async fn delete_record(&self, workspace: &WorkspaceId, key: RecordKey, expected: u64) -> Result<()> {
        let is_key = key.kind == KEY_KIND;
        self.write(workspace, move |db, w, _| rows::delete_record(db, w, &key, expected)).await?;
        if is_key {
            // A destroyed key must not be found in the log either. While someone reads what is in it, that must wait.
            self.writer.alone(writer::empty_wal).await?;
        }
        Ok(())
    }

    async fn scan_records(&self, workspace: &WorkspaceId, scan: RecordScan) -> Result<Vec<Record>> {
        self.look(workspace, move |db, w| rows::scan_records(db, w, &scan)).await
    }

    async fn record_kinds(&self, workspace: &WorkspaceId) -> Result<Vec<String>> {
        self.look(workspace, rows::record_kinds).await
    }

    async fn workspaces(&self) -> Result<Vec<WorkspaceId>> {
        self.readers.read(rows::workspaces).await
    }

    async fn sessions(&self, workspace: &WorkspaceId, filter: SessionFilter) -> Result<Vec<SessionRow>> {
        self.look(workspace, move |db, w| rows::sessions(db, w, &filter)).await
    }

    async fn marks(&self, workspace: &WorkspaceId, filter: MarkFilter) -> Result<Vec<MarkRow>> {
        self.look(workspace, move |db, w| rows::marks(db, w, &filter)).await
    }

    async fn count_marks(&self, workspace: &WorkspaceId, sessions: Vec<SessionId>) -> Result<Vec<u64>> {
        self.look(workspace, move |db, w| rows::count_marks(db, w, &sessions)).await
    }

    async fn mark(&self, workspace: &WorkspaceId, id: CheckpointId) -> Result<Option<MarkRow>> {
        self.look(workspace, move |db, w| rows::mark(db, w, id)).await
    }

    async fn keyframe(&self, workspace: &WorkspaceId, at: Position) -> Result<Option<Keyframe>> {
        self.look(workspace, move |db, w| rows::keyframe(db, w, at)).await
    }

    async fn keyframes(&self, workspace: &WorkspaceId, timeline: TimelineId) -> Result<Vec<(Seq, bool)>> {
        self.look(workspace, move |db, w| rows::keyframes(db, w, timeline)).await
    }

    async fn search(&self, workspace: &WorkspaceId, query: TextQuery) -> Result<Option<Vec<TextHit>>> {
        const CATCH_UP: usize = 1024;
        if !self.text {
            return Ok(None);
        }
        while self.readers.read(text::is_behind).await? {
            match self.writer.write(0, |db| text::catch_up(db, CATCH_UP)).await {
                // What waits and belongs to nothing is for verification to tell.
                Ok(0) => break,
                // What cannot be written is searched as far as it is indexed.
                Err(Error::ReadOnly { .. }) => break,
                done => done?,
            };
        }
        let found = self.look(workspace, move |db, w| text::search(db, w, &query)).await;
        self.note_damage(found.as_ref().is_err_and(Error::is_damage));
        found.map(Some)
    }

    async fn text_gaps(&self, workspace: &WorkspaceId) -> Result<Vec<(SessionId, TextGap)>> {
        self.look(workspace, text::gaps).await
    }

    async fn rebuild(&self, workspace: &WorkspaceId, row: SessionRow, marks: Vec<MarkRow>) -> Result<()> {
        if self.text && self.text_damaged.load(Ordering::Relaxed) {
            self.writer.write(0, text::start_anew).await?;
            self.text_damaged.store(false, Ordering::Relaxed);
        }
        self.write(workspace, move |db, w, now| rows::rebuild(db, w, &row, &marks, now)).await
    }

    async fn usage(&self, workspace: &WorkspaceId) -> Result<Usage> {
        self.look(workspace, rows::usage).await
    }

    async fn check(&self, depth: Depth) -> Result<Vec<Finding>> {
        let pages = self.readers.aside(rows::check_file)?;
        let rows = self.writer.alone(move |db| rows::check_rows(db, depth)).await;
        let mut found = pages.await.map_err(|_| Error::Closed)??;
        found.extend(rows?);
        self.note_damage(found.iter().any(|finding| finding.derived));
        Ok(found)
    }

    async fn backup(&self, to: &Path) -> Result<bool> {
        if to.exists() {
            return Err(Error::invalid(to.display().to_string(), "it exists already: name a new file"));
        }
        let Some(name) = to.to_str().map(str::to_owned) else {
            return Err(Error::invalid(to.display().to_string(), "its name is not in UTF-8: name another file"));
        };
        let target = to.to_owned();
        self.readers
            .read_outside(move |db| {
                let failed = fail("writing the backup");
                // SQLite writes into an empty file as into none. One that cannot be made is its to tell.
                let _ = crate::private::create_if_missing(&target);
                // It writes to another file only, which a connection that only reads does not tell apart.
                db.pragma_update(None, "query_only", false).map_err(&failed)?;
                let written = db.execute("VACUUM INTO ?1", [name]).map_err(&failed);
                db.pragma_update(None, "query_only", true).map_err(&failed)?;
                written?;
                sync_file(&target)
            })
            .await?;
        Ok(true)
    }

    async fn compact(&self) -> Result<()> {
        let text = self.text;
        self.writer
            .alone(move |db| {
                let failed = fail("compacting the store");
                if text {
                    db.execute("INSERT INTO texts (texts) VALUES ('optimize')", []).map_err(&failed)?;
                }
                db.execute_batch("VACUUM").map_err(&failed)?;
                writer::truncate_wal(db)
            })
            .await
    }

    async fn close(&self) -> Result<()> {
        self.readers.close();
        self.writer.close().await
    }
}

/// Refuses a store whose write-ahead log lost acknowledged entries, unless that was accepted; then
/// the log is kept beside it.
fn check_wal(path: &Path, accept_damage: bool) -> Result<()> {
    let failed = |error: std::io::Error| Error::Io {
        what: format!("reading the log of {}", path.display()),
        why: error.to_string(),
    };
    let Some(damage) = wal::inspect(path).map_err(failed)? else { return Ok(()) };
    let log = wal::wal_path(path);
    if accept_damage {
        let mut kept = log.clone().into_os_string();
        kept.push(".damaged");
        std::fs::copy(&log, &kept).map_err(failed)?;
        return sync_file(Path::new(&kept));
    }
    Err(Error::Corrupt {
        what: log.display().to_string(),
        why: format!(
            "frame {} is not what was written, and {} acknowledged transactions lie after it; \
             restore a backup, or open with accept_damage to go on without them (the log is then kept as {}.damaged)",
            damage.frame,
            damage.transactions,
            log.display()
        ),
    })
}

/// A copy is a backup only once it is on the disk, and so is its name.
fn sync_file(path: &Path) -> Result<()> {
    let synced = std::fs::File::open(path).and_then(|file| file.sync_all()).and_then(|()| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(parent)?.sync_all()
    });
    synced.map_err(|error| Error::Io { what: format!("syncing {}", path.display()), why: error.to_string() })
}
