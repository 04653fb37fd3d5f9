//! Trees of other tools that are imported and written again: every value that was in them is there again, in the same file
//! under the same name. What an export adds is told exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use milepost::model::Message;
use milepost::project::{Owner, Projects};
use milepost::store::{Append, MarkQuery, Store};
use milepost::transfer::export::{FileOptions, Layout, Present, chat_files, tree};
use milepost::transfer::older::import_path;
use milepost::transfer::{ImportOptions, Imported};
use serde_json::{Value, json};

use crate::transfer::exports::LAYOUTS;
use crate::transfer::scene::{Dice, Scene, any_session, claim};

/// A tree: files by their places, and JSON, JSON lines or text in them.
type Tree = BTreeMap<String, Vec<u8>>;

fn put(tree: &mut Tree, place: &str, value: &Value) {
    tree.insert(place.to_owned(), serde_json::to_vec_pretty(value).unwrap());
}

fn lay(tree: &Tree, dir: &Path) {
    for (place, content) in tree {
        let path = dir.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn read(dir: &Path) -> Tree {
    let (mut found, mut open) = (Tree::new(), vec![dir.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(dir).unwrap().display().to_string(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Values one after the other: of a JSON file one, of lines one a line.
fn values(content: &[u8]) -> Option<Vec<Value>> {
    match serde_json::from_slice(content) {
        Ok(value) => Some(vec![value]),
        Err(_) => content
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).ok())
            .collect(),
    }
}

/// What is lost or changed, and the places of what is added; items of lists have one place.
fn compare(place: &str, was: &Value, is: &Value, lost: &mut Vec<String>, added: &mut BTreeSet<String>) {
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => {
            for (key, value) in was {
                match is.get(key) {
                    Some(now) => compare(&format!("{place}/{key}"), value, now, lost, added),
                    None => lost.push(format!("{place}/{key}: {value} is gone")),
                }
            }
            added.extend(is.keys().filter(|key| !was.contains_key(*key)).map(|key| format!("{place}/{key}")));
        }
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => {
            for (was, is) in was.iter().zip(is) {
                compare(&format!("{place}/*"), was, is, lost, added);
            }
        }
        _ if was == is => {}
        _ => lost.push(format!("{place}: {was} became {is}")),
    }
}

/// Compares two trees. What is added has its file's place with `kind` for names that vary.
fn differences(was: &Tree, is: &Tree, kind: impl Fn(&str) -> String) -> (Vec<String>, BTreeSet<String>) {
    let (mut lost, mut added) = (Vec::new(), BTreeSet::new());
    for (place, content) in was {
        let Some(now) = is.get(place) else {
            lost.push(format!("{place} is gone"));
            continue;
        };
        match (values(content), values(now)) {
            (Some(was), Some(is)) => {
                compare(&kind(place), &Value::Array(was), &Value::Array(is), &mut lost, &mut added);
            }
            _ if content == now => {}
            // Logs are added to: a line for each checkpoint.
            _ if place.ends_with(".log") && now.starts_with(content) => drop(added.insert(kind(place))),
            _ => lost.push(format!("{place} differs")),
        }
    }
    added.extend(is.keys().filter(|place| !was.contains_key(*place)).map(|place| kind(place)));
    (lost, added)
}

async fn import(store: &Store, dir: &Path) -> Vec<Imported> {
    import_path(store, dir, &ImportOptions::default(), &claim()).await.unwrap()
}

/// Imports a tree, writes it again, and once more from what was written: what is lost, what is added, and whether the third is
/// the second.
async fn around(tree_was: &Tree, layout: Option<Layout>, kind: impl Fn(&str) -> String) -> BTreeSet<String> {
    let scene = Scene::new(1);
    let write = async |store: &Store, imported: &[Imported], dir: &Path| {
        for one in imported {
            match layout {
                Some(layout) => {
                    let options = FileOptions { present: Present::Replace, ..FileOptions::default() };
                    tree(store, one.session, layout, dir, &options).await.unwrap();
                }
                None => drop(chat_files(store, one.session, dir, Present::Replace).await.unwrap()),
            }
        }
    };
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    lay(tree_was, dirs[0].path());
    let stores = [scene.memory().await, scene.memory().await];
    for (number, store) in stores.iter().enumerate() {
        let imported = import(store, dirs[number].path()).await;
        write(store, &imported, dirs[number + 1].path()).await;
        assert!(store.verify().await.unwrap().is_whole());
    }
    let (first, second) = (read(dirs[1].path()), read(dirs[2].path()));
    let (lost, added) = differences(tree_was, &first, kind);
    assert!(lost.is_empty(), "{layout:?}: {lost:#?}");
    // What was added says no more when it is written again, but for the ids of checkpoints that had none.
    let (lost, more) = differences(&first, &second, str::to_owned);
    assert!(lost.iter().all(|lost| lost.contains("ckp_")) && more.is_empty(), "{layout:?}: {lost:#?} {more:#?}");
    added
}

fn set(places: &[&str]) -> BTreeSet<String> {
    places.iter().map(|place| (*place).to_owned()).collect()
}

fn said(number: u32) -> Value {
    match number % 4 {
        0 => {
            json!({ "role": "user", "content": "look", "timestamp": "2025-03-01T10:00:00+01:00", "metadata": { "phase": 1, "type": "log" } })
        }
        1 => json!({
            "role": "ai", "content": "I look", "timestamp": "2025-03-01T09:00:01.000Z",
            "toolCalls": [{ "id": "c1", "name": "ls", "arguments": { "dir": "." }, "took": 3 }],
        }),
        2 => json!({
            "role": "user", "content": "", "timestamp": 1_740_819_602,
            "toolResults": [{ "toolCallId": "c1", "content": { "files": ["a"] } }],
        }),
        _ => json!({ "role": "system", "content": "noted", "timestamp": "2025-03-01T09:00:03.000Z" }),
    }
}

/// What a hosted chat agent left: ids, times and counts of its own, and fields that nobody here knows.
#[tokio::test]
async fn a_hosted_tree_comes_out_with_all_that_it_had() {
    let mut tree = Tree::new();
    let document = |number: u32, reason: &str| {
        let messages: Vec<Value> = (0..number * 2).map(said).collect();
        json!({
            "version": "1.1", "sessionId": "chat-7", "timestamp": format!("2025-03-01T09:0{number}:00+00:00"),
            "context": {
                "sessionId": "chat-7", "workspaceId": "acme", "projectId": "p-1", "projectName": "Site", "taskId": null,
                "agentType": "foundation", "systemPrompt": "be good", "workingDirectory": "/w",
                "createdAt": "2025-03-01T08:59:59Z", "lastActiveAt": "2025-03-01T09:00:59Z", "status": "active",
            },
            "conversation": { "messages": messages, "totalTokens": 4711, "lastMessageAt": "2025-03-01T09:00:03Z", "window": 8 },
            "memory": { "currentTask": "t", "draftArtifacts": { "a.md": "# a" }, "pendingActions": [] },
            "toolState": { "mcpCache": {}, "apiCallHistory": [{ "operation": "x", "timestamp": "2025-03-01T09:00:00Z" }] },
            "checkpointNumber": number + 40, "reason": reason, "region": { "name": "eu" },
        })
    };
    let newest = document(2, "shutdown");
    put(&mut tree, "checkpoints/chat-7/checkpoint-2025-03-01T09-01-00-000Z.json", &document(1, "periodic"));
    put(&mut tree, "checkpoints/chat-7/checkpoint-2025-03-01T09-02-00-000Z.json", &newest);
    put(&mut tree, "checkpoints/chat-7/latest.json", &newest);
    let lines: String = (0..6).map(|number| format!("{}\n", said(number))).collect();
    tree.insert("checkpoints/chat-7/conversation.jsonl".into(), lines.into());
    put(
        &mut tree,
        "sessions/chat-7/metadata.json",
        &json!({
            "sessionId": "chat-7", "projectId": "p-1", "projectName": "Site", "status": "idle", "messageCount": 6,
            "createdAt": "2025-03-01T08:59:59Z", "lastActiveAt": "2025-03-01T09:05:00Z", "lastMessage": "noted", "owner": "ada",
        }),
    );
    tree.insert("sessions/chat-7/artifacts/a.md".into(), b"# a".to_vec());
    tree.insert("sessions/chat-7/artifacts/docs/plan.json".into(), br#"{ "messages": [] }"#.to_vec());
    tree.insert("sessions/chat-7/artifacts/logo.png".into(), vec![0x89, 0x50, 0, 0xff]);
    tree.insert("sessions/chat-7/logs/agent.log".into(), b"10:00 began\n10:01 done\n".to_vec());
    let added = around(&tree, Some(Layout::Hosted), |place| {
        let name = place.rsplit('/').next().unwrap_or_default();
        if name.starts_with("checkpoint-") || name == "latest.json" { "checkpoint".into() } else { name.to_owned() }
    });
    let expected = set(&[
        "agent.log",
        "checkpoint/*/description",
        "checkpoint/*/id",
        "checkpoint/*/sections",
        "checkpoint/*/trigger",
        "metadata.json/*/agentType",
        "metadata.json/*/featureId",
        "metadata.json/*/stage",
        "metadata.json/*/tags",
        "metadata.json/*/taskId",
        "metadata.json/*/title",
        "metadata.json/*/workspaceId",
        "session-index.json",
    ]);
    assert_eq!(added.await, expected);
}

#[tokio::test]
async fn a_supervised_task_comes_out_with_all_that_it_had() {
    let mut tree = Tree::new();
    let whole = json!({
        "id": "cp-1", "taskId": "task-9", "createdAt": "2025-05-01T10:00:00Z", "createdBy": "user", "reason": "interval",
        "task": { "status": "in_progress", "type": "build", "currentPhase": 1, "progress": 10 },
        "agent": { "status": "running", "pid": 12, "currentPhase": 1, "currentStep": null, "tokensUsed": 5, "blockedBy": [] },
        "conversationHistory": { "messages": [said(0), said(1)], "lastMessageIndex": 41 },
        "environment": { "variables": { "KEY": "encrypted:x" }, "dependencies": [{ "type": "api", "name": "n", "providedAt": "2025-05-01T09:00:00Z" }] },
        "workspace": { "path": "/w", "deliverables": ["a"], "lastModified": "2025-05-01T09:00:00Z" },
        "protocols": {}, "odd": [1],
    });
    let more = json!({
        "id": "cp-2", "taskId": "task-9", "createdAt": "2025-05-01T10:10:00.000Z", "createdBy": "auto", "reason": "user_pause",
        "baseCheckpointId": "cp-1",
        "changes": {
            "conversationHistory": { "newMessages": [said(2)], "startIndex": 2 },
            "workspace": { "newFiles": ["b"], "modifiedFiles": ["a"] },
        },
    });
    put(&mut tree, ".checkpoints/checkpoint_2025-05-01T10-00-00-000Z.json", &whole);
    put(&mut tree, ".checkpoints/checkpoint_user_pause.json", &more);
    put(
        &mut tree,
        ".metadata/task.json",
        &json!({ "taskId": "task-9", "status": "in_progress", "title": "Build it", "attempts": 2, "createdAt": "2025-05-01T09:00:00Z" }),
    );
    let added = around(&tree, Some(Layout::Task), |place| {
        if place.contains("checkpoint_") { "checkpoint".to_owned() } else { place.to_owned() }
    });
    let about = |key: &str| format!(".metadata/task.json/*/{key}");
    let mut expected = set(&[
        ".checkpoints/latest.json",
        "checkpoint/*/agent",
        "checkpoint/*/conversationHistory",
        "checkpoint/*/description",
        "checkpoint/*/environment",
        "checkpoint/*/original_id",
        "checkpoint/*/protocols",
        "checkpoint/*/sections",
        "checkpoint/*/sessionId",
        "checkpoint/*/task",
        "checkpoint/*/trigger",
        "checkpoint/*/workspace",
    ]);
    expected.extend(
        [
            "agentType",
            "featureId",
            "lastActiveAt",
            "lastMessage",
            "messageCount",
            "projectId",
            "projectName",
            "sessionId",
        ]
        .map(about),
    );
    expected.extend(["stage", "tags", "workspaceId"].map(about));
    assert_eq!(added.await, expected);
}

#[tokio::test]
async fn a_plan_comes_out_with_all_that_it_had() {
    let mut tree = Tree::new();
    let checkpoint = |number: u64, kind: &str| {
        json!({
            "id": format!("p{number}"), "sessionId": "plan-1", "projectId": "site", "stepNumber": number + 7,
            "createdAt": format!("2025-06-01T10:0{number}:00Z"),
            "state": { "query": "q", "plan": [{ "id": "s1", "description": "d", "action": "a", "parameters": {}, "status": "done" }], "currentStepIndex": number, "results": [], "context": {} },
            "metadata": { "description": "after a step", "triggerType": kind, "durationMs": 12, "tokenUsage": null },
        })
    };
    let list = json!({ "sessionId": "plan-1", "checkpoints": [checkpoint(1, "auto"), checkpoint(2, "error"), checkpoint(3, "nightly")] });
    put(&mut tree, "plans/plan-1.json", &list);
    let added = around(&tree, Some(Layout::Plan), |_| "plan".to_owned()).await;
    let at = |key: &str| format!("plan/*/checkpoints/*/{key}");
    let expected: BTreeSet<String> =
        ["metadata/original_id", "metadata/trigger", "sections"].map(at).into_iter().collect();
    assert_eq!(added, expected);
}

fn four_files(tree: &mut Tree, below: &str, id: &str) {
    let chat = json!({
        "sessionId": id,
        "messages": [
            { "id": "m1", "timestamp": "2025-07-01T10:00:00Z", "role": "user", "content": "go", "tokens": 7 },
            { "id": "m2", "timestamp": "2025-07-01T10:01:00.000Z", "role": "assistant", "content": "done", "tokens": 9, "model": "x" },
            { "id": "m3", "timestamp": "2025-07-01T10:02:00Z", "role": "human", "content": "more", "tokens": 1 },
            { "id": "m4", "timestamp": "2025-07-01T10:03:00Z", "role": "ai", "content": "more", "tokens": 1 },
        ],
        "metadata": { "createdAt": "2025-07-01T09:00:00Z", "updatedAt": "2025-07-01T11:00:00Z", "messageCount": 12, "tokenCount": 160, "archived": true },
    });
    let checkpoint = json!({
        "sessionId": id, "version": 4, "createdAt": "2025-07-01T09:30:00Z", "updatedAt": "2025-07-01T10:30:00Z",
        "summary": { "completedItems": ["a"], "pendingItems": ["b"], "decisions": ["c"], "blockers": [], "mood": "good" },
        "ralphLoop": { "currentIteration": 2, "passedChecks": ["x"], "failedChecks": [], "lastError": "e" },
        "tokens": { "checkpoint": 81, "lastCompactionInput": 900, "totalSaved": 700 }, "author": "compactor",
    });
    let context = json!({
        "sessionId": id, "type": "qa-task", "featureId": "f1", "taskId": "t1",
        "project": { "structure": "src/", "claudeMd": "# c", "recentCommits": ["1 a"] },
        "feature": { "name": "F", "spec": "s", "tasks": ["t1"] }, "task": { "title": "T", "description": "d", "dependencies": [], "dependents": [] },
        "updatedAt": "2025-07-01T10:10:00Z", "tokens": 321,
    });
    let agent = json!({
        "sessionId": id, "agentType": "qa", "role": "tester", "instructions": ["test"], "allowedTools": ["ls"], "toolInstructions": "careful",
        "createdAt": "2025-07-01T08:00:00Z", "tokens": 55,
    });
    for (name, value) in
        [("chat", chat), ("checkpoint", checkpoint), ("context", context), ("agent-description", agent)]
    {
        put(tree, &format!("{below}{name}_{id}.json"), &value);
    }
}

#[tokio::test]
async fn four_files_come_out_with_all_that_they_had() {
    let mut tree = Tree::new();
    four_files(&mut tree, "", "sess-42");
    assert_eq!(around(&tree, None, str::to_owned).await, BTreeSet::new());
}

#[tokio::test]
async fn a_worktree_comes_out_with_all_that_it_had() {
    let mut tree = Tree::new();
    let node = ".dagent-worktrees/f1/.dagent/nodes/t1/";
    four_files(&mut tree, &format!("{node}sessions/"), "sess-42");
    let states = json!({ "planning": { "sessionIds": [] }, "in_qa": { "sessionIds": ["sess-42"] }, "in_dev": { "sessionIds": [] } });
    put(
        &mut tree,
        &format!("{node}task.json"),
        &json!({ "taskId": "t1", "states": states, "currentState": "in_qa", "weight": 3 }),
    );
    assert_eq!(around(&tree, Some(Layout::Feature), str::to_owned).await, BTreeSet::new());
}

#[tokio::test]
async fn a_graph_s_session_comes_out_with_all_that_it_had() {
    let mut tree = Tree::new();
    let base = "sessions/session_20250801_100000_ab12/";
    let ids = ["checkpoint_20250801_100100_aa", "checkpoint_20250801_100200_bb"];
    let mut listed = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        let (kind, next) = [("node_start", None), ("human_gate", Some("write"))][number];
        let full = json!({
            "checkpoint_id": id, "session_id": "session_20250801_100000_ab12", "checkpoint_type": kind,
            "created_at": format!("2025-08-01T10:0{}:00+00:00", number + 1), "current_node": "plan", "next_node": next,
            "execution_path": ["plan"], "shared_memory": { "k": [number] }, "conversation_states": { "plan": "conversations/plan", "write": null },
            "accumulated_outputs": { "plan": "out" }, "metrics_snapshot": {}, "is_clean": true, "can_resume_from": number == 1,
            "description": "", "signature": "ab34", "odd": { "x": 1 },
        });
        listed.push(json!({
            "checkpoint_id": id, "type": full["checkpoint_type"], "created_at": full["created_at"], "current_node": "plan",
            "is_clean": true, "can_resume_from": number == 1, "description": "",
        }));
        put(&mut tree, &format!("{base}checkpoints/{id}.json"), &full);
    }
    put(
        &mut tree,
        &format!("{base}checkpoints/index.json"),
        &json!({ "session_id": "session_20250801_100000_ab12", "checkpoints": listed, "latest_checkpoint_id": ids[1], "total_checkpoints": 2, "format": 3 }),
    );
    put(
        &mut tree,
        &format!("{base}state.json"),
        &json!({
            "session_id": "session_20250801_100000_ab12", "status": "failed", "error": "boom", "created_at": "2025-08-01T10:00:00+00:00",
            "updated_at": "2025-08-01T10:05:00+00:00", "agent": "writer", "progress": { "resume_from": null }, "checkpoints_enabled": true, "is_resumable": true,
        }),
    );
    for (node, number) in [("plan", 0), ("write", 1)] {
        let dir = format!("{base}conversations/{node}/");
        put(&mut tree, &format!("{dir}parts/0000000000.json"), &said(number));
        put(&mut tree, &format!("{dir}meta.json"), &json!({ "node": node, "system_prompt": "p", "parts": 1 }));
        put(&mut tree, &format!("{dir}cursor.json"), &json!({ "next": 1, "iteration": 4 }));
    }
    tree.insert(format!("{base}data/out/report.txt"), b"all is well".to_vec());
    tree.insert(format!("{base}logs/run.log"), b"one\ntwo\n".to_vec());
    let added = around(&tree, Some(Layout::Graph), |place| match () {
        () if place.contains("checkpoint_2025") => "checkpoint".to_owned(),
        () => place.trim_start_matches(base).to_owned(),
    });
    let state = [
        "agentType",
        "createdAt",
        "featureId",
        "lastActiveAt",
        "lastMessage",
        "messageCount",
        "projectId",
        "projectName",
        "resume_from_checkpoint_id",
        "sessionId",
        "stage",
        "tags",
        "taskId",
        "title",
        "workspaceId",
    ];
    let mut expected: BTreeSet<String> = state.iter().map(|key| format!("state.json/*/{key}")).collect();
    expected.extend(set(&["checkpoint/*/original_id", "checkpoint/*/sections", "checkpoint/*/trigger"]));
    assert_eq!(added.await, expected);
}

/// What goes on after an import is told as it is: only what nobody here has a word for stays as it was written.
#[tokio::test]
async fn a_session_that_goes_on_is_not_told_as_it_was() {
    let scene = Scene::new(2);
    let store = scene.memory().await;
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut files = Tree::new();
    four_files(&mut files, "", "sess-42");
    lay(&files, from.path());
    let id = import(&store, from.path()).await[0].session;
    scene.clock.advance_ms(1000);
    let writer = store.write(id, &claim()).await.unwrap();
    writer.append(Append::new().message(Message::new(milepost::model::Role::User, "more"))).await.unwrap();
    chat_files(&store, id, to.path(), Present::Refuse).await.unwrap();
    let chat: Value = serde_json::from_slice(&fs::read(to.path().join("chat_sess-42.json")).unwrap()).unwrap();
    assert_eq!((&chat["metadata"]["messageCount"], &chat["metadata"]["archived"]), (&json!(5), &json!(true)));
    assert_ne!(chat["metadata"]["updatedAt"], "2025-07-01T11:00:00Z");
}

/// A session of any shape, as its own store has it: whatever a tree holds of it is the same when it came back.
#[tokio::test]
async fn any_session_of_ours_is_the_same_tree_when_it_came_back() {
    for seed in 0..32 {
        let scene = Scene::new(seed);
        let from = scene.memory().await;
        let id = any_session(&scene, &from, &Dice::new(seed)).await;
        let projects = Projects::open(&from).await.unwrap();
        projects.log(&Owner::Session(id), "a line of the log").await.unwrap();
        if from.marks(id, &MarkQuery::default()).await.unwrap().is_empty() {
            continue;
        }
        for layout in LAYOUTS {
            let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            tree(&from, id, layout, dirs[0].path(), &FileOptions::default()).await.unwrap();
            let to = scene.memory().await;
            let imported = import(&to, dirs[0].path()).await;
            assert_eq!(imported.iter().map(|one| one.session).collect::<Vec<_>>(), [id], "{seed} {layout:?}");
            tree(&to, id, layout, dirs[1].path(), &FileOptions::default()).await.unwrap();
            let (lost, added) = differences(&read(dirs[0].path()), &read(dirs[1].path()), str::to_owned);
            assert!(lost.is_empty() && added.is_empty(), "{seed} {layout:?}: {lost:#?} {added:#?}");
        }
    }
}
