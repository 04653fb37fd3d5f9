//! What can be seen of a store, compared with the other store and with the oracle.

use std::collections::BTreeMap;

use milepost_model::{Channel, CheckpointId, Message, Position, Seq, SessionId, State, Timestamp, Trigger, hash_value};
use milepost_store::{Error, MarkQuery, MessageQuery, Result, SessionQuery, Store};

use super::oracle::MarkNote;
use super::side::Side;
use super::{World, ops, pick};
use crate::support::START;

/// What a store shows of one session.
#[derive(Debug, PartialEq)]
struct View {
    messages: Vec<(Position, Timestamp, Message)>,
    entries: Vec<(Position, Timestamp)>,
    marks: Vec<Vec<milepost_store::Mark>>,
    near: Result<CheckpointId, String>,
    latest: Result<CheckpointId, String>,
    timelines: Vec<(milepost_model::TimelineId, Option<Position>, Option<String>, u64)>,
}

/// What a store shows of everything.
#[derive(Debug, PartialEq)]
struct Everything {
    sessions: [Vec<milepost_model::Session>; 2],
    views: Vec<View>,
    states: Vec<Result<State, String>>,
}

impl World {
    /// Compares everything that can be seen, at the heads, at every mark and at some entries.
    pub async fn check(&self, at: &[ops::Pick]) {
        let reachable = self.oracle.reachable();
        let places: Vec<Position> = at.iter().filter_map(|number| pick(&reachable, *number)).collect();
        let mut seen = Vec::new();
        for side in &self.sides {
            seen.push(self.look(side, &places).await);
            let verified = side.store.verify().await.unwrap();
            if let Some(problem) = verified.problems.first() {
                panic!("{} is not whole: {problem:?}{}", side.name, explain(&side.store, problem).await);
            }
        }
        let [memory, other] = <[Everything; 2]>::try_from(seen).unwrap();
        assert_eq!(memory.sessions, other.sessions, "the lists of sessions differ");
        assert_eq!(memory.states, other.states, "states differ");
        for (memory, other) in memory.views.iter().zip(&other.views) {
            assert_eq!(memory, other, "memory and the other store differ");
        }
    }

    async fn look(&self, side: &Side, places: &[Position]) -> Everything {
        let mut sessions = [Vec::new(), Vec::new()];
        for trashed in [false, true] {
            let mut query = SessionQuery { trashed, limit: Some(3), by_creation: trashed, ..SessionQuery::default() };
            loop {
                let page = side.store.sessions(&query).await.unwrap();
                sessions[usize::from(trashed)].extend(page.sessions);
                query.after = page.next;
                if query.after.is_none() {
                    break;
                }
            }
        }
        self.check_list(side, &sessions);
        let mut views = Vec::new();
        for id in self.oracle.visible() {
            views.push(self.look_at(side, id).await);
        }
        let mut states = Vec::new();
        for at in places {
            let state = side.store.state_at(*at).await;
            match &state {
                Ok(state) => assert_eq!(state.clone().into_value(), self.oracle.state(*at), "the state at {at}"),
                Err(error) => assert!(
                    self.is_purged && matches!(error, Error::Pruned { .. }),
                    "{}: the state at {at} cannot be read: {error}",
                    side.name
                ),
            }
            states.push(state.map_err(|error| error.to_string()));
            let said = side.store.messages_at(*at, &MessageQuery::default()).await.unwrap();
            let said: Vec<_> = said.into_iter().map(|found| (found.at, found.message)).collect();
            assert_eq!(said, self.oracle.messages(*at), "the messages up to {at}");
        }
        Everything { sessions, views, states }
    }

