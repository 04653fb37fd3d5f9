//! One of the stores under test, its clock and its writers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use milepost_model::{Event, ManualClock, Message, Position, Role, Seq, SessionId, Source};
use milepost_store::memory::MemoryBackend;
use milepost_store::object::{ObjectBackend, ObjectOptions};
use milepost_store::postgres::{LeaseClock, PostgresBackend, PostgresOptions};
use milepost_store::sqlite::{SqliteBackend, SqliteOptions};
use milepost_store::{
    Append, Backend, Claim, Error, NewSession, Options, Receipt, Redactor, Result, SessionQuery, SessionWriter, Store,
};
use serde_json::json;

use super::calls::{Answer, Call, build};
use super::ops::noise;
use crate::support::START;

type OpenBackend = dyn Fn(&Source) -> Arc<dyn Backend>;

/// One of the stores under test.
pub struct Side {
    pub name: &'static str,
    pub clock: Arc<ManualClock>,
    pub source: Source,
    pub open: Box<OpenBackend>,
    pub store: Store,
    pub writers: HashMap<SessionId, SessionWriter>,
}

pub fn claim() -> Claim {
    Claim::new("a writer")
}

impl Side {
    async fn new(name: &'static str, seed: u64, open: Box<OpenBackend>) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let source = Source::seeded(seed, Arc::clone(&clock));
        let store = connect(open(&source), &source).await;
        Self { name, clock, source, open, store, writers: HashMap::new() }
    }

    pub async fn memory(seed: u64) -> Self {
        let first = std::sync::OnceLock::new();
        let open = move |source: &Source| -> Arc<dyn Backend> {
            Arc::new(first.get_or_init(|| MemoryBackend::new(source.clone())).clone())
        };
        Self::new("memory", seed, Box::new(open)).await
    }

    pub async fn sqlite(seed: u64, dir: &Path) -> Self {
        let path = dir.join("milepost.db");
        let open = move |source: &Source| -> Arc<dyn Backend> {
            Arc::new(SqliteBackend::open(&path, &SqliteOptions::default(), source.clone()).unwrap())
        };
        Self::new("sqlite", seed, Box::new(open)).await
    }

    pub async fn object(seed: u64) -> Self {
        let bucket = ObjectBackend::in_memory();
        let open = move |source: &Source| -> Arc<dyn Backend> {
            let options = ObjectOptions::default();
            Arc::new(ObjectBackend::new(Arc::clone(&bucket), "", options, source.clone()).unwrap())
        };
        Self::new("object", seed, Box::new(open)).await
    }

    pub async fn s3(seed: u64, url: String) -> Self {
        let open = move |source: &Source| -> Arc<dyn Backend> {
            Arc::new(ObjectBackend::open(&url, ObjectOptions::default(), source.clone()).unwrap())
        };
        Self::new("s3", seed, Box::new(open)).await
    }

    /// With payloads in a bucket, when one is named.
    pub async fn postgres(seed: u64, url: String, bucket: Option<String>) -> Self {
        let name = if bucket.is_some() { "hybrid" } else { "postgres" };
        let open = move |source: &Source| -> Arc<dyn Backend> {
            let mut options = PostgresOptions::default();
            options.clock = LeaseClock::Source;
            options.connections = 2;
            options.blobs.clone_from(&bucket);
            options.blobs_above = 0;
            // Its work is done by a thread of its own: this one may wait.
            Arc::new(milepost_store::block_on(PostgresBackend::open(&url, &options, source.clone())).unwrap())
        };
        Self::new(name, seed, Box::new(open)).await
    }

    /// The session's writer; when another holds it, it is taken over.
    async fn writer(&mut self, id: SessionId) -> Result<&SessionWriter> {
        if !self.writers.contains_key(&id) {
            let writer = match self.store.write(id, &claim()).await {
                Err(Error::Held { .. }) => self.store.write(id, &claim().take_over()).await?,
                other => other?,
            };
            self.writers.insert(id, writer);
        }
        Ok(&self.writers[&id])
    }

