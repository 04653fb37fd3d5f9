//! Rescues what is whole from a file that SQLite itself refuses or reads only in part.
//!
//! The file is read page by page, past its own structure (`pages`): every page is searched for rows of the
//! log, and an entry counts only if its checksum fits. What was committed to the log beside the file lies over
//! it. Timelines have no checksum: their rows are compared with the indexes over them and with the entries
//! (`lines`). A row in which one byte is wrong is mended (`mend`).
//! What is found goes into a new store; a timeline is kept up to its first missing entry. Pages on the free list
//! hold what was deleted, and are left alone. The damaged file is not changed.

mod lines;
mod mend;
mod pages;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use milepost_model::{BatchId, EntryKind, Hash, OwnerId, Position, TimelineId, Timestamp};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params_from_iter};

use self::lines::{Hints, Lines};
pub(super) use self::pages::varint;
use self::pages::{Pages, Row, blob, number, text};
use super::log::seq_of;
use super::schema::{Mode, connect, fail, prepare};
use super::wal;
use crate::backend::{BlobId, StoredEntry};
use crate::codec;
use crate::error::{Error, Result};

/// What was rescued.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Timelines that were found.
    pub timelines: u64,
    /// Entries that are whole and in the new store.
    pub entries: u64,
    /// Entries that were found damaged, or that lie after a missing one.
    pub lost: u64,
    /// Blobs that were found.
    pub blobs: u64,
    /// Records that were found.
    pub records: u64,
}

#[derive(Default)]
struct Found {
    /// Rows of timelines as they were found.
    line_rows: BTreeMap<i64, Row>,
    /// What indexes say of them.
    hints: Hints,
    /// Timelines as they must have been.
    lines: Lines,
    sessions: BTreeMap<i64, Row>,
    entries: BTreeMap<i64, Row>,
    keyframes: BTreeMap<i64, Row>,
    blobs: BTreeMap<(String, Vec<u8>), Row>,
    records: BTreeMap<(String, String, String), Row>,
}

/// Rescues what is whole in `damaged` into a new store file. Reindex it afterwards.
pub fn salvage(damaged: &Path, into: &Path) -> Result<Salvaged> {
    if into.exists() {
        return Err(Error::invalid(into.display().to_string(), "it exists already: name a new file"));
    }
    let failed =
        |error: std::io::Error| Error::Io { what: format!("reading {}", damaged.display()), why: error.to_string() };
    let mut bytes = std::fs::read(damaged).map_err(failed)?;
    wal::overlay(damaged, &mut bytes).map_err(failed)?;
    let file = Pages { bytes: &bytes };
    let mut found = Found::default();
    let free = file.free_list();
    let used = || (1..=file.count()).filter(|number| !free.contains(number));
    for number in used() {
        file.rows(number, &mut |key, row| found.take(key, row));
    }
    found.settle_lines();
    mend::mend(&file, used, &mut found);
    found.settle_lines();
    found.write(into)
}

/// The stored entry of a row of `entries`.
fn entry(row: &Row) -> Option<StoredEntry> {
    let optional = |column: usize| text(row, column).map(str::to_owned);
    let (refs, _) = blob(row, 8).unwrap_or_default().as_chunks::<32>();
    Some(StoredEntry {
        version: u8::try_from(number(row, 1)?).ok()?,
        kind: EntryKind::from_u8(u8::try_from(number(row, 2)?).ok()?)?,
        time: Timestamp(number(row, 3)?),
        label: optional(4),
        channel: optional(5),
        text: optional(6),
        body: blob(row, 7)?.to_vec(),
        refs: refs.iter().map(|id| BlobId(*id)).collect(),
        batch: blob(row, 9).and_then(|b| b.try_into().ok()).map(BatchId::from_bytes),
        chain: blob(row, 10).and_then(|b| b.try_into().ok()).map(Hash),
        mac: blob(row, 11).and_then(|b| b.try_into().ok()),
        sum: number(row, 12)? as u64,
    })
}

fn is_whole(timeline: TimelineId, key: i64, entry: &StoredEntry) -> bool {
    codec::check(Position { timeline, seq: seq_of(key) }, entry).is_ok()
}

/// Whether a row of `sessions` can be written again, and its lease be read.
fn has_lease(row: &Row) -> bool {
    const NUMBERS: [usize; 8] = [11, 12, 13, 14, 17, 18, 19, 22];
    let owner = match row.get(20) {
        Some(Sql::Null) => true,
        _ => text(row, 20).is_some_and(|owner| owner.parse::<OwnerId>().is_ok()),
    };
    let others = text(row, 3).and(text(row, 21)).is_some() && blob(row, 23).is_some();
    owner && others && NUMBERS.iter().all(|column| number(row, *column).is_some())
}

