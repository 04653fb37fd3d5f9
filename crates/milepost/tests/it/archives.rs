//! Archives that are redacted too, that take a session again, and that lose nothing on the way.

use milepost::project::{NewArtifact, Owner};
use milepost::store::{Options, Redactor, Store};
use milepost::transfer::{BundleOptions, Ids, ImportOptions, copy_session, export_bundle};
use milepost::{MessageQuery, Milepost, NewSession, Point, SessionId, SessionSummary};

use crate::support::{Scratch, no_adapters, user};

const SECRET: &str = "wombat-77";

fn redactor() -> Redactor {
    Redactor::literal(SECRET, "[gone]").unwrap()
}

struct Archive {
    url: String,
    options: Options,
}

impl Archive {
    fn new(scratch: &Scratch) -> Self {
        let url = format!("sqlite:{}/archive.db", scratch.dir.path().display());
        Self { url, options: scratch.options.store.clone() }
    }

    async fn open(&self) -> Store {
        Store::open(&self.url, self.options.clone()).await.unwrap()
    }

    async fn take(&self, milepost: &Milepost, id: SessionId) -> milepost::Result<()> {
        let store = self.open().await;
        let outcome = milepost.archive(id, &store, &self.url).await.map(drop);
        store.close().await.unwrap();
        outcome
    }

    async fn give_back(&self, milepost: &Milepost, id: SessionId) {
        let archived = milepost.archived_at(id).await.unwrap().unwrap();
        let store = self.open().await;
        milepost.unarchive(&archived, &store).await.unwrap();
        store.close().await.unwrap();
    }

    async fn texts(&self, id: SessionId) -> Vec<String> {
        let store = self.open().await;
        let texts = texts(&store, id).await;
        store.close().await.unwrap();
        texts
    }
}

async fn texts(store: &Store, id: SessionId) -> Vec<String> {
    let messages = store.messages(id, &MessageQuery::default()).await.unwrap();
    messages.iter().map(|stored| stored.message.text().into_owned()).collect()
}

async fn session(milepost: &Milepost, text: &str) -> SessionId {
    let session = milepost.create(NewSession::titled("Old")).await.unwrap();
    session.append(user(text)).await.unwrap();
    let id = session.id();
    session.release().await.unwrap();
    id
}

async fn redact(scratch: &Scratch, milepost: &Milepost, dry_run: bool) -> milepost::Erased {
    let options = &scratch.options.store;
    let open = async |url: &str| Store::open(url, options.clone()).await.map_err(|error| error.to_string());
    milepost.redact(&redactor(), "it leaked", dry_run, open, no_adapters).await.unwrap()
}

#[tokio::test]
async fn a_secret_is_erased_from_the_archives_too() {
    let scratch = Scratch::new();
    let (milepost, archive) = (scratch.open().await, Archive::new(&scratch));
    let id = session(&milepost, "it is wombat-77").await;
    archive.take(&milepost, id).await.unwrap();
    let found = redact(&scratch, &milepost, true).await;
    assert_eq!((found.here.entries, found.archives.len()), (0, 1));
    assert_eq!(found.archives[0].outcome.as_ref().unwrap().entries, 1);
    assert_eq!(archive.texts(id).await, ["it is wombat-77"], "a dry run changes nothing");
    assert!(!redact(&scratch, &milepost, false).await.is_nothing());
    assert_eq!(archive.texts(id).await, ["it is [gone]"]);
    assert!(redact(&scratch, &milepost, false).await.is_nothing());
    archive.give_back(&milepost, id).await;
    assert_eq!(texts(milepost.store(), id).await, ["it is [gone]"]);
}

#[tokio::test]
async fn an_archive_that_cannot_be_reached_is_named() {
    let scratch = Scratch::new();
    let (milepost, archive) = (scratch.open().await, Archive::new(&scratch));
    let id = session(&milepost, "it is wombat-77").await;
    archive.take(&milepost, id).await.unwrap();
    let open = async |_: &str| Err("the disk is in the cupboard".to_owned());
    let erased = milepost.redact(&redactor(), "it leaked", false, open, no_adapters).await.unwrap();
    let unreached: Vec<_> = erased.unreached().collect();
    assert_eq!(unreached.len(), 1);
    assert_eq!((&unreached[0].0.url, &unreached[0].0.sessions), (&archive.url, &vec![id]));
    assert!(unreached[0].1.contains("cupboard"));
}

