//! Late redaction: a secret that was written everywhere is gone from every file, and nothing else is.

use std::path::Path;

use milepost_model::{
    Block, Body, Channel, Delta, Event, Message, Position, Role, Seq, SessionId, SessionPatch, Timestamp, Trigger,
};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::{
    Append, DeleteMode, MarkQuery, MasterKey, MessageQuery, NewMark, NewSession, Obstacle, Receipt, Redacted, Redactor,
    SessionQuery, SessionWriter, Store,
};
use serde_json::{Map, Value, json};

use crate::keep::{dump, noise};
use crate::support::{Scratch, claim, create, state, step, user};
use crate::writer::{assert_whole, damage, entry_key, sql, texts, watched};

const SECRET: &str = "Zx9QvT7bLmN3";
const INSTEAD: &str = "[gone]";

fn last(receipt: &Receipt) -> Position {
    Position { seq: Seq(receipt.length - 1), ..receipt.first }
}

fn redactor() -> Redactor {
    Redactor::literal(SECRET, INSTEAD).unwrap()
}

/// Whether a text lies in any file of the store, as it is, in lower case (as the index keeps words), or as UTF-16.
pub fn lies_in_files(dir: &Path, text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for form in [text.as_bytes(), lower.as_bytes(), &wide] {
            if let Some(at) = bytes.windows(form.len()).position(|window| window == form) {
                return Some(format!("{} at byte {at}", path.display()));
            }
        }
    }
    None
}

/// Everything that can be read of a workspace, but for hashes and what redacting itself adds.
async fn content(store: &Store) -> String {
    let mut out = String::new();
    for trashed in [false, true] {
        let query = SessionQuery { trashed, by_creation: true, ..SessionQuery::default() };
        for session in store.sessions(&query).await.unwrap().sessions {
            let mut row = serde_json::to_value(&session).unwrap();
            row["active"] = Value::Null;
            out += &format!("{row}\n");
            for line in store.backend().timelines(store.workspace(), session.id).await.unwrap() {
                let Some(end) = line.length.checked_sub(1) else { continue };
                let at = Position { timeline: line.id, seq: Seq(end) };
                for found in store.messages_at(at, &MessageQuery::default()).await.unwrap() {
                    out += &format!("{} {}\n", found.at, serde_json::to_value(&found.message).unwrap());
                }
            }
            for entry in store.entries(session.id, Seq(0), Seq::MAX).await.unwrap() {
                if let Some(Body::Event(event)) = entry.body
                    && event.kind != "redacted"
                {
                    out += &format!("{} {}\n", entry.at, serde_json::to_value(&event).unwrap());
                }
            }
            for trashed in [false, true] {
                let query = MarkQuery { trashed, ..MarkQuery::default() };
                for mark in store.marks(session.id, &query).await.unwrap() {
                    let mut value = serde_json::to_value(&mark.checkpoint).unwrap();
                    value["state"] = store.load(mark.checkpoint.id).await.unwrap().state.into_value();
                    out += &format!("{} {value}\n", mark.at);
                }
            }
            out += &format!("{:?}\n", store.state(session.id).await.unwrap());
        }
    }
    for kind in ["setting", "wake-up"] {
        for record in store.records(kind, None, 100).await.unwrap() {
            out += &format!("{kind} {} {:?} {}\n", record.key, record.due, String::from_utf8_lossy(&record.value));
        }
    }
    out
}

async fn found(store: &Store, word: &str) -> usize {
    let terms = vec![Term { text: word.to_owned(), prefix: false }];
    let query = TextQuery { terms, sessions: Vec::new(), limit: 1000, ..TextQuery::default() };
    store.backend().search(store.workspace(), query).await.unwrap().map_or(0, |hits| hits.len())
}

