//! What a run leaves when it is killed, stopped or damaged, or fails after an effect: no command that lives on, no step that
//! seems to run, and a way on.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::runs::{begin, effects, signal, status, step, wait_for};
use crate::support::{Place, Ran, text};

/// Waits until the process that a file names is gone.
fn wait_for_end(pid: &Path) {
    let stat = format!("/proc/{}/stat", std::fs::read_to_string(pid).unwrap().trim());
    for _ in 0..2000 {
        if std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the process of {stat} lives on");
}

fn error(ran: &Ran) -> Value {
    let line = ran.err.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{ran:?}"));
    serde_json::from_str::<Value>(line).unwrap()["error"].clone()
}

/// Whoever goes on would run it beside the first one.
#[cfg(target_os = "linux")]
#[test]
fn a_command_ends_with_the_run_that_is_killed() {
    let place = Place::new();
    let command = "echo $$ > pid.new; mv pid.new pid; while test ! -e go; do sleep 0.05; done; echo end >> effects";
    let graph = json!({"nodes": {"a": {"action": "shell", "idempotent": true, "with": {"command": command}}}});
    place.write("g.json", graph.to_string());
    let (mut child, id, _out) = begin(&place, &["run", "g.json"]);
    wait_for(&place.file("pid"));
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    wait_for_end(&place.file("pid"));
    place.write("go", "");
    place.ok(&["resume", &id]);
    assert_eq!(effects(&place), ["end"]);
}

#[test]
fn a_command_that_does_not_end_is_ended_when_its_run_is_stopped_twice() {
    let place = Place::new();
    let stubborn = "trap '' TERM INT; echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.05; done";
    place.write("g.json", json!({"nodes": {"a": {"action": "shell", "with": {"command": stubborn}}}}).to_string());
    let (mut child, id, _out) = begin(&place, &["run", "g.json"]);
    wait_for(&place.file("pid"));
    signal(&child, Signal::INT);
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    wait_for_end(&place.file("pid"));
    assert_eq!(status(&place, &id), "paused");
    assert_eq!(text(&step(&place, &id, "a"), "/status"), "uncertain");
}

#[test]
fn a_step_that_was_stopped_in_the_middle_is_uncertain_at_once() {
    let place = Place::new();
    let command = "touch begun; while test ! -e go; do sleep 0.05; done";
    place.write("g.json", json!({"nodes": {"a": {"action": "shell", "with": {"command": command}}}}).to_string());
    let child = place.command(["run", "g.json"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_for(&place.file("begun"));
    signal(&child, Signal::INT);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130, "{ran:?}");
    assert!(ran.err.contains("nobody knows whether a had its effect") && ran.err.contains("--done a"), "{ran:?}");
    let listed = place.json(&["sessions", "list"]);
    let id = text(&listed, "/sessions/0/sessionId").to_owned();
    assert_eq!((text(&step(&place, &id, "a"), "/status"), status(&place, &id).as_str()), ("uncertain", "paused"));
    place.ok(&["resume", &id, "--done", "a"]);
}

#[test]
fn an_input_that_is_another_is_a_mismatch() {
    let place = Place::new();
    let command = "echo {{ memory.x }} >> effects; touch begun; while test ! -e go; do sleep 0.05; done";
    let graph = json!({
        "memory": {"x": "one"},
        "nodes": {"a": {"action": "shell", "idempotent": true, "with": {"command": command}}},
    });
    place.write("g.json", graph.to_string());
    let (mut child, id, _out) = begin(&place, &["run", "g.json"]);
    wait_for(&place.file("begun"));
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    place.write("go", "");
    let ran = place.run(&["resume", &id, "--set", "memory.x=two", "--json"]);
    assert_eq!((ran.code, text(&error(&ran), "/kind")), (1, "mismatch"), "{ran:?}");
    assert!(text(&error(&ran), "/message").contains("echo two"), "{ran:?}");
    assert_eq!(effects(&place), ["one"]);
    // Nothing was changed by what was refused.
    assert_eq!(place.json(&["state", "get", &id, "memory.x"]), "one");
    assert!(text(&error(&ran), "/try/unchanged").starts_with("milepost resume "), "{ran:?}");
    // The command that it names goes on with the new input, without a word more.
    let again = text(&error(&ran), "/try/again").to_owned();
    assert!(again.ends_with(" --set memory.x=two --again a"), "{again}");
    let words: Vec<&str> = again.split(' ').skip(1).collect();
    place.ok(&words);
    assert_eq!(effects(&place), ["one", "two"]);
}

/// A file in which an open step is another is refused in the same way, and the command that is named goes on with it.
#[test]
fn a_step_that_is_another_in_the_file_runs_again_as_it_is_now_when_somebody_says_so() {
    let place = Place::new();
    let graph = |word: &str| {
        let command = format!("echo {word} >> effects; test -e go");
        let retry = json!({"attempts": 5, "backoff": "1h"});
        json!({"nodes": {"a": {"action": "shell", "idempotent": true, "retry": retry, "with": {"command": command}}}})
    };
    place.write("g.json", graph("one").to_string());
    assert_eq!(place.run(&["run", "g.json"]).code, 11);
    place.write("g.json", graph("two").to_string());
    place.write("go", "");
    let ran = place.run(&["resume", "last", "--graph", "g.json", "--json"]);
    assert_eq!((ran.code, text(&error(&ran), "/kind")), (1, "mismatch"), "{ran:?}");
    let again = text(&error(&ran), "/try/again").to_owned();
    let words: Vec<&str> = again.split(' ').skip(1).collect();
    let ran = place.run(&words);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("node a is another, and runs again as it is now"), "{ran:?}");
    assert_eq!(effects(&place), ["one", "two"]);
}

#[test]
fn a_step_that_failed_after_its_effect_is_asked_about() {
    let place = Place::new();
    let node = json!({"action": "shell", "with": {"command": "echo paid >> effects; echo ok", "parse": "json"}});
    place.write("g.json", json!({"nodes": {"pay": node}, "outputs": {"said": "outputs.pay.stdout"}}).to_string());
    let ran = place.run(&["run", "g.json"]);
    assert_eq!(ran.code, 12, "{ran:?}");
    assert!(ran.err.contains("failed after it: its output is not JSON") && ran.err.contains("--done pay"), "{ran:?}");
    assert_eq!(place.run(&["resume", "last"]).code, 12);
    assert!(place.ok(&["resume", "last", "--done", "pay"]).contains("ok"));
    assert_eq!(effects(&place), ["paid"]);
}

#[test]
fn a_question_that_nobody_answered_in_time_can_still_be_answered() {
    let place = Place::new();
    let node = json!({"action": "ask", "with": {"question": "Which?", "timeout": "50ms"}});
    place.write("g.json", json!({"nodes": {"q": node}, "outputs": {"said": "outputs.q.answer"}}).to_string());
    let ran = place.run(&["run", "g.json"]);
    assert_eq!(ran.code, 10, "{ran:?}");
    assert!(ran.err.contains("milepost answer ") && ran.err.contains(" q VALUE"), "{ran:?}");
    place.ok(&["answer", "last", "q", "this"]);
    assert!(place.ok(&["resume", "last"]).contains("this"));
}

#[test]
fn a_run_whose_end_is_damaged_falls_back_and_says_so() {
    let place = Place::new();
    let graph = json!({"nodes": {
        "a": {"action": "shell", "with": {"command": "echo a >> effects"}},
        "q": {"action": "ask", "with": {"question": "Go on?"}, "needs": "a"},
    }});
    place.write("g.json", graph.to_string());
    assert_eq!(place.run(&["run", "g.json"]).code, 11);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let newest = "(SELECT max(id) FROM entries WHERE kind = 2)";
    let sql = format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {newest}");
    assert_eq!(database.execute(&sql, []).unwrap(), 1);
    drop(database);
    for args in [&["steps", "last"][..], &["resume", "last", "--dry-run"]] {
        let ran = place.run(args);
        assert!(ran.code == 0 && ran.err.contains("warning:"), "{args:?}: {ran:?}");
    }
    let ran = place.run(&["resume", "last"]);
    assert!(ran.code == 11 && ran.err.contains("warning:"), "{ran:?}");
    assert_eq!(effects(&place), ["a"]);
    place.ok(&["answer", "last", "q", "yes"]);
    place.ok(&["resume", "last"]);
    assert_eq!(effects(&place), ["a"]);
}

#[test]
fn a_checkpoint_is_shown_with_what_went_wrong() {
    let place = Place::new();
    let command = "test -e second && echo fine || { touch second; exit 1; }";
    let node = json!({"action": "shell", "retry": {"attempts": 2, "backoff": "1ms"}, "with": {"command": command}});
    place.write("g.json", json!({"nodes": {"a": node}}).to_string());
    place.ok(&["run", "g.json"]);
    let shown = place.json(&["sessions", "inspect", "last", "latest"]);
    assert_eq!(shown["metrics_snapshot"], json!({"total_retries": 1, "nodes_with_failures": ["a"]}));
}
