//! Tasks: from files `nodes/{id}/task.json`, or from a list in a document.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::documents::{Reading, task_files};

/// The longest text of a task's field, in characters.
const MAX_FIELD_CHARS: usize = 4000;

/// A task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its id: the directory's name, or its number in the list.
    pub id: String,
    /// What it is called.
    pub title: String,
    /// What is to be done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// How it is doing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The tasks that come before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<String>,
}

/// Tasks that have a file each.
pub(super) fn from_nodes(reading: &mut Reading<'_>) -> Vec<Task> {
    let mut tasks = Vec::new();
    for path in task_files(reading.dir, reading.limits) {
        let Some(document) = reading.text(&path) else { continue };
        match serde_json::from_str::<Value>(&document.text) {
            Ok(Value::Object(fields)) if !document.truncated => tasks.push(from_fields(&path, &fields)),
            _ => reading.notes.push(format!("{} is not a task in JSON and was left out", document.path)),
        }
    }
    tasks
}

fn from_fields(path: &Path, fields: &serde_json::Map<String, Value>) -> Task {
    let text = |keys: &[&str]| {
        let found = keys.iter().find_map(|key| fields.get(*key)).and_then(Value::as_str);
        found.unwrap_or_default().chars().take(MAX_FIELD_CHARS).collect::<String>()
    };
    let directory = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let dependencies = fields.get("dependencies").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    Task {
        id: match text(&["id", "taskId"]) {
            id if id.is_empty() => directory.unwrap_or_default(),
            id => id,
        },
        title: text(&["title", "name"]),
        description: text(&["description"]),
        status: text(&["status", "currentState"]),
        dependencies: dependencies.iter().filter_map(|id| id.as_str().map(str::to_owned)).take(1000).collect(),
    }
}

/// Tasks of a list: lines such as `- [ ] write the tests`.
pub(super) fn from_list(text: &str, limit: usize) -> Vec<Task> {
    let boxes = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let rest = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "))?.trim_start();
        let (status, title) = match rest.get(..3)? {
            "[ ]" => ("pending", &rest[3..]),
            "[x]" | "[X]" => ("completed", &rest[3..]),
            _ => return None,
        };
        Some((status, title.trim()))
    });
    let tasks = boxes.filter(|(_, title)| !title.is_empty()).take(limit).enumerate();
    tasks
        .map(|(at, (status, title))| Task {
            id: (at + 1).to_string(),
            title: title.chars().take(MAX_FIELD_CHARS).collect(),
            status: status.to_owned(),
            ..Task::default()
        })
        .collect()
}
