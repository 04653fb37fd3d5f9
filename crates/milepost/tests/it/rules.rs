//! Rules that hold whoever asks: what a label may be, what is not written to, what settings change.

use milepost::config::Loader;
use milepost::store::{KeyOptions, MasterKey};
use milepost::transfer::export::{Layout, Present};
use milepost::transfer::{Ids, ImportOptions};
use milepost::{
    Channel, EngineOptions, Message, MessageQuery, Milepost, NewMark, NewSession, Notice, Point, Resume, Role,
    SessionQuery, Trigger, parse_set,
};
use serde_json::{Value, json};

use crate::support::{Scratch, user};

#[tokio::test]
async fn a_label_means_one_checkpoint_and_no_other() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let mut notices = milepost.notices();
    let session = milepost.create(NewSession::default()).await.unwrap();
    let mark = session.checkpoint_labelled(" trimmed ").await.unwrap();
    let found = milepost.mark(session.id(), &"trimmed".parse().unwrap()).await.unwrap();
    assert_eq!(found.checkpoint.id, mark);
    for label in ["latest", "2026-11-16", "1700000000000", &mark.to_string(), " ", ""] {
        let refused = session.checkpoint_labelled(label).await.unwrap_err().to_string();
        assert!(refused.contains("the label") && refused.contains("use another"), "{refused}");
        let milestone = session.milestone(label).await;
        assert!(milestone.is_err(), "{label:?}");
        // Nor one that the policy takes: it is told, and not tried for ever.
        assert_eq!(session.checkpoint_if(NewMark::new(Trigger::Step).label(label)).await, None);
    }
    session.barrier().await;
    let mut failed = 0;
    while let Ok(notice) = notices.try_recv() {
        failed += usize::from(matches!(notice, Notice::CheckpointFailed { .. }));
    }
    assert_eq!(failed, 6);
}

#[tokio::test]
async fn a_session_in_the_trash_is_not_written_to() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.release().await.unwrap();
    milepost.store().trash(id, &milepost.claim()).await.unwrap();
    for refused in [
        milepost.hold(id).await.map(drop),
        milepost.pause(id, None).await.map(drop),
        milepost.complete(id).await.map(drop),
        milepost.checkpoint(id, NewMark::new(Trigger::Manual)).await.map(drop),
        milepost.patch(id, milepost::SessionPatch::new().title("x")).await,
        milepost.resume(id, Resume::latest()).await.map(drop),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("in the trash") && refused.contains("untrash"), "{refused}");
    }
    // Whoever was refused does not hold it.
    milepost.store().untrash(id, &milepost.claim()).await.unwrap();
    milepost.hold(id).await.unwrap().append(user("one")).await.unwrap();
}

#[tokio::test]
async fn a_completed_session_has_nothing_to_pause() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.complete().await.unwrap();
    for refused in [session.pause(None).await, session.wait("an answer").await] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("completed") && refused.contains("--reopen"), "{refused}");
    }
    session.activate().await.unwrap();
    session.pause(None).await.unwrap();
}

