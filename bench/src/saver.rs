//! How saves are timed: the same code for Milepost and for those it is compared with.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::Result;
use crate::bare::BareAppender;
use crate::stats::Samples;
use crate::workload::{Step, Workload};

/// One session that is being saved.
pub trait Saver {
    /// Save a step with its checkpoint. It is durable when this returns.
    fn save(&mut self, step: Step) -> Result<()>;
}

/// One session's saves, and the bare appends made between them.
#[derive(Debug, Default)]
pub struct Interleaved {
    /// One per save.
    pub saves: Samples,
    /// One per save, taken right after it.
    pub bare: Samples,
}

/// Save `steps` steps one after the other, with a bare append after each if an appender is given.
pub fn save_in_turn(
    saver: &mut dyn Saver,
    workload: Workload,
    steps: usize,
    mut bare: Option<&mut BareAppender>,
) -> Result<Interleaved> {
    let mut out = Interleaved::default();
    for step in workload.take(steps) {
        let start = Instant::now();
        saver.save(step)?;
        out.saves.push(start.elapsed());
        if let Some(bare) = &mut bare {
            out.bare.push(bare.append()?);
        }
    }
    Ok(out)
}

/// Many sessions saving at once, for a fixed time.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Sessions, each with a thread of its own.
    pub sessions: usize,
    /// Time before counting starts.
    pub warm_up: Duration,
    /// Time that counts.
    pub measured: Duration,
}

impl Default for Load {
    fn default() -> Self {
        Self { sessions: 64, warm_up: Duration::from_millis(500), measured: Duration::from_secs(5) }
    }
}

/// Counts one session's saves: those that end in the time that counts.
#[derive(Debug)]
pub struct Counter {
    from: Instant,
    until: Instant,
    saved: usize,
    waits: Samples,
}

impl Counter {
    /// Starts now, with the warm-up.
    pub fn start(load: Load) -> Self {
        let from = Instant::now() + load.warm_up;
        Self { from, until: from + load.measured, saved: 0, waits: Samples::default() }
    }

    /// Counts a save that began at `start` and ended now; whether there is time for another.
    pub fn count(&mut self, start: Instant) -> bool {
        let end = Instant::now();
        if end >= self.from {
            self.waits.push(end - start);
        }
        // The save that outlasts the time was waited for, but is not throughput.
        let goes_on = end < self.until;
        self.saved += usize::from(end >= self.from && goes_on);
        goes_on
    }
}

/// What many sessions got done.
#[derive(Debug)]
pub struct Throughput {
    /// Durable saves a second, all sessions together.
    pub saves_per_s: f64,
    /// How long each save was waited for.
    pub waits: Samples,
}

impl Throughput {
    /// All sessions' counts together.
    pub fn of(load: Load, counters: impl IntoIterator<Item = Counter>) -> Self {
        let (mut saved, mut waits) = (0, Samples::default());
        for counter in counters {
            saved += counter.saved;
            waits.extend(counter.waits);
        }
        Self { saves_per_s: saved as f64 / load.measured.as_secs_f64(), waits }
    }
}

/// How many steps a session of a load has.
pub const STEPS_MADE: usize = 256;

/// The steps that a session of a load saves, over and over. Made beforehand: making text would take the processor
/// from whoever saves.
pub fn steps_of_load(seed: u64, session: u64) -> Vec<Step> {
    Workload::new(seed, session).take(STEPS_MADE).collect()
}

/// Run a load. `open` is called in each session's thread with the session's number.
pub fn save_at_once<S: Saver>(load: Load, seed: u64, open: impl Fn(u64) -> Result<S> + Sync) -> Result<Throughput> {
    let barrier = Barrier::new(load.sessions);
    let session = |number: u64| -> Result<Counter> {
        let steps = steps_of_load(seed, number);
        let opened = open(number);
        // Wait even if opening failed: the others wait for this thread.
        barrier.wait();
        let mut saver = opened?;
        let mut counter = Counter::start(load);
        for step in steps.iter().cycle() {
            let step = step.clone();
            let start = Instant::now();
            saver.save(step)?;
            if !counter.count(start) {
                break;
            }
        }
        Ok(counter)
    };
    let session = &session;
    let counters = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.sessions as u64).map(|number| scope.spawn(move || session(number))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| "a session's thread panicked")?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    Ok(Throughput::of(load, counters))
}
