//! Searching: by the index, by a scan, with filters; the two agree.

use milepost::store::MasterKey;
use milepost::{How, Milepost, NewSession, Point, Role, SearchQuery, SessionPatch};

use crate::support::{Scratch, assistant, user};

pub async fn fill(milepost: &Milepost) {
    for (project, texts) in [
        ("shop", ["the quick brown fox", "jumps over", "the lazy dog", "Quick thinking", "明日は東京へ行く"]),
        (
            "blog",
            ["a fox in the hen house", "nothing here", "brown bread, quickly", "last", "Ein Übermut tut selten gut"],
        ),
    ] {
        let new = NewSession { patch: SessionPatch::new().project(project).agent("dev"), ..NewSession::default() };
        let session = milepost.create(new).await.unwrap();
        for (number, text) in texts.into_iter().enumerate() {
            session.append(if number % 2 == 0 { user(text) } else { assistant(text) }).await.unwrap();
        }
    }
}

async fn found(milepost: &Milepost, query: SearchQuery) -> Vec<String> {
    let mut texts: Vec<String> =
        milepost.search(&query).await.unwrap().hits.into_iter().map(|hit| hit.message.text().into_owned()).collect();
    texts.sort();
    texts
}

pub async fn check(milepost: &Milepost) {
    let query = SearchQuery::new;
    assert_eq!(found(milepost, query("fox")).await, ["a fox in the hen house", "the quick brown fox"]);
    assert_eq!(found(milepost, query("quick")).await, ["Quick thinking", "the quick brown fox"]);
    assert_eq!(
        found(milepost, query("quick*")).await,
        ["Quick thinking", "brown bread, quickly", "the quick brown fox"]
    );
    assert_eq!(found(milepost, query("\"brown fox\"")).await, ["the quick brown fox"]);
    assert_eq!(found(milepost, query("brown quick")).await, ["the quick brown fox"]);
    assert_eq!(found(milepost, query("ubermut")).await, ["Ein Übermut tut selten gut"]);
    assert_eq!(found(milepost, query("東京")).await, ["明日は東京へ行く"]);
    let substring = SearchQuery { substring: true, ..query("ROWN") };
    assert_eq!(found(milepost, substring).await, ["brown bread, quickly", "the quick brown fox"]);
    let project = SearchQuery { project: Some("blog".into()), ..query("fox") };
    assert_eq!(found(milepost, project).await, ["a fox in the hen house"]);
    let role = SearchQuery { role: Some(Role::Assistant), ..query("quick") };
    assert_eq!(found(milepost, role).await, ["Quick thinking"]);
    assert!(found(milepost, SearchQuery { agent: Some("qa".into()), ..query("fox") }).await.is_empty());
    assert!(found(milepost, query("zebra")).await.is_empty());
}

