//! Runs with a model that is reached over the wire, on its bad days: limits, breaks in the middle, garbage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use milepost::{NewSession, Resume, Usage};
use milepost_models::{ModelConfig, Provider, Timer};
use milepost_run::run::{End, Runner, Settle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Scene, completed, graph};

fn stream(text: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
         data: {{\"id\":\"c1\",\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"{text}\"}}}}]}}\n\n"
    )
}

fn whole(text: &str) -> String {
    stream(text)
        + "data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
           data: {\"id\":\"c1\",\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n\
           data: [DONE]\n\n"
}

fn refusal(status: &str, headers: &str) -> String {
    let body = "{\"error\":{\"message\":\"slow down\"}}";
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A server that gives these answers, the last one for ever.
async fn server(answers: Vec<String>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let answer = answers[number.min(answers.len() - 1)].clone();
            let mut part = vec![0u8; 64 << 10];
            let mut read = 0;
            // The whole request, whose length it says.
            loop {
                read += stream.read(&mut part[read..]).await.unwrap();
                let text = String::from_utf8_lossy(&part[..read]).to_ascii_lowercase();
                let Some(end) = text.find("\r\n\r\n") else { continue };
                let length =
                    text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
                if read >= end + 4 + length.unwrap_or(0) {
                    break;
                }
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    (url, count)
}

async fn run(answers: Vec<String>) -> (Scene, Runner, milepost::SessionId, End, Arc<AtomicUsize>) {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let (url, count) = server(answers).await;
    let mut config = ModelConfig::new(Provider::OpenAi, "m");
    config.base_url = Some(url);
    let key = |name: &str| name.ends_with("_API_KEY").then(|| "sk-test-0123456789abcdef".to_owned());
    let model = config.open(&key, engine.source(), Timer::none()).unwrap();
    let runner = scene.runner(&engine).model(model);
    let text = "nodes: {a: {action: model, with: {prompt: hi}, retry: {attempts: 2, backoff: 1ms}}}\noutputs: {text: outputs.a.text}\n";
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    (scene, runner, id, end, count)
}

#[tokio::test]
async fn a_limit_becomes_a_checkpoint_and_a_wake_up_with_and_without_a_time() {
    for (headers, seconds) in [("retry-after: 7200\r\n", 7200), ("", 60)] {
        let answers = vec![refusal("429 Too Many Requests", headers), whole("hello")];
        let (scene, runner, id, end, count) = run(answers).await;
        let End::Waiting { until: Some(until), .. } = &end else { panic!("{end:?}") };
        let now = milepost::model::Clock::now(&*scene.clock);
        assert_eq!(until.since_ms(now), seconds * 1000, "{headers:?}");
        let marks = scene.engine().await.store().marks(id, &Default::default()).await.unwrap();
        assert!(marks.iter().any(|mark| mark.checkpoint.trigger.as_str() == "rate_limit"));
        assert!(runner.claim_due(5).await.unwrap().is_empty());
        scene.clock.advance_ms(seconds * 1000);
        assert_eq!(runner.claim_due(5).await.unwrap(), [id]);
        let end = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap().0;
        assert_eq!(completed(&end)["text"], "hello");
        assert_eq!(count.load(Ordering::SeqCst), 2);
        let usage: Usage = scene.said(id, "a").await.iter().map(Usage::of).sum();
        assert_eq!((usage.input_tokens, usage.output_tokens), (7, 3));
    }
}

#[tokio::test]
async fn what_breaks_in_the_middle_is_asked_again_and_leaves_nothing_half() {
    let half = stream("hel") + "data: {\"id\":\"c1\",\"cho";
    let failed = stream("hel") + "data: {\"error\":{\"message\":\"internal\",\"code\":500}}\n\n";
    let status = refusal("500 Internal Server Error", "");
    for broken in [half, failed, status] {
        let (scene, _, id, end, count) = run(vec![broken.clone(), whole("hello")]).await;
        assert_eq!(completed(&end)["text"], "hello", "{broken}");
        assert_eq!(count.load(Ordering::SeqCst), 2);
        let said = scene.said(id, "a").await;
        assert_eq!(said.iter().map(|message| message.text().into_owned()).collect::<Vec<_>>(), ["hi", "hello"]);
    }
}

#[tokio::test]
async fn garbage_pauses_the_run_with_the_reason() {
    let garbage =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: \u{1}{{{nonsense\n\n";
    let (scene, _, id, end, count) = run(vec![garbage.to_owned()]).await;
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("cannot be understood")), "{end:?}");
    assert_eq!((count.load(Ordering::SeqCst), scene.status(id).await.as_str()), (2, "paused"));
    assert!(scene.said(id, "a").await.is_empty());
}

/// A server that says when it wants to be asked again is not asked before, and that is no failed attempt.
#[tokio::test]
async fn a_request_that_is_limited_waits_as_long_as_the_server_says() {
    let fine = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".to_owned();
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let (url, count) = server(vec![refusal(status, "retry-after: 7200\r\n"), fine.clone()]).await;
        let text = format!(
            "nodes: {{a: {{action: http, with: {{url: '{url}'}}, retry: 1}}}}\noutputs: {{body: outputs.a.body}}\n"
        );
        let runner = scene.runner(&engine);
        let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
        let End::Waiting { until: Some(until), .. } = &end else { panic!("{end:?}") };
        assert_eq!(until.since_ms(milepost::model::Clock::now(&*scene.clock)), 7_200_000);
        scene.clock.advance_ms(7_200_000);
        assert_eq!(runner.claim_due(5).await.unwrap(), [id]);
        let end = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap().0;
        assert_eq!((completed(&end)["body"].as_str(), count.load(Ordering::SeqCst)), (Some("ok"), 2));
    }
}

/// Also a moment is waited for, by the run itself, and is no failed attempt: here there is only one.
#[tokio::test]
async fn a_request_that_is_limited_for_a_moment_is_waited_for() {
    let fine = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".to_owned();
    // The clock of the scene stands at the first second of 2026.
    for (status, headers, waits_ms) in [
        ("429 Too Many Requests", "retry-after: 2\r\n", 2000),
        ("503 Service Unavailable", "Retry-After: 4\r\n", 4000),
        ("503 Service Unavailable", "retry-after: Thu, 01 Jan 2026 00:00:03 GMT\r\n", 3000),
        ("403 Forbidden", "retry-after: 1\r\n", 1000),
        // What is over, or no time at all, is a moment: whoever asks at once is refused again.
        ("429 Too Many Requests", "retry-after: 0\r\n", 1000),
        ("429 Too Many Requests", "retry-after: Thu, 01 Jan 1970 00:00:00 GMT\r\n", 1000),
    ] {
        let scene = Scene::new();
        let engine = scene.engine().await;
        let before = milepost::model::Clock::now(&*scene.clock);
        let (url, count) = server(vec![refusal(status, headers), fine.clone()]).await;
        let text = format!(
            "nodes: {{a: {{action: http, with: {{url: '{url}', json: {{n: 1}}}}, retry: 1}}}}\noutputs: {{body: outputs.a.body}}\n"
        );
        let (id, end) = scene.runner(&engine).start(&graph(&text), NewSession::default()).await.unwrap();
        assert_eq!((completed(&end)["body"].as_str(), count.load(Ordering::SeqCst)), (Some("ok"), 2), "{headers}");
        let waited = milepost::model::Clock::now(&*scene.clock).since_ms(before);
        assert_eq!(waited, waits_ms, "{headers}");
        let line = scene.section(id, "execution").await["nodes"]["a"].clone();
        assert_eq!((&line["attempt"], line.get("limits")), (&1.into(), None), "{line}");
    }
}

/// Nobody waits for ever for a server that always says so, nor for one that says nonsense.
#[tokio::test]
async fn a_server_that_is_always_at_its_limit_is_a_failure_in_the_end() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let (url, count) = server(vec![refusal("429 Too Many Requests", "retry-after: 1\r\n")]).await;
    let text = format!("nodes: {{a: {{action: http, with: {{url: '{url}'}}, retry: {{attempts: 2, backoff: 1ms}}}}}}");
    let runner = scene.runner(&engine).max_limits(3);
    let (_, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("429") && why.contains("MAX_LIMITS")), "{end:?}");
    // Three times later and once too often, for each of the two attempts.
    assert_eq!(count.load(Ordering::SeqCst), 8);
    for headers in ["", "retry-after: soon\r\n", "retry-after: -5\r\n"] {
        let (url, count) = server(vec![refusal("503 Service Unavailable", headers)]).await;
        let text =
            format!("nodes: {{a: {{action: http, with: {{url: '{url}'}}, retry: {{attempts: 2, backoff: 1ms}}}}}}");
        let (_, end) = scene.runner(&engine).start(&graph(&text), NewSession::default()).await.unwrap();
        assert!(matches!(&end, End::Paused { why, .. } if why.contains("503")), "{end:?}");
        assert_eq!(count.load(Ordering::SeqCst), 2, "{headers}");
    }
}

/// A model that is busy and says until when is not asked before.
#[tokio::test]
async fn a_model_that_is_busy_for_a_while_is_waited_for() {
    let answers = vec![refusal("503 Service Unavailable", "retry-after: 7200\r\n"), whole("hello")];
    let (scene, runner, id, end, count) = run(answers).await;
    let End::Waiting { until: Some(until), .. } = &end else { panic!("{end:?}") };
    assert_eq!(until.since_ms(milepost::model::Clock::now(&*scene.clock)), 7_200_000);
    scene.clock.advance_ms(7_200_000);
    let end = runner.resume(id, Resume::latest(), None, &BTreeMap::new()).await.unwrap().0;
    assert_eq!((completed(&end)["text"].as_str(), count.load(Ordering::SeqCst)), (Some("hello"), 2));
}

/// Whoever said when to come again is not asked before, whatever else the run goes on for.
#[tokio::test]
async fn a_limit_is_not_asked_early_by_a_resume() {
    let fine = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".to_owned();
    let limit = refusal("429 Too Many Requests", "retry-after: 60\r\n");
    let (url, count) = server(vec![limit.clone(), limit, fine]).await;
    let (scene, asked) = (Scene::new(), || count.load(Ordering::SeqCst));
    let engine = scene.engine().await;
    let text = format!(
        "
nodes:
  get: {{action: http, with: {{url: '{url}'}}}}
  sub: {{action: graph, with: {{graph: {{nodes: {{get: {{action: http, with: {{url: '{url}'}}}}}}}}}}}}
  q: {{action: ask, with: {{question: 'Go?'}}}}
outputs: {{body: outputs.get.body}}
"
    );
    // No time goes by of itself.
    let runner = scene.runner(&engine).timer(Timer::real());
    let (id, end) = runner.start(&graph(&text), NewSession::default()).await.unwrap();
    let resume = |settle: BTreeMap<String, Settle>| {
        let runner = runner.clone();
        async move { runner.resume(id, Resume::latest(), None, &settle).await.unwrap().0 }
    };
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    assert_eq!(asked(), 2);
    milepost_run::run::answer(&engine, id, "q", 0, "yes", "kim").await.unwrap();
    for _ in 0..2 {
        let end = resume(BTreeMap::new()).await;
        let End::Waiting { until: Some(_), what } = &end else { panic!("{end:?}") };
        assert!(what.iter().all(|(_, what)| what.contains("a limit: ") && what.contains("429")), "{what:?}");
        assert_eq!((what.len(), asked()), (2, 2));
    }
    // Somebody who knows better says so.
    let settle = BTreeMap::from([("get".to_owned(), Settle::RunAgain)]);
    assert!(matches!(resume(settle).await, End::Waiting { .. }));
    assert_eq!(asked(), 3);
    scene.clock.advance_ms(60_001);
    assert_eq!(completed(&resume(BTreeMap::new()).await)["body"], "ok");
    assert_eq!(asked(), 4);
}
