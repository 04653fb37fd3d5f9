//! What of records and of sessions' fields is a person's. To replace anything else in them would make them unreadable, or have ids
//! lead nowhere.

use std::collections::BTreeMap;

use milepost_store::{Redactor, Texts};
use serde_json::{Map, Value};

use crate::project::ProjectId;

/// What the adapter of the OpenAI Agents SDK itself calls the branch that every conversation begins with.
const OPENAI_MAIN: &str = "main";

/// What a person said in records of a kind.
pub(super) fn of_record(kind: &str) -> Texts {
    match kind {
        "project" => Texts::In(&["name", "paths"]),
        // By its name it is found: that is changed with it.
        "artifact" => Texts::In(&["template"]),
        "agent-log" | "agent-log-group" => Texts::By(log_lines),
        // Without its address an archive could not be reached any more, and none with a password is taken.
        "archived" => Texts::In(&["title"]),
        "answer" => Texts::In(&["answer", "by"]),
        // Parts of artifacts are cleaned with the whole that they are of.
        "artifact-part" => Texts::None,
        // Ids and keys.
        "begun-anew" | "claude-session" | "importing" | "langgraph-thread" | "project-directory" | "project-path"
        | "project-root" | "project-secret" | "session-key" | "vault-key" | "wakeup" => Texts::None,
        "openai-session" => Texts::By(branches),
        _ => Texts::All,
    }
}

/// What a person said in a field of a session.
pub(super) fn of_field(name: &str) -> Texts {
    match name {
        "project" => Texts::By(project),
        "project_name" | "imported_id" => Texts::By(values),
        "as_written" => Texts::By(as_written),
        "claude" => Texts::By(claude),
        "openai" => Texts::By(openai),
        "langgraph" => Texts::In(&["thread", "namespace"]),
        // Settings, ids, hashes and flags.
        "policy" | "branched_from" | "begun_anew_from" | "begins_anew_from" | "imported_hash"
        | "langgraph_building" | "langgraph_left" => Texts::None,
        _ => Texts::All,
    }
}

/// Takes it out of texts, wherever they are. Names and numbers stay.
fn values(redactor: &Redactor, value: &mut Value) -> bool {
    match value {
        Value::String(text) => match redactor.clean(text) {
            Some(clean) => {
                *text = clean;
                true
            }
            None => false,
        },
        Value::Array(items) => items.iter_mut().fold(false, |found, item| values(redactor, item) | found),
        Value::Object(map) => map.values_mut().fold(false, |found, item| values(redactor, item) | found),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Lines of a log, wherever they are. Each that had it says so: its copies in other stores have it still.
fn log_lines(redactor: &Redactor, value: &mut Value) -> bool {
    match value {
        Value::Array(items) => items.iter_mut().fold(false, |found, item| log_lines(redactor, item) | found),
        Value::Object(map) => {
            let is_line = map.get_mut("text").is_some_and(|text| values(redactor, text));
            if is_line {
                map.insert("redacted".to_owned(), Value::Bool(true));
            }
            map.values_mut().fold(is_line, |found, item| log_lines(redactor, item) | found)
        }
        _ => false,
    }
}

/// An id that was made here leads to the project's record; a name is a person's.
fn project(redactor: &Redactor, value: &mut Value) -> bool {
    !value.as_str().is_some_and(ProjectId::is_made) && values(redactor, value)
}

/// Documents of another design, by names of ours, and when the session was at work.
fn as_written(redactor: &Redactor, value: &mut Value) -> bool {
    let documents = value.as_object_mut().into_iter().flatten().filter(|(name, _)| *name != "active");
    documents.fold(false, |found, (_, document)| redactor.clean_value(document) | found)
}

/// What the adapter of the Claude Agent SDK says of a session. Transcripts of subagents go by their channels.
fn claude(redactor: &Redactor, value: &mut Value) -> bool {
    let mut found = false;
    for (name, value) in value.as_object_mut().into_iter().flatten() {
        if let ("paths" | "deleted", Value::Object(channels)) = (name.as_str(), &mut *value) {
            found |= !rename(redactor, channels).is_empty();
        }
        found |= name != "deleted" && values(redactor, value);
    }
    found
}

/// What the adapter of the OpenAI Agents SDK says of a session. Its first branch is called so by the adapter.
fn openai(redactor: &Redactor, value: &mut Value) -> bool {
    let known = value.as_object_mut().into_iter().flatten();
    let of_person = known.filter(|(name, value)| *name != "branch" || value.as_str() != Some(OPENAI_MAIN));
    of_person.fold(false, |found, (_, value)| values(redactor, value) | found)
}

/// The names of the branches of a conversation, those that there are and all that were ever given.
fn branches(redactor: &Redactor, value: &mut Value) -> bool {
    let mut renamed = BTreeMap::new();
    if let Some(known) = value.get_mut("branches").and_then(Value::as_object_mut) {
        let main = known.remove(OPENAI_MAIN);
        renamed = rename(redactor, known);
        known.extend(main.map(|main| (OPENAI_MAIN.to_owned(), main)));
    }
    let mut found = !renamed.is_empty();
    for name in value.get_mut("used").and_then(Value::as_array_mut).into_iter().flatten() {
        if name.as_str() == Some(OPENAI_MAIN) {
            continue;
        }
        match name.as_str().and_then(|name| renamed.get(name)) {
            Some(now) => *name = Value::String(now.clone()),
            None => found |= values(redactor, name),
        }
    }
    found
}

/// Takes it out of names, numbers those that become the same, and says what they are called now.
fn rename(redactor: &Redactor, map: &mut Map<String, Value>) -> BTreeMap<String, String> {
    let held: Vec<_> = map.keys().filter_map(|name| Some((name.clone(), redactor.clean(name)?))).collect();
    let mut renamed = BTreeMap::new();
    for (name, clean) in held {
        let Some(value) = map.remove(&name) else { continue };
        let mut free = clean.clone();
        for round in 2u64.. {
            if !map.contains_key(&free) {
                break;
            }
            free = format!("{clean} {round}");
        }
        map.insert(free.clone(), value);
        renamed.insert(name, free);
    }
    renamed
}
