//! What a command refuses, warns of, or says besides, and with which exit code.

use crate::support::{Place, Ran, number, text};
use crate::tour_store::KEY;

#[test]
fn a_shredded_session_does_not_stop_the_doctor() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY);
        Ran::of(command.output().unwrap())
    };
    let ids: Vec<String> = (0..3).map(|_| run(&["sessions", "new"]).out.trim().to_owned()).collect();
    assert_eq!(run(&["keys", "shred", &ids[1], "--yes"]).code, 0);
    let ran = run(&["doctor"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains(&ids[1]) && ran.out.contains("unreadable:"), "{ran:?}");
    assert!(ran.out.contains("findings in 1 of 3 sessions"), "{ran:?}");
    let json: serde_json::Value = serde_json::from_str(&run(&["--json", "doctor"]).out).unwrap();
    assert_eq!(text(&json, "/findings/0/sessionId"), ids[1]);
    assert!(text(&json, "/findings/0/unreadable").contains("shredded"), "{json:#}");
}

#[tokio::test]
async fn a_dry_run_of_resume_refuses_what_resume_refuses_and_changes_nothing() {
    let place = Place::new();
    let id = place.session("Done", &["one"]);
    let same = |flags: &[&str], code: i32| {
        let dry = place.run(&[&["sessions", "resume", &id, "--dry-run"], flags].concat());
        assert_eq!(dry.code, code, "{flags:?}: {dry:?}");
        if code != 0 {
            let real = place.run(&[&["sessions", "resume", &id], flags].concat());
            let words = |ran: &Ran| ran.err.split(" until ").next().unwrap().to_owned();
            assert_eq!((real.code, words(&real)), (dry.code, words(&dry)));
        }
    };
    let seen = place.json(&["sessions", "resume", &id, "--dry-run"]);
    assert_eq!((&seen["skipped"], &seen["archived"]), (&serde_json::json!([]), &serde_json::Value::Null));
    place.ok(&["sessions", "complete", &id]);
    same(&[], 1);
    same(&["--reopen"], 0);
    place.ok(&["sessions", "trash", &id]);
    same(&["--reopen"], 1);
    place.ok(&["sessions", "untrash", &id]);
    let engine = place.another("the night shift").await;
    let held = engine.hold(id.parse().unwrap()).await.unwrap();
    same(&["--reopen"], 4);
    same(&["--reopen", "--take-over"], 0);
    held.release().await.unwrap();
    engine.close().await.unwrap();
    let archive = format!("sqlite:{}", place.file("archive.db").display());
    place.ok(&["sessions", "archive", &id, "--to", &archive]);
    let dry = place.json(&["sessions", "resume", &id, "--dry-run", "--reopen"]);
    assert_eq!(text(&dry, "/archived"), archive);
    assert!(dry["resumeFrom"].is_string(), "{dry:#}");
    assert_eq!(place.run(&["sessions", "resume", &id, "--dry-run"]).code, 1, "it is completed there too");
    assert!(place.json(&["sessions", "list"])["sessions"].as_array().unwrap().is_empty(), "it is still archived");
}

#[test]
fn what_is_in_the_trash_or_completed_is_not_added_to_unawares() {
    let place = Place::new();
    let id = place.session("Thrown away", &["one"]);
    place.ok(&["sessions", "trash", &id]);
    for args in [
        &["messages", "add", &id, "two"][..],
        &["state", "set", &id, "memory.step=1"],
        &["checkpoint", &id],
        &["sessions", "pause", &id],
        &["sessions", "complete", &id],
    ] {
        let ran = place.run(args);
        assert!(ran.code == 1 && ran.err.contains("sessions untrash"), "{args:?}: {ran:?}");
    }
    place.ok(&["sessions", "untrash", &id]);
    assert_eq!(place.texts(&id), ["one"]);
    assert_eq!(place.run(&["messages", "add", &id, "two"]).err, "");
    place.ok(&["sessions", "complete", &id]);
    let ran = place.run(&["sessions", "pause", &id]);
    assert!(ran.code == 1 && ran.err.contains("--reopen"), "{ran:?}");
    let ran = place.run(&["messages", "add", &id, "three"]);
    assert!(ran.code == 0 && ran.err.contains("warning:") && ran.err.contains("is completed"), "{ran:?}");
}

