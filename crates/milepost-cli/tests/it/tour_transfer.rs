//! Sessions written out in every form, and brought in again.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::{Place, number, text};
use crate::tour::Tour;

pub fn transfers(tour: &mut Tour<'_>) {
    let id = tour.place.session("To go", &["one"]);
    tour.place.ok(&["messages", "add", &id, "two", "--role", "assistant"]);
    tour.place.ok(&["checkpoint", &id, "--label", "mark"]);

    tour.person(&["sessions", "export", &id, "--output", "one.milepost"]);
    tour.person(&["sessions", "import", "one.milepost", "--dry-run"]);
    tour.person(&["sessions", "import", "one.milepost", "--store", "sqlite:other.db"]);
    assert_eq!(
        tour.place.json(&["messages", "list", &id, "--store", "sqlite:other.db"])["messages"][1]["content"],
        json!("two")
    );
    let copy =
        tour.program(&["sessions", "import", "one.milepost", "--new-ids", "--title", "A copy", "--project", "beta"]);
    let copy = text(&copy, "/sessions/0/sessionId").to_owned();
    let shown = tour.place.json(&["sessions", "show", &copy]);
    assert_eq!((text(&shown, "/projectId"), number(&shown, "/messageCount")), ("beta", 2));
    assert_ne!(copy, id);

    let markdown = tour.person(&["sessions", "export", &id, "--format", "markdown"]);
    assert!(markdown.contains("two"));
    let lines = tour.person_apart(&["sessions", "export", &id, "--format", "jsonl"]);
    let roles: Vec<String> = lines
        .lines()
        .filter_map(|line| Some(serde_json::from_str::<serde_json::Value>(line).unwrap()["role"].as_str()?.to_owned()))
        .collect();
    assert_eq!(roles, ["user", "assistant"]);
    for format in ["markdown", "jsonl", "files", "tree", "task", "plan", "feature", "graph", "sqlite", "bundle"] {
        let output = format!("out/{format}");
        std::fs::create_dir_all(tour.place.file("out")).unwrap();
        let made = tour.program(&["sessions", "export", &id, "--format", format, "--output", &output]);
        let files: BTreeSet<&str> =
            made["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
        assert!(!files.is_empty(), "{format}");
        for file in files {
            assert!(tour.place.file(file).exists(), "{format} names {file}");
        }
    }
    tour.person(&["sessions", "export", &id, "-f", "files", "-o", "again"]);
    tour.person(&["sessions", "export", &id, "-f", "markdown", "-o", "out/markdown", "--force"]);

    tour.place.write(
        "lines.jsonl",
        "{\"role\": \"user\", \"content\": \"from a file\"}\n{\"role\": \"assistant\", \"content\": \"yes\"}\n",
    );
    tour.person(&["sessions", "import", "lines.jsonl", "--title", "Lines"]);
    assert_eq!(tour.place.texts("last"), ["from a file", "yes"]);
    let chat = json!({
        "sessionId": "old-1",
        "messages": [
            { "id": "m1", "timestamp": "2025-01-01T00:00:00Z", "role": "user", "content": "an old question", "tokens": 3 },
            { "id": "m2", "timestamp": "2025-01-01T00:00:01Z", "role": "assistant", "content": "an old answer", "tokens": 3 },
        ],
        "metadata": { "createdAt": "2025-01-01T00:00:00Z", "updatedAt": "2025-01-01T00:00:01Z", "messageCount": 2, "tokenCount": 6 },
    });
    tour.place.write("chat.json", chat.to_string());
    tour.person(&["sessions", "import", "chat.json"]);
    tour.person(&["sessions", "import", "out/tree", "--new-ids"]);
    let directory = tour.program(&["sessions", "import", "out/graph", "--new-ids"]);
    assert_eq!(number(&directory, "/sessions/0/messages"), 2);

    langgraph(&tour.place.file("checkpoints.db"));
    tour.person(&["import", "langgraph", "--from", "sqlite:checkpoints.db", "--dry-run"]);
    tour.person(&["import", "langgraph", "--from", "sqlite:checkpoints.db"]);
    assert_eq!(tour.place.texts("last"), ["from a graph"]);
    let again = tour.program(&["import", "langgraph", "--from", "sqlite:checkpoints.db", "--thread", "thread-1"]);
    assert_eq!(
        again,
        json!({ "threads": 1, "checkpoints": 0, "known": 1, "writes": 0, "dryRun": false, "leftOut": [] })
    );
}

/// A thread with one checkpoint, as LangGraph's SqliteSaver keeps it.
fn langgraph(file: &std::path::Path) {
    let text = |text: &str| [&[0xd9, text.len() as u8], text.as_bytes()].concat();
    let pair = |key: &str, value: &[u8]| [&text(key), value].concat();
    let message = [&[0x82][..], &pair("role", &text("user")), &pair("content", &text("from a graph"))].concat();
    let values = [&[0x81][..], &pair("messages", &[&[0x91][..], &message].concat())].concat();
    let checkpoint =
        [&[0x83][..], &pair("v", &[4]), &pair("id", &text("1f0")), &pair("channel_values", &values)].concat();
    let db = rusqlite::Connection::open(file).unwrap();
    db.execute_batch(
        "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, parent_checkpoint_id TEXT, type TEXT,
           checkpoint BLOB, metadata BLOB);
         CREATE TABLE writes (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, task_id TEXT, idx INTEGER, channel TEXT,
           type TEXT, value BLOB);",
    )
    .unwrap();
    let row = ("thread-1", "", "1f0", "msgpack", checkpoint, "{}");
    db.execute("INSERT INTO checkpoints VALUES (?1, ?2, ?3, NULL, ?4, ?5, ?6)", row).unwrap();
}

#[test]
fn what_an_import_leaves_out_or_heals_is_told() {
    let place = Place::new();
    let whole = "{\"role\":\"user\",\"content\":\"one\"}\n";
    let torn = place.write("torn.jsonl", format!("{whole}{{\"role\":\"assistant\",\"content\":\"tw"));
    let ran = place.run(&["sessions", "import", torn.to_str().unwrap()]);
    assert!(ran.code == 0 && ran.err.contains("its last line, 2, ends in the middle"), "{ran:?}");
    let half = r#"{"role":"user","content":"half \ud83d of it"}"#;
    let lines = place.write("half.jsonl", format!("{whole}{half}\n"));
    let ran = place.run(&["sessions", "import", lines.to_str().unwrap()]);
    assert!(ran.code == 0 && ran.err.contains("line 2: it held half a character"), "{ran:?}");
    let list = place.write("half.json", format!("[{half}]"));
    let ran = place.run(&["sessions", "import", list.to_str().unwrap()]);
    assert!(ran.code == 0 && ran.err.contains("half a character"), "{ran:?}");
    let id = place.session("Healed", &[]);
    let ran = place.run(&["messages", "add", &id, "--from-json", half]);
    assert!(ran.code == 0 && ran.err.contains("half characters"), "{ran:?}");
    assert_eq!(place.texts(&id), ["half \u{fffd} of it"]);
}
