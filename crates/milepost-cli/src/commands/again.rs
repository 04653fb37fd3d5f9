//! Runs once more: a step on a branch, recorded sessions against a graph, and what a branch found brought home.

use std::process::ExitCode;

use anyhow::Result;
use milepost::{NewSession, SessionId, SessionPatch, SessionQuery, parse_set};
use milepost_run::graph::actions::ACTIONS;
use milepost_run::graph::{Graph, Node};
use milepost_run::run::{About, Again, Error, Ledger, MergeBack, Replay, Runner, merge_back as bring_home};
use serde_json::{Map, Value, json};

use super::cost::budget;
use super::end::finish;
use super::graph::{check, usable};
use super::run::{engine_for, models_for, remembered_model, runner, told};
use super::tell::Teller;
use crate::app::App;
use crate::args;
use crate::errors::{Failed, Usage};
use crate::out::{count, plain, shell_word, short};

pub async fn run_again(app: &mut App, args: args::RunAgain) -> Result<ExitCode> {
    let given = match &args.graph {
        Some(file) => Some(usable(app, &check(file).await?, file)?),
        None => None,
    };
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    let graph = match &given {
        Some(graph) => graph.clone(),
        None => Runner::new(&engine).recorded(id).await.map_err(told)?,
    };
    let Some(node) = graph.find(&args.step).map(|number| &graph.nodes[number]) else {
        let known: Vec<&str> = graph.nodes.iter().map(|node| node.id.as_str()).collect();
        let why = format!("{} has no step {:?}: it has {}", graph.name, args.step, known.join(", "));
        return Err(Failed::missing(why).into());
    };
    let again =
        Again { node: args.step.clone(), round: args.round.map(|round| round - 1), input: input(node, &args.input)? };
    // As `resume` does: by the model that was said when the run began.
    let state = engine.store().state(id).await.map_err(milepost::Error::from)?;
    app.set("model", args.how.model.clone().or_else(|| remembered_model(&state).map(str::to_owned)));
    let models = models_for(app, &graph).await?;
    let forecast = Runner::new(&engine).forecast(id, Some(&graph)).await.map_err(told)?;
    let budget = budget(&args.budgets, forecast.budget);
    let engine = engine_for(app, &graph).await?;
    let runner =
        runner(app, &engine, &models, &graph, &args.how, budget).watch(Teller::new(app, &graph, false).watch());
    let runner = if args.repeat_effects { runner.repeat_effects() } else { runner };
    let repeats = runner.happens_again(id, &again, given.as_ref()).await.map_err(told)?;
    let with_yes = |error: Error| with_yes(error, id, &args);
    let patch = args.title.clone().map(|title| SessionPatch::new().title(title)).unwrap_or_default();
    let new = NewSession { patch, ..NewSession::default() };
    app.out.note(format!("running {} of {} again, on a branch", plain(&args.step), short(id)));
    for (step, key) in &repeats {
        app.out.note(format!("happens again: {} (key {key})", plain(step)));
    }
    let (branch, end) = runner.rerun(id, &again, given.as_ref(), new).await.map_err(with_yes)?;
    finish(app, &engine, branch, &graph, end).await
}

/// How to run a step again where that would let effects happen again that do not follow it.
fn with_yes(error: Error, id: SessionId, args: &args::RunAgain) -> anyhow::Error {
    if !matches!(error, Error::Repeats { .. }) {
        return told(error);
    }
    let mut command = format!("milepost run-again {} {}", short(id), shell_word(&args.step));
    args.input.iter().for_each(|input| command.push_str(&format!(" --input {}", shell_word(input))));
    if let Some(round) = args.round {
        command.push_str(&format!(" --round {round}"));
    }
    if let Some(file) = &args.graph {
        command.push_str(&format!(" --graph {}", shell_word(&file.to_string_lossy())));
    }
    Failed::with_ways(error.to_string(), vec![("again", command + " --repeat-effects")]).of_kind("repeats").into()
}

/// Parameters in place of the graph's. What the action does not know is probably misspelt.
fn input(node: &Node, given: &[String]) -> Result<Map<String, Value>> {
    let known = ACTIONS.iter().find(|action| action.name == node.action).and_then(|action| action.parameters);
    let mut input = Map::new();
    for text in given {
        let (path, value) = parse_set(text)?;
        let path = path.to_string();
        let name = path.trim_start_matches('/');
        if let Some(known) = known.filter(|known| known.iter().all(|parameter| parameter.name != name)) {
            let known: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
            let why = format!("{} of {} has no parameter {name:?}", node.action, node.id);
            return Err(Usage(format!("{why}: it has {}", known.join(", "))).into());
        }
        input.insert(name.to_owned(), value);
    }
    Ok(input)
}

pub async fn merge_back(app: &mut App, args: args::MergeBack) -> Result<()> {
    let branch = app.session(&args.branch).await?;
    let engine = app.engine().await?;
    let store = engine.store();
    if let Some(from) = store.session(branch).await.map_err(milepost::Error::from)?.branch {
        app.free_from_the_dead(from.session).await?;
    }
    // Nodes are named; what they gave goes by the name of its output.
    let graph = Runner::new(&engine).recorded(branch).await.ok();
    let output = |name: &String| {
        let node = graph.as_ref().and_then(|graph| Some(graph.nodes[graph.find(name)?].output.clone()));
        node.unwrap_or_else(|| name.clone())
    };
    let outputs: Vec<String> = args.output.iter().map(output).collect();
    let what = MergeBack { memory: args.memory, outputs, summary: args.summary };
    let merged = bring_home(&engine, branch, &what).await.map_err(told)?;
    let next = format!("milepost sessions show {}", short(merged.into));
    if app.out.json {
        return app.out.json(&json!({
            "branch": branch, "sessionId": merged.into, "wasDone": merged.was_done,
            "memory": what.memory, "outputs": what.outputs, "next": [next],
        }));
    }
    let (branch, into) = (short(branch), short(merged.into));
    match merged.was_done {
        true => app.out.line(format!("{branch} was merged back into {into} before: nothing was done"))?,
        false => {
            let memory = what.memory.iter().map(|key| format!("memory.{}", plain(key)));
            let outputs = what.outputs.iter().map(|name| format!("output {}", plain(name)));
            let summary = what.summary.iter().map(|_| "a summary".to_owned());
            let all: Vec<String> = memory.chain(outputs).chain(summary).collect();
            app.out.line(format!("merged {branch} back into {into}: {}", all.join(", ")))?;
        }
    }
    app.out.note(format!("next: {next}"));
    Ok(())
}

