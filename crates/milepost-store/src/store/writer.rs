//! Writing: who holds a session's lease appends to it here.
//!
//! A [`SessionWriter`] is the sequencer of one session in one process: it knows where the head is,
//! gives every entry its number and chain hash, and lets appends that arrive together share a batch.
//! When a write fails, what it knows is dropped and read again from the store.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use milepost_model::{
    BatchId, Body, Branch, CheckpointId, Epoch, Event, Hash, OwnerId, Position, Seq, Session, SessionId, State, Status,
    TimelineId,
};
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncGuard, oneshot};

use super::Store;
use super::append::{Append, Claim, NewSession, Receipt};
use super::draft::{Draft, Head, HeadState, check_new_patch, check_patch};
use super::fold::{self, event};
use crate::backend::{Blob, BlobId, Keyframe, LeaseAction, MAIN_HEAD, Opening, Range, Rewrite};
use crate::codec::{self, Codec};
use crate::error::{Conflict, Error, Result};
use crate::limits::check_name;

/// Holds a session's lease and appends to it.
pub struct SessionWriter {
    pub(super) store: Store,
    pub(super) session: SessionId,
    pub(super) owner: OwnerId,
    /// It writes without a lease, beside whoever else does.
    pub(super) shared: bool,
    pub(super) codec: Codec,
    pub(super) waiting: Mutex<VecDeque<Waiting>>,
    pub(super) head: AsyncMutex<Head>,
}

/// So many bytes are enough for one write: those who wait would wait longer for more.
const GROUP_BYTES: u64 = 4 << 20;

pub(super) struct Waiting {
    id: BatchId,
    /// The id is somebody's own: an append with it may have been stored before.
    is_given: bool,
    /// Taken when it is drafted and nobody else's append is in the same group.
    append: Option<Append>,
    /// It was handed to the store before, by someone who was dropped meanwhile.
    is_sent: bool,
    receipt: Option<Receipt>,
    reply: oneshot::Sender<Result<Receipt>>,
}

/// Appends that are stored together. When whoever stores them is dropped half-way, those that are not
/// answered yet wait again.
struct Group<'a> {
    queue: &'a Mutex<VecDeque<Waiting>>,
    items: VecDeque<Waiting>,
}

impl<'a> Group<'a> {
    fn take(queue: &'a Mutex<VecDeque<Waiting>>) -> Self {
        let items = std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner));
        Self { queue, items }
    }

    fn answer(&mut self, at: usize, outcome: Result<Receipt>) {
        if let Some(waiting) = self.items.remove(at) {
            // Whoever asked may have gone; what was stored stays stored.
            let _ = waiting.reply.send(outcome);
        }
    }

    /// What an append before `at` with the same batch id was given.
    fn drafted(&self, at: usize, id: BatchId) -> Option<Receipt> {
        self.items.iter().take(at).find(|waiting| waiting.id == id).and_then(|waiting| waiting.receipt.clone())
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(waiting) = self.items.pop_back() {
            if waiting.append.is_some() {
                queue.push_front(Waiting { receipt: None, ..waiting });
            }
        }
    }
}

impl Store {
    /// Begins a session and holds it.
    pub async fn create(&self, new: NewSession, claim: &Claim) -> Result<SessionWriter> {
        let id = self.new_session_id(new.id).await?;
        let timeline: TimelineId = self.source().id();
        let session = Session::new(id, timeline, self.source().now());
        let body = Body::Event(fold::patch_event(new.patch));
        let open = Opening { parent: None, head: MAIN_HEAD.to_owned(), replaces: None };
        self.begin(session, open, codec::genesis(id), body, Some(claim)).await
    }

    /// Begins a session that nobody holds, and writes to it without a lease. See [`Store::join`].
    pub async fn create_shared(&self, new: NewSession) -> Result<SessionWriter> {
        let id = self.new_session_id(new.id).await?;
        let session = Session::new(id, self.source().id(), self.source().now());
        let body = Body::Event(fold::patch_event(new.patch));
        let open = Opening { parent: None, head: MAIN_HEAD.to_owned(), replaces: None };
        self.begin(session, open, codec::genesis(id), body, None).await
    }

