//! The store: sessions on top of a backend.
//!
//! [`Store`] reads, lists and keeps house; [`SessionWriter`] holds a session's lease and appends to
//! it. Every rule about what sessions, timelines and marks mean lives here, none in a backend.

mod append;
mod changes;
mod copy;
mod draft;
mod fold;
mod heads;
mod holder;
mod import;
mod keep;
mod literal;
mod marks;
mod pages;
mod read;
mod records;
mod redact;
mod redactor;
mod reindex;
mod retain;
mod stats;
mod verify;
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use milepost_model::{Position, Seq, Session, SessionId, Source, Status, TimelineId, Timestamp, WorkspaceId};

use crate::backend::{Backend, SESSION_KEYS, SessionCursor, SessionFilter, SessionRow, SessionSort};
use crate::codec::{Codec, SessionCipher, token};
use crate::error::{Error, KeyError, Result};
use crate::keys::{KeyOptions, Keys, MasterKey};
use crate::limits::Limits;

pub use append::{Append, Claim, NewMark, NewSession, Receipt};
pub use changes::Changes;
use changes::Followers;
pub use copy::{CopyEntry, CopyLine};
pub use fold::is_own_event;
pub use heads::SignedHead;
pub use import::Importer;
pub use keep::{Collected, DeleteMode, Deleted};
pub use marks::{Loaded, Mark, MarkQuery, Skipped};
pub use read::{MessageQuery, StoredMessage};
pub use records::StoredRecord;
pub use redact::{Obstacle, PassedOver, Redacted};
pub use redactor::{Redactor, Texts};
pub use reindex::Reindexed;
pub use retain::{Pruned, Purged};
pub use stats::{Compression, Stats};
pub use verify::{Problem, Verified};
pub use writer::SessionWriter;

/// How a store is opened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Whose sessions.
    pub workspace: WorkspaceId,
    /// Whether a workspace that has nothing in the store yet is begun, encrypted or not as the keys say. Else opening it
    /// says that it is not there (true).
    pub may_begin: bool,
    /// Keys that encrypt and sign.
    pub keys: KeyOptions,
    /// Sizes and numbers that are not passed.
    pub limits: Limits,
    /// How long a lease lasts without an append or a renewal (30 s).
    pub lease_ttl_ms: i64,
    /// How long an unneeded blob is kept, for whoever is about to need it (1 h).
    pub blob_grace_ms: i64,
    /// Time, randomness and ids; the machine's when none.
    pub source: Option<Source>,
    /// Whether a new SQLite or PostgreSQL store gets a text index.
    pub text_index: bool,
    /// An object store (`s3://BUCKET/PREFIX`, …) for the large payloads and file chunks of a PostgreSQL store; none keeps
    /// them in the database.
    pub blobs: Option<String>,
    /// Open a store whose write-ahead log is damaged, without what lies after the damage.
    pub accept_damage: bool,
    /// When an append is durable.
    pub durability: Durability,
}

/// When an append is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it returns: a power cut cannot take it back.
    #[default]
    Full,
    /// At the end of its turn: with the next checkpoint, with [`Store::flush`], when the session is released or the store is closed, after
    /// 5 seconds or 256 KiB. A crash takes back at most the current turn, never a part of what came before. For chats in a
    /// bucket, where every PUT costs. SQLite and PostgreSQL take it for `Full`: there a turn costs nothing.
    Turn,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            workspace: WorkspaceId::default(),
            may_begin: true,
            keys: KeyOptions::default(),
            limits: Limits::default(),
            lease_ttl_ms: 30_000,
            blob_grace_ms: 3_600_000,
            source: None,
            text_index: true,
            blobs: None,
            accept_damage: false,
            durability: Durability::Full,
        }
    }
}

/// So many timelines' parents are remembered.
const REMEMBERED_PARENTS: usize = 1 << 16;

