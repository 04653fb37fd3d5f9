//! What can go wrong, in as few kinds as a caller can act on. Every message says what failed, why,
//! and what to do now.

use milepost_model::{
    DeltaError, Epoch, IdError, MessageError, Position, SessionId, StateError, TimelineId, Timestamp,
};

/// The result of every store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. A kind of its own only where the caller would do something different.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The thing asked for is not there.
    #[error("no {what} {id}: list what is there, and check the workspace")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        id: String,
    },

    /// Someone else wrote first. Reload and decide again.
    #[error("{0}")]
    Conflict(Conflict),

    /// Someone else holds the session.
    #[error(
        "session {session} is held by {holder} until {until} (epoch {epoch}): attach to read along, branch to work beside it, or take it over"
    )]
    Held {
        /// The session.
        session: SessionId,
        /// Who holds it, in words.
        holder: String,
        /// Under which epoch.
        epoch: Epoch,
        /// Until when, unless renewed.
        until: Timestamp,
    },

    /// The lease was lost: a newer epoch exists. Stop working on the session.
    #[error(
        "session {session} was taken over by {holder} (epoch {current}, yours is {epoch}): stop, nothing of this append was stored; open the session again to go on"
    )]
    Fenced {
        /// The session.
        session: SessionId,
        /// The epoch of the writer that was refused.
        epoch: Epoch,
        /// The epoch in force.
        current: Epoch,
        /// Who holds it now, in words.
        holder: String,
    },

    /// What was given is not allowed.
    #[error("{what} is not valid: {why}")]
    Invalid {
        /// What was given.
        what: String,
        /// Why it is refused and what is allowed.
        why: String,
    },

    /// A limit was passed.
    #[error("{what} has {size} {}, the limit {limit} is {max}: {}", unit(limit), smaller(limit))]
    TooLarge {
        /// What is too large.
        what: String,
        /// How large it is.
        size: u64,
        /// The most there may be.
        max: u64,
        /// The limit's name.
        limit: &'static str,
    },

    /// Stored data are damaged. What is whole can still be read.
    #[error(
        "{what} is damaged: {why}; run verify to see how far it goes; resume from an older checkpoint, or bring what is whole of a SQLite file into a new one with salvage"
    )]
    Corrupt {
        /// What is damaged.
        what: String,
        /// How it was noticed.
        why: String,
    },

    /// The state there was given up by pruning.
    #[error("the state at {at} was pruned; {nearest}")]
    Pruned {
        /// Where it was asked for.
        at: Position,
        /// What is there instead.
        nearest: String,
    },

    /// A key is missing, wrong, or destroyed.
    #[error("{0}")]
    Key(KeyError),

    /// Written by a newer version, or not by Milepost at all.
    #[error(
        "{what} has format version {found}, this program reads up to {supported}: use a newer Milepost; nothing was changed"
    )]
    Newer {
        /// What was read.
        what: String,
        /// Its version.
        found: u64,
        /// The newest version this program reads.
        supported: u64,
    },

    /// The disk is full.
    #[error(
        "no space left for {what}: nothing of it was stored; free space (stats shows what pruning would free) and try again"
    )]
    NoSpace {
        /// What did not fit.
        what: String,
    },

    /// The store cannot be written to.
    #[error("{what} is read-only: nothing was stored; make it writable, or open a copy")]
    ReadOnly {
        /// What is read-only.
        what: String,
    },

    /// The clock shows a time long before what is already stored.
    #[error(
        "the clock shows {now}, but session {session} was last written at {last}: set the clock right, or raise max_clock_step_back_ms"
    )]
    ClockBack {
        /// The session.
        session: SessionId,
        /// What the clock shows.
        now: Timestamp,
        /// When the session was last written.
        last: Timestamp,
    },

    /// The device failed while writing. What was acknowledged before is safe; this write may or may not be there.
    #[error(
        "{what} failed: {why}; it may or may not have been stored. The store reopens and checks itself before the next write: try again with the same batch id"
    )]
    Io {
        /// What was being done.
        what: String,
        /// What the device said.
        why: String,
    },

    /// Another process kept the store locked for too long. Nothing was stored.
    #[error(
        "{what} waited {waited_ms} ms for another process that writes to the same store: nothing was stored; try again, or end that process"
    )]
    Busy {
        /// What was being done.
        what: String,
        /// How long it waited.
        waited_ms: u64,
    },

    /// The server that holds the store cannot be reached, or cannot work. Nothing was stored.
    #[error("{what} failed: {why}; nothing was stored. See that the server runs and can be reached, and try again")]
    Unavailable {
        /// What was being done, and where.
        what: String,
        /// What is the matter.
        why: String,
    },

    /// This store cannot do that.
    #[error("{store} cannot {what}: {instead}")]
    Unsupported {
        /// Which store.
        store: &'static str,
        /// What was asked.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },

    /// The store was closed.
    #[error("the store is closed: open it again")]
    Closed,
}

