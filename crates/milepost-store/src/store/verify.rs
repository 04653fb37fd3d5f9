//! Verification: every entry, its checksum, its commitment and its place in the chain; every mark's
//! state and signature; every blob and record; and whether the derived rows say what the log says.

use std::collections::BTreeSet;

use futures_util::future::join;
use milepost_model::{
    BatchId, Body, Channel, EntryKind, Event, Hash, HashedState, Position, Seq, Session, SessionId, TimelineId,
    Timestamp,
};
use serde_json::{Map, Value};

use super::Store;
use super::fold::{self, event};
use crate::backend::{Depth, Finding, MarkRow, Range, SessionRow, StoredEntry, Timeline};
use crate::codec::{self, Codec, Decoded};
use crate::error::{Error, KeyError, Result};

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// In which session; none when it concerns the whole store.
    pub session: Option<SessionId>,
    /// At which entry.
    pub at: Option<Position>,
    /// It is in data that `reindex` rebuilds; the log itself is whole there.
    pub derived: bool,
    /// What it is.
    pub what: String,
}

/// What verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Sessions looked at.
    pub sessions: u64,
    /// Entries looked at.
    pub entries: u64,
    /// Records looked at.
    pub records: u64,
    /// The entries' stored bytes, blobs included.
    pub bytes: u64,
    /// Sessions whose key was destroyed: their entries cannot be looked at.
    pub shredded: Vec<SessionId>,
    /// Sessions whose import was begun and not finished, hidden: nothing is wrong with what is there of them.
    pub unfinished: Vec<SessionId>,
    /// What is not as it should be.
    pub problems: Vec<Problem>,
}

impl Verified {
    /// Nothing was found.
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }
}

/// What one pass over a timeline keeps in mind.
struct Pass<'a> {
    store: &'a Store,
    codec: &'a Codec,
    session: SessionId,
    report: &'a mut Verified,
    /// The chain hash so far; none after damage, until an entry carries it again.
    chain: Option<Hash>,
    /// The state so far; none where it was given up by pruning or lost by damage.
    state: Option<HashedState>,
    next: u64,
    marks: Vec<MarkRow>,
    trash: Vec<(Timestamp, Event)>,
    folded: Option<Session>,
    /// Replacements that the log vouches for, and those that were found.
    vouched: BTreeSet<(Position, Hash)>,
    replaced: Vec<(Position, Hash)>,
    batches: BTreeSet<BatchId>,
    /// The last message of the timeline that may have a text.
    last_text: Option<Position>,
}

impl Store {
    /// Verifies the whole workspace, and the store below it: every entry's checksum, commitment and place in the chain,
    /// the state of every checkpoint, every signature, every blob, every derived row. Of the text index, it is seen that
    /// its pages can be read; for what it says, see [`Store::verify_deep`].
    pub async fn verify(&self) -> Result<Verified> {
        self.verify_with(Depth::Usual, &mut |_, _| {}).await
    }

    /// As [`Store::verify`], and compares the text index with the texts, word by word. That takes about as long as making
    /// the index anew.
    pub async fn verify_deep(&self) -> Result<Verified> {
        self.verify_with(Depth::Deep, &mut |_, _| {}).await
    }

    /// The one or the other, telling how many sessions are done, and of how many.
    pub async fn verify_with(&self, depth: Depth, progress: &mut (dyn FnMut(u64, u64) + Send)) -> Result<Verified> {
        // Both at once: the one looks at pages, the other at what they say.
        let (checked, verified) = join(self.inner.backend.check(depth), self.verify_sessions(progress)).await;
        let mut report = Verified::default();
        match checked {
            Ok(found) => {
                report.problems.extend(found.into_iter().map(|Finding { derived, what }| Problem {
                    session: None,
                    at: None,
                    derived,
                    what,
                }));
            }
            Err(error) if error.is_damage() => report.note(None, None, false, &error),
            Err(error) => return Err(error),
        }
        let sessions = verified?;
        let problems = std::mem::take(&mut report.problems);
        report = sessions;
        report.problems.splice(0..0, problems);
        match self.check_records().await {
            Ok((count, damaged)) => {
                report.records = count;
                report.problems.extend(damaged.into_iter().map(|(key, error)| Problem {
                    session: None,
                    at: None,
                    derived: false,
                    what: format!("record {:?} of kind {:?}: {}", key.key, key.kind, error.finding()),
                }));
            }
            Err(error) if error.is_damage() => report.note(None, None, false, &error),
            Err(error) => return Err(error),
        }
        Ok(report)
    }

