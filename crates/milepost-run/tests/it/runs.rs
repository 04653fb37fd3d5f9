//! Runs: order, conditions, loops, retries, pauses, and going on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use milepost::{NewSession, Resume};
use milepost_models::{Cancel, Scripted, Timer};
use milepost_run::run::{End, Error, Settle};
use serde_json::json;

use crate::support::{Scene, completed, graph};

const PLAN: &str = "
steps:
  - {id: a, action: effect}
  - {id: b, action: effect, dependencies: [a]}
  - {id: c, action: effect, dependencies: [a]}
  - {id: d, action: effect, dependencies: [b, c], with: {from: '{{ outputs.b.node }}{{ outputs.c.node }}'}}
outputs: {last: outputs.d.with.from}
";

#[tokio::test]
async fn steps_run_once_each_in_the_order_of_their_dependencies() {
    let scene = Scene::new();
    let (id, end) = scene.start(PLAN).await;
    assert_eq!(completed(&end)["last"], "bc");
    let nodes = scene.effects.nodes();
    assert_eq!(
        (nodes.first().map(String::as_str), nodes.last().map(String::as_str), nodes.len()),
        (Some("a"), Some("d"), 4)
    );
    assert_eq!(scene.status(id).await, "completed");
    let execution = scene.section(id, "execution").await;
    assert_eq!(execution["nodes"]["d"]["status"], "completed");
    assert_eq!(execution["path"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn ways_that_are_not_taken_are_skipped_with_all_that_lies_behind() {
    let scene = Scene::new();
    let text = "
memory: {n: 1}
nodes:
  a: {action: keyed}
  yes: {action: keyed}
  no: {action: keyed}
  after_no: {action: keyed}
  both: {action: keyed}
edges:
  - {from: a, to: yes, when: memory.n == 1}
  - {from: a, to: no, when: memory.n != 1}
  - {from: no, to: after_no}
  - {from: yes, to: both}
  - {from: after_no, to: both}
";
    let (id, end) = scene.start(text).await;
    completed(&end);
    assert_eq!(scene.effects.nodes(), ["a", "yes", "both"]);
    let nodes = &scene.section(id, "execution").await["nodes"];
    assert_eq!((&nodes["no"]["status"], &nodes["after_no"]["status"]), (&json!("skipped"), &json!("skipped")));
}

const LOOP: &str = "
memory: {count: 0}
nodes:
  work: {action: effect, with: {round: '{{ iteration }}'}}
  count: {action: set, with: {count: {cel: memory.count + 1}}}
  rarely: {action: effect}
  last: {action: effect}
edges:
  - {from: work, to: count}
  - {from: count, to: work, when: memory.count < 3, limit: 5}
  - {from: work, to: rarely, when: iteration == 2}
  - {from: count, to: last}
outputs: {count: memory.count}
";

#[tokio::test]
async fn a_loop_runs_until_its_condition_no_longer_holds() {
    let scene = Scene::new();
    let (_, end) = scene.start(LOOP).await;
    assert_eq!(completed(&end)["count"], 3);
    let counts = scene.effects.counts();
    assert_eq!(counts["work"], (3, 3), "each round has a key of its own");
    assert_eq!((counts["last"], counts["rarely"]), ((1, 1), (1, 1)));
}

#[tokio::test]
async fn a_loop_at_its_limit_pauses_or_goes_on() {
    let scene = Scene::new();
    let text = LOOP.replace("memory.count < 3, limit: 5", "memory.count < 9, limit: 2");
    let (id, end) = scene.start(&text).await;
    let End::Paused { node, why } = &end else { panic!("{end:?}") };
    assert_eq!(
        (node.as_deref(), why.as_str()),
        (Some("count"), "the loop count>work was taken 2 times, its limit, and its condition still holds")
    );
    assert_eq!(scene.status(id).await, "paused");
    assert_eq!(scene.effects.counts()["work"].0, 3);
    assert!(matches!(scene.resume(id).await, End::Paused { .. }), "nothing changed");
    let other = graph(&text.replace("limit: 2", "limit: 2, on_limit: go_on"));
    let (end, _) = scene.resume_with(id, &BTreeMap::new(), Some(&other)).await.unwrap();
    completed(&end);
    assert_eq!(scene.effects.counts()["last"], (1, 1));
}

#[tokio::test]
async fn a_step_that_fails_is_tried_again_later_and_then_pauses_the_run() {
    let scene = Scene::new();
    scene.effects.fail.store(2, Ordering::SeqCst);
    let before = scene.clock.clone();
    let start = milepost::model::Clock::now(&*before);
    let (_, end) = scene.start("nodes:\n  a: {action: effect, retry: {attempts: 3, backoff: 2s}}\n").await;
    completed(&end);
    assert_eq!(scene.effects.counts()["a"], (1, 1));
    let waited = milepost::model::Clock::now(&*before).since_ms(start);
    assert!((3000..=6100).contains(&waited), "two waits of 1 to 2 and 2 to 4 seconds: {waited}");

    scene.effects.fail.store(3, Ordering::SeqCst);
    let (id, end) = scene.start("nodes:\n  b: {action: effect, retry: 3}\n").await;
    assert_eq!(end, End::Paused { node: Some("b".into()), why: "no network".into() });
    assert_eq!(scene.section(id, "execution").await["last_error"]["message"], "no network");
}

/// The network is lost in step 2 of 5: the resume goes on at step 2.
#[tokio::test]
async fn a_resume_goes_on_at_the_step_that_failed() {
    let scene = Scene::new();
    let text = "steps:\n  - {id: s1, action: set, with: {x: 1}}\n  - {id: s2, action: effect, needs: s1, retry: 2}\n  - {id: s3, action: effect, needs: s2}\n  - {id: s4, action: effect, needs: s3}\n  - {id: s5, action: effect, needs: s4}\n";
    scene.effects.fail.store(2, Ordering::SeqCst);
    let (id, end) = scene.start(text).await;
    assert_eq!(end, End::Paused { node: Some("s2".into()), why: "no network".into() });
    assert_eq!((scene.status(id).await.as_str(), scene.effects.nodes().len()), ("paused", 0));
    completed(&scene.resume(id).await);
    assert_eq!(scene.effects.nodes(), ["s2", "s3", "s4", "s5"]);
}

#[tokio::test]
async fn a_failure_may_be_gone_on_from() {
    let scene = Scene::new();
    scene.effects.fail.store(1, Ordering::SeqCst);
    let text = "
nodes:
  a: {action: effect, retry: 1, on_error: go_on}
  mend: {action: keyed, with: {why: '{{ outputs.a }}'}}
  fine: {action: keyed}
edges:
  - {from: a, to: mend, when: failed && error.contains('network')}
  - {from: a, to: fine, when: '!failed'}
";
    let (_, end) = scene.start(text).await;
    completed(&end);
    assert_eq!(scene.effects.nodes(), ["mend"]);
}

#[tokio::test]
async fn what_goes_wrong_inside_pauses_with_the_reason() {
    let scene = Scene::new();
    let (_, end) = scene.start("memory: {n: null}\nnodes:\n  a: {action: keyed}\n  b: {action: keyed}\nedges:\n  - {from: a, to: b, when: memory.n > 3}\n").await;
    assert!(
        matches!(&end, End::Paused { why, .. } if why.contains("the condition of the edge at g.yaml:6:5 cannot be evaluated")),
        "{end:?}"
    );
    let (_, end) =
        scene.start("nodes:\n  a: {action: keyed, with: {x: '{{ memory.list[7].y }}'}}\nmemory: {list: []}\n").await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("x cannot be filled in")), "{end:?}");
    let (_, end) = scene.start("nodes:\n  a: {action: keyed, remember: {x: output.nothing.at}}\n").await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("cannot be remembered as x")), "{end:?}");
    let engine = scene.engine().await;
    let missing = milepost_run::run::Runner::new(&engine)
        .start(&graph("nodes:\n  a: {action: effect}\n"), NewSession::default())
        .await;
    assert!(missing.unwrap_err().to_string().contains("which this program does not have"));
}

