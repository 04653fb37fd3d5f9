//! Hints that a session grew, by LISTEN and NOTIFY.
//!
//! They are hints and nothing else: sent after the commit and apart from it, so that no append waits for them, and lost
//! when a connection breaks or a pooler stands between. Whoever follows a session reads it when a hint comes and at
//! every [`Change::Unknown`], which comes once in a while in any case: a lost hint costs a moment, never an entry.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use milepost_model::{SessionId, WorkspaceId};
use tokio::sync::{Notify, broadcast};
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use super::db::{Db, Param};

/// Hints of so long a time are sent together.
const TOGETHER: Duration = Duration::from_millis(20);
/// The server takes payloads below 8000 bytes.
const PAYLOAD_BYTES: usize = 7000;
/// Hints that wait for a slow follower; those beyond are lost.
const WAITING: usize = 1024;
/// Between two looks without a hint.
const LOOK: Duration = Duration::from_secs(1);

/// Something that may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// This session grew.
    Session(WorkspaceId, SessionId),
    /// Anything may have: time to look.
    Unknown,
}

/// The hints, as they come.
pub struct Changes(broadcast::Receiver<Change>);

impl Changes {
    /// The next hint; none when the store was closed.
    pub async fn next(&mut self) -> Option<Change> {
        match self.0.recv().await {
            Ok(change) => Some(change),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Change::Unknown),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// What this process has to tell.
#[derive(Default)]
pub(super) struct Outbox {
    grown: Mutex<BTreeSet<(String, SessionId)>>,
    wake: Notify,
}

impl Outbox {
    pub fn note(&self, workspace: &str, session: SessionId) {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner).insert((workspace.to_owned(), session));
        self.wake.notify_one();
    }

    /// What is to be sent now: lines of a workspace and a session each, in as few payloads as they fit into.
    fn take(&self) -> Vec<String> {
        let grown = std::mem::take(&mut *self.grown.lock().unwrap_or_else(PoisonError::into_inner));
        let mut payloads = vec![String::new()];
        for (workspace, session) in grown {
            let line = format!("{session} {workspace}\n");
            match payloads.last_mut() {
                Some(last) if last.len() + line.len() <= PAYLOAD_BYTES => *last += &line,
                _ => payloads.push(line),
            }
        }
        payloads.retain(|payload| !payload.is_empty() && payload.len() <= PAYLOAD_BYTES);
        payloads
    }
}

/// The channel of a schema.
fn channel(db: &Db) -> String {
    format!("milepost_{}", db.target.schema).chars().take(63).collect()
}

/// Sends hints, some at a time. One that fails is lost.
pub(super) async fn tell(db: Arc<Db>) {
    let channel = channel(&db);
    loop {
        db.outbox.wake.notified().await;
        tokio::time::sleep(TOGETHER).await;
        let payloads = db.outbox.take();
        // A hint need not be on the disk.
        let sql = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, x) FROM unnest($2) x";
        let params: [Param<'_>; 2] = [(&channel, Type::TEXT), (&payloads, Type::TEXT_ARRAY)];
        drop(db.ask("telling others of a change", sql, &params).await);
    }
}

/// Starts to listen for everyone in this process.
pub(super) fn listen(engine: &tokio::runtime::Handle, db: &Arc<Db>) -> broadcast::Sender<Change> {
    let (sender, _) = broadcast::channel(WAITING);
    let (db, weak) = (Arc::clone(db), sender.downgrade());
    drop(engine.spawn(async move {
        let mut tries = 0;
        while let Some(sender) = weak.upgrade() {
            follow(&db, &sender, &mut tries).await;
            // Nobody knows what was missed.
            drop(sender.send(Change::Unknown));
            tries += 1;
            drop(sender);
            db.pause(tries).await;
        }
    }));
    sender
}

impl Changes {
    pub(super) fn new(sender: &broadcast::Sender<Change>) -> Self {
        Self(sender.subscribe())
    }
}

/// Listens on a connection of its own until that ends.
async fn follow(db: &Db, sender: &broadcast::Sender<Change>, tries: &mut u32) {
    let Ok((client, mut connection)) = db.connect_alone().await else { return };
    let (heard, mut messages) = tokio::sync::mpsc::channel(WAITING);
    let reading = async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message
                && heard.send(note.payload().to_owned()).await.is_err()
            {
                break;
            }
        }
    };
    drop(tokio::spawn(reading));
    // The name holds letters, digits and _ only.
    if client.batch_execute(&format!("LISTEN {}", channel(db))).await.is_err() {
        return;
    }
    *tries = 0;
    drop(sender.send(Change::Unknown));
    loop {
        match tokio::time::timeout(LOOK, messages.recv()).await {
            Ok(Some(payload)) => payload.lines().filter_map(parse).for_each(|change| drop(sender.send(change))),
            Ok(None) => return,
            Err(_) => drop(sender.send(Change::Unknown)),
        }
    }
}

fn parse(line: &str) -> Option<Change> {
    let (session, workspace) = line.split_once(' ')?;
    Some(Change::Session(WorkspaceId::new(workspace.to_owned()).ok()?, session.parse().ok()?))
}
