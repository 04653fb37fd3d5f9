//! Late redaction: finds a leaked secret in everything that is stored and replaces it, chain intact.
//!
//! An entry that held the secret keeps the commitment the chain was made with and gets another
//! payload; an event in the log names the commitments of the replacements, so that verification can
//! tell a redaction from tampering. Marks whose state held the secret are replaced too, with the
//! hash of the redacted state. The file is written anew at the end, so that no free page keeps it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use milepost_model::delta::{Change, PathPart};
use milepost_model::{
    Block, Body, Channel, Content, Delta, EntryKind, Event, Hash, HashedState, Message, Position, Role, Seq, SessionId,
    TimelineId,
};
use serde_json::{Map, Value, json};

use super::Store;
use super::append::Claim;
use super::fold::{self, event};
use super::pages::PAGE;
use super::read::encode_keyframe;
use super::writer::Changes;
use crate::backend::{BlobId, Range, Timeline};
use crate::codec::{self, Codec};
use crate::error::{Error, KeyError, Result};

/// What to look for: given a text, the text without the secret, or none when it has none.
#[derive(Clone)]
pub struct Redactor(Arc<Find>);

type Find = dyn Fn(&str) -> Option<String> + Send + Sync;

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// Looks for what `f` finds.
    pub fn new(f: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    /// Looks for one text and puts another in its place.
    pub fn literal(secret: impl Into<String>, instead: impl Into<String>) -> Result<Self> {
        let (secret, instead) = (secret.into(), instead.into());
        if secret.is_empty() {
            return Err(Error::invalid("the secret", "it is empty: name the text to erase"));
        }
        if instead.contains(&secret) {
            return Err(Error::invalid("the replacement", "it contains the secret: use another"));
        }
        Ok(Self::new(move |text| text.contains(&secret).then(|| text.replace(&secret, &instead))))
    }

    /// A text without what is looked for; none when it has none of it.
    pub fn clean(&self, text: &str) -> Option<String> {
        (self.0)(text)
    }

    fn text(&self, text: &mut String) -> bool {
        match (self.0)(text) {
            Some(clean) => {
                *text = clean;
                true
            }
            None => false,
        }
    }

    fn map(&self, map: &mut Map<String, Value>) -> bool {
        let mut found = false;
        for value in map.values_mut() {
            found |= self.value(value);
        }
        let renamed: Vec<(String, String)> =
            map.keys().filter_map(|key| (self.0)(key).map(|clean| (key.clone(), clean))).collect();
        for (key, clean) in renamed {
            if let Some(value) = map.remove(&key) {
                map.insert(clean, value);
            }
            found = true;
        }
        found
    }

    fn value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter_mut().fold(false, |found, item| self.value(item) | found),
            Value::Object(map) => self.map(map),
            _ => false,
        }
    }

    fn message(&self, message: &mut Message) -> bool {
        let mut found = self.map(&mut message.extra);
        if let Role::Other(name) = &mut message.role {
            found |= self.text(name);
        }
        if let Some(clean) = (!message.channel.is_main()).then(|| (self.0)(message.channel.as_str())).flatten() {
            // What is put in its place may not be a name.
            message.channel = Channel::new(clean).or_else(|_| Channel::new("redacted")).unwrap_or_default();
            found = true;
        }
        match &mut message.content {
            Content::Text(text) => found |= self.text(text),
            Content::Blocks(blocks) => {
                for block in blocks {
                    // A block is a JSON object; what it becomes is read again as a block.
                    let mut value = serde_json::to_value(&*block).unwrap_or_default();
                    if self.value(&mut value) {
                        *block = Block::from(value);
                        found = true;
                    }
                }
            }
        }
        found
    }

    fn event(&self, event: &mut Event) -> bool {
        let is_known = event::OWN.contains(&event.kind.as_str());
        self.map(&mut event.data) | (!is_known && self.text(&mut event.kind))
    }

    /// Whether a delta holds it, also in what later parts of the delta take away again.
    fn is_in_delta(&self, delta: &Delta) -> bool {
        delta.changes().any(|(path, change)| {
            let in_path = path.parts().iter().any(|part| match part {
                PathPart::Key(key) => (self.0)(key).is_some(),
                PathPart::Index(_) => false,
            });
            in_path || self.value(&mut change_value(change))
        })
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
    /// Blobs that are no entry's payload (files) and hold it: they cannot be changed without changing
    /// their name. Delete what refers to them.
    pub blobs: Vec<BlobId>,
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
}

