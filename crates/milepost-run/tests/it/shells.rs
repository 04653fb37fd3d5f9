//! Commands and requests: what they see, how much they may say, and that they end.

use milepost_models::Cancel;
use milepost_run::run::End;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Scene, completed, graph};

async fn shell(with: Value, more: Value) -> (Scene, End, Value) {
    let scene = Scene::new();
    let mut node = json!({"action": "shell", "with": with, "retry": 1});
    node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (id, end) = scene.start(&json!({"nodes": {"a": node}}).to_string()).await;
    let output = scene.section(id, "execution").await["outputs"]["a"].clone();
    (scene, end, output)
}

#[tokio::test]
async fn a_command_sees_only_what_it_may() {
    let with = json!({"command": "env | cut -d= -f1 | sort", "set": {"OWN": "{{ node }}"}, "parse": "lines"});
    let (_, end, output) = shell(with, json!({})).await;
    completed(&end);
    let seen: Vec<&str> = output["value"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let own = [
        "HOME",
        "LANG",
        "MILEPOST_ATTEMPT",
        "MILEPOST_IDEMPOTENCY_KEY",
        "MILEPOST_NODE",
        "MILEPOST_SESSION",
        "OWN",
        "PATH",
        "PWD",
        "SHLVL",
        "TMPDIR",
        "_",
        "OLDPWD",
    ];
    assert!(seen.iter().all(|name| own.contains(name)), "{seen:?}");
    assert!(seen.contains(&"OWN") && seen.contains(&"MILEPOST_IDEMPOTENCY_KEY"));
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "there was something not to see");
    let (_, _, output) = shell(
        json!({"argv": ["sh", "-c", "cat; echo $CARGO_PKG_NAME"], "stdin": "in ", "env": ["CARGO_PKG_NAME"]}),
        json!({}),
    )
    .await;
    assert_eq!(output["stdout"], "in milepost-run\n");
}

#[tokio::test]
async fn a_command_that_says_too_much_is_cut() {
    let (_, end, output) = shell(
        json!({"command": "head -c 100000000 /dev/zero | tr '\\0' x; echo e >&2", "max_output_bytes": 1000}),
        json!({}),
    )
    .await;
    completed(&end);
    assert_eq!(
        (output["stdout"].as_str().unwrap().len(), &output["truncated"], &output["stderr"]),
        (1000, &json!(true), &json!("e\n"))
    );
}

#[tokio::test]
async fn a_command_that_fails_says_how() {
    let (_, end, _) = shell(json!({"command": "echo no such thing >&2; exit 3"}), json!({})).await;
    assert!(matches!(&end, End::Paused { why, .. } if why == "it ended with code 3: no such thing"), "{end:?}");
    let (_, end, output) = shell(json!({"command": "exit 3", "ok": [0, 3]}), json!({})).await;
    completed(&end);
    assert_eq!(output["code"], 3);
    let (_, end, _) = shell(json!({"argv": ["/nowhere/at/all"]}), json!({})).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("cannot be started")), "{end:?}");
    let (_, end, _) = shell(json!({"command": "echo nonsense", "parse": "json"}), json!({"idempotent": true})).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("not JSON")), "{end:?}");
}

