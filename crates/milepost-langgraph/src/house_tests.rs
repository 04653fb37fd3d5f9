//! Threads that are pruned, deleted and written anew, with others at work.

use std::collections::BTreeSet;
use std::sync::Arc;

use milepost_model::{
    Body, Event, ManualClock, Message, Position, Role, Seq, SessionId, SessionPatch, Source, State, Timestamp, Trigger,
};
use milepost_store::backend::Kinds;
use milepost_store::{
    Append, Claim, MarkQuery, MessageQuery, NewMark, NewSession, Options, Redactor, SessionQuery, SessionWriter, Store,
};
use proptest::prelude::*;
use serde_json::json;

use crate::anew::{Change, Read, show};
use crate::read::Listing;
use crate::steps::Reached;
use crate::thread::{Saver, ThreadKey, View};
use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites};

struct Scene {
    clock: Arc<ManualClock>,
    saver: Saver,
    key: ThreadKey,
}

impl Scene {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000)));
        let mut options = Options::default();
        options.source = Some(Source::seeded(1, Arc::clone(&clock)));
        let store = Store::open("memory:", options).await.unwrap();
        Self { clock, saver: Saver::new(store), key: ThreadKey::new("t", "") }
    }

    async fn put(&self, saver: &Saver, id: &str, parent: Option<&str>) {
        let new = NewCheckpoint {
            id: id.to_owned(),
            parent: parent.map(str::to_owned),
            compared: None,
            skeleton: ("msgpack".to_owned(), b"\x80".to_vec()),
            metadata: b"{}".to_vec(),
            values: vec![("a".to_owned(), NewValue::Typed("msgpack".to_owned(), id.as_bytes().into()))],
        };
        saver.put(&self.key, &new).await.unwrap();
    }

    async fn write(&self, saver: &Saver, checkpoint: &str, task: &str) {
        let write = NewWrite { index: 0, channel: "a".to_owned(), word: "msgpack".to_owned(), bytes: b"\x01".to_vec() };
        let (checkpoint, task) = (checkpoint.to_owned(), task.to_owned());
        let new = NewWrites { checkpoint, task, path: String::new(), replace: false, writes: vec![write] };
        saver.put_writes(&self.key, &new).await.unwrap();
    }

    async fn read(&self, change: &Change<'_>) -> Read {
        let session = self.saver.resolve(&self.key).await.unwrap().unwrap();
        self.saver.read_whole(session, change).await.unwrap().unwrap()
    }

    /// A prune that has not left the old session yet, and somebody who knows only that one.
    async fn prune_half(&self, change: &Change<'_>) -> Pruned {
        let named = self.saver.named(&self.key).await.unwrap().unwrap();
        let read = self.read(change).await;
        let new = self.saver.build(&self.key, &read, change).await.unwrap();
        let reached = self.saver.replace(&self.key, &read.source, named.version, Some(&new)).await.unwrap();
        let late = Saver::new(self.saver.store.clone());
        let view = late.load(named.session).await.unwrap();
        // Nobody said so when it was loaded.
        *late.slot(&self.key).await = Some(View { flagged: false, ..view });
        Pruned { old: named.session, new, reached, late }
    }

    async fn sessions(&self) -> usize {
        self.saver.store.sessions(&SessionQuery::default()).await.unwrap().sessions.len()
    }
}

struct Pruned {
    old: SessionId,
    new: SessionWriter,
    reached: Reached,
    late: Saver,
}

impl Pruned {
    async fn finish(self, scene: &Scene) {
        show(self.new).await.unwrap();
        scene.saver.leave(&scene.key, self.old, self.reached, None).await.unwrap();
    }
}

fn only(id: &str) -> BTreeSet<String> {
    BTreeSet::from([id.to_owned()])
}

