//! The text index: which messages hold which words. It is derived from the log and follows it a
//! moment later; a search catches it up first, so that it always finds what was acknowledged.

use milepost_model::{Seq, SessionId, TimelineId, WorkspaceId};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::log::{entry_key, key_range, parse, read_key, read_past_damage, seq_of};
use super::rows::read_blob_of_timeline;
use super::schema::{TEXT_GAPS, TEXT_INDEX, fail, has_text_index, has_text_rules};
use crate::backend::*;
use crate::codec::{self, searchable_text};
use crate::error::{Error, Result};
use crate::words::{bare, spaced};
use milepost_model::Position;

/// Texts longer than this are indexed up to here.
const INDEXED_BYTES: usize = 1 << 20;

/// The same as [`index`], for somebody who searches: an index by older rules is begun anew.
pub(super) fn catch_up(db: &Connection, limit: usize) -> Result<usize> {
    if !has_text_rules(db)? {
        start_anew(db)?;
    }
    index(db, limit)
}

/// Indexes up to `limit` messages that are not indexed yet. Returns how many it looked at. An index by older rules is begun
/// anew when there are any: a file that is only read stays as it is.
pub(super) fn index(db: &Connection, limit: usize) -> Result<usize> {
    let failed = fail("indexing texts");
    if !has_text_rules(db)? {
        let waits =
            db.prepare_cached("SELECT 1 FROM unindexed LIMIT 1").and_then(|mut s| s.exists([])).map_err(&failed)?;
        if !waits {
            return Ok(0);
        }
        start_anew(db)?;
    }
    let mut done = 0;
    while done < limit {
        let next: Option<(i64, i64, String)> = db
            .prepare_cached(
                "SELECT u.timeline, t.indexed, t.id FROM unindexed u JOIN timelines t ON t.no = u.timeline LIMIT 1",
            )
            .and_then(|mut s| s.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional())
            .map_err(&failed)?;
        let Some((no, indexed, id)) = next else { break };
        let timeline = parse::<TimelineId>(&id, 2).map_err(&failed)?;
        let (begin, room) = (Seq(indexed as u64), limit - done);
        let read = read_past_damage(db, no, timeline, (begin, Seq(u64::MAX)), room)?;
        if read.is_damaged {
            note_gap(db, no, TextGap::Damaged)?;
        }
        for (seq, entry) in &read.found {
            match add(db, entry_key(no, *seq)?, entry) {
                Ok(false) => {}
                Ok(true) => note_gap(db, no, TextGap::Cut)?,
                // What lies elsewhere is damaged.
                Err(error) if error.is_damage() => note_gap(db, no, TextGap::Damaged)?,
                Err(error) => return Err(error),
            }
        }
        let entries = read.found;
        if entries.len() < room {
            db.prepare_cached("DELETE FROM unindexed WHERE timeline = ?1")
                .and_then(|mut s| s.execute([no]))
                .map_err(&failed)?;
        }
        if let Some((last, _)) = entries.last() {
            db.prepare_cached("UPDATE timelines SET indexed = ?2 WHERE no = ?1")
                .and_then(|mut s| s.execute([no, last.0 as i64 + 1]))
                .map_err(&failed)?;
        }
        done += entries.len().max(1);
    }
    Ok(done.min(limit))
}

/// What is indexed of an entry, and whether that is only its beginning.
fn text_of(db: &Connection, key: i64, entry: &StoredEntry) -> Result<Option<(String, bool)>> {
    let blob = match codec::is_blob(entry) {
        true => read_blob_of_timeline(db, key >> 32, entry.refs.first())?,
        false => None,
    };
    let Some(mut text) = searchable_text(entry, blob.as_deref()) else { return Ok(None) };
    let is_cut = text.len() > INDEXED_BYTES;
    text.truncate(text.floor_char_boundary(INDEXED_BYTES));
    Ok(Some((bare(&spaced(&text)).into_owned(), is_cut)))
}

