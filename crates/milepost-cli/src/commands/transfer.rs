//! Sessions written out, brought in, and archived.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use milepost::transfer::export::{self, Layout};
use milepost::transfer::{BundleOptions, Ids, ImportOptions, Imported, check_bundle, export_bundle};
use milepost::{Milepost, SessionId, SessionPatch};
use serde_json::json;

use super::sessions::key;
use crate::app::App;
use crate::args::{self, Format};
use crate::errors::Usage;
use crate::out::{Table, bytes, count, plain, short};
use crate::places;
use crate::scratch::Scratch;

pub async fn export(app: &mut App, args: args::Export) -> Result<()> {
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    let store = engine.store();
    let Some(output) = args.output.as_deref() else {
        return to_output(app, &engine, id, args.format).await;
    };
    app.must_not_be_store(output)?;
    if output.exists() && !args.force && !(output.is_dir() && is_directory(args.format)) {
        return Err(Usage(format!("{} is there already: say --force to write over it", output.display())).into());
    }
    if output.is_file() && places::is_database_in_use(output) {
        return Err(Usage(format!(
            "{} is not written over: it is a database that some program uses; name another file",
            output.display()
        ))
        .into());
    }
    let files = match args.format {
        Format::Bundle => {
            let mut progress = app.progress("exporting entry", 0);
            let mut file = Draft::new(output)?;
            export_bundle(store, id, &mut file.writer, &BundleOptions::default(), &mut |done| {
                progress.tell(done.entries);
            })
            .await?;
            file.keep(output)?
        }
        Format::Markdown => {
            let mut file = Draft::new(output)?;
            export::markdown(store, id, &mut file.writer).await?;
            file.keep(output)?
        }
        Format::Jsonl => {
            let mut file = Draft::new(output)?;
            export::jsonl(store, id, &mut file.writer).await?;
            file.keep(output)?
        }
        Format::Files => export::chat_files(store, id, output).await?,
        Format::Tree => engine.export_tree(id, Layout::Hosted, output).await?,
        Format::Task => engine.export_tree(id, Layout::Task, output).await?,
        Format::Plan => engine.export_tree(id, Layout::Plan, output).await?,
        Format::Feature => engine.export_tree(id, Layout::Feature, output).await?,
        Format::Graph => engine.export_tree(id, Layout::Graph, output).await?,
        Format::Sqlite => {
            let place = Scratch::beside(output)?;
            export::sqlite(store, &[id], place.path()).await?;
            place.keep(output)?;
            vec![output.to_owned()]
        }
    };
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "files": files }));
    }
    for file in &files {
        let size = std::fs::metadata(file).map(|data| data.len()).unwrap_or(0);
        app.out.line(format!("{}  {}", file.display(), bytes(size)))?;
    }
    Ok(())
}

/// Writes a form that is one text, or one file, to the output.
async fn to_output(app: &App, engine: &Milepost, id: SessionId, format: Format) -> Result<()> {
    let (store, is_terminal) = (engine.store(), app.out.is_terminal());
    let mut text = Vec::new();
    match format {
        Format::Bundle if is_terminal => {
            let why =
                "a bundle is not for a terminal, as it is binary: name a file with --output, or use --format markdown";
            return Err(Usage(why.into()).into());
        }
        Format::Bundle => drop(export_bundle(store, id, &mut text, &BundleOptions::default(), &mut |_| ()).await?),
        Format::Markdown => export::markdown(store, id, &mut text).await?,
        Format::Jsonl => drop(export::jsonl(store, id, &mut text).await?),
        _ => {
            let why = "this form is a file of its own, or several: name a place with --output";
            return Err(Usage(why.into()).into());
        }
    }
    if is_terminal {
        return app.out.text(String::from_utf8_lossy(&text).trim_end());
    }
    app.out.bytes(&text)
}

fn is_directory(format: Format) -> bool {
    matches!(format, Format::Files | Format::Tree | Format::Task | Format::Plan | Format::Feature | Format::Graph)
}

/// A file that gets its name when it is whole.
struct Draft {
    place: Scratch,
    writer: BufWriter<File>,
}

impl Draft {
    fn new(output: &Path) -> Result<Self> {
        let place = Scratch::beside(output)?;
        let failed = |error| milepost::Error::file(format!("writing {}", output.display()), error);
        let file = File::create_new(place.path()).map_err(failed)?;
        Ok(Self { place, writer: BufWriter::new(file) })
    }

    fn keep(mut self, output: &Path) -> Result<Vec<PathBuf>> {
        self.writer.flush().and_then(|()| self.writer.get_ref().sync_all()).context("writing")?;
        self.place.keep(output)?;
        Ok(vec![output.to_owned()])
    }
}

/// Whether a file says of itself that it is a bundle: it is packed with zstd.
fn is_bundle(path: &Path) -> Result<bool> {
    use std::io::Read;
    if path.is_dir() {
        return Ok(false);
    }
    let mut first = [0; 4];
    let file = File::open(path).map_err(|error| milepost::Error::file(format!("opening {}", path.display()), error))?;
    let count = file.take(4).read(&mut first)?;
    Ok(count == 4 && first == [0x28, 0xb5, 0x2f, 0xfd])
}

