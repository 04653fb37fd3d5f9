//! Real kills: a process of its own runs the graph and sends itself SIGKILL at a boundary, before or after an append.
//! Effects are counted where they arrive.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use milepost::{EngineOptions, Milepost, NewSession, Resume, SessionId};
use milepost_run::graph::check;
use milepost_run::run::{End, Runner, Settle, answer};
use serde_json::{Value, json};

use crate::receiver::Receiver;
use crate::roles::{ARGUMENTS, ROLE};

/// What the process is told, as JSON.
const TASK: &str = "MILEPOST_TEST_TASK";

/// Six steps and more: two branches at the same time, a loop, a question. PUT may be repeated under its key, POST may not.
fn graph_text(receiver: &str) -> String {
    format!(
        "
parallel: 2
memory: {{count: 0}}
nodes:
  begin: {{action: http, with: {{url: '{receiver}/begin', method: PUT}}}}
  left: {{action: http, with: {{url: '{receiver}/left', method: PUT}}}}
  right: {{action: http, with: {{url: '{receiver}/right', method: POST}}}}
  work: {{action: http, with: {{url: '{receiver}/work', method: PUT}}}}
  count: {{action: set, with: {{count: {{cel: memory.count + 1}}}}}}
  which: {{action: ask, with: {{question: 'Which?'}}}}
  last: {{action: http, with: {{url: '{receiver}/last', method: POST, body: '{{{{ outputs.which.answer }}}}'}}}}
edges:
  - {{from: begin, to: left}}
  - {{from: begin, to: right}}
  - {{from: left, to: work}}
  - {{from: right, to: work}}
  - {{from: work, to: count}}
  - {{from: count, to: work, when: memory.count < 2, limit: 5}}
  - {{from: count, to: which}}
  - {{from: which, to: last}}
outputs: {{count: memory.count, status: outputs.last.status}}
"
    )
}

async fn open(url: &str) -> Milepost {
    Milepost::open_with(url, EngineOptions::default()).await.unwrap()
}

