//! What must hold when something goes wrong: damaged entries, failing checkpoints, many at once, secrets in odd places.

use milepost::model::Resumable;
use milepost::store::{Options, Redactor, Store};
use milepost::{
    Error, MarkQuery, MessageQuery, Milepost, NewMark, NewSession, Notice, Point, PolicyPatch, Resume, SearchQuery,
    SessionId, SessionKey, SessionPatch, Trigger, parse_set,
};
use serde_json::json;

use crate::support::{Scratch, user};

/// Damages the newest entry of a kind (1 message, 2 state) that is there.
fn damage_newest(scratch: &Scratch, kind: u8) {
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    let sql =
        "UPDATE entries SET body = zeroblob(length(body) + 1) WHERE id = (SELECT max(id) FROM entries WHERE kind = ?1)";
    assert_eq!(database.execute(sql, [kind]).unwrap(), 1);
}

async fn texts(milepost: &Milepost, id: SessionId) -> Vec<String> {
    let messages = milepost.store().messages(id, &MessageQuery::default()).await.unwrap();
    messages.into_iter().map(|stored| stored.message.text().into_owned()).collect()
}

async fn is_stored(milepost: &Milepost, secret: &str) -> bool {
    let redactor = Redactor::literal(secret, "gone").unwrap();
    let found = milepost.store().redact(&redactor, "a test", &milepost.claim(), true).await.unwrap();
    found.entries > 0 || found.records > 0 || found.checkpoints > 0 || !found.sessions.is_empty()
}

#[tokio::test]
async fn a_failed_checkpoint_never_stops_the_agent() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.set(&[parse_set("memory.step=1").unwrap()]).await.unwrap();
    session.release().await.unwrap();
    milepost.close().await.unwrap();
    // Without its state no checkpoint of the session can be taken.
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    let newest = "(SELECT max(id) FROM entries WHERE kind = 2)";
    let body: Vec<u8> =
        database.query_row(&format!("SELECT body FROM entries WHERE id = {newest}"), [], |row| row.get(0)).unwrap();
    damage_newest(&scratch, 2);
    database.execute("DELETE FROM keyframes", []).unwrap();
    let milepost = scratch.open().await;
    let mut notices = milepost.notices();
    let session = milepost.hold(id).await.unwrap();
    for number in 0..12 {
        session.append(user(&number.to_string())).await.unwrap();
    }
    assert_eq!(milepost.store().session(id).await.unwrap().messages(), 12, "every message is stored");
    let failed = std::iter::from_fn(|| notices.try_recv().ok());
    let failed = failed.filter(|notice| matches!(notice, Notice::CheckpointFailed { .. })).count();
    assert!(failed > 0 && milepost.counts().failed() == failed as u64, "it is told and counted: {failed}");
    // It is tried again with every append, until it succeeds.
    database.execute(&format!("UPDATE entries SET body = ?1 WHERE id = {newest}"), [body]).unwrap();
    assert!(session.append(user("mended")).await.unwrap().checkpoint.is_some(), "it is owed");
    assert!(session.append(user("and on")).await.unwrap().checkpoint.is_none(), "once");
}

