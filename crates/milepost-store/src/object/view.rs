//! All sessions of a workspace at once: the index, and what is newer than it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt as _, TryStreamExt as _};
use milepost_model::{CheckpointId, SessionId, TimelineId, Timestamp, WorkspaceId};
use tokio::sync::{Mutex, MutexGuard};

use super::Shared;
use super::bucket::{AT_ONCE, Put};
use super::fold;
use super::format::{self, Index, IndexRow, IndexTail, upper};
use super::names::{self, LogName};
use crate::backend::{SessionFilter, SessionRow};
use crate::error::{Error, Result};

/// The next pages of a list are answered from the view of the first for so long.
const PAGE_VIEW_MS: i64 = 10_000;
/// So many sessions newer than the index are worth a new index.
const STALE_ROWS: usize = 32;
/// So many steps are read without looking for a base first.
const FEW_STEPS: usize = 8;
const MAX_LOOKS: usize = 4;

/// What is known of all sessions of a workspace.
#[derive(Default)]
pub(super) struct View {
    /// The index that was read.
    pub number: Option<u64>,
    pub sealed: Timestamp,
    pub rows: BTreeMap<SessionId, IndexRow>,
    /// What the index knows of sessions' marks.
    marks: BTreeMap<SessionId, u64>,
    /// Sessions that are in memory and at least as new there as in the index.
    loaded: BTreeSet<SessionId>,
    /// Sessions that have steps in the bucket: (first, how many).
    pub steps: BTreeMap<SessionId, Vec<u64>>,
    /// Sessions that the index does not know, or not all of.
    pub newer: usize,
    taken: Option<Timestamp>,
}

impl Shared {
    pub fn view(&self, workspace: &WorkspaceId) -> Arc<Mutex<View>> {
        Arc::clone(self.views().entry(workspace.clone()).or_default())
    }

    /// Looks at the whole workspace: afterwards every session is either in memory or in the index, up to date.
    pub async fn look(&self, workspace: &WorkspaceId, view: &mut MutexGuard<'_, View>) -> Result<()> {
        let sent = self.source.now();
        let (steps_folder, index_folder) = (names::sessions_steps(workspace), names::index(workspace));
        let steps = self.bucket.list(&steps_folder, None);
        let (steps, indexes) = futures_util::future::try_join(steps, self.bucket.list(&index_folder, None)).await?;
        let newest = indexes.iter().filter_map(|found| names::number_of(&found.name)).max();
        if let Some(number) = newest.filter(|number| view.number.is_none_or(|known| *number > known)) {
            self.read_index(workspace, view, number).await?;
        }
        view.steps.clear();
        for step in &steps {
            if let (Ok(id), Some(number)) = (step.folder.parse::<SessionId>(), names::number_of(&step.name)) {
                view.steps.entry(id).or_default().push(number);
            }
        }
        self.forget_gone(workspace, view).await?;
        let ids: BTreeSet<SessionId> = view.rows.keys().chain(view.steps.keys()).copied().collect();
        let looks: Vec<_> = ids.iter().map(|id| self.look_at(workspace, view, *id, sent)).collect();
        let found: Vec<(bool, bool)> = futures_util::stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
        view.newer = found.iter().filter(|(_, newer)| *newer).count();
        view.loaded = ids.into_iter().zip(found).filter(|(_, (loaded, _))| *loaded).map(|(id, _)| id).collect();
        view.taken = Some(sent);
        Ok(())
    }

    /// Whether everyone has looked since.
    pub fn is_long_ago(&self, time: Timestamp) -> bool {
        time.plus_ms(self.options.delete_after_ms) < self.source.now()
    }

