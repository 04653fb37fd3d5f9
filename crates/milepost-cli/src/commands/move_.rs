//! Whole stores and single sessions on their way to other stores.

use std::path::Path;

use anyhow::Result;
use milepost::config::Url;
use milepost::store::{
    Error as StoreError, KeyError, Options, Phase, Store, migrate as move_all, open_backend, system_source,
};
use milepost::transfer::{Ids, copy_session};
use milepost::{Apart, SessionId};
use serde_json::json;

use crate::app::{App, of_store};
use crate::args;
use crate::errors::{Failed, Usage};
use crate::out::{bytes, count, plain, shell_word, short};
use crate::places;
use crate::progress::Progress;
use crate::scratch::Scratch;

pub async fn migrate(app: &mut App, args: args::Migrate) -> Result<()> {
    places::must_exist(&args.from)?;
    if places::is_same_place(&args.from, &args.to) {
        return Err(
            Usage("the two stores are one: there is nothing to copy; name another store to copy to".into()).into()
        );
    }
    places::prepare(&args.to)?;
    let settings = app.settings()?;
    let options = app.engine_options(&settings)?.store;
    if options.keys.master.is_some() {
        must_be_encrypted(&args.from, &options).await?;
    }
    let source = system_source().map_err(milepost::Error::from)?;
    let from = open_backend(&args.from, &options, &source).await.map_err(|error| of_store(error, &args.from))?;
    let to = open_backend(&args.to, &options, &source).await.map_err(|error| of_store(error, &args.to))?;
    let mut progress = Progress::new("copying entry", 0, app.shows_progress().then(|| source.clone()));
    let mut tell = |done: &milepost::store::Progress| {
        progress.now(if done.phase == Phase::Comparing { "comparing entry" } else { "copying entry" });
        progress.tell_with(done.entries, || {
            let left = done.left_ms().map(|ms| format!(", {} s left", ms / 1000)).unwrap_or_default();
            format!(" of {}{left}, {}/s", done.entries_total, bytes(done.bytes_per_s()))
        });
    };
    let moved = move_all(&*from, &*to, &settings.workspace, &source, &mut tell).await;
    progress.end();
    let moved = moved.map_err(|error| stopped(error, &args))?;
    let mut others = from.workspaces().await.map_err(milepost::Error::from)?;
    others.retain(|workspace| *workspace != settings.workspace);
    to.close().await.map_err(milepost::Error::from)?;
    from.close().await.map_err(milepost::Error::from)?;
    if app.out.json {
        return app.out.json(&json!({
            "sessions": moved.sessions, "entries": moved.entries, "records": moved.records,
            "copiedEntries": moved.copied, "copiedBytes": moved.copied_bytes, "otherWorkspaces": others,
        }));
    }
    app.out.line(format!(
        "{}, {} and {} are in the new store, compared and the same; {} copied, {}",
        count(moved.sessions, "session"),
        count(moved.entries, "entry"),
        count(moved.records, "record"),
        count(moved.copied, "entry"),
        bytes(moved.copied_bytes)
    ))?;
    app.out.note("the old store is as it was");
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(|workspace| plain(workspace.as_str())).collect();
        app.out.note(format!("not copied, as each is copied with --workspace: {}", names.join(", ")));
    }
    Ok(())
}

/// Why a migration stopped. Nothing is moved past damage: with the commands that find it, and that bring over what is whole.
fn stopped(error: StoreError, args: &args::Migrate) -> anyhow::Error {
    if !error.is_damage() {
        return milepost::Error::from(error).into();
    }
    let [from, to] = [&args.from, &args.to].map(|url| shell_word(&Url::new(url).to_type()));
    let (then, way) = match places::rescue_of(&args.from) {
        Some(command) => ("rescue what is whole, and migrate that into an empty store", ("rescue", command)),
        None => (
            "copy the sessions that are whole into an empty store, one by one",
            ("one by one", format!("milepost push SESSION STORE --store {from}")),
        ),
    };
    let text = format!(
        "migrating {from}: {}; nothing is moved past damage: {to} has a part of it at most; {then}",
        error.finding()
    );
    Failed::damaged_with(text, vec![("find", format!("milepost verify --store {from}")), way]).into()
}

/// Refuses a workspace that is not encrypted where a key was given: it would be copied as it is, and be thought encrypted.
async fn must_be_encrypted(from: &str, options: &Options) -> Result<()> {
    let mut options = options.clone();
    options.may_begin = false;
    match Store::open(from, options).await {
        Ok(store) => Ok(store.close().await.map_err(milepost::Error::from)?),
        Err(error @ StoreError::Key(KeyError::NotEncrypted { .. })) => Err(milepost::Error::from(error).into()),
        // Whatever else there is to say of it is said where it is copied, for which no key is needed.
        Err(_) => Ok(()),
    }
}

