//! Keeping house: deleting, pruning and copying threads, as LangGraph asks for it.

use std::collections::{BTreeSet, HashMap};

use milepost_model::delta::{PathPart, StatePath};
use milepost_model::{Body, Checkpoint, Position, Seq, Session, SessionId, SessionPatch, State};
use milepost_store::backend::Kinds;
use milepost_store::{
    Append, Claim, DeleteMode, Error, NewMark, NewSession, Receipt, Redactor, Result, SessionWriter, is_own_event,
};
use serde_json::Value;

use crate::msgpack;
use crate::read::{Found, FoundValue, FoundWrite, Marked, read_metadata, record_of};
use crate::redact::{clean, clean_writes};
use crate::thread::{BUILDING, LEFT, Saver, THREAD_RECORD, ThreadKey, View, with_strays};
use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites, Part, WRITES};

const HOLDER: &str = "LangGraph's adapter";
/// How often a thread is pruned again when others write to it meanwhile.
const TRIES: usize = 16;
/// How often a session is flagged again when others write to it at the same moment.
const FLAG_TRIES: usize = 256;

fn claim() -> Claim {
    Claim::new(HOLDER).take_over()
}

/// What a thread is written anew for.
#[derive(Default)]
pub(crate) struct Change<'a> {
    /// Checkpoints that go.
    pub gone: BTreeSet<String>,
    /// One that takes the place of another with its id.
    pub instead: Option<&'a NewCheckpoint>,
    /// What is taken out of all that stay.
    pub redactor: Option<&'a Redactor>,
}

impl<'a> Change<'a> {
    pub fn without(gone: BTreeSet<String>) -> Self {
        Self { gone, ..Self::default() }
    }

    /// What stays, in its order.
    fn stay(&self, mut marks: Vec<Marked>) -> Vec<Marked> {
        marks.retain(|marked| !self.gone.contains(&marked.record.id));
        marks.sort_by(|a, b| a.record.id.cmp(&b.record.id));
        marks
    }
}

