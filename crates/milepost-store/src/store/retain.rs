//! Retention: which checkpoints go, and how. Messages never go. A pruned checkpoint lies in the
//! trash first; purging erases it, and gives up state changes between checkpoints that stay, once
//! each of those has its whole state.

use std::collections::{BTreeMap, BTreeSet};

use milepost_model::{CheckpointId, EntryKind, Event, Position, Retention, Seq, SessionId, TimelineId, Timestamp};
use serde_json::json;

use super::Store;
use super::append::Claim;
use super::draft::Kept;
use super::fold::event;
use super::read::encode_keyframe;
use super::writer::{Changes, SessionWriter};
use crate::backend::{Kinds, MarkFilter, MarkRow, Order, Range, StoredEntry, Timeline};
use crate::codec;
use crate::error::{Error, KeyError, Result};

const DAY_MS: i64 = 24 * 3600 * 1000;

/// What pruning would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Checkpoints that would go into the trash, oldest first.
    pub checkpoints: Vec<CheckpointId>,
    /// Stored bytes that purging them would free, about.
    pub bytes: u64,
}

/// What purging did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Purged {
    /// Checkpoints that were erased.
    pub checkpoints: Vec<CheckpointId>,
    /// State changes that were given up.
    pub deltas: u64,
    /// Whole states that stand in for them.
    pub keyframes: u64,
    /// Stored bytes that became free, less what the whole states need.
    pub bytes: u64,
}

impl Store {
    /// Every mark of a session's own timelines, oldest first, also those in the trash.
    pub(super) async fn own_marks(&self, lines: &[Timeline]) -> Result<Vec<MarkRow>> {
        self.some_marks(lines, None).await
    }

    async fn some_marks(&self, lines: &[Timeline], trashed: Option<bool>) -> Result<Vec<MarkRow>> {
        let mut rows = Vec::new();
        for line in lines {
            let filter =
                MarkFilter { trashed, order: Order::Forward, ..MarkFilter::of(line.id, Seq(0), Seq(u64::MAX)) };
            rows.extend(self.inner.backend.marks(self.workspace(), filter).await?);
        }
        rows.sort_by_key(|row| (row.time, row.at));
        Ok(rows)
    }

    /// The newest of these marks before the head and before each branch: what those resume from.
    async fn anchors(
        &self,
        lines: &[Timeline],
        children: &[Timeline],
        rows: &[MarkRow],
    ) -> Result<BTreeSet<CheckpointId>> {
        if let ([_], []) = (lines, children) {
            return Ok(rows.iter().max_by_key(|row| row.at.seq).map(|row| row.id).into_iter().collect());
        }
        let heads = lines.iter().filter(|line| line.head.is_some()).map(|line| (line.id, Seq(line.length)));
        let begins = children.iter().filter_map(|line| line.parent).map(|at| (at.timeline, at.seq.next()));
        let mut anchors = BTreeSet::new();
        for (timeline, end) in heads.chain(begins).collect::<Vec<_>>() {
            let mut parts = self.lineage(timeline, end).await?;
            while let Some(part) = parts.pop() {
                let is_inside = |row: &&MarkRow| {
                    row.at.timeline == part.timeline && row.at.seq >= part.from && row.at.seq < part.to
                };
                if let Some(row) = rows.iter().filter(is_inside).max_by_key(|row| row.at.seq) {
                    anchors.insert(row.id);
                    break;
                }
            }
        }
        Ok(anchors)
    }

    /// The checkpoints that a session would lose: too many, too old, or not clean. Never the newest,
    /// a labelled, manual, milestone or phase one, nor one where a branch begins.
    async fn prunable(&self, session: SessionId, keep: &Retention) -> Result<Vec<MarkRow>> {
        let Kept { lines, rows } = self.kept(session).await?;
        self.prunable_of(session, &lines, rows, keep).await
    }

    /// A session's own timelines, and its checkpoints that are not in the trash.
    pub(super) async fn kept(&self, session: SessionId) -> Result<Kept> {
        let lines = self.inner.backend.timelines(self.workspace(), session).await?;
        let rows = self.some_marks(&lines, Some(false)).await?;
        Ok(Kept { lines, rows })
    }

