//! Which session a thread is, and what is known of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use milepost_model::{
    Body, Channel, CheckpointId, EntryKind, Hash, Position, Seq, SessionId, SessionPatch, State, TimelineId, hash_value,
};
use milepost_store::backend::Kinds;
use milepost_store::{Error, Mark, NewSession, Result, SessionWriter, Store};
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::record::{Form, Record};
use crate::write::FIELD;

/// The kind of agent that these sessions belong to.
pub(crate) const AGENT: &str = "langgraph";
/// Records that say which session a thread's namespace is.
pub(crate) const THREAD_RECORD: &str = "langgraph-thread";
/// Behind the id of a session that is named, but perhaps not begun yet.
const NEW: &str = " new";
/// Set on a session that is about to become a thread's or to be one no longer: the thread's record says which.
pub(crate) const BUILDING: &str = "langgraph_building";
/// Set on a session that is no thread's any more.
pub(crate) const LEFT: &str = "langgraph_left";
/// So many threads are remembered, and so many bytes of their values and messages: of all together, and of one.
const REMEMBERED_THREADS: usize = 256;
const REMEMBERED_BYTES: usize = 128 << 20;
const REMEMBERED_BYTES_OF_ONE: usize = REMEMBERED_BYTES / 8;

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
        let mut title = beginning(&self.thread);
        if !self.namespace.is_empty() {
            title = beginning(&format!("{title} · {}", self.namespace));
        }
        let patch = SessionPatch::new().title(title).agent(AGENT).task(shown(&self.thread));
        let patch = patch.with("langgraph", json!({ "thread": self.thread, "namespace": self.namespace }));
        match self.namespace.is_empty() {
            true => patch,
            false => patch.stage(shown(&self.namespace)),
        }
    }
}

/// A session's names have no more bytes, and no NUL.
const MAX_NAME_BYTES: usize = 1024;

