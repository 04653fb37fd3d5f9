//! Asking in SQL.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::messages::input;
use super::store::chosen;
use crate::app::App;
use crate::args;
use crate::errors::Usage;
use crate::out::{Table, plain, short};

pub async fn run(app: &mut App, args: args::Sql) -> Result<()> {
    let statement = match args.statement {
        Some(statement) => statement,
        None => input(app, "the statement").await?,
    };
    if statement.trim().is_empty() {
        return Err(Usage(
            "there is no statement: give one, for example milepost sql \"select id, title from sessions\"".into(),
        )
        .into());
    }
    let ids = chosen(app, args.session.as_deref()).await?;
    let engine = app.engine().await?;
    let waiting = app.waiting("reading sessions");
    let table = engine.sql(&ids, &statement).await?;
    waiting.end();
    for (id, why) in &table.left_out {
        app.out.note(format!("without {}: {}", short(id), plain(why)));
    }
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
