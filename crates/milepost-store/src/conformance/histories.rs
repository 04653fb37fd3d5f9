//! Rules that need meaning: what a session is through a store, over its whole life. Each ends with a
//! verification that finds nothing.

use milepost_model::{CheckpointId, Event, Message, Position, Retention, SessionId, SessionPatch, Timestamp, Trigger};
use serde_json::json;

use super::scene::*;
use super::whole::{claim, state, texts, user, verify};
use super::{Outcome, Place};
use crate::error::{Conflict, Error};
use crate::store::{
    Append, Claim, DeleteMode, MarkQuery, MessageQuery, NewMark, NewSession, Redactor, SessionWriter, Store,
};

/// A message, a state and a mark, as an agent's step writes them.
fn step(number: u64) -> Outcome<Append> {
    Ok(Append::new()
        .message(user(format!("step {number}")))
        .state(state(json!({ "memory": { "step": number, "done": (0..number).collect::<Vec<_>>() } }))?)
        .mark(NewMark::new(Trigger::Step)))
}

async fn steps(writer: &SessionWriter, numbers: std::ops::Range<u64>) -> Outcome<Vec<CheckpointId>> {
    let mut made = Vec::new();
    for number in numbers {
        made.extend(writer.append(step(number)?).await?.checkpoints);
    }
    Ok(made)
}

async fn check_step(store: &Store, id: CheckpointId, number: u64) -> Outcome {
    let loaded = store.load(id).await?;
    same!(loaded.state.pointer("/memory/step"), Some(&json!(number)), "the state of checkpoint {number}");
    same!(loaded.mark.checkpoint.messages(), number + 1, "the messages of checkpoint {number}");
    Ok(())
}

/// A session that was closed and opened again goes on with its messages, its state and its list entry.
pub async fn a_session_goes_on_where_it_was_left(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut store = scene.store().await?;
    let patch = SessionPatch::new().title("a title").project("p").tags(["t"]);
    let writer = store.create(NewSession { id: None, patch }, &claim()).await?;
    let id = writer.id();
    let mut marks = steps(&writer, 0..3).await?;
    writer.release().await?;
    for round in 1..4u64 {
        store = scene.reopen_store(&store).await?;
        let before = store.session(id).await?;
        same!(before.messages(), round * 3, "the number of messages");
        same!(before.title.as_deref(), Some("a title"), "the title");
        same!(before.checkpoint, marks.last().copied(), "the newest checkpoint");
        let loaded = store.load_latest(id, &MarkQuery::default()).await?;
        same!(loaded.state.pointer("/memory/step"), Some(&json!(round * 3 - 1)), "the newest state");
        scene.clock.advance_ms(60_000);
        let writer = store.write(id, &claim()).await?;
        same!(writer.state().await?, loaded.state, "the state a writer goes on from");
        marks.extend(steps(&writer, round * 3..round * 3 + 3).await?);
        writer.release().await?;
    }
    let said: Vec<String> = (0..12).map(|number| format!("step {number}")).collect();
    same!(texts(&store, id).await?, said, "all messages");
    for (number, mark) in marks.iter().enumerate() {
        check_step(&store, *mark, number as u64).await?;
    }
    let query = MessageQuery { last: Some(3), ..MessageQuery::default() };
    let last = store.messages(id, &query).await?;
    same!(
        last.iter().map(|found| found.message.text().into_owned()).collect::<Vec<_>>(),
        said[9..],
        "the last messages"
    );
    verify(&store).await
}

/// A second writer is told who holds the session; after a take-over the first is told who took it.
pub async fn a_second_writer_is_told_who_holds_the_session(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let other = Store::with_backend(scene.another().await?, scene.options()).await?;
    let first = store.create(NewSession::default(), &Claim::new("the first")).await?;
    first.append(step(0)?).await?;
    let claim = Claim::new("the second");
    refused!(
        other.write(first.id(), &claim).await.map(|_| ()),
        Error::Held { ref holder, .. } if holder == "the first",
        "a session that someone holds"
    );
    let second = other.write(first.id(), &claim.take_over()).await?;
    refused!(
        first.append(step(1)?).await,
        Error::Fenced { ref holder, .. } if holder == "the second",
        "an append of the first after the take-over"
    );
    refused!(first.renew().await, Error::Fenced { .. }, "renewing the lease that was lost");
    refused!(
        first.restore(Position { timeline: first.session().await.head, seq: milepost_model::Seq(1) }).await,
        Error::Fenced { .. },
        "a restore of the first"
    );
    second.append(step(1)?).await?;
    refused!(first.append(step(2)?).await, Error::Fenced { .. }, "another append of the first");
    same!(texts(&store, first.id()).await?, ["step 0", "step 1"], "the log");
    refused!(first.release().await, Error::Fenced { .. }, "releasing the lease that was lost");
    scene.clock.advance_ms(30_001);
    let third = store.write(second.id(), &Claim::new("the third")).await?;
    refused!(second.append(step(2)?).await, Error::Fenced { .. }, "an append after the lease ran out and was taken");
    third.append(step(2)?).await?;
    verify(&store).await?;
    other.close().await?;
    Ok(())
}

