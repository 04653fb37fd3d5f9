//! Stores that are newer, damaged, encrypted, read-only, held by someone, or not there.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use milepost::Resume;
use serde_json::json;

use crate::support::{Place, Ran, text};
use crate::tour_store::{KEY, OTHER_KEY};
use crate::transcript::{Transcript, assert_seen};

#[test]
fn a_store_that_cannot_be_opened_says_why_and_is_left_as_it_is() {
    let place = Place::new();
    place.session("Here", &[]);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    database.pragma_update(None, "user_version", 9999).unwrap();
    drop(database);
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["sessions", "list"]).code, 1);
    place.write("letter.txt", "Dear store,\n".repeat(1000));
    assert_ne!(seen.run(&["sessions", "list", "--store", "sqlite:letter.txt"]).code, 0);
    assert_ne!(seen.run(&["sessions", "list", "--store", "sqlite:."]).code, 0);
    assert_eq!(seen.run(&["sessions", "list", "--store", "sqlite:no/such/place.db"]).code, 7);
    let bucket = format!("file://{}/no/such/place", place.path().display());
    assert_eq!(seen.run(&["sessions", "list", "--store", &bucket]).code, 7);
    assert_eq!(seen.run(&["migrate", "sqlite:no-such.db", "sqlite:new.db"]).code, 7);
    assert_eq!(seen.run(&["sessions", "list", "--store", "postgres://nobody@127.0.0.1:1/nobody"]).code, 7);
    assert_seen!("bad_stores", seen.end());
    assert_eq!(std::fs::read_to_string(place.file("letter.txt")).unwrap(), "Dear store,\n".repeat(1000));
    for name in ["no", "no-such.db", "new.db"] {
        assert!(!place.file(name).exists(), "{name} was made");
    }
}

#[test]
fn an_encrypted_store_asks_for_its_key() {
    let place = Place::new();
    let with = |key: Option<&str>, args: &[&str]| {
        let mut command = place.command(args);
        command.env("MILEPOST_ENCRYPTION_ENABLED", if key.is_some() { "true" } else { "false" });
        if let Some(key) = key {
            command.env("MILEPOST_KEY", key);
        }
        Ran::of(command.output().unwrap())
    };
    let made = with(Some(KEY), &["sessions", "new", "--title", "Secret"]);
    assert_eq!(made.code, 0, "{made:?}");
    let id = made.out.trim().to_owned();
    let mut seen = Transcript::new(&place);
    let mut note = |what: &str, key: Option<&str>, args: &[&str]| {
        let ran = with(key, args);
        seen.note(&[args, &[what]].concat(), &ran);
        ran
    };
    assert_eq!(note("# without the key", None, &["sessions", "list"]).code, 6);
    assert_eq!(note("# with another key", Some(OTHER_KEY), &["sessions", "list"]).code, 6);
    assert_eq!(note("# with no key at all", Some("open sesame"), &["sessions", "list"]).code, 6);
    assert_eq!(note("# with the key", Some(KEY), &["keys", "show"]).code, 0);
    assert_eq!(note("# with the key", Some(KEY), &["keys", "rotate", "--to", "missing.key"]).code, 6);
    assert_eq!(note("# with the key", Some(KEY), &["keys", "shred", &id, "--yes"]).code, 0);
    assert_eq!(note("# with the key", Some(KEY), &["messages", "list", &id]).code, 6);
    let open = Place::new();
    open.session("Open", &[]);
    let mut command = open.command(["sessions", "list"]);
    command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY);
    let ran = Ran::of(command.output().unwrap());
    assert_eq!(ran.code, 6, "{ran:?}");
    seen.note(&["sessions", "list", "# of a store without encryption"], &ran);
    assert_seen!("bad_keys", seen.end());
}

#[test]
fn a_read_only_store_says_so_and_stays_as_it_is() {
    let place = Place::new();
    let id = place.session("Here", &["one"]);
    let directory = place.store().parent().unwrap().to_owned();
    let set =
        |path: &std::path::Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    set(place.path(), 0o755);
    set(&place.file("data"), 0o755);
    for entry in std::fs::read_dir(&directory).unwrap() {
        set(&entry.unwrap().path(), 0o444);
    }
    set(&directory, 0o555);
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        if is_root {
            // Who may do everything becomes somebody who may not.
            command.uid(65_534).gid(65_534);
        }
        Ran::of(command.output().unwrap())
    };
    let mut seen = Transcript::new(&place);
    let write = run(&["messages", "add", &id, "two"]);
    seen.note(&["messages", "add", &id, "two"], &write);
    set(&directory, 0o755);
    assert_eq!(write.code, 7, "{write:?}");
    assert_seen!("read_only", seen.end());
    assert_eq!(place.texts(&id), ["one"]);
}

