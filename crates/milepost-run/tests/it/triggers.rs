//! Which checkpoints a run takes, and what they say: by default, as the policy says, for one run.

use milepost::{Mark, NewSession, Resume, SessionId};
use milepost_run::run::End;
use serde_json::{Value, json};

use crate::support::{Scene, completed, graph};

const GRAPH: &str = "
memory: {count: 0}
nodes:
  work: {action: keyed}
  count: {action: set, with: {count: {cel: memory.count + 1}}}
  last: {action: keyed, safe_point: true}
edges:
  - {from: work, to: count}
  - {from: count, to: work, when: memory.count < 4, limit: 5}
  - {from: count, to: last}
";

async fn marks(scene: &Scene, id: SessionId) -> Vec<Mark> {
    let query = milepost::MarkQuery { oldest_first: true, ..Default::default() };
    scene.engine().await.store().marks(id, &query).await.unwrap()
}

async fn run(scene: &Scene, text: &str, policy: Value) -> (SessionId, Vec<String>) {
    let engine = scene.engine().await;
    let new = NewSession { policy: Some(policy), ..NewSession::default() };
    let (id, end) = scene.runner(&engine).start(&graph(text), new).await.unwrap();
    completed(&end);
    let marks = marks(scene, id).await;
    (id, marks.iter().map(|mark| mark.checkpoint.trigger.as_str().to_owned()).collect())
}

fn count(triggers: &[String], name: &str) -> usize {
    triggers.iter().filter(|trigger| *trigger == name).count()
}

#[tokio::test]
async fn every_trigger_of_a_graph_is_taken_when_the_policy_says_so() {
    let scene = Scene::new();
    let (_, usual) = run(&scene, GRAPH, json!({})).await;
    assert_eq!((count(&usual, "node_start"), count(&usual, "node_complete"), count(&usual, "safe_point")), (5, 8, 1));
    assert_eq!((count(&usual, "edge_transition"), count(&usual, "loop_iteration")), (0, 0), "off by default");

    let edges = json!({"triggers": {"edge_transition": true, "node_start": false}});
    let (id, edges) = run(&scene, GRAPH, edges).await;
    assert_eq!((count(&edges, "edge_transition"), count(&edges, "node_start")), (8, 0), "{edges:?}");
    let marks = marks(&scene, id).await;
    let described: Vec<String> = marks
        .iter()
        .filter(|mark| mark.checkpoint.trigger.as_str() == "edge_transition")
        .filter_map(|mark| mark.checkpoint.description.clone())
        .collect();
    assert_eq!((described[0].as_str(), described[7].as_str()), ("work to count", "count to last"));

    // Three rounds begin again: the second of them is every second one.
    let (_, rounds) = run(&scene, GRAPH, json!({"every_iterations": 1})).await;
    assert_eq!(count(&rounds, "loop_iteration"), 3);
    let (_, rounds) = run(&scene, GRAPH, json!({"every_iterations": 2})).await;
    assert_eq!(count(&rounds, "loop_iteration"), 1);
    let (_, off) = run(&scene, GRAPH, json!({"enabled": false})).await;
    assert_eq!(off, ["final"], "off is off, but for the end");
}

#[tokio::test]
async fn smart_checkpoints_follow_slow_nodes_and_large_changes_and_precede_risky_ones() {
    let scene = Scene::new();
    let quiet = |smart: Value| json!({"triggers": {"node_start": false, "node_complete": false, "step": false, "initial": false}, "smart": smart});
    let text = "
nodes:
  nap: {action: wait, with: {for: 2s}}
  risky: {action: shell, with: {command: 'true'}}
  many: {action: set, with: {a: 1, b: 2, c: 3}}
edges: [{from: nap, to: risky}, {from: risky, to: many}]
";
    let smart = json!({"enabled": true, "slow_node_ms": 1000, "risky_kinds": ["tool"], "changed_keys": 2});
    let (id, triggers) = run(&scene, text, quiet(smart)).await;
    assert_eq!(count(&triggers, "smart"), 3, "{triggers:?}");
    let described: Vec<String> = marks(&scene, id)
        .await
        .iter()
        .filter(|mark| mark.checkpoint.trigger.as_str() == "smart")
        .filter_map(|mark| mark.checkpoint.description.clone())
        .collect();
    assert_eq!(described, ["after nap", "before risky", "after many"]);
    let smart = json!({"enabled": true, "slow_node_ms": 0, "risky_kinds": [], "changed_keys": 0});
    assert_eq!(count(&run(&scene, text, quiet(smart)).await.1, "smart"), 0);
    let smart = json!({"enabled": false, "slow_node_ms": 1000});
    assert_eq!(count(&run(&scene, text, quiet(smart)).await.1, "smart"), 0);
}

/// A checkpoint says where the run is: node, next node, path, outputs, and how long each step took.
#[tokio::test]
async fn a_checkpoint_says_where_the_run_is() {
    let scene = Scene::new();
    let text = "
nodes:
  one: {action: wait, with: {for: 2s}}
  two: {action: keyed}
edges: [{from: one, to: two}]
";
    let (id, end) = scene.start(text).await;
    completed(&end);
    let engine = scene.engine().await;
    let marks = marks(&scene, id).await;
    let find = |description: &str| {
        marks.iter().find(|mark| mark.checkpoint.description.as_deref() == Some(description)).unwrap()
    };
    let after = engine.store().state_at(find("after one").at).await.unwrap();
    let execution = after.section("execution").unwrap();
    assert_eq!((&execution["current_node"], &execution["next_node"]), (&json!("one"), &json!("two")));
    assert_eq!(execution["path"], json!(["one"]));
    assert!(execution["nodes"]["one"]["took_ms"].as_u64().unwrap() >= 2000, "{execution:#}");
    let before = engine.store().state_at(find("before two").at).await.unwrap();
    assert_eq!(before.section("execution").unwrap()["current_node"], "two");
    let last = scene.section(id, "execution").await;
    assert_eq!((&last["current_node"], &last["next_node"]), (&json!("two"), &Value::Null));
}

