//! Keeping the store in order: pruning, checking, rebuilding, erasing secrets.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use milepost::model::Retention;
use milepost::store::backend::Depth;
use milepost::store::{Error as StoreError, Obstacle, Redacted, Redactor, Store};
use milepost::{Erased, Milepost, Purge, SessionId, SessionQuery};
use milepost_langgraph::Saver;
use serde_json::json;

use super::messages::input;
use crate::app::App;
use crate::args;
use crate::errors::{Usage, finding};
use crate::out::{bytes, count as so_many, minutes, plain, short};
use crate::places;

/// Every session that is not in the trash, or the one that was named.
pub async fn chosen(app: &mut App, session: Option<&str>) -> Result<Vec<SessionId>> {
    if let Some(session) = session {
        return Ok(vec![app.session(session).await?]);
    }
    let all = app.engine().await?.every_session(&SessionQuery::default()).await?;
    Ok(all.into_iter().map(|session| session.id).collect())
}

pub async fn prune(app: &mut App, args: args::Prune) -> Result<()> {
    let ids = chosen(app, args.session.as_deref()).await?;
    let engine = app.engine().await?;
    let asked = |mut keep: Retention| {
        keep.max_checkpoints = args.keep.unwrap_or(keep.max_checkpoints);
        keep.max_age_days = args.days.unwrap_or(keep.max_age_days);
        keep.clean_only |= args.clean_only;
        keep
    };
    let general = asked(engine.policy().retention.clone());
    if args.purge && !args.dry_run {
        let found = engine.purge(&general, true).await?;
        if !found.is_nothing() {
            let (checkpoints, sessions) =
                (so_many(found.checkpoints.len(), "checkpoint"), so_many(found.sessions.len(), "session"));
            let hidden = match found.hidden.len() {
                0 => String::new(),
                hidden => format!(", and {} that no branch needs any more,", so_many(hidden, "hidden session")),
            };
            let question = format!("Erase {checkpoints} and {sessions} in the trash{hidden} for good?");
            app.confirm(&question, args.yes).await?;
        }
    }
    let (mut pruned, mut left) = (BTreeMap::new(), BTreeMap::new());
    let mut freed = 0;
    let mut progress = app.progress("pruning session", ids.len() as u64);
    for (number, id) in ids.into_iter().enumerate() {
        progress.tell(number as u64);
        let done = match args.all {
            true => clear_one(app, &engine, id, args.dry_run).await,
            false => prune_one(app, &engine, id, args.dry_run, &asked).await,
        };
        match done {
            Ok((0, _)) => {}
            Ok((count, bytes)) => {
                freed += bytes;
                pruned.insert(id, count);
            }
            // One that somebody works on, or that cannot be read, does not keep the others from it.
            Err(error) if args.session.is_none() && is_of_one_session(&error) => {
                left.insert(id, finding(&error));
            }
            Err(error) => return Err(error),
        }
    }
    progress.end();
    let waiting = app.waiting("erasing");
    let purged = match args.purge {
        true => engine.purge(&general, args.dry_run).await?,
        false => Purge::default(),
    };
    waiting.end();
    let held = purged.held;
    if app.out.json {
        return app.out.json(&json!({
            "dryRun": args.dry_run, "pruned": pruned, "freeable": freed, "left": left,
            "purged": {
                "checkpoints": purged.checkpoints, "bytes": purged.bytes, "sessions": purged.sessions,
                "hidden": purged.hidden, "held": held,
            },
        }));
    }
    let (word, erased) = if args.dry_run { ("would go", "would be erased") } else { ("went", "erased") };
    let is = if args.dry_run { "would be" } else { "is" };
    for (id, count) in &pruned {
        app.out.line(format!("{}  {} {word} into the trash", short(id), so_many(*count, "checkpoint")))?;
    }
    for (id, why) in &left {
        let warning = app.styles().warn("warning:");
        app.out.note(format!("{warning} {} is left as it is: {}", short(id), plain(why)));
    }
    if pruned.is_empty() {
        app.out.line("nothing to prune")?;
    } else {
        app.out.note(format!(
            "erasing them would free {}; they stay {} days in the trash, `prune --purge` erases what is older",
            bytes(freed),
            general.trash_days
        ));
    }
    if let (true, false, Some(id)) = (args.all, args.dry_run, pruned.keys().next()) {
        app.out.note(format!("take them out again with: milepost sessions untrash {} --checkpoints", short(id)));
    }
    for id in &purged.hidden {
        app.out.line(format!("{id}, deleted before and kept hidden for branches that are gone, {is} erased"))?;
    }
    if args.purge {
        let (checkpoints, sessions) =
            (so_many(purged.checkpoints.len(), "checkpoint"), so_many(purged.sessions.len(), "session"));
        let what = match purged.hidden.len() {
            0 => format!("{checkpoints} and {sessions}"),
            hidden => format!("{checkpoints}, {sessions} and {}", so_many(hidden, "hidden session")),
        };
        app.out.line(format!("{what} {erased}, {}", bytes(purged.bytes)))?;
        if !args.dry_run && !purged.is_nothing() {
            app.tell_lingering(&engine);
        }
    }
    if held > 0 {
        app.out.note(format!(
            "{held} more in the trash could not be erased: somebody holds their sessions; do it again later"
        ));
    }
    Ok(())
}

