//! Finding messages by their words, and reading the tables with plain SQL.

use milepost_model::{Block, Message, Role};
use milepost_store::backend::{Term, TextHit, TextQuery};
use milepost_store::{Append, DeleteMode, NewSession, Store};
use serde_json::json;

use crate::support::{Scratch, claim, create, step, user};

fn word(text: &str) -> Term {
    Term { text: text.into(), prefix: false }
}

async fn find(store: &Store, terms: Vec<Term>) -> Vec<TextHit> {
    let query = TextQuery { terms, sessions: Vec::new(), limit: 1000, ..TextQuery::default() };
    store.backend().search(store.workspace(), query).await.unwrap().expect("sqlite has a text index")
}

async fn count(store: &Store, text: &str) -> usize {
    find(store, vec![word(text)]).await.len()
}

#[tokio::test]
async fn words_phrases_and_prefixes_are_found_right_after_the_append() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for text in ["The linker is slow today", "Slow food for the linker", "Crème brûlée", "Москва слезам не верит"]
    {
        writer.append(Append::new().message(user(text))).await.unwrap();
    }
    assert_eq!(count(&store, "linker").await, 2);
    assert_eq!(count(&store, "LINKER").await, 2);
    assert_eq!(count(&store, "linker is slow").await, 1, "a phrase");
    assert_eq!(count(&store, "slow linker").await, 0, "words in another order are no phrase");
    assert_eq!(find(&store, vec![word("slow"), word("linker")]).await.len(), 2, "all words, in any order");
    assert_eq!(count(&store, "link").await, 0);
    assert_eq!(find(&store, vec![Term { text: "link".into(), prefix: true }]).await.len(), 2);
    assert_eq!(count(&store, "creme brulee").await, 1, "diacritics");
    assert_eq!(count(&store, "слезам").await, 1);
    assert_eq!(find(&store, Vec::new()).await, Vec::new());
}

#[tokio::test]
async fn a_query_is_only_words() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(Append::new().message(user("alpha beta NEAR gamma"))).await.unwrap();
    for text in [
        "alpha OR nothing",
        "alpha AND",
        "\"",
        "alpha\"",
        "alpha*",
        "(alpha",
        "text:alpha",
        "^alpha",
        "-",
        "a\0b",
        "'; --",
    ] {
        // No error, and no operator has a meaning.
        let hits = count(&store, text).await;
        assert!(hits <= 1, "{text:?} found {hits}");
    }
    // What has no word in it narrows nothing and breaks nothing.
    for nothing in ["", " ", "!!!", "\"\"", "🦀"] {
        let terms = vec![word(nothing), Term { text: "gam".into(), prefix: true }];
        assert!(find(&store, terms).await.len() <= 1, "{nothing:?}");
        assert_eq!(find(&store, vec![Term { text: nothing.into(), prefix: true }]).await, Vec::new(), "{nothing:?}");
    }
    assert_eq!(count(&store, "alpha OR nothing").await, 0);
    assert_eq!(count(&store, "NEAR gamma").await, 1);
}

#[tokio::test]
async fn tool_calls_results_and_long_texts_are_found() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let blocks = vec![
        Block::text("looking"),
        Block::tool_call("t1", "grep_files", json!({"pattern": "zanzibar"})),
        Block::tool_result("t1", json!([{"type": "text", "text": "found in quokka.rs"}])),
    ];
    writer.append(Append::new().message(Message::blocks(Role::Assistant, blocks))).await.unwrap();
    let long = format!("{} capybara {}", "filler text ".repeat(20_000), "more of it ".repeat(2_000));
    writer.append(Append::new().message(user(&long))).await.unwrap();
    for text in ["looking", "zanzibar", "quokka", "capybara", "grep_files"] {
        assert_eq!(count(&store, text).await, 1, "{text}");
    }
}

#[tokio::test]
async fn what_was_not_indexed_when_the_process_ended_is_found_by_the_next() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for number in 0..300 {
        writer.append(Append::new().message(user(&format!("platypus number {number}")))).await.unwrap();
    }
    drop(writer);
    drop(store);
    let store = scratch.open().await;
    assert_eq!(count(&store, "platypus").await, 300);
    assert_eq!(count(&store, "platypus number 17").await, 1);
}

