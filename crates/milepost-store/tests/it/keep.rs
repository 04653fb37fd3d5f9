//! Keeping house: retention, the trash, deleting, collecting, stats, backups, and rebuilding what is derived.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use milepost_model::{
    CheckpointId, Delta, Entropy, EntryKind, Event, Position, Retention, SeededEntropy, Seq, SessionId, SessionPatch,
    State, Status, Timestamp, Trigger,
};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::{
    Append, Conflict, DeleteMode, Error, MarkQuery, MessageQuery, NewMark, NewSession, Receipt, SessionQuery,
    SessionWriter, Stats, Store, Verified,
};
use serde_json::{Value, json};

use crate::support::{START, Scratch, claim, create, state, step, url, user};
use crate::writer::{assert_whole, damage, entry_key, sql, texts};

const DAY_MS: i64 = 24 * 3600 * 1000;

/// Text that does not compress much.
pub fn noise(seed: u64, bytes: usize) -> String {
    let mut out = vec![0u8; bytes / 2];
    SeededEntropy::from_u64(seed).fill(&mut out);
    out.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything in the tables that is not the text index, row by row.
pub fn dump(path: &Path) -> Vec<String> {
    let db = rusqlite::Connection::open(path).unwrap();
    let mut rows = Vec::new();
    for table in ["sessions", "timelines", "entries", "marks", "keyframes", "blobs", "records"] {
        let mut statement = db.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3")).unwrap();
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut found = statement.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let mut line = table.to_owned();
            for (number, name) in names.iter().enumerate() {
                if name != "indexed" {
                    line += &format!(" {name}={:?}", row.get::<_, rusqlite::types::Value>(number).unwrap());
                }
            }
            rows.push(line);
        }
    }
    rows
}

fn last(receipt: &Receipt) -> Position {
    Position { seq: Seq(receipt.length - 1), ..receipt.first }
}

fn keep(max_checkpoints: u32) -> Retention {
    Retention { max_checkpoints, max_age_days: 0, ..Retention::default() }
}

async fn ids(store: &Store, session: SessionId, trashed: bool) -> Vec<CheckpointId> {
    let query = MarkQuery { oldest_first: true, trashed, ..MarkQuery::default() };
    store.marks(session, &query).await.unwrap().iter().map(|mark| mark.checkpoint.id).collect()
}

async fn frames(store: &Store, session: SessionId) -> Vec<(Position, bool)> {
    let mut found = Vec::new();
    for line in store.backend().timelines(store.workspace(), session).await.unwrap() {
        for (seq, pinned) in store.backend().keyframes(store.workspace(), line.id).await.unwrap() {
            found.push((Position { timeline: line.id, seq }, pinned));
        }
    }
    found
}

/// A session that remembers what each of its marks must load, and each of its messages.
struct Story {
    writer: SessionWriter,
    state: Value,
    marks: Vec<(CheckpointId, State)>,
    ends: Vec<Position>,
    said: Vec<String>,
}

impl Story {
    async fn new(store: &Store) -> Self {
        let writer = create(store).await;
        Self { writer, state: json!({}), marks: Vec::new(), ends: Vec::new(), said: Vec::new() }
    }

    fn id(&self) -> SessionId {
        self.writer.id()
    }

    /// Says something, changes a large part of the state, and marks it.
    async fn step(&mut self, mark: NewMark) -> CheckpointId {
        let number = self.marks.len();
        let text = format!("message {number}");
        self.state["step"] = json!(number);
        self.state["text"] = json!(noise(1000 + number as u64, 3000));
        let append = Append::new().message(user(&text)).state(state(self.state.clone())).mark(mark);
        let receipt = self.writer.append(append).await.unwrap();
        self.said.push(text);
        self.marks.push((receipt.checkpoints[0], state(self.state.clone())));
        self.ends.push(last(&receipt));
        receipt.checkpoints[0]
    }

    async fn steps(&mut self, count: usize, clock: &milepost_model::ManualClock) {
        for _ in 0..count {
            self.step(NewMark::new(Trigger::Step)).await;
            clock.advance_ms(1000);
        }
    }

    /// Every mark in `alive` loads exactly, every other one is gone, nothing that was said is missing.
    async fn check(&self, store: &Store, alive: &BTreeSet<CheckpointId>) {
        for (id, expected) in &self.marks {
            match store.load(*id).await {
                Ok(loaded) => {
                    assert!(alive.contains(id), "{id} should be gone");
                    assert!(loaded.state == *expected, "the state of {id} is another");
                }
                Err(error) => {
                    assert!(!alive.contains(id), "{id} should be there: {error}");
                    assert!(matches!(error, Error::NotFound { .. }), "{error}");
                }
            }
        }
        assert_eq!(texts(store, self.id()).await, self.said, "messages never go");
        assert_eq!(store.state(self.id()).await.unwrap(), state(self.state.clone()));
        assert_whole(store).await;
    }
}

