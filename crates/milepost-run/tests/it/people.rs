//! Waiting for people and for time.

use std::collections::BTreeMap;

use milepost::store::MasterKey;
use milepost::{NewSession, Resume};
use milepost_run::run::{Answer, Answered, End, Error, answer, change_answer};
use serde_json::json;

use crate::support::{Scene, completed, graph};

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

/// A yes or a no that nobody gives in time is the one that the graph says.
#[tokio::test]
async fn an_approval_that_nobody_gives_is_the_default() {
    for (default, is_approved) in [("yes", true), ("no", false)] {
        let scene = Scene::new();
        let text = format!(
            "nodes:\n  ok: {{action: approve, with: {{question: 'Ship?', timeout: 1d, default: {default}}}}}\n  ship: {{action: effect, needs: ok}}\n"
        );
        let (id, end) = scene.start(&text).await;
        assert!(matches!(end, End::Waiting { until: Some(_), .. }), "{end:?}");
        scene.clock.advance_ms(86_390_000);
        assert!(matches!(scene.resume(id).await, End::Waiting { .. }), "not yet");
        scene.clock.advance_ms(10_001);
        match scene.resume(id).await {
            End::Completed { .. } => assert!(is_approved),
            End::Paused { why, .. } => {
                assert_eq!((is_approved, why.as_str()), (false, "it was not approved (nobody answered in time)"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(scene.effects.nodes().len(), usize::from(is_approved));
    }
}

/// Before a person is waited for there is a checkpoint, which says for what: also inside of a graph.
#[tokio::test]
async fn waiting_for_a_person_is_a_checkpoint() {
    let inner = json!({"nodes": {"which": {"action": "ask", "with": {"question": "Which way?"}}}});
    let inside = json!({"nodes": {"sub": {"action": "graph", "with": {"graph": inner}}}}).to_string();
    for (text, name) in [(ASK, "which"), (inside.as_str(), "sub/which")] {
        let scene = Scene::new();
        let (id, end) = scene.start(text).await;
        assert!(matches!(end, End::Waiting { .. }), "{end:?}");
        let marks = scene.engine().await.store().marks(id, &Default::default()).await.unwrap();
        let said = marks.iter().filter(|mark| mark.checkpoint.trigger.as_str() == "user_checkpoint");
        let said: Vec<&str> = said.filter_map(|mark| mark.checkpoint.description.as_deref()).collect();
        let wanted = format!("{name} waits for an answer: Which way?");
        assert!(said.iter().any(|said| said.starts_with(&wanted)), "{text}: {said:?}");
    }
}

#[tokio::test]
async fn what_was_denied_can_be_approved_until_the_run_has_gone_on() {
    let scene = Scene::new();
    let (id, _) = scene.start("nodes:\n  ok: {action: approve, with: {question: 'Ship?'}}\n").await;
    let engine = scene.engine().await;
    assert_eq!(change_answer(&engine, id, "ok", 0, "no", "kim").await.unwrap(), None, "there was none before");
    assert!(matches!(scene.resume(id).await, End::Paused { .. }));
    assert!(matches!(scene.resume(id).await, End::Paused { .. }), "the answer stays until it is changed");
    let before = change_answer(&engine, id, "ok", 0, "yes", "lee").await.unwrap();
    assert_eq!(before, Some(Answer { answer: "no".into(), by: "kim".into() }));
    completed(&scene.resume(id).await);
    assert_eq!(scene.section(id, "execution").await["outputs"]["ok"], json!({"approved": true, "by": "lee"}));
    let error = change_answer(&engine, id, "ok", 0, "no", "kim").await.unwrap_err().to_string();
    assert!(error.contains("the run has gone on with it"), "{error}");
    let long = change_answer(&engine, id, "ok", 1, &"x".repeat(70_000), "kim").await.unwrap_err().to_string();
    assert!(long.contains("MAX_ANSWER_BYTES"), "{long}");
}

#[tokio::test]
async fn an_answer_that_led_elsewhere_is_not_changed() {
    let scene = Scene::new();
    let text = "
nodes:
  ok: {action: approve, with: {question: 'Ship?'}, on_error: go_on}
  held: {action: ask, with: {question: 'Why not?'}}
edges: [{from: ok, to: held, when: failed}]
";
    let (id, _) = scene.start(text).await;
    let engine = scene.engine().await;
    answer(&engine, id, "ok", 0, "no", "kim").await.unwrap();
    assert!(matches!(scene.resume(id).await, End::Waiting { .. }));
    assert!(change_answer(&engine, id, "ok", 0, "yes", "kim").await.is_err());
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
    let (_, end) = scene.start("nodes:\n  a: {action: wait, with: {until: '{{ node }}'}}\n").await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("not a date")), "{end:?}");
}

/// Whichever process is alive when a wait is over goes on with it, and only one does.
#[tokio::test]
async fn a_wait_that_is_over_is_given_to_one_process() {
    let scene = Scene::new();
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(scene.start("nodes:\n  a: {action: wait, with: {for: 1h}}\n").await.0);
    }
    scene.clock.advance_ms(3_600_000);
    let (one, other) = (scene.engine().await, scene.engine().await);
    let (one, other) = (scene.runner(&one), scene.runner(&other));
    let (mine, theirs) = tokio::join!(one.claim_due(10), other.claim_due(10));
    let mut claimed = [mine.unwrap(), theirs.unwrap()].concat();
    claimed.sort();
    waiting.sort();
    assert_eq!(claimed, waiting);
    // Who claimed it died: another may, later.
    assert!(one.claim_due(10).await.unwrap().is_empty());
    scene.clock.advance_ms(60_001);
    assert_eq!(other.claim_due(10).await.unwrap().len(), 5);
}

/// A yes belongs to what was asked: after the session was set back, and the draft written anew, it is asked for again.
#[tokio::test]
async fn an_approval_does_not_count_on_another_timeline() {
    let scene = Scene::new();
    let text = "
nodes:
  draft: {action: keyed}
  ok: {action: approve, with: {question: 'Ship?'}, needs: draft}
  ship: {action: effect, needs: ok}
";
    let (id, _) = scene.start(text).await;
    let engine = scene.engine().await;
    answer(&engine, id, "ok", 0, "yes", "kim").await.unwrap();
    completed(&scene.resume(id).await);
    let marks = engine.store().marks(id, &Default::default()).await.unwrap();
    let before = marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some("before draft")).unwrap();
    let point = milepost::Point::Checkpoint(before.checkpoint.id);
    let how = Resume { take_over: true, reopen: true, ..Resume::from(point) };
    let runner = scene.runner(&engine);
    let refused = runner.resume(id, how.clone(), None, &Default::default()).await.unwrap_err();
    assert!(matches!(&refused, Error::Repeats { steps } if steps.len() == 1 && steps[0].0 == "ship"), "{refused}");
    assert_eq!(scene.effects.nodes(), ["draft", "ship"], "nothing was done");
    let (end, _) = runner.repeat_effects().resume(id, how, None, &Default::default()).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "the yes was meant for the draft of then: {end:?}");
    assert_eq!(scene.effects.counts()["ship"], (1, 1));
    answer(&engine, id, "ok", 0, "yes", "lee").await.unwrap();
    completed(&scene.resume(id).await);
    assert_eq!(scene.effects.counts()["ship"], (2, 2));
}

