//! Servers that end in the middle of work, locks that nobody lets go, answers that do not come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use milepost_model::{BatchId, Source};
use milepost_store::postgres::{PostgresBackend, PostgresOptions};
use milepost_store::{Append, Claim, Error, MessageQuery, NewSession, Options, SessionWriter, Store, system_source};

use super::cluster::Cluster;
use super::{Scheme, server};
use crate::support::{create, user};

async fn open(place: &Scheme, change: impl FnOnce(&mut PostgresOptions)) -> Store {
    let mut options = PostgresOptions::default();
    change(&mut options);
    let backend = PostgresBackend::open(&place.url(), &options, system_source().unwrap()).await.unwrap();
    Store::with_backend(Arc::new(backend), Options::default()).await.unwrap()
}

async fn texts(store: &Store, writer: &SessionWriter) -> Vec<String> {
    let found = store.messages(writer.id(), &MessageQuery::default()).await.unwrap();
    found.iter().map(|found| found.message.text().into_owned()).collect()
}

/// Appends until the store says that it is there, with the same batch id each time. Returns how often it failed.
async fn insist(writer: &SessionWriter, ids: &Source, text: &str) -> usize {
    let id: BatchId = ids.id();
    for failures in 0..200 {
        match writer.append(Append::new().message(user(text)).batch(id)).await {
            Ok(_) => return failures,
            Err(Error::Io { .. } | Error::Unavailable { .. } | Error::Busy { .. }) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(other) => panic!("{text} was refused: {other}"),
        }
    }
    panic!("{text} could not be stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_while_many_append_loses_nothing_acknowledged() {
    const WRITERS: usize = 6;
    if server().is_none() {
        return;
    }
    let Some(cluster) = Cluster::start() else { return };
    let place = Scheme::on(&cluster.url(), "crash");
    let store = open(&place, |_| {}).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let (store, is_over) = (store.clone(), Arc::clone(&is_over));
        let own = create(&store).await;
        tasks.push(tokio::spawn(async move {
            let (ids, mut said, mut failures) = (system_source().unwrap(), Vec::new(), 0);
            while !is_over.load(Ordering::Relaxed) {
                let text = format!("{writer} says {}", said.len());
                failures += insist(&own, &ids, &text).await;
                said.push(text);
            }
            (own, said, failures)
        }));
    }
    let cluster = tokio::task::spawn_blocking(move || {
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(400));
            cluster.crash();
        }
        std::thread::sleep(Duration::from_millis(400));
        cluster
    })
    .await
    .unwrap();
    is_over.store(true, Ordering::Relaxed);
    let (mut writers, mut interrupted) = (Vec::new(), 0);
    for task in tasks {
        let (writer, said, failures) = task.await.unwrap();
        interrupted += failures;
        writers.push((writer, said));
    }
    assert!(interrupted > 0, "nothing was interrupted");
    cluster.crash();
    let again = open(&place, |_| {}).await;
    for (writer, said) in &writers {
        assert!(said.len() > 10, "only {} messages were said", said.len());
        assert_eq!(texts(&again, writer).await, *said, "each once, in order");
    }
    let verified = again.verify().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_is_an_error_that_stored_nothing() {
    if server().is_none() {
        return;
    }
    let Some(cluster) = Cluster::start() else { return };
    let place = Scheme::on(&cluster.url(), "away");
    let store = open(&place, |options| options.tries = 2).await;
    let writer = create(&store).await;
    writer.append(Append::new().message(user("before"))).await.unwrap();
    cluster.stop();
    // The first may find a connection that has not noticed yet.
    for _ in 0..3 {
        let refused = writer.append(Append::new().message(user("lost"))).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. } | Error::Io { .. })), "{refused:?}");
    }
    let error = store.session(writer.id()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "it says where: {error}");
    cluster.start_again();
    writer.append(Append::new().message(user("after"))).await.unwrap();
    assert_eq!(texts(&store, &writer).await, ["before", "after"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_server_ends_are_made_anew() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("ended");
    let url = format!("{}&application_name={}", place.url(), place.name);
    let backend = PostgresBackend::open(&url, &PostgresOptions::default(), system_source().unwrap()).await.unwrap();
    let store = Store::with_backend(Arc::new(backend), Options::default()).await.unwrap();
    let (writer, ids) = (create(&store).await, system_source().unwrap());
    let other = place.connect().await;
    for number in 0..5 {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1";
        let ended: i64 = other.query_one(sql, &[&place.name]).await.unwrap().get(0);
        assert!(ended > 0, "the test ends nothing");
        // Reading needs no one's help.
        store.session(writer.id()).await.unwrap();
        insist(&writer, &ids, &format!("number {number}")).await;
    }
    assert_eq!(texts(&store, &writer).await, (0..5).map(|number| format!("number {number}")).collect::<Vec<_>>());
    place.drop_schema().await;
}

/// Locks a session's row as a stuck process would.
async fn stand_in_the_way(place: &Scheme) -> tokio_postgres::Client {
    let client = place.connect().await;
    client.batch_execute(&format!("BEGIN; SELECT * FROM {}.sessions FOR UPDATE", place.name)).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_statement_timeout_is_an_error_and_the_append_can_be_sent_again() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("timeout");
    let url = format!("{}&options=-c%20statement_timeout%3D300", place.url());
    let backend = PostgresBackend::open(&url, &PostgresOptions::default(), system_source().unwrap()).await.unwrap();
    let store = Store::with_backend(Arc::new(backend), Options::default()).await.unwrap();
    let writer = create(&store).await;
    let in_the_way = stand_in_the_way(&place).await;
    let id: BatchId = system_source().unwrap().id();
    let append = || Append::new().message(user("at last")).batch(id);
    let refused = writer.append(append()).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    in_the_way.batch_execute("ROLLBACK").await.unwrap();
    writer.append(append()).await.unwrap();
    assert_eq!(texts(&store, &writer).await, ["at last"]);
    place.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_does_not_come_is_settled_by_reading_back() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("silence");
    let store = open(&place, |options| options.statement_ms = 400).await;
    let writer = create(&store).await;
    writer.append(Append::new().message(user("first"))).await.unwrap();
    let in_the_way = stand_in_the_way(&place).await;
    let id: BatchId = system_source().unwrap().id();
    let append = || Append::new().message(user("second")).batch(id);
    let unknown = writer.append(append()).await;
    assert!(matches!(unknown, Err(Error::Io { .. })), "{unknown:?}");
    in_the_way.batch_execute("ROLLBACK").await.unwrap();
    writer.append(append()).await.unwrap();
    assert_eq!(texts(&store, &writer).await, ["first", "second"], "once, whatever became of the first try");
    assert!(store.verify().await.unwrap().is_whole());
    place.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_epoch_is_refused_on_another_machine() {
    if server().is_none() {
        return;
    }
    let place = Scheme::new("epoch");
    let (one, two) = (open(&place, |_| {}).await, open(&place, |_| {}).await);
    let writer = one.create(NewSession::default(), &Claim::new("one")).await.unwrap();
    writer.append(Append::new().message(user("mine"))).await.unwrap();
    assert!(
        matches!(two.write(writer.id(), &Claim::new("two")).await, Err(Error::Held { holder, .. }) if holder == "one")
    );
    let taken = two.write(writer.id(), &Claim::new("two").take_over()).await.unwrap();
    taken.append(Append::new().message(user("taken"))).await.unwrap();
    let refused = writer.append(Append::new().message(user("late"))).await;
    assert!(matches!(&refused, Err(Error::Fenced { holder, .. }) if holder == "two"), "{refused:?}");
    assert_eq!(texts(&one, &taken).await, ["mine", "taken"]);
    place.drop_schema().await;
}
