//! What can go wrong with a delta, by what the caller does about it.

use super::MAX_DEPTH;
use super::path::{PathPart, StatePath};

/// Why a delta could not be made, read or applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaError {
    /// The delta was made for another document: load the one it follows.
    #[error("cannot apply the change at {}: {why}; the delta belongs to another state, apply it to the state it was made from", path.shown())]
    DoesNotFit {
        /// Where in the document the delta and the document disagree.
        path: StatePath,
        /// What is wrong there.
        why: Misfit,
    },
    /// A document, a path or a delta nests deeper than [`MAX_DEPTH`]: flatten it.
    #[error("a document nests deeper than {MAX_DEPTH} levels; keep state flatter, or store the deep part as a string")]
    TooDeep,
    /// A caller gave a path that names nothing: correct the call.
    #[error("`{path}` is not a usable path: {reason}")]
    InvalidPath {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Bytes are not what `encode` writes: they are damaged or not a delta.
    #[error("cannot decode at byte {at}: {reason}; the bytes are damaged, fall back to an older copy")]
    Malformed {
        /// Offset of the byte that could not be read.
        at: usize,
        /// What was expected there.
        reason: &'static str,
    },
    /// The bytes come from a newer Milepost: update this one.
    #[error("cannot decode format version {found}: this version of Milepost does not know it; update Milepost")]
    UnknownVersion {
        /// The version byte.
        found: u8,
    },
}

/// How a delta and a document disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// Nothing is there.
    #[error("nothing is there")]
    Missing,
    /// Something of another type is there.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// The type that the change needs.
        expected: &'static str,
        /// The type that is there.
        found: &'static str,
    },
    /// A position lies outside the list or string, or inside a character.
    #[error("position {at} is not a place in it, its length is {len}")]
    OutOfRange {
        /// The position asked for: an item of a list, a byte of a string.
        at: usize,
        /// The length found, in the same unit.
        len: usize,
    },
}

impl DeltaError {
    /// A misfit at the place being looked at; callers add the way to it with [`Self::inside`].
    pub(super) fn here(why: Misfit) -> Self {
        Self::DoesNotFit { path: StatePath::root(), why }
    }

    /// The same error seen from one level further up.
    pub(super) fn inside(mut self, part: PathPart) -> Self {
        if let Self::DoesNotFit { path, .. } = &mut self {
            path.push_front(part);
        }
        self
    }
}
