//! Durable sessions for AI agents.
//!
//! A session's messages, state and checkpoints are kept in a durable log: when a call returns, a power cut cannot take it
//! back. From any checkpoint a session is resumed, rewound, compared or branched, by any process that can reach the store.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use milepost::{Message, Milepost, NewSession, Point, Resume, Role, SearchQuery, parse_set};
//!
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}/milepost.db", dir.path().display());
//! let milepost = Milepost::open(&url).await?;
//! let session = milepost.create(NewSession::titled("Three papers")).await?;
//! session.append(Message::new(Role::User, "Find three papers on write-ahead logs")).await?;
//! session.set(&[parse_set("memory.found=1")?]).await?;
//! let before = session.checkpoint_labelled("one found").await?;
//! session.append(Message::new(Role::Assistant, "Here are two more")).await?;
//! session.set(&[parse_set("memory.found=3")?]).await?;
//! let id = session.id();
//! let after = session.pause(Some("rate limit")).await?;
//! session.release().await?;
//!
//! let resumed = milepost.resume(id, Resume::latest()).await?;
//! assert_eq!((resumed.messages, &resumed.state.section("memory").unwrap()["found"]), (2, &3.into()));
//! let branch = milepost.branch(id, &Point::Checkpoint(before), NewSession::titled("Another way")).await?;
//! assert_eq!(branch.state().await?.section("memory").unwrap()["found"], 1);
//! assert_eq!(milepost.diff(before, after).await?.state[0].path, "/memory/found");
//! assert_eq!(milepost.search(&SearchQuery::new("papers")).await?.hits.len(), 1);
//! # Ok(())
//! # }
//! ```

mod analytics;
mod anew;
mod chapter;
pub mod config;
mod diff;
mod doctor;
mod engine;
mod erase;
mod error;
mod follow;
mod here;
mod keep;
mod message;
mod notice;
mod point;
pub mod project;
mod redaction;
mod request;
#[cfg(feature = "sqlite")]
mod rescue;
mod resume;
mod salvage;
mod search;
mod session;
mod shared;
mod smart;
#[cfg(feature = "sqlite")]
mod sql;
mod step;
mod summary;
mod text;
mod time;
pub mod tools;
pub mod transfer;
mod usage;

pub use analytics::{Analytics, Day, Overview};
pub use anew::Anew;
pub use chapter::{Chapter, Compact, Dropped, KEPT_SUMMARIES, Planned};
pub use diff::{Diff, PathDiff, state_diff};
pub use doctor::{Ailment, Diagnosis};
pub use engine::{EngineOptions, Milepost, SessionKey};
pub use erase::{Erased, ErasedArchive};
pub use error::{Apart, Error, Result};
pub use follow::{Following, Happened};
pub use keep::{Archived, Purge};
pub use message::parse_message;
pub use milepost_context as context;
pub use milepost_model as model;
pub use milepost_model::{
    Block, Channel, CheckpointId, Content, Event, Message, Policy, PolicyPatch, Role, Session as SessionInfo,
    SessionId, SessionPatch, State, Status, Timestamp, Trigger,
};
pub use milepost_store as store;
pub use milepost_store::{Claim, Mark, MarkQuery, MessageQuery, NewMark, SessionPage, SessionQuery, StoredMessage};
pub use notice::{Counts, Notice};
pub use point::{Point, parse_set, too_large};
#[cfg(feature = "sqlite")]
pub use rescue::{needs_rescue, rescue};
pub use resume::{CHECKED_MESSAGES, Preview, Resume, Resumed};
pub use salvage::Salvaged;
pub use search::{Around, Found, How, SearchHit, SearchQuery};
pub use session::{Appended, NewSession, Session};
pub use shared::{Add, Shared};
#[cfg(feature = "sqlite")]
pub use sql::{MAX_ROWS, Table};
pub use step::Together;
pub use summary::{SessionSummary, beside, project_name};
pub use time::{parse_time, relative};
pub use usage::Usage;
