//! A graph inside of a graph. Its steps are parts of the node's step; what it was when it began is what it stays.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::text;
use crate::graph::actions::Repeat;
use crate::graph::limits::MAX_GRAPHS_DEEP;
use crate::graph::{Graph, Rules, check_by, in_order, inner_text, to_json};
use crate::run::action::{Action, Failed, OpenBecause, OpenPart, Step};
use crate::run::secrets::{self, Lost};
use crate::run::turn::{Log, Turn};
use crate::run::{End, Error, Runner, has_actions};

pub(super) struct Sub {
    pub runner: Runner,
}

impl Sub {
    fn graph(&self, path: &str, text: &str, rules: Rules) -> Result<Graph, Failed> {
        let checked = check_by(path.as_ref(), text, &self.runner.own_actions(), rules);
        let why = checked.errors().next().map(ToString::to_string).unwrap_or_default();
        let graph = checked.graph.ok_or_else(|| Failed::Fatal(format!("the graph inside cannot be run: {why}")))?;
        has_actions(&graph, &self.runner.all_actions()).map_err(|error| Failed::Fatal(error.to_string()))?;
        Ok(graph)
    }

    /// The graph that was recorded, with the secrets that the record does not have: as it is written now, if that is the same graph. Else
    /// the recorded one, the nodes that lost a secret, and why.
    fn whole(&self, recorded: Graph, step: &Step) -> Result<(Graph, BTreeSet<String>, Lost), Failed> {
        let lost = recorded.nodes.iter().filter(|node| secrets::lost(&node.parameters).is_some());
        let lost: BTreeSet<String> = lost.map(|node| node.id.clone()).collect();
        let written = inner_text(&step.node, &step.parameters, step.written.as_deref(), &step.parts.path);
        let before = to_json(recorded.path.as_ref(), &recorded.text);
        let (Some(before), Ok((path, text)), false) = (before, written, lost.is_empty()) else {
            return Ok((recorded, lost, Lost::Recorded));
        };
        match to_json(path.as_ref(), &text) {
            Some(now) if now == before => Ok((recorded, lost, Lost::Recorded)),
            Some(now) if secrets::is_same(&before, &now) => {
                Ok((self.graph(&path, &text, Rules::OfOld)?, BTreeSet::new(), Lost::Recorded))
            }
            _ => Ok((recorded, lost, Lost::Other)),
        }
    }
}

#[async_trait]
impl Action for Sub {
    /// Its steps say for themselves what a second time means.
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Idempotent
    }

    /// Its key goes to nobody.
    fn is_keyed(&self) -> bool {
        false
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        if step.parts.at.depth() > MAX_GRAPHS_DEEP {
            let why = format!("graphs lie inside of each other deeper than MAX_GRAPHS_DEEP, {MAX_GRAPHS_DEEP}");
            return Err(Failed::Fatal(why));
        }
        let mut open = step.parts.open().await?;
        let recorded = open
            .ledger
            .data("graph")
            .and_then(|graph| Some((text(graph, "path")?.to_owned(), text(graph, "text")?.to_owned())));
        let (graph, lost, lost_by) = match recorded {
            Some((path, text)) => {
                // What was recorded before had lost its order, and is no other graph for that.
                let graph = serde_json::from_str(&text).ok();
                let ordered = graph.and_then(|graph| in_order(&graph, step.written.as_deref()));
                self.whole(self.graph(&path, &ordered.unwrap_or(text), Rules::OfOld)?, &step)?
            }
            None => {
                let (path, text) = inner_text(&step.node, &step.parameters, step.written.as_deref(), &step.parts.path)
                    .map_err(Failed::Fatal)?;
                let graph = self.graph(&path, &text, Rules::Todays)?;
                open.ledger.set_data("graph", json!({"path": path, "text": text}));
                let given = step.parameters.get("memory").and_then(Value::as_object).cloned().unwrap_or_default();
                for (key, value) in graph.memory.clone().into_iter().chain(given) {
                    open.ledger.remember(&key, value);
                }
                open.store(Vec::new(), Vec::new(), None).await?;
                (graph, BTreeSet::new(), Lost::Recorded)
            }
        };
        let runner = self.runner.clone().cancel(step.cancel.clone());
        let mut parts = step.parts.clone();
        parts.path = graph.path.as_str().into();
        let actions = runner.all_actions();
        let mut turn = Turn::new(&runner, Log::Parent, graph, open.ledger, actions, parts, Arc::clone(&step.purse));
        turn.has_lost(lost, lost_by);
        match turn.go().await {
            Ok(End::Completed { outputs }) => Ok(Value::Object(outputs)),
            Ok(End::Paused { why, .. }) if step.purse.empty().is_some() => Err(Failed::Pause(why)),
            Ok(End::Paused { node, why }) => {
                let why = node.map_or_else(|| why.clone(), |node| format!("{}{node}: {why}", step.parts.scope));
                Err(if turn.misses_secret() { Failed::Pause(why) } else { Failed::Fatal(why) })
            }
            Ok(End::Waiting { until, what }) => {
                let open = what.into_iter().map(|(name, what)| OpenPart {
                    name,
                    key: String::new(),
                    why: OpenBecause::Waits { until, what },
                });
                Err(Failed::Parts(open.collect()))
            }
            Ok(End::Uncertain { steps }) => {
                let open = steps.into_iter().map(|(name, key)| OpenPart { name, key, why: OpenBecause::Uncertain });
                Err(Failed::Parts(open.collect()))
            }
            Ok(End::Stopped) => Err(Failed::Transient("it was told to end".to_owned())),
            Err(Error::Changed { node, difference }) => Err(Failed::Changed { node, difference }),
            Err(error) => Err(Failed::Transient(error.to_string())),
        }
    }
}
