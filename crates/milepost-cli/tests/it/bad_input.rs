//! What was typed wrong, named wrong, or brought from elsewhere: each message as a person sees it, with its exit code.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use milepost::model::Resumable;
use milepost::{Milepost, NewMark, Trigger};
use serde_json::{Value, json};

use crate::support::{Place, Ran};
use crate::transcript::{Transcript, assert_seen};

/// Runs them all; none may succeed.
fn all_fail(seen: &mut Transcript<'_>, commands: &[&[&str]]) {
    for args in commands {
        let ran = seen.run(args);
        assert_ne!(ran.code, 0, "{args:?}: {}", ran.out);
        assert!(ran.out.is_empty(), "{args:?}: {}", ran.out);
    }
}

#[test]
fn what_is_not_there_or_is_several_things_is_named() {
    let place = Place::new();
    let mut seen = Transcript::new(&place);
    all_fail(&mut seen, &[&["sessions", "show", "last"]]);
    let (first, second) = (place.session("First", &[]), place.session("Second", &[]));
    let other = place.ok(&["checkpoint", &second]);
    let ambiguous = place.run(&["sessions", "show", &first[..8]]);
    assert_eq!(ambiguous.code, 3);
    let err = ambiguous.err.replace(&format!("{:?}", &first[..8]), "\"…\"");
    seen.note(&["sessions", "show", "# the beginning of both"], &Ran { err, ..ambiguous });
    all_fail(
        &mut seen,
        &[
            &["sessions", "show", "zzzzzzzz"],
            &["sessions", "show", "ses_00000000000000000000000000"],
            &["sessions", "show", "zz"],
            &["sessions", "show", ""],
            &["sessions", "inspect", &first, "no-such-label"],
            &["sessions", "inspect", &first, &other],
            &["sessions", "resume", &first, "--checkpoint", &other],
            &["sessions", "restore", &first, &other],
            &["sessions", "diff", &first, "ckp_00000000000000000000000000"],
            &["state", "get", &first, "memory.nothing"],
            &["sessions", "unarchive", &first],
            &["pull", &first, "sqlite:nowhere.db"],
            &["messages", "add", "zzzzzzzz", "hello"],
        ],
    );
    assert_seen!("bad_names", seen.end());
    assert!(!place.file("nowhere.db").exists(), "asking a store that is not there made it");
}

#[tokio::test]
async fn what_cannot_be_resumed_says_why_and_what_can() {
    let place = Place::new();
    let id = place.session("Risky", &["one"]);
    let good = place.ok(&["checkpoint", &id, "--label", "good"]);
    let engine = Milepost::open(&place.url()).await.unwrap();
    let mark = NewMark {
        resumable: Resumable::No("a tool was running".into()),
        clean: false,
        ..NewMark::new(Trigger::Manual)
    };
    let bad = engine.checkpoint(id.parse().unwrap(), mark).await.unwrap().to_string();
    engine.close().await.unwrap();
    let mut seen = Transcript::new(&place);
    let refused = seen.run(&["sessions", "resume", &id, "--checkpoint", &bad]);
    assert!(refused.code == 1 && refused.err.contains(&good), "{refused:?}");
    seen.run(&["sessions", "branch", &id, "--checkpoint", &bad]);
    seen.run(&["sessions", "checkpoints", &id]);
    seen.run(&["sessions", "inspect", &id, &bad]);
    assert_eq!(seen.run(&["sessions", "resume", &id]).code, 0);
    place.ok(&["sessions", "complete", &id]);
    assert_eq!(seen.run(&["sessions", "resume", &id]).code, 1);
    assert_eq!(seen.run(&["sessions", "resume", &id, "--reopen"]).code, 0);
    place.ok(&["sessions", "trash", &id]);
    assert_eq!(seen.run(&["sessions", "resume", &id]).code, 1);
    assert_seen!("not_resumable", seen.end());
}

