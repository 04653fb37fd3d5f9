//! The tables of LangGraph's `SqliteSaver`.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use milepost_store::{Error, Result};
use rusqlite::{Connection, OpenFlags, params};

use super::{Link, Stored, StoredWrite, split, unusable};
use crate::read::read_metadata;
use crate::thread::ThreadKey;
use crate::write::NewWrite;

/// One look at the tables: whatever is written meanwhile is not seen.
pub(super) struct Tables {
    db: Mutex<Connection>,
    /// Tables of older versions have no paths of tasks.
    has_path: bool,
}

fn failed(what: &str) -> impl Fn(rusqlite::Error) -> Error + '_ {
    move |error| Error::Io { what: what.to_owned(), why: error.to_string() }
}

impl Tables {
    pub fn open(path: &str) -> Result<Self> {
        let what = format!("reading LangGraph's threads from {path}");
        if !Path::new(path).is_file() {
            return Err(Error::Io { what, why: "there is no such file".into() });
        }
        let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed(&what))?;
        let names = |table: &str| -> rusqlite::Result<Vec<String>> {
            db.prepare("SELECT name FROM pragma_table_info(?1)")?.query_map([table], |row| row.get(0))?.collect()
        };
        let has = |table: &str, columns: &[&str]| -> rusqlite::Result<bool> {
            let names = names(table)?;
            Ok(columns.iter().all(|column| names.iter().any(|name| name == column)))
        };
        let is_there =
            has("checkpoints", &["thread_id", "checkpoint_ns", "checkpoint_id", "type", "checkpoint", "metadata"])
                .and_then(|there| {
                    Ok(there && has("writes", &["thread_id", "checkpoint_id", "task_id", "idx", "value"])?)
                });
        if !is_there.map_err(failed(&what))? {
            let why = "it has no tables checkpoints and writes as LangGraph's SqliteSaver makes them".into();
            return Err(Error::Invalid { what, why });
        }
        let has_path = has("writes", &["task_path"]).map_err(failed(&what))?;
        db.execute_batch("BEGIN").map_err(failed(&what))?;
        Ok(Self { db: Mutex::new(db), has_path })
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let db = self.db.lock().unwrap_or_else(PoisonError::into_inner);
        work(&db).map_err(failed("reading LangGraph's threads"))
    }

    pub fn keys(&self) -> Result<Vec<ThreadKey>> {
        self.with(|db| {
            db.prepare("SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY thread_id, checkpoint_ns")?
                .query_map([], |row| Ok(ThreadKey::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?
                .collect()
        })
    }

    pub fn links(&self, key: &ThreadKey) -> Result<Vec<Link>> {
        self.with(|db| {
            db.prepare_cached(
                "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2",
            )?
            .query_map([&key.thread, &key.namespace], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect()
        })
    }

    pub fn checkpoint(&self, key: &ThreadKey, id: &str) -> Result<Stored> {
        let (word, checkpoint, metadata): (Option<String>, Option<Vec<u8>>, Option<Vec<u8>>) = self.with(|db| {
            db.prepare_cached(
                "SELECT type, CAST(checkpoint AS BLOB), CAST(metadata AS BLOB) FROM checkpoints
                 WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3",
            )?
            .query_row([&key.thread, &key.namespace, id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        })?;
        let word = word.ok_or_else(|| unusable(key, id, "it does not say how it was serialised"))?;
        let checkpoint = checkpoint.ok_or_else(|| unusable(key, id, "it is empty"))?;
        let metadata = metadata.filter(|metadata| !metadata.is_empty()).unwrap_or_else(|| b"{}".to_vec());
        if read_metadata(&metadata).is_none() {
            return Err(unusable(key, id, "its metadata is not JSON"));
        }
        let (skeleton, values) = split(word, checkpoint);
        Ok(Stored { skeleton, metadata, values })
    }

    pub fn writes(&self, key: &ThreadKey, id: &str) -> Result<Vec<StoredWrite>> {
        let path = if self.has_path { "task_path" } else { "''" };
        self.with(|db| {
            db.prepare_cached(&format!(
                "SELECT task_id, {path}, idx, channel, coalesce(type, 'null'), coalesce(CAST(value AS BLOB), x'') FROM writes
                 WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3"
            ))?
            .query_map(params![key.thread, key.namespace, id], |row| {
                let write = NewWrite { index: row.get(2)?, channel: row.get(3)?, word: row.get(4)?, bytes: row.get(5)? };
                Ok(StoredWrite { task: row.get(0)?, path: row.get(1)?, write })
            })?
            .collect()
        })
    }
}
