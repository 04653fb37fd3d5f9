//! Derived rows, blobs and records in tables.

use std::path::Path;

use milepost_model::{CheckpointId, Position, Seq, SessionId, Status, TimelineId, Timestamp, WorkspaceId};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, ToSql, params, params_from_iter};

use super::log::{TimelineRow, entry_key, key_range, parse, seq_of};
use super::schema::{Mode, connect, fail, forget_modules, has_text_index, overwriting};
use crate::backend::*;
use crate::error::{Conflict, Error, Result};

/// A statement that adds a row, and one that puts it in another's place.
macro_rules! insert_sql {
    ($row:literal) => {
        [concat!("INSERT ", $row), concat!("INSERT OR REPLACE ", $row)]
    };
}
pub(super) use insert_sql;

/// How many columns [`session_columns`] names.
pub(super) const SESSION_COLUMNS: usize = 17;

/// The columns of a session's row, in the order [`read_session_row`] takes them.
pub(super) fn session_columns() -> &'static str {
    "id, status, created, active, messages, checkpoints, trashed, hidden, title, preview, \
     project, agent, feature, task, stage, tags, detail"
}

pub(super) fn read_session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        id: parse(&row.get::<_, String>(0)?, 0)?,
        // It is derived: what it should be, verify notices and reindex writes.
        status: Status::from_name(&row.get::<_, String>(1)?).unwrap_or_default(),
        created: Timestamp(row.get(2)?),
        active: Timestamp(row.get(3)?),
        messages: row.get::<_, i64>(4)? as u64,
        checkpoints: row.get::<_, i64>(5)? as u64,
        trashed: row.get::<_, Option<i64>>(6)?.map(Timestamp),
        hidden: row.get(7)?,
        title: row.get(8)?,
        preview: row.get(9)?,
        keys: [row.get(10)?, row.get(11)?, row.get(12)?, row.get(13)?, row.get(14)?],
        tags: split_tags(row.get::<_, Option<String>>(15)?.as_deref()),
        detail: row.get(16)?,
    })
}

/// Tags lie in one column, each between line feeds, so that one is found by `LIKE`.
fn join_tags(tags: &[String]) -> Option<String> {
    (!tags.is_empty()).then(|| format!("\n{}\n", tags.join("\n")))
}

fn split_tags(column: Option<&str>) -> Vec<String> {
    let parts = column.unwrap_or_default().split('\n').filter(|tag| !tag.is_empty());
    parts.map(str::to_owned).collect()
}

/// Makes a session's row and returns its number.
pub(super) fn insert_session(db: &Connection, workspace: &WorkspaceId, row: &SessionRow, lease: &Lease) -> Result<i64> {
    db.prepare_cached(
        "INSERT INTO sessions (workspace, id, status, messages, checkpoints, created, active, hidden, length,
                               epoch, owner, holder, lease_until, detail)
         VALUES (?1, ?2, ?3, 0, 0, ?4, ?4, 0, 0, ?5, ?6, ?7, ?8, x'')",
    )
    .and_then(|mut s| {
        s.execute(params![
            workspace.as_str(),
            row.id.to_string(),
            row.status.as_str(),
            row.created.0,
            lease.epoch.0 as i64,
            lease.owner.map(|owner| owner.to_string()),
            lease.holder,
            lease.until.0,
        ])
    })
    .map_err(fail("making a session"))?;
    Ok(db.last_insert_rowid())
}