#[test]
fn what_was_typed_wrong_is_said_and_nothing_is_done() {
    let place = Place::new();
    let id = place.session("Here", &["one"]);
    let mut seen = Transcript::new(&place);
    all_fail(
        &mut seen,
        &[
            &["sesions"],
            &["sessions", "shwo", &id],
            &["sessions", "list", "--limit", "0"],
            &["sessions", "list", "--limit", "many"],
            &["sessions", "list", "--status", "done"],
            &["sessions", "list", "--since", "yesterday"],
            &["sessions", "list", "--resumable", "--status", "paused"],
            &["sessions", "resume", &id, "--set", "step"],
            &["sessions", "resume", &id, "--set", "=1"],
            &["sessions", "resume", &id, "--set", "memory..step=1"],
            &["sessions", "new", "--policy", "every_mesages=5"],
            &["state", "set", &id],
            &["checkpoint", &id, "--type", "whenever"],
            &["sessions", "tag", &id, "-"],
            &["sessions", "tag", &id, "--quiet"],
            &["sessions", "delete", &id],
            &["sessions", "export", &id, "--format", "tree"],
            &["sessions", "export", &id, "--format", "word"],
            &["messages", "add", &id, ""],
            &["messages", "add", &id, "{\"role\": 1}", "--from-json"],
            &["stats", "--since", "2d"],
            &["verify", &id, "--deep"],
            &["sql", "drop table sessions"],
            &["sql", "select nothing from sessions"],
            &["redact", "", "--dry-run"],
            &["keys", "shred", &id],
            &["keys", "sign", &id, "--key", "no.key"],
            &["completions", "tcsh"],
            &["serch", "parser"],
            &["sessions", "add", &id, "a text"],
            &["sessions", "diff", "latest", "latest"],
        ],
    );
    assert_seen!("bad_words", seen.end());
    assert_eq!(place.texts(&id), ["one"]);
    assert_eq!(place.json(&["sessions", "list"])["sessions"].as_array().unwrap().len(), 1);
}

