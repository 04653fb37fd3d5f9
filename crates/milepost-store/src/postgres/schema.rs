//! The tables and the functions that change them: made once, and brought forward version by version.
//!
//! A migration only adds: tables, columns without a value, functions under new names. So it can run while programs of
//! the version before work, and they go on: what they call stays, and keeps what is new to them. Where that cannot be,
//! it raises `compatible`, and older programs say that they are too old.
//!
//! Everything is done in one transaction that changes no row of a session, so that whoever waits for it waits for a moment.
//! It does not wait long itself for locks that others hold: whoever came after it would wait for those too.

use tokio_postgres::types::Type;

use super::db::{Db, Failed, Fate, column};
use crate::error::{Error, Result};

/// The version of the tables that this program writes.
pub(super) const SCHEMA_VERSION: i32 = 3;
/// The oldest program that works with tables that this one made.
const FRESH_COMPATIBLE: i32 = 2;

const TABLES: &str = include_str!("sql/tables.sql");
const FUNCTIONS: &str = include_str!("sql/functions.sql");
/// What makes each version of the one before, but for its functions; and the oldest program that can work with that.
const STEPS: [(i32, i32, &str); 2] = [(1, 1, include_str!("sql/from_1.sql")), (2, 1, include_str!("sql/from_2.sql"))];
/// Comes when all tables and functions are there: appends wait for its lock.
const TRIGGER: &str = "CREATE TRIGGER recut AFTER DELETE ON {s}.unindexed
  REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {s}.recut_3()";

/// Anything: one program at a time makes or changes the tables of a database.
const LOCK: i64 = 0x4d70_7374;
/// How long a lock of a table is waited for: everybody else waits behind. After a second the server sends its own vacuum
/// away. Functions may come before what they speak of, so that the locks come last.
const WHILE_OTHERS_WORK: &str = "SET LOCAL lock_timeout TO '1500ms'; SET LOCAL check_function_bodies TO off";
/// How often it is tried. Readers of the whole store hold such locks longest.
const TABLE_TRIES: u32 = 30;

/// Makes what is missing. Returns whether the store has a text index.
pub(super) async fn prepare(db: &Db, text_index: bool) -> Result<bool> {
    let mut tries = 0;
    loop {
        tries += 1;
        match prepare_once(db, text_index).await {
            // Others may have made the schema at the same moment, or the server is just starting.
            Err(Failed { fate: Fate::Undone | Fate::Unknown, .. }) if tries < 4 => db.pause(tries).await,
            // Others work with the tables that are to change.
            Err(Failed { error: Error::Busy { .. }, .. }) if tries < TABLE_TRIES => db.pause(tries).await,
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
        let compatible = match before {
            0 => {
                lent.run(what, &db.sql(TABLES)).await?;
                lent.run(what, &db.sql(FUNCTIONS)).await?;
                FRESH_COMPATIBLE
            }
            _ => {
                lent.run(what, WHILE_OTHERS_WORK).await?;
                lent.run(what, &db.sql(FUNCTIONS)).await?;
                let mut oldest = SCHEMA_VERSION;
                for (_, compatible, step) in STEPS.iter().filter(|(from, ..)| *from >= before) {
                    lent.run(what, &db.sql(step)).await?;
                    oldest = *compatible;
                }
                oldest
            }
        };
        lent.run(what, &db.sql(TRIGGER)).await?;
        // A store keeps the text index that it was made with, or without.
        let note = format!(
            "INSERT INTO {{s}}.versions (version, compatible, text_index) SELECT {SCHEMA_VERSION}, {compatible},
             coalesce((SELECT text_index FROM {{s}}.versions ORDER BY version DESC LIMIT 1), {text_index})"
        );
        lent.run(what, &db.sql(&note)).await?;
    }
    lent.run(what, "COMMIT").await
}
