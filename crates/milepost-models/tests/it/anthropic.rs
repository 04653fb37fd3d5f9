//! The Messages API, as it comes over the wire.

use milepost_model::{Block, Content, Message, Role};
use milepost_models::{Answer, Outcome, Provider, Request, Stop, Tool, Usage};
use serde_json::{Value, json};

use crate::server::{Act, Server, broken_stream, chunk, response, stream, stream_head};
use crate::support::{KEY, ask, ask_heard, model, question};

pub const WIRE: &str = include_str!("../wire/anthropic.sse");

fn whole(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Whole(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn check(answer: &Answer) {
    let message = serde_json::to_value(&answer.message).unwrap();
    assert_eq!(
        message["content"],
        json!([
            {"type": "thinking", "text": "Two cities, one tool.", "signature": "EqQBCg=="},
            {"type": "text", "text": "Ich schaue in Zürich nach 🌦.",
             "citations": [{"type": "char_location", "cited_text": "a"}]},
            {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
            {"type": "tool_call", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"},
             "caller": {"type": "direct"}},
        ])
    );
    assert_eq!((message["id"].as_str(), message["stop_reason"].as_str()), (Some("msg_01"), Some("tool_use")));
    assert_eq!(message["container"], json!({"id": "c1"}), "fields that are not known are kept");
    assert_eq!(message["usage"]["service_tier"], "standard");
    assert_eq!(message.get("incomplete"), None);
    let usage = Usage { input_tokens: 1200, output_tokens: 89, cache_read_tokens: 2000, cache_write_tokens: 100 };
    assert_eq!((answer.usage, answer.stop.clone()), (usage, Some(Stop::Tools)));
    let usd = answer.cost.as_ref().unwrap().usd;
    let wanted = (1200.0 * 2.0 + 89.0 * 10.0 + 2000.0 * 0.1 + 100.0 * 2.5) / 1e6;
    assert!((usd - wanted).abs() < 1e-12, "{usd}");
    assert_eq!(message["cost_usd"], json!(usd));
}

#[tokio::test]
async fn every_split_of_the_stream_gives_the_same_answer() {
    let server = Server::start(|number| {
        let bytes = WIRE.as_bytes();
        match number {
            0 => stream(&bytes.chunks(1).collect::<Vec<_>>()),
            1 => stream(&[bytes]),
            2 => stream(&[WIRE.replace('\n', "\r\n").as_bytes()]),
            at => stream(&[&bytes[..at - 2], &bytes[at - 2..]]),
        }
    })
    .await;
    let model = model(&server, Provider::Anthropic);
    for _ in 0..WIRE.len() + 2 {
        check(&whole(ask(&*model).await.unwrap()));
    }
}

#[tokio::test]
async fn pieces_are_heard_as_they_come() {
    let server = Server::always(stream(&[WIRE.as_bytes()])).await;
    let (_, heard) = ask_heard(&*model(&server, Provider::Anthropic), &question()).await;
    assert_eq!(
        heard,
        [
            "thinking Two cities, ",
            "thinking one tool.",
            "text Ich schaue in Zür",
            "text ich nach 🌦.",
            "input {\"query\":\"x\"}",
            "call toolu_1 weather",
            "input {\"city\": \"Zür",
            "input ich\"}",
        ]
    );
}

#[tokio::test]
async fn the_request_is_a_valid_one_whatever_the_record_holds() {
    let server = Server::always(stream(&[WIRE.as_bytes()])).await;
    let mut request = Request::new(vec![
        Message::new(Role::User, "Go"),
        Message::blocks(Role::Assistant, vec![Block::tool_call("c1", "weather", json!({}))]),
    ]);
    request.system = Some("Be brief.".into());
    request.tools = vec![Tool {
        name: "weather".into(),
        description: "The weather".into(),
        input_schema: json!({"type": "object", "properties": {"city": {"type": "string"}}}),
    }];
    request.stop = vec!["END".into()];
    request.idempotency_key = Some("step-1".into());
    request.extra.insert("thinking".into(), json!({"type": "adaptive"}));
    request.extra.insert("model".into(), json!("another"));
    ask_heard(&*model(&server, Provider::Anthropic), &request).await.0.unwrap();
    let seen = &server.seen()[0];
    assert!(seen.head.starts_with("POST /v1/messages HTTP/1.1"), "{}", seen.head);
    assert_eq!(seen.header("x-api-key"), Some(KEY));
    assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(seen.header("idempotency-key"), Some("step-1"));
    let body = &seen.body;
    assert_eq!(
        (&body["model"], &body["stream"], &body["max_tokens"]),
        (&json!("claude-sonnet-5-5"), &json!(true), &json!(8192))
    );
    assert_eq!((&body["system"], &body["stop_sequences"]), (&json!("Be brief."), &json!(["END"])));
    assert_eq!(body["tools"][0]["input_schema"]["properties"]["city"]["type"], "string");
    assert_eq!(body["thinking"], json!({"type": "adaptive"}));
    assert_eq!(body.get("temperature"), None);
    let messages = body["messages"].as_array().unwrap();
    assert!(milepost_context::history::check(messages, milepost_context::history::Dialect::Anthropic).is_empty());
    assert_eq!(messages[2]["content"][0]["tool_use_id"], "c1", "{body}");
}

#[tokio::test]
async fn an_answer_in_one_piece_is_read_too() {
    let body = json!({
        "id": "msg_2", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Rain."}], "usage": {"input_tokens": 3, "output_tokens": 2},
    });
    let server = Server::always(response("200 OK", "", &body.to_string())).await;
    let answer = whole(ask(&*model(&server, Provider::Anthropic)).await.unwrap());
    assert_eq!(answer.message.content, Content::Text("Rain.".into()));
    assert_eq!((answer.stop, answer.usage.input_tokens), (Some(Stop::End), 3));
}

/// Cut after every byte: what is kept is always valid, says that it is not whole, and grows.
#[tokio::test]
async fn a_stream_that_ends_anywhere_keeps_what_had_arrived() {
    let last = WIRE.find("event: message_stop").unwrap();
    let server = Server::start(move |number| broken_stream(&WIRE.as_bytes()[..number + 1])).await;
    let model = model(&server, Provider::Anthropic);
    let (mut most, mut kept) = (0, 0);
    for at in 1..=last {
        match ask(&*model).await {
            Ok(Outcome::Cut { answer, why }) => {
                kept += 1;
                let message = serde_json::to_value(&answer.message).unwrap();
                assert!(message["incomplete"].as_str().unwrap().contains("stopped in the middle"), "{message}");
                assert!(why.is_transient());
                assert_eq!(answer.stop, None);
                let text = answer.message.text().len();
                assert!(text >= most, "cut at {at}: {message}");
                most = text;
                // A call whose arguments are not all there is beside the message, not in it.
                let calls = message["content"].as_array().into_iter().flatten().filter(|b| b["type"] == "tool_call");
                calls.for_each(|call| assert_eq!(call["input"], json!({"city": "Zürich"}), "cut at {at}"));
                let history = [Message::new(Role::User, "Go"), answer.message.clone()];
                let view = milepost_context::history::view(&history, milepost_context::history::Dialect::Anthropic);
                let wire = view.to_wire().messages;
                let wrong = milepost_context::history::check(&wire, milepost_context::history::Dialect::Anthropic);
                assert!(wrong.is_empty(), "cut at {at}: {wrong:?}");
            }
            Ok(other) => panic!("cut at {at}: {other:?}"),
            Err(why) => assert!(kept == 0 && why.is_transient(), "cut at {at}: {why}"),
        }
    }
    assert!(kept > 1000, "{kept}");
}

#[tokio::test]
async fn a_call_that_was_cut_stands_beside_the_message() {
    let end = WIRE.find("ich\\\"}\"}}").unwrap();
    let server = Server::always(broken_stream(&WIRE.as_bytes()[..end])).await;
    let Outcome::Cut { answer, .. } = ask(&*model(&server, Provider::Anthropic)).await.unwrap() else { panic!() };
    assert_eq!(answer.message.tool_calls(), 0);
    assert_eq!(
        answer.message.extra["incomplete_calls"],
        json!([{"id": "toolu_1", "name": "weather", "input": "{\"city\": \"Zür"}])
    );
}

#[tokio::test]
async fn arguments_that_are_not_json_stay_a_text() {
    let wire = WIRE.replace("ich\\\"}\"", "ich\"");
    let server = Server::always(stream(&[wire.as_bytes()])).await;
    let answer = whole(ask(&*model(&server, Provider::Anthropic)).await.unwrap());
    let message = serde_json::to_value(&answer.message).unwrap();
    assert_eq!(message["content"][3]["input"], Value::String("{\"city\": \"Zürich".into()));
}

#[tokio::test]
async fn the_end_is_the_end_even_when_the_connection_stays_open() {
    let acts = vec![Act::Send([stream_head(""), chunk(WIRE.as_bytes())].concat()), Act::Hang];
    let server = Server::always(acts).await;
    check(&whole(ask(&*model(&server, Provider::Anthropic)).await.unwrap()));
}