#[tokio::test]
async fn a_command_and_its_children_end_when_their_time_is_over() {
    let scene = Scene::new();
    let pid = scene.dir.path().join("pid");
    // It ignores being asked, and has a child that would live on.
    let command = format!(
        "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {}; while :; do sleep 0.1; done' & wait; wait",
        pid.display()
    );
    let node = json!({"action": "shell", "timeout": "300ms", "retry": 1, "with": {"command": command}});
    let (id, end) = scene.start(&json!({"nodes": {"a": node}}).to_string()).await;
    assert!(matches!(&end, End::Uncertain { steps } if steps[0].0 == "a"), "{end:?}");
    let error = scene.section(id, "execution").await["nodes"]["a"]["error"].clone();
    assert_eq!(error, "it took longer than its timeout, 300 ms");
    let child = std::fs::read_to_string(&pid).unwrap();
    let path = format!("/proc/{}/stat", child.trim());
    for _ in 0..200 {
        let is_gone = std::fs::read_to_string(&path).map_or(true, |stat| stat.contains(") Z "));
        if is_gone {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the child {child} lives on");
}

/// Whatever is told to end may put things in order first: when its time is over, and when the run is stopped.
#[tokio::test]
async fn a_command_that_has_to_end_is_asked_first_and_has_its_grace() {
    for is_stopped in [false, true] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let dir = scene.dir.path().display().to_string();
        let command = format!(
            "trap 'sleep 0.3; echo in order > {dir}/left; exit 0' TERM; touch {dir}/begun; while :; do sleep 0.05; done"
        );
        let timeout = if is_stopped { "60s" } else { "500ms" };
        let node = json!({"action": "shell", "timeout": timeout, "retry": 1, "with": {"command": command}});
        let cancel = Cancel::new();
        let (graph, runner) = (graph(&json!({"nodes": {"a": node}}).to_string()), scene.runner(&engine));
        let runner = runner.cancel(cancel.clone()).grace_ms(10_000);
        let (started, ()) = tokio::join!(runner.start(&graph, milepost::NewSession::default()), async {
            while is_stopped && !scene.dir.path().join("begun").exists() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            if is_stopped {
                cancel.cancel();
            }
        });
        let end = started.unwrap().1;
        assert_eq!(matches!(end, End::Stopped), is_stopped, "{end:?}");
        let left = std::fs::read_to_string(scene.dir.path().join("left")).unwrap_or_default();
        assert_eq!(left, "in order\n", "stopped: {is_stopped}, {end:?}");
    }
}

#[tokio::test]
async fn a_command_that_shows_no_sign_of_life_is_ended() {
    let quiet = json!({"no_progress": "200ms", "idempotent": true});
    let (_, end, _) = shell(json!({"command": "echo hi; sleep 60"}), quiet).await;
    assert!(matches!(&end, End::Paused { why, .. } if why == "it gave no sign of life for 200 ms"), "{end:?}");
    let (_, end, _) =
        shell(json!({"command": "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done"}), json!({"no_progress": "3s"}))
            .await;
    completed(&end);
}

/// A command that had to be ended may have done what it was for: it is not silently run again.
#[tokio::test]
async fn a_command_that_had_to_be_ended_is_asked_about_unless_it_may_run_again() {
    for (command, more) in [
        ("echo run >> $LOG; sleep 60", json!({"timeout": "300ms"})),
        ("echo run >> $LOG; sleep 60", json!({"no_progress": "300ms"})),
        ("echo run >> $LOG; kill -9 $$", json!({})),
    ] {
        for (idempotent, times) in [(false, 1), (true, 3)] {
            let scene = Scene::new();
            let log = scene.dir.path().join("log").display().to_string();
            let mut node = json!({
                "action": "shell", "with": {"command": command, "set": {"LOG": log}}, "idempotent": idempotent,
                "retry": {"attempts": 3, "backoff": "1ms"},
            });
            node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let (_, end) = scene.start(&json!({"nodes": {"a": node}}).to_string()).await;
            let ran = std::fs::read_to_string(&log).unwrap().lines().count();
            assert_eq!(ran, times, "{command} {more}: {end:?}");
            assert_eq!(matches!(end, End::Uncertain { .. }), !idempotent, "{end:?}");
        }
    }
}

/// A command that leaves something running is over when it is; what it left ends with it.
#[tokio::test]
async fn a_command_does_not_wait_for_what_it_left_running() {
    let scene = Scene::new();
    let pid = scene.dir.path().join("pid");
    let command = format!("sleep 600 & echo $! > {}; echo hi", pid.display());
    let node = json!({"action": "shell", "timeout": "60s", "with": {"command": command}});
    let (id, end) = scene.start(&json!({"nodes": {"a": node}}).to_string()).await;
    completed(&end);
    assert_eq!(scene.section(id, "execution").await["outputs"]["a"]["stdout"], "hi\n");
    let path = format!("/proc/{}/stat", std::fs::read_to_string(&pid).unwrap().trim());
    while std::fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_request_carries_its_key_and_its_answer_is_read() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/papers", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut seen = Vec::new();
        for answer in [
            "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nx-own: 1\r\n\r\n{\"n\": 41}",
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut part = vec![0u8; 4096];
            let count = stream.read(&mut part).await.unwrap();
            seen.push(String::from_utf8_lossy(&part[..count]).into_owned());
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
        seen
    });
    let scene = Scene::new();
    let node = json!({"action": "http", "retry": 2, "with": {"url": url, "json": {"node": "{{ node }}"}, "headers": {"X-A": "b"}}, "remember": {"n": "output.json.n + 1"}});
    let (_, end) = scene.start(&json!({"nodes": {"a": node}, "outputs": {"n": "memory.n"}}).to_string()).await;
    assert_eq!(completed(&end)["n"], 42);
    let seen = server.await.unwrap();
    let key = |request: &str| {
        request.lines().find_map(|line| line.strip_prefix("idempotency-key: ").map(str::to_owned)).unwrap()
    };
    assert_eq!(key(&seen[0]), key(&seen[1]), "the same for every attempt");
    assert!(
        seen[1].starts_with("POST /papers ") && seen[1].contains("x-a: b") && seen[1].ends_with("{\"node\":\"a\"}"),
        "{}",
        seen[1]
    );
}

