//! What reaches into two sessions: a branch is pinned in its parent's log before it begins.

use std::collections::BTreeSet;

use milepost_model::{Position, SessionId, Timestamp, WorkspaceId};

use super::Shared;
use super::format::{Op, Pin};
use super::log::Decision;
use super::names::LogName;
use crate::backend::{Batch, Timeline};
use crate::error::{Conflict, Error, Result};

/// The branches that begin in a session.
pub(super) struct Branches {
    /// How many pins there were when they were looked at: more mean that someone branched meanwhile.
    pub pins: usize,
    /// Those that are there.
    pub there: Vec<Timeline>,
    /// Those that may be about to begin.
    pub beginning: Vec<Pin>,
}

impl Branches {
    /// How many need entries from here on.
    pub fn needing(&self, cut: Position) -> u64 {
        let needs = |at: Position| at.timeline == cut.timeline && at.seq >= cut.seq;
        let there = self.there.iter().filter_map(|line| line.parent).filter(|at| needs(*at)).count();
        (there + self.beginning.iter().filter(|pin| needs(pin.at)).count()) as u64
    }
}

impl Shared {
    /// The branches that begin in a session, as far as others have written.
    pub async fn branches(&self, workspace: &WorkspaceId, session: SessionId) -> Result<Branches> {
        let name = LogName::Session(session);
        let pins = {
            let log = self.log(workspace, &name);
            let mut state = log.lock().await;
            self.refresh_locked(workspace, &name, &mut state).await?;
            state.side.pins.clone()
        };
        let sessions: BTreeSet<SessionId> = pins.iter().map(|pin| pin.session).collect();
        for id in sessions {
            self.refresh(workspace, &LogName::Session(id)).await?;
        }
        let mut found = Branches { pins: pins.len(), there: Vec::new(), beginning: Vec::new() };
        for pin in pins {
            let line = self
                .cache
                .with(workspace, |w| Ok(w.timelines.get(&pin.timeline).map(|line| line.info(pin.timeline))))?;
            match line {
                Some(line) => found.there.push(line),
                None if self.may_begin(workspace, &pin).await => found.beginning.push(pin),
                None => {}
            }
        }
        Ok(found)
    }

    /// Whether a branch that is pinned and not there may still be on its way.
    async fn may_begin(&self, workspace: &WorkspaceId, pin: &Pin) -> bool {
        let log = self.log(workspace, &LogName::Session(pin.session));
        let has_ended = log.lock().await.side.ended.contains(&pin.timeline);
        !has_ended && self.source.now().since_ms(pin.time) <= self.options.delete_after_ms
    }

    /// Pins the entry where a batch's timeline begins, when it is in another session. Gives that session, and when
    /// the pin was made.
    pub async fn pin_parent(&self, workspace: &WorkspaceId, batch: &Batch) -> Result<Option<(SessionId, Timestamp)>> {
        let Some(at) = batch.open.as_ref().and_then(|open| open.parent) else { return Ok(None) };
        let Some(parent) = self.session_of_timeline(workspace, at.timeline).await? else { return Ok(None) };
        if parent == batch.session {
            return Ok(None);
        }
        let (session, timeline) = (batch.session, batch.timeline);
        let pinned = self
            .commit(workspace, &LogName::Session(parent), None, |w, state, now| {
                let line = w.timelines.get(&at.timeline).filter(|line| line.entries.contains_key(&at.seq));
                if line.is_none() {
                    return Err(Error::not_found("entry", at));
                }
                let old = state.side.pins.iter().find(|pin| pin.timeline == timeline && pin.at == at);
                match old.filter(|pin| now.since_ms(pin.time) <= self.options.idle_ms) {
                    Some(pin) => Ok(Decision::Answer(pin.time)),
                    None => Ok(Decision::Write(vec![Op::Branch(Pin { session, timeline, at, time: now })], now)),
                }
            })
            .await?;
        Ok(Some((parent, pinned.0)))
    }

    /// Takes a pin back: the branch was refused.
    pub async fn unpin(&self, workspace: &WorkspaceId, parent: SessionId, batch: &Batch) -> Result<()> {
        let timeline = batch.timeline;
        let is_there = self.cache.with(workspace, |w| Ok(w.timelines.contains_key(&timeline)))?;
        if is_there {
            return Ok(());
        }
        let name = LogName::Session(parent);
        let unpin = |_: &_, _: &_, _| Ok(Decision::Write(vec![Op::Unbranch(timeline)], ()));
        self.commit(workspace, &name, None, unpin).await.map(|_| ())
    }

    /// Refuses a batch that would cut off what a branch needs.
    pub fn check_cuts(batch: &Batch, branches: &Branches) -> Result<()> {
        let needing: u64 = batch.rewrite.truncate.iter().map(|cut| branches.needing(*cut)).sum();
        match needing {
            0 => Ok(()),
            branches => Err(Conflict::Branches { session: batch.session, branches }.into()),
        }
    }
}
