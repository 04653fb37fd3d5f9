//! What a place to store must be able to do.
//!
//! A [`Backend`] knows nothing of what sessions mean: it keeps stored bytes in order, refuses writers
//! that are late, and finds rows again. It has four parts: the **log** (append, read, timelines,
//! leases), **blobs**, **records**, and **derived** rows (session and mark lists, keyframes, text
//! search), which can all be rebuilt from the log.
//!
//! There is one way to write to a session: [`Backend::append`]. It takes everything that must happen
//! together (entries, blobs, derived rows, erasures) as one [`Batch`], so that a SQL store needs one
//! transaction and an object store one conditional PUT.
//!
//! Rules every backend keeps, checked by the conformance suite (feature `conformance`):
//! - an append returns only when a power cut cannot take it back;
//! - it is all or nothing, in order, and refused when the length, the head or the epoch is not the one named;
//! - a batch whose first entry is already there under the same batch id returns the first answer again;
//! - an error that leaves it open whether something was stored is [`Error::Io`](crate::Error::Io), and nothing else is.

use std::path::Path;

use async_trait::async_trait;
use milepost_model::{
    BatchId, CheckpointId, EntryKind, Epoch, Hash, OwnerId, Position, Seq, SessionId, Status, TimelineId, Timestamp,
    WorkspaceId,
};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::WeakSender;

use crate::error::Result;

/// The name of a blob: a keyed hash of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlobId(pub [u8; 32]);

/// An entry as it lies in the store: encoded, perhaps compressed and encrypted, with a checksum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEntry {
    /// The version of the entry format.
    pub version: u8,
    /// Which kind of entry it is.
    pub kind: EntryKind,
    /// When it was added.
    pub time: Timestamp,
    /// A message's role or an event's type, where it may lie in clear.
    pub label: Option<String>,
    /// A message's channel (or a token for it), unless it is the main one.
    pub channel: Option<String>,
    /// A message's text, where it may lie in clear and the backend keeps text.
    pub text: Option<String>,
    /// The payload: see the codec for its form.
    pub body: Vec<u8>,
    /// Blobs this entry needs. The first is the payload's when the body says so.
    pub refs: Vec<BlobId>,
    /// On the first entry of an append: its batch id.
    pub batch: Option<BatchId>,
    /// On the last entry of an append: the chain hash up to and with it.
    pub chain: Option<Hash>,
    /// On a mark, when a signing key is set: the HMAC of its chain hash.
    pub mac: Option<[u8; 32]>,
    /// Checksum over all of the above and the position.
    pub sum: u64,
}

/// Bytes to keep under a keyed hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Its name.
    pub id: BlobId,
    /// Its stored form.
    pub bytes: Vec<u8>,
}

/// The beginning of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// The entry it continues from; none for a session's first timeline.
    pub parent: Option<Position>,
    /// Which head of the session it becomes ([`MAIN_HEAD`], or a name).
    pub head: String,
    /// The timeline that has that head now, and loses it.
    pub replaces: Option<TimelineId>,
}

/// The head that a session goes on from.
pub const MAIN_HEAD: &str = "main";

/// Changes to what is already stored, made in the same step as an append that records why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewrite {
    /// Entries whose stored form is replaced: erased, redacted, or encoded anew.
    pub entries: Vec<(Position, StoredEntry)>,
    /// Entries from here to the end of their timeline are removed (only where no branch needs them).
    pub truncate: Vec<Position>,
    /// Mark rows to write again (into the trash, out of it).
    pub marks: Vec<MarkRow>,
    /// Mark rows to remove.
    pub drop_marks: Vec<Position>,
    /// Keyframes to remove.
    pub drop_keyframes: Vec<Position>,
    /// Texts to drop from the index and index again.
    pub texts: Vec<Position>,
}