#[tokio::test]
async fn an_uncertain_effect_is_asked_about_and_never_repeated_by_itself() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "steps:\n  - {id: pay, action: effect}\n  - {id: tell, action: keyed, needs: pay}\n";
    // The effect happens; its outcome is not stored any more.
    let runner = scene.runner(&engine).at_boundary(Arc::new(|n| n == 3));
    let stopped = runner.start(&graph(text), NewSession::default()).await.unwrap_err();
    assert!(matches!(stopped, Error::Stopped { boundary: 3 }), "{stopped}");
    drop(engine);
    let engine = scene.engine().await;
    let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let end = scene.resume(id).await;
    let End::Uncertain { steps } = &end else { panic!("{end:?}") };
    assert_eq!((steps[0].0.as_str(), scene.status(id).await.as_str()), ("pay", "paused"));
    assert!(matches!(scene.resume(id).await, End::Uncertain { .. }), "it stays so");
    assert_eq!(scene.effects.nodes(), ["pay"]);
    let settle = BTreeMap::from([("pay".to_owned(), Settle::Happened(json!({"paid": true})))]);
    completed(&scene.resume_with(id, &settle, None).await.unwrap().0);
    assert_eq!(scene.effects.nodes(), ["pay", "tell"]);
    assert_eq!(scene.section(id, "execution").await["outputs"]["pay"], json!({"paid": true}));
}

