//! The whole: what uses the space, what is damaged, giving space back.

use milepost_model::{SessionId, WorkspaceId};
use tokio_postgres::types::Type;

use super::db::{Db, Failed, Lent, Param, column, escape, id, number, seq};
use super::text::TextRows;
use super::{log, rows};
use crate::backend::*;
use crate::error::Result;

/// Every table, the largest last.
const TABLES: [&str; 8] = ["versions", "records", "sessions", "timelines", "marks", "keyframes", "blobs", "entries"];
/// Messages whose texts are compared together.
const TOGETHER: i64 = 256;

pub(super) async fn usage(db: &Db, workspace: &WorkspaceId) -> Result<Usage> {
    let what = "adding up what uses the space";
    let workspace = escape(workspace.as_str());
    let params: [Param<'_>; 1] = [(&workspace, Type::TEXT)];
    let sql = "SELECT t.session, x.kind, sum(x.n)::int8, sum(x.bytes)::int8 FROM (
                 SELECT e.timeline, e.kind, count(*) AS n, sum(octet_length(e.body) + coalesce(octet_length(e.text), 0)
                        + 32 * coalesce(cardinality(e.refs), 0) + 24) AS bytes
                 FROM {s}.entries e GROUP BY 1, 2
                 UNION ALL
                 SELECT k.timeline, 0, count(*), sum(octet_length(k.body)) FROM {s}.keyframes k GROUP BY 1
               ) x JOIN {s}.timelines t ON t.no = x.timeline
               WHERE t.workspace = $1 GROUP BY 1, 2 ORDER BY 1";
    let mut usage = Usage::default();
    for row in &db.ask(what, sql, &params).await? {
        let session: SessionId = id(row, 0)?;
        let kind: i32 = column(row, 1)?;
        if usage.sessions.last().is_none_or(|own| own.session != session) {
            usage.sessions.push(SessionUsage { session, kinds: Default::default(), keyframes: KindUsage::default() });
        }
        let Some(own) = usage.sessions.last_mut() else { continue };
        let slot = if kind == 0 { Some(&mut own.keyframes) } else { own.kinds.get_mut(kind as usize - 1) };
        if let Some(slot) = slot {
            *slot = KindUsage { entries: number(row, 2)?, bytes: number(row, 3)? };
        }
    }
    let blob = super::outside::LENGTH;
    for (table, bytes, slot) in
        [("blobs", blob, &mut usage.blobs), ("records", "octet_length(value)", &mut usage.records)]
    {
        let sql = format!("SELECT count(*), coalesce(sum({bytes}), 0)::int8 FROM {{s}}.{table} WHERE workspace = $1");
        if let Some(row) = db.ask(what, &sql, &params).await?.first() {
            *slot = KindUsage { entries: number(row, 0)?, bytes: number(row, 1)? };
        }
    }
    let schema = db.target.schema.clone();
    let sql = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8,
                      coalesce(sum(pg_total_relation_size(c.oid)) FILTER (WHERE c.relname = 'texts'), 0)::int8
               FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = to_regnamespace($1)";
    if let Some(row) = db.ask(what, sql, &[(&schema, Type::TEXT)]).await?.first() {
        (usage.total_bytes, usage.text_index_bytes) = (number(row, 0)?, number(row, 1)?);
    }
    Ok(usage)
}

/// Looks for damage below the log. All of it sees the same state.
pub(super) async fn check(db: &Db, depth: Depth, text_index: bool) -> Result<Vec<Finding>, Failed> {
    let what = "checking the store";
    let mut lent = db.lend(what).await?;
    lent.take_time();
    if depth == Depth::Deep && text_index {
        super::text::catch_up(db).await?;
    }
    lent.run(what, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let mut found = settings(&mut lent).await?;
    found.extend(orphans(db, &mut lent).await?);
    if depth == Depth::Deep && text_index {
        found.extend(texts(db, &mut lent).await?);
    }
    lent.run(what, "COMMIT").await?;
    lent.give_back();
    Ok(found)
}

/// Settings of the server with which a power cut can take back what was acknowledged.
async fn settings(lent: &mut Lent<'_>) -> Result<Vec<Finding>, Failed> {
    let sql = "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'";
    let rows = lent.ask("checking the server's settings", sql, &[]).await?;
    let finding = |name: String| Finding {
        derived: false,
        what: format!("the server runs with {name} = off, and a power cut can damage the store: set it to on"),
    };
    Ok(rows.iter().map(|row| column(row, 0).map(finding)).collect::<Result<_>>()?)
}

/// Rows that belong to nothing.
async fn orphans(db: &Db, lent: &mut Lent<'_>) -> Result<Vec<Finding>, Failed> {
    let lost =
        |table: &str, on: &str| format!("SELECT count(*) FROM {{s}}.{table} x WHERE NOT EXISTS (SELECT 1 FROM {on})");
    let entry = "{s}.entries e WHERE e.timeline = x.timeline AND e.seq = x.seq";
    let queries = [
        ("timelines", false, lost("timelines", "{s}.sessions s WHERE s.workspace = x.workspace AND s.id = x.session")),
        (
            "timelines of entries",
            false,
            "WITH RECURSIVE line (no) AS (
               SELECT min(timeline) FROM {s}.entries
               UNION ALL
               SELECT (SELECT min(timeline) FROM {s}.entries WHERE timeline > line.no) FROM line WHERE line.no IS NOT NULL)
             SELECT count(*) FROM line WHERE no IS NOT NULL AND no NOT IN (SELECT no FROM {s}.timelines)"
                .to_owned(),
        ),
        ("marks", true, lost("marks", entry)),
        ("keyframes", false, lost("keyframes", entry)),
        ("texts", true, lost("texts", entry)),
    ];
    let mut found = Vec::new();
    for (name, derived, sql) in queries {
        let rows = lent.ask("checking the store", &db.sql(&sql), &[]).await?;
        let count = rows.first().map(|row| number(row, 0)).transpose()?.unwrap_or_default();
        if count > 0 {
            let what = format!("{count} {name} belong to nothing; reindex rebuilds what is derived");
            found.push(Finding { derived, what });
        }
    }
    Ok(found)
}

