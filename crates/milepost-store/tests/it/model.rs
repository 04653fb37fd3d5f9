//! Random histories on the memory backend, on SQLite, and in a plain oracle: all three must agree.
//!
//! Both stores are opened with the same seed and the same clock, so that they draw the same ids and
//! every answer, every list and every error can be compared as it is. The oracle knows only what was
//! said and what the state was; it finds what both stores get wrong together.

mod ops;
mod oracle;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use milepost_model::{
    BatchId, Channel, CheckpointId, Delta, Event, ManualClock, Message, Position, Resumable, Retention, Role, Seq,
    SessionId, SessionPatch, Source, State, Timestamp, Trigger, hash_value,
};
use milepost_store::memory::MemoryBackend;
use milepost_store::sqlite::{SqliteBackend, SqliteOptions};
use milepost_store::{
    Append, Backend, Claim, Conflict, Deleted, Error, MarkQuery, MessageQuery, NewMark, NewSession, Options, Pruned,
    Purged, Receipt, Redactor, Result, SessionQuery, SessionWriter, Store,
};
use ops::{Change, Item, Op, noise, text};
use oracle::{MarkNote, Oracle, Said};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use serde_json::{Value, json};

use crate::support::START;

/// What an operation answers; errors are compared by what they say.
#[derive(Debug, Clone, PartialEq)]
enum Answer {
    Done,
    Began(SessionId, Position),
    Stored(Receipt),
    Each(Vec<Result<Receipt, String>>),
    Pruned(Pruned),
    Purged(Purged),
    Deleted(Deleted),
    Collected(Vec<SessionId>, u64),
    Redacted(u64, u64),
    Emptied(Purged, Vec<SessionId>),
    /// Whether the writer before was refused.
    TakenOver(Option<bool>),
}

/// An operation with everything picked: the same call for every store.
#[derive(Debug, Clone)]
enum Call {
    Create(SessionPatch),
    Append(SessionId, Vec<Part>, BatchId),
    /// Their batch ids are given: which draw comes first depends on who waits for whom.
    Together(SessionId, Vec<(Vec<Part>, BatchId)>),
    Patch(SessionId, SessionPatch),
    File(SessionId, u8),
    Branch(Position, SessionPatch),
    Restore(SessionId, Position),
    Prune(SessionId, Retention),
    TrashMark(SessionId, CheckpointId),
    UntrashMark(SessionId, CheckpointId),
    Purge(SessionId, Timestamp),
    Trash(SessionId),
    Untrash(SessionId),
    Delete(SessionId, milepost_store::DeleteMode),
    EmptyTrash(Retention),
    Collect,
    Reopen,
    Advance(i64),
    TakeOver(SessionId),
    Release(SessionId),
    Redact(&'static str),
    Reindex,
}

/// One entry to append.
#[derive(Debug, Clone)]
enum Part {
    Message(Message),
    State(Value),
    Delta(Value, Value),
    Mark(NewMark),
    Event,
    Misfit,
}

fn build(parts: &[Part], batch: BatchId) -> Append {
    parts.iter().cloned().fold(Append::new().batch(batch), |append, part| match part {
        Part::Message(message) => append.message(message),
        Part::State(value) => append.state(State::try_from(value).unwrap()),
        Part::Delta(before, after) => append.delta(Delta::diff(&before, &after).unwrap()),
        Part::Mark(mark) => append.mark(mark),
        Part::Event => append.event(Event::new("note", json!({ "what": "something" }))),
        Part::Misfit => append.delta(Delta::builder().remove("/nowhere/at all").build().unwrap()),
    })
}

type OpenBackend = dyn Fn(&Source) -> Arc<dyn Backend>;

/// One of the stores under test.
struct Side {
    name: &'static str,
    clock: Arc<ManualClock>,
    source: Source,
    open: Box<OpenBackend>,
    store: Store,
    writers: HashMap<SessionId, SessionWriter>,
}

fn claim() -> Claim {
    Claim::new("a writer")
}

impl Side {
    async fn new(name: &'static str, seed: u64, open: Box<OpenBackend>) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let source = Source::seeded(seed, Arc::clone(&clock));
        let store = connect(open(&source), &source).await;
        Self { name, clock, source, open, store, writers: HashMap::new() }
    }

