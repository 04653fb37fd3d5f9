//! Keys: what an encrypted workspace hides, which keys open it, rotation and shredding, signed marks and signed heads.

use std::path::Path;
use std::sync::atomic::Ordering;

use milepost_model::{
    Block, Body, Channel, Delta, Event, Hash, Message, Position, Retention, Role, Seq, SessionId, SessionPatch,
    Timestamp, Trigger, WorkspaceId,
};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::ed25519_dalek::SigningKey;
use milepost_store::{
    Append, Claim, DeleteMode, Error, KeyError, MarkKey, MarkQuery, MasterKey, MessageQuery, NewMark, NewSession,
    Options, Receipt, SessionQuery, SignedHead, Store,
};
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::keep::{dump, noise};
use crate::redact::lies_in_files;
use crate::support::{Scratch, claim, create, state, step, url, user};
use crate::writer::{assert_whole, entry_key, sql, texts, watched};

fn master(byte: u8) -> MasterKey {
    MasterKey::from_bytes([byte; 32])
}

fn encrypted() -> Scratch {
    let mut scratch = Scratch::new();
    scratch.options.keys.master = Some(master(7));
    scratch
}

async fn open_with(scratch: &Scratch, key: Option<MasterKey>) -> milepost_store::Result<Store> {
    let mut options = scratch.options.clone();
    options.keys.master = key;
    Store::open(&scratch.url(), options).await
}

fn last(receipt: &Receipt) -> Position {
    Position { seq: Seq(receipt.length - 1), ..receipt.first }
}

/// Writes a word of its own into every place that takes a user's text, and returns the words.
async fn write_words(store: &Store) -> (SessionId, Vec<String>) {
    let mut words = Vec::new();
    let mut word = |name: &str| {
        let word = format!("Wq{name}Xv");
        words.push(word.clone());
        word
    };
    let patch = SessionPatch::new()
        .title(word("Title"))
        .project(word("Project"))
        .agent(word("Agent"))
        .feature(word("Feature"))
        .task(word("Task"))
        .stage(word("Stage"))
        .error(word("Error"))
        .tags([word("Tag"), word("SecondTag")])
        .with(word("FieldName"), json!({ word("FieldKey"): word("FieldValue") }));
    let writer = store.create(NewSession { id: None, patch }, &Claim::new(word("Creator"))).await.unwrap();
    let taken = store.write(writer.id(), &Claim::new(word("Holder")).take_over()).await.unwrap();
    let refused = writer.append(step(0)).await.unwrap_err();
    assert!(refused.to_string().contains("taken over by WqHolderXv"), "{refused}");
    let refused = store.write(writer.id(), &claim()).await.err().unwrap();
    assert!(refused.to_string().contains("held by WqHolderXv"), "{refused}");
    assert_eq!(store.lease(writer.id()).await.unwrap().unwrap().holder, "WqHolderXv");
    let writer = taken;
    let mut odd = user(&word("Preview"));
    odd.extra.insert(word("ExtraKey"), json!([word("ExtraValue")]));
    let mark = NewMark::new(Trigger::Other(word("Trigger"))).label(word("Label")).description(word("Description"));
    let mark = NewMark { resumable: milepost_model::Resumable::No(word("NotResumable")), ..mark };
    let large = format!("{} {}", word("Large"), noise(1, 60_000));
    let blob = writer.put_blob(format!("{} in a file", word("Blob")).as_bytes()).await.unwrap();
    let append = Append::new()
        .message(Message::new(Role::Other(word("Role")), word("Message")))
        .message(user(&word("Aside")).in_channel(Channel::new(word("Channel")).unwrap()))
        .message(Message::blocks(
            Role::Assistant,
            vec![
                Block::text(word("BlockText")),
                Block::tool_call(word("CallId"), word("Tool"), json!({ word("InputKey"): word("Input") })),
                Block::from(json!({ "type": word("BlockType"), "x": word("Unknown") })),
            ],
        ))
        .message(user(&large))
        .event_with(Event::new(word("EventType"), json!({ word("EventKey"): word("EventValue") })), vec![blob])
        .state(state(json!({ word("Section"): { word("StateKey"): word("StateValue") } })))
        .mark(mark)
        .message(odd);
    let receipt = writer.append(append).await.unwrap();
    for n in 0..6 {
        // Enough for keyframes.
        let delta =
            Delta::builder().set(["memory"], json!([word(&format!("Delta{n}")), noise(n, 900)])).build().unwrap();
        writer.append(Append::new().delta(delta)).await.unwrap();
    }
    store.put_record("setting", "theme", None, None, word("RecordValue").as_bytes()).await.unwrap();
    let branch = store
        .branch(
            last(&receipt),
            NewSession { id: None, patch: SessionPatch::new().title(word("BranchTitle")) },
            &claim(),
        )
        .await
        .unwrap();
    branch.append(step(1)).await.unwrap();
    writer.restore(last(&receipt)).await.unwrap();
    writer
        .append(Append::new().message(user(&word("AfterRestore"))).mark(NewMark::new(Trigger::Manual)))
        .await
        .unwrap();
    (writer.id(), words)
}

fn assert_hidden(dir: &Path, words: &[String]) {
    for word in words {
        if let Some(place) = lies_in_files(dir, word) {
            panic!("{word} lies in clear in {place}");
        }
    }
}

