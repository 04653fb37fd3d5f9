//! The configuration: `milepost.yaml`, the environment, and what is set explicitly, as one [`Settings`].
//!
//! It goes through two stages: as typed (a tree of values that know their line and column, compared with the schema),
//! then as usable (every value checked, every path whole). Nothing here reads the environment but through a lookup that
//! is passed in. [`Settings::explain`] says where each value came from; [`check`] lists all that is wrong with a file.

mod explain;
mod keys;
pub mod limits;
mod load;
mod models;
mod read;
mod schema;
mod settings;
mod suggest;
mod usable;

pub use explain::Explained;
pub use keys::KEYCHAIN_SERVICE;
pub(crate) use load::stored_policy_patch;
pub use load::{
    CONFIG_VARIABLE, FILE_NAMES, Loader, SESSION_POLICY, STEP_VARIABLES, check, policy_patch, session_policy,
    set_session_policy,
};
pub use milepost_document::{Diagnostic, Origin, Severity};
pub use models::ModelSettings;
pub use settings::{
    AgentKind, Budget, Compression, KeySettings, KeySource, Redaction, Settings, Summaries, Template, Url, Work,
};
pub use usable::MARK_KEY_VARIABLE;
