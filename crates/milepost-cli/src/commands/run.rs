//! Running graphs and going on with them.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use milepost::config::Work;
use milepost::model::CheckpointId;
use milepost::store::Error as StoreError;
use milepost::{Milepost, NewSession, Point, Resume, SessionId, State, Status, parse_set};
use milepost_run::graph::Graph;
use milepost_run::models::Models;
use milepost_run::run::{Budget, End, Entry, Error, Ledger, Runner, Settle, Status as StepStatus};
use serde_json::{Map, Value, json};

use super::cost::{budget, tell_cost};
use super::end::{completed_outputs, finish};
use super::graph::{check, usable};
use super::sessions::{key, policy, sets};
use super::tell::Teller;
use crate::app::App;
use crate::args::{HowToRun, ResumeRun, Run};
use crate::errors::{Failed, Usage};
use crate::out::{plain, shell_word, short};

/// An error of the runner as the command line tells it.
pub fn told(error: Error) -> anyhow::Error {
    match error {
        Error::Engine(error) => error.into(),
        error => match kind(&error) {
            Some(kind) => Failed::with_ways(error.to_string(), Vec::new()).of_kind(kind).into(),
            None => error.into(),
        },
    }
}

/// A word for machines for what a run refuses.
fn kind(error: &Error) -> Option<&'static str> {
    match error {
        Error::Changed { .. } => Some("mismatch"),
        Error::Incompatible { .. } => Some("incompatible"),
        Error::Repeats { .. } => Some("repeats"),
        _ => None,
    }
}

pub async fn run(app: &mut App, args: Run) -> Result<ExitCode> {
    let graph = usable(app, &check(&args.file).await?, &args.file)?;
    let memory = inputs(&graph, &args.input)?;
    let policy = policy(&args.policy)?;
    app.set("model", args.how.model.clone());
    let models = models_for(app, &graph).await?;
    let engine = engine_for(app, &graph).await?;
    let budget = budget(&args.budgets, graph.budget.unwrap_or_default());
    let runner =
        runner(app, &engine, &models, &graph, &args.how, budget).watch(Teller::new(app, &graph, false).watch());
    let (id, end) = match &args.session {
        Some(session) => {
            let id = app.session_to_write(session).await?;
            (id, runner.start_in(id, &graph, memory).await.map_err(told)?)
        }
        None => {
            let title = args.title.unwrap_or_else(|| graph.name.clone());
            let patch = key(args.keyed).patch().title(title);
            let mut state = State::default();
            *state.section_mut("memory") = Value::Object(memory);
            remember_model(&mut state, said_model(args.how.model.clone()).as_deref());
            // Whoever goes on with it may stand elsewhere.
            if let Ok(here) = std::env::current_dir() {
                *state.section_mut("context") = json!({ "workingDirectory": here.display().to_string() });
            }
            runner.start(&graph, NewSession { patch, state, policy, ..NewSession::default() }).await.map_err(told)?
        }
    };
    finish(app, &engine, id, &graph, end).await
}

/// The model that was said for this process alone: whoever goes on elsewhere does not know it.
pub fn said_model(given: Option<String>) -> Option<String> {
    given.or_else(|| std::env::var("MILEPOST_MODEL").ok()).filter(|name| !name.trim().is_empty())
}

/// Notes the model that was said for this session, so that it goes on with the same.
pub fn remember_model(state: &mut State, model: Option<&str>) {
    if let Some(model) = model {
        *state.section_mut("agent") = json!({ "model": model });
    }
}

/// The model that was said for a session when it began.
pub fn remembered_model(state: &State) -> Option<&str> {
    state.pointer("/agent/model").and_then(Value::as_str)
}

