//! Checkpoints: finding them, and loading the state they name.

use milepost_model::{Body, Checkpoint, CheckpointId, Position, Seq, SessionId, State, Timestamp, Trigger, hash_value};

use super::Store;
use super::read::Segment;
use crate::backend::{MarkFilter, MarkRow, Order, Range, StoredEntry};
use crate::codec;
use crate::error::{Error, Result};

/// A checkpoint read back.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Where it is.
    pub at: Position,
    /// The session whose timeline it is in.
    pub session: SessionId,
    /// When it was taken.
    pub time: Timestamp,
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// When it was put into the trash.
    pub trashed: Option<Timestamp>,
}

/// Which marks to list.
#[derive(Debug, Clone, Default)]
pub struct MarkQuery {
    /// With one of these triggers; any when empty.
    pub triggers: Vec<Trigger>,
    /// With this label.
    pub label: Option<String>,
    /// Clean or not.
    pub clean: Option<bool>,
    /// Resumable or not.
    pub resumable: Option<bool>,
    /// Taken at or after.
    pub time_from: Option<Timestamp>,
    /// Taken before.
    pub time_to: Option<Timestamp>,
    /// Those in the trash instead of those that are not.
    pub trashed: bool,
    /// Oldest first instead of newest first.
    pub oldest_first: bool,
    /// At most so many.
    pub limit: Option<usize>,
}

/// A checkpoint with the state it names, verified.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The checkpoint.
    pub mark: Mark,
    /// The state it names.
    pub state: State,
    /// Newer checkpoints that could not be used, and why.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that could not be used.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// Which one.
    pub id: CheckpointId,
    /// Why not.
    pub why: String,
    /// Because it is not signed with the key in use; else it is damaged.
    pub unsigned: bool,
}

impl Skipped {
    fn new(id: CheckpointId, error: &Error) -> Self {
        let why = error.finding();
        let unsigned = [UNSIGNED, OTHER_KEY].iter().any(|text| why.contains(text));
        Self { id, why, unsigned }
    }
}

const UNSIGNED: &str = "it is not signed, though a signing key is set";
const OTHER_KEY: &str = "its signature was made with another key, or the log before it was changed";

impl Store {
    /// Checkpoints up to a session's head.
    pub async fn marks(&self, session: SessionId, query: &MarkQuery) -> Result<Vec<Mark>> {
        // A damaged mark is not listed; verify names it.
        Ok(self.marks_and_skipped(session, query).await?.0)
    }

    /// The same with those that cannot be used.
    pub async fn marks_and_skipped(&self, session: SessionId, query: &MarkQuery) -> Result<(Vec<Mark>, Vec<Skipped>)> {
        let rows = self.mark_rows(session, query).await?;
        self.read_marks(rows).await
    }

