//! Golden files of the format on disk: stores that version 1 wrote, and what must be read from them for ever.
//!
//! Files that are there are never changed. To add one, name it in [`Kind`], and:
//! `MILEPOST_REGENERATE_GOLDEN=1 cargo test -p milepost-store --test it golden::regenerate`

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aes_gcm_siv::Aes256GcmSiv;
use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use base64_simd::STANDARD as BASE64;
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use milepost_model::delta::encode_value;
use milepost_model::{
    Block, Body, Channel, Checkpoint, Delta, Event, Hash, ManualClock, Message, Position, Role, Seq, SessionId,
    SessionPatch, Source, Status, Trigger,
};
use milepost_store::{
    Append, MarkKey, MarkQuery, MasterKey, MessageQuery, NewMark, NewSession, Options, Receipt, Redactor, SessionQuery,
    Store,
};
use serde_json::{Map, Value, json};

use crate::keep::noise;
use crate::keys::make_sum_fit;
use crate::support::{START, Scratch, claim, state, step, url, user};
use crate::writer::{assert_whole, entry_key};

const MASTER: &[u8; 32] = b"a golden master key, no secret. ";
const MARKS: &[u8; 32] = b"a golden signing key, no secret.";

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The plain and the encrypted stores.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Plain,
    /// Written before keyframes were made when the deltas reach the state's size.
    Encrypted,
    /// Written with keyframes as they are made now, and with checksums in the key records.
    EncryptedSecond,
    /// Written with the names of holders sealed.
    EncryptedThird,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Plain, Kind::Encrypted, Kind::EncryptedSecond, Kind::EncryptedThird];
    /// Those that today's code writes.
    const WRITTEN: [Kind; 2] = [Kind::Plain, Kind::EncryptedThird];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Plain => "v1",
            Kind::Encrypted => "v1-encrypted",
            Kind::EncryptedSecond => "v1-encrypted-second",
            Kind::EncryptedThird => "v1-encrypted-third",
        }
    }

    pub fn options(self, source: Source) -> Options {
        let mut options = Options::default();
        options.source = Some(source);
        if self != Kind::Plain {
            options.keys.master = Some(MasterKey::from_bytes(*MASTER));
            options.keys.marks = Some(MarkKey::from_bytes(*MARKS));
        }
        options
    }

    /// Opened a year later, by someone else.
    pub async fn open_later(self, path: &Path) -> Store {
        self.open_later_at(&url(path)).await
    }

    pub async fn open_later_at(self, url: &str) -> Store {
        let clock = Arc::new(ManualClock::new(START.plus_ms(365 * 24 * 3600 * 1000)));
        Store::open(url, self.options(Source::seeded(77, clock))).await.unwrap()
    }

    /// A copy of the golden file, to open.
    pub fn copy(self, dir: &Path) -> PathBuf {
        let to = dir.join("golden.db");
        std::fs::copy(folder().join(format!("{}.db", self.name())), &to).unwrap();
        to
    }

    pub fn expected(self) -> Value {
        let text = std::fs::read_to_string(folder().join(format!("{}.json", self.name()))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Writes the store anew and says what is in it.
    async fn write(self, dir: &Path) -> (PathBuf, Value) {
        let path = dir.join("golden.db");
        let clock = Arc::new(ManualClock::new(START));
        let store = Store::open(&url(&path), self.options(Source::seeded(42, Arc::clone(&clock)))).await.unwrap();
        let resealed = tell(&store, &clock).await;
        store.close().await.unwrap();
        if self != Kind::Plain {
            reseal(&path, resealed.0, resealed.1);
        }
        let store = self.open_later(&path).await;
        let content = describe(&store).await;
        store.close().await.unwrap();
        (path, content)
    }
}

fn last(receipt: &Receipt) -> Position {
    Position { seq: Seq(receipt.length - 1), ..receipt.first }
}

/// Everything the format can hold. Returns a session and one of its messages.
async fn tell(store: &Store, clock: &ManualClock) -> (SessionId, Position) {
    let patch = SessionPatch::new()
        .title("A golden session")
        .project("milepost")
        .agent("coder")
        .feature("storage")
        .task("T-1")
        .stage("in_dev")
        .tags(["golden", "v1"])
        .with("own", json!({ "deep": [1, 2.5, null] }));
    let first = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let append = messages().into_iter().fold(Append::new(), Append::message);
    let said = first.append(append.mark(NewMark::new(Trigger::Initial).label("the beginning"))).await.unwrap();
    clock.advance_ms(1500);

    // Large and small, compressed and not, with a file beside it.
    let file = first.put_blob(noise(1, 20_000).as_bytes()).await.unwrap();
    let append = Append::new()
        .message(user(&noise(2, 50_000)))
        .message(user(&"all work and no play ".repeat(1000)))
        .event(Event::new("tick", Value::Null))
        .event_with(Event::new("files", json!({ "listing": ["a.rs", "b.rs"] })), vec![file]);
    first.append(append).await.unwrap();

    // States by value and by delta, with marks of many kinds; some of them go.
    let mut marks = Vec::new();
    for n in 0..10u64 {
        clock.advance_ms(60_000);
        let mark = match n {
            3 => NewMark::new(Trigger::Milestone).description("half way"),
            4 => NewMark { clean: false, ..NewMark::new(Trigger::Error) },
            5 => NewMark {
                resumable: milepost_model::Resumable::No("open call".into()),
                ..NewMark::new(Trigger::Other("own".into()))
            },
            6 => NewMark {
                extra: Map::from_iter([("node".to_owned(), json!({ "id": 6 }))]),
                ..NewMark::new(Trigger::NodeComplete)
            },
            _ => NewMark::new(Trigger::Step),
        };
        let whole = json!({
            "memory": { "n": n, "list": (0..n).collect::<Vec<_>>(), "noise": noise(100 + n, 1500) },
            "metrics": { "float": 0.1, "large": u64::MAX, "negative": -7 },
        });
        let append = Append::new().message(user(&format!("step {n}"))).state(state(whole)).mark(mark);
        marks.push(first.append(append).await.unwrap());
    }
    let delta = Delta::builder()
        .append("/memory/list", [json!({ "x": "y" })])
        .splice("/memory/list", 0, 2, ["replaced"])
        .set("/memory/text", "begun")
        .append_str("/memory/text", ", continued")
        .remove("/metrics/float");
    first.append(Append::new().delta(delta.build().unwrap()).mark(NewMark::new(Trigger::Manual))).await.unwrap();
    for n in [1, 2, 7] {
        first.trash_mark(marks[n].checkpoints[0]).await.unwrap();
    }
    clock.advance_ms(1);
    assert!(first.purge(store.source().now()).await.unwrap().deltas > 0);
    first.trash_mark(marks[8].checkpoints[0]).await.unwrap();

    // A branch, a restore, a second session, records, a redaction.
    let new = NewSession { id: None, patch: SessionPatch::new().title("A branch") };
    let branch = store.branch(last(&marks[3]), new, &claim()).await.unwrap();
    branch.append(step(50)).await.unwrap();
    first.restore(last(&marks[6])).await.unwrap();
    clock.advance_ms(1000);
    first.append(step(60).message(user("the password is Swordfish, do not tell"))).await.unwrap();
    let second = store.create(NewSession::default(), &claim()).await.unwrap();
    second.append(step(70)).await.unwrap();
    second.append(Append::new().patch(SessionPatch::new().status(Status::Completed).error("none"))).await.unwrap();
    store.put_record("setting", "theme", None, None, b"dark").await.unwrap();
    store.put_record("wake-up", "w1", None, Some(START.plus_ms(5000)), br#"{"session":"x"}"#).await.unwrap();
    let redactor = Redactor::literal("Swordfish", "[redacted]").unwrap();
    let done = store.redact(&redactor, "a password", &claim().take_over(), false).await.unwrap();
    assert_eq!(done.entries, 1);
    (first.id(), said.first)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn body(body: Option<Body>) -> Value {
    match body {
        None => Value::Null,
        Some(Body::Message(message)) => serde_json::to_value(message).unwrap(),
        Some(Body::Event(event)) => serde_json::to_value(event).unwrap(),
        Some(Body::Mark(mark)) => serde_json::to_value(mark).unwrap(),
        Some(Body::State(delta)) => {
            let changes: Vec<String> = delta.changes().map(|(path, change)| format!("{path:?} {change:?}")).collect();
            json!({ "encoded": hex(&delta.encode()), "changes": changes })
        }
    }
}

/// Long texts by their hash, so that a person can read the rest.
fn shorten(value: Value) -> Value {
    match value {
        Value::String(text) if text.len() > 300 => {
            json!(format!("{}… {} bytes, {}", &text[..40], text.len(), blake3::hash(text.as_bytes()).to_hex()))
        }
        Value::Array(items) => items.into_iter().map(shorten).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, shorten(value))).collect(),
        other => other,
    }
}

/// All that can be read of a store.
pub async fn describe(store: &Store) -> Value {
    let mut sessions = Vec::new();
    let query = SessionQuery { by_creation: true, ..SessionQuery::default() };
    for session in store.sessions(&query).await.unwrap().sessions {
        let id = session.id;
        let mut lines = Vec::new();
        for line in store.backend().timelines(store.workspace(), id).await.unwrap() {
            let end = Position { timeline: line.id, seq: Seq(line.length - 1) };
            let found = store.messages_at(end, &MessageQuery::default()).await.unwrap();
            lines.push(json!({
                "id": line.id, "parent": line.parent, "head": line.head, "length": line.length, "chain": line.chain,
                "messages": found.len(), "state": store.state_at(end).await.unwrap(),
            }));
        }
        let entries = store.entries(id, Seq(0), Seq::MAX).await.unwrap();
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|entry| json!({ "at": entry.at.to_string(), "time": entry.time, "kind": entry.kind, "body": body(entry.body) }))
            .collect();
        let mut marks = Vec::new();
        for trashed in [false, true] {
            for mark in store.marks(id, &MarkQuery { trashed, ..MarkQuery::default() }).await.unwrap() {
                let loaded = store.load(mark.checkpoint.id).await.unwrap();
                marks.push(json!({ "at": mark.at.to_string(), "trashed": mark.trashed, "checkpoint": mark.checkpoint, "state": loaded.state }));
            }
        }
        sessions.push(json!({ "row": session, "timelines": lines, "entries": entries, "marks": marks }));
    }
    let mut records = Vec::new();
    for kind in ["setting", "wake-up"] {
        for record in store.records(kind, None, 100).await.unwrap() {
            records.push(json!({ "kind": kind, "key": record.key, "due": record.due, "version": record.version, "value": String::from_utf8(record.value).unwrap() }));
        }
    }
    shorten(
        json!({ "sessions": sessions, "records": records, "stats": { "blobs": store.stats().await.unwrap().blobs.entries } }),
    )
}