/// Prunes one session, or only says what would go: how many checkpoints, and the bytes that erasing them would free.
async fn prune_one(
    app: &mut App,
    engine: &Milepost,
    id: SessionId,
    dry_run: bool,
    asked: &impl Fn(Retention) -> Retention,
) -> Result<(usize, u64)> {
    let session = engine.store().session(id).await.map_err(milepost::Error::from)?;
    let keep = asked(engine.policy_of(&session)?.retention);
    let preview = engine.store().prune_preview(id, &keep).await.map_err(milepost::Error::from)?;
    if dry_run || preview.checkpoints.is_empty() {
        return Ok((preview.checkpoints.len(), preview.bytes));
    }
    app.free_from_the_dead(id).await?;
    Ok((engine.prune(id, &keep).await?.len(), preview.bytes))
}

/// The same with every checkpoint of a session.
async fn clear_one(app: &mut App, engine: &Milepost, id: SessionId, dry_run: bool) -> Result<(usize, u64)> {
    let preview = engine.store().clear_preview(id).await.map_err(milepost::Error::from)?;
    if dry_run || preview.checkpoints.is_empty() {
        return Ok((preview.checkpoints.len(), preview.bytes));
    }
    app.free_from_the_dead(id).await?;
    Ok((engine.clear_checkpoints(id).await?.len(), preview.bytes))
}

/// Whether an error says nothing of other sessions: somebody holds this one, or it cannot be read.
fn is_of_one_session(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<milepost::Error>() {
        Some(milepost::Error::Store(error)) => {
            error.is_damage() || matches!(error, StoreError::Held { .. } | StoreError::Key(_))
        }
        _ => false,
    }
}

