//! Going on with a session: from its newest checkpoint that is whole, or from the one asked for.

use milepost_model::delta::StatePath;
use milepost_model::{CheckpointId, Seq, SessionId, State, Status, TimelineId, Timestamp};
use milepost_store::{Claim, Mark, MarkQuery, MessageQuery, Skipped};
use serde_json::Value;

use crate::anew::{Anew, must_be_begun};
use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::notice::Notice;
use crate::point::{Point, refusal};
use crate::session::{Session, hidden, in_trash, restored};

/// So many messages before a checkpoint are read to see whether they can be, at least; and as many as a request holds.
/// What is damaged before them is found by `verify`.
pub const CHECKED_MESSAGES: usize = 1000;

/// How to go on with a session.
#[derive(Debug, Clone, Default)]
pub struct Resume {
    /// From where. With [`Point::Latest`] nothing that came after the newest checkpoint is lost: the session goes on at
    /// its end.
    pub point: Point,
    /// Values of the state to set first.
    pub set: Vec<(StatePath, Value)>,
    /// Where the policy differs for this run.
    pub policy: Option<Value>,
    /// Take the session even if someone else holds it.
    pub take_over: bool,
    /// How long to wait for whoever holds the session to give it back, in milliseconds.
    pub wait_ms: u64,
    /// Go on with a session that was completed.
    pub reopen: bool,
    /// Where nothing of it can be gone on from, neither its end nor any checkpoint: go on with a new session that has the
    /// messages that are whole, and an empty state. The damaged one stays as it is. See [`Resumed::anew`].
    pub begin_anew: bool,
    /// Give the state with its secrets from the vault. What is stored stays redacted.
    pub reveal: bool,
}

impl Resume {
    /// From its end.
    pub fn latest() -> Self {
        Self::default()
    }

    /// From a checkpoint.
    pub fn from(point: Point) -> Self {
        Self { point, ..Self::default() }
    }

    /// With a value of the state set first.
    #[must_use]
    pub fn set(mut self, path: StatePath, value: impl Into<Value>) -> Self {
        self.set.push((path, value.into()));
        self
    }
}

/// A session that goes on.
#[derive(Debug)]
pub struct Resumed {
    /// The session, held.
    pub session: Session,
    /// Nothing of the session that was asked for could be gone on from: it goes on as another one, which `session` is.
    pub anew: Option<Anew>,
    /// The checkpoint it goes on from; none when it has none.
    pub from: Option<Mark>,
    /// Messages, state changes and checkpoints behind that one with which it goes on, because it goes on at its end.
    pub after: usize,
    /// What could not be brought up to date, in words.
    pub notes: Vec<String>,
    /// Newer checkpoints that are damaged and were passed over.
    pub skipped: Vec<Skipped>,
    /// What else is damaged and was left behind or cannot be read, in words.
    pub damaged: Vec<String>,
    /// The head was moved: what came after the checkpoint is on the old timeline.
    pub moved: bool,
    /// The checkpoint of what was left behind, to go forward to again; none when nothing was, or it is damaged.
    pub forward: Option<CheckpointId>,
    /// The state it goes on with.
    pub state: State,
    /// Its status before.
    pub status: Status,
    /// Messages up to where it goes on.
    pub messages: u64,
    /// When it was last written before.
    pub last_active: Timestamp,
}

/// What a resume would do.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Nothing of it can be gone on from: it would go on as another one.
    pub anew: Option<Anew>,
    /// The checkpoint it would go on from; none when there is none.
    pub from: Option<Mark>,
    /// Messages, state changes and checkpoints behind that one with which it would go on.
    pub after: usize,
    /// Newer checkpoints that are damaged and would be passed over.
    pub skipped: Vec<Skipped>,
    /// What else is damaged, in words.
    pub damaged: Vec<String>,
    /// The head would be moved: what came after the checkpoint would stay on the old timeline.
    pub moves: bool,
}

impl Milepost {
    /// Takes a session's lease and goes on with it. A damaged checkpoint is passed over for an older one that is whole, and
    /// named. When none is whole either, a new session is begun where the caller allows it ([`Resume::begin_anew`]).
    pub async fn resume(&self, id: SessionId, how: Resume) -> Result<Resumed> {
        match self.resume_itself(id, &how).await {
            // Hardly ever, and large.
            Err(Error::NothingWhole { why, .. }) if how.begin_anew => Box::pin(self.go_on_anew(id, why, how)).await,
            resumed => resumed,
        }
    }

