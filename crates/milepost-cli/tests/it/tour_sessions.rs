//! The life of sessions: begun, added to, resumed, rewound, compared, branched, ended.

use serde_json::json;

use crate::support::{number, text};
use crate::tour::Tour;

pub fn life(tour: &mut Tour<'_>) {
    tour.person(&["sessions", "list"]);
    let first = tour.person(&[
        "sessions",
        "new",
        "--title",
        "Three papers",
        "--project",
        "alpha",
        "--agent",
        "researcher",
        "--feature",
        "search",
        "--task",
        "t-1",
        "--stage",
        "planning",
        "--tag",
        "urgent",
        "--set",
        "memory.step=1",
        "--policy",
        "every_messages=3",
    ]);
    let made = tour.program(&["sessions", "new", "--title", "Second"]);
    let second = text(&made, "/sessionId").to_owned();
    assert_eq!((text(&made, "/status"), number(&made, "/messageCount")), ("active", 0));
    let key =
        ["--project", "alpha", "--agent", "researcher", "--feature", "search", "--task", "t-1", "--stage", "planning"];
    let again = tour.program(&[&["sessions", "new", "--reuse", "--tag", "again"], &key[..]].concat());
    assert_eq!(text(&again, "/sessionId"), first);

    tour.person(&["messages", "add", &first, "Find three papers on write-ahead logs"]);
    tour.person_with(&["messages", "add", &first, "--role", "assistant"], "Here they are:\n- ARIES\n- two others\n");
    tour.person_with(
        &["messages", "add", &first, "-", "--from-json", "--channel", "reader"],
        "{\"role\": \"user\", \"content\": \"Read the first\"}\n{\"role\": \"assistant\", \"content\": \"It is long\"}\n",
    );
    let added = tour.program(&["messages", "add", &first, "And now?"]);
    assert_eq!(number(&added, "/messageCount"), 5);
    tour.person(&["messages", "list", &first]);
    tour.person(&["messages", "list", &first, "--channel", "reader", "-n", "1"]);
    let listed = tour.program(&["messages", "list", &first, "--all"]);
    let contents: Vec<&str> = (0..5).map(|at| text(&listed, &format!("/messages/{at}/content"))).collect();
    assert_eq!(contents[0], "Find three papers on write-ahead logs");
    assert_eq!(contents[1], "Here they are:\n- ARIES\n- two others");
    assert_eq!((text(&listed, "/messages/2/channel"), text(&listed, "/messages/4/role")), ("reader", "user"));
    tour.person(&["messages", "tail", &first, "-n", "2", "--no-follow"]);
    let tail = tour.program_apart(&["messages", "tail", &first, "-n", "2", "--no-follow"]);
    let lines: Vec<serde_json::Value> = tail.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), text(&lines[1], "/content")), (2, "And now?"));

    tour.person(&["state", "set", &first, "memory.step=2", "memory.name=Ada", "memory.list=[1,2]"]);
    assert_eq!(tour.program(&["state", "set", &first, "memory.done=true"])["set"], json!(["/memory/done"]));
    tour.person(&["state", "get", &first]);
    tour.person(&["state", "get", &first, "memory.name"]);
    assert_eq!(tour.program(&["state", "get", &first, "/memory/name"]), json!("Ada"));
    tour.person(&["sessions", "rename", &second, "The second one"]);
    assert_eq!(text(&tour.program(&["sessions", "rename", &second, "Second"]), "/sessionId"), second);
    tour.person(&["sessions", "tag", &second, "+draft", "later", "-none"]);
    assert_eq!(tour.program(&["sessions", "tag", &second, "-draft"])["tags"], json!(["later"]));
    tour.person(&["sessions", "show", &first]);
    let shown = tour.program(&["sessions", "show", &first]);
    assert_eq!((text(&shown, "/projectId"), number(&shown, "/state/memory/step")), ("alpha", 2));
    assert_eq!(shown["messages"].as_array().unwrap().len(), 5);

    tour.person(&["sessions", "search", "papers"]);
    tour.person(&["sessions", "search", "RIE", "--substring", "-C", "0"]);
    tour.person(&["sessions", "search", "nowhere"]);
    let found = tour.program(&["sessions", "search", "paper*", "--role", "user"]);
    assert_eq!(text(&found, "/hits/0/sessionId"), first);
    let long = "The log is written before the pages, so that a crash can be made good by reading it again. ".repeat(20);
    tour.place.ok(&[
        "messages",
        "add",
        &first,
        &format!("We decided to read ARIES first. {long}"),
        "--role",
        "assistant",
    ]);
    tour.place.ok(&["messages", "add", &first, "Then go on"]);
    tour.person(&["sessions", "compact", &first, "--keep", "1", "--pin", "ARIES is first", "--dry-run"]);
    tour.person(&["sessions", "compact", &first, "--keep", "1", "--pin", "ARIES is first"]);
    tour.person(&["sessions", "compact", &first, "--dropped"]);
    tour.person(&["sessions", "summary", &first, "--as", "pm"]);
    assert_eq!(number(&tour.program(&["sessions", "summary", &first]), "/summary/version"), 1);
    tour.person(&["sessions", "uncompact", &first]);
    assert!(number(&tour.program(&["sessions", "compact", &first, "--keep", "1"]), "/messages") > 0);
    assert_eq!(number(&tour.program(&["sessions", "uncompact", &first]), "/version"), 0);

    tour.person(&["sessions", "pause", &first, "--reason", "lunch"]);
    assert_eq!(text(&tour.program(&["sessions", "pause", &second]), "/status"), "paused");
    tour.person(&["sessions", "list"]);
    tour.person(&["sessions", "list", "--status", "paused", "--project", "alpha", "--limit", "1"]);
    tour.person(&["sessions", "resume", &first, "--dry-run"]);
    tour.person(&["sessions", "resume", "last", "--set", "memory.step=3"]);
    let resumed = tour.program(&["sessions", "resume", &second]);
    assert_eq!((text(&resumed, "/sessionId"), text(&resumed, "/status")), (second.as_str(), "active"));
    assert!(resumed["resumedFrom"].is_string() && resumed["resumed"] == json!(true));
    tour.person(&["sessions", "complete", &first]);
    assert_eq!(text(&tour.program(&["sessions", "complete", &second]), "/status"), "completed");
    let listed = tour.program(&["sessions", "list", "--resumable"]);
    assert_eq!(listed, json!({ "sessions": [], "more": false }));

    tour.person(&["sessions", "trash", &first, &second]);
    tour.person(&["sessions", "list", "--trashed"]);
    tour.person(&["sessions", "untrash", "last"]);
    assert_eq!(tour.program(&["sessions", "trash", &first])["sessions"], json!([first]));
    assert_eq!(tour.program(&["sessions", "untrash", &first])["trashed"], json!(false));
    tour.person(&["sessions", "delete", &first, "--dry-run"]);
    tour.person(&["sessions", "delete", &first, "--yes"]);
    assert_eq!(tour.program(&["sessions", "delete", &second, "--yes"])["deleted"], json!([second]));
}

