//! One structured line for every checkpoint made or restored and every session begun anew, and the counts that monitoring
//! reads.

use std::sync::atomic::{AtomicU64, Ordering};

use milepost_model::{CheckpointId, Session, SessionId, Timestamp};
use serde::Serialize;

/// Something that checkpoints did. As JSON it is one log line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Notice {
    /// A checkpoint was made.
    CheckpointCreated {
        /// When.
        #[serde(serialize_with = "crate::text::time")]
        timestamp: Timestamp,
        /// The session.
        session_id: SessionId,
        /// Its task, or else the session once more.
        task_id: String,
        /// The checkpoint.
        checkpoint_id: CheckpointId,
        /// Why.
        reason: String,
        /// Bytes of the state as JSON, when someone listens.
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        /// How long it took.
        #[serde(rename = "duration_ms")]
        duration_ms: i64,
    },
    /// A checkpoint could not be made. The session goes on.
    CheckpointFailed {
        /// When.
        #[serde(serialize_with = "crate::text::time")]
        timestamp: Timestamp,
        /// The session.
        session_id: SessionId,
        /// Its task, or else the session once more.
        task_id: String,
        /// Why it was to be made.
        reason: String,
        /// What went wrong.
        error: String,
    },
    /// The retention put checkpoints into the trash, or could not.
    CheckpointsPruned {
        /// When.
        #[serde(serialize_with = "crate::text::time")]
        timestamp: Timestamp,
        /// The session.
        session_id: SessionId,
        /// Its task, or else the session once more.
        task_id: String,
        /// The checkpoints.
        checkpoints: Vec<CheckpointId>,
        /// What went wrong.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A session went on from a checkpoint, or could not.
    CheckpointRestored {
        /// When.
        #[serde(serialize_with = "crate::text::time")]
        timestamp: Timestamp,
        /// The session.
        session_id: SessionId,
        /// Its task, or else the session once more.
        task_id: String,
        /// The checkpoint.
        checkpoint_id: CheckpointId,
        /// Whether it was the one asked for: not an older one, and not none.
        success: bool,
        /// How long it took.
        #[serde(rename = "duration_ms")]
        duration_ms: i64,
        /// Messages up to it.
        #[serde(rename = "messages_restored")]
        messages_restored: u64,
        /// Variables in its state's environment.
        #[serde(rename = "environment_variables")]
        environment_variables: usize,
    },
    /// Nothing of a session could be gone on from: it goes on as a new one.
    BegunAnew {
        /// When.
        #[serde(serialize_with = "crate::text::time")]
        timestamp: Timestamp,
        /// The new session.
        session_id: SessionId,
        /// Its task, or else the damaged session once more.
        task_id: String,
        /// The damaged session. It is as it was.
        instead_of: SessionId,
        /// What is damaged.
        reason: String,
        /// Messages that were taken over.
        messages: u64,
        /// Messages that are damaged, or may be.
        #[serde(rename = "messages_lost")]
        messages_lost: u64,
    },
}

/// The task that a session works on; one that has none is its own.
pub(crate) fn task_of(session: &Session) -> String {
    session.task.clone().unwrap_or_else(|| session.id.to_string())
}

/// What checkpoints did since the engine was opened.
#[derive(Debug, Default)]
pub struct Counts {
    made: AtomicU64,
    failed: AtomicU64,
    restored: AtomicU64,
    pruned: AtomicU64,
}

impl Counts {
    pub(crate) fn count(&self, notice: &Notice) {
        let (counter, count) = match notice {
            Notice::CheckpointCreated { .. } => (&self.made, 1),
            Notice::CheckpointFailed { .. } => (&self.failed, 1),
            Notice::CheckpointRestored { .. } => (&self.restored, 1),
            Notice::CheckpointsPruned { checkpoints, .. } => (&self.pruned, checkpoints.len() as u64),
            Notice::BegunAnew { .. } => return,
        };
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Checkpoints that were made.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Checkpoints that could not be made.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Checkpoints that the retention put into the trash.
    pub fn pruned(&self) -> u64 {
        self.pruned.load(Ordering::Relaxed)
    }

    /// Sessions that went on from a checkpoint.
    pub fn restored(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
    }
}
