//! Search over all conversations: words, phrases and prefixes by the store's index; substrings, and everything in stores
//! without an index, by reading every message. The answer says which it was.

mod heirs;
mod query;
mod scan;

use std::collections::{BTreeMap, HashMap, HashSet};

use milepost_model::{Message, Position, Role, Seq, Session, SessionId, Timestamp};
use milepost_store::backend::{Term, TextGap, TextQuery};
use milepost_store::{MessageQuery, SessionQuery, StoredMessage};
use serde::Serialize;

use crate::engine::Milepost;
use crate::error::Result;
use heirs::Heirs;
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
    /// Sessions of which not everything could be read, each with why: damaged, or its key was destroyed.
    pub unread: Vec<(SessionId, String)>,
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

/// The index is asked for at most so many hits. When those of sessions that are not looked at (in the trash, hidden) are
/// more, every message is read instead.
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
            () if terms.has_vowel_signs() => Some("an index cuts words of this script at their vowel signs"),
            () if terms.has_signs() => Some("signs and emoji are in no index"),
            () if self.store().is_encrypted() => Some("the workspace is encrypted and has no index in clear"),
            () if !has_index => Some("this store has no text index"),
            () => None,
        };
        let mut sessions = Sessions::default();
        let by_index = match why {
            None => self.by_index(query, &terms, limit, &mut sessions).await?,
            Some(_) => None,
        };
        let (rough, more, how) = match by_index {
            Some((rough, more)) => (rough, more, How::Index),
            None => {
                let why = why.unwrap_or("too many of the hits are in sessions that are not searched");
                let scanned = self.by_scan(query, &terms, limit).await?;
                sessions.unread = scanned.unread;
                (scanned.hits, scanned.more, How::Scan { why: why.to_owned(), messages: scanned.messages })
            }
        };
        let mut hits = Vec::with_capacity(rough.len());
        for rough in rough {
            hits.extend(self.surround(rough, query.context, &mut sessions).await?);
        }
        Ok(Found { hits, more, how, unread: sessions.unread.into_iter().collect() })
    }

    /// The hits by the index, and whether there are more; none when it would have to be asked for too many.
    async fn by_index(
        &self,
        query: &SearchQuery,
        terms: &Terms,
        limit: usize,
        known: &mut Sessions,
    ) -> Result<Option<(Vec<Rough>, bool)>> {
        let wanted = self.sessions_of(query).await?;
        if let Some(wanted) = &wanted {
            known.heirs = self.heirs(wanted).await?;
        }
        let own: Option<HashSet<SessionId>> = wanted.map(|all| all.iter().map(|session| session.id).collect());
        let named: Vec<SessionId> = match &own {
            Some(ids) if ids.is_empty() => return Ok(Some((Vec::new(), false))),
            Some(ids) => ids.iter().copied().chain(known.heirs.sessions()).collect(),
            None => Vec::new(),
        };
        let mut ask = (limit + 1).max(64);
        loop {
            let text = TextQuery {
                terms: terms.indexed(),
                sessions: named.clone(),
                role: query.role.as_ref().map(ToString::to_string),
                from: query.from,
                to: query.to,
                limit: ask,
            };
            let found = self.store().backend().search(self.store().workspace(), text).await?.unwrap_or_default();
            let is_all = found.len() < ask;
            let mut kept = Vec::new();
            for hit in found {
                if kept.len() > limit {
                    break;
                }
                let Some(session) = known.owner(self, own.as_ref(), hit.session, hit.at).await? else { continue };
                let stored = match self.message_at(hit.at).await? {
                    Ok(Some(stored)) => stored,
                    Ok(None) => continue,
                    Err(damage) => {
                        known.unread.insert(session, damage);
                        continue;
                    }
                };
                let is_rough = terms.finds_too_much();
                if fits(query, &stored) && (!is_rough || terms.matches(&stored.message.search_text()).is_some()) {
                    kept.push(Rough { session, at: hit.at, score: hit.score });
                }
            }
            if kept.len() > limit || is_all {
                let more = kept.len() > limit;
                kept.truncate(limit);
                self.tell_gaps(own.as_ref(), known).await?;
                return Ok(Some((kept, more)));
            }
            if ask >= MOST_ASKED {
                return Ok(None);
            }
            ask = (ask * 8).min(MOST_ASKED);
        }
    }

    /// Names the sessions of which the index lacks something.
    async fn tell_gaps(&self, own: Option<&HashSet<SessionId>>, known: &mut Sessions) -> Result<()> {
        for (id, gap) in self.store().backend().text_gaps(self.store().workspace()).await? {
            let is_looked_at = match own {
                Some(own) => own.contains(&id),
                None => known.get(self, id).await?.is_some_and(|found| !found.hidden && found.trashed.is_none()),
            };
            if is_looked_at {
                let why = match gap {
                    TextGap::Damaged => {
                        "some of its entries are damaged, and what they say was not searched: verify it"
                    }
                    TextGap::Cut => {
                        "of a message longer than 1 MiB only the beginning is indexed: as a substring all of it is searched"
                    }
                };
                known.unread.entry(id).or_insert_with(|| why.to_owned());
            }
        }
        Ok(())
    }

    /// The sessions that a search is limited to; none when it is not. What is in the trash is not searched.
    async fn sessions_of(&self, query: &SearchQuery) -> Result<Option<Vec<Session>>> {
        if let Some(id) = query.session {
            let session = self.store().session(id).await?;
            return Ok(Some(Some(session).filter(|session| session.trashed.is_none()).into_iter().collect()));
        }
        if query.project.is_none() && query.agent.is_none() {
            return Ok(None);
        }
        let list =
            SessionQuery { project: query.project.clone(), agent: query.agent.clone(), ..SessionQuery::default() };
        Ok(Some(self.every_session(&list).await?))
    }

    /// A message, or what is damaged of it.
    async fn message_at(&self, at: Position) -> Result<std::result::Result<Option<StoredMessage>, String>> {
        let one = MessageQuery { from: Some(at.seq), last: Some(1), ..MessageQuery::default() };
        match self.store().messages_at(at, &one).await {
            Ok(mut found) => Ok(Ok(found.pop())),
            Err(error) if error.is_damage() => Ok(Err(error.finding())),
            Err(error) => Err(error.into()),
        }
    }

    /// A hit with what was said around it.
    async fn surround(&self, rough: Rough, context: usize, known: &mut Sessions) -> Result<Option<SearchHit>> {
        let store = self.store();
        let Ok(Some(hit)) = self.message_at(rough.at).await? else { return Ok(None) };
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
        let session = known.get(self, rough.session).await?;
        let current = match &session {
            Some(session) => known.is_current(self, session, rough.at).await?,
            None => false,
        };
        let mut after = Vec::new();
        if context > 0 {
            let next = MessageQuery { from: Some(rough.at.seq.next()), first: Some(context), ..near };
            // What came next is what came next in this session, or else on the timeline that was left.
            let read = match current {
                true => store.messages(rough.session, &next).await,
                false => self.messages_of_line(rough.at, &next).await,
            };
            after = match read {
                Ok(after) => after,
                Err(error) if error.is_damage() => Vec::new(),
                Err(error) => return Err(error.into()),
            };
        }
        let messages = |stored: Vec<StoredMessage>| stored.into_iter().map(|stored| stored.message).collect();
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

    /// Messages of the timeline that an entry lies on, up to its end.
    async fn messages_of_line(&self, at: Position, query: &MessageQuery) -> milepost_store::Result<Vec<StoredMessage>> {
        let store = self.store();
        match store.backend().timeline(store.workspace(), at.timeline).await? {
            Some(line) if line.length > at.seq.0 + 1 => {
                store.messages_at(Position { timeline: line.id, seq: Seq(line.length - 1) }, query).await
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Whether a message is one of those that are wanted, whatever it says.
pub(crate) fn fits(query: &SearchQuery, stored: &StoredMessage) -> bool {
    query.role.as_ref().is_none_or(|role| *role == stored.message.role)
        && query.from.is_none_or(|from| stored.time >= from)
        && query.to.is_none_or(|to| stored.time < to)
}

/// Sessions that were looked up, what leads to their ends, and what of them could not be read.
#[derive(Default)]
struct Sessions {
    unread: BTreeMap<SessionId, String>,
    heirs: Heirs,
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

    /// Whose a message is told to be: the session's that it was written to, or a branch's where that one is not looked at;
    /// none when it is nobody's who is. Without a choice, every session that is shown is.
    async fn owner(
        &mut self,
        engine: &Milepost,
        chosen: Option<&HashSet<SessionId>>,
        session: SessionId,
        at: Position,
    ) -> Result<Option<SessionId>> {
        let is_looked_at = match chosen {
            Some(chosen) => chosen.contains(&session),
            None => self.get(engine, session).await?.is_some_and(|found| !found.hidden && found.trashed.is_none()),
        };
        if is_looked_at {
            return Ok(Some(session));
        }
        if chosen.is_none() && !self.heirs.knows(session) {
            engine.learn_heirs(session, &mut self.heirs).await?;
        }
        Ok(self.heirs.of(session, at))
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