/// Writes a session's row.
pub(super) fn update_session(db: &Connection, no: i64, row: &SessionRow, length: u64, lease_until: i64) -> Result<()> {
    let [project, agent, feature, task, stage] = &row.keys;
    db.prepare_cached(
        "UPDATE sessions SET status = ?2, created = ?3, active = ?4, messages = ?5, checkpoints = ?6, trashed = ?7,
                hidden = ?8, title = ?9, preview = ?10, project = ?11, agent = ?12, feature = ?13, task = ?14,
                stage = ?15, tags = ?16, detail = ?17, length = ?18, lease_until = max(lease_until, ?19)
         WHERE no = ?1",
    )
    .and_then(|mut s| {
        s.execute(params![
            no,
            row.status.as_str(),
            row.created.0,
            row.active.0,
            row.messages as i64,
            row.checkpoints as i64,
            row.trashed.map(|time| time.0),
            row.hidden,
            row.title,
            row.preview,
            project,
            agent,
            feature,
            task,
            stage,
            join_tags(&row.tags),
            row.detail,
            length as i64,
            lease_until,
        ])
    })
    .map_err(fail("writing a session's row"))?;
    Ok(())
}

/// Lists sessions.
pub(super) fn sessions(db: &Connection, workspace: &WorkspaceId, filter: &SessionFilter) -> Result<Vec<SessionRow>> {
    let mut sql = format!("SELECT {} FROM sessions WHERE workspace = ?", session_columns());
    let mut values: Vec<Sql> = vec![workspace.as_str().to_owned().into()];
    let mut also = |condition: &str, value: Sql| {
        sql += " AND ";
        sql += condition;
        values.push(value);
    };
    for (name, key) in SESSION_KEYS.iter().zip(&filter.keys) {
        if let Some(key) = key {
            also(&format!("{name} = ?"), key.clone().into());
        }
    }
    if let Some(tag) = &filter.tag {
        also("instr(tags, char(10) || ? || char(10)) > 0", tag.clone().into());
    }
    if let Some(from) = filter.active_from {
        also("active >= ?", from.0.into());
    }
    if let Some(to) = filter.active_to {
        also("active < ?", to.0.into());
    }
    let time = match filter.sort {
        SessionSort::Active => "active",
        SessionSort::Created => "created",
    };
    if let Some(after) = &filter.after {
        also(&format!("{time} <= ?"), after.time.0.into());
        also(&format!("NOT ({time} = ?"), after.time.0.into());
        also("id >= ?)", after.id.to_string().into());
    }
    if !filter.status.is_empty() {
        let names: Vec<String> = filter.status.iter().map(|status| format!("'{status}'")).collect();
        sql += &format!(" AND status IN ({})", names.join(","));
    }
    sql += if filter.trashed { " AND trashed IS NOT NULL" } else { " AND trashed IS NULL" };
    if !filter.hidden {
        sql += " AND hidden = 0";
    }
    sql += &format!(" ORDER BY {time} DESC, id DESC LIMIT {}", i64::try_from(filter.limit).unwrap_or(i64::MAX));
    db.prepare_cached(&sql)
        .and_then(|mut s| s.query_map(params_from_iter(values), read_session_row)?.collect())
        .map_err(fail("listing sessions"))
}

pub(super) fn workspaces(db: &Connection) -> Result<Vec<WorkspaceId>> {
    let names: Vec<String> = db
        .prepare("SELECT DISTINCT workspace FROM timelines UNION SELECT DISTINCT workspace FROM records ORDER BY 1")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .map_err(fail("listing workspaces"))?;
    names.into_iter().map(|name| Ok(WorkspaceId::new(name)?)).collect()
}

/// Writes a mark's row.
pub(super) fn put_mark(db: &Connection, key: i64, row: &MarkRow) -> Result<()> {
    let sql = insert_sql!(
        "INTO marks (id, checkpoint, time, trigger, label, clean, resumable, kept, messages, trashed)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
    );
    let values = params![
        key,
        row.id.to_string(),
        row.time.0,
        row.trigger,
        row.label,
        row.clean,
        row.resumable,
        row.kept,
        row.messages as i64,
        row.trashed.map(|time| time.0),
    ];
    insert(db, sql, values).map_err(fail("writing a mark"))
}