#[tokio::test]
async fn what_a_killed_prune_left_goes_with_the_next_one() {
    let scene = Scene::new().await;
    for (id, parent) in [("1", None), ("2", Some("1")), ("3", Some("2"))] {
        scene.put(&scene.saver, id, parent).await;
    }
    // Whoever makes it may still be at work: it is left alone, but not shown.
    let read = scene.read(&Change::default()).await;
    drop(scene.saver.build(&scene.key, &read, &Change::default()).await.unwrap());
    Box::pin(scene.saver.rebuild(&scene.key, &Change::without(only("1")))).await.unwrap();
    assert_eq!(scene.sessions().await, 2);
    assert_eq!(scene.saver.sessions(Some("t"), None).await.unwrap().len(), 1);
    scene.clock.advance_ms(60_000);
    scene.saver.keep_latest("t").await.unwrap();
    assert_eq!(scene.sessions().await, 1);
    assert_eq!(scene.saver.checkpoint_ids(&scene.key).await.unwrap(), only("3"));
}

#[tokio::test]
async fn what_people_made_of_a_thread_is_theirs() {
    let scene = Scene::new().await;
    let (saver, store) = (&scene.saver, &scene.saver.store);
    for (id, parent) in [("1", None), ("2", Some("1"))] {
        scene.put(saver, id, parent).await;
    }
    let session = saver.resolve(&scene.key).await.unwrap().unwrap();
    let at = saver.all_marks(session).await.unwrap()[0].at;
    let branch = async || {
        let writer = store.branch(at, NewSession::default(), &Claim::new("a person")).await.unwrap();
        let id = writer.id();
        writer.release().await.unwrap();
        id
    };
    let mut own = vec![branch().await];
    // As one that came from elsewhere.
    let copy = NewSession { id: None, patch: scene.key.patch() };
    own.push(store.create(copy, &Claim::new("a person")).await.unwrap().id());
    saver.keep_latest("t").await.unwrap();
    // The beginning of the first is hidden now, and was left by the thread.
    own.push(branch().await);
    scene.clock.advance_ms(60_000);
    saver.keep_latest("t").await.unwrap();
    let listing = Listing { thread: Some("t".into()), ..Listing::default() };
    assert_eq!(saver.list(&listing).await.unwrap().len(), 1);
    saver.delete_for_runs(&["none".to_owned()]).await.unwrap();
    saver.delete_thread("t").await.unwrap();
    assert!(saver.get(&scene.key, None).await.unwrap().is_none());
    for id in own {
        assert!(store.session(id).await.is_ok(), "it went with the thread");
    }
}

#[tokio::test]
async fn what_people_add_to_a_thread_stays_in_it() {
    let scene = Scene::new().await;
    let (saver, store) = (&scene.saver, &scene.saver.store);
    let people = async || store.join(saver.session(&scene.key).await.unwrap().unwrap()).await.unwrap();
    let say = |text: &str| Append::new().message(Message::new(Role::User, text));
    scene.put(saver, "1", None).await;
    people().await.append(say("a hunter2 note")).await.unwrap();
    let state = State::try_from(json!({ "plan": { "for": "hunter2" } })).unwrap();
    people().await.append(Append::new().state(state)).await.unwrap();
    scene.put(saver, "2", Some("1")).await;
    // Not the newest any more: where it lies is kept in the state.
    scene.write(saver, "1", "stray").await;
    let mark = NewMark::new(Trigger::Manual).label("before hunter2");
    let event = Event::new("seen", json!({ "by": "hunter2" }));
    people().await.append(Append::new().mark(mark).event(event)).await.unwrap();
    scene.put(saver, "3", Some("2")).await;
    people().await.append(say("the end")).await.unwrap();

    let what = async || {
        let writer = people().await;
        let (timeline, length) = writer.head().await;
        let at = Position { timeline, seq: Seq(length - 1) };
        let mut found = Vec::new();
        for entry in store.entries_at(at, Seq(0), Kinds::ALL).await.unwrap() {
            match entry.body.unwrap() {
                Body::Message(message) => found.push(message.text().into_owned()),
                Body::Event(event) if event.kind == "seen" => found.push(event.data["by"].to_string()),
                Body::Mark(mark) => found.push(mark.label.unwrap()),
                _ => {}
            }
        }
        let mut state = writer.state().await.unwrap().into_value();
        state.as_object_mut().unwrap().remove("langgraph");
        (found, state)
    };
    let all = ["1", "a hunter2 note", "2", "before hunter2", "\"hunter2\"", "3", "the end"];
    assert_eq!(what().await.0, all);
    let redactor = Redactor::literal("hunter2", "***").unwrap();
    let change = Change { redactor: Some(&redactor), ..Change::default() };
    Box::pin(saver.rebuild(&scene.key, &change)).await.unwrap();
    let clean = ["1", "a *** note", "2", "before ***", "\"***\"", "3", "the end"];
    assert_eq!(what().await, (clean.map(str::to_owned).to_vec(), json!({ "plan": { "for": "***" } })));
    assert_eq!(saver.get(&scene.key, Some("1")).await.unwrap().unwrap().writes.len(), 1);
    saver.keep_latest("t").await.unwrap();
    let kept = ["a *** note", "before ***", "\"***\"", "3", "the end"];
    assert_eq!(what().await, (kept.map(str::to_owned).to_vec(), json!({ "plan": { "for": "***" } })));
    scene.put(saver, "4", Some("3")).await;
    assert_eq!(saver.get(&scene.key, None).await.unwrap().unwrap().parent.as_deref(), Some("3"));
    assert!(store.verify().await.unwrap().problems.is_empty());
}

