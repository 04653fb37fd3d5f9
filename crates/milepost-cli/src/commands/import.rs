//! Sessions that other programs keep, brought over.

use anyhow::Result;
use milepost_langgraph::{Import, Saver};
use serde_json::json;

use crate::app::App;
use crate::args;
use crate::out::count;

pub async fn run(app: &mut App, command: args::Foreign) -> Result<()> {
    match command {
        args::Foreign::Langgraph(args) => langgraph(app, args).await,
    }
}

async fn langgraph(app: &mut App, args: args::Langgraph) -> Result<()> {
    let engine = app.engine().await?;
    let import = Import { from: args.from, threads: args.thread, dry_run: args.dry_run };
    let mut progress = app.progress("bringing over checkpoint", 0);
    let mut tell = |done: &milepost_langgraph::Imported| progress.tell(done.checkpoints);
    let done = Box::pin(Saver::new(engine.store().clone()).import(&import, &mut tell)).await;
    progress.end();
    let done = done.map_err(milepost::Error::from)?;
    if app.out.json {
        return app.out.json(&json!({
            "threads": done.threads, "checkpoints": done.checkpoints, "known": done.known, "writes": done.writes,
            "dryRun": args.dry_run,
            "leftOut": done.left_out.iter().map(|(thread, why)| json!({ "thread": thread, "why": why })).collect::<Vec<_>>(),
        }));
    }
    let (threads, new) = (count(done.threads, "thread"), count(done.checkpoints, "checkpoint"));
    let known = if done.known > 0 { format!("; {} here already", done.known) } else { String::new() };
    app.out.line(match args.dry_run {
        true => format!("{new} of {threads} would come over, with {}{known}", count(done.writes, "write")),
        false => format!("{new} of {threads} came over, with {}{known}", count(done.writes, "write")),
    })?;
    for (thread, why) in &done.left_out {
        app.out.note(format!("a part of thread {thread:?} was left out: {why}"));
    }
    if !args.dry_run && done.threads > 0 {
        app.out.note("the old store is as it was; see them with: milepost sessions list --agent langgraph");
    }
    Ok(())
}
