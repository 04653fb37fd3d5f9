//! What goes on in the background: merging steps into segments and bases, writing the index, deleting what is due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use milepost_model::{SessionId, Timestamp, WorkspaceId};

use super::bucket::{self, Put};
use super::fold::{self, LogState};
use super::format::{self, Segment, Step};
use super::names::{self, LogName};
use super::sealed::{Chain, Sealed, sealed};
use super::{Shared, lock};
use crate::error::{Error, Result};

/// So many merges are followed by a look at what can be deleted.
const MERGES_PER_TIDY: u64 = 64;
/// So many groups of objects wait for their deletion in memory; what is forgotten is found by the next look.
const MAX_SUPERSEDED: usize = 65_536;
/// Records are folded when so many times as many steps as there are records lie above the base,
const STEPS_PER_RECORD: u64 = 2;
/// and at least so many.
const FEW_RECORD_STEPS: u64 = 64;
/// Of more loose steps than these someone else has probably sealed some.
const MANY_LOOSE_STEPS: u64 = 64;

/// What steps are merged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    /// A segment, unless something was erased.
    Segment,
    /// A base: nothing that was replaced stays.
    Base,
}

impl Shared {
    /// Merges a log in the background.
    pub fn merge_later(self: &Arc<Self>, workspace: &WorkspaceId, name: &LogName) {
        if !self.begin_merge(workspace, name) {
            return;
        }
        let (shared, workspace, name) = (Arc::clone(self), workspace.clone(), name.clone());
        self.background(async move {
            // A merge that fails is made by the next writer; nothing depends on it.
            let _ = shared.merge(&workspace, &name, Into::Segment).await;
            shared.end_merge(&workspace, &name);
            let _ = shared.delete_superseded().await;
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

    /// Seals everything up to the last step that is known.
    pub async fn merge(&self, workspace: &WorkspaceId, name: &LogName, into: Into) -> Result<()> {
        let log = self.log(workspace, name);
        if log.lock().await.loose_steps() > MANY_LOOSE_STEPS {
            self.relist(workspace, name).await?;
        }
        let (next, chain, base) = {
            let mut state = log.lock().await;
            // A base holds what is in memory.
            self.end_turn(workspace, name, &mut state).await?;
            if state.chain.base().is_some_and(|base| base.last + 1 >= state.next) {
                state.has_rewrite = false;
                state.has_erasure = false;
                return Ok(());
            }
            let is_sealed = state.chain.end() >= state.next && into == Into::Segment && !state.has_erasure;
            if state.next == 0 || is_sealed {
                return Ok(());
            }
            let base = match into == Into::Base || self.wants_base(workspace, name, &state)? {
                true => Some(self.cache.with(workspace, |w| Ok(fold::snapshot(w, name, &state.side)))?),
                false => None,
            };
            (state.next, state.chain.clone(), base)
        };
        let now = self.source.now();
        let (first, object_name, bytes) = match &base {
            Some(base) => (None, names::base_name(next - 1, now.0), format::encode("a base", base)?),
            None => {
                let Some(segment) = self.segment(workspace, name, &chain, next).await? else {
                    // What is known to be sealed was sealed anew by someone else.
                    return self.relist(workspace, name).await;
                };
                let object_name = names::segment_name(segment.first, next - 1, now.0);
                (Some(segment.first), object_name, format::encode("a segment", &segment)?)
            }
        };
        let key = format!("{}/{object_name}", name.bases(workspace));
        let made = Sealed { first, last: next - 1, sealed_ms: now.0, name: object_name, bytes: bytes.len() as u64 };
        match self.bucket.put_new(&key, bytes).await? {
            Put::Done | Put::Exists => {}
            Put::Unknown(why) => return Err(Error::Io { what: format!("writing {key}"), why }),
        }
        let mut state = log.lock().await;
        if state.chain.end() <= next {
            self.supersede(workspace, name, &state.chain, &made);
            state.chain.push(made);
        } else {
            // More was sealed meanwhile, perhaps without what was erased: that stands in for this.
            self.delete_later(now, vec![key]);
        }
        if base.is_some() && state.next == next {
            state.has_rewrite = false;
            state.has_erasure = false;
        }
        Ok(())
    }

    /// Looks at what is sealed of a log.
    async fn relist(&self, workspace: &WorkspaceId, name: &LogName) -> Result<()> {
        let listed = self.bucket.list(&name.bases(workspace), None).await?;
        self.log(workspace, name).lock().await.chain = Chain::of(&sealed(&listed));
        Ok(())
    }

    fn wants_base(&self, workspace: &WorkspaceId, name: &LogName, state: &LogState) -> Result<bool> {
        let LogName::Records(kind) = name else { return Ok(state.has_erasure) };
        let live =
            self.cache.with(workspace, |w| Ok(w.records.keys().filter(|key| key.kind == *kind).count() as u64))?;
        let steps = state.chain.steps_in_segments() + state.loose_steps();
        Ok(steps > STEPS_PER_RECORD * live + FEW_RECORD_STEPS)
    }

    /// The segment that ends before a number: loose steps, and the small segments before them. None when something
    /// of it is gone.
    async fn segment(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        chain: &Chain,
        next: u64,
    ) -> Result<Option<Segment>> {
        let taken = chain.taken_in(next);
        let first = taken.first().and_then(|sealed| sealed.first).unwrap_or(chain.end());
        let folder = name.bases(workspace);
        let mut keys: Vec<String> = taken.iter().map(|sealed| format!("{folder}/{}", sealed.name)).collect();
        keys.extend((chain.end()..next).map(|number| name.step(workspace, number)));
        let Some(found) = self.bucket.get_all(&keys).await?.into_iter().collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let mut steps = Vec::new();
        for (at, (key, bytes)) in keys.iter().zip(found).enumerate() {
            match at < taken.len() {
                true => {
                    let old: Segment = format::decode(key, &bytes)?;
                    // Segments of two processes may overlap.
                    let known = (first + steps.len() as u64).saturating_sub(old.first) as usize;
                    steps.extend(old.steps.into_iter().skip(known));
                }
                false => steps.push(format::decode::<Step>(key, &bytes)?),
            }
        }
        let is_whole = steps.len() as u64 == next - first && !steps.iter().any(Step::is_stub);
        Ok(is_whole.then_some(Segment { first, steps }))
    }

    /// Notes what a sealed object stands in for: to be deleted when everyone has looked since. The first step is left, and
    /// the last: they show that the log is there, and how long it is.
    fn supersede(&self, workspace: &WorkspaceId, name: &LogName, before: &Chain, made: &Sealed) {
        let folder = name.bases(workspace);
        let first = made.first.unwrap_or(0);
        // One that begins before it, which another merge may have made meanwhile, is still needed.
        let is_held = |old: &Sealed| made.is_base() || old.first.is_some_and(|begins| begins >= first);
        let is_gone = |old: &&Sealed| is_held(old) && old.name != made.name;
        let gone = before.after(first).iter().filter(is_gone);
        let mut keys: Vec<String> = gone.map(|old| format!("{folder}/{}", old.name)).collect();
        let steps = before.end().saturating_sub(1).max(1)..made.last;
        keys.extend(steps.map(|number| name.step(workspace, number)));
        self.delete_later(Timestamp(made.sealed_ms), keys);
    }

    /// Notes objects that others stand in for since then.
    fn delete_later(&self, since: Timestamp, keys: Vec<String>) {
        let mut superseded = lock(&self.superseded);
        superseded.push_back((since, keys));
        while superseded.len() > MAX_SUPERSEDED {
            superseded.pop_front();
        }
    }

    /// Deletes what others have stood in for long enough.
    async fn delete_superseded(&self) -> Result<()> {
        let mut due = Vec::new();
        {
            let mut superseded = lock(&self.superseded);
            while let Some((_, keys)) = superseded.pop_front_if(|(sealed, _)| self.is_long_ago(*sealed)) {
                due.extend(keys);
            }
        }
        self.bucket.delete_all(&due).await
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
                (state.has_rewrite, state.loose_steps() > self.options.max_steps)
            };
            if has_rewrite || many {
                self.refresh(workspace, name).await?;
                self.merge(workspace, name, if has_rewrite { Into::Base } else { Into::Segment }).await?;
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
                self.delete_due(workspace, name, &sealed(own)).await?;
            }
        }
        self.delete_old_indexes(workspace).await
    }

    /// Deletes the steps, segments and bases that others, sealed long ago, stand in for.
    async fn delete_due(&self, workspace: &WorkspaceId, name: &LogName, all: &[Sealed]) -> Result<()> {
        let is_due = |sealed: &&Sealed| self.is_long_ago(Timestamp(sealed.sealed_ms));
        let due = Chain::of(&all.iter().filter(is_due).cloned().collect::<Vec<_>>());
        let Some(last) = due.end().checked_sub(1) else { return Ok(()) };
        if let LogName::Session(id) = name {
            let view = self.view(workspace);
            let view = view.lock().await;
            let settled = view.rows.get(id).map_or(0, |row| match self.is_long_ago(row.noted.1) {
                true => row.noted.0,
                false => row.settled,
            });
            if settled <= last {
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
                Some(number) if number > 0 && number <= last => keys.push(name.step(workspace, number)),
                _ => {}
            }
        }
        let newest_base = due.base().map_or(0, |base| base.last);
        let is_older = |sealed: &&Sealed| {
            sealed.last <= last && !due.contains(sealed) && !(sealed.is_base() && sealed.last >= newest_base)
        };
        let bases = name.bases(workspace);
        keys.extend(all.iter().filter(is_older).map(|sealed| format!("{bases}/{}", sealed.name)));
        self.bucket.delete_all(&keys).await?;
        // Of a session that was removed nothing stays, not even its number.
        let is_gone = match name {
            LogName::Session(id) => {
                let is_there = self.cache.with(workspace, |w| Ok(w.sessions.contains_key(id)))?;
                let end = steps.iter().filter_map(|step| names::number_of(&step.name)).max();
                !is_there && end <= Some(last)
            }
            LogName::Records(_) => false,
        };
        if is_gone {
            let left: Vec<String> = due.after(0).iter().map(|sealed| format!("{bases}/{}", sealed.name)).collect();
            self.bucket.delete_all(&left).await?;
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
