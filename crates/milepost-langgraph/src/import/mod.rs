//! Threads that LangGraph's own checkpointers keep, brought over. Every checkpoint comes with its id, parent, values, metadata and
//! writes, byte by byte as the serializer wrote them: nothing is read into objects and written anew.
//!
//! It can be done again, after it was stopped or when the threads have grown: what is there already stays.

mod postgres;
mod sqlite;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use milepost_store::{Error, Result};
use xxhash_rust::xxh3::xxh3_128;

use crate::msgpack;
use crate::thread::{Saver, ThreadKey};
use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites, Part, Spot};

/// What was brought over so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Threads looked at; namespaces of subgraphs belong to their thread.
    pub threads: u64,
    /// Checkpoints that are new here.
    pub checkpoints: u64,
    /// Checkpoints that were here already.
    pub known: u64,
    /// Writes that are new here.
    pub writes: u64,
    /// Threads of which something cannot be brought over, and why: the others were.
    pub left_out: Vec<(String, String)>,
}

/// What to bring over.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// Where LangGraph keeps its threads: `sqlite:PATH` or `postgres://…`.
    pub from: String,
    /// Only these threads; all when there are none.
    pub threads: Vec<String>,
    /// Only looks, and changes nothing.
    pub dry_run: bool,
}

/// The serializer's word for how it wrote something, and what it wrote.
type Typed = (String, Vec<u8>);
/// Values by their channels.
type Values = Vec<(String, String, Vec<u8>)>;

/// A checkpoint as it lies in LangGraph's tables.
struct Stored {
    skeleton: Typed,
    metadata: Vec<u8>,
    values: Values,
}

/// A write as it lies there.
struct StoredWrite {
    task: String,
    path: String,
    write: NewWrite,
}

/// A checkpoint's id and its parent's.
type Link = (String, Option<String>);

/// LangGraph's tables.
enum Tables {
    Sqlite(sqlite::Tables),
    Postgres(postgres::Tables),
}

impl Tables {
    async fn open(url: &str) -> Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            return sqlite::Tables::open(path).map(Tables::Sqlite);
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return postgres::Tables::open(url).await.map(Tables::Postgres);
        }
        let what = "where LangGraph's threads are";
        Err(Error::Invalid { what: what.into(), why: "it is neither sqlite:PATH nor postgres://…".into() })
    }

    async fn keys(&self) -> Result<Vec<ThreadKey>> {
        match self {
            Tables::Sqlite(tables) => tables.keys(),
            Tables::Postgres(tables) => tables.keys().await,
        }
    }

    async fn links(&self, key: &ThreadKey) -> Result<Vec<Link>> {
        match self {
            Tables::Sqlite(tables) => tables.links(key),
            Tables::Postgres(tables) => tables.links(key).await,
        }
    }

    async fn checkpoint(&self, key: &ThreadKey, id: &str) -> Result<Stored> {
        match self {
            Tables::Sqlite(tables) => tables.checkpoint(key, id),
            Tables::Postgres(tables) => tables.checkpoint(key, id).await,
        }
    }

    async fn writes(&self, key: &ThreadKey, id: &str) -> Result<Vec<StoredWrite>> {
        match self {
            Tables::Sqlite(tables) => tables.writes(key, id),
            Tables::Postgres(tables) => tables.writes(key, id).await,
        }
    }
}

impl Saver {
    /// Brings threads over from one of LangGraph's own checkpointers; `tell` hears how far it is. Whoever writes there
    /// meanwhile is not disturbed, and what they add is brought over the next time.
    pub async fn import(&self, import: &Import, tell: &mut (dyn FnMut(&Imported) + Send)) -> Result<Imported> {
        let tables = Tables::open(&import.from).await?;
        let mut keys = tables.keys().await?;
        if let Some(missing) = import.threads.iter().find(|thread| keys.iter().all(|key| key.thread != **thread)) {
            return Err(Error::NotFound { what: "thread", id: missing.clone() });
        }
        keys.retain(|key| import.threads.is_empty() || import.threads.contains(&key.thread));
        let mut done = Imported::default();
        let mut threads = BTreeSet::new();
        for key in keys {
            match self.import_key(&tables, &key, import.dry_run, &mut done, tell).await {
                Err(error @ (Error::Invalid { .. } | Error::TooLarge { .. })) => {
                    done.left_out.push((key.thread.clone(), error.to_string()));
                }
                outcome => outcome?,
            }
            threads.insert(key.thread);
            done.threads = threads.len() as u64;
            tell(&done);
        }
        Ok(done)
    }

    async fn import_key(
        &self,
        tables: &Tables,
        key: &ThreadKey,
        dry_run: bool,
        done: &mut Imported,
        tell: &mut (dyn FnMut(&Imported) + Send),
    ) -> Result<()> {
        let there = self.checkpoint_ids(key).await?;
        let mut before: Option<(String, Spot, Lists)> = None;
        for (id, parent) in in_order(tables.links(key).await?) {
            let is_new = !there.contains(&id);
            let writes = tables.writes(key, &id).await?;
            let writes = if is_new { writes } else { self.missing(key, &id, writes).await? };
            (done.checkpoints, done.known) = (done.checkpoints + u64::from(is_new), done.known + u64::from(!is_new));
            done.writes += writes.len() as u64;
            tell(done);
            if dry_run {
                continue;
            }
            if is_new {
                let stored = tables.checkpoint(key, &id).await?;
                let known = before.take().filter(|(before, ..)| Some(before) == parent.as_ref());
                let (compared, known) = known.map(|(_, spot, lists)| (spot, lists)).unzip();
                let (values, lists) = compare(&stored.values, &known.unwrap_or_default());
                let mut new = NewCheckpoint {
                    id: id.clone(),
                    parent,
                    compared,
                    skeleton: stored.skeleton,
                    metadata: stored.metadata,
                    values,
                };
                let mut spot = self.put(key, &new).await?;
                if spot.is_none() {
                    // Someone changed the parent since.
                    new.values = compare(&stored.values, &Lists::new()).0;
                    spot = self.put(key, &new).await?;
                }
                before = spot.map(|spot| (id.clone(), spot, lists));
            }
            for new in by_task(&id, writes) {
                self.put_writes(key, &new).await?;
            }
        }
        Ok(())
    }