/// Adds a row, or puts it in another's place. Hardly ever is there another, and a statement that may replace one copies
/// every page that it changes, to be able to undo half of itself.
pub(super) fn insert(db: &Connection, [new, again]: [&str; 2], values: &[&dyn ToSql]) -> rusqlite::Result<()> {
    let run = |sql| db.prepare_cached(sql).and_then(|mut s| s.execute(values)).map(drop);
    match run(new) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => run(again),
        outcome => outcome,
    }
}

const MARK: &str =
    "SELECT m.id, m.checkpoint, m.time, m.trigger, m.label, m.clean, m.resumable, m.kept, m.messages, m.trashed";

fn read_mark(row: &Row<'_>, timeline: TimelineId) -> rusqlite::Result<MarkRow> {
    Ok(MarkRow {
        at: Position { timeline, seq: seq_of(row.get(0)?) },
        id: parse(&row.get::<_, String>(1)?, 1)?,
        time: Timestamp(row.get(2)?),
        trigger: row.get(3)?,
        label: row.get(4)?,
        clean: row.get(5)?,
        resumable: row.get(6)?,
        kept: row.get(7)?,
        messages: row.get::<_, i64>(8)? as u64,
        trashed: row.get::<_, Option<i64>>(9)?.map(Timestamp),
    })
}

/// Lists marks of one timeline.
pub(super) fn marks(db: &Connection, workspace: &WorkspaceId, filter: &MarkFilter) -> Result<Vec<MarkRow>> {
    let Some(line) = TimelineRow::find(db, workspace, filter.timeline)? else { return Ok(Vec::new()) };
    let (from, to) = key_range(line.no, filter.from, filter.to);
    let mut sql = format!("{MARK} FROM marks m WHERE m.id >= ? AND m.id < ?");
    let mut values: Vec<Sql> = vec![from.into(), to.into()];
    let mut also = |condition: &str, value: Sql| {
        sql += " AND ";
        sql += condition;
        values.push(value);
    };
    if let Some(label) = &filter.label {
        also("m.label = ?", label.clone().into());
    }
    if let Some(clean) = filter.clean {
        also("m.clean = ?", i64::from(clean).into());
    }
    if let Some(resumable) = filter.resumable {
        also("m.resumable = ?", i64::from(resumable).into());
    }
    if let Some(time) = filter.time_from {
        also("m.time >= ?", time.0.into());
    }
    if let Some(time) = filter.time_to {
        also("m.time < ?", time.0.into());
    }
    if let Some(trashed) = filter.trashed {
        also("(m.trashed IS NOT NULL) = ?", i64::from(trashed).into());
    }
    if !filter.triggers.is_empty() {
        let places = vec!["?"; filter.triggers.len()].join(",");
        sql += &format!(" AND m.trigger IN ({places})");
        values.extend(filter.triggers.iter().map(|name| Sql::Text(name.clone())));
    }
    sql += if filter.order == Order::Forward { " ORDER BY m.id" } else { " ORDER BY m.id DESC" };
    sql += &format!(" LIMIT {}", i64::try_from(filter.limit).unwrap_or(i64::MAX));
    db.prepare_cached(&sql)
        .and_then(|mut s| s.query_map(params_from_iter(values), |row| read_mark(row, filter.timeline))?.collect())
        .map_err(fail("listing marks"))
}

/// A guard against timelines that lead in a circle, which only damage makes.
const MAX_DEPTH: i64 = 1 << 20;