pub async fn import(app: &mut App, args: args::Import) -> Result<()> {
    let mut options = ImportOptions::default();
    options.ids = if args.new_ids { Ids::Remap } else { Ids::Preserve };
    options.from = Some(args.path.display().to_string());
    options.project = args.keys.project.clone();
    let is_bundle = is_bundle(&args.path)?;
    if args.dry_run {
        return check(app, &args.path, is_bundle, &options).await;
    }
    let engine = app.engine().await?;
    let mut progress = app.progress("importing entry", 0);
    let mut tell = |done: milepost::transfer::Progress| progress.tell(done.entries);
    let imported = match is_bundle {
        true => {
            let file = BufReader::new(File::open(&args.path).context("opening the bundle")?);
            vec![engine.import_bundle(file, &options, &mut tell).await?]
        }
        false => engine.import_older(&args.path, &options).await?,
    };
    progress.end();
    let mut patch: SessionPatch = key(args.keys).patch();
    if let Some(title) = args.title {
        patch = patch.title(title);
    }
    if !patch.is_empty() {
        for one in imported.iter().filter(|one| one.entries > 0) {
            engine.patch(one.session, patch.clone()).await?;
        }
    }
    show_imported(app, &imported, false)
}

/// Says what an import would bring. Nothing is stored.
async fn check(app: &mut App, path: &Path, is_bundle: bool, options: &ImportOptions) -> Result<()> {
    if !is_bundle {
        let found = app.engine().await?.check_older(path, options).await?;
        return show_imported(app, &found, true);
    }
    let checked = check_bundle(BufReader::new(File::open(path)?), options)?;
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": checked.session, "workspace": checked.workspace, "entries": checked.entries,
            "blobs": checked.blobs, "hash": checked.hash, "signed": checked.signed_by.is_some(),
        }));
    }
    let (entries, blobs) = (count(checked.entries, "entry"), count(checked.blobs, "blob"));
    app.out.line(format!("whole: session {} with {entries}, {blobs}", checked.session))
}

fn show_imported(app: &App, imported: &[Imported], dry_run: bool) -> Result<()> {
    if app.out.json {
        let list: Vec<_> = imported
            .iter()
            .map(|one| {
                json!({
                    "sessionId": one.session, "original": one.original, "entries": one.entries,
                    "messages": one.messages, "checkpoints": one.checkpoints, "notes": one.notes,
                })
            })
            .collect();
        let mut answer = json!({ "sessions": list });
        if dry_run {
            answer["dryRun"] = json!(true);
        }
        return app.out.json(&answer);
    }
    for one in imported {
        let (messages, checkpoints) = (count(one.messages, "message"), count(one.checkpoints, "checkpoint"));
        let (word, name) = match (one.entries > 0, dry_run) {
            (true, false) => ("imported", one.session.to_string()),
            // It has no id yet, or will have the one it had.
            (true, true) => ("would import", plain(&one.original)),
            (false, _) => ("here already", one.session.to_string()),
        };
        app.out.line(format!("{word} {name}: {messages}, {checkpoints}"))?;
        one.notes.iter().for_each(|note| app.out.note(format!("  {}", plain(note))));
    }
    Ok(())
}

pub async fn archive(app: &mut App, args: args::Archive) -> Result<()> {
    let id = app.session_to_write(&args.session).await?;
    let engine = app.engine().await?;
    let to = places::absolute(&args.to)?;
    let other = app.other_store(&to).await?;
    let waiting = app.waiting("archiving");
    let archived = engine.archive(id, &other, &to).await?;
    waiting.end();
    other.close().await.map_err(milepost::Error::from)?;
    if app.out.json {
        return app.out.json(&archived);
    }
    app.out.line(format!("archived {id}; bring it back with: milepost sessions unarchive {}", short(id)))
}

/// The archived session that is meant.
pub async fn find(app: &mut App, given: &str) -> Result<milepost::Archived> {
    let engine = app.engine().await?;
    let all = engine.archived().await?;
    let mut fits = all.into_iter().filter(|one| {
        let id = one.session_id.to_string();
        id == given || (given.len() >= 4 && id.ends_with(given))
    });
    match (fits.next(), fits.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(milepost::Error::from(milepost::store::Error::NotFound {
            what: "archived session",
            id: given.to_owned(),
        })
        .into()),
        (Some(a), Some(b)) => Err(milepost::Error::Ambiguous {
            given: given.to_owned(),
            candidates: vec![a.session_id.to_string(), b.session_id.to_string()],
        }
        .into()),
    }
}

pub async fn unarchive(app: &mut App, session: &str) -> Result<()> {
    let archived = find(app, session).await?;
    bring_back(app, &archived).await?;
    let id: SessionId = archived.session_id;
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id }));
    }
    app.out.line(format!("{id} is back"))
}

/// Brings a session back when it was archived.
pub async fn bring_back_if_archived(app: &mut App, given: &str) -> Result<Option<SessionId>> {
    let Ok(archived) = find(app, given).await else { return Ok(None) };
    app.out.note(format!("{} was archived: it is brought back", archived.session_id));
    bring_back(app, &archived).await?;
    Ok(Some(archived.session_id))
}

async fn bring_back(app: &mut App, archived: &milepost::Archived) -> Result<()> {
    let engine = app.engine().await?;
    let other = app.other_store(&archived.url).await?;
    engine.unarchive(archived, &other).await?;
    Ok(other.close().await.map_err(milepost::Error::from)?)
}

pub async fn list_archived(app: &mut App) -> Result<()> {
    let all = app.engine().await?.archived().await?;
    if app.out.json {
        return app.out.json(&json!({ "archived": all }));
    }
    if all.is_empty() {
        app.out.note("nothing was archived");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|one| {
            vec![
                short(one.session_id),
                one.message_count.to_string(),
                app.out.time(one.archived_at),
                plain(&one.url),
                one.title.as_deref().map(plain).unwrap_or_default(),
            ]
        })
        .collect();
    let head = &["ID", "MESSAGES", "ARCHIVED", "WHERE", "TITLE"];
    app.out.table(Table { head, rows, shrink: &[3, 4], ..Table::default() })
}
