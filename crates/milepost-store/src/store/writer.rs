//! Writing: who holds a session's lease appends to it here.
//!
//! A [`SessionWriter`] is the sequencer of one session in one process: it knows where the head is,
//! gives every entry its number and chain hash, and lets appends that arrive together share a batch.
//! When a write fails, what it knows is dropped and read again from the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use milepost_model::{
    BatchId, Body, Branch, Checkpoint, CheckpointId, Delta, Epoch, Event, Hash, HashedState, Message, OwnerId,
    Position, Resumable, Seq, Session, SessionId, SessionPatch, State, TimelineId, Timestamp, Trigger,
};
use milepost_model::delta::{check_depth, encode_value};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::Store;
use super::fold::{self, event};
use super::read::{Distance, encode_keyframe};
use crate::backend::{
    Batch, Blob, BlobId, Keyframe, LeaseAction, MAIN_HEAD, MarkRow, Opening, Rewrite, SessionHead, StoredEntry,
};
use crate::codec::{self, Codec};
use crate::error::{Conflict, Error, Result};
use crate::limits::{check_name, check_size};

/// A keyframe is made after so many deltas,
const KEYFRAME_DELTAS: u64 = 256;
/// or when a state must be collected over so many timelines.
const KEYFRAME_TIMELINES: u64 = 4;
/// Older keyframes are thinned: one in so many stays.
const KEYFRAME_KEEP_EVERY: u64 = 4;
/// So many batch ids are remembered, to recognise an append that is sent again.
const REMEMBERED_BATCHES: usize = 1024;

/// Who wants to write, and how much they want it.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Who, in words a person understands: program, machine, process.
    pub holder: String,
    /// Take the session even if someone else holds it.
    pub take_over: bool,
}

impl Claim {
    /// Asks for a session that nobody else holds.
    pub fn new(holder: impl Into<String>) -> Self {
        Self { holder: holder.into(), take_over: false }
    }

    /// Takes a session whoever holds it.
    #[must_use]
    pub fn take_over(self) -> Self {
        Self { take_over: true, ..self }
    }
}

/// A session to begin.
#[derive(Debug, Clone, Default)]
pub struct NewSession {
    /// Its id; a new one when none.
    pub id: Option<SessionId>,
    /// What a list shows of it.
    pub patch: SessionPatch,
}

/// A checkpoint to take. Its id, its counts and the hash of its state are filled in.
#[derive(Debug, Clone)]
pub struct NewMark {
    /// Why.
    pub trigger: Trigger,
    /// A short name; labelled checkpoints are not pruned.
    pub label: Option<String>,
    /// What is going on.
    pub description: Option<String>,
    /// Nothing is under way.
    pub clean: bool,
    /// Whether a session can go on from here.
    pub resumable: Resumable,
    /// Whatever else is to be kept with it.
    pub extra: Map<String, Value>,
}

impl NewMark {
    /// A clean, resumable checkpoint.
    pub fn new(trigger: Trigger) -> Self {
        Self { trigger, label: None, description: None, clean: true, resumable: Resumable::Yes, extra: Map::new() }
    }

    /// With a label.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: Some(label.into()), ..self }
    }

    /// With a description.
    #[must_use]
    pub fn description(self, text: impl Into<String>) -> Self {
        Self { description: Some(text.into()), ..self }
    }
}

enum Item {
    Message(Message),
    State(Value),
    Delta(Delta),
    Event(Event, Vec<BlobId>),
    Mark(Box<NewMark>),
}

/// What to append, in order. All of it is stored, or nothing.
#[derive(Default)]
pub struct Append {
    id: Option<BatchId>,
    items: Vec<Item>,
}

impl Append {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Under an id of the caller's: the same append sent again is recognised and not added twice.
    #[must_use]
    pub fn batch(mut self, id: BatchId) -> Self {
        self.id = Some(id);
        self
    }

    /// Something said.
    #[must_use]
    pub fn message(mut self, message: Message) -> Self {
        self.items.push(Item::Message(message));
        self
    }

    /// The whole state as it is now; what changed is found out.
    #[must_use]
    pub fn state(mut self, state: State) -> Self {
        self.items.push(Item::State(state.into_value()));
        self
    }

    /// What changed in the state, for a caller who knows.
    #[must_use]
    pub fn delta(mut self, delta: Delta) -> Self {
        self.items.push(Item::Delta(delta));
        self
    }

    /// Something that happened.
    #[must_use]
    pub fn event(self, event: Event) -> Self {
        self.event_with(event, Vec::new())
    }

