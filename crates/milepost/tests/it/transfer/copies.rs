//! Pushing and pulling one session between stores.

use milepost::model::{Body, Entry, EntryKind, Event, Message, Role, SessionPatch};
use milepost::store::{Append, CopyEntry, MarkQuery, NewSession, Store};
use milepost::transfer::{Copied, Ids, copy_session};
use milepost::{Error, Result};

use crate::transfer::bundle::bundle;
use crate::transfer::scene::{Dice, START, Scene, any_session, claim, grow};

async fn copy(from: &Store, to: &Store, id: milepost::model::SessionId) -> Result<Copied> {
    copy_session(from, to, id, Ids::Preserve, &claim(), &mut |_| {}).await
}

#[tokio::test]
async fn a_copy_is_the_session_and_copying_again_brings_only_what_is_new() {
    for seed in 0..6 {
        let scene = Scene::new(seed);
        let dice = Dice::new(seed);
        let (from, to) = (scene.memory().await, scene.sqlite("to.db").await);
        let id = any_session(&scene, &from, &dice).await;
        let first = copy(&from, &to, id).await.unwrap();
        assert!(first.is_new && first.entries > 0);
        assert_eq!(copy(&from, &to, id).await.unwrap(), Copied { session: id, entries: 0, is_new: false });
        for _ in 0..3 {
            scene.clock.advance_ms(60_000);
            let writer = from.write(id, &claim()).await.unwrap();
            grow(&scene, &writer, &Dice::new(seed + 100), 5).await;
            writer.append(Append::new().message(Message::new(Role::User, "more"))).await.unwrap();
            writer.release().await.unwrap();
            // What was purged since is not what was copied: such a copy is made anew.
            match copy(&from, &to, id).await {
                Ok(more) => {
                    assert!(more.entries > 0 && !more.is_new);
                    assert_eq!(bundle(&to, id).await, bundle(&from, id).await);
                }
                Err(error) => assert!(error.to_string().contains("went its own way"), "{error}"),
            }
            assert!(to.verify().await.unwrap().is_whole());
        }
    }
}

#[tokio::test]
async fn a_copy_that_went_its_own_way_is_left_alone() {
    let scene = Scene::new(3);
    let (from, to) = (scene.memory().await, scene.memory().await);
    let id = any_session(&scene, &from, &Dice::new(3)).await;
    copy(&from, &to, id).await.unwrap();
    let say = |text: &'static str| Append::new().message(Message::new(Role::User, text));
    let there = to.write(id, &claim()).await.unwrap();
    there.append(say("there")).await.unwrap();
    there.release().await.unwrap();
    let error = copy(&from, &to, id).await.unwrap_err();
    assert!(error.to_string().contains("all of it is there, and more"), "{error}");
    // The other way it fits.
    assert_eq!(copy(&to, &from, id).await.unwrap().entries, 1);
    let here = from.write(id, &claim()).await.unwrap();
    here.append(say("here")).await.unwrap();
    let there = to.write(id, &claim()).await.unwrap();
    there.append(say("not here")).await.unwrap();
    there.release().await.unwrap();
    let before = bundle(&to, id).await;
    let error = copy(&from, &to, id).await.unwrap_err();
    assert!(
        matches!(error, Error::Apart { apart: milepost::Apart::Both, .. })
            && error.to_string().contains("(message) differs"),
        "{error}"
    );
    assert_eq!(bundle(&to, id).await, before);
}

#[tokio::test]
async fn a_branch_is_copied_with_what_it_shares_and_grows_by_copying_again() {
    let scene = Scene::new(4);
    let dice = Dice::new(4);
    let (from, to) = (scene.memory().await, scene.encrypted().await);
    let parent = any_session(&scene, &from, &dice).await;
    let writer = from.write(parent, &claim()).await.unwrap();
    grow(&scene, &writer, &dice, 15).await;
    let at = from.marks(parent, &MarkQuery::default()).await.unwrap()[0].at;
    let branch = from.branch(at, NewSession::default(), &claim()).await.unwrap();
    copy(&from, &to, branch.id()).await.unwrap();
    copy(&from, &to, parent).await.unwrap();
    branch.append(Append::new().message(Message::new(Role::User, "on the branch"))).await.unwrap();
    assert_eq!(copy(&from, &to, branch.id()).await.unwrap().entries, 1);
    assert_eq!(bundle(&to, branch.id()).await, bundle(&from, branch.id()).await);
    let other = copy_session(&from, &to, branch.id(), Ids::Remap, &claim(), &mut |_| {}).await.unwrap();
    assert!(other.is_new && other.session != branch.id());
    assert!(to.verify().await.unwrap().is_whole());
}

/// What is refused of a new change may be in a log that was written before it was.
#[tokio::test]
async fn a_log_with_fields_that_are_refused_today_is_copied() {
    let scene = Scene::new(5);
    let (from, to) = (scene.memory().await, scene.memory().await);
    let mut importer = from.import(from.source().id(), from.source().id(), &claim()).await.unwrap();
    for set in [serde_json::json!({ "title": 5, "tags": "work" }), serde_json::json!({ "agent": "dev", "task": ["x"] })]
    {
        let body = Body::Event(Event::new("session", serde_json::json!({ "set": set })));
        let entry = Entry { at: importer.next(), time: START, kind: EntryKind::Event, body: Some(body) };
        importer.add(CopyEntry { entry, refs: Vec::new(), whole: None }).await.unwrap();
    }
    let writer = importer.finish().await.unwrap();
    let id = writer.id();
    copy(&from, &to, id).await.unwrap();
    assert_eq!(bundle(&to, id).await, bundle(&from, id).await);
    let shown = to.session(id).await.unwrap();
    assert_eq!((shown.title, shown.agent.as_deref(), shown.tags.len()), (None, Some("dev"), 0));
    // Nobody writes such a thing today.
    for wrong in [SessionPatch::new().with("title", 5.into()), SessionPatch::new().with("tags", "work".into())] {
        writer.append(Append::new().patch(wrong)).await.unwrap_err();
    }
}
