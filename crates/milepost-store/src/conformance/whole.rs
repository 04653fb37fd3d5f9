//! Rules about the whole: workspaces, texts and sizes of every kind, limits, closing, compacting.

use milepost_model::{
    Block, Channel, CheckpointId, EntryKind, Epoch, Message, Role, SessionId, SessionPatch, Timestamp, Trigger,
    WorkspaceId,
};
use serde_json::{Value, json};

use super::scene::*;
use super::{Failure, Outcome, Place};
use crate::backend::*;
use crate::error::Error;
use crate::store::{Append, Claim, MessageQuery, NewMark, NewSession, Store};

pub(super) fn claim() -> Claim {
    Claim::new("the conformance suite")
}

pub(super) fn user(text: impl Into<String>) -> Message {
    Message::new(Role::User, text)
}

pub(super) fn state(value: Value) -> Outcome<milepost_model::State> {
    Ok(milepost_model::State::try_from(value).map_err(Error::from)?)
}

/// Fails the rule when verification finds something.
pub(super) async fn verify(store: &Store) -> Outcome {
    let verified = store.verify().await?;
    ensure!(verified.is_whole(), "verification found {:?}", verified.problems);
    Ok(())
}

pub(super) async fn texts(store: &Store, session: SessionId) -> Outcome<Vec<String>> {
    let messages = store.messages(session, &MessageQuery::default()).await?;
    Ok(messages.iter().map(|found| found.message.text().into_owned()).collect())
}

/// The same ids in two workspaces are different things, and neither sees the other.
pub async fn workspaces_are_isolated(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let invalid = |error: milepost_model::IdError| Failure::new(error.to_string());
    let names = [WorkspaceId::new("one").map_err(invalid)?, WorkspaceId::new("two").map_err(invalid)?];
    same!(scene.backend.workspaces().await?, [], "the workspaces of an empty place");
    let line = Line { session: scene.id(), timeline: scene.id(), length: 0, epoch: None };
    let branch = Line { session: scene.id(), timeline: scene.id(), length: 2, epoch: None };
    let checkpoint: CheckpointId = scene.id();
    let opening = scene.opening(&line, None);
    let marked = scene.batch(&Line { length: 1, ..line }, vec![entry(EntryKind::Mark, "mark")]);
    let branched = scene.opening(&branch, Some(line.at(1)));
    let key = RecordKey { kind: "token".into(), key: "a".into() };
    for (number, name) in names.iter().enumerate() {
        let own = format!("of {name}");
        let mut opening = opening.clone();
        opening.entries[0].body = own.clone().into();
        opening.row = Some(SessionRow { title: Some(own.clone()), ..row(line.session, START) });
        scene.backend.append(name, opening).await?;
        let mut marked = marked.clone();
        marked.row = Some(SessionRow { title: Some(own.clone()), ..row(line.session, START) });
        marked.entries[0].refs = vec![BlobId([number as u8; 32])];
        marked.marks = vec![MarkRow { label: Some(own.clone()), ..mark(line.at(1), checkpoint) }];
        marked.keyframes = vec![keyframe(line.at(1), &own)];
        marked.blobs = vec![blob(7, own.clone())];
        scene.backend.append(name, marked).await?;
        scene.backend.append(name, branched.clone()).await?;
        let record = Record { key: key.clone(), version: number as u64 + 1, due: None, value: own.into() };
        scene.backend.put_record(name, record, None).await?;
    }
    scene.reopen().await?;
    same!(scene.backend.workspaces().await?, names, "the workspaces");
    for (number, name) in names.iter().enumerate() {
        let own = format!("of {name}");
        scene.workspace = name.clone();
        same!(scene.head(&line).await?.row.title, Some(own.clone()), "the session of {name}");
        same!(scene.bodies(line.timeline).await?.first(), Some(&own), "the log of {name}");
        let found = scene.backend.mark(name, checkpoint).await?;
        same!(found.and_then(|row| row.label), Some(own.clone()), "the mark of {name}");
        let found = scene.backend.keyframe(name, line.at(1)).await?;
        same!(found.map(|frame| frame.body), Some(own.clone().into_bytes()), "the keyframe of {name}");
        let found = scene.backend.get_blobs(name, vec![BlobId([7; 32])]).await?;
        same!(found, [Some(own.clone().into_bytes())], "the blob of {name}");
        let found = scene.backend.record(name, key.clone()).await?;
        same!(found.map(|record| record.version), Some(number as u64 + 1), "the record of {name}");
        same!(scene.backend.blob_refs(name).await?, [BlobId([number as u8; 32])], "the blobs that {name} needs");
        same!(scene.backend.children(name, line.session).await?.len(), 1, "the branches in {name}");
        let usage = scene.backend.usage(name).await?;
        same!((usage.sessions.len(), usage.blobs.entries, usage.records.entries), (2, 1, 1), "the usage of {name}");
    }
    let filter = SessionFilter { limit: 9, ..SessionFilter::default() };
    same!(scene.backend.sessions(&WorkspaceId::default(), filter).await?, [], "a third workspace");

    let second = picture(&*scene.backend, &names[1]).await?;
    let first = &names[0];
    let taken = take_over(scene.id(), "of one", 1000);
    let epoch = scene.backend.lease(first, line.session, taken).await?.epoch;
    let later = scene.source.now().plus_ms(1);
    same!(scene.backend.drop_blobs(first, vec![BlobId([7; 32])], later).await?, 1, "blobs dropped in one");
    scene.backend.delete_record(first, key, 1).await?;
    scene.backend.remove(first, branch.session, Epoch(0)).await?;
    scene.backend.remove(first, line.session, epoch).await?;
    same!(picture(&*scene.backend, &names[1]).await?, second, "the second workspace after the first was emptied");
    same!(scene.backend.workspaces().await?, names[1..], "the workspaces that are left");
    Ok(())
}