    async fn memory(seed: u64) -> Self {
        let first = std::sync::OnceLock::new();
        let open = move |source: &Source| -> Arc<dyn Backend> {
            Arc::new(first.get_or_init(|| MemoryBackend::new(source.clone())).clone())
        };
        Self::new("memory", seed, Box::new(open)).await
    }

    async fn sqlite(seed: u64, dir: &Path) -> Self {
        let path = dir.join("milepost.db");
        let open = move |source: &Source| -> Arc<dyn Backend> {
            Arc::new(SqliteBackend::open(&path, &SqliteOptions::default(), source.clone()).unwrap())
        };
        Self::new("sqlite", seed, Box::new(open)).await
    }

    /// The session's writer; when another holds it, it is taken over.
    async fn writer(&mut self, id: SessionId) -> Result<&SessionWriter> {
        if !self.writers.contains_key(&id) {
            let writer = match self.store.write(id, &claim()).await {
                Err(Error::Held { .. }) => self.store.write(id, &claim().take_over()).await?,
                other => other?,
            };
            self.writers.insert(id, writer);
        }
        Ok(&self.writers[&id])
    }

    async fn run(&mut self, call: &Call) -> Result<Answer> {
        let began = async |writer: &SessionWriter, at: u64| {
            let first = Position { timeline: writer.session().await.head, seq: Seq(at) };
            Answer::Began(writer.id(), first)
        };
        Ok(match call {
            Call::Create(patch) => {
                let new = NewSession { id: None, patch: patch.clone() };
                let writer = self.store.create(new, &claim()).await?;
                let answer = began(&writer, 0).await;
                self.writers.insert(writer.id(), writer);
                answer
            }
            Call::Branch(at, patch) => {
                let new = NewSession { id: None, patch: patch.clone() };
                let writer = self.store.branch(*at, new, &claim()).await?;
                let answer = began(&writer, at.seq.0 + 1).await;
                self.writers.insert(writer.id(), writer);
                answer
            }
            Call::Append(id, parts, batch) => {
                Answer::Stored(self.writer(*id).await?.append(build(parts, *batch)).await?)
            }
            Call::Together(id, appends) => {
                let writer = self.writer(*id).await?;
                let say = |outcome: Result<Receipt>| outcome.map_err(|error| error.to_string());
                let mut built = appends.iter().map(|(parts, batch)| writer.append(build(parts, *batch)));
                let (first, second, third) = (built.next().unwrap(), built.next().unwrap(), built.next());
                let third = async {
                    match third {
                        Some(append) => Some(append.await),
                        None => None,
                    }
                };
                let (first, second, third) = tokio::join!(first, second, third);
                Answer::Each([Some(first), Some(second), third].into_iter().flatten().map(say).collect())
            }
            Call::Patch(id, patch) => {
                Answer::Stored(self.writer(*id).await?.append(Append::new().patch(patch.clone())).await?)
            }
            Call::File(id, seed) => {
                let writer = self.writer(*id).await?;
                let bytes = noise(*seed, 3000).into_bytes();
                let blob = writer.put_blob(&bytes).await?;
                assert_eq!(writer.get_blob(blob).await?, bytes);
                let event = Event::new("file", json!({ "seed": seed }));
                Answer::Stored(writer.append(Append::new().event_with(event, vec![blob])).await?)
            }
            Call::Restore(id, at) => Answer::Stored(self.writer(*id).await?.restore(*at).await?),
            Call::Prune(id, keep) => {
                let preview = self.store.prune_preview(*id, keep).await?;
                let pruned = self.writer(*id).await?.prune(keep).await?;
                assert_eq!(pruned, preview, "what pruning did, and what its preview said");
                Answer::Pruned(pruned)
            }
            Call::TrashMark(id, mark) => self.writer(*id).await?.trash_mark(*mark).await.map(|()| Answer::Done)?,
            Call::UntrashMark(id, mark) => self.writer(*id).await?.untrash_mark(*mark).await.map(|()| Answer::Done)?,
            Call::Purge(id, before) => {
                let preview = self.store.purge_preview(*id, *before).await?;
                let purged = self.writer(*id).await?.purge(*before).await?;
                assert_eq!(purged, preview, "what purging did, and what its preview said");
                Answer::Purged(purged)
            }
            Call::Trash(id) => {
                self.writers.remove(id);
                self.store.trash(*id, &claim().take_over()).await.map(|()| Answer::Done)?
            }
            Call::Untrash(id) => {
                self.writers.remove(id);
                self.store.untrash(*id, &claim().take_over()).await.map(|()| Answer::Done)?
            }
            Call::Delete(id, mode) => {
                let claim = claim().take_over();
                let would = self.store.delete(*id, *mode, &claim, true).await?;
                let deleted = self.store.delete(*id, *mode, &claim, false).await?;
                assert_eq!(deleted, would, "what deleting did, and what its dry run said");
                self.writers.retain(|id, _| !deleted.sessions.contains(id) && !deleted.hidden.contains(id));
                Answer::Deleted(deleted)
            }
            Call::EmptyTrash(keep) => {
                self.writers.clear();
                let (purged, deleted) = self.store.empty_trash(keep, &claim().take_over(), false).await?;
                Answer::Emptied(purged, deleted)
            }
            Call::Collect => {
                let collected = self.store.collect(&claim().take_over(), false).await?;
                Answer::Collected(collected.sessions, collected.blobs)
            }
            Call::Reopen => {
                self.writers.clear();
                self.store.close().await?;
                assert!(matches!(self.store.sessions(&SessionQuery::default()).await, Err(Error::Closed)));
                self.store = connect((self.open)(&self.source), &self.source).await;
                Answer::Done
            }
            Call::Advance(ms) => {
                self.clock.advance_ms(*ms);
                Answer::Done
            }
            Call::TakeOver(id) => {
                let other = connect((self.open)(&self.source), &self.source).await;
                let second = Claim::new("a second process");
                let writer = match other.write(*id, &second).await {
                    Err(Error::Held { .. }) => other.write(*id, &second.take_over()).await?,
                    outcome => outcome?,
                };
                let before = self.writers.insert(*id, writer);
                let refused = match before {
                    Some(before) => Some(matches!(
                        before.append(Append::new().message(Message::new(Role::User, "late"))).await,
                        Err(Error::Fenced { ref holder, .. }) if holder == "a second process"
                    )),
                    None => None,
                };
                Answer::TakenOver(refused)
            }
            Call::Release(id) => match self.writers.remove(id) {
                Some(writer) => writer.release().await.map(|()| Answer::Done)?,
                None => Answer::Done,
            },
            Call::Redact(word) => {
                self.writers.clear();
                let redactor = Redactor::literal(*word, "[gone]")?;
                let done = self.store.redact(&redactor, "it leaked", &claim().take_over(), false).await?;
                Answer::Redacted(done.entries, done.checkpoints)
            }
            Call::Reindex => {
                self.writers.clear();
                self.store.reindex().await?;
                Answer::Done
            }
        })
    }
}

async fn connect(backend: Arc<dyn Backend>, source: &Source) -> Store {
    let mut options = Options::default();
    options.source = Some(source.clone());
    Store::with_backend(backend, options).await.unwrap()
}

/// The stores, the oracle, and what can be sent again.
struct World {
    sides: [Side; 2],
    oracle: Oracle,
    ids: Source,
    sent: BTreeMap<SessionId, Vec<(Vec<Part>, BatchId, Receipt)>>,
    /// States that purging gave up may be asked for in vain.
    is_purged: bool,
}

fn pick<T: Clone>(among: &[T], number: ops::Pick) -> Option<T> {
    among.get(usize::from(number) % among.len().max(1)).cloned()
}

impl World {
    fn now(&self) -> Timestamp {
        self.sides[0].source.now()
    }

