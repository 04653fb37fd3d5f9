//! Rescues what is whole from a file that SQLite itself refuses or reads only in part.
//!
//! The file is read page by page, past its own structure: every leaf page is searched for rows of the
//! log, and a row counts only if its checksum fits. What is found goes into a new store; a timeline is
//! kept up to its first missing entry. Pages on the free list hold what was deleted, and are left alone.
//! The damaged file is not changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use milepost_model::{BatchId, EntryKind, Hash, Position, TimelineId, Timestamp};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, params_from_iter};

use super::log::seq_of;
use super::schema::{Mode, connect, fail, prepare};
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

const PAGE: usize = 4096;
const LEAF_TABLE: u8 = 13;
const LEAF_INDEX: u8 = 10;
/// No row is larger than this.
const ROW_MAX: usize = 80 << 20;

type Row = Vec<Sql>;

#[derive(Default)]
struct Found {
    timelines: BTreeMap<i64, Row>,
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
    let bytes = std::fs::read(damaged).map_err(failed)?;
    let file = Pages { bytes: &bytes };
    let mut found = Found::default();
    let free = file.free_list();
    for number in 1..=file.count() {
        if !free.contains(&number) {
            file.rows(number, &mut |key, row| found.take(key, row));
        }
    }
    found.write(into)
}

/// The pages of a database file.
struct Pages<'a> {
    bytes: &'a [u8],
}

impl<'a> Pages<'a> {
    fn count(&self) -> usize {
        self.bytes.len() / PAGE
    }

    fn page(&self, number: usize) -> Option<&'a [u8]> {
        let start = number.checked_sub(1)?.checked_mul(PAGE)?;
        self.bytes.get(start..start + PAGE)
    }

    /// Pages that hold nothing any more.
    fn free_list(&self) -> BTreeSet<usize> {
        let mut free = BTreeSet::new();
        let mut trunk = self.page(1).map_or(0, |page| word(page, 32));
        while let Some(page) = self.page(trunk) {
            if !free.insert(trunk) {
                break;
            }
            let leaves = word(page, 4).min(PAGE / 4 - 2);
            free.extend((0..leaves).map(|i| word(page, 8 + 4 * i)));
            trunk = word(page, 0);
        }
        free
    }

    /// Calls `f` with every row of a leaf page that can be read.
    fn rows(&self, number: usize, f: &mut impl FnMut(i64, Row)) {
        let Some(page) = self.page(number) else { return };
        let start = if number == 1 { 100 } else { 0 };
        let kind = page[start];
        let is_inner = kind == 2 || kind == 5;
        if is_inner {
            return;
        }
        let count = half(page, start + 3);
        let content = half(page, start + 5);
        // When the page's own header makes no sense, every pointer that could be one is tried.
        let is_sane =
            (kind == LEAF_TABLE || kind == LEAF_INDEX) && start + 8 + 2 * count <= content.max(1) && content <= PAGE;
        let count = if is_sane { count } else { (PAGE - start - 8) / 2 };
        for i in 0..count {
            let at = half(page, start + 8 + 2 * i);
            if at < start + 8 || at >= PAGE {
                if is_sane {
                    continue;
                }
                break;
            }
            if kind != LEAF_INDEX
                && let Some((key, row)) = self.cell(page, at, true)
            {
                f(key, row);
            }
            if kind != LEAF_TABLE
                && let Some((key, row)) = self.cell(page, at, false)
            {
                f(key, row);
            }
        }
    }

    /// One row of a leaf page: its key (0 in an index) and its values.
    fn cell(&self, page: &[u8], at: usize, is_table: bool) -> Option<(i64, Row)> {
        let mut rest = page.get(at..)?;
        let len = usize::try_from(varint(&mut rest)?).ok().filter(|len| *len <= ROW_MAX)?;
        let key = if is_table { varint(&mut rest)? as i64 } else { 0 };
        let most = if is_table { PAGE - 35 } else { (PAGE - 12) * 64 / 255 - 23 };
        if len <= most {
            return Some((key, record(rest.get(..len)?)?));
        }
        let least = (PAGE - 12) * 32 / 255 - 23;
        let local = least + (len - least) % (PAGE - 4);
        let local = if local <= most { local } else { least };
        let mut payload = rest.get(..local)?.to_vec();
        let mut next = word(rest, local);
        while payload.len() < len {
            let page = self.page(next)?;
            let take = (len - payload.len()).min(PAGE - 4);
            payload.extend_from_slice(page.get(4..4 + take)?);
            next = word(page, 0);
        }
        Some((key, record(&payload)?))
    }
}

fn half(page: &[u8], at: usize) -> usize {
    page.get(at..at + 2).map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]))
}

fn word(page: &[u8], at: usize) -> usize {
    page.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, |four| u32::from_be_bytes(four) as usize)
}

