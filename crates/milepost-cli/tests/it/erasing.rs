//! Erasing a secret that was stored: everywhere, also where somebody or something stands in the way; and what comes in.

use milepost::model::{Body, Seq};
use serde_json::json;

use crate::lists::damage_message;
use crate::support::{Place, number, text};

const SECRET: &str = "xyzzy-plugh-123";

/// Whether a text lies in any file of the store.
fn lies_in_store(place: &Place, text: &str) -> bool {
    let dir = place.store().parent().unwrap().to_owned();
    std::fs::read_dir(dir).unwrap().any(|file| {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[tokio::test]
async fn a_held_session_is_named_and_keeps_the_secret_in_no_other() {
    let place = Place::new();
    let long = format!("{} {SECRET}", "a long story ".repeat(2000));
    let a = place.session("A", &[]);
    let held = place.session("B", &[SECRET]);
    let c = place.session("C", &[]);
    for id in [&a, &c] {
        assert_eq!(place.run_with(&["messages", "add", id, "-"], long.as_bytes()).code, 0);
    }
    let engine = place.another("the night shift").await;
    let holds = engine.hold(held.parse().unwrap()).await.unwrap();
    let ran = place.run(&["redact", SECRET, "--yes"]);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.out.contains("erased from 2 entries"), "{ran:?}");
    assert!(ran.err.contains("was passed over and may hold it: session") && ran.err.contains("held by"), "{ran:?}");
    holds.release().await.unwrap();
    engine.close().await.unwrap();
    assert_eq!(number(&place.json(&["redact", SECRET, "--dry-run"]), "/blobs"), 0);
    let done = place.json(&["redact", SECRET, "--yes"]);
    assert_eq!((number(&done, "/entries"), &done["passedOver"]), (1, &json!([])));
    assert_eq!(place.ok(&["redact", SECRET, "--dry-run"]), "it is nowhere in this workspace");
}

#[test]
fn a_damaged_session_is_named_and_keeps_the_secret_in_no_other() {
    let place = Place::new();
    let ill = place.session("Ill", &[SECRET, "more"]);
    let well = place.session("Well", &[SECRET]);
    damage_message(&place, 1);
    let ran = place.run(&["redact", SECRET, "--yes"]);
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.out.contains("erased from 1 entry"), "{ran:?}");
    assert!(ran.err.contains("was passed over and may hold it") && ran.err.contains("milepost verify"), "{ran:?}");
    assert_eq!(place.texts(&well), ["[redacted]"]);
    let found = place.run(&["--json", "redact", SECRET, "--dry-run"]);
    assert_eq!(found.code, 5, "{found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(text(&found, "/passedOver/0/session"), ill);
    let ran = place.run(&["redact", SECRET, "--dry-run"]);
    assert!(ran.out.contains("nowhere in what could be looked through"), "{ran:?}");
}

#[tokio::test]
async fn what_is_said_of_an_erasure_holds_no_secret() {
    let place = Place::new();
    let token = format!("ghp_{}", "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0dF3gH6");
    let id = place.session("A", &[SECRET]);
    let ran = place.run(&["redact", SECRET, "--yes", "--instead", &token]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("looks like a secret itself"), "{ran:?}");
    assert_eq!(place.texts(&id), [SECRET]);
    place.ok(&["redact", SECRET, "--yes", "--why", &format!("{SECRET} leaked beside {token}")]);
    assert!(!lies_in_store(&place, SECRET) && !lies_in_store(&place, &token));
    let engine = place.another("a reader").await;
    let entries = engine.store().entries(id.parse().unwrap(), Seq(0), Seq::MAX).await.unwrap();
    let why = entries.into_iter().find_map(|entry| match entry.body {
        Some(Body::Event(event)) if event.kind == "redacted" => Some(event.data["why"].clone()),
        _ => None,
    });
    assert_eq!(why, Some(json!("[redacted] leaked beside [redacted:github-token]")));
}

/// A bucket keeps what was replaced or removed for a while, and says so; doing it again deletes what is old enough.
#[test]
fn what_a_bucket_keeps_for_a_while_is_told() {
    let place = Place::new();
    let bucket = format!("file://{}", place.file("bucket").display());
    std::fs::create_dir(place.file("bucket")).unwrap();
    let id = place.ok(&["sessions", "new", "--store", &bucket]);
    place.ok(&["messages", "add", &id, SECRET, "--store", &bucket]);
    let ran = place.run(&["redact", SECRET, "--yes", "--store", &bucket]);
    assert!(
        ran.code == 0 && ran.err.contains("stays for 10 minutes") && ran.err.contains("again after that"),
        "{ran:?}"
    );
    let ran = place.run(&["redact", SECRET, "--store", &bucket]);
    assert!(
        ran.code == 0 && ran.out.contains("it is nowhere") && ran.err.contains("10 minutes ago is deleted"),
        "{ran:?}"
    );
    let told = place.json(&["redact", SECRET, "--dry-run", "--store", &bucket]);
    assert_eq!(number(&told, "/lingersMs"), 600_000);
    let ran = place.run(&["sessions", "delete", &id, "--yes", "--store", &bucket]);
    assert!(ran.code == 0 && ran.err.contains("10 minutes") && ran.err.contains("`milepost prune --purge`"), "{ran:?}");
    // A file has nothing to keep.
    let id = place.session("Here", &[SECRET]);
    for args in [&["redact", SECRET, "--yes"][..], &["sessions", "delete", &id, "--yes"]] {
        let ran = place.run(args);
        assert!(ran.code == 0 && !ran.err.contains("minutes"), "{ran:?}");
    }
}

#[test]
fn a_secret_in_a_file_that_is_not_utf_8_is_not_stored() {
    let place = Place::new();
    let token = format!("ghp_{}", "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0dF3gH6");
    let latin = [b"caf\xe9 started\nusing token ".as_slice(), token.as_bytes(), b"\n"].concat();
    place.write("ht/sessions/s1/logs/agent.log", &latin);
    place.write("ht/sessions/s1/artifacts/notes.txt", &latin);
    let message = json!({ "role": "user", "content": "hello", "sessionId": "s1" });
    place.write("ht/checkpoints/s1/conversation.jsonl", format!("{message}\n"));
    place.ok(&["sessions", "import", "ht"]);
    let clean = b"caf\xe9 started\nusing token [redacted:github-token]\n";
    place.write("latin.txt", &latin);
    let id = place.json(&["sessions", "list"])["sessions"][0]["sessionId"].as_str().unwrap().to_owned();
    place.ok(&["artifacts", "put", "notes2.txt", "latin.txt", "--of", &id]);
    assert!(!lies_in_store(&place, &token));
    for name in ["notes.txt", "notes2.txt"] {
        let out = place.command(["artifacts", "show", name, "--of", &id]).output().unwrap();
        assert_eq!(out.stdout, clean, "{name}: {out:?}");
    }
    // What got in before the rules were known is found there too.
    let ran = place.run(&["redact", "started", "--yes"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let out = place.command(["artifacts", "show", "notes.txt", "--of", &id]).output().unwrap();
    assert_eq!(out.stdout, b"caf\xe9 [redacted]\nusing token [redacted:github-token]\n");
}

#[test]
fn a_secret_with_quotes_goes_from_an_archived_title() {
    let place = Place::new();
    let id = place.session("pw pa\"ss\\wd-77 here", &["hello"]);
    let url = format!("sqlite:{}", place.file("archive.db").display());
    place.ok(&["sessions", "archive", &id, "--to", &url]);
    let ran = place.run_with(&["redact", "-", "--yes"], b"pa\"ss\\wd-77");
    assert_eq!(ran.code, 0, "{ran:?}");
    let list = place.ok(&["--json", "sessions", "list", "--archived"]);
    assert!(list.contains("pw [redacted] here") && !list.contains("wd-77"), "{list}");
}

#[test]
fn whole_numbers_are_never_rounded_without_a_word() {
    let place = Place::new();
    let big = "18446744073709551616";
    place.write(
        "chat.json",
        format!(r#"{{"messages": [{{"role": "user", "content": "hi", "n": {big}, "f": 1.5, "text": "{big}"}}]}}"#),
    );
    let imported = place.json(&["sessions", "import", "chat.json"]);
    assert!(imported.to_string().contains("kept as texts"), "{imported:#}");
    let id = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    let listed = place.json(&["messages", "list", &id]);
    let message = &listed["messages"][0];
    assert_eq!((&message["n"], &message["f"], &message["text"]), (&json!(big), &json!(1.5), &json!(big)), "{listed:#}");
    let line = format!(r#"{{"role": "user", "content": "hi", "n": {big}}}"#);
    let ran = place.run_with(&["messages", "add", &id, "--from-json", "-"], line.as_bytes());
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains(big) && ran.err.contains("would be rounded"), "{ran:?}");
}

#[test]
fn a_deep_state_stays_whole_and_comes_back_from_a_tree() {
    let place = Place::new();
    let id = place.session("Deep", &["hello"]);
    let path: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    place.ok(&["state", "set", &id, &format!("memory.{}=1", path.join("."))]);
    place.ok(&["state", "set", &id, "memory.other=2"]);
    let state = place.ok(&["--json", "state", "get", &id]);
    assert!(state.contains("k199") && !state.contains("redacted"), "{state}");
    place.ok(&["checkpoint", &id]);
    place.ok(&["sessions", "export", &id, "--format", "tree", "--output", "out"]);
    let there = Place::new();
    let out = place.file("out").display().to_string();
    there.ok(&["sessions", "import", &out]);
    let again = text(&there.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    assert!(there.ok(&["--json", "state", "get", &again]).contains("k199"));
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let place = Place::new();
    let pipe = place.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut child = place.command(["sessions", "import", "pipe"]).spawn().unwrap();
    for _ in 0..100 {
        if child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let _ = child.kill();
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("neither a file nor a directory"), "{err}");
}

#[test]
fn a_diff_says_that_a_side_has_moved_on() {
    let place = Place::new();
    let id = place.session("A", &["one"]);
    place.ok(&["checkpoint", &id]);
    let other = place.ok(&["sessions", "branch", &id]);
    place.ok(&["messages", "add", &id, "two"]);
    place.ok(&["state", "set", &id, "memory.n=1"]);
    let other = other.split_whitespace().next().unwrap();
    place.ok(&["checkpoint", other]);
    let diff = place.json(&["sessions", "diff", &id, other]);
    assert_eq!(diff["movedOn"], json!({ "a": { "messages": 1, "state": true }, "b": null }), "{diff:#}");
}

#[test]
fn a_span_without_a_moment_is_refused() {
    let place = Place::new();
    place.session("A", &["needle"]);
    let ran = place.run(&["sessions", "search", "needle", "--since", "3d", "--until", "5d"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("is not before --until"), "{ran:?}");
    assert_eq!(place.run(&["sessions", "search", "needle", "--since", "5d", "--until", "3d"]).code, 0);
}

#[cfg(unix)]
#[test]
fn an_import_that_was_interrupted_is_begun_anew_in_its_place() {
    use std::time::Duration;
    let mut messages = 20_000;
    loop {
        let place = Place::new();
        place.session("Other", &["hello"]);
        let line = |n: usize| format!("{}\n", json!({ "role": "user", "content": format!("message {n}") }));
        place.write("big.jsonl", (0..messages).map(line).collect::<String>());
        let mut child = place.command(["sessions", "import", "big.jsonl"]).spawn().unwrap();
        let database = rusqlite::Connection::open(place.store()).unwrap();
        let hidden = || -> i64 {
            let count = database.query_row("SELECT count(*) FROM sessions WHERE hidden = 1", [], |row| row.get(0));
            count.unwrap_or(0)
        };
        while hidden() == 0 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = child.kill();
        child.wait().unwrap();
        if hidden() == 0 {
            messages *= 2;
            continue;
        }
        let told = place.run(&["doctor"]);
        assert!(told.err.contains("is an import that was begun and not finished"), "{told:?}");
        assert_eq!(place.json(&["doctor"])["unfinishedImports"].as_array().unwrap().len(), 1);
        place.ok(&["sessions", "import", "big.jsonl"]);
        assert_eq!(place.json(&["verify"])["unfinishedImports"], json!([]));
        assert_eq!(hidden(), 0);
        assert_eq!(place.json(&["sessions", "list"])["sessions"].as_array().unwrap().len(), 2);
        return;
    }
}

#[cfg(unix)]
#[test]
fn an_import_can_be_stopped_while_it_reads() {
    let place = Place::new();
    place.session("Other", &["hello"]);
    let line = format!("{}\n", json!({ "role": "user", "content": "a long line of text ".repeat(50) }));
    place.write("big.jsonl", line.repeat(60_000));
    let mut child = place.command(["sessions", "import", "big.jsonl"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    let begun = std::time::Instant::now();
    let stop = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(stop.success());
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(130));
    assert!(begun.elapsed() < std::time::Duration::from_millis(1500), "{:?}", begun.elapsed());
}

/// A word or a number that Milepost uses itself: what people said goes, what it keeps house with stays.
#[test]
fn erasing_a_word_of_the_stores_own_leaves_it_readable() {
    let place = Place::new();
    let session =
        place.session("A title", &["my pin is 1, and 17, and the name of it is title, archived, status, active"]);
    place.ok(&["sessions", "tag", &session, "+name"]);
    place.ok(&["checkpoint", &session, "--label", "the name"]);
    place.write("doc.md", "a name in here");
    place.ok(&["artifacts", "put", "doc.md", "--of", &session]);
    place.write("the name.md", "x");
    place.ok(&["artifacts", "put", "the name.md", "--of", &session]);
    let here = place.ok(&["sessions", "new", "--here", "--title", "here"]);
    let away = place.session("Away", &["archived 17"]);
    place.ok(&[
        "sessions",
        "archive",
        &away,
        "--to",
        &format!("file://{}", place.path().join("archive 17 1").display()),
    ]);
    place.ok(&["sessions", "branch", &session]);
    let words =
        ["1", "17", "name", "title", "archived", "status", "active", "created", "kind", "version", "parts", "from"];
    for word in words {
        place.ok(&["redact", word, "--yes", "--instead", "***"]);
    }
    let shown = place.json(&["sessions", "show", &session]);
    assert_eq!((text(&shown, "/title"), text(&shown, "/status")), ("A ***", "active"), "{shown:#}");
    let said = place.texts(&session).concat();
    assert!(!said.contains("name") && !said.contains("17") && said.contains("my pin is ***"), "{said}");
    assert!(place.ok(&["sessions", "checkpoints", &session]).contains("the ***"));
    assert!(place.ok(&["artifacts", "show", "doc.md", "--of", &session]).contains("a *** in here"));
    assert_eq!(place.ok(&["artifacts", "show", "the ---.md", "--of", &session]), "x");
    place.ok(&["projects", "list"]);
    place.ok(&["sessions", "new", "--here"]);
    place.ok(&["sessions", "show", &here]);
    place.ok(&["sessions", "unarchive", &away]);
    assert!(place.ok(&["messages", "list", &away]).contains("***"));
    place.ok(&["verify"]);
    place.ok(&["doctor"]);
}

/// A copy that was pushed before has the secret still: the next push puts the clean session in its place.
#[test]
fn a_push_after_an_erasure_takes_the_secret_from_the_copy() {
    let place = Place::new();
    let session = place.session("A", &[&format!("the {SECRET}")]);
    let other = format!("sqlite:{}", place.file("other.db").display());
    place.ok(&["push", &session, &other]);
    place.ok(&["redact", SECRET, "--yes"]);
    place.ok(&["messages", "add", &session, "and on"]);
    place.ok(&["push", &session, &other]);
    let there = place.ok(&["--store", &other, "messages", "list", &session]);
    assert!(there.contains("[redacted]") && there.contains("and on") && !there.contains(SECRET), "{there}");
    assert_eq!(place.ok(&["--store", &other, "redact", SECRET, "--dry-run"]), "it is nowhere in this workspace");
    place.ok(&["push", &session, &other]);
    // As often as something is erased here.
    place.ok(&["redact", "the", "--yes"]);
    place.ok(&["push", &session, &other]);
    // What was erased there on its own is not brought back, also when something else is erased here.
    place.ok(&["--store", &other, "redact", "and on", "--yes"]);
    place.ok(&["redact", "A", "--yes"]);
    let refused = place.run(&["push", &session, &other]);
    assert!(refused.code != 0 && refused.err.contains("delete the copy"), "{refused:?}");
    assert!(!place.ok(&["--store", &other, "messages", "list", &session]).contains("and on"));
    place.ok(&["redact", "and on", "--yes"]);
    place.ok(&["--store", &other, "sessions", "delete", &session, "--yes"]);
    place.ok(&["push", &session, &other]);
    place.ok(&["--store", &other, "verify"]);
}

/// What the store says of a session with words of its own stays, whatever is erased.
#[test]
fn erasing_leaves_the_trash_and_what_was_deleted_where_they_are() {
    let place = Place::new();
    let thrown = place.session("Thrown", &["trashed and hidden, 17 times"]);
    place.ok(&["sessions", "trash", &thrown]);
    let parent = place.session("Parent", &["hello"]);
    place.ok(&["checkpoint", &parent, "--label", "here"]);
    place.ok(&["sessions", "branch", &parent, "--checkpoint", "here"]);
    place.ok(&["sessions", "delete", &parent, "--keep-branches", "--yes"]);
    for word in ["trashed", "hidden", "17", "1"] {
        place.ok(&["redact", word, "--yes", "--instead", "***"]);
        let listed = place.json(&["sessions", "list"]).to_string();
        assert!(
            !listed.contains(&thrown) && !listed.contains(&format!("\"sessionId\":\"{parent}\"")),
            "{word}: {listed}"
        );
        assert!(place.ok(&["--json", "sessions", "list", "--trashed"]).contains(&thrown), "{word}");
    }
    place.ok(&["sessions", "untrash", &thrown]);
    assert_eq!(place.texts(&thrown), ["*** and ***, *** times"]);
    place.ok(&["verify"]);
}

/// A session's policy and where it came from are the program's, and are read again.
#[test]
fn erasing_what_a_sessions_settings_say_too_leaves_it_usable() {
    let place = Place::new();
    let id = place.ok(&["sessions", "new", "--policy", "every_messages=17"]);
    place.ok(&["messages", "add", &id, "pin 17, every_messages, policy"]);
    for word in ["17", "every_messages", "policy"] {
        place.ok(&["redact", word, "--yes", "--instead", "***"]);
        assert_eq!(place.ok(&["redact", word, "--dry-run"]), "it is nowhere in this workspace", "{word}");
        place.ok(&["messages", "add", &id, "next"]);
        place.ok(&["sessions", "resume", &id]);
    }
    assert_eq!(place.texts(&id)[0], "pin ***, ***, ***");
    let shown = place.json(&["sessions", "show", &id]);
    assert_eq!(shown["extra"]["policy"].to_string().matches("17").count(), 1, "{shown:#}");
    place.ok(&["verify"]);
}

/// The channel that everybody has and the ids of projects are the program's words too.
#[test]
fn erasing_leaves_the_main_channel_and_the_ids_of_projects() {
    let place = Place::new();
    let id = place.ok(&["sessions", "new", "--here", "--title", "main 01"]);
    place.ok(&["messages", "add", &id, "in the main, 01 prj"]);
    let project = text(&place.json(&["sessions", "show", &id]), "/projectId").to_owned();
    for word in ["main", "ai", "01", "prj"] {
        place.ok(&["redact", word, "--yes", "--instead", "***"]);
        assert_eq!(place.ok(&["redact", word, "--dry-run"]), "it is nowhere in this workspace", "{word}");
    }
    let shown = place.json(&["sessions", "show", &id]);
    assert_eq!((text(&shown, "/projectId"), text(&shown, "/title")), (&*project, "*** ***"), "{shown:#}");
    assert_eq!(place.texts(&id), ["in the ***, *** ***"]);
    let found = place.json(&["sessions", "list", "--project", &project]);
    assert_eq!(text(&found, "/sessions/0/sessionId"), id);
}

#[test]
fn a_tag_or_title_that_is_erased_to_nothing_is_gone() {
    let place = Place::new();
    let id = place.ok(&["sessions", "new", "--title", SECRET, "--tag", SECRET, "--tag", "kept"]);
    place.ok(&["messages", "add", &id, "hello"]);
    place.ok(&["checkpoint", &id, "--label", "here"]);
    place.ok(&["redact", SECRET, "--instead", "", "--yes"]);
    let shown = place.json(&["sessions", "show", &id]);
    assert_eq!((&shown["tags"], shown.get("title").and_then(|title| title.as_str())), (&json!(["kept"]), None));
    place.ok(&["sessions", "tag", &id, "+more"]);
    place.ok(&["push", &id, &format!("sqlite:{}", place.file("other.db").display())]);
    place.ok(&["verify"]);
}

#[test]
fn a_damaged_artifact_is_named_and_what_was_just_put_is_told() {
    let place = Place::new();
    let id = place.session("A", &[SECRET]);
    let records = || rusqlite::Connection::open(place.store()).unwrap();
    let put = |name: &str| {
        place.write(name, SECRET);
        place.ok(&["artifacts", "put", name, "--of", &id]);
    };
    put("lost.md");
    assert_eq!(records().execute("DELETE FROM records WHERE kind = 'artifact'", []).unwrap(), 1);
    let ran = place.run(&["redact", SECRET, "--yes"]);
    assert!(ran.code == 1 && ran.err.contains("1 record still holds it") && ran.err.contains("again later"), "{ran:?}");
    let told = place.json(&["redact", SECRET, "--dry-run"]);
    assert_eq!((number(&told, "/records"), number(&told, "/recordsLeft")), (0, 1), "{told:#}");
    assert_eq!(records().execute("DELETE FROM records WHERE kind = 'artifact-part'", []).unwrap(), 1);
    put("bad.md");
    assert_eq!(records().execute("DELETE FROM records WHERE kind = 'artifact-part'", []).unwrap(), 1);
    place.ok(&["messages", "add", &id, SECRET]);
    let ran = place.run(&["redact", SECRET, "--yes"]);
    assert!(ran.code == 5 && ran.out.contains("erased from 1 entry"), "{ran:?}");
    assert!(ran.err.contains("the artifact \"bad.md\"") && ran.err.contains("was passed over"), "{ran:?}");
    let ran = place.run(&["redact", SECRET, "--dry-run"]);
    assert!(ran.out.contains("nowhere in what could be looked through"), "{ran:?}");
}