pub fn assert_described(found: &Value, expected: &Value, what: &str) {
    let (found, expected) =
        (serde_json::to_string_pretty(found).unwrap(), serde_json::to_string_pretty(expected).unwrap());
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{what}, line {}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{what}");
}

/// Writes the golden files that are not there yet; see the top of this file.
#[tokio::test]
async fn regenerate() {
    if std::env::var_os("MILEPOST_REGENERATE_GOLDEN").is_none() {
        return;
    }
    std::fs::create_dir_all(folder()).unwrap();
    for kind in Kind::WRITTEN {
        let file = folder().join(format!("{}.db", kind.name()));
        if file.exists() {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let (path, content) = kind.write(dir.path()).await;
        std::fs::copy(path, file).unwrap();
        let text = serde_json::to_string_pretty(&content).unwrap();
        std::fs::write(folder().join(format!("{}.json", kind.name())), text + "\n").unwrap();
    }
}

#[tokio::test]
async fn files_of_version_1_are_read_as_they_were_written() {
    for kind in Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = kind.copy(dir.path());
        let store = kind.open_later(&path).await;
        assert_described(&describe(&store).await, &kind.expected(), kind.name());
        assert_whole(&store).await;
        store.reindex().await.unwrap();
        assert_described(&describe(&store).await, &kind.expected(), "after a reindex");
        assert_whole(&store).await;
    }
}

