//! Compaction that can be undone, requests within their budget, histories that are always valid.

use milepost::context::compact::{Extractive, Summarizer, SummarizerError, Summary};
use milepost::context::history::{Dialect, RepairKind, check};
use milepost::store::Claim;
use milepost::transfer::ImportOptions;
use milepost::transfer::export::{FileOptions, Layout, Present, chat_files, tree};
use milepost::transfer::older::import_path;
use milepost::{
    Block, Compact, Message, MessageQuery, Milepost, NewMark, NewSession, Role, Session, SessionPatch, Trigger,
};
use serde_json::json;

use crate::support::{Scratch, assistant, user};

/// A summarizer that answers what it is told to.
struct Says(&'static str);

impl Summarizer for Says {
    fn summarize(&self, _: Option<&Summary>, _: &[Message], _: &[String]) -> Result<String, SummarizerError> {
        Ok(self.0.to_owned())
    }
}

async fn talk(milepost: &Milepost, count: usize) -> Session {
    let patch = SessionPatch::new().agent("dev");
    let session = milepost.create(NewSession { patch, ..NewSession::default() }).await.unwrap();
    for number in 0..count {
        session
            .append(user(&format!("Please mend fault {number} of the parser, and tell me how it went.")))
            .await
            .unwrap();
        let text =
            format!("I fixed fault {number}. It took a while, as these things do, and nothing about it was special.");
        session.append(assistant(&text)).await.unwrap();
    }
    session
}

const ANSWER: &str =
    r#"{"completedItems": ["mended the parser"], "pendingItems": [], "decisions": ["tabs"], "blockers": []}"#;

#[tokio::test]
async fn a_summary_stands_for_old_messages_which_stay_and_can_be_brought_back() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = talk(&milepost, 20).await;
    let how = Compact { keep_messages: 4, ..Compact::default() };
    let first = session.compact(&how, &Says(ANSWER)).await.unwrap();
    assert_eq!((first.summary.version, first.messages), (1, 36));
    let request = milepost.build_request(session.id(), "And now?").await.unwrap();
    assert!(request.system_prompt.contains("mended the parser") && request.system_prompt.contains("fault 19"));
    assert!(!request.system_prompt.contains("fault 3 "), "what was summarised is not sent");
    let all = milepost.store().messages(session.id(), &MessageQuery::default()).await.unwrap();
    assert_eq!(all.len(), 40, "every message stays");
    let dropped = milepost.dropped(session.id()).await.unwrap();
    assert_eq!(dropped.iter().map(|part| (part.version, part.messages.len())).collect::<Vec<_>>(), [(1, 36)]);
    for number in 0..6 {
        session
            .append(user(&format!("More about fault {number}, in some detail, so that it is worth it.")))
            .await
            .unwrap();
    }
    let second = session.compact(&how, &Extractive::default()).await.unwrap();
    assert_eq!(second.summary.version, 2);
    assert!(second.summary.completed_items.iter().any(|item| item.contains("mended the parser")), "{second:?}");
    let dropped = milepost.dropped(session.id()).await.unwrap();
    let parts: Vec<_> = dropped.iter().map(|part| (part.version, part.messages.len())).collect();
    assert_eq!(parts, [(1, 36), (2, 6)], "what every compaction dropped is known");
    let state = session.state().await.unwrap();
    assert!(state.pointer("/summary/tokens/totalSaved").unwrap().as_u64().unwrap() > 0);
    assert_eq!(session.uncompact().await.unwrap(), 1);
    assert_eq!(session.uncompact().await.unwrap(), 0);
    assert!(session.uncompact().await.is_err());
    assert_eq!(session.state().await.unwrap().section("summary"), None);
    assert!(milepost.dropped(session.id()).await.unwrap().is_empty());
    let request = milepost.build_request(session.id(), "And now?").await.unwrap();
    assert!(request.system_prompt.contains("fault 3 "));
}

