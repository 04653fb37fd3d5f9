//! What many tests need: stores in scratch places, sources that replay, short ways to append.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use milepost_model::{ManualClock, Message, Role, Source, State, Timestamp, Trigger};
use milepost_store::{Append, Claim, NewMark, NewSession, Options, SessionWriter, Store};
use serde_json::Value;

/// A moment to begin with: 2026-01-01.
pub const START: Timestamp = Timestamp(1_767_225_600_000);

/// A store in a scratch directory, with a clock that the test moves.
pub struct Scratch {
    pub dir: tempfile::TempDir,
    pub clock: Arc<ManualClock>,
    pub options: Options,
}

impl Scratch {
    pub fn new() -> Self {
        Self::seeded(1)
    }

    pub fn seeded(seed: u64) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let mut options = Options::default();
        options.source = Some(Source::seeded(seed, Arc::clone(&clock)));
        Self { dir: tempfile::tempdir().unwrap(), clock, options }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("milepost.db")
    }

    pub fn url(&self) -> String {
        url(&self.path())
    }

    pub async fn open(&self) -> Store {
        Store::open(&self.url(), self.options.clone()).await.unwrap()
    }
}

pub fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

pub fn claim() -> Claim {
    Claim::new("a test")
}

pub fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

pub fn state(value: Value) -> State {
    value.try_into().unwrap()
}

pub async fn create(store: &Store) -> SessionWriter {
    store.create(NewSession::default(), &claim()).await.unwrap()
}

/// A message, a state and a mark, as an agent's step would write them.
pub fn step(number: u64) -> Append {
    Append::new()
        .message(user(&format!("step {number}")))
        .state(state(serde_json::json!({ "memory": { "step": number } })))
        .mark(NewMark::new(Trigger::Step))
}
