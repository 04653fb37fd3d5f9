//! Stores that cannot be opened: the error names a command that works, and it brings back what is whole.

use std::path::Path;

use milepost::{EngineOptions, Message, Milepost, Resume, Role};

use crate::support::{Place, Ran, number, text};

/// The command that an error names behind a word.
fn named(ran: &Ran, way: &str) -> Vec<String> {
    let line = ran.err.lines().find(|line| line.trim_start().starts_with(way)).unwrap_or_else(|| panic!("{ran:?}"));
    let command = line.split_once("milepost ").unwrap_or_else(|| panic!("{line}")).1;
    command.split_whitespace().map(str::to_owned).collect()
}

fn run(place: &Place, command: &[String]) -> Ran {
    place.run(&command.iter().map(String::as_str).collect::<Vec<_>>())
}

fn overwrite(file: &Path, at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    std::fs::write(file, &bytes).unwrap();
    bytes
}

#[test]
fn a_store_that_sqlite_cannot_open_is_rescued_by_the_command_that_the_error_names() {
    // The magic, the file's own table of contents, and both.
    for (at, with) in [(0, vec![b'x'; 16]), (100, vec![0xff; 3000]), (0, vec![0; 4096])] {
        let place = Place::new();
        let id = place.session("Precious", &["one", "two", "three"]);
        place.ok(&["checkpoint", &id, "--label", "here"]);
        let damaged = overwrite(&place.store(), at, &with);
        let mut command = Vec::new();
        for args in [&["sessions", "list"][..], &["messages", "add", &id, "more"], &["verify"], &["doctor"]] {
            let ran = place.run(args);
            assert_eq!(ran.code, 5, "{args:?}: {ran:?}");
            assert!(ran.err.contains("rescue") && !ran.err.contains("run verify"), "{args:?}: {}", ran.err);
            command = named(&ran, "rescue");
        }
        let rescued = Path::new(command.last().unwrap()).to_owned();

        let mut dry = command.clone();
        dry.push("--dry-run".to_owned());
        let ran = run(&place, &dry);
        assert!(ran.code == 0 && ran.out.starts_with("would rescue 1 session with "), "{ran:?}");
        assert!(!rescued.exists(), "a dry run leaves nothing");

        let ran = run(&place, &command);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(std::fs::read(place.store()).unwrap(), damaged, "the damaged file was touched");
        // The command that it ends with works too.
        let verified = run(&place, &named(&ran, "the damaged file"));
        assert!(verified.code == 0 && verified.out.starts_with("whole: 1 session"), "{verified:?}");
        let url = format!("sqlite:{}", rescued.display());
        let messages = place.json(&["messages", "list", &id, "--all", "--store", &url]);
        let said: Vec<&str> = (0..3).map(|at| text(&messages, &format!("/messages/{at}/content"))).collect();
        assert_eq!(said, ["one", "two", "three"]);
        place.ok(&["sessions", "resume", &id, "--checkpoint", "here", "--store", &url]);

        let again = run(&place, &command);
        assert!(again.code == 2 && again.err.contains("is there already"), "{again:?}");
        let beside = std::fs::read_dir(place.store().parent().unwrap()).unwrap();
        let left: Vec<String> = beside.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert!(left.iter().all(|name| !name.contains(".part")), "{left:?}");
    }
}

#[tokio::test]
async fn a_rescue_finds_what_is_only_in_the_log_beside_the_file() {
    let place = Place::new();
    let id = place.session("Logged", &["one"]);
    // Whoever is killed leaves the last writes in the log.
    let engine = Milepost::open_with(&place.url(), EngineOptions::default()).await.unwrap();
    let held = engine.resume(id.parse().unwrap(), Resume::latest()).await.unwrap();
    held.session.append(Message::new(Role::User, "two")).await.unwrap();
    let log = std::fs::read(place.store().with_extension("db-wal")).unwrap();
    assert!(!log.is_empty());
    place.write("left.db", std::fs::read(place.store()).unwrap());
    place.write("left.db-wal", &log);
    overwrite(&place.file("left.db"), 0, b"nothing of SQLite");
    place.ok(&["salvage", "left.db", "new.db"]);
    let messages = place.json(&["messages", "list", &id, "--all", "--store", "sqlite:new.db"]);
    assert_eq!(text(&messages, "/messages/1/content"), "two");
    assert_eq!(std::fs::read(place.file("left.db-wal")).unwrap(), log, "the log was touched");
}

#[test]
fn a_rescue_says_in_json_what_it_found_and_refuses_what_holds_nothing() {
    let place = Place::new();
    place.session("Here", &["one"]);
    place.ok(&["sessions", "new", "--workspace", "second"]);
    let url = place.url();
    let told = place.json(&["salvage", &url, "new.db"]);
    assert_eq!((number(&told, "/sessions"), number(&told, "/lost")), (2, 0));
    assert_eq!(told["workspaces"].as_array().unwrap().len(), 2, "{told}");
    place.ok(&["sessions", "show", "last", "--workspace", "second", "--store", "sqlite:new.db"]);
    place.write("letter.txt", "Dear store,\n".repeat(1000));
    let ran = place.run(&["salvage", "letter.txt", "none.db"]);
    assert!(ran.code == 5 && ran.err.contains("restore a backup") && !place.file("none.db").exists(), "{ran:?}");
    assert_eq!(place.run(&["salvage", "no-such.db", "none.db"]).code, 3);
    assert_eq!(place.run(&["salvage", "postgres://x/y", "none.db"]).code, 2);
}

#[test]
fn a_rescue_refuses_a_store_that_a_newer_milepost_wrote() {
    let place = Place::new();
    place.session("From tomorrow", &["one"]);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    database.pragma_update(None, "user_version", 9999).unwrap();
    drop(database);
    let before = std::fs::read(place.store()).unwrap();
    for more in [&[][..], &["--dry-run"]] {
        let ran = place.run(&[&["salvage", &place.url(), "new.db"], more].concat());
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{ran:?}");
        let store = place.store().display().to_string();
        assert!(ran.err.contains(&store) && ran.err.contains("9999"), "{}", ran.err);
        assert!(ran.err.contains("written by a newer Milepost") && ran.err.contains("use a newer one"), "{}", ran.err);
        assert!(!place.file("new.db").exists());
    }
    assert_eq!(std::fs::read(place.store()).unwrap(), before);
    // A version that only damage can have made keeps nobody from a rescue.
    overwrite(&place.store(), 40, &[0xff; 40]);
    place.ok(&["salvage", &place.url(), "new.db"]);
}
