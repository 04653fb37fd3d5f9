//! What is taken away: nothing goes in silence, a dry run says what the real one does, and the trash gives back.

use serde_json::{Value, json};

use crate::support::{Place, number, text};

/// The ids in a list, as texts.
fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap_or_else(|| panic!("{list:#} is no list")).iter().filter_map(Value::as_str).collect()
}

#[test]
fn a_purge_names_the_hidden_sessions_that_it_erases_and_so_does_its_dry_run() {
    let place = Place::new();
    let parent = place.session("Parent", &["a text that somebody wants gone"]);
    place.ok(&["checkpoint", &parent]);
    let child = place.ok(&["sessions", "branch", &parent]);
    place.ok(&["sessions", "delete", &parent, "--keep-branches", "--yes"]);
    let preview = place.run(&["sessions", "delete", &child, "--dry-run"]);
    assert!(preview.err.contains(&parent) && preview.err.contains("milepost prune --purge"), "{preview:?}");
    assert_eq!(ids(&place.json(&["prune", "--purge", "--dry-run"])["purged"]["hidden"]), [""; 0]);
    let gone = place.run(&["sessions", "delete", &child, "--yes"]);
    assert!(gone.err.contains(&parent) && gone.err.contains("milepost prune --purge"), "{gone:?}");
    let dry = place.json(&["prune", "--purge", "--dry-run"]);
    assert_eq!(ids(&dry["purged"]["hidden"]), [parent.as_str()], "{dry:#}");
    let dry = place.run(&["prune", "--purge", "--dry-run"]);
    assert!(dry.out.contains(&parent) && dry.out.contains("1 hidden session"), "{dry:?}");
    // Somebody is asked, also when nothing else is to be erased.
    assert_eq!(place.run(&["prune", "--purge"]).code, 2);
    let real = place.run(&["prune", "--purge", "--yes"]);
    assert!(real.out.contains(&parent) && real.out.contains("1 hidden session"), "{real:?}");
    assert_eq!(ids(&place.json(&["prune", "--purge", "--yes"])["purged"]["hidden"]), [""; 0]);
    assert_eq!(place.run(&["sessions", "show", &parent]).code, 3);
}

#[test]
fn a_dry_run_knows_what_becomes_unneeded_by_what_it_would_erase() {
    let place = Place::new();
    place.write("milepost.yaml", "policy:\n  trash_days: 0\n");
    let oldest = place.session("Oldest", &["one"]);
    place.ok(&["checkpoint", &oldest]);
    let parent = place.ok(&["sessions", "branch", &oldest]);
    place.ok(&["messages", "add", &parent, "two"]);
    place.ok(&["checkpoint", &parent]);
    let child = place.ok(&["sessions", "branch", &parent]);
    for id in [&oldest, &parent] {
        place.ok(&["sessions", "delete", id, "--keep-branches", "--yes"]);
    }
    place.ok(&["sessions", "trash", &child]);
    let dry = place.json(&["prune", "--purge", "--dry-run"]);
    let real = place.json(&["prune", "--purge", "--yes"]);
    assert_eq!(dry["purged"]["hidden"], real["purged"]["hidden"]);
    assert_eq!(ids(&real["purged"]["sessions"]), [child.as_str()], "{real:#}");
    let mut hidden = ids(&real["purged"]["hidden"]);
    hidden.sort_unstable();
    let mut wanted = [oldest.as_str(), parent.as_str()];
    wanted.sort_unstable();
    assert_eq!(hidden, wanted, "{real:#}");
    for id in [oldest, parent, child] {
        assert_eq!(place.run(&["sessions", "show", &id]).code, 3);
    }
}

/// The lines of a log that have this type.
fn logged(place: &Place, log: &str, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(place.file(log)).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["type"] == kind).collect()
}

#[test]
fn pruning_is_logged() {
    let place = Place::new();
    let id = place.session("Many", &[]);
    (0..4).for_each(|_| drop(place.ok(&["checkpoint", &id, "--trigger", "interval"])));
    let pruned = place.run(&["prune", &id, "--keep", "2", "--log", "log.jsonl"]);
    assert!(pruned.code == 0 && !pruned.err.contains("the policy put"), "{pruned:?}");
    let lines = logged(&place, "log.jsonl", "checkpoints_pruned");
    assert_eq!(lines.len(), 1);
    assert_eq!(text(&lines[0], "/sessionId"), id);
    assert_eq!(ids(&lines[0]["checkpoints"]).len(), 3, "{lines:?}");
}