    /// Something that happened and needs these blobs.
    #[must_use]
    pub fn event_with(mut self, event: Event, blobs: Vec<BlobId>) -> Self {
        self.items.push(Item::Event(event, blobs));
        self
    }

    /// A change of what a list shows of the session.
    #[must_use]
    pub fn patch(self, patch: SessionPatch) -> Self {
        self.event(fold::patch_event(patch))
    }

    /// A checkpoint of everything before it.
    #[must_use]
    pub fn mark(mut self, mark: NewMark) -> Self {
        self.items.push(Item::Mark(Box::new(mark)));
        self
    }
}

/// What an append was given: it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its first entry.
    pub first: Position,
    /// The number the next entry will have.
    pub length: u64,
    /// Checkpoints it took.
    pub checkpoints: Vec<CheckpointId>,
    /// It was stored before: nothing was added.
    pub repeated: bool,
}

/// Holds a session's lease and appends to it.
pub struct SessionWriter {
    store: Store,
    session: SessionId,
    owner: OwnerId,
    codec: Codec,
    waiting: Mutex<VecDeque<Waiting>>,
    head: AsyncMutex<Head>,
}

struct Waiting {
    append: Append,
    reply: oneshot::Sender<Result<Receipt>>,
}

/// What the writer knows of the session's head.
struct Head {
    epoch: Epoch,
    timeline: TimelineId,
    length: u64,
    chain: Hash,
    time: Timestamp,
    session: Session,
    /// The state, once it was needed.
    state: Option<HeadState>,
    /// A write is under way or failed: what is known here may be wrong.
    stale: bool,
    recent: VecDeque<(BatchId, Receipt)>,
}

struct HeadState {
    state: HashedState,
    distance: Distance,
    /// Bytes of deltas since the keyframe.
    bytes: u64,
    /// Bytes of the state when it was last measured.
    size: u64,
    /// Keyframes made here, newest last.
    keyframes: VecDeque<Position>,
    made: u64,
}

/// A batch in the making. Becomes the head when the store has it.
struct Draft {
    first: Seq,
    length: u64,
    chain: Hash,
    time: Timestamp,
    session: Session,
    entries: Vec<StoredEntry>,
    blobs: Vec<Blob>,
    marks: Vec<MarkRow>,
    keyframes: Vec<Keyframe>,
    drop_keyframes: Vec<Position>,
    bytes: u64,
}

impl Draft {
    fn of(head: &Head, now: Timestamp) -> Self {
        Self {
            first: Seq(head.length),
            length: head.length,
            chain: head.chain,
            // Time never goes back within a session, whatever the clock does.
            time: now.max(head.time),
            session: head.session.clone(),
            entries: Vec::new(),
            blobs: Vec::new(),
            marks: Vec::new(),
            keyframes: Vec::new(),
            drop_keyframes: Vec::new(),
            bytes: 0,
        }
    }
}

impl Store {
    /// Begins a session and holds it.
    pub async fn create(&self, new: NewSession, claim: &Claim) -> Result<SessionWriter> {
        let id = new.id.unwrap_or_else(|| self.source().id());
        let timeline: TimelineId = self.source().id();
        let session = Session::new(id, timeline, self.source().now());
        let body = Body::Event(fold::patch_event(new.patch));
        let open = Opening { parent: None, head: MAIN_HEAD.to_owned(), replaces: None };
        self.begin(session, open, codec::genesis(id), body, claim).await
    }

    /// Begins a session that shares everything up to and with an entry of another. Nothing is copied.
    pub async fn branch(&self, at: Position, new: NewSession, claim: &Claim) -> Result<SessionWriter> {
        let (parent_id, _) = self.parent(at.timeline).await?;
        let parent = self.session(parent_id).await?;
        let id = new.id.unwrap_or_else(|| self.source().id());
        let timeline: TimelineId = self.source().id();
        let mut session = Session::new(id, timeline, self.source().now().max(self.entry_time(at).await?));
        session.branch = Some(Branch { session: parent_id, at });
        self.counts_at(at, &mut session).await?;
        let mut set = fold::meta(&parent).status(milepost_model::Status::Active);
        set.0.extend(new.patch.0);
        let data = json!({ "from": at, "session": parent_id, "set": set });
        let body = Body::Event(Event::new(event::BRANCHED, data));
        let open = Opening { parent: Some(at), head: MAIN_HEAD.to_owned(), replaces: None };
        let chain = self.hash_at(at).await?;
        self.begin(session, open, chain, body, claim).await
    }

