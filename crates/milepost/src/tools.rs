//! What tools left in the state: documents that were fetched and age, and calls that were made and are limited.

use milepost_model::delta::StatePath;
use milepost_model::{State, Timestamp};
use serde_json::{Value, json};

use crate::error::Result;
use crate::session::{Appended, Session};
use crate::time::parse_time;

/// Calls that are remembered; the oldest go first.
pub const MAX_CALLS: usize = 1000;

/// A document that was fetched, if it is still fresh. An expired one is not served: it has to be fetched again.
pub fn hydrated<'a>(state: &'a State, name: &str, now: Timestamp) -> Option<&'a Value> {
    let document = state.section("tools")?.get("hydratedDocuments")?.get(name)?;
    let time = document.get("hydratedAt")?.as_str().and_then(parse_time)?;
    let ttl_ms = document.get("ttl").and_then(Value::as_i64).unwrap_or(i64::MAX);
    (time <= now && now.since_ms(time) < ttl_ms).then(|| document.get("content")).flatten()
}

/// How often something was called at or after a moment.
pub fn calls_since(state: &State, operation: &str, from: Timestamp) -> usize {
    let calls = state.pointer("/tools/apiCallHistory").and_then(Value::as_array);
    let is_one = |call: &&Value| {
        call.get("operation").and_then(Value::as_str) == Some(operation)
            && call.get("timestamp").and_then(Value::as_str).and_then(parse_time).is_some_and(|time| time >= from)
    };
    calls.into_iter().flatten().filter(is_one).count()
}

impl Session {
    /// Keeps a document that was fetched, for so long.
    pub async fn hydrate(&self, name: &str, content: impl Into<Value>, ttl_ms: i64) -> Result<Appended> {
        let now = self.engine().source().now().to_string();
        let path = StatePath::root().key("tools").key("hydratedDocuments").key(name);
        self.set(&[(path, json!({ "content": content.into(), "hydratedAt": now, "ttl": ttl_ms }))]).await
    }

    /// Notes that something was called.
    pub async fn note_call(&self, operation: &str) -> Result<Appended> {
        let now = self.engine().source().now().to_string();
        let state = self.state().await?;
        let mut calls = state.pointer("/tools/apiCallHistory").and_then(Value::as_array).cloned().unwrap_or_default();
        calls.push(json!({ "operation": operation, "timestamp": now }));
        let excess = calls.len().saturating_sub(MAX_CALLS);
        calls.drain(..excess);
        self.set(&[(StatePath::root().key("tools").key("apiCallHistory"), Value::Array(calls))]).await
    }
}