    async fn verify_sessions(&self, progress: &mut (dyn FnMut(u64, u64) + Send)) -> Result<Verified> {
        let mut report = Verified::default();
        let rows = match self.all_sessions().await {
            Err(error) if error.is_damage() => {
                report.note(None, None, false, &error);
                return Ok(report);
            }
            rows => rows?,
        };
        let listed: BTreeSet<SessionId> = rows.iter().map(|row| row.id).collect();
        for id in self.inner.backend.session_ids(self.workspace()).await? {
            if !listed.contains(&id) {
                let what = "it is not in the list of sessions; reindex puts it there".to_owned();
                report.problems.push(Problem { session: Some(id), at: None, derived: true, what });
            }
        }
        let total = rows.len() as u64;
        for (number, row) in (0..).zip(rows) {
            progress(number, total);
            self.verify_row(&row, &mut report).await?;
        }
        Ok(report)
    }

    /// Verifies one session.
    pub async fn verify_session(&self, id: SessionId) -> Result<Verified> {
        let mut report = Verified::default();
        let head = self.head(id).await?;
        self.verify_row(&head.row, &mut report).await?;
        Ok(report)
    }

    async fn verify_row(&self, row: &SessionRow, report: &mut Verified) -> Result<()> {
        report.sessions += 1;
        match self.verify_lines(row, report).await {
            Err(Error::Key(KeyError::Shredded { session })) => report.shredded.push(session),
            Err(error) if error.is_damage() => report.note(Some(row.id), None, false, &error),
            other => other?,
        }
        Ok(())
    }

    async fn verify_lines(&self, row: &SessionRow, report: &mut Verified) -> Result<()> {
        let id = row.id;
        let codec = self.codec(id).await?;
        let head = self.head(id).await?;
        if head.timeline.length != head.noted_length {
            let what = format!("it had {} entries, {} are there", head.noted_length, head.timeline.length);
            report.problems.push(Problem { session: Some(id), at: None, derived: false, what });
        }
        let lines = self.inner.backend.timelines(self.workspace(), id).await?;
        let before = report.problems.len();
        let mut pass = Pass {
            store: self,
            codec: &codec,
            session: id,
            report,
            chain: None,
            state: None,
            next: 0,
            marks: Vec::new(),
            trash: Vec::new(),
            folded: None,
            vouched: BTreeSet::new(),
            replaced: Vec::new(),
            batches: BTreeSet::new(),
            last_text: None,
        };
        for line in &lines {
            pass.line(line, lines.len() == 1).await?;
        }
        let Pass { mut marks, mut trash, folded, vouched, replaced, .. } = pass;
        for (at, commitment) in replaced {
            if !vouched.contains(&(at, commitment)) {
                let what = "it was replaced, and no redaction in the log vouches for that".to_owned();
                report.problems.push(Problem { session: Some(id), at: Some(at), derived: false, what });
            }
        }
        if head.row.hidden && self.is_unfinished(id).await? {
            report.unfinished.push(id);
            return Ok(());
        }
        // What is derived is compared only with a log that is whole.
        if report.problems.len() == before {
            trash.sort_by_key(|(time, _)| *time);
            fold::trash_marks(&mut marks, &trash);
            let derived = match folded {
                Some(session) => fold::session_to_row(&codec, &session)?,
                None => self.derive(id).await?.row,
            };
            if head.row.hidden && derived.hidden {
                // Of a session that was cut for its branches, the row still counts what it was.
                return Ok(());
            }
            self.verify_derived(&codec, &head.row, &derived, &lines, marks, report).await?;
        }
        Ok(())
    }

