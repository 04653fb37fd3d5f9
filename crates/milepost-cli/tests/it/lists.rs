//! Lists, searches and what tidies up: all that there is, by the names that are shown, and said where something is left.

use serde_json::{Value, json};

use crate::support::{Place, Ran, number, text};
use crate::tour_store::KEY;

pub fn damage_message(place: &Place, number: usize) {
    let database = rusqlite::Connection::open(place.store()).unwrap();
    let one = format!("(SELECT id FROM entries WHERE kind = 1 ORDER BY id LIMIT 1 OFFSET {number})");
    let sql = format!("UPDATE entries SET body = zeroblob(length(body)) WHERE id = {one}");
    assert_eq!(database.execute(&sql, []).unwrap(), 1);
}

#[test]
fn a_list_of_checkpoints_says_how_many_there_are() {
    let place = Place::new();
    let id = place.session("Many", &[]);
    (0..3).for_each(|_| drop(place.ok(&["checkpoint", &id])));
    let some = place.json(&["sessions", "checkpoints", &id, "--limit", "2"]);
    assert_eq!((some["checkpoints"].as_array().unwrap().len(), number(&some, "/total_checkpoints")), (2, 4));
    let some = place.run(&["sessions", "checkpoints", &id, "--limit", "2"]);
    assert!(some.err.contains("the newest 2 of 4"), "{some:?}");
    assert_eq!(place.run(&["sessions", "checkpoints", &id]).err, "");
}

#[test]
fn sessions_are_found_by_the_name_of_their_project() {
    let place = Place::new();
    for directory in ["shop", "blog", "other/blog"] {
        std::fs::create_dir_all(place.file(directory)).unwrap();
        let made = place.command(["sessions", "new", "--here"]).current_dir(place.file(directory)).output().unwrap();
        let id = Ran::of(made).out.trim().to_owned();
        place.ok(&["messages", "add", &id, "otters"]);
    }
    place.session("Elsewhere", &["otters"]);
    let listed = place.json(&["sessions", "list", "--project", "shop"]);
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "{listed:#}");
    assert_eq!(text(&listed, "/sessions/0/projectName"), "shop");
    assert_eq!(place.json(&["sessions", "search", "otters", "--project", "shop"])["hits"].as_array().unwrap().len(), 1);
    assert_eq!(number(&place.json(&["stats", "--usage", "--project", "shop"]), "/sessions"), 1);
    // A name of several says which there are.
    let several = place.run(&["sessions", "list", "--project", "blog"]);
    assert_eq!((several.code, several.err.matches("prj_").count()), (3, 2), "{several:?}");
    // What programs call a project counts before what a directory is called.
    place.ok(&["sessions", "new", "--project", "blog", "--title", "Mine"]);
    let listed = place.json(&["sessions", "list", "--project", "blog"]);
    assert_eq!(text(&listed, "/sessions/0/title"), "Mine");
    assert_eq!(place.json(&["sessions", "list", "--project", "nowhere"])["sessions"], json!([]));
}

#[test]
fn a_search_that_cannot_read_everything_says_so_and_finds_the_rest() {
    let place = Place::new();
    let id = place.session("Old disk", &["first otters", "broken otters", "last otters"]);
    place.ok(&["sessions", "search", "otters"]);
    damage_message(&place, 1);
    for args in [&["sessions", "search", "otters"][..], &["sessions", "search", "tters", "--substring"]] {
        let found = place.run(args);
        assert_eq!(found.code, 0, "{found:?}");
        assert!(found.out.contains("first otters") && found.out.contains("last otters"), "{args:?}: {found:?}");
        assert!(found.err.contains("not all of") && found.err.contains("damaged"), "{args:?}: {found:?}");
        let found = place.json(args);
        assert_eq!((found["hits"].as_array().unwrap().len(), text(&found, "/unread/0/0")), (2, id.as_str()));
    }
    let whole = Place::new();
    whole.session("New disk", &["otters"]);
    assert_eq!(whole.json(&["sessions", "search", "otters"])["unread"], json!([]));
}