#[test]
fn arguments_and_input_that_are_no_text_are_refused() {
    let place = Place::new();
    let id = place.session("Here", &[]);
    let odd = OsStr::from_bytes(b"caf\xe9");
    let args = [OsStr::new("messages"), OsStr::new("add"), OsStr::new(&id), odd];
    let ran = Ran::of(place.command(args).output().unwrap());
    assert!(ran.code == 2 && ran.err.contains("UTF-8"), "{ran:?}");
    let ran = place.run_with(&["messages", "add", &id], b"caf\xe9");
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert_eq!(ran.err, "error: the input is not text: it is not in UTF-8; convert it, or import it as a file\n");
    // A path may be anything, where the system below can take it.
    let args = ["sessions", "export", &id, "--output"].map(OsStr::new);
    let ran = Ran::of(place.command(args.into_iter().chain([odd])).output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(place.path().join(odd).exists());
    let ran = Ran::of(place.command([OsStr::new("backup"), OsStr::from_bytes(b"\xe9")]).output().unwrap());
    assert!(ran.code == 2 && ran.err.contains("UTF-8"), "{ran:?}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2, "something was written");
    assert!(place.texts(&id).is_empty());
}

#[test]
fn programs_get_errors_as_json() {
    let place = Place::new();
    let error = |args: &[&str]| -> (i32, Value) {
        let ran = place.run(&[&["--json"], args].concat());
        assert!(ran.out.is_empty(), "{}", ran.out);
        (ran.code, serde_json::from_str(&ran.err).unwrap_or_else(|_| panic!("{}", ran.err)))
    };
    let (code, value) = error(&["sessions", "show", "zzzzzzzz"]);
    assert_eq!((code, &value["error"]["kind"]), (3, &json!("not_found")), "there is no store");
    place.session("Here", &[]);
    let (code, value) = error(&["sessions", "show", "zzzzzzzz"]);
    assert_eq!((code, &value["error"]["kind"]), (3, &json!("not_found")));
    assert_eq!(value["error"]["try"]["list"], json!("milepost sessions list --all"));
    let (code, value) = error(&["state", "set", "last", "step"]);
    assert_eq!((code, &value["error"]["kind"]), (2, &json!("usage")));
    let (code, value) = error(&["--store", "sqlite:no/such/place.db", "sessions", "list"]);
    assert_eq!((code, &value["error"]["kind"]), (7, &json!("unavailable")));
    for wrong in [&["sesions", "list"][..], &["sessions", "lsit"], &["sessions", "list", "--bogus"], &["sessions"]] {
        let (code, value) = error(wrong);
        assert_eq!((code, &value["error"]["kind"]), (2, &json!("usage")), "{wrong:?}");
        let message = value["error"]["message"].as_str().unwrap();
        assert!(!message.contains("Usage:") && !message.contains("error:"), "{message}");
    }
    let (_, value) = error(&["sesions", "list"]);
    assert!(value["error"]["message"].as_str().unwrap().contains("'sessions'"), "{value:#}");
}

#[test]
fn what_cannot_be_imported_says_why_and_leaves_nothing() {
    let place = Place::new();
    place.write("noise.bin", (0..4096u32).map(|at| (at * 97 % 251) as u8).collect::<Vec<_>>());
    place.write("empty.json", "{}");
    place.write("none.json", "");
    place.write("half.json", "{\"messages\": [{\"role\": \"user\"");
    place.write("lines.jsonl", "{\"role\": \"user\", \"content\": \"fine\"}\nnot a line\n");
    std::fs::create_dir(place.file("nothing")).unwrap();
    let huge = place.write("huge.json", "{\"sessionId\": \"x\", \"messages\": [\"");
    std::fs::OpenOptions::new().write(true).open(&huge).unwrap().set_len(300 << 20).unwrap();
    let deep = place.write("deep.json", format!("{{\"messages\": {}", "[".repeat(100_000)));
    let mut seen = Transcript::new(&place);
    for path in [
        "missing.json",
        "noise.bin",
        "empty.json",
        "none.json",
        "half.json",
        "lines.jsonl",
        "nothing",
        "huge.json",
        "/dev/zero",
    ] {
        let ran = seen.run(&["sessions", "import", path]);
        assert_eq!(ran.code, if path == "missing.json" { 3 } else { 1 }, "{path}: {ran:?}");
    }
    let ran = place.run(&["sessions", "import", &deep.to_string_lossy()]);
    assert!(ran.code == 1 && !ran.err.contains("panicked"), "{ran:?}");
    seen.run(&["sessions", "import", "noise.bin", "--dry-run"]);
    assert_seen!("bad_imports", seen.end());
    assert_eq!(place.json(&["sessions", "list"])["sessions"], json!([]));
}

#[test]
fn a_bundle_that_was_changed_is_refused_and_its_first_bad_entry_named() {
    let place = Place::new();
    let id = place.session("To go", &["the first message", "the second message", "the third message"]);
    place.ok(&["sessions", "export", &id, "--output", "whole.milepost"]);
    let packed = std::fs::read(place.file("whole.milepost")).unwrap();
    let text = String::from_utf8(zstd_decode(&packed)).unwrap();
    assert!(text.contains("the second message"));
    place.write("changed.milepost", zstd_encode(text.replace("the second message", "the second massage").as_bytes()));
    place.write("cut.milepost", &packed[..packed.len() / 2]);
    let mut seen = Transcript::new(&place);
    for name in ["changed.milepost", "cut.milepost"] {
        for args in [&["sessions", "import", name, "--dry-run"][..], &["sessions", "import", name, "--new-ids"]] {
            let ran = seen.run(args);
            assert_eq!(ran.code, 1, "{ran:?}");
        }
    }
    // What is there already is not imported over.
    assert_eq!(seen.run(&["sessions", "import", "whole.milepost"]).code, 4);
    assert_seen!("bad_bundles", seen.end());
    assert_eq!(place.json(&["sessions", "list"])["sessions"].as_array().unwrap().len(), 1);
}

fn zstd_decode(packed: &[u8]) -> Vec<u8> {
    zstd::decode_all(packed).unwrap()
}

fn zstd_encode(plain: &[u8]) -> Vec<u8> {
    zstd::encode_all(plain, 3).unwrap()
}

#[test]
fn a_setting_that_does_not_exist_is_named_with_the_nearest_that_does() {
    let place = Place::new();
    place.write("milepost.yaml", "policy:\n  every_mesages: 5\nworkspce: mine\n");
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["config", "check"]).code, 2);
    assert_eq!(seen.run(&["sessions", "list"]).code, 2);
    place.write("milepost.yaml", "policy:\n  every_messages: soon\n");
    assert_eq!(seen.run(&["config", "check"]).code, 2);
    place.write("milepost.yaml", "policy: [\n");
    assert_eq!(seen.run(&["config", "check"]).code, 2);
    std::fs::remove_file(place.file("milepost.yaml")).unwrap();
    assert_eq!(seen.run(&["sessions", "list", "--config", "missing.yaml"]).code, 2);
    assert_eq!(seen.run(&["sessions", "list", "--store", "ftp://example"]).code, 2);
    let ran = Ran::of(place.command(["config", "check"]).env("MILEPOST_STOER", "x").output().unwrap());
    seen.note(&["config", "check", "# with MILEPOST_STOER=x"], &ran);
    assert_seen!("bad_settings", seen.end());
}

