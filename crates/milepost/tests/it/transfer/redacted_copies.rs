//! Copies of sessions that were redacted: the clean session takes the place of its copy, and nothing that the copy has of its
//! own is lost.

use milepost::model::{Event, SessionPatch};
use milepost::project::{NewArtifact, Owner};
use milepost::store::{Append, Redactor};
use milepost::transfer::{Ids, copy_session};
use milepost::{Error, MessageQuery, Milepost, NewSession, Point, Result, SessionId};

use crate::support::{Scratch, no_adapters, user};

const SECRET: &str = "zebra-77";

/// A store, and another with copies of its sessions. Time goes on with every change.
struct Pair {
    scratch: Scratch,
    here: Milepost,
    there: Milepost,
}

impl Pair {
    async fn new() -> Self {
        let scratch = Scratch::new();
        let here = scratch.open().await;
        let there = Milepost::open_with("memory:", scratch.options.clone()).await.unwrap();
        Self { scratch, here, there }
    }

    async fn push(&self, id: SessionId) -> Result<()> {
        let claim = self.here.claim();
        copy_session(self.here.store(), self.there.store(), id, Ids::Preserve, &claim, &mut |_| ()).await.map(drop)
    }

    async fn pull(&self, id: SessionId) -> Result<()> {
        let claim = self.here.claim();
        copy_session(self.there.store(), self.here.store(), id, Ids::Preserve, &claim, &mut |_| ()).await.map(drop)
    }

    async fn session(&self, text: &str) -> SessionId {
        let session = self.here.create(NewSession::titled("A")).await.unwrap();
        session.append(user(text)).await.unwrap();
        let id = session.id();
        session.release().await.unwrap();
        id
    }

    async fn append(&self, milepost: &Milepost, id: SessionId, append: Append) {
        self.scratch.clock.advance_ms(1000);
        let writer = milepost.store().write(id, &milepost.claim()).await.unwrap();
        writer.append(append).await.unwrap();
        writer.release().await.unwrap();
    }

    async fn say(&self, milepost: &Milepost, id: SessionId, text: &str) {
        self.append(milepost, id, Append::new().message(user(text))).await;
    }

    async fn redact(&self, milepost: &Milepost, secret: &str, why: &str) {
        self.scratch.clock.advance_ms(1000);
        let (redactor, none) = (Redactor::literal(secret, "[gone]").unwrap(), async |_: &str| Err("none".to_owned()));
        milepost.redact(&redactor, why, false, none, no_adapters).await.unwrap();
    }

    async fn put(&self, milepost: &Milepost, id: SessionId, name: &str, content: &str) {
        self.scratch.clock.advance_ms(1000);
        let projects = milepost.projects().await.unwrap();
        projects.put_artifact(&Owner::Session(id), name, content.as_bytes(), NewArtifact::default()).await.unwrap();
    }

    async fn log(&self, milepost: &Milepost, id: SessionId, line: &str) {
        self.scratch.clock.advance_ms(1000);
        milepost.projects().await.unwrap().log(&Owner::Session(id), line).await.unwrap();
    }
}

async fn texts(milepost: &Milepost, id: SessionId) -> Vec<String> {
    let messages = milepost.store().messages(id, &MessageQuery::default()).await.unwrap();
    messages.iter().map(|stored| stored.message.text().into_owned()).collect()
}

async fn artifacts(milepost: &Milepost, id: SessionId) -> Vec<(String, String)> {
    let (projects, owner) = (milepost.projects().await.unwrap(), Owner::Session(id));
    let mut all = Vec::new();
    for found in projects.artifacts(&owner).await.unwrap() {
        let (_, content) = projects.artifact(&owner, &found.name, None).await.unwrap();
        all.push((found.name, String::from_utf8(content).unwrap()));
    }
    all
}

async fn lines(milepost: &Milepost, id: SessionId) -> Vec<String> {
    let lines = milepost.projects().await.unwrap().log_lines(&Owner::Session(id), 0, 10).await.unwrap();
    lines.into_iter().map(|line| line.text).collect()
}

fn assert_apart(outcome: Result<()>) -> String {
    match outcome.unwrap_err() {
        error @ Error::Apart { .. } => error.to_string(),
        error => panic!("{error}"),
    }
}

#[derive(Debug, Clone, Copy)]
enum Own {
    Message,
    Tag,
    Event,
    Artifact,
    Version,
    Line,
}

