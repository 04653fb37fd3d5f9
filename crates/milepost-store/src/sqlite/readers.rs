//! A few threads that read, each with its own connection, so that reading blocks neither the writer
//! nor the caller's thread. A caller that may block ([`crate::block_on`]) reads on its own thread.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::schema::{Mode, connect};
use crate::error::{Error, Result};

const READERS: usize = 4;

type Read = Box<dyn FnOnce(Result<&Connection>) + Send>;

/// The way to the reading threads.
pub(super) struct Readers {
    path: PathBuf,
    /// The connection of callers that may block, one at a time.
    own: Mutex<Option<Connection>>,
    sender: Mutex<Option<Sender<Read>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Readers {
    /// Starts the threads. Each opens its connection when it is first needed.
    pub fn start(path: &Path) -> Result<Self> {
        let (sender, receiver) = channel::<Read>();
        let receiver = Arc::new(Mutex::new(receiver));
        let mut threads = Vec::new();
        for number in 0..READERS {
            let receiver = Arc::clone(&receiver);
            let path = path.to_owned();
            threads.push(start(format!("milepost-reader-{number}"), move || serve(&receiver, &path))?);
        }
        Ok(Self {
            path: path.to_owned(),
            own: Mutex::default(),
            sender: Mutex::new(Some(sender)),
            threads: Mutex::new(threads),
        })
    }

    /// Runs `work` on one of the threads, in a transaction of its own: all of it sees the same state.
    pub async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        self.read_outside(move |connection| snapshot(connection, work)).await
    }

    /// Runs `work` on one of the threads, outside of any transaction.
    pub async fn read_outside<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        if crate::block::may_block()
            && let Ok(mut own) = self.own.try_lock()
            && self.sender.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        {
            return open(&mut own, &self.path).and_then(work);
        }
        let (reply, answer) = oneshot::channel();
        let read: Read = Box::new(move |connection| {
            let _ = reply.send(connection.and_then(work));
        });
        {
            let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
            sender.as_ref().and_then(|sender| sender.send(read).ok()).ok_or(Error::Closed)?;
        }
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Runs `work` on the file on a thread of its own: for what takes long, so that nobody waits for it.
    pub fn aside<T, F>(&self, work: F) -> Result<oneshot::Receiver<Result<T>>>
    where
        T: Send + 'static,
        F: FnOnce(&Path) -> Result<T> + Send + 'static,
    {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sender.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(Error::Closed);
        }
        threads.retain(|thread| !thread.is_finished());
        let (path, (reply, answer)) = (self.path.clone(), oneshot::channel());
        let work = move || drop(reply.send(work(&path)));
        threads.push(start("milepost-aside".into(), work)?);
        Ok(answer)
    }

    /// Ends the threads once they have answered what waits.
    pub fn close(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic there has nothing left to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for Readers {
    /// When the store is dropped, its file is let go of: the last connection to be closed removes the
    /// WAL by its name, which may by then be another's.
    fn drop(&mut self) {
        self.close();
    }
}

fn start(name: String, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name).spawn(work);
    thread.map_err(|error| Error::Io { what: "starting a reader".into(), why: error.to_string() })
}

fn snapshot<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let failed = super::schema::fail("reading");
    connection.prepare_cached("BEGIN").and_then(|mut s| s.execute([])).map_err(&failed)?;
    let result = work(connection);
    if !connection.is_autocommit() {
        connection.prepare_cached("COMMIT").and_then(|mut s| s.execute([])).map_err(&failed)?;
    }
    result
}

/// The connection, opened when it is first needed.
fn open<'a>(connection: &'a mut Option<Connection>, path: &Path) -> Result<&'a Connection> {
    if connection.is_none() {
        *connection = Some(connect(path, Mode::Read)?);
    }
    connection.as_ref().ok_or(Error::Closed)
}

fn serve(receiver: &Mutex<Receiver<Read>>, path: &Path) {
    let mut connection = None;
    loop {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(read) = next else { return };
        read(open(&mut connection, path));
    }
}
