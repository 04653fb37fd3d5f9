//! Restores, branches, and reading along the timelines.

use super::*;

#[tokio::test]
async fn restoring_goes_back_to_marks_entries_and_other_timelines_and_loses_nothing() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let mut ends = Vec::new();
    for n in 1..=4 {
        ends.push(last(&writer.append(step(n)).await.unwrap()));
        scratch.clock.advance_ms(1000);
    }
    let at_step = |n: u64| state(json!({"memory": {"step": n}}));
    let first_line = ends[0].timeline;

    // To a mark.
    let restored = writer.restore(ends[1]).await.unwrap();
    assert_ne!(restored.first.timeline, first_line);
    assert_eq!(restored.first.seq, ends[1].seq.next());
    assert_eq!(texts(&store, id).await, ["step 1", "step 2"]);
    assert_eq!(writer.state().await.unwrap(), at_step(2));
    assert_eq!(store.state(id).await.unwrap(), at_step(2));
    assert_eq!(store.session(id).await.unwrap().preview.as_deref(), Some("step 2"));
    assert_eq!(mark_ids(&store, id).await.len(), 2);
    assert_whole(&store).await;
    let on_second = last(&writer.append(step(30)).await.unwrap());
    assert_eq!(texts(&store, id).await, ["step 1", "step 2", "step 30"]);

    // To an entry that is no mark: the message of step 4, on the timeline that was left.
    let message = Position { timeline: first_line, seq: Seq(ends[3].seq.0 - 2) };
    writer.restore(message).await.unwrap();
    assert_eq!(texts(&store, id).await, ["step 1", "step 2", "step 3", "step 4"]);
    assert_eq!(writer.state().await.unwrap(), at_step(3));
    assert_whole(&store).await;

    // To the other timeline that was left, twice the same.
    for _ in 0..2 {
        writer.restore(on_second).await.unwrap();
        assert_eq!(texts(&store, id).await, ["step 1", "step 2", "step 30"]);
        assert_eq!(writer.state().await.unwrap(), at_step(30));
        assert_eq!(store.session(id).await.unwrap().checkpoints, 3);
        assert_whole(&store).await;
    }
    // To the very beginning.
    writer.restore(Position { timeline: first_line, seq: Seq(0) }).await.unwrap();
    assert_eq!(texts(&store, id).await, [""; 0]);
    assert_eq!(writer.state().await.unwrap(), state(json!({})));
    assert_whole(&store).await;

    // Nothing of what was left is lost.
    for (n, end) in ends.iter().enumerate() {
        assert_eq!(store.state_at(*end).await.unwrap(), at_step(n as u64 + 1));
        assert_eq!(store.messages_at(*end, &MessageQuery::default()).await.unwrap().len(), n + 1);
    }
    // What is not of this session is refused, and the writer goes on.
    let other = create(&store).await;
    let foreign = last(&other.append(step(1)).await.unwrap());
    for wrong in [foreign, Position { timeline: first_line, seq: Seq(99) }, Position { seq: Seq(1), ..on_second }] {
        let error = writer.restore(wrong).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }
    writer.append(step(5)).await.unwrap();
    assert_eq!(texts(&store, id).await, ["step 5"]);
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(texts(&store, id).await, ["step 5"]);
    assert_eq!(store.state(id).await.unwrap(), at_step(5));
    assert_whole(&store).await;
}

