//! Conversations with a model: what it is given, and who writes the summary when there is no room for all of it.

use milepost::context::history::Dialect;
use milepost::model::{Body, EntryKind, Seq};
use milepost::store::backend::Range;
use milepost::{Message, NewSession, Point, Resume, Role, SessionId, SessionPatch};
use milepost_models::Cancel;
use milepost_run::chat::{Author, Chat, Said, WAKE_TRIES, compact_by};
use milepost_run::run::{Budget, End, answer};
use serde_json::json;

use crate::support::{Overheard, Scene, Telling, graph};

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

/// What is recorded as spent, and what the messages of all channels say: tokens sent and received, and dollars.
async fn counted(scene: &Scene, id: SessionId) -> ([u64; 3], [u64; 3]) {
    let engine = scene.engine().await;
    let spent = scene.section(id, "execution").await["spent"].clone();
    let number = |key: &str| spent[key].as_u64().unwrap();
    let usage = engine.analytics(id).await.unwrap().usage;
    let cents = |dollars: f64| (dollars * 100.0).round() as u64;
    let recorded = [number("input_tokens"), number("output_tokens"), cents(spent["cost_usd"].as_f64().unwrap())];
    (recorded, [usage.input_tokens, usage.output_tokens, cents(usage.cost_usd)])
}

/// A script whose summaries cost 1,000 tokens and a dollar, and whose answers 10 tokens and a cent.
fn costly(summary: &str) -> String {
    format!(
        "after_last: repeat\nreplies:\n  - {{when: completedItems, text: '{summary}', usage: {{input_tokens: 900, output_tokens: 100}}, cost_usd: 1.0}}\n  - {{text: Noted., usage: {{input_tokens: 8, output_tokens: 2}}, cost_usd: 0.01}}\n"
    )
}

/// What the model asks for a summary counts as what it asks for an answer, once, whether the summary holds or not.
#[tokio::test]
async fn what_a_summary_costs_counts() {
    for summary in [SUMMARY, "I would rather not."] {
        let mut scene = Scene::new();
        (scene.options.budget_tokens, scene.options.reserve_tokens) = (3000, 200);
        let model = Overheard::new(&costly(summary));
        let engine = scene.engine().await;
        let chat = Chat::begin(&engine, NewSession::titled("Bytes"), model.clone(), Dialect::OpenAi).await.unwrap();
        let chat = chat.budget(Some(Budget { tokens: Some(1_000_000), cost_usd: None })).await.unwrap();
        let id = chat.session().id();
        for number in 0..30 {
            chat.say(&long(number), &Cancel::new(), |_| {}).await.unwrap();
        }
        let given = model.given();
        let asked = given.iter().filter(|request| request.messages[0].text().contains("completedItems")).count() as u64;
        assert!(asked >= 1, "{asked}");
        let expected = [30 * 8 + asked * 900, 30 * 2 + asked * 100, 30 + asked * 100];
        assert_eq!(counted(&scene, id).await, (expected, expected), "{summary}");
        assert_eq!(chat.last(100).await.unwrap().len(), 60, "the conversation has no part of it");
        // Going on goes on counting; what is taken back was paid for.
        chat.leave().await.unwrap();
        let resumed = Chat::resume(&engine, id, Resume::latest(), model.clone(), Dialect::OpenAi).await;
        let (chat, _) = resumed.unwrap();
        chat.undo().await.unwrap().unwrap();
        assert_eq!(counted(&scene, id).await.0, expected);
    }
}

