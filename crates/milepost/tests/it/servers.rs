//! The engine on every kind of store: what it promises does not depend on the URL. `MILEPOST_TEST_POSTGRES` and
//! `MILEPOST_TEST_S3` name servers (`scripts/test` starts them) or are `none`.

use milepost::store::block_on;
use milepost::{
    Compact, EngineOptions, How, MessageQuery, Milepost, NewSession, Point, Resume, SearchQuery, parse_set,
};

use crate::search::{check, check_around_and_times, check_scripts, fill};
use crate::support::{assistant, no_adapters, user};

/// The server that a variable names; none when it is left out on purpose.
fn server(variable: &str) -> Option<String> {
    let said = std::env::var(variable).unwrap_or_default();
    assert!(!said.is_empty(), "{variable} names no server: run through scripts/test, or set it to `none`");
    (said != "none").then_some(said)
}

/// A place on each kind of store that nobody else uses.
fn places(dir: &std::path::Path) -> Vec<(&'static str, String)> {
    let unique = dir.file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_lowercase();
    let mut places = vec![
        ("memory", "memory:".to_owned()),
        ("sqlite", format!("sqlite:{}/milepost.db", dir.display())),
        ("directory", format!("file://{}/bucket", dir.display())),
    ];
    if let Some(url) = server("MILEPOST_TEST_POSTGRES") {
        let join = if url.contains('?') { '&' } else { '?' };
        places.push(("postgres", format!("{url}{join}schema=engine_{unique}")));
    }
    if let Some(url) = server("MILEPOST_TEST_S3") {
        places.push(("s3", format!("{}/engine-{unique}", url.trim_end_matches('/'))));
    }
    places
}

