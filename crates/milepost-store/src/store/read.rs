//! Reading: messages, states, marks, along a timeline and its parents.

use std::collections::HashMap;

use milepost_model::delta::{decode_value, encode_value};
use milepost_model::{
    Body, Channel, Checkpoint, CheckpointId, Delta, EntryKind, HashedState, Message, Position, Seq, Session, SessionId,
    State, TimelineId, Timestamp, Trigger,
};
use serde_json::{Map, Value};

use super::Store;
use super::fold;
use crate::backend::{BlobId, Keyframe, Kinds, MarkFilter, MarkRow, Order, Range, StoredEntry};
use crate::codec::{self, Codec, Decoded};
use crate::error::{Error, Result};

/// So many entries are read at a time.
pub(super) const PAGE: usize = 1000;

/// A part of a lineage: entries of one timeline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub timeline: TimelineId,
    pub session: SessionId,
    pub from: Seq,
    /// The entry after the last.
    pub to: Seq,
}

/// An entry read back.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Where it is.
    pub at: Position,
    /// When it was added.
    pub time: Timestamp,
    /// Which kind it is.
    pub kind: EntryKind,
    /// What it says; none when it was erased.
    pub body: Option<Body>,
}

/// A message read back.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    /// Where it is.
    pub at: Position,
    /// When it was added.
    pub time: Timestamp,
    /// The message.
    pub message: Message,
}

/// Which messages to read.
#[derive(Debug, Clone, Default)]
pub struct MessageQuery {
    /// Of this channel; of all when none.
    pub channel: Option<Channel>,
    /// From this entry on.
    pub from: Option<Seq>,
    /// Before this entry.
    pub to: Option<Seq>,
    /// Only the last so many.
    pub last: Option<usize>,
    /// Only the first so many.
    pub first: Option<usize>,
}

/// A checkpoint read back.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Where it is.
    pub at: Position,
    /// The session whose timeline it is in.
    pub session: SessionId,
    /// When it was taken.
    pub time: Timestamp,
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// When it was put into the trash.
    pub trashed: Option<Timestamp>,
}

/// Which marks to list.
#[derive(Debug, Clone, Default)]
pub struct MarkQuery {
    /// With one of these triggers; any when empty.
    pub triggers: Vec<Trigger>,
    /// With this label.
    pub label: Option<String>,
    /// Clean or not.
    pub clean: Option<bool>,
    /// Resumable or not.
    pub resumable: Option<bool>,
    /// Taken at or after.
    pub time_from: Option<Timestamp>,
    /// Taken before.
    pub time_to: Option<Timestamp>,
    /// Those in the trash instead of those that are not.
    pub trashed: bool,
    /// Oldest first instead of newest first.
    pub oldest_first: bool,
    /// At most so many.
    pub limit: Option<usize>,
}

/// A checkpoint with the state it names, verified.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The checkpoint.
    pub mark: Mark,
    /// The state it names.
    pub state: State,
    /// Newer checkpoints that could not be used, and why.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that could not be used.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// Which one.
    pub id: CheckpointId,
    /// Why not.
    pub why: String,
}

/// The name under which a keyframe is sealed.
pub(super) fn keyframe_name(at: Position) -> Vec<u8> {
    [at.timeline.to_bytes().as_slice(), &at.seq.0.to_be_bytes()].concat()
}

/// A stored state that can be used as it is.
pub(super) fn encode_keyframe(codec: &Codec, at: Position, state: &Value, pinned: bool) -> Result<Keyframe> {
    let plain = encode_value(state);
    Ok(Keyframe { at, body: codec.encode_bytes("keyframe", &keyframe_name(at), &plain)?, pinned })
}

pub(super) fn decode_keyframe(codec: &Codec, frame: &Keyframe) -> Result<Value> {
    let plain = codec.decode_bytes("keyframe", &keyframe_name(frame.at), &frame.body)?;
    decode_value(&plain).map_err(|error| Error::corrupt(format!("the keyframe {}", frame.at), error.to_string()))
}