/// The values that were given for the shared memory. What the graph does not know is probably misspelt.
fn inputs(graph: &Graph, given: &[String]) -> Result<Map<String, Value>> {
    let mut memory = Map::new();
    for text in given {
        let (path, value) = parse_set(text)?;
        let path = path.to_string();
        let name = path.trim_start_matches('/');
        let name = name.strip_prefix("memory/").unwrap_or(name).to_owned();
        if !graph.memory.contains_key(&name) {
            let known: Vec<&str> = graph.memory.keys().map(String::as_str).collect();
            let near = known.iter().map(|known| (strsim::osa_distance(&name, known), known)).min();
            let instead = match near {
                Some((distance, near)) if distance <= (name.len() / 3).max(1) => format!("did you mean {near}?"),
                _ if known.is_empty() => "its file declares no memory: add one".to_owned(),
                _ => format!("it has {}", known.join(", ")),
            };
            return Err(Usage(format!("{} has no memory key {name:?}: {instead}", graph.name)).into());
        }
        memory.insert(name, value);
    }
    Ok(memory)
}

/// The models of a graph. What is wrong with those that its nodes ask is told before anything is begun.
pub async fn models_for(app: &mut App, graph: &Graph) -> Result<Models> {
    let models = app.models().await?;
    for name in Models::asked_by(graph) {
        let Some(name) = name.as_deref().or(models.usual()) else {
            let why = format!("{} asks a model, and none is set", graph.name);
            let instead = "say --model PROVIDER/MODEL, or set MILEPOST_MODEL, or model in milepost.yaml";
            return Err(Usage(format!("{why}: {instead}")).into());
        };
        models.open(name).await.map_err(|error| Usage(error.to_string()))?;
    }
    Ok(models)
}

/// The engine with the policy of plans for a plan, of chats and graphs else.
pub async fn engine_for(app: &mut App, graph: &Graph) -> Result<Milepost> {
    app.engine_for(if graph.is_plan { Work::Plan } else { Work::Chat }).await
}

/// A runner with everything that was set.
pub fn runner(
    app: &App,
    engine: &Milepost,
    models: &Models,
    graph: &Graph,
    how: &HowToRun,
    budget: Option<Budget>,
) -> Runner {
    let runner = Runner::new(engine).with_models(models, graph).cancel(app.cancel.clone()).patience_ms(how.patience);
    match budget {
        Some(budget) => runner.budget(budget),
        None => runner,
    }
}

pub async fn resume(app: &mut App, args: ResumeRun) -> Result<ExitCode> {
    let (set, policy) = (sets(&args.set)?, policy(&args.policy)?);
    let point: Point = args.checkpoint.as_deref().unwrap_or("latest").parse()?;
    let id = app.session_or_archived(&args.session).await?;
    let engine = app.engine().await?;
    let point = match point {
        Point::Time(_) => Point::Checkpoint(app.mark(&engine, id, &point).await?.checkpoint.id),
        other => other,
    };
    let (state, damaged) = Runner::new(&engine).whole_state(id).await.map_err(told)?;
    tell_damaged(app, &damaged);
    if Ledger::graph_text(&state).is_none() {
        let short = short(id);
        return Err(Usage(format!(
            "session {short} has no run of a graph: go on with it by `milepost chat --session {short}`, or mark it as resumed by `milepost sessions resume {short}`"
        ))
        .into());
    }
    let settle = settled(&state, &args)?;
    app.set("model", args.how.model.clone().or_else(|| remembered_model(&state).map(str::to_owned)));
    let given = match &args.graph {
        Some(file) => Some(usable(app, &check(file).await?, file)?),
        None => None,
    };
    let is_done = engine.store().session(id).await.map_err(milepost::Error::from)?.status == Status::Completed;
    if is_done && !args.reopen && point == Point::Latest && set.is_empty() && given.is_none() {
        let graph = Runner::new(&engine).recorded(id).await.map_err(told)?;
        let outputs = completed_outputs(&engine, id).await?;
        app.out.note(format!("session {} is completed: nothing is left to do", short(id)));
        return finish(app, &engine, id, &graph, End::Completed { outputs }).await;
    }
    let how = Resume { point, set, policy, take_over: args.take_over, reopen: args.reopen, ..Resume::default() };
    let before = Runner::new(&engine).preview(id, &how, given.as_ref(), &settle).await;
    // What is refused here is as it was.
    let mut before = before.map_err(|error| with_ways(error, id, &args, Refused::Before))?;
    let graph = before.graph.clone();
    for change in &before.changes {
        app.out.note(format!("changed since the run began: {}", plain(change)));
    }
    if given.is_none() {
        note_newer_file(app, &graph, &state);
    }
    if args.dry_run || args.repeat_effects {
        for (step, key) in &before.repeats {
            app.out.note(format!("would happen again: {} (key {key})", plain(step)));
        }
    }
    let budget = budget(&args.budgets, before.forecast.budget);
    before.forecast.budget = budget.unwrap_or(before.forecast.budget);
    tell_cost(app, id, &before, args.dry_run)?;
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let models = match before.forecast.steps.is_empty() {
        // What is left to do asks none.
        true => app.models().await?,
        false => models_for(app, &graph).await?,
    };
    app.free_from_the_dead(id).await?;
    let engine = engine_for(app, &graph).await?;
    let runner =
        runner(app, &engine, &models, &graph, &args.how, budget).watch(Teller::new(app, &graph, false).watch());
    let runner = if args.repeat_effects { runner.repeat_effects() } else { runner };
    let outcome = runner.resume(id, how, given.as_ref(), &settle).await;
    let (end, _) = outcome.map_err(|error| match error {
        Error::Repeats { .. } => with_yes(error, id, &args),
        error => with_ways(error, id, &args, Refused::InTheMiddle),
    })?;
    finish(app, &engine, id, &graph, end).await
}