impl Saver {
    /// Deletes every checkpoint and write of a thread, in all namespaces.
    pub async fn delete_thread(&self, thread: &str) -> Result<()> {
        for (key, session) in self.sessions(Some(thread), None).await? {
            self.delete(&key, session).await?;
        }
        self.sweep(thread).await
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
            let mut gone = BTreeSet::new();
            for marked in self.all_marks(session).await? {
                if self.run_of(&marked).await?.is_some_and(|run| runs.contains(&run)) {
                    gone.insert(marked.record.id);
                }
            }
            if !gone.is_empty() {
                let mut slot = self.slot(&key).await;
                *slot = None;
                Box::pin(self.rebuild(&key, session, &Change::without(gone))).await?;
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
                Box::pin(self.rebuild(&key, session, &Change::without(gone))).await?;
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
            let there = ids(&marks);
            for marked in marks {
                let found = self.materialise(&key, &source, &marked).await?;
                self.put(&target, &checkpoint_of(&found)).await?;
                for writes in writes_of(&found.id, &found.writes, &[]) {
                    self.put_writes(&target, &writes).await?;
                }
            }
            for (id, writes) in self.waiting(&source, &there, Seq(0)).await? {
                for writes in writes_of(&id, &writes, &[]) {
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

    /// The same as it is to be from now on.
    async fn changed(&self, key: &ThreadKey, view: &View, marked: &Marked, change: &Change<'_>) -> Result<Found> {
        let mut found = self.materialise(key, view, marked).await?;
        if let Some(redactor) = change.redactor {
            let what = || format!("thread {:?}", key.thread);
            clean(&mut found, redactor).map_err(|why| Error::Invalid { what: what(), why })?;
        }
        Ok(found)
    }

    /// Puts a session with something changed in the place of a thread's. The caller has the thread's place.
    ///
    /// Others may write meanwhile: what they add before the old session is flagged makes this begin anew, and what they add to it
    /// after that, because they do not know yet, is brought over before it goes.
    pub(crate) async fn rebuild(&self, key: &ThreadKey, session: SessionId, change: &Change<'_>) -> Result<()> {
        self.sweep(&key.thread).await?;
        for _ in 0..TRIES {
            let Some(record) = self.store.record(THREAD_RECORD, &key.name()).await? else { return Ok(()) };
            let source = self.load(session).await?;
            let all = self.all_marks(session).await?;
            let there = ids(&all);
            let marks = change.stay(all);
            let new =
                if marks.is_empty() { None } else { Some(self.build(key, &source, marks, &there, change).await?) };
            match self.replace(key, &source, record.version, new.as_ref()).await {
                Ok(()) => {}
                Err(error) => {
                    if let Some(new) = new {
                        self.remove(new.id()).await?;
                    }
                    match error {
                        Error::Conflict(_) => continue,
                        error => return Err(error),
                    }
                }
            }
            if let Some(new) = new {
                show(new).await?;
            }
            return self.leave(key, session, source.length + 1, change).await;
        }
        Err(Error::Busy { what: format!("pruning thread {:?}", key.thread), waited_ms: 0 })
    }

    /// Makes a session a thread's in the place of another, if nobody added to that one since it was read.
    async fn replace(&self, key: &ThreadKey, old: &View, version: u64, new: Option<&SessionWriter>) -> Result<()> {
        let flagged = Append::new().after(old.timeline, old.length).patch(flag(BUILDING, Value::Bool(true)));
        old.writer.append(flagged).await?;
        match new {
            Some(new) => {
                let id = new.id().to_string();
                self.store.put_record(THREAD_RECORD, &key.name(), Some(version), None, id.as_bytes()).await?;
                Ok(())
            }
            None => self.store.delete_record(THREAD_RECORD, &key.name(), version).await,
        }
    }

    /// A session with these checkpoints, still hidden and held by whoever made it.
    async fn build(
        &self,
        key: &ThreadKey,
        source: &View,
        marks: Vec<Marked>,
        there: &BTreeSet<String>,
        change: &Change<'_>,
    ) -> Result<SessionWriter> {
        let mut patch = patch_of(&source.writer.session().await, key);
        if let Some(redactor) = change.redactor {
            // By the others the thread is found.
            let own = ["langgraph", "task", "stage"];
            for (_, value) in patch.0.iter_mut().filter(|(name, _)| !own.contains(&name.as_str())) {
                redactor.clean_value(value);
            }
        }
        let patch = patch.with(BUILDING, Value::Bool(true));
        let writer = self.store.create(NewSession { id: None, patch }, &Claim::new(HOLDER)).await?;
        let id = writer.id();
        // Under a name that nobody else uses, until it is whole.
        let building = Saver::new(self.store.clone());
        let hidden = ThreadKey::new(format!("{}\0{id}", key.thread), key.namespace.clone());
        let view = building.view(writer).await?;
        *building.slot(&hidden).await = Some(view);
        let outcome = async {
            let steps = self.steps(source, Seq(0), change.redactor).await?;
            let checkpoints = steps.iter().enumerate().filter_map(|(place, step)| match step {
                Step::Checkpoint(id) => Some((id.clone(), place)),
                _ => None,
            });
            let places: HashMap<String, usize> = checkpoints.collect();
            let mut steps = steps.into_iter().enumerate().peekable();
            for marked in marks {
                let until = places.get(&marked.record.id).copied().unwrap_or(0);
                while let Some((_, step)) = steps.next_if(|(place, _)| *place < until) {
                    building.add(&hidden, step).await?;
                }
                let found = self.changed(key, source, &marked, change).await?;
                match change.instead.filter(|new| new.id == found.id) {
                    Some(new) => building.put(&hidden, new).await?,
                    None => building.put(&hidden, &checkpoint_of(&found)).await?,
                };
                for writes in writes_of(&found.id, &found.writes, &[]) {
                    building.put_writes(&hidden, &writes).await?;
                }
            }
            for (_, step) in steps {
                building.add(&hidden, step).await?;
            }
            self.bring_waiting((key, source), there, Seq(0), change, (&building, &hidden)).await
        };
        let outcome = Box::pin(outcome).await;
        let view = building.slot(&hidden).await.take();
        match (outcome, view) {
            (Ok(()), Some(view)) => Ok(view.writer),
            (outcome, view) => {
                drop(view);
                self.remove(id).await?;
                Err(outcome.err().unwrap_or_else(|| Error::NotFound { what: "session", id: id.to_string() }))
            }
        }
    }

    /// Brings over what was written for checkpoints that are still to come: they may come at any moment.
    async fn bring_waiting(
        &self,
        (key, source): (&ThreadKey, &View),
        there: &BTreeSet<String>,
        from: Seq,
        change: &Change<'_>,
        (to, name): (&Saver, &ThreadKey),
    ) -> Result<()> {
        for (id, mut writes) in self.waiting(source, there, from).await? {
            if let Some(redactor) = change.redactor {
                let what = || format!("thread {:?}", key.thread);
                clean_writes(&mut writes, redactor).map_err(|why| Error::Invalid { what: what(), why })?;
            }
            for writes in writes_of(&id, &writes, &[]) {
                to.put_writes(name, &writes).await?;
            }
        }
        Ok(())
    }

    /// Leaves a session that is no longer a thread's: what others added to it, while they did not know, is brought over.
    async fn leave(&self, key: &ThreadKey, session: SessionId, length: u64, change: &Change<'_>) -> Result<()> {
        let old = self.store.join(session).await?;
        // From here on whoever has an older view of it is refused, and finds the new one.
        let left = set_flag(&old, LEFT, Value::Bool(true)).await?;
        if left.first.seq.0 != length {
            let source = self.view(old).await?;
            // The thread's own place is the caller's.
            let other = Saver::new(self.store.clone());
            let there = other.checkpoint_ids(key).await?;
            for marked in change.stay(self.all_marks(session).await?) {
                let found = self.changed(key, &source, &marked, change).await?;
                if !there.contains(&found.id) {
                    other.put(key, &checkpoint_of(&found)).await?;
                }
                let known = other.get(key, Some(&found.id)).await?.map(|found| found.writes).unwrap_or_default();
                for writes in writes_of(&found.id, &found.writes, &known) {
                    other.put_writes(key, &writes).await?;
                }
            }
            for step in self.steps(&source, Seq(length), change.redactor).await? {
                other.add(key, step).await?;
            }
            let there = ids(&self.all_marks(session).await?);
            self.bring_waiting((key, &source), &there, Seq(length), change, (&other, key)).await?;
        }
        self.remove(session).await
    }

    /// What lies on the way to a session's head from an entry on: LangGraph's checkpoints, and what people added themselves.
    async fn steps(&self, source: &View, from: Seq, redactor: Option<&Redactor>) -> Result<Vec<Step>> {
        let Some(last) = source.length.checked_sub(1) else { return Ok(Vec::new()) };
        let end = Position { timeline: source.timeline, seq: Seq(last) };
        let mut steps = Vec::new();
        for entry in self.store.entries_at(end, from, Kinds::ALL).await? {
            match entry.body {
                Some(Body::Message(mut message)) if !message.extra.contains_key(msgpack::FIELD) => {
                    let _found = redactor.is_some_and(|redactor| redactor.message(&mut message));
                    steps.push(Step::Added(Append::new().message(message)));
                }
                Some(Body::Event(mut event)) if event.kind != WRITES && !is_own_event(&event) => {
                    let _found = redactor.is_some_and(|redactor| redactor.event(&mut event));
                    steps.push(Step::Added(Append::new().event(event)));
                }
                Some(Body::State(delta)) if delta.changes().any(|(path, _)| !is_own_path(&path)) => {
                    let mut state = self.store.state_at(entry.at).await?.into_value();
                    let _found = redactor.is_some_and(|redactor| redactor.clean_value(&mut state));
                    steps.push(Step::State(state));
                }
                Some(Body::Mark(mark)) => steps.push(match record_of(&mark)? {
                    Some(record) => Step::Checkpoint(record.id),
                    None => Step::Added(Append::new().mark(mark_of(mark, redactor))),
                }),
                _ => {}
            }
        }
        Ok(steps)
    }

    /// Adds to a thread's session what people had added to the one before.
    async fn add(&self, key: &ThreadKey, step: Step) -> Result<()> {
        let mut slot = self.slot(key).await;
        let view = match slot.take() {
            Some(view) => view,
            None => match self.resolve(key).await? {
                Some(session) => self.load(session).await?,
                None => return Ok(()),
            },
        };
        let append = match step {
            Step::Checkpoint(_) => None,
            Step::Added(append) => Some(append),
            Step::State(state) => Some(Append::new().state(with_strays(State::try_from(state)?, &view.strays)?)),
        };
        *slot = Some(match append {
            Some(append) => {
                view.writer.append(append).await?;
                self.view(view.writer).await?
            }
            None => view,
        });
        Ok(())
    }

    /// Removes what a process that was killed left of a thread's sessions: those that the record does not name.
    pub(crate) async fn sweep(&self, thread: &str) -> Result<()> {
        for session in self.leftovers(thread).await? {
            match self.store.delete(session, DeleteMode::KeepBranches, &Claim::new(HOLDER), false).await {
                // Whoever makes it is still at work.
                Ok(_) | Err(Error::NotFound { .. } | Error::Held { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn ids(marks: &[Marked]) -> BTreeSet<String> {
    marks.iter().map(|marked| marked.record.id.clone()).collect()
}

/// Something on the way to a session's head.
enum Step {
    /// One of LangGraph's checkpoints, by its id.
    Checkpoint(String),
    /// Of people's own.
    Added(Append),
    /// The state after they changed it.
    State(Value),
}

/// Whether the adapter keeps something there.
fn is_own_path(path: &StatePath) -> bool {
    matches!(path.parts().first(), Some(PathPart::Key(section)) if section == "langgraph")
}

/// The same checkpoint once more, of what is there by then.
fn mark_of(mark: Checkpoint, redactor: Option<&Redactor>) -> NewMark {
    let (label, description, mut extra) = (mark.label, mark.description, Value::Object(mark.extra));
    let clean = |text: String| redactor.and_then(|redactor| redactor.clean(&text)).unwrap_or(text);
    let _found = redactor.is_some_and(|redactor| redactor.clean_value(&mut extra));
    NewMark {
        id: None,
        trigger: mark.trigger,
        label: label.map(clean),
        description: description.map(clean),
        clean: mark.clean,
        resumable: mark.resumable,
        extra: extra.as_object().cloned().unwrap_or_default(),
    }
}

/// Shows a session that was made a thread's. Others know it already, and may write to it.
async fn show(new: SessionWriter) -> Result<()> {
    set_flag(&new, BUILDING, Value::Null).await?;
    new.release().await
}

/// Flags a session that others write to meanwhile.
async fn set_flag(writer: &SessionWriter, name: &str, value: Value) -> Result<Receipt> {
    let mut tries = 0;
    loop {
        match writer.append(Append::new().patch(flag(name, value.clone()))).await {
            Err(Error::Conflict(_)) if tries < FLAG_TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

fn flag(name: &str, value: Value) -> SessionPatch {
    SessionPatch::new().with(name, value)
}

/// What a list shows of a thread's session stays what it was, whoever set it.
fn patch_of(old: &Session, key: &ThreadKey) -> SessionPatch {
    let mut patch = key.patch();
    patch.0.extend(old.extra.clone());
    for (name, text) in [("title", &old.title), ("project", &old.project), ("feature", &old.feature)] {
        if let Some(text) = text {
            patch = patch.with(name, Value::String(text.clone()));
        }
    }
    if let Some(time) = old.trashed {
        patch = patch.with("trashed", time.unix_ms().into());
    }
    patch.status(old.status).tags(old.tags.iter().map(String::as_str))
}

fn checkpoint_of(found: &Found) -> NewCheckpoint {
    let value = |value: &FoundValue| match value {
        FoundValue::List(items) => NewValue::List(items.iter().map(|item| Part::New(item.to_vec())).collect()),
        FoundValue::Typed(word, bytes) => NewValue::Typed(word.clone(), bytes.clone()),
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

/// A checkpoint's writes, without those that are known.
fn writes_of(id: &str, writes: &[FoundWrite], known: &[FoundWrite]) -> Vec<NewWrites> {
    let mut all: Vec<NewWrites> = Vec::new();
    let is_known =
        |write: &&FoundWrite| known.iter().any(|known| known.task == write.task && known.index == write.index);
    for write in writes.iter().filter(|write| !is_known(write)) {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use milepost_model::{
        Body, Event, ManualClock, Message, Position, Role, Seq, SessionPatch, Source, State, Timestamp, Trigger,
    };
    use milepost_store::backend::Kinds;
    use milepost_store::{Append, Claim, NewMark, NewSession, Options, Redactor, SessionQuery, Store};
    use serde_json::json;

    use super::Change;
    use crate::read::Listing;
    use crate::thread::{Saver, ThreadKey};
    use crate::write::{NewCheckpoint, NewValue, NewWrite, NewWrites};

    struct Scene {
        clock: Arc<ManualClock>,
        saver: Saver,
        key: ThreadKey,
    }

    impl Scene {
        async fn new() -> Self {
            let clock = Arc::new(ManualClock::new(Timestamp(1_000_000)));
            let mut options = Options::default();
            options.source = Some(Source::seeded(1, Arc::clone(&clock)));
            let store = Store::open("memory:", options).await.unwrap();
            Self { clock, saver: Saver::new(store), key: ThreadKey::new("t", "") }
        }

        async fn put(&self, saver: &Saver, id: &str, parent: Option<&str>) {
            let new = NewCheckpoint {
                id: id.to_owned(),
                parent: parent.map(str::to_owned),
                compared: None,
                skeleton: ("msgpack".to_owned(), b"\x80".to_vec()),
                metadata: b"{}".to_vec(),
                values: vec![("a".to_owned(), NewValue::Typed("msgpack".to_owned(), id.as_bytes().to_vec()))],
            };
            saver.put(&self.key, &new).await.unwrap();
        }

        async fn write(&self, saver: &Saver, checkpoint: &str, task: &str) {
            let write =
                NewWrite { index: 0, channel: "a".to_owned(), word: "msgpack".to_owned(), bytes: b"\x01".to_vec() };
            let (checkpoint, task) = (checkpoint.to_owned(), task.to_owned());
            let new = NewWrites { checkpoint, task, path: String::new(), replace: false, writes: vec![write] };
            saver.put_writes(&self.key, &new).await.unwrap();
        }

        async fn sessions(&self) -> usize {
            self.saver.store.sessions(&SessionQuery::default()).await.unwrap().sessions.len()
        }
    }

    fn only(id: &str) -> BTreeSet<String> {
        BTreeSet::from([id.to_owned()])
    }

    #[tokio::test]
    async fn what_a_killed_prune_left_goes_with_the_next_one() {
        let scene = Scene::new().await;
        for (id, parent) in [("1", None), ("2", Some("1")), ("3", Some("2"))] {
            scene.put(&scene.saver, id, parent).await;
        }
        let session = scene.saver.resolve(&scene.key).await.unwrap().unwrap();
        let source = scene.saver.load(session).await.unwrap();
        let marks = scene.saver.all_marks(session).await.unwrap();
        // Whoever makes it may still be at work: it is left alone, but not shown.
        drop(scene.saver.build(&scene.key, &source, marks, &BTreeSet::new(), &Change::default()).await.unwrap());
        Box::pin(scene.saver.rebuild(&scene.key, session, &Change::without(only("1")))).await.unwrap();
        assert_eq!(scene.sessions().await, 2);
        assert_eq!(scene.saver.sessions(Some("t"), None).await.unwrap().len(), 1);
        scene.clock.advance_ms(60_000);
        scene.saver.keep_latest("t").await.unwrap();
        assert_eq!(scene.sessions().await, 1);
        assert_eq!(scene.saver.checkpoint_ids(&scene.key).await.unwrap(), only("3"));
    }

    #[tokio::test]
    async fn what_people_made_of_a_thread_is_theirs() {
        let scene = Scene::new().await;
        let (saver, store) = (&scene.saver, &scene.saver.store);
        for (id, parent) in [("1", None), ("2", Some("1"))] {
            scene.put(saver, id, parent).await;
        }
        let session = saver.resolve(&scene.key).await.unwrap().unwrap();
        let at = saver.all_marks(session).await.unwrap()[0].at;
        let branch = async || {
            let writer = store.branch(at, NewSession::default(), &Claim::new("a person")).await.unwrap();
            let id = writer.id();
            writer.release().await.unwrap();
            id
        };
        let mut own = vec![branch().await];
        // As one that came from elsewhere.
        let copy = NewSession { id: None, patch: scene.key.patch() };
        own.push(store.create(copy, &Claim::new("a person")).await.unwrap().id());
        saver.keep_latest("t").await.unwrap();
        // The beginning of the first is hidden now, and was left by the thread.
        own.push(branch().await);
        scene.clock.advance_ms(60_000);
        saver.keep_latest("t").await.unwrap();
        let listing = Listing { thread: Some("t".into()), ..Listing::default() };
        assert_eq!(saver.list(&listing).await.unwrap().len(), 1);
        saver.delete_for_runs(&["none".to_owned()]).await.unwrap();
        saver.delete_thread("t").await.unwrap();
        assert!(saver.get(&scene.key, None).await.unwrap().is_none());
        for id in own {
            assert!(store.session(id).await.is_ok(), "it went with the thread");
        }
    }

    #[tokio::test]
    async fn what_people_add_to_a_thread_stays_in_it() {
        let scene = Scene::new().await;
        let (saver, store) = (&scene.saver, &scene.saver.store);
        let people = async || store.join(saver.session(&scene.key).await.unwrap().unwrap()).await.unwrap();
        let say = |text: &str| Append::new().message(Message::new(Role::User, text));
        scene.put(saver, "1", None).await;
        people().await.append(say("a hunter2 note")).await.unwrap();
        let state = State::try_from(json!({ "plan": { "for": "hunter2" } })).unwrap();
        people().await.append(Append::new().state(state)).await.unwrap();
        scene.put(saver, "2", Some("1")).await;
        // Not the newest any more: where it lies is kept in the state.
        scene.write(saver, "1", "stray").await;
        let mark = NewMark::new(Trigger::Manual).label("before hunter2");
        let event = Event::new("seen", json!({ "by": "hunter2" }));
        people().await.append(Append::new().mark(mark).event(event)).await.unwrap();
        scene.put(saver, "3", Some("2")).await;
        people().await.append(say("the end")).await.unwrap();

        let what = async || {
            let writer = people().await;
            let (timeline, length) = writer.head().await;
            let at = Position { timeline, seq: Seq(length - 1) };
            let mut found = Vec::new();
            for entry in store.entries_at(at, Seq(0), Kinds::ALL).await.unwrap() {
                match entry.body.unwrap() {
                    Body::Message(message) => found.push(message.text().into_owned()),
                    Body::Event(event) if event.kind == "seen" => found.push(event.data["by"].to_string()),
                    Body::Mark(mark) => found.push(mark.label.unwrap()),
                    _ => {}
                }
            }
            let mut state = writer.state().await.unwrap().into_value();
            state.as_object_mut().unwrap().remove("langgraph");
            (found, state)
        };
        let all = ["1", "a hunter2 note", "2", "before hunter2", "\"hunter2\"", "3", "the end"];
        assert_eq!(what().await.0, all);
        let redactor = Redactor::literal("hunter2", "***").unwrap();
        let change = Change { redactor: Some(&redactor), ..Change::default() };
        let session = saver.session(&scene.key).await.unwrap().unwrap();
        Box::pin(saver.rebuild(&scene.key, session, &change)).await.unwrap();
        let clean = ["1", "a *** note", "2", "before ***", "\"***\"", "3", "the end"];
        assert_eq!(what().await, (clean.map(str::to_owned).to_vec(), json!({ "plan": { "for": "***" } })));
        assert_eq!(saver.get(&scene.key, Some("1")).await.unwrap().unwrap().writes.len(), 1);
        saver.keep_latest("t").await.unwrap();
        let kept = ["a *** note", "before ***", "\"***\"", "3", "the end"];
        assert_eq!(what().await, (kept.map(str::to_owned).to_vec(), json!({ "plan": { "for": "***" } })));
        scene.put(saver, "4", Some("3")).await;
        assert_eq!(saver.get(&scene.key, None).await.unwrap().unwrap().parent.as_deref(), Some("3"));
        assert!(store.verify().await.unwrap().problems.is_empty());
    }

    #[tokio::test]
    async fn what_is_written_before_its_checkpoint_waits_for_it() {
        let again = async |scene: &Scene| scene.put(&scene.saver, "2", Some("1")).await;
        let prune = async |scene: &Scene| scene.saver.keep_latest("t").await.unwrap();
        let redact = async |scene: &Scene| {
            let redactor = Redactor::literal("\u{1}", "x").unwrap();
            let change = Change { redactor: Some(&redactor), ..Change::default() };
            let session = scene.saver.session(&scene.key).await.unwrap().unwrap();
            Box::pin(scene.saver.rebuild(&scene.key, session, &change)).await.unwrap();
        };
        let copy = async |scene: &Scene| scene.saver.copy_thread("t", "copy").await.unwrap();
        for what in 0..4 {
            let mut scene = Scene::new().await;
            scene.put(&scene.saver, "1", None).await;
            scene.put(&scene.saver, "2", Some("1")).await;
            scene.write(&scene.saver, "3", "early").await;
            match what {
                0 => again(&scene).await,
                1 => prune(&scene).await,
                2 => redact(&scene).await,
                _ => {
                    copy(&scene).await;
                    scene.key = ThreadKey::new("copy", "");
                }
            }
            scene.put(&scene.saver, "3", Some("2")).await;
            for saver in [&scene.saver, &Saver::new(scene.saver.store.clone())] {
                let found = saver.get(&scene.key, Some("3")).await.unwrap().unwrap();
                assert_eq!(found.writes.len(), 1, "{what}");
            }
        }
    }

    #[tokio::test]
    async fn a_thread_goes_wherever_somebody_put_it() {
        for what in 0..3 {
            let scene = Scene::new().await;
            let (saver, store) = (&scene.saver, &scene.saver.store);
            for (id, parent) in [("1", None), ("2", Some("1"))] {
                scene.put(saver, id, parent).await;
            }
            let session = saver.session(&scene.key).await.unwrap().unwrap();
            let patch = [SessionPatch::new().agent("mine"), SessionPatch::new().task("mine")];
            match patch.into_iter().nth(what) {
                Some(patch) => {
                    drop(store.join(session).await.unwrap().append(Append::new().patch(patch)).await.unwrap());
                }
                None => store.trash(session, &Claim::new("a person").take_over()).await.unwrap(),
            }
            for thread in [Some("t".to_owned()), None] {
                let listing = Listing { thread, ..Listing::default() };
                assert_eq!(saver.list(&listing).await.unwrap().len(), 2, "{what}");
            }
            saver.keep_latest("t").await.unwrap();
            assert_eq!(saver.checkpoint_ids(&scene.key).await.unwrap(), only("2"), "{what}");
            let session = saver.session(&scene.key).await.unwrap().unwrap();
            assert_eq!(store.session(session).await.unwrap().trashed.is_some(), what == 2);
            saver.delete_thread("t").await.unwrap();
            assert!(saver.get(&scene.key, None).await.unwrap().is_none(), "{what}");
        }
    }

    #[tokio::test]
    async fn what_comes_while_a_thread_is_pruned_is_brought_over() {
        let scene = Scene::new().await;
        for (id, parent) in [("1", None), ("2", Some("1"))] {
            scene.put(&scene.saver, id, parent).await;
        }
        let session = scene.saver.resolve(&scene.key).await.unwrap().unwrap();
        let record = scene.saver.store.record(super::THREAD_RECORD, &scene.key.name()).await.unwrap().unwrap();
        let source = scene.saver.load(session).await.unwrap();
        let mut marks = scene.saver.all_marks(session).await.unwrap();
        marks.retain(|marked| marked.record.id == "2");
        let new = scene.saver.build(&scene.key, &source, marks, &BTreeSet::new(), &Change::default()).await.unwrap();
        // Another process wrote since the thread was read: it must be read again.
        let other = Saver::new(scene.saver.store.clone());
        scene.write(&other, "2", "early").await;
        let refused = scene.saver.replace(&scene.key, &source, record.version, Some(&new)).await;
        assert!(matches!(refused, Err(milepost_store::Error::Conflict(_))), "{refused:?}");

        let source = scene.saver.load(session).await.unwrap();
        let mut marks = scene.saver.all_marks(session).await.unwrap();
        marks.retain(|marked| marked.record.id == "2");
        let new = scene.saver.build(&scene.key, &source, marks, &BTreeSet::new(), &Change::default()).await.unwrap();
        scene.saver.replace(&scene.key, &source, record.version, Some(&new)).await.unwrap();
        // One that knows the old session, and does not know yet that it is left.
        let late = Saver::new(scene.saver.store.clone());
        *late.slot(&scene.key).await = Some(late.load(session).await.unwrap());
        scene.write(&late, "2", "late").await;
        scene.put(&late, "3", Some("2")).await;
        // And one that finds the new one before it is shown.
        let quick = Saver::new(scene.saver.store.clone());
        scene.write(&quick, "2", "quick").await;
        super::show(new).await.unwrap();
        scene.saver.leave(&scene.key, session, source.length + 1, &Change::without(only("1"))).await.unwrap();
        for saver in [Saver::new(scene.saver.store.clone()), late] {
            let found = saver.get(&scene.key, None).await.unwrap().unwrap();
            assert_eq!((found.id.as_str(), found.parent.as_deref()), ("3", Some("2")));
            let found = saver.get(&scene.key, Some("2")).await.unwrap().unwrap();
            let tasks: Vec<&str> = found.writes.iter().map(|write| write.task.as_str()).collect();
            assert_eq!(tasks, ["early", "late", "quick"]);
            assert!(saver.get(&scene.key, Some("1")).await.unwrap().is_none());
            // And it goes on in the new one.
            scene.write(&saver, "3", "more").await;
            assert_ne!(saver.resolve(&scene.key).await.unwrap(), Some(session));
        }
    }
}
