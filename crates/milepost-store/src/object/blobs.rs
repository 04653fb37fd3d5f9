//! Blobs: put if absent, touched when put again, removed only when idle and unneeded.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, TryStreamExt as _};
use milepost_model::{Timestamp, WorkspaceId};

use super::Shared;
use super::bucket::{AT_ONCE, Listed, Put};
use super::format;
use super::names::{self, LogName};
use crate::backend::{Blob, BlobId, BlobInfo};
use crate::error::{Error, Result};

/// So often a doomed blob is looked at again before a call gives up.
const MAX_LOOKS: usize = 200;

/// Who tells when blobs were put.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ToldBy {
    /// The step that they come with.
    Step,
    /// A touch.
    Touch,
}

impl Shared {
    /// Puts blobs that are not there, and keeps those that are from being removed.
    pub async fn put_blobs(&self, workspace: &WorkspaceId, blobs: &[Blob], told_by: ToldBy) -> Result<()> {
        let mut seen = BTreeSet::new();
        let unique: Vec<&Blob> = blobs.iter().filter(|blob| seen.insert(blob.id)).collect();
        let puts: Vec<_> = unique.iter().map(|blob| self.put_blob(workspace, blob)).collect();
        let existed: Vec<bool> = futures_util::stream::iter(puts).buffered(AT_ONCE).try_collect().await?;
        let existing: Vec<&Blob> =
            unique.iter().zip(existed).filter(|(_, existed)| *existed).map(|(b, _)| *b).collect();
        let touched: Vec<BlobId> = match told_by {
            ToldBy::Step => existing.iter().map(|blob| blob.id).collect(),
            ToldBy::Touch => unique.iter().map(|blob| blob.id).collect(),
        };
        if touched.is_empty() {
            return Ok(());
        }
        let mut put = [0; 8];
        self.puts.fill(&mut put);
        let name = format!("{:013}-{}", self.source.now().0.max(0), names::hex(&put));
        let key = format!("{}/{name}", names::touches(workspace));
        self.bucket.put_over(&key, format::encode("a touch", &touched)?).await?;
        for blob in existing {
            self.outlive_doom(workspace, blob).await?;
        }
        Ok(())
    }

    /// Whether it was there already.
    async fn put_blob(&self, workspace: &WorkspaceId, blob: &Blob) -> Result<bool> {
        let key = names::blob(workspace, &blob.id);
        match self.bucket.put_new(&key, blob.bytes.clone()).await? {
            Put::Done => Ok(false),
            Put::Exists => Ok(true),
            // What is there has the same content, whoever put it; what is not there is put over nothing.
            Put::Unknown(_) => self.bucket.put_over(&key, blob.bytes.clone()).await.map(|()| false),
        }
    }

    /// Waits until a blob that someone is about to remove is gone or spared, and puts it again.
    async fn outlive_doom(&self, workspace: &WorkspaceId, blob: &Blob) -> Result<()> {
        let doomed = names::doomed(workspace, &blob.id);
        for _ in 0..MAX_LOOKS {
            let Some(bytes) = self.bucket.get(&doomed).await? else { return Ok(()) };
            let since: Timestamp = format::decode(&doomed, &bytes)?;
            if self.source.now().since_ms(since) > self.options.delete_after_ms {
                self.bucket.delete(&doomed).await?;
            }
            self.put_blob(workspace, blob).await?;
        }
        Err(Error::Busy { what: format!("putting {}", names::blob(workspace, &blob.id)), waited_ms: 0 })
    }