    /// Resolves an operation against what is there; none when there is nothing to do it to.
    fn call(&mut self, op: &Op) -> Option<Call> {
        let visible = self.oracle.visible();
        let session = |number: &ops::Pick| pick(&visible, *number);
        let title = |title: &u8| SessionPatch::new().title(text(&[*title, 3]).replace('\0', "-")).tags(["model"]);
        Some(match op {
            Op::Create { title: name } => Call::Create(title(name)),
            Op::Append { session: number, items } => {
                let id = session(number)?;
                let parts = resolve(items, &mut self.oracle.head_state(id));
                Call::Append(id, parts, self.ids.id())
            }
            Op::Together { session: number, appends } => {
                let id = session(number)?;
                let mut state = self.oracle.head_state(id);
                let mut all = Vec::new();
                for items in appends {
                    let mut next = state.clone();
                    let parts = resolve(items, &mut next);
                    if !is_misfit(&parts) {
                        state = next;
                    }
                    all.push((parts, self.ids.id()));
                }
                Call::Together(id, all)
            }
            Op::Resend { session: number, which } => {
                let id = session(number)?;
                let (parts, batch, _) = pick(self.sent.get(&id)?, *which)?;
                Call::Append(id, parts, batch)
            }
            Op::Patch { session: number, title: name } => Call::Patch(session(number)?, title(name)),
            Op::File { session: number, seed } => Call::File(session(number)?, *seed),
            Op::Branch { session: number, at } => {
                let at = pick(&self.oracle.restorable(session(number)?), *at)?;
                Call::Branch(at, SessionPatch::new().title(format!("branch at {}", at.seq)))
            }
            Op::Restore { session: number, at } => {
                let id = session(number)?;
                Call::Restore(id, pick(&self.oracle.restorable(id), *at)?)
            }
            Op::Prune { session: number, max, clean_only, max_age_days } => {
                let (max_checkpoints, max_age_days) = (u32::from(*max), u32::from(*max_age_days));
                let keep = Retention { max_checkpoints, max_age_days, clean_only: *clean_only, ..Retention::default() };
                Call::Prune(session(number)?, keep)
            }
            Op::TrashMark { session: number, mark } => {
                let id = session(number)?;
                Call::TrashMark(id, pick(&self.pickable_marks(id), *mark)?)
            }
            Op::UntrashMark { session: number, mark } => {
                let id = session(number)?;
                Call::UntrashMark(id, pick(&self.pickable_marks(id), *mark)?)
            }
            Op::Purge { session: number, older_ms } => {
                Call::Purge(session(number)?, self.now().plus_ms(1 - i64::from(*older_ms)))
            }
            Op::Trash { session: number } => Call::Trash(session(number)?),
            Op::Untrash { session: number } => Call::Untrash(session(number)?),
            Op::Delete { session: number, mode } => Call::Delete(session(number)?, *mode),
            Op::EmptyTrash { days } => {
                Call::EmptyTrash(Retention { trash_days: u32::from(*days), ..Retention::default() })
            }
            Op::Collect => Call::Collect,
            Op::Reopen => Call::Reopen,
            Op::Advance { ms } => Call::Advance(i64::from(*ms)),
            Op::TakeOver { session: number } => Call::TakeOver(session(number)?),
            Op::Release { session: number } => Call::Release(session(number)?),
            Op::Redact { word } => Call::Redact(ops::WORDS[usize::from(*word)]),
            Op::Reindex => Call::Reindex,
            Op::Check { .. } => return None,
        })
    }

