//! What goes on in the background: merging steps into bases, writing the index, deleting what is due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use milepost_model::{SessionId, WorkspaceId};

use super::Shared;
use super::bucket::{self, Put};
use super::fold;
use super::format::{self, Step};
use super::log::{Sealed, sealed};
use super::names::{self, LogName};
use crate::error::{Error, Result};

/// So many merges are followed by a look at what can be deleted.
const MERGES_PER_TIDY: u64 = 64;

impl Shared {
    /// Merges a log in the background, when it has many steps above its base.
    pub fn merge_later(self: &Arc<Self>, workspace: &WorkspaceId, name: &LogName, steps_above_base: u64) {
        if steps_above_base <= self.options.max_steps || !self.begin_merge(workspace, name) {
            return;
        }
        let (shared, workspace, name) = (Arc::clone(self), workspace.clone(), name.clone());
        self.background(async move {
            // A merge that fails is made by the next writer; nothing depends on it.
            let _ = shared.merge(&workspace, &name).await;
            shared.end_merge(&workspace, &name);
            if shared.merges.fetch_add(1, Ordering::Relaxed) % MERGES_PER_TIDY == MERGES_PER_TIDY - 1 {
                let _ = shared.tidy(&workspace).await;
            }
        });
    }

    pub fn index_later(self: &Arc<Self>, workspace: &WorkspaceId) {
        let (shared, workspace) = (Arc::clone(self), workspace.clone());
        self.background(async move {
            let _ = shared.write_index(&workspace).await;
        });
    }

    fn background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        tasks.retain(|task| !task.is_finished());
        if let Ok(task) = bucket::spawn(work) {
            tasks.push(task);
        }
    }

    /// Waits for what goes on in the background.
    pub async fn settle(&self) {
        loop {
            let tasks = std::mem::take(&mut *self.tasks());
            if tasks.is_empty() {
                return;
            }
            for task in tasks {
                let _ = task.await;
            }
        }
    }

    /// Writes a base of everything up to the last step that is known.
    pub async fn merge(&self, workspace: &WorkspaceId, name: &LogName) -> Result<()> {
        let log = self.log(workspace, name);
        let (base, number) = {
            let state = log.lock().await;
            let Some(number) = state.next.checked_sub(1).filter(|last| state.base < Some(*last)) else { return Ok(()) };
            (self.cache.with(workspace, |w| Ok(fold::snapshot(w, name, &state.side)))?, number)
        };
        let key = format!("{}/{}", name.bases(workspace), names::base_name(number, self.source.now().0));
        match self.bucket.put_new(&key, format::encode("a base", &base)?).await? {
            Put::Done | Put::Exists => {
                let mut state = log.lock().await;
                state.base = state.base.max(Some(number));
                if state.next == number + 1 {
                    state.has_rewrite = false;
                }
                Ok(())
            }
            Put::Unknown(why) => Err(Error::Io { what: format!("writing {key}"), why }),
        }
    }

    /// Merges, indexes and deletes whatever is due in a workspace.
    pub async fn tidy(&self, workspace: &WorkspaceId) -> Result<()> {
        let view = self.view(workspace);
        let ids: Vec<SessionId> = {
            let mut view = view.lock().await;
            self.look(workspace, &mut view).await?;
            let untidy = view.rows.iter().filter(|(_, row)| row.untidy).map(|(id, _)| LogName::Session(*id));
            for name in untidy {
                self.refresh(workspace, &name).await?;
            }
            view.steps.keys().copied().collect()
        };
        let mut logs: Vec<LogName> = ids.into_iter().map(LogName::Session).collect();
        for folder in self.bucket.folders(&names::records_steps(workspace)).await? {
            logs.extend(LogName::kind_of_folder(&folder));
        }
        for name in &logs {
            let log = self.log(workspace, name);
            let (has_rewrite, many) = {
                let state = log.lock().await;
                (state.has_rewrite, state.steps_above_base() > self.options.max_steps)
            };
            if has_rewrite || many {
                self.refresh(workspace, name).await?;
                self.merge(workspace, name).await?;
            }
        }
        self.write_index(workspace).await?;
        let mut bases: BTreeMap<String, Vec<bucket::Listed>> = BTreeMap::new();
        for area in ["s", "r"] {
            for base in self.bucket.list(&format!("{workspace}/{area}/base"), None).await? {
                bases.entry(base.folder.clone()).or_default().push(base);
            }
        }
        for name in &logs {
            let folder = name.steps(workspace);
            let own = folder.rsplit('/').next().and_then(|folder| bases.get(folder));
            if let Some(own) = own {
                self.delete_due(workspace, name, &sealed(own).collect::<Vec<_>>()).await?;
            }
        }
        self.delete_old_indexes(workspace).await
    }

    /// Deletes the steps and bases that a base sealed long ago stands in for.
    async fn delete_due(&self, workspace: &WorkspaceId, name: &LogName, bases: &[Sealed]) -> Result<()> {
        let now_ms = self.source.now().0;
        let is_due = |sealed: &&Sealed| sealed.sealed_ms.saturating_add(self.options.delete_after_ms) < now_ms;
        let Some(due) = bases.iter().filter(is_due).max_by_key(|sealed| sealed.number) else { return Ok(()) };
        if let LogName::Session(id) = name {
            let view = self.view(workspace);
            let view = view.lock().await;
            let settled = view.rows.get(id).map_or(0, |row| match self.is_long_ago(row.noted.1) {
                true => row.noted.0,
                false => row.settled,
            });
            if settled <= due.number {
                return Ok(());
            }
        }
        let folder = name.steps(workspace);
        let steps = self.bucket.list(&folder, None).await?;
        let stub = format::encode("a stub", &Step::stub())?;
        let mut keys = Vec::new();
        for step in &steps {
            match names::number_of(&step.name) {
                Some(0) if step.bytes != stub.len() as u64 => {
                    self.bucket.put_over(&name.step(workspace, 0), stub.clone()).await?;
                }
                Some(number) if number > 0 && number <= due.number => keys.push(name.step(workspace, number)),
                _ => {}
            }
        }
        let older = bases.iter().filter(|sealed| sealed.number < due.number);
        keys.extend(older.map(|sealed| format!("{}/{}", name.bases(workspace), sealed.name)));
        self.bucket.delete_all(&keys).await?;
        // Of a session that was removed nothing stays, not even its number.
        let is_gone = match name {
            LogName::Session(id) => {
                let is_there = self.cache.with(workspace, |w| Ok(w.sessions.contains_key(id)))?;
                let end = steps.iter().filter_map(|step| names::number_of(&step.name)).max();
                !is_there && end <= Some(due.number)
            }
            LogName::Records(_) => false,
        };
        if is_gone {
            self.bucket.delete(&format!("{}/{}", name.bases(workspace), due.name)).await?;
            self.bucket.delete(&name.step(workspace, 0)).await?;
        }
        Ok(())
    }

    /// Of the indexes only the newest is read; the one before it stays a while for whoever has just listed it.
    async fn delete_old_indexes(&self, workspace: &WorkspaceId) -> Result<()> {
        let folder = names::index(workspace);
        let mut found = self.bucket.list(&folder, None).await?;
        let view = self.view(workspace);
        let keep = if self.is_long_ago(view.lock().await.sealed) { 1 } else { 2 };
        found.truncate(found.len().saturating_sub(keep));
        let keys: Vec<String> = found.iter().map(|index| format!("{folder}/{}", index.name)).collect();
        self.bucket.delete_all(&keys).await
    }
}
