//! Entries to stored entries and back.
//!
//! Value → commitment → a run of base64 as its bytes → zstd when it pays → encryption → payload. The commitment is a hash of the
//! plain bytes under the workspace's commitment key; the chain runs over commitments, so that
//! compressing, encrypting and moving anew keep it. Payloads above the inline limit become blobs.
//! Each stored entry has a checksum over everything stored, bound to its position.
//!
//! The first byte of a stored body says its form (low three bits) and how the payload is packed
//! (the other bits). Version 1; the golden files in `tests/golden` keep it readable.

mod base64;
mod body;
mod cipher;
mod pack;
mod varint;

use std::borrow::Cow;
use std::sync::Arc;

use milepost_model::{BatchId, Body, Channel, EntryKind, Hash, Position, SessionId, Source, Timestamp, WorkspaceId};
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::backend::{Blob, BlobId, StoredEntry};
use crate::error::{Error, Result};
use crate::limits::{Limits, check_size};
pub(crate) use cipher::SessionCipher;
use pack::{Seal, Squeeze, pack, unpack};

/// The version of the entry format that is written.
pub const FORMAT: u8 = 1;
/// So much of a message's text lies in clear for a person to read; the rest is compressed.
pub(crate) const CLEAR_TEXT_MAX: usize = 160;

const FORM_INLINE: u8 = 0;
const FORM_TEXT: u8 = 1;
const FORM_BLOB: u8 = 2;
const FORM_ERASED: u8 = 3;
const FORM_REPLACED: u8 = 4;
const FORM_MASK: u8 = 7;

/// Plain bytes; none when they were erased.
type Plain<'a> = Option<Cow<'a, [u8]>>;

/// Encodes and decodes the entries of one session.
#[derive(Clone)]
pub(crate) struct Codec {
    pub workspace: WorkspaceId,
    pub session: SessionId,
    pub commit_key: Arc<[u8; 32]>,
    pub cipher: Option<Arc<SessionCipher>>,
    /// The backend keeps text in clear and indexes it.
    pub text: bool,
    pub limits: Arc<Limits>,
    pub source: Source,
}

/// An entry on its way into the store.
pub(crate) struct Encoded {
    pub entry: StoredEntry,
    pub blob: Option<Blob>,
    /// The chain hash up to and with it.
    pub hash: Hash,
}

/// An entry read back.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// What it says; none when it was erased.
    pub body: Option<Body>,
    /// The commitment that the chain was made with.
    pub commitment: Hash,
    /// The commitment of what is there now, when it replaces what was there.
    pub replacement: Option<Hash>,
}

/// The chain hash before a session's first entry.
pub(crate) fn genesis(session: SessionId) -> Hash {
    let mut hasher = blake3::Hasher::new_derive_key("milepost 1 genesis");
    hasher.update(&session.to_bytes());
    Hash(*hasher.finalize().as_bytes())
}

/// The chain hash of an entry: it depends on all before it.
pub(crate) fn chain(previous: &Hash, at: Position, entry: &StoredEntry, commitment: &Hash) -> Hash {
    let mut bytes = [0u8; 98];
    bytes[..32].copy_from_slice(&previous.0);
    bytes[32..48].copy_from_slice(&at.timeline.to_bytes());
    bytes[48..56].copy_from_slice(&at.seq.0.to_be_bytes());
    bytes[56..64].copy_from_slice(&entry.time.0.to_be_bytes());
    bytes[64] = entry.version;
    bytes[65] = entry.kind as u8;
    bytes[66..].copy_from_slice(&commitment.0);
    Hash(*blake3::hash(&bytes).as_bytes())
}

/// Larger entries are not laid together for their checksum.
const TOGETHER_MAX: usize = 4096;

