//! The parts of a system prompt, as text.

use milepost_model::{Block, Message};
use serde_json::{Map, Value};

use super::{AgentDescription, Context};
use crate::compact::Summary;

/// How deep a context is written out; what lies deeper is written as JSON.
const MAX_DEPTH: usize = 6;
/// Fields of a context that say nothing to a model.
const SILENT: [&str; 5] = ["sessionId", "tokens", "updatedAt", "createdAt", "version"];
/// Fields of a context from the most to the least important; all others stand before the last two.
const FIRST: [&str; 6] = ["type", "task", "feature", "taskId", "featureId", "project.claudeMd"];
const LAST: [&str; 2] = ["project.recentCommits", "project.structure"];

/// The role and the instructions.
pub(super) fn agent(agent: &AgentDescription) -> String {
    let mut out = String::new();
    if !agent.role.trim().is_empty() {
        out.push_str("# Role\n\n");
        out.push_str(agent.role.trim());
    }
    let mut rules = list(&agent.instructions);
    if !agent.allowed_tools.is_empty() {
        rules.push_str(&format!("\n- You may use these tools and no others: {}.", agent.allowed_tools.join(", ")));
    }
    let tools = agent.tool_instructions.as_deref().unwrap_or_default().trim();
    let rules = join([rules.trim(), tools]);
    if rules.is_empty() { out } else { join([out.as_str(), &format!("# Instructions\n\n{rules}")]) }
}

fn list(items: &[String]) -> String {
    items.iter().map(|item| format!("- {}\n", item.trim())).collect()
}

/// Texts with an empty line between them; empty ones left out.
pub(super) fn join<const N: usize>(texts: [&str; N]) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

/// The parts of a context, the most important first: name and text. Of a document, each field is a
/// part, and each field of `project`; first the task and the feature, last the recent commits and
/// the structure of the project.
pub fn context_parts(context: &Context) -> Vec<(String, String)> {
    let document = match context {
        Context::None => return Vec::new(),
        Context::Text(text) if text.trim().is_empty() => return Vec::new(),
        Context::Text(text) => return vec![("context".to_owned(), text.trim().to_owned())],
        Context::Structured(Value::Object(map)) => map,
        Context::Structured(Value::Null) => return Vec::new(),
        Context::Structured(other) => return vec![("context".to_owned(), written(other, 0))],
    };
    let mut fields: Vec<(String, &Value)> = Vec::new();
    for (key, value) in document.iter().filter(|(key, _)| !SILENT.contains(&key.as_str())) {
        match value {
            Value::Object(project) if key == "project" => {
                fields.extend(project.iter().map(|(key, value)| (format!("project.{key}"), value)));
            }
            value => fields.push((key.clone(), value)),
        }
    }
    fields.sort_by_key(|(name, _)| {
        let first = FIRST.iter().position(|known| known == name);
        let last = LAST.iter().position(|known| known == name).map(|at| FIRST.len() + 1 + at);
        (first.or(last).unwrap_or(FIRST.len()), name.clone())
    });
    let parts = fields.into_iter().map(|(name, value)| {
        let text = written(value, 0);
        let text = if text.contains('\n') { format!("## {name}\n\n{text}") } else { format!("{name}: {text}") };
        (name, text, value)
    });
    parts.filter(|(_, _, value)| !is_empty(value)).map(|(name, text, _)| (name, text)).collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn written(value: &Value, depth: usize) -> String {
    match value {
        Value::String(text) => text.trim_end().to_owned(),
        Value::Array(items) if depth < MAX_DEPTH => {
            let lines = items.iter().map(|item| format!("- {}", indented(&written(item, depth + 1))));
            lines.collect::<Vec<_>>().join("\n")
        }
        Value::Object(map) if depth < MAX_DEPTH => object(map, depth),
        other => other.to_string(),
    }
}

fn object(map: &Map<String, Value>, depth: usize) -> String {
    let lines = map.iter().filter(|(_, value)| !is_empty(value)).map(|(key, value)| {
        let text = written(value, depth + 1);
        let inline = !text.contains('\n') && !matches!(value, Value::Object(_) | Value::Array(_));
        if inline { format!("{key}: {text}") } else { format!("{key}:\n  {}", indented(&text)) }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}

/// The work progress.
pub(super) fn summary(summary: &Summary) -> String {
    let part = |title: &str, items: &[String]| {
        if items.is_empty() { String::new() } else { format!("## {title}\n\n{}", list(items).trim_end()) }
    };
    let parts = [
        part("Facts to keep", &summary.pinned_facts),
        part("Completed", &summary.completed_items),
        part("Still to do", &summary.pending_items),
        part("Key decisions", &summary.decisions),
        part("Blockers", &summary.blockers),
    ];
    let text = join(parts.each_ref().map(String::as_str));
    if text.is_empty() { text } else { format!("# Work progress\n\n{text}") }
}

/// One message of the conversation.
pub(super) fn message(message: &Message) -> String {
    let blocks = crate::history::blocks(message);
    let text = blocks.iter().map(block).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
    if text.is_empty() { text } else { format!("{}: {text}", message.role) }
}

fn block(block: &Block) -> String {
    match block {
        Block::Text { text, .. } => text.trim().to_owned(),
        Block::ToolCall { name, input, .. } => format!("[calls {name} {input}]"),
        Block::ToolResult { content, is_error, .. } => {
            let text = content.as_str().map_or_else(|| crate::history::result_text(content), str::to_owned);
            format!("[{}: {}]", if *is_error { "error" } else { "result" }, text.trim())
        }
        Block::Image { .. } => "[image]".to_owned(),
        Block::Thinking { .. } | Block::Unknown(_) => String::new(),
    }
}
