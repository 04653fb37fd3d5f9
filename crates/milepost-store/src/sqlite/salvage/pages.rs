//! The pages of a database file and the rows on them, read past the file's own structure.

use std::collections::BTreeSet;

use rusqlite::types::Value as Sql;

pub(super) const PAGE: usize = 4096;
const LEAF_TABLE: u8 = 13;
const LEAF_INDEX: u8 = 10;
const INNER_INDEX: u8 = 2;
/// No row is larger than this.
const ROW_MAX: usize = 80 << 20;

pub(super) type Row = Vec<Sql>;

/// The pages of a database file.
pub(super) struct Pages<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Pages<'a> {
    pub fn count(&self) -> usize {
        self.bytes.len() / PAGE
    }

    pub fn page(&self, number: usize) -> Option<&'a [u8]> {
        let start = number.checked_sub(1)?.checked_mul(PAGE)?;
        self.bytes.get(start..start + PAGE)
    }

    /// Pages that hold nothing any more.
    pub fn free_list(&self) -> BTreeSet<usize> {
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

    /// Calls `f` with every row of a page that can be read. Of a table they are on its leaves, of an index everywhere.
    pub fn rows(&self, number: usize, f: &mut impl FnMut(i64, Row)) {
        let (Some(page), Some(layout)) = (self.page(number), self.layout(number)) else { return };
        for cell in layout.cells {
            for (key, row) in layout.kinds.iter().filter_map(|kind| self.cell(page, cell, *kind)) {
                f(key, row);
            }
        }
    }

    /// Where the rows of a page begin; none of a page that holds no rows.
    pub fn layout(&self, number: usize) -> Option<Layout> {
        let page = self.page(number)?;
        let start = if number == 1 { 100 } else { 0 };
        let header = start + if page[start] == INNER_INDEX { 12 } else { 8 };
        let kinds: &[Kind] = match page[start] {
            LEAF_TABLE => &[Kind::Table],
            LEAF_INDEX => &[Kind::Index],
            INNER_INDEX => &[Kind::InnerIndex],
            _ => &[Kind::Table, Kind::Index],
        };
        let (count, content) = (half(page, start + 3), half(page, start + 5));
        // When the page's own header makes no sense, every pointer that could be one is tried. An inner page of a table
        // is read so too: it seldom has any, and one changed bit makes a leaf look like it.
        let is_sane = kinds.len() == 1 && header + 2 * count <= content.max(1) && content <= PAGE;
        let count = if is_sane { count } else { (PAGE - header) / 2 };
        let pointers = (0..count).map(|i| half(page, header + 2 * i));
        let could_be = |at: &usize| *at >= header && *at < PAGE;
        let cells: Vec<usize> = match is_sane {
            true => pointers.filter(could_be).collect(),
            false => pointers.take_while(could_be).collect(),
        };
        let is_sane = is_sane && cells.len() == count;
        Some(Layout { kinds, cells, content: if is_sane { content.max(header) } else { header }, is_sane })
    }

    /// Parts of a page that were given back: from, to.
    pub fn holes(&self, number: usize) -> Vec<(usize, usize)> {
        let Some(page) = self.page(number) else { return Vec::new() };
        let mut holes = Vec::new();
        let mut at = half(page, if number == 1 { 101 } else { 1 });
        while at != 0 && at + 4 <= PAGE && holes.last().is_none_or(|(from, _)| *from < at) {
            holes.push((at, at + half(page, at + 2)));
            at = half(page, at);
        }
        holes
    }

    /// One row of a page: its key (0 in an index) and its values.
    pub fn cell(&self, page: &[u8], at: usize, kind: Kind) -> Option<(i64, Row)> {
        let mut rest = page.get(at + if kind == Kind::InnerIndex { 4 } else { 0 }..)?;
        let len = usize::try_from(varint(&mut rest)?).ok().filter(|len| *len <= ROW_MAX)?;
        let key = if kind == Kind::Table { varint(&mut rest)? as i64 } else { 0 };
        let most = if kind == Kind::Table { PAGE - 35 } else { (PAGE - 12) * 64 / 255 - 23 };
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

/// A row of a table that lies on one page, whatever is noted as its length.
pub(super) fn loose_cell(page: &[u8], at: usize) -> Option<(i64, Row)> {
    let mut rest = page.get(at..)?;
    varint(&mut rest)?;
    let key = varint(&mut rest)? as i64;
    Some((key, record(rest)?))
}

/// What kind of page a row lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Table,
    Index,
    InnerIndex,
}

/// How a page is laid out.
pub(super) struct Layout {
    /// What its rows may be: one kind, or several when the page does not say.
    pub kinds: &'static [Kind],
    /// Where rows begin.
    pub cells: Vec<usize>,
    /// Where the first of them begins, whatever the pointers say.
    pub content: usize,
    /// Its header and all its pointers make sense.
    pub is_sane: bool,
}

fn half(page: &[u8], at: usize) -> usize {
    page.get(at..at + 2).map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]))
}

fn word(page: &[u8], at: usize) -> usize {
    page.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, |four| u32::from_be_bytes(four) as usize)
}

/// SQLite's variable-length number: most significant first, at most nine bytes.
pub(in super::super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
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

pub(super) fn text(row: &Row, column: usize) -> Option<&str> {
    match row.get(column) {
        Some(Sql::Text(text)) => Some(text),
        _ => None,
    }
}

pub(super) fn number(row: &Row, column: usize) -> Option<i64> {
    match row.get(column) {
        Some(Sql::Integer(number)) => Some(*number),
        _ => None,
    }
}

pub(super) fn blob(row: &Row, column: usize) -> Option<&[u8]> {
    match row.get(column) {
        Some(Sql::Blob(bytes)) => Some(bytes),
        _ => None,
    }
}
