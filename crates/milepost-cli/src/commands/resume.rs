//! Going on with a session, or only saying from where it would.

use anyhow::Result;
use milepost::store::{Error as StoreError, Mark, Skipped};
use milepost::{Anew, EngineOptions, Milepost, Point, Preview, Resume, SessionId};
use serde_json::{Value, json};

use super::sessions::{name, sets};
use crate::app::{App, off_by_ms};
use crate::args;
use crate::out::{count, plain, short};
use crate::{holder, places};

fn tell_damage(app: &App, skipped: &[Skipped], damaged: &[String]) {
    for skipped in skipped {
        app.out.note(format!(
            "{} checkpoint {} was passed over: {}",
            app.out.styles.warn("warning:"),
            skipped.id,
            plain(&skipped.why)
        ));
    }
    for damaged in damaged {
        app.out.note(format!("{} {}", app.out.styles.warn("warning:"), plain(damaged)));
    }
}

/// Says in so many words that a session goes on as another one.
pub fn tell_anew(app: &App, anew: &Anew, new: Option<SessionId>) {
    let warning = app.styles().warn("warning:");
    let old = anew.instead_of;
    app.out.note(format!("{warning} nothing of session {old} can be gone on from: {}", plain(&anew.why)));
    let messages = |taken| count(taken, "message");
    let said = match (anew.taken_over, new) {
        (Some(taken), Some(new)) => {
            format!(
                "it goes on as a new session, {new}, with its {} that can be read and an empty state",
                messages(taken)
            )
        }
        (Some(taken), None) => {
            format!("it would go on as a new session, with its {} that can be read and an empty state", messages(taken))
        }
        (None, Some(new)) => format!("it goes on as session {new}, which was begun anew for it before"),
        (None, None) => "it would go on as the session that was begun anew for it before".to_owned(),
    };
    let lost = match anew.lost {
        0 => String::new(),
        lost => format!("; {} of it cannot be read", count(lost, "entry")),
    };
    app.out.note(format!("{warning} {said}{lost}; the damaged session is as it was"));
}

fn anew_json(anew: Option<&Anew>) -> Value {
    anew.map_or(Value::Null, |anew| {
        json!({ "insteadOf": anew.instead_of, "why": anew.why, "messagesTaken": anew.taken_over, "messagesLost": anew.lost })
    })
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
    let set = sets(&args.set)?;
    let point: Point = args.checkpoint.as_deref().unwrap_or("latest").parse()?;
    let wait_ms = app.resume_wait_ms();
    let begin_anew = !args.no_fresh;
    let (take_over, reopen) = (args.take_over, args.reopen);
    let how = Resume { point, set, take_over, reopen, wait_ms, begin_anew, ..Resume::default() };
    if args.dry_run {
        return preview(app, &args.session, &how).await;
    }
    let id = app.session_or_archived(&args.session).await?;
    let engine = app.engine().await?;
    app.free_from_the_dead(id).await?;
    let point = how.point.clone();
    let resumed = engine.resume(id, how).await?;
    let (asked, id) = (id, resumed.session.id());
    if let Some(anew) = &resumed.anew {
        tell_anew(app, anew, Some(id));
    }
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
            "begunAnewFrom": resumed.anew.as_ref().map(|_| asked),
            "anew": anew_json(resumed.anew.as_ref()),
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
    let preview = engine.resume_preview(id, how).await?;
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
    if let Some(anew) = &preview.anew {
        tell_anew(app, anew, None);
    }
    if let Some(mark) = mark {
        app.tell_chosen(point, mark);
    }
    tell_damage(app, &preview.skipped, &preview.damaged);
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": id, "anew": anew_json(preview.anew.as_ref()), "resumeFrom": mark.map(|mark| mark.checkpoint.id),
            "offByMs": mark.and_then(|mark| off_by_ms(point, mark)),
            "skipped": skipped_json(&preview.skipped), "damaged": preview.damaged, "archived": archive,
        }));
    }
    let back = archive.map(|url| format!("would be brought back from {}, and ", plain(url))).unwrap_or_default();
    if preview.anew.is_some() {
        return app.out.line(format!("{back}would go on as another session"));
    }
    let taken = mark.map(|mark| format!(", taken {}", app.out.time(mark.time))).unwrap_or_default();
    app.out.line(format!("{back}would go on from {}{taken}", from_where(mark, preview.after)))
}
