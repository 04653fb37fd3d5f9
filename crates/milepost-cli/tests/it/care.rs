//! Nothing is made, written over, left out or waited for unawares.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::{Place, Ran, number, text};
use crate::tour_store::KEY;

fn url(place: &Place, name: &str) -> String {
    format!("sqlite:{}", place.file(name).display())
}

/// Runs in an encrypted workspace.
fn encrypted(place: &Place, args: &[&str]) -> Ran {
    let mut command = place.command(args);
    command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY);
    Ran::of(command.output().unwrap())
}

#[test]
fn what_only_reads_or_needs_a_session_makes_no_store() {
    let place = Place::new();
    let listed = place.run(&["sessions", "list"]);
    assert_eq!((listed.code, listed.out.as_str()), (0, ""));
    assert!(listed.err.contains("no store is at") && listed.err.contains("milepost sessions new"), "{listed:?}");
    assert_eq!(place.json(&["sessions", "list"]), json!({ "sessions": [], "more": false }));
    for args in [
        &["sessions", "show", "last"][..],
        &["sessions", "search", "x"],
        &["messages", "add", "last", "hello"],
        &["state", "get", "last"],
        &["checkpoint", "last"],
        &["stats"],
        &["verify"],
        &["doctor"],
        &["sql", "select 1"],
        &["prune"],
        &["reindex"],
        &["redact", "secret", "--yes"],
        &["backup", "copy.db"],
        &["push", "last", "sqlite:other.db"],
        &["keys", "sign", "last", "--key", "key"],
    ] {
        let ran = place.run(args);
        assert!(ran.code != 0 && ran.out.is_empty(), "{args:?}: {ran:?}");
    }
    place.ok(&["keys", "show"]);
    assert!(!place.file("data").exists() && !place.file("other.db").exists(), "a store was made");
    let typo = place.run(&["--store", "sqlite:typo.db", "sessions", "list"]);
    assert!(typo.code == 0 && typo.err.contains("typo.db"), "{typo:?}");
    assert!(!place.file("typo.db").exists());
    // A key that comes before the first session is taken.
    assert_eq!(encrypted(&place, &["sessions", "new"]).code, 0);
    // So it is in a workspace of its own.
    let other = |args: &[&str]| place.run(&[&["--workspace", "other"], args].concat());
    let listed = other(&["sessions", "list"]);
    assert!(listed.code == 0 && listed.err.contains("workspace other has nothing in"), "{listed:?}");
    assert_eq!(other(&["verify"]).code, 3);
    assert_eq!(encrypted(&place, &["--workspace", "other", "sessions", "new"]).code, 0);
    assert_eq!(other(&["sessions", "list"]).code, 6, "it is encrypted");
}

#[test]
fn a_resume_from_a_checkpoint_tells_the_way_forward() {
    let place = Place::new();
    let id = place.session("There and back", &["one"]);
    let mark = place.ok(&["checkpoint", &id]);
    place.ok(&["messages", "add", &id, "two"]);
    let resumed = place.run(&["sessions", "resume", &id, "--checkpoint", &mark]);
    let command = resumed.err.split("go forward again with: milepost ").nth(1).expect(&resumed.err).trim().to_owned();
    assert_eq!(place.texts(&id), ["one"]);
    place.ok(&command.split(' ').collect::<Vec<_>>());
    assert_eq!(place.texts(&id), ["one", "two"]);
    let resumed = place.json(&["sessions", "resume", &id, "--checkpoint", &mark]);
    assert_eq!(resumed["moved"], json!(true));
    place.ok(&["sessions", "restore", &id, text(&resumed, "/forward")]);
    assert_eq!(place.texts(&id), ["one", "two"]);
    let resumed = place.json(&["sessions", "resume", &id]);
    assert_eq!((&resumed["moved"], &resumed["forward"]), (&json!(false), &Value::Null));
}

