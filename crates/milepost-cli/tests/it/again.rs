//! Runs that cost something, that were denied, whose graph changed, or that are run once more on a branch.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::runs::{begin, effects, signal, status, step, wait_for};
use crate::support::{Place, number, text};
use crate::transcript::{Transcript, assert_seen};

const THREE: &str = "name: three
steps:
  - {id: a, action: model, with: {prompt: first}}
  - {id: b, action: model, with: {prompt: second}, needs: a}
  - {id: c, action: model, with: {prompt: third}, needs: b}
outputs: {text: outputs.c.text}
";

const PRICED: &str = "replies: [{text: Yes., usage: {input_tokens: 10, output_tokens: 3}, cost_usd: 0.01}]\n";
const UNPRICED: &str = "replies: [{text: Yes., usage: {input_tokens: 10, output_tokens: 3}}]\n";

/// The last command of what a person was told to do next, as words.
fn told(err: &str, which: &str) -> Vec<String> {
    let line = err.lines().find(|line| line.contains(which)).unwrap_or_else(|| panic!("no {which} in {err}"));
    let (_, command) = line.split_once("milepost ").unwrap();
    command.split_whitespace().map(str::to_owned).collect()
}

fn run(place: &Place, words: &[String]) -> i32 {
    place.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).code
}

#[test]
fn a_budget_pauses_a_run_and_what_is_told_raises_it() {
    let place = Place::new();
    place.write("three.yaml", THREE);
    place.write("model.yaml", PRICED);
    place.write("free.yaml", UNPRICED);
    let model = ["--model", "scripted/model.yaml"];
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&[&["run", "three.yaml", "--budget-tokens", "20"], &model[..]].concat()).code, 10);
    assert_eq!(seen.run(&[&["resume", "last"], &model[..]].concat()).code, 10, "the budget stays");
    assert_eq!(seen.run(&["resume", "last", "--dry-run", "--budget-tokens", "100"]).code, 0);
    assert_eq!(step(&place, "last", "c")["status"], json!("pending"), "a dry run runs nothing");
    let ran = place.run(&[&["resume", "last"], &model[..]].concat());
    assert_eq!(run(&place, &[told(&ran.err, "--budget-tokens"), model.map(str::to_owned).to_vec()].concat()), 0);

    assert_eq!(seen.run(&[&["run", "three.yaml", "--budget-usd", "0.005"], &model[..]].concat()).code, 10);
    let ran = place.run(&[&["resume", "last"], &model[..]].concat());
    assert_eq!(run(&place, &[told(&ran.err, "--budget-usd"), model.map(str::to_owned).to_vec()].concat()), 10);
    assert_eq!(place.run(&[&["resume", "last", "--budget-usd", "none"], &model[..]].concat()).code, 0);

    let free = ["--model", "scripted/free.yaml"];
    assert_eq!(seen.run(&[&["run", "three.yaml", "--budget-usd", "1"], &free[..]].concat()).code, 10);
    for wrong in [["--budget-tokens", "0"], ["--budget-usd", "nan"], ["--budget-usd", "-1"], ["--budget-tokens", "x"]] {
        assert_eq!(place.run(&[&["run", "three.yaml"], &wrong[..]].concat()).code, 2, "{wrong:?}");
    }
    assert_seen!("budgets", seen.end());
}

