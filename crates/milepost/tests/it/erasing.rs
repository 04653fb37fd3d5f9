//! Late redaction of what lies beside sessions: artifacts, what crashes left of them, and what is damaged.

use milepost::project::{NewArtifact, Owner, Projects};
use milepost::store::{Redactor, StoredRecord};
use milepost::{Erased, Message, Milepost, NewSession, Role, SessionId};
use serde_json::{Value, json};

use crate::support::{Scratch, no_adapters};

const SECRET: &str = "wombat-77";
/// Contents are kept in parts of this size.
const PART: usize = 256 << 10;

async fn erase(milepost: &Milepost, secret: &str, dry_run: bool) -> Erased {
    let redactor = Redactor::literal(secret, "[gone]").unwrap();
    let nowhere = async |_: &str| Err("not reached".to_owned());
    milepost.redact(&redactor, "it leaked", dry_run, nowhere, no_adapters).await.unwrap()
}

async fn session(milepost: &Milepost) -> SessionId {
    let session = milepost.create(NewSession::titled("S")).await.unwrap();
    let id = session.id();
    session.release().await.unwrap();
    id
}

async fn put(projects: &Projects, owner: &Owner, name: &str, content: &str) {
    projects.put_artifact(owner, name, content.as_bytes(), NewArtifact::default()).await.unwrap();
}

async fn shown(projects: &Projects, owner: &Owner, name: &str) -> String {
    String::from_utf8(projects.artifact(owner, name, None).await.unwrap().1).unwrap()
}

async fn names(projects: &Projects, owner: &Owner) -> Vec<String> {
    projects.artifacts(owner).await.unwrap().into_iter().map(|artifact| artifact.name).collect()
}

async fn records(milepost: &Milepost, kind: &str) -> Vec<StoredRecord> {
    milepost.store().records(kind, None, 100).await.unwrap()
}

async fn remove(milepost: &Milepost, kind: &str, record: &StoredRecord) {
    milepost.store().delete_record(kind, &record.key, record.version).await.unwrap();
}

/// As a kill leaves them between the parts of an artifact and what names them. The secret lies across two of them.
#[tokio::test]
async fn parts_that_no_artifact_names_are_erased_when_nobody_can_be_about_to_name_them() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let (projects, owner) = (milepost.projects().await.unwrap(), Owner::Session(session(&milepost).await));
    put(&projects, &owner, "lost.md", &format!("{}{SECRET} and on", "x".repeat(PART - 4))).await;
    let head = records(&milepost, "artifact").await.pop().unwrap();
    remove(&milepost, "artifact", &head).await;
    put(&projects, &owner, "kept.md", "kept").await;
    for dry_run in [true, false] {
        let found = erase(&milepost, SECRET, dry_run).await;
        assert!(!found.is_nothing() && found.here.records == 0, "{found:?}");
        assert_eq!(found.here.records_left, 1, "somebody may be about to name them: {found:?}");
    }
    assert_eq!(records(&milepost, "artifact-part").await.len(), 3);
    scratch.clock.advance_ms(scratch.options.store.blob_grace_ms + 1);
    for dry_run in [true, false] {
        let found = erase(&milepost, SECRET, dry_run).await.here;
        assert_eq!((found.records, found.records_left), (1, 0), "{found:?}");
    }
    assert_eq!(records(&milepost, "artifact-part").await.len(), 1);
    assert!(erase(&milepost, SECRET, true).await.is_nothing());
    assert_eq!(shown(&projects, &owner, "kept.md").await, "kept");
}

#[tokio::test]
async fn parts_that_a_killed_erasure_left_go_with_the_next() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let (projects, owner) = (milepost.projects().await.unwrap(), Owner::Session(session(&milepost).await));
    put(&projects, &owner, "doc.md", &format!("the {SECRET}")).await;
    let left = records(&milepost, "artifact-part").await;
    assert_eq!(erase(&milepost, SECRET, false).await.here.records, 1);
    for part in &left {
        milepost.store().put_record("artifact-part", &part.key, None, None, &part.value).await.unwrap();
    }
    for dry_run in [true, false] {
        let found = erase(&milepost, SECRET, dry_run).await.here;
        assert_eq!((found.records, found.records_left), (1, 0), "at once, whatever their age: {found:?}");
    }
    assert!(erase(&milepost, SECRET, true).await.is_nothing());
    assert_eq!(records(&milepost, "artifact-part").await.len(), 1);
    assert_eq!(shown(&projects, &owner, "doc.md").await, "the [gone]");
}

