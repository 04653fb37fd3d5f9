//! What objects look like inside. See `docs/object-protocol.md`; a change needs a new version.

use std::borrow::Cow;

use milepost_model::{Epoch, Position, Seq, SessionId, TimelineId, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::{Batch, BlobId, Keyframe, Lease, MarkRow, Record, RecordKey, SessionRow, StoredEntry};
use crate::error::{Error, Result};

const MAGIC: &[u8; 3] = b"MPO";
const VERSION: u8 = b'1';
const HEADER_BYTES: usize = 13;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
/// Below this, compression costs more than it saves.
const COMPRESS_FROM_BYTES: usize = 512;
/// More than any object: a guard against a header that lies.
const MAX_OBJECT_BYTES: usize = 1 << 31;

/// One step of a log: what one PUT adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Step {
    /// Names this PUT, so that a retry recognises its own earlier try.
    pub put: [u8; 16],
    /// When it was made, by its writer's clock.
    pub time: Timestamp,
    /// The lease it was made under, if any.
    pub epoch: Option<Epoch>,
    pub ops: Vec<Op>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Op {
    Append(Box<Appending>),
    Lease(Lease),
    Branch(Pin),
    /// The branch did not begin after all.
    Unbranch(TimelineId),
    Rebuild {
        row: Box<SessionRow>,
        marks: Vec<MarkRow>,
    },
    Remove,
    PutRecord(Record),
    DeleteRecord(RecordKey),
}

/// An append, its blobs by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Appending {
    pub batch: Batch,
    pub blobs: Vec<BlobId>,
    /// The session of the opening's parent, when it is another one.
    pub parent: Option<SessionId>,
}

impl Appending {
    /// About how large it is.
    pub fn bytes(&self) -> usize {
        self.batch.entries.iter().map(|entry| entry.body.len() + entry.text.as_ref().map_or(0, String::len) + 128).sum()
    }
}

impl Step {
    /// What is left of a log's first step when a base stands in for it: the number stays taken.
    pub fn stub() -> Self {
        Self { put: [0; 16], time: Timestamp(0), epoch: None, ops: Vec::new() }
    }

    pub fn is_stub(&self) -> bool {
        self.put == [0; 16]
    }
}

/// Steps that follow one another, as they were written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Segment {
    /// The number of the first.
    pub first: u64,
    pub steps: Vec<Step>,
}

/// A timeline of another session that begins in this one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Pin {
    pub session: SessionId,
    pub timeline: TimelineId,
    pub at: Position,
    pub time: Timestamp,
}

/// Everything up to a step, folded.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Base {
    /// None when there is no such session (any more).
    pub session: Option<SessionBase>,
    /// Of the log of a kind of records.
    pub records: Vec<Record>,
    pub pins: Vec<Pin>,
    /// When blobs came with a step.
    pub touched: Vec<(BlobId, Timestamp)>,
    /// Sessions in which this one's timelines begin.
    pub parents: Vec<(TimelineId, SessionId)>,
    /// Branches of other sessions that were here once.
    pub ended: Vec<TimelineId>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionBase {
    pub row: SessionRow,
    pub noted_length: u64,
    pub lease: Lease,
    /// In the order they were made.
    pub timelines: Vec<TimelineBase>,
    pub marks: Vec<MarkRow>,
    pub keyframes: Vec<Keyframe>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TimelineBase {
    pub id: TimelineId,
    pub parent: Option<Position>,
    pub head: Option<String>,
    pub entries: Vec<(Seq, StoredEntry)>,
}

/// The rows of all sessions.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Index {
    pub sealed: Timestamp,
    pub sessions: Vec<(SessionId, IndexRow)>,
}

/// What the index knows of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct IndexRow {
    /// The number of the step after the last that is known.
    pub next: u64,
    /// None when it was removed.
    pub row: Option<SessionRow>,
    pub timelines: Vec<TimelineId>,
    /// The upper halves of its marks' ids: time and 16 random bits.
    pub marks: Vec<u64>,
    /// There is something in its steps whose old bytes are to go.
    pub untidy: bool,
    /// An earlier `next`, and when an index first knew it: once that is long ago, nobody needs the steps before.
    pub noted: (u64, Timestamp),
    /// The `next` that was known long ago.
    pub settled: u64,
}