/// Compares line by line, to say shortly where they differ.
fn assert_same(found: &str, expected: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

/// Redacts, and checks everything that must hold whatever the secret lay in.
async fn redact_and_check(scratch: &Scratch, store: &Store) -> Redacted {
    let mine = claim().take_over();
    let before = content(store).await;
    assert!(before.contains(SECRET), "the test did not write the secret");
    let rows = dump(&scratch.path());
    let would = store.redact(&redactor(), "it leaked", &mine, true).await.unwrap();
    assert_eq!(dump(&scratch.path()), rows, "a dry run changes nothing");
    let done = store.redact(&redactor(), "it leaked", &mine, false).await.unwrap();
    assert_eq!(done, would, "a dry run counts the same");
    assert_same(&content(store).await, &before.replace(SECRET, INSTEAD));
    assert_whole(store).await;
    assert_eq!(found(store, SECRET).await, 0);
    assert_eq!(lies_in_files(scratch.dir.path(), SECRET), None);
    let again = store.redact(&redactor(), "again", &mine, false).await.unwrap();
    assert_eq!(again, Redacted::default(), "there is nothing left to find");
    // The same after everything derived was made anew, and after a close.
    store.reindex().await.unwrap();
    assert_same(&content(store).await, &before.replace(SECRET, INSTEAD));
    assert_whole(store).await;
    assert_eq!(found(store, SECRET).await, 0);
    store.close().await.unwrap();
    assert_eq!(lies_in_files(scratch.dir.path(), SECRET), None);
    done
}

fn leaky_messages() -> Vec<Message> {
    let mut with_extra = user("harmless");
    with_extra.extra = Map::from_iter([("trace".to_owned(), json!({ "deep": [{ "x": format!("a {SECRET} b") }] }))]);
    vec![
        user(&format!("my key is {SECRET}, keep it safe")),
        Message::new(Role::Assistant, SECRET),
        Message::blocks(
            Role::Assistant,
            vec![
                Block::text("a clean block"),
                Block::Thinking { text: format!("the user gave {SECRET}"), extra: Map::new() },
                Block::tool_call("call_1", "login", json!({ "args": { "token": SECRET, "list": ["x", SECRET] } })),
                Block::tool_call("call_2", "odd", json!({ format!("key-{SECRET}"): { "inner": 1 } })),
            ],
        ),
        Message::blocks(
            Role::Tool,
            vec![
                Block::tool_result("call_1", json!([{ "type": "text", "text": format!("ok {SECRET}") }])),
                Block::from(json!({ "type": "other", "payload": { "a": [SECRET] } })),
                Block::Image { source: json!({ "url": format!("https://x/{SECRET}.png") }), extra: Map::new() },
            ],
        ),
        with_extra,
        user("nothing to see here"),
    ]
}

#[tokio::test]
async fn a_secret_goes_from_messages_events_marks_and_rows() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let patch = SessionPatch::new()
        .title(format!("debug {SECRET}"))
        .project(format!("p-{SECRET}"))
        .tags([format!("t-{SECRET}"), "clean".into()])
        .error(format!("401 for {SECRET}"))
        .with("own", json!({ "note": SECRET }));
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let append = leaky_messages().into_iter().fold(Append::new(), Append::message);
    let mark = NewMark { extra: Map::from_iter([("url".to_owned(), json!(SECRET))]), ..NewMark::new(Trigger::Manual) };
    let append = append
        .event(Event::new("request", json!({ "headers": { "authorization": format!("Bearer {SECRET}") } })))
        .event(Event::new("clean", json!({ "a": 1 })))
        .mark(mark.label(format!("before {SECRET}")).description(format!("with {SECRET}")))
        .mark(NewMark::new(Trigger::Step).label("clean"));
    writer.append(append).await.unwrap();
    let other = create(&store).await;
    other.append(step(1)).await.unwrap();
    assert_eq!(found(&store, SECRET).await, 4);
    assert_eq!(found(&store, "harmless").await, 1);
    assert!(lies_in_files(scratch.dir.path(), SECRET).is_some(), "the test would notice");
    let done = redact_and_check(&scratch, &store).await;
    assert_eq!(done.sessions, [writer.id()]);
    // 5 messages, the patch and the event.
    assert_eq!((done.entries, done.checkpoints, done.records), (7, 1, 0));
    let store = scratch.open().await;
    assert_eq!((found(&store, "harmless").await, found(&store, "safe").await), (1, 1));
    let by_label = MarkQuery { label: Some(format!("before {INSTEAD}")), ..MarkQuery::default() };
    assert_eq!(store.marks(writer.id(), &by_label).await.unwrap().len(), 1);
    let by_tag = SessionQuery { tag: Some(format!("t-{INSTEAD}")), ..SessionQuery::default() };
    assert_eq!(store.sessions(&by_tag).await.unwrap().sessions.len(), 1);
    // The session goes on.
    let writer = store.write(writer.id(), &claim().take_over()).await.unwrap();
    writer.append(step(2)).await.unwrap();
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_secret_goes_from_roles_channels_and_kinds_of_events() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let channel = Channel::new(format!("node/{SECRET}")).unwrap();
    writer
        .append(
            Append::new()
                .message(Message::new(Role::Other(format!("bot {SECRET}")), "hello"))
                .message(user("aside").in_channel(channel.clone()))
                .event(Event::new(format!("saw {SECRET}"), json!({})))
                .mark(NewMark::new(Trigger::Other(format!("when {SECRET}")))),
        )
        .await
        .unwrap();
    redact_and_check(&scratch, &store).await;
    let store = scratch.open().await;
    let clean = Channel::new(format!("node/{INSTEAD}")).unwrap();
    let query = MessageQuery { channel: Some(clean.clone()), ..MessageQuery::default() };
    assert_eq!(store.messages(writer.id(), &query).await.unwrap().len(), 1);
    assert_eq!(store.session(writer.id()).await.unwrap().counts.get(&clean), Some(&1));
    let query = MarkQuery { triggers: vec![Trigger::Other(format!("when {INSTEAD}"))], ..MarkQuery::default() };
    assert_eq!(store.marks(writer.id(), &query).await.unwrap().len(), 1);
}

/// States in which the secret comes, is built up piece by piece, moves, and goes.
async fn leaky_states(writer: &SessionWriter) -> Vec<Receipt> {
    let mark = || NewMark::new(Trigger::Step);
    let delta = |builder: milepost_model::delta::DeltaBuilder| Append::new().delta(builder.build().unwrap());
    let (front, back) = SECRET.split_at(5);
    let mut receipts = Vec::new();
    for append in [
        Append::new().state(state(json!({ "memory": { "n": 1, "list": ["a"], "log": "" }, "filler": noise(1, 900) }))),
        delta(Delta::builder().append("/memory/list", [json!({ "token": SECRET })])),
        delta(Delta::builder().append_str("/memory/log", &format!("typed: {front}"))),
        delta(Delta::builder().append_str("/memory/log", back)),
        delta(Delta::builder().append_str("/memory/log", " and more")),
        delta(Delta::builder().set(["memory", &format!("k-{SECRET}")], 1)),
        delta(Delta::builder().set("/memory/n", 2)),
        delta(Delta::builder().splice("/memory/list", 0, 1, ["x", "y"])),
        delta(Delta::builder().splice_str("/memory/log", 0, 6, "wrote")),
        delta(Delta::builder().remove(["memory", &format!("k-{SECRET}")])),
        // It comes and goes within one change.
        delta(Delta::builder().set("/memory/brief", SECRET).set("/memory/other", 1).remove("/memory/brief")),
        delta(Delta::builder().set("/memory/list", json!([]))),
        delta(Delta::builder().set("/memory/log", "short")),
        delta(Delta::builder().set("/memory/n", 3)),
        // The same where no state before or after holds it.
        delta(Delta::builder().set("/memory/late", SECRET).set("/memory/other", 2).remove("/memory/late")),
    ] {
        receipts.push(writer.append(append.mark(mark())).await.unwrap());
    }
    receipts
}

