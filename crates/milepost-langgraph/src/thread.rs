//! Which session a thread is, and what is known of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use milepost_model::{Channel, CheckpointId, Position, Seq, SessionId, SessionPatch, TimelineId};
use milepost_store::{Conflict, Error, NewSession, Result, SessionWriter, Store};
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::record::{Form, Record};

/// The kind of agent that these sessions belong to.
pub(crate) const AGENT: &str = "langgraph";
/// Records that say which session a thread's namespace is.
pub(crate) const THREAD_RECORD: &str = "langgraph-thread";
/// Set on a session that is still being copied.
pub(crate) const BUILDING: &str = "langgraph_building";
/// So many threads are remembered, and so many bytes of their messages.
const REMEMBERED_THREADS: usize = 256;
const REMEMBERED_BYTES: usize = 128 << 20;

/// A thread and one of its namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadKey {
    /// The thread.
    pub thread: String,
    /// The namespace: empty for the graph itself, else the subgraph's.
    pub namespace: String,
}

impl ThreadKey {
    /// A thread's namespace.
    pub fn new(thread: impl Into<String>, namespace: impl Into<String>) -> Self {
        Self { thread: thread.into(), namespace: namespace.into() }
    }

    /// The name of its record: the same for the same key, and of a bounded length.
    pub(crate) fn name(&self) -> String {
        let both = json!([self.thread, self.namespace]).to_string();
        blake3::hash(both.as_bytes()).to_hex().to_string()
    }

    pub(crate) fn patch(&self) -> SessionPatch {
        let mut title = self.thread.clone();
        if !self.namespace.is_empty() {
            title = format!("{title} · {}", self.namespace);
        }
        title.truncate(title.floor_char_boundary(200));
        let patch = SessionPatch::new().title(title).agent(AGENT).task(self.thread.clone());
        let patch = patch.with("langgraph", json!({ "thread": self.thread, "namespace": self.namespace }));
        match self.namespace.is_empty() {
            true => patch,
            false => patch.stage(self.namespace.clone()),
        }
    }
}

/// Where a checkpoint's mark is found, whatever timeline it is on.
pub(crate) fn mark_id(session: SessionId, checkpoint: &str) -> CheckpointId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&session.to_bytes());
    hasher.update(checkpoint.as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    CheckpointId::from_bytes(id)
}

/// A value of the newest checkpoint, ready to be compared with the next.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub form: Form,
    pub bytes: Arc<[u8]>,
    /// The marks that it is made of, oldest first.
    pub chain: Vec<u64>,
    /// Bytes of the changes among them.
    pub changes: usize,
}

/// Messages of one of the session's channels, by their numbers, as far as they are known.
pub(crate) type Items = BTreeMap<Channel, Vec<Option<Arc<[u8]>>>>;

/// What is known of a thread: its newest checkpoint, ready to be gone on from.
pub(crate) struct View {
    pub writer: SessionWriter,
    pub session: SessionId,
    pub timeline: TimelineId,
    pub length: u64,
    /// Messages up to the head, by channel.
    pub counts: BTreeMap<Channel, u64>,
    /// The newest checkpoint on the way to the head.
    pub newest: Option<(Record, Position)>,
    pub values: HashMap<String, Known>,
    pub items: Items,
    /// Messages that were written for the next checkpoint, by the hash of their bytes.
    pub pending: HashMap<u128, (Channel, u64)>,
    /// What was written for the next checkpoint, by its entries.
    pub sources: Vec<(u64, Vec<u8>)>,
    /// Whether what was written for a channel last came back in it unchanged.
    pub adopted: HashMap<String, bool>,
    /// Entries with writes for checkpoints that were not the newest when they were made.
    pub strays: BTreeMap<String, Vec<(TimelineId, u64)>>,
}

impl View {
    pub fn remembered_bytes(&self) -> usize {
        self.items.values().flatten().flatten().map(|item| item.len()).sum::<usize>()
            + self.values.values().map(|value| value.bytes.len()).sum::<usize>()
    }
}

/// A thread's place: whoever has it works with the thread.
pub(crate) type Slot = Arc<AsyncMutex<Option<View>>>;

/// Keeps LangGraph's threads in a store. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Saver {
    pub(crate) store: Store,
    slots: Arc<Mutex<HashMap<ThreadKey, Slot>>>,
}

