//! Late redaction: finds a leaked secret in everything that is stored and replaces it, chain intact.
//!
//! An entry that held the secret keeps the commitment the chain was made with and gets another
//! payload; an event in the log names the commitments of the replacements, so that verification can
//! tell a redaction from tampering. Marks whose state held the secret are replaced too, with the
//! hash of the redacted state. The store is compacted at the end, so that no free page keeps it; also when nothing was
//! found, since an earlier one may have been killed before that, and a bucket keeps what was replaced for a while.
//!
//! Sessions that somebody holds, or that are damaged, are passed over and named. So are those whose values only an adapter can
//! change: it does so before, and they are passed over only where it left something. The event also names the
//! payloads that were blobs: whenever this is interrupted, the next one knows what is left to remove.

use std::collections::{BTreeSet, HashMap, HashSet};

use milepost_model::{
    Body, Delta, EntryKind, Event, Hash, HashedState, Position, Seq, Session, SessionId, TimelineId, Timestamp,
};
use serde_json::{Map, Value, json};

use super::Store;
use super::append::Claim;
use super::fold::{self, event};
use super::pages::PAGE;
use super::read::encode_keyframe;
use super::redactor::Redactor;
use super::writer::Changes;
use crate::backend::{BlobId, BlobInfo, Range, StoredEntry, Timeline};
use crate::codec::{self, Codec};
use crate::error::{Error, KeyError, Result};

/// Why a session was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// Somebody holds it, or a session that goes on from it.
    Held,
    /// It is damaged, or a session that goes on from it is.
    Damaged,
    /// It holds values of an adapter's, which tell how long they are: only the adapter can replace something in them.
    Adapter,
}

/// Under which names the sessions of adapters say whose they are, and under which that they are theirs no longer.
const ADAPTERS: [(&str, &str); 1] = [("langgraph", "langgraph_left")];

const ADAPTERS_OWN: &str = "what an adapter keeps there can be changed by the adapter alone";

fn is_adapters(session: &Session) -> bool {
    let is_of = |(own, left): &(&str, &str)| session.extra.contains_key(*own) && !session.extra.contains_key(*left);
    !session.hidden && session.branch.is_none() && ADAPTERS.iter().any(is_of)
}

/// A session that was not looked through, or not to its end: it may still hold what was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// The session.
    pub session: SessionId,
    /// What stood in the way.
    pub obstacle: Obstacle,
    /// The same in words.
    pub why: String,
}

impl PassedOver {
    /// What an error that stands in the way of one session alone means for it; none when it stands in the way of all.
    pub fn by(session: SessionId, error: &Error) -> Option<Self> {
        let obstacle = match error {
            Error::Held { .. } | Error::Fenced { .. } => Obstacle::Held,
            error if error.is_damage() => Obstacle::Damaged,
            _ => return None,
        };
        Some(Self { session, obstacle, why: error.finding() })
    }

    /// What only an adapter can replace.
    pub fn of_adapter(session: SessionId, why: impl Into<String>) -> Self {
        Self { session, obstacle: Obstacle::Adapter, why: why.into() }
    }
}

/// What redaction did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redacted {
    /// Sessions that held the secret.
    pub sessions: Vec<SessionId>,
    /// Entries that held it: messages, state changes, events.
    pub entries: u64,
    /// Checkpoints whose state held it.
    pub checkpoints: u64,
    /// Records that held it.
    pub records: u64,
    /// Records that hold it still: what was put a moment ago, because somebody may be about to name it (look again after the
    /// grace time).
    pub records_left: u64,
    /// What besides sessions is damaged and was passed over, in words: it may hold it.
    pub damaged: Vec<String>,
    /// Blobs that are no entry's payload and hold it still: files that an event names, which cannot be changed without
    /// changing their name (delete the sessions that name them), and what was put a moment ago, because somebody may be
    /// about to name it (look again after the grace time). In a dry run also payloads that are still to be removed.
    pub blobs: Vec<BlobId>,
    /// Sessions that were passed over.
    pub passed_over: Vec<PassedOver>,
    /// How long what is replaced stays in the store, for whoever is just reading it: a redaction after that deletes it. 0
    /// where it is gone at once (ms).
    pub lingers_ms: i64,
}

