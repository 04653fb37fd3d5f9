//! Rules of the log: what an append stores, when it is refused, and what a read gives back.

use milepost_model::{EntryKind, Epoch, Hash, Seq, TimelineId};

use super::scene::*;
use super::{Outcome, Place};
use crate::backend::*;
use crate::error::{Conflict, Error};

/// What an append acknowledged is there for everyone, and after the store was closed and opened again.
pub async fn acknowledged_appends_are_there_after_reopening(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let mut message = entry(EntryKind::Message, "message");
    message.label = Some("user".into());
    message.channel = Some("side".into());
    message.text = Some("a text\nin two lines \u{1f9ed}".into());
    message.refs = vec![BlobId([1; 32]), BlobId([2; 32])];
    let mut marked = entry(EntryKind::Mark, vec![0, 255, 0]);
    marked.chain = Some(Hash([3; 32]));
    marked.mac = Some([4; 32]);
    let entries = vec![message, entry(EntryKind::State, "state"), marked, entry(EntryKind::Event, Vec::new())];
    let mut batch = scene.batch(&line, entries);
    batch.blobs = vec![blob(1, "one"), blob(2, vec![0; 100_000])];
    batch.marks = vec![MarkRow { label: Some("a label".into()), ..mark(line.at(3), scene.id()) }];
    batch.keyframes = vec![keyframe(line.at(2), "the whole state")];
    let (entries, marks, frames) = (batch.entries.clone(), batch.marks.clone(), batch.keyframes.clone());
    let answer = scene.append(batch).await?;
    same!(answer, Appended { length: 5, repeated: false }, "the answer to an append");
    line.length = answer.length;

    let before = scene.picture().await?;
    let other = scene.another().await?;
    same!(picture(&*other, &scene.workspace).await?, before, "what another process sees");
    other.close().await?;
    for opening in ["first", "second"] {
        scene.reopen().await?;
        same!(scene.picture().await?, before, "what is there after the {opening} reopening");
    }
    let read = scene.entries(line.timeline).await?;
    let numbered: Vec<(Seq, StoredEntry)> = (1..).map(Seq).zip(entries).collect();
    same!(read.get(1..).unwrap_or_default(), numbered.as_slice(), "the entries read back");
    same!(scene.backend.mark(&scene.workspace, marks[0].id).await?, marks.first().cloned(), "the mark read back");
    let frame = scene.backend.keyframe(&scene.workspace, line.at(4)).await?;
    same!(frame, frames.first().cloned(), "the keyframe read back");
    let head = scene.head(&line).await?;
    same!(head.noted_length, 5, "the length that the row notes");
    same!(head.timeline.length, 5, "the length of the head");
    same!(head.timeline.chain, read.last().and_then(|(_, entry)| entry.chain), "the chain hash of the head");
    scene.say(&mut line, &["it goes on"]).await?;
    Ok(())
}

