//! The store kept in order and moved; settings and keys; what shells and manuals get.

use serde_json::json;

use crate::support::{number, text};
use crate::tour::Tour;

/// 32 bytes that are no secret.
pub const KEY: &str = "1111111111111111111111111111111111111111111111111111111111111111";
pub const OTHER_KEY: &str = "2222222222222222222222222222222222222222222222222222222222222222";

pub fn care(tour: &mut Tour<'_>) {
    let id = tour.place.session("Long work", &["the key is hunter2-hunter2", "fine"]);
    for _ in 0..4 {
        tour.place.ok(&["checkpoint", &id, "--type", "interval"]);
    }
    tour.person(&["stats"]);
    tour.person(&["stats", &id]);
    tour.person(&["stats", "--usage"]);
    tour.person(&["stats", "--usage", &id]);
    assert!(number(&tour.program(&["stats"]), "/totalBytes") > 0);
    assert_eq!(number(&tour.program(&["stats", "--usage", "--since", "1d"]), "/total/totalMessages"), 2);
    tour.person(&["prune", &id, "--keep", "2", "--dry-run"]);
    tour.person(&["prune", "--keep", "2"]);
    tour.person(&["prune", "--purge"]);
    let pruned = tour.program(&["prune", &id, "--keep", "1", "--dry-run"]);
    assert_eq!((number(&pruned, &format!("/pruned/{id}")), &pruned["dryRun"]), (1, &json!(true)));
    tour.person(&["sessions", "checkpoints", &id, "--trashed"]);
    tour.person(&["verify"]);
    tour.person(&["verify", &id]);
    assert_eq!(tour.program(&["verify", "--deep"])["whole"], json!(true));
    tour.person(&["reindex"]);
    assert_eq!(number(&tour.program(&["reindex", &id]), "/sessions"), 1);
    tour.person(&["salvage", "data/milepost/milepost.db", "rescued.db", "--dry-run"]);
    tour.person(&["salvage", "data/milepost/milepost.db", "rescued.db"]);
    assert_eq!(number(&tour.program(&["salvage", "data/milepost/milepost.db", "again.db"]), "/lost"), 0);
    tour.person(&["doctor"]);
    let call =
        json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "t1", "name": "read", "input": {} }] });
    tour.place.run_with(&["messages", "add", &id, "--from-json"], call.to_string().as_bytes());
    tour.person(&["doctor", "--rules", "anthropic"]);
    assert_eq!(number(&tour.program(&["doctor", &id]), "/sessions"), 1);
    tour.person_with(&["redact", "--dry-run"], "hunter2-hunter2\n");
    tour.person(&["redact", "hunter2-hunter2", "--instead", "[a password]", "--yes"]);
    tour.person(&["redact", "hunter2-hunter2", "--dry-run"]);
    assert_eq!(number(&tour.program(&["redact", "hunter2-hunter2", "--dry-run"]), "/entries"), 0);
    assert_eq!(tour.place.texts(&id)[0], "the key is [a password]");

    tour.person(&["sql", "select title, status, message_count from sessions"]);
    tour.person(&["sql", "select * from sessions"]);
    tour.person_with(&["sql", "--session", "last"], "select role, text from messages where role = 'user'");
    assert_eq!(tour.program(&["sql", "select count(*) as count from messages"]), json!([{ "count": 3 }]));
    tour.person(&["export", "--sqlite", "all.db"]);
    let exported = rusqlite::Connection::open(tour.place.file("all.db")).unwrap();
    let count = |table: &str| -> u64 {
        exported.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, u32>(0)).unwrap().into()
    };
    let said = tour.program(&["export", "--sqlite", "all.db", "--force"]);
    assert_eq!((number(&said, "/messages"), number(&said, "/checkpoints")), (3, count("checkpoints")));
    assert_eq!(count("messages"), 3);
    tour.person(&["backup", "copy.db"]);
    assert!(number(&tour.program(&["backup", "copy-2.db"]), "/bytes") > 0);
    assert_eq!(
        tour.place.json(&["sessions", "list", "--store", "sqlite:copy.db"])["sessions"][0]["sessionId"],
        json!(id)
    );
    let here = tour.place.url();
    tour.person(&["migrate", &here, "sqlite:moved.db"]);
    let again = tour.program(&["migrate", &here, "sqlite:moved.db"]);
    assert_eq!((number(&again, "/sessions"), number(&again, "/copiedEntries")), (1, 0));
    let bucket = format!("file://{}", tour.place.file("bucket").display());
    tour.person(&["push", &id, &bucket]);
    tour.person(&["push", &id, &bucket]);
    tour.place.ok(&["messages", "add", &id, "once more"]);
    assert_eq!(tour.program(&["push", &id, &bucket])["isNew"], json!(false));
    tour.person(&["pull", &id, &bucket, "--store", "sqlite:elsewhere.db"]);
    assert_eq!(number(&tour.program(&["pull", &id, &bucket, "--store", "sqlite:elsewhere.db"]), "/entries"), 0);
    assert_eq!(
        tour.place.json(&["messages", "list", &id, "--store", "sqlite:elsewhere.db"])["messages"]
            .as_array()
            .unwrap()
            .len(),
        4
    );

    tour.person(&["sessions", "archive", &id, "--to", "sqlite:archive.db"]);
    // Where it is may be cut short, as the place is what it is.
    assert!(tour.person_apart(&["sessions", "list", "--archived"]).contains("sqlite:"));
    // It is found from another directory too.
    let mut elsewhere = tour.place.command(["sessions", "unarchive", &id]);
    let back = crate::support::Ran::of(elsewhere.current_dir("/").output().unwrap());
    assert_eq!(back.code, 0, "{back:?}");
    tour.place.ok(&["sessions", "archive", &id, "--to", "sqlite:archive-2.db"]);
    tour.person(&["sessions", "unarchive", &id]);
    let archived = tour.program(&["sessions", "archive", &id, "--to", "sqlite:archive.db"]);
    assert_eq!(text(&archived, "/sessionId"), id);
    assert_eq!(text(&tour.program(&["sessions", "unarchive", &id]), "/sessionId"), id);
    assert_eq!(tour.place.texts(&id).len(), 4);
}

