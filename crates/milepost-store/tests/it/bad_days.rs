//! Bad input and bad days: each gives a typed error that names the thing and says what to do, and loses nothing that
//! was acknowledged.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use milepost_model::{
    BatchId, Channel, CheckpointId, EntryKind, Event, Id, Message, OwnerId, Seq, SessionId, SessionPatch, TimelineId,
    Timestamp, Trigger, WorkspaceId,
};
use milepost_store::backend::{Batch, Kinds, Order, Range, Rewrite};
use milepost_store::{
    Append, Claim, Conflict, Error, KeyError, MarkQuery, MasterKey, MessageQuery, NewMark, NewSession, Options, Store,
};
use serde_json::json;

use crate::child::told::{Told, check_whole};
use crate::child::work::Plan;
use crate::child::{Life, What, command, open};
use crate::harness::{Fault, FaultSwitch};
use crate::power::{Room, cut, images};
use crate::support::{START, Scratch, claim, create, state, step, url, user};

/// The error's text has all of these in it.
#[track_caller]
fn says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

/// Everything appended by [`step`] up to `steps` is there and can be gone on from.
async fn is_all_there(store: &Store, session: SessionId, steps: u64) {
    let messages = store.messages(session, &MessageQuery::default()).await.unwrap();
    let texts: Vec<String> = messages.iter().map(|m| m.message.text().into_owned()).collect();
    let expected: Vec<String> = (1..=steps).map(|number| format!("step {number}")).collect();
    assert_eq!(texts, expected);
    let loaded = store.load_latest(session, &MarkQuery::default()).await.unwrap();
    assert_eq!(loaded.state.pointer("/memory/step"), Some(&json!(steps)));
    assert!(loaded.skipped.is_empty());
}

// Input.

#[tokio::test]
async fn what_is_too_large_is_refused_and_the_limit_is_named() {
    let mut scratch = Scratch::new();
    let limits = &mut scratch.options.limits;
    limits.max_entry_bytes = 50_000;
    limits.max_blob_bytes = 60_000;
    limits.max_batch_entries = 5;
    limits.max_batch_bytes = 60_000;
    limits.max_record_bytes = 1000;
    limits.max_key_bytes = 20;
    limits.max_name_bytes = 30;
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();

    // Random enough not to shrink.
    let long = |bytes: usize| -> String {
        let mut text = String::new();
        let mut hash = blake3::hash(b"x");
        while text.len() < bytes {
            hash = blake3::hash(hash.as_bytes());
            text += hash.to_hex().as_str();
        }
        text.truncate(bytes);
        text
    };
    let name = long(31);
    let mark = || NewMark::new(Trigger::Manual);
    let many = (0..6).fold(Append::new(), |append, number| append.message(user(&number.to_string())));
    let wide = (0..3).fold(Append::new(), |append, number| append.message(user(&format!("{number}{}", long(49_000)))));
    let refused = [
        ("max_entry_bytes", writer.append(Append::new().message(user(&long(50_001)))).await.map(drop)),
        (
            "max_entry_bytes",
            writer.append(Append::new().state(state(json!({ "memory": long(50_001) })))).await.map(drop),
        ),
        ("max_blob_bytes", writer.put_blob(&vec![7; 60_001]).await.map(drop)),
        ("max_batch_entries", writer.append(many).await.map(drop)),
        ("max_batch_bytes", writer.append(wide).await.map(drop)),
        ("max_record_bytes", store.put_record("kind", "key", None, None, &[7; 1001]).await.map(drop)),
        ("max_key_bytes", store.put_record("kind", &long(21), None, None, b"").await.map(drop)),
        ("max_key_bytes", store.put_record(&long(21), "key", None, None, b"").await.map(drop)),
        ("max_name_bytes", writer.append(Append::new().mark(mark().label(&name))).await.map(drop)),
        (
            "max_name_bytes",
            writer.append(Append::new().mark(NewMark::new(Trigger::Other(name.clone())))).await.map(drop),
        ),
        ("max_name_bytes", writer.append(Append::new().patch(SessionPatch::new().title(&name))).await.map(drop)),
        ("max_name_bytes", writer.append(Append::new().event(Event::new(&name, json!({})))).await.map(drop)),
        ("max_name_bytes", store.write(writer.id(), &Claim::new(&name)).await.map(drop)),
        (
            "max_name_bytes",
            store.create(NewSession { id: None, patch: SessionPatch::new().title(&name) }, &claim()).await.map(drop),
        ),
    ];
    for (number, (limit, outcome)) in refused.into_iter().enumerate() {
        let error = outcome.expect_err(&format!("case {number}: {limit}"));
        assert!(matches!(error, Error::TooLarge { limit: l, .. } if l == limit), "case {number}: {error}");
        says(&error, &[limit, "split it"]);
    }
    // The state is as it was, and so is the rest.
    writer.append(step(2)).await.unwrap();
    is_all_there(&store, writer.id(), 2).await;
    check_whole(&store).await.unwrap();
}

