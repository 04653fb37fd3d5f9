//! Every byte of a small store is flipped, one at a time. Each flip is noticed (the store does not open, a read says
//! what is damaged, verification finds it) or harmless (everything reads as before); never is anything silently wrong.
//!
//! And every session opens at some checkpoint: of the store as it is, or of what can be rescued of it.
//!
//! With `MILEPOST_LONG=1` every byte; else, but for the first page, every third. Which bits of it are flipped goes by its place
//! ([`MASKS`]).

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use milepost_model::{CheckpointId, Entry, Message, Role, Seq, Session, SessionId, SessionPatch, State, Trigger};
use milepost_store::backend::{Term, TextHit, TextQuery};
use milepost_store::{
    Append, Claim, Error, Mark, MarkQuery, MessageQuery, NewMark, NewSession, Options, SessionQuery, Store,
    StoredMessage, StoredRecord,
};
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OpenFlags};
use serde_json::json;

use crate::harness::fast_dir;
use crate::kills::is_long;
use crate::support::{Scratch, claim, state, url, user};

const MASKS: [u8; 4] = [0x01, 0x80, 0xff, 0x10];
/// The header of the file, before its first page.
const HEADER: usize = 100;
/// A flip that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn options() -> Options {
    let mut options = Scratch::new().options;
    options.limits.inline_bytes = 400;
    options
}

/// Everything a reader sees of a store.
#[derive(Debug, Clone, PartialEq)]
struct Picture {
    list: Vec<Session>,
    sessions: BTreeMap<SessionId, Told>,
    records: Vec<StoredRecord>,
    due: Vec<StoredRecord>,
    hits: Vec<Vec<TextHit>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Told {
    messages: Vec<StoredMessage>,
    entries: Vec<Entry>,
    state: State,
    marks: Vec<Mark>,
    states: BTreeMap<CheckpointId, State>,
}

impl Picture {
    /// All is the same but what searches find.
    fn differs_in_hits_alone(&self, other: &Self) -> bool {
        Self { hits: other.hits.clone(), ..self.clone() } == *other
    }

