//! What happens when the process is forked.
//!
//! A child has its parent's memory, but none of its threads; and a database that was open in the parent must not be used
//! in it. So nothing is left open over a fork: before it, whoever calls the engine is waited for and every store is closed;
//! after it, each side opens its stores again when it next needs them. The locks of this file are held by the thread that
//! forks: one that another thread held at that moment would never be given back in the child.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crate::engine::Place;
use crate::turn;

/// How long a fork waits for calls that are under way. Those that take longer are told that the store is closed.
const FORK_WAIT: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Gate {
    /// Calls under way.
    calls: usize,
    is_forking: bool,
    places: Vec<Weak<Place>>,
}

static GATE: Mutex<Gate> = Mutex::new(Gate { calls: 0, is_forking: false, places: Vec::new() });
static CHANGED: Condvar = Condvar::new();

fn gate() -> MutexGuard<'static, Gate> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that is under way: no fork begins while it lives.
pub(crate) struct Call(());

impl Call {
    /// Begins a call; waits while the process is being forked.
    pub fn begin() -> Self {
        let mut gate = gate();
        while gate.is_forking {
            gate = CHANGED.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        gate.calls += 1;
        Self(())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut gate = gate();
        gate.calls = gate.calls.saturating_sub(1);
        // Only a fork waits for calls: telling nobody would cost every call a turn through the system.
        if gate.is_forking {
            CHANGED.notify_all();
        }
    }
}

/// Threads that are telling Python something.
static TELLING: Mutex<usize> = Mutex::new(0);
static TOLD: Condvar = Condvar::new();
/// Whether the interpreter is about to end. Changed while [`TELLING`] is held.
static IS_EXIT_NEAR: AtomicBool = AtomicBool::new(false);

fn telling() -> MutexGuard<'static, usize> {
    TELLING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locks of this file, and that of turns.
type Held = (MutexGuard<'static, Gate>, MutexGuard<'static, usize>, MutexGuard<'static, ()>);

fn locks() -> Held {
    (gate(), telling(), turn::queue())
}

thread_local! {
    /// What the thread that forks holds until both sides go on.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// A thread of ours that is telling Python something: the interpreter does not end while it lives.
pub(crate) struct Telling(());

impl Telling {
    /// None when the interpreter is about to end, and nobody is left to be told.
    pub fn begin() -> Option<Self> {
        let mut telling = telling();
        if is_exit_near() {
            return None;
        }
        *telling += 1;
        Some(Self(()))
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let mut telling = telling();
        *telling = telling.saturating_sub(1);
        if is_exit_near() {
            TOLD.notify_all();
        }
    }
}

/// Whether the interpreter is about to end: no thread of ours tells it anything any more. Takes no lock, as whoever asks has
/// the interpreter, which the thread that forks may be waiting for.
pub(crate) fn is_exit_near() -> bool {
    IS_EXIT_NEAR.load(Ordering::SeqCst)
}

/// Waits for threads that are telling Python something; from now on none does. A thread that had the interpreter while
/// it ends would bring the process down.
#[pyfunction]
pub(crate) fn before_exit(py: Python<'_>) {
    py.detach(|| {
        let telling = telling();
        IS_EXIT_NEAR.store(true, Ordering::SeqCst);
        drop(TOLD.wait_while(telling, |telling| *telling > 0));
    });
}

/// Refuses every interpreter of a process but the one that it began with.
#[expect(unsafe_code, reason = "no safe call tells which interpreter this is")]
pub(crate) fn check_interpreter(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: the caller has the interpreter, so that there is one.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match number {
        0 => Ok(()),
        _ => Err(PyImportError::new_err("milepost works in the main interpreter of a process only: import it there")),
    }
}

/// Remembers what must be closed before a fork.
pub(crate) fn remember(place: &Arc<Place>) {
    let mut gate = gate();
    gate.places.retain(|known| known.strong_count() > 0);
    gate.places.push(Arc::downgrade(place));
}

/// Waits for calls that are under way, closes every store, and holds the locks that the child will need.
#[pyfunction]
pub(crate) fn before_fork(py: Python<'_>) {
    py.detach(|| {
        let mut gate = gate();
        while gate.is_forking {
            gate = CHANGED.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        gate.is_forking = true;
        let waited = CHANGED.wait_timeout_while(gate, FORK_WAIT, |gate| gate.calls > 0);
        let places: Vec<_> = {
            let (gate, _) = waited.unwrap_or_else(PoisonError::into_inner);
            gate.places.iter().filter_map(Weak::upgrade).collect()
        };
        places.iter().for_each(|place| place.suspend());
    });
    // Whoever holds one of them needs nothing else to give it back: no interpreter, no other lock.
    HELD.set(Some(locks()));
}

/// Lets calls go on.
#[pyfunction]
pub(crate) fn after_fork_in_parent() {
    let held = HELD.take();
    let (mut gate, telling, queue) = held.unwrap_or_else(locks);
    gate.is_forking = false;
    drop((gate, telling, queue));
    CHANGED.notify_all();
}

/// The same in the child, where nobody else can be calling.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    let held = HELD.take();
    let (mut gate, mut telling, _queue) = held.unwrap_or_else(locks);
    (gate.is_forking, gate.calls) = (false, 0);
    *telling = 0;
}

/// The threads that calls from event loops work on. A forked process gets threads of its own.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);
    let (mut made, process) = (RUNTIME.lock().unwrap_or_else(PoisonError::into_inner), std::process::id());
    if let Some((_, runtime)) = made.filter(|(owner, _)| *owner == process) {
        return Ok(runtime);
    }
    let new = Builder::new_multi_thread().worker_threads(2).thread_name("milepost-python").enable_all().build()?;
    let runtime: &'static Runtime = Box::leak(Box::new(new));
    *made = Some((process, runtime));
    Ok(runtime)
}