#[tokio::test]
async fn a_copy_of_a_redacted_session_keeps_what_it_has_of_its_own() {
    for own in [Own::Message, Own::Tag, Own::Event, Own::Artifact, Own::Version, Own::Line] {
        for redacted_again in [false, true] {
            let pair = Pair::new().await;
            let id = pair.session(&format!("the {SECRET} and the lion")).await;
            pair.put(&pair.here, id, "plan.md", "one").await;
            pair.log(&pair.here, id, "begun").await;
            pair.redact(&pair.here, SECRET, "it leaked").await;
            pair.push(id).await.unwrap();
            let there = &pair.there;
            match own {
                Own::Message => pair.say(there, id, "said there").await,
                Own::Tag => {
                    let patch = SessionPatch::new().title("Renamed").tags(["important".to_owned()]);
                    pair.append(there, id, Append::new().patch(patch)).await;
                }
                Own::Event => {
                    let event = Event::new("deployed", serde_json::json!({ "to": "production" }));
                    pair.append(there, id, Append::new().event(event)).await;
                }
                Own::Artifact => pair.put(there, id, "made-there.md", "x").await,
                Own::Version => pair.put(there, id, "plan.md", "two, there").await,
                Own::Line => pair.log(there, id, "seen there").await,
            }
            pair.say(&pair.here, id, "more").await;
            if redacted_again {
                pair.redact(&pair.here, "lion", "it leaked too").await;
            }
            let is_beside = matches!(own, Own::Artifact | Own::Version | Own::Line);
            let before = pair.there.store().session(id).await.unwrap();
            match pair.push(id).await {
                // What only lies beside the copy is in nobody's way as long as it need not be made anew.
                Ok(()) => assert!(is_beside && !redacted_again, "{own:?}, {redacted_again}"),
                Err(error) => {
                    assert!(!is_beside || redacted_again, "{own:?}: {error}");
                    let told = assert_apart(Err(error));
                    assert!(told.contains("the copy went its own way"), "{own:?}: {told}");
                    assert_eq!(pair.there.store().session(id).await.unwrap(), before, "{own:?}");
                }
            }
            let (files, lines) = (artifacts(there, id).await, lines(there, id).await);
            let has = |name: &str, text: &str| files.contains(&(name.to_owned(), text.to_owned()));
            match own {
                Own::Message => assert_eq!(texts(there, id).await, ["the [gone] and the lion", "said there"]),
                Own::Tag => assert_eq!(before.title.as_deref(), Some("Renamed")),
                Own::Event => {}
                Own::Artifact => assert!(has("made-there.md", "x"), "{files:?}"),
                Own::Version => assert!(has("plan.md", "two, there"), "{files:?}"),
                Own::Line => assert_eq!(lines, ["begun", "seen there"]),
            }
        }
    }
}

#[tokio::test]
async fn a_redacted_session_takes_the_place_of_its_copy_with_artifacts_and_log() {
    let pair = Pair::new().await;
    let id = pair.session(&format!("the {SECRET}")).await;
    pair.put(&pair.here, id, &format!("{SECRET}.md"), "x").await;
    pair.put(&pair.here, id, "notes.md", &format!("about {SECRET}")).await;
    pair.log(&pair.here, id, &format!("saw {SECRET}")).await;
    pair.push(id).await.unwrap();
    pair.redact(&pair.here, SECRET, "it leaked").await;
    pair.say(&pair.here, id, "more").await;
    pair.push(id).await.unwrap();
    assert_eq!(texts(&pair.there, id).await, ["the [gone]", "more"]);
    assert_eq!(artifacts(&pair.there, id).await, artifacts(&pair.here, id).await);
    assert_eq!(lines(&pair.there, id).await, ["saw [gone]"]);
    // The other way nothing is to be done, and nothing comes back.
    pair.pull(id).await.unwrap();
    assert_eq!(texts(&pair.here, id).await, ["the [gone]", "more"]);
}

#[tokio::test]
async fn a_secret_that_was_erased_only_in_the_copy_does_not_come_back() {
    let pair = Pair::new().await;
    let id = pair.session(&format!("the {SECRET} and the lion")).await;
    pair.push(id).await.unwrap();
    pair.redact(&pair.there, SECRET, "it leaked").await;
    let told = pair.push(id).await.unwrap_err().to_string();
    assert!(told.contains("a secret was erased in the copy"), "{told}");
    pair.redact(&pair.here, "lion", "it leaked too").await;
    let told = pair.push(id).await.unwrap_err().to_string();
    assert!(told.contains("a secret was erased in the copy") && !told.contains("new ids"), "{told}");
    assert_eq!(texts(&pair.there, id).await, ["the [gone] and the lion"]);
    // Erased in both, each with an entry of its own about it.
    pair.redact(&pair.here, SECRET, "it leaked").await;
    pair.redact(&pair.there, "lion", "it leaked too").await;
    pair.push(id).await.unwrap();
    assert_eq!(texts(&pair.there, id).await, ["the [gone] and the [gone]"]);
}

