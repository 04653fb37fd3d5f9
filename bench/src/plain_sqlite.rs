//! SQLite as one would use it without Milepost: a connection per session, a transaction per save.
//!
//! It writes the very rows that Milepost writes, to the same tables and indexes, and is as durable (WAL,
//! `synchronous=FULL`). The rows were made beforehand: of finding out what changed, hashing, chaining and compressing,
//! it does nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use milepost_store::block_on;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, TransactionBehavior, params, params_from_iter};

use crate::Result;
use crate::milepost::{FILE, Hand, Session, open};
use crate::saver::{STEPS_MADE, Saver, steps_of_load};
use crate::workload::{Step, Workload};

/// The rows of one save.
#[derive(Debug, Default, Clone)]
struct Rows {
    entries: Vec<Vec<Sql>>,
    marks: Vec<Vec<Sql>>,
    keyframes: Vec<Vec<Sql>>,
    /// What the session's own row is set to.
    session: Vec<Sql>,
}

const SESSION_COLUMNS: [&str; 7] = ["messages", "checkpoints", "active", "preview", "length", "lease_until", "detail"];

/// A database file that sessions connect to.
#[derive(Debug)]
pub struct PlainSqlite {
    path: PathBuf,
    text_index: bool,
    saves: Vec<Rows>,
}

impl PlainSqlite {
    /// Makes a database in `dir` with the tables of a Milepost store, and the rows to write to it.
    pub fn create(dir: &Path, seed: u64, sessions: usize, text_index: bool) -> Result<Self> {
        let saves = record(seed, dir)?;
        let path = dir.join(FILE);
        block_on(async {
            let store = open(dir, text_index).await?;
            for number in 0..sessions as u64 {
                Session::begin(&store, &Workload::new(seed, number), Hand::Delta).await?.release().await?;
            }
            Ok::<_, crate::Error>(store.close().await?)
        })?;
        Ok(Self { path, text_index, saves })
    }

    /// A session with a connection of its own.
    pub fn session(&self, number: u64) -> Result<PlainSession> {
        let connection = connect(&self.path)?;
        let sql = "SELECT no, (SELECT max(id) & 0xffffffff FROM entries WHERE id >> 32 = no) FROM timelines
                   ORDER BY no LIMIT 1 OFFSET ?1";
        let (timeline, last): (i64, i64) =
            connection.query_row(sql, [i64::try_from(number)?], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (text_index, saves) = (self.text_index, self.saves.clone());
        Ok(PlainSession { connection, timeline, next: last + 1, saves, saved: 0, text_index })
    }
}

/// Saves the steps of a load through Milepost, one by one, and takes the rows of each.
fn record(seed: u64, dir: &Path) -> Result<Vec<Rows>> {
    let dir = tempfile::tempdir_in(dir)?;
    let db = block_on(async {
        let store = open(dir.path(), false).await?;
        let mut session = Session::begin(&store, &Workload::new(seed, 0), Hand::Whole).await?;
        let db = connect(&dir.path().join(FILE))?;
        let mut saves = Vec::new();
        let mut seen = last_entry(&db)?;
        for step in steps_of_load(seed, 0) {
            session.save(step).await?;
            let rows = |table: &str| -> Result<Vec<Vec<Sql>>> {
                let mut statement = db.prepare_cached(&format!("SELECT * FROM {table} WHERE id > ?1 ORDER BY id"))?;
                let columns = statement.column_count();
                let rows = statement.query_map([seen], |row| (0..columns).map(|at| row.get(at)).collect())?;
                Ok(rows.collect::<rusqlite::Result<_>>()?)
            };
            let columns = SESSION_COLUMNS.join(", ");
            let own = db.query_row(&format!("SELECT {columns} FROM sessions"), [], |row| {
                (0..SESSION_COLUMNS.len()).map(|at| row.get(at)).collect()
            })?;
            saves.push(Rows {
                entries: rows("entries")?,
                marks: rows("marks")?,
                keyframes: rows("keyframes")?,
                session: own,
            });
            seen = last_entry(&db)?;
        }
        session.release().await?;
        store.close().await?;
        Ok::<_, crate::Error>(saves)
    })?;
    Ok(db)
}

fn last_entry(db: &Connection) -> Result<i64> {
    Ok(db.query_row("SELECT max(id) FROM entries", [], |row| row.get(0))?)
}

/// One session of [`PlainSqlite`].
#[derive(Debug)]
pub struct PlainSession {
    connection: Connection,
    timeline: i64,
    next: i64,
    saves: Vec<Rows>,
    saved: usize,
    text_index: bool,
}

impl Saver for PlainSession {
    fn save(&mut self, step: Step) -> Result<()> {
        let rows = &mut self.saves[self.saved % STEPS_MADE];
        // Immediate: a deferred transaction that upgrades to write fails at once when another commits first.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?;
            let first = self.timeline << 32 | self.next;
            for (id, row) in (first..).zip(&mut rows.entries) {
                row[0] = id.into();
                insert.execute(params_from_iter(row.iter()))?;
            }
            let last = first + rows.entries.len() as i64 - 1;
            let mut insert =
                transaction.prepare_cached("INSERT INTO marks VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
            for row in &mut rows.marks {
                row[0] = last.into();
                insert.execute(params_from_iter(row.iter()))?;
            }
            let mut insert = transaction.prepare_cached("INSERT INTO keyframes VALUES (?1, ?2, ?3)")?;
            for row in &mut rows.keyframes {
                row[0] = last.into();
                insert.execute(params_from_iter(row.iter()))?;
            }
            let [messages, checkpoints, active, preview, length, lease_until, detail] = SESSION_COLUMNS;
            transaction
                .prepare_cached(&format!(
                    "UPDATE sessions SET {messages} = ?1, {checkpoints} = ?2, {active} = ?3, {preview} = ?4,
                            {length} = ?5, {lease_until} = ?6, {detail} = ?7 WHERE no = ?8"
                ))?
                .execute(params_from_iter(rows.session.iter().chain([&Sql::Integer(self.timeline)])))?;
            if self.text_index {
                let mut insert = transaction.prepare_cached("INSERT INTO texts (rowid, text) VALUES (?1, ?2)")?;
                for (id, message) in (first..).zip(&step.messages) {
                    insert.execute(params![id, message.content])?;
                }
            }
        }
        transaction.commit()?;
        self.next += rows.entries.len() as i64;
        self.saved += 1;
        Ok(())
    }
}

fn connect(path: &Path) -> Result<Connection> {
    let connection = Connection::open(path)?;
    // Longer than any run: a session that waits this long has failed the benchmark anyway.
    connection.busy_timeout(Duration::from_secs(120))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}
