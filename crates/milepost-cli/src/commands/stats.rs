//! What uses the space, and what was spent.

use anyhow::Result;
use milepost::model::EntryKind;
use milepost::store::Stats as Space;
use milepost::store::backend::{KindUsage, SessionUsage};
use milepost::{Analytics, Day, SessionKey, SessionQuery};
use serde_json::json;

use super::list::moment;
use super::sessions::key;
use crate::app::App;
use crate::args;
use crate::errors::Usage;
use crate::out::{Table, bytes, count as so_many, plain, short};

/// So many sessions are listed by their size.
const LARGEST: usize = 10;
/// The widest bar of a chart.
const BAR: usize = 40;

pub async fn run(app: &mut App, args: args::Stats) -> Result<()> {
    let keys = key(args.keys.clone());
    if (args.since.is_some() || keys != SessionKey::default()) && (!args.usage || args.session.is_some()) {
        return Err(Usage(
            "which sessions are counted is chosen with --usage and without naming one: say --usage".into(),
        )
        .into());
    }
    match (args.usage, &args.session) {
        (true, Some(session)) => one(app, session).await,
        (true, None) => many(app, args).await,
        (false, session) => space(app, session.clone()).await,
    }
}

async fn one(app: &mut App, session: &str) -> Result<()> {
    let id = app.session(session).await?;
    let figures = app.engine().await?.analytics(id).await?;
    if app.out.json {
        return app.out.json(&figures);
    }
    app.out.line(app.out.styles.bold(&id.to_string()))?;
    show(app, &figures)
}

async fn many(app: &mut App, args: args::Stats) -> Result<()> {
    let engine = app.engine().await?;
    let since = args.since.as_deref().map(|text| moment(text, app.out.now)).transpose()?;
    let query = SessionQuery { status: Vec::new(), active_from: since, ..key(args.keys).query() };
    let mut progress = app.progress("counting", 0);
    let overview = engine.overview(&query, |done| progress.tell(done)).await?;
    progress.end();
    if app.out.json {
        return app.out.json(&overview);
    }
    let by_status: Vec<String> = overview.by_status.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let how = if by_status.is_empty() { String::new() } else { format!(": {}", by_status.join(", ")) };
    app.out.line(format!("{}{how}", so_many(overview.sessions, "session")))?;
    show(app, &overview.total)?;
    for (title, value) in [
        ("messages a day", (|day: &Day| day.messages) as fn(&Day) -> u64),
        ("tokens a day", |day| day.usage.tokens()),
        ("failures a day", |day| day.failures),
    ] {
        let values: Vec<(String, u64)> = overview.days.iter().map(|day| (day.day.clone(), value(day))).collect();
        if values.iter().any(|(_, value)| *value > 0) {
            chart(app, title, &values)?;
        }
    }
    Ok(())
}

fn show(app: &App, figures: &Analytics) -> Result<()> {
    let seconds = figures.duration / 1000;
    app.out.facts(&[
        ("messages", figures.total_messages.to_string()),
        ("average length", format!("{:.0} characters", figures.average_message_length)),
        ("tool calls", format!("{}, {} failed", figures.tool_calls_count, figures.tool_errors)),
        ("duration", format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)),
        ("artifacts", figures.artifacts_generated.to_string()),
        (
            "tokens",
            format!(
                "{} in, {} out, {} cached",
                figures.usage.input_tokens, figures.usage.output_tokens, figures.usage.cached_tokens
            ),
        ),
        ("cost", format!("${:.4}", figures.usage.cost_usd)),
    ])?;
    for (title, counts) in
        [("by role", &figures.by_role), ("by tool", &figures.by_tool), ("checkpoints", &figures.by_trigger)]
    {
        let values: Vec<(String, u64)> = counts.iter().map(|(name, count)| (plain(name), *count)).collect();
        if !values.is_empty() {
            chart(app, title, &values)?;
        }
    }
    Ok(())
}

/// A bar for every value.
fn chart(app: &App, title: &str, values: &[(String, u64)]) -> Result<()> {
    app.out.line("")?;
    app.out.line(app.out.styles.bold(title))?;
    let most = values.iter().map(|(_, value)| *value).max().unwrap_or(1).max(1);
    let rows: Vec<Vec<String>> = values
        .iter()
        .map(|(name, value)| {
            let length = (*value as f64 / most as f64 * BAR as f64).round() as usize;
            vec![name.clone(), value.to_string(), app.out.styles.info(&"█".repeat(length))]
        })
        .collect();
    app.out.table(Table { rows, shrink: &[0], ..Table::default() })
}

