//! Milepost's durable log.
//!
//! A session is an append-only timeline of entries: messages, state changes, marks and events. A
//! checkpoint is a mark in it. [`Store`] opens a workspace and reads; [`SessionWriter`] holds a
//! session's lease and appends. When an append returns, a power cut cannot take it back.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use milepost_model::{Message, Role, State, Trigger};
//! use milepost_store::{Append, Claim, MarkQuery, NewMark, NewSession, Options, Store};
//! use serde_json::json;
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("milepost.db");
//! let store = Store::open(&format!("sqlite:{}", path.display()), Options::default()).await?;
//! let writer = store.create(NewSession::default(), &Claim::new("the example")).await?;
//! let state = State::try_from(json!({ "memory": { "step": 1 } }))?;
//! writer
//!     .append(Append::new().message(Message::new(Role::User, "Hello")).state(state).mark(NewMark::new(Trigger::Manual)))
//!     .await?;
//!
//! let loaded = store.load_latest(writer.id(), &MarkQuery::default()).await?;
//! assert_eq!(loaded.state.pointer("/memory/step"), Some(&json!(1)));
//! assert_eq!(loaded.mark.checkpoint.messages(), 1);
//! # store.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Where things are kept is a [`backend`]'s business: [`sqlite`] for one machine; `postgres` for several, `object` for a
//! bucket (features);
//! [`memory`] for tests; any other that passes the conformance suite (feature `conformance`).

pub mod backend;
mod block;
mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod keys;
mod limits;
pub mod memory;
mod migrate;
#[cfg(feature = "object")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod private;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
mod system;
pub mod words;

pub use backend::{Backend, BlobId, Change};
pub use block::block_on;
pub use codec::FORMAT;
pub use ed25519_dalek;
pub use error::{Conflict, Error, KeyError, Result};
pub use keys::{KeyOptions, MASTER_KEY_VARIABLE, MarkKey, MasterKey};
pub use limits::Limits;
pub use migrate::{Migrated, Phase, Progress, migrate};
pub use milepost_model::Entry;
pub use store::{
    Append, Changes, Claim, Collected, Compression, CopyEntry, CopyLine, DeleteMode, Deleted, Durability, Importer,
    Loaded, Mark, MarkQuery, MessageQuery, NewMark, NewSession, Obstacle, Options, PassedOver, Problem, Pruned, Purged,
    Receipt, Redacted, Redactor, Reindexed, SessionPage, SessionQuery, SessionWriter, SignedHead, Skipped, Stats,
    Store, StoredMessage, StoredRecord, Texts, Verified, is_own_event, open_backend,
};
pub use system::system_source;