/// Who wrote first, and how it was noticed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// The timeline is longer or shorter than expected.
    #[error(
        "timeline {timeline} has {actual} entries, {expected} were expected: someone else wrote; reload the session and append again"
    )]
    Length {
        /// The timeline.
        timeline: TimelineId,
        /// What the writer believed.
        expected: u64,
        /// What is there.
        actual: u64,
    },
    /// The timeline is no longer a head.
    #[error(
        "timeline {timeline} is no longer a head of its session: it was restored or replaced; reload the session, or branch from where you are"
    )]
    NotHead {
        /// The timeline.
        timeline: TimelineId,
    },
    /// A record was changed by someone else.
    #[error("record {key} was changed by someone else: read it again and decide anew")]
    Record {
        /// The record.
        key: String,
    },
    /// Something of that name is already there.
    #[error("{what} {id} exists already: use another id, or open what is there")]
    Exists {
        /// What it is.
        what: &'static str,
        /// Its name.
        id: String,
    },
    /// The session has branches that need its beginning.
    #[error(
        "session {session} has branches that begin in it ({branches}): keep the shared beginning (keep branches), or delete them too (cascade)"
    )]
    Branches {
        /// The session.
        session: SessionId,
        /// How many begin in it.
        branches: u64,
    },
}

/// What is the matter with a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The workspace is encrypted and no key was given.
    #[error(
        "workspace {workspace} is encrypted and no master key was given: set MILEPOST_KEY, or name a key file (key {fingerprint})"
    )]
    Missing {
        /// The workspace.
        workspace: String,
        /// Tells keys apart without telling the key.
        fingerprint: String,
    },
    /// The key does not open the workspace.
    #[error(
        "the master key {given} does not open workspace {workspace}, which needs key {fingerprint}: check MILEPOST_KEY or the key file; nothing was changed"
    )]
    Wrong {
        /// The workspace.
        workspace: String,
        /// The key that is needed.
        fingerprint: String,
        /// The key that was given.
        given: String,
    },
    /// The session's key was destroyed.
    #[error(
        "session {session} was shredded: its key is gone and its content cannot be read; delete what is left of it (`sessions delete`)"
    )]
    Shredded {
        /// The session.
        session: SessionId,
    },
    /// The text is not a key.
    #[error("{from} does not hold a key: {why}; make one with 32 random bytes in hex (64 digits) or base64")]
    Malformed {
        /// Where it came from.
        from: String,
        /// What is wrong.
        why: String,
    },
    /// A key was given, but the workspace was made without encryption.
    #[error(
        "workspace {workspace} is not encrypted, but a master key was given: open this one without a key; to encrypt what is in it, export its sessions without the key and import them into a new store with it"
    )]
    NotEncrypted {
        /// The workspace.
        workspace: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), why: why.into() }
    }
    pub(crate) fn corrupt(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Corrupt { what: what.into(), why: why.into() }
    }
    pub(crate) fn not_found(what: &'static str, id: impl ToString) -> Self {
        Error::NotFound { what, id: id.to_string() }
    }
    /// What is wrong, without what to do about it: for whoever names it in a list, or says what to do in words of their own.
    pub fn finding(&self) -> String {
        match self {
            Error::Corrupt { what, why } => format!("{what} is damaged: {why}"),
            error => error.to_string(),
        }
    }

    /// Whether stored data are damaged or gone at this place, so that an older place may still be whole.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::Pruned { .. } | Error::Newer { .. })
    }
}

/// What a limit counts: its name says so.
fn unit(limit: &str) -> &'static str {
    if limit.ends_with("_entries") { "entries" } else { "bytes" }
}

/// What to do about what passed a limit.
fn smaller(limit: &str) -> &'static str {
    match unit(limit) {
        "entries" => "split it into several appends",
        _ => "split it, or keep it as a file and store a reference",
    }
}

impl From<Conflict> for Error {
    fn from(conflict: Conflict) -> Self {
        Error::Conflict(conflict)
    }
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Error::Key(error)
    }
}

impl From<IdError> for Error {
    fn from(error: IdError) -> Self {
        Error::invalid("id", error.to_string())
    }
}

impl From<StateError> for Error {
    fn from(error: StateError) -> Self {
        Error::invalid("state", error.to_string())
    }
}

impl From<DeltaError> for Error {
    fn from(error: DeltaError) -> Self {
        Error::invalid("state change", error.to_string())
    }
}

impl From<MessageError> for Error {
    fn from(error: MessageError) -> Self {
        Error::invalid("message", error.to_string())
    }
}
