//! Writing a thread anew: another session takes the place of its own, with something changed.
//!
//! A log only grows: to prune a thread, or to take something out of its values, the session is built once more, step by step as
//! it came, under a name that nobody knows. Then the old one is flagged, if nobody added to it since it was read, and the thread's
//! record names the new one. Whoever loaded the old one in between adds to it still: that is brought over before it goes. Whoever
//! is killed half-way leaves sessions whose flags say what is left to do; the next one does it ([`Saver::sweep`]).

use std::collections::{BTreeMap, BTreeSet};

use milepost_model::{Position, Seq, Session, SessionId, SessionPatch, State, Timestamp};
use milepost_store::{Append, Claim, Error, NewSession, Receipt, Redactor, Result, SessionWriter};
use serde_json::{Value, json};

use crate::house::{HOLDER, checkpoint_of, writes_of};
use crate::read::{Found, FoundWrite, Leftover, Marked};
use crate::redact::{clean, clean_writes};
use crate::steps::{Added, Reached, Step};
use crate::thread::{BUILDING, Items, LEFT, Saver, THREAD_RECORD, ThreadKey, View, shown, with_strays};
use crate::write::NewCheckpoint;

/// How often a thread is built again when others write to it meanwhile, and how often something is added to one.
const TRIES: usize = 16;
/// How often a session is flagged again when others write to it at the same moment.
const FLAG_TRIES: usize = 256;
/// Whoever flagged a session longer ago than this, and did not finish, was killed.
pub(crate) const GIVEN_UP_MS: i64 = 60_000;

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

impl Change<'_> {
    pub fn without(gone: BTreeSet<String>) -> Self {
        Self { gone, ..Self::default() }
    }
}

/// A session that was read to be built once more.
pub(crate) struct Read {
    pub source: View,
    pub steps: Vec<(Position, Step)>,
    /// What was written for checkpoints that are still to come: they may come at any moment.
    pub waiting: Vec<(String, Vec<FoundWrite>)>,
}

impl Read {
    /// Whether anything of it stays.
    fn is_empty(&self, change: &Change<'_>) -> bool {
        let stays = |(_, step): &(Position, Step)| match step {
            Step::Checkpoint(marked) => !change.gone.contains(&marked.record.id),
            Step::Added(_) => true,
            Step::Back(_) | Step::Writes(..) => false,
        };
        self.waiting.is_empty() && !self.steps.iter().any(stays)
    }
}

/// What a flag says of a session that is a thread's no longer.
pub(crate) struct Leaving {
    /// What came later is to be brought over.
    pub reached: Reached,
    /// Since when.
    pub since: Timestamp,
}

impl Leaving {
    fn to_json(&self) -> Value {
        json!({ "reached": self.reached.to_json(), "since": self.since })
    }

    pub fn from_json(value: &Value) -> Option<Self> {
        let since = serde_json::from_value(value.get("since")?.clone()).ok()?;
        Some(Self { reached: Reached::from_json(value.get("reached")?)?, since })
    }
}