#[tokio::test]
async fn pruning_keeps_the_newest_and_what_was_asked_for() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    let mut fixed = BTreeSet::new();
    let mut plain = Vec::new();
    for number in 0..14 {
        let mark = match number {
            1 => NewMark::new(Trigger::Step).label("kept by name"),
            3 => NewMark::new(Trigger::Manual),
            5 => NewMark::new(Trigger::Milestone),
            7 => NewMark::new(Trigger::PhaseComplete),
            _ => NewMark::new(Trigger::Step),
        };
        let id = story.step(mark).await;
        scratch.clock.advance_ms(1000);
        match number {
            1 | 3 | 5 | 7 => _ = fixed.insert(id),
            // Where a branch begins, and where a restore went back to, below.
            9 | 11 => _ = fixed.insert(id),
            13 => _ = fixed.insert(id),
            _ => plain.push(id),
        }
    }
    let branch = store.branch(story.ends[9], NewSession::default(), &claim()).await.unwrap();
    story.writer.restore(story.ends[11]).await.unwrap();
    story.writer.restore(story.ends[13]).await.unwrap();

    // 14 marks, 7 of them fixed; 9 may stay: the 5 oldest of the others go.
    let preview = store.prune_preview(story.id(), &keep(9)).await.unwrap();
    assert_eq!(preview.checkpoints, plain[..5]);
    let pruned = story.writer.prune(&keep(9)).await.unwrap();
    assert_eq!(pruned, preview.checkpoints, "the preview says what happens");
    assert!(preview.bytes > 0);
    let left: BTreeSet<CheckpointId> = ids(&store, story.id(), false).await.into_iter().collect();
    assert_eq!(left, fixed.iter().chain(&plain[5..]).copied().collect());
    assert_eq!(ids(&store, story.id(), true).await, plain[..5]);
    let all: BTreeSet<CheckpointId> = story.marks.iter().map(|(id, _)| *id).collect();
    story.check(&store, &all).await;
    // With room for none, what is fixed still stays; and a second time there is nothing to do.
    assert_eq!(story.writer.prune(&keep(0)).await.unwrap(), plain[5..]);
    assert_eq!(story.writer.prune(&keep(0)).await.unwrap(), []);
    assert_eq!(ids(&store, story.id(), false).await.into_iter().collect::<BTreeSet<_>>(), fixed);
    story.check(&store, &all).await;
    // The trash is not what a session resumes from.
    let newest = store.load_latest(story.id(), &MarkQuery::default()).await.unwrap();
    assert_eq!(newest.mark.checkpoint.id, story.marks[13].0);
    assert!(texts(&store, branch.id()).await.len() == 10);
}

#[tokio::test]
async fn pruning_goes_by_age_and_by_cleanness() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    let mut made = Vec::new();
    for number in 0..8 {
        let clean = number % 3 != 0;
        made.push(story.step(NewMark { clean, ..NewMark::new(Trigger::Interval) }).await);
        scratch.clock.advance_ms(10 * DAY_MS);
    }
    // Now is day 80; the marks were made on days 0, 10, …, 70.
    let by_age = Retention { max_age_days: 35, max_checkpoints: 100, ..Retention::default() };
    assert_eq!(store.prune_preview(story.id(), &by_age).await.unwrap().checkpoints, made[..5]);
    let clean = Retention { clean_only: true, ..keep(100) };
    assert_eq!(store.prune_preview(story.id(), &clean).await.unwrap().checkpoints, [made[0], made[3], made[6]]);
    // What is unwanted counts as gone before anything is counted out.
    let both = Retention { clean_only: true, ..keep(4) };
    assert_eq!(store.prune_preview(story.id(), &both).await.unwrap().checkpoints, [made[0], made[1], made[3], made[6]]);
    let old = Retention { max_age_days: 1, ..keep(100) };
    let pruned = story.writer.prune(&old).await.unwrap();
    assert_eq!(pruned, made[..7], "the newest stays however old it is");
    assert_whole(&store).await;
}

#[tokio::test]
async fn pruning_keeps_the_newest_checkpoint_of_the_head() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(6, &scratch.clock).await;
    // Back to an entry between the third and the fourth mark.
    let between = Position { seq: story.ends[2].seq.next(), ..story.ends[2] };
    story.writer.restore(between).await.unwrap();
    story.writer.prune(&keep(0)).await.unwrap();
    let newest = store.load_latest(story.id(), &MarkQuery::default()).await.unwrap();
    assert_eq!(newest.mark.checkpoint.id, story.marks[2].0, "a session can always be resumed from its newest mark");
    assert_whole(&store).await;
    // A branch that has no mark of its own resumes from its parent's.
    let mut parent = Story::new(&store).await;
    parent.steps(4, &scratch.clock).await;
    let at = Position { seq: parent.ends[1].seq.next(), ..parent.ends[1] };
    let branch = store.branch(at, NewSession::default(), &claim()).await.unwrap();
    parent.writer.prune(&keep(0)).await.unwrap();
    scratch.clock.advance_ms(1000);
    parent.writer.purge(Timestamp(i64::MAX)).await.unwrap();
    let newest = store.load_latest(branch.id(), &MarkQuery::default()).await.unwrap();
    assert_eq!(newest.mark.checkpoint.id, parent.marks[1].0);
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_mark_goes_into_the_trash_and_out_again() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(5, &scratch.clock).await;
    let all: BTreeSet<CheckpointId> = story.marks.iter().map(|(id, _)| *id).collect();
    let victim = story.marks[2].0;
    story.writer.trash_mark(victim).await.unwrap();
    assert_eq!(store.mark(victim).await.unwrap().trashed, Some(store.source().now()));
    assert_eq!(ids(&store, story.id(), true).await, [victim]);
    assert!(!ids(&store, story.id(), false).await.contains(&victim));
    story.check(&store, &all).await;
    story.writer.untrash_mark(victim).await.unwrap();
    assert_eq!(store.mark(victim).await.unwrap().trashed, None);
    assert_eq!(ids(&store, story.id(), false).await.len(), 5);
    story.check(&store, &all).await;
    // Twice is once.
    story.writer.trash_mark(victim).await.unwrap();
    let since = store.mark(victim).await.unwrap().trashed;
    scratch.clock.advance_ms(5000);
    story.writer.trash_mark(victim).await.unwrap();
    assert_eq!(store.mark(victim).await.unwrap().trashed, since);
    // What was taken out is not purged; nor is another session's mark touched.
    story.writer.untrash_mark(victim).await.unwrap();
    assert_eq!(story.writer.purge(Timestamp(i64::MAX)).await.unwrap().checkpoints, []);
    let other = create(&store).await;
    let error = other.trash_mark(victim).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    story.check(&store, &all).await;
    store.reindex().await.unwrap();
    story.check(&store, &all).await;
}