#[tokio::test]
async fn a_response_without_end_is_cut() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut part = vec![0u8; 4096];
        let _ = stream.read(&mut part).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        // Until the other side has had enough.
        while stream.write_all(&[b'x'; 8192]).await.is_ok() {}
    });
    let scene = Scene::new();
    let node = json!({"action": "http", "retry": 1, "with": {"url": url, "max_response_bytes": 100_000}});
    let (id, end) = scene.start(&json!({"nodes": {"a": node}}).to_string()).await;
    completed(&end);
    let output = scene.section(id, "execution").await["outputs"]["a"].clone();
    assert_eq!((output["body"].as_str().unwrap().len(), &output["truncated"]), (100_000, &json!(true)));
    server.await.unwrap();
}

/// A server that takes the request and says nothing does not keep a run for ever.
#[tokio::test]
async fn a_request_without_an_answer_ends_by_itself() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(listener.accept().await.unwrap());
        }
    });
    let scene = Scene::new();
    let engine = scene.engine().await;
    let text = json!({"nodes": {"a": {"action": "http", "retry": 1, "with": {"url": url}}}}).to_string();
    let runner = scene.runner(&engine).http_timeout_ms(200).grace_ms(200);
    let (_, end) = runner.start(&graph(&text), milepost::NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("200 ms")), "{end:?}");
    silent.abort();
}

/// The end of what it said is there for whoever looks why it failed.
#[tokio::test]
async fn what_a_command_that_failed_said_is_kept_with_its_failure() {
    let scene = Scene::new();
    let text = "nodes: {a: {action: shell, retry: {attempts: 2, backoff: 1ms}, with: {command: 'seq 1 9000; echo why >&2; exit 2'}}}\n";
    let (id, end) = scene.start(text).await;
    assert!(matches!(&end, End::Paused { why, .. } if why == "it ended with code 2: why"), "{end:?}");
    let engine = scene.engine().await;
    let events = scene.runner(&engine).events(id).await.unwrap();
    let said: Vec<Value> = events
        .iter()
        .filter(|(_, event)| event.kind == "step_outcome")
        .map(|(_, event)| Value::Object(event.data.clone())["said"].clone())
        .collect();
    assert_eq!(said.len(), 2);
    for said in said {
        let stdout = said["stdout"].as_str().unwrap_or_else(|| panic!("{said}"));
        assert!(stdout.ends_with("8999\n9000\n") && stdout.len() <= 8 << 10, "{} bytes", stdout.len());
        assert_eq!((&said["code"], &said["stderr"]), (&json!(2), &json!("why\n")));
    }
}
