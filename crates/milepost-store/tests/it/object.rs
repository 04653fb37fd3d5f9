//! The object store: what it costs in requests, and what it does when the bucket misbehaves or a process sleeps.

mod fault;
mod golden;
pub mod s3;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use milepost_model::{Event, ManualClock, SessionId, Source, Trigger};
use milepost_store::object::object_store::{ObjectStore, ObjectStoreExt as _};
use milepost_store::object::{ObjectBackend, ObjectOptions};
use milepost_store::{
    Append, Backend, Durability, Error, MarkQuery, MessageQuery, NewMark, Options, Redactor, SessionQuery,
    SessionWriter, Store,
};
use serde_json::json;

use crate::support::{START, claim, create, state, step, user};
use fault::{Fault, Faulty};

/// A bucket, a clock, and as many processes as a test opens.
struct Cloud {
    bucket: Arc<Faulty>,
    clock: Arc<ManualClock>,
    options: Options,
    object: ObjectOptions,
}

struct Process {
    backend: Arc<ObjectBackend>,
    store: Store,
}

impl Cloud {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let mut options = Options::default();
        options.source = Some(Source::seeded(7, Arc::clone(&clock)));
        Self { bucket: Faulty::new(ObjectBackend::in_memory()), clock, options, object: ObjectOptions::default() }
    }

    async fn open(&self) -> Process {
        let bucket: Arc<dyn ObjectStore> = self.bucket.clone();
        let source = self.options.source.clone().unwrap();
        let backend = Arc::new(ObjectBackend::new(bucket, "", self.object.clone(), source).unwrap());
        let shared: Arc<dyn Backend> = backend.clone();
        Process { backend, store: Store::with_backend(shared, self.options.clone()).await.unwrap() }
    }

    async fn keys(&self) -> Vec<String> {
        let found: Vec<_> = self.bucket.list(None).try_collect().await.unwrap();
        found.iter().map(|meta| meta.location.to_string()).collect()
    }

    /// Whether any object holds these bytes, unpacked.
    async fn holds(&self, needle: &[u8]) -> bool {
        for key in self.keys().await {
            let bytes = self.bucket.get(&key.as_str().into()).await.unwrap().bytes().await.unwrap();
            let packed = bytes.get(13..).unwrap_or_default();
            let plain = zstd::bulk::decompress(packed, 1 << 24).unwrap_or_else(|_| packed.to_vec());
            if plain.windows(needle.len()).any(|window| window == needle) {
                return true;
            }
        }
        false
    }
}

async fn texts(store: &Store, id: SessionId) -> Vec<String> {
    let found = store.messages(id, &MessageQuery::default()).await.unwrap();
    found.iter().map(|found| found.message.text().into_owned()).collect()
}

async fn say(writer: &SessionWriter, text: &str) {
    writer.append(Append::new().message(user(text))).await.unwrap();
}

