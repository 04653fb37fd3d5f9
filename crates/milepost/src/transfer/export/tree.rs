//! A session as a directory in the layout that another design expects.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use milepost_model::{Include, SessionId, Trigger};
use milepost_store::{SessionQuery, Store, StoredMessage};
use serde_json::{Value, json};

use super::chat::write_chat;
use super::folder::{Folder, Present, safe_name};
use super::messages::with_time;
use super::shapes::{View, graph, hosted, plain, plan, task};
use crate::config::Compression;
use crate::engine::Milepost;
use crate::error::Result;
use crate::transfer::when::file_time;
use crate::transfer::written;

/// Whose layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A hosted chat agent's: `checkpoints/{session}/…`, `sessions/{session}/…`, `projects/{project}/…`.
    Hosted,
    /// A supervised task's: `.checkpoints/…` with a link to the latest, `.metadata/task.json`.
    Task,
    /// A plan's: `plans/{session}.json`.
    Plan,
    /// A feature's worktree: `.dagent-worktrees/{feature}/.dagent/…`.
    Feature,
    /// A graph's: `sessions/session_YYYYMMDD_HHMMSS_{id}/…`.
    Graph,
}

/// What checkpoint files beside the store hold, and how they are packed.
#[derive(Debug, Clone, Default)]
pub struct FileOptions {
    /// What they hold.
    pub include: Include,
    /// Those larger than a threshold are packed with gzip, and their names end with `.gz`.
    pub compression: Compression,
    /// What becomes of files that are there already.
    pub present: Present,
}

impl Milepost {
    /// Writes a session below a directory: with what its policy includes in checkpoints, packed as the configuration says.
    /// See [`tree()`].
    pub async fn export_tree(
        &self,
        session: SessionId,
        layout: Layout,
        dir: &Path,
        present: Present,
    ) -> Result<Vec<PathBuf>> {
        let include = self.policy_of(&self.store().session(session).await?)?.include;
        let options = FileOptions { include, compression: self.compression().clone(), present };
        tree(self.store(), session, layout, dir, &options).await
    }
}

/// Writes a session below a directory. Names that came from outside are made plain, and no link is followed. What an
/// encrypted workspace held can be read by this user alone. Returns what was written.
pub async fn tree(
    store: &Store,
    session: SessionId,
    layout: Layout,
    dir: &Path,
    options: &FileOptions,
) -> Result<Vec<PathBuf>> {
    let mut view = View::load(store, session).await?;
    view.leave_out(&options.include)?;
    let folder = Folder::open(dir, options.present)?.private(store.is_encrypted());
    let mut folder = folder.packing(&options.compression);
    match layout {
        Layout::Hosted => write_hosted(store, &view, &mut folder).await?,
        Layout::Task => write_task(&view, &mut folder)?,
        Layout::Plan => {
            let name = format!("{}.json", safe_name(&view.name()));
            let all: Vec<Value> = view.checkpoints.iter().map(|at| plan(&view, at)).collect();
            folder.json(&["plans", &name], &json!({ "sessionId": view.name(), "checkpoints": all }))?;
        }
        Layout::Feature => write_feature(&view, &mut folder)?,
        Layout::Graph => write_graph(&view, &mut folder)?,
    }
    Ok(folder.finish())
}

fn lines(values: impl Iterator<Item = Value>) -> Vec<u8> {
    values.flat_map(|value| format!("{value}\n").into_bytes()).collect()
}