pub async fn verify(app: &mut App, args: args::Verify) -> Result<ExitCode> {
    let session = match &args.session {
        Some(session) => Some(app.session(session).await?),
        None => None,
    };
    let engine = app.engine().await?;
    let waiting = app.waiting("verifying session");
    let verified = match (session, args.deep) {
        (Some(id), _) => engine.store().verify_session(id).await,
        (None, is_deep) => {
            let depth = if is_deep { Depth::Deep } else { Depth::Usual };
            engine.store().verify_with(depth, &mut |done, total| waiting.tell(done + 1, total)).await
        }
    };
    waiting.end();
    let verified = verified.map_err(milepost::Error::from)?;
    let code = if verified.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(5) };
    if app.out.json {
        let problems: Vec<_> = verified
            .problems
            .iter()
            .map(|problem| json!({ "session": problem.session, "at": problem.at, "derived": problem.derived, "what": problem.what }))
            .collect();
        app.out.json(&json!({
            "whole": verified.is_whole(), "sessions": verified.sessions, "entries": verified.entries,
            "records": verified.records, "bytes": verified.bytes, "shredded": verified.shredded,
            "unfinishedImports": verified.unfinished, "problems": problems,
        }))?;
        return Ok(code);
    }
    for problem in &verified.problems {
        let place = problem.session.map(|id| format!("{} ", short(id))).unwrap_or_default();
        let place = problem.at.map_or(place.clone(), |at| format!("{place}entry {}: ", at.seq.0));
        let line = format!("{place}{}", plain(&problem.what));
        app.out.line(if problem.derived { app.out.styles.warn(&line) } else { app.out.styles.bad(&line) })?;
    }
    verified.unfinished.iter().for_each(|id| tell_unfinished(app, *id));
    let counts = format!(
        "{}, {}, {}, {}",
        so_many(verified.sessions, "session"),
        so_many(verified.entries, "entry"),
        so_many(verified.records, "record"),
        bytes(verified.bytes)
    );
    if verified.is_whole() {
        app.out.line(format!("{} {counts}", app.out.styles.good("whole:")))?;
    } else {
        let problems = so_many(verified.problems.len(), "problem");
        app.out.line(format!("{} {problems} in {counts}", app.out.styles.bad("damaged:")))?;
        if verified.problems.iter().all(|problem| problem.derived) {
            app.out.note("only what is derived is wrong: `milepost reindex` rebuilds it");
        } else {
            app.out.note(
                "sessions still open at an older checkpoint: `milepost sessions resume` passes over what is damaged",
            );
            // What is wrong with no session is wrong with the file.
            let is_of_file = |problem: &milepost::store::Problem| !problem.derived && problem.session.is_none();
            if verified.problems.iter().any(is_of_file)
                && let Some(command) = places::rescue_of(app.settings()?.store.expose())
            {
                app.out.note(format!("what is whole can be brought into a new store: {command}"));
            }
        }
    }
    Ok(code)
}

/// Says what to do about an import that was not finished.
pub fn tell_unfinished(app: &App, id: SessionId) {
    app.out.note(format!(
        "{} is an import that was begun and not finished, and is hidden: import the same again, which takes its place, or remove it with: milepost sessions delete {}",
        short(id),
        short(id)
    ));
}

pub async fn reindex(app: &mut App, session: Option<String>) -> Result<ExitCode> {
    let session = match &session {
        Some(session) => Some(app.session(session).await?),
        None => None,
    };
    let engine = app.engine().await?;
    let waiting = app.waiting("rebuilding");
    let done = match session {
        Some(id) => engine.store().reindex_session(id).await,
        None => engine.store().reindex_with(&mut |done, total| waiting.tell(done + 1, total)).await,
    };
    waiting.end();
    let done = done.map_err(milepost::Error::from)?;
    let code = if done.damaged.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(5) };
    if app.out.json {
        let damaged: Vec<_> = done.damaged.iter().map(|(id, why)| json!({ "session": id, "why": why })).collect();
        let told = json!({ "sessions": done.sessions, "checkpoints": done.marks, "damaged": damaged });
        return app.out.json(&told).map(|()| code);
    }
    app.out.line(format!(
        "rebuilt {} with {}",
        so_many(done.sessions, "session"),
        so_many(done.marks, "checkpoint")
    ))?;
    for (id, why) in &done.damaged {
        let bad = app.styles().bad("damaged:");
        app.out.note(format!("{bad} {} is listed as it was: {}", short(id), plain(why)));
    }
    if !done.damaged.is_empty() {
        app.out.note("`milepost verify` says what is damaged; `milepost salvage` brings what is whole of a SQLite store into a new one");
    }
    Ok(code)
}