/// The checksum of a stored entry at its position.
pub(crate) fn checksum(at: Position, entry: &StoredEntry) -> u64 {
    // In one piece, the hash of a few hundred bytes takes half the time.
    let about = entry.body.len() + entry.text.as_ref().map_or(0, String::len) + 32 * entry.refs.len();
    if about <= TOGETHER_MAX {
        let mut bytes = Vec::with_capacity(about + 320);
        checked_fields(at, entry, |part| bytes.extend_from_slice(part));
        return xxh3_64_with_seed(&bytes, at.seq.0);
    }
    let mut hasher = Xxh3::with_seed(at.seq.0);
    checked_fields(at, entry, |part| hasher.update(part));
    hasher.digest()
}

/// What an entry's checksum is made of, each field behind its length.
fn checked_fields(at: Position, entry: &StoredEntry, mut put: impl FnMut(&[u8])) {
    let mut field = |bytes: Option<&[u8]>| {
        put(&bytes.map_or(u64::MAX, |b| b.len() as u64).to_le_bytes());
        put(bytes.unwrap_or_default());
    };
    field(Some(&at.timeline.to_bytes()));
    field(Some(&[entry.version, entry.kind as u8]));
    field(Some(&entry.time.0.to_le_bytes()));
    field(entry.label.as_deref().map(str::as_bytes));
    field(entry.channel.as_deref().map(str::as_bytes));
    field(entry.text.as_deref().map(str::as_bytes));
    field(Some(&entry.body));
    field(Some(&entry.refs.iter().flat_map(|id| id.0).collect::<Vec<u8>>()));
    field(entry.batch.map(BatchId::to_bytes).as_ref().map(<[u8; 16]>::as_slice));
    field(entry.chain.as_ref().map(|hash| hash.0.as_slice()));
    field(entry.mac.as_ref().map(<[u8; 32]>::as_slice));
}

/// The checksum of other stored bytes (blobs, keyframes, records) under their name.
pub(crate) fn checksum_bytes(name: &[u8], bytes: &[u8]) -> u64 {
    let mut hasher = Xxh3::with_seed(name.len() as u64);
    hasher.update(name);
    hasher.update(bytes);
    hasher.digest()
}

/// Refuses an entry that is damaged or of a version unknown here.
pub(crate) fn check(at: Position, entry: &StoredEntry) -> Result<()> {
    if checksum(at, entry) != entry.sum {
        return Err(Error::corrupt(format!("{} {at}", entry.kind.as_str()), "its checksum does not fit"));
    }
    if entry.version > FORMAT {
        return Err(Error::Newer {
            what: format!("{} {at}", entry.kind.as_str()),
            found: u64::from(entry.version),
            supported: u64::from(FORMAT),
        });
    }
    Ok(())
}

/// The text to search in a message that lies in clear; none when it is encrypted, erased or no message.
pub(crate) fn searchable_text(entry: &StoredEntry, blob: Option<&[u8]>) -> Option<String> {
    clear_message(entry, blob).map(|message| message.search_text().into_owned())
}

/// A message that lies in clear.
pub(crate) fn clear_message(entry: &StoredEntry, blob: Option<&[u8]>) -> Option<milepost_model::Message> {
    if entry.kind != EntryKind::Message {
        return None;
    }
    let no_key = Seal { cipher: None, associated: &[] };
    let mut body = entry.body.as_slice();
    let plain = Form::read(&mut body, entry).ok()?.plain(body, entry, blob, &no_key, &no_key, u64::MAX).ok()??;
    match body::from_plain(entry.kind, &plain).ok()? {
        Body::Message(message) => Some(message),
        _ => None,
    }
}

/// The front of a stored body: its form, and what the form needs.
struct Form {
    form: u8,
    flags: u8,
    text_at: usize,
    original: Option<Hash>,
}

