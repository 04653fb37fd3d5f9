//! Graphs that changed, steps run again on branches, and conclusions brought home.

use std::collections::BTreeMap;

use milepost::{NewSession, Point, Resume};
use milepost_run::run::{About, Again, End, Error, MergeBack, merge_back};
use serde_json::{Map, json};

use crate::support::{Scene, completed, graph};

const PLAN: &str = "
memory: {topic: rust, score: 9}
nodes:
  a: {action: keyed, with: {topic: '{{ memory.topic }}'}, remember: {found: output.with.topic}}
  b: {action: effect, with: {found: '{{ memory.found }}', how: well}}
  good: {action: keyed}
  bad: {action: keyed}
  q: {action: ask, with: {question: 'Go on?'}}
edges:
  - {from: a, to: b}
  - {from: b, to: good, when: memory.score > 5}
  - {from: b, to: bad, when: memory.score <= 5}
  - {from: good, to: q}
  - {from: bad, to: q}
outputs: {found: outputs.b.with.found, how: outputs.b.with.how}
";

#[tokio::test]
async fn a_node_that_vanished_names_the_nearest_checkpoint_that_works() {
    let scene = Scene::new();
    let (id, end) = scene.start(PLAN).await;
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    let text = PLAN
        .replace("  q: {action: ask, with: {question: 'Go on?'}}\n", "  other: {action: keyed}\n")
        .replace("to: q", "to: other");
    let other = graph(&text);
    let error = scene.resume_with(id, &BTreeMap::new(), Some(&other)).await.unwrap_err();
    let Error::Incompatible { name, nearest: Some(nearest), .. } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), nearest.description.as_str()), ("q", "after good"));
    assert!(
        error.to_string().contains(&format!("resume from checkpoint {} (after good)", nearest.checkpoint)),
        "{error}"
    );
    // And it does work.
    let engine = scene.engine().await;
    let how = Resume::from(Point::Checkpoint(nearest.checkpoint));
    let (end, changes) = scene.runner(&engine).resume(id, how, Some(&other), &BTreeMap::new()).await.unwrap();
    completed(&end);
    assert_eq!(
        changes,
        [
            "node q is gone",
            "node other is new",
            "edge bad>other is new",
            "edge bad>q is gone",
            "edge good>other is new",
            "edge good>q is gone"
        ]
    );
    assert_eq!(scene.effects.nodes(), ["a", "b", "good", "other"]);
}

#[tokio::test]
async fn a_memory_key_that_is_missing_names_the_nearest_checkpoint_or_can_be_given() {
    let scene = Scene::new();
    let (id, _) = scene.start(PLAN).await;
    // Today's graph remembers something at a step that is done, and needs it at one that is not.
    let text = PLAN
        .replace("remember: {found: output.with.topic}", "remember: {found: output.with.topic, kind: output.node}")
        .replace("  - {from: bad, to: q}\n", "  - {from: bad, to: q}\n  - {from: q, to: last}\n")
        .replace("edges:\n", "  last: {action: keyed, with: {kind: '{{ memory.kind }}'}}\nedges:\n");
    let other = graph(&text);
    let error = scene.resume_with(id, &BTreeMap::new(), Some(&other)).await.unwrap_err();
    let Error::Incompatible { name, nearest: Some(nearest), why } = &error else { panic!("{error}") };
    assert_eq!(name, "kind");
    assert!(!error.to_string().contains("()"), "{error}");
    assert!(why.contains("last needs memory.kind"), "{why}");
    // Before the step that writes it: nothing had begun.
    let engine = scene.engine().await;
    let state = engine
        .store()
        .state_at(engine.mark(id, &Point::Checkpoint(nearest.checkpoint)).await.unwrap().at)
        .await
        .unwrap();
    assert_eq!(state.pointer("/execution/nodes"), Some(&json!({})));
    milepost_run::run::answer(&engine, id, "q", 0, "yes", "kim").await.unwrap();
    let how = Resume::latest().set(milepost::parse_set("memory.kind=x").unwrap().0, "x");
    let (end, _) = scene.runner(&engine).resume(id, how, Some(&other), &BTreeMap::new()).await.unwrap();
    completed(&end);
}

