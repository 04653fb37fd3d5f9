//! Following one session as it moves, whoever writes to it.

use milepost_model::{Entry, Seq, Session, SessionId, TimelineId};
use milepost_store::{Change, Changes};

use crate::engine::Milepost;
use crate::error::Result;

/// What happened in a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
    /// Entries were added.
    Entries(Vec<Entry>),
    /// The session was set back: it goes on from this entry, on another timeline.
    Restored {
        /// The number of the first entry that is new.
        from: Seq,
    },
    /// The session was removed.
    Removed,
}

/// At most so many entries at a time.
const AT_ONCE: u64 = 1000;

/// A session that is followed. It needs no lease.
pub struct Following {
    engine: Milepost,
    session: SessionId,
    changes: Changes,
    timeline: TimelineId,
    next: Seq,
    /// There may be something to read without waiting for a hint.
    look: bool,
}

impl Milepost {
    /// Follows a session from an entry on; from its end when none is given.
    pub async fn follow(&self, session: SessionId, from: Option<Seq>) -> Result<Following> {
        let changes = self.changes()?;
        let (timeline, end) = self.end_of(session).await?;
        Ok(Following { engine: self.clone(), session, changes, timeline, next: from.unwrap_or(end), look: true })
    }

    /// The timeline that a session goes on from, and how many entries it has.
    pub(crate) async fn end_of(&self, session: SessionId) -> Result<(TimelineId, Seq)> {
        let store = self.store();
        let head = store.backend().session(store.workspace(), session).await?;
        let head = head.ok_or_else(|| milepost_store::Error::NotFound { what: "session", id: session.to_string() })?;
        Ok((head.timeline.id, Seq(head.timeline.length)))
    }
}

impl Following {
    /// The session as a list shows it now.
    pub async fn info(&self) -> Result<Session> {
        Ok(self.engine.store().session(self.session).await?)
    }

    /// What happened next; none when the store was closed or the session is gone.
    pub async fn next(&mut self) -> Result<Option<Happened>> {
        loop {
            if self.look {
                match self.read().await? {
                    Some(happened) => return Ok(Some(happened)),
                    None => self.look = false,
                }
            }
            match self.changes.next().await {
                None => return Ok(None),
                Some(Change::Session(_, session)) if session != self.session => {}
                Some(_) => self.look = true,
            }
        }
    }

    async fn read(&mut self) -> Result<Option<Happened>> {
        let (timeline, end) = match self.engine.end_of(self.session).await {
            Ok(end) => end,
            Err(crate::Error::Store(milepost_store::Error::NotFound { .. })) => return Ok(Some(Happened::Removed)),
            Err(error) => return Err(error),
        };
        if timeline != self.timeline {
            let store = self.engine.store();
            let line = store.backend().timeline(store.workspace(), timeline).await?;
            self.timeline = timeline;
            self.next = Seq(line.map_or(0, |line| line.begins()));
            return Ok(Some(Happened::Restored { from: self.next }));
        }
        if end <= self.next {
            return Ok(None);
        }
        let to = Seq(end.0.min(self.next.0 + AT_ONCE));
        let entries = self.engine.store().entries(self.session, self.next, to).await?;
        self.next = to;
        Ok(Some(Happened::Entries(entries)))
    }
}