#[test]
fn labels_roles_and_triggers_that_cannot_be_meant_are_refused() {
    let place = Place::new();
    let id = place.session("Strict", &["one"]);
    let mark = place.ok(&["checkpoint", &id, "--label", " trimmed "]);
    assert_eq!(text(&place.json(&["sessions", "inspect", &id, "trimmed"]), "/checkpoint_id"), mark);
    for (label, why) in [
        ("latest", "the newest checkpoint"),
        ("2026-11-16", "reads as a time"),
        ("1700000000000", "reads as a time"),
        (mark.as_str(), "the id of a checkpoint"),
        (" ", "it is empty"),
    ] {
        let ran = place.run(&["checkpoint", &id, "--label", label]);
        assert!(ran.code == 2 && ran.err.contains(why), "{label}: {ran:?}");
    }
    let long = "a".repeat(65);
    for (role, says) in [
        ("", "use one of"),
        ("User", "did you mean user?"),
        ("asistant", "did you mean assistant?"),
        ("a b", "use one of"),
        ("a\u{1b}[2J", "use one of"),
        (&long, "use one of"),
    ] {
        let ran = place.run(&["messages", "add", &id, "x", "--role", role]);
        assert!(ran.code == 2 && ran.err.contains(says) && ran.err.contains("--from-json"), "{role:?}: {ran:?}");
        let ran = place.run(&["sessions", "search", "x", "--role", role]);
        assert_eq!(ran.code == 2, role != "asistant", "{role:?}: {ran:?}");
    }
    place.ok(&["messages", "add", &id, "--from-json", "{\"role\": \"narrator\", \"content\": \"x\"}"]);
    for command in [&["checkpoint", &id][..], &["sessions", "checkpoints", &id]] {
        let ran = place.run(&[command, &["--type", "milestne"]].concat());
        assert!(ran.code == 2 && ran.err.contains("did you mean milestone?"), "{ran:?}");
        let ran = place.run(&[command, &["--type", "bogus"]].concat());
        assert!(ran.code == 2 && ran.err.contains("no trigger: use one of"), "{ran:?}");
    }
}

