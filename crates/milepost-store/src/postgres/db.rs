//! The one place that talks to the server: a few connections, timeouts, what an error means, and when to try again.
//!
//! Every statement is sent unnamed, parsed and run in one round trip, so that a pooler in transaction mode may stand
//! between. What ends without an answer is [`Error::Io`]: it may have happened. Everything else did not happen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use milepost_model::{Source, Timestamp};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Connection, Row, Socket};

use super::changes::Outbox;
use super::config::Target;
use super::outside::Outside;
use super::text::Appends;
use super::tls::{Encrypted, Tls};
use crate::error::{Error, Result};

/// How long a lock inside the server is waited for (`lock_timeout` of the functions in `sql/`).
const LOCK_MS: u64 = 20_000;
/// The first pause before trying again; the next are twice as long each,
const PAUSE: Duration = Duration::from_millis(50);
/// up to this.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// What goes through everything that is stored may take so long.
const LONG: Duration = Duration::from_secs(3600);

/// A value to send and its type.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// How long to wait, and how often to try.
#[derive(Debug, Clone)]
pub(super) struct Patience {
    pub connect: Duration,
    pub statement: Duration,
    pub tries: u32,
}

/// The server, as the rest of the backend sees it.
pub(super) struct Db {
    pub target: Target,
    pub source: Source,
    /// Time by the source instead of the server's clock, for tests.
    pub own_clock: bool,
    /// What other processes are told.
    pub outbox: Outbox,
    /// What this process appended.
    pub appended: Appends,
    /// Where large blobs are, when not in the database.
    pub outside: Option<Outside>,
    tls: Tls,
    patience: Patience,
    idle: Mutex<Vec<Client>>,
    places: Semaphore,
    most: u32,
    is_closed: AtomicBool,
}

/// What became of something that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It did not happen, and asking again would get the same answer.
    Refused,
    /// It did not happen; it may when asked again.
    Undone,
    /// It may or may not have happened.
    Unknown,
}

/// A failure and what became of it.
#[derive(Debug, Clone)]
pub(super) struct Failed {
    pub error: Error,
    pub fate: Fate,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, fate: Fate::Refused }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// Whether a statement may run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It changes nothing, or the same once more.
    Harmless,
    /// Only if it surely did not happen.
    IfUndone,
}

/// Where in a conversation with the server something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum During {
    Connecting,
    Asking,
}

impl Db {
    pub fn new(target: Target, source: Source, own_clock: bool, patience: Patience, connections: u32) -> Result<Self> {
        let tls = Tls::new(&target.trust)?;
        let most = connections.max(1);
        Ok(Self {
            target,
            source,
            own_clock,
            outbox: Outbox::default(),
            appended: Appends::default(),
            outside: None,
            tls,
            patience,
            idle: Mutex::default(),
            places: Semaphore::new(most as usize),
            most,
            is_closed: AtomicBool::new(false),
        })
    }