    /// Those of a checkpoint's writes that are not here yet.
    async fn missing(&self, key: &ThreadKey, id: &str, mut writes: Vec<StoredWrite>) -> Result<Vec<StoredWrite>> {
        if !writes.is_empty()
            && let Some(found) = self.get(key, Some(id)).await?
        {
            let there: BTreeSet<(&str, i64)> =
                found.writes.iter().map(|write| (write.task.as_str(), write.index)).collect();
            writes.retain(|write| !there.contains(&(write.task.as_str(), write.write.index)));
        }
        Ok(writes)
    }
}

/// Parents before their children; else by their ids, which go up with time.
fn in_order(mut links: Vec<Link>) -> Vec<Link> {
    links.sort();
    let all: BTreeSet<String> = links.iter().map(|(id, _)| id.clone()).collect();
    let (mut done, mut out) = (BTreeSet::new(), Vec::with_capacity(links.len()));
    while !links.is_empty() {
        let (ready, waiting): (Vec<_>, Vec<_>) = links.into_iter().partition(|(id, parent)| {
            let is_ready = parent.as_ref().is_none_or(|parent| !all.contains(parent) || done.contains(parent));
            if is_ready {
                done.insert(id.clone());
            }
            is_ready
        });
        if ready.is_empty() {
            // Checkpoints that are their own ancestors: as they come.
            out.extend(waiting);
            break;
        }
        out.extend(ready);
        links = waiting;
    }
    out
}

/// The lists of a checkpoint, each item by its hash.
type Lists = HashMap<String, Vec<u128>>;

/// A checkpoint's values, lists compared with those of its parent.
fn compare(stored: &[(String, String, Vec<u8>)], known: &Lists) -> (Vec<(String, NewValue)>, Lists) {
    let mut lists = Lists::new();
    let value = |(channel, word, bytes): &(String, String, Vec<u8>)| {
        let items = if word == "msgpack" { msgpack::items(bytes) } else { None };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            return (channel.clone(), NewValue::Typed(word.clone(), bytes.as_slice().into()));
        };
        let hashes: Vec<u128> = items.iter().map(|item| xxh3_128(item)).collect();
        let old = known.get(channel).map(Vec::as_slice).unwrap_or_default();
        let front = old.iter().zip(&hashes).take_while(|(a, b)| a == b).count();
        let longest = old.len().min(hashes.len()) - front;
        let back = old.iter().rev().zip(hashes.iter().rev()).take(longest).take_while(|(a, b)| a == b).count();
        let mut parts = Vec::new();
        if front > 0 {
            parts.push(Part::Kept { from: 0, to: front });
        }
        parts.extend(items[front..items.len() - back].iter().map(|item| Part::New(item.to_vec())));
        if back > 0 {
            parts.push(Part::Kept { from: old.len() - back, to: old.len() });
        }
        lists.insert(channel.clone(), hashes);
        (channel.clone(), NewValue::List(parts))
    };
    (stored.iter().map(value).collect(), lists)
}

/// Writes as they were made: those of each task together, and apart from them LangGraph's own.
fn by_task(checkpoint: &str, writes: Vec<StoredWrite>) -> Vec<NewWrites> {
    let mut tasks: BTreeMap<(String, String, bool), Vec<NewWrite>> = BTreeMap::new();
    for StoredWrite { task, path, write } in writes {
        tasks.entry((path, task, write.index < 0)).or_default().push(write);
    }
    let task = |((path, task, replace), mut writes): ((String, String, bool), Vec<NewWrite>)| {
        writes.sort_by_key(|write| write.index);
        NewWrites { checkpoint: checkpoint.to_owned(), task, path, replace, writes }
    };
    tasks.into_iter().map(task).collect()
}

/// A checkpoint as one piece, taken apart: what is not its values, and each of them. What cannot be looked into stays whole.
fn split(word: String, bytes: Vec<u8>) -> (Typed, Values) {
    let apart = || {
        let all = msgpack::entries(&bytes).filter(|_| word == "msgpack")?;
        let (values, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|(key, ..)| *key == Some("channel_values"));
        let [(_, _, values)] = values.as_slice() else { return None };
        let value =
            |(key, _, value): (Option<&str>, _, &[u8])| Some((key?.to_owned(), "msgpack".to_owned(), value.to_vec()));
        let values = msgpack::entries(values)?.into_iter().map(value).collect::<Option<Vec<_>>>()?;
        Some((msgpack::map(&rest.iter().map(|(_, key, value)| (*key, *value)).collect::<Vec<_>>()), values))
    };
    match apart() {
        Some((skeleton, values)) => ((word, skeleton), values),
        None => ((word, bytes), Vec::new()),
    }
}

/// What a row says that cannot be brought over.
fn unusable(key: &ThreadKey, id: &str, why: &str) -> Error {
    Error::Invalid { what: format!("checkpoint {id} of thread {:?}", key.thread), why: why.to_owned() }
}