/// A key that a skipped step would have written is not missing: whoever reads it deals with that.
#[tokio::test]
async fn a_key_of_a_way_that_was_not_taken_is_not_missing() {
    let scene = Scene::new();
    let text = "
memory: {n: 1}
nodes:
  a: {action: keyed}
  no: {action: keyed, remember: {x: output.node}}
  q: {action: ask, with: {question: 'Go on?'}}
  last: {action: keyed, with: {x: '{{ memory.x | default(\"none\") }}'}}
edges:
  - {from: a, to: no, when: memory.n == 2}
  - {from: a, to: q}
  - {from: q, to: last}
  - {from: no, to: last}
outputs: {x: outputs.last.with.x}
";
    let (id, _) = scene.start(text).await;
    milepost_run::run::answer(&scene.engine().await, id, "q", 0, "yes", "kim").await.unwrap();
    assert_eq!(completed(&scene.resume(id).await)["x"], "none");
}

#[tokio::test]
async fn a_memory_key_that_is_new_begins_as_the_graph_says() {
    let scene = Scene::new();
    let (id, _) = scene.start(PLAN).await;
    let other = graph(&PLAN.replace("score: 9}", "score: 9, more: 3}"));
    milepost_run::run::answer(&scene.engine().await, id, "q", 0, "yes", "kim").await.unwrap();
    let (end, changes) = scene.resume_with(id, &BTreeMap::new(), Some(&other)).await.unwrap();
    completed(&end);
    assert_eq!(changes, ["memory key more is new, and begins as the graph says"]);
    assert_eq!(scene.section(id, "memory").await["more"], 3);
}

#[tokio::test]
async fn recorded_sessions_are_checked_against_todays_graph() {
    let scene = Scene::new();
    let (id, _) = scene.start(PLAN).await;
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let same = runner.verify_replay(&graph(PLAN), id).await.unwrap();
    assert_eq!((same.changes.len(), same.breaks.len(), same.decisions), (0, 0, 4), "{same:?}");
    let fine = runner.verify_replay(&graph(&PLAN.replace("how: well", "how: badly")), id).await.unwrap();
    assert_eq!(fine.changes, ["node b is another, and was done as it was"]);
    assert!(fine.breaks.is_empty(), "{fine:?}");
    let otherwise =
        PLAN.replace("memory.score > 5", "memory.score > 9").replace("memory.score <= 5", "memory.score <= 9");
    let breaks = runner.verify_replay(&graph(&otherwise), id).await.unwrap().breaks;
    let told: Vec<(&About, &str)> = breaks.iter().map(|one| (&one.about, one.why.as_str())).collect();
    assert_eq!(
        told,
        [
            (&About::Edge("b>bad".into()), "it was passed, and would be taken now"),
            (&About::Edge("b>good".into()), "it was taken, and would be passed now"),
        ]
    );
    let asked = runner.verify_replay(&graph(&PLAN.replace("Go on?", "Really?")), id).await.unwrap();
    assert_eq!(asked.breaks[0].about, About::Step("q".into()));
    assert_eq!(asked.nearest.unwrap().description, "after good");
    let empty = engine.create(NewSession::default()).await.unwrap();
    assert!(runner.verify_replay(&graph(PLAN), empty.id()).await.is_err());
}

#[tokio::test]
async fn a_step_is_run_again_with_other_input_on_a_branch() {
    let scene = Scene::new();
    let text = PLAN.replace("  q: {action: ask, with: {question: 'Go on?'}}\n", "  q: {action: keyed}\n");
    let (id, end) = scene.start(&text).await;
    assert_eq!(completed(&end)["how"], "well");
    let before = scene.section(id, "execution").await;
    let engine = scene.engine().await;
    let again = Again { node: "b".into(), round: None, input: Map::from_iter([("how".into(), "badly".into())]) };
    let (branch, end) = scene.runner(&engine).rerun(id, &again, None, NewSession::default()).await.unwrap();
    assert_eq!((&completed(&end)["how"], &completed(&end)["found"]), (&json!("badly"), &json!("rust")));
    assert_ne!(branch, id);
    assert_eq!(scene.effects.nodes(), ["a", "b", "good", "q", "b", "good", "q"], "what came before is not run again");
    assert_eq!(scene.effects.counts()["b"], (2, 2), "another effect has another key");
    assert_eq!(scene.section(id, "execution").await, before, "the session itself is left alone");
    let refused = Again { node: "b".into(), round: Some(3), ..Again::default() };
    let error = scene.runner(&engine).rerun(id, &refused, None, NewSession::default()).await.unwrap_err();
    assert!(error.to_string().contains("round 4"), "{error}");
    let refused = Again { node: "zzz".into(), ..Again::default() };
    assert!(scene.runner(&engine).rerun(id, &refused, None, NewSession::default()).await.is_err());
}