    /// The time to use: none means the server's.
    pub fn now(&self) -> Option<i64> {
        self.own_clock.then(|| self.source.now().0)
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Refuses new work. Says whether it was open.
    pub fn shut(&self) -> bool {
        !self.is_closed.swap(true, Ordering::SeqCst)
    }

    /// Waits until all connections are back, and ends them. None is lent afterwards.
    pub async fn hang_up(&self) {
        let all = tokio::time::timeout(self.patience.statement, self.places.acquire_many(self.most)).await;
        self.places.close();
        drop(all);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // Each connection says goodbye when its client is gone.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }

    /// Asks something that changes nothing, or that may be done twice.
    pub async fn ask(&self, what: &str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        Ok(self.run(what, sql, params, Again::Harmless).await?)
    }

    /// Changes something. It is asked again only if it surely did not happen.
    pub async fn change(&self, what: &str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Failed> {
        self.run(what, sql, params, Again::IfUndone).await
    }

    async fn run(&self, what: &str, sql: &str, params: &[Param<'_>], again: Again) -> Result<Vec<Row>, Failed> {
        let sql = self.sql(sql);
        let mut tries = 0;
        loop {
            let failed = match self.attempt(what, &sql, params).await {
                Ok(rows) => return Ok(rows),
                Err(failed) => failed,
            };
            tries += 1;
            let may_help = failed.fate == Fate::Undone || failed.fate == Fate::Unknown && again == Again::Harmless;
            if !may_help || tries >= self.patience.tries {
                return Err(failed);
            }
            self.pause(tries).await;
        }
    }

    async fn attempt(&self, what: &str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Failed> {
        let mut lent = self.lend(what).await?;
        let rows = lent.ask(what, sql, params).await?;
        lent.give_back();
        Ok(rows)
    }

    /// A statement with the schema's name in its places.
    pub fn sql(&self, sql: &str) -> String {
        sql.replace("{s}", &self.target.schema)
    }

    /// Waits before another try: longer each time, and not as long as everybody else.
    pub async fn pause(&self, tries: u32) {
        let longest = PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(PAUSE_MAX);
        let mut random = [0u8; 2];
        self.source.fill(&mut random);
        let share = 0.5 + f64::from(u16::from_le_bytes(random)) / f64::from(u16::MAX) / 2.0;
        tokio::time::sleep(longest.mul_f64(share)).await;
    }

    /// A connection: one that waits, or a new one. It is not reused unless it is given back.
    pub async fn lend(&self, what: &str) -> Result<Lent<'_>, Failed> {
        let busy = || Error::Busy { what: what.to_owned(), waited_ms: self.patience.statement.as_millis() as u64 };
        let waiting = tokio::time::timeout(self.patience.statement, self.places.acquire());
        let place = match waiting.await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(Error::Closed.into()),
            Err(_) => return Err(busy().into()),
        };
        loop {
            let Some(client) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() else { break };
            // The server may have ended it since.
            if !client.is_closed() {
                return Ok(Lent { db: self, client, limit: self.patience.statement, _place: place });
            }
        }
        let client = self.connect(what).await?;
        Ok(Lent { db: self, client, limit: self.patience.statement, _place: place })
    }

    /// A connection that is not one of the lent ones, and whose messages the caller reads.
    pub async fn connect_alone(&self) -> Result<(Client, Connection<Socket, Encrypted>), tokio_postgres::Error> {
        self.target.config.connect(self.tls.clone()).await
    }

    pub async fn connect(&self, what: &str) -> Result<Client, Failed> {
        let unavailable = |why: String| Error::Unavailable { what: format!("{what} in {}", self.target.words), why };
        let connecting = self.target.config.connect(self.tls.clone());
        let limit = self.target.config.get_connect_timeout().copied().unwrap_or(self.patience.connect);
        match tokio::time::timeout(limit, connecting).await {
            Ok(Ok((client, connection))) => {
                // It ends when the client is dropped. Whoever waits for an answer is told what went wrong.
                drop(tokio::spawn(async move { drop(connection.await) }));
                Ok(client)
            }
            Ok(Err(error)) => Err(meaning(what, &error, During::Connecting, unavailable)),
            Err(_) => {
                let why = format!("no connection within {} ms", limit.as_millis());
                Err(Failed { error: unavailable(why), fate: Fate::Undone })
            }
        }
    }
}

/// A connection on loan.
pub(super) struct Lent<'a> {
    db: &'a Db,
    client: Client,
    limit: Duration,
    _place: SemaphorePermit<'a>,
}

impl Lent<'_> {
    /// Asks; `sql` must have been through [`Db::sql`].
    pub async fn ask(&mut self, what: &str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Failed> {
        let limit = self.limit;
        match tokio::time::timeout(limit, self.client.query_typed(sql, params)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(self.failed(what, &error)),
            Err(_) => {
                self.cancel();
                let error =
                    Error::Io { what: what.to_owned(), why: format!("no answer within {} ms", limit.as_millis()) };
                Err(Failed { error, fate: Fate::Unknown })
            }
        }
    }

    /// Lets every answer take as long as it takes to go through everything.
    pub fn take_time(&mut self) {
        self.limit = LONG;
    }

    /// Runs statements without values, for as long as they take; `sql` must have been through [`Db::sql`].
    pub async fn run(&mut self, what: &str, sql: &str) -> Result<(), Failed> {
        self.client.batch_execute(sql).await.map_err(|error| self.failed(what, &error))
    }

    fn failed(&self, what: &str, error: &tokio_postgres::Error) -> Failed {
        let unavailable = |why: String| Error::Unavailable { what: format!("{what} in {}", self.db.target.words), why };
        meaning(what, error, During::Asking, unavailable)
    }

    /// Asks the server to stop what nobody waits for any more.
    fn cancel(&self) {
        let (token, tls) = (self.client.cancel_token(), self.db.tls.clone());
        let limit = self.db.patience.connect;
        drop(tokio::spawn(async move { drop(tokio::time::timeout(limit, token.cancel_query(tls)).await) }));
    }

    /// Lets others use the connection. One that failed, or that is in a transaction, is dropped instead.
    pub fn give_back(self) {
        if !self.client.is_closed() {
            self.db.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.client);
        }
    }
}

/// What an error of the server, or on the way to it, means to a caller.
fn meaning(what: &str, error: &tokio_postgres::Error, during: During, unavailable: impl Fn(String) -> Error) -> Failed {
    let what = what.to_owned();
    let Some(said) = error.as_db_error() else {
        let why = match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        return match during {
            During::Connecting => Failed { error: unavailable(why), fate: Fate::Undone },
            During::Asking => Failed { error: Error::Io { what, why }, fate: Fate::Unknown },
        };
    };
    let why = format!("{} (SQLSTATE {})", said.message(), said.code().code());
    let refused = |error: Error| Failed { error, fate: Fate::Refused };
    let undone = |error: Error| Failed { error, fate: Fate::Undone };
    match said.code().code() {
        // Deadlocks, and rows that two made at once.
        "40001" | "40P01" | "23505" => undone(Error::Busy { what, waited_ms: 1000 }),
        "55P03" | "57014" => refused(Error::Busy { what, waited_ms: LOCK_MS }),
        "53100" => refused(Error::NoSpace { what }),
        // The server was made a replica: another connection may find the one that writes.
        "25006" => undone(Error::ReadOnly { what }),
        "XX001" | "XX002" => refused(Error::Corrupt { what, why }),
        code if during == During::Connecting => match code.get(..2) {
            Some("28" | "3D" | "42") => refused(Error::invalid(what, why)),
            _ => undone(unavailable(why)),
        },
        code => match code.get(..2) {
            // The connection or the server ends: perhaps just after the commit.
            Some("08" | "57") => Failed { error: Error::Io { what, why }, fate: Fate::Unknown },
            Some("22" | "28" | "3D" | "3F" | "42" | "54") => refused(Error::invalid(what, why)),
            _ => refused(unavailable(why)),
        },
    }
}

/// A column of a row; what was never written there is damage.
pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, at: usize) -> Result<T> {
    row.try_get(at).map_err(|error| Error::corrupt("a row of the store", format!("column {at}: {error}")))
}

