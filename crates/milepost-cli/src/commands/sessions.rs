//! Beginning, resuming, branching, rewinding and ending sessions.

use std::collections::BTreeSet;

use anyhow::Result;
use milepost::store::DeleteMode;
use milepost::{
    Mark, Milepost, NewSession, Point, Session, SessionId, SessionKey, SessionPatch, SessionQuery, SessionSummary,
    parse_set,
};
use milepost_run::chat::{Author, compact_by};
use serde_json::{Value, json};

use super::show::{Later, later, message_json};
use crate::app::{App, off_by_ms, working_directory};
use crate::args;
use crate::errors::Usage;
use crate::out::{count, plain, shell_word, short};

/// What was given as KEY=VALUE.
pub fn sets(texts: &[String]) -> Result<Vec<(milepost::model::delta::StatePath, Value)>> {
    texts.iter().map(|text| parse_set(text)).map(|set| Ok(set?)).collect()
}

/// What sessions are found by.
pub fn key(keys: args::Keyed) -> SessionKey {
    let args::Keyed { project, agent, feature, task, stage } = keys;
    SessionKey { project, agent, feature, task, stage }
}

/// Where a policy differs; none when nothing was said.
pub fn policy(texts: &[String]) -> Result<Option<Value>> {
    let mut policy = json!({});
    for text in texts {
        let (path, value) = parse_set(text)?;
        let names = path.to_string();
        let mut place = &mut policy;
        for name in names.trim_start_matches('/').split('/') {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[name];
        }
        *place = value;
    }
    Ok((!texts.is_empty()).then_some(policy))
}

pub async fn new(app: &mut App, args: args::New) -> Result<()> {
    let policy = policy(&args.policy)?;
    let set = sets(&args.set)?;
    let engine = app.engine().await?;
    let mut key = key(args.keys);
    let mut here = None;
    if args.here {
        let directory = working_directory()?;
        let found = engine.here(&directory).await?;
        if let Some(note) = &found.note {
            app.out.note(plain(note));
        }
        key.project = Some(found.project.id.to_string());
        here = Some((directory, found.project.name));
    }
    let session = if args.reuse {
        let session = engine.get_or_create(&key).await?;
        let info = session.info().await;
        let mut patch = SessionPatch::new();
        if let Some(title) = args.title.filter(|_| info.title.is_none()) {
            patch = patch.title(title);
        }
        if args.tags.iter().any(|tag| !info.tags.contains(tag)) {
            patch = patch.tags(info.tags.iter().cloned().chain(args.tags));
        }
        if let Some((_, name)) = here.as_ref().filter(|_| !info.extra.contains_key("project_name")) {
            patch = patch.with("project_name", Value::String(name.clone()));
        }
        if !patch.is_empty() {
            session.patch(patch).await?;
        }
        if !set.is_empty() {
            session.set(&set).await?;
        }
        session
    } else {
        let mut patch = key.patch();
        if let Some((_, name)) = &here {
            patch = patch.with("project_name", Value::String(name.clone()));
        }
        if let Some(title) = args.title {
            patch = patch.title(title);
        }
        if !args.tags.is_empty() {
            patch = patch.tags(args.tags);
        }
        engine.create(NewSession { patch, policy, ..NewSession::default() }.with(&set)?).await?
    };
    if let Some((directory, _)) = &here {
        session.collect_context(directory).await?;
    }
    finish(app, &engine, session).await
}

/// Gives a session back and writes its id.
async fn finish(app: &App, engine: &Milepost, session: Session) -> Result<()> {
    let id = session.id();
    session.release().await?;
    if app.out.json {
        return app.out.json(&SessionSummary::of(engine.store().session(id).await.map_err(milepost::Error::from)?));
    }
    app.out.line(id.to_string())
}

/// A checkpoint with its label, or else its trigger.
pub fn name(mark: &Mark) -> String {
    match &mark.checkpoint.label {
        Some(label) => format!("{} ({})", mark.checkpoint.id, plain(label)),
        None => format!("{} ({})", mark.checkpoint.id, plain(mark.checkpoint.trigger.as_str())),
    }
}

pub async fn pause(app: &mut App, session: &str, reason: Option<&str>) -> Result<()> {
    let id = app.session_to_write(session).await?;
    let checkpoint = app.engine().await?.pause(id, reason).await?;
    done(app, id, "paused", Some(checkpoint.to_string()))
}

pub async fn complete(app: &mut App, session: &str) -> Result<()> {
    let id = app.session_to_write(session).await?;
    let checkpoint = app.engine().await?.complete(id).await?;
    done(app, id, "completed", Some(checkpoint.to_string()))
}

