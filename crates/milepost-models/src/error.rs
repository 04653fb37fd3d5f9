//! What can go wrong with a call. Every message says what failed, why, and what to do now.

use milepost_model::Timestamp;

/// What can go wrong. A kind of its own only where the caller would do something different. A limit is not here: it is
/// an [`crate::Outcome`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection, or it broke.
    #[error("{model} cannot be reached: {why}; check the network and the base URL, then try again")]
    Unreachable {
        /// The model.
        model: String,
        /// What happened.
        why: String,
    },

    /// The provider cannot answer now.
    #[error("{model} cannot answer now: {why}; try again{}", later(*retry_at))]
    Unavailable {
        /// The model.
        model: String,
        /// What the provider said.
        why: String,
        /// When it said to try again.
        retry_at: Option<Timestamp>,
    },

    /// It took longer than a limit.
    #[error("{model} was too slow: {what} took longer than {limit} ({ms} ms); try again, or raise {limit}")]
    TooSlow {
        /// The model.
        model: String,
        /// What took so long.
        what: &'static str,
        /// The limit's name.
        limit: &'static str,
        /// The limit.
        ms: u64,
    },

    /// The key is missing, wrong, or may not do this.
    #[error("{model} does not accept the key: {why}; set {variable} to a key that may use this model")]
    Denied {
        /// The model.
        model: String,
        /// What the provider said.
        why: String,
        /// Where the key is read from.
        variable: String,
    },

    /// The account has no money left.
    #[error("{model} wants to be paid: {why}; add credit to the account, then resume")]
    NoCredit {
        /// The model.
        model: String,
        /// What the provider said.
        why: String,
    },

    /// The request does not fit into the model's context.
    #[error("the request is too long for {model}: {why}; compact the session, or choose a model with a larger context")]
    TooLong {
        /// The model.
        model: String,
        /// What the provider said.
        why: String,
    },

    /// The provider does not take this request.
    #[error("{model} refused the request: {why}; change the request or the model's settings")]
    Refused {
        /// The model.
        model: String,
        /// What the provider said.
        why: String,
    },

    /// The answer is not what the provider's format says.
    #[error(
        "the answer of {model} cannot be understood: {why}; check that the base URL speaks this API, then try again"
    )]
    Garbled {
        /// The model.
        model: String,
        /// What is wrong.
        why: String,
    },

    /// The answer passes a limit.
    #[error("the answer of {model} is larger than {limit}, {at}; ask for less, or lower max_tokens")]
    TooLarge {
        /// The model.
        model: String,
        /// The limit's name.
        limit: &'static str,
        /// The limit.
        at: usize,
    },

    /// The stream ended before the answer did.
    #[error("the answer of {model} stopped in the middle: {why}; go on from what arrived, or ask again")]
    Interrupted {
        /// The model.
        model: String,
        /// How.
        why: String,
    },

    /// Somebody cancelled the call.
    #[error("the call of {model} was cancelled: somebody asked for it; ask again to go on")]
    Cancelled {
        /// The model.
        model: String,
    },

    /// A setting, a script or a price table is wrong.
    #[error("{place}: {why}; {instead}")]
    Config {
        /// The setting, the variable, or the file with its line.
        place: String,
        /// What is wrong.
        why: String,
        /// What to do.
        instead: String,
    },
}

fn later(at: Option<Timestamp>) -> String {
    at.map_or_else(|| " later".to_owned(), |at| format!(" at {at}"))
}

impl Error {
    /// A setting is wrong.
    pub fn config(place: impl Into<String>, why: impl Into<String>, instead: impl Into<String>) -> Self {
        Error::Config { place: place.into(), why: why.into(), instead: instead.into() }
    }

    /// Whether the same call may well succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable { .. }
            | Error::Unavailable { .. }
            | Error::TooSlow { .. }
            | Error::Garbled { .. }
            | Error::Interrupted { .. } => true,
            Error::Denied { .. }
            | Error::NoCredit { .. }
            | Error::TooLong { .. }
            | Error::Refused { .. }
            | Error::TooLarge { .. }
            | Error::Cancelled { .. }
            | Error::Config { .. } => false,
        }
    }

    /// When the provider said to try again.
    pub fn retry_at(&self) -> Option<Timestamp> {
        match self {
            Error::Unavailable { retry_at, .. } => *retry_at,
            _ => None,
        }
    }
}