/// Whoever goes back pays again: a budget counts what `stats` does.
#[test]
fn a_budget_counts_what_going_back_left_behind() {
    let place = Place::new();
    place.write(
        "three.yaml",
        THREE.replace("outputs:", "  - {id: d, action: model, with: {prompt: more}, needs: c}\noutputs:"),
    );
    place.write("model.yaml", "replies: [{text: Yes., usage: {input_tokens: 100, output_tokens: 50}}]\n");
    let model = ["--model", "scripted/model.yaml"];
    assert_eq!(place.run(&[&["run", "three.yaml", "--budget-tokens", "300"], &model[..]].concat()).code, 10);
    let marks = place.json(&["sessions", "checkpoints", "last"]);
    let is_first = |mark: &&Value| mark["description"] == "after a";
    let all = marks["checkpoints"].as_array().or(marks.as_array()).unwrap();
    let first = all.iter().find(is_first).unwrap_or_else(|| panic!("{marks:#}"));
    let back =
        ["resume", "last", "--checkpoint", text(first, "/checkpoint_id"), "--repeat-effects", "--budget-tokens", "400"];
    let ran = place.run(&[&back[..], &model[..]].concat());
    assert_eq!(ran.code, 10, "{}", ran.err);
    assert!(ran.err.contains("budget of 400 tokens is used up (450)"), "{}", ran.err);
    let stats = place.json(&["stats", "--usage", "last"]);
    assert_eq!(number(&stats, "/usage/inputTokens") + number(&stats, "/usage/outputTokens"), 450);
    assert_eq!(number(&place.json(&["resume", "last", "--dry-run"]), "/spent/tokens"), 450);
}

#[test]
fn programs_are_told_what_a_resume_will_cost_before_it_begins() {
    let place = Place::new();
    place.write("three.yaml", THREE);
    place.write("model.yaml", PRICED);
    let model = ["--model", "scripted/model.yaml"];
    assert_eq!(place.run(&[&["run", "three.yaml", "--budget-tokens", "13"], &model[..]].concat()).code, 10);
    let told = place.json(&["resume", "last", "--dry-run"]);
    assert_eq!(told["steps"].as_array().unwrap().len(), 2);
    assert_eq!(
        (number(&told, "/tokens"), number(&told, "/spent/tokens"), number(&told, "/budget/tokens")),
        (26, 13, 13)
    );
    let ran = place.run(&[&["--json", "resume", "last", "--budget-tokens", "1000"], &model[..]].concat());
    let first: Value = serde_json::from_str(ran.out.lines().next().unwrap()).unwrap();
    assert_eq!((text(&first, "/event"), number(&first, "/budget/tokens")), ("forecast", 1000));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn a_node_that_is_gone_names_the_nearest_checkpoint_and_the_command_that_goes_back_to_it() {
    let place = Place::new();
    place.write(
        "g.yaml",
        "nodes:
  one: {action: shell, with: {command: 'echo one >> effects'}}
  two: {action: ask, with: {question: Go on?}, needs: one}
",
    );
    assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
    place.write(
        "g.yaml",
        "nodes:
  one: {action: shell, with: {command: 'echo one >> effects'}}
  other: {action: shell, with: {command: 'echo other >> effects'}, needs: one}
",
    );
    let mut seen = Transcript::new(&place);
    let ran = seen.run(&["resume", "last", "--graph", "g.yaml"]);
    assert_eq!(ran.code, 1);
    let back = told(&ran.err, "--checkpoint");
    let for_programs = place.run(&["--json", "resume", "last", "--graph", "g.yaml"]);
    let error: Value = serde_json::from_str(&for_programs.err).unwrap();
    assert_eq!(text(&error, "/error/try/nearest"), format!("milepost {}", back.join(" ")));
    assert_eq!(seen.run(&["verify-replay", "g.yaml"]).code, 1);
    let words: Vec<&str> = back.iter().map(String::as_str).collect();
    assert_eq!(seen.run(&words).code, 0);
    assert_eq!(effects(&place), ["one", "other"], "what was done before the checkpoint is not done again");
    assert_seen!("gone_node", seen.end());
}

#[test]
fn recorded_runs_are_checked_against_the_file_as_it_is_now() {
    let place = Place::new();
    let graph = |least: u32| {
        format!(
            "name: scores
memory: {{score: 5}}
nodes:
  look: {{action: shell, with: {{command: 'echo looked'}}}}
  good: {{action: shell, with: {{command: 'echo good'}}}}
  bad: {{action: shell, with: {{command: 'echo bad'}}}}
edges:
  - {{from: look, to: good, when: memory.score >= {least}}}
  - {{from: look, to: bad, when: memory.score < {least}}}
"
        )
    };
    place.write("scores.yaml", graph(5));
    place.ok(&["run", "scores.yaml"]);
    let first = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    place.ok(&["run", "scores.yaml", "--input", "score=9"]);
    let chat = place.session("No run", &["hello"]);
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["verify-replay", "scores.yaml"]).code, 0);
    place.write("scores.yaml", graph(7));
    assert_eq!(seen.run(&["verify-replay", "scores.yaml"]).code, 1);
    assert_eq!(seen.run(&["verify-replay", "scores.yaml", &chat]).code, 1);
    assert_eq!(seen.run(&["verify-replay", "gone.yaml"]).code, 3);
    place.write("other.yaml", graph(7).replace("name: scores", "name: others"));
    assert_eq!(seen.run(&["verify-replay", "other.yaml"]).code, 0);
    let ran = place.run(&["--json", "verify-replay", "scores.yaml"]);
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, number(&told, "/broken"), told["sessions"].as_array().unwrap().len()), (1, 1, 2));
    let broken = told["sessions"].as_array().unwrap().iter().find(|one| one["ok"] == json!(false)).unwrap();
    assert_eq!((text(broken, "/sessionId"), text(broken, "/breaks/0/about")), (first.as_str(), "edge"));
    assert_seen!("verify_replay", seen.end());
}