#[tokio::test]
async fn a_secret_goes_from_states_also_when_it_was_built_up() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    leaky_states(&writer).await;
    let done = redact_and_check(&scratch, &store).await;
    assert!(done.entries >= 5, "{done:?}");
    assert_eq!(done.checkpoints, 11, "every mark whose state held it");
    let store = scratch.open().await;
    let writer = store.write(writer.id(), &claim().take_over()).await.unwrap();
    writer.append(Append::new().delta(Delta::builder().append("/memory/list", [9]).build().unwrap())).await.unwrap();
    assert_whole(&store).await;
    // Without any keyframe, every state is the same.
    let before = content(&store).await;
    sql(&scratch.path(), "DELETE FROM keyframes WHERE pinned = 0");
    assert_eq!(content(&store).await, before);
}

#[tokio::test]
async fn a_secret_goes_from_branches_and_timelines_that_were_left() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let parent = create(&store).await;
    parent.append(Append::new().message(user(&format!("it is {SECRET}")))).await.unwrap();
    let receipts = leaky_states(&parent).await;
    // One branch that adds to it, one that only began there, one that changes states without marks, one of a branch.
    let busy = store.branch(last(&receipts[4]), NewSession::default(), &claim()).await.unwrap();
    let end = busy
        .append(
            Append::new()
                .delta(Delta::builder().append_str("/memory/log", SECRET).build().unwrap())
                .mark(NewMark::new(Trigger::Step)),
        )
        .await
        .unwrap();
    let idle = store.branch(last(&receipts[5]), NewSession::default(), &claim()).await.unwrap();
    let quiet = store.branch(last(&receipts[6]), NewSession::default(), &claim()).await.unwrap();
    for n in 0..12 {
        let delta = Delta::builder().set("/filler", noise(50 + n, 900)).build().unwrap();
        quiet.append(Append::new().delta(delta)).await.unwrap();
    }
    let deep = store.branch(last(&end), NewSession::default(), &claim()).await.unwrap();
    deep.append(Append::new().delta(Delta::builder().set("/memory/n", 77).build().unwrap())).await.unwrap();
    // And the parent leaves its own timeline in the middle, twice.
    parent.restore(last(&receipts[3])).await.unwrap();
    parent
        .append(
            Append::new()
                .delta(Delta::builder().append_str("/memory/log", " anew").build().unwrap())
                .mark(NewMark::new(Trigger::Step)),
        )
        .await
        .unwrap();
    parent.restore(last(&receipts[8])).await.unwrap();
    assert!(store.session(idle.id()).await.unwrap().preview.unwrap().contains(SECRET));
    assert!(format!("{:?}", store.state(quiet.id()).await.unwrap()).contains(SECRET));
    redact_and_check(&scratch, &store).await;
    let store = scratch.open().await;
    for id in [idle.id(), quiet.id(), deep.id(), busy.id(), parent.id()] {
        let seen = format!("{:?} {:?}", store.state(id).await.unwrap(), store.session(id).await.unwrap());
        assert!(!seen.contains(SECRET) && seen.contains(INSTEAD), "{seen}");
        let writer = store.write(id, &claim().take_over()).await.unwrap();
        writer.append(step(5)).await.unwrap();
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_secret_goes_from_records_and_large_payloads() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let long = format!("{} {SECRET} {}", noise(1, 30_000), noise(2, 30_000));
    writer
        .append(
            Append::new()
                .message(user(&long))
                .message(Message::blocks(Role::Tool, vec![Block::tool_result("c", json!({ "out": long }))]))
                .event(Event::new("big", json!({ "dump": long })))
                .state(state(json!({ "memory": { "dump": long } })))
                .mark(NewMark::new(Trigger::Step)),
        )
        .await
        .unwrap();
    let value = json!({ "token": SECRET, "n": 1 }).to_string();
    store.put_record("setting", "a", None, None, value.as_bytes()).await.unwrap();
    store.put_record("wake-up", "b", None, Some(Timestamp(7)), SECRET.as_bytes()).await.unwrap();
    store.put_record("setting", "c", None, None, b"clean").await.unwrap();
    store.put_record("setting", "d", None, None, &[0xff, 0xfe]).await.unwrap();
    // A file that an event names cannot be changed without changing its name: it is reported.
    let named = writer.put_blob(format!("a file with {SECRET}").as_bytes()).await.unwrap();
    let blobs = store.stats().await.unwrap().blobs.entries;
    assert_eq!(blobs, 5);
    let done = store.redact(&redactor(), "it leaked", &claim().take_over(), true).await.unwrap();
    assert!(done.blobs.contains(&named), "{done:?}");
    scratch.clock.advance_ms(scratch.options.blob_grace_ms + 1);
    store.collect(&claim().take_over(), false).await.unwrap();
    let before = content(&store).await;
    let done = store.redact(&redactor(), "it leaked", &claim().take_over(), false).await.unwrap();
    assert_eq!((done.entries, done.checkpoints, done.records), (4, 1, 2));
    assert_eq!(done.blobs, []);
    assert_eq!(content(&store).await, before.replace(SECRET, INSTEAD));
    assert_whole(&store).await;
    assert_eq!(store.stats().await.unwrap().blobs.entries, 4, "the old payloads are gone at once");
    assert_eq!(found(&store, SECRET).await, 0);
    store.close().await.unwrap();
    assert_eq!(lies_in_files(scratch.dir.path(), SECRET), None);
}

