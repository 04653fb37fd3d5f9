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
        Self {
            sessions: 64,
            warm_up: Duration::from_millis(500),
            measured: Duration::from_secs(5),
        }
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

/// Run a load. `open` is called in each session's thread with the session's number.
pub fn save_at_once<S: Saver>(
    load: Load,
    seed: u64,
    open: impl Fn(u64) -> Result<S> + Sync,
) -> Result<Throughput> {
    // Text is made beforehand: making it would take the processor from whoever saves.
    const STEPS_MADE: usize = 256;
    let barrier = Barrier::new(load.sessions);
    let session = |number: u64| -> Result<(usize, Samples)> {
        let steps: Vec<Step> = Workload::new(seed, number).take(STEPS_MADE).collect();
        let opened = open(number);
        // Wait even if opening failed: the others wait for this thread.
        barrier.wait();
        let mut saver = opened?;
        let from = Instant::now() + load.warm_up;
        let until = from + load.measured;
        let (mut saved, mut waits) = (0, Samples::default());
        for step in steps.iter().cycle() {
            let step = step.clone();
            let start = Instant::now();
            saver.save(step)?;
            let end = Instant::now();
            if end >= from {
                waits.push(end - start);
            }
            // The save that outlasts the time was waited for, but is not throughput.
            if end >= until {
                break;
            }
            saved += usize::from(end >= from);
        }
        Ok((saved, waits))
    };
    let session = &session;
    let (saved, waits) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.sessions as u64)
            .map(|number| scope.spawn(move || session(number)))
            .collect();
        let (mut saved, mut waits) = (0, Samples::default());
        for thread in threads {
            let (its_saved, its_waits) =
                thread.join().map_err(|_| "a session's thread panicked")??;
            saved += its_saved;
            waits.extend(its_waits);
        }
        Ok::<_, crate::Error>((saved, waits))
    })?;
    Ok(Throughput {
        saves_per_s: saved as f64 / load.measured.as_secs_f64(),
        waits,
    })
}