/// A backend with a text index finds what was acknowledged; one without says that it has none.
pub async fn text_is_found_where_there_is_an_index(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut store = scene.store().await?;
    let (one, two) =
        (store.create(NewSession::default(), &claim()).await?, store.create(NewSession::default(), &claim()).await?);
    let said =
        ["the linker took forty seconds", "use a cache \u{1f9ed}", "linkage and caches", "Straße \"quoted\" NOT"];
    for text in said {
        one.append(Append::new().message(user(text))).await?;
    }
    two.append(Append::new().message(user("the cache again"))).await?;
    let (one, two) = (one.id(), two.id());
    let query = |terms: &[(&str, bool)], sessions: Vec<_>, limit| TextQuery {
        terms: terms.iter().map(|(text, prefix)| Term { text: (*text).to_owned(), prefix: *prefix }).collect(),
        sessions,
        limit,
        ..TextQuery::default()
    };
    for _ in 0..2 {
        let has_index = scene.backend.features().text;
        let found = scene.backend.search(&scene.workspace, query(&[("cache", false)], vec![], 9)).await?;
        same!(found.is_some(), has_index, "whether a search gives an answer");
        if has_index {
            let cases = [
                (query(&[("cache", false)], vec![], 9), 2),
                (query(&[("cache", false)], vec![two], 9), 1),
                (query(&[("cache", true)], vec![], 9), 3),
                (query(&[("cache", true)], vec![one, two], 2), 2),
                (query(&[("linker took", false)], vec![], 9), 1),
                (query(&[("took linker", false)], vec![], 9), 0),
                (query(&[("linker", false), ("seconds", false)], vec![], 9), 1),
                (query(&[("linker", false), ("cache", false)], vec![], 9), 0),
                (query(&[("\"quoted\" NOT", false)], vec![], 9), 1),
                (query(&[("NOT", false)], vec![], 9), 1),
                (query(&[("*", false)], vec![], 9), 0),
                (query(&[], vec![], 9), 0),
                (query(&[("nothing\0such", false)], vec![], 9), 0),
            ];
            for (query, count) in cases {
                let found = scene.backend.search(&scene.workspace, query.clone()).await?.unwrap_or_default();
                same!(found.len(), count, "how many messages {query:?} finds");
                ensure!(found.iter().all(|hit| [one, two].contains(&hit.session)), "a hit in another session");
            }
        }
        store = scene.reopen_store(&store).await?;
    }
    // Roles and times are asked of the index: a limit is one of those that fit, not of those that are sifted afterwards.
    if scene.backend.features().text {
        let writer = store.write(one, &claim().take_over()).await?;
        let at = writer.append(Append::new().message(Message::new(Role::Assistant, "cache, cache and others"))).await?;
        for text in ["cache", "cache cache"] {
            writer.append(Append::new().message(user(text))).await?;
        }
        let said = TextQuery { role: Some("assistant".to_owned()), ..query(&[("cache", false)], vec![], 1) };
        let found = scene.backend.search(&scene.workspace, said.clone()).await?.unwrap_or_default();
        same!(found.iter().map(|hit| hit.at).collect::<Vec<_>>(), [at.first], "the one of a role");
        let never = [
            TextQuery { role: Some("tool".to_owned()), ..said.clone() },
            TextQuery { to: Some(Timestamp(0)), ..said.clone() },
            TextQuery { from: Some(Timestamp(i64::MAX)), ..said },
        ];
        for query in never {
            let found = scene.backend.search(&scene.workspace, query.clone()).await?.unwrap_or_default();
            same!(found.len(), 0, "{query:?}");
        }
    }
    // What is indexed has a limit, and whoever searches can tell where it was met.
    same!(scene.backend.text_gaps(&scene.workspace).await?, Vec::<(SessionId, TextGap)>::new(), "what the index lacks");
    let long = format!("first {} last", "word ".repeat(300_000));
    store.write(two, &claim().take_over()).await?.append(Append::new().message(user(&long))).await?;
    let found = scene.backend.search(&scene.workspace, query(&[("first", false)], vec![], 9)).await?;
    let gaps = scene.backend.text_gaps(&scene.workspace).await?;
    same!(found.map(|hits| hits.len()), scene.backend.features().text.then_some(1), "the beginning of a long text");
    let expected = if scene.backend.features().text { vec![(two, TextGap::Cut)] } else { Vec::new() };
    same!(gaps, expected, "what the index lacks of a long text");
    verify(&store).await
}