impl Form {
    fn read(body: &mut &[u8], entry: &StoredEntry) -> Result<Self> {
        let short = || Error::corrupt(format!("a {} entry", entry.kind.as_str()), "its body is cut short");
        let (&first, rest) = body.split_first().ok_or_else(short)?;
        *body = rest;
        if first & !FORM_MASK & !pack::KNOWN != 0 || first & FORM_MASK > FORM_REPLACED {
            return Err(Error::corrupt(format!("a {} entry", entry.kind.as_str()), "its body has an unknown form"));
        }
        let mut form = Self { form: first & FORM_MASK, flags: first & pack::KNOWN, text_at: 0, original: None };
        if form.form == FORM_ERASED || form.form == FORM_REPLACED {
            let (original, rest) = body.split_first_chunk::<32>().ok_or_else(short)?;
            *body = rest;
            if form.form == FORM_ERASED {
                form.original = Some(Hash(*original));
                return Ok(form);
            }
            let inner = Form::read(body, entry)?;
            if inner.original.is_some() {
                return Err(Error::corrupt(format!("a {} entry", entry.kind.as_str()), "it is replaced twice over"));
            }
            return Ok(Self { original: Some(Hash(*original)), ..inner });
        }
        if form.form == FORM_TEXT || form.form == FORM_BLOB {
            form.text_at = varint::pull(body).ok_or_else(short)? as usize;
        }
        Ok(form)
    }

    /// The plain bytes; none when erased.
    fn plain<'a>(
        &self,
        body: &'a [u8],
        entry: &StoredEntry,
        blob: Option<&'a [u8]>,
        seal: &Seal<'_>,
        blob_seal: &Seal<'_>,
        max_len: u64,
    ) -> Result<Plain<'a>> {
        match self.form {
            FORM_ERASED => Ok(None),
            FORM_BLOB => {
                let missing =
                    || Error::corrupt(format!("the payload of a {} entry", entry.kind.as_str()), "its blob is missing");
                let stored = blob.ok_or_else(missing)?;
                open_blob(stored, blob_seal, max_len).map(Some)
            }
            FORM_TEXT => {
                let text = body::escape(entry.text.as_deref().unwrap_or_default());
                let mut plain = unpack(body, self.flags, seal, max_len, text.len())?.into_owned();
                let rest_len = plain.len();
                if self.text_at > rest_len {
                    return Err(Error::corrupt("a message", "its text lies outside of it"));
                }
                // In its place, where there is room for it: nothing is copied but what comes after it.
                plain.extend_from_slice(text.as_bytes());
                plain.copy_within(self.text_at..rest_len, self.text_at + text.len());
                plain[self.text_at..self.text_at + text.len()].copy_from_slice(text.as_bytes());
                Ok(Some(Cow::Owned(plain)))
            }
            _ => unpack(body, self.flags, seal, max_len, 0).map(Some),
        }
    }
}

fn open_blob<'a>(stored: &'a [u8], seal: &Seal<'_>, max_len: u64) -> Result<Cow<'a, [u8]>> {
    let (&flags, rest) = stored.split_first().ok_or_else(|| Error::corrupt("a blob", "it is empty"))?;
    if flags & !pack::KNOWN != 0 {
        return Err(Error::corrupt("a blob", "it has an unknown form"));
    }
    unpack(rest, flags, seal, max_len, 0)
}

impl Codec {
    fn associated(&self, what: &str, rest: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::with_capacity(96);
        for part in [what.as_bytes(), self.workspace.as_str().as_bytes(), &self.session.to_bytes()].iter().chain(rest) {
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
            out.extend_from_slice(part);
        }
        out
    }

    /// What binds an entry's payload to its place. Needed only to seal it.
    fn entry_associated(&self, at: Position, kind: EntryKind) -> Vec<u8> {
        if self.cipher.is_none() {
            return Vec::new();
        }
        self.associated("entry", &[&at.timeline.to_bytes(), &at.seq.0.to_be_bytes(), &[kind as u8]])
    }

    fn seal<'a>(&'a self, associated: &'a [u8]) -> Seal<'a> {
        Seal { cipher: self.cipher.as_deref(), associated }
    }

