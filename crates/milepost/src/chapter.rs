//! Chapters: where the conversation given to a model begins. Compaction starts a new one with a summary; the messages
//! before it stay, and it can be undone.
//!
//! The summary in force is a section of the state, with how many messages come before the conversation after it (a number
//! that holds wherever the session is copied to) and the summaries before it. So a rewind brings back the summary of its moment, and undoing is taking back the one before.

use milepost_context::compact::{CompactionPlan, Source, Summarizer, Summary, prepare};
use milepost_context::tokens::Tokenizer;
use milepost_model::{Channel, Event, Message, Seq, SessionId, State};
use milepost_store::{Append, MessageQuery, StoredMessage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::session::Session;

/// A new chapter began.
const CHAPTER: &str = "chapter";
/// The last chapter was undone.
const CHAPTER_UNDONE: &str = "chapter_undone";
/// So many earlier summaries are kept to go back to.
pub const KEPT_SUMMARIES: usize = 16;

/// How to compact.
#[derive(Debug, Clone)]
pub struct Compact {
    /// Facts that the summary must keep, word for word.
    pub pinned: Vec<String>,
    /// So many of the last messages stay as they are.
    pub keep_messages: usize,
}

impl Default for Compact {
    fn default() -> Self {
        Self { pinned: Vec::new(), keep_messages: 10 }
    }
}

/// What a compaction did, or would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chapter {
    /// The summary.
    pub summary: Summary,
    /// Messages that it stands for, beyond those that the one before stood for.
    pub messages: u64,
    /// The conversation begins after so many messages.
    pub before: u64,
    /// Which is at this entry.
    pub begins: Seq,
    /// Tokens of what it stands for.
    pub tokens_before: u64,
    /// Its own tokens.
    pub tokens_after: u64,
}

/// What one compaction dropped from requests. The messages stay in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropped {
    /// The version of the summary that it made.
    pub version: u64,
    /// The messages that the summary stands for and the one before did not.
    pub messages: Vec<StoredMessage>,
}

/// The section of the state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Kept {
    #[serde(flatten)]
    pub summary: Summary,
}

/// Fields of the section that are not the summary's own.
const BEGINS: &str = "begins";
const BEFORE: &str = "before";
const TOKENS: &str = "tokens";
const EARLIER: &str = "earlier";
const UPDATED: &str = "updatedAt";
const CREATED: &str = "createdAt";

/// Where the conversation after a summary begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    /// After so many messages of the main conversation.
    After(u64),
    /// At an entry of this log: of sections that were written before messages were counted.
    At(Seq),
}

impl Begins {
    fn of(section: &Value) -> Self {
        let number = |key: &str| section.get(key).and_then(Value::as_u64);
        match (number(BEFORE), number(BEGINS)) {
            (Some(before), _) => Begins::After(before),
            (None, Some(entry)) => Begins::At(Seq(entry)),
            (None, None) => Begins::After(0),
        }
    }

    /// The messages from there on of a session that has so many, and no more than the last `most`.
    fn query(self, total: u64, most: usize) -> MessageQuery {
        let (from, last) = match self {
            Begins::After(before) => (None, usize::try_from(total.saturating_sub(before)).unwrap_or(usize::MAX)),
            Begins::At(entry) => (Some(entry), usize::MAX),
        };
        MessageQuery { channel: Some(Channel::MAIN), from, last: Some(last.min(most)), ..MessageQuery::default() }
    }

    /// How many of these, which are all from the first on, come before.
    fn count(self, all: &[StoredMessage]) -> usize {
        match self {
            Begins::After(before) => usize::try_from(before).unwrap_or(usize::MAX).min(all.len()),
            Begins::At(entry) => all.partition_point(|stored| stored.at.seq < entry),
        }
    }
}