#[tokio::test]
async fn what_was_erased_beside_the_copy_does_not_come_back_with_the_rest() {
    for what in 0..3 {
        let pair = Pair::new().await;
        let id = pair.session("the lion").await;
        match what {
            0 => pair.put(&pair.here, id, "notes.md", &format!("about {SECRET}")).await,
            1 => pair.put(&pair.here, id, &format!("{SECRET}.md"), "x").await,
            _ => pair.log(&pair.here, id, &format!("saw {SECRET}")).await,
        }
        pair.push(id).await.unwrap();
        pair.redact(&pair.there, SECRET, "it leaked").await;
        // What was redacted here is something else, and would have the session take the place of its copy.
        pair.redact(&pair.here, "lion", "it leaked too").await;
        let told = pair.push(id).await.unwrap_err().to_string();
        assert!(told.contains("a secret was erased in the copy"), "{what}: {told}");
        assert!(!format!("{:?} {:?}", artifacts(&pair.there, id).await, lines(&pair.there, id).await).contains(SECRET));
        pair.redact(&pair.here, SECRET, "it leaked").await;
        pair.push(id).await.unwrap();
        assert_eq!(texts(&pair.there, id).await, ["the [gone]"]);
        assert_eq!(artifacts(&pair.there, id).await, artifacts(&pair.here, id).await);
    }
}

#[tokio::test]
async fn a_branch_takes_the_place_of_its_copy_when_what_it_shares_was_redacted() {
    let pair = Pair::new().await;
    let parent = pair.session(&format!("the {SECRET}")).await;
    let held = pair.here.hold(parent).await.unwrap();
    let fork = held.checkpoint_labelled("fork").await.unwrap();
    held.release().await.unwrap();
    let branch = pair.here.branch(parent, &Point::Checkpoint(fork), NewSession::default()).await.unwrap();
    let id = branch.id();
    branch.append(user("mine")).await.unwrap();
    branch.release().await.unwrap();
    pair.push(id).await.unwrap();
    pair.redact(&pair.here, SECRET, "it leaked").await;
    pair.push(id).await.unwrap();
    assert_eq!(texts(&pair.there, id).await, ["the [gone]", "mine"]);
    pair.push(id).await.unwrap();
    // It is a copy like any other.
    pair.say(&pair.here, id, "more").await;
    pair.push(id).await.unwrap();
    assert_eq!(texts(&pair.there, id).await, ["the [gone]", "mine", "more"]);
    assert!(pair.there.store().verify_deep().await.unwrap().is_whole());
    pair.say(&pair.there, id, "said there").await;
    pair.redact(&pair.here, "the ", "it leaked too").await;
    assert!(assert_apart(pair.push(id).await).contains("the copy went its own way"));
    // What was erased in the copy, which stands by itself, is not brought back either.
    pair.pull(id).await.unwrap_err();
    pair.redact(&pair.there, "mine", "it leaked").await;
    let told = pair.push(id).await.unwrap_err().to_string();
    assert!(told.contains("a secret was erased in the copy"), "{told}");
}

#[tokio::test]
async fn the_reason_of_a_redaction_can_be_redacted_itself() {
    let pair = Pair::new().await;
    let id = pair.session(&format!("the {SECRET} of the lion")).await;
    pair.push(id).await.unwrap();
    pair.redact(&pair.here, SECRET, "the key of the lion").await;
    pair.push(id).await.unwrap();
    pair.redact(&pair.here, "lion", "it leaked").await;
    pair.push(id).await.unwrap();
    assert_eq!(texts(&pair.there, id).await, ["the [gone] of the [gone]"]);
}

#[tokio::test]
async fn what_was_redacted_beside_a_session_only_is_named_with_what_to_do_and_that_works() {
    for content in [true, false] {
        let pair = Pair::new().await;
        let id = pair.session("hello").await;
        let (name, text) = if content { ("notes.md".to_owned(), SECRET) } else { (format!("{SECRET}.md"), "x") };
        pair.put(&pair.here, id, &name, text).await;
        pair.push(id).await.unwrap();
        pair.redact(&pair.here, SECRET, "it leaked").await;
        let both_ways = [pair.push(id).await, pair.pull(id).await];
        pair.say(&pair.here, id, "more").await;
        for outcome in both_ways.into_iter().chain([pair.push(id).await]) {
            let told = outcome.unwrap_err().to_string();
            assert!(told.contains("redact the same in the other store"), "{told}");
        }
        assert_eq!(texts(&pair.there, id).await, ["hello"], "nothing was copied");
        pair.redact(&pair.there, SECRET, "it leaked").await;
        pair.push(id).await.unwrap();
        assert_eq!(artifacts(&pair.there, id).await, artifacts(&pair.here, id).await);
    }
    let pair = Pair::new().await;
    let id = pair.session("hello").await;
    pair.log(&pair.here, id, SECRET).await;
    pair.push(id).await.unwrap();
    pair.redact(&pair.here, SECRET, "it leaked").await;
    let told = pair.push(id).await.unwrap_err().to_string();
    assert!(told.contains("line 1 of its log") && told.contains("redact the same in the other store"), "{told}");
    pair.redact(&pair.there, SECRET, "it leaked").await;
    pair.push(id).await.unwrap();
    assert_eq!(lines(&pair.there, id).await, ["[gone]"]);
}