#[tokio::test]
async fn what_is_written_before_its_checkpoint_waits_for_it() {
    let again = async |scene: &Scene| scene.put(&scene.saver, "2", Some("1")).await;
    let prune = async |scene: &Scene| scene.saver.keep_latest("t").await.unwrap();
    let redact = async |scene: &Scene| {
        let redactor = Redactor::literal("\u{1}", "x").unwrap();
        let change = Change { redactor: Some(&redactor), ..Change::default() };
        Box::pin(scene.saver.rebuild(&scene.key, &change)).await.unwrap();
    };
    let copy = async |scene: &Scene| scene.saver.copy_thread("t", "copy").await.unwrap();
    for what in 0..4 {
        let mut scene = Scene::new().await;
        scene.put(&scene.saver, "1", None).await;
        scene.put(&scene.saver, "2", Some("1")).await;
        scene.write(&scene.saver, "3", "early").await;
        match what {
            0 => again(&scene).await,
            1 => prune(&scene).await,
            2 => redact(&scene).await,
            _ => {
                copy(&scene).await;
                scene.key = ThreadKey::new("copy", "");
            }
        }
        scene.put(&scene.saver, "3", Some("2")).await;
        for saver in [&scene.saver, &Saver::new(scene.saver.store.clone())] {
            let found = saver.get(&scene.key, Some("3")).await.unwrap().unwrap();
            assert_eq!(found.writes.len(), 1, "{what}");
        }
    }
}

#[tokio::test]
async fn a_thread_goes_wherever_somebody_put_it() {
    for what in 0..3 {
        let scene = Scene::new().await;
        let (saver, store) = (&scene.saver, &scene.saver.store);
        for (id, parent) in [("1", None), ("2", Some("1"))] {
            scene.put(saver, id, parent).await;
        }
        let session = saver.session(&scene.key).await.unwrap().unwrap();
        let patch = [SessionPatch::new().agent("mine"), SessionPatch::new().task("mine")];
        match patch.into_iter().nth(what) {
            Some(patch) => {
                drop(store.join(session).await.unwrap().append(Append::new().patch(patch)).await.unwrap());
            }
            None => store.trash(session, &Claim::new("a person").take_over()).await.unwrap(),
        }
        for thread in [Some("t".to_owned()), None] {
            let listing = Listing { thread, ..Listing::default() };
            assert_eq!(saver.list(&listing).await.unwrap().len(), 2, "{what}");
        }
        saver.keep_latest("t").await.unwrap();
        assert_eq!(saver.checkpoint_ids(&scene.key).await.unwrap(), only("2"), "{what}");
        let session = saver.session(&scene.key).await.unwrap().unwrap();
        assert_eq!(store.session(session).await.unwrap().trashed.is_some(), what == 2);
        saver.delete_thread("t").await.unwrap();
        assert!(saver.get(&scene.key, None).await.unwrap().is_none(), "{what}");
    }
}

