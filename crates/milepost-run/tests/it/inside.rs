//! Graphs inside of graphs.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::{NewSession, Resume};
use milepost_run::graph::{check, check_files};
use milepost_run::run::{End, Error, Settle, Status, answer};
use serde_json::json;

use crate::support::{Scene, completed, graph};

const TEXT: &str = "
memory: {n: 0}
nodes:
  before: {action: keyed}
  sub:
    action: graph
    needs: before
    with:
      memory: {who: '{{ outputs.before.node }}', round: {cel: iteration}}
      graph:
        memory: {who: nobody, round: 0, n: 0}
        nodes:
          a: {action: effect, with: {who: '{{ memory.who }}'}}
          b: {action: keyed}
          c: {action: set, with: {n: {cel: memory.n + 1}}}
          which: {action: ask, with: {question: 'Which?'}}
        edges:
          - {from: a, to: c}
          - {from: b, to: c}
          - {from: c, to: b, when: memory.n < 2, limit: 3}
          - {from: c, to: which}
        outputs: {who: outputs.a.with.who, n: memory.n, answer: outputs.which.answer, round: memory.round}
  last: {action: keyed, needs: sub, with: {n: '{{ outputs.sub.n }}'}}
outputs: {sub: outputs.sub, n: outputs.last.with.n, outer: memory.n}
";

/// Runs to the end with a kill at a boundary; true when there was such a boundary.
async fn killed_at(stop: u64) -> bool {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.runner(&engine).at_boundary(Arc::new(move |n| n == stop));
    let first = runner.start(&graph(TEXT), NewSession::default()).await;
    let id = engine.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let was_stopped = matches!(first, Err(Error::Stopped { .. }));
    answer(&engine, id, "sub/which", 0, "this", "kim").await.unwrap();
    drop((runner, engine));
    let mut settle = BTreeMap::new();
    for _ in 0..6 {
        match scene.resume_with(id, &settle, None).await.unwrap().0 {
            End::Completed { outputs } => {
                let sub = json!({"who": "before", "n": 2, "answer": "this", "round": 0});
                assert_eq!(
                    (&outputs["sub"], &outputs["n"], &outputs["outer"]),
                    (&sub, &json!("2"), &json!(0)),
                    "{stop}"
                );
                let counts = scene.effects.counts();
                assert_eq!(counts["sub/a"], (1, 1), "killed at {stop}: {counts:?}");
                assert_eq!(counts["sub/b"].1, 2, "killed at {stop}: {counts:?}");
                return was_stopped;
            }
            End::Uncertain { steps } => {
                assert_eq!(steps[0].0, "sub/a", "killed at {stop}");
                let happened = scene.effects.counts().contains_key("sub/a");
                let value = json!({"with": {"who": "before"}});
                settle.insert("sub/a".to_owned(), if happened { Settle::Happened(value) } else { Settle::RunAgain });
            }
            End::Waiting { .. } => {}
            other => panic!("killed at {stop}: {other:?}"),
        }
    }
    panic!("killed at {stop}: the run does not end");
}

#[tokio::test]
async fn a_graph_inside_survives_a_kill_at_any_boundary() {
    let mut stop = 1;
    while Box::pin(killed_at(stop)).await {
        stop += 1;
    }
    assert!(stop > 20, "{stop}");
}

#[tokio::test]
async fn its_steps_are_in_the_ledger_and_its_questions_have_its_names() {
    let scene = Scene::new();
    let (id, end) = scene.start(TEXT).await;
    let End::Waiting { what, .. } = &end else { panic!("{end:?}") };
    assert_eq!(what[0], ("sub/which".to_owned(), "an answer: Which?".to_owned()));
    let steps = scene.steps(id).await;
    for (name, status) in [("sub", Status::Waiting), ("sub/which", Status::Waiting), ("sub/a", Status::Completed)] {
        assert!(steps.contains(&(name.to_owned(), status)), "{name}: {steps:?}");
    }
}

#[tokio::test]
async fn what_fails_inside_pauses_the_run_and_is_retried_by_a_resume() {
    let scene = Scene::new();
    scene.effects.fail.store(1, std::sync::atomic::Ordering::SeqCst);
    let text = "nodes: {sub: {action: graph, with: {graph: {nodes: {a: {action: effect, retry: 1}}}}}}\n";
    let (id, end) = scene.start(text).await;
    assert_eq!(end, End::Paused { node: Some("sub".into()), why: "sub/a: no network".into() });
    completed(&scene.resume(id).await);
    assert_eq!(scene.effects.counts()["sub/a"], (1, 1));
}

#[tokio::test]
async fn each_round_of_an_outer_loop_runs_it_anew() {
    let scene = Scene::new();
    let text = "
memory: {n: 0}
nodes:
  sub: {action: graph, with: {graph: {nodes: {a: {action: effect}}}}}
  count: {action: set, with: {n: {cel: memory.n + 1}}}
edges:
  - {from: sub, to: count}
  - {from: count, to: sub, when: memory.n < 2, limit: 5}
";
    completed(&scene.start(text).await.1);
    let counts = scene.effects.counts();
    assert_eq!((counts["sub/a"], counts["sub#1/a"]), ((1, 1), (1, 1)));
}

