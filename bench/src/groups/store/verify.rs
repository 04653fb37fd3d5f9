//! How fast everything stored is verified, by one core.

use std::path::Path;
use std::time::{Duration, Instant};

use milepost_model::{Block, Message, Role};
use milepost_store::{Append, NewSession, Store, block_on};
use serde_json::{Map, json};

use super::{Place, Plan, disk};
use crate::Result;
use crate::machine::{bytes_in, cpu_time};
use crate::milepost::{claim, open};
use crate::report::{Report, detail};
use crate::stats::{median, ms};
use crate::workload::{Rng, SEED};

const PAYLOAD_BYTES: usize = 64 << 10;
/// Times that a verification is timed,
const TIMES: usize = 5;
/// and how often it is made each time: the system counts processor time in steps of some milliseconds.
const TOGETHER: u32 = 8;

/// `verify_mb_s` on workload L and `verify_64k_mb_s` on payloads of 64 KiB: chunks of files, and pictures in base64.
pub(super) fn run(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let dir = place.scratch()?;
    disk::save_workload(plan, dir.path(), true)?;
    report.at_least("verify_mb_s", rate_mb_s("workload L", dir.path())?, 100.0);

    let dir = place.scratch()?;
    block_on(save_chunks(plan.payloads, dir.path()))?;
    let chunks = rate_mb_s("file chunks of 64 KiB", dir.path())?;
    let dir = place.scratch()?;
    block_on(save_pictures(plan.payloads, dir.path()))?;
    let pictures = rate_mb_s("pictures of 64 KiB in base64", dir.path())?;
    detail(format_args!("{chunks:.0} MB/s for chunks, {pictures:.0} for pictures: the slower one counts"));
    report.at_least("verify_64k_mb_s", chunks.min(pictures), 500.0);
    Ok(())
}

/// Stored bytes a second of one core: the median of a few verifications of the store in `dir`.
fn rate_mb_s(what: &str, dir: &Path) -> Result<f64> {
    let bytes = bytes_in(dir)?;
    let mut took = Vec::new();
    block_on(async {
        let store = open(dir, true).await?;
        for _ in 0..TIMES {
            took.push(verify(&store).await?);
        }
        store.close().await?;
        Ok::<_, crate::Error>(())
    })?;
    let all: Vec<String> = took.iter().map(|took| format!("{:.1}", ms(*took))).collect();
    detail(format_args!("verifying {what}, {:.2} MB, took {} ms", bytes as f64 / 1e6, all.join(", ")));
    let rates: Vec<f64> = took.iter().map(|took| bytes as f64 / 1e6 / took.as_secs_f64()).collect();
    Ok(median(&rates))
}

/// How long one verification takes, or all cores together where more than one is at work.
async fn verify(store: &Store) -> Result<Duration> {
    let (start, cpu) = (Instant::now(), cpu_time());
    for _ in 0..TOGETHER {
        let verified = store.verify().await?;
        if let Some(problem) = verified.problems.first() {
            return Err(format!("a store that nobody damaged has a problem: {}", problem.what).into());
        }
    }
    let took = start.elapsed();
    let cpu = cpu_time().zip(cpu).map_or(took, |(after, before)| after.saturating_sub(before));
    Ok(took.max(cpu) / TOGETHER)
}

/// Messages that each hold a picture, as base64 of bytes that do not compress.
pub async fn save_pictures(count: usize, dir: &Path) -> Result<()> {
    const TOGETHER: usize = 16;
    let mut rng = Rng::new(SEED);
    let store = open(dir, true).await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    for first in (0..count).step_by(TOGETHER) {
        let mut append = Append::new();
        for _ in first..count.min(first + TOGETHER) {
            let source = json!({"type": "base64", "media_type": "image/png", "data": rng.base64(PAYLOAD_BYTES)});
            append = append.message(Message::blocks(Role::User, vec![Block::Image { source, extra: Map::new() }]));
        }
        writer.append(append).await?;
    }
    writer.release().await?;
    Ok(store.close().await?)
}

/// Events that each name a chunk of a file.
pub(crate) async fn save_chunks(count: usize, dir: &Path) -> Result<()> {
    let mut rng = Rng::new(SEED);
    let store = open(dir, true).await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    for number in 0..count {
        let blob = writer.put_blob(&rng.bytes(PAYLOAD_BYTES)).await?;
        let event = milepost_model::Event::new("chunk", json!({ "number": number }));
        writer.append(Append::new().event_with(event, vec![blob])).await?;
    }
    writer.release().await?;
    Ok(store.close().await?)
}