/// An append that is sent again under its batch id is stored once: at once, after reopening, after a take-over.
pub async fn the_same_append_is_stored_once(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut store = scene.store().await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    let (id, batch) = (writer.id(), scene.id());
    let first = writer.append(step(0)?.batch(batch)).await?;
    ensure!(!first.repeated, "a new append was taken for an old one");
    let again = crate::store::Receipt { repeated: true, ..first.clone() };
    same!(writer.append(step(0)?.batch(batch)).await?, again, "the answer at once");
    writer.append(step(1)?).await?;
    same!(writer.append(step(0)?.batch(batch)).await?, again, "the answer later");
    writer.release().await?;
    for _ in 0..2 {
        store = scene.reopen_store(&store).await?;
        let writer = store.write(id, &claim().take_over()).await?;
        same!(writer.append(step(0)?.batch(batch)).await?, again, "the answer after reopening");
        same!(texts(&store, id).await?, ["step 0", "step 1"], "the messages");
    }
    let writer = store.write(id, &claim().take_over()).await?;
    let first_mark = store.mark(first.checkpoints[0]).await?;
    writer.restore(first_mark.at).await?;
    writer.append(step(1)?).await?;
    verify(&store).await
}

/// A branch has its parent's beginning and none of its later growth; a restore goes back and loses nothing.
pub async fn branches_and_restores_read_as_they_should(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut store = scene.store().await?;
    let writer = store.create(NewSession { id: None, patch: SessionPatch::new().title("trunk") }, &claim()).await?;
    let id = writer.id();
    let marks = steps(&writer, 0..6).await?;
    let third = store.mark(marks[2]).await?.at;
    let branch =
        store.branch(third, NewSession { id: None, patch: SessionPatch::new().title("branch") }, &claim()).await?;
    let branch_id = branch.id();
    same!(branch.state().await?.pointer("/memory/step"), Some(&json!(2)), "the state a branch begins with");
    branch.append(step(100)?).await?;
    steps(&writer, 6..8).await?;
    let old_head = writer.session().await.head;
    writer.restore(store.mark(marks[4]).await?.at).await?;
    writer.append(step(200)?).await?;
    let twig = store.branch(store.mark(marks[6 - 1]).await?.at, NewSession::default(), &claim()).await?;
    let twig_id = twig.id();
    for writer in [writer, branch, twig] {
        writer.release().await?;
    }
    for _ in 0..2 {
        let said = |numbers: &[u64]| numbers.iter().map(|number| format!("step {number}")).collect::<Vec<_>>();
        same!(texts(&store, id).await?, said(&[0, 1, 2, 3, 4, 200]), "the trunk after its restore");
        same!(texts(&store, branch_id).await?, said(&[0, 1, 2, 100]), "the branch");
        same!(texts(&store, twig_id).await?, said(&[0, 1, 2, 3, 4, 5]), "a branch of what was left behind");
        let end = scene.backend.timeline(&scene.workspace, old_head).await?.map_or(0, |line| line.length);
        let last = Position { timeline: old_head, seq: milepost_model::Seq(end - 1) };
        let left = store.messages_at(last, &MessageQuery::default()).await?;
        same!(left.len(), 8, "the messages of the timeline that was left behind");
        same!(store.state_at(last).await?.pointer("/memory/step"), Some(&json!(7)), "its state");
        for (number, mark) in marks.iter().enumerate() {
            check_step(&store, *mark, number as u64).await?;
        }
        same!(store.marks(id, &MarkQuery::default()).await?.len(), 6, "the checkpoints of the trunk");
        same!(store.marks(branch_id, &MarkQuery::default()).await?.len(), 4, "the checkpoints of the branch");
        let session = store.session(branch_id).await?;
        same!(session.branch.map(|from| from.at), Some(third), "where the branch began");
        same!(session.messages(), 4, "the messages of the branch");
        same!(store.session(id).await?.messages(), 6, "the messages of the trunk");
        verify(&store).await?;
        store = scene.reopen_store(&store).await?;
    }
    let nowhere = Position { timeline: old_head, seq: milepost_model::Seq(999) };
    let missing = store.branch(nowhere, NewSession::default(), &claim()).await.map(|_| ());
    refused!(missing, Error::NotFound { .. }, "a branch of an entry that is not there");
    let writer = store.write(branch_id, &claim()).await?;
    refused!(writer.restore(nowhere).await, Error::NotFound { .. }, "a restore to an entry that is not there");
    writer.append(step(101)?).await?;
    verify(&store).await
}

