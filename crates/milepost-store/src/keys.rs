//! Keys: the master key, the workspace's and the sessions' keys wrapped under it, and the keys that
//! sign.
//!
//! A workspace made with a master key is encrypted: it has a data key, wrapped by the master key, and
//! every session has a key of its own, wrapped by the data key. Rotating a key wraps what is under it
//! anew and touches no payload. Destroying a session's key makes what it wrote unreadable for good.
//! Wrapped keys are records beside the log, of kind `key`.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use base64_simd::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use milepost_model::{Hash, SessionId, Source, WorkspaceId};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::backend::{Backend, Record, RecordKey, RecordOrder, RecordScan};
use crate::codec::{SessionCipher, checksum_bytes};
use crate::error::{Conflict, Error, KeyError, Result};

type Secret = Zeroizing<[u8; 32]>;

/// The kind of records that hold keys.
pub(crate) const KEY_KIND: &str = "key";
pub(crate) const WORKSPACE_KEY: &str = "workspace";
const RECORD_VERSION: u64 = 1;
/// The environment variable that holds the master key.
pub const MASTER_KEY_VARIABLE: &str = "MILEPOST_KEY";

/// The key that wraps a workspace's keys. 32 bytes; written as 64 hex digits or base64.
#[derive(Clone)]
pub struct MasterKey(Secret);

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.fingerprint())
    }
}

impl MasterKey {
    /// The key of these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A new random key.
    pub fn generate(source: &Source) -> Self {
        Self(random(source))
    }

    /// Reads a key from text: 64 hex digits, or base64 of 32 bytes.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_from(text, "the text")
    }

    fn parse_from(text: &str, from: &str) -> Result<Self> {
        let text = text.trim();
        let malformed = |why: &str| KeyError::Malformed { from: from.to_owned(), why: why.to_owned() };
        if text.is_empty() {
            return Err(malformed("it is empty").into());
        }
        if let Ok(Hash(bytes)) = text.parse::<Hash>() {
            return Ok(Self::from_bytes(bytes));
        }
        let bytes = Zeroizing::new(
            BASE64.decode_type::<Vec<u8>>(text).map_err(|_| malformed("it is neither 64 hex digits nor base64"))?,
        );
        let bytes = <[u8; 32]>::try_from(bytes.as_slice())
            .map_err(|_| malformed(&format!("it has {} bytes instead of 32", bytes.len())))?;
        Ok(Self::from_bytes(bytes))
    }

    /// The key in an environment variable; none when it is not set.
    pub fn from_env(variable: &str) -> Result<Option<Self>> {
        match std::env::var(variable) {
            Ok(text) => Self::parse_from(&text, &format!("the variable {variable}")).map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(KeyError::Malformed { from: format!("the variable {variable}"), why: "it is not text".into() }
                    .into())
            }
        }
    }

    /// The key in a file of its own.
    pub fn from_file(path: &Path) -> Result<Self> {
        let from = path.display().to_string();
        let text = Zeroizing::new(
            std::fs::read_to_string(path)
                .map_err(|error| KeyError::Malformed { from: from.clone(), why: error.to_string() })?,
        );
        Self::parse_from(&text, &from)
    }

    /// The key in the operating system's keychain; none when there is no such entry.
    #[cfg(feature = "keychain")]
    pub fn from_keychain(service: &str, account: &str) -> Result<Option<Self>> {
        let from = format!("the keychain entry {service}/{account}");
        let failed = |error: keyring::Error| KeyError::Malformed { from: from.clone(), why: error.to_string() };
        let entry = keyring::v1::Entry::new(service, account).map_err(failed)?;
        match entry.get_password() {
            Ok(text) => Self::parse_from(&Zeroizing::new(text), &from).map(Some),
            Err(keyring::Error::NoEntry) => Ok(None),
            Err(error) => Err(failed(error).into()),
        }
    }

    /// Puts the key into the operating system's keychain.
    #[cfg(feature = "keychain")]
    pub fn to_keychain(&self, service: &str, account: &str) -> Result<()> {
        let from = format!("the keychain entry {service}/{account}");
        let failed = |error: keyring::Error| KeyError::Malformed { from: from.clone(), why: error.to_string() };
        let entry = keyring::v1::Entry::new(service, account).map_err(failed)?;
        entry.set_password(&self.to_hex()).map_err(failed)?;
        Ok(())
    }

    /// The key as 64 hex digits, for the place where it is kept. Nothing in Milepost prints it.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(Hash(*self.0).to_string())
    }

    /// Tells keys apart without telling the key.
    pub fn fingerprint(&self) -> String {
        let hash = blake3::derive_key("milepost 1 master key fingerprint", &*self.0);
        Hash(hash).to_string()[..12].to_owned()
    }

    fn cipher(&self) -> SessionCipher {
        SessionCipher::new(&self.0)
    }
}

