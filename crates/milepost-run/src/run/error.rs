//! What can go wrong with a run itself. That a step fails is not here: it is how a run ends.

/// The result of every operation of the runner.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine or the store said no.
    #[error(transparent)]
    Engine(#[from] milepost::Error),

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

    /// A step that was begun is no longer what it was.
    #[error("step {node} was begun as another step: {difference}; run it with the graph of then, or settle it by hand")]
    Changed {
        /// The node.
        node: String,
        /// What is different.
        difference: String,
    },

    /// A test said stop at this boundary.
    #[error("the run stopped at boundary {boundary}, as it was told: nothing more was stored; resume it")]
    Stopped {
        /// The number of the boundary.
        boundary: u64,
    },
}

impl Error {
    /// What was asked makes no sense here.
    pub fn refused(what: impl Into<String>, why: impl Into<String>, instead: impl Into<String>) -> Self {
        Error::Refused { what: what.into(), why: why.into(), instead: instead.into() }
    }
}
