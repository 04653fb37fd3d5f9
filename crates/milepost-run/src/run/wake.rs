//! Wake-ups: records that say when a waiting run is to go on. Whoever is alive when one is due claims it, and nobody else
//! gets it meanwhile.

use milepost::store::StoredRecord;
use milepost::{Milepost, Resume, SessionId, Timestamp};
use serde_json::{Value, json};

use super::Runner;
use super::error::Result;
use super::ledger::{Ledger, Status};
use crate::chat::WAKE_TRIES;

/// How long is waited after a session was woken in vain, in milliseconds (5 seconds): twice as long after each try,
const WAKE_AGAIN_MS: u64 = 5000;
/// at most so long (10 minutes), and up to half of it less, by chance.
const MAX_WAKE_AGAIN_MS: u64 = 600_000;

/// The kind of records that wake-ups are.
const WAKEUP: &str = "wakeup";
/// How long whoever claimed a wake-up has until another may, in milliseconds.
const WAKEUP_LEASE_MS: i64 = 60_000;
/// So much after the end of a wait that a process waits out itself it is woken, in case that the process is gone, in milliseconds.
const IN_CASE_MS: i64 = 5000;
/// The key of a wake-up's value that says that somebody asked for it.
const ASKED: &str = "asked";
/// The key of a wake-up's value that says how often it was followed in vain.
const TRIES: &str = "tries";

/// Asks for a session's run to go on now, by whichever process looks for wake-ups: an answer came.
pub async fn wake(engine: &Milepost, id: SessionId) -> Result<()> {
    let store = engine.store();
    let (key, now) = (id.to_string(), engine.source().now());
    let known = store.record(WAKEUP, &key).await.map_err(milepost::Error::from)?;
    let version = known.map(|record| record.version);
    // No two are the same: whoever has looked for answers knows which of them it has followed.
    let asked = json!({ ASKED: engine.source().id::<SessionId>().to_string() }).to_string();
    match store.put_record(WAKEUP, &key, version, Some(now), asked.as_bytes()).await {
        // Somebody else changed it just now: the run goes on or was asked to.
        Err(milepost::store::Error::Conflict(_)) => Ok(()),
        other => Ok(other.map(drop).map_err(milepost::Error::from)?),
    }
}

fn is_asked(value: &[u8]) -> bool {
    serde_json::from_slice::<Value>(value).is_ok_and(|value| value.get(ASKED).is_some())
}

/// Notes when a session is to go on; none when it waits for no time. A request to go on that was not followed stays.
pub(crate) async fn note(
    engine: &Milepost,
    id: SessionId,
    until: Option<Timestamp>,
    followed: Option<&[u8]>,
) -> milepost::Result<()> {
    put(engine, id, until, followed, b"{}").await
}

/// Notes when a session is to go on that was woken so often in vain.
pub(crate) async fn note_try(
    engine: &Milepost,
    id: SessionId,
    until: Option<Timestamp>,
    tries: u32,
) -> milepost::Result<()> {
    put(engine, id, until, None, json!({ TRIES: tries }).to_string().as_bytes()).await
}

/// How often a session was woken in vain.
pub(crate) async fn tries(engine: &Milepost, id: SessionId) -> milepost::Result<u32> {
    let known = engine.store().record(WAKEUP, &id.to_string()).await?;
    Ok(known.map_or(0, |record| tries_of(&record.value)))
}

fn tries_of(value: &[u8]) -> u32 {
    let value = serde_json::from_slice::<Value>(value).ok();
    let tries = value.and_then(|value| value.get(TRIES)?.as_u64()).unwrap_or(0);
    u32::try_from(tries).unwrap_or(u32::MAX - 1)
}

/// A moment at which a session is to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wakeup {
    /// The session.
    pub session: SessionId,
    /// When.
    pub due: Timestamp,
    /// How often it was tried in vain. It waits for nothing but the next try then.
    pub tries: u32,
}