fn done(app: &App, id: SessionId, status: &str, checkpoint: Option<String>) -> Result<()> {
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "status": status, "checkpointId": checkpoint }));
    }
    match checkpoint {
        Some(checkpoint) => app.out.line(format!("{status} {id} at checkpoint {checkpoint}")),
        None => app.out.line(format!("{status} {id}")),
    }
}

pub async fn branch(app: &mut App, args: args::Branch) -> Result<()> {
    let set = sets(&args.set)?;
    let point: Point = args.checkpoint.parse()?;
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    let patch = args.title.map(|title| SessionPatch::new().title(title)).unwrap_or_default();
    let mark = app.mark(&engine, id, &point).await?;
    let at = Point::Checkpoint(mark.checkpoint.id);
    let branch = engine.branch(id, &at, NewSession { patch, ..NewSession::default() }).await?;
    if !set.is_empty() {
        branch.set(&set).await?;
    }
    let later = later(&engine, id, &mark).await;
    if point == Point::Latest && !later.is_nothing() {
        app.out.note(format!(
            "without {} of {}, which came after its latest checkpoint; to have all of it, take one first: milepost checkpoint {}",
            later.in_words("message"),
            short(id),
            short(id)
        ));
    }
    if app.out.json {
        let branch_id = branch.id();
        branch.release().await?;
        let summary = engine.summary(branch_id).await?;
        let mut value = serde_json::to_value(summary)?;
        value["messagesLeft"] = json!(later.messages);
        value["stateLeft"] = json!(later.state);
        return app.out.json(&value);
    }
    finish(app, &engine, branch).await
}

pub async fn restore(app: &mut App, session: &str, checkpoint: &str, dry_run: bool) -> Result<()> {
    let point: Point = checkpoint.parse()?;
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let mark = app.mark(&engine, id, &point).await?;
    let now = engine.store().session(id).await.map_err(milepost::Error::from)?;
    let behind = now.messages().saturating_sub(mark.checkpoint.messages());
    let state = engine.store().state(id).await.ok().map(|state| milepost::model::hash_value(state.as_value()));
    let left = Later { messages: behind, state: state.is_some_and(|hash| hash != mark.checkpoint.state.0) };
    if dry_run {
        if app.out.json {
            return app.out.json(&json!({
                "sessionId": id, "checkpointId": mark.checkpoint.id, "checkpointTime": mark.time.to_string(),
                "offByMs": off_by_ms(&point, &mark), "messagesLeft": behind, "stateLeft": left.state,
            }));
        }
        return app.out.line(format!(
            "would go back to {}, taken {}; {} would stay on the old timeline",
            name(&mark),
            app.out.time(mark.time),
            left.in_words("later message")
        ));
    }
    app.free_from_the_dead(id).await?;
    let held = engine.hold(id).await?;
    let end = held.mark_end().await.ok().flatten().or(now.checkpoint);
    let done = held.restore(&Point::Checkpoint(mark.checkpoint.id)).await;
    super::give_back(held, done).await?;
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": id, "checkpointId": mark.checkpoint.id, "checkpointTime": mark.time.to_string(),
            "offByMs": off_by_ms(&point, &mark), "messagesLeft": behind, "stateLeft": left.state, "forward": end,
        }));
    }
    app.out.line(format!("{id} is back at {}", name(&mark)))?;
    let forward = end.filter(|end| *end != mark.checkpoint.id);
    let back = forward.map(|id| format!("go forward again with: milepost sessions restore {} {id}", short(now.id)));
    let later = (!left.is_nothing()).then(|| format!("on the old timeline: {}", left.in_words("later message")));
    let said: Vec<String> = later.into_iter().chain(back).collect();
    if !said.is_empty() {
        app.out.note(said.join("; "));
    }
    Ok(())
}

/// Takes every checkpoint of a session out of the trash.
pub async fn untrash_checkpoints(app: &mut App, sessions: &[String]) -> Result<()> {
    let [session] = sessions else {
        return Err(Usage("checkpoints are one session's: name only that".into()).into());
    };
    let id = app.session_to_write(session).await?;
    let back = app.engine().await?.untrash_checkpoints(id).await?;
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "checkpoints": back }));
    }
    app.out.line(format!("untrashed {} of {id}", count(back.len(), "checkpoint")))
}

