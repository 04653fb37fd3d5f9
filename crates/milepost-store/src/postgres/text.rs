//! The text index: which messages hold which words.
//!
//! Words are cut here and not by the server, by the rules that the SQLite index has: letters and digits make words,
//! case and diacritics do not count. The server keeps the place of a word only up to a number, and only some places of
//! one word; so a text is indexed in stretches that overlap by as much as a phrase may have words.
//!
//! An append only notes which entries are new. They are indexed when there is time, by any process, and at the latest
//! when someone searches, so that a search finds whatever was acknowledged.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use milepost_model::{Position, Seq, SessionId, WorkspaceId};
use tokio::sync::Notify;
use tokio_postgres::types::Type;
use unicode_normalization::char::{decompose_canonical, is_combining_mark};

use super::db::{Db, Failed, Param, column, id, limit, number};
use super::{log, rows};
use crate::backend::*;
use crate::codec::searchable_text;
use crate::error::{Error, Result};
use crate::words::{spaced, spellings};

/// Texts longer than this are indexed up to here.
const INDEXED_BYTES: usize = 1 << 20;
/// Words of one stretch: the server keeps fewer than 256 places of one word.
const STRETCH: usize = 250;
/// Words that the next stretch begins before the end of one: longer phrases are cut to so many.
const OVERLAP: usize = 32;
/// Longer words are cut: the server takes up to 2046 bytes.
const WORD_BYTES: usize = 512;