#[tokio::test]
async fn what_comes_while_a_thread_is_pruned_is_brought_over() {
    let scene = Scene::new().await;
    for (id, parent) in [("1", None), ("2", Some("1"))] {
        scene.put(&scene.saver, id, parent).await;
    }
    let change = Change::without(only("1"));
    let version = scene.saver.named(&scene.key).await.unwrap().unwrap().version;
    let read = scene.read(&change).await;
    let new = scene.saver.build(&scene.key, &read, &change).await.unwrap();
    // Another process wrote since the thread was read: it must be read again.
    let other = Saver::new(scene.saver.store.clone());
    scene.write(&other, "2", "early").await;
    let refused = scene.saver.replace(&scene.key, &read.source, version, Some(&new)).await;
    assert!(matches!(refused, Err(milepost_store::Error::Conflict(_))), "{refused:?}");

    let pruned = scene.prune_half(&change).await;
    // One that knows the old session, and does not know yet that it is left.
    scene.write(&pruned.late, "2", "late").await;
    scene.put(&pruned.late, "3", Some("2")).await;
    // And one that finds the new one before it is shown.
    let quick = Saver::new(scene.saver.store.clone());
    scene.write(&quick, "2", "quick").await;
    let (late, old) = (pruned.late.clone(), pruned.old);
    pruned.finish(&scene).await;
    for saver in [Saver::new(scene.saver.store.clone()), late] {
        let found = saver.get(&scene.key, None).await.unwrap().unwrap();
        assert_eq!((found.id.as_str(), found.parent.as_deref()), ("3", Some("2")));
        let found = saver.get(&scene.key, Some("2")).await.unwrap().unwrap();
        let tasks: Vec<&str> = found.writes.iter().map(|write| write.task.as_str()).collect();
        assert_eq!(tasks, ["early", "late", "quick"]);
        assert!(saver.get(&scene.key, Some("1")).await.unwrap().is_none());
        // And it goes on in the new one.
        scene.write(&saver, "3", "more").await;
        assert_ne!(saver.resolve(&scene.key).await.unwrap(), Some(old));
    }
}

#[tokio::test]
async fn a_fork_and_notes_that_come_while_a_thread_is_pruned_are_brought_over() {
    let scene = Scene::new().await;
    for (id, parent) in [("1", None), ("2", Some("1"))] {
        scene.put(&scene.saver, id, parent).await;
    }
    let pruned = scene.prune_half(&Change::default()).await;
    let people = async |text: &str| {
        let writer = scene.saver.store.join(pruned.old).await.unwrap();
        writer.append(Append::new().message(Message::new(Role::User, text))).await.unwrap();
        writer.append(Append::new().patch(SessionPatch::new().title(text))).await.unwrap();
    };
    people("before").await;
    // It has as many entries as what it does not share with the head that was read.
    let view = pruned.late.load(pruned.old).await.unwrap();
    *pruned.late.slot(&scene.key).await = Some(View { flagged: false, ..view });
    scene.put(&pruned.late, "3", Some("1")).await;
    people("after").await;
    pruned.finish(&scene).await;
    assert_eq!(scene.saver.get(&scene.key, None).await.unwrap().unwrap().id, "3");
    assert_eq!(notes(&scene).await.0, ["before", "after"]);
    let session = scene.saver.session(&scene.key).await.unwrap().unwrap();
    assert_eq!(scene.saver.store.session(session).await.unwrap().title.as_deref(), Some("after"));
}

#[tokio::test]
async fn a_write_that_replaces_another_does_so_late_too() {
    let scene = Scene::new().await;
    scene.put(&scene.saver, "1", None).await;
    scene.write(&scene.saver, "1", "task").await;
    let pruned = scene.prune_half(&Change::default()).await;
    let write = NewWrite { index: 0, channel: "a".into(), word: "msgpack".into(), bytes: b"\x02".to_vec() };
    let (checkpoint, task) = ("1".to_owned(), "task".to_owned());
    let new = NewWrites { checkpoint, task, path: String::new(), replace: true, writes: vec![write] };
    pruned.late.put_writes(&scene.key, &new).await.unwrap();
    pruned.finish(&scene).await;
    let found = scene.saver.get(&scene.key, None).await.unwrap().unwrap();
    assert_eq!(found.writes.iter().map(|write| &write.bytes[..]).collect::<Vec<_>>(), [b"\x02"]);
}