/// Words, signs and calls that an index of plain words would pass over.
pub async fn check_scripts(milepost: &Milepost) {
    let session = milepost.create(NewSession::titled("Scripts")).await.unwrap();
    let plain = [
        "我们使用PostgreSQL数据库和SQLite",
        "パパとママ",
        "deployed 🚀 at last",
        "वह दिन था",
        "उसने दान किया",
        "ปีใหม่",
        "Η Ελλάδα είναι εδώ",
        "новогодняя ёлка",
        "한국어 검색",
        "Ο ΟΔΥΣΣΕΥΣ",
        "Hauptstraße 5",
    ];
    for text in plain {
        session.append(user(text)).await.unwrap();
    }
    let mut beside = assistant("calling");
    beside.extra.insert(
        "toolCalls".into(),
        serde_json::json!([{"id": "zebracall", "name": "grepfiles", "arguments": {"pattern": "wombat"}}]),
    );
    beside.extra.insert("toolResults".into(), serde_json::json!([{"callId": "zebracall", "output": "found marmots"}]));
    session.append(beside).await.unwrap();
    let mut other = assistant("");
    let call = serde_json::json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"q\":\"ibexes\"}"}}]);
    other.extra.insert("tool_calls".into(), call);
    session.append(other).await.unwrap();
    let query = SearchQuery::new;
    let mixed = "我们使用PostgreSQL数据库和SQLite";
    assert_eq!(found(milepost, query("PostgreSQL")).await, [mixed]);
    assert_eq!(found(milepost, query("sqlit*")).await, [mixed]);
    assert_eq!(found(milepost, query("数据库 postgresql")).await, [mixed]);
    assert!(found(milepost, query("ハハ")).await.is_empty());
    assert_eq!(found(milepost, query("パパ")).await, ["パパとママ"]);
    // A day is no gift, and no crab is a new year.
    assert_eq!(found(milepost, query("दिन")).await, ["वह दिन था"]);
    assert_eq!(found(milepost, query("दा*")).await, ["उसने दान किया"]);
    assert!(found(milepost, query("ปู")).await.is_empty());
    // Capitals have no accents in Greek, and many write none in Russian.
    for text in ["ΕΛΛΑΔΑ", "ελλάδα", "ειναι*", "\"Ελλαδα ειναι\""] {
        assert_eq!(found(milepost, query(text)).await, ["Η Ελλάδα είναι εδώ"], "{text}");
    }
    for text in ["елка", "ЁЛКА", "ёл*"] {
        assert_eq!(found(milepost, query(text)).await, ["новогодняя ёлка"], "{text}");
    }
    // Two small letters have one capital in Greek, and one has two in German.
    for (text, is_in) in [("Οδυσσευς", "Ο ΟΔΥΣΣΕΥΣ"), ("HAUPTSTRASSE", "Hauptstraße 5"), ("straẞe", "Hauptstraße 5")]
    {
        let substring = SearchQuery { substring: true, ..query(text) };
        assert_eq!(found(milepost, substring).await, [is_in], "{text}");
    }
    let (odysseus, main) = ("Ο ΟΔΥΣΣΕΥΣ", "Hauptstraße 5");
    let [water, castle, road] =
        ["Die Wasserstraße ist breit", "DIE SCHLOSSSTRASSE NEBEN DER GASSE", "η οδος και ο δρόμος"];
    for text in [water, castle, road] {
        session.append(user(text)).await.unwrap();
    }
    let same = [
        ("Οδυσσευς", odysseus),
        ("Οδυσσευσ", odysseus),
        ("οδυσ*", odysseus),
        ("οδυσσευς*", odysseus),
        ("HAUPTSTRASSE", main),
        ("hauptstraße", main),
        ("hauptstrass*", main),
        ("hauptstras*", main),
        ("HAUPTSTRAẞ*", main),
        ("Wasserstrasse", water),
        ("WASSERSTRASSE", water),
        ("WASSERSTRAẞE", water),
        ("Waßerstraße", water),
        ("wasserstras*", water),
        ("was*", water),
        ("\"die wasserstrasse ist\"", water),
        ("\"die wasserstras\"*", water),
        ("Schlossstraße", castle),
        ("Schloßstraße", castle),
        ("schloß*", castle),
        ("schlos*", castle),
        ("\"schloßstrasse neben der gaße\"", castle),
        ("ΟΔΟΣ", road),
        ("οδοσ", road),
        ("οδος*", road),
        ("\"ΟΔΟΣ ΚΑΙ Ο ΔΡΟΜΟΣ\"", road),
    ];
    for (text, is_in) in same {
        assert_eq!(found(milepost, query(text)).await, [is_in], "{text}");
    }
    for text in ["hauptstrase", "haupts", "οδο", "waser*", "\"strasse ist\""] {
        assert!(found(milepost, query(text)).await.is_empty(), "{text}");
    }
    assert_eq!(found(milepost, query("한*")).await, ["한국어 검색"]);
    assert!(found(milepost, query("하*")).await.is_empty(), "another syllable");
    assert_eq!(found(milepost, query("🚀")).await, ["deployed 🚀 at last"]);
    assert!(found(milepost, query("deployed 🎉")).await.is_empty());
    for text in ["grepfiles", "wombat", "marmots"] {
        assert_eq!(found(milepost, query(text)).await, ["calling"], "{text}");
    }
    assert_eq!(found(milepost, query("ibexes")).await, [""]);
    assert!(found(milepost, query("zebracall")).await.is_empty(), "what only names a call");
}