/// How long to wait after so many tries, in milliseconds.
pub(crate) fn again_in_ms(engine: &Milepost, tries: u32) -> u64 {
    let doubled = (WAKE_AGAIN_MS << tries.saturating_sub(1).min(20)).min(MAX_WAKE_AGAIN_MS);
    let mut random = [0u8; 8];
    engine.source().fill(&mut random);
    doubled / 2 + u64::from_le_bytes(random) % (doubled / 2 + 1)
}

/// When a session is to go on; none when it waits for no time.
pub(crate) async fn due(engine: &Milepost, id: SessionId) -> milepost::Result<Option<Timestamp>> {
    Ok(engine.store().record(WAKEUP, &id.to_string()).await?.and_then(|record| record.due))
}

async fn put(
    engine: &Milepost,
    id: SessionId,
    until: Option<Timestamp>,
    followed: Option<&[u8]>,
    value: &[u8],
) -> milepost::Result<()> {
    let (store, key) = (engine.store(), id.to_string());
    let known = store.record(WAKEUP, &key).await?;
    let is_open = |value: &[u8]| is_asked(value) && Some(value) != followed;
    if known.as_ref().is_some_and(|record| is_open(&record.value)) {
        return Ok(());
    }
    let version = known.map(|record| record.version);
    let stored = match (until, version) {
        (Some(until), version) => store.put_record(WAKEUP, &key, version, Some(until), value).await.map(drop),
        (None, Some(version)) => store.delete_record(WAKEUP, &key, version).await,
        (None, None) => Ok(()),
    };
    match stored {
        // Somebody asked for it meanwhile, which is more.
        Err(milepost::store::Error::Conflict(_)) => Ok(()),
        other => Ok(other?),
    }
}

/// Forgets a session's wake-up: it does not wait any more.
pub(crate) async fn forget(engine: &Milepost, id: SessionId) -> milepost::Result<()> {
    let (store, key) = (engine.store(), id.to_string());
    if let Some(record) = store.record(WAKEUP, &key).await? {
        // Whoever changed it meanwhile knows more.
        let _ = store.delete_record(WAKEUP, &key, record.version).await;
    }
    Ok(())
}

impl Runner {
    /// The request to go on that is open, if there is one.
    pub(super) async fn asked_to_wake(&self, id: SessionId) -> Result<Option<Vec<u8>>> {
        let known = self.engine.store().record(WAKEUP, &id.to_string()).await.map_err(milepost::Error::from)?;
        Ok(known.map(|record| record.value.to_vec()).filter(|value| is_asked(value)))
    }

    /// Notes when a run that is about to wait is to go on. A request to go on that the run has not followed stays.
    pub(super) async fn note_wakeup(
        &self,
        id: SessionId,
        until: Option<Timestamp>,
        followed: Option<&[u8]>,
    ) -> Result<()> {
        Ok(note(&self.engine, id, until, followed).await?)
    }

    /// Notes that a run is to be woken after a wait that this process waits out itself, in case that it is gone by then. `noted`
    /// is when it was to be so far: many short waits are one. When it is now.
    pub(super) async fn wake_in_case(
        &self,
        id: SessionId,
        until: Timestamp,
        noted: Option<Timestamp>,
        followed: Option<&[u8]>,
    ) -> Result<Timestamp> {
        let due = until.plus_ms(IN_CASE_MS);
        if let Some(noted) = noted.filter(|noted| until <= *noted && *noted <= due.plus_ms(IN_CASE_MS)) {
            return Ok(noted);
        }
        // Another wait of the same run may be over before.
        let known = self.due(id).await?.filter(|known| *known > self.engine.source().now() && *known <= due);
        if known.is_none() {
            self.note_wakeup(id, Some(due), followed).await?;
        }
        Ok(due)
    }