#[test]
fn ids_are_never_paths_or_anything_but_ids() {
    fn refuses<T: Id>() {
        let good = T::from_bits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef).to_string();
        assert!(good.parse::<T>().is_ok());
        let long = "a".repeat(10_000);
        let tricks = [
            "",
            "/",
            ".",
            "..",
            "../../etc/passwd",
            "\0",
            " ",
            T::PREFIX,
            &long,
            &format!("{good}/x"),
            &format!("{good}\0"),
            &format!("{good} "),
            &format!(" {good}"),
            &format!("{good}0"),
            &good[..good.len() - 1],
            &good.to_uppercase(),
            &good.replacen('_', "-", 1),
            &format!("{}{}", T::PREFIX, "../".repeat(9)),
            &format!("{}{}", T::PREFIX, "8".repeat(26)),
            &format!("{}{}", T::PREFIX, "é".repeat(13)),
            &format!("xxx_{}", &good[4..]),
            &format!("{}{long}", T::PREFIX),
            &good.replace('1', "l"),
            "'; DROP TABLE entries; --",
        ];
        for trick in tricks {
            let error = trick.parse::<T>().err().unwrap_or_else(|| panic!("{trick:?} passes as an id"));
            let text = Error::from(error).to_string();
            assert!(text.contains(T::PREFIX) && text.contains("expected") && text.len() < 400, "{text}");
            assert!(!text.contains('\0'), "a NUL is shown, not sent on: {text:?}");
        }
    }
    refuses::<SessionId>();
    refuses::<TimelineId>();
    refuses::<CheckpointId>();
    refuses::<BatchId>();
    refuses::<OwnerId>();
    let long = "a".repeat(65);
    for trick in
        ["", ".", "..", "../x", "a/b", "a\\b", "A", "a b", "a\0b", "-a", "_a", "é", "a'b", &long, &"a".repeat(10_000)]
    {
        let error = WorkspaceId::new(trick).err().unwrap_or_else(|| panic!("{trick:?} passes as a workspace"));
        let text = Error::from(error).to_string();
        assert!(text.contains("1 to 64 characters") && text.len() < 400, "{text}");
    }
}

#[tokio::test]
async fn nul_is_refused_in_names_and_kept_in_texts() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let refused = [
        writer.append(Append::new().patch(SessionPatch::new().title("a\0b"))).await.map(drop),
        writer.append(Append::new().patch(SessionPatch::new().tags(["a\0b"]))).await.map(drop),
        writer.append(Append::new().mark(NewMark::new(Trigger::Manual).label("a\0b"))).await.map(drop),
        writer.append(Append::new().mark(NewMark::new(Trigger::Other("a\0b".into())))).await.map(drop),
        writer.append(Append::new().event(Event::new("a\0b", json!({})))).await.map(drop),
        store.put_record("a\0b", "key", None, None, b"").await.map(drop),
        store.put_record("kind", "a\0b", None, None, b"").await.map(drop),
        store.write(writer.id(), &Claim::new("a\0b")).await.map(drop),
        store.create(NewSession { id: None, patch: SessionPatch::new().title("a\0b") }, &claim()).await.map(drop),
    ];
    for (number, outcome) in refused.into_iter().enumerate() {
        let error = outcome.expect_err(&format!("case {number}"));
        assert!(matches!(error, Error::Invalid { .. }), "case {number}: {error}");
        says(&error, &["NUL", "remove it"]);
    }
    assert!(Channel::new("a\0b").unwrap_err().to_string().contains("channel name"));
    // What was said is said: a NUL in it is text like any other.
    let texts = ["\0", "a\0b", "\0\0\0 and \u{10ffff} and \u{feff}", "end\0"];
    for text in texts {
        let memory = json!({ "memory": { text: text } });
        writer.append(Append::new().message(user(text)).state(state(memory.clone()))).await.unwrap();
        let last = MessageQuery { last: Some(1), ..MessageQuery::default() };
        assert_eq!(store.messages(writer.id(), &last).await.unwrap()[0].message.text(), text);
        assert_eq!(store.state(writer.id()).await.unwrap().into_value(), memory);
    }
    store.put_record("kind", "key", None, None, b"\0").await.unwrap();
    assert_eq!(store.record("kind", "key").await.unwrap().unwrap().value, b"\0");
    check_whole(&store).await.unwrap();
}

