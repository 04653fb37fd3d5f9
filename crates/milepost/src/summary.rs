//! What a card or a line of a list says of a session.

use milepost_model::{Channel, CheckpointId, Message, Position, Session, SessionId, Status, Timestamp, Trigger};
use milepost_store::{MarkQuery, MessageQuery};
use serde::Serialize;

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::transfer::origin;

/// A session in short. As JSON it has every field, whatever is known: what is not is null.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    /// The session.
    pub session_id: SessionId,
    /// Its title.
    pub title: Option<String>,
    /// Its project.
    pub project_id: Option<String>,
    /// What the project is called.
    pub project_name: Option<String>,
    /// The kind of agent.
    pub agent_type: Option<String>,
    /// How it is doing.
    pub status: Status,
    /// Why it failed.
    pub error: Option<String>,
    /// Why it is paused, or what it waits for.
    pub reason: Option<String>,
    /// Messages up to its end.
    pub message_count: u64,
    /// Checkpoints up to its end, also those that were pruned since.
    pub checkpoint_count: u64,
    /// Those of them that are kept.
    pub checkpoints_kept: Option<u64>,
    /// The newest checkpoint.
    pub last_checkpoint: Option<CheckpointId>,
    /// When it began.
    #[serde(serialize_with = "crate::text::time")]
    pub created_at: Timestamp,
    /// When it was last written.
    #[serde(serialize_with = "crate::text::time")]
    pub last_active_at: Timestamp,
    /// The last message of the conversation; what lies [beside] it is none.
    pub last_message: Option<Message>,
    /// The session it branched from.
    pub parent_session_id: Option<SessionId>,
    /// The last entry that it shares with that session.
    pub branch_point: Option<Position>,
    /// Words to find it by.
    pub tags: Vec<String>,
}

impl SessionSummary {
    /// What a list knows of a session, without its last message.
    pub fn of(session: Session) -> Self {
        let branch = origin(&session);
        Self {
            branch_point: branch.map(|branch| branch.at),
            session_id: session.id,
            message_count: session.messages(),
            checkpoint_count: session.checkpoints,
            checkpoints_kept: None,
            last_checkpoint: session.checkpoint,
            project_name: project_name(&session).map(str::to_owned),
            title: session.title,
            project_id: session.project,
            agent_type: session.agent,
            status: session.status,
            error: session.error,
            reason: None,
            created_at: session.created,
            last_active_at: session.active,
            last_message: None,
            parent_session_id: branch.map(|branch| branch.session),
            tags: session.tags.into_iter().collect(),
        }
    }
}

/// What a session's project is called; by its id where programs have never said.
pub fn project_name(session: &Session) -> Option<&str> {
    let name = session.extra.get("project_name").and_then(|name| name.as_str());
    name.or(session.project.as_deref())
}

/// The conversation that a channel lies beside, if it does: there is what was paid for and is no part of the conversation, answers
/// that were cut before their first word (`cut`, `NODE/cut`) and summaries (`main/summary`).
pub fn beside(channel: &Channel) -> Option<Channel> {
    match channel.as_str().rsplit_once('/') {
        Some((of, "cut" | "summary")) => Channel::new(of).ok(),
        None if channel.as_str() == "cut" => Some(Channel::MAIN),
        _ => None,
    }
}

impl Milepost {
    /// Why a session is paused, or what it waits for, if that was said: it is noted with the checkpoint taken then.
    pub async fn reason(&self, session: &Session) -> Result<Option<String>> {
        let trigger = match session.status {
            Status::Paused => Trigger::Pause,
            Status::Waiting => Trigger::UserCheckpoint,
            _ => return Ok(None),
        };
        let last = MarkQuery { triggers: vec![trigger], limit: Some(1), ..MarkQuery::default() };
        Ok(self.store().marks(session.id, &last).await?.pop().and_then(|mark| mark.checkpoint.description))
    }

    /// A session in short, with its last message and why it is paused.
    pub async fn summary(&self, id: SessionId) -> Result<SessionSummary> {
        let summary = self.with_last_message(self.store().session(id).await?).await?;
        Ok(SessionSummary { checkpoints_kept: self.store().count_marks(&[id]).await?.pop(), ..summary })
    }

    /// Sessions in short, each with its last message and why it is paused; without where that cannot be read.
    pub async fn summarised(&self, sessions: Vec<Session>) -> Result<Vec<SessionSummary>> {
        let ids: Vec<SessionId> = sessions.iter().map(|session| session.id).collect();
        let kept = self.store().count_marks(&ids).await?;
        let mut all = Vec::with_capacity(sessions.len());
        for (session, kept) in sessions.into_iter().zip(kept) {
            let summary = match self.with_last_message(session.clone()).await {
                Err(Error::Store(error)) if error.is_damage() || crate::analytics::is_shredded(&error) => {
                    SessionSummary::of(session)
                }
                outcome => outcome?,
            };
            all.push(SessionSummary { checkpoints_kept: Some(kept), ..summary });
        }
        Ok(all)
    }

    async fn with_last_message(&self, session: Session) -> Result<SessionSummary> {
        let last = MessageQuery { last: Some(1), ..MessageQuery::default() };
        let mut last = match session.messages() {
            0 => None,
            _ => self.store().messages(session.id, &last).await?.pop(),
        };
        if let Some(channel) = last.as_ref().and_then(|last| beside(&last.message.channel)) {
            let query = MessageQuery { channel: Some(channel), last: Some(1), ..MessageQuery::default() };
            last = self.store().messages(session.id, &query).await?.pop().or(last);
        }
        let reason = self.reason(&session).await?;
        Ok(SessionSummary { last_message: last.map(|stored| stored.message), reason, ..SessionSummary::of(session) })
    }
}
