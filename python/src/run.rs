//! How a call of the engine is made from Python: waited for, or as a future of an event loop.

use std::future::Future;

use milepost::store::block_on;
use pyo3::prelude::*;

use crate::error::{Outcome, exception};
use crate::process::{Call, Telling, is_exit_near, runtime};
use crate::turn;

/// Does something and gives its outcome: at once when there is no event loop, else as a future of the loop. The
/// interpreter is free meanwhile in both cases.
pub(crate) fn run<'py, T, F>(
    py: Python<'py>,
    event_loop: Option<&Bound<'py, PyAny>>,
    work: F,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: Send + 'static,
    F: Future<Output = Outcome<T>> + Send + 'static,
{
    let runtime = runtime()?;
    // Whoever calls while the interpreter ends waits: no thread of ours may tell it the outcome.
    let Some(event_loop) = event_loop.filter(|_| !is_exit_near()) else {
        let outcome = py.detach(|| {
            turn::end();
            let _call = Call::begin();
            let _context = runtime.enter();
            let outcome = block_on(work);
            turn::begin();
            outcome
        });
        let outcome = match outcome {
            Ok(value) => Ok(finish(py, value)?.into_bound(py)),
            Err(failure) => Err(exception(py, &failure)),
        };
        let Some(event_loop) = event_loop else { return outcome };
        let future = event_loop.call_method0("create_future")?;
        match outcome {
            Ok(value) => future.call_method1("set_result", (value,))?,
            Err(error) => future.call_method1("set_exception", (error.into_value(py),))?,
        };
        return Ok(future);
    };
    let future = event_loop.call_method0("create_future")?;
    let (to_loop, to_future) = (event_loop.clone().unbind(), future.clone().unbind());
    let call = py.detach(Call::begin);
    runtime.spawn(async move {
        let outcome = work.await;
        drop(call);
        // Nobody may be left to be told: an interpreter that ends, a loop that was closed.
        let Some(_telling) = Telling::begin() else { return };
        Python::try_attach(move |py| {
            let outcome = match outcome {
                Ok(value) => finish(py, value),
                Err(failure) => Err(exception(py, &failure)),
            };
            let (value, error) = match outcome {
                Ok(value) => (value, py.None()),
                Err(error) => (py.None(), error.into_value(py).into_any()),
            };
            let resolve = py.import("milepost._aio").and_then(|module| module.getattr("resolve"));
            if let Ok(resolve) = resolve {
                drop(to_loop.bind(py).call_method1("call_soon_threadsafe", (resolve, to_future, value, error)));
            }
        });
    });
    Ok(future)
}
