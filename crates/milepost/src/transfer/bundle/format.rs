//! The lines of a bundle.

use milepost_model::delta::{decode_value, encode_value};
use milepost_model::{Body, Delta, Entry, EntryKind, Hash, Position, Seq, SessionId, State, TimelineId, Timestamp};
use milepost_store::ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::project::{ArtifactKind, BroughtArtifact, LogLine};
use crate::transfer::beside::Beside;
use crate::transfer::outgoing::{Line, Piece, PieceEntry};

/// The newest version that is written; older ones stay readable.
pub(super) const VERSION: u32 = 2;
/// What is written of a session that has neither artifacts nor a log.
pub(super) const WITHOUT_BESIDE: u32 = 1;
/// What the first line says.
pub(super) const FORMAT: &str = "bundle";
/// How every file packed with zstd begins.
pub(super) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The largest window of zstd that is unpacked (8 MiB); what is written needs less.
pub(super) const WINDOW_LOG: u32 = 23;
/// Between what a line says and its hash.
const CHAIN: &str = ",\"chain\":\"";
/// After the hash.
const TAIL: &str = "\"}";
/// Hexadecimal digits of the hash in a line; the last line has all of it.
const CHAIN_DIGITS: usize = 32;
/// How deep what a checkpoint carries may nest, so that it can be read again.
const MAX_NESTING: usize = 96;

/// The hash of all lines so far.
#[derive(Debug, Clone)]
pub(super) struct Chain(Hash);

impl Chain {
    pub fn new() -> Self {
        Self(Hash(blake3::derive_key("milepost 1 bundle", &[])))
    }

    pub fn hash(&self) -> Hash {
        self.0
    }

    fn add(&mut self, said: &[u8]) {
        let mut hasher = blake3::Hasher::new_keyed(&self.0.0);
        hasher.update(said);
        self.0 = Hash(*hasher.finalize().as_bytes());
    }

    /// The whole line of what is said: an object of one field.
    pub fn close(&mut self, mut said: String) -> String {
        said.pop();
        self.add(said.as_bytes());
        said.push_str(CHAIN);
        said.extend(self.0.to_string().chars().take(CHAIN_DIGITS));
        said.push_str(TAIL);
        said.push('\n');
        said
    }

    /// Whether a line follows on those before it.
    pub fn accepts(&mut self, line: &[u8]) -> bool {
        let Some(said) = line.len().checked_sub(CHAIN.len() + CHAIN_DIGITS + TAIL.len()) else { return false };
        let (said, end) = line.split_at(said);
        self.add(said);
        let expected = self.0.to_string();
        end.strip_prefix(CHAIN.as_bytes()).and_then(|end| end.strip_suffix(TAIL.as_bytes()))
            == expected.as_bytes().get(..CHAIN_DIGITS)
    }
}

/// The first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Header {
    pub format: String,
    pub version: u32,
    pub session: SessionId,
    pub workspace: String,
    pub created: Timestamp,
    pub active: Timestamp,
    pub lines: u64,
    pub entries: u64,
}

/// The last line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Footer {
    pub lines: u64,
    pub entries: u64,
    pub blobs: u64,
    /// Of every line before this one.
    pub hash: Hash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed: Option<Signed>,
}

/// Who vouches for a bundle.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Signed {
    pub key: Hash,
    /// In two halves of 32 bytes.
    pub signature: [Hash; 2],
}

/// What is signed. The version of the bundle is in its first line, and so in the hash.
fn statement(hash: &Hash) -> Vec<u8> {
    [b"milepost 1 bundle".as_slice(), &WITHOUT_BESIDE.to_be_bytes(), &hash.0].concat()
}

impl Signed {
    pub fn new(key: &SigningKey, hash: &Hash) -> Self {
        let bytes = key.sign(&statement(hash)).to_bytes();
        let mut signature = [Hash::default(); 2];
        signature[0].0.copy_from_slice(&bytes[..32]);
        signature[1].0.copy_from_slice(&bytes[32..]);
        Self { key: Hash(key.verifying_key().to_bytes()), signature }
    }

