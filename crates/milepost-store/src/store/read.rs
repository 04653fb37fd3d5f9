//! Reading: messages, states, marks, along a timeline and its parents.

use milepost_model::delta::{decode_value, encode_value};
use milepost_model::{
    Body, Channel, Delta, Entry, EntryKind, Message, Position, Seq, Session, SessionId, State, TimelineId, Timestamp,
};
use serde_json::{Map, Value};

use super::Store;
use super::fold;
use crate::backend::{Keyframe, Kinds, MarkFilter, Order, Range, SessionHead, StoredEntry};
use crate::codec::{self, Codec};
use crate::error::{Error, Result};

/// A part of a lineage: entries of one timeline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub timeline: TimelineId,
    pub session: SessionId,
    pub from: Seq,
    /// The entry after the last.
    pub to: Seq,
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

/// The end of a head: the number that its next entry will have.
pub(super) fn whole_end(head: &SessionHead) -> Result<(TimelineId, Seq)> {
    if head.timeline.length < head.noted_length {
        return Err(Error::corrupt(
            format!("session {}", head.row.id),
            format!("it had {} entries, {} are there", head.noted_length, head.timeline.length),
        ));
    }
    Ok((head.timeline.id, Seq(head.timeline.length)))
}

/// A message as it was said.
fn said(codec: &Codec, at: Position, entry: &StoredEntry, payload: Option<&[u8]>) -> Result<Option<StoredMessage>> {
    Ok(match codec.body(at, entry, payload)? {
        Some(Body::Message(message)) => Some(StoredMessage { at, time: entry.time, message }),
        _ => None,
    })
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
        whole_end(&self.head(session).await?)
    }

    /// Messages up to a session's head.
    pub async fn messages(&self, session: SessionId, query: &MessageQuery) -> Result<Vec<StoredMessage>> {
        let (timeline, end) = self.end(session).await?;
        self.messages_before(timeline, end, query, said).await
    }

    /// Messages up to and with an entry.
    pub async fn messages_at(&self, at: Position, query: &MessageQuery) -> Result<Vec<StoredMessage>> {
        self.messages_before(at.timeline, at.seq.next(), query, said).await
    }

    /// What is made of the JSON of each message up to and with an entry: for whoever reads many and needs little of each.
    pub async fn messages_as<T: Send>(
        &self,
        at: Position,
        query: &MessageQuery,
        make: impl Fn(&[u8]) -> T + Send + Sync,
    ) -> Result<Vec<T>> {
        let read = |codec: &Codec, at: Position, entry: &StoredEntry, payload: Option<&[u8]>| {
            Ok(codec.plain_body(at, entry, payload)?.map(|json| make(&json)))
        };
        self.messages_before(at.timeline, at.seq.next(), query, read).await
    }

    /// What `read` gives of each message; none of those that were erased.
    async fn messages_before<T: Send>(
        &self,
        timeline: TimelineId,
        end: Seq,
        query: &MessageQuery,
        read: impl Fn(&Codec, Position, &StoredEntry, Option<&[u8]>) -> Result<Option<T>> + Send + Sync,
    ) -> Result<Vec<T>> {
        let (from, to) = (query.from.unwrap_or_default(), query.to.unwrap_or(end).min(end));
        let order = if query.last.is_some() { Order::Backward } else { Order::Forward };
        let wanted = query.last.or(query.first).unwrap_or(usize::MAX);
        let mut parts = self.lineage(timeline, to).await?;
        if order == Order::Backward {
            parts.reverse();
        }
        let mut found = Vec::new();
        for part in parts.into_iter().filter(|part| part.to > from) {
            let codec = self.codec(part.session).await?;
            let range = Range {
                kinds: Kinds::only(EntryKind::Message),
                channel: query.channel.as_ref().map(|channel| codec.channel(channel)),
                order,
                limit: wanted - found.len(),
                ..Range::all(part.timeline, part.from.max(from), part.to)
            };
            let mut pages = self.pages(range);
            while let Some(page) = pages.next().await? {
                for (seq, entry) in &page.entries {
                    let at = Position { timeline: part.timeline, seq: *seq };
                    codec::check(at, entry)?;
                    found.extend(read(&codec, at, entry, page.payload(entry))?);
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

    /// What follows an entry on its timeline, up to the next mark: what was added for it later.
    pub async fn entries_after(&self, at: Position, kinds: Kinds) -> Result<Vec<Entry>> {
        let next = MarkFilter {
            order: Order::Forward,
            limit: 1,
            trashed: None,
            ..MarkFilter::of(at.timeline, at.seq.next(), Seq(u64::MAX))
        };
        let next = self.inner.backend.marks(self.workspace(), next).await?;
        let to = next.first().map_or(Seq(u64::MAX), |row| row.at.seq);
        let (session, _) = self.parent(at.timeline).await?;
        let part = Segment { timeline: at.timeline, session, from: at.seq.next(), to };
        let mut found = Vec::new();
        self.for_each_entry(part, kinds, |entry| {
            found.push(entry);
            Ok(())
        })
        .await?;
        Ok(found)
    }

    /// Entries of some kinds from one on up to and with another, along the timelines that lead to it.
    pub async fn entries_at(&self, at: Position, from: Seq, kinds: Kinds) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        for part in self.lineage(at.timeline, at.seq.next()).await?.into_iter().filter(|part| part.to > from) {
            let part = Segment { from: part.from.max(from), ..part };
            self.for_each_entry(part, kinds, |entry| {
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
        f: impl FnMut(Entry) -> Result<()> + Send,
    ) -> Result<()> {
        let codec = self.codec(part.session).await?;
        self.for_each_in(&codec, Range { kinds, ..Range::all(part.timeline, part.from, part.to) }, f).await
    }

    /// Calls `f` with every entry of a part, in order, past messages and changes of the state that are damaged; with whether it
    /// is a message of the main conversation that is.
    pub(super) async fn for_each_past_damage(
        &self,
        part: Segment,
        mut f: impl FnMut(Entry, bool) -> Result<()> + Send,
    ) -> Result<()> {
        let (codec, timeline) = (self.codec(part.session).await?, part.timeline);
        let mut pages = self.pages(Range::all(timeline, part.from, part.to));
        while let Some(page) = pages.next().await? {
            for (seq, entry) in &page.entries {
                let at = Position { timeline, seq: *seq };
                let decoded = codec::check(at, entry).and_then(|()| codec.body(at, entry, page.payload(entry)));
                let is_said = entry.kind == EntryKind::Message;
                let (body, is_lost) = match decoded {
                    Ok(body) => (body, false),
                    Err(error) if error.is_damage() && (is_said || entry.kind == EntryKind::State) => {
                        (None, is_said && entry.channel.is_none())
                    }
                    Err(error) => return Err(error),
                };
                f(Entry { at, time: entry.time, kind: entry.kind, body }, is_lost)?;
            }
        }
        Ok(())
    }

    /// Reads, checks and decodes entries of one timeline.
    async fn for_each_in(
        &self,
        codec: &Codec,
        range: Range,
        mut f: impl FnMut(Entry) -> Result<()> + Send,
    ) -> Result<()> {
        let timeline = range.timeline;
        let mut pages = self.pages(range);
        while let Some(page) = pages.next().await? {
            for (seq, entry) in &page.entries {
                let at = Position { timeline, seq: *seq };
                codec::check(at, entry)?;
                let body = codec.body(at, entry, page.payload(entry))?;
                f(Entry { at, time: entry.time, kind: entry.kind, body })?;
            }
        }
        Ok(())
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
            distance.entries += part.to.0.saturating_sub(part.from.0);
            self.apply_deltas(part, &mut base, &mut distance).await?;
        }
        Ok((base, distance))
    }

    /// The newest keyframe of a part that can be read. Damage is passed over: keyframes are derived.
    async fn keyframe_before(&self, part: Segment) -> Result<Option<(Position, Value)>> {
        let mut to = part.to;
        while to > part.from {
            let at = Position { timeline: part.timeline, seq: Seq(to.0 - 1) };
            let frame = match self.inner.backend.keyframe(self.workspace(), at).await {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(None),
                // A row that cannot even be read: the deltas say the same, or that they were given up.
                Err(error) if error.is_damage() => return Ok(None),
                Err(error) => return Err(error),
            };
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
        let codec = self.codec(part.session).await?;
        let kinds = Kinds::only(EntryKind::State);
        let mut pages = self.pages(Range { kinds, ..Range::all(part.timeline, part.from, part.to) });
        while let Some(page) = pages.next().await? {
            for (seq, entry) in &page.entries {
                let at = Position { timeline: part.timeline, seq: *seq };
                let payload = page.payload(entry);
                codec::check(at, entry)?;
                match codec.body(at, entry, payload)? {
                    Some(Body::State(delta)) => {
                        distance.deltas += 1;
                        distance.bytes += (entry.body.len() + payload.map_or(0, <[u8]>::len)) as u64;
                        apply(delta, state, at)?;
                    }
                    _ => pruned = Some(at),
                }
            }
        }
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
    pub(super) async fn preview_at(&self, at: Position) -> Result<Option<String>> {
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
        let found = self.inner.backend.read(self.workspace(), Range::one(at)).await?;
        found.first().map(|(_, entry)| entry.time).ok_or_else(|| Error::not_found("entry", at))
    }

    /// The chain hash of an entry.
    pub(super) async fn hash_at(&self, at: Position) -> Result<milepost_model::Hash> {
        let (session, parent) = self.parent(at.timeline).await?;
        let codec = self.codec(session).await?;
        let begins = Seq(parent.map_or(0, |at| at.seq.0 + 1));
        // Walk back to an entry that carries its hash, then forward again.
        let mut known = None;
        let mut between = Vec::new();
        let range = Range { order: Order::Backward, ..Range::all(at.timeline, begins, at.seq.next()) };
        let mut pages = self.pages(range);
        while let (None, Some(page)) = (known, pages.next().await?) {
            for (seq, entry) in page.entries {
                codec::check(Position { timeline: at.timeline, seq }, &entry)?;
                if let Some(chain) = entry.chain {
                    known = Some(chain);
                    break;
                }
                between.push((seq, entry));
            }
        }
        let mut hash = match (known, parent) {
            (Some(hash), _) => hash,
            (None, Some(parent)) => Box::pin(self.hash_at(parent)).await?,
            (None, None) => codec::genesis(session),
        };
        between.reverse();
        let page = self.page(between).await?;
        for (seq, entry) in &page.entries {
            let at = Position { timeline: at.timeline, seq: *seq };
            let (commitment, _) = codec.commitment_of(at, entry, page.payload(entry))?;
            hash = codec::chain(&hash, at, entry, &commitment);
        }
        Ok(hash)
    }
}

/// How far a state lies from the keyframe it was made from.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Distance {
    pub entries: u64,
    pub deltas: u64,
    /// Stored bytes of the deltas.
    pub bytes: u64,
    pub timelines: u64,
}

/// Applies a delta that lies in the log; that it does not fit is damage.
pub(super) fn apply(delta: Delta, state: &mut Value, at: Position) -> Result<()> {
    delta.apply_once(state).map_err(|error| Error::corrupt(format!("the state change {at}"), error.to_string()))
}
