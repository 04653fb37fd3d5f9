//! Effects that happened, and what went wrong after them: they are asked about, and never silently repeated.

use std::collections::BTreeMap;
use std::path::Path;

use milepost::{NewSession, Point, Resume, SessionId};
use milepost_run::run::{End, Error, Settle};
use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::support::{Scene, completed, graph};

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// A command that notes that it ran, and a node with it.
fn node(log: &Path, command: &str, more: Value) -> String {
    let command = format!("echo paid >> {}; {command}", log.display());
    let mut node = json!({"action": "shell", "retry": {"attempts": 3, "backoff": "1ms"}, "with": {"command": command}});
    for (key, value) in more.as_object().unwrap() {
        match (key.as_str(), value) {
            ("with", Value::Object(more)) => node["with"].as_object_mut().unwrap().extend(more.clone()),
            _ => node[key] = value.clone(),
        }
    }
    json!({"nodes": {"pay": node}, "outputs": {"gave": "outputs.pay"}}).to_string()
}

async fn settled(scene: &Scene, id: SessionId, how: Settle) -> End {
    scene.resume_with(id, &BTreeMap::from([("pay".to_owned(), how)]), None).await.unwrap().0
}

#[tokio::test]
async fn what_goes_wrong_after_a_command_does_not_run_it_again() {
    for (command, more, why) in [
        ("echo ok", json!({"with": {"parse": "json"}}), "not JSON"),
        ("echo '{}'", json!({"with": {"parse": "json"}, "remember": {"id": "output.value.id"}}), "be remembered as id"),
        (
            "head -c 9000000 /dev/zero | tr '\\0' x",
            json!({"with": {"max_output_bytes": 10_000_000}}),
            "MAX_OUTPUT_BYTES",
        ),
    ] {
        let scene = Scene::new();
        let log = scene.dir.path().join("log");
        let (id, end) = scene.start(&node(&log, command, more)).await;
        assert!(matches!(&end, End::Uncertain { steps } if steps[0].0 == "pay"), "{end:?}");
        let recorded = scene.section(id, "execution").await["nodes"]["pay"].clone();
        assert!(recorded["error"].as_str().unwrap().contains(why), "{recorded}");
        assert_eq!(recorded["happened"], true);
        assert!(matches!(scene.resume(id).await, End::Uncertain { .. }), "it stays so");
        assert_eq!(lines(&log), 1, "{why}");
        let given = json!({"value": {"id": 7}});
        assert_eq!(completed(&settled(&scene, id, Settle::Happened(given.clone())).await)["gave"], given);
        assert_eq!(lines(&log), 1, "{why}");
    }
}

#[tokio::test]
async fn a_step_that_failed_after_its_effect_runs_again_when_somebody_says_so() {
    let scene = Scene::new();
    let log = scene.dir.path().join("log");
    let command = format!("test $(wc -l < {}) = 1 && echo no || echo '{{}}'", log.display());
    let (id, end) = scene.start(&node(&log, &command, json!({"with": {"parse": "json"}}))).await;
    assert!(matches!(end, End::Uncertain { .. }), "{end:?}");
    completed(&settled(&scene, id, Settle::RunAgain).await);
    assert_eq!(lines(&log), 2);
}

/// Whoever says only that it is done gets what it gave.
#[tokio::test]
async fn what_a_step_gave_that_failed_after_its_effect_is_kept() {
    let scene = Scene::new();
    let log = scene.dir.path().join("log");
    let (id, _) = scene.start(&node(&log, "echo ok", json!({"with": {"parse": "json"}}))).await;
    let end = settled(&scene, id, Settle::Happened(Value::Null)).await;
    assert_eq!(completed(&end)["gave"]["stdout"], "ok\n");
}

#[tokio::test]
async fn a_step_that_may_be_repeated_is_tried_again_after_its_effect() {
    let scene = Scene::new();
    let log = scene.dir.path().join("log");
    let more = json!({"with": {"parse": "json"}, "idempotent": true});
    let (_, end) = scene.start(&node(&log, "echo ok", more)).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("not JSON")), "{end:?}");
    assert_eq!(lines(&log), 3);
}

/// A failure that is gone on from is gone on from; going back names that it had its effect.
#[tokio::test]
async fn a_failure_after_the_effect_that_is_gone_on_from_had_its_effect() {
    let scene = Scene::new();
    let log = scene.dir.path().join("log");
    let (id, end) = scene.start(&node(&log, "echo ok", json!({"with": {"parse": "json"}, "on_error": "go_on"}))).await;
    completed(&end);
    assert_eq!(lines(&log), 1);
    let engine = scene.engine().await;
    let marks = engine.store().marks(id, &Default::default()).await.unwrap();
    let first = marks.last().unwrap().checkpoint.id;
    let how = Resume { reopen: true, take_over: true, ..Resume::from(Point::Checkpoint(first)) };
    let refused = scene.runner(&engine).resume(id, how, None, &BTreeMap::new()).await.unwrap_err();
    assert!(matches!(&refused, Error::Repeats { steps } if steps[0].0 == "pay"), "{refused}");
}

#[tokio::test]
async fn a_request_that_may_have_been_served_is_sent_again_only_where_that_is_harmless() {
    let receiver = Receiver::start().await;
    // The method, the status, how often it is sent, and whether somebody is asked.
    for (method, status, times, is_asked) in [
        ("POST", 500, 1, true),
        ("POST", 502, 1, true),
        ("POST", 504, 1, true),
        ("PATCH", 500, 1, true),
        ("PUT", 500, 3, false),
        ("GET", 502, 3, false),
        // Whoever is busy says that nothing happened.
        ("POST", 503, 3, false),
        ("POST", 429, 3, false),
        // An answer that is not the wanted one, but an answer.
        ("POST", 302, 1, true),
        ("POST", 202, 1, true),
        ("GET", 302, 1, false),
        ("PUT", 302, 1, false),
        // It was refused.
        ("POST", 400, 1, false),
    ] {
        let scene = Scene::new();
        let path = format!("/status/{status}/{method}");
        let node = json!({
            "action": "http", "retry": {"attempts": 3, "backoff": "1ms"},
            "with": {"url": format!("{}{path}", receiver.url), "method": method, "ok": [201]},
        });
        let (id, end) = scene.start(&json!({"nodes": {"pay": node}}).to_string()).await;
        assert_eq!(receiver.counts()[&path], (times, 1), "{method} {status}: {end:?}");
        assert_eq!(matches!(end, End::Uncertain { .. }), is_asked, "{method} {status}: {end:?}");
        if is_asked {
            assert!(matches!(scene.resume(id).await, End::Uncertain { .. }));
            assert_eq!(receiver.counts()[&path].0, 1, "{method} {status}");
        }
    }
}

/// The model is told, and nothing is repeated by itself.
#[tokio::test]
async fn an_agent_is_told_of_a_request_that_may_have_been_served() {
    let receiver = Receiver::start().await;
    let scene = Scene::new();
    let engine = scene.engine().await;
    let tool = json!({"name": "pay", "action": "http", "with": {"url": format!("{}/status/500", receiver.url), "method": "POST"}});
    let text = json!({"nodes": {"a": {"action": "agent", "with": {"prompt": "go", "tools": [tool]}}}}).to_string();
    let script = "replies:\n  - {calls: [{name: pay, input: {}}]}\n  - {text: done}\n";
    let (id, end) = scene.scripted(&engine, script).start(&graph(&text), NewSession::default()).await.unwrap();
    completed(&end);
    assert_eq!(receiver.counts()["/status/500"].0, 1);
    assert!(scene.said(id, "a").await[2].text().contains("status 500"));
}
