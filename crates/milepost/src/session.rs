//! A session that is held: append to it, change its state, take checkpoints, end it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use milepost_model::delta::StatePath;
use milepost_model::{
    CheckpointId, Delta, EntryKind, Event, Message, Policy, Position, Seq, SessionId, SessionPatch, State, Status,
    Timestamp, Trigger,
};
use milepost_store::{Append, NewMark, Receipt, SessionWriter};
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;

use crate::engine::{Milepost, is_asked_for};
use crate::error::{Error, Result};
use crate::notice::{Notice, task_of};
use crate::point::{Point, check_label};
use crate::redaction::{Redaction, Secret};

/// So many checkpoints may wait to be taken.
pub(crate) const MAX_OWED: usize = 64;
/// Where a session keeps the part of the policy that is its own.
pub(crate) const POLICY_KEY: &str = "policy";
/// Events by which the engine says what it did.
pub(crate) const RESUMED: &str = "resumed";

/// A session to begin.
#[derive(Debug, Clone, Default)]
pub struct NewSession {
    /// Its id; a new one when none.
    pub id: Option<SessionId>,
    /// What a list shows of it.
    pub patch: SessionPatch,
    /// The state it begins with.
    pub state: State,
    /// Where its policy differs from the engine's, as in a configuration file.
    pub policy: Option<Value>,
}

impl NewSession {
    /// A session with a title.
    pub fn titled(title: impl Into<String>) -> Self {
        Self { patch: SessionPatch::new().title(title), ..Self::default() }
    }

    /// With values of its state set: they are in its first checkpoint.
    pub fn with(mut self, values: &[(StatePath, Value)]) -> Result<Self> {
        let mut state = self.state.into_value();
        for (path, value) in values {
            crate::point::set(&mut state, path, value.clone())?;
        }
        self.state = state.try_into().map_err(milepost_store::Error::from)?;
        Ok(self)
    }
}

/// A session that this process holds: nobody else writes to it meanwhile. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Milepost,
    writer: SessionWriter,
    policy: Policy,
    redaction: Redaction,
    /// The task that it had when it was taken, for the log.
    task: String,
    run: Mutex<Run>,
    /// Held while a checkpoint is taken on the side: whoever is about to have an effect waits for it.
    saving: Arc<AsyncMutex<()>>,
}

/// What the policy looks at.
#[derive(Debug, Default)]
struct Run {
    /// Messages since the last checkpoint.
    messages: u64,
    /// When the last checkpoint was taken.
    marked: Timestamp,
    /// Checkpoints that could not be taken yet, oldest first: the first goes with what is appended next.
    owed: VecDeque<NewMark>,
    /// Checkpoints since retention last looked.
    unpruned: u32,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// What was appended: it is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The first entry.
    pub first: Position,
    /// The checkpoint that the policy had taken with it.
    pub checkpoint: Option<CheckpointId>,
}