#[tokio::test]
async fn a_session_that_was_redacted_since_it_came_back_is_archived_again() {
    let scratch = Scratch::new();
    let (milepost, archive) = (scratch.open().await, Archive::new(&scratch));
    let id = session(&milepost, "it is wombat-77").await;
    archive.take(&milepost, id).await.unwrap();
    archive.give_back(&milepost, id).await;
    assert!(milepost.archived().await.unwrap().is_empty());
    // The copy that stayed there is cleaned too, and both have an entry of their own about it.
    redact(&scratch, &milepost, false).await;
    assert_eq!(archive.texts(id).await, ["it is [gone]"]);
    let held = milepost.hold(id).await.unwrap();
    held.append(user("and on")).await.unwrap();
    held.release().await.unwrap();
    archive.take(&milepost, id).await.unwrap();
    assert_eq!(archive.texts(id).await, ["it is [gone]", "and on"]);
    archive.give_back(&milepost, id).await;
    assert_eq!(texts(milepost.store(), id).await, ["it is [gone]", "and on"]);
    assert!(milepost.store().verify_deep().await.unwrap().is_whole());
}

#[tokio::test]
async fn a_copy_in_an_archive_that_was_added_to_there_is_not_replaced() {
    let scratch = Scratch::new();
    let (milepost, archive) = (scratch.open().await, Archive::new(&scratch));
    let id = session(&milepost, "it is wombat-77").await;
    archive.take(&milepost, id).await.unwrap();
    archive.give_back(&milepost, id).await;
    let there = Milepost::open_with(&archive.url, scratch.options.clone()).await.unwrap();
    let held = there.hold(id).await.unwrap();
    held.append(user("said there")).await.unwrap();
    held.release().await.unwrap();
    there.close().await.unwrap();
    redact(&scratch, &milepost, false).await;
    let refused = archive.take(&milepost, id).await.unwrap_err().to_string();
    assert!(refused.contains("the copy"), "{refused}");
    assert_eq!(archive.texts(id).await, ["it is [gone]", "said there"]);
    assert_eq!(texts(milepost.store(), id).await, ["it is [gone]"], "it is still here");
}

#[tokio::test]
async fn a_branch_that_was_archived_still_knows_its_parent() {
    let scratch = Scratch::new();
    let (milepost, archive) = (scratch.open().await, Archive::new(&scratch));
    let parent = milepost.create(NewSession::default()).await.unwrap();
    parent.append(user("one")).await.unwrap();
    let shared = parent.checkpoint_labelled("here").await.unwrap();
    let parent_id = parent.id();
    parent.release().await.unwrap();
    let branch = milepost.branch(parent_id, &Point::Checkpoint(shared), NewSession::default()).await.unwrap();
    branch.append(user("two")).await.unwrap();
    let id = branch.id();
    branch.release().await.unwrap();
    let link = |info| {
        let summary = SessionSummary::of(info);
        (summary.parent_session_id, summary.branch_point)
    };
    let before = link(milepost.store().session(id).await.unwrap());
    assert_eq!(before.0, Some(parent_id));
    for _ in 0..2 {
        archive.take(&milepost, id).await.unwrap();
        archive.give_back(&milepost, id).await;
        assert_eq!(link(milepost.store().session(id).await.unwrap()), before);
        assert_eq!(texts(milepost.store(), id).await, ["one", "two"]);
        // The checkpoint that they share is found by its id, as before.
        let mark = milepost.mark(id, &Point::Checkpoint(shared)).await.unwrap();
        assert_eq!((mark.session, mark.checkpoint.label.as_deref()), (id, Some("here")));
    }
}

/// A session with an artifact in two versions, and a log.
async fn rich(milepost: &Milepost) -> SessionId {
    let id = session(milepost, "hello").await;
    let (projects, owner) = (milepost.projects().await.unwrap(), Owner::Session(id));
    for content in ["# One", "# Two"] {
        let new = NewArtifact { session: Some(id), ..NewArtifact::default() };
        projects.put_artifact(&owner, "docs/foundation.md", content.as_bytes(), new).await.unwrap();
    }
    projects.put_artifact(&owner, "image.png", &[0, 159, 146, 150], NewArtifact::default()).await.unwrap();
    for line in 0..300 {
        projects.log(&owner, &format!("line {line}")).await.unwrap();
    }
    id
}

