//! Searching without an index: every message is read, several sessions at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use milepost_model::{Position, Seq, SessionId, Timestamp};
use milepost_store::{MessageQuery, SessionQuery, StoredMessage};
use tokio::task::JoinSet;

use super::heirs::Heirs;
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
    unread: BTreeMap<SessionId, String>,
}

/// What a scan found.
pub(super) struct Scanned {
    pub hits: Vec<Rough>,
    pub more: bool,
    /// Messages that were read.
    pub messages: u64,
    /// Sessions of which not everything could be read, each with why.
    pub unread: BTreeMap<SessionId, String>,
}

impl Best {
    fn new(limit: usize) -> Self {
        Self { limit, heap: BinaryHeap::new(), more: false, messages: 0, unread: BTreeMap::new() }
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
        self.unread.extend(other.unread);
        other.heap.into_iter().for_each(|Reverse(hit)| self.push(hit));
    }
}

impl Milepost {
    pub(super) async fn by_scan(&self, query: &SearchQuery, terms: &Terms, limit: usize) -> Result<Scanned> {
        let wanted = match self.sessions_of(query).await? {
            Some(wanted) => wanted,
            None => self.every_session(&SessionQuery::default()).await?,
        };
        let heirs = Arc::new(self.heirs(&wanted).await?);
        let ids: Vec<SessionId> = wanted.iter().map(|session| session.id).chain(heirs.sessions()).collect();
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
                let heirs = Arc::clone(&heirs);
                running.spawn(async move { engine.scan(id, &heirs, &query, &terms, limit).await });
            }
            if !has_runtime {
                let Some(id) = left.next() else { break };
                best.join(self.scan(id, &heirs, &query, &terms, limit).await?);
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
        let hits = hits.into_iter().map(rough).collect();
        Ok(Scanned { hits, more: best.more, messages: best.messages, unread: best.unread })
    }

    /// Reads what a session has of its own: what it shares with the one it branched from is found there, and is told as a
    /// branch's where that one is looked at only for it.
    async fn scan(
        &self,
        id: SessionId,
        heirs: &Heirs,
        query: &SearchQuery,
        terms: &Terms,
        limit: usize,
    ) -> Result<Best> {
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
                    Err(error @ milepost_store::Error::Key(_)) => {
                        best.unread.insert(id, error.to_string());
                        break;
                    }
                    // What is whole behind the damage is searched all the same, in one piece.
                    Err(error) if error.is_damage() => {
                        best.unread.insert(id, error.finding());
                        let rest = MessageQuery { first: None, ..page };
                        self.messages_past_damage(id, Some(end), &rest).await?.messages
                    }
                    Err(error) => return Err(error.into()),
                };
                best.messages += messages.len() as u64;
                for stored in &messages {
                    let owner = if heirs.knows(id) { heirs.of(id, stored.at) } else { Some(id) };
                    if let (Some(owner), Some(count)) = (owner, matching(query, terms, stored)) {
                        best.push((count, stored.time, stored.at, owner));
                    }
                }
                match messages.last() {
                    Some(stored) if messages.len() >= PAGE => from = stored.at.seq.next(),
                    _ => break,
                }
            }
        }
        Ok(best)
    }
}

fn matching(query: &SearchQuery, terms: &Terms, stored: &StoredMessage) -> Option<u64> {
    if fits(query, stored) { terms.matches(&stored.message.search_text()) } else { None }
}