#[tokio::test]
async fn purging_gives_deltas_up_only_where_a_whole_state_stands_in() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(24, &scratch.clock).await;
    let mut alive: BTreeSet<CheckpointId> = story.marks.iter().map(|(id, _)| *id).collect();
    let mut lost_deltas = 0;
    // Three rounds: each purges some of what the one before left.
    for (round, gone) in
        [vec![1, 2, 3, 4, 9, 10, 11], vec![0, 5, 6, 20, 21], vec![7, 8, 12, 13, 14, 15, 22]].iter().enumerate()
    {
        for number in gone {
            story.writer.trash_mark(story.marks[*number].0).await.unwrap();
        }
        scratch.clock.advance_ms(1000);
        story.check(&store, &alive).await;
        let preview = store.purge_preview(story.id(), Timestamp(i64::MAX)).await.unwrap();
        let purged = story.writer.purge(Timestamp(i64::MAX)).await.unwrap();
        assert_eq!(purged, preview, "round {round}");
        assert_eq!(purged.checkpoints.len(), gone.len());
        assert!(purged.keyframes > 0 && purged.bytes > 0, "round {round}: {purged:?}");
        lost_deltas += purged.deltas;
        gone.iter().for_each(|number| _ = alive.remove(&story.marks[*number].0));
        story.check(&store, &alive).await;
        assert!(frames(&store, story.id()).await.iter().any(|(_, pinned)| *pinned));
    }
    assert!(lost_deltas >= 15, "{lost_deltas}");
    // The session goes on, and everything holds after a reopen, a reindex and without derived keyframes.
    story.steps(3, &scratch.clock).await;
    alive.extend(story.marks[24..].iter().map(|(id, _)| *id));
    story.check(&store, &alive).await;
    store.reindex().await.unwrap();
    story.check(&store, &alive).await;
    sql(&scratch.path(), "DELETE FROM keyframes WHERE pinned = 0");
    story.check(&store, &alive).await;
    store.close().await.unwrap();
    let store = scratch.open().await;
    story.check(&store, &alive).await;
}

#[tokio::test]
async fn a_state_that_was_given_up_names_the_nearest_checkpoint() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(12, &scratch.clock).await;
    for (id, _) in &story.marks[2..9] {
        story.writer.trash_mark(*id).await.unwrap();
    }
    scratch.clock.advance_ms(1);
    assert!(story.writer.purge(Timestamp(i64::MAX)).await.unwrap().deltas > 0);
    let error = store.state_at(story.ends[5]).await.unwrap_err();
    let Error::Pruned { at, nearest } = &error else { panic!("{error}") };
    assert_eq!(at.timeline, story.ends[5].timeline);
    assert!(nearest.contains(&story.marks[9].0.to_string()), "{nearest}");
    assert!(error.is_damage());
    // What was said there is still there, and what is named loads.
    assert_eq!(store.messages_at(story.ends[5], &MessageQuery::default()).await.unwrap().len(), 6);
    assert_eq!(store.load(story.marks[9].0).await.unwrap().state, story.marks[9].1);
    // Where nothing was given up, states between marks are as they were.
    assert_eq!(store.state_at(story.ends[10]).await.unwrap(), story.marks[10].1);
    assert_eq!(store.state_at(story.ends[1]).await.unwrap(), story.marks[1].1);
    // Going back to a pruned place is refused or works, but never makes a session that cannot be read.
    match story.writer.restore(story.ends[5]).await {
        Ok(_) => assert_whole(&store).await,
        Err(error) => assert!(matches!(error, Error::Pruned { .. }), "{error}"),
    }
    match store.branch(story.ends[5], NewSession::default(), &claim()).await {
        Ok(branch) => _ = branch.state().await.unwrap(),
        Err(error) => assert!(matches!(error, Error::Pruned { .. }), "{error}"),
    }
}

#[tokio::test]
async fn purging_leaves_branches_and_restored_timelines_whole() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(8, &scratch.clock).await;
    let trunk = story.ends.clone();
    let marks = story.marks.clone();
    // A branch at a mark, one at an entry that is none, and a restore to yet another.
    let at_mark = store.branch(trunk[2], NewSession::default(), &claim()).await.unwrap();
    let between = Position { seq: Seq(trunk[5].seq.0 - 1), ..trunk[5] };
    let at_entry = store.branch(between, NewSession::default(), &claim()).await.unwrap();
    at_mark
        .append(Append::new().delta(Delta::builder().set("/own", 1).build().unwrap()).mark(NewMark::new(Trigger::Step)))
        .await
        .unwrap();
    let states = (store.state(at_mark.id()).await.unwrap(), store.state(at_entry.id()).await.unwrap());
    story.writer.restore(Position { seq: trunk[3].seq.next(), ..trunk[3] }).await.unwrap();
    let restored = store.state(story.id()).await.unwrap();
    scratch.clock.advance_ms(1000);
    let pruned = story.writer.prune(&keep(0)).await.unwrap();
    assert!(pruned.len() >= 4, "{pruned:?}");
    assert!(!pruned.contains(&marks[2].0), "a branch begins there");
    scratch.clock.advance_ms(1000);
    let purged = story.writer.purge(Timestamp(i64::MAX)).await.unwrap();
    assert!(purged.deltas > 0, "{purged:?}");
    assert_eq!((store.state(at_mark.id()).await.unwrap(), store.state(at_entry.id()).await.unwrap()), states);
    assert_eq!(store.state(story.id()).await.unwrap(), restored);
    assert_eq!(store.load(marks[2].0).await.unwrap().state, marks[2].1);
    assert_eq!(texts(&store, at_entry.id()).await.len(), 6);
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    assert_whole(&store).await;
    // The branch's writer goes on from there.
    at_entry.append(step(99)).await.unwrap();
    story.writer.append(step(98)).await.unwrap();
    assert_whole(&store).await;
}

