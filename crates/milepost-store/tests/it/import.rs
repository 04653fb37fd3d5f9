//! Importing a session as it was elsewhere: times, ids, numbers, states, old timelines, what was pruned.

use milepost_model::{
    Body, Checkpoint, Entry, EntryKind, Event, Position, Retention, Seq, SessionId, Timestamp, Trigger,
};
use milepost_store::backend::BlobId;
use milepost_store::{
    Append, Conflict, CopyEntry, CopyLine, Error, MarkQuery, MasterKey, MessageQuery, NewMark, NewSession, Options,
    SessionQuery, Store,
};
use serde_json::json;

use crate::support::{Scratch, claim, create, state, step, user};

/// Everything of a session: its timelines and their entries.
async fn read_out(store: &Store, session: SessionId) -> Vec<(CopyLine, Vec<CopyEntry>)> {
    let mut all = Vec::new();
    for line in store.copy_lines(session).await.unwrap() {
        let mut entries: Vec<CopyEntry> = Vec::new();
        loop {
            let from = Seq(line.begins().0 + entries.len() as u64);
            let page = store.copy_entries(&line, from).await.unwrap();
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        all.push((line, entries));
    }
    all
}

async fn write_in(store: &Store, session: SessionId, lines: &[(CopyLine, Vec<CopyEntry>)]) -> Result<(), Error> {
    let mut importer = store.import(session, lines[0].0.id, &claim()).await?;
    for (number, (line, entries)) in lines.iter().enumerate() {
        let opened = match line.parent.filter(|_| number > 0) {
            Some(parent) => importer.open_line(line.id, parent).await,
            None => Ok(()),
        };
        if let Err(error) = opened {
            importer.discard().await?;
            return Err(error);
        }
        for entry in entries {
            if let Err(error) = importer.add(entry.clone()).await {
                importer.discard().await?;
                return Err(error);
            }
        }
    }
    importer.finish().await?.release().await
}

async fn targets(scratch: &Scratch) -> Vec<Store> {
    let open = |url: String, options: Options| async move { Store::open(&url, options).await.unwrap() };
    let at = |name: &str| format!("sqlite:{}", scratch.dir.path().join(name).display());
    let mut secret = scratch.options.clone();
    secret.keys.master = Some(MasterKey::from_bytes([7; 32]));
    vec![
        open("memory:".into(), scratch.options.clone()).await,
        open(at("target.db"), scratch.options.clone()).await,
        open(at("secret.db"), secret).await,
    ]
}

/// What a reader sees of a session, besides its timelines.
async fn seen(store: &Store, id: SessionId) -> String {
    let session = store.session(id).await.unwrap();
    let messages = store.messages(id, &MessageQuery::default()).await.unwrap();
    let mut out = format!("{session:?}\n{messages:?}\n{:?}\n", store.state(id).await.unwrap());
    for trashed in [false, true] {
        for mark in store.marks(id, &MarkQuery { trashed, ..MarkQuery::default() }).await.unwrap() {
            let loaded = store.load(mark.checkpoint.id).await.unwrap();
            out += &format!("{mark:?} {:?}\n", loaded.state);
        }
    }
    out
}

async fn restored_session(scratch: &Scratch, store: &Store) -> SessionId {
    let writer = create(store).await;
    let mut marks = Vec::new();
    for number in 0..6 {
        scratch.clock.advance_ms(1000);
        marks.push(writer.append(step(number)).await.unwrap().checkpoints[0]);
    }
    let back = store.mark(marks[2]).await.unwrap().at;
    scratch.clock.advance_ms(1000);
    writer.restore(back).await.unwrap();
    let label = NewMark::new(Trigger::Other("mine".into())).label("after").description("went another way");
    writer.append(Append::new().message(user("again")).state(state(json!({"x": 1.5}))).mark(label)).await.unwrap();
    writer
        .append(Append::new().message(user("more")).patch(milepost_model::SessionPatch::new().title("T")))
        .await
        .unwrap();
    let id = writer.id();
    writer.release().await.unwrap();
    id
}

#[tokio::test]
async fn an_imported_session_is_the_session_it_was() {
    let scratch = Scratch::new();
    let from = scratch.open().await;
    let id = restored_session(&scratch, &from).await;
    let lines = read_out(&from, id).await;
    assert_eq!(lines.len(), 2);
    for to in targets(&scratch).await {
        scratch.clock.advance_ms(86_400_000);
        write_in(&to, id, &lines).await.unwrap();
        assert_eq!(seen(&to, id).await, seen(&from, id).await);
        assert_eq!(read_out(&to, id).await, lines);
        let verified = to.verify().await.unwrap();
        assert!(verified.is_whole(), "{:?}", verified.problems);
        // It can be gone on with.
        let writer = to.write(id, &claim()).await.unwrap();
        writer.append(step(9)).await.unwrap();
        assert!(to.verify_session(id).await.unwrap().is_whole());
        let again = write_in(&to, id, &lines).await;
        assert!(matches!(again, Err(Error::Conflict(Conflict::Exists { what: "session", .. }))), "{again:?}");
    }
}

#[tokio::test]
async fn a_branch_is_read_out_with_what_it_shares() {
    let scratch = Scratch::new();
    let from = scratch.open().await;
    let parent = restored_session(&scratch, &from).await;
    let at = from.marks(parent, &MarkQuery::default()).await.unwrap()[0].at;
    scratch.clock.advance_ms(5000);
    let branch = from.branch(at, NewSession::default(), &claim()).await.unwrap();
    scratch.clock.advance_ms(5000);
    branch.append(step(20)).await.unwrap();
    let lines = read_out(&from, branch.id()).await;
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0].0.session, parent);
    assert!(lines[1].0.end <= at.seq.next());
    for to in targets(&scratch).await {
        write_in(&to, branch.id(), &lines).await.unwrap();
        let (here, there) = (from.session(branch.id()).await.unwrap(), to.session(branch.id()).await.unwrap());
        assert_eq!(
            (here.created, here.active, &here.counts, here.checkpoints),
            (there.created, there.active, &there.counts, there.checkpoints)
        );
        let query = MessageQuery::default();
        assert_eq!(from.messages(branch.id(), &query).await.unwrap(), to.messages(branch.id(), &query).await.unwrap());
        assert!(to.verify().await.unwrap().is_whole());
        to.reindex().await.unwrap();
        assert_eq!(to.session(branch.id()).await.unwrap(), there);
    }
}