    /// Which of these checkpoints, oldest first, a session would lose.
    pub(super) async fn prunable_of(
        &self,
        session: SessionId,
        lines: &[Timeline],
        rows: Vec<MarkRow>,
        keep: &Retention,
    ) -> Result<Vec<MarkRow>> {
        let children = self.inner.backend.children(self.workspace(), session).await?;
        let points = branch_points(lines, &children);
        let newest = rows.last().map(|row| row.id);
        let oldest_kept = self.source().now().plus_ms(-i64::from(keep.max_age_days) * DAY_MS);
        let total = rows.len();
        let anchors = self.anchors(lines, &children, &rows).await?;
        let is_fixed =
            |row: &MarkRow| row.kept || Some(row.id) == newest || points.contains(&row.at) || anchors.contains(&row.id);
        let is_unwanted =
            |row: &MarkRow| (keep.max_age_days > 0 && row.time < oldest_kept) || (keep.clean_only && !row.clean);
        let (mut gone, rest): (Vec<_>, Vec<_>) = rows.into_iter().filter(|row| !is_fixed(row)).partition(is_unwanted);
        let over = (total - gone.len()).saturating_sub(keep.max_checkpoints as usize);
        gone.extend(rest.into_iter().take(over));
        gone.sort_by_key(|row| (row.time, row.at));
        Ok(gone)
    }

    /// The newest mark up to a session's head besides these, also if it is in the trash.
    async fn newest_mark(&self, session: SessionId, besides: &[CheckpointId]) -> Result<Option<CheckpointId>> {
        let (timeline, end) = self.end(session).await?;
        let mut parts = self.lineage(timeline, end).await?;
        while let Some(part) = parts.pop() {
            let filter = MarkFilter { trashed: None, ..MarkFilter::of(part.timeline, part.from, part.to) };
            let rows = self.inner.backend.marks(self.workspace(), filter).await?;
            if let Some(row) = rows.iter().find(|row| !besides.contains(&row.id)) {
                return Ok(Some(row.id));
            }
        }
        Ok(None)
    }

    /// Shows what [`SessionWriter::prune`] would do.
    pub async fn prune_preview(&self, session: SessionId, keep: &Retention) -> Result<Pruned> {
        let rows = self.prunable(session, keep).await?;
        let ids: BTreeSet<CheckpointId> = rows.iter().map(|row| row.id).collect();
        let plan = self.purge_plan(session, |row| row.trashed.is_some() || ids.contains(&row.id)).await?;
        Ok(Pruned { checkpoints: rows.iter().map(|row| row.id).collect(), bytes: plan.purged.bytes })
    }

    /// Shows what [`SessionWriter::clear`] would do.
    pub async fn clear_preview(&self, session: SessionId) -> Result<Pruned> {
        let rows = self.kept(session).await?.rows;
        let plan = self.purge_plan(session, |_| true).await?;
        Ok(Pruned { checkpoints: rows.iter().map(|row| row.id).collect(), bytes: plan.purged.bytes })
    }

    /// Shows what [`SessionWriter::purge`] would do.
    pub async fn purge_preview(&self, session: SessionId, trashed_before: Timestamp) -> Result<Purged> {
        let gone = |row: &MarkRow| row.trashed.is_some_and(|time| time < trashed_before);
        Ok(self.purge_plan(session, gone).await?.purged)
    }

    /// Purges what has lain in the trash for longer than the retention says: pruned checkpoints of every
    /// session, and whole sessions. What somebody holds is left for the next time. With `dry_run` it only says what it would
    /// do.
    pub async fn empty_trash(
        &self,
        keep: &Retention,
        claim: &Claim,
        dry_run: bool,
    ) -> Result<(Purged, Vec<SessionId>)> {
        let before = self.source().now().plus_ms(-i64::from(keep.trash_days) * DAY_MS);
        let mut total = Purged::default();
        let mut deleted = Vec::new();
        for row in self.all_sessions().await? {
            if row.hidden {
                continue;
            }
            // Whoever writes to it although it is there still needs it.
            if row.trashed.is_some_and(|time| time.max(row.active) < before) {
                let mode = super::DeleteMode::KeepBranches;
                match self.delete(row.id, mode, claim, dry_run).await {
                    Ok(_) => deleted.push(row.id),
                    Err(Error::Held { .. }) => {}
                    Err(error) => return Err(error),
                }
                continue;
            }
            let purged = match self.empty_marks(row.id, before, claim, dry_run).await {
                // Nothing can be purged of what cannot be read. The others are seen to all the same.
                Err(Error::Key(KeyError::Shredded { .. })) => continue,
                Err(error) if error.is_damage() => continue,
                Err(Error::Held { .. }) => continue,
                other => other?,
            };
            total.checkpoints.extend(purged.checkpoints);
            total.deltas += purged.deltas;
            total.keyframes += purged.keyframes;
            total.bytes += purged.bytes;
        }
        Ok((total, deleted))
    }

    async fn empty_marks(&self, id: SessionId, before: Timestamp, claim: &Claim, dry_run: bool) -> Result<Purged> {
        let preview = self.purge_preview(id, before).await?;
        if dry_run || preview.checkpoints.is_empty() {
            return Ok(preview);
        }
        let writer = self.write(id, claim).await?;
        let purged = writer.purge(before).await?;
        writer.release().await?;
        Ok(purged)
    }