async fn open(url: &str) -> Milepost {
    Milepost::open_with(url, EngineOptions::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn search_finds_the_same_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    for (name, url) in places(dir.path()) {
        let milepost = open(&url).await;
        fill(&milepost).await;
        check(&milepost).await;
        check_scripts(&milepost).await;
        check_around_and_times(&milepost).await;
        let how = milepost.search(&SearchQuery::new("fox")).await.unwrap().how;
        let is_indexed = matches!(name, "sqlite" | "postgres");
        assert_eq!(how == How::Index, is_indexed, "{name}: {how:?}");
        let substring = SearchQuery { substring: true, ..SearchQuery::new("ROWN") };
        let how = milepost.search(&substring).await.unwrap().how;
        assert!(matches!(&how, How::Scan { why, .. } if !why.is_empty()), "{name} does not say that it read: {how:?}");
        milepost.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_lives_through_everything_on_every_store() {
    let dir = tempfile::tempdir().unwrap();
    for (name, url) in places(dir.path()) {
        let milepost = open(&url).await;
        let session = milepost.create(NewSession::titled(name)).await.unwrap();
        let id = session.id();
        for number in 0..12 {
            session
                .append(user(&format!("Please mend fault {number}, and tell me how it went, in detail.")))
                .await
                .unwrap();
            session.append(assistant(&format!("I fixed fault {number}. It took a while."))).await.unwrap();
        }
        session.set(&[parse_set("memory.step=1").unwrap()]).await.unwrap();
        let mark = session.checkpoint_labelled("one").await.unwrap();
        let summarizer = milepost::context::compact::Extractive::default();
        session.compact(&Compact { keep_messages: 2, ..Compact::default() }, &summarizer).await.unwrap();
        session.set(&[parse_set("memory.step=2").unwrap()]).await.unwrap();
        session.pause(None).await.unwrap();
        session.release().await.unwrap();
        let resumed = milepost.resume(id, Resume::latest()).await.unwrap();
        assert_eq!((resumed.messages, resumed.skipped.len()), (24, 0), "{name}");
        resumed.session.restore(&Point::Named("one".into())).await.unwrap();
        assert_eq!(resumed.session.state().await.unwrap().pointer("/memory/step"), Some(&1.into()), "{name}");
        resumed.session.release().await.unwrap();
        let branch = milepost.branch(id, &Point::Checkpoint(mark), NewSession::titled("branch")).await.unwrap();
        branch.append(user("beside it")).await.unwrap();
        let other = branch.checkpoint_labelled("beside").await.unwrap();
        assert_eq!(milepost.diff(mark, other).await.unwrap().only_b.len(), 1, "{name}");
        assert!(milepost.doctor(id, milepost::context::history::Dialect::Anthropic).await.unwrap().is_well(), "{name}");
        branch.release().await.unwrap();
        let mut bundle = Vec::new();
        let options = milepost::transfer::BundleOptions::default();
        milepost::transfer::export_bundle(milepost.store(), id, &mut bundle, &options, &mut |_| ()).await.unwrap();
        let mut options = milepost::transfer::ImportOptions::default();
        options.ids = milepost::transfer::Ids::Remap;
        let bundle = std::io::Cursor::new(bundle);
        let claim = milepost.claim();
        let again = milepost::transfer::import_bundle(milepost.store(), bundle, &options, &claim, &mut |_| ()).await;
        let again = again.unwrap().session;
        let messages = milepost.store().messages(again, &MessageQuery::default()).await.unwrap();
        assert_eq!(messages.len(), 24, "{name}");
        assert!(milepost.store().verify().await.unwrap().is_whole(), "{name}");
        milepost.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_leaked_is_erased_on_every_store() {
    const SECRET: &str = "k7Q2-x9Lm-4Zt8-Vb1n";
    let dir = tempfile::tempdir().unwrap();
    for (name, url) in places(dir.path()) {
        let milepost = open(&url).await;
        let session = milepost.create(NewSession::titled(format!("about {SECRET}"))).await.unwrap();
        let id = session.id();
        session.append(user(&format!("the key is {SECRET}"))).await.unwrap();
        session
            .append(assistant(&format!("{} {SECRET}", "a long story, and then the key: ".repeat(2000))))
            .await
            .unwrap();
        session.set(&[parse_set(&format!("memory.note={SECRET}")).unwrap()]).await.unwrap();
        session.checkpoint_labelled(&format!("with {SECRET}")).await.unwrap();
        session.release().await.unwrap();
        let redactor = milepost.redactor(SECRET, "[gone]").unwrap();
        let nowhere = async |_: &str| Err("there is no archive".to_owned());
        let found = milepost.redact(&redactor, "it leaked", true, nowhere, no_adapters).await.unwrap().here;
        let done = milepost.redact(&redactor, "it leaked", false, nowhere, no_adapters).await.unwrap().here;
        assert_eq!((done.sessions.len(), done.checkpoints), (1, 1), "{name}: {done:?}");
        assert_eq!(done, found, "{name}: a dry run counts the same");
        milepost.close().await.unwrap();
        if name == "memory" {
            continue;
        }
        let milepost = open(&url).await;
        let summary = milepost.store().session(id).await.unwrap();
        assert_eq!(summary.title.as_deref(), Some("about [gone]"), "{name}");
        let messages = milepost.store().messages(id, &MessageQuery::default()).await.unwrap();
        assert!(messages.iter().all(|stored| stored.message.text().ends_with(" [gone]")), "{name}");
        assert_eq!(milepost.store().state(id).await.unwrap().pointer("/memory/note"), Some(&"[gone]".into()), "{name}");
        for (text, substring, hits) in [(SECRET, false, 0), ("Vb1n", true, 0), ("gone", false, 2)] {
            let query = SearchQuery { substring, ..SearchQuery::new(text) };
            assert_eq!(milepost.search(&query).await.unwrap().hits.len(), hits, "{name}: {text}");
        }
        assert!(milepost.redact(&redactor, "again", true, nowhere, no_adapters).await.unwrap().is_nothing(), "{name}");
        assert!(milepost.store().verify().await.unwrap().is_whole(), "{name}");
        milepost.close().await.unwrap();
    }
}

#[test]
fn a_program_without_a_runtime_can_use_it() {
    block_on(async {
        let milepost = open("memory:").await;
        let session = milepost.create(NewSession::default()).await.unwrap();
        session.append(user("hello")).await.unwrap();
        assert!(session.checkpoint_if(milepost::NewMark::new(milepost::Trigger::Step)).await.is_none());
        session.pause(None).await.unwrap();
        let found = milepost.search(&SearchQuery { substring: true, ..SearchQuery::new("ell") }).await.unwrap();
        assert_eq!(found.hits.len(), 1);
    });
}
