//! One session's saves: flat, near the disk's floor, and faster than the peer's.

use std::fs::File;
use std::io::BufWriter;

use super::{Place, Plan};
use crate::Result;
use crate::bare::BareAppender;
use crate::machine::written_bytes;
use crate::milepost::{Hand, Milepost};
use crate::peers::{LanggraphSqlite, PeerRun, Shape};
use crate::report::{Report, detail};
use crate::saver::{Interleaved, save_in_turn};
use crate::stats::{Samples, median, ms, summary};
use crate::workload::{SEED, Workload};

/// Saves at each end of a run whose medians are compared.
pub(super) const ENDS: usize = 100;

/// `flat` and `save_vs_bare`: both from the same runs, in which a bare append follows each save.
pub(super) fn run(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let (mut flat, mut floor) = (Vec::new(), Vec::new());
    for number in 0..plan.runs {
        let run = interleaved(plan, place, From::Blocking, Hand::Whole)?;
        let (first, last) = (run.saves.first(ENDS).p50_ms(), run.saves.last(ENDS).p50_ms());
        flat.push(last / first);
        floor.push(run.saves.p50_ms() / run.bare.p50_ms());
        detail(format_args!(
            "run {}: save {}; first {ENDS} p50 {first:.3}, last {ENDS} p50 {last:.3}; bare p50 {:.3}",
            number + 1,
            summary(&run.saves),
            run.bare.p50_ms(),
        ));
    }
    report.at_most("flat", median(&flat), 1.2);
    report.at_most("save_vs_bare", median(&floor), 1.5);
    for (what, from, hand) in
        [("with the delta handed over", From::Blocking, Hand::Delta), ("from async code", From::Async, Hand::Whole)]
    {
        let run = interleaved(plan, place, from, hand)?;
        let ratio = run.saves.p50_ms() / run.bare.p50_ms();
        detail(format_args!("the same {what}: save {}; {ratio:.3} x bare", summary(&run.saves)));
    }
    Ok(())
}

/// What saves are made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// A thread that waits for them.
    Blocking,
    /// A task on a runtime that serves others meanwhile.
    Async,
}

fn interleaved(plan: &Plan, place: &Place, from: From, hand: Hand) -> Result<Interleaved> {
    let dir = place.scratch()?;
    let mut bare = BareAppender::create(dir.path())?;
    let workload = Workload::new(SEED, 0);
    let mut milepost = Milepost::create(dir.path(), &workload, true, hand)?;
    if from == From::Async {
        milepost = milepost.from_async()?;
    }
    let run = save_in_turn(&mut milepost, workload, plan.steps, Some(&mut bare))?;
    milepost.close()?;
    Ok(run)
}

/// What one run of Milepost took, to be compared with a peer's.
struct Alone {
    saves: Samples,
    /// How long it took to catch up with the text index, when that was asked for.
    index_s: f64,
    close_s: f64,
    written_bytes: Option<u64>,
}

impl Alone {
    /// All saves and the close.
    fn total_s(&self) -> f64 {
        self.saves.total().as_secs_f64() + self.close_s
    }
}

fn alone(plan: &Plan, place: &Place, hand: Hand, with_index: bool) -> Result<Alone> {
    let dir = place.scratch()?;
    let workload = Workload::new(SEED, 0);
    let mut milepost = Milepost::create(dir.path(), &workload, true, hand)?;
    let before = written_bytes();
    let run = save_in_turn(&mut milepost, workload, plan.steps, None)?;
    let written = written_bytes().zip(before).map(|(after, before)| after - before);
    let index_s = if with_index { milepost.index_texts()?.as_secs_f64() } else { 0.0 };
    let close_s = milepost.close()?.as_secs_f64();
    Ok(Alone { saves: run.saves, index_s, close_s, written_bytes: written })
}

/// `total_vs_langgraph_delta` and `_full`: all saves and the close, alternating with the peer.
pub(super) fn against_langgraph(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let dir = place.scratch()?;
    let file = dir.path().join("workload.jsonl");
    Workload::new(SEED, 0).write_jsonl(plan.steps, &mut BufWriter::new(File::create(&file)?))?;
    let peer = LanggraphSqlite::new(place.python(), &file);
    for (shape, pairs, bar) in [(Shape::Delta, plan.delta_pairs, 0.5), (Shape::Full, plan.full_pairs, 0.1)] {
        let mut ratios = Vec::new();
        for number in 0..pairs {
            let theirs = peer.run(shape, dir.path())?;
            let ours = alone(plan, place, Hand::Whole, false)?;
            if number == 0 {
                detail(versions(&theirs));
            }
            let their_s = theirs.total_s + theirs.all["close_s"].as_f64().unwrap_or_default();
            ratios.push(ours.total_s() / their_s);
            detail(format_args!(
                "langgraph {} {:.3} s (close {}), {:.1} MB; milepost {:.3} s (close {:.3}; save {}), {:.1} KB written a save",
                shape.name(),
                their_s,
                theirs.all["close_s"],
                theirs.disk_bytes as f64 / 1e6,
                ours.total_s(),
                ours.close_s,
                summary(&ours.saves),
                ours.written_bytes.map_or(f64::NAN, |bytes| bytes as f64 / 1e3 / plan.steps as f64),
            ));
        }
        report.at_most(&format!("total_vs_langgraph_{}", shape.name()), median(&ratios), bar);
    }
    let by_delta = alone(plan, place, Hand::Delta, true)?;
    detail(format_args!("with the delta handed over: {:.3} s", by_delta.total_s()));
    detail(format_args!("the texts were indexed later, by the first search, in {:.3} s", by_delta.index_s));
    let mean_ms = ms(by_delta.saves.total()) / by_delta.saves.len().max(1) as f64;
    detail(format_args!("  save mean {mean_ms:.3} ms, {}", summary(&by_delta.saves)));
    Ok(())
}

fn versions(run: &PeerRun) -> String {
    let of = |name: &str| run.all[name].as_str().unwrap_or("?").to_owned();
    format!(
        "langgraph {}, checkpoint {}, checkpoint-sqlite {}, SQLite {}, Python {}",
        of("langgraph"),
        of("langgraph_checkpoint"),
        of("langgraph_checkpoint_sqlite"),
        of("sqlite"),
        of("python")
    )
}
