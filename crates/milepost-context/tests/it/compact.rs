use milepost_context::compact::{
    CompactionPlan, Extractive, PrepareError, Rejected, Source, Summarizer, Summary, prepare,
};
use milepost_context::tokens::Tokenizer;
use milepost_model::{Block, Message, Role};
use proptest::prelude::*;
use serde_json::{Value, json};

fn chapter(messages: usize) -> Vec<Message> {
    (0..messages)
        .map(|i| Message::new(Role::User, format!("This is what was said as number {i}, and it went on.")))
        .collect()
}

fn plan_of(messages: &[Message], pinned: &[String]) -> CompactionPlan {
    prepare(&Source { messages, pinned, ..Source::default() }, 2, &Tokenizer::default()).unwrap()
}

const GOOD: &str = r#"{"completedItems": ["a"], "pendingItems": ["b"], "decisions": [], "blockers": []}"#;

#[test]
fn a_good_answer_is_accepted_and_counted() {
    let old = Summary { version: 3, decisions: vec!["keep".into()], ..Summary::default() };
    let messages = chapter(12);
    let source = Source { old: Some(&old), messages: &messages, ..Source::default() };
    let plan = prepare(&source, 2, &Tokenizer::default()).unwrap();
    assert!(plan.prompt.contains("number 9") && !plan.prompt.contains("number 10") && plan.prompt.contains("keep"));
    let done = plan.accept(GOOD, &Tokenizer::default()).unwrap();
    assert_eq!((done.summary.version, done.dropped.clone()), (4, 0..10));
    assert_eq!(done.tokens_saved, done.tokens_before - done.tokens_after);
    let json: Value = serde_json::from_str(&done.summary.to_json()).unwrap();
    assert_eq!(
        json,
        json!({"version": 4, "completedItems": ["a"], "pendingItems": ["b"], "decisions": [], "blockers": []})
    );
}

#[test]
fn words_and_fences_around_the_answer_do_not_matter() {
    let plan = plan_of(&chapter(12), &[]);
    for answer in [
        format!("```json\n{GOOD}\n```"),
        format!("Here {{it}} is, for {{\"you\": 1}}:\n\n{GOOD}\n\nAnything else?"),
        GOOD.replace("completedItems", "completed_items").replace("[\"b\"]", "\"b\""),
        GOOD.replace("[\"a\"]", "[{\"text\": \"a\"}, null, \" \"]"),
    ] {
        let summary = plan.accept(&answer, &Tokenizer::default()).unwrap().summary;
        assert_eq!(
            (summary.completed_items, summary.pending_items),
            (vec!["a".to_owned()], vec!["b".to_owned()]),
            "{answer}"
        );
    }
}

#[test]
fn a_bad_answer_is_refused_with_its_reason() {
    let pinned = vec!["The port is 8443.".to_owned()];
    let plan = plan_of(&chapter(12), &pinned);
    let tokenizer = Tokenizer::default();
    let refused = |answer: &str| plan.accept(answer, &tokenizer).unwrap_err();
    assert!(matches!(refused("I could not."), Rejected::Unreadable(_)));
    assert!(matches!(refused("{\"completedItems\": [\"a\""), Rejected::Unreadable(_)));
    assert!(matches!(refused("{\"other\": 1}"), Rejected::Unreadable(_)));
    assert_eq!(refused("{\"completedItems\": [], \"blockers\": null}"), Rejected::Empty);
    assert_eq!(refused(GOOD), Rejected::Forgot(pinned[0].clone()));
    assert!(matches!(refused(&"x".repeat(2_000_000)), Rejected::TooLong { .. }));
    let kept = GOOD.replace("[\"a\"]", "[\"Found: The  port is\\n8443. Good.\"]");
    assert_eq!(plan.accept(&kept, &tokenizer).unwrap().summary.pinned_facts, pinned);
    let long = kept.replace("\"b\"", &format!("\"{}\"", "word ".repeat(2000)));
    let Rejected::SavesNothing { before, after } = refused(&long) else { panic!() };
    assert!(after >= before);
    assert!(refused(GOOD).to_string().ends_with("nothing was compacted, ask again"));
}

#[test]
fn pinned_facts_outlive_every_compaction() {
    let old = Summary { pinned_facts: vec!["Old fact.".into()], ..Summary::default() };
    let messages = chapter(12);
    let pinned = ["New fact.".to_owned(), "Old fact.".to_owned()];
    let source = Source { old: Some(&old), messages: &messages, pinned: &pinned, compacting: false };
    let plan = prepare(&source, 0, &Tokenizer::default()).unwrap();
    assert_eq!(plan.pinned, ["Old fact.", "New fact."]);
    assert!(plan.prompt.contains("Old fact.") && plan.prompt.contains("New fact."));
}

#[test]
fn a_compaction_never_runs_inside_a_compaction() {
    let messages = chapter(12);
    let source = Source { messages: &messages, compacting: true, ..Source::default() };
    assert_eq!(prepare(&source, 2, &Tokenizer::default()), Err(PrepareError::Nested));
    let short = Source { messages: &messages[..3], ..Source::default() };
    assert_eq!(prepare(&short, 2, &Tokenizer::default()), Err(PrepareError::TooLittle { messages: 1 }));
}

