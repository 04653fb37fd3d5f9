//! What a node can do, as code: the built-in actions and the embedder's.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use milepost_document::Node as Tree;
use milepost_model::{Message, SessionId, Timestamp};
use milepost_models::Cancel;
use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::budget::Purse;
use super::parts::Parts;
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
    pub(crate) said: Said,
    pub(crate) parts: Parts,
    pub(crate) purse: Arc<Purse>,
    /// What templates see.
    pub(crate) names: Arc<Map<String, Value>>,
    /// The node's parameters as its file has them, which is in an order.
    pub(crate) written: Option<Arc<Tree>>,
}

impl Step {
    /// Says that the attempt is alive: its no-progress timeout begins anew.
    pub fn progress(&self) {
        self.progress.notify_one();
    }

    /// Says something in the session: it is stored with the end of the attempt, whatever that is. What the messages say
    /// of tokens and money counts towards the session's budget.
    pub fn say(&self, messages: impl IntoIterator<Item = Message>) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).extend(messages);
    }
}

/// What is said in a step.
pub(crate) type Said = Arc<Mutex<Vec<Message>>>;

/// Takes what was said.
pub(crate) fn taken(said: &Said) -> Vec<Message> {
    std::mem::take(&mut *said.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A part of a step that cannot go on by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenPart {
    /// Its whole name, such as `agent/turn_2.1.ask`.
    pub name: String,
    /// Its key.
    pub key: String,
    /// Why.
    pub why: OpenBecause,
}

/// Why a part of a step cannot go on by itself.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenBecause {
    /// It waits for a time or a person.
    Waits {
        /// Until when; for ever when there is none.
        until: Option<Timestamp>,
        /// For what.
        what: String,
    },
    /// Nobody knows whether it had its effect.
    Uncertain,
}

/// What is known of an attempt that came to its end and failed all the same.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct After {
    /// Why it failed.
    pub why: String,
    /// What it gave, as far as that can be kept.
    pub output: Option<Value>,
    /// It will not work the next time either, also where trying again is harmless.
    pub is_final: bool,
    /// Not before a moment: where trying again is harmless, it is tried then.
    pub until: Option<Timestamp>,
}

/// Why an attempt did not give a value.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Failed {
    /// It may work the next time.
    Transient(String),
    /// It came to its end and says that it failed, as a command does with its code. It may work the next time.
    Said {
        /// Why, in a line.
        why: String,
        /// What it gave all the same: the end of it is kept with the failure, and a model that called it sees it.
        gave: Value,
    },
    /// It will not work the next time either.
    Fatal(String),
    /// Nobody knows whether it had its effect: the other side was lost in the middle. It is tried again only where that is
    /// harmless.
    Uncertain(String),
    /// It had its effect, or may have had, and failed after it: what it gave cannot be used. It is tried again only where that is
    /// harmless; elsewhere somebody is asked.
    AfterEffect(Box<After>),
    /// A part of it was begun as another, and is open: whoever knows its key would take it for the same. It counts as no attempt.
    Changed {
        /// The part, by its whole name.
        node: String,
        /// What is different.
        difference: String,
    },
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
    /// Parts of it wait, or nobody knows whether they had their effect. It counts as no attempt.
    Parts(Vec<OpenPart>),
    /// The session is to pause, with this reason, and the step to go on when it is resumed. It counts as no attempt.
    Pause(String),
}

/// Something that a node can do.
#[async_trait]
pub trait Action: Send + Sync {
    /// What it means to run it a second time with these parameters, when nobody knows whether the first time happened.
    fn repeat(&self, parameters: &Value) -> Repeat {
        let _ = parameters;
        Repeat::Effect
    }

    /// Whether its key reaches somebody who takes what comes under the same key for the same: then it is never begun with another
    /// input under a key that was used. Actions that keep their key to themselves say no.
    fn is_keyed(&self) -> bool {
        true
    }

    /// Whether it never blocks or computes for long, not even before it first waits: then the run may begin it itself, without
    /// a task of its own.
    fn is_quick(&self) -> bool {
        false
    }

    /// Runs one attempt.
    async fn run(&self, step: Step) -> Result<Value, Failed>;
}
