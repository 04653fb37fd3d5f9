//! What children told of acknowledgements, and whether a store keeps all of it.

use std::collections::{BTreeMap, BTreeSet};

use milepost_model::{CheckpointId, Hash, Message, Position, Seq, SessionId, TimelineId, hash_value};
use milepost_store::{Error, MarkQuery, MessageQuery, SessionQuery, Store};
use serde_json::Value;

/// One acknowledged append.
#[derive(Debug, Clone)]
pub struct Ack {
    pub session: SessionId,
    pub timeline: TimelineId,
    pub first: u64,
    pub length: u64,
    /// Of its messages.
    pub messages: Hash,
    /// Of the state after it, where that is known.
    pub state: Option<Hash>,
    pub mark: Option<CheckpointId>,
}

/// The hash of messages, in order.
pub fn hash_messages<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for message in messages {
        // Without the detour over JSON, which takes long in a debug build.
        hasher.update(message.role.as_str().as_bytes()).update(message.text().as_bytes());
    }
    Hash(*hasher.finalize().as_bytes())
}

pub fn hash_state(state: &Value) -> Hash {
    Hash(hash_value(state))
}

impl Ack {
    pub fn line(&self) -> String {
        let text = |option: Option<String>| option.unwrap_or_else(|| "-".to_owned());
        let state = text(self.state.map(|hash| hash.to_string()));
        let mark = text(self.mark.map(|id| id.to_string()));
        let Self { session, timeline, first, length, messages, .. } = self;
        format!("ack {session} {timeline} {first} {length} {messages} {state} {mark}")
    }

    fn parse(words: &[&str]) -> Option<Self> {
        let [session, timeline, first, length, messages, state, mark] = words else { return None };
        Some(Self {
            session: session.parse().ok()?,
            timeline: timeline.parse().ok()?,
            first: first.parse().ok()?,
            length: length.parse().ok()?,
            messages: messages.parse().ok()?,
            state: state.parse().ok(),
            mark: mark.parse().ok(),
        })
    }
}

/// Everything that was told.
#[derive(Debug, Clone, Default)]
pub struct Told {
    pub acks: Vec<Ack>,
    /// The newest acknowledged value of each record.
    pub records: BTreeMap<String, u64>,
    /// Sessions whose old checkpoints may have been erased.
    pub purged: BTreeSet<SessionId>,
    /// Sessions that may be gone.
    pub deleting: BTreeSet<SessionId>,
    /// Sessions that must be gone.
    pub deleted: BTreeSet<SessionId>,
    /// What children complained of.
    pub problems: Vec<String>,
    /// Appends that were refused.
    pub failures: Vec<String>,
}