/// Signs marks: an HMAC-SHA256 over the chain hash says that nothing before the mark was changed
/// by someone without the key.
#[derive(Clone)]
pub struct MarkKey(Secret);

impl fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkKey")
    }
}

impl MarkKey {
    /// The key of these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Reads a key from text, as [`MasterKey::parse`] does.
    pub fn parse(text: &str) -> Result<Self> {
        MasterKey::parse(text).map(|key| Self(key.0))
    }

    fn hmac(&self, chain: &Hash) -> Hmac<Sha256> {
        // Any length of key is allowed, so this cannot fail; an empty key would then verify nothing.
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
        mac.update(b"milepost 1 mark");
        mac.update(&chain.0);
        mac
    }

    pub(crate) fn sign(&self, chain: &Hash) -> [u8; 32] {
        self.hmac(chain).finalize().into_bytes().into()
    }

    pub(crate) fn verify(&self, chain: &Hash, mac: &[u8; 32]) -> bool {
        self.hmac(chain).verify_slice(mac).is_ok()
    }
}

/// The keys a store is opened with.
#[derive(Debug, Clone, Default)]
pub struct KeyOptions {
    /// Encrypts new workspaces and opens encrypted ones.
    pub master: Option<MasterKey>,
    /// Signs marks, and is checked when they are loaded.
    pub marks: Option<MarkKey>,
}