/// Texts of every kind come back as they were: NUL, emoji, right-to-left, controls, a megabyte.
pub async fn odd_texts_come_back_as_they_were(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut store = scene.store().await?;
    let patch =
        SessionPatch::new().title("\u{202e}\u{5e9}\u{5dc}\u{5d5}\u{5dd} O'Brien \"%_\\").tags(["a'b", "%", "日本語"]);
    let writer = store.create(NewSession { id: None, patch: patch.clone() }, &claim()).await?;
    let id = writer.id();
    let odd: Vec<String> = vec![
        String::new(),
        "\0".into(),
        "a\0b\0".into(),
        "\u{1f9ed}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}".into(),
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{202e}abc\u{202c} \u{627}\u{644}".into(),
        "\u{1}\u{2}\t\r\n\u{7f}\u{85}\u{2028}\u{feff}".into(),
        "{\"type\": \"message\"} ' \" \\ \\u0000 %s ${x}".into(),
        "e\u{301} \u{e9} \u{fffd} \u{10ffff}".into(),
        "x".repeat(1 << 20),
        "\u{1f9ed}\0".repeat(200_000),
        " \n ".repeat(1000),
    ];
    let odd_channel = Channel::new("\u{1f9ed} side/../'\"").map_err(Error::from)?;
    let mut sent = Vec::new();
    for text in &odd {
        let blocks = vec![
            Block::text(text.clone()),
            Block::tool_call("1", text.clone(), json!({ "x": text, text.clone(): [text] })),
            Block::from(json!({ "type": "of the future", "text": text })),
        ];
        let mut extra = user(text.clone()).in_channel(odd_channel.clone());
        extra.extra.insert(text.clone(), json!({ "kept": text }));
        for message in [user(text.clone()), Message::blocks(Role::Other("odd \u{1f9ed}".into()), blocks), extra] {
            writer.append(Append::new().message(message.clone())).await?;
            sent.push(message);
        }
        let odd_state = state(json!({ "memory": { "text": text, "\0key": [text, null, 1e300, -0.0, u64::MAX] } }))?;
        writer
            .append(Append::new().state(odd_state.clone()).mark(NewMark::new(Trigger::Step).description(text.clone())))
            .await?;
        same!(store.state(id).await?, odd_state, "a state with an odd text");
    }
    writer.release().await?;
    for _ in 0..2 {
        let found = store.messages(id, &MessageQuery::default()).await?;
        same!(found.len(), sent.len(), "the number of messages");
        for (found, sent) in found.iter().zip(&sent) {
            same!(found.message, *sent, "a message with an odd text");
        }
        let query = MessageQuery { channel: Some(odd_channel.clone()), ..MessageQuery::default() };
        same!(store.messages(id, &query).await?.len(), odd.len(), "the messages of a channel with an odd name");
        let session = store.session(id).await?;
        same!(session.title.as_deref(), patch.0.get("title").and_then(Value::as_str), "an odd title");
        same!(session.tags.len(), 3, "odd tags");
        for (mark, text) in store
            .marks(id, &crate::store::MarkQuery { oldest_first: true, ..Default::default() })
            .await?
            .iter()
            .zip(&odd)
        {
            same!(mark.checkpoint.description.as_ref(), Some(text), "an odd description");
        }
        verify(&store).await?;
        store = scene.reopen_store(&store).await?;
    }
    Ok(())
}