pub async fn redact(app: &mut App, args: args::Redact) -> Result<ExitCode> {
    let engine = app.engine().await?;
    let redactor = match args.known {
        true => known_secrets(app, &engine)?,
        false => {
            let secret = match args.secret.as_deref() {
                Some("-") | None => input(app, "the secret").await?,
                Some(secret) => secret.to_owned(),
            };
            engine.redactor(secret.trim(), &args.instead)?
        }
    };
    let open = async |url: &str| -> Result<Store, String> {
        places::must_exist(url).map_err(|error| error.to_string())?;
        app.other_store(url).await.map_err(|error| finding(&error))
    };
    let waiting = app.waiting("looking");
    let threads = |dry_run: bool| {
        let redactor = redactor.clone();
        async move |store: &Store| Saver::new(store.clone()).redact(&redactor, dry_run).await
    };
    let mut found = engine.redact(&redactor, &args.why, true, open, threads(true)).await?;
    waiting.end();
    if !args.dry_run {
        if !found.is_nothing() {
            let count = |of: fn(&Redacted) -> u64| found.places().map(|(_, one)| of(one)).sum::<u64>();
            let question = format!(
                "Erase it from {}, {} and {} of {} for good?",
                so_many(count(|one| one.entries), "entry"),
                so_many(count(|one| one.checkpoints), "checkpoint"),
                so_many(count(|one| one.records), "record"),
                so_many(count(|one| one.sessions.len() as u64), "session")
            );
            app.confirm(&question, args.yes).await?;
        }
        // Also where nothing is found: what an earlier one left behind is deleted.
        let waiting = app.waiting("erasing");
        // What it did, which may be less than what was there: somebody may hold a session.
        found = engine.redact(&redactor, &args.why, false, open, threads(false)).await?;
        waiting.end();
    }
    show_erased(app, &found, args.dry_run)?;
    let passed_over = || found.places().flat_map(|(_, found)| &found.passed_over);
    let is_left = |found: &Redacted| !found.blobs.is_empty() || found.records_left > 0;
    let stays = !args.dry_run && found.places().any(|(_, found)| is_left(found));
    let is_damaged = found.places().any(|(_, found)| !found.damaged.is_empty());
    Ok(match () {
        () if is_damaged || passed_over().any(|one| one.obstacle == Obstacle::Damaged) => ExitCode::from(5),
        () if passed_over().next().is_some() => ExitCode::from(4),
        () if found.unreached().next().is_some() => ExitCode::from(7),
        () if stays => ExitCode::FAILURE,
        () => ExitCode::SUCCESS,
    })
}

fn show_erased(app: &App, found: &Erased, dry_run: bool) -> Result<()> {
    let as_json = |found: &Redacted| {
        json!({
            "sessions": found.sessions, "entries": found.entries, "checkpoints": found.checkpoints,
            "records": found.records, "recordsLeft": found.records_left, "damaged": found.damaged,
            "blobs": found.blobs.len(), "lingersMs": found.lingers_ms,
            "passedOver": found.passed_over.iter().map(|one| json!({
                "session": one.session, "damaged": one.obstacle == Obstacle::Damaged, "why": &one.why,
            })).collect::<Vec<_>>(),
        })
    };
    if app.out.json {
        let mut answer = as_json(&found.here);
        answer["dryRun"] = json!(dry_run);
        answer["archives"] = found
            .archives
            .iter()
            .map(|archive| match &archive.outcome {
                Ok(there) => json!({ "url": archive.url, "found": as_json(there) }),
                Err(why) => json!({ "url": archive.url, "sessions": archive.sessions, "unreached": why }),
            })
            .collect();
        return app.out.json(&answer);
    }
    if found.is_nothing() {
        let all = found.places().all(|(_, found)| found.passed_over.is_empty() && found.damaged.is_empty());
        app.out.line(match all {
            true => "it is nowhere in this workspace",
            false => "it is nowhere in what could be looked through",
        })?;
    }
    let show = |found: &Redacted, place: &str| -> Result<()> {
        tell_left(app, found, place, dry_run);
        if found.sessions.is_empty() && found.records == 0 {
            return Ok(());
        }
        let word = if dry_run { "found in" } else { "erased from" };
        app.out.line(format!(
            "{word} {}, {} and {} of {}{place}",
            so_many(found.entries, "entry"),
            so_many(found.checkpoints, "checkpoint"),
            so_many(found.records, "record"),
            so_many(found.sessions.len(), "session")
        ))?;
        found.sessions.iter().try_for_each(|id| app.out.line(format!("  {id}")))
    };
    show(&found.here, "")?;
    for archive in &found.archives {
        if let Ok(there) = &archive.outcome {
            show(there, &format!(" in the archive {}", plain(&archive.url)))?;
        }
    }
    for (archive, why) in found.unreached() {
        app.out.note(format!(
            "{} the archive {} was not reached and may hold it, in {}: {}; do it again when it can be reached",
            app.styles().warn("warning:"),
            plain(&archive.url),
            so_many(archive.sessions.len(), "session"),
            plain(why)
        ));
    }
    if !dry_run && !found.is_nothing() {
        app.out.note("backups, exports and mirrors made before still hold it; change the secret itself too");
    }
    Ok(())
}