/// A time in a column.
pub(super) fn time(row: &Row, at: usize) -> Result<Timestamp> {
    Ok(Timestamp(column(row, at)?))
}

/// A number in a column.
pub(super) fn number(row: &Row, at: usize) -> Result<u64> {
    Ok(column::<i64>(row, at)? as u64)
}

/// An id in a column.
pub(super) fn id<T: std::str::FromStr<Err = milepost_model::IdError>>(row: &Row, at: usize) -> Result<T> {
    let text: &str = column(row, at)?;
    text.parse()
        .map_err(|error: milepost_model::IdError| Error::corrupt("a row of the store", format!("column {at}: {error}")))
}

/// PostgreSQL keeps no NUL in a text: it, and the character that stands for it, are written as two characters.
/// The order of texts stays the same.
pub(super) fn escape(text: &str) -> String {
    if !text.contains(['\0', '\u{1}']) {
        return text.to_owned();
    }
    text.replace('\u{1}', "\u{1}1").replace('\0', "\u{1}0")
}

/// Undoes [`escape`].
pub(super) fn unescape(text: String) -> String {
    if !text.contains('\u{1}') {
        return text;
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1}' => plain.push(if chars.next() == Some('0') { '\0' } else { '\u{1}' }),
            other => plain.push(other),
        }
    }
    plain
}

/// A text in a column.
pub(super) fn text(row: &Row, at: usize) -> Result<String> {
    column(row, at).map(unescape)
}

/// A text in a column that may have none.
pub(super) fn maybe_text(row: &Row, at: usize) -> Result<Option<String>> {
    Ok(column::<Option<String>>(row, at)?.map(unescape))
}

/// A number of rows as the server takes it.
pub(super) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// An entry's number as the server takes it.
pub(super) fn seq(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_texts_come_back_and_keep_their_order() {
        let mut texts = vec!["", "a", "\0", "\u{1}", "\u{1}0", "\0\0", "a\0b", "a\u{1}b", "a\u{2}", "\u{2}", "é"];
        for text in &texts {
            assert!(!escape(text).contains('\0'));
            assert_eq!(unescape(escape(text)), *text);
        }
        texts.sort_unstable();
        let escaped: Vec<String> = texts.iter().map(|text| escape(text)).collect();
        assert!(escaped.is_sorted(), "{escaped:?}");
    }
}