pub async fn backup(app: &mut App, file: &Path) -> Result<()> {
    if let Some(parent) = file.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir()) {
        let failed = format!("writing the backup {}", file.display());
        return Err(milepost::Error::file(failed, format!("there is no directory {}", parent.display())).into());
    }
    app.must_not_be_store(file)?;
    if file.exists() {
        return Err(Usage(format!("{} is there already: name a new file", file.display())).into());
    }
    let url = app.settings()?.store.clone();
    let engine = app.engine().await?;
    let waiting = app.waiting("copying the store");
    let place = Scratch::beside(file)?;
    engine.store().backup(place.path()).await.map_err(|error| match error {
        // What cannot be copied as a file can be copied session by session.
        StoreError::Unsupported { .. } => {
            let [from, to] = [url.to_type(), format!("sqlite:{}", file.display())].map(|url| shell_word(&url));
            Failed::with_ways(error.to_string(), vec![("migrate", format!("milepost migrate {from} {to}"))]).into()
        }
        error => anyhow::Error::from(milepost::Error::from(error)),
    })?;
    place.keep(file)?;
    waiting.end();
    let size = std::fs::metadata(file).map(|data| data.len()).unwrap_or(0);
    if app.out.json {
        return app.out.json(&json!({ "file": file, "bytes": size }));
    }
    app.out.line(format!("{} are in {}", bytes(size), file.display()))
}

pub async fn push(app: &mut App, args: args::Copy) -> Result<()> {
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    // What is not here makes no store elsewhere.
    engine.store().session(id).await.map_err(milepost::Error::from)?;
    let other = app.other_store(&args.url).await?;
    let mut progress = app.progress("pushing entry", 0);
    let mut tell = |done: milepost::transfer::Progress| progress.tell(done.entries);
    let claim = engine.claim();
    let copy = copy_session(engine.store(), &other, id, ids(&args), &claim, &mut tell);
    let copied = Box::pin(copy).await.map_err(|error| with_ways(error, id, &args.url, ["push", "pull"]))?;
    progress.end();
    other.close().await.map_err(milepost::Error::from)?;
    done(app, id, &copied, "pushed")
}

pub async fn pull(app: &mut App, args: args::Copy) -> Result<()> {
    places::must_exist(&args.url)?;
    let engine = app.engine().await?;
    let other = app.other_store(&args.url).await?;
    let there = milepost::Milepost::on(other.clone(), milepost::EngineOptions::default()).await?;
    let id = there.find(&args.session).await.map_err(|error| not_there(error, &args.url))?;
    other.session(id).await.map_err(|error| not_there(error.into(), &args.url))?;
    let mut progress = app.progress("pulling entry", 0);
    let mut tell = |done: milepost::transfer::Progress| progress.tell(done.entries);
    let claim = engine.claim();
    let copy = copy_session(&other, engine.store(), id, ids(&args), &claim, &mut tell);
    let copied = Box::pin(copy).await.map_err(|error| with_ways(error, id, &args.url, ["pull", "push"]))?;
    progress.end();
    other.close().await.map_err(milepost::Error::from)?;
    done(app, id, &copied, "pulled")
}

/// A session that another store does not have, with the command that lists those that it has.
fn not_there(error: milepost::Error, url: &str) -> anyhow::Error {
    let milepost::Error::Store(StoreError::NotFound { id, .. }) = &error else { return error.into() };
    let url = Url::new(url).to_type();
    let what = format!("no session {id} in {}: list what is there, and check the workspace", plain(&url));
    Failed::missing_with(what, vec![("list", format!("milepost sessions list --all --store {}", shell_word(&url)))])
        .into()
}

fn ids(args: &args::Copy) -> Ids {
    if args.new_ids { Ids::Remap } else { Ids::Preserve }
}

/// A copy that cannot be made, with the command that works: the other way when that side only has more, a second session
/// when both went on.
fn with_ways(error: milepost::Error, id: SessionId, url: &str, [this, other]: [&str; 2]) -> anyhow::Error {
    let milepost::Error::Apart { apart, .. } = &error else { return error.into() };
    let (id, url) = (short(id), shell_word(&Url::new(url).to_type()));
    let way = match apart {
        Apart::Copy => ("other way", format!("milepost {other} {id} {url}")),
        Apart::Both => ("both", format!("milepost {this} {id} {url} --new-ids")),
    };
    Failed::with_ways(error.to_string(), vec![way]).into()
}

fn done(app: &App, original: SessionId, copied: &milepost::transfer::Copied, word: &str) -> Result<()> {
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": copied.session, "original": original, "entries": copied.entries, "isNew": copied.is_new,
        }));
    }
    app.out.line(match (copied.is_new, copied.entries) {
        (true, entries) if copied.session != original => {
            format!("{word} {original} as a second session, {}, with {}", copied.session, count(entries, "entry"))
        }
        (true, entries) => format!("{word} {} with {}", copied.session, count(entries, "entry")),
        (false, 0) => format!("{} is there already, with all its entries", copied.session),
        (false, entries) => format!("{word} {} of {}", count(entries, "new entry"), copied.session),
    })
}
