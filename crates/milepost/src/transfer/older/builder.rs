//! A session put together from what was found, and written like one that comes from a bundle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use milepost_model::{
    Body, Branch, Channel, Checkpoint, CheckpointId, Delta, Entry, Event, Hash, HashedState, Position, Resumable, Seq,
    SessionId, SessionPatch, Status, TimelineId, Timestamp, Trigger,
};
use milepost_store::{Claim, Store};
use serde_json::{Map, Value, json};

use super::kept_files::Kept;
use super::say::{Said, said};
use crate::chapter;
use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::project::{Owner, Projects};
use crate::redaction::{self, Secret};
use crate::transfer::incoming::Incoming;
use crate::transfer::outgoing::{BRANCHED, BRANCHED_FROM, COPIED_FROM, Line, Piece, PieceEntry};
use crate::transfer::triggers;
use crate::transfer::written::{self, AS_WRITTEN, IMPORTED_ID};
use crate::transfer::{Ids, ImportOptions, Imported, ORIGINAL_ID, OnProgress, Progress, derived};

/// The longest name that is taken over: what the store allows.
const MAX_NAME: usize = 1 << 10;
/// Where a session says what it was made of.
pub(super) const IMPORTED_HASH: &str = "imported_hash";

/// A checkpoint that was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub id: Option<String>,
    pub time: Option<Timestamp>,
    pub trigger: String,
    pub label: Option<String>,
    pub description: Option<String>,
    pub is_unclean: bool,
    pub is_final: bool,
    pub extra: Map<String, Value>,
    /// What its document said in words that it has none for.
    pub written: Option<(&'static str, Map<String, Value>)>,
}

/// What becomes a session's log.
struct Log {
    begins: Timestamp,
    entries: Vec<(Option<Timestamp>, Body)>,
    /// So many of them, from the first, are older than the branch that the session is.
    shared: usize,
    is_branch: bool,
}

/// A session in the making.
pub(super) struct Builder {
    pub original: String,
    pub patch: SessionPatch,
    pub created: Option<Timestamp>,
    /// When it was last at work, where nothing else says so.
    pub updated: Option<Timestamp>,
    from: String,
    max_messages: u64,
    entries: Vec<(Option<Timestamp>, Body)>,
    said: Vec<blake3::Hash>,
    counts: BTreeMap<Channel, u64>,
    state: Value,
    marks: u64,
    seen: Vec<(Option<String>, Option<Timestamp>)>,
    engine: Option<Milepost>,
    /// Secrets that a vault is to keep, by their ids.
    secrets: BTreeMap<String, Secret>,
    /// Kinds of secrets that were taken out.
    kinds: BTreeSet<String>,
    pub notes: Vec<String>,
    /// What documents say of the session as a whole, by what they are.
    as_written: Map<String, Value>,
    beside: Kept,
}

impl Builder {
    pub fn new(original: String, options: &ImportOptions) -> Self {
        let mut patch = SessionPatch::new();
        if let Some(project) = &options.project {
            patch = patch.project(project);
        }
        Self {
            original,
            patch,
            created: None,
            updated: None,
            from: options.name(),
            max_messages: options.limits.max_messages,
            entries: Vec::new(),
            said: Vec::new(),
            counts: BTreeMap::new(),
            state: json!({}),
            marks: 0,
            seen: Vec::new(),
            engine: options.engine.clone(),
            secrets: BTreeMap::new(),
            kinds: BTreeSet::new(),
            notes: Vec::new(),
            as_written: Map::new(),
            beside: Kept::default(),
        }
    }

    /// Takes a file that lies beside the session: an artifact, or its log when it has no name.
    pub fn take_beside(&mut self, name: Option<&str>, path: &Path) -> Result<()> {
        let mut kept = std::mem::take(&mut self.beside);
        let taken = kept.take(self, name, path);
        self.beside = kept;
        taken
    }

