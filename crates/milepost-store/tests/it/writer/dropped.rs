//! Futures that are dropped before, while and after something is written.

use super::*;

#[tokio::test]
async fn a_future_dropped_before_the_write_leaves_nothing_and_the_writer_usable() {
    let held = Held::new(|_| {}).await;
    held.writer.append(step(1)).await.unwrap();
    {
        let _hold = held.backend.before.write().await;
        let dropped = tokio::time::timeout(Duration::from_millis(50), held.writer.append(step(2))).await;
        assert!(dropped.is_err());
    }
    let receipt = held.writer.append(step(3)).await.unwrap();
    assert_eq!(receipt.first.seq, Seq(4));
    assert_eq!(texts(&held.store, held.writer.id()).await, ["step 1", "step 3"]);
    assert_eq!(held.store.state(held.writer.id()).await.unwrap(), state(json!({"memory": {"step": 3}})));
    assert_whole(&held.store).await;
}

#[tokio::test]
async fn a_future_dropped_after_the_write_is_found_again_by_its_batch_id() {
    let held = Held::new(|_| {}).await;
    held.writer.append(step(1)).await.unwrap();
    {
        let _hold = held.backend.after.write().await;
        let append = held.writer.append(step(2).batch(batch(4)));
        assert!(tokio::time::timeout(Duration::from_millis(300), append).await.is_err());
    }
    let again = held.writer.append(step(2).batch(batch(4))).await.unwrap();
    assert!(again.repeated);
    assert_eq!(again.checkpoints.len(), 1);
    held.writer.append(step(3)).await.unwrap();
    assert_eq!(texts(&held.store, held.writer.id()).await, ["step 1", "step 2", "step 3"]);
    assert_eq!(held.store.state(held.writer.id()).await.unwrap(), state(json!({"memory": {"step": 3}})));
    assert_whole(&held.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn futures_dropped_at_any_moment_leave_the_session_whole() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = Arc::new(create(&store).await);
    let id = writer.id();
    let mut acknowledged = Vec::new();
    let mut dropped = 0;
    for n in 0..120u64 {
        let task = {
            let writer = Arc::clone(&writer);
            tokio::spawn(async move { writer.append(step(n)).await })
        };
        // From "not begun" to "long done".
        let wait = Duration::from_micros(n * 37 % 3000);
        let handle = task.abort_handle();
        tokio::time::sleep(wait).await;
        handle.abort();
        match task.await {
            Ok(receipt) => {
                receipt.unwrap();
                acknowledged.push(format!("step {n}"));
            }
            Err(_) => dropped += 1,
        }
        if n % 10 == 9 {
            writer.append(step(1000 + n)).await.unwrap();
            acknowledged.push(format!("step {}", 1000 + n));
        }
    }
    assert!(dropped > 5, "nothing was dropped: the test is too slow or too fast");
    let said = texts(&store, id).await;
    let mut unique = said.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), said.len(), "something was stored twice");
    let mut rest = said.iter();
    for text in &acknowledged {
        assert!(rest.any(|said| said == text), "{text} was acknowledged and is missing or out of order");
    }
    let newest: u64 = said.last().unwrap().strip_prefix("step ").unwrap().parse().unwrap();
    assert_eq!(store.state(id).await.unwrap(), state(json!({"memory": {"step": newest}})));
    assert_eq!(writer.state().await.unwrap(), state(json!({"memory": {"step": newest}})));
    assert_whole(&store).await;
}

#[tokio::test]
async fn a_dropped_append_does_not_fail_those_that_wait_with_it() {
    let held = Held::new(|_| {}).await;
    held.writer.append(step(0)).await.unwrap();
    let hold = held.backend.before.write().await;
    let start = |n: u64| {
        let writer = Arc::clone(&held.writer);
        tokio::spawn(async move { writer.append(step(n)).await })
    };
    let leader = start(1);
    held.idle().await;
    let waiting: Vec<_> = (2..5).map(start).collect();
    held.idle().await;
    // The first of those that wait takes the others along. When its caller gives up, theirs must not.
    leader.abort();
    let _ = leader.await;
    held.idle_long().await;
    waiting[0].abort();
    held.idle_long().await;
    drop(hold);
    for (n, task) in waiting.into_iter().enumerate().skip(1) {
        let answer = task.await.unwrap();
        assert!(answer.is_ok(), "append {} was given up with another's: {answer:?}", n + 2);
    }
    let said = texts(&held.store, held.writer.id()).await;
    assert_eq!(said.iter().filter(|text| ["step 3", "step 4"].contains(&text.as_str())).count(), 2, "{said:?}");
    assert_whole(&held.store).await;
}
