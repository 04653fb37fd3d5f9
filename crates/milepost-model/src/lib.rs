//! The vocabulary of Milepost, as types.
//!
//! A [`Session`] is one piece of work by one agent. What happened in it is a timeline of entries
//! ([`Body`]): messages, state changes, marks and events. A [`Checkpoint`] is a mark: it names the
//! conversation, the state and the files at one [`Position`]. The state itself is a JSON document;
//! [`Delta`] says how one document becomes the next, and [`HashedState`] keeps its hash up to date.
//!
//! Nothing here does I/O. Time, randomness and ids come from one injected [`Source`], so that a
//! test or a simulation replays exactly.
//!
//! ```
//! use milepost_model::{Delta, Message, Role};
//! use serde_json::json;
//!
//! let message = Message::new(Role::User, "Where were we?");
//! assert_eq!(serde_json::to_value(&message).unwrap(), json!({"role": "user", "content": "Where were we?"}));
//!
//! let before = json!({"memory": {"step": 1}});
//! let after = json!({"memory": {"step": 2}});
//! let mut state = before.clone();
//! Delta::diff(&before, &after).unwrap().apply(&mut state).unwrap();
//! assert_eq!(state, after);
//! ```

mod checkpoint;
pub mod delta;
mod entry;
mod id;
mod message;
mod policy;
mod session;
mod source;
mod state;
mod state_hash;
mod time;

pub use checkpoint::{Checkpoint, Resumable, Trigger};
pub use delta::{Delta, DeltaError};
pub use entry::{Body, Entry, EntryKind, Epoch, Event, Hash, Position, Seq};
pub use id::{BatchId, CheckpointId, Id, IdError, OwnerId, SessionId, TimelineId, WorkspaceId};
pub use message::{Block, Channel, Content, Message, MessageError, Role};
pub use policy::{Include, Policy, PolicyPatch, Retention, Smart};
pub use session::{Branch, Session, SessionPatch, Status};
pub use source::{Clock, Entropy, ManualClock, SeededEntropy, Source, Timestamp};
pub use state::{SECTIONS, State, StateError};
pub use state_hash::{HashedState, hash_value};
pub use time::parse_time;
