//! The limits of a call. Every error about one names it.

use std::time::Duration;

use serde::Deserialize;

/// The largest answer, as it comes over the wire (32 MiB).
pub const MAX_RESPONSE_BYTES: usize = 32 << 20;
/// The largest event of a stream (4 MiB).
pub const MAX_FRAME_BYTES: usize = 4 << 20;
/// How much of the body of a refusal is read (64 KiB).
pub const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// The most blocks of an answer (1,000).
pub const MAX_BLOCKS: usize = 1000;
/// How much of what a server says about an error is passed on, in characters (600).
pub const MAX_TOLD_CHARS: usize = 600;
/// How long a limit lasts when the server does not say (60 seconds).
pub const DEFAULT_LIMIT_MS: i64 = 60_000;
/// A limit lasts at least so long (1 second), whatever its provider says: asking again at once would be limited again.
pub const MIN_LIMIT_MS: i64 = 1000;
/// The longest that a limit is believed to last (8 days: a weekly limit, and a day).
pub const MAX_LIMIT_MS: i64 = 8 * 86_400_000;
/// The tokens that an answer may have when the request does not say (8,192).
pub const DEFAULT_MAX_TOKENS: u32 = 8192;

/// How long a call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Until there is a connection, in milliseconds (10 seconds).
    pub connect_ms: u64,
    /// From then until the first byte of the answer, in milliseconds (3 minutes).
    pub first_byte_ms: u64,
    /// Between two pieces of the answer, in milliseconds (90 seconds).
    pub progress_ms: u64,
    /// For everything, in milliseconds (1 hour).
    pub whole_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect_ms: 10_000, first_byte_ms: 180_000, progress_ms: 90_000, whole_ms: 3_600_000 }
    }
}

impl Timeouts {
    pub(crate) fn connect(self) -> Duration {
        Duration::from_millis(self.connect_ms.max(1))
    }
    pub(crate) fn first_byte(self) -> Duration {
        Duration::from_millis(self.first_byte_ms.max(1))
    }
    pub(crate) fn progress(self) -> Duration {
        Duration::from_millis(self.progress_ms.max(1))
    }
    pub(crate) fn whole(self) -> Duration {
        Duration::from_millis(self.whole_ms.max(1))
    }
}