#[tokio::test]
async fn what_somebody_leaves_is_not_removed_before_it_is_brought_over() {
    for is_killed in [false, true] {
        let scene = Scene::new().await;
        for (id, parent) in [("1", None), ("2", Some("1"))] {
            scene.put(&scene.saver, id, parent).await;
        }
        let pruned = scene.prune_half(&Change::without(only("1"))).await;
        scene.write(&pruned.late, "2", "late").await;
        // It finds out by itself that the thread is another by now.
        *pruned.late.slot(&scene.key).await = None;
        scene.put(&pruned.late, "3", Some("2")).await;
        // The next one that prunes it leaves that to whoever began, as long as they may be at work.
        let next = Saver::new(scene.saver.store.clone());
        scene.put(&next, "2", None).await;
        match is_killed {
            false => pruned.finish(&scene).await,
            true => {
                scene.clock.advance_ms(60_000);
                drop(pruned);
                scene.put(&next, "2", None).await;
            }
        }
        let found = scene.saver.get(&scene.key, Some("2")).await.unwrap().unwrap();
        assert_eq!(found.writes.len(), 1, "{is_killed}");
        assert_eq!(scene.saver.checkpoint_ids(&scene.key).await.unwrap(), ["2", "3"].map(str::to_owned).into());
        assert_eq!(scene.sessions().await, 1);
    }
}

/// A note of a person's in a thread's session.
async fn note(scene: &Scene, text: &str) {
    let session = scene.saver.session(&scene.key).await.unwrap().unwrap();
    let writer = scene.saver.store.join(session).await.unwrap();
    writer.append(Append::new().message(Message::new(Role::User, text))).await.unwrap();
}

/// The notes of a thread's session on all of its timelines, and those on the way to its head.
async fn notes(scene: &Scene) -> (Vec<String>, Vec<String>) {
    let (saver, store) = (&scene.saver, &scene.saver.store);
    let session = saver.session(&scene.key).await.unwrap().unwrap();
    let mut all = Vec::new();
    for line in store.backend().timelines(store.workspace(), session).await.unwrap() {
        let at = Position { timeline: line.id, seq: Seq(line.length - 1) };
        for entry in store.entries_at(at, Seq(line.begins()), Kinds::ALL).await.unwrap() {
            if let Some(Body::Message(message)) = entry.body {
                all.push(message.text().into_owned());
            }
        }
    }
    let told = store.messages(session, &MessageQuery::default()).await.unwrap();
    (all, told.iter().map(|stored| stored.message.text().into_owned()).collect())
}

async fn redact(scene: &Scene, secret: &str) {
    let redactor = Redactor::literal(secret, "***").unwrap();
    let done = scene.saver.redact(&redactor, false).await.unwrap();
    assert!(done.passed_over.is_empty() && done.sessions.len() == 1, "{done:?}");
}

#[tokio::test]
async fn whoever_knows_a_session_that_was_cut_finds_the_threads_own() {
    let scene = Scene::new().await;
    let (saver, store) = (&scene.saver, &scene.saver.store);
    scene.put(saver, "1", None).await;
    let first = saver.all_marks(saver.session(&scene.key).await.unwrap().unwrap()).await.unwrap()[0].at;
    scene.put(saver, "2", Some("1")).await;
    let late = [Saver::new(store.clone()), Saver::new(store.clone())];
    for late in &late {
        late.get(&scene.key, None).await.unwrap();
    }
    // What is left of the session that it begins in has as many entries as before.
    let branch = store.branch(first, NewSession::default(), &Claim::new("a person")).await.unwrap();
    saver.keep_latest("t").await.unwrap();
    scene.put(&late[0], "3", Some("2")).await;
    scene.write(&late[1], "3", "task").await;
    let found = saver.get(&scene.key, Some("3")).await.unwrap().unwrap();
    assert_eq!((found.parent.as_deref(), found.writes.len()), (Some("2"), 1));
    assert!(store.session(branch.id()).await.is_ok());
    assert!(store.verify().await.unwrap().problems.is_empty());
}