    fn pickable_marks(&self, id: SessionId) -> Vec<CheckpointId> {
        self.oracle.own_marks(id).into_iter().filter(|(_, note)| !note.purged).map(|(id, _)| id).collect()
    }

    async fn step(&mut self, op: &Op) {
        if let Op::Check { at } = op {
            return self.check(at).await;
        }
        let Some(call) = self.call(op) else { return };
        let mut answers = Vec::new();
        for side in &mut self.sides {
            answers.push(side.run(&call).await.map_err(|error| (error.to_string(), error)));
        }
        let (second, first) = (answers.pop().unwrap(), answers.pop().unwrap());
        let words = |outcome: &Result<Answer, (String, Error)>| outcome.clone().map_err(|(text, _)| text);
        assert_eq!(words(&first), words(&second), "memory and sqlite answer differently to {call:?}");
        match first {
            Ok(answer) => self.record(&call, answer),
            Err((text, error)) => self.refused(&call, &text, &error),
        }
        self.catch_up(&call).await;
    }

    /// Some calls record an event of the store's own in the log: the oracle takes it as an entry that says nothing.
    async fn catch_up(&mut self, call: &Call) {
        let may_record = matches!(
            call,
            Call::Prune(..)
                | Call::TrashMark(..)
                | Call::UntrashMark(..)
                | Call::Purge(..)
                | Call::Redact(..)
                | Call::EmptyTrash(..)
        );
        for id in self.oracle.visible() {
            let store = &self.sides[0].store;
            let head = store.backend().session(store.workspace(), id).await.unwrap().expect("a session is gone");
            let known = self.oracle.sessions[&id].head;
            assert_eq!(head.timeline.id, known.timeline, "the head of {id} after {call:?}");
            let new = head.timeline.length - (known.seq.0 + 1);
            assert!(new <= u64::from(may_record), "{new} entries appeared in {id} with {call:?}");
            for _ in 0..new {
                self.oracle.add(id, Said::Nothing, None);
            }
        }
        // When a mark went into the trash is told by the log's time, which never goes back.
        let store = &self.sides[0].store;
        for (id, note) in self.oracle.marks.iter_mut().filter(|(_, note)| !note.purged && note.trashed.is_some()) {
            let row = store.backend().mark(store.workspace(), *id).await.unwrap();
            note.trashed = row.and_then(|row| row.trashed).or(note.trashed);
        }
    }