#[tokio::test]
async fn a_summary_that_uses_the_budget_up_pauses_the_conversation() {
    let mut scene = Scene::new();
    (scene.options.budget_tokens, scene.options.reserve_tokens) = (3000, 200);
    let model = Overheard::new(&costly(SUMMARY));
    let engine = scene.engine().await;
    let chat = Chat::begin(&engine, NewSession::titled("Bytes"), model.clone(), Dialect::OpenAi).await.unwrap();
    let chat = chat.budget(Some(Budget { tokens: Some(1000), cost_usd: None })).await.unwrap();
    let id = chat.session().id();
    let mut said = None;
    for number in 0..30 {
        match chat.say(&long(number), &Cancel::new(), |_| {}).await.unwrap() {
            Said::OverBudget(why) => {
                said = Some(why);
                break;
            }
            other => assert!(matches!(other, Said::Whole(_)), "{other:?}"),
        }
    }
    assert!(said.as_deref().is_some_and(|why| why.contains("budget of 1000 tokens is used up")), "{said:?}");
    let asked = model.given().len();
    chat.leave().await.unwrap();
    assert_eq!(scene.status(id).await, "paused");
    // Nor is it asked for another summary: one is made without it.
    let session = engine.hold(id).await.unwrap();
    let how = milepost::Compact { keep_messages: 1, ..milepost::Compact::default() };
    let (_, author) = compact_by(&session, &how, &*model, &Cancel::new()).await.unwrap();
    assert!(matches!(&author, Author::Extract(why) if why.contains("used up")), "{author:?}");
    assert_eq!(model.given().len(), asked);
}

/// Also in the session of a run, whose account it is.
#[tokio::test]
async fn what_a_summary_of_a_runs_session_costs_counts_towards_its_budget() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let model = Overheard::new(&costly(SUMMARY));
    let runner = scene.runner(&engine).model(model.clone());
    let text = "budget: {tokens: 1000}\nnodes:\n  a: {action: model, with: {prompt: hi}}\n  q: {action: ask, with: {question: 'Go on?'}, needs: a}\n  b: {action: model, with: {prompt: hi}, needs: q}\n";
    let (id, end) = runner.start(&graph(text), NewSession::default()).await.unwrap();
    assert!(matches!(end, End::Waiting { .. }), "{end:?}");
    let session = engine.hold(id).await.unwrap();
    session.append_all((0..20).map(|number| Message::new(Role::User, long(number))).collect()).await.unwrap();
    let how = milepost::Compact { keep_messages: 1, ..milepost::Compact::default() };
    let (_, author) = compact_by(&session, &how, &*model, &Cancel::new()).await.unwrap();
    assert_eq!(author, Author::Model);
    session.release().await.unwrap();
    assert_eq!(counted(&scene, id).await, ([908, 102, 101], [908, 102, 101]));
    assert_eq!(runner.forecast(id, None).await.unwrap().spent.tokens(), 1010);
    answer(&engine, id, "q", 0, "yes", "kim").await.unwrap();
    let (end, _) = runner.resume(id, Resume::latest(), None, &Default::default()).await.unwrap();
    assert!(matches!(&end, End::Paused { why, .. } if why.contains("1000 tokens is used up (1010)")), "{end:?}");
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

const LIMITED: &str = "after_last: repeat\nreplies: [{limited: {after_ms: 60000, why: too many requests}}]\n";
const AWAY: &str = "after_last: repeat\nreplies: [{error: {kind: unreachable, why: no network}}]\n";
const DENIED: &str = "after_last: repeat\nreplies: [{error: {kind: refused, why: no such model}}]\n";
const FINE: &str = "after_last: repeat\nreplies: [{text: Here I am.}]\n";

/// A conversation in which a limit stands in the way of an answer, and its wake-up that is due.
async fn limited(scene: &Scene) -> SessionId {
    let engine = scene.engine().await;
    let chat =
        Chat::begin(&engine, NewSession::titled("Late"), Overheard::new(LIMITED), Dialect::OpenAi).await.unwrap();
    let id = chat.session().id();
    assert!(matches!(chat.say("Are you there?", &Cancel::new(), |_| {}).await.unwrap(), Said::Limited(_)));
    chat.leave().await.unwrap();
    scene.clock.advance_ms(60_001);
    id
}

/// What `milepost work` does when a wake-up is due.
async fn wake(scene: &Scene, id: SessionId, script: &str, cancel: &Cancel) -> Option<Said> {
    let engine = scene.engine().await;
    assert_eq!(scene.runner(&engine).claim_due(5).await.unwrap(), [id], "its wake-up is due");
    let (chat, _) = Chat::resume(&engine, id, Resume::latest(), Overheard::new(script), Dialect::OpenAi).await.unwrap();
    let said = chat.woken(cancel, |_| {}).await.unwrap();
    chat.leave().await.unwrap();
    said
}

