//! Projects, and what they and their sessions have made.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::Result;
use milepost::project::{Artifact, ArtifactKind, MAX_ARTIFACT_BYTES, NewArtifact, Owner, ProjectId, Stored};
use milepost::store::Error as StoreError;
use milepost::{Milepost, SessionQuery};
use serde_json::{Value, json};

use super::list::project as project_name;
use crate::app::{App, apart, working_directory};
use crate::args::{Artifacts, Projects, Whose};
use crate::errors::{Failed, OnFile, Usage};
use crate::out::{Table, bytes, count, plain, safe, shell_word, short};

/// So many sessions of a project are shown.
const SHOWN_SESSIONS: usize = 10;

pub async fn run(app: &mut App, command: Projects) -> Result<()> {
    match command {
        Projects::List => list(app).await,
        Projects::Show { project } => show(app, project.as_deref()).await,
        Projects::Link { project, directory } => {
            let engine = app.engine().await?;
            let id = meant(&engine, &project).await?;
            let directory = directory.map_or_else(working_directory, Ok)?;
            let linked = engine.projects().await?.link(&id, &directory).await?;
            let directory = linked.paths.last().map(|path| plain(path)).unwrap_or_default();
            if app.out.json {
                return app.out.json(&json!({
                    "projectId": linked.id, "projectName": linked.name, "directories": linked.paths,
                }));
            }
            app.out.line(format!("{directory} belongs to {} {}", linked.id, plain(&linked.name)))
        }
    }
}

/// The project that is meant, by its id or its name.
async fn meant(engine: &Milepost, given: &str) -> Result<ProjectId> {
    Ok(ProjectId::new(engine.project_meant(given).await?)?)
}

/// The project that was named, or that of the working directory.
async fn named_or_here(app: &App, engine: &Milepost, given: Option<&str>) -> Result<ProjectId> {
    if let Some(given) = given {
        return meant(engine, given).await;
    }
    let found = engine.here(&working_directory()?).await?;
    if let Some(note) = &found.note {
        app.out.note(plain(note));
    }
    Ok(found.project.id)
}

/// The project that was named, or that of the working directory if it is known: looking begins none.
async fn named_or_known(app: &App, engine: &Milepost, given: Option<&str>) -> Result<ProjectId> {
    if let Some(given) = given {
        return meant(engine, given).await;
    }
    let here = working_directory()?;
    let found = engine.projects().await?.known(&here).await?;
    let found = found.ok_or_else(|| {
        milepost::Error::refused(
            format!("looking for the project of {}", here.display()),
            "no project is known there",
            "begin a session in it (`milepost sessions new --here`), or say to which it belongs (`milepost projects link`)",
        )
    })?;
    if let Some(note) = &found.note {
        app.out.note(plain(note));
    }
    Ok(found.project.id)
}

/// What is known of a project for a list.
#[derive(Default)]
struct Row {
    name: String,
    sessions: u64,
    directories: Vec<String>,
}

async fn list(app: &mut App) -> Result<()> {
    let Some(engine) = app.engine_if_any().await? else {
        return if app.out.json { app.out.json(&json!({ "projects": [] })) } else { Ok(()) };
    };
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for project in engine.projects().await?.all().await? {
        let row = Row { name: project.name, sessions: 0, directories: project.paths };
        rows.insert(project.id.to_string(), row);
    }
    // Programs give their sessions projects that no directory is known of.
    for session in engine.every_session(&SessionQuery::default()).await? {
        let Some(id) = &session.project else { continue };
        let row = rows.entry(id.clone()).or_insert_with(|| Row { name: project_name(&session), ..Row::default() });
        row.sessions += 1;
    }
    if app.out.json {
        let all = rows.iter().map(|(id, row)| {
            json!({
                "projectId": id, "projectName": row.name, "sessions": row.sessions, "directories": row.directories,
            })
        });
        return app.out.json(&json!({ "projects": all.collect::<Vec<_>>() }));
    }
    if rows.is_empty() {
        app.out.note("no projects: `milepost sessions new --here` begins a session in that of the working directory");
        return Ok(());
    }
    let cells = |(id, row): (String, Row)| {
        let last = row.directories.last().map(|directory| plain(directory)).unwrap_or_default();
        vec![plain(&id), plain(&row.name), row.sessions.to_string(), last]
    };
    let rows = rows.into_iter().map(cells).collect();
    let head = &["ID", "NAME", "SESSIONS", "DIRECTORY"];
    app.out.table(Table { head, rows, shrink: &[3, 1, 0], ..Table::default() })
}