    /// Whether the oracle expects this call to be refused.
    fn refused(&self, call: &Call, text: &str, error: &Error) {
        let expected = match (call, error) {
            (Call::Append(_, parts, _), Error::Invalid { .. }) => is_misfit(parts),
            (Call::Branch(..) | Call::Restore(..), Error::Pruned { .. }) => self.is_purged,
            (Call::Delete(id, milepost_store::DeleteMode::Refuse), Error::Conflict(Conflict::Branches { .. })) => {
                !self.oracle.children(*id).is_empty()
            }
            _ => false,
        };
        assert!(expected, "{call:?} was refused: {text}");
    }

    /// Takes an answer over into the oracle.
    fn record(&mut self, call: &Call, answer: Answer) {
        let now = self.now();
        match (call, answer) {
            (Call::Create(patch) | Call::Branch(_, patch), Answer::Began(id, first)) => {
                let parent = match call {
                    Call::Branch(at, _) => Some(*at),
                    _ => None,
                };
                self.oracle.open(id, first, parent);
                self.oracle.note(id).title = title_of(patch);
            }
            (Call::Append(id, parts, batch), Answer::Stored(receipt)) => {
                let sent = self.sent.entry(*id).or_default();
                if receipt.repeated {
                    let (_, _, first) = sent.iter().rev().find(|(_, other, _)| other == batch).unwrap();
                    // Checkpoints that were purged since may be missing.
                    let there = |id: &&CheckpointId| !self.oracle.marks[*id].purged;
                    assert!(first.checkpoints.iter().filter(there).all(|id| receipt.checkpoints.contains(id)));
                    let same = Receipt { repeated: true, checkpoints: receipt.checkpoints.clone(), ..first.clone() };
                    assert_eq!(receipt, same, "the answer to a batch sent again");
                    return;
                }
                // A delta sent again after a restore would meet another state.
                let is_absolute = !parts.iter().any(|part| matches!(part, Part::Delta(..)));
                if is_absolute && receipt.length > receipt.first.seq.0 {
                    sent.push((parts.clone(), *batch, receipt.clone()));
                }
                self.store(*id, parts, &receipt);
            }
            (Call::Together(id, appends), Answer::Each(outcomes)) => {
                assert_eq!(outcomes.len(), appends.len());
                for ((parts, _), outcome) in appends.iter().zip(outcomes) {
                    match outcome {
                        Ok(receipt) => self.store(*id, parts, &receipt),
                        Err(error) => assert!(is_misfit(parts), "an append among others was refused: {error}"),
                    }
                }
            }
            (Call::Patch(id, patch), Answer::Stored(_)) => {
                self.oracle.add(*id, Said::Nothing, None);
                self.oracle.note(*id).title = title_of(patch);
            }
            (Call::Restore(id, to), Answer::Stored(receipt)) => {
                assert_eq!(receipt.length, to.seq.0 + 2, "the length after a restore");
                self.oracle.open(*id, receipt.first, Some(*to));
                self.oracle.note(*id).is_trashed = false;
            }
            (Call::Prune(id, keep), Answer::Pruned(pruned)) => self.pruned(*id, keep, &pruned.checkpoints, now),
            (Call::TrashMark(id, mark) | Call::UntrashMark(id, mark), Answer::Done) => {
                let into_trash = matches!(call, Call::TrashMark(..));
                assert_eq!(self.oracle.owner(self.oracle.marks[mark].at), *id);
                let note = self.oracle.marks.get_mut(mark).unwrap();
                if note.trashed.is_some() != into_trash {
                    note.trashed = into_trash.then_some(now);
                }
            }
            (Call::Purge(id, before), Answer::Purged(purged)) => self.purged(*id, *before, &purged.checkpoints),
            (Call::Trash(id) | Call::Untrash(id), Answer::Done) => {
                self.oracle.add(*id, Said::Nothing, None);
                self.oracle.note(*id).is_trashed = matches!(call, Call::Trash(_));
            }
            (Call::Delete(id, mode), Answer::Deleted(deleted)) => self.deleted(*id, *mode, &deleted),
            (Call::File(id, _), Answer::Stored(_)) => {
                self.oracle.add(*id, Said::Nothing, None);
            }
            (Call::EmptyTrash(_), Answer::Emptied(purged, deleted)) => self.emptied(&purged, &deleted),
            (Call::Collect, Answer::Collected(sessions, _)) => {
                for id in sessions {
                    assert!(self.oracle.sessions[&id].is_hidden, "a session that is not hidden was collected");
                    assert_eq!(self.oracle.children(id), [], "a session was collected though branches need it");
                    self.oracle.forget(id);
                }
            }
            (Call::Redact(word), Answer::Redacted(..)) => self.oracle.redact(word, "[gone]"),
            (Call::TakeOver(_), Answer::TakenOver(refused)) => {
                assert_ne!(refused, Some(false), "a writer that was taken over could still append");
            }
            (Call::Reopen | Call::Advance(_) | Call::Release(_) | Call::Reindex, Answer::Done) => {}
            (call, answer) => panic!("{call:?} was answered with {answer:?}"),
        }
    }

