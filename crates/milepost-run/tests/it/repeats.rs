//! Steps that are run again with other input: what they do then counts, not what their file says.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::{NewSession, Point, Resume, SessionId};
use milepost_run::run::{Again, End, Error};
use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::support::{Scene, completed};

/// The step `call`, with these parameters in place of its own.
fn call_with(input: Value) -> Again {
    let input = input.as_object().cloned().unwrap_or_default();
    Again { node: "call".into(), round: None, input }
}

async fn newest(scene: &Scene) -> SessionId {
    scene.engine().await.sessions(&Default::default()).await.unwrap().sessions[0].id
}

/// A GET may be sent again; the POST that somebody put in its place may not.
#[tokio::test]
async fn a_request_that_was_replaced_by_one_with_an_effect_is_not_sent_again() {
    let (scene, receiver) = (Scene::new(), Receiver::start().await);
    let engine = scene.engine().await;
    let text = format!(
        "nodes: {{call: {{action: http, retry: {{attempts: 3, backoff: 1ms}}, with: {{url: '{}/call'}}}}}}",
        receiver.url
    );
    let (id, end) = scene.start(&text).await;
    completed(&end);
    // Nobody heard how it went.
    let again = call_with(json!({"method": "POST", "body": "pay", "url": format!("{}/lost", receiver.url)}));
    let (_, end) = scene.runner(&engine).rerun(id, &again, None, NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Uncertain { .. }), "{end:?}");
    assert_eq!(receiver.counts()["/lost"], (1, 1));
    // Killed right after it was sent, or right before.
    let again = call_with(json!({"method": "POST", "body": "pay", "url": format!("{}/killed", receiver.url)}));
    for boundary in [2, 3] {
        scene.clock.advance_ms(1);
        let runner = scene.runner(&engine).at_boundary(Arc::new(move |n| n == boundary));
        assert!(runner.rerun(id, &again, None, NewSession::default()).await.is_err());
        let sent = receiver.counts().get("/killed").copied().unwrap_or_default();
        let branch = newest(&scene).await;
        assert!(matches!(scene.resume(branch).await, End::Uncertain { .. }), "killed at {boundary}");
        assert_eq!(receiver.counts().get("/killed").copied().unwrap_or_default(), sent, "killed at {boundary}");
    }
    // And the other way round: what only looks may look again.
    let text = text.replace("'}", "', method: POST, body: pay}");
    let (id, end) = scene.start(&text).await;
    completed(&end);
    let again = call_with(json!({"method": "GET", "url": format!("{}/lost/get", receiver.url)}));
    let (_, end) = scene.runner(&engine).rerun(id, &again, None, NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { .. }), "{end:?}");
    assert_eq!(receiver.counts()["/lost/get"], (3, 1));
}

/// Ledgers of before do not say what a step does: it follows from what was put in the place of its parameters.
#[tokio::test]
async fn a_request_that_was_replaced_before_it_was_noted_is_not_sent_again() {
    let (scene, receiver) = (Scene::new(), Receiver::start().await);
    let engine = scene.engine().await;
    let text = format!("nodes: {{call: {{action: http, with: {{url: '{}/call'}}}}}}", receiver.url);
    let (id, _) = scene.start(&text).await;
    let runner = scene.runner(&engine).at_boundary(Arc::new(|n| n == 2));
    let again = call_with(json!({"method": "POST", "body": "pay"}));
    assert!(runner.rerun(id, &again, None, NewSession::default()).await.is_err());
    let branch = newest(&scene).await;
    let how = Resume { take_over: true, ..Resume::latest() };
    let held = engine.resume(branch, how).await.unwrap().session;
    let mut state = held.state().await.unwrap();
    let line = state.section_mut("execution")["nodes"]["call"].as_object_mut().unwrap();
    line.remove("repeat");
    assert_eq!((&line["status"], &line["replaced"]["method"]), (&json!("running"), &json!("POST")));
    held.set_state(state).await.unwrap();
    held.release().await.unwrap();
    assert!(matches!(scene.resume(branch).await, End::Uncertain { .. }));
    assert_eq!(receiver.counts()["/call"], (1, 1));
}

