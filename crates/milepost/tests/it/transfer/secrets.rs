//! Secrets in what is imported: taken out of what older tools left, told of in a bundle.

use std::fs;
use std::io::Cursor;

use milepost::context::redact::Rules;
use milepost::model::{Message, Role, Seq, SessionPatch};
use milepost::project::{NewArtifact, Owner, Projects};
use milepost::store::{MarkQuery, MasterKey, MessageQuery, Store};
use milepost::transfer::{ImportOptions, Imported};
use milepost::{Milepost, NewSession, SessionId};
use serde_json::{Value, json};

use crate::support::{Scratch, user};
use crate::transfer::bundle::bundle;

const GITHUB: &str = "ghp_x7Kq2mVt9RbL4nWc8YpZ1sDf6GhJ3kAe5UoT";
const ANTHROPIC: &str =
    "sk-ant-api03-Qm7vTz2LxKp9RbYc4WnD8sHf1GjU6eAoI3tXq5ZrVw0MkPy-BdNlSgCh_EuTiRaOzFxQmWv2JsKp7YbLd4AAAA";
const PASSWORD: &str = "hunter2-Zk81";
const SECRETS: [&str; 3] = [GITHUB, ANTHROPIC, PASSWORD];

/// Everything that can be read of a session.
async fn all_of(store: &Store, id: SessionId) -> String {
    let session = store.session(id).await.unwrap();
    let mut all = format!("{session:?}");
    for entry in store.entries(id, Seq(0), Seq(1000)).await.unwrap() {
        all += &format!("{:?}\n", entry.body);
    }
    for stored in store.messages(id, &MessageQuery::default()).await.unwrap() {
        all += &serde_json::to_string(&stored.message).unwrap();
    }
    for mark in store.marks(id, &MarkQuery::default()).await.unwrap() {
        all += &store.load(mark.checkpoint.id).await.unwrap().state.as_value().to_string();
    }
    all
}

fn database() -> String {
    format!("postgres://app:{PASSWORD}@db.internal/main")
}

fn chat() -> Value {
    json!({
        "title": ANTHROPIC, "sessionId": format!("chat {GITHUB}"),
        "messages": [
            { "role": "user", "content": format!("the key is {ANTHROPIC}"), "note": format!("token {GITHUB}") },
            { "role": "assistant", "content": [{ "type": "text", "text": format!("use {GITHUB}") }] },
            { "role": "user", "content": "", "toolCalls": [{ "id": "1", "name": "db", "input": { "url": database() } }] },
        ],
    })
}

fn task() -> Value {
    json!({
        "id": "cp1", "taskId": "task-9", "createdAt": "2025-05-01T10:00:00.000Z", "reason": "interval", "label": GITHUB,
        "description": format!("with {ANTHROPIC}"), "odd": [database()],
        "task": { "status": "in_progress" }, "environment": { "variables": { "DATABASE_URL": database(), "api_key": GITHUB } },
        "conversationHistory": { "messages": [{ "role": "user", "content": format!("see {}", database()) }] },
    })
}

#[tokio::test]
async fn an_older_file_is_stored_without_its_secrets() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    for (name, content) in [("chat", chat()), ("task", task()), (GITHUB, json!([{ "role": "user", "content": "hi" }]))]
    {
        let path = scratch.dir.path().join(format!("{name}.json"));
        fs::write(&path, content.to_string()).unwrap();
        let imported = milepost.import_older(&path, &ImportOptions::default()).await.unwrap().remove(0);
        let all = all_of(milepost.store(), imported.session).await;
        for secret in SECRETS {
            assert!(!all.contains(secret), "{name} keeps {secret}: {all}");
        }
        assert!(all.contains("[redacted:"), "{all}");
        let bytes = content.to_string();
        let (name, options) = (format!("x {name}"), ImportOptions::default());
        let again = milepost.import_older_bytes(&name, bytes.as_bytes(), &options).await.unwrap().remove(0);
        assert!(SECRETS.iter().all(|secret| !format!("{:?}", again.notes).contains(secret)));
    }
    let page = milepost.store().sessions(&Default::default()).await.unwrap();
    assert!(page.sessions.iter().any(|session| session.title.as_deref().is_some_and(|t| t.starts_with("[redacted:"))));
    assert!(milepost.store().verify().await.unwrap().is_whole());
}

