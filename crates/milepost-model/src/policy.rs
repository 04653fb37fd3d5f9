//! When checkpoints are taken and how many are kept.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::Trigger;

/// When checkpoints are taken, how many are kept, what is left out of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Whether checkpoints are taken at all without being asked for.
    pub enabled: bool,
    /// A checkpoint after so many messages; 0 for never.
    pub every_messages: u32,
    /// A checkpoint after so many seconds of activity; 0 for never.
    pub every_seconds: u32,
    /// A checkpoint after so many rounds of a loop; 0 for never.
    pub every_iterations: u32,
    /// Triggers that are off though they are on by default.
    pub off: BTreeSet<Trigger>,
    /// Triggers that are on though they are off by default.
    pub on: BTreeSet<Trigger>,
    /// State keys that are never stored, at any depth.
    pub exclude_keys: BTreeSet<String>,
    /// What is kept of what was taken.
    pub retention: Retention,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            enabled: true,
            every_messages: 10,
            every_seconds: 300,
            every_iterations: 0,
            off: BTreeSet::new(),
            on: BTreeSet::new(),
            exclude_keys: ["api_key", "credentials", "access_token"].map(str::to_owned).into(),
            retention: Retention::default(),
        }
    }
}

impl Policy {
    /// Whether this trigger takes a checkpoint.
    pub fn takes(&self, trigger: &Trigger) -> bool {
        if *trigger == Trigger::Manual {
            return true;
        }
        if !self.enabled || self.off.contains(trigger) {
            return false;
        }
        let off_by_default = match trigger {
            Trigger::EdgeTransition | Trigger::Smart => true,
            Trigger::LoopIteration => self.every_iterations == 0,
            Trigger::Messages => self.every_messages == 0,
            Trigger::Interval => self.every_seconds == 0,
            _ => false,
        };
        !off_by_default || self.on.contains(trigger)
    }
}

/// How many checkpoints a session keeps, and for how long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// At most so many checkpoints a session.
    pub max_checkpoints: u32,
    /// Checkpoints older than this go; 0 keeps them whatever their age.
    pub max_age_days: u32,
    /// How long what was pruned or deleted stays in the trash.
    pub trash_days: u32,
    /// Checkpoints that are not clean go first of all.
    pub clean_only: bool,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_checkpoints: 100, max_age_days: 30, trash_days: 7, clean_only: false }
    }
}
