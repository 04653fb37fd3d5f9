//! What a network and a provider do on a bad day. Nothing is lost, nothing waits for ever, every error says what to do.

use milepost_model::Timestamp;
use milepost_models::{Cancel, Error, Outcome, Piece, Provider, Told};

use crate::server::{Act, Server, chunk, response, stream, stream_head};
use crate::support::{NOW, ask, config, hasty, model, open, question};
use crate::{anthropic, openai};

const BOTH: [Provider; 2] = [Provider::Anthropic, Provider::OpenAi];

fn wire(provider: Provider) -> &'static str {
    if provider == Provider::Anthropic { anthropic::WIRE } else { openai::WIRE }
}

/// The stream up to the middle of its text.
fn beginning(provider: Provider) -> &'static str {
    let wire = wire(provider);
    &wire[..wire.find("Zür\"").unwrap() + wire[wire.find("Zür\"").unwrap()..].find("\n\n").unwrap() + 2]
}

async fn refusal(provider: Provider, status: &str, headers: &str, body: &str) -> Result<Outcome, Error> {
    let server = Server::always(response(status, headers, body)).await;
    ask(&*model(&server, provider)).await
}

#[tokio::test]
async fn a_429_is_a_limit_with_its_end_and_not_a_failure() {
    let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"Number of requests has exceeded"}}"#;
    for provider in BOTH {
        let with = refusal(provider, "429 Too Many Requests", "retry-after: 17\r\n", body).await.unwrap();
        let Outcome::Limited(limited) = with else { panic!("{with:?}") };
        assert_eq!((limited.until, limited.told), (NOW.plus_ms(17_000), Told::Provider("retry-after")));
        assert_eq!(limited.why, "status 429, rate_limit_error: Number of requests has exceeded");
        assert_eq!(limited.partial, None);
        let without = refusal(provider, "429 Too Many Requests", "", "").await.unwrap();
        let Outcome::Limited(limited) = without else { panic!("{without:?}") };
        assert_eq!((limited.until, limited.told), (NOW.plus_ms(60_000), Told::Nobody));
        let reset = "x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 6m0s\r\n";
        let header = refusal(provider, "429 Too Many Requests", reset, "").await.unwrap();
        let Outcome::Limited(limited) = header else { panic!("{header:?}") };
        assert_eq!(limited.until, NOW.plus_ms(360_000));
    }
}

#[tokio::test]
async fn an_answer_that_used_up_a_limit_says_when_the_next_makes_sense() {
    let headers =
        "anthropic-ratelimit-requests-remaining: 0\r\nanthropic-ratelimit-requests-reset: 2026-10-14T17:47:00Z\r\n";
    let acts = vec![Act::Send([stream_head(headers), chunk(anthropic::WIRE.as_bytes())].concat())];
    let server = Server::always(acts).await;
    let Outcome::Whole(answer) = ask(&*model(&server, Provider::Anthropic)).await.unwrap() else { panic!() };
    assert_eq!(answer.ready_at, Some(Timestamp(1_792_000_020_000)));
}

