//! Appends that wait at the same time are sent together and share a commit.
//!
//! What is refused is refused alone: the server answers each. When a whole group fails, its batches are sent again one
//! by one, unless it is unknown what became of it; then each is told so.

use std::collections::BTreeSet;
use std::sync::Arc;

use milepost_model::{EntryKind, SessionId, WorkspaceId};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_postgres::types::Type;

use super::batch::{self, Asked};
use super::db::{Db, Failed, Fate, column};
use super::grow;
use crate::backend::*;
use crate::error::{Error, Result};

/// At most so many batches share a commit,
const GROUP_MAX: usize = 256;
/// or so many bytes: those who wait would wait longer for more.
const GROUP_BYTES: usize = 4 << 20;
/// Groups on their way at once. One would wait whenever a session is locked by another process.
const LANES: usize = 2;

enum Order {
    Append(Box<Waiting>),
    Stop(oneshot::Sender<()>),
}

/// Who waits for an answer.
struct Caller {
    workspace: WorkspaceId,
    session: SessionId,
    reply: oneshot::Sender<Result<Appended>>,
}

impl Caller {
    /// Answers. Whoever asked may have gone; what was stored stays stored.
    fn answer(self, db: &Db, outcome: Result<Appended>) {
        if let Ok(Appended { repeated: false, .. }) = outcome {
            db.outbox.note(self.workspace.as_str(), self.session);
        }
        let _ = self.reply.send(outcome);
    }
}

/// A batch that waits to be sent.
struct Waiting {
    caller: Caller,
    batch: Batch,
}

impl Waiting {
    /// Batches are sent in this order, so that groups wait for each other's sessions and never in a circle.
    fn order(&self) -> (&WorkspaceId, SessionId) {
        (&self.caller.workspace, self.caller.session)
    }

    /// Bytes of its payloads.
    fn size(&self) -> usize {
        let batch = &self.batch;
        let entries = batch.entries.iter().chain(batch.rewrite.entries.iter().map(|(_, entry)| entry));
        entries.map(|entry| entry.body.len()).sum::<usize>()
            + batch.blobs.iter().map(|blob| blob.bytes.len()).sum::<usize>()
            + batch.keyframes.iter().map(|frame| frame.body.len()).sum::<usize>()
    }
}

/// A batch in the form in which any can be sent.
struct Packet {
    caller: Caller,
    asked: Asked,
    encoded: batch::Encoded,
}

/// The way to the server for appends.
pub(super) struct Groups {
    sender: mpsc::Sender<Order>,
}

impl Groups {
    pub fn start(engine: &Handle, db: Arc<Db>, queue: usize, text: bool) -> Self {
        let (sender, receiver) = mpsc::channel(queue.max(1));
        drop(engine.spawn(super::changes::tell(Arc::clone(&db))));
        drop(engine.spawn(serve(db, receiver, text)));
        Self { sender }
    }