#[test]
fn what_is_there_already_is_not_written_over() {
    let place = Place::new();
    let id = place.session("Here", &["one"]);
    place.write("taken", "mine");
    place.ok(&["sessions", "branch", &id]);
    let mut seen = Transcript::new(&place);
    all_fail(
        &mut seen,
        &[
            &["sessions", "export", &id, "--output", "taken"],
            &["sessions", "export", &id, "--format", "sqlite", "--output", "taken"],
            &["keys", "new", "--output", "taken"],
            &["backup", "taken"],
            &["sessions", "delete", &id, "--yes"],
            &["sessions", "export", &id, "--output", "no/such/place"],
            &["keys", "new", "--output", "no/such/place"],
            &["backup", "no/such/place"],
        ],
    );
    assert_seen!("already_there", seen.end());
    assert_eq!(std::fs::read_to_string(place.file("taken")).unwrap(), "mine");
}

#[test]
fn a_message_that_cannot_be_read_is_named_by_its_line_and_column() {
    let place = Place::new();
    let id = place.session("Lines", &[]);
    let good = r#"{"role": "user", "content": "x"}"#;
    for (input, says) in [
        (format!("{good}\n\n{good}\n{{\"role\": \"user\" \"content\"}}\n"), "line 4, column 17 "),
        (format!("{good}\nhello\n"), "line 2, column 1 "),
        (format!("{good}\n{{\"content\": \"x\"}}\n"), "line 2: "),
        (format!("[{good},\n{good},\n  {{\"role\":}}]"), "line 3, column 11 "),
        (format!("[{good}, {{\"content\": 1}}]"), "message 2 of the list: "),
        ("{\n  \"role\": \"user\",\n  \"content\" 1\n}".to_owned(), "line 3, column 13 "),
    ] {
        let ran = place.run_with(&["messages", "add", &id, "--from-json"], input.as_bytes());
        assert!(
            ran.code == 2 && ran.err.contains(says) && ran.err.contains("nothing was added"),
            "{says}: {}",
            ran.err
        );
    }
    assert_eq!(place.texts(&id), Vec::<String>::new());
    place.write("log.jsonl", format!("{good}\n{good}\n{{\"role\": oops}}\n{good}\n"));
    let ran = place.run(&["sessions", "import", "log.jsonl"]);
    assert!(ran.code != 0 && ran.err.contains("line 3, column 10: "), "{}", ran.err);
}