    /// Keeps what a document said of the session as a whole.
    pub fn keep_written(&mut self, document: &str, mut said: Value) {
        self.redact(&mut said);
        let size = |value: &Value| value.to_string().len();
        let kept: usize = self.as_written.values().map(size).sum();
        if kept + size(&said) > written::MAX_BYTES {
            let max = written::MAX_BYTES;
            return self.note(format!("what its {document} says besides is more than {max} bytes: left out"));
        }
        self.as_written.insert(document.to_owned(), said);
    }

    pub fn refuse(&self, why: impl Into<String>) -> Error {
        Error::import(&*self.from, format!("session {:?}: {}", self.original, why.into()))
    }

    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn found(&mut self, found: Vec<Secret>) {
        for secret in found {
            self.kinds.insert(secret.kind.clone());
            if let Some(id) = secret.id.clone() {
                self.secrets.insert(id, secret);
            }
        }
    }

    /// Takes the secrets out of a value.
    fn redact(&mut self, value: &mut Value) {
        let found = self.engine.as_ref().map(|engine| engine.redaction().value(value));
        self.found(found.unwrap_or_default());
    }

    pub fn redacted(&mut self, text: String) -> String {
        let mut value = Value::String(text);
        self.redact(&mut value);
        match value {
            Value::String(text) => text,
            other => other.to_string(),
        }
    }

    /// The content of a file without its secrets.
    pub fn redacted_bytes(&mut self, content: Vec<u8>) -> Vec<u8> {
        match self.engine.as_ref().and_then(|engine| engine.redaction().bytes(&content)) {
            Some((clean, found)) => {
                self.found(found);
                clean
            }
            None => content,
        }
    }

    /// Sets a field of what a list shows, when it can be shown.
    pub fn set(&mut self, key: &str, value: Option<&Value>) {
        let Some(text) = value.and_then(Value::as_str).filter(|text| !text.is_empty()) else { return };
        let text = &*self.redacted(text.to_owned());
        if text.len() > MAX_NAME || text.contains('\0') {
            return self.note(format!("its {key} is too long, or has a NUL character: left out"));
        }
        if key == "status" && Status::from_name(text).is_none() {
            return self.note(format!("its status {text:?} is none that is known: left out"));
        }
        self.patch.0.insert(key.to_owned(), Value::String(text.to_owned()));
    }

    /// Sets when the session began, unless that is known.
    pub fn begin(&mut self, time: Option<Timestamp>) {
        self.created = self.created.or(time);
    }

    /// Takes what a checkpoint of ours says of the session that its own branched from.
    pub fn branch(&mut self, map: &mut Map<String, Value>) {
        let from = json!({ "session": map.get("parentSessionId"), "at": map.get("branchPoint") });
        if self.original.parse::<SessionId>().is_ok() && serde_json::from_value::<Branch>(from.clone()).is_ok() {
            ["parentSessionId", "branchPoint"].iter().for_each(|key| drop(map.remove(*key)));
            self.patch.0.insert(BRANCHED_FROM.into(), from);
        }
    }

    /// Messages of a whole conversation: those that are not there yet are added.
    pub fn conversation(&mut self, list: Vec<Value>) -> Result<()> {
        let mut read = Vec::with_capacity(list.len());
        for (number, value) in list.into_iter().enumerate() {
            read.push(said(value).map_err(|why| self.refuse(format!("message {number}: {why}")))?);
        }
        let known = self.said.len();
        let common = read.iter().zip(&self.said).take_while(|(said, known)| fingerprint(said) == **known).count();
        if common < known.min(read.len()) {
            self.note(format!("message {common} differs between checkpoints: the older one was kept"));
        }
        read.into_iter().skip(known).try_for_each(|said| self.message(said))
    }