/// What is filled in decides, too: with a body it is a POST.
#[tokio::test]
async fn a_request_that_gets_its_body_from_a_template_is_judged_by_what_was_filled_in() {
    let (scene, receiver) = (Scene::new(), Receiver::start().await);
    let text = format!(
        "
memory: {{with: null}}
nodes: {{call: {{action: http, retry: {{attempts: 3, backoff: 1ms}}, with: {{url: '{}/lost', json: {{cel: memory.with}}}}}}}}
",
        receiver.url
    );
    let (_, end) = scene.start(&text).await;
    assert!(matches!(&end, End::Paused { .. }), "it is a GET: {end:?}");
    assert_eq!(receiver.counts()["/lost"], (3, 1));
    let (_, end) = scene.start(&text.replace("with: null", "with: {amount: 3}")).await;
    assert!(matches!(&end, End::Uncertain { .. }), "it is a POST: {end:?}");
    assert_eq!(receiver.counts()["/lost"], (4, 2));
}

/// Going back before it names it.
#[tokio::test]
async fn a_request_that_was_replaced_by_one_with_an_effect_is_named_before_it_is_gone_back_to() {
    let (scene, receiver) = (Scene::new(), Receiver::start().await);
    let engine = scene.engine().await;
    let text = format!(
        "{{nodes: {{first: {{action: keyed}}, call: {{action: http, with: {{url: '{}/call'}}, needs: first}}}}}}",
        receiver.url
    );
    let (id, _) = scene.start(&text).await;
    let again = call_with(json!({"method": "POST", "body": "pay"}));
    let runner = scene.runner(&engine);
    let (branch, end) = runner.rerun(id, &again, None, NewSession::default()).await.unwrap();
    completed(&end);
    assert_eq!(receiver.counts()["/call"], (2, 2));
    let marks = engine.store().marks(branch, &Default::default()).await.unwrap();
    let before = marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some("before call")).unwrap();
    let how = Resume { reopen: true, ..Resume::from(Point::Checkpoint(before.checkpoint.id)) };
    // At this checkpoint it was begun: it is asked about by itself.
    let (end, _) = runner.resume(branch, how, None, &BTreeMap::new()).await.unwrap();
    assert!(matches!(&end, End::Uncertain { .. }), "{end:?}");
    assert_eq!(receiver.counts()["/call"], (2, 2));
}

/// What had no effect is not asked about, whatever its file makes it look like.
#[tokio::test]
async fn a_request_without_a_body_is_gone_back_to_without_a_question() {
    let (scene, receiver) = (Scene::new(), Receiver::start().await);
    let engine = scene.engine().await;
    let text = format!(
        "
memory: {{with: null}}
nodes:
  first: {{action: keyed}}
  call: {{action: http, with: {{url: '{}/call', json: {{cel: memory.with}}}}, needs: first}}
",
        receiver.url
    );
    let runner = scene.runner(&engine);
    let back = |text: String| {
        let (scene, engine, runner) = (&scene, &engine, &runner);
        async move {
            let (id, end) = scene.start(&text).await;
            completed(&end);
            let marks = engine.store().marks(id, &Default::default()).await.unwrap();
            let after =
                marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some("after first")).unwrap();
            let how = Resume { reopen: true, ..Resume::from(Point::Checkpoint(after.checkpoint.id)) };
            runner.resume(id, how, None, &BTreeMap::new()).await
        }
    };
    completed(&back(text.clone()).await.unwrap().0);
    assert_eq!(receiver.counts()["/call"], (2, 2));
    let refused = back(text.replace("with: null", "with: {amount: 3}")).await.unwrap_err();
    assert!(matches!(refused, Error::Repeats { .. }), "{refused}");
}

fn again(node: &str) -> Again {
    Again { node: node.into(), ..Again::default() }
}

/// What the run did since so many effects.
fn since(scene: &Scene, before: usize) -> Vec<String> {
    scene.effects.nodes().split_off(before)
}

/// Two ways that meet again, and overwrite what one of them remembered.
const WAYS: &str = "
memory: {found: nothing, more: nothing}
nodes:
  a: {action: effect}
  b: {action: effect, remember: {found: output.node, more: output.node}}
  c: {action: effect}
  d: {action: effect, with: {b: '{{ outputs.b.node }} {{ memory.found }} {{ memory.more }}'}, remember: {found: output.node}}