/// A section that is to hold in another log, where entries have other numbers.
pub(crate) fn leave_log(section: &mut Value) {
    let earlier = section.get_mut(EARLIER).and_then(Value::as_array_mut).map(Vec::as_mut_slice);
    earlier.unwrap_or_default().iter_mut().for_each(leave_log);
    if let Value::Object(map) = section
        && !map.contains_key(BEFORE)
    {
        map.remove(BEGINS);
    }
}

/// The summary in force, and where the conversation after it begins.
pub(crate) fn current(state: &State) -> (Option<Summary>, Begins) {
    let Some(section) = state.section("summary") else { return (None, Begins::After(0)) };
    let mut summary: Summary = match serde_json::from_value(section.clone()) {
        Ok(summary) => summary,
        // Someone else's section is left alone.
        Err(_) => return (None, Begins::After(0)),
    };
    for key in [BEGINS, BEFORE, TOKENS, EARLIER, UPDATED, CREATED] {
        summary.extra.remove(key);
    }
    let is_empty = summary == Summary::default();
    ((!is_empty).then_some(summary), Begins::of(section))
}

/// A compaction that waits for its summary.
#[derive(Debug, Clone)]
pub struct Planned {
    plan: CompactionPlan,
    stored: Vec<StoredMessage>,
    messages: Vec<Message>,
    version: u64,
    /// How many messages come before these.
    before: u64,
    tokenizer: Tokenizer,
}

impl Planned {
    /// What a model is asked. It answers in JSON and has no tools.
    pub fn prompt(&self) -> &str {
        &self.plan.prompt
    }

    /// The messages that go.
    pub fn going(&self) -> &[Message] {
        self.plan.messages(&self.messages)
    }

    pub(crate) fn ask(&self, summarizer: &dyn Summarizer) -> Result<String> {
        summarizer.summarize(self.plan.old.as_ref(), self.going(), &self.plan.pinned).map_err(|error| {
            Error::refused(
                "compacting",
                error.to_string(),
                "the conversation stays as it is: try again, or with another summarizer",
            )
        })
    }

    fn accept(&self, answer: &str) -> Result<Chapter> {
        let done = self.plan.accept(answer, &self.tokenizer).map_err(|error| {
            Error::refused(
                "compacting",
                error.to_string(),
                "the conversation stays as it is: try again, or with another summarizer",
            )
        })?;
        let begins = match self.stored.get(done.dropped.end) {
            Some(first) => first.at.seq,
            None => self.stored.last().map_or(Seq(0), |last| last.at.seq.next()),
        };
        Ok(Chapter {
            summary: done.summary,
            messages: done.dropped.len() as u64,
            before: self.before + done.dropped.end as u64,
            begins,
            tokens_before: done.tokens_before as u64,
            tokens_after: done.tokens_after as u64,
        })
    }
}

impl Milepost {
    /// Chooses what a compaction would summarise, and writes what a model is asked.
    pub async fn plan_compaction(&self, id: SessionId, how: &Compact) -> Result<Planned> {
        let state = self.store().state(id).await?;
        let (old, begins) = current(&state);
        let (stored, total) = self.conversation(id, begins, usize::MAX).await?;
        let before = match begins {
            Begins::After(before) => before.min(total),
            Begins::At(_) => total.saturating_sub(stored.len() as u64),
        };
        let messages: Vec<Message> = stored.iter().map(|stored| stored.message.clone()).collect();
        let source = Source { old: old.as_ref(), messages: &messages, pinned: &how.pinned, compacting: false };
        let tokenizer = self.tokenizer();
        let plan = prepare(&source, how.keep_messages, &tokenizer).map_err(|error| {
            Error::refused(format!("compacting session {id}"), error.to_string(), "add to it, or keep fewer messages")
        })?;
        Ok(Planned { plan, stored, messages, version: old.map_or(0, |old| old.version), before, tokenizer })
    }