/// Indexes a message. Returns whether it was cut.
fn add(db: &Connection, key: i64, entry: &StoredEntry) -> Result<bool> {
    let Some((text, is_cut)) = text_of(db, key, entry)? else { return Ok(false) };
    db.prepare_cached("INSERT INTO texts (rowid, text) VALUES (?1, ?2)")
        .and_then(|mut s| s.execute(params![key, text]))
        .map_err(fail("indexing a text"))?;
    Ok(is_cut)
}

const fn word_of(gap: TextGap) -> &'static str {
    match gap {
        TextGap::Damaged => "damaged",
        TextGap::Cut => "cut",
    }
}

/// Notes what the index lacks of a timeline.
fn note_gap(db: &Connection, no: i64, gap: TextGap) -> Result<()> {
    if has_text_rules(db)? {
        db.prepare_cached("INSERT OR IGNORE INTO text_gaps (timeline, why) VALUES (?1, ?2)")
            .and_then(|mut s| s.execute(params![no, word_of(gap)]))
            .map_err(fail("noting what is not indexed"))?;
    }
    Ok(())
}

/// Forgets what the index lacked of a timeline.
pub(super) fn forget_gaps(db: &Connection, no: i64) -> Result<()> {
    if has_text_rules(db)? {
        db.execute("DELETE FROM text_gaps WHERE timeline = ?1", [no]).map_err(fail("noting what is indexed"))?;
    }
    Ok(())
}

/// What the index lacks of sessions.
pub(super) fn gaps(db: &Connection, workspace: &WorkspaceId) -> Result<Vec<(SessionId, TextGap)>> {
    if !has_text_rules(db)? {
        return Ok(Vec::new());
    }
    let failed = fail("looking for what is not indexed");
    let sql = "SELECT DISTINCT t.session, g.why FROM text_gaps g JOIN timelines t ON t.no = g.timeline
               WHERE t.workspace = ?1 ORDER BY 1, 2";
    let read =
        |row: &rusqlite::Row<'_>| Ok((parse::<SessionId>(&row.get::<_, String>(0)?, 0)?, row.get::<_, String>(1)?));
    let rows: Vec<(SessionId, String)> =
        db.prepare_cached(sql).and_then(|mut s| s.query_map([workspace.as_str()], read)?.collect()).map_err(&failed)?;
    let known = |(session, why): (SessionId, String)| {
        [TextGap::Damaged, TextGap::Cut].into_iter().find(|gap| word_of(*gap) == why).map(|gap| (session, gap))
    };
    Ok(rows.into_iter().filter_map(known).collect())
}

/// Drops a range of texts from the index.
pub(super) fn forget(db: &Connection, from: i64, to: i64) -> Result<()> {
    if !has_text_index(db)? {
        return Ok(());
    }
    let failed = fail("removing texts from the index");
    let indexed: i64 = db
        .prepare_cached("SELECT indexed FROM timelines WHERE no = ?1")
        .and_then(|mut s| s.query_row([from >> 32], |row| row.get(0)).optional())
        .map_err(&failed)?
        .unwrap_or(0);
    let end = to.min(from >> 32 << 32 | indexed);
    db.prepare_cached(
        "DELETE FROM texts WHERE rowid IN (SELECT id FROM entries WHERE id >= ?1 AND id < ?2 AND kind = 1)",
    )
    .and_then(|mut s| s.execute([from, end]))
    .map_err(&failed)?;
    Ok(())
}

/// Indexes one message anew, if it was indexed before.
pub(super) fn reindex_one(db: &Connection, key: i64) -> Result<()> {
    if !has_text_index(db)? {
        return Ok(());
    }
    forget(db, key, key + 1)?;
    let failed = fail("indexing a text");
    let indexed: i64 =
        db.query_row("SELECT indexed FROM timelines WHERE no = ?1", [key >> 32], |row| row.get(0)).map_err(&failed)?;
    match read_key(db, key)? {
        Some(entry) if (seq_of(key).0 as i64) < indexed => add(db, key, &entry).map(drop),
        _ => Ok(()),
    }
}