/// The log knows where a step began, whichever checkpoints were taken and kept.
#[tokio::test]
async fn any_step_is_run_again_whatever_checkpoints_there_are() {
    let step = |id: usize| match id {
        0 => "  - {id: s0, action: effect}\n".to_owned(),
        3 => "  - {id: s3, action: set, with: {x: 3}, needs: s2}\n".to_owned(),
        id => format!("  - {{id: s{id}, action: effect, needs: s{}}}\n", id - 1),
    };
    let steps: String = (0..20).map(step).collect();
    let text = format!("steps:\n{steps}outputs: {{x: memory.x}}\n");
    for policy in [
        json!({}),
        json!({"enabled": false}),
        json!({"triggers": {"node_start": false, "node_complete": false, "step": false}}),
        json!({"max_checkpoints_per_session": 10}),
    ] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let runner = scene.runner(&engine);
        let new = NewSession { policy: Some(policy.clone()), ..NewSession::default() };
        let (id, end) = runner.start(&graph(&text), new).await.unwrap();
        completed(&end);
        for node in [0, 1, 3, 12, 19] {
            let ran = scene.effects.nodes().len();
            let again = Again { node: format!("s{node}"), ..Again::default() };
            let done = runner.rerun(id, &again, None, NewSession::default()).await;
            completed(&done.unwrap_or_else(|error| panic!("s{node} with {policy}: {error}")).1);
            let ran = scene.effects.nodes().split_off(ran);
            let wanted: Vec<String> = (node..20).filter(|id| *id != 3).map(|id| format!("s{id}")).collect();
            assert_eq!(ran, wanted, "s{node} with {policy}");
        }
        let again = Again { node: "s3".into(), input: Map::from_iter([("x".into(), 7.into())]), ..Again::default() };
        let (_, end) = runner.rerun(id, &again, None, NewSession::default()).await.unwrap();
        assert_eq!(completed(&end)["x"], 7);
    }
}

/// What was purged is gone: the nearest step that works is named.
#[tokio::test]
async fn a_step_whose_state_was_purged_names_the_nearest_that_works() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let step = |id: usize| match id {
        0 => "  - {id: s0, action: effect}\n".to_owned(),
        id => format!("  - {{id: s{id}, action: effect, needs: s{}}}\n", id - 1),
    };
    let text = format!("steps:\n{}", (0..20).map(step).collect::<String>());
    let new = NewSession { policy: Some(json!({"max_checkpoints_per_session": 10})), ..NewSession::default() };
    let (id, _) = runner.start(&graph(&text), new).await.unwrap();
    let writer = engine.store().write(id, &milepost::store::Claim::new("a test")).await.unwrap();
    scene.clock.advance_ms(1000);
    writer.purge(engine.source().now()).await.unwrap();
    writer.release().await.unwrap();
    let again = |node: &str| Again { node: node.into(), ..Again::default() };
    let error = runner.rerun(id, &again("s1"), None, NewSession::default()).await.unwrap_err().to_string();
    assert!(error.contains("purged"), "{error}");
    let nearest = error.split("run ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    assert!(nearest.starts_with('s') && nearest != "s1", "{error}");
    completed(&runner.rerun(id, &again(&nearest), None, NewSession::default()).await.unwrap().1);
}

#[tokio::test]
async fn an_agent_that_is_run_again_begins_a_conversation_anew() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "
replies:
  - {when: cats, text: about cats}
  - {when: dogs, calls: [{name: pay, input: {}}]}
  - {when: dogs, text: about dogs}
