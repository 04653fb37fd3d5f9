//! Hints that a session grew, by LISTEN and NOTIFY.
//!
//! They are hints and nothing else: sent after the commit and apart from it, so that no append waits for them, and lost
//! when a connection breaks or a pooler stands between. Whoever follows a session looks once in a while in any case: a
//! lost hint costs a moment, never an entry.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use milepost_model::{SessionId, WorkspaceId};
use tokio::sync::Notify;
use tokio::sync::broadcast::WeakSender;
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use super::db::{Db, Param};
use crate::backend::Change;

/// Hints of so long a time are sent together.
const TOGETHER: Duration = Duration::from_millis(20);
/// The server takes payloads below 8000 bytes.
const PAYLOAD_BYTES: usize = 7000;
/// Between two looks whether anyone still listens.
const STILL_WANTED: Duration = Duration::from_secs(1);
/// Payloads that wait to be read.
const WAITING: usize = 1024;

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

/// Listens for as long as someone wants to know.
pub(super) async fn listen(db: Arc<Db>, to: WeakSender<Change>) {
    let mut tries = 0;
    while to.strong_count() > 0 {
        follow(&db, &to, &mut tries).await;
        // Nobody knows what was missed.
        hint(&to, Change::Unknown);
        tries += 1;
        db.pause(tries).await;
    }
}

fn hint(to: &WeakSender<Change>, change: Change) {
    if let Some(sender) = to.upgrade() {
        drop(sender.send(change));
    }
}

/// Listens on a connection of its own until that ends, or nobody wants to know.
async fn follow(db: &Db, to: &WeakSender<Change>, tries: &mut u32) {
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
    hint(to, Change::Unknown);
    loop {
        match tokio::time::timeout(STILL_WANTED, messages.recv()).await {
            Ok(Some(payload)) => payload.lines().filter_map(parse).for_each(|change| hint(to, change)),
            Ok(None) => return,
            Err(_) if to.strong_count() == 0 => return,
            Err(_) => {}
        }
    }
}

fn parse(line: &str) -> Option<Change> {
    let (session, workspace) = line.split_once(' ')?;
    Some(Change::Session(WorkspaceId::new(workspace.to_owned()).ok()?, session.parse().ok()?))
}