/// When a conversation is to be woken next, in milliseconds from now.
async fn due_in_ms(scene: &Scene, id: SessionId) -> Option<i64> {
    let engine = scene.engine().await;
    let due = scene.runner(&engine).due(id).await.unwrap();
    due.map(|due| due.since_ms(milepost::model::Clock::now(&*scene.clock)))
}

async fn reason(scene: &Scene, id: SessionId) -> String {
    let marks = scene.engine().await.store().marks(id, &Default::default()).await.unwrap();
    marks[0].checkpoint.description.clone().unwrap_or_default()
}

/// Whoever is not there is not told that the network was away: the model is asked again, later each time.
#[tokio::test]
async fn a_conversation_that_fails_when_it_is_woken_is_tried_again() {
    let scene = Scene::new();
    let id = limited(&scene).await;
    for (tries, most) in [(1, 5000), (2, 10_000), (3, 20_000)] {
        assert!(matches!(wake(&scene, id, AWAY, &Cancel::new()).await, Some(Said::Failed(_))));
        assert_eq!(scene.status(id).await, "waiting", "try {tries}");
        let told = reason(&scene, id).await;
        assert!(told.contains(&format!("after try {tries} of 8")) && told.contains("no network"), "{told}");
        let wait = due_in_ms(&scene, id).await.unwrap();
        assert!(wait >= most / 2 && wait <= most, "try {tries}: {wait}");
        scene.clock.advance_ms(wait);
    }
    assert!(matches!(wake(&scene, id, FINE, &Cancel::new()).await, Some(Said::Whole(_))));
    assert_eq!((scene.status(id).await.as_str(), due_in_ms(&scene, id).await), ("paused", None));
    let texts: Vec<String> = scene.said(id, "main").await.iter().map(|message| message.text().into_owned()).collect();
    assert_eq!(texts, ["Are you there?", "Here I am."]);
}

#[tokio::test]
async fn a_conversation_that_always_fails_is_paused_with_the_reason() {
    let scene = Scene::new();
    let id = limited(&scene).await;
    for _ in 1..WAKE_TRIES {
        wake(&scene, id, AWAY, &Cancel::new()).await;
        scene.clock.advance_ms(due_in_ms(&scene, id).await.unwrap());
    }
    wake(&scene, id, AWAY, &Cancel::new()).await;
    assert_eq!((scene.status(id).await.as_str(), due_in_ms(&scene, id).await), ("paused", None));
    let told = reason(&scene, id).await;
    assert!(told.contains("in try 8 of 8") && told.contains("no network"), "{told}");
    // What will not pass is not tried again at all.
    let id = limited(&scene).await;
    wake(&scene, id, DENIED, &Cancel::new()).await;
    assert_eq!((scene.status(id).await.as_str(), due_in_ms(&scene, id).await), ("paused", None));
    assert!(reason(&scene, id).await.contains("no such model"));
}

/// Whoever asked was told to stop: another asks, and it was no try.
#[tokio::test]
async fn a_worker_that_is_stopped_while_it_asks_leaves_the_wake_up() {
    let scene = Scene::new();
    let id = limited(&scene).await;
    let cancel = Cancel::new();
    cancel.cancel();
    wake(&scene, id, FINE, &cancel).await;
    assert_eq!((scene.status(id).await.as_str(), due_in_ms(&scene, id).await), ("waiting", Some(0)));
    assert!(matches!(wake(&scene, id, FINE, &Cancel::new()).await, Some(Said::Whole(_))));
}

/// A person who looks in, says nothing and leaves again takes no answer away.
#[tokio::test]
async fn whoever_looks_into_a_conversation_that_waits_leaves_it_waiting() {
    let scene = Scene::new();
    let id = limited(&scene).await;
    let engine = scene.engine().await;
    let before = due_in_ms(&scene, id).await;
    let (chat, left) =
        Chat::resume(&engine, id, Resume::latest(), Overheard::new(FINE), Dialect::OpenAi).await.unwrap();
    assert!(left.is_unanswered);
    chat.leave().await.unwrap();
    assert_eq!((scene.status(id).await.as_str(), due_in_ms(&scene, id).await), ("waiting", before));
    assert!(matches!(wake(&scene, id, FINE, &Cancel::new()).await, Some(Said::Whole(_))));
}