/// Checkpoints: taken, listed, inspected, compared, gone back to, branched from.
pub fn points(tour: &mut Tour<'_>) {
    let id = tour.place.session("A plan", &["one"]);
    tour.person(&["checkpoint", &id, "--label", "before", "--description", "all is well"]);
    let taken = tour.program(&["checkpoint", &id, "--type", "milestone"]);
    let milestone = text(&taken, "/checkpointId").to_owned();
    tour.place.ok(&["messages", "add", &id, "two", "--role", "assistant"]);
    tour.place.ok(&["state", "set", &id, "memory.step=2"]);
    tour.person(&["sessions", "diff", &format!("{id}@before"), &id]);
    tour.person(&["checkpoint", &id, "--label", "after"]);
    tour.person(&["sessions", "checkpoints", &id]);
    tour.person(&["sessions", "checkpoints", &id, "--type", "milestone", "-n", "1"]);
    tour.person(&["sessions", "checkpoints", &id, "--trashed"]);
    let listed = tour.program(&["sessions", "checkpoints", &id]);
    assert_eq!((number(&listed, "/total_checkpoints"), text(&listed, "/checkpoints/0/label")), (4, "after"));
    assert_eq!(text(&listed, "/checkpoints/1/checkpoint_id"), milestone);
    tour.person(&["sessions", "inspect", &id, "after", "--state"]);
    let inspected = tour.program(&["sessions", "inspect", &id, &milestone, "--state"]);
    assert_eq!((text(&inspected, "/type"), &inspected["state"]), ("milestone", &json!({})));
    assert_eq!((&inspected["is_clean"], &inspected["can_resume_from"]), (&json!(true), &json!(true)));
    tour.person(&["sessions", "diff", &format!("{id}@before"), &format!("{id}@after")]);
    let diff = tour.program(&["sessions", "diff", &format!("{id}@before"), &id]);
    assert_eq!((text(&diff, "/onlyB/0/content"), text(&diff, "/state/0/path")), ("two", "/memory"));
    tour.person(&["sessions", "restore", &id, "before", "--dry-run"]);
    tour.person(&["sessions", "restore", &id, "before"]);
    assert_eq!(tour.place.texts(&id), ["one"]);
    let restored = tour.program(&["sessions", "restore", &id, text(&listed, "/checkpoints/0/checkpoint_id")]);
    assert_eq!(text(&restored, "/sessionId"), id);
    assert_eq!(tour.place.texts(&id), ["one", "two"]);
    tour.person(&["messages", "list", &id, "--checkpoint", "before"]);
    tour.person(&["state", "get", &id, "--checkpoint", "before"]);
    let branch = tour.person(&[
        "sessions",
        "branch",
        &id,
        "--checkpoint",
        "before",
        "--title",
        "Another way",
        "--set",
        "memory.try=2",
    ]);
    assert_eq!(tour.place.texts(&branch), ["one"]);
    let second = tour.program(&["sessions", "branch", &id, "--checkpoint", "before"]);
    assert!(second["sessionId"].is_string(), "{second}");
    tour.person(&["sessions", "show", &branch]);
    tour.person(&["sessions", "resume", &id, "--checkpoint", "before"]);
}