#[tokio::test]
async fn files_of_version_1_can_be_continued() {
    for kind in Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = kind.copy(dir.path());
        let store = kind.open_later(&path).await;
        let mut ids = Vec::new();
        for session in store.sessions(&SessionQuery::default()).await.unwrap().sessions {
            let writer = store.write(session.id, &claim()).await.unwrap();
            let before = store.messages(session.id, &MessageQuery::default()).await.unwrap().len();
            let receipt = writer.append(step(1000)).await.unwrap();
            writer.restore(last(&receipt)).await.unwrap();
            writer.append(step(1001)).await.unwrap();
            assert_eq!(store.messages(session.id, &MessageQuery::default()).await.unwrap().len(), before + 2);
            ids.push(session.id);
        }
        assert_eq!(ids.len(), 3);
        let new = store.create(NewSession::default(), &claim()).await.unwrap();
        new.append(step(1)).await.unwrap();
        store.close().await.unwrap();
        let store = kind.open_later(&path).await;
        for id in ids {
            assert_eq!(store.state(id).await.unwrap().pointer("/memory/step"), Some(&json!(1001)));
        }
        assert_whole(&store).await;
        let redactor = Redactor::literal("golden", "old").unwrap();
        store.redact(&redactor, "", &claim().take_over(), false).await.unwrap();
        assert_whole(&store).await;
    }
}

