//! The tables, how a connection is set up, and what SQLite's errors mean.
//!
//! `entries` is the log: its key is the timeline's number in the upper and the entry's number in the
//! lower 32 bits, so that a timeline lies together and needs no further index. `timelines` belongs to
//! the log too. `sessions` (but for the lease), `marks`, `keyframes` (unless pinned), `unindexed` and
//! `texts` are derived. The views `messages` and
//! `checkpoints` are for people with a `sqlite3` prompt.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::{Error, Result};
use crate::private;

/// The version of the tables that this program writes.
pub(super) const SCHEMA_VERSION: i64 = 1;
/// "Mpst": says in the file's header whose it is.
const APPLICATION_ID: i64 = 0x4d70_7374;
/// SQLite before this can damage a WAL database that several processes use.
const SQLITE_MIN: i32 = 3_051_003;
/// How long to wait for another process that writes.
pub(super) const BUSY_MS: u64 = 30_000;
/// Pages in the WAL before they are copied into the database.
pub(super) const WAL_PAGES: i64 = 1000;

const TABLES: &str = "
CREATE TABLE sessions (
  no INTEGER PRIMARY KEY,
  workspace TEXT NOT NULL,
  id TEXT NOT NULL,
  status TEXT NOT NULL,
  title TEXT,
  project TEXT, agent TEXT, feature TEXT, task TEXT, stage TEXT,
  tags TEXT,
  messages INTEGER NOT NULL,
  checkpoints INTEGER NOT NULL,
  created INTEGER NOT NULL,
  active INTEGER NOT NULL,
  preview TEXT,
  trashed INTEGER,
  hidden INTEGER NOT NULL,
  length INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  owner TEXT,
  holder TEXT NOT NULL,
  lease_until INTEGER NOT NULL,
  detail BLOB NOT NULL,
  UNIQUE (workspace, id)
);
CREATE TABLE timelines (
  no INTEGER PRIMARY KEY AUTOINCREMENT,
  workspace TEXT NOT NULL,
  id TEXT NOT NULL,
  session TEXT NOT NULL,
  parent INTEGER,
  parent_seq INTEGER,
  head TEXT,
  indexed INTEGER NOT NULL,
  UNIQUE (workspace, id)
);
CREATE INDEX timelines_session ON timelines (workspace, session);
CREATE INDEX timelines_parent ON timelines (parent) WHERE parent IS NOT NULL;
CREATE TABLE entries (
  id INTEGER PRIMARY KEY,
  version INTEGER NOT NULL,
  kind INTEGER NOT NULL,
  time INTEGER NOT NULL,
  label TEXT,
  channel TEXT,
  text TEXT,
  body BLOB NOT NULL,
  refs BLOB,
  batch BLOB,
  chain BLOB,
  mac BLOB,
  sum INTEGER NOT NULL
);
CREATE INDEX entries_refs ON entries (id) WHERE refs IS NOT NULL;
CREATE TABLE marks (
  id INTEGER PRIMARY KEY,
  checkpoint TEXT NOT NULL,
  time INTEGER NOT NULL,
  trigger TEXT NOT NULL,
  label TEXT,
  clean INTEGER NOT NULL,
  resumable INTEGER NOT NULL,
  kept INTEGER NOT NULL,
  messages INTEGER NOT NULL,
  trashed INTEGER
);
CREATE INDEX marks_checkpoint ON marks (checkpoint);
CREATE TABLE keyframes (
  id INTEGER PRIMARY KEY,
  pinned INTEGER NOT NULL,
  body BLOB NOT NULL
);
CREATE TABLE blobs (
  no INTEGER PRIMARY KEY,
  workspace TEXT NOT NULL,
  id BLOB NOT NULL,
  touched INTEGER NOT NULL,
  body BLOB NOT NULL,
  UNIQUE (workspace, id)
);
CREATE TABLE records (
  workspace TEXT NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  due INTEGER,
  value BLOB NOT NULL,
  PRIMARY KEY (workspace, kind, key)
) WITHOUT ROWID;
CREATE INDEX records_due ON records (workspace, kind, due, key) WHERE due IS NOT NULL;
CREATE TABLE unindexed (timeline INTEGER PRIMARY KEY);
CREATE VIEW messages AS
  SELECT t.workspace, t.session, t.id AS timeline, e.id & 0xffffffff AS seq,
         datetime(e.time / 1000, 'unixepoch') AS time, e.label AS role,
         coalesce(e.channel, 'main') AS channel, e.text, length(e.body) AS body_bytes
  FROM entries e JOIN timelines t ON t.no = e.id >> 32
  WHERE e.kind = 1;