    async fn resume_itself(&self, id: SessionId, how: &Resume) -> Result<Resumed> {
        let start = self.source().now();
        let known = self.head_of(id).await?;
        // What is refused is refused before anybody is waited for.
        let mut decided = self.decide(id, how, start).await?;
        let claim: Claim = if how.take_over { self.claim().take_over() } else { self.claim() };
        let writer = self.write_within(id, &claim, how.wait_ms).await?;
        // Whoever held it has gone on meanwhile: what was decided is of a session that is no more.
        if known != Some(writer.head().await) {
            decided = match self.decide(id, how, start).await {
                Ok(decided) => decided,
                Err(error) => {
                    writer.release().await?;
                    return Err(error);
                }
            };
        }
        let Decided { before, chosen, changed } = decided;
        let session = Session::hold(self.clone(), writer, how.policy.as_ref()).await?;
        let (moved, forward) = match &chosen.mark {
            Some(mark) if chosen.restore => {
                let end = session.restore_to(mark.at).await?;
                // Nobody goes forward to what is damaged.
                let is_whole = |id: &CheckpointId| {
                    chosen.damaged.is_empty() && chosen.skipped.iter().all(|skipped| skipped.id != *id)
                };
                (true, end.filter(is_whole))
            }
            _ => (false, None),
        };
        session.note_resumed(chosen.mark.as_ref().map(|mark| mark.checkpoint.id), &how.set, changed).await?;
        let notes = session.refresh_context().await.into_iter().collect();
        let mut state = session.state().await?;
        if let Some(mark) = &chosen.mark {
            let whole = chosen.skipped.is_empty();
            self.notify(restored(mark, session.task(), &state, whole, start, self.source().now()));
        }
        if how.reveal {
            state = self.reveal(state.into_value()).await?.try_into().map_err(milepost_store::Error::from)?;
        }
        let messages = session.info().await.messages();
        Ok(Resumed {
            session,
            anew: None,
            from: chosen.mark,
            after: chosen.after,
            notes,
            skipped: chosen.skipped,
            damaged: chosen.damaged,
            moved,
            forward,
            state,
            status: before.status,
            messages,
            last_active: before.active,
        })
    }

    /// Where a session's head is: its timeline, and the number that its next entry gets.
    async fn head_of(&self, id: SessionId) -> Result<Option<(TimelineId, u64)>> {
        let head = self.store().backend().session(self.store().workspace(), id).await?;
        Ok(head.map(|head| (head.timeline.id, head.timeline.length)))
    }

    /// What a resume goes on from, and with which state. Changes nothing.
    async fn decide(&self, id: SessionId, how: &Resume, start: Timestamp) -> Result<Decided> {
        let before = self.may_go_on(id, how).await?;
        let chosen = match self.choose(id, &how.point).await {
            Ok(chosen) => chosen,
            Err(error) => {
                self.tell_not_restored(id, &how.point, start).await;
                return Err(error);
            }
        };
        let changed = if how.set.is_empty() { None } else { Some(self.changed(id, &chosen, &how.set).await?) };
        Ok(Decided { before, chosen, changed })
    }

    /// Tells that a checkpoint could not be gone on from, if it is known which one was meant.
    async fn tell_not_restored(&self, id: SessionId, point: &Point, start: Timestamp) {
        if let (Ok(mark), Ok(session)) = (self.mark(id, point).await, self.store().session(id).await) {
            let now = self.source().now();
            self.tell(Notice::CheckpointRestored {
                timestamp: now,
                session_id: id,
                task_id: crate::notice::task_of(&session),
                checkpoint_id: mark.checkpoint.id,
                success: false,
                duration_ms: now.since_ms(start),
                messages_restored: 0,
                environment_variables: 0,
            });
        }
    }

    /// What a resume would go on from. It refuses what a resume refuses, but for who holds the session; it neither takes
    /// the session nor changes it.
    pub async fn resume_preview(&self, id: SessionId, how: &Resume) -> Result<Preview> {
        self.may_go_on(id, how).await?;
        let chosen = match self.choose(id, &how.point).await {
            Err(Error::NothingWhole { why, .. }) if how.begin_anew => {
                let anew = Some(self.preview_anew(id, why, how).await?);
                return Ok(Preview {
                    anew,
                    from: None,
                    after: 0,
                    skipped: Vec::new(),
                    damaged: Vec::new(),
                    moves: false,
                });
            }
            chosen => chosen?,
        };
        if !how.set.is_empty() {
            self.changed(id, &chosen, &how.set).await?;
        }
        if let Some(policy) = &how.policy {
            crate::config::policy_patch(policy)?;
        }
        let Chosen { mark, skipped, damaged, restore, after } = chosen;
        Ok(Preview { anew: None, from: mark, after, skipped, damaged, moves: restore })
    }

    /// The session, unless it cannot go on.
    pub(crate) async fn may_go_on(&self, id: SessionId, how: &Resume) -> Result<milepost_model::Session> {
        let session = self.store().session(id).await?;
        if session.hidden {
            return Err(hidden(self, "resuming", id).await?);
        }
        if session.trashed.is_some() {
            return Err(in_trash("resuming", id));
        }
        if session.status == Status::Completed && !how.reopen {
            return Err(Error::Completed { session: id });
        }
        must_be_begun(&session)?;
        Ok(session)
    }