/// Where entries have other numbers, the conversation begins at the same message all the same.
#[tokio::test]
async fn a_session_that_came_from_files_goes_on_from_its_summary() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let patch = SessionPatch::new().agent("dev").feature("F").task("T");
    let session = milepost.create(NewSession { patch, ..NewSession::default() }).await.unwrap();
    for number in 0..12 {
        session.patch(SessionPatch::new().title(format!("title {number}"))).await.unwrap();
        session.append(user(&format!("Please mend fault {number} of the parser, and tell me how."))).await.unwrap();
        scratch.clock.advance_ms(1000);
    }
    let how = Compact { keep_messages: 6, ..Compact::default() };
    for _ in 0..2 {
        session.compact(&how, &Says(ANSWER)).await.unwrap();
        for number in 0..3 {
            scratch.clock.advance_ms(1000);
            session.append(user(&format!("And one more fault {number}, which is as long."))).await.unwrap();
        }
    }
    session.checkpoint(NewMark::new(Trigger::Manual)).await.unwrap();
    let parts = async |milepost: &Milepost, id| {
        let dropped = milepost.dropped(id).await.unwrap();
        let counts: Vec<_> = dropped.iter().map(|part| (part.version, part.messages.len())).collect();
        let parts = milepost.request_parts(id, "go on").await.unwrap();
        (counts, parts.messages.iter().map(|message| message.text().into_owned()).collect::<Vec<_>>())
    };
    let here = parts(&milepost, session.id()).await;
    assert_eq!((&here.0[..], here.1.len()), (&[(1, 6), (2, 3)][..], 9));
    let layouts = [Some(Layout::Hosted), Some(Layout::Task), Some(Layout::Feature), Some(Layout::Graph), None];
    for layout in layouts {
        let (dir, other) = (tempfile::tempdir().unwrap(), Scratch::new());
        match layout {
            Some(layout) => {
                tree(milepost.store(), session.id(), layout, dir.path(), &FileOptions::default()).await.unwrap();
            }
            None => drop(chat_files(milepost.store(), session.id(), dir.path(), Present::Refuse).await.unwrap()),
        }
        other.clock.advance_ms(60_000);
        let there = other.open().await;
        let claim = Claim::new("a test");
        let came = import_path(there.store(), dir.path(), &ImportOptions::default(), &claim).await.unwrap();
        assert_eq!(parts(&there, came[0].session).await, here, "{layout:?}");
    }
}

#[tokio::test]
async fn a_bad_summary_changes_nothing() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = talk(&milepost, 10).await;
    let before = session.info().await;
    let how = Compact { pinned: vec!["the key is blue".into()], ..Compact::default() };
    for answer in ["", "nonsense", "{}", r#"{"completedItems": []}"#, ANSWER] {
        let error = session.compact(&how, &Says(Box::leak(answer.to_owned().into_boxed_str()))).await.unwrap_err();
        assert!(error.to_string().contains("stays as it is"), "{answer}: {error}");
    }
    assert_eq!(session.info().await.active, before.active);
    assert_eq!(session.state().await.unwrap().section("summary"), None);
}

#[tokio::test]
async fn a_plan_that_came_too_late_is_refused() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = talk(&milepost, 20).await;
    let how = Compact::default();
    let planned = milepost.plan_compaction(session.id(), &how).await.unwrap();
    assert!(planned.prompt().contains("completedItems") && planned.going().len() == 30);
    session.compact(&how, &Says(ANSWER)).await.unwrap();
    let late = session.commit_compaction(&planned, ANSWER).await.unwrap_err().to_string();
    assert!(late.contains("meantime"), "{late}");
}

#[tokio::test]
async fn a_rewind_brings_back_the_summary_of_its_moment() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = talk(&milepost, 20).await;
    let mark = session.checkpoint_labelled("before").await.unwrap();
    session.compact(&Compact::default(), &Says(ANSWER)).await.unwrap();
    session.restore(&milepost::Point::Checkpoint(mark)).await.unwrap();
    let request = milepost.build_request(session.id(), "And now?").await.unwrap();
    assert!(!request.system_prompt.contains("mended the parser"));
}

#[tokio::test]
async fn requests_keep_to_the_budget_and_ask_to_be_compacted() {
    let mut scratch = Scratch::new();
    (scratch.options.budget_tokens, scratch.options.last_messages) = (2000, 120);
    let milepost = scratch.open().await;
    let session = talk(&milepost, 60).await;
    let request = milepost.build_request(session.id(), "And now?").await.unwrap();
    assert!(request.total_tokens <= 2000 && !request.left_out.is_empty(), "{request:?}");
    let how = Compact { keep_messages: 4, ..Compact::default() };
    assert!(session.compact_if_needed(&how, &Says(ANSWER)).await.unwrap().is_some());
    assert!(session.compact_if_needed(&how, &Says(ANSWER)).await.unwrap().is_none(), "it fits now");
    let refused = milepost.build_request(session.id(), &"word ".repeat(5000)).await.unwrap_err().to_string();
    assert!(refused.contains("budget"), "{refused}");
}

