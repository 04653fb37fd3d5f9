//! What a step is begun with: filled in, and compared with what it was begun with before.

use std::collections::BTreeMap;

use milepost::{MarkQuery, Milepost, NewSession, Point, Resume, SessionId};
use milepost_model::State;
use serde_json::{Map, Value};

use super::compare::differences;
use super::error::{Error, Result};
use super::ledger::{At, Entry, Ledger, Status};
use super::{Runner, Settle, fill};
use crate::graph::actions::Repeat;
use crate::graph::{Graph, Node};

/// The most checkpoints in which is looked for what a step was begun with (1,000).
const MAX_MARKS: usize = 1000;

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

/// What is different about the parameters of a step since it was begun: they are filled in once more with what the run
/// knew then, as its checkpoints tell.
pub(super) async fn difference(
    engine: &Milepost,
    (session, at): (SessionId, &At),
    node: &Node,
    entry: &Entry,
    now: &Value,
) -> Result<String> {
    let store = engine.store();
    let query = MarkQuery { limit: Some(MAX_MARKS), ..MarkQuery::default() };
    for mark in store.marks(session, &query).await.map_err(milepost::Error::from)? {
        // What cannot be read tells nothing.
        let Ok(state) = store.state_at(mark.at).await else { continue };
        let Ok(ledger) = Ledger::read_at(&state, at.clone()) else { continue };
        let Some(then) = ledger.node(&node.id) else { continue };
        if then.key != entry.key || then.input != entry.input {
            continue;
        }
        let names = names(&ledger, node, session, &Entry { attempt: 1, ..then.clone() });
        let Ok(before) = fill_step(node, then, &names) else { continue };
        if hash(&before) == entry.input {
            return Ok(differences("", &before, now).join("; "));
        }
    }
    Ok("its parameters are others than those it was begun with".to_owned())
}

impl Runner {
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
        let actions = self.all_actions();
        for (name, entry) in ledger.own() {
            let Some(node) = graph.find(name).map(|number| &graph.nodes[number]) else { continue };
            let Some(action) = actions.get(&node.action).filter(|action| action.is_keyed()) else { continue };
            let repeat = action.repeat(&node.parameters);
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
            if hash(&now) != entry.input {
                let difference = difference(&self.engine, (id, &At::root()), node, entry, &now).await?;
                return Err(Error::Changed { node: name.to_owned(), difference });
            }
        }
        Ok(())
    }
}