#[test]
fn json_that_is_no_message_is_an_error_that_says_where() {
    let bad: [&[u8]; 10] = [
        br#"{"role":"user","content":"\ud800"}"#,
        br#"{"role":"user","content":"\udc00 x"}"#,
        br#"{"role":"user","content":"\ud800\u0041"}"#,
        b"{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}",
        b"{\"role\":\"user\",\"content\":\"\xff\"}",
        br#"{"role":"user","content":"a"} trailing"#,
        br#"{"content":"no role"}"#,
        br#"{"role":7,"content":"a"}"#,
        b"",
        b"[",
    ];
    for json in bad {
        let error = Message::from_json(json).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("not a message") && text.contains("line"), "{text}");
        assert!(matches!(Error::from(error), Error::Invalid { .. }));
    }
    // Nested too deep for any reader: an error, not a stack overflow.
    let deep = format!(r#"{{"role":"user","content":[{}1{}]}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(Message::from_json(deep.as_bytes()).is_err());
    assert!(Message::from_json(r#"{"role":"user","content":"\ud83d\ude00 \u0000"}"#.as_bytes()).is_ok());
}

// Versions and files that are not ours.

fn sqlite(path: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(path).unwrap()
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_left_alone() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    store.close().await.unwrap();
    sqlite(&scratch.path()).execute_batch("PRAGMA user_version = 99").unwrap();
    let before = std::fs::read(scratch.path()).unwrap();
    let error = Store::open(&scratch.url(), scratch.options.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error}");
    says(&error, &[&scratch.path().display().to_string(), "99", "use a newer Milepost", "nothing was changed"]);
    assert!(before == std::fs::read(scratch.path()).unwrap());
    sqlite(&scratch.path()).execute_batch("PRAGMA user_version = 1").unwrap();
    is_all_there(&scratch.open().await, writer.id(), 1).await;
}

#[tokio::test]
async fn an_entry_of_an_unknown_version_is_named_and_older_checkpoints_still_load() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for number in 1..=3 {
        writer.append(step(number)).await.unwrap();
    }
    store.close().await.unwrap();
    // The newest mark's entry; its checksum does not fit any more, as it would not after a flipped bit.
    sqlite(&scratch.path())
        .execute_batch("UPDATE entries SET version = 200 WHERE id = (SELECT max(id) FROM entries)")
        .unwrap();
    let store = scratch.open().await;
    let loaded = store.load_latest(writer.id(), &MarkQuery::default()).await.unwrap();
    assert_eq!(loaded.state.pointer("/memory/step"), Some(&json!(2)));
    assert_eq!(loaded.skipped.len(), 1);
    assert!(loaded.skipped[0].why.contains("damaged"), "{}", loaded.skipped[0].why);
    assert!(!store.verify().await.unwrap().is_whole());
}

#[tokio::test]
async fn files_that_are_no_store_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let try_open = async |path: &Path| Store::open(&url(path), Options::default()).await.map(drop);
    let named = |name: &str| dir.path().join(name);

    let other = named("other.db");
    sqlite(&other).execute_batch("CREATE TABLE notes (text); INSERT INTO notes VALUES ('mine')").unwrap();
    let marked = named("marked.db");
    sqlite(&marked).execute_batch("PRAGMA application_id = 7; PRAGMA user_version = 1; CREATE TABLE x (y)").unwrap();
    let garbage = named("garbage");
    std::fs::write(&garbage, vec![0xa5u8; 100_000]).unwrap();
    let text = named("text");
    std::fs::write(&text, "Dear diary,\n").unwrap();
    let zeros = named("zeros");
    std::fs::write(&zeros, vec![0u8; 8192]).unwrap();
    for path in [other, marked, garbage, text, zeros] {
        let before = std::fs::read(&path).unwrap();
        let error = try_open(&path).await.expect_err(&path.display().to_string());
        assert!(matches!(error, Error::Invalid { .. } | Error::Corrupt { .. }), "{error:?}");
        says(&error, &[&path.display().to_string()]);
        assert!(before == std::fs::read(&path).unwrap(), "{} was changed", path.display());
    }
    let folder = named("folder");
    std::fs::create_dir(&folder).unwrap();
    let missing = named("no/such/folder/milepost.db");
    for path in [folder, missing, PathBuf::from("/dev/null/x"), PathBuf::from("/proc/milepost.db")] {
        let error = try_open(&path).await.expect_err(&path.display().to_string());
        assert!(matches!(error, Error::Invalid { .. } | Error::ReadOnly { .. }), "{error:?}");
        says(&error, &[&path.display().to_string(), "must"]);
    }
    for odd in ["", "sqlite:", "sqlite://", "postgres", "http://x/y", "milepost.db", "sqlite:a\0b"] {
        let error = Store::open(odd, Options::default()).await.map(drop).expect_err(odd);
        assert!(matches!(error, Error::Invalid { .. }), "{odd:?}: {error:?}");
    }
}