async fn show(app: &mut App, given: Option<&str>) -> Result<()> {
    let engine = app.engine().await?;
    let id = named_or_known(app, &engine, given).await?;
    let projects = engine.projects().await?;
    let index = projects.index(&id).await?;
    let (directories, roots) = match projects.project(&id).await {
        Ok(project) => (project.paths, project.root_commits),
        Err(_) => Default::default(),
    };
    let artifacts = projects.artifacts(&Owner::Project(id.clone())).await?;
    if app.out.json {
        let mut value = serde_json::to_value(&index)?;
        value["directories"] = json!(directories);
        value["rootCommits"] = json!(roots);
        value["artifacts"] = artifacts.iter().map(artifact_json).collect();
        return app.out.json(&value);
    }
    app.out.line(format!("{}  {}", app.out.styles.bold(&plain(id.as_str())), plain(&index.project_name)))?;
    let mut facts = vec![("sessions", index.sessions.len().to_string())];
    facts.extend(directories.iter().rev().map(|directory| ("directory", plain(directory))));
    facts.extend(roots.iter().map(|root| ("root commit", root.clone())));
    facts.extend(artifacts.iter().map(|artifact| ("artifact", plain(&artifact.name))));
    app.out.facts(&facts)?;
    let rows: Vec<Vec<String>> = index
        .sessions
        .iter()
        .take(SHOWN_SESSIONS)
        .map(|row| {
            let text = |text: &Option<String>| text.as_deref().map(plain).unwrap_or_default();
            vec![
                short(row.session_id),
                row.status.to_string(),
                row.message_count.to_string(),
                text(&row.agent_type),
                text(&row.title),
            ]
        })
        .collect();
    if !rows.is_empty() {
        app.out.line("")?;
        let head = &["ID", "STATUS", "MESSAGES", "AGENT", "TITLE"];
        app.out.table(Table { head, rows, shrink: &[3, 4], last: &[3, 2], ..Table::default() })?;
    }
    if index.sessions.len() > SHOWN_SESSIONS {
        app.out.note(format!(
            "these are the {SHOWN_SESSIONS} last active; the others: milepost sessions list --all --project {}",
            plain(id.as_str())
        ));
    }
    Ok(())
}

/// What to do where a directory's project is not known.
enum Unknown {
    Begin,
    Refuse,
}

/// Whose artifacts are meant.
async fn owner(app: &mut App, whose: &Whose, unknown: Unknown) -> Result<Owner> {
    let engine = app.engine().await?;
    Ok(match &whose.of {
        Some(session) => {
            let id = app.session(session).await?;
            engine.store().session(id).await.map_err(milepost::Error::from)?;
            Owner::Session(id)
        }
        None => Owner::Project(match unknown {
            Unknown::Begin => named_or_here(app, &engine, whose.project.as_deref()).await?,
            Unknown::Refuse => named_or_known(app, &engine, whose.project.as_deref()).await?,
        }),
    })
}

pub async fn artifacts(app: &mut App, command: Artifacts) -> Result<()> {
    match command {
        Artifacts::List { whose } => list_artifacts(app, &whose).await,
        Artifacts::Show { name, whose, version } => {
            let owner = owner(app, &whose, Unknown::Refuse).await?;
            let found = app.engine().await?.projects().await?.artifact(&owner, &name, version).await;
            let (artifact, content) = found.map_err(|error| not_kept(error, &owner))?;
            if app.out.json {
                let mut value = artifact_json(&artifact);
                value["content"] = json!(String::from_utf8_lossy(&content));
                return app.out.json(&value);
            }
            match (app.out.is_terminal(), std::str::from_utf8(&content)) {
                (true, Ok(text)) => app.out.line(safe(text).trim_end()),
                (true, Err(_)) => Err(Usage("this artifact is not text: send the output to a file".into()).into()),
                (false, _) => app.out.bytes(&content),
            }
        }
        Artifacts::Put { name, file, whose, template } => {
            let content = content(app, &name, file).await?;
            let owner = owner(app, &whose, Unknown::Begin).await?;
            let kind = if template { ArtifactKind::Template } else { ArtifactKind::Document };
            let new = NewArtifact { kind, ..NewArtifact::default() };
            let stored = app.engine().await?.projects().await?.put_artifact(&owner, &name, &content, new).await?;
            kept(app, &owner, &name, &stored)
        }
        Artifacts::Make { name, template, whose, set } => {
            let values = set.iter().map(|text| pair(text)).collect::<Result<BTreeMap<_, _>>>()?;
            let owner = owner(app, &whose, Unknown::Begin).await?;
            let made = app.engine().await?.projects().await?.make(&owner, &name, &template, &values).await;
            let stored = made.map_err(|error| not_kept(error, &owner))?;
            kept(app, &owner, &name, &stored)
        }
        Artifacts::Delete { name, whose, dry_run, yes } => {
            let owner = owner(app, &whose, Unknown::Refuse).await?;
            let projects = app.engine().await?.projects().await?;
            let found = projects.artifact(&owner, &name, None).await;
            let (artifact, _) = found.map_err(|error| not_kept(error, &owner))?;
            let versions = count(artifact.versions.len(), "version");
            if !dry_run {
                let question = format!("Delete the artifact {} of {owner} with {versions} for good?", plain(&name));
                app.confirm(&question, yes).await?;
                projects.remove_artifact(&owner, &name).await?;
            }
            if app.out.json {
                return app
                    .out
                    .json(&json!({ "deleted": name, "versions": artifact.versions.len(), "dryRun": dry_run }));
            }
            let word = if dry_run { "would delete" } else { "deleted" };
            app.out.line(format!("{word} {} with {versions}", plain(&name)))
        }
    }
}