    fn check_list(&self, side: &Side, sessions: &[Vec<milepost_model::Session>; 2]) {
        let listed: BTreeMap<SessionId, &milepost_model::Session> =
            sessions.iter().flatten().map(|session| (session.id, session)).collect();
        assert_eq!(listed.len(), sessions[0].len() + sessions[1].len(), "{} lists a session twice", side.name);
        assert_eq!(listed.keys().copied().collect::<Vec<_>>(), self.oracle.visible(), "the sessions in {}", side.name);
        for (id, session) in listed {
            let note = &self.oracle.sessions[&id];
            assert_eq!(session.trashed.is_some(), note.is_trashed, "whether {id} is in the trash");
            assert_eq!(session.title, note.title, "the title of {id}");
            assert_eq!(session.head, note.head.timeline, "the head of {id}");
            let messages = self.oracle.messages(note.head);
            let mut counts: BTreeMap<Channel, u64> = BTreeMap::new();
            messages.iter().for_each(|(_, message)| *counts.entry(message.channel.clone()).or_default() += 1);
            assert_eq!(session.counts, counts, "the counts of {id}");
            let marks = self.oracle.marks_before(note.head);
            assert_eq!(session.checkpoints, marks.len() as u64, "the number of checkpoints of {id}");
        }
    }

    async fn look_at(&self, side: &Side, id: SessionId) -> View {
        let (store, head) = (&side.store, self.oracle.sessions[&id].head);
        let found = store.messages(id, &MessageQuery::default()).await.unwrap();
        let messages: Vec<_> = found.into_iter().map(|found| (found.at, found.time, found.message)).collect();
        let said: Vec<_> = messages.iter().map(|(at, _, message)| (*at, message.clone())).collect();
        let expected = self.oracle.messages(head);
        assert_eq!(said, expected, "{}: the messages of {id}", side.name);
        self.check_queries(store, id, &expected).await;

        let entries = store.entries(id, Seq(0), Seq(u64::MAX)).await.unwrap();
        let entries: Vec<_> = entries.into_iter().map(|entry| (entry.at, entry.time)).collect();
        let path: Vec<Position> = entries.iter().map(|(at, _)| *at).collect();
        assert_eq!(path, self.oracle.path(head), "{}: the entries of {id}", side.name);
        assert!(entries.is_sorted_by_key(|(_, time)| *time), "time went back in {id}");
        let state = store.state(id).await.unwrap_or_else(|error| panic!("{}: the state of {id}: {error}", side.name));
        assert_eq!(state.into_value(), self.oracle.head_state(id), "{}: the state of {id}", side.name);
        for left in &self.oracle.sessions[&id].left {
            let said = store.messages_at(*left, &MessageQuery::default()).await.unwrap();
            assert_eq!(said.len(), self.oracle.messages(*left).len(), "the messages up to {left}, left behind");
        }
        let near = store.mark_near(id, START.plus_ms(50_000)).await;
        let resumable = MarkQuery { resumable: Some(true), ..MarkQuery::default() };
        let latest = store.load_latest(id, &resumable).await;
        if let Ok(loaded) = &latest {
            assert!(loaded.skipped.is_empty(), "{}: checkpoints were skipped: {:?}", side.name, loaded.skipped);
        }
        let lines = store.backend().timelines(store.workspace(), id).await.unwrap();
        View {
            messages,
            entries,
            marks: self.look_at_marks(side, id).await,
            near: near.map(|mark| mark.checkpoint.id).map_err(|error| error.to_string()),
            latest: latest.map(|loaded| loaded.mark.checkpoint.id).map_err(|error| error.to_string()),
            timelines: lines.into_iter().map(|line| (line.id, line.parent, line.head, line.length)).collect(),
        }
    }