#[tokio::test]
async fn a_label_that_was_left_behind_is_still_found() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let early = session.checkpoint_labelled("early").await.unwrap();
    session.append(user("one")).await.unwrap();
    let late = session.checkpoint_labelled("late").await.unwrap();
    session.restore(&Point::Checkpoint(early)).await.unwrap();
    assert_eq!(milepost.mark(session.id(), &"late".parse().unwrap()).await.unwrap().checkpoint.id, late);
    let part = late.to_string();
    let part = &part[part.len() - 8..];
    assert_eq!(milepost.mark(session.id(), &part.parse().unwrap()).await.unwrap().checkpoint.id, late);
    // One on the head comes first.
    let newer = session.checkpoint_labelled("late").await.unwrap();
    assert_eq!(milepost.mark(session.id(), &"late".parse().unwrap()).await.unwrap().checkpoint.id, newer);
    session.restore(&Point::Checkpoint(late)).await.unwrap();
    assert_eq!(milepost.store().messages(session.id(), &MessageQuery::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_preview_of_a_resume_refuses_what_cannot_be_set() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.set(&[parse_set("memory.name=Ada").unwrap()]).await.unwrap();
    session.release().await.unwrap();
    let how = |set: &str| Resume { set: vec![parse_set(set).unwrap()], ..Resume::latest() };
    let refused = milepost.resume_preview(id, &how("memory.name.first=1")).await.unwrap_err().to_string();
    assert_eq!(refused, milepost.resume(id, how("memory.name.first=1")).await.unwrap_err().to_string());
    let preview = milepost.resume_preview(id, &how("memory.age=3")).await.unwrap();
    assert!(preview.from.is_some() && !preview.moves);
    assert_eq!(milepost.store().state(id).await.unwrap().pointer("/memory/age"), None, "nothing was set");
}

#[tokio::test]
async fn damage_far_before_the_checkpoint_is_named() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.append_all((0..300).map(|n| user(&format!("message {n}"))).collect()).await.unwrap();
    // A whole state is kept after them, so that the checkpoint's own can be read.
    for step in 0..20 {
        session.set(&[parse_set(&format!("memory.step={step}")).unwrap()]).await.unwrap();
    }
    session.checkpoint_labelled("here").await.unwrap();
    session.release().await.unwrap();
    milepost.close().await.unwrap();
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    let sql = "UPDATE entries SET text = 'changed' WHERE id = (SELECT min(id) + 20 FROM entries WHERE kind = 1)";
    assert_eq!(database.execute(sql, []).unwrap(), 1);
    drop(database);
    let milepost = scratch.open().await;
    let preview = milepost.resume_preview(id, &Resume::latest()).await.unwrap();
    assert_eq!(preview.damaged.len(), 1, "{:?}", preview.damaged);
    assert!(preview.damaged[0].contains("before checkpoint"), "{:?}", preview.damaged);
    let resumed = milepost.resume(id, Resume::latest()).await.unwrap();
    assert_eq!(resumed.damaged, preview.damaged);
}

fn settings(yaml: &str) -> EngineOptions {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("milepost.yaml"), yaml).unwrap();
    let loader = Loader::new(dir.path().to_owned(), |_| None).set("store", "memory:");
    let settings = loader.file(dir.path().join("milepost.yaml")).load().unwrap();
    EngineOptions::from_settings(&settings, &|_| None).unwrap()
}

#[tokio::test]
async fn what_is_kept_free_for_the_prompt_counts_when_it_is_time_to_compact() {
    let scratch = Scratch::new();
    let mut sizes = Vec::new();
    for reserve in [0, 1000, 40_000] {
        let mut options = settings(&format!("budget:\n  reserve_tokens: {reserve}\n"));
        options.store.source = scratch.options.store.source.clone();
        let milepost = Milepost::open_with("memory:", options).await.unwrap();
        let session = milepost.create(NewSession::default()).await.unwrap();
        session.append(user("hello")).await.unwrap();
        sizes.push(milepost.estimate_request_size(session.id()).await.unwrap());
    }
    assert_eq!((sizes[1] - sizes[0], sizes[2] - sizes[0]), (1000, 40_000));
}

/// Every file below a directory, by its name, unpacked.
fn files(dir: &std::path::Path) -> Vec<(String, String)> {
    use std::io::Read;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let mut text = String::new();
        match path.extension().is_some_and(|end| end == "gz") {
            true => flate2::read::GzDecoder::new(&*bytes).read_to_string(&mut text).unwrap(),
            false => bytes.as_slice().read_to_string(&mut text).unwrap(),
        };
        found.push((path.to_string_lossy().into_owned(), text));
    }
    found
}

