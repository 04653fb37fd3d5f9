//! A batch in the making: entries get their numbers, their chain hashes, and what is derived from them.

use std::collections::VecDeque;
use std::sync::Arc;

use milepost_model::delta::encode_value;
use milepost_model::{
    BatchId, Block, Body, Checkpoint, CheckpointId, Content, Delta, EntryKind, Epoch, Event, Hash, HashedState,
    Message, Position, Retention, Seq, Session, SessionId, State, Status, TimelineId, Timestamp,
};
use serde_json::{Map, Value};

use super::Store;
use super::append::{Append, Item, NewMark, Receipt};
use super::fold::{self, event};
use super::read::{Distance, encode_keyframe};
use super::writer::SessionWriter;
use crate::backend::{
    Batch, Blob, BlobId, Keyframe, Kinds, MarkFilter, MarkRow, Order, Range, Rewrite, SessionHead, StoredEntry,
    Timeline,
};
use crate::codec::{self, Codec};
use crate::error::{Conflict, Error, Result};
use crate::limits::{Limits, check_name, check_size};

/// A keyframe is made after so many deltas,
const KEYFRAME_DELTAS: u64 = 256;
/// or after so many entries of any kind,
const KEYFRAME_ENTRIES: u64 = 4096;
/// or when a state must be collected over so many timelines.
const KEYFRAME_TIMELINES: u64 = 4;
/// Older keyframes are thinned: one in so many stays.
const KEYFRAME_KEEP_EVERY: u64 = 4;
/// So many batch ids are remembered, to recognise an append that is sent again.
const REMEMBERED_BATCHES: usize = 1024;

/// What the writer knows of the session's head.
pub(super) struct Head {
    pub epoch: Epoch,
    pub timeline: TimelineId,
    pub length: u64,
    pub chain: Hash,
    pub time: Timestamp,
    pub session: Session,
    /// The state, once it was needed.
    pub state: Option<HeadState>,
    /// The session's own timelines and the checkpoints that are not in the trash, once they were needed.
    pub kept: Option<Box<Kept>>,
    /// A write is under way or failed: what is known here may be wrong.
    pub stale: bool,
    pub recent: VecDeque<(BatchId, Receipt)>,
}

pub(super) struct Kept {
    pub lines: Vec<Timeline>,
    pub rows: Vec<MarkRow>,
}

pub(super) struct HeadState {
    pub state: HashedState,
    pub distance: Distance,
    /// Bytes of deltas since the keyframe.
    pub bytes: u64,
    /// Bytes of the state when it was last measured.
    pub size: u64,
    /// Keyframes made here, newest last.
    pub keyframes: VecDeque<Position>,
    pub made: u64,
    /// The number of the entry after the keyframe.
    pub since: u64,
}

impl HeadState {
    /// A state that was read, before entry `next`.
    pub(super) fn new(state: Value, distance: Distance, next: u64) -> Self {
        let size = encode_value(&state).len() as u64;
        Self {
            state: HashedState::new(state),
            since: next.saturating_sub(distance.entries),
            bytes: distance.bytes,
            distance,
            size,
            keyframes: VecDeque::new(),
            made: 0,
        }
    }

    /// Whether reading the state takes long, however small what changed is.
    pub(super) fn is_far(&self, length: u64) -> bool {
        self.distance.deltas >= KEYFRAME_DELTAS
            || self.distance.timelines >= KEYFRAME_TIMELINES
            || length.saturating_sub(self.since) >= KEYFRAME_ENTRIES
    }
}

/// A batch in the making. Becomes the head when the store has it.
pub(super) struct Draft {
    pub first: Seq,
    pub length: u64,
    pub chain: Hash,
    pub time: Timestamp,
    pub session: Session,
    pub entries: Vec<StoredEntry>,
    pub blobs: Vec<Blob>,
    pub marks: Vec<MarkRow>,
    /// Checkpoints that go into the trash.
    pub trashed: Vec<MarkRow>,
    pub keyframes: Vec<Keyframe>,
    pub drop_keyframes: Vec<Position>,
    pub bytes: u64,
    /// What was handed to the store: checkpoints that were made, and those that went into the trash.
    pub made: Vec<MarkRow>,
    pub gone: Vec<CheckpointId>,
    /// States that were compared: freed while the disk works.
    pub spent: Vec<Arc<State>>,
}

