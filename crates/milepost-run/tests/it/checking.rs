//! Check loops: an agent mends what fails, until everything passes, or nothing moves any more.

use std::sync::Arc;

use milepost::{NewSession, Resume};
use milepost_run::run::{End, Status, answer};
use serde_json::json;

use crate::support::{Scene, completed, graph};

fn text(dir: &str, rounds: u32) -> String {
    format!(
        "
nodes:
  mend:
    action: checks
    with:
      prompt: Make it pass.
      rounds: {rounds}
      tools: [shell]
      checks:
        build: 'test -e {dir}/built || {{ echo no build at $(date +%N); exit 2; }}'
        test: {{command: 'grep -qs good {dir}/code || {{ echo the code is bad >&2; exit 1; }}'}}
outputs: {{passed: outputs.mend.passed, rounds: outputs.mend.rounds, checks: outputs.mend.checks}}
"
    )
}

#[tokio::test]
async fn an_agent_mends_until_all_checks_pass() {
    let scene = Scene::new();
    let dir = scene.dir.path().display().to_string();
    let engine = scene.engine().await;
    let script = format!(
        "
replies:
  - {{when: no build, calls: [{{name: shell, input: {{command: 'touch {dir}/built'}}}}], usage: {{input_tokens: 10, output_tokens: 1}}}}
  - {{when: no build, text: built}}
  - {{when: 'The check test failed:', calls: [{{name: shell, input: {{command: 'echo good > {dir}/code'}}}}]}}
  - {{when: 'The check test failed:', text: mended}}
"
    );
    let runner = scene.scripted(&engine, &script);
    let (id, end) = runner.start(&graph(&text(&dir, 5)), NewSession::default()).await.unwrap();
    let outputs = completed(&end);
    assert_eq!((&outputs["passed"], &outputs["rounds"]), (&json!(true), &json!(3)));
    assert_eq!(outputs["checks"][1], json!({"name": "test", "passed": true, "code": 0, "said": ""}));
    let execution = scene.section(id, "execution").await;
    assert_eq!(
        execution["checks"],
        json!({"node": "mend", "iteration": 3, "passed": ["build", "test"], "failed": [], "last_error": null})
    );
    assert_eq!(execution["usage"]["mend"]["input_tokens"], 10);
    let said = scene.said(id, "mend/mend").await;
    assert!(said[0].text().starts_with("Make it pass.\n\nThe check build failed:\nno build at "), "{}", said[0].text());
    assert!(said[0].text().contains("The check test failed:\nthe code is bad"), "{}", said[0].text());
    let steps = scene.steps(id).await;
    assert!(steps.contains(&("mend/round_1.mend/turn_1.1.shell".to_owned(), Status::Completed)), "{steps:?}");
}

/// A kill at any boundary: the checks and the mending go on where they were.
#[tokio::test]
async fn a_kill_at_any_boundary_goes_on_in_the_middle_of_a_round() {
    let script = "
replies:
  - {when: The check, calls: [{name: mend, input: {}}]}
  - {when: The check, text: mended}
";
    let mut stop = 1;
    loop {
        let scene = Scene::new();
        let dir = scene.dir.path().display().to_string();
        let text = format!(
            "
nodes:
  mend:
    action: checks
    with:
      prompt: Mend it.
      tools: [{{name: mend, action: shell, idempotent: true, with: {{command: 'touch {dir}/mended; echo x >> {dir}/count'}}}}]
      checks: {{there: test -e {dir}/mended}}
outputs: {{rounds: outputs.mend.rounds}}
"
        );
        let engine = scene.engine().await;
        let runner = scene.scripted(&engine, script).at_boundary(Arc::new(move |n| n == stop));
        let first = runner.start(&graph(&text), NewSession::default()).await;
        if first.is_ok() {
            break;
        }
        let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
        drop((runner, engine));
        let engine = scene.engine().await;
        let how = Resume { take_over: true, reopen: true, ..Resume::latest() };
        let end = scene.scripted(&engine, script).resume(id, how, None, &Default::default()).await.unwrap().0;
        assert_eq!(completed(&end)["rounds"], 2, "killed at {stop}");
        assert_eq!(scene.said(id, "mend/mend").await.len(), 4, "killed at {stop}");
        // Again only when its outcome was not stored.
        let count = std::fs::read_to_string(scene.dir.path().join("count")).unwrap().len() / 2;
        assert!(count <= 2, "killed at {stop}: {count}");
        stop += 1;
    }
    assert!(stop > 20, "{stop}");
}

