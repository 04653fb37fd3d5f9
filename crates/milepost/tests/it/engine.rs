//! Creating, finding and ending sessions; what the policy takes; what never reaches the disk.

use milepost::model::Id;
use milepost::store::MasterKey;
use milepost::{
    Error, MarkQuery, Message, MessageQuery, Milepost, NewMark, NewSession, Notice, Point, Role, SessionId, SessionKey,
    SessionPatch, SessionQuery, Status, Trigger, parse_set,
};
use serde_json::json;

use crate::support::{Scratch, assistant, user};

async fn triggers(milepost: &Milepost, id: SessionId) -> Vec<String> {
    let query = MarkQuery { oldest_first: true, ..MarkQuery::default() };
    milepost
        .store()
        .marks(id, &query)
        .await
        .unwrap()
        .into_iter()
        .map(|mark| mark.checkpoint.trigger.to_string())
        .collect()
}

#[tokio::test]
async fn a_session_begins_with_a_checkpoint_and_ends_with_one() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::titled("Papers")).await.unwrap();
    session.append(user("hello")).await.unwrap();
    session.pause(Some("lunch")).await.unwrap();
    assert_eq!(session.info().await.status, Status::Paused);
    session.activate().await.unwrap();
    session.complete().await.unwrap();
    assert_eq!(triggers(&milepost, session.id()).await, ["initial", "pause", "final"]);
    let summary = milepost.summary(session.id()).await.unwrap();
    assert_eq!((summary.status, summary.message_count), (Status::Completed, 1));
    assert_eq!(summary.last_message.unwrap().text(), "hello");
}

#[tokio::test]
async fn a_checkpoint_is_taken_every_ten_messages_and_every_five_minutes() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    for number in 1..=20 {
        let appended = session.append(user(&number.to_string())).await.unwrap();
        assert_eq!(appended.checkpoint.is_some(), number % 10 == 0, "message {number}");
    }
    session.append(user("soon after")).await.unwrap();
    scratch.clock.advance_ms(299_000);
    assert!(session.append(user("not yet")).await.unwrap().checkpoint.is_none());
    scratch.clock.advance_ms(1_000);
    assert!(session.append(user("after five minutes")).await.unwrap().checkpoint.is_some());
    assert_eq!(triggers(&milepost, session.id()).await, ["initial", "messages", "messages", "interval"]);
}

#[tokio::test]
async fn the_count_of_messages_goes_on_after_the_session_is_opened_again() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    for number in 0..9 {
        session.append(user(&number.to_string())).await.unwrap();
    }
    let id = session.id();
    session.release().await.unwrap();
    let session = milepost.hold(id).await.unwrap();
    assert!(session.append(user("the tenth")).await.unwrap().checkpoint.is_some());
}

#[tokio::test]
async fn a_session_may_have_a_policy_of_its_own_and_a_run_another() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let new = NewSession { policy: Some(json!({ "every_messages": 3 })), ..NewSession::default() };
    let session = milepost.create(new).await.unwrap();
    assert_eq!(session.policy().every_messages, 3);
    let id = session.id();
    session.release().await.unwrap();
    let how = milepost::Resume { policy: Some(json!({ "every_messages": 2 })), ..Default::default() };
    let session = milepost.resume(id, how).await.unwrap().session;
    assert_eq!((session.policy().every_messages, session.policy().every_seconds), (2, 300));
    session.release().await.unwrap();
    assert_eq!(milepost.hold(id).await.unwrap().policy().every_messages, 3, "a run's policy ends with the run");
    let wrong = NewSession { policy: Some(json!({ "every_mesages": 3 })), ..NewSession::default() };
    let error = milepost.create(wrong).await.unwrap_err().to_string();
    assert!(error.contains("every_messages"), "{error}");
}

#[tokio::test]
async fn policy_checkpoints_are_left_out_when_they_are_off() {
    let mut scratch = Scratch::new();
    scratch.options.policy.enabled = false;
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    for number in 0..30 {
        session.append(user(&number.to_string())).await.unwrap();
    }
    assert!(session.checkpoint_if(NewMark::new(Trigger::Step)).await.is_none());
    session.barrier().await;
    assert!(triggers(&milepost, session.id()).await.is_empty());
    session.checkpoint_labelled("asked for").await.unwrap();
    assert_eq!(triggers(&milepost, session.id()).await, ["manual"]);
}

#[tokio::test]
async fn what_is_saved_on_the_side_is_there_after_the_barrier() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let mut notices = milepost.notices();
    let session = milepost.create(NewSession::default()).await.unwrap();
    for _ in 0..5 {
        assert!(session.checkpoint_if(NewMark::new(Trigger::Step)).await.is_none(), "it does not wait");
        session.barrier().await;
    }
    assert_eq!(triggers(&milepost, session.id()).await, ["initial", "step", "step", "step", "step", "step"]);
    let mut made = 0;
    while let Ok(notice) = notices.try_recv() {
        assert!(matches!(notice, Notice::CheckpointCreated { .. }), "{notice:?}");
        made += 1;
    }
    assert_eq!((made, milepost.counts().made()), (6, 6));
}

