//! The `store` group: what durable saves cost, in time and on disk, and what reading and keeping house cost.
//!
//! Every save is one append through the public face of `milepost-store`, on SQLite, with the text index on unless a
//! figure says otherwise. `bench/README.md` says what each figure means.

mod disk;
mod long;
mod many;
mod saves;
mod verify;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use long::load_once;
pub(crate) use verify::save_chunks;
pub use verify::save_pictures;

use crate::Result;
use crate::report::{Report, detail};
use crate::saver::Load;
use crate::workload::STEPS_L;

/// How much is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Steps of workload L.
    pub steps: usize,
    /// Runs of workload L for medians.
    pub runs: usize,
    /// Pairs of runs with LangGraph's delta shape.
    pub delta_pairs: usize,
    /// Pairs of runs with LangGraph's full shape, which is slow.
    pub full_pairs: usize,
    /// Steps of the long session.
    pub long_steps: usize,
    /// Loads of each session.
    pub loads: usize,
    /// Sessions at once.
    pub load: Load,
    /// Pairs of runs with one-connection-per-session SQLite.
    pub load_pairs: usize,
    /// Messages with a payload of 64 KiB.
    pub payloads: usize,
    /// Whether values are held against their bars.
    pub judged: bool,
}

impl Plan {
    /// What the bars are about.
    pub fn full() -> Self {
        Self {
            steps: STEPS_L,
            runs: 5,
            delta_pairs: 5,
            full_pairs: 2,
            long_steps: 50_000,
            loads: 200,
            load: Load::default(),
            load_pairs: 3,
            payloads: 2_000,
            judged: true,
        }
    }

    /// Enough to see that everything runs; the values mean nothing.
    pub fn quick() -> Self {
        Self {
            steps: 200,
            runs: 1,
            delta_pairs: 1,
            full_pairs: 1,
            long_steps: 1_000,
            loads: 20,
            load: Load { sessions: 8, warm_up: Duration::from_millis(100), measured: Duration::from_millis(500) },
            load_pairs: 1,
            payloads: 64,
            judged: false,
        }
    }
}

/// Where things are run.
#[derive(Debug, Clone)]
pub struct Place {
    dir: PathBuf,
    python: PathBuf,
}

impl Place {
    /// In `dir`, on the disk to measure, with the peers of `python`.
    pub fn new(dir: PathBuf, python: PathBuf) -> Self {
        Self { dir, python }
    }

    /// A new directory, removed when dropped.
    fn scratch(&self) -> Result<tempfile::TempDir> {
        std::fs::create_dir_all(&self.dir)?;
        Ok(tempfile::Builder::new().prefix("store-").tempdir_in(&self.dir)?)
    }

    fn python(&self) -> &Path {
        &self.python
    }
}

/// Runs the group; how many figures fell short.
pub fn run(plan: &Plan, place: &Place) -> Result<usize> {
    let mut report = if plan.judged { Report::new("store") } else { Report::unjudged("store") };
    detail(format_args!(
        "milepost {}, SQLite {}, {} cores; every save is one append: 2 messages, state, checkpoint",
        env!("CARGO_PKG_VERSION"),
        rusqlite::version(),
        std::thread::available_parallelism().map_or(0, usize::from),
    ));
    saves::run(plan, place, &mut report)?;
    saves::against_langgraph(plan, place, &mut report)?;
    many::run(plan, place, &mut report)?;
    disk::bytes(plan, place, &mut report)?;
    disk::delete(plan, place, &mut report)?;
    verify::run(plan, place, &mut report)?;
    long::run(plan, place, &mut report)?;
    Ok(report.short())
}
