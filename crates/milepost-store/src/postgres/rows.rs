//! Derived rows, blobs and records.

use milepost_model::{CheckpointId, Position, Seq, SessionId, Status, TimelineId, Timestamp, WorkspaceId};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::db::{Db, Failed, Param, column, escape, id, limit, maybe_text, number, seq, text, time, unescape};
use super::{batch, outside};
use crate::backend::*;
use crate::codec;
use crate::error::{Conflict, Error, Result};

/// How many columns [`session_columns`] names.
pub(super) const SESSION_COLUMNS: usize = 17;

/// The columns of a session's row, in the order [`read_session_row`] takes them.
pub(super) fn session_columns() -> &'static str {
    "s.id, s.status, s.created, s.active, s.messages, s.checkpoints, s.trashed, s.hidden, s.title, s.preview, \
     s.project, s.agent, s.feature, s.task, s.stage, s.tags, s.detail"
}

pub(super) fn read_session_row(row: &Row) -> Result<SessionRow> {
    Ok(SessionRow {
        id: id(row, 0)?,
        // It is derived: what it should be, verify notices and reindex writes.
        status: Status::from_name(column(row, 1)?).unwrap_or_default(),
        created: time(row, 2)?,
        active: time(row, 3)?,
        messages: number(row, 4)?,
        checkpoints: number(row, 5)?,
        trashed: column::<Option<i64>>(row, 6)?.map(Timestamp),
        hidden: column(row, 7)?,
        title: maybe_text(row, 8)?,
        preview: maybe_text(row, 9)?,
        keys: [
            maybe_text(row, 10)?,
            maybe_text(row, 11)?,
            maybe_text(row, 12)?,
            maybe_text(row, 13)?,
            maybe_text(row, 14)?,
        ],
        tags: column::<Vec<String>>(row, 15)?.into_iter().map(unescape).collect(),
        detail: column(row, 16)?,
    })
}