/// One atomic step of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The session.
    pub session: SessionId,
    /// The timeline that grows.
    pub timeline: TimelineId,
    /// How many entries it has (for a new one: where it begins).
    pub expected: u64,
    /// The writer's lease; none for appends that need no lease.
    pub epoch: Option<Epoch>,
    /// Renew the lease by so many milliseconds.
    pub renew_ms: i64,
    /// Who holds the session from the start (epoch 1) when it begins with this batch.
    pub holder: Option<(OwnerId, String)>,
    /// Set when the timeline begins with this batch. With no parent and no `replaces`, or with the
    /// parent in another session, the session begins too.
    pub open: Option<Opening>,
    /// The new entries. May be empty only when `rewrite` is not.
    pub entries: Vec<StoredEntry>,
    /// Blobs the entries need.
    pub blobs: Vec<Blob>,
    /// The session's row after this batch; none when the batch is not on the main head.
    pub row: Option<SessionRow>,
    /// Rows of the marks among the entries.
    pub marks: Vec<MarkRow>,
    /// Whole states to keep.
    pub keyframes: Vec<Keyframe>,
    /// Changes to what is already there.
    pub rewrite: Rewrite,
}

/// The answer to an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// How many entries the timeline has now (or had, when the batch was there already).
    pub length: u64,
    /// The batch was there already: nothing was added.
    pub repeated: bool,
}

/// A session in a list. Texts are in clear only in a workspace without encryption; otherwise the
/// filter columns hold tokens and the rest is in `detail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    /// The session.
    pub id: SessionId,
    /// How it is doing.
    pub status: Status,
    /// When it began.
    pub created: Timestamp,
    /// When it was last written.
    pub active: Timestamp,
    /// Messages up to the head.
    pub messages: u64,
    /// Checkpoints up to the head.
    pub checkpoints: u64,
    /// When it was put into the trash.
    pub trashed: Option<Timestamp>,
    /// Kept only for its branches.
    pub hidden: bool,
    /// What it is called.
    pub title: Option<String>,
    /// The beginning of its last message.
    pub preview: Option<String>,
    /// Project, agent, feature, task, stage: what sessions are found by.
    pub keys: [Option<String>; 5],
    /// Words to find it by.
    pub tags: Vec<String>,
    /// The whole row, encoded.
    pub detail: Vec<u8>,
}

/// Names of [`SessionRow::keys`].
pub const SESSION_KEYS: [&str; 5] = ["project", "agent", "feature", "task", "stage"];

/// A mark in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkRow {
    /// Where it is.
    pub at: Position,
    /// Its name.
    pub id: CheckpointId,
    /// When it was made.
    pub time: Timestamp,
    /// Why.
    pub trigger: String,
    /// Its label, or a token for it.
    pub label: Option<String>,
    /// Nothing was under way.
    pub clean: bool,
    /// A session can go on from it.
    pub resumable: bool,
    /// Retention leaves it alone.
    pub kept: bool,
    /// Messages up to it.
    pub messages: u64,
    /// When it was put into the trash.
    pub trashed: Option<Timestamp>,
}

/// A whole state kept beside the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyframe {
    /// The entry after which the state is this.
    pub at: Position,
    /// The state, encoded.
    pub body: Vec<u8>,
    /// The deltas before it were given up: it is truth, not derived.
    pub pinned: bool,
}

/// A timeline as the log knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// Its name.
    pub id: TimelineId,
    /// The session it belongs to.
    pub session: SessionId,
    /// The entry it continues from.
    pub parent: Option<Position>,
    /// Which head it is; none when it was replaced.
    pub head: Option<String>,
    /// Where it ends: the number its next entry will have.
    pub length: u64,
    /// The chain hash of its last entry; none when it has no entry of its own.
    pub chain: Option<Hash>,
}

impl Timeline {
    /// The number of its first own entry.
    pub fn begins(&self) -> u64 {
        self.parent.map_or(0, |at| at.seq.0 + 1)
    }
}

/// A session as the log knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionHead {
    /// Its row.
    pub row: SessionRow,
    /// The timeline it goes on from.
    pub timeline: Timeline,
    /// What its row says the head's length was: a log that is shorter has lost entries.
    pub noted_length: u64,
    /// The lease in force, or the last one.
    pub lease: Lease,
}

/// The right to write to a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Goes up by one whenever someone takes the session.
    pub epoch: Epoch,
    /// Who holds it; none when it was released.
    pub owner: Option<OwnerId>,
    /// Who holds it, in words.
    pub holder: String,
    /// Until when, by the store's clock.
    pub until: Timestamp,
}

