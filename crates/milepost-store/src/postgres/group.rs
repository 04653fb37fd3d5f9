//! Appends that wait at the same time are sent together and share a commit.
//!
//! What is refused is refused alone: the server answers each. When a whole group fails, its batches are sent again one
//! by one, unless it is unknown what became of it; then each is told so.

use std::sync::Arc;

use milepost_model::WorkspaceId;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_postgres::types::Type;

use super::batch::{Encoded, Fetched, Wanted};
use super::db::{Db, Failed, Fate, column};
use super::{log, rows};
use crate::backend::*;
use crate::error::{Error, Result};

/// At most so many batches share a commit,
const GROUP_MAX: usize = 256;
/// or so many bytes: those who wait would wait longer for more.
const GROUP_BYTES: usize = 4 << 20;
/// Groups on their way at once. One would wait whenever a session is locked by another process.
const LANES: usize = 2;

enum Order {
    Append(Box<Encoded>, oneshot::Sender<Result<Appended>>),
    Stop(oneshot::Sender<()>),
}

type Waiting = (Box<Encoded>, oneshot::Sender<Result<Appended>>);

/// The way to the server for appends.
pub(super) struct Groups {
    sender: mpsc::Sender<Order>,
}

impl Groups {
    pub fn start(engine: &Handle, db: Arc<Db>, queue: usize) -> Self {
        let (sender, receiver) = mpsc::channel(queue.max(1));
        drop(engine.spawn(super::changes::tell(Arc::clone(&db))));
        drop(engine.spawn(serve(db, receiver)));
        Self { sender }
    }

    /// Sends a batch with those that wait, and waits for its answer.
    pub async fn append(&self, encoded: Encoded) -> Result<Appended> {
        let (reply, answer) = oneshot::channel();
        self.sender.send(Order::Append(Box::new(encoded), reply)).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Waits until everything that was handed over is answered, and takes nothing more.
    pub async fn stop(&self) {
        let (reply, done) = oneshot::channel();
        if self.sender.send(Order::Stop(reply)).await.is_ok() {
            drop(done.await);
        }
    }
}

/// What indexing the texts of a batch needs besides it: nothing, but for odd rewrites.
pub(super) async fn fetch(db: &Db, workspace: &WorkspaceId, wanted: Wanted) -> Result<Fetched> {
    let mut fetched = Fetched::default();
    for at in wanted.entries {
        let found = log::read(db, workspace, &Range::one(at)).await?;
        fetched.entries.extend(found.into_iter().map(|(_, entry)| (at, entry)));
    }
    let more = fetched.entries.iter().filter(|(_, entry)| crate::codec::is_blob(entry));
    let mut ids = wanted.blobs;
    ids.extend(more.filter_map(|(_, entry)| entry.refs.first().copied()));
    if ids.is_empty() {
        return Ok(fetched);
    }
    let found = rows::get_blobs(db, workspace, &ids).await?;
    fetched.blobs = ids.into_iter().zip(found).filter_map(|(id, bytes)| Some(Blob { id, bytes: bytes? })).collect();
    Ok(fetched)
}

async fn serve(db: Arc<Db>, mut receiver: mpsc::Receiver<Order>) {
    let lanes = Arc::new(Semaphore::new(LANES));
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(waiting) => waiting,
            None => match receiver.recv().await {
                Some(Order::Append(encoded, reply)) => (encoded, reply),
                Some(Order::Stop(reply)) => return finish(&lanes, receiver, reply).await,
                None => return,
            },
        };
        // Whoever comes while all lanes are taken goes along.
        let Ok(lane) = Arc::clone(&lanes).acquire_owned().await else { return };
        let mut stop = None;
        let mut size = first.0.size();
        let mut group = vec![first];
        while group.len() < GROUP_MAX {
            match receiver.try_recv() {
                Ok(Order::Append(encoded, reply)) => {
                    size += encoded.size();
                    if size > GROUP_BYTES {
                        next = Some((encoded, reply));
                        break;
                    }
                    group.push((encoded, reply));
                }
                Ok(Order::Stop(reply)) => {
                    stop = Some(reply);
                    break;
                }
                Err(_) => break,
            }
        }
        let db = Arc::clone(&db);
        drop(tokio::spawn(async move {
            send(&db, group).await;
            drop(lane);
        }));
        if let Some(reply) = stop {
            return finish(&lanes, receiver, reply).await;
        }
    }
}

async fn finish(lanes: &Semaphore, receiver: mpsc::Receiver<Order>, reply: oneshot::Sender<()>) {
    // Whoever still waits in the queue is told that the store is closed.
    drop(receiver);
    drop(lanes.acquire_many(LANES as u32).await);
    let _ = reply.send(());
}

/// Sends a group and answers everyone in it.
async fn send(db: &Db, mut group: Vec<Waiting>) {
    group.sort_by(|(one, _), (two, _)| one.order.cmp(&two.order));
    match ask(db, &group).await {
        Ok(answers) => answer(db, group, answers),
        Err(Failed { error, fate }) if fate == Fate::Unknown || group.len() == 1 => {
            group.into_iter().for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
        }
        Err(_) => {
            // One of them is to blame: it fails alone.
            for waiting in group {
                let alone = [waiting];
                let outcome = ask(db, &alone).await;
                let [waiting] = alone;
                match outcome {
                    Ok(answers) => answer(db, vec![waiting], answers),
                    Err(failed) => drop(waiting.1.send(Err(failed.error))),
                }
            }
        }
    }
}

fn answer(db: &Db, group: Vec<Waiting>, mut answers: Vec<Option<Result<Appended>>>) {
    for (number, (encoded, reply)) in group.into_iter().enumerate() {
        let outcome = answers.get_mut(number).and_then(Option::take);
        if let Some(Ok(Appended { repeated: false, .. })) = outcome {
            db.outbox.note(&encoded.order.0, encoded.order.1);
        }
        let none = || Err(Error::corrupt("the store's functions", "they did not answer a batch"));
        // Whoever asked may have gone; what was stored stays stored.
        let _ = reply.send(outcome.unwrap_or_else(none));
    }
}

/// The server's answers to a group, in its order.
async fn ask(db: &Db, group: &[Waiting]) -> Result<Vec<Option<Result<Appended>>>, Failed> {
    let mut json = String::from("[");
    let mut bytes: Vec<&[u8]> = Vec::new();
    for (number, (encoded, _)) in group.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        json += &format!("{comma}{{\"base\":{},\"batch\":{}}}", bytes.len(), encoded.json);
        bytes.extend(encoded.bytes.iter().map(Vec::as_slice));
    }
    json.push(']');
    let sql = "SELECT o_n, o_code, o_number, o_word FROM {s}.append_1($1::jsonb, $2, $3)";
    let now = db.now();
    let params: [super::db::Param<'_>; 3] = [(&json, Type::TEXT), (&bytes, Type::BYTEA_ARRAY), (&now, Type::INT8)];
    let rows = db.change("appending", sql, &params).await?;
    let mut answers: Vec<Option<Result<Appended>>> = group.iter().map(|_| None).collect();
    for row in &rows {
        let number = column::<i32>(row, 0)? as usize;
        let (code, count, word) = (column::<&str>(row, 1)?, column(row, 2)?, column(row, 3)?);
        if let (Some((encoded, _)), Some(slot)) = (group.get(number), answers.get_mut(number)) {
            *slot = Some(encoded.asked.answer(code, count, word));
        }
    }
    Ok(answers)
}
