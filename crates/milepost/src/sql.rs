//! Sessions as tables: what was asked for is written into a SQLite database of its own, and a statement runs there.

use milepost_model::SessionId;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, InterruptHandle};
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
    /// Sessions that cannot be read and are not in the tables, each with why: its key was destroyed, or it is damaged.
    pub left_out: Vec<(SessionId, String)>,
}

impl Milepost {
    /// Asks in SQL. The tables `sessions`, `messages` and `checkpoints` hold these sessions, with whole states; nothing
    /// can be changed, and no other file be read. A statement that nobody waits for any more is stopped. What is asked for
    /// lies in no file that has a name.
    pub async fn sql(&self, sessions: &[SessionId], statement: &str) -> Result<Table> {
        let (database, left_out) = export::tables(self.store(), sessions).await?;
        only_read(&database).map_err(refused)?;
        let stop = Stop(database.get_interrupt_handle());
        let statement = statement.to_owned();
        let table = tokio::task::spawn_blocking(move || run(&database, &statement));
        let table = table.await.map_err(|error| Error::refused("the statement", error.to_string(), "try another"))?;
        drop(stop);
        Ok(Table { left_out, ..table.map_err(refused)? })
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

fn only_read(database: &Connection) -> rusqlite::Result<()> {
    database.pragma_update(None, "query_only", true)?;
    // Neither ATTACH nor VACUUM INTO reaches another file.
    database.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    Ok(())
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
    Ok(Table { columns, rows, more, left_out: Vec::new() })
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
