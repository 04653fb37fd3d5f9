//! Loops that were left stay left: a decision that was made is never made again.

use std::collections::BTreeMap;

use milepost::SessionId;
use milepost_run::run::{End, answer};
use serde_json::Value;

use crate::support::{Scene, completed, graph};

/// When `a` ends, the flag is down; when the run waits, it is up.
const BESIDE: &str = "
memory: {flag: false}
nodes:
  a: {action: effect}
  nap: {action: wait, with: {for: 1s}}
  up: {action: set, with: {flag: true}}
  q: {action: ask, with: {question: 'Go on?'}}
edges:
  - {from: a, to: a, when: memory.flag == true, limit: 3}
  - {from: nap, to: up}
  - {from: up, to: q}
";

const CHAIN: &str = "
memory: {x: 0}
nodes:
  a: {action: effect}
  b: {action: set, with: {x: 1}}
  q: {action: ask, with: {question: 'Go on?'}}
edges:
  - {from: a, to: a, when: memory.x == 1, limit: 3}
  - {from: a, to: b}
  - {from: b, to: q}
";

async fn answered(scene: &Scene, id: SessionId) {
    answer(&scene.engine().await, id, "q", 0, "yes", "kim").await.unwrap();
}

#[tokio::test]
async fn a_loop_that_was_left_is_not_begun_again_by_a_resume() {
    let scene = Scene::new();
    let (id, end) = scene.start(BESIDE).await;
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    assert!(matches!(scene.resume(id).await, End::Waiting { .. }));
    answered(&scene, id).await;
    completed(&scene.resume(id).await);
    assert_eq!(scene.effects.nodes(), ["a"]);
}

/// Nobody noted it in runs of before: what is done is not done again all the same.
#[tokio::test]
async fn a_loop_that_was_left_is_not_begun_again_in_a_session_of_before() {
    for text in [BESIDE, CHAIN] {
        let scene = Scene::new();
        let (id, _) = scene.start(text).await;
        forget(&scene, id, "left").await;
        answered(&scene, id).await;
        completed(&scene.resume(id).await);
        assert_eq!(scene.effects.nodes(), ["a"]);
    }
}

/// What an older version would have stored.
async fn forget(scene: &Scene, id: SessionId, field: &str) {
    let session = scene.engine().await.hold(id).await.unwrap();
    let mut state = session.state().await.unwrap();
    let Value::Object(nodes) = &mut state.section_mut("execution")["nodes"] else { panic!("no nodes") };
    nodes.values_mut().filter_map(Value::as_object_mut).for_each(|node| drop(node.remove(field)));
    session.set_state(state).await.unwrap();
    session.release().await.unwrap();
}

#[tokio::test]
async fn an_edge_that_is_new_is_decided_and_no_other() {
    let scene = Scene::new();
    let (id, _) = scene.start(CHAIN).await;
    answered(&scene, id).await;
    let more = CHAIN
        .replace("edges:\n", "  n: {action: effect}\n  m: {action: effect}\nedges:\n  - {from: a, to: n}\n")
        .replace("  - {from: b, to: q}\n", "  - {from: b, to: q}\n  - {from: a, to: m, when: memory.x == 5}\n");
    let (end, _) = scene.resume_with(id, &BTreeMap::new(), Some(&graph(&more))).await.unwrap();
    completed(&end);
    assert_eq!(scene.effects.nodes(), ["a", "n"]);
}

/// Whoever adds a loop behind a step that was left does not make it run again.
#[tokio::test]
async fn a_loop_that_is_new_does_not_reach_back() {
    let scene = Scene::new();
    let (id, _) = scene.start(CHAIN).await;
    answered(&scene, id).await;
    let more = CHAIN.replace("memory.x == 1, limit: 3", "memory.x == 7, limit: 3").replace(
        "  - {from: b, to: q}\n",
        "  - {from: b, to: q}\n  - {from: b, to: a, when: memory.x == 1, limit: 3}\n",
    );
    let (end, _) = scene.resume_with(id, &BTreeMap::new(), Some(&graph(&more))).await.unwrap();
    completed(&end);
    assert_eq!(scene.effects.nodes(), ["a"]);
}

#[tokio::test]
async fn a_loop_that_paused_at_its_limit_goes_on_with_a_higher_one() {
    let text = "
memory: {n: 0}
nodes: {a: {action: effect}, c: {action: set, with: {n: {cel: memory.n + 1}}}}
edges:
  - {from: a, to: c}
  - {from: c, to: a, when: memory.n < 4, limit: 1}
";
    // Also in a session of before, in which nobody noted that it is stuck.
    for is_old in [false, true] {
        let scene = Scene::new();
        let (id, end) = scene.start(text).await;
        assert!(matches!(&end, End::Paused { why, .. } if why.contains("c>a was taken once")), "{end:?}");
        if is_old {
            forget(&scene, id, "left").await;
        } else {
            assert!(matches!(scene.resume(id).await, End::Paused { .. }));
        }
        let raised = graph(&text.replace("limit: 1", "limit: 5"));
        let (end, _) = scene.resume_with(id, &BTreeMap::new(), Some(&raised)).await.unwrap();
        completed(&end);
        assert_eq!(scene.effects.nodes(), ["a", "a", "a", "a"], "old: {is_old}");
    }
}

/// Everything between the ends of a loop runs again, and so do the loops in between.
#[tokio::test]
async fn an_inner_loop_has_its_rounds_in_every_round_of_the_outer_one() {
    let scene = Scene::new();
    let text = "
memory: {i: 0, o: 0}
nodes:
  outer: {action: set, with: {o: {cel: memory.o + 1}, i: 0}}
  inner: {action: set, with: {i: {cel: memory.i + 1}}}
  end: {action: effect}
edges:
  - {from: outer, to: inner}
  - {from: inner, to: inner, when: memory.i < 4, limit: 3}
  - {from: inner, to: end}
  - {from: end, to: outer, when: memory.o < 3, limit: 5}
outputs: {i: memory.i, o: memory.o}
";
    let (id, end) = scene.start(text).await;
    let outputs = completed(&end);
    assert_eq!((&outputs["o"], &outputs["i"]), (&3.into(), &4.into()));
    assert_eq!(scene.effects.nodes(), ["end", "end", "end"]);
    let engine = scene.engine().await;
    let replay = scene.runner(&engine).verify_replay(&graph(text), id).await.unwrap();
    assert!(replay.breaks.is_empty(), "{replay:?}");
    // Its limit holds in each of them.
    let (_, end) = scene.start(&text.replace("limit: 3", "limit: 2")).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("inner>inner was taken 2 times")), "{end:?}");
}