impl Found {
    /// Sorts a row by its shape; what has none of the shapes is something derived.
    fn take(&mut self, key: i64, mut row: Row) {
        let is = |row: &Row, column: usize, prefix: &str| text(row, column).is_some_and(|t| t.starts_with(prefix));
        let keyed = |row: &mut Row| row[0] = Sql::Integer(key);
        match row.len() {
            13 if entry(&row).is_some() => {
                keyed(&mut row);
                // What has another type than its column counts as nothing, as its checksum says.
                row[4..=6].iter_mut().filter(|value| !matches!(value, Sql::Text(_))).for_each(|v| *v = Sql::Null);
                row[8..=11].iter_mut().filter(|value| !matches!(value, Sql::Blob(_))).for_each(|v| *v = Sql::Null);
                self.entries.insert(key, row);
            }
            24 if is(&row, 2, "ses_") => {
                keyed(&mut row);
                self.sessions.insert(key, row);
            }
            8 if is(&row, 2, "tml_") && is(&row, 3, "ses_") => {
                keyed(&mut row);
                self.line_rows.insert(key, row);
            }
            2 | 3 if key == 0 && self.hints.take(&row) => {}
            3 if blob(&row, 2).is_some() && number(&row, 1) == Some(1) => {
                keyed(&mut row);
                self.keyframes.insert(key, row);
            }
            5 if text(&row, 1).and(blob(&row, 2)).is_some_and(|id| id.len() == 32) && blob(&row, 4).is_some() => {
                keyed(&mut row);
                if number(&row, 3).is_none() {
                    row[3] = Sql::Integer(0);
                }
                let name = (text(&row, 1).unwrap_or_default().to_owned(), blob(&row, 2).unwrap_or_default().to_vec());
                self.blobs.insert(name, row);
            }
            6 if key == 0 && number(&row, 3).is_some() && blob(&row, 5).is_some() => {
                if number(&row, 4).is_none() {
                    row[4] = Sql::Null;
                }
                let name = |column| text(&row, column).map(str::to_owned);
                if let Some(((workspace, kind), key)) = name(0).zip(name(1)).zip(name(2)) {
                    self.records.insert((workspace, kind, key), row);
                }
            }
            _ => {}
        }
    }

    /// Says what the timelines must have been, from all that was found.
    fn settle_lines(&mut self) {
        self.lines = lines::settle(&self.line_rows, &self.hints, &self.sessions, &self.entries);
    }

    /// Whether a row is the entry that belongs at this key.
    fn is_entry(&self, key: i64, row: &Row) -> bool {
        let line = self.lines.get(&(key >> 32));
        line.zip(entry(row)).is_some_and(|(line, entry)| is_whole(line.id, key, &entry))
    }

    /// Whether the entry at this key is there and whole.
    fn has_entry(&self, key: i64) -> bool {
        self.entries.get(&key).is_some_and(|row| self.is_entry(key, row))
    }

    /// Drops entries that are damaged or that nothing leads to any more. Returns how many.
    fn check(&mut self) -> u64 {
        let before = self.entries.len();
        let mut entries = std::mem::take(&mut self.entries);
        entries.retain(|key, row| self.is_entry(*key, row));
        let mut next: BTreeMap<i64, i64> = self.lines.iter().map(|(no, line)| (*no, line.begins())).collect();
        entries.retain(|key, _| match next.get_mut(&(key >> 32)) {
            Some(expected) if *expected == key & 0xffff_ffff => {
                *expected += 1;
                true
            }
            _ => false,
        });
        self.keyframes.retain(|key, _| entries.contains_key(key));
        // A session's row is kept for its lease alone; one without is made anew.
        let known: BTreeSet<(&str, &str)> =
            self.lines.values().map(|line| (line.workspace.as_str(), line.session.as_str())).collect();
        self.sessions.retain(|_, row| {
            let is_known = text(row, 1).zip(text(row, 2)).is_some_and(|name| known.contains(&name));
            is_known && has_lease(row)
        });
        self.entries = entries;
        (before - self.entries.len()) as u64
    }

    fn write(mut self, into: &Path) -> Result<Salvaged> {
        let lost = self.check();
        let lines: Vec<Row> = self.lines.iter().map(|(no, line)| line.row(*no)).collect();
        let db = connect(into, Mode::Write)?;
        prepare(&db, into, true)?;
        let failed = fail("writing the new store");
        db.execute_batch("BEGIN IMMEDIATE").map_err(&failed)?;
        let put = |table: &str, rows: &mut dyn Iterator<Item = &Row>| insert(&db, table, rows);
        let done = Salvaged {
            timelines: put("timelines", &mut lines.iter())?,
            entries: put("entries", &mut self.entries.values())?,
            lost,
            blobs: put("blobs", &mut self.blobs.values())?,
            records: put("records", &mut self.records.values())?,
        };
        put("keyframes", &mut self.keyframes.values())?;
        // Session rows are derived, but for their leases: those that are whole are kept until they are rebuilt.
        put("sessions", &mut self.sessions.values())?;
        db.execute_batch("UPDATE timelines SET indexed = 0; COMMIT").map_err(&failed)?;
        db.close().map_err(|(_, error)| failed(error))?;
        Ok(done)
    }
}

fn insert(db: &Connection, table: &str, rows: &mut dyn Iterator<Item = &Row>) -> Result<u64> {
    let mut count = 0;
    for row in rows {
        let places = vec!["?"; row.len()].join(",");
        db.prepare_cached(&format!("INSERT OR REPLACE INTO {table} VALUES ({places})"))
            .and_then(|mut s| s.execute(params_from_iter(row.iter())))
            .map_err(fail("writing the new store"))?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::pages::PAGE;

    #[test]
    fn garbage_is_read_without_a_panic() {
        let mut byte = 7u8;
        let bytes: Vec<u8> = (0..PAGE * 8)
            .map(|i| {
                byte = byte.wrapping_mul(31).wrapping_add(i as u8);
                byte
            })
            .collect();
        let file = Pages { bytes: &bytes };
        let mut found = Found::default();
        for number in 0..=file.count() + 1 {
            file.rows(number, &mut |key, row| found.take(key, row));
        }
        assert!(found.entries.is_empty());
        assert_eq!(found.check(), 0);
    }
}
