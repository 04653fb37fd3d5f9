//! An open store, as Python sees it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use milepost::model::{Event, Position, Seq, State, WorkspaceId};
use milepost::store::{DeleteMode, Error as StoreError, KeyOptions, MasterKey, StoredRecord, block_on};
use milepost::{
    Add, Channel, CheckpointId, EngineOptions, Mark, MarkQuery, Message, MessageQuery, Milepost, NewMark, NewSession,
    Point, Resume, Role, SearchQuery, SessionId, SessionInfo, SessionKey, SessionPatch, SessionQuery, Shared, Status,
    StoredMessage, Timestamp, Trigger, parse_set,
};
use milepost_langgraph::Saver;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde_json::{Map, Value, json};

use crate::convert::{to_json, to_object, to_python};
use crate::error::{Outcome, exception};
use crate::process::remember;
use crate::run::run;
use crate::session::{Cell, Held};

/// So many sessions that are written to without a lease are remembered.
const REMEMBERED: usize = 256;

/// Where a store is, and the engine while it is open. Closed before a fork, opened again when it is next needed.
pub(crate) struct Place {
    url: String,
    options: EngineOptions,
    open: tokio::sync::Mutex<Opened>,
    cells: Mutex<Vec<Weak<Cell>>>,
    shared: Mutex<HashMap<SessionId, Shared>>,
    saver: Mutex<Option<Saver>>,
}

enum Opened {
    Open(Milepost),
    /// It was closed before a fork.
    Suspended,
    /// It was closed for good.
    Closed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// The engine, opened again if need be.
    pub async fn engine(&self) -> Outcome<Milepost> {
        let mut open = self.open.lock().await;
        match &*open {
            Opened::Open(engine) => Ok(engine.clone()),
            Opened::Closed => Err(StoreError::Closed.into()),
            Opened::Suspended => {
                // Boxed, as it is large, and everything that calls an engine would be.
                let engine = Box::pin(Milepost::open_with(&self.url, self.options.clone())).await?;
                *open = Opened::Open(engine.clone());
                Ok(engine)
            }
        }
    }

    /// Closes the store until it is next needed. What is only in memory stays.
    pub fn suspend(&self) {
        if self.url.starts_with("memory:") {
            return;
        }
        block_on(async {
            self.give_back().await;
            let mut open = self.open.lock().await;
            if let Opened::Open(engine) = &*open {
                // Whatever was acknowledged is durable: a close that fails takes nothing away.
                drop(engine.close().await);
                *open = Opened::Suspended;
            }
        });
    }

    /// Gives back every session that is held.
    async fn give_back(&self) {
        lock(&self.shared).clear();
        lock(&self.saver).take();
        let cells: Vec<_> = lock(&self.cells).iter().filter_map(Weak::upgrade).collect();
        for cell in cells {
            cell.suspend().await;
        }
    }

    async fn close(&self) -> Outcome<()> {
        self.give_back().await;
        let mut open = self.open.lock().await;
        match std::mem::replace(&mut *open, Opened::Closed) {
            Opened::Open(engine) => Ok(engine.close().await?),
            Opened::Suspended | Opened::Closed => Ok(()),
        }
    }

    pub fn keep(&self, cell: &Arc<Cell>) {
        let mut cells = lock(&self.cells);
        cells.retain(|known| known.strong_count() > 0);
        cells.push(Arc::downgrade(cell));
    }

    /// LangGraph's threads in this store.
    pub async fn saver(&self) -> Outcome<Saver> {
        // It goes before the store does.
        if let Some(saver) = &*lock(&self.saver) {
            return Ok(saver.clone());
        }
        let engine = self.engine().await?;
        Ok(lock(&self.saver).get_or_insert_with(|| Saver::new(engine.store().clone())).clone())
    }

    /// A session, as a list shows it. One that was deleted is not there, also when it is kept for its branches.
    pub async fn there(&self, id: SessionId) -> Outcome<SessionInfo> {
        let found = self.engine().await?.store().session(id).await?;
        match found.hidden {
            true => Err(StoreError::NotFound { what: "session", id: id.to_string() }.into()),
            false => Ok(found),
        }
    }

