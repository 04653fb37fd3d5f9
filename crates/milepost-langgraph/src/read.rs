//! Checkpoints out of the log.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map};
use std::sync::Arc;

use milepost_model::{Body, Channel, Checkpoint, Entry, EntryKind, Position, Seq, SessionId, TimelineId};
use milepost_store::backend::Kinds;
use milepost_store::{Error, Mark, MarkQuery, MessageQuery, Result, SessionQuery};
use serde_json::Value;

use crate::anew::Leaving;
use crate::bytes::{damaged, from_text};
use crate::delta;
use crate::msgpack::{self, from_json};
use crate::record::{Form, METADATA, Record, Runs, SKELETON, Writes, clusters};
use crate::thread::{AGENT, BUILDING, Items, Known, Saver, THREAD_RECORD, ThreadKey, View, mark_id, shown};
use crate::write::{FIELD, GONE_TRIES, Spot, WRITES, channel_of};

/// A write that waits for the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundWrite {
    /// The task.
    pub task: String,
    /// The task's path.
    pub path: String,
    /// Its place among the task's writes.
    pub index: i64,
    /// The channel.
    pub channel: String,
    /// The serializer's word for how it wrote the value.
    pub word: String,
    /// The value.
    pub bytes: Vec<u8>,
}

/// A channel's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundValue {
    /// As the serializer wrote it, with its word for that.
    Typed(String, Vec<u8>),
    /// The items of a list. Checkpoints that are read together share them.
    List(Vec<Arc<[u8]>>),
}

impl FoundValue {
    /// The items of a list; none of anything else.
    pub fn items(&self) -> &[Arc<[u8]>] {
        match self {
            FoundValue::Typed(..) => &[],
            FoundValue::List(items) => items,
        }
    }

    /// The value as one piece, with the serializer's word for how to read it.
    pub fn whole(self) -> (String, Vec<u8>) {
        match self {
            FoundValue::Typed(word, bytes) => (word, bytes),
            FoundValue::List(items) => {
                ("msgpack".to_owned(), msgpack::array(items.len(), items.iter().map(AsRef::as_ref)))
            }
        }
    }
}

/// A checkpoint as it was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its thread.
    pub key: ThreadKey,
    /// Its id.
    pub id: String,
    /// Where it lies.
    pub spot: Spot,
    /// The checkpoint that it comes after.
    pub parent: Option<String>,
    /// The checkpoint without its values.
    pub skeleton: (String, Vec<u8>),
    /// Its metadata, as JSON.
    pub metadata: Vec<u8>,
    /// Its values, by channel.
    pub values: Vec<(String, FoundValue)>,
    /// Writes for the step after it, in the order in which they are applied.
    pub writes: Vec<FoundWrite>,
}

/// Which checkpoints to list.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Of this thread; of all when none.
    pub thread: Option<String>,
    /// Of this namespace; of all when none.
    pub namespace: Option<String>,
    /// Only this one.
    pub id: Option<String>,
    /// Those with smaller ids.
    pub before: Option<String>,
    /// With these values in their metadata.
    pub filter: Vec<(String, Value)>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// What one channel was given on the way to a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The value it begins with: word and bytes.
    pub seed: Option<(String, Vec<u8>)>,
    /// What was written to it since, oldest first.
    pub writes: Vec<FoundWrite>,
}

/// A mark that was read, with what it says.
#[derive(Debug, Clone)]
pub(crate) struct Marked {
    pub record: Record,
    pub at: Position,
    /// Messages up to `until`, which is its own place or the head after it.
    pub counts: BTreeMap<Channel, u64>,
    pub until: Position,
}

/// The record of a mark; none when it is not one of LangGraph's.
pub(crate) fn record_of(mark: &Checkpoint) -> Result<Option<Record>> {
    let Some(text) = mark.extra.get(FIELD).and_then(Value::as_str) else { return Ok(None) };
    Record::decode(mark.label.as_deref().unwrap_or_default(), &from_text(text)?).map(Some)
}

fn marked(entry: Entry) -> Result<Option<Marked>> {
    let Some(Body::Mark(mark)) = entry.body else { return Ok(None) };
    Ok(record_of(&mark)?.map(|record| Marked { record, at: entry.at, counts: mark.counts, until: entry.at }))
}

pub(crate) fn writes_of(entry: &Entry) -> Result<Option<Writes>> {
    let Some(Body::Event(event)) = &entry.body else { return Ok(None) };
    if event.kind != WRITES {
        return Ok(None);
    }
    let text = |name: &str| event.data.get(name).and_then(Value::as_str);
    Writes::decode(text("checkpoint"), &from_text(text("writes").ok_or_else(|| damaged("writes"))?)?).map(Some)
}