#[tokio::test]
async fn in_an_encrypted_workspace_no_user_text_lies_in_clear() {
    let scratch = encrypted();
    let store = scratch.open().await;
    assert!(store.is_encrypted());
    let (id, words) = write_words(&store).await;
    assert!(words.len() > 40);
    let wal = scratch.dir.path().join("milepost.db-wal");
    assert!(std::fs::metadata(wal).unwrap().len() > 0, "the WAL is looked at too");
    assert_hidden(scratch.dir.path(), &words);
    store.verify().await.unwrap();
    store.reindex().await.unwrap();
    assert_hidden(scratch.dir.path(), &words);
    store.close().await.unwrap();
    assert_hidden(scratch.dir.path(), &words);
    // A backup hides as much.
    let store = scratch.open().await;
    store.backup(&scratch.dir.path().join("copy.db")).await.unwrap();
    assert_hidden(scratch.dir.path(), &words);

    // Everything is found by its text all the same.
    let ids = |query: SessionQuery| {
        let store = store.clone();
        async move { store.sessions(&query).await.unwrap().sessions.iter().map(|session| session.id).collect::<Vec<_>>() }
    };
    let text = |name: &str| Some(format!("Wq{name}Xv"));
    for query in [
        SessionQuery { project: text("Project"), ..SessionQuery::default() },
        SessionQuery { agent: text("Agent"), ..SessionQuery::default() },
        SessionQuery { feature: text("Feature"), ..SessionQuery::default() },
        SessionQuery { task: text("Task"), ..SessionQuery::default() },
        SessionQuery { stage: text("Stage"), ..SessionQuery::default() },
        SessionQuery { tag: text("SecondTag"), ..SessionQuery::default() },
    ] {
        assert!(ids(query.clone()).await.contains(&id), "{query:?}");
    }
    assert_eq!(ids(SessionQuery { project: text("Agent"), ..SessionQuery::default() }).await, []);
    assert_eq!(ids(SessionQuery { tag: text("Project"), ..SessionQuery::default() }).await, []);
    let marks = |query: MarkQuery| {
        let store = store.clone();
        async move { store.marks(id, &query).await.unwrap().len() }
    };
    assert_eq!(marks(MarkQuery { label: text("Label"), ..MarkQuery::default() }).await, 1);
    assert_eq!(marks(MarkQuery { label: text("Title"), ..MarkQuery::default() }).await, 0);
    assert_eq!(
        marks(MarkQuery { triggers: vec![Trigger::Other("WqTriggerXv".into())], ..MarkQuery::default() }).await,
        1
    );
    assert_eq!(marks(MarkQuery { triggers: vec![Trigger::Manual], ..MarkQuery::default() }).await, 1);
    let channel = MessageQuery { channel: Some(Channel::new("WqChannelXv").unwrap()), ..MessageQuery::default() };
    assert_eq!(store.messages(id, &channel).await.unwrap().len(), 1);
    let session = store.session(id).await.unwrap();
    assert_eq!((session.title, session.preview), (text("Title"), text("AfterRestore")));
    assert_eq!(store.record("setting", "theme").await.unwrap().unwrap().value, b"WqRecordValueXv");
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_file_with_an_open_workspace_hides_the_encrypted_one() {
    let scratch = Scratch::new();
    let open = scratch.open().await;
    create(&open).await.append(Append::new().message(user("plain words"))).await.unwrap();
    let mut options = scratch.options.clone();
    options.workspace = WorkspaceId::new("hidden").unwrap();
    options.keys.master = Some(master(7));
    let hidden = Store::open(&scratch.url(), options).await.unwrap();
    let (_, words) = write_words(&hidden).await;
    let query = |text: &str| TextQuery {
        terms: vec![Term { text: text.into(), prefix: false }],
        sessions: Vec::new(),
        limit: 9,
        ..TextQuery::default()
    };
    assert_eq!(open.backend().search(open.workspace(), query("plain")).await.unwrap().unwrap().len(), 1);
    let found = hidden.backend().search(hidden.workspace(), query("WqMessageXv")).await.unwrap();
    assert!(found.is_none_or(|hits| hits.is_empty()));
    assert_hidden(scratch.dir.path(), &words);
    open.close().await.unwrap();
    hidden.close().await.unwrap();
    assert_hidden(scratch.dir.path(), &words);
    assert!(lies_in_files(scratch.dir.path(), "plain words").is_some(), "the test would notice");
}

#[tokio::test]
async fn only_the_right_key_opens_a_workspace() {
    let scratch = encrypted();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    store.close().await.unwrap();
    let before = dump(&scratch.path());
    let needed = master(7).fingerprint();

    let error = open_with(&scratch, None).await.unwrap_err();
    assert!(matches!(&error, Error::Key(KeyError::Missing { fingerprint, .. }) if *fingerprint == needed), "{error}");
    let text = error.to_string();
    assert!(text.contains(&needed) && text.contains("MILEPOST_KEY") && text.contains("default"), "{text}");

    let error = open_with(&scratch, Some(master(8))).await.unwrap_err();
    let Error::Key(KeyError::Wrong { fingerprint, given, .. }) = &error else { panic!("{error}") };
    assert_eq!((fingerprint, given), (&needed, &master(8).fingerprint()));
    let text = error.to_string();
    assert!(text.contains(&needed) && text.contains(given.as_str()) && text.contains("nothing was changed"), "{text}");
    for key in [master(7), master(8)] {
        assert!(!text.contains(&**key.to_hex()), "an error must not tell the key");
    }
    assert_eq!(dump(&scratch.path()), before, "a refused key changes nothing");
    let store = open_with(&scratch, Some(master(7))).await.unwrap();
    assert_eq!(texts(&store, writer.id()).await, ["step 1"]);

    // A workspace without encryption is not opened with a key, as if it were safe.
    let plain = Scratch::new();
    plain.open().await.close().await.unwrap();
    let error = open_with(&plain, Some(master(7))).await.unwrap_err();
    assert!(matches!(&error, Error::Key(KeyError::NotEncrypted { .. })), "{error}");
    let store = plain.open().await;
    let error = store.rotate_master_key(&master(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Key(KeyError::NotEncrypted { .. })), "{error}");
    let error = store.shred(writer.id()).await.unwrap_err();
    assert!(matches!(&error, Error::Key(KeyError::NotEncrypted { .. })), "{error}");
}

#[test]
fn keys_are_read_from_text_and_files() {
    let key = MasterKey::from_bytes(std::array::from_fn(|n| n as u8 * 7 + 3));
    let hex = key.to_hex().to_string();
    let base64 = "AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dw=";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    for text in [
        hex.as_str(),
        &hex.to_uppercase(),
        base64,
        &format!("{hex}\n"),
        &format!("  {base64}\r\n"),
        &format!("{hex}\n\n"),
    ] {
        assert_eq!(MasterKey::parse(text).unwrap().fingerprint(), key.fingerprint(), "{text:?}");
        std::fs::write(&file, text).unwrap();
        assert_eq!(MasterKey::from_file(&file).unwrap().fingerprint(), key.fingerprint(), "{text:?}");
    }
    let short = &hex[..62];
    for (text, why) in [
        ("", "empty"),
        ("\n", "empty"),
        (short, "neither"),
        (&hex[..60], "instead of 32"),
        ("AwoRGB8=", "instead of 32"),
        ("not a key at all", "neither"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = MasterKey::from_file(&file).unwrap_err();
        assert!(matches!(&error, Error::Key(KeyError::Malformed { .. })), "{text:?}: {error}");
        let said = error.to_string();
        assert!(
            said.contains(why) && said.contains(&file.display().to_string()) && said.contains("64 digits"),
            "{said}"
        );
        assert!(text.trim().is_empty() || !said.contains(text.trim()), "an error must not tell what was there: {said}");
    }
    let error = MasterKey::from_file(&dir.path().join("none")).unwrap_err();
    assert!(matches!(&error, Error::Key(KeyError::Malformed { .. })), "{error}");
    assert!(MasterKey::from_file(dir.path()).is_err());

    // Nothing that is printed by accident tells the key.
    let shown = format!(
        "{key:?} {:?}",
        milepost_store::KeyOptions { master: Some(key.clone()), marks: Some(MarkKey::parse(&hex).unwrap()) }
    );
    assert!(
        shown.contains(&key.fingerprint())
            && !shown.contains(&hex)
            && !shown.contains(base64)
            && !shown.contains("3, 10, 17"),
        "{shown}"
    );
    assert!(!hex.contains(&key.fingerprint()));
    assert_ne!(key.fingerprint(), master(1).fingerprint());
}

/// Not a test by itself: it runs in a child of the next one, with a key in its environment.
#[test]
fn tells_the_key_of_its_environment() {
    if std::env::var_os("MILEPOST_TEST_TELLS_KEY").is_none() {
        return;
    }
    match MasterKey::from_env(milepost_store::MASTER_KEY_VARIABLE) {
        Ok(key) => println!("key {:?}", key.map(|key| key.fingerprint())),
        Err(error) => println!("refused {error}"),
    }
}

#[test]
fn keys_are_read_from_the_environment() {
    let tell = |value: Option<&str>| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "keys::tells_the_key_of_its_environment", "--nocapture"]);
        child.env("MILEPOST_TEST_TELLS_KEY", "1").env_remove("MILEPOST_KEY");
        if let Some(value) = value {
            child.env("MILEPOST_KEY", value);
        }
        String::from_utf8(child.output().unwrap().stdout).unwrap()
    };
    let hex = master(9).to_hex();
    assert!(tell(Some(&hex)).contains(&format!("key Some({:?})", master(9).fingerprint())));
    assert!(tell(None).contains("key None"));
    let refused = tell(Some("short"));
    assert!(refused.contains("refused the variable MILEPOST_KEY does not hold a key"), "{refused}");
    assert!(tell(Some("")).contains("it is empty"));
}

