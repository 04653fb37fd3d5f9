//! The hash of a state, kept up to date in time proportional to what changed.
//!
//! The definition is frozen: marks carry these hashes. With `H` = BLAKE3, `value` = the canonical bytes of
//! [`encode_value`](crate::delta::encode_value) without their version byte, and the document itself at depth 0:
//!
//! | what | its hash |
//! |---|---|
//! | null, boolean, number, string | `H(01 ‖ value)` |
//! | list above depth 4 | `H(02 ‖ length as u64, little endian ‖ cₙ)`, where `c₀ = H(05)`, `cᵢ₊₁ = keyed H(CHAIN_KEY, cᵢ ‖ hash of item i)` |
//! | object above depth 4 | `H(03 ‖ by ascending key: varint length ‖ key ‖ hash of the value)` |
//! | list or object at depth 4 or below | `H(04 ‖ value)` |
//!
//! A list is a chain so that appending costs only the new items, and the chain has a key of its own so that a link is one
//! block and yet can never be taken for another kind of input. Deep containers are hashed flat, as a hash for each of many
//! little leaves would cost more than it saves.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound::{Excluded, Unbounded};

use serde_json::{Map, Value};

use crate::delta::{
    Delta, DeltaError, Digest, Edit, EditKind, ListEdits, Node, Sink, Splice, entries, splice_all, write_str,
    write_value,
};

const LEAF: u8 = 0x01;
const LIST: u8 = 0x02;
const OBJECT: u8 = 0x03;
const FLAT: u8 = 0x04;
const CHAIN_START: u8 = 0x05;
const CHAIN_KEY: &[u8; 32] = b"milepost state hash list chain 1";

/// Containers from this depth on are hashed flat.
const FLAT_DEPTH: usize = 4;

/// An object of at most so many fields,
const MAX_LITTLE_FIELDS: usize = 16;
/// each a text of at most so many bytes or less, is hashed as a whole.
const MAX_LITTLE_BYTES: usize = 128;

/// When more fields of an object change at once, its bytes are laid out anew.
const MAX_PLACED: usize = 16;

/// A list's chain is remembered at every so many items, so that a change near its end does not start over.
const MARK_EVERY: usize = 64;

type Hash = [u8; 32];

/// The hash of a document, from scratch. Any depth.
pub fn hash_value(value: &Value) -> [u8; 32] {
    hash_at(value, 0, &mut Digest::default())
}

fn hash_at(value: &Value, depth: usize, digest: &mut Digest) -> Hash {
    match value {
        Value::Array(items) if depth < FLAT_DEPTH => {
            let tip = items.iter().fold(chain_start(), |tip, item| link(&tip, &hash_at(item, depth + 1, digest)));
            list_hash(items.len(), &tip)
        }
        Value::Object(map) if depth < FLAT_DEPTH => {
            let fields: Vec<_> =
                entries(map).map(|(key, child)| (key.as_str(), hash_at(child, depth + 1, digest))).collect();
            object_hash(fields.iter().map(|(key, hash)| (*key, hash)), digest)
        }
        _ => whole_hash(value, digest),
    }
}

/// A scalar, or a container that is not looked into.
fn whole_hash(value: &Value, digest: &mut Digest) -> Hash {
    let is_container = value.is_array() || value.is_object();
    digest.put(&[if is_container { FLAT } else { LEAF }]);
    write_value(value, digest);
    digest.finish().0
}

fn object_hash<'a>(fields: impl Iterator<Item = (&'a str, &'a Hash)>, digest: &mut Digest) -> Hash {
    digest.put(&[OBJECT]);
    for (key, hash) in fields {
        write_str(key, digest);
        digest.put(hash);
    }
    digest.finish().0
}

fn chain_start() -> Hash {
    blake3::hash(&[CHAIN_START]).into()
}

fn link(tip: &Hash, item: &Hash) -> Hash {
    let mut pair = [0; 64];
    pair[..32].copy_from_slice(tip);
    pair[32..].copy_from_slice(item);
    blake3::keyed_hash(CHAIN_KEY, &pair).into()
}

fn list_hash(len: usize, tip: &Hash) -> Hash {
    let mut input = [LIST; 41];
    input[1..9].copy_from_slice(&(len as u64).to_le_bytes());
    input[9..].copy_from_slice(tip);
    blake3::hash(&input).into()
}

/// A state together with what is known of its hash.
///
/// ```
/// use milepost_model::{Delta, HashedState, hash_value};
/// use serde_json::json;
///
/// let mut state = HashedState::new(json!({"done": ["read"]}));
/// state.hash();
/// state.apply(&Delta::builder().append("/done", ["write"]).build()?)?;
/// assert_eq!(state.hash(), hash_value(&json!({"done": ["read", "write"]})));
/// # Ok::<(), milepost_model::delta::DeltaError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct HashedState {
    value: Value,
    known: Known,
}