/// An open workspace of a store. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Arc<dyn Backend>,
    workspace: WorkspaceId,
    keys: Keys,
    limits: Arc<Limits>,
    lease_ttl_ms: i64,
    blob_grace_ms: i64,
    source: Source,
    /// Parents of timelines never change.
    parents: Mutex<HashMap<TimelineId, (SessionId, Option<Position>)>>,
    followers: Followers,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("backend", &self.inner.backend.features().name)
            .field("workspace", &self.inner.workspace)
            .finish_non_exhaustive()
    }
}

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct SessionQuery {
    /// With one of these statuses; any when empty.
    pub status: Vec<Status>,
    /// Of this project.
    pub project: Option<String>,
    /// Of this kind of agent.
    pub agent: Option<String>,
    /// Of this feature.
    pub feature: Option<String>,
    /// Of this task.
    pub task: Option<String>,
    /// In this state of their task.
    pub stage: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Last written at or after.
    pub active_from: Option<Timestamp>,
    /// Last written before.
    pub active_to: Option<Timestamp>,
    /// What is in the trash instead of what is not.
    pub trashed: bool,
    /// Newest first instead of last written first.
    pub by_creation: bool,
    /// Rows after this one.
    pub after: Option<SessionCursor>,
    /// At most so many; the limit `max_page` when none.
    pub limit: Option<usize>,
}

/// A page of sessions.
#[derive(Debug, Clone)]
pub struct SessionPage {
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Where the next page begins; none when this was the last.
    pub next: Option<SessionCursor>,
}

impl Store {
    /// Opens the store at a URL: `sqlite:PATH`; `postgres://USER@HOST/DATABASE` (feature `postgres`); a bucket,
    /// `file:///DIR` or `s3://BUCKET/PREFIX` (feature `object`); or `memory:` for one that ends with the process.
    pub async fn open(url: &str, options: Options) -> Result<Self> {
        let source = match &options.source {
            Some(source) => source.clone(),
            None => crate::system::system_source()?,
        };
        let backend = open_backend(url, &options, &source).await?;
        Self::with_backend(backend, Options { source: Some(source), ..options }).await
    }

    /// Rescues what is whole in a damaged SQLite store into a new one beside it, rebuilds what is derived, and
    /// opens it. The damaged file is not changed.
    #[cfg(feature = "sqlite")]
    pub async fn salvage(damaged: &Path, into: &Path, options: Options) -> Result<(Self, crate::sqlite::Salvaged)> {
        let salvaged = crate::sqlite::salvage(damaged, into)?;
        let store = Self::open(&format!("sqlite:{}", into.display()), options).await?;
        store.reindex().await?;
        Ok((store, salvaged))
    }

    /// Opens a workspace on a backend of one's own.
    pub async fn with_backend(backend: Arc<dyn Backend>, options: Options) -> Result<Self> {
        let source = match options.source {
            Some(source) => source,
            None => crate::system::system_source()?,
        };
        if !options.may_begin && !Keys::is_begun(&*backend, &options.workspace).await? {
            return Err(Error::not_found("workspace", &options.workspace));
        }
        let keys = Keys::open(&*backend, &options.workspace, &options.keys, &source).await?;
        Ok(Self {
            inner: Arc::new(Inner {
                backend,
                workspace: options.workspace,
                keys,
                limits: Arc::new(options.limits),
                lease_ttl_ms: options.lease_ttl_ms,
                blob_grace_ms: options.blob_grace_ms,
                source,
                parents: Mutex::default(),
                followers: Followers::default(),
            }),
        })
    }

    /// How long something may lie about before somebody names it (ms).
    pub fn blob_grace_ms(&self) -> i64 {
        self.inner.blob_grace_ms
    }

    /// The workspace.
    pub fn workspace(&self) -> &WorkspaceId {
        &self.inner.workspace
    }

    /// The backend below.
    pub fn backend(&self) -> &dyn Backend {
        &*self.inner.backend
    }

    /// Where time, randomness and ids come from.
    pub fn source(&self) -> &Source {
        &self.inner.source
    }

    /// How long a lease lasts without an append or a renewal, in milliseconds.
    pub fn lease_ttl_ms(&self) -> i64 {
        self.inner.lease_ttl_ms
    }

