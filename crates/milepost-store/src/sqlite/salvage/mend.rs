//! Mends rows in which one byte is wrong: of an entry or a key record that is missing, every change of a byte is tried
//! until its checksum fits. A row that nothing points to any more is found by looking for one at every place.

use std::collections::BTreeSet;

use super::pages::{Kind, Pages, Row, blob, loose_cell, text};
use super::{Found, entry};
use crate::keys::{KEY_KIND, WORKSPACE_KEY, sum_fits};

/// So many changes are tried at most: some seconds' worth.
const TRIES_MAX: u64 = 20_000_000;
/// A row whose own key is wrong is tried at so many places.
const PLACES_MAX: usize = 64;
/// How many columns there are.
const ENTRY_COLUMNS: usize = 13;
const RECORD_COLUMNS: usize = 6;

/// Looks for what is missing in the pages that are used.
pub(super) fn mend<I: Iterator<Item = usize>>(file: &Pages<'_>, used: impl Fn() -> I, found: &mut Found) {
    let mut tries = TRIES_MAX;
    for number in used() {
        let mut search = Search { file, number, tries: &mut tries };
        search.entries(found);
        search.keys(found);
    }
}

struct Search<'a> {
    file: &'a Pages<'a>,
    number: usize,
    tries: &'a mut u64,
}

impl Search<'_> {
    fn entries(&mut self, found: &mut Found) {
        let (Some(page), Some(layout)) = (self.file.page(self.number), self.file.layout(self.number)) else { return };
        if !layout.kinds.contains(&Kind::Table) || layout.cells.is_empty() {
            return;
        }
        let rows: Vec<_> = layout.cells.iter().map(|at| (*at, self.file.cell(page, *at, Kind::Table))).collect();
        let holds_entries = rows.iter().any(|(_, cell)| is_shaped(cell, ENTRY_COLUMNS));
        let is_lost = rows.iter().all(|(_, cell)| cell.is_none());
        let is_damaged = |cell: &Option<(i64, Row)>| match cell {
            Some((key, row)) => row.len() == ENTRY_COLUMNS && !found.is_entry(*key, row),
            None => true,
        };
        let damaged: Vec<usize> = rows.iter().filter(|(_, cell)| is_damaged(cell)).map(|(at, _)| *at).collect();
        if !(holds_entries || is_lost) || (damaged.is_empty() && layout.is_sane) {
            return;
        }
        let fits = |found: &Found, gaps: &[i64], cell: Option<(i64, Row)>| {
            let (key, row) = cell.filter(|(_, row)| row.len() == ENTRY_COLUMNS)?;
            entry(&row)?;
            let key = std::iter::once(key).chain(gaps.iter().copied()).find(|key| found.is_entry(*key, &row))?;
            (!found.has_entry(key)).then_some((key, row))
        };
        let missing = gaps(found);
        for at in self.places(layout.content) {
            if let Some((key, row)) = fits(found, &missing, loose_cell(page, at)) {
                found.take(key, row);
            }
        }
        for at in damaged {
            let (file, missing) = (self.file, gaps(found));
            let read = |bytes: &[u8]| loose_cell(bytes, at).or_else(|| file.cell(bytes, at, Kind::Table));
            if let Some((key, row)) =
                self.change_one(page, at, &layout.cells, |bytes| fits(found, &missing, read(bytes)))
            {
                found.take(key, row);
            }
        }
    }

    fn keys(&mut self, found: &mut Found) {
        let expected = expected_keys(found);
        let missing: BTreeSet<&Name> = expected.iter().filter(|name| !has_key(found, name)).collect();
        let (Some(page), Some(layout)) = (self.file.page(self.number), self.file.layout(self.number)) else { return };
        let Some(kind) = layout.kinds.iter().copied().find(|kind| *kind != Kind::Table) else { return };
        let mut rows: Vec<_> = layout.cells.iter().map(|at| (*at, self.file.cell(page, *at, kind))).collect();
        let holds_records = rows.iter().any(|(_, cell)| is_shaped(cell, RECORD_COLUMNS));
        if missing.is_empty() || !(holds_records || rows.iter().all(|(_, cell)| cell.is_none())) {
            return;
        }
        let fits = |cell: Option<(i64, Row)>| {
            let (_, row) = cell.filter(|(_, row)| row.len() == RECORD_COLUMNS)?;
            let (name, value) = (name_of(&row)?, blob(&row, 5)?);
            let is_it = missing.contains(&name) && sum_fits(&name.2, value) == Some(true);
            is_it.then_some(row)
        };
        for at in self.places(layout.content) {
            if let Some(row) = fits(self.file.cell(page, at, kind)) {
                found.take(0, row);
                return;
            }
        }
        rows.retain(|(_, cell)| {
            let name = cell.as_ref().and_then(|(_, row)| name_of(row));
            name.is_none_or(|name| {
                is_nearly(&name.1, KEY_KIND) && (!expected.contains(&name) || missing.contains(&name))
            })
        });
        for (at, cell) in rows {
            let file = self.file;
            if let Some(row) = self.change_one(page, at, &layout.cells, |bytes| fits(file.cell(bytes, at, kind))) {
                if let Some(damaged) = cell.and_then(|(_, row)| name_of(&row)) {
                    found.records.remove(&damaged);
                }
                found.take(0, row);
                return;
            }
        }
    }

    /// Where a row could begin: in the part of the page that is used, but not where rows were removed.
    fn places(&self, content: usize) -> impl Iterator<Item = usize> + use<> {
        let holes = self.file.holes(self.number);
        (content..super::pages::PAGE).filter(move |at| !holes.iter().any(|(from, to)| (from..to).contains(&at)))
    }

    /// Tries every change of one byte of a row until what is read of the page fits.
    fn change_one<T>(
        &mut self,
        page: &[u8],
        at: usize,
        cells: &[usize],
        fits: impl Fn(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let end = cells.iter().copied().filter(|other| *other > at).min().unwrap_or(page.len());
        let mut bytes = page.to_vec();
        for place in at..end {
            for change in 1..=u8::MAX {
                *self.tries = self.tries.checked_sub(1)?;
                bytes[place] = page[place] ^ change;
                if let Some(found) = fits(&bytes) {
                    return Some(found);
                }
            }
            bytes[place] = page[place];
        }
        None
    }
}