    /// Writes to a session without its lease, beside whoever else does: for adapters of frameworks that know no owner.
    /// Nothing interleaves: an append that comes after another's is refused with [`Conflict::Length`] or
    /// [`Conflict::NotHead`], nothing of it is stored, and the next one reads the head again. Whoever holds the
    /// session is treated likewise. A session that was deleted meanwhile is not found, also when it is kept for its branches.
    pub async fn join(&self, session: SessionId) -> Result<SessionWriter> {
        let codec = self.codec(session).await?;
        let head = self.read_head(&codec, session, None, None).await?;
        Ok(SessionWriter {
            store: self.clone(),
            session,
            owner: self.source().id(),
            shared: true,
            codec,
            waiting: Mutex::default(),
            head: AsyncMutex::new(head),
        })
    }

    /// Begins a session that shares everything up to and with an entry of another. Nothing is copied.
    pub async fn branch(&self, at: Position, new: NewSession, claim: &Claim) -> Result<SessionWriter> {
        let (parent_id, _) = self.parent(at.timeline).await?;
        let parent = self.session(parent_id).await?;
        let id = self.new_session_id(new.id).await?;
        let timeline: TimelineId = self.source().id();
        let mut session = Session::new(id, timeline, self.source().now().max(self.entry_time(at).await?));
        session.branch = Some(Branch { session: parent_id, at });
        self.counts_at(at, &mut session).await?;
        let mut set = fold::meta(&parent).status(Status::Active);
        set.0.extend(new.patch.0);
        let data = json!({ "from": at, "session": parent_id, "set": set });
        let body = Body::Event(Event::new(event::BRANCHED, data));
        let open = Opening { parent: Some(at), head: MAIN_HEAD.to_owned(), replaces: None };
        // There must be a state to go on with.
        self.state_before(at.timeline, at.seq.next()).await?;
        let chain = self.hash_at(at).await?;
        self.begin(session, open, chain, body, Some(claim)).await
    }

    /// The id of a session that begins. One that was made just now is nobody else's; one that was given may be
    /// there already, and its key must not be made anew.
    async fn new_session_id(&self, given: Option<SessionId>) -> Result<SessionId> {
        let Some(id) = given else { return Ok(self.source().id()) };
        match self.inner.backend.session(self.workspace(), id).await? {
            Some(_) => Err(Conflict::Exists { what: "session", id: id.to_string() }.into()),
            None => Ok(id),
        }
    }

    async fn begin(
        &self,
        session: Session,
        open: Opening,
        chain: Hash,
        first: Body,
        claim: Option<&Claim>,
    ) -> Result<SessionWriter> {
        if let Some(claim) = claim {
            check_name("the holder", &claim.holder, "max_name_bytes", self.inner.limits.max_name_bytes)?;
        }
        if let Body::Event(event) = &first {
            check_patch(event, &self.inner.limits)?;
            check_new_patch(event)?;
        }
        let id = session.id;
        self.inner.keys.create_session(&*self.inner.backend, id).await?;
        let owner = self.source().id();
        let head = Head {
            epoch: Epoch(if claim.is_some() { 1 } else { 0 }),
            timeline: session.head,
            length: open.parent.map_or(0, |at| at.seq.0 + 1),
            chain,
            time: session.created,
            session,
            state: None,
            kept: None,
            stale: false,
            recent: VecDeque::new(),
        };
        let writer = SessionWriter {
            store: self.clone(),
            session: id,
            owner,
            shared: claim.is_none(),
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
        batch.holder = claim.map(|claim| (owner, claim.holder.clone()));
        self.append_batch(batch).await?;
        self.changed(id);
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
        let lease = self.change_lease(session, action).await?;
        let head = self.read_head(&codec, session, Some(lease.epoch), None).await?;
        Ok(SessionWriter {
            store: self.clone(),
            session,
            owner,
            shared: false,
            codec,
            waiting: Mutex::default(),
            head: AsyncMutex::new(head),
        })
    }
}

impl SessionWriter {
    /// The session.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// Who holds it, unless it is shared: this writer.
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

    /// The timeline that goes on, and how many entries it has, as far as this writer knows.
    pub async fn head(&self) -> (TimelineId, u64) {
        let head = self.head.lock().await;
        (head.timeline, head.length)
    }