/// A store file cut at any length, and one with a page of garbage: refused or read in part, never believed to be whole.
#[tokio::test]
async fn truncated_stores_are_noticed() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for number in 1..=40 {
        writer.append(step(number).message(user(&"x".repeat(3000)))).await.unwrap();
    }
    store.close().await.unwrap();
    let whole = std::fs::read(scratch.path()).unwrap();
    let cut = scratch.dir.path().join("cut.db");
    let mut noticed = [0; 3];
    for length in (1..whole.len()).step_by(1237).chain((4096..whole.len()).step_by(4096)) {
        for leftover in ["cut.db-wal", "cut.db-shm"] {
            let _ = std::fs::remove_file(scratch.dir.path().join(leftover));
        }
        std::fs::write(&cut, &whole[..length]).unwrap();
        match Store::open(&url(&cut), scratch.options.clone()).await {
            Err(error) => {
                assert!(matches!(error, Error::Corrupt { .. } | Error::Invalid { .. }), "{length}: {error:?}");
                noticed[0] += 1;
            }
            Ok(store) => match store.messages(writer.id(), &MessageQuery::default()).await {
                Err(error) => {
                    assert!(error.is_damage() || matches!(error, Error::NotFound { .. }), "{length}: {error:?}");
                    noticed[1] += 1;
                }
                Ok(_) => {
                    let found = store.verify().await.unwrap();
                    assert!(!found.is_whole(), "{length} of {} bytes pass as whole", whole.len());
                    noticed[2] += 1;
                }
            },
        }
    }
    println!("truncated: {} refused at open, {} when read, {} by verify", noticed[0], noticed[1], noticed[2]);
}

// Keys.

