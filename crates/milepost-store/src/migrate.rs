//! Moving a workspace from one store to another, whatever they are made of.
//!
//! Everything is copied as it is stored, entry by entry: hashes, checkpoints, branches, erasures, blobs and wrapped keys
//! stay what they are, and no key is needed. The source is only read. What the target has already is not copied again,
//! so that a migration that was interrupted is finished by starting it once more. At the end both are read and compared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use milepost_model::{Position, Seq, SessionId, Source, TimelineId, Timestamp, WorkspaceId};

use crate::backend::*;
use crate::codec;
use crate::error::{Error, Result};
use crate::keys::KEY_KIND;

/// So many entries are copied by one append at most,
const ENTRIES: usize = 512;
/// or so many bytes with their blobs.
const BYTES: u64 = 4 << 20;
/// So many blobs are compared at a time: one can have 64 MiB.
const BLOBS: usize = 8;
/// So many records are read at a time.
const RECORDS: usize = 500;
/// How often to copy what a source got while it was copied.
const ROUNDS: usize = 3;
/// How often an append whose end is unknown is looked after.
const ATTEMPTS: usize = 5;

/// How far a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// Entries done in this phase.
    pub entries: u64,
    /// Entries there are.
    pub entries_total: u64,
    /// Stored bytes of entries and blobs that went through in this phase.
    pub bytes: u64,
    /// How long this phase has taken.
    pub elapsed_ms: i64,
}

impl Progress {
    /// Stored bytes a second.
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes.saturating_mul(1000) / self.elapsed_ms.max(1).unsigned_abs()
    }

    /// How long the rest of this phase may take; none while nothing is done yet.
    pub fn left_ms(&self) -> Option<i64> {
        let left = self.entries_total.saturating_sub(self.entries);
        let done = i64::try_from(self.entries).ok().filter(|done| *done > 0)?;
        Some(self.elapsed_ms.saturating_mul(i64::try_from(left).ok()?) / done)
    }
}

/// What a migration is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Copying what the target does not have.
    Copying,
    /// Reading both and comparing.
    Comparing,
}

/// What a migration did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Sessions that both have.
    pub sessions: u64,
    /// Entries that both have.
    pub entries: u64,
    /// Records that both have.
    pub records: u64,
    /// Entries that were copied this time.
    pub copied: u64,
    /// Stored bytes that were copied this time, blobs included.
    pub copied_bytes: u64,
}

/// Copies a workspace and compares the copy with it. The workspace must not be in use on the target, and is best not
/// written to on the source meanwhile.
pub async fn migrate(
    from: &dyn Backend,
    to: &dyn Backend,
    workspace: &WorkspaceId,
    source: &Source,
    on_progress: &mut (dyn FnMut(&Progress) + Send),
) -> Result<Migrated> {
    let mut migration = Migration { from, to, workspace, source, on_progress, done: Migrated::default() };
    for _ in 0..ROUNDS {
        // The keys go first: without them, whoever opens the target meanwhile would make new ones.
        migration.copy_records(&[KEY_KIND.to_owned()]).await?;
        let lines = migration.lines().await?;
        migration.copy_lines(&lines).await?;
        let kinds = migration.from.record_kinds(workspace).await?;
        migration.copy_records(&kinds).await?;
        if migration.compare(&lines).await? {
            return Ok(migration.done);
        }
    }
    Err(Error::invalid(
        format!("workspace {workspace}"),
        "it is written to faster than it is copied: stop its writers, and start the migration again",
    ))
}

struct Migration<'a> {
    from: &'a dyn Backend,
    to: &'a dyn Backend,
    workspace: &'a WorkspaceId,
    source: &'a Source,
    on_progress: &'a mut (dyn FnMut(&Progress) + Send),
    done: Migrated,
}

/// The timelines of all sessions, each session's in the order they were made.
type Lines = BTreeMap<SessionId, Vec<Timeline>>;

/// Counts what goes through.
struct Meter {
    phase: Phase,
    began: Timestamp,
    total: u64,
    entries: u64,
    bytes: u64,
}

impl Meter {
    fn new(phase: Phase, lines: &Lines, source: &Source) -> Self {
        let total = lines.values().flatten().map(|line| line.length - line.begins()).sum();
        Self { phase, began: source.now(), total, entries: 0, bytes: 0 }
    }

