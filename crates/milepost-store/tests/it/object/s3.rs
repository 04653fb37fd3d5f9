//! The same rules on a real S3 server. `MILEPOST_TEST_S3` names its bucket (`scripts/with-s3` starts one and sets it) or is
//! `none`: then there is nothing to test here.

mod attack;
mod proxy;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use milepost_model::{ManualClock, Source};
use milepost_store::conformance::{self, Place};
use milepost_store::object::object_store::aws::AmazonS3Builder;
use milepost_store::object::object_store::{ObjectStore as _, ObjectStoreExt as _};
use milepost_store::object::{ObjectBackend, ObjectOptions};
use milepost_store::{Backend, Options, Redactor, Result, Store};

use super::{LEAKED, leak};
use crate::support::{START, claim, create};

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

/// What a redaction replaced is in no object any more when it is done again after the delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_redacted_is_gone_after_the_delay() {
    if bucket().is_none() {
        return;
    }
    let place = Prefix::new("redacted");
    let clock = Arc::new(ManualClock::new(START));
    let mut options = Options::default();
    options.source = Some(Source::seeded(7, Arc::clone(&clock)));
    let open = async || Store::open(&place.url(), options.clone()).await.unwrap();
    let store = open().await;
    let writer = create(&store).await;
    leak(&writer).await;
    writer.release().await.unwrap();
    let redactor = Redactor::literal(LEAKED, "[gone]").unwrap();
    assert_eq!(store.redact(&redactor, "it leaked", &claim(), false).await.unwrap().entries, 4);
    store.close().await.unwrap();
    assert!(holds(&place, LEAKED.as_bytes()).await, "the test does not see it");
    clock.advance_ms(601_000);
    let store = open().await;
    assert!(store.redact(&redactor, "again", &claim(), false).await.unwrap().sessions.is_empty());
    assert!(!holds(&place, LEAKED.as_bytes()).await);
    assert!(store.verify().await.unwrap().is_whole());
    store.close().await.unwrap();
}

/// Whether any object below a prefix holds these bytes, unpacked.
async fn holds(place: &Prefix, needle: &[u8]) -> bool {
    let (name, prefix) = place.0.strip_prefix("s3://").unwrap().split_once('/').unwrap();
    let store = AmazonS3Builder::from_env().with_bucket_name(name).with_allow_http(true).build().unwrap();
    let found: Vec<_> = store.list(Some(&prefix.into())).try_collect().await.unwrap();
    assert!(!found.is_empty());
    for meta in found {
        let bytes = store.get(&meta.location).await.unwrap().bytes().await.unwrap();
        let packed = bytes.get(13..).unwrap_or_default();
        let plain = zstd::bulk::decompress(packed, 1 << 24).unwrap_or_else(|_| packed.to_vec());
        if plain.windows(needle.len()).any(|window| window == needle) {
            return true;
        }
    }
    false
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