impl std::fmt::Debug for Saver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saver").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Saver {
    /// Keeps threads in a store.
    pub fn new(store: Store) -> Self {
        Self { store, slots: Arc::default() }
    }

    /// Works with a thread; others who want it wait.
    pub(crate) async fn slot(&self, key: &ThreadKey) -> OwnedMutexGuard<Option<View>> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            if slots.len() >= REMEMBERED_THREADS && !slots.contains_key(key) {
                // Those that nobody works with are read again when they are next needed.
                slots.retain(|_, slot| Arc::strong_count(slot) > 1);
            }
            Arc::clone(slots.entry(key.clone()).or_default())
        };
        slot.lock_owned().await
    }

    pub(crate) fn forget_large(&self, view: &mut View) {
        if view.remembered_bytes() > REMEMBERED_BYTES / 8 {
            view.items.clear();
        }
    }

    /// The session of a key; none when there is none yet.
    pub(crate) async fn resolve(&self, key: &ThreadKey) -> Result<Option<(SessionId, u64)>> {
        let Some(record) = self.store.record(THREAD_RECORD, &key.name()).await? else { return Ok(None) };
        let id = std::str::from_utf8(&record.value).ok().and_then(|id| id.parse().ok());
        Ok(id.map(|id| (id, record.version)))
    }

    /// Brings what is known of a thread up to date; none when there is no such thread.
    pub(crate) async fn look<'a>(&self, key: &ThreadKey, slot: &'a mut Option<View>) -> Result<Option<&'a mut View>> {
        if let Some(view) = slot.as_ref() {
            let head = self.store.backend().session(self.store.workspace(), view.session).await?;
            let is_same =
                head.is_some_and(|head| head.timeline.id == view.timeline && head.timeline.length == view.length);
            if !is_same {
                *slot = None;
            }
        }
        if slot.is_none() {
            *slot = match self.resolve(key).await? {
                Some((session, _)) => match self.load(session).await {
                    Ok(view) => Some(view),
                    // It was noted, but not begun yet; or it is being deleted.
                    Err(Error::NotFound { .. }) => None,
                    Err(error) => return Err(error),
                },
                None => None,
            };
        }
        Ok(slot.as_mut())
    }

    /// The same to write to: the thread begins if it is not there. What is known is taken on trust; the append tells.
    pub(crate) async fn open<'a>(&self, key: &ThreadKey, slot: &'a mut Option<View>) -> Result<&'a mut View> {
        const TRIES: usize = 16;
        for _ in 0..TRIES {
            if slot.is_some() {
                break;
            }
            *slot = match self.resolve(key).await? {
                None => {
                    let id: SessionId = self.store.source().id();
                    match self.store.put_record(THREAD_RECORD, &key.name(), None, None, id.to_string().as_bytes()).await
                    {
                        Ok(_) => self.begin(id, key.patch()).await?,
                        Err(Error::Conflict(_)) => None,
                        Err(error) => return Err(error),
                    }
                }
                Some((id, _)) => match self.load(id).await {
                    Ok(view) => Some(view),
                    Err(Error::NotFound { .. }) => self.begin(id, key.patch()).await?,
                    Err(error) => return Err(error),
                },
            };
        }
        slot.as_mut().ok_or_else(|| Error::Busy { what: format!("beginning thread {:?}", key.thread), waited_ms: 0 })
    }

    /// Begins a session; none when someone else did so meanwhile.
    async fn begin(&self, id: SessionId, patch: SessionPatch) -> Result<Option<View>> {
        match self.store.create_shared(NewSession { id: Some(id), patch }).await {
            Ok(writer) => self.view(writer).await.map(Some),
            Err(Error::Conflict(Conflict::Exists { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn load(&self, session: SessionId) -> Result<View> {
        let writer = self.store.join(session).await?;
        self.view(writer).await
    }

    pub(crate) async fn view(&self, writer: SessionWriter) -> Result<View> {
        let (timeline, length) = writer.head().await;
        let session = writer.session().await;
        let at = Position { timeline, seq: Seq(length.saturating_sub(1)) };
        let newest = self.newest_before(session.id, at).await?;
        let strays = match self.has_state(at).await? {
            true => strays(writer.state().await?.as_value()),
            false => BTreeMap::new(),
        };
        let mut view = View {
            writer,
            session: session.id,
            timeline,
            length,
            counts: session.counts,
            newest: None,
            values: HashMap::new(),
            items: Items::new(),
            pending: HashMap::new(),
            sources: Vec::new(),
            adopted: HashMap::new(),
            strays,
        };
        if let Some((record, at)) = newest {
            view.values = self.values(&record, at).await?;
            view.newest = Some((record, at));
        }
        Ok(view)
    }

    /// Whether the state of a session was ever changed: nearly always it was not.
    async fn has_state(&self, at: Position) -> Result<bool> {
        Ok(self.store.state_at(at).await?.section("langgraph").is_some())
    }
}

/// Entries with writes for checkpoints that were not the newest, as the state tells.
pub(crate) fn strays(state: &Value) -> BTreeMap<String, Vec<(TimelineId, u64)>> {
    let all = state.pointer("/langgraph/strays").and_then(Value::as_object);
    let place = |place: &Value| Some((place.get(0)?.as_str()?.parse().ok()?, place.get(1)?.as_u64()?));
    let entry = |(checkpoint, places): (&String, &Value)| {
        (checkpoint.clone(), places.as_array().into_iter().flatten().filter_map(place).collect())
    };
    all.into_iter().flatten().map(entry).collect()
}

/// The state that says so.
pub(crate) fn stray_state(strays: &BTreeMap<String, Vec<(TimelineId, u64)>>) -> Value {
    match strays.is_empty() {
        true => json!({}),
        false => json!({ "langgraph": { "strays": strays } }),
    }
}
