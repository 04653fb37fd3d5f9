//! Answering what a run asks.

use anyhow::Result;
use milepost::SessionId;
use milepost_run::run::{Answered, Ledger, Runner, answer as put_answer, change_answer, wake};
use serde_json::{Value, json};

use super::run::told;
use crate::app::App;
use crate::args::{Answer, Answering, Approve};
use crate::errors::{Failed, Usage};
use crate::out::{plain, short};

pub async fn answer(app: &mut App, args: Answer) -> Result<()> {
    give(app, &args.session, &args.node, &args.value, args.who).await
}

pub async fn approve(app: &mut App, args: Approve) -> Result<()> {
    give(app, &args.session, &args.node, if args.deny { "no" } else { "yes" }, args.who).await
}

async fn give(app: &mut App, session: &str, node: &str, value: &str, who: Answering) -> Result<()> {
    let id = app.session(session).await?;
    let engine = app.engine().await?;
    let state = engine.store().state(id).await.map_err(milepost::Error::from)?;
    if Ledger::graph_text(&state).is_none() {
        let what = format!("session {} has no run of a graph: nothing is asked there; name one that waits", short(id));
        let waiting = "milepost sessions list --status waiting".to_owned();
        return Err(Failed::missing_with(what, vec![("list", waiting)]).into());
    }
    let runner = Runner::new(&engine);
    let graph = runner.recorded(id).await.map_err(told)?;
    let node = &*runner.meant(&state, node);
    let Some(asked) = runner.asked(&state, &graph, node) else {
        let asking = runner.questions(&state, &graph);
        let known = if asking.is_empty() { "none does".to_owned() } else { format!("these do: {}", asking.join(", ")) };
        let what = format!("no node {node:?} of {} asks a question: {known}; see what the run does", graph.name);
        return Err(Failed::missing_with(what, vec![("steps", format!("milepost steps {}", short(id)))]).into());
    };
    if !asked.choices.is_empty() && !asked.choices.iter().any(|choice| choice == value) {
        return Err(Usage(format!("{value:?} is no answer to {node}: say one of {}", asked.choices.join(", "))).into());
    }
    let ledger = Ledger::read(&state).map_err(told)?;
    let round =
        who.round.map(|round| round - 1).or_else(|| ledger.line(node).map(|entry| entry.iteration)).unwrap_or(0);
    let by = who.by.unwrap_or_else(me);
    let became = match who.change {
        true => match change_answer(&engine, id, node, round, value, &by).await.map_err(told)? {
            Some(before) => Became::Changed(before),
            None => Became::Answered(Answered::First),
        },
        false => Became::Answered(put_answer(&engine, id, node, round, value, &by).await.map_err(told)?),
    };
    if became.is_accepted() {
        wake(&engine, id).await.map_err(told)?;
    }
    tell(app, id, node, round, value, &became)
}

/// What became of an answer.
enum Became {
    Answered(Answered),
    /// It stands in place of this one.
    Changed(milepost_run::run::Answer),
}

impl Became {
    fn is_accepted(&self) -> bool {
        !matches!(self, Became::Answered(Answered::Late { .. }))
    }
}

/// Whoever sits here.
fn me() -> String {
    ["USER", "LOGNAME", "USERNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .filter(|name| !name.trim().is_empty())
        .unwrap_or_else(|| "somebody at the command line".to_owned())
}

fn tell(app: &App, id: SessionId, node: &str, round: u32, value: &str, became: &Became) -> Result<()> {
    let next = format!("milepost resume {}", short(id));
    if app.out.json {
        let (counts, by) = match became {
            Became::Answered(Answered::Late { answer, by }) => (answer.as_str(), json!(by)),
            _ => (value, Value::Null),
        };
        let mut told = json!({
            "sessionId": id, "node": node, "iteration": round, "accepted": became.is_accepted(),
            "answer": counts, "by": by, "next": [next],
        });
        if let Became::Changed(before) = became {
            told["before"] = json!({ "answer": before.answer, "by": before.by });
        }
        return app.out.json(&told);
    }
    let (node, value) = (format!("{} of {}", plain(node), short(id)), plain(value));
    match became {
        Became::Answered(Answered::First) => app.out.line(format!("answered {node}: {value}"))?,
        Became::Answered(Answered::Late { answer, by }) => app.out.line(format!(
            "{node} was answered before, by {}: {}; the first answer counts, unless you say --change",
            plain(by),
            plain(answer)
        ))?,
        Became::Changed(before) => {
            let (was, by) = (plain(&before.answer), plain(&before.by));
            app.out.line(format!("answered {node} anew: {value}; it was {was}, by {by}"))?;
        }
    }
    app.out.note(format!("next: {next}"));
    Ok(())
}
