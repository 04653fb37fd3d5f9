//! Keeping the store in order: pruning, checking, rebuilding, erasing secrets.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use milepost::model::Retention;
use milepost::store::Redactor;
use milepost::{Milepost, SessionId, SessionQuery};
use serde_json::json;

use super::messages::input;
use crate::app::App;
use crate::args;
use crate::errors::{Usage, without_advice};
use crate::out::{bytes, count as so_many, plain, short};

/// Every session that is not in the trash, or the one that was named.
pub async fn chosen(app: &mut App, session: Option<&str>) -> Result<Vec<SessionId>> {
    if let Some(session) = session {
        return Ok(vec![app.session(session).await?]);
    }
    let engine = app.engine().await?;
    let (mut query, mut ids) = (SessionQuery::default(), Vec::new());
    loop {
        let page = engine.sessions(&query).await?;
        ids.extend(page.sessions.iter().map(|session| session.id));
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(ids),
        }
    }
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
    let mut pruned = BTreeMap::new();
    let mut freed = 0;
    let mut progress = app.progress("pruning", ids.len() as u64);
    for (number, id) in ids.into_iter().enumerate() {
        progress.tell(number as u64);
        let session = engine.store().session(id).await.map_err(milepost::Error::from)?;
        let keep = asked(engine.policy_of(&session)?.retention);
        let preview = engine.store().prune_preview(id, &keep).await.map_err(milepost::Error::from)?;
        if preview.checkpoints.is_empty() {
            continue;
        }
        freed += preview.bytes;
        let done = match args.dry_run {
            true => preview.checkpoints,
            false => engine.prune(id, &keep).await?.checkpoints,
        };
        pruned.insert(id, done.len());
    }
    progress.end();
    let (purged, deleted) = match args.purge {
        true => {
            engine.store().empty_trash(&general, &engine.claim(), args.dry_run).await.map_err(milepost::Error::from)?
        }
        false => Default::default(),
    };
    if args.purge && !args.dry_run {
        engine.store().collect(&engine.claim(), false).await.map_err(milepost::Error::from)?;
    }
    if app.out.json {
        return app.out.json(&json!({
            "dryRun": args.dry_run, "pruned": pruned, "freeable": freed,
            "purged": { "checkpoints": purged.checkpoints, "bytes": purged.bytes, "sessions": deleted },
        }));
    }
    let (word, erased) = if args.dry_run { ("would go", "would be erased") } else { ("went", "erased") };
    for (id, count) in &pruned {
        app.out.line(format!("{}  {} {word} into the trash", short(id), so_many(*count, "checkpoint")))?;
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
    if args.purge {
        let checkpoints = so_many(purged.checkpoints.len(), "checkpoint");
        app.out.line(format!(
            "{checkpoints} and {} {erased}, {}",
            so_many(deleted.len(), "session"),
            bytes(purged.bytes)
        ))?;
    }
    Ok(())
}

pub async fn verify(app: &mut App, args: args::Verify) -> Result<ExitCode> {
    let session = match &args.session {
        Some(session) => Some(app.session(session).await?),
        None => None,
    };
    let engine = app.engine().await?;
    let waiting = app.waiting("verifying");
    let verified = match (session, args.deep) {
        (Some(id), _) => engine.store().verify_session(id).await,
        (None, true) => engine.store().verify_deep().await,
        (None, false) => engine.store().verify().await,
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
            "records": verified.records, "bytes": verified.bytes, "shredded": verified.shredded, "problems": problems,
        }))?;
        return Ok(code);
    }
    for problem in &verified.problems {
        let place = problem.session.map(|id| format!("{} ", short(id))).unwrap_or_default();
        let place = problem.at.map_or(place.clone(), |at| format!("{place}entry {}: ", at.seq.0));
        let line = format!("{place}{}", plain(without_advice(&problem.what)));
        app.out.line(if problem.derived { app.out.styles.warn(&line) } else { app.out.styles.bad(&line) })?;
    }
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
        }
    }
    Ok(code)
}

pub async fn reindex(app: &mut App, session: Option<String>) -> Result<()> {
    let session = match &session {
        Some(session) => Some(app.session(session).await?),
        None => None,
    };
    let engine = app.engine().await?;
    let waiting = app.waiting("rebuilding");
    let done = match session {
        Some(id) => engine.store().reindex_session(id).await,
        None => engine.store().reindex().await,
    };
    waiting.end();
    let done = done.map_err(milepost::Error::from)?;
    if app.out.json {
        return app.out.json(&json!({ "sessions": done.sessions, "checkpoints": done.marks }));
    }
    app.out.line(format!("rebuilt {} with {}", so_many(done.sessions, "session"), so_many(done.marks, "checkpoint")))
}

pub async fn redact(app: &mut App, args: args::Redact) -> Result<()> {
    let engine = app.engine().await?;
    let redactor = match args.known {
        true => known_secrets(app, &engine)?,
        false => {
            let secret = match args.secret.as_deref() {
                Some("-") | None => input(app, "the secret").await?,
                Some(secret) => secret.to_owned(),
            };
            Redactor::literal(secret.trim(), args.instead.clone()).map_err(milepost::Error::from)?
        }
    };
    let claim = engine.claim();
    let waiting = app.waiting("looking");
    let found = engine.store().redact(&redactor, &args.why, &claim, true).await.map_err(milepost::Error::from)?;
    waiting.end();
    let nothing = found.entries == 0 && found.checkpoints == 0 && found.records == 0 && found.blobs.is_empty();
    if !args.dry_run && !nothing {
        let (entries, sessions) = (so_many(found.entries, "entry"), so_many(found.sessions.len(), "session"));
        let question = format!("Erase it from {entries} of {sessions} for good?");
        app.confirm(&question, args.yes).await?;
        let waiting = app.waiting("erasing");
        engine.store().redact(&redactor, &args.why, &claim, false).await.map_err(milepost::Error::from)?;
        engine.store().backend().compact().await.map_err(milepost::Error::from)?;
        waiting.end();
    }
    if app.out.json {
        return app.out.json(&json!({
            "dryRun": args.dry_run, "sessions": found.sessions, "entries": found.entries,
            "checkpoints": found.checkpoints, "records": found.records, "blobs": found.blobs.len(),
        }));
    }
    if nothing {
        return app.out.line("it is nowhere in this workspace");
    }
    let word = if args.dry_run { "found in" } else { "erased from" };
    app.out.line(format!(
        "{word} {}, {} and {} of {}",
        so_many(found.entries, "entry"),
        so_many(found.checkpoints, "checkpoint"),
        so_many(found.records, "record"),
        so_many(found.sessions.len(), "session")
    ))?;
    for id in &found.sessions {
        app.out.line(format!("  {id}"))?;
    }
    if !args.dry_run {
        app.out.note("backups, exports and mirrors made before still hold it; change the secret itself too");
    }
    Ok(())
}

/// Finds what the engine's own rules know: the built-in ones with the patterns and exceptions of the configuration, also
/// where they are not in force for what is added.
fn known_secrets(app: &App, engine: &Milepost) -> Result<Redactor> {
    let mut settings = app.loader()?.load()?;
    settings.redaction.enabled = true;
    let rules = app.engine_options(&settings)?.redaction.unwrap_or_default();
    let redactor = rules.keys(&engine.policy().exclude_keys).build();
    if engine.store().is_encrypted() {
        return Err(Usage("in an encrypted workspace, name the secret: nothing lies in clear".into()).into());
    }
    Ok(Redactor::new(move |text| redactor.text(text).map(|(clean, _)| clean)))
}
