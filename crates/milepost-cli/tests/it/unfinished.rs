//! Imports whose process was killed: what is there of them is hidden, named for what it is, and taken over by the next.

use std::time::Duration;

use milepost::{Message, Milepost, NewSession, Role};
use rusqlite::Connection;
use serde_json::json;

use crate::support::{Place, Ran, number};

/// Messages of the first try; each further one has twice as many.
const MESSAGES: usize = 4_000;

/// A place with an import in it that was killed in the middle; the session and the bundle.
async fn killed_in_the_middle() -> (Place, String, String, usize) {
    let mut messages = MESSAGES;
    loop {
        let from = Place::new();
        let engine = Milepost::open(&from.url_made()).await.unwrap();
        let session = engine.create(NewSession::titled("Long")).await.unwrap();
        let id = session.id().to_string();
        for part in (0..messages).collect::<Vec<_>>().chunks(1000) {
            let said = part.iter().map(|at| Message::new(Role::User, format!("message {at}")));
            session.append_all(said.collect()).await.unwrap();
        }
        session.release().await.unwrap();
        engine.close().await.unwrap();
        let place = Place::new();
        let bundle = place.file("long.milepost").display().to_string();
        from.ok(&["sessions", "export", &id, "--output", &bundle]);
        place.session("Other", &["hello"]);
        let mut child = place.command(["sessions", "import", &bundle]).spawn().unwrap();
        let database = Connection::open(place.store()).unwrap();
        let is_begun = || {
            let count = database.query_row("SELECT count(*) FROM sessions WHERE hidden = 1", [], |row| row.get(0));
            count.unwrap_or(0) > 0
        };
        while !is_begun() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        let ran = Ran::of(child.wait_with_output().unwrap());
        if ran.code == -1 && is_begun() {
            return (place, id, bundle, messages);
        }
        messages *= 2;
        assert!(messages <= 64 * MESSAGES, "it is never in time");
    }
}

#[tokio::test]
async fn an_import_that_was_killed_is_named_kept_hidden_and_written_to_by_nobody() {
    let (place, id, ..) = killed_in_the_middle().await;
    for round in 0..2 {
        let verified = place.run(&["verify"]);
        assert_eq!(verified.code, 0, "{verified:?}");
        assert!(verified.out.contains("whole:"), "{verified:?}");
        assert!(verified.err.contains("import that was begun and not finished"), "{verified:?}");
        let verified = place.json(&["verify"]);
        assert_eq!((&verified["unfinishedImports"], &verified["problems"]), (&json!([id]), &json!([])));
        for args in [
            &["sessions", "resume", &id][..],
            &["sessions", "resume", &id, "--take-over"],
            &["sessions", "resume", &id, "--dry-run"],
            &["messages", "add", &id, "lost?"],
            &["state", "set", &id, "memory.step=1"],
            &["checkpoint", &id],
        ] {
            let ran = place.run(args);
            assert_eq!(ran.code, 1, "round {round}, {args:?}: {ran:?}");
            assert!(ran.err.contains("not finished") && ran.err.contains("import the same again"), "{args:?}: {ran:?}");
        }
        assert_eq!(place.json(&["sessions", "list"])["sessions"].as_array().unwrap().len(), 1, "it is hidden");
        // What is rebuilt from the log stays what it was.
        place.ok(&["reindex"]);
    }
    place.ok(&["sessions", "delete", &id, "--yes"]);
    assert_eq!(place.json(&["verify"])["unfinishedImports"], json!([]));
}

#[tokio::test]
async fn an_import_that_was_killed_is_done_again_at_once() {
    let (place, id, bundle, messages) = killed_in_the_middle().await;
    let again = place.json(&["sessions", "import", &bundle]);
    assert_eq!(number(&again, "/sessions/0/messages"), messages as u64);
    place.ok(&["messages", "add", &id, "acknowledged"]);
    let third = place.run(&["sessions", "import", &bundle]);
    assert_eq!(third.code, 4, "it is there: {third:?}");
    let shown = place.json(&["messages", "list", &id, "--last", "1"]);
    assert_eq!(shown["messages"][0]["content"], "acknowledged");
    let verified = place.json(&["verify"]);
    assert_eq!((&verified["whole"], &verified["unfinishedImports"]), (&json!(true), &json!([])));
    place.ok(&["reindex"]);
    place.ok(&["sessions", "resume", &id]);
}
