//! What a file becomes.

use milepost_run::graph::{Graph, OnError, OnLimit, Retry, actions, check, schema};
use serde_json::json;

fn graph(path: &str, text: &str) -> Graph {
    let checked = check(path.as_ref(), text, &["mine"]);
    checked.graph.unwrap_or_else(|| panic!("{:?}", checked.found))
}

const YAML: &str = r#"
name: research
description: Find and read papers
parallel: 2
memory: {topic: logs, score: 0}
nodes:
  search:
    action: http
    description: Find papers
    parameters: {url: "https://example.com/?q={{ memory.topic | urlencode }}"}
    retry: {attempts: 5, backoff: 2s, max_backoff: 1m}
    timeout: 1m30s
    no_progress: 20s
  draft: {action: mine, with: {any: thing}, idempotent: true, safe_point: true}
  review:
    action: model
    with: {prompt: "Rate {{ outputs.draft }}", json: true}
    remember: {score: output.json.score}
    on_error: go_on
  publish: {action: approve, with: {question: "Publish?"}, output: published}
edges:
  - {from: search, to: draft}
  - {from: draft, to: review}
  - {from: review, to: draft, when: memory.score < 8 && !failed, limit: 3, on_limit: go_on}
  - {from: review, to: publish}
outputs:
  score: memory.score
"#;

const TOML: &str = r#"
name = "research"
description = "Find and read papers"
parallel = 2
memory = {topic = "logs", score = 0}

[nodes.search]
action = "http"
description = "Find papers"
parameters = {url = "https://example.com/?q={{ memory.topic | urlencode }}"}
retry = {attempts = 5, backoff = "2s", max_backoff = "1m"}
timeout = "1m30s"
no_progress = "20s"

[nodes.draft]
action = "mine"
with = {any = "thing"}
idempotent = true
safe_point = true

[nodes.review]
action = "model"
with = {prompt = "Rate {{ outputs.draft }}", json = true}
remember = {score = "output.json.score"}
on_error = "go_on"

[nodes.publish]
action = "approve"
with = {question = "Publish?"}
output = "published"

[[edges]]
from = "search"
to = "draft"
[[edges]]
from = "draft"
to = "review"
[[edges]]
from = "review"
to = "draft"
when = "memory.score < 8 && !failed"
limit = 3
on_limit = "go_on"
[[edges]]
from = "review"
to = "publish"

[outputs]
score = "memory.score"
"#;

#[test]
fn a_graph_says_all_that_its_file_says() {
    let graph = graph("research.yaml", YAML);
    assert_eq!((graph.name.as_str(), graph.parallel, graph.is_plan), ("research", 2, false));
    let search = &graph.nodes[graph.find("search").unwrap()];
    assert_eq!(search.retry, Retry { attempts: 5, backoff_ms: 2000, max_backoff_ms: 60_000 });
    assert_eq!((search.timeout_ms, search.no_progress_ms), (Some(90_000), Some(20_000)));
    let draft = &graph.nodes[1];
    assert_eq!((draft.idempotent, draft.safe_point, &draft.parameters), (Some(true), true, &json!({"any": "thing"})));
    assert_eq!((graph.nodes[2].on_error, graph.nodes[3].output.as_str()), (OnError::GoOn, "published"));
    let back = &graph.edges[2];
    assert_eq!((back.limit, back.on_limit), (Some(3), OnLimit::GoOn));
    assert_eq!(graph.body(back), [1, 2]);
    assert_eq!(graph.starts(), [0]);
    assert_eq!(search.origin.to_string(), "research.yaml:7:3");
}

#[test]
fn toml_says_the_same() {
    let (yaml, toml) = (graph("research.yaml", YAML), graph("research.toml", TOML));
    assert_eq!(yaml.fingerprint(), toml.fingerprint());
    assert_eq!(yaml.nodes.len(), toml.nodes.len());
}

#[test]
fn a_fingerprint_changes_with_what_a_step_does_and_not_with_how() {
    let plain = graph("g.yaml", YAML);
    let other = |from: &str, to: &str| graph("g.yaml", &YAML.replace(from, to)).fingerprint();
    assert_eq!(other("timeout: 1m30s", "timeout: 2m"), plain.fingerprint());
    assert_eq!(other("description: Find papers", "description: Search"), plain.fingerprint());
    assert_ne!(other("Publish?", "Ship?"), plain.fingerprint());
    assert_ne!(other("memory.score < 8", "memory.score < 9"), plain.fingerprint());
}

#[test]
fn a_plan_is_a_graph_of_its_dependencies() {
    let text = r#"{"query": "Find papers", "plan": [
        {"id": "one", "description": "first", "action": "set", "parameters": {"x": 1}, "status": "pending"},
        {"action": "set", "parameters": {"y": 1}, "dependencies": ["one"]},
        {"id": "three", "action": "set", "parameters": {"z": 1}, "dependencies": ["one", "step_2"]}
    ]}"#;
    let graph = graph("plan.json", text);
    assert!(graph.is_plan);
    assert_eq!((graph.name.as_str(), graph.query.as_deref()), ("plan", Some("Find papers")));
    let edges: Vec<(usize, usize)> = graph.edges.iter().map(|edge| (edge.from, edge.to)).collect();
    assert_eq!(edges, [(0, 1), (0, 2), (1, 2)]);
    assert_eq!(graph.starts(), [0]);
}

