//! The `runner` group: what a durable step costs beside what it does, how soon a run goes on, and the same chain of
//! nodes run by a peer.
//!
//! `bench/README.md` says what each figure means.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use milepost::{Milepost, NewSession, Resume, SessionId};
use milepost_models::Cancel;
use milepost_run::graph::actions::Repeat;
use milepost_run::graph::{Graph, check};
use milepost_run::run::{Action, End, Failed, Runner, Step};
use milepost_store::block_on;
use serde_json::Value;

use crate::Result;
use crate::bare::BareAppender;
use crate::milepost::url_in;
use crate::peers::chain;
use crate::report::{Report, detail};
use crate::stats::{Samples, median, summary};

/// How much is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Steps of a run.
    pub steps: usize,
    /// Runs of each kind; medians count.
    pub runs: usize,
    /// Times that a run goes on.
    pub resumes: usize,
    /// Whether values are held against their bars.
    pub judged: bool,
}

impl Plan {
    /// What the bars are about.
    pub fn full() -> Self {
        Self { steps: 1000, runs: 5, resumes: 20, judged: true }
    }

    /// Enough to see that everything runs; the values mean nothing.
    pub fn quick() -> Self {
        Self { steps: 30, runs: 1, resumes: 3, judged: false }
    }
}

/// Where things are run.
#[derive(Debug, Clone)]
pub struct Place {
    /// The disk to measure.
    pub dir: PathBuf,
    /// The Python that has the peer.
    pub python: PathBuf,
}

/// A chain of nodes that do nothing.
fn chain_of(steps: usize) -> Result<Graph> {
    let mut text = String::from("name: chain\nsteps:\n");
    for number in 0..steps {
        let needs = if number == 0 { String::new() } else { format!(", dependencies: [n{}]", number - 1) };
        writeln!(text, "  - {{id: n{number}, action: noop{needs}}}")?;
    }
    let checked = check("chain.yaml".as_ref(), &text, &["noop"]);
    let why = checked.found.first().map(ToString::to_string).unwrap_or_default();
    Ok(checked.graph.ok_or(why)?)
}

/// What a node does: nothing, or a bare append, timed.
#[derive(Default)]
struct Noop {
    bare: Option<Mutex<(BareAppender, Samples)>>,
    /// When the first one began.
    began: Mutex<Option<Instant>>,
    /// Stops the run once it has begun.
    stop: Option<Cancel>,
}

#[async_trait::async_trait]
impl Action for Noop {
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Harmless
    }

    fn is_quick(&self) -> bool {
        true
    }

    async fn run(&self, _: Step) -> Result<Value, Failed> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        if let Some(bare) = &self.bare {
            let mut bare = bare.lock().unwrap_or_else(PoisonError::into_inner);
            let took = bare.0.append().map_err(|error| Failed::Fatal(error.to_string()))?;
            bare.1.push(took);
        }
        if let Some(stop) = &self.stop {
            stop.cancel();
        }
        Ok(Value::Null)
    }
}

