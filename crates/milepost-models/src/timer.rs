//! Waiting, through something that a test or a simulation can replace.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use milepost_model::ManualClock;

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What waits. Like [`milepost_model::Source`] for time: nothing sleeps but through one.
#[derive(Clone)]
pub struct Timer(Arc<dyn Fn(u64) -> Sleep + Send + Sync>);

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timer")
    }
}

impl Timer {
    /// Waits in real time.
    pub fn real() -> Self {
        Self(Arc::new(|ms| Box::pin(tokio::time::sleep(Duration::from_millis(ms)))))
    }

    /// Does not wait.
    pub fn none() -> Self {
        Self(Arc::new(|_| Box::pin(async {})))
    }

    /// Does not wait, but moves a clock on by what it would have waited.
    pub fn moving(clock: Arc<ManualClock>) -> Self {
        Self(Arc::new(move |ms| {
            clock.advance_ms(i64::try_from(ms).unwrap_or(i64::MAX));
            Box::pin(async {})
        }))
    }

    /// Waits.
    pub async fn wait_ms(&self, ms: u64) {
        if ms > 0 {
            (self.0)(ms).await;
        }
    }
}
