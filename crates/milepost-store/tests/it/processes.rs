//! Two and more processes on one file: their appends never interleave, a fenced writer is told who holds the session,
//! and whoever survives goes on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use milepost_model::{Message, Role, Seq, SessionId};
use milepost_store::{Append, Claim, Error, MessageQuery, NewSession, Options};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::child::told::{Ack, Told, check_whole, hash_messages};
use crate::child::work::Plan;
use crate::child::{Job, Voice, What, command, open, runtime, say};
use crate::harness::Rng;
use crate::support::{state, step};

/// What one of several processes does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Contend {
    /// Takes the session from whoever has it, appends a few batches, over and over.
    Seize { session: SessionId, name: String, rounds: u64 },
    /// Asks politely until the session is free, then appends.
    Wait { session: SessionId, name: String, lease_ttl_ms: i64 },
    /// Takes the session and appends for ever.
    Hold { session: SessionId, name: String, lease_ttl_ms: i64 },
    /// Makes a session of its own and appends so many steps.
    Own { steps: u64 },
}

const BATCH: u64 = 4;

/// Messages of one batch: each names its writer, its batch and its place in it.
fn batch(name: &str, number: u64) -> (Append, Vec<Message>) {
    let messages: Vec<Message> =
        (0..BATCH).map(|place| Message::new(Role::User, format!("{name} {number} {place}"))).collect();
    (messages.iter().cloned().fold(Append::new(), Append::message), messages)
}