/// Rows of these tables only.
fn rows_of(path: &Path, tables: &[&str]) -> Vec<String> {
    dump(path).into_iter().filter(|row| tables.iter().any(|table| row.starts_with(table))).collect()
}

/// The wrapped keys as they lie in the records.
fn wrapped_keys(path: &Path) -> Vec<String> {
    let db = rusqlite::Connection::open(path).unwrap();
    let mut statement = db.prepare("SELECT value FROM records WHERE kind = 'key' ORDER BY key").unwrap();
    let values: Vec<Vec<u8>> = statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    let mut keys = Vec::new();
    for value in values {
        let value: Value = serde_json::from_slice(&value).unwrap();
        keys.extend(value["key"].as_str().map(str::to_owned));
        for data in value["encryption"]["data"].as_array().into_iter().flatten() {
            keys.push(data[1].as_str().unwrap().to_owned());
        }
    }
    assert!(!keys.is_empty());
    keys
}

#[tokio::test]
async fn rotating_the_master_key_changes_who_opens_the_workspace_and_no_payload() {
    let scratch = encrypted();
    let store = scratch.open().await;
    let (id, _) = write_words(&store).await;
    let said = texts(&store, id).await;
    let payloads = rows_of(&scratch.path(), &["entries", "blobs", "keyframes", "sessions", "marks"]);
    let old = wrapped_keys(&scratch.path());
    store.rotate_master_key(&master(8)).await.unwrap();
    assert_eq!(rows_of(&scratch.path(), &["entries", "blobs", "keyframes", "sessions", "marks"]), payloads);
    assert_eq!(texts(&store, id).await, said, "whoever has it open goes on");
    store.close().await.unwrap();
    let error = open_with(&scratch, Some(master(7))).await.unwrap_err();
    let needed = master(8).fingerprint();
    assert!(matches!(&error, Error::Key(KeyError::Wrong { fingerprint, .. }) if *fingerprint == needed), "{error}");
    let store = open_with(&scratch, Some(master(8))).await.unwrap();
    assert_eq!(texts(&store, id).await, said);
    assert_eq!(store.record("setting", "theme").await.unwrap().unwrap().value, b"WqRecordValueXv");
    create(&store).await.append(step(1)).await.unwrap();
    assert_whole(&store).await;
    store.close().await.unwrap();
    // With the old key and an old copy of the data key, the file would still open: no such copy may be left.
    let kept = wrapped_keys(&scratch.path());
    for wrapped in old.iter().filter(|wrapped| !kept.contains(wrapped)) {
        assert_eq!(lies_in_files(scratch.dir.path(), wrapped), None, "the old wrapped key is still in the file");
    }
}

