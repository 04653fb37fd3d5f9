//! Processes that are killed or interrupted, and checkpoints that are damaged: what was acknowledged is there, and the
//! session goes on.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use milepost::{EngineOptions, Message, Milepost, NewSession, Role};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, Ran, text};
use crate::transcript::{Transcript, assert_seen};

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[test]
fn a_conversation_goes_on_after_its_process_was_killed_at_any_moment() {
    let place = Place::new();
    let id = place.session("Long talk", &[]);
    let mut acknowledged = Vec::new();
    let mut tried = Vec::new();
    for round in 0..40u64 {
        let said = format!("message {round}");
        tried.push(said.clone());
        let mut child = place.command(["messages", "add", "last", &said]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(round % 20 * 3));
        // It may have ended already.
        let _ = child.kill();
        let ran = Ran::of(child.wait_with_output().unwrap());
        if ran.code == 0 {
            acknowledged.push(said);
        } else {
            assert_eq!(ran.code, -1, "it was not killed, it failed: {ran:?}");
        }
        let resumed = place.run(&["sessions", "resume", "last"]);
        assert_eq!(resumed.code, 0, "{resumed:?}");
        assert!(resumed.out.contains(&id), "{resumed:?}");
    }
    let stored = place.texts(&id);
    assert!(acknowledged.iter().all(|said| stored.contains(said)), "{acknowledged:?} but {stored:?}");
    let mut order = tried.iter();
    assert!(stored.iter().all(|said| order.any(|one| one == said)), "out of order or twice: {stored:?}");
    assert_eq!(place.run(&["verify"]).code, 0);
}

/// How a process of this machine is called when it holds a session.
#[cfg(target_os = "linux")]
fn holder(pid: u32) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap().to_string_lossy().into_owned();
    let space: String = space.chars().filter(char::is_ascii_digit).collect();
    let (host, start) = (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id"));
    format!("milepost on {host} (process {pid}, start {}, space {space})", &start[..8])
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_session_is_free_when_its_holder_was_killed_and_not_before() {
    let place = Place::new();
    let mut gone = place.command(["--version"]).spawn().unwrap();
    gone.wait().unwrap();
    for (pid, is_free) in [(gone.id(), true), (std::process::id(), false)] {
        let mut options = EngineOptions::default();
        options.holder = holder(pid);
        let engine = Milepost::open_with(&place.url_made(), options).await.unwrap();
        let held = engine.create(NewSession::titled("Held")).await.unwrap();
        let id = held.id().to_string();
        let ran = place.run(&["messages", "add", &id, "hello"]);
        assert_eq!(ran.code, if is_free { 0 } else { 4 }, "{ran:?}");
        assert_eq!(ran.err.contains("is gone without giving the session back"), is_free, "{ran:?}");
    }
}

#[tokio::test]
async fn a_damaged_checkpoint_is_passed_over_and_named() {
    let place = Place::new();
    let id = place.session("Old disk", &["one"]);
    let whole = place.ok(&["checkpoint", &id, "--label", "whole"]);
    place.ok(&["state", "set", &id, "memory.step=2"]);
    let damaged = place.ok(&["checkpoint", &id, "--label", "damaged"]);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let newest = "(SELECT max(id) FROM entries WHERE kind = 2)";
    let changed = database
        .execute(&format!("UPDATE entries SET body = zeroblob(length(body)) WHERE kind = 2 AND id = {newest}"), []);
    assert_eq!(changed.unwrap(), 1);
    drop(database);
    let mut seen = Transcript::new(&place);
    let preview = seen.run(&["sessions", "resume", &id, "--dry-run"]);
    assert!(preview.err.contains(&damaged) && preview.out.contains(&whole), "{preview:?}");
    seen.run(&["sessions", "resume", &id, "--checkpoint", "damaged"]);
    let resumed = seen.run(&["sessions", "resume", "last"]);
    assert!(resumed.code == 0 && resumed.err.contains(&damaged) && resumed.out.contains(&whole), "{resumed:?}");
    assert_eq!(seen.run(&["messages", "add", &id, "and on"]).code, 0);
    assert_seen!("damaged_checkpoint", seen.end());
    assert_eq!(place.texts(&id), ["one", "and on"]);
}

#[test]
fn a_checkpoint_that_is_there_is_never_said_to_be_none() {
    let place = Place::new();
    let id = place.session("Old disk", &["one"]);
    place.ok(&["state", "set", &id, "memory.step=1"]);
    let whole = place.ok(&["checkpoint", &id, "--label", "whole"]);
    // Without its key nothing is taken back, and nothing is begun anew.
    let key = place.ok(&["keys", "new"]);
    let signing = |args: &[&str]| Ran::of(place.command(args).env("MILEPOST_MARK_KEY", &key).output().unwrap());
    for args in [&["sessions", "inspect", &id, "whole"][..], &["sessions", "restore", &id, "whole"]] {
        let ran = signing(args);
        assert!(ran.code == 5 && ran.err.contains("not signed"), "{args:?} {ran:?}");
    }
    let resumed = signing(&["sessions", "resume", &id]);
    assert!(resumed.code != 0 && resumed.err.contains("MILEPOST_MARK_KEY"), "{resumed:?}");
    assert_eq!(place.json(&["sessions", "list"])["sessions"].as_array().unwrap().len(), 1);
    let listed = signing(&["sessions", "checkpoints", &id]);
    assert!(listed.err.contains("cannot be used") && !listed.err.contains("take one"), "{listed:?}");
    // One whose mark is damaged.
    let lost = place.ok(&["checkpoint", &id, "--label", "lost"]);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let newest = "(SELECT max(id) FROM entries WHERE kind = 3)";
    let sql = format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {newest}");
    assert_eq!(database.execute(&sql, []).unwrap(), 1);
    drop(database);
    for name in ["lost", &lost[lost.len() - 10..]] {
        let ran = place.run(&["sessions", "resume", &id, "--checkpoint", name]);
        assert!(ran.code == 5 && ran.err.contains(&lost) && ran.err.contains(&whole), "{ran:?}");
    }
    let all = place.json(&["sessions", "checkpoints", &id]);
    assert_eq!(text(&all, "/unusable/0/id"), lost, "{all:#}");
}

#[test]
fn messages_stay_readable_beside_an_entry_that_is_damaged() {
    let place = Place::new();
    let id = place.session("Scratched disk", &["one"]);
    place.ok(&["state", "set", &id, "memory.step=1"]);
    place.ok(&["checkpoint", &id]);
    (0..5).for_each(|number| drop(place.ok(&["messages", "add", &id, &format!("later {number}")])));
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let hit = |kind: u8, number: u8| {
        let one = format!("(SELECT id FROM entries WHERE kind = {kind} ORDER BY id LIMIT 1 OFFSET {number})");
        let sql = format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {one}");
        assert_eq!(database.execute(&sql, []).unwrap(), 1);
    };
    // The change of the state, then also a message.
    hit(2, 0);
    assert_eq!(place.texts(&id), ["one", "later 0", "later 1", "later 2", "later 3", "later 4"]);
    let shown = place.run(&["messages", "list", &id]);
    assert!(shown.code == 0 && shown.err.contains("state tml_"), "{shown:?}");
    hit(1, 3);
    for args in [
        &["messages", "list", &id][..],
        &["messages", "list", &id, "--last", "4"],
        &["sessions", "show", &id],
        &["messages", "tail", &id, "--no-follow"],
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, 5, "{args:?}: {ran:?}");
        assert!(ran.out.contains("later 1") && ran.out.contains("later 4"), "{args:?}: {ran:?}");
        assert!(ran.err.contains("message tml_") && ran.err.contains("is damaged"), "{args:?}: {ran:?}");
        assert!(ran.err.contains("milepost verify"), "{args:?}: {ran:?}");
    }
    let ran = place.run(&["--json", "messages", "list", &id]);
    let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(ran.code, 5);
    assert_eq!(listed["damaged"].as_array().unwrap().len(), 2, "{listed:#}");
    assert_eq!(listed["messages"].as_array().unwrap().len(), 5, "{listed:#}");
    assert_eq!(place.run(&["verify"]).code, 5);
}