    pub async fn shared(&self, id: SessionId) -> Outcome<Shared> {
        if let Some(known) = lock(&self.shared).get(&id) {
            return Ok(known.clone());
        }
        self.there(id).await?;
        let shared = self.engine().await?.share(id).await?;
        let mut all = lock(&self.shared);
        if all.len() >= REMEMBERED {
            all.clear();
        }
        all.insert(id, shared.clone());
        Ok(shared)
    }
}

/// An argument that cannot be used, as the exception for it.
pub(crate) fn invalid(py: Python<'_>, error: impl Into<milepost::Error>) -> PyErr {
    exception(py, &error.into().into())
}

pub(crate) fn session_id(py: Python<'_>, text: &str) -> PyResult<SessionId> {
    text.parse().map_err(|error: milepost::model::IdError| invalid(py, StoreError::from(error)))
}

fn checkpoint_id(py: Python<'_>, text: &str) -> PyResult<CheckpointId> {
    text.parse().map_err(|error: milepost::model::IdError| invalid(py, StoreError::from(error)))
}

pub(crate) fn point(py: Python<'_>, text: Option<&str>) -> PyResult<Point> {
    text.map_or(Ok(Point::Latest), |text| text.parse().map_err(|error: milepost::Error| invalid(py, error)))
}