/// SQLite's variable-length number: most significant first, at most nine bytes.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..9 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if i == 8 {
            return Some(value << 8 | u64::from(byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The values of a record.
fn record(payload: &[u8]) -> Option<Row> {
    let mut header = payload;
    let header_len = usize::try_from(varint(&mut header)?).ok()?;
    let mut types = payload.get(payload.len() - header.len()..header_len)?;
    let mut rest = payload.get(header_len..)?;
    let mut row = Vec::new();
    while !types.is_empty() {
        let kind = varint(&mut types)?;
        let len = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            10 | 11 => return None,
            _ => usize::try_from((kind - 12) / 2).ok()?,
        };
        let (bytes, next) = rest.split_at_checked(len)?;
        rest = next;
        row.push(match kind {
            0 => Sql::Null,
            8 => Sql::Integer(0),
            9 => Sql::Integer(1),
            1..=6 => Sql::Integer(integer(bytes)),
            7 => Sql::Real(f64::from_bits(integer(bytes) as u64)),
            _ if kind % 2 == 0 => Sql::Blob(bytes.to_vec()),
            _ => Sql::Text(String::from_utf8(bytes.to_vec()).ok()?),
        });
    }
    Some(row)
}

fn integer(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    bytes.iter().fold(if negative { -1 } else { 0 }, |value, byte| value << 8 | i64::from(*byte))
}

fn text(row: &Row, column: usize) -> Option<&str> {
    match row.get(column) {
        Some(Sql::Text(text)) => Some(text),
        _ => None,
    }
}

fn number(row: &Row, column: usize) -> Option<i64> {
    match row.get(column) {
        Some(Sql::Integer(number)) => Some(*number),
        _ => None,
    }
}

fn blob(row: &Row, column: usize) -> Option<&[u8]> {
    match row.get(column) {
        Some(Sql::Blob(bytes)) => Some(bytes),
        _ => None,
    }
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

impl Found {
    /// Sorts a row by its shape; what has none of the shapes is something derived.
    fn take(&mut self, key: i64, mut row: Row) {
        let is = |row: &Row, column: usize, prefix: &str| text(row, column).is_some_and(|t| t.starts_with(prefix));
        let keyed = |row: &mut Row| row[0] = Sql::Integer(key);
        match row.len() {
            13 if entry(&row).is_some() => {
                keyed(&mut row);
                self.entries.insert(key, row);
            }
            24 if is(&row, 2, "ses_") => {
                keyed(&mut row);
                self.sessions.insert(key, row);
            }
            8 if is(&row, 2, "tml_") && is(&row, 3, "ses_") => {
                keyed(&mut row);
                self.timelines.insert(key, row);
            }
            3 if blob(&row, 2).is_some() && number(&row, 1) == Some(1) => {
                keyed(&mut row);
                self.keyframes.insert(key, row);
            }
            5 if blob(&row, 2).is_some_and(|id| id.len() == 32) && blob(&row, 4).is_some() => {
                keyed(&mut row);
                let name = (text(&row, 1).unwrap_or_default().to_owned(), blob(&row, 2).unwrap_or_default().to_vec());
                self.blobs.insert(name, row);
            }
            6 if key == 0 && number(&row, 3).is_some() && blob(&row, 5).is_some() => {
                let name = |column| text(&row, column).unwrap_or_default().to_owned();
                self.records.insert((name(0), name(1), name(2)), row);
            }
            _ => {}
        }
    }

    /// Drops entries that are damaged or that nothing leads to any more. Returns how many.
    fn check(&mut self) -> u64 {
        let before = self.entries.len();
        let timelines = &self.timelines;
        self.entries.retain(|key, row| {
            let id = timelines.get(&(key >> 32)).and_then(|line| text(line, 2)?.parse::<TimelineId>().ok());
            let Some((timeline, entry)) = id.zip(entry(row)) else { return false };
            let at = Position { timeline, seq: seq_of(*key) };
            codec::check(at, &entry).is_ok()
        });
        let mut next: BTreeMap<i64, i64> =
            self.timelines.iter().map(|(no, row)| (*no, number(row, 5).map_or(0, |seq| seq + 1))).collect();
        self.entries.retain(|key, _| match next.get_mut(&(key >> 32)) {
            Some(expected) if *expected == key & 0xffff_ffff => {
                *expected += 1;
                true
            }
            _ => false,
        });
        self.keyframes.retain(|key, _| self.entries.contains_key(key));
        (before - self.entries.len()) as u64
    }

    fn write(mut self, into: &Path) -> Result<Salvaged> {
        let lost = self.check();
        let db = connect(into, Mode::Write)?;
        prepare(&db, into, true)?;
        let failed = fail("writing the new store");
        db.execute_batch("BEGIN IMMEDIATE").map_err(&failed)?;
        let put = |table: &str, rows: &mut dyn Iterator<Item = &Row>| insert(&db, table, rows);
        let done = Salvaged {
            timelines: put("timelines", &mut self.timelines.values())?,
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
