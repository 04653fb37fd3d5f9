//! The tools of an agent: what the model is told of them, and what they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost_document::parse_duration_ms;
use milepost_models::Tool;
use serde_json::{Map, Value, json};

use super::mcp::{Server, ServerTool};
use super::{text, texts};
use crate::graph::actions::Repeat;
use crate::graph::limits::MAX_TOOLS;
use crate::run::action::{Action, Failed, Step};
use crate::run::fill::fill_action;
use crate::run::secrets;

/// How long a call may take unless the tool says otherwise (10 minutes).
const TIMEOUT_MS: u64 = 600_000;

/// How a secret of a server is given again.
const GIVE_AGAIN: &str = "resume with --graph and its file, or with --set for what its templates use; env_headers and env need no secret there";

enum Kind {
    /// An action whose parameters are what the model gave.
    Plain(&'static str),
    /// An action with parameters in which what the model gave is filled in.
    Action { action: String, with: Value },
    /// A tool of an MCP server, by the name that the server knows.
    Mcp { server: Arc<Server>, name: String },
}

struct One {
    told: Tool,
    kind: Kind,
    /// Where it is from, for whoever looks why two have one name.
    from: String,
    idempotent: Option<bool>,
    timeout_ms: u64,
}

/// A call that can be run.
pub(super) struct Ready {
    pub kind: String,
    pub action: Arc<dyn Action>,
    pub parameters: Value,
    pub repeat: Repeat,
    pub timeout_ms: u64,
}

/// All tools of an agent.
pub(super) struct Tools(Vec<One>);

impl Tools {
    /// The tools that a node names. Servers are asked for theirs.
    pub async fn open(step: &Step) -> Result<Self, Failed> {
        let mut all = Vec::new();
        let items = step.parameters.get("tools").and_then(Value::as_array);
        for item in items.into_iter().flatten() {
            let idempotent = item.get("idempotent").and_then(Value::as_bool);
            let timeout_ms = text(item, "timeout").and_then(parse_duration_ms).unwrap_or(TIMEOUT_MS);
            if let Some(name) = item.as_str() {
                let from = "the tool of the graph".to_owned();
                all.extend(plain(name).map(|(kind, told)| One { told, kind, from, idempotent: None, timeout_ms }));
            } else if let Some(server) = item.get("mcp") {
                let server = fill_action("mcp", server, &step.names).map_err(Failed::Fatal)?;
                if let Some((place, token)) = secrets::lost(&server) {
                    return Err(Failed::Pause(secrets::told(&format!("mcp.{place}"), token) + "; " + GIVE_AGAIN));
                }
                let from = format!("the MCP server {}", address(&server));
                let server = Arc::new(Server::open(&server, step).await?);
                let (only, prefix) = (texts(item, "only"), text(item, "prefix").unwrap_or_default());
                for told in server.tools().await? {
                    if only.is_empty() || only.contains(&told.name) {
                        let kind = Kind::Mcp { server: Arc::clone(&server), name: told.name.clone() };
                        let told = Tool { name: fit_name(prefix, &told.name), ..told };
                        all.push(One { told, kind, from: from.clone(), idempotent, timeout_ms });
                    }
                }
            } else {
                let told = Tool {
                    name: text(item, "name").unwrap_or_default().to_owned(),
                    description: text(item, "description").unwrap_or_default().to_owned(),
                    input_schema: schema(item.get("input")),
                };
                let action = text(item, "action").unwrap_or_default().to_owned();
                let with = item.get("with").cloned().unwrap_or_else(|| json!({}));
                let from = "the tool of the graph".to_owned();
                all.push(One { told, kind: Kind::Action { action, with }, from, idempotent, timeout_ms });
            }
        }
        if all.len() > MAX_TOOLS {
            let why = format!(
                "the agent has {} tools, the limit MAX_TOOLS is {MAX_TOOLS}; name those it needs with only",
                all.len()
            );
            return Err(Failed::Fatal(why));
        }
        match same_name(&all) {
            Some(why) => Err(Failed::Fatal(why)),
            None => Ok(Self(all)),
        }
    }