    /// The commitment of plain bytes: tells nothing of them without the workspace's key.
    pub fn commitment(&self, plain: &[u8]) -> Hash {
        Hash(*blake3::keyed_hash(&self.commit_key, plain).as_bytes())
    }

    /// What stands for a text in a column that filters compare: the text, or in an encrypted workspace a token.
    pub fn token(&self, column: &str, text: &str) -> String {
        if self.cipher.is_none() {
            return text.to_owned();
        }
        token(&self.commit_key, column, text)
    }

    /// A channel as it is stored: nothing for the main one.
    pub fn channel(&self, channel: &Channel) -> Option<String> {
        (!channel.is_main()).then(|| self.token("channel", channel.as_str()))
    }

    /// Encodes an entry. The chain hash and the mac are set by the caller once it knows where the append ends.
    pub fn encode(&self, at: Position, time: Timestamp, previous: &Hash, body: &Body) -> Result<Encoded> {
        let plain = body::to_plain(body)?;
        check_size("entry", plain.len(), "max_entry_bytes", self.limits.max_entry_bytes)?;
        let kind = body.kind();
        let mut entry = StoredEntry {
            version: FORMAT,
            kind,
            time,
            label: self.label(body),
            channel: match body {
                Body::Message(message) => self.channel(&message.channel),
                _ => None,
            },
            text: None,
            body: Vec::new(),
            refs: Vec::new(),
            batch: None,
            chain: None,
            mac: None,
            sum: 0,
        };
        let commitment = self.commitment(&plain);
        let blob = self.payload(at, body, &plain, &commitment, &mut entry)?;
        let hash = chain(previous, at, &entry, &commitment);
        Ok(Encoded { entry, blob, hash })
    }

    /// An entry whose payload was erased before it came here. What it said is known to no one: it commits to nothing.
    pub fn encode_erased(&self, at: Position, time: Timestamp, previous: &Hash, kind: EntryKind) -> Encoded {
        let commitment = self.commitment(&[]);
        let mut body = vec![FORM_ERASED];
        body.extend_from_slice(&commitment.0);
        let entry = StoredEntry {
            version: FORMAT,
            kind,
            time,
            label: None,
            channel: None,
            text: None,
            body,
            refs: Vec::new(),
            batch: None,
            chain: None,
            mac: None,
            sum: 0,
        };
        let hash = chain(previous, at, &entry, &commitment);
        Encoded { entry, blob: None, hash }
    }

    fn label(&self, body: &Body) -> Option<String> {
        match body {
            Body::Message(message) => match &message.role {
                milepost_model::Role::Other(name) => Some(self.token("role", name)),
                known => Some(known.as_str().to_owned()),
            },
            Body::Event(event) => Some(self.token("event", &event.kind)),
            _ => None,
        }
    }

    /// Fills body, text and refs; returns the blob when the payload became one.
    fn payload(
        &self,
        at: Position,
        body: &Body,
        plain: &[u8],
        commitment: &Hash,
        entry: &mut StoredEntry,
    ) -> Result<Option<Blob>> {
        let associated = self.entry_associated(at, entry.kind);
        let seal = self.seal(&associated);
        let mut out = vec![0u8];
        let clear = match body {
            Body::Message(message) if self.text && self.cipher.is_none() => body::clear_text(message, plain),
            _ => None,
        };
        let (form, flags) = if let Some((offset, text)) = clear {
            let cut = offset + body::escape(text).len();
            let rest = [&plain[..offset], plain.get(cut..).unwrap_or_default()].concat();
            entry.text = Some(text.to_owned());
            varint::push(&mut out, offset as u64);
            (FORM_TEXT, pack(&rest, Squeeze::Yes, &seal, &self.source, &mut out)?)
        } else {
            (FORM_INLINE, pack(plain, Squeeze::Yes, &seal, &self.source, &mut out)?)
        };
        if out.len() as u64 <= self.limits.inline_bytes {
            out[0] = form | flags;
            entry.body = out;
            return Ok(None);
        }
        let blob = self.blob_with(plain, commitment)?;
        let mut short = vec![FORM_BLOB];
        varint::push(&mut short, plain.len() as u64);
        entry.body = short;
        entry.refs.insert(0, blob.id);
        Ok(Some(blob))
    }

