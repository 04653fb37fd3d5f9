//! Tools of MCP servers: real ones, over their standard streams and over HTTP.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use milepost::{NewSession, Resume};
use milepost_run::run::End;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};

use crate::roles::{ARGUMENTS, ROLE, Tools};
use crate::support::{Overheard, Scene, completed, graph};

/// A server that is a program: this one, in another role. What the shell does first keeps the harness's words out.
fn program(before: &str) -> Value {
    let line = format!("{before} exec 3>&1 1>/dev/null; exec \"$0\" \"$@\"");
    let exe = std::env::current_exe().unwrap().display().to_string();
    let argv: Vec<String> = ["sh".to_owned(), "-c".to_owned(), line, exe]
        .into_iter()
        .chain(ARGUMENTS.iter().map(|argument| (*argument).to_owned()))
        .collect();
    json!({"argv": argv, "set": {ROLE: "mcp"}})
}

/// A server on loopback.
async fn served(json_response: bool) -> Value {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let mut config = StreamableHttpServerConfig::default();
    config.json_response = json_response;
    let service = StreamableHttpService::new(|| Ok(Tools), Arc::new(LocalSessionManager::default()), config);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let builder = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
            tokio::spawn(async move { drop(builder.serve_connection(TokioIo::new(stream), service).await) });
        }
    });
    json!({"url": url})
}

async fn call(server: &Value, tool: &str, arguments: Value, more: Value) -> (Scene, End, Value) {
    let scene = Scene::new();
    let mut with = server.clone();
    with["tool"] = tool.into();
    with["arguments"] = arguments;
    with.as_object_mut().unwrap().extend(more["with"].as_object().cloned().unwrap_or_default());
    let mut node = json!({"action": "mcp", "retry": 1, "with": with});
    node.as_object_mut().unwrap().extend(more["node"].as_object().cloned().unwrap_or_default());
    let (id, end) = scene.start(&json!({"nodes": {"a": node}, "memory": {"who": "kim"}}).to_string()).await;
    let execution = scene.section(id, "execution").await;
    let output = execution["outputs"]["a"].clone();
    let key = execution["nodes"]["a"]["key"].clone();
    (scene, end, json!({"output": output, "key": key}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_is_called_with_the_steps_key() {
    for server in [program(""), served(false).await, served(true).await] {
        let (_, end, given) = call(&server, "echo", json!({"text": "{{ memory.who }}"}), json!({})).await;
        completed(&end);
        let said: Value = serde_json::from_str(given["output"]["text"].as_str().unwrap()).unwrap();
        assert_eq!((&said["said"], &said["key"]), (&json!("kim"), &given["key"]), "{server}");
        if server.get("argv").is_some() {
            assert_eq!((&said["environment"], &said["home"]), (&given["key"], &Value::Null), "only what it may see");
        }
        assert_eq!(given["output"]["truncated"], false);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_tools_and_servers_say_what_they_are() {
    for server in [program(""), served(false).await] {
        let (_, end, _) = call(&server, "fly", json!({}), json!({})).await;
        assert!(matches!(&end, End::Paused { why, .. } if why.contains("there is no tool fly")), "{end:?}");
    }
    let (_, end, _) = call(&json!({"argv": ["/no/such/program"]}), "x", json!({}), json!({})).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("cannot be started")), "{end:?}");
    let (_, end, _) = call(&json!({"argv": ["echo", "hello"]}), "x", json!({}), json!({})).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("does not speak MCP")), "{end:?}");
    // What the program says of that itself is told.
    let complains = json!({"argv": ["sh", "-c", "echo 'ImportError: no module named tools' >&2; exit 1"]});
    let (_, end, _) = call(&complains, "x", json!({}), json!({})).await;
    assert!(
        matches!(&end, End::Paused { why, .. } if why.contains("; it wrote: ImportError: no module named tools")),
        "{end:?}"
    );
    let (_, end, _) = call(&json!({"url": "http://127.0.0.1:1/mcp"}), "x", json!({}), json!({})).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("cannot be reached")), "{end:?}");
}

