//! Putting a session into a store as it was elsewhere: times, numbers, checkpoints and their ids, old timelines.
//!
//! Entries are encoded anew with the keys of this store and chained anew; what they say, and the hash of the state at every
//! checkpoint, stays. A session that is being imported is hidden until it is whole, and a record says so, as its own log
//! cannot. One that was not finished is removed by [`Store::collect`], or when the same session is imported again.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use milepost_model::{
    Body, Checkpoint, EntryKind, Epoch, Event, HashedState, OwnerId, Position, Seq, Session, SessionId, State,
    TimelineId, Timestamp,
};
use serde_json::{Map, Value};
use tokio::sync::Mutex as AsyncMutex;

use super::Store;
use super::append::Claim;
use super::copy::CopyEntry;
use super::draft::{Draft, Head, HeadState, check_checkpoint, check_event, check_message};
use super::fold::event;
use super::pages::PAGE;
use super::read::{Distance, encode_keyframe};
use super::writer::SessionWriter;
use crate::backend::{BlobId, MAIN_HEAD, Opening};
use crate::codec;
use crate::error::{Conflict, Error, Result};
use crate::limits::check_name;

/// So many entries are written by one append at most,
const ENTRIES: usize = 512;
/// or so many bytes.
const BYTES: u64 = 4 << 20;

/// Records that name sessions whose import was begun and not finished.
const IMPORTING: &str = "importing";

/// Writes a session that comes from elsewhere, entry by entry.
pub struct Importer {
    writer: SessionWriter,
    head: Head,
    draft: Draft,
    /// The current timeline, until its first batch is written.
    open: Option<Opening>,
    /// Where each timeline begins and ends.
    lines: HashMap<TimelineId, (u64, u64)>,
    /// Who holds the session, until it is there.
    holder: Option<(OwnerId, String)>,
    /// The session is not there before the import: it is hidden until it is whole, and removed when it is given up.
    is_new: bool,
    /// The state before the current entry was given up by pruning.
    is_lost: bool,
    /// What is derived does not follow from the entries as they come: it is made anew at the end.
    needs_reindex: bool,
}

impl Store {
    /// Begins to import a session under this id, with its first timeline. Nothing is seen of it until
    /// [`Importer::finish`].
    pub async fn import(&self, session: SessionId, line: TimelineId, claim: &Claim) -> Result<Importer> {
        self.import_of(session, line, claim, b"").await
    }

    /// The same, noting what the session is made of: whoever begins again with the same finds it by
    /// [`Store::unfinished_of`].
    pub async fn import_of(
        &self,
        session: SessionId,
        line: TimelineId,
        claim: &Claim,
        made_of: &[u8],
    ) -> Result<Importer> {
        check_name("the holder", &claim.holder, "max_name_bytes", self.inner.limits.max_name_bytes)?;
        self.remove_unfinished(session, claim).await?;
        self.refuse_line(line).await?;
        if self.record(IMPORTING, &session.to_string()).await?.is_none() {
            self.put_record(IMPORTING, &session.to_string(), None, None, made_of).await?;
        }
        self.inner.keys.create_session(&*self.inner.backend, session).await?;
        let owner = self.source().id();
        let fresh = Session::new(session, line, Timestamp(i64::MIN));
        let head = Head {
            epoch: Epoch(1),
            timeline: line,
            length: 0,
            chain: codec::genesis(session),
            time: Timestamp(i64::MIN),
            session: fresh,
            state: Some(HeadState::new(Value::Object(Map::new()), Distance::default(), 0)),
            kept: None,
            stale: false,
            recent: VecDeque::new(),
        };
        let writer = SessionWriter {
            store: self.clone(),
            session,
            owner,
            shared: false,
            codec: self.codec(session).await?,
            waiting: Mutex::default(),
            head: AsyncMutex::new(head.bare()),
        };
        Ok(Importer {
            writer,
            draft: Draft::of(&head, head.time),
            head,
            open: Some(Opening { parent: None, head: MAIN_HEAD.to_owned(), replaces: None }),
            lines: HashMap::new(),
            holder: Some((owner, claim.holder.clone())),
            is_new: true,
            is_lost: false,
            needs_reindex: false,
        })
    }