#[test]
fn a_search_names_sessions_whose_key_was_destroyed() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY);
        Ran::of(command.output().unwrap())
    };
    let ids: Vec<String> = (0..2).map(|_| run(&["sessions", "new"]).out.trim().to_owned()).collect();
    ids.iter().for_each(|id| assert_eq!(run(&["messages", "add", id, "otters"]).code, 0));
    assert_eq!(run(&["keys", "shred", &ids[0], "--yes"]).code, 0);
    let found: Value = serde_json::from_str(&run(&["--json", "sessions", "search", "otters"]).out).unwrap();
    assert_eq!(text(&found, "/hits/0/sessionId"), ids[1]);
    assert_eq!(text(&found, "/unread/0/0"), ids[0], "{found:#}");
}

#[tokio::test]
async fn pruning_passes_over_what_somebody_works_on_and_what_is_damaged() {
    let place = Place::new();
    let flags = ["--policy", "max_checkpoints_per_session=1", "--policy", "prune_after_node_count=0"];
    let ids: Vec<String> = (0..3)
        .map(|_| {
            let id = place.ok(&[&["sessions", "new", "--policy", "every_messages=1"][..], &flags].concat());
            ["one", "two", "three"].iter().for_each(|text| drop(place.ok(&["messages", "add", &id, text])));
            id
        })
        .collect();
    let engine = place.another("the night shift").await;
    let held = engine.hold(ids[1].parse().unwrap()).await.unwrap();
    let pruned = place.run(&["prune"]);
    assert_eq!(pruned.code, 0, "{pruned:?}");
    assert_eq!(pruned.out.matches("into the trash").count(), 2, "{pruned:?}");
    assert!(pruned.err.contains("is left as it is") && pruned.err.contains("the night shift"), "{pruned:?}");
    // One that was named is an error.
    assert_eq!(place.run(&["prune", &ids[1]]).code, 4);
    held.release().await.unwrap();
    let pruned = place.json(&["prune"]);
    assert_eq!((number(&pruned, &format!("/pruned/{}", ids[1])), &pruned["left"]), (3, &json!({})));
}

#[tokio::test]
async fn erasing_the_trash_leaves_what_somebody_holds_for_the_next_time() {
    let place = Place::new();
    place.write("milepost.yaml", "policy:\n  trash_days: 0\n");
    let ids: Vec<String> = (0..2).map(|_| place.session("Old", &["one"])).collect();
    for id in &ids {
        let mark = place.ok(&["checkpoint", id, "--type", "milestone"]);
        place.ok(&["checkpoint", id]);
        place.ok(&["sessions", "trash", id, "--checkpoint", &mark]);
    }
    let engine = place.another("the night shift").await;
    let held = engine.hold(ids[0].parse().unwrap()).await.unwrap();
    let purged = place.run(&["prune", "--purge", "--yes"]);
    assert!(purged.code == 0 && purged.out.contains("1 checkpoint and 0 sessions erased"), "{purged:?}");
    assert!(purged.err.contains("1 more in the trash could not be erased"), "{purged:?}");
    held.release().await.unwrap();
    let purged = place.run(&["prune", "--purge", "--yes"]);
    assert!(purged.out.contains("1 checkpoint and 0 sessions erased") && !purged.err.contains("more in"), "{purged:?}");
}

