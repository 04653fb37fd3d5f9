//! Records: small versioned values beside the log. Their values are encoded like everything else.

use milepost_model::{SessionId, Timestamp};

use super::Store;
use crate::backend::{Record, RecordKey, RecordOrder, RecordScan};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::keys::fresh_version;
use crate::limits::{check_name, check_size};

/// A record read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its key.
    pub key: String,
    /// Changes with every write and never comes back.
    pub version: u64,
    /// When something is to be done about it.
    pub due: Option<Timestamp>,
    /// The value.
    pub value: Vec<u8>,
}

impl Store {
    /// Records of the workspace are sealed by the workspace, not by a session.
    pub(super) fn record_codec(&self) -> Codec {
        self.codec_with(SessionId::from_bytes([0; 16]), self.inner.keys.workspace_cipher())
    }

    fn record_key(&self, kind: &str, key: &str) -> Result<RecordKey> {
        let max = self.inner.limits.max_key_bytes;
        check_name("a record's kind", kind, "max_key_bytes", max)?;
        check_name("a record's key", key, "max_key_bytes", max)?;
        if kind.is_empty() || key.is_empty() {
            return Err(Error::invalid("a record's name", "it is empty"));
        }
        if kind == crate::keys::KEY_KIND {
            return Err(Error::invalid("a record's kind", "\"key\" is for the store's own keys: use another"));
        }
        Ok(RecordKey { kind: kind.to_owned(), key: key.to_owned() })
    }

    fn open_record(&self, codec: &Codec, record: Record) -> Result<StoredRecord> {
        let name = record_name(&record.key, record.version, record.due);
        let value = codec.decode_bytes("record", &name, &record.value)?;
        Ok(StoredRecord { key: record.key.key, version: record.version, due: record.due, value })
    }

    /// One record.
    pub async fn record(&self, kind: &str, key: &str) -> Result<Option<StoredRecord>> {
        let found = self.inner.backend.record(self.workspace(), self.record_key(kind, key)?).await?;
        found.map(|record| self.open_record(&self.record_codec(), record)).transpose()
    }

    /// Writes a record if its version is still `expected` (none: if there is none). Returns the new version.
    pub async fn put_record(
        &self,
        kind: &str,
        key: &str,
        expected: Option<u64>,
        due: Option<Timestamp>,
        value: &[u8],
    ) -> Result<u64> {
        let name = self.record_key(kind, key)?;
        check_size("a record's value", value.len(), "max_record_bytes", self.inner.limits.max_record_bytes)?;
        let version = fresh_version(&self.inner.source).max(expected.unwrap_or(0) + 1);
        let value = self.record_codec().encode_bytes("record", &record_name(&name, version, due), value)?;
        let record = Record { key: name.clone(), version, due, value };
        match self.inner.backend.put_record(self.workspace(), record, expected).await {
            // A write whose end is unknown is settled by reading back.
            Err(error @ Error::Io { .. }) => match self.inner.backend.record(self.workspace(), name).await {
                Ok(Some(found)) if found.version == version => Ok(version),
                _ => Err(error),
            },
            outcome => outcome.map(|()| version),
        }
    }

    /// Removes a record if its version is still `expected`.
    pub async fn delete_record(&self, kind: &str, key: &str, expected: u64) -> Result<()> {
        self.inner.backend.delete_record(self.workspace(), self.record_key(kind, key)?, expected).await
    }

    /// Records of a kind by key, those after `after`.
    pub async fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<StoredRecord>> {
        self.scan(kind, RecordOrder::Key { after: after.map(str::to_owned) }, limit).await
    }

    /// The same, each with why it cannot be read where it is damaged.
    pub async fn records_past_damage(
        &self,
        kind: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Result<StoredRecord>)>> {
        let order = RecordOrder::Key { after: after.map(str::to_owned) };
        let scan = RecordScan { kind: kind.to_owned(), order, limit: limit.min(self.inner.limits.max_page) };
        let (codec, mut records) = (self.record_codec(), Vec::new());
        for record in self.inner.backend.scan_records(self.workspace(), scan).await? {
            let key = record.key.key.clone();
            records.push(match self.open_record(&codec, record) {
                Err(error) if !error.is_damage() => return Err(error),
                read => (key, read),
            });
        }
        Ok(records)
    }

    /// Records of a kind that are due, oldest first.
    pub async fn records_due(&self, kind: &str, until: Timestamp, limit: usize) -> Result<Vec<StoredRecord>> {
        self.scan(kind, RecordOrder::Due { until, after: None }, limit).await
    }

    /// How many records there are, and those that cannot be read, each with why. Keys are looked at when they are used.
    pub(super) async fn check_records(&self) -> Result<(u64, Vec<(RecordKey, Error)>)> {
        let codec = self.record_codec();
        let (mut count, mut damaged) = (0, Vec::new());
        for kind in self.inner.backend.record_kinds(self.workspace()).await? {
            if kind == crate::keys::KEY_KIND {
                continue;
            }
            let mut after = None;
            loop {
                let order = RecordOrder::Key { after: after.take() };
                let scan = RecordScan { kind: kind.clone(), order, limit: self.inner.limits.max_page };
                let found = self.inner.backend.scan_records(self.workspace(), scan).await?;
                after = found.last().map(|record| record.key.key.clone());
                count += found.len() as u64;
                for record in found {
                    let key = record.key.clone();
                    match self.open_record(&codec, record) {
                        Err(error) if error.is_damage() => damaged.push((key, error)),
                        other => drop(other?),
                    }
                }
                if after.is_none() {
                    break;
                }
            }
        }
        Ok((count, damaged))
    }

    async fn scan(&self, kind: &str, order: RecordOrder, limit: usize) -> Result<Vec<StoredRecord>> {
        let scan = RecordScan { kind: kind.to_owned(), order, limit: limit.min(self.inner.limits.max_page) };
        let codec = self.record_codec();
        let found = self.inner.backend.scan_records(self.workspace(), scan).await?;
        found.into_iter().map(|record| self.open_record(&codec, record)).collect()
    }
}

/// What a record's value is bound to: nothing of it can be changed or exchanged unnoticed.
fn record_name(key: &RecordKey, version: u64, due: Option<Timestamp>) -> Vec<u8> {
    let due = due.map_or(i64::MIN, |due| due.0);
    [key.kind.as_bytes(), &[0], key.key.as_bytes(), &[0], &version.to_be_bytes(), &due.to_be_bytes()].concat()
}