#[tokio::test]
async fn a_copy_stays_however_often_its_thread_is_deleted() {
    let scene = Scene::new().await;
    let (saver, store) = (&scene.saver, &scene.saver.store);
    scene.put(saver, "1", None).await;
    let copy = NewSession { id: None, patch: scene.key.patch() };
    let copy = store.create(copy, &Claim::new("a person")).await.unwrap().id();
    for _ in 0..2 {
        saver.delete_thread("t").await.unwrap();
        saver.delete_for_runs(&["none".to_owned()]).await.unwrap();
    }
    assert!(store.session(copy).await.is_ok());
    assert_eq!(saver.list(&Listing::default()).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_subgraph_goes_with_its_thread_whatever_agent_it_was_given() {
    let scene = Scene::new().await;
    let (saver, store) = (&scene.saver, &scene.saver.store);
    scene.put(saver, "1", None).await;
    let inner = Scene { key: ThreadKey::new("t", "inner"), saver: saver.clone(), clock: Arc::clone(&scene.clock) };
    inner.put(saver, "1", None).await;
    let session = saver.session(&inner.key).await.unwrap().unwrap();
    let patch = Append::new().patch(SessionPatch::new().agent("mine"));
    store.join(session).await.unwrap().append(patch).await.unwrap();
    let listing = Listing { thread: Some("t".to_owned()), ..Listing::default() };
    assert_eq!(saver.list(&listing).await.unwrap().len(), 2);
    saver.delete_thread("t").await.unwrap();
    assert!(saver.get(&inner.key, None).await.unwrap().is_none());
}

#[tokio::test]
async fn an_early_write_that_cannot_be_cleaned_keeps_nothing_else_from_it() {
    let scene = Scene::new().await;
    let saver = &scene.saver;
    let other = Scene { key: ThreadKey::new("u", ""), saver: saver.clone(), clock: Arc::clone(&scene.clock) };
    scene.put(saver, "1", None).await;
    other.put(saver, "1", None).await;
    let bytes = [&[0xa7][..], b"hunter2"].concat();
    let write = |word: &str| NewWrite { index: 0, channel: "a".into(), word: word.into(), bytes: bytes.clone() };
    for (key, word) in [(&scene.key, "pickle"), (&other.key, "msgpack")] {
        let (checkpoint, task) = ("2".to_owned(), "task".to_owned());
        let new = NewWrites { checkpoint, task, path: String::new(), replace: false, writes: vec![write(word)] };
        saver.put_writes(key, &new).await.unwrap();
    }
    let redactor = Redactor::literal("hunter2", "***").unwrap();
    for dry_run in [true, false] {
        let done = saver.redact(&redactor, dry_run).await.unwrap();
        assert_eq!((done.passed_over.len(), done.sessions.len()), (1, 1), "{done:?}");
        assert_eq!(Some(done.passed_over[0].session), saver.session(&scene.key).await.unwrap());
    }
    assert!(saver.redact(&redactor, true).await.unwrap().sessions.is_empty());
}

#[tokio::test]
async fn what_people_added_off_the_way_to_the_head_stays_too() {
    let scene = Scene::new().await;
    let saver = &scene.saver;
    scene.put(saver, "1", None).await;
    scene.put(saver, "2", Some("1")).await;
    note(&scene, "hunter2").await;
    scene.put(saver, "3", Some("1")).await;
    note(&scene, "on").await;
    redact(&scene, "hunter2").await;
    let texts = |all: &[&str]| -> Vec<String> { all.iter().map(|&text| text.to_owned()).collect() };
    assert_eq!(notes(&scene).await, (texts(&["***", "on"]), texts(&["on"])));
    for (id, parent) in [("2", "1"), ("3", "1")] {
        assert_eq!(saver.get(&scene.key, Some(id)).await.unwrap().unwrap().parent.as_deref(), Some(parent));
    }
    assert!(saver.store.verify().await.unwrap().problems.is_empty());
}

#[tokio::test]
async fn what_people_went_back_to_stays_on_the_way_to_the_head() {
    let scene = Scene::new().await;
    let (saver, store) = (&scene.saver, &scene.saver.store);
    scene.put(saver, "1", None).await;
    scene.put(saver, "2", Some("1")).await;
    note(&scene, "hunter2").await;
    let session = saver.session(&scene.key).await.unwrap().unwrap();
    let (timeline, length) = store.join(session).await.unwrap().head().await;
    scene.put(saver, "3", Some("1")).await;
    let at = Position { timeline, seq: Seq(length - 1) };
    store.join(session).await.unwrap().restore(at).await.unwrap();
    scene.put(saver, "4", Some("2")).await;
    note(&scene, "and on").await;
    redact(&scene, "hunter2").await;
    let told = ["***", "and on"].map(str::to_owned).to_vec();
    assert_eq!(notes(&scene).await, (told.clone(), told.clone()));
    saver.keep_latest("t").await.unwrap();
    assert_eq!(notes(&scene).await.1, told);
    let found = saver.get(&scene.key, None).await.unwrap().unwrap();
    assert_eq!((found.id.as_str(), found.parent.as_deref()), ("4", Some("2")));
    assert!(store.verify().await.unwrap().problems.is_empty());
}

#[tokio::test]
async fn what_a_list_shows_of_a_thread_is_as_it_was() {
    let scene = Scene::new().await;
    let (saver, store) = (&scene.saver, &scene.saver.store);
    scene.put(saver, "1", None).await;
    scene.put(saver, "2", Some("1")).await;
    scene.put(saver, "3", Some("1")).await;
    note(&scene, "hunter2").await;
    let session = saver.session(&scene.key).await.unwrap().unwrap();
    let patch = SessionPatch::new().agent("mine").task("hunter2 is due").stage("late").with("title", json!(null));
    store.join(session).await.unwrap().append(Append::new().patch(patch)).await.unwrap();
    store.trash(session, &Claim::new("a person").take_over()).await.unwrap();
    redact(&scene, "hunter2").await;
    let shown = store.session(saver.session(&scene.key).await.unwrap().unwrap()).await.unwrap();
    assert!(shown.id != session && shown.trashed.is_some());
    let told = [&shown.agent, &shown.task, &shown.stage, &shown.title].map(|text| text.as_deref());
    assert_eq!(told, [Some("mine"), Some("*** is due"), Some("late"), None]);
}

#[tokio::test]
async fn what_people_added_stays_when_every_checkpoint_goes() {
    let scene = Scene::new().await;
    let saver = &scene.saver;
    scene.put(saver, "1", None).await;
    note(&scene, "mine").await;
    scene.write(saver, "2", "early").await;
    Box::pin(saver.rebuild(&scene.key, &Change::without(only("1")))).await.unwrap();
    assert!(saver.get(&scene.key, None).await.unwrap().is_none());
    assert_eq!(notes(&scene).await.1, ["mine"]);
    scene.put(saver, "2", None).await;
    assert_eq!(saver.get(&scene.key, None).await.unwrap().unwrap().writes.len(), 1);
    // Where there is nothing of anybody's, nothing stays.
    let bare = Scene::new().await;
    bare.put(&bare.saver, "1", None).await;
    Box::pin(bare.saver.rebuild(&bare.key, &Change::without(only("1")))).await.unwrap();
    assert_eq!((bare.sessions().await, bare.saver.resolve(&bare.key).await.unwrap()), (0, None));
}

/// Something that LangGraph or a person does to a thread.
#[derive(Debug, Clone)]
enum Deed {
    /// A checkpoint, after the one with this number, if there is one.
    Put(usize),
    /// A write for the checkpoint with this number, which may be still to come.
    Write(usize),
    Note,
    Mark,
    State,
    /// Back to a share of what the head's timeline has.
    Back(u8),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        4 => (0..12_usize).prop_map(Deed::Put),
        3 => (0..14_usize).prop_map(Deed::Write),
        3 => Just(Deed::Note),
        1 => Just(Deed::Mark),
        1 => Just(Deed::State),
        2 => any::<u8>().prop_map(Deed::Back),
    ];
    proptest::collection::vec(deed, 1..24)
}

impl Scene {
    async fn act(&self, number: usize, deed: &Deed, ids: &mut Vec<String>) {
        let (saver, store) = (&self.saver, &self.saver.store);
        self.clock.advance_ms(1);
        match deed {
            Deed::Put(parent) => {
                let id = format!("{:02}", ids.len());
                let parent = ids.len().checked_sub(1).map(|last| ids[last.saturating_sub(*parent % 3)].clone());
                self.put(saver, &id, parent.as_deref()).await;
                return ids.push(id);
            }
            Deed::Write(of) => return self.write(saver, &format!("{of:02}"), &format!("task {number}")).await,
            _ => {}
        }
        let Some(session) = saver.session(&self.key).await.unwrap() else { return };
        let writer = store.join(session).await.unwrap();
        let (timeline, length) = writer.head().await;
        let append = match deed {
            Deed::Note => Append::new().message(Message::new(Role::User, format!("note {number}: hunter2"))),
            Deed::Mark => Append::new().mark(NewMark::new(Trigger::Manual).label(format!("mark {number}"))),
            Deed::State => {
                let mut state = writer.state().await.unwrap().into_value();
                state["plan"] = json!(number);
                Append::new().state(State::try_from(state).unwrap())
            }
            Deed::Back(share) => {
                let line = store.backend().timeline(store.workspace(), timeline).await.unwrap().unwrap();
                let seq = line.begins() + (length - line.begins()) * u64::from(*share) / 256;
                writer.restore(Position { timeline, seq: Seq(seq) }).await.unwrap();
                return;
            }
            Deed::Put(_) | Deed::Write(_) => return,
        };
        writer.append(append).await.unwrap();
    }

    /// All that a thread says: its checkpoints, with their writes, notes and the state.
    async fn picture(&self) -> String {
        let saver = Saver::new(self.saver.store.clone());
        let Some(session) = saver.session(&self.key).await.unwrap() else { return "nothing".to_owned() };
        let mut told = String::new();
        for found in saver.list(&Listing { thread: Some("t".to_owned()), ..Listing::default() }).await.unwrap() {
            told += &format!("{} {:?} {:?} {:?}\n", found.id, found.parent, found.values, found.writes);
        }
        let (mut all, head) = notes(self).await;
        all.sort();
        let marks = saver.store.marks(session, &MarkQuery::default()).await.unwrap();
        let labels: Vec<_> = marks.iter().map(|mark| mark.checkpoint.label.clone()).collect();
        let state = saver.store.state(session).await.unwrap();
        let plan = state.as_value().get("plan").cloned();
        format!("{told}{all:?}\n{head:?}\n{labels:?}\n{plan:?}").replace("hunter2", "***")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_thread_that_is_written_anew_says_the_same(deeds in deeds()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (scene, mut ids) = (Scene::new().await, Vec::new());
            for (number, deed) in deeds.iter().enumerate() {
                scene.act(number, deed, &mut ids).await;
            }
            let before = scene.picture().await;
            let redactor = Redactor::literal("hunter2", "***").unwrap();
            let change = Change { redactor: Some(&redactor), ..Change::default() };
            // Twice: what was written anew is as good as what was not.
            for _ in 0..2 {
                Box::pin(scene.saver.rebuild(&scene.key, &change)).await.unwrap();
                assert_eq!(scene.picture().await, before);
            }
            let verified = scene.saver.store.verify().await.unwrap();
            assert!(verified.problems.is_empty(), "{:?}", verified.problems);
            // What was written for checkpoints that were still to come is theirs.
            for id in ids.len()..14 {
                let id = format!("{id:02}");
                scene.put(&scene.saver, &id, None).await;
                let early = deeds.iter().filter(|deed| matches!(deed, Deed::Write(of) if format!("{of:02}") == id)).count();
                let found = scene.saver.get(&scene.key, Some(&id)).await.unwrap().unwrap();
                assert_eq!(found.writes.len(), early, "{id}");
            }
        });
    }
}