#[tokio::test]
async fn a_step_that_is_another_now_is_refused_and_other_changes_are_listed() {
    let scene = Scene::new();
    scene.effects.fail.store(9, Ordering::SeqCst);
    let text = "steps:\n  - {id: a, action: set, with: {x: 1}}\n  - {id: b, action: effect, needs: a, retry: {attempts: 5, backoff: 1h}}\n";
    let (id, end) = scene.start(text).await;
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    let other = graph(&text.replace("action: effect", "action: keyed"));
    let refused = scene.resume_with(id, &BTreeMap::new(), Some(&other)).await.unwrap_err();
    assert!(refused.to_string().starts_with("step b was begun as another step"), "{refused}");
    let gone = graph("steps:\n  - {id: a, action: set, with: {x: 1}}\n");
    let refused = scene.resume_with(id, &BTreeMap::new(), Some(&gone)).await.unwrap_err();
    assert!(matches!(&refused, Error::Incompatible { name, .. } if name == "b"), "{refused}");
    scene.effects.fail.store(0, Ordering::SeqCst);
    let more = graph(&(text.replace("{x: 1}", "{x: 2}") + "  - {id: c, action: keyed, needs: b}\n"));
    scene.clock.advance_ms(7_200_000);
    let (end, changes) = scene.resume_with(id, &BTreeMap::new(), Some(&more)).await.unwrap();
    completed(&end);
    assert_eq!(changes, ["node a is another, and was done as it was", "node c is new", "edge b>c is new"]);
    assert_eq!(scene.effects.nodes(), ["b", "c"]);
}

#[tokio::test]
async fn a_limit_of_a_model_is_waited_for_and_not_a_failure() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "replies:\n  - limited: {after_ms: 3600000, why: too many requests}\n  - text: '```json\n      {\"score\": 9}\n      ```'\n";
    let source = engine.source().clone();
    let model = Arc::new(Scripted::parse("s.yaml".as_ref(), script, Timer::none()).unwrap().with_source(source));
    let runner = scene.runner(&engine).model(model);
    let text = "nodes:\n  a: {action: model, with: {prompt: rate, json: true}, retry: 1, remember: {score: output.json.score}}\noutputs: {score: memory.score}\n";
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    let End::Waiting { until: Some(_), what } = &end else { panic!("{end:?}") };
    assert_eq!(what[0].1, "a limit: too many requests");
    assert_eq!(scene.status(id).await, "waiting");
    assert!(runner.claim_due(10).await.unwrap().is_empty(), "not yet");
    scene.clock.advance_ms(3_600_001);
    assert_eq!(runner.claim_due(10).await.unwrap(), [id]);
    assert!(runner.claim_due(10).await.unwrap().is_empty(), "one process is enough");
    let (end, _) = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap();
    assert_eq!(completed(&end)["score"], 9);
    scene.clock.advance_ms(3_600_001);
    assert!(runner.claim_due(10).await.unwrap().is_empty(), "it is over");
}

#[tokio::test]
async fn independent_steps_run_at_the_same_time_up_to_the_limit() {
    let scene = Scene::new();
    let dir = scene.dir.path().display().to_string();
    // Each of two waits until the other has begun: alone, neither would end.
    let step = |own: &str, other: &str| {
        format!(
            "  - {{id: {own}, action: shell, timeout: 20s, with: {{command: 'touch {dir}/{own}; while ! test -e {dir}/{other}; do sleep 0.02; done'}}}}\n"
        )
    };
    let (_, end) = scene.start(&format!("parallel: 2\nsteps:\n{}{}", step("a", "b"), step("b", "a"))).await;
    completed(&end);
}

#[tokio::test]
async fn a_run_that_is_stopped_is_paused_and_goes_on() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let cancel = Cancel::new();
    let runner = scene.runner(&engine).cancel(cancel.clone()).grace_ms(10_000);
    let marker = scene.dir.path().join("begun");
    let text = format!(
        "nodes:\n  a: {{action: shell, idempotent: true, with: {{command: 'test -e {0} || {{ touch {0}; sleep 60; }}'}}}}\n",
        marker.display()
    );
    let graph = graph(&text);
    let (started, ()) = tokio::join!(runner.start(&graph, NewSession::default()), async {
        while !marker.exists() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    let (id, end) = started.unwrap();
    assert_eq!((end, scene.status(id).await.as_str()), (End::Stopped, "paused"));
    completed(&scene.resume(id).await);
}