/// What became of one session, or why it was passed over.
type Outcome<T> = std::result::Result<T, PassedOver>;

impl Redacted {
    /// Adds what an adapter found in its sessions. After a dry run those were passed over here because they still hold it.
    pub fn join(&mut self, adapter: Self, dry_run: bool) {
        let goes = |one: &PassedOver| one.obstacle == Obstacle::Adapter && adapter.sessions.contains(&one.session);
        self.passed_over.retain(|one| !(dry_run && goes(one)));
        for one in adapter.passed_over {
            self.passed_over.retain(|known| known.session != one.session);
            self.passed_over.push(one);
        }
        self.sessions.extend(adapter.sessions);
        self.entries += adapter.entries;
        self.checkpoints += adapter.checkpoints;
    }
}

/// What was found in one session.
#[derive(Default)]
struct Found {
    change: Changes,
    entries: u64,
    checkpoints: u64,
    /// Whole states that hold it.
    keyframes: u64,
    /// Where something was replaced, and the commitment of what is there now.
    replaced: Vec<(TimelineId, Seq, Hash)>,
    old_blobs: Vec<BlobId>,
    /// Payloads that an earlier redaction replaced, whether or not it came to remove them.
    replaced_before: Vec<BlobId>,
    /// Files that events name and that hold it.
    files: Vec<BlobId>,
}

impl Found {
    fn is_any(&self) -> bool {
        self.entries + self.checkpoints + self.keyframes > 0
    }
}

impl Store {
    /// Erases what `redactor` finds from everything stored in this workspace. With `dry_run` it only counts.
    pub async fn redact(&self, redactor: &Redactor, why: &str, claim: &Claim, dry_run: bool) -> Result<Redacted> {
        let lingers_ms = self.inner.backend.features().lingers_ms;
        let mut redacted = Redacted { lingers_ms, ..Redacted::default() };
        let begun = self.source().now().plus_ms(1);
        let why = redactor.clean(why).unwrap_or_else(|| why.to_owned());
        // A branch comes before what it continues from, and gets a clean state of its own to begin with:
        // whenever this is interrupted, every session is either as it was or clean, and can be read.
        let rows = self.all_sessions().await?;
        let order = self.parents_first(rows.iter().map(|row| row.id).collect()).await?;
        let (mut leftover, mut files) = (Vec::new(), Vec::new());
        // Sessions that a session goes on from that was passed over, in a state that has the secret.
        let mut needed_as_they_are: HashMap<SessionId, PassedOver> = HashMap::new();
        for id in order.iter().rev().copied() {
            let outcome = match needed_as_they_are.remove(&id) {
                Some(passed_over) => Err(passed_over),
                None => match self.redact_session(id, redactor, &why, claim, begun, dry_run).await {
                    Ok(outcome) => outcome,
                    Err(error) => Err(PassedOver::by(id, &error).ok_or(error)?),
                },
            };
            match outcome {
                Err(passed_over) => {
                    self.keep_beginnings(&passed_over, redactor, &mut needed_as_they_are).await?;
                    redacted.passed_over.push(passed_over);
                }
                Ok(Some(mut found)) => {
                    leftover.append(&mut found.replaced_before);
                    files.append(&mut found.files);
                    if found.is_any() {
                        redacted.sessions.push(id);
                        redacted.entries += found.entries;
                        redacted.checkpoints += found.checkpoints;
                    }
                }
                Ok(None) => {}
            }
        }
        self.redact_records(redactor, dry_run, &mut redacted).await?;
        self.redact_rows(&order, redactor, claim, dry_run, &mut redacted).await?;
        if !dry_run {
            self.drop_leftover(leftover, begun).await?;
            self.inner.backend.compact().await?;
        }
        redacted.blobs = self.find_in_blobs(&order, redactor, files).await?;
        Ok(redacted)
    }

    /// The payloads and files that a session's entries name.
    pub async fn blobs_of(&self, id: SessionId) -> Result<Vec<BlobId>> {
        let mut all = BTreeSet::new();
        for line in self.inner.backend.timelines(self.workspace(), id).await? {
            let mut pages = self.pages(Range::all(line.id, Seq(line.begins()), Seq(line.length)));
            while let Some(page) = pages.next().await? {
                all.extend(page.entries.iter().flat_map(|(_, entry)| entry.refs.iter().copied()));
            }
        }
        Ok(all.into_iter().collect())
    }