/// A hit has two messages before and after it; what lies outside of a time, or is of another role, is passed over before it is
/// counted.
pub async fn check_around_and_times(milepost: &Milepost) {
    let session = milepost.create(NewSession::titled("Numbers")).await.unwrap();
    for number in 1..=3 {
        session.append(user(&format!("number {number}"))).await.unwrap();
    }
    session.append(milepost::Message::new(Role::System, "the number that is rare among others")).await.unwrap();
    for number in 5..=40 {
        session.append(user(&format!("number {number}"))).await.unwrap();
    }
    let query = SearchQuery { role: Some(Role::System), limit: 1, ..SearchQuery::new("number") };
    let found = milepost.search(&query).await.unwrap();
    assert_eq!((found.hits.len(), found.more), (1, false));
    let hit = &found.hits[0];
    let texts = |messages: &[milepost::Message]| -> Vec<String> {
        messages.iter().map(|message| message.text().into_owned()).collect()
    };
    assert_eq!(texts(&hit.context.before), ["number 2", "number 3"]);
    assert_eq!(texts(&hit.context.after), ["number 5", "number 6"]);
    let (time, after) = (hit.time, hit.time.plus_ms(3_600_000));
    let within = SearchQuery { from: Some(time), to: Some(after), limit: 100, ..SearchQuery::new("number") };
    let found = milepost.search(&within).await.unwrap().hits;
    assert!(found.len() >= 37 && found.iter().all(|hit| hit.time >= time), "{}", found.len());
    assert!(milepost.search(&SearchQuery { from: Some(after), ..within.clone() }).await.unwrap().hits.is_empty());
    session.release().await.unwrap();
}

#[tokio::test]
async fn the_index_and_the_scan_find_the_same() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    fill(&milepost).await;
    check(&milepost).await;
    assert_eq!(milepost.search(&SearchQuery::new("fox")).await.unwrap().how, How::Index);
    check_scripts(&milepost).await;
    assert_eq!(found(&milepost, SearchQuery::new("Οδυσσευς")).await, ["Ο ΟΔΥΣΣΕΥΣ"]);
    let mut encrypted = Scratch::new();
    encrypted.options.store.keys.master = Some(MasterKey::from_bytes([7; 32]));
    let milepost = encrypted.open().await;
    fill(&milepost).await;
    check(&milepost).await;
    let how = milepost.search(&SearchQuery::new("fox")).await.unwrap().how;
    assert!(matches!(&how, How::Scan { why, messages: 10 } if why.contains("encrypted")), "{how:?}");
    check_scripts(&milepost).await;
    assert_eq!(found(&milepost, SearchQuery::new("Οδυσσευς")).await, ["Ο ΟΔΥΣΣΕΥΣ"]);
    assert_eq!(found(&milepost, SearchQuery::new("HAUPTSTRASSE")).await, ["Hauptstraße 5"]);
}

#[tokio::test]
async fn a_hit_has_two_messages_before_and_after_it() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::titled("Numbers")).await.unwrap();
    for text in ["one", "two", "three", "four", "five", "six"] {
        session.append(user(text)).await.unwrap();
    }
    let hit = milepost.search(&SearchQuery::new("three")).await.unwrap().hits.remove(0);
    let texts = |messages: &[milepost::Message]| -> Vec<String> {
        messages.iter().map(|message| message.text().into_owned()).collect()
    };
    assert_eq!(texts(&hit.context.before), ["one", "two"]);
    assert_eq!(texts(&hit.context.after), ["four", "five"]);
    assert_eq!((hit.title.as_deref(), hit.current), (Some("Numbers"), true));
    let hit = milepost.search(&SearchQuery::new("one")).await.unwrap().hits.remove(0);
    assert!(hit.context.before.is_empty());
}