/// The published schema knows exactly the keys that the reader knows.
#[test]
fn the_schema_says_what_the_reader_takes() {
    let schema = schema();
    let properties = schema["$defs"]["node"]["properties"].as_object().unwrap();
    for key in properties.keys() {
        let text = format!("nodes:\n  a: {{action: mine, {key}: 1}}\n");
        let found = check("g.yaml".as_ref(), &text, &["mine"]).found;
        assert!(!found.iter().any(|one| one.why.contains("there is no key")), "{key}: {found:?}");
    }
    for key in schema["properties"].as_object().unwrap().keys() {
        let found = check("g.yaml".as_ref(), &format!("{key}: 1\n"), &[]).found;
        assert!(!found.iter().any(|one| one.why.contains("there is no key")), "{key}: {found:?}");
    }
    let conditions = schema["$defs"]["node"]["allOf"].as_array().unwrap();
    assert_eq!(conditions.len(), actions::ACTIONS.len());
    for (condition, action) in conditions.iter().zip(actions::ACTIONS) {
        // Where an editor is told that parameters are needed, the reader needs them too.
        let text = format!("nodes:\n  a: {{action: {}}}\n", action.name);
        let is_wrong = check("g.yaml".as_ref(), &text, &[]).graph.is_none();
        assert_eq!(condition["then"]["anyOf"].is_array(), is_wrong, "{}", action.name);
    }
    let written =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/graph.schema.json")).unwrap();
    let published: serde_json::Value = serde_json::from_str(&written).unwrap();
    if published != schema {
        let new = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/graph.schema.json"), new).unwrap();
        panic!("docs/graph.schema.json was out of date and has been written anew: commit it");
    }
}

/// Everything that is documented in one table can be written.
#[test]
fn every_action_is_taken_with_its_parameters() {
    for (action, with) in [
        (
            "shell",
            json!({"argv": ["ls", "-l"], "cwd": ".", "env": ["USER"], "set": {"A": "b"}, "stdin": "x", "ok": [0, 1], "parse": "json", "max_output_bytes": 10}),
        ),
        (
            "http",
            json!({"url": "https://example.com", "method": "PUT", "headers": {"A": "b"}, "json": {"a": ["{{ node }}"]}, "ok": 204, "max_response_bytes": 10}),
        ),
        ("set", json!({"a": 1, "b": {"cel": "1 + 1"}})),
        ("wait", json!({"for": "5m"})),
        ("ask", json!({"question": "?", "choices": ["a", "b"], "timeout": "1d", "default": "a"})),
        ("approve", json!({"question": "?", "timeout": "1d", "default": "no"})),
        ("model", json!({"prompt": "?", "model": "openai/x", "system": "s", "max_tokens": 5, "json": true})),
        (
            "agent",
            json!({"prompt": "?", "model": "openai/x", "system": "s", "max_tokens": 5, "json": true, "max_turns": 3, "max_result_bytes": 10, "checkpoint_every": 2, "tools": [
                "shell", "http", "ask",
                {"name": "t", "description": "d", "action": "shell", "with": {"command": "echo {{ input.x }}"}, "input": {"x": "what"}, "idempotent": true, "timeout": "5s"},
                {"mcp": {"argv": ["server"], "env": ["USER"], "set": {"A": "b"}, "cwd": "."}, "only": ["x"], "idempotent": true, "timeout": "5s"},
            ]}),
        ),
        (
            "checks",
            json!({"checks": {"build": "make", "test": {"argv": ["make", "test"], "ok": [0, 2]}}, "prompt": "?", "model": "openai/x", "system": "s", "max_tokens": 5, "tools": ["shell"], "rounds": 3, "max_turns": 3, "max_result_bytes": 10, "timeout": "5m"}),
        ),
        (
            "mcp",
            json!({"url": "https://example.com/mcp", "tool": "t", "arguments": {"a": ["{{ node }}"]}, "headers": {"A": "b"}, "max_output_bytes": 10}),
        ),
        ("mcp", json!({"argv": ["server"], "tool": "t", "cwd": ".", "env": ["USER"], "set": {"A": "b"}})),
        ("graph", json!({"file": "inner.yaml", "memory": {"a": 1}})),
        ("graph", json!({"graph": {"nodes": {"a": {"action": "wait", "with": {"for": "1s"}}}}})),
    ] {
        let text = json!({"nodes": {"a": {"action": action, "with": with}}}).to_string();
        let checked = check("g.json".as_ref(), &text, &[]);
        assert!(checked.found.is_empty(), "{action}: {:?}", checked.found);
    }
}

#[test]
fn the_examples_have_nothing_wrong() {
    for (name, starts) in [("research.yaml", &[0, 1][..]), ("mend.yaml", &[0])] {
        let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).join(name);
        let checked = check(&path, &std::fs::read_to_string(&path).unwrap(), &[]);
        assert!(checked.found.is_empty(), "{:?}", checked.found);
        assert_eq!(checked.graph.unwrap().starts(), starts);
    }
}
