//! Rules of marks and keyframes.

use milepost_model::{CheckpointId, EntryKind, Seq, Timestamp};

use super::log::restore;
use super::scene::*;
use super::{Outcome, Place};
use crate::backend::*;

/// A timeline with marks that differ in everything a filter looks at.
async fn populate(scene: &Scene<'_>) -> Outcome<(Line, Vec<MarkRow>)> {
    let mut line = scene.begin().await?;
    let mut rows = Vec::new();
    for number in 0..48u64 {
        let made = MarkRow {
            time: Timestamp(START.0 + (number / 3) as i64),
            trigger: ["step", "manual", "messages", "a trigger of one's own"][number as usize % 4].to_owned(),
            label: [None, Some("one"), Some("two"), None, Some("")][number as usize % 5].map(str::to_owned),
            clean: number % 2 == 0,
            resumable: number % 3 != 0,
            kept: number % 4 == 1,
            messages: number * 10,
            trashed: (number % 7 == 3).then(|| START.plus_ms(1000 + number as i64)),
            ..mark(line.at(line.length + 1), scene.id())
        };
        let mut batch = scene.batch(&line, vec![entry(EntryKind::Message, "said"), entry(EntryKind::Mark, "mark")]);
        batch.marks = vec![made.clone()];
        line.length = scene.append(batch).await?.length;
        rows.push(made);
    }
    Ok((line, rows))
}

async fn check(scene: &Scene<'_>, rows: &[MarkRow], filter: MarkFilter, accepts: impl Fn(&MarkRow) -> bool) -> Outcome {
    let mut expected: Vec<MarkRow> = rows.iter().filter(|row| accepts(row)).cloned().collect();
    if filter.order == Order::Backward {
        expected.reverse();
    }
    expected.truncate(filter.limit);
    same!(scene.backend.marks(&scene.workspace, filter.clone()).await?, expected, "{filter:?}");
    Ok(())
}

/// Each filter lists exactly the marks that fit, with their rows as they were written.
pub async fn marks_are_filtered(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let (line, rows) = populate(&scene).await?;
    let all = MarkFilter { trashed: None, ..MarkFilter::of(line.timeline, Seq(0), Seq(u64::MAX)) };
    check(&scene, &rows, all.clone(), |_| true).await?;
    let filter = MarkFilter::of(line.timeline, Seq(0), Seq(line.length));
    check(&scene, &rows, filter, |row| row.trashed.is_none()).await?;
    let filter = MarkFilter { trashed: Some(true), ..all.clone() };
    check(&scene, &rows, filter, |row| row.trashed.is_some()).await?;
    for (from, to) in [(0, 0), (2, 3), (2, 2), (3, 50), (50, 3), (96, 97), (96, u64::MAX), (u64::MAX, u64::MAX)] {
        let filter = MarkFilter { from: Seq(from), to: Seq(to), ..all.clone() };
        check(&scene, &rows, filter, |row| row.at.seq.0 >= from && row.at.seq.0 < to).await?;
    }
    for triggers in [vec!["step"], vec!["manual", "a trigger of one's own"], vec!["none"]] {
        let triggers: Vec<String> = triggers.into_iter().map(str::to_owned).collect();
        let filter = MarkFilter { triggers: triggers.clone(), ..all.clone() };
        check(&scene, &rows, filter, |row| triggers.contains(&row.trigger)).await?;
    }
    for label in ["one", "two", "", "three"] {
        let filter = MarkFilter { label: Some(label.to_owned()), ..all.clone() };
        check(&scene, &rows, filter, |row| row.label.as_deref() == Some(label)).await?;
    }
    for yes in [true, false] {
        check(&scene, &rows, MarkFilter { clean: Some(yes), ..all.clone() }, |row| row.clean == yes).await?;
        check(&scene, &rows, MarkFilter { resumable: Some(yes), ..all.clone() }, |row| row.resumable == yes).await?;
    }
    for ms in [0, 1, 7, 15, 16] {
        let moment = START.plus_ms(ms);
        check(&scene, &rows, MarkFilter { time_from: Some(moment), ..all.clone() }, |row| row.time >= moment).await?;
        check(&scene, &rows, MarkFilter { time_to: Some(moment), ..all.clone() }, |row| row.time < moment).await?;
    }
    let filter = MarkFilter {
        triggers: vec!["step".into(), "manual".into()],
        clean: Some(true),
        resumable: Some(true),
        time_from: Some(START.plus_ms(2)),
        time_to: Some(START.plus_ms(14)),
        trashed: Some(false),
        ..all
    };
    check(&scene, &rows, filter, |row| {
        ["step", "manual"].contains(&row.trigger.as_str())
            && row.clean
            && row.resumable
            && row.time >= START.plus_ms(2)
            && row.time < START.plus_ms(14)
            && row.trashed.is_none()
    })
    .await
}

