//! The one thread that writes. It takes whatever waits, runs it in one transaction with a savepoint
//! for each item, so that one bad item fails alone, and answers when the commit is on the disk.
//! A caller that may block ([`crate::block_on`]) and finds nobody writing does the thread's work itself: handing it
//! over and back costs more than the work.
//!
//! An error on commit poisons the connection: everyone in the group is told that their write may or
//! may not be there, and before anything else is written the store is opened anew, its WAL is copied
//! into the database and synced, and the ends of the newest sessions are checked.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::schema::{Mode, connect, fail, prepare};
use super::wal::Ahead;
use super::{log, text};
use crate::error::{Error, Result};

/// At most so many items share a commit.
const GROUP_MAX: usize = 256;
/// Texts are indexed when nothing was written for so long,
const IDLE: Duration = Duration::from_millis(30);
/// or when so many messages wait for it: a search would wait about a second for them.
const BACKLOG_MAX: usize = 65_536;
/// So many messages are indexed before looking whether someone waits to write,
const INDEX_STEP: usize = 64;
/// or so many when that was put off for long: what is indexed together needs less merging.
const INDEX_STEP_LATE: usize = 512;

/// Something to write. It may run more than once, but its effects are kept only once.
trait Job: Send {
    fn run(&mut self, connection: &Connection) -> Result<()>;
    fn answer(self: Box<Self>, outcome: Result<()>);
    fn messages(&self) -> usize;
}

struct Work<T, F> {
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T>>,
    messages: usize,
}

impl<T: Send, F: FnMut(&Connection) -> Result<T> + Send> Job for Work<T, F> {
    fn run(&mut self, connection: &Connection) -> Result<()> {
        self.result = Some((self.work)(connection)?);
        Ok(())
    }
    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Work { result, reply, .. } = *self;
        // Whoever asked may have gone; what was stored stays stored.
        let _ = reply.send(outcome.and_then(|()| result.ok_or(Error::Closed)));
    }
    fn messages(&self) -> usize {
        self.messages
    }
}

enum Order {
    /// Runs in a shared transaction.
    Shared(Box<dyn Job>),
    /// Runs by itself, outside of any transaction.
    Alone(Box<dyn Job>),
    /// There are texts to index.
    Nudge,
    Stop(oneshot::Sender<Result<()>>),
}