/// A batch of which one part is bad leaves nothing behind, and what follows is not disturbed.
pub async fn a_batch_is_stored_whole_or_not_at_all(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one", "two"]).await?;
    let before = scene.picture().await?;
    let nowhere: TimelineId = scene.id();

    let full = |line: &Line| {
        let mut batch = scene.batch(line, vec![entry(EntryKind::Message, "bad"), entry(EntryKind::Mark, "bad")]);
        batch.blobs = vec![blob(9, "bad")];
        batch.marks = vec![mark(line.at(line.length + 1), scene.id())];
        batch.keyframes = vec![keyframe(line.at(line.length), "bad")];
        batch.row = Some(SessionRow { title: Some("bad".into()), ..row(line.session, START) });
        batch
    };
    refused!(
        scene.append(full(&Line { length: 7, ..line })).await,
        Error::Conflict(Conflict::Length { .. }),
        "a wrong length"
    );
    let mut foreign_frame = full(&line);
    foreign_frame.keyframes.push(keyframe(milepost_model::Position { timeline: nowhere, seq: Seq(0) }, "bad"));
    refused!(scene.append(foreign_frame).await, Error::NotFound { .. }, "a keyframe of a timeline that is not there");
    let mut foreign_change = full(&line);
    let at = milepost_model::Position { timeline: nowhere, seq: Seq(0) };
    foreign_change.rewrite.entries.push((at, entry(EntryKind::Event, "bad")));
    refused!(scene.append(foreign_change).await, Error::NotFound { .. }, "a change of a timeline that is not there");

    let fresh = Line { session: scene.id(), timeline: scene.id(), length: 1, epoch: None };
    let lost = Some(milepost_model::Position { timeline: nowhere, seq: Seq(0) });
    let mut orphan = full(&fresh);
    orphan.open = Some(Opening { parent: lost, head: MAIN_HEAD.into(), replaces: None });
    refused!(scene.append(orphan).await, Error::NotFound { .. }, "a timeline whose parent is not there");
    let mut taken = full(&Line { timeline: line.timeline, length: 0, ..fresh });
    taken.open = Some(Opening { parent: None, head: MAIN_HEAD.into(), replaces: None });
    refused!(scene.append(taken).await, Error::Conflict(Conflict::Exists { .. }), "a timeline that is there already");
    let mut homeless = full(&Line { length: 0, ..fresh });
    homeless.open = Some(Opening { parent: None, head: MAIN_HEAD.into(), replaces: None });
    homeless.row = None;
    refused!(scene.append(homeless).await, Error::NotFound { .. }, "a new session without a row");

    same!(scene.picture().await?, before, "what is there after batches that were refused");
    scene.reopen().await?;
    same!(scene.picture().await?, before, "what is there after reopening");
    scene.say(&mut line, &["three"]).await?;
    same!(scene.bodies(line.timeline).await?, ["begin", "one", "two", "three"], "the log afterwards");
    Ok(())
}

/// An append at another length than the timeline has is refused, and the error names both.
pub async fn a_wrong_length_is_a_conflict(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one", "two", "three"]).await?;
    let before = scene.picture().await?;
    for wrong in [0, 1, 3, 5, 1000] {
        let batch = scene.batch(&Line { length: wrong, ..line }, vec![entry(EntryKind::Event, "late")]);
        refused!(
            scene.append(batch).await,
            Error::Conflict(Conflict::Length { timeline, expected, actual: 4 })
                if timeline == line.timeline && expected == wrong,
            "an append at {wrong} of 4"
        );
    }
    same!(scene.picture().await?, before, "what is there afterwards");
    Ok(())
}

/// A writer whose lease was taken over is refused and told by whom; so is one from the future.
pub async fn an_old_epoch_is_fenced(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let first = scene.lease(&line, take(scene.id(), "the first", 1000)).await?;
    line.epoch = Some(first.epoch);
    scene.say(&mut line, &["by the first"]).await?;
    let second = scene.lease(&line, take_over(scene.id(), "the second", 1000)).await?;
    ensure!(second.epoch > first.epoch, "the epoch did not go up: {second:?}");
    let before = scene.picture().await?;
    for epoch in [first.epoch, Epoch(0), Epoch(second.epoch.0 + 1)] {
        let stale = Line { epoch: Some(epoch), ..line };
        let batch = scene.batch(&stale, vec![entry(EntryKind::Event, "late")]);
        refused!(
            scene.append(batch).await,
            Error::Fenced { session, epoch: used, current, ref holder }
                if session == line.session && used == epoch && current == second.epoch && holder == "the second",
            "an append under epoch {epoch}"
        );
    }
    same!(scene.picture().await?, before, "what is there afterwards");
    line.epoch = Some(second.epoch);
    scene.say(&mut line, &["by the second"]).await?;
    Ok(())
}

/// An append that names no epoch is taken whoever holds the session, and does not renew the lease.
pub async fn an_append_without_a_lease_needs_none(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    let lease = scene.lease(&line, take(scene.id(), "someone", 1000)).await?;
    scene.say(&mut line, &["from an adapter"]).await?;
    same!(scene.head(&line).await?.lease, lease, "the lease afterwards");
    Ok(())
}