#[tokio::test]
async fn what_was_taken_out_is_said_and_a_vault_gives_it_back() {
    let scratch = Scratch::new();
    let mut options = scratch.options.clone();
    options.store.keys.master = Some(MasterKey::from_bytes([7; 32]));
    options.vault = true;
    let milepost = Milepost::open_with(&scratch.url(), options).await.unwrap();
    let bytes = chat().to_string();
    let imported = milepost.import_older_bytes("chat", bytes.as_bytes(), &ImportOptions::default()).await.unwrap();
    assert!(imported[0].notes.iter().any(|note| note.contains("secrets were taken out")), "{:?}", imported[0].notes);
    let found = milepost.store().messages(imported[0].session, &MessageQuery::default()).await.unwrap();
    let kept = serde_json::to_value(&found[0].message).unwrap();
    assert!(!kept.to_string().contains(ANTHROPIC));
    assert!(milepost.reveal(kept).await.unwrap().to_string().contains(ANTHROPIC));
}

async fn exported(scratch: &Scratch, rules: Option<Rules>) -> Vec<u8> {
    let mut options = scratch.options.clone();
    if rules.is_none() {
        options.policy.exclude_keys.clear();
    }
    options.redaction = rules;
    let from = Milepost::open_with("memory:", options).await.unwrap();
    let patch = SessionPatch::new().title("T");
    let session = from.create(NewSession { patch, ..NewSession::default() }).await.unwrap();
    session.append(user(&format!("the key is {ANTHROPIC}"))).await.unwrap();
    session.append(Message::new(Role::Assistant, "nothing here")).await.unwrap();
    session.update(|state| *state = json!({ "memory": { "n": 1 } }).try_into().unwrap()).await.unwrap();
    session
        .update(|state| *state = json!({ "memory": { "n": 1, "api_key": "k-1" } }).try_into().unwrap())
        .await
        .unwrap();
    session.checkpoint_labelled("one").await.unwrap();
    let id = session.id();
    session.release().await.unwrap();
    bundle(from.store(), id).await
}

async fn import(scratch: &Scratch, bytes: &[u8]) -> (Milepost, Imported) {
    let to = Milepost::open_with("memory:", scratch.options.clone()).await.unwrap();
    let imported = to.import_bundle(Cursor::new(bytes), &ImportOptions::default(), &mut |_| ()).await.unwrap();
    (to, imported)
}

#[tokio::test]
async fn a_bundle_is_taken_as_it_is_and_its_secrets_are_told() {
    let scratch = Scratch::new();
    let (to, imported) = import(&scratch, &exported(&scratch, None).await).await;
    assert_eq!(imported.notes.len(), 1, "{:?}", imported.notes);
    let note = &imported.notes[0];
    assert!(note.starts_with("2 entries look as if they held secrets (anthropic"), "{note}");
    assert!(note.contains("key") && note.contains("milepost redact --known"), "{note}");
    assert!(!note.contains(ANTHROPIC) && !note.contains("k-1"));
    assert!(all_of(to.store(), imported.session).await.contains(ANTHROPIC), "it is lossless");
    let (_, clean) = import(&scratch, &exported(&scratch, Some(Rules::new())).await).await;
    assert_eq!(clean.notes, Vec::<String>::new(), "what a store wrote without secrets holds none");
}

#[tokio::test]
async fn secrets_in_artifacts_and_logs_of_a_bundle_are_told_too() {
    let scratch = Scratch::new();
    let mut options = scratch.options.clone();
    options.redaction = None;
    let from = Milepost::open_with("memory:", options).await.unwrap();
    let session = from.create(NewSession::default()).await.unwrap();
    let owner = Owner::Session(session.id());
    // As it was written before anything was looked at.
    let projects = Projects::open(from.store()).await.unwrap();
    let content = format!("key: {GITHUB}\n");
    projects.put_artifact(&owner, "notes.md", content.as_bytes(), NewArtifact::default()).await.unwrap();
    projects.put_artifact(&owner, "clean.md", b"nothing", NewArtifact::default()).await.unwrap();
    projects.put_artifact(&owner, "picture.bin", &[0xff, 0xfe, 0], NewArtifact::default()).await.unwrap();
    for line in ["began".to_owned(), format!("called with {ANTHROPIC}"), database()] {
        projects.log(&owner, &line).await.unwrap();
    }
    let id = session.id();
    session.release().await.unwrap();
    let (to, imported) = import(&scratch, &bundle(from.store(), id).await).await;
    let [note] = imported.notes.as_slice() else { panic!("{:?}", imported.notes) };
    assert!(note.starts_with("1 artifact and 2 lines of the log look as if they held secrets ("), "{note}");
    assert!(["github-token", "anthropic-key", "url-password"].iter().all(|kind| note.contains(kind)), "{note}");
    assert!(SECRETS.iter().all(|secret| !note.contains(secret)));
    let (_, kept) = to.projects().await.unwrap().artifact(&owner, "notes.md", None).await.unwrap();
    assert_eq!(kept, content.as_bytes(), "it is lossless");
}
