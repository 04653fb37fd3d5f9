//! Sessions as a SQLite database that a person can query: `sessions`, `messages`, and `checkpoints` with whole states.

use std::path::Path;

use milepost_model::SessionId;
use milepost_store::{Error as StoreError, KeyError, MarkQuery, Store};
use rusqlite::{Connection, params};

use super::messages::Messages;
use super::shapes::StepDone;
use crate::error::{Error, Result};
use crate::transfer::triggers;

/// A table: its name, its columns, each with its type, and what else holds for its rows.
struct Form {
    name: &'static str,
    columns: &'static [(&'static str, &'static str)],
    rules: &'static str,
}

/// Every table, in the order in which rows are written.
const TABLES: [Form; 3] = [
    Form {
        name: "sessions",
        columns: &[
            ("id", "TEXT PRIMARY KEY"),
            ("project_id", "TEXT"),
            ("title", "TEXT"),
            ("status", "TEXT NOT NULL"),
            ("agent", "TEXT"),
            ("feature", "TEXT"),
            ("task", "TEXT"),
            ("stage", "TEXT"),
            ("tags", "TEXT NOT NULL"),
            ("created_at", "TEXT NOT NULL"),
            ("last_active_at", "TEXT NOT NULL"),
            ("message_count", "INTEGER NOT NULL"),
            ("checkpoint_count", "INTEGER NOT NULL"),
            ("state_json", "TEXT NOT NULL"),
        ],
        rules: "",
    },
    Form {
        name: "messages",
        columns: &[
            ("session_id", "TEXT NOT NULL REFERENCES sessions (id)"),
            ("seq", "INTEGER NOT NULL"),
            ("created_at", "TEXT NOT NULL"),
            ("channel", "TEXT NOT NULL"),
            ("role", "TEXT NOT NULL"),
            ("text", "TEXT NOT NULL"),
            ("message_json", "TEXT NOT NULL"),
        ],
        rules: ", PRIMARY KEY (session_id, seq)",
    },
    Form {
        name: "checkpoints",
        columns: &[
            ("id", "TEXT NOT NULL"),
            ("session_id", "TEXT NOT NULL REFERENCES sessions (id)"),
            ("project_id", "TEXT"),
            ("step_number", "INTEGER NOT NULL"),
            ("created_at", "TEXT NOT NULL"),
            ("state_json", "TEXT NOT NULL"),
            ("description", "TEXT"),
            ("trigger_type", "TEXT NOT NULL"),
            ("duration_ms", "INTEGER"),
            ("token_usage", "TEXT"),
            ("trigger", "TEXT NOT NULL"),
            ("label", "TEXT"),
            ("seq", "INTEGER NOT NULL"),
            ("message_count", "INTEGER NOT NULL"),
            ("is_clean", "INTEGER NOT NULL"),
            ("can_resume_from", "INTEGER NOT NULL"),
        ],
        rules: ", PRIMARY KEY (session_id, id)",
    },
];

const INDEXES: &str = "CREATE INDEX checkpoints_time ON checkpoints (session_id, created_at);";

/// The tables of such a database, each with the names of its columns.
pub fn sqlite_tables() -> impl Iterator<Item = (&'static str, impl Iterator<Item = &'static str>)> {
    TABLES.into_iter().map(|table| (table.name, table.columns.iter().map(|(name, _)| *name)))
}

fn create_tables() -> String {
    let table = |table: &Form| {
        let columns: Vec<String> = table.columns.iter().map(|(name, form)| format!("{name} {form}")).collect();
        format!("CREATE TABLE {} ({}{});\n", table.name, columns.join(", "), table.rules)
    };
    TABLES.iter().map(table).chain([INDEXES.to_owned()]).collect()
}

/// What a database holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SqliteExported {
    /// Sessions.
    pub sessions: u64,
    /// Messages.
    pub messages: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Checkpoints that could not be read, and are not there.
    pub skipped: u64,
}

fn is_shredded(error: &StoreError) -> bool {
    matches!(error, StoreError::Key(KeyError::Shredded { .. }))
}

fn failed(path: &Path, error: impl ToString) -> Error {
    Error::file(format!("writing {}", path.display()), error.to_string())
}