#[tokio::test]
async fn rotating_the_data_key_wraps_every_session_anew() {
    let scratch = encrypted();
    let store = scratch.open().await;
    let (id, _) = write_words(&store).await;
    let gone = create(&store).await;
    store.shred(gone.id()).await.unwrap();
    let other = create(&store).await;
    other.append(step(1)).await.unwrap();
    let payloads = rows_of(&scratch.path(), &["entries", "blobs", "keyframes"]);
    let (said, old) = (texts(&store, id).await, wrapped_keys(&scratch.path()));
    let error = store.rotate_data_key(&master(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Key(KeyError::Wrong { .. })), "it is no way to change the master key: {error}");
    assert_eq!(wrapped_keys(&scratch.path()), old);
    // Two sessions of the words, one other; the shredded one has no key.
    assert_eq!(store.rotate_data_key(&master(7)).await.unwrap(), 3);
    let new = wrapped_keys(&scratch.path());
    assert!(old.iter().all(|key| !new.contains(key)), "every key is wrapped anew");
    assert_eq!(rows_of(&scratch.path(), &["entries", "blobs", "keyframes"]), payloads);
    assert_eq!(texts(&store, id).await, said);
    other.append(step(2)).await.unwrap();
    create(&store).await.append(step(3)).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(texts(&store, id).await, said);
    assert_eq!(texts(&store, other.id()).await, ["step 1", "step 2"]);
    assert_eq!(store.record("setting", "theme").await.unwrap().unwrap().value, b"WqRecordValueXv");
    let report = store.verify().await.unwrap();
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(store.rotate_data_key(&master(7)).await.unwrap(), 4);
    store.close().await.unwrap();
    for wrapped in &old {
        assert_eq!(lies_in_files(scratch.dir.path(), wrapped), None, "the old wrapped key is still in the file");
    }
}

#[tokio::test]
async fn a_rotation_can_be_interrupted_anywhere_and_done_again() {
    // Two writes of the workspace's record, one for each of three sessions.
    for stop_after in 0..5 {
        let scratch = encrypted();
        let (backend, store) = watched(&scratch).await;
        let mut sessions = Vec::new();
        for n in 0..3 {
            let writer = create(&store).await;
            writer.append(step(n)).await.unwrap();
            sessions.push(writer.id());
        }
        backend.records_left.store(stop_after, Ordering::SeqCst);
        store.rotate_data_key(&master(7)).await.unwrap_err();
        backend.records_left.store(-1, Ordering::SeqCst);
        // Whoever has it open can read, write and begin sessions; so can whoever opens it now.
        let new = create(&store).await;
        new.append(step(9)).await.unwrap();
        sessions.push(new.id());
        for id in &sessions {
            assert_eq!(texts(&store, *id).await.len(), 1, "stopped after {stop_after}");
        }
        store.close().await.unwrap();
        let store = scratch.open().await;
        for id in &sessions {
            assert_eq!(texts(&store, *id).await.len(), 1, "stopped after {stop_after}, reopened");
        }
        assert_eq!(store.rotate_data_key(&master(7)).await.unwrap(), 4);
        store.close().await.unwrap();
        let store = scratch.open().await;
        assert_whole(&store).await;
        let generations: Value = {
            let db = rusqlite::Connection::open(scratch.path()).unwrap();
            let value: Vec<u8> = db
                .query_row("SELECT value FROM records WHERE kind = 'key' AND key = 'workspace'", [], |row| row.get(0))
                .unwrap();
            serde_json::from_slice(&value).unwrap()
        };
        assert_eq!(generations["encryption"]["data"].as_array().unwrap().len(), 1, "old data keys go in the end");
    }
}