/// The words of a text, in their order.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if is_combining_mark(c) {
            continue;
        }
        if !c.is_alphanumeric() {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        if word.len() < WORD_BYTES {
            decompose_canonical(c, |part| {
                if !is_combining_mark(part) {
                    word.extend(part.to_lowercase().filter(|c| !is_combining_mark(*c)));
                }
            });
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// What is indexed of an entry: for each stretch of its text, its words and their places as the server reads them. And
/// whether that is only its beginning. Other rules need a version of the tables that has everything cut anew, and another
/// number where [`BEGIN`] says which rules these are.
fn stretches_of(entry: &StoredEntry, blob: Option<&[u8]>) -> (Vec<String>, bool) {
    let Some(mut text) = searchable_text(entry, blob) else { return (Vec::new(), false) };
    let is_cut = text.len() > INDEXED_BYTES;
    text.truncate(text.floor_char_boundary(INDEXED_BYTES));
    (stretches(&words(&spaced(&text))), is_cut)
}

fn stretches(words: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    let mut from = 0;
    while from < words.len() {
        let to = (from + STRETCH).min(words.len());
        let mut places: BTreeMap<&str, String> = BTreeMap::new();
        for (place, word) in words[from..to].iter().enumerate() {
            let list = places.entry(word).or_default();
            let comma = if list.is_empty() { "" } else { "," };
            let _ = write!(list, "{comma}{}", place + 1);
        }
        // Words are letters and digits: nothing in them needs to be escaped.
        let stretch = places.iter().map(|(word, list)| format!("'{word}':{list}"));
        all.push(stretch.collect::<Vec<_>>().join(" "));
        if to == words.len() {
            break;
        }
        from = to - OVERLAP;
    }
    all
}

/// A term as the server searches for it; none when there is no word in it. The index has words as they were written: other
/// nodes may be of a version that knew no other spellings.
fn query(term: &Term) -> Option<String> {
    let words = words(&term.text);
    let words = &words[..words.len().min(OVERLAP)];
    let (last, first) = words.split_last()?;
    let one = |word: &String, is_beginning: bool| {
        let star = if is_beginning { ":*" } else { "" };
        let all: Vec<String> = spellings(word, is_beginning).iter().map(|word| format!("'{word}'{star}")).collect();
        if all.len() == 1 { all.concat() } else { format!("({})", all.join(" | ")) }
    };
    let all: Vec<String> = first.iter().map(|word| one(word, false)).chain([one(last, term.prefix)]).collect();
    Some(all.join(" <-> "))
}

/// Searches what was appended before. Better hits come first, then newer ones.
pub(super) async fn search(db: &Db, workspace: &WorkspaceId, asked: &TextQuery) -> Result<Vec<TextHit>> {
    let Some(queries) = asked.terms.iter().map(query).collect::<Option<Vec<_>>>() else { return Ok(Vec::new()) };
    if queries.is_empty() {
        return Ok(Vec::new());
    }
    catch_up(db).await?;
    // A message may hold one term in one stretch and another in the next.
    let part = |n: usize| {
        let term = format!("(${}::text)::tsquery", n + 7);
        format!(
            "SELECT x.timeline, x.seq, max(ts_rank(x.words, {term}, 1)) AS score
             FROM {{s}}.texts x WHERE x.words @@ {term} GROUP BY 1, 2"
        )
    };
    let parts: Vec<String> = (0..queries.len()).map(part).collect();
    let narrowed = match asked.role.is_some() || asked.from.is_some() || asked.to.is_some() {
        true => {
            "JOIN {s}.entries e ON e.timeline = h.timeline AND e.seq = h.seq AND ($4::text IS NULL OR e.label = $4)
               AND ($5::int8 IS NULL OR e.time >= $5) AND ($6::int8 IS NULL OR e.time < $6)"
        }
        // Every place for a value is named, whether it is used or not.
        false => "AND $4::text IS NULL AND $5::int8 IS NULL AND $6::int8 IS NULL",
    };
    let sql = format!(
        "SELECT t.id, h.seq, t.session, h.score FROM (
           SELECT f.timeline, f.seq, sum(f.score)::float8 AS score FROM ({}) f
           GROUP BY 1, 2 HAVING count(*) = {}
         ) h JOIN {{s}}.timelines t ON t.no = h.timeline {narrowed}
         WHERE t.workspace = $1 AND (cardinality($2::text[]) = 0 OR t.session = ANY ($2))
         ORDER BY h.score DESC, h.timeline DESC, h.seq DESC LIMIT $3",
        parts.join(" UNION ALL "),
        queries.len()
    );
    let (workspace, most) = (super::db::escape(workspace.as_str()), limit(asked.limit));
    let sessions: Vec<String> = asked.sessions.iter().map(ToString::to_string).collect();
    let role = asked.role.as_deref().map(super::db::escape);
    let (from, to) = (asked.from.map(|time| time.0), asked.to.map(|time| time.0));
    let mut params: Vec<Param<'_>> = vec![(&workspace, Type::TEXT), (&sessions, Type::TEXT_ARRAY), (&most, Type::INT8)];
    params.extend([(&role, Type::TEXT), (&from, Type::INT8), (&to, Type::INT8)] as [Param<'_>; 3]);
    for query in &queries {
        params.push((query, Type::TEXT));
    }
    let rows = db.ask("searching", &sql, &params).await?;
    rows.iter()
        .map(|row| {
            let at = Position { timeline: id(row, 0)?, seq: Seq(number(row, 1)?) };
            Ok(TextHit { at, session: id(row, 2)?, score: column(row, 3)? })
        })
        .collect()
}

/// Texts of a few messages, as rows to send.
#[derive(Default)]
pub(super) struct TextRows {
    pub timelines: Vec<i64>,
    pub seqs: Vec<i64>,
    pub parts: Vec<i32>,
    pub words: Vec<String>,
    /// Timelines with a text that is only indexed up to a limit.
    cut: Vec<i64>,
}

impl TextRows {
    pub fn add(&mut self, timeline: i64, seq: Seq, entry: &StoredEntry, blob: Option<&[u8]>) {
        let (stretches, is_cut) = stretches_of(entry, blob);
        if is_cut {
            self.cut.push(timeline);
        }
        for (part, words) in stretches.into_iter().enumerate() {
            self.timelines.push(timeline);
            self.seqs.push(super::db::seq(seq.0));
            self.parts.push(part as i32);
            self.words.push(words);
        }
    }

    pub fn params(&self) -> [Param<'_>; 4] {
        [
            (&self.timelines, Type::INT8_ARRAY),
            (&self.seqs, Type::INT8_ARRAY),
            (&self.parts, Type::INT4_ARRAY),
            (&self.words, Type::TEXT_ARRAY),
        ]
    }
}

/// Stretches of timelines that are looked at together,
const STRETCHES: i64 = 256;
/// and entries in them, about.
const ENTRIES: i64 = 1024;
/// Without an append for so long, texts that wait are indexed.
const QUIET: Duration = Duration::from_millis(200);
/// After so many messages it is done in any case: a search would wait some seconds for them.
const BEHIND_MAX: u64 = 65_536;

/// How many messages this process appended.
#[derive(Default)]
pub(super) struct Appends {
    count: AtomicU64,
    more: Notify,
}

impl Appends {
    pub fn note(&self, messages: usize) {
        self.count.fetch_add(messages as u64, Ordering::Relaxed);
        self.more.notify_one();
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Indexes texts whenever there is time, for as long as the store is open. What fails is tried again after the next
/// append, and by every search.
pub(super) async fn keep_up(db: Arc<Db>) {
    let (mut indexed, mut quiet_at) = (0, None);
    // What another process left behind is looked for at the start.
    db.appended.more.notify_one();
    loop {
        db.appended.more.notified().await;
        loop {
            let count = db.appended.count();
            if quiet_at != Some(count) && count - indexed <= BEHIND_MAX {
                tokio::time::sleep(QUIET).await;
                quiet_at = Some(count);
                continue;
            }
            if db.is_closed() {
                return;
            }
            match index_some(&db, Others::Skip).await {
                Ok(Some(messages)) => indexed = count.min(indexed + messages as u64),
                Ok(None) => {
                    indexed = count;
                    break;
                }
                Err(_) => break,
            }
        }
    }
}

/// By which rules texts are cut into words: what a program that does not say so takes from those that wait is cut anew.
const BEGIN: &str = "BEGIN; SET LOCAL milepost.rules TO '2'";

/// What the index lacks of sessions.
pub(super) async fn gaps(db: &Db, workspace: &WorkspaceId) -> Result<Vec<(SessionId, TextGap)>> {
    let sql = "SELECT DISTINCT t.session FROM {s}.text_gaps g JOIN {s}.timelines t ON t.no = g.timeline
               WHERE t.workspace = $1 AND g.why = 'cut' ORDER BY 1";
    let workspace = super::db::escape(workspace.as_str());
    let rows = db.ask("looking for what is not indexed", sql, &[(&workspace, Type::TEXT)]).await?;
    rows.iter().map(|row| Ok((id(row, 0)?, TextGap::Cut))).collect()
}

/// What to do about texts that another process is just indexing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Others {
    Skip,
    Await,
}

/// Indexes all texts that wait.
pub(super) async fn catch_up(db: &Db) -> Result<()> {
    while index_some(db, Others::Await).await?.is_some() {}
    Ok(())
}

/// Indexes some of the texts that wait. Returns how many messages that were; none when nothing waits.
async fn index_some(db: &Db, others: Others) -> Result<Option<usize>, Failed> {
    let what = "indexing texts";
    let mut lent = db.lend(what).await?;
    let skip = if others == Others::Skip { "SKIP LOCKED" } else { "" };
    lent.run(what, BEGIN).await?;
    // Its rows are locked: they stay where they are.
    let waiting = |table: &str| {
        format!(
            "SELECT ctid::text AS place, timeline, first, past FROM {{s}}.{table} LIMIT {STRETCHES} FOR UPDATE {skip}"
        )
    };
    let sql = format!(
        "WITH w AS ({}) SELECT w.place, w.timeline, w.first, w.past, r.waits
         FROM (SELECT EXISTS (SELECT 1 FROM {{s}}.recut) AS waits) r LEFT JOIN w ON true",
        waiting("unindexed")
    );
    let (mut queue, mut stretches) = ("unindexed", lent.ask(what, &db.sql(&sql), &[]).await?);
    let has_recut = stretches.first().map(|row| column::<bool>(row, 4)).transpose()?.unwrap_or_default();
    if stretches.first().is_some_and(|row| matches!(column::<Option<String>>(row, 0), Ok(None))) {
        stretches.clear();
    }
    if stretches.is_empty() && has_recut {
        (queue, stretches) = ("recut", lent.ask(what, &db.sql(&waiting("recut")), &[]).await?);
    }
    let mut size = 0i64;
    let mut fits = 0;
    while fits < stretches.len() && size < ENTRIES {
        // One that has no end is as long as there may be numbers.
        let (first, past): (i64, i64) = (column(&stretches[fits], 2)?, column(&stretches[fits], 3)?);
        size = size.saturating_add(past.saturating_sub(first));
        fits += 1;
    }
    stretches.truncate(fits);
    let mut messages = None;
    if !stretches.is_empty() {
        let list = |at| stretches.iter().map(|row| column::<i64>(row, at)).collect::<Result<Vec<i64>>>();
        let (lines, first, past) = (list(1)?, list(2)?, list(3)?);
        // Whoever would change or remove what these timelines say waits until it is in the index.
        let sql = db.sql("SELECT 1 FROM {s}.timelines WHERE no = ANY ($1) ORDER BY no FOR KEY SHARE");
        lent.ask(what, &sql, &[(&lines, Type::INT8_ARRAY)]).await?;
        let mut found = Vec::new();
        for (line, seq, entry) in log::stretches(db, &mut lent, &lines, &first, &past).await? {
            let blob = rows::blob_of(db, &mut lent, line, &entry).await?;
            found.push((line, seq, entry, blob));
        }
        messages = Some(found.len());
        // Appends go on meanwhile.
        let cutting = tokio::task::spawn_blocking(move || {
            let mut texts = TextRows::default();
            found.iter().for_each(|(line, seq, entry, blob)| texts.add(*line, *seq, entry, blob.as_deref()));
            texts
        });
        let texts = cutting.await.map_err(|_| Error::Closed)?;
        if queue == "recut" {
            let sql = db.sql(
                "DELETE FROM {s}.texts x USING unnest($1, $2, $3) AS q (timeline, first, past)
                 WHERE x.timeline = q.timeline AND x.seq >= q.first AND x.seq < q.past",
            );
            let params: [Param<'_>; 3] =
                [(&lines, Type::INT8_ARRAY), (&first, Type::INT8_ARRAY), (&past, Type::INT8_ARRAY)];
            lent.ask(what, &sql, &params).await?;
        }
        // One that was changed may wait twice.
        let sql = db.sql(
            "INSERT INTO {s}.texts (timeline, seq, part, words)
             SELECT x.timeline, x.seq, x.part, x.words::tsvector
             FROM unnest($1, $2, $3, $4) AS x (timeline, seq, part, words)
             ON CONFLICT (timeline, seq, part) DO NOTHING",
        );
        lent.ask(what, &sql, &texts.params()).await?;
        if !texts.cut.is_empty() {
            let sql = db.sql(
                "INSERT INTO {s}.text_gaps (timeline, why) SELECT DISTINCT x.timeline, 'cut' FROM unnest($1) AS x (timeline)
                 ON CONFLICT (timeline, why) DO NOTHING",
            );
            lent.ask(what, &sql, &[(&texts.cut, Type::INT8_ARRAY)]).await?;
        }
        let places = stretches.iter().map(|row| column::<String>(row, 0)).collect::<Result<Vec<String>>>()?;
        let sql = db.sql(&format!("DELETE FROM {{s}}.{queue} WHERE ctid = ANY ($1::text[]::tid[])"));
        lent.ask(what, &sql, &[(&places, Type::TEXT_ARRAY)]).await?;
    }
    lent.run(what, "COMMIT").await?;
    lent.give_back();
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_diacritics_do_not_count() {
        assert_eq!(words("Crème BRÛLÉE, e\u{301}te\u{301}! Straße İ"), ["creme", "brulee", "ete", "straße", "i"]);
        assert_eq!(words("grep_files(\"a'b\\c\") 3.14"), ["grep", "files", "a", "b", "c", "3", "14"]);
        assert_eq!(words("\0 🦀 \u{301}"), Vec::<String>::new());
    }

    #[test]
    fn every_phrase_lies_in_one_stretch() {
        let text: Vec<String> = (0..1000).map(|n| format!("w{n}")).collect();
        let all = stretches(&text);
        for from in 0..text.len() - OVERLAP {
            let phrase = &text[from..from + OVERLAP];
            let holds = |stretch: &&String| phrase.iter().all(|word| stretch.contains(&format!("'{word}':")));
            assert!(all.iter().any(|stretch| holds(&stretch)), "a phrase at {from}");
        }
        assert_eq!(stretches(&["a".into(), "b".into(), "a".into()]), ["'a':1,3 'b':2"]);
    }

    #[test]
    fn a_term_is_only_words() {
        let term = |text: &str, prefix| query(&Term { text: text.into(), prefix });
        assert_eq!(term("linker took", true).as_deref(), Some("'linker' <-> 'took':*"));
        assert_eq!(term("' | x & !", false).as_deref(), Some("'x'"));
        assert_eq!(term("*", false), None);
        assert_eq!(term("große Stras", true).as_deref(), Some("('grosse' | 'große') <-> ('stras':* | 'straß':*)"));
    }
}
