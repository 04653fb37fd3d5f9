//! What a JSON document is, by its fields.

use milepost_model::Timestamp;
use serde_json::Value;

use crate::transfer::when::parse_time;

/// Forms that are known. In the order in which the documents of one session are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// What a list shows of a session.
    About,
    /// Whole checkpoints of the designs A, B and C.
    Hosted,
    Task,
    Plan,
    /// A checkpoint of design E without its directory.
    Graph,
    /// The chat of design D, or any list of messages.
    Chat,
    /// The other files of design D.
    Summary,
    Context,
    Agent,
    Unknown,
}

/// The documents that one is made of, each with what it is.
pub(super) fn parts(document: Value) -> Vec<(Kind, Value)> {
    match document {
        Value::Array(items) if items.first().is_some_and(is_message) => {
            vec![(Kind::Chat, serde_json::json!({ "messages": items }))]
        }
        Value::Array(items) => items.into_iter().map(|item| (kind(&item), item)).collect(),
        Value::Object(mut map) => match map.get("checkpoints").and_then(Value::as_array) {
            Some(list) if !list.is_empty() && list.iter().all(|item| kind(item) == Kind::Plan) => {
                let list = map.remove("checkpoints").and_then(|list| list.as_array().cloned()).unwrap_or_default();
                list.into_iter().map(|item| (Kind::Plan, item)).collect()
            }
            _ => {
                let document = Value::Object(map);
                task_sessions(&document).unwrap_or_else(|| vec![(kind(&document), document)])
            }
        },
        other => vec![(Kind::Unknown, other)],
    }
}

/// What design D's file of a task says of each of its sessions: the task, and the state in which it was.
fn task_sessions(document: &Value) -> Option<Vec<(Kind, Value)>> {
    let task = document.get("taskId")?.as_str()?;
    let states = document.get("states")?.as_object()?;
    let mut found = Vec::new();
    for (stage, of) in states {
        for id in of.get("sessionIds")?.as_array()?.iter().filter_map(Value::as_str) {
            let mut of_one = document.clone();
            of_one["sessionId"] = id.into();
            of_one["stage"] = stage.as_str().into();
            of_one["taskId"] = task.into();
            found.push((Kind::About, of_one));
        }
    }
    Some(found)
}

/// What a list shows of a session, or design B's file of a task.
fn is_about(document: &Value) -> bool {
    let has = |key: &str| document.get(key).is_some();
    let is_task =
        document.get("taskId").is_some_and(Value::is_string) && document.get("status").is_some_and(Value::is_string);
    (has("sessionId") && has("status") && has("createdAt")) || is_task
}

/// Design D's file of a feature names its session, and maybe itself.
fn is_feature(document: &Value) -> bool {
    let is_known = |key: &String| ["sessionId", "featureId", "name", "createdAt"].contains(&key.as_str());
    document.get("sessionId").is_some_and(Value::is_string)
        && document.as_object().is_some_and(|map| map.keys().all(is_known))
}

/// Whether it is a message by itself.
pub(super) fn is_message(value: &Value) -> bool {
    value.get("role").is_some_and(Value::is_string)
        && ["content", "text", "toolCalls", "toolResults"].iter().any(|key| value.get(*key).is_some())
}

fn kind(document: &Value) -> Kind {
    let has = |key: &str| document.get(key).is_some();
    let has_object = |key: &str| document.get(key).is_some_and(Value::is_object);
    if has_object("conversationHistory") || (has("baseCheckpointId") && has_object("changes")) {
        Kind::Task
    } else if has_object("conversation") && (has("checkpointNumber") || has_object("context")) {
        Kind::Hosted
    } else if has("checkpoint_id") {
        Kind::Graph
    } else if has("stepNumber") && has_object("state") {
        Kind::Plan
    } else if document.get("messages").is_some_and(Value::is_array) {
        Kind::Chat
    } else if has_object("summary") && document.pointer("/summary/completedItems").is_some() {
        Kind::Summary
    } else if has("agentType") && has("allowedTools") {
        Kind::Agent
    } else if has("sessionId") && has("type") && has("project") {
        Kind::Context
    } else if is_about(document) || is_feature(document) {
        Kind::About
    } else {
        Kind::Unknown
    }
}

/// What the session of a document is called there.
pub(super) fn session_of(document: &Value) -> Option<String> {
    ["sessionId", "session_id", "taskId"].iter().find_map(|key| document.get(*key)?.as_str().map(str::to_owned))
}

/// When a document was made.
pub(super) fn time_of(document: &Value) -> Option<Timestamp> {
    let keys = ["timestamp", "createdAt", "created_at"];
    keys.iter().find_map(|key| parse_time(document.get(*key)?))
}

/// Which of several of the same time comes first.
pub(super) fn number_of(document: &Value) -> u64 {
    ["checkpointNumber", "stepNumber"].iter().find_map(|key| document.get(*key)?.as_u64()).unwrap_or(0)
}
