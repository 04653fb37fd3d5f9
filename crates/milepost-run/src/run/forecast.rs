//! What a resume will cost, before it does: from what the same steps cost before.

use std::collections::BTreeMap;

use milepost::{Resume, SessionId, SessionQuery, Status as SessionStatus};
use milepost_model::State;

use super::budget::{self, Budget, Spent};
use super::error::Result;
use super::ledger::{Ledger, Status};
use super::{Changes, Runner, Settle};
use crate::graph::{Graph, Node};

/// The most sessions of the same graph that are looked at (20), among the newest (200).
const MAX_OTHERS: usize = 20;
const MAX_LOOKED_AT: usize = 200;

/// Where a forecast comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// What the same step cost before: in this session, or in others of the same graph.
    Recorded,
    /// What the other steps of this session cost on average.
    Average,
    /// Nothing is known.
    Unknown,
}

/// What a step will cost.
#[derive(Debug, Clone, PartialEq)]
pub struct StepForecast {
    /// The node.
    pub node: String,
    /// Where it comes from.
    pub basis: Basis,
    /// Tokens, sent and received.
    pub tokens: Option<u64>,
    /// Dollars; none when the price is not known.
    pub cost_usd: Option<f64>,
}

/// What a resume will cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The steps that are left and ask models.
    pub steps: Vec<StepForecast>,
    /// Tokens of all of them; none when nothing is known of one.
    pub tokens: Option<u64>,
    /// Dollars of all of them; none when the price of one is not known.
    pub cost_usd: Option<f64>,
    /// The steps of which nothing is known.
    pub unknown: Vec<String>,
    /// What the session has cost so far.
    pub spent: Spent,
    /// What it may cost.
    pub budget: Budget,
}

impl Forecast {
    /// Whether the budget is used up already: a resume pauses at once.
    pub fn is_used_up(&self) -> bool {
        budget::Purse::new(self.budget, self.spent).empty().is_some()
    }
}

/// What a resume goes on with.
#[derive(Debug, Clone)]
pub struct Preview {
    /// The graph: the one that was given, or the one that the run was begun with.
    pub graph: Graph,
    /// What is different about it since, and is no problem.
    pub changes: Changes,
    /// What happened after the point that it goes on from, would happen again, and may not be repeated by itself: steps, each
    /// with the key that it had.
    pub repeats: Vec<(String, String)>,
    /// What it will cost.
    pub forecast: Forecast,
}

/// What something cost on average.
#[derive(Default, Clone, Copy)]
struct Average {
    spent: Spent,
    times: u64,
}

impl Average {
    fn add(&mut self, spent: &Spent, times: u64) {
        self.spent.add(spent);
        self.times += times;
    }

    fn tokens(&self) -> Option<u64> {
        self.spent.tokens().checked_div(self.times)
    }

    fn cost_usd(&self) -> Option<f64> {
        (self.times > 0 && self.spent.unpriced == 0).then(|| self.spent.cost_usd / self.times as f64)
    }
}

/// Whether a node asks models, or what is inside of it does. Of a graph that cannot be read nobody knows: it may.
fn asks(graph: &Graph, node: &Node, own_actions: &[&str]) -> bool {
    if node.action != "graph" {
        return asks_itself(node);
    }
    let Some(inner) = graph.inside(node, own_actions) else { return true };
    let mut any = false;
    inner.each_node(own_actions, &mut |node| any |= node.is_none_or(asks_itself));
    any
}

fn asks_itself(node: &Node) -> bool {
    matches!(node.action.as_str(), "model" | "agent" | "checks")
}

/// What each node of a run cost, of the rounds that are over.
fn recorded(state: &State, graph: &Graph, into: &mut BTreeMap<String, Average>) -> Result<()> {
    let ledger = Ledger::read(state)?;
    for node in &graph.nodes {
        let Some(spent) = budget::recorded(state, Some(&node.id)) else { continue };
        let entry = ledger.node(&node.id);
        let rounds = entry.map_or(0, |entry| u64::from(entry.iteration) + u64::from(entry.status == Status::Completed));
        if rounds > 0 {
            into.entry(node.id.clone()).or_default().add(&spent, rounds);
        }
    }
    Ok(())
}