/// Messages, states and blobs of several megabytes come back whole.
pub async fn large_payloads_come_back_whole(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let mut store = scene.store().await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    let id = writer.id();
    let mut noise = vec![0u8; 3 << 20];
    scene.source.fill(&mut noise);
    let text: String = noise.iter().map(|byte| char::from(b'!' + byte % 90)).collect();
    let large =
        state(json!({ "memory": { "text": text, "small": 1 }, "tools": { "list": vec![text.get(..999); 99] } }))?;
    writer
        .append(Append::new().message(user(text.clone())).state(large.clone()).mark(NewMark::new(Trigger::Step)))
        .await?;
    let kept = writer.put_blob(&noise).await?;
    let event = milepost_model::Event::new("file", json!({ "name": "large" }));
    writer.append(Append::new().event_with(event, vec![kept])).await?;
    for inline in [16_000usize, 16_384, 16_385, 17_000] {
        let edge = text.get(..inline).unwrap_or_default();
        writer.append(Append::new().message(user(edge))).await?;
    }
    writer.release().await?;
    for _ in 0..2 {
        let found = store.messages(id, &MessageQuery::default()).await?;
        ensure!(found.first().is_some_and(|found| found.message.text() == text), "a large message came back changed");
        let sizes: Vec<usize> = found.iter().map(|found| found.message.text().len()).collect();
        same!(sizes, [3 << 20, 16_000, 16_384, 16_385, 17_000], "the sizes of the messages");
        ensure!(store.load_latest(id, &Default::default()).await?.state == large, "a large state came back changed");
        let writer = store.write(id, &claim().take_over()).await?;
        ensure!(writer.get_blob(kept).await? == noise, "a large blob came back changed");
        writer.release().await?;
        verify(&store).await?;
        store = scene.reopen_store(&store).await?;
    }
    Ok(())
}