/// Killed between the answer and the note that it is there.
#[tokio::test]
async fn a_conversation_that_has_its_answer_is_not_asked_again() {
    let scene = Scene::new();
    let id = limited(&scene).await;
    wake(&scene, id, FINE, &Cancel::new()).await;
    let engine = scene.engine().await;
    milepost_run::run::wake(&engine, id).await.unwrap();
    assert_eq!(wake(&scene, id, FINE, &Cancel::new()).await, None);
    assert_eq!((scene.said(id, "main").await.len(), due_in_ms(&scene, id).await), (2, None));
}

/// What cannot even be begun, for want of a key or a whole state, is not tried for ever.
#[tokio::test]
async fn a_session_that_cannot_be_gone_on_with_is_tried_later_each_time_and_then_pauses() {
    let scene = Scene::new();
    let id = limited(&scene).await;
    let engine = scene.engine().await;
    let runner = scene.runner(&engine);
    let mut waits = Vec::new();
    for _ in 1..WAKE_TRIES {
        assert_eq!(runner.claim_due(5).await.unwrap(), [id]);
        assert!(runner.woken_in_vain(id, "there is no key").await.unwrap().is_some());
        let wait = due_in_ms(&scene, id).await.unwrap();
        waits.push(wait);
        scene.clock.advance_ms(wait + 1);
    }
    assert!(waits[0] >= 2500 && waits[6] > 100_000, "{waits:?}");
    assert_eq!(runner.claim_due(5).await.unwrap(), [id]);
    assert_eq!(runner.woken_in_vain(id, "there is no key").await.unwrap(), None);
    assert_eq!(runner.wakeups(10).await.unwrap(), []);
    assert_eq!(scene.status(id).await, "paused");
    let why = reason(&scene, id).await;
    assert!(why.contains("8 tries: there is no key"), "{why}");
}

const PRICED: &str =
    "after_last: repeat\nreplies: [{text: Noted., usage: {input_tokens: 40, output_tokens: 10}, cost_usd: 0.5}]\n";

#[tokio::test]
async fn a_budget_that_is_used_up_pauses_a_conversation_until_it_is_raised() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let model = Overheard::new(PRICED);
    let chat = Chat::begin(&engine, NewSession::titled("Dear"), model.clone(), Dialect::OpenAi).await.unwrap();
    let id = chat.session().id();
    let chat = chat.budget(Some(Budget { tokens: Some(100), cost_usd: None })).await.unwrap();
    for text in ["one", "two"] {
        assert!(matches!(chat.say(text, &Cancel::new(), |_| {}).await.unwrap(), Said::Whole(_)));
    }
    let said = chat.say("three", &Cancel::new(), |_| {}).await.unwrap();
    assert!(
        matches!(&said, Said::OverBudget(why) if why.contains("budget of 100 tokens is used up (100)")),
        "{said:?}"
    );
    chat.leave().await.unwrap();
    assert_eq!(scene.status(id).await, "paused");
    assert!(reason(&scene, id).await.contains("budget of 100 tokens"));
    assert_eq!(model.given().len(), 2, "it was not asked");
    // It is kept: whoever goes on is held to it, and may raise it.
    let (chat, left) = Chat::resume(&engine, id, Resume::latest(), model.clone(), Dialect::OpenAi).await.unwrap();
    assert!(left.is_unanswered, "what was said is kept");
    assert!(matches!(chat.again(&Cancel::new(), |_| {}).await.unwrap(), Some(Said::OverBudget(_))));
    let chat = chat.budget(Some(Budget { tokens: Some(1000), cost_usd: None })).await.unwrap();
    assert!(matches!(chat.again(&Cancel::new(), |_| {}).await.unwrap(), Some(Said::Whole(_))));
    assert_eq!(chat.session().state().await.unwrap().pointer("/execution/spent/input_tokens"), Some(&json!(120)));
}