#[tokio::test]
async fn a_wrong_a_missing_and_an_unneeded_key_are_told_apart() {
    let scratch = Scratch::new();
    let with = |byte: u8| {
        let mut options = scratch.options.clone();
        options.keys.master = Some(MasterKey::from_bytes([byte; 32]));
        options
    };
    let store = Store::open(&scratch.url(), with(1)).await.unwrap();
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    store.close().await.unwrap();

    let error = Store::open(&scratch.url(), with(2)).await.unwrap_err();
    assert!(matches!(error, Error::Key(KeyError::Wrong { .. })), "{error}");
    says(
        &error,
        &["default", "check MILEPOST_KEY", "nothing was changed", &MasterKey::from_bytes([1; 32]).fingerprint()],
    );
    let error = scratch_open(&scratch, scratch.options.clone()).await.unwrap_err();
    assert!(matches!(error, Error::Key(KeyError::Missing { .. })), "{error}");
    says(&error, &["default", "set MILEPOST_KEY", &MasterKey::from_bytes([1; 32]).fingerprint()]);
    let store = Store::open(&scratch.url(), with(1)).await.unwrap();
    is_all_there(&store, writer.id(), 1).await;

    let plain = Scratch::new();
    let store = plain.open().await;
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    store.close().await.unwrap();
    let error = Store::open(&plain.url(), with(1)).await.unwrap_err();
    assert!(matches!(error, Error::Key(KeyError::NotEncrypted { .. })), "{error}");
    says(&error, &["default", "open this one without a key"]);
    is_all_there(&plain.open().await, writer.id(), 1).await;

    for (text, why) in [("", "empty"), ("abc", "base64"), (&"0".repeat(63), "bytes"), ("AAAA", "3 bytes instead of 32")]
    {
        let error = MasterKey::parse(text).unwrap_err();
        assert!(matches!(error, Error::Key(KeyError::Malformed { .. })), "{text:?}: {error}");
        says(&error, &[why, "64 digits"]);
        assert!(text.is_empty() || text.len() < 5 || !error.to_string().contains(text), "a key is not shown: {error}");
    }
}

async fn scratch_open(scratch: &Scratch, options: Options) -> milepost_store::Result<Store> {
    Store::open(&scratch.url(), options).await
}

// Leases, lengths, clocks.

#[tokio::test]
async fn an_expired_lease_is_taken_and_the_late_writer_is_told_by_whom() {
    let mut scratch = Scratch::new();
    scratch.options.lease_ttl_ms = 1000;
    let store = scratch.open().await;
    let late = store.create(NewSession::default(), &Claim::new("the first")).await.unwrap();
    late.append(step(1)).await.unwrap();
    let held = store.write(late.id(), &Claim::new("the second")).await.map(drop).unwrap_err();
    assert!(matches!(held, Error::Held { .. }), "{held}");
    says(&held, &[&late.id().to_string(), "the first", "take it over"]);

    scratch.clock.advance_ms(1001);
    let second = store.write(late.id(), &Claim::new("the second")).await.unwrap();
    second.append(step(2)).await.unwrap();
    for outcome in [late.append(step(9)).await.map(drop), late.renew().await] {
        let fenced = outcome.unwrap_err();
        assert!(matches!(fenced, Error::Fenced { .. }), "{fenced}");
        says(&fenced, &[&late.id().to_string(), "the second", "stop"]);
    }
    is_all_there(&store, late.id(), 2).await;
    second.append(step(3)).await.unwrap();
    is_all_there(&store, late.id(), 3).await;
}

/// A raw append with another length than the timeline has is refused, whole.
#[tokio::test]
async fn a_wrong_length_is_a_conflict_that_names_both() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let receipt = writer.append(step(1)).await.unwrap();
    let (backend, workspace) = (store.backend(), store.workspace());
    let timeline = receipt.first.timeline;
    let range = Range {
        timeline,
        from: Seq(0),
        to: Seq(100),
        kinds: Kinds::only(EntryKind::Message),
        channel: None,
        order: Order::Forward,
        limit: 1,
    };
    let mut entry = backend.read(workspace, range).await.unwrap()[0].1.clone();
    entry.batch = None;
    for expected in [0, receipt.length - 1, receipt.length + 1, u64::from(u32::MAX) + 7] {
        let batch = Batch {
            session: writer.id(),
            timeline,
            expected,
            epoch: Some(writer.epoch().await),
            renew_ms: 0,
            holder: None,
            open: None,
            entries: vec![entry.clone()],
            blobs: Vec::new(),
            row: None,
            marks: Vec::new(),
            keyframes: Vec::new(),
            rewrite: Rewrite::default(),
        };
        let error = backend.append(workspace, batch).await.unwrap_err();
        let Error::Conflict(Conflict::Length { actual, .. }) = &error else { panic!("{expected}: {error}") };
        assert_eq!(*actual, receipt.length);
        says(&error, &[&timeline.to_string(), &expected.to_string(), "reload the session"]);
    }
    writer.append(step(2)).await.unwrap();
    is_all_there(&store, writer.id(), 2).await;
    check_whole(&store).await.unwrap();
}