#[tokio::test]
async fn who_has_the_store_open_follows_a_rotation_made_elsewhere() {
    let scratch = encrypted();
    let here = scratch.open().await;
    let old = create(&here).await;
    old.append(step(1)).await.unwrap();
    let there = scratch.open().await;
    assert_eq!(there.rotate_data_key(&master(7)).await.unwrap(), 1);
    // A session that begins here afterwards must be readable by everyone, for good.
    let new = create(&here).await;
    new.append(step(2)).await.unwrap();
    assert_eq!(texts(&there, new.id()).await, ["step 2"]);
    let elsewhere = create(&there).await;
    elsewhere.append(step(3)).await.unwrap();
    assert_eq!(texts(&here, elsewhere.id()).await, ["step 3"], "a newer data key is no damage");
    here.close().await.unwrap();
    there.close().await.unwrap();
    let store = scratch.open().await;
    for (id, text) in [(old.id(), "step 1"), (new.id(), "step 2"), (elsewhere.id(), "step 3")] {
        assert_eq!(texts(&store, id).await, [text]);
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_shredded_session_cannot_be_read_and_disturbs_nobody() {
    let scratch = encrypted();
    let store = scratch.open().await;
    let (id, words) = write_words(&store).await;
    let other = create(&store).await;
    let receipt = other.append(step(1)).await.unwrap();
    other.trash_mark(receipt.checkpoints[0]).await.unwrap();
    let victim = create(&store).await;
    let receipt = victim.append(step(2).message(user(&noise(3, 50_000)))).await.unwrap();
    victim.trash_mark(receipt.checkpoints[0]).await.unwrap();
    let (victim_id, mark) = (victim.id(), receipt.checkpoints[0]);
    drop(victim);
    let wrapped = {
        let db = rusqlite::Connection::open(scratch.path()).unwrap();
        let name = format!("session/{victim_id}");
        let value: Vec<u8> =
            db.query_row("SELECT value FROM records WHERE key = ?1", [name], |row| row.get(0)).unwrap();
        serde_json::from_slice::<Value>(&value).unwrap()["key"].as_str().unwrap().to_owned()
    };
    assert!(lies_in_files(scratch.dir.path(), &wrapped).is_some());
    store.shred(victim_id).await.unwrap();
    store.shred(victim_id).await.unwrap();

    for reopened in [false, true] {
        let store = if reopened {
            store.close().await.unwrap();
            scratch.open().await
        } else {
            store.clone()
        };
        let shredded = |error: Error| {
            assert!(matches!(&error, Error::Key(KeyError::Shredded { session }) if *session == victim_id), "{error}");
            assert!(error.to_string().contains(&victim_id.to_string()));
        };
        shredded(store.messages(victim_id, &MessageQuery::default()).await.unwrap_err());
        shredded(store.state(victim_id).await.unwrap_err());
        shredded(store.entries(victim_id, Seq(0), Seq::MAX).await.unwrap_err());
        shredded(store.load(mark).await.unwrap_err());
        shredded(store.mark(mark).await.unwrap_err());
        shredded(store.load_latest(victim_id, &MarkQuery { trashed: true, ..MarkQuery::default() }).await.unwrap_err());
        shredded(store.write(victim_id, &claim().take_over()).await.err().unwrap());
        shredded(store.branch(last(&receipt), NewSession::default(), &claim()).await.err().unwrap());
        shredded(store.compression(victim_id).await.unwrap_err());
        // That it was there is known; what it was called is not.
        let listed = store.sessions(&SessionQuery::default()).await.unwrap().sessions;
        let bare = listed.iter().find(|session| session.id == victim_id).unwrap();
        assert_eq!((&bare.title, &bare.preview, bare.messages()), (&None, &None, 2));
        assert_eq!(listed.len(), 4);
        let report = store.verify().await.unwrap();
        assert!(report.is_whole(), "{:?}", report.problems);
        assert_eq!(report.shredded, [victim_id]);
        // The house is kept around it.
        assert_eq!(texts(&store, other.id()).await, ["step 1"]);
        store.reindex().await.unwrap();
        store.stats().await.unwrap();
        store.collect(&claim(), false).await.unwrap();
        scratch.clock.advance_ms(30 * 24 * 3600 * 1000);
        store.empty_trash(&Retention::default(), &claim().take_over(), false).await.unwrap();
        assert_eq!(store.session(id).await.unwrap().title.as_deref(), Some("WqTitleXv"));
    }
    let store = scratch.open().await;
    store.delete(victim_id, DeleteMode::Refuse, &claim().take_over(), false).await.unwrap();
    assert!(matches!(store.session(victim_id).await.unwrap_err(), Error::NotFound { .. }));
    assert_whole(&store).await;
    store.close().await.unwrap();
    assert_eq!(lies_in_files(scratch.dir.path(), &wrapped), None, "the key that was destroyed is still in the file");
    assert_hidden(scratch.dir.path(), &words);
}

#[tokio::test]
async fn deleting_a_session_destroys_its_key() {
    let scratch = encrypted();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    assert_eq!(rows_of(&scratch.path(), &["records"]).len(), 2);
    store.delete(writer.id(), DeleteMode::Refuse, &claim().take_over(), false).await.unwrap();
    assert_eq!(rows_of(&scratch.path(), &["records"]).len(), 1);
}

fn wrapped_key(path: &Path, session: SessionId) -> String {
    let sql = "SELECT value FROM records WHERE kind = 'key' AND key = ?1";
    let value: Vec<u8> = rusqlite::Connection::open(path)
        .unwrap()
        .query_row(sql, [format!("session/{session}")], |row| row.get(0))
        .unwrap();
    let value: Value = serde_json::from_slice(&value).unwrap();
    value["key"].as_str().unwrap().to_owned()
}

/// A wrapped key that still lies in a free place of the file, or in the log beside it, is not destroyed.
#[tokio::test]
async fn a_deleted_sessions_key_lies_in_no_file_any_more() {
    let scratch = encrypted();
    let store = scratch.open().await;
    let mut sessions = Vec::new();
    // So many that the pages of the records were split, emptied and joined.
    for number in 0..48 {
        let writer = create(&store).await;
        writer.append(step(number)).await.unwrap();
        sessions.push((writer.id(), wrapped_key(&scratch.path(), writer.id())));
        writer.release().await.unwrap();
    }
    let (mut gone, mut kept) = (Vec::new(), Vec::new());
    for (number, (id, key)) in sessions.into_iter().enumerate() {
        if number % 8 == 0 {
            kept.push(key);
            continue;
        }
        store.delete(id, DeleteMode::Refuse, &claim(), false).await.unwrap();
        assert_eq!(lies_in_files(scratch.dir.path(), &key), None, "right after the delete of session {number}");
        gone.push(key);
    }
    store.close().await.unwrap();
    assert!(gone.len() > 40);
    for key in &gone {
        assert_eq!(lies_in_files(scratch.dir.path(), key), None);
    }
    assert!(kept.iter().all(|key| lies_in_files(scratch.dir.path(), key).is_some()));
}

// Signed marks.

fn with_mark_key(scratch: &Scratch, key: Option<u8>) -> Options {
    let mut options = scratch.options.clone();
    options.keys.marks = key.map(|byte| MarkKey::from_bytes([byte; 32]));
    options
}

/// The same story every time but for one message: the same seed gives the same ids and keys.
async fn tell(scratch: &Scratch, key: Option<u8>, second: &str) -> (SessionId, Vec<Receipt>) {
    let store = Store::open(&scratch.url(), with_mark_key(scratch, key)).await.unwrap();
    let writer = create(&store).await;
    let mut receipts = Vec::new();
    for (n, text) in ["first", second, "third"].into_iter().enumerate() {
        let append =
            Append::new().message(user(text)).state(state(json!({ "n": n }))).mark(NewMark::new(Trigger::Step));
        receipts.push(writer.append(append).await.unwrap());
    }
    let id = writer.id();
    writer.release().await.unwrap();
    store.close().await.unwrap();
    (id, receipts)
}

#[tokio::test]
async fn a_mark_is_refused_when_it_is_not_signed_with_the_key() {
    let scratch = Scratch::new();
    let (id, receipts) = tell(&scratch, Some(5), "second").await;
    let mark = receipts[2].checkpoints[0];
    let open = async |key: Option<u8>| Store::open(&scratch.url(), with_mark_key(&scratch, key)).await;
    let store = open(Some(5)).await.unwrap();
    assert_eq!(store.load(mark).await.unwrap().state, state(json!({ "n": 2 })));
    assert_whole(&store).await;
    store.close().await.unwrap();
    let store = open(None).await.unwrap();
    assert!(store.load(mark).await.is_ok(), "without a key there is nothing to check");
    assert_whole(&store).await;
    store.close().await.unwrap();
    let store = open(Some(6)).await.unwrap();
    let error = store.load(mark).await.unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("another key"), "{error}");
    assert!(store.load_latest(id, &MarkQuery::default()).await.is_err());
    assert_eq!(store.verify().await.unwrap().problems.len(), 3);
    store.close().await.unwrap();
    // Marks that were never signed.
    let unsigned = Scratch::new();
    let (_, receipts) = tell(&unsigned, None, "second").await;
    let store = Store::open(&unsigned.url(), with_mark_key(&unsigned, Some(5))).await.unwrap();
    let error = store.load(receipts[0].checkpoints[0]).await.unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("not signed"), "{error}");
}