    async fn begin(
        &self,
        session: Session,
        open: Opening,
        chain: Hash,
        first: Body,
        claim: &Claim,
    ) -> Result<SessionWriter> {
        check_name("the holder", &claim.holder, "max_name_bytes", self.inner.limits.max_name_bytes)?;
        let id = session.id;
        if self.inner.backend.session(self.workspace(), id).await?.is_some() {
            return Err(Conflict::Exists { what: "session", id: id.to_string() }.into());
        }
        self.inner.keys.create_session(&*self.inner.backend, id).await?;
        let owner = self.source().id();
        let head = Head {
            epoch: Epoch(1),
            timeline: session.head,
            length: open.parent.map_or(0, |at| at.seq.0 + 1),
            chain,
            time: session.created,
            session,
            state: None,
            stale: false,
            recent: VecDeque::new(),
        };
        let writer = SessionWriter {
            store: self.clone(),
            session: id,
            owner,
            codec: self.codec(id).await?,
            waiting: Mutex::default(),
            head: AsyncMutex::new(head),
        };
        let mut head = writer.head.lock().await;
        // The session begins with its first entry.
        let mut draft = Draft::of(&head, head.time);
        writer.push(&mut draft, head.timeline, &first, Vec::new())?;
        let mut batch = writer.finish(&head, &mut draft, self.source().id())?;
        batch.open = Some(open);
        batch.epoch = None;
        batch.holder = Some((owner, claim.holder.clone()));
        self.inner.backend.append(self.workspace(), batch).await?;
        head.take(draft);
        drop(head);
        Ok(writer)
    }

    /// Takes a session's lease to go on with it.
    pub async fn write(&self, session: SessionId, claim: &Claim) -> Result<SessionWriter> {
        check_name("the holder", &claim.holder, "max_name_bytes", self.inner.limits.max_name_bytes)?;
        let codec = self.codec(session).await?;
        let found = self.head(session).await?;
        let (now, back) = (self.source().now(), self.inner.limits.max_clock_step_back_ms);
        if found.row.active.since_ms(now) > back {
            return Err(Error::ClockBack { session, now, last: found.row.active });
        }
        let owner = self.source().id();
        let (holder, ttl_ms) = (claim.holder.clone(), self.inner.lease_ttl_ms);
        let action = match claim.take_over {
            false => LeaseAction::Take { owner, holder, ttl_ms },
            true => LeaseAction::TakeOver { owner, holder, ttl_ms },
        };
        let lease = self.inner.backend.lease(self.workspace(), session, action).await?;
        let head = self.read_head(&codec, session, lease.epoch).await?;
        Ok(SessionWriter {
            store: self.clone(),
            session,
            owner,
            codec,
            waiting: Mutex::default(),
            head: AsyncMutex::new(head),
        })
    }

    /// What a writer needs to know of a session's head.
    async fn read_head(&self, codec: &Codec, id: SessionId, epoch: Epoch) -> Result<Head> {
        let SessionHead { row, timeline, noted_length, lease } = self.head(id).await?;
        if lease.epoch != epoch {
            return Err(Error::Fenced { session: id, epoch, current: lease.epoch, holder: lease.holder });
        }
        if timeline.length < noted_length {
            return Err(Error::corrupt(
                format!("session {id}"),
                format!("it had {noted_length} entries, {} are there", timeline.length),
            ));
        }
        let session = fold::session_from_row(codec, &row)?;
        let chain = match (timeline.chain, timeline.length.checked_sub(1)) {
            (Some(chain), _) => chain,
            (None, Some(last)) if timeline.length > timeline.begins() => {
                self.hash_at(Position { timeline: timeline.id, seq: Seq(last) }).await?
            }
            (None, _) => match timeline.parent {
                Some(at) => self.hash_at(at).await?,
                None => codec::genesis(id),
            },
        };
        let mut head = Head {
            epoch,
            timeline: timeline.id,
            length: timeline.length,
            chain,
            time: session.active,
            session,
            state: None,
            stale: false,
            recent: VecDeque::new(),
        };
        self.remember_batches(&mut head).await?;
        Ok(head)
    }