/// Says what of a session is damaged, and passed over.
pub fn tell_damaged(app: &App, damaged: &[String]) {
    for damaged in damaged {
        app.out.note(format!("{} {}", app.out.styles.warn("warning:"), plain(damaged)));
    }
}

/// When a run was refused to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refused {
    /// Before anything was changed.
    Before,
    /// After what was set had been stored, and maybe steps had run.
    InTheMiddle,
}

/// What can be done when a run cannot go on as it was told to: commands.
fn with_ways(error: Error, id: SessionId, args: &ResumeRun, when: Refused) -> anyhow::Error {
    let mut ways = Vec::new();
    match (&error, &args.graph) {
        (Error::Incompatible { nearest, .. }, Some(file)) => {
            let file = file.to_string_lossy();
            let back = |checkpoint| back_to(&short(id), &file, checkpoint);
            ways.extend(nearest.iter().map(|nearest| ("nearest", back(nearest.checkpoint))));
        }
        (Error::Changed { node, .. }, _) => {
            ways.push(("again", format!("milepost resume {}{} --again {}", short(id), same(args), shell_word(node))));
            // Only nodes of the run itself are run again; parts go with them.
            let node = node.split(['/', '#']).next().unwrap_or(node);
            ways.push(("branch", format!("milepost run-again {} {node}", short(id))));
        }
        (Error::Engine(milepost::Error::Store(held @ StoreError::Held { .. })), _) => {
            return Failed::held(held, id, format!("milepost resume {}{} --take-over", short(id), same(args))).into();
        }
        _ => return told(error),
    }
    let is_other = args.graph.is_some() || when == Refused::Before && !args.set.is_empty();
    if is_other {
        ways.push(("unchanged", format!("milepost resume {}", short(id))));
    }
    Failed::with_ways(error.to_string(), ways).of_kind(kind(&error).unwrap_or("error")).into()
}

/// The flags that say with what a run is to go on, as they were given.
fn same(args: &ResumeRun) -> String {
    let with = |name: &str, value: &str| format!(" {name} {}", shell_word(value));
    let mut said: String = args.graph.iter().map(|file| with("--graph", &file.to_string_lossy())).collect();
    let each = [("--set", &args.set), ("--policy", &args.policy), ("--done", &args.done), ("--again", &args.again)];
    for (name, values) in each {
        values.iter().for_each(|value| said.push_str(&with(name, value)));
    }
    if args.reopen {
        said.push_str(" --reopen");
    }
    said
}