impl Draft {
    pub(super) fn of(head: &Head, now: Timestamp) -> Self {
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
            trashed: Vec::new(),
            keyframes: Vec::new(),
            drop_keyframes: Vec::new(),
            bytes: 0,
            made: Vec::new(),
            gone: Vec::new(),
            spent: Vec::new(),
        }
    }
}

impl Head {
    /// Refuses a writer who believes that the head is somewhere else.
    pub(super) fn expect(&self, (timeline, expected): (TimelineId, u64), actual: u64) -> Result<()> {
        match (timeline == self.timeline, expected == actual) {
            (true, true) => Ok(()),
            (true, false) => Err(Conflict::Length { timeline, expected, actual }.into()),
            (false, _) => Err(Conflict::NotHead { timeline }.into()),
        }
    }

    pub(super) fn take(&mut self, draft: Draft) {
        if let Some(kept) = &mut self.kept {
            kept.rows.extend(draft.made);
            kept.rows.retain(|row| !draft.gone.contains(&row.id));
        }
        self.length = draft.length;
        self.chain = draft.chain;
        self.time = draft.time;
        self.session = draft.session;
    }

    pub(super) fn remember(&mut self, batch: BatchId, receipt: &Receipt) {
        if self.recent.len() >= REMEMBERED_BATCHES {
            self.recent.pop_front();
        }
        self.recent.push_back((batch, Receipt { repeated: true, ..receipt.clone() }));
    }
}

impl Store {
    /// What a writer needs to know of a session's head.
    /// With an epoch: only while that lease is in force. With a length of a timeline: of what came before it, nothing is
    /// read but what is needed.
    pub(super) async fn read_head(
        &self,
        codec: &Codec,
        id: SessionId,
        epoch: Option<Epoch>,
        known: Option<(TimelineId, u64)>,
    ) -> Result<Head> {
        let SessionHead { row, timeline, noted_length, lease } = self.head(id).await?;
        if let Some(epoch) = epoch.filter(|epoch| lease.epoch != *epoch) {
            return Err(Error::Fenced { session: id, epoch, current: lease.epoch, holder: lease.holder });
        }
        if timeline.length < noted_length {
            return Err(Error::corrupt(
                format!("session {id}"),
                format!("it had {noted_length} entries, {} are there", timeline.length),
            ));
        }
        let session = self.read_row(codec, &row).await?;
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
            epoch: lease.epoch,
            timeline: timeline.id,
            length: timeline.length,
            chain,
            time: session.active,
            session,
            state: None,
            kept: None,
            stale: false,
            recent: VecDeque::new(),
        };
        let known = known.filter(|(line, length)| *line == head.timeline && *length <= head.length);
        self.remember_batches(&mut head, known.map_or(0, |(_, length)| length)).await?;
        Ok(head)
    }

    /// Reads the ids of the last batches from an entry on, so that one sent again after a restart is recognised.
    async fn remember_batches(&self, head: &mut Head, known: u64) -> Result<()> {
        const ENTRIES: u64 = 256;
        const BATCHES: usize = 16;
        let mut starts: VecDeque<(BatchId, Seq)> = VecDeque::new();
        let mut has_marks = false;
        let mut to = head.length;
        // A batch can be long: go on until a few of them were met.
        while to > known && starts.len() < BATCHES {
            let from = to.saturating_sub(ENTRIES).max(known);
            let range = Range {
                timeline: head.timeline,
                from: Seq(from),
                to: Seq(to),
                kinds: Kinds::ALL,
                channel: None,
                order: Order::Backward,
                limit: ENTRIES as usize,
            };
            let page = self.inner.backend.read(self.workspace(), range).await?;
            if page.is_empty() {
                break;
            }
            for (seq, entry) in page {
                has_marks |= entry.kind == EntryKind::Mark;
                if let Some(batch) = entry.batch {
                    starts.push_front((batch, seq));
                }
            }
            to = from;
        }
        let marks = match (has_marks, starts.front()) {
            (true, Some((_, oldest))) => {
                let filter = MarkFilter::of(head.timeline, *oldest, Seq(head.length));
                self.inner.backend.marks(self.workspace(), MarkFilter { trashed: None, ..filter }).await?
            }
            _ => Vec::new(),
        };
        for (number, (batch, first)) in starts.iter().enumerate() {
            let length = starts.get(number + 1).map_or(head.length, |(_, next)| next.0);
            let mut own: Vec<_> = marks.iter().filter(|row| row.at.seq >= *first && row.at.seq.0 < length).collect();
            own.sort_by_key(|row| row.at.seq);
            let checkpoints = own.into_iter().map(|row| row.id).collect();
            let first = Position { timeline: head.timeline, seq: *first };
            head.recent.push_back((*batch, Receipt { first, length, checkpoints, pruned: None, repeated: true }));
        }
        Ok(())
    }
}