    /// The key, when the signature is its own.
    pub fn signer(&self, hash: &Hash) -> Option<VerifyingKey> {
        let key = VerifyingKey::from_bytes(&self.key.0).ok()?;
        let mut bytes = [0u8; 64];
        bytes[..32].copy_from_slice(&self.signature[0].0);
        bytes[32..].copy_from_slice(&self.signature[1].0);
        key.verify_strict(&statement(hash), &Signature::from_bytes(&bytes)).ok()?;
        Some(key)
    }
}

/// A line of any kind, as it is read. What an entry says is read apart, so that it may nest as deep as a store allows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnyLine<'a> {
    pub milepost: Option<Header>,
    pub line: Option<LineLine>,
    pub blob: Option<BlobLine>,
    #[serde(borrow)]
    pub entry: Option<EntryLine<'a>>,
    pub artifact: Option<ArtifactLine>,
    pub log: Option<LogPiece>,
    pub end: Option<Footer>,
    #[serde(rename = "chain")]
    pub _chain: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LineLine {
    id: TimelineId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<Position>,
    end: Seq,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BlobLine {
    hash: Hash,
    content: String,
}

/// A version of an artifact.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArtifactLine {
    name: String,
    kind: ArtifactKind,
    version: u64,
    created: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    content: String,
}

/// Lines of the agent log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogPiece {
    from: u64,
    lines: Vec<LogLine>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryLine<'a> {
    pub seq: Seq,
    time: Timestamp,
    pub kind: EntryKind,
    #[serde(default)]
    blobs: Vec<Hash>,
    #[serde(default)]
    whole: Option<String>,
    /// None when it was erased.
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct EntryOut<'a> {
    seq: Seq,
    time: Timestamp,
    kind: EntryKind,
    #[serde(skip_serializing_if = "<[Hash]>::is_empty")]
    blobs: &'a [Hash],
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
}

fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    base64_simd::STANDARD.decode_to_vec(text).map_err(|_| "its base64 cannot be read".to_owned())
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    milepost: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'a T>,
}

impl<'a, T> Tagged<'a, T> {
    const NONE: Self =
        Self { milepost: None, line: None, blob: None, entry: None, artifact: None, log: None, end: None };
}

fn json<T: Serialize>(tagged: &Tagged<'_, T>) -> Result<String, String> {
    serde_json::to_string(tagged).map_err(|error| error.to_string())
}

pub(super) fn header_text(header: &Header) -> Result<String, String> {
    json(&Tagged { milepost: Some(header), ..Tagged::NONE })
}

pub(super) fn footer_text(footer: &Footer) -> Result<String, String> {
    json(&Tagged { end: Some(footer), ..Tagged::NONE })
}

/// What the line of something beside the session says.
pub(super) fn beside_text(piece: &Beside) -> Result<String, String> {
    match piece {
        Beside::Artifact(artifact) => {
            let line = ArtifactLine {
                name: artifact.name.clone(),
                kind: artifact.kind,
                version: artifact.number,
                created: artifact.created,
                session: artifact.session,
                template: artifact.template.clone(),
                content: base64(&artifact.content),
            };
            json(&Tagged { artifact: Some(&line), ..Tagged::NONE })
        }
        Beside::Log(from, lines) => {
            let line = LogPiece { from: *from, lines: lines.clone() };
            json(&Tagged { log: Some(&line), ..Tagged::NONE })
        }
    }
}

impl ArtifactLine {
    pub fn piece(self) -> Result<Beside, String> {
        let content = from_base64(&self.content)?;
        let Self { name, kind, version: number, created, session, template, .. } = self;
        Ok(Beside::Artifact(BroughtArtifact { name, kind, number, created, session, template, content }))
    }
}