#[tokio::test]
async fn pruned_checkpoints_and_their_whole_states_come_along() {
    let scratch = Scratch::new();
    let from = scratch.open().await;
    let writer = create(&from).await;
    for number in 0..40u64 {
        scratch.clock.advance_ms(1000);
        let big = "x".repeat(600);
        let next = json!({ "n": number, format!("k{}", number % 3): format!("{big}{number}") });
        writer
            .append(Append::new().message(user("m")).state(state(next)).mark(NewMark::new(Trigger::Step)))
            .await
            .unwrap();
    }
    writer.prune(&Retention { max_checkpoints: 4, ..Retention::default() }).await.unwrap();
    scratch.clock.advance_ms(1000);
    let purged = writer.purge(Timestamp(i64::MAX)).await.unwrap();
    assert!(purged.keyframes > 0, "{purged:?}");
    writer.append(step(50)).await.unwrap();
    writer.prune(&Retention { max_checkpoints: 2, ..Retention::default() }).await.unwrap();
    let id = writer.id();
    let lines = read_out(&from, id).await;
    assert!(lines[0].1.iter().any(|copied| copied.whole.is_some()));
    assert!(lines[0].1.iter().any(|copied| copied.entry.body.is_none()));
    for to in targets(&scratch).await {
        write_in(&to, id, &lines).await.unwrap();
        assert_eq!(seen(&to, id).await, seen(&from, id).await);
        assert_eq!(read_out(&to, id).await, lines);
        let verified = to.verify().await.unwrap();
        assert!(verified.is_whole(), "{:?}", verified.problems);
    }
}

