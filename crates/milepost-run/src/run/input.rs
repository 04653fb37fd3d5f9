//! What a step is begun with: filled in, and compared with what it was begun with before.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use milepost::{NewSession, Point, Resume, SessionId};
use milepost_model::State;
use serde_json::{Map, Value};

use super::compare::{differences, given};
use super::error::{Error, Result};
use super::ledger::{At, Entry, Ledger, Status};
use super::{Runner, Settle, fill};
use crate::graph::actions::Repeat;
use crate::graph::{Graph, Node};

/// The hash of parameters, by which they are known again.
pub(super) fn hash(parameters: &Value) -> String {
    milepost_model::Hash(milepost_model::hash_value(parameters)).to_string()
}

/// The parameters of a step: the node's, filled in, and over them those that somebody put in their place.
pub(super) fn fill_step(node: &Node, entry: &Entry, names: &Map<String, Value>) -> Result<Value, String> {
    let mut filled = fill::fill(node, names)?;
    if let (Value::Object(filled), Some(Value::Object(replaced))) = (&mut filled, &entry.replaced) {
        filled.extend(replaced.clone());
    }
    Ok(filled)
}

/// The parameters of a step as they are written, with those over them that somebody put in their place.
pub(super) fn written<'n>(node: &'n Node, entry: &Entry) -> Cow<'n, Value> {
    let mut parameters = Cow::Borrowed(&node.parameters);
    if let (Value::Object(_), Some(Value::Object(replaced))) = (&node.parameters, &entry.replaced)
        && let Value::Object(own) = parameters.to_mut()
    {
        own.extend(replaced.clone());
    }
    parameters
}

/// What the templates and conditions of a node see.
pub(super) fn names(ledger: &Ledger, node: &Node, session: SessionId, entry: &Entry) -> Map<String, Value> {
    Map::from_iter([
        ("memory".to_owned(), Value::Object(ledger.memory().clone())),
        ("outputs".to_owned(), Value::Object(ledger.outputs().clone())),
        ("node".to_owned(), node.id.clone().into()),
        ("session".to_owned(), session.to_string().into()),
        ("key".to_owned(), entry.key.clone().into()),
        ("attempt".to_owned(), entry.attempt.into()),
        ("iteration".to_owned(), entry.iteration.into()),
    ])
}

/// What a step was begun with.
pub(super) struct Saw {
    /// What its templates saw in the first attempt.
    pub names: Map<String, Value>,
    pub parameters: Value,
}

impl Saw {
    /// What the templates see when it goes on: what they saw, whatever other steps did to the memory since, and over it what somebody
    /// put there by hand.
    pub fn names_with<'k>(
        &self,
        by_hand: impl Iterator<Item = &'k str>,
        now: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut names = self.names.clone();
        if let Some(Value::Object(memory)) = names.get_mut("memory") {
            for key in by_hand {
                match now.get(key) {
                    Some(value) => drop(memory.insert(key.to_owned(), value.clone())),
                    None => drop(memory.remove(key)),
                }
            }
        }
        names
    }
}

impl Runner {
    /// What the templates of a step saw when it was begun, as the log tells: what the run knew then. None when that cannot be
    /// read any more.
    pub(super) async fn saw(
        &self,
        (session, at): (SessionId, &At),
        name: &str,
        node: &Node,
        entry: &Entry,
    ) -> Result<Option<Saw>> {
        let store = self.engine.store();
        for begun in self.beginnings(session).await? {
            if begun.node != name || begun.key != entry.key || begun.input != entry.input {
                continue;
            }
            // What cannot be read tells nothing.
            let Ok(state) = store.state_at(begun.before).await else { continue };
            let Ok(then) = Ledger::read_at(&state, at.clone()) else { continue };
            let names = names(&then, node, session, &Entry { attempt: 1, ..entry.clone() });
            let Ok(parameters) = fill_step(node, entry, &names) else { continue };
            if hash(&parameters) == entry.input {
                return Ok(Some(Saw { names, parameters }));
            }
        }
        Ok(None)
    }

    /// Refuses what a resume sets when a step of which an attempt is open would get another input by it. Nothing is stored
    /// before; what steps change meanwhile is compared when the step is begun.
    pub(super) async fn refuse_other_input(
        &self,
        id: SessionId,
        graph: &Graph,
        state: &State,
        how: &Resume,
        settle: &BTreeMap<String, Settle>,
    ) -> Result<()> {
        // What is gone back to is begun under other keys.
        if how.set.is_empty() || how.point != Point::Latest {
            return Ok(());
        }
        let set = NewSession { state: state.clone(), ..NewSession::default() }.with(&how.set)?.state;
        let ledger = Ledger::read(&set)?;
        let head = self.engine.store().session(id).await.map_err(milepost::Error::from)?.head.to_string();
        let (actions, given) = (self.all_actions(), given(how));
        for (name, entry) in ledger.own() {
            let Some(node) = graph.find(name).map(|number| &graph.nodes[number]) else { continue };
            let Some(action) = actions.get(&node.action).filter(|action| action.is_keyed()) else { continue };
            let repeat = entry.repeat.unwrap_or_else(|| action.repeat(&written(node, entry)));
            let is_open = match entry.status {
                Status::Retrying => true,
                // Else it is uncertain first.
                Status::Running | Status::Uncertain => node.idempotent.unwrap_or(repeat != Repeat::Effect),
                _ => false,
            };
            let is_begun = entry.attempt > 0 && !entry.input.is_empty() && entry.timeline == head && !entry.free;
            if !is_open || !is_begun || repeat == Repeat::Harmless || settle.contains_key(name) {
                continue;
            }
            let names = names(&ledger, node, id, &Entry { attempt: 1, ..entry.clone() });
            // What cannot be filled in fails when it is begun.
            let Ok(now) = fill_step(node, entry, &names) else { continue };
            if hash(&now) == entry.input {
                continue;
            }
            // What other steps wrote since is no other input.
            // Where nobody knows what it was begun with, or a secret is missing, that is found when it is begun.
            let Some(saw) = self.saw((id, &At::root()), name, node, entry).await? else { continue };
            let by_hand: BTreeSet<&str> = ledger.by_hand().chain(given.iter().map(String::as_str)).collect();
            let Ok(now) = fill_step(node, entry, &saw.names_with(by_hand.into_iter(), ledger.memory())) else {
                continue;
            };
            if hash(&now) != entry.input {
                let difference = differences("", &saw.parameters, &now).join("; ");
                return Err(Error::Changed { node: name.to_owned(), difference });
            }
        }
        Ok(())
    }
}