#[test]
fn a_step_is_run_again_on_a_branch_and_what_it_found_is_brought_home() {
    let place = Place::new();
    place.write(
        "draft.yaml",
        "name: draft
memory: {mood: calm}
steps:
  - {id: look, action: shell, with: {command: 'echo look >> effects'}}
  - {id: draft, action: shell, with: {command: 'echo draft >> effects; echo long'}, needs: look}
  - {id: mood, action: set, with: {mood: glad}, needs: draft}
outputs: {text: outputs.draft.stdout}
",
    );
    place.ok(&["run", "draft.yaml"]);
    let id = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    let mut seen = Transcript::new(&place);
    let again = ["run-again", &id, "draft", "--input", "command=echo short", "--title", "Shorter"];
    assert_eq!(seen.run(&again).code, 0);
    assert_eq!(effects(&place), ["look", "draft"], "what came before is shared, the step itself has other input");
    let branch = text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned();
    assert_ne!(branch, id);
    assert_eq!(text(&step(&place, &id, "draft"), "/output/stdout"), "long\n", "the session is left alone");
    assert_eq!(text(&step(&place, &branch, "draft"), "/output/stdout"), "short\n");
    assert_eq!(seen.run(&["run-again", &id, "darft"]).code, 3);
    assert_eq!(seen.run(&["run-again", &id, "draft", "--input", "comand=x"]).code, 2);
    assert_eq!(seen.run(&["run-again", &id, "draft", "--round", "4"]).code, 1);

    let home = ["merge-back", &branch, "--output", "draft", "--memory", "mood", "--summary", "Shorter is better"];
    assert_eq!(seen.run(&home).code, 0);
    assert_eq!(seen.run(&home).code, 0, "the same again does nothing");
    assert_eq!(seen.run(&["merge-back", &branch]).code, 2);
    assert_eq!(seen.run(&["merge-back", &branch, "--output", "nothing"]).code, 1);
    assert_eq!(seen.run(&["merge-back", &id, "--memory", "mood"]).code, 1);
    let said = place.texts(&id);
    assert!(said.len() == 1 && said[0].contains("Shorter is better"), "{said:?}");
    assert_seen!("run_again", seen.end());
}