/// A timeline that is no longer a head is refused, also as the one to be replaced.
pub async fn a_replaced_timeline_grows_no_more(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = scene.begin().await?;
    scene.say(&mut line, &["one", "two"]).await?;
    let restored = restore(&scene, &line, 1).await?;
    let before = scene.picture().await?;
    for _ in 0..2 {
        let batch = scene.batch(&line, vec![entry(EntryKind::Event, "late")]);
        refused!(
            scene.append(batch).await,
            Error::Conflict(Conflict::NotHead { timeline }) if timeline == line.timeline,
            "an append to the old timeline"
        );
        let mut again = scene.opening(&Line { timeline: scene.id(), length: 2, ..line }, Some(line.at(1)));
        again.open = Some(Opening { parent: Some(line.at(1)), head: MAIN_HEAD.into(), replaces: Some(line.timeline) });
        refused!(
            scene.append(again).await,
            Error::Conflict(Conflict::NotHead { timeline }) if timeline == line.timeline,
            "replacing what was replaced"
        );
        same!(scene.picture().await?, before, "what is there afterwards");
        scene.reopen().await?;
    }
    let mut restored = restored;
    scene.say(&mut restored, &["on the new timeline"]).await?;
    Ok(())
}

/// Starts a new head at an entry of a line.
pub(super) async fn restore(scene: &Scene<'_>, line: &Line, to: u64) -> Outcome<Line> {
    let next = Line { timeline: scene.id(), length: to + 1, ..*line };
    let mut batch = scene.opening(&next, Some(line.at(to)));
    batch.open = Some(Opening { parent: Some(line.at(to)), head: MAIN_HEAD.into(), replaces: Some(line.timeline) });
    let length = scene.append(batch).await?.length;
    Ok(Line { length, ..next })
}

/// A batch that is sent again gets its first answer and adds nothing, whatever happened in between.
pub async fn the_same_batch_gets_the_same_answer(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut line = Line { session: scene.id(), timeline: scene.id(), length: 0, epoch: None };
    let opening = scene.opening(&line, None);
    scene.append(opening.clone()).await?;
    line.length = 1;
    let lease = scene.lease(&line, take(scene.id(), "the first", 1000)).await?;
    line.epoch = Some(lease.epoch);
    let mut batch = scene.batch(&line, vec![entry(EntryKind::Message, "a"), entry(EntryKind::Mark, "b")]);
    batch.marks = vec![mark(line.at(2), scene.id())];
    batch.blobs = vec![blob(1, "one")];
    same!(scene.append(batch.clone()).await?, Appended { length: 3, repeated: false }, "the first answer");
    line.length = 3;

    let again = Appended { length: 3, repeated: true };
    let mut before = scene.picture().await?;
    for moment in ["at once", "after more was added", "after reopening", "after a take-over", "after a restore"] {
        match moment {
            "after more was added" => drop(scene.say(&mut line, &["more"]).await?),
            "after reopening" => scene.reopen().await?,
            "after a take-over" => drop(scene.lease(&line, take_over(scene.id(), "the second", 1000)).await?),
            "after a restore" => drop(restore(&scene, &Line { epoch: None, ..line }, 2).await?),
            _ => {}
        }
        if moment != "at once" {
            before = scene.picture().await?;
        }
        same!(scene.append(batch.clone()).await?, again, "the answer {moment}");
        let first = Appended { length: 1, repeated: true };
        same!(scene.append(opening.clone()).await?, first, "the answer to the opening {moment}");
        same!(scene.picture().await?, before, "what is there {moment}");
    }
    let mut other = batch.clone();
    seal(&mut other, scene.id());
    ensure!(scene.append(other).await.is_err(), "the same entries under another batch id were taken at an old length");
    Ok(())
}

/// A session that is there cannot be begun again.
pub async fn a_session_begins_once(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let line = scene.begin().await?;
    let before = scene.picture().await?;
    let again = scene.opening(&Line { timeline: scene.id(), length: 0, ..line }, None);
    refused!(scene.append(again).await, Error::Conflict(Conflict::Exists { .. }), "beginning a session that is there");
    same!(scene.picture().await?, before, "what is there afterwards");
    Ok(())
}