#[tokio::test]
async fn checkpoints_that_came_at_once_are_there_after_the_barrier() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    for number in 0..4 {
        session.checkpoint_if(NewMark::new(Trigger::Step).description(number.to_string())).await;
    }
    session.barrier().await;
    let query = MarkQuery { triggers: vec![Trigger::Step], oldest_first: true, ..MarkQuery::default() };
    let marks = milepost.store().marks(session.id(), &query).await.unwrap();
    let taken: Vec<String> = marks.iter().filter_map(|mark| mark.checkpoint.description.clone()).collect();
    assert_eq!(taken, ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn checkpoints_on_the_side_are_all_taken_each_in_its_place() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    for number in 0..8 {
        session.append(user(&number.to_string())).await.unwrap();
        let mark = NewMark::new(Trigger::Step).description(number.to_string());
        assert!(session.checkpoint_if(mark).await.is_none());
    }
    session.barrier().await;
    let query = MarkQuery { triggers: vec![Trigger::Step], oldest_first: true, ..MarkQuery::default() };
    let marks = milepost.store().marks(session.id(), &query).await.unwrap();
    let taken: Vec<String> = marks.iter().filter_map(|mark| mark.checkpoint.description.clone()).collect();
    assert_eq!(taken, (0..8).map(|number| number.to_string()).collect::<Vec<_>>(), "none is lost");
    let first = &marks[0].checkpoint;
    assert_eq!(first.messages(), 1, "what was appended afterwards is not in it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_who_ask_for_the_same_session_get_one() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let key = SessionKey { project: Some("shop".into()), task: Some("T-1".into()), ..SessionKey::default() };
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let (milepost, key) = (milepost.clone(), key.clone());
            tokio::spawn(async move { milepost.get_or_create(&key).await })
        })
        .collect();
    let mut held = Vec::new();
    for asked in asking {
        match asked.await.unwrap() {
            Ok(session) => held.push(session),
            Err(Error::Store(milepost::store::Error::Held { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(held.len(), 1, "one holds it, the others are told so");
    let all = milepost.every_session(&milepost::SessionQuery::default()).await.unwrap();
    assert_eq!(all.len(), 1);
    let wider = SessionKey { project: Some("shop".into()), ..SessionKey::default() };
    let other = milepost.get_or_create(&wider).await.unwrap();
    assert_ne!(other.id(), held[0].id(), "a session of a task is not the project's own");
    assert!(milepost.get_or_create(&SessionKey::default()).await.is_err());
}

#[tokio::test]
async fn a_resume_that_cannot_set_a_value_changes_nothing() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.set(&[parse_set("memory.x=text").unwrap()]).await.unwrap();
    session.checkpoint_labelled("first").await.unwrap();
    session.append(user("later")).await.unwrap();
    session.pause(None).await.unwrap();
    session.release().await.unwrap();
    let before = milepost.store().session(id).await.unwrap();
    let how = Resume { set: vec![parse_set("memory.x.y=1").unwrap()], ..Resume::from("first".parse().unwrap()) };
    assert!(milepost.resume(id, how).await.is_err());
    assert_eq!(milepost.store().session(id).await.unwrap(), before);
    milepost.hold(id).await.expect("nobody holds it");
}

#[tokio::test]
async fn a_damaged_end_is_left_behind_and_named() {
    for point in [Point::Latest, Point::Named("good".into())] {
        let scratch = Scratch::new();
        let milepost = scratch.open().await;
        let session = milepost.create(NewSession::default()).await.unwrap();
        let id = session.id();
        session.append(user("one")).await.unwrap();
        let good = session.checkpoint_labelled("good").await.unwrap();
        session.append(user("two")).await.unwrap();
        session.release().await.unwrap();
        milepost.close().await.unwrap();
        damage_newest(&scratch, 1);
        let milepost = scratch.open().await;
        let resumed = milepost.resume(id, Resume::from(point.clone())).await.unwrap();
        assert_eq!((resumed.from.unwrap().checkpoint.id, resumed.moved), (good, true), "{point:?}");
        assert!(resumed.damaged[0].contains("damaged"), "{:?}", resumed.damaged);
        resumed.session.append(user("and on")).await.unwrap();
        assert_eq!(texts(&milepost, id).await, ["one", "and on"], "{point:?}");
    }
}

#[tokio::test]
async fn the_doctor_names_everything_that_is_damaged() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    for text in ["one", "two", "three"] {
        session.append(user(text)).await.unwrap();
    }
    session.release().await.unwrap();
    milepost.close().await.unwrap();
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    assert_eq!(database.execute("UPDATE entries SET body = zeroblob(length(body)) WHERE kind = 1", []).unwrap(), 3);
    let milepost = scratch.open().await;
    let found = milepost.doctor(id, milepost::context::history::Dialect::Anthropic).await.unwrap();
    let damaged = found.problems.iter().filter(|problem| problem.contains("damaged")).count();
    assert!(!found.is_well() && damaged >= 3, "{:?}", found.problems);
}

#[tokio::test]
async fn a_damaged_message_does_not_hide_others_from_a_search() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.append(user("an apple a day")).await.unwrap();
    session.append(user("a pear")).await.unwrap();
    milepost.search(&SearchQuery::new("apple")).await.unwrap();
    milepost.close().await.unwrap();
    damage_newest(&scratch, 1);
    let milepost = scratch.open().await;
    let found = milepost.search(&SearchQuery::new("apple")).await.unwrap();
    assert_eq!((found.hits.len(), found.hits[0].context.after.len()), (1, 0));
}

#[tokio::test]
async fn secrets_are_taken_out_of_every_way_in() {
    let mut scratch = Scratch::new();
    scratch.options.policy.retention.prune_every_nodes = 0;
    let milepost = scratch.open().await;
    let secret = ["ghp", "_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat();
    let session = milepost.create(NewSession::titled(format!("with {secret}"))).await.unwrap();
    let id = session.id();
    let mark = |trigger| {
        let mut mark = NewMark::new(trigger).label(format!("label {secret}")).description(format!("text {secret}"));
        mark.resumable = Resumable::No(format!("because of {secret}"));
        mark.extra.insert("note".into(), json!({ "deep": [secret] }));
        mark
    };
    session.checkpoint(mark(Trigger::Manual)).await.unwrap();
    // Two on the side: the second is owed and goes with the next append.
    session.checkpoint_if(mark(Trigger::Step)).await;
    session.checkpoint_if(mark(Trigger::Step)).await;
    session.append(user(&format!("said {secret}"))).await.unwrap();
    session.fail(&format!("error {secret}")).await.unwrap();
    session.patch(SessionPatch::new().tags([secret.clone()])).await.unwrap();
    session.release().await.unwrap();
    let set = vec![parse_set(&format!("memory.{secret}=1")).unwrap()];
    milepost.resume(id, Resume { set, ..Resume::latest() }).await.unwrap();
    assert!(!is_stored(&milepost, &secret).await);
    assert!(is_stored(&milepost, "because of").await, "the test looks where it should");
}

#[tokio::test]
async fn keys_that_a_session_or_a_run_names_are_left_out() {
    let mut scratch = Scratch::new();
    scratch.options.redaction = None;
    let milepost = scratch.open().await;
    let new = NewSession { policy: Some(json!({ "exclude_keys": ["pin"] })), ..NewSession::default() };
    let session = milepost.create(new).await.unwrap();
    let values = ["memory.pin=1234clear", "memory.api_key=5678clear", "memory.other=9012clear"];
    session.set(&values.map(|text| parse_set(text).unwrap())).await.unwrap();
    assert!(!is_stored(&milepost, "1234clear").await, "the session's own key");
    assert!(!is_stored(&milepost, "5678clear").await, "the policy's key, though patterns are off");
    assert!(is_stored(&milepost, "9012clear").await);
}

#[tokio::test]
async fn a_kind_of_agent_may_have_a_policy_of_its_own() {
    let mut scratch = Scratch::new();
    let patch: PolicyPatch = milepost::config::policy_patch(&json!({ "every_messages": 2 })).unwrap();
    scratch.options.agent_policies.insert("dev".into(), patch);
    let milepost = scratch.open().await;
    for (agent, every) in [("dev", 2), ("qa", 10)] {
        let patch = SessionPatch::new().agent(agent);
        let session = milepost.create(NewSession { patch, ..NewSession::default() }).await.unwrap();
        assert_eq!(session.policy().every_messages, every, "{agent}");
    }
}

#[tokio::test]
async fn retention_counts_over_processes_that_live_shortly() {
    let mut scratch = Scratch::new();
    scratch.options.policy.retention.max_checkpoints = 5;
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.release().await.unwrap();
    for _ in 0..24 {
        milepost.checkpoint(id, NewMark::new(Trigger::Step)).await.unwrap();
    }
    let marks = milepost.store().marks(id, &MarkQuery::default()).await.unwrap();
    assert!(marks.len() <= 15, "{} are left", marks.len());
}

#[tokio::test]
async fn a_session_is_not_archived_into_its_own_store() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.append(user("hello")).await.unwrap();
    session.release().await.unwrap();
    let same = Store::open(&scratch.url(), Options::default()).await.unwrap();
    let refused = milepost.archive(id, &same, &scratch.url()).await.unwrap_err().to_string();
    assert!(refused.contains("the store that it is in"), "{refused}");
    assert_eq!(texts(&milepost, id).await, ["hello"]);
    for url in ["postgres://host/db?password=x", "postgres://me:x@host/db"] {
        assert!(milepost.archive(id, &same, url).await.unwrap_err().to_string().contains("password"), "{url}");
    }
}