impl SessionWriter {
    /// Adds the entries of one append to the draft; leaves it as it was when one of them is refused.
    pub(super) async fn draft(
        &self,
        head: &mut Head,
        draft: &mut Draft,
        append: Append,
        id: BatchId,
    ) -> Result<Receipt> {
        if let Some(at) = append.after {
            head.expect(at, draft.length)?;
        }
        if append.items.is_empty() {
            return Err(Error::invalid("append", "it has no entries: add a message, a state, an event or a mark"));
        }
        let before = (draft.entries.len(), draft.blobs.len(), draft.marks.len(), draft.keyframes.len());
        let trashed = draft.trashed.len();
        let (length, chain, bytes) = (draft.length, draft.chain, draft.bytes);
        // Before its first entry, a draft knows of the session what the head does.
        let session = (!draft.entries.is_empty()).then(|| draft.session.clone());
        let outcome = self.draft_items(head, draft, append, id).await;
        if outcome.is_err() {
            draft.entries.truncate(before.0);
            draft.blobs.truncate(before.1);
            draft.marks.truncate(before.2);
            draft.keyframes.truncate(before.3);
            draft.trashed.truncate(trashed);
            (draft.length, draft.chain, draft.bytes) = (length, chain, bytes);
            draft.session = session.unwrap_or_else(|| head.session.clone());
        }
        outcome
    }

    async fn draft_items(&self, head: &mut Head, draft: &mut Draft, append: Append, id: BatchId) -> Result<Receipt> {
        let limits = &self.store.inner.limits;
        check_size("an append", append.items.len(), "max_batch_entries", limits.max_batch_entries)?;
        let (start, length, bytes) = (draft.entries.len(), draft.length, draft.bytes);
        let mut checkpoints = Vec::new();
        let mut changed = false;
        for item in append.items {
            let outcome = self.draft_item(head, draft, item, &mut checkpoints, &mut changed).await.and_then(|()| {
                check_size("an append", (draft.bytes - bytes) as usize, "max_batch_bytes", limits.max_batch_bytes)
            });
            if let Err(error) = outcome {
                // The state is read again when it is next needed.
                if changed {
                    head.state = None;
                }
                return Err(error);
            }
        }
        let first = Position { timeline: head.timeline, seq: Seq(length) };
        if draft.entries.len() == start {
            // A state that did not change is no entry.
            return Ok(Receipt { first, length, checkpoints, pruned: None, repeated: false });
        }
        let pruned = match &append.prune {
            // What cannot be done now is done another time. Whoever is dropped meanwhile leaves a state that is not stored.
            Some(keep) => {
                let is_stale = std::mem::replace(&mut head.stale, true);
                let pruned = Box::pin(self.draft_prune(head, draft, keep)).await.ok();
                head.stale = is_stale;
                pruned
            }
            None => None,
        };
        if let Some(entry) = draft.entries.get_mut(start) {
            entry.batch = Some(id);
        }
        if let Some(entry) = draft.entries.last_mut() {
            entry.chain = Some(draft.chain);
        }
        Ok(Receipt { first, length: draft.length, checkpoints, pruned, repeated: false })
    }