    /// Messages by number, channel and place.
    async fn check_queries(&self, store: &Store, id: SessionId, all: &[(Position, Message)]) {
        let ask = async |query: MessageQuery| -> Vec<Position> {
            store.messages(id, &query).await.unwrap().into_iter().map(|found| found.at).collect()
        };
        let places: Vec<Position> = all.iter().map(|(at, _)| *at).collect();
        let last = ask(MessageQuery { last: Some(3), ..MessageQuery::default() }).await;
        assert_eq!(last, places[places.len().saturating_sub(3)..], "the last messages");
        let first = ask(MessageQuery { first: Some(2), ..MessageQuery::default() }).await;
        assert_eq!(first, places[..places.len().min(2)], "the first messages");
        let side = Channel::new("side").unwrap();
        let of_side: Vec<Position> = all.iter().filter(|(_, m)| m.channel == side).map(|(at, _)| *at).collect();
        assert_eq!(ask(MessageQuery { channel: Some(side), ..MessageQuery::default() }).await, of_side, "a channel");
        let (from, to) = (Seq(4), Seq(15));
        let within: Vec<Position> = places.iter().copied().filter(|at| at.seq >= from && at.seq < to).collect();
        let query = MessageQuery { from: Some(from), to: Some(to), ..MessageQuery::default() };
        assert_eq!(ask(query).await, within, "messages within a range");
    }

    /// The lists of marks, and every mark loaded.
    async fn look_at_marks(&self, side: &Side, id: SessionId) -> Vec<Vec<milepost_store::Mark>> {
        let mut all = self.oracle.marks_before(self.oracle.sessions[&id].head);
        all.reverse();
        let none = MarkQuery::default();
        type Accepts = fn(&MarkNote) -> bool;
        let queries: [(MarkQuery, Accepts); 6] = [
            (none.clone(), |note| note.trashed.is_none()),
            (MarkQuery { trashed: true, ..none.clone() }, |note| note.trashed.is_some()),
            (MarkQuery { clean: Some(true), ..none.clone() }, |note| note.trashed.is_none() && note.clean),
            (MarkQuery { resumable: Some(false), ..none.clone() }, |note| note.trashed.is_none() && !note.resumable),
            (MarkQuery { label: Some("label 1".into()), ..none.clone() }, |note| {
                note.trashed.is_none() && note.label.as_deref() == Some("label 1")
            }),
            (MarkQuery { triggers: vec![Trigger::Manual, Trigger::Other("own".into())], ..none }, |note| {
                note.trashed.is_none() && ["manual", "own"].contains(&note.trigger.as_str())
            }),
        ];
        let mut lists = Vec::new();
        for (query, accepts) in queries {
            let found = side.store.marks(id, &query).await.unwrap();
            let ids: Vec<CheckpointId> = found.iter().map(|mark| mark.checkpoint.id).collect();
            let fits = |id: &&CheckpointId| !self.oracle.marks[id].purged && accepts(&self.oracle.marks[id]);
            let expected: Vec<CheckpointId> = all.iter().filter(fits).copied().collect();
            assert_eq!(ids, expected, "{}: the checkpoints of {id} for {query:?}", side.name);
            lists.push(found);
        }
        for mark in lists[..2].iter().flatten() {
            let loaded = side.store.load(mark.checkpoint.id).await;
            let loaded = loaded.unwrap_or_else(|error| panic!("{}: {}: {error}", side.name, mark.checkpoint.id));
            let state = loaded.state.into_value();
            assert_eq!(state, self.oracle.state(mark.at), "{}: the state of {}", side.name, mark.checkpoint.id);
            assert_eq!(mark.checkpoint.state.0, hash_value(&state), "the hash of its state");
            assert_eq!(mark.checkpoint.messages(), self.oracle.messages(mark.at).len() as u64, "its messages");
            let number = self.oracle.marks_before(mark.at).len() as u64;
            assert_eq!(mark.checkpoint.number, number, "{}: the number of {}", side.name, mark.checkpoint.id);
        }
        lists
    }
}

/// What a session's row says and what it would say if it were rebuilt.
async fn explain(store: &Store, problem: &milepost_store::Problem) -> String {
    let Some(id) = problem.session.filter(|_| problem.derived) else { return String::new() };
    let before = store.session(id).await;
    let rebuilt = store.reindex_session(id).await;
    format!("\nthe row: {before:?}\nthe log: {:?} ({rebuilt:?})", store.session(id).await)
}