    /// What is refused for its size.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Whether what users wrote is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.inner.keys.is_encrypted()
    }

    /// One session.
    pub async fn session(&self, id: SessionId) -> Result<Session> {
        let head = self.head(id).await?;
        self.decode_session(&head.row).await
    }

    /// A session and its last entry, of one moment: what it counts is what there is up to that entry.
    pub async fn session_and_end(&self, id: SessionId) -> Result<(Session, Position)> {
        let head = self.head(id).await?;
        let (timeline, end) = read::whole_end(&head)?;
        let last = Position { timeline, seq: Seq(end.0.saturating_sub(1)) };
        Ok((self.decode_session(&head.row).await?, last))
    }

    /// Sessions, a page at a time.
    pub async fn sessions(&self, query: &SessionQuery) -> Result<SessionPage> {
        let max = self.inner.limits.max_page;
        let limit = query.limit.unwrap_or(max).min(max);
        let keys = [&query.project, &query.agent, &query.feature, &query.task, &query.stage];
        let mut filter = SessionFilter {
            status: query.status.clone(),
            tag: query.tag.as_deref().map(|tag| self.token("tag", tag)),
            active_from: query.active_from,
            active_to: query.active_to,
            trashed: query.trashed,
            sort: if query.by_creation { SessionSort::Created } else { SessionSort::Active },
            after: query.after,
            limit: limit.saturating_add(1),
            ..SessionFilter::default()
        };
        for ((slot, key), name) in filter.keys.iter_mut().zip(keys).zip(SESSION_KEYS) {
            *slot = key.as_deref().map(|key| self.token(name, key));
        }
        let mut rows = self.inner.backend.sessions(self.workspace(), filter.clone()).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().map(|row| SessionCursor { time: filter.sort_time(row), id: row.id });
        let mut sessions = Vec::with_capacity(rows.len());
        for row in &rows {
            sessions.push(self.decode_session(row).await?);
        }
        Ok(SessionPage { sessions, next: last.filter(|_| more) })
    }

    /// Every session of the workspace, also those in the trash and those kept for their branches.
    pub(crate) async fn all_sessions(&self) -> Result<Vec<SessionRow>> {
        let mut all = Vec::new();
        for trashed in [false, true] {
            let mut filter = SessionFilter {
                trashed,
                hidden: true,
                sort: SessionSort::Created,
                limit: self.inner.limits.max_page,
                ..SessionFilter::default()
            };
            loop {
                let page = self.inner.backend.sessions(self.workspace(), filter.clone()).await?;
                let full = page.len() == filter.limit;
                filter.after = page.last().map(|row| SessionCursor { time: row.created, id: row.id });
                all.extend(page);
                if !full {
                    break;
                }
            }
        }
        Ok(all)
    }

    /// Writes a copy of the whole store into a new file while writers work.
    pub async fn backup(&self, to: &Path) -> Result<()> {
        match self.inner.backend.backup(to).await? {
            true => Ok(()),
            false => Err(Error::Unsupported {
                store: self.inner.backend.features().name,
                what: "make a backup by itself",
                instead: "migrate it into a new store",
            }),
        }
    }

    /// Wraps the workspace's keys with another master key. Open the store with the new one from now on.
    /// The store is compacted: no copy of the data key wrapped by the old one is left in its free places.
    pub async fn rotate_master_key(&self, new: &MasterKey) -> Result<()> {
        self.inner.keys.rotate_master(&*self.inner.backend, new).await?;
        self.inner.backend.compact().await
    }

    /// Gives the workspace a new data key and wraps every session's key with it. Returns how many.
    pub async fn rotate_data_key(&self, master: &MasterKey) -> Result<u64> {
        let count = self.inner.keys.rotate_data(&*self.inner.backend, master).await?;
        self.inner.backend.compact().await?;
        Ok(count)
    }

    /// Destroys a session's key: nothing it wrote can be read again, here or in any copy of the
    /// store that does not hold the key. Branches that begin in it lose their beginning. The store is
    /// compacted: what was removed stays in no free place of it.
    pub async fn shred(&self, session: SessionId) -> Result<()> {
        if !self.is_encrypted() {
            return Err(KeyError::NotEncrypted { workspace: self.workspace().to_string() }.into());
        }
        self.inner.keys.shred(&*self.inner.backend, session).await?;
        self.inner.backend.compact().await
    }

    /// Makes durable whatever was acknowledged before it was: see [`Durability::Turn`].
    pub async fn flush(&self) -> Result<()> {
        self.inner.backend.flush().await
    }

    /// Finishes what is under way. The store cannot be used afterwards.
    pub async fn close(&self) -> Result<()> {
        self.inner.followers.close();
        self.inner.backend.close().await
    }

    fn token(&self, column: &str, text: &str) -> String {
        if self.is_encrypted() { token(self.inner.keys.commit(), column, text) } else { text.to_owned() }
    }

    fn codec_with(&self, session: SessionId, cipher: Option<Arc<SessionCipher>>) -> Codec {
        Codec {
            workspace: self.inner.workspace.clone(),
            session,
            commit_key: Arc::clone(self.inner.keys.commit()),
            text: self.inner.backend.features().text,
            cipher,
            limits: Arc::clone(&self.inner.limits),
            source: self.inner.source.clone(),
        }
    }

    /// The codec of one session.
    async fn codec(&self, session: SessionId) -> Result<Codec> {
        let cipher = self.inner.keys.session(&*self.inner.backend, session).await?;
        Ok(self.codec_with(session, cipher))
    }

    async fn head(&self, id: SessionId) -> Result<crate::backend::SessionHead> {
        let head = self.inner.backend.session(self.workspace(), id).await?;
        let mut head = head.ok_or_else(|| Error::not_found("session", id))?;
        head.lease = self.open_lease(id, head.lease);
        // A store far away need not be asked for what it has just told.
        self.remember_parent(head.timeline.id, (head.timeline.session, head.timeline.parent));
        Ok(head)
    }

    async fn decode_session(&self, row: &SessionRow) -> Result<Session> {
        let codec = match self.codec(row.id).await {
            Ok(codec) => codec,
            // What a shredded session was called is gone; that it was there is not.
            Err(Error::Key(KeyError::Shredded { .. })) => return Ok(fold::bare(row)),
            Err(error) => return Err(error),
        };
        self.read_row(&codec, row).await
    }

    /// What a session's row says; where it is damaged, what the log says that it should.
    async fn read_row(&self, codec: &Codec, row: &SessionRow) -> Result<Session> {
        match fold::session_from_row(codec, row) {
            Err(error) if error.is_damage() => self.derive_session(row.id).await,
            other => other,
        }
    }

    /// The session a timeline belongs to and the entry it continues from.
    async fn parent(&self, timeline: TimelineId) -> Result<(SessionId, Option<Position>)> {
        if let Some(known) = self.inner.parents.lock().unwrap_or_else(PoisonError::into_inner).get(&timeline) {
            return Ok(*known);
        }
        let found = self.inner.backend.timeline(self.workspace(), timeline).await?;
        let found = found.ok_or_else(|| Error::not_found("timeline", timeline))?;
        let known = (found.session, found.parent);
        self.remember_parent(timeline, known);
        Ok(known)
    }

    fn remember_parent(&self, timeline: TimelineId, known: (SessionId, Option<Position>)) {
        let mut parents = self.inner.parents.lock().unwrap_or_else(PoisonError::into_inner);
        if parents.len() >= REMEMBERED_PARENTS {
            parents.clear();
        }
        parents.insert(timeline, known);
    }
}

