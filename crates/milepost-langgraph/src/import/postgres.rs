//! The tables of LangGraph's `PostgresSaver`: a checkpoint is a document, and values that are more than a text or a number lie
//! in a table of their own by their version.

use milepost_store::{Error, Result};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::{Link, Stored, StoredWrite, unusable};
use crate::thread::ThreadKey;
use crate::write::NewWrite;

/// The word for a value that a channel does not have.
const EMPTY: &str = "empty";

/// One look at the tables: whatever is written meanwhile is not seen.
pub(super) struct Tables {
    client: Client,
    /// Tables of older versions have no paths of tasks.
    has_path: bool,
}

const WHAT: &str = "reading LangGraph's threads";

fn failed(error: &tokio_postgres::Error) -> Error {
    let why = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    Error::Io { what: WHAT.into(), why }
}

impl Tables {
    pub async fn open(url: &str) -> Result<Self> {
        let client = milepost_store::postgres::connect(url).await?;
        let begin = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";
        client.batch_execute(begin).await.map_err(|error| failed(&error))?;
        let mut tables = Self { client, has_path: false };
        let all = ["checkpoints", "checkpoint_blobs", "checkpoint_writes"].map(str::to_owned).to_vec();
        let found = "SELECT count(*) FROM unnest($1::text[]) name WHERE to_regclass(name) IS NOT NULL";
        let count: i64 = tables.ask(found, &[&all]).await?.first().map_or(0, |row| row.get(0));
        if count != 3 {
            let why = "the database has no tables checkpoints, checkpoint_blobs and checkpoint_writes as LangGraph's \
                       PostgresSaver makes them"
                .into();
            return Err(Error::Invalid { what: WHAT.into(), why });
        }
        let path = "SELECT count(*) FROM pg_attribute
                    WHERE attrelid = to_regclass('checkpoint_writes') AND attname = 'task_path' AND NOT attisdropped";
        tables.has_path = tables.ask(path, &[]).await?.first().is_some_and(|row| row.get::<_, i64>(0) > 0);
        Ok(tables)
    }

    async fn ask(&self, sql: &str, given: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.client.query(sql, given).await.map_err(|error| failed(&error))
    }

    pub async fn keys(&self) -> Result<Vec<ThreadKey>> {
        let sql = "SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints ORDER BY thread_id, checkpoint_ns";
        let rows = self.ask(sql, &[]).await?;
        Ok(rows.iter().map(|row| ThreadKey::new(row.get::<_, String>(0), row.get::<_, String>(1))).collect())
    }

    pub async fn links(&self, key: &ThreadKey) -> Result<Vec<Link>> {
        let sql =
            "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = $1 AND checkpoint_ns = $2";
        let rows = self.ask(sql, &[&key.thread, &key.namespace]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }

    pub async fn checkpoint(&self, key: &ThreadKey, id: &str) -> Result<Stored> {
        let sql = "SELECT (checkpoint - 'channel_values')::text, metadata::text FROM checkpoints
                   WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3";
        let rows = self.ask(sql, &[&key.thread, &key.namespace, &id]).await?;
        let row = rows.first().ok_or_else(|| unusable(key, id, "it is gone"))?;
        let (skeleton, metadata) = (row.get::<_, String>(0).into_bytes(), row.get::<_, String>(1).into_bytes());
        // Texts and numbers lie in the document; what has a row of its own says more than that.
        let sql = "SELECT key, 'json', convert_to(value::text, 'UTF8') FROM checkpoints, jsonb_each(
                     CASE jsonb_typeof(checkpoint -> 'channel_values') WHEN 'object' THEN checkpoint -> 'channel_values'
                     ELSE '{}' END)
                   WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3
                   UNION ALL
                   SELECT b.channel, b.type, coalesce(b.blob, '') FROM checkpoints c
                     CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') v
                     JOIN checkpoint_blobs b ON b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns
                       AND b.channel = v.key AND b.version = v.value
                   WHERE c.thread_id = $1 AND c.checkpoint_ns = $2 AND c.checkpoint_id = $3";
        let mut values: Vec<(String, String, Vec<u8>)> = Vec::new();
        for row in self.ask(sql, &[&key.thread, &key.namespace, &id]).await? {
            let (channel, word, bytes): (String, String, Vec<u8>) = (row.get(0), row.get(1), row.get(2));
            if word != EMPTY {
                values.retain(|(other, ..)| *other != channel);
                values.push((channel, word, bytes));
            }
        }
        Ok(Stored { skeleton: ("json".into(), skeleton), metadata, values })
    }

    pub async fn writes(&self, key: &ThreadKey, id: &str) -> Result<Vec<StoredWrite>> {
        let path = if self.has_path { "task_path" } else { "''" };
        let sql = format!(
            "SELECT task_id, {path}, idx, channel, coalesce(type, 'null'), blob FROM checkpoint_writes
             WHERE thread_id = $1 AND checkpoint_ns = $2 AND checkpoint_id = $3"
        );
        let rows = self.ask(&sql, &[&key.thread, &key.namespace, &id]).await?;
        let write = |row: &Row| StoredWrite {
            task: row.get(0),
            path: row.get(1),
            write: NewWrite {
                index: i64::from(row.get::<_, i32>(2)),
                channel: row.get(3),
                word: row.get(4),
                bytes: row.get(5),
            },
        };
        Ok(rows.iter().map(write).collect())
    }
}
