//! Sessions written out, brought in, and archived.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use milepost::store::Error as StoreError;
use milepost::transfer::export::{self, Layout, Present};
use milepost::transfer::{BundleOptions, Ids, ImportOptions, Imported, check_bundle, export_bundle};
use milepost::{MarkQuery, Milepost, SessionId, SessionPatch};
use serde_json::json;

use super::sessions::key;
use super::show::Later;
use crate::app::{App, apart};
use crate::args::{self, Format};
use crate::errors::{Failed, OnFile, Usage};
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
    // Of a directory only the files that would be written over count.
    may_be_written(app, output, args.force || (output.is_dir() && is_directory(args.format)))?;
    let present = if args.force { Present::Replace } else { Present::Refuse };
    let is_private = store.is_encrypted();
    let files = match args.format {
        Format::Bundle => {
            let mut progress = app.progress("exporting entry", 0);
            let mut file = Draft::new(output, is_private)?;
            export_bundle(store, id, &mut file.writer, &BundleOptions::default(), &mut |done| {
                progress.tell(done.entries);
            })
            .await?;
            file.keep(output)?
        }
        Format::Markdown => {
            let mut file = Draft::new(output, is_private)?;
            export::markdown(store, id, &mut file.writer).await?;
            file.keep(output)?
        }
        Format::Jsonl => {
            let mut file = Draft::new(output, is_private)?;
            export::jsonl(store, id, &mut file.writer).await?;
            file.keep(output)?
        }
        Format::Files => export::chat_files(store, id, output, present).await?,
        Format::Tree => engine.export_tree(id, Layout::Hosted, output, present).await?,
        Format::Task => engine.export_tree(id, Layout::Task, output, present).await?,
        Format::Plan => engine.export_tree(id, Layout::Plan, output, present).await?,
        Format::Feature => engine.export_tree(id, Layout::Feature, output, present).await?,
        Format::Graph => engine.export_tree(id, Layout::Graph, output, present).await?,
        Format::Sqlite => {
            let place = Scratch::beside(output)?;
            export::sqlite(store, &[id], place.path()).await?;
            if !is_private {
                place.take_mode_of(output)?;
            }
            place.keep(output)?;
            vec![output.to_owned()]
        }
    };
    if is_private {
        warn_of_clear(app);
    }
    let after = match args.format {
        Format::Tree | Format::Task | Format::Plan | Format::Graph => after_checkpoint(&engine, id).await?,
        _ => Later::default(),
    };
    let left_out = if matches!(args.format, Format::Task | Format::Plan) { after.messages } else { 0 };
    let messages = (left_out > 0).then(|| count(left_out, "message"));
    let state = after.state.then(|| "changes of the state".to_owned());
    let what: Vec<String> = messages.into_iter().chain(state).collect();
    if !what.is_empty() {
        app.out.note(format!(
            "{} this form holds checkpoints, and {} came after the last: take one and export again, with: milepost checkpoint {}",
            app.styles().warn("warning:"),
            what.join(" and "),
            short(id)
        ));
    }
    if app.out.json {
        return app.out.json(&json!({
            "sessionId": id, "files": files, "messagesLeftOut": left_out, "stateLeftOut": after.state,
        }));
    }
    for file in &files {
        let size = std::fs::metadata(file).map(|data| data.len()).unwrap_or(0);
        app.out.line(format!("{}  {}", file.display(), bytes(size)))?;
    }
    Ok(())
}

fn warn_of_clear(app: &App) {
    app.out.note(format!(
        "{} the workspace is encrypted, and what was exported is not: it is in clear, for this user alone (mode 0600)",
        app.styles().warn("warning:")
    ));
}

/// Refuses a place that is the store itself, a database that someone uses, or there already.
fn may_be_written(app: &App, output: &Path, over: bool) -> Result<()> {
    app.must_not_be_store(output)?;
    if output.exists() && !over {
        return Err(Usage(format!("{} is there already: say --force to write over it", output.display())).into());
    }
    if output.is_file() && places::is_database_in_use(output) {
        return Err(Usage(format!(
            "{} is not written over: it is a database that some program uses; name another file",
            output.display()
        ))
        .into());
    }
    Ok(())
}