    /// The lease under which it writes.
    pub async fn epoch(&self) -> Epoch {
        self.head.lock().await.epoch
    }

    /// Where the head is now, also when others moved it: its timeline, and the number that its next entry gets.
    pub async fn refresh(&self) -> Result<(TimelineId, u64)> {
        let mut head = self.head.lock().await;
        if head.stale || self.shared {
            self.reload(&mut head).await?;
            head.stale = false;
        }
        Ok((head.timeline, head.length))
    }

    /// The state at the head.
    pub async fn state(&self) -> Result<State> {
        let mut head = self.fresh_head().await?;
        let state = self.head_state(&mut head).await?;
        Ok(state.state.value().clone().try_into()?)
    }

    /// Appends; returns when it is durable. Appends that arrive together share one batch. When this
    /// future is dropped, what it was to append may or may not be stored; others are not disturbed.
    pub async fn append(&self, append: Append) -> Result<Receipt> {
        let is_given = append.id.is_some();
        let id = append.id.unwrap_or_else(|| self.store.source().id());
        let (reply, mut answer) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(Waiting {
            id,
            is_given,
            append: Some(append),
            is_sent: false,
            receipt: None,
            reply,
        });
        let mut head = self.head.lock().await;
        loop {
            // Whoever had the head before may have taken this append along.
            match answer.try_recv() {
                Ok(outcome) => return outcome,
                Err(oneshot::error::TryRecvError::Closed) => return Err(Error::Closed),
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            if head.stale {
                // Boxed, as all that is seldom done is: what is done for every append would be as large.
                Box::pin(self.reload(&mut head)).await?;
            }
            self.append_group(&mut head).await;
        }
    }

    async fn fresh_head(&self) -> Result<AsyncGuard<'_, Head>> {
        let mut head = self.head.lock().await;
        if head.stale {
            Box::pin(self.reload(&mut head)).await?;
        }
        Ok(head)
    }