#[tokio::test]
async fn a_session_is_gone_on_with_where_its_copy_ended() {
    let scratch = Scratch::new();
    let from = scratch.open().await;
    let id = restored_session(&scratch, &from).await;
    let lines = read_out(&from, id).await;
    for to in targets(&scratch).await {
        let first = vec![(lines[0].0.clone(), lines[0].1[..5].to_vec())];
        write_in(&to, id, &first).await.unwrap();
        let mut importer = to.import_more(id, &claim()).await.unwrap();
        for entry in &lines[0].1[5..] {
            importer.add(entry.clone()).await.unwrap();
        }
        importer.open_line(lines[1].0.id, lines[1].0.parent.unwrap()).await.unwrap();
        for entry in &lines[1].1 {
            importer.add(entry.clone()).await.unwrap();
        }
        importer.finish().await.unwrap().release().await.unwrap();
        assert_eq!(seen(&to, id).await, seen(&from, id).await);
        assert!(to.verify().await.unwrap().is_whole());
    }
}

#[tokio::test]
async fn what_is_wrong_is_refused_and_leaves_nothing() {
    let scratch = Scratch::new();
    let from = scratch.open().await;
    let id = restored_session(&scratch, &from).await;
    let good = read_out(&from, id).await;
    type Lines = Vec<(CopyLine, Vec<CopyEntry>)>;
    let of_kind = |kind: EntryKind| good[0].1.iter().rposition(|c| c.entry.kind == kind).unwrap();
    let mark_at = of_kind(EntryKind::Mark);
    let state_at = of_kind(EntryKind::State);
    let mark = |lines: &mut Lines, f: &dyn Fn(&mut Checkpoint)| match &mut lines[0].1[mark_at].entry.body {
        Some(Body::Mark(mark)) => f(mark),
        _ => panic!("no mark"),
    };
    let first_mark = match good[0].1.iter().find_map(|c| c.entry.body.as_ref().filter(|b| b.kind() == EntryKind::Mark))
    {
        Some(Body::Mark(mark)) => mark.id,
        _ => panic!("no mark"),
    };
    type Spoil<'a> = Box<dyn Fn(&mut Lines) + 'a>;
    let spoils: Vec<(&str, Spoil)> = vec![
        ("lies before", Box::new(|l| l[0].1[3].entry.time = Timestamp(5))),
        ("the clock shows", Box::new(|l| l[1].1.last_mut().unwrap().entry.time = Timestamp(i64::MAX))),
        ("comes next", Box::new(|l| drop(l[0].1.remove(2)))),
        ("hash", Box::new(|l| mark(l, &|m| m.state.0[0] ^= 1))),
        ("number", Box::new(|l| mark(l, &|m| m.number = u64::MAX))),
        ("add up", Box::new(|l| mark(l, &|m| m.counts = [(milepost_model::Channel::MAIN, u64::MAX)].into()))),
        ("exists already", Box::new(|l| mark(l, &|m| m.id = first_mark))),
        ("never erased", Box::new(|l| l[0].1[1].entry.body = None)),
        ("something else", Box::new(|l| l[0].1[1].entry.kind = EntryKind::Event)),
        ("hash", Box::new(|l| l[0].1[state_at].entry.body = l[0].1[of_kind(EntryKind::State) - 3].entry.body.clone())),
        ("is not there", Box::new(|l| l[1].0.parent = Some(Position { seq: Seq(9999), ..l[1].0.parent.unwrap() }))),
        (
            "cannot be set",
            Box::new(|l| {
                let event = Event::new("restored", json!({ "set": { "id": "ses_x" } }));
                l[1].1[0].entry.body = Some(Body::Event(event));
            }),
        ),
        (
            "never erased",
            Box::new(|l| {
                let Entry { at, time, .. } = l[0].1[0].entry;
                l[0].1[0].entry = Entry { at, time, kind: EntryKind::Message, body: None };
            }),
        ),
    ];
    for to in targets(&scratch).await {
        for (why, spoil) in &spoils {
            let mut lines = good.clone();
            spoil(&mut lines);
            let error = write_in(&to, id, &lines).await.unwrap_err();
            assert!(error.to_string().contains(why), "{why}: {error}");
            assert!(to.backend().session_ids(to.workspace()).await.unwrap().is_empty(), "{why}");
        }
        write_in(&to, id, &good).await.unwrap();
    }
}