impl Lease {
    /// The lease of a session whose lease was lost: nobody holds it, and its epoch is above any that was given out.
    pub fn lost(now: Timestamp) -> Self {
        Self { epoch: Epoch(now.0.max(0) as u64), owner: None, holder: String::new(), until: now }
    }
}

/// What to do with a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseAction {
    /// Take it when it is free, released, expired, or one's own.
    Take {
        /// Who asks.
        owner: OwnerId,
        /// Who asks, in words.
        holder: String,
        /// For how long.
        ttl_ms: i64,
    },
    /// Take it whoever holds it.
    TakeOver {
        /// Who asks.
        owner: OwnerId,
        /// Who asks, in words.
        holder: String,
        /// For how long.
        ttl_ms: i64,
    },
    /// Hold it for longer.
    Renew {
        /// The lease.
        epoch: Epoch,
        /// For how long from now.
        ttl_ms: i64,
    },
    /// Give it back.
    Release {
        /// The lease.
        epoch: Epoch,
    },
}

/// A set of entry kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Every kind.
    pub const ALL: Kinds = Kinds(0b1_1110);
    /// One kind.
    pub const fn only(kind: EntryKind) -> Self {
        Kinds(1 << kind as u8)
    }
    /// This kind too.
    #[must_use]
    pub const fn and(self, kind: EntryKind) -> Self {
        Kinds(self.0 | 1 << kind as u8)
    }
    /// Whether it has this kind.
    pub const fn has(self, kind: EntryKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

/// Which way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Oldest first.
    Forward,
    /// Newest first.
    Backward,
}

/// A range of entries of one timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The timeline.
    pub timeline: TimelineId,
    /// The first entry.
    pub from: Seq,
    /// The entry after the last.
    pub to: Seq,
    /// Which kinds.
    pub kinds: Kinds,
    /// Only messages of this channel (as stored: none inside is the main one).
    pub channel: Option<Option<String>>,
    /// Which way.
    pub order: Order,
    /// At most so many.
    pub limit: usize,
}

impl Range {
    /// All entries of a range, oldest first.
    pub fn all(timeline: TimelineId, from: Seq, to: Seq) -> Self {
        Self { timeline, from, to, kinds: Kinds::ALL, channel: None, order: Order::Forward, limit: usize::MAX }
    }

    /// One entry.
    pub fn one(at: Position) -> Self {
        Self::all(at.timeline, at.seq, at.seq.next())
    }
}

/// Names a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RecordKey {
    /// What it is: `key`, `wake-up`, `token`, …
    pub kind: String,
    /// Which one.
    pub key: String,
}

/// A small versioned value beside the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub key: RecordKey,
    /// Changes with every write and never comes back.
    pub version: u64,
    /// When something is to be done about it.
    pub due: Option<Timestamp>,
    /// The value, encoded.
    pub value: Vec<u8>,
}

/// Which records to list: by key from `after` on, or by due time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordScan {
    /// Of this kind.
    pub kind: String,
    /// By key, or by due time.
    pub order: RecordOrder,
    /// At most so many.
    pub limit: usize,
}

/// In which order records are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordOrder {
    /// By key, those after this one.
    Key {
        /// The key before the first.
        after: Option<String>,
    },
    /// By due time, those due until then; oldest first, ties by key.
    Due {
        /// The last due time.
        until: Timestamp,
        /// The due time and key before the first.
        after: Option<(Timestamp, String)>,
    },
}

/// Which sessions to list. Texts are compared as stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// With one of these statuses; any when empty.
    pub status: Vec<Status>,
    /// With these values of [`SessionRow::keys`].
    pub keys: [Option<String>; 5],
    /// With this tag.
    pub tag: Option<String>,
    /// Last written at or after.
    pub active_from: Option<Timestamp>,
    /// Last written before.
    pub active_to: Option<Timestamp>,
    /// Only what is in the trash, or only what is not.
    pub trashed: bool,
    /// Also those kept only for their branches.
    pub hidden: bool,
    /// In which order.
    pub sort: SessionSort,
    /// Rows after this one.
    pub after: Option<SessionCursor>,
    /// At most so many.
    pub limit: usize,
}

/// In which order sessions are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionSort {
    /// Last written first.
    #[default]
    Active,
    /// Newest first.
    Created,
}