    pub async fn get_blobs(&self, workspace: &WorkspaceId, ids: &[BlobId]) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<String> = ids.iter().map(|id| names::blob(workspace, id)).collect();
        self.bucket.get_all(&keys).await
    }

    pub async fn list_blobs(
        &self,
        workspace: &WorkspaceId,
        after: Option<BlobId>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>> {
        let after = after.map(|id| names::hex(&id.0));
        let mut listed = self.bucket.list(&names::blobs(workspace), after.as_deref()).await?;
        listed.truncate(limit);
        if listed.is_empty() {
            return Ok(Vec::new());
        }
        self.load_all(workspace).await?;
        let touched = self.touched(workspace).await?;
        let info = |blob: &Listed| {
            let id = names::blob_id(&blob.name)?;
            Some(BlobInfo { id, bytes: blob.bytes, touched: time(&touched, id, blob) })
        };
        Ok(listed.iter().filter_map(info).collect())
    }

    /// When blobs were last put, by touches and by the steps they came with. All sessions must be in memory.
    async fn touched(&self, workspace: &WorkspaceId) -> Result<BTreeMap<BlobId, Timestamp>> {
        let mut touched: BTreeMap<BlobId, Timestamp> = BTreeMap::new();
        let mut note = |id: BlobId, time: Timestamp| {
            let last = touched.entry(id).or_insert(time);
            *last = (*last).max(time);
        };
        let folder = names::touches(workspace);
        let listed = self.bucket.list(&folder, None).await?;
        let keys: Vec<String> = listed.iter().map(|touch| format!("{folder}/{}", touch.name)).collect();
        let found = self.bucket.get_all(&keys).await?;
        for ((key, touch), bytes) in keys.iter().zip(&listed).zip(found) {
            let time = touch_time(touch);
            let ids: Vec<BlobId> = bytes.map(|bytes| format::decode(key, &bytes)).transpose()?.unwrap_or_default();
            ids.into_iter().for_each(|id| note(id, time));
        }
        let logs: Vec<_> =
            self.logs().get(workspace).into_iter().flatten().map(|(name, log)| (name.clone(), log.clone())).collect();
        for (name, log) in logs {
            if matches!(name, LogName::Session(_)) {
                log.lock().await.side.touched.iter().for_each(|(id, time)| note(*id, *time));
            }
        }
        Ok(touched)
    }

    /// Which of these may go now.
    async fn idle(&self, workspace: &WorkspaceId, ids: &BTreeSet<BlobId>, before: Timestamp) -> Result<Vec<BlobId>> {
        self.load_all(workspace).await?;
        let needed = self.cache.with(workspace, |w| Ok(w.needed_blobs()))?;
        let touched = self.touched(workspace).await?;
        let listed = self.bucket.list(&names::blobs(workspace), None).await?;
        let blobs = listed.iter().filter_map(|blob| Some((names::blob_id(&blob.name)?, blob)));
        let is_idle = |(id, blob): &(BlobId, &Listed)| {
            ids.contains(id) && !needed.contains(id) && time(&touched, *id, blob) < before
        };
        Ok(blobs.filter(is_idle).map(|(id, _)| id).collect())
    }

    /// Touches from before a time that blobs are collected up to say nothing any more: a blob without one is older still.
    async fn drop_touches(&self, workspace: &WorkspaceId, before: Timestamp) -> Result<()> {
        let folder = names::touches(workspace);
        let is_old = |touch: &&Listed| touch_time(touch) < before && self.is_long_ago(touch_time(touch));
        let listed = self.bucket.list(&folder, None).await?;
        let keys: Vec<String> = listed.iter().filter(is_old).map(|touch| format!("{folder}/{}", touch.name)).collect();
        self.bucket.delete_all(&keys).await
    }

    pub async fn drop_blobs(&self, workspace: &WorkspaceId, ids: Vec<BlobId>, before: Timestamp) -> Result<u64> {
        let begun = self.source.now();
        let mut doomed = BTreeSet::new();
        for id in self.idle(workspace, &ids.into_iter().collect(), before).await? {
            let bytes = format::encode("a mark of doom", &begun)?;
            if matches!(self.bucket.put_new(&names::doomed(workspace, &id), bytes).await?, Put::Done) {
                doomed.insert(id);
            }
        }
        // Whoever puts one of them from here on sees the mark. Whoever put one before is seen now.
        let idle = self.idle(workspace, &doomed, before).await?;
        let is_late = self.source.now().since_ms(begun) > self.options.idle_ms;
        let mut dropped = 0;
        for id in idle.iter().filter(|_| !is_late) {
            self.bucket.delete(&names::blob(workspace, id)).await?;
            dropped += 1;
        }
        let marks: Vec<String> = doomed.iter().map(|id| names::doomed(workspace, id)).collect();
        self.bucket.delete_all(&marks).await?;
        self.drop_touches(workspace, before).await?;
        Ok(dropped)
    }
}

fn touch_time(touch: &Listed) -> Timestamp {
    touch.name.split('-').next().and_then(|ms| ms.parse().ok()).map_or(Timestamp(0), Timestamp)
}

fn time(touched: &BTreeMap<BlobId, Timestamp>, id: BlobId, blob: &Listed) -> Timestamp {
    touched.get(&id).copied().unwrap_or(Timestamp(blob.modified_ms))
}
