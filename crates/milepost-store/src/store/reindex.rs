//! Rebuilding everything that is derived from the log.

use milepost_model::{Body, Channel, Event, Session, SessionId, Timestamp};

use super::Store;
use super::fold::{self, event};
use super::read::Segment;
use crate::backend::{Depth, Kinds, MAIN_HEAD, MarkRow, SessionRow, Timeline};
use crate::error::{Error, KeyError, Result};
use milepost_model::Seq;

/// What a rebuild did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reindexed {
    /// Sessions whose rows were written anew.
    pub sessions: u64,
    /// Their marks.
    pub marks: u64,
    /// Sessions whose log is damaged, each with what is: their rows stay as they were.
    pub damaged: Vec<(SessionId, String)>,
}

/// What the log says of a session.
pub(super) struct Derived {
    pub row: SessionRow,
    pub marks: Vec<MarkRow>,
}

impl Store {
    /// Rebuilds the derived rows of every session from the log. One of which that cannot be done for damage is named, and all
    /// others are done.
    pub async fn reindex(&self) -> Result<Reindexed> {
        self.reindex_with(&mut |_, _| {}).await
    }

    /// The same, telling how many sessions are done, and of how many.
    pub async fn reindex_with(&self, progress: &mut (dyn FnMut(u64, u64) + Send)) -> Result<Reindexed> {
        // The backend notes what is damaged below, and makes it anew with the rest.
        match self.inner.backend.check(Depth::Deep).await {
            Err(error) if !error.is_damage() => return Err(error),
            _ => {}
        }
        let mut done = Reindexed::default();
        let ids = self.inner.backend.session_ids(self.workspace()).await?;
        let total = ids.len() as u64;
        for (number, id) in (0..).zip(ids) {
            progress(number, total);
            let rebuilt = match self.reindex_session(id).await {
                Err(Error::Key(KeyError::Shredded { .. })) => continue,
                Err(error) if error.is_damage() => {
                    done.damaged.push((id, error.finding()));
                    continue;
                }
                other => other?,
            };
            done.sessions += rebuilt.sessions;
            done.marks += rebuilt.marks;
        }
        Ok(done)
    }

    /// Rebuilds the derived rows of one session from the log.
    pub async fn reindex_session(&self, id: SessionId) -> Result<Reindexed> {
        let derived = self.derive(id).await?;
        let marks = derived.marks.len() as u64;
        self.inner.backend.rebuild(self.workspace(), derived.row, derived.marks).await?;
        Ok(Reindexed { sessions: 1, marks, damaged: Vec::new() })
    }

    /// What the log says of a session.
    pub(super) async fn derive(&self, id: SessionId) -> Result<Derived> {
        let lines = self.inner.backend.timelines(self.workspace(), id).await?;
        let head = lines.iter().find(|line| line.head.as_deref() == Some(MAIN_HEAD));
        let head = head.ok_or_else(|| Error::not_found("session", id))?;
        let codec = self.codec(id).await?;
        let mut marks = Vec::new();
        let mut events: Vec<(Timestamp, Event)> = Vec::new();
        for line in &lines {
            let part = Segment { timeline: line.id, session: id, from: Seq(line.begins()), to: Seq(line.length) };
            self.for_each_past_damage(part, |entry, _| {
                match entry.body {
                    Some(Body::Mark(mark)) => marks.push(fold::mark_to_row(&codec, entry.at, entry.time, &mark)),
                    Some(Body::Event(event)) if [event::PRUNED, event::UNPRUNED].contains(&event.kind.as_str()) => {
                        events.push((entry.time, event));
                    }
                    _ => {}
                }
                Ok(())
            })
            .await?;
        }
        events.sort_by_key(|(time, _)| *time);
        fold::trash_marks(&mut marks, &events);
        let session = self.fold_session(id, &lines, head).await?;
        Ok(Derived { row: fold::session_to_row(&codec, &session)?, marks })
    }

    /// What the log says that a session's row should.
    pub(super) async fn derive_session(&self, id: SessionId) -> Result<Session> {
        let lines = self.inner.backend.timelines(self.workspace(), id).await?;
        let head = lines.iter().find(|line| line.head.as_deref() == Some(MAIN_HEAD));
        self.fold_session(id, &lines, head.ok_or_else(|| Error::not_found("session", id))?).await
    }

    async fn fold_session(&self, id: SessionId, lines: &[Timeline], head: &Timeline) -> Result<Session> {
        // Timelines are listed as they were made.
        let first = lines.first().ok_or_else(|| Error::corrupt(format!("session {id}"), "it has no timeline"))?;
        let mut session = Session::new(id, head.id, Timestamp(0));
        if let Some(at) = first.parent {
            let (parent, _) = self.parent(at.timeline).await?;
            session.branch = Some(milepost_model::Branch { session: parent, at });
        }
        // A branch that was restored to before it began has left its first timeline; one that was imported begins where
        // it branched, after timelines that were another session's.
        for line in lines {
            let begin =
                Segment { timeline: line.id, session: id, from: Seq(line.begins()), to: Seq(line.begins() + 1) };
            self.for_each_entry(begin, Kinds::ALL, |entry| {
                let is_branch = matches!(&entry.body, Some(Body::Event(event)) if event.kind == event::BRANCHED);
                if line.id == first.id || is_branch {
                    session.created = entry.time;
                }
                Ok(())
            })
            .await?;
        }
        for part in self.lineage(head.id, Seq(head.length)).await? {
            self.for_each_past_damage(part, |entry, is_lost| {
                match entry.body {
                    Some(body) => fold::fold(&mut session, entry.time, &body),
                    // It was said, whatever it was.
                    None if is_lost => *session.counts.entry(Channel::MAIN).or_default() += 1,
                    None if entry.kind == milepost_model::EntryKind::Mark => session.checkpoints += 1,
                    None => {}
                }
                Ok(())
            })
            .await?;
        }
        // The log of an import that was not finished does not say so: it is another store's.
        session.hidden |= self.is_unfinished(id).await?;
        Ok(session)
    }
}