/// Messages as the caller gave them: dicts with `role` and `content`, whatever else they have.
pub(crate) fn messages(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Vec<Message>> {
    let mut messages = Vec::new();
    for item in given.try_iter()? {
        let value = to_json(&item?)?;
        let message = serde_json::from_value(value).map_err(|error| {
            let why = format!("{error}; give a dict with role and content");
            invalid(py, StoreError::Invalid { what: "message".into(), why })
        })?;
        messages.push(message);
    }
    Ok(messages)
}

/// Paths into the state with what to put there: `{"memory.step": 3}` or `{"/memory/step": 3}`.
pub(crate) fn settings(
    py: Python<'_>,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<(milepost::model::delta::StatePath, Value)>> {
    let mut set = Vec::new();
    for (path, value) in given.into_iter().flat_map(PyDictMethods::iter) {
        let path: String = path.extract()?;
        let value = to_json(&value)?;
        let (path, _) = parse_set(&format!("{path}=null")).map_err(|error| invalid(py, error))?;
        set.push((path, value));
    }
    Ok(set)
}

pub(crate) fn new_session(py: Python<'_>, given: &Bound<'_, PyDict>) -> PyResult<NewSession> {
    let mut fields = to_object("a session's fields", given)?;
    fields.retain(|_, value| !value.is_null());
    let id = fields.remove("id").and_then(|id| id.as_str().map(str::to_owned));
    let state = fields.remove("state").unwrap_or_else(|| Value::Object(Map::new()));
    Ok(NewSession {
        id: id.map(|id| session_id(py, &id)).transpose()?,
        state: State::try_from(state).map_err(|error| invalid(py, StoreError::from(error)))?,
        policy: fields.remove("policy"),
        patch: SessionPatch(fields),
    })
}

pub(crate) fn mark(
    trigger: Option<String>,
    label: Option<String>,
    description: Option<String>,
    extra: Option<&Bound<'_, PyDict>>,
) -> PyResult<NewMark> {
    let mut mark = NewMark::new(trigger.map_or(Trigger::Manual, Trigger::from));
    (mark.label, mark.description) = (label, description);
    if let Some(extra) = extra {
        mark.extra = to_object("a checkpoint's extra", extra)?;
    }
    Ok(mark)
}

fn info(session: &SessionInfo) -> Value {
    serde_json::to_value(session).unwrap_or_default()
}

pub(crate) fn said(stored: &StoredMessage) -> Value {
    json!({ "seq": stored.at.seq.0, "time": stored.time.0, "message": stored.message })
}

pub(crate) fn marked(mark: &Mark) -> Value {
    json!({
        "seq": mark.at.seq.0,
        "session": mark.session,
        "time": mark.time.0,
        "trashed": mark.trashed.map(|time| time.0),
        "messages": mark.checkpoint.messages(),
        "checkpoint": mark.checkpoint,
    })
}

fn position(at: &Position) -> Value {
    json!({ "timeline": at.timeline, "seq": at.seq.0 })
}

fn record(py: Python<'_>, found: &StoredRecord) -> PyResult<Py<PyAny>> {
    let value = PyBytes::new(py, &found.value);
    Ok((found.key.as_str(), found.version, found.due.map(|due| due.0), value).into_pyobject(py)?.into_any().unbind())
}

pub(crate) fn json_result(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    Ok(to_python(py, &value)?.unbind())
}

fn none(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

/// A workspace of a store.
#[pyclass(frozen, module = "milepost._milepost")]
pub(crate) struct Engine {
    pub place: Arc<Place>,
}

fn options(workspace: Option<String>, key: Option<String>, settings: &Bound<'_, PyDict>) -> PyResult<EngineOptions> {
    let py = settings.py();
    let mut options = EngineOptions::default();
    if let Some(workspace) = workspace {
        options.store.workspace =
            workspace.parse::<WorkspaceId>().map_err(|error| invalid(py, StoreError::from(error)))?;
    }
    if let Some(key) = key {
        let key = MasterKey::parse(&key).map_err(|error| invalid(py, error))?;
        options.store.keys = KeyOptions { master: Some(key), ..options.store.keys };
    }
    for (name, value) in settings.iter() {
        match name.extract::<String>()?.as_str() {
            "holder" => options.holder = value.extract()?,
            "redact" if !value.extract::<bool>()? => options.redaction = None,
            "redact" => {}
            "text_index" => options.store.text_index = value.extract()?,
            "blobs" => options.store.blobs = value.extract()?,
            "lease_seconds" => options.store.lease_ttl_ms = (value.extract::<f64>()? * 1000.0) as i64,
            "policy" => {
                let patch = milepost::config::policy_patch(&to_json(&value)?).map_err(|error| invalid(py, error))?;
                options.policy = options.policy.with(&patch);
            }
            other => return Err(PyValueError::new_err(format!("there is no setting {other:?}"))),
        }
    }
    Ok(options)
}

#[pymethods]
impl Engine {
    /// Opens a store, or makes it.
    #[staticmethod]
    fn open<'py>(
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        url: String,
        workspace: Option<String>,
        key: Option<String>,
        settings: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = options(workspace, key, &settings)?;
        let work = async move {
            let engine = Milepost::open_with(&url, options.clone()).await?;
            let (cells, shared, saver) = (Mutex::default(), Mutex::default(), Mutex::default());
            let open = tokio::sync::Mutex::new(Opened::Open(engine));
            let place = Arc::new(Place { url, options, open, cells, shared, saver });
            remember(&place);
            Ok(Engine { place })
        };
        run(py, event_loop.as_ref(), work, |py, engine| Ok(Py::new(py, engine)?.into_any()))
    }

    /// Closes it for good.
    fn close<'py>(&self, py: Python<'py>, event_loop: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        run(py, event_loop.as_ref(), async move { place.close().await }, none)
    }

    /// Begins a session and holds it.
    fn create<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        fields: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, new) = (Arc::clone(&self.place), new_session(py, &fields)?);
        let work = async move {
            let session = place.engine().await?.create(new).await?;
            Ok(Held::new(&place, session))
        };
        run(py, event_loop.as_ref(), work, |py, held| Ok(Py::new(py, held)?.into_any()))
    }

    /// Begins a session that nobody holds.
    fn create_shared<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        fields: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, new) = (Arc::clone(&self.place), new_session(py, &fields)?);
        let work = async move {
            let shared = place.engine().await?.create_shared(new).await?;
            let id = shared.id();
            lock(&place.shared).insert(id, shared);
            Ok(json!(id))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// The open session of a key, or a new one.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn get_or_create<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        project: Option<String>,
        agent: Option<String>,
        feature: Option<String>,
        task: Option<String>,
        stage: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, key) = (Arc::clone(&self.place), SessionKey { project, agent, feature, task, stage });
        let work = async move {
            let session = place.engine().await?.get_or_create(&key).await?;
            Ok(Held::new(&place, session))
        };
        run(py, event_loop.as_ref(), work, |py, held| Ok(Py::new(py, held)?.into_any()))
    }

    /// Holds a session as it is.
    fn hold<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let work = async move {
            place.there(id).await?;
            let session = place.engine().await?.hold(id).await?;
            Ok(Held::new(&place, session))
        };
        run(py, event_loop.as_ref(), work, |py, held| Ok(Py::new(py, held)?.into_any()))
    }

    /// Goes on with a session.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn resume<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        from: Option<String>,
        set: Option<Bound<'py, PyDict>>,
        take_over: bool,
        reopen: bool,
        begin_anew: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let how = Resume {
            point: point(py, from.as_deref())?,
            set: settings(py, set.as_ref())?,
            take_over,
            reopen,
            begin_anew,
            ..Resume::default()
        };
        let work = async move {
            place.there(id).await?;
            let resumed = place.engine().await?.resume(id, how).await?;
            let skipped: Vec<_> =
                resumed.skipped.iter().map(|skipped| json!({ "id": skipped.id, "why": skipped.why })).collect();
            let told = json!({
                "instead_of": resumed.anew.as_ref().map(|anew| anew.instead_of),
                "from": resumed.from.as_ref().map(marked),
                "skipped": skipped,
                "damaged": resumed.damaged,
                "moved": resumed.moved,
                "state": resumed.state,
                "status": resumed.status,
                "messages": resumed.messages,
                "last_active": resumed.last_active.0,
            });
            Ok((Held::new(&place, resumed.session), told))
        };
        run(py, event_loop.as_ref(), work, |py, (held, told)| {
            Ok((Py::new(py, held)?, to_python(py, &told)?).into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Begins a session that shares everything up to a checkpoint of another.
    fn branch<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        from: Option<String>,
        fields: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let (point, new) = (point(py, from.as_deref())?, new_session(py, &fields)?);
        let work = async move {
            place.there(id).await?;
            let session = place.engine().await?.branch(id, &point, new).await?;
            Ok(Held::new(&place, session))
        };
        run(py, event_loop.as_ref(), work, |py, held| Ok(Py::new(py, held)?.into_any()))
    }

    /// The id of the session that a part of an id means.
    fn find<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        given: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        run(py, event_loop.as_ref(), async move { Ok(json!(place.engine().await?.find(&given).await?)) }, json_result)
    }

    /// What a list shows of one session.
    fn session<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let work = async move { Ok(info(&place.there(id).await?)) };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// A page of sessions.
    fn sessions<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        filter: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, query) = (Arc::clone(&self.place), session_query(&filter)?);
        let work = async move {
            let page = place.engine().await?.sessions(&query).await?;
            let sessions: Vec<_> = page.sessions.iter().map(info).collect();
            let next = page.next.map(|next| format!("{}.{}", next.time.0, next.id));
            Ok(json!({ "sessions": sessions, "next": next }))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Messages of a session, or up to one of its checkpoints.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn messages<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        at: Option<String>,
        channel: Option<String>,
        first: Option<usize>,
        last: Option<usize>,
        from: Option<u64>,
        to: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let at = at.map(|at| point(py, Some(&at))).transpose()?;
        let channel = channel.map(Channel::new).transpose().map_err(|error| invalid(py, StoreError::from(error)))?;
        let query = MessageQuery { channel, first, last, from: from.map(Seq), to: to.map(Seq) };
        let work = async move {
            place.there(id).await?;
            let engine = place.engine().await?;
            let found = match at {
                Some(at) => engine.store().messages_at(engine.mark(id, &at).await?.at, &query).await?,
                None => engine.store().messages(id, &query).await?,
            };
            Ok(Value::Array(found.iter().map(said).collect()))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Entries of all kinds along a session's head.
    fn entries<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        from: u64,
        to: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let work = async move {
            place.there(id).await?;
            let engine = place.engine().await?;
            let found = engine.store().entries(id, Seq(from), Seq(to.unwrap_or(u64::MAX))).await?;
            let mut entries = Vec::with_capacity(found.len());
            for entry in found {
                use milepost::model::Body;
                let body = match entry.body {
                    Some(Body::Message(message)) => json!(message),
                    Some(Body::Event(event)) => json!(event),
                    Some(Body::Mark(mark)) => json!(mark),
                    Some(Body::State(_)) | None => Value::Null,
                };
                entries.push(json!({
                    "seq": entry.at.seq.0, "time": entry.time.0, "kind": entry.kind.as_str(), "body": body,
                }));
            }
            Ok(Value::Array(entries))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// The state of a session at its end, or at one of its checkpoints.
    fn state<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        at: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let at = at.map(|at| point(py, Some(&at))).transpose()?;
        let work = async move {
            place.there(id).await?;
            let engine = place.engine().await?;
            let state = match at {
                Some(at) => engine.store().load(engine.mark(id, &at).await?.checkpoint.id).await?.state,
                None => engine.store().state(id).await?,
            };
            Ok(state.into_value())
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Checkpoints of a session, newest first.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn checkpoints<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        label: Option<String>,
        trigger: Option<String>,
        resumable: Option<bool>,
        oldest_first: bool,
        limit: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let query = MarkQuery {
            triggers: trigger.into_iter().map(Trigger::from).collect(),
            label,
            resumable,
            oldest_first,
            limit,
            ..MarkQuery::default()
        };
        let work = async move {
            place.there(id).await?;
            let marks = place.engine().await?.store().marks(id, &query).await?;
            Ok(Value::Array(marks.iter().map(marked).collect()))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// One checkpoint of a session.
    fn checkpoint<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        at: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let at = point(py, at.as_deref())?;
        let work = async move {
            place.there(id).await?;
            Ok(marked(&place.engine().await?.mark(id, &at).await?))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Searches all conversations.
    fn search<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        text: String,
        filter: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, query) = (Arc::clone(&self.place), search_query(text, &filter)?);
        let work = async move {
            let found = place.engine().await?.search(&query).await?;
            let hits: Vec<_> = found
                .hits
                .iter()
                .map(|hit| {
                    json!({
                        "session": hit.session_id, "title": hit.title, "seq": hit.at.seq.0, "time": hit.time.0,
                        "message": hit.message, "before": hit.context.before, "after": hit.context.after,
                        "current": hit.current, "score": hit.score,
                    })
                })
                .collect();
            Ok(json!({ "hits": hits, "more": found.more }))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Compares two checkpoints.
    fn diff<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        a: String,
        b: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, a, b) = (Arc::clone(&self.place), checkpoint_id(py, &a)?, checkpoint_id(py, &b)?);
        let work = async move {
            let diff = place.engine().await?.diff(a, b).await?;
            let all = |messages: &[StoredMessage]| messages.iter().map(said).collect::<Vec<_>>();
            Ok(json!({
                "a": marked(&diff.a), "b": marked(&diff.b), "common": diff.common.as_ref().map(position),
                "only_a": all(&diff.only_a), "only_b": all(&diff.only_b), "state": diff.state,
            }))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Adds to a session without holding it. Returns the number of the first entry and the checkpoint, if one was taken.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn add<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        given: Option<Bound<'py, PyAny>>,
        event: Option<(String, Bound<'py, PyDict>)>,
        set: Option<Bound<'py, PyDict>>,
        patch: Option<Bound<'py, PyDict>>,
        checkpoint: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let event = event
            .map(|(kind, data)| Ok::<_, PyErr>(Event::new(kind, Value::Object(to_object("an event's data", &data)?))));
        let add = Add {
            messages: given.map(|given| messages(py, &given)).transpose()?.unwrap_or_default(),
            event: event.transpose()?,
            set: settings(py, set.as_ref())?,
            patch: SessionPatch(patch.map(|patch| to_object("a patch", &patch)).transpose()?.unwrap_or_default()),
            mark: checkpoint.map(|label| NewMark::new(Trigger::Manual).label(label)),
            batch: None,
        };
        let work = async move {
            let receipt = place.shared(id).await?.add(add).await?;
            Ok(json!({ "seq": receipt.first.seq.0, "checkpoint": receipt.checkpoints.last() }))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Changes what a list shows of a session that nobody holds.
    fn patch<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        fields: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let patch = SessionPatch(to_object("a session's fields", &fields)?);
        let work = async move {
            place.there(id).await?;
            Ok(place.engine().await?.patch(id, patch).await?)
        };
        run(py, event_loop.as_ref(), work, none)
    }

    /// Puts a session into the trash, or takes it out.
    fn trash<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        out: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let work = async move {
            place.there(id).await?;
            let engine = place.engine().await?;
            match out {
                false => engine.store().trash(id, &engine.claim()).await?,
                true => engine.store().untrash(id, &engine.claim()).await?,
            }
            Ok(())
        };
        run(py, event_loop.as_ref(), work, none)
    }

    /// Deletes a session for good.
    fn delete<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        session: String,
        branches: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, id) = (Arc::clone(&self.place), session_id(py, &session)?);
        let mode = match branches.as_str() {
            "refuse" => DeleteMode::Refuse,
            "keep" => DeleteMode::KeepBranches,
            "delete" => DeleteMode::Cascade,
            other => return Err(PyValueError::new_err(format!("branches is refuse, keep or delete, not {other:?}"))),
        };
        let work = async move {
            lock(&place.shared).remove(&id);
            place.there(id).await?;
            place.engine().await?.delete(id, mode, false).await?;
            Ok(())
        };
        run(py, event_loop.as_ref(), work, none)
    }

    /// One record: its key, version, due time and value.
    fn record<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        kind: String,
        key: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        let work = async move { Ok(place.engine().await?.store().record(&kind, &key).await?) };
        run(py, event_loop.as_ref(), work, |py, found| found.map_or_else(|| Ok(py.None()), |found| record(py, &found)))
    }

    /// Records of a kind by key.
    fn records<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        kind: String,
        after: Option<String>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        let work = async move { Ok(place.engine().await?.store().records(&kind, after.as_deref(), limit).await?) };
        run(py, event_loop.as_ref(), work, |py, found| {
            let found = found.iter().map(|found| record(py, found)).collect::<PyResult<Vec<_>>>()?;
            Ok(found.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Writes a record if its version is still the one that is named.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn put_record<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        kind: String,
        key: String,
        value: Vec<u8>,
        expected: Option<u64>,
        due: Option<i64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        let work = async move {
            let engine = place.engine().await?;
            Ok(json!(engine.store().put_record(&kind, &key, expected, due.map(Timestamp), &value).await?))
        };
        run(py, event_loop.as_ref(), work, json_result)
    }

    /// Removes a record if its version is still the one that is named.
    fn delete_record<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        kind: String,
        key: String,
        expected: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        let work = async move { Ok(place.engine().await?.store().delete_record(&kind, &key, expected).await?) };
        run(py, event_loop.as_ref(), work, none)
    }
}

fn text(filter: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<String>> {
    filter.get_item(name)?.map_or(Ok(None), |value| value.extract())
}

fn whole<T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>>(
    filter: &Bound<'_, PyDict>,
    name: &str,
) -> PyResult<Option<T>> {
    filter.get_item(name)?.filter(|value| !value.is_none()).map(|value| value.extract()).transpose()
}

fn session_query(filter: &Bound<'_, PyDict>) -> PyResult<SessionQuery> {
    let wrong = |what: &str| PyValueError::new_err(format!("{what}: see the documentation of sessions()"));
    let mut status = Vec::new();
    for name in whole::<Vec<String>>(filter, "status")?.unwrap_or_default() {
        status.push(Status::from_name(&name).ok_or_else(|| wrong(&format!("there is no status {name:?}")))?);
    }
    let after = match text(filter, "after")? {
        None => None,
        Some(cursor) => {
            let parsed = cursor.split_once('.').and_then(|(time, id)| {
                Some(milepost::store::backend::SessionCursor {
                    time: Timestamp(time.parse().ok()?),
                    id: id.parse().ok()?,
                })
            });
            Some(parsed.ok_or_else(|| wrong("`after` is not what a page gave as `next`"))?)
        }
    };
    Ok(SessionQuery {
        status,
        project: text(filter, "project")?,
        agent: text(filter, "agent")?,
        feature: text(filter, "feature")?,
        task: text(filter, "task")?,
        stage: text(filter, "stage")?,
        tag: text(filter, "tag")?,
        active_from: whole(filter, "active_from")?.map(Timestamp),
        active_to: whole(filter, "active_to")?.map(Timestamp),
        trashed: whole(filter, "trashed")?.unwrap_or(false),
        by_creation: whole(filter, "by_creation")?.unwrap_or(false),
        after,
        limit: whole(filter, "limit")?,
    })
}

fn search_query(words: String, filter: &Bound<'_, PyDict>) -> PyResult<SearchQuery> {
    let py = filter.py();
    let mut query = SearchQuery::new(words);
    query.substring = whole(filter, "substring")?.unwrap_or(false);
    query.session = text(filter, "session")?.map(|id| session_id(py, &id)).transpose()?;
    query.project = text(filter, "project")?;
    query.agent = text(filter, "agent")?;
    query.role = text(filter, "role")?.map(Role::from);
    query.from = whole(filter, "from")?.map(Timestamp);
    query.to = whole(filter, "to")?.map(Timestamp);
    query.limit = whole(filter, "limit")?.unwrap_or(query.limit);
    query.context = whole(filter, "context")?.unwrap_or(query.context);
    Ok(query)
}