/// It ran: whether it had its effect before it failed, nobody knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_fails_is_called_again_only_where_that_is_harmless() {
    for server in [program(""), served(false).await] {
        for (is_idempotent, calls) in [(false, 1), (true, 3)] {
            let dir = tempfile::tempdir().unwrap();
            let log = dir.path().join("log");
            let node = json!({"retry": {"attempts": 3, "backoff": "1ms"}, "idempotent": is_idempotent});
            let (scene, end, _) = call(&server, "fail", json!({"log": log}), json!({"node": node})).await;
            match &end {
                End::Uncertain { steps } if !is_idempotent => assert_eq!(steps[0].0, "a"),
                End::Paused { why, .. } if is_idempotent => assert_eq!(why, "the tool failed: it does not work"),
                other => panic!("{other:?}"),
            }
            let id = scene.engine().await.sessions(&Default::default()).await.unwrap().sessions[0].id;
            let line = scene.section(id, "execution").await["nodes"]["a"].clone();
            assert_eq!(line["error"], "the tool failed: it does not work");
            assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), calls);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_tool_gives_is_limited() {
    for server in [program(""), served(false).await, served(true).await] {
        let more = json!({"with": {"max_output_bytes": 1000}});
        let (_, end, given) = call(&server, "big", json!({"bytes": 2_000_000}), more).await;
        completed(&end);
        let output = &given["output"];
        assert!(output["text"].as_str().unwrap().len() < 1100, "{server}");
        assert_eq!((&output["truncated"], &output["content"]), (&json!(true), &Value::Null));
    }
    // The tool has run: nobody calls it again without being told to.
    for server in [program(""), served(false).await, served(true).await] {
        let more = json!({"node": {"retry": 3}});
        let (scene, end, _) = call(&server, "big", json!({"bytes": 100_000_000}), more).await;
        assert!(matches!(&end, End::Uncertain { .. }), "{server}: {end:?}");
        let id = scene.engine().await.sessions(&Default::default()).await.unwrap().sessions[0].id;
        let node = scene.section(id, "execution").await["nodes"]["a"].clone();
        assert!(node["error"].as_str().unwrap().contains("MAX_MESSAGE_BYTES"), "{server}: {node}");
        assert!(matches!(scene.resume(id).await, End::Uncertain { .. }));
    }
    // Only that call: over HTTP the server can be asked again.
    for server in [served(false).await, served(true).await] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let script = "replies:\n  - calls: [{name: big, input: {bytes: 40000000}}]\n  - calls: [{name: echo, input: {text: hi}}]\n  - {text: done}\n";
        let tools = json!([{"mcp": server, "idempotent": true}]);
        let text = json!({"nodes": {"a": {"action": "agent", "with": {"prompt": "go", "tools": tools}}}}).to_string();
        let (id, end) = scene.scripted(&engine, script).start(&graph(&text), NewSession::default()).await.unwrap();
        completed(&end);
        let said = scene.said(id, "a").await;
        assert!(said[2].text().contains("MAX_MESSAGE_BYTES"), "{}", said[2].text());
        assert!(said[4].text().contains("\\\"said\\\":\\\"hi\\\""), "{}", said[4].text());
    }
}

fn is_alive(pid: &str) -> bool {
    // A process that ended and was not fetched yet has no command line any more.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_end_is_ended_with_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    // SIGTERM is ignored by it and by its child.
    let more = json!({"node": {"timeout": "2s"}});
    let (_, end, _) = call(&program("trap '' TERM;"), "hang", json!({"pids": pids}), more).await;
    assert!(matches!(&end, End::Uncertain { .. }), "it may have done something: {end:?}");
    let written = std::fs::read_to_string(&pids).unwrap();
    for pid in written.split(' ') {
        for _ in 0..1000 {
            if !is_alive(pid) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(!is_alive(pid), "{pid} lives on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_given_the_tools_of_a_server() {
    for server in [program(""), served(false).await] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let script = "replies:\n  - calls: [{name: echo, input: {text: hi}}, {name: big, input: {bytes: 3}}]\n  - {text: done}\n";
        let tools = json!([{"mcp": server, "only": ["echo"]}]);
        let text = json!({"nodes": {"a": {"action": "agent", "with": {"prompt": "go", "tools": tools}}}}).to_string();
        let (id, end) = scene.scripted(&engine, script).start(&graph(&text), NewSession::default()).await.unwrap();
        completed(&end);
        let said = scene.said(id, "a").await;
        assert!(said[2].text().contains("\\\"said\\\":\\\"hi\\\""), "{}", said[2].text());
        assert!(said[3].text().contains("there is no tool \"big\"; there are echo"), "{}", said[3].text());
    }
}

/// A model is offered names that are its tools' own, and that its provider takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_of_one_name_are_refused_with_where_they_are_from() {
    let agent = |tools: Value| json!({"nodes": {"a": {"action": "agent", "retry": 1, "with": {"prompt": "go", "tools": tools}}}});
    let start = async |tools: Value| {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let model = Overheard::new("replies: [{text: Done.}]\n");
        let runner = scene.runner(&engine).model(model.clone());
        let (_, end) = runner.start(&graph(&agent(tools).to_string()), NewSession::default()).await.unwrap();
        let names =
            model.given().first().map(|asked| asked.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>());
        (end, names)
    };
    let url = served(false).await;
    let (end, _) = start(json!([{"mcp": program("")}, {"mcp": url}])).await;
    let End::Paused { why, .. } = end else { panic!("{end:?}") };
    let wanted = format!(
        "the MCP servers sh and {} both have a tool \"echo\"; name those that the agent needs with only, or tell them apart with prefix",
        url["url"].as_str().unwrap()
    );
    assert_eq!(why, wanted);
    let own = json!({"name": "echo", "action": "shell", "with": {"command": "true"}});
    let (end, _) = start(json!([own, {"mcp": url}])).await;
    assert!(
        matches!(&end, End::Paused { why, .. } if why.starts_with("the tool \"echo\" of the graph and the MCP server")),
        "{end:?}"
    );
    let (end, names) = start(json!([own, {"mcp": url, "only": ["echo", "a.dotted/name"], "prefix": "far_"}])).await;
    completed(&end);
    assert_eq!(names.unwrap(), ["echo", "far_echo", "far_a_dotted_name"]);
}

/// A name that no provider takes is told to the model as one that it does, and to the server as its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_is_called_by_the_name_that_its_server_knows() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let server = served(false).await;
    let file = json!({"nodes": {"a": {"action": "agent", "with": {"prompt": "go", "tools": [{"mcp": server, "prefix": "far_"}]}}}});
    // Before, a model was told the server's own.
    let script =
        "replies: [{calls: [{name: far_a_dotted_name, input: {}}, {name: a.dotted/name, input: {}}]}, {text: Done.}]\n";
    let runner = scene.scripted(&engine, script);
    let (id, end) = runner.start(&graph(&file.to_string()), NewSession::default()).await.unwrap();
    completed(&end);
    let said = serde_json::to_string(&scene.said(id, "a").await).unwrap();
    assert_eq!(said.matches("a dot and a slash").count(), 4, "each as a text and as content: {said}");
}

