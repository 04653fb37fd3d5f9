//! Writing to a session exactly where it was read, without holding it: what adapters of frameworks need to take
//! something back, or to change a value that they have read.

use std::sync::Arc;

use milepost::model::{Event, Seq, SessionId, TimelineId};
use milepost::{Add, NewMark, SessionPatch, Trigger};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};

use crate::convert::to_object;
use crate::engine::{Engine, invalid, json_result, messages, new_session, session_id, settings};
use crate::run::run;

/// Where the head is: its timeline, and the number that its next entry gets.
type Head = (String, u64);

fn timeline(py: Python<'_>, text: &str) -> PyResult<TimelineId> {
    text.parse().map_err(|error: milepost::model::IdError| invalid(py, milepost::store::Error::from(error)))
}

/// Where a session's head is now.
#[pyfunction]
pub(crate) fn head<'py>(
    py: Python<'py>,
    event_loop: Option<Bound<'py, PyAny>>,
    engine: &Engine,
    session: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let (place, id) = (Arc::clone(&engine.place), session_id(py, session)?);
    let work = async move { Ok(json!(place.shared(id).await?.head().await?)) };
    run(py, event_loop.as_ref(), work, json_result)
}

/// An id for a session that is to be begun.
#[pyfunction]
pub(crate) fn new_session_id<'py>(
    py: Python<'py>,
    event_loop: Option<Bound<'py, PyAny>>,
    engine: &Engine,
) -> PyResult<Bound<'py, PyAny>> {
    let place = Arc::clone(&engine.place);
    let work = async move { Ok(json!(place.engine().await?.source().id::<SessionId>())) };
    run(py, event_loop.as_ref(), work, json_result)
}

/// Adds, all or nothing, if the head is still where it was (when that is said); with `back_to`, behind that entry. Returns the number of the
/// first entry and where the head is then.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
pub(crate) fn add_at<'py>(
    py: Python<'py>,
    event_loop: Option<Bound<'py, PyAny>>,
    engine: &Engine,
    session: &str,
    head: Option<Head>,
    back_to: Option<u64>,
    given: Bound<'py, PyAny>,
    event: Option<(String, Bound<'py, PyDict>)>,
    set: Option<Bound<'py, PyDict>>,
    patch: Option<Bound<'py, PyDict>>,
    trigger: Option<String>,
) -> PyResult<Bound<'py, PyAny>> {
    let (place, id) = (Arc::clone(&engine.place), session_id(py, session)?);
    let head = head.map(|(id, length)| Ok::<_, PyErr>((timeline(py, &id)?, length))).transpose()?;
    let event =
        event.map(|(kind, data)| Ok::<_, PyErr>(Event::new(kind, Value::Object(to_object("an event's data", &data)?))));
    let add = Add {
        messages: messages(py, &given)?,
        event: event.transpose()?,
        set: settings(py, set.as_ref())?,
        patch: SessionPatch(patch.map(|patch| to_object("a patch", &patch)).transpose()?.unwrap_or_default()),
        mark: trigger.map(|trigger| NewMark::new(Trigger::from(trigger))),
        ..Add::default()
    };
    let work = async move {
        let shared = place.shared(id).await?;
        let receipt = match head {
            Some(head) => shared.add_at(head, back_to.map(Seq), add).await?,
            None => shared.add(add).await?,
        };
        Ok(json!({ "seq": receipt.first.seq.0, "head": (receipt.first.timeline, receipt.length) }))
    };
    run(py, event_loop.as_ref(), work, json_result)
}

/// Begins a session that shares everything up to and with an entry of another. Nobody holds it.
#[pyfunction]
pub(crate) fn branch_at<'py>(
    py: Python<'py>,
    event_loop: Option<Bound<'py, PyAny>>,
    engine: &Engine,
    session: &str,
    seq: u64,
    fields: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let (place, id) = (Arc::clone(&engine.place), session_id(py, session)?);
    let new = new_session(py, &fields)?;
    let work = async move { Ok(json!(place.shared(id).await?.branch_at(Seq(seq), new).await?)) };
    run(py, event_loop.as_ref(), work, json_result)
}