#[tokio::test]
async fn the_same_failure_twice_pauses_and_a_resume_looks_again() {
    let scene = Scene::new();
    let dir = scene.dir.path().display().to_string();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, "replies: [{text: I cannot.}]\nafter_last: repeat\n");
    let (id, end) = runner.start(&graph(&text(&dir, 5)), NewSession::default()).await.unwrap();
    let End::Paused { node: Some(node), why } = &end else { panic!("{end:?}") };
    assert_eq!(node, "mend");
    // The time in what the check said differs; the failure is the same.
    assert!(why.starts_with("no progress: build, test failed in the same way in rounds 1 and 2: no build"), "{why}");
    let checks = &scene.section(id, "execution").await["checks"];
    assert_eq!((&checks["iteration"], &checks["failed"]), (&json!(2), &json!(["build", "test"])));
    // Somebody does it by hand.
    std::fs::write(scene.dir.path().join("built"), "").unwrap();
    std::fs::write(scene.dir.path().join("code"), "good").unwrap();
    let end = runner.resume(id, Resume::latest(), None, &Default::default()).await.unwrap().0;
    assert_eq!(completed(&end)["rounds"], 3);
}

#[tokio::test]
async fn rounds_have_a_limit() {
    let scene = Scene::new();
    let dir = scene.dir.path().display().to_string();
    let engine = scene.engine().await;
    let script = format!(
        "replies: [{{calls: [{{name: shell, input: {{command: 'touch {dir}/built'}}}}]}}, {{text: done}}]\nafter_last: repeat\n"
    );
    let (_, end) = scene.scripted(&engine, &script).start(&graph(&text(&dir, 2)), NewSession::default()).await.unwrap();
    let why = "test still failed after 2 rounds, the limit rounds";
    assert_eq!(end, End::Paused { node: Some("mend".into()), why: why.into() });
}

/// What the check counts moves: that is progress. Times and addresses are none.
#[tokio::test]
async fn a_number_that_moves_is_progress() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let lines = scene.dir.path().join("lines").display().to_string();
    std::fs::write(&lines, "").unwrap();
    let text = format!(
        "
nodes:
  mend:
    action: checks
    with:
      prompt: Make it pass.
      tools: [shell]
      checks: {{test: 'n=$(wc -l < {lines}); test $n -ge 3 || {{ echo only $n lines after $(date +%S%N)ms; exit 1; }}'}}
outputs: {{rounds: outputs.mend.rounds}}
"
    );
    let script = format!(
        "replies: [{{calls: [{{name: shell, input: {{command: 'echo x >> {lines}'}}}}]}}, {{text: done}}]\nafter_last: repeat\n"
    );
    let (_, end) = scene.scripted(&engine, &script).start(&graph(&text), NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["rounds"], 4);
}

#[tokio::test]
async fn checks_run_in_the_order_of_the_file() {
    let scene = Scene::new();
    let order = scene.dir.path().join("order");
    let note = |name: &str| format!("{name}: 'echo {name} >> {}'", order.display());
    let checks = format!("{{{}, {}, {}}}", note("format"), note("build"), note("all"));
    let text = format!("nodes: {{a: {{action: checks, with: {{prompt: x, checks: {checks}}}}}}}");
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, "replies: [{text: none}]\n");
    let (_, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    completed(&end);
    assert_eq!(std::fs::read_to_string(&order).unwrap(), "format\nbuild\nall\n");
}

/// Also in a graph that is written inside of another, after a resume, and where an older version had lost the order.
#[tokio::test]
async fn checks_of_a_graph_inside_run_in_the_order_of_the_file() {
    for is_old in [false, true] {
        let scene = Scene::new();
        let order = scene.dir.path().join("order");
        let note = |name: &str| format!("{name}: 'echo {name} >> {}'", order.display());
        let checks = format!("{{{}, {}, {}}}", note("format"), note("build"), note("all"));
        let check =
            |needs: &str| format!("{{action: checks, needs: [{needs}], with: {{prompt: x, checks: {checks}}}}}");
        let inner = format!(
            "{{nodes: {{one: {}, q: {{action: ask, needs: one, with: {{question: 'Go on?'}}}}, more: {}}}}}",
            check(""),
            check("q")
        );
        let middle = format!("{{nodes: {{deep: {{action: graph, with: {{graph: {inner}}}}}}}}}");
        let text = format!("nodes: {{sub: {{action: graph, with: {{graph: {middle}}}}}}}");
        let engine = scene.engine().await;
        let runner = scene.scripted(&engine, "replies: [{text: none}]\n");
        let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
        assert!(matches!(end, End::Waiting { .. }), "{end:?}");
        assert_eq!(std::fs::read_to_string(&order).unwrap(), "format\nbuild\nall\n");
        if is_old {
            let session = engine.hold(id).await.unwrap();
            let mut state = session.state().await.unwrap();
            for at in ["/below/sub/data/graph/text", "/below/sub/below/deep/data/graph/text"] {
                let text = state.section_mut("execution").pointer_mut(at).unwrap();
                let sorted: serde_json::Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
                assert_ne!(sorted.to_string(), text.as_str().unwrap());
                *text = sorted.to_string().into();
            }
            session.set_state(state).await.unwrap();
            session.release().await.unwrap();
        }
        answer(&engine, id, "sub/deep/q", 0, "yes", "kim").await.unwrap();
        completed(&runner.resume(id, Resume::latest(), None, &Default::default()).await.unwrap().0);
        assert_eq!(std::fs::read_to_string(&order).unwrap(), "format\nbuild\nall\n".repeat(2), "old: {is_old}");
    }
}