#[tokio::test]
async fn a_clock_that_steps_back_a_little_is_smoothed_and_a_lot_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for number in 1..=10 {
        scratch.clock.set(Timestamp(START.0 - number * 60_000));
        writer.append(step(number as u64)).await.unwrap();
    }
    let entries = store.entries(writer.id(), Seq(0), Seq(u64::MAX)).await.unwrap();
    assert!(entries.is_sorted_by_key(|entry| entry.time), "time goes back within a session");
    writer.release().await.unwrap();

    scratch.clock.set(Timestamp(START.0 - 25 * 3600 * 1000));
    let id = entries[0].at;
    let session = store.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let error = store.write(session, &claim()).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::ClockBack { .. }), "{error} {id}");
    says(&error, &[&session.to_string(), "2025-12-30T23:00:00", "2026-01-01T00:00:00", "set the clock right"]);
    is_all_there(&store, session, 10).await;
    scratch.clock.set(START);
    let writer = store.write(session, &claim()).await.unwrap();
    writer.append(step(11)).await.unwrap();
    is_all_there(&store, session, 11).await;
    check_whole(&store).await.unwrap();
}

// Disks.

/// A small file system of its own; none where mounting is not permitted.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let done = mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"], dir.path());
        if !done {
            println!("skipped: mounting is not permitted here");
        }
        done.then_some(Self(dir))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("milepost.db")
    }

    fn remount(&self, mode: &str) {
        assert!(mount(&["-o", &format!("remount,{mode}")], self.0.path()), "remount {mode}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn mount(args: &[&str], at: &Path) -> bool {
    let output = Command::new("mount").args(args).arg(at).output();
    output.is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_full_disk_refuses_whole_appends_and_goes_on_when_there_is_space() {
    let Some(disk) = SmallDisk::new("2m") else { return };
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 600_000]).unwrap();
    let store = open(&disk.path(), Options::default()).await.unwrap();
    let writer = create(&store).await;
    let mut steps = 0;
    let error = loop {
        match writer.append(step(steps + 1).event(Event::new("filler", json!({ "x": noise(steps, 30_000) })))).await {
            Ok(_) => steps += 1,
            Err(error) => break error,
        }
        assert!(steps < 1000, "the disk does not fill");
    };
    println!("full after {steps} steps: {error}");
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
    says(&error, &["no space", "free space"]);
    // Still full: still an error, still readable, nothing half-written.
    for _ in 0..3 {
        let again = writer.append(step(steps + 1).event(Event::new("filler", json!({ "x": noise(1, 60_000) })))).await;
        assert!(matches!(again, Err(Error::NoSpace { .. })), "{again:?}");
    }
    is_all_there(&store, writer.id(), steps).await;
    std::fs::remove_file(&ballast).unwrap();
    writer.append(step(steps + 1)).await.unwrap();
    is_all_there(&store, writer.id(), steps + 1).await;
    check_whole(&store).await.unwrap();
    store.close().await.unwrap();
    let store = open(&disk.path(), Options::default()).await.unwrap();
    is_all_there(&store, writer.id(), steps + 1).await;
}

fn noise(seed: u64, bytes: usize) -> String {
    let mut rng = crate::harness::Rng::new(seed);
    (0..bytes / 16).map(|_| format!("{:016x}", rng.next())).collect()
}

