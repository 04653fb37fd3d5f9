//! Secrets are not kept, and no step acts on what stands in their place.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use crate::support::{Place, text};

const SECRET: &str = "ghp_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

fn last(place: &Place) -> String {
    text(&place.json(&["sessions", "list"]), "/sessions/0/sessionId").to_owned()
}

fn seen(place: &Place) -> Vec<String> {
    let text = std::fs::read_to_string(place.file("seen")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Nothing of the secret is in the store.
fn assert_not_kept(place: &Place) {
    for entry in std::fs::read_dir(place.store().parent().unwrap()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()));
    }
}

const USE: &str = "{action: shell, with: {command: 'echo \"$T\" >> seen', set: {T: '{{ memory.token | trim }}'}}}";

/// What is given for a run is there for the run.
#[test]
fn a_run_acts_on_the_secret_that_it_was_given() {
    let place = Place::new();
    place.write("g.yaml", format!("memory: {{token: ''}}\nnodes: {{use: {USE}}}\n"));
    place.ok(&["run", "g.yaml", "--input", &format!("token={SECRET}")]);
    assert_eq!(seen(&place), [SECRET]);
    assert_not_kept(&place);
    let id = last(&place);
    place.ok(&["run-again", &id, "use", "--input", &format!("set={{\"T\": \"{SECRET}\"}}")]);
    assert_eq!(seen(&place), [SECRET, SECRET]);
    assert_not_kept(&place);
}

#[test]
fn a_step_that_would_act_on_a_token_pauses_the_run_until_the_secret_is_given_again() {
    let place = Place::new();
    place.write(
        "g.yaml",
        format!(
            "nodes:
  login: {{action: shell, with: {{command: 'echo {SECRET}'}}, remember: {{token: output.stdout}}}}
  use1: {USE}
  q: {{action: ask, with: {{question: ok?}}}}
  use2: {USE}
  use3: {{action: shell, with: {{command: 'echo {{{{ outputs.login.stdout | trim }}}} >> seen'}}}}
edges: [{{from: login, to: use1}}, {{from: use1, to: q}}, {{from: q, to: use2}}, {{from: use2, to: use3}}]
"
        )
        .replace(&format!("'echo {SECRET}'"), "'cat secret'"),
    );
    place.write("secret", format!("{SECRET}\n"));
    assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
    assert_eq!(seen(&place), [SECRET]);
    let id = last(&place);
    place.ok(&["answer", &id, "q", "yes"]);
    let ran = place.run(&["resume", &id]);
    assert_eq!((ran.code, seen(&place)), (10, vec![SECRET.to_owned()]), "{}", ran.err);
    let wanted = "at use2: set.T has [redacted:github-token] in place of a secret, which is not kept; \
                  give it again: resume with --set memory.token=VALUE";
    assert!(ran.err.contains(wanted), "{}", ran.err);
    let ran = place.run(&["resume", &id, "--set", &format!("memory.token={SECRET}")]);
    assert_eq!((ran.code, seen(&place)), (10, vec![SECRET.to_owned(); 2]), "{}", ran.err);
    assert!(ran.err.contains("resume with --set execution.outputs.login.stdout=VALUE"), "{}", ran.err);
    place.ok(&["resume", &id, "--set", &format!("execution.outputs.login.stdout={SECRET}")]);
    assert_eq!(seen(&place), [SECRET; 3]);
    assert_not_kept(&place);
}

/// A file that has a secret is not another one because the record has none.
#[test]
fn a_secret_in_the_file_is_taken_from_the_file() {
    let place = Place::new();
    let file = format!(
        "nodes:
  q: {{action: ask, with: {{question: ok?}}}}
  use: {{action: shell, needs: q, with: {{command: 'echo \"$T\" >> seen', set: {{T: '{SECRET}'}}}}}}
  tell: {{action: shell, needs: use, with: {{command: 'echo [redacted:key] >> seen'}}}}
"
    );
    place.write("g.yaml", &file);
    assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
    let id = last(&place);
    place.ok(&["answer", &id, "q", "yes"]);
    let ran = place.run(&["resume", &id]);
    assert_eq!((ran.code, seen(&place).len()), (10, 0), "{}", ran.err);
    assert!(!ran.err.contains("was changed since"), "{}", ran.err);
    assert!(ran.err.contains("at use: set.T has [redacted:") && ran.err.contains("--graph"), "{}", ran.err);
    place.write("g.yaml", file.replace("ok?", "fine?"));
    let ran = place.run(&["resume", &id]);
    assert!(ran.code == 10 && ran.err.contains("was changed since"), "{}", ran.err);
    place.write("g.yaml", &file);
    let ran = place.run(&["resume", &id, "--graph", "g.yaml"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.err.contains("changed since"), "{}", ran.err);
    // What its author wrote as it is, is meant.
    assert_eq!(seen(&place), [SECRET, "[redacted:key]"]);
    assert_not_kept(&place);
}

/// A variable of the environment is nowhere but in the request.
#[test]
fn a_header_may_name_a_variable_of_the_environment() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut all = Vec::new();
        for _ in 0..1 {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            all.extend(lines.take_while(|line| !line.is_empty()));
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
        all
    });
    place.write(
        "g.yaml",
        format!(
            "memory: {{kind: Bearer}}
nodes:
  q: {{action: ask, with: {{question: ok?}}}}
  use: {{action: http, retry: 1, needs: q, with: {{url: '{url}', env_headers: {{authorization: '{{{{ memory.kind }}}} ${{MY_TOKEN}}'}}}}}}
"
        ),
    );
    assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
    let id = last(&place);
    place.ok(&["answer", &id, "q", "yes"]);
    let ran = place.run(&["resume", &id]);
    assert!(
        ran.code == 10 && ran.err.contains("env_headers.authorization: the variable MY_TOKEN is not set"),
        "{ran:?}"
    );
    let output = place.command(["resume", &id]).env("MY_TOKEN", SECRET).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sent = server.join().unwrap();
    assert!(sent.contains(&format!("authorization: Bearer {SECRET}")), "{sent:?}");
    assert_not_kept(&place);
}

