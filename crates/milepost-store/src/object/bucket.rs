//! The bucket: five requests, each counted, and errors in the store's own words.
//!
//! Requests run on a runtime of this module's own, so that callers need none (see
//! [`block_on`](crate::block_on)), and so that what goes on in the background is not ended with a caller's runtime.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{Error as Fault, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// So many keys are in one answer to a LIST on S3, which is billed by answers.
const KEYS_PER_PAGE: u64 = 1000;
/// So many requests are under way at once for one call.
pub(super) const AT_ONCE: usize = 32;

/// How many requests were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Requests {
    /// Objects written, or tried to.
    pub puts: u64,
    /// Objects read, or looked for.
    pub gets: u64,
    /// Pages of lists.
    pub lists: u64,
    /// Objects deleted.
    pub deletes: u64,
    /// Bytes of objects written.
    pub put_bytes: u64,
}

impl Requests {
    /// All but deletes, which cost nothing.
    pub fn paid(&self) -> u64 {
        self.puts + self.gets + self.lists
    }

    /// What they cost on S3 (standard class, us-east-1), in dollars.
    pub fn dollars(&self) -> f64 {
        (self.puts + self.lists) as f64 * 0.005 / 1000.0 + self.gets as f64 * 0.0004 / 1000.0
    }

    /// Those made since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: Self) -> Self {
        Self {
            puts: self.puts - earlier.puts,
            gets: self.gets - earlier.gets,
            lists: self.lists - earlier.lists,
            deletes: self.deletes - earlier.deletes,
            put_bytes: self.put_bytes - earlier.put_bytes,
        }
    }
}

#[derive(Default)]
struct Counts {
    puts: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    put_bytes: AtomicU64,
}

/// What became of a conditional PUT.
#[derive(Debug)]
pub(crate) enum Put {
    /// It is there.
    Done,
    /// Something is there already, perhaps this very PUT.
    Exists,
    /// No answer: it may be there, or arrive later.
    Unknown(String),
}

/// A key that was listed.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// The last part of the key.
    pub name: String,
    /// The part before it.
    pub folder: String,
    pub bytes: u64,
    /// When the bucket got it, by its own clock.
    pub modified_ms: i64,
}

/// A place for objects.
#[derive(Clone)]
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    counts: Arc<Counts>,
}

/// The runtime of all buckets. It is never ended: a program's end needs no answer. A process that was forked has none of
/// its parent's threads and gets a runtime of its own.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);
    let (mut made, process) = (RUNTIME.lock().unwrap_or_else(PoisonError::into_inner), std::process::id());
    if let Some((_, runtime)) = made.filter(|(owner, _)| *owner == process) {
        return Ok(runtime);
    }
    let new = Builder::new_multi_thread().worker_threads(2).thread_name("milepost-object").enable_all().build();
    let runtime: &'static Runtime = Box::leak(Box::new(new.map_err(|error| Error::Io {
        what: "starting threads for the object store".into(),
        why: format!("{error}; check the limits on threads and memory"),
    })?));
    *made = Some((process, runtime));
    Ok(runtime)
}

/// Runs something in the background.
pub(super) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<JoinHandle<T>> {
    Ok(runtime()?.spawn(work))
}

