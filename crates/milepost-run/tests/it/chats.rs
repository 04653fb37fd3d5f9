//! Conversations with a model: what it is given, and who writes the summary when there is no room for all of it.

use milepost::context::history::Dialect;
use milepost::{NewSession, Resume, SessionPatch};
use milepost_models::Cancel;
use milepost_run::chat::{Chat, Said};
use serde_json::json;

use crate::support::{Overheard, Scene};

/// Long enough that a few of them pass the budget.
fn long(number: usize) -> String {
    format!("Message {number}: {}", "the parser drops the last byte of a frame, ".repeat(12))
}

const SUMMARY: &str = r#"{"completedItems": ["found the byte"], "pendingItems": ["mend it"], "decisions": ["keep frames"], "blockers": []}"#;

async fn talk(scene: &Scene, model: &std::sync::Arc<Overheard>) -> Chat {
    let engine = scene.engine().await;
    let chat = Chat::begin(&engine, NewSession::titled("Bytes"), model.clone(), Dialect::OpenAi).await.unwrap();
    for number in 0..30 {
        let said = chat.say(&long(number), &Cancel::new(), |_| {}).await.unwrap();
        assert!(matches!(said, Said::Whole(_)), "{said:?}");
    }
    chat
}

#[tokio::test]
async fn over_the_budget_the_model_writes_the_summary_and_nothing_is_lost() {
    let mut scene = Scene::new();
    (scene.options.budget_tokens, scene.options.reserve_tokens) = (3000, 200);
    let script = format!(
        "after_last: repeat\nreplies:\n  - {{when: completedItems, text: '{SUMMARY}'}}\n  - {{text: Noted.}}\n"
    );
    let model = Overheard::new(&script);
    let chat = talk(&scene, &model).await;
    let session = chat.session();
    let state = session.state().await.unwrap();
    let summary = state.section("summary").unwrap();
    assert!(summary.to_string().contains("found the byte"), "the model wrote it: {summary:#}");
    assert!(summary["version"].as_u64().unwrap() >= 1, "{summary:#}");
    assert!(state.pointer("/summary/tokens/totalSaved").unwrap().as_u64().unwrap() > 0);
    assert_eq!(chat.last(100).await.unwrap().len(), 60, "every message stays");
    let given = model.given();
    let asked = given.iter().filter(|request| request.messages[0].text().contains("completedItems")).count();
    assert!(asked >= 1, "{asked}");
    let last = given.last().unwrap();
    assert!(last.system.as_deref().unwrap_or_default().contains("found the byte"), "{:?}", last.system);
    session.uncompact().await.unwrap();
}

#[tokio::test]
async fn where_the_model_cannot_a_summary_is_made_without_it() {
    let mut scene = Scene::new();
    (scene.options.budget_tokens, scene.options.reserve_tokens) = (3000, 200);
    let script =
        "after_last: repeat\nreplies:\n  - {when: completedItems, text: I would rather not.}\n  - {text: Noted.}\n";
    let model = Overheard::new(script);
    let chat = talk(&scene, &model).await;
    let state = chat.session().state().await.unwrap();
    assert!(state.section("summary").is_some(), "{:#}", state.as_value());
    assert_eq!(chat.last(100).await.unwrap().len(), 60);
}

/// Who is back is greeted with where things were left: the model is told project, time, count and the last five messages.
#[tokio::test]
async fn a_greeting_knows_where_things_were_left() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let script = "after_last: repeat\nreplies:\n  - {text: Noted.}\n  - {when: is back, text: Welcome back.}\n";
    let model = Overheard::new(script);
    let patch = SessionPatch::new().title("Bytes").with("project", json!("shop"));
    let new = NewSession { patch, ..NewSession::default() };
    let chat = Chat::begin(&engine, new, model.clone(), Dialect::OpenAi).await.unwrap();
    let id = chat.session().id();
    for number in 1..=4 {
        chat.say(&format!("number {number}"), &Cancel::new(), |_| {}).await.unwrap();
    }
    chat.leave().await.unwrap();
    scene.clock.advance_ms(3 * 3_600_000);
    let (chat, left) = Chat::resume(&engine, id, Resume::latest(), model.clone(), Dialect::OpenAi).await.unwrap();
    assert_eq!((left.last.len(), left.is_unanswered, left.mended), (5, false, false));
    let said = chat.greet(&left, &Cancel::new(), |_| {}).await.unwrap();
    assert!(matches!(&said, Said::Whole(answer) if answer.message.text() == "Welcome back."), "{said:?}");
    let given = model.given();
    let prompt = given.last().unwrap().messages.last().unwrap().text().into_owned();
    for part in ["Project: shop", "3 hours ago", "Messages so far: 8", "user: number 4", "assistant: Noted."] {
        assert!(prompt.contains(part), "{part:?} is not in {prompt}");
    }
    assert!(!prompt.contains("number 1"), "the last five: {prompt}");
}