#[test]
fn tags_that_are_added_at_once_are_all_kept() {
    let place = Place::new();
    let id = place.session("Tagged", &[]);
    let tags: Vec<String> = (0..6).map(|number| format!("+t{number}")).collect();
    let children: Vec<_> =
        tags.iter().map(|tag| place.command(["--wait", "60", "sessions", "tag", &id, tag]).spawn().unwrap()).collect();
    for child in children {
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(place.json(&["sessions", "show", &id])["tags"].as_array().unwrap().len(), 6);
}

#[test]
fn an_archive_that_is_away_is_not_made_anew() {
    let place = Place::new();
    let id = place.session("Old", &["one"]);
    let archive = place.file("archive.db");
    place.ok(&["sessions", "archive", &id, "--to", &format!("sqlite:{}", archive.display())]);
    let away = place.file("away.db");
    std::fs::rename(&archive, &away).unwrap();
    for args in [&["sessions", "unarchive", &id][..], &["sessions", "show", &id], &["sessions", "resume", &id]] {
        let ran = place.run(args);
        assert!(ran.code == 7 && ran.err.contains("nothing is there"), "{args:?}: {ran:?}");
        assert!(!archive.exists(), "{args:?}");
    }
    std::fs::rename(&away, &archive).unwrap();
    place.ok(&["sessions", "unarchive", &id]);
    assert_eq!(place.texts(&id), ["one"]);
    // One that is gone for good is not listed for ever.
    place.ok(&["sessions", "archive", &id, "--to", &format!("sqlite:{}", archive.display())]);
    std::fs::remove_file(&archive).unwrap();
    let gone = place.run(&["sessions", "unarchive", &id]);
    assert!(gone.err.contains("--forget"), "{gone:?}");
    place.ok(&["sessions", "unarchive", &id, "--forget"]);
    assert_eq!(place.json(&["sessions", "list", "--archived"])["archived"].as_array().unwrap().len(), 0);
    assert_eq!(place.run(&["sessions", "show", &id]).code, 3);
}

#[test]
fn what_was_deleted_and_is_kept_for_its_branches_is_shown_as_that() {
    let place = Place::new();
    let id = place.session("Trunk", &["shared otters"]);
    place.ok(&["checkpoint", &id, "--label", "fork"]);
    let branch = place.ok(&["sessions", "branch", &id, "--checkpoint", "fork"]);
    place.ok(&["sessions", "delete", &id, "--keep-branches", "--yes"]);
    assert!(place.ok(&["sessions", "show", &id]).contains("it was deleted"), "it is not said");
    assert!(text(&place.json(&["sessions", "show", &id]), "/hidden").contains("deleted"));
    for args in [&["sessions", "search", "otters"][..], &["sessions", "search", "tters", "--substring"]] {
        let found = place.json(args);
        assert_eq!((text(&found, "/hits/0/sessionId"), found["hits"].as_array().unwrap().len()), (branch.as_str(), 1));
    }
}

#[test]
fn a_list_of_messages_says_how_many_there_are() {
    let place = Place::new();
    let id = place.session("Many", &[]);
    let list: Vec<Value> = (0..30).map(|number| json!({"role": "user", "content": number.to_string()})).collect();
    place.ok(&["messages", "add", &id, "--from-json", &json!(list).to_string()]);
    let ran = place.run(&["messages", "list", &id]);
    assert!(ran.err.contains("the last 20 of 30 messages; --all shows every one"), "{ran:?}");
    assert_eq!(place.run(&["messages", "list", &id, "--all"]).err, "");
    assert_eq!(place.run(&["messages", "list", &id, "--last", "40"]).err, "");
}

#[test]
fn what_came_after_a_checkpoint_is_never_left_in_silence() {
    let place = Place::new();
    let id = place.session("Later", &["one"]);
    place.ok(&["checkpoint", &id, "--label", "here"]);
    place.ok(&["state", "set", &id, "memory.late=1"]);
    for form in ["tree", "task", "plan", "graph"] {
        let to = place.path().join(form);
        let ran = place.run(&["sessions", "export", &id, "-f", form, "-o", to.to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.err.contains("changes of the state came after the last"), "{form}: {ran:?}");
    }
    let ran = place.run(&["sessions", "restore", &id, "here"]);
    assert!(ran.err.contains("go forward again with: milepost sessions restore"), "{ran:?}");
}

#[test]
fn what_the_policy_puts_into_the_trash_is_told() {
    let place = Place::new();
    place.write(
        "milepost.yaml",
        "policy: {max_checkpoints_per_session: 3, every_messages: 1, prune_after_node_count: 2}\n",
    );
    let id = place.session("Short", &["one", "two", "three"]);
    let told: Vec<String> =
        (0..6).map(|number| place.run(&["messages", "add", &id, &number.to_string()]).err).collect();
    assert!(told.iter().any(|said| said.contains("into the trash") && said.contains("--trashed")), "{told:?}");
    let trashed = place.json(&["sessions", "checkpoints", &id, "--trashed"]);
    assert!(!trashed["checkpoints"].as_array().unwrap().is_empty(), "{trashed:#}");
}

#[tokio::test]
async fn why_a_session_is_paused_or_waits_is_shown() {
    let place = Place::new();
    let id = place.session("Stopped", &["one"]);
    let shown = place.json(&["sessions", "show", &id]);
    assert_eq!(shown["reason"], Value::Null, "{shown:#}");
    place.ok(&["sessions", "pause", &id, "--reason", "waiting for the auditors"]);
    // A checkpoint that was taken since does not hide it.
    place.ok(&["checkpoint", &id, "--label", "since"]);
    let shown = place.ok(&["sessions", "show", &id]);
    assert!(shown.lines().any(|line| line.contains("because") && line.contains("waiting for the auditors")), "{shown}");
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/reason"), "waiting for the auditors");
    let listed = place.json(&["sessions", "list"]);
    assert_eq!(text(&listed, "/sessions/0/reason"), "waiting for the auditors");
    // It goes with the pause, and another pause has its own.
    place.ok(&["sessions", "resume", &id]);
    assert_eq!(place.json(&["sessions", "show", &id])["reason"], Value::Null);
    place.ok(&["sessions", "pause", &id]);
    assert_eq!(place.json(&["sessions", "list"]).pointer("/sessions/0/reason"), Some(&Value::Null));
    // A program that waits says for what.
    let engine = place.another("the night shift").await;
    let held = engine.hold(id.parse().unwrap()).await.unwrap();
    held.wait("the answer of the legal department").await.unwrap();
    held.release().await.unwrap();
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/reason"), "the answer of the legal department");
}

#[test]
fn a_project_that_only_programs_know_is_called_by_its_id() {
    let place = Place::new();
    let id = place.ok(&["sessions", "new", "--project", "acme/shop"]);
    let list = place.json(&["sessions", "list"]);
    assert_eq!(
        (text(&list, "/sessions/0/projectId"), text(&list, "/sessions/0/projectName")),
        ("acme/shop", "acme/shop")
    );
    assert_eq!(text(&place.json(&["sessions", "show", &id]), "/projectName"), "acme/shop");
    let none = place.session("None", &[]);
    assert_eq!(place.json(&["sessions", "show", &none])["projectName"], Value::Null);
}

#[test]
fn checkpoints_in_the_trash_are_told_apart_from_those_that_are_kept() {
    let place = Place::new();
    let id = place.session("Many", &[]);
    let gone = place.ok(&["checkpoint", &id]);
    place.ok(&["checkpoint", &id]);
    place.ok(&["sessions", "trash", &id, "--checkpoint", &gone]);
    let shown = place.json(&["sessions", "show", &id]);
    assert_eq!((number(&shown, "/checkpointCount"), number(&shown, "/checkpointsKept")), (3, 2));
    assert!(place.ok(&["sessions", "show", &id]).contains("2, of 3 that were taken"));
    let listed = place.json(&["sessions", "list"]);
    let counts = (number(&listed, "/sessions/0/checkpointCount"), number(&listed, "/sessions/0/checkpointsKept"));
    assert_eq!(counts, (3, 2));
    let table = place.ok(&["sessions", "list"]);
    let (head, row) = (table.lines().next().unwrap(), table.lines().nth(1).unwrap());
    let column = head.find("CHECKPOINTS").unwrap();
    assert_eq!(row[column..].split_whitespace().next(), Some("2"), "{table}");
}