#[tokio::test]
async fn a_secret_goes_after_pruning_and_purging() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let mut receipts = Vec::new();
    for n in 0..12u64 {
        let token = if (2..9).contains(&n) { SECRET } else { "none" };
        let value = json!({ "token": token, "n": n, "filler": noise(n, 1500) });
        let append =
            Append::new().message(user(&format!("{n} {token}"))).state(state(value)).mark(NewMark::new(Trigger::Step));
        receipts.push(writer.append(append).await.unwrap());
        scratch.clock.advance_ms(1000);
    }
    // A branch that begins between marks, inside of what is given up.
    let between = Position { seq: Seq(last(&receipts[5]).seq.0 + 2), ..last(&receipts[5]) };
    let branch = store.branch(between, NewSession::default(), &claim()).await.unwrap();
    for n in [1, 2, 3, 5, 6, 7] {
        writer.trash_mark(receipts[n].checkpoints[0]).await.unwrap();
    }
    scratch.clock.advance_ms(1000);
    assert!(writer.purge(Timestamp(i64::MAX)).await.unwrap().deltas > 0);
    writer.trash_mark(receipts[8].checkpoints[0]).await.unwrap();
    redact_and_check(&scratch, &store).await;
    let store = scratch.open().await;
    assert_eq!(store.state(branch.id()).await.unwrap().section("token"), Some(&json!(INSTEAD)));
    assert_eq!(store.load(receipts[4].checkpoints[0]).await.unwrap().state.section("token"), Some(&json!(INSTEAD)));
    // The trash is still the trash, and can still be purged and taken out of.
    let writer = store.write(writer.id(), &claim().take_over()).await.unwrap();
    writer.untrash_mark(receipts[8].checkpoints[0]).await.unwrap();
    assert_eq!(store.load(receipts[8].checkpoints[0]).await.unwrap().state.section("n"), Some(&json!(8)));
    scratch.clock.advance_ms(1000);
    writer.purge(Timestamp(i64::MAX)).await.unwrap();
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_whole_state_that_stands_in_for_deltas_is_cleaned_even_if_nothing_else_held_it() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let set = |n: u64, token: &str| state(json!({ "token": token, "filler": noise(n, 1500) }));
    writer.append(Append::new().state(set(0, "none")).mark(NewMark::new(Trigger::Step))).await.unwrap();
    writer.append(Append::new().state(set(1, "none"))).await.unwrap();
    writer.append(Append::new().state(set(2, SECRET))).await.unwrap();
    let point = last(&writer.append(Append::new().message(user("a branch begins here"))).await.unwrap());
    let thrown = writer.append(Append::new().state(set(3, "none")).mark(NewMark::new(Trigger::Step))).await.unwrap();
    writer.append(Append::new().state(set(4, "none")).mark(NewMark::new(Trigger::Step))).await.unwrap();
    let branch = store.branch(point, NewSession::default(), &claim()).await.unwrap();
    writer.trash_mark(thrown.checkpoints[0]).await.unwrap();
    scratch.clock.advance_ms(1);
    assert!(writer.purge(Timestamp(i64::MAX)).await.unwrap().deltas >= 2);
    store.redact(&redactor(), "it leaked", &claim().take_over(), false).await.unwrap();
    assert_eq!(store.state_at(point).await.unwrap().section("token"), Some(&json!(INSTEAD)));
    assert_eq!(store.state(branch.id()).await.unwrap().section("token"), Some(&json!(INSTEAD)));
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_secret_goes_from_an_encrypted_workspace_too() {
    let mut scratch = Scratch::new();
    scratch.options.keys.master = Some(MasterKey::from_bytes([7; 32]));
    let store = scratch.open().await;
    let patch = SessionPatch::new().title(format!("title {SECRET}")).project(format!("p {SECRET}"));
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let append = leaky_messages().into_iter().fold(Append::new(), Append::message);
    writer.append(append.message(user(&format!("{} {SECRET}", noise(1, 40_000))))).await.unwrap();
    let receipts = leaky_states(&writer).await;
    let branch = store.branch(last(&receipts[4]), NewSession::default(), &claim()).await.unwrap();
    branch.append(step(1)).await.unwrap();
    store.put_record("setting", "a", None, None, SECRET.as_bytes()).await.unwrap();
    // One session that nobody can read any more does not stop it.
    let shredded = create(&store).await;
    shredded.append(Append::new().message(user(SECRET))).await.unwrap();
    let before = content_of(&store, &[writer.id(), branch.id()]).await;
    store.shred(shredded.id()).await.unwrap();
    let mine = claim().take_over();
    let done = store.redact(&redactor(), "it leaked", &mine, false).await.unwrap();
    assert!(done.sessions.contains(&writer.id()) && done.records == 1, "{done:?}");
    assert_eq!(content_of(&store, &[writer.id(), branch.id()]).await, before.replace(SECRET, INSTEAD));
    let report = store.verify().await.unwrap();
    assert!(report.is_whole(), "{:?}", report.problems);
    assert_eq!(report.shredded, [shredded.id()]);
    assert_eq!(store.redact(&redactor(), "again", &mine, false).await.unwrap(), Redacted::default());
    let query = SessionQuery { project: Some(format!("p {INSTEAD}")), ..SessionQuery::default() };
    assert!(!store.sessions(&query).await.unwrap().sessions.is_empty());
    let query = SessionQuery { project: Some(format!("p {SECRET}")), ..SessionQuery::default() };
    assert!(store.sessions(&query).await.unwrap().sessions.is_empty());
}