#[test]
fn log_lines_name_the_task() {
    let place = Place::new();
    let with = place.ok(&["sessions", "new", "--task", "task-9"]);
    let without = place.ok(&["sessions", "new"]);
    for id in [&with, &without] {
        place.ok(&["checkpoint", id, "--label", "here", "--log", "log.jsonl"]);
        place.ok(&["sessions", "resume", id, "--checkpoint", "here", "--log", "log.jsonl"]);
        place.ok(&["prune", id, "--all", "--log", "log.jsonl"]);
    }
    for kind in ["checkpoint_created", "checkpoint_restored", "checkpoints_pruned"] {
        let lines = logged(&place, "log.jsonl", kind);
        let tasks: Vec<_> = lines.iter().map(|line| (text(line, "/sessionId"), text(line, "/taskId"))).collect();
        assert_eq!(tasks, [(with.as_str(), "task-9"), (without.as_str(), without.as_str())], "{kind}");
    }
}

#[test]
fn all_checkpoints_of_a_session_go_and_come_back_while_its_messages_stay() {
    let place = Place::new();
    let id = place.session("Cleared", &["one", "two"]);
    place.ok(&["checkpoint", &id, "--label", "kept by its label"]);
    let listed = place.json(&["sessions", "checkpoints", &id]);
    let dry = place.json(&["prune", &id, "--all", "--dry-run"]);
    assert_eq!(dry["pruned"][&id], listed["total_checkpoints"], "{dry:#}");
    assert_eq!(place.json(&["sessions", "checkpoints", &id]), listed);
    let done = place.run(&["prune", &id, "--all"]);
    assert!(done.code == 0 && done.out.contains("2 checkpoints went into the trash"), "{done:?}");
    assert!(done.err.contains("sessions untrash") && done.err.contains("--checkpoints"), "{done:?}");
    assert_eq!(number(&place.json(&["sessions", "checkpoints", &id]), "/total_checkpoints"), 0);
    assert_eq!(place.texts(&id), ["one", "two"]);
    assert_eq!(place.json(&["sessions", "resume", &id])["messageCount"], 2);
    let back = place.json(&["sessions", "untrash", &id, "--checkpoints"]);
    assert_eq!(ids(&back["checkpoints"]).len(), 2, "{back:#}");
    assert_eq!(place.json(&["sessions", "checkpoints", &id])["checkpoints"], listed["checkpoints"]);
    // Of one session, and with nothing that says what is kept.
    assert_eq!(place.run(&["prune", "--all"]).code, 2);
    assert_eq!(place.run(&["prune", &id, "--all", "--keep", "3"]).code, 2);
    assert_eq!(place.run(&["verify"]).code, 0);
}

#[test]
fn going_on_from_a_checkpoint_in_the_trash_says_that_it_is_there() {
    let place = Place::new();
    let id = place.session("Trash", &["one"]);
    let point = place.ok(&["checkpoint", &id]);
    place.ok(&["messages", "add", &id, "two"]);
    place.ok(&["sessions", "trash", &id, "--checkpoint", &point]);
    for args in [
        &["sessions", "resume", &id, "--checkpoint", &point, "--dry-run"][..],
        &["sessions", "inspect", &id, &point],
        &["sessions", "resume", &id, "--checkpoint", &point],
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        assert!(ran.err.contains("is in the trash") && ran.err.contains("sessions untrash"), "{args:?}: {ran:?}");
    }
    assert_eq!(place.texts(&id), ["one"]);
}

#[test]
fn a_list_of_messages_ends_alike_for_a_person_and_for_a_program() {
    let place = Place::new();
    let id = place.session("Scratched", &["one", "two"]);
    place.ok(&["checkpoint", &id]);
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let hit = |kind: u8| {
        let last = format!("(SELECT id FROM entries WHERE kind = {kind} ORDER BY id DESC LIMIT 1)");
        let sql = format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {last}");
        assert_eq!(database.execute(&sql, []).unwrap(), 1);
    };
    for (kind, lost, code) in [(3, 0, 0), (1, 1, 5)] {
        hit(kind);
        let person = place.run(&["messages", "list", &id]);
        let program = place.run(&["--json", "messages", "list", &id]);
        let said: Value = serde_json::from_str(&program.out).unwrap();
        assert_eq!((person.code, program.code), (code, code), "{person:?} {program:?}");
        assert_eq!((said["messagesLost"].as_u64(), said["damaged"].is_array()), (Some(lost), true), "{said:#}");
    }
    assert_eq!(json!(place.run(&["verify"]).code), json!(5));
}