impl Saver {
    /// One checkpoint, or the one with the greatest id.
    pub async fn get(&self, key: &ThreadKey, id: Option<&str>) -> Result<Option<Found>> {
        let mut slot = self.slot(key).await;
        let mut tries = 0;
        loop {
            match self.try_get(key, &mut slot, id).await {
                // Whoever pruned the thread put another session in the place of the one that was known.
                Err(Error::NotFound { .. }) if tries < GONE_TRIES => (tries, *slot) = (tries + 1, None),
                outcome => return outcome,
            }
        }
    }

    async fn try_get(&self, key: &ThreadKey, slot: &mut Option<View>, id: Option<&str>) -> Result<Option<Found>> {
        let Some(view) = self.look(key, slot).await? else { return Ok(None) };
        let id = match id {
            Some(id) => id.to_owned(),
            None => match self.latest(view).await? {
                Some(id) => id,
                None => return Ok(None),
            },
        };
        if let Some((record, at)) = &view.newest
            && record.id == id
        {
            let until = Position { timeline: view.timeline, seq: Seq(view.length.saturating_sub(1)) };
            let marked = Marked { record: record.clone(), at: *at, counts: view.counts.clone(), until };
            let (values, mut items) = (view.values.clone(), std::mem::take(&mut view.items));
            let found = self.found(key, view, &marked, values, &mut items).await;
            view.items = items;
            self.bound(key, view);
            return found.map(Some);
        }
        let Some((record, mark)) = self.record(view.session, &id).await? else { return Ok(None) };
        let marked = Marked { record, at: mark.at, counts: mark.checkpoint.counts, until: mark.at };
        let values = self.values(&marked.record, marked.at).await?;
        let mut items = Items::default();
        if mark.at.timeline == view.timeline {
            items = std::mem::take(&mut view.items);
        }
        let found = self.found(key, view, &marked, values, &mut items).await;
        if mark.at.timeline == view.timeline {
            view.items = items;
            self.bound(key, view);
        }
        found.map(Some)
    }

    /// The ids of every checkpoint of a thread's namespace.
    pub async fn checkpoint_ids(&self, key: &ThreadKey) -> Result<BTreeSet<String>> {
        let mut slot = self.slot(key).await;
        let Some(view) = self.look(key, &mut slot).await? else { return Ok(BTreeSet::new()) };
        Ok(self.all_marks(view.session).await?.into_iter().map(|marked| marked.record.id).collect())
    }

    /// The greatest id of a session, on whatever timeline.
    async fn latest(&self, view: &View) -> Result<Option<String>> {
        let mut greatest = view.newest.as_ref().map(|(newest, _)| newest.greatest.clone());
        let lines = self.store.backend().timelines(self.store.workspace(), view.session).await?;
        for line in lines.iter().filter(|line| line.id != view.timeline && line.length > line.begins()) {
            let filter = milepost_store::backend::MarkFilter {
                limit: 1,
                trashed: None,
                ..milepost_store::backend::MarkFilter::of(line.id, Seq(line.begins()), Seq(line.length))
            };
            for row in self.store.backend().marks(self.store.workspace(), filter).await? {
                if let Some(record) = record_of(&self.store.mark(row.id).await?.checkpoint)? {
                    greatest = greatest.max(Some(record.greatest));
                }
            }
        }
        Ok(greatest)
    }

