//! Context: what an agent should know of the directory it works in. The directory is foreign input: what is read is
//! bounded, links out of it are not followed, and what is not text is left out. Whatever was cut says so.

mod documents;
mod stale;
mod structure;
mod tasks;

use std::path::{Path, PathBuf};

use milepost_model::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use documents::{Document, SourceStamp};
pub use structure::Structure;
pub use tasks::Task;

use super::git::{self, Commit};
use super::keep::apart;
use crate::{Error, Result};

/// How much is collected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextLimits {
    /// How deep the structure goes (4).
    pub max_depth: usize,
    /// How many lines it has (400).
    pub max_entries: usize,
    /// How many entries of one directory it shows (40).
    pub max_entries_per_directory: usize,
    /// How many entries are looked at for it (20,000).
    pub max_visited: usize,
    /// How much of one document is read (64 KiB).
    pub max_document_bytes: usize,
    /// How many commits (20).
    pub max_commits: usize,
    /// How many tasks (200).
    pub max_tasks: usize,
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            max_depth: 4,
            max_entries: 400,
            max_entries_per_directory: 40,
            max_visited: 20_000,
            max_document_bytes: 64 << 10,
            max_commits: 20,
            max_tasks: 200,
        }
    }
}

/// What was collected from a working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Context {
    /// The tree of files, without what is ignored.
    pub structure: Structure,
    /// `CLAUDE.md`.
    pub claude_md: Option<Document>,
    /// `PROJECT.md`.
    pub project_md: Option<Document>,
    /// `README.md`.
    pub readme: Option<Document>,
    /// The specification.
    pub spec: Option<Document>,
    /// The list of tasks, as a document.
    pub tasks_md: Option<Document>,
    /// The tasks, from the list or from `nodes/*/task.json`.
    pub tasks: Vec<Task>,
    /// The newest commits, newest first.
    pub recent_commits: Vec<Commit>,
    /// The commit that the repository was at.
    pub head: Option<String>,
    /// The files that were read.
    pub sources: Vec<SourceStamp>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// When it was collected.
    pub updated: Timestamp,
    /// How much was to be collected.
    pub limits: ContextLimits,
}

/// Collects what a directory tells. It reads files and asks git, so it waits: in async code use [`collect`].
pub fn collect_now(dir: &Path, limits: &ContextLimits, now: Timestamp) -> Result<Context> {
    let dir = root_of(dir)?;
    let mut reading = documents::Reading::new(&dir, limits);
    let [claude_md, project_md, readme, spec, tasks_md] = documents::ROLES.map(|role| reading.document(role));
    let mut tasks = tasks::from_nodes(&mut reading);
    if tasks.is_empty() {
        tasks = tasks_md.as_ref().map(|list| tasks::from_list(&list.text, limits.max_tasks)).unwrap_or_default();
    }
    let documents::Reading { sources, notes, .. } = reading;
    Ok(Context {
        structure: structure::read(&dir, limits),
        claude_md,
        project_md,
        readme,
        spec,
        tasks_md,
        tasks,
        recent_commits: git::log(&dir, limits.max_commits),
        head: git::head(&dir),
        sources,
        notes,
        updated: now,
        limits: limits.clone(),
    })
}

/// Collects what a directory tells.
pub async fn collect(dir: &Path, limits: &ContextLimits, now: Timestamp) -> Result<Context> {
    let (dir, limits) = (dir.to_owned(), limits.clone());
    apart("collecting context", move || collect_now(&dir, &limits, now)).await?
}

/// Whether the directory has changed since: a file that was read, one that would be read now, the tree, or the commit.
pub async fn is_stale(context: &Context, dir: &Path) -> Result<bool> {
    let (context, dir) = (context.clone(), dir.to_owned());
    apart("looking for changes", move || Ok(stale::is_stale(&context, &root_of(&dir)?))).await?
}

/// Collects anew when the directory has changed. Returns whether it had.
pub async fn refresh(context: &mut Context, dir: &Path, now: Timestamp) -> Result<bool> {
    let is_old = is_stale(context, dir).await?;
    if is_old {
        *context = collect(dir, &context.limits, now).await?;
    }
    Ok(is_old)
}

fn root_of(dir: &Path) -> Result<PathBuf> {
    let fail = |error| Error::file(format!("collecting context from {}", dir.display()), error);
    let root = dir.canonicalize().map_err(fail)?;
    match root.is_dir() {
        true => Ok(root),
        false => Err(fail(std::io::Error::other("it is not a directory"))),
    }
}

/// Whose context it is, for its file.
#[derive(Debug, Clone, Default)]
pub struct ContextFor<'a> {
    /// The session.
    pub session: &'a str,
    /// The kind of agent.
    pub agent: &'a str,
    /// The feature that the session belongs to.
    pub feature: &'a str,
    /// What the feature is called.
    pub feature_name: Option<&'a str>,
    /// The task that the session belongs to.
    pub task: Option<&'a str>,
}

impl Context {
    /// The content of `context_{sessionId}.json`. `count` counts the tokens of a text.
    pub fn to_json(&self, about: &ContextFor<'_>, count: &dyn Fn(&str) -> u64) -> Value {
        let kind = match about.agent {
            "pm" => "pm-feature",
            "dev" => "dev-task",
            "qa" => "qa-task",
            other => other,
        };
        let text = |document: &Option<Document>| document.as_ref().map(|document| document.text.clone());
        let commits: Vec<String> =
            self.recent_commits.iter().map(|commit| format!("{} {}", &commit.id[..7], commit.subject)).collect();
        let mut project = json!({ "structure": self.structure.text, "recentCommits": commits });
        for (key, document) in [("claudeMd", &self.claude_md), ("projectMd", &self.project_md)] {
            if let Some(text) = text(document) {
                project[key] = Value::String(text);
            }
        }
        let mut out = json!({
            "sessionId": about.session,
            "type": kind,
            "featureId": about.feature,
            "project": project,
            "updatedAt": self.updated.to_string(),
        });
        if let Some(name) = about.feature_name {
            out["feature"] = json!({ "name": name, "tasks": self.tasks });
            if let Some(spec) = text(&self.spec) {
                out["feature"]["spec"] = Value::String(spec);
            }
        }
        if let Some(id) = about.task {
            out["taskId"] = json!(id);
            if let Some(task) = self.tasks.iter().find(|task| task.id == id) {
                let dependents = self.tasks.iter().filter(|other| other.dependencies.iter().any(|on| on == id));
                out["task"] = json!({
                    "title": task.title,
                    "description": task.description,
                    "dependencies": task.dependencies,
                    "dependents": dependents.map(|other| other.id.as_str()).collect::<Vec<_>>(),
                });
            }
        }
        out["tokens"] = json!(count(&out.to_string()));
        out
    }
}