impl Session {
    pub(crate) async fn hold(engine: Milepost, writer: SessionWriter, run: Option<&Value>) -> Result<Self> {
        let info = writer.session().await;
        let refused = if info.hidden {
            Some(hidden(&engine, "writing to", info.id).await?)
        } else {
            info.trashed.map(|_| in_trash("writing to", info.id))
        };
        if let Some(refused) = refused {
            writer.release().await?;
            return Err(refused);
        }
        let mut policy = engine.policy_of(&info)?;
        if let Some(run) = run {
            policy = policy.with(&crate::config::policy_patch(run)?);
        }
        let redaction = engine.redaction().with_keys(policy.exclude_keys.difference(&engine.policy().exclude_keys));
        let marks = milepost_store::MarkQuery { limit: Some(1), ..Default::default() };
        let newest = engine.store().marks(info.id, &marks).await?.pop();
        let run = Run {
            messages: info.messages().saturating_sub(newest.as_ref().map_or(0, |mark| mark.checkpoint.messages())),
            marked: newest.map_or(info.created, |mark| mark.time),
            // The count goes on over processes, however short each lives.
            unpruned: (info.checkpoints % u64::from(policy.retention.prune_every_nodes.max(1))) as u32,
            owed: VecDeque::new(),
        };
        let task = task_of(&info);
        let inner = Inner { engine, writer, policy, redaction, task, run: Mutex::new(run), saving: Arc::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The session.
    pub fn id(&self) -> SessionId {
        self.writer().id()
    }

    /// The task that it works on, for the log.
    pub(crate) fn task(&self) -> String {
        self.inner.task.clone()
    }

    /// The engine that it was opened with.
    pub fn engine(&self) -> &Milepost {
        &self.inner.engine
    }

    /// The policy in force: the engine's, the session's own, this run's.
    pub fn policy(&self) -> &Policy {
        &self.inner.policy
    }

    /// What never reaches the store of this session in clear.
    pub(crate) fn redaction(&self) -> &Redaction {
        &self.inner.redaction
    }

    /// A text as it would be stored: without what is a secret.
    pub fn redacted(&self, text: &str) -> String {
        self.redaction().text(text)
    }

    pub(crate) fn writer(&self) -> &SessionWriter {
        &self.inner.writer
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        self.inner.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts messages towards the next checkpoint.
    pub(crate) fn count_messages(&self, count: u64) {
        self.run().messages += count;
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.engine().source().now()
    }

    /// What a list shows of it now.
    pub async fn info(&self) -> milepost_model::Session {
        self.writer().session().await
    }

    /// The state at its end.
    pub async fn state(&self) -> Result<State> {
        Ok(self.writer().state().await?)
    }

    /// Adds a message; returns when it is durable. When the policy says so, a checkpoint is taken with it.
    pub async fn append(&self, message: Message) -> Result<Appended> {
        self.append_all(vec![message]).await
    }

    /// Adds messages, all or none.
    pub async fn append_all(&self, messages: Vec<Message>) -> Result<Appended> {
        self.append_with(messages, &[]).await
    }

    /// Adds messages and sets values of the state by their paths, all or none. What a path leads through has to be there.
    pub async fn append_with(&self, messages: Vec<Message>, set: &[(StatePath, Value)]) -> Result<Appended> {
        let count = messages.len() as u64;
        let mut append = Append::new();
        let mut found = Vec::new();
        for mut message in messages {
            found.extend(self.redaction().message(&mut message));
            append = append.message(message);
        }
        let delta = self.delta(set.to_vec(), Vec::new(), &mut found)?;
        if !delta.is_empty() {
            append = append.delta(delta);
        }
        self.keep_secrets(found).await?;
        let due = self.due(count);
        self.run().messages += count;
        self.store(append, due).await
    }

    /// Adds messages, however many: as many together as the store takes in one step, each step all or none. When one
    /// fails, those before it are stored, and the error says how many ([`Error::Partly`]).
    pub async fn append_many(&self, messages: Vec<Message>) -> Result<Appended> {
        // A checkpoint may go along.
        let most = self.engine().store().limits().max_batch_entries.saturating_sub(1).max(1) as usize;
        let (total, mut stored) = (messages.len() as u64, 0);
        let (mut rest, mut done) = (messages, None::<Appended>);
        loop {
            let later = rest.split_off(most.min(rest.len()));
            let count = rest.len() as u64;
            let appended = match self.append_all(rest).await {
                Err(error) if stored > 0 => return Err(Error::Partly { stored, total, error: Box::new(error) }),
                appended => appended?,
            };
            stored += count;
            let first = done.as_ref().map_or(appended.first, |done| done.first);
            let checkpoint = appended.checkpoint.or(done.and_then(|done| done.checkpoint));
            let so_far = Appended { first, checkpoint };
            if later.is_empty() {
                return Ok(so_far);
            }
            (rest, done) = (later, Some(so_far));
        }
    }

    /// Puts a new state in place of the old one. What changed is found out, and only that is stored.
    pub async fn set_state(&self, mut state: State) -> Result<Appended> {
        let found = self.redaction().state(&mut state);
        self.keep_secrets(found).await?;
        let due = match self.due(0) {
            None if self.is_large_change(&state).await? => Some(Trigger::Smart),
            due => due,
        };
        self.store(Append::new().state(state), due).await
    }

    /// Changes the state.
    pub async fn update(&self, change: impl FnOnce(&mut State)) -> Result<Appended> {
        let mut state = self.state().await?;
        change(&mut state);
        self.set_state(state).await
    }

    /// Sets values of the state by their paths.
    pub async fn set(&self, values: &[(StatePath, Value)]) -> Result<Appended> {
        let mut state = self.state().await?.into_value();
        for (path, value) in values {
            crate::point::set(&mut state, path, value.clone())?;
        }
        self.set_state(state.try_into().map_err(milepost_store::Error::from)?).await
    }

    /// Adds a change of the state that the caller knows. Named keys and secrets in it are left out as everywhere.
    pub async fn apply(&self, delta: &Delta) -> Result<Appended> {
        let mut state = self.state().await?.into_value();
        delta.apply(&mut state).map_err(milepost_store::Error::from)?;
        self.set_state(state.try_into().map_err(milepost_store::Error::from)?).await
    }

    /// Records something that happened. Kinds with which the store tells of the log itself are refused.
    pub async fn event(&self, mut event: Event) -> Result<Appended> {
        let found = self.redaction().event(&mut event)?;
        self.keep_secrets(found).await?;
        self.store(Append::new().event(event), None).await
    }

    /// Takes a checkpoint; returns when it is durable.
    pub async fn checkpoint(&self, mark: NewMark) -> Result<CheckpointId> {
        self.mark_with(Append::new(), mark).await
    }

    /// Takes a checkpoint with a label, which retention leaves alone. A label is nothing that means another checkpoint:
    /// not `latest`, not a time, not an id.
    pub async fn checkpoint_labelled(&self, label: impl Into<String>) -> Result<CheckpointId> {
        self.checkpoint(NewMark::new(Trigger::Manual).label(label)).await
    }

    /// Takes a checkpoint because something was reached: a campaign created, a deployment done.
    pub async fn milestone(&self, name: impl Into<String>) -> Result<CheckpointId> {
        self.checkpoint(NewMark::new(Trigger::Milestone).label(name)).await
    }

    /// Takes a checkpoint for a reason that the policy may leave out; none when it does. With asynchronous saving it is
    /// taken on the side: [`Session::barrier`] waits for it. When it fails, the session goes on: it is told, counted,
    /// and tried again with the next.
    pub async fn checkpoint_if(&self, mark: NewMark) -> Option<CheckpointId> {
        if !self.policy().takes(&mark.trigger) {
            return None;
        }
        let mark = match labelled(self.redaction().mark(mark.clone())) {
            Ok(mark) => mark,
            // Trying it again would not help.
            Err(error) => {
                self.tell_failed(&mark, &error.to_string());
                return None;
            }
        };
        if self.policy().asynchronous && !is_asked_for(&mark.trigger) {
            self.save_on_the_side(mark);
            return None;
        }
        self.try_mark(mark).await
    }

    /// Waits until everything that was to be saved is saved, or was told to have failed. Whoever is about to do something
    /// to the outside world calls it first.
    pub async fn barrier(&self) {
        drop(self.inner.saving.lock().await);
        // What could not be saved on the side is tried once more.
        let owed: Vec<NewMark> = self.run().owed.drain(..).collect();
        for mark in owed {
            self.try_mark(mark).await;
        }
    }

    /// Pauses: a checkpoint, and the status `paused`. A session that is completed has nothing to pause.
    pub async fn pause(&self, why: Option<&str>) -> Result<CheckpointId> {
        self.must_not_be_completed("pausing").await?;
        let mut mark = NewMark::new(Trigger::Pause);
        mark.description = why.map(|why| self.redaction().text(why));
        self.end_with(SessionPatch::new().status(Status::Paused), mark).await
    }

    /// Waits for someone or something: a checkpoint, and the status `waiting`.
    pub async fn wait(&self, what: &str) -> Result<CheckpointId> {
        self.must_not_be_completed("waiting in").await?;
        let mark = NewMark::new(Trigger::UserCheckpoint).description(self.redaction().text(what));
        self.end_with(SessionPatch::new().status(Status::Waiting), mark).await
    }

    /// Goes on after a pause or a wait.
    pub async fn activate(&self) -> Result<()> {
        let patch = SessionPatch::new().status(Status::Active).with("error", Value::Null);
        self.writer().append(Append::new().patch(patch)).await?;
        Ok(())
    }

    /// Completes: the last checkpoint, and the status `completed`.
    pub async fn complete(&self) -> Result<CheckpointId> {
        self.end_with(SessionPatch::new().status(Status::Completed), NewMark::new(Trigger::Final)).await
    }

    /// Fails: a checkpoint, the status `failed`, and why.
    pub async fn fail(&self, error: &str) -> Result<CheckpointId> {
        let error = self.redaction().text(error);
        let mark = NewMark::new(Trigger::Error).description(error.clone());
        self.end_with(SessionPatch::new().status(Status::Failed).error(error), mark).await
    }

    /// Cancels: a checkpoint, and the status `cancelled`.
    pub async fn cancel(&self, why: Option<&str>) -> Result<CheckpointId> {
        let mut mark = NewMark::new(Trigger::Final);
        mark.description = why.map(|why| self.redaction().text(why));
        self.end_with(SessionPatch::new().status(Status::Cancelled), mark).await
    }

    /// What whoever writes to it should know: that it is completed, and what was added is not the work that was. None when
    /// there is nothing to say. Writing is not refused, as what comes late was said all the same.
    pub async fn caution(&self) -> Option<String> {
        let id = self.id();
        (self.info().await.status == Status::Completed)
            .then(|| format!("session {id} is completed: to go on with it, resume it with --reopen"))
    }

    async fn must_not_be_completed(&self, doing: &str) -> Result<()> {
        match self.info().await.status {
            Status::Completed => Err(Error::refused(
                format!("{doing} session {}", self.id()),
                "it is completed",
                "resume it with `--reopen` first",
            )),
            _ => Ok(()),
        }
    }

    async fn end_with(&self, patch: SessionPatch, mark: NewMark) -> Result<CheckpointId> {
        self.barrier().await;
        let made = self.mark_with(Append::new().patch(patch), mark).await?;
        if self.policy().retention.prune_every_nodes == 0 {
            self.prune_now().await;
        }
        Ok(made)
    }

    /// Changes what a list shows of it.
    pub async fn patch(&self, mut patch: SessionPatch) -> Result<()> {
        self.redaction().patch(&mut patch)?;
        self.writer().append(Append::new().patch(patch)).await?;
        Ok(())
    }

    /// Sets the session back to a checkpoint, in place. What came after stays, on the old timeline.
    pub async fn restore(&self, point: &Point) -> Result<milepost_store::Mark> {
        self.barrier().await;
        let start = self.now();
        let mark = self.engine().mark(self.id(), point).await?;
        self.restore_to(mark.at).await?;
        {
            let mut run = self.run();
            (run.messages, run.marked) = (0, mark.time);
            run.owed.clear();
        }
        let state = self.state().await?;
        self.engine().notify(restored(&mark, self.task(), &state, true, start, self.now()));
        Ok(mark)
    }

    /// Returns the checkpoint by which what is left behind is reached again, if there is one.
    pub(crate) async fn restore_to(&self, at: Position) -> Result<Option<CheckpointId>> {
        let newest = self.info().await.checkpoint;
        let end = match self.mark_end().await {
            // What is damaged cannot be gone back to anyway.
            Err(Error::Store(error)) if error.is_damage() => None,
            other => other?.or(newest),
        };
        self.writer().restore(at).await?;
        Ok(end)
    }

    /// Takes a checkpoint of the end when messages or state came after the newest one, so that it can be gone back to when
    /// the session is set back. A restore does it by itself.
    pub async fn mark_end(&self) -> Result<Option<CheckpointId>> {
        let store = self.engine().store();
        let newest = milepost_store::MarkQuery { limit: Some(1), ..Default::default() };
        let newest = store.marks(self.id(), &newest).await?.pop();
        let from = newest.map_or(Seq(0), |mark| mark.at.seq.next());
        let after = store.entries(self.id(), from, Seq(u64::MAX)).await?;
        if !after.iter().any(|entry| matches!(entry.kind, EntryKind::Message | EntryKind::State)) {
            return Ok(None);
        }
        Ok(Some(self.checkpoint(NewMark::new(Trigger::Restore)).await?))
    }

    /// Holds the session for longer, as every append does. Whoever holds one and writes nothing for a while calls it every
    /// [`Session::renew_every_ms`]; it is refused when someone else has taken the session.
    pub async fn renew(&self) -> Result<()> {
        Ok(self.writer().renew().await?)
    }

    /// How often to renew: three times while a lease lasts, so that one that comes late does no harm.
    pub fn renew_every_ms(&self) -> u64 {
        u64::try_from(self.engine().store().lease_ttl_ms() / 3).unwrap_or(1).max(1)
    }

    /// Gives the session back, so that others may hold it.
    pub async fn release(self) -> Result<()> {
        self.barrier().await;
        match Arc::try_unwrap(self.inner) {
            Ok(inner) => Ok(inner.writer.release().await?),
            Err(_) => Err(Error::refused(
                "giving the session back",
                "another part of this process still has it",
                "drop every clone of the session first",
            )),
        }
    }

    /// The first entries of a session, with its first checkpoint.
    pub(crate) async fn begin(&self, append: Append) -> Result<()> {
        if self.policy().takes(&Trigger::Initial) {
            self.mark_with(append, NewMark::new(Trigger::Initial)).await?;
        } else if !append.is_empty() {
            self.writer().append(append).await?;
        }
        Ok(())
    }

    /// Which checkpoint the policy wants with so many more messages.
    fn due(&self, more: u64) -> Option<Trigger> {
        let (policy, run) = (self.policy(), self.run());
        if let Some(owed) = run.owed.front() {
            return Some(owed.trigger.clone());
        }
        let many = u64::from(policy.every_messages);
        if more > 0 && policy.takes(&Trigger::Messages) && run.messages + more >= many {
            return Some(Trigger::Messages);
        }
        let old = i64::from(policy.every_seconds) * 1000;
        if policy.takes(&Trigger::Interval) && self.now().since_ms(run.marked) >= old {
            return Some(Trigger::Interval);
        }
        None
    }

    /// Appends, and takes the checkpoint that is due: with it, or on the side.
    async fn store(&self, append: Append, due: Option<Trigger>) -> Result<Appended> {
        let Some(trigger) = due else {
            let receipt = self.writer().append(append).await?;
            return Ok(Appended { first: receipt.first, checkpoint: None });
        };
        // In one batch with what is appended it costs no wait of its own.
        let owed = self.run().owed.pop_front();
        let is_owed = owed.is_some();
        let mark = owed.unwrap_or_else(|| NewMark::new(trigger));
        let start = self.now();
        let marks = std::slice::from_ref(&mark);
        let whole = self.with_prune(append.clone().mark(mark.clone()), marks).await;
        let was_due = whole.prunes();
        match self.writer().append(whole).await {
            Ok(receipt) => {
                self.appended(marks, &receipt, was_due, start).await;
                Ok(Appended { first: receipt.first, checkpoint: receipt.checkpoints.last().copied() })
            }
            Err(error) if is_lost(&error) => {
                if is_owed {
                    self.run().owed.push_front(mark);
                }
                Err(error.into())
            }
            Err(error) => {
                // What was said must not be lost because a checkpoint failed.
                let receipt = self.writer().append(append).await?;
                self.mark_failed(mark, &error.into());
                Ok(Appended { first: receipt.first, checkpoint: None })
            }
        }
    }

    async fn mark_with(&self, append: Append, mark: NewMark) -> Result<CheckpointId> {
        let mark = labelled(self.redaction().mark(mark))?;
        let start = self.now();
        let marks = std::slice::from_ref(&mark);
        let append = self.with_prune(append.mark(mark.clone()), marks).await;
        let was_due = append.prunes();
        let receipt = self.writer().append(append).await?;
        self.appended(marks, &receipt, was_due, start).await;
        let made = receipt.checkpoints.last().copied();
        made.ok_or_else(|| Error::refused("taking a checkpoint", "the store took none", "try again"))
    }

    /// Takes a checkpoint; a failure is told and counted, and the session goes on.
    async fn try_mark(&self, mark: NewMark) -> Option<CheckpointId> {
        match self.mark_with(Append::new(), mark.clone()).await {
            Ok(id) => Some(id),
            Err(error) => {
                self.mark_failed(mark, &error);
                None
            }
        }
    }

    fn save_on_the_side(&self, mark: NewMark) {
        let guard = Arc::clone(&self.inner.saving).try_lock_owned();
        let (Ok(runtime), Ok(guard)) = (tokio::runtime::Handle::try_current(), guard) else {
            // Without a runtime there is no side, and one at a time is enough: it goes with what is appended next.
            return self.owe(mark);
        };
        let session = self.clone();
        let mut saving = Box::pin(async move {
            session.try_mark(mark).await;
            drop(session);
            drop(guard);
        });
        // Begun here, it stands before whatever is appended next; only the waiting is done on the side.
        if saving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(runtime.spawn(saving));
        }
    }

    /// Keeps a checkpoint to be taken later. Of too many the oldest is given up, which is told.
    fn owe(&self, mark: NewMark) {
        let given_up = {
            let mut run = self.run();
            run.owed.push_back(mark);
            if run.owed.len() > MAX_OWED { run.owed.pop_front() } else { None }
        };
        if let Some(mark) = given_up {
            self.tell_failed(&mark, &format!("more than {MAX_OWED} checkpoints (MAX_OWED) wait to be taken"));
        }
    }

    /// Counts and tells a checkpoint that was taken.
    pub(crate) async fn marked(&self, mark: &NewMark, id: CheckpointId, start: Timestamp) {
        let now = self.now();
        {
            let mut run = self.run();
            (run.messages, run.marked) = (0, now);
            run.unpruned += 1;
        }
        // Worth reading only for someone who listens.
        let size = match self.engine().has_listeners() {
            true => self.state().await.ok().map(|state| state.as_value().to_string().len() as u64),
            false => None,
        };
        self.engine().notify(Notice::CheckpointCreated {
            timestamp: now,
            session_id: self.id(),
            task_id: self.task(),
            checkpoint_id: id,
            reason: mark.trigger.to_string(),
            size,
            duration_ms: now.since_ms(start),
        });
    }

    /// Every so many checkpoints, whoever made them, the retention looks which it does not keep. They go into the trash
    /// with the next ones that are made, which is told; that it cannot be done is no reason to stop.
    pub(crate) async fn with_prune(&self, append: Append, marks: &[NewMark]) -> Append {
        let retention = &self.policy().retention;
        let more = u32::try_from(marks.len()).unwrap_or(u32::MAX);
        let is_few = retention.max_checkpoints < retention.prune_every_nodes;
        let is_many =
            is_few && self.info().await.checkpoints + marks.len() as u64 > u64::from(retention.max_checkpoints);
        let is_due = self.run().unpruned.saturating_add(more) >= retention.prune_every_nodes;
        match retention.prune_every_nodes > 0 && (is_due || is_many) {
            true => append.prune(retention),
            false => append,
        }
    }

    /// Counts and tells what an append with checkpoints came to.
    pub(crate) async fn appended(&self, marks: &[NewMark], receipt: &Receipt, was_due: bool, start: Timestamp) {
        for (mark, id) in marks.iter().zip(&receipt.checkpoints) {
            self.marked(mark, *id, start).await;
        }
        match &receipt.pruned {
            Some(checkpoints) => {
                self.run().unpruned = 0;
                self.tell_pruned(checkpoints.clone(), None);
            }
            // Tried by itself, it says what is wrong.
            None if was_due => self.prune_now().await,
            None => {}
        }
    }

    async fn prune_now(&self) {
        self.run().unpruned = 0;
        match self.writer().prune(&self.policy().retention).await {
            Ok(checkpoints) => self.tell_pruned(checkpoints, None),
            Err(error) => self.tell_pruned(Vec::new(), Some(error.to_string())),
        }
    }

    fn tell_pruned(&self, checkpoints: Vec<CheckpointId>, error: Option<String>) {
        if checkpoints.is_empty() && error.is_none() {
            return;
        }
        let (timestamp, task_id) = (self.now(), self.task());
        let session_id = self.id();
        self.engine().notify(Notice::CheckpointsPruned { timestamp, session_id, task_id, checkpoints, error });
    }

    pub(crate) fn mark_failed(&self, mark: NewMark, error: &Error) {
        self.tell_failed(&mark, &error.to_string());
        self.owe(mark);
    }

    fn tell_failed(&self, mark: &NewMark, error: &str) {
        self.engine().notify(Notice::CheckpointFailed {
            timestamp: self.now(),
            session_id: self.id(),
            task_id: self.task(),
            reason: mark.trigger.to_string(),
            error: error.to_owned(),
        });
    }

    pub(crate) async fn keep_secrets(&self, found: Vec<Secret>) -> Result<()> {
        crate::redaction::keep(self.engine(), found).await
    }

    /// Says that the session goes on, from where and with what changed, in one step with the change itself.
    pub(crate) async fn note_resumed(
        &self,
        from: Option<CheckpointId>,
        set: &[(StatePath, Value)],
        state: Option<State>,
    ) -> Result<()> {
        let paths: Vec<String> = set.iter().map(|(path, _)| path.to_string()).collect();
        let mut data = json!({ "from": from, "set": paths });
        self.redaction().value(&mut data);
        let patch = SessionPatch::new().status(Status::Active).with("error", Value::Null);
        let mut append = Append::new().event(Event::new(RESUMED, data)).patch(patch);
        if let Some(mut state) = state {
            let found = self.redaction().state(&mut state);
            self.keep_secrets(found).await?;
            append = append.state(state);
        }
        self.writer().append(append).await?;
        Ok(())
    }
}

/// Why a session that is in the trash is left as it is.
pub(crate) fn in_trash(doing: &str, id: SessionId) -> Error {
    Error::refused(format!("{doing} session {id}"), "it is in the trash", "take it out first: `sessions untrash`")
}

/// Why a session that no list shows is left as it is.
pub(crate) async fn hidden(engine: &Milepost, doing: &str, id: SessionId) -> Result<Error> {
    let (why, instead) = match engine.store().is_unfinished(id).await? {
        true => (
            "it is an import that was begun and not finished",
            format!("import the same again, which takes its place, or remove it with `sessions delete {id}`"),
        ),
        false => (
            "it was deleted, and only what its branches share with it is kept",
            "go on with one of its branches".to_owned(),
        ),
    };
    Ok(Error::refused(format!("{doing} session {id}"), why, instead))
}

/// A checkpoint that can be found by its label, if it has one.
fn labelled(mark: NewMark) -> Result<NewMark> {
    let label = mark.label.as_deref().map(check_label).transpose()?;
    Ok(NewMark { label, ..mark })
}

/// Errors after which nothing more can be written: trying again without the checkpoint would not help.
pub(crate) fn is_lost(error: &milepost_store::Error) -> bool {
    use milepost_store::Error as E;
    matches!(
        error,
        E::Fenced { .. }
            | E::Held { .. }
            | E::Closed
            | E::NoSpace { .. }
            | E::ReadOnly { .. }
            | E::Io { .. }
            | E::Busy { .. }
            | E::Unavailable { .. }
    )
}

pub(crate) fn restored(
    mark: &milepost_store::Mark,
    task_id: String,
    state: &State,
    success: bool,
    start: Timestamp,
    now: Timestamp,
) -> Notice {
    let variables = state.pointer("/environment/variables").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    Notice::CheckpointRestored {
        timestamp: now,
        session_id: mark.session,
        task_id,
        checkpoint_id: mark.checkpoint.id,
        success,
        duration_ms: now.since_ms(start),
        messages_restored: mark.checkpoint.messages(),
        environment_variables: variables,
    }
}