    /// A checkpoint's record, by its id.
    pub(crate) async fn record(&self, session: SessionId, id: &str) -> Result<Option<(Record, Mark)>> {
        let mark = match self.store.mark(mark_id(session, id)).await {
            Ok(mark) if mark.session == session => mark,
            Ok(_) | Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(record_of(&mark.checkpoint)?.filter(|record| record.id == id).map(|record| (record, mark)))
    }

    /// The newest of LangGraph's checkpoints up to a session's head, and whether no other mark comes after it.
    pub(crate) async fn newest_mark(&self, session: SessionId) -> Result<Option<(Record, Mark, bool)>> {
        let mut limit = 1;
        loop {
            let marks = self.store.marks(session, &MarkQuery { limit: Some(limit), ..MarkQuery::default() }).await?;
            let is_all = marks.len() < limit;
            for (number, mark) in marks.into_iter().enumerate() {
                if let Some(record) = record_of(&mark.checkpoint)? {
                    return Ok(Some((record, mark, number == 0)));
                }
            }
            if is_all {
                return Ok(None);
            }
            limit *= 16;
        }
    }

    /// The values of a checkpoint, as bytes.
    pub(crate) async fn values(&self, record: &Record, at: Position) -> Result<HashMap<String, Known>> {
        self.values_with(record, at, &mut Read::default()).await
    }

    /// The same with what was read before for another checkpoint of the same timeline.
    async fn values_with(&self, record: &Record, at: Position, read: &mut Read) -> Result<HashMap<String, Known>> {
        let chains = record.values.values().flat_map(|recipe| recipe.chain.iter());
        let mut needed: BTreeSet<u64> = chains.filter(|seq| !read.marks.contains_key(seq)).copied().collect();
        needed.extend(record.sources.iter().filter(|seq| !read.writes.contains_key(seq)));
        self.read(at, needed.into_iter().collect(), read).await?;
        let sources = read.marks.values().flat_map(|record| record.sources.iter().copied());
        let missing: Vec<u64> = sources.filter(|seq| !read.writes.contains_key(seq)).collect();
        self.read(at, missing, read).await?;
        make(record, at.seq.0, read)
    }

    /// Reads marks and writes on the way to a place.
    async fn read(&self, at: Position, numbers: Vec<u64>, read: &mut Read) -> Result<()> {
        for (from, to) in clusters(numbers) {
            let until = Position { timeline: at.timeline, seq: Seq(to.0 - 1) };
            let kinds = Kinds::only(EntryKind::Mark).and(EntryKind::Event);
            for entry in self.store.entries_at(until, from, kinds).await? {
                let seq = entry.at.seq.0;
                if let Some(writes) = writes_of(&entry)? {
                    read.writes.insert(seq, writes);
                } else if let Some(marked) = marked(entry)? {
                    read.marks.insert(seq, marked.record);
                }
            }
        }
        Ok(())
    }

    /// The items of a list.
    pub(crate) async fn list_items(
        &self,
        items: &mut Items,
        at: Option<Position>,
        channel: &Channel,
        total: Option<u64>,
        runs: &Runs,
    ) -> Result<Vec<Arc<[u8]>>> {
        let is_known = |known: &[Option<Arc<[u8]>>]| {
            runs.numbers().all(|number| known.get(number as usize).is_some_and(Option::is_some))
        };
        if !is_known(items.of(channel))
            && let Some(at) = at
        {
            let query = MessageQuery { channel: Some(channel.clone()), ..MessageQuery::default() };
            let item = |json: &[u8]| from_json(json).map(Arc::from);
            let (stored, begins) = match total {
                // Read from the first that is needed.
                Some(total) => {
                    let first = runs.0.iter().map(|(from, _)| *from).min().unwrap_or(0);
                    let last = Some(total.saturating_sub(first) as usize);
                    let stored = self.store.messages_as(at, &MessageQuery { last, ..query }, item).await?;
                    let begins = total.saturating_sub(stored.len() as u64);
                    (stored, begins)
                }
                None => {
                    let end = runs.0.iter().map(|(from, count)| from + count).max().unwrap_or(0);
                    let query = MessageQuery { first: Some(end as usize), ..query };
                    (self.store.messages_as(at, &query, item).await?, 0)
                }
            };
            for (number, item) in stored.into_iter().enumerate() {
                if let Some(item) = item {
                    items.remember(channel, begins + number as u64, item);
                }
            }
        }
        let known = items.of(channel);
        if let Some(at) = at
            && !is_known(known)
            && self.store.backend().timeline(self.store.workspace(), at.timeline).await?.is_none()
        {
            // Whoever pruned the thread removed it while it was read: nothing is damaged.
            return Err(Error::NotFound { what: "timeline", id: at.timeline.to_string() });
        }
        let item =
            |number: u64| known.get(number as usize).cloned().flatten().ok_or_else(|| damaged("a message of a list"));
        runs.numbers().map(item).collect()
    }

    async fn found(
        &self,
        key: &ThreadKey,
        view: &View,
        marked: &Marked,
        mut values: HashMap<String, Known>,
        items: &mut Items,
    ) -> Result<Found> {
        let mut plain = |name: &str| values.remove(name).ok_or_else(|| damaged("a checkpoint"));
        let (skeleton, metadata) = (plain(SKELETON)?, plain(METADATA)?);
        let Form::Typed(word) = skeleton.form else { return Err(damaged("a checkpoint")) };
        let writes = self.writes(view, marked).await?;
        // Writes may refer to messages that came after the mark.
        let writes = self.writes_found(writes, view, items).await?;
        let mut out = Vec::with_capacity(values.len());
        for name in marked.record.values.keys() {
            let Some(known) = values.remove(name) else { continue };
            out.push(match known.form {
                Form::Typed(word) => (name.clone(), FoundValue::Typed(word, known.bytes.to_vec())),
                Form::List => {
                    let channel = channel_of(name).ok_or_else(|| damaged("a list"))?;
                    let runs = Runs::decode(&known.bytes)?;
                    let total = marked.counts.get(&channel).copied().unwrap_or(0);
                    let items = self.list_items(items, Some(marked.until), &channel, Some(total), &runs).await?;
                    (name.clone(), FoundValue::List(items))
                }
            });
        }
        Ok(Found {
            key: key.clone(),
            id: marked.record.id.clone(),
            spot: Spot { session: view.session, mark: marked.at },
            parent: marked.record.parent.clone(),
            skeleton: (word, skeleton.bytes.to_vec()),
            metadata: metadata.bytes.to_vec(),
            values: out,
            writes,
        })
    }

    /// A checkpoint as it was kept, to be kept elsewhere.
    pub(crate) async fn found_for_copy(
        &self,
        key: &ThreadKey,
        view: &View,
        marked: &Marked,
        values: HashMap<String, Known>,
    ) -> Result<Found> {
        self.found(key, view, marked, values, &mut Items::default()).await
    }

    /// What was written for the step after a checkpoint: what follows it, and what came early or late.
    async fn writes(&self, view: &View, marked: &Marked) -> Result<Vec<(Position, Writes)>> {
        let after = self.store.entries_after(marked.at, Kinds::only(EntryKind::Event)).await?;
        let strays = view.strays.get(&marked.record.id).into_iter().flatten();
        let strays = strays.map(|(timeline, seq)| Position { timeline: *timeline, seq: Seq(*seq) });
        let early = marked.record.early.iter().map(|seq| Position { timeline: marked.at.timeline, seq: Seq(*seq) });
        let seen: BTreeSet<Position> = after.iter().map(|entry| entry.at).collect();
        let mut entries = Vec::new();
        for at in early.chain(strays).filter(|at| !seen.contains(at)) {
            entries.extend(self.store.entries_at(at, at.seq, Kinds::only(EntryKind::Event)).await?);
        }
        let is_apart = !entries.is_empty();
        entries.extend(after);
        if is_apart {
            self.sort_by_age(view.session, &mut entries).await?;
        }
        let mut all = Vec::new();
        for entry in &entries {
            let is_own = |writes: &Writes| match &writes.checkpoint {
                Some(checkpoint) => *checkpoint == marked.record.id,
                None => seen.contains(&entry.at),
            };
            if let Some(writes) = writes_of(entry)?.filter(is_own) {
                all.push((entry.at, writes));
            }
        }
        Ok(all)
    }

    /// What was written for checkpoints that are not there yet, by their ids.
    pub(crate) async fn waiting(
        &self,
        view: &View,
        there: &BTreeSet<String>,
    ) -> Result<Vec<(String, Vec<FoundWrite>)>> {
        let mut found = Vec::new();
        for (id, places) in view.strays.iter().filter(|(id, _)| !there.contains(*id)) {
            let mut entries = Vec::new();
            for (timeline, seq) in places {
                let at = Position { timeline: *timeline, seq: Seq(*seq) };
                entries.extend(self.store.entries_at(at, at.seq, Kinds::only(EntryKind::Event)).await?);
            }
            self.sort_by_age(view.session, &mut entries).await?;
            let mut all = Vec::new();
            for entry in &entries {
                all.extend(
                    writes_of(entry)?.filter(|one| one.checkpoint.as_ref() == Some(id)).map(|one| (entry.at, one)),
                );
            }
            let writes = self.writes_found(all, view, &mut Items::default()).await?;
            if !writes.is_empty() {
                found.push((id.clone(), writes));
            }
        }
        Ok(found)
    }

    /// Puts entries of a session into the order in which they were made: a timeline that another follows gets no more.
    async fn sort_by_age(&self, session: SessionId, entries: &mut [Entry]) -> Result<()> {
        let first = entries.first().map(|entry| entry.at.timeline);
        let mut lines = Vec::new();
        if entries.iter().any(|entry| Some(entry.at.timeline) != first) {
            lines = self.store.backend().timelines(self.store.workspace(), session).await?;
        }
        entries.sort_by_key(|entry| (lines.iter().position(|line| line.id == entry.at.timeline), entry.at.seq));
        Ok(())
    }

    /// Writes with their values, in the order in which they are applied.
    pub(crate) async fn writes_found(
        &self,
        all: Vec<(Position, Writes)>,
        view: &View,
        items: &mut Items,
    ) -> Result<Vec<FoundWrite>> {
        let mut found: BTreeMap<(String, i64), FoundWrite> = BTreeMap::new();
        for (at, writes) in all {
            for write in writes.writes {
                let place = (writes.task.clone(), write.index);
                if found.contains_key(&place) && !writes.replace {
                    continue;
                }
                let (word, bytes) = match write.form {
                    Form::Typed(word) => (word, write.bytes),
                    Form::List => {
                        let channel = channel_of(&write.channel).ok_or_else(|| damaged("a write"))?;
                        let runs = Runs::decode(&write.bytes)?;
                        // Numbers are the same on every way that leads to the event.
                        let known = if at.timeline == view.timeline { &mut *items } else { &mut Items::default() };
                        let all = self.list_items(known, Some(at), &channel, None, &runs).await?;
                        ("msgpack".to_owned(), msgpack::array(all.len(), all.iter().map(AsRef::as_ref)))
                    }
                };
                let (task, path) = (writes.task.clone(), writes.path.clone());
                let write = FoundWrite { task, path, index: write.index, channel: write.channel, word, bytes };
                found.insert(place, write);
            }
        }
        let mut found: Vec<FoundWrite> = found.into_values().collect();
        found.sort_by(|a, b| (&a.path, &a.task, a.index).cmp(&(&b.path, &b.task, b.index)));
        Ok(found)
    }

    /// Checkpoints, those with the greatest ids first.
    pub async fn list(&self, listing: &Listing) -> Result<Vec<Found>> {
        let mut tries = 0;
        loop {
            match self.try_list(listing).await {
                // As above.
                Err(Error::NotFound { .. }) if tries < GONE_TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }

    async fn try_list(&self, listing: &Listing) -> Result<Vec<Found>> {
        let mut found: Vec<(ThreadKey, Marked)> = Vec::new();
        for (key, session) in self.sessions(listing.thread.as_deref(), listing.namespace.as_deref()).await? {
            let marks = match &listing.id {
                Some(id) => {
                    let one = self.record(session, id).await?;
                    one.map(|(record, mark)| Marked {
                        record,
                        at: mark.at,
                        counts: mark.checkpoint.counts,
                        until: mark.at,
                    })
                    .into_iter()
                    .collect()
                }
                None => self.listed_marks(session, listing).await?,
            };
            found.extend(marks.into_iter().map(|marked| (key.clone(), marked)));
        }
        found.retain(|(_, marked)| listing.before.as_ref().is_none_or(|before| marked.record.id < *before));
        found.sort_by(|(_, a), (_, b)| b.record.id.cmp(&a.record.id));
        let (mut out, mut items) = (Vec::new(), HashMap::<ThreadKey, (Position, Items)>::new());
        let mut reads: HashMap<TimelineId, Read> = HashMap::new();
        for (key, marked) in found {
            if listing.limit.is_some_and(|limit| out.len() >= limit) {
                break;
            }
            let mut slot = self.slot(&key).await;
            let Some(view) = self.look(&key, &mut slot).await? else { continue };
            let read = reads.entry(marked.at.timeline).or_default();
            let values = self.values_with(&marked.record, marked.at, read).await?;
            if !listing.filter.is_empty() {
                let metadata = values.get(METADATA).ok_or_else(|| damaged("a checkpoint"))?;
                if !fits(&metadata.bytes, &listing.filter) {
                    continue;
                }
            }
            // Messages of one timeline are read once for all of its checkpoints: the first listed has the most.
            let (_, known) = match items.get_mut(&key) {
                Some(known) if known.0.timeline == marked.at.timeline => known,
                _ => {
                    let fresh = match marked.at.timeline == view.timeline {
                        true => view.items.clone(),
                        false => Items::default(),
                    };
                    items.insert(key.clone(), (marked.at, fresh));
                    items.get_mut(&key).ok_or_else(|| damaged("a list"))?
                }
            };
            out.push(self.found(&key, view, &marked, values, known).await?);
        }
        Ok(out)
    }

    /// The sessions of threads.
    pub(crate) async fn sessions(
        &self,
        thread: Option<&str>,
        namespace: Option<&str>,
    ) -> Result<Vec<(ThreadKey, SessionId)>> {
        if let (Some(thread), Some(namespace)) = (thread, namespace) {
            let key = ThreadKey::new(thread, namespace);
            let session = self.resolve(&key).await?;
            return Ok(session.map(|session| (key, session)).into_iter().collect());
        }
        let all =
            self.all_sessions(thread).await?.into_iter().filter(|(.., standing)| matches!(standing, Standing::Own));
        let all = all.filter(|(key, ..)| namespace.is_none_or(|namespace| namespace == key.namespace));
        Ok(all.map(|(key, session, _)| (key, session)).collect())
    }

    /// Sessions that were made for a thread, or for any, and are not its own: whoever pruned or deleted it was killed, or is still at work.
    pub(crate) async fn leftovers(&self, thread: Option<&str>) -> Result<Vec<Leftover>> {
        let all = self.all_sessions(thread).await?;
        let left = all.into_iter().filter_map(|(key, session, standing)| match standing {
            Standing::Leftover(leaving) => Some(Leftover { key, session, leaving }),
            Standing::Own | Standing::Copy => None,
        });
        Ok(left.collect())
    }

    /// Every session of threads, and whether it is the thread's own. What a person branched off is none.
    async fn all_sessions(&self, wanted: Option<&str>) -> Result<Vec<(ThreadKey, SessionId, Standing)>> {
        let mut sessions = BTreeMap::new();
        for trashed in [false, true] {
            // Somebody may have given them another agent since: by its task a thread's are found all the same.
            let (agent, task) = (wanted.is_none().then(|| AGENT.to_owned()), wanted.map(shown));
            let mut query = SessionQuery { agent, task, trashed, by_creation: true, ..SessionQuery::default() };
            loop {
                let page = self.store.sessions(&query).await?;
                sessions.extend(page.sessions.into_iter().map(|session| (session.id, session)));
                match page.next {
                    Some(next) => query.after = Some(next),
                    None => break,
                }
            }
        }
        // Or another task.
        let mut named: BTreeSet<SessionId> = match wanted {
            Some(thread) => self.resolve(&ThreadKey::new(thread, "")).await?.into_iter().collect(),
            None => self.named_sessions().await?,
        };
        for id in &named {
            let btree_map::Entry::Vacant(place) = sessions.entry(*id) else { continue };
            match self.store.session(*id).await {
                Ok(session) => drop(place.insert(session)),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut all = Vec::new();
        for session in sessions.into_values().filter(|session| session.branch.is_none() && !session.hidden) {
            let part = |name: &str| session.extra.get("langgraph")?.get(name)?.as_str().map(str::to_owned);
            let (Some(thread), Some(namespace)) = (part("thread"), part("namespace")) else { continue };
            let key = ThreadKey::new(thread, namespace);
            if wanted.is_some_and(|wanted| wanted != key.thread) {
                continue;
            }
            if wanted.is_some() && !key.namespace.is_empty() {
                named.extend(self.resolve(&key).await?);
            }
            let standing = match session.extra.get(BUILDING) {
                _ if named.contains(&session.id) => Standing::Own,
                Some(flag) => Standing::Leftover(Leaving::from_json(flag)),
                None => Standing::Copy,
            };
            all.push((key, session.id, standing));
        }
        Ok(all)
    }

    /// The sessions that records name.
    async fn named_sessions(&self) -> Result<BTreeSet<SessionId>> {
        let (mut all, mut after) = (BTreeSet::new(), None);
        loop {
            let page = self.store.records(THREAD_RECORD, after.as_deref(), PAGE).await?;
            let ids = page.iter().filter_map(|record| {
                std::str::from_utf8(&record.value).ok()?.split(' ').next()?.parse::<SessionId>().ok()
            });
            all.extend(ids);
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
                _ => return Ok(all),
            }
        }
    }

    /// The checkpoints of a session that a listing may give: only the last ones where that is enough.
    async fn listed_marks(&self, session: SessionId, listing: &Listing) -> Result<Vec<Marked>> {
        let (Some(limit), true, true) = (listing.limit, listing.before.is_none(), listing.filter.is_empty()) else {
            return self.all_marks(session).await;
        };
        let lines = self.store.backend().timelines(self.store.workspace(), session).await?;
        let [line] = lines.as_slice() else { return self.all_marks(session).await };
        let mut window = (limit as u64).saturating_add(1).saturating_mul(8);
        while window < line.length {
            let end = Position { timeline: line.id, seq: Seq(line.length - 1) };
            let mut marks = Vec::new();
            for entry in self.store.entries_at(end, Seq(line.length - window), Kinds::only(EntryKind::Mark)).await? {
                marks.extend(marked(entry)?);
            }
            // Whatever comes before the first has no greater id than it knows of.
            let bound = marks.first().map(|first| first.record.greatest.clone());
            marks.retain(|marked| bound.as_ref().is_some_and(|bound| marked.record.id > *bound));
            if marks.len() >= limit {
                return Ok(marks);
            }
            window = window.saturating_mul(8);
        }
        self.all_marks(session).await
    }

    /// Every checkpoint of a session, on whatever timeline.
    pub(crate) async fn all_marks(&self, session: SessionId) -> Result<Vec<Marked>> {
        let lines = match self.store.backend().timelines(self.store.workspace(), session).await {
            Ok(lines) => lines,
            Err(Error::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for line in lines.iter().filter(|line| line.length > line.begins()) {
            let end = Position { timeline: line.id, seq: Seq(line.length - 1) };
            for entry in self.store.entries_at(end, Seq(line.begins()), Kinds::only(EntryKind::Mark)).await? {
                all.extend(marked(entry)?);
            }
        }
        Ok(all)
    }

    /// What channels were given on the way to a checkpoint, without what waits at it.
    pub async fn history(
        &self,
        key: &ThreadKey,
        id: Option<&str>,
        channels: &[String],
    ) -> Result<BTreeMap<String, History>> {
        let mut found: BTreeMap<String, History> =
            channels.iter().map(|channel| (channel.clone(), History::default())).collect();
        let mut slot = self.slot(key).await;
        let Some(view) = self.look(key, &mut slot).await? else { return Ok(found) };
        let id = match id {
            Some(id) => Some(id.to_owned()),
            None => self.latest(view).await?,
        };
        let all: HashMap<String, Marked> =
            self.all_marks(view.session).await?.into_iter().map(|marked| (marked.record.id.clone(), marked)).collect();
        let mut open: BTreeSet<&String> = channels.iter().collect();
        let mut at = id.and_then(|id| all.get(&id)).and_then(|marked| marked.record.parent.clone());
        let mut items = std::mem::take(&mut view.items);
        let mut steps = 0;
        while let Some(marked) = at.as_ref().and_then(|id| all.get(id)).filter(|_| !open.is_empty()) {
            let writes = self.writes(view, marked).await?;
            let writes = self.writes_found(writes, view, &mut items).await?;
            for write in writes.into_iter().rev().filter(|write| open.contains(&write.channel)) {
                if let Some(history) = found.get_mut(&write.channel) {
                    history.writes.push(write);
                }
            }
            if open.iter().any(|channel| marked.record.values.contains_key(*channel)) {
                let values = self.values(&marked.record, marked.at).await?;
                let whole = self.found(key, view, marked, values, &mut items).await?;
                for (channel, value) in whole.values {
                    if let Some(history) = found.get_mut(&channel).filter(|_| open.remove(&channel)) {
                        history.seed = Some(value.whole());
                    }
                }
            }
            at = marked.record.parent.clone();
            steps += 1;
            if steps > all.len() {
                // A checkpoint that is its own ancestor.
                break;
            }
        }
        view.items = items;
        found.values_mut().for_each(|history| history.writes.reverse());
        Ok(found)
    }
}

/// So many records are read at a time.
const PAGE: usize = 1000;

/// What a session is to the thread that it tells of.
enum Standing {
    Own,
    /// Made in its place, or no longer its own: what is to be done then.
    Leftover(Option<Leaving>),
    /// It came from elsewhere: the thread is another here, or none.
    Copy,
}

/// A session that is left of a thread's, and what the flag says that is on it.
pub(crate) struct Leftover {
    pub key: ThreadKey,
    pub session: SessionId,
    pub leaving: Option<Leaving>,
}

/// Marks and writes that were read, by the numbers of their entries, and values that were made of them.
#[derive(Default)]
struct Read {
    marks: HashMap<u64, Record>,
    writes: HashMap<u64, Writes>,
    /// What a value was after a mark: checkpoints that are listed together are each a step of the same chains.
    made: HashMap<(String, u64), Arc<[u8]>>,
}

/// So many bytes of a value's last steps are kept while others are made.
const KEPT_STEPS_BYTES: usize = 4 << 20;

impl Read {
    /// What changes of a mark's values may copy from.
    fn beside(&self, record: &Record) -> Result<Vec<u8>> {
        let mut beside = Vec::new();
        for seq in &record.sources {
            let writes = self.writes.get(seq).ok_or_else(|| damaged("what a value was copied from"))?;
            writes.beside().for_each(|bytes| beside.extend_from_slice(bytes));
        }
        Ok(beside)
    }
}

/// Makes values out of a record and what it names.
fn make(record: &Record, seq: u64, read: &mut Read) -> Result<HashMap<String, Known>> {
    let mut values = HashMap::with_capacity(record.values.len());
    for (name, recipe) in &record.values {
        let mut chain = recipe.chain.clone();
        if recipe.own.is_some() {
            chain.push(seq);
        }
        let (bytes, changes) = follow(name, &chain, (seq, record), read)?;
        values.insert(name.clone(), Known { form: recipe.form.clone(), bytes, chain, changes });
    }
    Ok(values)
}

/// A value after the last step of its chain, and the bytes of the changes among them. `newest` is not among what was read.
fn follow(name: &str, chain: &[u64], newest: (u64, &Record), read: &mut Read) -> Result<(Arc<[u8]>, usize)> {
    let step = |seq: &u64| {
        let record = if *seq == newest.0 { Some(newest.1) } else { read.marks.get(seq) };
        let own = record.and_then(|record| Some((record, record.values.get(name)?.own.as_deref()?)));
        own.ok_or_else(|| damaged("a value's beginning"))
    };
    let steps = chain.iter().map(step).collect::<Result<Vec<_>>>()?;
    let changes = steps.iter().skip(1).map(|(_, own)| own.len()).sum();
    let mut key = (name.to_owned(), 0);
    let known = chain.iter().enumerate().rev().find_map(|(place, seq)| {
        key.1 = *seq;
        read.made.get(&key).map(|bytes| (place, Arc::clone(bytes)))
    });
    let (first, mut bytes) = match known {
        Some(known) => known,
        None => (0, Arc::from(steps.first().ok_or_else(|| damaged("a value"))?.1)),
    };
    let mut made = Vec::new();
    for (place, (record, own)) in steps.iter().enumerate().skip(first) {
        if place > first {
            bytes = Arc::from(delta::apply(&bytes, &read.beside(record)?, own)?);
        }
        if (chain.len() - place).saturating_mul(bytes.len()) <= KEPT_STEPS_BYTES {
            made.push(((name.to_owned(), chain[place]), Arc::clone(&bytes)));
        }
    }
    read.made.extend(made);
    Ok((bytes, changes))
}

/// What metadata says. Python writes numbers that JSON has none of as words, and whole ones of any length; those are null here.
pub(crate) fn read_metadata(bytes: &[u8]) -> Option<Value> {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Some(value);
    }
    let (mut plain, mut rest, mut in_text) = (Vec::with_capacity(bytes.len()), bytes, false);
    while let Some(first) = rest.first() {
        let word = [&b"NaN"[..], b"Infinity", b"-Infinity"].into_iter().find(|word| !in_text && rest.starts_with(word));
        let length = match (word, first) {
            (Some(word), _) => {
                plain.extend_from_slice(b"null");
                rest = &rest[word.len()..];
                continue;
            }
            (None, b'-' | b'0'..=b'9') if !in_text => {
                let is_more = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                let (number, after) = rest.split_at(rest.iter().take_while(|byte| is_more(byte)).count());
                let is_number = serde_json::from_slice::<serde::de::IgnoredAny>(number).is_ok();
                let is_too_large = is_number && serde_json::from_slice::<Value>(number).is_err();
                plain.extend_from_slice(if is_too_large { b"null" } else { number });
                rest = after;
                continue;
            }
            (None, b'\\') if in_text => rest.len().min(2),
            (None, b'"') => {
                in_text = !in_text;
                1
            }
            _ => 1,
        };
        plain.extend_from_slice(&rest[..length]);
        rest = &rest[length..];
    }
    serde_json::from_slice(&plain).ok()
}

/// Whether metadata has these values. What is not there is null, dots lead into objects, numbers are what they are worth, and
/// true is 1, as in LangGraph's own checkpointers.
fn fits(metadata: &[u8], filter: &[(String, Value)]) -> bool {
    let Some(metadata @ Value::Object(_)) = read_metadata(metadata) else { return false };
    filter.iter().all(|(name, wanted)| {
        let within = || name.split('.').try_fold(&metadata, |at, part| at.get(part));
        let found = metadata.get(name).or_else(within).unwrap_or(&Value::Null);
        found == wanted || worth(found).is_some_and(|found| Some(found) == worth(wanted))
    })
}

fn worth(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(is) => Some(f64::from(u8::from(*is))),
        value => value.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn metadata_is_read_as_python_writes_it() {
        let written = br#"{"a": NaN, "b": [-Infinity, Infinity], "NaN": "NaN \" Infinity", "c": 1}"#;
        let read = json!({"a": null, "b": [null, null], "NaN": "NaN \" Infinity", "c": 1});
        assert_eq!(super::read_metadata(written), Some(read));
        for bad in [&b"{"[..], b"NaNs", b"\"\\", b"", b"-", b"[1-2, NaN]", b"[01, NaN]"] {
            assert_eq!(super::read_metadata(bad), None);
        }
        let large = "9".repeat(309);
        let written = format!(r#"{{"n": {large}, "list": [-{large}, 5, 1.5e3, NaN], "text": "{large} -1"}}"#);
        let read = json!({"n": null, "list": [null, 5, 1.5e3, null], "text": format!("{large} -1")});
        assert_eq!(super::read_metadata(written.as_bytes()), Some(read));
    }
}
