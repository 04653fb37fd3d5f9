//! Typed ids: 128 bits that sort by the time they were made, written with a prefix that says what
//! they name (`ses_01k…`). Parsing is strict, so an id can never be a path or a query.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Crockford's base 32, lower case: no i, l, o, u, and it sorts like the bits.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ENCODED_LEN: usize = 26;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text does not have the form of this kind of id.
    #[error(
        "{found:?} is not a {kind} id: expected \"{prefix}\" followed by 26 characters of 0-9 and a-z without i, l, o, u"
    )]
    Malformed {
        /// What was expected.
        kind: &'static str,
        /// The prefix of that kind.
        prefix: &'static str,
        /// What was given, shortened.
        found: String,
    },
    /// A workspace name has a character or a length that is not allowed.
    #[error(
        "{found:?} is not a workspace name: use 1 to 64 characters of a-z, 0-9, '-' and '_', beginning with a letter or digit"
    )]
    Workspace {
        /// What was given, shortened.
        found: String,
    },
}

/// What every typed id can do.
pub trait Id: Copy + Ord + fmt::Display + FromStr<Err = IdError> {
    /// The readable prefix, with its underscore.
    const PREFIX: &'static str;
    /// Makes the id of these 128 bits.
    fn from_bits(bits: u128) -> Self;
    /// The 128 bits of the id.
    fn bits(self) -> u128;
}

pub(crate) fn shorten(text: &str) -> String {
    const KEEP: usize = 60;
    if text.chars().count() <= KEEP { text.to_owned() } else { text.chars().take(KEEP).chain("…".chars()).collect() }
}

fn encode(bits: u128) -> [u8; ENCODED_LEN] {
    let mut out = [0u8; ENCODED_LEN];
    for (i, slot) in out.iter_mut().enumerate() {
        let shift = 5 * (ENCODED_LEN - 1 - i);
        *slot = ALPHABET[((bits >> shift) & 31) as usize];
    }
    out
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != ENCODED_LEN {
        return None;
    }
    let mut bits: u128 = 0;
    for (i, byte) in text.bytes().enumerate() {
        let value = ALPHABET.iter().position(|&c| c == byte)? as u128;
        if i == 0 && value > 7 {
            return None;
        }
        bits = (bits << 5) | value;
    }
    Some(bits)
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl Id for $name {
            const PREFIX: &'static str = $prefix;
            fn from_bits(bits: u128) -> Self {
                Self(bits)
            }
            fn bits(self) -> u128 {
                self.0
            }
        }

        impl $name {
            /// The id as 16 bytes, most significant first, so that bytes sort as ids do.
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }
            /// The id of these 16 bytes.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
            /// When the id was made, in milliseconds since 1970.
            pub fn unix_ms(self) -> i64 {
                (self.0 >> 80) as i64
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($prefix)?;
                let text = encode(self.0);
                f.write_str(std::str::from_utf8(&text).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix).and_then(decode).map(Self).ok_or_else(|| IdError::Malformed {
                    kind: $kind,
                    prefix: $prefix,
                    found: shorten(text),
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

typed_id!(/// Names a session.
    SessionId, "ses_", "session");
typed_id!(/// Names a timeline.
    TimelineId, "tml_", "timeline");
typed_id!(/// Names a checkpoint.
    CheckpointId, "ckp_", "checkpoint");
typed_id!(/// Names one append, so that the same append sent twice is recognised.
    BatchId, "bat_", "batch");
typed_id!(/// Names whoever holds a lease: one process, one run.
    OwnerId, "own_", "owner");

/// The name of a workspace: the tenant that owns sessions, tokens and a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkspaceId(String);

impl WorkspaceId {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Checks and takes a name.
    pub fn new(name: impl Into<String>) -> Result<Self, IdError> {
        let name = name.into();
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let ok = !name.is_empty()
            && name.len() <= Self::MAX_LEN
            && name.bytes().all(|c| plain(c) || c == b'-' || c == b'_')
            && name.bytes().next().is_some_and(plain);
        if ok { Ok(Self(name)) } else { Err(IdError::Workspace { found: shorten(&name) }) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for WorkspaceId {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for WorkspaceId {
    type Error = IdError;
    fn try_from(name: String) -> Result<Self, IdError> {
        Self::new(name)
    }
}

impl From<WorkspaceId> for String {
    fn from(id: WorkspaceId) -> String {
        id.0
    }
}

impl FromStr for WorkspaceId {
    type Err = IdError;
    fn from_str(name: &str) -> Result<Self, IdError> {
        Self::new(name)
    }
}