#[tokio::test]
async fn an_interrupted_tool_call_is_mended_for_the_model_and_reported_by_the_doctor() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.append(user("List the files.")).await.unwrap();
    let call = Block::tool_call("c1", "ls", json!({ "path": "." }));
    session.append(Message::blocks(Role::Assistant, vec![call])).await.unwrap();
    for rules in [Dialect::Anthropic, Dialect::OpenAi] {
        let request = milepost.build_messages(session.id(), "Go on.", rules).await.unwrap();
        assert_eq!(check(&request.view.to_wire().messages, rules), []);
        let diagnosis = milepost.doctor(session.id(), rules).await.unwrap();
        assert!(!diagnosis.is_well() && diagnosis.problems.is_empty());
        assert!(diagnosis.ailments.iter().any(|ailment| ailment.kind == RepairKind::MissingResult), "{diagnosis:?}");
    }
    let stored = milepost.store().messages(session.id(), &MessageQuery::default()).await.unwrap();
    assert_eq!(stored.len(), 2, "the record is not changed");
}

#[tokio::test]
async fn another_agent_reads_a_summary_only_when_it_may() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = talk(&milepost, 20).await;
    session.compact(&Compact::default(), &Says(ANSWER)).await.unwrap();
    let summary = milepost.read_summary(session.id(), "qa").await.unwrap().unwrap();
    assert_eq!(summary.decisions, ["tabs"]);
    let refused = milepost.read_summary(session.id(), "harness").await.unwrap_err().to_string();
    assert!(refused.contains("summaries.readers"), "{refused}");
}

#[tokio::test]
async fn tokens_are_counted_as_the_model_counts_them() {
    let lookup = |name: &str| (name == "HOME").then(|| "/".to_owned());
    let settings = |model: &str| {
        let loader = milepost::config::Loader::new("/", lookup).without_file();
        if model.is_empty() { loader.load() } else { loader.set("model", model).load() }.unwrap()
    };
    let mut sizes = Vec::new();
    for model in ["", "openai/gpt-4o", "anthropic/claude-sonnet-5"] {
        let mut scratch = Scratch::new();
        scratch.options.model = milepost::EngineOptions::from_settings(&settings(model), &lookup).unwrap().model;
        (scratch.options.budget_tokens, scratch.options.last_messages) = (1500, 120);
        let milepost = scratch.open().await;
        let session = talk(&milepost, 60).await;
        let request = milepost.build_request(session.id(), "And now?").await.unwrap();
        let prompts = format!("{}{}", request.system_prompt, request.user_prompt);
        assert!(milepost.tokenizer().count_text(&prompts) <= 1500, "{model}");
        sizes.push(milepost.estimate_request_size(session.id()).await.unwrap());
    }
    assert_eq!(sizes[0], sizes[1], "without a model, as OpenAI's current ones count");
    assert!(sizes[2] * 100 > sizes[0] * 125, "Claude counts about a third more: {sizes:?}");
}

/// Whoever reads a conversation takes what there was at one moment, however much is added meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_made_while_others_go_on_writing() {
    let scratch = Scratch::new();
    for url in ["memory:", &scratch.url()] {
        let milepost = Milepost::open_with(url, scratch.options.clone()).await.unwrap();
        let session = talk(&milepost, 200).await;
        let id = session.id();
        let chapter = session.compact(&Compact::default(), &Says(ANSWER)).await.unwrap();
        let (stop, is_over) = tokio::sync::oneshot::channel::<()>();
        let writing = tokio::spawn(async move {
            let mut is_over = is_over;
            while matches!(is_over.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty)) {
                session.append(user("and another thing")).await.unwrap();
            }
        });
        let first =
            milepost.store().messages(id, &MessageQuery::default()).await.unwrap()[chapter.before as usize].clone();
        let reader = milepost.clone();
        // A task of its own: one that never comes to an end may never wait either.
        let reading = tokio::spawn(async move {
            for _ in 0..20 {
                let planned = reader.plan_compaction(id, &Compact::default()).await.unwrap();
                assert_eq!(planned.going().first(), Some(&first.message));
                reader.build_request(id, "go on").await.unwrap();
            }
        });
        let outcome = tokio::time::timeout(std::time::Duration::from_secs(30), reading).await;
        stop.send(()).unwrap();
        writing.await.unwrap();
        outcome.expect("it never comes to an end").unwrap();
    }
}
