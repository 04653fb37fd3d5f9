//! How a run ended, and what to do next.

use std::process::ExitCode;

use anyhow::Result;
use milepost::{Milepost, SessionId};
use milepost_run::graph::{Graph, OnError};
use milepost_run::run::{End, Ledger, Runner, Status};
use serde_json::{Map, Value, json};

use super::cost::to_raise;
use super::run::told;
use super::tell::line;
use crate::app::App;
use crate::errors::INTERRUPTED;
use crate::out::{plain, safe, short};

/// The exit codes of runs that are not completed.
pub const PAUSED: u8 = 10;
const WAITING: u8 = 11;
const UNCERTAIN: u8 = 12;

/// What a run gave that is completed: the event says it.
pub async fn completed_outputs(engine: &Milepost, id: SessionId) -> Result<Map<String, Value>> {
    let events = super::steps::events(engine, id).await?;
    let last = events.iter().rev().find(|(_, event)| event.kind == "run_completed");
    let outputs = last.and_then(|(_, event)| event.data.get("outputs")).and_then(Value::as_object).cloned();
    Ok(outputs.unwrap_or_default())
}

/// What a person does next.
async fn next(engine: &Milepost, session: SessionId, graph: &Graph, end: &End) -> Result<Vec<String>> {
    let id = short(session);
    let resume = format!("milepost resume {id}");
    let runner = Runner::new(engine);
    let state = engine.store().state(session).await.map_err(milepost::Error::from)?;
    Ok(match end {
        End::Completed { .. } => {
            let info = engine.store().session(session).await.map_err(milepost::Error::from)?;
            let home = info.branch.map(|_| format!("milepost merge-back {id} --output NODE"));
            [format!("milepost steps {id}")].into_iter().chain(home).collect()
        }
        End::Paused { node, .. } => {
            let ledger = Ledger::read(&state).map_err(told)?;
            let is_denied = |name: &str| runner.asked(&state, graph, name).is_some_and(|asked| asked.is_approval);
            // What the run has gone on without is not asked for again.
            let goes_on = |name: &str| {
                let node = name.split(['/', '#']).next().and_then(|node| graph.find(node));
                node.is_some_and(|node| graph.nodes[node].on_error == OnError::GoOn)
            };
            let denied = ledger
                .nodes()
                .filter(|(name, entry)| entry.status == Status::Failed && is_denied(name) && !goes_on(name));
            let mut next: Vec<String> =
                denied.map(|(name, _)| format!("milepost approve {id} {name} --change")).collect();
            // Nobody answered in time: whoever goes on without an answer ends up here again.
            let is_asked = |name: &str| runner.asked(&state, graph, name).is_some_and(|asked| !asked.is_approval);
            let is_here = |name: &str| name.split(['/', '#']).next() == node.as_deref();
            let open = ledger.nodes().filter(|(name, entry)| entry.status == Status::Failed && is_here(name));
            let open = open.filter(|(name, _)| is_asked(name));
            next.extend(open.map(|(name, _)| format!("milepost answer {id} {name} VALUE")));
            let forecast = runner.forecast(session, Some(graph)).await.map_err(told)?;
            next.push(match to_raise(&forecast) {
                Some(flags) => format!("{resume} {flags}"),
                None => resume,
            });
            next.push(format!("milepost steps {id}"));
            next
        }
        End::Stopped => {
            let ledger = Ledger::read(&state).map_err(told)?;
            let open: Vec<String> = innermost(&ledger).collect();
            let mut next: Vec<String> = open.iter().flat_map(|node| settle(&resume, node)).collect();
            if next.is_empty() {
                next.push(resume);
            }
            next.push(format!("milepost steps {id}"));
            next
        }
        End::Waiting { until, what } => {
            let asked = what.iter().filter_map(|(name, _)| Some((name, runner.asked(&state, graph, name)?)));
            let mut next: Vec<String> = asked
                .map(|(name, asked)| match asked.is_approval {
                    true => format!("milepost approve {id} {name}"),
                    false => format!("milepost answer {id} {name} VALUE"),
                })
                .collect();
            next.push(resume);
            next.extend(until.map(|_| "milepost work".to_owned()));
            next
        }
        End::Uncertain { steps } => steps.iter().flat_map(|(node, _)| settle(&resume, node)).collect(),
    })
}

/// The ways to settle an uncertain step.
fn settle(resume: &str, node: &str) -> [String; 2] {
    [format!("{resume} --done {node}"), format!("{resume} --again {node}")]
}

