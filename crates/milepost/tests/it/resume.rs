//! Going on with sessions: from the end, from a checkpoint, after damage, when someone else holds it.

use std::pin::Pin;
use std::task::Poll;

use milepost::model::Resumable;
use milepost::{
    Error, MessageQuery, Milepost, NewMark, NewSession, Notice, Point, Resume, SessionId, Status, Trigger, parse_set,
};

use crate::support::{Scratch, user};

async fn texts(milepost: &Milepost, id: SessionId) -> Vec<String> {
    let messages = milepost.store().messages(id, &MessageQuery::default()).await.unwrap();
    messages.into_iter().map(|stored| stored.message.text().into_owned()).collect()
}

#[tokio::test]
async fn resuming_from_the_end_loses_nothing_after_the_checkpoint() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.append(user("one")).await.unwrap();
    session.checkpoint_labelled("mark").await.unwrap();
    session.append(user("two")).await.unwrap();
    session.fail("the network is gone").await.unwrap();
    session.release().await.unwrap();
    let how = Resume { set: vec![parse_set("memory.retries=1").unwrap()], ..Resume::latest() };
    let resumed = milepost.resume(id, how).await.unwrap();
    assert_eq!((resumed.messages, resumed.moved, resumed.status), (2, false, Status::Failed));
    assert_eq!(resumed.state.pointer("/memory/retries"), Some(&1.into()));
    let info = resumed.session.info().await;
    assert_eq!((info.status, info.error), (Status::Active, None));
    assert_eq!(texts(&milepost, id).await, ["one", "two"]);
}

#[tokio::test]
async fn resuming_from_a_checkpoint_moves_the_head_and_keeps_the_rest() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.append(user("one")).await.unwrap();
    let mark = session.checkpoint_labelled("mark").await.unwrap();
    session.append(user("two")).await.unwrap();
    let later = session.checkpoint_labelled("later").await.unwrap();
    session.release().await.unwrap();
    let resumed = milepost.resume(id, Resume::from("mark".parse().unwrap())).await.unwrap();
    assert_eq!((resumed.moved, resumed.from.unwrap().checkpoint.id), (true, mark));
    assert_eq!(texts(&milepost, id).await, ["one"]);
    resumed.session.append(user("another two")).await.unwrap();
    // What was left is still there, and can be gone back to.
    resumed.session.restore(&Point::Checkpoint(later)).await.unwrap();
    assert_eq!(texts(&milepost, id).await, ["one", "two"]);
}

#[tokio::test]
async fn what_had_no_checkpoint_yet_can_be_gone_back_to_after_a_restore() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.append(user("one")).await.unwrap();
    session.checkpoint_labelled("mark").await.unwrap();
    assert_eq!(session.mark_end().await.unwrap(), None);
    session.append(user("two")).await.unwrap();
    let end = session.mark_end().await.unwrap().expect("there is something to keep");
    session.restore(&"mark".parse().unwrap()).await.unwrap();
    session.append(user("another two")).await.unwrap();
    // A restore and a resume from a checkpoint keep the end by themselves.
    session.restore(&Point::Checkpoint(end)).await.unwrap();
    assert_eq!(texts(&milepost, id).await, ["one", "two"]);
    session.set(&[parse_set("memory.step=3").unwrap()]).await.unwrap();
    session.release().await.unwrap();
    let mut notices = milepost.notices();
    let resumed = milepost.resume(id, Resume::from("mark".parse().unwrap())).await.unwrap();
    assert!(resumed.moved);
    let Ok(Notice::CheckpointCreated { checkpoint_id, .. }) = notices.try_recv() else {
        panic!("no checkpoint was taken")
    };
    resumed.session.restore(&Point::Checkpoint(checkpoint_id)).await.unwrap();
    assert_eq!(resumed.session.state().await.unwrap().pointer("/memory/step"), Some(&3.into()));
}