/// As a kill leaves it between the new name of an artifact and the end of the old one: both have the same parts.
async fn half_renamed(milepost: &Milepost, owner: &Owner) -> Projects {
    let projects = milepost.projects().await.unwrap();
    put(&projects, owner, &format!("{SECRET}.md"), "the text").await;
    let old = records(milepost, "artifact").await.pop().unwrap();
    assert_eq!(erase(milepost, SECRET, false).await.here.records, 1);
    milepost.store().put_record("artifact", &old.key, None, None, &old.value).await.unwrap();
    assert_eq!(names(&projects, owner).await.len(), 2);
    projects
}

#[tokio::test]
async fn a_new_name_that_was_half_given_is_given_by_the_next_erasure() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let owner = Owner::Session(session(&milepost).await);
    let projects = half_renamed(&milepost, &owner).await;
    erase(&milepost, SECRET, false).await;
    assert_eq!(names(&projects, &owner).await, ["[gone].md"]);
    assert_eq!(shown(&projects, &owner, "[gone].md").await, "the text");
    assert!(erase(&milepost, SECRET, true).await.is_nothing());
}

#[tokio::test]
async fn what_was_put_under_the_old_name_meanwhile_is_not_lost() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let owner = Owner::Session(session(&milepost).await);
    let projects = half_renamed(&milepost, &owner).await;
    put(&projects, &owner, &format!("{SECRET}.md"), "newer under the old name").await;
    put(&projects, &owner, "[gone].md", "newer under the new name").await;
    erase(&milepost, SECRET, false).await;
    assert_eq!(names(&projects, &owner).await, ["[gone].md"]);
    let (artifact, _) = projects.artifact(&owner, "[gone].md", None).await.unwrap();
    let mut kept = Vec::new();
    for version in &artifact.versions {
        kept.push(projects.artifact(&owner, "[gone].md", Some(version.number)).await.unwrap().1);
    }
    kept.sort();
    assert_eq!(kept, [&b"newer under the new name"[..], b"newer under the old name", b"the text"]);
}

#[tokio::test]
async fn artifacts_that_share_their_parts_are_cleaned_together() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let owner = Owner::Session(session(&milepost).await);
    let projects = half_renamed(&milepost, &owner).await;
    erase(&milepost, "text", false).await;
    for name in [format!("{SECRET}.md"), "[gone].md".to_owned()] {
        assert_eq!(shown(&projects, &owner, &name).await, "the [gone]", "{name}");
    }
    erase(&milepost, SECRET, false).await;
    assert_eq!(names(&projects, &owner).await, ["[gone].md"]);
    assert_eq!(shown(&projects, &owner, "[gone].md").await, "the [gone]");
}

#[tokio::test]
async fn a_damaged_artifact_is_named_and_keeps_the_secret_in_nothing_else() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let id = session(&milepost).await;
    let (projects, owner) = (milepost.projects().await.unwrap(), Owner::Session(id));
    put(&projects, &owner, "bad.md", &format!("a {SECRET}")).await;
    let part = records(&milepost, "artifact-part").await.pop().unwrap();
    remove(&milepost, "artifact-part", &part).await;
    put(&projects, &owner, "good.md", &format!("the {SECRET}")).await;
    let held = milepost.hold(id).await.unwrap();
    held.append(Message::new(Role::User, SECRET)).await.unwrap();
    held.release().await.unwrap();
    for dry_run in [true, false] {
        let found = erase(&milepost, SECRET, dry_run).await.here;
        assert_eq!((found.records, found.entries), (1, 1), "{found:?}");
        assert!(found.damaged.len() == 1 && found.damaged[0].contains("the artifact \"bad.md\""), "{found:?}");
    }
    assert_eq!(shown(&projects, &owner, "good.md").await, "the [gone]");
    // One whose own record cannot be read has parts that look as if nothing named them.
    let bad = records(&milepost, "artifact").await;
    for head in &bad {
        let mut value: Value = serde_json::from_slice(&head.value).unwrap();
        value["kind"] = json!("of a later version");
        let value = serde_json::to_vec(&value).unwrap();
        milepost.store().put_record("artifact", &head.key, Some(head.version), None, &value).await.unwrap();
    }
    scratch.clock.advance_ms(scratch.options.store.blob_grace_ms + 1);
    let found = erase(&milepost, "the", false).await.here;
    assert_eq!((found.damaged.len(), found.records_left), (2, 1), "{found:?}");
    assert_eq!(records(&milepost, "artifact-part").await.len(), 1);
}
