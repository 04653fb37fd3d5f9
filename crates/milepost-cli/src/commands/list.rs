//! Lists: of sessions, of checkpoints, of what a search found.

use anyhow::Result;
use milepost::context::history::readable;
use milepost::{
    How, MarkQuery, Message, Role, SearchHit, SearchQuery, SessionInfo, SessionQuery, Status, Timestamp, Trigger,
    parse_time,
};
use serde_json::json;

use super::sessions::key;
use crate::app::App;
use crate::args;
use crate::errors::Usage;
use crate::out::{Table, clip, count, plain, short};

/// A moment: a time, or how long ago it was (`90s`, `15m`, `2h`, `3d`, `2w`).
pub fn moment(text: &str, now: Timestamp) -> Result<Timestamp> {
    if let Some(time) = parse_time(text) {
        return Ok(time);
    }
    let wrong =
        || Usage(format!("{text:?} is not a time: write 2026-11-16, 2026-11-16T10:00:00Z, 90s, 15m, 2h, 3d or 2w"));
    let unit = text.chars().last().ok_or_else(wrong)?;
    let count: i64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 604_800,
        _ => return Err(wrong().into()),
    };
    Ok(now.plus_ms(-count.saturating_mul(seconds * 1000)))
}

/// A status in its colour.
pub fn colored(app: &App, status: Status) -> String {
    let (styles, text) = (app.out.styles, status.as_str());
    match status {
        Status::Active => styles.good(text),
        Status::Paused | Status::Waiting => styles.warn(text),
        Status::Failed => styles.bad(text),
        Status::Completed | Status::Cancelled => styles.dim(text),
    }
}