#[tokio::test]
async fn the_newest_mark_can_be_thrown_away_too() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(4, &scratch.clock).await;
    let newest = story.marks[3].0;
    story.writer.trash_mark(newest).await.unwrap();
    assert_whole(&store).await;
    let latest = store.load_latest(story.id(), &MarkQuery::default()).await.unwrap();
    assert_eq!(latest.mark.checkpoint.id, story.marks[2].0);
    scratch.clock.advance_ms(1);
    story.writer.purge(Timestamp(i64::MAX)).await.unwrap();
    let alive = story.marks[..3].iter().map(|(id, _)| *id).collect();
    story.check(&store, &alive).await;
    let session = store.session(story.id()).await.unwrap();
    assert_ne!(session.checkpoint, Some(newest), "a list must not name what is gone");
    // A restore to beyond a trashed mark, and then its purge.
    let mut other = Story::new(&store).await;
    other.steps(4, &scratch.clock).await;
    other.writer.trash_mark(other.marks[1].0).await.unwrap();
    other.writer.restore(Position { seq: other.ends[1].seq.next(), ..other.ends[1] }).await.unwrap();
    assert_whole(&store).await;
    scratch.clock.advance_ms(1);
    other.writer.purge(Timestamp(i64::MAX)).await.unwrap();
    assert_whole(&store).await;
    other.writer.append(step(50)).await.unwrap();
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    assert_whole(&store).await;
}

#[tokio::test]
async fn counts_in_a_list_stay_right_through_prunes_restores_and_branches() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(8, &scratch.clock).await;
    for number in [0, 1, 4] {
        story.writer.trash_mark(story.marks[number].0).await.unwrap();
    }
    assert_whole(&store).await;
    let branch = store.branch(story.ends[5], NewSession::default(), &claim()).await.unwrap();
    assert_whole(&store).await;
    story.writer.restore(story.ends[5]).await.unwrap();
    assert_whole(&store).await;
    story.writer.untrash_mark(story.marks[1].0).await.unwrap();
    assert_whole(&store).await;
    scratch.clock.advance_ms(1);
    story.writer.purge(Timestamp(i64::MAX)).await.unwrap();
    assert_whole(&store).await;
    branch.append(step(1)).await.unwrap();
    story.writer.append(step(2)).await.unwrap();
    assert_whole(&store).await;
    let before = (store.session(story.id()).await.unwrap(), store.session(branch.id()).await.unwrap());
    store.reindex().await.unwrap();
    assert_eq!((store.session(story.id()).await.unwrap(), store.session(branch.id()).await.unwrap()), before);
}

#[tokio::test]
async fn sessions_go_into_the_trash_and_out_again() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    writer.append(step(1)).await.unwrap();
    let error = store.trash(id, &claim()).await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "a session that is held is not thrown away: {error}");
    writer.release().await.unwrap();
    store.trash(id, &claim()).await.unwrap();
    let list = |trashed| {
        let store = store.clone();
        async move {
            let query = SessionQuery { trashed, ..SessionQuery::default() };
            store.sessions(&query).await.unwrap().sessions.into_iter().map(|session| session.id).collect::<Vec<_>>()
        }
    };
    assert_eq!((list(false).await, list(true).await), (vec![], vec![id]));
    assert_eq!(store.session(id).await.unwrap().trashed, Some(START));
    assert_eq!(texts(&store, id).await, ["step 1"]);
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    assert_eq!(list(true).await, [id]);
    store.untrash(id, &claim()).await.unwrap();
    assert_eq!((list(false).await, list(true).await), (vec![id], vec![]));
    assert_whole(&store).await;
    // Deleting is for good.
    let deleted = store.delete(id, DeleteMode::Refuse, &claim(), false).await.unwrap();
    assert_eq!((deleted.sessions, deleted.hidden), (vec![id], vec![]));
    assert!(matches!(store.session(id).await.unwrap_err(), Error::NotFound { .. }));
    assert!(matches!(store.delete(id, DeleteMode::Refuse, &claim(), false).await.unwrap_err(), Error::NotFound { .. }));
    assert!(dump(&scratch.path()).iter().all(|row| row.starts_with("records")), "something of it is left");
}