    fn store(&mut self, id: SessionId, parts: &[Part], receipt: &Receipt) {
        assert!(!is_misfit(parts), "a state change that does not fit was taken");
        assert!(!receipt.repeated, "an append of its own was taken for another");
        let head = self.oracle.sessions[&id].head;
        assert_eq!(
            receipt.first,
            Position { timeline: head.timeline, seq: Seq(head.seq.0 + 1) },
            "where an append went"
        );
        let mut checkpoints = receipt.checkpoints.iter();
        for part in parts {
            match part {
                Part::Message(message) => drop(self.oracle.add(id, Said::Message(message.clone()), None)),
                Part::State(value) | Part::Delta(_, value) => {
                    if *value != self.oracle.head_state(id) {
                        self.oracle.add(id, Said::Nothing, Some(value.clone()));
                    }
                }
                Part::Mark(mark) => {
                    let checkpoint = *checkpoints.next().expect("a mark without a checkpoint");
                    let at = self.oracle.add(id, Said::Mark(checkpoint), None);
                    let note = MarkNote {
                        at,
                        trigger: mark.trigger.as_str().to_owned(),
                        label: mark.label.clone(),
                        clean: mark.clean,
                        resumable: mark.resumable.is_yes(),
                        trashed: None,
                        purged: false,
                    };
                    self.oracle.marks.insert(checkpoint, note);
                }
                Part::Event => drop(self.oracle.add(id, Said::Nothing, None)),
                Part::Misfit => {}
            }
        }
        assert_eq!(checkpoints.next(), None, "a checkpoint that nobody asked for");
        assert_eq!(receipt.length, self.oracle.sessions[&id].head.seq.0 + 1, "the length after an append");
    }