";
    let text = "nodes: {a: {action: agent, with: {prompt: dogs, tools: [{name: pay, action: effect}]}}}\noutputs: {text: outputs.a.text}\n";
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["text"], "about dogs");
    let again = Again { node: "a".into(), round: None, input: Map::from_iter([("prompt".into(), "cats".into())]) };
    let (branch, end) = runner.rerun(id, &again, None, NewSession::default()).await.unwrap();
    assert_eq!(completed(&end)["text"], "about cats");
    assert_eq!(scene.said(branch, "a").await.last().unwrap().text(), "about cats");
    assert_eq!(scene.effects.counts()["a/turn_1.1.pay"], (1, 1));
}

#[tokio::test]
async fn conclusions_of_a_branch_are_brought_home_once() {
    let scene = Scene::new();
    let (id, _) = scene.start(PLAN).await;
    let engine = scene.engine().await;
    let again = Again { node: "a".into(), round: None, input: Map::from_iter([("topic".into(), "zig".into())]) };
    let (branch, _) = scene.runner(&engine).rerun(id, &again, None, NewSession::default()).await.unwrap();
    assert_eq!(scene.section(branch, "memory").await["found"], "zig");
    let what =
        MergeBack { memory: vec!["found".into()], outputs: vec!["b".into()], summary: Some("Zig it is.".into()) };
    let merged = merge_back(&engine, branch, &what).await.unwrap();
    assert_eq!((merged.into, merged.was_done), (id, false));
    assert_eq!(scene.section(id, "memory").await["found"], "zig");
    assert_eq!(scene.section(id, "merged").await[branch.to_string()]["outputs"]["b"]["with"]["found"], "zig");
    let said = scene.said(id, "main").await;
    assert_eq!(said.len(), 1);
    assert!(said[0].text().contains("Zig it is.\nfound: zig"), "{}", said[0].text());
    assert_eq!(said[0].extra["merged_from"], branch.to_string());
    assert!(merge_back(&engine, branch, &what).await.unwrap().was_done);
    assert_eq!(scene.said(id, "main").await.len(), 1);
    for (what, expected) in [
        (MergeBack { memory: vec!["nothing".into()], ..MergeBack::default() }, "its memory has no \"nothing\""),
        (MergeBack { outputs: vec!["nothing".into()], ..MergeBack::default() }, "it has no output \"nothing\""),
        (MergeBack::default(), "nothing was chosen"),
        (MergeBack { summary: Some("x".repeat(70_000)), ..MergeBack::default() }, "MAX_SUMMARY_BYTES"),
    ] {
        let error = merge_back(&engine, branch, &what).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(merge_back(&engine, id, &what).await.unwrap_err().to_string().contains("it is not a branch"));
}

#[tokio::test]
async fn the_rounds_of_a_loop_are_decided_again_too() {
    let scene = Scene::new();
    let text = "
memory: {count: 0}
nodes:
  work: {action: effect}
  count: {action: set, with: {count: {cel: memory.count + 1}}}
  last: {action: effect}
edges:
  - {from: work, to: count}
  - {from: count, to: work, when: memory.count < 3, limit: 5}
  - {from: count, to: last}
";
    let (id, end) = scene.start(text).await;
    completed(&end);
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let same = runner.verify_replay(&graph(text), id).await.unwrap();
    // Two rounds that began again and one that did not, the way into each, and the way out.
    assert_eq!((same.breaks.len(), same.decisions), (0, 3 + 3 + 1), "{same:?}");
    let told = |when: &str| {
        let other = graph(&text.replace("memory.count < 3", when));
        let runner = runner.clone();
        async move {
            let breaks = runner.verify_replay(&other, id).await.unwrap().breaks;
            breaks.into_iter().map(|one| (one.about, one.why)).collect::<Vec<_>>()
        }
    };
    let edge = || About::Edge("count>work".into());
    assert_eq!(told("memory.count < 2").await, [(edge(), "it was taken, and would be passed now".to_owned())]);
    assert_eq!(told("memory.count < 4").await, [(edge(), "it was passed, and would be taken now".to_owned())]);
}

/// Whichever checkpoints were taken or are left: the log knows what a decision was made with.
#[tokio::test]
async fn decisions_are_made_again_with_the_memory_that_they_were_made_with() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = "
memory: {n: 0}
nodes:
  a: {action: set, with: {n: 1}}
  b: {action: keyed}
  c: {action: set, with: {n: 2}}
edges:
  - {from: a, to: b, when: memory.n == 1}
  - {from: b, to: c}
";
    let policy = json!({"triggers": {"node_start": false, "node_complete": false, "step": false}});
    let new = NewSession { policy: Some(policy), ..NewSession::default() };
    let (id, end) = scene.runner(&engine).start(&graph(text), new).await.unwrap();
    completed(&end);
    let same = scene.runner(&engine).verify_replay(&graph(text), id).await.unwrap();
    assert_eq!((same.breaks.len(), same.decisions), (0, 2), "{same:?}");
    let other = graph(&text.replace("memory.n == 1", "memory.n == 2"));
    let breaks = scene.runner(&engine).verify_replay(&other, id).await.unwrap().breaks;
    assert_eq!(breaks[0].why, "it was taken, and would be passed now");
}