    fn progress(&self, source: &Source) -> Progress {
        Progress {
            phase: self.phase,
            entries: self.entries,
            entries_total: self.total,
            bytes: self.bytes,
            elapsed_ms: source.now().since_ms(self.began),
        }
    }
}

impl Migration<'_> {
    async fn lines(&self) -> Result<Lines> {
        let mut lines = Lines::new();
        for id in self.from.session_ids(self.workspace).await? {
            lines.insert(id, self.from.timelines(self.workspace, id).await?);
        }
        Ok(lines)
    }

    /// Copies timelines, those first that others begin in.
    async fn copy_lines(&mut self, lines: &Lines) -> Result<()> {
        let mut meter = Meter::new(Phase::Copying, lines, self.source);
        let known: BTreeSet<TimelineId> = lines.values().flatten().map(|line| line.id).collect();
        let mut copied: BTreeSet<TimelineId> = BTreeSet::new();
        let mut sessions: VecDeque<(SessionId, &[Timeline], Option<TimelineId>)> =
            lines.iter().map(|(id, lines)| (*id, lines.as_slice(), None)).collect();
        let mut waited = 0;
        while let Some((session, lines, mut head)) = sessions.pop_front() {
            let mut rest = lines;
            while let [line, others @ ..] = rest {
                let is_ready = |at: Position| copied.contains(&at.timeline) || !known.contains(&at.timeline);
                if !line.parent.is_none_or(is_ready) {
                    break;
                }
                self.copy_line(line, head, &mut meter).await?;
                copied.insert(line.id);
                head = Some(line.id);
                rest = others;
            }
            waited = if rest.len() < lines.len() { 0 } else { waited + 1 };
            if !rest.is_empty() {
                sessions.push_back((session, rest, head));
            }
            if waited > sessions.len() {
                return Err(Error::corrupt(format!("session {session}"), "its timelines begin in each other"));
            }
        }
        Ok(())
    }

    async fn copy_line(&mut self, line: &Timeline, replaces: Option<TimelineId>, meter: &mut Meter) -> Result<()> {
        let there = self.to.timeline(self.workspace, line.id).await?;
        let mut opening = there.is_none().then(|| Opening {
            parent: line.parent,
            head: line.head.clone().unwrap_or_else(|| MAIN_HEAD.to_owned()),
            replaces,
        });
        let mut next = there.map_or(line.begins(), |there| there.length);
        if next > line.length {
            return Err(self.other(format!("timeline {}", line.id), "has more entries there than here"));
        }
        meter.entries += next - line.begins();
        let keyframes = self.from.keyframes(self.workspace, line.id).await?;
        let row = self.head(self.from, line.session).await?.row;
        while next < line.length {
            let batch = self.batch(line, next, opening.clone(), &row, &keyframes).await?;
            let (entries, bytes) = (batch.entries.len() as u64, stored_bytes(&batch));
            self.append(batch).await?;
            opening = None;
            next += entries;
            meter.entries += entries;
            meter.bytes += bytes;
            self.done.copied += entries;
            self.done.copied_bytes += bytes;
            (self.on_progress)(&meter.progress(self.source));
        }
        Ok(())
    }

    /// Some entries of a timeline with all that belongs to them.
    async fn batch(
        &self,
        line: &Timeline,
        from: u64,
        open: Option<Opening>,
        row: &SessionRow,
        keyframes: &[(Seq, bool)],
    ) -> Result<Batch> {
        let range = Range { limit: ENTRIES, ..Range::all(line.id, Seq(from), Seq(line.length)) };
        let mut entries = Vec::new();
        let mut blobs: BTreeMap<BlobId, Vec<u8>> = BTreeMap::new();
        let mut bytes = 0;
        for (seq, entry) in self.from.read(self.workspace, range).await? {
            let at = Position { timeline: line.id, seq };
            codec::check(at, &entry)?;
            if seq.0 != from + entries.len() as u64 {
                return Err(Error::corrupt(
                    format!("timeline {}", line.id),
                    format!("entries before {at} are missing"),
                ));
            }
            let wanted: Vec<BlobId> = entry.refs.iter().filter(|id| !blobs.contains_key(id)).copied().collect();
            for (id, found) in wanted.iter().zip(self.from.get_blobs(self.workspace, wanted.clone()).await?) {
                // One that is missing is missing there, too: verification says so of both.
                if let Some(found) = found {
                    bytes += found.len() as u64;
                    blobs.insert(*id, found);
                }
            }
            bytes += entry_bytes(&entry);
            entries.push(entry);
            if bytes >= BYTES {
                break;
            }
        }
        let to = from + entries.len() as u64;
        if entries.is_empty() {
            return Err(Error::corrupt(format!("timeline {}", line.id), format!("entry {from} is missing")));
        }
        let filter = MarkFilter {
            trashed: None,
            order: Order::Forward,
            limit: usize::MAX,
            ..MarkFilter::of(line.id, Seq(from), Seq(to))
        };
        let mut frames = Vec::new();
        for (seq, _) in keyframes.iter().filter(|(seq, _)| (from..to).contains(&seq.0)) {
            let at = Position { timeline: line.id, seq: *seq };
            frames.extend(self.from.keyframe(self.workspace, at).await?.filter(|frame| frame.at == at));
        }
        Ok(Batch {
            session: line.session,
            timeline: line.id,
            expected: from,
            epoch: None,
            renew_ms: 0,
            holder: None,
            open,
            entries,
            blobs: blobs.into_iter().map(|(id, bytes)| Blob { id, bytes }).collect(),
            row: Some(row.clone()),
            marks: self.from.marks(self.workspace, filter).await?,
            keyframes: frames,
            rewrite: Rewrite::default(),
        })
    }

    /// Appends; an end that is unknown is settled by reading back.
    async fn append(&self, batch: Batch) -> Result<()> {
        let end = batch.expected + batch.entries.len() as u64;
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.to.append(self.workspace, batch.clone()).await {
                Ok(_) => return Ok(()),
                Err(error @ Error::Io { .. }) => {
                    let there = self.to.timeline(self.workspace, batch.timeline).await?;
                    match there.map(|there| there.length) {
                        Some(length) if length >= end => return Ok(()),
                        _ if attempt < ATTEMPTS => {}
                        _ => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn head(&self, backend: &dyn Backend, session: SessionId) -> Result<SessionHead> {
        let found = backend.session(self.workspace, session).await?;
        found.ok_or_else(|| Error::not_found("session", session))
    }

    async fn copy_records(&mut self, kinds: &[String]) -> Result<()> {
        for kind in kinds {
            let mut after = None;
            loop {
                let page = scan(self.from, self.workspace, kind, after).await?;
                after = page.last().map(|record| record.key.key.clone());
                for record in page {
                    self.copy_record(record).await?;
                }
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn copy_record(&mut self, record: Record) -> Result<()> {
        let there = self.to.record(self.workspace, record.key.clone()).await?;
        match there {
            Some(there) if there == record => Ok(()),
            Some(_) if record.key.kind == KEY_KIND => Err(self.other(
                format!("key {}", record.key.key),
                "it is another there: the workspace was used on the target; name an empty target, or another workspace",
            )),
            Some(there) if there.version > record.version => {
                Err(self.other(format!("record {}", record.key.key), "was changed on the target"))
            }
            there => self.to.put_record(self.workspace, record, there.map(|there| there.version)).await,
        }
    }

    /// Reads both sides. False when the source has more than was copied.
    async fn compare(&mut self, lines: &Lines) -> Result<bool> {
        let mut meter = Meter::new(Phase::Comparing, lines, self.source);
        self.done = Migrated { copied: self.done.copied, copied_bytes: self.done.copied_bytes, ..Migrated::default() };
        if self.lines().await? != *lines {
            return Ok(false);
        }
        let there: BTreeSet<SessionId> = self.to.session_ids(self.workspace).await?.into_iter().collect();
        if let Some(more) = there.iter().find(|id| !lines.contains_key(id)) {
            return Err(self.other(format!("session {more}"), "is there and not here"));
        }
        for (session, lines) in lines {
            if self.to.timelines(self.workspace, *session).await? != *lines {
                return Err(self.other(format!("session {session}"), "has other timelines there"));
            }
            let (here, there) = (self.head(self.from, *session).await?, self.head(self.to, *session).await?);
            if here.row != there.row {
                // A row changes with every append: is it the source that went on?
                return Ok(false);
            }
            for line in lines {
                self.compare_line(line, &mut meter).await?;
            }
            self.done.sessions += 1;
        }
        self.done.records = self.compare_records().await?;
        Ok(true)
    }

    async fn compare_line(&mut self, line: &Timeline, meter: &mut Meter) -> Result<()> {
        let mut next = line.begins();
        while next < line.length {
            let range = Range { limit: ENTRIES, ..Range::all(line.id, Seq(next), Seq(line.length)) };
            let here = self.from.read(self.workspace, range.clone()).await?;
            let there = self.to.read(self.workspace, range).await?;
            if here != there || here.is_empty() {
                return Err(self.other(format!("timeline {}", line.id), format!("differs after entry {next}")));
            }
            let mut ids: Vec<BlobId> = here.iter().flat_map(|(_, entry)| entry.refs.iter().copied()).collect();
            ids.sort_unstable();
            ids.dedup();
            for some in ids.chunks(BLOBS) {
                let here = self.from.get_blobs(self.workspace, some.to_vec()).await?;
                meter.bytes += here.iter().flatten().map(|blob| blob.len() as u64).sum::<u64>();
                let there = self.to.get_blobs(self.workspace, some.to_vec()).await?;
                if let Some((id, _)) = some.iter().zip(here.iter().zip(&there)).find(|(_, (here, there))| here != there)
                {
                    return Err(self.other(format!("blob {}", milepost_model::Hash(id.0)), "differs"));
                }
            }
            next += here.len() as u64;
            meter.entries += here.len() as u64;
            meter.bytes += here.iter().map(|(_, entry)| entry_bytes(entry)).sum::<u64>();
            self.done.entries += here.len() as u64;
            (self.on_progress)(&meter.progress(self.source));
        }
        let all = MarkFilter {
            trashed: None,
            limit: usize::MAX,
            ..MarkFilter::of(line.id, Seq(line.begins()), Seq(line.length))
        };
        if self.from.marks(self.workspace, all.clone()).await? != self.to.marks(self.workspace, all).await? {
            return Err(self.other(format!("timeline {}", line.id), "has other checkpoints there"));
        }
        let pinned = |frames: Vec<(Seq, bool)>| frames.into_iter().filter(|(_, pinned)| *pinned).collect::<Vec<_>>();
        let here = pinned(self.from.keyframes(self.workspace, line.id).await?);
        if here != pinned(self.to.keyframes(self.workspace, line.id).await?) {
            return Err(self.other(format!("timeline {}", line.id), "has other states that were kept there"));
        }
        for (seq, _) in here {
            let at = Position { timeline: line.id, seq };
            if self.from.keyframe(self.workspace, at).await? != self.to.keyframe(self.workspace, at).await? {
                return Err(self.other(format!("the state kept at {at}"), "differs"));
            }
        }
        Ok(())
    }

    async fn compare_records(&self) -> Result<u64> {
        let mut count = 0;
        for kind in self.from.record_kinds(self.workspace).await? {
            let mut after: Option<String> = None;
            loop {
                let here = scan(self.from, self.workspace, &kind, after.clone()).await?;
                let there = scan(self.to, self.workspace, &kind, after).await?;
                if here != there {
                    return Err(self.other(format!("records of kind {kind}"), "differ"));
                }
                count += here.len() as u64;
                after = here.last().map(|record| record.key.key.clone());
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(count)
    }

    /// The target holds something else.
    fn other(&self, what: String, why: impl Into<String>) -> Error {
        let (from, to) = (self.from.features().name, self.to.features().name);
        Error::invalid(
            format!("the {to} target: {what}"),
            format!("{}; the {from} source was not changed: remove the target, or name an empty one", why.into()),
        )
    }
}

async fn scan(
    backend: &dyn Backend,
    workspace: &WorkspaceId,
    kind: &str,
    after: Option<String>,
) -> Result<Vec<Record>> {
    let scan = RecordScan { kind: kind.to_owned(), order: RecordOrder::Key { after }, limit: RECORDS };
    backend.scan_records(workspace, scan).await
}

fn entry_bytes(entry: &StoredEntry) -> u64 {
    (entry.body.len() + entry.text.as_ref().map_or(0, String::len)) as u64
}

fn stored_bytes(batch: &Batch) -> u64 {
    let blobs = batch.blobs.iter().map(|blob| blob.bytes.len() as u64).sum::<u64>();
    batch.entries.iter().map(entry_bytes).sum::<u64>() + blobs
}