    /// What the model is told.
    pub fn offered(&self) -> Vec<Tool> {
        self.0.iter().map(|one| one.told.clone()).collect()
    }

    /// A tool by the name that the model was told; calls that were recorded before go by the name that the server knows.
    fn find(&self, name: &str) -> Option<&One> {
        let mut known = self.0.iter().filter(|one| matches!(&one.kind, Kind::Mcp { name: own, .. } if own == name));
        let told = self.0.iter().find(|one| one.told.name == name);
        told.or_else(|| known.next().filter(|_| known.next().is_none()))
    }

    /// A call of the model, ready to be run; or what the model is told is wrong with it.
    pub fn ready(
        &self,
        name: &str,
        input: &Value,
        names: &Map<String, Value>,
        actions: &BTreeMap<String, Arc<dyn Action>>,
    ) -> Result<Ready, String> {
        let one = self.find(name).ok_or_else(|| {
            let known: Vec<&str> = self.0.iter().map(|one| one.told.name.as_str()).collect();
            format!("there is no tool {:?}; there are {}", shorten(&name.into(), 80), known.join(", "))
        })?;
        if !input.is_object() {
            return Err("the arguments are not a JSON object; call the tool again with one".to_owned());
        }
        let required = one.told.input_schema.get("required").and_then(Value::as_array);
        let mut required = required.into_iter().flatten().filter_map(Value::as_str);
        if let Some(missing) = required.find(|name| input.get(*name).is_none()) {
            return Err(format!("the argument {missing:?} is missing; call the tool again with it"));
        }
        let (kind, action, parameters) = match &one.kind {
            Kind::Plain(kind) => {
                refuse_more(&one.told, input)?;
                ((*kind).to_owned(), actions.get(*kind).cloned(), input.clone())
            }
            Kind::Action { action, with } => {
                let mut names = names.clone();
                names.insert("input".to_owned(), input.clone());
                (action.clone(), actions.get(action).cloned(), fill_action(action, with, &names)?)
            }
            Kind::Mcp { server, name } => {
                let tool: Arc<dyn Action> = Arc::new(ServerTool(Arc::clone(server)));
                ("mcp".to_owned(), Some(tool), json!({"tool": name, "arguments": input}))
            }
        };
        if let Some((place, token)) = secrets::lost(&parameters).filter(|_| secrets::acts(&kind)) {
            return Err(secrets::told(&place, token) + "; get it anew, or ask for it");
        }
        let action = action.ok_or_else(|| format!("the tool {name} wants the action {kind:?}, which is not there"))?;
        let repeat = match one.idempotent {
            Some(true) => Repeat::Idempotent,
            Some(false) => Repeat::Effect,
            None => action.repeat(&parameters),
        };
        Ok(Ready { kind, action, parameters, repeat, timeout_ms: one.timeout_ms })
    }
}

/// An action that is given what the model gave is given no more than it was offered: whatever else it understands is for the
/// graph's author to say.
fn refuse_more(told: &Tool, input: &Value) -> Result<(), String> {
    let names = |value: Option<&Value>| -> Vec<String> {
        value.and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect()
    };
    let mut offered = names(told.input_schema.get("properties"));
    let more: Vec<String> = names(Some(input)).into_iter().filter(|name| !offered.contains(name)).collect();
    if more.is_empty() {
        return Ok(());
    }
    offered.sort();
    let them = if more.len() == 1 { "it" } else { "them" };
    let more: Vec<String> = more.iter().map(|name| shorten(&name.as_str().into(), 80)).collect();
    let (name, offered, more) = (&told.name, listed(&offered), listed(&more));
    Err(format!("the tool {name} takes {offered}, not {more}; call it again without {them}"))
}

/// Names in a sentence.
fn listed(names: &[String]) -> String {
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} and {last}", before.join(", ")),
        None => String::new(),
    }
}

/// The longest name of a tool that every provider takes, in characters.
const MAX_TOLD_NAME: usize = 64;