/// Many sessions, or all, as a database to query.
pub async fn export_all(app: &mut App, args: args::ExportAll) -> Result<()> {
    let mut ids = Vec::new();
    for session in &args.sessions {
        let id = app.session(session).await?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let engine = app.engine().await?;
    if args.sessions.is_empty() {
        for id in super::store::chosen(app, None).await? {
            match engine.store().state(id).await {
                Ok(_) => ids.push(id),
                Err(error) if error.is_damage() || matches!(error, StoreError::Key(_)) => {
                    let why = error.finding();
                    app.out.note(format!("without {}: {}", short(id), plain(&why)));
                }
                Err(error) => return Err(milepost::Error::from(error).into()),
            }
        }
    }
    may_be_written(app, &args.sqlite, args.force)?;
    let waiting = app.waiting("writing sessions");
    let place = Scratch::beside(&args.sqlite)?;
    let done = export::sqlite(engine.store(), &ids, place.path()).await?;
    if !engine.store().is_encrypted() {
        place.take_mode_of(&args.sqlite)?;
    }
    place.keep(&args.sqlite)?;
    waiting.end();
    if engine.store().is_encrypted() {
        warn_of_clear(app);
    }
    if app.out.json {
        return app.out.json(&json!({
            "file": args.sqlite, "sessions": done.sessions, "messages": done.messages,
            "checkpoints": done.checkpoints, "skipped": done.skipped,
        }));
    }
    app.out.line(format!(
        "{} with {} and {} are in {}",
        count(done.sessions, "session"),
        count(done.messages, "message"),
        count(done.checkpoints, "checkpoint"),
        args.sqlite.display()
    ))?;
    if done.skipped > 0 {
        app.out.note(format!("{} could not be read and are left out", count(done.skipped, "checkpoint")));
    }
    Ok(())
}

/// What came after the last checkpoint.
async fn after_checkpoint(engine: &Milepost, id: SessionId) -> Result<Later> {
    let newest = MarkQuery { limit: Some(1), ..MarkQuery::default() };
    let marks = engine.store().marks(id, &newest).await.map_err(milepost::Error::from)?;
    Ok(match marks.first() {
        Some(mark) => super::show::later(engine, id, mark).await,
        None => {
            let messages = engine.store().session(id).await.map_err(milepost::Error::from)?.messages();
            Later { messages, ..Later::default() }
        }
    })
}

/// Writes a form that is one text, or one file, to the output.
async fn to_output(app: &App, engine: &Milepost, id: SessionId, format: Format) -> Result<()> {
    let (store, is_terminal) = (engine.store(), app.out.is_terminal());
    if store.is_encrypted() {
        app.out.note(format!(
            "{} the workspace is encrypted, and what is exported is not: it is in clear",
            app.styles().warn("warning:")
        ));
    }
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
    /// For this user alone; a file that is written over keeps its mode, unless what it gets was encrypted.
    fn new(output: &Path, is_private: bool) -> Result<Self> {
        let place = Scratch::beside(output)?;
        let failed = |error| milepost::Error::file(format!("writing {}", output.display()), error);
        let file = milepost::store::private::create_new(place.path()).map_err(failed)?;
        if !is_private {
            place.take_mode_of(output)?;
        }
        Ok(Self { place, writer: BufWriter::new(file) })
    }

    fn keep(mut self, output: &Path) -> Result<Vec<PathBuf>> {
        self.writer
            .flush()
            .and_then(|()| self.writer.get_ref().sync_all())
            .on_file(format!("writing {}", output.display()))?;
        self.place.keep(output)?;
        Ok(vec![output.to_owned()])
    }
}

fn open(path: &Path) -> Result<File> {
    Ok(File::open(path).on_reading(format!("opening {}", path.display()))?)
}

/// Whether a file says of itself that it is a bundle: it is packed with zstd.
fn is_bundle(path: &Path) -> Result<bool> {
    use std::io::Read;
    // Opening a pipe waits for whoever writes into it: it is refused with what else is no file.
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return Ok(false);
    }
    let mut first = [0; 4];
    let count = open(path)?.take(4).read(&mut first).on_file(format!("reading {}", path.display()))?;
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
    let import = async |app: &App| {
        // Reading a large file takes long too.
        let waiting = app.waiting("importing entry");
        let mut tell = |done: milepost::transfer::Progress| waiting.tell(done.entries, done.entries_total);
        let imported = match is_bundle {
            true => {
                let file = BufReader::new(open(&args.path)?);
                vec![engine.import_bundle(file, &options, &mut tell).await?]
            }
            false => engine.import_older_with(&args.path, &options, &mut tell).await?,
        };
        waiting.end();
        Ok(imported)
    };
    let imported = app.despite_the_dead(import).await?;
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
        let engine = app.engine().await?;
        let waiting = app.waiting("reading");
        let found = engine.check_older(path, options).await?;
        waiting.end();
        return show_imported(app, &found, true);
    }
    let waiting = app.waiting("reading");
    let (file, options) = (BufReader::new(open(path)?), options.clone());
    let checked = apart(move || Ok(check_bundle(file, &options)?)).await?;
    waiting.end();
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
    let to = places::absolute(&args.to)?;
    if args.dry_run {
        return archive_preview(app, &args.session, &to).await;
    }
    let id = app.session_to_write(&args.session).await?;
    let engine = app.engine().await?;
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