#[tokio::test]
async fn a_read_only_disk_is_named_as_such() {
    let Some(disk) = SmallDisk::new("4m") else { return };
    let store = open(&disk.path(), Options::default()).await.unwrap();
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    store.close().await.unwrap();
    drop((store, disk.remount("ro")));
    match open(&disk.path(), Options::default()).await {
        Err(error) => {
            println!("read-only: {error}");
            assert!(matches!(error, Error::ReadOnly { .. } | Error::Invalid { .. }), "{error:?}");
            says(&error, &[&disk.path().display().to_string(), "writable"]);
        }
        Ok(store) => {
            is_all_there(&store, writer.id(), 1).await;
            let error = store.create(NewSession::default(), &claim()).await.map(drop).unwrap_err();
            assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
            drop(store);
        }
    }
    let error = open(&disk.0.path().join("new.db"), Options::default()).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. } | Error::Invalid { .. }), "{error:?}");
    says(&error, &["new.db", "writable"]);
    disk.remount("rw");
    let store = open(&disk.path(), Options::default()).await.unwrap();
    is_all_there(&store, writer.id(), 1).await;
    store.close().await.unwrap();
}

/// A child works while its disk fails and recovers; it goes on by itself, and what it is told afterwards is true. Where the
/// machine lets this process wait, the child may be done before its disk fails: then another one has more to do.
fn work_through(seed: u64, faults: &[Fault]) -> (Room, Told, crate::harness::Trace) {
    let tries = [60, 240, 960, 3840];
    let done = tries.into_iter().find_map(|steps| {
        let room = Room::new();
        let (told, trace) = work_so_long(&room, seed, faults, steps)?;
        Some((room, told, trace))
    });
    done.unwrap_or_else(|| panic!("the child was always done before {faults:?}"))
}

/// None when the child was done before its disk had failed as often as it should.
fn work_so_long(room: &Room, seed: u64, faults: &[Fault], steps: u64) -> Option<(Told, crate::harness::Trace)> {
    let switch = FaultSwitch::new(&room.dir.path().join("switch")).unwrap();
    let plan = Plan { stubborn: true, ..Plan::steps(2, steps) };
    let mut command = command(&room.job(seed, What::Work(plan)));
    switch.arm(&mut command);
    let mut recording = room.start(&mut command);
    let mut voice = Listener::of(&mut recording);
    let mut goes_on = true;
    for fault in faults {
        goes_on = goes_on && voice.hears("ack", 8);
        switch.on(&[*fault]).unwrap();
        goes_on = goes_on && voice.hears("fail", 1);
        switch.off().unwrap();
    }
    goes_on = goes_on && voice.hears("ack", 8);
    while voice.next().is_some() {}
    let told = Told::hear_all(&voice.heard);
    let trace = recording.finish().unwrap();
    assert!(trace.status().success(), "the child ended with {}", trace.status());
    goes_on.then_some((told, trace))
}

/// The lines of a recorded child.
struct Listener {
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
    heard: Vec<String>,
}

impl Listener {
    fn of(recording: &mut crate::harness::Recording) -> Self {
        use std::io::BufRead;
        let output = recording.child.stdout.take().unwrap();
        Self { lines: std::io::BufReader::new(output).lines(), heard: Vec::new() }
    }

    fn next(&mut self) -> Option<String> {
        let line = self.lines.next()?.unwrap();
        self.heard.push(line.clone());
        Some(line)
    }

    /// Waits until the child has said so that often; false when it ended before.
    fn hears(&mut self, start: &str, mut times: usize) -> bool {
        while times > 0 {
            let Some(line) = self.next() else { return false };
            times -= usize::from(line.starts_with(start));
        }
        true
    }
}

#[test]
fn failing_syncs_and_full_disks_lose_nothing_acknowledged_before_or_after() {
    let begun = Instant::now();
    let (mut count, mut failures, mut acks) = (0, 0, 0);
    let days: [&[Fault]; 5] = [
        &[Fault::Fsync(1), Fault::Fsync(1), Fault::Fsync(2)],
        &[Fault::FsyncFrom(1), Fault::FsyncFrom(1)],
        &[Fault::WriteNoSpace(1), Fault::WriteNoSpaceFrom(1), Fault::WriteNoSpaceFrom(3)],
        &[Fault::WriteEio(1), Fault::WriteEioFrom(1), Fault::WriteEioFrom(4)],
        &[Fault::Fsync(1), Fault::WriteNoSpaceFrom(2), Fault::WriteEioFrom(1), Fault::FsyncFrom(1)],
    ];
    for (seed, faults) in days.iter().enumerate() {
        let (room, told, trace) = work_through(100 + seed as u64, faults);
        assert!(!told.failures.is_empty());
        for failure in &told.failures {
            assert!(["no space left", "failed:", "try again"].iter().any(|part| failure.contains(part)), "{failure}");
        }
        failures += told.failures.len();
        acks += told.acks.len();
        let broken = cut(&room, &trace, images(100), seed as u64);
        assert!(broken.is_empty(), "{faults:?}: {} images broke the promise, the first: {:?}", broken.len(), broken[0]);
        count += images(100);
    }
    println!(
        "{failures} failed appends, {acks} acknowledged ones, {count} images, none lost anything, in {:?}",
        begun.elapsed()
    );
}