impl HashedState {
    /// Nothing is hashed yet.
    pub fn new(value: Value) -> Self {
        Self { value, known: Known::default() }
    }

    /// The state.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The state, without its hash.
    pub fn into_value(self) -> Value {
        self.value
    }

    /// The state's hash, equal to [`hash_value`] of it. Computes only what changed since the last call.
    pub fn hash(&mut self) -> [u8; 32] {
        self.known.refresh(&self.value, 0, &mut Digest::default())
    }

    /// Applies a delta; on an error the state is as it was.
    pub fn apply(&mut self, delta: &Delta) -> Result<(), DeltaError> {
        delta.apply(&mut self.value)?;
        for step in &delta.steps {
            self.known.forget(step);
        }
        Ok(())
    }

    /// As [`HashedState::apply`], for a delta that is not needed any more.
    pub fn apply_once(&mut self, delta: Delta) -> Result<(), DeltaError> {
        for step in &delta.steps {
            self.known.forget(step);
        }
        let outcome = delta.apply_once(&mut self.value);
        if outcome.is_err() {
            // Too much was forgotten, and of the wrong things.
            self.known = Known::default();
        }
        outcome
    }

    /// Takes another state instead, and gives the old one back.
    pub fn replace(&mut self, value: Value) -> Value {
        self.known = Known::default();
        mem::replace(&mut self.value, value)
    }
}

/// Whether an object has few fields, all of them short.
fn is_little(map: &Map<String, Value>) -> bool {
    let is_short = |value: &Value| match value {
        Value::String(text) => text.len() <= MAX_LITTLE_BYTES,
        Value::Array(_) | Value::Object(_) => false,
        _ => true,
    };
    map.len() <= MAX_LITTLE_FIELDS && map.values().all(is_short)
}

/// What is known of the hash of one value. Mirrors the document down to [`FLAT_DEPTH`], as far as it was ever hashed.
#[derive(Clone, Debug, Default)]
struct Known {
    hash: Option<Hash>,
    parts: Parts,
}

/// What is known of a container's children.
#[derive(Clone, Debug, Default)]
enum Parts {
    /// Nothing; or there are none, or they are not looked at one by one.
    #[default]
    Unknown,
    /// An object's, with exactly its keys.
    Fields(Box<Fields>),
    /// A list's.
    Items(Box<Chain>),
}

/// An object's fields, and the bytes its hash is made of, in which a field that changed is put in its place.
#[derive(Clone, Debug, Default)]
struct Fields {
    known: BTreeMap<String, Field>,
    /// Empty when they are to be laid out anew, as fields went.
    bytes: Vec<u8>,
    /// Fields whose hash in the bytes is not theirs any more.
    changed: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Field {
    known: Known,
    /// Where its hash lies in the bytes.
    at: usize,
}

/// A list's items and how far they are chained. An item whose hash is not known is never chained.
#[derive(Clone, Debug)]
struct Chain {
    items: Vec<Known>,
    /// The chain before items 0, [`MARK_EVERY`], 2 × [`MARK_EVERY`] …, as far as chained. Never empty.
    marks: Vec<Hash>,
    /// The chain after the first `chained` items.
    tip: Hash,
    chained: usize,
}

impl Known {
    fn refresh(&mut self, value: &Value, depth: usize, digest: &mut Digest) -> Hash {
        if let Some(hash) = self.hash {
            return hash;
        }
        let (hash, parts) = match (value, mem::take(&mut self.parts)) {
            (Value::Array(items), parts) if depth < FLAT_DEPTH => {
                let mut chain = match parts {
                    Parts::Items(chain) => chain,
                    _ => Box::new(Chain::new(items.len())),
                };
                chain.refresh(items, depth, digest);
                (list_hash(items.len(), &chain.tip), Parts::Items(chain))
            }
            // Of little values nothing is remembered: to hash them all again costs less than to find the one that changed.
            (Value::Object(map), Parts::Unknown) if depth < FLAT_DEPTH && is_little(map) => {
                (hash_at(value, depth, digest), Parts::Unknown)
            }
            (Value::Object(map), parts) if depth < FLAT_DEPTH => {
                let mut fields = match parts {
                    Parts::Fields(fields) => fields,
                    _ => Box::new(Fields::new(map)),
                };
                (fields.refresh(map, depth, digest), Parts::Fields(fields))
            }
            (value, _) => (whole_hash(value, digest), Parts::Unknown),
        };
        (self.hash, self.parts) = (Some(hash), parts);
        hash
    }

    /// Forgets what a change made untrue.
    fn forget(&mut self, node: &Node) {
        self.hash = None;
        match (node, &mut self.parts) {
            (Node::Fields(changes), Parts::Fields(fields)) => fields.forget(changes),
            (Node::List(list), Parts::Items(chain)) if chain.fits(list) => chain.forget(list),
            (_, parts) => *parts = Parts::Unknown,
        }
    }
}

impl Fields {
    fn new(map: &Map<String, Value>) -> Self {
        let known = map.keys().map(|key| (key.clone(), Field::default())).collect();
        Self { known, ..Self::default() }
    }

