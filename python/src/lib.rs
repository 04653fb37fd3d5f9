//! Milepost inside a Python process: the engine, and what its adapters need to be quick.
//!
//! Every method is a few lines around one call of the engine. A call without an event loop waits on the caller's thread
//! with the interpreter released; a call with one returns a future of that loop and works on a thread of Milepost's own. The
//! Python package around this module gives things their names and types; see `milepost/__init__.py`.

mod convert;
mod engine;
mod entries;
mod error;
mod exact;
mod langgraph;
mod message;
mod process;
mod run;
mod session;
mod snapshot;
mod turn;

/// A checkpoint is made by one thread and let go by the one that writes: the system's allocator took a tenth of the time of saving.
/// Nothing is being allocated here while the process forks (`process`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The inner part of the package `milepost`.
#[pyo3::pymodule]
mod _milepost {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::exact::{add_at, branch_at, head, new_session_id};
    #[pymodule_export]
    use super::langgraph::LangGraph;
    #[pymodule_export]
    use super::process::{after_fork_in_child, after_fork_in_parent, before_exit, before_fork};
    #[pymodule_export]
    use super::session::Held;
    #[pymodule_export]
    use super::snapshot::look_into_dicts;

    /// What is told to Python goes to the interpreter that the process began with, and that one's end is waited for.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::process::check_interpreter(module.py())
    }
}
