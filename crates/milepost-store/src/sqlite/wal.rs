//! Looks into a write-ahead log that a crash left behind, before SQLite recovers it.
//!
//! SQLite stops at the first frame whose checksum does not fit and forgets the rest: right for the
//! torn end of a write that was never acknowledged, wrong for a bit that flipped in the middle. The
//! two can be told apart: every transaction is synced before the next begins, so a frame of a
//! *later* transaction after a bad one means that acknowledged data would be lost.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Result, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::schema::{BUSY_MS, fail};
use crate::error::Error;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const MAGIC: u32 = 0x377f_0682;
const PAGE_SIZES: std::ops::RangeInclusive<u32> = 512..=65536;

/// Damage that SQLite would pass over in silence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// The first frame that is not whole; 0 for the header.
    pub frame: u64,
    /// Transactions after it that SQLite would forget.
    pub transactions: u64,
}

/// The log beside a database file.
pub(super) fn wal_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Looks for damage. Another process may be writing: only what is seen twice in the same log counts.
pub(super) fn inspect(database: &Path) -> Result<Option<Damage>> {
    const LOOKS: usize = 3;
    let path = wal_path(database);
    let mut last = None;
    for _ in 0..LOOKS {
        let Some((header, found)) = look(&path)? else { return Ok(None) };
        let Some(damage) = found else { return Ok(None) };
        let seen = (header, damage);
        if last.as_ref() == Some(&seen) {
            return Ok(Some(seen.1));
        }
        last = Some(seen);
    }
    Ok(None)
}

/// Makes sure that the disk has what SQLite found in the log: writes it to the log once more, and syncs.
///
/// Whoever wrote it may have died before its sync, or of its sync: then the system has pages that the disk has not, and
/// after a failed sync it believes them to be clean, so that no later sync would write them. Whatever is built on
/// them would be lost with them.
pub(super) fn settle(connection: &Connection, database: &Path) -> crate::error::Result<()> {
    const PATIENCE: Duration = Duration::from_millis(1000);
    let path = wal_path(database);
    if std::fs::metadata(&path).map_or(0, |found| found.len()) == 0 {
        return Ok(());
    }
    let what = format!("settling {}", path.display());
    let failed = fail(&what);
    connection.busy_timeout(PATIENCE).map_err(&failed)?;
    let begun = connection.execute_batch("BEGIN IMMEDIATE").map_err(&failed);
    connection.busy_timeout(Duration::from_millis(BUSY_MS)).map_err(&failed)?;
    match begun {
        // Under the lock nobody else changes the log.
        Ok(()) => {
            let written = write_again(&path).map_err(|error| Error::Io { what: what.clone(), why: error.to_string() });
            connection.execute_batch("ROLLBACK").map_err(&failed)?;
            written
        }
        // Another process is writing, and did this before it began.
        Err(Error::Busy { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn write_again(path: &Path) -> Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    file.rewind()?;
    file.write_all(&bytes)?;
    file.sync_all()
}

/// One pass over the log: its header, and the damage found.
fn look(path: &Path) -> Result<Option<([u8; HEADER], Option<Damage>)>> {
    let file = match File::open(path) {
        Ok(file) => file,
        // No log, or no such place at all: SQLite says which.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut file = BufReader::with_capacity(1 << 20, file);
    let mut header = [0u8; HEADER];
    if !fill(&mut file, &mut header)? {
        return Ok(None);
    }
    let magic = word(&header, 0);
    let swapped = magic & 1 == 1;
    let sums = checksum((0, 0), &header[..24], swapped);
    let page = word(&header, 8);
    let is_whole = magic & !1 == MAGIC
        && sums == (word(&header, 24), word(&header, 28))
        && PAGE_SIZES.contains(&page)
        && page.is_power_of_two();
    if !is_whole {
        // A header of zeros was never synced, and so nothing after it was.
        let mut first_frame = [0u8; FRAME_HEADER];
        let has_frames = fill(&mut file, &mut first_frame)?;
        let damage = has_frames && header != [0; HEADER];
        return Ok(Some((header, damage.then_some(Damage { frame: 0, transactions: 1 }))));
    }
    let damage = frames(&mut file, &header, sums, page as usize, swapped)?;
    Ok(Some((header, damage)))
}

fn frames(
    file: &mut impl Read,
    header: &[u8; HEADER],
    mut sums: (u32, u32),
    page: usize,
    swapped: bool,
) -> Result<Option<Damage>> {
    let salts = &header[16..24];
    let mut frame = vec![0u8; FRAME_HEADER + page];
    let mut number = 0;
    let mut bad = None;
    // Commits among the frames from the bad one on, and whether a frame follows the first of them.
    let (mut commits, mut later) = (0u64, false);
    while fill(file, &mut frame)? {
        number += 1;
        if frame[8..12] != salts[..4] && frame[12..16] != salts[4..] {
            // Left over from before the log was begun anew: that changes both salts, a flipped bit one of them.
            if bad.is_none() {
                bad = Some(number);
            }
            continue;
        }
        if bad.is_none() {
            let next = checksum(checksum(sums, &frame[..8], swapped), &frame[FRAME_HEADER..], swapped);
            if frame[8..16] == *salts && next == (word(&frame, 16), word(&frame, 20)) {
                sums = next;
                continue;
            }
            bad = Some(number);
        }
        later |= commits > 0;
        commits += u64::from(word(&frame, 4) != 0);
    }
    Ok(match bad {
        Some(frame) if later => Some(Damage { frame, transactions: commits }),
        _ => None,
    })
}

/// Fills the buffer; false when the file ends before.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// SQLite's running checksum over pairs of 32-bit words; `swapped` when they are big-endian.
fn checksum((mut a, mut b): (u32, u32), bytes: &[u8], swapped: bool) -> (u32, u32) {
    let read = |four: [u8; 4]| if swapped { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) };
    for pair in bytes.as_chunks::<8>().0 {
        let (first, second) = (read([pair[0], pair[1], pair[2], pair[3]]), read([pair[4], pair[5], pair[6], pair[7]]));
        a = a.wrapping_add(first).wrapping_add(b);
        b = b.wrapping_add(second).wrapping_add(a);
    }
    (a, b)
}