    /// The state that a session goes on with, with values set.
    async fn changed(&self, id: SessionId, chosen: &Chosen, set: &[(StatePath, Value)]) -> Result<State> {
        let mut state = match &chosen.mark {
            Some(mark) if chosen.restore => self.store().state_at(mark.at).await?,
            _ => self.store().state(id).await?,
        }
        .into_value();
        for (path, value) in set {
            crate::point::set(&mut state, path, value.clone())?;
        }
        Ok(state.try_into().map_err(milepost_store::Error::from)?)
    }

    async fn choose(&self, id: SessionId, point: &Point) -> Result<Chosen> {
        if *point == Point::Latest {
            return self.choose_latest(id).await;
        }
        let mark = self.mark(id, point).await?;
        if let Some(why) = refusal(&mark) {
            return Err(self.not_resumable(&mark, why).await);
        }
        // It must be whole, and is where the session goes on unless nothing but itself is there.
        let loaded = self.store().load(mark.checkpoint.id).await?;
        let head = self.store().session(id).await?.head;
        let (after, mut damaged) = self.after(id, &mark).await?;
        let is_end = head == mark.at.timeline && damaged.is_empty() && after == 0;
        damaged.extend(self.unreadable(&mark).await?);
        Ok(Chosen { mark: Some(loaded.mark), skipped: Vec::new(), damaged, restore: !is_end, after: 0 })
    }

    /// How many messages and state changes came after a checkpoint, and what of them is damaged.
    async fn after(&self, id: SessionId, mark: &Mark) -> Result<(usize, Vec<String>)> {
        match self.store().entries(id, mark.at.seq.next(), Seq(u64::MAX)).await {
            Ok(entries) => {
                let counts = |entry: &&milepost_model::Entry| entry.kind != milepost_model::EntryKind::Event;
                Ok((entries.iter().filter(counts).count(), Vec::new()))
            }
            Err(error) if error.is_damage() => {
                Ok((0, vec![format!("after checkpoint {}: {}", mark.checkpoint.id, error.finding())]))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What is damaged of the conversation that the checkpoint names, as far back as is looked.
    async fn unreadable(&self, mark: &Mark) -> Result<Option<String>> {
        let last = Some(self.last_messages().max(CHECKED_MESSAGES));
        let last = MessageQuery { last, ..MessageQuery::default() };
        match self.store().messages_at(mark.at, &last).await {
            Ok(_) => Ok(None),
            Err(error) if error.is_damage() => {
                Ok(Some(format!("before checkpoint {}: {}", mark.checkpoint.id, error.finding())))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn choose_latest(&self, id: SessionId) -> Result<Chosen> {
        let query = MarkQuery { resumable: Some(true), ..MarkQuery::default() };
        match self.store().load_latest(id, &query).await {
            Ok(loaded) => {
                // The end can be gone on from only if it can be read.
                let (after, mut damaged) = self.after(id, &loaded.mark).await?;
                let restore = !loaded.skipped.is_empty() || !damaged.is_empty();
                damaged.extend(self.unreadable(&loaded.mark).await?);
                let after = if restore { 0 } else { after };
                Ok(Chosen { mark: Some(loaded.mark), skipped: loaded.skipped, damaged, restore, after })
            }
            // Without a checkpoint the log itself is enough.
            Err(milepost_store::Error::NotFound { .. }) => {
                self.store().state(id).await.map_err(|error| nothing_whole(id, error))?;
                Ok(Chosen { mark: None, skipped: Vec::new(), damaged: Vec::new(), restore: false, after: 0 })
            }
            Err(error) => {
                let (_, skipped) = self.store().marks_and_skipped(id, &query).await?;
                if error.is_damage() && skipped.iter().all(|one| one.unsigned) && !skipped.is_empty() {
                    return Err(Error::refused(
                        format!("resuming session {id}"),
                        "none of its checkpoints is signed with the signing key in use",
                        "use the key that they were signed with; without any (MILEPOST_MARK_KEY) they are taken as they are",
                    ));
                }
                Err(nothing_whole(id, error))
            }
        }
    }
}

/// Why nothing of a session can be gone on from, where that is so.
fn nothing_whole(session: SessionId, error: milepost_store::Error) -> Error {
    match error {
        error @ milepost_store::Error::Corrupt { .. } => Error::NothingWhole { session, why: error.finding() },
        error => error.into(),
    }
}

struct Decided {
    before: milepost_model::Session,
    chosen: Chosen,
    changed: Option<State>,
}

struct Chosen {
    mark: Option<Mark>,
    skipped: Vec<Skipped>,
    damaged: Vec<String>,
    restore: bool,
    /// What came after the mark and is gone on with.
    after: usize,
}
