//! Every limit of the store: its name, its number, its error.

use crate::error::{Error, Result};

/// Limits that a store is opened with. Each has an error that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest entry, in bytes of its plain form (64 MiB).
    pub max_entry_bytes: u64,
    /// The largest single blob (64 MiB).
    pub max_blob_bytes: u64,
    /// Payloads up to this size lie in the log, larger ones become blobs (16 KiB).
    pub inline_bytes: u64,
    /// Entries in one append (10,000).
    pub max_batch_entries: u64,
    /// Bytes in one append (256 MiB).
    pub max_batch_bytes: u64,
    /// The largest value of a record (1 MiB).
    pub max_record_bytes: u64,
    /// The longest key of a record (512 bytes).
    pub max_key_bytes: u64,
    /// The longest title, label, project name and the like (1 KiB).
    pub max_name_bytes: u64,
    /// Appends waiting for the writer (1,024); a further one waits for a place.
    pub max_queue: usize,
    /// Rows of one page of a list (10,000).
    pub max_page: usize,
    /// How far the clock may lie before the last entry (24 h).
    pub max_clock_step_back_ms: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_entry_bytes: 64 << 20,
            max_blob_bytes: 64 << 20,
            inline_bytes: 16 << 10,
            max_batch_entries: 10_000,
            max_batch_bytes: 256 << 20,
            max_record_bytes: 1 << 20,
            max_key_bytes: 512,
            max_name_bytes: 1 << 10,
            max_queue: 1024,
            max_page: 10_000,
            max_clock_step_back_ms: 24 * 3600 * 1000,
        }
    }
}

/// Checks one size against one limit.
pub(crate) fn check_size(what: &str, size: usize, limit: &'static str, max: u64) -> Result<()> {
    if size as u64 > max {
        return Err(Error::TooLarge { what: what.to_owned(), size: size as u64, max, limit });
    }
    Ok(())
}

/// Checks a short text that a person gave: a title, a label, a record's key.
pub(crate) fn check_name(what: &str, name: &str, limit: &'static str, max: u64) -> Result<()> {
    check_size(what, name.len(), limit, max)?;
    if let Some(at) = name.find('\0') {
        return Err(Error::invalid(what, format!("it has a NUL character at byte {at}: remove it")));
    }
    Ok(())
}
