//! Nodes of version 1 that are at work while the tables are brought forward, and go on.
//!
//! `postgres-v1.sql` is `v1.db`, moved by a program of version 1 and dumped with `pg_dump --inserts`.
//! `postgres-v1-calls.sql` is what such a program then sent to change it, one call a line: it wrote two sessions, set one
//! back, redacted, rebuilt, deleted a third. Timelines have their ids there in place of their numbers.

use milepost_model::SessionPatch;
use milepost_store::{Append, MarkQuery, MessageQuery, NewSession, Options, SessionQuery, Store};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::store::count;
use super::{Scheme, server};
use crate::golden::{Kind, assert_described, describe, folder};
use crate::support::{claim, create, step, user};

async fn load(place: &Scheme) {
    let dump = std::fs::read_to_string(folder().join("postgres-v1.sql")).unwrap();
    let dump =
        dump.replace("milepost.", &format!("{}.", place.name)).replace(" milepost;", &format!(" {};", place.name));
    place.connect().await.batch_execute(&dump).await.unwrap();
}

/// A node of version 1: what it sent, and what it needs to be answered.
struct OldNode {
    client: Client,
    calls: Vec<String>,
}

impl OldNode {
    async fn begin(place: &Scheme) -> Self {
        let calls = std::fs::read_to_string(folder().join("postgres-v1-calls.sql")).unwrap();
        let calls = calls.lines().rev().map(|line| line.replace("milepost.", &format!("{}.", place.name)));
        let client = place.connect().await;
        // Waiting for a lock ends.
        client.batch_execute("SET lock_timeout TO '20s'").await.unwrap();
        Self { client, calls: calls.collect() }
    }

