//! Sessions of which nothing can be gone on from: a new one takes over what is whole, and says so.

use milepost::{Error, Milepost, NewSession, Notice, Resume, SessionId, SessionKey, SessionPatch, parse_set};

use crate::support::{Scratch, user};

/// A session of a task with three messages, of which every checkpoint and the state are damaged; maybe a message too.
async fn damaged(scratch: &Scratch, with_message: bool) -> SessionId {
    let milepost = scratch.open().await;
    let patch = SessionPatch::new().title("Precious").task("t-1").tags(["one"]);
    let session = milepost.create(NewSession { patch, ..NewSession::default() }).await.unwrap();
    let id = session.id();
    for text in ["one", "two", "three"] {
        session.append(user(text)).await.unwrap();
    }
    session.set(&[parse_set("memory.found=1").unwrap()]).await.unwrap();
    session.checkpoint_labelled("here").await.unwrap();
    session.release().await.unwrap();
    milepost.close().await.unwrap();
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    let kinds = if with_message { "kind IN (2, 3) OR (kind = 1 AND id % 2 = 0)" } else { "kind IN (2, 3)" };
    let changed = database.execute(&format!("UPDATE entries SET body = zeroblob(length(body)) WHERE {kinds}"), []);
    assert!(changed.unwrap() >= 3);
    id
}

async fn texts(milepost: &Milepost, id: SessionId) -> Vec<String> {
    let messages = milepost.store().messages(id, &Default::default()).await.unwrap();
    messages.iter().map(|stored| stored.message.text().into_owned()).collect()
}

fn anew() -> Resume {
    Resume { begin_anew: true, ..Resume::latest() }
}

#[tokio::test]
async fn a_session_of_which_nothing_is_whole_goes_on_as_a_new_one_where_that_is_allowed() {
    let scratch = Scratch::new();
    let id = damaged(&scratch, false).await;
    let milepost = scratch.open().await;
    let refused = milepost.resume(id, Resume::latest()).await.unwrap_err();
    assert!(matches!(&refused, Error::NothingWhole { session, .. } if *session == id), "{refused}");
    let seen = milepost.resume_preview(id, &anew()).await.unwrap().anew.unwrap();
    assert_eq!((seen.taken_over, seen.lost), (Some(3), 0));

    let mut notices = milepost.notices();
    let before = milepost.store().session(id).await.unwrap();
    let how = Resume { set: vec![parse_set("memory.mine=2").unwrap()], ..anew() };
    let resumed = milepost.resume(id, how).await.unwrap();
    let new = resumed.session.id();
    let told = resumed.anew.unwrap();
    assert_eq!((told.instead_of, told.taken_over, told.lost), (id, Some(3), 0));
    assert!(told.why.starts_with("every checkpoint of session") && !told.why.contains("run verify"), "{}", told.why);
    assert_eq!(resumed.state.pointer("/memory"), Some(&serde_json::json!({ "mine": 2 })));
    assert_eq!((resumed.status, resumed.last_active), (before.status, before.active));
    assert_eq!(texts(&milepost, new).await, ["one", "two", "three"]);
    let about = milepost.store().session(new).await.unwrap();
    assert_eq!(
        (about.title.as_deref(), about.task.as_deref(), about.tags),
        (Some("Precious"), Some("t-1"), before.tags.clone())
    );
    assert_eq!(about.extra["begun_anew_from"], id.to_string());
    assert_eq!(milepost.store().session(id).await.unwrap(), before, "the damaged one was touched");
    let told = std::iter::from_fn(|| notices.try_recv().ok()).find(|notice| matches!(notice, Notice::BegunAnew { .. }));
    let Some(Notice::BegunAnew { session_id, instead_of, messages: 3, messages_lost: 0, .. }) = told else {
        panic!("{told:?}")
    };
    assert_eq!((session_id, instead_of), (new, id));

    // Whoever asks for it again gets the same one, with what was added since.
    resumed.session.append(user("four")).await.unwrap();
    resumed.session.release().await.unwrap();
    let seen = milepost.resume_preview(id, &anew()).await.unwrap().anew.unwrap();
    assert_eq!(seen.taken_over, None);
    let again = milepost.resume(id, anew()).await.unwrap();
    assert_eq!((again.session.id(), again.anew.unwrap().taken_over), (new, None));
    assert_eq!(texts(&milepost, new).await, ["one", "two", "three", "four"]);
    again.session.release().await.unwrap();
    // Unless it was thrown away.
    milepost.store().trash(new, &milepost.claim()).await.unwrap();
    assert_ne!(milepost.resume(id, anew()).await.unwrap().session.id(), new);
}

#[tokio::test]
async fn what_cannot_be_read_is_counted_and_named() {
    let scratch = Scratch::new();
    let id = damaged(&scratch, true).await;
    let milepost = scratch.open().await;
    let resumed = milepost.resume(id, anew()).await.unwrap();
    let told = resumed.anew.unwrap();
    let left = texts(&milepost, resumed.session.id()).await.len() as u64;
    assert!(told.lost > 0 && told.taken_over == Some(left) && told.lost + left == 3, "{told:?}");
    assert!(!resumed.damaged.is_empty());
}

#[tokio::test]
async fn whoever_asks_for_a_tasks_session_gets_the_one_that_was_begun_anew() {
    let scratch = Scratch::new();
    let id = damaged(&scratch, false).await;
    let milepost = scratch.open().await;
    let key = SessionKey { task: Some("t-1".into()), ..SessionKey::default() };
    let session = milepost.get_or_create(&key).await.unwrap();
    let new = session.id();
    assert_ne!(new, id);
    assert_eq!(texts(&milepost, new).await, ["one", "two", "three"]);
    session.release().await.unwrap();
    let again = milepost.get_or_create(&key).await.unwrap();
    assert_eq!(again.id(), new);
    again.release().await.unwrap();
    assert_eq!(milepost.get_or_resume(Some(id), NewSession::default()).await.unwrap().id(), new);
}

#[tokio::test]
async fn nobody_begins_anew_what_someone_works_on() {
    let scratch = Scratch::new();
    let id = damaged(&scratch, false).await;
    let milepost = scratch.open().await;
    // Whoever held it before it was damaged.
    let held = milepost.store().write(id, &milepost.claim()).await.unwrap();
    let refused = milepost.resume(id, anew()).await.unwrap_err();
    assert!(matches!(refused, Error::Store(milepost::store::Error::Held { .. })), "{refused}");
    assert!(milepost.resume(id, Resume { take_over: true, ..anew() }).await.is_ok());
    drop(held);
}

/// A process that ends in the middle leaves a session with a part of the messages: nobody takes it for the whole.
#[tokio::test]
async fn what_was_begun_anew_by_half_is_gone_on_with_by_nobody() {
    let scratch = Scratch::new();
    let id = damaged(&scratch, false).await;
    let milepost = scratch.open().await;
    let resumed = milepost.resume(id, anew()).await.unwrap();
    let half = resumed.session.id();
    let back = SessionPatch::new().with("begins_anew_from", id.to_string().into());
    resumed.session.patch(back).await.unwrap();
    resumed.session.release().await.unwrap();
    let refused = milepost.resume(half, Resume::latest()).await.unwrap_err();
    assert!(refused.to_string().contains(&format!("resume {id}, which finishes it")), "{refused}");
    let finished = milepost.resume(id, anew()).await.unwrap();
    assert_ne!(finished.session.id(), half);
    assert_eq!(texts(&milepost, finished.session.id()).await, ["one", "two", "three"]);
    assert!(milepost.store().session(half).await.unwrap().trashed.is_some());
}
