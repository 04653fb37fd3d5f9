//! The one place that asks the machine for the time and for randomness.
#![allow(clippy::disallowed_methods, reason = "everything else gets time and randomness from here")]

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use milepost_model::{Clock, Entropy, SeededEntropy, Source, Timestamp};

use crate::error::{Error, Result};

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A clock before 1970 is as wrong as one that stands at 1970.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Seeded once by the operating system. The process id is mixed in, so that a forked child draws other bytes.
struct SystemEntropy(SeededEntropy);

impl Entropy for SystemEntropy {
    fn fill(&self, out: &mut [u8]) {
        self.0.fill_salted(u64::from(std::process::id()), out);
    }
}

/// The machine's clock and randomness.
pub fn system_source() -> Result<Source> {
    let mut seed = [0u8; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| Error::Io { what: "asking the system for randomness".into(), why: error.to_string() })?;
    Ok(Source::new(Arc::new(SystemClock), Arc::new(SystemEntropy(SeededEntropy::new(seed)))))
}