#[tokio::test]
async fn a_session_with_branches_is_deleted_as_asked() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(4, &scratch.clock).await;
    let root = story.id();
    let branch = store.branch(story.ends[1], NewSession::default(), &claim()).await.unwrap();
    branch.append(step(10)).await.unwrap();
    let inner_end = last(&branch.append(step(11)).await.unwrap());
    let inner = store.branch(inner_end, NewSession::default(), &claim()).await.unwrap();
    inner.append(step(20)).await.unwrap();
    let (branch_id, inner_id) = (branch.id(), inner.id());
    let said = (texts(&store, branch_id).await, texts(&store, inner_id).await);
    let state_of_inner = store.state(inner_id).await.unwrap();
    drop(branch);
    drop(inner);
    let mine = claim().take_over();

    let error = store.delete(root, DeleteMode::Refuse, &mine, false).await.unwrap_err();
    assert!(matches!(error, Error::Conflict(Conflict::Branches { branches: 1, .. })), "{error}");
    let before = dump(&scratch.path());
    let would = store.delete(root, DeleteMode::KeepBranches, &mine, true).await.unwrap();
    let cascade = store.delete(root, DeleteMode::Cascade, &mine, true).await.unwrap();
    assert_eq!(dump(&scratch.path()), before, "a dry run changes nothing");
    assert_eq!((would.sessions.len(), would.hidden.clone()), (0, vec![root]));
    assert_eq!(cascade.sessions.len(), 3);

    // Kept for its branches: hidden, cut to what they share.
    assert_eq!(store.delete(root, DeleteMode::KeepBranches, &mine, false).await.unwrap(), would);
    let listed = store.sessions(&SessionQuery::default()).await.unwrap().sessions;
    assert!(listed.iter().all(|session| session.id != root));
    assert_eq!((texts(&store, branch_id).await, texts(&store, inner_id).await), said);
    assert_eq!(store.state(inner_id).await.unwrap(), state_of_inner);
    assert_eq!(store.load(story.marks[1].0).await.unwrap().state, story.marks[1].1);
    assert!(
        matches!(store.load(story.marks[3].0).await.unwrap_err(), Error::NotFound { .. }),
        "beyond the branch point"
    );
    // What is shown of it counts what is left.
    let (left, marks) = (store.session(root).await.unwrap(), store.marks(root, &MarkQuery::default()).await.unwrap());
    assert_eq!(left.messages(), texts(&store, root).await.len() as u64);
    assert_eq!((left.checkpoints, left.checkpoint), (marks.len() as u64, marks.first().map(|mark| mark.checkpoint.id)));
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    let listed = store.sessions(&SessionQuery::default()).await.unwrap().sessions;
    assert_eq!(listed.len(), 2, "what is hidden stays hidden: {listed:?}");
    assert_whole(&store).await;
    // While a branch needs it, it is not collected, nor deleted with force.
    assert_eq!(store.collect(&mine, false).await.unwrap().sessions, []);
    // The same for the one in the middle.
    assert_eq!(store.delete(branch_id, DeleteMode::KeepBranches, &mine, false).await.unwrap().hidden, [branch_id]);
    assert_eq!(texts(&store, inner_id).await, said.1);
    assert_eq!(store.state(inner_id).await.unwrap(), state_of_inner);
    assert_whole(&store).await;
    store.delete(inner_id, DeleteMode::Refuse, &mine, false).await.unwrap();
    let dry = store.collect(&mine, true).await.unwrap();
    let collected = store.collect(&mine, false).await.unwrap();
    assert_eq!(collected.sessions, [branch_id, root]);
    assert!(!dry.sessions.is_empty() && dry.sessions.iter().all(|id| collected.sessions.contains(id)));
    assert!(dump(&scratch.path()).iter().all(|row| row.starts_with("records") || row.starts_with("blobs")));
}

#[tokio::test]
async fn cascading_deletes_branches_first_and_nothing_else() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let root = create(&store).await;
    let at = last(&root.append(step(1)).await.unwrap());
    let left = store.branch(at, NewSession::default(), &claim()).await.unwrap();
    let left_at = last(&left.append(step(2)).await.unwrap());
    let right = store.branch(at, NewSession::default(), &claim()).await.unwrap();
    let leaf = store.branch(left_at, NewSession::default(), &claim()).await.unwrap();
    let other = create(&store).await;
    other.append(step(7)).await.unwrap();
    let order = store.delete(root.id(), DeleteMode::Cascade, &claim().take_over(), false).await.unwrap().sessions;
    let place = |id: SessionId| order.iter().position(|found| *found == id).unwrap();
    assert_eq!(order.len(), 4);
    assert!(
        place(leaf.id()) < place(left.id())
            && place(left.id()) < place(root.id())
            && place(right.id()) < place(root.id())
    );
    let listed = store.sessions(&SessionQuery::default()).await.unwrap().sessions;
    assert_eq!(listed.iter().map(|session| session.id).collect::<Vec<_>>(), [other.id()]);
    assert_whole(&store).await;
}

#[tokio::test]
async fn the_trash_is_emptied_by_age() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(6, &scratch.clock).await;
    let old = create(&store).await;
    let (old_id, fresh_id) = (old.id(), create(&store).await.id());
    let branch =
        store.branch(last(&old.append(step(1)).await.unwrap()), NewSession::default(), &claim()).await.unwrap();
    let mine = claim().take_over();
    store.trash(old_id, &mine).await.unwrap();
    let writer = store.write(story.id(), &mine).await.unwrap();
    writer.trash_mark(story.marks[1].0).await.unwrap();
    scratch.clock.advance_ms(5 * DAY_MS);
    let writer = store.write(story.id(), &mine).await.unwrap();
    writer.trash_mark(story.marks[2].0).await.unwrap();
    store.trash(fresh_id, &mine).await.unwrap();
    scratch.clock.advance_ms(2 * DAY_MS + 1);

    let week = Retention { trash_days: 7, ..keep(100) };
    let before = dump(&scratch.path());
    let would = store.empty_trash(&week, &mine, true).await.unwrap();
    assert_eq!(dump(&scratch.path()), before, "a dry run changes nothing");
    let done = store.empty_trash(&week, &mine, false).await.unwrap();
    assert_eq!(done, would);
    assert_eq!(done.0.checkpoints, [story.marks[1].0]);
    assert_eq!(done.1, [old_id]);
    assert!(matches!(store.load(story.marks[1].0).await.unwrap_err(), Error::NotFound { .. }));
    assert_eq!(store.load(story.marks[2].0).await.unwrap().state, story.marks[2].1, "it lies there for two days only");
    assert!(store.session(fresh_id).await.is_ok());
    assert_eq!(texts(&store, branch.id()).await, ["step 1"], "a branch of what was emptied lives on");
    let trashed = SessionQuery { trashed: true, ..SessionQuery::default() };
    let listed: Vec<SessionId> = store.sessions(&trashed).await.unwrap().sessions.iter().map(|s| s.id).collect();
    assert_eq!(listed, [fresh_id]);
    assert_whole(&store).await;
    // Again: what is hidden is not emptied over and over.
    assert_eq!(store.empty_trash(&week, &mine, false).await.unwrap().1, []);
}

