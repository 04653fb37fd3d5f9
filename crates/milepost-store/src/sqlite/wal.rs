//! Looks into a write-ahead log that a crash left behind, before SQLite recovers it.
//!
//! SQLite stops at the first frame whose checksum does not fit and forgets the rest: right for the
//! torn end of a write that was never acknowledged, wrong for a bit that flipped in the middle. The
//! two can be told apart: every transaction is synced before the next begins, so a frame of a
//! *later* transaction after a bad one means that acknowledged data would be lost.
//!
//! Where transactions end is in the frames' headers. One kind of header can mislead: when a sector ends within it, a
//! torn write can leave the front of an older frame before the rest of the new one. What such a header should say
//! follows from the frame's checksum.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::schema::{BUSY_MS, WAL_PAGES, fail};
use crate::error::Error;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// Where a frame's header goes on after the page's number and the commit's size.
const SALTS_AT: usize = 8;
/// What a disk writes whole, at least.
const SECTOR: usize = 512;
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

/// Makes the log's file longer before SQLite does: a commit that only overwrites needs no new length in the file system's own
/// log, and is durable in two thirds of the time. What it writes are zeros behind the end, which is where the log ends for
/// whoever reads it. A file that could not be made longer is left to SQLite.
pub(super) struct Ahead {
    path: PathBuf,
    file: Option<File>,
    /// How long the file was made.
    reached: u64,
    is_tried: bool,
}

impl Ahead {
    /// At most so many bytes at once,
    const STEP: u64 = 512 << 10;
    /// and up to the length at which the log begins anew.
    const FULL: u64 = (WAL_PAGES as u64 + 16) * 4120;

    pub fn new(database: &Path) -> Self {
        Self { path: wal_path(database), file: None, reached: 0, is_tried: true }
    }

    /// Makes the file longer when SQLite has come to its end: by as much as there is, so that who commits once pays nothing.
    /// The caller holds the lock for writing.
    pub fn extend(&mut self) {
        self.is_tried &= self.try_extend().is_ok();
    }

    fn try_extend(&mut self) -> Result<()> {
        if !self.is_tried {
            return Ok(());
        }
        let mut file = match &self.file {
            Some(file) => file,
            None => self.file.insert(File::options().write(true).open(&self.path)?),
        };
        // Not by its metadata: whoever asks for a file's times makes the next write store new ones.
        let size = file.seek(SeekFrom::End(0))?;
        self.reached = self.reached.min(size);
        if size > self.reached && size < Self::FULL {
            let more = size.min(Self::STEP).min(Self::FULL - size);
            file.write_all(&vec![0; more as usize])?;
            self.reached = size + more;
        }
        Ok(())
    }
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

/// Puts the pages that were committed to the log over those of the database, as SQLite would read them: up to the first frame
/// that is not whole. Returns how many.
pub(super) fn overlay(database: &Path, bytes: &mut Vec<u8>) -> Result<u64> {
    let log = match std::fs::read(wal_path(database)) {
        Ok(log) => log,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let (Some(header), Some(frames)) = (log.get(..HEADER), log.get(HEADER..)) else { return Ok(0) };
    let (swapped, page) = (word(header, 0) & 1 == 1, word(header, 8) as usize);
    let mut sums = checksum((0, 0), &header[..24], swapped);
    let is_whole = word(header, 0) & !1 == MAGIC && sums == (word(header, 24), word(header, 28));
    if !is_whole || !PAGE_SIZES.contains(&(page as u32)) {
        return Ok(0);
    }
    let (mut waiting, mut done) = (Vec::new(), 0);
    // Whatever a frame says, there are no more pages than these.
    let most = bytes.len() / page + frames.len() / (FRAME_HEADER + page);
    for frame in frames.chunks_exact(FRAME_HEADER + page) {
        let next = frame_sums(sums, frame, swapped);
        if frame[8..16] != header[16..24] || next != (word(frame, 16), word(frame, 20)) {
            break;
        }
        sums = next;
        waiting.push((word(frame, 0) as usize, &frame[FRAME_HEADER..]));
        if word(frame, 4) == 0 {
            continue;
        }
        // A commit says how many pages the database has then.
        bytes.resize((word(frame, 4) as usize).min(most) * page, 0);
        for (number, content) in waiting.drain(..) {
            let at = number.saturating_sub(1) * page;
            if let Some(place) = bytes.get_mut(at..at + page) {
                place.copy_from_slice(content);
                done += 1;
            }
        }
    }
    Ok(done)
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
    // What the checksum of the frame before is, as it was stored and as it was computed.
    let mut before = [sums; 2];
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
            let next = frame_sums(sums, &frame, swapped);
            if frame[8..16] == *salts && next == (word(&frame, 16), word(&frame, 20)) {
                sums = next;
                continue;
            }
            bad = Some(number);
            before = [sums; 2];
        }
        later |= commits > 0;
        let at = HEADER + (number as usize - 1) * frame.len();
        let is_doubtful = at % SECTOR + SALTS_AT == SECTOR;
        let is_commit =
            word(&frame, 4) != 0 && (!is_doubtful || ends_transaction(&frame, before, swapped, bad == Some(number)));
        commits += u64::from(is_commit);
        before = [(word(&frame, 16), word(&frame, 20)), frame_sums(before[0], &frame, swapped)];
    }
    Ok(match bad {
        Some(frame) if later => Some(Damage { frame, transactions: commits }),
        _ => None,
    })
}