/// How a workspace's keys lie in its record.
#[derive(Debug, Serialize, Deserialize)]
struct WorkspaceRecord {
    version: u64,
    /// The commitment key: in clear, or wrapped by the data key when there is one.
    commit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<EncryptionRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct EncryptionRecord {
    /// The master key that wraps the data keys.
    fingerprint: String,
    /// The data keys by generation: the newest wraps new sessions, older ones stay until all is wrapped anew.
    data: Vec<(u64, String)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SessionRecord {
    version: u64,
    /// Which data key wraps it.
    generation: u64,
    key: String,
}

/// The keys of an open workspace.
pub(crate) struct Keys {
    workspace: WorkspaceId,
    /// Kept to follow a rotation that was made elsewhere.
    master: RwLock<Option<MasterKey>>,
    commit: Arc<[u8; 32]>,
    data: Option<RwLock<Vec<(u64, Secret)>>>,
    marks: Option<MarkKey>,
    sessions: Mutex<HashMap<SessionId, Arc<SessionCipher>>>,
    source: Source,
}

fn random(source: &Source) -> Secret {
    let mut key = Zeroizing::new([0u8; 32]);
    source.fill(&mut *key);
    key
}

fn associated(what: &str, workspace: &WorkspaceId, name: &str) -> Vec<u8> {
    format!("milepost 1 {what} key\n{workspace}\n{name}").into_bytes()
}

fn wrap(cipher: &SessionCipher, source: &Source, associated: &[u8], key: &[u8; 32]) -> Result<String> {
    Ok(BASE64.encode_type(cipher.wrap(source, associated, key)?))
}

fn unwrap_key(cipher: &SessionCipher, associated: &[u8], wrapped: &str) -> Option<Secret> {
    let wrapped: Vec<u8> = BASE64.decode_type(wrapped).ok()?;
    let key = Zeroizing::new(cipher.unwrap(associated, &wrapped).ok()?);
    <[u8; 32]>::try_from(key.as_slice()).ok().map(Zeroizing::new)
}

fn key_name(name: impl Into<String>) -> RecordKey {
    RecordKey { kind: KEY_KIND.to_owned(), key: name.into() }
}

fn session_key_name(session: SessionId) -> RecordKey {
    key_name(format!("session/{session}"))
}

fn damaged(what: &str) -> Error {
    Error::corrupt(what, "its key record cannot be read")
}

/// A version that was never used for this key before: time, then randomness.
pub(crate) fn fresh_version(source: &Source) -> u64 {
    let mut tail = [0u8; 4];
    source.fill(&mut tail);
    let ms = source.now().unix_ms().clamp(1, (1 << 42) - 1) as u64;
    (ms << 20) | u64::from(u32::from_le_bytes(tail) & 0xf_ffff)
}

impl Keys {
    /// Reads a workspace's keys, or makes them when it is new.
    /// Whether a workspace has anything in a store.
    pub async fn is_begun(backend: &dyn Backend, workspace: &WorkspaceId) -> Result<bool> {
        Ok(backend.record(workspace, key_name(WORKSPACE_KEY)).await?.is_some())
    }

    pub async fn open(
        backend: &dyn Backend,
        workspace: &WorkspaceId,
        options: &KeyOptions,
        source: &Source,
    ) -> Result<Self> {
        let record = match backend.record(workspace, key_name(WORKSPACE_KEY)).await? {
            Some(record) => record,
            None => Self::create(backend, workspace, options, source).await?,
        };
        let value = Self::parse(workspace, &record)?;
        let (data, commit) = match (&value.encryption, &options.master) {
            (None, None) => {
                (None, BASE64.decode_type::<Vec<u8>>(&value.commit).ok().and_then(|key| key.try_into().ok()))
            }
            (None, Some(_)) => {
                return Err(KeyError::NotEncrypted { workspace: workspace.to_string() }.into());
            }
            (Some(encryption), master) => {
                let data = Self::open_data(workspace, encryption, master.as_ref())?;
                let commit = data.iter().rev().find_map(|(_, key)| {
                    unwrap_key(&SessionCipher::new(key), &associated("commitment", workspace, ""), &value.commit)
                });
                (Some(RwLock::new(data)), commit.map(|key| *key))
            }
        };
        let commit = commit.ok_or_else(|| damaged(&format!("workspace {workspace}")))?;
        Ok(Self {
            workspace: workspace.clone(),
            master: RwLock::new(options.master.clone()),
            commit: Arc::new(commit),
            data,
            marks: options.marks.clone(),
            sessions: Mutex::default(),
            source: source.clone(),
        })
    }

    fn parse(workspace: &WorkspaceId, record: &Record) -> Result<WorkspaceRecord> {
        let value: WorkspaceRecord = parse_record(record).ok_or_else(|| damaged(&format!("workspace {workspace}")))?;
        if value.version > RECORD_VERSION {
            return Err(Error::Newer {
                what: format!("the key record of workspace {workspace}"),
                found: value.version,
                supported: RECORD_VERSION,
            });
        }
        Ok(value)
    }

    fn open_data(
        workspace: &WorkspaceId,
        encryption: &EncryptionRecord,
        master: Option<&MasterKey>,
    ) -> Result<Vec<(u64, Secret)>> {
        let fingerprint = encryption.fingerprint.clone();
        let Some(master) = master else {
            return Err(KeyError::Missing { workspace: workspace.to_string(), fingerprint }.into());
        };
        let cipher = master.cipher();
        let wrong = || KeyError::Wrong {
            workspace: workspace.to_string(),
            fingerprint: fingerprint.clone(),
            given: master.fingerprint(),
        };
        let mut data = Vec::new();
        for (generation, wrapped) in &encryption.data {
            let name = associated("data", workspace, &generation.to_string());
            data.push((*generation, unwrap_key(&cipher, &name, wrapped).ok_or_else(wrong)?));
        }
        Ok(data)
    }

    async fn create(
        backend: &dyn Backend,
        workspace: &WorkspaceId,
        options: &KeyOptions,
        source: &Source,
    ) -> Result<Record> {
        let commit = random(source);
        let value = match &options.master {
            None => WorkspaceRecord { version: RECORD_VERSION, commit: BASE64.encode_type(*commit), encryption: None },
            Some(master) => {
                let data = vec![(1, random(source))];
                Self::record_of(workspace, source, master, &data, &commit)?
            }
        };
        let record = new_record(key_name(WORKSPACE_KEY), &value, source)?;
        match backend.put_record(workspace, record.clone(), None).await {
            Ok(()) => Ok(record),
            // Someone else made it at the same time: theirs counts.
            Err(Error::Conflict(_)) => backend
                .record(workspace, key_name(WORKSPACE_KEY))
                .await?
                .ok_or_else(|| Error::not_found("workspace", workspace)),
            Err(error) => Err(error),
        }
    }

    fn record_of(
        workspace: &WorkspaceId,
        source: &Source,
        master: &MasterKey,
        data: &[(u64, Secret)],
        commit: &[u8; 32],
    ) -> Result<WorkspaceRecord> {
        let cipher = master.cipher();
        let wrapped = data
            .iter()
            .map(|(generation, key)| {
                let name = associated("data", workspace, &generation.to_string());
                Ok((*generation, wrap(&cipher, source, &name, key)?))
            })
            .collect::<Result<Vec<_>>>()?;
        let newest = data.last().ok_or_else(|| damaged("workspace"))?;
        let commit = wrap(&SessionCipher::new(&newest.1), source, &associated("commitment", workspace, ""), commit)?;
        Ok(WorkspaceRecord {
            version: RECORD_VERSION,
            commit,
            encryption: Some(EncryptionRecord { fingerprint: master.fingerprint(), data: wrapped }),
        })
    }

    /// The key of commitments.
    pub fn commit(&self) -> &Arc<[u8; 32]> {
        &self.commit
    }

    /// The key that signs marks.
    pub fn marks(&self) -> Option<&MarkKey> {
        self.marks.as_ref()
    }

    /// Whether the workspace is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.data.is_some()
    }

    fn data_key(&self, generation: Option<u64>) -> Option<(u64, Secret)> {
        let data = self.data.as_ref()?.read().unwrap_or_else(PoisonError::into_inner);
        match generation {
            None => data.last().cloned(),
            Some(wanted) => data.iter().find(|(generation, _)| *generation == wanted).cloned(),
        }
    }

    /// The cipher of the workspace itself: for records and rows that belong to no session.
    pub fn workspace_cipher(&self) -> Option<Arc<SessionCipher>> {
        // Derived from the commitment key, which stays the same when the data key is rotated.
        self.data.as_ref()?;
        Some(Arc::new(SessionCipher::new(&blake3::derive_key("milepost 1 workspace values", &*self.commit))))
    }

    /// Makes a new session's key. It must be durable before anything is sealed with it, and wrapped by a
    /// data key that stays: a rotation under way elsewhere sees it, or is seen here.
    pub async fn create_session(&self, backend: &dyn Backend, session: SessionId) -> Result<()> {
        let key = random(&self.source);
        let mut expected = None;
        while let Some((generation, data)) = self.data_key(None) {
            let record = self.session_record(session, generation, &data, &key)?;
            let version = record.version;
            backend.put_record(&self.workspace, record, expected).await?;
            self.refresh(backend).await?;
            if self.data_key(None).is_some_and(|(newest, _)| newest == generation) {
                self.remember(session, &key);
                break;
            }
            expected = Some(version);
        }
        Ok(())
    }

    fn session_record(&self, session: SessionId, generation: u64, data: &[u8; 32], key: &[u8; 32]) -> Result<Record> {
        let name = associated("session", &self.workspace, &session.to_string());
        let key = wrap(&SessionCipher::new(data), &self.source, &name, key)?;
        new_record(session_key_name(session), &SessionRecord { version: RECORD_VERSION, generation, key }, &self.source)
    }

    fn remember(&self, session: SessionId, key: &[u8; 32]) -> Arc<SessionCipher> {
        let cipher = Arc::new(SessionCipher::new(key));
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(session, Arc::clone(&cipher));
        cipher
    }

    /// A session's cipher; none when the workspace is not encrypted.
    pub async fn session(&self, backend: &dyn Backend, session: SessionId) -> Result<Option<Arc<SessionCipher>>> {
        if self.data.is_none() {
            return Ok(None);
        }
        if let Some(cipher) = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&session) {
            return Ok(Some(Arc::clone(cipher)));
        }
        let Some(record) = backend.record(&self.workspace, session_key_name(session)).await? else {
            return Err(KeyError::Shredded { session }.into());
        };
        let key = self.unwrap_session(backend, session, &record).await?;
        Ok(Some(self.remember(session, &key)))
    }

