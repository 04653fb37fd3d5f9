//! Files that older tools left behind, found out by what is in them: chats, checkpoints of other designs, whole
//! directories of them, and bundles.
//!
//! Times are kept where they can be times; fields that nobody here knows stay with the message, the checkpoint or the state
//! that carried them. What could not be taken over as it was is told in [`Imported::notes`].
//!
//! Importing the same again adds nothing: a session remembers what it was made of (`imported_hash`), and is left alone.

mod builder;
mod convert;
mod detect;
mod exact;
mod files;
mod graph;
mod kept_files;
mod known;
mod say;

use std::collections::BTreeMap;
use std::path::Path;

use milepost_store::{Claim, Store};
use serde_json::Value;

use super::{ImportOptions, Imported, OnProgress};
use crate::error::{Error, Result};
use crate::project::apart;
use builder::Builder;
use detect::Kind;

/// Imports a file, or every session that is found in a directory: all of them or, when one is refused, none. Those that
/// were imported before are left as they are, and that is noted.
///
/// Secrets are stored as they are found: [`Milepost::import_older`](crate::Milepost::import_older) takes them out.
pub async fn import_path(store: &Store, path: &Path, options: &ImportOptions, claim: &Claim) -> Result<Vec<Imported>> {
    import_path_with(store, path, options, claim, &mut |_| {}).await
}

/// The same, telling how far it is.
pub(in crate::transfer) async fn import_path_with(
    store: &Store,
    path: &Path,
    options: &ImportOptions,
    claim: &Claim,
    progress: OnProgress<'_>,
) -> Result<Vec<Imported>> {
    let mut options = options.clone();
    options.from.get_or_insert_with(|| path.display().to_string());
    // Reading and parsing may take long: whoever waits for it can stop.
    let (from, given) = (path.to_owned(), options.clone());
    let built = apart("reading what is to be imported", move || build(&from, &given)).await??;
    let Some(built) = built else {
        let file =
            std::fs::File::open(path).map_err(|error| Error::reading(format!("opening {}", path.display()), &error))?;
        let imported = Box::pin(super::import_bundle(store, file, &options, claim, progress)).await?;
        return Ok(vec![imported]);
    };
    import_groups(store, built, &options, claim, progress).await
}

/// The sessions that a file or a directory holds; none when it is a bundle.
fn build(path: &Path, options: &ImportOptions) -> Result<Option<Vec<Builder>>> {
    if path.is_dir() {
        return build_dir(path, options).map(Some);
    }
    if files::is_bundle(path)? {
        return Ok(None);
    }
    let documents = files::read(path, options)?;
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    groups([(name, documents)], options, false).map(Some)
}

/// Imports what a file's content says, wherever it came from. `name` is what it is called when it has no id of its own.
/// Secrets stay: see [`Milepost::import_older_bytes`](crate::Milepost::import_older_bytes).
pub async fn import_bytes(
    store: &Store,
    name: &str,
    content: &[u8],
    options: &ImportOptions,
    claim: &Claim,
) -> Result<Vec<Imported>> {
    let documents = files::parse(content, options)?;
    import_groups(store, groups([(name.to_owned(), documents)], options, false)?, options, claim, &mut |_| {}).await
}

fn build_dir(path: &Path, options: &ImportOptions) -> Result<Vec<Builder>> {
    let found = files::walk(path, options)?;
    let mut built = Vec::new();
    for dir in &found.graphs {
        built.push(graph::build(dir, options)?);
    }
    let mut documents = Vec::new();
    for file in &found.files {
        documents.push((files::name_of(file), files::read(file, options)?));
    }
    built.extend(groups(documents, options, true)?);
    for beside in &found.beside {
        if let Some(builder) = built.iter_mut().find(|builder| builder.original == beside.session) {
            builder.take_beside(beside.name.as_deref(), &beside.path)?;
        }
    }
    Ok(built)
}

/// Documents of the same session together, in the order of their times.
fn groups(
    documents: impl IntoIterator<Item = (String, files::Documents)>,
    options: &ImportOptions,
    is_dir: bool,
) -> Result<Vec<Builder>> {
    let mut by_session: BTreeMap<String, Vec<(Kind, Value)>> = BTreeMap::new();
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, files::Documents { found: documents, notes }) in documents {
        if documents.iter().all(detect::is_message) {
            // A log: its messages are one conversation.
            let chat = serde_json::json!({ "messages": documents });
            told.entry(name.clone()).or_default().extend(notes);
            by_session.entry(name).or_default().push((Kind::Chat, chat));
            continue;
        }
        for (kind, document) in documents.into_iter().flat_map(detect::parts) {
            let key = detect::session_of(&document).unwrap_or_else(|| name.clone());
            told.entry(key.clone()).or_default().extend(notes.iter().cloned());
            by_session.entry(key).or_default().push((kind, document));
        }
    }
    let mut built = Vec::new();
    for (original, mut documents) in by_session {
        if documents.iter().all(|(kind, _)| matches!(kind, Kind::Unknown | Kind::About)) {
            continue;
        }
        documents.sort_by_key(|(kind, document)| (*kind, detect::time_of(document), detect::number_of(document)));
        let notes = told.remove(&original).unwrap_or_default();
        let mut builder = Builder::new(original, options);
        notes.into_iter().for_each(|note| builder.note(note));
        for (kind, document) in documents {
            convert::add(&mut builder, kind, document)?;
        }
        builder.end();
        built.push(builder);
    }
    if built.is_empty() && !is_dir {
        return Err(Error::import(options.name(), "it is no chat, checkpoint or bundle that is known here"));
    }
    Ok(built)
}

async fn import_groups(
    store: &Store,
    built: Vec<Builder>,
    options: &ImportOptions,
    claim: &Claim,
    progress: OnProgress<'_>,
) -> Result<Vec<Imported>> {
    if built.is_empty() {
        return Err(Error::import(options.name(), "no chat, checkpoint or bundle that is known here is in it"));
    }
    let known_in = options.known_in.as_ref().unwrap_or(store);
    let known = known::Known::find(known_in, &built, options).await?;
    let (mut imported, mut written) = (Vec::new(), Vec::new());
    for builder in built {
        if let Some(session) = known.get(&builder, options) {
            imported.push(known::left_alone(known_in, session, builder).await?);
            continue;
        }
        match Box::pin(builder.write(store, options, claim, progress)).await {
            Ok(one) => {
                written.push(one.session);
                imported.push(one);
            }
            Err(error) => {
                known::take_back(store, &written, claim, options, &error).await?;
                return Err(error);
            }
        }
    }
    Ok(imported)
}