    /// Goes on importing into a session that has a part of what it was elsewhere.
    pub async fn import_more(&self, session: SessionId, claim: &Claim) -> Result<Importer> {
        let writer = self.write(session, claim).await?;
        let epoch = writer.epoch().await;
        let head = self.read_head(&writer.codec, session, Some(epoch), None).await?;
        let lines = self.copy_lines(session).await?;
        let needs_reindex = lines.len() > 1;
        Ok(Importer {
            draft: Draft::of(&head, head.time),
            head,
            open: None,
            lines: lines.into_iter().map(|line| (line.id, (line.begins().0, line.end.0))).collect(),
            holder: None,
            is_new: false,
            is_lost: false,
            needs_reindex,
            writer,
        })
    }

    /// An import that was begun and not finished leaves a hidden session that no branch needs.
    async fn remove_unfinished(&self, session: SessionId, claim: &Claim) -> Result<()> {
        let Some(there) = self.inner.backend.session(self.workspace(), session).await? else { return Ok(()) };
        let is_needed = !self.inner.backend.children(self.workspace(), session).await?.is_empty();
        if !there.row.hidden || is_needed {
            return Err(Conflict::Exists { what: "session", id: session.to_string() }.into());
        }
        self.remove(session, claim).await
    }

    /// Sessions whose import was begun and not finished.
    pub async fn unfinished(&self) -> Result<Vec<SessionId>> {
        let mut found = Vec::new();
        for (id, _) in self.begun_imports().await? {
            if self.is_unfinished(id).await? {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Sessions that a record says are being imported, each with what it is made of.
    async fn begun_imports(&self) -> Result<Vec<(SessionId, Vec<u8>)>> {
        let (mut found, mut after): (Vec<_>, Option<String>) = (Vec::new(), None);
        loop {
            let page = self.records(IMPORTING, after.as_deref(), PAGE).await?;
            let is_full = page.len() == PAGE;
            after = page.last().map(|last| last.key.clone());
            found.extend(page.into_iter().filter_map(|record| Some((record.key.parse().ok()?, record.value))));
            if !is_full {
                return Ok(found);
            }
        }
    }

    /// A session whose import was begun with the same and not finished: importing under its id takes its place.
    pub async fn unfinished_of(&self, made_of: &[u8]) -> Result<Option<SessionId>> {
        for (id, value) in self.begun_imports().await? {
            if value == made_of && self.is_unfinished(id).await? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Whether a session is one whose import was begun and not finished: it is hidden, and a record says why.
    pub async fn is_unfinished(&self, session: SessionId) -> Result<bool> {
        if self.record(IMPORTING, &session.to_string()).await?.is_none() {
            return Ok(false);
        }
        match self.inner.backend.session(self.workspace(), session).await {
            Ok(Some(head)) => Ok(head.row.hidden),
            // One whose row is lost is not shown for that.
            Ok(None) => Ok(true),
            Err(error) if error.is_damage() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Forgets that a session was being imported: it is whole, or gone.
    pub(super) async fn forget_importing(&self, session: SessionId) -> Result<()> {
        let key = session.to_string();
        match self.record(IMPORTING, &key).await? {
            Some(record) => match self.delete_record(IMPORTING, &key, record.version).await {
                // Someone else was faster.
                Err(Error::Conflict(_) | Error::NotFound { .. }) => Ok(()),
                other => other,
            },
            None => Ok(()),
        }
    }

    async fn refuse_line(&self, line: TimelineId) -> Result<()> {
        match self.inner.backend.timeline(self.workspace(), line).await? {
            Some(_) => Err(Conflict::Exists { what: "timeline", id: line.to_string() }.into()),
            None => Ok(()),
        }
    }
}

impl Importer {
    /// The session.
    pub fn session(&self) -> SessionId {
        self.writer.session
    }

    /// Where the next entry goes.
    pub fn next(&self) -> Position {
        Position { timeline: self.head.timeline, seq: Seq(self.draft.length) }
    }

    /// Begins a further timeline, which continues one that was imported before.
    pub async fn open_line(&mut self, line: TimelineId, parent: Position) -> Result<()> {
        if self.draft.entries.is_empty() && self.open.is_some() {
            return Err(Error::invalid(format!("timeline {}", self.head.timeline), "it has no entries"));
        }
        self.flush(self.is_new).await?;
        let store = self.writer.store.clone();
        let is_there = |(begins, end): &(u64, u64)| (*begins..*end).contains(&parent.seq.0);
        if !self.lines.get(&parent.timeline).is_some_and(is_there) {
            return Err(Error::invalid(
                format!("timeline {line}"),
                format!("it continues {parent}, which is not there"),
            ));
        }
        store.refuse_line(line).await?;
        let mut session = self.head.session.clone();
        store.counts_at(parent, &mut session).await?;
        session.head = line;
        session.active = store.entry_time(parent).await?;
        let replaces = Some(self.head.timeline);
        let state = match store.state_before(parent.timeline, parent.seq.next()).await {
            Ok((state, distance)) => Some(HeadState::new(state, distance, parent.seq.0 + 1)),
            Err(Error::Pruned { .. }) => None,
            Err(error) => return Err(error),
        };
        (self.is_lost, self.needs_reindex) = (state.is_none(), true);
        self.head = Head {
            epoch: self.head.epoch,
            timeline: line,
            length: parent.seq.0 + 1,
            chain: store.hash_at(parent).await?,
            time: session.active,
            session,
            state,
            kept: None,
            stale: false,
            recent: VecDeque::new(),
        };
        self.draft = Draft::of(&self.head, self.head.time);
        self.open = Some(Opening { parent: Some(parent), head: MAIN_HEAD.to_owned(), replaces });
        Ok(())
    }

    /// Keeps a blob, to be named by an entry that is added soon.
    pub async fn put_blob(&mut self, plain: &[u8]) -> Result<BlobId> {
        let blob = self.writer.codec.blob(plain)?;
        let id = blob.id;
        self.writer.store.inner.backend.put_blobs(self.writer.store.workspace(), vec![blob]).await?;
        Ok(id)
    }

    /// Adds the next entry as it was: its time, its body, a checkpoint's id and number. Its state must be the one whose
    /// hash the checkpoint names.
    pub async fn add(&mut self, copied: CopyEntry) -> Result<()> {
        let CopyEntry { entry, refs, whole } = copied;
        let what = || format!("entry {} ({})", entry.at.seq, entry.kind.as_str());
        if entry.at != self.next() || entry.at.seq > Seq::MAX {
            return Err(Error::invalid(what(), format!("{} is the one that comes next", self.next())));
        }
        if entry.time < self.draft.time {
            let why = format!("its time {} lies before {}, that of the one before it", entry.time, self.draft.time);
            return Err(Error::invalid(what(), why));
        }
        let (now, back) = (self.writer.store.source().now(), self.writer.store.inner.limits.max_clock_step_back_ms);
        if entry.time.since_ms(now) > back {
            return Err(Error::ClockBack { session: self.session(), now, last: entry.time });
        }
        if self.draft.entries.len() >= ENTRIES || self.draft.bytes >= BYTES {
            self.flush(self.is_new).await?;
        }
        self.draft.time = entry.time;
        let is_branch = matches!(&entry.body, Some(Body::Event(event)) if event.kind == event::BRANCHED);
        if entry.at.seq.0 == 0 || (is_branch && self.open.is_some() && self.draft.entries.is_empty()) {
            self.draft.session.created = entry.time;
        }
        if entry.kind != EntryKind::State && self.is_lost {
            self.regain(whole.as_ref());
        }
        match entry.body {
            Some(body) if body.kind() != entry.kind => return Err(Error::invalid(what(), "it says something else")),
            Some(Body::Message(message)) => {
                check_message(&message)?;
                self.writer.push(&mut self.draft, entry.at.timeline, &Body::Message(message), Vec::new())?;
            }
            Some(Body::Event(event)) => self.add_event(entry.at, event, refs)?,
            Some(Body::State(delta)) => self.add_delta(entry.at, Body::State(delta)).await?,
            Some(Body::Mark(mark)) => self.add_mark(entry.at, mark).await?,
            None => self.add_erased(entry.at, entry.time, entry.kind)?,
        }
        match whole {
            Some(whole) => self.keep_whole(entry.at, whole).await,
            None => Ok(()),
        }
    }

    fn add_event(&mut self, at: Position, event: Event, refs: Vec<BlobId>) -> Result<()> {
        check_event(&event, &self.writer.store.inner.limits)?;
        self.needs_reindex |= [event::PRUNED, event::UNPRUNED].contains(&event.kind.as_str());
        self.writer.push(&mut self.draft, at.timeline, &Body::Event(event), refs)
    }

    /// The state before the next entry; none where it was given up.
    async fn state(&mut self) -> Result<Option<&mut HeadState>> {
        if self.is_lost {
            return Ok(None);
        }
        match self.writer.head_state_in(&mut self.head, &self.draft).await {
            Ok(_) => {}
            Err(Error::Pruned { .. }) => self.is_lost = true,
            Err(error) => return Err(error),
        }
        Ok(self.head.state.as_mut().filter(|_| !self.is_lost))
    }

    /// Knows the state again after it was lost.
    fn regain(&mut self, whole: Option<&State>) {
        let Some(whole) = whole else { return };
        self.head.state = Some(HeadState::new(whole.as_value().clone(), Distance::default(), self.draft.length));
        self.is_lost = false;
    }

    async fn add_delta(&mut self, at: Position, body: Body) -> Result<()> {
        if self.state().await?.is_none() {
            return self.writer.push(&mut self.draft, at.timeline, &body, Vec::new());
        }
        let Body::State(delta) = body else { return Ok(()) };
        if delta.is_empty() {
            return Err(Error::invalid(format!("entry {} (state)", at.seq), "it changes nothing"));
        }
        self.writer.push_delta(&mut self.head, &mut self.draft, delta, &mut false)
    }

    async fn add_mark(&mut self, at: Position, mark: Checkpoint) -> Result<()> {
        let store = self.writer.store.clone();
        let what = format!("checkpoint {}", mark.id);
        check_checkpoint(&mark, &store.inner.limits)?;
        let is_drafted = self.draft.marks.iter().any(|row| row.id == mark.id);
        if is_drafted || store.inner.backend.mark(store.workspace(), mark.id).await?.is_some() {
            return Err(Conflict::Exists { what: "checkpoint", id: mark.id.to_string() }.into());
        }
        let next = self.draft.session.checkpoints + 1;
        if mark.number != next {
            return Err(Error::invalid(what, format!("its number is {}, {next} comes next", mark.number)));
        }
        let said = mark.counts.values().try_fold(0u64, |sum, count| sum.checked_add(*count));
        if said != Some(self.draft.session.messages()) {
            let why = format!("its counts do not add up to the {} messages before it", self.draft.session.messages());
            return Err(Error::invalid(what, why));
        }
        let hash = self.state().await?.map(|known| known.state.hash());
        if hash.is_some_and(|hash| hash != mark.state.0) {
            return Err(Error::invalid(what, "the state before it does not have the hash that it names"));
        }
        self.writer.push(&mut self.draft, at.timeline, &Body::Mark(mark), Vec::new())?;
        match self.head.state.as_mut() {
            Some(known) if known.is_far(self.draft.length) => self.writer.push_keyframe(known, &mut self.draft, at),
            _ => Ok(()),
        }
    }

    /// Adds an entry of which only that it was there is known.
    fn add_erased(&mut self, at: Position, time: Timestamp, kind: EntryKind) -> Result<()> {
        match kind {
            EntryKind::State => {
                self.is_lost = true;
                self.head.state = None;
            }
            EntryKind::Mark => self.draft.session.checkpoints += 1,
            EntryKind::Message | EntryKind::Event => {
                let what = format!("entry {} ({})", at.seq, kind.as_str());
                return Err(Error::invalid(what, "it says nothing, and what was said or happened is never erased"));
            }
        }
        let encoded = self.writer.codec.encode_erased(at, time, &self.draft.chain, kind);
        self.draft.entries.push(encoded.entry);
        self.draft.chain = encoded.hash;
        self.draft.length += 1;
        self.draft.session.active = self.draft.session.active.max(time);
        Ok(())
    }

    /// Keeps the whole state after an entry: the changes before it are not all there.
    async fn keep_whole(&mut self, at: Position, whole: State) -> Result<()> {
        if let Some(known) = self.state().await? {
            let hash = known.state.hash();
            if hash != HashedState::new(whole.as_value().clone()).hash() {
                let why = "the whole state that comes with it is not the one that the changes make";
                return Err(Error::invalid(format!("entry {}", at.seq), why));
            }
        }
        self.is_lost = true;
        self.regain(Some(&whole));
        self.draft.keyframes.push(encode_keyframe(&self.writer.codec, at, whole.as_value(), true)?);
        Ok(())
    }

    /// Writes what was added.
    async fn flush(&mut self, hidden: bool) -> Result<()> {
        if self.draft.entries.is_empty() {
            return Ok(());
        }
        let store = self.writer.store.clone();
        let shown = self.draft.session.hidden;
        self.draft.session.hidden |= hidden;
        let batch = self.writer.finish(&self.head, &mut self.draft, store.source().id());
        self.draft.session.hidden = shown;
        let mut batch = batch?;
        batch.open = self.open.take();
        if let Some(holder) = &self.holder {
            batch.epoch = None;
            batch.holder = Some(holder.clone());
        }
        match store.append_batch(batch).await {
            Ok(_) => {}
            // A write whose end is unknown is settled by looking.
            Err(error @ Error::Io { .. }) => {
                let there = store.inner.backend.timeline(store.workspace(), self.head.timeline).await?;
                if there.is_none_or(|line| line.length < self.draft.length) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        self.holder = None;
        let begins = self.lines.get(&self.head.timeline).map_or(self.draft.first.0, |(begins, _)| *begins);
        self.lines.insert(self.head.timeline, (begins, self.draft.length));
        let written = std::mem::replace(&mut self.draft, Draft::of(&self.head, self.head.time));
        self.head.take(written);
        self.draft = Draft::of(&self.head, self.head.time);
        Ok(())
    }

    /// Makes the session whole and shows it. When that fails, a session that was not there before is removed.
    pub async fn finish(mut self) -> Result<SessionWriter> {
        match self.complete().await {
            Ok(()) => {}
            Err(error) => {
                // What is left is hidden, and collected later.
                let _ = self.discard().await;
                return Err(error);
            }
        }
        let Importer { mut writer, mut head, needs_reindex, .. } = self;
        head.stale = needs_reindex;
        *writer.head.get_mut() = head;
        Ok(writer)
    }

    async fn complete(&mut self) -> Result<()> {
        if self.is_new && self.lines.is_empty() && self.draft.entries.is_empty() {
            return Err(Error::invalid(format!("session {}", self.session()), "it has no entries"));
        }
        self.flush(self.is_new && self.needs_reindex).await?;
        if self.is_new {
            self.writer.store.forget_importing(self.session()).await?;
        }
        if self.needs_reindex {
            self.writer.store.reindex_session(self.session()).await?;
        }
        Ok(())
    }

    /// Gives the import up. A session that was not there before is removed with everything that was written of it.
    pub async fn discard(self) -> Result<()> {
        let store = self.writer.store.clone();
        if !self.is_new {
            return Box::pin(self.writer.release()).await;
        }
        if self.holder.is_none() {
            let (session, epoch) = (self.session(), self.head.epoch);
            store.inner.backend.remove(store.workspace(), session, epoch).await?;
        }
        store.forget_importing(self.session()).await?;
        store.inner.keys.shred(&*store.inner.backend, self.session()).await
    }
}

impl Head {
    /// A head that must be read again before it is used.
    fn bare(&self) -> Self {
        Self {
            epoch: self.epoch,
            timeline: self.timeline,
            length: self.length,
            chain: self.chain,
            time: self.time,
            session: self.session.clone(),
            state: None,
            kept: None,
            stale: true,
            recent: VecDeque::new(),
        }
    }
}