/// How many marks sessions have up to their heads, without the trash.
pub(super) fn count_marks(db: &Connection, workspace: &WorkspaceId, sessions: &[SessionId]) -> Result<Vec<u64>> {
    // What is asked for comes first, then what is found for it: there may be many timelines.
    let sql = "WITH RECURSIVE part (number, no, past, depth) AS (
                 SELECT j.key, t.no, 1 << 32, 0 FROM json_each(?2) j
                 CROSS JOIN timelines t ON t.workspace = ?1 AND t.session = j.value AND t.head = 'main'
                 UNION ALL
                 SELECT p.number, t.parent, min(t.parent_seq + 1, p.past), p.depth + 1
                 FROM part p CROSS JOIN timelines t ON t.no = p.no WHERE t.parent IS NOT NULL AND p.depth < ?3)
               SELECT p.number, (SELECT count(*) FROM marks m WHERE m.id >= p.no << 32 AND m.id < (p.no << 32) + p.past
                                 AND m.trashed IS NULL)
               FROM part p";
    let ids = serde_json::Value::from(sessions.iter().map(ToString::to_string).collect::<Vec<_>>()).to_string();
    let mut counts = vec![0; sessions.len()];
    let mut count = |row: &Row<'_>| {
        if let Some(place) = counts.get_mut(row.get::<_, i64>(0)? as usize) {
            *place += row.get::<_, i64>(1)? as u64;
        }
        Ok(())
    };
    db.prepare_cached(sql)
        .and_then(|mut s| s.query_map(params![workspace.as_str(), ids, MAX_DEPTH], &mut count)?.collect())
        .map_err(fail("counting marks"))
        .map(|()| counts)
}

/// Finds a mark by name.
pub(super) fn mark(db: &Connection, workspace: &WorkspaceId, id: CheckpointId) -> Result<Option<MarkRow>> {
    db.prepare_cached(&format!(
        "{MARK}, t.id FROM marks m JOIN timelines t ON t.no = m.id >> 32 WHERE m.checkpoint = ?1 AND t.workspace = ?2"
    ))
    .and_then(|mut s| {
        s.query_row(params![id.to_string(), workspace.as_str()], |row| {
            let timeline = parse(&row.get::<_, String>(10)?, 10)?;
            read_mark(row, timeline)
        })
        .optional()
    })
    .map_err(fail("finding a mark"))
}

pub(super) fn put_keyframes(db: &Connection, workspace: &WorkspaceId, frames: &[Keyframe]) -> Result<()> {
    for frame in frames {
        let line = TimelineRow::find(db, workspace, frame.at.timeline)?
            .ok_or_else(|| Error::not_found("timeline", frame.at.timeline))?;
        db.prepare_cached("INSERT OR REPLACE INTO keyframes (id, pinned, body) VALUES (?1, ?2, ?3)")
            .and_then(|mut s| {
                s.execute(params![entry_key(line.no, frame.at.seq).unwrap_or(-1), frame.pinned, frame.body])
            })
            .map_err(fail("writing a keyframe"))?;
    }
    Ok(())
}

/// The newest keyframe of a timeline at or before an entry.
pub(super) fn keyframe(db: &Connection, workspace: &WorkspaceId, at: Position) -> Result<Option<Keyframe>> {
    let Some(line) = TimelineRow::find(db, workspace, at.timeline)? else { return Ok(None) };
    let (from, to) = key_range(line.no, Seq(0), at.seq.next());
    db.prepare_cached("SELECT id, pinned, body FROM keyframes WHERE id >= ?1 AND id < ?2 ORDER BY id DESC LIMIT 1")
        .and_then(|mut s| {
            s.query_row([from, to], |row| {
                let at = Position { timeline: at.timeline, seq: seq_of(row.get(0)?) };
                Ok(Keyframe { at, pinned: row.get(1)?, body: row.get(2)? })
            })
            .optional()
        })
        .map_err(fail("reading a keyframe"))
}

pub(super) fn keyframes(db: &Connection, workspace: &WorkspaceId, timeline: TimelineId) -> Result<Vec<(Seq, bool)>> {
    let Some(line) = TimelineRow::find(db, workspace, timeline)? else { return Ok(Vec::new()) };
    let (from, to) = key_range(line.no, Seq(0), Seq(u64::MAX));
    db.prepare_cached("SELECT id, pinned FROM keyframes WHERE id >= ?1 AND id < ?2 ORDER BY id")
        .and_then(|mut s| s.query_map([from, to], |row| Ok((seq_of(row.get(0)?), row.get(1)?)))?.collect())
        .map_err(fail("listing keyframes"))
}