    async fn unwrap_session(&self, backend: &dyn Backend, session: SessionId, record: &Record) -> Result<Secret> {
        let bad = || damaged(&format!("session {session}"));
        let value: SessionRecord = parse_record(record).ok_or_else(bad)?;
        if self.data_key(Some(value.generation)).is_none() {
            self.refresh(backend).await?;
        }
        let (_, data) = self.data_key(Some(value.generation)).ok_or_else(bad)?;
        let name = associated("session", &self.workspace, &session.to_string());
        unwrap_key(&SessionCipher::new(&data), &name, &value.key).ok_or_else(bad)
    }

    /// Destroys a session's key.
    pub async fn shred(&self, backend: &dyn Backend, session: SessionId) -> Result<()> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
        match backend.record(&self.workspace, session_key_name(session)).await? {
            Some(record) => backend.delete_record(&self.workspace, record.key, record.version).await,
            None => Ok(()),
        }
    }

    /// Wraps the workspace's keys with another master key.
    pub async fn rotate_master(&self, backend: &dyn Backend, new: &MasterKey) -> Result<()> {
        let (record, _, data) = self.read_workspace(backend).await?;
        self.write_workspace(backend, record.version, new, data).await?;
        *self.master.write().unwrap_or_else(PoisonError::into_inner) = Some(new.clone());
        Ok(())
    }

    /// Gives the workspace a new data key and wraps every session's key with it. Returns how many. Can be
    /// stopped at any point and called again.
    pub async fn rotate_data(&self, backend: &dyn Backend, master: &MasterKey) -> Result<u64> {
        let (record, fingerprint, mut data) = self.read_workspace(backend).await?;
        if master.fingerprint() != fingerprint {
            let (workspace, given) = (self.workspace.to_string(), master.fingerprint());
            return Err(KeyError::Wrong { workspace, fingerprint, given }.into());
        }
        let next = data.last().map_or(1, |(generation, _)| generation + 1);
        data.push((next, random(&self.source)));
        self.write_workspace(backend, record.version, master, data).await?;
        let count = self.rewrap_sessions(backend, next).await?;
        let (record, _, mut data) = self.read_workspace(backend).await?;
        data.retain(|(generation, _)| *generation >= next);
        self.write_workspace(backend, record.version, master, data).await?;
        Ok(count)
    }

    /// The workspace's record as it is now: its master key's fingerprint and its data keys.
    async fn read_workspace(&self, backend: &dyn Backend) -> Result<(Record, String, Vec<(u64, Secret)>)> {
        let record = backend
            .record(&self.workspace, key_name(WORKSPACE_KEY))
            .await?
            .ok_or_else(|| Error::not_found("workspace", &self.workspace))?;
        let encryption = Self::parse(&self.workspace, &record)?.encryption;
        let encryption = encryption.ok_or_else(|| KeyError::NotEncrypted { workspace: self.workspace.to_string() })?;
        let master = self.master.read().unwrap_or_else(PoisonError::into_inner).clone();
        let data = Self::open_data(&self.workspace, &encryption, master.as_ref())?;
        Ok((record, encryption.fingerprint, data))
    }

    /// Takes over data keys that were made elsewhere.
    async fn refresh(&self, backend: &dyn Backend) -> Result<()> {
        let record = backend.record(&self.workspace, key_name(WORKSPACE_KEY)).await?;
        let record = record.ok_or_else(|| Error::not_found("workspace", &self.workspace))?;
        let encryption = Self::parse(&self.workspace, &record)?.encryption;
        let newest = encryption.and_then(|encryption| encryption.data.last().map(|(generation, _)| *generation));
        if newest != self.data_key(None).map(|(generation, _)| generation) {
            let (_, _, data) = self.read_workspace(backend).await?;
            self.set_data(data);
        }
        Ok(())
    }

    fn set_data(&self, data: Vec<(u64, Secret)>) {
        if let Some(lock) = &self.data {
            *lock.write().unwrap_or_else(PoisonError::into_inner) = data;
        }
    }

    async fn write_workspace(
        &self,
        backend: &dyn Backend,
        expected: u64,
        master: &MasterKey,
        data: Vec<(u64, Secret)>,
    ) -> Result<()> {
        let value = Self::record_of(&self.workspace, &self.source, master, &data, &self.commit)?;
        let record = new_record(key_name(WORKSPACE_KEY), &value, &self.source)?;
        backend.put_record(&self.workspace, record, Some(expected)).await?;
        self.set_data(data);
        Ok(())
    }

    async fn rewrap_sessions(&self, backend: &dyn Backend, generation: u64) -> Result<u64> {
        const PAGE: usize = 500;
        let mut after = None;
        let mut count = 0;
        loop {
            let order = RecordOrder::Key { after: after.clone() };
            let scan = RecordScan { kind: KEY_KIND.to_owned(), order, limit: PAGE };
            let page = backend.scan_records(&self.workspace, scan).await?;
            for record in &page {
                count += u64::from(self.rewrap_session(backend, record, generation).await?);
            }
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.key.key.clone()),
                _ => return Ok(count),
            }
        }
    }

    async fn rewrap_session(&self, backend: &dyn Backend, record: &Record, generation: u64) -> Result<bool> {
        let Some(name) = record.key.key.strip_prefix("session/") else { return Ok(false) };
        let session: SessionId = name.parse()?;
        let key = self.unwrap_session(backend, session, record).await?;
        let (_, data) = self.data_key(Some(generation)).ok_or_else(|| damaged("workspace"))?;
        let fresh = self.session_record(session, generation, &data, &key)?;
        match backend.put_record(&self.workspace, fresh, Some(record.version)).await {
            Ok(()) => Ok(true),
            // Shredded meanwhile: there is nothing left to wrap.
            Err(Error::Conflict(Conflict::Record { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn new_record(key: RecordKey, value: &impl Serialize, source: &Source) -> Result<Record> {
    let mut value = serde_json::to_vec(value).map_err(|error| Error::invalid("key record", error.to_string()))?;
    add_sum(&key.key, &mut value);
    Ok(Record { key, version: fresh_version(source), due: None, value })
}

/// How the checksum at the end of a key record looks: `,"sum":"0123456789abcdef"}`.
const SUM: (&[u8], usize, &[u8]) = (b",\"sum\":\"", 16, b"\"}");

/// Adds a checksum as the last field of a key record: a changed key looks like any other key.
fn add_sum(name: &str, value: &mut Vec<u8>) {
    value.pop();
    let sum = checksum_bytes(name.as_bytes(), value);
    value.extend_from_slice(SUM.0);
    value.extend_from_slice(format!("{sum:016x}").as_bytes());
    value.extend_from_slice(SUM.2);
}

/// Whether a key record's checksum fits; none when it has none, as those of the first stores.
pub(crate) fn sum_fits(name: &str, value: &[u8]) -> Option<bool> {
    let rest = value.strip_suffix(SUM.2)?;
    let (rest, sum) = rest.split_at_checked(rest.len().checked_sub(SUM.1)?)?;
    let rest = rest.strip_suffix(SUM.0)?;
    Some(format!("{:016x}", checksum_bytes(name.as_bytes(), rest)).as_bytes() == sum)
}

/// What a key record says.
fn parse_record<T: serde::de::DeserializeOwned>(record: &Record) -> Option<T> {
    if sum_fits(&record.key.key, &record.value) == Some(false) {
        return None;
    }
    serde_json::from_slice(&record.value).ok()
}
