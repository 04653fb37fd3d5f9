//! Reading and writing one log: the part of the protocol that must be right.
//!
//! A step is written only by whoever has folded everything before it, and only if nobody else has its number.

use std::collections::BTreeMap;
use std::sync::Arc;

use milepost_model::{Epoch, Timestamp, WorkspaceId};
use tokio::sync::{Mutex, MutexGuard};

use super::Shared;
use super::bucket::{Listed, Put};
use super::fold::{self, LogState, Turn};
use super::format::{self, Appending, Base, Op, Segment, Step};
use super::names::{self, LogName};
use super::sealed::{Chain, boundary, sealed};
use crate::backend::Appended;
use crate::error::{Error, Result};
use crate::memory::Workspace;

/// So often a number is lost to others before a call gives up.
const MAX_TRIES: usize = 256;
/// So often a PUT that was refused although nothing is there is tried again.
const MAX_PUTS: usize = 8;
/// So often a log is listed anew because a merge fell between two requests.
const MAX_LOOKS: usize = 4;

/// What a call wants of a log, given what the log says now.
pub(super) enum Decision<T> {
    /// Nothing: this is the answer.
    Answer(T),
    /// These steps, and then this answer.
    Write(Vec<Op>, T),
    /// This append, at the end of the turn, and this answer now.
    Later(Box<Appending>, T),
}

/// What became of a PUT.
enum Written {
    Ours,
    Others,
}

pub(super) type Log = Arc<Mutex<LogState>>;

impl Shared {
    /// The log of a name, read or not.
    pub fn log(&self, workspace: &WorkspaceId, name: &LogName) -> Log {
        let mut logs = self.logs();
        let own = match logs.get_mut(workspace) {
            Some(own) => own,
            None => logs.entry(workspace.clone()).or_default(),
        };
        match own.get(name) {
            Some(log) => Arc::clone(log),
            None => Arc::clone(own.entry(name.clone()).or_default()),
        }
    }

    /// Whether what is known was proved so lately that nothing above it can have been deleted.
    pub fn is_fresh(&self, state: &LogState) -> bool {
        state.fresh.is_some_and(|fresh| self.source.now().since_ms(fresh) <= self.options.idle_ms)
    }

    /// Folds whatever is new.
    pub async fn refresh(&self, workspace: &WorkspaceId, name: &LogName) -> Result<()> {
        let log = self.log(workspace, name);
        let mut state = log.lock().await;
        self.refresh_locked(workspace, name, &mut state).await
    }

    pub async fn refresh_locked(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        state: &mut MutexGuard<'_, LogState>,
    ) -> Result<()> {
        if !state.turn.is_empty() {
            // What others wrote is looked for with the PUT that ends the turn.
            if self.is_fresh(state) {
                return Ok(());
            }
            return self.end_turn(workspace, name, state).await;
        }
        self.look_at_log(workspace, name, state).await
    }

    async fn look_at_log(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        state: &mut MutexGuard<'_, LogState>,
    ) -> Result<()> {
        for look in 0..MAX_LOOKS {
            let sent = self.source.now();
            let folder = name.steps(workspace);
            // Within the time that deletion waits, the steps after the last that is known tell all.
            if look == 0 && self.is_fresh(state) {
                let after = state.next.checked_sub(1).map(names::number_name);
                let numbers = numbers(&self.bucket.list(&folder, after.as_deref()).await?);
                if self.fold(workspace, name, state, None, numbers).await? {
                    state.fresh = Some(sent);
                    return Ok(());
                }
                continue;
            }
            let sealed_folder = name.bases(workspace);
            let steps = self.bucket.list(&folder, None);
            let (steps, listed) = futures_util::future::try_join(steps, self.bucket.list(&sealed_folder, None)).await?;
            let (numbers, sealed) = (numbers(&steps), sealed(&listed));
            let end = numbers.last().copied().max(boundary(&sealed)).map_or(0, |last| last + 1);
            if end < state.next {
                // Removed for good, and perhaps begun anew.
                self.cache.with(workspace, |w| {
                    fold::forget(w, name);
                    Ok(())
                })?;
                **state = LogState::default();
            }
            if self.fold(workspace, name, state, Some(Chain::of(&sealed)), numbers).await? {
                state.fresh = Some(sent);
                return Ok(());
            }
        }
        Err(Error::corrupt(format!("the log {}", name.steps(workspace)), "a step is missing between others"))
    }