/// The same seed, the same clock and the same calls give the same log, bit by bit: ids, commitments, chain hashes,
/// state hashes, the encoding of deltas and marks. What they give is frozen in the golden files.
///
/// The ids of an encrypted store follow from how many nonces were drawn before, so that a change which draws more or
/// fewer of them needs a further file, as [`Kind::EncryptedThird`] is one; the older ones stay, to be read. What such
/// a change must not touch is compared with the oldest file, by [`but_for_ids`].
#[tokio::test]
async fn the_same_calls_give_the_same_chain() {
    for kind in Kind::WRITTEN {
        let dir = tempfile::tempdir().unwrap();
        let (_, content) = kind.write(dir.path()).await;
        assert_described(&content, &kind.expected(), kind.name());
        if kind != Kind::Plain {
            let (found, expected) = (but_for_ids(&content), but_for_ids(&Kind::Encrypted.expected()));
            assert_described(&found, &expected, "but for ids");
        }
    }
}

/// A description with ids by the order in which they come, and without what is made of them: whatever was drawn before,
/// the same calls give the same.
fn but_for_ids(described: &Value) -> Value {
    fn id_at(text: &str) -> Option<&str> {
        let (prefix, rest) = text.split_at_checked(4)?;
        let is_id = ["ses_", "tml_", "ckp_"].contains(&prefix) && rest.len() >= 26 && rest.is_char_boundary(26);
        is_id.then(|| &text[..30])
    }
    fn walk(value: &Value, seen: &mut Vec<String>) -> Value {
        match value {
            Value::String(text) => match id_at(text) {
                Some(id) => {
                    let number = seen.iter().position(|other| other == id).unwrap_or(seen.len());
                    if number == seen.len() {
                        seen.push(id.to_owned());
                    }
                    json!(format!("{}{number}{}", &id[..4], &text[30..]))
                }
                None => json!(text),
            },
            Value::Array(items) => items.iter().map(|item| walk(item, seen)).collect(),
            Value::Object(map) => {
                let kept = map.iter().filter(|(key, _)| !["chain", "version", "replaced"].contains(&key.as_str()));
                kept.map(|(key, value)| (key.clone(), walk(value, seen))).collect()
            }
            other => other.clone(),
        }
    }
    walk(described, &mut Vec::new())
}

