//! A run holds its session for as long as it runs, however long a step takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use milepost::{Milepost, NewSession, Resume, SessionId, Timestamp};
use milepost_models::{Cancel, Timer};
use milepost_run::run::{End, Error, Runner};

use crate::support::{Scene, completed, graph};

/// How long a lease lasts here, by the scene's clock, which only the test moves.
const LEASE_MS: i64 = 300;

async fn held_until(engine: &Milepost, id: SessionId) -> Timestamp {
    let store = engine.store();
    store.backend().session(store.workspace(), id).await.unwrap().unwrap().lease.until
}

/// Moves the clock through three leases; each time, whoever holds the session says that it still does.
async fn outlive(scene: &Scene, engine: &Milepost, id: SessionId) {
    for _ in 0..6 {
        let before = held_until(engine, id).await;
        scene.clock.advance_ms(LEASE_MS / 2);
        while held_until(engine, id).await <= before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn is_held(engine: &Milepost, id: SessionId) -> bool {
    let refused = Runner::new(engine).resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap_err();
    matches!(refused, Error::Engine(milepost::Error::Store(milepost::store::Error::Held { .. })))
}

#[tokio::test]
async fn a_step_that_takes_longer_than_a_lease_keeps_its_session() {
    let mut scene = Scene::new();
    scene.options.store.lease_ttl_ms = LEASE_MS;
    let (engine, other) = (scene.engine().await, scene.engine().await);
    let go = scene.dir.path().join("go");
    let text = format!(
        "nodes: {{a: {{action: shell, with: {{command: 'while ! test -e {}; do sleep 0.02; done'}}}}}}\n",
        go.display()
    );
    let (graph, runner) = (graph(&text), scene.runner(&engine));
    let (started, ()) = tokio::join!(runner.start(&graph, NewSession::default()), async {
        let id = loop {
            match other.sessions(&Default::default()).await.unwrap().sessions.first() {
                Some(session) => break session.id,
                None => tokio::task::yield_now().await,
            }
        };
        outlive(&scene, &other, id).await;
        assert!(is_held(&other, id).await, "the step runs, and somebody else got the session");
        std::fs::write(&go, "").unwrap();
    });
    completed(&started.unwrap().1);
}

#[tokio::test]
async fn a_run_that_waits_with_patience_keeps_its_session() {
    let mut scene = Scene::new();
    scene.options.store.lease_ttl_ms = LEASE_MS;
    let (engine, other) = (scene.engine().await, scene.engine().await);
    let cancel = Cancel::new();
    let runner = scene.runner(&engine).timer(Timer::real()).patience_ms(10_000_000).cancel(cancel.clone());
    let graph = graph("nodes: {a: {action: wait, with: {for: 1h}}}\n");
    let (started, ()) = tokio::join!(runner.start(&graph, NewSession::default()), async {
        let id = loop {
            match other.sessions(&Default::default()).await.unwrap().sessions.first() {
                Some(session) => break session.id,
                None => tokio::task::yield_now().await,
            }
        };
        outlive(&scene, &other, id).await;
        assert!(is_held(&other, id).await);
        cancel.cancel();
    });
    assert_eq!(started.unwrap().1, End::Stopped);
}

/// Somebody took the session: whoever had it stops what it does, and leaves the session alone.
#[tokio::test]
async fn a_run_whose_session_was_taken_ends_what_it_does() {
    let mut scene = Scene::new();
    scene.options.store.lease_ttl_ms = LEASE_MS;
    let (engine, other) = (scene.engine().await, scene.engine().await);
    let pid = scene.dir.path().join("pid");
    let text =
        format!("nodes: {{a: {{action: shell, with: {{command: 'echo $$ > {}; sleep 600'}}}}}}\n", pid.display());
    let (graph, runner) = (graph(&text), scene.runner(&engine));
    let (started, end) = tokio::join!(runner.start(&graph, NewSession::default()), async {
        while std::fs::read_to_string(&pid).unwrap_or_default().is_empty() {
            tokio::task::yield_now().await;
        }
        let id = other.sessions(&Default::default()).await.unwrap().sessions[0].id;
        let how = Resume { take_over: true, ..Resume::latest() };
        Runner::new(&other).resume(id, how, None, &BTreeMap::new()).await.unwrap().0
    });
    assert!(matches!(end, End::Uncertain { .. }), "{end:?}");
    let refused = started.unwrap_err();
    assert!(
        matches!(refused, Error::Engine(milepost::Error::Store(milepost::store::Error::Fenced { .. }))),
        "{refused}"
    );
    let path = format!("/proc/{}/stat", std::fs::read_to_string(&pid).unwrap().trim());
    while std::fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A conversation, too: however long a person or a model thinks.
#[tokio::test]
async fn a_conversation_keeps_its_session_while_the_model_thinks() {
    use milepost::context::history::Dialect;
    use milepost_models::Scripted;
    use milepost_run::chat::{Chat, Said};

    let mut scene = Scene::new();
    scene.options.store.lease_ttl_ms = LEASE_MS;
    let (engine, other) = (scene.engine().await, scene.engine().await);
    let script = "replies: [{pieces: ['one ', 'two'], delay_ms: 3000}]\n";
    let model = Arc::new(Scripted::parse("s.yaml".as_ref(), script, Timer::real()).unwrap());
    let chat = Chat::begin(&engine, NewSession::default(), model, Dialect::OpenAi).await.unwrap();
    let id = chat.session().id();
    let cancel = Cancel::new();
    let (said, ()) = tokio::join!(chat.say("count", &cancel, |_| {}), async {
        outlive(&scene, &other, id).await;
        assert!(other.resume(id, Resume::latest()).await.is_err(), "somebody else got the conversation");
    });
    assert!(matches!(said.unwrap(), Said::Whole(_)));
}