impl Store {
    /// Erases what `redactor` finds from everything stored in this workspace. With `dry_run` it only counts.
    pub async fn redact(&self, redactor: &Redactor, why: &str, claim: &Claim, dry_run: bool) -> Result<Redacted> {
        let mut redacted = Redacted::default();
        let mut old_blobs = Vec::new();
        // A branch comes before what it continues from, and gets a clean state of its own to begin with:
        // whenever this is interrupted, every session is either as it was or clean, and can be read.
        let rows = self.all_sessions().await?;
        let order = self.parents_first(rows.iter().map(|row| row.id).collect()).await?;
        let mut is_changed = false;
        for id in order.iter().rev().copied() {
            let found = match self.find(id, redactor).await {
                Ok(found) => found,
                Err(Error::Key(KeyError::Shredded { .. })) => continue,
                Err(error) => return Err(error),
            };
            if found.entries + found.checkpoints + found.keyframes == 0 {
                continue;
            }
            is_changed = true;
            redacted.sessions.push(id);
            redacted.entries += found.entries;
            redacted.checkpoints += found.checkpoints;
            if !dry_run {
                old_blobs.extend(self.replace(id, found, why, claim).await?);
            }
        }
        redacted.records = self.redact_records(redactor, dry_run).await?;
        is_changed |= redacted.records > 0;
        if is_changed && !dry_run {
            self.redact_rows(&order, redactor, claim).await?;
            let soon = self.source().now().plus_ms(1);
            self.inner.backend.drop_blobs(self.workspace(), old_blobs, soon).await?;
            self.inner.backend.compact().await?;
        }
        redacted.blobs = self.find_in_blobs(redactor).await?;
        Ok(redacted)
    }

    /// What a list shows of a branch may come from what it continues: once that is clean, so is the row.
    async fn redact_rows(&self, order: &[SessionId], redactor: &Redactor, claim: &Claim) -> Result<()> {
        for id in order {
            let codec = match self.codec(*id).await {
                Err(Error::Key(KeyError::Shredded { .. })) => continue,
                other => other?,
            };
            let session = fold::session_from_row(&codec, &self.head(*id).await?.row)?;
            let mut value = serde_json::to_value(&session).unwrap_or_default();
            if redactor.value(&mut value) {
                // Whoever writes to it remembers what was there: the lease keeps them from writing it again.
                let writer = self.write(*id, claim).await?;
                let derived = self.derive(*id).await?;
                self.inner.backend.rebuild(self.workspace(), derived.row, derived.marks).await?;
                writer.release().await?;
            }
        }
        Ok(())
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
                    Some(Body::Event(mut event)) => redactor.event(&mut event).then_some(Body::Event(event)),
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
                        let mut value = serde_json::to_value(&mark).unwrap_or_default();
                        let in_mark = redactor.value(&mut value);
                        if in_mark {
                            mark = serde_json::from_value(value).map_err(|_| {
                                Error::invalid(
                                    "the secret",
                                    "it also occurs in a checkpoint's own fields: name more of the secret",
                                )
                            })?;
                        }
                        let changed = in_mark || mark.state != hash;
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

    async fn replace(&self, id: SessionId, found: Found, why: &str, claim: &Claim) -> Result<Vec<BlobId>> {
        let writer = self.write(id, claim).await?;
        let data = json!({ "why": why, "entries": found.entries, "replaced": found.replaced });
        writer.rewrite(Event::new(event::REDACTED, data), found.change).await?;
        // Titles and previews may have held it: derive the rows anew now that the entries are clean.
        let derived = self.derive(id).await?;
        self.inner.backend.rebuild(self.workspace(), derived.row, derived.marks).await?;
        writer.release().await?;
        Ok(found.old_blobs)
    }

    async fn redact_records(&self, redactor: &Redactor, dry_run: bool) -> Result<u64> {
        let mut count = 0;
        for kind in self.inner.backend.record_kinds(self.workspace()).await? {
            if kind == crate::keys::KEY_KIND {
                continue;
            }
            let mut after: Option<String> = None;
            loop {
                let page = self.records(&kind, after.as_deref(), PAGE).await?;
                for record in &page {
                    let Ok(text) = std::str::from_utf8(&record.value) else { continue };
                    let Some(clean) = (redactor.0)(text) else { continue };
                    count += 1;
                    if !dry_run {
                        self.put_record(&kind, &record.key, Some(record.version), record.due, clean.as_bytes()).await?;
                    }
                }
                match page.last() {
                    Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
                    _ => break,
                }
            }
        }
        Ok(count)
    }

    async fn find_in_blobs(&self, redactor: &Redactor) -> Result<Vec<BlobId>> {
        let mut found = Vec::new();
        if self.is_encrypted() {
            // Their content is sealed under their sessions' keys; entries' payloads were looked at above.
            return Ok(found);
        }
        let codec = self.codec_with(SessionId::from_bytes([0; 16]), None);
        let mut after = None;
        loop {
            let page = self.inner.backend.list_blobs(self.workspace(), after, PAGE).await?;
            let full = page.len() == PAGE;
            after = page.last().map(|info| info.id);
            for info in page {
                let stored = self.inner.backend.get_blobs(self.workspace(), vec![info.id]).await?;
                let Some(stored) = stored.into_iter().flatten().next() else { continue };
                let Ok(plain) = codec.open_blob(info.id, &stored) else { continue };
                if (redactor.0)(&String::from_utf8_lossy(&plain)).is_some() {
                    found.push(info.id);
                }
            }
            if !full {
                return Ok(found);
            }
        }
    }
}

/// The texts of a change, as a value to look into.
fn change_value(change: Change<'_>) -> Value {
    match change {
        Change::Set(value) => value.clone(),
        Change::Append(items) | Change::Splice { insert: items, .. } => Value::Array(items.to_vec()),
        Change::AppendStr(text) | Change::SpliceStr { insert: text, .. } => Value::String(text.to_owned()),
        _ => Value::Null,
    }
}