#[tokio::test]
async fn collecting_leaves_what_is_needed_and_what_is_young() {
    let mut scratch = Scratch::new();
    scratch.options.blob_grace_ms = 60_000;
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let large = noise(1, 60_000);
    writer.append(Append::new().message(user(&large))).await.unwrap();
    let named = writer.put_blob(noise(2, 30_000).as_bytes()).await.unwrap();
    let also = writer.put_blob(noise(3, 50).as_bytes()).await.unwrap();
    let orphan = writer.put_blob(noise(4, 30_000).as_bytes()).await.unwrap();
    let big_event = Event::new("files", json!({ "listing": noise(5, 40_000) }));
    writer.append(Append::new().event_with(big_event, vec![named, also])).await.unwrap();
    assert_eq!(store.stats().await.unwrap().blobs.entries, 5);

    scratch.clock.advance_ms(59_000);
    assert_eq!(store.collect(&claim(), false).await.unwrap().blobs, 0, "it waits out the grace time");
    let pinned_again = writer.put_blob(noise(4, 30_000).as_bytes()).await.unwrap();
    assert_eq!(pinned_again, orphan);
    scratch.clock.advance_ms(2_000);
    assert_eq!(store.collect(&claim(), false).await.unwrap().blobs, 0, "putting it again pins it anew");
    scratch.clock.advance_ms(60_000);
    let before = dump(&scratch.path());
    let would = store.collect(&claim(), true).await.unwrap();
    assert_eq!(dump(&scratch.path()), before, "a dry run changes nothing");
    let done = store.collect(&claim(), false).await.unwrap();
    assert_eq!(done, would);
    assert_eq!(done.blobs, 1);
    assert!(done.bytes > 10_000, "{done:?}");
    assert!(matches!(writer.get_blob(orphan).await.unwrap_err(), Error::NotFound { .. }));
    assert_eq!(writer.get_blob(named).await.unwrap(), noise(2, 30_000).into_bytes());
    assert_eq!(writer.get_blob(also).await.unwrap(), noise(3, 50).into_bytes());
    assert_eq!(texts(&store, id).await, [large.as_str()]);
    assert_whole(&store).await;
    // What another session needs too stays when one is deleted.
    let other = create(&store).await;
    other.append(Append::new().message(user(&large))).await.unwrap();
    let (other_id, mine) = (other.id(), claim().take_over());
    store.delete(id, DeleteMode::Refuse, &mine, false).await.unwrap();
    scratch.clock.advance_ms(61_000);
    assert_eq!(store.collect(&mine, false).await.unwrap().blobs, 3);
    assert_eq!(texts(&store, other_id).await, [large.as_str()]);
    assert_eq!(store.stats().await.unwrap().blobs.entries, 1);
    assert_whole(&store).await;
}

#[tokio::test]
async fn dry_runs_change_nothing() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(8, &scratch.clock).await;
    story.writer.trash_mark(story.marks[1].0).await.unwrap();
    story.writer.put_blob(b"an orphan").await.unwrap();
    scratch.clock.advance_ms(100 * DAY_MS);
    let before = dump(&scratch.path());
    let mine = claim().take_over();
    let id = story.id();
    assert!(!store.prune_preview(id, &keep(1)).await.unwrap().checkpoints.is_empty());
    assert!(!store.purge_preview(id, Timestamp(i64::MAX)).await.unwrap().checkpoints.is_empty());
    assert!(!store.empty_trash(&Retention::default(), &mine, true).await.unwrap().0.checkpoints.is_empty());
    assert_eq!(store.collect(&mine, true).await.unwrap().blobs, 1);
    assert_eq!(store.delete(id, DeleteMode::Cascade, &mine, true).await.unwrap().sessions, [id]);
    store.stats().await.unwrap();
    store.compression(id).await.unwrap();
    assert!(store.verify().await.unwrap().is_whole());
    assert_eq!(dump(&scratch.path()), before);
}

#[tokio::test]
async fn stats_say_what_uses_the_space_and_what_pruning_would_free() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let small = create(&store).await;
    small.append(Append::new().message(user("short")).event(Event::new("x", Value::Null))).await.unwrap();
    let mut story = Story::new(&store).await;
    story.steps(40, &scratch.clock).await;
    let text = "The quick brown fox jumps over the lazy dog, and then it does so again. ".repeat(40);
    for _ in 0..5 {
        story.writer.append(Append::new().message(user(&text))).await.unwrap();
        story.said.push(text.clone());
    }
    store.put_record("setting", "theme", None, None, b"dark").await.unwrap();
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.sessions.iter().map(|own| own.session).collect::<Vec<_>>(), [story.id(), small.id()]);
    assert!(Stats::session_bytes(&stats.sessions[0]) > 20 * Stats::session_bytes(&stats.sessions[1]));
    let counts: BTreeMap<&str, u64> = EntryKind::ALL.map(|kind| (kind.as_str(), stats.kind(kind).entries)).into();
    assert_eq!(counts, BTreeMap::from([("message", 46), ("state", 40), ("mark", 40), ("event", 3)]));
    assert!(stats.kind(EntryKind::State).bytes > stats.kind(EntryKind::Mark).bytes);
    assert!(stats.records.entries >= 2 && stats.total_bytes > 0 && stats.text_index_bytes > 0);
    let compression = store.compression(story.id()).await.unwrap();
    assert!(compression.plain > compression.stored && compression.stored > 0, "{compression:?}");

    // What pruning promises is about what purging frees.
    let promised = store.prunable_bytes(story.id(), &keep(2)).await.unwrap();
    assert!(promised > 40_000, "{promised}");
    story.writer.prune(&keep(2)).await.unwrap();
    scratch.clock.advance_ms(1);
    let used = |stats: &Stats| Stats::session_bytes(&stats.sessions[0]) as i64;
    let before = used(&store.stats().await.unwrap());
    let purged = story.writer.purge(Timestamp(i64::MAX)).await.unwrap();
    let freed = before - used(&store.stats().await.unwrap());
    assert_eq!(purged.bytes, promised);
    let ratio = freed as f64 / promised as f64;
    assert!((0.85..1.15).contains(&ratio), "{promised} promised, {freed} freed");
    let alive = story.marks[38..].iter().map(|(id, _)| *id).collect();
    story.check(&store, &alive).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_made_while_writers_work() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let writer = create(&store).await;
        let stop = Arc::clone(&stop);
        tasks.push(tokio::spawn(async move {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                writer.append(step(number).message(user(&noise(number, 400)))).await.unwrap();
                number += 1;
            }
            (writer.id(), number)
        }));
    }
    let mut copies = Vec::new();
    for number in 0..3 {
        tokio::time::sleep(std::time::Duration::from_millis(60)).await;
        let to = scratch.dir.path().join(format!("copy {number}.db"));
        store.backup(&to).await.unwrap();
        copies.push(to);
    }
    let error = store.backup(&copies[0]).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid { .. }) && error.to_string().contains("exists already"), "{error}");
    tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    stop.store(true, Ordering::Relaxed);
    let mut written = BTreeMap::new();
    for task in tasks {
        let (id, number) = task.await.unwrap();
        written.insert(id, number);
    }
    let mut last_total = 0;
    for copy in &copies {
        let backup = Store::open(&url(copy), scratch.options.clone()).await.unwrap();
        assert_whole(&backup).await;
        let mut total = 0;
        for (id, number) in &written {
            let found = texts(&backup, *id).await;
            let own = texts(&store, *id).await;
            assert_eq!(found, own[..found.len()], "a backup holds the beginning of each session");
            assert!((found.len() as u64) < 2 * number, "the writers went on after it");
            if !found.is_empty() {
                let newest = found.len() as u64 / 2 - 1;
                assert_eq!(backup.state(*id).await.unwrap(), state(json!({"memory": {"step": newest}})));
            }
            total += found.len();
        }
        assert!(total >= last_total);
        last_total = total;
        // It is a store like any other.
        let id = *written.keys().next().unwrap();
        let writer = backup.write(id, &claim().take_over()).await.unwrap();
        writer.append(step(1)).await.unwrap();
        backup.close().await.unwrap();
    }
    assert!(last_total > 0);
}