/// Marks are listed from either end, up to a limit, per timeline; and each is found by its name.
pub async fn marks_are_ordered_and_found_by_name(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let (line, rows) = populate(&scene).await?;
    let next = restore(&scene, &line, 10).await?;
    let own = mark(next.at(next.length), scene.id());
    let mut batch = scene.batch(&next, vec![entry(EntryKind::Mark, "on the new timeline")]);
    batch.marks = vec![own.clone()];
    scene.append(batch).await?;
    for _ in 0..2 {
        for order in [Order::Forward, Order::Backward] {
            for limit in [0, 1, 5, 1000, usize::MAX] {
                let whole = MarkFilter::of(line.timeline, Seq(0), Seq(u64::MAX));
                let filter = MarkFilter { trashed: None, order, limit, ..whole };
                check(&scene, &rows, filter, |_| true).await?;
            }
        }
        let filter = MarkFilter::of(next.timeline, Seq(0), Seq(u64::MAX));
        let found = scene.backend.marks(&scene.workspace, filter).await?;
        same!(found.as_slice(), std::slice::from_ref(&own), "the marks of the new timeline");
        for made in rows.iter().chain([&own]) {
            let found = scene.backend.mark(&scene.workspace, made.id).await?;
            same!(found.as_ref(), Some(made), "a mark by its name");
        }
        same!(scene.backend.mark(&scene.workspace, scene.id::<CheckpointId>()).await?, None, "an unknown name");
        scene.reopen().await?;
    }
    Ok(())
}

/// The marks of many sessions are counted in one call: up to each one's head, along the timelines that it continues, without
/// the trash.
pub async fn marks_of_many_sessions_are_counted(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let (line, rows) = populate(&scene).await?;
    let empty = scene.begin().await?;
    let kept = |past: u64| rows.iter().filter(|row| row.at.seq.0 < past && row.trashed.is_none()).count() as u64;
    // A branch of a branch, each with a mark of its own; the second begins before the first does.
    let mut branch = scene.branch(line.at(40)).await?;
    branch.length = mark_of(&scene, &branch, None).await?;
    let second = scene.branch(line.at(20)).await?;
    let mut third = scene.branch(branch.at(branch.length - 1)).await?;
    third.length = mark_of(&scene, &third, None).await?;
    third.length = mark_of(&scene, &third, Some(START)).await?;
    let unknown = scene.id();
    let asked = vec![third.session, unknown, empty.session, line.session, second.session, branch.session];
    for look in 0..3 {
        let counts = scene.backend.count_marks(&scene.workspace, asked.clone()).await?;
        let expected = [kept(41) + 2, 0, 0, kept(u64::MAX), kept(21), kept(41) + 1];
        same!(counts, expected, "the counts at look {look}");
        scene.reopen().await?;
    }
    same!(scene.backend.count_marks(&scene.workspace, Vec::new()).await?, Vec::<u64>::new(), "the counts of nothing");
    // What goes into the trash of a parent counts for no branch; what a restore leaves behind counts no more.
    let mut batch = scene.batch(&line, vec![entry(EntryKind::Event, "pruned")]);
    batch.rewrite.marks = vec![MarkRow { trashed: Some(START), ..rows[0].clone() }];
    batch.rewrite.drop_marks = vec![rows[1].at];
    let longer = Line { length: scene.append(batch).await?.length, ..line };
    restore(&scene, &longer, 10).await?;
    let counts = scene.backend.count_marks(&scene.workspace, asked.clone()).await?;
    same!(counts[3], kept(11) - 2, "the count after a restore");
    same!(counts[0], kept(41), "the count of a branch of a branch, whose parent lost some");
    Ok(())
}

/// Adds a mark at the end of a line; gives its length.
async fn mark_of(scene: &Scene<'_>, line: &Line, trashed: Option<Timestamp>) -> Outcome<u64> {
    let mut batch = scene.batch(line, vec![entry(EntryKind::Mark, "mark")]);
    batch.marks = vec![MarkRow { trashed, ..mark(line.at(line.length), scene.id()) }];
    Ok(scene.append(batch).await?.length)
}

/// A keyframe is the newest at or before an entry, of that timeline only.
pub async fn keyframes_are_the_newest_before_an_entry(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let entries = (0..20).map(|_| entry(EntryKind::State, "delta")).collect();
    let mut batch = scene.batch(&line, entries);
    let frames = [
        keyframe(line.at(3), "three"),
        Keyframe { pinned: true, ..keyframe(line.at(7), "seven") },
        Keyframe { body: vec![0; 300_000], ..keyframe(line.at(15), "") },
    ];
    batch.keyframes = frames.to_vec();
    line.length = scene.append(batch).await?.length;
    let branch = scene.branch(line.at(10)).await?;
    for _ in 0..2 {
        for (asked, expected) in [
            (0, None),
            (2, None),
            (3, Some(0)),
            (6, Some(0)),
            (7, Some(1)),
            (14, Some(1)),
            (15, Some(2)),
            (99, Some(2)),
        ] {
            let found = scene.backend.keyframe(&scene.workspace, line.at(asked)).await?;
            ensure!(found.as_ref() == expected.map(|at: usize| &frames[at]), "the keyframe at or before {asked}");
        }
        let list = scene.backend.keyframes(&scene.workspace, line.timeline).await?;
        same!(list, [(Seq(3), false), (Seq(7), true), (Seq(15), false)], "the list of keyframes");
        same!(scene.backend.keyframe(&scene.workspace, branch.at(12)).await?, None, "the keyframe of a branch");
        same!(scene.backend.keyframes(&scene.workspace, branch.timeline).await?, [], "the list of a branch");
        scene.reopen().await?;
    }
    let mut batch = scene.batch(&line, vec![entry(EntryKind::Event, "kept for good")]);
    batch.keyframes = vec![Keyframe { pinned: true, ..keyframe(line.at(3), "three, pinned") }];
    let pinned = batch.keyframes.clone();
    scene.append(batch).await?;
    same!(scene.backend.keyframe(&scene.workspace, line.at(5)).await?, pinned.first().cloned(), "a keyframe made anew");
    Ok(())
}
