//! PostgreSQL with large payloads and file chunks in an object store beside it. Needs the servers of `postgres` and
//! `object::s3`.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use milepost_model::{Event, Source};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::conformance::{self, Place};
use milepost_store::postgres::{LeaseClock, PostgresBackend, PostgresOptions};
use milepost_store::{Append, Backend, DeleteMode, Error, MessageQuery, Options, Result, Store};
use serde_json::json;

use crate::object::s3;
use crate::postgres::{Scheme, server};
use crate::support::{claim, create, step, user};

/// A schema and a bucket that nobody else uses.
struct Both {
    scheme: Scheme,
    bucket: String,
}

#[async_trait]
impl Place for Both {
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
        let mut options = PostgresOptions::default();
        options.clock = LeaseClock::Source;
        options.connections = 4;
        options.blobs = Some(self.bucket.clone());
        options.blobs_above = 0;
        Ok(Arc::new(PostgresBackend::open(&self.scheme.url(), &options, source).await?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_rules_hold_with_payloads_in_s3() {
    if server().is_none() || s3::bucket().is_none() {
        return;
    }
    conformance::all(|| Both { scheme: Scheme::new("hybrid"), bucket: s3::Prefix::new("hybrid").url() }).await.unwrap();
}

fn objects(bucket: &Path) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(bucket).into_iter().flatten().map(|entry| entry.unwrap()) {
        count += if entry.path().is_dir() { objects(&entry.path()) } else { 1 };
    }
    count
}

/// Bytes of the largest blob that the database itself holds.
async fn largest_row(scheme: &Scheme) -> i64 {
    let sql = format!("SELECT coalesce(max(octet_length(body)), 0)::int8 FROM {}.blobs", scheme.name);
    scheme.connect().await.query_one(&sql, &[]).await.unwrap().get(0)
}

fn options(bucket: &Path) -> Options {
    let mut options = Options::default();
    options.blobs = Some(format!("file://{}", bucket.display()));
    options
}

async fn hits(store: &Store, word: &str) -> usize {
    let terms = vec![Term { text: word.to_owned(), prefix: false }];
    let query = TextQuery { terms, sessions: Vec::new(), limit: 10, ..TextQuery::default() };
    store.backend().search(store.workspace(), query).await.unwrap().unwrap().len()
}

/// Words that do not compress well, one of them to search for.
fn large_text() -> String {
    crate::keep::noise(1, 60_000) + " heliotrope"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_lie_in_the_bucket_and_read_as_if_they_did_not() {
    if server().is_none() {
        return;
    }
    let (scheme, dir) = (Scheme::new("outside"), tempfile::tempdir().unwrap());
    let store = Store::open(&scheme.url(), options(dir.path())).await.unwrap();
    let writer = create(&store).await;
    let text = large_text();
    writer.append(step(1).message(user(&text))).await.unwrap();
    let chunk: Vec<u8> = crate::keep::noise(2, 100_000).into_bytes();
    let blob = writer.put_blob(&chunk).await.unwrap();
    writer.append(Append::new().event_with(Event::new("chunk", json!({})), vec![blob])).await.unwrap();
    assert_eq!(objects(dir.path()), 2);
    writer.put_blob(&chunk).await.unwrap();
    assert_eq!(objects(dir.path()), 2, "what is there is not sent again");
    assert!(largest_row(&scheme).await < 100, "the database holds stubs only");
    let usage = store.backend().usage(store.workspace()).await.unwrap();
    assert!(usage.blobs.bytes > 60_000, "{:?}", usage.blobs);

    assert_eq!(hits(&store, "heliotrope").await, 1, "a text in the bucket is found");
    store.reindex().await.unwrap();
    assert_eq!(hits(&store, "heliotrope").await, 1, "also when indexed anew");
    assert!(store.verify_deep().await.unwrap().is_whole());
    let messages = store.messages(writer.id(), &MessageQuery::default()).await.unwrap();
    assert_eq!(messages.last().unwrap().message.text(), text);

    // Without the bucket it says what is missing; with another, what is lost.
    let id = writer.id();
    writer.release().await.unwrap();
    store.close().await.unwrap();
    let store = Store::open(&scheme.url(), Options::default()).await.unwrap();
    let refused = store.messages(id, &MessageQuery::default()).await.unwrap_err();
    assert!(refused.to_string().contains("blobs = "), "{refused}");
    store.close().await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = Store::open(&scheme.url(), options(elsewhere.path())).await.unwrap();
    let lost = store.messages(id, &MessageQuery::default()).await;
    assert!(matches!(lost, Err(Error::Corrupt { .. })), "{lost:?}");
    assert_eq!(store.verify().await.unwrap().problems.len(), 2, "the payload and the chunk");
    store.close().await.unwrap();
    scheme.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_fails_refuses_the_append_and_nothing_refers_to_it() {
    if server().is_none() {
        return;
    }
    let (scheme, dir) = (Scheme::new("failing"), tempfile::tempdir().unwrap());
    let bucket = dir.path().join("bucket");
    let store = Store::open(&scheme.url(), options(&bucket)).await.unwrap();
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    // Where the directory was there is a file now.
    std::fs::remove_dir_all(&bucket).unwrap();
    std::fs::write(&bucket, "").unwrap();
    let failed = writer.append(step(2).message(user(&large_text()))).await;
    assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
    assert!(writer.put_blob(&[7; 50_000]).await.is_err() || largest_row(&scheme).await < 50_000);
    std::fs::remove_file(&bucket).unwrap();
    std::fs::create_dir(&bucket).unwrap();
    writer.append(step(3).message(user(&large_text()))).await.unwrap();
    assert!(store.verify().await.unwrap().is_whole());
    let messages = store.messages(writer.id(), &MessageQuery::default()).await.unwrap();
    assert_eq!(messages.len(), 3, "what was refused is not there");
    writer.release().await.unwrap();
    store.close().await.unwrap();
    scheme.drop_schema().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_refused_append_left_in_the_bucket_is_collected() {
    if server().is_none() {
        return;
    }
    let (scheme, dir) = (Scheme::new("orphans"), tempfile::tempdir().unwrap());
    let open = async |orphan_ms: i64| {
        let mut postgres = PostgresOptions::default();
        postgres.blobs = options(dir.path()).blobs;
        postgres.orphan_ms = orphan_ms;
        let source = milepost_store::system_source().unwrap();
        let backend = PostgresBackend::open(&scheme.url(), &postgres, source.clone()).await.unwrap();
        let mut options = Options::default();
        options.source = Some(source);
        options.blob_grace_ms = 0;
        Store::with_backend(Arc::new(backend), options).await.unwrap()
    };
    let store = open(3_600_000).await;
    let writer = create(&store).await;
    writer.append(step(1).message(user(&large_text()))).await.unwrap();
    let taken = store.write(writer.id(), &claim().take_over()).await.unwrap();
    let refused = writer.append(step(2).message(user(&format!("{} stale", large_text())))).await;
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    assert_eq!(objects(dir.path()), 2, "the object came first");
    store.collect(&claim(), false).await.unwrap();
    assert_eq!(objects(dir.path()), 2, "it is left alone as long as its row may be on the way");
    store.close().await.unwrap();

    let store = open(0).await;
    store.collect(&claim(), true).await.unwrap();
    assert_eq!(objects(dir.path()), 2, "a dry run changes nothing");
    store.collect(&claim(), false).await.unwrap();
    assert_eq!(objects(dir.path()), 1, "what is needed stays");
    assert!(store.verify().await.unwrap().is_whole());
    let id = taken.id();
    store.delete(id, DeleteMode::Refuse, &claim().take_over(), false).await.unwrap();
    store.collect(&claim(), false).await.unwrap();
    assert_eq!(objects(dir.path()), 0, "and goes with its session");
    store.close().await.unwrap();
    scheme.drop_schema().await;
}