/// A budget that comes later counts what was said before it.
#[tokio::test]
async fn a_budget_counts_what_a_conversation_cost_before_it() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let model = Overheard::new(PRICED);
    let chat = Chat::begin(&engine, NewSession::default(), model.clone(), Dialect::OpenAi).await.unwrap();
    let id = chat.session().id();
    chat.say("one", &Cancel::new(), |_| {}).await.unwrap();
    chat.leave().await.unwrap();
    let (chat, _) = Chat::resume(&engine, id, Resume::latest(), model.clone(), Dialect::OpenAi).await.unwrap();
    let chat = chat.budget(Some(Budget { tokens: None, cost_usd: Some(0.5) })).await.unwrap();
    assert!(matches!(chat.say("two", &Cancel::new(), |_| {}).await.unwrap(), Said::OverBudget(_)));
}

/// A kill between an answer and the note of what it cost would count too little: they are one append.
#[tokio::test]
async fn an_answer_and_what_it_cost_are_stored_together() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let model = Overheard::new(PRICED);
    let chat = Chat::begin(&engine, NewSession::default(), model, Dialect::OpenAi).await.unwrap();
    let chat = chat.budget(Some(Budget { tokens: Some(1000), cost_usd: None })).await.unwrap();
    chat.say("one", &Cancel::new(), |_| {}).await.unwrap();
    let head = chat.session().info().await.head;
    let range = Range::all(head, Seq(0), Seq(u64::MAX));
    let stored = engine.store().backend().read(engine.store().workspace(), range).await.unwrap();
    let entries = engine.store().entries(chat.session().id(), Seq(0), Seq(u64::MAX)).await.unwrap();
    let is_answer = |body: &Option<Body>| matches!(body, Some(Body::Message(said)) if said.role == Role::Assistant);
    let answer = entries.iter().position(|entry| is_answer(&entry.body)).unwrap();
    assert!(stored[answer].1.batch.is_some(), "an append begins with the answer");
    assert_eq!(entries[answer + 1].kind, EntryKind::State);
    assert!(stored[answer + 1].1.batch.is_none(), "what it cost goes along");
}

/// What a version before left when it was killed in between, or what a program wrote by itself: the log counts.
#[tokio::test]
async fn an_answer_whose_cost_was_not_noted_counts() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let model = Overheard::new(PRICED);
    let chat = Chat::begin(&engine, NewSession::default(), model.clone(), Dialect::OpenAi).await.unwrap();
    let chat = chat.budget(Some(Budget { tokens: Some(60), cost_usd: None })).await.unwrap();
    let id = chat.session().id();
    let mut answer = Message::new(Role::Assistant, "Noted.");
    answer.extra.insert("usage".to_owned(), json!({"input_tokens": 40, "output_tokens": 20}));
    chat.session().append(answer).await.unwrap();
    chat.leave().await.unwrap();
    let (chat, _) = Chat::resume(&engine, id, Resume::latest(), model.clone(), Dialect::OpenAi).await.unwrap();
    let said = chat.say("two", &Cancel::new(), |_| {}).await.unwrap();
    assert!(matches!(&said, Said::OverBudget(why) if why.contains("(60)")), "{said:?}");
    assert_eq!(model.given().len(), 0);
}

/// Going back takes the state back, and with it what it says was spent; what was spent stays spent. A branch begins with nothing.
#[tokio::test]
async fn a_conversation_that_was_set_back_counts_what_it_left_behind() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let model = Overheard::new(PRICED);
    let chat = Chat::begin(&engine, NewSession::titled("Dear"), model.clone(), Dialect::OpenAi).await.unwrap();
    let chat = chat.budget(Some(Budget { tokens: Some(100), cost_usd: None })).await.unwrap();
    let id = chat.session().id();
    chat.say("one", &Cancel::new(), |_| {}).await.unwrap();
    let back = chat.session().checkpoint_labelled("one").await.unwrap();
    chat.say("two", &Cancel::new(), |_| {}).await.unwrap();
    chat.leave().await.unwrap();
    let how = Resume { point: Point::Checkpoint(back), ..Resume::latest() };
    let (chat, _) = Chat::resume(&engine, id, how, model.clone(), Dialect::OpenAi).await.unwrap();
    assert_eq!(counted(&scene, id).await, ([80, 20, 100], [80, 20, 100]));
    let said = chat.say("two", &Cancel::new(), |_| {}).await.unwrap();
    assert!(matches!(&said, Said::OverBudget(why) if why.contains("(100)")), "{said:?}");
    let branch = chat.branch(None).await.unwrap();
    assert_eq!(branch.may_cost().tokens, Some(100), "the budget is the same");
    assert!(matches!(branch.say("three", &Cancel::new(), |_| {}).await.unwrap(), Said::Whole(_)));
    let branch_id = branch.session().id();
    assert_eq!(branch.spent().tokens(), 50);
    branch.leave().await.unwrap();
    assert_eq!(counted(&scene, branch_id).await, ([40, 10, 50], [40, 10, 50]));
    assert_eq!(engine.analytics(id).await.unwrap().usage.tokens(), 100);
}

