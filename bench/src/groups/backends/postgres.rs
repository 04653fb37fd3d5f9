//! PostgreSQL: Milepost and LangGraph's `PostgresSaver` on the same server, each run in an empty database.

use std::fs::File;
use std::io::BufWriter;
use std::time::Instant;

use milepost_store::{Options, block_on, migrate, open_backend, system_source};

use super::{Place, Plan};
use crate::groups::store::save_chunks;
use crate::machine::bytes_in;
use crate::milepost::{self, Hand, Milepost, Session, url_in};
use crate::peers::{LanggraphPostgres, Shape};
use crate::report::{Report, detail};
use crate::saver::save_in_turn;
use crate::stats::{Samples, median, summary};
use crate::workload::{SEED, Workload};
use crate::{Error, Result};

pub(super) fn run(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    detail(format_args!("PostgreSQL: {}", place.server.words()?));
    let dir = place.scratch()?;
    let file = dir.path().join("workload.jsonl");
    Workload::new(SEED, 0).write_jsonl(plan.steps, &mut BufWriter::new(File::create(&file)?))?;
    let peer = LanggraphPostgres::new(&place.python, &file);
    alone(plan, place, &peer, report)?;
    at_once(plan, place, &peer, report)?;
    moving(plan, place, report)
}

/// What one run of Milepost took.
struct Run {
    saves: Samples,
    /// All saves and the close.
    total_s: f64,
    bytes: u64,
}

fn save(plan: &Plan, place: &Place, text_index: bool) -> Result<Run> {
    let database = place.server.database()?;
    let workload = Workload::new(SEED, 0);
    let mut milepost = Milepost::create_at(database.url(), &workload, text_index, Hand::Whole)?;
    let run = save_in_turn(&mut milepost, workload, plan.steps, None)?;
    let close_s = milepost.close()?.as_secs_f64();
    let tables = database.tables()?;
    let words: Vec<String> = tables.iter().map(|(name, bytes)| format!("{name} {:.2}", *bytes as f64 / 1e6)).collect();
    detail(format_args!("milepost's tables, MB: {}", words.join(", ")));
    let bytes = tables.iter().map(|(_, bytes)| bytes).sum();
    Ok(Run { total_s: run.saves.total().as_secs_f64() + close_s, saves: run.saves, bytes })
}

/// `pg_total_vs_langgraph_delta` and `_full`, `pg_bytes_vs_langgraph_delta`: alternating with the peer.
fn alone(plan: &Plan, place: &Place, peer: &LanggraphPostgres, report: &mut Report) -> Result<()> {
    for (shape, pairs, bar) in [(Shape::Delta, plan.delta_pairs, 0.5), (Shape::Full, plan.full_pairs, 0.1)] {
        let (mut totals, mut sizes) = (Vec::new(), Vec::new());
        for number in 0..pairs {
            let database = place.server.database()?;
            let (their_s, all) = peer.save(shape, database.url())?;
            let their_bytes = database.bytes()?;
            drop(database);
            let ours = save(plan, place, true)?;
            let plain = save(plan, place, false)?;
            if number == 0 {
                let of = |name: &str| all[name].as_str().unwrap_or("?").to_owned();
                detail(format_args!(
                    "langgraph {}, checkpoint-postgres {}, psycopg {}, Python {}",
                    of("langgraph"),
                    of("langgraph_checkpoint_postgres"),
                    of("psycopg"),
                    of("python")
                ));
            }
            totals.push(ours.total_s / their_s);
            sizes.push(plain.bytes as f64 / their_bytes as f64);
            let shape = shape.name();
            detail(format_args!("langgraph {shape}: {their_s:.3} s, {:.2} MB", their_bytes as f64 / 1e6));
            for (what, run) in [("with the text index", &ours), ("without", &plain)] {
                let (mb, saves) = (run.bytes as f64 / 1e6, summary(&run.saves));
                detail(format_args!("milepost {what}: {:.3} s, {mb:.2} MB; save {saves}", run.total_s));
            }
        }
        report.at_most(&format!("pg_total_vs_langgraph_{}", shape.name()), median(&totals), bar);
        if shape == Shape::Delta {
            report.at_most("pg_bytes_vs_langgraph_delta", median(&sizes), 0.125);
        }
    }
    Ok(())
}

/// `pg_many_saves_per_s`: durable saves a second of many sessions / those of the peer with a connection for each.
fn at_once(plan: &Plan, place: &Place, peer: &LanggraphPostgres, report: &mut Report) -> Result<()> {
    let mut rates = Vec::new();
    for _ in 0..plan.load_pairs {
        let database = place.server.database()?;
        let (theirs, all) = peer.save_at_once(Shape::Delta, database.url(), plan.load)?;
        database.settle()?;
        drop(database);
        let [ours, plain] = [true, false].map(|text_index| {
            let database = place.server.database()?;
            let run = milepost::save_at_once(plan.load, SEED, database.url(), text_index, Hand::Whole)?;
            database.settle()?;
            Ok::<_, Error>(run)
        });
        let (ours, plain) = (ours?, plain?);
        rates.push(ours.saves_per_s / theirs);
        let (sessions, processes) = (plan.load.sessions, &all["processes"]);
        detail(format_args!(
            "{sessions} sessions at once: langgraph delta {theirs:.0} saves/s in {processes} processes"
        ));
        for (what, run) in [("with the text index", &ours), ("without", &plain)] {
            detail(format_args!("milepost {what}: {:.0} saves/s, wait {}", run.saves_per_s, summary(&run.waits)));
        }
    }
    report.at_least("pg_many_saves_per_s", median(&rates), 5.0);
    Ok(())
}

/// `pg_migrate_mb_s`: stored bytes a second from SQLite to PostgreSQL, comparing included.
fn moving(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let dir = place.scratch()?;
    block_on(async {
        save_chunks(plan.moved_chunks, dir.path()).await?;
        let store = milepost::open(dir.path(), true).await?;
        for number in 0..plan.moved_sessions as u64 {
            let workload = Workload::new(SEED, number);
            let mut session = Session::begin(&store, &workload, Hand::Whole).await?;
            session.save_together(workload.take(plan.steps)).await?;
            session.release().await?;
        }
        store.close().await?;
        Ok::<_, Error>(())
    })?;
    let mut rates = Vec::new();
    for _ in 0..plan.moves {
        let database = place.server.database()?;
        let start = Instant::now();
        let bytes = block_on(async {
            let (options, source) = (Options::default(), system_source()?);
            let from = open_backend(&url_in(dir.path()), &options, &source).await?;
            let to = open_backend(database.url(), &options, &source).await?;
            let mut bytes = 0;
            for workspace in from.workspaces().await? {
                bytes += migrate(&*from, &*to, &workspace, &source, &mut |_| {}).await?.copied_bytes;
            }
            to.close().await?;
            from.close().await?;
            Ok::<_, Error>(bytes)
        })?;
        let took_s = start.elapsed().as_secs_f64();
        rates.push(bytes as f64 / 1e6 / took_s);
        detail(format_args!(
            "{:.1} MB of entries and blobs (a file of {:.1} MB) moved and compared in {took_s:.2} s",
            bytes as f64 / 1e6,
            bytes_in(dir.path())? as f64 / 1e6
        ));
        database.settle()?;
    }
    report.at_least("pg_migrate_mb_s", median(&rates), 20.0);
    Ok(())
}
