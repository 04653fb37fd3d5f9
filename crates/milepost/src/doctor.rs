//! What is wrong with a session's history, in words. Nothing is changed: requests are built from a view in which it is
//! mended.

use std::collections::BTreeMap;

use milepost_context::history::{Dialect, RepairKind, view};
use milepost_model::{Channel, Message, Position, SessionId};
use milepost_store::{MessageQuery, StoredMessage};
use serde::Serialize;

use crate::engine::Milepost;
use crate::error::Result;

/// Something that the view had to mend.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ailment {
    /// In which conversation.
    pub channel: Channel,
    /// The message; none when something had to be added.
    pub at: Option<Position>,
    /// What kind it is.
    pub kind: RepairKind,
    /// What it is and what the view does about it, in words.
    pub why: String,
}

/// How a session is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The session.
    pub session_id: SessionId,
    /// Messages that were looked at.
    pub messages: u64,
    /// What a model could not be given as it is.
    pub ailments: Vec<Ailment>,
    /// What verifying its entries found.
    pub problems: Vec<String>,
    /// Why it cannot be read where nothing is damaged: its key was destroyed or does not fit, or it is gone by now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl Diagnosis {
    /// Nothing is wrong.
    pub fn is_well(&self) -> bool {
        self.ailments.is_empty() && self.problems.is_empty() && self.unreadable.is_none()
    }
}

impl Milepost {
    /// Looks at a session's histories by a model's rules, and verifies its entries. A session that cannot be read is a
    /// finding; an error is what concerns the whole store.
    pub async fn doctor(&self, id: SessionId, rules: Dialect) -> Result<Diagnosis> {
        let mut problems: Vec<String> = Vec::new();
        let mut unreadable = None;
        match self.store().verify_session(id).await {
            Ok(verified) => problems.extend(verified.problems.into_iter().map(|problem| problem.what)),
            Err(error) if error.is_damage() => problems.push(error.finding()),
            Err(error) if is_its_own(&error) => unreadable = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        let mut channels: BTreeMap<Channel, Vec<StoredMessage>> = BTreeMap::new();
        let (mut messages, mut ailments) = (0, Vec::new());
        match self.store().messages(id, &MessageQuery::default()).await {
            Ok(all) => {
                messages = all.len() as u64;
                for stored in all {
                    channels.entry(stored.message.channel.clone()).or_default().push(stored);
                }
            }
            // The problems above mostly say what cannot be read.
            Err(error) if error.is_damage() => {
                if problems.is_empty() {
                    problems.push(error.finding());
                }
            }
            Err(error) if is_its_own(&error) => unreadable = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        for (channel, stored) in channels {
            let history: Vec<Message> = stored.iter().map(|stored| stored.message.clone()).collect();
            ailments.extend(view(&history, rules).repairs.into_iter().map(|repair| Ailment {
                channel: channel.clone(),
                at: repair.source.and_then(|index| stored.get(index)).map(|stored| stored.at),
                kind: repair.kind,
                why: repair.why,
            }));
        }
        Ok(Diagnosis { session_id: id, messages, ailments, problems, unreadable })
    }
}

/// Whether an error concerns one session, so that the others may still be well.
fn is_its_own(error: &milepost_store::Error) -> bool {
    use milepost_store::Error::{Key, NotFound, TooLarge};
    matches!(error, Key(_) | NotFound { .. } | TooLarge { .. })
}