#[test]
fn an_export_into_a_directory_writes_over_nothing_unless_told_to() {
    let place = Place::new();
    let id = place.session("Exported", &["one"]);
    place.ok(&["sessions", "new", "--project", "p"]);
    for (format, file) in [
        ("task", ".metadata/task.json".to_owned()),
        ("task", ".checkpoints/latest.json".to_owned()),
        ("tree", format!("sessions/{id}/metadata.json")),
        ("tree", format!("checkpoints/{id}/conversation.jsonl")),
        ("plan", format!("plans/{id}.json")),
        ("files", format!("chat_{id}.json")),
    ] {
        let dir = place.file(&format!("out-{format}-{}", file.replace('/', "-")));
        let mine = dir.join(&file);
        std::fs::create_dir_all(mine.parent().unwrap()).unwrap();
        std::fs::write(&mine, "mine").unwrap();
        let args = ["sessions", "export", &id, "-f", format, "-o", dir.to_str().unwrap()];
        let ran = place.run(&args);
        assert!(ran.code != 0 && ran.err.contains("--force") && ran.err.contains(&file), "{format}: {ran:?}");
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
        let files = walkdir(&dir);
        assert_eq!(files, std::slice::from_ref(&mine), "{format}: nothing else was written");
        place.ok(&[&args[..], &["--force"]].concat());
        assert_ne!(std::fs::read_to_string(&mine).unwrap(), "mine");
    }
    // Two sessions of a project share its index.
    let dir = place.file("bucket").display().to_string();
    let ids: Vec<String> = (0..2).map(|_| place.ok(&["sessions", "new", "--project", "p"])).collect();
    ids.iter().for_each(|id| drop(place.ok(&["sessions", "export", id, "-f", "tree", "-o", &dir])));
}

