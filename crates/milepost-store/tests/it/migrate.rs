//! Moving a workspace from one store to another and back: nothing is lost, nothing is changed, whatever interrupts it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use milepost_model::{ManualClock, Message, Role, Source, WorkspaceId};
use milepost_store::memory::MemoryBackend;
use milepost_store::{Append, Backend, Error, NewSession, Options, Phase, Progress, Store, migrate, open_backend};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::child::{Job, Voice, What, command, say};
use crate::golden::{Kind, describe};
use crate::harness::Rng;
use crate::keep::noise;
use crate::object::s3::Prefix;
use crate::postgres::Scheme;
use crate::support::{Scratch, claim, state, step, url, user};

fn source() -> Source {
    Source::seeded(7, Arc::new(ManualClock::new(milepost_model::Timestamp(1_800_000_000_000))))
}

async fn sqlite(path: &Path, options: &Options) -> Arc<dyn Backend> {
    open_backend(&url(path), options, &source()).await.unwrap()
}

async fn all(from: &dyn Backend, to: &dyn Backend) -> Result<Vec<milepost_store::Migrated>, Error> {
    let mut done = Vec::new();
    for workspace in from.workspaces().await? {
        done.push(migrate(from, to, &workspace, &source(), &mut |_| {}).await?);
    }
    Ok(done)
}

/// Moves a store of each kind over `stops` and back into a file: nothing is lost and nothing changes.
async fn go_around(stops: impl AsyncFn() -> Vec<Arc<dyn Backend>>) {
    for kind in Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let golden = kind.copy(dir.path());
        let before = std::fs::read(&golden).unwrap();
        let mut from = sqlite(&golden, &Options::default()).await;
        for to in stops().await {
            let done = all(&*from, &*to).await.unwrap();
            assert!(done.iter().all(|done| done.entries > 0 && done.copied == done.entries), "{done:?}");
            from.close().await.unwrap();
            from = to;
        }
        assert!(before == std::fs::read(&golden).unwrap(), "{}: the source was changed", kind.name());

        let back = dir.path().join("back.db");
        let to = open_backend(&url(&back), &kind.options(source()), &source()).await.unwrap();
        all(&*from, &*to).await.unwrap();
        // Once more: there is nothing left to do.
        let again = all(&*from, &*to).await.unwrap();
        assert!(again.iter().all(|done| done.copied == 0 && done.entries > 0), "{again:?}");
        to.close().await.unwrap();

        let store = kind.open_later(&back).await;
        let verified = store.verify_deep().await.unwrap();
        assert!(verified.is_whole(), "{}: {:?}", kind.name(), verified.problems);
        let (found, mut expected) = (describe(&store).await, kind.expected());
        // Blobs that nothing refers to are left behind.
        expected["stats"] = found["stats"].clone();
        crate::golden::assert_described(&found, &expected, kind.name());
    }
}