impl Told {
    pub fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["ack", rest @ ..] => self.acks.push(Ack::parse(rest).unwrap_or_else(|| panic!("odd line {line:?}"))),
            ["record", key, value] => {
                self.records.insert((*key).to_owned(), value.parse().unwrap());
            }
            ["purging", id] => {
                self.purged.insert(id.parse().unwrap());
            }
            ["deleting", id] => {
                self.deleting.insert(id.parse().unwrap());
            }
            ["deleted", id] => {
                self.deleted.insert(id.parse().unwrap());
            }
            ["problem", ..] => self.problems.push(line.to_owned()),
            ["fail", ..] => self.failures.push(line.to_owned()),
            _ => {}
        }
    }

    pub fn hear_all<'a>(lines: impl IntoIterator<Item = &'a String>) -> Self {
        let mut told = Self::default();
        lines.into_iter().for_each(|line| told.hear(line));
        told
    }

    /// Whether the store keeps everything that was told from acknowledgement `since` on, and every session is readable.
    pub async fn check(&self, store: &Store, since: usize) -> Result<(), String> {
        if let Some(problem) = self.problems.first() {
            return Err(problem.clone());
        }
        let mut lines: BTreeMap<TimelineId, Vec<&Ack>> = BTreeMap::new();
        for ack in self.acks[since..].iter().filter(|ack| !self.deleting.contains(&ack.session)) {
            lines.entry(ack.timeline).or_default().push(ack);
        }
        for (timeline, acks) in lines {
            self.check_line(store, timeline, &acks).await?;
        }
        for (key, value) in &self.records {
            let found = store.record("test", key).await.map_err(|e| format!("LOST record {key}: {e}"))?;
            let found: u64 = found.and_then(|r| String::from_utf8(r.value).ok()?.parse().ok()).unwrap_or(0);
            if found < *value {
                return Err(format!("LOST record {key}: {value} was acknowledged, {found} is there"));
            }
        }
        for id in &self.deleted {
            if !matches!(store.session(*id).await, Err(Error::NotFound { .. })) {
                return Err(format!("UNDEAD session {id} was deleted"));
            }
        }
        self.check_readable(store).await
    }

    async fn check_line(&self, store: &Store, timeline: TimelineId, acks: &[&Ack]) -> Result<(), String> {
        let end = acks.iter().map(|ack| ack.length).max().unwrap_or(1);
        let begin = acks.iter().map(|ack| ack.first).min().unwrap_or(0);
        let last = Position { timeline, seq: Seq(end - 1) };
        let query = MessageQuery { from: Some(Seq(begin)), ..MessageQuery::default() };
        let found = store.messages_at(last, &query).await.map_err(|e| format!("UNREADABLE {last}: {e}"))?;
        for ack in acks {
            let own = found
                .iter()
                .filter(|m| m.at.timeline == timeline && (ack.first..ack.length).contains(&m.at.seq.0))
                .map(|m| &m.message);
            if hash_messages(own) != ack.messages {
                return Err(format!("LOST messages of {ack:?}"));
            }
        }
        // A state depends on all state changes before it: the last few stand for all.
        let with_state = acks.iter().filter(|ack| ack.state.is_some());
        let newest = with_state.clone().next_back();
        let newest_mark = acks.iter().rfind(|ack| ack.mark.is_some());
        let sampled = with_state.step_by(1 + acks.len() / 3);
        for ack in sampled.chain(newest).chain(newest_mark) {
            self.check_state(store, ack).await?;
        }
        Ok(())
    }

    async fn check_state(&self, store: &Store, ack: &Ack) -> Result<(), String> {
        let may_be_gone = self.purged.contains(&ack.session);
        let at = Position { timeline: ack.timeline, seq: Seq(ack.length - 1) };
        match store.state_at(at).await.map(|state| hash_state(&state.into_value())) {
            Ok(hash) if ack.state.is_none_or(|known| known == hash) => {}
            Ok(_) => return Err(format!("WRONG state at {at}")),
            Err(Error::Pruned { .. }) if may_be_gone => {}
            Err(error) => return Err(format!("LOST {at}: {error}")),
        }
        let Some(id) = ack.mark else { return Ok(()) };
        match store.load(id).await {
            Ok(loaded) if loaded.mark.at == at && Some(loaded.mark.checkpoint.state) == ack.state => Ok(()),
            Ok(_) => Err(format!("WRONG checkpoint {id}")),
            Err(Error::NotFound { .. } | Error::Pruned { .. }) if may_be_gone => Ok(()),
            Err(error) => Err(format!("LOST checkpoint {id}: {error}")),
        }
    }

    /// Every session can be listed, read to its end, and resumed from its newest checkpoint.
    async fn check_readable(&self, store: &Store) -> Result<(), String> {
        let page = store.sessions(&SessionQuery::default()).await.map_err(|e| format!("UNREADABLE list: {e}"))?;
        for session in page.sessions {
            check_session(store, session.id).await?;
        }
        Ok(())
    }
}

/// Whether a session can be read to its end and resumed from its newest checkpoint.
pub async fn check_session(store: &Store, id: SessionId) -> Result<(), String> {
    let unreadable = |error: Error| format!("UNREADABLE session {id}: {error}");
    let last = MessageQuery { last: Some(20), ..MessageQuery::default() };
    store.messages(id, &last).await.map_err(unreadable)?;
    store.state(id).await.map_err(unreadable)?;
    match store.load_latest(id, &MarkQuery::default()).await {
        Ok(loaded) if loaded.skipped.is_empty() => Ok(()),
        Ok(loaded) => Err(format!("SKIPPED {:?} in session {id}", loaded.skipped)),
        Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(unreadable(error)),
    }
}

/// Whether a full verification finds nothing.
pub async fn check_whole(store: &Store) -> Result<(), String> {
    let verified = store.verify().await.map_err(|e| format!("UNVERIFIED {e}"))?;
    match verified.problems.first() {
        None => Ok(()),
        Some(first) => Err(format!("DAMAGED {} problems, the first: {first:?}", verified.problems.len())),
    }
}