impl LogPiece {
    pub fn piece(self) -> Beside {
        Beside::Log(self.from, self.lines)
    }
}

/// What a piece's line says.
pub(super) fn piece_text(piece: &Piece) -> Result<String, String> {
    match piece {
        Piece::Line(line) => {
            let line = LineLine { id: line.id, parent: line.parent, end: line.end };
            json(&Tagged { line: Some(&line), ..Tagged::NONE })
        }
        Piece::Blob(hash, content) => {
            let blob = BlobLine { hash: *hash, content: base64(content) };
            json(&Tagged { blob: Some(&blob), ..Tagged::NONE })
        }
        Piece::Entry(piece) => {
            let PieceEntry { entry, blobs, whole } = &**piece;
            let out = EntryOut {
                seq: entry.at.seq,
                time: entry.time,
                kind: entry.kind,
                blobs,
                whole: whole.as_ref().map(|state| base64(&encode_value(state.as_value()))),
                body: entry.body.as_ref().map(body_text).transpose()?,
            };
            json(&Tagged { entry: Some(&out), ..Tagged::NONE })
        }
    }
}

fn body_text(body: &Body) -> Result<Box<RawValue>, String> {
    let text = match body {
        Body::Message(message) => serde_json::to_string(message),
        Body::Event(event) => serde_json::to_string(event),
        Body::Mark(mark) if mark.extra.values().any(|value| nesting(value) > MAX_NESTING) => {
            return Err(format!("what it carries nests deeper than {MAX_NESTING} levels"));
        }
        Body::Mark(mark) => serde_json::to_string(mark),
        Body::State(delta) => serde_json::to_string(&base64(&delta.encode())),
    };
    text.and_then(RawValue::from_string).map_err(|error| error.to_string())
}

fn nesting(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(items) => 1 + items.iter().map(nesting).max().unwrap_or(0),
        serde_json::Value::Object(map) => 1 + map.values().map(nesting).max().unwrap_or(0),
        _ => 0,
    }
}

impl LineLine {
    pub fn piece(self) -> Line {
        Line { id: self.id, parent: self.parent, end: self.end }
    }
}

impl BlobLine {
    pub fn piece(self) -> Result<Piece, String> {
        let content = from_base64(&self.content)?;
        match Hash(*blake3::hash(&content).as_bytes()) == self.hash {
            true => Ok(Piece::Blob(self.hash, content)),
            false => Err("its content does not have the hash that names it".to_owned()),
        }
    }
}

impl EntryLine<'_> {
    pub fn piece(self, timeline: TimelineId) -> Result<PieceEntry, String> {
        let body = self.body.map(|raw| body_of(self.kind, raw.get())).transpose()?;
        let whole = self.whole.map(|text| whole_of(&text)).transpose()?;
        let at = Position { timeline, seq: self.seq };
        let entry = Entry { at, time: self.time, kind: self.kind, body };
        Ok(PieceEntry { entry, blobs: self.blobs, whole })
    }
}

fn body_of(kind: EntryKind, text: &str) -> Result<Body, String> {
    let bad = |error: serde_json::Error| format!("it cannot be read: {error}");
    Ok(match kind {
        EntryKind::Message => Body::Message(serde_json::from_str(text).map_err(bad)?),
        EntryKind::Event => Body::Event(serde_json::from_str(text).map_err(bad)?),
        EntryKind::Mark => Body::Mark(serde_json::from_str(text).map_err(bad)?),
        EntryKind::State => {
            let bytes = from_base64(&serde_json::from_str::<String>(text).map_err(bad)?)?;
            Body::State(Delta::decode(&bytes).map_err(|error| error.to_string())?)
        }
    })
}

fn whole_of(text: &str) -> Result<State, String> {
    let value = decode_value(&from_base64(text)?).map_err(|error| error.to_string())?;
    State::try_from(value).map_err(|error| error.to_string())
}