/// Where a page of sessions ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionCursor {
    /// The sort time of the last row.
    pub time: Timestamp,
    /// The last row.
    pub id: SessionId,
}

/// Which marks of one timeline to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkFilter {
    /// The timeline.
    pub timeline: TimelineId,
    /// The first entry.
    pub from: Seq,
    /// The entry after the last.
    pub to: Seq,
    /// With one of these triggers; any when empty.
    pub triggers: Vec<String>,
    /// With this label, as stored.
    pub label: Option<String>,
    /// Clean or not.
    pub clean: Option<bool>,
    /// Resumable or not.
    pub resumable: Option<bool>,
    /// Made at or after.
    pub time_from: Option<Timestamp>,
    /// Made before.
    pub time_to: Option<Timestamp>,
    /// In the trash or not; both when none.
    pub trashed: Option<bool>,
    /// Which way.
    pub order: Order,
    /// At most so many.
    pub limit: usize,
}

impl MarkFilter {
    /// Every mark of a range of one timeline, newest first, without the trash.
    pub fn of(timeline: TimelineId, from: Seq, to: Seq) -> Self {
        Self {
            timeline,
            from,
            to,
            triggers: Vec::new(),
            label: None,
            clean: None,
            resumable: None,
            time_from: None,
            time_to: None,
            trashed: Some(false),
            order: Order::Backward,
            limit: usize::MAX,
        }
    }

    /// Whether a row passes.
    pub fn accepts(&self, row: &MarkRow) -> bool {
        row.at.timeline == self.timeline
            && row.at.seq >= self.from
            && row.at.seq < self.to
            && (self.triggers.is_empty() || self.triggers.contains(&row.trigger))
            && (self.label.is_none() || row.label == self.label)
            && self.clean.is_none_or(|clean| row.clean == clean)
            && self.resumable.is_none_or(|resumable| row.resumable == resumable)
            && self.time_from.is_none_or(|from| row.time >= from)
            && self.time_to.is_none_or(|to| row.time < to)
            && self.trashed.is_none_or(|trashed| row.trashed.is_some() == trashed)
    }
}

/// A search for words in the texts of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextQuery {
    /// All of these must be there: words, phrases (with spaces), prefixes.
    pub terms: Vec<Term>,
    /// Only in these sessions; in all when empty.
    pub sessions: Vec<SessionId>,
    /// Only messages of this role.
    pub role: Option<String>,
    /// Only messages at or after.
    pub from: Option<Timestamp>,
    /// Only messages before.
    pub to: Option<Timestamp>,
    /// At most so many.
    pub limit: usize,
}

/// What a text index lacks of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextGap {
    /// Entries that are damaged: what they say is not in it.
    Damaged,
    /// Texts that are longer than it takes: their beginning is in it.
    Cut,
}

/// Something to search for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// A word, or several for a phrase.
    pub text: String,
    /// Words that begin like this are found too.
    pub prefix: bool,
}

/// A message that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextHit {
    /// Where it is.
    pub at: Position,
    /// Its session.
    pub session: SessionId,
    /// Greater is better.
    pub score: f64,
}

/// Bytes of one session or of the whole, by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KindUsage {
    /// Entries of this kind.
    pub entries: u64,
    /// Their stored bytes.
    pub bytes: u64,
}

/// What a session uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionUsage {
    /// The session.
    pub session: SessionId,
    /// Messages, state, marks, events, in the order of [`EntryKind::ALL`].
    pub kinds: [KindUsage; 4],
    /// Its keyframes.
    pub keyframes: KindUsage,
}

/// What a workspace uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// By session.
    pub sessions: Vec<SessionUsage>,
    /// Blobs.
    pub blobs: KindUsage,
    /// Records.
    pub records: KindUsage,
    /// The text index of the whole store, where there is one.
    pub text_index_bytes: u64,
    /// Bytes of the store on disk, of all workspaces; 0 where that has no meaning.
    pub total_bytes: u64,
    /// Bytes on disk that are free for use again.
    pub free_bytes: u64,
}

/// A blob in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobInfo {
    /// Its name.
    pub id: BlobId,
    /// Stored bytes.
    pub bytes: u64,
    /// When it was last put.
    pub touched: Timestamp,
}

/// How thorough a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Everything that can be told from what is stored.
    Usual,
    /// What is derived from texts is derived once more and compared, too.
    Deep,
}