/// A graph inside has a memory of its own, and what its node says of failures is not about this.
#[test]
fn a_graph_inside_waits_for_its_secret_too() {
    let place = Place::new();
    place.write(
        "g.yaml",
        format!(
            "memory: {{token: ''}}
nodes:
  sub:
    action: graph
    on_error: go_on
    with:
      memory: {{token: '{{{{ memory.token }}}}'}}
      graph:
        memory: {{token: ''}}
        nodes:
          use1: {USE}
          q: {{action: ask, needs: use1, with: {{question: ok?}}}}
          use2: {{action: shell, needs: q, with: {{command: 'echo \"$T\" >> seen', set: {{T: '{{{{ memory.token }}}}'}}}}}}
"
        ),
    );
    assert_eq!(place.run(&["run", "g.yaml", "--input", &format!("token={SECRET}")]).code, 11);
    assert_eq!(seen(&place), [SECRET]);
    let id = last(&place);
    place.ok(&["answer", &id, "sub/q", "yes"]);
    let ran = place.run(&["resume", &id]);
    assert_eq!((ran.code, seen(&place).len()), (10, 1), "{}", ran.err);
    assert!(ran.err.contains("at sub: sub/use2: set.T has [redacted:"), "{}", ran.err);
    assert!(ran.err.contains("resume with --set execution.below.sub.memory.token=VALUE"), "{}", ran.err);
    place.ok(&["resume", &id, "--set", &format!("execution.below.sub.memory.token={SECRET}")]);
    assert_eq!(seen(&place), [SECRET, SECRET]);
    assert_not_kept(&place);
}

/// What is written in a graph inside is taken from where it is written: from the file that is named, or from the graph's own file.
#[test]
fn a_secret_in_a_graph_inside_is_taken_from_its_file() {
    let inner = |indent: &str, secret: &str| {
        let lines = format!(
            "nodes:
  q: {{action: ask, with: {{question: ok?}}}}
  deep: {{action: graph, needs: q, with: {{graph: {{nodes: {{use: {{action: shell, with: {{command: 'echo \"$T\" >> seen', set: {{T: 'x {secret}'}}}}}}}}}}}}}}
  use: {{action: shell, needs: deep, with: {{command: 'echo \"$T\" >> seen', set: {{T: '{secret} and more'}}}}}}
"
        );
        lines.lines().map(|line| format!("{indent}{line}\n")).collect::<String>()
    };
    let whole = [format!("x {SECRET}"), format!("{SECRET} and more")];
    for is_file in [false, true] {
        let place = Place::new();
        let outer = match is_file {
            true => "nodes: {sub: {action: graph, with: {file: inner.yaml}}}\n".to_owned(),
            false => {
                format!("nodes:\n  sub:\n    action: graph\n    with:\n      graph:\n{}", inner("        ", SECRET))
            }
        };
        place.write("g.yaml", &outer);
        place.write("inner.yaml", inner("", SECRET));
        assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
        let id = last(&place);
        place.ok(&["answer", &id, "sub/q", "yes"]);
        // Another graph does not take the place of the one that was begun.
        let other = |text: &str| text.replace("and more", "and less");
        place.write("inner.yaml", other(&inner("", SECRET)));
        place.write("g.yaml", other(&outer));
        let ran = place.run(&["resume", &id]);
        assert_eq!((ran.code, seen(&place).len()), (10, 0), "{}", ran.err);
        let (wanted, how) = match is_file {
            true => ("its file says something else now", &["resume", &id][..]),
            false => ("resume with --graph and its file", &["resume", &id, "--graph", "g.yaml"][..]),
        };
        assert!(ran.err.contains("[redacted:") && ran.err.contains(wanted), "{}", ran.err);
        place.write("inner.yaml", inner("", SECRET));
        place.write("g.yaml", &outer);
        let ran = place.run(how);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(seen(&place), whole);
        assert_not_kept(&place);
    }
}

/// Nor is it begun without its secrets: its steps would take what stands in their place for what was written.
#[test]
fn a_graph_inside_is_not_begun_without_its_secrets() {
    let place = Place::new();
    place.write(
        "g.yaml",
        format!(
            "nodes:
  q: {{action: ask, with: {{question: ok?}}}}
  sub:
    action: graph
    needs: q
    with:
      graph: {{nodes: {{use: {{action: shell, with: {{command: 'echo \"$T\" >> seen', set: {{T: '{SECRET}'}}}}}}}}}}
"
        ),
    );
    assert_eq!(place.run(&["run", "g.yaml"]).code, 11);
    let id = last(&place);
    place.ok(&["answer", &id, "q", "yes"]);
    let ran = place.run(&["resume", &id]);
    assert_eq!((ran.code, seen(&place).len()), (10, 0), "{}", ran.err);
    let wanted = "at sub: graph.nodes.use.with.set.T has [redacted:github-token] in place of a secret, which is not kept; resume with --graph";
    assert!(ran.err.contains(wanted), "{}", ran.err);
    place.ok(&["resume", &id, "--graph", "g.yaml"]);
    assert_eq!(seen(&place), [SECRET]);
    assert_not_kept(&place);
}