#[test]
fn known_secrets_are_found_by_the_rules_of_the_configuration() {
    let place = Place::new();
    let id = place.session("Talk", &["the code is HUSH-1234", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"]);
    let other = place.session("Other", &["nothing here"]);
    place.write("milepost.yaml", "redaction:\n  patterns: ['HUSH-[0-9]+']\n");
    let found = place.json(&["redact", "--known", "--dry-run"]);
    assert_eq!((number(&found, "/entries"), text(&found, "/sessions/0")), (1, id.as_str()), "{found:#}");
    place.write("milepost.yaml", "redaction:\n  enabled: false\n  patterns: ['HUSH-[0-9]+', 'nothing here']\n");
    assert_eq!(number(&place.json(&["redact", "--known", "--dry-run"]), "/entries"), 2);
    place.write("milepost.yaml", "redaction:\n  patterns: ['HUSH-[0-9]+', 'nothing here']\n  allow: ['HUSH-[0-9]+']\n");
    let found = place.json(&["redact", "--known", "--dry-run"]);
    assert_eq!((number(&found, "/entries"), text(&found, "/sessions/0")), (1, other.as_str()), "{found:#}");
}

#[test]
fn what_came_after_the_latest_checkpoint_is_told() {
    let place = Place::new();
    let id = place.session("Moved on", &["one"]);
    let mark = place.ok(&["checkpoint", &id]);
    let at = format!("{id}@{mark}");
    let diff = place.run(&["sessions", "diff", &at, &id]);
    assert_eq!(diff.err, "");
    place.ok(&["messages", "add", &id, "two"]);
    place.ok(&["messages", "add", &id, "three"]);
    let diff = place.run(&["sessions", "diff", &at, &id]);
    assert!(diff.err.contains("has moved on by 2 messages"), "{diff:?}");
    let diff = place.json(&["sessions", "diff", &at, &id]);
    assert_eq!((diff["a"]["after"].as_u64(), number(&diff, "/b/after")), (None, 2));
    let branch = place.run(&["sessions", "branch", &id]);
    assert!(branch.err.contains("without 2 messages"), "{branch:?}");
    assert_eq!(number(&place.json(&["sessions", "branch", &id]), "/messagesLeft"), 2);
    place.ok(&["checkpoint", &id]);
    assert_eq!(place.run(&["sessions", "branch", &id]).err, "");
}

#[test]
fn a_checkpoint_of_another_session_is_not_there() {
    let place = Place::new();
    let (a, b) = (place.session("A", &["one"]), place.session("B", &["two"]));
    let mark = place.ok(&["checkpoint", &a]);
    let ran = place.run(&["sessions", "restore", &b, &mark]);
    assert!(ran.code == 3 && ran.err.contains(&format!("belongs to session {a}")), "{ran:?}");
}

#[test]
fn secrets_of_messages_are_shown_only_to_who_asks() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command
            .env("MILEPOST_ENCRYPTION_ENABLED", "true")
            .env("MILEPOST_KEY", KEY)
            .env("MILEPOST_REDACTION_VAULT", "true");
        let ran = Ran::of(command.output().unwrap());
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.out
    };
    let secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    let id = run(&["sessions", "new"]).trim().to_owned();
    run(&["messages", "add", &id, &format!("it is {secret}")]);
    for reveals in [&["messages", "list", &id][..], &["messages", "tail", &id, "--no-follow"]] {
        for json in [&["--json"][..], &[]] {
            assert!(!run(&[json, reveals].concat()).contains(secret), "{reveals:?}");
            assert!(run(&[json, reveals, &["--reveal"]].concat()).contains(secret), "{reveals:?}");
        }
    }
    for format in ["markdown", "jsonl"] {
        assert!(!run(&["sessions", "export", &id, "--format", format]).contains(secret));
    }
}

#[test]
fn a_secret_is_erased_from_archives_and_those_out_of_reach_are_named() {
    let place = Place::new();
    let [there, away] = ["There", "Away"].map(|title| place.session(title, &["it is wombat-77"]));
    let url = |name: &str| format!("sqlite:{}", place.file(name).display());
    place.ok(&["sessions", "archive", &there, "--to", &url("there.db")]);
    place.ok(&["sessions", "archive", &away, "--to", &url("away.db")]);
    std::fs::rename(place.file("away.db"), place.file("cupboard.db")).unwrap();
    let ran = place.run(&["redact", "wombat-77", "--yes"]);
    assert_eq!(ran.code, 7, "not everything was reached: {ran:?}");
    assert!(ran.out.contains("erased from 1 entry") && ran.out.contains("there.db"), "{ran:?}");
    assert!(ran.err.contains("away.db was not reached and may hold it, in 1 session"), "{ran:?}");
    assert!(!place.file("away.db").exists(), "nothing was made in its place");
    std::fs::rename(place.file("cupboard.db"), place.file("away.db")).unwrap();
    let found = place.json(&["redact", "wombat-77", "--yes"]);
    assert_eq!(found["archives"].as_array().unwrap().len(), 2, "{found:#}");
    for id in [&there, &away] {
        place.ok(&["sessions", "unarchive", id]);
        assert_eq!(place.texts(id), ["it is [redacted]"]);
    }
    place.ok(&["sessions", "archive", &there, "--to", &url("there.db")]);
}

