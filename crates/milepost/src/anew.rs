//! Beginning anew: when nothing of a session can be gone on from, a new session takes over what of it is whole. The damaged
//! one stays as it is, and a record names the new one, so that whoever resumes the damaged one again goes on with that.

use milepost_model::{Session as Info, SessionId, SessionPatch};
use milepost_store::MessageQuery;
use serde_json::Value;

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::notice::{Notice, task_of};
use crate::point::Point;
use crate::resume::{Resume, Resumed};
use crate::session::{NewSession, POLICY_KEY};

/// Records that name the session that was begun anew for a damaged one.
const RECORD: &str = "begun-anew";
/// In a session that was begun anew: the damaged one.
const BEGUN_FROM: &str = "begun_anew_from";
/// The same for as long as not everything is taken over.
const BEGINS_FROM: &str = "begins_anew_from";
/// So many messages are written together.
const TOGETHER: usize = 256;
/// So often it is tried to be the one who begins anew.
const TRIES: usize = 16;

/// That a session goes on as another one, which was begun with what is whole of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anew {
    /// The damaged session. It is as it was.
    pub instead_of: SessionId,
    /// What of it is damaged, in words.
    pub why: String,
    /// Messages that were taken over now; none when that was done before.
    pub taken_over: Option<u64>,
    /// Messages that were not, because they are damaged, or may be.
    pub lost: u64,
}

impl Milepost {
    /// Goes on with the session that was begun anew for a damaged one, or begins it.
    pub(crate) async fn go_on_anew(&self, id: SessionId, why: String, how: Resume) -> Result<Resumed> {
        let before = self.may_go_on(id, &how).await?;
        self.must_be_free(id, how.take_over).await?;
        let (new, mut anew, damaged) = self.begun_anew(&before, why).await?;
        let how = Resume { point: Point::Latest, ..how };
        let mut resumed = Box::pin(self.resume(new, how)).await?;
        if let Some(later) = resumed.anew.take() {
            anew.lost += later.lost;
        }
        resumed.damaged.splice(0..0, damaged);
        if anew.taken_over.is_some() {
            (resumed.status, resumed.last_active) = (before.status, before.active);
            self.tell(Notice::BegunAnew {
                timestamp: self.source().now(),
                session_id: resumed.session.id(),
                task_id: task_of(&before),
                instead_of: id,
                reason: anew.why.clone(),
                messages: anew.taken_over.unwrap_or_default(),
                messages_lost: anew.lost,
            });
        }
        Ok(Resumed { anew: Some(anew), ..resumed })
    }

    /// The session that was begun anew for a damaged one; it is begun now if there is none.
    async fn begun_anew(&self, before: &Info, why: String) -> Result<(SessionId, Anew, Vec<String>)> {
        let mut anew = Anew { instead_of: before.id, why, taken_over: None, lost: 0 };
        for _ in 0..TRIES {
            let record = self.store().record(RECORD, &before.id.to_string()).await?;
            let noted = record.as_ref().and_then(|record| std::str::from_utf8(&record.value).ok()?.parse().ok());
            if let Some(noted) = noted {
                match self.store().session(noted).await {
                    // Someone is at it, who holds it; or was, and will not go on with it.
                    Ok(session) if begins_from(&session).is_some() && session.trashed.is_none() => {
                        self.store().trash(noted, &self.claim()).await?;
                    }
                    Ok(session) if session.trashed.is_none() => return Ok((noted, anew, Vec::new())),
                    Ok(_) | Err(milepost_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let version = record.map(|record| record.version);
            let session = self.create(NewSession { patch: about(before), ..NewSession::default() }).await?;
            let id = session.id();
            let (kind, key, value) = (RECORD, before.id.to_string(), id.to_string());
            match self.store().put_record(kind, &key, version, None, value.as_bytes()).await {
                Ok(_) => {}
                // Someone else was first: theirs it is.
                Err(milepost_store::Error::Conflict(_)) => {
                    session.release().await?;
                    self.store().trash(id, &self.claim()).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let read = self.messages_past_damage(before.id, None, &MessageQuery::default()).await?;
            (anew.taken_over, anew.lost) = (Some(read.messages.len() as u64), read.lost);
            let mut left = read.messages.into_iter().map(|stored| stored.message).peekable();
            while left.peek().is_some() {
                session.append_all(left.by_ref().take(TOGETHER).collect()).await?;
            }
            session.checkpoint_labelled("begun anew").await?;
            let done = SessionPatch::new().with(BEGINS_FROM, Value::Null);
            session.patch(done.with(BEGUN_FROM, before.id.to_string().into())).await?;
            session.release().await?;
            return Ok((id, anew, read.damaged));
        }
        Err(Error::refused(
            format!("beginning session {} anew", before.id),
            "many others are doing it at this moment",
            "try again",
        ))
    }

    /// What a damaged session would be gone on with: how many messages would be taken over, none when they were before, and
    /// how many are lost.
    pub(crate) async fn preview_anew(&self, id: SessionId, why: String, how: &Resume) -> Result<Anew> {
        self.may_go_on(id, how).await?;
        let record = self.store().record(RECORD, &id.to_string()).await?;
        let noted = record.and_then(|record| std::str::from_utf8(&record.value).ok()?.parse().ok());
        if let Some(noted) = noted
            && let Ok(session) = self.store().session(noted).await
            && begins_from(&session).is_none()
            && session.trashed.is_none()
        {
            return Ok(Anew { instead_of: id, why, taken_over: None, lost: 0 });
        }
        let read = self.messages_past_damage(id, None, &MessageQuery::default()).await?;
        Ok(Anew { instead_of: id, why, taken_over: Some(read.messages.len() as u64), lost: read.lost })
    }

    /// Refuses a session that someone else works on: what they write would not be in the new one.
    async fn must_be_free(&self, id: SessionId, take_over: bool) -> Result<()> {
        let Some(lease) = self.store().lease(id).await?.filter(|_| !take_over) else { return Ok(()) };
        match lease.owner.is_some() && lease.until > self.source().now() {
            true => {
                let (holder, epoch, until) = (lease.holder, lease.epoch, lease.until);
                Err(milepost_store::Error::Held { session: id, holder, epoch, until }.into())
            }
            false => Ok(()),
        }
    }
}

/// Refuses a session that is being begun anew, and does not have all that is whole of the damaged one.
pub(crate) fn must_be_begun(session: &Info) -> Result<()> {
    match begins_from(session) {
        Some(from) => Err(Error::refused(
            format!("resuming session {}", session.id),
            "it takes over what is whole of a damaged session, and not all of that is in it",
            format!("resume {from}, which finishes it"),
        )),
        None => Ok(()),
    }
}

fn begins_from(session: &Info) -> Option<&str> {
    session.extra.get(BEGINS_FROM)?.as_str()
}

/// What the new session is about.
fn about(before: &Info) -> SessionPatch {
    let texts = [
        ("title", &before.title),
        ("project", &before.project),
        ("agent", &before.agent),
        ("feature", &before.feature),
        ("task", &before.task),
        ("stage", &before.stage),
    ];
    let texts = texts.into_iter().filter_map(|(key, text)| Some((key, Value::String(text.clone()?))));
    let own = [POLICY_KEY, "project_name"].into_iter().filter_map(|key| Some((key, before.extra.get(key)?.clone())));
    let patch = SessionPatch::new().tags(before.tags.clone()).with(BEGINS_FROM, before.id.to_string().into());
    texts.chain(own).fold(patch, |patch, (key, value)| patch.with(key, value))
}