    /// Removes those of these blobs at once that were put before then and that no entry needs.
    pub async fn drop_blobs(&self, ids: Vec<BlobId>, before: Timestamp) -> Result<()> {
        self.inner.backend.drop_blobs(self.workspace(), ids, before).await.map(drop)
    }

    /// Whether anything in a session's log holds what `redactor` finds.
    pub async fn holds(&self, id: SessionId, redactor: &Redactor) -> Result<bool> {
        Ok(self.find(id, redactor).await?.is_any())
    }

    /// Looks through one session, and replaces what is found. None when nobody can read it any more.
    async fn redact_session(
        &self,
        id: SessionId,
        redactor: &Redactor,
        why: &str,
        claim: &Claim,
        begun: Timestamp,
        dry_run: bool,
    ) -> Result<Outcome<Option<Found>>> {
        let mut found = match self.find(id, redactor).await {
            Ok(found) => found,
            Err(Error::Key(KeyError::Shredded { .. })) => return Ok(Ok(None)),
            Err(error) => return Err(error),
        };
        if found.is_any() && is_adapters(&self.session(id).await?) {
            return Ok(Err(PassedOver::of_adapter(id, ADAPTERS_OWN)));
        }
        if !dry_run && found.is_any() {
            let old = std::mem::take(&mut found.old_blobs);
            self.replace(id, &mut found, &old, why, claim).await?;
            // What was put again since then belongs to somebody.
            self.inner.backend.drop_blobs(self.workspace(), old, begun).await?;
        }
        Ok(Ok(Some(found)))
    }

    /// Notes which sessions have to stay as they are, because one that was passed over begins in them with a state that
    /// has the secret: on a clean one what it changed since would not fit.
    async fn keep_beginnings(
        &self,
        passed_over: &PassedOver,
        redactor: &Redactor,
        needed: &mut HashMap<SessionId, PassedOver>,
    ) -> Result<()> {
        let lines = self.inner.backend.timelines(self.workspace(), passed_over.session).await?;
        for at in lines.iter().filter_map(|line| line.parent) {
            let (session, _) = self.parent(at.timeline).await?;
            let is_clean = match self.state_before(at.timeline, at.seq.next()).await {
                Ok((mut state, _)) => !redactor.value(&mut state),
                Err(error) if error.is_damage() => false,
                Err(error) => return Err(error),
            };
            if session != passed_over.session && !is_clean {
                let why = format!("session {} goes on from it: {}", passed_over.session, passed_over.why);
                needed.insert(session, PassedOver { session, why, ..passed_over.clone() });
            }
        }
        Ok(())
    }

    /// Removes payloads that were replaced by a redaction that did not come to its end, and blobs that nothing named in time.
    async fn drop_leftover(&self, leftover: Vec<BlobId>, begun: Timestamp) -> Result<()> {
        if !leftover.is_empty() {
            self.inner.backend.drop_blobs(self.workspace(), leftover, begun).await?;
        }
        let (unneeded, before) = self.unneeded_blobs().await?;
        let idle: Vec<BlobId> = unneeded.iter().filter(|info| info.touched < before).map(|info| info.id).collect();
        if !idle.is_empty() {
            self.inner.backend.drop_blobs(self.workspace(), idle, before).await?;
        }
        Ok(())
    }