#[test]
fn following_a_session_ends_with_an_interrupt() {
    let place = Place::new();
    let id = place.session("Live", &["one"]);
    let mut child = place.command(["messages", "tail", &id, "--json"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(text(&next(), "/content"), "one");
    place.ok(&["messages", "add", &id, "two"]);
    assert_eq!(text(&next(), "/content"), "two");
    interrupt(&child);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (130, ""));
    place.ok(&["messages", "add", &id, "three"]);
}

#[tokio::test]
async fn a_migration_that_was_interrupted_goes_on_where_it_was() {
    let place = Place::new();
    let engine = Milepost::open(&place.url_made()).await.unwrap();
    let mut sessions = 0;
    // More until an interrupt comes before the end.
    let output = loop {
        for _ in 0..40 {
            let session = engine.create(NewSession::titled("One of many")).await.unwrap();
            let messages = (0..25).map(|at| Message::new(Role::User, format!("message {at}")));
            session.append_all(messages.collect::<Vec<_>>()).await.unwrap();
            session.release().await.unwrap();
            sessions += 1;
        }
        let target = place.file(&format!("target-{sessions}"));
        let url = format!("file://{}", target.display());
        let child = place.command(["migrate", &place.url(), &url]).spawn().unwrap();
        while !target.is_dir() {
            std::thread::sleep(Duration::from_millis(2));
        }
        interrupt(&child);
        let ran = Ran::of(child.wait_with_output().unwrap());
        if ran.code != 0 {
            assert_eq!(ran.code, 130, "{ran:?}");
            assert!(ran.err.contains("run the command again to go on"), "{ran:?}");
            break url;
        }
        assert!(sessions < 2000, "it is never in time");
    };
    engine.close().await.unwrap();
    let again = place.json(&["migrate", &place.url(), &output]);
    assert_eq!(crate::support::number(&again, "/sessions"), sessions);
    let verified = place.json(&["verify", "--store", &output]);
    assert_eq!(verified["whole"], serde_json::json!(true));
}

/// Waits until a process does something of its own about interrupts.
#[cfg(target_os = "linux")]
fn wait_until_it_listens(child: &Child) {
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        if u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (Signal::INT.as_raw() - 1)) != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn waiting_for_input_ends_with_an_interrupt() {
    let place = Place::new();
    let id = place.session("Quiet", &[]);
    let mut command = place.command(["messages", "add", &id]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // It waits for its input for as long as that is open.
    wait_until_it_listens(&child);
    interrupt(&child);
    let stdin = child.stdin.take();
    let ran = Ran::of(child.wait_with_output().unwrap());
    drop(stdin);
    assert_eq!(ran.code, 130, "{ran:?}");
    assert!(place.texts(&id).is_empty());
}

/// Nobody writes to what it reads from: it waits where nothing can come between.
#[cfg(target_os = "linux")]
#[test]
fn what_does_not_let_go_is_left_all_the_same() {
    let place = Place::new();
    place.session("Here", &[]);
    let pipe = place.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = place.command(["artifacts", "put", "notes.md", pipe.to_str().unwrap(), "--project", "p"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_listens(&child);
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    let pid = Pid::from_child(&child);
    // Where it is not left, the test ends all the same.
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let late = std::thread::spawn(move || {
        if is_done.recv_timeout(Duration::from_secs(10)).is_err() {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let ran = Ran::of(child.wait_with_output().unwrap());
    let _ = done.send(());
    late.join().unwrap();
    assert_eq!(ran.code, 130, "{ran:?}");
    assert!(ran.err.contains("interrupted: what was acknowledged is stored"), "{ran:?}");
}

#[test]
fn with_every_checkpoint_damaged_a_fresh_start_keeps_the_messages() {
    let place = Place::new();
    let id = place.session("Precious", &["one", "two"]);
    place.ok(&["checkpoint", &id]);
    place.ok(&["messages", "add", &id, "three"]);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    assert!(database.execute("UPDATE entries SET body = zeroblob(length(body)) WHERE kind = 3", []).unwrap() >= 2);
    drop(database);
    // Whoever does not want a fresh start is told how to get one.
    for more in [&["--no-fresh"][..], &["--no-fresh", "--dry-run"]] {
        let ran = place.run(&[&["sessions", "resume", &id], more].concat());
        assert_eq!(ran.code, 5, "{ran:?}");
        let command = format!("begin anew  milepost sessions resume {}", &id[id.len() - 8..]);
        assert!(ran.err.contains(&command), "{}", ran.err);
        assert_eq!(ran.err.matches("older checkpoint").count(), 0, "{}", ran.err);
    }
    let before = place.json(&["sessions", "show", &id]);
    let dry = place.run(&["sessions", "resume", &id, "--dry-run"]);
    assert_eq!((dry.code, dry.out.as_str()), (0, "would go on as another session\n"), "{dry:?}");
    assert!(dry.err.contains("with its 3 messages that can be read and an empty state"), "{}", dry.err);
    let ran = place.run(&["sessions", "resume", &id, "--set", "memory.kept=1"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains(&format!("nothing of session {id} can be gone on from: every checkpoint of")), "{ran:?}");
    assert!(ran.err.contains("it goes on as a new session, ses_") && ran.err.contains("is as it was"), "{ran:?}");
    let new = ran.out.split_whitespace().nth(1).unwrap().to_owned();
    assert_ne!(new, id);
    assert_eq!(place.texts(&new), ["one", "two", "three"]);
    assert_eq!(place.json(&["state", "get", &new, "memory"]), serde_json::json!({ "kept": 1 }));
    assert_eq!(place.json(&["sessions", "show", &id]), before, "the damaged one was touched");
    // Again, it goes on with the same one.
    let again = place.run(&["sessions", "resume", &id]);
    assert!(again.code == 0 && again.err.contains("which was begun anew for it before"), "{again:?}");
    let again = place.json(&["sessions", "resume", &id]);
    assert_eq!((text(&again, "/sessionId"), text(&again, "/begunAnewFrom")), (new.as_str(), id.as_str()));
    assert_eq!(place.run(&["sessions", "resume", &new]).code, 0);
}

#[test]
fn a_resume_that_goes_on_at_the_end_says_so() {
    let place = Place::new();
    let id = place.session("Ends", &["one"]);
    place.ok(&["checkpoint", &id, "--label", "here"]);
    let at = place.ok(&["sessions", "resume", &id, "--dry-run"]);
    assert!(at.contains("would go on from ckp_"), "{at}");
    place.ok(&["messages", "add", &id, "after"]);
    place.ok(&["state", "set", &id, "memory.x=1"]);
    let at = place.ok(&["sessions", "resume", &id, "--dry-run"]);
    assert!(at.contains("would go on from its end, 2 changes after "), "{at}");
    let done = place.ok(&["sessions", "resume", &id]);
    assert!(done.contains("its end, 2 changes after "), "{done}");
}