/// The uncertain steps, but for those that only are because a part of them is.
fn innermost(ledger: &Ledger) -> impl Iterator<Item = String> {
    let all: Vec<&str> =
        ledger.nodes().filter(|(_, entry)| entry.status == Status::Uncertain).map(|(name, _)| name).collect();
    let is_outer =
        |name: &str| all.iter().any(|other| other.strip_prefix(name).is_some_and(|rest| rest.starts_with(['/', '#'])));
    let own: Vec<String> = all.iter().filter(|name| !is_outer(name)).map(|name| (*name).to_owned()).collect();
    own.into_iter()
}

/// Says how a run ended, and what to do next.
pub async fn finish(app: &mut App, engine: &Milepost, id: SessionId, graph: &Graph, end: End) -> Result<ExitCode> {
    let (word, code) = match &end {
        End::Completed { .. } => ("completed", 0),
        End::Paused { .. } => ("paused", PAUSED),
        End::Waiting { .. } => ("waiting", WAITING),
        End::Uncertain { .. } => ("uncertain", UNCERTAIN),
        End::Stopped => ("stopped", INTERRUPTED),
    };
    let next = next(engine, id, graph, &end).await?;
    app.out.now = engine.source().now();
    if app.out.json {
        let mut value = json!({ "event": "end", "sessionId": id, "end": word, "next": next });
        match end {
            End::Completed { outputs } => value["outputs"] = Value::Object(outputs),
            End::Paused { node, why } => (value["node"], value["why"]) = (json!(node), json!(why)),
            End::Waiting { until, what } => {
                value["until"] = json!(until.map(|until| until.to_string()));
                value["what"] = what.into_iter().map(|(node, what)| json!({ "node": node, "for": what })).collect();
            }
            End::Uncertain { steps } => {
                value["steps"] = steps.into_iter().map(|(node, key)| json!({ "node": node, "key": key })).collect();
            }
            End::Stopped => {}
        }
        line(&value);
        return Ok(ExitCode::from(code));
    }
    let styles = app.styles();
    match end {
        End::Completed { outputs } => {
            put_outputs(app, &outputs)?;
            app.out.note(format!("{} {}", styles.good("completed"), short(id)));
        }
        End::Paused { node, why } => {
            let at = node.map(|node| format!(" at {}", plain(&node))).unwrap_or_default();
            app.out.reason(format!("{} {}{at}: {}", styles.warn("paused"), short(id), plain(&why)));
        }
        End::Waiting { until, what } => {
            for (node, what) in what {
                let what = plain(&what);
                app.out.reason(format!("{} {}: {} waits for {what}", styles.warn("waiting"), short(id), plain(&node)));
            }
            if let Some(until) = until {
                app.out.note(format!("it goes on at {until} where `milepost work` runs"));
            }
        }
        End::Uncertain { steps } => {
            let state = engine.store().state(id).await.map_err(milepost::Error::from)?;
            let ledger = Ledger::read(&state).map_err(told)?;
            for (node, key) in steps {
                let failed = ledger.line(&node).filter(|entry| entry.happened).and_then(|entry| entry.error.clone());
                let node = plain(&node);
                let what = match failed {
                    Some(why) => {
                        format!("{node} has had its effect, or may have, and failed after it: {}", plain(&why))
                    }
                    None => format!("nobody knows whether {node} had its effect"),
                };
                app.out.reason(format!("{} {}: {what} (its key is {key})", styles.warn("uncertain"), short(id)));
            }
        }
        End::Stopped => {
            app.out.note(format!("{} {}: it is paused", styles.warn("stopped"), short(id)));
            let state = engine.store().state(id).await.map_err(milepost::Error::from)?;
            for node in innermost(&Ledger::read(&state).map_err(told)?) {
                let what = format!("nobody knows whether {} had its effect", plain(&node));
                app.out.reason(format!("{} {}: {what}", styles.warn("uncertain"), short(id)));
            }
        }
    }
    app.out.note(format!("next: {}", next.join("\n      ")));
    Ok(ExitCode::from(code))
}

/// What a run gives, below each other; long texts below their names.
fn put_outputs(app: &App, outputs: &Map<String, Value>) -> Result<()> {
    for (name, value) in outputs {
        let text = value.as_str().map_or_else(|| value.to_string(), safe);
        let name = app.out.styles.dim(&format!("{name}:"));
        match text.contains('\n') {
            true => {
                app.out.line(name)?;
                text.lines().try_for_each(|line| app.out.line(format!("  {line}").trim_end()))?;
            }
            false => app.out.line(format!("{name} {text}").trim_end())?,
        }
    }
    Ok(())
}
