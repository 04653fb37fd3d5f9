//! Wake-ups: kept in the store before anybody relies on them, and followed once.

use std::sync::Arc;

use milepost::{NewSession, Resume};
use milepost_run::run::{End, Error, answer, wake};

use crate::support::{Scene, completed, graph};

const NAP: &str = "
nodes:
  nap: {action: wait, with: {for: 1h}}
  after: {action: keyed}
edges: [{from: nap, to: after}]
";

/// Killed at any boundary, before or after any append: a session that says that it waits is woken.
#[tokio::test]
async fn a_run_that_says_that_it_waits_is_woken_wherever_it_was_killed() {
    let mut woken = 0;
    for stop in 1.. {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let runner = scene.runner(&engine).at_boundary(Arc::new(move |n| n == stop));
        let started = runner.start(&graph(NAP), NewSession::default()).await;
        let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
        scene.clock.advance_ms(3_600_001);
        let due = scene.runner(&engine).claim_due(10).await.unwrap();
        if scene.status(id).await == "waiting" {
            assert_eq!(due, [id], "killed at {stop}");
            woken += 1;
        }
        if !matches!(started, Err(Error::Stopped { .. })) {
            break;
        }
    }
    assert!(woken >= 2, "{woken}");
}

/// An answer that comes while another branch still runs is found before the run ends its turn.
#[tokio::test]
async fn an_answer_that_comes_while_others_run_is_followed_at_once() {
    let scene = Scene::new();
    let (engine, other) = (scene.engine().await, scene.engine().await);
    let go = scene.dir.path().join("go");
    let text = format!(
        "
parallel: 2
nodes:
  which: {{action: ask, with: {{question: 'Which?'}}}}
  long: {{action: shell, with: {{command: 'while ! test -e {}; do sleep 0.02; done'}}}}
outputs: {{which: outputs.which.answer}}
",
        go.display()
    );
    let (graph, runner) = (graph(&text), scene.runner(&engine));
    let (started, ()) = tokio::join!(runner.start(&graph, NewSession::default()), async {
        let id = loop {
            let found = other.sessions(&Default::default()).await.unwrap();
            let Some(session) = found.sessions.first() else { continue };
            if scene.section(session.id, "execution").await["nodes"]["which"]["status"] == "waiting" {
                break session.id;
            }
        };
        answer(&other, id, "which", 0, "this", "kim").await.unwrap();
        wake(&other, id).await.unwrap();
        std::fs::write(&go, "").unwrap();
    });
    assert_eq!(completed(&started.unwrap().1)["which"], "this");
}

/// Whoever looks for wake-ups finds the session held, and the answer is not forgotten when it is given back.
#[tokio::test]
async fn a_request_to_go_on_that_was_claimed_too_early_is_not_lost() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text =
        "nodes: {a: {action: ask, with: {question: 'A?'}}, b: {action: ask, with: {question: 'B?'}, needs: a}}\n";
    let (id, end) = scene.start(text).await;
    assert!(matches!(end, End::Waiting { .. }));
    let runner = scene.runner(&engine);
    answer(&engine, id, "a", 0, "yes", "kim").await.unwrap();
    wake(&engine, id).await.unwrap();
    assert_eq!(runner.claim_due(10).await.unwrap(), [id]);
    assert!(matches!(scene.resume(id).await, End::Waiting { .. }));
    scene.clock.advance_ms(61_000);
    assert!(runner.claim_due(10).await.unwrap().is_empty(), "it was followed, and is over");
    answer(&engine, id, "b", 0, "yes", "kim").await.unwrap();
    wake(&engine, id).await.unwrap();
    let how = Resume { take_over: true, ..Resume::latest() };
    completed(&runner.resume(id, how, None, &Default::default()).await.unwrap().0);
    scene.clock.advance_ms(61_000);
    assert!(runner.claim_due(10).await.unwrap().is_empty(), "what is completed is not woken");
}
