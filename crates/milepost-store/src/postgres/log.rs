//! Reading the log: entries, sessions, timelines; leases and removal.

use milepost_model::{BatchId, EntryKind, Epoch, Hash, Position, Seq, SessionId, TimelineId, WorkspaceId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::db::{Db, Param, column, escape, id, limit, maybe_text, number, seq, text, time};
use super::rows::{SESSION_COLUMNS, read_session_row, session_columns};
use crate::backend::*;
use crate::error::{Conflict, Error, Result};

/// The columns that [`read_entry`] takes.
const ENTRY: &str = "e.timeline, e.seq, e.version, e.kind, e.time, e.label, e.channel, e.text, e.body, e.refs, \
                     e.batch, e.chain, e.mac, e.sum";

/// Bytes of a fixed length in a column.
fn fixed<const N: usize>(row: &Row, at: usize) -> Result<Option<[u8; N]>> {
    let bytes: Option<&[u8]> = column(row, at)?;
    let odd = |_| Error::corrupt("an entry", format!("column {at} has another length"));
    bytes.map(|bytes| bytes.try_into().map_err(odd)).transpose()
}

/// A row of [`ENTRY`]: the timeline's number, the entry's, the entry.
fn read_entry(row: &Row) -> Result<(i64, Seq, StoredEntry)> {
    let kind: i16 = column(row, 3)?;
    let kind = u8::try_from(kind).ok().and_then(EntryKind::from_u8);
    let refs: Option<Vec<&[u8]>> = column(row, 9)?;
    let blob = |bytes: &[u8]| {
        let odd = |_| Error::corrupt("an entry", "blob names have another length");
        bytes.try_into().map(BlobId).map_err(odd)
    };
    let entry = StoredEntry {
        version: column::<i16>(row, 2)? as u8,
        kind: kind.ok_or_else(|| Error::corrupt("an entry", "it is of an unknown kind"))?,
        time: time(row, 4)?,
        label: maybe_text(row, 5)?,
        channel: maybe_text(row, 6)?,
        text: maybe_text(row, 7)?,
        body: column(row, 8)?,
        refs: refs.unwrap_or_default().into_iter().map(blob).collect::<Result<_>>()?,
        batch: fixed(row, 10)?.map(BatchId::from_bytes),
        chain: fixed(row, 11)?.map(Hash),
        mac: fixed(row, 12)?,
        sum: number(row, 13)?,
    };
    Ok((column(row, 0)?, Seq(number(row, 1)?), entry))
}

pub(super) async fn read(db: &Db, workspace: &WorkspaceId, range: &Range) -> Result<Vec<(Seq, StoredEntry)>> {
    let what = format!("reading {} from {} to {}", range.timeline, range.from, range.to);
    let (workspace, line) = (escape(workspace.as_str()), range.timeline.to_string());
    let (from, to, most) = (seq(range.from.0), seq(range.to.0), limit(range.limit));
    let kinds: Vec<i16> = EntryKind::ALL.iter().filter(|kind| range.kinds.has(**kind)).map(|k| *k as i16).collect();
    let channel = range.channel.clone().flatten().map(|name| escape(&name));
    let mut sql = format!(
        "SELECT {ENTRY} FROM {{s}}.entries e
         WHERE e.timeline = (SELECT t.no FROM {{s}}.timelines t WHERE t.workspace = $1 AND t.id = $2)
           AND e.seq >= $3 AND e.seq < $4"
    );
    let mut params: Vec<Param<'_>> =
        vec![(&workspace, Type::TEXT), (&line, Type::TEXT), (&from, Type::INT8), (&to, Type::INT8)];
    params.push((&most, Type::INT8));
    let is_whole = range.kinds == Kinds::ALL && range.channel.is_none();
    if !is_whole {
        sql += " AND e.kind = ANY ($6)";
        params.push((&kinds, Type::INT2_ARRAY));
    }
    if range.channel.is_some() {
        sql += " AND e.channel IS NOT DISTINCT FROM $7";
        params.push((&channel, Type::TEXT));
    }
    sql += if range.order == Order::Forward { " ORDER BY e.seq" } else { " ORDER BY e.seq DESC" };
    sql += " LIMIT $5";
    let rows = db.ask(&what, &sql, &params).await?;
    let found = rows
        .iter()
        .map(|row| read_entry(row).map(|(_, seq, entry)| (seq, entry)))
        .collect::<Result<Vec<(Seq, StoredEntry)>>>()?;
    let gap = found.windows(2).find(|pair| is_whole && pair[0].0.0.abs_diff(pair[1].0.0) != 1);
    match gap {
        None => Ok(found),
        Some(pair) => {
            let at = Position { timeline: range.timeline, seq: pair[0].0 };
            Err(Error::corrupt(format!("timeline {}", range.timeline), format!("entries beside {at} are missing")))
        }
    }
}

/// Messages of some timelines after a place, by the timelines' numbers: for the text index.
pub(super) async fn messages(
    db: &Db,
    lent: &mut super::db::Lent<'_>,
    lines: &[i64],
    after: (i64, i64),
    most: i64,
) -> Result<Vec<(i64, Seq, StoredEntry)>, super::db::Failed> {
    let sql = db.sql(&format!(
        "SELECT {ENTRY} FROM {{s}}.entries e
         WHERE e.timeline = ANY ($1) AND (e.timeline, e.seq) > ($2, $3) AND e.kind = 1
         ORDER BY e.timeline, e.seq LIMIT $4"
    ));
    let lines = lines.to_vec();
    let params: [Param<'_>; 4] =
        [(&lines, Type::INT8_ARRAY), (&after.0, Type::INT8), (&after.1, Type::INT8), (&most, Type::INT8)];
    let rows = lent.ask("reading texts", &sql, &params).await?;
    Ok(rows.iter().map(read_entry).collect::<Result<_>>()?)
}

/// Messages in stretches of timelines, by the timelines' numbers.
pub(super) async fn stretches(
    db: &Db,
    lent: &mut super::db::Lent<'_>,
    lines: &Vec<i64>,
    first: &Vec<i64>,
    past: &Vec<i64>,
) -> Result<Vec<(i64, Seq, StoredEntry)>, super::db::Failed> {
    let sql = db.sql(&format!(
        // Each is looked up by itself: a join might be planned to go through all entries.
        "SELECT {ENTRY} FROM unnest($1, $2, $3) AS x (timeline, first, past) CROSS JOIN LATERAL (
           SELECT * FROM {{s}}.entries e WHERE e.timeline = x.timeline AND e.seq >= x.first AND e.seq < x.past AND e.kind = 1
           OFFSET 0) e"
    ));
    let params: [Param<'_>; 3] = [(lines, Type::INT8_ARRAY), (first, Type::INT8_ARRAY), (past, Type::INT8_ARRAY)];
    let rows = lent.ask("reading texts", &sql, &params).await?;
    Ok(rows.iter().map(read_entry).collect::<Result<_>>()?)
}

/// The columns that [`read_timeline`] takes, and where they are from.
const TIMELINE: &str = "t.id, t.session, p.id, t.parent_seq, t.head, l.seq, l.chain
    FROM {s}.timelines t LEFT JOIN {s}.timelines p ON p.no = t.parent
    LEFT JOIN LATERAL (
      SELECT e.seq, e.chain FROM {s}.entries e WHERE e.timeline = t.no ORDER BY e.seq DESC LIMIT 1) l ON true";

fn read_timeline(row: &Row, at: usize) -> Result<Timeline> {
    let parent: Option<i64> = column(row, at + 3)?;
    let parent = match (column::<Option<&str>>(row, at + 2)?, parent) {
        (Some(_), Some(number)) => Some(Position { timeline: id(row, at + 2)?, seq: Seq(number as u64) }),
        _ => None,
    };
    let last: Option<i64> = column(row, at + 5)?;
    let begins = parent.map_or(0, |at| at.seq.0 + 1);
    Ok(Timeline {
        id: id(row, at)?,
        session: id(row, at + 1)?,
        parent,
        head: maybe_text(row, at + 4)?,
        length: last.map_or(begins, |last| last as u64 + 1),
        chain: fixed(row, at + 6)?.map(Hash),
    })
}

fn read_lease(row: &Row, at: usize) -> Result<Lease> {
    let owner = match column::<Option<&str>>(row, at + 1)? {
        Some(_) => Some(id(row, at + 1)?),
        None => None,
    };
    Ok(Lease { epoch: Epoch(number(row, at)?), owner, holder: text(row, at + 2)?, until: time(row, at + 3)? })
}

pub(super) async fn session(db: &Db, workspace: &WorkspaceId, session: SessionId) -> Result<Option<SessionHead>> {
    let (workspace, key) = (escape(workspace.as_str()), session.to_string());
    let sql = format!(
        "SELECT {}, s.length, s.epoch, s.owner, s.holder, s.lease_until, h.*
         FROM {{s}}.sessions s LEFT JOIN LATERAL (
           SELECT {TIMELINE} WHERE t.workspace = s.workspace AND t.session = s.id AND t.head = 'main'
         ) h (id, session, parent, parent_seq, head, seq, chain) ON true
         WHERE s.workspace = $1 AND s.id = $2",
        session_columns()
    );
    let rows = db.ask("reading a session", &sql, &[(&workspace, Type::TEXT), (&key, Type::TEXT)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let next = SESSION_COLUMNS;
    if column::<Option<&str>>(row, next + 5)?.is_none() {
        return Err(Error::corrupt(format!("session {session}"), "it has no head"));
    }
    Ok(Some(SessionHead {
        row: read_session_row(row)?,
        noted_length: number(row, next)?,
        lease: read_lease(row, next + 1)?,
        timeline: read_timeline(row, next + 5)?,
    }))
}

pub(super) async fn timeline(db: &Db, workspace: &WorkspaceId, line: TimelineId) -> Result<Option<Timeline>> {
    let sql = format!("SELECT {TIMELINE} WHERE t.workspace = $1 AND t.id = $2");
    Ok(list(db, workspace, &line.to_string(), &sql).await?.pop())
}

pub(super) async fn timelines(db: &Db, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
    let sql = format!("SELECT {TIMELINE} WHERE t.workspace = $1 AND t.session = $2 ORDER BY t.no");
    list(db, workspace, &session.to_string(), &sql).await
}

pub(super) async fn children(db: &Db, workspace: &WorkspaceId, session: SessionId) -> Result<Vec<Timeline>> {
    let sql = format!("SELECT {TIMELINE} WHERE p.workspace = $1 AND p.session = $2 AND t.session <> $2 ORDER BY t.no");
    list(db, workspace, &session.to_string(), &sql).await
}

async fn list(db: &Db, workspace: &WorkspaceId, key: &String, sql: &str) -> Result<Vec<Timeline>> {
    let workspace = escape(workspace.as_str());
    let rows = db.ask("listing timelines", sql, &[(&workspace, Type::TEXT), (key, Type::TEXT)]).await?;
    rows.iter().map(|row| read_timeline(row, 0)).collect()
}

pub(super) async fn session_ids(db: &Db, workspace: &WorkspaceId) -> Result<Vec<SessionId>> {
    let workspace = escape(workspace.as_str());
    let sql = "SELECT DISTINCT session FROM {s}.timelines WHERE workspace = $1 ORDER BY 1";
    let rows = db.ask("listing sessions", sql, &[(&workspace, Type::TEXT)]).await?;
    rows.iter().map(|row| id(row, 0)).collect()
}

pub(super) async fn lease(db: &Db, workspace: &WorkspaceId, session: SessionId, action: LeaseAction) -> Result<Lease> {
    let (workspace, key, now) = (escape(workspace.as_str()), session.to_string(), db.now());
    let (name, owner, holder, ttl, epoch) = match action {
        LeaseAction::Take { owner, holder, ttl_ms } => ("take", Some(owner), Some(holder), Some(ttl_ms), None),
        LeaseAction::TakeOver { owner, holder, ttl_ms } => ("take over", Some(owner), Some(holder), Some(ttl_ms), None),
        LeaseAction::Renew { epoch, ttl_ms } => ("renew", None, None, Some(ttl_ms), Some(epoch)),
        LeaseAction::Release { epoch } => ("release", None, None, None, Some(epoch)),
    };
    let owner = owner.map(|owner| owner.to_string());
    let holder = holder.map(|holder| escape(&holder));
    let number = epoch.map(|epoch| epoch.0 as i64);
    let sql = "SELECT o_code, o_epoch, o_owner, o_holder, o_until FROM {s}.lease_2($1, $2, $3, $4, $5, $6, $7, $8)";
    let params: [Param<'_>; 8] = [
        (&workspace, Type::TEXT),
        (&key, Type::TEXT),
        (&name, Type::TEXT),
        (&owner, Type::TEXT),
        (&holder, Type::TEXT),
        (&ttl, Type::INT8),
        (&number, Type::INT8),
        (&now, Type::INT8),
    ];
    let rows = db.change("taking or giving back a lease", sql, &params).await?;
    let row = rows.first().ok_or_else(|| Error::corrupt("the store's functions", "they did not answer"))?;
    let (code, lease) = (column::<&str>(row, 0)?, read_lease(row, 1)?);
    match code {
        "ok" => Ok(lease),
        "held" => {
            let Lease { epoch, holder, until, .. } = lease;
            Err(Error::Held { session, holder, epoch, until })
        }
        "fenced" => {
            let epoch = epoch.unwrap_or(Epoch(0));
            Err(Error::Fenced { session, epoch, current: lease.epoch, holder: lease.holder })
        }
        _ => Err(Error::not_found("session", session)),
    }
}

pub(super) async fn remove(db: &Db, workspace: &WorkspaceId, session: SessionId, epoch: Epoch) -> Result<()> {
    let (workspace, key, mine) = (escape(workspace.as_str()), session.to_string(), epoch.0 as i64);
    let sql = "SELECT o_code, coalesce(o_number, 0), coalesce(o_word, '') FROM {s}.remove_2($1, $2, $3)";
    let params: [Param<'_>; 3] = [(&workspace, Type::TEXT), (&key, Type::TEXT), (&mine, Type::INT8)];
    let rows = db.change("removing a session", sql, &params).await?;
    let row = rows.first().ok_or_else(|| Error::corrupt("the store's functions", "they did not answer"))?;
    match column::<&str>(row, 0)? {
        "ok" => Ok(()),
        "fenced" => Err(Error::Fenced { session, epoch, current: Epoch(number(row, 1)?), holder: text(row, 2)? }),
        "branches" => Err(Conflict::Branches { session, branches: number(row, 1)? }.into()),
        _ => Err(Error::not_found("session", session)),
    }
}