    fn pruned(&mut self, id: SessionId, keep: &Retention, pruned: &[CheckpointId], now: Timestamp) {
        let own = self.oracle.own_marks(id);
        let live: Vec<_> = own.into_iter().filter(|(_, note)| note.trashed.is_none() && !note.purged).collect();
        let anchors = self.oracle.anchors(id, &live, true);
        let is_fixed = |(id, note): &(CheckpointId, MarkNote)| {
            note.is_kept() || self.oracle.is_branch_point(note.at) || anchors.contains(id)
        };
        for gone in pruned {
            let mark = live.iter().find(|(id, _)| id == gone).expect("a mark was pruned that could not be");
            assert!(!is_fixed(mark), "{gone} is asked for, labelled or needed, and was pruned");
        }
        let left: Vec<_> = live.iter().filter(|(id, _)| !pruned.contains(id)).collect();
        assert!(live.is_empty() || !left.is_empty(), "the newest checkpoint was pruned");
        // Besides those, the newest of all stays.
        let loose: Vec<_> = left.iter().filter(|mark| !is_fixed(mark)).collect();
        let most = keep.max_checkpoints as usize;
        assert!(left.len() <= most || loose.len() <= 1, "{} checkpoints are left of at most {most}", left.len());
        let dirty = loose.iter().filter(|(_, note)| !note.clean).count();
        assert!(!keep.clean_only || dirty <= 1, "{dirty} checkpoints that are not clean are left");
        for gone in pruned {
            self.oracle.marks.get_mut(gone).unwrap().trashed = Some(now);
        }
    }

    fn purged(&mut self, id: SessionId, before: Timestamp, purged: &[CheckpointId]) {
        let own = self.oracle.own_marks(id);
        let there: Vec<_> = own.into_iter().filter(|(_, note)| !note.purged).collect();
        let anchors = self.oracle.anchors(id, &there, false);
        let can_go = |(id, note): &&(CheckpointId, MarkNote)| {
            note.trashed.is_some_and(|time| time < before)
                && !self.oracle.is_branch_point(note.at)
                && !anchors.contains(id)
        };
        let expected: BTreeSet<CheckpointId> = there.iter().filter(can_go).map(|(id, _)| *id).collect();
        assert_eq!(purged.iter().copied().collect::<BTreeSet<_>>(), expected, "the checkpoints that were purged");
        self.is_purged |= !purged.is_empty();
        for gone in purged {
            self.oracle.marks.get_mut(gone).unwrap().purged = true;
        }
    }

    fn deleted(&mut self, id: SessionId, mode: milepost_store::DeleteMode, deleted: &Deleted) {
        use milepost_store::DeleteMode;
        let children = self.oracle.children(id);
        match mode {
            DeleteMode::Refuse => assert_eq!(children, [], "a session with branches was deleted"),
            DeleteMode::KeepBranches if !children.is_empty() => {
                assert_eq!((deleted.sessions.as_slice(), deleted.hidden.as_slice()), ([].as_slice(), [id].as_slice()));
                self.oracle.hide(id);
                return;
            }
            DeleteMode::KeepBranches => {}
            DeleteMode::Cascade => {
                for gone in &deleted.sessions {
                    for child in self.oracle.children(*gone) {
                        assert!(deleted.sessions.contains(&child), "a branch of {gone} was left");
                    }
                }
            }
        }
        assert!(deleted.sessions.contains(&id) && deleted.hidden.is_empty(), "{deleted:?}");
        for gone in &deleted.sessions {
            self.oracle.forget(*gone);
            self.sent.remove(gone);
        }
    }
}

impl World {
    fn emptied(&mut self, purged: &Purged, deleted: &[SessionId]) {
        for id in deleted {
            assert!(self.oracle.sessions[id].is_trashed, "a session that is not in the trash went with it");
            match self.oracle.children(*id).is_empty() {
                true => self.oracle.forget(*id),
                false => self.oracle.hide(*id),
            }
            self.sent.remove(id);
        }
        for gone in &purged.checkpoints {
            let Some(note) = self.oracle.marks.get_mut(gone) else { continue };
            assert!(note.trashed.is_some(), "a checkpoint that is not in the trash was purged");
            note.purged = true;
            self.is_purged = true;
        }
    }
}

fn title_of(patch: &SessionPatch) -> Option<String> {
    patch.0.get("title").and_then(Value::as_str).map(str::to_owned)
}

fn is_misfit(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part, Part::Misfit))
}