    async fn draft_item(
        &self,
        head: &mut Head,
        draft: &mut Draft,
        item: Item,
        checkpoints: &mut Vec<CheckpointId>,
        changed: &mut bool,
    ) -> Result<()> {
        let timeline = head.timeline;
        match item {
            Item::Message(message) => {
                check_message(&message)?;
                self.push(draft, timeline, &Body::Message(message), Vec::new())
            }
            Item::Event(event, refs) => {
                check_event(&event, &self.store.inner.limits)?;
                check_new_patch(&event)?;
                self.push(draft, timeline, &Body::Event(event), refs)
            }
            Item::State(new) => {
                let state = self.head_state_in(head, draft).await?;
                let delta = Delta::diff(state.state.value(), new.as_value())?;
                draft.spent.push(new);
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
                let at = Position { timeline, seq: Seq(draft.length) };
                self.push(draft, timeline, &Body::Mark(mark), Vec::new())?;
                match head.state.as_mut() {
                    // Much was said and little changed: without this, the state lies far behind.
                    Some(known) if known.is_far(draft.length) => self.push_keyframe(known, draft, at),
                    _ => Ok(()),
                }
            }
        }
    }

    fn checkpoint(&self, new: NewMark, draft: &Draft, state: Hash) -> Result<Checkpoint> {
        let mark = Checkpoint {
            id: new.id.unwrap_or_else(|| self.store.source().id()),
            number: draft.session.checkpoints + 1,
            trigger: new.trigger,
            label: new.label,
            description: new.description,
            clean: new.clean,
            resumable: new.resumable,
            counts: draft.session.counts.clone(),
            state,
            extra: new.extra,
        };
        check_checkpoint(&mark, &self.store.inner.limits)?;
        Ok(mark)
    }

    pub(super) fn push_delta(
        &self,
        head: &mut Head,
        draft: &mut Draft,
        delta: Delta,
        changed: &mut bool,
    ) -> Result<()> {
        if delta.is_empty() {
            return Ok(());
        }
        let timeline = head.timeline;
        let Some(known) = head.state.as_mut() else { return Err(Error::Closed) };
        let before = draft.bytes;
        let at = Position { timeline, seq: Seq(draft.length) };
        let body = Body::State(delta);
        self.push(draft, timeline, &body, Vec::new())?;
        if let Body::State(delta) = body {
            known.state.apply_once(delta)?;
        }
        *changed = true;
        if !known.state.value().is_object() {
            return Err(Error::invalid("state change", "it leaves something that is no JSON object: change sections"));
        }
        known.distance.deltas += 1;
        known.bytes += draft.bytes - before;
        if (known.bytes >= known.size && known.distance.deltas > 1) || known.is_far(draft.length) {
            self.push_keyframe(known, draft, at)?;
        }
        Ok(())
    }

    pub(super) fn push_keyframe(&self, known: &mut HeadState, draft: &mut Draft, at: Position) -> Result<()> {
        known.size = encode_value(known.state.value()).len() as u64;
        // The state may have grown since it was last measured.
        if known.bytes < known.size && !known.is_far(draft.length) {
            return Ok(());
        }
        draft.keyframes.push(encode_keyframe(&self.codec, at, known.state.value(), false)?);
        known.made += 1;
        known.keyframes.push_back(at);
        if known.keyframes.len() > 2 {
            let old = known.keyframes.pop_front();
            if !(known.made - 2).is_multiple_of(KEYFRAME_KEEP_EVERY) {
                draft.drop_keyframes.extend(old);
            }
        }
        known.distance = Distance::default();
        known.bytes = 0;
        known.since = at.seq.0 + 1;
        Ok(())
    }

