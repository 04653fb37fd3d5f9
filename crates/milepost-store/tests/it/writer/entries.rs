//! What comes back of what was written: states, marks, fields, every kind of entry, times.

use super::*;

#[tokio::test]
async fn states_come_whole_or_as_deltas_and_misfits_are_refused() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let whole = json!({"memory": {"list": [1, 2], "text": "a"}, "agent": {"status": "running"}});
    writer.append(Append::new().state(state(whole.clone()))).await.unwrap();
    let delta = Delta::builder().append("/memory/list", [3]).append_str("/memory/text", "b").remove("/agent/status");
    writer.append(Append::new().delta(delta.build().unwrap())).await.unwrap();
    let expected = json!({"memory": {"list": [1, 2, 3], "text": "ab"}, "agent": {}});
    assert_eq!(store.state(id).await.unwrap(), state(expected.clone()));

    let misfits = [
        Delta::builder().remove("/agent/status"),
        Delta::builder().append("/agent", [1]),
        Delta::builder().splice("/memory/list", 2, 9, [0]),
        Delta::builder().append_str("/memory/list/0", "x"),
        // The first part fits and is taken back with the second.
        Delta::builder().set("/memory/new", 1).append("/memory/text", [1]),
    ];
    let length = store.entries(id, Seq(0), Seq::MAX).await.unwrap().len();
    for misfit in misfits {
        let error = writer.append(Append::new().delta(misfit.build().unwrap())).await.unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert_eq!(writer.state().await.unwrap(), state(expected.clone()));
    }
    // Something that is not a state: the root must stay an object.
    let root = writer.append(Append::new().delta(Delta::builder().set("", 7).build().unwrap())).await;
    assert!(root.is_err(), "a state that is no object was stored");
    assert_eq!(writer.state().await.unwrap(), state(expected.clone()));

    let receipt = writer.append(Append::new().state(state(expected.clone()))).await.unwrap();
    assert_eq!(receipt.length, receipt.first.seq.0, "an unchanged state adds no entry");
    let receipt = writer.append(Append::new().delta(Delta::default())).await.unwrap();
    assert_eq!(receipt.length, receipt.first.seq.0);
    assert_eq!(store.entries(id, Seq(0), Seq::MAX).await.unwrap().len(), length);
    let marked =
        writer.append(Append::new().state(state(expected.clone())).mark(NewMark::new(Trigger::Step))).await.unwrap();
    assert_eq!(store.load(marked.checkpoints[0]).await.unwrap().state, state(expected.clone()));
    assert_eq!(store.state(id).await.unwrap(), state(expected));
    assert_whole(&store).await;
}

#[tokio::test]
async fn deep_and_wide_states_come_back_as_they_were() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let nest = |levels: usize| {
        (0..levels).fold(json!("core"), |inner, n| if n % 2 == 0 { json!([inner]) } else { json!({ "k": inner }) })
    };
    let wide: Map<String, Value> =
        (0..5000).map(|n| (format!("key {n}"), json!({ "n": n, "x": n as f64 / 7.0 }))).collect();
    let document = json!({
        "deep": nest(250), "wide": wide, "numbers": [u64::MAX, i64::MIN, -0.0, 1e300, 0.1],
        "text": ["\u{0}", "\u{1f980}", "\r\n\"\\", ""], "": { "": null },
    });
    writer.append(Append::new().state(state(document.clone())).mark(NewMark::new(Trigger::Step))).await.unwrap();
    let error = writer.append(Append::new().state(state(json!({ "deep": nest(300) })))).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let mut expected = document;
    for n in 0..20 {
        expected["wide"][format!("key {}", n * 17)] = json!([n]);
        let delta = Delta::builder().set(format!("/wide/key {}", n * 17).as_str(), json!([n])).build().unwrap();
        writer.append(Append::new().delta(delta).mark(NewMark::new(Trigger::Step))).await.unwrap();
    }
    assert_eq!(store.state(id).await.unwrap(), state(expected.clone()));
    store.close().await.unwrap();
    let store = scratch.open().await;
    let loaded = store.load_latest(id, &MarkQuery::default()).await.unwrap();
    assert_eq!(loaded.state, state(expected));
    assert_eq!(loaded.state.section("numbers").unwrap()[2].as_f64().unwrap().to_bits(), (-0.0f64).to_bits());
    assert_whole(&store).await;
}

#[tokio::test]
async fn marks_count_the_messages_of_each_channel() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let side = Channel::new("node/plan").unwrap();
    let mark = || NewMark::new(Trigger::Messages);
    let receipt = writer
        .append(
            Append::new()
                .mark(mark())
                .message(user("1"))
                .message(user("a").in_channel(side.clone()))
                .mark(mark())
                .message(user("2"))
                .event(Event::new("noise", Value::Null))
                .mark(mark()),
        )
        .await
        .unwrap();
    let counts = |main: u64, other: u64| {
        let all = [(Channel::MAIN, main), (side.clone(), other)];
        all.into_iter().filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>()
    };
    for (id, expected) in receipt.checkpoints.iter().zip([counts(0, 0), counts(1, 1), counts(2, 1)]) {
        assert_eq!(store.mark(*id).await.unwrap().checkpoint.counts, expected);
    }
    let first = store.mark(receipt.checkpoints[1]).await.unwrap();
    writer.restore(first.at).await.unwrap();
    assert_eq!(writer.session().await.counts, counts(1, 1));
    let receipt = writer.append(Append::new().message(user("b").in_channel(side.clone())).mark(mark())).await.unwrap();
    assert_eq!(store.mark(receipt.checkpoints[0]).await.unwrap().checkpoint.counts, counts(1, 2));
    let branch = store.branch(first.at, NewSession::default(), &claim()).await.unwrap();
    let receipt = branch.append(Append::new().message(user("2'")).mark(mark())).await.unwrap();
    assert_eq!(store.mark(receipt.checkpoints[0]).await.unwrap().checkpoint.counts, counts(2, 1));
    assert_eq!(store.session(branch.id()).await.unwrap().counts, counts(2, 1));
    assert_eq!(store.session(id).await.unwrap().counts, counts(1, 2));
    assert_whole(&store).await;
}