/// A sync fails at a commit and the process dies before it can set things right. The next one finds that commit in the
/// system's memory, though the disk may not have it: it must not build on it as if it were there.
#[test]
fn a_process_that_dies_of_a_failed_sync_leaves_nothing_to_stumble_over() {
    let room = Room::new();
    let plan = |steps| What::Work(Plan { stubborn: true, ..Plan::steps(2, steps) });
    let first = Life {
        job: room.job(7, plan(60)),
        fault: Some(Fault::FsyncFrom(60).to_string()),
        killed_at: Some("fail".into()),
    };
    let second = Life { job: room.job(8, plan(25)), fault: None, killed_at: None };
    let trace = room.record(&room.job(0, What::Lives(vec![first, second])), None);
    assert!(trace.status().success());
    let told = Told::hear_all(&trace.acks());
    assert!(!told.failures.is_empty() && told.problems.is_empty(), "{told:?}");
    let broken = cut(&room, &trace, images(300), 5);
    assert!(broken.is_empty(), "{} images broke the promise, the first: {:?}", broken.len(), broken[0]);
}

/// Several appends in a row fail; once the disk is well again the same writer goes on, and the store is whole.
#[test]
fn a_writer_goes_on_after_its_disk_failed_for_a_while() {
    let room = Room::new();
    let switch = FaultSwitch::new(&room.dir.path().join("switch")).unwrap();
    // Enough that the child is not done before its disk fails, whatever else the machine does.
    let plan = Plan { stubborn: true, sessions: 1, ..Plan::steps(1, 600) };
    let mut command = command(&room.job(9, What::Work(plan)));
    switch.arm(&mut command);
    let mut recording = room.start(&mut command);
    let mut voice = Listener::of(&mut recording);
    assert!(voice.hears("ack", 3));
    switch.on(&[Fault::FsyncFrom(1)]).unwrap();
    assert!(voice.hears("fail", 4));
    switch.off().unwrap();
    assert!(voice.hears("ack", 3));
    while voice.next().is_some() {}
    let told = Told::hear_all(&voice.heard);
    assert!(recording.finish().unwrap().status().success());
    let runtime = crate::child::runtime();
    runtime.block_on(async {
        let store = open(&room.store().join("milepost.db"), Options::default()).await.unwrap();
        told.check(&store, 0).await.unwrap();
        check_whole(&store).await.unwrap();
    });
}

#[tokio::test]
async fn a_log_that_is_longer_than_what_was_written_is_no_damage() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for number in 1..=45 {
        writer.append(step(number)).await.unwrap();
    }
    // As a crash at this moment would leave it.
    let crashed = Scratch::new();
    for file in ["milepost.db", "milepost.db-wal"] {
        std::fs::copy(scratch.dir.path().join(file), crashed.dir.path().join(file)).unwrap();
    }
    let log = std::fs::read(crashed.dir.path().join("milepost.db-wal")).unwrap();
    let behind = log.iter().rev().take_while(|byte| **byte == 0).count();
    assert!(behind > 4120, "commits to come overwrite: {behind} bytes of {} are made ready", log.len());

    let again = crashed.open().await;
    is_all_there(&again, writer.id(), 45).await;
    assert!(again.verify().await.unwrap().is_whole());
    again.close().await.unwrap();
    store.close().await.unwrap();
    assert!(!scratch.dir.path().join("milepost.db-wal").exists(), "what is closed is one file");
}
