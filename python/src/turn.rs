//! Whose turn it is to have the interpreter, among threads that come back from the store.
//!
//! The interpreter's own lock lets those who wait for it sleep, and being woken takes about as long as most of them then have
//! it. So they wait here before they ask for it. One of them stays awake and sees when the one before gives it back; the
//! others sleep behind it, and each wakes the next while it has its own turn. With eight threads that save, that is a fourth more
//! saved. A turn is only a hint: one that takes longer than [`LONG`] is over for everybody else, as its thread does
//! something else than saving.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Nobody waits longer than this for a turn to end.
const LONG: Duration = Duration::from_micros(300);
/// Looks for the end of a turn before others may use the core.
const LOOKS: usize = 32;

/// When the turn that is on began, in nanoseconds from the first on; 0 when none is.
static BEGAN: AtomicU64 = AtomicU64::new(0);
/// Who waits, and is awake.
static NEXT: Mutex<()> = Mutex::new(());

thread_local! {
    /// When this thread's turn began; 0 when it has none.
    static MINE: Cell<u64> = const { Cell::new(0) };
}

#[expect(clippy::disallowed_methods, reason = "it decides nothing but who waits where, and for how long")]
fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = *FIRST.get_or_init(Instant::now);
    u64::try_from(first.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Ends this thread's turn: it has just given the interpreter back.
pub(crate) fn end() {
    let mine = MINE.take();
    if mine != 0 {
        // Where it took long, somebody else's has begun already.
        let _ = BEGAN.compare_exchange(mine, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Waits until the turn that is on is over, and begins one: the thread is about to ask for the interpreter.
pub(crate) fn begin() {
    let _next = queue();
    loop {
        for _ in 0..LOOKS {
            let began = BEGAN.load(Ordering::Relaxed);
            let now = now();
            let is_over = began == 0 || u128::from(now.saturating_sub(began)) > LONG.as_nanos();
            if is_over && BEGAN.compare_exchange(began, now, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                MINE.set(now);
                return;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// Keeps everybody from waiting for a turn.
pub(crate) fn queue() -> MutexGuard<'static, ()> {
    NEXT.lock().unwrap_or_else(PoisonError::into_inner)
}