async fn write_hosted(store: &Store, view: &View, folder: &mut Folder) -> Result<()> {
    let id = safe_name(&view.name());
    let mut names = BTreeSet::new();
    for at in &view.checkpoints {
        let mut name = format!("checkpoint-{}.json", file_time(at.mark.time));
        if !names.insert(name.clone()) {
            name = format!("checkpoint-{}-{}.json", file_time(at.mark.time), at.mark.checkpoint.number);
        }
        folder.checkpoint(&["checkpoints", &id, &name], &hosted(view, at))?;
    }
    if let Some(at) = view.checkpoints.last() {
        folder.json(&["checkpoints", &id, "latest.json"], &hosted(view, at))?;
    }
    folder.write(&["checkpoints", &id, "conversation.jsonl"], &lines(view.messages.iter().map(plain)))?;
    folder.json(&["sessions", &id, "metadata.json"], &view.summary())?;
    for (name, content) in &view.artifacts {
        let parts: Vec<String> = name.split('/').map(safe_name).collect();
        let parts: Vec<&str> =
            ["sessions", &id, "artifacts"].into_iter().chain(parts.iter().map(String::as_str)).collect();
        folder.write(&parts, content)?;
    }
    let log = view.checkpoints.iter().map(|at| {
        json!({
            "timestamp": at.mark.time.to_string(), "type": "checkpoint_created", "sessionId": view.name(),
            "checkpointId": at.mark.checkpoint.id, "reason": at.mark.checkpoint.trigger,
        })
    });
    let mut text: Vec<u8> = view.log.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
    text.extend(lines(log));
    folder.write(&["sessions", &id, "logs", "agent.log"], &text)?;
    if let Some(project) = &view.session.project {
        let query = SessionQuery { project: Some(project.clone()), by_creation: true, ..SessionQuery::default() };
        let sessions: Vec<Value> = store
            .sessions(&query)
            .await?
            .sessions
            .iter()
            .map(|session| {
                let mut row = json!({
                    "sessionId": written::name(session), "title": session.title, "status": session.status,
                    "messageCount": session.messages(), "createdAt": session.created.to_string(),
                    "lastActiveAt": session.active.to_string(), "lastMessage": session.preview,
                });
                written::over_fields(&mut row, session, "metadata");
                row
            })
            .collect();
        let index = json!({ "projectId": project, "sessions": sessions });
        folder.shared(&["projects", &safe_name(project), "sessions", "session-index.json"], &index)?;
    }
    Ok(())
}

/// Artifacts with their content: what a session drafted, and what it keeps under `artifacts`.
pub(in crate::transfer) fn artifacts(state: &Value) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for place in ["/memory/draftArtifacts", "/memory/artifacts", "/artifacts"] {
        for (name, value) in state.pointer(place).and_then(Value::as_object).into_iter().flatten() {
            let content = match value.get("content").unwrap_or(value) {
                Value::String(text) => text.clone().into_bytes(),
                other => serde_json::to_vec_pretty(other).unwrap_or_default(),
            };
            found.insert(name.clone(), content);
        }
    }
    found
}

fn write_task(view: &View, folder: &mut Folder) -> Result<()> {
    // Where several would have one name, the newest has it.
    let mut named: BTreeMap<String, usize> = BTreeMap::new();
    for (number, at) in view.checkpoints.iter().enumerate() {
        let phase = || at.state.pointer("/agent/currentPhase").or_else(|| at.state.pointer("/task/currentPhase"));
        let name = match at.mark.checkpoint.trigger {
            Trigger::PhaseComplete => {
                phase().and_then(Value::as_u64).map(|phase| format!("checkpoint_phase{phase}_complete.json"))
            }
            Trigger::RateLimit => Some("checkpoint_rate_limit.json".to_owned()),
            Trigger::Pause => Some("checkpoint_user_pause.json".to_owned()),
            _ => None,
        };
        if let Some(name) = name {
            named.insert(name, number);
        }
    }
    let mut latest = None;
    let mut names = BTreeSet::new();
    for (number, at) in view.checkpoints.iter().enumerate() {
        let own = named.iter().find(|(_, newest)| **newest == number).map(|(name, _)| name.clone());
        let mut name = own.unwrap_or_else(|| format!("checkpoint_{}.json", file_time(at.mark.time)));
        if !names.insert(name.clone()) {
            name = format!("checkpoint_{}-{}.json", file_time(at.mark.time), at.mark.checkpoint.number);
        }
        let value = task(view, at);
        let name = folder.checkpoint(&[".checkpoints", &name], &value)?;
        latest = Some((name, value));
    }
    if let Some((name, value)) = latest {
        folder.link(&[".checkpoints", "latest.json"], &name, &value)?;
    }
    let mut about = view.summary();
    about["taskId"] = json!(view.session.task.clone().unwrap_or_else(|| view.name()));
    folder.json(&[".metadata", "task.json"], &about)
}