/// What the first byte of a stored body says.
fn forms(path: &Path) -> BTreeSet<(u8, u8)> {
    let db = rusqlite::Connection::open(path).unwrap();
    let mut statement = db.prepare("SELECT body FROM entries").unwrap();
    let bodies: Vec<Vec<u8>> = statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    bodies.iter().map(|body| (body[0] & 7, body[0] & !7)).collect()
}

#[test]
fn the_golden_files_hold_every_form_of_payload() {
    const ZSTD: u8 = 8;
    const DICTIONARY: u8 = 16;
    const GCM_SIV: u8 = 32;
    const XCHACHA: u8 = 64;
    let dir = tempfile::tempdir().unwrap();
    let plain = forms(&Kind::Plain.copy(dir.path()));
    let found: BTreeSet<u8> = plain.iter().map(|(form, _)| *form).collect();
    assert_eq!(found, BTreeSet::from([0, 1, 2, 3, 4]), "inline, text, blob, erased, replaced");
    let packed: BTreeSet<u8> = plain.iter().filter(|(form, _)| *form < 2).map(|(_, flags)| *flags).collect();
    assert_eq!(packed, BTreeSet::from([0, ZSTD, ZSTD | DICTIONARY]));
    let sealed = forms(&Kind::Encrypted.copy(dir.path()));
    let ciphers: BTreeSet<u8> =
        sealed.iter().filter(|(form, _)| *form < 2).map(|(_, flags)| flags & (GCM_SIV | XCHACHA)).collect();
    assert_eq!(ciphers, BTreeSet::from([GCM_SIV, XCHACHA]), "both ciphers");
}

// The format once more, written from its description and not from its code.

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A mark as plain bytes.
fn mark_plain(mark: &Checkpoint) -> Vec<u8> {
    let mut rest = serde_json::to_value(mark).unwrap().as_object().unwrap().clone();
    ["id", "number", "trigger", "clean", "state"].iter().for_each(|field| _ = rest.remove(*field));
    let only_main = match (mark.counts.len(), mark.counts.get(&Channel::MAIN)) {
        (1, Some(count)) => Some(*count),
        _ => None,
    };
    if only_main.is_some() {
        rest.remove("counts");
    }
    let flags = u8::from(mark.clean) | u8::from(only_main.is_some()) << 1 | u8::from(!rest.is_empty()) << 2;
    let mut out = vec![flags];
    out.extend_from_slice(&mark.id.to_bytes());
    out.extend_from_slice(&mark.state.0);
    varint(&mut out, mark.number);
    varint(&mut out, mark.trigger.as_str().len() as u64);
    out.extend_from_slice(mark.trigger.as_str().as_bytes());
    only_main.iter().for_each(|count| varint(&mut out, *count));
    if !rest.is_empty() {
        out.extend_from_slice(&encode_value(&Value::Object(rest)));
    }
    out
}

fn plain(body: &Body) -> Vec<u8> {
    match body {
        Body::Message(message) => serde_json::to_vec(message).unwrap(),
        Body::Event(event) => serde_json::to_vec(event).unwrap(),
        Body::State(delta) => delta.encode(),
        Body::Mark(mark) => mark_plain(mark),
    }
}

