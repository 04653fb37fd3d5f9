//! Rules about changing what is stored: rewrites, rebuilt rows, and what uses the space.

use milepost_model::{EntryKind, Seq, Status};

use super::log::restore;
use super::scene::*;
use super::{Failure, Outcome, Place};
use crate::backend::*;
use crate::error::{Conflict, Error};

/// Ten entries with three marks and three keyframes.
async fn populate(scene: &Scene<'_>) -> Outcome<(Line, Vec<MarkRow>)> {
    let mut line = scene.begin().await?;
    let kinds = [EntryKind::Message, EntryKind::State, EntryKind::Mark];
    let entries = (1..10).map(|number| entry(kinds[(number - 1) % 3], format!("entry {number}"))).collect();
    let mut batch = scene.batch(&line, entries);
    batch.marks = [3, 6, 9].map(|seq| mark(line.at(seq), scene.id())).to_vec();
    batch.keyframes = [2, 5, 8].map(|seq| keyframe(line.at(seq), &format!("state {seq}"))).to_vec();
    let marks = batch.marks.clone();
    line.length = scene.append(batch).await?.length;
    Ok((line, marks))
}

async fn all_marks(scene: &Scene<'_>, line: &Line) -> Outcome<Vec<MarkRow>> {
    let whole = MarkFilter::of(line.timeline, Seq(0), Seq(u64::MAX));
    let filter = MarkFilter { trashed: None, order: Order::Forward, ..whole };
    Ok(scene.backend.marks(&scene.workspace, filter).await?)
}

/// Entries are replaced, marks written anew and dropped, keyframes dropped in the same step as the
/// append that says why; when that append is refused, none of it happens.
pub async fn a_rewrite_happens_with_the_append_that_records_it(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let (line, marks) = populate(&scene).await?;
    let before = scene.picture().await?;
    let mut replaced = entry(EntryKind::Message, "erased");
    replaced.text = Some("[gone]".into());
    let mut batch = scene.batch(&line, vec![entry(EntryKind::Event, "why")]);
    let trashed = MarkRow { trashed: Some(START), ..marks[0].clone() };
    batch.rewrite = Rewrite {
        entries: vec![(line.at(4), replaced.clone()), (line.at(1), replaced.clone())],
        marks: vec![trashed.clone()],
        drop_marks: vec![line.at(6)],
        drop_keyframes: vec![line.at(5)],
        texts: vec![line.at(1), line.at(4)],
        ..Rewrite::default()
    };
    let mut late = batch.clone();
    late.expected = 3;
    refused!(scene.append(late).await, Error::Conflict(Conflict::Length { .. }), "a rewrite with a wrong length");
    let mut fenced = batch.clone();
    fenced.epoch = Some(milepost_model::Epoch(9));
    refused!(scene.append(fenced).await, Error::Fenced { .. }, "a rewrite under another epoch");
    same!(scene.picture().await?, before, "what is there after refused rewrites");

    let appended = scene.append(batch.clone()).await?;
    same!(appended, Appended { length: 11, repeated: false }, "the answer to a rewrite");
    for _ in 0..2 {
        let read = scene.entries(line.timeline).await?;
        same!(read.len(), 11, "the number of entries");
        for (seq, entry) in &read {
            match seq.0 {
                1 | 4 => same!(entry, &replaced, "a replaced entry"),
                10 => same!(entry.body, b"why", "the entry that records it"),
                0 => same!(entry.body, b"begin", "the first entry"),
                other => same!(entry.body, format!("entry {other}").as_bytes(), "an entry that was left alone"),
            }
        }
        same!(all_marks(&scene, &line).await?, [trashed.clone(), marks[2].clone()], "the marks");
        same!(scene.backend.mark(&scene.workspace, marks[1].id).await?, None, "the mark that was dropped");
        let frames = scene.backend.keyframes(&scene.workspace, line.timeline).await?;
        same!(frames, [(Seq(2), false), (Seq(8), false)], "the keyframes");
        scene.reopen().await?;
    }
    let mut same_again = batch;
    same_again.rewrite.drop_marks.clear();
    let repeated = scene.append(same_again).await?;
    same!(repeated, Appended { length: 11, repeated: true }, "the answer to the same rewrite");
    Ok(())
}

/// A truncated timeline ends where it was cut, with its marks and keyframes, and can grow from there.
pub async fn a_truncated_timeline_ends_earlier(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let (line, marks) = populate(&scene).await?;
    let mut branch = scene.branch(line.at(4)).await?;
    let head = restore(&scene, &line, 7).await?;
    let mut batch = scene.batch(&head, vec![entry(EntryKind::Event, "cut with the rest")]);
    // A session of which only what the branch needs is kept: its head is cut to nothing.
    batch.rewrite.truncate = vec![line.at(5), head.at(8)];
    batch.row = Some(SessionRow { hidden: true, ..row(line.session, START) });
    let appended = scene.append(batch).await?;
    same!(appended.length, 8, "the length of a head that was cut to nothing");
    for _ in 0..2 {
        let read = scene.bodies(line.timeline).await?;
        same!(read, ["begin", "entry 1", "entry 2", "entry 3", "entry 4"], "what is left of the timeline");
        same!(all_marks(&scene, &line).await?, [marks[0].clone()], "its marks");
        let frames = scene.backend.keyframes(&scene.workspace, line.timeline).await?;
        same!(frames, [(Seq(2), false)], "its keyframes");
        let found = scene.backend.timeline(&scene.workspace, line.timeline).await?;
        same!(found.map(|line| line.length), Some(5), "its length");
        let found = scene.head(&line).await?;
        same!((found.timeline.id, found.timeline.length, found.noted_length), (head.timeline, 8, 8), "the head");
        ensure!(found.row.hidden, "the row is not the one of the batch");
        scene.reopen().await?;
    }
    scene.say(&mut branch, &["the branch goes on"]).await?;
    let mut head = Line { length: 8, ..head };
    scene.say(&mut head, &["so could the head"]).await?;
    same!(scene.bodies(head.timeline).await?, ["so could the head"], "the head afterwards");
    Ok(())
}