/// Puts a session's derived rows in place of those that are there.
pub(super) fn rebuild(
    db: &Connection,
    workspace: &WorkspaceId,
    row: &SessionRow,
    marks: &[MarkRow],
    now: Timestamp,
) -> Result<()> {
    let failed = fail("rebuilding a session's rows");
    let id = row.id.to_string();
    let found: Option<i64> = db
        .query_row("SELECT no FROM sessions WHERE workspace = ?1 AND id = ?2", [workspace.as_str(), &id], |r| r.get(0))
        .optional()
        .map_err(&failed)?;
    let no = match found {
        Some(no) => no,
        None => insert_session(db, workspace, row, &Lease::lost(now))?,
    };
    db.execute(
        "DELETE FROM marks WHERE id >> 32 IN (SELECT no FROM timelines WHERE workspace = ?1 AND session = ?2)",
        [workspace.as_str(), &id],
    )
    .map_err(&failed)?;
    // Whole states that are derived come again as they are needed.
    db.execute(
        "DELETE FROM keyframes WHERE pinned = 0
         AND id >> 32 IN (SELECT no FROM timelines WHERE workspace = ?1 AND session = ?2)",
        [workspace.as_str(), &id],
    )
    .map_err(&failed)?;
    for mark in marks {
        let line = TimelineRow::find(db, workspace, mark.at.timeline)?
            .ok_or_else(|| Error::not_found("timeline", mark.at.timeline))?;
        put_mark(db, entry_key(line.no, mark.at.seq)?, mark)?;
    }
    let lines = super::log::timelines(db, workspace, row.id)?;
    let head = lines.iter().find(|line| line.head.as_deref() == Some(MAIN_HEAD));
    update_session(db, no, row, head.map_or(0, |line| line.length), 0)?;
    super::text::reset(db, workspace, row.id)
}

pub(super) fn put_blobs(db: &Connection, workspace: &WorkspaceId, blobs: &[Blob], now: Timestamp) -> Result<()> {
    for blob in blobs {
        db.prepare_cached(
            "INSERT INTO blobs (workspace, id, touched, body) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (workspace, id) DO UPDATE SET touched = excluded.touched",
        )
        .and_then(|mut s| s.execute(params![workspace.as_str(), blob.id.0, now.0, blob.bytes]))
        .map_err(fail("writing a blob"))?;
    }
    Ok(())
}

pub(super) fn get_blobs(db: &Connection, workspace: &WorkspaceId, ids: &[BlobId]) -> Result<Vec<Option<Vec<u8>>>> {
    ids.iter()
        .map(|id| {
            db.prepare_cached("SELECT body FROM blobs WHERE workspace = ?1 AND id = ?2")
                .and_then(|mut s| s.query_row(params![workspace.as_str(), id.0], |row| row.get(0)).optional())
                .map_err(fail("reading a blob"))
        })
        .collect()
}

/// A blob of the workspace that a timeline is in.
pub(super) fn read_blob_of_timeline(db: &Connection, timeline_no: i64, id: Option<&BlobId>) -> Result<Option<Vec<u8>>> {
    let Some(id) = id else { return Ok(None) };
    db.prepare_cached(
        "SELECT b.body FROM timelines t JOIN blobs b ON b.workspace = t.workspace AND b.id = ?2 WHERE t.no = ?1",
    )
    .and_then(|mut s| s.query_row(params![timeline_no, id.0], |row| row.get(0)).optional())
    .map_err(fail("reading a blob"))
}