fn walkdir(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => found.extend(walkdir(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn what_an_encrypted_workspace_exports_is_for_its_user_alone_and_said_to_be_in_clear() {
    let place = Place::new();
    let id = encrypted(&place, &["sessions", "new"]).out.trim().to_owned();
    assert_eq!(encrypted(&place, &["messages", "add", &id, "hush"]).code, 0);
    for format in ["bundle", "markdown", "jsonl", "files", "tree", "task", "plan", "feature", "graph", "sqlite"] {
        let out = place.file(&format!("out-{format}"));
        let ran = encrypted(&place, &["sessions", "export", &id, "-f", format, "-o", out.to_str().unwrap()]);
        assert!(ran.code == 0 && ran.err.contains("in clear"), "{format}: {ran:?}");
        let files = if out.is_dir() { walkdir(&out) } else { vec![out] };
        assert!(!files.is_empty());
        for file in files {
            let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{format}: {}", file.display());
        }
    }
    let ran = encrypted(&place, &["sessions", "export", &id, "-f", "markdown"]);
    assert!(ran.err.contains("in clear"), "{ran:?}");
}

#[test]
fn an_archived_session_is_said_to_be_archived() {
    let place = Place::new();
    let id = place.session("Away", &["otters"]);
    let other = place.session("Here", &["beavers"]);
    let to = url(&place, "archive.db");
    let dry = place.run(&["sessions", "archive", &id, "--to", &to, "--dry-run"]);
    assert!(dry.code == 0 && dry.out.contains("would move"), "{dry:?}");
    assert!(!place.file("archive.db").exists() && place.texts(&id) == ["otters"], "a dry run changed something");
    let same = place.run(&["sessions", "archive", &id, "--to", &place.url(), "--dry-run"]);
    assert_eq!(same.code, 1, "{same:?}");
    assert_eq!(place.run(&["sessions", "search", "beavers"]).err, "");
    place.ok(&["sessions", "archive", &id, "--to", &to]);
    let end = &id[id.len() - 8..];
    for given in [id.as_str(), end] {
        for args in [
            &["messages", "list", given][..],
            &["messages", "add", given, "more"],
            &["state", "get", given],
            &["sessions", "delete", given, "--yes"],
            &["sessions", "checkpoints", given],
            &["sessions", "export", given],
            &["checkpoint", given],
        ] {
            let ran = place.run(args);
            assert_eq!(ran.code, 3, "{args:?}: {ran:?}");
            assert!(ran.err.contains("is archived in") && ran.err.contains(&format!("unarchive {end}")), "{ran:?}");
        }
    }
    let found = place.run(&["sessions", "search", "otters"]);
    assert!(found.code == 0 && found.err.contains("1 archived session was not searched"), "{found:?}");
    assert_eq!(number(&place.json(&["sessions", "search", "otters"]), "/archivedNotSearched"), 1);
    assert_eq!(place.texts(&other), ["beavers"]);
}

#[test]
fn a_dry_run_of_shredding_says_what_would_be_lost() {
    let place = Place::new();
    let id = encrypted(&place, &["sessions", "new", "--title", "Plans"]).out.trim().to_owned();
    assert_eq!(encrypted(&place, &["messages", "add", &id, "hush"]).code, 0);
    let branch = encrypted(&place, &["sessions", "branch", &id]).out.trim().to_owned();
    let dry = encrypted(&place, &["keys", "shred", &id, "--dry-run"]);
    assert!(dry.code == 0 && dry.out.contains("1 message could never") && dry.out.contains(&branch), "{dry:?}");
    assert!(encrypted(&place, &["messages", "list", &id]).out.contains("hush"));
}

#[test]
fn the_same_session_named_twice_goes_into_the_trash_once() {
    let place = Place::new();
    let (first, second) = (place.session("First", &["one"]), place.session("Second", &["two"]));
    let moved = place.json(&["sessions", "trash", "last", "last"]);
    assert_eq!(moved["sessions"], json!([second]));
    assert_eq!(place.json(&["sessions", "list"])["sessions"][0]["sessionId"], json!(first));
}

#[test]
fn no_more_checkpoints_are_kept_than_the_policy_says() {
    let place = Place::new();
    place.write("milepost.yaml", "policy:\n  every_messages: 1\n  max_checkpoints_per_session: 3\n");
    let id = place.session("Short memory", &[]);
    for number in 0..8 {
        place.ok(&["messages", "add", &id, &format!("message {number}")]);
        let kept = place.json(&["sessions", "checkpoints", &id]);
        assert!(number_of(&kept) <= 3, "after {number}: {}", number_of(&kept));
    }
}

fn number_of(checkpoints: &Value) -> u64 {
    number(checkpoints, "/total_checkpoints")
}

#[test]
fn a_project_is_shown_by_its_name() {
    let place = Place::new();
    let work = place.file("work/otter-shop");
    std::fs::create_dir_all(&work).unwrap();
    let run = |args: &[&str]| Ran::of(place.command(args).current_dir(&work).output().unwrap());
    let made = run(&["--json", "sessions", "new", "--here", "--reuse"]);
    let made: Value = serde_json::from_str(&made.out).unwrap_or_else(|_| panic!("{made:?}"));
    assert_eq!(text(&made, "/projectName"), "otter-shop");
    let listed = place.ok(&["sessions", "list"]);
    assert!(listed.contains("otter-shop") && !listed.contains("prj_"), "{listed}");
    let shown = place.ok(&["sessions", "show", text(&made, "/sessionId")]);
    assert!(shown.contains("otter-shop (prj_"), "{shown}");
}

#[test]
fn everything_that_was_dropped_from_requests_can_be_seen() {
    let place = Place::new();
    let id = place.session("Long", &[]);
    let none = place.run(&["sessions", "compact", &id, "--dropped"]);
    assert!(none.code == 0 && none.err.contains("no summary is in force"), "{none:?}");
    let long = "in so much detail that it is worth being said in fewer words by a summary of it, which is short";
    let add = |from: u32, to: u32| {
        let said = |number| json!({ "role": "user", "content": format!("We decided on plan {number}, {long}.") });
        let list: Vec<Value> = (from..to).map(said).collect();
        place.ok(&["messages", "add", &id, "--from-json", &json!(list).to_string()]);
    };
    add(0, 20);
    place.ok(&["sessions", "compact", &id, "--keep", "2"]);
    add(20, 40);
    place.ok(&["sessions", "compact", &id, "--keep", "2"]);
    let shown = place.ok(&["sessions", "compact", &id, "--dropped"]);
    assert!(shown.contains("summary 1 stands for 18 messages") && shown.contains("summary 2 stands for 20 messages"));
    assert!(shown.contains("plan 0,") && shown.contains("plan 37,") && !shown.contains("plan 38,"), "{shown}");
    let parts = place.json(&["sessions", "compact", &id, "--dropped"]);
    assert_eq!(parts["compactions"].as_array().unwrap().len(), 2);
}

#[test]
fn many_that_add_at_once_wait_for_each_other() {
    let place = Place::new();
    let id = place.session("Busy", &[]);
    let add = |number: usize| place.command(["messages", "add", &id, &format!("message {number}")]).spawn().unwrap();
    let children: Vec<_> = (0..8).map(add).collect();
    for child in children {
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let mut said = place.texts(&id);
    said.sort();
    assert_eq!(said, (0..8).map(|number| format!("message {number}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn who_does_not_wait_is_told_at_once_who_holds_the_session() {
    let place = Place::new();
    let id = place.session("Held", &[]);
    let engine = place.another("the night shift").await;
    let held = engine.hold(id.parse().unwrap()).await.unwrap();
    for args in [&["messages", "add", &id, "hello", "--wait", "0"][..], &["sessions", "resume", &id]] {
        let ran = place.run(args);
        assert!(ran.code == 4 && ran.err.contains("take over"), "{ran:?}");
    }
    let waiting = place.command(["messages", "add", &id, "hello", "--wait", "60"]).spawn().unwrap();
    held.release().await.unwrap();
    let ran = Ran::of(waiting.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(place.run(&["messages", "add", &id, "x", "--wait", "1000000"]).code, 2);
}

#[test]
fn a_completed_session_is_written_to_with_the_same_warning_whatever_is_written() {
    let place = Place::new();
    let id = place.session("Done", &[]);
    place.ok(&["sessions", "complete", &id]);
    let all: Vec<String> =
        [&["messages", "add", &id, "late"][..], &["state", "set", &id, "memory.late=true"], &["checkpoint", &id]]
            .iter()
            .map(|args| {
                let ran = place.run(args);
                assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
                ran.err
            })
            .collect();
    assert!(all[0].contains("warning:") && all[0].contains("--reopen"), "{all:?}");
    assert!(all.iter().all(|err| *err == all[0]), "{all:?}");
}

#[test]
fn whole_numbers_stay_what_they_are_or_are_refused() {
    let place = Place::new();
    let id = place.session("Numbers", &[]);
    for number in ["18446744073709551615", "-9223372036854775808", "0", "12345678901234567"] {
        place.ok(&["state", "set", &id, &format!("memory.n={number}")]);
        assert_eq!(place.ok(&["state", "get", &id, "memory.n"]), number);
    }
    let large = "123456789012345678901234567890";
    for value in [large.to_owned(), format!("[1, {{\"a\": -{large}}}]"), "18446744073709551616".to_owned()] {
        let ran = place.run(&["state", "set", &id, &format!("memory.n={value}")]);
        assert!(ran.code == 2 && ran.err.contains("rounded") && ran.err.contains("as a text"), "{value}: {ran:?}");
    }
    for text in [format!("\"{large}\""), format!("\"a \\\" {large}\""), "1e30".to_owned(), "0.5".to_owned()] {
        place.ok(&["state", "set", &id, &format!("memory.n={text}")]);
    }
    place.ok(&["state", "set", &id, &format!("memory.words=call {large}")]);
}

#[test]
fn a_store_is_not_copied_to_itself() {
    let place = Place::new();
    place.session("One", &[]);
    std::os::unix::fs::symlink(place.store(), place.file("link.db")).unwrap();
    for other in [place.url(), place.url().replace("sqlite:", "sqlite://"), "sqlite:link.db".to_owned()] {
        let ran = place.run(&["migrate", &place.url(), &other]);
        assert!(ran.code == 2 && ran.err.contains("the two stores are one"), "{other}: {ran:?}");
    }
}

#[test]
fn purging_asks_first() {
    let place = Place::new();
    place.write("milepost.yaml", "policy:\n  every_messages: 1\n  trash_days: 0\n");
    let id = place.session("Old", &["one", "two", "three"]);
    place.ok(&["prune", "--keep", "1"]);
    let refused = place.run(&["prune", "--purge"]);
    assert!(refused.code == 2 && refused.err.contains("--yes"), "{refused:?}");
    let before = place.json(&["sessions", "checkpoints", &id, "--trashed"]);
    assert!(number_of(&before) > 0, "{before:#}");
    place.ok(&["prune", "--purge", "--yes"]);
    assert_eq!(number_of(&place.json(&["sessions", "checkpoints", &id, "--trashed"])), 0);
    place.ok(&["prune", "--purge"]);
}

#[test]
fn what_an_export_leaves_out_is_said() {
    let place = Place::new();
    let id = place.session("Task", &["one"]);
    place.ok(&["checkpoint", &id]);
    let export = |format: &str, to: &str| place.run(&["sessions", "export", &id, "-f", format, "-o", to]);
    assert_eq!(export("task", "whole").err, "");
    place.ok(&["messages", "add", &id, "two"]);
    for format in ["task", "plan"] {
        let ran = export(format, &format!("part-{format}"));
        assert!(ran.code == 0 && ran.err.contains("1 message came after the last"), "{ran:?}");
        let files = place.json(&["sessions", "export", &id, "-f", format, "-o", &format!("again-{format}")]);
        assert_eq!(number(&files, "/messagesLeftOut"), 1);
    }
    assert_eq!(export("graph", "all").err, "");
}

#[test]
fn asking_nothing_in_sql_is_said_to_be_nothing() {
    let place = Place::new();
    place.session("One", &[]);
    for args in [&["sql"][..], &["sql", ""], &["sql", " \n"]] {
        let ran = place.run(args);
        assert!(ran.code == 2 && ran.err.contains("there is no statement"), "{ran:?}");
    }
}

#[test]
fn a_search_that_finds_nothing_succeeds() {
    let place = Place::new();
    place.session("One", &["hello"]);
    assert_eq!(place.run(&["sessions", "search", "otters"]).code, 0);
    assert!(place.ok(&["sessions", "search", "--help"]).contains("exits with 0 also when nothing is found"));
}

#[test]
fn settings_that_cannot_work_are_found_by_the_check() {
    let place = Place::new();
    place.write("no.key", "not a key");
    let ran = place.run(&["keys", "new", "--output", "good.key"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for (yaml, says) in [
        ("redaction:\n  vault: true\n", "encryption is not used"),
        ("encryption:\n  enabled: true\n", "MILEPOST_KEY is not set"),
        ("encryption:\n  key_file: missing.key\n", "missing.key"),
        ("encryption:\n  key_file: no.key\n", "no.key"),
        ("signing:\n  enabled: true\n", "MILEPOST_MARK_KEY is not set"),
        ("policy:\n  triggers:\n    mesages: false\n", "did you mean messages?"),
        ("policy:\n  triggers:\n    bogus: false\n", "use one of initial"),
    ] {
        place.write("milepost.yaml", yaml);
        let ran = place.run(&["config", "check"]);
        assert!(ran.code == 2 && ran.out.contains(says), "{yaml}: {ran:?}");
    }
    for yaml in [
        "encryption:\n  key_file: good.key\nredaction:\n  vault: true\n",
        "policy:\n  triggers:\n    messages: false\n",
    ] {
        place.write("milepost.yaml", yaml);
        assert_eq!(place.ok(&["config", "check"]), "no mistakes", "{yaml}");
        assert_eq!(place.ok(&["config", "check", "milepost.yaml"]), "no mistakes", "{yaml}");
    }
    place.write("milepost.yaml", "durability: turn\n");
    let ran = place.run(&["config", "check"]);
    assert!(ran.code == 0 && ran.out.contains("turn is for buckets"), "{ran:?}");
    std::fs::remove_file(place.file("milepost.yaml")).unwrap();
    let ran = place.run(&["sessions", "new", "--policy", "triggers.mesages=false"]);
    assert!(ran.code == 2 && ran.err.contains("did you mean messages?"), "{ran:?}");
    place.ok(&["sessions", "new", "--policy", "triggers.messages=false", "--policy", "smart.changed_keys=5"]);
}

#[test]
fn what_is_exported_as_a_feature_comes_back_whole() {
    for flags in [&["--feature", "f1"][..], &["--feature", "f1", "--task", "t1", "--stage", "in_qa"], &[]] {
        let (from, to) = (Place::new(), Place::new());
        let id = from.ok(&[&["sessions", "new", "--agent", "dev"], flags].concat());
        from.ok(&["messages", "add", &id, "hello"]);
        let dir = to.file("feature").display().to_string();
        from.ok(&["sessions", "export", &id, "-f", "feature", "-o", &dir]);
        let imported = to.run(&["sessions", "import", &dir]);
        assert_eq!((imported.code, imported.err.as_str()), (0, ""), "{flags:?}: {imported:?}");
        let (before, after) = (from.ok(&["sessions", "show", &id]), to.ok(&["sessions", "show", &id]));
        let about = |shown: &str| -> Vec<String> {
            let is_one =
                |line: &&str| ["feature ", "task ", "stage ", "agent "].iter().any(|name| line.starts_with(name));
            shown.lines().filter(is_one).map(str::to_owned).collect()
        };
        assert_eq!(about(&after), about(&before), "{flags:?}");
    }
}

#[test]
fn artifacts_that_cannot_be_kept_or_made_say_why() {
    let place = Place::new();
    let id = place.session("Made", &[]);
    let none = place.run(&["artifacts", "show", "nothing.md", "--of", &id]);
    assert!(none.code == 3 && none.err.contains("nothing.md"), "{none:?}");
    assert_eq!(place.run(&["artifacts", "list", "--of", "zzzzzzzz"]).code, 3);
    assert_eq!(place.run(&["artifacts", "show", "a.md", "--of", &id, "--project", "p"]).code, 2);
    let outside = place.run_with(&["artifacts", "put", "../a.md", "--of", &id], b"x");
    assert!(outside.code == 1 && outside.err.contains("relative path"), "{outside:?}");
    let large = place.run_with(&["artifacts", "put", "a.bin", "--of", &id], &vec![b'x'; 9 << 20]);
    assert!(large.code == 1 && large.err.contains("MAX_ARTIFACT_BYTES"), "{large:?}");
    let missing = place.run(&["artifacts", "put", "a.md", "no-such-file", "--of", &id]);
    assert!(missing.code == 3 && missing.err.contains("no-such-file"), "{missing:?}");
    let unknown = place.run(&["artifacts", "make", "a.md", "no-template", "--of", &id]);
    assert!(unknown.code == 3 && unknown.err.contains("no-template"), "{unknown:?}");
    place.run_with(&["artifacts", "put", "page", "--template", "--of", &id], b"{{title}}");
    let unfilled = place.run(&["artifacts", "make", "a.md", "page", "--of", &id]);
    assert!(unfilled.code == 1 && unfilled.err.contains("{{title}}"), "{unfilled:?}");
    assert_eq!(place.run(&["artifacts", "make", "a.md", "page", "--of", &id, "--set", "title"]).code, 2);
    let asked = place.run(&["artifacts", "delete", "page", "--of", &id]);
    assert!(asked.code == 2 && asked.err.contains("--yes"), "{asked:?}");
    let secret = ["ghp", "_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat();
    place.run_with(&["artifacts", "put", "notes.md", "--of", &id], format!("the key is {secret}").as_bytes());
    assert!(!place.ok(&["artifacts", "show", "notes.md", "--of", &id]).contains(&secret));
}

#[test]
fn a_migration_names_the_workspaces_that_it_did_not_copy() {
    let place = Place::new();
    place.session("Mine", &["one"]);
    place.ok(&["--workspace", "theirs", "sessions", "new"]);
    let moved = place.run(&["migrate", &place.url(), &url(&place, "new.db")]);
    assert!(moved.code == 0 && moved.err.contains("theirs") && moved.err.contains("--workspace"), "{moved:?}");
    let moved = place.json(&["--workspace", "theirs", "migrate", &place.url(), &url(&place, "new.db")]);
    assert_eq!((number(&moved, "/sessions"), &moved["otherWorkspaces"]), (1, &json!(["default"])));
}

#[test]
fn roles_of_older_chats_are_shown_in_our_words_and_written_in_theirs() {
    let place = Place::new();
    let lines = "{\"role\":\"human\",\"content\":\"go\"}\n{\"role\":\"ai\",\"content\":\"done\"}\n";
    place.write("log.jsonl", lines);
    place.ok(&["sessions", "import", "log.jsonl"]);
    let list = place.json(&["messages", "list", "last"]);
    assert_eq!((text(&list, "/messages/0/role"), text(&list, "/messages/1/role")), ("user", "assistant"));
    let written = place.ok(&["sessions", "export", "last", "--format", "jsonl"]);
    let roles = |text: &str| -> Vec<String> {
        let role = |line: &str| serde_json::from_str::<Value>(line).unwrap()["role"].as_str().unwrap().to_owned();
        text.lines().map(role).collect()
    };
    assert_eq!(roles(&written), ["human", "ai"]);
    assert!(written.lines().all(|line| !line.contains("as_written")), "{written}");
    place.ok(&["sessions", "export", "last", "--format", "files", "--output", "files"]);
    let chat = std::fs::read_dir(place.file("files")).unwrap().map(|file| file.unwrap().path());
    let chat = chat.into_iter().find(|path| path.file_name().unwrap().to_string_lossy().starts_with("chat_")).unwrap();
    let chat: Value = serde_json::from_slice(&std::fs::read(chat).unwrap()).unwrap();
    assert_eq!((text(&chat, "/messages/0/role"), text(&chat, "/messages/1/role")), ("human", "ai"));
    // What is said since has our words.
    place.ok(&["messages", "add", "last", "more"]);
    assert_eq!(roles(&place.ok(&["sessions", "export", "last", "--format", "jsonl"])), ["human", "ai", "user"]);
}
