//! Figures of one session and of many.
//!
//! Every message counts once, where it was written: what a branch shares with the session that it branched from counts
//! there and not here, and what a restore left behind was said, and paid for, all the same.

use std::collections::{BTreeMap, HashMap, HashSet};

use milepost_model::{Block, Message, Position, Role, Seq, Session, SessionId, State, TimelineId, Timestamp};
use milepost_store::backend::{MAIN_HEAD, Timeline};
use milepost_store::{KeyError, MarkQuery, MessageQuery, SessionQuery, StoredMessage};
use serde::Serialize;
use serde_json::Value;

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::project::{Owner, Projects};
use crate::transfer::{derived, origin};
use crate::usage::Usage;

/// Figures of one session.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Analytics {
    /// Messages that were written to it, on all its timelines.
    pub total_messages: u64,
    /// Of these, messages on timelines that a restore left.
    pub left_messages: u64,
    /// Messages that it shares with the session it branched from: they count there.
    pub shared_messages: u64,
    /// Messages of the user.
    pub user_messages: u64,
    /// Messages of the assistant.
    pub assistant_messages: u64,
    /// Messages by role.
    pub by_role: BTreeMap<String, u64>,
    /// Messages that have text: not only calls, results or images.
    pub messages_with_text: u64,
    /// Characters of text of the average message that has any.
    pub average_message_length: f64,
    /// Calls of tools.
    pub tool_calls_count: u64,
    /// Calls by tool.
    pub by_tool: BTreeMap<String, u64>,
    /// Results of tools that were errors.
    pub tool_errors: u64,
    /// Characters of the average call (its tool's name and its arguments) or result.
    pub average_tool_length: f64,
    /// Milliseconds from the first message to the last.
    pub duration: i64,
    /// Artifacts: those that memory names, or those that are kept with the session, whichever are more.
    pub artifacts_generated: u64,
    /// Checkpoints by trigger.
    pub by_trigger: BTreeMap<String, u64>,
    /// Tokens and money.
    pub usage: Usage,
    /// Of these, what was spent on timelines that a restore left.
    pub left_usage: Usage,
}

/// Figures of many sessions.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Sessions.
    pub sessions: u64,
    /// Sessions by status.
    pub by_status: BTreeMap<String, u64>,
    /// Of all of them together.
    pub total: Analytics,
    /// By day (UTC), oldest first.
    pub days: Vec<Day>,
    /// Sessions that could not be counted, or not all of them, each with why: damaged, or its key was destroyed.
    pub uncounted: Vec<(SessionId, String)>,
}

/// Figures of one day.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Day {
    /// `2026-11-16`.
    pub day: String,
    /// Messages.
    pub messages: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Checkpoints by trigger.
    pub by_trigger: BTreeMap<String, u64>,
    /// Checkpoints because of an error.
    pub failures: u64,
    /// Tokens and money.
    pub usage: Usage,
}

/// So many messages or checkpoints are read at a time.
const PAGE: usize = 1000;

impl Milepost {
    /// Figures of a session.
    pub async fn analytics(&self, id: SessionId) -> Result<Analytics> {
        let (mut days, mut counting) = (BTreeMap::new(), Counting::begin(self).await?);
        self.count(&self.store().session(id).await?, &mut counting, &mut days).await?;
        Ok(counting.finish())
    }

    /// Figures of all sessions that fit, and of each by itself. `progress` is told how many are done.
    pub async fn overview(&self, query: &SessionQuery, mut progress: impl FnMut(u64) + Send) -> Result<Overview> {
        let (mut overview, mut days) = (Overview::default(), BTreeMap::new());
        let mut counting = Counting::begin(self).await?;
        for session in self.every_session(query).await? {
            overview.sessions += 1;
            *overview.by_status.entry(session.status.to_string()).or_default() += 1;
            match self.count(&session, &mut counting, &mut days).await {
                Err(Error::Store(error)) if error.is_damage() || is_shredded(&error) => {
                    overview.uncounted.push((session.id, error.finding()));
                }
                counted => counted?,
            }
            progress(overview.sessions);
        }
        overview.total = counting.finish();
        overview.days = days.into_values().collect();
        Ok(overview)
    }