/// Pruned checkpoints lie in the trash and can be taken out; purging erases them, and every other
/// checkpoint and every message stays.
pub async fn pruning_and_purging_keep_every_other_checkpoint(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut store = scene.store().await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    let id = writer.id();
    let marks = steps(&writer, 0..30).await?;
    let named = NewMark::new(Trigger::Step).label("a name");
    writer.append(Append::new().mark(named)).await?;
    let branch = store.branch(store.mark(marks[3]).await?.at, NewSession::default(), &claim()).await?;
    branch.append(step(100)?).await?;
    steps(&writer, 31..33).await?;
    let keep = Retention { max_checkpoints: 6, max_age_days: 0, ..Retention::default() };
    let preview = store.prune_preview(id, &keep).await?;
    let pruned = writer.prune(&keep).await?;
    same!(pruned, preview.checkpoints, "what pruning did");
    ensure!(!pruned.contains(&marks[3]), "the checkpoint where a branch begins was pruned");
    same!(store.marks(id, &MarkQuery::default()).await?.len(), 6, "the checkpoints that are left");
    let query = MarkQuery { trashed: true, ..MarkQuery::default() };
    same!(store.marks(id, &query).await?.len(), 27, "the checkpoints in the trash");
    writer.untrash_mark(marks[10]).await?;
    check_step(&store, marks[10], 10).await?;
    verify(&store).await?;

    scene.clock.advance_ms(1000);
    let now = scene.source.now();
    let preview = store.purge_preview(id, now).await?;
    let purged = writer.purge(now).await?;
    same!(purged, preview, "what purging did");
    same!(purged.checkpoints.len(), 26, "the number of purged checkpoints");
    let branch_id = branch.id();
    writer.release().await?;
    branch.release().await?;
    for _ in 0..2 {
        for (number, mark) in marks.iter().enumerate() {
            match purged.checkpoints.contains(mark) {
                true => refused!(store.mark(*mark).await, Error::NotFound { .. }, "a purged checkpoint"),
                false => check_step(&store, *mark, number as u64).await?,
            }
        }
        same!(texts(&store, id).await?.len(), 32, "the messages that are left");
        let loaded = store.load_latest(id, &MarkQuery::default()).await?;
        same!(loaded.state.pointer("/memory/step"), Some(&json!(32)), "the newest state");
        let branched = store.load_latest(branch_id, &MarkQuery::default()).await;
        same!(branched?.state.pointer("/memory/step"), Some(&json!(100)), "the branch's state");
        verify(&store).await?;
        store = scene.reopen_store(&store).await?;
    }
    Ok(())
}