/// Stands before a server and passes everything on, but answers the next calls of tools itself; and how many it passed on.
struct Gate {
    url: String,
    refuse: Mutex<VecDeque<&'static str>>,
    passed: Mutex<usize>,
}

impl Gate {
    async fn before(server: &Value, refuse: &[&'static str]) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let server = server["url"].as_str().unwrap();
        let server = server.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
        let refuse = Mutex::new(refuse.iter().copied().collect());
        let gate = Arc::new(Self { url, refuse, passed: Mutex::default() });
        let own = Arc::clone(&gate);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (gate, server) = (Arc::clone(&own), server.clone());
                // Whoever asked may be gone.
                tokio::spawn(async move { drop(gate.pass(stream, &server).await) });
            }
        });
        gate
    }

    /// One request of a connection, which is closed after it.
    async fn pass(&self, mut client: tokio::net::TcpStream, server: &str) -> std::io::Result<()> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut read, mut part) = (Vec::new(), [0; 4096]);
        let (head, rest) = loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, rest)) = text.split_once("\r\n\r\n") {
                let length =
                    head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                if rest.len() >= length.unwrap_or(0) {
                    break (head.to_owned(), rest.to_owned());
                }
            }
            match client.read(&mut part).await? {
                0 => return Ok(()),
                count => read.extend_from_slice(&part[..count]),
            }
        };
        if rest.contains("\"tools/call\"") {
            let refused = self.refuse.lock().unwrap().pop_front();
            if let Some(refused) = refused {
                let said = format!("HTTP/1.1 {refused}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                return client.write_all(said.as_bytes()).await;
            }
            *self.passed.lock().unwrap() += 1;
        }
        let mut upstream = tokio::net::TcpStream::connect(server).await?;
        upstream.write_all(format!("{head}\r\nconnection: close\r\n\r\n{rest}").as_bytes()).await?;
        tokio::io::copy_bidirectional(&mut client, &mut upstream).await.map(drop)
    }

    fn server(&self) -> Value {
        json!({"url": self.url})
    }

    fn passed(&self) -> usize {
        *self.passed.lock().unwrap()
    }
}

const LATER: &str = "429 Too Many Requests\r\nRetry-After: 60";