#[tokio::test]
async fn what_a_restore_left_is_found_and_said_to_be_left() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.append(user("kept apple")).await.unwrap();
    let mark = session.checkpoint_labelled("here").await.unwrap();
    session.append(user("left apple")).await.unwrap();
    session.restore(&Point::Checkpoint(mark)).await.unwrap();
    session.append(user("new apple")).await.unwrap();
    let mut hits: Vec<(String, bool)> = milepost
        .search(&SearchQuery::new("apple"))
        .await
        .unwrap()
        .hits
        .into_iter()
        .map(|hit| (hit.message.text().into_owned(), hit.current))
        .collect();
    hits.sort();
    let expected = [("kept apple", true), ("left apple", false), ("new apple", true)];
    assert_eq!(hits, expected.map(|(text, current)| (text.to_owned(), current)));
}

#[tokio::test]
async fn more_hits_than_were_asked_for_are_told() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    for number in 0..30 {
        session.append(user(&format!("apple {number}"))).await.unwrap();
    }
    let query = SearchQuery { limit: 10, ..SearchQuery::new("apple") };
    let found = milepost.search(&query).await.unwrap();
    assert_eq!((found.hits.len(), found.more), (10, true));
    let found = milepost.search(&SearchQuery { limit: 30, ..SearchQuery::new("apple") }).await.unwrap();
    assert_eq!((found.hits.len(), found.more), (30, false));
}

#[tokio::test]
async fn what_a_branch_shares_is_found_in_it_and_when_the_session_it_came_from_is_gone() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::titled("Trunk")).await.unwrap();
    session.append(user("shared otters")).await.unwrap();
    session.append(user("the last word of both")).await.unwrap();
    let mark = session.checkpoint_labelled("fork").await.unwrap();
    session.append(user("otters of the trunk")).await.unwrap();
    let trunk = session.id();
    session.release().await.unwrap();
    let branch = milepost.branch(trunk, &Point::Checkpoint(mark), NewSession::titled("Branch")).await.unwrap();
    branch.append(user("otters of the branch")).await.unwrap();
    let id = branch.id();
    branch.release().await.unwrap();
    let texts = async |query: &SearchQuery| {
        let found = milepost.search(query).await.unwrap();
        let mut texts: Vec<_> =
            found.hits.into_iter().map(|hit| (hit.message.text().into_owned(), hit.session_id, hit.current)).collect();
        texts.sort();
        texts
    };
    let both = [SearchQuery::new("otters"), SearchQuery { substring: true, ..SearchQuery::new("tters") }];
    let of_branch = [("otters of the branch", id, true), ("shared otters", id, true)];
    let of_branch = of_branch.map(|(text, id, current)| (text.to_owned(), id, current));
    for query in &both {
        let all = texts(query).await;
        assert_eq!(
            all.iter().map(|hit| hit.1).collect::<Vec<_>>(),
            [id, trunk, trunk],
            "each once, where it was written"
        );
        assert_eq!(texts(&SearchQuery { session: Some(id), ..query.clone() }).await, of_branch);
        let found = milepost.search(&SearchQuery { session: Some(id), ..query.clone() }).await.unwrap();
        let shared = found.hits.into_iter().find(|hit| hit.message.text() == "shared otters").unwrap();
        let after: Vec<_> = shared.context.after.iter().map(|message| message.text().into_owned()).collect();
        assert_eq!(after, ["the last word of both", "otters of the branch"], "as it went on in the branch");
    }
    milepost.store().trash(trunk, &milepost.claim()).await.unwrap();
    for query in &both {
        assert_eq!(texts(query).await, of_branch, "what is in the trash is found only where a branch has it");
    }
    milepost.store().untrash(trunk, &milepost.claim()).await.unwrap();
    milepost.delete(trunk, milepost::store::DeleteMode::KeepBranches, false).await.unwrap();
    for query in &both {
        assert_eq!(texts(query).await, of_branch, "what was deleted is found only where a branch has it");
    }
}

