//! Files of older tools: recognised by content, taken over with times and unknown fields, stable when written again.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use milepost::model::{Content, Message, Role, SessionId, SessionPatch, Timestamp, Trigger};
use milepost::store::{Append, MarkQuery, MessageQuery, NewMark, NewSession, Store, StoredMessage};
use milepost::transfer::export::{FileOptions, Layout, Present, chat_files, jsonl, tree};
use milepost::transfer::older::{import_bytes, import_path};
use milepost::transfer::{Ids, ImportOptions, Imported};
use serde_json::{Value, json};

use crate::transfer::bundle::bundle;
use crate::transfer::exports::{LAYOUTS, tree_of};
use crate::transfer::scene::{Dice, START, Scene, any_session, claim, grow};

async fn take(store: &Store, content: &Value) -> Imported {
    let bytes = serde_json::to_vec(content).unwrap();
    let mut all = import_bytes(store, "chat", &bytes, &ImportOptions::default(), &claim()).await.unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

async fn messages(store: &Store, id: SessionId) -> Vec<StoredMessage> {
    store.messages(id, &MessageQuery::default()).await.unwrap()
}

#[tokio::test]
async fn a_plain_chat_becomes_a_session() {
    let scene = Scene::new(1);
    let store = scene.memory().await;
    let list = json!([
        { "role": "user", "content": "Hi", "timestamp": "2025-03-01T10:00:00+01:00", "mood": "good" },
        { "role": "assistant", "content": [{ "type": "text", "text": "Hello" }, { "type": "tool_use", "x": 1 }], "timestamp": 1_740_820_000 },
        { "role": "assistant", "content": "", "toolCalls": [{ "id": "1", "name": "ls", "input": {} }], "timestamp": "nonsense" },
        { "role": "user", "content": "back in time", "timestamp": "2001-01-01T00:00:00Z" },
        { "role": "user", "content": "from the future", "timestamp": "2999-01-01T00:00:00Z" },
    ]);
    for content in [list.clone(), json!({ "messages": list, "title": "Old" })] {
        let imported = take(&store, &content).await;
        assert_eq!((imported.messages, imported.checkpoints), (5, 1));
        assert!(imported.notes.iter().any(|note| note.contains("moved")), "{:?}", imported.notes);
        let found = messages(&store, imported.session).await;
        assert_eq!(found[0].time, Timestamp(1_740_819_600_000));
        assert_eq!(found[0].message.extra["mood"], "good");
        assert_eq!(found[0].message.extra["timestamp"], "2025-03-01T10:00:00+01:00");
        assert_eq!(found[1].time, Timestamp(1_740_820_000_000));
        assert_eq!(found[2].message.tool_calls(), 1);
        assert_eq!(found[2].message.extra["timestamp"], "nonsense");
        assert_eq!(found[3].time, found[2].time);
        assert_eq!(found[4].time, START);
        assert_eq!(store.session(imported.session).await.unwrap().extra["imported_id"], "chat");
    }
    assert!(store.verify().await.unwrap().is_whole());
}

/// A session as an agent leaves it, with something for every design.
async fn typical(scene: &Scene, store: &Store, task: bool) -> SessionId {
    let mut patch = SessionPatch::new().title("T").project("p").agent("dev").feature("f1").tags(["a"]);
    if task {
        patch = patch.task("t1").stage("in_qa");
    }
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let dice = Dice::new(42);
    let triggers = [
        Trigger::Initial,
        Trigger::Manual,
        Trigger::Pause,
        Trigger::Error,
        Trigger::RateLimit,
        Trigger::PhaseComplete,
        Trigger::NodeComplete,
        Trigger::Other("mine".into()),
    ];
    for (n, trigger) in triggers.into_iter().enumerate() {
        scene.clock.advance_ms(1000);
        let state = json!({
            "context": { "systemPrompt": "be good", "project": { "structure": "src/", "recentCommits": [] }, "agent": { "role": "dev", "instructions": ["a"] } },
            "memory": { "currentTask": n, "draftArtifacts": { "a.md": "x" } },
            "tools": { "mcpCache": { "k": [n] } },
            "execution": { "query": "q", "currentStepIndex": n, "current_node": "n1", "execution_path": ["n0", "n1"], "ralphLoop": { "currentIteration": n } },
            "agent": { "currentPhase": n }, "environment": { "variables": { "K": "encrypted:abc" } },
            "files": { "path": "/w" }, "protocols": { "pendingQuestions": [] }, "metrics": { "total_retries": 1 },
            "summary": { "completed": ["c"], "pending": [], "decisions": ["d"], "blockers": [] }, "mine": { "z": 1.5 },
        });
        let mut mark = NewMark::new(trigger).description(format!("step {n}"));
        mark.extra.insert("durationMs".into(), json!(12));
        mark.clean = n != 3;
        let append = Append::new()
            .message(dice.message())
            .message(Message::new(Role::User, "plain"))
            .message(dice.message())
            .state(milepost::model::State::try_from(state).unwrap())
            .mark(mark);
        writer.append(append).await.unwrap();
    }
    scene.clock.advance_ms(1000);
    writer.append(Append::new().message(Message::new(Role::Assistant, "after the last checkpoint"))).await.unwrap();
    let id = writer.id();
    writer.release().await.unwrap();
    id
}

async fn import_dir(store: &Store, dir: &Path) -> Vec<Imported> {
    import_path(store, dir, &ImportOptions::default(), &claim()).await.unwrap()
}

#[tokio::test]
async fn every_layout_is_stable_when_it_is_imported_and_written_again() {
    for task in [false, true] {
        let scene = Scene::new(2);
        let from = scene.memory().await;
        let id = typical(&scene, &from, task).await;
        for layout in LAYOUTS {
            let first = tempfile::tempdir().unwrap();
            // Checkpoints that were packed are read like others.
            let mut packed = FileOptions::default();
            packed.compression.threshold_bytes = if task { 1 } else { u64::MAX };
            tree(&from, id, layout, first.path(), &packed).await.unwrap();
            let to = scene.memory().await;
            let imported = import_dir(&to, first.path()).await;
            assert_eq!(imported.len(), 1, "{layout:?}");
            assert_eq!(imported[0].session, id, "{layout:?}: {imported:?}");
            let second = tempfile::tempdir().unwrap();
            tree(&to, id, layout, second.path(), &packed).await.unwrap();
            let (one, two) = (tree_of(first.path()), tree_of(second.path()));
            for (one, two) in one.iter().zip(&two) {
                assert_eq!(one, two, "{layout:?}");
            }
            assert_eq!(one.len(), two.len());
            assert!(to.verify().await.unwrap().is_whole());
            let marks = to.marks(id, &MarkQuery::default()).await.unwrap();
            if layout != Layout::Feature {
                let here = from.marks(id, &MarkQuery::default()).await.unwrap();
                for (here, there) in here.iter().zip(&marks) {
                    assert_eq!(
                        (here.time, &here.checkpoint.trigger, here.checkpoint.id),
                        (there.time, &there.checkpoint.trigger, there.checkpoint.id)
                    );
                    let (a, b) =
                        (from.load(here.checkpoint.id).await.unwrap(), to.load(there.checkpoint.id).await.unwrap());
                    assert_eq!(a.state, b.state, "{layout:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn the_four_files_and_jsonl_are_stable_for_any_session() {
    for seed in 0..12 {
        let scene = Scene::new(seed);
        let from = scene.memory().await;
        let id = any_session(&scene, &from, &Dice::new(seed)).await;
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        chat_files(&from, id, first.path(), Present::Replace).await.unwrap();
        let to = scene.memory().await;
        assert_eq!(import_dir(&to, first.path()).await[0].session, id);
        chat_files(&to, id, second.path(), Present::Replace).await.unwrap();
        // Numbers of messages that had no id are their places in the log.
        let third = tempfile::tempdir().unwrap();
        let again = scene.memory().await;
        import_dir(&again, second.path()).await;
        chat_files(&again, id, third.path(), Present::Replace).await.unwrap();
        assert_eq!(tree_of(second.path()), tree_of(third.path()));
        assert_eq!(tree_of(first.path()), tree_of(second.path()));

        let mut lines = Vec::new();
        if jsonl(&from, id, &mut lines).await.unwrap() < 2 {
            continue;
        }
        let to = scene.memory().await;
        let imported = import_bytes(&to, "log", &lines, &ImportOptions::default(), &claim()).await.unwrap();
        let mut again = Vec::new();
        jsonl(&to, imported[0].session, &mut again).await.unwrap();
        assert_eq!(String::from_utf8(again).unwrap(), String::from_utf8(lines).unwrap());
    }
}

#[tokio::test]
async fn a_task_s_checkpoints_may_be_packed_and_incremental() {
    let scene = Scene::new(3);
    let store = scene.memory().await;
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = dir.path().join(".checkpoints");
    fs::create_dir(&checkpoints).unwrap();
    let whole = json!({
        "id": "cp1", "taskId": "task-9", "createdAt": "2025-05-01T10:00:00.000Z", "createdBy": "auto", "reason": "interval",
        "task": { "status": "in_progress", "type": "build", "currentPhase": 1, "progress": 10 },
        "agent": { "status": "running", "pid": 12 },
        "conversationHistory": { "messages": [{ "role": "user", "content": "go", "timestamp": "2025-05-01T09:59:00.000Z", "metadata": { "phase": 1 } }], "lastMessageIndex": 0 },
        "environment": { "variables": { "KEY": "encrypted:x" } }, "workspace": { "path": "/w" }, "protocols": {}, "odd": [1]
    });
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(whole.to_string().as_bytes()).unwrap();
    fs::write(checkpoints.join("checkpoint_2025-05-01T10-00-00-000Z.json.gz"), packed.finish().unwrap()).unwrap();
    let more = json!({
        "id": "cp2", "taskId": "task-9", "createdAt": "2025-05-01T10:10:00.000Z", "createdBy": "user", "reason": "user_pause", "baseCheckpointId": "cp1",
        "changes": { "conversationHistory": { "newMessages": [{ "role": "assistant", "content": "done" }], "startIndex": 1 } }
    });
    fs::write(checkpoints.join("checkpoint_user_pause.json"), more.to_string()).unwrap();
    let imported = import_dir(&store, dir.path()).await;
    assert_eq!((imported[0].messages, imported[0].checkpoints, imported[0].original.as_str()), (2, 2, "task-9"));
    let marks =
        store.marks(imported[0].session, &MarkQuery { oldest_first: true, ..MarkQuery::default() }).await.unwrap();
    assert_eq!((&marks[0].checkpoint.trigger, &marks[1].checkpoint.trigger), (&Trigger::Interval, &Trigger::Pause));
    assert_eq!(marks[0].checkpoint.extra["original_id"], "cp1");
    assert_eq!(marks[0].checkpoint.extra["odd"], json!([1]));
    let state = store.load(marks[1].checkpoint.id).await.unwrap().state;
    assert_eq!(state.pointer("/agent/pid"), Some(&json!(12)));
    assert_eq!(state.pointer("/environment/variables/KEY"), Some(&json!("encrypted:x")));
}

#[tokio::test]
async fn what_is_not_known_or_too_large_is_refused_and_nothing_is_left() {
    let scene = Scene::new(4);
    let store = scene.memory().await;
    let mut small = ImportOptions::default();
    (small.limits.max_file_bytes, small.limits.max_messages) = (300, 3);
    let many: Vec<Value> = (0..4).map(|_| json!({ "role": "user", "content": "x" })).collect();
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    bomb.write_all(&vec![b' '; 100_000]).unwrap();
    let deep = "[".repeat(100_000);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "neither JSON"),
        (b"hello".to_vec(), "neither JSON"),
        (vec![0, 1, 2, 3], "binary"),
        (b"{\"a\":1}".to_vec(), "is no chat"),
        (b"[1,2]".to_vec(), "is no chat"),
        (deep.as_bytes()[..290].to_vec(), "recursion limit"),
        (serde_json::to_vec(&many).unwrap(), "max_messages"),
        (vec![b'x'; 400], "max_file_bytes"),
        (bomb.finish().unwrap(), "max_file_bytes"),
        (br#"[{"role":"user","content":"x"},{"content":"nobody"}]"#.to_vec(), "message 1: a message has no role"),
    ];
    for (content, why) in cases {
        let error = import_bytes(&store, "x", &content, &small, &claim()).await.unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
        assert!(store.backend().session_ids(store.workspace()).await.unwrap().is_empty());
    }
    assert!(import_path(&store, Path::new("/nowhere/at/all"), &ImportOptions::default(), &claim()).await.is_err());
    let empty = tempfile::tempdir().unwrap();
    assert!(import_path(&store, empty.path(), &ImportOptions::default(), &claim()).await.is_err());
}

#[tokio::test]
async fn a_bundle_is_recognised_and_a_session_of_that_id_is_not_overwritten() {
    let scene = Scene::new(5);
    let from = scene.memory().await;
    let id = any_session(&scene, &from, &Dice::new(5)).await;
    let path = scene.dir.path().join("s.milepost");
    fs::write(&path, bundle(&from, id).await).unwrap();
    let to = scene.memory().await;
    assert_eq!(import_dir(&to, &path).await[0].session, id);
    assert!(
        import_path(&to, &path, &ImportOptions::default(), &claim())
            .await
            .unwrap_err()
            .to_string()
            .contains("exists already")
    );
    let mut remap = ImportOptions::default();
    remap.ids = Ids::Remap;
    assert_ne!(import_path(&to, &path, &remap, &claim()).await.unwrap()[0].session, id);
    let chat = json!({ "sessionId": id, "messages": [{ "role": "user", "content": "other" }] });
    let error = import_bytes(&to, "x", chat.to_string().as_bytes(), &ImportOptions::default(), &claim()).await;
    assert!(error.unwrap_err().to_string().contains("exists already"));
    let found = messages(&to, id).await;
    assert!(found.iter().all(|m| !matches!(&m.message.content, Content::Text(text) if text == "other")));
}

fn chat_of(id: &str, text: &str) -> String {
    json!({ "sessionId": id, "messages": [{ "role": "user", "content": text }] }).to_string()
}

async fn ids(store: &Store) -> Vec<SessionId> {
    store.backend().session_ids(store.workspace()).await.unwrap()
}

#[tokio::test]
async fn a_directory_is_imported_as_a_whole_or_not_at_all() {
    let scene = Scene::new(6);
    let store = scene.memory().await;
    let taken = any_session(&scene, &store, &Dice::new(6)).await;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.json"), chat_of("first", "new")).unwrap();
    fs::write(dir.path().join("b.json"), chat_of(&taken.to_string(), "taken")).unwrap();
    for _ in 0..2 {
        let error = import_path(&store, dir.path(), &ImportOptions::default(), &claim()).await.unwrap_err();
        assert!(error.to_string().contains(&format!("session {taken} exists already")), "{error}");
        assert_eq!(ids(&store).await, [taken], "nothing was imported");
    }
    // What only the store can refuse is refused after others were written: they go again.
    let id = store.marks(taken, &MarkQuery::default()).await.unwrap()[0].checkpoint.id;
    let own: SessionId = store.source().id();
    let checkpoint = json!({
        "id": id, "taskId": "z", "createdAt": "2025-05-01T10:00:00.000Z", "reason": "interval",
        "conversationHistory": { "messages": [{ "role": "user", "content": "x" }] },
    });
    fs::write(dir.path().join("b.json"), chat_of(&own.to_string(), "with an id")).unwrap();
    fs::write(dir.path().join("c.json"), checkpoint.to_string()).unwrap();
    let error = import_path(&store, dir.path(), &ImportOptions::default(), &claim()).await.unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    assert_eq!(ids(&store).await, [taken], "nothing is left");
    fs::remove_file(dir.path().join("c.json")).unwrap();
    assert_eq!(import_dir(&store, dir.path()).await.len(), 2, "what was taken back can be imported");
    assert_eq!(ids(&store).await.len(), 3);
    assert!(store.verify().await.unwrap().is_whole());
}

#[tokio::test]
async fn importing_the_same_again_adds_nothing() {
    let scene = Scene::new(7);
    let store = scene.memory().await;
    let own: SessionId = store.source().id();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.json"), chat_of("first", "one")).unwrap();
    fs::write(dir.path().join("b.json"), chat_of(&own.to_string(), "two")).unwrap();
    let first = import_dir(&store, dir.path()).await;
    scene.clock.advance_ms(60_000);
    fs::write(dir.path().join("c.json"), chat_of("third", "three")).unwrap();
    let again = import_dir(&store, dir.path()).await;
    let (mut new, old): (Vec<_>, Vec<_>) = again.into_iter().partition(|one| one.entries > 0);
    assert_eq!((new.remove(0).original.as_str(), new.len()), ("third", 0));
    let sessions = |list: &[Imported]| {
        let mut sessions: Vec<_> = list.iter().map(|one| (one.session, one.messages)).collect();
        sessions.sort();
        sessions
    };
    assert_eq!(sessions(&old), sessions(&first));
    assert!(old.iter().all(|one| one.notes[0].contains("was imported before")), "{old:?}");
    assert_eq!(ids(&store).await.len(), 3);
    // Another conversation of the same name is another one, and new ids are always new sessions.
    fs::write(dir.path().join("a.json"), chat_of("first", "something else")).unwrap();
    import_dir(&store, &dir.path().join("a.json")).await;
    assert_eq!(ids(&store).await.len(), 4);
    let mut remap = ImportOptions::default();
    remap.ids = Ids::Remap;
    import_path(&store, dir.path(), &remap, &claim()).await.unwrap();
    assert_eq!(ids(&store).await.len(), 7);
}

#[tokio::test]
async fn a_session_without_messages_comes_back() {
    let scene = Scene::new(8);
    let from = scene.memory().await;
    let writer = from.create(NewSession::default(), &claim()).await.unwrap();
    let id = writer.id();
    let state = milepost::model::State::try_from(json!({ "memory": { "a": 1 } })).unwrap();
    writer.append(Append::new().state(state.clone()).mark(NewMark::new(Trigger::Manual))).await.unwrap();
    for layout in LAYOUTS {
        let dir = tempfile::tempdir().unwrap();
        tree(&from, id, layout, dir.path(), &FileOptions::default()).await.unwrap();
        let to = scene.memory().await;
        let imported = import_dir(&to, dir.path()).await;
        assert_eq!((imported.len(), imported[0].session, imported[0].messages), (1, id, 0), "{layout:?}");
        assert_eq!(to.state(id).await.unwrap().pointer("/memory"), state.pointer("/memory"), "{layout:?}");
    }
    let log = scene.dir.path().join("log.jsonl");
    let mut lines = Vec::new();
    assert_eq!(jsonl(&from, id, &mut lines).await.unwrap(), 0);
    fs::write(&log, lines).unwrap();
    assert_eq!(import_dir(&scene.memory().await, &log).await[0].messages, 0);
}

#[tokio::test]
async fn a_branch_keeps_its_times_and_knows_its_parent() {
    let scene = Scene::new(9);
    let from = scene.memory().await;
    let say = |text: &str| Append::new().message(Message::new(Role::User, text));
    let parent = from.create(NewSession::default(), &claim()).await.unwrap();
    for text in ["one", "two"] {
        scene.clock.advance_ms(1000);
        parent.append(say(text).mark(NewMark::new(Trigger::Manual))).await.unwrap();
    }
    let at = from.marks(parent.id(), &MarkQuery::default()).await.unwrap()[0].at;
    scene.clock.advance_ms(1000);
    let new = NewSession { id: None, patch: SessionPatch::new().title("branch") };
    let branch = from.branch(at, new, &claim()).await.unwrap();
    scene.clock.advance_ms(1000);
    branch.append(say("three").mark(NewMark::new(Trigger::Manual))).await.unwrap();
    let (parent, id) = (parent.id(), branch.id());
    let dir = tempfile::tempdir().unwrap();
    for session in [parent, id] {
        tree(&from, session, Layout::Hosted, dir.path(), &FileOptions::default()).await.unwrap();
    }
    let to = scene.memory().await;
    let imported = import_dir(&to, dir.path()).await;
    assert_eq!(imported.len(), 2);
    assert!(imported.iter().all(|one| one.notes.is_empty()), "{imported:?}");
    for session in [parent, id] {
        let times = async |store: &Store| -> Vec<Timestamp> {
            messages(store, session).await.iter().map(|found| found.time).collect()
        };
        assert_eq!(times(&to).await, times(&from).await);
        let marks = async |store: &Store| -> Vec<Timestamp> {
            store.marks(session, &MarkQuery::default()).await.unwrap().iter().map(|mark| mark.time).collect()
        };
        assert_eq!(marks(&to).await, marks(&from).await);
        let (was, is) = (from.session(session).await.unwrap(), to.session(session).await.unwrap());
        assert_eq!((is.created, is.active, is.title), (was.created, was.active, was.title));
    }
    let shown = to.session(id).await.unwrap();
    assert_eq!(shown.extra["branched_from"], json!({ "session": parent, "at": at }));
    let verified = to.verify().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
    // What is imported is the same when it is written and imported once more.
    let (second, third) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tree(&to, id, Layout::Hosted, second.path(), &FileOptions::default()).await.unwrap();
    let again = scene.memory().await;
    import_dir(&again, second.path()).await;
    tree(&again, id, Layout::Hosted, third.path(), &FileOptions::default()).await.unwrap();
    assert_eq!(tree_of(third.path()), tree_of(second.path()));
    assert!(import_dir(&to, dir.path()).await.iter().all(|one| one.notes[0].contains("was imported before")));
}

#[tokio::test]
async fn any_branch_comes_back_beside_its_parent() {
    for seed in 0..24 {
        let scene = Scene::new(seed);
        let (from, dice) = (scene.memory().await, Dice::new(seed));
        let parent = any_session(&scene, &from, &dice).await;
        let marks = from.marks(parent, &MarkQuery::default()).await.unwrap();
        let Some(mark) = marks.get(dice.below(marks.len() as u64) as usize) else { continue };
        // Some branches are made in the millisecond of the checkpoint.
        scene.clock.advance_ms(dice.below(2) as i64);
        let branch = from.branch(mark.at, NewSession::default(), &claim()).await.unwrap();
        grow(&scene, &branch, &dice, dice.below(8)).await;
        let id = branch.id();
        let dir = tempfile::tempdir().unwrap();
        for session in [parent, id] {
            tree(&from, session, Layout::Hosted, dir.path(), &FileOptions::default()).await.unwrap();
        }
        let to = scene.memory().await;
        import_dir(&to, dir.path()).await;
        let times = async |store: &Store| -> Vec<Timestamp> {
            messages(store, id).await.iter().map(|found| found.time).collect()
        };
        assert_eq!(times(&to).await, times(&from).await, "{seed}");
        let (was, is) = (from.session(id).await.unwrap(), to.session(id).await.unwrap());
        assert_eq!((is.created, is.extra["branched_from"].clone()), (was.created, json!(was.branch)), "{seed}");
        let verified = to.verify().await.unwrap();
        assert!(verified.is_whole(), "{seed}: {:?}", verified.problems);
    }
}