    /// Reads and applies what is sealed, and steps. False when they do not follow one another.
    pub async fn fold(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        state: &mut MutexGuard<'_, LogState>,
        chain: Option<Chain>,
        mut numbers: Vec<u64>,
    ) -> Result<bool> {
        let wanted = chain.as_ref().map_or(&[][..], |chain| chain.after(state.next));
        let from = wanted.last().map_or(state.next, |sealed| sealed.last + 1);
        numbers.retain(|number| *number >= from);
        if numbers.iter().zip(from..).any(|(found, expected)| *found != expected) {
            return Ok(false);
        }
        let folder = name.bases(workspace);
        let mut keys: Vec<String> = wanted.iter().map(|sealed| format!("{folder}/{}", sealed.name)).collect();
        keys.extend(numbers.iter().map(|number| name.step(workspace, *number)));
        let found = self.bucket.get_all(&keys).await?;
        let Some(found) = found.into_iter().collect::<Option<Vec<_>>>() else { return Ok(false) };
        let mut base = None;
        let mut steps: Vec<(u64, Step)> = Vec::new();
        for (at, (key, bytes)) in keys.iter().zip(found).enumerate() {
            match wanted.get(at) {
                Some(sealed) if sealed.is_base() => {
                    base = Some((sealed.last + 1, format::decode::<Base>(key, &bytes)?));
                }
                Some(_) => {
                    let segment: Segment = format::decode(key, &bytes)?;
                    steps.extend((segment.first..).zip(segment.steps));
                }
                None => steps.push((numbers[at - wanted.len()], format::decode(key, &bytes)?)),
            }
        }
        let begins = base.as_ref().map_or(state.next, |(next, _)| *next);
        steps.retain(|(number, _)| *number >= begins);
        let follows = steps.iter().zip(begins..).all(|((found, _), expected)| *found == expected);
        if !follows || steps.iter().any(|(_, step)| step.is_stub()) {
            return Ok(false);
        }
        self.cache.with(workspace, |w| {
            if let Some((next, base)) = base {
                fold::install(w, name, state, base);
                state.next = next;
            }
            for (_, step) in steps {
                fold::apply(w, name, state, step);
                state.next += 1;
            }
            Ok(())
        })?;
        if let Some(chain) = chain.filter(|chain| chain.end() >= state.chain.end()) {
            state.chain = chain;
        }
        Ok(true)
    }

    /// Decides on what the log says, writes what was decided as its next step, and decides again whenever someone
    /// else was faster. A refusal is given only after a look at what others wrote.
    pub async fn commit<T>(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        epoch: Option<Epoch>,
        mut decide: impl FnMut(&Workspace, &LogState, Timestamp) -> Result<Decision<T>> + Send,
    ) -> Result<(T, Option<Appended>)> {
        let log = self.log(workspace, name);
        let mut state = log.lock().await;
        let mut has_looked = false;
        for _ in 0..MAX_TRIES {
            let now = self.source.now();
            let (ops, answer) = match self.cache.with(workspace, |w| decide(w, &state, now)) {
                Ok(Decision::Answer(answer)) => return Ok((answer, None)),
                Ok(Decision::Write(ops, answer)) => (ops, answer),
                Ok(Decision::Later(appending, answer)) => {
                    state.turn.push((*appending).clone(), epoch, now);
                    let step = Step { put: [0; 16], time: now, epoch, ops: vec![Op::Append(appending)] };
                    let appended = self.cache.with(workspace, |w| Ok(fold::apply(w, name, &mut state, step)))?;
                    return Ok((answer, appended));
                }
                Err(error) if has_looked || matches!(error, Error::Closed) => return Err(error),
                Err(_) => {
                    self.end_turn(workspace, name, &mut state).await?;
                    self.look_at_log(workspace, name, &mut state).await?;
                    has_looked = true;
                    continue;
                }
            };
            match self.write_step(workspace, name, &mut state, epoch, ops, now).await? {
                Some(appended) => return Ok((answer, appended)),
                None => has_looked = true,
            }
        }
        Err(Error::Busy { what: format!("writing to {}", name.steps(workspace)), waited_ms: 0 })
    }

    /// Writes the next step: what the turn holds, and these. None when someone else was faster, which is folded then.
    async fn write_step(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        state: &mut MutexGuard<'_, LogState>,
        epoch: Option<Epoch>,
        ops: Vec<Op>,
        now: Timestamp,
    ) -> Result<Option<Option<Appended>>> {
        let mut put = [0; 16];
        self.puts.fill(&mut put);
        let mut all = state.turn.ops();
        all.extend(ops.iter().cloned());
        let step = Step { put, time: now, epoch, ops: all };
        match self.put_step(workspace, name, state.next, &step).await? {
            Written::Ours if !self.is_void(workspace, name, state).await? => {
                state.turn = Turn::default();
                let own = Step { ops, ..step };
                let appended = self.cache.with(workspace, |w| Ok(fold::apply(w, name, state, own)))?;
                state.next += 1;
                state.fresh = Some(now);
                Ok(Some(appended))
            }
            _ if state.turn.is_empty() => self.look_at_log(workspace, name, state).await.map(|()| None),
            _ => self.replay_turn(workspace, name, state).await.map(|()| None),
        }
    }