#[tokio::test]
async fn a_file_stays_what_it_was_when_the_run_began_and_lies_beside_the_graph() {
    let scene = Scene::new();
    let inner = scene.dir.path().join("inner.yaml");
    std::fs::write(
        &inner,
        "nodes: {q: {action: ask, with: {question: x}}, a: {action: keyed, needs: q}}\noutputs: {a: outputs.a.node}\n",
    )
    .unwrap();
    let path = scene.dir.path().join("outer.yaml");
    let outer = |file: &str| {
        let text =
            format!("nodes: {{sub: {{action: graph, with: {{file: {file}}}}}}}\noutputs: {{a: outputs.sub.a}}\n");
        check(&path, &text, &["effect", "keyed"]).graph.unwrap()
    };
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let (id, end) = runner.start(&outer("inner.yaml"), NewSession::default()).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    std::fs::remove_file(&inner).unwrap();
    answer(&engine, id, "sub/q", 0, "y", "kim").await.unwrap();
    let end = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap().0;
    assert_eq!(completed(&end)["a"], "sub/a");
    for (file, expected) in
        [("../x.yaml", "does not lie beside"), ("/etc/passwd", "does not lie beside"), ("no.yaml", "cannot be read")]
    {
        let (_, end) = runner.start(&outer(file), NewSession::default()).await.unwrap();
        assert!(matches!(&end, End::Paused { why, .. } if why.contains(expected)), "{end:?}");
    }
    std::fs::write(&inner, "nodes: {sub: {action: graph, with: {file: inner.yaml}}}\noutputs: {a: '1'}\n").unwrap();
    let (_, end) = runner.start(&outer("inner.yaml"), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("MAX_GRAPHS_DEEP")), "{end:?}");
}

#[test]
fn mistakes_inside_are_found_with_their_place() {
    let text = TEXT.replace("from: a, to: c", "from: a, to: d").replace("memory.n < 2", "memory.m < 2");
    let found = check("g.yaml".as_ref(), &text, &["effect", "keyed"]).found;
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(told.iter().any(|one| one.starts_with("g.yaml:18:") && one.contains("there is no node \"d\"")), "{told:?}");
    assert!(told.iter().any(|one| one.starts_with("g.yaml:20:") && one.contains("\"m\"")), "{told:?}");
}

/// A graph in a file can be looked into before it begins.
#[tokio::test]
async fn a_question_of_a_graph_in_a_file_is_known_before_that_begins() {
    let scene = Scene::new();
    let inner =
        "nodes:\n  ok: {action: ask, with: {question: 'fine?', choices: [yes, no]}}\noutputs: {x: outputs.ok.answer}\n";
    std::fs::write(scene.dir.path().join("inner.yaml"), inner).unwrap();
    let outer = "nodes:\n  hold: {action: ask, with: {question: 'first?'}}\n  sub: {action: graph, with: {file: inner.yaml}, needs: hold}\noutputs: {x: outputs.sub.x}\n";
    let outer = check(&scene.dir.path().join("outer.yaml"), outer, &[]).graph.unwrap();
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let (id, _) = runner.start(&outer, NewSession::default()).await.unwrap();
    let state = engine.store().state(id).await.unwrap();
    let asked = runner.asked(&state, &outer, "sub/ok").unwrap();
    assert_eq!(asked.choices, ["yes", "no"]);
    // And nothing in it asks a model.
    assert!(runner.forecast(id, None).await.unwrap().steps.is_empty());
    answer(&engine, id, "sub/ok", 0, "yes", "kim").await.unwrap();
    answer(&engine, id, "hold", 0, "yes", "kim").await.unwrap();
    assert_eq!(completed(&scene.resume(id).await)["x"], "yes");
}

#[test]
fn the_files_that_a_graph_names_are_checked_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let told = |files: &[(&str, &str)]| {
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let checked = check_files(&dir.path().join("g.yaml"), files[0].1, &[]);
        assert_eq!(checked.graph.is_none(), checked.errors().next().is_some());
        let lines: Vec<String> = checked.found.iter().map(ToString::to_string).collect();
        lines.join("\n").replace(&format!("{}/", dir.path().display()), "")
    };
    let naming = |file: &str| format!("nodes:\n  a: {{action: graph, with: {{file: {file}}}}}\n");
    insta::assert_snapshot!(told(&[("g.yaml", &naming("none.yaml"))]), @"g.yaml:2:35: file: none.yaml cannot be read: No such file or directory (os error 2); write the file, or name another");
    insta::assert_snapshot!(told(&[("g.yaml", &naming("../x.yaml"))]), @r#"g.yaml:2:35: file: "../x.yaml" does not lie beside the graph; name a file below its directory; write the file, or name another"#);
    insta::assert_snapshot!(told(&[("g.yaml", &naming("x.yaml")), ("x.yaml", "nodes:\n  a: {action: sett}\n")]), @r#"x.yaml:2:15: a: there is no action "sett"; did you mean set?"#);
    insta::assert_snapshot!(told(&[("g.yaml", &naming("x.yaml")), ("x.yaml", &naming("g.yaml"))]), @"x.yaml:2:35: file: g.yaml runs itself, without end; write a loop with a limit instead");
    let inside = "nodes:\n  a: {action: graph, with: {graph: {nodes: {b: {action: graph, with: {file: x.yaml}}}}}}\n";
    insta::assert_snapshot!(told(&[("g.yaml", inside), ("x.yaml", &naming("none.yaml"))]), @"x.yaml:2:35: file: none.yaml cannot be read: No such file or directory (os error 2); write the file, or name another");
    assert_eq!(
        told(&[("g.yaml", inside), ("x.yaml", "nodes:\n  m: {action: model, with: {prompt: hi, model: m/x}}\n")]),
        ""
    );
    let graph = check_files(&dir.path().join("g.yaml"), inside, &[]).graph.unwrap();
    assert_eq!(milepost_run::models::Models::asked_by(&graph), [Some("m/x".to_owned())]);
}