/// The role: runs or resumes, and is killed at the boundary that the task names.
pub async fn run_and_be_killed() {
    let task: Value = serde_json::from_str(&std::env::var(TASK).unwrap()).unwrap();
    let text = |key: &str| task[key].as_str().unwrap().to_owned();
    let engine = open(&text("url")).await;
    let stop = task["stop"].as_u64().unwrap();
    let runner = Runner::new(&engine).at_boundary(Arc::new(move |boundary| {
        if boundary == stop {
            // No destructor runs, nothing is flushed, nobody is told.
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        false
    }));
    let id: SessionId = text("session").parse().unwrap();
    let end = if task["begin"] == true {
        let graph = check("g.yaml".as_ref(), &graph_text(&text("receiver")), &[]).graph.unwrap();
        let new = NewSession { id: Some(id), ..NewSession::default() };
        runner.start(&graph, new).await.unwrap().1
    } else {
        let found = task["settle"].as_object().unwrap().iter();
        let settle: BTreeMap<String, Settle> = found
            .map(|(node, happened)| {
                let value = Settle::Happened(json!({"status": 200}));
                (node.clone(), if *happened == json!(true) { value } else { Settle::RunAgain })
            })
            .collect();
        let how = Resume { take_over: true, reopen: true, ..Resume::latest() };
        runner.resume(id, how, None, &settle).await.unwrap().0
    };
    let told = match end {
        End::Completed { outputs } => json!({"end": "completed", "outputs": outputs}),
        End::Waiting { .. } => json!({"end": "waiting"}),
        End::Uncertain { steps } => {
            json!({"end": "uncertain", "steps": steps.iter().map(|(node, _)| node).collect::<Vec<_>>()})
        }
        other => json!({"end": format!("{other:?}")}),
    };
    std::fs::write(text("told"), told.to_string()).unwrap();
}

/// Runs the role; what it told, or nothing when it was killed.
async fn process(task: &Value) -> Option<Value> {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    command.args(ARGUMENTS).env(ROLE, "kill").env(TASK, task.to_string()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    use std::os::unix::process::ExitStatusExt;
    if output.status.signal() == Some(9) {
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&std::fs::read(task["told"].as_str().unwrap()).unwrap()).unwrap())
}

#[derive(Clone, Copy, PartialEq)]
enum Turn {
    /// Up to the question.
    First,
    /// After the answer.
    Second,
}

/// One run from beginning to end with one kill; false when it ended before the kill.
async fn killed(url: &str, dir: &Path, turn: Turn, stop: u64, number: u8) -> bool {
    let receiver = Receiver::start().await;
    let mut bytes = [0u8; 16];
    bytes[..3].copy_from_slice(&[number, u8::try_from(stop).unwrap(), 1 + u8::from(turn == Turn::First)]);
    let id = SessionId::from_bytes(bytes);
    let told = dir.join("told");
    let mut task = json!({
        "url": url, "receiver": receiver.url, "session": id.to_string(), "told": told, "begin": true, "settle": {},
        "stop": if turn == Turn::First { stop } else { 0 },
    });
    let mut end = process(&task).await;
    let mut was_killed = end.is_none();
    let engine = open(url).await;
    answer(&engine, id, "which", 0, "this", "kim").await.unwrap();
    engine.close().await.unwrap();
    drop(engine);
    task["begin"] = false.into();
    let mut asked: Vec<String> = Vec::new();
    for round in 0..8 {
        task["stop"] = if turn == Turn::Second && round == 0 { stop } else { 0 }.into();
        end = process(&task).await;
        let Some(said) = &end else {
            was_killed = true;
            continue;
        };
        match said["end"].as_str().unwrap() {
            "completed" => {
                assert_eq!(said["outputs"], json!({"count": 2, "status": 200}), "killed at {stop}");
                let counts = receiver.counts();
                for (path, keys) in [("/begin", 1), ("/left", 1), ("/work", 2)] {
                    assert_eq!(counts[path].1, keys, "{path} killed at {stop}: {counts:?}");
                }
                for path in ["/right", "/last"] {
                    assert_eq!(counts[path], (1, 1), "{path} killed at {stop}: {counts:?}, asked {asked:?}");
                }
                return was_killed;
            }
            "uncertain" => {
                // Somebody looks at the receiver, and says what is so.
                for node in said["steps"].as_array().unwrap() {
                    let node = node.as_str().unwrap();
                    assert!(["right", "last"].contains(&node), "{node} may be repeated, and is not asked about");
                    task["settle"][node] = receiver.counts().contains_key(&format!("/{node}")).into();
                    asked.push(node.to_owned());
                }
            }
            "waiting" => {}
            other => panic!("killed at {stop}: {other}"),
        }
    }
    panic!("killed at {stop}: the run does not end: {end:?}");
}

async fn sweep(url: impl Fn(u64) -> String, dir: &Path) {
    let mut kills = 0;
    for (number, turn) in [(1, Turn::First), (2, Turn::Second)] {
        let mut stop = 1;
        while killed(&url(u64::from(number) * 1000 + stop), dir, turn, stop, number).await {
            (stop, kills) = (stop + 1, kills + 1);
        }
    }
    assert!(kills >= 24, "{kills} boundaries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_kill_at_any_boundary_repeats_nothing_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    sweep(|number| format!("sqlite:{}/{number}.db", dir.path().display()), dir.path()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_kill_at_any_boundary_repeats_nothing_on_postgres() {
    let said = std::env::var("MILEPOST_TEST_POSTGRES").unwrap_or_default();
    assert!(!said.is_empty(), "MILEPOST_TEST_POSTGRES names no server: run through scripts/test, or set it to `none`");
    if said == "none" {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let unique = dir.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_lowercase();
    let join = if said.contains('?') { '&' } else { '?' };
    sweep(|_| format!("{said}{join}schema=run_{unique}"), dir.path()).await;
}
