//! Rescuing what is whole from a store that SQLite cannot open.

use std::path::PathBuf;

use anyhow::Result;
use milepost::rescue;
use milepost::store::sqlite::Salvaged;
use milepost::store::{Error as StoreError, Store, open_backend, system_source};
use serde_json::json;

use crate::app::{App, apart};
use crate::args;
use crate::errors::{Failed, Usage};
use crate::out::{count, plain, shell_word};
use crate::places;
use crate::scratch::Scratch;

/// What became of one workspace.
struct Rescued {
    workspace: String,
    sessions: u64,
    checkpoints: u64,
    /// Why its lists could not be rebuilt.
    left: Option<String>,
}

pub async fn run(app: &mut App, args: args::Salvage) -> Result<()> {
    let (from, to) = (file(&args.from)?, file(&args.to)?);
    let shown = (plain(&from.display().to_string()), plain(&to.display().to_string()));
    if !from.is_file() {
        return Err(Failed::missing(format!("rescuing {}: no file is there; check the path", shown.0)).into());
    }
    if to.exists() {
        let why = format!("{} is there already, and a rescue writes over nothing: name a new file", shown.1);
        return Err(Usage(why).into());
    }
    let place = Scratch::beside(&to)?;
    let waiting = app.waiting("searching for what is whole");
    let (source, target) = (from.clone(), place.path().to_owned());
    let found = apart(move || Ok(rescue(&source, &target)?)).await?;
    waiting.end();
    let waiting = app.waiting("rebuilding lists and indexes");
    let workspaces = rebuild(app, place.path()).await?;
    waiting.end();
    if found.entries == 0 {
        let why = format!(
            "rescuing {}: no entry of a store that is whole was found in it; it may be no store of Milepost\'s, or nothing of \
             it is left: restore a backup. Nothing was written",
            shown.0
        );
        return Err(Failed::damaged(why).into());
    }
    if args.dry_run {
        drop(place);
    } else {
        place.keep(&to)?;
    }
    tell(app, &args, &found, &workspaces, &shown)
}

/// Rebuilds what is derived, in every workspace that can be opened, and leaves one file.
async fn rebuild(app: &App, path: &std::path::Path) -> Result<Vec<Rescued>> {
    let options = app.engine_options(&app.settings()?)?.store;
    let source = system_source().map_err(milepost::Error::from)?;
    let url = format!("sqlite:{}", path.display());
    let backend = open_backend(&url, &options, &source).await.map_err(milepost::Error::from)?;
    let names = backend.workspaces().await.map_err(milepost::Error::from)?;
    backend.close().await.map_err(milepost::Error::from)?;
    let mut done = Vec::new();
    for workspace in names {
        let mut options = options.clone();
        (options.workspace, options.may_begin) = (workspace.clone(), false);
        let workspace = workspace.to_string();
        let mut one = Rescued { workspace, sessions: 0, checkpoints: 0, left: None };
        match Store::open(&url, options).await {
            Ok(store) => {
                let rebuilt = store.reindex().await.map_err(milepost::Error::from)?;
                (one.sessions, one.checkpoints) = (rebuilt.sessions, rebuilt.marks);
                store.close().await.map_err(milepost::Error::from)?;
            }
            Err(error @ (StoreError::Key(_) | StoreError::NotFound { .. })) => one.left = Some(error.to_string()),
            Err(error) => return Err(milepost::Error::from(error).into()),
        }
        done.push(one);
    }
    Ok(done)
}

fn tell(
    app: &App,
    args: &args::Salvage,
    found: &Salvaged,
    workspaces: &[Rescued],
    (from, to): &(String, String),
) -> Result<()> {
    let sessions: u64 = workspaces.iter().map(|one| one.sessions).sum();
    if app.out.json {
        let list: Vec<_> = workspaces
            .iter()
            .map(|one| {
                json!({
                    "workspace": one.workspace, "sessions": one.sessions, "checkpoints": one.checkpoints,
                    "notRebuilt": one.left,
                })
            })
            .collect();
        return app.out.json(&json!({
            "from": from, "to": to, "dryRun": args.dry_run, "sessions": sessions, "timelines": found.timelines,
            "entries": found.entries, "lost": found.lost, "blobs": found.blobs, "records": found.records,
            "workspaces": list,
        }));
    }
    let word = if args.dry_run { "would rescue" } else { "rescued" };
    app.out.line(format!(
        "{word} {} with {}, {} and {} from {from}",
        count(sessions, "session"),
        count(found.entries, "entry"),
        count(found.blobs, "blob"),
        count(found.records, "record")
    ))?;
    if found.lost > 0 {
        let lost = count(found.lost, "entry");
        app.out.line(app.out.styles.bad(&format!("lost: {lost}, damaged or after one that is missing")))?;
    }
    for one in workspaces {
        if let Some(why) = &one.left {
            app.out.note(format!(
                "{} the lists of workspace {} are not rebuilt: {}; afterwards: milepost reindex --workspace {}",
                app.styles().warn("warning:"),
                plain(&one.workspace),
                plain(why),
                shell_word(&one.workspace)
            ));
        }
    }
    if !args.dry_run {
        app.out.note(format!(
            "the damaged file is as it was; look at what was rescued with: milepost verify --store {}",
            shell_word(&format!("sqlite:{to}"))
        ));
    }
    Ok(())
}

/// The file of a store that is named by its URL or its path.
fn file(given: &str) -> Result<PathBuf> {
    let path = places::sqlite_file(given);
    path.ok_or_else(|| Usage(format!("{given:?} is no SQLite file: only those are rescued; name a path")).into())
}
