//! A store in a database through its public face: opening, clocks, shared commits, words, what lies in clear.

use std::sync::Arc;

use milepost_model::{ManualClock, SessionPatch, Source, WorkspaceId};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::{
    Append, Change, Claim, Error, MasterKey, MessageQuery, NewSession, Options, Redactor, Store, block_on,
    system_source,
};

use super::cluster::Cluster;
use super::{Scheme, server};
use crate::object::{LEAKED, leak};
use crate::support::{START, claim, create, step, user};

pub async fn count(store: &Store, text: &str, prefix: bool) -> usize {
    let terms = vec![Term { text: text.into(), prefix }];
    let query = TextQuery { terms, sessions: Vec::new(), limit: 1000, ..TextQuery::default() };
    store.backend().search(store.workspace(), query).await.unwrap().expect("there is a text index").len()
}

#[tokio::test]
async fn a_store_is_opened_by_either_name_of_its_url() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("names");
    let url = place.url().replacen("postgresql://", "postgres://", 1);
    let store = Store::open(&url, Options::default()).await.unwrap();
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    store.close().await.unwrap();
    let store = Store::open(&url.replacen("postgres://", "postgresql://", 1), Options::default()).await.unwrap();
    assert_eq!(store.messages(writer.id(), &MessageQuery::default()).await.unwrap().len(), 1);
    assert!(store.verify_deep().await.unwrap().is_whole());
    place.drop_schema().await;
}

#[test]
fn a_program_without_a_runtime_can_use_it() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("blocking");
    let store = block_on(Store::open(&place.url(), Options::default())).unwrap();
    let writer = block_on(store.create(NewSession::default(), &claim())).unwrap();
    for number in 0..20 {
        block_on(writer.append(step(number))).unwrap();
    }
    assert_eq!(block_on(store.messages(writer.id(), &MessageQuery::default())).unwrap().len(), 20);
    block_on(store.close()).unwrap();
    assert!(matches!(block_on(store.session(writer.id())), Err(Error::Closed)));
}