fn kinds(usage: &SessionUsage) -> serde_json::Value {
    let kind = |kind: EntryKind| usage.kinds[kind as usize - 1].bytes;
    json!({
        "sessionId": usage.session,
        "bytes": Space::session_bytes(usage),
        "messages": kind(EntryKind::Message), "state": kind(EntryKind::State), "marks": kind(EntryKind::Mark),
        "events": kind(EntryKind::Event), "keyframes": usage.keyframes.bytes,
    })
}

async fn space(app: &mut App, session: Option<String>) -> Result<()> {
    let only = match &session {
        Some(session) => Some(app.session(session).await?),
        None => None,
    };
    let engine = app.engine().await?;
    let store = engine.store();
    let stats = store.stats().await.map_err(milepost::Error::from)?;
    let keep = engine.policy().retention.clone();
    let shown: Vec<&SessionUsage> =
        stats.sessions.iter().filter(|usage| only.is_none_or(|id| usage.session == id)).collect();
    let mut prunable = 0;
    let mut progress = app.progress("measuring", shown.len() as u64);
    let mut rows = Vec::new();
    for (number, usage) in shown.iter().enumerate() {
        progress.tell(number as u64);
        let free = match store.prunable_bytes(usage.session, &keep).await {
            Ok(free) => free,
            // What cannot be read cannot be pruned; verify names it.
            Err(error) if error.is_damage() => 0,
            Err(milepost::store::Error::Key(_) | milepost::store::Error::NotFound { .. }) => 0,
            Err(error) => return Err(milepost::Error::from(error).into()),
        };
        prunable += free;
        if rows.len() < LARGEST {
            let title = store.session(usage.session).await.ok().and_then(|session| session.title).unwrap_or_default();
            let kind = |kind: EntryKind| bytes(usage.kinds[kind as usize - 1].bytes);
            rows.push(vec![
                short(usage.session),
                bytes(Space::session_bytes(usage)),
                kind(EntryKind::Message),
                kind(EntryKind::State),
                kind(EntryKind::Mark),
                bytes(usage.keyframes.bytes),
                bytes(free),
                plain(&title),
            ]);
        }
    }
    progress.end();
    let compression = match only {
        Some(id) => Some(store.compression(id).await.map_err(milepost::Error::from)?),
        None => None,
    };
    if app.out.json {
        return app.out.json(&json!({
            "totalBytes": stats.total_bytes, "freeBytes": stats.free_bytes, "textIndexBytes": stats.text_index_bytes,
            "blobs": { "count": stats.blobs.entries, "bytes": stats.blobs.bytes },
            "records": { "count": stats.records.entries, "bytes": stats.records.bytes },
            "prunableBytes": prunable, "compression": compression.map(|sum| json!({ "plain": sum.plain, "stored": sum.stored })),
            "sessions": shown.iter().map(|usage| kinds(usage)).collect::<Vec<_>>(),
        }));
    }
    let count = |usage: KindUsage| format!("{} in {}", bytes(usage.bytes), usage.entries);
    app.out.facts(&[
        ("store", format!("{}, of which {} are free for use again", bytes(stats.total_bytes), bytes(stats.free_bytes))),
        ("sessions", shown.len().to_string()),
        ("messages", count(stats.kind(EntryKind::Message))),
        ("state", count(stats.kind(EntryKind::State))),
        ("marks", count(stats.kind(EntryKind::Mark))),
        ("blobs", count(stats.blobs)),
        ("records", count(stats.records)),
        ("text index", bytes(stats.text_index_bytes)),
        ("pruning", format!("would free {} after the trash is emptied", bytes(prunable))),
    ])?;
    if let Some(sum) = compression {
        let ratio = sum.plain as f64 / sum.stored.max(1) as f64;
        app.out.facts(&[(
            "compression",
            format!("{} stored as {}, {ratio:.1} times smaller", bytes(sum.plain), bytes(sum.stored)),
        )])?;
    }
    if !rows.is_empty() {
        app.out.line("")?;
        let head = &["ID", "BYTES", "MESSAGES", "STATE", "MARKS", "KEYFRAMES", "PRUNABLE", "TITLE"];
        app.out.table(Table { head, rows, shrink: &[7], drop: &[5, 4, 3], ..Table::default() })?;
    }
    Ok(())
}