/// The way to the writer thread.
pub(super) struct Writer {
    desk: Arc<Mutex<Desk>>,
    sender: Mutex<Option<SyncSender<Order>>>,
    /// Bounds the queue without blocking the caller's thread.
    places: Arc<Semaphore>,
    /// How many orders wait.
    waiting: Arc<AtomicUsize>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread with a connection that was set up for writing.
    pub fn start(connection: Connection, path: PathBuf, text_index: bool, queue: usize) -> Result<Self> {
        let (sender, receiver) = sync_channel(queue + 1);
        let waiting = Arc::new(AtomicUsize::new(0));
        let desk = Arc::new(Mutex::new(Desk {
            connection: Some(connection),
            ahead: Ahead::new(&path),
            path,
            text_index,
            backlog: usize::from(text_index),
            commits: 0,
            is_closed: false,
            waiting: Arc::clone(&waiting),
        }));
        let shared = Arc::clone(&desk);
        let thread = std::thread::Builder::new()
            .name("milepost-writer".into())
            .spawn(move || serve(&shared, &receiver))
            .map_err(|error| Error::Io { what: "starting the writer".into(), why: error.to_string() })?;
        Ok(Self {
            desk,
            sender: Mutex::new(Some(sender)),
            places: Arc::new(Semaphore::new(queue)),
            waiting,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Runs `work` in a shared transaction; returns when it is durable. `messages` is how many it adds.
    pub async fn write<T, F>(&self, messages: usize, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T> + Send + 'static,
    {
        self.send(messages, work, Order::Shared).await
    }

    /// Runs `work` by itself, outside of any transaction.
    pub async fn alone<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T> + Send + 'static,
    {
        self.send(0, work, Order::Alone).await
    }

    async fn send<T, F>(&self, messages: usize, work: F, order: fn(Box<dyn Job>) -> Order) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> Result<T> + Send + 'static,
    {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| Error::Closed)?;
        let (reply, answer) = oneshot::channel();
        let order = order(Box::new(Work { work, result: None, reply, messages }));
        if let Some(order) = self.run_here(order)? {
            self.post(order)?;
        }
        let outcome = answer.await.map_err(|_| Error::Closed)?;
        drop(place);
        outcome
    }

    /// Runs an order on this thread if it may block and nobody else writes; gives it back if not.
    fn run_here(&self, order: Order) -> Result<Option<Order>> {
        if !crate::block::may_block() {
            return Ok(Some(order));
        }
        let Ok(mut desk) = self.desk.try_lock() else { return Ok(Some(order)) };
        if desk.is_closed {
            return Err(Error::Closed);
        }
        // Nobody is overtaken: whoever reads back what became of a write must come after it.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return Ok(Some(order));
        }
        let before = desk.backlog;
        match order {
            Order::Shared(job) => desk.commit(VecDeque::from([job])),
            other => drop(desk.special(other)),
        }
        let is_due = (before == 0 && desk.backlog > 0) || desk.backlog >= BACKLOG_MAX;
        drop(desk);
        if is_due { self.post(Order::Nudge).map(|()| None) } else { Ok(None) }
    }

    fn post(&self, order: Order) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.as_ref().and_then(|sender| sender.send(order).ok()).ok_or(Error::Closed)
    }

    /// Finishes what waits and ends the thread. What is not indexed yet is left to the next search or idle moment.
    pub async fn close(&self) -> Result<()> {
        self.places.close();
        let (reply, answer) = oneshot::channel();
        if self.post(Order::Stop(reply)).is_err() {
            return Ok(());
        }
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let outcome = answer.await.map_err(|_| Error::Closed)?;
        self.join();
        outcome
    }

    fn join(&self) {
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic there has nothing left to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    /// Without a close, what waits is still written; the index is caught up next time.
    fn drop(&mut self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.join();
    }
}

/// What whoever writes needs: the connection, and what is known of the work left.
struct Desk {
    /// None when poisoned.
    connection: Option<Connection>,
    ahead: Ahead,
    path: PathBuf,
    text_index: bool,
    /// Messages that may not be indexed yet.
    backlog: usize,
    /// Commits so far, to tell whether there was one lately.
    commits: u64,
    is_closed: bool,
    /// How many orders wait.
    waiting: Arc<AtomicUsize>,
}

/// The writer thread: takes orders until it is told to stop, and indexes texts when nobody writes.
fn serve(desk: &Mutex<Desk>, receiver: &Receiver<Order>) {
    let lock = || desk.lock().unwrap_or_else(PoisonError::into_inner);
    let mut seen = 0;
    loop {
        let is_behind = lock().backlog > 0;
        let order = if is_behind {
            match receiver.recv_timeout(IDLE) {
                Ok(order) => order,
                Err(RecvTimeoutError::Timeout) => {
                    let mut desk = lock();
                    if desk.commits == seen {
                        desk.index_step();
                    }
                    seen = desk.commits;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        } else {
            match receiver.recv() {
                Ok(order) => order,
                Err(_) => return,
            }
        };
        let mut desk = lock();
        let mut group = VecDeque::new();
        let mut next = Some(order);
        while let Some(order) = next.take() {
            desk.waiting.fetch_sub(1, Ordering::SeqCst);
            match order {
                Order::Shared(job) => group.push_back(job),
                other => {
                    desk.commit(std::mem::take(&mut group));
                    if desk.special(other) {
                        return;
                    }
                }
            }
            if group.len() < GROUP_MAX {
                next = receiver.try_recv().ok();
            }
        }
        desk.commit(group);
        if desk.backlog >= BACKLOG_MAX {
            desk.index_step();
        }
    }
}

impl Desk {
    /// Whether the thread is to end.
    fn special(&mut self, order: Order) -> bool {
        match order {
            Order::Shared(_) | Order::Nudge => false,
            Order::Alone(mut job) => {
                let outcome = self.connection().and_then(|connection| job.run(connection));
                if matches!(outcome, Err(Error::Io { .. })) {
                    self.connection = None;
                }
                job.answer(outcome);
                false
            }
            Order::Stop(reply) => {
                self.ahead = Ahead::new(&self.path);
                let outcome = match self.connection.take() {
                    Some(connection) => finish(connection),
                    None => Ok(()),
                };
                self.is_closed = true;
                let _ = reply.send(outcome);
                true
            }
        }
    }

    /// The connection, opened anew and checked when it was poisoned.
    fn connection(&mut self) -> Result<&Connection> {
        if self.connection.is_none() {
            self.connection = Some(reopen(&self.path, self.text_index)?);
            self.ahead = Ahead::new(&self.path);
            self.backlog = usize::from(self.text_index);
        }
        self.connection.as_ref().ok_or(Error::Closed)
    }

    fn commit(&mut self, group: VecDeque<Box<dyn Job>>) {
        if group.is_empty() {
            return;
        }
        self.commits += 1;
        let messages: usize = group.iter().map(|job| job.messages()).sum();
        if let Err(error) = self.connection() {
            group.into_iter().for_each(|job| job.answer(Err(error.clone())));
            return;
        }
        let Some(connection) = &self.connection else { return };
        match transact(connection, &mut self.ahead, group) {
            Ok(()) => {
                if self.text_index {
                    self.backlog += messages;
                }
            }
            Err(Poisoned) => self.connection = None,
        }
    }

    fn index_step(&mut self) {
        if self.connection().is_err() {
            self.backlog = 0;
        }
        let Some(connection) = &self.connection else { return };
        // As much as possible in one transaction makes the smallest index, but writers do not wait for it.
        let step = || {
            connection.execute_batch("BEGIN IMMEDIATE").map_err(fail("indexing texts"))?;
            let mut total = 0;
            let step = if self.backlog >= BACKLOG_MAX { INDEX_STEP_LATE } else { INDEX_STEP };
            let is_done = loop {
                let done = text::index(connection, step)?;
                total += done;
                if done < step {
                    break true;
                }
                if self.waiting.load(Ordering::Relaxed) > 0 {
                    break false;
                }
            };
            connection.execute_batch("COMMIT").map_err(fail("indexing texts"))?;
            Ok::<_, Error>((total, is_done))
        };
        match step() {
            Ok((_, true)) => self.backlog = 0,
            Ok((done, false)) => self.backlog = self.backlog.saturating_sub(done).max(1),
            // The index is derived: it is caught up by the next search or the next idle moment.
            Err(error) => {
                self.backlog = 0;
                // Damage was only read. Opening anew would find it again, and keep everyone from writing.
                let is_as_before = error.is_damage() && connection.execute_batch("ROLLBACK").is_ok();
                if !is_as_before {
                    self.connection = None;
                }
            }
        }
    }
}

/// The connection must not be used any more.
struct Poisoned;

/// Runs a group in one transaction, and answers everyone.
///
/// Savepoints cost, and jobs hardly ever fail: the first attempt does without, and is undone when one fails.
fn transact(connection: &Connection, ahead: &mut Ahead, mut group: VecDeque<Box<dyn Job>>) -> Result<(), Poisoned> {
    let mut guard = Guard::Transaction;
    while !group.is_empty() {
        if let Err(error) = run(connection, "BEGIN IMMEDIATE").map_err(fail("beginning a transaction")) {
            let poisoned = !connection.is_autocommit() || matches!(error, Error::Io { .. });
            group.into_iter().for_each(|job| job.answer(Err(error.clone())));
            return if poisoned { Err(Poisoned) } else { Ok(()) };
        }
        ahead.extend();
        let mut done: Vec<Box<dyn Job>> = Vec::with_capacity(group.len());
        // What was refused because of others in this transaction is told when those are on the disk.
        let mut refused: Vec<(Box<dyn Job>, Error)> = Vec::new();
        let mut rolled_back = false;
        let is_alone = group.len() == 1;
        while let Some(mut job) = group.pop_front() {
            match run_job(connection, job.as_mut(), guard) {
                Ran::Done => done.push(job),
                Ran::Undone(_) if guard == Guard::Transaction && !is_alone => {
                    done.push(job);
                    rolled_back = true;
                    break;
                }
                Ran::Stuck(error) => {
                    done.push(job);
                    let all = done.into_iter().chain(refused.into_iter().map(|(job, _)| job)).chain(group);
                    all.for_each(|job| job.answer(Err(error.clone())));
                    return Err(Poisoned);
                }
                Ran::Undone(error) => {
                    // When that ended the transaction, the others begin again without the bad one.
                    rolled_back = connection.is_autocommit();
                    if rolled_back {
                        job.answer(Err(error));
                        break;
                    }
                    refused.push((job, error));
                }
            }
        }
        if rolled_back {
            done.extend(refused.into_iter().map(|(job, _)| job));
            done.extend(group);
            group = done.into();
            guard = Guard::Savepoint;
            continue;
        }
        return match run(connection, "COMMIT").map_err(fail("committing to the disk")) {
            Ok(()) => {
                done.into_iter().for_each(|job| job.answer(Ok(())));
                refused.into_iter().for_each(|(job, error)| job.answer(Err(error)));
                Ok(())
            }
            Err(error) => {
                let error = match error {
                    Error::ReadOnly { .. } => {
                        Error::Io { what: "committing to the disk".into(), why: error.to_string() }
                    }
                    // No space for a frame means that the last one, which makes a commit, is not there. Whatever
                    // else fails leaves it open.
                    other => other,
                };
                let all = done.into_iter().chain(refused.into_iter().map(|(job, _)| job));
                all.for_each(|job| job.answer(Err(error.clone())));
                Err(Poisoned)
            }
        };
    }
    Ok(())
}

/// Runs a statement that is needed over and over.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

/// How a job of a transaction ended.
enum Ran {
    Done,
    /// It failed, and nothing of it is left.
    Undone(Error),
    /// Something of it may be left: the transaction must not be committed.
    Stuck(Error),
}

/// What is undone when a job fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// The whole transaction.
    Transaction,
    /// Only the job.
    Savepoint,
}

/// Runs a job so that it can fail.
fn run_job(connection: &Connection, job: &mut dyn Job, guard: Guard) -> Ran {
    if guard == Guard::Savepoint
        && let Err(error) = run(connection, "SAVEPOINT item")
    {
        return Ran::Stuck(fail("writing")(error));
    }
    let (outcome, ending): (Ran, &[&str]) = match (job.run(connection), guard) {
        (Ok(()), Guard::Transaction) => (Ran::Done, &[]),
        (Ok(()), Guard::Savepoint) => (Ran::Done, &["RELEASE item"]),
        (Err(error), Guard::Transaction) => (Ran::Undone(error), &["ROLLBACK"]),
        (Err(error), Guard::Savepoint) => (Ran::Undone(error), &["ROLLBACK TO item", "RELEASE item"]),
    };
    // Some errors have ended the transaction by themselves.
    if connection.is_autocommit() {
        return outcome;
    }
    match ending.iter().try_for_each(|sql| run(connection, sql)) {
        Ok(()) => outcome,
        Err(error) => Ran::Stuck(fail("writing")(error)),
    }
}

/// Opens the store after an error on commit. What the WAL holds is written to it once more and copied into the
/// database, because after a failed sync the WAL's own pages can no longer be trusted.
fn reopen(path: &std::path::Path, text_index: bool) -> Result<Connection> {
    let connection = connect(path, Mode::Write)?;
    prepare(&connection, path, text_index)?;
    super::wal::settle(&connection, path)?;
    truncate_wal(&connection)?;
    log::check_ends(&connection)?;
    Ok(connection)
}

pub(super) fn truncate_wal(connection: &Connection) -> Result<()> {
    let busy: i64 = connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        .map_err(fail("copying the WAL into the database"))?;
    if busy != 0 {
        return Err(Error::Busy {
            what: "copying the WAL into the database".into(),
            waited_ms: super::schema::BUSY_MS,
        });
    }
    Ok(())
}

/// Empties the WAL, unless another process still reads it.
pub(super) fn empty_wal(connection: &Connection) -> Result<()> {
    let patience = |ms| connection.busy_timeout(Duration::from_millis(ms)).map_err(fail("copying the WAL"));
    patience(200)?;
    let done = truncate_wal(connection);
    patience(super::schema::BUSY_MS)?;
    match done {
        Ok(()) | Err(Error::Busy { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Ends a connection that did its work: the WAL is emptied unless another process still reads it.
fn finish(connection: Connection) -> Result<()> {
    empty_wal(&connection)?;
    connection.close().map_err(|(_, error)| fail("closing")(error))
}