#[tokio::test]
async fn a_server_that_cannot_be_meant_is_an_error_without_the_password() {
    for url in ["postgres://me:hunter2@127.0.0.1:1/none", "postgres://me:hunter2@no.such.host.invalid/none"] {
        let error = Store::open(url, Options::default()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    if let Some(url) = server() {
        let (front, _) = url.rsplit_once('/').unwrap();
        let error = Store::open(&format!("{front}/no_such_database"), Options::default()).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[tokio::test]
async fn leases_go_by_the_servers_clock() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("clock");
    let mut options = Options::default();
    // Years behind: whoever believed it would find every lease expired, or none.
    options.source = Some(Source::seeded(3, Arc::new(ManualClock::new(START))));
    let store = Store::open(&place.url(), options.clone()).await.unwrap();
    let writer = store.create(NewSession::default(), &Claim::new("first")).await.unwrap();
    let lease = store.backend().session(store.workspace(), writer.id()).await.unwrap().unwrap().lease;
    let now = system_source().unwrap().now();
    let left = lease.until.since_ms(now);
    assert!((1..=options.lease_ttl_ms + 5000).contains(&left), "the lease lasts {left} ms");
    place.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_append_at_once_share_commits() {
    const SESSIONS: usize = 64;
    if server().is_none() {
        return;
    }
    let place = Scheme::new("group");
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    let mut writers = Vec::new();
    for _ in 0..SESSIONS {
        writers.push(create(&store).await);
    }
    for round in 0..3 {
        let tasks: Vec<_> = writers
            .drain(..)
            .map(|writer| {
                tokio::spawn(async move {
                    writer.append(Append::new().message(user(&format!("round {round}")))).await.unwrap();
                    writer
                })
            })
            .collect();
        for task in tasks {
            writers.push(task.await.unwrap());
        }
    }
    let sql = format!("SELECT count(DISTINCT xmin::text), count(*) FROM {}.entries WHERE kind = 1", place.name);
    let row = place.connect().await.query_one(&sql, &[]).await.unwrap();
    let (commits, messages): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!(messages, 3 * SESSIONS as i64);
    assert!(commits * 3 <= messages, "{messages} messages took {commits} commits");
    place.drop_schema().await;
}

#[tokio::test]
async fn words_are_found_as_in_sqlite() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("words");
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    let writer = create(&store).await;
    for text in ["The linker is slow today", "Slow food for the linker", "Crème brûlée", "Москва слезам не верит"]
    {
        writer.append(Append::new().message(user(text))).await.unwrap();
    }
    let long = format!("{} capybara {} last words", "filler text ".repeat(20_000), "the same the same ".repeat(20_000));
    writer.append(Append::new().message(user(&long))).await.unwrap();
    for (text, prefix, hits) in [
        ("LINKER", false, 2),
        ("linker is slow", false, 1),
        ("slow linker", false, 0),
        ("link", false, 0),
        ("link", true, 2),
        ("creme brulee", false, 1),
        ("слезам", false, 1),
        ("text capybara the same", false, 1),
        ("same last wor", true, 1),
        ("!!!", true, 0),
        ("a\0b", false, 0),
    ] {
        assert_eq!(count(&store, text, prefix).await, hits, "{text:?}");
    }
    let both = ["capybara", "last"].map(|text| Term { text: text.into(), prefix: false }).to_vec();
    let query = TextQuery { terms: both, sessions: Vec::new(), limit: 9, ..TextQuery::default() };
    assert_eq!(store.backend().search(store.workspace(), query).await.unwrap().unwrap().len(), 1, "far apart");

    let redactor = Redactor::literal("capybara", "[gone]").unwrap();
    store.redact(&redactor, "it leaked", &claim().take_over(), false).await.unwrap();
    assert_eq!((count(&store, "capybara", false).await, count(&store, "gone", false).await), (0, 1));
    store.reindex().await.unwrap();
    assert_eq!((count(&store, "capybara", false).await, count(&store, "slow", false).await), (0, 2));
    assert!(store.verify_deep().await.unwrap().is_whole());
    place.drop_schema().await;
}

/// Every row of every table is looked at, as text and as bytes.
async fn lies_in_tables(place: &Scheme, text: &str) -> Option<String> {
    let client = place.connect().await;
    let sql = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = $1";
    for row in client.query(sql, &[&place.name]).await.unwrap() {
        let table: String = row.get(0);
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        let sql = format!(
            "SELECT count(*) FROM {}.{table} t WHERE t::text ILIKE '%{text}%' OR t::text LIKE '%{hex}%'",
            place.name
        );
        if client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            return Some(table);
        }
    }
    None
}

#[tokio::test]
async fn nothing_of_what_was_redacted_lies_in_a_table() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("redacted");
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    let writer = create(&store).await;
    leak(&writer).await;
    let first = LEAKED.split('-').next().unwrap();
    assert_eq!(count(&store, LEAKED, false).await, 2);
    store.put_record("setting", "one", None, None, LEAKED.as_bytes()).await.unwrap();
    assert!(lies_in_tables(&place, LEAKED).await.is_some(), "the test does not see it");
    let redactor = Redactor::literal(LEAKED, "[gone]").unwrap();
    let done = store.redact(&redactor, "it leaked", &claim().take_over(), false).await.unwrap();
    assert_eq!((done.entries, done.checkpoints, done.records, done.lingers_ms), (4, 1, 1, 0));
    assert_eq!((count(&store, LEAKED, false).await, count(&store, "gone", false).await), (0, 2));
    for part in [LEAKED, first] {
        assert_eq!(lies_in_tables(&place, part).await, None);
    }
    assert!(store.verify_deep().await.unwrap().is_whole());
    place.drop_schema().await;
}

#[tokio::test]
async fn a_damaged_text_index_is_noticed_and_rebuilt() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("index");
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    let writer = create(&store).await;
    writer.append(Append::new().message(user("find me"))).await.unwrap();
    writer.release().await.unwrap();
    assert_eq!(count(&store, "find me", false).await, 1);
    let sql = format!("UPDATE {}.texts SET words = '''other'':1'", place.name);
    place.connect().await.batch_execute(&sql).await.unwrap();
    assert!(!store.verify_deep().await.unwrap().is_whole());
    store.reindex().await.unwrap();
    assert!(store.verify_deep().await.unwrap().is_whole());
    assert_eq!(count(&store, "find me", false).await, 1);
    place.drop_schema().await;
}