    async fn verify_derived(
        &self,
        codec: &Codec,
        row: &SessionRow,
        derived: &SessionRow,
        lines: &[Timeline],
        mut marks: Vec<MarkRow>,
        report: &mut Verified,
    ) -> Result<()> {
        let differs = |what: &str| Problem {
            session: Some(row.id),
            at: None,
            derived: true,
            what: format!("{what} does not say what the log says; reindex rebuilds it"),
        };
        let clear = |row: &SessionRow| SessionRow { detail: Vec::new(), ..row.clone() };
        let same_detail = match (fold::session_from_row(codec, row), fold::session_from_row(codec, derived)) {
            (Ok(found), Ok(expected)) => found == expected,
            _ => false,
        };
        if clear(row) != clear(derived) || !same_detail {
            report.problems.push(differs("its row in the list"));
        }
        let mut rows = match self.own_marks(lines).await {
            Err(error) if error.is_damage() => Vec::new(),
            other => other?,
        };
        rows.sort_by_key(|row| row.at);
        marks.sort_by_key(|row| row.at);
        if rows != marks {
            report.problems.push(differs("its list of checkpoints"));
        }
        for line in lines {
            for (seq, pinned) in self.inner.backend.keyframes(self.workspace(), line.id).await? {
                let at = Position { timeline: line.id, seq };
                let frame = match self.inner.backend.keyframe(self.workspace(), at).await {
                    Ok(frame) => frame.filter(|frame| frame.at == at),
                    Err(error) if error.is_damage() => {
                        report.note(Some(row.id), Some(at), !pinned, &error);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                if let Some(Err(error)) = frame.map(|frame| super::read::decode_keyframe(codec, &frame)) {
                    report.note(Some(row.id), Some(at), !pinned, &error);
                }
            }
        }
        Ok(())
    }
}

impl Verified {
    fn note(&mut self, session: Option<SessionId>, at: Option<Position>, derived: bool, error: &Error) {
        self.problems.push(Problem { session, at, derived, what: error.finding() });
    }
}

/// A message of the main channel that was not erased: all that a row says of it is that it is there.
fn is_plain_message(entry: &StoredEntry) -> bool {
    entry.kind == EntryKind::Message && entry.channel.is_none() && !codec::is_erased(entry)
}

impl Pass<'_> {
    async fn line(&mut self, line: &Timeline, only: bool) -> Result<()> {
        match line.parent {
            None => {
                self.chain = Some(codec::genesis(self.session));
                self.state = Some(HashedState::new(Value::Object(Map::new())));
            }
            Some(at) => {
                self.chain = self.store.hash_at(at).await.ok();
                self.state = self.state_after(at).await;
            }
        }
        self.folded = (only && line.parent.is_none()).then(|| Session::new(self.session, line.id, Timestamp(0)));
        self.next = line.begins();
        // After a restore the same work may be done again, under the same id.
        self.batches.clear();
        self.last_text = None;
        let mut pages = self.store.pages(Range::all(line.id, Seq(self.next), Seq(line.length)));
        while let Some(page) = pages.next().await? {
            for (seq, entry) in &page.entries {
                self.entry(Position { timeline: line.id, seq: *seq }, entry, page.payload(entry)).await?;
            }
        }
        if self.next < line.length {
            self.lost(line.id, line.length);
        }
        if let (Some(session), Some(last)) = (&mut self.folded, self.last_text) {
            session.preview = self.store.preview_at(last).await?;
        }
        Ok(())
    }

    /// What an entry says. A message's commitment vouches for what it says, so that it need not be read.
    fn decode(&mut self, at: Position, entry: &StoredEntry, blob: Option<&[u8]>) -> Result<Decoded> {
        if !is_plain_message(entry) {
            if entry.kind == EntryKind::Message {
                self.last_text = Some(at);
            }
            return self.codec.decode(at, entry, blob);
        }
        let (skimmed, may_have_text) = self.codec.skim(at, entry, blob)?;
        if may_have_text {
            self.last_text = Some(at);
        }
        Ok(skimmed)
    }

    async fn state_after(&self, at: Position) -> Option<HashedState> {
        self.store.state_before(at.timeline, at.seq.next()).await.ok().map(|(state, _)| HashedState::new(state))
    }

    fn problem(&mut self, at: Position, what: impl Into<String>) {
        self.report.problems.push(Problem {
            session: Some(self.session),
            at: Some(at),
            derived: false,
            what: what.into(),
        });
        self.folded = None;
    }

    fn lost(&mut self, timeline: TimelineId, to: u64) {
        let at = Position { timeline, seq: Seq(self.next) };
        self.problem(at, format!("{} entries from here on are missing", to - self.next));
        (self.chain, self.state) = (None, None);
        self.next = to;
    }

    async fn entry(&mut self, at: Position, entry: &StoredEntry, blob: Option<&[u8]>) -> Result<()> {
        if at.seq.0 > self.next {
            self.lost(at.timeline, at.seq.0);
        }
        self.next = at.seq.0 + 1;
        self.report.entries += 1;
        let text = entry.text.as_ref().map_or(0, String::len);
        self.report.bytes += (entry.body.len() + text + blob.map_or(0, <[u8]>::len)) as u64;
        let decoded = codec::check(at, entry).and_then(|()| self.decode(at, entry, blob));
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                self.problem(at, error.finding());
                self.chain = entry.chain.filter(|_| codec::check(at, entry).is_ok());
                if entry.kind == EntryKind::State {
                    self.state = None;
                }
                return Ok(());
            }
        };
        self.chain(at, entry, &decoded.commitment);
        if let Some(batch) = entry.batch
            && !self.batches.insert(batch)
        {
            self.problem(at, format!("batch {batch} was stored twice"));
        }
        if let Some(commitment) = decoded.replacement {
            self.replaced.push((at, commitment));
        }
        if !entry.refs.is_empty() {
            self.other_blobs(at, entry).await?;
        }
        if is_plain_message(entry) {
            if let Some(session) = &mut self.folded {
                session.active = session.active.max(entry.time);
                *session.counts.entry(Channel::MAIN).or_default() += 1;
            }
            return Ok(());
        }
        self.body(at, entry, decoded.body).await
    }

    fn chain(&mut self, at: Position, entry: &StoredEntry, commitment: &Hash) {
        let computed = self.chain.map(|previous| codec::chain(&previous, at, entry, commitment));
        if let (Some(computed), Some(stored)) = (computed, entry.chain)
            && computed != stored
        {
            self.problem(at, "the chain is broken: this entry or one before it is not what was written");
        }
        self.chain = entry.chain.or(computed);
    }

    /// Blobs besides the payload: each must be there and have the content its name says.
    async fn other_blobs(&mut self, at: Position, entry: &StoredEntry) -> Result<()> {
        let skip = usize::from(codec::is_blob(entry));
        if entry.refs.len() <= skip {
            return Ok(());
        }
        let ids = entry.refs[skip..].to_vec();
        let found = self.store.inner.backend.get_blobs(self.store.workspace(), ids.clone()).await?;
        for (id, stored) in ids.into_iter().zip(found) {
            match stored.map(|stored| self.codec.open_blob(id, &stored).map(|_| stored.len())) {
                Some(Ok(len)) => self.report.bytes += len as u64,
                Some(Err(error)) => self.problem(at, error.finding()),
                None => self.problem(at, format!("blob {} is missing", Hash(id.0))),
            }
        }
        Ok(())
    }

    async fn body(&mut self, at: Position, entry: &StoredEntry, body: Option<Body>) -> Result<()> {
        if let Some(session) = &mut self.folded {
            if at.seq.0 == 0 {
                session.created = entry.time;
            }
            match &body {
                Some(body) => fold::fold(session, entry.time, body),
                None if entry.kind == EntryKind::Mark => session.checkpoints += 1,
                None => {}
            }
        }
        match body {
            Some(Body::State(delta)) => {
                if let Some(Err(error)) = self.state.as_mut().map(|state| state.apply_once(delta)) {
                    self.problem(at, error.to_string());
                    self.state = None;
                }
            }
            None if entry.kind == EntryKind::State => self.state = None,
            None if entry.kind != EntryKind::Mark => {
                self.problem(at, "it was erased, and what was said or happened is never erased");
            }
            Some(Body::Mark(mark)) => {
                self.marks.push(fold::mark_to_row(self.codec, at, entry.time, &mark));
                if let Err(error) = self.store.check_signature(at, entry) {
                    self.problem(at, error.finding());
                }
                if self.state.is_none() {
                    self.state = self.state_after(at).await;
                }
                match self.state.as_mut().map(HashedState::hash) {
                    Some(hash) if hash == mark.state.0 => {}
                    Some(_) => self.problem(at, "its state does not have the hash that the checkpoint names"),
                    None => self.problem(at, "its state cannot be put together"),
                }
            }
            Some(Body::Event(event)) => match event.kind.as_str() {
                event::PRUNED | event::UNPRUNED => self.trash.push((entry.time, event)),
                event::REDACTED => {
                    let list =
                        event.data.get("replaced").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                    self.vouched.extend(list.iter().filter_map(|vouched| {
                        let (timeline, seq, hash) = serde_json::from_value(vouched.clone()).ok()?;
                        Some((Position { timeline, seq }, hash))
                    }));
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }
}
