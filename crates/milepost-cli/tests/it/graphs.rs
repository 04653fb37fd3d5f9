//! Files of graphs that are wrong: every mistake is told with its place.

use serde_json::json;

use crate::support::Place;
use crate::transcript::{Transcript, assert_seen};

const WRONG: &str = "name: wrong
nodes:
  search: {action: http, with: {url: 'https://example.com/{{ memory.topik }}'}}
  read: {action: shel, with: {command: cat}}
  sum: {action: shell, with: {command: wc}, output: search, retry: {attempts: 0}}
  lost: {action: shell, with: {comand: 'true'}}
edges:
  - {from: search, to: read, when: output.stauts == 200}
  - {from: read, to: sum, when: 'output.code == \"a'}
  - {from: sum, to: search}
  - {from: sum, to: nowhere}
memory: {topic: logs}
";

#[test]
fn every_mistake_of_a_graph_is_told_with_its_line_and_column() {
    let place = Place::new();
    place.write("wrong.yaml", WRONG);
    place.write("latin.yaml", b"name: caf\xe9\n");
    place.write("toml.toml", "name = \"x\"\n[nodes.a]\naction = \"shell\"\n");
    place.write("large.yaml", format!("name: {}\n", "x".repeat(1 << 20)));
    let mut seen = Transcript::new(&place);
    assert_eq!(seen.run(&["graph", "check", "wrong.yaml"]).code, 2);
    assert_eq!(seen.run(&["graph", "draw", "wrong.yaml"]).code, 2);
    assert_eq!(seen.run(&["run", "wrong.yaml"]).code, 2);
    assert_eq!(seen.run(&["graph", "check", "toml.toml"]).code, 2);
    assert_eq!(seen.run(&["graph", "check", "latin.yaml"]).code, 2);
    assert_eq!(seen.run(&["graph", "check", "large.yaml"]).code, 2);
    assert_eq!(seen.run(&["graph", "check", "gone.yaml"]).code, 3);
    assert_eq!(seen.run(&["graph", "check", "."]).code, 1);
    assert_eq!(seen.run_with(&["graph", "check", "-"], "nodes: {a: {action: shell, with: {command: ls}}}").code, 0);
    assert_seen!("bad_graphs", seen.end());
    let other = Place::new();
    other.write("wrong.yaml", WRONG);
    assert_eq!(other.run(&["run", "wrong.yaml"]).code, 2);
    assert!(!other.store().exists(), "a file that is wrong opens no store");
}

#[test]
fn programs_get_line_and_column_as_numbers() {
    let place = Place::new();
    place.write("wrong.yaml", WRONG);
    let ran = place.run(&["--json", "graph", "check", "wrong.yaml"]);
    assert_eq!(ran.code, 2);
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let lines: Vec<_> = told["problems"].as_array().unwrap().iter().map(|one| one["line"].clone()).collect();
    for line in [3, 4, 5, 6, 8, 9, 11] {
        assert!(lines.contains(&json!(line)), "nothing is told of line {line}: {told:#}");
    }
}