/// A statement that grows by conditions, and its values.
struct Statement {
    sql: String,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Statement {
    /// Begins with a condition-free statement and its first values.
    fn new(sql: String) -> Self {
        Self { sql, values: Vec::new() }
    }

    /// Keeps a value and returns its place.
    fn value(&mut self, value: impl ToSql + Sync + Send + 'static, of: Type) -> String {
        self.values.push((Box::new(value), of));
        format!("${}", self.values.len())
    }

    /// Adds a condition in which `?` stands for a value.
    fn also(&mut self, condition: &str, value: impl ToSql + Sync + Send + 'static, of: Type) {
        let place = self.value(value, of);
        self.sql += " AND ";
        self.sql += &condition.replace('?', &place);
    }

    async fn ask(&self, db: &Db, what: &str) -> Result<Vec<Row>> {
        let mut params: Vec<Param<'_>> = Vec::with_capacity(self.values.len());
        for (value, of) in &self.values {
            params.push((&**value, of.clone()));
        }
        db.ask(what, &self.sql, &params).await
    }
}

pub(super) async fn sessions(db: &Db, workspace: &WorkspaceId, filter: &SessionFilter) -> Result<Vec<SessionRow>> {
    let mut find = Statement::new(format!("SELECT {} FROM {{s}}.sessions s WHERE true", session_columns()));
    find.also("s.workspace = ?", escape(workspace.as_str()), Type::TEXT);
    for (name, key) in SESSION_KEYS.iter().zip(&filter.keys) {
        if let Some(key) = key {
            find.also(&format!("s.{name} = ?"), escape(key), Type::TEXT);
        }
    }
    if let Some(tag) = &filter.tag {
        find.also("? = ANY (s.tags)", escape(tag), Type::TEXT);
    }
    if let Some(from) = filter.active_from {
        find.also("s.active >= ?", from.0, Type::INT8);
    }
    if let Some(to) = filter.active_to {
        find.also("s.active < ?", to.0, Type::INT8);
    }
    let by = match filter.sort {
        SessionSort::Active => "s.active",
        SessionSort::Created => "s.created",
    };
    if let Some(after) = &filter.after {
        let (time, id) = (find.value(after.time.0, Type::INT8), find.value(after.id.to_string(), Type::TEXT));
        find.sql += &format!(" AND ({by}, s.id) < ({time}, {id})");
    }
    if !filter.status.is_empty() {
        let names: Vec<String> = filter.status.iter().map(|status| status.as_str().to_owned()).collect();
        find.also("s.status = ANY (?)", names, Type::TEXT_ARRAY);
    }
    find.sql += if filter.trashed { " AND s.trashed IS NOT NULL" } else { " AND s.trashed IS NULL" };
    if !filter.hidden {
        find.sql += " AND NOT s.hidden";
    }
    find.sql += &format!(" ORDER BY {by} DESC, s.id DESC LIMIT {}", limit(filter.limit));
    find.ask(db, "listing sessions").await?.iter().map(read_session_row).collect()
}

pub(super) async fn workspaces(db: &Db) -> Result<Vec<WorkspaceId>> {
    let sql = "SELECT workspace FROM {s}.timelines UNION SELECT workspace FROM {s}.records ORDER BY 1";
    let rows = db.ask("listing workspaces", sql, &[]).await?;
    rows.iter().map(|row| Ok(WorkspaceId::new(text(row, 0)?)?)).collect()
}

const MARK: &str = "SELECT t.id, m.seq, m.checkpoint, m.time, m.trigger, m.label, m.clean, m.resumable, m.kept, \
                    m.messages, m.trashed FROM {s}.marks m JOIN {s}.timelines t ON t.no = m.timeline WHERE ";

fn read_mark(row: &Row) -> Result<MarkRow> {
    Ok(MarkRow {
        at: Position { timeline: id(row, 0)?, seq: Seq(number(row, 1)?) },
        id: id(row, 2)?,
        time: time(row, 3)?,
        trigger: text(row, 4)?,
        label: maybe_text(row, 5)?,
        clean: column(row, 6)?,
        resumable: column(row, 7)?,
        kept: column(row, 8)?,
        messages: number(row, 9)?,
        trashed: column::<Option<i64>>(row, 10)?.map(Timestamp),
    })
}

pub(super) async fn marks(db: &Db, workspace: &WorkspaceId, filter: &MarkFilter) -> Result<Vec<MarkRow>> {
    let mut find = Statement::new(format!("{MARK}true"));
    find.also("t.workspace = ?", escape(workspace.as_str()), Type::TEXT);
    find.also("t.id = ?", filter.timeline.to_string(), Type::TEXT);
    find.also("m.seq >= ?", seq(filter.from.0), Type::INT8);
    find.also("m.seq < ?", seq(filter.to.0), Type::INT8);
    if let Some(label) = &filter.label {
        find.also("m.label = ?", escape(label), Type::TEXT);
    }
    if let Some(clean) = filter.clean {
        find.also("m.clean = ?", clean, Type::BOOL);
    }
    if let Some(resumable) = filter.resumable {
        find.also("m.resumable = ?", resumable, Type::BOOL);
    }
    if let Some(from) = filter.time_from {
        find.also("m.time >= ?", from.0, Type::INT8);
    }
    if let Some(to) = filter.time_to {
        find.also("m.time < ?", to.0, Type::INT8);
    }
    if let Some(trashed) = filter.trashed {
        find.also("(m.trashed IS NOT NULL) = ?", trashed, Type::BOOL);
    }
    if !filter.triggers.is_empty() {
        let names: Vec<String> = filter.triggers.iter().map(|name| escape(name)).collect();
        find.also("m.trigger = ANY (?)", names, Type::TEXT_ARRAY);
    }
    find.sql += if filter.order == Order::Forward { " ORDER BY m.seq" } else { " ORDER BY m.seq DESC" };
    find.sql += &format!(" LIMIT {}", limit(filter.limit));
    find.ask(db, "listing marks").await?.iter().map(read_mark).collect()
}

/// How many marks sessions have up to their heads, without the trash.
pub(super) async fn count_marks(db: &Db, workspace: &WorkspaceId, sessions: &[SessionId]) -> Result<Vec<u64>> {
    let sql = "WITH RECURSIVE part (number, no, past) AS (
                 SELECT a.number, t.no, 9223372036854775807 FROM unnest($2) WITH ORDINALITY a (id, number)
                 JOIN {s}.timelines t ON t.workspace = $1 AND t.session = a.id AND t.head = 'main'
                 UNION ALL
                 SELECT p.number, t.parent, least(t.parent_seq + 1, p.past)
                 FROM part p JOIN {s}.timelines t ON t.no = p.no WHERE t.parent IS NOT NULL)
               SELECT p.number, count(m.seq) FROM part p
               JOIN {s}.marks m ON m.timeline = p.no AND m.seq < p.past AND m.trashed IS NULL GROUP BY p.number";
    let (workspace, ids) = (escape(workspace.as_str()), sessions.iter().map(ToString::to_string).collect::<Vec<_>>());
    let rows = db.ask("counting marks", sql, &[(&workspace, Type::TEXT), (&ids, Type::TEXT_ARRAY)]).await?;
    let mut counts = vec![0; sessions.len()];
    for row in &rows {
        // They are numbered from one.
        if let Some(place) = (number(row, 0)? as usize).checked_sub(1).and_then(|place| counts.get_mut(place)) {
            *place = number(row, 1)?;
        }
    }
    Ok(counts)
}

