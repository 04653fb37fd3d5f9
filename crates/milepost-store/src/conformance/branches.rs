//! Rules of timelines: how they continue one another, which is the head, and what may go.

use milepost_model::{EntryKind, Epoch, Id, Position, Seq, TimelineId};

use super::log::restore;
use super::scene::*;
use super::{Outcome, Place};
use crate::backend::*;
use crate::error::{Conflict, Error};

/// A branch goes on counting where it began, holds no copy, and does not see what its parent adds later.
pub async fn a_branch_shares_its_beginning_by_reference(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one", "two", "three"]).await?;
    let mut branch = scene.branch(line.at(2)).await?;
    scene.say(&mut branch, &["of the branch"]).await?;
    scene.say(&mut line, &["later"]).await?;
    for _ in 0..2 {
        same!(scene.bodies(branch.timeline).await?, ["begin", "of the branch"], "the branch's own entries");
        let numbers: Vec<u64> = scene.entries(branch.timeline).await?.iter().map(|(seq, _)| seq.0).collect();
        same!(numbers, [3, 4], "their numbers");
        let found = scene.backend.timeline(&scene.workspace, branch.timeline).await?;
        let found = found.ok_or_else(|| super::Failure::new("the branch is not there"))?;
        same!(found.parent, Some(line.at(2)), "where the branch begins");
        same!((found.session, found.length, found.begins()), (branch.session, 5, 3), "what is known of the branch");
        same!(scene.bodies(line.timeline).await?, ["begin", "one", "two", "three", "later"], "the parent");
        let children = scene.backend.children(&scene.workspace, line.session).await?;
        same!(children, [found], "the parent's branches");
        same!(scene.backend.children(&scene.workspace, branch.session).await?, [], "the branch's branches");
        scene.reopen().await?;
    }
    let twig = scene.branch(branch.at(4)).await?;
    same!(scene.head(&twig).await?.timeline.length, 6, "the length of a branch of a branch");
    Ok(())
}

/// A branch cannot begin at an entry that its parent does not have, nor at another length.
pub async fn a_branch_begins_at_an_entry_that_is_there(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one"]).await?;
    let branch = scene.branch(line.at(1)).await?;
    let before = scene.picture().await?;
    let missing: TimelineId = scene.id();
    let places = [
        (line.at(2), "after the end"),
        (line.at(u64::from(u32::MAX)), "far after the end"),
        (branch.at(1), "an entry that a branch has only from its parent"),
        (Position { timeline: missing, seq: Seq(0) }, "a timeline that is not there"),
    ];
    for (at, what) in places {
        let next = Line { session: scene.id(), timeline: scene.id(), length: at.seq.0 + 1, epoch: None };
        refused!(scene.append(scene.opening(&next, Some(at))).await, Error::NotFound { .. }, "{what}");
    }
    for wrong in [0, 1, 3] {
        let next = Line { session: scene.id(), timeline: scene.id(), length: wrong, epoch: None };
        refused!(
            scene.append(scene.opening(&next, Some(line.at(1)))).await,
            Error::Conflict(Conflict::Length { expected, actual: 2, .. }) if expected == wrong,
            "a branch that begins at {wrong} instead of 2"
        );
    }
    same!(scene.picture().await?, before, "what is there afterwards");
    Ok(())
}

/// A restore starts a new timeline at an entry and moves the head; what came after stays readable.
pub async fn a_restore_moves_the_head_and_keeps_the_old_timeline(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one", "two", "three"]).await?;
    let mut next = restore(&scene, &line, 1).await?;
    scene.say(&mut next, &["another two"]).await?;
    let last = restore(&scene, &next, 3).await?;
    for _ in 0..2 {
        let head = scene.head(&line).await?;
        same!((head.timeline.id, head.timeline.length), (last.timeline, 5), "the head");
        same!(head.noted_length, 5, "the length that the row notes");
        same!(scene.bodies(line.timeline).await?, ["begin", "one", "two", "three"], "the first timeline");
        same!(scene.bodies(next.timeline).await?, ["begin", "another two"], "the second timeline");
        let lines = scene.backend.timelines(&scene.workspace, line.session).await?;
        let known: Vec<_> = lines.iter().map(|line| (line.id, line.parent, line.head.as_deref())).collect();
        let expected = [
            (line.timeline, None, None),
            (next.timeline, Some(line.at(1)), None),
            (last.timeline, Some(next.at(3)), Some(MAIN_HEAD)),
        ];
        same!(known, expected, "the timelines");
        same!(scene.backend.children(&scene.workspace, line.session).await?, [], "branches of the session");
        scene.reopen().await?;
    }
    let back = restore_from(&scene, &last, line.at(3)).await?;
    same!(scene.head(&line).await?.timeline.parent, Some(line.at(3)), "a restore to what was left behind");
    same!(back.length, 5, "its length");
    Ok(())
}

async fn restore_from(scene: &Scene<'_>, head: &Line, at: Position) -> Outcome<Line> {
    let next = Line { timeline: scene.id(), length: at.seq.0 + 1, ..*head };
    let mut batch = scene.opening(&next, Some(at));
    batch.open = Some(Opening { parent: Some(at), head: MAIN_HEAD.into(), replaces: Some(head.timeline) });
    let length = scene.append(batch).await?.length;
    Ok(Line { length, ..next })
}

