//! The scripted model: the same conversation always gets the same reply.

use std::sync::Arc;

use milepost_model::{Block, ManualClock, Message, Role, Source};
use milepost_models::{Cancel, Error, Model, Outcome, Piece, Request, Scripted, Stop, Timer};
use serde_json::json;

use crate::support::{NOW, ask_heard};

const SCRIPT: &str = r#"
name: researcher
replies:
  - when: papers
    thinking: Look first.
    calls: [{name: search, input: {query: logs}}]
    usage: {input_tokens: 10, output_tokens: 4}
    cost_usd: 0.02
  - when: papers
    limited: {after_ms: 5000, why: too many requests}
  - when: papers
    error: {kind: unavailable, why: no network}
    times: 2
  - when: papers
    pieces: ['Three ', 'papers.']
    delay_ms: 20
  - when: story
    text: Once upon
    cut: the line went dead
"#;

fn model(timer: Timer) -> Scripted {
    let source = Source::seeded(1, Arc::new(ManualClock::new(NOW)));
    Scripted::parse("script.yaml".as_ref(), SCRIPT, timer).unwrap().with_source(source)
}

fn first() -> Request {
    Request::new(vec![Message::new(Role::User, "Find papers")])
}

/// After the tool was called.
fn second(model: &Scripted, answer: Message) -> Request {
    let _ = model;
    let mut request = first();
    request.messages.push(answer);
    request.messages.push(Message::blocks(Role::User, vec![Block::tool_result("call_1_1", json!("three"))]));
    request
}

async fn whole(model: &Scripted, request: &Request) -> milepost_models::Answer {
    match ask_heard(model, request).await.0.unwrap() {
        Outcome::Whole(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn replies_follow_the_conversation_and_failures_come_first() {
    let model = model(Timer::none());
    let one = whole(&model, &first()).await;
    assert_eq!(one.stop, Some(Stop::Tools));
    assert_eq!((one.usage.output_tokens, one.cost.as_ref().unwrap().usd), (4, 0.02));
    assert_eq!(
        serde_json::to_value(&one.message).unwrap()["content"][1],
        json!({"type": "tool_call", "id": "call_1_1", "name": "search", "input": {"query": "logs"}})
    );
    let request = second(&model, one.message.clone());
    let limited = ask_heard(&model, &request).await.0.unwrap();
    assert!(
        matches!(&limited, Outcome::Limited(l) if l.until == NOW.plus_ms(5000) && l.why == "too many requests"),
        "{limited:?}"
    );
    for _ in 0..2 {
        assert!(matches!(ask_heard(&model, &request).await.0, Err(Error::Unavailable { .. })));
    }
    let (outcome, heard) = ask_heard(&model, &request).await;
    assert!(matches!(outcome.unwrap(), Outcome::Whole(answer) if answer.message.text() == "Three papers."));
    assert_eq!(heard, ["text Three ", "text papers."]);
    // Another process that resumes gets the same reply to the same conversation.
    let again = self::model(Timer::none());
    assert_eq!(whole(&again, &first()).await, one);
}

#[tokio::test]
async fn an_answer_may_be_cut_and_says_so() {
    let model = model(Timer::none());
    let request = Request::new(vec![Message::new(Role::User, "Tell a story")]);
    let Outcome::Cut { answer, why } = ask_heard(&model, &request).await.0.unwrap() else { panic!() };
    assert_eq!((answer.message.text().as_ref(), answer.stop), ("Once upon", None));
    assert!(answer.message.extra["incomplete"].as_str().unwrap().contains("the line went dead"));
    assert!(why.is_transient());
}

#[tokio::test]
async fn waiting_moves_the_clock_it_was_given() {
    let clock = Arc::new(ManualClock::new(NOW));
    let script = "replies:\n  - {pieces: [a, b, c], delay_ms: 1000}\n";
    let model = Scripted::parse("s".as_ref(), script, Timer::moving(clock.clone())).unwrap();
    whole(&model, &first()).await;
    assert_eq!(Source::seeded(1, clock).now(), NOW.plus_ms(3000));
}

#[tokio::test]
async fn cancelling_keeps_what_was_said() {
    let script = "replies:\n  - {pieces: [one, two, three]}\n";
    let model = Scripted::parse("s".as_ref(), script, Timer::none()).unwrap();
    let cancel = Cancel::new();
    let mut listen = |piece: Piece<'_>| {
        if piece == Piece::Text("two") {
            cancel.cancel();
        }
    };
    let Outcome::Cut { answer, why } = model.ask(&first(), &cancel, &mut listen).await.unwrap() else { panic!() };
    assert_eq!(answer.message.text(), "onetwo");
    assert!(matches!(why, Error::Cancelled { .. }));
}

#[tokio::test]
async fn the_end_of_the_script_is_told_or_repeated() {
    let one = "replies:\n  - text: only\n";
    let mut request = first();
    request.messages.push(Message::new(Role::Assistant, "only"));
    let model = Scripted::parse("s.yaml".as_ref(), one, Timer::none()).unwrap();
    let told = ask_heard(&model, &request).await.0.unwrap_err().to_string();
    assert_eq!(told, "s.yaml: the script has no reply number 2 to \"Find papers\"; add one, or set after_last: repeat");
    let text = format!("after_last: repeat\n{one}");
    let model = Scripted::parse("s.yaml".as_ref(), &text, Timer::none()).unwrap();
    assert_eq!(whole(&model, &request).await.message.text(), "only");
}

#[test]
fn mistakes_are_told_with_their_place() {
    let told = |text: &str| Scripted::parse("s.yaml".as_ref(), text, Timer::none()).unwrap_err().to_string();
    assert_eq!(told("replies:\n  - txt: hi\n"), "s.yaml:2:5: reply: there is no key \"txt\"; did you mean text?");
    assert_eq!(
        told("replies:\n  - text: hi\n    delay_ms: soon\n"),
        "s.yaml:3:15: delay_ms: \"soon\" does not fit; write a whole number from 0 to 3600000"
    );
    assert_eq!(
        told("replies:\n  - when: x\n"),
        "s.yaml:2:5: reply: it says nothing; write text, pieces, calls, limited or error"
    );
    assert_eq!(told("replis: 1\n"), "s.yaml:1:1: there is no key \"replis\"; did you mean replies?");
    assert_eq!(
        told("replies:\n  - calls: [{input: 1}]\n"),
        "s.yaml:2:13: call: it has no name; write name: and the tool's name"
    );
    assert!(told("[").starts_with("s.yaml:"));
    assert!(told(&"x".repeat(2 << 20)).contains("MAX_SCRIPT_BYTES"));
}

#[test]
fn a_script_may_be_toml_or_json() {
    let toml = "[[replies]]\ntext = \"hi\"\n";
    assert!(Scripted::parse("s.toml".as_ref(), toml, Timer::none()).is_ok());
    assert!(Scripted::parse("s.json".as_ref(), "{\"replies\": [{\"text\": \"hi\"}]}", Timer::none()).is_ok());
    let missing = Scripted::read("/nowhere/s.yaml".as_ref(), Timer::none()).unwrap_err().to_string();
    assert!(missing.starts_with("/nowhere/s.yaml: the script cannot be read"), "{missing}");
}
