//! Going back: what happened after the checkpoint is named, wherever it happened, and happens again only with a yes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use milepost::{NewSession, Point, Resume, SessionId};
use milepost_run::run::{Error, Runner, answer};

use crate::support::{Scene, completed, graph};

/// A resume from the checkpoint that is described so.
async fn back_to(scene: &Scene, id: SessionId, described: &str) -> Resume {
    let marks = scene.engine().await.store().marks(id, &Default::default()).await.unwrap();
    let found = marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some(described));
    let found = found.unwrap_or_else(|| panic!("no checkpoint {described:?}"));
    Resume { take_over: true, reopen: true, ..Resume::from(Point::Checkpoint(found.checkpoint.id)) }
}

/// The steps that a resume names before it lets them happen again.
async fn named(runner: &Runner, id: SessionId, how: &Resume) -> Vec<String> {
    match runner.resume(id, how.clone(), None, &BTreeMap::new()).await.unwrap_err() {
        Error::Repeats { steps } => {
            assert!(steps.iter().all(|(_, key)| key.len() == 32), "{steps:?}");
            steps.into_iter().map(|(step, _)| step).collect()
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn effects_of_graphs_in_graphs_are_named_before_they_happen_again() {
    let scene = Scene::new();
    let text = "
nodes:
  before: {action: keyed}
  sub:
    action: graph
    needs: before
    with:
      graph:
        nodes:
          look: {action: keyed}
          pay: {action: effect, needs: look}
          sure: {action: effect, idempotent: true, needs: pay}
          deep:
            action: graph
            needs: sure
            with: {graph: {nodes: {post: {action: effect}}}}
";
    let (id, end) = scene.start(text).await;
    completed(&end);
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let how = back_to(&scene, id, "before sub").await;
    assert_eq!(named(&runner, id, &how).await, ["sub/pay", "sub/deep/post"]);
    assert_eq!(scene.effects.counts()["sub/pay"], (1, 1), "nothing was done");
    let seen = runner.preview(id, &how, None, &Default::default()).await.unwrap().repeats;
    assert_eq!(seen.len(), 2, "also by whoever only looks: {seen:?}");
    // Behind the first of them only the other is left.
    let how = back_to(&scene, id, "after pay").await;
    assert_eq!(named(&runner, id, &how).await, ["sub/deep/post"]);
    completed(&runner.repeat_effects().resume(id, how, None, &BTreeMap::new()).await.unwrap().0);
    let counts = scene.effects.counts();
    assert_eq!((counts["sub/pay"], counts["sub/deep/post"]), ((1, 1), (2, 2)));
}

/// Who only looks is not asked about; who mends is.
#[tokio::test]
async fn calls_of_agents_are_named_by_what_they_may_do() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let fixed = scene.dir.path().join("fixed");
    let text = format!(
        "
nodes:
  begin: {{action: keyed}}
  mend:
    action: checks
    needs: begin
    with:
      checks: {{there: 'test -e {0}'}}
      prompt: Mend it.
      tools:
        - {{name: look, action: keyed}}
        - {{name: pay, action: effect}}
        - {{name: fix, action: shell, with: {{command: 'touch {0}'}}}}
",
        fixed.display()
    );
    let script = "
replies:
  - {calls: [{name: look, input: {}}, {name: pay, input: {}}, {name: fix, input: {}}]}
  - {text: Done.}
";
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    completed(&end);
    let how = back_to(&scene, id, "after begin").await;
    assert_eq!(named(&runner, id, &how).await, ["mend/round_1.mend/turn_1.2.pay", "mend/round_1.mend/turn_1.3.fix"]);
}

/// What a loop did in rounds that its ledger has forgotten happened all the same.
#[tokio::test]
async fn every_round_of_a_loop_is_named() {
    let scene = Scene::new();
    let text = "
memory: {n: 0}
nodes:
  begin: {action: keyed}
  post: {action: effect, needs: begin}
  sub: {action: graph, with: {graph: {nodes: {pay: {action: effect}}}}}
  count: {action: set, with: {n: {cel: memory.n + 1}}}
  ask: {action: ask, with: {question: 'Again?'}}
edges:
  - {from: post, to: sub}
  - {from: sub, to: count}
  - {from: count, to: ask}
  - {from: ask, to: post, when: output.answer == 'yes', limit: 5}
";
    let (id, _) = scene.start(text).await;
    let engine = scene.engine().await;
    answer(&engine, id, "ask", 0, "yes", "kim").await.unwrap();
    scene.resume(id).await;
    let runner = scene.runner(&engine);
    let how = back_to(&scene, id, "after begin").await;
    assert_eq!(named(&runner, id, &how).await, ["post", "sub/pay", "post", "sub#1/pay"]);
}

/// The attempt after the checkpoint is the one that had the effect, under the key that the checkpoint knows.
#[tokio::test]
async fn an_attempt_after_the_checkpoint_is_named() {
    let scene = Scene::new();
    scene.effects.fail.store(1, Ordering::SeqCst);
    let text = "nodes: {pay: {action: effect, retry: {attempts: 2, backoff: 10ms}}}";
    let (id, end) = scene.start(text).await;
    completed(&end);
    let engine = scene.engine().await;
    let how = back_to(&scene, id, "pay: no network").await;
    assert_eq!(named(&scene.runner(&engine), id, &how).await, ["pay"]);
    // One that failed had none.
    scene.effects.fail.store(2, Ordering::SeqCst);
    let (id, _) = scene.start(text).await;
    scene.effects.fail.store(0, Ordering::SeqCst);
    let how = back_to(&scene, id, "pay: no network").await;
    completed(&scene.runner(&engine).resume(id, how, None, &BTreeMap::new()).await.unwrap().0);
}

/// Back and forth between timelines: what happened on each of them counts.
#[tokio::test]
async fn effects_of_a_timeline_that_was_left_are_named_when_it_is_gone_back_to() {
    let scene = Scene::new();
    let text = "
nodes:
  one: {action: effect}
  two: {action: effect, needs: one}
  three: {action: effect, needs: two}
";
    let (id, _) = scene.start(text).await;
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let (first, second) = (back_to(&scene, id, "after one").await, back_to(&scene, id, "after two").await);
    assert_eq!(named(&runner, id, &first).await, ["two", "three"]);
    completed(&runner.clone().repeat_effects().resume(id, first, None, &BTreeMap::new()).await.unwrap().0);
    // On the head, and on the line of the checkpoint after it; the other is done where it leads to.
    assert_eq!(named(&runner, id, &second).await, ["three", "three"]);
}
