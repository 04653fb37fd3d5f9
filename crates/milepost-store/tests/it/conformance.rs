//! The conformance suite on our own backends: one test per rule and backend.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use milepost_model::Source;
use milepost_store::conformance::{self, Place, RULES};
use milepost_store::memory::MemoryBackend;
use milepost_store::object::object_store::ObjectStore;
use milepost_store::object::{ObjectBackend, ObjectOptions};
use milepost_store::sqlite::{SqliteBackend, SqliteOptions};
use milepost_store::{Backend, Result};

#[derive(Default)]
struct InMemory(OnceLock<MemoryBackend>);

#[async_trait]
impl Place for InMemory {
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(self.0.get_or_init(|| MemoryBackend::new(source)).clone()))
    }
}

struct InFile {
    dir: tempfile::TempDir,
    text_index: bool,
}

impl InFile {
    fn new(text_index: bool) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), text_index }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("milepost.db")
    }
}

#[async_trait]
impl Place for InFile {
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
        let mut options = SqliteOptions::default();
        options.text_index = self.text_index;
        Ok(Arc::new(SqliteBackend::open(&self.path(), &options, source)?))
    }
}

/// A bucket in memory: every opening folds it for itself, as another process would.
struct InBucket(Arc<dyn ObjectStore>);

impl Default for InBucket {
    fn default() -> Self {
        Self(ObjectBackend::in_memory())
    }
}

#[async_trait]
impl Place for InBucket {
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(ObjectBackend::new(Arc::clone(&self.0), "a/prefix", ObjectOptions::default(), source)?))
    }
}

/// A directory that is used as a bucket.
struct InDirectory(tempfile::TempDir);

impl Default for InDirectory {
    fn default() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

#[async_trait]
impl Place for InDirectory {
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
        let url = format!("file://{}", self.0.path().display());
        Ok(Arc::new(ObjectBackend::open(&url, ObjectOptions::default(), source)?))
    }
}

macro_rules! tests_of {
    ($backend:ident, $fresh:expr; $($rule:ident,)*) => {
        mod $backend {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $rule() {
                    conformance::$rule(&$fresh).await.unwrap();
                }
            )*
        }
    };
}

macro_rules! tests {
    ($($rule:ident,)*) => {
        tests_of! { memory, InMemory::default(); $($rule,)* }
        tests_of! { sqlite, InFile::new(true); $($rule,)* }
        tests_of! { object, InBucket::default(); $($rule,)* }
        tests_of! { directory, InDirectory::default(); $($rule,)* }
    };
}

milepost_store::conformance_rules!(tests);

/// A store that was made without a text index keeps every rule too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_rules_hold_without_a_text_index() {
    conformance::all(|| InFile::new(false)).await.unwrap();
}

/// The suite must be able to fail: a backend that forgets what it acknowledged is found out.
#[tokio::test]
async fn a_forgetful_backend_is_found_out() {
    struct Forgetful;
    #[async_trait]
    impl Place for Forgetful {
        async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
            Ok(Arc::new(MemoryBackend::new(source)))
        }
    }
    let mut broken = Vec::new();
    for rule in RULES {
        if (rule.check)(&Forgetful).await.is_err() {
            broken.push(rule.name);
        }
    }
    assert!(broken.contains(&"acknowledged_appends_are_there_after_reopening"), "{broken:?}");
    assert!(broken.contains(&"racing_appends_never_interleave"), "{broken:?}");
    assert!(broken.len() * 2 > RULES.len(), "only {} of {} rules noticed: {broken:?}", broken.len(), RULES.len());
}