#[test]
fn sql_says_which_sessions_it_cannot_read() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY);
        Ran::of(command.output().unwrap())
    };
    let ids: Vec<String> = (0..3).map(|_| run(&["sessions", "new"]).out.trim().to_owned()).collect();
    assert_eq!(run(&["keys", "shred", &ids[1], "--yes"]).code, 0);
    let ran = run(&["sql", "select id from sessions"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains(&ids[0]) && ran.out.contains(&ids[2]) && !ran.out.contains(&ids[1]), "{ran:?}");
    let end = &ids[1][ids[1].len() - 8..];
    assert!(ran.err.contains("without") && ran.err.contains(end) && ran.err.contains("shredded"), "{ran:?}");
}

#[test]
fn what_a_resume_would_set_is_checked_before() {
    let place = Place::new();
    let id = place.session("Set", &["one"]);
    place.ok(&["state", "set", &id, "memory.name=Ada"]);
    let set = &["sessions", "resume", &id, "--set", "memory.name.first=1"];
    let (dry, real) = (place.run(&[&set[..], &["--dry-run"]].concat()), place.run(set));
    assert_eq!((dry.code, &dry.err), (real.code, &real.err));
    assert!(dry.code != 0 && dry.err.contains("on the way there is a text"), "{dry:?}");
}

#[test]
fn a_command_that_fails_gives_the_session_back() {
    let place = Place::new();
    let id = place.session("Given back", &["one"]);
    place.ok(&["state", "set", &id, "memory.n=1"]);
    for args in [
        &["state", "set", &id, "memory.n.deeper=2"][..],
        &["sessions", "uncompact", &id],
        &["messages", "add", &id, "--from-json", "[]"],
    ] {
        let ran = place.run(args);
        assert_ne!(ran.code, 0, "{ran:?}");
        let shown = place.ok(&["sessions", "show", &id]);
        assert!(!shown.contains("held by"), "after {args:?}: {shown}");
    }
}

/// What is copied to an archive stays there: whoever deletes a session for good is told.
#[test]
fn deleting_a_session_names_the_copies_in_archives() {
    let place = Place::new();
    let id = place.session("Kept twice", &["one"]);
    let archive = format!("sqlite:{}", place.path().join("archive.db").display());
    place.ok(&["sessions", "archive", &id, "--to", &archive]);
    place.ok(&["sessions", "unarchive", &id]);
    let would = place.json(&["sessions", "delete", &id, "--dry-run"]);
    assert_eq!(text(&would, "/inArchives/0/url"), archive);
    let deleted = place.run(&["sessions", "delete", &id, "--yes"]);
    let way = format!("milepost --store {archive} sessions delete {id}");
    assert!(deleted.code == 0 && deleted.err.contains(&way), "{deleted:?}");
    place.ok(&["--store", &archive, "sessions", "delete", &id, "--yes"]);
}

#[test]
fn a_checkpoint_in_the_trash_is_not_the_latest() {
    let place = Place::new();
    let id = place.session("Trashed", &["one"]);
    let mark = place.ok(&["checkpoint", &id, "--label", "lab"]);
    place.ok(&["sessions", "trash", &id, "--checkpoint", "lab"]);
    let shown = place.run(&["sessions", "show", &id]).out;
    assert!(!shown.contains(mark.trim()) && shown.contains("of 2 that were taken"), "{shown}");
    assert_ne!(place.json(&["sessions", "show", &id])["lastCheckpoint"], mark.trim());
}

/// A state that changed after the checkpoint is left behind like a message: that is told.
#[test]
fn branching_and_restoring_tell_of_changes_of_the_state_that_stay_behind() {
    let place = Place::new();
    let id = place.session("State", &["one"]);
    place.ok(&["checkpoint", &id, "--label", "lab"]);
    place.ok(&["state", "set", &id, "memory.new=1"]);
    let branched = place.run(&["sessions", "branch", &id]);
    assert!(branched.err.contains("without a change of its state"), "{branched:?}");
    assert_eq!(place.json(&["sessions", "branch", &id])["stateLeft"], true);
    let would = place.run(&["sessions", "restore", &id, "lab", "--dry-run"]);
    assert!(would.out.contains("a change of its state would stay"), "{would:?}");
    place.ok(&["messages", "add", &id, "two"]);
    let compared = place.run(&["sessions", "diff", &format!("{id}@lab"), &id]);
    assert!(compared.err.contains("1 message and a change of its state"), "{compared:?}");
}

