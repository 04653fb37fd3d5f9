//! What workload L takes on disk, and what deleting it gives back.

use std::path::Path;
use std::time::Instant;

use milepost_model::{SessionId, State};
use milepost_store::{DeleteMode, MarkQuery, MessageQuery, Stats, Store, block_on};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::{Place, Plan};
use crate::Result;
use crate::machine::bytes_in;
use crate::milepost::{FILE, Hand, Milepost, SECTION, claim, open};
use crate::report::{Report, detail};
use crate::saver::save_in_turn;
use crate::stats::{median, ms};
use crate::workload::{SEED, Workload};

/// Saves workload L into a new store in `dir` and closes it.
pub(super) fn save_workload(plan: &Plan, dir: &Path, text_index: bool) -> Result<SessionId> {
    let workload = Workload::new(SEED, 0);
    let mut milepost = Milepost::create(dir, &workload, text_index, Hand::Whole)?;
    save_in_turn(&mut milepost, workload, plan.steps, None)?;
    let id = milepost.session.id();
    milepost.index_texts()?;
    milepost.close()?;
    Ok(id)
}

/// `disk_mb` and `disk_with_text_mb`: every file of the closed store, in which every checkpoint can be read.
pub(super) fn bytes(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    for (name, text_index, bar) in [("disk_mb", false, 2.0), ("disk_with_text_mb", true, 2.6)] {
        let dir = place.scratch()?;
        let session = save_workload(plan, dir.path(), text_index)?;
        let bytes = bytes_in(dir.path())?;
        block_on(async {
            let store = open(dir.path(), text_index).await?;
            check_everything(&store, session, plan.steps).await?;
            store.close().await?;
            Ok::<_, crate::Error>(())
        })?;
        report.at_most(name, bytes as f64 / 1e6, bar);
        detail(format_args!(
            "all {} checkpoints and {} messages read back as they were saved",
            plan.steps,
            2 * plan.steps
        ));
        by_table(dir.path())?;
    }
    Ok(())
}

/// Fails unless every checkpoint has the state it was taken of, and every message its text.
async fn check_everything(store: &Store, session: SessionId, steps: usize) -> Result<()> {
    let mut workload = Workload::new(SEED, 0);
    let mut section = workload.initial_state().clone();
    let marks = store.marks(session, &MarkQuery { oldest_first: true, ..MarkQuery::default() }).await?;
    let messages = store.messages(session, &MessageQuery::default()).await?;
    if marks.len() != steps || messages.len() != 2 * steps {
        return Err(format!(
            "{} checkpoints and {} messages came back, not {steps} and twice that",
            marks.len(),
            messages.len()
        )
        .into());
    }
    let mut messages = messages.iter();
    for (number, (mark, step)) in marks.iter().zip(&mut workload).enumerate() {
        for said in &step.messages {
            if messages.next().is_none_or(|stored| stored.message.text() != said.content) {
                return Err(format!("a message of step {number} came back changed").into());
            }
        }
        section.insert(step.key, step.value);
        let mut expected = State::new();
        *expected.section_mut(SECTION) = Value::Object(section.clone());
        let loaded = store.load(mark.checkpoint.id).await?;
        if loaded.state != expected || loaded.mark.checkpoint.messages() != 2 * (number as u64 + 1) {
            return Err(format!("the checkpoint of step {number} came back changed").into());
        }
    }
    Ok(())
}

/// What each table and index takes, the largest first.
pub(super) fn by_table(dir: &Path) -> Result<()> {
    const SHOWN: usize = 8;
    let db = Connection::open_with_flags(dir.join(FILE), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut query = db.prepare(
        "SELECT name, sum(pgsize), sum(payload), sum(unused) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT ?1",
    )?;
    let rows = query.query_map([SHOWN as i64], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?))
    })?;
    for row in rows {
        let (name, pages, payload, unused) = row?;
        detail(format_args!(
            "  {name}: {:.1} KB in pages, {:.1} payload, {:.1} unused",
            pages as f64 / 1e3,
            payload as f64 / 1e3,
            unused as f64 / 1e3
        ));
    }
    Ok(())
}

/// What one deletion did.
struct Deletion {
    took_ms: f64,
    /// Bytes that became free over the bytes that the session added to an empty store, its texts' index included.
    freed: f64,
    /// Bytes of the file with the workload saved again over those before.
    again: f64,
}

/// `delete_ms`, `delete_freed` and `delete_then_save_again`.
pub(super) fn delete(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let runs: Vec<Deletion> = (0..plan.runs).map(|_| delete_once(plan, place)).collect::<Result<_>>()?;
    for run in &runs {
        detail(format_args!(
            "deleting the session took {:.1} ms, freed {:.3} of its bytes; saved again the file is {:.3} of what it was",
            run.took_ms, run.freed, run.again
        ));
    }
    let of = |value: fn(&Deletion) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
    report.at_most("delete_ms", of(|run| run.took_ms), 50.0);
    report.at_least("delete_freed", of(|run| run.freed), 0.9);
    report.at_most("delete_then_save_again", of(|run| run.again), 1.1);
    Ok(())
}

fn delete_once(plan: &Plan, place: &Place) -> Result<Deletion> {
    let dir = place.scratch()?;
    let empty = block_on(async {
        let store = open(dir.path(), true).await?;
        let used = used_bytes(&store.stats().await?);
        store.close().await?;
        Ok::<_, crate::Error>(used)
    })?;
    let session = save_workload(plan, dir.path(), true)?;
    let before = bytes_in(dir.path())?;
    let (took_ms, freed) = block_on(async {
        let store = open(dir.path(), true).await?;
        let full = used_bytes(&store.stats().await?);
        let start = Instant::now();
        store.delete(session, DeleteMode::Refuse, &claim(), false).await?;
        let took_ms = ms(start.elapsed());
        let left = used_bytes(&store.stats().await?);
        store.close().await?;
        Ok::<_, crate::Error>((took_ms, (full - left) as f64 / (full - empty) as f64))
    })?;
    save_workload(plan, dir.path(), true)?;
    Ok(Deletion { took_ms, freed, again: bytes_in(dir.path())? as f64 / before as f64 })
}

fn used_bytes(stats: &Stats) -> u64 {
    stats.total_bytes - stats.free_bytes
}
