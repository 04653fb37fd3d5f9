//! What is written about an agent's tools and about checks.

use std::collections::BTreeSet;

use milepost_document::{Data, Node as Tree, Reader};

use super::actions::{self, PLAIN_TOOLS, TOOL, TOOL_ACTIONS};
use super::limits::{MAX_CHECKS, MAX_DURATION_MS, MAX_TOOLS};
use super::parameters::check_parameters;
use super::read::is_name;

/// The longest beginning that the names of a server's tools are given.
const MAX_PREFIX_BYTES: usize = 32;

pub(super) fn check_tools(tree: &Tree, own: &[&str], reader: &mut Reader) {
    let Some(items) = reader.list(tree, "tools") else { return };
    if items.len() > MAX_TOOLS {
        let why = format!("there are {} tools, the limit MAX_TOOLS is {MAX_TOOLS}", items.len());
        reader.wrong(&tree.origin, "tools", why, "give the agent fewer");
        return;
    }
    let mut seen = BTreeSet::new();
    for item in items {
        let name = match &item.data {
            Data::Text { text, .. } if PLAIN_TOOLS.contains(&text.as_str()) => Some(text.clone()),
            Data::Text { text, .. } => {
                reader.unknown(&item.origin, "tools", "there is no tool", text, PLAIN_TOOLS.iter().copied());
                None
            }
            _ => check_tool(item, own, reader),
        };
        if let Some(name) = name.filter(|name| !seen.insert(name.clone())) {
            let why = format!("two tools are called {name:?}");
            reader.wrong(&item.origin, "tools", why, "give each tool a name of its own");
        }
    }
}

fn check_tool(item: &Tree, own: &[&str], reader: &mut Reader) -> Option<String> {
    reader.section(item, "tool", TOOL)?;
    if let Some(timeout) = item.get("timeout") {
        reader.duration_ms(timeout, "timeout", MAX_DURATION_MS);
    }
    if let Some(flag) = item.get("idempotent") {
        reader.flag(flag, "idempotent");
    }
    if let Some(server) = item.get("mcp") {
        for key in ["name", "action", "with", "input"] {
            if let Some(other) = item.get(key) {
                reader.wrong(&other.origin, key, "the tools of an MCP server bring their own", format!("remove {key}"));
            }
        }
        let servers: Vec<&str> =
            ["argv", "url", "headers", "env_headers", "cwd", "env", "set", "max_output_bytes"].into();
        reader.section(server, "mcp", &servers)?;
        if server.get("argv").is_some() == server.get("url").is_some() {
            reader.wrong(&server.origin, "mcp", "mcp needs one of argv, url", "write one of them");
        }
        if let Some(prefix) = item.get("prefix")
            && let Some(text) = reader.text(prefix, "prefix")
            && !(is_name(&text) && text.len() <= MAX_PREFIX_BYTES)
        {
            let shown: String = text.chars().take(80).collect();
            let why = format!("{shown:?} is no beginning of a name: letters, digits and _, at most {MAX_PREFIX_BYTES}");
            reader.wrong(&prefix.origin, "prefix", why, "choose another");
        }
        return None;
    }
    if let Some(prefix) = item.get("prefix") {
        reader.wrong(&prefix.origin, "prefix", "only the tools of an MCP server are given one", "remove prefix");
    }
    let Some(action) = item.get("action") else {
        reader.wrong(
            &item.origin,
            "tool",
            "it has no action",
            format!("write action: and one of {}", TOOL_ACTIONS.join(", ")),
        );
        return None;
    };
    let kind = reader.text(action, "action")?;
    let is_known = TOOL_ACTIONS.contains(&kind.as_str()) || own.contains(&kind.as_str());
    match actions::find(&kind).filter(|_| is_known) {
        Some(known) => check_parameters(known, item.get("with"), &action.origin, &kind, own, reader),
        None if is_known => {}
        None => {
            let known = TOOL_ACTIONS.iter().chain(own).copied();
            reader.unknown(&action.origin, "action", "a tool cannot be", &kind, known);
        }
    }
    if let Some(input) = item.get("input") {
        reader.entries(input, "input");
    }
    let Some(name) = item.get("name") else {
        reader.wrong(&item.origin, "tool", "it has no name", "write name: and what the model is to call it");
        return None;
    };
    let text = reader.text(name, "name")?;
    if !is_name(&text) {
        let why = format!("{:?} is no name: letters, digits and _", text.chars().take(80).collect::<String>());
        reader.wrong(&name.origin, "name", why, "choose another");
    }
    Some(text)
}

pub(super) fn check_commands(tree: &Tree, own: &[&str], reader: &mut Reader) {
    let Some(items) = reader.entries(tree, "checks") else { return };
    if items.is_empty() || items.len() > MAX_CHECKS {
        let why = format!("there are {} checks; there have to be 1 to MAX_CHECKS, {MAX_CHECKS}", items.len());
        reader.wrong(&tree.origin, "checks", why, "write a name and a command for each");
    }
    for (name, origin, item) in items {
        if !is_name(name) {
            let why = format!("{:?} is no name: letters, digits and _", name.chars().take(80).collect::<String>());
            reader.wrong(origin, "checks", why, "choose another");
        }
        match (&item.data, actions::find("shell")) {
            (Data::Map(_), Some(shell)) => check_parameters(shell, Some(item), origin, name, own, reader),
            _ => drop(reader.text(item, name)),
        }
    }
}
