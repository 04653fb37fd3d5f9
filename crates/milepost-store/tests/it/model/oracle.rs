//! What the store should say, kept in the plainest way: every entry knows the one before it, and
//! the whole state after it. Nothing is shared, nothing is encoded.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost_model::{CheckpointId, Message, Position, Seq, SessionId, TimelineId, Timestamp};
use serde_json::Value;

#[derive(Debug, Clone)]
pub enum Said {
    Nothing,
    Message(Message),
    Mark(CheckpointId),
}

#[derive(Debug, Clone)]
pub struct Point {
    pub before: Option<Position>,
    pub said: Said,
    pub state: Arc<Value>,
}

#[derive(Debug, Clone)]
pub struct MarkNote {
    pub at: Position,
    pub trigger: String,
    pub label: Option<String>,
    pub clean: bool,
    pub resumable: bool,
    pub trashed: Option<Timestamp>,
    pub purged: bool,
}

impl MarkNote {
    pub fn is_kept(&self) -> bool {
        self.label.is_some() || ["manual", "milestone", "phase_complete"].contains(&self.trigger.as_str())
    }
}

#[derive(Debug, Clone)]
pub struct SessionNote {
    /// Its last entry.
    pub head: Position,
    /// Last entries of timelines that were left behind.
    pub left: Vec<Position>,
    pub title: Option<String>,
    pub is_trashed: bool,
    pub is_hidden: bool,
}

#[derive(Debug, Default)]
pub struct Oracle {
    pub points: BTreeMap<Position, Point>,
    pub sessions: BTreeMap<SessionId, SessionNote>,
    pub timelines: BTreeMap<TimelineId, (SessionId, Option<Position>)>,
    pub marks: BTreeMap<CheckpointId, MarkNote>,
}