fn write_feature(view: &View, folder: &mut Folder) -> Result<()> {
    let session = &view.session;
    let feature = safe_name(session.feature.as_deref().unwrap_or("default"));
    let base = [".dagent-worktrees", feature.as_str(), ".dagent"];
    let Some(task) = &session.task else {
        let mut about = json!({ "featureId": session.feature, "sessionId": view.name() });
        written::over_session(&mut about, session, "feature_file");
        folder.json(&[&base[..], &["feature.json"]].concat(), &about)?;
        return write_chat(folder, &[&base[..], &["sessions"]].concat(), view);
    };
    let stage = session.stage.clone().unwrap_or_else(|| "in_dev".into());
    let node = safe_name(task);
    let mut about = json!({
        "taskId": task, "states": { stage.as_str(): { "sessionIds": [view.name()] } }, "currentState": stage,
    });
    written::over_session(&mut about, session, "task_file");
    folder.json(&[&base[..], &["nodes", &node, "task.json"]].concat(), &about)?;
    write_chat(folder, &[&base[..], &["nodes", &node, "sessions"]].concat(), view)
}

fn write_graph(view: &View, folder: &mut Folder) -> Result<()> {
    let session = &view.session;
    let digits: String = session.created.to_string().chars().filter(char::is_ascii_digit).take(14).collect();
    let (day, time) = digits.split_at_checked(8).unwrap_or((&digits, ""));
    let own = written::kept(session, "directory").and_then(Value::as_str).map(safe_name);
    let name = own.unwrap_or_else(|| safe_name(&format!("session_{day}_{time}_{}", view.name())));
    let base = ["sessions", name.as_str()];
    let last = view.checkpoints.last().map(|at| graph(view, at)["checkpoint_id"].clone());
    let mut about = view.summary();
    for (key, value) in [
        ("session_id", json!(view.name())),
        ("status", json!(session.status)),
        ("error", json!(session.error)),
        ("created_at", json!(session.created.to_string())),
        ("updated_at", json!(session.active.to_string())),
        ("checkpoints_enabled", json!(true)),
        ("resume_from_checkpoint_id", json!(last)),
        ("is_resumable", json!(view.checkpoints.iter().any(|at| at.mark.checkpoint.resumable.is_yes()))),
    ] {
        about[key] = value;
    }
    written::over_session(&mut about, session, "metadata");
    folder.json(&[&base[..], &["state.json"]].concat(), &about)?;
    let (mut index, mut newest) = (Vec::new(), None);
    for at in &view.checkpoints {
        let full = graph(view, at);
        let id = full["checkpoint_id"].as_str().map_or_else(|| at.mark.checkpoint.id.to_string(), str::to_owned);
        let file = format!("{}.json", safe_name(&id));
        newest = Some(id);
        folder.checkpoint(&[&base[..], &["checkpoints", &file]].concat(), &full)?;
        index.push(json!({
            "checkpoint_id": full["checkpoint_id"], "type": full["checkpoint_type"], "created_at": full["created_at"],
            "current_node": full["current_node"], "is_clean": full["is_clean"],
            "can_resume_from": full["can_resume_from"], "description": full["description"],
        }));
    }
    let mut index = json!({
        "session_id": view.name(), "checkpoints": index, "latest_checkpoint_id": newest,
        "total_checkpoints": view.checkpoints.len(),
    });
    written::over_session(&mut index, session, "index");
    folder.json(&[&base[..], &["checkpoints", "index.json"]].concat(), &index)?;
    let mut nodes: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for found in &view.messages {
        nodes.entry(found.message.channel.as_str()).or_default().push(part(found)?);
    }
    for (node, parts) in nodes {
        let dir = safe_name(node);
        for (number, part) in parts.iter().enumerate() {
            let file = format!("{number:010}.json");
            folder.json(&[&base[..], &["conversations", &dir, "parts", &file]].concat(), part)?;
        }
        let mut about = [json!({ "node": node, "parts": parts.len() }), json!({ "next": parts.len() })];
        for (made, name) in about.iter_mut().zip(["meta.json", "cursor.json"]) {
            written::over_session(made, session, &format!("{node}/{name}"));
            folder.json(&[&base[..], &["conversations", &dir, name]].concat(), made)?;
        }
    }
    for (name, content) in &view.artifacts {
        let (below, name) = name.strip_prefix("logs/").map_or(("data", name.as_str()), |name| ("logs", name));
        let parts: Vec<String> = name.split('/').map(safe_name).collect();
        let parts = [&base[..], &[below], &parts.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        folder.write(&parts, content)?;
    }
    Ok(())
}

/// A message of a node: the directory says whose it is.
fn part(found: &StoredMessage) -> Result<Value> {
    let mut value = with_time(found)?;
    if let Value::Object(map) = &mut value {
        map.remove("channel");
    }
    Ok(value)
}