/// A server's name of a tool as a model may be told it: letters, digits, `_` and `-`.
fn fit_name(prefix: &str, name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    prefix.chars().chain(name.chars()).map(plain).take(MAX_TOLD_NAME).collect()
}

/// Where a server is: its address without what may be a secret, or its program.
fn address(server: &Value) -> String {
    let url = text(server, "url").map(|url| match reqwest::Url::parse(url) {
        Ok(url) => format!("{}{}", url.origin().ascii_serialization(), url.path()),
        Err(_) => shorten(&url.into(), 80),
    });
    url.unwrap_or_else(|| {
        texts(server, "argv").first().map(|program| shorten(&program.as_str().into(), 80)).unwrap_or_default()
    })
}

/// A model calls tools by their names: what is wrong when two have one.
fn same_name(all: &[One]) -> Option<String> {
    let mut seen: BTreeMap<&str, &One> = BTreeMap::new();
    for one in all {
        let Some(other) = seen.insert(&one.told.name, one) else { continue };
        let name = &one.told.name;
        let what = match (&other.kind, &one.kind) {
            (Kind::Mcp { .. }, Kind::Mcp { .. }) if other.from != one.from => {
                let servers = [other, one].map(|one| one.from.trim_start_matches("the MCP server "));
                format!("the MCP servers {} and {} both have a tool {name:?}", servers[0], servers[1])
            }
            (Kind::Mcp { .. }, Kind::Mcp { .. }) => format!("two tools of {} are called {name:?}", one.from),
            (Kind::Mcp { .. }, _) => format!("the tool {name:?} of the graph and {} have one name", other.from),
            _ => format!("the tool {name:?} of the graph and {} have one name", one.from),
        };
        return Some(format!("{what}; name those that the agent needs with only, or tell them apart with prefix"));
    }
    None
}

/// What the model has to give: a JSON schema as it is, or names and what they are for.
fn schema(input: Option<&Value>) -> Value {
    match input.and_then(Value::as_object) {
        None => json!({"type": "object"}),
        Some(map) if map.contains_key("properties") || map.get("type") == Some(&json!("object")) => {
            Value::Object(map.clone())
        }
        Some(map) => {
            let properties: Map<String, Value> = map
                .iter()
                .map(|(name, about)| {
                    let one = match about {
                        Value::Object(_) => about.clone(),
                        other => json!({"type": "string", "description": other}),
                    };
                    (name.clone(), one)
                })
                .collect();
            let required: Vec<&String> = map.keys().collect();
            json!({"type": "object", "properties": properties, "required": required})
        }
    }
}

fn plain(name: &str) -> Option<(Kind, Tool)> {
    let (kind, about, input) = match name {
        "shell" => (
            "shell",
            "Runs a line in a shell and gives its code, stdout and stderr.",
            json!({"type": "object", "required": ["command"], "properties": {
                "command": {"type": "string", "description": "the line"},
                "cwd": {"type": "string", "description": "the directory to run it in"},
            }}),
        ),
        "http" => (
            "http",
            "Sends a request over HTTP and gives its status, headers and body.",
            json!({"type": "object", "required": ["url"], "properties": {
                "url": {"type": "string"},
                "method": {"enum": crate::graph::actions::METHODS},
                "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                "body": {"type": "string"},
            }}),
        ),
        "ask" => (
            "ask",
            "Puts a question to a person and waits for the answer.",
            json!({"type": "object", "required": ["question"], "properties": {
                "question": {"type": "string"},
                "choices": {"type": "array", "items": {"type": "string"}, "description": "the answers that are taken"},
            }}),
        ),
        _ => return None,
    };
    let told = Tool { name: name.to_owned(), description: about.to_owned(), input_schema: input };
    Some((Kind::Plain(kind), told))
}

/// A value as a text of at most so many bytes.
pub(super) fn shorten(value: &Value, limit: usize) -> String {
    let mut whole = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if whole.len() > limit {
        let size = whole.len();
        let mut end = limit;
        while !whole.is_char_boundary(end) {
            end -= 1;
        }
        whole.truncate(end);
        whole.push_str(&format!("… (cut: {size} bytes, of which {end} are shown)"));
    }
    whole
}
