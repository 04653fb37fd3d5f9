//! Keys in the bucket.

use std::fmt::Write as _;

use milepost_model::{SessionId, WorkspaceId};

use crate::backend::BlobId;

/// The name of a log.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum LogName {
    Session(SessionId),
    /// The records of one kind.
    Records(String),
}

const PLAIN_KIND: &str = "k-";
const HEX_KIND: &str = "x-";

impl LogName {
    fn area(&self) -> &'static str {
        match self {
            LogName::Session(_) => "s",
            LogName::Records(_) => "r",
        }
    }

    fn folder(&self) -> String {
        match self {
            LogName::Session(id) => id.to_string(),
            LogName::Records(kind) => {
                let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
                match !kind.is_empty() && kind.bytes().all(is_plain) {
                    true => format!("{PLAIN_KIND}{kind}"),
                    false => format!("{HEX_KIND}{}", hex(kind.as_bytes())),
                }
            }
        }
    }

    /// The kind whose records are in this folder.
    pub fn kind_of_folder(folder: &str) -> Option<LogName> {
        if let Some(kind) = folder.strip_prefix(PLAIN_KIND) {
            return Some(LogName::Records(kind.to_owned()));
        }
        let bytes = unhex(folder.strip_prefix(HEX_KIND)?)?;
        String::from_utf8(bytes).ok().map(LogName::Records)
    }

    pub fn steps(&self, workspace: &WorkspaceId) -> String {
        format!("{workspace}/{}/log/{}", self.area(), self.folder())
    }

    pub fn bases(&self, workspace: &WorkspaceId) -> String {
        format!("{workspace}/{}/base/{}", self.area(), self.folder())
    }

    pub fn step(&self, workspace: &WorkspaceId, number: u64) -> String {
        format!("{}/{}", self.steps(workspace), number_name(number))
    }
}

pub(super) fn sessions_steps(workspace: &WorkspaceId) -> String {
    format!("{workspace}/s/log")
}

pub(super) fn records_steps(workspace: &WorkspaceId) -> String {
    format!("{workspace}/r/log")
}

pub(super) fn index(workspace: &WorkspaceId) -> String {
    format!("{workspace}/s/index")
}

pub(super) fn blobs(workspace: &WorkspaceId) -> String {
    format!("{workspace}/blob")
}

pub(super) fn touches(workspace: &WorkspaceId) -> String {
    format!("{workspace}/touch")
}

pub(super) fn blob(workspace: &WorkspaceId, id: &BlobId) -> String {
    format!("{workspace}/blob/{}", hex(&id.0))
}

pub(super) fn doomed(workspace: &WorkspaceId, id: &BlobId) -> String {
    format!("{workspace}/doomed/{}", hex(&id.0))
}

pub(super) fn blob_id(name: &str) -> Option<BlobId> {
    unhex(name)?.try_into().ok().map(BlobId)
}

/// A number in a key: keys sort as numbers do.
pub(super) fn number_name(number: u64) -> String {
    format!("{number:012}")
}

pub(super) fn number_of(name: &str) -> Option<u64> {
    (name.len() == 12).then(|| name.parse().ok()).flatten()
}

/// A base's key: its number, and when it was sealed.
pub(super) fn base_name(number: u64, sealed_ms: i64) -> String {
    format!("{number:012}.{:013}", sealed_ms.max(0))
}

/// A segment's key: its first and last number, and when it was sealed.
pub(super) fn segment_name(first: u64, last: u64, sealed_ms: i64) -> String {
    format!("{first:012}-{last:012}.{:013}", sealed_ms.max(0))
}

/// What the key of a base or a segment says: the first number of a segment, the last of either, and when it was sealed.
pub(super) fn sealed_of(name: &str) -> Option<(Option<u64>, u64, i64)> {
    let (numbers, sealed) = name.split_once('.')?;
    let sealed_ms = sealed.parse().ok()?;
    match numbers.split_once('-') {
        Some((first, last)) => Some((Some(number_of(first)?), number_of(last)?, sealed_ms)),
        None => Some((None, number_of(numbers)?, sealed_ms)),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let nibble = |b: u8| (b as char).to_digit(16).map(|n| n as u8);
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    bytes.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
}