pub(super) fn list_blobs(
    db: &Connection,
    workspace: &WorkspaceId,
    after: Option<BlobId>,
    limit: usize,
) -> Result<Vec<BlobInfo>> {
    let after = after.map(|id| id.0.to_vec()).unwrap_or_default();
    db.prepare_cached(
        "SELECT id, length(body), touched FROM blobs WHERE workspace = ?1 AND id > ?2 ORDER BY id LIMIT ?3",
    )
    .and_then(|mut s| {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        s.query_map(params![workspace.as_str(), after, limit], |row| {
            Ok(BlobInfo {
                id: BlobId(row.get(0)?),
                bytes: row.get::<_, i64>(1)? as u64,
                touched: Timestamp(row.get(2)?),
            })
        })?
        .collect()
    })
    .map_err(fail("listing blobs"))
}

/// Names of all blobs that entries of this workspace need.
pub(super) fn blob_refs(db: &Connection, workspace: &WorkspaceId) -> Result<Vec<BlobId>> {
    let lists: Vec<Vec<u8>> = db
        .prepare_cached(
            "SELECT e.refs FROM entries e JOIN timelines t ON t.no = e.id >> 32
             WHERE e.refs IS NOT NULL AND t.workspace = ?1",
        )
        .and_then(|mut s| s.query_map([workspace.as_str()], |row| row.get(0))?.collect())
        .map_err(fail("listing what needs blobs"))?;
    let mut ids: Vec<BlobId> = lists.iter().flat_map(|list| list.as_chunks::<32>().0).map(|id| BlobId(*id)).collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

pub(super) fn drop_blobs(db: &Connection, workspace: &WorkspaceId, ids: &[BlobId], before: Timestamp) -> Result<u64> {
    let needed = blob_refs(db, workspace)?;
    let mut dropped = 0;
    for id in ids.iter().filter(|id| needed.binary_search(id).is_err()) {
        dropped += db
            .prepare_cached("DELETE FROM blobs WHERE workspace = ?1 AND id = ?2 AND touched < ?3")
            .and_then(|mut s| s.execute(params![workspace.as_str(), id.0, before.0]))
            .map_err(fail("removing a blob"))? as u64;
    }
    Ok(dropped)
}

fn read_record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        key: RecordKey { kind: row.get(0)?, key: row.get(1)? },
        version: row.get::<_, i64>(2)? as u64,
        due: row.get::<_, Option<i64>>(3)?.map(Timestamp),
        value: row.get(4)?,
    })
}

pub(super) fn record(db: &Connection, workspace: &WorkspaceId, key: &RecordKey) -> Result<Option<Record>> {
    db.prepare_cached(
        "SELECT kind, key, version, due, value FROM records WHERE workspace = ?1 AND kind = ?2 AND key = ?3",
    )
    .and_then(|mut s| s.query_row(params![workspace.as_str(), key.kind, key.key], read_record).optional())
    .map_err(fail("reading a record"))
}

