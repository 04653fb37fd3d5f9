//! Callers that wait on their own thread: the store works on it, and nothing else changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use milepost_model::{Role, State};
use milepost_store::{Append, Error, MessageQuery, NewSession, Store, block_on};
use serde_json::json;

use crate::support::{Scratch, claim, step, user};

fn open(scratch: &Scratch) -> Store {
    block_on(scratch.open())
}

#[test]
fn threads_that_wait_and_tasks_that_do_not_share_a_store() {
    const EACH: u64 = 60;
    let scratch = Scratch::new();
    let store = open(&scratch);
    let save = |store: Store| async move {
        let writer = store.create(NewSession::default(), &claim()).await.unwrap();
        for number in 0..EACH {
            writer.append(step(number)).await.unwrap();
        }
        writer.release().await.unwrap();
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| block_on(save(store.clone())));
        }
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
            runtime.block_on(async {
                let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(save(store.clone()))).collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
        });
    });
    let verified = block_on(store.verify_deep()).unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
    assert_eq!(verified.sessions, 6);
    block_on(store.close()).unwrap();
    // What was acknowledged is there for whoever opens the file next.
    let store = open(&scratch);
    for row in block_on(store.sessions(&milepost_store::SessionQuery::default())).unwrap().sessions {
        let messages = block_on(store.messages(row.id, &MessageQuery::default())).unwrap();
        assert_eq!(messages.len() as u64, EACH);
    }
}

/// Whoever is at the desk works for others too, and may be closing the store: everyone gets an answer, and what was acknowledged is
/// stored.
#[test]
fn a_store_that_is_closed_under_its_callers_answers_each_of_them() {
    let scratch = Scratch::new();
    for round in 0..8 {
        let store = open(&scratch);
        let writers: Vec<_> =
            (0..4).map(|_| block_on(store.create(NewSession::default(), &claim())).unwrap()).collect();
        let stored: Vec<_> = std::thread::scope(|scope| {
            let callers: Vec<_> = writers
                .iter()
                .map(|writer| {
                    scope.spawn(move || {
                        let mut stored = 0u64;
                        loop {
                            match block_on(writer.append(Append::new().message(user("again")))) {
                                Ok(_) => stored += 1,
                                Err(Error::Closed) => return stored,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(5 * round));
            block_on(store.close()).unwrap();
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        });
        let store = open(&scratch);
        for (writer, stored) in writers.iter().zip(stored) {
            assert_eq!(block_on(store.session(writer.id())).unwrap().messages(), stored);
        }
        block_on(store.close()).unwrap();
    }
}

#[test]
fn texts_are_indexed_when_nobody_writes_any_more() {
    let scratch = Scratch::new();
    let store = open(&scratch);
    let writer = block_on(store.create(NewSession::default(), &claim())).unwrap();
    for number in 0..20 {
        block_on(writer.append(Append::new().message(user(&format!("word{number}"))))).unwrap();
    }
    let begun = Instant::now();
    let waiting = || {
        let db = rusqlite::Connection::open(scratch.path()).unwrap();
        db.query_row("SELECT count(*) FROM unindexed", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    while waiting() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody indexes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_shared_state_is_not_copied() {
    let scratch = Scratch::new();
    let store = open(&scratch);
    let writer = block_on(store.create(NewSession::default(), &claim())).unwrap();
    let mut state = Arc::new(State::try_from(json!({ "memory": { "list": (0..1000).collect::<Vec<_>>() } })).unwrap());
    for number in 0..5 {
        let place = Arc::as_ptr(&state);
        Arc::make_mut(&mut state).section_mut("memory")["number"] = json!(number);
        assert_eq!(Arc::as_ptr(&state), place, "nobody else has it once the append is done");
        block_on(writer.append(Append::new().state(Arc::clone(&state)))).unwrap();
    }
    assert_eq!(block_on(store.state(writer.id())).unwrap(), *state);
}

#[test]
fn a_refused_append_leaves_nothing_and_a_closed_store_says_so() {
    let scratch = Scratch::new();
    let store = open(&scratch);
    let writer = block_on(store.create(NewSession::default(), &claim())).unwrap();
    block_on(writer.append(step(1))).unwrap();
    let thief = block_on(store.write(writer.id(), &claim().take_over())).unwrap();
    let refused = block_on(writer.append(step(2)));
    assert!(matches!(refused, Err(Error::Fenced { .. })), "{refused:?}");
    block_on(thief.append(step(3))).unwrap();
    let messages = block_on(store.messages(writer.id(), &MessageQuery::default())).unwrap();
    assert_eq!(messages.iter().filter(|found| found.message.role == Role::User).count(), 2);
    block_on(store.close()).unwrap();
    let closed = block_on(thief.append(step(4)));
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
}