    /// The name of a blob with this content. In an encrypted workspace it is the session's own.
    fn blob_id(&self, commitment: &Hash) -> BlobId {
        if self.cipher.is_none() {
            return BlobId(commitment.0);
        }
        let mut hasher = blake3::Hasher::new_keyed(&self.commit_key);
        hasher.update(b"blob").update(&self.session.to_bytes()).update(&commitment.0);
        BlobId(*hasher.finalize().as_bytes())
    }

    /// A blob of plain bytes.
    pub fn blob(&self, plain: &[u8]) -> Result<Blob> {
        check_size("blob", plain.len(), "max_blob_bytes", self.limits.max_blob_bytes)?;
        self.blob_with(plain, &self.commitment(plain))
    }

    fn blob_with(&self, plain: &[u8], commitment: &Hash) -> Result<Blob> {
        let id = self.blob_id(commitment);
        let associated = self.associated("blob", &[&id.0]);
        let mut bytes = vec![0u8];
        bytes[0] = pack(plain, Squeeze::Yes, &self.seal(&associated), &self.source, &mut bytes)?;
        Ok(Blob { id, bytes })
    }

    /// The plain bytes of a blob, checked against its name.
    pub fn open_blob<'a>(&self, id: BlobId, stored: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        let associated = self.associated("blob", &[&id.0]);
        let plain =
            open_blob(stored, &self.seal(&associated), self.limits.max_blob_bytes.max(self.limits.max_entry_bytes))?;
        if self.blob_id(&self.commitment(&plain)) != id {
            return Err(Error::corrupt(format!("blob {}", Hash(id.0)), "its content does not fit its name"));
        }
        Ok(plain)
    }

    /// What an entry says whose checksum was checked; none when it was erased. `blob` is the first of its refs, when the payload
    /// is there.
    pub fn body(&self, at: Position, entry: &StoredEntry, blob: Option<&[u8]>) -> Result<Option<Body>> {
        self.plain_body(at, entry, blob)?.map(|plain| self.said(at, entry, &plain)).transpose()
    }

    /// The same as the bytes that say it: of a message, its JSON.
    pub fn plain_body<'a>(
        &self,
        at: Position,
        entry: &'a StoredEntry,
        blob: Option<&'a [u8]>,
    ) -> Result<Option<Cow<'a, [u8]>>> {
        let (plain, _) = self.plain(at, entry, blob)?;
        if let Some(plain) = plain.as_ref().filter(|_| is_blob(entry)) {
            self.check_blob(at, entry, &self.commitment(plain))?;
        }
        Ok(plain)
    }

    /// The same with the commitments, which take as long again.
    pub fn decode(&self, at: Position, entry: &StoredEntry, blob: Option<&[u8]>) -> Result<Decoded> {
        let (plain, original) = self.plain(at, entry, blob)?;
        let Some(plain) = plain else {
            let commitment = original.ok_or_else(|| Error::corrupt(format!("entry {at}"), "it has no commitment"))?;
            return Ok(Decoded { body: None, commitment, replacement: None });
        };
        let found = self.commitment(&plain);
        self.check_blob(at, entry, &found)?;
        let body = self.said(at, entry, &plain)?;
        Ok(match original {
            Some(commitment) => Decoded { body: Some(body), commitment, replacement: Some(found) },
            None => Decoded { body: Some(body), commitment: found, replacement: None },
        })
    }

    fn said(&self, at: Position, entry: &StoredEntry, plain: &[u8]) -> Result<Body> {
        body::from_plain(entry.kind, plain)
            .map_err(|error| Error::corrupt(format!("{} {at}", entry.kind.as_str()), error.to_string()))
    }

    /// The entry's checksum covers the blob's name, and the name its content.
    fn check_blob(&self, at: Position, entry: &StoredEntry, found: &Hash) -> Result<()> {
        match is_blob(entry) && entry.refs.first() != Some(&self.blob_id(found)) {
            true => Err(Error::corrupt(
                format!("the blob of {} {at}", entry.kind.as_str()),
                "its content does not fit its name",
            )),
            false => Ok(()),
        }
    }

    /// The commitment the chain was made with and the one of what replaces it, without reading what the entry says.
    pub fn commitment_of(
        &self,
        at: Position,
        entry: &StoredEntry,
        blob: Option<&[u8]>,
    ) -> Result<(Hash, Option<Hash>)> {
        self.skim(at, entry, blob).map(|(skimmed, _)| (skimmed.commitment, skimmed.replacement))
    }

    /// The commitments of a message, without reading what it says but for whether it may have a text.
    pub fn skim(&self, at: Position, entry: &StoredEntry, blob: Option<&[u8]>) -> Result<(Decoded, bool)> {
        let (plain, original) = self.plain(at, entry, blob)?;
        let found = plain.as_deref().map(|plain| self.commitment(plain));
        let may_have_text = plain.is_some_and(|plain| body::may_have_text(&plain));
        let (commitment, replacement) = match (original, found) {
            (Some(commitment), replacement) => (commitment, replacement),
            (None, Some(found)) => (found, None),
            (None, None) => return Err(Error::corrupt(format!("entry {at}"), "it has no commitment")),
        };
        Ok((Decoded { body: None, commitment, replacement }, may_have_text))
    }

    /// How many bytes an entry has before it is packed; 0 when it was erased.
    pub fn plain_len(&self, at: Position, entry: &StoredEntry, blob: Option<&[u8]>) -> Result<u64> {
        Ok(self.plain(at, entry, blob)?.0.map_or(0, |plain| plain.len() as u64))
    }

    fn plain<'a>(
        &self,
        at: Position,
        entry: &'a StoredEntry,
        blob: Option<&'a [u8]>,
    ) -> Result<(Plain<'a>, Option<Hash>)> {
        let mut body = entry.body.as_slice();
        let form = Form::read(&mut body, entry)?;
        let associated = self.entry_associated(at, entry.kind);
        let blob_associated = match (form.form, entry.refs.first()) {
            (FORM_BLOB, Some(id)) if self.cipher.is_some() => self.associated("blob", &[&id.0]),
            _ => Vec::new(),
        };
        let max_len = self.limits.max_entry_bytes;
        let plain = form.plain(body, entry, blob, &self.seal(&associated), &self.seal(&blob_associated), max_len)?;
        Ok((plain, form.original))
    }

    /// The entry with its payload erased: the chain stays whole.
    pub fn erase(&self, at: Position, entry: &StoredEntry, commitment: &Hash) -> StoredEntry {
        let mut body = vec![FORM_ERASED];
        body.extend_from_slice(&commitment.0);
        let mut erased = StoredEntry { body, text: None, refs: Vec::new(), ..entry.clone() };
        erased.sum = checksum(at, &erased);
        erased
    }

    /// The entry with another payload in the place of its own: the chain stays whole, and the
    /// replacement's commitment (returned) is what the log must vouch for.
    pub fn replace(
        &self,
        at: Position,
        entry: &StoredEntry,
        original: &Hash,
        body: &Body,
    ) -> Result<(StoredEntry, Option<Blob>, Hash)> {
        let plain = body::to_plain(body)?;
        let commitment = self.commitment(&plain);
        let mut replaced = StoredEntry {
            text: None,
            label: self.label(body),
            channel: match body {
                Body::Message(message) => self.channel(&message.channel),
                _ => None,
            },
            ..entry.clone()
        };
        if is_blob(entry) {
            replaced.refs.remove(0);
        }
        let blob = self.payload(at, body, &plain, &commitment, &mut replaced)?;
        let mut front = vec![FORM_REPLACED];
        front.extend_from_slice(&original.0);
        front.append(&mut replaced.body);
        replaced.body = front;
        replaced.sum = checksum(at, &replaced);
        Ok((replaced, blob, commitment))
    }

    /// Encodes a whole state, a session's row or a record's value, bound to its name.
    pub fn encode_bytes(&self, what: &str, name: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let associated = self.associated(what, &[name]);
        let mut out = vec![0u8; 9];
        let squeeze = if what == "session" { Squeeze::No } else { Squeeze::Yes };
        out[8] = pack(plain, squeeze, &self.seal(&associated), &self.source, &mut out)?;
        let sum = checksum_bytes(&associated, &out[8..]);
        out[..8].copy_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    /// Decodes what [`encode_bytes`](Self::encode_bytes) made.
    pub fn decode_bytes(&self, what: &str, name: &[u8], stored: &[u8]) -> Result<Vec<u8>> {
        let damaged = |why: &str| Error::corrupt(format!("a {what}"), why);
        let associated = self.associated(what, &[name]);
        let (sum, rest) = stored.split_first_chunk::<8>().ok_or_else(|| damaged("it is cut short"))?;
        if checksum_bytes(&associated, rest) != u64::from_le_bytes(*sum) {
            return Err(damaged("its checksum does not fit"));
        }
        let (&flags, rest) = rest.split_first().ok_or_else(|| damaged("it is cut short"))?;
        if flags & !pack::KNOWN != 0 {
            return Err(damaged("it has an unknown form"));
        }
        unpack(rest, flags, &self.seal(&associated), self.limits.max_entry_bytes, 0).map(Cow::into_owned)
    }
}