/// Entries that a branch of another session needs are not cut off.
pub async fn what_a_branch_needs_is_not_truncated(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let (line, _) = populate(&scene).await?;
    scene.branch(line.at(4)).await?;
    let before = scene.picture().await?;
    for cut in [0, 3, 4] {
        let mut batch = scene.batch(&line, vec![entry(EntryKind::Event, "cut")]);
        batch.rewrite.truncate = vec![line.at(cut)];
        refused!(
            scene.append(batch).await,
            Error::Conflict(Conflict::Branches { session, .. }) if session == line.session,
            "cutting at {cut} below a branch at 4"
        );
    }
    same!(scene.picture().await?, before, "what is there afterwards");
    Ok(())
}

/// Rebuilding puts a session's row and marks in place of those that are there, and touches nothing else.
pub async fn a_rebuild_replaces_derived_rows(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let (line, marks) = populate(&scene).await?;
    let (other, _) = populate(&scene).await?;
    let lease = scene.lease(&line, take(scene.id(), "someone", 1000)).await?;
    let log = scene.entries(line.timeline).await?;
    let others = all_marks(&scene, &other).await?;
    let new_row = SessionRow {
        status: Status::Completed,
        title: Some("rebuilt".into()),
        messages: 3,
        tags: vec!["new".into()],
        ..row(line.session, START.plus_ms(5))
    };
    let new_marks = vec![MarkRow { label: Some("found again".into()), ..marks[1].clone() }];
    scene.backend.rebuild(&scene.workspace, new_row.clone(), new_marks.clone()).await?;
    for _ in 0..2 {
        let head = scene.head(&line).await?;
        same!(head.row, new_row, "the row");
        same!((head.noted_length, &head.lease), (10, &lease), "the length and the lease");
        same!(all_marks(&scene, &line).await?, new_marks, "the marks");
        same!(all_marks(&scene, &other).await?, others, "the marks of another session");
        same!(scene.entries(line.timeline).await?, log, "the log");
        let filter = SessionFilter { tag: Some("new".into()), limit: 9, ..SessionFilter::default() };
        let found = scene.backend.sessions(&scene.workspace, filter).await?;
        same!(found.as_slice(), std::slice::from_ref(&new_row), "the session found by its new tag");
        scene.reopen().await?;
    }
    Ok(())
}

/// Usage counts every entry, keyframe, blob and record, and its bytes are about those that were stored.
pub async fn usage_adds_up(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let empty = scene.backend.usage(&scene.workspace).await?;
    same!((empty.sessions.len(), empty.blobs.entries, empty.records.entries), (0, 0, 0), "the usage of nothing");
    let (line, _) = populate(&scene).await?;
    let branch = scene.branch(line.at(4)).await?;
    let mut batch = scene.batch(&branch, vec![entry(EntryKind::Message, vec![1; 10_000])]);
    batch.blobs = vec![blob(1, vec![1; 50_000]), blob(2, vec![2; 70_000])];
    scene.append(batch).await?;
    let key = RecordKey { kind: "token".into(), key: "a".into() };
    let record = Record { key, version: 1, due: None, value: vec![0; 900] };
    scene.backend.put_record(&scene.workspace, record, None).await?;

    let usage = scene.backend.usage(&scene.workspace).await?;
    let of = |wanted: &Line| {
        let found = usage.sessions.iter().find(|own| own.session == wanted.session);
        found.cloned().ok_or_else(|| Failure::new(format!("session {} is not counted", wanted.session)))
    };
    let (parent, child) = (of(&line)?, of(&branch)?);
    same!(parent.kinds.map(|kind| kind.entries), [3, 3, 3, 1], "the parent's entries by kind");
    same!(parent.keyframes.entries, 3, "its keyframes");
    same!(child.kinds.map(|kind| kind.entries), [1, 0, 0, 1], "the branch's entries by kind");
    same!(usage.sessions.len(), 2, "the number of sessions");
    let about = |found: u64, bytes: u64, rows: u64| found >= bytes && found <= bytes + 200 * rows;
    ensure!(about(parent.kinds[0].bytes, 21, 3), "the parent's messages use {} bytes", parent.kinds[0].bytes);
    ensure!(about(parent.keyframes.bytes, 21, 3), "its keyframes use {} bytes", parent.keyframes.bytes);
    ensure!(about(child.kinds[0].bytes, 10_000, 1), "the branch's message uses {} bytes", child.kinds[0].bytes);
    same!((usage.blobs.entries, usage.records.entries), (2, 1), "blobs and records");
    ensure!(about(usage.blobs.bytes, 120_000, 2), "blobs use {} bytes", usage.blobs.bytes);
    ensure!(about(usage.records.bytes, 900, 1), "records use {} bytes", usage.records.bytes);
    let stored = usage.blobs.bytes + child.kinds[0].bytes;
    ensure!(usage.total_bytes == 0 || usage.total_bytes >= stored, "all of it uses {} bytes", usage.total_bytes);
    ensure!(usage.free_bytes <= usage.total_bytes, "more is free than is there");
    Ok(())
}
