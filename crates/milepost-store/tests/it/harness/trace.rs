//! The recorder's file, read back: operations in the order in which they happened.
//!
//! The recorder names files by inode number, which the kernel reuses. Here each file that ever existed gets a
//! [`FileId`] of its own, so that nothing after this module thinks about inodes.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

/// One file that existed during the recording, under whatever names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub usize);

/// What a sync covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The content and the size of a file.
    File(FileId),
    /// The names in a directory, given relative to the recorded one (empty for itself).
    Dir(String),
}

/// One operation of the recorded program. Names are relative to the recorded directory.
#[derive(Debug, Clone)]
pub enum Op {
    /// Bytes (a range of the trace) written at an offset.
    Write { file: FileId, offset: u64, bytes: Range<usize> },
    /// The size set, up or down.
    Size { file: FileId, size: u64 },
    /// The size raised to at least this (an allocation).
    Extend { file: FileId, size: u64 },
    /// A sync was asked for. It covers what happened before this.
    SyncBegin { token: u64 },
    /// That sync returned. Only now may the program rely on it.
    SyncEnd { token: u64, target: Target, ok: bool },
    /// A name made for a file: creation or hard link.
    Link { name: String, file: FileId },
    /// A name removed.
    Unlink { name: String },
    /// A name moved, over another file if there was one.
    Rename { from: String, to: String, file: FileId },
    /// Bytes written to standard output.
    Ack { bytes: Range<usize> },
}

/// A whole recording.
#[derive(Debug, Clone)]
pub struct Ops {
    /// The raw trace, into which `Op::Write` and `Op::Ack` point.
    pub bytes: Vec<u8>,
    /// Everything that happened, in order.
    pub list: Vec<Op>,
    /// The first name of each file, by `FileId`. Empty for a file that never had one.
    pub first_names: Vec<String>,
}

const MAGIC: u32 = 0x3154_504d;
const HEADER_BYTES: usize = 32;
const FLAG_FAILED: u8 = 1;
const FLAG_DIR: u8 = 2;

struct Record {
    op: u8,
    flags: u8,
    ino: u64,
    offset: u64,
    path: String,
    to: String,
    data: Range<usize>,
}

/// Reads `bytes`. `known` are the files that were there before, by inode number; they become the first ids, in order.
pub fn parse(bytes: Vec<u8>, known: &[(u64, String)]) -> io::Result<Ops> {
    let mut by_ino: HashMap<u64, FileId> = HashMap::new();
    let mut first_names = Vec::new();
    for (ino, name) in known {
        by_ino.insert(*ino, FileId(first_names.len()));
        first_names.push(name.clone());
    }
    let mut list = Vec::new();
    let mut at = 0;
    while let Some((record, next)) = read_record(&bytes, at)? {
        at = next;
        if record.op == 1 {
            by_ino.insert(record.ino, FileId(first_names.len()));
            first_names.push(record.path.clone());
        }
        list.extend(to_op(record, &by_ino)?);
    }
    Ok(Ops { bytes, list, first_names })
}

fn to_op(record: Record, by_ino: &HashMap<u64, FileId>) -> io::Result<Option<Op>> {
    let Record { op, flags, ino, offset, path, to, data } = record;
    let is_dir = flags & FLAG_DIR != 0;
    let file = || {
        by_ino.get(&ino).copied().ok_or_else(|| {
            bad(format!(
                "inode {ino} ({path:?} {to:?}) was made behind the recorder's back; use libc calls in the child"
            ))
        })
    };
    Ok(Some(match op {
        1 if path.is_empty() => return Ok(None),
        1 => Op::Link { file: file()?, name: path },
        2 => Op::Write { file: file()?, offset, bytes: data },
        3 => Op::Size { file: file()?, size: offset },
        4 => Op::Extend { file: file()?, size: offset },
        5 => Op::SyncBegin { token: offset },
        6 => {
            let target = if is_dir { Target::Dir(path) } else { Target::File(file()?) };
            Op::SyncEnd { token: offset, target, ok: flags & FLAG_FAILED == 0 }
        }
        7 | 8 if is_dir => {
            return Err(bad(format!("renaming the directory {path:?} is not modelled")));
        }
        7 => Op::Rename { file: file()?, from: path, to },
        8 => Op::Unlink { name: path },
        9 => Op::Link { file: file()?, name: to },
        10 => Op::Ack { bytes: data },
        other => return Err(bad(format!("unknown operation {other} in the trace"))),
    }))
}

/// The record at `at` and where the next begins. None at the end, which a killed child may have left half written.
fn read_record(bytes: &[u8], at: usize) -> io::Result<Option<(Record, usize)>> {
    let Some(head) = bytes.get(at..at + HEADER_BYTES) else {
        return Ok(None);
    };
    let u32_at = |i: usize| u32::from_le_bytes(head[i..i + 4].try_into().unwrap());
    let u64_at = |i: usize| u64::from_le_bytes(head[i..i + 8].try_into().unwrap());
    if u32_at(0) != MAGIC {
        return Err(bad(format!("no record at byte {at} of the trace")));
    }
    let path_start = at + HEADER_BYTES;
    let to_start = path_start + usize::from(u16::from_le_bytes([head[6], head[7]]));
    let data_start = to_start + u32_at(8) as usize;
    let end = data_start + u32_at(12) as usize;
    if end > bytes.len() {
        return Ok(None);
    }
    let text = |range: Range<usize>| String::from_utf8_lossy(&bytes[range]).into_owned();
    let record = Record {
        op: head[4],
        flags: head[5],
        ino: u64_at(16),
        offset: u64_at(24),
        path: text(path_start..to_start),
        to: text(to_start..data_start),
        data: data_start..end,
    };
    Ok(Some((record, end)))
}

fn bad(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
