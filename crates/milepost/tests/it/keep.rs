//! Retention, archives, deletion, what tools left, what a directory tells.

use milepost::project::{NewArtifact, Owner, Projects};
use milepost::store::{DeleteMode, Options, Store};
use milepost::tools::{calls_since, hydrated};
use milepost::{MarkQuery, MessageQuery, NewMark, NewSession, Notice, SessionPatch, Trigger, parse_set};
use serde_json::json;

use crate::support::{Scratch, user};

#[tokio::test]
async fn old_checkpoints_go_into_the_trash_by_themselves_and_it_is_told() {
    let mut scratch = Scratch::new();
    scratch.options.policy.retention.max_checkpoints = 5;
    let milepost = scratch.open().await;
    let mut notices = milepost.notices();
    let session = milepost.create(NewSession::default()).await.unwrap();
    let labelled = session.checkpoint_labelled("kept").await.unwrap();
    for _ in 0..28 {
        session.checkpoint(NewMark::new(Trigger::Step)).await.unwrap();
    }
    let marks = milepost.store().marks(session.id(), &MarkQuery::default()).await.unwrap();
    assert!(marks.len() < 20, "{} are left", marks.len());
    assert!(marks.iter().any(|mark| mark.checkpoint.id == labelled), "a labelled one is left alone");
    let mut told = 0;
    while let Ok(notice) = notices.try_recv() {
        if let Notice::CheckpointsPruned { checkpoints, error: None, .. } = notice {
            told += checkpoints.len();
        }
    }
    let trash = MarkQuery { trashed: true, ..MarkQuery::default() };
    let trashed = milepost.store().marks(session.id(), &trash).await.unwrap();
    assert_eq!((told, trashed.len() + marks.len()), (trashed.len(), 30), "nothing goes in silence");
}

#[tokio::test]
async fn an_archived_session_comes_back_as_it_was() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::titled("Old")).await.unwrap();
    let id = session.id();
    session.append(user("hello")).await.unwrap();
    let mark = session.checkpoint_labelled("here").await.unwrap();
    session.release().await.unwrap();
    let before = milepost.store().session(id).await.unwrap();
    let url = format!("sqlite:{}/archive.db", scratch.dir.path().display());
    let archive = Store::open(&url, Options::default()).await.unwrap();
    let refused = milepost.archive(id, &archive, "postgres://me:secret@host/db").await.unwrap_err().to_string();
    assert!(refused.contains("password"), "{refused}");
    milepost.archive(id, &archive, &url).await.unwrap();
    assert!(milepost.store().session(id).await.is_err());
    let archived = milepost.archived().await.unwrap();
    assert_eq!((archived.len(), archived[0].title.as_deref(), archived[0].message_count), (1, Some("Old"), 1));
    milepost.unarchive(&archived[0], &archive).await.unwrap();
    let after = milepost.store().session(id).await.unwrap();
    assert_eq!((after.id, after.created, after.checkpoint), (before.id, before.created, Some(mark)));
    assert_eq!(milepost.store().messages(id, &MessageQuery::default()).await.unwrap().len(), 1);
    assert!(milepost.archived().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_session_that_others_branched_from_is_not_archived() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.release().await.unwrap();
    milepost.branch(id, &milepost::Point::Latest, NewSession::default()).await.unwrap();
    let archive = Store::open("memory:", Options::default()).await.unwrap();
    let refused = milepost.archive(id, &archive, "memory:").await.unwrap_err().to_string();
    assert!(refused.contains("branched"), "{refused}");
    assert!(milepost.store().session(id).await.is_ok());
}

#[tokio::test]
async fn deleting_a_session_deletes_its_artifacts() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.release().await.unwrap();
    let projects = Projects::open(milepost.store()).await.unwrap();
    let owner = Owner::Session(id);
    projects.put_artifact(&owner, "foundation.md", b"# Foundation", NewArtifact::default()).await.unwrap();
    milepost.delete(id, DeleteMode::Refuse, true).await.unwrap();
    assert_eq!(projects.artifacts(&owner).await.unwrap().len(), 1, "a dry run deletes nothing");
    milepost.delete(id, DeleteMode::Refuse, false).await.unwrap();
    assert!(projects.artifacts(&owner).await.unwrap().is_empty());
}