#[tokio::test]
async fn hits_say_where_and_the_better_comes_first() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (one, two) = (create(&store).await, create(&store).await);
    let filler = "and so on and so forth ".repeat(30);
    one.append(Append::new().message(user(&format!("{filler} wombat {filler}")))).await.unwrap();
    let receipt = two.append(Append::new().message(user("wombat wombat wombat"))).await.unwrap();
    let hits = find(&store, vec![word("wombat")]).await;
    assert_eq!(hits.len(), 2);
    assert_eq!((hits[0].at, hits[0].session), (receipt.first, two.id()));
    assert!(hits[0].score > hits[1].score);
    let only = TextQuery { terms: vec![word("wombat")], sessions: vec![one.id()], limit: 10, ..TextQuery::default() };
    let hits = store.backend().search(store.workspace(), only).await.unwrap().unwrap();
    assert_eq!(hits.iter().map(|hit| hit.session).collect::<Vec<_>>(), [one.id()]);
    let few = TextQuery { terms: vec![word("wombat")], sessions: Vec::new(), limit: 1, ..TextQuery::default() };
    assert_eq!(store.backend().search(store.workspace(), few).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn another_workspace_is_not_searched_and_a_deleted_session_is_not_found() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(Append::new().message(user("narwhal"))).await.unwrap();
    let mut options = scratch.options.clone();
    options.workspace = "other".parse().unwrap();
    let other = Store::open(&scratch.url(), options).await.unwrap();
    create(&other).await.append(Append::new().message(user("narwhal"))).await.unwrap();
    assert_eq!((count(&store, "narwhal").await, count(&other, "narwhal").await), (1, 1));
    let id = writer.id();
    writer.release().await.unwrap();
    store.delete(id, DeleteMode::Refuse, &claim(), false).await.unwrap();
    assert_eq!((count(&store, "narwhal").await, count(&other, "narwhal").await), (0, 1));
}

#[tokio::test]
async fn every_timeline_is_searched_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let shared = writer.append(Append::new().message(user("okapi shared"))).await.unwrap();
    writer.append(Append::new().message(user("okapi left behind"))).await.unwrap();
    writer.restore(shared.first).await.unwrap();
    writer.append(Append::new().message(user("okapi anew"))).await.unwrap();
    let branch = store.branch(shared.first, NewSession::default(), &claim()).await.unwrap();
    branch.append(Append::new().message(user("okapi branched"))).await.unwrap();
    assert_eq!(count(&store, "okapi").await, 4, "what is shared is found once, what was left is found too");
    store.reindex().await.unwrap();
    assert_eq!(count(&store, "okapi").await, 4);
    let mut options = Scratch::new();
    options.options.text_index = false;
    let store = options.open().await;
    create(&store).await.append(step(1)).await.unwrap();
    let query = TextQuery { terms: vec![word("step")], sessions: Vec::new(), limit: 10, ..TextQuery::default() };
    assert_eq!(store.backend().search(store.workspace(), query).await.unwrap(), None, "there is no index to ask");
}

#[tokio::test]
async fn a_person_reads_the_tables_with_plain_sql() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(step(1)).await.unwrap();
    writer.append(Append::new().message(user(&"long ".repeat(10_000)))).await.unwrap();
    let id = writer.id().to_string();
    store.close().await.unwrap();

    let db = rusqlite::Connection::open(scratch.path()).unwrap();
    let message = |seq: i64| -> (String, String, String, String) {
        let sql = "SELECT role, channel, text, time FROM messages WHERE session = ?1 AND seq >= ?2 ORDER BY seq";
        db.query_row(sql, rusqlite::params![id, seq], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?))).unwrap()
    };
    let (role, channel, text, time) = message(0);
    assert_eq!((role.as_str(), channel.as_str(), text.as_str()), ("user", "main", "step 1"));
    assert_eq!(time, "2026-01-01 00:00:00");
    let (.., text, _) = message(4);
    assert!(text.starts_with("long long ") && text.len() <= 160, "the beginning of a long one: {text:?}");
    let sql = "SELECT trigger, messages, clean, resumable FROM checkpoints WHERE session = ?1";
    let mark: (String, i64, bool, bool) =
        db.query_row(sql, [&id], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?))).unwrap();
    assert_eq!(mark, ("step".into(), 1, true, true));
    let session: (String, i64) = db
        .query_row("SELECT status, messages FROM sessions WHERE id = ?1", [&id], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert_eq!(session, ("active".into(), 2));
}

