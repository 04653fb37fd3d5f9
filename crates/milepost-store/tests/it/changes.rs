//! Following a store: hints come of what this process writes, and a follower that looks at every hint misses nothing
//! that any process wrote.

use std::time::Duration;

use milepost_model::{Seq, SessionId};
use milepost_store::{Change, Changes, Options, Store};

use crate::support::{Scratch, create, step, user};

/// Reads a session from where it stopped at every hint, until it has this many messages.
async fn follow(store: &Store, mut changes: Changes, session: SessionId, messages: usize) -> Vec<String> {
    let (mut seen, mut next) = (Vec::new(), Seq(0));
    while seen.len() < messages {
        changes.next().await.expect("the store is open");
        for entry in store.entries(session, next, Seq(u64::MAX)).await.unwrap() {
            assert_eq!(entry.at.seq, next, "no entry is passed over");
            next = next.next();
            if let Some(milepost_model::Body::Message(message)) = entry.body {
                seen.push(message.text().into_owned());
            }
        }
    }
    seen
}

#[tokio::test]
async fn ones_own_writes_are_told_at_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let mut changes = store.changes().unwrap();
    let expected = Some(Change::Session(store.workspace().clone(), writer.id()));
    writer.append(step(1)).await.unwrap();
    let mut hint = changes.next().await;
    while hint == Some(Change::Unknown) {
        hint = changes.next().await;
    }
    assert_eq!(hint, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_misses_nothing_that_others_write() {
    let directory = tempfile::tempdir().unwrap();
    let urls = [
        format!("sqlite:{}/milepost.db", directory.path().display()),
        format!("file://{}/bucket", directory.path().display()),
    ];
    for url in urls {
        let (ours, theirs) = (open(&url).await, open(&url).await);
        let writer = create(&theirs).await;
        let changes = ours.changes().unwrap();
        let (store, session) = (ours.clone(), writer.id());
        let follower = tokio::spawn(async move { follow(&store, changes, session, 40).await });
        for number in 0..40 {
            writer.append(milepost_store::Append::new().message(user(&number.to_string()))).await.unwrap();
        }
        let seen = tokio::time::timeout(Duration::from_secs(60), follower).await.expect("it looks in the end").unwrap();
        assert_eq!(seen, (0..40).map(|number| number.to_string()).collect::<Vec<_>>());
        ours.close().await.unwrap();
        theirs.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_follower_is_told_to_look_at_everything() {
    let store = Store::open("memory:", Options::default()).await.unwrap();
    let writer = create(&store).await;
    let mut changes = store.changes().unwrap();
    for number in 0..2000 {
        writer.append(step(number)).await.unwrap();
    }
    assert_eq!(changes.next().await, Some(Change::Unknown), "hints were lost, and it knows");
}

#[tokio::test]
async fn following_ends_when_the_store_is_closed() {
    let store = Store::open("memory:", Options::default()).await.unwrap();
    let mut changes = store.changes().unwrap();
    store.close().await.unwrap();
    while let Some(change) = changes.next().await {
        assert_eq!(change, Change::Unknown);
    }
}

async fn open(url: &str) -> Store {
    Store::open(url, Options::default()).await.unwrap()
}
