//! The tables and the functions that change them: made once, and brought forward version by version.
//!
//! A migration only adds: tables, columns with defaults, functions under new names. So it can run while programs of
//! the version before work. Where that cannot be, it raises `compatible`, and older programs say that they are too old.

use tokio_postgres::types::Type;

use super::db::{Db, Failed, Fate, column};
use crate::error::{Error, Result};

/// The version of the tables that this program writes.
pub(super) const SCHEMA_VERSION: i32 = 2;
/// The oldest program that can work with them.
const COMPATIBLE: i32 = 2;

const TABLES: &str = include_str!("sql/tables.sql");
const FUNCTIONS: &str = include_str!("sql/functions.sql");
/// What is left of each version when the next is made of it: all but the last one's functions.
const STEPS: [(i32, &str); 1] = [(1, include_str!("sql/from_1.sql"))];

/// Anything: one program at a time makes or changes the tables of a database.
const LOCK: i64 = 0x4d70_7374;

/// Makes what is missing. Returns whether the store has a text index.
pub(super) async fn prepare(db: &Db, text_index: bool) -> Result<bool> {
    let mut tries = 0;
    loop {
        tries += 1;
        match prepare_once(db, text_index).await {
            // Others may have made the schema at the same moment, or the server is just starting.
            Err(Failed { fate: Fate::Undone | Fate::Unknown, .. }) if tries < 4 => db.pause(tries).await,
            outcome => return Ok(outcome?),
        }
    }
}

async fn prepare_once(db: &Db, text_index: bool) -> Result<bool, Failed> {
    let what = "opening the store";
    let mut lent = db.lend(what).await?;
    let found = lent.ask(what, "SELECT current_setting('server_encoding')", &[]).await?;
    let encoding = found.first().map(|row| column::<String>(row, 0)).transpose()?.unwrap_or_default();
    if encoding != "UTF8" {
        let why = format!("its encoding is {encoding}: make a database with ENCODING 'UTF8'");
        return Err(Error::invalid(db.target.words.clone(), why).into());
    }
    let version = "SELECT to_regclass($1) IS NOT NULL";
    let table = format!("{}.versions", db.target.schema);
    let is_there = lent.ask(what, version, &[(&table, Type::TEXT)]).await?;
    let is_there = is_there.first().map(|row| column::<bool>(row, 0)).transpose()?.unwrap_or_default();
    let newest = if is_there { newest(db, &mut lent).await? } else { 0 };
    if newest < SCHEMA_VERSION {
        migrate(db, &mut lent, text_index).await?;
    }
    let sql = db.sql("SELECT text_index FROM {s}.versions WHERE text_index IS NOT NULL ORDER BY version DESC LIMIT 1");
    let rows = lent.ask(what, &sql, &[]).await?;
    let has_text = rows.first().map(|row| column::<bool>(row, 0)).transpose()?.unwrap_or_default();
    lent.give_back();
    Ok(has_text)
}

/// The newest version that is there; refuses one that this program does not know how to work with.
async fn newest(db: &Db, lent: &mut super::db::Lent<'_>) -> Result<i32, Failed> {
    let sql = db.sql("SELECT coalesce(max(version), 0), coalesce(max(compatible), 0) FROM {s}.versions");
    let rows = lent.ask("opening the store", &sql, &[]).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let (version, compatible): (i32, i32) = (column(row, 0)?, column(row, 1)?);
    if compatible > SCHEMA_VERSION {
        return Err(Error::Newer {
            what: db.target.words.clone(),
            found: compatible as u64,
            supported: SCHEMA_VERSION as u64,
        }
        .into());
    }
    Ok(version)
}

async fn migrate(db: &Db, lent: &mut super::db::Lent<'_>, text_index: bool) -> Result<(), Failed> {
    let what = "preparing the tables";
    lent.run(what, "BEGIN").await?;
    lent.run(what, &format!("SELECT pg_advisory_xact_lock({LOCK})")).await?;
    lent.run(what, &db.sql("CREATE SCHEMA IF NOT EXISTS {s}")).await?;
    let versions = "CREATE TABLE IF NOT EXISTS {s}.versions (
      version int NOT NULL, compatible int NOT NULL, text_index boolean, made timestamptz NOT NULL DEFAULT now())";
    lent.run(what, &db.sql(versions)).await?;
    // Another program may have been faster while this one waited for the lock.
    let before = newest(db, lent).await?;
    if before < SCHEMA_VERSION {
        match before {
            0 => lent.run(what, &db.sql(TABLES)).await?,
            _ => {
                for (_, step) in STEPS.iter().filter(|(from, _)| *from >= before) {
                    lent.run(what, &db.sql(step)).await?;
                }
            }
        }
        lent.run(what, &db.sql(FUNCTIONS)).await?;
        // A store keeps the text index that it was made with, or without.
        let note = format!(
            "INSERT INTO {{s}}.versions (version, compatible, text_index) SELECT {SCHEMA_VERSION}, {COMPATIBLE},
             coalesce((SELECT text_index FROM {{s}}.versions ORDER BY version DESC LIMIT 1), {text_index})"
        );
        lent.run(what, &db.sql(&note)).await?;
    }
    lent.run(what, "COMMIT").await
}
