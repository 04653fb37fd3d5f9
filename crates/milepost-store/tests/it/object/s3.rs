//! The same rules on a real S3 server. `MILEPOST_TEST_S3` names its bucket (`scripts/with-s3` starts one and sets it);
//! without it there is nothing to test here, unless `MILEPOST_TEST_ALL` says that nothing may be passed over.

mod attack;
mod proxy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use milepost_model::Source;
use milepost_store::conformance::{self, Place};
use milepost_store::object::{ObjectBackend, ObjectOptions};
use milepost_store::{Backend, Result};

/// The bucket's URL.
pub fn bucket() -> Option<String> {
    let bucket = std::env::var("MILEPOST_TEST_S3").ok().filter(|url| !url.is_empty());
    let is_needed = std::env::var_os("MILEPOST_TEST_ALL").is_some();
    assert!(bucket.is_some() || !is_needed, "MILEPOST_TEST_S3 names no bucket: run this with scripts/with-s3");
    bucket
}

/// A prefix in the bucket that nobody else uses.
pub struct Prefix(String);

impl Prefix {
    pub fn new(what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        let (bucket, run) = (bucket().unwrap(), std::process::id());
        Self(format!("{bucket}/{what}/{run}-{number}-{}", time % 1_000_000_000))
    }

    pub fn url(&self) -> String {
        self.0.clone()
    }
}

#[async_trait]
impl Place for Prefix {
    async fn open(&self, source: Source) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(ObjectBackend::open(&self.0, ObjectOptions::default(), source)?))
    }
}

macro_rules! tests {
    ($($rule:ident,)*) => {
        mod rules {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $rule() {
                    if bucket().is_some() {
                        conformance::$rule(&Prefix::new("rule")).await.unwrap();
                    }
                }
            )*
        }
    };
}

milepost_store::conformance_rules!(tests);