/// What is beyond a limit is refused with an error that names the limit, and nothing of it is stored.
pub async fn limits_are_errors_that_store_nothing(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut options = scene.options();
    options.limits.max_entry_bytes = 100_000;
    options.limits.max_blob_bytes = 100_000;
    options.limits.max_batch_bytes = 600_000;
    let store = Store::with_backend(scene.backend.clone(), options).await?;
    let writer = store.create(NewSession::default(), &claim()).await?;
    let noise = |len: usize| {
        let mut bytes = vec![0u8; len];
        scene.source.fill(&mut bytes);
        bytes.iter().map(|byte| char::from(b'a' + byte % 26)).collect::<String>()
    };
    let before = scene.picture().await?;
    let limit = |outcome: Result<crate::store::Receipt, Error>| match outcome {
        Err(Error::TooLarge { limit, .. }) => limit.to_owned(),
        Err(Error::Invalid { .. }) => "invalid".to_owned(),
        other => format!("{other:?}"),
    };
    let many = |count: usize| (0..count).fold(Append::new(), |append, _| append.message(user("m")));
    same!(limit(writer.append(many(10_001)).await), "max_batch_entries", "10,001 entries");
    let large = Append::new().message(user("small")).message(user("x".repeat(100_001)));
    same!(limit(writer.append(large).await), "max_entry_bytes", "an entry that is too large");
    let large = (0..16).fold(Append::new(), |append, _| append.message(user(noise(99_000))));
    same!(limit(writer.append(large).await), "max_batch_bytes", "a batch that is too large");
    let long = Append::new().mark(NewMark::new(Trigger::Step).label("l".repeat(1025)));
    same!(limit(writer.append(long).await), "max_name_bytes", "a label that is too long");
    let odd = Append::new().patch(SessionPatch::new().title("a\0b"));
    same!(limit(writer.append(odd).await), "invalid", "a title with a NUL");
    let odd = Append::new().patch(SessionPatch::new().with("status", json!("asleep")));
    same!(limit(writer.append(odd).await), "invalid", "an unknown status");
    same!(limit(writer.append(Append::new()).await), "invalid", "an append of nothing");
    refused!(writer.put_blob(&[0; 100_001]).await, Error::TooLarge { .. }, "a blob that is too large");
    let large = store.put_record("token", "a", None, None, &vec![0; (1 << 20) + 1]).await;
    refused!(large, Error::TooLarge { limit: "max_record_bytes", .. }, "a record that is too large");
    let long = store.put_record("token", &"k".repeat(513), None, None, b"").await;
    refused!(long, Error::TooLarge { limit: "max_key_bytes", .. }, "a key that is too long");
    same!(scene.picture().await?, before, "what is there after everything was refused");

    writer.append(many(10_000)).await?;
    same!(store.messages(writer.id(), &MessageQuery::default()).await?.len(), 10_000, "an append at the limit");
    verify(&store).await
}