#[tokio::test]
async fn every_no_has_its_kind() {
    let error = |kind: &str, message: &str| format!(r#"{{"error":{{"type":"{kind}","message":"{message}"}}}}"#);
    for provider in BOTH {
        let no =
            |status: &'static str, body: String| async move { refusal(provider, status, "", &body).await.unwrap_err() };
        assert!(matches!(no("500 Oops", "<html>".into()).await, Error::Unavailable { .. }));
        assert!(matches!(no("529 Overloaded", error("overloaded_error", "busy")).await, Error::Unavailable { .. }));
        assert!(matches!(no("401 No", error("authentication_error", "bad key")).await, Error::Denied { .. }));
        assert!(matches!(no("403 No", String::new()).await, Error::Denied { .. }));
        assert!(matches!(no("429 Quota", error("insufficient_quota", "pay")).await, Error::NoCredit { .. }));
        assert!(matches!(
            no("400 No", error("invalid_request_error", "Your credit balance is too low")).await,
            Error::NoCredit { .. }
        ));
        assert!(matches!(
            no("400 No", error("invalid_request_error", "prompt is too long: 9 > 8")).await,
            Error::TooLong { .. }
        ));
        assert!(matches!(no("413 No", String::new()).await, Error::TooLong { .. }));
        assert!(matches!(no("400 No", error("invalid_request_error", "max_tokens")).await, Error::Refused { .. }));
        assert!(matches!(no("404 No", String::new()).await, Error::Refused { .. }));
        // A key must not follow a server's word to another place.
        assert!(matches!(no("302 Found", String::new()).await, Error::Refused { .. }));
    }
    let busy = refusal(Provider::OpenAi, "503 Busy", "retry-after: 5\r\n", "").await.unwrap_err();
    assert_eq!((busy.retry_at(), busy.is_transient()), (Some(NOW.plus_ms(5000)), true));
    assert_eq!(
        busy.to_string(),
        "gpt-6-sol cannot answer now: status 503, it gave no reason; try again at 2026-10-14T17:46:45.000Z"
    );
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::always(stream(&[anthropic::WIRE.as_bytes()])).await;
    let location = format!("location: {}/v1/messages\r\n", elsewhere.url);
    let server = Server::always(response("307 Temporary Redirect", &location, "")).await;
    ask(&*model(&server, Provider::Anthropic)).await.unwrap_err();
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test]
async fn an_error_in_the_middle_keeps_what_had_arrived() {
    for provider in BOTH {
        let event = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"code\":500,\"message\":\"Internal server error\"}}\n\n";
        let acts = stream(&[beginning(provider).as_bytes(), event.as_bytes()]);
        let server = Server::always(acts).await;
        let outcome = ask(&*model(&server, provider)).await.unwrap();
        let Outcome::Cut { answer, why } = outcome else { panic!("{outcome:?}") };
        assert!(answer.message.text().ends_with("Ich schaue in Zür"), "{answer:?}");
        assert!(matches!(&why, Error::Unavailable { why, .. } if why.contains("Internal server error")), "{why}");
        assert_eq!(answer.message.extra["incomplete"], why.to_string());
    }
}

#[tokio::test]
async fn a_limit_in_the_middle_keeps_what_had_arrived() {
    for provider in BOTH {
        let event = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"try again in 20s\"}}\n\n";
        let server = Server::always(stream(&[beginning(provider).as_bytes(), event.as_bytes()])).await;
        let outcome = ask(&*model(&server, provider)).await.unwrap();
        let Outcome::Limited(limited) = outcome else { panic!("{outcome:?}") };
        assert_eq!(limited.until, NOW.plus_ms(20_000));
        let partial = limited.partial.unwrap();
        assert!(partial.message.text().ends_with("Ich schaue in Zür"));
        assert!(partial.message.extra.contains_key("incomplete"));
    }
}

#[tokio::test]
async fn garbage_in_the_middle_keeps_what_had_arrived() {
    for provider in BOTH {
        for garbage in ["data: {\"type\":\n\n", "data: <html>502</html>\n\n", "data: \u{0}\u{1}\n\n", "data: []\n\n"] {
            if provider == Provider::Anthropic && garbage == "data: []\n\n" {
                continue;
            }
            let server = Server::always(stream(&[beginning(provider).as_bytes(), garbage.as_bytes()])).await;
            let outcome = ask(&*model(&server, provider)).await.unwrap();
            let Outcome::Cut { answer, why } = outcome else { panic!("{outcome:?}") };
            assert!(answer.message.text().ends_with("Ich schaue in Zür"));
            assert!(matches!(why, Error::Garbled { .. }), "{why}");
        }
    }
}

#[tokio::test]
async fn garbage_from_the_start_is_an_error_that_says_so() {
    for provider in BOTH {
        for garbage in ["data: nonsense\n\n", "event: x\ndata: \"text\"\ndata: {\n\n"] {
            let server = Server::always(stream(&[garbage.as_bytes()])).await;
            let error = ask(&*model(&server, provider)).await.unwrap_err();
            assert!(matches!(error, Error::Garbled { .. }), "{error}");
        }
        for silence in [": only\n\n", "\n\n\n", "not an event stream at all"] {
            let server = Server::always(stream(&[silence.as_bytes()])).await;
            let error = ask(&*model(&server, provider)).await.unwrap_err();
            assert!(matches!(error, Error::Interrupted { .. }), "{error}");
        }
        let html = Server::always(response("200 OK", "", "<html>")).await;
        assert!(matches!(ask(&*model(&html, provider)).await.unwrap_err(), Error::Garbled { .. }));
    }
}

#[tokio::test]
async fn blocks_that_make_no_sense_are_garbage() {
    let start = r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"hi"}}"#;
    for next in [
        r#"{"type":"content_block_delta","index":5,"delta":{"type":"text_delta","text":"x"}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_start","index":1,"content_block":7}"#,
        r#"{"type":"content_block_delta","delta":{}}"#,
        r#"{"type":"message_start"}"#,
    ] {
        let server = Server::always(stream(&[format!("{start}\n\ndata: {next}\n\n").as_bytes()])).await;
        let outcome = ask(&*model(&server, Provider::Anthropic)).await.unwrap();
        assert!(matches!(&outcome, Outcome::Cut { why: Error::Garbled { .. }, .. }), "{next}: {outcome:?}");
    }
    let server = Server::always(stream(&[b"data: {\"choices\":[{\"delta\":{\"content\":7}}]}\n\n"])).await;
    assert!(matches!(ask(&*model(&server, Provider::OpenAi)).await.unwrap_err(), Error::Garbled { .. }));
}