impl Bucket {
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self { store, prefix: prefix.trim_matches('/').to_owned(), counts: Arc::default() }
    }

    pub fn requests(&self) -> Requests {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Requests {
            puts: read(&self.counts.puts),
            gets: read(&self.counts.gets),
            lists: read(&self.counts.lists),
            deletes: read(&self.counts.deletes),
            put_bytes: read(&self.counts.put_bytes),
        }
    }

    fn path(&self, key: &str) -> Path {
        match self.prefix.is_empty() {
            true => Path::from(key),
            false => Path::from(format!("{}/{key}", self.prefix)),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        what: impl Fn() -> String,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<Result<T, Fault>> {
        spawn(work)?.await.map_err(|error| Error::Io { what: what(), why: error.to_string() })
    }

    fn count_put(&self, bytes: &[u8]) {
        self.counts.puts.fetch_add(1, Ordering::Relaxed);
        self.counts.put_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    /// Writes an object unless there is one of that name.
    pub async fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<Put> {
        self.count_put(&bytes);
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let work = async move { store.put_opts(&path, PutPayload::from(bytes), options).await };
        Ok(match self.run(|| format!("writing {key}"), work).await {
            Ok(Ok(_)) => Put::Done,
            Ok(Err(Fault::AlreadyExists { .. } | Fault::Precondition { .. })) => Put::Exists,
            Ok(Err(fault @ (Fault::PermissionDenied { .. } | Fault::Unauthenticated { .. }))) => {
                return Err(refused(key, &fault));
            }
            Ok(Err(fault)) => Put::Unknown(fault.to_string()),
            Err(error) => Put::Unknown(error.to_string()),
        })
    }

    /// Writes an object, whatever is there.
    pub async fn put_over(&self, key: &str, bytes: Vec<u8>) -> Result<()> {
        self.count_put(&bytes);
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let work = async move { store.put(&path, PutPayload::from(bytes)).await };
        let done = self.run(|| format!("writing {key}"), work).await?;
        done.map(|_| ()).map_err(|fault| failed("writing", key, &fault))
    }

    /// Writes many objects, whatever is there.
    pub async fn put_all(&self, objects: Vec<(String, Vec<u8>)>) -> Result<()> {
        let writes: Vec<_> =
            objects.into_iter().map(|(key, bytes)| async move { self.put_over(&key, bytes).await }).collect();
        futures_util::stream::iter(writes).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The bytes of an object; none when there is none.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.counts.gets.fetch_add(1, Ordering::Relaxed);
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let work = async move { store.get(&path).await?.bytes().await };
        match self.run(|| format!("reading {key}"), work).await? {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(Fault::NotFound { .. }) => Ok(None),
            Err(fault) => Err(failed("reading", key, &fault)),
        }
    }

    /// Many objects at once, in the order asked.
    pub async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>> {
        let reads: Vec<_> = keys.iter().map(|key| self.get(key)).collect();
        futures_util::stream::iter(reads).buffered(AT_ONCE).try_collect().await
    }

    /// The keys under a folder after a name in it (`after` need not exist), in order.
    pub async fn list(&self, folder: &str, after: Option<&str>) -> Result<Vec<Listed>> {
        let (store, path) = (Arc::clone(&self.store), self.path(folder));
        let offset = after.map(|name| self.path(&format!("{folder}/{name}")));
        let work = async move {
            let stream = match &offset {
                Some(offset) => store.list_with_offset(Some(&path), offset),
                None => store.list(Some(&path)),
            };
            stream.try_collect::<Vec<_>>().await
        };
        let found = self.run(|| format!("listing {folder}"), work).await?.or_else(|fault| match fault {
            Fault::NotFound { .. } => Ok(Vec::new()),
            fault => Err(failed("listing", folder, &fault)),
        })?;
        self.counts.lists.fetch_add((found.len() as u64).div_ceil(KEYS_PER_PAGE).max(1), Ordering::Relaxed);
        let mut listed: Vec<Listed> = found
            .into_iter()
            .filter_map(|meta| {
                let (folder, name) = meta.location.as_ref().rsplit_once('/')?;
                Some(Listed {
                    name: name.to_owned(),
                    folder: folder.rsplit('/').next().unwrap_or_default().to_owned(),
                    bytes: meta.size,
                    modified_ms: meta.last_modified.timestamp_millis(),
                })
            })
            .collect();
        // A directory gives its files in any order.
        listed.sort_by(|a, b| (&a.folder, &a.name).cmp(&(&b.folder, &b.name)));
        Ok(listed)
    }

    /// The names of the folders in a folder.
    pub async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        let (store, path) = (Arc::clone(&self.store), self.path(folder));
        let work = async move { store.list_with_delimiter(Some(&path)).await };
        let found = self.run(|| format!("listing {folder}"), work).await?;
        let prefixes = match found {
            Ok(found) => found.common_prefixes,
            Err(Fault::NotFound { .. }) => Vec::new(),
            Err(fault) => return Err(failed("listing", folder, &fault)),
        };
        self.counts.lists.fetch_add((prefixes.len() as u64).div_ceil(KEYS_PER_PAGE).max(1), Ordering::Relaxed);
        let mut names: Vec<String> = prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Deletes an object; one that is gone already is no error.
    pub async fn delete(&self, key: &str) -> Result<()> {
        self.counts.deletes.fetch_add(1, Ordering::Relaxed);
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let work = async move { store.delete(&path).await };
        match self.run(|| format!("deleting {key}"), work).await? {
            Ok(()) | Err(Fault::NotFound { .. }) => Ok(()),
            Err(fault) => Err(failed("deleting", key, &fault)),
        }
    }

    /// Deletes many objects.
    pub async fn delete_all(&self, keys: &[String]) -> Result<()> {
        let deletes: Vec<_> = keys.iter().map(|key| self.delete(key)).collect();
        futures_util::stream::iter(deletes).buffer_unordered(AT_ONCE).try_collect().await
    }
}

fn refused(key: &str, fault: &Fault) -> Error {
    Error::invalid(
        format!("the right to use the bucket for {key}"),
        format!("{fault}; check the credentials and what they allow"),
    )
}

fn failed(what: &str, key: &str, fault: &Fault) -> Error {
    match fault {
        Fault::PermissionDenied { .. } | Fault::Unauthenticated { .. } => refused(key, fault),
        other => Error::Io { what: format!("{what} {key}"), why: other.to_string() },
    }
}