    pub(super) async fn head_state<'a>(&self, head: &'a mut Head) -> Result<&'a mut HeadState> {
        if head.state.is_none() {
            let (state, distance) = Box::pin(self.store.state_before(head.timeline, Seq(head.length))).await?;
            head.state = Some(HeadState::new(state, distance, head.length));
        }
        head.state.as_mut().ok_or(Error::Closed)
    }

    /// The state at the end of the draft. When it must be read, state changes of the draft are put on top.
    pub(super) async fn head_state_in<'a>(&self, head: &'a mut Head, draft: &Draft) -> Result<&'a mut HeadState> {
        let is_known = head.state.is_some();
        let timeline = head.timeline;
        let state = self.head_state(head).await?;
        if !is_known {
            for (number, entry) in draft.entries.iter().enumerate() {
                if entry.kind == EntryKind::State {
                    let at = Position { timeline, seq: Seq(draft.first.0 + number as u64) };
                    let blob = entry.refs.first().and_then(|id| draft.blobs.iter().find(|blob| blob.id == *id));
                    let body = self.codec.body(at, entry, blob.map(|blob| blob.bytes.as_slice()))?;
                    if let Some(Body::State(delta)) = body {
                        state.state.apply(&delta)?;
                    }
                }
            }
        }
        Ok(state)
    }

    /// Encodes one entry onto the draft.
    pub(super) fn push(&self, draft: &mut Draft, timeline: TimelineId, body: &Body, refs: Vec<BlobId>) -> Result<()> {
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

    /// Puts checkpoints beyond the retention into the trash, also those of the draft itself.
    async fn draft_prune(&self, head: &mut Head, draft: &mut Draft, keep: &Retention) -> Result<Vec<CheckpointId>> {
        let store = &self.store;
        if head.kept.is_none() {
            head.kept = Some(Box::new(store.kept(self.session).await?));
        }
        let Some(kept) = &mut head.kept else { return Ok(Vec::new()) };
        // The others do not grow.
        kept.lines.iter_mut().filter(|line| line.id == head.timeline).for_each(|line| line.length = draft.length);
        let all = kept.rows.iter().chain(&draft.marks);
        let rows = all.filter(|row| !draft.trashed.iter().any(|gone| gone.id == row.id)).cloned().collect();
        let gone = store.prunable_of(self.session, &kept.lines, rows, keep).await?;
        let ids: Vec<CheckpointId> = gone.iter().map(|row| row.id).collect();
        if !ids.is_empty() {
            let event = Event::new(event::PRUNED, serde_json::json!({ "checkpoints": ids }));
            self.push(draft, head.timeline, &Body::Event(event), Vec::new())?;
            let trashed = Some(draft.time);
            draft.trashed.extend(gone.into_iter().map(|row| MarkRow { trashed, ..row }));
        }
        Ok(ids)
    }

    /// The batch of a draft: first and last entries and all checksums are set.
    pub(super) fn finish(&self, head: &Head, draft: &mut Draft, id: BatchId) -> Result<Batch> {
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
        // A checkpoint that goes at once never was anywhere else.
        let mut trashed = std::mem::take(&mut draft.trashed);
        draft.made = if head.kept.is_some() { draft.marks.clone() } else { Vec::new() };
        draft.gone = trashed.iter().map(|row| row.id).collect();
        for row in &mut draft.marks {
            if let Some(at) = trashed.iter().position(|gone| gone.id == row.id) {
                *row = trashed.swap_remove(at);
            }
        }
        Ok(Batch {
            session: self.session,
            timeline: head.timeline,
            expected: draft.first.0,
            epoch: (!self.shared).then_some(head.epoch),
            renew_ms: self.store.inner.lease_ttl_ms,
            holder: None,
            open: None,
            entries: std::mem::take(&mut draft.entries),
            blobs: std::mem::take(&mut draft.blobs),
            row: Some(fold::session_to_row(&self.codec, &draft.session)?),
            marks: std::mem::take(&mut draft.marks),
            keyframes: std::mem::take(&mut draft.keyframes),
            rewrite: Rewrite {
                drop_keyframes: std::mem::take(&mut draft.drop_keyframes),
                marks: trashed,
                ..Rewrite::default()
            },
        })
    }
}

/// What a session's row has besides what a patch can set.
const DERIVED_FIELDS: [&str; 9] =
    ["id", "head", "created", "active", "counts", "checkpoints", "checkpoint", "branch", "preview"];

