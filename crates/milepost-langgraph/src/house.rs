//! Keeping house: deleting, pruning and copying threads, as LangGraph asks for it.

use std::collections::BTreeSet;

use milepost_model::SessionId;
use milepost_store::{Claim, DeleteMode, Error, Result};
use serde_json::Value;

use crate::anew::{Change, set_flag};
use crate::read::{Found, FoundValue, FoundWrite, Marked, read_metadata};
use crate::thread::{BUILDING, Saver, THREAD_RECORD, ThreadKey, View};
use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites, Part};

pub(crate) const HOLDER: &str = "LangGraph's adapter";
/// How often a thread is deleted again when others prune it meanwhile.
const TRIES: usize = 16;

fn claim() -> Claim {
    Claim::new(HOLDER).take_over()
}

impl Saver {
    /// Deletes every checkpoint and write of a thread, in all namespaces.
    pub async fn delete_thread(&self, thread: &str) -> Result<()> {
        for (key, _) in self.sessions(Some(thread), None).await? {
            self.delete(&key).await?;
        }
        self.sweep(Some(thread), 0).await
    }

    async fn delete(&self, key: &ThreadKey) -> Result<()> {
        let mut slot = self.slot(key).await;
        *slot = None;
        for _ in 0..TRIES {
            let Some(named) = self.named(key).await? else { return Ok(()) };
            // Whoever is killed after this leaves a session that the next one removes.
            let flagged = async {
                let writer = self.store.join(named.session).await?;
                set_flag(&writer, BUILDING, Value::Bool(true)).await
            };
            match flagged.await {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            match self.store.delete_record(THREAD_RECORD, &key.name(), named.version).await {
                Ok(()) => return self.remove(named.session).await,
                // Someone else was quicker: what is there now goes too.
                Err(Error::Conflict(_) | Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy { what: format!("deleting thread {:?}", key.thread), waited_ms: 0 })
    }

    pub(crate) async fn remove(&self, session: SessionId) -> Result<()> {
        match self.store.delete(session, DeleteMode::KeepBranches, &claim(), false).await {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The same unless somebody holds it: whoever makes it is still at work.
    pub(crate) async fn remove_idle(&self, session: SessionId) -> Result<()> {
        match self.store.delete(session, DeleteMode::KeepBranches, &Claim::new(HOLDER), false).await {
            Ok(_) | Err(Error::NotFound { .. } | Error::Held { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the checkpoints of runs, with their writes.
    pub async fn delete_for_runs(&self, runs: &[String]) -> Result<()> {
        for (key, session) in self.sessions(None, None).await? {
            let mut gone = BTreeSet::new();
            for marked in self.all_marks(session).await? {
                if self.run_of(&marked).await?.is_some_and(|run| runs.contains(&run)) {
                    gone.insert(marked.record.id);
                }
            }
            if !gone.is_empty() {
                let mut slot = self.slot(&key).await;
                *slot = None;
                Box::pin(self.rebuild(&key, &Change::without(gone))).await?;
            }
        }
        Ok(())
    }

    async fn run_of(&self, marked: &Marked) -> Result<Option<String>> {
        let values = self.values(&marked.record, marked.at).await?;
        let metadata = values.get(crate::record::METADATA).map(|known| known.bytes.clone());
        let metadata: Option<Value> = metadata.and_then(|bytes| read_metadata(&bytes));
        Ok(metadata.and_then(|metadata| metadata.get("run_id")?.as_str().map(str::to_owned)))
    }

    /// Keeps only the newest checkpoint of each namespace of a thread, and what its delta channels need.
    pub async fn keep_latest(&self, thread: &str) -> Result<()> {
        for (key, session) in self.sessions(Some(thread), None).await? {
            let mut slot = self.slot(&key).await;
            *slot = None;
            let all = self.all_marks(session).await?;
            let Some(latest) = all.iter().max_by(|a, b| a.record.id.cmp(&b.record.id)) else { continue };
            let mut kept = self.needed(&all, latest).await?;
            kept.push(latest.record.id.clone());
            let ids = all.iter().map(|marked| marked.record.id.clone());
            let gone: BTreeSet<String> = ids.filter(|id| !kept.contains(id)).collect();
            if !gone.is_empty() {
                Box::pin(self.rebuild(&key, &Change::without(gone))).await?;
            }
        }
        Ok(())
    }

    /// Ancestors that a checkpoint cannot do without: up to those with a snapshot of every channel of which it has a version,
    /// but no value, because it is rebuilt from writes.
    async fn needed(&self, all: &[Marked], latest: &Marked) -> Result<Vec<String>> {
        let values = self.values(&latest.record, latest.at).await?;
        let metadata = values.get(crate::record::METADATA).map(|known| known.bytes.clone());
        let metadata: Option<Value> = metadata.and_then(|bytes| read_metadata(&bytes));
        let counters =
            metadata.as_ref().and_then(|metadata| metadata.get("counters_since_delta_snapshot")?.as_object());
        let mut open: Vec<&String> = counters.into_iter().flat_map(|counters| counters.keys()).collect();
        open.retain(|channel| !latest.record.values.contains_key(*channel));
        let (mut kept, mut at) = (Vec::new(), latest.record.parent.clone());
        while let Some(marked) =
            at.filter(|_| !open.is_empty()).and_then(|id| all.iter().find(|one| one.record.id == id))
        {
            if kept.contains(&marked.record.id) {
                break;
            }
            kept.push(marked.record.id.clone());
            open.retain(|channel| !marked.record.values.contains_key(*channel));
            at = marked.record.parent.clone();
        }
        Ok(kept)
    }

    /// Copies every checkpoint and write of a thread to another.
    pub async fn copy_thread(&self, from: &str, to: &str) -> Result<()> {
        if from == to {
            return Ok(());
        }
        for (key, session) in self.sessions(Some(from), None).await? {
            let target = ThreadKey::new(to, key.namespace.clone());
            let source = self.load(session).await?;
            let mut marks = self.all_marks(session).await?;
            marks.sort_by(|a, b| a.record.id.cmp(&b.record.id));
            let there = marks.iter().map(|marked| marked.record.id.clone()).collect();
            for marked in marks {
                let found = self.materialise(&key, &source, &marked).await?;
                self.put(&target, &checkpoint_of(&found)).await?;
                for writes in writes_of(&found.id, &found.writes) {
                    self.put_writes(&target, &writes).await?;
                }
            }
            for (id, writes) in self.waiting(&source, &there).await? {
                for writes in writes_of(&id, &writes) {
                    self.put_writes(&target, &writes).await?;
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn materialise(&self, key: &ThreadKey, view: &View, marked: &Marked) -> Result<Found> {
        let values = self.values(&marked.record, marked.at).await?;
        self.found_for_copy(key, view, marked, values).await
    }
}

pub(crate) fn checkpoint_of(found: &Found) -> NewCheckpoint {
    let value = |value: &FoundValue| match value {
        FoundValue::List(items) => NewValue::List(items.iter().map(|item| Part::New(item.to_vec())).collect()),
        FoundValue::Typed(word, bytes) => NewValue::Typed(word.clone(), bytes.as_slice().into()),
    };
    NewCheckpoint {
        id: found.id.clone(),
        parent: found.parent.clone(),
        compared: None,
        skeleton: found.skeleton.clone(),
        metadata: found.metadata.clone(),
        values: found.values.iter().map(|(name, kept)| (name.clone(), value(kept))).collect(),
    }
}

/// A checkpoint's writes, as they are to be kept elsewhere.
pub(crate) fn writes_of(id: &str, writes: &[FoundWrite]) -> Vec<NewWrites> {
    let mut all: Vec<NewWrites> = Vec::new();
    for write in writes {
        let new = NewWrite {
            index: write.index,
            channel: write.channel.clone(),
            word: write.word.clone(),
            bytes: write.bytes.clone(),
        };
        match all.iter_mut().find(|writes| writes.task == write.task && writes.path == write.path) {
            Some(writes) => writes.writes.push(new),
            None => all.push(NewWrites {
                checkpoint: id.to_owned(),
                task: write.task.clone(),
                path: write.path.clone(),
                replace: false,
                writes: vec![new],
            }),
        }
    }
    all
}
