//! Sessions as files for people and other tools.
//!
//! [`markdown()`] is for reading, [`jsonl`] has one message a line, [`chat_files`] are four small JSON files, [`tree()`] is a
//! directory in the layout that another tool expects, and `sqlite` a database to query. All of them show what the session's
//! head shows; only a bundle holds everything.

mod agent_state;
mod chat;
mod folder;
mod markdown;
mod messages;
mod shapes;
#[cfg(feature = "sqlite")]
mod sqlite;
mod tree;

pub use chat::chat_files;
pub use folder::{Present, safe_name};
pub use markdown::markdown;
pub use messages::jsonl;
pub use shapes::GraphPlace;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteExported, sqlite, sqlite_tables};
pub use tree::{FileOptions, Layout, tree};

#[cfg(feature = "sqlite")]
pub(crate) use sqlite::tables;

pub(in crate::transfer) use shapes::{ROLE_NAME, SECTIONS_FIELD, TOOL_NAMES};
pub(in crate::transfer) use tree::artifacts as artifacts_of;
