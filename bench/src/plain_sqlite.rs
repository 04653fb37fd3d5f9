//! SQLite as one would use it without Milepost: a connection per session, a transaction per save, plain rows.
//!
//! As durable as Milepost (WAL, `synchronous=FULL`), and nothing more: no history of the state beyond its changed
//! values, no chain, no compression, no index.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};

use crate::Result;
use crate::saver::Saver;
use crate::workload::Step;

/// A database file that sessions connect to.
#[derive(Debug)]
pub struct PlainSqlite {
    path: PathBuf,
}

impl PlainSqlite {
    /// Make an empty database in `dir`.
    pub fn create(dir: &Path) -> Result<Self> {
        let path = dir.join("plain.sqlite");
        connect(&path)?.execute_batch(
            "CREATE TABLE messages (
                 session INTEGER NOT NULL, seq INTEGER NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL,
                 PRIMARY KEY (session, seq)) WITHOUT ROWID;
             CREATE TABLE state_changes (
                 session INTEGER NOT NULL, seq INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
                 PRIMARY KEY (session, seq)) WITHOUT ROWID;
             CREATE TABLE checkpoints (
                 session INTEGER NOT NULL, seq INTEGER NOT NULL, messages INTEGER NOT NULL,
                 PRIMARY KEY (session, seq)) WITHOUT ROWID;",
        )?;
        Ok(Self { path })
    }

    /// A session with a connection of its own.
    pub fn session(&self, number: u64) -> Result<PlainSession> {
        Ok(PlainSession { connection: connect(&self.path)?, session: i64::try_from(number)?, seq: 0 })
    }
}

/// One session of [`PlainSqlite`].
#[derive(Debug)]
pub struct PlainSession {
    connection: Connection,
    session: i64,
    seq: i64,
}

impl Saver for PlainSession {
    fn save(&mut self, step: Step) -> Result<()> {
        let (session, seq) = (self.session, self.seq);
        // Immediate: a deferred transaction that upgrades to write fails at once when another commits first.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut insert = transaction.prepare_cached("INSERT INTO messages VALUES (?1, ?2, ?3, ?4)")?;
            for (i, message) in (0..).zip(&step.messages) {
                insert.execute(params![session, 2 * seq + i, message.role, message.content])?;
            }
            transaction.prepare_cached("INSERT INTO state_changes VALUES (?1, ?2, ?3, ?4)")?.execute(params![
                session,
                seq,
                step.key,
                step.value.to_string()
            ])?;
            transaction.prepare_cached("INSERT INTO checkpoints VALUES (?1, ?2, ?3)")?.execute(params![
                session,
                seq,
                2 * seq + 2
            ])?;
        }
        transaction.commit()?;
        self.seq += 1;
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
