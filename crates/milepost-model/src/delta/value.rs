//! JSON values as bytes, and the one definition of when two of them are the same.
//!
//! The encoding is canonical: a value has exactly one, whatever the order of its keys in memory. State hashes are made of
//! it, so it is frozen; [`VALUE_VERSION`] changes if it ever must.
//!
//! | first byte | value | then |
//! |---|---|---|
//! | `00` `01` `02` | null, false, true | |
//! | `03` | integer ≥ 128 | varint |
//! | `04` | integer < 0 | varint of `-1 - n` |
//! | `05` | float | 8 bytes of its bits, little endian |
//! | `06` | string of ≥ 64 bytes | varint length, UTF-8 |
//! | `07` | list | varint count, items |
//! | `08` | object | varint count, then by ascending key: varint length, UTF-8, value |
//! | `40..=7f` | string of 0..=63 bytes | UTF-8 |
//! | `80..=ff` | integer 0..=127 | |

use std::slice;

use serde_json::{Map, Number, Value, map};

use super::read::Reader;
use super::{DeltaError, MAX_DEPTH};

/// First byte of what [`encode_value`] writes.
pub const VALUE_VERSION: u8 = 1;

pub(super) const NULL: u8 = 0x00;
pub(super) const FALSE: u8 = 0x01;
pub(super) const TRUE: u8 = 0x02;
pub(super) const UINT: u8 = 0x03;
pub(super) const NEGATIVE: u8 = 0x04;
pub(super) const FLOAT: u8 = 0x05;
pub(super) const STRING: u8 = 0x06;
pub(super) const LIST: u8 = 0x07;
pub(super) const OBJECT: u8 = 0x08;
pub(super) const SHORT_STRING: u8 = 0x40;
pub(super) const SMALL_UINT: u8 = 0x80;
pub(super) const SHORT_STRING_LIMIT: usize = 64;
pub(super) const SMALL_UINT_LIMIT: u64 = 128;

/// Encodes a whole document, canonically: equal documents give equal bytes.
///
/// Works at any depth; [`decode_value`] refuses what is deeper than [`MAX_DEPTH`], as [`Delta::diff`](super::Delta::diff)
/// does, so ask [`check_depth`] about a document that came from neither.
pub fn encode_value(value: &Value) -> Vec<u8> {
    let mut out = vec![VALUE_VERSION];
    write_value(value, &mut out);
    out
}

/// Decodes what [`encode_value`] wrote. Safe on any bytes.
pub fn decode_value(bytes: &[u8]) -> Result<Value, DeltaError> {
    let mut reader = Reader::new(bytes);
    reader.version(VALUE_VERSION)?;
    let value = reader.value(0)?;
    reader.end()?;
    Ok(value)
}

/// Whether a document nests at most [`MAX_DEPTH`] containers; [`DeltaError::TooDeep`] if not.
pub fn check_depth(value: &Value) -> Result<(), DeltaError> {
    measure(value, 0).map(|_| ())
}

/// A number by what makes it that number: `1` and `1.0` differ, and so do `0.0` and `-0.0`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exact {
    Uint(u64),
    Negative(i64),
    FloatBits(u64),
}

impl From<&Number> for Exact {
    fn from(number: &Number) -> Self {
        if let Some(uint) = number.as_u64() {
            Self::Uint(uint)
        } else if let Some(int) = number.as_i64() {
            Self::Negative(int)
        } else {
            // Only serde_json's `arbitrary_precision` can hold a number that is none of the three; it saturates.
            Self::FloatBits(number.as_f64().unwrap_or(f64::MAX).to_bits())
        }
    }
}

pub(super) fn same_number(a: &Number, b: &Number) -> bool {
    Exact::from(a) == Exact::from(b)
}

/// The name of a value's type, for a message.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// An object's entries by ascending key, whatever order the map keeps.
pub(crate) enum Entries<'a> {
    InOrder(map::Iter<'a>),
    Sorted(std::vec::IntoIter<(&'a String, &'a Value)>),
}

pub(crate) fn entries(map: &Map<String, Value>) -> Entries<'_> {
    if map.keys().is_sorted() {
        return Entries::InOrder(map.iter());
    }
    let mut sorted: Vec<_> = map.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| *key);
    Entries::Sorted(sorted.into_iter())
}

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a String, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::InOrder(entries) => entries.next(),
            Self::Sorted(entries) => entries.next(),
        }
    }
}

