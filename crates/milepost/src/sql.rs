//! Sessions as tables: what was asked for is written into a SQLite file of its own, and a statement runs there.

use std::path::Path;

use milepost_model::SessionId;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
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
    /// can be changed. `scratch` is a file that is not there yet; the caller removes it.
    pub async fn sql(&self, sessions: &[SessionId], statement: &str, scratch: &Path) -> Result<Table> {
        export::sqlite(self.store(), sessions, scratch).await?;
        run(scratch, statement)
            .map_err(|error| Error::refused("the statement", error.to_string(), "tables are sessions, messages and checkpoints, and `select * from messages limit 1` shows the columns of one"))
    }
}

fn run(path: &Path, statement: &str) -> rusqlite::Result<Table> {
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut prepared = database.prepare(statement)?;
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