async fn assert_rich(milepost: &Milepost, id: SessionId) {
    let (projects, owner) = (milepost.projects().await.unwrap(), Owner::Session(id));
    let artifacts = projects.artifacts(&owner).await.unwrap();
    assert_eq!(
        artifacts.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(),
        ["docs/foundation.md", "image.png"]
    );
    for (number, content) in [(1, "# One"), (2, "# Two")] {
        let (found, bytes) = projects.artifact(&owner, "docs/foundation.md", Some(number)).await.unwrap();
        assert_eq!((bytes, found.versions[0].session), (content.as_bytes().to_vec(), Some(id)));
    }
    assert_eq!(projects.artifact(&owner, "image.png", None).await.unwrap().1, [0, 159, 146, 150]);
    let lines = projects.log_lines(&owner, 0, 1000).await.unwrap();
    assert_eq!((lines.len(), lines[299].text.as_str()), (300, "line 299"));
}

#[tokio::test]
async fn artifacts_and_logs_go_where_their_session_goes() {
    let scratch = Scratch::new();
    let (milepost, archive) = (scratch.open().await, Archive::new(&scratch));
    let id = rich(&milepost).await;
    // Copied, twice: what is there already stays.
    let other = Milepost::open_with("memory:", scratch.options.clone()).await.unwrap();
    for _ in 0..2 {
        copy_session(milepost.store(), other.store(), id, Ids::Preserve, &milepost.claim(), &mut |_| ()).await.unwrap();
        assert_rich(&other, id).await;
    }
    let projects = milepost.projects().await.unwrap();
    projects.log(&Owner::Session(id), "one more").await.unwrap();
    copy_session(milepost.store(), other.store(), id, Ids::Preserve, &milepost.claim(), &mut |_| ()).await.unwrap();
    assert_eq!(other.projects().await.unwrap().log_length(&Owner::Session(id)).await.unwrap(), 301);
    // Bundled, with the old ids and with new ones.
    let id = rich(&milepost).await;
    let mut bundle = Vec::new();
    export_bundle(milepost.store(), id, &mut bundle, &BundleOptions::default(), &mut |_| ()).await.unwrap();
    for ids in [Ids::Preserve, Ids::Remap] {
        let mut options = ImportOptions::default();
        options.ids = ids;
        let imported = other.import_bundle(std::io::Cursor::new(&bundle), &options, &mut |_| ()).await.unwrap();
        assert_rich(&other, imported.session).await;
    }
    // Archived and brought back.
    archive.take(&milepost, id).await.unwrap();
    assert!(projects.artifacts(&Owner::Session(id)).await.unwrap().is_empty(), "they are in the archive");
    archive.give_back(&milepost, id).await;
    assert_rich(&milepost, id).await;
}

#[tokio::test]
async fn an_artifact_that_held_a_secret_can_still_be_read() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let id = session(&milepost, "nothing here").await;
    let (projects, owner) = (milepost.projects().await.unwrap(), Owner::Session(id));
    projects.put_artifact(&owner, "notes.md", b"it is wombat-77", NewArtifact::default()).await.unwrap();
    projects.log(&owner, "it is wombat-77").await.unwrap();
    assert_eq!(redact(&scratch, &milepost, true).await.here.records, 2);
    assert_eq!(redact(&scratch, &milepost, false).await.here.records, 2);
    assert_eq!(projects.artifact(&owner, "notes.md", None).await.unwrap().1, b"it is [gone]");
    assert_eq!(projects.log_lines(&owner, 0, 10).await.unwrap()[0].text, "it is [gone]");
    assert!(redact(&scratch, &milepost, true).await.is_nothing());
}

#[tokio::test]
async fn a_diff_with_a_branch_that_was_archived_shows_what_is_its_own() {
    let scratch = Scratch::new();
    let (milepost, archive) = (scratch.open().await, Archive::new(&scratch));
    let parent = milepost.create(NewSession::default()).await.unwrap();
    parent.append(user("one")).await.unwrap();
    parent.append(user("two")).await.unwrap();
    let fork = parent.checkpoint_labelled("fork").await.unwrap();
    let branch = milepost.branch(parent.id(), &Point::Checkpoint(fork), NewSession::default()).await.unwrap();
    branch.append(user("three")).await.unwrap();
    let left = branch.checkpoint_labelled("left").await.unwrap();
    let id = branch.id();
    branch.release().await.unwrap();
    archive.take(&milepost, id).await.unwrap();
    archive.give_back(&milepost, id).await;
    let texts = |messages: &[milepost::StoredMessage]| -> Vec<String> {
        messages.iter().map(|stored| stored.message.text().into_owned()).collect()
    };
    let diff = milepost.diff(fork, left).await.unwrap();
    assert_eq!((diff.common, texts(&diff.only_a), texts(&diff.only_b)), (None, vec![], vec!["three".to_owned()]));
}
