//! Runs through the real binary: how they end, what a crash or a person who stops them leaves, and how they go on.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Place, Ran, text};
use crate::transcript::{Transcript, assert_seen};

pub const PLAN: &str = "name: papers
memory: {topic: logs}
steps:
  - {id: find, action: shell, parameters: {command: 'echo found {{ memory.topic }}'}}
  - {id: read, action: model, parameters: {prompt: 'Read {{ outputs.find.stdout }}'}, dependencies: find}
  - {id: colour, action: ask, parameters: {question: Colour?, choices: [red, blue]}, dependencies: read}
  - {id: publish, action: approve, parameters: {question: Publish it?}, dependencies: colour}
outputs: {text: outputs.read.text, colour: outputs.colour.answer}
";

pub const SCRIPT: &str = "name: reader
replies:
  - {text: I read it., usage: {input_tokens: 10, output_tokens: 3}, cost_usd: 0.01}
";

/// Every step appends its name and key to a file: what really happened.
const CHAIN: &str = "name: chain
nodes:
  one: {action: shell, with: {command: 'echo one $MILEPOST_IDEMPOTENCY_KEY >> effects'}}
  two: {action: shell, with: {command: 'echo two $MILEPOST_IDEMPOTENCY_KEY >> effects; touch begun; while test ! -e go; do sleep 0.05; done'}}
  three: {action: shell, with: {command: 'echo three $MILEPOST_IDEMPOTENCY_KEY >> effects'}}
edges:
  - {from: one, to: two}
  - {from: two, to: three}
";

/// What happened, by the names of the steps.
pub fn effects(place: &Place) -> Vec<String> {
    let text = std::fs::read_to_string(place.file("effects")).unwrap_or_default();
    text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

pub fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The session of a run whose events are read from its output, which stays open.
pub fn begin(place: &Place, args: &[&str]) -> (Child, String, BufReader<std::process::ChildStdout>) {
    let mut child = place.command([&["--json"], args].concat()).stdin(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let first: Value = serde_json::from_str(&line).unwrap();
    let id = text(&first, "/sessionId").to_owned();
    (child, id, out)
}

pub fn status(place: &Place, id: &str) -> String {
    text(&place.json(&["sessions", "show", id]), "/status").to_owned()
}

pub fn step(place: &Place, id: &str, node: &str) -> Value {
    let steps = place.json(&["steps", id]);
    steps["steps"].as_array().unwrap().iter().find(|step| step["node"] == json!(node)).unwrap().clone()
}

#[test]
fn a_run_that_was_killed_asks_about_the_step_of_which_nobody_knows() {
    let place = Place::new();
    place.write("chain.yaml", CHAIN);
    let (mut child, id, _out) = begin(&place, &["run", "chain.yaml"]);
    wait_for(&place.file("begun"));
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    place.write("go", "");
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["resume", &id]).code, 12);
    assert_eq!(status(&place, &id), "paused");
    assert_eq!(seen.run(&["resume", &id]).code, 12, "it asks again, and runs nothing");
    assert_eq!(effects(&place), ["one", "two"]);
    assert_eq!(seen.run(&["resume", &id, "--done", "one"]).code, 2);
    assert_eq!(seen.run(&["resume", &id, "--done", "two", "--again", "two"]).code, 2);
    assert_eq!(seen.run(&["resume", &id, "--done", "two={\"code\":0}"]).code, 0);
    assert_eq!(effects(&place), ["one", "two", "three"]);
    assert_eq!(step(&place, &id, "two")["output"], json!({"code": 0}));
    assert_eq!(seen.run(&["resume", &id]).code, 0);
    assert_eq!(effects(&place), ["one", "two", "three"]);
    assert_seen!("killed_run", seen.end());
}

#[test]
fn a_step_that_is_run_again_has_the_key_it_had() {
    let place = Place::new();
    place.write("chain.yaml", CHAIN);
    let (mut child, id, _out) = begin(&place, &["run", "chain.yaml"]);
    wait_for(&place.file("begun"));
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    place.write("go", "");
    assert_eq!(place.run(&["resume", &id]).code, 12);
    place.ok(&["resume", &id, "--again", "two"]);
    assert_eq!(effects(&place), ["one", "two", "two", "three"]);
    let all = std::fs::read_to_string(place.file("effects")).unwrap();
    let keys: Vec<&str> = all.lines().filter(|line| line.starts_with("two")).collect();
    assert_eq!(keys[0], keys[1]);
    assert_eq!(keys[0].split(' ').next_back().unwrap(), text(&step(&place, &id, "two"), "/key"));
}

