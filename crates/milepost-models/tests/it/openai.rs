//! The Chat Completions API, as OpenAI and others answer.

use milepost_model::{Block, Content, Message, Role};
use milepost_models::{Answer, Outcome, Provider, Request, Stop, Tool, Usage};
use serde_json::json;

use crate::server::{Server, broken_stream, response, stream};
use crate::support::{KEY, ask, ask_heard, model, question};

pub const WIRE: &str = include_str!("../wire/openai.sse");

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
            {"type": "thinking", "text": "One tool."},
            {"type": "text", "text": "Ich schaue in Zürich nach 🌦."},
            {"type": "tool_call", "id": "call_a", "name": "weather", "input": {"city": "Zürich"}},
            {"type": "tool_call", "id": "call_b", "name": "clock", "input": {}},
        ])
    );
    assert_eq!((message["id"].as_str(), message["stop_reason"].as_str()), (Some("chatcmpl-1"), Some("tool_calls")));
    assert_eq!(message["system_fingerprint"], "fp_1", "fields that are not known are kept");
    let usage = Usage { input_tokens: 1300, output_tokens: 89, cache_read_tokens: 2000, cache_write_tokens: 0 };
    assert_eq!((answer.usage, answer.stop.clone()), (usage, Some(Stop::Tools)));
    let wanted = (1300.0 * 2.0 + 89.0 * 10.0 + 2000.0 * 0.2) / 1e6;
    assert!((answer.cost.as_ref().unwrap().usd - wanted).abs() < 1e-12);
}

#[tokio::test]
async fn every_split_of_the_stream_gives_the_same_answer() {
    let server = Server::start(|number| {
        let bytes = WIRE.as_bytes();
        match number {
            0 => stream(&bytes.chunks(1).collect::<Vec<_>>()),
            1 => stream(&[bytes]),
            2 => stream(&[WIRE.replace('\n', "\r").as_bytes()]),
            at => stream(&[&bytes[..at - 2], &bytes[at - 2..]]),
        }
    })
    .await;
    let model = model(&server, Provider::OpenAi);
    for _ in 0..WIRE.len() + 2 {
        check(&whole(ask(&*model).await.unwrap()));
    }
}

#[tokio::test]
async fn the_request_is_a_valid_one() {
    let server = Server::always(stream(&[WIRE.as_bytes()])).await;
    let mut request = Request::new(vec![
        Message::new(Role::User, "Go"),
        Message::blocks(Role::Assistant, vec![Block::tool_call("c1", "weather", json!({"city": "Bern"}))]),
        Message::blocks(Role::User, vec![Block::tool_result("c1", json!("rain"))]),
    ]);
    request.system = Some("Be brief.".into());
    request.tools =
        vec![Tool { name: "weather".into(), description: String::new(), input_schema: json!({"type": "object"}) }];
    ask_heard(&*model(&server, Provider::OpenAi), &request).await.0.unwrap();
    let seen = &server.seen()[0];
    assert!(seen.head.starts_with("POST /chat/completions HTTP/1.1"), "{}", seen.head);
    assert_eq!(seen.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    let body = &seen.body;
    assert_eq!((&body["max_tokens"], &body["stream_options"]), (&json!(8192), &json!({"include_usage": true})));
    assert_eq!(body["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(body["messages"][3], json!({"role": "tool", "tool_call_id": "c1", "content": "rain"}));
    assert_eq!(body["tools"][0]["function"]["name"], "weather");
}

#[tokio::test]
async fn a_stream_without_its_last_event_is_whole_when_it_says_why_it_ended() {
    let short = WIRE.replace("data: [DONE]\n\n", "");
    let unended = WIRE.trim_end().to_owned();
    let server = Server::start(move |number| stream(&[if number == 0 { &short } else { &unended }.as_bytes()])).await;
    let model = model(&server, Provider::OpenAi);
    check(&whole(ask(&*model).await.unwrap()));
    check(&whole(ask(&*model).await.unwrap()));
}

#[tokio::test]
async fn a_stream_that_ends_anywhere_keeps_what_had_arrived() {
    let server = Server::start(move |number| broken_stream(&WIRE.as_bytes()[..number + 1])).await;
    let model = model(&server, Provider::OpenAi);
    let (mut most, mut kept) = (0, 0);
    for at in 1..WIRE.len() {
        match ask(&*model).await {
            Ok(Outcome::Cut { answer, .. }) => {
                kept += 1;
                assert_eq!(answer.message.tool_calls(), 0, "cut at {at}");
                assert!(answer.message.extra.contains_key("incomplete"));
                assert!(answer.message.text().len() >= most);
                most = answer.message.text().len();
            }
            Ok(Outcome::Whole(answer)) => check_calls(&answer, at),
            Ok(other) => panic!("{other:?}"),
            Err(why) => assert!(kept == 0 && why.is_transient(), "cut at {at}: {why}"),
        }
    }
    assert!(kept > 500, "{kept}");
}

/// Only what follows the reason to end may be missing from an answer that is called whole.
fn check_calls(answer: &Answer, at: usize) {
    assert!(at > WIRE.find("\"finish_reason\":\"tool_calls\"").unwrap());
    assert_eq!(answer.message.tool_calls(), 2);
}

#[tokio::test]
async fn servers_that_number_no_calls_are_understood() {
    let wire = concat!(
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"x\",\"arguments\":\"{\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"}\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"b\",\"function\":{\"name\":\"y\",\"arguments\":{\"n\":1}}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    let server = Server::always(stream(&[wire.as_bytes()])).await;
    let answer = whole(ask(&*model(&server, Provider::OpenAi)).await.unwrap());
    let message = serde_json::to_value(&answer.message).unwrap();
    assert_eq!(
        message["content"],
        json!([{"type": "tool_call", "id": "a", "name": "x", "input": {}}, {"type": "tool_call", "id": "b", "name": "y", "input": {"n": 1}}])
    );
    assert_eq!((answer.stop, answer.cost), (Some(Stop::Tools), None), "what was not counted is not free");
}

#[tokio::test]
async fn an_answer_in_one_piece_is_read_too() {
    let body = json!({
        "id": "chatcmpl-2", "model": "gpt-6-sol", "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Rain.", "refusal": null}, "finish_reason": "stop"}],
    });
    let server = Server::always(response("200 OK", "", &body.to_string())).await;
    let (outcome, heard) = ask_heard(&*model(&server, Provider::OpenAi), &question()).await;
    let answer = whole(outcome.unwrap());
    assert_eq!(answer.message.content, Content::Text("Rain.".into()));
    assert_eq!(heard, ["text Rain."]);
}
