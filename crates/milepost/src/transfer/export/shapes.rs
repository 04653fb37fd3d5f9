//! The shapes in which other designs write messages, checkpoints and summaries.

use std::collections::BTreeMap;

use milepost_model::{Block, Content, Include, Session, SessionId, State, Timestamp, Trigger, WorkspaceId};
use milepost_store::{Loaded, MarkQuery, Store, StoredMessage};
use serde_json::{Map, Value, json};

use super::agent_state::AgentState;
use super::messages::Messages;
use crate::error::Result;
use crate::transfer::beside::{Beside, BesideReader};
use crate::transfer::{origin, triggers, written};

/// Where a design's checkpoint keeps the sections of the state that it has no place for.
pub(in crate::transfer) const SECTIONS_FIELD: &str = "sections";
/// Where a message says under which names its tool calls and results were read.
pub(in crate::transfer) const TOOL_NAMES: &str = "tool_fields";
/// Where a message says which word its role was read as.
pub(in crate::transfer) const ROLE_NAME: &str = "role_as_written";
/// The version that A's files name.
const VERSION: &str = "1.0";

/// So much of the last message a summary shows.
const PREVIEW_CHARS: usize = 200;

/// About how many tokens a text has, where nobody counted.
pub(in crate::transfer) fn estimate_tokens(text: &str) -> u64 {
    milepost_context::tokens::Tokenizer::default().count_text(text) as u64
}

/// A session as the head shows it, with its checkpoints and their states.
pub(super) struct View {
    pub workspace: WorkspaceId,
    pub session: Session,
    pub messages: Vec<StoredMessage>,
    /// Oldest first; those that cannot be read are left out.
    pub checkpoints: Vec<Loaded>,
    pub state: Value,
    /// What was made, by names: what the state drafts, and the newest of each that is kept beside the session.
    pub artifacts: BTreeMap<String, Vec<u8>>,
    /// The session's log.
    pub log: Vec<String>,
}

