//! Where time, randomness and ids come from. Everything that needs one of them is given a
//! [`Source`]; only the store's `system` module makes one from the machine.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::id::Id;

/// A moment, in milliseconds since 1970 (UTC).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Milliseconds since 1970.
    pub fn unix_ms(self) -> i64 {
        self.0
    }
    /// This moment, `ms` later (or earlier, when negative).
    pub fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }
    /// How long after `earlier` this is, in milliseconds; zero when it is before.
    pub fn since_ms(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0).max(0)
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, with milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000);
        let ms = self.0.rem_euclid(86_400_000);
        let (year, month, day) = civil(days);
        let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", ms % 1000)
    }
}

/// The civil date of a number of days since 1970 (proleptic Gregorian calendar).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days.saturating_add(719_468);
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Tells the time.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// Gives random bytes.
pub trait Entropy: Send + Sync {
    /// Fills `out` with random bytes.
    fn fill(&self, out: &mut [u8]);
}

/// A clock that stands still until it is told to move. For tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.0))
    }
    /// Moves the clock forward.
    pub fn advance_ms(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
    /// Sets the clock, also backwards.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// Random bytes from a seed: the same seed gives the same bytes.
pub struct SeededEntropy {
    seed: [u8; 32],
    drawn: AtomicU64,
}

impl SeededEntropy {
    /// Starts from a seed.
    pub fn new(seed: [u8; 32]) -> Self {
        Self { seed, drawn: AtomicU64::new(0) }
    }
    /// Starts from a small seed, for tests.
    pub fn from_u64(seed: u64) -> Self {
        Self::new(*blake3::hash(&seed.to_le_bytes()).as_bytes())
    }
    /// Fills `out`, mixing `salt` in (a process id, say, so that a fork draws other bytes).
    pub fn fill_salted(&self, salt: u64, out: &mut [u8]) {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut hasher = blake3::Hasher::new_keyed(&self.seed);
        hasher.update(&n.to_le_bytes()).update(&salt.to_le_bytes());
        hasher.finalize_xof().fill(out);
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, out: &mut [u8]) {
        self.fill_salted(0, out);
    }
}

/// The one source of time, randomness and ids.
#[derive(Clone)]
pub struct Source {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    last_id: Arc<Mutex<u128>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl Source {
    /// A source made of a clock and an entropy.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { clock, entropy, last_id: Arc::default() }
    }

    /// A source for tests: a seed and a clock that the test moves.
    pub fn seeded(seed: u64, clock: Arc<ManualClock>) -> Self {
        Self::new(clock, Arc::new(SeededEntropy::from_u64(seed)))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Fills `out` with random bytes.
    pub fn fill(&self, out: &mut [u8]) {
        self.entropy.fill(out);
    }

    /// A new id. Ids of one source sort in the order they were made, also within one millisecond
    /// and when the clock steps back.
    pub fn id<T: Id>(&self) -> T {
        let mut tail = [0u8; 16];
        self.entropy.fill(&mut tail[6..]);
        let ms = self.now().unix_ms().clamp(0, (1 << 47) - 1) as u128;
        let fresh = (ms << 80) | u128::from_be_bytes(tail);
        let mut last = self.last_id.lock().unwrap_or_else(PoisonError::into_inner);
        *last = if fresh > *last { fresh } else { *last + 1 };
        T::from_bits(*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;

    #[test]
    fn timestamps_read_as_rfc_3339() {
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp(1_700_000_000_123).to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(Timestamp(951_782_400_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Timestamp(-1).to_string(), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn ids_sort_even_when_the_clock_steps_back() {
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000)));
        let source = Source::seeded(1, clock.clone());
        let mut last: SessionId = source.id();
        for step in 0..100 {
            clock.set(Timestamp(1_000_000 - step * 10));
            let next: SessionId = source.id();
            assert!(next > last);
            assert_eq!(next.to_string().parse::<SessionId>().unwrap(), next);
            last = next;
        }
    }
}
