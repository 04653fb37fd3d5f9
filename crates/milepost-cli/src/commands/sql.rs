//! Asking in SQL.

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::messages::input;
use super::store::chosen;
use crate::app::App;
use crate::args;
use crate::out::{Table, plain};

pub async fn run(app: &mut App, args: args::Sql) -> Result<()> {
    let statement = match args.statement {
        Some(statement) => statement,
        None => input(app, "the statement").await?,
    };
    let ids = chosen(app, args.session.as_deref()).await?;
    let engine = app.engine().await?;
    let place = Scratch::new()?;
    let waiting = app.waiting("reading sessions");
    let table = engine.sql(&ids, &statement, &place.0.join("sessions.db")).await?;
    waiting.end();
    if table.more {
        app.out.note(format!("only the first {} rows are shown", milepost::MAX_ROWS));
    }
    let (head, rows) = (table.columns, table.rows);
    if app.out.json {
        let list: Vec<Value> =
            rows.into_iter().map(|row| Value::Object(head.iter().cloned().zip(row).collect::<Map<_, _>>())).collect();
        return app.out.json(&json!(list));
    }
    let names: Vec<&str> = head.iter().map(String::as_str).collect();
    let cell = |value: Value| plain(&value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().map(cell).collect()).collect();
    let shrink: Vec<usize> = (0..names.len()).collect();
    app.out.table(Table { head: &names, rows, shrink: &shrink, tall: true, ..Table::default() })
}

/// A directory that goes when it is no longer needed, for this user alone.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let mut name = [0u8; 8];
        milepost::store::system_source().map_err(milepost::Error::from)?.fill(&mut name);
        let path = std::env::temp_dir().join(format!("milepost-sql-{:016x}", u64::from_le_bytes(name)));
        let mut builder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).with_context(|| format!("making the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