/// Where encoded bytes go: a buffer, a hash, or just a count.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);

    /// Whether more bytes would change nothing.
    fn is_full(&self) -> bool {
        false
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts bytes up to a limit.
struct Counter {
    count: usize,
    limit: usize,
}

impl Sink for Counter {
    fn put(&mut self, bytes: &[u8]) {
        self.count = self.count.saturating_add(bytes.len());
    }

    fn is_full(&self) -> bool {
        self.count >= self.limit
    }
}

/// The encoded size of a value, or something at or above `limit` once that is reached.
pub(super) fn encoded_len(value: &Value, limit: usize) -> usize {
    let mut counter = Counter { count: 0, limit };
    write_value(value, &mut counter);
    counter.count
}

/// A hash of bytes given piece by piece. Small inputs take the one-shot path, which is several times faster.
#[derive(Default)]
pub(crate) struct Digest {
    buffer: Vec<u8>,
    hasher: Option<Box<blake3::Hasher>>,
    count: usize,
}

impl Digest {
    const BUFFER_BYTES: usize = 64 * 1024;

    /// The hash of what was put since the last call, and how many bytes that was.
    pub(crate) fn finish(&mut self) -> ([u8; 32], usize) {
        let hash = match self.hasher.take() {
            Some(mut hasher) => hasher.update(&self.buffer).finalize(),
            None => blake3::hash(&self.buffer),
        };
        self.buffer.clear();
        (hash.into(), std::mem::take(&mut self.count))
    }
}

impl Sink for Digest {
    fn put(&mut self, bytes: &[u8]) {
        self.count += bytes.len();
        if self.buffer.len() + bytes.len() > Self::BUFFER_BYTES {
            let hasher = self.hasher.get_or_insert_with(Box::default);
            hasher.update(&self.buffer).update(bytes);
            self.buffer.clear();
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }
}

/// A container whose children are being written.
enum Frame<'a> {
    List(slice::Iter<'a, Value>),
    Object(Entries<'a>),
}

/// Writes a value's canonical encoding. Keeps its own stack, so any depth is fine.
pub(crate) fn write_value(value: &Value, sink: &mut impl Sink) {
    let mut stack: Vec<Frame<'_>> = Vec::new();
    stack.extend(write_head(value, sink));
    while let Some(frame) = stack.last_mut() {
        if sink.is_full() {
            return;
        }
        let child = match frame {
            Frame::List(items) => items.next(),
            Frame::Object(entries) => entries.next().map(|(key, child)| {
                write_str(key, sink);
                child
            }),
        };
        match child {
            Some(child) => stack.extend(write_head(child, sink)),
            None => drop(stack.pop()),
        }
    }
}

/// Writes a scalar, or a container's tag and count; in the latter case returns what is left to write.
fn write_head<'a>(value: &'a Value, sink: &mut impl Sink) -> Option<Frame<'a>> {
    match value {
        Value::Null => sink.put(&[NULL]),
        Value::Bool(false) => sink.put(&[FALSE]),
        Value::Bool(true) => sink.put(&[TRUE]),
        Value::Number(number) => write_number(number, sink),
        Value::String(text) if text.len() < SHORT_STRING_LIMIT => {
            sink.put(&[SHORT_STRING | text.len() as u8]);
            sink.put(text.as_bytes());
        }
        Value::String(text) => {
            sink.put(&[STRING]);
            write_str(text, sink);
        }
        Value::Array(items) => {
            sink.put(&[LIST]);
            write_varint(items.len() as u64, sink);
            return Some(Frame::List(items.iter()));
        }
        Value::Object(map) => {
            sink.put(&[OBJECT]);
            write_varint(map.len() as u64, sink);
            return Some(Frame::Object(entries(map)));
        }
    }
    None
}

fn write_number(number: &Number, sink: &mut impl Sink) {
    match Exact::from(number) {
        Exact::Uint(uint) if uint < SMALL_UINT_LIMIT => sink.put(&[SMALL_UINT | uint as u8]),
        Exact::Uint(uint) => {
            sink.put(&[UINT]);
            write_varint(uint, sink);
        }
        Exact::Negative(int) => {
            sink.put(&[NEGATIVE]);
            write_varint(!int as u64, sink);
        }
        Exact::FloatBits(bits) => {
            sink.put(&[FLOAT]);
            sink.put(&bits.to_le_bytes());
        }
    }
}

/// Seven bits a byte, low bits first, the high bit set on all but the last.
pub(crate) fn write_varint(mut number: u64, sink: &mut impl Sink) {
    let mut bytes = [0; 10];
    let mut len = 0;
    while number >= 0x80 {
        bytes[len] = number as u8 | 0x80;
        number >>= 7;
        len += 1;
    }
    bytes[len] = number as u8;
    sink.put(&bytes[..=len]);
}

pub(crate) fn write_str(text: &str, sink: &mut impl Sink) {
    write_varint(text.len() as u64, sink);
    sink.put(text.as_bytes());
}

/// The number of values in a document, with long strings counting more; fails when it nests too deep for a place
/// `depth` levels down.
pub(super) fn measure(value: &Value, depth: usize) -> Result<usize, DeltaError> {
    enum Children<'a> {
        List(slice::Iter<'a, Value>),
        Object(map::Values<'a>),
    }
    let mut stack: Vec<Children<'_>> = Vec::new();
    let mut weight = 0;
    let mut current = Some(value);
    loop {
        let children = match current {
            Some(Value::Array(items)) => Some(Children::List(items.iter())),
            Some(Value::Object(map)) => Some(Children::Object(map.values())),
            Some(Value::String(text)) => {
                weight += text.len() / 64;
                None
            }
            _ => None,
        };
        if let Some(children) = children {
            if depth + stack.len() >= MAX_DEPTH {
                return Err(DeltaError::TooDeep);
            }
            stack.push(children);
        }
        weight += 1;
        current = loop {
            let next = match stack.last_mut() {
                None => return Ok(weight),
                Some(Children::List(items)) => items.next(),
                Some(Children::Object(values)) => values.next(),
            };
            if next.is_some() {
                break next;
            }
            stack.pop();
        };
    }
}

/// Drops a value level by level: the compiler's own drop recurses, and a document made in memory may be deeper than
/// the stack allows.
pub(super) fn discard(value: Value) {
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        match value {
            Value::Array(items) => pending.extend(items.into_iter().filter(is_container)),
            Value::Object(map) => pending.extend(map.into_iter().map(|(_, child)| child).filter(is_container)),
            _ => {}
        }
    }
}

fn is_container(value: &Value) -> bool {
    value.is_array() || value.is_object()
}