    /// The sessions whose waits are over, claimed for this process: nobody else is given them for a minute.
    pub async fn claim_due(&self, limit: usize) -> Result<Vec<SessionId>> {
        let store = self.engine.store();
        let now = self.engine.source().now();
        let mut claimed = Vec::new();
        for record in store.records_due(WAKEUP, now, limit).await.map_err(milepost::Error::from)? {
            let again = now.plus_ms(WAKEUP_LEASE_MS);
            let taken = store.put_record(WAKEUP, &record.key, Some(record.version), Some(again), &record.value).await;
            if let (Ok(_), Ok(id)) = (taken, record.key.parse()) {
                claimed.push(id);
            }
        }
        Ok(claimed)
    }

    /// Notes that a session whose wake-up was followed could not even be gone on with: a key is missing, its state is
    /// damaged. It is woken again, later each time; after [`WAKE_TRIES`] it is paused with the reason. When it is woken next;
    /// none when it is not.
    pub async fn woken_in_vain(&self, id: SessionId, why: &str) -> Result<Option<Timestamp>> {
        let (store, key) = (self.engine.store(), id.to_string());
        let Some(record) = store.record(WAKEUP, &key).await.map_err(milepost::Error::from)? else { return Ok(None) };
        let tries = tries(&self.engine, id).await?.saturating_add(1);
        if tries < WAKE_TRIES {
            let wait = i64::try_from(again_in_ms(&self.engine, tries)).unwrap_or(i64::MAX);
            let until = self.engine.source().now().plus_ms(wait);
            // A request to go on stays one.
            let mut value = serde_json::from_slice::<Value>(&record.value).ok().filter(Value::is_object);
            let value = value.get_or_insert_with(|| json!({}));
            value[TRIES] = tries.into();
            let value = value.to_string();
            let put = store.put_record(WAKEUP, &key, Some(record.version), Some(until), value.as_bytes()).await;
            return match put {
                // Somebody else changed it meanwhile, and knows more.
                Err(milepost::store::Error::Conflict(_)) => self.due(id).await,
                other => Ok(other.map(|_| Some(until)).map_err(milepost::Error::from)?),
            };
        }
        self.forget_wakeup(id).await?;
        let session = self.engine.resume(id, Resume::latest()).await?.session;
        session.pause(Some(&format!("it could not be gone on with in {WAKE_TRIES} tries: {why}"))).await?;
        session.release().await?;
        Ok(None)
    }

    /// Whether a run that is paused at a question that was denied has a new answer to it, and so can go on by itself.
    pub async fn is_answered_anew(&self, id: SessionId) -> Result<bool> {
        if self.asked_to_wake(id).await?.is_none() {
            return Ok(false);
        }
        let state = self.engine.store().state(id).await.map_err(milepost::Error::from)?;
        let Ok(graph) = self.recorded_graph(&state) else { return Ok(false) };
        let ledger = Ledger::read(&state)?;
        let mut failed = ledger.nodes().filter(|(_, entry)| entry.status == Status::Failed);
        Ok(failed.any(|(name, _)| self.asked(&state, &graph, name).is_some()))
    }

    /// The wake-ups that there are, the next one first; at most so many.
    pub async fn wakeups(&self, limit: usize) -> Result<Vec<Wakeup>> {
        let all = self.engine.store().records_due(WAKEUP, Timestamp(i64::MAX), limit).await;
        let all = all.map_err(milepost::Error::from)?.into_iter();
        let wakeup = |record: StoredRecord| {
            Some(Wakeup { session: record.key.parse().ok()?, due: record.due?, tries: tries_of(&record.value) })
        };
        Ok(all.filter_map(wakeup).collect())
    }

    /// When a session is to be woken; none when it waits for no time.
    pub async fn due(&self, id: SessionId) -> Result<Option<Timestamp>> {
        Ok(due(&self.engine, id).await?)
    }

    /// Forgets a session's wake-up: its run does not wait any more.
    pub async fn forget_wakeup(&self, id: SessionId) -> Result<()> {
        Ok(forget(&self.engine, id).await?)
    }
}