/// Puts columns of one store's entries into another's, and makes every checksum fit.
fn transplant(from: &Scratch, to: &Scratch, columns: &str, positions: &[Position]) {
    let db = rusqlite::Connection::open(to.path()).unwrap();
    db.execute("ATTACH ?1 AS other", [from.path().to_str().unwrap()]).unwrap();
    for at in positions {
        let key = entry_key(&to.path(), *at);
        assert_eq!(key, entry_key(&from.path(), *at));
        let changed = db.execute(&format!("UPDATE entries SET ({columns}) = (SELECT {columns} FROM other.entries o WHERE o.id = entries.id) WHERE id = {key}"), []).unwrap();
        assert_eq!(changed, 1);
        make_sum_fit(&db, *at, key);
    }
}

fn all_positions(receipts: &[Receipt]) -> Vec<Position> {
    let end = receipts.last().unwrap().length;
    (0..end).map(|seq| Position { seq: Seq(seq), ..receipts[0].first }).collect()
}

#[tokio::test]
async fn a_log_written_anew_by_someone_without_the_key_is_refused() {
    let (scratch, forged) = (Scratch::new(), Scratch::new());
    let (id, receipts) = tell(&scratch, Some(5), "pay 10").await;
    let (_, same) = tell(&forged, None, "pay 99").await;
    assert_eq!(receipts, same, "the forger knows everything but the key");
    // Everything but the signatures: a chain that fits itself.
    transplant(&forged, &scratch, "time, label, channel, text, body, refs, batch, chain", &all_positions(&receipts));
    let store = Store::open(&scratch.url(), with_mark_key(&scratch, None)).await.unwrap();
    assert_eq!(texts(&store, id).await, ["first", "pay 99", "third"]);
    store.reindex().await.unwrap();
    assert_whole(&store).await;
    store.close().await.unwrap();
    let store = Store::open(&scratch.url(), with_mark_key(&scratch, Some(5))).await.unwrap();
    assert!(store.load(receipts[0].checkpoints[0]).await.is_ok(), "what comes before it is as it was");
    for receipt in &receipts[1..] {
        let error = store.load(receipt.checkpoints[0]).await.unwrap_err();
        assert!(error.is_damage() && error.to_string().contains("changed"), "{error}");
    }
    let loaded = store.load_latest(id, &MarkQuery::default()).await.unwrap();
    assert_eq!((loaded.mark.checkpoint.id, loaded.skipped.len()), (receipts[0].checkpoints[0], 2));
    let problems = store.verify().await.unwrap().problems;
    assert_eq!(problems.iter().filter(|problem| !problem.derived).count(), 2, "{problems:?}");
}