pub async fn contend(job: &Job, part: &Contend) {
    let mut options = Options::default();
    if let Contend::Wait { lease_ttl_ms, .. } | Contend::Hold { lease_ttl_ms, .. } = part {
        options.lease_ttl_ms = *lease_ttl_ms;
    }
    let store = open(&job.store, options).await.unwrap();
    let tell = |session: SessionId, receipt: &milepost_store::Receipt, messages: &[Message]| {
        say(&Ack {
            session,
            timeline: receipt.first.timeline,
            first: receipt.first.seq.0,
            length: receipt.length,
            messages: hash_messages(messages),
            state: None,
            mark: None,
        }
        .line());
    };
    match part {
        Contend::Seize { session, name, rounds } => {
            let mut rng = Rng::new(job.seed);
            let mut number = 0;
            for _ in 0..*rounds {
                let writer = match store.write(*session, &Claim::new(name).take_over()).await {
                    Ok(writer) => writer,
                    // Seized again before it could even look at the session.
                    Err(Error::Fenced { holder, .. }) => {
                        say(&format!("fenced {holder}"));
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                };
                for _ in 0..1 + rng.below(6) {
                    number += 1;
                    let (append, messages) = batch(name, number);
                    match writer.append(append).await {
                        Ok(receipt) => tell(*session, &receipt, &messages),
                        Err(Error::Fenced { holder, .. }) => {
                            say(&format!("fenced {holder}"));
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        }
        Contend::Wait { session, name, .. } => {
            let begun = Instant::now();
            let writer = loop {
                match store.write(*session, &Claim::new(name)).await {
                    Ok(writer) => break writer,
                    Err(Error::Held { holder, .. }) => say(&format!("held {holder}")),
                    Err(error) => panic!("{error}"),
                }
                assert!(begun.elapsed() < Duration::from_secs(30), "the lease never ends");
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            for number in 1..=5 {
                let (append, messages) = batch(name, number);
                tell(*session, &writer.append(append).await.unwrap(), &messages);
            }
        }
        Contend::Hold { session, name, .. } => {
            let writer = store.write(*session, &Claim::new(name)).await.unwrap();
            for number in 1.. {
                let (append, messages) = batch(name, number);
                tell(*session, &writer.append(append).await.unwrap(), &messages);
            }
        }
        Contend::Own { steps } => {
            let writer = store.create(NewSession::default(), &Claim::new("one of four")).await.unwrap();
            for number in 1..=*steps {
                let message = Message::new(Role::User, format!("step {number}"));
                let append =
                    Append::new().message(message.clone()).state(state(json!({ "memory": { "step": number } })));
                tell(writer.id(), &writer.append(append).await.unwrap(), &[message]);
            }
        }
    }
    store.close().await.unwrap();
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("milepost.db")
    }

    fn spawn(&self, seed: u64, part: Contend) -> Voice {
        let job = Job { store: self.path(), seed, what: What::Contend(part) };
        Voice::of(command(&job).spawn().unwrap())
    }

    /// A session that nobody holds.
    async fn session(&self) -> SessionId {
        let store = open(&self.path(), Options::default()).await.unwrap();
        let writer = store.create(NewSession::default(), &Claim::new("the test")).await.unwrap();
        let id = writer.id();
        writer.release().await.unwrap();
        store.close().await.unwrap();
        id
    }

    async fn check(&self, told: &Told) {
        let store = open(&self.path(), Options::default()).await.unwrap();
        told.check(&store, 0).await.unwrap();
        check_whole(&store).await.unwrap();
        store.close().await.unwrap();
    }

    /// The batches in a session's order, each whole and in one piece.
    async fn batches(&self, session: SessionId) -> Vec<(String, u64)> {
        let store = open(&self.path(), Options::default()).await.unwrap();
        let messages = store.messages(session, &MessageQuery::default()).await.unwrap();
        assert!(messages.is_sorted_by_key(|m| m.at.seq));
        let texts: Vec<String> = messages.iter().map(|m| m.message.text().into_owned()).collect();
        let mut batches = Vec::new();
        for chunk in texts.chunks(BATCH as usize) {
            let words: Vec<Vec<&str>> = chunk.iter().map(|text| text.rsplitn(3, ' ').collect()).collect();
            let (name, number) = (words[0][2], words[0][1]);
            for (place, words) in words.iter().enumerate() {
                assert_eq!(words, &[place.to_string().as_str(), number, name], "batches interleave: {chunk:?}");
            }
            batches.push((name.to_owned(), number.parse().unwrap()));
        }
        store.close().await.unwrap();
        batches
    }
}

#[test]
fn writers_that_seize_a_session_from_each_other_never_interleave() {
    let runtime = runtime();
    let place = Place::new();
    let session = runtime.block_on(place.session());
    let part = |name: &str| Contend::Seize { session, name: name.into(), rounds: 60 };
    let (mut one, mut two) = (place.spawn(1, part("process one")), place.spawn(2, part("process two")));
    let heard: Vec<String> = one.finish().iter().chain(two.finish()).cloned().collect();
    let told = Told::hear_all(&heard);
    let fenced: Vec<&String> = heard.iter().filter(|line| line.starts_with("fenced")).collect();
    assert!(
        fenced.iter().all(|line| ["fenced process one", "fenced process two"].contains(&line.as_str())),
        "{fenced:?}"
    );
    assert!(!fenced.is_empty(), "they never met");
    runtime.block_on(async {
        place.check(&told).await;
        let batches = place.batches(session).await;
        // Nothing acknowledged is missing, nothing that was refused is there, each writer's batches are in order.
        assert_eq!(batches.len(), told.acks.len());
        let mut last: BTreeMap<String, u64> = BTreeMap::new();
        for (name, number) in &batches {
            assert!(last.insert(name.clone(), *number).is_none_or(|before| before < *number), "{batches:?}");
        }
        println!("{} batches of two processes, {} times fenced, none interleaved", batches.len(), fenced.len());
    });
}

#[test]
fn the_survivor_of_a_kill_goes_on_when_the_lease_ends() {
    let runtime = runtime();
    let place = Place::new();
    let session = runtime.block_on(place.session());
    let lease_ttl_ms = 700;
    let mut holder = place.spawn(1, Contend::Hold { session, name: "the holder".into(), lease_ttl_ms });
    holder.wait_for("ack");
    let mut survivor = place.spawn(2, Contend::Wait { session, name: "the survivor".into(), lease_ttl_ms });
    assert_eq!(survivor.wait_for("held"), "held the holder");
    assert_eq!(survivor.wait_for("held"), "held the holder");
    let mut told = Told::hear_all(holder.kill());
    survivor.finish().iter().for_each(|line| told.hear(line));
    runtime.block_on(async {
        place.check(&told).await;
        let batches = place.batches(session).await;
        let names: Vec<&str> = batches.iter().map(|(name, _)| name.as_str()).collect();
        let first = names.iter().position(|name| *name == "the survivor").expect("the survivor wrote");
        assert!(names[..first].iter().all(|name| *name == "the holder") && first > 0);
        assert_eq!(&names[first..], ["the survivor"; 5]);
    });
}

/// A reader beside a writer of another process always sees whole steps, each longer than the last.
#[test]
fn a_reader_beside_a_writer_sees_only_whole_steps() {
    let runtime = runtime();
    let place = Place::new();
    let session = runtime.block_on(place.session());
    let mut writer = place.spawn(1, Contend::Hold { session, name: "the writer".into(), lease_ttl_ms: 30_000 });
    writer.wait_for("ack");
    runtime.block_on(async {
        let store = open(&place.path(), Options::default()).await.unwrap();
        let (mut length, mut looks) = (0, 0);
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let entries = store.entries(session, Seq(0), Seq(u64::MAX)).await.unwrap();
            assert!(entries.len() as u64 % BATCH == 1 && entries.len() >= length, "{} after {length}", entries.len());
            length = entries.len();
            looks += 1;
        }
        println!("{looks} looks at a session that grew to {length} entries");
        store.close().await.unwrap();
    });
    let told = Told::hear_all(writer.kill());
    runtime.block_on(place.check(&told));
}

#[test]
fn four_processes_write_their_own_sessions_at_once() {
    let runtime = runtime();
    let place = Place::new();
    // They race for making the file, too.
    let begun = Instant::now();
    let mut voices: Vec<Voice> = (0..4).map(|seed| place.spawn(seed, Contend::Own { steps: 100 })).collect();
    let mut told = Told::default();
    for voice in &mut voices {
        voice.finish().iter().for_each(|line| told.hear(line));
    }
    assert_eq!(told.acks.len(), 400);
    runtime.block_on(place.check(&told));
    println!("4 processes, {} appends in {:?}, nothing lost", told.acks.len(), begun.elapsed());
}

/// Everything an agent does, by two processes at once, while others are killed.
#[test]
fn processes_at_work_beside_others_that_are_killed() {
    let runtime = runtime();
    let place = Place::new();
    let work = |seed, plan| {
        let job = Job { store: place.path(), seed, what: What::Work(plan) };
        Voice::of(command(&job).spawn().unwrap())
    };
    // Old sessions would be taken from each other: each makes its own.
    let mut steady = work(1, Plan { fresh: true, ..Plan::steps(2, 80) });
    let mut told = Told::default();
    for seed in 2..8 {
        let mut doomed = work(seed, Plan { fresh: true, ..Plan::ENDLESS });
        doomed.wait_for("ack");
        std::thread::sleep(Duration::from_millis(30 * seed));
        doomed.kill().iter().for_each(|line| told.hear(line));
    }
    steady.finish().iter().for_each(|line| told.hear(line));
    runtime.block_on(place.check(&told));
    println!("{} appends of seven processes, six of them killed, nothing lost", told.acks.len());
}

/// One process, one store: a writer that was taken over within the process is fenced just so.
#[tokio::test]
async fn a_writer_taken_over_in_the_same_process_is_fenced() {
    let place = Place::new();
    let session = place.session().await;
    let store = open(&place.path(), Options::default()).await.unwrap();
    let first = store.write(session, &Claim::new("the first")).await.unwrap();
    first.append(step(1)).await.unwrap();
    let second = store.write(session, &Claim::new("the second").take_over()).await.unwrap();
    second.append(step(2)).await.unwrap();
    let error = first.append(step(3)).await.unwrap_err();
    assert!(matches!(&error, Error::Fenced { holder, .. } if holder == "the second"), "{error}");
    let error = first.restore(second.append(step(3)).await.unwrap().first).await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(store.messages(session, &MessageQuery::default()).await.unwrap().len(), 3);
    check_whole(&store).await.unwrap();
}

/// Whoever comes while another makes the tables waits for them, and takes no half of it for another program's file.
#[test]
fn a_store_that_many_open_at_once_is_made_once() {
    for _ in 0..60 {
        let place = Place::new();
        let begin = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    begin.wait();
                    let store = milepost_store::block_on(open(&place.path(), Options::default())).unwrap();
                    milepost_store::block_on(store.close()).unwrap();
                });
            }
        });
    }
}