#[tokio::test]
async fn expired_documents_are_not_served_and_calls_are_counted() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.hydrate("brief.md", "the brief", 60_000).await.unwrap();
    session.note_call("search").await.unwrap();
    scratch.clock.advance_ms(59_999);
    session.note_call("search").await.unwrap();
    session.note_call("fetch").await.unwrap();
    let state = session.state().await.unwrap();
    let now = milepost.source().now();
    assert_eq!(hydrated(&state, "brief.md", now), Some(&json!("the brief")));
    assert_eq!(hydrated(&state, "brief.md", now.plus_ms(1)), None, "it is as old as it may be");
    assert_eq!(hydrated(&state, "other.md", now), None);
    assert_eq!((calls_since(&state, "search", now.plus_ms(-60_000)), calls_since(&state, "search", now)), (2, 1));
}

#[tokio::test]
async fn the_context_of_a_directory_is_collected_again_only_when_it_changed() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("CLAUDE.md"), "Use tabs.").unwrap();
    let patch = SessionPatch::new().agent("dev").task("T-1");
    let session = milepost.create(NewSession { patch, ..NewSession::default() }).await.unwrap();
    assert!(session.collect_context(dir.path()).await.unwrap());
    assert!(!session.collect_context(dir.path()).await.unwrap(), "nothing changed");
    let state = session.state().await.unwrap();
    assert_eq!(state.pointer("/context/project/claudeMd"), Some(&json!("Use tabs.")));
    std::fs::write(dir.path().join("CLAUDE.md"), "Use spaces, please.").unwrap();
    assert!(session.collect_context(dir.path()).await.unwrap());
    let state = session.state().await.unwrap();
    assert_eq!(state.pointer("/context/project/claudeMd"), Some(&json!("Use spaces, please.")));
}

/// What the directory does not tell stays as somebody set it, and a directory that was moved is found where it is.
#[tokio::test]
async fn the_context_of_a_directory_leaves_alone_what_it_does_not_know() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let place = tempfile::tempdir().unwrap();
    let (old, new) = (place.path().join("old"), place.path().join("new"));
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("CLAUDE.md"), "Use tabs.").unwrap();
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.set(&[parse_set("context.featureId=F9").unwrap()]).await.unwrap();
    assert!(session.collect_context(&old).await.unwrap());
    let state = session.state().await.unwrap();
    assert_eq!(state.pointer("/context/featureId"), Some(&json!("F9")));
    std::fs::rename(&old, &new).unwrap();
    session.collect_context(&new).await.unwrap();
    let state = session.state().await.unwrap();
    assert_eq!(state.pointer("/context/workingDirectory"), Some(&json!(new.display().to_string())));
}

#[test]
fn what_begins_like_json_and_is_none_is_no_value() {
    for text in ["memory={\"a\":", "memory=[1,", "memory=\"unclosed", "memory= {a: 1}"] {
        let refused = parse_set(text).unwrap_err().to_string();
        assert!(refused.contains("begins like JSON") && refused.contains("double quotes"), "{refused}");
    }
    for (text, value) in [("a=b c", json!("b c")), ("a=\"{\"", json!("{")), ("a=", json!("")), ("a={}", json!({}))] {
        assert_eq!(parse_set(text).unwrap().1, value, "{text}");
    }
}

#[tokio::test]
async fn the_sessions_of_a_task_are_found_by_its_state() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    for stage in ["planning", "in_dev", "in_dev"] {
        let patch = SessionPatch::new().task("T-1").stage(stage);
        milepost.create(NewSession { patch, ..NewSession::default() }).await.unwrap();
    }
    let stages = milepost.task_sessions("T-1").await.unwrap();
    let counts: Vec<(&str, usize)> = stages.iter().map(|(stage, ids)| (stage.as_str(), ids.len())).collect();
    assert_eq!(counts, [("in_dev", 2), ("planning", 1)]);
}
