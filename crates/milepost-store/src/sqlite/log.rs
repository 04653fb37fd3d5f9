//! The log in tables: append, read, timelines, leases.

use milepost_model::{EntryKind, Epoch, Hash, Position, Seq, SessionId, TimelineId, Timestamp, WorkspaceId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{self, insert_sql, read_session_row, session_columns};
use super::schema::fail;
use crate::backend::*;
use crate::codec;
use crate::error::{Conflict, Error, Result};
use crate::memory::next_lease;

/// The key of an entry: the timeline's number above, the entry's below.
pub(super) fn entry_key(timeline: i64, seq: Seq) -> Result<i64> {
    if seq > Seq::MAX {
        return Err(Error::TooLarge {
            what: "a timeline".into(),
            size: seq.0,
            max: Seq::MAX.0,
            limit: "Seq::MAX (entries)",
        });
    }
    Ok(timeline << 32 | seq.0 as i64)
}

/// The keys of a range of entries: from the first to before the last.
pub(super) fn key_range(timeline: i64, from: Seq, to: Seq) -> (i64, i64) {
    let clamp = |seq: Seq| seq.0.min(u64::from(u32::MAX)) as i64;
    (timeline << 32 | clamp(from), timeline << 32 | clamp(to))
}

pub(super) fn seq_of(key: i64) -> Seq {
    Seq((key & 0xffff_ffff) as u64)
}

/// A timeline's row.
pub(super) struct TimelineRow {
    pub no: i64,
    pub id: TimelineId,
    session: SessionId,
    parent: Option<Position>,
    head: Option<String>,
}

/// The statement that reads timelines that fit a condition.
macro_rules! timelines_where {
    ($condition:literal) => {
        concat!(
            "SELECT t.no, t.id, t.session, p.id, t.parent_seq, t.head
             FROM timelines t LEFT JOIN timelines p ON p.no = t.parent WHERE ",
            $condition
        )
    };
}

pub(super) fn parse<T: std::str::FromStr>(text: &str, column: usize) -> rusqlite::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn read_timeline(row: &Row<'_>) -> rusqlite::Result<TimelineRow> {
    let parent: Option<String> = row.get(3)?;
    let parent_seq: Option<i64> = row.get(4)?;
    Ok(TimelineRow {
        no: row.get(0)?,
        id: parse(&row.get::<_, String>(1)?, 1)?,
        session: parse(&row.get::<_, String>(2)?, 2)?,
        parent: match (parent, parent_seq) {
            (Some(id), Some(seq)) => Some(Position { timeline: parse(&id, 3)?, seq: Seq(seq as u64) }),
            _ => None,
        },
        head: row.get(5)?,
    })
}

impl TimelineRow {
    pub fn find(db: &Connection, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Self>> {
        db.prepare_cached(timelines_where!("t.id = ?1 AND t.workspace = ?2"))
            .and_then(|mut s| s.query_row(params![id.to_string(), workspace.as_str()], read_timeline).optional())
            .map_err(fail("finding a timeline"))
    }

    /// The timelines that a statement on `?1` (workspace) and `?2` (session) finds.
    fn list(db: &Connection, workspace: &WorkspaceId, session: SessionId, sql: &str) -> Result<Vec<Self>> {
        db.prepare_cached(sql)
            .and_then(|mut s| s.query_map(params![workspace.as_str(), session.to_string()], read_timeline)?.collect())
            .map_err(fail("listing timelines"))
    }

    fn begins(&self) -> u64 {
        self.parent.map_or(0, |at| at.seq.0 + 1)
    }

    /// Where the timeline ends and the chain hash there.
    fn end(&self, db: &Connection) -> Result<(u64, Option<Hash>)> {
        let (from, to) = key_range(self.no, Seq(0), Seq(u64::MAX));
        let last: Option<(i64, Option<Vec<u8>>)> = db
            .prepare_cached("SELECT id, chain FROM entries WHERE id >= ?1 AND id < ?2 ORDER BY id DESC LIMIT 1")
            .and_then(|mut s| s.query_row([from, to], |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(fail("reading the end of a timeline"))?;
        Ok(match last {
            Some((key, chain)) => (seq_of(key).0 + 1, chain.and_then(|c| c.try_into().ok()).map(Hash)),
            None => (self.begins(), None),
        })
    }

    fn info(self, db: &Connection) -> Result<Timeline> {
        let (length, chain) = self.end(db)?;
        Ok(Timeline { id: self.id, session: self.session, parent: self.parent, head: self.head, length, chain })
    }
}

/// A session's number and lease.
struct SessionKey {
    no: i64,
    lease: Lease,
}

fn find_session(db: &Connection, workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionKey>> {
    db.prepare_cached("SELECT no, epoch, owner, holder, lease_until FROM sessions WHERE workspace = ?1 AND id = ?2")
        .and_then(|mut s| {
            s.query_row(params![workspace.as_str(), id.to_string()], |row| {
                Ok(SessionKey { no: row.get(0)?, lease: read_lease(row, 1)? })
            })
            .optional()
        })
        .map_err(fail("finding a session"))
}

fn read_lease(row: &Row<'_>, at: usize) -> rusqlite::Result<Lease> {
    let owner: Option<String> = row.get(at + 1)?;
    Ok(Lease {
        epoch: Epoch(row.get::<_, i64>(at)? as u64),
        owner: owner.map(|text| parse(&text, at + 1)).transpose()?,
        holder: row.get(at + 2)?,
        until: Timestamp(row.get(at + 3)?),
    })
}

fn write_lease(db: &Connection, no: i64, lease: &Lease) -> Result<()> {
    db.prepare_cached("UPDATE sessions SET epoch = ?2, owner = ?3, holder = ?4, lease_until = ?5 WHERE no = ?1")
        .and_then(|mut s| {
            let owner = lease.owner.map(|owner| owner.to_string());
            s.execute(params![no, lease.epoch.0 as i64, owner, lease.holder, lease.until.0])
        })
        .map_err(fail("writing a lease"))?;
    Ok(())
}

/// Adds a batch. Runs inside a transaction.
pub(super) fn append(
    db: &Connection,
    workspace: &WorkspaceId,
    batch: &Batch,
    now: Timestamp,
    text_index: bool,
) -> Result<Appended> {
    if let Some((timeline_no, session_no)) = find_end(db, workspace, batch)? {
        return add(db, workspace, batch, (timeline_no, session_no), now, text_index);
    }
    let line = TimelineRow::find(db, workspace, batch.timeline)?;
    let length = line.as_ref().map(|line| line.end(db)).transpose()?.map(|(length, _)| length);
    if length.is_some_and(|length| length > batch.expected)
        && let Some(answer) = repeated(db, line.as_ref(), batch)?
    {
        return Ok(answer);
    }
    let session = find_session(db, workspace, batch.session)?;
    if let (Some(epoch), Some(found)) = (batch.epoch, &session) {
        check_epoch(batch.session, epoch, &found.lease)?;
    }
    let numbers = match (&batch.open, line, session) {
        (Some(open), line, session) => {
            if line.is_some() {
                return Err(Conflict::Exists { what: "timeline", id: batch.timeline.to_string() }.into());
            }
            open_timeline(db, workspace, batch, open, session.map(|s| s.no), now.plus_ms(batch.renew_ms))?
        }
        (None, Some(line), Some(session)) if line.session == batch.session => {
            check_growth(&line, length.unwrap_or_default(), batch)?;
            (line.no, session.no)
        }
        _ => return Err(Error::not_found("timeline", batch.timeline)),
    };
    add(db, workspace, batch, numbers, now, text_index)
}

/// The numbers of a batch's timeline and session, if all is as the batch expects it. What else there is to say is
/// found out one by one.
fn find_end(db: &Connection, workspace: &WorkspaceId, batch: &Batch) -> Result<Option<(i64, i64)>> {
    if batch.open.is_some() {
        return Ok(None);
    }
    db.prepare_cached(
        "SELECT t.no, s.no FROM timelines t JOIN sessions s ON s.workspace = t.workspace AND s.id = t.session
         WHERE t.workspace = ?1 AND t.id = ?2 AND t.session = ?3 AND t.head IS NOT NULL AND s.epoch = coalesce(?4, s.epoch)
           AND ?5 = (SELECT max(id) & 0xffffffff FROM entries WHERE id >= t.no << 32 AND id < (t.no + 1) << 32)",
    )
    .and_then(|mut s| {
        let (timeline, session) = (batch.timeline.to_string(), batch.session.to_string());
        let last = batch.expected as i64 - 1;
        let epoch = batch.epoch.map(|epoch| epoch.0 as i64);
        s.query_row(params![workspace.as_str(), timeline, session, epoch, last], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
    })
    .map_err(fail("finding the end of a timeline"))
}

/// Adds a batch to its timeline.
fn add(
    db: &Connection,
    workspace: &WorkspaceId,
    batch: &Batch,
    (timeline_no, session_no): (i64, i64),
    now: Timestamp,
    text_index: bool,
) -> Result<Appended> {
    let until = now.plus_ms(batch.renew_ms);
    let mut seq = Seq(batch.expected);
    for entry in &batch.entries {
        insert_entry(db, entry_key(timeline_no, seq)?, entry)?;
        seq = seq.next();
    }
    rows::put_blobs(db, workspace, &batch.blobs, now)?;
    for mark in &batch.marks {
        rows::put_mark(db, entry_key(timeline_no, mark.at.seq)?, mark)?;
    }
    rows::put_keyframes(db, workspace, &batch.keyframes)?;
    check_truncation(db, workspace, batch)?;
    rewrite(db, workspace, &batch.rewrite)?;
    if !batch.rewrite.truncate.is_empty() {
        let line = TimelineRow::find(db, workspace, batch.timeline)?;
        seq = Seq(line.map(|line| line.end(db)).transpose()?.map_or(seq.0, |(length, _)| length));
    }
    if let Some(row) = &batch.row {
        let renewed = if batch.epoch.is_some() { until.0 } else { 0 };
        rows::update_session(db, session_no, row, seq.0, renewed)?;
    } else if batch.epoch.is_some() {
        db.prepare_cached("UPDATE sessions SET lease_until = max(lease_until, ?2) WHERE no = ?1")
            .and_then(|mut s| s.execute([session_no, until.0]))
            .map_err(fail("renewing a lease"))?;
    }
    if text_index && batch.entries.iter().any(|entry| entry.kind == EntryKind::Message) {
        db.prepare_cached("INSERT OR IGNORE INTO unindexed (timeline) VALUES (?1)")
            .and_then(|mut s| s.execute([timeline_no]))
            .map_err(fail("noting new texts"))?;
    }
    Ok(Appended { length: seq.0, repeated: false })
}

/// The answer that a batch got when it was first added.
fn repeated(db: &Connection, line: Option<&TimelineRow>, batch: &Batch) -> Result<Option<Appended>> {
    let (Some(line), Some(id)) = (line, batch.entries.first().and_then(|entry| entry.batch)) else {
        return Ok(None);
    };
    let stored: Option<Option<Vec<u8>>> = db
        .prepare_cached("SELECT batch FROM entries WHERE id = ?1")
        .and_then(|mut s| {
            s.query_row([entry_key(line.no, Seq(batch.expected)).unwrap_or(-1)], |row| row.get(0)).optional()
        })
        .map_err(fail("looking for a batch"))?;
    let is_same = stored.flatten().is_some_and(|stored| stored == id.to_bytes());
    Ok(is_same.then(|| Appended { length: batch.expected + batch.entries.len() as u64, repeated: true }))
}

fn check_epoch(session: SessionId, epoch: Epoch, lease: &Lease) -> Result<()> {
    if epoch == lease.epoch {
        return Ok(());
    }
    Err(Error::Fenced { session, epoch, current: lease.epoch, holder: lease.holder.clone() })
}

fn check_growth(line: &TimelineRow, actual: u64, batch: &Batch) -> Result<()> {
    if line.head.is_none() {
        return Err(Conflict::NotHead { timeline: batch.timeline }.into());
    }
    if actual != batch.expected {
        return Err(Conflict::Length { timeline: batch.timeline, expected: batch.expected, actual }.into());
    }
    Ok(())
}

/// Begins a timeline, and its session when that is new. Returns their numbers.
fn open_timeline(
    db: &Connection,
    workspace: &WorkspaceId,
    batch: &Batch,
    open: &Opening,
    session: Option<i64>,
    until: Timestamp,
) -> Result<(i64, i64)> {
    let failed = fail("opening a timeline");
    let parent = match open.parent {
        None => None,
        Some(at) => {
            let missing = || Error::not_found("entry", at);
            let line = TimelineRow::find(db, workspace, at.timeline)?.ok_or_else(missing)?;
            let (length, _) = line.end(db)?;
            if at.seq.0 >= length || at.seq.0 < line.begins() {
                return Err(missing());
            }
            Some((line.no, at.seq.0 as i64))
        }
    };
    let begins = open.parent.map_or(0, |at| at.seq.0 + 1);
    if begins != batch.expected {
        return Err(Conflict::Length { timeline: batch.timeline, expected: batch.expected, actual: begins }.into());
    }
    let session_no = match (session, &batch.row) {
        (Some(no), _) => no,
        (None, Some(row)) => {
            let lease = match &batch.holder {
                Some((owner, holder)) => Lease { epoch: Epoch(1), owner: Some(*owner), holder: holder.clone(), until },
                None => Lease { epoch: Epoch(0), owner: None, holder: String::new(), until: Timestamp(0) },
            };
            rows::insert_session(db, workspace, row, &lease)?
        }
        (None, None) => return Err(Error::not_found("session", batch.session)),
    };
    let holder: Option<String> = db
        .prepare_cached("SELECT id FROM timelines WHERE workspace = ?1 AND session = ?2 AND head = ?3")
        .and_then(|mut s| {
            s.query_row(params![workspace.as_str(), batch.session.to_string(), open.head], |row| row.get(0)).optional()
        })
        .map_err(&failed)?;
    match (holder, open.replaces) {
        (None, None) => {}
        (Some(holder), Some(old)) if holder == old.to_string() => {
            db.prepare_cached("UPDATE timelines SET head = NULL WHERE workspace = ?1 AND id = ?2")
                .and_then(|mut s| s.execute(params![workspace.as_str(), holder]))
                .map_err(&failed)?;
        }
        (Some(_), None) => return Err(Conflict::Exists { what: "session", id: batch.session.to_string() }.into()),
        (_, Some(old)) => return Err(Conflict::NotHead { timeline: old }.into()),
    }
    db.prepare_cached(
        "INSERT INTO timelines (workspace, id, session, parent, parent_seq, head, indexed)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )
    .and_then(|mut s| {
        let (parent, parent_seq) = parent.unzip();
        let (timeline, session) = (batch.timeline.to_string(), batch.session.to_string());
        s.execute(params![workspace.as_str(), timeline, session, parent, parent_seq, open.head, begins as i64])
    })
    .map_err(&failed)?;
    Ok((db.last_insert_rowid(), session_no))
}

fn insert_entry(db: &Connection, key: i64, entry: &StoredEntry) -> Result<()> {
    let refs: Vec<u8> = entry.refs.iter().flat_map(|id| id.0).collect();
    let sql = insert_sql!(
        "INTO entries (id, version, kind, time, label, channel, text, body, refs, batch, chain, mac, sum)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
    );
    let values = params![
        key,
        entry.version,
        entry.kind as u8,
        entry.time.0,
        entry.label,
        entry.channel,
        entry.text,
        entry.body,
        (!refs.is_empty()).then_some(refs),
        entry.batch.map(milepost_model::BatchId::to_bytes),
        entry.chain.map(|hash| hash.0),
        entry.mac,
        entry.sum as i64,
    ];
    rows::insert(db, sql, values).map_err(fail("writing an entry"))
}

/// The columns that [`read_entry`] takes.
macro_rules! entries_sql {
    () => {
        "SELECT id, version, kind, time, label, channel, text, body, refs, batch, chain, mac, sum FROM entries"
    };
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<(i64, StoredEntry)> {
    let odd = |column: usize, why: &str| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Blob, why.to_owned().into())
    };
    let bytes = |column: usize| row.get_ref(column)?.as_blob_or_null().map_err(|_| odd(column, "not bytes"));
    let hash = |column: usize| -> rusqlite::Result<Option<[u8; 32]>> {
        bytes(column)?.map(|b| b.try_into().map_err(|_| odd(column, "a hash has another length"))).transpose()
    };
    let (refs, rest) = bytes(8)?.unwrap_or_default().as_chunks::<32>();
    if !rest.is_empty() {
        return Err(odd(8, "blob names have another length"));
    }
    let batch: Option<[u8; 16]> =
        bytes(9)?.map(|b| b.try_into().map_err(|_| odd(9, "a batch id has another length"))).transpose()?;
    let entry = StoredEntry {
        version: row.get(1)?,
        kind: EntryKind::from_u8(row.get(2)?).ok_or_else(|| odd(2, "an unknown kind of entry"))?,
        time: Timestamp(row.get(3)?),
        label: row.get(4)?,
        channel: row.get(5)?,
        text: row.get(6)?,
        body: row.get(7)?,
        refs: refs.iter().map(|id| BlobId(*id)).collect(),
        batch: batch.map(milepost_model::BatchId::from_bytes),
        chain: hash(10)?.map(Hash),
        mac: hash(11)?,
        sum: row.get::<_, i64>(12)? as u64,
    };
    Ok((row.get(0)?, entry))
}

/// Reads entries of one timeline by number. Rows that are not asked for are looked at too: one whose kind or
/// channel was damaged, or that is missing, must not be passed over in silence.
pub(super) fn read_range(db: &Connection, timeline_no: i64, range: &Range) -> Result<Vec<(Seq, StoredEntry)>> {
    scan(db, timeline_no, range).map(|scanned| scanned.found)
}

/// What a scan found, and from where to where it went.
struct Scanned {
    found: Vec<(Seq, StoredEntry)>,
    ends: Option<(Seq, Seq)>,
}

fn scan(db: &Connection, timeline_no: i64, range: &Range) -> Result<Scanned> {
    let what = format!("reading {} from {} to {}", range.timeline, range.from, range.to);
    let failed = fail(&what);
    let (from, to) = key_range(timeline_no, range.from, range.to);
    let sql = match range.order {
        Order::Forward => concat!(entries_sql!(), " WHERE id >= ?1 AND id < ?2 ORDER BY id"),
        Order::Backward => concat!(entries_sql!(), " WHERE id >= ?1 AND id < ?2 ORDER BY id DESC"),
    };
    let mut statement = db.prepare_cached(sql).map_err(&failed)?;
    let mut rows = statement.query([from, to]).map_err(&failed)?;
    // Room for a page at most: a range without a limit may still be short.
    let mut found = Vec::with_capacity(range.limit.min((to - from).max(0) as usize).min(256));
    let mut last: Option<i64> = None;
    let mut first = None;
    while found.len() < range.limit
        && let Some(row) = rows.next().map_err(&failed)?
    {
        let (key, entry) = read_entry(row).map_err(&failed)?;
        let at = Position { timeline: range.timeline, seq: seq_of(key) };
        if last.is_some_and(|last| (key - last).abs() != 1) {
            return Err(Error::corrupt(
                format!("timeline {}", range.timeline),
                format!("entries beside {at} are missing"),
            ));
        }
        last = Some(key);
        first.get_or_insert(at.seq);
        let is_wanted =
            range.kinds.has(entry.kind) && range.channel.as_ref().is_none_or(|channel| entry.channel == *channel);
        if is_wanted {
            found.push((at.seq, entry));
        } else {
            codec::check(at, &entry)?;
        }
    }
    Ok(Scanned { found, ends: first.zip(last.map(seq_of)) })
}

/// The messages of a part of a timeline that can be read.
pub(super) struct Readable {
    pub found: Vec<(Seq, StoredEntry)>,
    /// Something else there is damaged or missing.
    pub is_damaged: bool,
}

/// Reads up to `limit` messages of one timeline and passes over what is damaged: one bad entry must not hide all others.
pub(super) fn read_past_damage(
    db: &Connection,
    timeline_no: i64,
    timeline: TimelineId,
    (from, to): (Seq, Seq),
    limit: usize,
) -> Result<Readable> {
    let failed = fail("reading messages");
    let (from, to) = key_range(timeline_no, from, to);
    let sql = concat!(entries_sql!(), " WHERE id >= ?1 AND id < ?2 ORDER BY id");
    let mut statement = db.prepare_cached(sql).map_err(&failed)?;
    let mut rows = statement.query([from, to]).map_err(&failed)?;
    let mut readable = Readable { found: Vec::new(), is_damaged: false };
    let mut last: Option<i64> = None;
    while readable.found.len() < limit {
        let row = match rows.next().map_err(&failed) {
            Ok(Some(row)) => row,
            Ok(None) => break,
            // Nothing behind a torn page is reached.
            Err(error) if error.is_damage() => {
                readable.is_damaged = true;
                break;
            }
            Err(error) => return Err(error),
        };
        let read = read_entry(row).map_err(&failed).and_then(|(key, entry)| {
            readable.is_damaged |= last.replace(key).is_some_and(|last| key != last + 1);
            let at = Position { timeline, seq: seq_of(key) };
            codec::check(at, &entry).map(|()| (at.seq, entry))
        });
        match read {
            Ok((seq, entry)) if entry.kind == EntryKind::Message => readable.found.push((seq, entry)),
            Ok(_) => {}
            Err(error) if error.is_damage() => readable.is_damaged = true,
            Err(error) => return Err(error),
        }
    }
    Ok(readable)
}

impl Scanned {
    /// Whether it saw every entry from `low` to before `high`, or as many as it was asked for. An entry whose key was
    /// hit lies where SQLite does not look for it, and can hide those behind it.
    fn is_whole(&self, range: &Range, low: u64, high: u64) -> bool {
        let Some((Seq(first), Seq(last))) = self.ends else { return low >= high || range.limit == 0 };
        let is_full = self.found.len() >= range.limit;
        match range.order {
            Order::Forward => first == low && (is_full || last + 1 == high),
            Order::Backward => first + 1 == high && (is_full || last == low),
        }
    }
}

pub(super) fn read(db: &Connection, workspace: &WorkspaceId, range: &Range) -> Result<Vec<(Seq, StoredEntry)>> {
    let Some(line) = TimelineRow::find(db, workspace, range.timeline)? else { return Ok(Vec::new()) };
    let scanned = scan(db, line.no, range)?;
    let low = range.from.0.max(line.begins());
    if scanned.is_whole(range, low, range.to.0) {
        return Ok(scanned.found);
    }
    // Most ranges end within the timeline; for the others its end must be known.
    if scanned.is_whole(range, low, line.end(db)?.0.min(range.to.0)) {
        return Ok(scanned.found);
    }
    Err(Error::corrupt(
        format!("timeline {}", range.timeline),
        format!("entries between {} and {} are missing", range.from, range.to),
    ))
}

/// What branches of other sessions begin at must stay.
fn check_truncation(db: &Connection, workspace: &WorkspaceId, batch: &Batch) -> Result<()> {
    if batch.rewrite.truncate.is_empty() {
        return Ok(());
    }
    let children = children(db, workspace, batch.session)?;
    let is_cut =
        |at: Position| batch.rewrite.truncate.iter().any(|cut| cut.timeline == at.timeline && cut.seq <= at.seq);
    let branches = children.iter().filter(|line| line.parent.is_some_and(is_cut)).count() as u64;
    match branches {
        0 => Ok(()),
        _ => Err(Conflict::Branches { session: batch.session, branches }.into()),
    }
}

fn rewrite(db: &Connection, workspace: &WorkspaceId, rewrite: &Rewrite) -> Result<()> {
    let key = |at: &Position| -> Result<i64> {
        let line =
            TimelineRow::find(db, workspace, at.timeline)?.ok_or_else(|| Error::not_found("timeline", at.timeline))?;
        entry_key(line.no, at.seq)
    };
    let run = |sql: &str, key: i64| {
        db.prepare_cached(sql).and_then(|mut s| s.execute([key])).map_err(fail("changing stored entries"))
    };
    for (at, entry) in &rewrite.entries {
        insert_entry(db, key(at)?, entry)?;
    }
    for at in &rewrite.truncate {
        let first = key(at)?;
        let end = ((first >> 32) + 1) << 32;
        super::text::forget(db, first, end)?;
        for table in ["entries", "marks", "keyframes"] {
            db.prepare_cached(&format!("DELETE FROM {table} WHERE id >= ?1 AND id < ?2"))
                .and_then(|mut s| s.execute([first, end]))
                .map_err(fail("removing entries"))?;
        }
    }
    for row in &rewrite.marks {
        rows::put_mark(db, key(&row.at)?, row)?;
    }
    for at in &rewrite.drop_marks {
        run("DELETE FROM marks WHERE id = ?1", key(at)?)?;
    }
    for at in &rewrite.drop_keyframes {
        run("DELETE FROM keyframes WHERE id = ?1", key(at)?)?;
    }
    for at in &rewrite.texts {
        let key = key(at)?;
        super::text::reindex_one(db, key)?;
    }
    Ok(())
}

pub(super) fn session(db: &Connection, workspace: &WorkspaceId, id: SessionId) -> Result<Option<SessionHead>> {
    let failed = fail("reading a session");
    let (columns, key) = (session_columns(), [workspace.as_str(), &id.to_string()]);
    let found = db
        .prepare_cached(&format!(
            "SELECT {columns}, length, epoch, owner, holder, lease_until FROM sessions WHERE workspace = ?1 AND id = ?2"
        ))
        .and_then(|mut s| {
            s.query_row(key, |row| {
                let next = rows::SESSION_COLUMNS;
                Ok((read_session_row(row)?, row.get::<_, i64>(next)? as u64, read_lease(row, next + 1)?))
            })
            .optional()
        })
        .map_err(&failed)?;
    let Some((row, noted_length, lease)) = found else { return Ok(None) };
    let line = db
        .prepare_cached(HEAD)
        .and_then(|mut s| s.query_row(key, read_timeline).optional())
        .map_err(&failed)?
        .ok_or_else(|| Error::corrupt(format!("session {id}"), "it has no head"))?;
    Ok(Some(SessionHead { row, timeline: line.info(db)?, noted_length, lease }))
}

pub(super) fn timeline(db: &Connection, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<Timeline>> {
    TimelineRow::find(db, workspace, id)?.map(|line| line.info(db)).transpose()
}

/// A session's own timelines.
const OWN: &str = timelines_where!("t.workspace = ?1 AND t.session = ?2 ORDER BY t.no");
/// A session's head.
const HEAD: &str = timelines_where!("t.workspace = ?1 AND t.session = ?2 AND t.head = 'main'");
/// Timelines of other sessions that begin in one of a session's.
const CHILDREN: &str = timelines_where!(
    "t.session <> ?2 AND t.parent IN (SELECT no FROM timelines WHERE workspace = ?1 AND session = ?2) ORDER BY t.no"
);

pub(super) fn timelines(db: &Connection, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
    TimelineRow::list(db, workspace, session, OWN)?.into_iter().map(|line| line.info(db)).collect()
}

pub(super) fn children(db: &Connection, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
    TimelineRow::list(db, workspace, session, CHILDREN)?.into_iter().map(|line| line.info(db)).collect()
}

/// Every session that has a timeline, whatever the list says.
pub(super) fn session_ids(db: &Connection, workspace: &WorkspaceId) -> Result<Vec<SessionId>> {
    let ids: Vec<String> = db
        .prepare_cached("SELECT DISTINCT session FROM timelines WHERE workspace = ?1 ORDER BY 1")
        .and_then(|mut s| s.query_map([workspace.as_str()], |row| row.get(0))?.collect())
        .map_err(fail("listing sessions"))?;
    ids.iter().map(|id| Ok(id.parse()?)).collect()
}

pub(super) fn lease(
    db: &Connection,
    workspace: &WorkspaceId,
    session: SessionId,
    action: &LeaseAction,
    now: Timestamp,
) -> Result<Lease> {
    let found = find_session(db, workspace, session)?.ok_or_else(|| Error::not_found("session", session))?;
    let lease = next_lease(session, &found.lease, action.clone(), now)?;
    write_lease(db, found.no, &lease)?;
    Ok(lease)
}

/// Removes a session with all its rows. Runs inside a transaction.
pub(super) fn remove(db: &Connection, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()> {
    let failed = fail("removing a session");
    let found = find_session(db, workspace, session)?.ok_or_else(|| Error::not_found("session", session))?;
    check_epoch(session, epoch, &found.lease)?;
    let branches = children(db, workspace, session)?.len() as u64;
    if branches > 0 {
        return Err(Conflict::Branches { session, branches }.into());
    }
    for line in TimelineRow::list(db, workspace, session, OWN)? {
        let (from, to) = key_range(line.no, Seq(0), Seq(u64::MAX));
        super::text::forget(db, from, to)?;
        for table in ["entries", "marks", "keyframes"] {
            db.prepare_cached(&format!("DELETE FROM {table} WHERE id >= ?1 AND id < ?2"))
                .and_then(|mut s| s.execute([from, to]))
                .map_err(&failed)?;
        }
        db.execute("DELETE FROM unindexed WHERE timeline = ?1", [line.no]).map_err(&failed)?;
        super::text::forget_gaps(db, line.no)?;
        db.execute("DELETE FROM timelines WHERE no = ?1", [line.no]).map_err(&failed)?;
    }
    db.execute("DELETE FROM sessions WHERE no = ?1", [found.no]).map_err(&failed)?;
    Ok(())
}

/// Checks the last entries of the sessions that were written last: what an interrupted commit could have hurt.
pub(super) fn check_ends(db: &Connection) -> Result<()> {
    const SESSIONS: usize = 64;
    const ENTRIES: usize = 16;
    let heads: Vec<(i64, String)> = db
        .prepare(&format!(
            "SELECT t.no, t.id FROM sessions s
             JOIN timelines t ON t.workspace = s.workspace AND t.session = s.id AND t.head = '{MAIN_HEAD}'
             ORDER BY s.active DESC LIMIT {SESSIONS}"
        ))
        .and_then(|mut s| s.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .map_err(fail("checking the store"))?;
    for (no, id) in heads {
        let timeline: TimelineId = id.parse()?;
        let range = Range { order: Order::Backward, limit: ENTRIES, ..Range::all(timeline, Seq(0), Seq(u64::MAX)) };
        for (seq, entry) in read_range(db, no, &range)? {
            codec::check(Position { timeline, seq }, &entry)?;
        }
    }
    Ok(())
}

/// One entry by its key.
pub(super) fn read_key(db: &Connection, key: i64) -> Result<Option<StoredEntry>> {
    db.prepare_cached(concat!(entries_sql!(), " WHERE id = ?1"))
        .and_then(|mut s| s.query_row([key], read_entry).optional())
        .map(|found| found.map(|(_, entry)| entry))
        .map_err(fail("reading an entry"))
}
