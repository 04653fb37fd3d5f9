//! A bad network and a server that ends as by a power cut, for minutes: nothing that was acknowledged is lost, nothing is
//! there twice. Two minutes, or eight with `MILEPOST_LONG=1`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use milepost_model::{BatchId, SessionId};
use milepost_store::postgres::{PostgresBackend, PostgresOptions};
use milepost_store::{Append, Claim, Error, MessageQuery, Options, SessionWriter, Store, system_source};

use super::Scheme;
use super::cluster::Cluster;
use super::proxy::Proxy;
use crate::support::{create, user};

const WRITERS: usize = 6;

/// What came of appends, to see that the bad time was bad.
#[derive(Debug, Default)]
struct Outcomes {
    /// Appends whose answer did not come.
    unknown: AtomicUsize,
    /// Of those, the ones that were there.
    were_there: AtomicUsize,
    /// Appends that surely did not happen.
    undone: AtomicUsize,
}

async fn open(url: &str) -> Store {
    let mut options = PostgresOptions::default();
    (options.statement_ms, options.connect_ms, options.tries) = (1_500, 1_500, 4);
    let backend = PostgresBackend::open(url, &options, system_source().unwrap()).await.unwrap();
    Store::with_backend(Arc::new(backend), Options::default()).await.unwrap()
}

async fn texts(store: &Store, session: SessionId) -> milepost_store::Result<Vec<String>> {
    let found = store.messages(session, &MessageQuery::default()).await?;
    Ok(found.iter().map(|found| found.message.text().into_owned()).collect())
}

/// One writer: says one thing after the other until it is told that it is there. Returns all it said.
async fn work(
    store: Store,
    mut writer: SessionWriter,
    is_over: Arc<AtomicBool>,
    outcomes: Arc<Outcomes>,
) -> Vec<String> {
    let (ids, mut said) = (system_source().unwrap(), Vec::new());
    // The answer to a take-over was lost: it may have happened, and then the writer from before is refused, as it should.
    let mut may_be_fenced = false;
    while !is_over.load(Ordering::Relaxed) {
        let text = format!("number {}", said.len());
        let id: BatchId = ids.id();
        let mut is_unknown = false;
        loop {
            match writer.append(Append::new().message(user(&text)).batch(id)).await {
                Ok(receipt) => {
                    outcomes.were_there.fetch_add(usize::from(is_unknown && receipt.repeated), Ordering::Relaxed);
                    break;
                }
                Err(Error::Io { .. }) => {
                    outcomes.unknown.fetch_add(1, Ordering::Relaxed);
                    is_unknown = true;
                }
                Err(Error::Unavailable { .. } | Error::Busy { .. }) => {
                    outcomes.undone.fetch_add(1, Ordering::Relaxed);
                }
                Err(Error::Fenced { .. }) if may_be_fenced => {}
                Err(error) => panic!("{text} was refused: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            // A process that starts anew knows nothing but the id of what it wanted to append.
            if said.len() % 4 == 0 || may_be_fenced {
                match store.write(writer.id(), &Claim::new("the same").take_over()).await {
                    Ok(again) => (writer, may_be_fenced) = (again, false),
                    Err(_) => may_be_fenced = true,
                }
            }
        }
        said.push(text);
    }
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_network_and_a_server_that_crashes_lose_and_double_nothing() {
    let Some(cluster) = Cluster::start() else { return };
    let minutes = if std::env::var_os("MILEPOST_LONG").is_some() { 8 } else { 2 };
    let proxy = Proxy::start(cluster.port(), 11).await;
    let direct = Scheme::on(&cluster.url(), "faults");
    let behind = direct.url().replace(&format!(":{}/", cluster.port()), &format!(":{}/", proxy.port));
    let (one, two) = (open(&behind).await, open(&behind).await);
    let (is_over, outcomes) = (Arc::<AtomicBool>::default(), Arc::<Outcomes>::default());
    let mut tasks = Vec::new();
    for number in 0..WRITERS {
        let store = if number % 2 == 0 { one.clone() } else { two.clone() };
        let writer = create(&store).await;
        let session = writer.id();
        tasks.push((session, tokio::spawn(work(store, writer, Arc::clone(&is_over), Arc::clone(&outcomes)))));
    }
    proxy.be_bad(true);
    let end = Instant::now() + Duration::from_secs(minutes * 60);
    let crashing = tokio::task::spawn_blocking(move || {
        let mut crashes = 0;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_secs(6));
            cluster.crash();
            crashes += 1;
        }
        (cluster, crashes)
    });
    let (cluster, crashes) = crashing.await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    for (session, task) in tasks {
        all.push((session, task.await.unwrap()));
    }
    println!(
        "{crashes} crashes, {outcomes:?}, {:?}, said {:?}",
        proxy.struck,
        all.iter().map(|(_, said)| said.len()).collect::<Vec<_>>()
    );
    // What was acknowledged must be on the disk, too.
    cluster.crash();
    let store = open(&direct.url()).await;
    for (session, said) in &all {
        assert!(said.len() > 20, "only {} messages were said", said.len());
        assert_eq!(texts(&store, *session).await.unwrap(), *said, "each once, in order");
    }
    let verified = store.verify().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
    let missing = proxy.struck.missing();
    assert!(missing.is_empty(), "nothing of this happened: {missing:?}");
    assert!(outcomes.unknown.load(Ordering::Relaxed) > 5, "{outcomes:?}: no answer was lost");
    assert!(outcomes.were_there.load(Ordering::Relaxed) > 0, "{outcomes:?}: nothing was found to be there already");
}