/// A session may have further heads under other names; they leave its row and its main head alone.
pub async fn a_named_head_lives_beside_the_main_one(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one"]).await?;
    let before = scene.head(&line).await?;
    let mut side = Line { timeline: scene.id(), length: 2, ..line };
    let mut batch = scene.opening(&side, Some(line.at(1)));
    batch.open = Some(Opening { parent: Some(line.at(1)), head: "thread".into(), replaces: None });
    batch.row = None;
    side.length = scene.append(batch).await?.length;
    let mut batch = scene.batch(&side, vec![entry(EntryKind::Message, "aside")]);
    batch.row = None;
    side.length = scene.append(batch).await?.length;
    for _ in 0..2 {
        same!(scene.head(&line).await?, before, "the main head");
        let found = scene.backend.timeline(&scene.workspace, side.timeline).await?;
        same!(found.and_then(|line| line.head), Some("thread".to_owned()), "the other head");
        scene.reopen().await?;
    }
    let mut taken = scene.opening(&Line { timeline: scene.id(), length: 2, ..line }, Some(line.at(1)));
    taken.open = Some(Opening { parent: Some(line.at(1)), head: "thread".into(), replaces: None });
    ensure!(scene.append(taken).await.is_err(), "a second head of the same name was made");
    scene.say(&mut line, &["two"]).await?;
    same!(scene.head(&line).await?.noted_length, 3, "the length that the row notes");
    Ok(())
}

/// A session's timelines are listed in the order they were made, whatever their ids say.
pub async fn timelines_are_listed_as_they_were_made(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let mut made = vec![line.timeline];
    for number in [900u128, 50, 700, 1] {
        // A process whose clock is behind makes ids that sort before older ones.
        let next = Line { timeline: TimelineId::from_bits(number), ..line };
        let mut batch = scene.opening(&next, Some(line.at(line.length - 1)));
        let parent = Some(line.at(line.length - 1));
        batch.open = Some(Opening { parent, head: MAIN_HEAD.into(), replaces: Some(line.timeline) });
        let length = scene.append(batch).await?.length;
        line = Line { length, ..next };
        made.push(line.timeline);
    }
    for _ in 0..2 {
        let lines = scene.backend.timelines(&scene.workspace, line.session).await?;
        same!(lines.iter().map(|line| line.id).collect::<Vec<_>>(), made, "the timelines");
        scene.reopen().await?;
    }
    Ok(())
}

/// A session in which a branch begins is not removed; without the branch it is.
pub async fn a_session_with_branches_is_not_removed(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one", "two"]).await?;
    let next = restore(&scene, &line, 1).await?;
    // One branch begins on the timeline that was left behind, one on the head.
    let branches = [scene.branch(line.at(2)).await?, scene.branch(next.at(2)).await?];
    let before = scene.picture().await?;
    let remove = async |line: &Line| scene.backend.remove(&scene.workspace, line.session, Epoch(0)).await;
    refused!(
        remove(&line).await,
        Error::Conflict(Conflict::Branches { session, branches: 2 }) if session == line.session,
        "removing a session with two branches"
    );
    same!(scene.picture().await?, before, "what is there afterwards");
    remove(&branches[0]).await?;
    refused!(
        remove(&line).await,
        Error::Conflict(Conflict::Branches { branches: 1, .. }),
        "removing a session with one branch"
    );
    remove(&branches[1]).await?;
    remove(&line).await?;
    Ok(())
}

/// Nothing of a removed session is left, and others are untouched.
pub async fn removing_a_session_removes_all_of_it(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut other = scene.begin().await?;
    scene.say(&mut other, &["of the other"]).await?;
    let before = scene.picture().await?;
    let line = scene.begin().await?;
    let id = scene.id();
    let mut batch = scene.batch(&line, vec![entry(EntryKind::Mark, "mark")]);
    batch.marks = vec![mark(line.at(1), id)];
    batch.keyframes = vec![keyframe(line.at(1), "state")];
    scene.append(batch).await?;
    let line = restore(&scene, &line, 1).await?;
    let mut ids = [other.session, line.session];
    ids.sort_unstable();
    let mut found = scene.backend.session_ids(&scene.workspace).await?;
    found.sort_unstable();
    same!(found, ids, "the sessions that have timelines");
    scene.backend.remove(&scene.workspace, line.session, Epoch(0)).await?;
    for _ in 0..2 {
        same!(scene.backend.session_ids(&scene.workspace).await?, [other.session], "the sessions that are left");
        same!(scene.backend.session(&scene.workspace, line.session).await?, None, "the removed session");
        same!(scene.backend.timelines(&scene.workspace, line.session).await?, [], "its timelines");
        same!(scene.backend.timeline(&scene.workspace, line.timeline).await?, None, "its head");
        same!(scene.entries(line.timeline).await?, [], "its entries");
        same!(scene.backend.mark(&scene.workspace, id).await?, None, "its mark");
        same!(scene.picture().await?, before, "everything else");
        scene.reopen().await?;
    }
    // The same names may be used again.
    scene.append(scene.opening(&Line { length: 0, ..line }, None)).await?;
    same!(scene.bodies(line.timeline).await?, ["begin"], "a session that begins anew");
    Ok(())
}