#[tokio::test]
async fn an_entry_changed_in_place_is_found_by_the_chain_and_by_the_state() {
    let (scratch, forged) = (Scratch::new(), Scratch::new());
    let (_, receipts) = tell(&scratch, Some(5), "pay 10").await;
    tell(&forged, None, "pay 99").await;
    let message = receipts[1].first;
    transplant(&forged, &scratch, "text, body", &[message]);
    let store = Store::open(&scratch.url(), with_mark_key(&scratch, Some(5))).await.unwrap();
    let problems = store.verify().await.unwrap().problems;
    assert!(
        problems.iter().any(|problem| !problem.derived && problem.what.contains("chain is broken")),
        "{problems:?}"
    );
    store.close().await.unwrap();
    // A state change: the mark itself refuses.
    let other = Scratch::new();
    {
        let store = Store::open(&other.url(), with_mark_key(&other, None)).await.unwrap();
        let writer = create(&store).await;
        for n in [0, 77, 2] {
            writer
                .append(
                    Append::new().message(user("x")).state(state(json!({ "n": n }))).mark(NewMark::new(Trigger::Step)),
                )
                .await
                .unwrap();
        }
        store.close().await.unwrap();
    }
    let change = Position { seq: message.seq.next(), ..message };
    transplant(&other, &scratch, "body", &[change]);
    // A whole state beside the log would stand in for what was changed.
    sql(&scratch.path(), "DELETE FROM keyframes");
    let store = Store::open(&scratch.url(), with_mark_key(&scratch, Some(5))).await.unwrap();
    let error = store.load(receipts[1].checkpoints[0]).await.unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("hash"), "{error}");
}

#[tokio::test]
async fn marks_stay_signed_through_everything_the_store_itself_does() {
    let mut scratch = Scratch::new();
    scratch.options.keys.marks = Some(MarkKey::from_bytes([5; 32]));
    let store = scratch.open().await;
    let writer = create(&store).await;
    let mut receipts = Vec::new();
    for n in 0..8 {
        let append = Append::new()
            .message(user("the word is Swordfish"))
            .state(state(json!({ "n": n, "x": noise(n, 1200), "w": "Swordfish" })));
        receipts.push(writer.append(append.mark(NewMark::new(Trigger::Step))).await.unwrap());
        scratch.clock.advance_ms(10);
    }
    let branch = store.branch(last(&receipts[3]), NewSession::default(), &claim()).await.unwrap();
    branch.append(step(1)).await.unwrap();
    for n in [1, 2, 5] {
        writer.trash_mark(receipts[n].checkpoints[0]).await.unwrap();
    }
    scratch.clock.advance_ms(10);
    writer.purge(Timestamp(i64::MAX)).await.unwrap();
    writer.restore(last(&receipts[6])).await.unwrap();
    let redactor = milepost_store::Redactor::literal("Swordfish", "***").unwrap();
    store.redact(&redactor, "", &claim().take_over(), false).await.unwrap();
    assert_whole(&store).await;
    for n in [0, 3, 4, 6, 7] {
        assert_eq!(store.load(receipts[n].checkpoints[0]).await.unwrap().state.section("w"), Some(&json!("***")));
    }
}

// Signed heads.

#[tokio::test]
async fn a_signed_head_holds_while_the_log_grows() {
    let scratch = Scratch::new();
    let (id, receipts) = tell(&scratch, None, "second").await;
    let key = SigningKey::from_bytes(&[3; 32]);
    let store = scratch.open().await;
    let head = store.sign_head(id, &key).await.unwrap();
    assert_eq!((head.session, head.length), (id, receipts[2].length));
    let head: SignedHead = serde_json::from_str(&serde_json::to_string(&head).unwrap()).unwrap();
    let check = || async { store.check_head(&head, &key.verifying_key()).await };
    check().await.unwrap();
    let writer = store.write(id, &claim()).await.unwrap();
    writer.append(step(4)).await.unwrap();
    check().await.unwrap();
    writer.trash_mark(receipts[1].checkpoints[0]).await.unwrap();
    scratch.clock.advance_ms(1);
    writer.purge(Timestamp(i64::MAX)).await.unwrap();
    check().await.unwrap();
    writer.restore(last(&receipts[0])).await.unwrap();
    writer.append(step(5)).await.unwrap();
    check().await.unwrap();
    let redactor = milepost_store::Redactor::literal("second", "***").unwrap();
    assert_eq!(store.redact(&redactor, "", &claim().take_over(), false).await.unwrap().entries, 1);
    check().await.unwrap();
    store.reindex().await.unwrap();
    check().await.unwrap();
    store.delete(id, DeleteMode::Refuse, &claim().take_over(), false).await.unwrap();
    assert!(check().await.unwrap_err().is_damage());
}

#[tokio::test]
async fn a_signed_head_that_was_changed_is_refused() {
    let scratch = Scratch::new();
    let (id, receipts) = tell(&scratch, None, "second").await;
    let key = SigningKey::from_bytes(&[3; 32]);
    let store = scratch.open().await;
    let head = store.sign_head(id, &key).await.unwrap();
    let other = SigningKey::from_bytes(&[4; 32]);
    assert!(head.is_signed_by(&key.verifying_key()) && !head.is_signed_by(&other.verifying_key()));
    assert!(store.check_head(&head, &other.verifying_key()).await.is_err());
    let timeline = create(&store).await.session().await.head;
    let changes: Vec<(&str, SignedHead)> = vec![
        ("version", SignedHead { version: 0, ..head.clone() }),
        ("newer version", SignedHead { version: 2, ..head.clone() }),
        ("session", SignedHead { session: store.source().id(), ..head.clone() }),
        ("timeline", SignedHead { timeline, ..head.clone() }),
        ("length", SignedHead { length: receipts[1].length, ..head.clone() }),
        ("chain", SignedHead { chain: Hash([9; 32]), ..head.clone() }),
        ("time", SignedHead { time: head.time.plus_ms(1), ..head.clone() }),
        ("key", SignedHead { key: Hash(other.verifying_key().to_bytes()), ..head.clone() }),
        ("signature", SignedHead { signature: [head.signature[1], head.signature[0]], ..head.clone() }),
    ];
    for (what, changed) in changes {
        let error = store.check_head(&changed, &key.verifying_key()).await;
        assert!(error.is_err(), "a changed {what} was taken");
        assert!(what == "newer version" || matches!(error, Err(Error::Invalid { .. })), "{what}: {error:?}");
    }
    store.check_head(&head, &key.verifying_key()).await.unwrap();
}