async fn content_of(store: &Store, sessions: &[SessionId]) -> String {
    let mut out = String::new();
    for id in sessions {
        let mut row = serde_json::to_value(store.session(*id).await.unwrap()).unwrap();
        row["active"] = Value::Null;
        out += &row.to_string();
        for found in store.messages(*id, &MessageQuery::default()).await.unwrap() {
            out += &serde_json::to_string(&found.message).unwrap();
        }
        for mark in store.marks(*id, &MarkQuery::default()).await.unwrap() {
            out += &format!("{:?}", store.load(mark.checkpoint.id).await.unwrap().state);
        }
    }
    out
}

#[tokio::test]
async fn a_hidden_beginning_is_cleaned_too() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let parent = create(&store).await;
    let receipt = parent
        .append(
            Append::new()
                .message(user(&format!("it is {SECRET}")))
                .state(state(json!({ "token": SECRET })))
                .mark(NewMark::new(Trigger::Step)),
        )
        .await
        .unwrap();
    let branch = store.branch(last(&receipt), NewSession::default(), &claim()).await.unwrap();
    let mine = claim().take_over();
    store.delete(parent.id(), DeleteMode::KeepBranches, &mine, false).await.unwrap();
    redact_and_check(&scratch, &store).await;
    let store = scratch.open().await;
    assert_eq!(texts(&store, branch.id()).await, [format!("it is {INSTEAD}")]);
}

#[tokio::test]
async fn what_is_not_there_is_not_redacted() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    leaky_states(&writer).await;
    writer.append(step(1)).await.unwrap();
    store.put_record("setting", "a", None, None, b"x").await.unwrap();
    let before = dump(&scratch.path());
    let nothing = Redactor::literal("no such text", "x").unwrap();
    assert_eq!(store.redact(&nothing, "", &claim(), false).await.unwrap(), Redacted::default());
    assert_eq!(dump(&scratch.path()), before);
    assert!(Redactor::literal("", "x").is_err());
    assert!(Redactor::literal("ab", "cabd").is_err(), "it would never end");
}

#[tokio::test]
async fn a_replacement_that_nobody_vouches_for_is_reported() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let first = writer.append(Append::new().message(user(&format!("pay 10 to {SECRET}")))).await.unwrap().first;
    let second = writer.append(Append::new().message(user(&format!("pay 99 to {SECRET}")))).await.unwrap().first;
    store.redact(&redactor(), "it leaked", &claim().take_over(), false).await.unwrap();
    assert_whole(&store).await;
    store.close().await.unwrap();
    // An attacker who can write the file makes a redaction of their own: the first message's tombstone, and another text.
    let (from, to) = (entry_key(&scratch.path(), second), entry_key(&scratch.path(), first));
    forge(&scratch.path(), first, from, to);
    let store = scratch.open().await;
    assert_eq!(texts(&store, writer.id()).await[0], format!("pay 99 to {INSTEAD}"), "the forgery reads well");
    let report = store.verify().await.unwrap();
    let problem = report.problems.iter().find(|problem| problem.at == Some(first));
    let problem = problem.unwrap_or_else(|| panic!("the forgery was not noticed: {report:?}"));
    assert!(!problem.derived);
}