    /// Messages, entries and states are the same.
    fn has_the_log_of(&self, other: &Self) -> bool {
        let log = |told: &Told| (told.messages.clone(), told.entries.clone(), told.state.clone());
        self.sessions.values().map(log).eq(other.sessions.values().map(log))
    }
}

async fn look(store: &Store, ids: &[SessionId]) -> Result<Picture, Error> {
    let list = store.sessions(&SessionQuery { by_creation: true, ..SessionQuery::default() }).await?.sessions;
    let mut sessions = BTreeMap::new();
    for id in ids {
        let marks = store.marks(*id, &MarkQuery::default()).await?;
        let mut states = BTreeMap::new();
        for mark in &marks {
            states.insert(mark.checkpoint.id, store.load(mark.checkpoint.id).await?.state);
        }
        let told = Told {
            messages: store.messages(*id, &MessageQuery::default()).await?,
            entries: store.entries(*id, Seq(0), Seq(u64::MAX)).await?,
            state: store.state(*id).await?,
            marks,
            states,
        };
        sessions.insert(*id, told);
    }
    let records = store.records("wake-up", None, 100).await?;
    let due = store.records_due("wake-up", milepost_model::Timestamp(i64::MAX), 100).await?;
    let mut hits = Vec::new();
    for terms in searches() {
        let query = TextQuery { terms, sessions: Vec::new(), limit: 100, ..TextQuery::default() };
        hits.push(store.backend().search(store.workspace(), query).await?.unwrap_or_default());
    }
    Ok(Picture { list, sessions, records, due, hits })
}

/// Two sessions and a branch, marks, a blob, records: some kilobytes.
async fn make(path: &Path) -> Picture {
    let store = Store::open(&url(path), options()).await.unwrap();
    let patch = SessionPatch::new().title("The first").project("flips").tags(["one", "two"]);
    let first = store.create(NewSession { id: None, patch }, &claim()).await.unwrap();
    let mut marks = Vec::new();
    for number in 1..=4u64 {
        let large = number == 3;
        let text = if large { format!("A long one: {}", noise(1200)) } else { format!("Tell me: question {number}") };
        let append = Append::new()
            .message(user(&text))
            .message(Message::new(Role::Assistant, format!("It is the answer {number}")))
            .state(state(json!({ "memory": { "step": number, "notes": format!("note {number}") } })))
            .mark(NewMark::new(Trigger::Step).description(format!("after {number}")));
        let receipt = first.append(append).await.unwrap();
        marks.push(milepost_model::Position { timeline: receipt.first.timeline, seq: Seq(receipt.length - 1) });
    }
    let branch = store.branch(marks[1], NewSession::default(), &Claim::new("another")).await.unwrap();
    branch
        .append(Append::new().message(user("In the branch")).mark(NewMark::new(Trigger::Manual).label("here")))
        .await
        .unwrap();
    let second = store.create(NewSession::default(), &claim()).await.unwrap();
    second
        .append(
            Append::new()
                .message(user("Alone"))
                .state(state(json!({ "tools": [1, 2] })))
                .mark(NewMark::new(Trigger::Initial)),
        )
        .await
        .unwrap();
    second
        .append(Append::new().state(state(json!({ "tools": [1, 2, 3] }))).mark(NewMark::new(Trigger::Final)))
        .await
        .unwrap();
    for number in 0..3 {
        let due = Some(milepost_model::Timestamp(1_800_000_000_000 + number));
        store
            .put_record("wake-up", &format!("number {number}"), None, due, format!("value {number}").as_bytes())
            .await
            .unwrap();
    }
    // A search has every text indexed first.
    let picture = look(&store, &[first.id(), branch.id(), second.id()]).await.unwrap();
    assert!(picture.hits.iter().all(|hits| !hits.is_empty()), "every search finds something: {:?}", picture.hits);
    assert!(picture.sessions.values().all(|told| told.marks.len() > 1), "every session has an older mark");
    assert!(store.verify().await.unwrap().is_whole());
    store.close().await.unwrap();
    picture
}

/// Every word of the texts; two words, a phrase, the beginning of a word.
fn searches() -> Vec<Vec<Term>> {
    let term = |text: &str, prefix| Term { text: text.into(), prefix };
    let words = "tell me question 1 2 4 a long one it is the answer 3 in branch alone";
    let mut searches: Vec<Vec<Term>> = words.split(' ').map(|word| vec![term(word, false)]).collect();
    searches.extend([
        vec![term(&noise(1200), false)],
        vec![term("tell", false), term("me", false)],
        vec![term("is the answer", false)],
        vec![term("al", true)],
    ]);
    searches
}

fn noise(bytes: usize) -> String {
    let mut rng = crate::harness::Rng::new(1);
    (0..bytes / 16).map(|_| format!("{:016x}", rng.next())).collect()
}

/// What came of a flip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// SQLite reads the same rows.
    Unseen,
    /// The rows differ, what a reader sees does not.
    Harmless,
    /// The same, and verification names it.
    HarmlessAndNamed,
    /// The store does not open.
    Refused,
    /// A read says what is damaged; every session opens at some checkpoint.
    Read,
    /// A read says what is damaged; a session opens at no checkpoint.
    Closed,
    /// Only verification notices; what differs is derived.
    Verified,
    /// Only verification notices, and what differs is in the log itself.
    VerifiedLog,
    /// A search finds something else, and verification in depth notices.
    VerifiedText,
    /// The end of a log beside the store is gone, which cannot be told from one that was never synced.
    Torn,
}

#[derive(Debug, Default)]
struct Tally {
    fates: BTreeMap<(Fate, String), usize>,
    /// How many rescues were tried, brought back every session at some checkpoint, and every message.
    rescues: [usize; 3],
    unrescued: Vec<String>,
    wrong: Vec<String>,
}

impl Tally {
    fn merge(&mut self, other: Tally) {
        for (key, count) in other.fates {
            *self.fates.entry(key).or_default() += count;
        }
        for (mine, theirs) in self.rescues.iter_mut().zip(other.rescues) {
            *mine += theirs;
        }
        self.unrescued.extend(other.unrescued);
        self.wrong.extend(other.wrong);
    }

    fn count(&self, fate: Fate) -> usize {
        self.fates.iter().filter(|((f, _), _)| *f == fate).map(|(_, count)| count).sum()
    }