/// What a person sees of a store: rows, marks, what a search finds.
async fn view(store: &Store) -> String {
    let mut out = String::new();
    for trashed in [false, true] {
        let query = SessionQuery { trashed, ..SessionQuery::default() };
        for session in store.sessions(&query).await.unwrap().sessions {
            let marks = ids(store, session.id, false).await;
            out += &format!("{session:?}\n{marks:?}\n{:?}\n", ids(store, session.id, true).await);
        }
    }
    let terms = vec![Term { text: "step".into(), prefix: false }];
    let found = store
        .backend()
        .search(store.workspace(), TextQuery { terms, sessions: Vec::new(), limit: 1000, ..TextQuery::default() })
        .await;
    let mut places: Vec<_> = found.unwrap().unwrap().iter().map(|hit| (hit.session, hit.at)).collect();
    places.sort();
    out + &format!("{places:?}")
}

async fn lively(store: &Store, scratch: &Scratch) -> SessionId {
    let patch = SessionPatch::new().title("a title").project("p").agent("coder").tags(["x", "y"]).with("own", json!(1));
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let mut ends = Vec::new();
    for n in 0..6 {
        let mark = if n == 2 { NewMark::new(Trigger::Manual).label("here") } else { NewMark::new(Trigger::Step) };
        let append =
            Append::new().message(user(&format!("step {n}"))).state(state(json!({ "n": n, "x": noise(n, 500) })));
        ends.push(last(&writer.append(append.mark(mark)).await.unwrap()));
        scratch.clock.advance_ms(1000);
    }
    let branch = store.branch(ends[3], NewSession::default(), &claim()).await.unwrap();
    branch.append(step(30)).await.unwrap();
    writer.restore(ends[4]).await.unwrap();
    writer.append(step(40)).await.unwrap();
    writer.append(Append::new().patch(SessionPatch::new().status(Status::Failed).error("it broke"))).await.unwrap();
    writer.trash_mark(store.marks(writer.id(), &MarkQuery::default()).await.unwrap()[3].checkpoint.id).await.unwrap();
    let gone = create(store).await;
    gone.append(step(50)).await.unwrap();
    store.trash(gone.id(), &claim().take_over()).await.unwrap();
    writer.id()
}

#[tokio::test]
async fn what_is_derived_is_noticed_when_it_is_wrong_and_rebuilt() {
    let damages = [
        "DELETE FROM marks",
        "DELETE FROM marks WHERE label IS NOT NULL",
        "UPDATE marks SET label = 'elsewhere', trashed = NULL",
        "UPDATE marks SET checkpoint = (SELECT checkpoint FROM marks LIMIT 1)",
        "UPDATE marks SET time = time + 1",
        "UPDATE sessions SET title = 'another', project = NULL",
        "UPDATE sessions SET tags = NULL",
        "UPDATE sessions SET trashed = NULL",
        "UPDATE sessions SET messages = 0, checkpoints = 77, preview = ''",
        "UPDATE sessions SET status = 'completed', hidden = 1",
        "UPDATE sessions SET status = 'no such status'",
        "UPDATE sessions SET detail = x''",
        "UPDATE sessions SET detail = (SELECT detail FROM sessions LIMIT 1)",
        "UPDATE sessions SET created = 1, active = 2",
        "INSERT INTO marks SELECT id + 1, checkpoint || 'x', time, trigger, label, clean, resumable, kept, messages, trashed FROM marks LIMIT 1",
    ];
    for damage in damages {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        let id = lively(&store, &scratch).await;
        let before = view(&store).await;
        assert_whole(&store).await;
        assert!(sql(&scratch.path(), damage) > 0, "{damage} did nothing");
        let report: Verified = store.verify().await.unwrap();
        assert!(!report.is_whole(), "{damage} was not noticed");
        assert!(report.problems.iter().all(|problem| problem.derived), "{damage}: {:?}", report.problems);
        store.reindex().await.unwrap_or_else(|error| panic!("{damage}: {error}"));
        assert_eq!(view(&store).await, before, "{damage}");
        assert_whole(&store).await;
        let writer = store.write(id, &claim().take_over()).await.unwrap();
        writer.append(step(9)).await.unwrap();
        assert_whole(&store).await;
    }
}