/// Says what archiving would move. The other store is neither opened nor made.
async fn archive_preview(app: &mut App, session: &str, to: &str) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let archived = engine.archive_preview(id, to).await?;
    if places::is_same_place(app.settings()?.store.expose(), to) {
        return Err(milepost::Error::refused(
            format!("archiving session {id}"),
            "the archive is the store that it is in",
            "name another store",
        )
        .into());
    }
    if app.out.json {
        let mut value = serde_json::to_value(&archived)?;
        value["dryRun"] = json!(true);
        return app.out.json(&value);
    }
    let messages = count(archived.message_count, "message");
    app.out.line(format!("would move {id} with {messages} to {}; nothing was changed", plain(to)))
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

pub async fn unarchive(app: &mut App, session: &str, forget: bool) -> Result<()> {
    let archived = find(app, session).await?;
    let id: SessionId = archived.session_id;
    match forget {
        true => app.engine().await?.forget_archived(id).await?,
        false => bring_back(app, &archived).await?,
    }
    if app.out.json {
        return app.out.json(&json!({ "sessionId": id, "forgotten": forget }));
    }
    app.out.line(match forget {
        true => format!("it is forgotten that {id} is in {}", plain(&archived.url)),
        false => format!("{id} is back"),
    })
}

/// The same error, or, where the session that is not here was archived, one that says so.
pub async fn or_archived(app: &mut App, error: anyhow::Error) -> anyhow::Error {
    let Some(milepost::Error::Store(StoreError::NotFound { what: "session", id })) = error.downcast_ref() else {
        return error;
    };
    match find(app, &id.clone()).await {
        Ok(archived) => Failed::missing(format!(
            "session {} is archived in {}, and not here: bring it back with `milepost sessions unarchive {}`; showing or resuming it does so too",
            archived.session_id,
            plain(&archived.url),
            short(archived.session_id)
        ))
        .into(),
        Err(_) => error,
    }
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
    // An archive that is away must not be made anew, and be empty.
    if let Err(error) = places::must_exist(&archived.url) {
        let id = short(archived.session_id);
        app.out.note(format!("if that archive is gone for good: `milepost sessions unarchive {id} --forget`"));
        return Err(error);
    }
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
    app.out.table(Table { head, rows, shrink: &[3, 4], last: &[1, 2], ..Table::default() })
}
