//! A session as a run of pieces that mean the same in any store: no workspace's names, and everything that it shares with
//! the sessions it was branched from.

use std::collections::{HashMap, HashSet, VecDeque};

use milepost_model::{
    Body, Branch, Entry, EntryKind, Event, Hash, Position, Seq, Session, SessionId, State, TimelineId,
};
use milepost_store::{BlobId, CopyEntry, CopyLine, Store};
use serde_json::{Value, json};

use super::names::{Names, derived};
use crate::error::Result;

/// A piece of a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    /// A timeline begins.
    Line(Line),
    /// A blob that entries from here on may name.
    Blob(Hash, Vec<u8>),
    /// The next entry of the timeline.
    Entry(Box<PieceEntry>),
}

/// A timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    pub id: TimelineId,
    pub parent: Option<Position>,
    /// The entry after its last.
    pub end: Seq,
}

/// An entry, with the content hashes of the blobs that it needs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PieceEntry {
    pub entry: Entry,
    pub blobs: Vec<Hash>,
    pub whole: Option<State>,
}

/// The event that a branch begins with.
pub(super) const BRANCHED: &str = "branched";
/// Where a branch tells of the session that it was branched from, once it stands by itself.
pub(super) const BRANCHED_FROM: &str = "branched_from";
/// Where a checkpoint that was another session's tells its id there.
pub(super) const COPIED_FROM: &str = "copied_from";

/// Reads a session piece by piece. What was appended after it was begun is not read.
pub(super) struct Outgoing<'a> {
    store: &'a Store,
    pub session: Session,
    lines: Vec<CopyLine>,
    /// Lines that are told of already.
    told: usize,
    next: Seq,
    names: Names,
    /// Blobs that were sent, by their names in this store.
    pub blobs: HashMap<BlobId, Hash>,
    /// What was sent, under whatever name.
    sent: HashSet<Hash>,
    queue: VecDeque<Piece>,
}

impl<'a> Outgoing<'a> {
    pub async fn new(store: &'a Store, session: SessionId) -> Result<Self> {
        let lines = store.copy_lines(session).await?;
        let mut names = Names::default();
        for line in lines.iter().filter(|line| line.session != session) {
            names.insert(line.id, derived(session, line.id));
        }
        let session = store.session(session).await?;
        let (blobs, sent, queue) = (HashMap::new(), HashSet::new(), VecDeque::new());
        Ok(Self { store, session, lines, told: 0, next: Seq(0), names, blobs, sent, queue })
    }

    /// Timelines and entries there are.
    pub fn counts(&self) -> (u64, u64) {
        (self.lines.len() as u64, self.lines.iter().map(CopyLine::entries).sum())
    }

    /// The timelines that it is read from.
    pub fn lines(&self) -> &[CopyLine] {
        &self.lines
    }

    /// Where an entry of this store is in what is read, if it is.
    pub fn place_of(&self, at: Position) -> Option<(TimelineId, Seq)> {
        let line = self.lines.iter().find(|line| line.id == at.timeline)?;
        (line.begins()..line.end).contains(&at.seq).then(|| (self.names.id(at.timeline), at.seq))
    }

    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Piece>> {
        while self.queue.is_empty() {
            let current = self.told.checked_sub(1).and_then(|at| self.lines.get(at)).cloned();
            match current.filter(|line| self.next < line.end) {
                Some(line) => self.read(&line).await?,
                None => match self.lines.get(self.told) {
                    Some(line) => {
                        let parent = line.parent.map(|at| Position { timeline: self.names.id(at.timeline), ..at });
                        self.queue.push_back(Piece::Line(Line { id: self.names.id(line.id), parent, end: line.end }));
                        self.next = line.begins();
                        self.told += 1;
                    }
                    None => return Ok(None),
                },
            }
        }
        Ok(self.queue.pop_front())
    }

    async fn read(&mut self, line: &CopyLine) -> Result<()> {
        for copied in self.store.copy_entries(line, self.next).await? {
            self.next = copied.entry.at.seq.next();
            self.send(line, copied).await?;
        }
        Ok(())
    }

    async fn send(&mut self, line: &CopyLine, copied: CopyEntry) -> Result<()> {
        let CopyEntry { mut entry, refs, whole } = copied;
        let mut blobs = Vec::with_capacity(refs.len());
        for id in refs {
            let hash = match self.blobs.get(&id) {
                Some(hash) => *hash,
                None => {
                    let content = self.store.copy_blob(line.session, id).await?;
                    let hash = Hash(*blake3::hash(&content).as_bytes());
                    if self.sent.insert(hash) {
                        self.queue.push_back(Piece::Blob(hash, content));
                    }
                    self.names.insert(Hash(id.0), hash);
                    self.blobs.insert(id, hash);
                    hash
                }
            };
            blobs.push(hash);
        }
        entry.at.timeline = self.names.id(line.id);
        let is_shared = line.session != self.session.id;
        match &mut entry.body {
            Some(Body::Event(event)) => {
                let origin = event.clone();
                self.names.rename(&mut event.data);
                if !is_shared && event.kind == BRANCHED && self.continues_another(line) {
                    keep_origin(event, &origin);
                }
            }
            Some(Body::Mark(mark)) => {
                self.names.rename(&mut mark.extra);
                if is_shared {
                    mark.extra.insert(COPIED_FROM.to_owned(), Value::String(mark.id.to_string()));
                    let own = derived(self.session.id, mark.id);
                    self.names.insert(mark.id, own);
                    mark.id = own;
                }
            }
            _ => {}
        }
        self.queue.push_back(Piece::Entry(Box::new(PieceEntry { entry, blobs, whole })));
        Ok(())
    }

    fn continues_another(&self, line: &CopyLine) -> bool {
        let of = |at: Position| self.lines.iter().find(|line| line.id == at.timeline);
        line.parent.and_then(of).is_some_and(|parent| parent.session != self.session.id)
    }
}

/// The session that a session branched from, also when it stands by itself since it was archived, pulled or imported.
pub fn origin(session: &Session) -> Option<Branch> {
    let noted = || serde_json::from_value(session.extra.get(BRANCHED_FROM)?.clone()).ok();
    session.branch.or_else(noted)
}

/// Where a branch came from stays with the session, also where the other session is not.
fn keep_origin(event: &mut Event, origin: &Event) {
    let from = json!({ "session": origin.data.get("session"), "at": origin.data.get("from") });
    let set = event.data.entry("set").or_insert_with(|| json!({}));
    if let Value::Object(set) = set {
        set.insert(BRANCHED_FROM.to_owned(), from);
    }
}

impl Piece {
    /// What it is, for a person.
    pub fn what(&self) -> String {
        match self {
            Piece::Line(line) => format!("timeline {}", line.id),
            Piece::Blob(hash, _) => format!("blob {hash}"),
            Piece::Entry(piece) => piece.what(),
        }
    }
}

impl PieceEntry {
    /// What it is, for a person.
    pub fn what(&self) -> String {
        entry_name(self.entry.at.seq, self.entry.kind)
    }
}

/// An entry, for a person.
pub(super) fn entry_name(seq: Seq, kind: EntryKind) -> String {
    format!("entry {seq} ({})", kind.as_str())
}
