//! Sessions as tables: what was asked for is written into a SQLite file of its own, and a statement runs there.

use std::path::Path;

use milepost_model::SessionId;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, InterruptHandle, OpenFlags};
use serde_json::Value;

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::transfer::export;

/// At most so many rows are given.
pub const MAX_ROWS: usize = 100_000;

/// What a statement gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Value>>,
    /// There were more than [`MAX_ROWS`].
    pub more: bool,
}

impl Milepost {
    /// Asks in SQL. The tables `sessions`, `messages` and `checkpoints` hold these sessions, with whole states; nothing
    /// can be changed, and no other file be read. A statement that nobody waits for any more is stopped.
    ///
    /// `scratch` is a file that is not there yet. It holds what is asked for in clear, so it loses its name before the
    /// statement runs; where a system cannot do that, it is removed at the end. Who gives up waiting before that removes
    /// what is left.
    pub async fn sql(&self, sessions: &[SessionId], statement: &str, scratch: &Path) -> Result<Table> {
        export::sqlite(self.store(), sessions, scratch).await?;
        let database = open(scratch);
        // The connection keeps what the name no longer leads to. Not every system removes a file that is open.
        let left = std::fs::remove_file(scratch).is_err().then(|| scratch.to_owned());
        let database = database.map_err(refused)?;
        let stop = Stop(database.get_interrupt_handle());
        let statement = statement.to_owned();
        let table = tokio::task::spawn_blocking(move || {
            let table = run(&database, &statement);
            drop(database);
            let _ = left.map(std::fs::remove_file);
            table
        });
        let table = table.await.map_err(|error| Error::refused("the statement", error.to_string(), "try another"))?;
        drop(stop);
        table.map_err(refused)
    }
}

fn refused(error: rusqlite::Error) -> Error {
    Error::refused(
        "the statement",
        error.to_string(),
        "tables are sessions, messages and checkpoints, and `select * from messages limit 1` shows the columns of one",
    )
}

/// Stops the statement when nobody waits for it any more.
struct Stop(InterruptHandle);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.interrupt();
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    // Neither ATTACH nor VACUUM INTO reaches another file.
    database.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    Ok(database)
}

fn run(database: &Connection, statement: &str) -> rusqlite::Result<Table> {
    let mut prepared = database.prepare(statement)?;
    if !prepared.readonly() {
        return Err(rusqlite::Error::ToSqlConversionFailure("it would write, and these tables are only read".into()));
    }
    let columns: Vec<String> = prepared.column_names().map(str::to_owned).collect();
    let (mut rows, mut more) = (Vec::new(), false);
    let mut found = prepared.query([])?;
    while let Some(row) = found.next()? {
        if rows.len() == MAX_ROWS {
            more = true;
            break;
        }
        let cells = (0..columns.len()).map(|at| Ok(cell(row.get_ref(at)?)));
        rows.push(cells.collect::<rusqlite::Result<_>>()?);
    }
    Ok(Table { columns, rows, more })
}

fn cell(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned().into(),
        ValueRef::Blob(bytes) => format!("{} bytes", bytes.len()).into(),
    }
}