/// A thread or namespace as a session's list shows and finds it: the name itself, or how it begins and its hash.
pub(crate) fn shown(name: &str) -> String {
    if name.len() <= MAX_NAME_BYTES && !name.contains('\0') {
        return name.to_owned();
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    format!("{} · {}", beginning(name), &hash[..16])
}

fn beginning(name: &str) -> String {
    name[..name.floor_char_boundary(200)].replace('\0', "\u{fffd}")
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

/// Messages of the session's channels, by their numbers, as far as they are known.
#[derive(Default, Clone)]
pub(crate) struct Items {
    known: BTreeMap<Channel, Vec<Option<Arc<[u8]>>>>,
    bytes: usize,
}

impl Items {
    pub fn of(&self, channel: &Channel) -> &[Option<Arc<[u8]>>] {
        self.known.get(channel).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn remember(&mut self, channel: &Channel, number: u64, item: Arc<[u8]>) {
        let all = match self.known.get_mut(channel) {
            Some(all) => all,
            None => self.known.entry(channel.clone()).or_default(),
        };
        let number = number as usize;
        if all.len() <= number {
            all.resize(number + 1, None);
        }
        self.bytes += item.len();
        self.bytes -= all[number].replace(item).map_or(0, |old| old.len());
    }
}

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
    /// What is appended follows that checkpoint's mark on its own timeline, with no other mark between.
    pub direct: bool,
    pub values: HashMap<String, Known>,
    pub items: Items,
    /// Messages that were written for the next checkpoint, by the hash of their bytes.
    pub pending: HashMap<u128, (Channel, u64)>,
    /// What was written for the next checkpoint, by its entries.
    pub sources: Vec<(u64, Vec<u8>)>,
    /// Whether what was written for a channel last came back in it unchanged.
    pub adopted: HashMap<String, bool>,
    /// Entries with writes for checkpoints that were not the newest when they were made.
    pub strays: Strays,
    /// Some of them the state does not tell of: somebody went back.
    pub recovered: bool,
    /// It was flagged when it was loaded: another session may take its place.
    pub flagged: bool,
}

impl View {
    pub fn remembered_bytes(&self) -> usize {
        let written: usize = self.sources.iter().map(|(_, bytes)| bytes.len()).sum();
        self.items.bytes + written + self.values.values().map(|value| value.bytes.len()).sum::<usize>()
    }
}

/// What a record says of a thread.
pub(crate) struct Named {
    pub session: SessionId,
    is_new: bool,
    pub version: u64,
}

/// A thread's place: whoever has it works with the thread.
pub(crate) type Slot = Arc<AsyncMutex<Option<View>>>;

/// The threads that are remembered.
#[derive(Default)]
struct Slots {
    threads: HashMap<ThreadKey, Remembered>,
    /// Of all of them.
    bytes: usize,
    /// Counts up whenever one is used.
    uses: u64,
}

#[derive(Default)]
struct Remembered {
    slot: Slot,
    bytes: usize,
    used: u64,
}

impl Slots {
    /// Forgets those that were used longest ago, as long as there are too many. What somebody works with stays; the others are
    /// read again when they are next needed.
    fn forget(&mut self, most: usize) {
        if self.threads.len() <= most && self.bytes <= REMEMBERED_BYTES {
            return;
        }
        let idle = |(_, one): &(&ThreadKey, &Remembered)| Arc::strong_count(&one.slot) == 1;
        let mut idle: Vec<(u64, ThreadKey)> =
            self.threads.iter().filter(idle).map(|(key, one)| (one.used, key.clone())).collect();
        idle.sort_unstable();
        // Some room, so that this is not done for every thread.
        let enough = if self.threads.len() > most { most / 2 } else { most };
        for (_, key) in idle {
            if self.threads.len() <= enough && self.bytes <= REMEMBERED_BYTES / 4 * 3 {
                break;
            }
            if let Some(gone) = self.threads.remove(&key) {
                self.bytes -= gone.bytes;
            }
        }
    }
}

/// Keeps LangGraph's threads in a store. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Saver {
    pub(crate) store: Store,
    slots: Arc<Mutex<Slots>>,
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
            if !slots.threads.contains_key(key) {
                slots.forget(REMEMBERED_THREADS);
            }
            slots.uses += 1;
            let used = slots.uses;
            let one = slots.threads.entry(key.clone()).or_default();
            one.used = used;
            Arc::clone(&one.slot)
        };
        slot.lock_owned().await
    }

    /// Counts what is remembered of a thread by whoever works with it, and forgets what is too much.
    pub(crate) fn bound(&self, key: &ThreadKey, view: &mut View) {
        let mut bytes = view.remembered_bytes();
        if bytes > REMEMBERED_BYTES_OF_ONE {
            bytes -= std::mem::take(&mut view.items).bytes;
        }
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(one) = slots.threads.get_mut(key) else { return };
        let before = std::mem::replace(&mut one.bytes, bytes);
        slots.bytes = slots.bytes + bytes - before;
        slots.forget(REMEMBERED_THREADS);
    }

    /// The session of a thread's namespace; none when there is none.
    pub async fn session(&self, key: &ThreadKey) -> Result<Option<SessionId>> {
        let mut slot = self.slot(key).await;
        Ok(self.look(key, &mut slot).await?.map(|view| view.session))
    }

    /// What the record says; none when there is none yet.
    pub(crate) async fn resolve(&self, key: &ThreadKey) -> Result<Option<SessionId>> {
        Ok(self.named(key).await?.map(|named| named.session))
    }

    pub(crate) async fn named(&self, key: &ThreadKey) -> Result<Option<Named>> {
        let Some(record) = self.store.record(THREAD_RECORD, &key.name()).await? else { return Ok(None) };
        let text = std::str::from_utf8(&record.value).unwrap_or_default();
        let (id, is_new) = text.strip_suffix(NEW).map_or((text, false), |id| (id, true));
        Ok(id.parse().ok().map(|session| Named { session, is_new, version: record.version }))
    }

    /// Names a thread's session before it is there: whoever is killed in between leaves nothing that nobody finds.
    async fn name(&self, key: &ThreadKey, session: SessionId, is_new: bool, expected: Option<u64>) -> Result<u64> {
        let value = format!("{session}{}", if is_new { NEW } else { "" });
        self.store.put_record(THREAD_RECORD, &key.name(), expected, None, value.as_bytes()).await
    }

    /// Brings what is known of a thread up to date; none when there is no such thread.
    pub(crate) async fn look<'a>(&self, key: &ThreadKey, slot: &'a mut Option<View>) -> Result<Option<&'a mut View>> {
        self.doubt(key, slot).await?;
        if let Some(view) = slot.as_ref() {
            let head = self.store.backend().session(self.store.workspace(), view.session).await?;
            let is_same =
                head.is_some_and(|head| head.timeline.id == view.timeline && head.timeline.length == view.length);
            if !is_same {
                *slot = None;
            }
        }
        let mut missing = None;
        while slot.is_none() {
            // One that was noted is not begun yet, or it is being deleted, or another took its place just now.
            let session = self.resolve(key).await?.filter(|session| missing != Some(*session));
            let Some(session) = session else { break };
            match self.load(session).await {
                Ok(mut view) => {
                    self.bound(key, &mut view);
                    *slot = Some(view);
                }
                Err(Error::NotFound { .. }) => missing = Some(session),
                Err(error) => return Err(error),
            }
        }
        Ok(slot.as_mut())
    }

    /// The same to write to: the thread begins if it is not there. What is known is taken on trust; the append tells.
    pub(crate) async fn open<'a>(&self, key: &ThreadKey, slot: &'a mut Option<View>) -> Result<&'a mut View> {
        const TRIES: usize = 16;
        if slot.as_ref().is_some_and(|view| view.flagged) {
            Box::pin(self.doubt(key, slot)).await?;
        }
        for _ in 0..TRIES {
            if slot.is_some() {
                break;
            }
            // Boxed, as all that is done only once is: what is done for every checkpoint would be as large.
            *slot = match Box::pin(self.begin_or_load(key)).await {
                Ok(view) => Some(view),
                // Someone else was quicker.
                Err(Error::Conflict(_)) => None,
                Err(error) => return Err(error),
            };
        }
        slot.as_mut().ok_or_else(|| Error::Busy { what: format!("beginning thread {:?}", key.thread), waited_ms: 0 })
    }

    async fn begin_or_load(&self, key: &ThreadKey) -> Result<View> {
        let named = self.named(key).await?;
        if let Some(named) = &named {
            match self.load(named.session).await {
                Err(Error::NotFound { .. }) => {}
                Ok(view) if named.is_new => {
                    // Whoever began it did not come to say so.
                    self.name(key, named.session, false, Some(named.version)).await?;
                    return Ok(view);
                }
                outcome => return outcome,
            }
        }
        let (session, version) = match named {
            Some(named) if named.is_new => (named.session, named.version),
            // One that was deleted gets another id: others may remember what it was.
            gone => {
                let session = self.store.source().id();
                (session, self.name(key, session, true, gone.map(|gone| gone.version)).await?)
            }
        };
        let writer = self.store.create_shared(NewSession { id: Some(session), patch: key.patch() }).await?;
        self.name(key, session, false, Some(version)).await?;
        self.view(writer).await
    }

    pub(crate) async fn load(&self, session: SessionId) -> Result<View> {
        let writer = self.store.join(session).await?;
        let extra = writer.session().await.extra;
        if extra.contains_key(LEFT) {
            return Err(Error::NotFound { what: "session", id: session.to_string() });
        }
        Ok(View { flagged: extra.contains_key(BUILDING), ..self.view(writer).await? })
    }

    /// Forgets what is known of a thread whose session was about to be replaced, if it was.
    async fn doubt(&self, key: &ThreadKey, slot: &mut Option<View>) -> Result<()> {
        if let Some(view) = slot.as_ref().filter(|view| view.flagged)
            && self.resolve(key).await? != Some(view.session)
        {
            *slot = None;
        }
        Ok(())
    }

    pub(crate) async fn view(&self, writer: SessionWriter) -> Result<View> {
        let (timeline, length) = writer.head().await;
        let session = writer.session().await;
        let at = Position { timeline, seq: Seq(length.saturating_sub(1)) };
        let newest = self.newest_mark(session.id).await?;
        let is_bare = match &newest {
            Some((_, mark, true)) => self.is_bare_since(mark, at).await?,
            _ => false,
        };
        let strays = match !is_bare && self.has_state(at).await? {
            true => strays(writer.state().await?.as_value()),
            false => BTreeMap::new(),
        };
        let mut strays = strays;
        let has_mark = newest.as_ref().is_some_and(|(_, mark, _)| mark.at.timeline == timeline);
        let recovered = !has_mark && self.recover(timeline, &mut strays).await?;
        let mut view = View {
            writer,
            session: session.id,
            timeline,
            length,
            counts: session.counts,
            newest: None,
            direct: false,
            values: HashMap::new(),
            items: Items::default(),
            pending: HashMap::new(),
            sources: Vec::new(),
            adopted: HashMap::new(),
            strays,
            recovered,
            flagged: false,
        };
        if let Some((record, Mark { at, .. }, is_last)) = newest {
            view.direct = is_last && at.timeline == timeline;
            view.values = self.values(&record, at).await?;
            view.newest = Some((record, at));
        }
        Ok(view)
    }

    /// Who sets a session back sets the state back too: where writes lie is found where the head was before, as far as no
    /// checkpoint was kept since. Whether any were.
    async fn recover(&self, mut timeline: TimelineId, found: &mut Strays) -> Result<bool> {
        let mut is_found = false;
        loop {
            let line = self.store.backend().timeline(self.store.workspace(), timeline).await?;
            let Some(line) = line.filter(|line| line.parent.is_some()) else { break };
            let first = Position { timeline, seq: Seq(line.begins()) };
            let event = self.store.entries_at(first, first.seq, Kinds::only(EntryKind::Event)).await?.pop();
            let from = match event.and_then(|entry| entry.body) {
                Some(Body::Event(event)) if event.kind == "restored" => event.data.get("from").cloned(),
                _ => None,
            };
            let Some(from) = from.and_then(|from| serde_json::from_value::<Position>(from).ok()) else { break };
            for (checkpoint, places) in strays(self.store.state_at(from).await?.as_value()) {
                let known = found.entry(checkpoint).or_default();
                for place in places.into_iter().filter(|place| !known.contains(place)).collect::<Vec<_>>() {
                    known.push(place);
                    is_found = true;
                }
            }
            let begins = self.store.backend().timeline(self.store.workspace(), from.timeline).await?;
            let begins = begins.map_or(Seq(0), |line| Seq(line.begins()));
            let marks = self.store.entries_at(from, begins, Kinds::only(EntryKind::Mark)).await?;
            let is_kept =
                |body: &Option<Body>| matches!(body, Some(Body::Mark(mark)) if mark.extra.contains_key(FIELD));
            if marks.iter().any(|entry| is_kept(&entry.body)) {
                break;
            }
            timeline = from.timeline;
        }
        Ok(is_found)
    }

    /// Whether the state was empty at a mark and was not changed since: the mark's hash of it says so, and nothing before it
    /// need be read.
    async fn is_bare_since(&self, mark: &Mark, at: Position) -> Result<bool> {
        if mark.at.timeline != at.timeline || mark.checkpoint.state != Hash(hash_value(&json!({}))) {
            return Ok(false);
        }
        Ok(self.store.entries_at(at, mark.at.seq.next(), Kinds::only(EntryKind::State)).await?.is_empty())
    }

    /// Whether the state of a session was ever changed: nearly always it was not.
    async fn has_state(&self, at: Position) -> Result<bool> {
        Ok(self.store.state_at(at).await?.section("langgraph").is_some())
    }
}

/// Entries with writes for checkpoints that were not the newest when they were made, by the checkpoints' ids.
pub(crate) type Strays = BTreeMap<String, Vec<(TimelineId, u64)>>;

/// The same as the state tells of them.
pub(crate) fn strays(state: &Value) -> Strays {
    let all = state.pointer("/langgraph/strays").and_then(Value::as_object);
    let place = |place: &Value| Some((place.get(0)?.as_str()?.parse().ok()?, place.get(1)?.as_u64()?));
    let entry = |(checkpoint, places): (&String, &Value)| {
        (checkpoint.clone(), places.as_array().into_iter().flatten().filter_map(place).collect())
    };
    all.into_iter().flatten().map(entry).collect()
}

/// A state that says so, with whatever else was in it.
pub(crate) fn with_strays(state: State, strays: &Strays) -> Result<State> {
    let mut state = state.into_value();
    if let Value::Object(sections) = &mut state {
        match strays.is_empty() {
            true => drop(sections.remove("langgraph")),
            false => drop(sections.insert("langgraph".to_owned(), json!({ "strays": strays }))),
        }
    }
    Ok(State::try_from(state)?)
}