#[tokio::test]
async fn checkpoint_files_hold_what_the_policy_includes_and_large_ones_are_packed() {
    let export = async |yaml: &str| {
        let milepost = Milepost::open_with("memory:", settings(yaml)).await.unwrap();
        let session = milepost.create(NewSession::default()).await.unwrap();
        let side = Message::new(Role::User, "said aside").in_channel(Channel::new("researcher").unwrap());
        session.append_all(vec![user("said aloud"), side]).await.unwrap();
        session.set(&[parse_set("memory.found=treasure").unwrap()]).await.unwrap();
        session.checkpoint(NewMark::new(Trigger::Manual)).await.unwrap();
        let mut all = Vec::new();
        for layout in [Layout::Hosted, Layout::Task, Layout::Graph] {
            let dir = tempfile::tempdir().unwrap();
            milepost.export_tree(session.id(), layout, dir.path(), Present::Replace).await.unwrap();
            all.push(files(dir.path()));
        }
        all
    };
    let holds = |files: &[(String, String)], text: &str| files.iter().any(|(_, content)| content.contains(text));
    let is_packed = |files: &[(String, String)]| files.iter().any(|(name, _)| name.ends_with(".json.gz"));
    for files in export("").await {
        assert!(holds(&files, "said aloud") && holds(&files, "said aside") && holds(&files, "treasure"));
        assert!(!is_packed(&files), "they are small");
    }
    for files in export("checkpoints:\n  include_conversation_snapshots: false\n").await {
        assert!(holds(&files, "said aloud") && !holds(&files, "said aside") && holds(&files, "treasure"));
        assert!(!holds(&files, "researcher"));
    }
    for files in export("checkpoints:\n  include_full_memory: false\n").await {
        assert!(holds(&files, "said aside") && !holds(&files, "treasure"));
    }
    for files in export("compression:\n  threshold_bytes: 10\n").await {
        assert!(is_packed(&files) && holds(&files, "treasure"));
        let latest = files.iter().find(|(name, _)| name.ends_with("latest.json"));
        assert!(latest.is_none_or(|(_, text)| serde_json::from_str::<Value>(text).is_ok()), "{latest:?}");
    }
    for files in export("compression:\n  enabled: false\n  threshold_bytes: 10\n").await {
        assert!(!is_packed(&files));
    }
}

#[tokio::test]
async fn an_import_can_be_looked_at_before_it_is_made() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let file = scratch.dir.path().join("chat.json");
    let chat = json!({ "sessionId": "old-1", "messages": [
        { "role": "user", "content": "hello", "timestamp": "2025-01-01T00:00:00Z" },
        { "role": "assistant", "content": "my token is ghp_abcdefghijklmnopqrstuvwxyz0123456789" },
    ] });
    std::fs::write(&file, chat.to_string()).unwrap();
    let options = ImportOptions::default();
    let seen = milepost.check_older(&file, &options).await.unwrap();
    assert_eq!((seen.len(), seen[0].messages, seen[0].original.as_str()), (1, 2, "old-1"));
    assert!(seen[0].entries > 0);
    assert!(milepost.every_session(&SessionQuery::default()).await.unwrap().is_empty(), "nothing was stored");
    let made = milepost.import_older(&file, &options).await.unwrap();
    assert_eq!((made[0].messages, made[0].entries, &made[0].notes), (2, seen[0].entries, &seen[0].notes));
    let again = milepost.check_older(&file, &options).await.unwrap();
    assert_eq!((again[0].session, again[0].entries), (made[0].session, 0), "it is here already");
    let mut new = ImportOptions::default();
    new.ids = Ids::Remap;
    assert!(milepost.check_older(&file, &new).await.unwrap()[0].entries > 0);
    std::fs::write(&file, "not at all").unwrap();
    let refused = milepost.check_older(&file, &options).await.unwrap_err().to_string();
    assert_eq!(refused, milepost.import_older(&file, &options).await.unwrap_err().to_string());
}

#[tokio::test]
async fn sql_leaves_out_what_cannot_be_read_and_says_so() {
    let mut scratch = Scratch::new();
    scratch.options.store.keys = KeyOptions { master: Some(MasterKey::from_bytes([7; 32])), ..KeyOptions::default() };
    let milepost = scratch.open().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let session = milepost.create(NewSession::default()).await.unwrap();
        session.append(user("hello")).await.unwrap();
        ids.push(session.id());
        session.release().await.unwrap();
    }
    milepost.store().shred(ids[1]).await.unwrap();
    let table = milepost.sql(&ids, "select session_id from messages order by 1").await.unwrap();
    let mut expected = [ids[0], ids[2]].map(|id| vec![json!(id.to_string())]).to_vec();
    expected.sort_by_key(|row| row[0].to_string());
    assert_eq!(table.rows, expected);
    assert_eq!(table.left_out.len(), 1);
    assert!(table.left_out[0].0 == ids[1] && table.left_out[0].1.contains("shredded"), "{:?}", table.left_out);
}

#[tokio::test]
async fn secrets_of_messages_come_back_only_for_who_asks() {
    let mut scratch = Scratch::new();
    scratch.options.store.keys = KeyOptions { master: Some(MasterKey::from_bytes([7; 32])), ..KeyOptions::default() };
    scratch.options.vault = true;
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    let side = Message::new(Role::User, format!("it is {secret}")).in_channel(Channel::new("aside").unwrap());
    session.append(side).await.unwrap();
    let stored = milepost.store().messages(session.id(), &MessageQuery::default()).await.unwrap();
    assert!(!stored[0].message.text().contains(secret));
    let revealed = milepost.reveal_messages(stored.clone()).await.unwrap();
    assert_eq!(revealed[0].message.text(), format!("it is {secret}"));
    assert_eq!((revealed[0].at, &revealed[0].message.channel), (stored[0].at, &stored[0].message.channel));
}