    /// What a list shows of a branch may come from what it continues: once that is clean, so is the row.
    async fn redact_rows(
        &self,
        order: &[SessionId],
        redactor: &Redactor,
        claim: &Claim,
        dry_run: bool,
        redacted: &mut Redacted,
    ) -> Result<()> {
        for id in order {
            let outcome = match self.redact_row(*id, redactor, claim, dry_run).await {
                Ok(outcome) => outcome,
                Err(error) => Err(PassedOver::by(*id, &error).ok_or(error)?),
            };
            match outcome {
                Ok(true) if !redacted.sessions.contains(id) => redacted.sessions.push(*id),
                Err(passed_over) if redacted.passed_over.iter().all(|known| known.session != *id) => {
                    redacted.passed_over.push(passed_over);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn redact_row(
        &self,
        id: SessionId,
        redactor: &Redactor,
        claim: &Claim,
        dry_run: bool,
    ) -> Result<Outcome<bool>> {
        let codec = match self.codec(id).await {
            Err(Error::Key(KeyError::Shredded { .. })) => return Ok(Ok(false)),
            other => other?,
        };
        let session = fold::session_from_row(&codec, &self.head(id).await?.row)?;
        if !redactor.is_in_session(&session) {
            return Ok(Ok(false));
        }
        if is_adapters(&session) {
            return Ok(Err(PassedOver::of_adapter(id, ADAPTERS_OWN)));
        }
        if !dry_run {
            // Whoever writes to it remembers what was there: the lease keeps them from writing it again.
            let writer = self.write(id, claim).await?;
            let derived = self.derive(id).await?;
            self.inner.backend.rebuild(self.workspace(), derived.row, derived.marks).await?;
            writer.release().await?;
        }
        Ok(Ok(true))
    }

    /// Sessions in an order in which every branch comes after what it continues from.
    async fn parents_first(&self, ids: Vec<SessionId>) -> Result<Vec<SessionId>> {
        let mut order = Vec::with_capacity(ids.len());
        let mut done = HashSet::new();
        for id in ids {
            let mut stack = vec![id];
            while let Some(next) = stack.last().copied() {
                let lines = self.inner.backend.timelines(self.workspace(), next).await?;
                let mut waits_for = None;
                for at in lines.iter().filter_map(|line| line.parent) {
                    let (session, _) = self.parent(at.timeline).await?;
                    if session != next && !done.contains(&session) && !stack.contains(&session) {
                        waits_for = Some(session);
                    }
                }
                match waits_for {
                    Some(session) => stack.push(session),
                    None => {
                        stack.pop();
                        if done.insert(next) {
                            order.push(next);
                        }
                    }
                }
            }
        }
        Ok(order)
    }

    async fn find(&self, id: SessionId, redactor: &Redactor) -> Result<Found> {
        let codec = self.codec(id).await?;
        let mut found = Found::default();
        for line in self.inner.backend.timelines(self.workspace(), id).await? {
            self.find_in_line(&codec, &line, redactor, &mut found).await?;
        }
        Ok(found)
    }

    async fn find_in_line(&self, codec: &Codec, line: &Timeline, redactor: &Redactor, found: &mut Found) -> Result<()> {
        let pinned = self.pinned_states(codec, line).await?;
        let start = match line.parent {
            None => Value::Object(Map::new()),
            Some(at) => self.state_before(at.timeline, at.seq.next()).await?.0,
        };
        // The state as it is stored, and as it will be. They are the same until the secret appears.
        let mut clean = start.clone();
        let mut dirty = redactor.value(&mut clean);
        let mut state = HashedState::new(start);
        let mut clean = HashedState::new(clean);
        let first = Position { timeline: line.id, seq: Seq(line.begins()) };
        if dirty && line.length > first.seq.0 && !pinned.contains_key(&first.seq) {
            found.change.keyframes.push(encode_keyframe(codec, first, clean.value(), true)?);
        }
        let mut pages = self.pages(Range::all(line.id, first.seq, Seq(line.length)));
        while let Some(page) = pages.next().await? {
            for (seq, entry) in &page.entries {
                let at = Position { timeline: line.id, seq: *seq };
                codec::check(at, entry)?;
                let decoded = codec.decode(at, entry, page.payload(entry))?;
                self.find_in_files(codec, entry, redactor, found).await?;
                if let Some(whole) = pinned.get(seq) {
                    state = HashedState::new(whole.clone());
                    let mut value = whole.clone();
                    dirty = redactor.value(&mut value);
                    clean = HashedState::new(value);
                }
                let replacement = match decoded.body {
                    None => None,
                    Some(Body::Message(mut message)) => {
                        redactor.message(&mut message).then_some(Body::Message(message))
                    }
                    Some(Body::Event(mut event)) => {
                        found.replaced_before.extend(old_payloads(&event));
                        redactor.event(&mut event).then_some(Body::Event(event))
                    }
                    // The whole state after it is known: what led there does not matter any more.
                    Some(Body::State(delta)) if pinned.contains_key(seq) => {
                        redactor.is_in_delta(&delta).then(|| Body::State(Delta::default()))
                    }
                    Some(Body::State(delta)) => {
                        state.apply(&delta)?;
                        self.clean_delta(redactor, &delta, &state, &mut clean, &mut dirty)?.map(Body::State)
                    }
                    Some(Body::Mark(mut mark)) => {
                        let hash = Hash(clean.hash());
                        let changed = redactor.mark(&mut mark) || mark.state != hash;
                        mark.state = hash;
                        changed.then_some(Body::Mark(mark))
                    }
                };
                let Some(body) = replacement else { continue };
                match entry.kind {
                    EntryKind::Mark => found.checkpoints += 1,
                    _ => found.entries += 1,
                }
                let (stored, blob, commitment) = codec.replace(at, entry, &decoded.commitment, &body)?;
                if codec::is_blob(entry) {
                    found.old_blobs.extend(entry.refs.first().copied());
                }
                if let Body::Mark(mark) = &body {
                    let row = self.inner.backend.mark(self.workspace(), mark.id).await?;
                    let trashed = row.and_then(|row| row.trashed);
                    found
                        .change
                        .rewrite
                        .marks
                        .push(crate::backend::MarkRow { trashed, ..fold::mark_to_row(codec, at, entry.time, mark) });
                }
                found.change.blobs.extend(blob);
                found.replaced.push((at.timeline, at.seq, commitment));
                if entry.kind == EntryKind::Message {
                    found.change.rewrite.texts.push(at);
                }
                found.change.rewrite.entries.push((at, stored));
            }
        }
        self.clean_keyframes(codec, line, redactor, found).await
    }

    /// The delta that leads from clean state to clean state, when it is not the stored one.
    fn clean_delta(
        &self,
        redactor: &Redactor,
        stored: &Delta,
        state: &HashedState,
        clean: &mut HashedState,
        dirty: &mut bool,
    ) -> Result<Option<Delta>> {
        let mut value = state.value().clone();
        let has_secret = redactor.value(&mut value);
        if !has_secret && !*dirty && !redactor.is_in_delta(stored) {
            clean.apply(stored)?;
            return Ok(None);
        }
        let delta = Delta::diff(clean.value(), &value)?;
        clean.replace(value);
        *dirty = has_secret;
        Ok((delta != *stored).then_some(delta))
    }

    /// The whole states of a timeline that are truth, not derived.
    async fn pinned_states(&self, codec: &Codec, line: &Timeline) -> Result<HashMap<Seq, Value>> {
        let mut states = HashMap::new();
        for (seq, pinned) in self.inner.backend.keyframes(self.workspace(), line.id).await? {
            let at = Position { timeline: line.id, seq };
            if let (true, Some(frame)) = (pinned, self.inner.backend.keyframe(self.workspace(), at).await?) {
                states.insert(seq, super::read::decode_keyframe(codec, &frame)?);
            }
        }
        Ok(states)
    }

    /// Keyframes that hold the secret: derived ones go, pinned ones are written anew.
    async fn clean_keyframes(
        &self,
        codec: &Codec,
        line: &Timeline,
        redactor: &Redactor,
        found: &mut Found,
    ) -> Result<()> {
        for (seq, pinned) in self.inner.backend.keyframes(self.workspace(), line.id).await? {
            let at = Position { timeline: line.id, seq };
            let Some(frame) = self.inner.backend.keyframe(self.workspace(), at).await? else { continue };
            let Ok(mut state) = super::read::decode_keyframe(codec, &frame) else { continue };
            if !redactor.value(&mut state) {
                continue;
            }
            found.keyframes += 1;
            match pinned {
                true => found.change.keyframes.push(encode_keyframe(codec, at, &state, true)?),
                false => found.change.rewrite.drop_keyframes.push(at),
            }
        }
        Ok(())
    }

    async fn replace(&self, id: SessionId, found: &mut Found, old: &[BlobId], why: &str, claim: &Claim) -> Result<()> {
        let writer = self.write(id, claim).await?;
        let mut data = json!({ "why": why, "entries": found.entries, "replaced": found.replaced });
        if !old.is_empty() {
            data[OLD_PAYLOADS] = old.iter().map(|id| json!(Hash(id.0))).collect();
        }
        let change = std::mem::take(&mut found.change);
        writer.rewrite(Event::new(event::REDACTED, data), change).await?;
        // Titles and previews may have held it: derive the rows anew now that the entries are clean.
        let derived = self.derive(id).await?;
        self.inner.backend.rebuild(self.workspace(), derived.row, derived.marks).await?;
        writer.release().await
    }

    async fn redact_records(&self, redactor: &Redactor, dry_run: bool, redacted: &mut Redacted) -> Result<()> {
        for kind in self.inner.backend.record_kinds(self.workspace()).await? {
            if kind == crate::keys::KEY_KIND || !redactor.looks_into(&kind) {
                continue;
            }
            let mut after: Option<String> = None;
            loop {
                let page = self.records_past_damage(&kind, after.as_deref(), PAGE).await?;
                let is_full = page.len() == PAGE;
                after = page.last().map(|(key, _)| key.clone());
                for (key, record) in page {
                    let record = match record {
                        Ok(record) => record,
                        Err(error) => {
                            let why = format!("the record {key:?} of kind {kind}: {error}");
                            redacted.damaged.push(redactor.clean(&why).unwrap_or(why));
                            continue;
                        }
                    };
                    let Some(clean) = redactor.clean_record(&kind, &record.value) else { continue };
                    redacted.records += 1;
                    if !dry_run {
                        self.put_record(&kind, &key, Some(record.version), record.due, &clean).await?;
                    }
                }
                if !is_full {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Looks into the files that an entry names, with the key of its session.
    async fn find_in_files(
        &self,
        codec: &Codec,
        entry: &StoredEntry,
        redactor: &Redactor,
        found: &mut Found,
    ) -> Result<()> {
        for id in entry.refs.iter().skip(usize::from(codec::is_blob(entry))) {
            let stored = self.inner.backend.get_blobs(self.workspace(), vec![*id]).await?.pop().flatten();
            let plain = stored.as_deref().and_then(|stored| codec.open_blob(*id, stored).ok());
            if plain.is_some_and(|plain| redactor.clean_bytes(&plain).is_some()) {
                found.files.push(*id);
            }
        }
        Ok(())
    }

    /// Blobs that hold it now: the files that were found, and what nothing needs.
    async fn find_in_blobs(&self, order: &[SessionId], redactor: &Redactor, files: Vec<BlobId>) -> Result<Vec<BlobId>> {
        let (unneeded, _) = self.unneeded_blobs().await?;
        let mut found: BTreeSet<BlobId> = files.into_iter().collect();
        // Whose payload it was is not known; in clear one reads them all.
        let mut codecs = match self.is_encrypted() {
            true => Vec::new(),
            false => vec![self.codec_with(SessionId::from_bytes([0; 16]), None)],
        };
        for id in order.iter().filter(|_| self.is_encrypted() && !unneeded.is_empty()) {
            match self.codec(*id).await {
                Err(Error::Key(KeyError::Shredded { .. })) => {}
                codec => codecs.push(codec?),
            }
        }
        for BlobInfo { id, .. } in unneeded {
            let stored = self.inner.backend.get_blobs(self.workspace(), vec![id]).await?.pop().flatten();
            let Some(stored) = stored else { continue };
            let plain = codecs.iter().find_map(|codec| codec.open_blob(id, &stored).ok());
            if plain.is_some_and(|plain| redactor.clean_bytes(&plain).is_some()) {
                found.insert(id);
            }
        }
        Ok(found.into_iter().collect())
    }
}

/// Under which name the event of a redaction lists the blobs that were payloads before.
const OLD_PAYLOADS: &str = "old_payloads";

fn old_payloads(event: &Event) -> Vec<BlobId> {
    let listed = (event.kind == event::REDACTED).then(|| event.data.get(OLD_PAYLOADS).cloned()).flatten();
    let hashes: Vec<Hash> = listed.and_then(|list| serde_json::from_value(list).ok()).unwrap_or_default();
    hashes.into_iter().map(|hash| BlobId(hash.0)).collect()
}