    /// Sends a batch with those that wait, and waits for its answer.
    pub async fn append(&self, workspace: WorkspaceId, batch: Batch) -> Result<Appended> {
        batch::check(&batch)?;
        let (reply, answer) = oneshot::channel();
        let caller = Caller { workspace, session: batch.session, reply };
        self.sender.send(Order::Append(Box::new(Waiting { caller, batch }))).await.map_err(|_| Error::Closed)?;
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

async fn serve(db: Arc<Db>, mut receiver: mpsc::Receiver<Order>, text: bool) {
    let lanes = Arc::new(Semaphore::new(LANES));
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(waiting) => waiting,
            None => match receiver.recv().await {
                Some(Order::Append(waiting)) => waiting,
                Some(Order::Stop(reply)) => return finish(&lanes, receiver, reply).await,
                None => return,
            },
        };
        // Whoever comes while all lanes are taken goes along.
        let Ok(lane) = Arc::clone(&lanes).acquire_owned().await else { return };
        let mut stop = None;
        let mut size = first.size();
        let mut group = vec![*first];
        while group.len() < GROUP_MAX {
            match receiver.try_recv() {
                Ok(Order::Append(waiting)) => {
                    size += waiting.size();
                    if size > GROUP_BYTES {
                        next = Some(waiting);
                        break;
                    }
                    group.push(*waiting);
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
            send(&db, group, text).await;
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
async fn send(db: &Db, mut group: Vec<Waiting>, text: bool) {
    group.sort_by(|one, two| one.order().cmp(&two.order()));
    let entries = group.iter().flat_map(|waiting| &waiting.batch.entries);
    let messages = entries.filter(|entry| entry.kind == EntryKind::Message).count();
    let mut seen = BTreeSet::new();
    let (growing, mut rest): (Vec<_>, Vec<_>) = group.into_iter().partition(|waiting| {
        grow::only_adds(&waiting.batch) && seen.insert((waiting.caller.workspace.clone(), waiting.caller.session))
    });
    if !growing.is_empty() {
        let batches: Vec<_> = growing.iter().map(|waiting| (&waiting.caller.workspace, &waiting.batch)).collect();
        match grow::grow(db, &batches, text).await {
            Ok(added) => {
                for (waiting, is_added) in growing.into_iter().zip(added) {
                    let length = waiting.batch.expected + waiting.batch.entries.len() as u64;
                    match is_added {
                        true => waiting.caller.answer(db, Ok(Appended { length, repeated: false })),
                        false => rest.push(waiting),
                    }
                }
            }
            Err(Failed { error, fate: Fate::Unknown }) => {
                growing.into_iter().for_each(|waiting| waiting.caller.answer(db, Err(error.clone())));
            }
            Err(_) => rest.extend(growing),
        }
        rest.sort_by(|one, two| one.order().cmp(&two.order()));
    }
    if !rest.is_empty() {
        send_any(db, rest, text).await;
    }
    db.appended.note(messages);
}

/// Sends batches of any kind.
async fn send_any(db: &Db, group: Vec<Waiting>, text: bool) {
    let pack = |Waiting { caller, batch }| Packet {
        asked: Asked::of(&batch),
        encoded: batch::encode(&caller.workspace, batch),
        caller,
    };
    let packets: Vec<Packet> = group.into_iter().map(pack).collect();
    match ask(db, &packets, text).await {
        Ok(answers) => packets.into_iter().zip(answers).for_each(|(packet, outcome)| packet.caller.answer(db, outcome)),
        Err(Failed { error, fate }) if fate == Fate::Unknown || packets.len() == 1 => {
            packets.into_iter().for_each(|packet| packet.caller.answer(db, Err(error.clone())));
        }
        Err(_) => {
            // One of them is to blame: it fails alone.
            for packet in packets {
                let outcome = ask(db, std::slice::from_ref(&packet), text).await.map_err(Error::from);
                packet
                    .caller
                    .answer(db, outcome.and_then(|answers| answers.into_iter().next().unwrap_or_else(unanswered)));
            }
        }
    }
}

fn unanswered() -> Result<Appended> {
    Err(Error::corrupt("the store's functions", "they did not answer a batch"))
}

/// The server's answers to a group, in its order.
async fn ask(db: &Db, group: &[Packet], text: bool) -> Result<Vec<Result<Appended>>, Failed> {
    let mut json = String::from("[");
    let mut bytes: Vec<&[u8]> = Vec::new();
    for (number, packet) in group.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        json += &format!("{comma}{{\"base\":{},\"batch\":{}}}", bytes.len(), packet.encoded.json);
        bytes.extend(packet.encoded.bytes.iter().map(Vec::as_slice));
    }
    json.push(']');
    let sql = "SELECT o_n, o_code, o_number, o_word FROM {s}.append_2($1::jsonb, $2, $3, $4)";
    let now = db.now();
    let params: [super::db::Param<'_>; 4] =
        [(&json, Type::TEXT), (&bytes, Type::BYTEA_ARRAY), (&text, Type::BOOL), (&now, Type::INT8)];
    let rows = db.change("appending", sql, &params).await?;
    let mut answers: Vec<Result<Appended>> = group.iter().map(|_| unanswered()).collect();
    for row in &rows {
        let number = column::<i32>(row, 0)? as usize;
        let (code, count, word) = (column::<&str>(row, 1)?, column(row, 2)?, column(row, 3)?);
        if let (Some(packet), Some(slot)) = (group.get(number), answers.get_mut(number)) {
            *slot = packet.asked.answer(code, count, word);
        }
    }
    Ok(answers)
}
