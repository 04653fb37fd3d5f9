//! What a node can do, as code: the built-in actions and the embedder's.

use std::sync::Arc;

use async_trait::async_trait;
use milepost_model::{SessionId, Timestamp};
use milepost_models::Cancel;
use serde_json::Value;
use tokio::sync::Notify;

use crate::graph::actions::Repeat;

/// One attempt of a step: what an action is given.
#[derive(Debug, Clone)]
pub struct Step {
    /// The session.
    pub session: SessionId,
    /// The node.
    pub node: String,
    /// The round of the node's loop, from 0.
    pub iteration: u32,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The same for every attempt of this step, also after a crash: hand it to whatever has an effect.
    pub key: String,
    /// The node's parameters, templates filled in.
    pub parameters: Value,
    /// The time when the attempt began.
    pub now: Timestamp,
    /// The time when this round of the node was first begun.
    pub since: Timestamp,
    /// Cancelled when the attempt is to end. After a grace time its task is dropped.
    pub cancel: Cancel,
    pub(crate) progress: Arc<Notify>,
}

impl Step {
    /// Says that the attempt is alive: its no-progress timeout begins anew.
    pub fn progress(&self) {
        self.progress.notify_one();
    }
}

/// Why an attempt did not give a value.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Failed {
    /// It may work the next time.
    Transient(String),
    /// It will not work the next time either.
    Fatal(String),
    /// Not before a moment: a limit. It counts as no attempt.
    Limited {
        /// When to try again.
        until: Timestamp,
        /// Why.
        why: String,
    },
    /// It waits for a time or a person, durably. It is run again when the time has come, or when the session is resumed.
    Waits {
        /// Until when; for ever when there is none.
        until: Option<Timestamp>,
        /// For what.
        what: String,
    },
}

/// Something that a node can do.
#[async_trait]
pub trait Action: Send + Sync {
    /// What it means to run it a second time with these parameters, when nobody knows whether the first time happened.
    fn repeat(&self, parameters: &Value) -> Repeat {
        let _ = parameters;
        Repeat::Effect
    }

    /// Runs one attempt.
    async fn run(&self, step: Step) -> Result<Value, Failed>;
}