impl Saver {
    /// Puts a session with something changed in the place of a thread's. The caller has the thread's place.
    pub(crate) async fn rebuild(&self, key: &ThreadKey, change: &Change<'_>) -> Result<()> {
        self.sweep(Some(&key.thread), GIVEN_UP_MS).await?;
        for _ in 0..TRIES {
            let Some(named) = self.named(key).await? else { return Ok(()) };
            let read = match self.read_whole(named.session, change).await {
                Ok(Some(read)) => read,
                Ok(None) => continue,
                // It is not begun yet, or another took its place just now.
                Err(Error::NotFound { .. }) if self.resolve(key).await? == Some(named.session) => return Ok(()),
                Err(Error::NotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
            let new = if read.is_empty(change) { None } else { Some(self.build(key, &read, change).await?) };
            let reached = match self.replace(key, &read.source, named.version, new.as_ref()).await {
                Ok(reached) => reached,
                Err(error) => {
                    if let Some(new) = new {
                        self.remove(new.id()).await?;
                    }
                    match error {
                        Error::Conflict(_) => continue,
                        error => return Err(error),
                    }
                }
            };
            if let Some(new) = new {
                show(new).await?;
            }
            return self.leave(key, named.session, reached, change.redactor).await;
        }
        Err(Error::Busy { what: format!("pruning thread {:?}", key.thread), waited_ms: 0 })
    }

    /// All that is to be built once more; none when others write to it just now.
    pub(crate) async fn read_whole(&self, session: SessionId, change: &Change<'_>) -> Result<Option<Read>> {
        let source = self.load(session).await?;
        let (steps, reached) = self.steps(session, None, change.redactor).await?;
        if reached != (Reached { timeline: source.timeline, length: source.length }) {
            return Ok(None);
        }
        let there = steps.iter().filter_map(|(_, step)| match step {
            Step::Checkpoint(marked) => Some(marked.record.id.clone()),
            _ => None,
        });
        let waiting = self.waiting(&source, &there.collect()).await?;
        Ok(Some(Read { source, steps, waiting }))
    }

    /// Makes a session a thread's in the place of another, if nobody added to that one since it was read.
    pub(crate) async fn replace(
        &self,
        key: &ThreadKey,
        old: &View,
        version: u64,
        new: Option<&SessionWriter>,
    ) -> Result<Reached> {
        let reached = Reached { timeline: old.timeline, length: old.length + 1 };
        let leaving = Leaving { reached, since: self.store.source().now() };
        let flagged = Append::new().after(old.timeline, old.length).patch(flag(BUILDING, leaving.to_json()));
        old.writer.append(flagged).await?;
        match new {
            Some(new) => {
                let id = new.id().to_string();
                self.store.put_record(THREAD_RECORD, &key.name(), Some(version), None, id.as_bytes()).await?;
            }
            None => self.store.delete_record(THREAD_RECORD, &key.name(), version).await?,
        }
        Ok(reached)
    }

    /// The same session once more with what stays of it, still hidden and held by whoever made it.
    pub(crate) async fn build(&self, key: &ThreadKey, read: &Read, change: &Change<'_>) -> Result<SessionWriter> {
        let old = read.source.writer.session().await;
        let patch = patch_of(&old, key, change.redactor).with(BUILDING, Value::Bool(true));
        let writer = self.store.create(NewSession { id: None, patch }, &Claim::new(HOLDER)).await?;
        let id = writer.id();
        // Under a name that nobody else uses, until it is whole.
        let building = Saver::new(self.store.clone());
        let hidden = ThreadKey::new(format!("{}\0{id}", key.thread), key.namespace.clone());
        let view = building.view(writer).await?;
        *building.slot(&hidden).await = Some(view);
        let outcome = Box::pin(self.build_in((key, read), change, (&building, &hidden))).await;
        let view = building.slot(&hidden).await.take();
        match (outcome, view) {
            (Ok(()), Some(view)) => {
                if let Some(time) = old.trashed {
                    view.writer.append(Append::new().patch(flag("trashed", json!(time)))).await?;
                }
                Ok(view.writer)
            }
            (outcome, view) => {
                drop(view);
                self.remove(id).await?;
                Err(outcome.err().unwrap_or_else(|| Error::NotFound { what: "session", id: id.to_string() }))
            }
        }
    }

    async fn build_in(
        &self,
        (key, read): (&ThreadKey, &Read),
        change: &Change<'_>,
        (building, hidden): (&Saver, &ThreadKey),
    ) -> Result<()> {
        let mut places = Places::default();
        if let (Some((at, step)), Some(view)) = (read.steps.first(), building.slot(hidden).await.as_ref()) {
            let first = if let Step::Back(parent) = step { parent.timeline } else { at.timeline };
            let new = Position { timeline: view.timeline, seq: Seq(view.length - 1) };
            places.note(Position { timeline: first, seq: Seq(0) }, new);
        }
        let mut back = None;
        for (at, step) in &read.steps {
            match step {
                Step::Back(parent) => back = places.begin(*at, *parent),
                Step::Writes(..) => {}
                Step::Checkpoint(marked) if change.gone.contains(&marked.record.id) => {}
                Step::Checkpoint(marked) => {
                    building.go_back(hidden, back.take()).await?;
                    let found = self.changed(key, &read.source, marked, change.redactor).await?;
                    let kept = match change.instead.filter(|new| new.id == found.id) {
                        Some(new) => building.put(hidden, new).await?,
                        None => building.put(hidden, &checkpoint_of(&found)).await?,
                    };
                    if let Some(spot) = kept {
                        places.note(*at, spot.mark);
                    }
                    for writes in writes_of(&found.id, &found.writes) {
                        building.put_writes(hidden, &writes).await?;
                    }
                }
                Step::Added(added) => {
                    building.go_back(hidden, back.take()).await?;
                    if let Some(new) = building.add(hidden, *at, added).await? {
                        places.note(*at, new);
                    }
                }
            }
        }
        if change.gone.is_empty() {
            building.go_back(hidden, back).await?;
        }
        for (id, writes) in &read.waiting {
            let mut writes = writes.clone();
            self.clean_writes(key, &mut writes, change.redactor)?;
            for writes in writes_of(id, &writes) {
                building.put_writes(hidden, &writes).await?;
            }
        }
        Ok(())
    }

    /// A checkpoint as it is to be from now on.
    async fn changed(
        &self,
        key: &ThreadKey,
        view: &View,
        marked: &Marked,
        redactor: Option<&Redactor>,
    ) -> Result<Found> {
        let mut found = self.materialise(key, view, marked).await?;
        if let Some(redactor) = redactor {
            clean(&mut found, redactor).map_err(|why| not_clean(key, why))?;
        }
        Ok(found)
    }

    fn clean_writes(&self, key: &ThreadKey, writes: &mut [FoundWrite], redactor: Option<&Redactor>) -> Result<()> {
        match redactor {
            Some(redactor) => clean_writes(writes, redactor).map(drop).map_err(|why| not_clean(key, why)),
            None => Ok(()),
        }
    }

    /// Sets a session that is being built back to an entry, unless it ends there.
    async fn go_back(&self, key: &ThreadKey, to: Option<Position>) -> Result<()> {
        let Some(to) = to else { return Ok(()) };
        let mut slot = self.slot(key).await;
        let Some(view) = slot.take() else { return Ok(()) };
        if (view.timeline, view.length) == (to.timeline, to.seq.0 + 1) {
            *slot = Some(view);
            return Ok(());
        }
        let append = match view.strays.is_empty() {
            true => Append::new(),
            // Writes that came early or late are found wherever it goes on.
            false => Append::new().state(with_strays(self.store.state_at(to).await?, &view.strays)?),
        };
        view.writer.restore_with(to, append).await?;
        *slot = Some(self.view(view.writer).await?);
        Ok(())
    }

    /// Adds to a thread's session what people had added to the one before; none when there is no such thread any more.
    async fn add(&self, key: &ThreadKey, at: Position, added: &Added) -> Result<Option<Position>> {
        let mut slot = self.slot(key).await;
        for _ in 0..TRIES {
            let mut view = match slot.take() {
                Some(view) => view,
                None => match self.resolve(key).await? {
                    None => return Ok(None),
                    Some(session) => match self.load(session).await {
                        Err(Error::NotFound { .. }) => continue,
                        outcome => outcome?,
                    },
                },
            };
            let mut append = added.append(at).after(view.timeline, view.length);
            if let Added::State(state) = added {
                append = append.state(with_strays(State::try_from(state.clone())?, &view.strays)?);
            }
            match view.writer.append(append).await {
                Ok(receipt) if receipt.repeated => return Ok(None),
                Ok(receipt) => {
                    view.length = receipt.length;
                    match added {
                        Added::Message(message) => *view.counts.entry(message.channel.clone()).or_default() += 1,
                        Added::Mark(_) => view.direct = false,
                        _ => {}
                    }
                    *slot = Some(view);
                    return Ok(Some(Position { timeline: receipt.first.timeline, seq: Seq(receipt.length - 1) }));
                }
                Err(Error::Conflict(_) | Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy { what: format!("bringing over what was added to thread {:?}", key.thread), waited_ms: 0 })
    }

    /// Leaves a session that is no longer a thread's: what others added to it, while they did not know, is brought over.
    pub(crate) async fn leave(
        &self,
        key: &ThreadKey,
        session: SessionId,
        mut reached: Reached,
        redactor: Option<&Redactor>,
    ) -> Result<()> {
        // From here on whoever has an older view of it is refused, and finds the new one.
        let flagged = async {
            let old = self.store.join(session).await?;
            set_flag(&old, LEFT, json!(self.store.source().now())).await
        };
        match flagged.await {
            Ok(_) => {}
            // Someone else did it.
            Err(Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        // Until nothing comes any more: people may add to a session by its id.
        while self.resolve(key).await?.is_some() {
            let (steps, now) = self.steps(session, Some(reached), redactor).await?;
            if steps.iter().all(|(_, step)| matches!(step, Step::Back(_))) {
                break;
            }
            self.bring_over(key, session, steps, redactor).await?;
            reached = now;
        }
        self.remove(session).await
    }

    async fn bring_over(
        &self,
        key: &ThreadKey,
        session: SessionId,
        steps: Vec<(Position, Step)>,
        redactor: Option<&Redactor>,
    ) -> Result<()> {
        let source = self.view(self.store.join(session).await?).await?;
        // The thread's own place is the caller's.
        let other = Saver::new(self.store.clone());
        let mut there = other.checkpoint_ids(key).await?;
        let were: BTreeSet<String> =
            self.all_marks(session).await?.into_iter().map(|marked| marked.record.id).collect();
        for (at, step) in steps {
            match step {
                Step::Back(_) => {}
                Step::Checkpoint(marked) => {
                    if there.insert(marked.record.id.clone()) {
                        let found = self.changed(key, &source, &marked, redactor).await?;
                        other.put(key, &checkpoint_of(&found)).await?;
                    }
                }
                // Those of a checkpoint that was pruned go with it.
                Step::Writes(id, writes) if there.contains(&id) || !were.contains(&id) => {
                    let is_new = writes.replace;
                    let mut found = self.writes_found(vec![(at, writes)], &source, &mut Items::default()).await?;
                    self.clean_writes(key, &mut found, redactor)?;
                    for mut writes in writes_of(&id, &found) {
                        writes.replace = is_new;
                        other.put_writes(key, &writes).await?;
                    }
                }
                Step::Writes(..) => {}
                Step::Added(added) => drop(other.add(key, at, &added).await?),
            }
        }
        Ok(())
    }

    /// Finishes what a process that was killed left of a thread's sessions, or of all threads'. Those that somebody flagged less than so long ago are
    /// left to them.
    pub(crate) async fn sweep(&self, thread: Option<&str>, idle_ms: i64) -> Result<()> {
        let now = self.store.source().now();
        for Leftover { key, session, leaving } in self.leftovers(thread).await? {
            let is_gone = self.resolve(&key).await?.is_none();
            let done = match leaving {
                Some(leaving) if !is_gone && now.since_ms(leaving.since) < idle_ms => Ok(()),
                Some(leaving) => Box::pin(self.leave(&key, session, leaving.reached, None)).await,
                None => self.remove_idle(session).await,
            };
            match done {
                // One that is damaged keeps nobody from the others.
                Err(error) if !error.is_damage() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Where in a new session is what lies somewhere in the old one.
#[derive(Default)]
struct Places(BTreeMap<Position, Position>);

impl Places {
    fn note(&mut self, old: Position, new: Position) {
        self.0.insert(old, new);
    }

    /// A timeline that goes on from an entry of another: the place of that, or of the last before it that stayed.
    fn begin(&mut self, first: Position, parent: Position) -> Option<Position> {
        let (old, new) = self.0.range(..=parent).next_back()?;
        let new = (old.timeline == parent.timeline).then_some(*new)?;
        self.note(first, new);
        Some(new)
    }
}

fn not_clean(key: &ThreadKey, why: String) -> Error {
    Error::Invalid { what: format!("thread {:?}", key.thread), why }
}

/// Shows a session that was made a thread's. Others know it already, and may write to it.
pub(crate) async fn show(new: SessionWriter) -> Result<()> {
    let shown = async {
        set_flag(&new, BUILDING, Value::Null).await?;
        new.release().await
    };
    match shown.await {
        // Another took its place already.
        Err(Error::NotFound { .. } | Error::Fenced { .. }) => Ok(()),
        outcome => outcome,
    }
}

/// Flags a session that others write to meanwhile.
pub(crate) async fn set_flag(writer: &SessionWriter, name: &str, value: Value) -> Result<Receipt> {
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
fn patch_of(old: &Session, key: &ThreadKey, redactor: Option<&Redactor>) -> SessionPatch {
    let mut patch = SessionPatch(old.extra.clone()).status(old.status).tags(old.tags.iter().map(String::as_str));
    let texts = [
        ("title", &old.title),
        ("project", &old.project),
        ("agent", &old.agent),
        ("feature", &old.feature),
        ("task", &old.task),
        ("stage", &old.stage),
        ("error", &old.error),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            patch = patch.with(name, Value::String(text.clone()));
        }
    }
    if let Some(redactor) = redactor {
        // By these the thread is found.
        let own = [shown(&key.thread), shown(&key.namespace)].map(Value::String);
        for (name, value) in &mut patch.0 {
            let is_own = name == "langgraph" || name == "status" || own.contains(value);
            let _found = !is_own && redactor.clean_value(value);
        }
    }
    patch
}