#[tokio::test]
async fn the_session_that_is_asked_for_is_resumed_or_a_new_one_begun() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let new = || NewSession { patch: SessionPatch::new().title("New").project("shop"), ..NewSession::default() };
    let begun = milepost.get_or_resume(None, new()).await.unwrap();
    let id = begun.id();
    assert_eq!(triggers(&milepost, id).await, ["initial"]);
    begun.append(user("hello")).await.unwrap();
    begun.pause(None).await.unwrap();
    begun.release().await.unwrap();
    let resumed = milepost.get_or_resume(Some(id), NewSession::titled("Another")).await.unwrap();
    assert_eq!((resumed.id(), resumed.info().await.status), (id, Status::Active));
    assert_eq!(resumed.info().await.title.as_deref(), Some("New"));
    let missing = milepost.get_or_resume(Some(milepost.source().id()), new()).await.unwrap_err();
    assert!(matches!(missing, Error::Store(milepost::store::Error::NotFound { .. })), "{missing}");
    // What can be resumed of a project: nothing that is completed, and nothing of others.
    let done = milepost.create(new()).await.unwrap();
    done.complete().await.unwrap();
    milepost.create(NewSession::titled("Elsewhere")).await.unwrap();
    let query = SessionQuery { project: Some("shop".into()), ..SessionQuery::default() };
    let listed = milepost.resumable(query).await.unwrap().sessions;
    assert_eq!(listed.iter().map(|session| session.id).collect::<Vec<_>>(), [id]);
}

#[tokio::test]
async fn the_same_key_gives_the_same_session_also_to_two_at_once() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let key = SessionKey {
        project: Some("shop".into()),
        task: Some("T-1".into()),
        stage: Some("in_dev".into()),
        ..SessionKey::default()
    };
    let first = milepost.get_or_create(&key).await.unwrap();
    let id = first.id();
    first.release().await.unwrap();
    let again = milepost.get_or_create(&key).await.unwrap();
    assert_eq!(again.id(), id);
    let held = milepost.get_or_create(&key).await.unwrap_err();
    assert!(held.to_string().contains("a test"), "the second is told who holds it: {held}");
    again.complete().await.unwrap();
    again.release().await.unwrap();
    let next = milepost.get_or_create(&key).await.unwrap();
    assert_ne!(next.id(), id, "a completed session is not gone on with");
    let other = milepost.get_or_create(&SessionKey { stage: Some("in_qa".into()), ..key.clone() }).await.unwrap();
    assert_ne!(other.id(), next.id());
    let listed =
        milepost.sessions(&SessionQuery { task: Some("T-1".into()), ..SessionQuery::default() }).await.unwrap();
    assert_eq!(listed.sessions.len(), 3, "a task has many sessions");
}

#[tokio::test]
async fn ids_may_be_shortened_while_they_are_unique() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let a = milepost.create(NewSession::default()).await.unwrap().id();
    let b = milepost.create(NewSession::default()).await.unwrap().id();
    let text = a.to_string();
    assert_eq!(milepost.find(&text).await.unwrap(), a);
    assert_eq!(milepost.find(&text[text.len() - 8..]).await.unwrap(), a);
    assert_eq!(milepost.find(&text[..text.len() - 1].to_uppercase()).await.unwrap(), a);
    let shared: String = text.chars().zip(b.to_string().chars()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    assert!(
        matches!(milepost.find(&shared).await.unwrap_err(), Error::Ambiguous { candidates, .. } if candidates.len() == 2)
    );
    let missing = SessionId::from_bits(1).to_string();
    assert!(milepost.find("zzzz").await.unwrap_err().to_string().contains("no session"));
    assert!(milepost.find("a").await.is_err());
    assert!(milepost.summary(milepost.find(&missing).await.unwrap()).await.is_err());
}

#[tokio::test]
async fn checkpoints_are_found_by_id_label_time_and_part() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    scratch.clock.advance_ms(60_000);
    let labelled = session.checkpoint_labelled("before the risky part").await.unwrap();
    scratch.clock.advance_ms(60_000);
    let last = session.checkpoint(NewMark::new(Trigger::Manual)).await.unwrap();
    let id = session.id();
    let find = async |text: &str| milepost.mark(id, &text.parse::<Point>().unwrap()).await.unwrap().checkpoint.id;
    assert_eq!(find("latest").await, last);
    assert_eq!(find("before the risky part").await, labelled);
    assert_eq!(find(&labelled.to_string()).await, labelled);
    let text = labelled.to_string();
    assert_eq!(find(&text[text.len() - 8..]).await, labelled);
    assert_eq!(find("2026-01-01T00:01:10Z").await, labelled);
    let other = milepost.create(NewSession::default()).await.unwrap();
    let error = milepost.mark(other.id(), &Point::Checkpoint(labelled)).await.unwrap_err().to_string();
    assert!(error.contains(&id.to_string()) && error.contains(&other.id().to_string()), "{error}");
}