#[tokio::test]
async fn ways_that_were_taken_and_are_gone_and_new_ones_that_would_be_taken_are_breaks() {
    let scene = Scene::new();
    let text = "
memory: {n: 1}
nodes:
  a: {action: keyed}
  b: {action: keyed}
  c: {action: keyed}
edges:
  - {from: a, to: b}
  - {from: b, to: c}
";
    let (id, end) = scene.start(text).await;
    completed(&end);
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let told = |text: String| {
        let runner = runner.clone();
        async move {
            let replay = runner.verify_replay(&graph(&text), id).await.unwrap();
            replay.breaks.into_iter().map(|one| format!("{:?}: {}", one.about, one.why)).collect::<Vec<_>>()
        }
    };
    let without =
        text.replace("  b: {action: keyed}\n", "").replace("  - {from: a, to: b}\n", "").replace("from: b", "from: a");
    assert_eq!(
        told(without).await,
        [
            "Edge(\"a>b\"): it was taken, and is gone",
            "Edge(\"a>c\"): it is new, and would be taken",
            "Edge(\"b>c\"): it was taken, and is gone"
        ]
    );
    let more = text.replace("edges:\n", "  d: {action: keyed}\nedges:\n  - {from: a, to: d, when: memory.n == N}\n");
    assert_eq!(told(more.replace("== N", "== 1")).await, ["Edge(\"a>d\"): it is new, and would be taken"]);
    assert_eq!(told(more.replace("== N", "== 2")).await, Vec::<String>::new());
}

#[tokio::test]
async fn every_compatible_change_of_a_graph_is_listed() {
    let scene = Scene::new();
    let text = "
memory: {x: 0}
parallel: 2
nodes:
  a: {action: keyed}
  q: {action: ask, with: {question: 'Go on?'}}
  d: {action: keyed}
edges:
  - {from: a, to: a, when: memory.x == 1, limit: 3}
  - {from: a, to: q}
  - {from: q, to: d, when: output.answer == 'y'}
outputs: {x: memory.x}
";
    let (id, _) = scene.start(text).await;
    let other = text
        .replace("limit: 3", "limit: 4, on_limit: go_on")
        .replace("== 'y'", "!= 'y'")
        .replace("outputs: {x: memory.x}", "outputs: {x: memory.x + 1, z: memory.x}\nbudget: {tokens: 5}\nstart: a")
        .replace("parallel: 2", "parallel: 3");
    let engine = scene.engine().await;
    let seen =
        scene.runner(&engine).preview(id, &Resume::latest(), Some(&graph(&other)), &Default::default()).await.unwrap();
    insta::assert_snapshot!(seen.changes.join("\n"), @r#"
    edge a>a is another: limit was 3 and is 4; on_limit was "pause" and is "go_on"
    edge q>d is another: when was "output.answer == 'y'" and is "output.answer != 'y'"
    budget is new: {"tokens":5}
    outputs.x was "memory.x" and is "memory.x + 1"
    outputs.z is new: "memory.x"
    parallel was 2 and is 3
    start is new: ["a"]
    "#);
}
