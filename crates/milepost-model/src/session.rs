//! Sessions: what a list shows of them, and how that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Channel, CheckpointId, Position, SessionId, TimelineId, Timestamp};

/// How a session is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It is being worked on.
    #[default]
    Active,
    /// It was stopped on purpose and can go on.
    Paused,
    /// It waits for a person, a limit or a timer.
    Waiting,
    /// It is done.
    Completed,
    /// It stopped on an error.
    Failed,
    /// It was given up.
    Cancelled,
}

impl Status {
    /// Every status.
    pub const ALL: [Status; 6] =
        [Status::Active, Status::Paused, Status::Waiting, Status::Completed, Status::Failed, Status::Cancelled];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Active => "active",
            Status::Paused => "paused",
            Status::Waiting => "waiting",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Cancelled => "cancelled",
        }
    }

    /// The status with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a session that is a branch came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// The session it was branched from.
    pub session: SessionId,
    /// The last entry they share.
    pub at: Position,
}

/// A session as a list shows it. Derived from the log, and can be rebuilt from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its name.
    pub id: SessionId,
    /// The timeline that goes on.
    pub head: TimelineId,
    /// How it is doing.
    pub status: Status,
    /// When it began.
    pub created: Timestamp,
    /// When the last entry was added.
    pub active: Timestamp,
    /// Messages up to the head, by channel.
    pub counts: BTreeMap<Channel, u64>,
    /// Checkpoints taken up to the head, also those pruned since.
    pub checkpoints: u64,
    /// The newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// Where it was branched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
    /// When it was put into the trash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trashed: Option<Timestamp>,
    /// Kept only because branches need its beginning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The beginning of the last message's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// What it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The project it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The kind of agent that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The feature it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature: Option<String>,
    /// The task it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The state of that task it works on (`planning`, `in_dev`, …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub tags: BTreeSet<String>,
    /// Whatever else was set.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Session {
    /// The longest preview, in characters.
    pub const PREVIEW_CHARS: usize = 120;

    /// A session that has just begun.
    pub fn new(id: SessionId, head: TimelineId, created: Timestamp) -> Self {
        Self {
            id,
            head,
            status: Status::Active,
            created,
            active: created,
            counts: BTreeMap::new(),
            checkpoints: 0,
            checkpoint: None,
            branch: None,
            trashed: None,
            hidden: false,
            preview: None,
            title: None,
            project: None,
            agent: None,
            feature: None,
            task: None,
            stage: None,
            error: None,
            tags: BTreeSet::new(),
            extra: Map::new(),
        }
    }

    /// Messages of all channels.
    pub fn messages(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Takes over what a patch says.
    pub fn patch(&mut self, patch: &SessionPatch) {
        for (key, value) in &patch.0 {
            let text = || value.as_str().map(str::to_owned);
            match key.as_str() {
                "title" => self.title = text(),
                "project" => self.project = text(),
                "agent" => self.agent = text(),
                "feature" => self.feature = text(),
                "task" => self.task = text(),
                "stage" => self.stage = text(),
                "error" => self.error = text(),
                "status" => self.status = value.as_str().and_then(Status::from_name).unwrap_or(self.status),
                "tags" => {
                    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
                    self.tags = list.iter().filter_map(|tag| tag.as_str().map(str::to_owned)).collect();
                }
                "trashed" => self.trashed = value.as_i64().map(Timestamp),
                "hidden" => self.hidden = value.as_bool().unwrap_or(false),
                _ if value.is_null() => {
                    self.extra.remove(key);
                }
                _ => {
                    self.extra.insert(key.clone(), value.clone());
                }
            }
        }
    }
}

/// A change to what a list shows of a session. Recorded in the log as an event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionPatch(pub Map<String, Value>);

macro_rules! text_fields {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(self, text: impl Into<String>) -> Self {
            self.with(stringify!($name), Value::String(text.into()))
        })*
    };
}

impl SessionPatch {
    /// Nothing changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a field of any name; null removes it.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: Value) -> Self {
        self.0.insert(key.into(), value);
        self
    }

    text_fields! {
        /// Sets the title.
        title,
        /// Sets the project.
        project,
        /// Sets the kind of agent.
        agent,
        /// Sets the feature.
        feature,
        /// Sets the task.
        task,
        /// Sets the task's state.
        stage,
        /// Sets the last error.
        error,
    }

    /// Sets the status.
    #[must_use]
    pub fn status(self, status: Status) -> Self {
        self.with("status", Value::from(status.as_str()))
    }

    /// Sets the tags.
    #[must_use]
    pub fn tags<T: Into<String>>(self, tags: impl IntoIterator<Item = T>) -> Self {
        let tags = tags.into_iter().map(|tag| Value::String(tag.into())).collect();
        self.with("tags", Value::Array(tags))
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
