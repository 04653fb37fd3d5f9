//! A store in a bucket: S3, Google, Azure, a directory. Nothing else is needed.
//!
//! Every session is a log of numbered objects; one PUT, if absent, adds a step and orders it. What the steps come to is
//! folded in memory, in the memory backend's own structures, which also answer the reads. The protocol is in
//! `docs/object-protocol.md`: read it before you change `log` or `merge`.
//!
//! | module | what |
//! |---|---|
//! | `bucket` | requests, counted |
//! | `format`, `names` | what objects and keys look like |
//! | `log` | reading and writing one log |
//! | `fold` | what its steps come to |
//! | `branch` | what reaches into two sessions |
//! | `view` | all sessions at once: the index |
//! | `sealed` | which segments and bases there are to a log |
//! | `merge` | writing them, deletion |
//! | `blobs` | blobs |

mod blobs;
mod branch;
mod bucket;
mod calls;
mod fold;
mod format;
mod log;
mod merge;
mod names;
mod open;
mod sealed;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use milepost_model::{Source, Timestamp, WorkspaceId};
use object_store::ObjectStore;
use tokio::task::JoinHandle;

pub(crate) use bucket::Bucket;
pub use bucket::Requests;
pub use object_store;
pub(crate) use open::SCHEMES;

use log::Logs;
use names::LogName;
use view::View;

use crate::error::Result;
use crate::memory::MemoryBackend;
use crate::store::Durability;
use crate::system::system_source;

/// How a bucket is used.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ObjectOptions {
    /// T: whoever knows nothing newer of a log for longer looks at the sealed boundary before it acknowledges (60 s).
    pub idle_ms: i64,
    /// D: what was merged is deleted so much later (600 s). Clocks may differ by D - T.
    pub delete_after_ms: i64,
    /// More steps than these are merged into a segment (3).
    pub max_steps: u64,
    /// When an append is durable.
    pub durability: Durability,
    /// With [`Durability::Turn`], a turn is written after so long at the latest (5 s),
    pub turn_ms: i64,
    /// or when it has so many bytes (256 KiB).
    pub turn_bytes: usize,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        Self {
            idle_ms: 60_000,
            delete_after_ms: 600_000,
            max_steps: 3,
            durability: Durability::Full,
            turn_ms: 5_000,
            turn_bytes: 256 << 10,
        }
    }
}

/// A store in a bucket.
pub struct ObjectBackend {
    shared: Arc<Shared>,
}

/// What calls and background work share.
struct Shared {
    bucket: Bucket,
    /// What is known of the bucket, folded.
    cache: MemoryBackend,
    source: Source,
    options: ObjectOptions,
    logs: Mutex<Logs>,
    views: Mutex<BTreeMap<WorkspaceId, Arc<tokio::sync::Mutex<View>>>>,
    merging: Mutex<BTreeSet<(WorkspaceId, LogName)>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    merges: AtomicU64,
    /// Objects that others stand in for: when those were sealed, and keys. They are deleted when their time has come.
    superseded: Mutex<VecDeque<(Timestamp, Vec<String>)>>,
    /// Names of PUTs. They never show, and must differ between processes even where a test gives all the same source.
    puts: Source,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn logs(&self) -> MutexGuard<'_, Logs> {
        lock(&self.logs)
    }

    fn views(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Arc<tokio::sync::Mutex<View>>>> {
        lock(&self.views)
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        lock(&self.tasks)
    }

    /// False when a merge of this log is under way.
    fn begin_merge(&self, workspace: &WorkspaceId, name: &LogName) -> bool {
        lock(&self.merging).insert((workspace.clone(), name.clone()))
    }

    fn end_merge(&self, workspace: &WorkspaceId, name: &LogName) {
        lock(&self.merging).remove(&(workspace.clone(), name.clone()));
    }
}

impl ObjectBackend {
    /// A store in a bucket, under a prefix.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, options: ObjectOptions, source: Source) -> Result<Self> {
        Ok(Self {
            shared: Arc::new(Shared {
                bucket: Bucket::new(store, prefix),
                cache: MemoryBackend::new(source.clone()),
                source,
                options,
                logs: Mutex::default(),
                views: Mutex::default(),
                merging: Mutex::default(),
                tasks: Mutex::default(),
                merges: AtomicU64::new(0),
                superseded: Mutex::default(),
                puts: system_source()?,
            }),
        })
    }

    /// How many requests were made so far.
    pub fn requests(&self) -> Requests {
        self.shared.bucket.requests()
    }

    /// Waits for what goes on in the background: merges and the index.
    pub async fn settle(&self) {
        self.shared.settle().await;
    }
}
