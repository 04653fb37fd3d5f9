//! Search over all conversations: words, phrases and prefixes by the store's index; substrings, and everything in stores
//! without an index, by reading every message. The answer says which it was.

mod query;
mod scan;

use std::collections::HashMap;

use milepost_model::{Message, Position, Role, Seq, Session, SessionId, Timestamp};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::{MessageQuery, SessionQuery, StoredMessage};
use serde::Serialize;

use crate::engine::Milepost;
use crate::error::Result;
use query::Terms;

/// What to look for, and where.
#[derive(Debug, Clone)]
pub struct SearchQuery {
    /// Words, "phrases" and prefixes*: all of them must be there.
    pub text: String,
    /// The text anywhere, also inside of words, in any language.
    pub substring: bool,
    /// Only in this session.
    pub session: Option<SessionId>,
    /// Only in sessions of this project.
    pub project: Option<String>,
    /// Only in sessions of this kind of agent.
    pub agent: Option<String>,
    /// Only messages of this role.
    pub role: Option<Role>,
    /// Only messages at or after.
    pub from: Option<Timestamp>,
    /// Only messages before.
    pub to: Option<Timestamp>,
    /// At most so many hits.
    pub limit: usize,
    /// So many messages before and after each hit.
    pub context: usize,
}

impl SearchQuery {
    /// The most hits that are given.
    pub const MAX_LIMIT: usize = 1000;
    /// The most bytes that a search may have.
    pub const MAX_BYTES: usize = 4096;

    /// Looks for a text everywhere.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            substring: false,
            session: None,
            project: None,
            agent: None,
            role: None,
            from: None,
            to: None,
            limit: 20,
            context: 2,
        }
    }
}

/// A message that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    /// Its session.
    pub session_id: SessionId,
    /// What the session is called.
    pub title: Option<String>,
    /// Where it is.
    pub at: Position,
    /// When it was said.
    #[serde(serialize_with = "crate::text::time")]
    pub time: Timestamp,
    /// The message.
    pub message: Message,
    /// The messages before and after it.
    pub context: Around,
    /// It is on the session's head, not on a timeline that was left by a restore.
    pub current: bool,
    /// Greater is better.
    pub score: f64,
}

/// Messages around a hit.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Around {
    /// Before it, oldest first.
    pub before: Vec<Message>,
    /// After it.
    pub after: Vec<Message>,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// The best first.
    pub hits: Vec<SearchHit>,
    /// There may be more than were asked for.
    pub more: bool,
    /// How it was searched.
    pub how: How,
}

/// How a search was done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum How {
    /// By the store's text index.
    Index,
    /// By reading every message, and why.
    Scan {
        /// Why there was no quicker way.
        why: String,
        /// Messages that were read.
        messages: u64,
    },
}

/// A hit before its surroundings are read.
#[derive(Debug, Clone)]
pub(crate) struct Rough {
    pub session: SessionId,
    pub at: Position,
    pub score: f64,
}

/// Up to so many sessions are named to the index; of more, hits are sifted afterwards.
const NAMED_SESSIONS: usize = 5000;
/// The index is asked for at most so many hits, however many are sifted out.
const MOST_ASKED: usize = 100_000;

impl Milepost {
    /// Searches all conversations.
    pub async fn search(&self, query: &SearchQuery) -> Result<Found> {
        let terms = Terms::parse(query)?;
        let limit = query.limit.clamp(1, SearchQuery::MAX_LIMIT);
        let has_index = self.store().backend().features().text && !self.store().is_encrypted();
        let why = match () {
            () if query.substring => Some("substrings are in no index"),
            () if terms.has_unspaced() => Some("words of this script are not separated, and so not in the index"),
            () if self.store().is_encrypted() => Some("the workspace is encrypted and has no index in clear"),
            () if !has_index => Some("this store has no text index"),
            () => None,
        };
        let mut sessions = Sessions::default();
        let (rough, more, how) = match why {
            None => {
                let (rough, more) = self.by_index(query, &terms, limit, &mut sessions).await?;
                (rough, more, How::Index)
            }
            Some(why) => {
                let (rough, more, messages) = self.by_scan(query, &terms, limit).await?;
                (rough, more, How::Scan { why: why.to_owned(), messages })
            }
        };
        let mut hits = Vec::with_capacity(rough.len());
        for rough in rough {
            hits.extend(self.surround(rough, query.context, &mut sessions).await?);
        }
        Ok(Found { hits, more, how })
    }

    async fn by_index(
        &self,
        query: &SearchQuery,
        terms: &Terms,
        limit: usize,
        known: &mut Sessions,
    ) -> Result<(Vec<Rough>, bool)> {
        let wanted = self.sessions_of(query).await?;
        let named = match &wanted {
            Some(ids) if ids.is_empty() => return Ok((Vec::new(), false)),
            Some(ids) if ids.len() <= NAMED_SESSIONS => ids.clone(),
            _ => Vec::new(),
        };
        let mut ask = (limit + 1).max(64);
        loop {
            let text = TextQuery { terms: terms.indexed(), sessions: named.clone(), limit: ask };
            let found = self.store().backend().search(self.store().workspace(), text).await?.unwrap_or_default();
            let is_all = found.len() < ask;
            let mut kept = Vec::new();
            for hit in found {
                if kept.len() > limit {
                    break;
                }
                if wanted.as_ref().is_some_and(|ids| named.is_empty() && !ids.contains(&hit.session)) {
                    continue;
                }
                if known.get(self, hit.session).await?.is_none_or(|session| session.trashed.is_some()) {
                    continue;
                }
                let Some(stored) = self.message_at(hit.at).await? else { continue };
                if fits(query, &stored) {
                    kept.push(Rough { session: hit.session, at: hit.at, score: hit.score });
                }
            }
            if kept.len() > limit || is_all || ask >= MOST_ASKED {
                let more = kept.len() > limit || !is_all;
                kept.truncate(limit);
                return Ok((kept, more));
            }
            ask = (ask * 8).min(MOST_ASKED);
        }
    }