#[tokio::test]
async fn silence_ends_at_its_limit() {
    for provider in BOTH {
        let server = Server::always(vec![Act::Hang]).await;
        let mut config = config(&server, provider);
        config.timeouts.connect_ms = 40;
        config.timeouts.first_byte_ms = 40;
        let error = ask(&*open(&config)).await.unwrap_err();
        assert!(matches!(error, Error::TooSlow { limit: "first_byte_ms", .. }), "{error}");
        let server = Server::always(vec![Act::Send(stream_head("")), Act::Hang]).await;
        let error = ask(&*hasty(&server, provider)).await.unwrap_err();
        assert!(matches!(error, Error::TooSlow { .. }), "{error}");
        let start = [stream_head(""), chunk(beginning(provider).as_bytes())].concat();
        let server = Server::always(vec![Act::Send(start.clone()), Act::Hang]).await;
        let outcome = ask(&*hasty(&server, provider)).await.unwrap();
        let Outcome::Cut { answer, why } = outcome else { panic!("{outcome:?}") };
        assert!(matches!(why, Error::TooSlow { limit: "progress_ms", ms: 80, .. }), "{why}");
        assert!(answer.message.text().ends_with("Ich schaue in Zür"));
        let server = Server::always(vec![Act::Send(start), Act::Hang]).await;
        let mut config = crate::support::config(&server, provider);
        config.timeouts.whole_ms = 80;
        let outcome = ask(&*open(&config)).await.unwrap();
        assert!(matches!(outcome, Outcome::Cut { why: Error::TooSlow { limit: "whole_ms", .. }, .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_unreachable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let server = Server::always(Vec::new()).await;
    let mut config = config(&server, Provider::Anthropic);
    config.base_url = Some(format!("http://{address}"));
    let error = ask(&*open(&config)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(!error.to_string().contains("127.0.0.1"), "an address may hold a secret: {error}");
    let closing = Server::always(vec![Act::Close]).await;
    let error = ask(&*model(&closing, Provider::OpenAi)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
}

#[tokio::test]
async fn answers_without_end_are_refused_at_their_limit() {
    let line = [b"data: ".as_slice(), &vec![b'x'; 5 << 20]].concat();
    let server = Server::always(stream(&[beginning(Provider::OpenAi).as_bytes(), &line])).await;
    let outcome = ask(&*model(&server, Provider::OpenAi)).await.unwrap();
    let Outcome::Cut { why, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(
        why.to_string(),
        "the answer of gpt-6-sol is larger than MAX_FRAME_BYTES, 4194304; ask for less, or lower max_tokens"
    );
    let comment = [b": ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
    let many: Vec<&[u8]> = (0..40).map(|_| comment.as_slice()).collect();
    let server = Server::always(stream(&many)).await;
    let error = ask(&*model(&server, Provider::Anthropic)).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: "MAX_RESPONSE_BYTES", .. }), "{error}");
    let huge = format!("{{\"x\":\"{}\"}}", "x".repeat(33 << 20));
    let error = refusal(Provider::Anthropic, "200 OK", "", &huge).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let error = refusal(Provider::Anthropic, "500 Oops", "", &huge).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.to_string().len() < 2000);
    let blocks: String = (0..1100)
        .map(|n| format!("data: {{\"type\":\"content_block_start\",\"index\":{n},\"content_block\":{{\"type\":\"text\",\"text\":\"x\"}}}}\n\n"))
        .collect();
    let server = Server::always(stream(&[blocks.as_bytes()])).await;
    let outcome = ask(&*model(&server, Provider::Anthropic)).await.unwrap();
    assert!(matches!(outcome, Outcome::Cut { why: Error::TooLarge { limit: "MAX_BLOCKS", at: 1000, .. }, .. }));
}

#[tokio::test]
async fn cancelling_keeps_what_had_arrived() {
    for provider in BOTH {
        let start = [stream_head(""), chunk(beginning(provider).as_bytes())].concat();
        let server = Server::always(vec![Act::Send(start), Act::Hang]).await;
        let model = model(&server, provider);
        let cancel = Cancel::new();
        let mut listen = |piece: Piece<'_>| {
            if matches!(piece, Piece::Text(_)) {
                cancel.cancel();
            }
        };
        let outcome = model.ask(&question(), &cancel, &mut listen).await.unwrap();
        let Outcome::Cut { answer, why } = outcome else { panic!("{outcome:?}") };
        assert!(matches!(why, Error::Cancelled { .. }));
        assert!(answer.message.text().ends_with("Ich schaue in Zür"));
        let before = model.ask(&question(), &cancel, &mut |_| {}).await;
        assert!(matches!(before, Err(Error::Cancelled { .. })));
        assert_eq!(server.seen().len(), 1, "nothing is sent for a call that was cancelled before");
    }
}

#[tokio::test]
async fn nothing_is_sent_twice_by_itself() {
    let server = Server::always(vec![Act::Close]).await;
    let model = model(&server, Provider::Anthropic);
    ask(&*model).await.unwrap_err();
    assert_eq!(server.seen().len(), 1);
}