/// Computes every chain hash of the golden file from what its entries say, and compares with what is stored.
#[tokio::test]
async fn the_chain_is_what_its_description_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = Kind::Plain.copy(dir.path());
    let store = Kind::Plain.open_later(&path).await;
    let db = rusqlite::Connection::open(&path).unwrap();
    let keys: Vec<u8> = db
        .query_row("SELECT value FROM records WHERE kind = 'key' AND key = 'workspace'", [], |row| row.get(0))
        .unwrap();
    let keys: Value = serde_json::from_slice(&keys).unwrap();
    let commit_key: [u8; 32] =
        BASE64.decode_type::<Vec<u8>>(keys["commit"].as_str().unwrap()).unwrap().try_into().unwrap();
    let (mut compared, mut kept) = (0, 0);
    for session in store.sessions(&SessionQuery::default()).await.unwrap().sessions {
        let mut hash = None;
        for entry in store.entries(session.id, Seq(0), Seq::MAX).await.unwrap() {
            let key = entry_key(&path, entry.at);
            let (version, stored, chain): (u8, Vec<u8>, Option<Vec<u8>>) = db
                .query_row("SELECT version, body, chain FROM entries WHERE id = ?1", [key], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                })
                .unwrap();
            let commitment: [u8; 32] = match (stored[0] & 7, &entry.body) {
                // Erased and replaced entries keep the commitment they were made with.
                (3 | 4, _) => {
                    kept += 1;
                    stored[1..33].try_into().unwrap()
                }
                (_, Some(body)) => *blake3::keyed_hash(&commit_key, &plain(body)).as_bytes(),
                (form, None) => panic!("an entry of form {form} has no body"),
            };
            let begin = || {
                let root = session.branch.map_or(session.id, |branch| branch.session);
                blake3::derive_key("milepost 1 genesis", &root.to_bytes())
            };
            let mut bytes = hash.unwrap_or_else(begin).to_vec();
            bytes.extend_from_slice(&entry.at.timeline.to_bytes());
            bytes.extend_from_slice(&entry.at.seq.0.to_be_bytes());
            bytes.extend_from_slice(&entry.time.0.to_be_bytes());
            bytes.extend_from_slice(&[version, entry.kind as u8]);
            bytes.extend_from_slice(&commitment);
            hash = Some(*blake3::hash(&bytes).as_bytes());
            if let Some(chain) = chain {
                assert_eq!(Some(Hash(chain.try_into().unwrap())), hash.map(Hash), "at {}", entry.at);
                compared += 1;
            }
        }
    }
    assert!(compared > 20 && kept > 2, "{compared} compared, {kept} kept");
}

fn unseal(key: &[u8; 32], associated: &[u8], sealed: &[u8]) -> Vec<u8> {
    let cipher = Aes256GcmSiv::new((&blake3::derive_key("milepost 1 payload aes-256-gcm-siv", key)).into());
    let nonce: [u8; 12] = sealed[..12].try_into().unwrap();
    cipher.decrypt(&nonce.into(), Payload { msg: &sealed[12..], aad: associated }).unwrap()
}

/// The key that a record holds, unwrapped.
fn unwrap(db: &rusqlite::Connection, record: &str, pointer: &str, wrapped_by: &[u8; 32], name: &str) -> [u8; 32] {
    let value: Vec<u8> =
        db.query_row("SELECT value FROM records WHERE kind = 'key' AND key = ?1", [record], |row| row.get(0)).unwrap();
    let value: Value = serde_json::from_slice(&value).unwrap();
    let wrapped: Vec<u8> = BASE64.decode_type(value.pointer(pointer).unwrap().as_str().unwrap()).unwrap();
    assert_eq!(wrapped[0], 32, "golden files are made on a processor with AES");
    unseal(wrapped_by, name.as_bytes(), &wrapped[1..]).try_into().unwrap()
}

