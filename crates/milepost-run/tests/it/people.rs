//! Waiting for people and for time.

use milepost_run::run::{Answered, End, answer};
use serde_json::json;

use crate::support::{Scene, completed};

const ASK: &str = "
nodes:
  which: {action: ask, with: {question: 'Which way?', choices: [left, right], timeout: 1d, default: left}}
  go: {action: keyed, with: {way: '{{ outputs.which.answer }}'}}
edges: [{from: which, to: go}]
outputs: {way: outputs.go.with.way, by: outputs.which.by}
";

#[tokio::test]
async fn a_question_waits_for_the_first_answer_that_is_one() {
    let scene = Scene::new();
    let (id, end) = scene.start(ASK).await;
    let End::Waiting { until: Some(_), what } = &end else { panic!("{end:?}") };
    assert_eq!(what[0], ("which".to_owned(), "an answer: Which way? (left, right)".to_owned()));
    assert_eq!(scene.status(id).await, "waiting");
    let engine = scene.engine().await;
    assert_eq!(answer(&engine, id, "which", 0, "up", "kim").await.unwrap(), Answered::First);
    assert!(matches!(scene.resume(id).await, End::Waiting { .. }), "it is none of the choices");
    assert_eq!(answer(&engine, id, "which", 0, "right", "kim").await.unwrap(), Answered::First);
    let late = answer(&engine, id, "which", 0, "left", "lee").await.unwrap();
    assert_eq!(late, Answered::Late { answer: "right".into(), by: "kim".into() });
    assert_eq!(
        serde_json::Value::Object(completed(&scene.resume(id).await).clone()),
        json!({"way": "right", "by": "kim"})
    );
    assert!(
        answer(&engine, id, "which", 0, &"x".repeat(70_000), "kim")
            .await
            .unwrap_err()
            .to_string()
            .contains("MAX_ANSWER_BYTES")
    );
}

#[tokio::test]
async fn a_question_nobody_answers_takes_its_default() {
    let scene = Scene::new();
    let (id, _) = scene.start(ASK).await;
    scene.clock.advance_ms(86_400_001);
    assert_eq!(completed(&scene.resume(id).await)["way"], "left");
    let (id, _) = scene.start(&ASK.replace(", default: left", "")).await;
    scene.clock.advance_ms(86_400_001);
    let end = scene.resume(id).await;
    assert!(matches!(&end, End::Paused { why, .. } if why == "nobody answered in time"), "{end:?}");
}

#[tokio::test]
async fn an_answer_may_come_before_the_question() {
    let scene = Scene::new();
    let text = "steps:\n  - {id: nap, action: wait, with: {for: 1h}}\n  - {id: ok, action: approve, needs: nap, with: {question: 'Ship?'}}\n";
    let (id, end) = scene.start(text).await;
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    answer(&scene.engine().await, id, "ok", 0, "yes", "kim").await.unwrap();
    scene.clock.advance_ms(3_600_000);
    completed(&scene.resume(id).await);
    assert_eq!(scene.section(id, "execution").await["outputs"]["ok"], json!({"approved": true, "by": "kim"}));
}

#[tokio::test]
async fn what_is_not_approved_pauses_the_run() {
    let scene = Scene::new();
    let (id, end) = scene.start("nodes:\n  ok: {action: approve, with: {question: 'Ship?'}}\n").await;
    let End::Waiting { until: None, .. } = &end else { panic!("{end:?}") };
    answer(&scene.engine().await, id, "ok", 0, "no", "kim").await.unwrap();
    let end = scene.resume(id).await;
    assert!(matches!(&end, End::Paused { why, .. } if why == "it was not approved (kim)"), "{end:?}");
}

#[tokio::test]
async fn a_short_wait_is_waited_out_and_a_long_one_ends_the_turn() {
    let scene = Scene::new();
    let (_, end) = scene.start("nodes:\n  a: {action: wait, with: {for: 3s}}\n").await;
    completed(&end);
    let (id, end) = scene.start("nodes:\n  a: {action: wait, with: {until: '2026-01-02T00:00:00Z'}}\n").await;
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    assert!(matches!(scene.resume(id).await, End::Waiting { .. }), "not yet");
    scene.clock.advance_ms(86_400_000);
    completed(&scene.resume(id).await);
    let (_, end) = scene.start("nodes:\n  a: {action: wait, with: {until: soon}}\n").await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("not a date")), "{end:?}");
}