/// What a process left behind is found by a search of another, and indexed by it without one, too.
#[tokio::test]
async fn texts_that_wait_are_indexed_by_whoever_comes() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("waiting");
    let client = place.connect().await;
    let waiting = async || -> i64 {
        let sql = format!("SELECT count(*) FROM {}.unindexed", place.name);
        client.query_one(&sql, &[]).await.unwrap().get(0)
    };
    for way in ["by a search", "by itself"] {
        let one = Store::open(&place.url(), Options::default()).await.unwrap();
        let writer = create(&one).await;
        for _ in 0..40 {
            writer.append(Append::new().message(user(&format!("left behind, {way}")))).await.unwrap();
        }
        one.close().await.unwrap();
        assert!(waiting().await > 0, "{way}: nothing was left behind");
        let other = Store::open(&place.url(), Options::default()).await.unwrap();
        if way == "by itself" {
            let start = std::time::Instant::now();
            while waiting().await > 0 {
                assert!(start.elapsed().as_secs() < 60, "nobody indexes");
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
        assert_eq!(count(&other, &format!("behind, {way}"), false).await, 40);
        assert_eq!(waiting().await, 0);
        other.close().await.unwrap();
    }
    place.drop_schema().await;
}

#[tokio::test]
async fn no_text_lies_in_clear_in_an_encrypted_workspace() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("hidden");
    // The store is made by someone who does not encrypt: it has a text index.
    let plain = Store::open(&place.url(), Options::default()).await.unwrap();
    create(&plain).await.append(Append::new().message(user("zanzibar in clear"))).await.unwrap();
    let mut options = Options::default();
    options.workspace = WorkspaceId::new("hidden").unwrap();
    options.keys.master = Some(MasterKey::from_bytes([7; 32]));
    let hidden = Store::open(&place.url(), options).await.unwrap();
    let patch = SessionPatch::new().title("quokka title").tags(["quokka tag"]);
    let writer = hidden.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    writer.append(Append::new().message(user("quokka message"))).await.unwrap();
    writer.append(Append::new().message(user(&"quokka at length ".repeat(5000)))).await.unwrap();
    let client = place.connect().await;
    let mut seen = String::new();
    for table in ["sessions", "timelines", "entries", "marks", "keyframes", "blobs", "records", "texts"] {
        // Bytes are shown as hex: both forms are looked for.
        let rows = client.query(&format!("SELECT x::text FROM {}.{table} x", place.name), &[]).await.unwrap();
        rows.iter().for_each(|row| seen += row.get::<_, &str>(0));
    }
    assert!(seen.contains("zanzibar"), "the test would notice");
    assert!(!seen.contains("quokka") && !seen.contains("71756f6b6b61"));
    assert_eq!(count(&plain, "zanzibar", false).await, 1);
    assert_eq!(hidden.messages(writer.id(), &MessageQuery::default()).await.unwrap().len(), 2);
    place.drop_schema().await;
}

#[tokio::test]
async fn tables_of_a_newer_program_are_left_alone() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("newer");
    Store::open(&place.url(), Options::default()).await.unwrap().close().await.unwrap();
    let client = place.connect().await;
    // A version that older programs can work with is no reason to refuse.
    let insert = |version: i32, compatible: i32| {
        format!("INSERT INTO {}.versions (version, compatible) VALUES ({version}, {compatible})", place.name)
    };
    client.batch_execute(&insert(98, 1)).await.unwrap();
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    create(&store).await.append(step(1)).await.unwrap();
    client.batch_execute(&insert(99, 99)).await.unwrap();
    let refused = Store::open(&place.url(), Options::default()).await.unwrap_err();
    assert!(matches!(refused, Error::Newer { found: 99, .. }), "{refused}");
    place.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_programs_make_the_tables_at_once() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("race");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let url = place.url();
            tokio::spawn(async move {
                let store = Store::open(&url, Options::default()).await.unwrap();
                create(&store).await.append(step(1)).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    assert!(store.verify().await.unwrap().is_whole());
    place.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_is_told_of_what_grows() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("hints");
    let store = Store::open(&place.url(), Options::default()).await.unwrap();
    let other = Store::open(&place.url(), Options::default()).await.unwrap();
    let mut changes = other.changes().unwrap();
    let writer = create(&store).await;
    let expected = Change::Session(store.workspace().clone(), writer.id());
    // Before the server was asked to tell, hints are lost.
    let told = async {
        loop {
            writer.append(step(1)).await.unwrap();
            match changes.next().await.unwrap() {
                Change::Unknown => {}
                change => break assert_eq!(change, expected),
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), told).await.unwrap();
    place.drop_schema().await;
}

#[tokio::test]
async fn connections_are_encrypted_and_certificates_checked_when_asked() {
    let Some(cluster) = Cluster::start_encrypted() else { return };
    let open = async |host: &str, rest: &str| {
        let url = format!("postgres://postgres@{host}:{}/postgres?{rest}", cluster.port());
        let store = Store::open(&url, Options::default()).await?;
        create(&store).await.append(step(1)).await.map(drop)
    };
    open("127.0.0.1", "sslmode=prefer").await.unwrap();
    open("127.0.0.1", "sslmode=require").await.unwrap();
    let root = format!("sslmode=verify-full&sslrootcert={}", cluster.certificate().display());
    open("localhost", &root).await.unwrap();
    // In clear, for another name, and signed by nobody that the machine knows.
    for (host, rest) in
        [("127.0.0.1", "sslmode=disable"), ("127.0.0.1", root.as_str()), ("localhost", "sslmode=verify-full")]
    {
        let refused = open(host, rest).await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable { .. } | Error::Invalid { .. }), "{host} {rest}: {refused:?}");
    }
}