#[tokio::test]
async fn an_import_that_was_broken_off_is_hidden_and_can_be_begun_again() {
    let scratch = Scratch::new();
    let from = scratch.open().await;
    let writer = create(&from).await;
    for number in 0..300 {
        writer.append(step(number)).await.unwrap();
    }
    let id = writer.id();
    let lines = read_out(&from, id).await;
    for to in targets(&scratch).await {
        let mut importer = to.import(id, lines[0].0.id, &claim()).await.unwrap();
        for entry in &lines[0].1[..700] {
            importer.add(entry.clone()).await.unwrap();
        }
        drop(importer);
        assert_eq!(to.backend().session_ids(to.workspace()).await.unwrap(), vec![id]);
        assert!(to.sessions(&SessionQuery::default()).await.unwrap().sessions.is_empty());
        // Someone may be at work on it: it is neither collected nor replaced before the lease is over.
        assert!(to.collect(&claim(), false).await.unwrap().sessions.is_empty());
        assert!(matches!(to.import(id, lines[0].0.id, &claim()).await.err(), Some(Error::Held { .. })));
        scratch.clock.advance_ms(60_000);
        write_in(&to, id, &lines).await.unwrap();
        assert_eq!(seen(&to, id).await, seen(&from, id).await);
        assert_eq!(to.sessions(&SessionQuery::default()).await.unwrap().sessions.len(), 1);
        assert!(to.verify().await.unwrap().is_whole());
    }
}

#[tokio::test]
async fn blobs_of_events_are_read_out_and_put_in() {
    let scratch = Scratch::new();
    let from = scratch.open().await;
    let writer = create(&from).await;
    let blob = writer.put_blob(&[9; 100_000]).await.unwrap();
    writer.append(Append::new().event_with(Event::new("files", json!({})), vec![blob])).await.unwrap();
    let lines = read_out(&from, writer.id()).await;
    let line = &lines[0];
    assert_eq!(line.1[1].refs, vec![blob]);
    for to in targets(&scratch).await {
        let mut importer = to.import(writer.id(), line.0.id, &claim()).await.unwrap();
        importer.add(line.1[0].clone()).await.unwrap();
        let bytes = from.copy_blob(writer.id(), blob).await.unwrap();
        let there: BlobId = importer.put_blob(&bytes).await.unwrap();
        importer.add(CopyEntry { refs: vec![there], ..line.1[1].clone() }).await.unwrap();
        importer.finish().await.unwrap().release().await.unwrap();
        assert_eq!(to.copy_blob(writer.id(), there).await.unwrap(), bytes);
        assert!(to.verify().await.unwrap().is_whole());
    }
}

#[tokio::test]
async fn an_event_cannot_set_what_follows_from_the_log() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for kind in ["session", "restored", "branched"] {
        let event = Event::new(kind, json!({ "set": { "created": 5 } }));
        let error = writer.append(Append::new().event(event)).await.unwrap_err();
        assert!(error.to_string().contains("cannot be set"), "{kind}: {error}");
    }
    assert!(store.session(writer.id()).await.is_ok());
}