/// Puts the text and payload of one replaced entry into another, keeps the other's commitment, and makes the checksum fit.
fn forge(path: &Path, at: Position, from: i64, to: i64) {
    let db = rusqlite::Connection::open(path).unwrap();
    let read = |key: i64| -> (Vec<u8>, Option<String>) {
        db.query_row("SELECT body, text FROM entries WHERE id = ?1", [key], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
    };
    let (theirs, text) = read(from);
    let (own, _) = read(to);
    // The form, 32 bytes of commitment, then the replacement.
    let body = [&own[..33], &theirs[33..]].concat();
    db.execute("UPDATE entries SET body = ?2, text = ?3 WHERE id = ?1", rusqlite::params![to, body, text]).unwrap();
    crate::keys::make_sum_fit(&db, at, to);
}

/// Two sessions with a payload that is a blob, and one with a short message that somebody holds.
async fn with_one_held(store: &Store) -> (SessionWriter, [SessionId; 2]) {
    let mut free = Vec::new();
    for n in 0..2 {
        let writer = create(store).await;
        writer.append(Append::new().message(user(&format!("{} {SECRET}", noise(n, 40_000))))).await.unwrap();
        free.push(writer.id());
        writer.release().await.unwrap();
    }
    let held = create(store).await;
    held.append(Append::new().message(user(SECRET))).await.unwrap();
    (held, [free[0], free[1]])
}

#[tokio::test]
async fn a_session_that_somebody_holds_does_not_keep_the_secret_in_others() {
    for master in [None, Some(MasterKey::from_bytes([7; 32]))] {
        let mut scratch = Scratch::new();
        scratch.options.keys.master = master;
        let store = scratch.open().await;
        let (held, free) = with_one_held(&store).await;
        let done = store.redact(&redactor(), "it leaked", &claim(), false).await.unwrap();
        assert_eq!(done.entries, 2, "{done:?}");
        assert_eq!(done.passed_over.iter().map(|one| one.session).collect::<Vec<_>>(), [held.id()]);
        for id in free {
            assert!(texts(&store, id).await[0].ends_with(INSTEAD));
        }
        assert_eq!(store.stats().await.unwrap().blobs.entries, 2, "the old payloads are gone at once");
        assert_eq!(texts(&store, held.id()).await, [SECRET]);
        held.release().await.unwrap();
        let done = store.redact(&redactor(), "it leaked", &claim(), false).await.unwrap();
        assert_eq!(done.entries, 1, "{done:?}");
        assert_eq!(store.redact(&redactor(), "again", &claim(), true).await.unwrap(), Redacted::default());
        assert_whole(&store).await;
    }
}

#[tokio::test]
async fn a_branch_that_somebody_holds_keeps_what_it_goes_on_from() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let grand = create(&store).await;
    let value = |token: &str| state(json!({ "token": token, "log": format!("{token} and more") }));
    let clean = grand.append(Append::new().message(user(SECRET)).state(value("none"))).await.unwrap();
    let parent = store.branch(last(&clean), NewSession::default(), &claim()).await.unwrap();
    let dirty = parent.append(Append::new().state(value(SECRET)).mark(NewMark::new(Trigger::Step))).await.unwrap();
    let child = store.branch(last(&dirty), NewSession::default(), &claim()).await.unwrap();
    let delta = Delta::builder().splice_str("/log", 13, 4, " even ").build().unwrap();
    child.append(Append::new().delta(delta).mark(NewMark::new(Trigger::Step))).await.unwrap();
    let (grand_id, parent_id) = (grand.id(), parent.id());
    grand.release().await.unwrap();
    parent.release().await.unwrap();
    let before = store.state(child.id()).await.unwrap();
    let done = store.redact(&redactor(), "it leaked", &claim(), false).await.unwrap();
    // What the branch begins with has the secret, and only whoever holds it may give it another beginning.
    assert!(done.sessions.contains(&grand_id), "{done:?}");
    let passed_over: Vec<_> = done.passed_over.iter().map(|one| (one.session, one.obstacle)).collect();
    assert_eq!(passed_over, [(child.id(), Obstacle::Held), (parent_id, Obstacle::Held)], "{done:?}");
    assert_eq!(store.state(child.id()).await.unwrap(), before);
    // What a list shows of the one that is held follows when it is free.
    let report = store.verify().await.unwrap();
    assert!(report.problems.iter().all(|problem| problem.derived), "{report:?}");
    child.release().await.unwrap();
    let done = store.redact(&redactor(), "it leaked", &claim(), false).await.unwrap();
    assert!(done.sessions.contains(&parent_id), "{done:?}");
    assert_eq!(store.redact(&redactor(), "again", &claim(), true).await.unwrap(), Redacted::default());
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_redaction_that_was_killed_is_brought_to_its_end_by_the_next() {
    for master in [None, Some(MasterKey::from_bytes([7; 32]))] {
        let mut scratch = Scratch::new();
        scratch.options.keys.master = master;
        let (backend, store) = watched(&scratch).await;
        let writer = create(&store).await;
        writer.append(Append::new().message(user(&format!("{} {SECRET}", noise(1, 40_000))))).await.unwrap();
        let mine = claim().take_over();
        backend.fail_drop.store(true, std::sync::atomic::Ordering::SeqCst);
        store.redact(&redactor(), "it leaked", &mine, false).await.unwrap_err();
        assert_eq!(store.stats().await.unwrap().blobs.entries, 2);
        let would = store.redact(&redactor(), "it leaked", &mine, true).await.unwrap();
        assert_eq!(would.blobs.len(), 1, "the dry run tells of what is left: {would:?}");
        store.redact(&redactor(), "it leaked", &mine, false).await.unwrap();
        assert_eq!(store.stats().await.unwrap().blobs.entries, 1);
        assert_eq!(store.redact(&redactor(), "again", &mine, true).await.unwrap(), Redacted::default());
        assert_whole(&store).await;
    }
}

#[tokio::test]
async fn a_redaction_that_was_killed_halfway_left_no_word_in_the_index_and_the_next_leaves_nothing_in_the_file() {
    let scratch = Scratch::new();
    let (backend, store) = watched(&scratch).await;
    let writer = create(&store).await;
    writer.append(Append::new().message(user(&format!("the word is {SECRET}")))).await.unwrap();
    assert_eq!(found(&store, SECRET).await, 1);
    let mine = claim().take_over();
    backend.fail_rebuild.store(true, std::sync::atomic::Ordering::SeqCst);
    store.redact(&redactor(), "it leaked", &mine, false).await.unwrap_err();
    assert_eq!((found(&store, SECRET).await, found(&store, "gone").await), (0, 1));
    assert!(lies_in_files(scratch.dir.path(), SECRET).is_some(), "the test did not leave anything behind");
    let again = store.redact(&redactor(), "again", &mine, false).await.unwrap();
    assert_eq!((again.entries, again.checkpoints), (0, 0));
    store.close().await.unwrap();
    assert_eq!(lies_in_files(scratch.dir.path(), SECRET), None);
}

#[tokio::test]
async fn a_blob_that_was_just_put_stays_for_whoever_is_about_to_name_it() {
    for master in [None, Some(MasterKey::from_bytes([7; 32]))] {
        let mut scratch = Scratch::new();
        scratch.options.keys.master = master;
        let store = scratch.open().await;
        let writer = create(&store).await;
        let put = writer.put_blob(format!("a file with {SECRET}").as_bytes()).await.unwrap();
        let mine = claim().take_over();
        let done = store.redact(&redactor(), "it leaked", &mine, false).await.unwrap();
        assert_eq!(done.blobs, [put], "{done:?}");
        writer.append(Append::new().event_with(Event::new("a file", json!({})), vec![put])).await.unwrap();
        assert_whole(&store).await;
        let done = store.redact(&redactor(), "it leaked", &mine, false).await.unwrap();
        assert_eq!(done.blobs, [put], "what is named cannot be erased, and is told: {done:?}");
        // What nobody named goes when its time is over.
        let other = writer.put_blob(format!("another file with {SECRET}").as_bytes()).await.unwrap();
        scratch.clock.advance_ms(scratch.options.blob_grace_ms + 1);
        let done = store.redact(&redactor(), "it leaked", &mine, false).await.unwrap();
        assert!(!done.blobs.contains(&other), "{done:?}");
        assert_eq!(store.stats().await.unwrap().blobs.entries, 1);
    }
}

#[tokio::test]
async fn a_secret_that_is_a_number_goes() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let patch = SessionPatch::new().with("pin", json!(483920174)).with("other", json!(7));
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let call = Block::tool_call("call_1", "login", json!({ "pin": 483920174, "n": 1 }));
    writer
        .append(
            Append::new()
                .message(Message::blocks(Role::Assistant, vec![call]))
                .event(Event::new("typed", json!({ "pin": 483920174 })))
                .state(state(json!({ "memory": { "pin": 483920174, "list": [1, 483920174.5], "n": 17 } })))
                .mark(NewMark::new(Trigger::Step)),
        )
        .await
        .unwrap();
    store.put_record("setting", "a", None, None, br#"{"pin":483920174,"n":4}"#).await.unwrap();
    let redactor = Redactor::literal("483920174", INSTEAD).unwrap();
    let mine = claim().take_over();
    let would = store.redact(&redactor, "it leaked", &mine, true).await.unwrap();
    let done = store.redact(&redactor, "it leaked", &mine, false).await.unwrap();
    assert_eq!(done, would);
    assert_eq!((done.entries, done.checkpoints, done.records), (4, 1, 1), "{done:?}");
    let memory = json!({ "pin": INSTEAD, "list": [1, format!("{INSTEAD}.5")], "n": 17 });
    assert_eq!(store.state(writer.id()).await.unwrap().section("memory"), Some(&memory));
    let session = store.session(writer.id()).await.unwrap();
    assert_eq!((&session.extra["pin"], &session.extra["other"]), (&json!(INSTEAD), &json!(7)));
    let record = store.record("setting", "a").await.unwrap().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&record.value).unwrap(), json!({ "pin": INSTEAD, "n": 4 }));
    assert_whole(&store).await;
    assert_eq!(store.redact(&redactor, "again", &mine, true).await.unwrap(), Redacted::default());
}

