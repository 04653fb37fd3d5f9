//! A bucket that misbehaves as real ones do: answers that are lost, PUTs that are refused though nothing is there,
//! PUTs that never arrive. And one that is far away.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use milepost_store::object::object_store::path::Path;
use milepost_store::object::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What becomes of a conditional PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is stored and the answer is lost.
    AnswerLost,
    /// It is stored, the answer is lost, and the client tries again by itself.
    Retried,
    /// It is refused as if something were there, though nothing is.
    Conflict,
    /// It is not stored, and nobody knows.
    NeverArrives,
}

#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    faults: Mutex<VecDeque<Fault>>,
    /// Every answer takes so long.
    delay_ms: AtomicU64,
    pub puts: AtomicUsize,
    under_way: AtomicUsize,
    /// Requests that were made while no other was under way, since there is a delay.
    pub round_trips: AtomicUsize,
}

impl Faulty {
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::default(),
            delay_ms: AtomicU64::new(0),
            puts: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            round_trips: AtomicUsize::new(0),
        })
    }

    /// What happens to the next conditional PUTs.
    pub fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().unwrap().extend(faults);
    }

    pub fn delay(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    async fn wait(&self) {
        let delay_ms = self.delay_ms.load(Ordering::SeqCst);
        if delay_ms > 0 {
            if self.under_way.fetch_add(1, Ordering::SeqCst) == 0 {
                self.round_trips.fetch_add(1, Ordering::SeqCst);
            }
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            self.under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

fn timed_out() -> Error {
    Error::Generic { store: "test", source: "the answer did not come".into() }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.wait().await;
        self.puts.fetch_add(1, Ordering::SeqCst);
        let fault = match opts.mode {
            PutMode::Create => self.faults.lock().unwrap().pop_front(),
            _ => None,
        };
        match fault {
            None => self.inner.put_opts(location, payload, opts).await,
            Some(Fault::AnswerLost) => {
                self.inner.put_opts(location, payload, opts).await?;
                Err(timed_out())
            }
            Some(Fault::Retried) => {
                self.inner.put_opts(location, payload.clone(), opts.clone()).await?;
                self.inner.put_opts(location, payload, opts).await
            }
            Some(Fault::Conflict) => {
                let path = location.to_string();
                Err(Error::AlreadyExists { path, source: "409 ConditionalRequestConflict".into() })
            }
            Some(Fault::NeverArrives) => Err(timed_out()),
        }
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.wait().await;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        use futures_util::StreamExt as _;
        let (listed, delay_ms) = (self.inner.list(prefix), self.delay_ms.load(Ordering::SeqCst));
        let wait = async move {
            if delay_ms > 0 {
                tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            }
            listed
        };
        futures_util::stream::once(wait).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.wait().await;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
