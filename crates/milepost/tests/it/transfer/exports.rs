//! Exports: documents that cannot be broken, files that stay where they belong, tables that can be queried.

use std::fs;
use std::path::Path;

use milepost::model::{Block, Channel, Message, Role, SessionId, SessionPatch, Trigger};
use milepost::store::{Append, MarkQuery, NewMark, NewSession, Store};
use milepost::transfer::export::{FileOptions, Layout, Present, chat_files, jsonl, markdown, sqlite, tree};
use serde_json::{Value, json};

use crate::transfer::scene::{Dice, Scene, any_session, claim};

pub const LAYOUTS: [Layout; 5] = [Layout::Hosted, Layout::Task, Layout::Plan, Layout::Feature, Layout::Graph];

pub async fn text(store: &Store, id: SessionId) -> String {
    let mut out = Vec::new();
    markdown(store, id, &mut out).await.unwrap();
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn a_session_reads_well_as_markdown() {
    let scene = Scene::new(1);
    let store = scene.memory().await;
    let patch = SessionPatch::new().title("Fix the *build*").project("site").tags(["ci"]);
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let blocks = vec![
        Block::text("I look at `a<b>`.\n\n```rust\nlet x: Vec<u8>;\n```"),
        Block::tool_call("c1", "run </summary>", json!({ "command": "ls" })),
        Block::Image {
            source: json!({ "type": "base64", "media_type": "image/png", "data": "AAAA" }),
            extra: Default::default(),
        },
    ];
    writer
        .append(
            Append::new()
                .message(Message::new(Role::User, "Why <b>red</b>?\n# not a heading of ours"))
                .message(Message::blocks(Role::Assistant, blocks))
                .message(Message::blocks(Role::Tool, vec![Block::tool_result("c1", json!("a ``` b"))]))
                .mark(NewMark::new(Trigger::Manual).label("green")),
        )
        .await
        .unwrap();
    let id = writer.id();
    let mark = store.marks(id, &MarkQuery::default()).await.unwrap()[0].checkpoint.id;
    let expected = format!(
        "# Fix the \\*build\\*\n\n| | |\n|---|---|\n| Session | `{id}` |\n| Status | active |\n| Project | site |\n| Tags | ci |\n\
         | Began | 2026-01-01 00:00:00 UTC |\n| Last active | 2026-01-01 00:00:00 UTC |\n| Messages | 3 |\n| Checkpoints | 1 |\n\n\
         ## User · 2026-01-01 00:00:00 UTC\n\n> Why &lt;b>red&lt;/b>?\n> # not a heading of ours\n\n\
         ## Assistant · 2026-01-01 00:00:00 UTC\n\n> I look at `a<b>`.\n> \n> ```rust\n> let x: Vec<u8>;\n> ```\n\n\
         <details><summary>Tool call: run &lt;/summary&gt;</summary>\n\n```json\n{{\n  \"command\": \"ls\"\n}}\n```\n\n</details>\n\n\
         *(a picture: image/png, about 3 bytes)*\n\n\
         ## Tool · 2026-01-01 00:00:00 UTC\n\n<details><summary>Tool result</summary>\n\n````text\na ``` b\n````\n\n</details>\n\n\
         ---\n\n**Checkpoint 1** · manual · *green* · 2026-01-01 00:00:00 UTC · `{mark}`\n\n---\n\n"
    );
    assert_eq!(text(&store, id).await, expected);
}

#[tokio::test]
async fn what_was_said_cannot_change_the_document() {
    for seed in 0..40 {
        let scene = Scene::new(seed);
        let store = scene.memory().await;
        let id = any_session(&scene, &store, &Dice::new(seed)).await;
        let document = text(&store, id).await;
        let (mut headings, mut rules, mut open, mut fence) = (0, 0, 0i64, None::<String>);
        for line in document.lines() {
            if let Some(end) = &fence {
                if line == end {
                    fence = None;
                }
                continue;
            }
            if line.starts_with("```") {
                fence = Some(line.chars().take_while(|c| *c == '`').collect());
            } else if line.starts_with("## ") {
                headings += 1;
            } else if line == "---" {
                rules += 1;
            }
            if !line.starts_with('>') {
                open += line.matches("<details>").count() as i64 - line.matches("</details>").count() as i64;
                assert!(!line.contains("<b>") && (0..=1).contains(&open), "{line}");
            }
        }
        let session = store.session(id).await.unwrap();
        let entries = store.entries(id, milepost::model::Seq(0), milepost::model::Seq(u64::MAX)).await.unwrap();
        let marks = entries.iter().filter(|e| matches!(e.body, Some(milepost::model::Body::Mark(_)))).count();
        assert_eq!((headings, rules, open, fence), (session.messages(), 2 * marks, 0, None), "{document}");
    }
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push((path.strip_prefix(dir).unwrap().display().to_string(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

pub fn tree_of(dir: &Path) -> Vec<(String, String)> {
    files(dir).into_iter().map(|(name, bytes)| (name, String::from_utf8_lossy(&bytes).into_owned())).collect()
}

#[tokio::test]
async fn hostile_names_stay_below_the_directory() {
    let scene = Scene::new(2);
    let store = scene.memory().await;
    let patch = SessionPatch::new().project("/etc/../../x").feature("..").task("../../../evil\\..");
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let said = Message::new(Role::User, "x").in_channel(Channel::new("../../../../tmp/out").unwrap());
    let state = json!({ "memory": { "draftArtifacts": { "../../escape.md": "no", "foundation.md": "# yes" } }, "agent": { "currentPhase": 1 } });
    let mark = NewMark::new(Trigger::PhaseComplete);
    writer
        .append(Append::new().message(said).state(milepost::model::State::try_from(state).unwrap()).mark(mark))
        .await
        .unwrap();
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("a/b/c/d");
    for layout in LAYOUTS {
        let written = tree(&store, writer.id(), layout, &dir, &FileOptions::default()).await.unwrap();
        assert!(!written.is_empty());
        for path in written {
            let real = path.parent().unwrap().canonicalize().unwrap();
            assert!(real.starts_with(dir.canonicalize().unwrap()), "{}", path.display());
        }
    }
    chat_files(&store, writer.id(), &dir, Present::Replace).await.unwrap();
    assert_eq!(files(outer.path()).len(), files(&dir).len());
    let all = tree_of(&dir);
    assert!(all.iter().any(|(name, text)| name.ends_with("artifacts/foundation.md") && text == "# yes"));
    assert_eq!(
        fs::read_link(dir.join(".checkpoints/latest.json")).unwrap(),
        Path::new("checkpoint_phase1_complete.json")
    );
    assert!(all.iter().any(|(name, _)| name.contains(".metadata/task.json")));
}

#[cfg(unix)]
#[tokio::test]
async fn links_are_not_followed() {
    let scene = Scene::new(3);
    let store = scene.memory().await;
    let id = any_session(&scene, &store, &Dice::new(3)).await;
    let (outside, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(outside.path(), dir.path().join("checkpoints")).unwrap();
    let error = tree(&store, id, Layout::Hosted, dir.path(), &FileOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("links are not followed"), "{error}");
    let chat = format!("chat_{id}.json");
    let target = outside.path().join("precious");
    fs::write(&target, "mine").unwrap();
    std::os::unix::fs::symlink(&target, dir.path().join(&chat)).unwrap();
    chat_files(&store, id, dir.path(), Present::Replace).await.unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
    assert!(fs::read_to_string(dir.path().join(&chat)).unwrap().contains("sessionId"));
}

#[tokio::test]
async fn a_database_can_be_queried() {
    let scene = Scene::new(4);
    let store = scene.memory().await;
    let mut ids = Vec::new();
    for seed in 0..3 {
        ids.push(any_session(&scene, &store, &Dice::new(seed)).await);
    }
    let path = scene.dir.path().join("out.db");
    let done = sqlite(&store, &ids, &path).await.unwrap();
    assert_eq!(done.sessions, 3);
    let db = rusqlite::Connection::open(&path).unwrap();
    let columns: Vec<String> = db
        .prepare("SELECT name FROM pragma_table_info('checkpoints')")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let wanted = [
        "id",
        "session_id",
        "project_id",
        "step_number",
        "created_at",
        "state_json",
        "description",
        "trigger_type",
        "duration_ms",
        "token_usage",
    ];
    assert_eq!(columns[..10], wanted);
    let (mut messages, mut checkpoints) = (0, 0);
    for id in &ids {
        messages += store.session(*id).await.unwrap().messages();
        for mark in store.marks(*id, &MarkQuery::default()).await.unwrap() {
            checkpoints += 1;
            let key = mark.checkpoint.id.to_string();
            let (state, trigger): (String, String) = db
                .query_row(
                    "SELECT state_json, trigger FROM checkpoints WHERE id = ? AND session_id = ?",
                    [key, id.to_string()],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .unwrap();
            let state: Value = serde_json::from_str(&state).unwrap();
            assert_eq!(&state, store.load(mark.checkpoint.id).await.unwrap().state.as_value());
            assert_eq!(trigger, mark.checkpoint.trigger.as_str());
        }
    }
    assert_eq!((done.messages, done.checkpoints), (messages, checkpoints));
    assert!(sqlite(&store, &ids, &path).await.is_err(), "a file that is there is not touched");
    let gone = scene.dir.path().join("gone.db");
    assert!(sqlite(&store, &[store.source().id()], &gone).await.is_err() && !gone.exists());
}

#[tokio::test]
async fn jsonl_has_a_message_a_line() {
    let scene = Scene::new(5);
    let store = scene.memory().await;
    let id = any_session(&scene, &store, &Dice::new(5)).await;
    let mut out = Vec::new();
    let count = jsonl(&store, id, &mut out).await.unwrap();
    let lines = String::from_utf8(out).unwrap();
    assert_eq!(lines.lines().count() as u64, count);
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["timestamp"].is_string()));
}

#[tokio::test]
async fn no_character_of_a_session_turns_the_direction_of_markdown() {
    let scene = Scene::new(21);
    let store = scene.memory().await;
    let turning: String = ('\u{202a}'..='\u{202e}')
        .chain('\u{2066}'..='\u{2069}')
        .chain(['\u{61c}', '\u{200e}', '\u{200f}'])
        .flat_map(|c| ['x', c])
        .collect();
    let said = |text: &str| format!("{text} {turning} 👩‍🚀");
    let patch = SessionPatch::new().title(said("title")).project(said("project")).tags([said("tag")]);
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let call = Block::tool_call("1", said("tool"), json!({ said("key"): said("value") }));
    let blocks = vec![Block::text(said("```\ncode")), call, Block::from(json!({ "type": said("odd") }))];
    let messages = [Message::new(Role::User, said("text")), Message::blocks(Role::Other(said("role")), blocks)];
    let mark = NewMark::new(Trigger::Manual).label(said("label")).description(said("description"));
    let mut append = Append::new().mark(mark);
    for message in messages {
        append = append.message(message);
    }
    writer.append(append).await.unwrap();
    let written = text(&store, writer.id()).await;
    let found: Vec<char> = written.chars().filter(|c| turning.contains(*c) && *c != 'x').collect();
    assert_eq!(found, Vec::<char>::new(), "{written}");
    assert!(written.contains("👩‍🚀"), "what joins letters stays");
    for part in
        ["title", "project", "tag", "text", "code", "tool", "key", "value", "odd", "ole", "label", "description"]
    {
        assert!(written.contains(part), "{part}: {written}");
    }
}