/// Refuses a patch that could not be shown in a list.
pub(super) fn check_patch(event: &Event, limits: &Limits) -> Result<()> {
    let set = event.data.get("set").and_then(Value::as_object);
    for (key, value) in set.into_iter().flatten() {
        check_name("a session's field", key, "max_name_bytes", limits.max_name_bytes)?;
        if DERIVED_FIELDS.contains(&key.as_str()) {
            return Err(Error::invalid(format!("a session's {key}"), "it follows from the log and cannot be set"));
        }
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
        if key == "status" && value.as_str().and_then(Status::from_name).is_none() {
            let known = Status::ALL.map(Status::as_str).join(", ");
            return Err(Error::invalid("a session's status", format!("{value} is none of {known}")));
        }
    }
    Ok(())
}

/// Refuses a new patch whose fields are not what they are to be. Logs that were written before may have such: they show nothing.
pub(super) fn check_new_patch(event: &Event) -> Result<()> {
    let set = event.data.get("set").and_then(Value::as_object);
    for (key, value) in set.into_iter().flatten().filter(|_| is_patch(event)) {
        let is_fine = match key.as_str() {
            "title" | "project" | "agent" | "feature" | "task" | "stage" | "error" => {
                value.is_string() || value.is_null()
            }
            "tags" => value.is_null() || value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            _ => true,
        };
        if !is_fine {
            let what = if key == "tags" { "a list of texts" } else { "a text" };
            return Err(Error::invalid(format!("a session's {key}"), format!("it is to be {what}, or null for none")));
        }
    }
    Ok(())
}

/// Refuses extra fields that are called like known ones: stored side by side, neither could be read again.
fn check_extra(what: &str, extra: &Map<String, Value>, known: &[&str]) -> Result<()> {
    match known.iter().find(|key| extra.contains_key(**key)) {
        None => Ok(()),
        Some(key) => {
            Err(Error::invalid(what, format!("an extra field is called {key:?}, as one of its own: rename it")))
        }
    }
}

/// Refuses an event that could not be read again, or not be shown in a list.
pub(super) fn check_event(event: &Event, limits: &Limits) -> Result<()> {
    check_name("an event's type", &event.kind, "max_name_bytes", limits.max_name_bytes)?;
    check_extra("an event", &event.data, &["type"])?;
    match is_patch(event) {
        true => check_patch(event, limits),
        false => Ok(()),
    }
}

/// Whether an event changes what a list shows of a session.
fn is_patch(event: &Event) -> bool {
    [event::SESSION, event::BRANCHED, event::RESTORED].contains(&event.kind.as_str())
}

/// Refuses a checkpoint that could not be read again, or not be shown in a list.
pub(super) fn check_checkpoint(mark: &Checkpoint, limits: &Limits) -> Result<()> {
    let max = limits.max_name_bytes;
    if let Some(label) = &mark.label {
        check_name("a checkpoint's label", label, "max_name_bytes", max)?;
    }
    check_name("a checkpoint's trigger", mark.trigger.as_str(), "max_name_bytes", max)?;
    let own = ["id", "number", "trigger", "label", "description", "clean", "resumable", "counts", "state"];
    check_extra("a checkpoint", &mark.extra, &own)
}

pub(super) fn check_message(message: &Message) -> Result<()> {
    check_extra("a message", &message.extra, &["role", "content", "channel"])?;
    let Content::Blocks(blocks) = &message.content else { return Ok(()) };
    blocks.iter().try_for_each(|block| match block {
        Block::Text { extra, .. } | Block::Thinking { extra, .. } => check_extra("a block", extra, &["type", "text"]),
        Block::ToolCall { extra, .. } => check_extra("a block", extra, &["type", "id", "name", "input"]),
        Block::ToolResult { extra, .. } => check_extra("a block", extra, &["type", "call_id", "content", "is_error"]),
        Block::Image { extra, .. } => check_extra("a block", extra, &["type", "source"]),
        Block::Unknown(_) => Ok(()),
    })
}