    /// Sends so many of the calls that are left. Each must do what it did then.
    async fn work(&mut self, calls: usize) {
        for _ in 0..calls {
            let Some(call) = self.calls.pop() else { return };
            let name: String = call.chars().take(120).collect();
            let answer = self.client.simple_query(&call).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
            for row in answer.iter().filter_map(|part| match part {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            }) {
                for (at, column) in row.columns().iter().enumerate() {
                    match column.name() {
                        "o_code" => assert_eq!(row.get(at), Some("ok"), "{name}"),
                        "put_record_1" | "delete_record_1" => assert_eq!(row.get(at), Some("t"), "{name}"),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Opens the store anew: what a program of version 1 asks before it does anything.
    async fn is_welcome(place: &Scheme) -> bool {
        let sql = format!("SELECT max(version), max(compatible) FROM {}.versions", place.name);
        let client = place.connect().await;
        let row = client.query_one(&sql, &[]).await.unwrap();
        let (version, compatible): (i32, i32) = (row.get(0), row.get(1));
        let sql = format!("SELECT value = 'on' FROM {}.settings WHERE name = 'text_index'", place.name);
        version >= 1 && compatible <= 1 && client.query_one(&sql, &[]).await.unwrap().get(0)
    }
}

async fn titled(store: &Store, title: &str) -> milepost_model::Session {
    let all = store.sessions(&SessionQuery::default()).await.unwrap().sessions;
    all.into_iter().find(|session| session.title.as_deref() == Some(title)).unwrap()
}

async fn new_session(store: &Store, title: &str) -> milepost_store::SessionWriter {
    let new = NewSession { id: None, patch: SessionPatch::new().title(title) };
    store.create(new, &claim()).await.unwrap()
}

#[tokio::test]
async fn tables_of_version_1_are_brought_forward() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("old");
    load(&place).await;
    let store = Kind::Plain.open_later_at(&place.url()).await;
    let verified = store.verify_deep().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
    let (found, mut expected) = (describe(&store).await, Kind::Plain.expected());
    // Blobs that nothing refers to were left behind.
    expected["stats"] = found["stats"].clone();
    assert_described(&found, &expected, "version 1");
    let sessions = store.sessions(&SessionQuery::default()).await.unwrap().sessions;
    let writer = store.write(sessions[0].id, &claim().take_over()).await.unwrap();
    for _ in 0..3 {
        writer.append(Append::new().message(user("it goes on with zanzibar"))).await.unwrap();
    }
    assert_eq!(count(&store, "zanzibar", false).await, 3);
    assert!(store.verify_deep().await.unwrap().is_whole());
    place.drop_schema().await;
}

/// Words that older rules did not cut out are found once a program of newer ones was there, whoever indexes beside it.
#[tokio::test]
async fn texts_that_older_programs_cut_are_cut_anew() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("recut");
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    let writer = new_session(&store, "words").await;
    writer.append(Append::new().message(user("我们使用PostgreSQL数据库"))).await.unwrap();
    assert_eq!(count(&store, "postgresql", false).await, 1);
    drop(writer);
    store.close().await.unwrap();
    let client = place.connect().await;
    let run = async |sql: &str| client.batch_execute(&sql.replace("{s}", &place.name)).await.unwrap();
    let as_before = "UPDATE {s}.texts SET words = '''我们使用postgresql数据库'':1'::tsvector";
    let index_by_old_rules = "BEGIN; INSERT INTO {s}.unindexed SELECT no, 0, 100 FROM {s}.timelines;
        DELETE FROM {s}.unindexed; COMMIT";
    // The tables of version 2.
    run(as_before).await;
    run("DROP TRIGGER recut ON {s}.unindexed; DROP FUNCTION {s}.recut_3; DROP TABLE {s}.recut, {s}.text_gaps;
         UPDATE {s}.versions SET version = 2")
    .await;
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    assert_eq!(count(&store, "postgresql", false).await, 1, "after the tables were brought forward");
    // A program of version 2 that goes on beside this one indexes it, by its rules.
    run(as_before).await;
    run(index_by_old_rules).await;
    let verified = store.verify_deep().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
    run(as_before).await;
    run(index_by_old_rules).await;
    assert_eq!(count(&store, "postgresql", false).await, 1, "after a program of version 2 indexed it");
    assert_eq!(recut(&place, "true").await, 0, "nothing is left to do");
    // One of today's rules says so, and nothing of it is cut again.
    let as_today = index_by_old_rules.replace("BEGIN;", "BEGIN; SET LOCAL milepost.rules TO '2';");
    run(&as_today).await;
    assert_eq!(recut(&place, "true").await, 0, "what was cut by the rules of today");
    place.drop_schema().await;
}

/// How many stretches of texts wait to be cut anew.
async fn recut(place: &Scheme, which: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {}.recut WHERE {which}", place.name);
    place.connect().await.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Version 1 indexes at once, with an append and when it rebuilds: by its rules.
#[tokio::test]
async fn what_a_node_of_version_1_indexes_is_cut_anew() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("cut");
    load(&place).await;
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    count(&store, "ocelot", false).await;
    assert_eq!(recut(&place, "true").await, 0, "the tables were brought forward, and everything was cut");
    store.close().await.unwrap();
    let mut old = OldNode::begin(&place).await;
    old.work(usize::MAX).await;
    assert!(recut(&place, "past < 9223372036854775807").await > 0, "what it appended");
    assert!(recut(&place, "past = 9223372036854775807").await > 0, "what it rebuilt");
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    assert_eq!((count(&store, "ocelot", false).await, recut(&place, "true").await), (16, 0));
    assert!(store.verify_deep().await.unwrap().is_whole());
    place.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_version_1_go_on_beside_newer_ones() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("beside");
    load(&place).await;
    let mut old = OldNode::begin(&place).await;
    old.work(6).await;
    // The tables are brought forward while it writes.
    let url = place.url();
    let opening = tokio::spawn(async move { Store::open(&url, Options::default()).await.unwrap() });
    old.work(3).await;
    let store = opening.await.unwrap();
    assert!(OldNode::is_welcome(&place).await, "version 1 can open the store");
    // As if newer nodes had written to every session: its row knows its head.
    let sql = "UPDATE {s}.sessions s SET line = t.no FROM {s}.timelines t WHERE t.session = s.id AND t.head = 'main'";
    place.connect().await.batch_execute(&sql.replace("{s}", &place.name)).await.unwrap();

    // Both write, in turns and at the same time.
    let newer = new_session(&store, "Written by a newer node").await;
    let writing = tokio::spawn(async move {
        for number in 0..30 {
            newer.append(step(number)).await.unwrap();
            newer.append(Append::new().message(user("quokka of a newer node"))).await.unwrap();
        }
        newer
    });
    old.work(usize::MAX).await;
    let newer = writing.await.unwrap();

    // Heads that the old node moved are known.
    let sql = "SELECT count(*) FROM {s}.sessions s JOIN {s}.timelines t ON t.session = s.id AND t.head = 'main'
               WHERE s.line <> t.no";
    let wrong: i64 = place.connect().await.query_one(&sql.replace("{s}", &place.name), &[]).await.unwrap().get(0);
    assert_eq!(wrong, 0, "rows that do not know their head");
    // Nothing is lost, and nothing is left of what was redacted.
    let written = titled(&store, "Written by an old node").await;
    let messages = store.messages(written.id, &MessageQuery::default()).await.unwrap();
    let texts: Vec<String> = messages.iter().map(|stored| stored.message.text().into_owned()).collect();
    let expected = (1..=5).chain(50..=53).chain(60..=63);
    assert!(expected.zip(&texts).all(|(step, text)| text.starts_with(&format!("ocelot {step} "))), "{texts:?}");
    assert_eq!(texts.len(), 13);
    assert_eq!(store.state(written.id).await.unwrap().pointer("/memory/step"), Some(&63.into()));
    assert_eq!(store.marks(written.id, &MarkQuery::default()).await.unwrap().len(), 13);
    assert_eq!(count(&store, "ocelot", false).await, 16);
    assert_eq!(count(&store, "wombat77", false).await, 0);
    assert_eq!(count(&store, "quokka", false).await, 30);
    assert_eq!(store.record("setting", "old").await.unwrap().unwrap().value, b"second");
    let verified = store.verify_deep().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);

    // What the old node began goes on here; what it looks for is found by its own search.
    for title in ["Written by an old node", "A branch of an old node"] {
        let writer = store.write(titled(&store, title).await.id, &claim()).await.unwrap();
        writer.append(Append::new().message(user("ocelot that goes on"))).await.unwrap();
        writer.append(step(99)).await.unwrap();
    }
    newer.release().await.unwrap();
    assert_eq!(count(&store, "ocelot", false).await, 18);
    let sql = format!("SELECT count(DISTINCT (timeline, seq)) FROM {}.texts WHERE words @@ 'ocelot'", place.name);
    let found: i64 = place.connect().await.query_one(&sql, &[]).await.unwrap().get(0);
    assert_eq!(found, 18);
    assert!(store.verify_deep().await.unwrap().is_whole());
    place.drop_schema().await;
}

/// A backup or a check reads for hours. The migration waits for its end, but nobody waits behind the migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_must_wait_keeps_nobody_waiting() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("wait");
    load(&place).await;
    let reader = place.connect().await;
    let sql = format!("BEGIN; SELECT count(*) FROM {}.sessions", place.name);
    reader.batch_execute(&sql).await.unwrap();
    let url = place.url();
    let opening = tokio::spawn(async move { Store::open(&url, Options::default()).await });
    // It stands in line for the table.
    let waits = format!(
        "SELECT count(*) > 0 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = '{}' AND c.relname = 'sessions' AND NOT l.granted AND l.mode = 'AccessExclusiveLock'",
        place.name
    );
    let watcher = place.connect().await;
    while !watcher.query_one(&waits, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(!opening.is_finished(), "the migration was to wait");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let mut old = OldNode::begin(&place).await;
    old.work(16).await;
    assert!(!opening.is_finished(), "the reader still holds the table");
    reader.batch_execute("COMMIT").await.unwrap();
    let store = opening.await.unwrap().unwrap();
    old.work(usize::MAX).await;
    create(&store).await.append(step(1)).await.unwrap();
    assert!(store.verify_deep().await.unwrap().is_whole());
    place.drop_schema().await;
}

#[tokio::test]
async fn a_store_that_a_newer_node_made_is_not_for_version_1() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("fresh");
    drop(Store::open(&place.url(), Options::default()).await.unwrap());
    let sql = format!("SELECT min(compatible) FROM {}.versions", place.name);
    let oldest: i32 = place.connect().await.query_one(&sql, &[]).await.unwrap().get(0);
    assert!(oldest > 1, "it has nothing that version 1 calls");
    place.drop_schema().await;
}
