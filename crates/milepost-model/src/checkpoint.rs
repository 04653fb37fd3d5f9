//! Checkpoints and why they are taken.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Channel, CheckpointId, Hash};

macro_rules! triggers {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a checkpoint was taken.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum Trigger {
            $($(#[$doc])* $variant,)*
            /// A reason of the caller's own.
            Other(String),
        }

        impl Trigger {
            /// The word for it.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Trigger::$variant => $name,)*
                    Trigger::Other(name) => name,
                }
            }
            /// The triggers Milepost knows.
            pub const KNOWN: &'static [Trigger] = &[$(Trigger::$variant),*];
        }

        impl From<String> for Trigger {
            fn from(name: String) -> Self {
                match name.as_str() {
                    $($name => Trigger::$variant,)*
                    _ => Trigger::Other(name),
                }
            }
        }
    };
}

triggers! {
    /// The session began.
    Initial = "initial",
    /// A person or program asked for it.
    Manual = "manual",
    /// The session was paused.
    Pause = "pause",
    /// A model or a tool failed.
    Error = "error",
    /// A rate limit was met.
    RateLimit = "rate_limit",
    /// Something worth naming was reached.
    Milestone = "milestone",
    /// A phase was finished.
    PhaseComplete = "phase_complete",
    /// The work is done.
    Final = "final",
    /// So many messages were added.
    Messages = "messages",
    /// So much time went by.
    Interval = "interval",
    /// A node is about to run.
    NodeStart = "node_start",
    /// A node has run.
    NodeComplete = "node_complete",
    /// A step has run.
    Step = "step",
    /// An edge was taken.
    EdgeTransition = "edge_transition",
    /// A loop went round.
    LoopIteration = "loop_iteration",
    /// The graph calls this point safe.
    SafePoint = "safe_point",
    /// Before a person is waited for.
    UserCheckpoint = "user_checkpoint",
    /// Something expensive or risky is next, or a lot has changed.
    Smart = "smart",
    /// The state before a restore, a branch or a take-over.
    Restore = "restore",
}

impl Trigger {
    /// Retention leaves checkpoints of these triggers alone.
    pub fn is_kept(&self) -> bool {
        matches!(self, Trigger::Manual | Trigger::Milestone | Trigger::PhaseComplete)
    }
}

impl From<Trigger> for String {
    fn from(trigger: Trigger) -> String {
        trigger.as_str().to_owned()
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a session can go on from a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resumable {
    /// It can.
    #[default]
    Yes,
    /// It cannot, for this reason.
    No(String),
}

impl Resumable {
    /// Whether it can.
    pub fn is_yes(&self) -> bool {
        matches!(self, Resumable::Yes)
    }
}

/// A mark in a timeline: it names the conversation, the state and the files at its position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its name.
    pub id: CheckpointId,
    /// Which checkpoint of its session it is, counted from 1 along the timeline and its parents.
    pub number: u64,
    /// Why it was taken.
    pub trigger: Trigger,
    /// A short name given by a person or program; labelled checkpoints are not pruned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What was going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Nothing was under way when it was taken: no open tool call, no half-done step.
    pub clean: bool,
    /// Whether a session can go on from here.
    #[serde(default, skip_serializing_if = "Resumable::is_yes")]
    pub resumable: Resumable,
    /// How many messages each channel had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<Channel, u64>,
    /// The hash of the state it names.
    pub state: Hash,
    /// Whatever else the caller keeps with it.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Checkpoint {
    /// A clean, resumable checkpoint. Number, counts and the state's hash are filled in by the store.
    pub fn new(id: CheckpointId, trigger: Trigger) -> Self {
        Self {
            id,
            number: 0,
            trigger,
            label: None,
            description: None,
            clean: true,
            resumable: Resumable::Yes,
            counts: BTreeMap::new(),
            state: Hash::default(),
            extra: Map::new(),
        }
    }

    /// Messages of all channels up to here.
    pub fn messages(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Retention leaves it alone: it has a label, or was asked for.
    pub fn is_kept(&self) -> bool {
        self.label.is_some() || self.trigger.is_kept()
    }
}