    /// Reads the ids of the last batches, so that one sent again after a restart is recognised.
    async fn remember_batches(&self, head: &mut Head) -> Result<()> {
        const ENTRIES: u64 = 256;
        let range = crate::backend::Range {
            timeline: head.timeline,
            from: Seq(head.length.saturating_sub(ENTRIES)),
            to: Seq(head.length),
            kinds: crate::backend::Kinds::ALL,
            channel: None,
            order: crate::backend::Order::Forward,
            limit: ENTRIES as usize,
        };
        let mut starts: Vec<(BatchId, Seq)> = Vec::new();
        let mut marks: HashMap<BatchId, Vec<Position>> = HashMap::new();
        for (seq, entry) in self.inner.backend.read(self.workspace(), range).await? {
            if let Some(batch) = entry.batch {
                starts.push((batch, seq));
            }
            if let (Some((batch, _)), milepost_model::EntryKind::Mark) = (starts.last(), entry.kind) {
                marks.entry(*batch).or_default().push(Position { timeline: head.timeline, seq });
            }
        }
        for (number, (batch, first)) in starts.iter().enumerate() {
            let length = starts.get(number + 1).map_or(head.length, |(_, next)| next.0);
            let mut checkpoints = Vec::new();
            for at in marks.remove(batch).unwrap_or_default() {
                let filter = crate::backend::MarkFilter {
                    trashed: None,
                    ..crate::backend::MarkFilter::of(at.timeline, at.seq, at.seq.next())
                };
                checkpoints.extend(self.inner.backend.marks(self.workspace(), filter).await?.iter().map(|row| row.id));
            }
            let first = Position { timeline: head.timeline, seq: *first };
            head.recent.push_back((*batch, Receipt { first, length, checkpoints, repeated: true }));
        }
        Ok(())
    }
}

impl Head {
    fn take(&mut self, draft: Draft) {
        self.length = draft.length;
        self.chain = draft.chain;
        self.time = draft.time;
        self.session = draft.session;
    }

    fn remember(&mut self, batch: BatchId, receipt: &Receipt) {
        if self.recent.len() >= REMEMBERED_BATCHES {
            self.recent.pop_front();
        }
        self.recent.push_back((batch, Receipt { repeated: true, ..receipt.clone() }));
    }
}

impl SessionWriter {
    /// The session.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// Who holds it: this writer.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The store it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The session as a list shows it now.
    pub async fn session(&self) -> Session {
        self.head.lock().await.session.clone()
    }

    /// The lease under which it writes.
    pub async fn epoch(&self) -> Epoch {
        self.head.lock().await.epoch
    }

    /// The state at the head.
    pub async fn state(&self) -> Result<State> {
        let mut head = self.fresh_head().await?;
        let state = self.head_state(&mut head).await?;
        Ok(state.state.value().clone().try_into()?)
    }

    /// Appends; returns when it is durable. Appends that arrive together share one batch.
    pub async fn append(&self, append: Append) -> Result<Receipt> {
        let (reply, mut answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(Waiting { append, reply });
        let mut head = self.head.lock().await;
        // Whoever had the head before may have taken this append along.
        if let Ok(outcome) = answer.try_recv() {
            return outcome;
        }
        if head.stale {
            self.reload(&mut head).await.inspect_err(|_| {
                // Nobody else can do better: fail all who wait, each with its own try.
                self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
            })?;
        }
        self.append_waiting(&mut head).await;
        drop(head);
        answer.await.unwrap_or_else(|_| {
            Err(Error::Io { what: "appending".into(), why: "the write was given up half-way".into() })
        })
    }

    async fn fresh_head(&self) -> Result<tokio::sync::MutexGuard<'_, Head>> {
        let mut head = self.head.lock().await;
        if head.stale {
            self.reload(&mut head).await?;
        }
        Ok(head)
    }

    async fn reload(&self, head: &mut Head) -> Result<()> {
        let recent = std::mem::take(&mut head.recent);
        let fresh = self.store.read_head(&self.codec, self.session, head.epoch).await;
        match fresh {
            Ok(fresh) => {
                let known: Vec<_> = recent.into_iter().filter(|(id, _)| !fresh.recent.iter().any(|(other, _)| other == id)).collect();
                *head = fresh;
                known.into_iter().rev().for_each(|old| head.recent.push_front(old));
                Ok(())
            }
            Err(error) => {
                head.recent = recent;
                Err(error)
            }
        }
    }

