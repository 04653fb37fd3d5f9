//! What uses the space, and what pruning would free, before it is done.

use milepost_model::{EntryKind, Position, Retention, Seq, SessionId};

use super::Store;
use crate::backend::{KindUsage, Range, SessionUsage};
use crate::error::Result;

/// What a workspace uses.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// By session, the largest first.
    pub sessions: Vec<SessionUsage>,
    /// Blobs.
    pub blobs: KindUsage,
    /// Records.
    pub records: KindUsage,
    /// The text index of the whole store.
    pub text_index_bytes: u64,
    /// The whole store on disk.
    pub total_bytes: u64,
    /// Of it, free for use again.
    pub free_bytes: u64,
}

impl Stats {
    /// Entries and bytes of one kind, over all sessions.
    pub fn kind(&self, kind: EntryKind) -> KindUsage {
        let mut sum = KindUsage::default();
        for usage in &self.sessions {
            let own = usage.kinds[kind as usize - 1];
            sum.entries += own.entries;
            sum.bytes += own.bytes;
        }
        sum
    }

    /// Stored bytes of one session.
    pub fn session_bytes(usage: &SessionUsage) -> u64 {
        usage.kinds.iter().map(|kind| kind.bytes).sum::<u64>() + usage.keyframes.bytes
    }
}

/// How well a session's entries are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compression {
    /// Bytes before.
    pub plain: u64,
    /// Bytes stored.
    pub stored: u64,
}

impl Store {
    /// What uses the space in this workspace.
    pub async fn stats(&self) -> Result<Stats> {
        let usage = self.inner.backend.usage(self.workspace()).await?;
        let mut sessions = usage.sessions;
        sessions.sort_by_key(|own| std::cmp::Reverse(Stats::session_bytes(own)));
        Ok(Stats {
            sessions,
            blobs: usage.blobs,
            records: usage.records,
            text_index_bytes: usage.text_index_bytes,
            total_bytes: usage.total_bytes,
            free_bytes: usage.free_bytes,
        })
    }

    /// How well a session's own entries are compressed. Reads them all.
    pub async fn compression(&self, session: SessionId) -> Result<Compression> {
        let codec = self.codec(session).await?;
        let mut sum = Compression::default();
        for line in self.inner.backend.timelines(self.workspace(), session).await? {
            let mut pages = self.pages(Range::all(line.id, Seq(line.begins()), Seq(line.length)));
            while let Some(page) = pages.next().await? {
                for (seq, entry) in &page.entries {
                    let blob = page.payload(entry);
                    let text = entry.text.as_ref().map_or(0, String::len);
                    sum.stored += (entry.body.len() + text + blob.map_or(0, <[u8]>::len)) as u64;
                    sum.plain += codec.plain_len(Position { timeline: line.id, seq: *seq }, entry, blob)?;
                }
            }
        }
        Ok(sum)
    }

    /// What pruning a session and emptying its trash would free.
    pub async fn prunable_bytes(&self, session: SessionId, keep: &Retention) -> Result<u64> {
        Ok(self.prune_preview(session, keep).await?.bytes)
    }
}