/// What follows an index: programs that know nothing of it read up to it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct IndexTail {
    /// Marks up to the head that are not in the trash, of sessions that continue no other's timeline.
    pub marks: Vec<(SessionId, u64)>,
}

/// The upper half of an id.
pub(super) fn upper(id: impl milepost_model::Id) -> u64 {
    (id.bits() >> 64) as u64
}

pub(super) fn encode<T: Serialize>(what: &str, value: &T) -> Result<Vec<u8>> {
    let plain = postcard::to_stdvec(value).map_err(|error| Error::invalid(what, error.to_string()))?;
    let packed = if plain.len() >= COMPRESS_FROM_BYTES { zstd::bulk::compress(&plain, 3).ok() } else { None };
    let (flags, payload) = match packed {
        Some(packed) if packed.len() < plain.len() => (ZSTD, packed),
        _ => (PLAIN, plain),
    };
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[VERSION, flags]);
    out.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&payload).to_be_bytes());
    out.extend_from_slice(&payload);
    Ok(out)
}

pub(super) fn decode<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(&unpack(key, bytes)?).map_err(|error| damaged(key, &error.to_string()))
}

/// An index, and what follows it; nothing where an older program wrote it.
pub(super) fn decode_index(key: &str, bytes: &[u8]) -> Result<(Index, IndexTail)> {
    let plain = unpack(key, bytes)?;
    let wrong = |error: postcard::Error| damaged(key, &error.to_string());
    let (index, rest) = postcard::take_from_bytes(&plain).map_err(wrong)?;
    let tail = if rest.is_empty() { IndexTail::default() } else { postcard::from_bytes(rest).map_err(wrong)? };
    Ok((index, tail))
}

fn damaged(key: &str, why: &str) -> Error {
    Error::corrupt(format!("the object {key}"), why)
}

/// What an object holds, checked.
fn unpack<'a>(key: &str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    let damaged = |why: &str| damaged(key, why);
    let (header, payload) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| damaged("it is too short"))?;
    if &header[..3] != MAGIC {
        return Err(damaged("it does not begin as an object of Milepost does"));
    }
    if header[3] != VERSION {
        let found = u64::from(header[3].saturating_sub(b'0'));
        return Err(Error::Newer { what: format!("the object {key}"), found, supported: 1 });
    }
    if xxhash_rust::xxh3::xxh3_64(payload).to_be_bytes() != header[5..HEADER_BYTES] {
        return Err(damaged("its checksum does not fit"));
    }
    match header[4] {
        PLAIN => Ok(Cow::Borrowed(payload)),
        ZSTD => {
            let size = zstd::bulk::Decompressor::upper_bound(payload).unwrap_or(MAX_OBJECT_BYTES).min(MAX_OBJECT_BYTES);
            zstd::bulk::decompress(payload, size).map(Cow::Owned).map_err(|error| damaged(&error.to_string()))
        }
        _ => Err(damaged("it is packed in an unknown way")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_with_and_without_what_follows_it() {
        let index = Index { sealed: Timestamp(7), sessions: Vec::new() };
        let tail = IndexTail { marks: vec![("ses_00000000000000000000000001".parse().unwrap(), 3)] };
        let with = encode("the index", &(&index, &tail)).unwrap();
        // A program that knows nothing of it.
        assert_eq!(decode::<Index>("k", &with).unwrap().sealed, Timestamp(7));
        let (read, follows) = decode_index("k", &with).unwrap();
        assert_eq!((read.sealed, follows.marks), (Timestamp(7), tail.marks));
        let (read, follows) = decode_index("k", &encode("the index", &index).unwrap()).unwrap();
        assert_eq!((read.sealed, follows.marks.len()), (Timestamp(7), 0));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let step = Step { put: [7; 16], time: Timestamp(5), epoch: Some(Epoch(3)), ops: vec![Op::Remove] };
        let bytes = encode("a step", &step).unwrap();
        assert_eq!(decode::<Step>("k", &bytes).unwrap(), step);
        for place in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[place / 8] ^= 1 << (place % 8);
            assert!(decode::<Step>("k", &bad).is_err(), "bit {place}");
        }
    }
}
