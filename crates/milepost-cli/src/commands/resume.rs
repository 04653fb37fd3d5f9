//! Going on with a session, or only saying from where it would.

use anyhow::Result;
use milepost::store::{Error as StoreError, Mark, Skipped};
use milepost::{EngineOptions, Milepost, Point, Preview, Resume, SessionId};
use serde_json::{Value, json};

use super::sessions::{name, sets};
use crate::app::{App, off_by_ms};
use crate::args;
use crate::errors::without_advice;
use crate::out::{count, plain, short};
use crate::{holder, places};

fn tell_damage(app: &App, skipped: &[Skipped], damaged: &[String]) {
    for skipped in skipped {
        app.out.note(format!(
            "{} checkpoint {} was passed over: {}",
            app.out.styles.warn("warning:"),
            skipped.id,
            plain(without_advice(&skipped.why))
        ));
    }
    for damaged in damaged {
        app.out.note(format!("{} {}", app.out.styles.warn("warning:"), plain(without_advice(damaged))));
    }
}

/// Begins a new session with what is whole of one that cannot be gone on with.
async fn begin_anew(app: &mut App, session: &str) -> Result<()> {
    let id = app.session_or_archived(session).await?;
    let fresh = app.engine().await?.begin_anew(id).await.map_err(|error| with_flags(error, id))?;
    let new = fresh.session.id();
    fresh.session.release().await?;
    tell_damage(app, &[], &fresh.damaged);
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": new, "begunAnewFrom": id, "messageCount": fresh.messages, "damaged": fresh.damaged,
        }));
    }
    let messages = count(fresh.messages, "message");
    app.out.line(format!("began {} anew with {messages} of {id}", app.out.styles.bold(&new.to_string())))?;
    app.out.note("its state is empty; the damaged session is as it was");
    Ok(())
}

/// Where a session goes on: at its end, when something came after the checkpoint.
fn from_where(mark: Option<&Mark>, after: usize) -> String {
    match mark {
        None => "its end: it has no checkpoint".to_owned(),
        Some(mark) if after > 0 => format!("its end, {} after {}", count(after, "change"), name(mark)),
        Some(mark) => name(mark),
    }
}

pub async fn resume(app: &mut App, args: args::Resume) -> Result<()> {
    if args.fresh {
        return begin_anew(app, &args.session).await;
    }
    let set = sets(&args.set)?;
    let point: Point = args.checkpoint.as_deref().unwrap_or("latest").parse()?;
    let wait_ms = app.resume_wait_ms();
    let how = Resume { point, set, take_over: args.take_over, reopen: args.reopen, wait_ms, ..Resume::default() };
    if args.dry_run {
        return preview(app, &args.session, &how).await;
    }
    let id = app.session_or_archived(&args.session).await?;
    let engine = app.engine().await?;
    app.free_from_the_dead(id).await?;
    let point = how.point.clone();
    let resumed = engine.resume(id, how).await.map_err(|error| with_flags(error, id))?;
    if let Some(mark) = &resumed.from {
        app.tell_chosen(&point, mark);
    }
    tell_damage(app, &resumed.skipped, &resumed.damaged);
    for note in &resumed.notes {
        app.out.note(format!("{} {}", app.out.styles.warn("warning:"), plain(note)));
    }
    let info = resumed.session.info().await;
    resumed.session.release().await?;
    let from = resumed.from.as_ref();
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": id,
            "workspaceId": engine.store().workspace(),
            "projectId": info.project,
            "resumed": true,
            "resumedFrom": from.map(|mark| mark.checkpoint.id),
            "resumedFromTime": from.map(|mark| mark.time.to_string()),
            "offByMs": from.and_then(|mark| off_by_ms(&point, mark)),
            "status": info.status,
            "lastActiveAt": resumed.last_active.to_string(),
            "messageCount": resumed.messages,
            "after": resumed.after,
            "notes": resumed.notes,
            "moved": resumed.moved,
            "forward": resumed.forward,
            "skipped": skipped_json(&resumed.skipped),
            "damaged": resumed.damaged,
        }));
    }
    let title = info.title.as_deref().map(plain).unwrap_or_default();
    app.out.line(format!("resumed {} {}", app.out.styles.bold(&id.to_string()), title).trim_end())?;
    app.out.facts(&[
        ("was", format!("{}, last active {}", resumed.status, app.out.time(resumed.last_active))),
        ("from", from_where(from, resumed.after)),
        ("messages", resumed.messages.to_string()),
    ])?;
    if milepost_run::run::Ledger::graph_text(&resumed.state).is_some() {
        app.out.note(format!("it has a run of a graph: `milepost resume {}` goes on with its steps", short(id)));
    }
    if resumed.moved {
        let forward = resumed
            .forward
            .map(|end| format!("; go forward again with: milepost sessions restore {} {end}", short(id)));
        app.out
            .note(format!("what came after the checkpoint stays, on the old timeline{}", forward.unwrap_or_default()));
    }
    Ok(())
}