/// Checkpoints that a retention does not keep go into the trash in one batch with an append, also its own; never the
/// newest, nor one where a branch begins, whoever began it.
pub async fn pruning_goes_with_an_append(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    let marks = steps(&writer, 0..6).await?;
    let keep = |max_checkpoints| Retention { max_checkpoints, max_age_days: 0, ..Retention::default() };
    drop(store.branch(store.mark(marks[1]).await?.at, NewSession::default(), &claim()).await?);
    let first = writer.append(step(6)?.prune(&keep(4))).await?;
    same!(first.pruned, Some(vec![marks[0], marks[2], marks[3]]), "what went with the first append");
    drop(store.branch(store.mark(marks[4]).await?.at, NewSession::default(), &claim()).await?);
    let second = writer.append(step(7)?.mark(NewMark::new(Trigger::Step)).prune(&keep(3))).await?;
    let own = second.checkpoints[0];
    same!(second.pruned, Some(vec![marks[5], first.checkpoints[0], own]), "what went with the second append");
    let third = writer.append(step(8)?.prune(&keep(100))).await?;
    same!(third.pruned, Some(Vec::new()), "what went when there was nothing to do");
    let id = writer.id();
    writer.release().await?;
    let mut store = store;
    for _ in 0..2 {
        let left = store.marks(id, &MarkQuery { oldest_first: true, ..MarkQuery::default() }).await?;
        let left: Vec<CheckpointId> = left.iter().map(|mark| mark.checkpoint.id).collect();
        same!(left, [marks[1], marks[4], second.checkpoints[1], third.checkpoints[0]], "the checkpoints that are left");
        let query = MarkQuery { trashed: true, ..MarkQuery::default() };
        same!(store.marks(id, &query).await?.len(), 6, "the checkpoints in the trash");
        check_step(&store, own, 7).await?;
        verify(&store).await?;
        store = scene.reopen_store(&store).await?;
    }
    Ok(())
}

/// A deleted session is gone, unless branches need its beginning: then they are refused for, kept, or go too.
pub async fn deleting_keeps_what_branches_need(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let new = NewSession::default;
    let trunk = store.create(new(), &claim()).await?;
    let marks = steps(&trunk, 0..4).await?;
    let branch = store.branch(store.mark(marks[1]).await?.at, new(), &claim()).await?;
    let own = steps(&branch, 100..102).await?;
    let twig = store.branch(store.mark(own[0]).await?.at, new(), &claim()).await?;
    let ids: [SessionId; 3] = [trunk.id(), branch.id(), twig.id()];
    for writer in [trunk, branch, twig] {
        writer.release().await?;
    }
    store.trash(ids[0], &claim()).await?;
    same!(store.sessions(&Default::default()).await?.sessions.len(), 2, "the sessions beside the trash");
    store.untrash(ids[0], &claim()).await?;
    same!(store.sessions(&Default::default()).await?.sessions.len(), 3, "the sessions after it was emptied");
    verify(&store).await?;

    let refusal = store.delete(ids[0], DeleteMode::Refuse, &claim(), false).await;
    refused!(refusal, Error::Conflict(Conflict::Branches { .. }), "deleting a session with branches");
    let would = store.delete(ids[0], DeleteMode::KeepBranches, &claim(), true).await?;
    same!(would.hidden, [ids[0]], "what deleting would hide");
    same!(store.sessions(&Default::default()).await?.sessions.len(), 3, "the sessions after a dry run");
    store.delete(ids[0], DeleteMode::KeepBranches, &claim(), false).await?;
    let store = scene.reopen_store(&store).await?;
    same!(store.sessions(&Default::default()).await?.sessions.len(), 2, "the sessions that are left");
    same!(texts(&store, ids[1]).await?, ["step 0", "step 1", "step 100", "step 101"], "the branch");
    check_branch(&store, ids[2]).await?;
    refused!(store.mark(marks[3]).await, Error::NotFound { .. }, "a checkpoint that no branch needs");
    verify(&store).await?;

    store.delete(ids[1], DeleteMode::KeepBranches, &claim(), false).await?;
    check_branch(&store, ids[2]).await?;
    same!(store.collect(&claim(), false).await?.sessions, [], "what is collected while a branch is there");
    check_branch(&store, ids[2]).await?;
    verify(&store).await?;
    store.delete(ids[2], DeleteMode::Refuse, &claim(), false).await?;
    let collected =
        store.collect(&claim(), false).await?.sessions.len() + store.collect(&claim(), false).await?.sessions.len();
    same!(collected, 2, "what is collected when the last branch is gone");
    verify(&store).await?;

    // Each branches from the one before, and the last goes back to the first: it continues two of them.
    let trunk = store.create(new(), &claim()).await?;
    let mut at = store.mark(steps(&trunk, 0..2).await?[1]).await?.at;
    let first = at;
    let mut ids = vec![trunk.id()];
    for number in 0..3 {
        let branch = store.branch(at, new(), &claim()).await?;
        at = store.mark(steps(&branch, 100..101).await?[0]).await?.at;
        ids.push(branch.id());
        if number == 2 {
            branch.restore(first).await?;
        }
    }
    ids.reverse();
    let deleted = store.delete(trunk.id(), DeleteMode::Cascade, &claim().take_over(), false).await?;
    same!(deleted.sessions, ids, "what goes with its branches");
    same!(store.verify().await?.sessions, 0, "what is left in the end");
    Ok(())
}