CREATE VIEW checkpoints AS
  SELECT t.workspace, t.session, t.id AS timeline, m.id & 0xffffffff AS seq, m.checkpoint AS id,
         datetime(m.time / 1000, 'unixepoch') AS time, m.trigger, m.label, m.clean, m.resumable, m.messages,
         m.trashed IS NOT NULL AS trashed
  FROM marks m JOIN timelines t ON t.no = m.id >> 32;
";

pub(super) const TEXT_INDEX: &str = "
CREATE VIRTUAL TABLE texts USING fts5(
  text, content='', contentless_delete=1, tokenize=\"unicode61 remove_diacritics 2\"
);
INSERT INTO texts (texts, rank) VALUES ('automerge', 16), ('crisismerge', 64);
";

/// What the text index is made by, and what it lacks: a row for the rules, and one for each timeline of which something
/// could not be read or was too long.
pub(super) const TEXT_GAPS: &str = "
CREATE TABLE IF NOT EXISTS text_gaps (
  timeline INTEGER NOT NULL, why TEXT NOT NULL, PRIMARY KEY (timeline, why)
) WITHOUT ROWID;
INSERT OR IGNORE INTO text_gaps (timeline, why) VALUES (0, 'rules 4');
";

/// How a store file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Write,
    Read,
}

/// What an SQLite error means to a caller.
pub(super) fn fail(what: &str) -> impl Fn(rusqlite::Error) -> Error + '_ {
    move |error| {
        let what = what.to_owned();
        let why = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Error::NoSpace { what },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Error::ReadOnly { what },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corrupt { what, why },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Busy { what, waited_ms: BUSY_MS },
            Some(ErrorCode::TooBig) => Error::invalid(what, why),
            Some(_) => Error::Io { what, why },
            // Not from SQLite: a column holds something that was never written there.
            None => Error::Corrupt { what, why },
        }
    }
}

/// Opens a connection and asserts that it is set up as durability needs it.
pub(super) fn connect(path: &Path, mode: Mode) -> Result<Connection> {
    if rusqlite::version_number() < SQLITE_MIN {
        return Err(Error::invalid(
            "SQLite",
            format!("version {} can damage a store; 3.51.3 or newer is needed", rusqlite::version()),
        ));
    }
    let what = format!("opening {}", path.display());
    let access = match mode {
        Mode::Write => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        // Readers of a WAL database write to its shared memory.
        Mode::Read => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    if mode == Mode::Write {
        // A file that cannot be made is SQLite's to tell.
        let _ = private::create_if_missing(path);
    }
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(|error| {
        match error.sqlite_error_code() {
            Some(ErrorCode::CannotOpen) => Error::invalid(
                path.display().to_string(),
                "it cannot be opened: the directory must exist and be writable",
            ),
            _ => fail(&what)(error),
        }
    })?;
    let failed = |error: rusqlite::Error| match error.sqlite_error_code() {
        // The file itself is open: what cannot be made is the log beside it.
        Some(ErrorCode::CannotOpen) => Error::ReadOnly { what: format!("{}, or its directory,", path.display()) },
        _ => fail(&what)(error),
    };
    connection.busy_timeout(Duration::from_millis(BUSY_MS)).map_err(&failed)?;
    connection.set_prepared_statement_cache_capacity(64);
    // A plan is made once, not anew for every value that is bound.
    connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(&failed)?;
    let pragma = |name: &str, value: &str| {
        connection.query_row(&format!("PRAGMA {name}={value}"), [], |_| Ok(())).or_else(|error| match error {
            rusqlite::Error::QueryReturnedNoRows => Ok(()),
            other => Err(other),
        })
    };
    let text =
        |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, rusqlite::types::Value>(0));
    match mode {
        Mode::Write => {
            // The switch changes the file: first be sure that it is ours.
            identify(&connection, path)?;
            let mode = switch_to_wal(&connection).map_err(&failed)?;
            if mode != "wal" {
                return Err(Error::ReadOnly { what: format!("{} (no WAL there: {mode})", path.display()) });
            }
            pragma("synchronous", "FULL").map_err(&failed)?;
            pragma("wal_autocheckpoint", &WAL_PAGES.to_string()).map_err(&failed)?;
            // What is removed from a page that is written anyway is overwritten there.
            pragma("secure_delete", "FAST").map_err(&failed)?;
            pragma("journal_size_limit", &(WAL_PAGES * 4096 * 4).to_string()).map_err(&failed)?;
            if text("synchronous").map_err(&failed)? != rusqlite::types::Value::Integer(2) {
                return Err(Error::invalid("SQLite", "it does not take synchronous=FULL"));
            }
        }
        Mode::Read => pragma("query_only", "ON").map_err(&failed)?,
    }
    pragma("cache_size", "-8192").map_err(&failed)?;
    pragma("temp_store", "MEMORY").map_err(&failed)?;
    Ok(connection)
}