/// A flipped bit in the text index changes what is found; nothing that belongs to the log notices.
#[tokio::test]
async fn a_deep_verification_finds_every_damaged_word_and_reindex_mends_it() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    for number in 0..40 {
        let text = format!("alpha{number} beta gamma{} delta", number % 7);
        writer.append(Append::new().message(user(&text))).await.unwrap();
    }
    assert_eq!(count(&store, "beta").await, 40);
    let verified = store.verify_deep().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
    drop(writer);
    store.close().await.unwrap();

    let blocks: Vec<(i64, Vec<u8>)> = {
        let db = rusqlite::Connection::open(scratch.path()).unwrap();
        let mut select = db.prepare("SELECT id, block FROM texts_data WHERE id > 10").unwrap();
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    let words: Vec<(i64, usize, Vec<u8>)> = blocks
        .iter()
        .flat_map(|(id, block)| {
            let letters = block.iter().enumerate().filter(|(_, byte)| byte.is_ascii_lowercase());
            letters.map(|(at, _)| (*id, at, block.clone())).collect::<Vec<_>>()
        })
        .collect();
    assert!(words.len() > 10, "the index has words in clear");
    let write = |id: i64, block: &[u8]| {
        let db = rusqlite::Connection::open(scratch.path()).unwrap();
        db.execute("UPDATE texts_data SET block = ?2 WHERE id = ?1", rusqlite::params![id, block]).unwrap();
    };
    for (id, at, whole) in &words {
        let mut block = whole.clone();
        block[*at] ^= 1;
        write(*id, &block);
        let store = scratch.open().await;
        let verified = store.verify_deep().await.unwrap();
        assert!(!verified.is_whole(), "byte {at} of block {id}");
        assert!(verified.problems.iter().all(|problem| problem.derived), "{:?}", verified.problems);
        if (id, at) == words.last().map(|(id, at, _)| (id, at)).unwrap() {
            store.reindex().await.unwrap();
            let verified = store.verify_deep().await.unwrap();
            assert!(verified.is_whole(), "{:?}", verified.problems);
            assert_eq!(count(&store, "beta").await, 40);
        }
        store.close().await.unwrap();
        write(*id, whole);
    }
}

/// A flipped byte can make it seem that a timeline waits to be indexed that does not exist.
#[tokio::test]
async fn a_search_ends_though_something_waits_that_belongs_to_nothing() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    writer.append(Append::new().message(user("The linker is slow"))).await.unwrap();
    assert_eq!(count(&store, "linker").await, 1);
    rusqlite::Connection::open(scratch.path()).unwrap().execute("INSERT INTO unindexed VALUES (999)", []).unwrap();
    let found = tokio::time::timeout(std::time::Duration::from_secs(20), count(&store, "linker")).await;
    assert_eq!(found, Ok(1));
}

#[tokio::test]
async fn a_preview_made_of_a_tool_call_is_what_the_log_says() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let writer = create(&store).await;
    let call = Message::blocks(Role::Assistant, vec![Block::tool_call("c1", "list_files", json!({ "path": "/" }))]);
    writer.append(Append::new().message(user("look")).message(call)).await.unwrap();
    assert_eq!(store.session(writer.id()).await.unwrap().preview.as_deref(), Some("list_files /"));
    let verified = store.verify().await.unwrap();
    assert!(verified.is_whole(), "{:?}", verified.problems);
}