async fn check_branch(store: &Store, id: SessionId) -> Outcome {
    same!(texts(store, id).await?, ["step 0", "step 1", "step 100"], "the branch of the branch");
    same!(store.state(id).await?.pointer("/memory/step"), Some(&json!(100)), "its state");
    Ok(())
}

/// Of a session kept only for its branches, the log still says what was redacted and what lies in the trash.
pub async fn what_is_kept_for_branches_says_what_it_said(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let trunk = store.create(NewSession::default(), &claim()).await?;
    let marks = steps(&trunk, 0..2).await?;
    trunk.trash_mark(marks[0]).await?;
    trunk.trash_mark(marks[1]).await?;
    let last = steps(&trunk, 2..3).await?[0];
    let branch = store.branch(store.mark(last).await?.at, NewSession::default(), &claim()).await?;
    // What follows is cut off when only the beginning is kept.
    trunk.untrash_mark(marks[1]).await?;
    let (id, trunk_id) = (branch.id(), trunk.id());
    trunk.release().await?;
    branch.release().await?;
    store.redact(&Redactor::literal("step 0", "[gone]")?, "it leaked", &claim(), false).await?;
    store.delete(trunk_id, DeleteMode::KeepBranches, &claim(), false).await?;
    let store = scene.reopen_store(&store).await?;
    for _ in 0..2 {
        verify(&store).await?;
        same!(texts(&store, id).await?, ["[gone]", "step 1", "step 2"], "the branch");
        let list = async |trashed: bool| -> Outcome<Vec<CheckpointId>> {
            let found = store.marks(id, &MarkQuery { trashed, ..MarkQuery::default() }).await?;
            Ok(found.iter().map(|mark| mark.checkpoint.id).collect())
        };
        same!(list(false).await?, [last, marks[1]], "the checkpoints");
        same!(list(true).await?, [marks[0]], "the checkpoints in the trash");
        store.reindex().await?;
    }
    Ok(())
}

/// When the clock steps back, time in a session stands still, and the lists say what the log says.
pub async fn a_clock_that_steps_back_changes_no_order(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    let id = writer.id();
    let mut marks = steps(&writer, 0..4).await?;
    scene.clock.advance_ms(-20_000);
    marks.extend(steps(&writer, 4..6).await?);
    writer.prune(&Retention { max_checkpoints: 3, max_age_days: 0, ..Retention::default() }).await?;
    writer.untrash_mark(marks[1]).await?;
    writer.restore(store.mark(marks[5]).await?.at).await?;
    let branch = store.branch(store.mark(marks[5]).await?.at, NewSession::default(), &claim()).await?;
    branch.append(step(6)?).await?;
    let branch_id = branch.id();
    writer.release().await?;
    branch.release().await?;
    let store = scene.reopen_store(&store).await?;
    for session in [id, branch_id] {
        let entries = store.entries(session, milepost_model::Seq(0), milepost_model::Seq(u64::MAX)).await?;
        ensure!(entries.is_sorted_by_key(|entry| entry.time), "time goes back in {session}");
    }
    same!(store.session(id).await?.active, START, "when the session was last written");
    same!(texts(&store, branch_id).await?.len(), 7, "the messages of the branch");
    verify(&store).await
}