pub async fn trash(app: &mut App, sessions: &[String], checkpoint: Option<&str>, into: bool) -> Result<()> {
    let engine = app.engine().await?;
    if let Some(checkpoint) = checkpoint {
        let [session] = sessions else {
            return Err(Usage("a checkpoint is one session's: name only that".into()).into());
        };
        return trash_checkpoint(app, session, checkpoint, into).await;
    }
    // All are found before the first is moved: what `last` means does not change on the way.
    let mut ids = Vec::new();
    for session in sessions {
        let id = app.session_of(session, SessionQuery { trashed: !into, ..SessionQuery::default() }).await?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut moved = Vec::new();
    for id in ids {
        app.free_from_the_dead(id).await?;
        match into {
            true => engine.store().trash(id, &engine.claim()).await.map_err(milepost::Error::from)?,
            false => engine.store().untrash(id, &engine.claim()).await.map_err(milepost::Error::from)?,
        }
        if !app.out.json {
            app.out.line(format!("{} {id}", if into { "trashed" } else { "untrashed" }))?;
        }
        moved.push(id);
    }
    if app.out.json {
        return app.out.json(&json!({ "sessions": moved, "trashed": into }));
    }
    Ok(())
}

async fn trash_checkpoint(app: &mut App, session: &str, checkpoint: &str, into: bool) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let mark = engine.mark(id, &checkpoint.parse()?).await?.checkpoint.id;
    match into {
        true => engine.trash_checkpoint(id, mark).await?,
        false => engine.untrash_checkpoint(id, mark).await?,
    }
    done(app, id, if into { "trashed" } else { "untrashed" }, Some(mark.to_string()))
}

pub async fn delete(app: &mut App, args: args::Delete) -> Result<()> {
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    let mode = match (args.keep_branches, args.cascade) {
        (true, _) => DeleteMode::KeepBranches,
        (_, true) => DeleteMode::Cascade,
        _ => DeleteMode::Refuse,
    };
    let preview = engine.delete(id, mode, true).await?;
    let mut copies = engine.archive_copies().await?;
    copies.retain(|copy| preview.sessions.contains(&copy.session_id));
    // Only a branch may have been what another was kept for.
    let is_branch = engine.store().session(id).await.is_ok_and(|session| session.branch.is_some());
    let unneeded = match is_branch {
        true => engine.store().unneeded(&preview.sessions).await.map_err(milepost::Error::from)?,
        false => Vec::new(),
    };
    if !args.dry_run {
        let sessions = preview.sessions.len() + preview.hidden.len();
        let title = engine.store().session(id).await.ok().and_then(|session| session.title).unwrap_or_default();
        let title = if title.is_empty() { String::new() } else { format!(" “{}”", plain(&title)) };
        let what = if sessions == 1 { format!("session {id}{title}") } else { count(sessions, "session") };
        app.confirm(&format!("Delete {what} for good?"), args.yes).await?;
        app.free_from_the_dead(id).await?;
        engine.delete(id, mode, false).await?;
    }
    if app.out.json {
        return app.out.json(&json!({
            "deleted": preview.sessions, "hidden": preview.hidden, "inArchives": copies, "unneeded": unneeded,
            "dryRun": args.dry_run,
        }));
    }
    for copy in &copies {
        app.out.note(format!(
            "{} a copy of {} stays in the archive; delete it there: milepost --store {} sessions delete {}",
            app.styles().warn("warning:"),
            short(copy.session_id),
            shell_word(&copy.url),
            copy.session_id
        ));
    }
    let word = if args.dry_run { "would delete" } else { "deleted" };
    for id in &preview.sessions {
        app.out.line(format!("{word} {id}"))?;
    }
    if !args.dry_run && !preview.sessions.is_empty() {
        app.tell_lingering(&engine);
    }
    for id in &unneeded {
        let needs = if args.dry_run { "would then need" } else { "needs" };
        app.out.note(format!(
            "no branch {needs} {id} any more, which was deleted before and is kept hidden: `milepost prune --purge` erases it"
        ));
    }
    for id in &preview.hidden {
        app.out.line(format!("{} {id}, for its branches", if args.dry_run { "would hide" } else { "hid" }))?;
    }
    Ok(())
}

pub async fn rename(app: &mut App, session: &str, title: &str) -> Result<()> {
    let id = app.session_to_write(session).await?;
    app.engine().await?.patch(id, SessionPatch::new().title(title)).await?;
    done(app, id, "renamed", None)
}

pub async fn tag(app: &mut App, session: &str, changes: &[String]) -> Result<()> {
    let mut changed: Vec<(&str, bool)> = Vec::new();
    for change in changes {
        let (tag, add) = match change.strip_prefix('-') {
            Some(tag) => (tag, false),
            None => (change.strip_prefix('+').unwrap_or(change), true),
        };
        if tag.starts_with('-') {
            return Err(Usage(format!(
                "{change:?} is no tag, and no flag that is known: a tag to remove has one - before it"
            ))
            .into());
        }
        if tag.is_empty() {
            return Err(Usage(format!("{change:?} names no tag: write +tag or -tag")).into());
        }
        changed.push((tag, add));
    }
    let id = app.session_to_write(session).await?;
    let engine = app.engine().await?;
    // Held from reading to writing: what another adds meanwhile is not lost.
    let held = engine.hold(id).await?;
    let mut tags: BTreeSet<String> = held.info().await.tags;
    for (tag, add) in changed {
        match add {
            true => drop(tags.insert(tag.to_owned())),
            // A secret is known by what is stored in its place.
            false => drop(tags.remove(tag) || tags.remove(&held.redacted(tag))),
        }
    }
    let done = held.patch(SessionPatch::new().tags(tags)).await;
    super::give_back(held, done).await?;
    let tags = engine.store().session(id).await.map_err(milepost::Error::from)?.tags;
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "tags": tags }));
    }
    app.out.line(format!("{id} {}", tags.iter().map(|tag| plain(tag)).collect::<Vec<_>>().join(" ")).trim_end())
}