    /// What has to be written to erase the marks for which `gone` holds.
    async fn purge_plan(&self, session: SessionId, gone: impl Fn(&MarkRow) -> bool + Send + Sync) -> Result<Plan> {
        let lines = self.inner.backend.timelines(self.workspace(), session).await?;
        let children = self.inner.backend.children(self.workspace(), session).await?;
        let points = branch_points(&lines, &children);
        let rows = self.own_marks(&lines).await?;
        // A branch's list names the mark that it began after.
        let anchors = self.anchors(&[], &children, &rows).await?;
        let mut plan = Plan::default();
        let mut stays: BTreeMap<TimelineId, BTreeSet<Seq>> = BTreeMap::new();
        for row in &rows {
            if gone(row) && !points.contains(&row.at) && !anchors.contains(&row.id) {
                plan.marks.push(row.clone());
            } else {
                stays.entry(row.at.timeline).or_default().insert(row.at.seq);
            }
        }
        if plan.marks.is_empty() {
            return Ok(plan);
        }
        for at in points {
            stays.entry(at.timeline).or_default().insert(at.seq);
        }
        for line in &lines {
            self.plan_line(&mut plan, line, &stays.remove(&line.id).unwrap_or_default()).await?;
        }
        plan.purged.checkpoints = plan.marks.iter().map(|row| row.id).collect();
        Ok(plan)
    }

    /// Plans one timeline: for each stretch between entries that stay, give its deltas up when a whole
    /// state at its end is smaller.
    async fn plan_line(&self, plan: &mut Plan, line: &Timeline, stays: &BTreeSet<Seq>) -> Result<()> {
        let codec = self.codec(line.session).await?;
        let gone: BTreeSet<Seq> = plan.marks.iter().filter(|m| m.at.timeline == line.id).map(|m| m.at.seq).collect();
        let mut from = Seq(line.begins());
        for end in stays {
            let mut deltas = Vec::new();
            let mut bytes = 0u64;
            let kinds = Kinds::only(EntryKind::State).and(EntryKind::Mark);
            let mut pages = self.pages(Range { kinds, ..Range::all(line.id, from, end.next()) });
            while let Some(page) = pages.next().await? {
                for (seq, entry) in page.entries {
                    let size = stored_bytes(&entry);
                    if entry.kind == EntryKind::State && !codec::is_erased(&entry) {
                        bytes += size;
                        deltas.push((seq, entry));
                    } else if gone.contains(&seq) {
                        plan.purged.bytes += size;
                        plan.erase.push((Position { timeline: line.id, seq }, entry));
                    }
                }
            }
            if deltas.len() > 1 {
                let at = Position { timeline: line.id, seq: *end };
                let (state, _) = self.state_before(line.id, end.next()).await?;
                let frame = encode_keyframe(&codec, at, &state, true)?;
                let saved = bytes.saturating_sub(ERASED_BYTES * deltas.len() as u64);
                if saved > frame.body.len() as u64 {
                    plan.purged.bytes += saved - frame.body.len() as u64;
                    plan.purged.deltas += deltas.len() as u64;
                    plan.purged.keyframes += 1;
                    plan.keyframes.push(frame);
                    plan.erase.extend(deltas.into_iter().map(|(seq, e)| (Position { timeline: line.id, seq }, e)));
                    let frames = self.inner.backend.keyframes(self.workspace(), line.id).await?;
                    let inside = frames.into_iter().filter(|(seq, _)| *seq >= from && seq < end);
                    plan.drop_keyframes.extend(inside.map(|(seq, _)| Position { timeline: line.id, seq }));
                }
            }
            from = end.next();
        }
        // Marks after the last entry that stays.
        for mark in plan.marks.iter().filter(|mark| mark.at.timeline == line.id && mark.at.seq >= from) {
            for (_, entry) in self.inner.backend.read(self.workspace(), Range::one(mark.at)).await? {
                plan.purged.bytes += stored_bytes(&entry);
                plan.erase.push((mark.at, entry));
            }
        }
        Ok(())
    }
}

/// Entries at which another timeline begins: they and their states stay.
fn branch_points(lines: &[Timeline], children: &[Timeline]) -> BTreeSet<Position> {
    lines.iter().chain(children).filter_map(|line| line.parent).collect()
}

/// What an erased entry still needs.
const ERASED_BYTES: u64 = 33;

fn stored_bytes(entry: &StoredEntry) -> u64 {
    (entry.body.len() + entry.text.as_ref().map_or(0, String::len)) as u64
}