/// Opens what is behind a [`Store`] without a workspace in it: to migrate, or to look at. Takes what concerns the place
/// from the options, not the workspace or its keys.
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    expect(unused_variables, reason = "memory has no options")
)]
pub async fn open_backend(url: &str, options: &Options, source: &Source) -> Result<Arc<dyn Backend>> {
    let is_postgres = url.starts_with("postgres://") || url.starts_with("postgresql://");
    if options.blobs.is_some() && !is_postgres {
        return Err(Error::invalid(
            "blobs",
            "only a store in PostgreSQL can have its payloads elsewhere: leave it out",
        ));
    }
    match url.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(Error::invalid(url, "it names no file: use sqlite:PATH"));
            }
            let sqlite = crate::sqlite::SqliteOptions {
                text_index: options.text_index && options.keys.master.is_none(),
                queue: options.limits.max_queue,
                accept_damage: options.accept_damage,
            };
            Ok(Arc::new(crate::sqlite::SqliteBackend::open(Path::new(path), &sqlite, source.clone())?))
        }
        #[cfg(feature = "object")]
        Some((scheme, _)) if crate::object::SCHEMES.contains(&scheme) => {
            let object = crate::object::ObjectOptions {
                durability: options.durability,
                ..crate::object::ObjectOptions::default()
            };
            Ok(Arc::new(crate::object::ObjectBackend::open(url, object, source.clone())?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => {
            let postgres = crate::postgres::PostgresOptions {
                text_index: options.text_index && options.keys.master.is_none(),
                queue: options.limits.max_queue,
                blobs: options.blobs.clone(),
                ..Default::default()
            };
            Ok(Arc::new(crate::postgres::PostgresBackend::open(url, &postgres, source.clone()).await?))
        }
        #[cfg(not(feature = "postgres"))]
        Some(("postgres" | "postgresql", _)) => {
            Err(Error::invalid("a PostgreSQL URL", "this program was built without the feature `postgres`"))
        }
        Some(("memory", _)) => Ok(Arc::new(crate::memory::MemoryBackend::new(source.clone()))),
        _ => Err(Error::invalid(
            url,
            "it is not a store: use sqlite:PATH, postgres://…, s3://BUCKET/PREFIX, file:///DIR or memory:",
        )),
    }
}