    /// A session that lives has a first step. One that is in memory and has none is gone, or was begun just now.
    async fn forget_gone(&self, workspace: &WorkspaceId, view: &View) -> Result<()> {
        let known: Vec<LogName> = self.logs().get(workspace).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        for name in known {
            if !matches!(&name, LogName::Session(id) if !view.steps.contains_key(id)) {
                continue;
            }
            let log = self.log(workspace, &name);
            let mut state = log.lock().await;
            if state.next > 0 {
                state.fresh = None;
                self.refresh_locked(workspace, &name, &mut state).await?;
            }
        }
        Ok(())
    }

    async fn read_index(
        &self,
        workspace: &WorkspaceId,
        view: &mut MutexGuard<'_, View>,
        mut number: u64,
    ) -> Result<()> {
        let folder = names::index(workspace);
        for _ in 0..MAX_LOOKS {
            let key = format!("{folder}/{}", names::number_name(number));
            if let Some(bytes) = self.bucket.get(&key).await? {
                let (index, tail) = format::decode_index(&key, &bytes)?;
                view.number = Some(number);
                view.sealed = index.sealed;
                view.rows = index.sessions.into_iter().collect();
                view.marks = tail.marks.into_iter().collect();
                return Ok(());
            }
            let found = self.bucket.list(&folder, None).await?;
            number = found.iter().filter_map(|found| names::number_of(&found.name)).max().unwrap_or(number);
        }
        Err(Error::corrupt(folder, "the index that is listed cannot be read"))
    }

    /// Brings one session up to date, unless the index has all of it and nobody asked for it yet. Tells whether it
    /// is in memory, and whether it is newer than the index.
    async fn look_at(
        &self,
        workspace: &WorkspaceId,
        view: &View,
        id: SessionId,
        sent: Timestamp,
    ) -> Result<(bool, bool)> {
        let name = LogName::Session(id);
        let log = self.log(workspace, &name);
        let mut state = log.lock().await;
        let indexed = view.rows.get(&id).map_or(0, |row| row.next);
        let steps = view.steps.get(&id);
        if steps.and_then(|numbers| numbers.last()).is_some_and(|last| *last >= state.next) {
            self.end_turn(workspace, &name, &mut state).await?;
        }
        let last = steps.and_then(|numbers| numbers.last()).map_or(0, |last| last + 1);
        let is_behind = last > state.next.max(indexed) || (state.next > 0 && indexed > state.next);
        if is_behind {
            // The last step is always there. Where it is the first, nothing was merged; else only whoever looked lately
            // can be sure that nothing was.
            let is_sure = |numbers: &[u64]| *numbers == [0] || self.is_fresh(&state);
            let few = steps.filter(|numbers| is_sure(numbers) && numbers.len() <= FEW_STEPS && last >= indexed);
            let is_done = match few {
                Some(numbers) => self.fold(workspace, &name, &mut state, None, numbers.clone()).await?,
                None => false,
            };
            match is_done {
                true => state.fresh = Some(sent),
                false => self.refresh_locked(workspace, &name, &mut state).await?,
            }
        }
        Ok((state.next > 0, state.next > indexed))
    }