#[tokio::test]
async fn many_changed_keys_are_worth_a_checkpoint_where_the_policy_says_so() {
    let many = |count: usize| -> Vec<_> {
        (0..count).map(|number| parse_set(&format!("memory.k{number}={number}")).unwrap()).collect()
    };
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let begin = async |policy: Value| {
        let new = NewSession { policy: Some(policy), ..NewSession::default() };
        milepost.create(new).await.unwrap()
    };
    let smart = async |changed: Result<milepost::Appended, milepost::Error>| {
        let Some(id) = changed.unwrap().checkpoint else { return false };
        milepost.store().mark(id).await.unwrap().checkpoint.trigger == Trigger::Smart
    };
    // However the state is changed, and also where the section was not there before.
    let on = json!({ "smart": { "enabled": true } });
    assert!(smart(begin(on.clone()).await.set(&many(11)).await).await, "more than ten");
    assert!(!smart(begin(on.clone()).await.set(&many(10)).await).await, "ten are not more than ten");
    let change = |state: &mut milepost::State| {
        let mut value = state.clone().into_value();
        (0..11).for_each(|number| value["memory"][format!("k{number}")] = json!(number));
        *state = value.try_into().unwrap();
    };
    assert!(smart(begin(on.clone()).await.update(change).await).await);
    let session = begin(on).await;
    session.set(&many(10)).await.unwrap();
    assert!(!smart(session.set(&many(10)).await).await, "nothing changed");
    let all = json!({ "memory": (0..30).map(|n| (format!("n{n}"), json!(n))).collect::<serde_json::Map<_, _>>() });
    assert!(smart(session.set_state(all.try_into().unwrap()).await).await);
    // Off unless it is turned on; 0 is never.
    assert!(!smart(begin(json!({})).await.set(&many(50)).await).await);
    let never = json!({ "smart": { "enabled": true, "changed_keys": 0 } });
    assert!(!smart(begin(never.clone()).await.set(&many(50)).await).await);
    assert!(!smart(begin(never).await.update(change).await).await);
}

#[tokio::test]
async fn an_import_of_older_files_tells_how_far_it_is() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let file = scratch.dir.path().join("chat.jsonl");
    let lines: String = (0..50).map(|number| format!("{{\"role\":\"user\",\"content\":\"m{number}\"}}\n")).collect();
    std::fs::write(&file, lines).unwrap();
    let mut told = Vec::new();
    let mut tell = |far: milepost::transfer::Progress| told.push((far.entries, far.entries_total));
    let made = milepost.import_older_with(&file, &ImportOptions::default(), &mut tell).await.unwrap();
    let wanted: Vec<(u64, u64)> = (0..made[0].entries).map(|number| (number, made[0].entries)).collect();
    assert_eq!(told, wanted);
    let mut told = Vec::new();
    milepost.store().reindex_with(&mut |done, total| told.push((done, total))).await.unwrap();
    assert_eq!(told, [(0, 1)]);
}

#[tokio::test]
async fn many_messages_go_in_steps_and_a_failure_says_how_many_are_stored() {
    let mut scratch = Scratch::new();
    (scratch.options.store.limits.max_batch_entries, scratch.options.store.limits.max_entry_bytes) = (5, 5000);
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let said = |count: usize| (0..count).map(|number| user(&format!("m{number}"))).collect::<Vec<_>>();
    session.append_many(said(11)).await.unwrap();
    assert_eq!(session.info().await.messages(), 11);
    let mut messages = said(11);
    messages[9] = user(&"far too long ".repeat(1000));
    let failed = session.append_many(messages).await.unwrap_err();
    let milepost::Error::Partly { stored, total, error } = &failed else { panic!("{failed}") };
    assert_eq!((*stored, *total, session.info().await.messages()), (8, 11, 19));
    assert!(matches!(**error, milepost::Error::Store(milepost::store::Error::TooLarge { .. })), "{failed}");
    assert!(failed.to_string().starts_with("8 of 11 messages were stored"), "{failed}");
    // All together or none where that was asked for, in words that fit.
    let refused = session.append_all(said(11)).await.unwrap_err().to_string();
    assert!(refused.contains("an append has 11 entries, the limit max_batch_entries is 5"), "{refused}");
    assert_eq!(session.info().await.messages(), 19);
}