    async fn read_marks(&self, rows: Vec<MarkRow>) -> Result<(Vec<Mark>, Vec<Skipped>)> {
        let (mut marks, mut skipped) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            match self.read_mark(&row).await {
                Ok(mark) => marks.push(mark),
                Err(error) if error.is_damage() => skipped.push(Skipped::new(row.id, &error)),
                Err(error) => return Err(error),
            }
        }
        Ok((marks, skipped))
    }

    /// How many checkpoints each of these sessions has up to its head, without those in the trash: what
    /// [`Store::marks`] lists of each.
    pub async fn count_marks(&self, sessions: &[SessionId]) -> Result<Vec<u64>> {
        self.inner.backend.count_marks(self.workspace(), sessions.to_vec()).await
    }

    /// Checkpoints of a session that are not up to its head: what was left behind on old timelines when it was set back.
    /// Newest first, whatever the query says.
    pub async fn marks_left_behind(&self, session: SessionId, query: &MarkQuery) -> Result<Vec<Mark>> {
        let head = self.head(session).await?;
        let kept = self.lineage(head.timeline.id, Seq(head.timeline.length)).await?;
        let mut parts = Vec::new();
        for line in self.inner.backend.timelines(self.workspace(), session).await? {
            let begins = Seq(line.parent.map_or(0, |at| at.seq.0 + 1));
            let from = kept.iter().find(|part| part.timeline == line.id).map_or(begins, |part| part.to);
            let to = Seq(line.length);
            if from < to {
                parts.push(Segment { timeline: line.id, session, from, to });
            }
        }
        let mut rows = self.mark_rows_in(parts, &MarkQuery { limit: None, ..query.clone() }).await?;
        rows.sort_by_key(|row| std::cmp::Reverse((row.time, row.at.seq)));
        rows.truncate(query.limit.unwrap_or(usize::MAX));
        Ok(self.read_marks(rows).await?.0)
    }

    pub(super) async fn mark_rows(&self, session: SessionId, query: &MarkQuery) -> Result<Vec<MarkRow>> {
        let head = self.head(session).await?;
        let mut parts = self.lineage(head.timeline.id, Seq(head.timeline.length)).await?;
        if !query.oldest_first {
            parts.reverse();
        }
        self.mark_rows_in(parts, query).await
    }

    async fn mark_rows_in(&self, parts: Vec<Segment>, query: &MarkQuery) -> Result<Vec<MarkRow>> {
        let limit = query.limit.unwrap_or(self.inner.limits.max_page).min(self.inner.limits.max_page);
        let mut rows = Vec::new();
        for part in parts {
            let codec = self.codec(part.session).await?;
            let trigger = |trigger: &Trigger| match trigger {
                Trigger::Other(name) => codec.token("trigger", name),
                known => known.as_str().to_owned(),
            };
            let filter = MarkFilter {
                triggers: query.triggers.iter().map(trigger).collect(),
                label: query.label.as_deref().map(|label| codec.token("label", label)),
                clean: query.clean,
                resumable: query.resumable,
                time_from: query.time_from,
                time_to: query.time_to,
                trashed: Some(query.trashed),
                order: if query.oldest_first { Order::Forward } else { Order::Backward },
                limit: limit - rows.len(),
                ..MarkFilter::of(part.timeline, part.from, part.to)
            };
            rows.extend(self.inner.backend.marks(self.workspace(), filter).await?);
            if rows.len() >= limit {
                break;
            }
        }
        Ok(rows)
    }

    /// One checkpoint by its id.
    pub async fn mark(&self, id: CheckpointId) -> Result<Mark> {
        let row = self.inner.backend.mark(self.workspace(), id).await?;
        self.read_mark(&row.ok_or_else(|| Error::not_found("checkpoint", id))?).await
    }

    /// The checkpoint of a session whose time is nearest to a moment; of two equally near, the later.
    pub async fn mark_near(&self, session: SessionId, time: Timestamp) -> Result<Mark> {
        let one =
            |query: MarkQuery| async move { self.mark_rows(session, &MarkQuery { limit: Some(1), ..query }).await };
        let before = one(MarkQuery { time_to: Some(time), ..MarkQuery::default() }).await?;
        let after = one(MarkQuery { time_from: Some(time), oldest_first: true, ..MarkQuery::default() }).await?;
        let distance = |row: &MarkRow| (row.time.0 - time.0).unsigned_abs();
        let nearest = match (before.first(), after.first()) {
            (Some(before), Some(after)) if distance(before) < distance(after) => before,
            (_, Some(after)) => after,
            (Some(before), None) => before,
            (None, None) => return Err(Error::not_found("checkpoint of session", session)),
        };
        self.read_mark(nearest).await
    }

    pub(super) async fn read_mark(&self, row: &MarkRow) -> Result<Mark> {
        let (session, _) = self.parent(row.at.timeline).await?;
        let codec = self.codec(session).await?;
        let page = self.page(self.inner.backend.read(self.workspace(), Range::one(row.at)).await?).await?;
        let lost = |why: &str| Error::corrupt(format!("checkpoint {}", row.id), why);
        let (_, entry) = page.entries.first().ok_or_else(|| lost("its entry is missing"))?;
        codec::check(row.at, entry)?;
        self.check_signature(row.at, entry)?;
        match codec.body(row.at, entry, page.payload(entry))? {
            Some(Body::Mark(checkpoint)) if checkpoint.id == row.id => {
                Ok(Mark { at: row.at, session, time: entry.time, checkpoint, trashed: row.trashed })
            }
            Some(_) => Err(lost("another entry is in its place; reindex the session")),
            None => Err(lost("it was erased")),
        }
    }

    /// When a signing key is set, a mark must be signed with it.
    pub(super) fn check_signature(&self, at: Position, entry: &StoredEntry) -> Result<()> {
        let Some(key) = self.inner.keys.marks() else { return Ok(()) };
        let lost = |why: &str| Err(Error::corrupt(format!("checkpoint {at}"), why));
        match (&entry.mac, &entry.chain) {
            (Some(mac), Some(chain)) if key.verify(chain, mac) => Ok(()),
            (Some(_), Some(_)) => lost(OTHER_KEY),
            _ => lost(UNSIGNED),
        }
    }

    /// A checkpoint with its state, verified against the hash it carries.
    pub async fn load(&self, id: CheckpointId) -> Result<Loaded> {
        let mark = self.mark(id).await?;
        self.load_mark(mark).await
    }

    async fn load_mark(&self, mark: Mark) -> Result<Loaded> {
        let (state, _) = self.state_before(mark.at.timeline, mark.at.seq.next()).await?;
        if hash_value(&state) != mark.checkpoint.state.0 {
            return Err(Error::corrupt(
                format!("the state of checkpoint {}", mark.checkpoint.id),
                "it does not have the hash that the checkpoint names",
            ));
        }
        Ok(Loaded { mark, state: state.try_into()?, skipped: Vec::new() })
    }

    /// The newest checkpoint that fits the query and is whole. Newer ones that are damaged are
    /// passed over and named.
    pub async fn load_latest(&self, session: SessionId, query: &MarkQuery) -> Result<Loaded> {
        let max = query.limit.unwrap_or(self.inner.limits.max_page);
        let mut skipped = Vec::new();
        // Nearly always the first is whole; further ones are looked up only when it is not.
        let mut looked_at = 0;
        let mut limit = 4.min(max);
        loop {
            let query = MarkQuery { oldest_first: false, limit: Some(limit), ..query.clone() };
            let rows = self.mark_rows(session, &query).await?;
            for row in rows.iter().skip(looked_at) {
                let loaded = match self.read_mark(row).await {
                    Ok(mark) => self.load_mark(mark).await,
                    Err(error) => Err(error),
                };
                match loaded {
                    Ok(loaded) => return Ok(Loaded { skipped, ..loaded }),
                    Err(error) if error.is_damage() => skipped.push(Skipped::new(row.id, &error)),
                    Err(error) => return Err(error),
                }
            }
            looked_at = rows.len();
            if rows.len() < limit || limit >= max {
                break;
            }
            limit = (limit * 8).min(max);
        }
        match skipped.first() {
            Some(first) => Err(Error::corrupt(
                format!("every checkpoint of session {session}"),
                format!("the newest, {}: {}", first.id, first.why),
            )),
            None => Err(Error::not_found("checkpoint of session", session)),
        }
    }
}