/// Seals one entry anew as a processor without AES would: with XChaCha20-Poly1305.
fn reseal(path: &Path, session: SessionId, at: Position) {
    let db = rusqlite::Connection::open(path).unwrap();
    let data = unwrap(&db, "workspace", "/encryption/data/0/1", MASTER, "milepost 1 data key\ndefault\n1");
    let name = format!("milepost 1 session key\ndefault\n{session}");
    let key = unwrap(&db, &format!("session/{session}"), "/key", &data, &name);
    let row = entry_key(path, at);
    let body: Vec<u8> = db.query_row("SELECT body FROM entries WHERE id = ?1", [row], |row| row.get(0)).unwrap();
    let mut associated = Vec::new();
    let (timeline, seq, id): ([u8; 16], [u8; 8], [u8; 16]) =
        (at.timeline.to_bytes(), at.seq.0.to_be_bytes(), session.to_bytes());
    for part in [b"entry".as_slice(), b"default", &id, &timeline, &seq, &[1]] {
        associated.extend_from_slice(&(part.len() as u32).to_le_bytes());
        associated.extend_from_slice(part);
    }
    assert_eq!(body[0] & (7 | 32), 32, "an inline payload under AES-256-GCM-SIV");
    let opened = unseal(&key, &associated, &body[1..]);
    let cipher = XChaCha20Poly1305::new((&blake3::derive_key("milepost 1 payload xchacha20-poly1305", &key)).into());
    let nonce = [9u8; 24];
    let sealed = cipher.encrypt(&XNonce::from(nonce), Payload { msg: &opened, aad: &associated }).unwrap();
    let body = [&[body[0] & !32 | 64], nonce.as_slice(), &sealed].concat();
    db.execute("UPDATE entries SET body = ?2 WHERE id = ?1", rusqlite::params![row, body]).unwrap();
    make_sum_fit(&db, at, row);
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

/// Names of things that are stored must not change their meaning.
#[tokio::test]
async fn a_store_of_a_newer_version_is_refused() {
    let scratch = Scratch::new();
    std::fs::copy(folder().join("v1.db"), scratch.path()).unwrap();
    rusqlite::Connection::open(scratch.path()).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = Store::open(&scratch.url(), scratch.options.clone()).await.unwrap_err();
    assert!(matches!(&error, milepost_store::Error::Newer { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("newer Milepost"), "{error}");
}

/// Messages of every kind, with fields and blocks that Milepost does not know.
pub fn messages() -> Vec<Message> {
    let extra = |value: Value| match value {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let mut odd = Message::new(Role::Other("critic".into()), "custom role");
    odd.extra = extra(json!({"name": "c", "usage": {"tokens": 12}, "nothing": null}));
    vec![
        Message::new(Role::System, "You are a careful assistant."),
        Message::new(Role::User, "Grüße, 世界 🦀 \"quoted\" \\ \n\t\u{1}"),
        Message::new(Role::User, ""),
        Message::new(Role::User, "nul \0 inside"),
        Message::blocks(Role::Assistant, Vec::new()),
        Message::blocks(
            Role::Assistant,
            vec![
                Block::Thinking { text: "Let me look.".into(), extra: extra(json!({"signature": "c2ln"})) },
                Block::Text { text: "I will read the file.".into(), extra: extra(json!({"citations": [1]})) },
                Block::tool_call("call_1", "read_file", json!({"path": "src/lib.rs", "lines": [1, 20]})),
            ],
        ),
        Message::blocks(
            Role::Tool,
            vec![Block::ToolResult {
                call_id: "call_1".into(),
                content: json!([{"type": "text", "text": "pub fn main() {}"}]),
                is_error: true,
                extra: extra(json!({"took_ms": 12.5})),
            }],
        ),
        Message::blocks(
            Role::User,
            vec![
                Block::text("text first"),
                Block::Image { source: json!({"type": "url", "url": "https://example.org/a.png"}), extra: Map::new() },
            ],
        ),
        Message::blocks(
            Role::Assistant,
            vec![
                Block::from(json!({"type": "server_tool_use", "id": "x", "input": {"deep": [[["y"]]]}})),
                Block::from(json!("not even an object")),
                Block::from(json!({"type": "text", "text": 7})),
            ],
        ),
        Message::new(Role::Assistant, "in a side channel").in_channel(Channel::new("node/plan").unwrap()),
        odd,
    ]
}
