//! Power cuts: real runs are recorded and replayed to thousands of disks as a power cut may have left them. On each,
//! the store opens and keeps everything that was acknowledged before the cut.
//!
//! 2,600 images here and 800 in `bad_days.rs`, or twenty times that with `MILEPOST_LONG=1`.

use std::path::Path;
use std::time::Instant;

use milepost_store::Options;

use crate::child::told::{Told, check_whole};
use crate::child::work::Plan;
use crate::child::{Job, What, command, open};
use crate::harness::{Cut, Fault, Recording, Trace, fast_dir, record};
use crate::kills::is_long;

/// So often an image is verified in full.
const VERIFY_EVERY: usize = 50;

pub struct Room {
    pub dir: tempfile::TempDir,
}

impl Room {
    pub fn new() -> Self {
        let dir = tempfile::tempdir_in(fast_dir()).unwrap();
        std::fs::create_dir(dir.path().join("store")).unwrap();
        Self { dir }
    }

    pub fn store(&self) -> std::path::PathBuf {
        self.dir.path().join("store")
    }

    pub fn job(&self, seed: u64, what: What) -> Job {
        Job { store: self.store().join("milepost.db"), seed, what }
    }

    pub fn record(&self, job: &Job, fault: Option<Fault>) -> Trace {
        let mut command = command(job);
        if let Some(fault) = fault {
            fault.arm(&mut command);
        }
        record(&self.store(), &self.dir.path().join("trace"), &mut command).unwrap()
    }

    pub fn start(&self, command: &mut std::process::Command) -> Recording {
        Recording::start(&self.store(), &self.dir.path().join("trace"), command).unwrap()
    }
}

/// Whether the store in `dir` keeps what was told.
async fn check(dir: &Path, told: &Told, whole: bool) -> Result<(), String> {
    let path = dir.join("milepost.db");
    let store = open(&path, Options::default()).await.map_err(|e| format!("UNREADABLE store: {e}"))?;
    let mut outcome = told.check(&store, 0).await;
    if outcome.is_ok() && whole {
        outcome = check_whole(&store).await;
    }
    // The image is thrown away: what closing would do to it is of no interest.
    drop(store);
    outcome
}

/// An image that broke the promise.
#[derive(Debug)]
pub struct Broken {
    pub cut: Cut,
    /// What broke, and which unsure changes the image kept.
    pub why: String,
}

/// Checks `count` images of a recorded run, half of them on each of two threads.
pub fn cut(room: &Room, trace: &Trace, count: usize, seed: u64) -> Vec<Broken> {
    let (first, second): (Vec<_>, Vec<_>) =
        trace.cuts(count, seed).into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
    let half = |cuts, name: &str| cut_here(trace.clone(), cuts, &room.dir.path().join(name));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(second, "image-b"));
        let mut broken = half(first, "image-a");
        broken.extend(other.join().unwrap());
        broken.sort_by_key(|broken| broken.cut);
        broken
    })
}

fn cut_here(mut trace: Trace, cuts: Vec<(usize, Cut)>, image: &Path) -> Vec<Broken> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut broken = Vec::new();
    for (number, cut) in cuts {
        let survived = trace.image(cut, image).unwrap();
        let told = Told::hear_all(&survived.acks);
        if let Err(why) = runtime.block_on(check(image, &told, number % VERIFY_EVERY == 0)) {
            broken.push(Broken { cut, why: format!("{why}; {}", survived.story) });
        }
    }
    broken
}

pub fn images(count: usize) -> usize {
    if is_long() { count * 20 } else { count }
}

fn report(what: &str, trace: &Trace, images: usize, begun: Instant) {
    let acks = Told::hear_all(&trace.acks()).acks.len();
    let restarts = restarts(trace);
    println!(
        "{what}: {acks} acknowledged appends, {} operations, {} syncs, {restarts} restarts of the WAL, {images} images in {:?}",
        trace.len(),
        trace.sync_count(),
        begun.elapsed()
    );
}

fn restarts(trace: &Trace) -> usize {
    trace.write_offsets("-wal").iter().filter(|offset| **offset == 0).count().saturating_sub(1)
}

#[test]
fn nothing_acknowledged_is_lost_by_power_cuts() {
    let begun = Instant::now();
    let room = Room::new();
    let trace = room.record(&room.job(1, What::Work(Plan { large: 700_000, ..Plan::steps(3, 60) })), None);
    assert!(trace.status().success());
    assert!(restarts(&trace) >= 2, "the run is too short: the WAL began anew {} times", restarts(&trace));
    let broken = cut(&room, &trace, images(900), 1);
    report("one life", &trace, images(900), begun);
    assert!(broken.is_empty(), "{} images broke the promise, the first: {:?}", broken.len(), broken[0]);
}

/// A second run on what a first one left when it was cut off: recovery and its writes are recorded too.
#[test]
fn nothing_acknowledged_is_lost_when_recovery_is_cut_off() {
    let begun = Instant::now();
    let room = Room::new();
    let abrupt = Plan { abrupt: true, ..Plan::steps(2, 25) };
    let first = room.record(&room.job(2, What::Work(abrupt)), None);
    assert!(first.status().success());
    let wal = std::fs::metadata(room.store().join("milepost.db-wal")).unwrap().len();
    assert!(wal > 0, "the first life left a WAL");
    let trace = room.record(&room.job(3, What::Work(Plan::steps(2, 25))), None);
    assert!(trace.status().success());
    let broken = cut(&room, &trace, images(1700), 2);
    report("after a crash", &trace, images(1700), begun);
    assert!(broken.is_empty(), "{} images broke the promise, the first: {:?}", broken.len(), broken[0]);
}

/// Something acknowledged is not there; a deletion is something, too.
fn is_loss(why: &str) -> bool {
    why.starts_with("LOST") || why.starts_with("UNDEAD") || why.contains("no timeline")
}

/// The harness is worth something: it finds what `synchronous=NORMAL` loses, and that it loses and does not corrupt.
#[test]
fn the_harness_catches_synchronous_normal() {
    let begun = Instant::now();
    let room = Room::new();
    let trace = room.record(&room.job(1, What::Work(Plan::steps(2, 60))), Some(Fault::WalNormal));
    assert!(trace.status().success());
    let broken = cut(&room, &trace, 300, 3);
    report("synchronous=NORMAL", &trace, 300, begun);
    let lost = broken.iter().filter(|b| is_loss(&b.why)).count();
    let refused = broken.iter().filter(|b| b.why.contains("acknowledged transactions lie after it")).count();
    println!("synchronous=NORMAL: {lost} of 300 images lost acknowledged entries, {refused} were refused as damaged");
    assert!(lost > 20, "{lost} images lost something: the harness would not notice a missing sync");
    assert_eq!(lost + refused, broken.len(), "NORMAL loses, it does not corrupt: {broken:?}");
}