#[tokio::test]
async fn secrets_never_reach_the_disk() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let secret = ["ghp", "_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat();
    let session = milepost.create(NewSession::titled(format!("with {secret}"))).await.unwrap();
    session.append(user(&format!("my token is {secret}"))).await.unwrap();
    session.set(&[parse_set("memory.api_key=hunter2hunter2").unwrap()]).await.unwrap();
    session.set(&[parse_set(&format!("memory.note=use {secret}")).unwrap()]).await.unwrap();
    session.pause(Some(&format!("because of {secret}"))).await.unwrap();
    session.event(milepost::Event::new("noted", json!({ "what": secret }))).await.unwrap();
    session.fail(&format!("refused {secret}")).await.unwrap();
    session.patch(SessionPatch::new().title(format!("again {secret}"))).await.unwrap();
    let stored = milepost.store().messages(session.id(), &MessageQuery::default()).await.unwrap();
    assert_eq!(stored[0].message.text(), "my token is [redacted:github-token]");
    milepost.close().await.unwrap();
    for entry in std::fs::read_dir(scratch.dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for hidden in [secret.as_bytes(), b"hunter2hunter2"] {
            assert!(!bytes.windows(hidden.len()).any(|window| window == hidden));
        }
    }
}

#[tokio::test]
async fn an_encrypted_vault_gives_secrets_back_to_whoever_may_have_them() {
    let mut scratch = Scratch::new();
    scratch.options.vault = true;
    let refused = Milepost::open_with("memory:", scratch.options.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("not encrypted"), "{refused}");
    scratch.options.store.keys.master = Some(MasterKey::from_bytes([7; 32]));
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.set(&[parse_set("environment.api_key=\"hunter2hunter2\"").unwrap()]).await.unwrap();
    let state = session.state().await.unwrap();
    let token = state.pointer("/environment/api_key").unwrap().as_str().unwrap();
    assert!(token.starts_with("[redacted:key:"), "{token}");
    let revealed = milepost.reveal(state.into_value()).await.unwrap();
    assert_eq!(revealed.pointer("/environment/api_key"), Some(&json!("hunter2hunter2")));
}

#[tokio::test]
async fn figures_are_counted_per_session_and_over_many() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    for _ in 0..2 {
        let session = milepost.create(NewSession::default()).await.unwrap();
        session.append(user("12345")).await.unwrap();
        scratch.clock.advance_ms(1500);
        let mut answer = assistant("1234567");
        answer.extra.insert("usage".into(), json!({ "input_tokens": 10, "output_tokens": 5, "costUsd": 0.25 }));
        session.append(answer).await.unwrap();
        let call = milepost::Block::tool_call("c1", "read_file", json!({}));
        session.append(Message::blocks(Role::Assistant, vec![call])).await.unwrap();
        session.set(&[parse_set("memory.currentArtifacts=[\"a.md\"]").unwrap()]).await.unwrap();
        let figures = milepost.analytics(session.id()).await.unwrap();
        assert_eq!((figures.total_messages, figures.user_messages, figures.assistant_messages), (3, 1, 2));
        assert_eq!((figures.tool_calls_count, figures.by_tool["read_file"]), (1, 1));
        assert_eq!((figures.duration, figures.artifacts_generated), (1500, 1));
        assert_eq!((figures.usage.tokens(), figures.usage.cost_usd), (15, 0.25));
    }
    let overview = milepost.overview(&SessionQuery::default(), |_| ()).await.unwrap();
    assert_eq!((overview.sessions, overview.total.total_messages, overview.days.len()), (2, 6, 1));
    assert_eq!((overview.days[0].usage.tokens(), overview.days[0].checkpoints), (30, 2));
}

#[tokio::test]
async fn a_follower_sees_a_session_move() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let mark = session.checkpoint_labelled("here").await.unwrap();
    let mut following = milepost.follow(session.id(), None).await.unwrap();
    session.append(user("hello")).await.unwrap();
    let happened = following.next().await.unwrap().unwrap();
    assert!(matches!(&happened, milepost::Happened::Entries(entries) if entries.len() == 1), "{happened:?}");
    session.restore(&Point::Checkpoint(mark)).await.unwrap();
    let happened = following.next().await.unwrap().unwrap();
    assert!(matches!(happened, milepost::Happened::Restored { .. }), "{happened:?}");
    session.append(user("again")).await.unwrap();
    let mut texts = Vec::new();
    while texts.is_empty() {
        if let milepost::Happened::Entries(entries) = following.next().await.unwrap().unwrap() {
            texts.extend(entries.into_iter().filter_map(|entry| match entry.body {
                Some(milepost::model::Body::Message(message)) => Some(message.text().into_owned()),
                _ => None,
            }));
        }
    }
    assert_eq!(texts, ["again"]);
}

#[tokio::test]
async fn a_session_with_a_policy_that_cannot_be_used_is_not_begun() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let wrong = NewSession { policy: Some(json!({ "every_mesages": 5 })), ..NewSession::default() };
    assert!(milepost.create(wrong.clone()).await.is_err());
    let session = milepost.create(NewSession::default()).await.unwrap();
    assert!(milepost.branch(session.id(), &Point::Latest, wrong).await.is_err());
    assert_eq!(milepost.sessions(&SessionQuery::default()).await.unwrap().sessions.len(), 1);
}