#[derive(Default)]
struct Plan {
    marks: Vec<MarkRow>,
    erase: Vec<(Position, StoredEntry)>,
    keyframes: Vec<crate::backend::Keyframe>,
    drop_keyframes: Vec<Position>,
    purged: Purged,
}

impl SessionWriter {
    /// Puts checkpoints beyond the retention into the trash.
    pub async fn prune(&self, keep: &Retention) -> Result<Vec<CheckpointId>> {
        let rows = self.store().prunable(self.id(), keep).await?;
        self.move_all(rows, Some(self.store().source().now())).await
    }

    /// Puts every checkpoint of the session's own into the trash, whatever the retention keeps. Its messages and its state
    /// stay.
    pub async fn clear(&self) -> Result<Vec<CheckpointId>> {
        let rows = self.store().kept(self.id()).await?.rows;
        self.move_all(rows, Some(self.store().source().now())).await
    }

    /// Takes every checkpoint of the session's own out of the trash.
    pub async fn unclear(&self) -> Result<Vec<CheckpointId>> {
        let store = self.store();
        let lines = store.backend().timelines(store.workspace(), self.id()).await?;
        let rows = store.some_marks(&lines, Some(true)).await?;
        self.move_all(rows, None).await
    }

    async fn move_all(&self, rows: Vec<MarkRow>, trashed: Option<Timestamp>) -> Result<Vec<CheckpointId>> {
        let ids = rows.iter().map(|row| row.id).collect();
        if !rows.is_empty() {
            self.set_trashed(rows, trashed).await?;
        }
        Ok(ids)
    }

    /// Puts one checkpoint into the trash.
    pub async fn trash_mark(&self, id: CheckpointId) -> Result<()> {
        let row = self.own_mark(id).await?;
        self.set_trashed(vec![row], Some(self.store().source().now())).await
    }

    /// Takes a checkpoint out of the trash.
    pub async fn untrash_mark(&self, id: CheckpointId) -> Result<()> {
        let row = self.own_mark(id).await?;
        self.set_trashed(vec![row], None).await
    }

    async fn own_mark(&self, id: CheckpointId) -> Result<MarkRow> {
        let store = self.store();
        let row = store.backend().mark(store.workspace(), id).await?;
        let row = row.ok_or_else(|| Error::not_found("checkpoint", id))?;
        let (session, _) = store.parent(row.at.timeline).await?;
        if session != self.id() {
            return Err(Error::invalid(
                format!("checkpoint {id}"),
                format!("it belongs to session {session}, not to {}", self.id()),
            ));
        }
        Ok(row)
    }

    async fn set_trashed(&self, rows: Vec<MarkRow>, trashed: Option<Timestamp>) -> Result<()> {
        let rows: Vec<MarkRow> = rows.into_iter().filter(|row| row.trashed.is_some() != trashed.is_some()).collect();
        let data = json!({ "checkpoints": rows.iter().map(|row| row.id).collect::<Vec<_>>() });
        let kind = if trashed.is_some() { event::PRUNED } else { event::UNPRUNED };
        let mut change = Changes::default();
        change.rewrite.marks = rows.into_iter().map(|row| MarkRow { trashed, ..row }).collect();
        self.rewrite(Event::new(kind, data), change).await
    }

    /// Erases checkpoints that were put into the trash before then, and the state changes that no
    /// other checkpoint needs.
    pub async fn purge(&self, trashed_before: Timestamp) -> Result<Purged> {
        let store = self.store();
        let gone = |row: &MarkRow| row.trashed.is_some_and(|time| time < trashed_before);
        let plan = store.purge_plan(self.id(), gone).await?;
        if plan.marks.is_empty() {
            return Ok(plan.purged);
        }
        let codec = store.codec(self.id()).await?;
        let mut change = Changes::default();
        for (at, entry) in &plan.erase {
            let page = store.page(vec![(at.seq, entry.clone())]).await?;
            let (commitment, _) = codec.commitment_of(*at, entry, page.payload(entry))?;
            change.rewrite.entries.push((*at, codec.erase(*at, entry, &commitment)));
        }
        change.rewrite.drop_marks = plan.marks.iter().map(|row| row.at).collect();
        change.rewrite.drop_keyframes = plan.drop_keyframes;
        change.keyframes = plan.keyframes;
        let listed = self.session().await.checkpoint;
        if listed.is_some_and(|id| plan.purged.checkpoints.contains(&id)) {
            change.checkpoint = Some(store.newest_mark(self.id(), &plan.purged.checkpoints).await?);
        }
        let data = json!({ "checkpoints": plan.purged.checkpoints, "deltas": plan.purged.deltas });
        self.rewrite(Event::new(event::PURGED, data), change).await?;
        Ok(plan.purged)
    }
}