    /// Goes through every message that was written to a session: also those that a restore left behind, and not those that it
    /// shares with the session it branched from. So what is counted here is what the figures say. Damaged entries are passed
    /// over; how many of them may have been messages.
    pub async fn each_written(&self, id: SessionId, mut each: impl FnMut(&Message) + Send) -> Result<u64> {
        let session = self.store().session(id).await?;
        let (lines, mut lost) = (self.own_lines(&session).await?, 0);
        // Nothing was said up to its end, and nothing was left behind: the log need not be gone through.
        if session.messages() == 0 && lines.len() == 1 {
            return Ok(0);
        }
        for line in lines {
            let mut next = line.begin();
            while let Some(from) = next {
                let page = match self.store().messages_at(line.end(), &line.page(from)).await {
                    Err(error) if error.is_damage() => {
                        let rest = MessageQuery { from: Some(from), ..MessageQuery::default() };
                        let salvaged = self.messages_past_damage(id, Some(line.end()), &rest).await?;
                        (lost, next) = (lost + salvaged.lost, None);
                        salvaged.messages
                    }
                    page => {
                        let page = page?;
                        next = after(&page);
                        page
                    }
                };
                page.iter().for_each(|stored| each(&stored.message));
            }
        }
        Ok(lost)
    }

    async fn count(&self, session: &Session, counting: &mut Counting, days: &mut BTreeMap<String, Day>) -> Result<()> {
        let id = session.id;
        let lines = self.own_lines(session).await?;
        let before = counting.done.total_messages - counting.done.left_messages;
        let (mut first, mut last) = (None, None);
        for line in &lines {
            let mut next = line.begin();
            while let Some(from) = next {
                let page = self.store().messages_at(line.end(), &line.page(from)).await?;
                next = after(&page);
                for stored in &page {
                    counting.message(&stored.message, stored.at.seq >= line.kept);
                    let day = day(days, stored.time);
                    day.messages += 1;
                    day.usage = day.usage + Usage::of(&stored.message);
                    first = Some(first.map_or(stored.time, |first: Timestamp| first.min(stored.time)));
                    last = last.max(Some(stored.time));
                }
            }
        }
        let kept = counting.done.total_messages - counting.done.left_messages - before;
        counting.done.shared_messages += session.messages().saturating_sub(kept);
        if let (Some(first), Some(last)) = (first, last) {
            counting.done.duration += Timestamp::since_ms(last, first);
        }
        let own: HashSet<TimelineId> = lines.iter().map(|line| line.timeline).collect();
        let mut marks = self.store().marks(id, &MarkQuery::default()).await?;
        marks.extend(self.store().marks_left_behind(id, &MarkQuery::default()).await?);
        for mark in marks.iter().filter(|mark| own.contains(&mark.at.timeline)) {
            let trigger = mark.checkpoint.trigger.to_string();
            let day = day(days, mark.time);
            day.checkpoints += 1;
            day.failures += u64::from(trigger == "error");
            *day.by_trigger.entry(trigger.clone()).or_default() += 1;
            *counting.done.by_trigger.entry(trigger).or_default() += 1;
        }
        let kept = match &counting.projects {
            Some(projects) => projects.artifacts(&Owner::Session(id)).await?.len() as u64,
            None => 0,
        };
        let named = match self.store().state(id).await {
            // What was said and spent is known all the same.
            Err(error) if error.is_damage() => 0,
            state => named_artifacts(&state?),
        };
        counting.done.artifacts_generated += named.max(kept);
        Ok(())
    }

    /// The timelines on which a session was written, without what it only shares or has a copy of.
    async fn own_lines(&self, session: &Session) -> Result<Vec<OwnLine>> {
        let store = self.store();
        let lines = store.backend().timelines(store.workspace(), session.id).await?;
        let mut copied = HashSet::new();
        // One that stands by itself since it was archived has a copy of what it shares.
        if let (None, Some(branch)) = (session.branch, origin(session))
            && let Ok(theirs) = store.copy_lines(branch.session).await
        {
            copied.extend(theirs.iter().map(|line| derived(session.id, line.id)));
        }
        let kept = kept(&lines);
        let own = lines.into_iter().filter(|line| !copied.contains(&line.id));
        Ok(own
            .map(|line| OwnLine {
                timeline: line.id,
                from: Seq(line.begins()),
                to: Seq(line.length),
                kept: kept.get(&line.id).copied().unwrap_or(Seq(0)),
            })
            .collect())
    }
}

