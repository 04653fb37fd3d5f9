//! What a timeline is made of.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Checkpoint, Delta, Message, TimelineId, Timestamp};

/// A place in a timeline: the number of the entry there. A timeline that continues another goes on
/// counting where its parent was left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The greatest number an entry can have: a timeline's limit.
    pub const MAX: Seq = Seq(u32::MAX as u64 - 1);
    /// The next number.
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An entry of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The timeline.
    pub timeline: TimelineId,
    /// The entry in it.
    pub seq: Seq,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.timeline, self.seq)
    }
}

/// The number of a lease. Whoever writes with an older one is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A BLAKE3 hash: of an entry and all before it, of a state, of a payload.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Hash {
    type Err = HashError;
    fn from_str(text: &str) -> Result<Self, HashError> {
        let bytes = text.as_bytes();
        if bytes.len() != 64 {
            return Err(HashError);
        }
        let nibble = |b: u8| (b as char).to_digit(16).ok_or(HashError);
        let mut out = [0u8; 32];
        for (slot, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            *slot = (nibble(pair[0])? << 4 | nibble(pair[1])?) as u8;
        }
        Ok(Self(out))
    }
}

/// A text that is not a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a hash: expected 64 hexadecimal digits")]
pub struct HashError;

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The four kinds of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum EntryKind {
    /// Something said.
    Message = 1,
    /// A change of the state.
    State = 2,
    /// A checkpoint.
    Mark = 3,
    /// Anything else that happened.
    Event = 4,
}

impl EntryKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [EntryKind; 4] = [EntryKind::Message, EntryKind::State, EntryKind::Mark, EntryKind::Event];

    /// The kind with this number.
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            EntryKind::Message => "message",
            EntryKind::State => "state",
            EntryKind::Mark => "mark",
            EntryKind::Event => "event",
        }
    }
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// Something said.
    Message(Message),
    /// A change of the state.
    State(Delta),
    /// A checkpoint.
    Mark(Checkpoint),
    /// Anything else that happened.
    Event(Event),
}

impl Body {
    /// Which kind of entry it is.
    pub fn kind(&self) -> EntryKind {
        match self {
            Body::Message(_) => EntryKind::Message,
            Body::State(_) => EntryKind::State,
            Body::Mark(_) => EntryKind::Mark,
            Body::Event(_) => EntryKind::Event,
        }
    }
}

/// One durable record in a timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where it is.
    pub at: Position,
    /// When it was added.
    pub time: Timestamp,
    /// Which kind it is.
    pub kind: EntryKind,
    /// What it says; none when it was erased.
    pub body: Option<Body>,
}

/// Something that happened and is neither message, state nor mark: a chapter, a pause, an intent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What happened, in a word.
    #[serde(rename = "type")]
    pub kind: String,
    /// The rest.
    #[serde(flatten)]
    pub data: Map<String, Value>,
}

impl Event {
    /// An event of this kind with these data; anything but an object is kept under `value`.
    pub fn new(kind: impl Into<String>, data: Value) -> Self {
        let data = match data {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        Self { kind: kind.into(), data }
    }
}