pub(super) async fn mark(db: &Db, workspace: &WorkspaceId, checkpoint: CheckpointId) -> Result<Option<MarkRow>> {
    let mut find = Statement::new(format!("{MARK}true"));
    find.also("t.workspace = ?", escape(workspace.as_str()), Type::TEXT);
    find.also("m.checkpoint = ?", checkpoint.to_string(), Type::TEXT);
    find.sql += " LIMIT 1";
    find.ask(db, "finding a mark").await?.first().map(read_mark).transpose()
}

pub(super) async fn keyframe(db: &Db, workspace: &WorkspaceId, at: Position) -> Result<Option<Keyframe>> {
    let sql = "SELECT k.seq, k.pinned, k.body FROM {s}.keyframes k
               WHERE k.timeline = (SELECT no FROM {s}.timelines WHERE workspace = $1 AND id = $2) AND k.seq <= $3
               ORDER BY k.seq DESC LIMIT 1";
    let (workspace, line, last) = (escape(workspace.as_str()), at.timeline.to_string(), seq(at.seq.0));
    let params: [Param<'_>; 3] = [(&workspace, Type::TEXT), (&line, Type::TEXT), (&last, Type::INT8)];
    let rows = db.ask("reading a keyframe", sql, &params).await?;
    let read = |row: &Row| {
        let at = Position { timeline: at.timeline, seq: Seq(number(row, 0)?) };
        Ok(Keyframe { at, pinned: column(row, 1)?, body: column(row, 2)? })
    };
    rows.first().map(read).transpose()
}

pub(super) async fn keyframes(db: &Db, workspace: &WorkspaceId, line: TimelineId) -> Result<Vec<(Seq, bool)>> {
    let sql = "SELECT k.seq, k.pinned FROM {s}.keyframes k
               WHERE k.timeline = (SELECT no FROM {s}.timelines WHERE workspace = $1 AND id = $2) ORDER BY k.seq";
    let (workspace, line) = (escape(workspace.as_str()), line.to_string());
    let rows = db.ask("listing keyframes", sql, &[(&workspace, Type::TEXT), (&line, Type::TEXT)]).await?;
    rows.iter().map(|row| Ok((Seq(number(row, 0)?), column(row, 1)?))).collect()
}

/// Puts a session's derived rows in place of those that are there, and has its texts indexed anew.
pub(super) async fn rebuild(
    db: &Db,
    workspace: &WorkspaceId,
    row: &SessionRow,
    marks: &[MarkRow],
    text_index: bool,
) -> Result<(), Failed> {
    let what = "rebuilding a session's rows";
    let (name, now) = (escape(workspace.as_str()), db.now());
    let json = Value::Object(batch::row(row)).to_string();
    let marks = Value::Array(marks.iter().map(batch::mark).collect()).to_string();
    let mut lent = db.lend(what).await?;
    lent.take_time();
    let sql = db.sql("SELECT {s}.rebuild_2($1, $2::jsonb, $3, $4::jsonb, $5, $6)");
    let params: [Param<'_>; 6] = [
        (&name, Type::TEXT),
        (&json, Type::TEXT),
        (&row.detail, Type::BYTEA),
        (&marks, Type::TEXT),
        (&text_index, Type::BOOL),
        (&now, Type::INT8),
    ];
    lent.ask(what, &sql, &params).await?;
    lent.give_back();
    Ok(())
}

/// The blob with an entry's payload, in a transaction.
pub(super) async fn blob_of(
    db: &Db,
    lent: &mut super::db::Lent<'_>,
    line: i64,
    entry: &StoredEntry,
) -> Result<Option<Vec<u8>>, Failed> {
    let Some(wanted) = entry.refs.first().filter(|_| codec::is_blob(entry)) else { return Ok(None) };
    let sql = db.sql(
        "SELECT t.workspace, b.body FROM {s}.timelines t JOIN {s}.blobs b ON b.workspace = t.workspace AND b.id = $2 WHERE t.no = $1",
    );
    let bytes = wanted.0.as_slice();
    let rows = lent.ask("reading a blob", &sql, &[(&line, Type::INT8), (&bytes, Type::BYTEA)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let workspace = unescape(column(row, 0)?);
    let workspace = WorkspaceId::new(workspace).map_err(|error| Error::corrupt("a timeline", error.to_string()))?;
    let mut found = [Some(column(row, 1)?)];
    outside::resolve(db.outside.as_ref(), &workspace, &[*wanted], &mut found).await?;
    let [body] = found;
    Ok(body)
}

pub(super) async fn put_blobs(db: &Db, workspace: &WorkspaceId, mut blobs: Vec<Blob>) -> Result<()> {
    if let Some(outside) = &db.outside {
        // A chunk of a file is put again with every snapshot: what is there need not be sent.
        let there = outside::touch(db, workspace, &blobs).await?;
        blobs.retain(|blob| !there.contains(&blob.id));
        blobs = outside.put(workspace, &blobs).await?.in_time()?;
    }
    // So many bytes fit into one statement in any case.
    const TOGETHER: usize = 32 << 20;
    let (workspace, now) = (escape(workspace.as_str()), db.now());
    let mut rest = blobs.as_slice();
    while !rest.is_empty() {
        let mut size = 0;
        let fits = |blob: &&Blob| {
            size += blob.bytes.len();
            size <= TOGETHER
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (some, later) = rest.split_at(count);
        let ids: Vec<&[u8]> = some.iter().map(|blob| blob.id.0.as_slice()).collect();
        let bytes: Vec<&[u8]> = some.iter().map(|blob| blob.bytes.as_slice()).collect();
        let params: [Param<'_>; 4] =
            [(&workspace, Type::TEXT), (&ids, Type::BYTEA_ARRAY), (&bytes, Type::BYTEA_ARRAY), (&now, Type::INT8)];
        // Putting the same once more does no harm.
        db.ask("writing blobs", "SELECT {s}.put_blobs_2($1, $2, $3, $4)", &params).await?;
        rest = later;
    }
    Ok(())
}

pub(super) async fn get_blobs(db: &Db, workspace: &WorkspaceId, ids: &[BlobId]) -> Result<Vec<Option<Vec<u8>>>> {
    // Blobs can have 64 MiB: a few at a time.
    const TOGETHER: usize = 16;
    let own = escape(workspace.as_str());
    let sql = "SELECT x.i, b.body FROM unnest($2) WITH ORDINALITY AS x (id, i)
               JOIN {s}.blobs b ON b.workspace = $1 AND b.id = x.id";
    let mut found: Vec<Option<Vec<u8>>> = Vec::with_capacity(ids.len());
    for some in ids.chunks(TOGETHER) {
        let base = found.len();
        found.resize(base + some.len(), None);
        let names: Vec<&[u8]> = some.iter().map(|id| id.0.as_slice()).collect();
        let rows = db.ask("reading blobs", sql, &[(&own, Type::TEXT), (&names, Type::BYTEA_ARRAY)]).await?;
        for row in &rows {
            if let Some(slot) = found.get_mut(base + (column::<i64>(row, 0)? - 1) as usize) {
                *slot = Some(column(row, 1)?);
            }
        }
    }
    outside::resolve(db.outside.as_ref(), workspace, ids, &mut found).await?;
    Ok(found)
}

pub(super) fn blob_id(row: &Row, at: usize) -> Result<BlobId> {
    let bytes: &[u8] = column(row, at)?;
    bytes.try_into().map(BlobId).map_err(|_| Error::corrupt("a blob", "its name has another length"))
}

pub(super) async fn list_blobs(
    db: &Db,
    workspace: &WorkspaceId,
    after: Option<BlobId>,
    rows: usize,
) -> Result<Vec<BlobInfo>> {
    let (workspace, most) = (escape(workspace.as_str()), limit(rows));
    let after = after.map(|id| id.0.to_vec()).unwrap_or_default();
    let length = outside::LENGTH;
    let sql =
        format!("SELECT id, {length}, touched FROM {{s}}.blobs WHERE workspace = $1 AND id > $2 ORDER BY id LIMIT $3");
    let params: [Param<'_>; 3] = [(&workspace, Type::TEXT), (&after, Type::BYTEA), (&most, Type::INT8)];
    let rows = db.ask("listing blobs", &sql, &params).await?;
    rows.iter()
        .map(|row| Ok(BlobInfo { id: blob_id(row, 0)?, bytes: number(row, 1)?, touched: time(row, 2)? }))
        .collect()
}

/// Blobs that entries of a workspace need, as a set.
const NEEDED: &str = "SELECT DISTINCT x.id FROM {s}.timelines t JOIN {s}.entries e ON e.timeline = t.no,
                      unnest(e.refs) AS x (id) WHERE t.workspace = $1 AND e.refs IS NOT NULL";

pub(super) async fn blob_refs(db: &Db, workspace: &WorkspaceId) -> Result<Vec<BlobId>> {
    let workspace = escape(workspace.as_str());
    let rows = db.ask("listing what needs blobs", &format!("{NEEDED} ORDER BY 1"), &[(&workspace, Type::TEXT)]).await?;
    rows.iter().map(|row| blob_id(row, 0)).collect()
}

pub(super) async fn drop_blobs(db: &Db, workspace: &WorkspaceId, ids: &[BlobId], before: Timestamp) -> Result<u64> {
    let own = escape(workspace.as_str());
    let names: Vec<&[u8]> = ids.iter().map(|id| id.0.as_slice()).collect();
    let sql = format!(
        "WITH gone AS (
           DELETE FROM {{s}}.blobs b
           WHERE b.workspace = $1 AND b.id = ANY ($2) AND b.touched < $3 AND b.id NOT IN ({NEEDED}) RETURNING 1)
         SELECT count(*) FROM gone"
    );
    let params: [Param<'_>; 3] = [(&own, Type::TEXT), (&names, Type::BYTEA_ARRAY), (&before.0, Type::INT8)];
    let rows = db.change("removing blobs", &sql, &params).await?;
    if let Some(outside) = &db.outside {
        outside.sweep(db, workspace, before).await?;
    }
    rows.first().map_or(Ok(0), |row| number(row, 0))
}

fn read_record(row: &Row) -> Result<Record> {
    Ok(Record {
        key: RecordKey { kind: text(row, 0)?, key: text(row, 1)? },
        version: number(row, 2)?,
        due: column::<Option<i64>>(row, 3)?.map(Timestamp),
        value: column(row, 4)?,
    })
}

pub(super) async fn record(db: &Db, workspace: &WorkspaceId, key: &RecordKey) -> Result<Option<Record>> {
    let mut find = Statement::new("SELECT kind, key, version, due, value FROM {s}.records WHERE true".into());
    find.also("workspace = ?", escape(workspace.as_str()), Type::TEXT);
    find.also("kind = ?", escape(&key.kind), Type::TEXT);
    find.also("key = ?", escape(&key.key), Type::TEXT);
    find.ask(db, "reading a record").await?.first().map(read_record).transpose()
}

pub(super) async fn put_record(db: &Db, workspace: &WorkspaceId, new: &Record, expected: Option<u64>) -> Result<()> {
    let (workspace, kind, key) = (escape(workspace.as_str()), escape(&new.key.kind), escape(&new.key.key));
    let (version, due) = (new.version as i64, new.due.map(|time| time.0));
    let expected = expected.map(|version| version as i64);
    let params: [Param<'_>; 7] = [
        (&workspace, Type::TEXT),
        (&kind, Type::TEXT),
        (&key, Type::TEXT),
        (&version, Type::INT8),
        (&due, Type::INT8),
        (&new.value, Type::BYTEA),
        (&expected, Type::INT8),
    ];
    let sql = "SELECT {s}.put_record_2($1, $2, $3, $4, $5, $6, $7)";
    compared(&db.change("writing a record", sql, &params).await?, &new.key)
}

pub(super) async fn delete_record(db: &Db, workspace: &WorkspaceId, name: &RecordKey, expected: u64) -> Result<()> {
    let (workspace, kind, key) = (escape(workspace.as_str()), escape(&name.kind), escape(&name.key));
    let version = expected as i64;
    let params: [Param<'_>; 4] =
        [(&workspace, Type::TEXT), (&kind, Type::TEXT), (&key, Type::TEXT), (&version, Type::INT8)];
    let sql = "SELECT {s}.delete_record_2($1, $2, $3, $4)";
    compared(&db.change("removing a record", sql, &params).await?, name)
}

/// Whether a record had the version that was expected.
fn compared(rows: &[Row], key: &RecordKey) -> Result<()> {
    match rows.first().map(|row| column::<bool>(row, 0)).transpose()? {
        Some(true) => Ok(()),
        _ => Err(Conflict::Record { key: key.key.clone() }.into()),
    }
}

pub(super) async fn scan_records(db: &Db, workspace: &WorkspaceId, scan: &RecordScan) -> Result<Vec<Record>> {
    let mut find = Statement::new("SELECT kind, key, version, due, value FROM {s}.records WHERE true".into());
    find.also("workspace = ?", escape(workspace.as_str()), Type::TEXT);
    find.also("kind = ?", escape(&scan.kind), Type::TEXT);
    match &scan.order {
        RecordOrder::Key { after } => {
            if let Some(after) = after {
                find.also("key > ?", escape(after), Type::TEXT);
            }
            find.sql += " ORDER BY key";
        }
        RecordOrder::Due { until, after } => {
            find.also("due <= ?", until.0, Type::INT8);
            if let Some((due, key)) = after {
                let (due, key) = (find.value(due.0, Type::INT8), find.value(escape(key), Type::TEXT));
                find.sql += &format!(" AND (due, key) > ({due}, {key})");
            }
            find.sql += " ORDER BY due, key";
        }
    }
    find.sql += &format!(" LIMIT {}", limit(scan.limit));
    find.ask(db, "listing records").await?.iter().map(read_record).collect()
}

pub(super) async fn record_kinds(db: &Db, workspace: &WorkspaceId) -> Result<Vec<String>> {
    let workspace = escape(workspace.as_str());
    let sql = "SELECT DISTINCT kind FROM {s}.records WHERE workspace = $1 ORDER BY 1";
    db.ask("listing records", sql, &[(&workspace, Type::TEXT)]).await?.iter().map(|row| text(row, 0)).collect()
}
