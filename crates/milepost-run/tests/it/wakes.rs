//! Wake-ups: kept in the store before anybody relies on them, and followed once.

use std::sync::Arc;

use milepost::{NewSession, Resume};
use milepost_run::run::{End, Error, Status, answer, wake};

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

/// A wait that the process waits out itself is woken when the process is gone, as every other.
#[tokio::test]
async fn a_wait_is_woken_when_the_process_that_waited_it_out_is_gone() {
    let alone = "{nodes: {nap: {action: wait, with: {for: 8s}}, after: {action: effect, needs: nap}}}";
    let beside = "{nodes: {nap: {action: wait, with: {for: 8s}}, after: {action: effect, needs: nap}, long: {action: shell, idempotent: true, with: {command: 'sleep 30'}}}, start: [nap, long]}";
    let inside = "{nodes: {sub: {action: graph, with: {graph: {nodes: {nap: {action: wait, with: {for: 8s}}}}}}, after: {action: effect, needs: sub}}}";
    for text in [alone, beside, inside] {
        let scene = Scene::new();
        let (engine, other) = (scene.engine().await, scene.engine().await);
        let runner = scene.runner(&engine).timer(milepost_models::Timer::real()).patience_ms(60_000);
        let graph = graph(text);
        let running = tokio::spawn(async move { runner.start(&graph, NewSession::default()).await.map(drop) });
        let mut found = None;
        for _ in 0..500 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            let sessions = other.sessions(&Default::default()).await.unwrap().sessions;
            let Some(session) = sessions.first() else { continue };
            // It is noted before it is waited for.
            if scene.runner(&other).due(session.id).await.unwrap().is_some() {
                found = Some(session.id);
                break;
            }
        }
        let id = found.unwrap_or_else(|| panic!("nothing is noted: {text}"));
        let waits = scene.steps(id).await.into_iter().any(|(_, status)| status == Status::Waiting);
        assert!(waits, "{text}");
        // Killed: nothing is given back.
        running.abort();
        drop(running.await);
        let watcher = scene.runner(&other);
        scene.clock.advance_ms(8000 + 10_000);
        assert_eq!(watcher.claim_due(10).await.unwrap(), [id], "{text}");
        if text != beside {
            completed(&scene.resume(id).await);
            assert_eq!(scene.effects.nodes(), ["after"]);
            scene.clock.advance_ms(3_600_000);
            assert!(watcher.claim_due(10).await.unwrap().is_empty(), "what is completed is not woken");
        }
    }
}

/// Nothing is left of it when the process lives, and short waits do not cost a record each.
#[tokio::test]
async fn a_wait_that_was_waited_out_leaves_no_wake_up() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "{nodes: {nap: {action: wait, with: {for: 2s}}, after: {action: effect, needs: nap}, more: {action: wait, with: {for: 1s}, needs: after}}}";
    let (_, end) = scene.start(text).await;
    completed(&end);
    scene.clock.advance_ms(3_600_000);
    assert!(scene.runner(&engine).claim_due(10).await.unwrap().is_empty());
    assert_eq!(scene.effects.nodes(), ["after"]);
}
