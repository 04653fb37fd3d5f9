//! Random histories on the memory backend, on SQLite or PostgreSQL, and in a plain oracle: all three must agree.
//!
//! Both stores are opened with the same seed and the same clock, so that they draw the same ids and
//! every answer, every list and every error can be compared as it is. The oracle knows only what was
//! said and what the state was; it finds what both stores get wrong together.

mod calls;
mod ops;
mod oracle;
mod side;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use calls::{Answer, Call, Part, is_misfit, resolve, title_of};
use milepost_model::{
    BatchId, CheckpointId, ManualClock, Position, Retention, Seq, SessionId, SessionPatch, Source, Timestamp,
};
use milepost_store::{Conflict, Deleted, Error, Purged, Receipt, Result};
use ops::{Op, text};
use oracle::{MarkNote, Oracle, Said};
use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use side::Side;

use crate::support::START;

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
            answers.push(Box::pin(side.run(&call)).await.map_err(|error| (error.to_string(), error)));
        }
        let (second, first) = (answers.pop().unwrap(), answers.pop().unwrap());
        let words = |outcome: &Result<Answer, (String, Error)>| outcome.clone().map_err(|(text, _)| text);
        assert_eq!(words(&first), words(&second), "memory and {} answer differently to {call:?}", self.sides[1].name);
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
            (Call::Prune(id, keep), Answer::Pruned(pruned)) => self.pruned(*id, keep, &pruned, now),
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

/// Runs a history in memory and in a file.
async fn run(seed: u64, ops: &[Op]) {
    // Durability is tested elsewhere: here the disk need not be waited for.
    let fast = Path::new("/dev/shm");
    let dir = if fast.is_dir() { tempfile::tempdir_in(fast) } else { tempfile::tempdir() }.unwrap();
    run_with(seed, ops, Side::sqlite(seed, dir.path()).await).await;
}

/// Runs a history in memory and in another store.
async fn run_with(seed: u64, ops: &[Op], other: Side) {
    let sides = [Side::memory(seed).await, other];
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

#[test]
fn random_histories_are_the_same_in_memory_in_sqlite_and_in_the_oracle() {
    histories(64, 400, async |seed, ops| run(seed, ops).await);
}

#[test]
fn random_histories_are_the_same_in_memory_in_a_bucket_and_in_the_oracle() {
    histories(64, 400, async |seed, ops| run_with(seed, ops, Side::object(seed).await).await);
}

#[test]
fn random_histories_are_the_same_in_memory_on_s3_and_in_the_oracle() {
    if crate::object::s3::bucket().is_none() {
        return;
    }
    histories(6, 200, async |seed, ops| {
        let place = crate::object::s3::Prefix::new("model");
        run_with(seed, ops, Side::s3(seed, place.url()).await).await;
    });
}

#[test]
fn random_histories_are_the_same_in_memory_in_postgres_and_in_the_oracle() {
    if crate::postgres::server().is_none() {
        return;
    }
    histories(12, 300, async |seed, ops| {
        let place = crate::postgres::Scheme::new("model");
        run_with(seed, ops, Side::postgres(seed, place.url(), None).await).await;
        place.drop_schema().await;
    });
}

#[test]
fn random_histories_are_the_same_in_memory_in_postgres_with_payloads_in_s3_and_in_the_oracle() {
    if crate::postgres::server().is_none() || crate::object::s3::bucket().is_none() {
        return;
    }
    histories(6, 200, async |seed, ops| {
        let place = crate::postgres::Scheme::new("model");
        let bucket = crate::object::s3::Prefix::new("model").url();
        run_with(seed, ops, Side::postgres(seed, place.url(), Some(bucket)).await).await;
        place.drop_schema().await;
    });
}

/// The short form replays the same histories every time; `MILEPOST_LONG=1` draws new and longer ones, as many as some
/// minutes are enough for.
fn histories(short: u32, long: u32, run: impl AsyncFn(u64, &[Op])) {
    let is_long = std::env::var_os("MILEPOST_LONG").is_some();
    let (cases, steps) = if is_long { (long, 1..160) } else { (short, 1..80) };
    let config = Config { cases, max_shrink_iters: 600, failure_persistence: None, ..Config::default() };
    let mut runner = match is_long {
        true => TestRunner::new(config),
        false => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
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
