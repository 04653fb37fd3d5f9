//! The whole thing: a research agent that loses its network, and many sessions at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost::{EngineOptions, Milepost, NewSession, Resume};
use milepost_models::{Scripted, Timer};
use milepost_run::graph::check;
use milepost_run::run::{End, Runner, Settle};
use serde_json::json;

use crate::receiver::Receiver;
use crate::roles::{ARGUMENTS, ROLE};
use crate::support::{Scene, completed, graph};

/// The network is lost in step 2 of 5: nothing of step 1 is asked or paid again.
#[tokio::test]
async fn a_research_agent_that_lost_its_network_goes_on_at_step_2() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "
replies:
  - {when: Plan, text: look at the papers, usage: {input_tokens: 10, output_tokens: 5}, cost_usd: 0.01}
  - {when: Summarise, calls: [{name: note, input: {text: three papers}}], usage: {input_tokens: 20, output_tokens: 5}, cost_usd: 0.02}
  - {when: Summarise, text: Three papers agree., usage: {input_tokens: 30, output_tokens: 5}, cost_usd: 0.03}
";
    // A port where nobody listens, yet.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "
steps:
  - {{id: plan, action: model, with: {{prompt: 'Plan the research.'}}}}
  - {{id: fetch, action: http, needs: plan, with: {{url: 'http://{port}/papers'}}, retry: {{attempts: 2, backoff: 1ms}}}}
  - {{id: read, action: agent, needs: fetch, with: {{prompt: 'Summarise {{{{ outputs.fetch.body }}}}', tools: [{{name: note, action: effect, with: {{text: '{{{{ input.text }}}}'}}, input: {{text: what}}}}]}}}}
  - {{id: store, action: keyed, needs: read, with: {{text: '{{{{ outputs.read.text }}}}'}}}}
  - {{id: tell, action: effect, needs: store}}
outputs: {{text: outputs.store.with.text}}
"
    );
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    let End::Paused { node: Some(node), why } = &end else { panic!("{end:?}") };
    assert_eq!(node, "fetch");
    assert!(why.contains("cannot be reached"), "{why}");
    assert_eq!(scene.status(id).await, "paused");
    let marks = engine.store().marks(id, &Default::default()).await.unwrap();
    assert!(marks.iter().any(|mark| mark.checkpoint.trigger.as_str() == "error"), "the failure is a checkpoint");

    let receiver = Receiver::at(&port.to_string()).await;
    let (end, changes) = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap();
    assert_eq!(completed(&end)["text"], "Three papers agree.");
    assert!(changes.is_empty());
    assert_eq!(scene.said(id, "plan").await.len(), 2, "step 1 was asked once");
    assert_eq!(receiver.counts()["/papers"].0, 1);
    assert_eq!(scene.effects.nodes(), ["read/turn_1.1.note", "store", "tell"]);
    let path = scene.section(id, "execution").await["path"].clone();
    assert_eq!(path, json!(["plan", "fetch", "read", "store", "tell"]));
}

/// A request that arrived, and whose answer did not: nobody knows, and nobody repeats it.
#[tokio::test]
async fn a_request_that_was_lost_in_the_middle_is_not_sent_twice() {
    let scene = Scene::new();
    let receiver = Receiver::start().await;
    let text = |method: &str| {
        format!(
            "nodes: {{a: {{action: http, retry: {{attempts: 3, backoff: 1ms}}, with: {{url: '{}/lost/{method}', method: {method}}}}}}}\n",
            receiver.url
        )
    };
    let (id, end) = scene.start(&text("POST")).await;
    assert!(matches!(&end, End::Uncertain { steps } if steps[0].0 == "a"), "{end:?}");
    assert_eq!((receiver.counts()["/lost/POST"], scene.status(id).await.as_str()), ((1, 1), "paused"));
    assert!(matches!(scene.resume(id).await, End::Uncertain { .. }));
    let (_, end) = scene.start(&text("PUT")).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("lost in the middle")), "{end:?}");
    assert_eq!(receiver.counts()["/lost/PUT"], (3, 1), "three attempts under one key");

    // A tool of an agent, too.
    let engine = scene.engine().await;
    let script = "replies:\n  - calls: [{name: pay, input: {}}]\n  - {text: done}\n";
    let text = format!(
        "nodes: {{a: {{action: agent, with: {{prompt: go, tools: [{{name: pay, action: http, with: {{url: '{}/lost/tool', method: POST}}}}]}}}}}}\n",
        receiver.url
    );
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Uncertain { steps } if steps[0].0 == "a/turn_1.1.pay"), "{end:?}");
    let settle = BTreeMap::from([("a/turn_1.1.pay".to_owned(), Settle::Happened(json!({"status": 200})))]);
    completed(&runner.resume(id, Resume::latest(), None, &settle).await.unwrap().0);
    assert_eq!(receiver.counts()["/lost/tool"], (1, 1));
}

/// The most memory that a process with 200 sessions at the same time may have held (300 MB; it is a debug build).
const MAX_KILOBYTES: u64 = 300_000;
const SESSIONS: usize = 200;

/// The role: many sessions in one process.
pub async fn run_many() {
    let dir = std::env::var("MILEPOST_TEST_DIR").unwrap();
    let engine = Milepost::open_with(&format!("sqlite:{dir}/many.db"), EngineOptions::default()).await.unwrap();
    let script = "replies:\n  - calls: [{name: shell, input: {command: 'echo found'}}]\n  - {text: done}\n";
    let model = Scripted::parse("s.yaml".as_ref(), script, Timer::none()).unwrap();
    let runner = Runner::new(&engine).model(Arc::new(model));
    let text = "
memory: {n: 0}
nodes:
  a: {action: agent, with: {prompt: go, tools: [shell]}}
  big: {action: shell, with: {command: 'head -c 200000 /dev/zero | tr \"\\\\0\" x'}}
  count: {action: set, with: {n: {cel: memory.n + 1}}}
  c: {action: shell, with: {command: 'test {{ outputs.a.text }} = done'}}
edges:
  - {from: a, to: count}
  - {from: big, to: count}
  - {from: count, to: c}
";
    let graph = check("g.yaml".as_ref(), text, &[]).graph.unwrap();
    let all: Vec<_> = (0..SESSIONS)
        .map(|_| {
            let (runner, graph) = (runner.clone(), graph.clone());
            tokio::spawn(async move { runner.start(&graph, NewSession::default()).await.unwrap().1 })
        })
        .collect();
    for one in all {
        let end = one.await.unwrap();
        assert!(matches!(end, End::Completed { .. }), "{end:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_at_the_same_time_need_a_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args(ARGUMENTS).env(ROLE, "many").env("MILEPOST_TEST_DIR", dir.path()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let peak: u64 = std::fs::read_to_string(dir.path().join("peak")).unwrap().trim().parse().unwrap();
    assert!(peak < MAX_KILOBYTES, "{peak} kB");
    let engine = Milepost::open(&format!("sqlite:{}/many.db", dir.path().display())).await.unwrap();
    let sessions = engine.every_session(&Default::default()).await.unwrap();
    assert_eq!(sessions.iter().filter(|session| session.status.as_str() == "completed").count(), SESSIONS);
}
