//! Many sessions saving at once, against SQLite as one would use it without Milepost.

use super::{Place, Plan};
use crate::Result;
use crate::milepost::{self, Hand};
use crate::plain_sqlite::PlainSqlite;
use crate::report::{Report, detail};
use crate::saver::{Throughput, save_at_once};
use crate::stats::{median, summary};
use crate::workload::SEED;

/// `many_saves_per_s`: durable saves a second over those of a connection per session. `many_p999_wait`: how long the
/// unlucky wait, in median waits.
pub(super) fn run(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let (mut rates, mut waits) = (Vec::new(), Vec::new());
    for _ in 0..plan.load_pairs {
        let theirs = plain(plan, place, true)?;
        let ours = milepost(plan, place, true, Hand::Whole)?;
        rates.push(ours.saves_per_s / theirs.saves_per_s);
        waits.push(ours.waits.percentile(99.9).as_secs_f64() / ours.waits.p50().as_secs_f64());
        describe(plan, "plain SQLite", &theirs);
        describe(plan, "milepost", &ours);
    }
    report.at_least("many_saves_per_s", median(&rates), 2.5);
    report.at_most("many_p999_wait", median(&waits), 10.0);
    describe(plan, "milepost with the delta handed over", &milepost(plan, place, true, Hand::Delta)?);
    let (theirs, ours) = (plain(plan, place, false)?, milepost(plan, place, false, Hand::Whole)?);
    describe(plan, "plain SQLite without a text index", &theirs);
    describe(plan, "milepost without a text index", &ours);
    detail(format_args!("without a text index: {:.3}", ours.saves_per_s / theirs.saves_per_s));
    Ok(())
}

fn plain(plan: &Plan, place: &Place, text_index: bool) -> Result<Throughput> {
    let dir = place.scratch()?;
    let database = PlainSqlite::create(dir.path(), SEED, plan.load.sessions, text_index)?;
    save_at_once(plan.load, SEED, |number| database.session(number))
}

fn milepost(plan: &Plan, place: &Place, text_index: bool, hand: Hand) -> Result<Throughput> {
    let dir = place.scratch()?;
    milepost::save_at_once(plan.load, SEED, &milepost::url_in(dir.path()), text_index, hand)
}

fn describe(plan: &Plan, who: &str, run: &Throughput) {
    detail(format_args!(
        "{} sessions at once, {who}: {:.0} saves/s, wait {}",
        plan.load.sessions,
        run.saves_per_s,
        summary(&run.waits)
    ));
}