#[test]
fn a_person_who_stops_a_run_finds_it_paused_and_goes_on() {
    for how in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = Place::new();
        place.write("chain.yaml", CHAIN.replace("two: {", "two: {idempotent: true, "));
        let (mut child, id, out) = begin(&place, &["run", "chain.yaml"]);
        wait_for(&place.file("begun"));
        signal(&child, how);
        let lines: Vec<String> = out.lines().map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let end: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!(text(&end, "/end"), "stopped");
        assert_eq!(status(&place, &id), "paused");
        place.write("go", "");
        place.ok(&["resume", &id]);
        assert_eq!(effects(&place), ["one", "two", "two", "three"]);
    }
}

#[test]
fn who_stops_a_run_twice_does_not_wait() {
    let place = Place::new();
    // A step that does not end when it is told to.
    let stubborn = "trap \"\" TERM INT; touch begun; while test ! -e go; do sleep 0.05; done";
    let graph = json!({"nodes": {"a": {"action": "shell", "with": {"command": stubborn}}}});
    place.write("stubborn.json", graph.to_string());
    let (mut child, id, out) = begin(&place, &["run", "stubborn.json"]);
    wait_for(&place.file("begun"));
    signal(&child, Signal::INT);
    // The second one comes while the first is dealt with.
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(&child, Signal::INT);
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    place.write("go", "");
    assert_eq!(place.run(&["resume", &id]).code, 12, "nobody knows whether the step had its effect");
}

#[test]
fn a_run_that_fails_pauses_and_goes_on_when_the_reason_is_gone() {
    let place = Place::new();
    place.write(
        "net.yaml",
        "memory: {tries: 1}
nodes:
  one: {action: shell, with: {command: 'echo one >> effects'}}
  two: {action: shell, with: {command: 'test -e network && echo two >> effects'}, retry: {attempts: 2, backoff: 1ms}}
edges: [{from: one, to: two}]
outputs: {tries: memory.tries}
",
    );
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["run", "net.yaml"]).code, 10);
    seen.run(&["steps", "last"]);
    place.write("network", "");
    assert_eq!(seen.run(&["resume", "last", "--set", "memory.tries=2"]).code, 0);
    assert_eq!(effects(&place), ["one", "two"], "what is done is skipped, what failed is tried again");
    assert_seen!("paused_run", seen.end());
}

#[test]
fn a_graph_that_changed_is_gone_on_with_or_refused_with_the_difference() {
    let place = Place::new();
    let graph = |two: &str, three: &str| {
        format!(
            "nodes:
  one: {{action: shell, with: {{command: 'echo one >> effects'}}}}
  two: {{action: ask, with: {{question: '{two}'}}}}
  {three}: {{action: shell, with: {{command: 'echo {three} >> effects'}}}}
edges: [{{from: one, to: two}}, {{from: two, to: {three}}}]
"
        )
    };
    place.write("g.yaml", graph("Go on?", "three"));
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["run", "g.yaml"]).code, 11);
    place.write("g.yaml", graph("Really?", "three"));
    assert_eq!(seen.run(&["resume", "last"]).code, 11, "it goes on as it was begun, and says that the file is another");
    assert_eq!(seen.run(&["resume", "last", "--graph", "g.yaml"]).code, 1);
    assert_eq!(seen.run(&["resume", "last", "--graph", "g.yaml", "--again", "two"]).code, 11, "as it is now");
    place.write("g.yaml", graph("Really?", "four"));
    place.ok(&["answer", "last", "two", "yes"]);
    assert_eq!(seen.run(&["resume", "last", "--graph", "g.yaml"]).code, 0);
    assert_eq!(effects(&place), ["one", "four"]);
    assert_seen!("changed_graph", seen.end());
}

#[test]
fn a_question_may_be_answered_before_it_is_asked_and_only_where_one_is() {
    let place = Place::new();
    place.write("plan.yaml", PLAN);
    place.write("model.yaml", SCRIPT);
    let mut seen = Transcript::new(&place);
    assert_eq!(place.run(&["run", "plan.yaml", "--model", "scripted/model.yaml"]).code, 11);
    assert_eq!(seen.run(&["answer", "last", "find", "x"]).code, 3);
    assert_eq!(seen.run(&["answer", "last", "colour", "green"]).code, 2);
    assert_eq!(seen.run(&["approve", "last", "publish", "--deny"]).code, 0);
    assert_eq!(seen.run(&["answer", "last", "colour", "red"]).code, 0);
    assert_eq!(seen.run(&["resume", "last", "--model", "scripted/model.yaml"]).code, 10, "it was denied");
    assert_eq!(seen.run(&["approve", "last", "publish", "--change"]).code, 0);
    assert_eq!(seen.run(&["resume", "last", "--model", "scripted/model.yaml"]).code, 0);
    let chat = place.session("No run", &["hello"]);
    assert_eq!(seen.run(&["resume", &chat]).code, 2);
    assert_eq!(seen.run(&["steps", &chat]).code, 3);
    assert_eq!(seen.run(&["answer", &chat, "a", "b"]).code, 3);
    assert_seen!("answers", seen.end());
}