    fn print(&self) {
        for fate in [
            Fate::Unseen,
            Fate::Harmless,
            Fate::HarmlessAndNamed,
            Fate::Refused,
            Fate::Read,
            Fate::Closed,
            Fate::Verified,
            Fate::VerifiedLog,
            Fate::VerifiedText,
        ] {
            let places: Vec<String> = self
                .fates
                .iter()
                .filter(|((f, _), _)| *f == fate)
                .map(|((_, place), count)| format!("{place} {count}"))
                .collect();
            println!("{fate:?}: {} ({})", self.count(fate), places.join(", "));
        }
        let [tried, open, all] = self.rescues;
        println!("rescues: {tried} tried, {open} opened every session at a checkpoint, {all} of them lost no message");
        for why in &self.unrescued {
            println!("not rescued: {why}");
        }
    }
}

/// Which table or index each page belongs to.
fn pages(path: &Path) -> BTreeMap<usize, String> {
    let db = Connection::open(path).unwrap();
    let mut query = db.prepare("SELECT pageno, name FROM dbstat").unwrap();
    let rows = query.query_map([], |row| Ok((row.get::<_, i64>(0)? as usize, row.get::<_, String>(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Every table that holds rows, those of the text index and of SQLite itself included.
fn tables(path: &Path) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let mut query = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0").unwrap();
    let names: Vec<String> = query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let tables: Vec<String> = std::iter::once("sqlite_schema".to_owned()).chain(names).collect();
    for expected in ["entries", "timelines", "texts_data", "texts_idx", "texts_docsize", "sqlite_sequence"] {
        assert!(tables.iter().any(|table| table == expected), "{expected} is among {tables:?}");
    }
    tables
}

/// Every row of these tables as SQLite reads it, if it finds nothing wrong.
fn rows(path: &Path, tables: &[String]) -> rusqlite::Result<Vec<Vec<Sql>>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(format!("file:{}?immutable=1", path.display()), flags)?;
    let mut all = Vec::new();
    for table in tables {
        let mut query = db.prepare(&format!("SELECT * FROM {table} NOT INDEXED"))?;
        let columns = query.column_count();
        let mut found = query.query([])?;
        while let Some(row) = found.next()? {
            all.push((0..columns).map(|column| row.get(column)).collect::<Result<_, _>>()?);
        }
    }
    let check: Vec<String> =
        db.prepare("PRAGMA integrity_check")?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    if check != ["ok"] {
        return Err(rusqlite::Error::InvalidQuery);
    }
    Ok(all)
}

struct Bench<'a> {
    original: &'a [u8],
    picture: &'a Picture,
    tables: &'a [String],
    rows: &'a [Vec<Sql>],
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    tally: Tally,
}

impl Bench<'_> {
    fn flip(&mut self, at: usize, mask: u8, place: &str) {
        let (quick, path) = (self.dir.path().join("quick.db"), self.dir.path().join("flip.db"));
        if !quick.exists() {
            std::fs::write(&quick, self.original).unwrap();
        }
        let byte = self.original[at] ^ mask;
        // What the store makes of the header is its own affair; rows that are the same are the same.
        if at >= HEADER {
            let file = std::fs::File::options().write(true).open(&quick).unwrap();
            file.write_all_at(&[byte], at as u64).unwrap();
            let found = rows(&quick, self.tables);
            file.write_all_at(&[self.original[at]], at as u64).unwrap();
            if found.is_ok_and(|found| found == self.rows) {
                *self.tally.fates.entry((Fate::Unseen, place.to_owned())).or_default() += 1;
                return;
            }
        }
        let mut bytes = self.original.to_vec();
        bytes[at] = byte;
        for leftover in ["flip.db-wal", "flip.db-shm"] {
            let _ = std::fs::remove_file(self.dir.path().join(leftover));
        }
        std::fs::write(&path, &bytes).unwrap();
        let (picture, runtime) = (self.picture, &self.runtime);
        let outcome = runtime.block_on(async {
            tokio::time::timeout(PATIENCE, fate(&path, picture)).await.unwrap_or_else(|_| Err("it hangs".into()))
        });
        match outcome {
            Ok(fate) => {
                *self.tally.fates.entry((fate, place.to_owned())).or_default() += 1;
                if matches!(fate, Fate::Refused | Fate::Closed) {
                    self.rescue(&bytes, at, place);
                }
            }
            Err(why) => self.tally.wrong.push(format!("byte {at} ({place}) ^ {mask:#04x}: {why}")),
        }
    }

    fn rescue(&mut self, bytes: &[u8], at: usize, place: &str) {
        let (damaged, into) = (self.dir.path().join("damaged.db"), self.dir.path().join("rescued.db"));
        for leftover in ["rescued.db", "rescued.db-wal", "rescued.db-shm"] {
            let _ = std::fs::remove_file(self.dir.path().join(leftover));
        }
        std::fs::write(&damaged, bytes).unwrap();
        self.tally.rescues[0] += 1;
        let (picture, runtime) = (self.picture, &self.runtime);
        let outcome = runtime.block_on(async {
            let rescued = async {
                let (store, _) =
                    Store::salvage(&damaged, &into, options()).await.map_err(|e| format!("no rescue: {e}"))?;
                resume(&store, picture).await
            };
            tokio::time::timeout(PATIENCE, rescued).await.unwrap_or_else(|_| Err("WRONG it hangs".into()))
        });
        match outcome {
            Ok(is_all) => {
                self.tally.rescues[1] += 1;
                self.tally.rescues[2] += usize::from(is_all);
            }
            Err(why) if why.starts_with("WRONG") => {
                self.tally.wrong.push(format!("rescue of byte {at} ({place}): {why}"));
            }
            Err(why) => self.tally.unrescued.push(format!("byte {at} ({place}): {why}")),
        }
    }
}

/// Opens every session at its newest whole checkpoint, which must be right. Says whether every message is there.
async fn resume(store: &Store, picture: &Picture) -> Result<bool, String> {
    let mut is_all = true;
    for (id, told) in &picture.sessions {
        let loaded = store.load_latest(*id, &MarkQuery::default()).await.map_err(|e| format!("{id}: {e}"))?;
        let mark = &loaded.mark.checkpoint;
        if told.states.get(&mark.id) != Some(&loaded.state) {
            return Err(format!("WRONG state of {}", mark.id));
        }
        let at = loaded.mark.at;
        let before = store.messages_at(at, &MessageQuery::default()).await;
        let expected: Vec<&StoredMessage> = told.messages.iter().take(mark.messages() as usize).collect();
        match before {
            Ok(found) if found.iter().eq(expected) => {}
            Ok(_) => return Err(format!("WRONG messages before {}", mark.id)),
            Err(_) => is_all = false,
        }
        is_all &= store.messages(*id, &MessageQuery::default()).await.is_ok_and(|found| found == told.messages);
    }
    Ok(is_all)
}

async fn fate(path: &Path, picture: &Picture) -> Result<Fate, String> {
    let typed = |error: &Error| match error {
        // A thread that panicked answers no more.
        Error::Closed => Err(format!("a thread is gone: {error}")),
        // SQLite's words for some damage are those for a failing disk.
        _ => Ok(()),
    };
    let store = match Store::open(&url(path), options()).await {
        Ok(store) => store,
        Err(error) => {
            typed(&error)?;
            return Ok(Fate::Refused);
        }
    };
    let ids: Vec<SessionId> = picture.sessions.keys().copied().collect();
    match look(&store, &ids).await {
        Ok(found) if found == *picture => Ok(match store.verify().await {
            Ok(verified) if verified.is_whole() => Fate::Harmless,
            Ok(_) => Fate::HarmlessAndNamed,
            Err(error) => {
                typed(&error)?;
                Fate::HarmlessAndNamed
            }
        }),
        Ok(found) if found.differs_in_hits_alone(picture) => match store.verify_deep().await {
            Ok(verified) if verified.is_whole() => Err(format!("silently wrong: {}", difference(picture, &found))),
            Err(Error::Closed) => Err("a thread is gone".into()),
            Ok(_) | Err(_) => Ok(Fate::VerifiedText),
        },
        Ok(found) => match store.verify().await {
            Ok(verified) if verified.is_whole() => Err(format!("silently wrong: {}", difference(picture, &found))),
            Err(Error::Closed) => Err("a thread is gone".into()),
            Ok(_) | Err(_) if found.has_the_log_of(picture) => Ok(Fate::Verified),
            Ok(_) | Err(_) => Ok(Fate::VerifiedLog),
        },
        Err(error) => {
            typed(&error)?;
            match resume(&store, picture).await {
                Ok(_) => Ok(Fate::Read),
                Err(why) if why.starts_with("WRONG") => Err(why),
                Err(_) => Ok(Fate::Closed),
            }
        }
    }
}

fn difference(before: &Picture, after: &Picture) -> String {
    if before.list != after.list {
        return format!("list {:?} became {:?}", before.list, after.list);
    }
    if (&before.records, &before.due) != (&after.records, &after.due) {
        return format!("records {:?} became {:?}", before.records, after.records);
    }
    if before.hits != after.hits {
        return format!("hits {:?} became {:?}", before.hits, after.hits);
    }
    let differs = |id: &&SessionId| before.sessions.get(id) != after.sessions.get(id);
    match before.sessions.keys().find(differs) {
        Some(id) => format!("session {id}: {:?} became {:?}", before.sessions[id], after.sessions[id]),
        None => "nothing".into(),
    }
}

#[test]
fn every_flipped_byte_is_noticed_or_harmless() {
    let begun = Instant::now();
    let room = tempfile::tempdir_in(fast_dir()).unwrap();
    let path = room.path().join("original.db");
    let picture = crate::child::runtime().block_on(make(&path));
    assert!(!room.path().join("original.db-wal").exists(), "a closed store is one file");
    let original = std::fs::read(&path).unwrap();
    let tables = tables(&path);
    let rows = rows(&path, &tables).unwrap();
    let pages = pages(&path);
    let next = AtomicUsize::new(0);
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir_in(fast_dir()).unwrap();
        let (original, picture, tally) = (&original, &picture, Tally::default());
        let mut bench = Bench { original, picture, tables: &tables, rows: &rows, dir, runtime, tally };
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= original.len() {
                return bench.tally;
            }
            let place = pages.get(&(at / 4096 + 1)).map_or("free", String::as_str);
            if !is_long() && at >= 4096 && !at.is_multiple_of(3) {
                continue;
            }
            bench.flip(at, MASKS[at % MASKS.len()], place);
        }
    };
    let tally = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut tally = work();
        tally.merge(other.join().unwrap());
        tally
    });
    println!("{} bytes, {} pages, in {:?}", original.len(), original.len() / 4096, begun.elapsed());
    tally.print();
    for wrong in tally.wrong.iter().take(40) {
        println!("{}", wrong.chars().take(600).collect::<String>());
    }
    assert!(tally.wrong.is_empty(), "{} flips were silently wrong", tally.wrong.len());
    assert!(tally.unrescued.is_empty(), "{} flips closed a session for good", tally.unrescued.len());
    // A timeline's own row has no checksum: that it leads elsewhere shows in the chain.
    for place in ["entries", "blobs"] {
        let unread = tally.fates.get(&(Fate::VerifiedLog, place.to_owned())).copied().unwrap_or(0);
        assert_eq!(unread, 0, "what is read of {place} is right, or an error");
    }
}

