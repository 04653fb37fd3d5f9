//! What uses the space, and what was spent.

use anyhow::Result;
use milepost::model::EntryKind;
use milepost::store::backend::{KindUsage, SessionUsage};
use milepost::store::{Error as StoreError, Stats as Space};
use milepost::{Analytics, Day, Milepost, SessionId, SessionKey, SessionQuery};
use serde_json::json;

use super::cost::UNCHECKED;
use super::list::moment;
use super::sessions::key;
use crate::app::App;
use crate::args;
use crate::errors::Usage;
use crate::out::{Table, bytes, clip, count as so_many, plain, short, wrap};

/// So many sessions are listed by their size.
const LARGEST: usize = 10;
/// The widest bar of a chart.
const BAR: usize = 40;
/// What costs are charted in.
const PARTS_OF_DOLLAR: f64 = 10_000.0;

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
        (false, Some(session)) => space_of(app, session).await,
        (false, None) => space(app).await,
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
    let key = key(args.keys).of_known_project(&engine).await?;
    let query = SessionQuery { status: Vec::new(), active_from: since, ..key.query() };
    let mut progress = app.progress("counting session", 0);
    let overview = engine.overview(&query, |done| progress.tell(done)).await?;
    progress.end();
    if app.out.json {
        return app.out.json(&overview);
    }
    for (id, why) in &overview.uncounted {
        app.out.note(format!("not all of {} was counted: {}", short(id), plain(why)));
    }
    let by_status: Vec<String> = overview.by_status.iter().map(|(status, count)| format!("{count} {status}")).collect();
    let how = if by_status.is_empty() { String::new() } else { format!(": {}", by_status.join(", ")) };
    let head = format!("{}{how}", so_many(overview.sessions, "session"));
    wrap(&head, app.out.width()).iter().try_for_each(|line| app.out.line(line))?;
    show(app, &overview.total)?;
    for (title, value) in [
        ("messages a day", (|day: &Day| day.messages) as fn(&Day) -> u64),
        ("tokens a day", |day| day.usage.tokens()),
        ("checkpoints a day", |day| day.checkpoints),
        ("failures a day", |day| day.failures),
    ] {
        let values: Vec<(String, u64)> = overview.days.iter().map(|day| (day.day.clone(), value(day))).collect();
        if values.iter().any(|(_, value)| *value > 0) {
            chart(app, title, &values, |count| count.to_string())?;
        }
    }
    let cost = |day: &Day| (day.day.clone(), (day.usage.cost_usd * PARTS_OF_DOLLAR).round() as u64);
    let costs: Vec<(String, u64)> = overview.days.iter().map(cost).collect();
    if costs.iter().any(|(_, cost)| *cost > 0) {
        chart(app, "cost a day", &costs, |cost| format!("${:.4}", cost as f64 / PARTS_OF_DOLLAR))?;
    }
    Ok(())
}

fn show(app: &App, figures: &Analytics) -> Result<()> {
    let seconds = figures.duration / 1000;
    let left = match figures.left_messages {
        0 => String::new(),
        left => format!(", {left} of them left behind by restores"),
    };
    let shared = match figures.shared_messages {
        0 => String::new(),
        shared => format!("; {shared} more are shared, and counted where they were written"),
    };
    let left_cost = match figures.left_usage.cost_usd {
        0.0 => String::new(),
        cost => format!(", ${cost:.4} of it left behind by restores"),
    };
    let written = match figures.usage.cache_write_tokens {
        0 => String::new(),
        written => format!(", {written} written to the cache"),
    };
    let over = match figures.messages_with_text {
        all if all == figures.total_messages => String::new(),
        some => format!(" of text, in the {some} that have any"),
    };
    let tools = match figures.average_tool_length {
        0.0 => String::new(),
        length => format!("; {length:.0} characters in the average call or result"),
    };
    app.out.facts(&[
        ("messages", format!("{}{left}{shared}", figures.total_messages)),
        ("average length", format!("{:.0} characters{over}", figures.average_message_length)),
        ("tool calls", format!("{}, {} failed{tools}", figures.tool_calls_count, figures.tool_errors)),
        ("duration", format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)),
        ("artifacts", figures.artifacts_generated.to_string()),
        (
            "tokens",
            format!(
                "{} in, {} out, {} cached{written}",
                figures.usage.input_tokens, figures.usage.output_tokens, figures.usage.cached_tokens
            ),
        ),
        ("cost", format!("${:.4}{left_cost}", figures.usage.cost_usd)),
    ])?;
    if figures.usage.unchecked_usd > 0.0 {
        app.out.note(format!("${:.4} of the cost: {UNCHECKED}", figures.usage.unchecked_usd));
    }
    for (title, counts) in
        [("by role", &figures.by_role), ("by tool", &figures.by_tool), ("checkpoints", &figures.by_trigger)]
    {
        let values: Vec<(String, u64)> = counts.iter().map(|(name, count)| (plain(name), *count)).collect();
        if !values.is_empty() {
            chart(app, title, &values, |count| count.to_string())?;
        }
    }
    Ok(())
}