    async fn reload(&self, head: &mut Head) -> Result<()> {
        let epoch = (!self.shared).then_some(head.epoch);
        if let Some(epoch) = epoch {
            // A write whose caller is gone may still be on its way: renewing the lease waits behind it.
            let renew = LeaseAction::Renew { epoch, ttl_ms: self.store.inner.lease_ttl_ms };
            self.store.change_lease(self.session, renew).await?;
        }
        let recent = std::mem::take(&mut head.recent);
        let known = Some((head.timeline, head.length));
        let fresh = self.store.read_head(&self.codec, self.session, epoch, known).await;
        // One that was deleted, and of which only what its branches need is kept, is there for nobody who writes beside others.
        let is_gone = |fresh: &Head| self.shared && fresh.session.hidden;
        match fresh {
            Ok(fresh) if is_gone(&fresh) => {
                head.recent = recent;
                Err(Error::not_found("session", self.session))
            }
            Ok(fresh) => {
                let known: Vec<_> =
                    recent.into_iter().filter(|(id, _)| !fresh.recent.iter().any(|(other, _)| other == id)).collect();
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

    /// Stores what waits, up to the limits of one batch, and answers.
    async fn append_group(&self, head: &mut Head) {
        let limits = &self.store.inner.limits;
        let mut group = Group::take(&self.waiting);
        let is_shared = group.items.len() > 1;
        let mut draft = Draft::of(head, self.store.source().now());
        let mut at = 0;
        while let Some(waiting) = group.items.get_mut(at) {
            if waiting.reply.is_closed() {
                // Its caller gave up before it was begun.
                group.items.remove(at);
                continue;
            }
            let id = waiting.id;
            // An id that was made just now is not among them.
            let may_be_known = waiting.is_given || waiting.is_sent;
            let known = may_be_known.then(|| head.recent.iter().find(|(known, _)| *known == id)).flatten();
            if let Some((_, receipt)) = known {
                let receipt = Receipt { repeated: !waiting.is_sent, ..receipt.clone() };
                group.answer(at, Ok(receipt));
                continue;
            }
            if let Some(receipt) = group.drafted(at, id) {
                group.items[at].receipt = Some(Receipt { repeated: true, ..receipt });
                at += 1;
                continue;
            }
            let waiting = &mut group.items[at];
            let items = waiting.append.as_ref().map_or(0, |append| append.items.len());
            let is_full = (draft.entries.len() + items) as u64 > limits.max_batch_entries
                || draft.bytes >= GROUP_BYTES.min(limits.max_batch_bytes);
            if is_full && !draft.entries.is_empty() {
                break;
            }
            let append = if is_shared { waiting.append.clone() } else { waiting.append.take() };
            match self.draft(head, &mut draft, append.unwrap_or_default(), id).await {
                Ok(receipt) => {
                    group.items[at].receipt = Some(receipt);
                    at += 1;
                }
                Err(error) => group.answer(at, Err(error)),
            }
        }
        group.items.iter_mut().take(at).for_each(|waiting| waiting.is_sent = true);
        let outcome = self.commit(head, draft).await;
        for _ in 0..at {
            let Some(waiting) = group.items.pop_front() else { break };
            let Some(receipt) = waiting.receipt else { continue };
            if outcome.is_ok() && !receipt.repeated {
                head.remember(waiting.id, &receipt);
            }
            let _ = waiting.reply.send(outcome.clone().map(|()| receipt));
        }
    }

    async fn commit(&self, head: &mut Head, mut draft: Draft) -> Result<()> {
        let Some(first) = draft.entries.first().and_then(|entry| entry.batch) else { return Ok(()) };
        let batch = self.finish(head, &mut draft, first)?;
        let at = Position { timeline: head.timeline, seq: draft.first };
        // If this future is dropped while the store works, nobody here knows how it ended.
        head.stale = true;
        let spent = std::mem::take(&mut draft.spent);
        let outcome = meanwhile(self.store.append_batch(batch), || drop(spent)).await;
        match outcome {
            Ok(_) => {
                self.store.changed(self.session);
                head.take(draft);
                head.stale = false;
                Ok(())
            }
            Err(error @ Error::Io { .. }) => Box::pin(self.settle(head, at, first, error)).await,
            Err(error) => {
                (head.state, head.kept) = (None, None);
                Err(error)
            }
        }
    }

    /// A write whose end is unknown is settled by reading back.
    async fn settle(&self, head: &mut Head, at: Position, batch: BatchId, error: Error) -> Result<()> {
        if self.reload(head).await.is_err() {
            return Err(error);
        }
        match self.store.inner.backend.read(self.store.workspace(), Range::one(at)).await {
            Ok(found) if found.first().is_some_and(|(_, entry)| entry.batch == Some(batch)) => Ok(()),
            _ => Err(error),
        }
    }

    /// Sets the session back to an entry: a new timeline begins there and becomes the head. What came
    /// after stays, on the old timeline.
    pub async fn restore(&self, to: Position) -> Result<Receipt> {
        self.restore_with(to, Append::new()).await
    }

    /// Sets the session back to an entry and goes on from there, in one step.
    pub async fn restore_with(&self, to: Position, mut append: Append) -> Result<Receipt> {
        let mut head = self.fresh_head().await?;
        if let Some(at) = append.after.take() {
            head.expect(at, head.length)?;
        }
        // The timeline that begins is not there yet: what it needs is not known.
        append.prune = None;
        let is_own = self.store.lineage(head.timeline, Seq(head.length)).await?;
        let all = self.store.inner.backend.timelines(self.store.workspace(), self.session).await?;
        let reachable = is_own.iter().any(|part| part.timeline == to.timeline && to.seq < part.to)
            || all.iter().any(|line| line.id == to.timeline && to.seq.0 < line.length);
        if !reachable {
            return Err(Error::not_found("entry of this session", to));
        }
        // There must be a state to go on with.
        self.store.state_before(to.timeline, to.seq.next()).await?;
        let chain = self.store.hash_at(to).await?;
        let timeline: TimelineId = self.store.source().id();
        let mut session = head.session.clone();
        self.store.counts_at(to, &mut session).await?;
        session.head = timeline;
        let from = Position { timeline: head.timeline, seq: Seq(head.length.saturating_sub(1)) };
        let data = json!({ "to": to, "from": from, "set": fold::meta(&session) });
        let body = Body::Event(Event::new(event::RESTORED, data));
        let mut next = Head {
            epoch: head.epoch,
            timeline,
            length: to.seq.0 + 1,
            chain,
            time: head.time,
            session,
            state: None,
            kept: None,
            stale: false,
            recent: VecDeque::new(),
        };
        let mut draft = Draft::of(&next, self.store.source().now());
        self.push(&mut draft, timeline, &body, Vec::new())?;
        let id = append.id.unwrap_or_else(|| self.store.source().id());
        let checkpoints = match append.is_empty() {
            true => Vec::new(),
            false => {
                // The state is read where it was: the new timeline is not there yet.
                let (state, distance) = self.store.state_before(to.timeline, to.seq.next()).await?;
                next.state = Some(HeadState::new(state, distance, next.length));
                let checkpoints = self.draft(&mut next, &mut draft, append, id).await?.checkpoints;
                // All of it is one batch, which begins with the event.
                draft.entries.iter_mut().for_each(|entry| entry.batch = None);
                checkpoints
            }
        };
        let mut batch = self.finish(&next, &mut draft, id)?;
        batch.open = Some(Opening { parent: Some(to), head: MAIN_HEAD.to_owned(), replaces: Some(head.timeline) });
        head.stale = true;
        self.store.append_batch(batch).await?;
        self.store.changed(self.session);
        let receipt = Receipt {
            first: Position { timeline, seq: draft.first },
            length: draft.length,
            checkpoints,
            pruned: None,
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
        let mut rewrite = change.rewrite;
        // What lies in the trash is read as before.
        let keeps_state = matches!(event.kind.as_str(), event::PRUNED | event::UNPRUNED);
        if event.kind == event::PRUNED {
            // The log's time never goes back, whatever the clock does: the rows say what it says.
            rewrite.marks.iter_mut().for_each(|row| row.trashed = Some(draft.time));
        }
        self.push(&mut draft, head.timeline, &Body::Event(event), Vec::new())?;
        draft.blobs.extend(change.blobs);
        draft.keyframes.extend(change.keyframes);
        if let Some(newest) = change.checkpoint {
            draft.session.checkpoint = newest;
        }
        let is_cut = !rewrite.truncate.is_empty();
        let mut batch = self.finish(&head, &mut draft, self.store.source().id())?;
        batch.rewrite = rewrite;
        head.stale = true;
        self.store.append_batch(batch).await?;
        self.store.changed(self.session);
        head.take(draft);
        head.kept = None;
        if !keeps_state {
            head.state = None;
        }
        // After a cut the head is somewhere else: read it again.
        head.stale = is_cut;
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
        self.codec.open_blob(id, &stored).map(Cow::into_owned)
    }

    /// Holds the session for longer. Every append does so too.
    pub async fn renew(&self) -> Result<()> {
        if self.shared {
            return Ok(());
        }
        let epoch = self.head.lock().await.epoch;
        let action = LeaseAction::Renew { epoch, ttl_ms: self.store.inner.lease_ttl_ms };
        self.store.change_lease(self.session, action).await.map(|_| ())
    }

    /// Gives the session back, so that others need not wait for the lease to end.
    pub async fn release(self) -> Result<()> {
        if self.shared {
            return Ok(());
        }
        let epoch = self.head.lock().await.epoch;
        let action = LeaseAction::Release { epoch };
        self.store.change_lease(self.session, action).await.map(|_| ())
    }
}

/// Starts a future, does something else while it is under way, and waits for it.
async fn meanwhile<F: Future>(future: F, work: impl FnOnce()) -> F::Output {
    let mut future = std::pin::pin!(future);
    let started = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    work();
    match started {
        Poll::Ready(output) => output,
        Poll::Pending => future.await,
    }
}

/// Changes to what is stored, besides the event that records them.
#[derive(Default)]
pub(super) struct Changes {
    pub rewrite: Rewrite,
    pub blobs: Vec<Blob>,
    pub keyframes: Vec<Keyframe>,
    /// The newest mark afterwards, when the one that the session's row names goes.
    pub checkpoint: Option<Option<CheckpointId>>,
}