/// Has all texts of a session indexed anew.
pub(super) fn reset(db: &Connection, workspace: &WorkspaceId, session: SessionId) -> Result<()> {
    if !has_text_index(db)? {
        return Ok(());
    }
    let failed = fail("resetting the text index");
    let lines: Vec<(i64, Option<i64>)> = db
        .prepare("SELECT no, parent_seq FROM timelines WHERE workspace = ?1 AND session = ?2")
        .and_then(|mut s| {
            let key = [workspace.as_str(), &session.to_string()];
            s.query_map(key, |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .map_err(&failed)?;
    for (no, parent_seq) in lines {
        let (from, to) = key_range(no, Seq(0), Seq(u64::MAX));
        match forget(db, from, to) {
            Err(error) if error.is_damage() => return start_anew(db),
            other => other?,
        }
        let begins = parent_seq.map_or(0, |seq| seq + 1);
        db.execute("UPDATE timelines SET indexed = ?2 WHERE no = ?1", [no, begins]).map_err(&failed)?;
        db.execute("INSERT OR IGNORE INTO unindexed (timeline) VALUES (?1)", [no]).map_err(&failed)?;
        forget_gaps(db, no)?;
    }
    Ok(())
}

/// Makes an empty index in the place of a damaged one, and has all texts of the store indexed anew.
pub(super) fn start_anew(db: &Connection) -> Result<()> {
    let failed = fail("making the text index anew");
    if db.execute("INSERT INTO texts (texts) VALUES ('delete-all')", []).is_err() {
        db.execute_batch("DROP TABLE texts").map_err(&failed)?;
        db.execute_batch(TEXT_INDEX).map_err(&failed)?;
    }
    db.execute("UPDATE timelines SET indexed = ifnull(parent_seq + 1, 0)", []).map_err(&failed)?;
    db.execute("INSERT OR IGNORE INTO unindexed (timeline) SELECT no FROM timelines", []).map_err(&failed)?;
    db.execute_batch("DROP TABLE IF EXISTS text_gaps").and_then(|()| db.execute_batch(TEXT_GAPS)).map_err(&failed)?;
    Ok(())
}

/// What the text index holds besides what the texts say, or lacks: compared by a sum over every word at its place, and
/// by the lengths that a search weighs its hits with. That each word is also found from the top is FTS5's own check.
pub(super) fn check(db: &Connection) -> Result<Option<Finding>> {
    if !has_text_index(db)? {
        return Ok(None);
    }
    let failed = fail("checking the text index");
    let found = db.execute("INSERT INTO texts (texts) VALUES ('integrity-check')", []).map_err(failed);
    // What older rules made is made anew before it is next searched.
    let sums = found.and_then(|_| Ok(!has_text_rules(db)? || stored_words(db)? == expected_words(db)?));
    let why = match sums {
        Ok(true) => return Ok(None),
        Ok(false) => "it does not say what the texts say".to_owned(),
        Err(error) if error.is_damage() => error.to_string(),
        Err(error) => return Err(error),
    };
    Ok(Some(Finding { derived: true, what: format!("the text index is damaged: {why}; reindex rebuilds it") }))
}

/// What an index says of its texts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    /// A sum over words at their places and over the lengths of texts that does not depend on their order.
    sum: u128,
    texts: u64,
    /// Words of all texts together.
    words: u64,
}

impl Said {
    fn add(&mut self, doc: i64, number: i64, bytes: &[u8]) {
        let mut hasher = xxhash_rust::xxh3::Xxh3::with_seed(doc as u64);
        hasher.update(&number.to_le_bytes());
        hasher.update(bytes);
        self.sum = self.sum.wrapping_add(hasher.digest128());
    }

    /// Adds what the index `table` says, read through its vocabulary.
    fn add_index(&mut self, db: &Connection, table: &str, vocabulary: &str) -> Result<()> {
        /// No word has this place.
        const LENGTH: i64 = -1;
        let failed = fail("reading the text index");
        let mut statement = db.prepare(&format!("SELECT doc, offset, term FROM {vocabulary}")).map_err(&failed)?;
        let mut rows = statement.query([]).map_err(&failed)?;
        while let Some(row) = rows.next().map_err(&failed)? {
            let (doc, offset): (i64, i64) = row.get(0).and_then(|doc| Ok((doc, row.get(1)?))).map_err(&failed)?;
            self.add(doc, offset, row.get_ref(2).and_then(|term| Ok(term.as_bytes()?)).map_err(&failed)?);
            self.words += 1;
        }
        let mut statement = db.prepare(&format!("SELECT id, sz FROM {table}_docsize")).map_err(&failed)?;
        let mut rows = statement.query([]).map_err(&failed)?;
        while let Some(row) = rows.next().map_err(&failed)? {
            let doc = row.get(0).map_err(&failed)?;
            self.add(doc, LENGTH, row.get_ref(1).and_then(|size| Ok(size.as_blob()?)).map_err(&failed)?);
            self.texts += 1;
        }
        Ok(())
    }
}

/// How many texts and words FTS5 believes there are, from which it takes the length of the average text.
fn stored_totals(db: &Connection) -> Result<(u64, u64)> {
    const TOTALS: i64 = 1;
    let block: Option<Vec<u8>> = db
        .query_row("SELECT block FROM texts_data WHERE id = ?1", [TOTALS], |row| row.get(0))
        .optional()
        .map_err(fail("reading the text index"))?;
    let block = block.unwrap_or_default();
    if block.is_empty() {
        return Ok((0, 0));
    }
    let mut rest = block.as_slice();
    let totals = super::salvage::varint(&mut rest).zip(super::salvage::varint(&mut rest));
    totals.filter(|_| rest.is_empty()).ok_or_else(|| Error::corrupt("the text index", "its totals cannot be read"))
}

fn stored_words(db: &Connection) -> Result<Said> {
    let run = |sql: &str| db.execute_batch(sql).map_err(fail("reading the text index"));
    run("CREATE VIRTUAL TABLE temp.words USING fts5vocab(main, texts, instance)")?;
    let mut said = Said::default();
    let read = said.add_index(db, "main.texts", "temp.words");
    run("DROP TABLE temp.words")?;
    read?;
    if stored_totals(db)? != (said.texts, said.words) {
        return Err(Error::corrupt("the text index", "its totals do not fit"));
    }
    Ok(said)
}

/// What the index should say of the texts that were indexed: they are indexed once more, some at a time.
fn expected_words(db: &Connection) -> Result<Said> {
    const TOGETHER: usize = 1024;
    let failed = fail("reading texts");
    let run = |sql: &str| db.execute_batch(sql).map_err(&failed);
    run(&TEXT_INDEX
        .replace("TABLE texts", "TABLE temp.texts_again")
        .replace("INTO texts (texts,", "INTO temp.texts_again (texts_again,"))?;
    run("CREATE VIRTUAL TABLE temp.words_again USING fts5vocab(temp, texts_again, instance)")?;
    let lines: Vec<(i64, String, i64)> = db
        .prepare("SELECT no, id, indexed FROM timelines ORDER BY no")
        .and_then(|mut s| s.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect())
        .map_err(&failed)?;
    let mut said = Said::default();
    let mut add_line = |(no, id, indexed): (i64, String, i64)| {
        let timeline = parse::<TimelineId>(&id, 1).map_err(&failed)?;
        let mut from = Seq(0);
        loop {
            let entries = read_past_damage(db, no, timeline, (from, Seq(indexed as u64)), TOGETHER)?.found;
            for (seq, entry) in &entries {
                let key = entry_key(no, *seq)?;
                if let Some((text, _)) = text_of(db, key, entry)? {
                    db.prepare_cached("INSERT INTO temp.texts_again (rowid, text) VALUES (?1, ?2)")
                        .and_then(|mut s| s.execute(params![key, text]))
                        .map_err(&failed)?;
                }
            }
            said.add_index(db, "temp.texts_again", "temp.words_again")?;
            run("INSERT INTO temp.texts_again (texts_again) VALUES ('delete-all')")?;
            match entries.last() {
                Some((last, _)) if entries.len() == TOGETHER => from = last.next(),
                _ => return Ok(()),
            }
        }
    };
    let outcome = lines.into_iter().try_for_each(&mut add_line);
    run("DROP TABLE temp.words_again; DROP TABLE temp.texts_again")?;
    outcome.map(|()| said)
}

/// An FTS5 expression of terms. Each is quoted, so that nothing in it is an operator.
fn expression(terms: &[Term]) -> String {
    let quoted = terms.iter().map(|term| {
        let text = bare(&term.text).replace('\0', " ").replace('"', "\"\"");
        format!("\"{text}\"{}", if term.prefix { " *" } else { "" })
    });
    quoted.collect::<Vec<_>>().join(" AND ")
}

/// Searches. The index must have been caught up.
pub(super) fn search(db: &Connection, workspace: &WorkspaceId, query: &TextQuery) -> Result<Vec<TextHit>> {
    if query.terms.is_empty() {
        return Ok(Vec::new());
    }
    let mut sql = String::from(
        "SELECT t.id, f.rowid, t.session, bm25(texts) FROM texts f JOIN timelines t ON t.no = f.rowid >> 32",
    );
    let mut values: Vec<Sql> = vec![expression(&query.terms).into(), workspace.as_str().to_owned().into()];
    // What is numbered below: a place for a value, and the value.
    let mut conditions = String::from(" WHERE texts MATCH ?1 AND t.workspace = ?2");
    let mut narrow = |condition: &str, value: Sql| {
        values.push(value);
        conditions += &format!(" AND {}", condition.replace('?', &format!("?{}", values.len())));
    };
    if !query.sessions.is_empty() {
        let ids: Vec<String> = query.sessions.iter().map(|id| format!("\"{id}\"")).collect();
        narrow("t.session IN (SELECT value FROM json_each(?))", Sql::Text(format!("[{}]", ids.join(","))));
    }
    if query.role.is_some() || query.from.is_some() || query.to.is_some() {
        // The words come first: an entry is looked up for each text that has them.
        sql += " CROSS JOIN entries e ON e.id = f.rowid";
    }
    if let Some(role) = &query.role {
        narrow("e.label = ?", Sql::Text(role.clone()));
    }
    if let Some(from) = query.from {
        narrow("e.time >= ?", Sql::Integer(from.0));
    }
    if let Some(to) = query.to {
        narrow("e.time < ?", Sql::Integer(to.0));
    }
    sql += &conditions;
    sql += &format!(" ORDER BY bm25(texts), f.rowid DESC LIMIT {}", i64::try_from(query.limit).unwrap_or(i64::MAX));
    let hit = |row: &rusqlite::Row<'_>| {
        Ok(TextHit {
            at: Position { timeline: parse(&row.get::<_, String>(0)?, 0)?, seq: seq_of(row.get(1)?) },
            session: parse::<SessionId>(&row.get::<_, String>(2)?, 2)?,
            score: -row.get::<_, f64>(3)?,
        })
    };
    db.prepare(&sql).and_then(|mut s| s.query_map(params_from_iter(values), hit)?.collect()).map_err(fail("searching"))
}

/// Whether some texts wait to be indexed, or all of them by the rules of this version.
pub(super) fn is_behind(db: &Connection) -> Result<bool> {
    if !has_text_rules(db)? {
        return Ok(true);
    }
    db.query_row("SELECT EXISTS (SELECT 1 FROM unindexed)", [], |row| row.get(0)).map_err(fail("searching"))
}
