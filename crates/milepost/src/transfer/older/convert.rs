//! Documents of other designs as parts of a session.

use milepost_model::{Status, Timestamp};
use serde_json::{Map, Value, json};

use super::builder::{Builder, Found};
use super::detect::Kind;
use super::say::said;
use crate::error::Result;
use crate::transfer::export::SECTIONS_FIELD;
use crate::transfer::when::parse_time;

/// Adds what a document says.
pub(super) fn add(builder: &mut Builder, kind: Kind, document: Value) -> Result<()> {
    let Value::Object(map) = document else { return Ok(()) };
    match kind {
        Kind::About => about_file(builder, map),
        Kind::Hosted => return hosted(builder, map),
        Kind::Task => return task(builder, map),
        Kind::Plan => return plan(builder, map),
        Kind::Graph => return graph(builder, map),
        Kind::Chat => return chat(builder, map),
        Kind::Summary => return summary(builder, map),
        Kind::Context => return context(builder, map),
        Kind::Agent => return agent(builder, map),
        Kind::Unknown => builder.note("a document of an unknown form was left out"),
    }
    Ok(())
}

fn time(map: &Map<String, Value>, keys: &[&str]) -> Option<Timestamp> {
    keys.iter().find_map(|key| parse_time(map.get(*key)?))
}