    /// Stores everything that waits as one batch, and answers.
    async fn append_waiting(&self, head: &mut Head) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        let mut draft = Draft::of(head, self.store.source().now());
        let mut ready = Vec::new();
        for Waiting { append, reply } in waiting {
            let id = append.id.unwrap_or_else(|| self.store.source().id());
            if let Some((_, receipt)) = head.recent.iter().find(|(known, _)| *known == id) {
                let _ = reply.send(Ok(receipt.clone()));
                continue;
            }
            match self.draft(head, &mut draft, append, id).await {
                Ok(receipt) => ready.push((id, receipt, reply)),
                Err(error) => {
                    let _ = reply.send(Err(error));
                }
            }
        }
        if ready.is_empty() {
            return;
        }
        let outcome = self.commit(head, draft, ready.iter().map(|(id, receipt, _)| (*id, receipt))).await;
        for (id, receipt, reply) in ready {
            if outcome.is_ok() {
                head.remember(id, &receipt);
            }
            let _ = reply.send(outcome.clone().map(|()| receipt));
        }
    }

    async fn commit<'a>(
        &self,
        head: &mut Head,
        mut draft: Draft,
        mut parts: impl Iterator<Item = (BatchId, &'a Receipt)>,
    ) -> Result<()> {
        if draft.entries.is_empty() {
            return Ok(());
        }
        let Some((first, _)) = parts.next() else { return Ok(()) };
        let batch = self.finish(head, &mut draft, first)?;
        // If this future is dropped while the store works, nobody here knows how it ended.
        head.stale = true;
        match self.store.inner.backend.append(self.store.workspace(), batch).await {
            Ok(_) => {
                head.take(draft);
                head.stale = false;
                Ok(())
            }
            Err(error @ Error::Io { .. }) => self.settle(head, first, error).await,
            Err(error) => {
                head.state = None;
                Err(error)
            }
        }
    }

    /// A write whose end is unknown is settled by reading back.
    async fn settle(&self, head: &mut Head, batch: BatchId, error: Error) -> Result<()> {
        if self.reload(head).await.is_err() {
            return Err(error);
        }
        match head.recent.iter().any(|(known, _)| *known == batch) {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Adds the entries of one append to the draft; leaves it as it was when one of them is refused.
    async fn draft(&self, head: &mut Head, draft: &mut Draft, append: Append, id: BatchId) -> Result<Receipt> {
        if append.items.is_empty() {
            return Err(Error::invalid("append", "it has no entries: add a message, a state, an event or a mark"));
        }
        let before = (draft.entries.len(), draft.blobs.len(), draft.marks.len(), draft.keyframes.len());
        let (length, chain, session, bytes) = (draft.length, draft.chain, draft.session.clone(), draft.bytes);
        let outcome = self.draft_items(head, draft, append, id).await;
        if outcome.is_err() {
            draft.entries.truncate(before.0);
            draft.blobs.truncate(before.1);
            draft.marks.truncate(before.2);
            draft.keyframes.truncate(before.3);
            (draft.length, draft.chain, draft.session, draft.bytes) = (length, chain, session, bytes);
        }
        outcome
    }

    async fn draft_items(&self, head: &mut Head, draft: &mut Draft, append: Append, id: BatchId) -> Result<Receipt> {
        let limits = &self.store.inner.limits;
        check_size("an append's number of entries", draft.entries.len() + append.items.len(), "max_batch_entries", limits.max_batch_entries)?;
        let (start, length) = (draft.entries.len(), draft.length);
        let mut checkpoints = Vec::new();
        let mut undo = Vec::new();
        for item in append.items {
            let outcome = self.draft_item(head, draft, item, &mut checkpoints, &mut undo).await;
            if let Err(error) = outcome {
                // The state is put back as it was, so that the next append finds it right.
                self.undo(head, undo);
                return Err(error);
            }
            if let Err(error) = check_size("an append", draft.bytes as usize, "max_batch_bytes", limits.max_batch_bytes) {
                self.undo(head, undo);
                return Err(error);
            }
        }
        let first = Position { timeline: head.timeline, seq: Seq(length) };
        if draft.entries.len() == start {
            // A state that did not change is no entry.
            return Ok(Receipt { first, length, checkpoints, repeated: false });
        }
        if let Some(entry) = draft.entries.get_mut(start) {
            entry.batch = Some(id);
        }
        if let Some(entry) = draft.entries.last_mut() {
            entry.chain = Some(draft.chain);
        }
        Ok(Receipt { first, length: draft.length, checkpoints, repeated: false })
    }

    /// Forgets the state when an append that changed it was refused.
    fn undo(&self, head: &mut Head, changed: Vec<()>) {
        if !changed.is_empty() {
            head.state = None;
        }
    }

    async fn draft_item(
        &self,
        head: &mut Head,
        draft: &mut Draft,
        item: Item,
        checkpoints: &mut Vec<CheckpointId>,
        changed: &mut Vec<()>,
    ) -> Result<()> {
        let timeline = head.timeline;
        match item {
            Item::Message(message) => self.push(draft, timeline, &Body::Message(message), Vec::new()),
            Item::Event(event, refs) => {
                let limits = &self.store.inner.limits;
                check_name("an event's type", &event.kind, "max_name_bytes", limits.max_name_bytes)?;
                if event.kind == event::SESSION {
                    self.check_patch(&event)?;
                }
                self.push(draft, timeline, &Body::Event(event), refs)
            }
            Item::State(value) => {
                check_depth(&value)?;
                let state = self.head_state_in(head, draft).await?;
                let delta = Delta::diff(state.state.value(), &value)?;
                self.push_delta(head, draft, delta, changed)
            }
            Item::Delta(delta) => {
                self.head_state_in(head, draft).await?;
                self.push_delta(head, draft, delta, changed)
            }
            Item::Mark(mark) => {
                let hash = self.head_state_in(head, draft).await?.state.hash();
                let mark = self.checkpoint(*mark, draft, Hash(hash))?;
                checkpoints.push(mark.id);
                self.push(draft, timeline, &Body::Mark(mark), Vec::new())
            }
        }
    }

    fn check_patch(&self, event: &Event) -> Result<()> {
        let limits = &self.store.inner.limits;
        let set = event.data.get("set").and_then(Value::as_object);
        for (key, value) in set.into_iter().flatten() {
            check_name("a session's field", key, "max_name_bytes", limits.max_name_bytes)?;
            let texts = match value {
                Value::String(text) => std::slice::from_ref(text).to_vec(),
                Value::Array(list) => list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect(),
                _ => Vec::new(),
            };
            for text in texts {
                check_name(&format!("a session's {key}"), &text, "max_name_bytes", limits.max_name_bytes)?;
                if key == "tags" && (text.contains('\n') || text.is_empty()) {
                    return Err(Error::invalid("a session's tag", "it is empty or has a line feed: use words"));
                }
            }
            if key == "status" && value.as_str().and_then(milepost_model::Status::from_name).is_none() {
                let known = milepost_model::Status::ALL.map(milepost_model::Status::as_str).join(", ");
                return Err(Error::invalid("a session's status", format!("{value} is none of {known}")));
            }
        }
        Ok(())
    }

    fn checkpoint(&self, new: NewMark, draft: &Draft, state: Hash) -> Result<Checkpoint> {
        let max = self.store.inner.limits.max_name_bytes;
        if let Some(label) = &new.label {
            check_name("a checkpoint's label", label, "max_name_bytes", max)?;
        }
        check_name("a checkpoint's trigger", new.trigger.as_str(), "max_name_bytes", max)?;
        Ok(Checkpoint {
            id: self.store.source().id(),
            number: draft.session.checkpoints + 1,
            trigger: new.trigger,
            label: new.label,
            description: new.description,
            clean: new.clean,
            resumable: new.resumable,
            counts: draft.session.counts.clone(),
            state,
            extra: new.extra,
        })
    }

    fn push_delta(&self, head: &mut Head, draft: &mut Draft, delta: Delta, changed: &mut Vec<()>) -> Result<()> {
        if delta.is_empty() {
            return Ok(());
        }
        let timeline = head.timeline;
        let Some(known) = head.state.as_mut() else { return Err(Error::Closed) };
        let before = draft.bytes;
        known.state.apply(&delta)?;
        changed.push(());
        let at = Position { timeline, seq: Seq(draft.length) };
        self.push(draft, timeline, &Body::State(delta), Vec::new())?;
        known.distance.deltas += 1;
        known.bytes += draft.bytes - before;
        let due = (known.bytes >= known.size && known.distance.deltas > 1)
            || known.distance.deltas >= KEYFRAME_DELTAS
            || known.distance.timelines >= KEYFRAME_TIMELINES;
        if due {
            self.push_keyframe(known, draft, at)?;
        }
        Ok(())
    }

    fn push_keyframe(&self, known: &mut HeadState, draft: &mut Draft, at: Position) -> Result<()> {
        known.size = encode_value(known.state.value()).len() as u64;
        // The state may have grown since it was last measured.
        if known.bytes < known.size && known.distance.deltas < KEYFRAME_DELTAS && known.distance.timelines < KEYFRAME_TIMELINES {
            return Ok(());
        }
        draft.keyframes.push(encode_keyframe(&self.codec, at, known.state.value(), false)?);
        known.made += 1;
        known.keyframes.push_back(at);
        if known.keyframes.len() > 2 {
            let old = known.keyframes.pop_front();
            if (known.made - 2) % KEYFRAME_KEEP_EVERY != 0 {
                draft.drop_keyframes.extend(old);
            }
        }
        known.distance = Distance::default();
        known.bytes = 0;
        Ok(())
    }

    async fn head_state<'a>(&self, head: &'a mut Head) -> Result<&'a mut HeadState> {
        if head.state.is_none() {
            let (state, distance) = self.store.state_before(head.timeline, Seq(head.length)).await?;
            let size = encode_value(&state).len() as u64;
            // How many bytes the deltas have is not known; assume that they are as large as the state's share.
            let bytes = size * distance.deltas / KEYFRAME_DELTAS;
            head.state = Some(HeadState {
                state: HashedState::new(state),
                distance,
                bytes,
                size,
                keyframes: VecDeque::new(),
                made: 0,
            });
        }
        head.state.as_mut().ok_or(Error::Closed)
    }

    /// The state at the end of the draft. When it must be read, state changes of the draft are put on top.
    async fn head_state_in<'a>(&self, head: &'a mut Head, draft: &Draft) -> Result<&'a mut HeadState> {
        let is_known = head.state.is_some();
        let timeline = head.timeline;
        let state = self.head_state(head).await?;
        if !is_known {
            for (number, entry) in draft.entries.iter().enumerate() {
                if entry.kind == milepost_model::EntryKind::State {
                    let at = Position { timeline, seq: Seq(draft.first.0 + number as u64) };
                    let blob = entry.refs.first().and_then(|id| draft.blobs.iter().find(|blob| blob.id == *id));
                    let decoded = self.codec.decode(at, entry, blob.map(|blob| blob.bytes.as_slice()))?;
                    if let Some(Body::State(delta)) = decoded.body {
                        state.state.apply(&delta)?;
                    }
                }
            }
        }
        Ok(state)
    }

    /// Encodes one entry onto the draft.
    fn push(&self, draft: &mut Draft, timeline: TimelineId, body: &Body, refs: Vec<BlobId>) -> Result<()> {
        let at = Position { timeline, seq: Seq(draft.length) };
        let encoded = self.codec.encode(at, draft.time, &draft.chain, body)?;
        let mut entry = encoded.entry;
        entry.refs.extend(refs);
        if let Body::Mark(mark) = body {
            entry.chain = Some(encoded.hash);
            entry.mac = self.store.inner.keys.marks().map(|key| key.sign(&encoded.hash));
            draft.marks.push(fold::mark_to_row(&self.codec, at, draft.time, mark));
        }
        draft.bytes += (entry.body.len() + entry.text.as_ref().map_or(0, String::len)) as u64;
        if let Some(blob) = encoded.blob {
            draft.bytes += blob.bytes.len() as u64;
            draft.blobs.push(blob);
        }
        draft.entries.push(entry);
        draft.chain = encoded.hash;
        draft.length += 1;
        fold::fold(&mut draft.session, draft.time, body);
        Ok(())
    }

    /// The batch of a draft: first and last entries and all checksums are set.
    fn finish(&self, head: &Head, draft: &mut Draft, id: BatchId) -> Result<Batch> {
        if let Some(entry) = draft.entries.first_mut() {
            entry.batch.get_or_insert(id);
        }
        if let Some(entry) = draft.entries.last_mut() {
            entry.chain = Some(draft.chain);
        }
        for (number, entry) in draft.entries.iter_mut().enumerate() {
            let at = Position { timeline: head.timeline, seq: Seq(draft.first.0 + number as u64) };
            entry.sum = codec::checksum(at, entry);
        }
        Ok(Batch {
            session: self.session,
            timeline: head.timeline,
            expected: draft.first.0,
            epoch: Some(head.epoch),
            renew_ms: self.store.inner.lease_ttl_ms,
            holder: None,
            open: None,
            entries: std::mem::take(&mut draft.entries),
            blobs: std::mem::take(&mut draft.blobs),
            row: Some(fold::session_to_row(&self.codec, &draft.session)?),
            marks: std::mem::take(&mut draft.marks),
            keyframes: std::mem::take(&mut draft.keyframes),
            rewrite: Rewrite { drop_keyframes: std::mem::take(&mut draft.drop_keyframes), ..Rewrite::default() },
        })
    }

    /// Sets the session back to an entry: a new timeline begins there and becomes the head. What came
    /// after stays, on the old timeline.
    pub async fn restore(&self, to: Position) -> Result<Receipt> {
        let mut head = self.fresh_head().await?;
        let is_own = self.store.lineage(head.timeline, Seq(head.length)).await?;
        let all = self.store.inner.backend.timelines(self.store.workspace(), self.session).await?;
        let reachable = is_own.iter().any(|part| part.timeline == to.timeline && to.seq < part.to)
            || all.iter().any(|line| line.id == to.timeline && to.seq.0 < line.length);
        if !reachable {
            return Err(Error::not_found("entry of this session", to));
        }
        let chain = self.store.hash_at(to).await?;
        let timeline: TimelineId = self.store.source().id();
        let mut session = head.session.clone();
        self.store.counts_at(to, &mut session).await?;
        session.head = timeline;
        let from = Position { timeline: head.timeline, seq: Seq(head.length.saturating_sub(1)) };
        let data = json!({ "to": to, "from": from, "set": fold::meta(&session) });
        let body = Body::Event(Event::new(event::RESTORED, data));
        let next = Head {
            epoch: head.epoch,
            timeline,
            length: to.seq.0 + 1,
            chain,
            time: head.time,
            session,
            state: None,
            stale: false,
            recent: VecDeque::new(),
        };
        let mut draft = Draft::of(&next, self.store.source().now());
        self.push(&mut draft, timeline, &body, Vec::new())?;
        let id = self.store.source().id();
        let mut batch = self.finish(&next, &mut draft, id)?;
        batch.open = Some(Opening {
            parent: Some(to),
            head: MAIN_HEAD.to_owned(),
            replaces: Some(head.timeline),
        });
        head.stale = true;
        self.store.inner.backend.append(self.store.workspace(), batch).await?;
        let receipt = Receipt {
            first: Position { timeline, seq: draft.first },
            length: draft.length,
            checkpoints: Vec::new(),
            repeated: false,
        };
        *head = next;
        head.take(draft);
        Ok(receipt)
    }

    /// Records an event and changes what is already stored, in one step.
    pub(super) async fn rewrite(&self, event: Event, change: Changes) -> Result<()> {
        let mut head = self.fresh_head().await?;
        let mut draft = Draft::of(&head, self.store.source().now());
        self.push(&mut draft, head.timeline, &Body::Event(event), Vec::new())?;
        draft.blobs.extend(change.blobs);
        draft.keyframes.extend(change.keyframes);
        if let Some(session) = change.session {
            draft.session = session;
        }
        let mut batch = self.finish(&head, &mut draft, self.store.source().id())?;
        batch.rewrite = change.rewrite;
        head.stale = true;
        self.store.inner.backend.append(self.store.workspace(), batch).await?;
        head.take(draft);
        head.state = None;
        head.stale = false;
        Ok(())
    }

    /// Keeps a blob in this session's workspace, to be named by an event. It is collected when no event
    /// names it within the grace time.
    pub async fn put_blob(&self, plain: &[u8]) -> Result<BlobId> {
        let blob = self.codec.blob(plain)?;
        let id = blob.id;
        self.store.inner.backend.put_blobs(self.store.workspace(), vec![blob]).await?;
        Ok(id)
    }

    /// A blob's content, checked against its name.
    pub async fn get_blob(&self, id: BlobId) -> Result<Vec<u8>> {
        let mut found = self.store.inner.backend.get_blobs(self.store.workspace(), vec![id]).await?;
        let stored = found.pop().flatten().ok_or_else(|| Error::not_found("blob", Hash(id.0)))?;
        self.codec.open_blob(id, &stored)
    }

    /// Holds the session for longer. Every append does so too.
    pub async fn renew(&self) -> Result<()> {
        let epoch = self.head.lock().await.epoch;
        let action = LeaseAction::Renew { epoch, ttl_ms: self.store.inner.lease_ttl_ms };
        self.store.inner.backend.lease(self.store.workspace(), self.session, action).await.map(|_| ())
    }

    /// Gives the session back, so that others need not wait for the lease to end.
    pub async fn release(self) -> Result<()> {
        let epoch = self.head.lock().await.epoch;
        let action = LeaseAction::Release { epoch };
        self.store.inner.backend.lease(self.store.workspace(), self.session, action).await.map(|_| ())
    }
}

/// Changes to what is stored, besides the event that records them.
#[derive(Default)]
pub(super) struct Changes {
    pub rewrite: Rewrite,
    pub blobs: Vec<Blob>,
    pub keyframes: Vec<Keyframe>,
    /// The session's row afterwards, when the event alone does not say it.
    pub session: Option<Session>,
}