/// After a close everything is refused with an error that says so, and closing again is no error.
pub async fn a_closed_store_says_so(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let line = scene.begin().await?;
    let other = scene.another().await?;
    let before = picture(&*other, &scene.workspace).await?;
    scene.backend.close().await?;
    scene.backend.close().await?;
    let (backend, workspace) = (&scene.backend, &scene.workspace);
    let batch = scene.batch(&line, vec![entry(EntryKind::Event, "late")]);
    refused!(scene.append(batch).await, Error::Closed, "an append");
    refused!(backend.read(workspace, everything(line.timeline)).await, Error::Closed, "a read");
    refused!(backend.session(workspace, line.session).await, Error::Closed, "reading a session");
    refused!(backend.timelines(workspace, line.session).await, Error::Closed, "listing timelines");
    refused!(scene.lease(&line, take(scene.id(), "late", 1)).await, Error::Closed, "a lease");
    refused!(backend.remove(workspace, line.session, Epoch(0)).await, Error::Closed, "a removal");
    refused!(backend.put_blobs(workspace, vec![blob(1, "late")]).await, Error::Closed, "putting a blob");
    refused!(backend.get_blobs(workspace, vec![BlobId([1; 32])]).await, Error::Closed, "getting a blob");
    let key = RecordKey { kind: "token".into(), key: "a".into() };
    refused!(backend.record(workspace, key.clone()).await, Error::Closed, "reading a record");
    let record = Record { key, version: 1, due: None, value: Vec::new() };
    refused!(backend.put_record(workspace, record, None).await, Error::Closed, "writing a record");
    refused!(backend.sessions(workspace, SessionFilter::default()).await, Error::Closed, "listing sessions");
    refused!(backend.workspaces().await, Error::Closed, "listing workspaces");
    refused!(backend.usage(workspace).await, Error::Closed, "adding up the usage");
    refused!(backend.check(Depth::Deep).await, Error::Closed, "a check");
    refused!(backend.compact().await, Error::Closed, "compacting");
    same!(picture(&*other, &scene.workspace).await?, before, "what another process sees");
    other.close().await?;
    Ok(())
}

/// What another process writes, indexes and removes is not taken for damage.
pub async fn a_check_finds_nothing_while_another_process_writes(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let other = Store::with_backend(scene.another().await?, scene.options()).await?;
    for round in 0..40 {
        // The first writes once, and then only looks at what the other does.
        let writing = if round == 0 { &store } else { &other };
        let writer = writing.create(NewSession::default(), &claim()).await?;
        for number in 0..4 {
            writer.append(Append::new().message(user(format!("round {round}, message {number}")))).await?;
        }
        let id = writer.id();
        writer.release().await?;
        let term = Term { text: format!("round {round}"), prefix: false };
        let query = TextQuery { terms: vec![term], sessions: vec![id], limit: 9, ..TextQuery::default() };
        if let Some(found) = writing.backend().search(&scene.workspace, query).await? {
            same!(found.len(), 4, "the messages that are found in round {round}");
        }
        if round % 4 == 3 {
            other.delete(id, Default::default(), &claim(), false).await?;
        }
        same!(store.backend().check(Depth::Deep).await?, Vec::<Finding>::new(), "what a check finds in round {round}");
        same!(
            other.backend().check(Depth::Deep).await?,
            Vec::<Finding>::new(),
            "what the other's check finds in round {round}"
        );
    }
    verify(&store).await?;
    verify(&other).await?;
    other.close().await?;
    Ok(())
}

/// Compacting gives space back and changes nothing; afterwards the store is still found whole.
pub async fn compacting_changes_nothing(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let store = scene.store().await?;
    let mut kept = None;
    for number in 0..6 {
        let writer = store.create(NewSession::default(), &claim()).await?;
        for step in 0..20 {
            let text = format!("{number} {step} {}", "many words ".repeat(200));
            writer.append(Append::new().message(user(text)).mark(NewMark::new(Trigger::Step))).await?;
        }
        let id = writer.id();
        writer.release().await?;
        if number % 2 == 0 {
            store.delete(id, Default::default(), &claim(), false).await?;
        } else {
            kept = Some(id);
        }
    }
    let before = scene.picture().await?;
    scene.backend.compact().await?;
    same!(scene.picture().await?, before, "what is there after compacting");
    same!(scene.backend.check(Depth::Deep).await?, Vec::<Finding>::new(), "what a check finds");
    let store = scene.reopen_store(&store).await?;
    same!(scene.picture().await?, before, "what is there after reopening");
    verify(&store).await?;
    let Some(id) = kept else { return Ok(()) };
    let writer = store.write(id, &claim()).await?;
    writer.append(Append::new().message(user("it goes on"))).await?;
    Ok(())
}