    pub fn message(&mut self, mut said: Said) -> Result<()> {
        if self.said.len() as u64 >= self.max_messages {
            return Err(self.refuse(format!("it has more than {} messages, the limit max_messages", self.max_messages)));
        }
        // Compared as it was read, kept without its secrets.
        self.said.push(fingerprint(&said));
        let found = self.engine.as_ref().map(|engine| engine.redaction().message(&mut said.message));
        self.found(found.unwrap_or_default());
        *self.counts.entry(said.message.channel.clone()).or_default() += 1;
        self.entries.push((said.time, Body::Message(said.message)));
        Ok(())
    }

    /// How many messages a channel has.
    pub fn count(&self, channel: &Channel) -> u64 {
        self.counts.get(channel).copied().unwrap_or(0)
    }

    pub fn state(&self) -> Value {
        self.state.clone()
    }

    /// The state from here on. Sections that are empty are not there.
    pub fn set_state(&mut self, time: Option<Timestamp>, mut state: Value) -> Result<()> {
        if let Value::Object(map) = &mut state {
            map.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
            map.get_mut("summary").map(chapter::leave_log);
        }
        self.redact(&mut state);
        let delta = Delta::diff(&self.state, &state).map_err(|error| self.refuse(error.to_string()))?;
        if !delta.is_empty() {
            self.entries.push((time, Body::State(delta)));
            self.state = state;
        }
        Ok(())
    }

    /// Whether this checkpoint was met before: the latest is often there twice.
    pub fn is_seen(&self, found: &Found) -> bool {
        self.seen.iter().any(|(id, time)| *id == found.id && *time == found.time)
    }

    pub fn mark(&mut self, found: Found) {
        self.seen.push((found.id.clone(), found.time));
        self.marks += 1;
        let fits = |text: &String| text.len() <= MAX_NAME && !text.contains('\0');
        let mut extra = found.extra;
        for key in ["id", "number", "trigger", "label", "description", "clean", "resumable", "counts", "state"] {
            extra.remove(key);
        }
        let id = found.id.as_deref().and_then(|id| id.parse::<CheckpointId>().ok());
        if let (None, Some(original)) = (id, found.id) {
            extra.insert(ORIGINAL_ID.into(), original.into());
        }
        let is_ours = id.is_some() && self.original.parse::<SessionId>().is_ok();
        if let Some((layout, mut document)) = found.written {
            // What we wrote follows from the checkpoint, but for its number where older ones were pruned.
            let number = Value::from(self.marks);
            document.retain(|key, value| {
                !is_ours || (["checkpointNumber", "stepNumber"].contains(&key.as_str()) && *value != number)
            });
            if !document.is_empty() {
                extra.insert(AS_WRITTEN.into(), written::of_mark(layout, document));
            }
        }
        let mut extra = Value::Object(extra);
        self.redact(&mut extra);
        let trigger = self.redacted(found.trigger);
        let label = found.label.map(|label| self.redacted(label));
        let description = found.description.map(|description| self.redacted(description));
        let mut mark = Checkpoint::new(id.unwrap_or(CheckpointId::from_bytes([0; 16])), Trigger::Interval);
        mark.number = self.marks;
        mark.trigger = if fits(&trigger) { triggers::nearest(&trigger) } else { Trigger::Interval };
        mark.label = label.filter(fits);
        mark.description = description;
        mark.clean = !found.is_unclean;
        mark.resumable = match found.is_final {
            true => Resumable::No("it could not be resumed from where it came from".into()),
            false => Resumable::Yes,
        };
        mark.counts = self.counts.clone();
        mark.state = Hash(HashedState::new(self.state.clone()).hash());
        if let Value::Object(extra) = extra {
            mark.extra = extra;
        }
        self.entries.push((found.time, Body::Mark(mark)));
    }

    /// Gives a session that had no checkpoints one to go on from.
    pub fn end(&mut self) {
        if self.marks == 0 {
            let description = Some("as it was imported".to_owned());
            let (time, trigger) = (self.updated, "initial".to_owned());
            self.mark(Found { time, trigger, description, ..Found::default() });
        }
    }

