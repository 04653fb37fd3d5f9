//! What can go wrong above the store. Every message says what failed, why, and what to do now.

use milepost_model::{CheckpointId, SessionId};

/// The result of every operation of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. A kind of its own only where the caller would do something different.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store said no.
    #[error(transparent)]
    Store(#[from] milepost_store::Error),

    /// A shortened id, or a label, fits several things.
    #[error("{given:?} could be any of {}: give more of it", .candidates.join(", "))]
    Ambiguous {
        /// What was given.
        given: String,
        /// What it fits; the first few.
        candidates: Vec<String>,
    },

    /// A session cannot go on from there.
    #[error("session {session} cannot be resumed from checkpoint {checkpoint}: {why}; {instead}")]
    NotResumable {
        /// The session.
        session: SessionId,
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Why not.
        why: String,
        /// What to do instead.
        instead: String,
    },

    /// A session is completed, and nobody said that it is to go on all the same.
    #[error("resuming session {session}: it is completed; branch from one of its checkpoints, or reopen it")]
    Completed {
        /// The session.
        session: SessionId,
    },

    /// Neither a session's end nor any of its checkpoints is whole. A new session can have its messages: see
    /// [`Resume::begin_anew`](crate::Resume::begin_anew).
    #[error(
        "resuming session {session}: {why}; nothing is left to go on from: begin anew with the messages that are whole"
    )]
    NothingWhole {
        /// The session.
        session: SessionId,
        /// What is damaged.
        why: String,
    },

    /// What was asked makes no sense here.
    #[error("{what}: {why}; {instead}")]
    Refused {
        /// What was asked.
        what: String,
        /// Why it is refused.
        why: String,
        /// What to do instead.
        instead: String,
    },

    /// What was given cannot be meant: a name, a text or a value has a form that it may not have.
    #[error("{what}: {why}; {instead}")]
    Malformed {
        /// What was given.
        what: String,
        /// What is wrong with it.
        why: String,
        /// What to give.
        instead: String,
    },

    /// Of many messages, some were stored before something went wrong.
    #[error(
        "{stored} of {total} messages were stored, the others were not: {error}; then add those after the {stored}"
    )]
    Partly {
        /// So many are stored: the first.
        stored: u64,
        /// So many were given.
        total: u64,
        /// What went wrong with the next.
        error: Box<Error>,
    },

    /// A session has no checkpoint of this name.
    #[error("no checkpoint {given:?} of {session}: list what is there, and check the workspace")]
    NoCheckpoint {
        /// What was given: a label, or a part of an id.
        given: String,
        /// The session.
        session: SessionId,
    },

    /// The checkpoint is another session's.
    #[error(
        "checkpoint {checkpoint}: it belongs to session {owner}, not to {session}; name that session, or list the checkpoints of {session}"
    )]
    OtherSession {
        /// The checkpoint.
        checkpoint: CheckpointId,
        /// Whose it is.
        owner: SessionId,
        /// Whose it was taken for.
        session: SessionId,
    },

    /// A session cannot be copied over the copy that is there.
    #[error("copying session {session}: {why}; {}", .apart.instead())]
    Apart {
        /// The session.
        session: SessionId,
        /// Where the two differ.
        why: String,
        /// Which of them went on.
        apart: Apart,
    },

    /// A key that the configuration names is missing, or is none.
    #[error("{place}: {why}; {instead}")]
    ConfigKey {
        /// The setting.
        place: String,
        /// What is wrong.
        why: String,
        /// What to do.
        instead: String,
    },

    /// A configuration file, variable or setting is wrong.
    #[error("{place}: {why}; {instead}")]
    Config {
        /// The file with its line, or the variable.
        place: String,
        /// What is wrong.
        why: String,
        /// What to do.
        instead: String,
    },

    /// What is to be imported is damaged, changed, or of another form.
    #[error(
        "{from} cannot be imported: {why}; nothing was imported: see what can be with `sessions import --help`, or get it anew"
    )]
    Import {
        /// Where it came from.
        from: String,
        /// What is wrong, and in which entry.
        why: String,
    },

    /// A file or directory that was named is not there.
    #[error("{what} failed: nothing is there; check the path")]
    NoFile {
        /// What was being done, with the path.
        what: String,
    },

    /// A file or directory could not be read or written.
    #[error("{what} failed: {why}; check that the path exists and may be used")]
    File {
        /// What was being done, with the path.
        what: String,
        /// What the system said.
        why: String,
    },
}

/// Which of a session and its copy went on since they were the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Apart {
    /// Only the copy: it can be copied back.
    Copy,
    /// Both: neither can take the other's place.
    Both,
}

impl Apart {
    fn instead(self) -> &'static str {
        match self {
            Apart::Copy => "copy the other way, to have that here too",
            Apart::Both => "copy it with new ids, to have it there as a second session",
        }
    }
}

impl Error {
    /// What is wrong, without what to do about it, where the store said so.
    pub fn finding(&self) -> String {
        match self {
            Error::Store(error) => error.finding(),
            error => error.to_string(),
        }
    }

    /// What was given cannot be meant.
    pub fn malformed(what: impl Into<String>, why: impl Into<String>, instead: impl Into<String>) -> Self {
        Error::Malformed { what: what.into(), why: why.into(), instead: instead.into() }
    }

    /// What was asked makes no sense here.
    pub fn refused(what: impl Into<String>, why: impl Into<String>, instead: impl Into<String>) -> Self {
        Error::Refused { what: what.into(), why: why.into(), instead: instead.into() }
    }

    /// What was to be imported is wrong.
    pub fn import(from: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Import { from: from.into(), why: why.into() }
    }

    /// A file that was named could not be read.
    pub fn reading(what: impl Into<String>, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Error::NoFile { what: what.into() },
            _ => Error::file(what, error),
        }
    }

    /// A file operation failed.
    pub fn file(what: impl Into<String>, why: impl ToString) -> Self {
        Error::File { what: what.into(), why: why.to_string() }
    }
}