#[tokio::test]
async fn what_a_list_shows_is_carried_over_a_restore_and_a_branch() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let patch = SessionPatch::new().title("before").project("p").tags(["x"]).with("own", json!([1]));
    let writer = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let at = last(&writer.append(step(1)).await.unwrap());
    writer.append(step(2)).await.unwrap();
    writer.append(Append::new().patch(SessionPatch::new().title("after").status(Status::Paused))).await.unwrap();
    writer.restore(at).await.unwrap();
    let session = store.session(writer.id()).await.unwrap();
    assert_eq!((session.title.as_deref(), session.status), (Some("after"), Status::Paused));
    assert_eq!((session.project.as_deref(), &session.extra["own"]), (Some("p"), &json!([1])));
    let new = NewSession { id: None, patch: SessionPatch::new().title("branch") };
    let branch = store.branch(at, new, &claim()).await.unwrap();
    let session = store.session(branch.id()).await.unwrap();
    assert_eq!((session.title.as_deref(), session.status), (Some("branch"), Status::Active));
    assert_eq!((session.project.as_deref(), session.tags.contains("x")), (Some("p"), true));
    assert_eq!(session.branch.unwrap().at, at);
    assert_eq!(session.preview.as_deref(), Some("step 1"));
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    assert_eq!(store.session(branch.id()).await.unwrap(), session);
}

#[tokio::test]
async fn a_branch_can_be_restored_to_before_it_began() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let one = last(&writer.append(step(1)).await.unwrap());
    let two = last(&writer.append(step(2)).await.unwrap());
    let three = last(&writer.append(step(3)).await.unwrap());
    scratch.clock.advance_ms(60_000);
    let branch = store.branch(two, NewSession::default(), &claim()).await.unwrap();
    branch.append(step(20)).await.unwrap();
    let before = store.session(branch.id()).await.unwrap();
    scratch.clock.advance_ms(60_000);
    branch.restore(one).await.unwrap();
    assert_eq!(texts(&store, branch.id()).await, ["step 1"]);
    assert_eq!(branch.state().await.unwrap(), state(json!({"memory": {"step": 1}})));
    let error = branch.restore(three).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "beyond where it began, the parent is not its own: {error}");
    let after = store.session(branch.id()).await.unwrap();
    assert_eq!((after.created, after.branch), (before.created, before.branch));
    assert_whole(&store).await;
    store.reindex().await.unwrap();
    assert_eq!(store.session(branch.id()).await.unwrap(), after);
}

#[tokio::test]
async fn branches_of_branches_keep_every_state_and_get_keyframes() {
    const DEPTH: u64 = 20;
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let root = create(&store).await;
    let mut expected = json!({ "filler": "x".repeat(4000), "path": [] });
    let mut receipt = root.append(Append::new().state(state(expected.clone())).message(user("root"))).await.unwrap();
    let mut writers = vec![(root, expected.clone())];
    for depth in 1..=DEPTH {
        let writer = store.branch(last(&receipt), NewSession::default(), &claim()).await.unwrap();
        assert_eq!(writer.state().await.unwrap(), state(expected.clone()), "a branch begins with its parent's state");
        let path = expected["path"].as_array_mut().unwrap();
        path.push(json!(depth));
        let delta = Delta::builder().append("/path", [depth]).build().unwrap();
        let append =
            Append::new().delta(delta).message(user(&format!("level {depth}"))).mark(NewMark::new(Trigger::Step));
        receipt = writer.append(append).await.unwrap();
        // What the parent does afterwards is its own.
        let (parent, parent_state) = writers.last_mut().unwrap();
        parent_state["path"].as_array_mut().unwrap().push(json!("later"));
        parent.append(Append::new().delta(Delta::builder().append("/path", ["later"]).build().unwrap())).await.unwrap();
        writers.push((writer, expected.clone()));
    }
    let mut frames = 0;
    for (depth, (writer, expected)) in writers.iter().enumerate() {
        let id = writer.id();
        assert_eq!(store.state(id).await.unwrap(), state(expected.clone()), "at depth {depth}");
        let mut said = vec!["root".to_owned()];
        said.extend((1..=depth).map(|n| format!("level {n}")));
        assert_eq!(texts(&store, id).await, said);
        for line in store.backend().timelines(store.workspace(), id).await.unwrap() {
            frames += store.backend().keyframes(store.workspace(), line.id).await.unwrap().len();
        }
    }
    // One whole state after every four timelines crossed, not one for each and not none.
    assert!((4..=10).contains(&frames), "{frames} keyframes over {DEPTH} timelines");
    assert_whole(&store).await;
    // They are derived: without them every state is the same.
    assert!(sql(&scratch.path(), "DELETE FROM keyframes") > 0);
    for (writer, expected) in &writers {
        assert_eq!(store.state(writer.id()).await.unwrap(), state(expected.clone()));
    }
}

