//! Messages, one a line.

use std::io::Write;

use milepost_model::{Seq, SessionId};
use milepost_store::{MessageQuery, Store, StoredMessage};
use serde_json::Value;

use super::shapes::{TOOL_NAMES, plain, with_own_role};
use crate::error::{Error, Result};

/// So many messages are read at a time.
const PAGE: usize = 256;

/// A session's messages up to its head, a page at a time.
pub(super) struct Messages<'a> {
    store: &'a Store,
    session: SessionId,
    next: Option<Seq>,
}

impl<'a> Messages<'a> {
    pub fn new(store: &'a Store, session: SessionId) -> Self {
        Self { store, session, next: Some(Seq(0)) }
    }

    pub async fn next(&mut self) -> Result<Vec<StoredMessage>> {
        let Some(from) = self.next else { return Ok(Vec::new()) };
        let query = MessageQuery { from: Some(from), first: Some(PAGE), ..MessageQuery::default() };
        let page = self.store.messages(self.session, &query).await?;
        self.next = page.last().map(|last| last.at.seq.next());
        Ok(page)
    }
}

/// A message with its time, as JSON. A time that it brought along stays.
pub(super) fn with_time(found: &StoredMessage) -> Result<Value> {
    // One that had its tool calls beside its text gets them there again.
    if found.message.extra.contains_key(TOOL_NAMES) {
        return Ok(plain(found));
    }
    let mut value = serde_json::to_value(&found.message)
        .map_err(|error| Error::file(format!("writing message {}", found.at), error))?;
    if let Value::Object(map) = &mut value {
        with_own_role(map);
        map.entry("timestamp").or_insert_with(|| Value::String(found.time.to_string()));
    }
    Ok(value)
}

/// Writes a session's messages as JSONL: role, content, channel, timestamp, and whatever else each carries. Returns how
/// many.
pub async fn jsonl<W: Write + Send>(store: &Store, session: SessionId, mut writer: W) -> Result<u64> {
    let io = |error: std::io::Error| Error::file(format!("writing the messages of session {session}"), error);
    let mut count = 0;
    let mut messages = Messages::new(store, session);
    loop {
        let page = messages.next().await?;
        if page.is_empty() {
            writer.flush().map_err(io)?;
            return Ok(count);
        }
        for found in page {
            let mut line = serde_json::to_vec(&with_time(&found)?).map_err(|error| io(error.into()))?;
            line.push(b'\n');
            writer.write_all(&line).map_err(io)?;
            count += 1;
        }
    }
}