impl Oracle {
    /// Sessions that are not only kept for their branches.
    pub fn visible(&self) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, note)| !note.is_hidden).map(|(id, _)| *id).collect()
    }

    pub fn note(&mut self, id: SessionId) -> &mut SessionNote {
        self.sessions.get_mut(&id).unwrap()
    }

    /// All entries up to and with one, oldest first.
    pub fn path(&self, at: Position) -> Vec<Position> {
        let mut path = Vec::new();
        let mut next = Some(at);
        while let Some(at) = next {
            path.push(at);
            next = self.points[&at].before;
        }
        path.reverse();
        path
    }

    pub fn messages(&self, at: Position) -> Vec<(Position, Message)> {
        let said = |at: Position| match &self.points[&at].said {
            Said::Message(message) => Some((at, message.clone())),
            _ => None,
        };
        self.path(at).into_iter().filter_map(said).collect()
    }

    /// Marks up to and with an entry, oldest first, also those in the trash and those purged.
    pub fn marks_before(&self, at: Position) -> Vec<CheckpointId> {
        let said = |at: &Position| match &self.points[at].said {
            Said::Mark(id) => Some(*id),
            _ => None,
        };
        self.path(at).iter().filter_map(said).collect()
    }

    pub fn state(&self, at: Position) -> Value {
        (*self.points[&at].state).clone()
    }

    pub fn head_state(&self, session: SessionId) -> Value {
        self.state(self.sessions[&session].head)
    }

    pub fn owner(&self, at: Position) -> SessionId {
        self.timelines[&at.timeline].0
    }

    /// Begins a session or, with a session that is there, gives it a new head.
    pub fn open(&mut self, session: SessionId, first: Position, parent: Option<Position>) {
        let state = parent.map_or_else(|| Value::Object(Default::default()), |at| self.state(at));
        self.points.insert(first, Point { before: parent, said: Said::Nothing, state: Arc::new(state) });
        self.timelines.insert(first.timeline, (session, parent));
        match self.sessions.get_mut(&session) {
            Some(note) => {
                let old = std::mem::replace(&mut note.head, first);
                note.left.push(old);
            }
            None => {
                let note =
                    SessionNote { head: first, left: Vec::new(), title: None, is_trashed: false, is_hidden: false };
                self.sessions.insert(session, note);
            }
        }
    }

    /// Adds an entry to a session's head. The state stays as it is when none is given.
    pub fn add(&mut self, session: SessionId, said: Said, state: Option<Value>) -> Position {
        let head = self.sessions[&session].head;
        let at = Position { timeline: head.timeline, seq: Seq(head.seq.0 + 1) };
        let state = state.map_or_else(|| Arc::clone(&self.points[&head].state), Arc::new);
        self.points.insert(at, Point { before: Some(head), said, state });
        self.note(session).head = at;
        at
    }

    /// Sessions with a timeline that continues one of this session's.
    pub fn children(&self, session: SessionId) -> Vec<SessionId> {
        let begins_here = |parent: &Option<Position>| parent.is_some_and(|at| self.owner(at) == session);
        let mut found: Vec<SessionId> = (self.timelines.values())
            .filter(|(owner, parent)| *owner != session && begins_here(parent))
            .map(|(owner, _)| *owner)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Keeps a session only for its branches.
    pub fn hide(&mut self, session: SessionId) {
        let note = self.note(session);
        note.is_hidden = true;
        note.left.clear();
    }

    pub fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        let gone: Vec<TimelineId> =
            self.timelines.iter().filter(|(_, (owner, _))| *owner == session).map(|(id, _)| *id).collect();
        self.timelines.retain(|id, _| !gone.contains(id));
        self.points.retain(|at, _| !gone.contains(&at.timeline));
        self.marks.retain(|_, note| !gone.contains(&note.at.timeline));
    }

    /// Whether a timeline begins at this entry.
    pub fn is_branch_point(&self, at: Position) -> bool {
        self.timelines.values().any(|(_, parent)| *parent == Some(at))
    }

    /// Marks in a session's own timelines.
    pub fn own_marks(&self, session: SessionId) -> Vec<(CheckpointId, MarkNote)> {
        let own = self.marks.iter().filter(|(_, note)| self.owner(note.at) == session);
        own.map(|(id, note)| (*id, note.clone())).collect()
    }

    /// The newest of a session's own marks (among these) before each branch, and before its head when asked.
    pub fn anchors(
        &self,
        session: SessionId,
        among: &[(CheckpointId, MarkNote)],
        with_head: bool,
    ) -> Vec<CheckpointId> {
        let branches = self.timelines.values().filter(|(owner, _)| *owner != session).filter_map(|(_, parent)| *parent);
        let begins = branches.filter(|at| self.owner(*at) == session);
        let places = begins.chain(with_head.then(|| self.sessions[&session].head));
        let newest = |at: Position| {
            let marks = self.marks_before(at);
            marks.into_iter().rev().find(|mark| among.iter().any(|(id, _)| id == mark))
        };
        places.filter_map(newest).collect()
    }

    /// Where a session can be set back to.
    pub fn restorable(&self, session: SessionId) -> Vec<Position> {
        let note = &self.sessions[&session];
        let mut all = self.path(note.head);
        for left in &note.left {
            all.extend(self.path(*left).into_iter().filter(|at| self.owner(*at) == session));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Every entry that can still be asked for.
    pub fn reachable(&self) -> Vec<Position> {
        let mut all: Vec<Position> = self.visible().into_iter().flat_map(|id| self.restorable(id)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Replaces a word in everything said and known.
    pub fn redact(&mut self, word: &str, instead: &str) {
        for point in self.points.values_mut() {
            if let Said::Message(message) = &mut point.said {
                let text = message.text().replace(word, instead);
                message.content = milepost_model::Content::Text(text);
            }
            let mut state = (*point.state).clone();
            replace(&mut state, word, instead);
            point.state = Arc::new(state);
        }
        for note in self.sessions.values_mut() {
            note.title = note.title.take().map(|title| title.replace(word, instead));
        }
    }
}

fn replace(value: &mut Value, word: &str, instead: &str) {
    match value {
        Value::String(text) => *text = text.replace(word, instead),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, word, instead)),
        Value::Object(map) => map.values_mut().for_each(|value| replace(value, word, instead)),
        _ => {}
    }
}