/// What lies beside a conversation is no message of it: neither a summary nor what came of an answer that was cut.
#[tokio::test]
async fn the_last_message_of_a_session_is_the_last_of_its_conversation() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let model = Overheard::new(&costly(SUMMARY));
    let chat = Chat::begin(&engine, NewSession::titled("Bytes"), model.clone(), Dialect::OpenAi).await.unwrap();
    let id = chat.session().id();
    for number in 0..12 {
        chat.say(&long(number), &Cancel::new(), |_| {}).await.unwrap();
    }
    let how = milepost::Compact { keep_messages: 1, ..milepost::Compact::default() };
    assert_eq!(compact_by(chat.session(), &how, &*model, &Cancel::new()).await.unwrap().1, Author::Model);
    chat.leave().await.unwrap();
    let last = engine.summary(id).await.unwrap().last_message.unwrap();
    assert_eq!((last.text().as_ref(), last.channel.as_str()), ("Noted.", "main"));
    let silent = Chat::begin(&engine, NewSession::default(), Telling::cut(""), Dialect::OpenAi).await.unwrap();
    silent.say("Hello?", &Cancel::new(), |_| {}).await.unwrap();
    let last = engine.summary(silent.session().id()).await.unwrap().last_message.unwrap();
    assert_eq!(last.text(), "Hello?");
}

/// A model that says that its limit is used up is not asked before.
#[tokio::test]
async fn a_model_that_used_up_its_limit_is_asked_when_it_is_ready() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let now = milepost::model::Clock::now(&*scene.clock);
    let model = Telling::ready_at(now.plus_ms(60_000));
    let chat = Chat::begin(&engine, NewSession::default(), model.clone(), Dialect::OpenAi).await.unwrap();
    assert!(matches!(chat.say("one", &Cancel::new(), |_| {}).await.unwrap(), Said::Whole(_)));
    let said = chat.say("two", &Cancel::new(), |_| {}).await.unwrap();
    assert!(matches!(&said, Said::Limited(limited) if limited.until == now.plus_ms(60_000)), "{said:?}");
    assert_eq!((model.asked(), due_in_ms(&scene, chat.session().id()).await), (1, Some(60_000)));
    scene.clock.advance_ms(60_000);
    assert!(matches!(chat.again(&Cancel::new(), |_| {}).await.unwrap(), Some(Said::Whole(_))));
}

/// What a model said that an answer costs counts, though nothing of the answer came.
#[tokio::test]
async fn an_answer_that_was_cut_before_its_first_word_counts() {
    let scene = Scene::new();
    let engine = scene.engine().await;
    let chat = Chat::begin(&engine, NewSession::default(), Telling::cut(""), Dialect::OpenAi).await.unwrap();
    let chat = chat.budget(Some(Budget { tokens: Some(10), cost_usd: None })).await.unwrap();
    let said = chat.say("one", &Cancel::new(), |_| {}).await.unwrap();
    assert!(matches!(said, Said::Failed(_)), "{said:?}");
    assert!(matches!(chat.again(&Cancel::new(), |_| {}).await.unwrap(), Some(Said::OverBudget(_))));
    assert_eq!(chat.last(5).await.unwrap().len(), 1, "the conversation has nothing of it");
}