impl Store {
    /// The entries from the very beginning to before `to`, as parts of timelines, oldest first.
    pub(super) async fn lineage(&self, timeline: TimelineId, to: Seq) -> Result<Vec<Segment>> {
        let mut parts = Vec::new();
        let mut next = Some((timeline, to));
        while let Some((timeline, to)) = next {
            let (session, parent) = self.parent(timeline).await?;
            let from = Seq(parent.map_or(0, |at| at.seq.0 + 1));
            if to > from {
                parts.push(Segment { timeline, session, from, to });
            }
            // A part that is asked for only up to within its parent is cut there.
            next = parent.map(|at| (at.timeline, at.seq.next().min(to)));
        }
        parts.reverse();
        Ok(parts)
    }

    /// Where a session's head is: the number its next entry will have.
    pub(super) async fn end(&self, session: SessionId) -> Result<(TimelineId, Seq)> {
        let head = self.head(session).await?;
        if head.timeline.length < head.noted_length {
            return Err(Error::corrupt(
                format!("session {session}"),
                format!("it had {} entries, {} are there", head.noted_length, head.timeline.length),
            ));
        }
        Ok((head.timeline.id, Seq(head.timeline.length)))
    }

    /// Reads, checks and decodes entries of one timeline.
    pub(super) async fn read_entries(&self, codec: &Codec, range: Range) -> Result<Vec<Entry>> {
        let timeline = range.timeline;
        let stored = self.inner.backend.read(self.workspace(), range).await?;
        let blobs = self.payload_blobs(&stored).await?;
        stored
            .iter()
            .map(|(seq, entry)| {
                let at = Position { timeline, seq: *seq };
                codec::check(at, entry)?;
                let Decoded { body, .. } = codec.decode(at, entry, payload(entry, &blobs))?;
                Ok(Entry { at, time: entry.time, kind: entry.kind, body })
            })
            .collect()
    }

    /// The blobs that hold payloads of these entries.
    pub(super) async fn payload_blobs(&self, entries: &[(Seq, StoredEntry)]) -> Result<HashMap<BlobId, Vec<u8>>> {
        let ids: Vec<BlobId> = entries
            .iter()
            .filter(|(_, entry)| !entry.refs.is_empty() && codec::is_blob(entry))
            .filter_map(|(_, entry)| entry.refs.first().copied())
            .collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let bytes = self.inner.backend.get_blobs(self.workspace(), ids.clone()).await?;
        Ok(ids.into_iter().zip(bytes).filter_map(|(id, bytes)| Some((id, bytes?))).collect())
    }

    /// Messages up to a session's head.
    pub async fn messages(&self, session: SessionId, query: &MessageQuery) -> Result<Vec<StoredMessage>> {
        let (timeline, end) = self.end(session).await?;
        self.messages_before(timeline, end, query).await
    }

    /// Messages up to and with an entry.
    pub async fn messages_at(&self, at: Position, query: &MessageQuery) -> Result<Vec<StoredMessage>> {
        self.messages_before(at.timeline, at.seq.next(), query).await
    }

    async fn messages_before(
        &self,
        timeline: TimelineId,
        end: Seq,
        query: &MessageQuery,
    ) -> Result<Vec<StoredMessage>> {
        let (from, to) = (query.from.unwrap_or_default(), query.to.unwrap_or(end).min(end));
        let order = if query.last.is_some() { Order::Backward } else { Order::Forward };
        let mut wanted = query.last.or(query.first).unwrap_or(usize::MAX);
        let mut parts = self.lineage(timeline, to).await?;
        if order == Order::Backward {
            parts.reverse();
        }
        let mut found = Vec::new();
        for part in parts.into_iter().filter(|part| part.to > from) {
            if wanted == 0 {
                break;
            }
            let codec = self.codec(part.session).await?;
            let (mut low, mut high) = (part.from.max(from), part.to);
            while wanted > 0 && low < high {
                let limit = wanted.min(PAGE);
                let range = Range {
                    timeline: part.timeline,
                    from: low,
                    to: high,
                    kinds: Kinds::only(EntryKind::Message),
                    channel: query.channel.as_ref().map(|channel| codec.channel(channel)),
                    order,
                    limit,
                };
                let page = self.read_entries(&codec, range).await?;
                let full = page.len() == limit;
                match (order, page.last()) {
                    (_, None) => {}
                    (Order::Forward, Some(last)) => low = last.at.seq.next(),
                    (Order::Backward, Some(last)) => high = last.at.seq,
                }
                wanted -= page.len();
                found.extend(page.into_iter().filter_map(|entry| match entry.body {
                    Some(Body::Message(message)) => Some(StoredMessage { at: entry.at, time: entry.time, message }),
                    _ => None,
                }));
                if !full {
                    break;
                }
            }
        }
        if order == Order::Backward {
            found.reverse();
        }
        Ok(found)
    }

