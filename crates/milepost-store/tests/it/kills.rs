//! `kill -9` at any moment: nothing that was acknowledged is lost, and every session can be read.
//!
//! 500 kills, or 10,000 with `MILEPOST_LONG=1`.

use std::time::{Duration, Instant};

use milepost_store::Options;

use crate::child::told::{Told, check_whole};
use crate::child::work::Plan;
use crate::child::{Job, Voice, What, command, open, runtime};
use crate::harness::Rng;

/// A store is killed so many times before a fresh one takes its place.
const KILLS_PER_STORE: u64 = 50;
/// So often a kill is followed by a full verification.
const VERIFY_EVERY: u64 = 25;

pub fn is_long() -> bool {
    std::env::var_os("MILEPOST_LONG").is_some()
}

#[test]
fn nothing_acknowledged_is_lost_by_kills() {
    let kills = if is_long() { 10_000 } else { 500 };
    let runtime = runtime();
    let mut rng = Rng::new(1);
    let (mut room, mut told, mut checked) = (tempfile::tempdir().unwrap(), Told::default(), 0);
    let (mut acks, mut verified) = (0, 0);
    let begun = Instant::now();
    for kill in 1..=kills {
        let path = room.path().join("milepost.db");
        let job = Job { store: path.clone(), seed: kill, what: What::Work(Plan::ENDLESS) };
        let mut voice = Voice::of(command(&job).spawn().unwrap());
        // One in eight is killed while it starts and opens the store, the rest while it works.
        if kill % 8 != 0 {
            voice.wait_for("ready");
        }
        std::thread::sleep(Duration::from_micros(1000 + rng.below(59_000) as u64));
        voice.kill().iter().for_each(|line| told.hear(line));

        // Every other store goes to the next child as the kill left it.
        let whole = kill % VERIFY_EVERY == 0;
        if whole || kill % 2 == 0 {
            runtime.block_on(async {
                let store = open(&path, Options::default()).await.unwrap_or_else(|e| panic!("kill {kill}: {e}"));
                let since = if whole { 0 } else { checked };
                told.check(&store, since).await.unwrap_or_else(|why| panic!("kill {kill}: {why}"));
                if whole {
                    check_whole(&store).await.unwrap_or_else(|why| panic!("kill {kill}: {why}"));
                    verified += 1;
                }
                if rng.chance(4) {
                    store.close().await.unwrap();
                }
            });
            checked = told.acks.len();
        }
        if kill % KILLS_PER_STORE == 0 {
            acks += told.acks.len();
            (room, told, checked) = (tempfile::tempdir().unwrap(), Told::default(), 0);
        }
    }
    acks += told.acks.len();
    println!(
        "{kills} kills, {acks} acknowledged appends, {verified} full verifications, none lost, in {:?}",
        begun.elapsed()
    );
    assert!(acks > kills as usize, "{acks} acknowledgements are too few to prove anything");
}
