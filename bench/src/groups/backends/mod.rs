//! The `backends` group: what saving costs beyond one machine, and what moving there costs.
//!
//! `bench/README.md` says what each figure means.

mod object;
mod postgres;

use std::path::PathBuf;
use std::time::Duration;

use crate::Result;
use crate::postgres::Server;
use crate::report::Report;
use crate::saver::Load;
use crate::workload::STEPS_L;

/// How much is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Steps of workload L.
    pub steps: usize,
    /// Pairs of runs with LangGraph's delta shape.
    pub delta_pairs: usize,
    /// Pairs of runs with LangGraph's full shape, which is slow.
    pub full_pairs: usize,
    /// Sessions at once.
    pub load: Load,
    /// Pairs of runs with many sessions.
    pub load_pairs: usize,
    /// Sessions of workload L that are moved,
    pub moved_sessions: usize,
    /// file chunks of 64 KiB that are moved with them,
    pub moved_chunks: usize,
    /// and how often.
    pub moves: usize,
    /// Sessions in a bucket that are listed.
    pub listed_sessions: usize,
    /// Sessions of the month that are saved.
    pub month_sessions: usize,
    /// Whether values are held against their bars.
    pub judged: bool,
}

impl Plan {
    /// What the bars are about.
    pub fn full() -> Self {
        Self {
            steps: STEPS_L,
            delta_pairs: 3,
            full_pairs: 1,
            load: Load::default(),
            load_pairs: 3,
            moved_sessions: 10,
            moved_chunks: 600,
            moves: 3,
            listed_sessions: 10_000,
            month_sessions: 100,
            judged: true,
        }
    }

    /// Enough to see that everything runs; the values mean nothing.
    pub fn quick() -> Self {
        Self {
            steps: 100,
            delta_pairs: 1,
            full_pairs: 1,
            load: Load { sessions: 8, warm_up: Duration::from_millis(100), measured: Duration::from_millis(500) },
            load_pairs: 1,
            moved_sessions: 1,
            moved_chunks: 16,
            moves: 1,
            listed_sessions: 100,
            month_sessions: 2,
            judged: false,
        }
    }
}

/// Where things are run.
#[derive(Debug)]
pub struct Place {
    /// A directory on the disk to measure.
    pub dir: PathBuf,
    /// A Python with the peers.
    pub python: PathBuf,
    /// The PostgreSQL server that both sides save to.
    pub server: Server,
    /// The URL of a bucket.
    pub bucket: String,
}

impl Place {
    /// A new directory, removed when dropped.
    fn scratch(&self) -> Result<tempfile::TempDir> {
        std::fs::create_dir_all(&self.dir)?;
        Ok(tempfile::Builder::new().prefix("backends-").tempdir_in(&self.dir)?)
    }
}

/// Runs the group; how many figures fell short.
pub fn run(plan: &Plan, place: &Place) -> Result<usize> {
    let mut report = if plan.judged { Report::new("backends") } else { Report::unjudged("backends") };
    postgres::run(plan, place, &mut report)?;
    object::run(plan, place, &mut report)?;
    Ok(report.short())
}