    /// All entries from one to before another along a session's head, of all kinds.
    pub async fn entries(&self, session: SessionId, from: Seq, to: Seq) -> Result<Vec<Entry>> {
        let (timeline, end) = self.end(session).await?;
        let mut found = Vec::new();
        for part in self.lineage(timeline, to.min(end)).await?.into_iter().filter(|part| part.to > from) {
            let part = Segment { from: part.from.max(from), ..part };
            self.for_each_entry(part, Kinds::ALL, |entry| {
                found.push(entry);
                Ok(())
            })
            .await?;
        }
        Ok(found)
    }

    /// Calls `f` with every entry of a part, in order.
    pub(super) async fn for_each_entry(
        &self,
        part: Segment,
        kinds: Kinds,
        mut f: impl FnMut(Entry) -> Result<()> + Send,
    ) -> Result<()> {
        let codec = self.codec(part.session).await?;
        let mut from = part.from;
        loop {
            let range = Range {
                timeline: part.timeline,
                from,
                to: part.to,
                kinds,
                channel: None,
                order: Order::Forward,
                limit: PAGE,
            };
            let page = self.read_entries(&codec, range).await?;
            let full = page.len() == PAGE;
            if let Some(last) = page.last() {
                from = last.at.seq.next();
            }
            page.into_iter().try_for_each(&mut f)?;
            if !full {
                return Ok(());
            }
        }
    }

    /// The state at a session's head.
    pub async fn state(&self, session: SessionId) -> Result<State> {
        let (timeline, end) = self.end(session).await?;
        Ok(self.state_before(timeline, end).await?.0.try_into()?)
    }

    /// The state after an entry.
    pub async fn state_at(&self, at: Position) -> Result<State> {
        let line = self.inner.backend.timeline(self.workspace(), at.timeline).await?;
        let line = line.ok_or_else(|| Error::not_found("timeline", at.timeline))?;
        if at.seq.0 >= line.length {
            return Err(Error::not_found("entry", at));
        }
        Ok(self.state_before(at.timeline, at.seq.next()).await?.0.try_into()?)
    }

    /// The state before entry `to`, and how far its keyframe lies back: deltas, their bytes, timelines crossed.
    pub(super) async fn state_before(&self, timeline: TimelineId, to: Seq) -> Result<(Value, Distance)> {
        let mut parts = self.lineage(timeline, to).await?;
        let mut base = Value::Object(Map::new());
        let mut distance = Distance::default();
        let mut after = Vec::new();
        while let Some(part) = parts.pop() {
            match self.keyframe_before(part).await? {
                Some((at, state)) => {
                    base = state;
                    after.push(Segment { from: at.seq.next(), ..part });
                    break;
                }
                None => {
                    after.push(part);
                    distance.timelines += 1;
                }
            }
        }
        for part in after.into_iter().rev() {
            self.apply_deltas(part, &mut base, &mut distance).await?;
        }
        Ok((base, distance))
    }

    /// The newest keyframe of a part that can be read. Damage is passed over: keyframes are derived.
    async fn keyframe_before(&self, part: Segment) -> Result<Option<(Position, Value)>> {
        let mut to = part.to;
        while to > part.from {
            let at = Position { timeline: part.timeline, seq: Seq(to.0 - 1) };
            let Some(frame) = self.inner.backend.keyframe(self.workspace(), at).await? else { return Ok(None) };
            if frame.at.seq < part.from {
                return Ok(None);
            }
            let codec = self.codec(part.session).await?;
            match decode_keyframe(&codec, &frame) {
                Ok(state) => return Ok(Some((frame.at, state))),
                Err(error) if frame.pinned || !error.is_damage() => return Err(error),
                Err(_) => to = frame.at.seq,
            }
        }
        Ok(None)
    }

