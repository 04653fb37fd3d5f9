//! A step run again with other input, on a branch; and what a branch found brought home.

use milepost::{Event, MarkQuery, Milepost, NewSession, Point, SessionId, Together};
use milepost_model::delta::StatePath;
use milepost_model::{Message, Role, State};
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use super::ledger::{Entry, Ledger, Status};
use super::{End, Runner};
use crate::graph::Graph;

/// The most checkpoints that are looked at (1,000).
const MAX_MARKS: usize = 1000;
/// The longest summary (64 KiB).
const MAX_SUMMARY_BYTES: usize = 64 << 10;

/// A step that is to be run again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Again {
    /// The node.
    pub node: String,
    /// The round of its loop, from 0; the last one when none.
    pub round: Option<u32>,
    /// Parameters in place of those of the same names.
    pub input: Map<String, Value>,
}

/// What is brought home from a branch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MergeBack {
    /// Keys of the shared memory.
    pub memory: Vec<String>,
    /// What nodes gave, by the names of their outputs.
    pub outputs: Vec<String>,
    /// What to say about it.
    pub summary: Option<String>,
}

/// What was brought home.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// The session it was brought to.
    pub into: SessionId,
    /// Whether it had been before, and nothing was done.
    pub was_done: bool,
}

impl Runner {
    /// Runs a session again from a step, with its input replaced, on a branch. What came before is shared; the session
    /// itself is left alone. Without a graph the branch goes on with the one that the run was begun with.
    pub async fn rerun(
        &self,
        id: SessionId,
        again: &Again,
        graph: Option<&Graph>,
        new: NewSession,
    ) -> Result<(SessionId, End)> {
        let what = || format!("running {} of session {id} again", again.node);
        let store = self.engine.store();
        let state = store.state(id).await.map_err(milepost::Error::from)?;
        let graph = match graph {
            Some(graph) => graph.clone(),
            None => self.recorded_graph(&state)?,
        };
        if graph.find(&again.node).is_none() {
            return Err(Error::refused(what(), "the graph has no such node", "name one of its nodes"));
        }
        let last = Ledger::read(&state)?.node(&again.node).map_or(0, |entry| entry.iteration);
        let round = again.round.unwrap_or(last);
        let query =
            MarkQuery { resumable: Some(true), oldest_first: true, limit: Some(MAX_MARKS), ..MarkQuery::default() };
        let mut found = None;
        for mark in store.marks(id, &query).await.map_err(milepost::Error::from)? {
            let Ok(before) = store.state_at(mark.at).await else { continue };
            let Ok(ledger) = Ledger::read(&before) else { continue };
            let is_begun = ledger.node(&again.node).is_some_and(|entry| {
                entry.iteration == round
                    && !matches!(entry.status, Status::Pending | Status::Completed | Status::Skipped)
            });
            if is_begun {
                found = Some(mark);
                break;
            }
        }
        let mark = found.ok_or_else(|| {
            let why = format!("there is no checkpoint at which round {round} of it had begun and was not done");
            Error::refused(what(), why, "choose a round that ran, or branch from an older checkpoint")
        })?;
        let session = self.engine.branch(id, &Point::Checkpoint(mark.checkpoint.id), new).await?;
        let branch = session.id();
        let replaced = (!again.input.is_empty()).then(|| Value::Object(again.input.clone()));
        let mut ledger = Ledger::read(&session.state().await?)?;
        ledger.forget_parts(&again.node);
        ledger.set_node(&again.node, Entry { iteration: round, again: true, replaced, ..Entry::default() });
        ledger.set_graph(&graph);
        let mut together = ledger.take_changes();
        let told = json!({"node": again.node, "iteration": round, "of": id.to_string(), "input": again.input});
        together.events.push(Event::new("step_again", told));
        session.record(together).await?;
        session.activate().await?;
        let state = session.state().await?;
        let end = Box::pin(self.run(session, graph, &state, &Default::default(), false)).await?;
        Ok((branch, end))
    }
}

