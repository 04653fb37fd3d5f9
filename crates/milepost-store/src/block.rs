//! Waiting for the store without an async runtime.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread waits for the store and nothing else, so that the store may work on it.
#[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "only SQLite works on the caller's thread"))]
pub(crate) fn may_block() -> bool {
    MAY_BLOCK.get()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Sets the flag for as long as it lives.
struct Allowed {
    before: bool,
}

impl Allowed {
    fn here() -> Self {
        Self { before: MAY_BLOCK.replace(true) }
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        MAY_BLOCK.set(self.before);
    }
}

/// Waits on this thread until a call to the store is done: for programs without an async runtime.
///
/// It is also the fastest way to save for a program that has nothing else to do meanwhile: with nobody else writing,
/// the store does the work on this thread instead of handing it to another and back. Do not call it from async code:
/// everything else on the thread would wait, too.
///
/// ```
/// use milepost_store::{Claim, NewSession, Options, Store, block_on};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("milepost.db");
/// let store = block_on(Store::open(&format!("sqlite:{}", path.display()), Options::default()))?;
/// let writer = block_on(store.create(NewSession::default(), &Claim::new("the example")))?;
/// assert!(block_on(store.session(writer.id())).is_ok());
/// # block_on(store.close())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        let polled = {
            let _allowed = Allowed::here();
            future.as_mut().poll(&mut context)
        };
        match polled {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
