//! Keeping house: the trash for sessions, deleting them, and collecting what nothing needs.

use std::collections::{BTreeMap, BTreeSet};

use milepost_model::{
    Body, CheckpointId, EntryKind, Event, Hash, Position, Seq, SessionId, SessionPatch, TimelineId, Timestamp,
};
use serde_json::{Value, json};

use super::Store;
use super::append::{Append, Claim};
use super::fold::{self, event};
use super::read::Segment;
use super::writer::Changes;
use crate::backend::{BlobId, BlobInfo, Kinds, Timeline};
use crate::error::{Conflict, Error, Result};

/// Where something was replaced, and the commitment of what is there now.
type Replaced = (TimelineId, Seq, Hash);

/// What becomes of a deleted session's branches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeleteMode {
    /// A session with branches is not deleted.
    #[default]
    Refuse,
    /// Branches stay; what they share with the session stays too, hidden.
    KeepBranches,
    /// Branches are deleted too, and their branches.
    Cascade,
}

/// What deleting did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Sessions that are gone.
    pub sessions: Vec<SessionId>,
    /// Sessions of which only what branches need was kept, hidden.
    pub hidden: Vec<SessionId>,
}

/// What collecting did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Blobs that nothing needed.
    pub blobs: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Hidden sessions whose last branch is gone.
    pub sessions: Vec<SessionId>,
}

impl Store {
    /// Puts a session into the trash. It can be taken out again until the trash is emptied.
    pub async fn trash(&self, session: SessionId, claim: &Claim) -> Result<()> {
        let now = Value::from(self.source().now().unix_ms());
        self.patch(session, claim, SessionPatch::new().with("trashed", now)).await
    }

    /// Takes a session out of the trash.
    pub async fn untrash(&self, session: SessionId, claim: &Claim) -> Result<()> {
        self.patch(session, claim, SessionPatch::new().with("trashed", Value::Null)).await
    }

    async fn patch(&self, session: SessionId, claim: &Claim, patch: SessionPatch) -> Result<()> {
        let writer = self.write(session, claim).await?;
        writer.append(Append::new().patch(patch)).await?;
        writer.release().await
    }

    /// Deletes a session for good. With `dry_run` it only says what it would do. In an encrypted workspace its key is
    /// destroyed and overwritten where it lay; a log that another process still reads follows when it is next emptied.
    pub async fn delete(&self, session: SessionId, mode: DeleteMode, claim: &Claim, dry_run: bool) -> Result<Deleted> {
        let mut deleted = Deleted::default();
        let order = match mode {
            DeleteMode::Cascade => self.branches_first(session).await?,
            DeleteMode::Refuse | DeleteMode::KeepBranches => vec![session],
        };
        for id in order {
            let branches = self.inner.backend.children(self.workspace(), id).await?;
            let left = branches.iter().filter(|line| !deleted.sessions.contains(&line.session)).count() as u64;
            match (left, mode) {
                (0, _) => {
                    if !dry_run {
                        self.remove(id, claim).await?;
                    }
                    deleted.sessions.push(id);
                }
                (_, DeleteMode::KeepBranches) => {
                    if !dry_run {
                        self.hide(id, claim).await?;
                    }
                    deleted.hidden.push(id);
                }
                (branches, _) => return Err(Conflict::Branches { session: id, branches }.into()),
            }
        }
        Ok(deleted)
    }