    /// The last messages of the conversation after a summary, at most so many, and how many the session has in all.
    pub(crate) async fn conversation(
        &self,
        id: SessionId,
        begins: Begins,
        most: usize,
    ) -> Result<(Vec<StoredMessage>, u64)> {
        // Of one moment: what comes meanwhile must not push the first of them out.
        let (session, end) = self.store().session_and_end(id).await?;
        let total = session.counts.get(&Channel::MAIN).copied().unwrap_or(0);
        Ok((self.store().messages_at(end, &begins.query(total, most)).await?, total))
    }

    /// What a compaction by the built-in summarizer would give. Nothing is changed.
    pub async fn compact_preview(&self, id: SessionId, how: &Compact) -> Result<Chapter> {
        let planned = self.plan_compaction(id, how).await?;
        let answer = planned.ask(&milepost_context::compact::Extractive::default())?;
        planned.accept(&answer)
    }

    /// The messages that the summary in force stands for, by the compaction that dropped them, oldest first; none when
    /// no summary is in force. Where more than [`KEPT_SUMMARIES`] came before, the oldest of them are told as one.
    pub async fn dropped(&self, id: SessionId) -> Result<Vec<Dropped>> {
        let state = self.store().state(id).await?;
        let (Some(summary), begins) = current(&state) else { return Ok(Vec::new()) };
        let earlier = state.pointer("/summary/earlier").and_then(Value::as_array).map(Vec::as_slice);
        let version = |section: &Value| section.get("version").and_then(Value::as_u64).unwrap_or(0);
        let mut ends: Vec<(u64, Begins)> =
            earlier.unwrap_or_default().iter().map(|section| (version(section), Begins::of(section))).collect();
        ends.push((summary.version, begins));
        let (first, to) = match begins {
            Begins::After(before) => (Some(usize::try_from(before).unwrap_or(usize::MAX)), None),
            Begins::At(entry) => (None, Some(entry)),
        };
        let query = MessageQuery { channel: Some(Channel::MAIN), first, to, ..MessageQuery::default() };
        let mut left = self.store().messages(id, &query).await?;
        let mut all = Vec::new();
        for (version, end) in ends.into_iter().rev().filter(|(version, _)| *version > 0) {
            all.push((version, end, Vec::new()));
        }
        for at in 0..all.len() {
            let begins = all.get(at + 1).map_or(0, |(_, end, _)| end.count(&left));
            all[at].2 = left.split_off(begins);
        }
        all.reverse();
        Ok(all.into_iter().map(|(version, _, messages)| Dropped { version, messages }).collect())
    }

    /// A session's summary in force, for the session itself; none when it was never compacted.
    pub async fn own_summary(&self, id: SessionId) -> Result<Option<Summary>> {
        Ok(current(&self.store().state(id).await?).0)
    }

    /// A session's summary, for an agent of a kind that may read it.
    pub async fn read_summary(&self, id: SessionId, reader: &str) -> Result<Option<Summary>> {
        let session = self.store().session(id).await?;
        if !crate::project::may_read(reader, session.agent.as_deref(), self.summaries()) {
            return Err(Error::refused(
                format!("reading the summary of session {id}"),
                format!("agents of kind {reader:?} may not read those of {:?}", session.agent.unwrap_or_default()),
                "allow it with summaries.readers in the configuration",
            ));
        }
        self.own_summary(id).await
    }
}

impl Session {
    /// Compacts: a summary stands for all but the last messages. Committed only when the summary can be read, says
    /// something, keeps every pinned fact and is smaller than what it stands for.
    pub async fn compact(&self, how: &Compact, summarizer: &dyn Summarizer) -> Result<Chapter> {
        let planned = self.engine().plan_compaction(self.id(), how).await?;
        let answer = planned.ask(summarizer)?;
        self.commit_compaction(&planned, &answer).await
    }

