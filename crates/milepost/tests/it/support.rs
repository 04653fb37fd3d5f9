//! What many tests need: engines in scratch places, with clocks that the tests move.

use std::sync::Arc;

use milepost::model::{ManualClock, Source, Timestamp};
use milepost::{EngineOptions, Message, Milepost, Role};

/// A moment to begin with: 2026-01-01.
pub const START: Timestamp = Timestamp(1_767_225_600_000);

pub struct Scratch {
    pub dir: tempfile::TempDir,
    pub clock: Arc<ManualClock>,
    pub options: EngineOptions,
}

impl Scratch {
    pub fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let mut options = EngineOptions::default();
        options.store.source = Some(Source::seeded(1, Arc::clone(&clock)));
        options.holder = "a test".into();
        Self { dir: tempfile::tempdir().unwrap(), clock, options }
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("milepost.db")
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    pub async fn open(&self) -> Milepost {
        Milepost::open_with(&self.url(), self.options.clone()).await.unwrap()
    }
}

pub fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

pub fn assistant(text: &str) -> Message {
    Message::new(Role::Assistant, text)
}

/// Nothing here is an adapter's.
pub async fn no_adapters(_: &milepost::store::Store) -> Result<milepost::store::Redacted, milepost::store::Error> {
    Ok(Default::default())
}