/// A wake-up at another time than the one that was set is as wrong as one with another text.
#[tokio::test]
async fn a_record_is_bound_to_its_due_time_and_version() {
    for change in ["due = due + 65536", "due = NULL", "version = version + 1"] {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        let due = Some(milepost_model::Timestamp(1_800_000_000_000));
        store.put_record("wake-up", "one", None, due, b"now").await.unwrap();
        store.close().await.unwrap();
        let sql = format!("UPDATE records SET {change} WHERE kind = 'wake-up'");
        Connection::open(scratch.path()).unwrap().execute_batch(&sql).unwrap();
        let store = scratch.open().await;
        let read = store.record("wake-up", "one").await;
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{change}: {read:?}");
        let verified = store.verify().await.unwrap();
        assert!(verified.problems.iter().any(|problem| problem.what.contains("\"one\" of kind \"wake-up\"")));
    }
}

/// A table without row numbers keeps rows on its inner pages too.
#[tokio::test]
async fn a_rescue_finds_the_records_of_every_page() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for number in 0..300 {
        store.put_record("wake-up", &format!("number {number}"), None, None, noise(400).as_bytes()).await.unwrap();
    }
    let records = store.records("wake-up", None, 1000).await.unwrap();
    store.close().await.unwrap();
    let into = scratch.dir.path().join("rescued.db");
    let (rescued, said) = Store::salvage(&scratch.path(), &into, scratch.options.clone()).await.unwrap();
    assert_eq!(said.records, 301, "with the workspace's key");
    assert_eq!(rescued.records("wake-up", None, 1000).await.unwrap(), records);
}