fn text(value: Option<Value>) -> Option<String> {
    value.and_then(|value| value.as_str().map(str::to_owned)).filter(|text| !text.is_empty())
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// What a file says of a session as a whole.
fn about_file(builder: &mut Builder, map: Map<String, Value>) {
    about(builder, &map);
    let whole = Value::Object(map);
    let has = |key: &str| whole.get(key).is_some();
    let (document, said) = match () {
        // Which of a task's sessions it was read for is not of the file.
        () if has("states") => ("task_file", part(Some(&whole), |key| !["sessionId", "stage"].contains(&key))),
        () if has("status") || has("lastActiveAt") => ("metadata", whole),
        () => ("feature_file", whole),
    };
    builder.keep_written(document, said);
}

/// What a list shows of a session, under the names of other designs.
pub(super) fn about(builder: &mut Builder, map: &Map<String, Value>) {
    for (key, names) in [
        ("title", ["title", "title"]),
        ("project", ["projectId", "project_id"]),
        ("agent", ["agentType", "agent_type"]),
        ("feature", ["featureId", "feature_id"]),
        ("task", ["taskId", "task_id"]),
        ("stage", ["stage", "currentState"]),
        ("status", ["status", "status"]),
        ("error", ["error", "error"]),
    ] {
        let value = names.iter().find_map(|name| map.get(*name));
        // A task without a name is called like its session.
        if value.and_then(Value::as_str) != Some(&builder.original) {
            builder.set(key, value);
        }
    }
    let tags: Vec<Value> = list(map.get("tags").cloned()).into_iter().filter(Value::is_string).collect();
    let fits = |tag: &Value| {
        tag.as_str().is_some_and(|tag| !tag.is_empty() && tag.len() <= 1024 && !tag.contains(['\n', '\0']))
    };
    if !tags.is_empty() && tags.iter().all(fits) {
        builder.patch.0.insert("tags".into(), Value::Array(tags));
    }
    builder.begin(time(map, &["createdAt", "created_at"]));
}

/// The state of a checkpoint: its own sections, and those that its design has no place for.
fn sections(map: &mut Map<String, Value>, own: &[(&str, &str)]) -> Value {
    let mut state = match map.remove(SECTIONS_FIELD) {
        Some(Value::Object(rest)) => rest,
        _ => Map::new(),
    };
    for (written, kept) in own {
        if let Some(value) = map.remove(*written) {
            state.insert((*kept).to_owned(), value);
        }
    }
    Value::Object(state)
}

/// Takes what every mark has out of a checkpoint's fields.
fn found(map: &mut Map<String, Value>, names: &[&str], reason: &str, time: Option<Timestamp>) -> Found {
    let id = names.iter().find_map(|name| text(map.remove(*name)));
    let reason = text(map.remove(reason));
    let trigger = text(map.remove("trigger")).or(reason).unwrap_or_else(|| "interval".into());
    let label = text(map.remove("label"));
    // One that is empty is not the same as none.
    let description = map.remove("description").and_then(|value| value.as_str().map(str::to_owned));
    Found { id, time, trigger, label, description, ..Found::default() }
}

/// What of a document is kept as it was written: these fields, and those whose value is no place for anything.
fn as_written(map: &Map<String, Value>, keys: &[&str], places: &[&str]) -> Map<String, Value> {
    let is_place = |value: &Value| value.as_object().is_some_and(|map| !map.is_empty());
    let is_kept = |key: &str, value: &Value| keys.contains(&key) || (places.contains(&key) && !is_place(value));
    map.iter().filter(|(key, value)| is_kept(key, value)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Parts of an object: these fields, or all but these.
fn part(value: Option<&Value>, pick: impl Fn(&str) -> bool) -> Value {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter(|(key, _)| pick(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn drop_keys(map: &mut Map<String, Value>, keys: &[&str]) {
    keys.iter().for_each(|key| drop(map.remove(*key)));
}

fn hosted(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    const CONTEXT: [&str; 8] =
        ["sessionId", "workspaceId", "projectId", "taskId", "agentType", "createdAt", "lastActiveAt", "status"];
    let at = time(&map, &["timestamp"]);
    let fields = ["id", "version", "sessionId", "timestamp", "checkpointNumber", "reason"];
    let mut document = as_written(&map, &fields, &["context", "memory", "toolState", "sections"]);
    document.insert("context".into(), part(map.get("context"), |key| CONTEXT.contains(&key)));
    document.insert("conversation".into(), part(map.get("conversation"), |key| key != "messages"));
    let mut found = found(&mut map, &["id"], "reason", at);
    found.written = Some(("hosted", document));
    if builder.is_seen(&found) {
        return Ok(());
    }
    let messages = map.remove("conversation").map(|mut talk| list(talk.get_mut("messages").map(Value::take)));
    let mut state = sections(&mut map, &[("context", "context"), ("memory", "memory"), ("toolState", "tools")]);
    if let Some(context) = state.get_mut("context").and_then(Value::as_object_mut) {
        about(builder, context);
        drop_keys(context, &CONTEXT);
    }
    builder.branch(&mut map);
    drop_keys(&mut map, &["version", "sessionId", "timestamp", "checkpointNumber"]);
    builder.begin(at);
    builder.conversation(messages.unwrap_or_default())?;
    builder.set_state(at, state)?;
    found.extra = map;
    builder.mark(found);
    Ok(())
}

fn task(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    let at = time(&map, &["createdAt"]);
    let fields = ["id", "taskId", "createdAt", "createdBy", "reason", "changes"];
    let places = ["task", "agent", "environment", "workspace", "protocols", "sections"];
    let mut document = as_written(&map, &fields, &places);
    document.insert("conversationHistory".into(), part(map.get("conversationHistory"), |key| key != "messages"));
    let status = part(map.get("task"), |key| key == "status");
    if status.as_object().is_some_and(|status| !status.is_empty()) {
        document.insert("task".into(), status);
    }
    let mut found = found(&mut map, &["id"], "reason", at);
    found.written = Some(("task", document));
    if builder.is_seen(&found) {
        return Ok(());
    }
    builder.set("task", map.get("taskId").filter(|task| task.as_str() != Some(&builder.original)).cloned().as_ref());
    builder.begin(at);
    let talk = map.remove("conversationHistory").map(|mut talk| list(talk.get_mut("messages").map(Value::take)));
    match (talk, map.remove("changes")) {
        (Some(messages), _) => builder.conversation(messages)?,
        (None, Some(mut changes)) => {
            for value in list(changes.pointer_mut("/conversationHistory/newMessages").map(Value::take)) {
                let said = said(value).map_err(|why| builder.refuse(why))?;
                builder.message(said)?;
            }
        }
        (None, None) => {}
    }
    let own = [
        ("task", "task"),
        ("agent", "agent"),
        ("environment", "environment"),
        ("workspace", "files"),
        ("protocols", "protocols"),
    ];
    if let Some(task) = map.get_mut("task").and_then(Value::as_object_mut)
        && let Some(status) = task.get("status").and_then(Value::as_str).and_then(Status::from_name)
    {
        // One of ours is the session's.
        builder.set("status", Some(&status.as_str().into()));
        task.remove("status");
    }
    let is_partial = map.contains_key("baseCheckpointId");
    let state = sections(&mut map, &own);
    let state = if is_partial { merged(builder.state(), state) } else { state };
    builder.set_state(at, state)?;
    drop_keys(&mut map, &["taskId", "sessionId", "createdAt", "createdBy"]);
    found.extra = map;
    builder.mark(found);
    Ok(())
}

fn merged(mut base: Value, over: Value) -> Value {
    if let (Value::Object(base), Value::Object(over)) = (&mut base, over) {
        base.extend(over);
    }
    base
}

fn plan(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    let at = time(&map, &["createdAt"]);
    let mut metadata = match map.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    let mut document = as_written(&map, &["id", "sessionId", "projectId", "stepNumber", "createdAt"], &["state"]);
    document.insert("metadata".into(), as_written(&metadata, &["triggerType"], &[]).into());
    let id = text(map.remove("id"));
    let mut found = Found { id, ..found(&mut metadata, &[], "triggerType", at) };
    found.written = Some(("plan", document));
    if builder.is_seen(&found) {
        return Ok(());
    }
    builder.set("project", map.get("projectId"));
    builder.begin(at);
    let state = sections(&mut map, &[("state", "execution")]);
    builder.set_state(at, state)?;
    drop_keys(&mut map, &["sessionId", "projectId", "stepNumber", "createdAt"]);
    // Those that an export writes where there are none.
    let is_made = |key: &str| ["description", "durationMs", "tokenUsage"].contains(&key);
    metadata.retain(|key, value| !(value.is_null() && is_made(key)));
    map.extend(metadata);
    found.extra = map;
    builder.mark(found);
    Ok(())
}

/// A graph's checkpoint. Its conversations are files of their own.
pub(super) fn graph(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    let at = time(&map, &["created_at"]);
    let fields = ["checkpoint_id", "session_id", "checkpoint_type", "created_at", "conversation_states", "signature"];
    let mut document =
        as_written(&map, &fields, &["shared_memory", "metrics_snapshot", "accumulated_outputs", "sections"]);
    for key in ["current_node", "next_node", "execution_path", "description"] {
        // What says nothing says it in many ways.
        let says_nothing = |value: &&Value| value.is_null() || **value == json!("") || **value == json!([]);
        document.extend(map.get(key).filter(says_nothing).map(|value| (key.to_owned(), value.clone())));
    }
    let mut found = found(&mut map, &["checkpoint_id"], "checkpoint_type", at);
    found.written = Some(("graph", document));
    // There none is written as an empty one.
    found.description = found.description.filter(|text| !text.is_empty());
    if builder.is_seen(&found) {
        return Ok(());
    }
    found.is_unclean = map.remove("is_clean") == Some(Value::Bool(false));
    found.is_final = map.remove("can_resume_from") == Some(Value::Bool(false));
    builder.begin(at);
    let mut execution = Map::new();
    for key in ["current_node", "next_node", "execution_path", "accumulated_outputs"] {
        let is_empty =
            |value: &Value| value.is_null() || *value == json!([]) || *value == json!({}) || *value == json!("");
        if let Some(value) = map.remove(key).filter(|value| !is_empty(value)) {
            execution.insert(key.to_owned(), value);
        }
    }
    let mut state = sections(&mut map, &[("shared_memory", "memory"), ("metrics_snapshot", "metrics")]);
    let rest = state.get_mut("execution").map(Value::take);
    if let Some(Value::Object(rest)) = rest {
        execution.extend(rest);
    }
    state["execution"] = Value::Object(execution);
    builder.set_state(at, state)?;
    drop_keys(&mut map, &["session_id", "created_at", "conversation_states", "signature"]);
    found.extra = map;
    builder.mark(found);
    Ok(())
}

fn chat(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    let metadata = map.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    builder.begin(time(&metadata, &["createdAt"]).or_else(|| time(&map, &["createdAt", "created_at"])));
    builder.set("title", map.get("title").or_else(|| map.get("name")).cloned().as_ref());
    let messages = list(map.remove("messages"));
    builder.conversation(messages)?;
    if !map.is_empty() {
        let said = Value::Object(map.clone());
        builder.keep_written("chat", said);
    }
    builder.updated = time(&metadata, &["updatedAt"]).or_else(|| time(&map, &["updatedAt", "updated_at"]));
    Ok(())
}

fn summary(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    let at = time(&map, &["updatedAt"]);
    builder.begin(time(&map, &["createdAt"]));
    let whole = Value::Object(map.clone());
    let said = part(Some(&whole), |key| !["summary", "ralphLoop", SECTIONS_FIELD].contains(&key));
    builder.keep_written("checkpoint", said);
    let mut summary = match map.remove("summary") {
        Some(Value::Object(summary)) => summary,
        _ => Map::new(),
    };
    for (written, kept) in [("completedItems", "completed"), ("pendingItems", "pending")] {
        if let Some(value) = summary.remove(written) {
            summary.insert(kept.to_owned(), value);
        }
    }
    for key in ["version", "tokens"] {
        if let Some(value) = map.remove(key) {
            summary.insert(key.to_owned(), value);
        }
    }
    let mut state = merged(builder.state(), sections(&mut map, &[]));
    if let Some(rounds) = map.remove("ralphLoop") {
        state["execution"]["ralphLoop"] = rounds;
    }
    state["summary"] = Value::Object(summary);
    builder.set_state(at, state)
}

fn context(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    let at = time(&map, &["updatedAt"]);
    let fields = ["sessionId", "featureId", "taskId", "updatedAt", "tokens"];
    builder.keep_written("context", as_written(&map, &fields, &[]).into());
    builder.set("feature", map.remove("featureId").as_ref());
    builder.set("task", map.remove("taskId").as_ref());
    drop_keys(&mut map, &["sessionId", "updatedAt", "tokens"]);
    let mut state = builder.state();
    state["context"] = Value::Object(map);
    builder.set_state(at, state)
}

fn agent(builder: &mut Builder, mut map: Map<String, Value>) -> Result<()> {
    let at = time(&map, &["createdAt"]);
    builder.keep_written("agent", as_written(&map, &["sessionId", "createdAt", "tokens"], &[]).into());
    builder.begin(at);
    builder.set("agent", map.get("agentType"));
    drop_keys(&mut map, &["sessionId", "createdAt", "tokens"]);
    let mut state = builder.state();
    if !state["context"].is_object() {
        state["context"] = json!({});
    }
    state["context"]["agent"] = Value::Object(map);
    builder.set_state(None, state)
}