#[tokio::test]
async fn a_damaged_checkpoint_is_passed_over_and_named() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.append(user("one")).await.unwrap();
    let whole = session.checkpoint_labelled("whole").await.unwrap();
    session.set(&[parse_set("memory.step=2").unwrap()]).await.unwrap();
    let damaged = session.checkpoint_labelled("damaged").await.unwrap();
    session.release().await.unwrap();
    milepost.close().await.unwrap();
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    let changed = database
        .execute("UPDATE entries SET body = zeroblob(length(body)) WHERE kind = 2 AND id = (SELECT max(id) FROM entries WHERE kind = 2)", [])
        .unwrap();
    assert_eq!(changed, 1);
    drop(database);
    let milepost = scratch.open().await;
    let resumed = milepost.resume(id, Resume::latest()).await.unwrap();
    assert_eq!(resumed.skipped.iter().map(|skipped| skipped.id).collect::<Vec<_>>(), [damaged]);
    assert_eq!(resumed.from.unwrap().checkpoint.id, whole);
    assert!(resumed.moved);
    resumed.session.append(user("and on")).await.unwrap();
    assert_eq!(texts(&milepost, id).await, ["one", "and on"]);
}

#[tokio::test]
async fn what_cannot_be_resumed_says_why_and_what_can() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    let good = session.checkpoint_labelled("good").await.unwrap();
    scratch.clock.advance_ms(1000);
    let mark = NewMark { resumable: Resumable::No("a tool was running".into()), ..NewMark::new(Trigger::Manual) };
    let bad = session.checkpoint(mark).await.unwrap();
    session.release().await.unwrap();
    let mut notices = milepost.notices();
    let error = milepost.resume(id, Resume::from(Point::Checkpoint(bad))).await.unwrap_err();
    let Error::NotResumable { why, instead, .. } = error else { panic!("{error}") };
    assert_eq!(why, "a tool was running");
    assert!(instead.contains(&good.to_string()), "{instead}");
    // It is told like one that succeeded, and not counted as one.
    let told = notices.try_recv().unwrap();
    assert!(
        matches!(told, Notice::CheckpointRestored { checkpoint_id, success: false, .. } if checkpoint_id == bad),
        "{told:?}"
    );
    assert_eq!(milepost.counts().restored(), 0);
    assert_eq!(milepost.resume(id, Resume::latest()).await.unwrap().from.unwrap().checkpoint.id, good);
}

#[tokio::test]
async fn the_second_of_two_resumes_is_told_who_holds_it_and_may_take_over() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let first = milepost.create(NewSession::default()).await.unwrap();
    let held = milepost.resume(first.id(), Resume::latest()).await.unwrap_err();
    assert!(matches!(&held, Error::Store(milepost::store::Error::Held { holder, .. }) if holder == "a test"), "{held}");
    for choice in ["attach", "branch", "take it over"] {
        assert!(held.to_string().contains(choice), "{held}");
    }
    let second = milepost.resume(first.id(), Resume { take_over: true, ..Resume::latest() }).await.unwrap();
    second.session.append(user("mine now")).await.unwrap();
    let fenced = first.append(user("too late")).await.unwrap_err();
    assert!(matches!(fenced, Error::Store(milepost::store::Error::Fenced { .. })), "{fenced}");
    assert_eq!(texts(&milepost, first.id()).await, ["mine now"]);
}

#[tokio::test]
async fn completed_and_trashed_sessions_are_not_resumed_by_accident() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.complete().await.unwrap();
    session.release().await.unwrap();
    assert!(milepost.resume(id, Resume::latest()).await.unwrap_err().to_string().contains("completed"));
    let reopened = milepost.resume(id, Resume { reopen: true, ..Resume::latest() }).await.unwrap();
    reopened.session.release().await.unwrap();
    milepost.store().trash(id, &milepost.claim()).await.unwrap();
    assert!(milepost.resume(id, Resume::latest()).await.unwrap_err().to_string().contains("trash"));
}