/// Runs the group; returns how many figures fell short.
pub fn run(plan: &Plan, place: &Place) -> Result<usize> {
    let mut report = if plan.judged { Report::new("runner") } else { Report::unjudged("runner") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    std::fs::create_dir_all(&place.dir)?;
    // As the command line does: this thread only waits for the run, so that the store may work on it.
    let _inside = runtime.enter();
    block_on(steps(plan, place, &mut report))?;
    block_on(resumes(plan, place, &mut report))?;
    peer(plan, place, &mut report)?;
    Ok(report.short())
}

/// One run from its beginning to its end.
async fn once(graph: &Graph, dir: &Path, action: &Arc<Noop>) -> Result<(SessionId, Duration)> {
    let engine = Milepost::open(&url_in(dir)).await?;
    let start = Instant::now();
    let (id, end) = Runner::new(&engine)
        .action("noop", action.clone() as Arc<dyn Action>)
        .start(graph, NewSession::default())
        .await?;
    let took = start.elapsed();
    engine.close().await?;
    match end {
        End::Completed { .. } => Ok((id, took)),
        other => Err(format!("the run ended as {other:?}").into()),
    }
}

/// `step_vs_bare`: what a step takes beside its action / a bare append, one in each step.
async fn steps(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let graph = chain_of(plan.steps)?;
    let mut ratios = Vec::new();
    for _ in 0..plan.runs {
        let dir = tempfile::tempdir_in(&place.dir)?;
        let bare = Mutex::new((BareAppender::create(dir.path())?, Samples::default()));
        let action = Arc::new(Noop { bare: Some(bare), ..Noop::default() });
        let (_, took) = once(&graph, dir.path(), &action).await?;
        let Some(bare) = &action.bare else { continue };
        let bare = bare.lock().unwrap_or_else(PoisonError::into_inner);
        let own = took.saturating_sub(bare.1.total()).as_secs_f64() * 1000.0 / plan.steps as f64;
        detail(format_args!("a step: {own:.3} ms beside its action; bare appends: {}", summary(&bare.1)));
        ratios.push(own / bare.1.p50_ms());
    }
    report.at_most("step_vs_bare", median(&ratios), 3.0);
    Ok(())
}

/// `resume_ms`: from opening the store to the first new step of a plan of which nine tenths are done.
async fn resumes(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let graph = chain_of(plan.steps)?;
    let dir = tempfile::tempdir_in(&place.dir)?;
    let engine = Milepost::open(&url_in(dir.path())).await?;
    // A step is one append, with a boundary before and after it.
    let last = (plan.steps * 9 / 10 * 2) as u64;
    let stopped = Runner::new(&engine)
        .action("noop", Arc::new(Noop::default()))
        .at_boundary(Arc::new(move |number| number > last))
        .start(&graph, NewSession::default())
        .await;
    if stopped.is_ok() {
        return Err("the run did not stop where it was told to".into());
    }
    let page = engine.sessions(&milepost::SessionQuery::default()).await?;
    let id = page.sessions.first().ok_or("the run left no session")?.id;
    engine.close().await?;
    let mut samples = Samples::default();
    for _ in 0..plan.resumes {
        let stop = Cancel::new();
        let action = Arc::new(Noop { stop: Some(stop.clone()), ..Noop::default() });
        let start = Instant::now();
        let engine = Milepost::open(&url_in(dir.path())).await?;
        let how = Resume { take_over: true, ..Resume::latest() };
        let runner = Runner::new(&engine).action("noop", action.clone() as Arc<dyn Action>).cancel(stop);
        runner.resume(id, how, None, &BTreeMap::new()).await?;
        let began = *action.began.lock().unwrap_or_else(PoisonError::into_inner);
        samples.push(began.ok_or("no step was begun")?.duration_since(start));
        engine.close().await?;
    }
    detail(format_args!("from opening the store to the first new step: {}", summary(&samples)));
    report.at_most("resume_ms", samples.p50_ms(), 50.0);
    Ok(())
}

/// `steps_per_s_vs_langgraph`: steps a second of the chain / those of LangGraph with its SqliteSaver.
fn peer(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let graph = chain_of(plan.steps)?;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for number in 0..plan.runs.min(3) {
        let dir = tempfile::tempdir_in(&place.dir)?;
        let (_, took) = block_on(once(&graph, dir.path(), &Arc::default()))?;
        own.push(plan.steps as f64 / took.as_secs_f64());
        let told = chain(&place.python, plan.steps, dir.path(), "async")?;
        others.push(plan.steps as f64 / told.seconds);
        if number == 0 {
            detail(format_args!("langgraph: {}", told.all));
            let sync = chain(&place.python, plan.steps, dir.path(), "sync")?;
            detail(format_args!("langgraph, waiting for each checkpoint: {}", sync.all));
        }
    }
    let (own, other) = (median(&own), median(&others));
    detail(format_args!("steps a second: {own:.0}, and {other:.0} of the peer"));
    report.at_least("steps_per_s_vs_langgraph", own / other, 5.0);
    Ok(())
}