#[tokio::test]
async fn what_is_sifted_is_sifted_by_the_index() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    // The longest text has the worst rank.
    session.append(milepost::Message::new(Role::System, format!("lorem {}", "ipsum ".repeat(200)))).await.unwrap();
    for _ in 0..200 {
        session.append(user("lorem")).await.unwrap();
    }
    let query = SearchQuery { role: Some(Role::System), limit: 1, ..SearchQuery::new("lorem") };
    let found = milepost.search(&query).await.unwrap();
    assert_eq!((found.hits.len(), found.more, found.how), (1, false, How::Index));
    let first = found.hits[0].time;
    let before = SearchQuery { to: Some(first), ..SearchQuery::new("lorem") };
    assert!(milepost.search(&before).await.unwrap().hits.is_empty());
    let since = SearchQuery { from: Some(first), limit: 1000, ..SearchQuery::new("lorem") };
    assert_eq!(milepost.search(&since).await.unwrap().hits.len(), 201);
}

#[tokio::test]
async fn one_damaged_checkpoint_does_not_stop_the_search_in_other_sessions() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let mut ids = Vec::new();
    for text in ["beta one", "beta two"] {
        let session = milepost.create(NewSession::titled(text)).await.unwrap();
        session.append(user(text)).await.unwrap();
        session.checkpoint_labelled("here").await.unwrap();
        session.append(user("beta after")).await.unwrap();
        ids.push(session.id());
        session.release().await.unwrap();
    }
    milepost.close().await.unwrap();
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    let sql =
        "UPDATE entries SET body = zeroblob(length(body)) WHERE id = (SELECT min(id) FROM entries WHERE kind = 3)";
    assert_eq!(database.execute(sql, []).unwrap(), 1);
    // As if it had not been indexed yet.
    database.execute_batch("UPDATE timelines SET indexed = 0; INSERT OR IGNORE INTO unindexed SELECT no FROM timelines; INSERT INTO texts (texts) VALUES ('delete-all')").unwrap();
    drop(database);
    let milepost = scratch.open().await;
    for _ in 0..2 {
        let found = milepost.search(&SearchQuery::new("beta")).await.unwrap();
        assert_eq!((found.hits.len(), found.how), (4, How::Index));
        let named: Vec<_> = found.unread.iter().map(|(id, _)| *id).collect();
        assert_eq!(named, [ids[0]], "the damaged one is named");
        let done = milepost.store().reindex().await.unwrap();
        assert_eq!((done.sessions, done.damaged.len(), done.damaged[0].0), (1, 1, ids[0]));
    }
}

#[tokio::test]
async fn an_index_of_an_older_version_is_made_anew() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.append(user("使用PostgreSQL")).await.unwrap();
    session.release().await.unwrap();
    assert_eq!(milepost.search(&SearchQuery::new("postgresql")).await.unwrap().hits.len(), 1);
    milepost.close().await.unwrap();
    let database = rusqlite::Connection::open(scratch.path()).unwrap();
    let empty = "INSERT INTO texts (texts) VALUES ('delete-all')";
    // One that said nothing of its rules, and one that said which they were.
    for older in ["DROP TABLE text_gaps", "UPDATE text_gaps SET why = 'rules 3' WHERE timeline = 0"] {
        database.execute_batch(&format!("{older}; {empty}")).unwrap();
        let milepost = scratch.open().await;
        assert_eq!(milepost.search(&SearchQuery::new("postgresql")).await.unwrap().hits.len(), 1, "{older}");
        assert!(milepost.store().verify_deep().await.unwrap().is_whole());
        milepost.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_text_that_is_indexed_in_part_is_told() {
    let scratch = Scratch::new();
    let milepost = scratch.open().await;
    let session = milepost.create(NewSession::default()).await.unwrap();
    session.append(user(&format!("{} needle", "straw ".repeat(200_000)))).await.unwrap();
    let found = milepost.search(&SearchQuery::new("needle")).await.unwrap();
    assert!(found.hits.is_empty());
    assert!(found.unread.iter().any(|(id, why)| *id == session.id() && why.contains("1 MiB")), "{:?}", found.unread);
    let substring = SearchQuery { substring: true, ..SearchQuery::new("needle") };
    assert_eq!(milepost.search(&substring).await.unwrap().hits.len(), 1);
}