#[tokio::test]
async fn the_second_of_two_is_told_who_holds_a_session_and_what_can_be_done() {
    let place = Place::new();
    let id = place.session("Shared", &["one"]);
    let engine = place.another("the night shift\u{1b}[31m").await;
    let held = engine.resume(id.parse().unwrap(), Resume::latest()).await.unwrap();
    let mut seen = Transcript::new(&place);
    for args in [
        &["sessions", "resume", &id][..],
        &["messages", "add", &id, "two"],
        &["state", "set", &id, "memory.step=1", "--wait", "0"],
        &["checkpoint", &id, "--wait", "0"],
        &["sessions", "rename", &id, "Mine", "--wait", "0"],
        &["sessions", "delete", &id, "--yes", "--wait", "0"],
    ] {
        let ran = seen.run(args);
        assert_eq!(ran.code, 4, "{args:?}: {ran:?}");
        assert!(!ran.err.contains('\u{1b}'), "{ran:?}");
    }
    assert_seen!("held", seen.end());
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/holder"), "the night shift\u{1b}[31m");
    let ran = place.run(&["--json", "sessions", "resume", &id]);
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(
        error["error"]["try"]["take over"],
        json!(format!("milepost sessions resume {} --take-over", &id[id.len() - 8..]))
    );
    // The three ways on are ways on.
    assert_eq!(place.run(&["messages", "tail", &id, "--no-follow"]).code, 0);
    assert_eq!(place.run(&["sessions", "branch", &id]).code, 0);
    assert_eq!(place.run(&["sessions", "resume", &id, "--take-over"]).code, 0);
    let late = held.session.append(milepost::Message::new(milepost::Role::User, "too late")).await;
    assert!(late.is_err());
    assert_eq!(place.texts(&id), ["one"]);
}

#[test]
fn damage_is_found_named_and_told_by_the_exit_code() {
    let place = Place::new();
    let id = place.session("Old disk", &["one", "two", "three"]);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let second = "(SELECT id FROM entries WHERE kind = 1 ORDER BY id LIMIT 1 OFFSET 1)";
    let changed =
        database.execute(&format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {second}"), []).unwrap();
    assert_eq!(changed, 1);
    drop(database);
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["verify"]).code, 5);
    assert_eq!(seen.run(&["doctor"]).code, 5);
    assert_eq!(seen.run(&["messages", "list", &id]).code, 5);
    assert_seen!("damage", seen.end());
    let verified = place.run(&["--json", "verify"]);
    let value: serde_json::Value = serde_json::from_str(&verified.out).unwrap();
    assert_eq!((verified.code, &value["whole"]), (5, &json!(false)));
}

#[test]
fn a_damaged_checkpoint_is_told_by_reindex_and_keeps_nothing_else_from_it() {
    let place = Place::new();
    let (first, second) = (place.session("First", &["otters one"]), place.session("Second", &["otters two"]));
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let one = "(SELECT min(id) FROM entries WHERE kind = 3)";
    database.execute(&format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {one}"), []).unwrap();
    drop(database);
    let ran = place.run(&["reindex"]);
    assert!(ran.code == 5 && ran.out.starts_with("rebuilt 1 session with"), "{ran:?}");
    assert!(ran.err.contains(&first[first.len() - 8..]) && ran.err.contains("milepost salvage"), "{ran:?}");
    let told = place.run(&["reindex", "--json"]);
    assert!(told.code == 5 && told.out.contains(&first) && !told.out.contains(&second), "{told:?}");
    let found = place.run(&["sessions", "search", "otters"]);
    assert!(found.code == 0 && found.out.contains("otters one") && found.out.contains("otters two"), "{found:?}");
    let moved = place.run(&["migrate", &place.url(), &format!("sqlite:{}", place.file("new.db").display())]);
    assert!(moved.code == 5 && moved.err.contains("salvage"), "{moved:?}");
}

#[test]
fn a_vault_without_a_key_leaves_no_store_behind() {
    let place = Place::new();
    place.write("milepost.yaml", "redaction:\n  vault: true\n");
    let refused = place.run(&["sessions", "new"]);
    assert!(refused.code != 0 && refused.err.contains("not encrypted"), "{refused:?}");
    assert!(!place.store().exists(), "it would stay without encryption for good");
    let key = place.ok(&["keys", "new"]);
    let made = Ran::of(place.command(["sessions", "new"]).env("MILEPOST_KEY", key).output().unwrap());
    assert_eq!(made.code, 0, "{made:?}");
}