    /// A session and all that branched from it, each after every session that continues it. One that was
    /// restored to before it began may continue several.
    async fn branches_first(&self, session: SessionId) -> Result<Vec<SessionId>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        let mut stack = vec![(session, false)];
        while let Some((id, has_branches_done)) = stack.pop() {
            if has_branches_done {
                order.push(id);
            } else if seen.insert(id) {
                stack.push((id, true));
                let children = self.inner.backend.children(self.workspace(), id).await?;
                stack.extend(children.iter().map(|line| (line.session, false)));
            }
        }
        Ok(order)
    }

    pub(super) async fn remove(&self, session: SessionId, claim: &Claim) -> Result<()> {
        let epoch = self.seize(session, claim).await?;
        match self.inner.backend.remove(self.workspace(), session, epoch).await {
            Ok(()) => {}
            // A removal whose end is unknown is settled by looking.
            Err(error @ Error::Io { .. }) => match self.inner.backend.session(self.workspace(), session).await {
                Ok(None) => {}
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
        self.changed(session);
        self.forget_importing(session).await?;
        self.inner.keys.shred(&*self.inner.backend, session).await
    }

    /// Takes the lease without reading the session, which may be damaged or shredded.
    async fn seize(&self, session: SessionId, claim: &Claim) -> Result<milepost_model::Epoch> {
        use crate::backend::LeaseAction;
        let (owner, holder, ttl_ms) = (self.source().id(), claim.holder.clone(), self.inner.lease_ttl_ms);
        let action = match claim.take_over {
            true => LeaseAction::TakeOver { owner, holder, ttl_ms },
            false => LeaseAction::Take { owner, holder, ttl_ms },
        };
        Ok(self.change_lease(session, action).await?.epoch)
    }

    /// Keeps of a session only what its branches need, hidden.
    async fn hide(&self, session: SessionId, claim: &Claim) -> Result<()> {
        let children = self.inner.backend.children(self.workspace(), session).await?;
        let mut open: Vec<Position> = children.iter().filter_map(|line| line.parent).collect();
        let writer = self.write(session, claim).await?;
        if let Some(to) = open.first() {
            // On another timeline: whoever writes without a lease and knows the old one must not take what is left of it, which
            // may have as many entries, for what it was.
            match writer.restore(*to).await {
                // Without a state to go on from there is nobody who writes to it.
                Err(error) if !error.is_damage() => return Err(error),
                _ => {}
            }
        }
        let lines = self.inner.backend.timelines(self.workspace(), session).await?;
        // How far each timeline is needed: by branches, and by what branches need of the session's other timelines.
        let mut needed: BTreeMap<TimelineId, Seq> = BTreeMap::new();
        while let Some(at) = open.pop() {
            let Some(line) = lines.iter().find(|line| line.id == at.timeline) else { continue };
            let so_far = needed.entry(at.timeline).or_default();
            *so_far = at.seq.next().max(*so_far);
            open.extend(line.parent);
        }
        let mut change = Changes::default();
        for line in &lines {
            let keep = needed.get(&line.id).copied().unwrap_or(Seq(line.begins()));
            change.rewrite.truncate.push(Position { timeline: line.id, seq: keep });
        }
        let kept = self.said_of(&lines, &needed).await?;
        let hidden = || SessionPatch::new().with("hidden", Value::Bool(true));
        // The event goes with the rest of the head; what stays is marked once more in the log itself.
        writer.rewrite(fold::patch_event(hidden()), change).await?;
        writer.append(kept.into_iter().fold(Append::new().patch(hidden()), Append::event)).await?;
        // The row still counts what went with the rest.
        match self.reindex_session(session).await {
            Err(error) if !error.is_damage() => return Err(error),
            _ => {}
        }
        writer.release().await
    }

    /// What events say of entries that stay, as events to record again when those go: who is in the
    /// trash and who no longer, and which redactions the log vouches for.
    async fn said_of(&self, lines: &[Timeline], stays: &BTreeMap<TimelineId, Seq>) -> Result<Vec<Event>> {
        let mut replaced: Vec<Replaced> = Vec::new();
        let mut pruned: BTreeSet<CheckpointId> = BTreeSet::new();
        for line in lines {
            let (from, to) = (Seq(line.begins()), Seq(line.length));
            let part = Segment { timeline: line.id, session: line.session, from, to };
            self.for_each_entry(part, Kinds::only(EntryKind::Event), |entry| {
                let Some(Body::Event(found)) = entry.body else { return Ok(()) };
                match found.kind.as_str() {
                    event::REDACTED => replaced.extend(list::<Replaced>(&found, "replaced")),
                    event::PRUNED => pruned.extend(list::<CheckpointId>(&found, "checkpoints")),
                    _ => {}
                }
                Ok(())
            })
            .await?;
        }
        let is_kept = |timeline: &TimelineId, seq: Seq| stays.get(timeline).is_some_and(|end| seq < *end);
        replaced.retain(|(timeline, seq, _)| is_kept(timeline, *seq));
        let mut marks = self.own_marks(lines).await?;
        marks.retain(|row| pruned.contains(&row.id) && is_kept(&row.at.timeline, row.at.seq));
        let ids = |trashed: bool| -> Vec<CheckpointId> {
            marks.iter().filter(|row| row.trashed.is_some() == trashed).map(|row| row.id).collect()
        };
        let mut events = Vec::new();
        for (kind, ids) in [(event::PRUNED, ids(true)), (event::UNPRUNED, ids(false))] {
            if !ids.is_empty() {
                events.push(Event::new(kind, json!({ "checkpoints": ids })));
            }
        }
        if !replaced.is_empty() {
            events.push(Event::new(event::REDACTED, json!({ "replaced": replaced })));
        }
        Ok(events)
    }

    /// Hidden sessions that no branch needs, or would once these sessions are deleted with their branches kept:
    /// [`collect`](Self::collect) removes them. Each comes after those that branched from it.
    pub async fn unneeded(&self, deleted: &[SessionId]) -> Result<Vec<SessionId>> {
        let rows = self.all_sessions().await?;
        let is_deleted = |id: &SessionId| deleted.contains(id);
        let mut open: Vec<(SessionId, Vec<SessionId>)> = Vec::new();
        for id in rows.iter().filter(|row| row.hidden || is_deleted(&row.id)).map(|row| row.id) {
            let children = self.inner.backend.children(self.workspace(), id).await?;
            open.push((id, children.iter().map(|line| line.session).collect()));
        }
        let (mut gone, mut order) = (BTreeSet::new(), Vec::new());
        // One that is gone may have been the last that another was kept for.
        loop {
            let free: Vec<SessionId> = open
                .iter()
                .filter(|(id, children)| !gone.contains(id) && children.iter().all(|child| gone.contains(child)))
                .map(|(id, _)| *id)
                .collect();
            if free.is_empty() {
                break;
            }
            gone.extend(free.iter().copied());
            order.extend(free.into_iter().filter(|id| !is_deleted(id)));
        }
        Ok(order)
    }

    /// Removes blobs that no entry needs and hidden sessions whose branches are gone. What was put
    /// within the grace time stays: someone may be about to need it.
    pub async fn collect(&self, claim: &Claim, dry_run: bool) -> Result<Collected> {
        let mut collected = Collected::default();
        for id in self.unneeded(&[]).await? {
            if dry_run {
                collected.sessions.push(id);
                continue;
            }
            // What branched from it may have stayed, because somebody holds it.
            if !self.inner.backend.children(self.workspace(), id).await?.is_empty() {
                continue;
            }
            match self.remove(id, claim).await {
                // Someone is just importing it.
                Err(Error::Held { .. }) => {}
                Err(error) => return Err(error),
                Ok(()) => collected.sessions.push(id),
            }
        }
        let (unneeded, before) = self.unneeded_blobs().await?;
        let idle: Vec<_> = unneeded.into_iter().filter(|info| info.touched < before).collect();
        collected.bytes = idle.iter().map(|info| info.bytes).sum();
        let ids: Vec<BlobId> = idle.into_iter().map(|info| info.id).collect();
        let mut pages = ids.chunks(self.inner.limits.max_page);
        // Once also where nothing is idle: payloads that lie elsewhere may be those of no row at all.
        let mut next = Some(pages.next().unwrap_or_default());
        while let Some(page) = next {
            collected.blobs += match dry_run {
                true => page.len() as u64,
                false => self.inner.backend.drop_blobs(self.workspace(), page.to_vec(), before).await?,
            };
            next = pages.next();
        }
        Ok(collected)
    }

    /// Blobs that no entry needs, and since when one must lie idle before it is sure that nobody is about to need it.
    pub(super) async fn unneeded_blobs(&self) -> Result<(Vec<BlobInfo>, Timestamp)> {
        let before = self.source().now().plus_ms(-self.inner.blob_grace_ms);
        let needed: BTreeSet<BlobId> = self.inner.backend.blob_refs(self.workspace()).await?.into_iter().collect();
        let (mut unneeded, mut after) = (Vec::new(), None);
        loop {
            let page = self.inner.backend.list_blobs(self.workspace(), after, self.inner.limits.max_page).await?;
            let full = page.len() == self.inner.limits.max_page;
            after = page.last().map(|info| info.id);
            unneeded.extend(page.into_iter().filter(|info| !needed.contains(&info.id)));
            if !full {
                return Ok((unneeded, before));
            }
        }
    }
}

/// A list in an event's data; empty when it is not there.
fn list<T: serde::de::DeserializeOwned>(event: &Event, key: &str) -> Vec<T> {
    let value = event.data.get(key).cloned();
    value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}