/// Agent, session, run: each may say otherwise, the last one counts.
#[tokio::test]
async fn the_policy_of_a_kind_of_agent_a_session_and_a_run_stand_over_each_other() {
    let mut scene = Scene::new();
    let patch = serde_json::from_value(json!({"triggers": {"node_start": false}})).unwrap();
    scene.options.agent_policies.insert("quiet".to_owned(), patch);
    let engine = scene.engine().await;
    let text = "nodes: {a: {action: keyed}, b: {action: ask, with: {question: 'B?'}, needs: a}, c: {action: keyed, needs: b}}\n";
    let patch = milepost::SessionPatch::new().with("agent", json!("quiet"));
    let new =
        NewSession { patch, policy: Some(json!({"triggers": {"node_complete": false}})), ..NewSession::default() };
    let (id, end) = scene.runner(&engine).start(&graph(text), new).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    let triggers =
        |marks: Vec<Mark>| marks.iter().map(|mark| mark.checkpoint.trigger.as_str().to_owned()).collect::<Vec<_>>();
    let before = triggers(marks(&scene, id).await);
    assert_eq!((count(&before, "node_start"), count(&before, "node_complete")), (0, 0), "{before:?}");
    milepost_run::run::answer(&engine, id, "b", 0, "yes", "kim").await.unwrap();
    let how = Resume { policy: Some(json!({"triggers": {"node_start": true}})), take_over: true, ..Resume::latest() };
    let (end, _) = scene.runner(&engine).resume(id, how, None, &Default::default()).await.unwrap();
    completed(&end);
    let after = triggers(marks(&scene, id).await);
    assert!(count(&after, "node_start") >= 1 && count(&after, "node_complete") == 0, "{after:?}");
}

/// What happened is stored without it, the run goes on, and whoever listens is told.
#[tokio::test]
async fn a_checkpoint_that_cannot_be_taken_stops_no_run() {
    let mut scene = Scene::new();
    // `edge_transition` has 15, and everything else that this run names has fewer.
    scene.options.store.limits.max_name_bytes = 14;
    scene.options.holder = "a test".into();
    let engine = scene.engine().await;
    let mut notices = engine.notices();
    let policy = Some(json!({"triggers": {"edge_transition": true}}));
    let new = NewSession { policy, ..NewSession::default() };
    let (id, end) = scene.runner(&engine).start(&graph(GRAPH), new).await.unwrap();
    completed(&end);
    let counts = scene.effects.counts();
    assert!(counts.len() == 2 && counts.values().all(|(times, keys)| times == keys), "once for every key: {counts:?}");
    assert_eq!(scene.section(id, "execution").await["nodes"]["last"]["status"], "completed");
    let told = std::iter::from_fn(|| notices.try_recv().ok());
    let failed = told.filter(|notice| matches!(notice, milepost::Notice::CheckpointFailed { .. })).count();
    assert!(failed >= 8, "{failed}");
    assert_eq!(engine.counts().failed(), failed as u64);
    let taken: Vec<String> =
        marks(&scene, id).await.iter().map(|mark| mark.checkpoint.trigger.as_str().to_owned()).collect();
    assert_eq!((count(&taken, "edge_transition"), count(&taken, "safe_point")), (0, 1), "{taken:?}");
}

/// A checkpoint says what went wrong so far: how often something was tried again, and which nodes failed.
#[tokio::test]
async fn a_checkpoint_counts_what_went_wrong() {
    let scene = Scene::new();
    let (id, _) = scene.start("nodes: {fine: {action: effect}}").await;
    assert_eq!(scene.section(id, "metrics").await, json!({"total_retries": 0, "nodes_with_failures": []}));
    scene.effects.fail.store(4, std::sync::atomic::Ordering::SeqCst);
    let text = "
nodes:
  sub: {action: graph, with: {graph: {nodes: {in: {action: effect, retry: {attempts: 2, backoff: 1ms}}}}}, on_error: go_on}
  again: {action: effect, needs: sub, retry: {attempts: 3, backoff: 1ms}}
";
    let (id, end) = scene.start(text).await;
    completed(&end);
    let metrics = scene.section(id, "metrics").await;
    assert_eq!(metrics, json!({"total_retries": 3, "nodes_with_failures": ["sub/in", "sub", "again"]}));
}

/// Whatever else ended last, the checkpoint of a pause names the node that failed.
#[tokio::test]
async fn the_checkpoint_of_a_pause_names_the_node_that_failed() {
    let scene = Scene::new();
    let dir = scene.dir.path().display().to_string();
    let text = format!(
        "
parallel: 2
start: [bad, good]
nodes:
  bad: {{action: shell, retry: 1, with: {{command: 'while ! test -e {dir}/go; do sleep 0.01; done; exit 1'}}}}
  good: {{action: shell, timeout: 60s, with: {{command: 'touch {dir}/go; sleep 0.5'}}}}
  next: {{action: keyed, needs: good}}
"
    );
    let (id, end) = scene.start(&text).await;
    assert!(matches!(&end, End::Paused { node: Some(node), .. } if node == "bad"), "{end:?}");
    let marks = marks(&scene, id).await;
    let last = marks.iter().find(|mark| mark.checkpoint.trigger.as_str() == "pause").unwrap();
    let state = scene.engine().await.store().state_at(last.at).await.unwrap();
    let execution = state.section("execution").unwrap();
    assert_eq!((&execution["current_node"], &execution["next_node"]), (&json!("bad"), &Value::Null));
}