    /// Writes what the turn holds.
    pub async fn end_turn(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        state: &mut MutexGuard<'_, LogState>,
    ) -> Result<()> {
        for _ in 0..MAX_TRIES {
            if state.turn.is_empty() {
                return Ok(());
            }
            let epoch = state.turn.epoch;
            self.write_step(workspace, name, state, epoch, Vec::new(), self.source.now()).await?;
        }
        Err(Error::Busy { what: format!("ending a turn of {}", name.steps(workspace)), waited_ms: 0 })
    }

    /// Someone else wrote before the turn could: folds the log anew, and checks the turn against it. What is refused now is lost
    /// with what follows it, and the caller is told why.
    async fn replay_turn(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        state: &mut MutexGuard<'_, LogState>,
    ) -> Result<()> {
        let turn = std::mem::take(&mut state.turn);
        self.cache.with(workspace, |w| {
            fold::forget(w, name);
            Ok(())
        })?;
        **state = LogState::default();
        if let Err(error) = self.look_at_log(workspace, name, state).await {
            // Nothing is known of the log now; the turn waits.
            state.turn = turn;
            return Err(error);
        }
        let now = self.source.now();
        for appending in turn.appends {
            let known = self.cache.with(workspace, |w| w.check(&appending.batch))?;
            if known.is_none() {
                state.turn.push(appending.clone(), turn.epoch, now);
                let ops = vec![Op::Append(Box::new(appending))];
                let step = Step { put: [0; 16], time: now, epoch: turn.epoch, ops };
                self.cache.with(workspace, |w| Ok(fold::apply(w, name, state, step)))?;
            }
        }
        Ok(())
    }

    /// Puts a step under a number, and finds out whose step has it.
    async fn put_step(&self, workspace: &WorkspaceId, name: &LogName, number: u64, step: &Step) -> Result<Written> {
        let key = name.step(workspace, number);
        let bytes = format::encode("a step", step)?;
        for _ in 0..MAX_PUTS {
            let unknown = match self.bucket.put_new(&key, bytes.clone()).await? {
                Put::Done => return Ok(Written::Ours),
                Put::Exists => None,
                Put::Unknown(why) => Some(why),
            };
            let io = |why: String| Error::Io { what: format!("writing {key}"), why };
            let there = match (self.bucket.get(&key).await, &unknown) {
                (Ok(there), _) => there,
                (Err(error), None) => return Err(error),
                (Err(error), Some(why)) => return Err(io(format!("{why}; and reading it back: {error}"))),
            };
            match (there, unknown) {
                (Some(there), _) => {
                    let winner: Step = format::decode(&key, &there)?;
                    return Ok(if winner.put == step.put { Written::Ours } else { Written::Others });
                }
                // It may still arrive.
                (None, Some(why)) => return Err(io(why)),
                // Two PUTs met, and both were refused.
                (None, None) => {}
            }
        }
        let why = "the store refused it again and again, though there is no such object".to_owned();
        Err(Error::Io { what: format!("writing {key}"), why })
    }

    /// Whether the number that was just written lies below the sealed boundary. Asked only of a writer that knew
    /// nothing newer for so long that steps may have been deleted; the first step is never deleted before its log.
    async fn is_void(
        &self,
        workspace: &WorkspaceId,
        name: &LogName,
        state: &mut MutexGuard<'_, LogState>,
    ) -> Result<bool> {
        if state.next == 0 || self.is_fresh(state) {
            return Ok(false);
        }
        let listed = self.bucket.list(&name.bases(workspace), None).await.map_err(|error| Error::Io {
            what: format!("making sure of a step of {}", name.steps(workspace)),
            why: error.to_string(),
        })?;
        Ok(boundary(&sealed(&listed)).is_some_and(|last| last >= state.next))
    }
}

fn numbers(steps: &[Listed]) -> Vec<u64> {
    steps.iter().filter_map(|step| names::number_of(&step.name)).collect()
}

pub(super) type Logs = BTreeMap<WorkspaceId, BTreeMap<LogName, Log>>;