/// A session that was checked, or why it could not be.
type Verified = (SessionId, Result<Replay, Error>);

pub async fn verify_replay(app: &mut App, args: args::VerifyReplay) -> Result<ExitCode> {
    let graph = usable(app, &check(&args.file).await?, &args.file)?;
    let engine = app.engine().await?;
    let runner = Runner::new(&engine);
    let mut verified: Vec<Verified> = Vec::new();
    if args.sessions.is_empty() {
        let all = engine.every_session(&SessionQuery::default()).await?;
        let mut progress = app.progress("verifying", all.len() as u64);
        for (number, session) in all.into_iter().enumerate() {
            progress.tell(number as u64);
            let state = engine.store().state(session.id).await;
            // What cannot be read may be of this graph, and is told.
            let is_other = state.is_ok_and(|state| !is_of(&state, &graph));
            if !is_other {
                verified.push((session.id, runner.verify_replay(&graph, session.id).await));
            }
        }
        progress.end();
    } else {
        for session in &args.sessions {
            let id = app.session(session).await?;
            let replay = runner.verify_replay(&graph, id).await.map_err(told)?;
            verified.push((id, Ok(replay)));
        }
    }
    let broken = verified.iter().filter(|(_, replay)| !is_whole(replay)).count();
    if app.out.json {
        let sessions: Vec<Value> = verified.iter().map(as_json).collect();
        app.out.json(&json!({ "graph": graph.name, "sessions": sessions, "broken": broken }))?;
    } else {
        verified.iter().try_for_each(|one| tell(app, &args.file.to_string_lossy(), one))?;
        let sessions = count(verified.len(), "session");
        app.out.line(match (verified.is_empty(), broken) {
            (true, _) => format!("no session has a run of {}", plain(&graph.name)),
            (_, 0) => format!("every run of {} fits ({sessions})", plain(&graph.name)),
            _ => format!("{broken} of {sessions} of {} would not go as before", plain(&graph.name)),
        })?;
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a state is of a run of a graph with this name.
fn is_of(state: &milepost::State, graph: &Graph) -> bool {
    let name = state.pointer("/execution/graph/name").and_then(Value::as_str);
    Ledger::graph_text(state).is_some() && name == Some(graph.name.as_str())
}

fn is_whole(replay: &Result<Replay, Error>) -> bool {
    replay.as_ref().is_ok_and(|replay| replay.breaks.is_empty())
}

fn named(about: &About) -> (&'static str, &str) {
    match about {
        About::Step(name) => ("step", name),
        About::Gone(name) => ("gone", name),
        About::Memory(name) => ("memory", name),
        About::Edge(name) => ("edge", name),
    }
}

fn as_json((id, replay): &Verified) -> Value {
    let replay = match replay {
        Ok(replay) => replay,
        Err(error) => return json!({ "sessionId": id, "ok": false, "error": error.to_string() }),
    };
    let breaks = replay.breaks.iter().map(|one| {
        let (about, name) = named(&one.about);
        json!({ "about": about, "name": name, "why": one.why })
    });
    json!({
        "sessionId": id, "ok": replay.breaks.is_empty(), "decisions": replay.decisions, "changes": replay.changes,
        "breaks": breaks.collect::<Vec<_>>(),
        "nearest": replay.nearest.as_ref().map(|nearest| json!({
            "checkpointId": nearest.checkpoint, "description": nearest.description, "time": nearest.time.to_string(),
        })),
    })
}

fn tell(app: &App, file: &str, (id, replay): &Verified) -> Result<()> {
    let (id, styles) = (short(id), app.out.styles);
    let replay = match replay {
        Ok(replay) => replay,
        Err(error) => {
            return app.out.line(format!("{id}  {} {}", styles.bad("cannot be read:"), plain(&error.to_string())));
        }
    };
    let decisions = count(replay.decisions, "decision");
    app.out.line(match replay.breaks.is_empty() {
        true => format!("{id}  {} {decisions} made again, as before", styles.good("fits:")),
        false => format!("{id}  {} {decisions} made again", styles.bad("does not fit:")),
    })?;
    for one in &replay.breaks {
        let name = match &one.about {
            About::Memory(key) => format!("memory.{key}"),
            other => named(other).1.to_owned(),
        };
        app.out.line(format!("  {}: {}", plain(&name), plain(&one.why)))?;
    }
    for change in &replay.changes {
        app.out.line(format!("  {}", styles.dim(&format!("changed: {}", plain(change)))))?;
    }
    if let Some(nearest) = &replay.nearest {
        let command = super::run::back_to(&id, file, nearest.checkpoint);
        let what = match nearest.description.is_empty() {
            true => String::new(),
            false => format!(" ({})", plain(&nearest.description)),
        };
        app.out.line(format!("  it can go on from its nearest checkpoint{what}: {command}"))?;
    }
    Ok(())
}