/// How to go on where that would let effects happen again.
fn with_yes(error: Error, id: SessionId, args: &ResumeRun) -> anyhow::Error {
    let take_over = if args.take_over { " --take-over" } else { "" };
    let same = same(args) + take_over;
    let mut ways = Vec::new();
    if args.checkpoint.is_some() {
        ways.push(("latest", format!("milepost resume {}{same}", short(id))));
    }
    let from = args.checkpoint.as_ref().map(|from| format!(" --checkpoint {}", shell_word(from))).unwrap_or_default();
    ways.push(("again", format!("milepost resume {}{same}{from} --repeat-effects", short(id))));
    Failed::with_ways(error.to_string(), ways).of_kind("repeats").into()
}

/// The command that goes on with a file from a checkpoint.
pub fn back_to(id: &str, file: &str, checkpoint: CheckpointId) -> String {
    format!("milepost resume {id} --graph {} --checkpoint {}", shell_word(file), short(checkpoint))
}

/// What somebody found out about uncertain steps.
fn settled(state: &State, args: &ResumeRun) -> Result<BTreeMap<String, Settle>> {
    let ledger = Ledger::read(state).map_err(told)?;
    let is_open = |entry: &Entry, settle: &Settle| match entry.status {
        StepStatus::Running | StepStatus::Uncertain | StepStatus::Retrying => true,
        // A question has an answer, not an effect.
        StepStatus::Waiting => *settle == Settle::RunAgain,
        _ => false,
    };
    let mut settle = BTreeMap::new();
    for text in &args.done {
        let (node, value) = match text.split_once('=') {
            Some((node, value)) => {
                (node, serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned())))
            }
            None => (text.as_str(), Value::Null),
        };
        settle.insert(node.to_owned(), Settle::Happened(value));
    }
    for node in &args.again {
        if settle.insert(node.clone(), Settle::RunAgain).is_some() {
            return Err(Usage(format!("step {node:?} cannot be done and run again: say one of them")).into());
        }
    }
    for (node, settle) in &settle {
        if !ledger.line(node).is_some_and(|entry| is_open(entry, settle)) {
            let open: Vec<&str> =
                ledger.nodes().filter(|(_, entry)| is_open(entry, settle)).map(|(id, _)| id).collect();
            let instead = match open.is_empty() {
                true => "none is; resume it without --done and --again".to_owned(),
                false => format!("these are: {}", open.join(", ")),
            };
            return Err(Usage(format!("no attempt of step {node:?} is open: {instead}")).into());
        }
    }
    Ok(settle)
}

/// A run goes on with the graph it was begun with; whoever changed the file since may have meant otherwise.
fn note_newer_file(app: &App, graph: &Graph, state: &State) {
    let is_other = std::fs::metadata(&graph.path).is_ok_and(|found| found.is_file() && found.len() < 1 << 20)
        && std::fs::read_to_string(&graph.path)
            .is_ok_and(|text| *text != *graph.text && !is_the_same(graph, &text, state));
    if is_other {
        let path = plain(&graph.path);
        app.out.note(format!("{path} was changed since; the run goes on as it was: say --graph {path} to change that"));
    }
}

/// Whether a file is what a run was begun with, whose secrets are not in the record: what it says is compared by its fingerprint.
fn is_the_same(graph: &Graph, text: &str, state: &State) -> bool {
    let recorded = state.pointer("/execution/graph/fingerprint").and_then(Value::as_str);
    let now = || milepost_run::graph::check(graph.path.as_ref(), text, &[]).graph.map(|graph| graph.fingerprint());
    milepost::context::redact::token(&graph.text).is_some()
        && recorded.is_some()
        && recorded.map(str::to_owned) == now()
}
