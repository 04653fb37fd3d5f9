//! The same rules on a real S3 server. `MILEPOST_TEST_S3` names its bucket (`scripts/with-s3` starts one and sets it) or is
//! `none`: then there is nothing to test here.

mod attack;
mod proxy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use milepost_model::Source;
use milepost_store::conformance::{self, Place};
use milepost_store::object::{ObjectBackend, ObjectOptions};
use milepost_store::{Backend, Result};

const VARIABLE: &str = "MILEPOST_TEST_S3";

/// The bucket's URL.
pub fn bucket() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|url| !url.is_empty() && url != "none")
}

/// A run that tested nothing here must not look like one that passed.
#[test]
fn a_bucket_is_named_or_left_out_on_purpose() {
    let is_said = std::env::var(VARIABLE).is_ok_and(|url| !url.is_empty());
    assert!(
        is_said,
        "S3 was not tested: {VARIABLE} names no bucket. Run `scripts/with-s3 cargo test`, or set it to `none` to leave S3 \
         out."
    );
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