#[test]
fn sessions_that_went_on_in_both_stores_are_told_what_to_do_and_it_works() {
    let place = Place::new();
    let id = place.session("Twice", &["one"]);
    place.ok(&["push", &id, "sqlite:other.db"]);
    // Only there: the other way is named, and works.
    place.ok(&["messages", "add", &id, "there", "--store", "sqlite:other.db"]);
    let way = |ran: &Ran| -> Vec<String> {
        let line = ran.err.lines().find_map(|line| line.split_once("  milepost ")).unwrap_or_else(|| panic!("{ran:?}"));
        line.1.split_whitespace().map(str::to_owned).collect()
    };
    let run = |command: Vec<String>| place.run(&command.iter().map(String::as_str).collect::<Vec<_>>());
    let ran = place.run(&["push", &id, "sqlite:other.db"]);
    assert!(ran.code != 0 && way(&ran)[0] == "pull", "{ran:?}");
    assert_eq!(run(way(&ran)).code, 0);
    assert_eq!(place.texts(&id), ["one", "there"]);
    // In both: either way has a command that keeps both.
    place.ok(&["messages", "add", &id, "here"]);
    place.ok(&["messages", "add", &id, "not here", "--store", "sqlite:other.db"]);
    for (command, store) in [("push", "sqlite:other.db".to_owned()), ("pull", place.url())] {
        let ran = place.run(&[command, &id, "sqlite:other.db"]);
        assert!(ran.code != 0 && way(&ran).ends_with(&["--new-ids".to_owned()]), "{ran:?}");
        let done = run(way(&ran));
        assert!(done.code == 0 && done.out.contains("as a second session"), "{done:?}");
        let all = place.json(&["sessions", "list", "--all", "--store", &store]);
        assert_eq!(all["sessions"].as_array().unwrap().len(), 2, "{all}");
    }
}

#[test]
fn a_variable_that_was_meant_to_set_something_is_not_passed_over() {
    let place = Place::new();
    let run = |name: &str| Ran::of(place.command(["sessions", "list"]).env(name, "1").output().unwrap());
    let wrong = run("MILEPOST_POLICY_EVERY_MESAGES");
    assert!(wrong.code == 2 && wrong.err.contains("MILEPOST_POLICY_EVERY_MESSAGES"), "{wrong:?}");
    assert_eq!(run("MILEPOST_SOMEBODYS_OWN").code, 0);
}

#[test]
fn a_variable_that_the_settings_name_or_that_steps_are_given_is_taken() {
    let place = Place::new();
    let key = place.ok(&["keys", "new"]);
    let key = key.lines().next().unwrap().trim();
    place.write(
        "milepost.yaml",
        "encryption: {enabled: true, key_source: env_var, key_variable: MILEPOST_KEY2}
signing: {enabled: true, key_source: env_var, key_variable: MILEPOST_MARK_KEY2}
models:
  big: {provider: openai, model: gpt-5, key_variable: MILEPOST_MODELS}
",
    );
    for args in [&["sessions", "new"][..], &["config", "check"], &["config", "check", "milepost.yaml"]] {
        let mut command = place.command(args);
        command.env("MILEPOST_KEY2", key).env("MILEPOST_MARK_KEY2", key).env("MILEPOST_MODELS", "x");
        for name in ["MILEPOST_NODE", "MILEPOST_SESSION", "MILEPOST_ATTEMPT", "MILEPOST_IDEMPOTENCY_KEY"] {
            command.env(name, "1");
        }
        let ran = Ran::of(command.output().unwrap());
        assert!(ran.code == 0 && !ran.out.contains("means nothing"), "{args:?}: {ran:?}");
    }
    // Where nothing names it, it is taken for a slip.
    std::fs::remove_file(place.file("milepost.yaml")).unwrap();
    let ran = Ran::of(place.command(["sessions", "list"]).env("MILEPOST_KEY2", key).output().unwrap());
    assert!(ran.code == 2 && ran.err.contains("did you mean MILEPOST_KEY?"), "{ran:?}");
}