/// Artifacts that a state's memory names.
fn named_artifacts(state: &State) -> u64 {
    let lists = ["/memory/currentArtifacts", "/memory/current_artifacts", "/memory/artifacts"];
    let count = |list: &str| match state.pointer(list) {
        Some(Value::Array(items)) => items.len() as u64,
        Some(Value::Object(map)) => map.len() as u64,
        _ => 0,
    };
    lists.into_iter().map(count).sum()
}

/// A timeline on which a session was written.
struct OwnLine {
    timeline: TimelineId,
    from: Seq,
    to: Seq,
    /// What lies from here on was left behind by a restore.
    kept: Seq,
}

impl OwnLine {
    /// Where it begins, unless it is empty.
    fn begin(&self) -> Option<Seq> {
        (self.to > self.from).then_some(self.from)
    }

    /// Its last entry.
    fn end(&self) -> Position {
        Position { timeline: self.timeline, seq: Seq(self.to.0.saturating_sub(1)) }
    }

    /// Its next messages from an entry on.
    fn page(&self, from: Seq) -> MessageQuery {
        MessageQuery { first: Some(PAGE), from: Some(from), ..MessageQuery::default() }
    }
}

/// Where the next page begins, if there may be one.
fn after(page: &[StoredMessage]) -> Option<Seq> {
    page.last().filter(|_| page.len() == PAGE).map(|stored| stored.at.seq.next())
}

/// How far each timeline leads to the head.
fn kept(lines: &[Timeline]) -> HashMap<TimelineId, Seq> {
    let mut kept = HashMap::new();
    let head = lines.iter().find(|line| line.head.as_deref() == Some(MAIN_HEAD));
    let mut next = head.map(|line| (line, Seq(line.length)));
    while let Some((line, to)) = next {
        kept.insert(line.id, to);
        next = line.parent.and_then(|at| {
            let parent = lines.iter().find(|line| line.id == at.timeline)?;
            Some((parent, at.seq.next().min(to)))
        });
    }
    kept
}

pub(crate) fn is_shredded(error: &milepost_store::Error) -> bool {
    matches!(error, milepost_store::Error::Key(KeyError::Shredded { .. }))
}

fn day(days: &mut BTreeMap<String, Day>, time: Timestamp) -> &mut Day {
    let name: String = time.to_string().chars().take(10).collect();
    days.entry(name.clone()).or_insert_with(|| Day { day: name, ..Day::default() })
}

struct Counting {
    done: Analytics,
    /// Of texts.
    characters: u64,
    /// Calls and results,
    tool_parts: u64,
    /// and what they have.
    tool_characters: u64,
    /// What keeps artifacts, where there are any.
    projects: Option<Projects>,
}

impl Counting {
    async fn begin(engine: &Milepost) -> Result<Self> {
        let projects = Projects::open_if_any(engine.store()).await?;
        Ok(Self { done: Analytics::default(), characters: 0, tool_parts: 0, tool_characters: 0, projects })
    }

    fn message(&mut self, message: &Message, is_left: bool) {
        let done = &mut self.done;
        done.total_messages += 1;
        if is_left {
            done.left_messages += 1;
            done.left_usage = done.left_usage + Usage::of(message);
        }
        done.user_messages += u64::from(message.role == Role::User);
        done.assistant_messages += u64::from(message.role == Role::Assistant);
        *done.by_role.entry(message.role.to_string()).or_default() += 1;
        done.usage = done.usage + Usage::of(message);
        let mut characters = 0;
        for block in milepost_context::history::blocks(message) {
            match &block {
                Block::Text { text, .. } => characters += text.chars().count() as u64,
                Block::ToolCall { name, .. } => {
                    done.tool_calls_count += 1;
                    *done.by_tool.entry(name.clone()).or_default() += 1;
                }
                Block::ToolResult { is_error: true, .. } => done.tool_errors += 1,
                _ => {}
            }
            if matches!(block, Block::ToolCall { .. } | Block::ToolResult { .. }) {
                self.tool_parts += 1;
                let alone = Message::blocks(message.role.clone(), vec![block]);
                self.tool_characters += alone.text().chars().count() as u64;
            }
        }
        done.messages_with_text += u64::from(characters > 0);
        self.characters += characters;
    }

    fn finish(self) -> Analytics {
        let average = |characters: u64, count: u64| characters as f64 / count.max(1) as f64;
        Analytics {
            average_message_length: average(self.characters, self.done.messages_with_text),
            average_tool_length: average(self.tool_characters, self.tool_parts),
            ..self.done
        }
    }
}