/// Whether a header that says so, and whose front may be an older frame's, is that of a transaction's last frame.
fn ends_transaction(frame: &[u8], before: [(u32, u32); 2], swapped: bool, is_first: bool) -> bool {
    let stored = (word(frame, 16), word(frame, 20));
    if before.iter().any(|sums| frame_sums(*sums, frame, swapped) == stored) {
        return true;
    }
    // Back from the checksum over the page to what it was after the front of the header, and so to what that was.
    let (a, b) = checksum_back(stored, &frame[FRAME_HEADER..], swapped);
    let says = |(before_a, before_b): (u32, u32)| {
        let first = a.wrapping_sub(before_a).wrapping_sub(before_b);
        let second = b.wrapping_sub(before_b).wrapping_sub(a);
        let read = |word: u32| if swapped { word } else { word.swap_bytes() };
        (read(first), read(second))
    };
    if before.iter().any(|sums| matches!(says(*sums), (1..=0x7fff_ffff, 0))) {
        return false;
    }
    // More than one frame is damaged: that is a torn write, not a flipped bit.
    is_first
}

/// The checksum after a frame, given the one before it.
fn frame_sums(before: (u32, u32), frame: &[u8], swapped: bool) -> (u32, u32) {
    checksum(checksum(before, &frame[..SALTS_AT], swapped), &frame[FRAME_HEADER..], swapped)
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

/// The checksum before these bytes, given the one after them.
fn checksum_back((mut a, mut b): (u32, u32), bytes: &[u8], swapped: bool) -> (u32, u32) {
    let read = |four: [u8; 4]| if swapped { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) };
    for pair in bytes.as_chunks::<8>().0.iter().rev() {
        let (first, second) = (read([pair[0], pair[1], pair[2], pair[3]]), read([pair[4], pair[5], pair[6], pair[7]]));
        b = b.wrapping_sub(second).wrapping_sub(a);
        a = a.wrapping_sub(first).wrapping_sub(b);
    }
    (a, b)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const FRAME: usize = FRAME_HEADER + 4096;
    /// A frame whose header lies on both sides of a sector's end, counted from 0.
    const SPLIT: usize = 41;

    fn at(frame: usize) -> usize {
        HEADER + frame * FRAME
    }

    /// A log of many small transactions, and the same log begun anew by a large one.
    fn logs(dir: &Path) -> (PathBuf, Vec<u8>, Vec<u8>) {
        let database = dir.join("a.db");
        let db = Connection::open(&database).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (id INTEGER PRIMARY KEY, x);
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 80)
             INSERT INTO t SELECT i, zeroblob(3000) FROM n;
             PRAGMA wal_checkpoint(TRUNCATE);",
        )
        .unwrap();
        for id in 1..=70 {
            db.execute("UPDATE t SET x = randomblob(3000) WHERE id = ?1", [id]).unwrap();
        }
        let small = std::fs::read(wal_path(&database)).unwrap();
        db.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        db.execute("UPDATE t SET x = randomblob(3000)", []).unwrap();
        let large = std::fs::read(wal_path(&database)).unwrap();
        (dir.join("b.db"), small, large)
    }

    fn inspected(database: &Path, log: &[u8]) -> Option<Damage> {
        std::fs::write(wal_path(database), log).unwrap();
        inspect(database).unwrap()
    }

    #[test]
    fn a_torn_transaction_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        let (database, small, large) = logs(dir.path());
        assert_eq!(inspected(&database, &large), None);
        for (torn_page, torn_split_page) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut torn = large.clone();
            // The front of the header, with the size that says that a transaction ends, is an older frame's.
            torn[at(SPLIT)..at(SPLIT) + SALTS_AT].copy_from_slice(&small[at(SPLIT)..at(SPLIT) + SALTS_AT]);
            assert_ne!(word(&torn, at(SPLIT) + 4), 0);
            let mut tear = |frame: usize| torn[at(frame) + 2000..at(frame) + 2512].fill(0);
            if torn_page {
                tear(SPLIT - 2);
            }
            if torn_split_page {
                tear(SPLIT);
            }
            if (torn_page, torn_split_page) == (false, true) {
                // Nothing tells this from a flipped bit in a transaction's last frame: better to say it.
                assert!(inspected(&database, &torn).is_some());
            } else {
                assert_eq!(inspected(&database, &torn), None, "{torn_page} {torn_split_page}");
            }
        }
    }

    #[test]
    fn a_flipped_bit_before_an_acknowledged_transaction_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let (database, small, _) = logs(dir.path());
        let end = at(SPLIT + 2);
        for byte in (at(SPLIT - 1)..at(SPLIT + 1)).step_by(7).chain(at(SPLIT)..at(SPLIT) + FRAME_HEADER) {
            let mut flipped = small[..end].to_vec();
            flipped[byte] ^= 0x10;
            assert!(inspected(&database, &flipped).is_some(), "byte {} of its frame", (byte - HEADER) % FRAME);
        }
        assert_eq!(inspected(&database, &small[..end]), None);
    }
}