#[test]
fn a_call_and_its_result_go_together() {
    let mut messages = chapter(4);
    messages.push(Message::blocks(
        Role::Assistant,
        vec![Block::tool_call("c", "ls", json!({})), Block::tool_call("d", "ls", json!({}))],
    ));
    messages.push(Message::blocks(Role::User, vec![Block::tool_result("c", json!("x"))]));
    messages.push(Message::blocks(Role::User, vec![Block::tool_result("d", json!("x"))]));
    messages.push(Message::new(Role::User, "end"));
    for (keep, dropped) in [(0, 8), (1, 7), (2, 4), (3, 4), (4, 4), (5, 3)] {
        let plan = prepare(&Source { messages: &messages, ..Source::default() }, keep, &Tokenizer::default()).unwrap();
        assert_eq!(plan.dropped, 0..dropped, "keep {keep}");
    }
}

fn talk() -> Vec<Message> {
    vec![
        Message::new(Role::User, "Please repair the login. Never touch the billing module."),
        Message::blocks(
            Role::Assistant,
            vec![Block::text("I will look. "), Block::tool_call("c", "edit", json!({"file_path": "src/login.rs"}))],
        ),
        Message::blocks(
            Role::User,
            vec![Block::ToolResult {
                call_id: "c".into(),
                content: json!("\npermission refused by the lock\nmore"),
                is_error: true,
                extra: serde_json::Map::new(),
            }],
        ),
        Message::new(
            Role::Assistant,
            "- Fixed the redirect in src/login.rs.\n- We still need to add a test! Nice weather.\nWe decided on argon2.\n```\ndone = true\n```",
        ),
    ]
}

#[test]
fn the_extractive_summary_takes_what_was_said() {
    let answer = Extractive::default().summarize(None, &talk(), &["Pinned.".into()]).unwrap();
    let summary: Summary = serde_json::from_str(&answer).unwrap();
    assert_eq!(summary.completed_items, ["Fixed the redirect in src/login.rs."]);
    assert_eq!(summary.pending_items, ["We still need to add a test!"]);
    assert_eq!(summary.decisions, ["Never touch the billing module.", "We decided on argon2."]);
    assert_eq!(summary.blockers, ["permission refused by the lock"]);
    assert_eq!(summary.extra["filesTouched"], json!(["src/login.rs"]));
    assert_eq!(summary.pinned_facts, ["Pinned."]);
    let summarizer: &dyn Summarizer = &Extractive::default();
    assert_eq!(summarizer.summarize(None, &talk(), &["Pinned.".into()]).unwrap(), answer);
    assert!(summarizer.summarize(None, &[], &[]).is_err());
    let plain = summarizer.summarize(None, &chapter(3), &[]).unwrap();
    assert!(plain.contains("number 2"));
}

#[test]
fn the_extractive_summary_carries_the_old_one_on() {
    let old = Summary { completed_items: vec!["Old work.".into()], ..Summary::default() };
    let answer = Extractive::default().summarize(Some(&old), &talk(), &[]).unwrap();
    let summary: Summary = serde_json::from_str(&answer).unwrap();
    assert_eq!(summary.completed_items, ["Old work.", "Fixed the redirect in src/login.rs."]);
    let again = Extractive { max_items: 1, max_chars: 10 }.summarize(Some(&summary), &talk(), &[]).unwrap();
    let summary: Summary = serde_json::from_str(&again).unwrap();
    assert_eq!(summary.completed_items, ["Fixed the"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_extractive_summary_invents_nothing(texts in prop::collection::vec("([A-Za-z]{1,8}|fixed|todo|decided|failed|must|[.!?] |\n|- | ){0,40}", 1..8)) {
        let messages: Vec<Message> = texts.iter().enumerate()
            .map(|(i, text)| Message::new(if i % 2 == 0 { Role::User } else { Role::Assistant }, text.clone())).collect();
        let Ok(answer) = Extractive::default().summarize(None, &messages, &[]) else { return Ok(()) };
        let summary: Summary = serde_json::from_str(&answer).unwrap();
        for item in summary.completed_items.iter().chain(&summary.pending_items).chain(&summary.decisions).chain(&summary.blockers) {
            prop_assert!(texts.iter().any(|text| text.contains(item.as_str())), "{item:?}");
        }
    }

    #[test]
    fn any_answer_is_accepted_or_refused(answer in any::<String>(), braces in "[{}\\[\\]\":,a-z ]{0,80}") {
        let plan = plan_of(&chapter(6), &[]);
        let _ = plan.accept(&answer, &Tokenizer::default());
        let _ = plan.accept(&format!("{{\"decisions\": {braces}}}"), &Tokenizer::default());
    }

    #[test]
    fn what_is_accepted_is_smaller(items in prop::collection::vec("[a-z ]{0,40}", 0..20)) {
        let plan = plan_of(&chapter(8), &[]);
        if let Ok(done) = plan.accept(&json!({"decisions": items}).to_string(), &Tokenizer::default()) {
            prop_assert!(done.tokens_after < done.tokens_before);
            prop_assert!(!done.summary.is_empty());
        }
    }
}