#[tokio::test]
async fn the_text_index_is_rebuilt_after_it_was_destroyed() {
    let damages = [
        "DELETE FROM texts",
        "INSERT INTO texts (texts) VALUES ('delete-all')",
        "DELETE FROM texts_data",
        "DELETE FROM texts_docsize",
        "DELETE FROM texts_idx",
        "UPDATE texts_data SET block = x'00' WHERE id > 10",
    ];
    for damage in damages {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        lively(&store, &scratch).await;
        let before = view(&store).await;
        assert!(before.contains("ses_"));
        store.close().await.unwrap();
        sql(&scratch.path(), damage);
        let store = scratch.open().await;
        // Whether it is noticed depends on how it was destroyed; the log is never blamed for it.
        let report = store.verify().await.unwrap();
        assert!(report.problems.iter().all(|problem| problem.derived), "{damage}: {:?}", report.problems);
        store.reindex().await.unwrap_or_else(|error| panic!("{damage}: {error}"));
        assert_eq!(view(&store).await, before, "{damage}");
        assert_whole(&store).await;
    }
}

#[tokio::test]
async fn keyframes_can_be_lost_or_damaged_without_losing_anything() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(20, &scratch.clock).await;
    let all: BTreeSet<CheckpointId> = story.marks.iter().map(|(id, _)| *id).collect();
    let found = frames(&store, story.id()).await;
    assert!(found.len() > 1 && found.iter().all(|(_, pinned)| !pinned), "{found:?}");
    // Damaged: noticed as derived, passed over, and everything loads.
    sql(&scratch.path(), "UPDATE keyframes SET body = CAST(substr(body, 1, length(body) - 1) || x'ff' AS BLOB)");
    let report = store.verify().await.unwrap();
    assert_eq!(report.problems.iter().filter(|problem| problem.derived).count(), found.len(), "{report:?}");
    assert_eq!(report.problems.len(), found.len());
    for (id, expected) in &story.marks {
        assert_eq!(store.load(*id).await.unwrap().state, *expected);
    }
    store.reindex().await.unwrap();
    story.check(&store, &all).await;
    // Gone.
    sql(&scratch.path(), "DELETE FROM keyframes");
    story.check(&store, &all).await;
    story.steps(2, &scratch.clock).await;
    let all = story.marks.iter().map(|(id, _)| *id).collect();
    story.check(&store, &all).await;
}

#[tokio::test]
async fn a_keyframe_that_says_something_else_is_not_believed() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(20, &scratch.clock).await;
    let found = frames(&store, story.id()).await;
    // A whole and well-formed keyframe, of another place.
    let (first, second) = (entry_key(&scratch.path(), found[0].0), entry_key(&scratch.path(), found[1].0));
    sql(
        &scratch.path(),
        &format!("UPDATE keyframes SET body = (SELECT body FROM keyframes WHERE id = {first}) WHERE id = {second}"),
    );
    for (id, expected) in &story.marks {
        assert_eq!(store.load(*id).await.unwrap().state, *expected);
    }
    assert!(store.verify().await.unwrap().problems.iter().any(|problem| problem.derived));
}

#[tokio::test]
async fn damage_where_a_whole_state_stands_in_is_no_derived_damage() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut story = Story::new(&store).await;
    story.steps(12, &scratch.clock).await;
    for (id, _) in &story.marks[3..8] {
        story.writer.trash_mark(*id).await.unwrap();
    }
    scratch.clock.advance_ms(1);
    story.writer.purge(Timestamp(i64::MAX)).await.unwrap();
    sql(&scratch.path(), "DELETE FROM keyframes WHERE pinned = 0");
    assert_eq!(
        sql(
            &scratch.path(),
            "UPDATE keyframes SET body = CAST(substr(body, 1, length(body) - 1) || x'ff' AS BLOB) WHERE pinned"
        ),
        1
    );
    let report = store.verify().await.unwrap();
    assert!(report.problems.iter().any(|problem| !problem.derived), "{report:?}");
    // What lies before it still loads, and is what a resume falls back to.
    let loaded = store.load_latest(story.id(), &MarkQuery::default()).await.unwrap();
    assert_eq!((loaded.mark.checkpoint.id, &loaded.state), (story.marks[2].0, &story.marks[2].1));
    assert_eq!(loaded.skipped.len(), 4);
    assert_eq!(texts(&store, story.id()).await, story.said);
}

#[tokio::test]
async fn a_damaged_session_does_not_stop_the_house_from_being_kept() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut well = Story::new(&store).await;
    well.steps(6, &scratch.clock).await;
    well.writer.trash_mark(well.marks[1].0).await.unwrap();
    let mut sick = Story::new(&store).await;
    sick.steps(6, &scratch.clock).await;
    sick.writer.trash_mark(sick.marks[1].0).await.unwrap();
    damage(&scratch.path(), Position { seq: Seq(2), ..sick.ends[0] });
    scratch.clock.advance_ms(30 * DAY_MS);
    let mine = claim().take_over();
    let report = store.verify().await.unwrap();
    assert!(report.problems.iter().all(|problem| problem.session == Some(sick.id())), "{report:?}");
    assert!(!report.is_whole());
    // The session that is whole is seen to, whatever the other is like.
    let _ = store.empty_trash(&Retention::default(), &mine, false).await;
    assert!(
        matches!(store.load(well.marks[1].0).await.unwrap_err(), Error::NotFound { .. }),
        "the whole one was not seen to"
    );
    let _ = store.reindex().await;
    assert_eq!(store.sessions(&SessionQuery::default()).await.unwrap().sessions.len(), 2);
    store.stats().await.unwrap();
    store.collect(&mine, false).await.unwrap();
    assert_eq!(texts(&store, well.id()).await, well.said);
}
