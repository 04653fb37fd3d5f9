//! What changed between two states, as a value: made by comparing or by hand, stored as a few bytes, applied again.
//!
//! A [`Delta`] is a tree that follows the document's own shape, so changes beside each other share their path. Here live
//! its making ([`Delta::diff`], [`Delta::builder`]), its use ([`Delta::apply`], [`Delta::changes`]) and its bytes
//! ([`Delta::encode`], [`encode_value`]); what a state means, and its hash, live elsewhere.
//!
//! ```
//! use milepost_model::delta::Delta;
//! use serde_json::json;
//!
//! let before = json!({"task": "tests", "done": ["read"]});
//! let after = json!({"task": "tests", "done": ["read", "write"]});
//!
//! let delta = Delta::diff(&before, &after)?;
//! assert_eq!(delta, Delta::builder().append("/done", ["write"]).build()?);
//!
//! let mut state = before;
//! Delta::decode(&delta.encode())?.apply(&mut state)?;
//! assert_eq!(state, after);
//! # Ok::<(), milepost_model::delta::DeltaError>(())
//! ```

mod align;
mod apply;
mod builder;
mod diff;
mod encode;
mod error;
mod path;
mod read;
mod value;

use serde_json::Value;

pub use self::builder::DeltaBuilder;
pub use self::encode::DELTA_VERSION;
pub use self::error::{DeltaError, Misfit};
pub use self::path::{IntoPath, PathPart, StatePath};
pub use self::value::{VALUE_VERSION, check_depth, decode_value, encode_value};

pub(crate) use self::apply::{Splice, splice_all};
pub(crate) use self::value::{Digest, Sink, entries, write_str, write_value};

/// How many containers a document may nest. Twice what serde_json's parser accepts, and few enough that walking a
/// document by recursion fits into any thread's stack.
pub const MAX_DEPTH: usize = 256;

/// A change to a JSON document.
///
/// Comparison is exact: `1` and `1.0` are different values, and so are `0.0` and `-0.0`.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Applied one after the other. Comparing makes at most one; a builder makes more when a change depends on one before it.
    pub(crate) steps: Vec<Node>,
}

/// What happens to one value of the document.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// It becomes this value; created when it did not exist.
    Set(Value),
    /// It goes. Only directly inside `Fields`.
    Remove,
    /// Some of an object's values change. Ascending by key, never empty.
    Fields(Vec<(String, Node)>),
    /// Some of a list's items change. Never empty.
    List(ListEdits),
    /// A string grows at its end.
    AppendStr(String),
    /// `delete` bytes at `at` of a string become `insert`.
    SpliceStr { at: usize, delete: usize, insert: String },
}

/// What happens to a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListEdits {
    /// Ascending and without overlap. Positions are those before any of these edits.
    pub(crate) edits: Vec<Edit>,
    /// Items put at the end, after all edits.
    pub(crate) append: Vec<Value>,
}

/// What happens at one position of a list.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub(crate) at: usize,
    pub(crate) kind: EditKind,
}

/// How a position of a list changes.
#[derive(Clone, Debug)]
pub(crate) enum EditKind {
    /// The item changes and stays where it is. One past the end creates it.
    Change(Node),
    /// Items are replaced by others, or removed, or added.
    Splice { delete: usize, insert: Vec<Value> },
}

/// One change of a [`Delta`], as a person would be told about it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change<'a> {
    /// The value was set, or created.
    Set(&'a Value),
    /// The key was removed.
    Remove,
    /// Items were added at a list's end.
    Append(&'a [Value]),
    /// `delete` items at `at` of a list were replaced.
    Splice {
        /// Position before the change.
        at: usize,
        /// How many items went.
        delete: usize,
        /// What came instead.
        insert: &'a [Value],
    },
    /// Text was added at a string's end.
    AppendStr(&'a str),
    /// `delete` bytes at byte `at` of a string were replaced.
    SpliceStr {
        /// Byte position before the change.
        at: usize,
        /// How many bytes went.
        delete: usize,
        /// What came instead.
        insert: &'a str,
    },
}

impl Delta {
    /// Whether applying it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Every change with the path it is made at, in the order of application. Positions in a path are those that the
    /// list had before the delta's changes to it.
    pub fn changes(&self) -> impl Iterator<Item = (StatePath, Change<'_>)> {
        let mut changes = Vec::new();
        for step in &self.steps {
            step.collect(StatePath::root(), &mut changes);
        }
        changes.into_iter()
    }
}

impl Node {
    fn collect<'a>(&'a self, path: StatePath, changes: &mut Vec<(StatePath, Change<'a>)>) {
        let change = match self {
            Self::Set(value) => Change::Set(value),
            Self::Remove => Change::Remove,
            Self::AppendStr(text) => Change::AppendStr(text),
            Self::SpliceStr { at, delete, insert } => Change::SpliceStr { at: *at, delete: *delete, insert },
            Self::Fields(fields) => {
                for (key, node) in fields {
                    node.collect(path.clone().key(key), changes);
                }
                return;
            }
            Self::List(list) => return list.collect(path, changes),
        };
        changes.push((path, change));
    }
}

impl ListEdits {
    fn collect<'a>(&'a self, path: StatePath, changes: &mut Vec<(StatePath, Change<'a>)>) {
        for Edit { at, kind } in &self.edits {
            match kind {
                EditKind::Change(node) => node.collect(path.clone().index(*at), changes),
                EditKind::Splice { delete, insert } => {
                    changes.push((path.clone(), Change::Splice { at: *at, delete: *delete, insert }));
                }
            }
        }
        if !self.append.is_empty() {
            changes.push((path, Change::Append(&self.append)));
        }
    }
}

/// Exact, unlike serde_json's own comparison of floats.
impl PartialEq for Delta {
    fn eq(&self, other: &Self) -> bool {
        self.encode() == other.encode()
    }
}

impl Eq for Delta {}