    /// Takes the answer to a plan's prompt. Refused when the session was compacted in the meantime.
    pub async fn commit_compaction(&self, planned: &Planned, answer: &str) -> Result<Chapter> {
        let state = self.state().await?;
        let (old, _) = current(&state);
        if old.map_or(0, |old| old.version) != planned.version {
            return Err(Error::refused("compacting", "the session was compacted in the meantime", "plan it again"));
        }
        let mut answered = Value::String(answer.to_owned());
        let found = self.redaction().value(&mut answered);
        self.keep_secrets(found).await?;
        let mut chapter = planned.accept(answered.as_str().unwrap_or_default())?;
        chapter.summary.version = planned.version + 1;
        let mut state = state.into_value();
        let before = state.get("summary").cloned();
        state["summary"] = self.section(&chapter, before)?;
        let data = json!({
            "version": chapter.summary.version, "begins": chapter.begins, "messages": chapter.messages,
            "tokensBefore": chapter.tokens_before, "tokensAfter": chapter.tokens_after,
        });
        let state = State::try_from(state).map_err(milepost_store::Error::from)?;
        self.writer().append(Append::new().event(Event::new(CHAPTER, data)).state(state)).await?;
        Ok(chapter)
    }

    fn section(&self, chapter: &Chapter, before: Option<Value>) -> Result<Value> {
        let now = self.engine().source().now().to_string();
        let saved = chapter.tokens_before.saturating_sub(chapter.tokens_after);
        let number = |pointer: &str| before.as_ref().and_then(|before| before.pointer(pointer)).and_then(Value::as_u64);
        let total = number("/tokens/totalSaved").unwrap_or(0) + saved;
        let created = before.as_ref().and_then(|before| before.get(CREATED)).cloned();
        let mut earlier = Vec::new();
        if let Some(Value::Object(mut last)) = before {
            if let Some(Value::Array(list)) = last.remove(EARLIER) {
                earlier = list;
            }
            earlier.push(Value::Object(last));
        }
        let excess = earlier.len().saturating_sub(KEPT_SUMMARIES);
        earlier.drain(..excess);
        let mut section = serde_json::to_value(Kept { summary: chapter.summary.clone() }).map_err(|error| {
            Error::refused(
                "compacting",
                error.to_string(),
                "the conversation stays as it is: try again, or with another summarizer",
            )
        })?;
        section[BEFORE] = json!(chapter.before);
        section[BEGINS] = json!(chapter.begins);
        section[TOKENS] = json!({
            "checkpoint": chapter.tokens_after, "lastCompactionInput": chapter.tokens_before, "totalSaved": total,
        });
        section[CREATED] = created.unwrap_or_else(|| json!(now));
        section[UPDATED] = json!(now);
        section[EARLIER] = Value::Array(earlier);
        Ok(section)
    }

    /// Undoes the last compaction. Returns the version of the summary that is in force then; 0 for none.
    pub async fn uncompact(&self) -> Result<u64> {
        let mut state = self.state().await?.into_value();
        let nothing = || {
            let what = format!("undoing a compaction of session {}", self.id());
            Error::refused(what, "it has none that could be undone", "look at it with `sessions show`")
        };
        let section = state.get_mut("summary").and_then(Value::as_object_mut).ok_or_else(nothing)?;
        let undone =
            section.get("version").and_then(Value::as_u64).filter(|version| *version > 0).ok_or_else(nothing)?;
        let mut earlier = match section.remove(EARLIER) {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        };
        let before = earlier.pop();
        let version = before.as_ref().and_then(|before| before.get("version")).and_then(Value::as_u64).unwrap_or(0);
        match before {
            Some(mut before) => {
                before[EARLIER] = Value::Array(earlier);
                state["summary"] = before;
            }
            None => {
                if let Some(map) = state.as_object_mut() {
                    map.remove("summary");
                }
            }
        }
        let state = State::try_from(state).map_err(milepost_store::Error::from)?;
        let event = Event::new(CHAPTER_UNDONE, json!({ "undone": undone, "version": version }));
        self.writer().append(Append::new().event(event).state(state)).await?;
        Ok(version)
    }
}