pub async fn compact(app: &mut App, args: args::Compact) -> Result<()> {
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    if args.dropped {
        return show_dropped(app, id, engine.dropped(id).await?);
    }
    let how = milepost::Compact { pinned: args.pins, keep_messages: args.keep };
    let model = match &args.model {
        Some(name) => Some(app.models().await?.open(name).await.map_err(|error| Usage(error.to_string()))?),
        None => None,
    };
    let chapter = match args.dry_run {
        true => engine.compact_preview(id, &how).await?,
        false => {
            app.free_from_the_dead(id).await?;
            let held = engine.hold(id).await?;
            let done = match &model {
                Some(model) => compact_by(&held, &how, &**model, &app.cancel).await.map(|(chapter, author)| {
                    if let Author::Extract(why) = author {
                        let why = plain(&why);
                        app.out.note(format!("the model wrote no summary ({why}): it was made of what was said"));
                    }
                    chapter
                }),
                None => held.compact(&how, &milepost::context::compact::Extractive::default()).await,
            };
            super::give_back(held, done).await?
        }
    };
    if app.out.json {
        return app.out.json(&chapter);
    }
    show_chapter(app, &chapter, args.dry_run)
}

fn show_dropped(app: &App, id: SessionId, dropped: Vec<milepost::Dropped>) -> Result<()> {
    if app.out.json {
        let parts = dropped.iter().map(|part| {
            let messages: Vec<_> = part.messages.iter().map(message_json).collect();
            json!({ "version": part.version, "messages": messages })
        });
        return app.out.json(&json!({ "sessionId": id, "compactions": parts.collect::<Vec<_>>() }));
    }
    if dropped.is_empty() {
        app.out.note(format!(
            "no summary is in force: requests hold the last messages as they are; `milepost sessions compact {}` makes one",
            short(id)
        ));
    }
    for part in &dropped {
        let messages = count(part.messages.len(), "message");
        app.out.line(app.out.styles.bold(&format!("summary {} stands for {messages}:", part.version)))?;
        super::messages::put_all(app, id, &part.messages, &[], 0)?;
    }
    Ok(())
}

fn show_chapter(app: &App, chapter: &milepost::Chapter, dry_run: bool) -> Result<()> {
    let word = if dry_run { "would stand" } else { "stands" };
    app.out.line(format!(
        "a summary {word} for {}; {} tokens become {}, {} fewer",
        count(chapter.messages, "message"),
        chapter.tokens_before,
        chapter.tokens_after,
        chapter.tokens_before.saturating_sub(chapter.tokens_after)
    ))?;
    show_summary(app, &chapter.summary)
}

fn show_summary(app: &App, summary: &milepost::context::compact::Summary) -> Result<()> {
    let parts = [
        ("completed", &summary.completed_items),
        ("pending", &summary.pending_items),
        ("decisions", &summary.decisions),
        ("blockers", &summary.blockers),
        ("pinned", &summary.pinned_facts),
    ];
    for (title, items) in parts {
        if !items.is_empty() {
            app.out.line(app.out.styles.bold(title))?;
            for item in items {
                app.out.line(format!("  - {}", plain(item)))?;
            }
        }
    }
    Ok(())
}

/// The summary in force, for whoever may read it.
pub async fn summary(app: &mut App, session: &str, reader: Option<&str>) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let summary = match reader {
        Some(reader) => engine.read_summary(id, reader).await?,
        None => engine.own_summary(id).await?,
    };
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "summary": summary }));
    }
    match &summary {
        Some(summary) => show_summary(app, summary),
        None => {
            app.out.note(format!("it has no summary: `milepost sessions compact {}` makes one", short(id)));
            Ok(())
        }
    }
}

pub async fn uncompact(app: &mut App, session: &str) -> Result<()> {
    let id = app.session_to_write(session).await?;
    let held = app.engine().await?.hold(id).await?;
    let done = held.uncompact().await;
    let undone = super::give_back(held, done).await?;
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "version": undone }));
    }
    app.out.line(match undone {
        0 => format!("{id} has no summary any more: requests begin with its first message"),
        version => format!("{id} is back at summary {version}"),
    })
}
