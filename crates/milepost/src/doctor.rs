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
}

impl Diagnosis {
    /// Nothing is wrong.
    pub fn is_well(&self) -> bool {
        self.ailments.is_empty() && self.problems.is_empty()
    }
}

impl Milepost {
    /// Looks at a session's histories by a model's rules, and verifies its entries.
    pub async fn doctor(&self, id: SessionId, rules: Dialect) -> Result<Diagnosis> {
        let problems =
            self.store().verify_session(id).await?.problems.into_iter().map(|problem| problem.what).collect();
        let mut channels: BTreeMap<Channel, Vec<StoredMessage>> = BTreeMap::new();
        let (mut messages, mut ailments) = (0, Vec::new());
        match self.store().messages(id, &MessageQuery::default()).await {
            Ok(all) => {
                messages = all.len() as u64;
                for stored in all {
                    channels.entry(stored.message.channel.clone()).or_default().push(stored);
                }
            }
            // The problems above say what cannot be read.
            Err(error) if error.is_damage() => {}
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
        Ok(Diagnosis { session_id: id, messages, ailments, problems })
    }
}
