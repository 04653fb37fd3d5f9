//! Secrets are not kept: where one was, a run that goes on later finds a token of the redaction in its place. No step acts on
//! such a token in silence: the run pauses, and somebody gives the secret again.

use std::collections::BTreeSet;

use milepost::context::redact::token;
use milepost_model::State;
use milepost_model::delta::StatePath;
use serde_json::{Map, Value};

use super::compare;
use super::ledger::{Entry, Ledger};
use crate::graph::{Graph, Node};

/// Whether an action does something with its parameters outside of the session. What a person is asked, and what a model is told,
/// stands in the session with its tokens; what a graph inside does with its memory, its own steps look at.
pub(super) fn acts(action: &str) -> bool {
    !matches!(action, "set" | "wait" | "ask" | "approve" | "model" | "agent" | "checks" | "graph")
}

/// Where a value has a token, and the token.
pub(super) fn lost(value: &Value) -> Option<(String, &str)> {
    let mut all = Vec::new();
    tokens("", value, &mut all);
    all.into_iter().next()
}

fn tokens<'v>(place: &str, value: &'v Value, out: &mut Vec<(String, &'v str)>) {
    let below = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    match value {
        Value::String(text) => out.extend(token(text).map(|token| (place.to_owned(), token))),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| tokens(&below(&at.to_string()), item, out));
        }
        Value::Object(map) => map.iter().for_each(|(key, item)| tokens(&below(key), item, out)),
        _ => {}
    }
}

/// What is said where a token stands.
pub(super) fn told(place: &str, token: &str) -> String {
    format!("{place} has {token} in place of a secret, which is not kept")
}

/// The nodes of a recorded graph that were written with a secret. Whoever writes a token as it is means it.
pub(super) fn of_graph(graph: &Graph, state: &State) -> BTreeSet<String> {
    let before = Ledger::fingerprints(state);
    let is_other = |node: &&Node| before.get(&node.id).is_some_and(|print| *print != graph.node_fingerprint(node));
    let all = graph.nodes.iter().filter(|node| lost(&node.parameters).is_some());
    all.filter(is_other).map(|node| node.id.clone()).collect()
}

/// Whether a value can be what was recorded, before secrets were taken out of it: the same everywhere but where tokens stand.
pub(super) fn is_same(recorded: &Value, now: &Value) -> bool {
    match (recorded, now) {
        (Value::String(recorded), Value::String(now)) => is_same_text(recorded, now),
        (Value::Array(recorded), Value::Array(now)) => {
            recorded.len() == now.len() && recorded.iter().zip(now).all(|(recorded, now)| is_same(recorded, now))
        }
        (Value::Object(recorded), Value::Object(now)) => {
            let same = |(key, value): (&String, &Value)| now.get(key).is_some_and(|now| is_same(value, now));
            recorded.len() == now.len() && recorded.iter().all(same)
        }
        // A number may be a secret, too.
        (Value::String(recorded), _) if token(recorded) == Some(recorded) => true,
        _ => recorded == now,
    }
}

fn is_same_text(recorded: &str, now: &str) -> bool {
    let Some((before, mut after)) = token(recorded).and_then(|token| recorded.split_once(token)) else {
        return recorded == now;
    };
    let Some(mut rest) = now.strip_prefix(before) else { return false };
    while let Some((between, more)) = token(after).and_then(|token| after.split_once(token)) {
        let Some((_, found)) = rest.split_once(between) else { return false };
        (rest, after) = (found, more);
    }
    rest.ends_with(after)
}

/// Why a graph that a run goes by has no secrets where its file has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Lost {
    /// It is the recorded one.
    #[default]
    Recorded,
    /// So it is, because what stands in its place now is another.
    Other,
}

impl Lost {
    fn instead(self) -> &'static str {
        match self {
            Self::Recorded => {
                "resume with --graph and its file; a variable of the environment (env_headers, env) needs no secret there"
            }
            Self::Other => {
                "a graph inside stays what it was when it began, and its file says something else now: resume with --graph and the \
                 files as they were then, or run the node around it again (`milepost run-again`)"
            }
        }
    }
}

/// Why a step cannot be begun: one of its parameters would be a token. `lost_by` says that the graph lost it, and why.
pub(super) fn missing(
    node: &Node,
    entry: &Entry,
    parameters: &Value,
    names: &Map<String, Value>,
    at: &[String],
    lost_by: Option<&Lost>,
) -> Option<String> {
    let (mut found, mut written) = (Vec::new(), Vec::new());
    match node.action.as_str() {
        // What it is when it begins is what it stays. One that was begun has steps that look for themselves.
        "graph" if entry.input.is_empty() && lost_by.is_some() => {
            parameters.get("graph").into_iter().for_each(|graph| tokens("graph", graph, &mut found));
        }
        action if acts(action) => tokens("", parameters, &mut found),
        _ => return None,
    }
    tokens("", &node.parameters, &mut written);
    let is_meant = |token: &str| lost_by.is_none() && written.iter().any(|(_, own)| *own == token);
    let (place, token) = found.into_iter().find(|(_, token)| !is_meant(token))?;
    let why = told(&place, token);
    let given: BTreeSet<String> = compare::names_in(&node.parameters)
        .into_iter()
        .filter_map(|path| {
            let value = path.iter().skip(1).try_fold(names.get(path.first()?)?, |value, part| value.get(part))?;
            let (below, _) = lost(value)?;
            let whole: Vec<&str> = match path.first()?.as_str() {
                "memory" if at.len() == 1 => path.iter().map(String::as_str).collect(),
                "memory" | "outputs" => at.iter().chain(&path).map(String::as_str).collect(),
                _ => return None,
            };
            let more = if below.is_empty() { String::new() } else { format!(".{below}") };
            Some(format!("--set {}{more}=VALUE", whole.join(".")))
        })
        .collect();
    let instead = match given.is_empty() {
        false => format!("give it again: resume with {}", given.into_iter().collect::<Vec<_>>().join(" ")),
        true if entry.replaced.as_ref().is_some_and(|replaced| lost(replaced).is_some()) => {
            "it was given for this run alone: run the step again with it".to_owned()
        }
        true => lost_by.copied().unwrap_or_default().instead().to_owned(),
    };
    Some(format!("{why}; {instead}"))
}

/// A state with what somebody gives again, in clear: for this run's eyes alone, as what is stored of it is redacted.
pub(super) fn given_again(state: State, set: &[(StatePath, Value)]) -> State {
    if set.is_empty() {
        return state;
    }
    let before = state.clone();
    let mut value = state.into_value();
    for (path, given) in set {
        // Only where it was taken out: what a step has put in its place since stays.
        if let Some(stored) = value.pointer_mut(&path.to_string())
            && lost(stored).is_some()
        {
            *stored = given.clone();
        }
    }
    State::try_from(value).unwrap_or(before)
}
