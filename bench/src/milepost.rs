//! Milepost as its users call it: one append a step, with two messages, the state and a checkpoint.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use milepost_model::{Delta, Message, Role, SessionId, State, Trigger};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::{Append, Claim, NewMark, NewSession, Options, SessionWriter, Store, block_on};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;

use crate::saver::{Counter, Load, Saver, Throughput, steps_of_load};
use crate::workload::{Step, Workload};
use crate::{Error, Result};

/// The section of the state that holds the workload's keys.
pub const SECTION: &str = "memory";
/// The name of the store's file.
pub const FILE: &str = "milepost.db";

/// How a save tells the store what changed in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hand {
    /// The whole state, of which the store finds out the change: what most callers do, and what the peers are given.
    Whole,
    /// The change.
    Delta,
}

impl Hand {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Hand::Whole => "whole state",
            Hand::Delta => "delta",
        }
    }
}

/// The URL of the store in a directory.
pub fn url_in(dir: &Path) -> String {
    format!("sqlite:{}", dir.join(FILE).display())
}

/// Opens the store in a directory, or makes it.
pub async fn open(dir: &Path, text_index: bool) -> Result<Store> {
    open_at(&url_in(dir), text_index).await
}

/// Opens the store at a URL, or makes it.
pub async fn open_at(url: &str, text_index: bool) -> Result<Store> {
    let mut options = Options::default();
    options.text_index = text_index;
    Ok(Store::open(url, options).await?)
}

/// Who the benchmarks are, to the store.
pub fn claim() -> Claim {
    Claim::new("milepost-bench").take_over()
}

/// One session that is being saved.
pub struct Session {
    writer: SessionWriter,
    state: Arc<State>,
    hand: Hand,
}

impl Session {
    /// Begins a session with the workload's first state, without a checkpoint.
    pub async fn begin(store: &Store, workload: &Workload, hand: Hand) -> Result<Self> {
        let writer = store.create(NewSession::default(), &claim()).await?;
        let mut state = State::new();
        *state.section_mut(SECTION) = Value::Object(workload.initial_state().clone());
        let state = Arc::new(state);
        writer.append(Append::new().state(Arc::clone(&state))).await?;
        Ok(Self { writer, state, hand })
    }

    /// Goes on with a session, by deltas.
    pub async fn resume(store: &Store, id: SessionId) -> Result<Self> {
        Ok(Self { writer: store.write(id, &claim()).await?, state: Arc::default(), hand: Hand::Delta })
    }

    /// Its id.
    pub fn id(&self) -> SessionId {
        self.writer.id()
    }

    /// Saves one step.
    pub async fn save(&mut self, step: Step) -> Result<()> {
        let append = self.add(Append::new(), step)?;
        self.writer.append(append).await?;
        Ok(())
    }

    /// Saves many steps by one append, each with its checkpoint.
    pub async fn save_together(&mut self, steps: impl IntoIterator<Item = Step>) -> Result<()> {
        let append = steps.into_iter().try_fold(Append::new(), |append, step| self.add(append, step))?;
        self.writer.append(append).await?;
        Ok(())
    }

    fn add(&mut self, append: Append, step: Step) -> Result<Append> {
        let Step { messages: [user, assistant], key, value } = step;
        let append = append
            .message(Message::new(Role::User, user.content))
            .message(Message::new(Role::Assistant, assistant.content));
        let append = match self.hand {
            Hand::Whole => {
                let state = Arc::make_mut(&mut self.state);
                let section = state.section_mut(SECTION).as_object_mut().ok_or("the state has no section")?;
                section.insert(key, value);
                append.state(Arc::clone(&self.state))
            }
            Hand::Delta => append.delta(Delta::builder().set([SECTION, &key], value).build()?),
        };
        Ok(append.mark(NewMark::new(Trigger::Step)))
    }

    /// Gives the session back.
    pub async fn release(self) -> Result<()> {
        Ok(self.writer.release().await?)
    }
}

/// A store with one session, saved from one thread.
pub struct Milepost {
    /// What saves run on when they are made from async code.
    runtime: Option<Runtime>,
    /// The store.
    pub store: Store,
    /// The session.
    pub session: Session,
}

impl Milepost {
    /// A new store in `dir` with a session that begins as `workload` does.
    pub fn create(dir: &Path, workload: &Workload, text_index: bool, hand: Hand) -> Result<Self> {
        Self::create_at(&url_in(dir), workload, text_index, hand)
    }

    /// A new store at `url` with a session that begins as `workload` does.
    pub fn create_at(url: &str, workload: &Workload, text_index: bool, hand: Hand) -> Result<Self> {
        let (store, session) = block_on(async {
            let store = open_at(url, text_index).await?;
            let session = Session::begin(&store, workload, hand).await?;
            Ok::<_, Error>((store, session))
        })?;
        Ok(Self { runtime: None, store, session })
    }

    /// Saves from async code, on one thread, instead of blocking this one.
    pub fn from_async(self) -> Result<Self> {
        Ok(Self { runtime: Some(Builder::new_current_thread().build()?), ..self })
    }

    /// Indexes the texts that were not indexed yet, as any search does; how long that took.
    pub fn index_texts(&self) -> Result<std::time::Duration> {
        let start = Instant::now();
        let any = Term { text: "anything".to_owned(), prefix: false };
        let query = TextQuery { terms: vec![any], sessions: Vec::new(), limit: 1, ..TextQuery::default() };
        block_on(self.store.backend().search(self.store.workspace(), query))?;
        Ok(start.elapsed())
    }

    /// Gives the session back and closes the store; how long that took.
    pub fn close(self) -> Result<std::time::Duration> {
        let start = Instant::now();
        block_on(async {
            self.session.release().await?;
            self.store.close().await?;
            Ok::<_, Error>(())
        })?;
        Ok(start.elapsed())
    }
}

impl Saver for Milepost {
    fn save(&mut self, step: Step) -> Result<()> {
        match &self.runtime {
            None => block_on(self.session.save(step)),
            Some(runtime) => runtime.block_on(self.session.save(step)),
        }
    }
}

/// Runs a load on a new store at `url`, as a server would: a task for each session, a thread for each core.
pub fn save_at_once(load: Load, seed: u64, url: &str, text_index: bool, hand: Hand) -> Result<Throughput> {
    let runtime = Builder::new_multi_thread().build()?;
    runtime.block_on(async {
        let store = open_at(url, text_index).await?;
        let barrier = Arc::new(Barrier::new(load.sessions));
        let mut tasks = Vec::new();
        for number in 0..load.sessions as u64 {
            let session = Session::begin(&store, &Workload::new(seed, number), hand).await?;
            let task = save_for_a_while(load, session, steps_of_load(seed, number), Arc::clone(&barrier));
            tasks.push(tokio::spawn(task));
        }
        let mut counters = Vec::new();
        for task in tasks {
            counters.push(task.await??);
        }
        store.close().await?;
        Ok(Throughput::of(load, counters))
    })
}

async fn save_for_a_while(
    load: Load,
    mut session: Session,
    steps: Vec<Step>,
    barrier: Arc<Barrier>,
) -> Result<Counter> {
    barrier.wait().await;
    let mut counter = Counter::start(load);
    for step in steps.iter().cycle() {
        let step = step.clone();
        let start = Instant::now();
        session.save(step).await?;
        if !counter.count(start) {
            break;
        }
    }
    Ok(counter)
}
