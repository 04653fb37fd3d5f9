//! Rules of writing without a lease: adapters of frameworks that know no owner do so.

use milepost_model::{CheckpointId, EntryKind, Position, Seq, Trigger};
use serde_json::json;

use super::scene::*;
use super::whole::{claim, state, texts, user, verify};
use super::{Outcome, Place};
use crate::backend::Kinds;
use crate::error::{Conflict, Error};
use crate::store::{Append, DeleteMode, NewMark, NewSession};

/// Two who write without a lease, and one with, never interleave: who comes second is refused, reads again and goes on.
pub async fn writers_without_a_lease_never_interleave(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let (store, other) = (scene.store().await?, scene.store().await?);
    let one = store.create_shared(NewSession::default()).await?;
    let two = other.join(one.id()).await?;
    let held = other.write(one.id(), &claim()).await?;
    one.append(Append::new().message(user("one"))).await?;
    for writer in [&two, &held] {
        refused!(
            writer.append(Append::new().message(user("late"))).await,
            Error::Conflict(Conflict::Length { .. }),
            "an append behind another's"
        );
    }
    let state = state(json!({ "memory": { "by": "two" } }))?;
    two.append(Append::new().message(user("two")).state(state.clone())).await?;
    refused!(one.append(Append::new().message(user("late"))).await, Error::Conflict(_), "an append behind another's");
    same!(one.state().await?, state, "the state after reading again");
    let receipt = one.append(Append::new().message(user("three"))).await?;

    let (timeline, length) = (receipt.first.timeline, receipt.length);
    for wrong in [length - 1, length + 1] {
        refused!(
            one.append(Append::new().after(timeline, wrong).message(user("wrong"))).await,
            Error::Conflict(Conflict::Length { .. }),
            "an append that expects another length"
        );
    }
    one.append(Append::new().after(timeline, length).message(user("four"))).await?;
    same!(texts(&store, one.id()).await?, ["one", "two", "three", "four"], "the messages");
    verify(&store).await
}

/// What is left of a session for its branches may have as many entries as whoever wrote without a lease knew: it is another all the same.
pub async fn a_writer_that_knew_a_session_before_it_was_cut_is_refused(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    for entries in 1..5 {
        let (store, other) = (scene.store().await?, scene.store().await?);
        let one = store.create_shared(NewSession::default()).await?;
        let mut at = None;
        for number in 0..entries {
            let receipt = one.append(Append::new().message(user(format!("entry {number}")))).await?;
            at = at.or(Some(receipt.first));
        }
        let Some(at) = at else { return Ok(()) };
        let late = other.join(one.id()).await?;
        let (timeline, length) = late.head().await;
        let branch = store.branch(at, NewSession::default(), &claim()).await?;
        for _ in 0..2 {
            store.delete(one.id(), DeleteMode::KeepBranches, &claim(), false).await?;
        }
        let append = Append::new().after(timeline, length).message(user("late"));
        refused!(late.append(append).await, Error::Conflict(_), "an append after {entries} entries that were cut");
        same!(texts(&store, branch.id()).await?, ["entry 0"], "the branch");
        ensure!(store.session(one.id()).await?.hidden, "the session is not hidden any more");
        verify(&store).await?;
    }
    Ok(())
}

/// A session is set back and goes on in one step, without a lease; the checkpoint has the id that it was given, and both
/// timelines are read up to where one asks.
pub async fn a_fork_happens_in_one_step(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let (store, other) = (scene.store().await?, scene.store().await?);
    let one = store.create_shared(NewSession::default()).await?;
    let two = other.join(one.id()).await?;
    let state = |number: u64| state(json!({ "memory": { "step": number } }));
    let mut ids = Vec::new();
    for number in 0..3u64 {
        let id: CheckpointId = scene.id();
        let mark = NewMark { id: Some(id), ..NewMark::new(Trigger::Step) };
        let append = Append::new().message(user(format!("step {number}"))).state(state(number)?).mark(mark);
        same!(one.append(append).await?.checkpoints, [id], "the checkpoint's id");
        ids.push(id);
    }
    let (first, last) = (store.mark(ids[0]).await?.at, store.mark(ids[2]).await?.at);
    let id: CheckpointId = scene.id();
    let forked = || -> Outcome<Append> {
        let mark = NewMark { id: Some(id), ..NewMark::new(Trigger::Step) };
        Ok(Append::new().message(user("another way")).state(state(9)?).mark(mark))
    };
    let behind = forked()?.after(last.timeline, last.seq.0);
    refused!(one.restore_with(first, behind).await, Error::Conflict(Conflict::Length { .. }), "an expectation");
    same!(texts(&store, one.id()).await?.len(), 3, "the messages after refused forks");

    let receipt = one.restore_with(first, forked()?.after(last.timeline, last.seq.0 + 1)).await?;
    same!(receipt.checkpoints, [id], "the checkpoint of the fork");
    same!(texts(&store, one.id()).await?, ["step 0", "another way"], "the messages of the fork");
    let loaded = store.load(id).await?;
    same!(loaded.state.pointer("/memory/step"), Some(&json!(9)), "the state of the fork");
    same!(store.load(ids[2]).await?.state.pointer("/memory/step"), Some(&json!(2)), "the state that was left");
    for (at, count) in [(last, 3), (loaded.mark.at, 2)] {
        let marks = store.entries_at(at, Seq(0), Kinds::only(EntryKind::Mark)).await?;
        same!(marks.len(), count, "the marks up to {at}");
        let rest = store.entries_at(at, first.seq.next(), Kinds::only(EntryKind::Mark)).await?;
        same!(rest.len(), count - 1, "the marks after the fork up to {at}");
    }
    let until = Position { timeline: last.timeline, seq: Seq(last.seq.0 - 1) };
    same!(store.entries_at(until, Seq(0), Kinds::only(EntryKind::Mark)).await?.len(), 2, "the marks before the last");
    one.append(Append::new().message(user("and on"))).await?;
    refused!(
        two.restore_with(first, Append::new().message(user("late"))).await,
        Error::Conflict(_),
        "a fork by one who does not know of the other"
    );
    same!(texts(&store, one.id()).await?, ["step 0", "another way", "and on"], "the messages after the fork");
    verify(&store).await
}