fn is_shaped(cell: &Option<(i64, Row)>, columns: usize) -> bool {
    cell.as_ref().is_some_and(|(_, row)| row.len() == columns)
}

/// Where entries are missing: before the last of a timeline, and right after it.
fn gaps(found: &Found) -> Vec<i64> {
    let places = found.lines.iter().flat_map(|(no, line)| {
        let own = found.entries.range(no << 32..(no + 1) << 32);
        let last = own.rev().find(|(key, row)| found.is_entry(**key, row)).map(|(key, _)| key & 0xffff_ffff);
        (line.begins()..=last.map_or(line.begins(), |last| last + 1)).map(move |seq| no << 32 | seq)
    });
    places.filter(|key| !found.has_entry(*key)).take(PLACES_MAX).collect()
}

type Name = (String, String, String);

fn name_of(row: &Row) -> Option<Name> {
    let name = |column| text(row, column).map(str::to_owned);
    Some((name(0)?, name(1)?, name(2)?))
}

/// Whether a text is another but for one byte.
fn is_nearly(text: &str, other: &str) -> bool {
    let pairs = text.bytes().zip(other.bytes());
    text.len() == other.len() && pairs.filter(|(one, other)| one != other).count() <= 1
}

/// The key records that should be there.
fn expected_keys(found: &Found) -> BTreeSet<Name> {
    let is_session_key = |name: &Name| name.1 == KEY_KIND && name.2 != WORKSPACE_KEY;
    let encrypted: BTreeSet<&str> =
        found.records.keys().filter(|name| is_session_key(name)).map(|name| name.0.as_str()).collect();
    let names = found.lines.values().flat_map(|line| {
        let of = |name: String| (line.workspace.clone(), KEY_KIND.to_owned(), name);
        let session = encrypted.contains(line.workspace.as_str()).then(|| of(format!("session/{}", line.session)));
        std::iter::once(of(WORKSPACE_KEY.to_owned())).chain(session)
    });
    names.collect()
}

/// Whether a key record is there and whole.
fn has_key(found: &Found, name: &Name) -> bool {
    let value = found.records.get(name).and_then(|row| blob(row, 5));
    let can_be_read = |value: &[u8]| serde_json::from_slice::<serde_json::Value>(value).is_ok();
    value.is_some_and(|value| sum_fits(&name.2, value).unwrap_or_else(|| can_be_read(value)))
}