/// The log that a crash left beside the store: a flip in it is noticed, or what was acknowledged is there.
#[test]
fn every_flipped_byte_of_the_wal_is_noticed_or_harmless() {
    let begun = Instant::now();
    let room = tempfile::tempdir_in(fast_dir()).unwrap();
    let path = room.path().join("original.db");
    let (picture, database, log) = crate::child::runtime().block_on(left_by_a_kill(&path));
    let last = last_transaction(&log);
    let next = AtomicUsize::new(0);
    // To a checksum the bytes of a page are all the same: some stand for all, those of headers for themselves.
    let is_tried = |at: usize| is_long() || at < 32 || (at - 32) % FRAME < 24 || at.is_multiple_of(29);
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir_in(fast_dir()).unwrap();
        let flipped = dir.path().join("flip.db");
        let (mut counts, mut wrong) = (BTreeMap::<Fate, usize>::new(), Vec::new());
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= log.len() {
                return (counts, wrong);
            }
            if !is_tried(at) {
                continue;
            }
            let mask = MASKS[at % MASKS.len()];
            let mut bytes = log.clone();
            bytes[at] ^= mask;
            let _ = std::fs::remove_file(dir.path().join("flip.db-shm"));
            std::fs::write(&flipped, &database).unwrap();
            std::fs::write(dir.path().join("flip.db-wal"), &bytes).unwrap();
            let fate = runtime.block_on(async { tokio::time::timeout(PATIENCE, fate(&flipped, &picture)).await });
            match fate.unwrap() {
                Ok(fate) => *counts.entry(fate).or_default() += 1,
                Err(_) if at >= last => *counts.entry(Fate::Torn).or_default() += 1,
                Err(why) => {
                    wrong.push(format!("byte {at} (frame {}) ^ {mask:#04x}: {why}", at.saturating_sub(32) / FRAME + 1));
                }
            }
        }
    };
    let (counts, wrong) = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let (mut counts, mut wrong) = work();
        let (more, also) = other.join().unwrap();
        more.into_iter().for_each(|(fate, count)| *counts.entry(fate).or_default() += count);
        wrong.extend(also);
        (counts, wrong)
    });
    println!("a log of {} frames: {counts:?}, in {:?}", (log.len() - 32) / FRAME, begun.elapsed());
    for wrong in wrong.iter().take(20) {
        println!("{}", wrong.chars().take(400).collect::<String>());
    }
    assert!(wrong.is_empty(), "{} flips were silently wrong", wrong.len());
}

const FRAME: usize = 24 + 4096;

/// What a reader sees of a store, its file and its log as a kill would leave them: copied while the store is open.
async fn left_by_a_kill(path: &Path) -> (Picture, Vec<u8>, Vec<u8>) {
    let ids: Vec<SessionId> = make(path).await.sessions.into_keys().collect();
    let store = Store::open(&url(path), options()).await.unwrap();
    for id in &ids {
        let writer = store.write(*id, &claim().take_over()).await.unwrap();
        writer.append(Append::new().message(user("One more")).mark(NewMark::new(Trigger::Manual))).await.unwrap();
    }
    let picture = look(&store, &ids).await.unwrap();
    let log = std::fs::read(path.with_extension("db-wal")).unwrap();
    assert!(log.len() > 32 + 3 * FRAME);
    (picture, std::fs::read(path).unwrap(), log)
}

/// Where the last transaction of a log begins.
fn last_transaction(log: &[u8]) -> usize {
    let commits: Vec<usize> = (32..log.len()).step_by(FRAME).filter(|at| log[at + 4..at + 8] != [0; 4]).collect();
    commits.len().checked_sub(2).map_or(32, |before| commits[before] + FRAME)
}
