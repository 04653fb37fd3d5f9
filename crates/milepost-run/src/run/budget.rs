//! What a session may cost, and what it has cost so far.

use std::sync::{Mutex, PoisonError};

use milepost::{Milepost, SessionId, Usage};
use milepost_model::{Message, Role, State};
use milepost_models::Cost;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What a session may cost. When it is reached the session pauses, with the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Budget {
    /// Tokens, sent and received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

impl Budget {
    /// Whether there is no limit at all.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_none() && self.cost_usd.is_none()
    }
}

/// What answers of models cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    /// How many answers there were.
    pub answers: u64,
    /// Of how many nobody knows the price.
    pub unpriced: u64,
    /// How many were counted by prices that nobody checked.
    #[serde(skip_serializing_if = "is_none")]
    pub unchecked: u64,
    /// Tokens that were sent.
    pub input_tokens: u64,
    /// Tokens that came back.
    pub output_tokens: u64,
    /// Dollars, as far as they are known.
    pub cost_usd: f64,
}

/// What a message of the assistant that came from a model has at least one of. Others were written by hand, brought over from
/// elsewhere, or are what a crash left of an answer: nobody says that they cost anything.
const OF_MODELS: [&str; 7] = ["usage", "tokens", "cost_usd", "costUsd", "cost", "model", "stop_reason"];

fn is_answer(message: &Message) -> bool {
    message.role == Role::Assistant && OF_MODELS.iter().any(|name| message.extra.contains_key(*name))
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

impl Spent {
    /// What these messages cost, as far as they say.
    pub fn of<'m>(messages: impl IntoIterator<Item = &'m Message>) -> Self {
        let mut spent = Spent::default();
        for message in messages.into_iter().filter(|message| is_answer(message)) {
            let usage = Usage::of(message);
            let is_priced = ["cost_usd", "costUsd", "cost"].iter().any(|name| message.extra.contains_key(*name));
            spent.add(&Spent {
                answers: 1,
                unpriced: u64::from(!is_priced && usage.cost_usd == 0.0),
                unchecked: u64::from(Cost::was_unchecked(message)),
                input_tokens: usage.input_tokens,
                output_tokens: usage.output_tokens,
                cost_usd: usage.cost_usd,
            });
        }
        spent
    }

    /// All tokens.
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// What was spent since it was so much.
    #[must_use]
    pub fn since(&self, then: &Spent) -> Spent {
        Spent {
            answers: self.answers.saturating_sub(then.answers),
            unpriced: self.unpriced.saturating_sub(then.unpriced),
            unchecked: self.unchecked.saturating_sub(then.unchecked),
            input_tokens: self.input_tokens.saturating_sub(then.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(then.output_tokens),
            cost_usd: (self.cost_usd - then.cost_usd).max(0.0),
        }
    }

    /// Adds what something else cost.
    pub fn add(&mut self, more: &Spent) {
        self.answers = self.answers.saturating_add(more.answers);
        self.unpriced = self.unpriced.saturating_add(more.unpriced);
        self.unchecked = self.unchecked.saturating_add(more.unchecked);
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.cost_usd += more.cost_usd;
    }
}

/// What a session has cost. The log tells it, not the state: going back takes the state back, and what was spent stays spent.
/// As everywhere, an answer counts where it was written, so that a branch begins with nothing spent.
pub(crate) async fn spent_by(engine: &Milepost, id: SessionId, state: &State) -> milepost::Result<Spent> {
    let mut spent = Spent::default();
    let lost = engine.each_written(id, |message| spent.add(&Spent::of([message]))).await?;
    match recorded(state, None) {
        // What cannot be read any more was noted.
        Some(noted) if lost > 0 && noted.answers > spent.answers => Ok(noted),
        _ => Ok(spent),
    }
}

/// A session's budget, and what is spent of it.
#[derive(Debug, Default)]
pub(crate) struct Purse {
    budget: Budget,
    spent: Mutex<Spent>,
}

impl Purse {
    pub fn new(budget: Budget, spent: Spent) -> Self {
        Self { budget, spent: Mutex::new(spent) }
    }

    /// What may be spent.
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// What was spent.
    pub fn spent(&self) -> Spent {
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn spend(&self, more: &Spent) -> Spent {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.add(more);
        *spent
    }

    /// Why nothing more may be spent; none when something may.
    pub fn empty(&self) -> Option<String> {
        let spent = *self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let instead = "raise the budget, then resume";
        if let Some(limit) = self.budget.tokens.filter(|limit| spent.tokens() >= *limit) {
            return Some(format!("the session's budget of {limit} tokens is used up ({}); {instead}", spent.tokens()));
        }
        if let Some(limit) = self.budget.cost_usd.filter(|_| spent.unpriced > 0) {
            let answers =
                if spent.unpriced == 1 { "an answer".to_owned() } else { format!("{} answers", spent.unpriced) };
            return Some(format!(
                "the price of {answers} is not known, so that the session's budget of ${limit} cannot be kept; \
                 give the model a price, or the session a budget of tokens, then resume"
            ));
        }
        let limit = self.budget.cost_usd.filter(|limit| spent.cost_usd >= *limit)?;
        Some(format!("the session's budget of ${limit} is used up (${:.4}); {instead}", spent.cost_usd))
    }
}

/// What is recorded as spent: by the session, as it was when that was noted, or by a node of it.
pub(crate) fn recorded(state: &State, node: Option<&str>) -> Option<Spent> {
    let execution = state.section("execution")?;
    let value = match node {
        None => execution.get("spent")?,
        Some(node) => execution.get("usage")?.get(node)?,
    };
    serde_json::from_value(value.clone()).ok()
}

/// The budget that is recorded.
pub(crate) fn recorded_budget(state: &State) -> Budget {
    let value = state.pointer("/execution/budget").cloned().unwrap_or_else(|| json!({}));
    serde_json::from_value(value).unwrap_or_default()
}

/// The budget that the graph said when it was last looked at.
pub(super) fn recorded_of_graph(state: &State) -> Option<Budget> {
    serde_json::from_value(state.pointer("/execution/graph_budget")?.clone()).ok()
}

/// The budget of a run: the runner's; the graph's when it is another than it was; the one that is recorded.
pub(super) fn choose(runner: Option<Budget>, graph: Option<Budget>, state: &State) -> Budget {
    let changed = graph.filter(|graph| recorded_of_graph(state).as_ref() != Some(graph));
    runner.or(changed).unwrap_or_else(|| recorded_budget(state))
}

pub(crate) fn to_value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