#[tokio::test]
async fn checkpoints_are_cleared_whatever_a_branch_or_a_retention_needs_and_come_back() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let id = session.id();
    session.append(user("one")).await.unwrap();
    session.set(&[parse_set("memory.step=1").unwrap()]).await.unwrap();
    let point = session.checkpoint_labelled("here").await.unwrap();
    session.release().await.unwrap();
    let branch = milepost.branch(id, &Point::Checkpoint(point), NewSession::default()).await.unwrap();
    let branch_id = branch.id();
    branch.release().await.unwrap();
    let preview = milepost.store().clear_preview(id).await.unwrap();
    assert_eq!(milepost.clear_checkpoints(id).await.unwrap(), preview.checkpoints);
    assert!(preview.checkpoints.contains(&point) && preview.checkpoints.len() == 2);
    assert!(milepost.store().marks(id, &milepost::MarkQuery::default()).await.unwrap().is_empty());
    for one in [id, branch_id] {
        let resumed = milepost.resume(one, Resume::default()).await.unwrap();
        assert_eq!((resumed.messages, &resumed.state.into_value()["memory"]["step"]), (1, &json!(1)));
        resumed.session.release().await.unwrap();
    }
    assert_eq!(milepost.untrash_checkpoints(id).await.unwrap(), preview.checkpoints);
    assert_eq!(milepost.store().marks(id, &milepost::MarkQuery::default()).await.unwrap().len(), 2);
    assert!(milepost.store().verify().await.unwrap().is_whole());
}

/// What the store says in its log with events of its own nobody else can say.
#[tokio::test]
async fn events_of_the_stores_own_kinds_are_refused() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    let shared = milepost.create_shared(NewSession::default()).await.unwrap();
    for kind in ["session", "branched", "restored", "pruned", "unpruned", "purged", "redacted"] {
        let event = || milepost::Event::new(kind, json!({ "set": { "title": "forged" } }));
        let add = milepost::Add { event: Some(event()), ..Default::default() };
        let together = milepost::Together { events: vec![event()], ..Default::default() };
        let refused = [
            session.event(event()).await.unwrap_err(),
            session.record(together).await.unwrap_err(),
            shared.add(add).await.unwrap_err(),
        ];
        for error in refused {
            assert!(
                error.to_string().contains(&format!("{kind:?}")) && error.to_string().contains("another"),
                "{error}"
            );
        }
    }
    session.event(milepost::Event::new("Session", json!({}))).await.unwrap();
    assert_eq!(milepost.store().session(session.id()).await.unwrap().title, None);
}

/// A session that was deleted is kept for its branches, and nobody adds to it, also whoever wrote to it before.
#[tokio::test]
async fn what_was_deleted_but_for_its_branches_takes_nothing_more() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let elsewhere = scratch.open().await;
    let add = |text: &str| milepost::Add { messages: vec![user(text)], ..Default::default() };
    for more in 0..4 {
        let shared = milepost.create_shared(NewSession::default()).await.unwrap();
        let first = shared.add(add("one")).await.unwrap();
        shared.branch_at(first.first.seq, NewSession::default()).await.unwrap();
        for _ in 0..more {
            shared.add(add("more")).await.unwrap();
        }
        let head = shared.head().await.unwrap();
        elsewhere.delete(shared.id(), milepost::store::DeleteMode::KeepBranches, false).await.unwrap();
        for error in [
            shared.add(add("two")).await.unwrap_err(),
            shared.add_at(head, None, add("two")).await.unwrap_err(),
            shared.head().await.map(drop).unwrap_err(),
            shared.add(add("two")).await.unwrap_err(),
            shared.branch_at(first.first.seq, NewSession::default()).await.map(drop).unwrap_err(),
        ] {
            assert!(
                matches!(error, milepost::Error::Store(milepost::store::Error::NotFound { .. })),
                "{more}: {error}"
            );
        }
        assert_eq!(milepost.store().messages(shared.id(), &Default::default()).await.unwrap().len(), 1);
    }
    assert!(milepost.store().verify().await.unwrap().problems.is_empty());
}