/// Neither where answers are kept, nor where anything else is.
#[tokio::test]
async fn nothing_that_a_graph_says_lies_in_clear_in_an_encrypted_workspace() {
    let mut scene = Scene::new();
    scene.options.store.keys.master = Some(MasterKey::from_bytes([7; 32]));
    let text = "
nodes:
  marmalade: {action: ask, with: {question: 'Is it persimmon?'}}
  zebrafish: {action: model, with: {prompt: 'tell of {{ outputs.marmalade.answer }}'}}
edges: [{from: marmalade, to: zebrafish}]
";
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, "replies: [{text: tamarind}]");
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    answer(&engine, id, "marmalade", 0, "rhubarb", "kim").await.unwrap();
    completed(&runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap().0);
    assert_eq!(scene.said(id, "zebrafish").await.last().unwrap().text(), "tamarind");
    for file in std::fs::read_dir(scene.dir.path()).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for word in ["marmalade", "persimmon", "zebrafish", "rhubarb", "tamarind"] {
            let is_there = bytes.windows(word.len()).any(|part| part == word.as_bytes());
            assert!(!is_there, "{word} is in {}", path.display());
        }
    }
}

/// Whoever sets a session back and goes on is asked as well: it is the same, in two steps.
#[tokio::test]
async fn a_session_that_was_set_back_does_not_repeat_effects_in_silence() {
    let scene = Scene::new();
    let text = "
nodes:
  one: {action: effect}
  two: {action: effect, needs: one}
  keyed: {action: keyed, needs: two}
  ask: {action: ask, with: {question: 'Well?'}, needs: keyed}
";
    let (id, _) = scene.start(text).await;
    let engine = scene.engine().await;
    let marks = engine.store().marks(id, &Default::default()).await.unwrap();
    let after = marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some("after one")).unwrap();
    let held = engine.hold(id).await.unwrap();
    held.restore(&milepost::Point::Checkpoint(after.checkpoint.id)).await.unwrap();
    held.release().await.unwrap();
    let runner = scene.runner(&engine);
    let resume = |runner: milepost_run::run::Runner| async move {
        runner.resume(id, Resume { take_over: true, ..Resume::latest() }, None, &BTreeMap::new()).await
    };
    let refused = resume(runner.clone()).await.unwrap_err();
    assert!(matches!(&refused, Error::Repeats { steps } if steps.len() == 1 && steps[0].0 == "two"), "{refused}");
    assert!(matches!(resume(runner.clone().repeat_effects()).await.unwrap().0, End::Waiting { .. }));
    assert_eq!(scene.effects.nodes(), ["one", "two", "keyed", "two", "keyed"]);
    // It was said once for this timeline.
    assert!(matches!(resume(runner).await.unwrap().0, End::Waiting { .. }));
}

/// An answer is followed while another branch runs, which waits here for what the answer leads to.
#[tokio::test]
async fn an_answer_is_followed_while_other_steps_run() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let dir = scene.dir.path().display().to_string();
    let text = format!(
        "
parallel: 2
start: [long, q]
nodes:
  long: {{action: shell, timeout: 30s, with: {{command: 'touch {dir}/begun; while ! test -e {dir}/told; do sleep 0.02; done'}}}}
  q: {{action: ask, with: {{question: 'Go on?'}}}}
  tell: {{action: shell, with: {{command: 'touch {dir}/told'}}, needs: q}}
"
    );
    let runner = scene.runner(&engine);
    let graph = graph(&text);
    let (started, ()) = tokio::join!(runner.start(&graph, NewSession::default()), async {
        while !scene.dir.path().join("begun").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
        answer(&engine, id, "q", 0, "yes", "kim").await.unwrap();
        milepost_run::run::wake(&engine, id).await.unwrap();
    });
    completed(&started.unwrap().1);
}
