//! When checkpoints are taken and how many are kept; and changes to that, for one agent, session or run.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Saving does not make the agent wait: marks, state and files may lag behind, what was done to the outside never does.
    pub asynchronous: bool,
    /// What a checkpoint holds.
    pub include: Include,
    /// What the trigger `smart` looks for.
    pub smart: Smart,
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
            asynchronous: true,
            include: Include::default(),
            smart: Smart::default(),
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

    /// Turns a trigger on or off.
    pub fn set_trigger(&mut self, trigger: &Trigger, takes: bool) {
        self.on.remove(trigger);
        self.off.remove(trigger);
        let on_by_default = !matches!(trigger, Trigger::EdgeTransition | Trigger::Smart | Trigger::LoopIteration);
        if takes && !on_by_default {
            self.on.insert(trigger.clone());
        }
        // Rounds of a loop may also be counted, so that off has to be said.
        if !takes && (on_by_default || *trigger == Trigger::LoopIteration) {
            self.off.insert(trigger.clone());
        }
    }

    /// This policy with a change. Keys that were left out stay left out: a change only adds to them.
    #[must_use]
    pub fn with(&self, patch: &PolicyPatch) -> Self {
        let mut policy = self.clone();
        patch.apply(&mut policy);
        policy
    }
}

/// What a checkpoint holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Include {
    /// The conversations of nodes and subagents, beside the main one.
    pub conversations: bool,
    /// The whole shared memory.
    pub memory: bool,
    /// The files of the working directory.
    pub files: bool,
}

impl Default for Include {
    fn default() -> Self {
        Self { conversations: true, memory: true, files: false }
    }
}

/// What the trigger `smart` looks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Smart {
    /// A checkpoint after a node that took longer than this; 0 for never.
    pub slow_node_ms: u64,
    /// A checkpoint before a node of one of these kinds.
    pub risky_kinds: BTreeSet<String>,
    /// A checkpoint after more than so many memory keys have changed; 0 for never.
    pub changed_keys: u32,
}

impl Default for Smart {
    fn default() -> Self {
        Self { slow_node_ms: 30_000, risky_kinds: ["api", "tool"].map(str::to_owned).into(), changed_keys: 10 }
    }
}

impl Smart {
    /// Whether a node that took so long was slow.
    pub fn is_slow(&self, took_ms: u64) -> bool {
        self.slow_node_ms > 0 && took_ms > self.slow_node_ms
    }

    /// Whether a node of this kind is risky.
    pub fn is_risky(&self, kind: &str) -> bool {
        self.risky_kinds.contains(kind)
    }

    /// Whether so many changed memory keys are many.
    pub fn is_large_change(&self, changed_keys: usize) -> bool {
        self.changed_keys > 0 && changed_keys > self.changed_keys as usize
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
    /// A run looks for what to prune after so many nodes; 0 for only at its end.
    pub prune_every_nodes: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_checkpoints: 100, max_age_days: 30, trash_days: 7, clean_only: false, prune_every_nodes: 10 }
    }
}

macro_rules! policy_patch {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $($field:ident).+,)*) => {
        /// A change to a policy: what it does not name stays. An agent, a session and a run may each have one.
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct PolicyPatch {
            $($(#[$doc])*
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $name: Option<$type>,)*
            /// Triggers turned on or off.
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            pub triggers: BTreeMap<Trigger, bool>,
            /// Further state keys that are never stored.
            #[serde(skip_serializing_if = "BTreeSet::is_empty")]
            pub exclude_keys: BTreeSet<String>,
        }

        impl PolicyPatch {
            fn apply(&self, policy: &mut Policy) {
                $(if let Some(value) = &self.$name {
                    policy.$($field).+.clone_from(value);
                })*
                for (trigger, takes) in &self.triggers {
                    policy.set_trigger(trigger, *takes);
                }
                policy.exclude_keys.extend(self.exclude_keys.iter().cloned());
            }

            /// This change and then another, as one.
            #[must_use]
            pub fn then(mut self, later: Self) -> Self {
                $(self.$name = later.$name.or(self.$name);)*
                self.triggers.extend(later.triggers);
                self.exclude_keys.extend(later.exclude_keys);
                self
            }
        }
    };
}

policy_patch! {
    /// Whether checkpoints are taken at all without being asked for.
    enabled: bool => enabled,
    /// A checkpoint after so many messages.
    every_messages: u32 => every_messages,
    /// A checkpoint after so many seconds of activity.
    every_seconds: u32 => every_seconds,
    /// A checkpoint after so many rounds of a loop.
    every_iterations: u32 => every_iterations,
    /// Saving does not make the agent wait.
    asynchronous: bool => asynchronous,
    /// Checkpoints hold the conversations of nodes and subagents.
    include_conversations: bool => include.conversations,
    /// Checkpoints hold the whole shared memory.
    include_memory: bool => include.memory,
    /// Checkpoints hold the files of the working directory.
    include_files: bool => include.files,
    /// A node that took longer than this was slow.
    slow_node_ms: u64 => smart.slow_node_ms,
    /// The kinds of nodes that are risky.
    risky_kinds: BTreeSet<String> => smart.risky_kinds,
    /// More changed memory keys than this are many.
    changed_keys: u32 => smart.changed_keys,
    /// At most so many checkpoints a session.
    max_checkpoints: u32 => retention.max_checkpoints,
    /// Checkpoints older than this go.
    max_age_days: u32 => retention.max_age_days,
    /// How long what was pruned or deleted stays in the trash.
    trash_days: u32 => retention.trash_days,
    /// Checkpoints that are not clean go first of all.
    clean_only: bool => retention.clean_only,
    /// A run looks for what to prune after so many nodes.
    prune_every_nodes: u32 => retention.prune_every_nodes,
}

impl PolicyPatch {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
