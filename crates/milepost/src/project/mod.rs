//! Projects: what sessions are about.
//!
//! [`Projects`] finds the project of a directory (by its repository's root commit, so that a move or a rename loses nothing), lists its
//! sessions, and keeps its artifacts, templates and agent log as records of the store. [`collect`] reads what an agent
//! should know of a directory. Nothing here writes into the user's directory.

mod artifact;
mod context;
mod erase;
mod git;
mod keep;
mod log;
mod readers;
mod registry;
mod template;

pub(crate) use artifact::BroughtArtifact;
pub use artifact::{
    Artifact, ArtifactKind, MAX_ARTIFACT_BYTES, MAX_ARTIFACT_NAME_BYTES, MAX_ARTIFACT_VERSIONS, NewArtifact, Owner,
    Stored, Version, check_artifact_name,
};
pub use context::{
    Context, ContextFor, ContextLimits, Document, SourceStamp, Structure, Task, collect, collect_now, is_stale, refresh,
};
pub use git::Commit;
pub use keep::Projects;
pub(crate) use keep::apart;
pub use log::{LogLine, MAX_LINE_BYTES, MAX_LOG_LINES};
pub use readers::may_read;
pub use registry::{Identified, IndexRow, KnownBy, MAX_PATHS, Project, ProjectId, SessionIndex};
pub use template::{fill, placeholders};
