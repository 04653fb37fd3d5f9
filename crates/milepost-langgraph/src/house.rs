//! Keeping house: deleting, pruning and copying threads, as LangGraph asks for it.

use milepost_model::{SessionId, SessionPatch};
use milepost_store::{Append, Claim, DeleteMode, Error, NewSession, Result};
use serde_json::Value;

use crate::read::{Found, FoundValue, Marked};
use crate::record::Record;
use crate::thread::{BUILDING, Saver, THREAD_RECORD, ThreadKey, View};
use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites, Part};

fn claim() -> Claim {
    Claim::new("LangGraph's adapter").take_over()
}

impl Saver {
    /// Deletes every checkpoint and write of a thread, in all namespaces.
    pub async fn delete_thread(&self, thread: &str) -> Result<()> {
        for (key, session) in self.sessions(Some(thread), None).await? {
            self.delete(&key, session).await?;
        }
        Ok(())
    }

    async fn delete(&self, key: &ThreadKey, session: SessionId) -> Result<()> {
        let mut slot = self.slot(key).await;
        *slot = None;
        if let Some(record) = self.store.record(THREAD_RECORD, &key.name()).await? {
            match self.store.delete_record(THREAD_RECORD, &key.name(), record.version).await {
                // Someone else was quicker: it is theirs.
                Ok(()) | Err(Error::Conflict(_) | Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.remove(session).await
    }

    async fn remove(&self, session: SessionId) -> Result<()> {
        match self.store.delete(session, DeleteMode::KeepBranches, &claim(), false).await {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the checkpoints of runs, with their writes.
    pub async fn delete_for_runs(&self, runs: &[String]) -> Result<()> {
        for (key, session) in self.sessions(None, None).await? {
            let mut gone = Vec::new();
            for marked in self.all_marks(session).await? {
                if self.run_of(&marked).await?.is_some_and(|run| runs.contains(&run)) {
                    gone.push(marked.record.id);
                }
            }
            if !gone.is_empty() {
                let mut slot = self.slot(&key).await;
                *slot = None;
                self.rebuild(&key, session, |record| !gone.contains(&record.id)).await?;
            }
        }
        Ok(())
    }

    async fn run_of(&self, marked: &Marked) -> Result<Option<String>> {
        let values = self.values(&marked.record, marked.at).await?;
        let metadata = values.get(crate::record::METADATA).map(|known| known.bytes.clone());
        let metadata: Option<Value> = metadata.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(metadata.and_then(|metadata| metadata.get("run_id")?.as_str().map(str::to_owned)))
    }

    /// Keeps only the newest checkpoint of each namespace of a thread, and what its delta channels need.
    pub async fn keep_latest(&self, thread: &str) -> Result<()> {
        for (key, session) in self.sessions(Some(thread), None).await? {
            let mut slot = self.slot(&key).await;
            *slot = None;
            let all = self.all_marks(session).await?;
            let Some(latest) = all.iter().max_by(|a, b| a.record.id.cmp(&b.record.id)) else { continue };
            let mut kept = vec![latest.record.id.clone()];
            kept.extend(self.needed(&all, latest).await?);
            self.rebuild(&key, session, |record| kept.contains(&record.id)).await?;
        }
        Ok(())
    }

    /// Ancestors that a checkpoint cannot do without: up to those with a snapshot of every channel of which it has a version,
    /// but no value, because it is rebuilt from writes.
    async fn needed(&self, all: &[Marked], latest: &Marked) -> Result<Vec<String>> {
        let values = self.values(&latest.record, latest.at).await?;
        let metadata = values.get(crate::record::METADATA).map(|known| known.bytes.clone());
        let metadata: Option<Value> = metadata.and_then(|bytes| serde_json::from_slice(&bytes).ok());
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
        for (key, session) in self.sessions(Some(from), None).await? {
            let target = ThreadKey::new(to, key.namespace.clone());
            let source = self.load(session).await?;
            let mut marks = self.all_marks(session).await?;
            marks.sort_by(|a, b| a.record.id.cmp(&b.record.id));
            for marked in marks {
                let found = self.materialise(&key, &source, &marked).await?;
                self.put(&target, &checkpoint_of(&found)).await?;
                for writes in writes_of(&found) {
                    self.put_writes(&target, &writes).await?;
                }
            }
        }
        Ok(())
    }

    async fn materialise(&self, key: &ThreadKey, view: &View, marked: &Marked) -> Result<Found> {
        let values = self.values(&marked.record, marked.at).await?;
        self.found_for_copy(key, view, marked, values).await
    }

    /// Puts a session with only some of the checkpoints in the place of a thread's. The caller has the thread's place.
    pub(crate) async fn rebuild(
        &self,
        key: &ThreadKey,
        session: SessionId,
        keep: impl Fn(&Record) -> bool,
    ) -> Result<()> {
        let Some(record) = self.store.record(THREAD_RECORD, &key.name()).await? else { return Ok(()) };
        let mut marks = self.all_marks(session).await?;
        marks.retain(|marked| keep(&marked.record));
        if marks.is_empty() {
            self.store.delete_record(THREAD_RECORD, &key.name(), record.version).await?;
            return self.remove(session).await;
        }
        marks.sort_by(|a, b| a.record.id.cmp(&b.record.id));
        let source = self.load(session).await?;
        let patch = key.patch().with(BUILDING, Value::Bool(true));
        let writer = self.store.create_shared(NewSession { id: None, patch }).await?;
        let new = writer.id();
        // Under a name that nobody else uses, until it is whole.
        let building = Saver::new(self.store.clone());
        let hidden = ThreadKey::new(format!("{}\0{new}", key.thread), key.namespace.clone());
        let view = building.view(writer).await?;
        *building.slot(&hidden).await = Some(view);
        for marked in marks {
            let found = self.materialise(key, &source, &marked).await?;
            building.put(&hidden, &checkpoint_of(&found)).await?;
            for writes in writes_of(&found) {
                building.put_writes(&hidden, &writes).await?;
            }
        }
        self.store
            .put_record(THREAD_RECORD, &key.name(), Some(record.version), None, new.to_string().as_bytes())
            .await?;
        let patch = SessionPatch::new().with(BUILDING, Value::Null);
        self.store.join(new).await?.append(Append::new().patch(patch)).await?;
        self.remove(session).await
    }
}

fn checkpoint_of(found: &Found) -> NewCheckpoint {
    let value = |value: &FoundValue| match value {
        FoundValue::List(items) => NewValue::List(items.iter().map(|item| Part::New(item.to_vec())).collect()),
        FoundValue::Typed(word, bytes) => NewValue::Typed(word.clone(), bytes.clone()),
    };
    NewCheckpoint {
        id: found.id.clone(),
        parent: found.parent.clone(),
        skeleton: found.skeleton.clone(),
        metadata: found.metadata.clone(),
        values: found.values.iter().map(|(name, kept)| (name.clone(), value(kept))).collect(),
    }
}

fn writes_of(found: &Found) -> Vec<NewWrites> {
    let mut all: Vec<NewWrites> = Vec::new();
    for write in &found.writes {
        let new = NewWrite {
            index: write.index,
            channel: write.channel.clone(),
            word: write.word.clone(),
            bytes: write.bytes.clone(),
        };
        match all.iter_mut().find(|writes| writes.task == write.task && writes.path == write.path) {
            Some(writes) => writes.writes.push(new),
            None => all.push(NewWrites {
                checkpoint: found.id.clone(),
                task: write.task.clone(),
                path: write.path.clone(),
                replace: false,
                writes: vec![new],
            }),
        }
    }
    all
}
