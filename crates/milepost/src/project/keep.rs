//! Records of projects. Their names are hashed with a secret of the workspace, so that in an encrypted workspace no
//! path, no project and no artifact can be read from a key.

use milepost_model::{Id, SessionId};
use milepost_store::{Conflict, Store};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Error, Milepost, Result, redaction};

/// So often a change is tried again when someone else changed the same record.
pub(super) const MAX_TRIES: usize = 64;
const SECRET_KIND: &str = "project-secret";
const SECRET_KEY: &str = "1";

/// The projects of a workspace: which directories belong to them, their artifacts and logs.
#[derive(Clone)]
pub struct Projects {
    pub(super) store: Store,
    secret: [u8; 32],
    /// Whose rules say what a secret is; nothing is taken out without one.
    engine: Option<Milepost>,
}

impl std::fmt::Debug for Projects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Projects").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Projects {
    /// The projects of a store's workspace. What is kept through them is kept as it is; [`Milepost::projects`] takes secrets
    /// out first.
    pub async fn open(store: &Store) -> Result<Self> {
        let mut fresh = [0; 32];
        store.source().fill(&mut fresh);
        for _ in 0..MAX_TRIES {
            if let Some(found) = store.record(SECRET_KIND, SECRET_KEY).await? {
                let secret = found.value.as_slice().try_into().map_err(|_| damaged("the secret of projects"))?;
                return Ok(Self { store: store.clone(), secret, engine: None });
            }
            match store.put_record(SECRET_KIND, SECRET_KEY, None, None, &fresh).await {
                Ok(_) => return Ok(Self { store: store.clone(), secret: fresh, engine: None }),
                Err(milepost_store::Error::Conflict(Conflict::Record { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Conflict::Record { key: SECRET_KIND.to_owned() }).map_err(|conflict| Error::Store(conflict.into()))
    }

    /// The same without changing anything; none where nothing was ever kept.
    pub(crate) async fn open_if_any(store: &Store) -> Result<Option<Self>> {
        match store.record(SECRET_KIND, SECRET_KEY).await? {
            Some(_) => Self::open(store).await.map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn engine(&self) -> Option<&Milepost> {
        self.engine.as_ref()
    }

    /// A text without its secrets, which go into the vault; none when it has none.
    pub(super) async fn redacted(&self, text: &str) -> Result<Option<String>> {
        let Some(engine) = &self.engine else { return Ok(None) };
        let mut value = Value::String(text.to_owned());
        let found = engine.redaction().value(&mut value);
        match value {
            Value::String(clean) if !found.is_empty() => {
                redaction::keep(engine, found).await?;
                Ok(Some(clean))
            }
            _ => Ok(None),
        }
    }

    /// A text as it may be kept.
    pub(super) async fn clean(&self, text: &str) -> Result<String> {
        Ok(self.redacted(text).await?.unwrap_or_else(|| text.to_owned()))
    }

    /// A content without its secrets, which go into the vault; none when it has none.
    pub(super) async fn redacted_bytes(&self, content: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(engine) = &self.engine else { return Ok(None) };
        let Some((clean, found)) = engine.redaction().bytes(content) else { return Ok(None) };
        redaction::keep(engine, found).await?;
        Ok(Some(clean))
    }

    /// What a name is called in keys.
    pub(super) fn token(&self, what: &str, name: &[u8]) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(what.as_bytes()).update(&[0]).update(name);
        hasher.finalize().to_hex()[..40].to_owned()
    }

    /// A new id that no one else has.
    pub(super) fn fresh_id(&self) -> String {
        short(self.store.source().id::<SessionId>())
    }

    /// A record's value.
    pub(super) async fn get<T: DeserializeOwned>(&self, kind: &str, key: &str) -> Result<Option<T>> {
        let found = self.store.record(kind, key).await?;
        found.map(|record| decode(kind, &record.value)).transpose()
    }

    /// Changes a record. `decide` sees what is there and gives what is to be there (none: leave it) and an answer; it is
    /// asked again when someone else was faster.
    pub(super) async fn change<T, R>(
        &self,
        kind: &str,
        key: &str,
        mut decide: impl FnMut(Option<T>) -> Result<(Option<T>, R)>,
    ) -> Result<R>
    where
        T: Serialize + DeserializeOwned,
    {
        for _ in 0..MAX_TRIES {
            let found = self.store.record(kind, key).await?;
            let version = found.as_ref().map(|record| record.version);
            let before = found.map(|record| decode(kind, &record.value)).transpose()?;
            let (after, answer) = decide(before)?;
            let Some(after) = after else { return Ok(answer) };
            match self.store.put_record(kind, key, version, None, &encode(kind, &after)?).await {
                Ok(_) => return Ok(answer),
                Err(milepost_store::Error::Conflict(Conflict::Record { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Store(Conflict::Record { key: format!("of kind {kind}") }.into()))
    }

    /// Removes a record, whatever it says.
    pub(super) async fn remove(&self, kind: &str, key: &str) -> Result<()> {
        for _ in 0..MAX_TRIES {
            let Some(found) = self.store.record(kind, key).await? else { return Ok(()) };
            match self.store.delete_record(kind, key, found.version).await {
                Ok(()) => return Ok(()),
                Err(milepost_store::Error::Conflict(Conflict::Record { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Store(Conflict::Record { key: format!("of kind {kind}") }.into()))
    }

    /// The keys and values of a kind whose keys begin so.
    pub(super) async fn scan<T: DeserializeOwned>(&self, kind: &str, prefix: &str) -> Result<Vec<(String, T)>> {
        const PAGE: usize = 256;
        let mut found = Vec::new();
        let mut after = (!prefix.is_empty()).then(|| prefix.to_owned());
        loop {
            let page = self.store.records(kind, after.as_deref(), PAGE).await?;
            let count = page.len();
            after = page.last().map(|record| record.key.clone());
            for record in page {
                if !record.key.starts_with(prefix) {
                    return Ok(found);
                }
                let value = decode(kind, &record.value)?;
                found.push((record.key, value));
            }
            if count < PAGE {
                return Ok(found);
            }
        }
    }
}

impl Milepost {
    /// The projects of the workspace. Artifacts that are text, templates, lines of logs, names and paths are kept without their secrets;
    /// an artifact that is not UTF-8 is kept as it is.
    pub async fn projects(&self) -> Result<Projects> {
        Ok(Projects { engine: Some(self.clone()), ..Projects::open(self.store()).await? })
    }
}

/// An id's letters without its prefix.
pub(super) fn short<T: Id>(id: T) -> String {
    id.to_string().split_off(T::PREFIX.len())
}

pub(super) fn encode<T: Serialize>(kind: &str, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| {
        Error::refused(format!("the {kind}"), error.to_string(), "give it only what can be written as JSON")
    })
}

pub(super) fn decode<T: DeserializeOwned>(kind: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Error::Store(milepost_store::Error::Corrupt {
            what: format!("a record of kind {kind}"),
            why: error.to_string(),
        })
    })
}

pub(super) fn damaged(what: &str) -> Error {
    let why = "it does not have the form that it was written in".to_owned();
    Error::Store(milepost_store::Error::Corrupt { what: what.to_owned(), why })
}

/// Does slow work on a thread of its own, so that no runtime waits for it; works without a runtime, too.
pub(crate) async fn apart<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (send, done) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("milepost-project".to_owned());
    thread.spawn(move || drop(send.send(work()))).map_err(|error| Error::file(what, error))?;
    done.await.map_err(|_| Error::file(what, "the work ended before it was done"))
}