/// Brings conclusions of a branch to the session that it was branched from: values of the memory into its memory, outputs
/// into `merged`, and a message that says so. The same again does nothing.
pub async fn merge_back(engine: &Milepost, branch: SessionId, what: &MergeBack) -> Result<Merged> {
    let doing = || format!("bringing conclusions of {branch} home");
    let refused = |why: String, instead: &str| Error::refused(doing(), why, instead);
    let store = engine.store();
    let info = store.session(branch).await.map_err(milepost::Error::from)?;
    let Some(from) = info.branch else {
        return Err(refused("it is not a branch".to_owned(), "name a session that was branched from another"));
    };
    let into = from.session;
    if what.summary.as_ref().is_some_and(|summary| summary.len() > MAX_SUMMARY_BYTES) {
        let why = format!("the summary is longer than MAX_SUMMARY_BYTES, {MAX_SUMMARY_BYTES}");
        return Err(refused(why, "say it in fewer words"));
    }
    if what.memory.is_empty() && what.outputs.is_empty() && what.summary.is_none() {
        return Err(refused("nothing was chosen".to_owned(), "name memory keys or outputs, or write a summary"));
    }
    let state = store.state(branch).await.map_err(milepost::Error::from)?;
    let memory = chosen(&state, "/memory", &what.memory)
        .map_err(|key| refused(format!("its memory has no {key:?}"), "name keys that it has"))?;
    let outputs = chosen(&state, "/execution/outputs", &what.outputs)
        .map_err(|name| refused(format!("it has no output {name:?}"), "name outputs that it has"))?;
    let merged = json!({"memory": memory, "outputs": outputs, "summary": what.summary});
    let digest = milepost_model::Hash(milepost_model::hash_value(&merged)).to_string();
    let session = engine.hold(into).await?;
    let now = session.state().await?;
    let name = branch.to_string();
    let known = now.pointer("/merged").and_then(|merged| merged.get(&name)).and_then(|one| one.get("digest"));
    if known.and_then(Value::as_str) == Some(&digest) {
        session.release().await?;
        return Ok(Merged { into, was_done: true });
    }
    let mut together = Together::default();
    let mut note = merged.clone();
    note["digest"] = digest.into();
    let root = StatePath::root;
    if now.section("merged").is_none() {
        together.set.push((root().key("merged"), json!({})));
    }
    together.set.push((root().key("merged").key(name.as_str()), note));
    if now.section("memory").is_none() && !memory.is_empty() {
        together.set.push((root().key("memory"), json!({})));
    }
    for (key, value) in &memory {
        together.set.push((root().key("memory").key(key.as_str()), value.clone()));
    }
    let mut message = Message::new(Role::User, told(&name, what.summary.as_deref(), &memory, &outputs));
    message.extra.insert("merged_from".to_owned(), name.clone().into());
    together.messages.push(message);
    together
        .events
        .push(Event::new("merged_back", json!({"from": name, "memory": what.memory, "outputs": what.outputs})));
    session.record(together).await?;
    session.release().await?;
    Ok(Merged { into, was_done: false })
}

fn chosen(state: &State, pointer: &str, names: &[String]) -> Result<Map<String, Value>, String> {
    let found = state.pointer(pointer);
    names
        .iter()
        .map(|name| Ok((name.clone(), found.and_then(|found| found.get(name)).cloned().ok_or_else(|| name.clone())?)))
        .collect()
}

/// The longest value that is told in the message; the whole of it is in the state.
const MAX_TOLD_CHARS: usize = 2000;

fn told(branch: &str, summary: Option<&str>, memory: &Map<String, Value>, outputs: &Map<String, Value>) -> String {
    let mut text = format!("From the branch {branch}:");
    if let Some(summary) = summary {
        text.push_str(&format!("\n{summary}"));
    }
    for (name, value) in memory.iter().chain(outputs) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let value: String = value.chars().take(MAX_TOLD_CHARS).collect();
        text.push_str(&format!("\n{name}: {value}"));
    }
    text
}