/// Fields beside the known ones may not be called like them: what is stored could not be read again.
#[tokio::test]
async fn extra_fields_cannot_hide_known_ones() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    writer.append(step(1)).await.unwrap();
    let object = |key: &str, value: Value| Map::from_iter([(key.to_owned(), value)]);
    let mut hostile: Vec<(String, Append)> = Vec::new();
    for key in ["role", "content", "channel"] {
        let mut message = user("hello");
        message.extra = object(key, json!("x"));
        hostile.push((format!("message.{key}"), Append::new().message(message)));
    }
    hostile.push(("event.type".into(), Append::new().event(Event::new("tool", json!({"type": "bash"})))));
    for key in ["id", "trigger", "label", "clean", "resumable", "counts", "state", "description"] {
        let mark = NewMark { extra: object(key, json!(["x"])), ..NewMark::new(Trigger::Step) };
        hostile.push((format!("mark.{key}"), Append::new().mark(mark)));
    }
    for key in ["id", "head", "created", "active", "counts", "checkpoints", "checkpoint", "branch", "preview"] {
        let patch = SessionPatch::new().with(key, json!("x"));
        hostile.push((format!("session.{key}"), Append::new().patch(patch)));
    }
    for (name, append) in hostile {
        let outcome = writer.append(append).await;
        if let Err(error) = &outcome {
            assert!(matches!(error, Error::Invalid { .. }), "{name}: {error}");
        }
        let report = store.verify().await.unwrap();
        assert!(report.is_whole(), "{name} was taken ({outcome:?}) and cannot be read: {:?}", report.problems);
        store.session(id).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        writer.state().await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // The first patch of a session is checked like every other.
    for patch in [
        SessionPatch::new().with("id", json!("x")),
        SessionPatch::new().title("nul \0"),
        SessionPatch::new().with("status", json!("sleeping")),
        SessionPatch::new().title("x".repeat(2000)),
    ] {
        let new = NewSession { id: None, patch: patch.clone() };
        let outcome = store.create(new, &claim()).await;
        assert!(outcome.is_err(), "{patch:?} was taken");
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_clock_that_goes_back_disturbs_neither_order_nor_rows() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let at = last(&writer.append(step(1)).await.unwrap());
    scratch.clock.set(START.plus_ms(-3_600_000));
    writer.append(step(2)).await.unwrap();
    let branch = store.branch(at, NewSession::default(), &claim()).await.unwrap();
    branch.append(step(3)).await.unwrap();
    writer.restore(at).await.unwrap();
    writer.append(step(4)).await.unwrap();
    for id in [writer.id(), branch.id()] {
        let times: Vec<Timestamp> = store.entries(id, Seq(0), Seq::MAX).await.unwrap().iter().map(|e| e.time).collect();
        assert!(times.is_sorted(), "{times:?}");
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn all_kinds_of_entries_come_back_as_they_were_written() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let messages = crate::golden::messages();
    let events = [
        Event::new("paused", json!({"by": "user", "n": [1, null]})),
        Event::new("plain", Value::Null),
        Event::new("odd", json!([1])),
    ];
    let mark = NewMark {
        label: Some("before lunch".into()),
        description: Some("a\nb".into()),
        clean: false,
        resumable: milepost_model::Resumable::No("open call".into()),
        extra: Map::from_iter([("node".to_owned(), json!({"id": 3}))]),
        ..NewMark::new(Trigger::Other("own".into()))
    };
    let mut append = messages.iter().cloned().fold(Append::new(), Append::message);
    append = events.iter().cloned().fold(append, Append::event);
    let receipt = writer.append(append.mark(mark.clone())).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    let found = store.entries(writer.id(), receipt.first.seq, Seq::MAX).await.unwrap();
    let mut bodies = found.into_iter().map(|entry| entry.body.unwrap());
    for message in messages {
        assert_eq!(bodies.next(), Some(Body::Message(message)));
    }
    for event in events {
        assert_eq!(bodies.next(), Some(Body::Event(event)));
    }
    let Some(Body::Mark(found)) = bodies.next() else { panic!("the mark is missing") };
    let expected = Checkpoint {
        label: mark.label,
        description: mark.description,
        clean: false,
        resumable: mark.resumable,
        extra: mark.extra,
        ..found.clone()
    };
    assert_eq!((found.trigger.clone(), &found), (Trigger::Other("own".into()), &expected));
    assert_eq!(bodies.next(), None);
}
