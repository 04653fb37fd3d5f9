//! A kill at every boundary: before and after each append of a run with parallel branches, a loop and a question. Keyed
//! effects happen under exactly one key, others at most once, or once and asked about.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::{NewSession, Resume};
use milepost_run::run::{End, Error, Settle, answer};

use crate::support::{Scene, graph};

const GRAPH: &str = "
parallel: 2
memory: {count: 0}
nodes:
  begin: {action: keyed}
  left: {action: keyed}
  right: {action: effect}
  work: {action: keyed}
  count: {action: set, with: {count: {cel: memory.count + 1}}}
  which: {action: ask, with: {question: 'Which?'}}
  last: {action: effect, with: {answer: '{{ outputs.which.answer }}'}}
edges:
  - {from: begin, to: left}
  - {from: begin, to: right}
  - {from: left, to: work}
  - {from: right, to: work}
  - {from: work, to: count}
  - {from: count, to: work, when: memory.count < 2, limit: 5}
  - {from: count, to: which}
  - {from: which, to: last}
outputs: {count: memory.count, answer: outputs.last.with.answer}
";

/// Runs to the end with a kill at boundary `stop` of the first turn; true when there was such a boundary.
async fn killed_at(stop: u64) -> bool {
    let scene = Scene::new();
    let graph = graph(GRAPH);
    let engine = scene.engine().await;
    let runner = scene.runner(&engine).at_boundary(Arc::new(move |n| n == stop));
    let first = runner.start(&graph, NewSession::default()).await;
    let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let mut was_stopped = matches!(first, Err(Error::Stopped { .. }));
    drop((runner, engine));

    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    let mut settle = BTreeMap::new();
    for turn in 0..20 {
        let engine = scene.engine().await;
        if turn == 1 {
            answer(&engine, id, "which", 0, "this", "kim").await.unwrap();
        }
        // The turn after the answer is killed at the same boundary, too.
        let runner = match turn {
            1 if !was_stopped => scene.runner(&engine).at_boundary(Arc::new(move |n| n + 100 == stop)),
            _ => scene.runner(&engine),
        };
        let how = Resume { take_over: true, ..Resume::latest() };
        match runner.resume(id, how, None, &settle).await {
            Ok((End::Completed { outputs }, _)) => {
                assert_eq!(
                    (outputs["count"].clone(), outputs["answer"].clone()),
                    (2.into(), "this".into()),
                    "killed at {stop}"
                );
                check(&scene, &asked, stop);
                return was_stopped;
            }
            Ok((End::Uncertain { steps }, _)) => {
                for (node, _) in steps {
                    // Somebody looks, and says what is so.
                    let happened = scene.effects.counts().contains_key(&node);
                    *asked.entry(node.clone()).or_default() += 1;
                    let value = serde_json::json!({"node": node, "with": {"answer": "this"}});
                    settle.insert(node, if happened { Settle::Happened(value) } else { Settle::RunAgain });
                }
            }
            Ok((End::Waiting { .. }, _)) => {}
            Err(Error::Stopped { .. }) => was_stopped = true,
            // The kill came after everything was stored.
            Err(_) if scene.status(id).await == "completed" => {
                check(&scene, &asked, stop);
                return was_stopped;
            }
            other => panic!("killed at {stop}: {other:?}"),
        }
    }
    panic!("killed at {stop}: the run does not end");
}

fn check(scene: &Scene, asked: &BTreeMap<String, usize>, stop: u64) {
    let counts = scene.effects.counts();
    for (node, keys) in [("begin", 1), ("left", 1), ("work", 2)] {
        assert_eq!(counts[node].1, keys, "{node} killed at {stop}: {counts:?}");
    }
    for node in ["right", "last"] {
        assert_eq!(counts[node], (1, 1), "{node} killed at {stop}: {counts:?}, asked {asked:?}");
    }
}

#[tokio::test]
async fn a_kill_at_any_boundary_loses_nothing_and_repeats_nothing() {
    let mut stops = 0;
    // The first turn, up to the question; and the one after the answer.
    for first in [1, 101] {
        let mut stop = first;
        while Box::pin(killed_at(stop)).await {
            (stop, stops) = (stop + 1, stops + 1);
        }
    }
    assert!(stops >= 20, "{stops}");
}