/// The golden files hold everything the format can hold, in clear and encrypted.
#[tokio::test]
async fn a_golden_store_is_the_same_after_a_round_trip() {
    go_around(async || vec![Arc::new(MemoryBackend::new(source())) as Arc<dyn Backend>]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_golden_store_is_the_same_after_a_trip_over_servers() {
    let (Some(server), Some(_)) = (crate::postgres::server(), crate::object::s3::bucket()) else { return };
    go_around(async || {
        let (scheme, prefix) = (Scheme::on(&server, "trip"), Prefix::new("trip"));
        let open = async |url: String| open_backend(&url, &Options::default(), &source()).await.unwrap();
        vec![open(scheme.url()).await, open(prefix.url()).await]
    })
    .await;
}

/// A migration in a process of its own, which tells how far it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Trip {
    pub from: String,
    pub to: String,
}

pub async fn travel(trip: &Trip) {
    let source = milepost_store::system_source().unwrap();
    let from = open_backend(&trip.from, &Options::default(), &source).await.unwrap();
    let to = open_backend(&trip.to, &Options::default(), &source).await.unwrap();
    for workspace in from.workspaces().await.unwrap() {
        let mut tell = |progress: &Progress| {
            say(&format!("{:?} {} of {}", progress.phase, progress.entries, progress.entries_total));
        };
        let done = migrate(&*from, &*to, &workspace, &source, &mut tell).await.unwrap();
        say(&format!("moved {}", done.entries));
    }
    from.close().await.unwrap();
    to.close().await.unwrap();
}

/// From SQLite to PostgreSQL to S3 and back to SQLite, killed four times on each part of the way: every hash stays.
#[test]
fn a_trip_over_all_stores_survives_kills() {
    let (Some(_), Some(_)) = (crate::postgres::server(), crate::object::s3::bucket()) else { return };
    let runtime = crate::child::runtime();
    let scratch = Scratch::new();
    let expected = runtime.block_on(async {
        let store = scratch.open().await;
        fill(&store, 24).await;
        let expected = describe(&store).await;
        store.close().await.unwrap();
        expected
    });
    let (scheme, prefix) = (Scheme::new("travel"), Prefix::new("travel"));
    let back = url(&scratch.dir.path().join("back.db"));
    let stops = [scratch.url(), scheme.url(), prefix.url(), back];
    let mut rng = Rng::new(9);
    for pair in stops.windows(2) {
        let trip = Trip { from: pair[0].clone(), to: pair[1].clone() };
        let job = Job { store: scratch.path(), seed: 0, what: What::Travel(trip) };
        let mut reached = 0;
        for life in 0..4 {
            let mut voice = Voice::of(command(&job).spawn().unwrap());
            for _ in 0..3 {
                voice.wait_for("Copying ");
            }
            std::thread::sleep(Duration::from_micros(rng.below(5000) as u64));
            let heard = voice.kill();
            let copied = heard.iter().filter_map(|line| line.strip_prefix("Copying ")?.split(' ').next()?.parse().ok());
            let copied: u64 = copied.max().unwrap();
            assert!(copied > reached, "life {life} went on from {reached} and copied to {copied}");
            reached = copied;
        }
        Voice::of(command(&job).spawn().unwrap()).finish();
        runtime.block_on(async {
            let store = Store::open(&pair[1], scratch.options.clone()).await.unwrap();
            let verified = store.verify_deep().await.unwrap();
            assert!(verified.is_whole(), "{:?}", verified.problems);
            crate::golden::assert_described(&describe(&store).await, &expected, &pair[1]);
            store.close().await.unwrap();
        });
    }
    runtime.block_on(scheme.drop_schema());
}

async fn fill(store: &Store, sessions: u64) {
    let mut parent = None;
    for number in 0..sessions {
        let writer = match parent {
            Some(at) if number % 3 == 2 => store.branch(at, NewSession::default(), &claim()).await.unwrap(),
            _ => store.create(NewSession::default(), &claim()).await.unwrap(),
        };
        for step_number in 0..40 {
            let receipt = writer.append(step(step_number)).await.unwrap();
            parent = Some(receipt.first);
        }
        let large = noise(number, 60_000);
        writer.append(Append::new().message(Message::new(Role::Tool, large))).await.unwrap();
        if number % 2 == 1 {
            writer.restore(parent.unwrap()).await.unwrap();
            writer
                .append(Append::new().message(user("again")).state(state(json!({ "memory": { "n": number } }))))
                .await
                .unwrap();
        }
        writer.release().await.unwrap();
        store.put_record("wake-up", &format!("{number}"), None, None, b"soon").await.unwrap();
    }
}

/// Given up at any moment and begun again, a migration ends with the same store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_migration_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    fill(&store, 12).await;
    let expected = describe(&store).await;
    store.close().await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("to.db");
    let options = Options::default();
    let workspace = WorkspaceId::default();
    let from = sqlite(&scratch.path(), &options).await;
    let mut interrupted = 0;
    for attempt in 0..200u64 {
        let to = sqlite(&path, &options).await;
        let outcome = tokio::time::timeout(
            Duration::from_millis(2 + 3 * attempt),
            migrate(&*from, &*to, &workspace, &source(), &mut |_| {}),
        )
        .await;
        drop(to);
        match outcome {
            Ok(done) => {
                done.unwrap();
                break;
            }
            Err(_) => interrupted += 1,
        }
    }
    assert!(interrupted > 2, "it was never interrupted");
    let store = Store::open(&url(&path), scratch.options.clone()).await.unwrap();
    let verified = store.verify().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
    assert_eq!(describe(&store).await, expected);
}

#[tokio::test]
async fn a_target_in_use_is_refused_and_the_progress_is_told() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    fill(&store, 3).await;
    store.close().await.unwrap();
    let other = Scratch::seeded(99);
    let used = other.open().await;
    fill(&used, 1).await;
    used.close().await.unwrap();

    let options = Options::default();
    let from = sqlite(&scratch.path(), &options).await;
    let to = sqlite(&other.path(), &options).await;
    let refused = all(&*from, &*to).await.unwrap_err().to_string();
    assert!(refused.contains("the workspace was used on the target"), "{refused}");

    let memory = MemoryBackend::new(source());
    let mut told: Vec<Progress> = Vec::new();
    let workspace = WorkspaceId::default();
    migrate(&*from, &memory, &workspace, &source(), &mut |progress| told.push(*progress)).await.unwrap();
    for phase in [Phase::Copying, Phase::Comparing] {
        let last = told.iter().rfind(|progress| progress.phase == phase).unwrap();
        assert_eq!(last.entries, last.entries_total);
        assert_eq!(last.left_ms(), Some(0));
        assert!(last.bytes > 90_000, "{last:?}");
    }
}

/// What is copied and then damaged does not pass for a copy.
#[tokio::test]
async fn a_damaged_copy_is_noticed() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    fill(&store, 2).await;
    store.close().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("to.db");
    let options = Options::default();
    let from = sqlite(&scratch.path(), &options).await;
    let to = sqlite(&path, &options).await;
    all(&*from, &*to).await.unwrap();
    to.close().await.unwrap();
    for damage in ["UPDATE entries SET body = x'00' WHERE id = (SELECT max(id) FROM entries)", "DELETE FROM blobs"] {
        let copy = dir.path().join("damaged.db");
        std::fs::copy(&path, &copy).unwrap();
        rusqlite::Connection::open(&copy).unwrap().execute_batch(damage).unwrap();
        let to = sqlite(&copy, &options).await;
        assert!(all(&*from, &*to).await.is_err(), "{damage}");
    }
}