#[tokio::test]
async fn an_append_is_exactly_one_put() {
    let mut cloud = Cloud::new();
    cloud.object.max_steps = u64::MAX;
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    // The first state that a writer compares with is looked up; from then on it is known.
    writer.append(step(0)).await.unwrap();
    let before = process.backend.requests();
    for number in 1..51 {
        writer.append(step(number)).await.unwrap();
    }
    let made = process.backend.requests().since(before);
    assert_eq!((made.puts, made.gets, made.lists, made.deletes), (50, 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_at_once_share_a_put() {
    let mut cloud = Cloud::new();
    cloud.object.max_steps = u64::MAX;
    let process = cloud.open().await;
    let writer = Arc::new(create(&process.store).await);
    cloud.bucket.delay(Duration::from_millis(20));
    let before = process.backend.requests();
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move { say(&writer, &format!("message {number}")).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let made = process.backend.requests().since(before);
    assert!(made.puts <= 10, "100 appends at once took {} PUTs", made.puts);
    assert_eq!(texts(&process.store, writer.id()).await.len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_latest_state_takes_two_round_trips_at_any_age() {
    for appends in [1, 5, 6, 40, 301] {
        let cloud = Cloud::new();
        let process = cloud.open().await;
        let writer = create(&process.store).await;
        for number in 0..appends {
            writer.append(step(number)).await.unwrap();
            process.backend.settle().await;
        }
        let reader = cloud.open().await;
        let round_trip = Duration::from_millis(200);
        cloud.bucket.delay(round_trip);
        let (before, begun) = (reader.backend.requests(), Instant::now());
        let loaded = reader.store.load_latest(writer.id(), &MarkQuery::default()).await.unwrap();
        let (made, took) = (reader.backend.requests().since(before), begun.elapsed());
        assert_eq!(loaded.state.pointer("/memory/step"), Some(&serde_json::json!(appends - 1)));
        assert!(made.gets <= 8 && made.lists <= 2, "after {appends} appends: {made:?}");
        assert!(took < round_trip * 3, "after {appends} appends: {took:?}, that is more than two round trips");
    }
}

/// The age of a session changes neither what an append costs nor how many requests its latest state takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_session_costs_no_more_than_a_short_one() {
    const BATCHES: u64 = 6_000;
    let cloud = Cloud::new();
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    let (mut costs, mut begun) = (Vec::new(), process.backend.requests());
    for number in 0..BATCHES {
        writer.append(step(number)).await.unwrap();
        // The background keeps up, as it does when turns take seconds.
        process.backend.settle().await;
        cloud.clock.advance_ms(1_000);
        if (number + 1) % 1_000 == 0 {
            let now = process.backend.requests();
            costs.push(now.since(begun));
            begun = now;
        }
        if [137, 2_048, 4_097, 5_003, BATCHES - 1].contains(&number) {
            let reader = cloud.open().await;
            cloud.bucket.delay(Duration::from_millis(50));
            cloud.bucket.round_trips.store(0, Ordering::SeqCst);
            let (before, begun) = (reader.backend.requests(), Instant::now());
            let loaded = reader.store.load_latest(writer.id(), &MarkQuery::default()).await.unwrap();
            let (made, took) = (reader.backend.requests().since(before), begun.elapsed());
            cloud.bucket.delay(Duration::ZERO);
            println!("after {number}: {made:?} in {took:?}");
            assert_eq!(loaded.state.pointer("/memory/step"), Some(&serde_json::json!(number)));
            assert!(made.gets <= 8 && made.lists <= 2, "after {number}: {made:?}");
            let round_trips = cloud.bucket.round_trips.load(Ordering::SeqCst);
            assert!(round_trips <= 2, "after {number}: {round_trips} round trips");
        }
    }
    costs.iter().enumerate().for_each(|(at, made)| println!("{}000: {made:?}", at + 1));
    let (early, late) = (costs[1], costs[costs.len() - 1]);
    assert!(late.puts + late.lists < early.puts + early.lists + 100, "{early:?}, then {late:?}");
    assert!(late.put_bytes < early.put_bytes * 2, "{early:?}, then {late:?}");
    let left = cloud.keys().await.len();
    assert!(left < 2_000, "{left} objects are left of {BATCHES} batches");
    assert_eq!(texts(&cloud.open().await.store, writer.id()).await.len() as u64, BATCHES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_sessions_are_listed_in_twenty_requests() {
    let cloud = Cloud::new();
    let process = cloud.open().await;
    for _ in 0..10_000 {
        create(&process.store).await;
    }
    process.backend.compact().await.unwrap();
    let reader = cloud.open().await;
    let before = reader.backend.requests();
    let mut query = SessionQuery::default();
    let mut found = 0;
    loop {
        let page = reader.store.sessions(&query).await.unwrap();
        found += page.sessions.len();
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    let made = reader.backend.requests().since(before);
    assert_eq!(found, 10_000);
    assert!(made.paid() <= 20, "{made:?}");
}

/// A month of 1,000 chats of 100 messages, each appended for itself, with a checkpoint per turn of ten calls and their results.
/// Leases, merges and the index are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_month_of_chats_costs_less_than_five_cents() {
    const MEASURED: u64 = 20;
    let mut cloud = Cloud::new();
    cloud.object.durability = Durability::Turn;
    let process = cloud.open().await;
    let before = process.backend.requests();
    for _ in 0..MEASURED {
        let writer = create(&process.store).await;
        for turn in 0..5 {
            for n in 0..19 {
                say(&writer, &format!("turn {turn}, {n}")).await;
            }
            writer.append(step(turn)).await.unwrap();
        }
        writer.release().await.unwrap();
    }
    process.backend.settle().await;
    process.backend.compact().await.unwrap();
    let made = process.backend.requests().since(before);
    let month = made.dollars() * 1000.0 / MEASURED as f64;
    println!("{made:?}: a month costs ${month:.4}");
    assert!(month < 0.05, "a month costs ${month:.4}: {made:?}");
}

#[tokio::test]
async fn a_turn_is_one_put_and_a_crash_loses_no_more_than_it() {
    let mut cloud = Cloud::new();
    cloud.object.durability = Durability::Turn;
    cloud.object.max_steps = u64::MAX;
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    writer.append(step(0)).await.unwrap();
    let before = process.backend.requests();
    for number in 0..10 {
        say(&writer, &format!("of a turn, {number}")).await;
    }
    assert_eq!(texts(&process.store, writer.id()).await.len(), 11, "the process itself sees its turn");
    assert_eq!(process.backend.requests().since(before).puts, 0);
    writer.append(step(1)).await.unwrap();
    assert_eq!(process.backend.requests().since(before).puts, 1, "a mark ends the turn");
    assert_eq!(texts(&cloud.open().await.store, writer.id()).await.len(), 12);

    say(&writer, "flushed").await;
    process.store.flush().await.unwrap();
    assert_eq!(process.backend.requests().since(before).puts, 2);
    for number in 0..60 {
        say(&writer, &crate::keep::noise(number, 12_000)).await;
    }
    let made = process.backend.requests().since(before).puts - 2;
    assert!((1..10).contains(&made), "60 messages of 12,000 bytes took {made} PUTs: size ends a turn");
    process.store.flush().await.unwrap();

    say(&writer, "old enough").await;
    cloud.clock.advance_ms(6_000);
    say(&writer, "with it").await;
    let whole = texts(&cloud.open().await.store, writer.id()).await;
    assert_eq!(whole.last().unwrap(), "with it", "time ends a turn");

    // A crash: the process goes without a word.
    say(&writer, "lost, one").await;
    say(&writer, "lost, two").await;
    let id = writer.id();
    std::mem::forget(writer);
    let other = cloud.open().await;
    assert_eq!(texts(&other.store, id).await, whole, "a crash loses the turn, and nothing else");
    let taken = other.store.write(id, &claim().take_over()).await.unwrap();
    say(&taken, "after the crash").await;
    other.store.close().await.unwrap();
    // What was lost does not come back: the old holder is told.
    assert!(process.store.flush().await.is_err(), "a turn of an older epoch was taken");
    let found = texts(&cloud.open().await.store, id).await;
    assert_eq!(found.len(), whole.len() + 1);
    assert_eq!(found.last().unwrap(), "after the crash", "closing ends a turn");
}

/// Someone else writes to the log without taking the session: the turn is not lost.
#[tokio::test]
async fn a_turn_survives_what_others_write() {
    let mut cloud = Cloud::new();
    cloud.object.durability = Durability::Turn;
    let (process, other) = (cloud.open().await, cloud.open().await);
    let writer = create(&process.store).await;
    let receipt = writer.append(step(0)).await.unwrap();
    say(&writer, "in the turn").await;
    let branch = other.store.branch(receipt.first, Default::default(), &claim()).await.unwrap();
    say(&writer, "still in the turn").await;
    writer.append(step(1)).await.unwrap();
    let found = texts(&cloud.open().await.store, writer.id()).await;
    assert_eq!(found, ["step 0", "in the turn", "still in the turn", "step 1"]);
    drop(branch);
}

#[tokio::test]
async fn lost_answers_and_refused_puts_store_once() {
    let cloud = Cloud::new();
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    let mut expected = Vec::new();
    for (number, fault) in
        [Fault::AnswerLost, Fault::Retried, Fault::Conflict, Fault::AnswerLost].into_iter().enumerate()
    {
        let text = format!("message {number} in spite of {fault:?}");
        cloud.bucket.next([fault]);
        say(&writer, &text).await;
        expected.push(text);
    }
    cloud.bucket.next([Fault::Conflict, Fault::Conflict, Fault::Retried]);
    say(&writer, "after two conflicts").await;
    expected.push("after two conflicts".into());
    assert_eq!(texts(&process.store, writer.id()).await, expected);
    assert_eq!(texts(&cloud.open().await.store, writer.id()).await, expected, "as another process sees it");
}

#[tokio::test]
async fn a_put_that_never_arrives_is_an_error_that_says_so() {
    let cloud = Cloud::new();
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    let append = Append::new().batch(process.store.source().id()).message(user("perhaps"));
    cloud.bucket.next([Fault::NeverArrives; 16]);
    let outcome = writer.append(append.clone()).await;
    assert!(matches!(outcome, Err(Error::Io { .. })), "{outcome:?}");
    cloud.bucket.next([]);
    let mut stored = writer.append(append.clone()).await;
    for _ in 0..20 {
        if stored.is_ok() {
            break;
        }
        stored = writer.append(append.clone()).await;
    }
    stored.unwrap();
    assert_eq!(texts(&process.store, writer.id()).await, ["perhaps"]);
}

/// A writer that slept while others wrote, merged and deleted puts into a void number. It must not believe it.
#[tokio::test]
async fn a_writer_that_slept_is_not_fooled_by_a_void_number() {
    let cloud = Cloud::new();
    let (sleeper, other) = (cloud.open().await, cloud.open().await);
    let writer = create(&sleeper.store).await;
    say(&writer, "before").await;
    let taken = other.store.write(writer.id(), &claim().take_over()).await.unwrap();
    for number in 0..20 {
        say(&taken, &format!("message {number}")).await;
        other.backend.settle().await;
    }
    other.backend.compact().await.unwrap();
    cloud.clock.advance_ms(601_000);
    other.backend.compact().await.unwrap();
    let steps = cloud.keys().await.iter().filter(|key| key.contains("/s/log/")).count();
    assert!(steps <= 8, "{steps} steps are left: nothing was deleted");
    let outcome = writer.append(Append::new().message(user("too late"))).await;
    assert!(matches!(outcome, Err(Error::Fenced { .. })), "{outcome:?}");
    let found = texts(&cloud.open().await.store, writer.id()).await;
    assert_eq!(found.len(), 21, "{found:?}");
    assert!(!found.contains(&"too late".to_owned()));
    say(&taken, "it goes on").await;
}

#[tokio::test]
async fn what_was_removed_is_gone_from_the_bucket_after_the_delay() {
    let cloud = Cloud::new();
    let process = cloud.open().await;
    let (kept, gone) = (create(&process.store).await, create(&process.store).await);
    say(&kept, "this stays").await;
    say(&gone, "a secret that must go").await;
    let id = gone.id();
    gone.release().await.unwrap();
    process.store.delete(id, Default::default(), &claim(), false).await.unwrap();
    assert!(cloud.holds(b"a secret that must go").await);
    process.backend.compact().await.unwrap();
    cloud.clock.advance_ms(601_000);
    process.backend.compact().await.unwrap();
    cloud.clock.advance_ms(601_000);
    process.backend.compact().await.unwrap();
    assert!(!cloud.holds(b"a secret that must go").await, "{:#?}", cloud.keys().await);
    assert!(!cloud.keys().await.iter().any(|key| key.contains(&id.to_string())), "{:#?}", cloud.keys().await);
    assert_eq!(texts(&cloud.open().await.store, kept.id()).await, ["this stays"]);
}

/// A redaction that is done again when its time has come, by any process, deletes what the first one replaced.
#[tokio::test]
async fn what_was_redacted_is_gone_from_the_bucket_after_the_delay() {
    let cloud = Cloud::new();
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    let id = writer.id();
    leak(&writer).await;
    writer.release().await.unwrap();
    process.store.put_record("setting", "one", None, None, LEAKED.as_bytes()).await.unwrap();
    let redactor = Redactor::literal(LEAKED, "[gone]").unwrap();
    let done = process.store.redact(&redactor, "it leaked", &claim(), false).await.unwrap();
    assert_eq!((done.entries, done.checkpoints, done.records, done.lingers_ms), (4, 1, 1, 600_000));
    assert!(cloud.holds(LEAKED.as_bytes()).await);
    process.store.close().await.unwrap();
    cloud.clock.advance_ms(601_000);
    let later = cloud.open().await;
    let again = later.store.redact(&redactor, "again", &claim(), false).await.unwrap();
    assert_eq!((again.sessions.len(), again.records), (0, 0));
    assert!(!cloud.holds(LEAKED.as_bytes()).await, "{:#?}", cloud.keys().await);
    assert_eq!(texts(&later.store, id).await[0], "it is [gone], they said");
    assert!(later.store.verify().await.unwrap().is_whole());
}

/// Nothing that can be packed, so that it is seen where it lies.
pub const LEAKED: &str = "k7Q2-x9Lm-4Zt8-Vb1n";

/// Writes it in a message, in one that is a blob, in a state, a mark and an event.
pub async fn leak(writer: &SessionWriter) {
    let mut noise = vec![0u8; 30_000];
    Source::seeded(3, Arc::new(ManualClock::new(START))).fill(&mut noise);
    let noise: String = noise.iter().map(|byte| char::from(b'!' + byte % 90)).collect();
    let state = state(json!({ "memory": { "key": LEAKED } }));
    let mark = NewMark::new(Trigger::Manual).description(format!("after {LEAKED}"));
    writer.append(Append::new().message(user(&format!("it is {LEAKED}, they said")))).await.unwrap();
    writer.append(Append::new().message(user(&format!("{noise} {LEAKED}")))).await.unwrap();
    writer.append(Append::new().state(state).mark(mark)).await.unwrap();
    writer.append(Append::new().event(Event::new("noted", json!({ "what": LEAKED })))).await.unwrap();
}

#[tokio::test]
async fn old_touches_go_when_blobs_are_collected() {
    let cloud = Cloud::new();
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    for _ in 0..5 {
        writer.put_blob(b"put again and again").await.unwrap();
    }
    let touches = |keys: Vec<String>| keys.iter().filter(|key| key.contains("/touch/")).count();
    assert_eq!(touches(cloud.keys().await), 5);
    cloud.clock.advance_ms(2 * 3_600_000);
    writer.put_blob(b"put again and again").await.unwrap();
    process.store.collect(&claim(), false).await.unwrap();
    assert_eq!(touches(cloud.keys().await), 1, "only what is young is left");
    cloud.clock.advance_ms(2 * 3_600_000);
    process.store.collect(&claim(), false).await.unwrap();
    assert_eq!(touches(cloud.keys().await), 0);
}

/// Erased bytes leave the bucket without anyone calling `compact`.
#[tokio::test]
async fn what_was_erased_goes_by_itself() {
    let cloud = Cloud::new();
    let process = cloud.open().await;
    let writer = create(&process.store).await;
    let gone = create(&process.store).await;
    say(&gone, "a secret that must go").await;
    for number in 0..9 {
        say(&gone, &format!("message {number}")).await;
    }
    let id = gone.id();
    gone.release().await.unwrap();
    process.store.delete(id, Default::default(), &claim(), false).await.unwrap();
    process.backend.settle().await;
    assert!(cloud.holds(b"a secret that must go").await);
    cloud.clock.advance_ms(601_000);
    for number in 0..8 {
        say(&writer, &format!("others go on, {number}")).await;
        process.backend.settle().await;
    }
    // The first step stays as long as someone might think that the session never began: it has no message.
    assert!(!cloud.holds(b"a secret that must go").await, "{:#?}", cloud.keys().await);
}

#[tokio::test]
async fn two_processes_see_each_other() {
    let cloud = Cloud::new();
    let (one, two) = (cloud.open().await, cloud.open().await);
    let writer = create(&one.store).await;
    for number in 0..15 {
        say(&writer, &format!("message {number}")).await;
        assert_eq!(texts(&two.store, writer.id()).await.len(), number + 1);
        assert_eq!(two.store.sessions(&SessionQuery::default()).await.unwrap().sessions.len(), 1);
    }
    let id = writer.id();
    writer.release().await.unwrap();
    let writer = two.store.write(id, &claim()).await.unwrap();
    say(&writer, "by the other").await;
    assert_eq!(texts(&one.store, id).await.len(), 16);
    assert!(one.store.verify().await.unwrap().is_whole());
}