pub(super) fn put_record(db: &Connection, workspace: &WorkspaceId, new: &Record, expected: Option<u64>) -> Result<()> {
    if record(db, workspace, &new.key)?.map(|old| old.version) != expected {
        return Err(Conflict::Record { key: new.key.key.clone() }.into());
    }
    db.prepare_cached(
        "INSERT OR REPLACE INTO records (workspace, kind, key, version, due, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )
    .and_then(|mut s| {
        let due = new.due.map(|time| time.0);
        s.execute(params![workspace.as_str(), new.key.kind, new.key.key, new.version as i64, due, new.value])
    })
    .map_err(fail("writing a record"))?;
    Ok(())
}

pub(super) fn delete_record(db: &Connection, workspace: &WorkspaceId, key: &RecordKey, expected: u64) -> Result<()> {
    let deleted = overwriting(db, || {
        db.prepare_cached("DELETE FROM records WHERE workspace = ?1 AND kind = ?2 AND key = ?3 AND version = ?4")
            .and_then(|mut s| s.execute(params![workspace.as_str(), key.kind, key.key, expected as i64]))
            .map_err(fail("removing a record"))
    })?;
    if deleted == 0 {
        return Err(Conflict::Record { key: key.key.clone() }.into());
    }
    Ok(())
}

pub(super) fn scan_records(db: &Connection, workspace: &WorkspaceId, scan: &RecordScan) -> Result<Vec<Record>> {
    let columns = "SELECT kind, key, version, due, value FROM records WHERE workspace = ?1 AND kind = ?2";
    let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
    let rows = match &scan.order {
        RecordOrder::Key { after } => {
            db.prepare_cached(&format!("{columns} AND key > ?3 ORDER BY key LIMIT ?4")).and_then(|mut s| {
                let after = after.as_deref().unwrap_or_default();
                s.query_map(params![workspace.as_str(), scan.kind, after, limit], read_record)?.collect()
            })
        }
        RecordOrder::Due { until, after } => db
            .prepare_cached(&format!(
                "{columns} AND due IS NOT NULL AND due <= ?3 AND (due, key) > (?4, ?5) ORDER BY due, key LIMIT ?6"
            ))
            .and_then(|mut s| {
                let (due, key) = after.as_ref().map_or((i64::MIN, ""), |(due, key)| (due.0, key));
                s.query_map(params![workspace.as_str(), scan.kind, until.0, due, key, limit], read_record)?.collect()
            }),
    };
    rows.map_err(fail("listing records"))
}

pub(super) fn record_kinds(db: &Connection, workspace: &WorkspaceId) -> Result<Vec<String>> {
    db.prepare_cached("SELECT DISTINCT kind FROM records WHERE workspace = ?1 ORDER BY 1")
        .and_then(|mut s| s.query_map([workspace.as_str()], |row| row.get(0))?.collect())
        .map_err(fail("listing records"))
}

/// What uses the space.
pub(super) fn usage(db: &Connection, workspace: &WorkspaceId) -> Result<Usage> {
    let failed = fail("adding up what uses the space");
    let mut usage = Usage::default();
    let mut place = std::collections::BTreeMap::new();
    let rows: Vec<(String, i64, i64, i64)> = db
        .prepare_cached(
            "SELECT t.session, x.kind, sum(x.n), sum(x.bytes) FROM (
               SELECT id >> 32 AS line, kind, count(*) AS n,
                      sum(length(body) + ifnull(length(CAST(text AS BLOB)), 0) + ifnull(length(refs), 0) + 24) AS bytes
               FROM entries GROUP BY 1, 2
               UNION ALL
               SELECT id >> 32, 0, count(*), sum(length(body)) FROM keyframes GROUP BY 1
             ) x JOIN timelines t ON t.no = x.line
             WHERE t.workspace = ?1 GROUP BY 1, 2 ORDER BY 1",
        )
        .and_then(|mut s| {
            s.query_map([workspace.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?.collect()
        })
        .map_err(&failed)?;
    for (id, kind, entries, bytes) in rows {
        let session: SessionId = id.parse()?;
        let at = *place.entry(session).or_insert_with(|| {
            usage.sessions.push(SessionUsage { session, kinds: Default::default(), keyframes: KindUsage::default() });
            usage.sessions.len() - 1
        });
        let own = &mut usage.sessions[at];
        let slot = if kind == 0 { Some(&mut own.keyframes) } else { own.kinds.get_mut(kind as usize - 1) };
        if let Some(slot) = slot {
            *slot = KindUsage { entries: entries as u64, bytes: bytes as u64 };
        }
    }
    let pair = |sql: &str, workspace: Option<&str>| -> Result<KindUsage> {
        let read = |row: &Row<'_>| {
            Ok(KindUsage {
                entries: row.get::<_, i64>(0)? as u64,
                bytes: row.get::<_, Option<i64>>(1)?.unwrap_or(0) as u64,
            })
        };
        match workspace {
            Some(workspace) => db.query_row(sql, [workspace], read),
            None => db.query_row(sql, [], read),
        }
        .map_err(&failed)
    };
    usage.blobs = pair("SELECT count(*), sum(length(body)) FROM blobs WHERE workspace = ?1", Some(workspace.as_str()))?;
    usage.records =
        pair("SELECT count(*), sum(length(value)) FROM records WHERE workspace = ?1", Some(workspace.as_str()))?;
    if has_text_index(db)? {
        usage.text_index_bytes = pair("SELECT count(*), sum(length(block)) FROM texts_data", None)?.bytes;
    }
    let number =
        |pragma: &str| db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get::<_, i64>(0)).map_err(&failed);
    let page = number("page_size")? as u64;
    usage.total_bytes = number("page_count")? as u64 * page;
    usage.free_bytes = number("freelist_count")? as u64 * page;
    Ok(usage)
}