/// Switches to a write-ahead log, and says what the mode is then. Of two who switch a new file at the same moment, SQLite
/// refuses one at once instead of letting it wait: it tries again, for as long as others are waited for.
fn switch_to_wal(connection: &Connection) -> rusqlite::Result<String> {
    const TRY_MS: u64 = 100;
    const PAUSE: Duration = Duration::from_millis(5);
    connection.busy_timeout(Duration::from_millis(TRY_MS))?;
    let mut tries = BUSY_MS / TRY_MS;
    let mode = loop {
        tries -= 1;
        // The switch is committed only after its answer was read: step to the end, or an error is lost.
        match connection.query_one("PRAGMA journal_mode=WAL", [], |row| row.get(0)) {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && tries > 0 => {
                std::thread::park_timeout(PAUSE);
            }
            done => break done?,
        }
    };
    connection.busy_timeout(Duration::from_millis(BUSY_MS))?;
    Ok(mode)
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    Store,
}

/// Makes the tables in a new file, or checks the version of an old one.
pub(super) fn prepare(connection: &Connection, path: &Path, text_index: bool) -> Result<()> {
    match identify(connection, path)? {
        Holds::Nothing => create(connection, text_index).map_err(fail(&format!("preparing {}", path.display()))),
        Holds::Store => Ok(()),
    }
}

/// Whether the text index is made by the rules of this version, and says what it lacks.
pub(super) fn has_text_rules(connection: &Connection) -> Result<bool> {
    let has = |sql: &str| connection.prepare_cached(sql).and_then(|mut s| s.exists([]));
    has("SELECT 1 FROM sqlite_schema WHERE name = 'text_gaps'")
        .and_then(|is_there| Ok(is_there && has("SELECT 1 FROM text_gaps WHERE timeline = 0 AND why = 'rules 4'")?))
        .map_err(fail("reading the store"))
}

/// Says what a file holds; refuses what is another program's or of a newer version.
fn identify(connection: &Connection, path: &Path) -> Result<Holds> {
    let what = format!("opening {}", path.display());
    let failed = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen) => Error::ReadOnly { what: format!("{}, or its directory,", path.display()) },
        _ => fail(&what)(error),
    };
    // One statement, one state of the file: another process may be making the tables.
    let sql = "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)
               FROM pragma_user_version, pragma_application_id";
    let (version, application, tables): (i64, i64, i64) =
        connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(&failed)?;
    if version == 0 {
        if tables > 0 || application != 0 {
            return Err(Error::invalid(
                path.display().to_string(),
                "it is a database of another program: name a new file, or a Milepost store",
            ));
        }
        return Ok(Holds::Nothing);
    }
    if application != APPLICATION_ID {
        return Err(Error::invalid(
            path.display().to_string(),
            "it is a database of another program: name a new file, or a Milepost store",
        ));
    }
    if version > SCHEMA_VERSION {
        return Err(Error::Newer {
            what: path.display().to_string(),
            found: version as u64,
            supported: SCHEMA_VERSION as u64,
        });
    }
    Ok(Holds::Store)
}

fn create(connection: &Connection, text_index: bool) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN EXCLUSIVE")?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    // Another process may have made the tables while this one waited.
    if version == 0 {
        connection.execute_batch(TABLES)?;
        if text_index {
            connection.execute_batch(TEXT_INDEX)?;
            connection.execute_batch(TEXT_GAPS)?;
        }
        connection
            .execute_batch(&format!("PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION};"))?;
    }
    connection.execute_batch("COMMIT")
}

/// Runs something that removes what nobody may find any more: pages that become free are overwritten as well.
pub(super) fn overwriting<T>(connection: &Connection, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let set = |value: &str| {
        connection
            .query_row(&format!("PRAGMA secure_delete={value}"), [], |_| Ok(()))
            .map_err(fail("having what is removed overwritten"))
    };
    set("ON")?;
    let done = work();
    set("FAST")?;
    done
}

/// Takes FTS5 from a connection, so that checking the file does not walk through every word of the text index as well.
pub(super) fn forget_modules(connection: &Connection) {
    #[allow(unsafe_code, reason = "there is no other way to the call")]
    // SAFETY: the handle is open for as long as the connection is borrowed, and a null list means that none is kept.
    unsafe {
        rusqlite::ffi::sqlite3_drop_modules(connection.handle(), std::ptr::null_mut());
    }
}

/// Whether this store has a text index.
pub(super) fn has_text_index(connection: &Connection) -> Result<bool> {
    connection
        .query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'texts'", [], |row| row.get::<_, i64>(0))
        .map(|count| count > 0)
        .map_err(fail("reading the store"))
}