    /// Everything in memory, also what is left of sessions that were removed lately.
    pub async fn load_all(&self, workspace: &WorkspaceId) -> Result<()> {
        let view = self.view(workspace);
        let mut view = view.lock().await;
        self.look(workspace, &mut view).await?;
        let missing: Vec<LogName> =
            view.rows.iter().filter(|(id, _)| !view.loaded.contains(id)).map(|(id, _)| LogName::Session(*id)).collect();
        let loads: Vec<_> = missing.iter().map(|name| self.refresh(workspace, name)).collect();
        futures_util::stream::iter(loads).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The session of a timeline.
    pub async fn session_of_timeline(&self, workspace: &WorkspaceId, id: TimelineId) -> Result<Option<SessionId>> {
        let cached = || self.cache.with(workspace, |w| Ok(w.timelines.get(&id).map(|line| line.session)));
        if let Some(session) = cached()? {
            return Ok(Some(session));
        }
        let view = self.view(workspace);
        let mut view = view.lock().await;
        self.look(workspace, &mut view).await?;
        let indexed = view.rows.iter().find(|(_, row)| row.timelines.contains(&id)).map(|(id, _)| *id);
        Ok(cached()?.or(indexed.filter(|id| !view.loaded.contains(id))))
    }

    /// Sessions that may have this mark.
    pub async fn sessions_of_mark(&self, workspace: &WorkspaceId, id: CheckpointId) -> Result<Vec<SessionId>> {
        let cached = || {
            self.cache.with(workspace, |w| {
                let at = w.marks.values().find(|row| row.id == id).map(|row| row.at);
                Ok(at.and_then(|at| w.timelines.get(&at.timeline)).map(|line| line.session))
            })
        };
        if let Some(session) = cached()? {
            return Ok(vec![session]);
        }
        let view = self.view(workspace);
        let mut view = view.lock().await;
        self.look(workspace, &mut view).await?;
        if let Some(session) = cached()? {
            return Ok(vec![session]);
        }
        let is_candidate = |row: &IndexRow| row.row.is_some() && row.marks.contains(&upper(id));
        Ok(view.rows.iter().filter(|(_, row)| is_candidate(row)).map(|(id, _)| *id).collect())
    }

    /// The ids of all sessions.
    pub async fn all_ids(&self, workspace: &WorkspaceId) -> Result<Vec<SessionId>> {
        let view = self.view(workspace);
        let mut view = view.lock().await;
        self.look(workspace, &mut view).await?;
        let mut ids: BTreeSet<SessionId> =
            self.cache.with(workspace, |w| Ok(w.timelines.values().map(|line| line.session).collect()))?;
        let indexed = view.rows.iter().filter(|(id, row)| row.row.is_some() && !view.loaded.contains(id));
        ids.extend(indexed.map(|(id, _)| *id));
        Ok(ids.into_iter().collect())
    }

    /// Lists sessions, from memory and from the index.
    pub async fn list(&self, workspace: &WorkspaceId, filter: &SessionFilter) -> Result<(Vec<SessionRow>, bool)> {
        let view = self.view(workspace);
        let mut view = view.lock().await;
        let is_recent = view.taken.is_some_and(|taken| self.source.now().since_ms(taken) <= PAGE_VIEW_MS);
        if filter.after.is_none() || !is_recent {
            self.look(workspace, &mut view).await?;
        }
        let mut rows = self.cache.with(workspace, |w| {
            let indexed = view.rows.iter().filter(|(id, _)| !view.loaded.contains(id) && !w.sessions.contains_key(id));
            let indexed = indexed.filter_map(|(_, row)| row.row.as_ref());
            let cached = w.sessions.values().map(|session| &session.row);
            Ok(cached.chain(indexed).filter(|row| filter.accepts(row)).cloned().collect::<Vec<_>>())
        })?;
        rows.sort_by_key(|row| std::cmp::Reverse((filter.sort_time(row), row.id)));
        rows.truncate(filter.limit);
        Ok((rows, view.newer > STALE_ROWS))
    }

    /// How many marks sessions have up to their heads, without the trash; as new as the last list. Those of which the index
    /// does not know it are read.
    pub async fn count_marks(&self, workspace: &WorkspaceId, ids: &[SessionId]) -> Result<Vec<u64>> {
        let view = self.view(workspace);
        let mut view = view.lock().await;
        let is_recent = view.taken.is_some_and(|taken| self.source.now().since_ms(taken) <= PAGE_VIEW_MS);
        if !is_recent {
            self.look(workspace, &mut view).await?;
        }
        let loaded: BTreeSet<SessionId> = self.cache.with(workspace, |w| Ok(w.sessions.keys().copied().collect()))?;
        let indexed = |id: &SessionId| view.marks.get(id).copied().filter(|_| !loaded.contains(id));
        let known: Vec<Option<u64>> = ids.iter().map(indexed).collect();
        let missing: BTreeSet<SessionId> = ids
            .iter()
            .zip(&known)
            .filter(|(id, known)| known.is_none() && !loaded.contains(id))
            .map(|(id, _)| *id)
            .collect();
        drop(view);
        let names: Vec<LogName> = missing.into_iter().map(LogName::Session).collect();
        let loads: Vec<_> = names.iter().map(|name| self.refresh(workspace, name)).collect();
        futures_util::stream::iter(loads).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let heads = self.cache.with(workspace, |w| Ok(w.main_heads()))?;
        let mut counts = Vec::with_capacity(ids.len());
        for (id, known) in ids.iter().zip(known) {
            counts.push(match (known, heads.get(id)) {
                (Some(known), _) => known,
                (None, Some(head)) => self.count_along(workspace, *head).await?,
                (None, None) => 0,
            });
        }
        Ok(counts)
    }

    /// Counts along a timeline, reading the sessions that it continues.
    async fn count_along(&self, workspace: &WorkspaceId, head: TimelineId) -> Result<u64> {
        let mut read = BTreeSet::new();
        loop {
            let found = self.cache.with(workspace, |w| Ok(w.marks_up_to(head)))?;
            let parent = match found.beyond {
                Some(at) => self.session_of_timeline(workspace, at.timeline).await?,
                None => None,
            };
            // What is read and still not there is damage, which others tell of.
            let Some(parent) = parent.filter(|parent| read.insert(*parent)) else { return Ok(found.count) };
            self.refresh(workspace, &LogName::Session(parent)).await?;
        }
    }

    /// Writes the next index, when something is newer than the last.
    pub async fn write_index(&self, workspace: &WorkspaceId) -> Result<()> {
        let view = self.view(workspace);
        let mut view = view.lock().await;
        for _ in 0..MAX_LOOKS {
            self.look(workspace, &mut view).await?;
            let gone: Vec<SessionId> = view
                .rows
                .iter()
                .filter(|(id, row)| row.row.is_none() && !view.steps.contains_key(id))
                .map(|(id, _)| *id)
                .collect();
            if view.newer == 0 && gone.is_empty() {
                return Ok(());
            }
            let now = self.source.now();
            let (mut rows, mut marks) = (view.rows.clone(), view.marks.clone());
            for id in &gone {
                rows.remove(id);
                marks.remove(id);
            }
            for id in view.loaded.iter().filter(|id| !gone.contains(id)) {
                let log = self.log(workspace, &LogName::Session(*id));
                let state = log.lock().await;
                if rows.get(id).is_none_or(|row| row.next < state.next) {
                    let mut row = self.cache.with(workspace, |w| Ok(fold::index_row(w, *id, &state, now)))?;
                    if let Some(old) = rows.get(id) {
                        row.settled = old.settled;
                        // Noted long ago, it is settled now; else it stays what is waited for.
                        match self.is_long_ago(old.noted.1) {
                            true => row.settled = old.noted.0,
                            false => row.noted = old.noted,
                        }
                    }
                    rows.insert(*id, row);
                }
                match self.cache.with(workspace, |w| Ok(fold::own_marks(w, *id, &state)))? {
                    Some(count) => marks.insert(*id, count),
                    None => marks.remove(id),
                };
            }
            let index = Index { sealed: now, sessions: rows.into_iter().collect() };
            let tail = IndexTail { marks: marks.into_iter().collect() };
            let number = view.number.map_or(0, |number| number + 1);
            let key = format!("{}/{}", names::index(workspace), names::number_name(number));
            match self.bucket.put_new(&key, format::encode("the index", &(&index, &tail))?).await? {
                Put::Done => {
                    view.number = Some(number);
                    view.sealed = index.sealed;
                    view.rows = index.sessions.into_iter().collect();
                    view.marks = tail.marks.into_iter().collect();
                    view.newer = 0;
                    return Ok(());
                }
                // Someone else wrote one, or this one is there after all: the next look tells.
                Put::Exists | Put::Unknown(_) => {}
            }
        }
        Ok(())
    }
}