#[tokio::test]
async fn message_ranges_follow_the_timelines() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let side = Channel::new("side").unwrap();
    // Everything on the path to the head, in order: number, channel, text.
    let mut path: Vec<(u64, Channel, String)> = Vec::new();
    let mut number = 0;
    for round in 0..4u64 {
        for n in 0..9u64 {
            let channel = if n % 3 == 0 { side.clone() } else { Channel::MAIN };
            let text = format!("message {number}");
            number += 1;
            let append =
                Append::new().event(Event::new("tick", Value::Null)).message(user(&text).in_channel(channel.clone()));
            let receipt = writer.append(append).await.unwrap();
            path.push((receipt.length - 1, channel, text));
        }
        let to = path[path.len() - 4].0;
        let timeline = store.session(id).await.unwrap().head;
        if round < 3 {
            writer.restore(Position { timeline, seq: Seq(to) }).await.unwrap();
            path.retain(|(seq, _, _)| *seq <= to);
        }
    }
    assert_eq!(path.len(), 9 + 3 * 6);
    let end = path.last().unwrap().0 + 1;
    let mut checked = 0;
    for channel in [None, Some(Channel::MAIN), Some(side), Some(Channel::new("none").unwrap())] {
        for (from, to) in [
            (None, None),
            (Some(5), None),
            (None, Some(20)),
            (Some(12), Some(31)),
            (Some(30), Some(10)),
            (Some(end), None),
        ] {
            for (first, last) in [
                (None, None),
                (Some(1), None),
                (Some(7), None),
                (None, Some(1)),
                (None, Some(7)),
                (None, Some(0)),
                (Some(1000), None),
            ] {
                let mut expected: Vec<(u64, String)> = path
                    .iter()
                    .filter(|(seq, own, _)| {
                        channel.as_ref().is_none_or(|c| c == own)
                            && *seq >= from.unwrap_or(0)
                            && *seq < to.unwrap_or(u64::MAX)
                    })
                    .map(|(seq, _, text)| (*seq, text.clone()))
                    .collect();
                if let Some(first) = first {
                    expected.truncate(first);
                }
                if let Some(last) = last {
                    expected = expected.split_off(expected.len().saturating_sub(last));
                }
                let query =
                    MessageQuery { channel: channel.clone(), from: from.map(Seq), to: to.map(Seq), last, first };
                let found = store.messages(id, &query).await.unwrap();
                let found: Vec<(u64, String)> =
                    found.into_iter().map(|m| (m.at.seq.0, m.message.text().into_owned())).collect();
                assert_eq!(found, expected, "{query:?}");
                checked += usize::from(!expected.is_empty());
            }
        }
    }
    assert!(checked > 50, "most queries must find something");
}

#[tokio::test]
async fn the_mark_nearest_to_a_moment_is_found() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let error = store.mark_near(writer.id(), START).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let mut marks = Vec::new();
    for n in [0, 1000, 2000, 10_000] {
        scratch.clock.set(START.plus_ms(n));
        marks.push(writer.append(step(n as u64)).await.unwrap().checkpoints[0]);
    }
    let cases =
        [(-5000, 0), (0, 0), (400, 0), (500, 1), (501, 1), (1499, 1), (1500, 2), (5999, 2), (6000, 3), (99_000, 3)];
    for (ms, expected) in cases {
        let near = store.mark_near(writer.id(), START.plus_ms(ms)).await.unwrap();
        assert_eq!(near.checkpoint.id, marks[expected], "near {ms} ms");
    }
}
