//! Figures of one session and of many.

use std::collections::BTreeMap;

use milepost_model::{Block, Content, Message, Role, SessionId, Timestamp};
use milepost_store::{MarkQuery, MessageQuery, SessionQuery};
use serde::Serialize;

use crate::engine::Milepost;
use crate::error::Result;
use crate::usage::Usage;

/// Figures of one session.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Analytics {
    /// Messages.
    pub total_messages: u64,
    /// Messages of the user.
    pub user_messages: u64,
    /// Messages of the assistant.
    pub assistant_messages: u64,
    /// Messages by role.
    pub by_role: BTreeMap<String, u64>,
    /// Characters of the average message.
    pub average_message_length: f64,
    /// Calls of tools.
    pub tool_calls_count: u64,
    /// Calls by tool.
    pub by_tool: BTreeMap<String, u64>,
    /// Results of tools that were errors.
    pub tool_errors: u64,
    /// Milliseconds from the first message to the last.
    pub duration: i64,
    /// Artifacts in memory.
    pub artifacts_generated: u64,
    /// Checkpoints by trigger.
    pub by_trigger: BTreeMap<String, u64>,
    /// Tokens and money.
    pub usage: Usage,
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
        let mut days = BTreeMap::new();
        let mut counting = Counting::default();
        self.count(id, &mut counting, &mut days).await?;
        Ok(counting.finish())
    }

    /// Figures of all sessions that fit, and of each by itself. `progress` is told how many are done.
    pub async fn overview(&self, query: &SessionQuery, mut progress: impl FnMut(u64) + Send) -> Result<Overview> {
        let (mut overview, mut days, mut counting) = (Overview::default(), BTreeMap::new(), Counting::default());
        for session in self.every_session(query).await? {
            overview.sessions += 1;
            *overview.by_status.entry(session.status.to_string()).or_default() += 1;
            self.count(session.id, &mut counting, &mut days).await?;
            progress(overview.sessions);
        }
        overview.total = counting.finish();
        overview.days = days.into_values().collect();
        Ok(overview)
    }

    async fn count(&self, id: SessionId, counting: &mut Counting, days: &mut BTreeMap<String, Day>) -> Result<()> {
        let mut query = MessageQuery { first: Some(PAGE), ..MessageQuery::default() };
        let (mut first, mut last) = (None, None);
        loop {
            let page = self.store().messages(id, &query).await?;
            for stored in &page {
                counting.message(&stored.message);
                let day = day(days, stored.time);
                day.messages += 1;
                day.usage = day.usage + Usage::of(&stored.message);
                first = first.or(Some(stored.time));
                last = Some(stored.time);
            }
            match page.last() {
                Some(stored) if page.len() == PAGE => query.from = Some(stored.at.seq.next()),
                _ => break,
            }
        }
        if let (Some(first), Some(last)) = (first, last) {
            counting.done.duration += Timestamp::since_ms(last, first);
        }
        for mark in self.store().marks(id, &MarkQuery { oldest_first: true, ..MarkQuery::default() }).await? {
            let trigger = mark.checkpoint.trigger.to_string();
            let day = day(days, mark.time);
            day.checkpoints += 1;
            day.failures += u64::from(trigger == "error");
            *counting.done.by_trigger.entry(trigger).or_default() += 1;
        }
        let state = self.store().state(id).await?;
        for pointer in ["/memory/currentArtifacts", "/memory/current_artifacts", "/memory/artifacts"] {
            let artifacts = state.pointer(pointer);
            let count = artifacts.map_or(0, |value| match value {
                serde_json::Value::Array(items) => items.len(),
                serde_json::Value::Object(map) => map.len(),
                _ => 0,
            });
            counting.done.artifacts_generated += count as u64;
        }
        Ok(())
    }
}

fn day(days: &mut BTreeMap<String, Day>, time: Timestamp) -> &mut Day {
    let name: String = time.to_string().chars().take(10).collect();
    days.entry(name.clone()).or_insert_with(|| Day { day: name, ..Day::default() })
}

#[derive(Default)]
struct Counting {
    done: Analytics,
    characters: u64,
}

impl Counting {
    fn message(&mut self, message: &Message) {
        let done = &mut self.done;
        done.total_messages += 1;
        done.user_messages += u64::from(message.role == Role::User);
        done.assistant_messages += u64::from(message.role == Role::Assistant);
        *done.by_role.entry(message.role.to_string()).or_default() += 1;
        done.usage = done.usage + Usage::of(message);
        self.characters += message.text().chars().count() as u64;
        let Content::Blocks(blocks) = &message.content else { return };
        for block in blocks {
            match block {
                Block::ToolCall { name, .. } => {
                    done.tool_calls_count += 1;
                    *done.by_tool.entry(name.clone()).or_default() += 1;
                }
                Block::ToolResult { is_error: true, .. } => done.tool_errors += 1,
                _ => {}
            }
        }
    }

    fn finish(self) -> Analytics {
        let average = self.characters as f64 / self.done.total_messages.max(1) as f64;
        Analytics { average_message_length: average, ..self.done }
    }
}
