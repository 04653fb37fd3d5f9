//! Files that lie beside a session in a tree: what was made, and logs. They become the session's artifacts and its log.

use std::fs;
use std::path::{Path, PathBuf};

use milepost_model::{SessionId, Timestamp};
use milepost_store::Store;
use serde_json::Value;

use super::builder::Builder;
use crate::error::{Error, Result};
use crate::project::{
    ArtifactKind, BroughtArtifact, LogLine, MAX_ARTIFACT_BYTES, MAX_LINE_BYTES, Owner, Projects, check_artifact_name,
};
use crate::transfer::ImportOptions;

/// A file that lies beside a session.
#[derive(Debug, Clone)]
pub(super) struct Beside {
    /// What the session is called.
    pub session: String,
    /// What it becomes: an artifact with this name, or the session's log.
    pub name: Option<String>,
    pub path: PathBuf,
}

/// What a file below a hosted tree is: `sessions/{session}/artifacts/…` and `sessions/{session}/logs/agent.log`.
pub(super) fn of_hosted(root: &Path, path: &Path) -> Option<Beside> {
    let below = path.strip_prefix(root).ok()?;
    let parts: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let at = parts.iter().position(|part| part == "sessions")?;
    let name = match parts.get(at + 2..)? {
        [kind, rest @ ..] if kind == "artifacts" && !rest.is_empty() => Some(rest.join("/")),
        [kind, file] if kind == "logs" && file == "agent.log" => None,
        _ => return None,
    };
    Some(Beside { session: parts.get(at + 1)?.clone(), name, path: path.to_owned() })
}

/// Files below a directory of a graph's session, by their names there. Links are not followed.
pub(super) fn of_graph(dir: &Path, below: &str, options: &ImportOptions) -> Result<Vec<(String, PathBuf)>> {
    let (mut found, mut open) = (Vec::new(), vec![(dir.join(below), String::new())]);
    while let Some((dir, prefix)) = open.pop() {
        if !fs::symlink_metadata(&dir).is_ok_and(|about| about.is_dir()) {
            continue;
        }
        let failed = |error: std::io::Error| Error::file(format!("reading {}", dir.display()), error);
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
            match fs::symlink_metadata(&path) {
                Ok(about) if about.is_dir() => open.push((path, format!("{name}/"))),
                Ok(about) if about.is_file() => found.push((name, path)),
                _ => {}
            }
            if (found.len() + open.len()) as u64 > options.limits.max_files {
                let why = format!("it has more than {} files, the limit max_files", options.limits.max_files);
                return Err(Error::import(options.name(), why));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// What was read of the files beside a session.
#[derive(Debug, Default)]
pub(super) struct Kept {
    artifacts: Vec<(String, Vec<u8>)>,
    log: Vec<String>,
}

impl Kept {
    /// Takes a file: as an artifact, or as the log when it has no name.
    pub fn take(&mut self, builder: &mut Builder, name: Option<&str>, path: &Path) -> Result<()> {
        let shown = path.display();
        let size = fs::metadata(path).map_or(0, |about| about.len());
        if size > MAX_ARTIFACT_BYTES as u64 {
            builder.note(format!("{shown} is larger than {MAX_ARTIFACT_BYTES} bytes: left out"));
            return Ok(());
        }
        let content = fs::read(path).map_err(|error| Error::file(format!("reading {shown}"), error))?;
        match name {
            Some(name) if check_artifact_name(name).is_err() => {
                builder.note(format!("{shown} has a name that no artifact can have: left out"));
            }
            Some(name) => self.artifacts.push((name.to_owned(), builder.redacted_bytes(content))),
            None => {
                // A log is kept as text: as that it is looked through.
                let text = builder.redacted(String::from_utf8_lossy(&content).into_owned());
                if text.lines().any(|line| line.len() > MAX_LINE_BYTES) {
                    builder.note(format!("{shown} has lines of more than {MAX_LINE_BYTES} bytes: those are left out"));
                }
                let lines = text.lines().filter(|line| line.len() <= MAX_LINE_BYTES && !is_made(line));
                self.log.extend(lines.map(str::to_owned));
            }
        }
        Ok(())
    }

    /// Puts them beside the session. What its state has under the same name and with the same content is not kept twice.
    pub async fn write(self, store: &Store, session: SessionId, state: &Value, at: Timestamp) -> Result<()> {
        let known = crate::transfer::export::artifacts_of(state);
        let artifacts: Vec<_> =
            self.artifacts.into_iter().filter(|(name, content)| known.get(name) != Some(content)).collect();
        if artifacts.is_empty() && self.log.is_empty() {
            return Ok(());
        }
        let (projects, owner) = (Projects::open(store).await?, Owner::Session(session));
        for (name, content) in artifacts {
            let (kind, number, session, template) = (ArtifactKind::Document, 1, Some(session), None);
            let brought = BroughtArtifact { name, kind, number, created: at, session, template, content };
            projects.bring_artifact(&owner, brought).await?;
        }
        let lines: Vec<LogLine> = self.log.into_iter().map(|text| LogLine { at, text, redacted: false }).collect();
        projects.bring_log(&owner, 0, &lines).await
    }
}

/// Whether an export made this line of a log of one of our checkpoints: it makes it again.
fn is_made(line: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(line) else { return false };
    let id = value.get("checkpointId").and_then(Value::as_str);
    value.get("type").and_then(Value::as_str) == Some("checkpoint_created")
        && id.is_some_and(|id| id.parse::<milepost_model::CheckpointId>().is_ok())
}
