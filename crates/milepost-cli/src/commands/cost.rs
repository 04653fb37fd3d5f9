//! What going on with a run will cost, what it may cost, and how to raise that.

use anyhow::Result;
use milepost::SessionId;
use milepost_run::graph::Graph;
use milepost_run::run::{Basis, Budget, Forecast, Preview};
use serde_json::{Value, json};

use super::tell::line;
use crate::app::App;
use crate::args::Budgets;
use crate::out::{count, plain};

/// What is said of money that was counted by the built-in list.
pub const UNCHECKED: &str = "the built-in prices were not checked: models.NAME.prices of the settings stand over them";

/// The budget that was asked for, over the one that holds; none when nothing was asked for.
pub fn budget(given: &Budgets, holds: Budget) -> Option<Budget> {
    if given.budget_tokens.is_none() && given.budget_usd.is_none() {
        return None;
    }
    Some(Budget {
        tokens: given.budget_tokens.map_or(holds.tokens, |limit| limit.0),
        cost_usd: given.budget_usd.map_or(holds.cost_usd, |limit| limit.0),
    })
}

/// The flags that raise a budget which is used up; none when it is not.
pub fn to_raise(forecast: &Forecast) -> Option<String> {
    if !forecast.is_used_up() {
        return None;
    }
    let (spent, budget) = (forecast.spent, forecast.budget);
    let twice = spent.tokens().saturating_mul(2);
    let mut flags = Vec::new();
    match budget.tokens {
        Some(limit) if spent.tokens() >= limit => flags.push(format!("--budget-tokens {twice}")),
        // What has no price is held back by tokens alone.
        None if spent.unpriced > 0 => flags.push(format!("--budget-tokens {}", twice.max(1))),
        _ => {}
    }
    match budget.cost_usd {
        Some(_) if spent.unpriced > 0 => flags.push("--budget-usd none".to_owned()),
        Some(limit) if spent.cost_usd >= limit => {
            flags.push(format!("--budget-usd {:.2}", (spent.cost_usd * 200.0).ceil().max(1.0) / 100.0));
        }
        _ => {}
    }
    Some(flags.join(" "))
}

/// Tokens and dollars in words; dollars only where they are known.
fn amount(tokens: Option<u64>, cost_usd: Option<f64>) -> String {
    let tokens = tokens.map(|tokens| count(tokens, "token"));
    let cost = cost_usd.map(|cost| format!("${cost:.4}"));
    tokens.into_iter().chain(cost).collect::<Vec<_>>().join(" and ")
}

/// Says what going on will cost, before it does. Where it is what was asked for it is a result, else a note.
pub fn tell_cost(app: &App, id: SessionId, before: &Preview, is_asked: bool) -> Result<()> {
    let (graph, forecast) = (&before.graph, &before.forecast);
    if app.out.json {
        let mut told = as_json(id, forecast);
        let again = before.repeats.iter().map(|(step, key)| json!({ "node": step, "key": key }));
        told["changes"] = json!(before.changes);
        told["repeats"] = again.collect();
        if is_asked {
            return app.out.json(&told);
        }
        line(&told);
        return Ok(());
    }
    if let Some(flags) = to_raise(forecast).filter(|_| is_asked) {
        let what = amount(Some(forecast.spent.tokens()), Some(forecast.spent.cost_usd));
        app.out
            .line(format!("its budget is used up already ({what}): going on pauses at once; raise it with {flags}"))?;
    }
    let said = in_words(graph, forecast);
    match (said, is_asked) {
        (Some(said), true) => app.out.line(said),
        (None, true) => app.out.line("going on asks no model, and costs nothing"),
        (Some(said), false) => {
            app.out.note(said);
            Ok(())
        }
        (None, false) => Ok(()),
    }
}

fn in_words(graph: &Graph, forecast: &Forecast) -> Option<String> {
    if forecast.steps.is_empty() {
        return None;
    }
    let names: Vec<String> = forecast.steps.iter().map(|step| plain(&step.node)).collect();
    let names = names.join(", ");
    let mut said = match forecast.tokens {
        Some(_) => format!("going on will cost about {} ({names})", amount(forecast.tokens, forecast.cost_usd)),
        None => format!(
            "going on asks models ({names}); what {} will cost is not known yet",
            forecast.unknown.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", ")
        ),
    };
    if graph.edges.iter().any(|edge| edge.limit.is_some()) {
        said.push_str(", for each round of a loop");
    }
    let spent = forecast.spent;
    if spent.answers > 0 {
        let cost = (spent.unpriced == 0).then_some(spent.cost_usd);
        said.push_str(&format!("; so far it cost {}", amount(Some(spent.tokens()), cost)));
    }
    if spent.unchecked > 0 {
        said.push_str(&format!("; {UNCHECKED}"));
    }
    let budget = forecast.budget;
    if !budget.is_empty() {
        said.push_str(&format!("; its budget is {}", amount(budget.tokens, budget.cost_usd)));
    }
    Some(said)
}

fn as_json(id: SessionId, forecast: &Forecast) -> Value {
    let basis = |basis: Basis| match basis {
        Basis::Recorded => "recorded",
        Basis::Average => "average",
        Basis::Unknown => "unknown",
    };
    let steps = forecast.steps.iter().map(|step| {
        json!({ "node": step.node, "basis": basis(step.basis), "tokens": step.tokens, "costUsd": step.cost_usd })
    });
    let spent = forecast.spent;
    json!({
        "event": "forecast", "sessionId": id, "tokens": forecast.tokens, "costUsd": forecast.cost_usd,
        "steps": steps.collect::<Vec<_>>(), "unknown": forecast.unknown,
        "spent": { "tokens": spent.tokens(), "costUsd": spent.cost_usd, "answers": spent.answers, "unpriced": spent.unpriced, "unchecked": spent.unchecked },
        "budget": { "tokens": forecast.budget.tokens, "costUsd": forecast.budget.cost_usd }, "isUsedUp": forecast.is_used_up(),
    })
}