impl Runner {
    /// What going on with a session will cost, as far as what was recorded tells. Loops count once.
    pub async fn forecast(&self, id: SessionId, graph: Option<&Graph>) -> Result<Forecast> {
        let state = self.engine.store().state(id).await.map_err(milepost::Error::from)?;
        let graph = match graph {
            Some(graph) => graph.clone(),
            None => self.recorded_graph(&state)?,
        };
        self.forecast_from(id, &state, &graph).await
    }

    /// What a resume would go on with, what is different since, and what it will cost. A graph that the run cannot go on
    /// with, or a value that makes a step another, is the same error as the resume would be. Nothing is changed.
    pub async fn preview(
        &self,
        id: SessionId,
        how: &Resume,
        graph: Option<&Graph>,
        settle: &BTreeMap<String, Settle>,
    ) -> Result<Preview> {
        let state = self.state_to_resume(id, how).await?;
        let graph = match graph {
            Some(graph) => graph.clone(),
            None => self.recorded_graph(&state)?,
        };
        let changes = self.accept(id, &graph, &state, how, settle).await?;
        self.refuse_other_input(id, &graph, &state, how, settle).await?;
        let forecast = self.forecast_from(id, &state, &graph).await?;
        let repeats = self.repeats(id, &graph, &state, how).await?;
        Ok(Preview { graph, changes, repeats, forecast })
    }

    async fn forecast_from(&self, id: SessionId, state: &State, graph: &Graph) -> Result<Forecast> {
        let ledger = Ledger::read(state)?;
        let is_left = |id: &str| !matches!(ledger.status(id), Status::Completed | Status::Skipped);
        let own_actions = self.own_actions();
        let is_asking = |node: &&Node| is_left(&node.id) && asks(graph, node, &own_actions);
        let left: Vec<&Node> = graph.nodes.iter().filter(is_asking).collect();
        let mut own = BTreeMap::new();
        recorded(state, graph, &mut own)?;
        let mut all = Average::default();
        own.values().for_each(|average| all.add(&average.spent, average.times));
        let mut others = BTreeMap::new();
        if left.iter().any(|node| !own.contains_key(&node.id)) {
            self.others(id, state, graph, &mut others).await?;
        }
        let steps = left.iter().map(|node| {
            let known = own.get(&node.id).or_else(|| others.get(&node.id));
            let (basis, from) = match known {
                Some(known) => (Basis::Recorded, *known),
                None if all.times > 0 => (Basis::Average, all),
                None => (Basis::Unknown, Average::default()),
            };
            StepForecast { node: node.id.clone(), basis, tokens: from.tokens(), cost_usd: from.cost_usd() }
        });
        let steps: Vec<StepForecast> = steps.collect();
        let unknown = steps.iter().filter(|step| step.basis == Basis::Unknown).map(|step| step.node.clone());
        Ok(Forecast {
            tokens: steps.iter().map(|step| step.tokens).sum(),
            // Nothing at all sums up to minus zero.
            cost_usd: steps.iter().map(|step| step.cost_usd).sum::<Option<f64>>().map(|cost| cost + 0.0),
            unknown: unknown.collect(),
            spent: budget::spent_by(&self.engine, id, state).await?,
            budget: budget::choose(self.budget, graph.budget, state),
            steps,
        })
    }

    /// What the nodes of other sessions of the same graph cost.
    async fn others(
        &self,
        id: SessionId,
        state: &State,
        graph: &Graph,
        into: &mut BTreeMap<String, Average>,
    ) -> Result<()> {
        let name = state.pointer("/execution/graph/name").cloned();
        let query = SessionQuery { limit: Some(MAX_LOOKED_AT), ..SessionQuery::default() };
        let mut found = 0;
        for session in self.engine.sessions(&query).await?.sessions {
            if session.id == id || session.status == SessionStatus::Cancelled || found >= MAX_OTHERS {
                continue;
            }
            // What cannot be read tells nothing.
            let Ok(other) = self.engine.store().state(session.id).await else { continue };
            if other.pointer("/execution/graph/name").cloned() == name && name.is_some() {
                found += 1;
                recorded(&other, graph, into)?;
            }
        }
        Ok(())
    }
}
