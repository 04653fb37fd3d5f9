//! Searching without an index: every message is read, several sessions at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use milepost_model::{Position, Seq, SessionId, Timestamp};
use milepost_store::{MessageQuery, SessionQuery, StoredMessage};
use tokio::task::JoinSet;

use super::query::Terms;
use super::{Rough, SearchQuery, fits};
use crate::engine::Milepost;
use crate::error::{Error, Result};

/// So many messages are read at a time.
const PAGE: usize = 1000;

/// The best hits so far; the worst of them on top.
struct Best {
    limit: usize,
    heap: BinaryHeap<Reverse<(u64, Timestamp, Position, SessionId)>>,
    more: bool,
    messages: u64,
}

impl Best {
    fn new(limit: usize) -> Self {
        Self { limit, heap: BinaryHeap::new(), more: false, messages: 0 }
    }

    fn push(&mut self, hit: (u64, Timestamp, Position, SessionId)) {
        self.heap.push(Reverse(hit));
        if self.heap.len() > self.limit {
            self.heap.pop();
            self.more = true;
        }
    }

    fn join(&mut self, other: Best) {
        (self.more, self.messages) = (self.more || other.more, self.messages + other.messages);
        other.heap.into_iter().for_each(|Reverse(hit)| self.push(hit));
    }
}

impl Milepost {
    pub(super) async fn by_scan(
        &self,
        query: &SearchQuery,
        terms: &Terms,
        limit: usize,
    ) -> Result<(Vec<Rough>, bool, u64)> {
        let ids = match self.sessions_of(query).await? {
            Some(ids) => ids,
            None => self.every_session(&SessionQuery::default()).await?.into_iter().map(|session| session.id).collect(),
        };
        let (query, terms) = (Arc::new(query.clone()), Arc::new(terms.clone()));
        let mut best = Best::new(limit);
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        let mut running = JoinSet::new();
        let mut left = ids.into_iter();
        let has_runtime = tokio::runtime::Handle::try_current().is_ok();
        loop {
            while has_runtime
                && running.len() < at_once
                && let Some(id) = left.next()
            {
                let (engine, query, terms) = (self.clone(), Arc::clone(&query), Arc::clone(&terms));
                running.spawn(async move { engine.scan(id, &query, &terms, limit).await });
            }
            if !has_runtime {
                let Some(id) = left.next() else { break };
                best.join(self.scan(id, &query, &terms, limit).await?);
                continue;
            }
            match running.join_next().await {
                None => break,
                Some(Ok(found)) => best.join(found?),
                Some(Err(error)) => {
                    return Err(Error::refused("searching", format!("a part of it ended: {error}"), "search again"));
                }
            }
        }
        let mut hits: Vec<_> = best.heap.into_iter().map(|Reverse(hit)| hit).collect();
        hits.sort_by(|a, b| b.cmp(a));
        let rough = |(count, _, at, session)| Rough { session, at, score: count as f64 };
        Ok((hits.into_iter().map(rough).collect(), best.more, best.messages))
    }

    /// Reads what a session has of its own: what it shares with the one it branched from is found there.
    async fn scan(&self, id: SessionId, query: &SearchQuery, terms: &Terms, limit: usize) -> Result<Best> {
        let mut best = Best::new(limit);
        let store = self.store();
        let lines = match store.backend().timelines(store.workspace(), id).await {
            Ok(lines) => lines,
            Err(milepost_store::Error::NotFound { .. }) => return Ok(best),
            Err(error) => return Err(error.into()),
        };
        for line in lines {
            let Some(last) = line.length.checked_sub(1).filter(|last| *last >= line.begins()) else { continue };
            let end = Position { timeline: line.id, seq: Seq(last) };
            let mut from = Seq(line.begins());
            loop {
                let page = MessageQuery { from: Some(from), first: Some(PAGE), ..MessageQuery::default() };
                let messages = match store.messages_at(end, &page).await {
                    Ok(messages) => messages,
                    // A shredded or damaged session cannot be searched; verify names it.
                    Err(milepost_store::Error::Key(_)) => break,
                    Err(error) if error.is_damage() => break,
                    Err(error) => return Err(error.into()),
                };
                best.messages += messages.len() as u64;
                for stored in &messages {
                    if let Some(count) = matching(query, terms, stored) {
                        best.push((count, stored.time, stored.at, id));
                    }
                }
                match messages.last() {
                    Some(stored) if messages.len() == PAGE => from = stored.at.seq.next(),
                    _ => break,
                }
            }
        }
        Ok(best)
    }
}

fn matching(query: &SearchQuery, terms: &Terms, stored: &StoredMessage) -> Option<u64> {
    if fits(query, stored) { terms.matches(&stored.message.text()) } else { None }
}