/// It had greeted, and then the call itself met a limit: nothing was called. It is waited for; what says no time is tried again as
/// any failure is. What says neither that nothing happened is uncertain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_in_the_middle_of_a_call_is_waited_for_and_the_tool_is_called_once() {
    let server = served(false).await;
    let gate = Gate::before(&server, &[LATER, LATER]).await;
    let (scene, mut end, _) = call(&gate.server(), "echo", json!({"text": "hi"}), json!({})).await;
    let id = scene.engine().await.sessions(&Default::default()).await.unwrap().sessions[0].id;
    let key = scene.section(id, "execution").await["nodes"]["a"]["key"].clone();
    for _ in 0..2 {
        let End::Waiting { until: Some(until), what } = &end else { panic!("{end:?}") };
        assert_eq!(until.since_ms(scene.engine().await.source().now()), 60_000);
        assert_eq!((what[0].1.as_str(), gate.passed()), ("a limit: the server answered with status 429", 0));
        let marks = scene.engine().await.store().marks(id, &Default::default()).await.unwrap();
        assert!(marks.iter().any(|mark| mark.checkpoint.trigger.to_string() == "rate_limit"), "{marks:?}");
        scene.clock.advance_ms(60_000);
        end = scene.resume(id).await;
    }
    completed(&end);
    let said = scene.section(id, "execution").await["outputs"]["a"]["text"].as_str().unwrap().to_owned();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["said"], &said["key"], gate.passed()), (&json!("hi"), &key, 1), "under one key");

    let gate = Gate::before(&server, &["429 Too Many Requests"]).await;
    let twice = json!({"node": {"retry": {"attempts": 2, "backoff": "1ms"}}});
    let (_, end, _) = call(&gate.server(), "echo", json!({"text": "hi"}), twice.clone()).await;
    completed(&end);
    assert_eq!(gate.passed(), 1);

    let gate = Gate::before(&server, &["500 Internal Server Error\r\nRetry-After: 60"]).await;
    let (_, end, _) = call(&gate.server(), "echo", json!({"text": "hi"}), twice).await;
    assert!(matches!(&end, End::Uncertain { .. }), "{end:?}");
    assert_eq!(gate.passed(), 0);
}

/// Whoever may not call has called nothing. What says neither yes nor no leaves it open, and nobody waits for more of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_none_end_a_call() {
    let server = served(true).await;
    for refused in ["401 Unauthorized\r\nWWW-Authenticate: Bearer", "403 Forbidden"] {
        let gate = Gate::before(&server, &[refused]).await;
        let (_, end, _) = call(&gate.server(), "echo", json!({"text": "hi"}), json!({})).await;
        let wanted = format!("the server answered with status {}", &refused[..3]);
        assert!(matches!(&end, End::Paused { why, .. } if *why == wanted), "{refused}: {end:?}");
    }
    let json = "Content-Type: application/json";
    for odd in ["400 Bad Request", "404 Not Found", "302 Found", "200 OK", &format!("200 OK\r\n{json}"), "202 Accepted"]
    {
        let gate = Gate::before(&server, &[odd.to_owned().leak()]).await;
        let more = json!({"node": {"timeout": "5s"}});
        let (scene, end, _) = call(&gate.server(), "echo", json!({"text": "hi"}), more).await;
        assert!(matches!(&end, End::Uncertain { .. }), "{odd}: {end:?}");
        let id = scene.engine().await.sessions(&Default::default()).await.unwrap().sessions[0].id;
        let why = scene.section(id, "execution").await["nodes"]["a"]["error"].clone();
        let is_timeout = why.as_str().unwrap().contains("5 s") || why.as_str().unwrap().contains("timeout");
        assert_eq!(is_timeout, odd.starts_with("202"), "{odd}: {why}: only an answer that was promised is waited for");
    }
}

/// So it is in the middle of an agent's loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_in_the_middle_of_an_agents_call_is_waited_for() {
    let gate = Gate::before(&served(true).await, &[LATER]).await;
    let scene = Scene::new();
    let engine = scene.engine().await;
    let runner = scene.scripted(&engine, "replies: [{calls: [{name: echo, input: {text: hi}}]}, {text: done}]\n");
    let tools = json!([{"mcp": gate.server()}]);
    let text = json!({"nodes": {"a": {"action": "agent", "with": {"prompt": "go", "tools": tools}}}}).to_string();
    let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    let End::Waiting { until: Some(until), .. } = &end else { panic!("{end:?}") };
    assert_eq!(until.since_ms(engine.source().now()), 60_000);
    scene.clock.advance_ms(60_000);
    completed(&runner.resume(id, Resume::latest(), None, &Default::default()).await.unwrap().0);
    assert_eq!((gate.passed(), scene.said(id, "a").await.len()), (1, 4), "prompt, call, result, answer");
}

/// A server that says when to come again is not asked before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_busy_says_when_to_come_again() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for (answer, is_limit) in [("429 Too Many Requests\r\nRetry-After: 60", true), ("503 Service Unavailable", false)] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                let said = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(said.as_bytes()).await;
            }
        });
        let (scene, end, _) = call(&json!({"url": url}), "echo", json!({"text": "x"}), json!({})).await;
        match is_limit {
            true => {
                let End::Waiting { until: Some(until), what } = &end else { panic!("{end:?}") };
                assert_eq!(until.since_ms(scene.engine().await.source().now()), 60_000, "{what:?}");
                assert_eq!(what[0].1, "a limit: the server answered with status 429");
            }
            false => {
                let wanted = "the server answered with status 503";
                assert!(matches!(&end, End::Paused { why, .. } if why == wanted), "{end:?}");
            }
        }
    }
}
