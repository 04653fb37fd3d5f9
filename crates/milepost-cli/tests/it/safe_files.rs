//! What a command writes besides the store: never over the store, never half, never in clear for longer than it is needed.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, Ran};
use crate::tour_store::KEY;

#[test]
fn an_export_or_backup_never_goes_over_the_open_store() {
    let place = Place::new();
    let id = place.session("Kept", &["one", "two"]);
    let store = place.store();
    std::os::unix::fs::symlink(&store, place.file("link.db")).unwrap();
    std::fs::hard_link(&store, place.file("hard.db")).unwrap();
    let beside = |end: &str| format!("{}{end}", store.display());
    let detour = format!("{}/../milepost/milepost.db", store.parent().unwrap().display());
    for target in [beside(""), beside("-wal"), beside("-shm"), detour, "link.db".to_owned(), "hard.db".to_owned()] {
        for format in ["bundle", "sqlite", "markdown", "jsonl", "tree", "files"] {
            let ran = place.run(&["sessions", "export", &id, "--force", "-f", format, "-o", &target]);
            assert_eq!(ran.code, 2, "{format} to {target}: {ran:?}");
            assert!(ran.err.contains("the store in use"), "{ran:?}");
        }
        let ran = place.run(&["backup", &target]);
        assert!(ran.code == 2 && ran.err.contains("the store in use"), "{target}: {ran:?}");
        let ran = place.run(&["--log", &target, "checkpoint", &id]);
        assert!(ran.code == 2 && ran.err.contains("the store in use"), "{target}: {ran:?}");
    }
    assert_eq!(place.texts(&id), ["one", "two"]);
    assert_eq!(place.run(&["verify"]).code, 0);
}

#[test]
fn what_was_there_stays_until_an_export_is_whole() {
    let place = Place::new();
    let run = |args: &[&str]| Ran::of(encrypted(&place, args).output().unwrap());
    let [whole, gone] = [(); 2].map(|()| run(&["sessions", "new"]).out.trim().to_owned());
    assert_eq!(run(&["keys", "shred", &gone, "--yes"]).code, 0);
    let old = place.write("old.db", "the old one");
    let export = |id: &str, to: &str, extra: &[&str]| {
        run(&[&["sessions", "export", id, "-f", "sqlite", "-o", to], extra].concat())
    };
    assert_eq!(export(&whole, "old.db", &[]).code, 2, "nobody said --force");
    // It fails halfway, as its key is gone.
    assert_eq!(export(&gone, "old.db", &["--force"]).code, 6);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "the old one");
    assert_eq!(export(&whole, "old.db", &["--force"]).code, 0);
    assert!(std::fs::read(&old).unwrap().starts_with(b"SQLite format 3\0"));
    // With the log of another, the new database would be damaged.
    place.write("in-use.db", "a database");
    place.write("in-use.db-wal", "its log");
    let ran = export(&whole, "in-use.db", &["--force"]);
    assert!(ran.code == 2 && ran.err.contains("some program uses"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(place.file("in-use.db")).unwrap(), "a database");
    assert_eq!(run(&["backup", "copy.db"]).code, 0);
    let ran = run(&["backup", "copy.db"]);
    assert!(ran.code == 2 && ran.err.contains("already"), "{ran:?}");
    assert_eq!(left(&place, ".part"), Vec::<String>::new());
}

/// Names in the place, which is also where scratch files are, with this in them.
fn left(place: &Place, part: &str) -> Vec<String> {
    let names = std::fs::read_dir(place.path()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.contains(part)).collect();
    names.sort();
    names
}

fn encrypted(place: &Place, args: &[&str]) -> std::process::Command {
    let mut command = place.command(args);
    command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY);
    command
}

/// Waits until a process has what it is asked for in a file, which has no name.
#[cfg(target_os = "linux")]
fn wait_until_nameless(pid: u32) {
    let is_nameless = || {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut names = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        names.any(|name| name.to_string_lossy().ends_with(" (deleted)"))
    };
    for _ in 0..1200 {
        if is_nameless() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("there is no file without a name");
}

#[cfg(target_os = "linux")]
#[test]
fn nothing_asked_in_sql_is_left_behind_in_clear() {
    let place = Place::new();
    let run = |args: &[&str]| Ran::of(encrypted(&place, args).output().unwrap());
    let id = run(&["sessions", "new"]).out.trim().to_owned();
    assert_eq!(run(&["messages", "add", &id, "Nobody else reads this"]).code, 0);
    // More than is kept in memory.
    let long = place.write("long.txt", "Nobody else reads this. ".repeat(400_000));
    let mut add = encrypted(&place, &["messages", "add", &id, "-"]);
    assert_eq!(Ran::of(add.stdin(std::fs::File::open(&long).unwrap()).output().unwrap()).code, 0);
    std::fs::remove_file(&long).unwrap();
    let before = left(&place, "");
    assert!(run(&["sql", "select substr(text, 1, 40) from messages"]).out.contains("Nobody else"));
    assert_eq!(left(&place, ""), before);
    // Its reader goes away before all is written.
    let many = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 90000) select i, text from n, (select text from messages order by seq limit 1)";
    let mut child = encrypted(&place, &["sql", many]).spawn().unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(left(&place, ""), before);
    // It is stopped while a statement runs, or killed: then it cannot tidy up.
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 130), (Signal::KILL, -1)] {
        let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n";
        let child = encrypted(&place, &["sql", endless]).stderr(Stdio::piped()).spawn().unwrap();
        wait_until_nameless(child.id());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code, code, "one interrupt is enough: {ran:?}");
        assert_eq!(left(&place, ""), before);
    }
}

#[test]
fn sql_reaches_no_other_file_and_writes_nothing() {
    let place = Place::new();
    place.session("Asked", &["one"]);
    rusqlite::Connection::open(place.file("other.db")).unwrap().execute_batch("create table t (a)").unwrap();
    for statement in [
        "attach 'other.db' as other",
        "attach 'new.db' as other",
        "vacuum into 'new.db'",
        "create temp table t (a)",
        "delete from messages",
        "pragma user_version = 7",
        "select 1; delete from messages",
    ] {
        let ran = place.run(&["sql", statement]);
        assert_ne!(ran.code, 0, "{statement}: {ran:?}");
    }
    assert!(!place.file("new.db").exists());
}

#[test]
fn a_log_is_opened_first_and_written_last() {
    let place = Place::new();
    let id = place.session("Logged", &["one"]);
    let ran = place.run(&["--log", "no/such/log.jsonl", "messages", "add", &id, "two"]);
    assert!(ran.code == 1 && ran.err.contains("writing the log"), "{ran:?}");
    assert_eq!(place.texts(&id), ["one"]);
    // The reader of the result goes away after the checkpoint was taken: it is logged.
    let mut child = place.command(["--log", "log.jsonl", "checkpoint", &id]).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(Ran::of(child.wait_with_output().unwrap()).code, 0);
    let log = BufReader::new(std::fs::File::open(place.file("log.jsonl")).unwrap());
    assert_eq!(log.lines().count(), 1);
}
