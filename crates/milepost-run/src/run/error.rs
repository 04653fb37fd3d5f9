//! What can go wrong with a run itself. That a step fails is not here: it is how a run ends.

use super::compare::Nearest;

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
    #[error(
        "step {node} was begun as another step: {difference}; run it again as it is now, go on with what it was begun with, or run it again on a branch"
    )]
    Changed {
        /// The node.
        node: String,
        /// What is different.
        difference: String,
    },

    /// What the run needs is gone: a node that was begun, or a key of the shared memory.
    #[error("the run cannot go on with this graph: {name}: {why}; {}", offer(nearest.as_deref()))]
    Incompatible {
        /// The node or the key.
        name: String,
        /// What is missing.
        why: String,
        /// The newest checkpoint from which the run can go on with this graph.
        nearest: Option<Box<Nearest>>,
    },

    /// Going back would let effects happen again.
    #[error(
        "going on from there would let happen again what happened after it, and may not be repeated: {}; go on from the latest checkpoint, or say that it may happen again",
        steps.iter().map(|(step, key)| format!("{step} (key {key})")).collect::<Vec<_>>().join(", ")
    )]
    Repeats {
        /// The steps, each with the key that it had.
        steps: Vec<(String, String)>,
    },

    /// A test said stop at this boundary.
    #[error("the run stopped at boundary {boundary}, as it was told: nothing more was stored; resume it")]
    Stopped {
        /// The number of the boundary.
        boundary: u64,
    },
}

fn offer(nearest: Option<&Nearest>) -> String {
    match nearest {
        Some(nearest) if nearest.description.is_empty() => {
            format!("resume from checkpoint {} (of {})", nearest.checkpoint, nearest.time)
        }
        Some(nearest) => format!("resume from checkpoint {} ({})", nearest.checkpoint, nearest.description),
        None => "no checkpoint works with it: run it with the graph of then".to_owned(),
    }
}

impl Error {
    /// What was asked makes no sense here.
    pub fn refused(what: impl Into<String>, why: impl Into<String>, instead: impl Into<String>) -> Self {
        Error::Refused { what: what.into(), why: why.into(), instead: instead.into() }
    }
}