    pub async fn run(&mut self, call: &Call) -> Result<Answer> {
        let began = async |writer: &SessionWriter, at: u64| {
            let first = Position { timeline: writer.session().await.head, seq: Seq(at) };
            Answer::Began(writer.id(), first)
        };
        Ok(match call {
            Call::Create(patch) => {
                let new = NewSession { id: None, patch: patch.clone() };
                let writer = self.store.create(new, &claim()).await?;
                let answer = began(&writer, 0).await;
                self.writers.insert(writer.id(), writer);
                answer
            }
            Call::Branch(at, patch) => {
                let new = NewSession { id: None, patch: patch.clone() };
                let writer = self.store.branch(*at, new, &claim()).await?;
                let answer = began(&writer, at.seq.0 + 1).await;
                self.writers.insert(writer.id(), writer);
                answer
            }
            Call::Append(id, parts, batch) => {
                Answer::Stored(self.writer(*id).await?.append(build(parts, *batch)).await?)
            }
            Call::Together(id, appends) => {
                let writer = self.writer(*id).await?;
                let say = |outcome: Result<Receipt>| outcome.map_err(|error| error.to_string());
                let mut built = appends.iter().map(|(parts, batch)| writer.append(build(parts, *batch)));
                let (first, second, third) = (built.next().unwrap(), built.next().unwrap(), built.next());
                let third = async {
                    match third {
                        Some(append) => Some(append.await),
                        None => None,
                    }
                };
                let (first, second, third) = tokio::join!(first, second, third);
                Answer::Each([Some(first), Some(second), third].into_iter().flatten().map(say).collect())
            }
            Call::Patch(id, patch) => {
                Answer::Stored(self.writer(*id).await?.append(Append::new().patch(patch.clone())).await?)
            }
            Call::File(id, seed) => {
                let writer = self.writer(*id).await?;
                let bytes = noise(*seed, 3000).into_bytes();
                let blob = writer.put_blob(&bytes).await?;
                assert_eq!(writer.get_blob(blob).await?, bytes);
                let event = Event::new("file", json!({ "seed": seed }));
                Answer::Stored(writer.append(Append::new().event_with(event, vec![blob])).await?)
            }
            Call::Restore(id, at) => Answer::Stored(self.writer(*id).await?.restore(*at).await?),
            Call::Prune(id, keep) => {
                let preview = self.store.prune_preview(*id, keep).await?;
                let pruned = self.writer(*id).await?.prune(keep).await?;
                assert_eq!(pruned, preview.checkpoints, "what pruning did, and what its preview said");
                Answer::Pruned(pruned)
            }
            Call::TrashMark(id, mark) => self.writer(*id).await?.trash_mark(*mark).await.map(|()| Answer::Done)?,
            Call::UntrashMark(id, mark) => self.writer(*id).await?.untrash_mark(*mark).await.map(|()| Answer::Done)?,
            Call::Purge(id, before) => {
                let preview = self.store.purge_preview(*id, *before).await?;
                let purged = self.writer(*id).await?.purge(*before).await?;
                assert_eq!(purged, preview, "what purging did, and what its preview said");
                Answer::Purged(purged)
            }
            Call::Trash(id) => {
                self.writers.remove(id);
                self.store.trash(*id, &claim().take_over()).await.map(|()| Answer::Done)?
            }
            Call::Untrash(id) => {
                self.writers.remove(id);
                self.store.untrash(*id, &claim().take_over()).await.map(|()| Answer::Done)?
            }
            Call::Delete(id, mode) => {
                let claim = claim().take_over();
                let would = self.store.delete(*id, *mode, &claim, true).await?;
                let deleted = self.store.delete(*id, *mode, &claim, false).await?;
                assert_eq!(deleted, would, "what deleting did, and what its dry run said");
                self.writers.retain(|id, _| !deleted.sessions.contains(id) && !deleted.hidden.contains(id));
                Answer::Deleted(deleted)
            }
            Call::EmptyTrash(keep) => {
                self.writers.clear();
                let (purged, deleted) = self.store.empty_trash(keep, &claim().take_over(), false).await?;
                Answer::Emptied(purged, deleted)
            }
            Call::Collect => {
                let collected = self.store.collect(&claim().take_over(), false).await?;
                Answer::Collected(collected.sessions, collected.blobs)
            }
            Call::Reopen => {
                self.writers.clear();
                self.store.close().await?;
                assert!(matches!(self.store.sessions(&SessionQuery::default()).await, Err(Error::Closed)));
                self.store = connect((self.open)(&self.source), &self.source).await;
                Answer::Done
            }
            Call::Advance(ms) => {
                self.clock.advance_ms(*ms);
                Answer::Done
            }
            Call::TakeOver(id) => {
                let other = connect((self.open)(&self.source), &self.source).await;
                let second = Claim::new("a second process");
                let writer = match other.write(*id, &second).await {
                    Err(Error::Held { .. }) => other.write(*id, &second.take_over()).await?,
                    outcome => outcome?,
                };
                let before = self.writers.insert(*id, writer);
                let refused = match before {
                    Some(before) => Some(matches!(
                        before.append(Append::new().message(Message::new(Role::User, "late"))).await,
                        Err(Error::Fenced { ref holder, .. }) if holder == "a second process"
                    )),
                    None => None,
                };
                Answer::TakenOver(refused)
            }
            Call::Release(id) => match self.writers.remove(id) {
                Some(writer) => writer.release().await.map(|()| Answer::Done)?,
                None => Answer::Done,
            },
            Call::Redact(word) => {
                self.writers.clear();
                let redactor = Redactor::literal(*word, "[gone]")?;
                let done = self.store.redact(&redactor, "it leaked", &claim().take_over(), false).await?;
                Answer::Redacted(done.entries, done.checkpoints)
            }
            Call::Reindex => {
                self.writers.clear();
                self.store.reindex().await?;
                Answer::Done
            }
        })
    }
}

pub async fn connect(backend: Arc<dyn Backend>, source: &Source) -> Store {
    let mut options = Options::default();
    options.source = Some(source.clone());
    Store::with_backend(backend, options).await.unwrap()
}