/// Looks for damage in what the tables say. All of it sees the same state.
pub(super) fn check_rows(db: &Connection, depth: Depth) -> Result<Vec<Finding>> {
    let failed = fail("checking the database file");
    db.execute_batch("BEGIN").map_err(&failed)?;
    let found = check_orphans(db).and_then(|mut found| {
        if depth == Depth::Deep {
            found.extend(super::text::check(db)?);
        }
        Ok(found)
    });
    if !db.is_autocommit() {
        db.execute_batch("COMMIT").map_err(&failed)?;
    }
    found
}

/// Pages, cells and indexes, as SQLite checks them.
pub(super) fn check_file(path: &Path) -> Result<Vec<Finding>> {
    let db = connect(path, Mode::Read)?;
    forget_modules(&db);
    // Most pages are looked at once: room for many would only have to be filled.
    db.pragma_update(None, "cache_size", 64).map_err(fail("checking the database file"))?;
    let lines: Vec<String> = db
        .prepare("PRAGMA integrity_check(100)")
        .and_then(|mut s| s.query_map([], |row| row.get::<_, String>(0))?.collect())
        .map_err(fail("checking the database file"))?;
    let finding = |line: &String| Finding {
        derived: false,
        what: format!("the database file is damaged: {line}; restore a backup, or salvage what is whole"),
    };
    Ok(lines.iter().filter(|line| *line != "ok").map(finding).collect())
}

/// How many timelines that a table has rows of are not there: one look for each, however many rows.
const LINES_WITHOUT: &str = "WITH RECURSIVE line (no) AS (
   SELECT min(id) >> 32 FROM TABLE
   UNION ALL
   SELECT (SELECT min(id) >> 32 FROM TABLE WHERE id >= (line.no + 1) << 32) FROM line
   WHERE line.no IS NOT NULL)
 SELECT count(*) FROM line WHERE no IS NOT NULL AND no NOT IN (SELECT no FROM timelines)";

/// Rows that belong to nothing.
fn check_orphans(db: &Connection) -> Result<Vec<Finding>> {
    let mut found = Vec::new();
    let orphans: [(&str, String); 5] = [
        ("timelines of entries", LINES_WITHOUT.replace("TABLE", "entries")),
        // Whether each fits an entry of its timeline is seen when the timeline is read.
        ("timelines of marks", LINES_WITHOUT.replace("TABLE", "marks")),
        (
            "timelines",
            "SELECT count(*) FROM timelines WHERE (workspace, session) NOT IN (SELECT workspace, id FROM sessions)"
                .into(),
        ),
        ("keyframes", "SELECT count(*) FROM keyframes WHERE id NOT IN (SELECT id FROM entries)".into()),
        (
            "blob references",
            "SELECT count(*) FROM entries INDEXED BY entries_refs WHERE refs IS NOT NULL AND kind NOT BETWEEN 1 AND 4"
                .into(),
        ),
    ];
    for (what, sql) in orphans {
        let count: i64 = db.query_row(&sql, [], |row| row.get(0)).map_err(fail("checking the database file"))?;
        if count > 0 {
            let derived = what == "timelines of marks";
            let what = format!("{count} {what} belong to nothing; reindex rebuilds what is derived");
            found.push(Finding { derived, what });
        }
    }
    Ok(found)
}