/// Something that a check found below the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// It is in data that a rebuild makes anew.
    pub derived: bool,
    /// What it is and what to do, in words.
    pub what: String,
}

/// What a backend can do beyond the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// The word for it in messages (`sqlite`).
    pub name: &'static str,
    /// It keeps message text in clear and indexes it.
    pub text: bool,
    /// How long what was replaced or removed stays, for whoever is just reading it; then [`Backend::compact`] deletes it. 0
    /// where it is gone at once (ms).
    pub lingers_ms: i64,
}

/// Something that may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// This session was written to.
    Session(WorkspaceId, SessionId),
    /// Anything may have changed: time to look.
    Unknown,
}

/// A place to store.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What it can do.
    fn features(&self) -> Features;

    // The log.

    /// Adds a batch. See the module for the rules.
    async fn append(&self, workspace: &WorkspaceId, batch: Batch) -> Result<Appended>;
    /// Reads entries of one timeline, without those of its parents.
    async fn read(&self, workspace: &WorkspaceId, range: Range) -> Result<Vec<(Seq, StoredEntry)>>;
    /// One session.
    async fn session(&self, workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionHead>>;
    /// One timeline.
    async fn timeline(&self, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Timeline>>;
    /// The timelines of a session, oldest first.
    async fn timelines(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>>;
    /// Timelines of any session that continue from one of this session's: (child, position).
    async fn children(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>>;
    /// Every session that has a timeline, whatever the derived list says.
    async fn session_ids(&self, workspace: &WorkspaceId) -> Result<Vec<SessionId>>;
    /// Takes, renews or releases a lease, by the store's clock.
    async fn lease(&self, workspace: &WorkspaceId, session: SessionId, action: LeaseAction) -> Result<Lease>;
    /// Removes a session with all its timelines and derived rows. Refused when a branch begins in it.
    async fn remove(&self, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()>;

    // Blobs.

    /// Keeps blobs that are not there yet, and pins those that are against collection.
    async fn put_blobs(&self, workspace: &WorkspaceId, blobs: Vec<Blob>) -> Result<()>;
    /// The bytes of blobs, in the order asked; none where there is no such blob.
    async fn get_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>) -> Result<Vec<Option<Vec<u8>>>>;
    /// Blobs in the order of their names, those after `after`.
    async fn list_blobs(&self, workspace: &WorkspaceId, after: Option<BlobId>, limit: usize) -> Result<Vec<BlobInfo>>;
    /// Names of all blobs that entries of this workspace need.
    async fn blob_refs(&self, workspace: &WorkspaceId) -> Result<Vec<BlobId>>;
    /// Removes those of these blobs that were last put before then and that no entry needs. Returns how many.
    async fn drop_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>, touched_before: Timestamp) -> Result<u64>;

    // Records.

    /// One record.
    async fn record(&self, workspace: &WorkspaceId, key: RecordKey) -> Result<Option<Record>>;
    /// Writes a record if its version is still `expected` (none: if there is none).
    async fn put_record(&self, workspace: &WorkspaceId, record: Record, expected: Option<u64>) -> Result<()>;
    /// Removes a record if its version is still `expected`.
    async fn delete_record(&self, workspace: &WorkspaceId, key: RecordKey, expected: u64) -> Result<()>;
    /// Lists records.
    async fn scan_records(&self, workspace: &WorkspaceId, scan: RecordScan) -> Result<Vec<Record>>;

    /// The kinds of records there are.
    async fn record_kinds(&self, workspace: &WorkspaceId) -> Result<Vec<String>>;

    // Derived rows.

    /// The workspaces in this store.
    async fn workspaces(&self) -> Result<Vec<WorkspaceId>>;
    /// Lists sessions.
    async fn sessions(&self, workspace: &WorkspaceId, filter: SessionFilter) -> Result<Vec<SessionRow>>;
    /// Lists marks of one timeline.
    async fn marks(&self, workspace: &WorkspaceId, filter: MarkFilter) -> Result<Vec<MarkRow>>;
    /// How many marks each of these sessions has up to its head, also on the timelines that it continues, without those in
    /// the trash. In the order asked; 0 where there is no such session.
    async fn count_marks(&self, workspace: &WorkspaceId, sessions: Vec<SessionId>) -> Result<Vec<u64>> {
        let mut counts = Vec::with_capacity(sessions.len());
        for id in sessions {
            let (mut count, mut next) = (0, self.session(workspace, id).await?.map(|head| head.timeline));
            let mut past = Seq(u64::MAX);
            while let Some(line) = next {
                count += self.marks(workspace, MarkFilter::of(line.id, Seq(0), past)).await?.len() as u64;
                next = match line.parent {
                    Some(at) => {
                        past = past.min(at.seq.next());
                        self.timeline(workspace, at.timeline).await?
                    }
                    None => None,
                };
            }
            counts.push(count);
        }
        Ok(counts)
    }
    /// Finds a mark by name.
    async fn mark(&self, workspace: &WorkspaceId, id: CheckpointId) -> Result<Option<MarkRow>>;
    /// The newest keyframe of this timeline at or before an entry.
    async fn keyframe(&self, workspace: &WorkspaceId, at: Position) -> Result<Option<Keyframe>>;
    /// Positions of a timeline's keyframes, and whether each is pinned.
    async fn keyframes(&self, workspace: &WorkspaceId, timeline: TimelineId) -> Result<Vec<(Seq, bool)>>;
    /// Searches message texts; none when there is no text index.
    async fn search(&self, workspace: &WorkspaceId, query: TextQuery) -> Result<Option<Vec<TextHit>>>;
    /// What the text index lacks, so that a search may have missed it; nothing where that is not known.
    async fn text_gaps(&self, _workspace: &WorkspaceId) -> Result<Vec<(SessionId, TextGap)>> {
        Ok(Vec::new())
    }
    /// Puts a session's derived rows in place of those that are there, or makes them when they are lost (then
    /// with [`Lease::lost`]). Its texts are indexed anew.
    async fn rebuild(&self, workspace: &WorkspaceId, row: SessionRow, marks: Vec<MarkRow>) -> Result<()>;
    /// What uses the space.
    async fn usage(&self, workspace: &WorkspaceId) -> Result<Usage>;

    // The whole.

    /// Looks for damage below the log: torn pages, lost rows, an index that does not fit. In words, each with what to do.
    async fn check(&self, depth: Depth) -> Result<Vec<Finding>>;
    /// Writes a copy of the whole store to a file while writers work, when the backend has a better way than reading everything.
    async fn backup(&self, to: &Path) -> Result<bool>;
    /// Gives free space back and wipes what was removed from the medium's free places.
    async fn compact(&self) -> Result<()>;
    /// Makes durable what was acknowledged before it was: see [`Durability::Turn`](crate::Durability::Turn). Most
    /// backends have nothing to do.
    async fn flush(&self) -> Result<()> {
        Ok(())
    }
    /// From now on hints at what any process writes, for as long as someone listens and as far as the backend hears
    /// of it. A hint may be lost: whoever follows looks once in a while in any case. Most backends hear of nothing.
    fn tell(&self, to: WeakSender<Change>) {
        drop(to);
    }
    /// Finishes what is under way. Later calls give [`Error::Closed`](crate::Error::Closed).
    async fn close(&self) -> Result<()>;
}

impl KindUsage {
    /// Counts one more entry.
    pub fn add(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes as u64;
    }
}

impl SessionFilter {
    /// The time by which rows are sorted.
    pub fn sort_time(&self, row: &SessionRow) -> Timestamp {
        match self.sort {
            SessionSort::Active => row.active,
            SessionSort::Created => row.created,
        }
    }

    /// Whether a row passes.
    pub fn accepts(&self, row: &SessionRow) -> bool {
        let keys_fit = self.keys.iter().zip(&row.keys).all(|(wanted, has)| wanted.is_none() || wanted == has);
        keys_fit
            && (self.status.is_empty() || self.status.contains(&row.status))
            && self.tag.as_ref().is_none_or(|tag| row.tags.contains(tag))
            && self.active_from.is_none_or(|from| row.active >= from)
            && self.active_to.is_none_or(|to| row.active < to)
            && row.trashed.is_some() == self.trashed
            && (self.hidden || !row.hidden)
            && self.after.is_none_or(|after| (self.sort_time(row), row.id) < (after.time, after.id))
    }
}
