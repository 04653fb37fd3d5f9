//! A session of 100,000 messages: saves stay as fast as the first, and loading it does not feel its length.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use milepost_model::{SessionId, State};
use milepost_store::{MarkQuery, MessageQuery, Store, block_on};

use super::saves::ENDS;
use super::{Place, Plan};
use crate::machine::bytes_in;
use crate::milepost::{Hand, Milepost, Session, open};
use crate::report::{Report, detail};
use crate::saver::{Saver, save_in_turn};
use crate::stats::{Samples, median, ms, summary};
use crate::workload::{SEED, Step, Workload};
use crate::{Error, Result};

/// Steps that share an append while the long session is built.
const TOGETHER: usize = 250;
/// Steps of the session that the long one is compared with: 100 messages.
const SHORT_STEPS: usize = 50;
/// Messages that a load reads.
const LAST: usize = 50;

/// `flat_100k`, `load_100k_ms` and `load_100k_vs_100`.
pub(super) fn run(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let dir = place.scratch()?;
    let mut long = build(plan, dir.path())?;
    flat(plan, place, report, &mut long)?;
    let id = long.milepost.session.id();
    long.milepost.close()?;
    detail(format_args!("{:.1} MB on disk", bytes_in(dir.path())? as f64 / 1e6));
    load(plan, place, report, &Stored { dir: dir.path().to_owned(), id, next: long.steps })
}

struct Long {
    milepost: Milepost,
    steps: Workload,
}

impl Long {
    fn save_in_turn(&mut self, count: usize) -> Result<Samples> {
        let mut samples = Samples::default();
        for step in self.steps.by_ref().take(count) {
            samples.push(timed(&mut self.milepost, step)?);
        }
        Ok(samples)
    }
}

fn timed(milepost: &mut Milepost, step: Step) -> Result<Duration> {
    let start = Instant::now();
    milepost.save(step)?;
    Ok(start.elapsed())
}

/// The session but for its last steps: its first 100 one by one, the others many to an append.
fn build(plan: &Plan, dir: &Path) -> Result<Long> {
    let start = Instant::now();
    let steps = Workload::new(SEED, 0);
    let milepost = Milepost::create(dir, &steps, true, Hand::Whole)?;
    let mut long = Long { milepost, steps };
    let first = long.save_in_turn(ENDS)?;
    let mut left = plan.long_steps.saturating_sub(2 * ENDS);
    while left > 0 {
        let count = left.min(TOGETHER);
        let steps: Vec<Step> = long.steps.by_ref().take(count).collect();
        block_on(long.milepost.session.save_together(steps))?;
        left -= count;
    }
    // The text index lags behind such appends; saved one by one it would not.
    long.milepost.index_texts()?;
    let built_s = start.elapsed().as_secs_f64();
    let last = long.save_in_turn(ENDS)?;
    detail(format_args!(
        "{} messages: first {ENDS} saves p50 {:.3} ms, then {TOGETHER} steps an append and the text index caught up ({built_s:.1} s), last {ENDS} saves p50 {:.3} ms",
        2 * plan.long_steps,
        first.p50_ms(),
        last.p50_ms()
    ));
    Ok(long)
}

/// Saves at the end of the long session against the first of a new one, alternating: minutes lie between the first
/// and the last save of the long one, and the disk may have changed.
fn flat(plan: &Plan, place: &Place, report: &mut Report, long: &mut Long) -> Result<()> {
    let mut ratios = Vec::new();
    for _ in 0..plan.runs {
        let dir = place.scratch()?;
        let workload = Workload::new(SEED, 0);
        let mut new = Milepost::create(dir.path(), &workload, true, Hand::Whole)?;
        let first = save_in_turn(&mut new, workload, ENDS, None)?.saves;
        let last = long.save_in_turn(ENDS)?;
        new.close()?;
        detail(format_args!(
            "first {ENDS} saves of a new session: {}; next {ENDS} of the long one: {}",
            summary(&first),
            summary(&last)
        ));
        ratios.push(last.p50_ms() / first.p50_ms());
    }
    report.at_most("flat_100k", median(&ratios), 1.3);
    Ok(())
}

/// Sessions of 100 messages that the long one is compared with, one after the other.
const SHORT_SESSIONS: usize = 8;
/// Steps that the long session grows by between them, so that how far the state's last keyframe lies back, which is a
/// matter of luck, is seen at many distances.
const GROWTH: usize = 7;

/// Loads the long session and a short one in turn.
fn load(plan: &Plan, place: &Place, report: &mut Report, long: &Stored) -> Result<()> {
    let dir = place.scratch()?;
    let shorts = (0..SHORT_SESSIONS as u64).map(|number| short(dir.path(), number)).collect::<Result<Vec<_>>>()?;
    let (cold, long_samples, short_samples) = block_on(async {
        let store = open(&long.dir, true).await?;
        let cold = load_once(&store, long.id).await?;
        let (mut writer, mut next) = (Session::resume(&store, long.id).await?, long.next.clone());
        let (mut long_samples, mut short_samples) = (Samples::default(), Samples::default());
        for short in &shorts {
            let short_store = open(&short.dir, true).await?;
            load_once(&short_store, short.id).await?;
            for _ in 0..plan.loads.div_ceil(SHORT_SESSIONS) {
                long_samples.push(load_once(&store, long.id).await?);
                short_samples.push(load_once(&short_store, short.id).await?);
            }
            short_store.close().await?;
            writer.save_together(next.by_ref().take(GROWTH)).await?;
        }
        store.close().await?;
        Ok::<_, Error>((cold, long_samples, short_samples))
    })?;
    let messages = 2 * plan.long_steps;
    detail(format_args!("load of {messages} messages: first {:.3} ms, then {}", ms(cold), summary(&long_samples)));
    detail(format_args!("load of {} messages: {}", 2 * SHORT_STEPS, summary(&short_samples)));
    report.at_most("load_100k_ms", long_samples.p50_ms(), 5.0);
    report.at_most("load_100k_vs_100", long_samples.p50_ms() / short_samples.p50_ms(), 1.5);
    Ok(())
}

/// A session in a closed store.
struct Stored {
    dir: PathBuf,
    id: SessionId,
    /// What it would save next.
    next: Workload,
}

fn short(dir: &Path, number: u64) -> Result<Stored> {
    let dir = dir.join(number.to_string());
    std::fs::create_dir(&dir)?;
    let mut next = Workload::new(SEED, number);
    let mut milepost = Milepost::create(&dir, &next, true, Hand::Whole)?;
    for step in next.by_ref().take(SHORT_STEPS) {
        milepost.save(step)?;
    }
    let id = milepost.session.id();
    milepost.close()?;
    Ok(Stored { dir, id, next })
}

/// The newest checkpoint's state and the last messages.
pub async fn load_once(store: &Store, session: SessionId) -> Result<Duration> {
    let start = Instant::now();
    let loaded = store.load_latest(session, &MarkQuery::default()).await?;
    let messages = store.messages(session, &MessageQuery { last: Some(LAST), ..MessageQuery::default() }).await?;
    let took = start.elapsed();
    if messages.len() != LAST || loaded.state == State::new() {
        return Err(format!("{} messages and the state {:?} came back", messages.len(), loaded.state).into());
    }
    Ok(took)
}