    async fn apply_deltas(&self, part: Segment, state: &mut Value, distance: &mut Distance) -> Result<()> {
        let mut pruned = None;
        self.for_each_entry(part, Kinds::only(EntryKind::State), |entry| {
            match entry.body {
                Some(Body::State(delta)) => {
                    distance.deltas += 1;
                    apply(&delta, state, entry.at)?;
                }
                _ => pruned = Some(entry.at),
            }
            Ok(())
        })
        .await?;
        match pruned {
            Some(at) => Err(self.pruned(at).await),
            None => Ok(()),
        }
    }

    async fn pruned(&self, at: Position) -> Error {
        let filter =
            MarkFilter { order: Order::Forward, limit: 1, ..MarkFilter::of(at.timeline, at.seq, Seq(u64::MAX)) };
        let next = self.inner.backend.marks(self.workspace(), filter).await.unwrap_or_default();
        let nearest = match next.first() {
            Some(row) => format!("the nearest checkpoint that is kept is {} at {}", row.id, row.at.seq),
            None => "no later checkpoint of that timeline is kept".to_owned(),
        };
        Error::Pruned { at, nearest }
    }

    /// Checkpoints up to a session's head.
    pub async fn marks(&self, session: SessionId, query: &MarkQuery) -> Result<Vec<Mark>> {
        let rows = self.mark_rows(session, query).await?;
        let mut marks = Vec::with_capacity(rows.len());
        for row in rows {
            match self.read_mark(&row).await {
                Ok(mark) => marks.push(mark),
                // A damaged mark is not listed; verify names it.
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(marks)
    }

    pub(super) async fn mark_rows(&self, session: SessionId, query: &MarkQuery) -> Result<Vec<MarkRow>> {
        let head = self.head(session).await?;
        let mut parts = self.lineage(head.timeline.id, Seq(head.timeline.length)).await?;
        if !query.oldest_first {
            parts.reverse();
        }
        let limit = query.limit.unwrap_or(self.inner.limits.max_page).min(self.inner.limits.max_page);
        let mut rows = Vec::new();
        for part in parts {
            let codec = self.codec(part.session).await?;
            let trigger = |trigger: &Trigger| match trigger {
                Trigger::Other(name) => codec.token("trigger", name),
                known => known.as_str().to_owned(),
            };
            let filter = MarkFilter {
                triggers: query.triggers.iter().map(trigger).collect(),
                label: query.label.as_deref().map(|label| codec.token("label", label)),
                clean: query.clean,
                resumable: query.resumable,
                time_from: query.time_from,
                time_to: query.time_to,
                trashed: Some(query.trashed),
                order: if query.oldest_first { Order::Forward } else { Order::Backward },
                limit: limit - rows.len(),
                ..MarkFilter::of(part.timeline, part.from, part.to)
            };
            rows.extend(self.inner.backend.marks(self.workspace(), filter).await?);
            if rows.len() >= limit {
                break;
            }
        }
        Ok(rows)
    }

    /// One checkpoint by its id.
    pub async fn mark(&self, id: CheckpointId) -> Result<Mark> {
        let row = self.inner.backend.mark(self.workspace(), id).await?;
        self.read_mark(&row.ok_or_else(|| Error::not_found("checkpoint", id))?).await
    }

    /// The checkpoint of a session whose time is nearest to a moment; of two equally near, the later.
    pub async fn mark_near(&self, session: SessionId, time: Timestamp) -> Result<Mark> {
        let one =
            |query: MarkQuery| async move { self.mark_rows(session, &MarkQuery { limit: Some(1), ..query }).await };
        let before = one(MarkQuery { time_to: Some(time), ..MarkQuery::default() }).await?;
        let after = one(MarkQuery { time_from: Some(time), oldest_first: true, ..MarkQuery::default() }).await?;
        let distance = |row: &MarkRow| (row.time.0 - time.0).unsigned_abs();
        let nearest = match (before.first(), after.first()) {
            (Some(before), Some(after)) if distance(before) < distance(after) => before,
            (_, Some(after)) => after,
            (Some(before), None) => before,
            (None, None) => return Err(Error::not_found("checkpoint of session", session)),
        };
        self.read_mark(nearest).await
    }

    pub(super) async fn read_mark(&self, row: &MarkRow) -> Result<Mark> {
        let (session, _) = self.parent(row.at.timeline).await?;
        let codec = self.codec(session).await?;
        let range = Range {
            timeline: row.at.timeline,
            from: row.at.seq,
            to: row.at.seq.next(),
            kinds: Kinds::ALL,
            channel: None,
            order: Order::Forward,
            limit: 1,
        };
        let stored = self.inner.backend.read(self.workspace(), range).await?;
        let lost = |why: &str| Error::corrupt(format!("checkpoint {}", row.id), why);
        let (_, entry) = stored.first().ok_or_else(|| lost("its entry is missing"))?;
        codec::check(row.at, entry)?;
        self.check_signature(row.at, entry)?;
        let blobs = self.payload_blobs(&stored).await?;
        match codec.decode(row.at, entry, payload(entry, &blobs))?.body {
            Some(Body::Mark(checkpoint)) if checkpoint.id == row.id => {
                Ok(Mark { at: row.at, session, time: entry.time, checkpoint, trashed: row.trashed })
            }
            Some(_) => Err(lost("another entry is in its place; reindex the session")),
            None => Err(lost("it was erased")),
        }
    }

    /// When a signing key is set, a mark must be signed with it.
    pub(super) fn check_signature(&self, at: Position, entry: &StoredEntry) -> Result<()> {
        let Some(key) = self.inner.keys.marks() else { return Ok(()) };
        let lost = |why: &str| Err(Error::corrupt(format!("checkpoint {at}"), why));
        match (&entry.mac, &entry.chain) {
            (Some(mac), Some(chain)) if key.verify(chain, mac) => Ok(()),
            (Some(_), Some(_)) => lost("its signature was made with another key, or the log before it was changed"),
            _ => lost("it is not signed, though a signing key is set"),
        }
    }

    /// A checkpoint with its state, verified against the hash it carries.
    pub async fn load(&self, id: CheckpointId) -> Result<Loaded> {
        let mark = self.mark(id).await?;
        self.load_mark(mark).await
    }

    async fn load_mark(&self, mark: Mark) -> Result<Loaded> {
        let (state, _) = self.state_before(mark.at.timeline, mark.at.seq.next()).await?;
        if HashedState::new(state.clone()).hash() != mark.checkpoint.state.0 {
            return Err(Error::corrupt(
                format!("the state of checkpoint {}", mark.checkpoint.id),
                "it does not have the hash that the checkpoint names",
            ));
        }
        Ok(Loaded { mark, state: state.try_into()?, skipped: Vec::new() })
    }

    /// The newest checkpoint that fits the query and is whole. Newer ones that are damaged are
    /// passed over and named.
    pub async fn load_latest(&self, session: SessionId, query: &MarkQuery) -> Result<Loaded> {
        let mut skipped = Vec::new();
        for row in self.mark_rows(session, &MarkQuery { oldest_first: false, ..query.clone() }).await? {
            let loaded = match self.read_mark(&row).await {
                Ok(mark) => self.load_mark(mark).await,
                Err(error) => Err(error),
            };
            match loaded {
                Ok(loaded) => return Ok(Loaded { skipped, ..loaded }),
                Err(error) if error.is_damage() => skipped.push(Skipped { id: row.id, why: error.to_string() }),
                Err(error) => return Err(error),
            }
        }
        match skipped.first() {
            Some(first) => Err(Error::corrupt(
                format!("every checkpoint of session {session}"),
                format!("the newest, {}: {}", first.id, first.why),
            )),
            None => Err(Error::not_found("checkpoint of session", session)),
        }
    }

    /// Sets what a session's row counts and shows to what it was at an entry.
    pub(super) async fn counts_at(&self, at: Position, session: &mut Session) -> Result<()> {
        session.counts.clear();
        session.checkpoints = 0;
        session.checkpoint = None;
        let mut parts = self.lineage(at.timeline, at.seq.next()).await?;
        let mut rest = Vec::new();
        while let Some(part) = parts.pop() {
            let filter = MarkFilter { limit: 1, trashed: None, ..MarkFilter::of(part.timeline, part.from, part.to) };
            let newest = self.inner.backend.marks(self.workspace(), filter).await?;
            let Some(row) = newest.first() else {
                rest.push(part);
                continue;
            };
            match self.read_mark(row).await {
                Ok(mark) => {
                    session.checkpoints = mark.checkpoint.number;
                    session.counts = mark.checkpoint.counts;
                    session.checkpoint = Some(row.id);
                    rest.push(Segment { from: row.at.seq.next(), ..part });
                    break;
                }
                Err(error) if error.is_damage() => rest.push(part),
                Err(error) => return Err(error),
            }
        }
        for part in rest.into_iter().rev() {
            let kinds = Kinds::only(EntryKind::Message).and(EntryKind::Mark);
            self.for_each_entry(part, kinds, |entry| {
                match entry.body {
                    Some(body) => fold::fold(session, session.active, &body),
                    None if entry.kind == EntryKind::Mark => session.checkpoints += 1,
                    None => {}
                }
                Ok(())
            })
            .await?;
        }
        session.preview = self.preview_at(at).await?;
        Ok(())
    }

    /// The beginning of the last message with a text, up to an entry.
    async fn preview_at(&self, at: Position) -> Result<Option<String>> {
        let mut to = at.seq.next();
        loop {
            let query = MessageQuery { to: Some(to), last: Some(16), ..MessageQuery::default() };
            let page = self.messages_at(at, &query).await?;
            let Some(first) = page.first() else { return Ok(None) };
            to = first.at.seq;
            if let Some(preview) = page.iter().rev().find_map(|found| fold::preview(&found.message)) {
                return Ok(Some(preview));
            }
        }
    }

    /// When an entry was added.
    pub(super) async fn entry_time(&self, at: Position) -> Result<Timestamp> {
        let range = Range {
            timeline: at.timeline,
            from: at.seq,
            to: at.seq.next(),
            kinds: Kinds::ALL,
            channel: None,
            order: Order::Forward,
            limit: 1,
        };
        let found = self.inner.backend.read(self.workspace(), range).await?;
        found.first().map(|(_, entry)| entry.time).ok_or_else(|| Error::not_found("entry", at))
    }

    /// The chain hash of an entry.
    pub(super) async fn hash_at(&self, at: Position) -> Result<milepost_model::Hash> {
        let (session, parent) = self.parent(at.timeline).await?;
        let codec = self.codec(session).await?;
        let begins = Seq(parent.map_or(0, |at| at.seq.0 + 1));
        // Walk back to an entry that carries its hash, then forward again.
        let mut low = at.seq;
        let mut known = None;
        let mut entries: Vec<(Seq, StoredEntry)> = Vec::new();
        while known.is_none() && low >= begins {
            let range = Range {
                timeline: at.timeline,
                from: begins,
                to: low.next(),
                kinds: Kinds::ALL,
                channel: None,
                order: Order::Backward,
                limit: 64,
            };
            let page = self.inner.backend.read(self.workspace(), range).await?;
            let Some((last, _)) = page.last() else { break };
            let reached = *last;
            for (seq, entry) in page {
                codec::check(Position { timeline: at.timeline, seq }, &entry)?;
                if let Some(chain) = entry.chain {
                    known = Some(chain);
                    break;
                }
                entries.push((seq, entry));
            }
            if reached == begins {
                break;
            }
            low = Seq(reached.0 - 1);
        }
        let mut hash = match (known, parent) {
            (Some(hash), _) => hash,
            (None, Some(parent)) => Box::pin(self.hash_at(parent)).await?,
            (None, None) => codec::genesis(session),
        };
        let blobs = self.payload_blobs(&entries).await?;
        for (seq, entry) in entries.iter().rev() {
            let at = Position { timeline: at.timeline, seq: *seq };
            let (commitment, _) = codec.commitment_of(at, entry, payload(entry, &blobs))?;
            hash = codec::chain(&hash, at, entry, &commitment);
        }
        Ok(hash)
    }
}

/// How far a state lies from the keyframe it was made from.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Distance {
    pub deltas: u64,
    pub timelines: u64,
}

/// The payload's blob of an entry.
pub(super) fn payload<'a>(entry: &StoredEntry, blobs: &'a HashMap<BlobId, Vec<u8>>) -> Option<&'a [u8]> {
    blobs.get(entry.refs.first()?).map(Vec::as_slice)
}

/// Applies a delta that lies in the log; that it does not fit is damage.
pub(super) fn apply(delta: &Delta, state: &mut Value, at: Position) -> Result<()> {
    delta.apply(state).map_err(|error| Error::corrupt(format!("the state change {at}"), error.to_string()))
}