    fn refresh(&mut self, map: &Map<String, Value>, depth: usize, digest: &mut Digest) -> Hash {
        if self.bytes.is_empty() {
            self.lay_out(map, depth, digest);
        }
        for key in self.changed.drain(..) {
            let (Some(field), Some(child)) = (self.known.get_mut(&key), map.get(&key)) else { continue };
            let hash = field.known.refresh(child, depth + 1, digest);
            if let Some(place) = self.bytes.get_mut(field.at..field.at + hash.len()) {
                place.copy_from_slice(&hash);
            }
        }
        blake3::hash(&self.bytes).into()
    }

    fn lay_out(&mut self, map: &Map<String, Value>, depth: usize, digest: &mut Digest) {
        self.bytes.push(OBJECT);
        // Both have the same keys in the same order.
        for ((key, field), (_, child)) in self.known.iter_mut().zip(entries(map)) {
            let hash = field.known.refresh(child, depth + 1, digest);
            write_str(key, &mut self.bytes);
            field.at = self.bytes.len();
            self.bytes.extend_from_slice(&hash);
        }
        self.changed.clear();
    }

    fn forget(&mut self, changes: &[(String, Node)]) {
        if changes.len() > MAX_PLACED {
            self.bytes.clear();
        }
        for (key, node) in changes {
            match (node, self.known.get_mut(key)) {
                (Node::Remove, _) => {
                    self.known.remove(key);
                    self.bytes.clear();
                }
                (node, Some(field)) => {
                    // Without a hash it is noted already, or was never laid out.
                    if field.known.hash.is_some() {
                        self.changed.push(key.clone());
                    }
                    field.known.forget(node);
                }
                (_, None) => self.place(key),
            }
        }
    }

    /// A field that came: room is made for its hash where it belongs.
    fn place(&mut self, key: &str) {
        let mut own = Vec::new();
        write_str(key, &mut own);
        let (named, size) = (own.len(), own.len() + size_of::<Hash>());
        own.resize(size, 0);
        let mut field = Field::default();
        if !self.bytes.is_empty() {
            let mut begins = self.bytes.len();
            for (number, (next, later)) in self.known.range_mut::<str, _>((Excluded(key), Unbounded)).enumerate() {
                if number == 0 {
                    let mut name = Vec::new();
                    write_str(next, &mut name);
                    begins = later.at - name.len();
                }
                later.at += size;
            }
            self.bytes.splice(begins..begins, own);
            field.at = begins + named;
            self.changed.push(key.to_owned());
        }
        self.known.insert(key.to_owned(), field);
    }
}

impl Chain {
    fn new(len: usize) -> Self {
        let start = chain_start();
        Self { items: vec![Known::default(); len], marks: vec![start], tip: start, chained: 0 }
    }

    fn refresh(&mut self, values: &[Value], depth: usize, digest: &mut Digest) {
        let todo = self.items.iter_mut().zip(values).skip(self.chained);
        for (known, value) in todo {
            self.tip = link(&self.tip, &known.refresh(value, depth + 1, digest));
            self.chained += 1;
            if self.chained.is_multiple_of(MARK_EVERY) {
                self.marks.push(self.tip);
            }
        }
    }

    /// Whether the items to be replaced are there.
    fn fits(&self, list: &ListEdits) -> bool {
        list.edits.iter().all(|edit| match edit.kind {
            EditKind::Splice { delete, .. } => edit.at.saturating_add(delete) <= self.items.len(),
            EditKind::Change(_) => true,
        })
    }

    fn forget(&mut self, list: &ListEdits) {
        if let Some(first) = list.edits.first() {
            self.unchain(first.at);
        }
        let mut splices = Vec::new();
        for Edit { at, kind } in &list.edits {
            match kind {
                EditKind::Splice { delete, insert } => {
                    splices.push(Splice { at: *at, delete: *delete, insert: vec![Known::default(); insert.len()] });
                }
                EditKind::Change(node) => match self.items.get_mut(*at) {
                    Some(known) => known.forget(node),
                    None => self.items.push(Known::default()),
                },
            }
        }
        splice_all(&mut self.items, splices);
        self.items.resize_with(self.items.len() + list.append.len(), Known::default);
    }

    /// Forgets the chain from `at` on, or a little before.
    fn unchain(&mut self, at: usize) {
        if at < self.chained {
            self.marks.truncate(at / MARK_EVERY + 1);
            self.chained = (self.marks.len() - 1) * MARK_EVERY;
            self.tip = self.marks.last().copied().unwrap_or_else(chain_start);
        }
    }
}
