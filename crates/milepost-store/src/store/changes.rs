//! Following what happens in a store, in any process.
//!
//! Hints come from three sides: this process tells of its own writes, the backend of those of others where it can
//! (PostgreSQL), and a clock says once a second that it is time to look. A hint is only a hint: whoever follows a
//! session reads it from where it stopped at every one, and so misses no entry when hints are lost.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use milepost_model::SessionId;
use tokio::sync::broadcast;

use super::Store;
use crate::backend::Change;
use crate::error::{Error, Result};

/// Hints that wait for a slow follower; when more came, it is told to look at everything.
const WAITING: usize = 1024;
/// Between two looks without a hint.
const LOOK: Duration = Duration::from_secs(1);

/// The hints, as they come.
#[derive(Debug)]
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

/// Who is told. Nothing runs before someone asks.
#[derive(Default)]
pub(super) struct Followers(Mutex<Option<Following>>);

struct Following {
    sender: broadcast::Sender<Change>,
    /// The clock's thread ends when this is gone.
    _clock: SyncSender<()>,
}

impl Followers {
    pub fn tell(&self, change: impl FnOnce() -> Change) {
        if let Some(following) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // Nobody follows just now.
            let _ = following.sender.send(change());
        }
    }

    pub fn close(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Store {
    /// Hints of what changes from now on, in any process: [`Change::Session`] soon after a write where the store can
    /// tell, and [`Change::Unknown`] once a second in any case.
    pub fn changes(&self) -> Result<Changes> {
        let mut followers = self.inner.followers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(following) = &*followers {
            return Ok(Changes(following.sender.subscribe()));
        }
        let (sender, receiver) = broadcast::channel(WAITING);
        let (clock, ended) = sync_channel::<()>(0);
        let ticks = sender.downgrade();
        let tick = move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let Some(sender) = ticks.upgrade() else { return };
                let _ = sender.send(Change::Unknown);
            }
        };
        std::thread::Builder::new().name("milepost-look".into()).spawn(tick).map_err(|error| Error::Io {
            what: "starting a thread to follow changes".into(),
            why: error.to_string(),
        })?;
        self.inner.backend.tell(sender.downgrade());
        *followers = Some(Following { sender, _clock: clock });
        Ok(Changes(receiver))
    }

    pub(super) fn changed(&self, session: SessionId) {
        self.inner.followers.tell(|| Change::Session(self.workspace().clone(), session));
    }
}