/// A bar for every value.
fn chart(app: &App, title: &str, values: &[(String, u64)], shown: fn(u64) -> String) -> Result<()> {
    app.out.line("")?;
    app.out.line(app.out.styles.bold(title))?;
    let most = values.iter().map(|(_, value)| *value).max().unwrap_or(1).max(1);
    let bar = BAR.min(app.out.width() * 2 / 5);
    let rows: Vec<Vec<String>> = values
        .iter()
        .map(|(name, value)| {
            let length = (*value as f64 / most as f64 * bar as f64).round() as usize;
            vec![name.clone(), shown(*value), app.out.styles.info(&"█".repeat(length))]
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

/// What pruning a session by its own policy would free.
async fn free_bytes(engine: &Milepost, id: SessionId) -> Result<u64> {
    let store = engine.store();
    let free = async {
        let session = store.session(id).await?;
        let keep = engine.policy_of(&session)?.retention;
        Ok::<_, milepost::Error>(store.prunable_bytes(id, &keep).await?)
    };
    match free.await {
        // What cannot be read cannot be pruned; verify names it.
        Err(milepost::Error::Store(error)) if error.is_damage() => Ok(0),
        Err(milepost::Error::Store(StoreError::Key(_) | StoreError::NotFound { .. })) => Ok(0),
        free => Ok(free?),
    }
}

/// What a whole store uses, and its largest sessions.
async fn space(app: &mut App) -> Result<()> {
    let engine = app.engine().await?;
    let store = engine.store();
    let waiting = app.waiting("measuring");
    let stats = store.stats().await.map_err(milepost::Error::from)?;
    waiting.end();
    let mut prunable = 0;
    let mut progress = app.progress("measuring session", stats.sessions.len() as u64);
    let mut rows = Vec::new();
    for (number, usage) in stats.sessions.iter().enumerate() {
        progress.tell(number as u64);
        let free = free_bytes(&engine, usage.session).await?;
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
    if app.out.json {
        return app.out.json(&json!({
            "totalBytes": stats.total_bytes, "freeBytes": stats.free_bytes, "textIndexBytes": stats.text_index_bytes,
            "blobs": { "count": stats.blobs.entries, "bytes": stats.blobs.bytes },
            "records": { "count": stats.records.entries, "bytes": stats.records.bytes },
            "prunableBytes": prunable, "sessions": stats.sessions.iter().map(kinds).collect::<Vec<_>>(),
        }));
    }
    let mut facts = vec![
        ("store", format!("{}, of which {} are free for use again", bytes(stats.total_bytes), bytes(stats.free_bytes))),
        ("sessions", stats.sessions.len().to_string()),
        ("messages", used(stats.kind(EntryKind::Message))),
        ("state", used(stats.kind(EntryKind::State))),
        ("marks", used(stats.kind(EntryKind::Mark))),
        ("blobs", used(stats.blobs)),
        ("records", used(stats.records)),
        ("text index", bytes(stats.text_index_bytes)),
        ("pruning", format!("would free {} after the trash is emptied", bytes(prunable))),
    ];
    if stats.total_bytes == 0 {
        // A bucket does not say how large it is.
        facts.remove(0);
    }
    app.out.facts(&facts)?;
    if !rows.is_empty() {
        app.out.line("")?;
        let head = &["ID", "BYTES", "MESSAGES", "STATE", "MARKS", "KEYFRAMES", "PRUNABLE", "TITLE"];
        app.out.table(Table { head, rows, shrink: &[7], drop: &[5, 4, 3], last: &[2, 6], ..Table::default() })?;
    }
    Ok(())
}

fn used(usage: KindUsage) -> String {
    format!("{} in {}", bytes(usage.bytes), usage.entries)
}

/// What one session uses.
async fn space_of(app: &mut App, session: &str) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let store = engine.store();
    let title = store.session(id).await.map_err(milepost::Error::from)?.title.unwrap_or_default();
    let stats = store.stats().await.map_err(milepost::Error::from)?;
    let missing = || milepost::Error::from(StoreError::NotFound { what: "session", id: id.to_string() });
    let usage = stats.sessions.iter().find(|usage| usage.session == id).ok_or_else(missing)?;
    let prunable = free_bytes(&engine, id).await?;
    let compression = store.compression(id).await.map_err(milepost::Error::from)?;
    if app.out.json {
        let mut value = kinds(usage);
        value["prunableBytes"] = json!(prunable);
        value["compression"] = json!({ "plain": compression.plain, "stored": compression.stored });
        return app.out.json(&value);
    }
    let head = format!("{}  {}", app.out.styles.bold(&id.to_string()), plain(&title));
    app.out.line(clip(head.trim_end(), app.out.width()))?;
    let kind = |kind: EntryKind| used(usage.kinds[kind as usize - 1]);
    let ratio = compression.plain as f64 / compression.stored.max(1) as f64;
    app.out.facts(&[
        ("all of it", bytes(Space::session_bytes(usage))),
        ("messages", kind(EntryKind::Message)),
        ("state", kind(EntryKind::State)),
        ("marks", kind(EntryKind::Mark)),
        ("events", kind(EntryKind::Event)),
        ("keyframes", used(usage.keyframes)),
        (
            "compression",
            format!("{} stored as {}, {ratio:.1} times smaller", bytes(compression.plain), bytes(compression.stored)),
        ),
        ("pruning", format!("would free {} after the trash is emptied", bytes(prunable))),
    ])
}
