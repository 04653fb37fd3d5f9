//! Appends of many tasks: their order, the writes that they share, what one does to the others.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_from_many_tasks_stay_in_order() {
    const TASKS: usize = 12;
    const EACH: usize = 20;
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = Arc::new(create(&store).await);
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let writer = Arc::clone(&writer);
        tasks.push(tokio::spawn(async move {
            let mut receipts = Vec::new();
            for number in 0..EACH {
                let append = Append::new()
                    .message(user(&format!("{task}/{number}")))
                    .event(Event::new("seen", json!({ "task": task, "number": number })));
                receipts.push(writer.append(append).await.unwrap());
            }
            receipts
        }));
    }
    let mut places = BTreeMap::new();
    for (task, handle) in tasks.into_iter().enumerate() {
        for (number, receipt) in handle.await.unwrap().into_iter().enumerate() {
            assert_eq!(receipt.length, receipt.first.seq.0 + 2);
            assert!(!receipt.repeated);
            assert!(places.insert(receipt.first.seq, (task, number)).is_none(), "two appends got one place");
        }
    }
    drop(writer);
    store.close().await.unwrap();
    let store = scratch.open().await;
    let id = store.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let entries = store.entries(id, Seq(1), Seq::MAX).await.unwrap();
    assert_eq!(entries.len(), 2 * TASKS * EACH);
    let mut next = [0; TASKS];
    for pair in entries.chunks(2) {
        let (task, number) = places[&pair[0].at.seq];
        assert_eq!(next[task], number, "the appends of one task are in its order");
        next[task] += 1;
        let Some(Body::Message(message)) = &pair[0].body else { panic!("{pair:?}") };
        assert_eq!(message.text(), format!("{task}/{number}"));
        let Some(Body::Event(event)) = &pair[1].body else { panic!("{pair:?}") };
        assert_eq!((&event.data["task"], &event.data["number"]), (&json!(task), &json!(number)));
    }
    assert_whole(&store).await;
}

#[tokio::test]
async fn appends_that_wait_share_one_write() {
    let held = Held::new(|_| {}).await;
    let before = held.backend.appends.load(Ordering::SeqCst);
    let rest = (0..30).map(|n| Append::new().message(user(&format!("waits {n}")))).collect();
    let (first, rest) = held.group(Append::new().message(user("first")), rest).await;
    for (next, receipt) in (first.unwrap().length..).zip(rest) {
        let receipt = receipt.unwrap();
        assert_eq!((receipt.first.seq.0, receipt.length), (next, next + 1));
    }
    assert_eq!(held.backend.appends.load(Ordering::SeqCst) - before, 2);
    let mut expected = vec!["first".to_owned()];
    expected.extend((0..30).map(|n| format!("waits {n}")));
    assert_eq!(texts(&held.store, held.writer.id()).await, expected);
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn one_refused_append_does_not_hurt_the_others() {
    let held = Held::new(|options| options.limits.max_entry_bytes = 4096).await;
    let misfit = || Delta::builder().append("/memory/list", [1]).build().unwrap();
    let rest = vec![
        Append::new().message(user("good 1")).state(state(json!({"memory": {"n": 1}}))),
        // Refused after it has changed the state.
        Append::new().message(user("bad 1")).state(state(json!({"memory": {"n": 99}}))).delta(misfit()),
        Append::new().delta(Delta::builder().set("/memory/m", 2).build().unwrap()).mark(NewMark::new(Trigger::Step)),
        Append::new(),
        Append::new().message(user(&"x".repeat(5000))),
        Append::new().message(user("bad 2")).message(user(&"x".repeat(5000))),
        Append::new().message(user("bad 3")).event(Event::new("bad\0name", Value::Null)),
        Append::new().message(user("good 2")).mark(NewMark::new(Trigger::Manual)),
    ];
    let (first, answers) = held.group(Append::new().message(user("first")), rest).await;
    first.unwrap();
    let outcome: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(outcome, [true, false, true, false, false, false, false, true]);
    assert!(matches!(answers[1], Err(Error::Invalid { .. })), "{:?}", answers[1]);
    assert!(matches!(answers[3], Err(Error::Invalid { .. })), "{:?}", answers[3]);
    assert!(matches!(answers[4], Err(Error::TooLarge { limit: "max_entry_bytes", .. })), "{:?}", answers[4]);
    let (id, expected) = (held.writer.id(), json!({"memory": {"n": 1, "m": 2}}));
    assert_eq!(texts(&held.store, id).await, ["first", "good 1", "good 2"]);
    assert_eq!(held.writer.state().await.unwrap(), state(expected.clone()));
    assert_eq!(held.store.state(id).await.unwrap(), state(expected.clone()));
    assert_eq!(held.store.session(id).await.unwrap().messages(), 3);
    for mark in mark_ids(&held.store, id).await {
        assert_eq!(held.store.load(mark).await.unwrap().state, state(expected.clone()));
    }
    // What is written next goes on from the right state.
    held.writer.append(Append::new().delta(Delta::builder().set("/memory/n", 3).build().unwrap())).await.unwrap();
    assert_eq!(held.store.state(id).await.unwrap(), state(json!({"memory": {"n": 3, "m": 2}})));
    assert_whole(&held.store).await;
    held.store.close().await.unwrap();
    let store = held.scratch.open().await;
    assert_eq!(store.state(id).await.unwrap(), state(json!({"memory": {"n": 3, "m": 2}})));
}

#[tokio::test]
async fn limits_of_an_append_are_not_shared_by_those_that_wait_with_it() {
    let held = Held::new(|options| {
        options.limits.max_batch_entries = 10;
        options.limits.max_batch_bytes = 20_000;
    })
    .await;
    let noise = |n: u64| milepost_model::SeededEntropy::from_u64(n);
    let text = |n: u64| {
        let mut bytes = [0u8; 1500];
        noise(n).fill_salted(0, &mut bytes);
        bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    let rest: Vec<Append> =
        (0..12u64).map(|n| Append::new().message(user(&text(n))).message(user("b")).message(user("c"))).collect();
    let (first, answers) = held.group(Append::new().message(user("first")), rest).await;
    first.unwrap();
    for (n, answer) in answers.iter().enumerate() {
        assert!(answer.is_ok(), "append {n} alone is within every limit: {answer:?}");
    }
    let too_many = (0..11).fold(Append::new(), |append, n| append.message(user(&n.to_string())));
    let error = held.writer.append(too_many).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: "max_batch_entries", .. }), "{error}");
    assert_eq!(texts(&held.store, held.writer.id()).await.len(), 37);
    assert_whole(&held.store).await;
}

/// Of several who begin the same session, those that are refused find it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_refused_because_of_another_is_told_when_that_is_stored() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for _ in 0..40 {
        let id: SessionId = store.source().id();
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let store = store.clone();
                tokio::spawn(async move {
                    let new = NewSession { id: Some(id), ..NewSession::default() };
                    match store.create(new, &claim()).await {
                        Ok(_) => true,
                        Err(Error::Conflict(_)) => {
                            store.session(id).await.expect("it is there");
                            false
                        }
                        Err(error) => panic!("{error}"),
                    }
                })
            })
            .collect();
        let mut made = 0;
        for task in tasks {
            made += usize::from(task.await.unwrap());
        }
        assert_eq!(made, 1);
    }
}