/// Reading what is not there gives nothing; changing it is an error that says so.
pub async fn what_is_not_there_is_not_found(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let (line, other) = (scene.begin().await?, scene.begin().await?);
    let missing = Line { session: scene.id(), timeline: scene.id(), length: 1, epoch: None };
    let (backend, workspace) = (&scene.backend, &scene.workspace);
    same!(backend.session(workspace, missing.session).await?, None, "a session that is not there");
    same!(backend.timeline(workspace, missing.timeline).await?, None, "a timeline that is not there");
    same!(backend.timelines(workspace, missing.session).await?, [], "its timelines");
    same!(backend.children(workspace, missing.session).await?, [], "its branches");
    same!(scene.entries(missing.timeline).await?, [], "its entries");
    same!(backend.mark(workspace, scene.id()).await?, None, "a mark that is not there");
    let filter = MarkFilter::of(missing.timeline, Seq(0), Seq(9));
    same!(backend.marks(workspace, filter).await?, [], "its marks");
    same!(backend.keyframe(workspace, missing.at(0)).await?, None, "its keyframe");
    same!(backend.keyframes(workspace, missing.timeline).await?, [], "its keyframes");
    let before = scene.picture().await?;

    let batch = |line: &Line| scene.batch(line, vec![entry(EntryKind::Event, "lost")]);
    refused!(scene.append(batch(&missing)).await, Error::NotFound { .. }, "an append to nothing");
    let mixed = Line { session: other.session, ..line };
    refused!(scene.append(batch(&mixed)).await, Error::NotFound { .. }, "an append to another session's timeline");
    let take = take(scene.id(), "nobody", 1000);
    refused!(scene.lease(&missing, take).await, Error::NotFound { .. }, "a lease of nothing");
    let removed = backend.remove(workspace, missing.session, Epoch(0)).await;
    refused!(removed, Error::NotFound { .. }, "removing nothing");
    same!(scene.picture().await?, before, "what is there afterwards");
    Ok(())
}

/// A range gives the entries asked for: by number, kind, channel, order and limit.
pub async fn ranges_give_what_was_asked_for(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let line = scene.begin().await?;
    let mut entries = Vec::new();
    for number in 1..40u8 {
        let kind = EntryKind::ALL[usize::from(number) % 4];
        let mut entry = entry(kind, vec![number]);
        if kind == EntryKind::Message {
            entry.channel = [None, Some("a"), Some("main")][usize::from(number) % 3].map(str::to_owned);
        }
        entries.push(entry);
    }
    scene.append(scene.batch(&line, entries)).await?;
    let all = scene.entries(line.timeline).await?;
    same!(all.len(), 40, "the number of entries");

    let (message, state) = (Kinds::only(EntryKind::Message), Kinds::only(EntryKind::State).and(EntryKind::Event));
    let ends = [(0, u64::MAX), (0, 40), (3, 4), (5, 5), (7, 3), (39, 41), (40, 90), (0, 0), (u64::MAX, 0), (2, 31)];
    for (from, to) in ends {
        for kinds in [Kinds::ALL, message, state] {
            for channel in [None, Some(None), Some(Some("a".to_owned())), Some(Some("b".to_owned()))] {
                for order in [Order::Forward, Order::Backward] {
                    for limit in [0, 1, 3, 1000, usize::MAX] {
                        let range = Range {
                            timeline: line.timeline,
                            from: Seq(from),
                            to: Seq(to),
                            kinds,
                            channel: channel.clone(),
                            order,
                            limit,
                        };
                        let mut expected: Vec<u64> = all
                            .iter()
                            .filter(|(seq, e)| seq.0 >= from && seq.0 < to && kinds.has(e.kind))
                            .filter(|(_, e)| channel.as_ref().is_none_or(|wanted| *wanted == e.channel))
                            .map(|(seq, _)| seq.0)
                            .collect();
                        if order == Order::Backward {
                            expected.reverse();
                        }
                        expected.truncate(limit);
                        let found = scene.backend.read(&scene.workspace, range.clone()).await?;
                        let found: Vec<u64> = found.iter().map(|(seq, _)| seq.0).collect();
                        same!(found, expected, "{range:?}");
                    }
                }
            }
        }
    }
    Ok(())
}