/// Derives the text index once more and compares.
async fn texts(db: &Db, lent: &mut Lent<'_>) -> Result<Option<Finding>, Failed> {
    let what = "checking the text index";
    let rows = lent.ask(what, &db.sql("SELECT no FROM {s}.timelines ORDER BY 1"), &[]).await?;
    let lines = rows.iter().map(|row| column(row, 0)).collect::<Result<Vec<i64>>>()?;
    let compare = db.sql(
        "SELECT DISTINCT x.timeline, x.seq FROM unnest($1, $2, $3, $4) AS x (timeline, seq, part, words)
         WHERE NOT EXISTS (SELECT 1 FROM {s}.texts t WHERE t.timeline = x.timeline AND t.seq = x.seq
                           AND t.part = x.part AND t.words = x.words::tsvector)",
    );
    // What came in the meantime is not in the index yet, or is there as an older program cut it.
    let sql = "SELECT timeline, first, past FROM {s}.unindexed UNION ALL SELECT timeline, first, past FROM {s}.recut";
    let rows = lent.ask(what, &db.sql(sql), &[]).await?;
    let waiting: Vec<(i64, i64, i64)> =
        rows.iter().map(|row| Ok((column(row, 0)?, column(row, 1)?, column(row, 2)?))).collect::<Result<_>>()?;
    let waits = |line, seq| waiting.iter().any(|(own, first, past)| *own == line && (*first..*past).contains(&seq));
    let (mut expected, mut wrong) = (0u64, 0u64);
    let mut after = (i64::MIN, i64::MIN);
    loop {
        let mut found = log::messages(db, lent, &lines, after, TOGETHER).await?;
        let Some((line, last, _)) = found.last() else { break };
        after = (*line, seq(last.0));
        found.retain(|(line, place, _)| !waits(*line, seq(place.0)));
        let mut again = TextRows::default();
        for (line, seq, entry) in &found {
            let blob = rows::blob_of(db, lent, *line, entry).await?;
            again.add(*line, *seq, entry, blob.as_deref());
        }
        expected += again.words.len() as u64;
        wrong += lent.ask(what, &compare, &again.params()).await?.len() as u64;
    }
    let sql = "SELECT count(*) FROM {s}.texts x WHERE NOT EXISTS (
                 SELECT 1 FROM {s}.recut r WHERE r.timeline = x.timeline AND x.seq >= r.first AND x.seq < r.past)";
    let rows = lent.ask(what, &db.sql(sql), &[]).await?;
    let stored = rows.first().map(|row| number(row, 0)).transpose()?.unwrap_or_default();
    if wrong == 0 && stored == expected {
        return Ok(None);
    }
    let what = "the text index is damaged: it does not say what the texts say; reindex rebuilds it".to_owned();
    Ok(Some(Finding { derived: true, what }))
}

/// Writes every table anew without what was removed. Each is locked meanwhile: the small ones, that hold keys, first.
pub(super) async fn compact(db: &Db) -> Result<(), Failed> {
    let mut lent = db.lend("compacting the store").await?;
    for table in TABLES.into_iter().chain(["unindexed", "recut", "text_gaps", "texts"]) {
        lent.run("compacting the store", &db.sql(&format!("VACUUM (FULL, ANALYZE) {{s}}.{table}"))).await?;
    }
    lent.give_back();
    Ok(())
}