#[tokio::test]
async fn digits_of_the_stores_own_numbers_are_no_secret() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    // A time as the rows and the log have it.
    let time = crate::support::START.0;
    writer.append(step(1).event(Event::new("typed", json!({ "n": time })))).await.unwrap();
    let redactor = Redactor::literal(time.to_string(), "x").unwrap();
    let done = store.redact(&redactor, "", &claim().take_over(), false).await.unwrap();
    assert_eq!((done.entries, done.checkpoints), (1, 0), "{done:?}");
    assert_whole(&store).await;
    assert_eq!(store.redact(&redactor, "", &claim().take_over(), true).await.unwrap(), Redacted::default());
}

#[tokio::test]
async fn a_secret_goes_from_records_in_whatever_form_they_have() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let secret = "pa\"ss\\wd-77";
    let records: [(&str, Vec<u8>, Vec<u8>); 4] = [
        ("json", json!({ "title": format!("pw {secret} here"), secret: 1 }).to_string().into_bytes(), {
            json!({ "title": format!("pw {INSTEAD} here"), INSTEAD: 1 }).to_string().into_bytes()
        }),
        ("text", format!("it is {secret}").into_bytes(), format!("it is {INSTEAD}").into_bytes()),
        ("bytes", [b"caf\xe9 ", secret.as_bytes(), b"\xff"].concat(), {
            [b"caf\xe9 ", INSTEAD.as_bytes(), b"\xff"].concat()
        }),
        ("clean", vec![0xe9, 0xff], vec![0xe9, 0xff]),
    ];
    for (key, value, _) in &records {
        store.put_record("setting", key, None, None, value).await.unwrap();
    }
    let redactor = Redactor::literal(secret, INSTEAD).unwrap();
    let done = store.redact(&redactor, "it leaked", &claim(), false).await.unwrap();
    assert_eq!(done.records, 3, "{done:?}");
    for (key, _, clean) in &records {
        let value = store.record("setting", key).await.unwrap().unwrap().value;
        assert_eq!(String::from_utf8_lossy(&value), String::from_utf8_lossy(clean), "{key}");
    }
    assert_eq!(store.redact(&redactor, "again", &claim(), true).await.unwrap(), Redacted::default());
}