fn skipped_json(skipped: &[Skipped]) -> Vec<Value> {
    skipped.iter().map(|skipped| json!({ "id": skipped.id, "why": skipped.why })).collect()
}

/// What a resume would go on from. It refuses what a resume refuses, and changes nothing: an archived session is looked at
/// where it is.
async fn preview(app: &mut App, session: &str, how: &Resume) -> Result<()> {
    let engine = app.engine().await?;
    let found = app.session(session).await;
    let is_here = match &found {
        Ok(id) => engine.store().session(*id).await.is_ok(),
        Err(_) => false,
    };
    let archived = if is_here { None } else { super::transfer::find(app, session).await.ok() };
    let Some(archived) = archived else {
        let id = found?;
        let preview = look(app, &engine, id, how).await?;
        return show_preview(app, id, &preview, &how.point, None);
    };
    places::must_exist(&archived.url)?;
    let other = app.other_store(&archived.url).await?;
    let there = Milepost::on(other.clone(), EngineOptions::default()).await?;
    let seen = look(app, &there, archived.session_id, how).await;
    other.close().await.map_err(milepost::Error::from)?;
    show_preview(app, archived.session_id, &seen?, &how.point, Some(&archived.url))
}

async fn look(app: &App, engine: &Milepost, id: SessionId, how: &Resume) -> Result<Preview> {
    let preview = engine.resume_preview(id, how).await.map_err(|error| with_flags(error, id))?;
    if let Some(lease) = engine.store().lease(id).await.map_err(milepost::Error::from)?
        && lease.owner.is_some()
        && lease.until > app.out.now
        && !how.take_over
        && !holder::is_gone(&lease.holder)
    {
        let (holder, epoch, until) = (lease.holder, lease.epoch, lease.until);
        return Err(milepost::Error::from(StoreError::Held { session: id, holder, epoch, until }).into());
    }
    Ok(preview)
}

fn show_preview(app: &App, id: SessionId, preview: &Preview, point: &Point, archive: Option<&str>) -> Result<()> {
    let mark = preview.from.as_ref();
    if let Some(mark) = mark {
        app.tell_chosen(point, mark);
    }
    tell_damage(app, &preview.skipped, &preview.damaged);
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": id, "resumeFrom": mark.map(|mark| mark.checkpoint.id),
            "offByMs": mark.and_then(|mark| off_by_ms(point, mark)),
            "skipped": skipped_json(&preview.skipped), "damaged": preview.damaged, "archived": archive,
        }));
    }
    let back = archive.map(|url| format!("would be brought back from {}, and ", plain(url))).unwrap_or_default();
    let taken = mark.map(|mark| format!(", taken {}", app.out.time(mark.time))).unwrap_or_default();
    app.out.line(format!("{back}would go on from {}{taken}", from_where(mark, preview.after)))
}

/// Advice in the words of the command line.
fn with_flags(error: milepost::Error, id: SessionId) -> milepost::Error {
    match error {
        milepost::Error::Refused { what, why, instead } => {
            milepost::Error::Refused { what, why, instead: instead.replace("`reopen`", "--reopen") }
        }
        milepost::Error::Damaged { what, why, instead } => {
            let command = format!("`milepost sessions resume {} --fresh`", short(id));
            milepost::Error::Damaged { what, why, instead: instead.replace("`fresh`", &command) }
        }
        error => error,
    }
}