/// What stands for a text where it may not lie in clear: equal texts have equal tokens.
pub(crate) fn token(commit_key: &[u8; 32], column: &str, text: &str) -> String {
    let mut hasher = blake3::Hasher::new_keyed(commit_key);
    hasher.update(b"token").update(column.as_bytes()).update(&[0]).update(text.as_bytes());
    let hash = Hash(*hasher.finalize().as_bytes()).to_string();
    format!("~{}", &hash[..32])
}

/// Whether an entry's payload lies in the blob that its refs name first.
pub(crate) fn is_blob(entry: &StoredEntry) -> bool {
    let mut body = entry.body.as_slice();
    Form::read(&mut body, entry).is_ok_and(|form| form.form == FORM_BLOB) && !entry.refs.is_empty()
}

/// Whether an entry's payload was erased.
pub(crate) fn is_erased(entry: &StoredEntry) -> bool {
    entry.body.first().is_some_and(|first| first & FORM_MASK == FORM_ERASED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_the_same_in_one_piece_and_in_parts() {
        let at = Position { timeline: milepost_model::TimelineId::from_bytes([7; 16]), seq: milepost_model::Seq(41) };
        for len in [0, 1, 63, 64, 100, 101, 130, 160, 240, 241, 512, 1024, 4095, 4096, 4097, 20_000] {
            let entry = StoredEntry {
                version: FORMAT,
                kind: EntryKind::Message,
                time: Timestamp(1_700_000_000_000),
                label: Some("user".into()),
                channel: None,
                text: Some("a text".into()),
                body: (0..len).map(|byte| byte as u8).collect(),
                refs: vec![BlobId([9; 32])],
                batch: None,
                chain: Some(Hash([3; 32])),
                mac: None,
                sum: 0,
            };
            let mut parts = Xxh3::with_seed(at.seq.0);
            checked_fields(at, &entry, |part| parts.update(part));
            assert_eq!(checksum(at, &entry), parts.digest(), "a body of {len} bytes");
        }
    }
}