    /// The sessions that a search is limited to; none when it is not.
    pub(crate) async fn sessions_of(&self, query: &SearchQuery) -> Result<Option<Vec<SessionId>>> {
        if let Some(id) = query.session {
            return Ok(Some(vec![id]));
        }
        if query.project.is_none() && query.agent.is_none() {
            return Ok(None);
        }
        let list =
            SessionQuery { project: query.project.clone(), agent: query.agent.clone(), ..SessionQuery::default() };
        Ok(Some(self.every_session(&list).await?.into_iter().map(|session| session.id).collect()))
    }

    async fn message_at(&self, at: Position) -> Result<Option<StoredMessage>> {
        let one = MessageQuery { from: Some(at.seq), last: Some(1), ..MessageQuery::default() };
        match self.store().messages_at(at, &one).await {
            Ok(mut found) => Ok(found.pop()),
            // What is damaged or gone cannot be shown; verify names it.
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A hit with what was said around it.
    async fn surround(&self, rough: Rough, context: usize, known: &mut Sessions) -> Result<Option<SearchHit>> {
        let store = self.store();
        let Some(hit) = self.message_at(rough.at).await? else { return Ok(None) };
        // What was said around it is what was said in the same conversation.
        let near = MessageQuery { channel: Some(hit.message.channel.clone()), ..MessageQuery::default() };
        let mut before = Vec::new();
        if context > 0 {
            let last = MessageQuery { to: Some(rough.at.seq), last: Some(context), ..near.clone() };
            before = match store.messages_at(rough.at, &last).await {
                Ok(before) => before,
                // Neighbours that cannot be read are left out.
                Err(error) if error.is_damage() => Vec::new(),
                Err(error) => return Err(error.into()),
            };
        }
        let line = store.backend().timeline(store.workspace(), rough.at.timeline).await?;
        let mut after = Vec::new();
        if let Some(line) = line.filter(|line| line.length > rough.at.seq.0 + 1 && context > 0) {
            let end = Position { timeline: line.id, seq: Seq(line.length - 1) };
            let next = MessageQuery { from: Some(rough.at.seq.next()), first: Some(context), ..near };
            after = match store.messages_at(end, &next).await {
                Ok(after) => after,
                Err(error) if error.is_damage() => Vec::new(),
                Err(error) => return Err(error.into()),
            };
        }
        let session = known.get(self, rough.session).await?;
        let messages = |stored: Vec<StoredMessage>| stored.into_iter().map(|stored| stored.message).collect();
        let current = match &session {
            Some(session) => known.is_current(self, session, rough.at).await?,
            None => false,
        };
        Ok(Some(SearchHit {
            session_id: rough.session,
            title: session.and_then(|session| session.title),
            at: rough.at,
            time: hit.time,
            message: hit.message,
            context: Around { before: messages(before), after: messages(after) },
            current,
            score: rough.score,
        }))
    }
}

/// Whether a message is one of those that are wanted, whatever it says.
pub(crate) fn fits(query: &SearchQuery, stored: &StoredMessage) -> bool {
    query.role.as_ref().is_none_or(|role| *role == stored.message.role)
        && query.from.is_none_or(|from| stored.time >= from)
        && query.to.is_none_or(|to| stored.time < to)
}

/// Sessions that were looked up, and what leads to their ends.
#[derive(Default)]
struct Sessions {
    known: HashMap<SessionId, Option<Session>>,
    ways: HashMap<SessionId, Vec<Position>>,
}

impl Sessions {
    async fn get(&mut self, engine: &Milepost, id: SessionId) -> Result<Option<Session>> {
        if let Some(session) = self.known.get(&id) {
            return Ok(session.clone());
        }
        let session = match engine.store().session(id).await {
            Ok(session) => Some(session),
            Err(milepost_store::Error::NotFound { .. } | milepost_store::Error::Key(_)) => None,
            Err(error) => return Err(error.into()),
        };
        self.known.insert(id, session.clone());
        Ok(session)
    }

    async fn is_current(&mut self, engine: &Milepost, session: &Session, at: Position) -> Result<bool> {
        if session.head == at.timeline {
            return Ok(true);
        }
        if let std::collections::hash_map::Entry::Vacant(place) = self.ways.entry(session.id) {
            place.insert(engine.way(Position { timeline: session.head, seq: Seq(u64::MAX) }).await?);
        }
        Ok(self.ways[&session.id].iter().any(|last| last.timeline == at.timeline && at.seq <= last.seq))
    }
}

impl Terms {
    fn indexed(&self) -> Vec<Term> {
        self.terms.iter().map(|term| Term { text: term.text.clone(), prefix: term.prefix }).collect()
    }
}