/// After a redaction the secret is nowhere, everything else is as it was, and the log is found whole.
pub async fn redaction_leaves_a_whole_log(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let patch = SessionPatch::new().title("about hunter2");
    let writer = store.create(NewSession { id: None, patch }, &claim()).await?;
    let id = writer.id();
    steps(&writer, 0..2).await?;
    let secret = state(json!({ "environment": { "password": "hunter2", "list": ["x", "is hunter2!"] } }))?;
    let marked = writer
        .append(
            Append::new()
                .message(user("my password is hunter2, ok?"))
                .message(Message::blocks(
                    milepost_model::Role::Assistant,
                    vec![milepost_model::Block::tool_call("1", "login", json!({ "password": "hunter2" }))],
                ))
                .state(secret)
                .event(Event::new("note", json!({ "what": "hunter2" })))
                .mark(NewMark::new(Trigger::Manual).label("after hunter2")),
        )
        .await?;
    let branch = store.branch(store.mark(marked.checkpoints[0]).await?.at, NewSession::default(), &claim()).await?;
    branch.append(Append::new().message(user("again hunter2"))).await?;
    steps(&writer, 3..5).await?;
    writer.append(Append::new().message(user("y".repeat(40_000) + "hunter2"))).await?;
    store.put_record("token", "a", None, None, b"hunter2").await?;
    // As a tool prints a file with lines: the text holds JSON that holds it.
    let printed = |key: &str| json!({ "key": key, "as json": json!({ "key": key }).to_string() }).to_string();
    writer.append(Append::new().message(user(printed("one \"line\"\ntwo")))).await?;
    let branch_id = branch.id();
    branch.release().await?;
    writer.release().await?;

    let redactor = Redactor::literal("hunter2", "[secret]")?;
    let would = store.redact(&redactor, "it leaked", &claim(), true).await?;
    let did = store.redact(&redactor, "it leaked", &claim(), false).await?;
    same!(
        (did.entries, did.checkpoints, did.records),
        (would.entries, would.checkpoints, would.records),
        "what redaction did"
    );
    ensure!(did.entries >= 6 && did.checkpoints >= 1 && did.records == 1, "redaction found too little: {did:?}");
    let store = scene.reopen_store(&store).await?;
    verify(&store).await?;
    let said = texts(&store, id).await?;
    same!(said.get(2).map(String::as_str), Some("my password is [secret], ok?"), "the redacted message");
    same!(said.first().map(String::as_str), Some("step 0"), "a message that was left alone");
    same!(texts(&store, branch_id).await?.last().map(String::as_str), Some("again [secret]"), "the branch's message");
    let loaded = store.load(marked.checkpoints[0]).await?;
    same!(loaded.state.pointer("/environment/password"), Some(&json!("[secret]")), "the redacted state");
    same!(loaded.mark.checkpoint.label.as_deref(), Some("after [secret]"), "the redacted label");
    same!(store.session(id).await?.title.as_deref(), Some("about [secret]"), "the redacted title");
    let shown = format!("{:?}", scene.picture().await?);
    ensure!(!shown.contains("hunter2"), "the secret is still in clear in the store");
    let none = store.redact(&redactor, "again", &claim(), true).await?;
    same!((none.entries, none.checkpoints, none.records), (0, 0, 0), "what is left to redact");
    let lines = Redactor::literal("one \"line\"\ntwo", "[lines]")?;
    same!(store.redact(&lines, "it leaked", &claim(), false).await?.entries, 1, "the message that holds JSON");
    same!(texts(&store, id).await?.last().map(String::as_str), Some(&*printed("[lines]")), "the JSON in a message");
    let writer = store.write(id, &claim()).await?;
    writer.append(step(5)?).await?;
    verify(&store).await
}

/// Rebuilding what is derived from the log gives what was there.
pub async fn reindexing_changes_nothing(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let writer =
        store.create(NewSession { id: None, patch: SessionPatch::new().title("t").tags(["a"]) }, &claim()).await?;
    let marks = steps(&writer, 0..12).await?;
    let branch = store.branch(store.mark(marks[5]).await?.at, NewSession::default(), &claim()).await?;
    steps(&branch, 100..103).await?;
    writer.prune(&Retention { max_checkpoints: 4, max_age_days: 0, ..Retention::default() }).await?;
    scene.clock.advance_ms(10);
    writer.restore(store.mark(marks[11]).await?.at).await?;
    steps(&writer, 20..22).await?;
    writer.purge(scene.source.now()).await?;
    scene.clock.advance_ms(10);
    let list = async || -> Outcome<_> {
        let mut all = store.sessions(&Default::default()).await?.sessions;
        all.sort_by_key(|session| session.id);
        let mut marks = Vec::new();
        for session in &all {
            for trashed in [false, true] {
                marks.extend(store.marks(session.id, &MarkQuery { trashed, ..MarkQuery::default() }).await?);
            }
        }
        Ok((all, marks))
    };
    let before = list().await?;
    let done = store.reindex().await?;
    same!(done.sessions, 2, "the number of rebuilt sessions");
    let after = list().await?;
    same!(after.0, before.0, "the sessions");
    same!(after.1, before.1, "the checkpoints");
    same!(store.mark_near(writer.id(), Timestamp(0)).await?.session, writer.id(), "the nearest checkpoint");
    verify(&store).await
}