#[tokio::test]
async fn a_log_that_was_cut_or_written_anew_does_not_match_its_signed_head() {
    let key = SigningKey::from_bytes(&[3; 32]);
    for attack in ["cut", "cut and noted", "changed in place", "written anew", "moved in time"] {
        let (scratch, forged) = (Scratch::new(), Scratch::new());
        let (id, receipts) = tell(&scratch, None, "pay 10").await;
        tell(&forged, None, "pay 99").await;
        let store = scratch.open().await;
        let head = store.sign_head(id, &key).await.unwrap();
        store.close().await.unwrap();
        let (path, cut) = (scratch.path(), entry_key(&scratch.path(), receipts[2].first));
        match attack {
            "cut" => assert_eq!(sql(&path, &format!("DELETE FROM entries WHERE id >= {cut}")), 3),
            "cut and noted" => {
                sql(&path, &format!("DELETE FROM entries WHERE id >= {cut}"));
                sql(&path, &format!("DELETE FROM marks WHERE id >= {cut}"));
                sql(&path, &format!("UPDATE sessions SET length = {}", receipts[1].length));
            }
            "changed in place" => transplant(&forged, &scratch, "text, body", &[receipts[1].first]),
            "written anew" => transplant(&forged, &scratch, "text, body, batch, chain, mac", &all_positions(&receipts)),
            _ => {
                let db = rusqlite::Connection::open(&path).unwrap();
                let key = entry_key(&path, receipts[1].first);
                db.execute("UPDATE entries SET time = time - 5000 WHERE id = ?1", [key]).unwrap();
                make_sum_fit(&db, receipts[1].first, key);
            }
        }
        let mut options = scratch.options.clone();
        options.source = None;
        let store = Store::open(&url(&path), options).await;
        let Ok(store) = store else { continue };
        let error = store.check_head(&head, &key.verifying_key()).await;
        assert!(matches!(&error, Err(error) if error.is_damage()), "{attack} was not noticed: {error:?}");
        if attack == "changed in place" {
            let found = store.messages(id, &MessageQuery::default()).await.unwrap();
            assert_eq!(found[1].message.text(), "pay 99", "the attack itself works");
        }
    }
}

#[tokio::test]
async fn payloads_cannot_be_moved_within_an_encrypted_workspace() {
    let scratch = encrypted();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let first = writer.append(Append::new().message(user("from the first place"))).await.unwrap().first;
    let second = writer.append(Append::new().message(user("from the other place"))).await.unwrap().first;
    store.close().await.unwrap();
    let db = rusqlite::Connection::open(scratch.path()).unwrap();
    let (from, to) = (entry_key(&scratch.path(), second), entry_key(&scratch.path(), first));
    db.execute("UPDATE entries SET body = (SELECT body FROM entries WHERE id = ?1) WHERE id = ?2", [from, to]).unwrap();
    make_sum_fit(&db, first, to);
    drop(db);
    let store = scratch.open().await;
    let error = store.messages(writer.id(), &MessageQuery::default()).await.unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("moved"), "{error}");
    let entries = store.entries(writer.id(), Seq(2), Seq::MAX).await.unwrap();
    assert!(matches!(&entries[0].body, Some(Body::Message(message)) if message.text() == "from the other place"));
}

/// What an attacker with the file and the source would do: makes an entry's checksum fit what is stored.
pub fn make_sum_fit(db: &rusqlite::Connection, at: Position, key: i64) {
    let sum = db
        .query_row("SELECT version, kind, time, label, channel, text, body, refs, batch, chain, mac FROM entries WHERE id = ?1", [key], |row| {
            let mut hasher = Xxh3::with_seed(at.seq.0);
            let mut field = |bytes: Option<&[u8]>| {
                hasher.update(&bytes.map_or(u64::MAX, |b| b.len() as u64).to_le_bytes());
                hasher.update(bytes.unwrap_or_default());
            };
            let text = |column: usize| row.get::<_, Option<String>>(column);
            let blob = |column: usize| row.get::<_, Option<Vec<u8>>>(column);
            field(Some(&at.timeline.to_bytes()));
            field(Some(&[row.get::<_, u8>(0)?, row.get::<_, u8>(1)?]));
            field(Some(&row.get::<_, i64>(2)?.to_le_bytes()));
            field(text(3)?.as_deref().map(str::as_bytes));
            field(text(4)?.as_deref().map(str::as_bytes));
            field(text(5)?.as_deref().map(str::as_bytes));
            field(blob(6)?.as_deref());
            field(Some(&blob(7)?.unwrap_or_default()));
            field(blob(8)?.as_deref());
            field(blob(9)?.as_deref());
            field(blob(10)?.as_deref());
            Ok(hasher.digest())
        })
        .unwrap();
    db.execute("UPDATE entries SET sum = ?2 WHERE id = ?1", rusqlite::params![key, sum as i64]).unwrap();
}