pub async fn list(app: &mut App, args: args::List) -> Result<()> {
    let Some(engine) = app.engine_if_any().await? else {
        return match (app.out.json, args.archived) {
            (true, true) => app.out.json(&json!({ "archived": [] })),
            (true, false) => app.out.json(&json!({ "sessions": [], "more": false })),
            (false, _) => Ok(()),
        };
    };
    if args.archived {
        return super::transfer::list_archived(app).await;
    }
    let key = key(args.keys).of_known_project(&engine).await?;
    let since = args.since.as_deref().map(|text| moment(text, app.out.now)).transpose()?;
    let mut query = SessionQuery {
        status: args.status.clone(),
        tag: args.tag,
        trashed: args.trashed,
        active_from: since,
        by_creation: args.by_creation,
        ..key.query()
    };
    if args.resumable {
        query.status = key.query().status;
    } else if args.status.is_empty() {
        query.status = Vec::new();
    }
    let wanted = if args.all { usize::MAX } else { args.limit };
    let mut sessions: Vec<SessionInfo> = Vec::new();
    let mut more = false;
    while sessions.len() < wanted {
        query.limit = (!args.all).then(|| wanted - sessions.len());
        let page = engine.sessions(&query).await?;
        sessions.extend(page.sessions);
        more = page.next.is_some();
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    if app.out.json {
        let summaries = engine.summarised(sessions).await?;
        return app.out.json(&json!({ "sessions": summaries, "more": more }));
    }
    if sessions.is_empty() {
        app.out.note("no sessions: begin one with `milepost sessions new`, or look with other filters");
        return Ok(());
    }
    let ids: Vec<_> = sessions.iter().map(|session| session.id).collect();
    let kept = engine.store().count_marks(&ids).await.map_err(milepost::Error::from)?;
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .zip(kept)
        .map(|(session, kept)| {
            vec![
                short(session.id),
                colored(app, session.status),
                session.messages().to_string(),
                kept.to_string(),
                app.out.time(session.active),
                project(session),
                session.agent.as_deref().map(plain).unwrap_or_default(),
                title(session),
            ]
        })
        .collect();
    let head = ["ID", "STATUS", "MESSAGES", "CHECKPOINTS", "ACTIVE", "PROJECT", "AGENT", "TITLE"];
    let shown = rows.len();
    let (shrink, drop, last) = (&[5, 6, 7], &[3, 6, 5, 2], &[4]);
    app.out.table(Table { head: &head, rows, shrink, drop, last, ..Table::default() })?;
    if more {
        let first = if args.by_creation { "newest" } else { "last active" };
        app.out.note(format!("these are the {shown} {first}; --all shows every one"));
    }
    Ok(())
}

/// What a session's project is called, or else its id.
pub fn project(session: &SessionInfo) -> String {
    milepost::project_name(session).map(plain).unwrap_or_default()
}

/// What a session is called, or else its last words.
fn title(session: &SessionInfo) -> String {
    match (&session.title, &session.preview) {
        (Some(title), _) => plain(title),
        (None, Some(preview)) => format!("“{}”", plain(preview)),
        (None, None) => String::new(),
    }
}

pub async fn checkpoints(app: &mut App, args: args::Checkpoints) -> Result<()> {
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    let query = MarkQuery {
        triggers: args.triggers.into_iter().map(Trigger::from).collect(),
        clean: args.clean.then_some(true),
        resumable: args.resumable.then_some(true),
        trashed: args.trashed,
        ..MarkQuery::default()
    };
    for trigger in &query.triggers {
        // Programs have triggers of their own: what this session has is known.
        let Trigger::Other(name) = trigger else { continue };
        let of_it = MarkQuery {
            triggers: vec![trigger.clone()],
            trashed: args.trashed,
            limit: Some(1),
            ..MarkQuery::default()
        };
        if engine.store().marks(id, &of_it).await.map_err(milepost::Error::from)?.is_empty() {
            return Err(super::state::no_trigger(name).into());
        }
    }
    let (mut marks, skipped) = engine.store().marks_and_skipped(id, &query).await.map_err(milepost::Error::from)?;
    let total = marks.len();
    marks.truncate(args.limit);
    if app.out.json {
        let list: Vec<_> = marks.iter().map(super::show::mark_json).collect();
        let latest = marks.first().map(|mark| mark.checkpoint.id);
        let mut all = json!({
            "session_id": id, "checkpoints": list, "latest_checkpoint_id": latest, "total_checkpoints": total,
        });
        if !skipped.is_empty() {
            all["unusable"] = skipped.iter().map(|lost| json!({ "id": lost.id, "why": lost.why })).collect();
        }
        return app.out.json(&all);
    }
    for lost in &skipped {
        app.out.note(format!("checkpoint {} is there and cannot be used: {}", short(lost.id), lost.why));
    }
    if marks.is_empty() && !skipped.is_empty() {
        return Ok(());
    }
    if marks.is_empty() {
        app.out.note("no checkpoints like that: take one with `milepost checkpoint`, or look with other filters");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = marks
        .iter()
        .map(|mark| {
            let point = &mark.checkpoint;
            let mut flags = Vec::new();
            if !point.clean {
                flags.push("not clean");
            }
            if !point.resumable.is_yes() {
                flags.push("not resumable");
            }
            vec![
                short(point.id),
                point.number.to_string(),
                plain(point.trigger.as_str()),
                app.out.time(mark.time),
                point.messages().to_string(),
                if flags.is_empty() { String::new() } else { app.out.styles.warn(&flags.join(", ")) },
                point.label.as_deref().map(plain).unwrap_or_default(),
                point.description.as_deref().map(plain).unwrap_or_default(),
            ]
        })
        .collect();
    let head = &["ID", "NUMBER", "TRIGGER", "TAKEN", "MESSAGES", "", "LABEL", "DESCRIPTION"];
    let shown = rows.len();
    app.out.table(Table { head, rows, shrink: &[7, 6], drop: &[4, 1, 7], last: &[5, 2], ..Table::default() })?;
    if shown < total {
        app.out.note(format!("these are the newest {shown} of {total}; --limit {total} shows every one"));
    }
    Ok(())
}

pub async fn search(app: &mut App, args: args::Search) -> Result<()> {
    let session = match &args.session {
        Some(session) => Some(app.session(session).await?),
        None => None,
    };
    let engine = app.engine().await?;
    let now = app.out.now;
    let project = match &args.project {
        Some(given) => Some(engine.project_known(given).await?),
        None => None,
    };
    let query = SearchQuery {
        substring: args.substring,
        session,
        project,
        agent: args.agent,
        role: args.role.map(Role::from),
        from: args.since.as_deref().map(|text| moment(text, now)).transpose()?,
        to: args.until.as_deref().map(|text| moment(text, now)).transpose()?,
        limit: args.limit,
        context: args.context,
        ..SearchQuery::new(args.text.join(" "))
    };
    if let (Some(from), Some(to)) = (query.from, query.to)
        && from >= to
    {
        let why = format!("--since {from} is not before --until {to}: nothing lies between them");
        return Err(Usage(format!("{why}; give the earlier time to --since")).into());
    }
    let found = engine.search(&query).await?;
    // What was archived is elsewhere, and is not looked at.
    let archived = if session.is_some() { 0 } else { engine.archived().await?.len() };
    if app.out.json {
        let mut value = serde_json::to_value(&found)?;
        value["archivedNotSearched"] = json!(archived);
        return app.out.json(&value);
    }
    for (number, hit) in found.hits.iter().enumerate() {
        if number > 0 {
            app.out.line("")?;
        }
        show_hit(app, hit)?;
    }
    if found.hits.is_empty() {
        app.out.note(match args.substring {
            true => "nothing was found",
            false => "nothing was found: --substring also looks inside of words",
        });
    }
    if let How::Scan { why, messages } = &found.how {
        app.out.note(format!("{} read, every one: {why}", count(*messages, "message")));
    }
    for (id, why) in &found.unread {
        let warning = app.styles().warn("warning:");
        app.out.note(format!("{warning} not all of {} was searched: {}", short(id), plain(why)));
    }
    if archived > 0 {
        let (sessions, were) = (count(archived, "archived session"), if archived == 1 { "was" } else { "were" });
        app.out.note(format!(
            "{sessions} {were} not searched; `milepost sessions list --archived` shows them, `milepost sessions unarchive` brings one back"
        ));
    }
    if found.more {
        let these = match found.hits.len() {
            1 => "this one".to_owned(),
            many => format!("these {many}"),
        };
        app.out.note(format!("there are more than {these}: --limit shows more"));
    }
    Ok(())
}

fn show_hit(app: &App, hit: &SearchHit) -> Result<()> {
    let title = hit.title.as_deref().map(plain).unwrap_or_default();
    let left = if hit.current { "" } else { " (left behind by a restore)" };
    let head =
        format!("{}  {}  {}{}", app.out.styles.bold(&short(hit.session_id)), app.out.time(hit.time), title, left);
    app.out.line(clip(head.trim_end(), app.out.width()))?;
    let line = |message: &Message, mark: &str| {
        let text = plain(&readable(message));
        let text = format!("{mark} {}: {}", plain(message.role.as_str()), text.trim());
        clip(&text, app.out.width().min(400))
    };
    for message in &hit.context.before {
        app.out.line(app.out.styles.dim(&line(message, " ")))?;
    }
    app.out.line(line(&hit.message, ">"))?;
    for message in &hit.context.after {
        app.out.line(app.out.styles.dim(&line(message, " ")))?;
    }
    Ok(())
}