edges:
  - {from: a, to: b}
  - {from: a, to: c}
  - {from: b, to: d}
  - {from: c, to: d}
outputs: {d: outputs.d.with.b}
";

/// What is done beside a step does not follow it.
#[tokio::test]
async fn what_ran_beside_a_step_does_not_run_again_with_it() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let (id, end) = scene.start(WAYS).await;
    assert_eq!(completed(&end)["d"], "b b b");
    let ran = scene.effects.nodes().len();
    let runner = scene.runner(&engine);
    let named = runner.happens_again(id, &again("c"), None).await.unwrap();
    assert_eq!(named.iter().map(|(step, _)| step.as_str()).collect::<Vec<_>>(), ["c", "d"]);
    let (branch, end) = runner.rerun(id, &again("c"), None, NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["d"], "b b b", "what they gave and remembered is there");
    assert_eq!(since(&scene, ran), ["c", "d"]);
    let path = scene.section(branch, "execution").await["path"].clone();
    assert_eq!(path, json!(["a", "b", "c", "d"]));
    // Also when it was done without an effect of its own.
    let (_, end) = runner.rerun(id, &again("b"), None, NewSession::default()).await.unwrap();
    completed(&end);
    assert_eq!(since(&scene, ran + 2), ["b", "d"]);
}

/// Of a step in a loop, what ran beside it in its round; the rounds after it follow it.
#[tokio::test]
async fn what_ran_beside_a_step_in_its_round_does_not_run_again_with_it() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "
memory: {n: 0}
nodes:
  a: {action: effect}
  b: {action: effect}
  c: {action: effect}
  count: {action: set, with: {n: {cel: memory.n + 1}}}
  beside: {action: effect}
edges:
  - {from: a, to: b}
  - {from: a, to: c}
  - {from: b, to: count}
  - {from: c, to: count}
  - {from: count, to: a, when: memory.n < 2, limit: 5}
start: [a, beside]
outputs: {n: memory.n}
";
    let (id, _) = scene.start(text).await;
    let ran = scene.effects.nodes().len();
    assert_eq!(ran, 7);
    let first = Again { round: Some(0), ..again("c") };
    let named = scene.runner(&engine).happens_again(id, &first, None).await.unwrap();
    assert_eq!(named.len(), 4, "it, and the second round: {named:?}");
    let (_, end) = scene.runner(&engine).rerun(id, &first, None, NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["n"], 2);
    let mut again_in_order = since(&scene, ran);
    assert_eq!(again_in_order.remove(0), "c");
    assert_eq!(again_in_order.remove(0), "a");
    again_in_order.sort();
    assert_eq!(again_in_order, ["b", "c"], "the second round");
    let ran = scene.effects.nodes().len();
    let (_, end) = scene.runner(&engine).rerun(id, &again("c"), None, NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["n"], 2);
    assert_eq!(since(&scene, ran), ["c"]);
}

/// What cannot be taken over would happen again, and needs a yes.
#[tokio::test]
async fn what_is_open_beside_a_step_happens_again_only_with_a_yes() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "
nodes:
  a: {action: keyed}
  talk: {action: agent, needs: a, with: {prompt: go, tools: [{name: pay, action: effect}, ask]}}
  c: {action: effect, needs: a}
";
    let script = "
replies:
  - {calls: [{name: pay, input: {}}]}
  - {calls: [{name: ask, input: {question: 'Go on?'}}]}
";
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&crate::support::graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    let refused = runner.rerun(id, &again("c"), None, NewSession::default()).await.unwrap_err();
    let Error::Repeats { steps } = &refused else { panic!("{refused}") };
    assert_eq!(steps.iter().map(|(step, _)| step.as_str()).collect::<Vec<_>>(), ["talk/turn_1.1.pay"]);
    assert_eq!((scene.effects.counts()["c"], scene.effects.counts()["talk/turn_1.1.pay"]), ((1, 1), (1, 1)));
    let (_, end) = runner.repeat_effects().rerun(id, &again("c"), None, NewSession::default()).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    assert_eq!((scene.effects.counts()["c"], scene.effects.counts()["talk/turn_1.1.pay"]), ((2, 2), (2, 2)));
}