/// A tool prints JSON, a message holds what it printed, and perhaps another tool printed that message.
#[test]
fn a_secret_is_found_as_json_writes_it() {
    let secret = "one \"two\"\n\\thrée/\u{1f511}";
    let redactor = Redactor::literal(secret, INSTEAD).unwrap();
    let mut text = secret.to_owned();
    for depth in 0..=4 {
        let around = format!("before {text} between {text}\\ after");
        assert_eq!(redactor.clean(&around).unwrap(), format!("before {INSTEAD} between {INSTEAD}\\ after"), "{depth}");
        let quoted = json!(text).to_string();
        text = quoted[1..quoted.len() - 1].to_owned();
    }
    // As others write it: letters beyond ASCII, slashes and line feeds in other ways.
    for form in [
        r#"one \"two\"\n\\thr\u00e9e/\ud83d\udd11"#,
        r#"one \u0022two\u0022\u000A\u005cthr\u00E9e\/\uD83D\uDD11"#,
        r#"one \\\"two\\\"\\n\\\\thr\\u00e9e/\\ud83d\\udd11"#,
    ] {
        assert_eq!(redactor.clean(&format!("{{{form}}}")).as_deref(), Some("{[gone]}"), "{form}");
    }
    // In two depths at once.
    let once = json!(secret).to_string();
    let both = format!("{secret} {once} {}", json!(once));
    assert_eq!(redactor.clean(&both).unwrap(), r#"[gone] "[gone]" "\"[gone]\"""#);
    // What is put in its place is escaped as its surroundings are.
    let quoting = Redactor::literal("a\nb", "\"x\"").unwrap();
    let value = json!({ "key": "a\nb", "text": json!({ "inner": "a\nb" }).to_string() });
    let clean: Value = serde_json::from_str(&quoting.clean(&value.to_string()).unwrap()).unwrap();
    assert_eq!(clean, json!({ "key": "\"x\"", "text": json!({ "inner": "\"x\"" }).to_string() }));
    // Where its bytes were taken for characters.
    let latin: String = secret.bytes().map(char::from).collect();
    assert_eq!(redactor.clean(&format!("<{latin}>")).as_deref(), Some("<[gone]>"));
    // What looks like an escape and is none, or is another text, stays.
    for other in ["C:\\new\\table", "\\u12", "\\ud83d alone", "\\", "one \\\"two\\\"", ""] {
        assert_eq!(redactor.clean(other), None, "{other}");
    }
    // What is put in with what stands beside it does not make it anew.
    let growing = Redactor::literal("ab", "b").unwrap();
    assert_eq!(growing.clean("aaab").unwrap(), "b");
    let endless = Redactor::literal("aabb", "bbbaaa").unwrap();
    assert!(!endless.clean("aaabbb").unwrap().contains("aabb"));
}

#[tokio::test]
async fn names_that_become_the_same_keep_their_values() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let numbers = Redactor::new(|text| {
        let clean: String = text.split(' ').map(|word| if word.starts_with("key-") { INSTEAD } else { word }).collect();
        (clean != text).then_some(clean)
    });
    let value = json!({ "m": { "key-a": 1, "key-b": 2, "key-c": { "key-d": 3, "key-e": 4 }, INSTEAD: 5 } });
    writer.append(Append::new().state(state(value)).mark(NewMark::new(Trigger::Step))).await.unwrap();
    store.redact(&numbers, "it leaked", &claim().take_over(), false).await.unwrap();
    let found = store.state(writer.id()).await.unwrap().section("m").cloned().unwrap();
    let mut values: Vec<String> = found.as_object().unwrap().values().map(Value::to_string).collect();
    values.sort();
    let inner = json!({ INSTEAD: 3, format!("{INSTEAD} 2"): 4 }).to_string();
    assert_eq!(values, ["1", "2", "5", &inner], "{found}");
    assert_whole(&store).await;
}

#[tokio::test]
async fn damage_in_one_session_does_not_keep_the_secret_in_others() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut writers = Vec::new();
    for n in 0..3 {
        let writer = create(&store).await;
        let receipt = writer.append(Append::new().message(user(&format!("{n} {SECRET}")))).await.unwrap();
        writers.push((writer, receipt.first));
    }
    damage(&scratch.path(), writers[1].1);
    let done = store.redact(&redactor(), "it leaked", &claim().take_over(), false).await.unwrap();
    assert_eq!(done.entries, 2, "{done:?}");
    let passed_over: Vec<_> = done.passed_over.iter().map(|one| (one.session, one.obstacle)).collect();
    assert_eq!(passed_over, [(writers[1].0.id(), Obstacle::Damaged)]);
    for (writer, _) in [&writers[0], &writers[2]] {
        assert!(texts(&store, writer.id()).await[0].ends_with(INSTEAD));
    }
}

#[tokio::test]
async fn the_reason_that_is_stored_has_no_secret() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(Append::new().message(user(SECRET))).await.unwrap();
    store.redact(&redactor(), &format!("{SECRET} was in a log"), &claim().take_over(), false).await.unwrap();
    let entries = store.entries(writer.id(), Seq(0), Seq::MAX).await.unwrap();
    let event = entries.into_iter().find_map(|entry| match entry.body {
        Some(Body::Event(event)) if event.kind == "redacted" => Some(event),
        _ => None,
    });
    assert_eq!(event.unwrap().data["why"], json!(format!("{INSTEAD} was in a log")));
}

#[tokio::test]
async fn what_nests_too_deep_to_be_read_again_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let call = |depth: usize| {
        let input = (0..depth).fold(json!("{[{["), |value, _| json!([value]));
        Append::new().message(Message::blocks(Role::Assistant, vec![Block::tool_call("c", "deep", input)]))
    };
    // The message, its blocks and the block are three.
    writer.append(call(124)).await.unwrap();
    let refused = writer.append(call(125)).await.unwrap_err().to_string();
    assert!(refused.contains("MAX_JSON_DEPTH is 127"), "{refused}");
    let refused = writer.append(Append::new().event(Event::new("deep", json!({ "x": call_depth(130) })))).await;
    assert!(refused.unwrap_err().to_string().contains("MAX_JSON_DEPTH"));
    let mark = NewMark { extra: Map::from_iter([("x".to_owned(), call_depth(300))]), ..NewMark::new(Trigger::Manual) };
    writer.append(Append::new().mark(mark)).await.unwrap_err();
    assert_eq!(store.messages(writer.id(), &MessageQuery::default()).await.unwrap().len(), 1);
    assert_whole(&store).await;
}

fn call_depth(depth: usize) -> Value {
    (0..depth).fold(json!(1), |value, _| json!([value]))
}