pub fn settings_and_keys(tour: &mut Tour<'_>) {
    tour.person(&["config", "path"]);
    assert_eq!(tour.program(&["config", "path"]), json!({ "path": null }));
    tour.place.write("milepost.yaml", "policy:\n  every_messages: 5\n");
    tour.person(&["config", "path"]);
    tour.person(&["config", "check"]);
    assert_eq!(tour.program(&["config", "check"]), json!({ "problems": [] }));
    let changed = tour.person_apart(&["config", "show", "--changed"]);
    assert!(changed.lines().count() == 2 && changed.contains("policy.every_messages  5"), "{changed}");
    tour.person(&["config", "show", "encryption"]);
    tour.person(&["config", "show", "nothing"]);
    let shown = tour.program(&["config", "show", "every_messages"]);
    assert_eq!((text(&shown, "/0/key"), number(&shown, "/0/value")), ("policy.every_messages", 5));

    tour.person(&["keys", "show"]);
    assert_eq!(tour.program(&["keys", "show"]), json!({ "encrypted": false, "fingerprint": null }));
    let key = tour.person_apart(&["keys", "new"]);
    assert!(key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    assert_eq!(text(&tour.program(&["keys", "new"]), "/key").len(), 64);
    tour.place.ok(&["keys", "new", "--output", "made.key"]);
    #[cfg(unix)]
    assert_eq!(
        std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(tour.place.file("made.key")).unwrap()) & 0o777,
        0o600
    );

    tour.place.write("first.key", KEY);
    tour.place.write("second.key", OTHER_KEY);
    let config = |name: &str| {
        format!("store: sqlite:secret.db\nencryption:\n  enabled: true\n  key_source: file\n  key_file: {name}\n")
    };
    tour.place.write("milepost.yaml", config("first.key"));
    let id = tour.place.session("In the dark", &["nobody reads this"]);
    let on_disk = std::fs::read(tour.place.file("secret.db")).unwrap();
    assert!(!on_disk.windows(6).any(|part| part == b"nobody"), "a message lies in clear");
    tour.person(&["keys", "show"]);
    tour.person(&["keys", "rotate", "--to", "second.key"]);
    tour.place.write("milepost.yaml", config("second.key"));
    assert_eq!(tour.place.texts(&id), ["nobody reads this"]);
    assert!(tour.program(&["keys", "rotate", "--to", "first.key", "--data"])["rewrapped"].is_number());
    tour.place.write("milepost.yaml", config("first.key"));
    assert_eq!(tour.place.texts(&id), ["nobody reads this"]);

    let head = tour.person_apart(&["keys", "sign", &id, "--key", "second.key"]);
    tour.place.write("head.json", &head);
    assert_eq!(text(&tour.program(&["keys", "sign", &id, "--key", "second.key"]), "/session"), id);
    tour.person(&["keys", "check", "head.json"]);
    assert_eq!(tour.program(&["keys", "check", "head.json"])["whole"], json!(true));
    let other = tour.place.session("To be destroyed", &["gone"]);
    tour.person(&["keys", "shred", &id, "--yes"]);
    assert_eq!(tour.program(&["keys", "shred", &other, "--yes"])["shredded"], json!(true));

    for (shell, word) in [("bash", "_milepost()"), ("zsh", "#compdef milepost"), ("fish", "complete -c milepost")] {
        assert!(tour.person_apart(&["completions", shell]).contains(word), "{shell}");
        assert!(tour.program_apart(&["completions", shell]).contains("checkpoint"), "{shell}");
    }
    assert!(tour.person_apart(&["man"]).contains(".TH milepost 1"));
    tour.person(&["man", "pages"]);
    let pages = number(&tour.program(&["man", "pages"]), "/pages");
    assert_eq!(std::fs::read_dir(tour.place.file("pages")).unwrap().count() as u64, pages);
    let page = std::fs::read_to_string(tour.place.file("pages/milepost-sessions-resume.1")).unwrap();
    assert!(page.contains("take"), "{page}");
}
