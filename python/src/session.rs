//! A session that this process holds, as Python sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use milepost::model::{Event, State};
use milepost::store::Error as StoreError;
use milepost::{Appended, Session, SessionId, SessionPatch};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::convert::{to_json, to_object, to_python};
use crate::engine::{Place, mark, marked, messages, point, settings};
use crate::error::{Failure, Outcome, exception};
use crate::run::run;

/// A session while it is held. Given back before a fork, taken again when the same process next needs it.
pub(crate) struct Cell {
    place: Arc<Place>,
    id: SessionId,
    /// The process that holds it.
    process: u32,
    session: RwLock<Option<Session>>,
    released: AtomicBool,
}

impl Cell {
    /// Uses the session.
    async fn with<T>(&self, work: impl AsyncFnOnce(&Session) -> milepost::Result<T>) -> Outcome<T> {
        if self.process != std::process::id() {
            return Err(Failure::Forked { what: format!("session {}", self.id), process: self.process });
        }
        if self.session.read().await.is_none() {
            let mut session = self.session.write().await;
            if self.released.load(Ordering::Relaxed) {
                return Err(milepost::Error::refused(
                    format!("session {}", self.id),
                    "it was released",
                    "resume or hold it again",
                )
                .into());
            }
            if session.is_none() {
                *session = Some(self.place.engine().await?.hold(self.id).await?);
            }
        }
        let session = self.session.read().await;
        match &*session {
            Some(session) => Ok(work(session).await?),
            None => Err(StoreError::Closed.into()),
        }
    }

    /// Gives it back for now.
    pub async fn suspend(&self) {
        if let Some(session) = self.session.write().await.take() {
            // A lease that cannot be given back ends by itself.
            drop(session.release().await);
        }
    }

    async fn release(&self) -> Outcome<()> {
        self.released.store(true, Ordering::Relaxed);
        match self.session.write().await.take() {
            Some(_) if self.process != std::process::id() => Ok(()),
            Some(session) => Ok(session.release().await?),
            None => Ok(()),
        }
    }
}

/// A session that this process holds.
#[pyclass(frozen, module = "milepost._milepost")]
pub(crate) struct Held {
    cell: Arc<Cell>,
}

fn appended(appended: &Appended) -> Value {
    json!({ "seq": appended.first.seq.0, "checkpoint": appended.checkpoint })
}

fn json_result(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    Ok(to_python(py, &value)?.unbind())
}

impl Held {
    pub fn new(place: &Arc<Place>, session: Session) -> Self {
        let cell = Arc::new(Cell {
            place: Arc::clone(place),
            id: session.id(),
            process: std::process::id(),
            session: RwLock::new(Some(session)),
            released: AtomicBool::new(false),
        });
        place.keep(&cell);
        Self { cell }
    }

    fn call<'py, F>(
        &self,
        py: Python<'py>,
        event_loop: Option<&Bound<'py, PyAny>>,
        work: F,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        F: for<'a> FnOnce(&'a Session) -> BoxFuture<'a> + Send + 'static,
    {
        let cell = Arc::clone(&self.cell);
        let work = async move {
            // The borrow ends with the call.
            cell.with(async |session: &Session| work(session).await).await
        };
        run(py, event_loop, work, json_result)
    }
}

type BoxFuture<'a> = std::pin::Pin<Box<dyn Future<Output = milepost::Result<Value>> + Send + 'a>>;

#[pymethods]
impl Held {
    /// Its id.
    #[getter]
    fn id(&self) -> String {
        self.cell.id.to_string()
    }

    fn info<'py>(&self, py: Python<'py>, event_loop: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, event_loop.as_ref(), |session| Box::pin(async move { Ok(json!(session.info().await)) }))
    }

    fn state<'py>(&self, py: Python<'py>, event_loop: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, event_loop.as_ref(), |session| Box::pin(async move { Ok(session.state().await?.into_value()) }))
    }

    fn append<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        given: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let messages = messages(py, &given)?;
        self.call(py, event_loop.as_ref(), |session| {
            Box::pin(async move { Ok(appended(&session.append_all(messages).await?)) })
        })
    }

    fn set<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        values: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let values = settings(py, Some(&values))?;
        self.call(py, event_loop.as_ref(), |session| {
            Box::pin(async move { Ok(appended(&session.set(&values).await?)) })
        })
    }

    fn set_state<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        state: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let state = State::try_from(to_json(&state)?)
            .map_err(|error| exception(py, &Failure::from(StoreError::from(error))))?;
        self.call(py, event_loop.as_ref(), |session| {
            Box::pin(async move { Ok(appended(&session.set_state(state).await?)) })
        })
    }

    fn event<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        kind: String,
        data: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let event = Event::new(kind, Value::Object(to_object("an event's data", &data)?));
        self.call(py, event_loop.as_ref(), |session| {
            Box::pin(async move { Ok(appended(&session.event(event).await?)) })
        })
    }

    fn checkpoint<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        label: Option<String>,
        trigger: Option<String>,
        description: Option<String>,
        extra: Option<Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mark = mark(trigger, label, description, extra.as_ref())?;
        self.call(py, event_loop.as_ref(), |session| {
            Box::pin(async move { Ok(json!(session.checkpoint(mark).await?)) })
        })
    }

    fn patch<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        fields: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let patch = SessionPatch(to_object("a session's fields", &fields)?);
        self.call(py, event_loop.as_ref(), |session| {
            Box::pin(async move {
                session.patch(patch).await?;
                Ok(Value::Null)
            })
        })
    }

    fn restore<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        to: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let to = point(py, Some(&to))?;
        self.call(py, event_loop.as_ref(), |session| Box::pin(async move { Ok(marked(&session.restore(&to).await?)) }))
    }

    /// Ends the work for now or for good: `pause`, `wait`, `complete`, `fail`, `cancel`.
    fn end<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        how: String,
        why: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, event_loop.as_ref(), |session| {
            Box::pin(async move {
                let why = why.as_deref();
                Ok(json!(match how.as_str() {
                    "pause" => session.pause(why).await?,
                    "wait" => session.wait(why.unwrap_or_default()).await?,
                    "complete" => session.complete().await?,
                    "fail" => session.fail(why.unwrap_or_default()).await?,
                    _ => session.cancel(why).await?,
                }))
            })
        })
    }

    fn release<'py>(&self, py: Python<'py>, event_loop: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let cell = Arc::clone(&self.cell);
        run(py, event_loop.as_ref(), async move { cell.release().await }, |py, ()| Ok(py.None()))
    }
}