    /// The id that it brought along and keeps.
    pub fn own_id(&self, options: &ImportOptions) -> Option<SessionId> {
        self.original.parse().ok().filter(|_| options.ids == Ids::Preserve)
    }

    /// What it was called, as a session can say it.
    pub fn imported_id(&self) -> Option<String> {
        let name = self.engine.as_ref().map(|engine| engine.redaction().text(&self.original));
        let name = name.unwrap_or_else(|| self.original.clone());
        (name.len() <= MAX_NAME && !name.contains('\0')).then_some(name)
    }

    /// What it is made of, without its secrets and whatever project it is put into.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("milepost 1 imported session");
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_be_bytes()).update(bytes);
        };
        part(self.original.as_bytes());
        for (key, value) in self.patch.0.iter().filter(|(key, _)| !["project", AS_WRITTEN].contains(&key.as_str())) {
            part(key.as_bytes());
            part(value.to_string().as_bytes());
        }
        for (time, body) in &self.entries {
            part(&time.map(|time| time.0.to_be_bytes()).unwrap_or_default());
            match body {
                Body::Message(message) => part(&serde_json::to_vec(message).unwrap_or_default()),
                Body::State(delta) => part(&delta.encode()),
                Body::Mark(mark) => {
                    // What is only kept to be written again makes no other session.
                    let mut mark = mark.clone();
                    mark.extra.remove(AS_WRITTEN);
                    part(&serde_json::to_vec(&mark).unwrap_or_default());
                }
                Body::Event(event) => part(&serde_json::to_vec(event).unwrap_or_default()),
            }
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    /// Writes the session; whole, or nothing of it.
    pub async fn write(
        mut self,
        store: &Store,
        options: &ImportOptions,
        claim: &Claim,
        progress: OnProgress<'_>,
    ) -> Result<Imported> {
        let own = self.own_id(options);
        let hash = self.hash();
        let id = match own {
            Some(id) => id,
            // An import of the same that was stopped is begun anew, in its place.
            None => store.unfinished_of(hash.as_bytes()).await?.unwrap_or_else(|| store.source().id()),
        };
        if let (None, Some(name)) = (own, self.imported_id()) {
            self.patch.0.insert(IMPORTED_ID.into(), name.into());
        }
        self.patch.0.insert(IMPORTED_HASH.into(), hash.clone().into());
        if let Some(engine) = &self.engine {
            engine.redaction().patch(&mut self.patch)?;
            // Before anything names them.
            redaction::keep(engine, std::mem::take(&mut self.secrets).into_values().collect()).await?;
        }
        if !self.kinds.is_empty() {
            let kinds = std::mem::take(&mut self.kinds).into_iter().collect::<Vec<_>>().join(", ");
            self.note(format!("secrets were taken out before it was stored: {kinds}"));
        }
        let log = self.log(store.source().now());
        let mut incoming = Incoming::new(store, id, Ids::Preserve, claim);
        incoming.made_of = hash;
        let last = match self.put(&mut incoming, log, store, options, progress).await {
            Ok(last) => last,
            Err(error) => {
                incoming.discard().await?;
                return Err(error);
            }
        };
        // Beside the session before it is shown: nobody finds it without.
        if let Err(error) = std::mem::take(&mut self.beside).write(store, id, &self.state, last).await {
            Projects::open(store).await?.forget(&Owner::Session(id)).await?;
            incoming.discard().await?;
            return Err(error);
        }
        let imported = Box::pin(incoming.finish()).await?;
        Ok(Imported { original: self.original, notes: self.notes, ..imported })
    }

    /// The log, with what tells of the session as a whole.
    fn log(&mut self, now: Timestamp) -> Log {
        let told = self.entries.iter().find_map(|(time, _)| *time);
        let created = self.created.or(told).unwrap_or(now).min(now);
        // A branch has messages that are older than it is.
        let begins = told.unwrap_or(created).min(created);
        let is_older = |(time, _): &&(Option<Timestamp>, Body)| time.is_none_or(|time| time < created);
        let is_branch = self.patch.0.contains_key(BRANCHED_FROM);
        let from = self.patch.0.get(BRANCHED_FROM).filter(|_| begins < created).cloned();
        let older = from.as_ref().map_or(0, |_| self.entries.iter().take_while(is_older).count());
        if !self.as_written.is_empty() {
            // The time of the last entry, as it is written.
            let step = |last: Timestamp, time: &Option<Timestamp>| time.unwrap_or(last).min(now).max(last);
            let begun = if older > 0 { created } else { begins };
            let active = self.entries.iter().fold(begun, |last, (time, _)| step(last, time));
            let kept = written::of_session(active.unix_ms(), std::mem::take(&mut self.as_written));
            self.patch.0.insert(AS_WRITTEN.into(), kept);
        }
        let (mut set, mut entries) = (std::mem::take(&mut self.patch), std::mem::take(&mut self.entries));
        if let Some(from) = from {
            // As in any copy of a branch: the session was created where it left its parent.
            let data = json!({ "session": from["session"], "from": from["at"], "set": std::mem::take(&mut set) });
            entries.insert(older, (Some(created), Body::Event(Event::new(BRANCHED, data))));
        }
        entries.insert(0, (Some(begins), Body::Event(Event::new("session", json!({ "set": set })))));
        Log { begins, entries, shared: if older > 0 { older + 1 } else { 0 }, is_branch }
    }

    /// Writes the log. Returns the time of its last entry.
    async fn put(
        &mut self,
        incoming: &mut Incoming<'_>,
        log: Log,
        store: &Store,
        options: &ImportOptions,
        progress: OnProgress<'_>,
    ) -> Result<Timestamp> {
        let (now, total) = (store.source().now(), log.entries.len());
        let mut timeline: TimelineId = store.source().id();
        let end = Seq(if log.shared > 0 { log.shared } else { total } as u64);
        incoming.take(Piece::Line(Line { id: timeline, parent: None, end })).await?;
        let mut last = log.begins;
        for (number, (time, mut body)) in log.entries.into_iter().enumerate() {
            let seq = Seq(number as u64);
            if number > 0 && number == log.shared {
                let parent = Some(Position { timeline, seq: Seq(seq.0 - 1) });
                timeline = store.source().id();
                incoming.take(Piece::Line(Line { id: timeline, parent, end: Seq(total as u64) })).await?;
            }
            if let Some(time) = time.filter(|time| *time < last || *time > now) {
                self.note(format!("some times lie before the message before, or in the future ({time}): moved"));
                // The log's time never goes back; what the message said of it stays with it.
                if let Body::Message(message) = &mut body {
                    message.extra.entry("timestamp").or_insert_with(|| time.to_string().into());
                }
            }
            last = time.unwrap_or(last).min(now).max(last);
            if let Body::Mark(mark) = &mut body {
                if options.ids == Ids::Remap || mark.id.to_bytes() == [0; 16] {
                    mark.id = store.source().id();
                } else if log.is_branch
                    && !mark.extra.contains_key(COPIED_FROM)
                    && (number < log.shared || store.backend().mark(store.workspace(), mark.id).await?.is_some())
                {
                    // The session that it branched from has one of this id; also one taken when the branch was made.
                    mark.extra.insert(COPIED_FROM.into(), mark.id.to_string().into());
                    mark.id = derived(incoming.session(), mark.id);
                }
            }
            progress(Progress { entries: seq.0, entries_total: total as u64 });
            let entry = Entry { at: Position { timeline, seq }, time: last, kind: body.kind(), body: Some(body) };
            let piece = Piece::Entry(Box::new(PieceEntry { entry, blobs: Vec::new(), whole: None }));
            incoming.take(piece).await?;
        }
        Ok(last)
    }
}

fn fingerprint(said: &Said) -> blake3::Hash {
    blake3::hash(&serde_json::to_vec(&said.message).unwrap_or_default())
}