/// What ran beside a step does not follow it.
#[test]
fn what_ran_beside_a_step_is_not_run_again_with_it() {
    let place = Place::new();
    place.write(
        "ways.yaml",
        "name: ways
nodes:
  a: {action: shell, with: {command: 'echo a >> effects'}}
  b: {action: shell, with: {command: 'sleep 0.1; echo b >> effects'}}
  c: {action: shell, with: {command: 'echo c >> effects'}}
edges: [{from: a, to: b}, {from: a, to: c}]
",
    );
    place.ok(&["run", "ways.yaml"]);
    let ran = place.run(&["run-again", "last", "c", "--input", "command=echo c2 >> effects"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("happens again: c (key "), "{}", ran.err);
    assert!(!ran.err.contains("happens again: b"), "{}", ran.err);
    assert_eq!(effects(&place), ["a", "c", "b", "c2"]);
}

#[test]
fn a_denied_step_is_approved_after_all_also_inside_of_a_graph() {
    let place = Place::new();
    place.write(
        "ship.yaml",
        "name: ship
nodes:
  sub:
    action: graph
    with:
      graph:
        nodes:
          ok: {action: approve, with: {question: Ship it?}}
          go: {action: shell, with: {command: 'echo shipped >> effects'}, needs: ok}
",
    );
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["run", "ship.yaml"]).code, 11);
    assert_eq!(seen.run(&["approve", "last", "sub/go"]).code, 3);
    assert_eq!(seen.run(&["approve", "last", "sub/ok", "--deny", "--by", "Ada"]).code, 0);
    assert_eq!(seen.run(&["resume", "last"]).code, 10);
    assert_eq!(seen.run(&["approve", "last", "sub/ok", "--by", "Bob"]).code, 0, "the first answer counts");
    assert_eq!(place.run(&["resume", "last"]).code, 10);
    assert_eq!(seen.run(&["approve", "last", "sub/ok", "--change", "--by", "Bob"]).code, 0);
    assert_eq!(seen.run(&["resume", "last"]).code, 0);
    assert_eq!(effects(&place), ["shipped"]);
    assert_eq!(seen.run(&["steps", "last"]).code, 0);
    assert_eq!(seen.run(&["approve", "last", "sub/ok", "--deny", "--change"]).code, 1);
    assert_seen!("denied", seen.end());
}

#[test]
fn what_an_agent_asks_and_what_a_part_of_a_step_did_go_by_their_whole_names() {
    let place = Place::new();
    place.write(
        "agent.yaml",
        "name: agent
nodes:
  a: {action: agent, with: {prompt: Ask me., tools: [ask]}}
  sub:
    action: graph
    needs: a
    with:
      graph:
        nodes:
          b: {action: shell, with: {command: 'echo b >> effects; touch begun; while test ! -e go; do sleep 0.05; done'}}
outputs: {text: outputs.a.text}
",
    );
    place.write(
        "model.yaml",
        "replies:
  - {text: Well, calls: [{name: ask, input: {question: Which colour?}}]}
  - {text: Blue it is.}
",
    );
    let model = ["--model", "scripted/model.yaml"];
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&[&["run", "agent.yaml"], &model[..]].concat()).code, 11);
    seen.run(&["steps", "last"]);
    assert_eq!(seen.run(&["answer", "last", "a/turn_1", "blue"]).code, 3);
    assert_eq!(seen.run(&["answer", "last", "a/turn_1.1.ask", "blue"]).code, 0);
    let (mut child, id, _out) = begin(&place, &[&["resume", "last"], &model[..]].concat());
    wait_for(&place.file("begun"));
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    place.write("go", "");
    assert_eq!(seen.run(&[&["resume", &id], &model[..]].concat()).code, 12);
    assert_eq!(seen.run(&["resume", &id, "--done", "sub/c"]).code, 2);
    assert_eq!(seen.run(&[&["resume", &id, "--done", "sub/b"], &model[..]].concat()).code, 0);
    assert_eq!((effects(&place), status(&place, &id)), (vec!["b".to_owned()], "completed".to_owned()));
    assert_seen!("parts", seen.end());
}