#[test]
fn a_run_may_begin_in_a_session_that_is_there_once() {
    let place = Place::new();
    place.write(
        "a.yaml",
        "memory: {n: 1}\nnodes: {a: {action: set, with: {n: {cel: memory.n + 1}}}}\noutputs: {n: memory.n}\n",
    );
    let id = place.session("Mine", &["hello"]);
    assert_eq!(place.ok(&["run", "a.yaml", "--session", &id, "--input", "n=4"]), "n: 5");
    assert_eq!(status(&place, &id), "completed");
    assert_eq!(place.texts(&id), ["hello"]);
    let other = place.session("Other", &[]);
    let ran = place.run(&["run", "a.yaml", "--session", &other]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = place.run(&["run", "a.yaml", "--session", &other]);
    assert_ne!(ran.code, 0);
}

#[test]
fn timers_are_fired_once_by_whoever_works() {
    let place = Place::new();
    place.write(
        "timer.yaml",
        "nodes:
  nap: {action: wait, with: {for: 700ms}}
  after: {action: shell, with: {command: 'echo after >> effects'}}
edges: [{from: nap, to: after}]
",
    );
    for _ in 0..3 {
        assert_eq!(place.run(&["run", "timer.yaml", "--patience", "0s"]).code, 11);
    }
    assert_eq!(place.run(&["work", "--once"]).code, 0, "nothing is due yet");
    let workers: Vec<Child> = (0..2).map(|_| place.command(["work", "--until-idle"]).spawn().unwrap()).collect();
    for worker in workers {
        let ran = Ran::of(worker.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    assert_eq!(effects(&place), ["after", "after", "after"]);
    let list = place.json(&["sessions", "list", "--status", "completed"]);
    assert_eq!(list["sessions"].as_array().unwrap().len(), 3);
}

#[test]
fn a_worker_goes_on_until_it_is_stopped_and_leaves_runs_that_somebody_paused() {
    let place = Place::new();
    place.write("timer.yaml", "nodes: {nap: {action: wait, with: {for: 3s}}}\n");
    assert_eq!(place.run(&["run", "timer.yaml", "--patience", "0s"]).code, 11);
    let id = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    place.ok(&["sessions", "pause", &id]);
    std::thread::sleep(std::time::Duration::from_millis(3050));
    assert_eq!(place.run(&["work", "--until-idle"]).code, 0);
    assert_eq!(status(&place, &id), "paused");
    let child = place.command(["work"]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    signal(&child, Signal::TERM);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.out.as_str()), (0, ""));
}

#[test]
fn a_long_chain_of_steps_that_are_done_at_once_needs_no_stack() {
    let place = Place::new();
    let node = |at: usize| match at {
        0 => "  n0: {action: set, with: {k: 0}}\n".to_owned(),
        _ => format!("  n{at}: {{action: set, with: {{k: {at}}}, needs: [n{}]}}\n", at - 1),
    };
    let nodes: String = (0..600).map(node).collect();
    place.write("chain.yaml", format!("memory: {{k: 0}}\nnodes:\n{nodes}outputs: {{last: memory.k}}\n"));
    assert_eq!(place.ok(&["run", "chain.yaml"]), "last: 599");
}

/// Which checkpoints are taken is said by the settings, for a session, and for one run.
#[test]
fn the_policy_may_be_said_for_a_session_and_for_a_run() {
    let place = Place::new();
    place.write(
        "g.yaml",
        "nodes:
  a: {action: shell, with: {command: 'true'}}
  b: {action: ask, with: {question: Well?}, needs: a}
  c: {action: shell, with: {command: 'true'}, needs: b}
",
    );
    let triggers = |id: &str| {
        let all = place.json(&["sessions", "checkpoints", id, "-n", "100"]);
        let list = all["checkpoints"].as_array().unwrap().iter().map(|one| text(one, "/type").to_owned());
        list.collect::<Vec<String>>()
    };
    let edges = ["--policy", "triggers.edge_transition=true", "--policy", "triggers.node_start=false"];
    assert_eq!(place.run(&[&["run", "g.yaml"][..], &edges].concat()).code, 11);
    let id = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    let before = triggers(&id);
    assert!(before.contains(&"edge_transition".to_owned()) && !before.contains(&"node_start".to_owned()), "{before:?}");
    place.ok(&["answer", &id, "b", "yes"]);
    place.ok(&["resume", &id, "--policy", "triggers.node_start=true"]);
    assert!(triggers(&id).contains(&"node_start".to_owned()));
    let shown = place.json(&["sessions", "inspect", &id, "latest"]);
    assert_eq!((text(&shown, "/current_node"), &shown["next_node"]), ("c", &Value::Null));
    let wrong = place.run(&["run", "g.yaml", "--policy", "triggers.edge_transitoin=true"]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.err.contains("edge_transition"), "{}", wrong.err);
}

/// An approval that was given for one draft does not count for another.
#[test]
fn a_run_that_is_set_back_asks_again() {
    let place = Place::new();
    place.write(
        "g.yaml",
        "nodes:
  draft: {action: shell, with: {command: 'echo draft >> effects'}}
  ok: {action: approve, with: {question: Ship?}, needs: draft}
  ship: {action: shell, with: {command: 'echo ship >> effects'}, needs: ok}
",
    );
    assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
    place.ok(&["approve", "last", "ok"]);
    place.ok(&["resume", "last"]);
    let all = place.json(&["sessions", "checkpoints", "last", "-n", "100"]);
    let first = all["checkpoints"].as_array().unwrap().iter().find(|one| one["description"] == json!("before draft"));
    let first = text(first.unwrap(), "/checkpoint_id").to_owned();
    let again = ["resume", "last", "--reopen", "--checkpoint", &first];
    let ran = place.run(&again);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("ship (key ") && ran.err.contains("--repeat-effects"), "{}", ran.err);
    let ran = place.run(&["resume", "last", "--reopen", "--checkpoint", &first, "--dry-run"]);
    assert!(ran.code == 0 && ran.err.contains("would happen again: ship"), "{ran:?}");
    let again = ["resume", "last", "--reopen", "--checkpoint", &first, "--repeat-effects"];
    let ran = place.run(&again);
    assert_eq!(ran.code, 12, "what was begun there is asked about: {}", ran.err);
    let ran = place.run(&["resume", "last", "--again", "draft"]);
    assert_eq!((ran.code, effects(&place)), (11, vec!["draft".into(), "ship".into(), "draft".into()]), "{}", ran.err);
}

/// By the command that goes on with it: another would only mark it as resumed.
#[tokio::test]
async fn a_run_or_a_conversation_that_somebody_holds_says_how_to_take_it_over() {
    let place = Place::new();
    place.write("plan.yaml", "steps:\n  - {id: a, action: ask, with: {question: Really?}}\n");
    place.write("model.yaml", "replies: [{text: Hello.}]\n");
    place.write("milepost.yaml", "model: scripted/model.yaml\n");
    assert_eq!(place.run(&["run", "plan.yaml"]).code, 11);
    let run = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    assert_eq!(place.run(&["chat", "hi"]).code, 0);
    let chat = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    let engine = milepost::Milepost::open(&place.url()).await.unwrap();
    for (id, args, again) in [
        (&run, vec!["resume", &run], "milepost resume ID --take-over"),
        (&run, vec!["resume", &run, "--graph", "plan.yaml"], "milepost resume ID --graph plan.yaml --take-over"),
        (&chat, vec!["chat", "--session", &chat, "more"], "milepost chat --session ID --take-over"),
    ] {
        let held = engine.resume(id.parse().unwrap(), milepost::Resume::latest()).await.unwrap();
        let ran = place.run(&args);
        assert_eq!(ran.code, 4, "{ran:?}");
        let again = again.replace("ID", &id[id.len() - 8..]);
        assert!(ran.err.contains("is held by") && ran.err.contains(&again), "{again}: {ran:?}");
        held.session.release().await.unwrap();
    }
}

/// Whoever goes on with a run does so where the run is, not where they stand.
#[test]
fn commands_run_where_the_run_was_begun() {
    let place = Place::new();
    let elsewhere = place.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::create_dir(place.path().join("below")).unwrap();
    place.write(
        "plan.yaml",
        "steps:
  - {id: nap, action: wait, with: {for: 1s}}
  - {id: make, action: shell, needs: nap, with: {command: 'echo made > made'}}
  - {id: deep, action: shell, needs: make, with: {command: 'echo made > made', cwd: below}}
",
    );
    assert_eq!(place.run(&["run", "plan.yaml", "--patience", "0s"]).code, 11);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let ran = Ran::of(place.command(["work", "--once"]).current_dir(&elsewhere).output().unwrap());
    assert!(ran.err.contains("completed"), "{ran:?}");
    assert!(place.path().join("made").exists() && place.path().join("below/made").exists());
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn a_resume_wants_no_model_that_nothing_asks_any_more() {
    let place = Place::new();
    place.write("model.yaml", "replies: [{text: Hello.}]\n");
    place.write("milepost.yaml", "model: scripted/model.yaml\n");
    place.write(
        "plan.yaml",
        "steps:\n  - {id: a, action: model, with: {prompt: hi}}\n  - {id: b, action: shell, needs: a, with: {command: test -e go}}\n",
    );
    assert_eq!(place.run(&["run", "plan.yaml"]).code, 10);
    std::fs::remove_file(place.path().join("milepost.yaml")).unwrap();
    place.write("go", "");
    let ran = place.run(&["resume", "last"]);
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// What an agent said and called, what a check found, what a step inside gave: each line tells its time and its outcome.
#[test]
fn the_parts_of_steps_tell_their_times_and_outcomes() {
    let place = Place::new();
    place.write(
        "parts.yaml",
        "nodes:
  mend:
    action: checks
    with:
      checks: {there: 'test -e fixed || { echo it is not there; exit 3; }'}
      prompt: Make it be there.
      tools: [shell]
  sub:
    action: graph
    needs: mend
    with:
      graph:
        nodes:
          look: {action: shell, with: {command: echo found it}, output: found}
          bad: {action: shell, with: {command: exit 7}, retry: 1, on_error: go_on, needs: look}
        outputs: {found: outputs.found.code}
",
    );
    place.write(
        "model.yaml",
        "replies:
  - {calls: [{name: shell, input: {command: touch fixed; echo made}}]}
  - {text: It is there now.}
",
    );
    let ran = place.run(&["run", "parts.yaml", "--model", "scripted/model.yaml"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let steps = place.json(&["steps", "last"])["steps"].as_array().unwrap().clone();
    let names: Vec<&str> = steps.iter().map(|step| step["node"].as_str().unwrap()).collect();
    let parts = ["mend/round_1.mend", "mend/round_1.mend/turn_1", "mend/round_1.mend/turn_1.1.shell"];
    let parts = [&["mend", "mend/round_1.there"], parts.as_slice()].concat();
    let rest = ["mend/round_1.mend/turn_2", "mend/round_2.there", "sub", "sub/look", "sub/bad"];
    assert_eq!(names, [parts.as_slice(), &rest].concat(), "in the order in which they were begun");
    for step in &steps {
        assert!(step["durationMs"].is_u64(), "{step:#}");
        assert!(text(step, "/startedAt") <= text(step, "/endedAt"), "{step:#}");
    }
    let of = |node: &str| steps.iter().find(|step| step["node"] == json!(node)).unwrap()["output"].clone();
    assert_eq!(of("mend/round_1.there")["code"], json!(3));
    let calls = json!([{"name": "shell", "input": {"command": "touch fixed; echo made"}}]);
    assert_eq!(of("mend/round_1.mend/turn_1")["calls"], calls);
    assert_eq!(of("mend/round_1.mend/turn_1.1.shell")["stdout"], json!("made\n"));
    assert_eq!(of("mend/round_1.mend/turn_2"), json!({"text": "It is there now.", "calls": []}));
    assert_eq!(of("sub/look")["stdout"], json!("found it\n"));
    let shown = Ran::of(place.command(["steps", "last"]).env("COLUMNS", "160").output().unwrap()).out;
    for (node, outcome) in [
        ("mend/round_1.there", "failed with 3: it is not"),
        ("mend/round_2.there", "passed"),
        ("mend/round_1.mend/turn_1", "calls shell"),
        ("mend/round_1.mend/turn_1.1.shell", "made"),
        ("mend/round_1.mend/turn_2", "It is there now."),
        ("mend", "passed in round 2"),
        ("sub/look", "found it"),
        ("sub/bad", "7"),
    ] {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(node));
        assert!(line.is_some_and(|line| line.contains(outcome)), "{node}: {outcome}\n{shown}");
    }
}

/// Whoever looks first, as a person or as a program, is told what would happen again; the way that is offered works.
#[test]
fn going_back_names_what_happens_again_and_offers_a_way_that_works() {
    let place = Place::new();
    let text = "nodes:
  one: {action: shell, with: {command: echo one >> effects}}
  sub: {action: graph, needs: one, with: {graph: {nodes: {pay: {action: shell, with: {command: echo paid >> effects}}}}}}
";
    place.write("back.yaml", text);
    assert_eq!(place.run(&["run", "back.yaml"]).code, 0);
    let marks = place.json(&["sessions", "checkpoints", "last"])["checkpoints"].as_array().unwrap().clone();
    let mark = marks.iter().find(|mark| mark["description"] == json!("after one")).unwrap();
    let from = text_of(mark, "checkpoint_id");
    let seen = place.json(&["resume", "last", "--checkpoint", &from, "--reopen", "--dry-run"]);
    assert_eq!(seen["repeats"][0]["node"], json!("sub/pay"), "{seen:#}");
    assert_eq!(seen["costUsd"].to_string(), "0.0");
    let ran = place.run(&["resume", "last", "--checkpoint", &from, "--reopen"]);
    assert!(ran.code == 1 && ran.err.contains("sub/pay (key "), "{}", ran.err);
    assert_eq!(effects(&place), ["one", "paid"]);
    let way = ran.err.lines().find_map(|line| line.trim().strip_prefix("again ")).unwrap().trim();
    let words: Vec<&str> = way.split(' ').skip(1).collect();
    let ran = place.run(&words);
    assert_eq!(ran.code, 0, "{way}\n{}", ran.err);
    assert_eq!(effects(&place), ["one", "paid", "paid"]);
}

/// Nobody says the model twice: a run remembers it, also when a step of it is run again.
#[test]
fn a_step_is_run_again_with_the_model_that_was_said() {
    let place = Place::new();
    place.write("plan.yaml", "steps:\n  - {id: a, action: model, with: {prompt: hi}}\n");
    place.write("model.yaml", "after_last: repeat\nreplies: [{text: Hello.}]\n");
    assert_eq!(place.run(&["run", "plan.yaml", "--model", "scripted/model.yaml"]).code, 0);
    let ran = place.run(&["run-again", "last", "a", "--input", "prompt=hello"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

fn text_of(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap().to_owned()
}

/// Whoever answers what is asked now need not know in which round it is asked.
#[test]
fn a_question_inside_of_a_loop_is_answered_by_its_name() {
    let place = Place::new();
    place.write(
        "rounds.yaml",
        "memory: {n: 0}
nodes:
  sub: {action: graph, with: {graph: {nodes: {ok: {action: approve, with: {question: Go on?}}}}}}
  count: {action: set, with: {n: {cel: memory.n + 1}}}
edges:
  - {from: sub, to: count}
  - {from: count, to: sub, when: memory.n < 2, limit: 5}
",
    );
    assert_eq!(place.run(&["run", "rounds.yaml"]).code, 11);
    place.ok(&["approve", "last", "sub/ok"]);
    assert_eq!(place.run(&["resume", "last"]).code, 11, "it is asked again in the second round");
    place.ok(&["approve", "last", "sub/ok"]);
    let ran = place.run(&["resume", "last"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn a_run_that_pauses_says_why_though_it_is_to_be_quiet() {
    let place = Place::new();
    place.write("g.yaml", "nodes:\n  a: {action: shell, with: {command: 'exit 3'}, retry: 1}\n");
    let ran = place.run(&["-q", "run", "g.yaml"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.lines().count()), (10, "", 1), "{}", ran.err);
    assert!(ran.err.contains("it ended with code 3"), "{}", ran.err);
}

#[test]
fn a_question_that_was_denied_and_is_approved_after_all_goes_on_by_itself() {
    let place = Place::new();
    place.write("g.yaml", "nodes:\n  ok: {action: approve, with: {question: 'Fine?'}, retry: 1}\n");
    assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
    place.ok(&["approve", "last", "ok", "--deny"]);
    assert_eq!(place.run(&["resume", "last"]).code, 10);
    place.ok(&["approve", "last", "ok", "--change"]);
    let ran = place.run(&["work", "--until-idle"]);
    assert!(ran.err.contains("completed"), "{}", ran.err);
}

#[test]
fn a_model_inside_of_a_file_is_missed_before_anything_is_begun() {
    let place = Place::new();
    place.write("in.yaml", "nodes:\n  x: {action: model, with: {prompt: hi}}\n");
    place.write("g.yaml", "nodes:\n  pay: {action: shell, with: {command: 'echo paid > paid'}}\n  sub: {action: graph, with: {file: in.yaml}, needs: pay}\n");
    let ran = place.run(&["run", "g.yaml"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("none is set") && !place.file("paid").exists(), "{}", ran.err);
    place.write("in.yaml", "nodes:\n  x: {action: modell, with: {prompt: hi}}\n");
    let ran = place.run(&["graph", "check", "g.yaml"]);
    assert!(ran.code != 0 && ran.out.contains("in.yaml:2:"), "{}{}", ran.out, ran.err);
}

/// Whoever goes on elsewhere does not have the variable.
#[test]
fn the_model_of_the_environment_is_remembered_with_the_run() {
    let place = Place::new();
    place.write("model.yaml", "replies: [{text: Yes.}]\n");
    place.write(
        "g.yaml",
        "nodes:\n  w: {action: wait, with: {for: 1s}}\n  m: {action: model, with: {prompt: hi}, needs: w}\n",
    );
    let mut command = place.command(["run", "g.yaml", "--patience", "0s"]);
    let ran = Ran::of(command.env("MILEPOST_MODEL", "scripted/model.yaml").output().unwrap());
    assert_eq!(ran.code, 11, "{}", ran.err);
    let ran = place.run(&["work", "--until-idle"]);
    assert!(ran.err.contains("completed"), "{}", ran.err);
}

#[test]
fn a_budget_that_is_used_up_already_is_told_before_going_on() {
    let place = Place::new();
    place.write("milepost.yaml", "model: scripted/model.yaml\n");
    place.write(
        "model.yaml",
        "after_last: repeat\nreplies: [{text: Yes., usage: {input_tokens: 90, output_tokens: 10}}]\n",
    );
    place.write("g.yaml", "budget: {tokens: 100}\nsteps:\n  - {id: a, action: model, with: {prompt: x}}\n  - {id: b, action: model, with: {prompt: y}, needs: a}\n");
    assert_eq!(place.run(&["run", "g.yaml"]).code, 10);
    let ran = place.run(&["resume", "last", "--dry-run"]);
    assert!(ran.out.contains("used up already") && ran.out.contains("--budget-tokens 200"), "{}", ran.out);
}

/// What a plan's run knows is told in the words of plans: in the export of that layout, and in the tables.
#[test]
fn a_run_of_a_plan_is_exported_with_its_steps_and_results() {
    let place = Place::new();
    let plan = "query: Find papers
memory: {topic: logs}
steps:
  - {id: find, description: Look, action: shell, parameters: {command: 'echo found'}}
  - {id: read, action: model, parameters: {prompt: Read}, dependencies: find}
  - {id: fail, action: shell, parameters: {command: 'exit 3'}, dependencies: [read], retry: 1}
  - {id: tell, action: set, parameters: {told: true}, dependencies: fail}
";
    place.write("plan.yaml", plan);
    place.write("reader.yaml", SCRIPT);
    let (mut child, id, out) = begin(&place, &["run", "plan.yaml", "--model", "scripted/reader.yaml"]);
    drop(out.lines().collect::<Vec<_>>());
    assert_eq!(child.wait().unwrap().code(), Some(10));
    place.ok(&["sessions", "export", &id, "-f", "plan", "-o", "out"]);
    let file = std::fs::read_dir(place.file("out/plans")).unwrap().next().unwrap().unwrap().path();
    let exported: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let all = exported.as_array().or_else(|| exported["checkpoints"].as_array()).unwrap();
    let last = &all.last().unwrap()["state"];
    assert_eq!(last["query"], "Find papers");
    let statuses: Vec<&Value> = last["plan"].as_array().unwrap().iter().map(|step| &step["status"]).collect();
    assert_eq!(statuses, ["completed", "completed", "failed", "pending"]);
    assert_eq!(last["plan"][0]["description"], "Look");
    assert_eq!(last["plan"][2]["dependencies"], json!(["read"]));
    assert_eq!(last["plan"][2]["parameters"], json!({"command": "exit 3"}));
    assert_eq!(last["currentStepIndex"], 2);
    assert_eq!(last["context"]["topic"], "logs");
    let results: Vec<&Value> = last["results"].as_array().unwrap().iter().map(|one| &one["stepId"]).collect();
    assert_eq!(results, ["find", "read"]);
    assert_eq!(last["results"][0]["output"]["stdout"], "found\n");
    assert!(last["results"][0]["durationMs"].is_number() && last["results"][0]["completedAt"].is_string());
    assert_eq!(last["results"][1]["tokenUsage"]["input_tokens"], 10);
    assert_eq!(last["lastError"]["stepIndex"], 2);
    assert_eq!(last["lastError"]["message"], "it ended with code 3");
    // The tables count steps, not checkpoints; those that end a step have its time and tokens.
    let rows = place.json(&[
        "sql",
        "SELECT step_number, duration_ms IS NOT NULL AS timed, token_usage FROM checkpoints WHERE trigger = 'step' ORDER BY seq",
    ]);
    let rows = rows["rows"].as_array().or_else(|| rows.as_array()).unwrap().clone();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let told = serde_json::to_string(&rows).unwrap();
    assert_eq!((&rows[0]["step_number"], &rows[1]["step_number"]), (&json!(1), &json!(2)), "{told}");
    assert_eq!((&rows[0]["timed"], &rows[1]["timed"]), (&json!(1), &json!(1)), "{told}");
    assert!(
        rows[0]["token_usage"].is_null() && text(&rows[1], "/token_usage").contains("\"input_tokens\":10"),
        "{told}"
    );
    // It comes in again as it went out.
    let other = Place::new();
    let imported = other.json(&["sessions", "import", &place.file("out").display().to_string()]);
    let id = text(&imported, "/sessions/0/sessionId").to_owned();
    assert_eq!(other.json(&["state", "get", &id, "execution.currentStepIndex"]), json!(2));
}

/// Whoever talks in a session that waits would take its wake-up from it.
#[test]
fn nobody_talks_in_a_session_whose_run_waits() {
    let place = Place::new();
    place.write("model.yaml", "replies: [{text: Hello.}]\nafter_last: repeat\n");
    place.write("milepost.yaml", "model: scripted/model.yaml\n");
    place.write(
        "timer.yaml",
        "nodes:\n  nap: {action: wait, with: {for: 3s}}\n  after: {action: shell, needs: nap, with: {command: 'echo after >> effects'}}\n",
    );
    assert_eq!(place.run(&["run", "timer.yaml", "--patience", "0s"]).code, 11);
    let id = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    let ran = place.run(&["chat", "--session", &id, "hi"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    let told = "a run of a graph waits in it";
    assert!(ran.err.contains(told) && ran.err.contains("milepost resume") && ran.err.contains("branch"), "{}", ran.err);
    assert_eq!(status(&place, &id), "waiting");
    let branch = place.ok(&["sessions", "branch", &id]);
    let branch = branch.split_whitespace().find(|word| word.starts_with("ses_")).unwrap().to_owned();
    assert_eq!(place.ok(&["chat", "--session", &branch, "hi"]), "Hello.");
    std::thread::sleep(std::time::Duration::from_millis(3200));
    place.ok(&["work", "--once"]);
    assert_eq!((status(&place, &id).as_str(), effects(&place)), ("completed", vec!["after".to_owned()]));
    // What is over can be talked about.
    assert_eq!(place.ok(&["chat", "--session", &id, "hi"]), "Hello.");
}

/// A part that fails is not tried again by itself.
#[test]
fn a_part_that_failed_is_told_as_what_it_is() {
    let place = Place::new();
    place.write("model.yaml", "replies: [{calls: [{name: shell, input: {command: 'exit 1'}}]}, {text: Hello.}]\n");
    place.write("milepost.yaml", "model: scripted/model.yaml\n");
    place.write("g.yaml", "nodes: {a: {action: agent, with: {prompt: go, tools: [shell]}}}\n");
    let ran = place.run(&["run", "g.yaml"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let line = ran.err.lines().find(|line| line.contains("failed")).unwrap();
    assert!(line.contains("a/turn_1.1.shell") && line.ends_with("failed: it ended with code 1"), "{line}");
}

/// What is offered is what helps: an approval that the run has gone on without is not asked for again.
#[test]
fn only_what_stands_in_the_way_is_to_be_approved() {
    let place = Place::new();
    place.write(
        "g.yaml",
        "nodes:
  ok: {action: approve, with: {question: 'Deploy?', timeout: 50ms}}
  ok2: {action: approve, on_error: go_on, with: {question: 'Too?', timeout: 50ms, default: 'no'}}
  dep: {action: set, with: {x: 1}, needs: [ok, ok2]}
memory: {x: 0}
",
    );
    let ran = place.run(&["run", "g.yaml"]);
    assert_eq!(ran.code, 10, "{}", ran.err);
    let offered: Vec<&str> = ran.err.lines().filter(|line| line.contains("milepost approve")).collect();
    assert!(offered.len() == 1 && offered[0].ends_with(" ok --change"), "{}", ran.err);
    assert_eq!(place.run(&["approve", "last", "ok", "--change"]).code, 0);
}

/// Rounds are counted as `steps` counts them.
#[test]
fn rounds_are_counted_from_one() {
    let place = Place::new();
    place.write(
        "g.yaml",
        "memory: {n: 0}
nodes:
  a: {action: shell, with: {command: 'echo {{ iteration }} {{ memory.n }} >> effects'}}
  b: {action: set, with: {n: {cel: memory.n + 1}}}
edges: [{from: a, to: b}, {from: b, to: a, when: memory.n < 3, limit: 5}]
",
    );
    place.ok(&["run", "g.yaml"]);
    let id = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    assert!(place.ok(&["steps", &id]).lines().any(|line| line.starts_with("a ") && line.contains(" 3 ")));
    let none = place.run(&["run-again", &id, "a", "--round", "0"]);
    assert_eq!(none.code, 2, "{}", none.err);
    let none = place.run(&["run-again", &id, "a", "--round", "4"]);
    assert!(none.code == 1 && none.err.contains("round 4 of it was never begun"), "{}", none.err);
    std::fs::remove_file(place.file("effects")).unwrap();
    place.ok(&["run-again", &id, "a", "--round", "3"]);
    assert_eq!(effects(&place), ["2"]);
}
