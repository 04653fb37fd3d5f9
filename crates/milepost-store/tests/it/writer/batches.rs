//! Batches that are sent again, and writes whose end is unknown.

use std::task::{Context, Waker};

use milepost_model::Retention;

use super::*;

#[tokio::test]
async fn a_batch_sent_again_adds_nothing_and_gets_the_first_receipt() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let append = || step(1).batch(batch(7));
    let first = writer.append(append()).await.unwrap();
    writer.append(step(2)).await.unwrap();
    let again = writer.append(append()).await.unwrap();
    assert_eq!(again, Receipt { repeated: true, ..first.clone() });
    assert!(!first.repeated);
    assert_eq!(first.checkpoints.len(), 1);
    writer.release().await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    let writer = store.write(id, &claim()).await.unwrap();
    let again = writer.append(append()).await.unwrap();
    assert_eq!(again, Receipt { repeated: true, ..first.clone() });
    // Also when what is sent under it is not what it was.
    let other = writer.append(Append::new().message(user("something else")).batch(batch(7))).await;
    assert!(!matches!(&other, Ok(receipt) if !receipt.repeated), "{other:?}");
    assert_eq!(texts(&store, id).await, ["step 1", "step 2"]);
    assert_eq!(mark_ids(&store, id).await.len(), 2);
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_batch_sent_twice_at_once_is_added_once() {
    let held = Held::new(|_| {}).await;
    let append = || Append::new().message(user("once")).mark(NewMark::new(Trigger::Step)).batch(batch(9));
    let (first, answers) = held.group(Append::new().message(user("first")), vec![append(), append(), append()]).await;
    first.unwrap();
    let receipts: Vec<Receipt> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(receipts.iter().filter(|receipt| !receipt.repeated).count(), 1);
    for receipt in &receipts {
        assert_eq!((receipt.first, receipt.length), (receipts[0].first, receipts[0].length));
        assert_eq!(receipt.checkpoints, receipts[0].checkpoints);
    }
    assert_eq!(texts(&held.store, held.writer.id()).await, ["first", "once"]);
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn a_long_batch_is_recognised_too() {
    let held = Held::new(|_| {}).await;
    let id = held.writer.id();
    let long = || (0..700).fold(Append::new(), |append, n| append.message(user(&n.to_string()))).batch(batch(8));
    // Stored, but nobody was told: it is settled by looking at where it begins.
    held.backend.fail_after.store(true, Ordering::SeqCst);
    let first = held.writer.append(long().mark(NewMark::new(Trigger::Step))).await.unwrap();
    assert!(!first.repeated);
    held.store.close().await.unwrap();
    let store = held.scratch.open().await;
    let writer = store.write(id, &claim().take_over()).await.unwrap();
    let again = writer.append(long().mark(NewMark::new(Trigger::Step))).await.unwrap();
    assert_eq!(again, Receipt { repeated: true, ..first });
    assert_eq!(texts(&store, id).await.len(), 700);
}

#[tokio::test]
async fn a_batch_sent_again_after_a_restore_is_no_damage() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let start = writer.append(step(1)).await.unwrap();
    writer.append(step(2).batch(batch(5))).await.unwrap();
    writer.restore(last(&start)).await.unwrap();
    // On the new timeline the work was not done yet: it may be done again, and nothing is damaged by it.
    writer.append(step(2).batch(batch(5))).await.unwrap();
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_write_whose_end_is_unknown_is_settled_by_looking() {
    let held = Held::new(|_| {}).await;
    let id = held.writer.id();
    held.backend.fail_after.store(true, Ordering::SeqCst);
    let receipt = held.writer.append(step(1)).await.unwrap();
    assert!(!receipt.repeated);
    held.backend.fail_before.store(true, Ordering::SeqCst);
    let error = held.writer.append(step(2).batch(batch(3))).await.unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains("same batch id"), "{error}");
    assert_eq!(texts(&held.store, id).await, ["step 1"]);
    held.writer.append(step(2).batch(batch(3))).await.unwrap();
    assert_eq!(texts(&held.store, id).await, ["step 1", "step 2"]);
    assert_eq!(held.writer.state().await.unwrap(), state(json!({"memory": {"step": 2}})));
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn every_append_of_a_group_is_settled_when_its_end_is_unknown() {
    let held = Held::new(|_| {}).await;
    let hold = held.backend.before.write().await;
    let start = |n: u64| {
        let writer = Arc::clone(&held.writer);
        tokio::spawn(async move { writer.append(step(n)).await })
    };
    let first = start(0);
    held.idle().await;
    let rest: Vec<_> = (1..4).map(start).collect();
    held.idle().await;
    drop(hold);
    first.await.unwrap().unwrap();
    held.backend.fail_after.store(true, Ordering::SeqCst);
    let mut receipts = Vec::new();
    for task in rest {
        receipts.push(task.await.unwrap().unwrap());
    }
    assert_eq!(texts(&held.store, held.writer.id()).await, ["step 0", "step 1", "step 2", "step 3"]);
    let again = held.writer.append(Append::new().message(user("next"))).await.unwrap();
    assert_eq!(again.first.seq.0, receipts.last().unwrap().length);
    assert_whole(&held.store).await;
}

/// Whoever is dropped while it is looked what to prune has stored nothing, and leaves nothing behind that others build on.
#[tokio::test]
async fn an_append_that_is_dropped_while_it_prunes_leaves_no_trace() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let id = writer.id();
    let keep = Retention { max_checkpoints: 3, max_age_days: 0, ..Retention::default() };
    let set = |path: &str, value: u64| {
        let delta = Delta::builder().set(path, value).build().unwrap();
        Append::new().message(user(path)).delta(delta).mark(NewMark::new(Trigger::Step))
    };
    writer.append(step(1)).await.unwrap();
    let mut stored = 1;
    for polls in 0..8 {
        let mut dropped = Box::pin(writer.append(set(&format!("/memory/dropped {polls}"), polls).prune(&keep)));
        for _ in 0..polls {
            let polled = dropped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            stored += u64::from(polled.is_ready());
            if polled.is_ready() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        drop(dropped);
        let receipt = writer.append(set("/memory/step", 2 + polls)).await.unwrap();
        stored += 1;
        let loaded = store.load(receipt.checkpoints[0]).await.unwrap();
        assert_eq!(loaded.state.pointer("/memory/step"), Some(&json!(2 + polls)), "after {polls} polls");
    }
    assert_whole(&store).await;
    assert!(texts(&store, id).await.len() as u64 >= stored);
}

/// Else a process that adds without a pause is always there first: whoever lost to it reads for longer than it writes.
#[tokio::test]
async fn a_writer_that_was_overtaken_reads_only_what_is_new() {
    let scratch = Scratch::new();
    let (watched, store) = watched(&scratch).await;
    let fast = store.create_shared(NewSession::default()).await.unwrap();
    for number in 0..100 {
        fast.append(step(number)).await.unwrap();
    }
    let slow = store.join(fast.id()).await.unwrap();
    let theirs = fast.append(step(100).batch(batch(5))).await.unwrap();
    let message = || Append::new().message(user("slow"));
    let before = watched.entries_read.load(Ordering::SeqCst);
    let refused = slow.append(message()).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    slow.append(message()).await.unwrap();
    let read = watched.entries_read.load(Ordering::SeqCst) - before;
    // A step is three entries: a message, what changed of the state, and a checkpoint.
    assert_eq!(read, 3);
    // What it read is known as if it had been read from the start, and what it knew before is not forgotten.
    assert_eq!(slow.append(step(0).batch(batch(5))).await.unwrap(), Receipt { repeated: true, ..theirs });
    assert_eq!(texts(&store, fast.id()).await.len(), 102);
    assert_whole(&store).await;
}