/// An artifact that is not there, with the command that lists those that are.
fn not_kept(error: milepost::Error, owner: &Owner) -> anyhow::Error {
    let milepost::Error::Store(StoreError::NotFound { what: "artifact" | "template", .. }) = &error else {
        return error.into();
    };
    let whose = match owner {
        Owner::Session(id) => format!("--of {}", short(id)),
        Owner::Project(id) => format!("--project {}", shell_word(id.as_str())),
    };
    Failed::missing_with(error.to_string(), vec![("list", format!("milepost artifacts list {whose}"))]).into()
}

async fn list_artifacts(app: &mut App, whose: &Whose) -> Result<()> {
    let owner = owner(app, whose, Unknown::Refuse).await?;
    let all = app.engine().await?.projects().await?.artifacts(&owner).await?;
    if app.out.json {
        return app.out.json(&json!({ "artifacts": all.iter().map(artifact_json).collect::<Vec<_>>() }));
    }
    if all.is_empty() {
        app.out.note(format!("{owner} has no artifacts: `milepost artifacts put` keeps one"));
        return Ok(());
    }
    let rows = all.iter().map(|artifact| {
        let newest = artifact.versions.last();
        vec![
            plain(&artifact.name),
            kind(artifact).to_owned(),
            newest.map(|version| version.number.to_string()).unwrap_or_default(),
            newest.map(|version| bytes(version.bytes)).unwrap_or_default(),
            newest.map(|version| app.out.time(version.created)).unwrap_or_default(),
            newest.and_then(|version| version.template.as_deref()).map(plain).unwrap_or_default(),
        ]
    });
    let head = &["NAME", "KIND", "VERSION", "SIZE", "KEPT", "MADE FROM"];
    app.out.table(Table { head, rows: rows.collect(), shrink: &[0, 5], last: &[5, 1, 2], ..Table::default() })
}

fn kind(artifact: &Artifact) -> &'static str {
    match artifact.kind {
        ArtifactKind::Document => "document",
        ArtifactKind::Template => "template",
    }
}

fn artifact_json(artifact: &Artifact) -> Value {
    let version = |version: &milepost::project::Version| {
        json!({
            "number": version.number, "bytes": version.bytes, "hash": version.hash,
            "createdAt": version.created.to_string(), "sessionId": version.session, "template": version.template,
        })
    };
    let versions: Vec<Value> = artifact.versions.iter().map(version).collect();
    json!({ "name": artifact.name, "kind": kind(artifact), "versions": versions })
}

fn kept(app: &App, owner: &Owner, name: &str, stored: &Stored) -> Result<()> {
    if app.out.json {
        return app.out.json(&json!({
            "name": name, "version": stored.version.number, "bytes": stored.version.bytes, "dropped": stored.dropped,
        }));
    }
    let (number, size) = (stored.version.number, bytes(stored.version.bytes));
    app.out.line(format!("{} of {owner} is at version {number}, {size}", plain(name)))?;
    if !stored.dropped.is_empty() {
        app.out.note(format!("{} went, as more are not kept", count(stored.dropped.len(), "older version")));
    }
    Ok(())
}

/// What is to be kept: of a file, or from the input. Where neither is named and nothing comes in, the file that is called
/// like the artifact is meant, if it is here; that nothing is to be kept has to be said.
async fn content(app: &App, name: &str, file: Option<PathBuf>) -> Result<Vec<u8>> {
    let is_said = file.is_some();
    let same = PathBuf::from(name);
    let is_here = !is_said && same.is_file();
    if !(is_here && std::io::stdin().is_terminal()) {
        let content = read(file).await?;
        if is_said || !content.is_empty() {
            return Ok(content);
        }
    }
    if !is_here {
        let why = "the input is empty, nothing was kept: name a file after the name, or say - to keep nothing at all";
        return Err(Usage(why.into()).into());
    }
    app.out.note(format!("taken from the file {}", plain(name)));
    read(Some(same)).await
}

/// A file, or the input. One byte more than may be is enough to refuse it.
async fn read(file: Option<PathBuf>) -> Result<Vec<u8>> {
    apart(move || {
        let (mut content, most) = (Vec::new(), MAX_ARTIFACT_BYTES as u64 + 1);
        match file.filter(|file| file != Path::new("-")) {
            Some(file) => {
                std::fs::File::open(&file)
                    .and_then(|file| file.take(most).read_to_end(&mut content))
                    .on_reading(format!("reading {}", file.display()))?;
            }
            None => drop(std::io::stdin().lock().take(most).read_to_end(&mut content).on_file("reading the input")?),
        }
        Ok(content)
    })
    .await
}

/// `NAME=TEXT`.
fn pair(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => {
            Err(Usage(format!("{text:?} fills nothing in: write NAME=TEXT, for example title=\"Three papers\"")).into())
        }
    }
}
