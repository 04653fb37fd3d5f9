//! The built-in actions.

mod agent;
mod checks;
mod group;
mod http;
mod http_client;
mod mcp;
mod model;
mod people;
mod shell;
mod sub;
mod tools;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::Milepost;
use serde_json::Value;

use super::Runner;
use super::action::{Action, Failed};

pub use group::end_commands;
pub(super) use model::Models;
pub use people::{Answer, Answered, answer, change_answer};

/// All built-in actions by name, but `set`, which the run does itself.
pub(super) fn built_in(engine: &Milepost) -> BTreeMap<String, Arc<dyn Action>> {
    let mut all: BTreeMap<String, Arc<dyn Action>> = BTreeMap::new();
    all.insert("shell".to_owned(), Arc::new(shell::Shell));
    all.insert("http".to_owned(), Arc::new(http::Http::default()));
    all.insert("mcp".to_owned(), Arc::new(mcp::Mcp));
    all.insert("wait".to_owned(), Arc::new(people::Wait));
    all.insert("ask".to_owned(), Arc::new(people::Ask { engine: engine.clone() }));
    all.insert("approve".to_owned(), Arc::new(people::Approve { engine: engine.clone() }));
    all
}

/// The actions that need what the runner was given: models, other actions, itself.
pub(super) fn of_runner(runner: &Runner) -> Vec<(String, Arc<dyn Action>)> {
    let mut models = runner.models.clone();
    models.heard.clone_from(&runner.heard);
    let agent = agent::Agent { models: models.clone(), actions: runner.actions.clone() };
    let all: [(&str, Arc<dyn Action>); 4] = [
        ("model", Arc::new(model::Ask { models })),
        ("checks", Arc::new(checks::Checks { agent: agent.clone() })),
        ("agent", Arc::new(agent)),
        ("graph", Arc::new(sub::Sub { runner: runner.clone() })),
    ];
    all.into_iter().map(|(name, action)| (name.to_owned(), action)).collect()
}

fn text<'v>(parameters: &'v Value, key: &str) -> Option<&'v str> {
    parameters.get(key).and_then(Value::as_str)
}

/// A list of whole numbers, or one.
fn numbers(parameters: &Value, key: &str) -> Option<Vec<u64>> {
    match parameters.get(key)? {
        Value::Array(items) => Some(items.iter().filter_map(Value::as_u64).collect()),
        one => one.as_u64().map(|one| vec![one]),
    }
}

fn texts(parameters: &Value, key: &str) -> Vec<String> {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match parameters.get(key) {
        Some(Value::Array(items)) => items.iter().map(plain).collect(),
        Some(Value::Null) | None => Vec::new(),
        Some(one) => vec![plain(one)],
    }
}

/// Names and texts.
fn pairs(parameters: &Value, key: &str) -> Vec<(String, String)> {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let map = parameters.get(key).and_then(Value::as_object);
    map.into_iter().flatten().map(|(name, value)| (name.clone(), plain(value))).collect()
}

/// A value with only the ends of the texts in it, of at most so many bytes each: what went wrong stands at the end.
pub(super) fn ends(mut value: Value, limit: usize) -> Value {
    for text in value.as_object_mut().into_iter().flatten().filter_map(|(_, value)| match value {
        Value::String(text) => Some(text),
        _ => None,
    }) {
        let start = text.ceil_char_boundary(text.len().saturating_sub(limit));
        text.drain(..start);
    }
    value
}

/// Headers whose texts name variables of the environment, filled in when they are sent: what they are is written down nowhere.
fn env_headers(parameters: &Value) -> Result<Vec<(String, String)>, Failed> {
    let mut all = Vec::new();
    for (name, written) in pairs(parameters, "env_headers") {
        let mut parts = written.split("${");
        let mut value = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let wrong = |why: String| Failed::Fatal(format!("env_headers.{name}: {why}"));
            let (variable, rest) = part.split_once('}').ok_or_else(|| wrong("a ${ has no }".to_owned()))?;
            let found = std::env::var(variable).map_err(|_| wrong(format!("the variable {variable} is not set")))?;
            value.push_str(&found);
            value.push_str(rest);
        }
        all.push((name, value));
    }
    Ok(all)
}
