//! Stored entries, a page at a time.

use std::collections::HashMap;

use milepost_model::Seq;

use super::Store;
use crate::backend::{BlobId, Order, Range, StoredEntry};
use crate::codec;
use crate::error::Result;

/// So many entries are read at a time: few enough to stay near the processor.
pub(super) const PAGE: usize = 256;
/// So many payloads in blobs are held at a time: each can be as large as an entry may be.
const PAGE_BLOBS: usize = 16;

/// A range that is read a page at a time.
pub(super) struct Pages<'a> {
    store: &'a Store,
    range: Range,
    /// How many of the range's limit are left.
    left: usize,
    /// Entries that were read, whose payloads were not.
    read: std::vec::IntoIter<(Seq, StoredEntry)>,
}

/// Some entries with the blobs that hold payloads of theirs.
pub(super) struct Page {
    pub entries: Vec<(Seq, StoredEntry)>,
    blobs: HashMap<BlobId, Vec<u8>>,
}

impl Page {
    /// The blob of an entry's payload, when it is in one.
    pub fn payload(&self, entry: &StoredEntry) -> Option<&[u8]> {
        self.blobs.get(entry.refs.first()?).map(Vec::as_slice)
    }
}

impl Pages<'_> {
    /// The next page; none at the end.
    pub async fn next(&mut self) -> Result<Option<Page>> {
        if self.read.as_slice().is_empty() && !self.read_more().await? {
            return Ok(None);
        }
        let mut blobs = 0;
        let fits = |(_, entry): &&(Seq, StoredEntry)| {
            blobs += usize::from(!entry.refs.is_empty());
            blobs <= PAGE_BLOBS
        };
        let count = self.read.as_slice().iter().take_while(fits).count();
        // Whatever was read fits, as a rule: then it is handed on as it is.
        let all = count == self.read.len();
        let entries =
            if all { std::mem::take(&mut self.read).collect() } else { self.read.by_ref().take(count).collect() };
        self.store.page(entries).await.map(Some)
    }

    /// Whether there was more to read.
    async fn read_more(&mut self) -> Result<bool> {
        if self.left == 0 || self.range.from >= self.range.to {
            return Ok(false);
        }
        let limit = self.left.min(PAGE);
        let range = Range { limit, ..self.range.clone() };
        let entries = self.store.inner.backend.read(self.store.workspace(), range).await?;
        self.left = if entries.len() < limit { 0 } else { self.left - limit };
        match (self.range.order, entries.last()) {
            (_, None) => return Ok(false),
            (Order::Forward, Some((last, _))) => self.range.from = last.next(),
            (Order::Backward, Some((last, _))) => self.range.to = *last,
        }
        self.read = entries.into_iter();
        Ok(true)
    }
}

impl Store {
    /// Reads a range a page at a time.
    pub(super) fn pages(&self, range: Range) -> Pages<'_> {
        let left = range.limit;
        Pages { store: self, range, left, read: Vec::new().into_iter() }
    }

    /// Entries together with the blobs of their payloads.
    pub(super) async fn page(&self, entries: Vec<(Seq, StoredEntry)>) -> Result<Page> {
        let ids: Vec<BlobId> = entries
            .iter()
            .filter(|(_, entry)| !entry.refs.is_empty() && codec::is_blob(entry))
            .filter_map(|(_, entry)| entry.refs.first().copied())
            .collect();
        let mut blobs = HashMap::new();
        if !ids.is_empty() {
            let bytes = self.inner.backend.get_blobs(self.workspace(), ids.clone()).await?;
            blobs.extend(ids.into_iter().zip(bytes).filter_map(|(id, bytes)| Some((id, bytes?))));
        }
        Ok(Page { entries, blobs })
    }
}