#[tokio::test]
async fn a_diff_shows_messages_and_state_across_branches() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.append(user("shared")).await.unwrap();
    session.set(&[parse_set("memory.a=1").unwrap(), parse_set("memory.b=[1]").unwrap()]).await.unwrap();
    let fork = session.checkpoint_labelled("fork").await.unwrap();
    session.append(user("left")).await.unwrap();
    session.set(&[parse_set("memory.a=2").unwrap()]).await.unwrap();
    let left = session.checkpoint_labelled("left").await.unwrap();
    let branch = milepost.branch(session.id(), &Point::Checkpoint(fork), NewSession::titled("b")).await.unwrap();
    branch.append(user("right")).await.unwrap();
    branch.set(&[parse_set("memory.b=[1,2]").unwrap(), parse_set("memory.c=true").unwrap()]).await.unwrap();
    let right = branch.checkpoint_labelled("right").await.unwrap();
    let diff = milepost.diff(left, right).await.unwrap();
    let texts = |messages: &[milepost::StoredMessage]| -> Vec<String> {
        messages.iter().map(|stored| stored.message.text().into_owned()).collect()
    };
    assert_eq!((texts(&diff.only_a), texts(&diff.only_b)), (vec!["left".to_owned()], vec!["right".to_owned()]));
    let paths: Vec<&str> = diff.state.iter().map(|path| path.path.as_str()).collect();
    assert_eq!(paths, ["/memory/a", "/memory/b", "/memory/c"]);
    assert_eq!(diff.sessions(), (session.id(), branch.id()));
    let same = milepost.diff(fork, left).await.unwrap();
    assert_eq!((texts(&same.only_a), texts(&same.only_b)), (vec![], vec!["left".to_owned()]));
}

/// Begins something, and says whether it has to wait.
async fn is_pending(mut future: Pin<&mut impl Future>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// What is decided while someone else holds the session is of a session that is no more once it is free.
#[tokio::test]
async fn a_resume_that_waited_keeps_what_was_written_meanwhile() {
    let milepost = Milepost::open_with("memory:", Scratch::new().options).await.unwrap();
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    let how = Resume { set: vec![parse_set("memory.mine=1").unwrap()], wait_ms: 60_000, ..Resume::latest() };
    let mut resume = std::pin::pin!(milepost.resume(id, how.clone()));
    assert!(is_pending(resume.as_mut()).await, "someone holds it");
    session.set(&[parse_set("memory.theirs=2").unwrap()]).await.unwrap();
    session.release().await.unwrap();
    let resumed = resume.await.unwrap();
    assert_eq!(resumed.state.pointer("/memory"), Some(&serde_json::json!({"mine": 1, "theirs": 2})));
    // Nor does it go on with what was completed meanwhile.
    let mut second = std::pin::pin!(milepost.resume(id, how));
    assert!(is_pending(second.as_mut()).await);
    resumed.session.complete().await.unwrap();
    resumed.session.release().await.unwrap();
    let refused = second.await.err().unwrap();
    assert!(refused.to_string().contains("it is completed"), "{refused}");
    assert_eq!(milepost.store().session(id).await.unwrap().status, Status::Completed);
    assert!(milepost.store().lease(id).await.unwrap().unwrap().owner.is_none(), "it is free");
}

#[tokio::test]
async fn what_a_session_begins_with_is_in_its_first_checkpoint() {
    let milepost = Milepost::open_with("memory:", Scratch::new().options).await.unwrap();
    let new = NewSession::default().with(&[parse_set("memory.a=1").unwrap()]).unwrap();
    let session = milepost.create(new).await.unwrap();
    let first = milepost.mark(session.id(), &Point::Latest).await.unwrap();
    let state = milepost.store().state_at(first.at).await.unwrap();
    assert_eq!(state.pointer("/memory/a"), Some(&1.into()));
}