#[test]
fn a_comparison_names_every_value_that_went() {
    let place = Place::new();
    let id = place.session("Paths", &["one"]);
    let keys = |count: usize| {
        let keys: Vec<String> = (0..count).map(|number| format!("\"k{number}\":{number}")).collect();
        format!("memory={{{}}}", keys.join(","))
    };
    for (count, label) in [(60, "many"), (20, "few")] {
        place.ok(&["state", "set", &id, &keys(count)]);
        place.ok(&["checkpoint", &id, "--label", label]);
    }
    let diff = place.json(&["sessions", "diff", &format!("{id}@many"), &format!("{id}@few")]);
    let paths: Vec<&str> = diff["state"].as_array().unwrap().iter().map(|one| text(one, "/path")).collect();
    assert!(paths.len() == 40 && paths.contains(&"/memory/k59") && !paths.contains(&"/memory/k19"), "{paths:?}");
}

#[test]
fn a_tag_that_is_a_secret_is_shown_and_removed_as_it_is_stored() {
    let place = Place::new();
    let id = place.session("Tagged", &["one"]);
    let secret = "AKIAIOSFODNN7TAGXXXX";
    let added = place.ok(&["sessions", "tag", &id, &format!("+{secret}")]);
    assert!(added.contains("redacted") && !added.contains(secret), "{added}");
    let removed = place.ok(&["sessions", "tag", &id, &format!("-{secret}")]);
    assert!(!removed.contains("redacted"), "{removed}");
}

#[test]
fn lists_for_programs_have_the_last_message() {
    let place = Place::new();
    let id = place.session("Listed", &["one", "two"]);
    let list = place.json(&["sessions", "list"]);
    assert_eq!(text(&list, "/sessions/0/sessionId"), id);
    assert_eq!(text(&list, "/sessions/0/lastMessage/content"), "two");
}

/// A copy of what is not encrypted would be thought encrypted; the way that is named leads to one that is.
#[test]
fn migrating_does_not_pass_off_what_is_in_clear_as_encrypted() {
    let place = Place::new();
    let id = place.session("Clear", &["one"]);
    let (from, to) = (place.url(), "sqlite:new.db");
    let with_key = |args: &[&str]| {
        let mut command = place.command(args);
        Ran::of(command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY).output().unwrap())
    };
    let refused = with_key(&["migrate", &from, to]);
    assert!(refused.code == 6 && refused.err.contains("export its sessions without the key"), "{refused:?}");
    place.ok(&["sessions", "export", &id, "-o", "one.milepost"]);
    let imported = with_key(&["--store", to, "sessions", "import", "one.milepost"]);
    assert_eq!(imported.code, 0, "{imported:?}");
    assert_eq!(with_key(&["--store", to, "messages", "list", &id]).code, 0);
    let bytes = std::fs::read(place.path().join("new.db")).unwrap();
    assert!(!bytes.windows(5).any(|part| part == b"Clear"), "it is encrypted");
}

#[test]
fn looking_for_a_project_begins_none() {
    let place = Place::new();
    place.session("Elsewhere", &["one"]);
    for args in [&["projects", "show"][..], &["artifacts", "list"]] {
        let ran = place.run(args);
        assert!(ran.code != 0 && ran.err.contains("milepost sessions new --here"), "{ran:?}");
    }
    assert_eq!(place.json(&["projects", "list"])["projects"], serde_json::json!([]));
    place.ok(&["sessions", "new", "--here"]);
    place.ok(&["projects", "show"]);
    place.ok(&["artifacts", "list"]);
}