/// Turns items into entries; `state` becomes the state after them.
fn resolve(items: &[Item], state: &mut Value) -> Vec<Part> {
    let channels = ["main", "main", "side", "sub \u{1f9ed}"];
    let triggers = [Trigger::Step, Trigger::Messages, Trigger::Manual, Trigger::Pause, Trigger::Other("own".into())];
    let part = |item: &Item| match item {
        Item::Message { words, channel, large } => {
            let mut said = text(words);
            if *large {
                said += &noise(*channel, 20_000);
            }
            let channel = Channel::new(channels[usize::from(*channel)]).unwrap();
            Part::Message(Message::new(Role::User, said).in_channel(channel))
        }
        Item::State(change) => {
            apply(change, state);
            Part::State(state.clone())
        }
        Item::Delta(change) => {
            let before = state.clone();
            apply(change, state);
            Part::Delta(before, state.clone())
        }
        Item::Mark { trigger, label, clean, resumable } => {
            let mut mark = NewMark::new(triggers[usize::from(*trigger)].clone());
            mark.label = label.map(|label| format!("label {label}"));
            mark.clean = *clean;
            mark.resumable = if *resumable { Resumable::Yes } else { Resumable::No("busy".into()) };
            Part::Mark(mark)
        }
        Item::Event => Part::Event,
        Item::Misfit => Part::Misfit,
    };
    items.iter().map(part).collect()
}

fn apply(change: &Change, state: &mut Value) {
    let key = |number: &u8| format!("key {number}");
    let memory = &mut state.as_object_mut().unwrap();
    match change {
        Change::Nothing => {}
        Change::Set(number, words) => {
            drop(memory.insert(key(number), json!({ "text": text(words), "n": words.len() })));
        }
        Change::Long(seed) => drop(memory.insert("long".into(), json!(noise(*seed, 400)))),
        Change::Remove(number) => drop(memory.remove(&key(number))),
        Change::Push(number, words) => {
            let list = memory.entry("list").or_insert_with(|| json!([]));
            list.as_array_mut().unwrap().push(json!([number, text(words)]));
        }
        Change::Clear => memory.clear(),
    }
}

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
    async fn check(&self, at: &[ops::Pick]) {
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
        let [memory, sqlite] = <[Everything; 2]>::try_from(seen).unwrap();
        assert_eq!(memory.sessions, sqlite.sessions, "the lists of sessions differ");
        assert_eq!(memory.states, sqlite.states, "states differ");
        for (memory, sqlite) in memory.views.iter().zip(&sqlite.views) {
            assert_eq!(memory, sqlite, "memory and sqlite differ");
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

async fn run(seed: u64, ops: &[Op]) {
    // Durability is tested elsewhere: here the disk need not be waited for.
    let fast = Path::new("/dev/shm");
    let dir = if fast.is_dir() { tempfile::tempdir_in(fast) } else { tempfile::tempdir() }.unwrap();
    let sides = [Side::memory(seed).await, Side::sqlite(seed, dir.path()).await];
    let ids = Source::seeded(seed + 1, Arc::new(ManualClock::new(START)));
    let mut world = World { sides, oracle: Oracle::default(), ids, sent: BTreeMap::new(), is_purged: false };
    world.step(&Op::Create { title: 1 }).await;
    for op in ops {
        world.step(op).await;
    }
    world.check(&[0, 7, 77]).await;
    world.step(&Op::Reopen).await;
    world.check(&[1, 8, 88]).await;
}

/// The short form replays the same histories every time; `MILEPOST_LONG=1` draws new and longer ones.
#[test]
fn random_histories_are_the_same_in_memory_in_sqlite_and_in_the_oracle() {
    let is_long = std::env::var_os("MILEPOST_LONG").is_some();
    let (cases, steps) = if is_long { (1500, 1..160) } else { (64, 1..80) };
    let config = Config { cases, max_shrink_iters: 600, failure_persistence: None, ..Config::default() };
    let mut runner = match is_long {
        true => TestRunner::new(config),
        false => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let histories = (proptest::num::u64::ANY, vec(ops::op(), steps));
    let outcome = runner.run(&histories, |(seed, ops)| {
        runtime.block_on(run(seed >> 1, &ops));
        Ok::<(), TestCaseError>(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Abort(why)) => panic!("no histories could be made: {why}"),
        Err(TestError::Fail(why, (seed, ops))) => panic!("{why}\nafter, with seed {seed}: {ops:?}"),
    }
}