impl View {
    pub async fn load(store: &Store, id: SessionId) -> Result<Self> {
        let session = store.session(id).await?;
        let mut messages = Vec::new();
        let mut pages = Messages::new(store, id);
        loop {
            let page = pages.next().await?;
            if page.is_empty() {
                break;
            }
            messages.extend(page);
        }
        let mut checkpoints = Vec::new();
        for mark in store.marks(id, &MarkQuery { oldest_first: true, ..MarkQuery::default() }).await? {
            match store.load(mark.checkpoint.id).await {
                Ok(loaded) => checkpoints.push(loaded),
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let state = store.state(id).await?.into_value();
        let mut artifacts = super::tree::artifacts(&state);
        let mut log = Vec::new();
        let mut beside = BesideReader::new(store, id).await?;
        while let Some(piece) = beside.next().await? {
            match piece {
                // Older versions come first.
                Beside::Artifact(artifact) => drop(artifacts.insert(artifact.name, artifact.content)),
                Beside::Log(_, lines) => log.extend(lines.into_iter().map(|line| line.text)),
            }
        }
        Ok(Self { workspace: store.workspace().clone(), session, messages, checkpoints, state, artifacts, log })
    }

    /// Leaves out what a policy does not include in checkpoints.
    pub fn leave_out(&mut self, include: &Include) -> Result<()> {
        if !include.conversations {
            self.messages.retain(|found| found.message.channel.is_main());
            let last = self.messages.last().map(|found| found.message.text().chars().take(PREVIEW_CHARS).collect());
            self.session.preview = last;
            for at in &mut self.checkpoints {
                at.mark.checkpoint.counts.retain(|channel, _| channel.is_main());
            }
        }
        if !include.memory {
            let whole = self.state.clone();
            for at in &mut self.checkpoints {
                at.state =
                    without_memory(at.state.as_value().clone()).try_into().map_err(milepost_store::Error::from)?;
            }
            self.state = without_memory(std::mem::take(&mut self.state));
            let drafted = super::tree::artifacts(&whole);
            self.artifacts.retain(|name, content| drafted.get(name) != Some(content));
            self.artifacts.extend(super::tree::artifacts(&self.state));
        }
        Ok(())
    }

    /// Messages up to a checkpoint.
    pub fn messages_to(&self, at: &Loaded) -> &[StoredMessage] {
        let end = self.messages.partition_point(|found| found.at.seq <= at.mark.at.seq);
        self.messages.get(..end).unwrap_or_default()
    }

    /// What a list shows of the session.
    pub fn summary(&self) -> Value {
        let session = &self.session;
        let mut made = json!({
            "sessionId": self.name(),
            "workspaceId": self.workspace,
            "projectId": session.project,
            "projectName": self.state.pointer("/context/projectName").cloned().or_else(|| session.project.clone().map(Value::from)),
            "title": session.title,
            "agentType": session.agent,
            "featureId": session.feature,
            "taskId": session.task,
            "stage": session.stage,
            "tags": session.tags,
            "status": session.status,
            "messageCount": session.messages(),
            "createdAt": session.created.to_string(),
            "lastActiveAt": session.active.to_string(),
            "lastMessage": session.preview,
        });
        written::over_session(&mut made, session, "metadata");
        made
    }

    /// What the session is called in files for other tools.
    pub fn name(&self) -> String {
        written::name(&self.session)
    }
}

fn without_memory(mut state: Value) -> Value {
    if let Value::Object(sections) = &mut state {
        sections.remove("memory");
    }
    state
}

/// Gives a message, as JSON, the role that it came with.
pub(super) fn with_own_role(map: &mut Map<String, Value>) {
    if map.get(ROLE_NAME).is_some_and(Value::is_string)
        && let Some(role) = map.remove(ROLE_NAME)
    {
        map.insert("role".into(), role);
    }
}

/// A message as A and B write it: its text, its tool calls and results apart, its time.
pub(super) fn plain(found: &StoredMessage) -> Value {
    let message = &found.message;
    let mut map = message.extra.clone();
    let names = map.remove(TOOL_NAMES).unwrap_or_default();
    map.insert("role".into(), message.role.as_str().into());
    with_own_role(&mut map);
    map.entry("timestamp").or_insert_with(|| Value::String(found.time.to_string()));
    if !message.channel.is_main() {
        map.insert("channel".into(), message.channel.as_str().into());
    }
    let content = match &message.content {
        Content::Text(text) => Value::from(text.as_str()),
        Content::Blocks(blocks) => match split(blocks, &names) {
            Some((text, calls, results)) => {
                let mut list = |key: &str, list: Vec<Value>| {
                    if !list.is_empty() {
                        map.insert(key.into(), Value::Array(list));
                    }
                };
                list("toolCalls", calls);
                list("toolResults", results);
                Value::from(text)
            }
            None => serde_json::to_value(blocks).unwrap_or_default(),
        },
    };
    map.insert("content".into(), content);
    Value::Object(map)
}

/// One text, then calls, then results: blocks in this order lose nothing.
fn split(blocks: &[Block], names: &Value) -> Option<(String, Vec<Value>, Vec<Value>)> {
    let name = |key: &str| names.get(key).and_then(Value::as_str).unwrap_or(key).to_owned();
    let says_no_error = names.get("isError") == Some(&json!(false));
    let (mut text, mut calls, mut results) = (None, Vec::new(), Vec::new());
    for block in blocks {
        match block {
            Block::Text { text: said, extra }
                if text.is_none() && calls.is_empty() && results.is_empty() && extra.is_empty() =>
            {
                text = Some(said.clone()).filter(|said| !said.is_empty());
                text.as_ref()?;
            }
            Block::ToolCall { id, name: called, input, extra } if results.is_empty() => {
                let own = json!({ "id": id, "name": called, name("input"): input });
                calls.push(with(own, extra));
            }
            Block::ToolResult { call_id, content, is_error, extra } => {
                let mut own = json!({ name("callId"): call_id, "content": content });
                if *is_error || !says_no_error {
                    own["isError"] = (*is_error).into();
                }
                results.push(with(own, extra));
            }
            _ => return None,
        }
    }
    (!calls.is_empty() || !results.is_empty()).then(|| (text.unwrap_or_default(), calls, results))
}

fn section(state: &Value, name: &str) -> Value {
    state.get(name).cloned().unwrap_or_else(|| json!({}))
}

fn rest(state: &Value, taken: &[&str]) -> Value {
    let Value::Object(map) = state else { return json!({}) };
    map.iter()
        .filter(|(key, _)| !taken.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// An object with further fields.
fn with(mut own: Value, extra: &Map<String, Value>) -> Value {
    if let Value::Object(own) = &mut own {
        own.extend(extra.clone());
    }
    own
}

/// Puts fields into an object, over what it has.
fn over(base: Value, fields: Value) -> Value {
    let (mut map, fields) = match (base, fields) {
        (Value::Object(map), Value::Object(fields)) => (map, fields),
        (_, fields) => return fields,
    };
    map.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
    Value::Object(map)
}

/// What a mark carries besides what every design has a field for.
fn extra(at: &Loaded) -> Map<String, Value> {
    let mark = &at.mark.checkpoint;
    let mut map = mark.extra.clone();
    map.insert("trigger".into(), mark.trigger.as_str().into());
    if let Some(label) = &mark.label {
        map.insert("label".into(), label.as_str().into());
    }
    map
}

pub(super) fn text(time: Timestamp) -> Value {
    Value::String(time.to_string())
}

/// A's checkpoint.
pub(super) fn hosted(view: &View, at: &Loaded) -> Value {
    let (state, session, mark) = (at.state.as_value(), &view.session, &at.mark.checkpoint);
    let messages = view.messages_to(at);
    let context = over(
        section(state, "context"),
        json!({
            "sessionId": view.name(), "workspaceId": view.workspace, "projectId": session.project,
            "taskId": session.task, "agentType": session.agent, "createdAt": text(session.created),
            "lastActiveAt": text(at.mark.time), "status": session.status,
        }),
    );
    let tokens: u64 = messages.iter().map(|found| estimate_tokens(&found.message.text())).sum();
    let mut out = extra(at);
    let branch = origin(session);
    let fields = json!({
        "version": VERSION,
        "id": mark.id,
        "sessionId": view.name(),
        "timestamp": text(at.mark.time),
        "context": context,
        "conversation": {
            "messages": messages.iter().map(plain).collect::<Vec<_>>(),
            "totalTokens": tokens,
            "lastMessageAt": messages.last().map(|found| text(found.time)),
        },
        "memory": section(state, "memory"),
        "toolState": section(state, "tools"),
        "checkpointNumber": mark.number,
        "reason": triggers::reason(&mark.trigger),
        "description": mark.description,
        SECTIONS_FIELD: rest(state, &["context", "memory", "tools"]),
    });
    if let Value::Object(fields) = fields {
        out.extend(fields);
    }
    if let Some(branch) = branch {
        out.insert("parentSessionId".into(), json!(branch.session));
        out.insert("branchPoint".into(), json!(branch.at));
    }
    written::over_mark(&mut out, "hosted");
    Value::Object(out)
}

/// B's checkpoint. A variable that is not encrypted does not leave the store.
pub(super) fn task(view: &View, at: &Loaded) -> Value {
    let (state, mark) = (at.state.as_value(), &at.mark.checkpoint);
    let (reason, by) = triggers::task_reason(&mark.trigger);
    let messages = view.messages_to(at);
    let mut environment = section(state, "environment");
    if let Some(variables) = environment.get_mut("variables").and_then(Value::as_object_mut) {
        let is_sealed = |value: &Value| value.as_str().is_some_and(|value| value.starts_with("encrypted:"));
        variables.values_mut().filter(|value| !is_sealed(value)).for_each(|value| *value = "encrypted:left-out".into());
    }
    let taken = ["task", "agent", "environment", "files", "protocols"];
    let mut out = extra(at);
    let fields = json!({
        "id": mark.id,
        "taskId": view.session.task.clone().unwrap_or_else(|| view.name()),
        "sessionId": view.name(),
        "createdAt": text(at.mark.time),
        "createdBy": by,
        "reason": reason,
        "description": mark.description,
        "task": over(json!({ "status": view.session.status }), section(state, "task")),
        "agent": section(state, "agent"),
        "conversationHistory": {
            "messages": messages.iter().map(plain).collect::<Vec<_>>(),
            "lastMessageIndex": messages.len() as i64 - 1,
        },
        "environment": environment,
        "workspace": section(state, "files"),
        "protocols": section(state, "protocols"),
        SECTIONS_FIELD: rest(state, &taken),
    });
    if let Value::Object(fields) = fields {
        out.extend(fields);
    }
    written::over_mark(&mut out, "task");
    Value::Object(out)
}

/// What C's checkpoint says of the step that it was taken at.
pub(super) struct StepDone {
    pub number: i64,
    pub duration_ms: Option<i64>,
    pub token_usage: Option<Value>,
}

impl StepDone {
    /// As the checkpoint's own fields say it, or as the run does that it is of. A session without steps counts its checkpoints.
    pub fn of(at: &Loaded) -> Self {
        let (state, mark) = (at.state.as_value(), &at.mark.checkpoint);
        let execution = state.get("execution").unwrap_or(&Value::Null);
        let run = AgentState::of_run(execution);
        let said = execution.get("currentStepIndex").and_then(Value::as_i64);
        let number = run.as_ref().map(|run| run.current_step() as i64).or(said).unwrap_or(mark.number as i64);
        let ends_step = matches!(mark.trigger, Trigger::NodeComplete | Trigger::Step);
        let last = run.filter(|_| ends_step).and_then(|run| run.last_result());
        let of = |key: &str| {
            let said = mark.extra.get(key).or_else(|| last.as_ref()?.get(key));
            said.filter(|value| !value.is_null()).cloned()
        };
        let duration_ms = of("durationMs").and_then(|value| value.as_i64());
        Self { number, duration_ms, token_usage: of("tokenUsage") }
    }
}

/// C's checkpoint.
pub(super) fn plan(view: &View, at: &Loaded) -> Value {
    let (state, mark) = (at.state.as_value(), &at.mark.checkpoint);
    let mut execution = section(state, "execution");
    let done = StepDone::of(at);
    if let Some(run) = AgentState::of_run(&execution) {
        execution = run.into_section(section(state, "memory"));
    }
    let mut metadata = extra(at);
    metadata.insert("triggerType".into(), triggers::trigger_type(&mark.trigger).into());
    for (key, value) in [
        ("description", json!(mark.description)),
        ("durationMs", json!(done.duration_ms)),
        ("tokenUsage", done.token_usage.unwrap_or_default()),
    ] {
        metadata.entry(key).or_insert(value);
    }
    let kept = metadata.remove(written::AS_WRITTEN);
    let made = json!({
        "id": mark.id, "sessionId": view.name(), "projectId": view.session.project, "stepNumber": done.number,
        "createdAt": text(at.mark.time), "state": execution, "metadata": metadata,
        SECTIONS_FIELD: rest(state, &["execution"]),
    });
    let Value::Object(mut made) = made else { return made };
    made.extend(kept.map(|kept| (written::AS_WRITTEN.to_owned(), kept)));
    written::over_mark(&mut made, "plan");
    Value::Object(made)
}

/// The field under either spelling.
fn either(value: &Value, names: [&str; 2]) -> Value {
    names.iter().find_map(|name| value.get(*name)).cloned().unwrap_or_default()
}

/// Where a graph's session is: the part of a state that E's checkpoint says in fields of its own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GraphPlace {
    /// The node that it is at.
    pub current_node: Value,
    /// The one that comes next.
    pub next_node: Value,
    /// Nodes it went through.
    pub execution_path: Value,
    /// What they gave.
    pub accumulated_outputs: Value,
}

impl GraphPlace {
    /// As a run of ours says it, and as imported sessions do. What is not said is null.
    pub fn of(state: &State) -> Self {
        Self::of_section(&section(state.as_value(), "execution"))
    }

    fn of_section(execution: &Value) -> Self {
        Self {
            current_node: either(execution, ["current_node", "currentNode"]),
            next_node: either(execution, ["next_node", "nextNode"]),
            execution_path: either(execution, ["execution_path", "path"]),
            accumulated_outputs: either(execution, ["accumulated_outputs", "outputs"]),
        }
    }
}

/// E's checkpoint.
pub(super) fn graph(view: &View, at: &Loaded) -> Value {
    let (state, mark) = (at.state.as_value(), &at.mark.checkpoint);
    let execution = section(state, "execution");
    let place = GraphPlace::of_section(&execution);
    let list = |value: Value| if value.is_null() { json!([]) } else { value };
    let map = |value: Value| if value.is_null() { json!({}) } else { value };
    let refs: Map<String, Value> =
        mark.counts.iter().map(|(channel, count)| (channel.to_string(), json!(count))).collect();
    let taken = [
        "current_node",
        "currentNode",
        "next_node",
        "nextNode",
        "execution_path",
        "path",
        "accumulated_outputs",
        "outputs",
    ];
    let mut out = extra(at);
    let mut sections = rest(state, &["memory", "metrics", "execution"]);
    let more = rest(&execution, &taken);
    if more.as_object().is_some_and(|more| !more.is_empty()) {
        sections["execution"] = more;
    }
    let fields = json!({
        "checkpoint_id": mark.id,
        "session_id": view.name(),
        "checkpoint_type": triggers::checkpoint_type(&mark.trigger),
        "created_at": text(at.mark.time),
        "current_node": place.current_node,
        "next_node": place.next_node,
        "execution_path": list(place.execution_path),
        "shared_memory": section(state, "memory"),
        "conversation_states": refs,
        "accumulated_outputs": map(place.accumulated_outputs),
        "metrics_snapshot": section(state, "metrics"),
        "is_clean": mark.clean,
        "can_resume_from": mark.resumable.is_yes(),
        "description": mark.description.clone().unwrap_or_default(),
        SECTIONS_FIELD: sections,
    });
    if let Value::Object(fields) = fields {
        out.extend(fields);
    }
    written::over_mark(&mut out, "graph");
    Value::Object(out)
}