/// What of it is left, and what to do about that.
fn tell_left(app: &App, found: &Redacted, place: &str, dry_run: bool) {
    let warning = app.styles().warn("warning:");
    for one in &found.passed_over {
        let why = plain(&one.why);
        let then = match one.obstacle {
            Obstacle::Held => "do it again when it is free",
            Obstacle::Adapter => {
                "delete the thread, or do it again when nobody writes to it; a thread that is called so keeps its name"
            }
            Obstacle::Damaged => {
                "`milepost verify` says how far the damage goes; delete the session, or bring what is whole into a new store with `milepost salvage` and do it there"
            }
        };
        app.out.note(format!("{warning} {}{place} was passed over and may hold it: {why}; {then}", short(one.session)));
    }
    if !dry_run && found.lingers_ms > 0 {
        let minutes = minutes(found.lingers_ms);
        app.out.note(match found.sessions.is_empty() && found.records == 0 {
            true => format!("what was replaced{place} more than {minutes} ago is deleted"),
            false => format!("{warning} what was replaced{place} stays for {minutes}, for whoever is just reading it: run the same command again after that, which deletes it"),
        });
    }
    for what in &found.damaged {
        let then =
            "`milepost verify` says how far the damage goes; remove what is damaged, or put it anew, and do it again";
        app.out.note(format!("{warning} {}{place} was passed over and may hold it; {then}", plain(what)));
    }
    if found.records_left > 0 {
        let holds = if found.records_left == 1 { "holds" } else { "hold" };
        let then = "what was put within the last hour is removed by doing it again later";
        let records = so_many(found.records_left, "record");
        app.out.note(match dry_run {
            true => format!("{records} besides{place} {holds} it: {then}"),
            false => format!("{warning} {records}{place} still {holds} it: {then}"),
        });
    }
    if !found.blobs.is_empty() {
        let blobs = so_many(found.blobs.len(), "blob");
        let holds = if found.blobs.len() == 1 { "holds" } else { "hold" };
        app.out.note(match dry_run {
            true => format!("{blobs} besides{place} {holds} it"),
            false => format!("{warning} {blobs}{place} still {holds} it: a file that a session names goes when the session is deleted; what was put within the last hour is removed by doing it again later"),
        });
    }
}

/// Finds what the engine's own rules know: the built-in ones with the patterns and exceptions of the configuration, also
/// where they are not in force for what is added.
fn known_secrets(app: &App, engine: &Milepost) -> Result<Redactor> {
    let mut settings = app.loader()?.load()?;
    settings.redaction.enabled = true;
    let rules = app.engine_options(&settings)?.redaction.unwrap_or_default();
    let redactor = rules.keys(&engine.policy().exclude_keys).build();
    if engine.store().is_encrypted() {
        return Err(Usage("looking for secrets by the rules: the workspace is encrypted, and nothing lies in clear; name the secret itself".into()).into());
    }
    Ok(Redactor::new(move |text| redactor.text(text).map(|(clean, _)| clean)))
}