/// Writes sessions into a new database. A file that is there is not touched.
pub async fn sqlite(store: &Store, sessions: &[SessionId], path: &Path) -> Result<SqliteExported> {
    // The name is taken before anything is written to it: nobody's file is overwritten, no link followed.
    milepost_store::private::create_new(path).map_err(|error| failed(path, error))?;
    match write(store, sessions, path).await {
        Ok(done) => Ok(done),
        Err(error) => {
            // Half a database is worse than none.
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

async fn write(store: &Store, sessions: &[SessionId], path: &Path) -> Result<SqliteExported> {
    let sql = |error: rusqlite::Error| failed(path, error);
    let mut rows = Rows::begin(Connection::open(path).map_err(sql)?).map_err(sql)?;
    for id in sessions {
        write_session(store, *id, &mut rows, path).await?;
    }
    let (_, done) = rows.commit().map_err(sql)?;
    Ok(done)
}

/// Sessions as tables that nobody else sees: SQLite keeps them in memory, and what does not fit there in a file without a
/// name, of which nothing is left however the process ends. Sessions that cannot be read are left out, and told with why.
pub(crate) async fn tables(store: &Store, sessions: &[SessionId]) -> Result<(Connection, Vec<(SessionId, String)>)> {
    let place = Path::new("the tables");
    let sql = |error: rusqlite::Error| failed(place, error);
    let mut rows = Rows::begin(Connection::open("").map_err(sql)?).map_err(sql)?;
    let mut left_out = Vec::new();
    for id in sessions {
        rows.batch("SAVEPOINT one").map_err(sql)?;
        let end = match write_session(store, *id, &mut rows, place).await {
            Ok(()) => "RELEASE one",
            Err(Error::Store(error)) if error.is_damage() || is_shredded(&error) => {
                left_out.push((*id, error.finding()));
                "ROLLBACK TO one; RELEASE one"
            }
            Err(error) => return Err(error),
        };
        rows.batch(end).map_err(sql)?;
    }
    let (database, _) = rows.commit().map_err(sql)?;
    Ok((database, left_out))
}

async fn write_session(store: &Store, id: SessionId, rows: &mut Rows, path: &Path) -> Result<()> {
    let sql = |error: rusqlite::Error| failed(path, error);
    let session = store.session(id).await?;
    let state = store.state(id).await?.into_value().to_string();
    rows.session(&session, &state).map_err(sql)?;
    let mut messages = Messages::new(store, id);
    loop {
        let page = messages.next().await?;
        if page.is_empty() {
            break;
        }
        for found in &page {
            let json = serde_json::to_string(&found.message).map_err(|error| failed(path, error))?;
            rows.message(id, found, &json).map_err(sql)?;
        }
    }
    for mark in store.marks(id, &MarkQuery { oldest_first: true, ..MarkQuery::default() }).await? {
        match store.load(mark.checkpoint.id).await {
            Ok(loaded) => rows.checkpoint(&session, &loaded).map_err(sql)?,
            Err(error) if error.is_damage() => rows.done.skipped += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The tables, while they are filled.
struct Rows {
    db: std::sync::Mutex<Connection>,
    done: SqliteExported,
}

impl Rows {
    fn begin(db: Connection) -> rusqlite::Result<Self> {
        db.execute_batch("PRAGMA journal_mode = DELETE; BEGIN IMMEDIATE;")?;
        db.execute_batch(&create_tables())?;
        Ok(Self { db: std::sync::Mutex::new(db), done: SqliteExported::default() })
    }

    fn db(&mut self) -> &mut Connection {
        self.db.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn batch(&mut self, sql: &str) -> rusqlite::Result<()> {
        self.db().execute_batch(sql)
    }

    fn commit(mut self) -> rusqlite::Result<(Connection, SqliteExported)> {
        self.batch("COMMIT;")?;
        Ok((self.db.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner), self.done))
    }

    fn session(&mut self, session: &milepost_model::Session, state: &str) -> rusqlite::Result<()> {
        self.done.sessions += 1;
        let tags = serde_json::to_string(&session.tags).unwrap_or_default();
        let (messages, checkpoints) = (session.messages() as i64, session.checkpoints as i64);
        let mut insert = self.db().prepare_cached("INSERT INTO sessions VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)")?;
        insert.execute(params![
            session.id.to_string(),
            session.project,
            session.title,
            session.status.as_str(),
            session.agent,
            session.feature,
            session.task,
            session.stage,
            tags,
            session.created.to_string(),
            session.active.to_string(),
            messages,
            checkpoints,
            state
        ])?;
        Ok(())
    }

    fn message(&mut self, id: SessionId, found: &milepost_store::StoredMessage, json: &str) -> rusqlite::Result<()> {
        self.done.messages += 1;
        let mut insert = self.db().prepare_cached("INSERT INTO messages VALUES (?,?,?,?,?,?,?)")?;
        insert.execute(params![
            id.to_string(),
            found.at.seq.0 as i64,
            found.time.to_string(),
            found.message.channel.as_str(),
            found.message.role.as_str(),
            found.message.text(),
            json
        ])?;
        Ok(())
    }

    fn checkpoint(
        &mut self,
        session: &milepost_model::Session,
        loaded: &milepost_store::Loaded,
    ) -> rusqlite::Result<()> {
        self.done.checkpoints += 1;
        let mark = &loaded.mark.checkpoint;
        let state = loaded.state.as_value();
        let step = StepDone::of(loaded);
        let mut insert =
            self.db().prepare_cached("INSERT INTO checkpoints VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")?;
        insert.execute(params![
            mark.id.to_string(),
            session.id.to_string(),
            session.project,
            step.number,
            loaded.mark.time.to_string(),
            state.to_string(),
            mark.description,
            triggers::trigger_type(&mark.trigger),
            step.duration_ms,
            step.token_usage.map(|usage| usage.to_string()),
            mark.trigger.as_str(),
            mark.label,
            loaded.mark.at.seq.0 as i64,
            mark.messages() as i64,
            mark.clean,
            mark.resumable.is_yes()
        ])?;
        Ok(())
    }
}
