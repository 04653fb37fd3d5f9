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
