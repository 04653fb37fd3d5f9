//! Four small files: the chat, the summary, the context, and what the agent is.

use std::path::{Path, PathBuf};

use milepost_model::SessionId;
use milepost_store::{Store, StoredMessage};
use serde_json::{Map, Value, json};

use super::folder::{Folder, Present, safe_name};
use super::shapes::{SECTIONS_FIELD, TOOL_NAMES, View, estimate_tokens, plain, with_own_role};
use crate::error::Result;
use crate::transfer::written;

/// Writes `chat_`, `checkpoint_`, `context_` and `agent-description_{session}.json` into a directory. Returns their paths.
pub async fn chat_files(store: &Store, session: SessionId, dir: &Path, present: Present) -> Result<Vec<PathBuf>> {
    let view = View::load(store, session).await?;
    let mut folder = Folder::open(dir, present)?.private(store.is_encrypted());
    write_chat(&mut folder, &[], &view)?;
    Ok(folder.finish())
}

pub(super) fn write_chat(folder: &mut Folder, below: &[&str], view: &View) -> Result<()> {
    let id = safe_name(&view.name());
    for (name, value) in [
        ("chat", chat(view)),
        ("checkpoint", checkpoint(view)),
        ("context", context(view)),
        ("agent-description", agent(view)),
    ] {
        let file = format!("{name}_{id}.json");
        let parts: Vec<&str> = below.iter().copied().chain([file.as_str()]).collect();
        let mut value = value;
        written::over_session(&mut value, &view.session, kept_as(name));
        folder.json(&parts, &value)?;
    }
    Ok(())
}

/// What an import calls the document.
fn kept_as(name: &str) -> &str {
    if name == "agent-description" { "agent" } else { name }
}

fn message(found: &StoredMessage) -> (Value, u64) {
    let message = &found.message;
    let mut map = match plain(found) {
        Value::Object(plain) if message.extra.contains_key(TOOL_NAMES) => plain,
        _ => message.extra.clone(),
    };
    let tokens = map.get("tokens").and_then(Value::as_u64).unwrap_or_else(|| estimate_tokens(&message.text()));
    map.entry("id").or_insert_with(|| format!("msg_{}", found.at.seq).into());
    map.entry("timestamp").or_insert_with(|| found.time.to_string().into());
    if !message.extra.contains_key(TOOL_NAMES) {
        map.insert("role".into(), message.role.as_str().into());
        with_own_role(&mut map);
    }
    map.entry("content").or_insert_with(|| serde_json::to_value(&message.content).unwrap_or_default());
    map.insert("tokens".into(), tokens.into());
    if !message.channel.is_main() {
        map.insert("channel".into(), message.channel.as_str().into());
    }
    (Value::Object(map), tokens)
}

fn chat(view: &View) -> Value {
    let (messages, tokens): (Vec<Value>, Vec<u64>) = view.messages.iter().map(message).unzip();
    json!({
        "sessionId": view.name(),
        "messages": messages,
        "metadata": {
            "createdAt": view.session.created.to_string(),
            "updatedAt": view.session.active.to_string(),
            "messageCount": view.messages.len(),
            "tokenCount": tokens.iter().sum::<u64>(),
        },
    })
}

fn take(map: &mut Map<String, Value>, keys: [&str; 2]) -> Value {
    keys.iter().find_map(|key| map.remove(*key)).unwrap_or_else(|| json!([]))
}

fn section(view: &View, name: &str) -> Map<String, Value> {
    view.state.get(name).and_then(Value::as_object).cloned().unwrap_or_default()
}

fn checkpoint(view: &View) -> Value {
    let mut summary = section(view, "summary");
    let version = summary.remove("version").unwrap_or_else(|| json!(1));
    let tokens = summary.remove("tokens").unwrap_or_else(|| json!({ "lastCompactionInput": 0, "totalSaved": 0 }));
    let mut parts = Map::new();
    for (written, kept) in [
        ("completedItems", "completed"),
        ("pendingItems", "pending"),
        ("decisions", "decisions"),
        ("blockers", "blockers"),
    ] {
        parts.insert(written.into(), take(&mut summary, [kept, written]));
    }
    parts.extend(summary);
    let mut out = json!({
        "sessionId": view.name(),
        "version": version,
        "createdAt": view.session.created.to_string(),
        "updatedAt": view.session.active.to_string(),
        "summary": parts,
        "tokens": tokens,
    });
    out["tokens"]["checkpoint"] = estimate_tokens(&out["summary"].to_string()).into();
    let mut execution = section(view, "execution");
    if let Some(rounds) = execution.remove("ralphLoop") {
        out["ralphLoop"] = rounds;
    }
    let taken = ["summary", "context", "execution"];
    let state = view.state.as_object().cloned().unwrap_or_default();
    let mut rest: Map<String, Value> = state.into_iter().filter(|(key, _)| !taken.contains(&key.as_str())).collect();
    if !execution.is_empty() {
        rest.insert("execution".into(), Value::Object(execution));
    }
    if !rest.is_empty() {
        out[SECTIONS_FIELD] = Value::Object(rest);
    }
    out
}

fn context(view: &View) -> Value {
    let mut map = section(view, "context");
    map.remove("agent");
    map.insert("sessionId".into(), json!(view.name()));
    map.entry("type").or_insert_with(|| "dev-task".into());
    for (key, value) in [("featureId", &view.session.feature), ("taskId", &view.session.task)] {
        if let Some(value) = value {
            map.insert(key.into(), value.as_str().into());
        }
    }
    map.entry("project").or_insert_with(|| json!({ "structure": "", "recentCommits": [] }));
    map.remove("tokens");
    let tokens = estimate_tokens(&Value::Object(map.clone()).to_string());
    map.insert("updatedAt".into(), view.session.active.to_string().into());
    map.insert("tokens".into(), tokens.into());
    Value::Object(map)
}

fn agent(view: &View) -> Value {
    let mut map =
        section(view, "context").remove("agent").and_then(|agent| agent.as_object().cloned()).unwrap_or_default();
    map.remove("tokens");
    map.insert("sessionId".into(), json!(view.name()));
    map.entry("agentType").or_insert_with(|| view.session.agent.clone().unwrap_or_else(|| "dev".into()).into());
    for (key, empty) in [("role", json!("")), ("instructions", json!([])), ("allowedTools", json!([]))] {
        map.entry(key).or_insert(empty);
    }
    let tokens = estimate_tokens(&Value::Object(map.clone()).to_string());
    map.insert("createdAt".into(), view.session.created.to_string().into());
    map.insert("tokens".into(), tokens.into());
    Value::Object(map)
}
