//! Checkpoints and writes on their way into the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use milepost_model::{Channel, Event, Message, Position, Seq, SessionId, Trigger};
use milepost_store::{Append, Error, NewMark, Receipt, Result};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::anew::Change;
use crate::bytes::to_text;
use crate::delta;
use crate::msgpack::{self, to_message};
use crate::record::{Form, MAX_CHAIN, METADATA, Recipe, Record, Runs, SHORT, SKELETON, Write, Writes};
use crate::thread::{Items, Known, Saver, ThreadKey, View, mark_id, with_strays};

/// The kind of the events that hold writes.
pub(crate) const WRITES: &str = "langgraph.writes";
/// Where a mark keeps its record.
pub(crate) const FIELD: &str = "langgraph";
/// How often something is tried again when others write to the same thread.
const TRIES: usize = 256;
/// How often, when a thread's session is gone that was there just now.
pub(crate) const GONE_TRIES: usize = 16;

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Items of the same channel's list in the parent, as they were there.
    Kept {
        /// The first.
        from: usize,
        /// The one after the last.
        to: usize,
    },
    /// An item as the serializer wrote it.
    New(Vec<u8>),
}

/// A channel's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewValue {
    /// As in the parent.
    Same,
    /// As the serializer wrote it, with its word for that.
    Typed(String, Arc<[u8]>),
    /// A list, item by item.
    List(Vec<Part>),
}

/// Where a checkpoint lies. Whatever takes its place under the same id lies elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    pub(crate) session: SessionId,
    pub(crate) mark: Position,
}

/// A checkpoint to keep.
#[derive(Debug, Clone)]
pub struct NewCheckpoint {
    /// Its id.
    pub id: String,
    /// The checkpoint that it comes after.
    pub parent: Option<String>,
    /// Where the parent was that its values were compared with; none when they are whole.
    pub compared: Option<Spot>,
    /// The checkpoint without its values.
    pub skeleton: (String, Vec<u8>),
    /// Its metadata, as JSON.
    pub metadata: Vec<u8>,
    /// Its values.
    pub values: Vec<(String, NewValue)>,
}

impl NewCheckpoint {
    /// Whether anything in it is only said to be as in the parent.
    fn is_whole(&self) -> bool {
        self.values.iter().all(|(_, value)| match value {
            NewValue::Same => false,
            NewValue::Typed(..) => true,
            NewValue::List(parts) => parts.iter().all(|part| matches!(part, Part::New(_))),
        })
    }
}

/// A write of a task.
#[derive(Debug, Clone)]
pub struct NewWrite {
    /// Its place among the task's writes.
    pub index: i64,
    /// The channel.
    pub channel: String,
    /// The serializer's word for how it wrote the value.
    pub word: String,
    /// The value.
    pub bytes: Vec<u8>,
}

/// The writes of a task, for the step after a checkpoint.
#[derive(Debug, Clone)]
pub struct NewWrites {
    /// The checkpoint.
    pub checkpoint: String,
    /// The task.
    pub task: String,
    /// The task's path, by which writes are ordered.
    pub path: String,
    /// Writes that are there already are replaced instead of kept.
    pub replace: bool,
    /// The writes.
    pub writes: Vec<NewWrite>,
}

/// The session's channel for the messages of a graph's channel; none when there can be none.
pub(crate) fn channel_of(name: &str) -> Option<Channel> {
    match name {
        "messages" => Some(Channel::MAIN),
        "main" => None,
        other => Channel::new(other).ok(),
    }
}

/// What a checkpoint is compared with: its parent.
struct Base {
    values: HashMap<String, Known>,
    counts: BTreeMap<Channel, u64>,
    items: Items,
    /// Where the parent's mark is, if it has one.
    mark: Option<Position>,
    /// The same, when the head is not at it.
    fork: Option<Position>,
    at: Option<Position>,
    greatest: String,
}

impl Base {
    /// Messages of a channel up to where they are read.
    fn total(&self, channel: &Channel) -> Option<u64> {
        Some(self.counts.get(channel).copied().unwrap_or(0))
    }
}

/// A checkpoint in the making.
#[derive(Default)]
struct Making {
    messages: Vec<Message>,
    added: Vec<(Channel, u64, Arc<[u8]>)>,
    values: BTreeMap<String, Recipe>,
    known: HashMap<String, (Known, bool)>,
    adopted: HashMap<String, bool>,
    /// What was written for the step before it, and whether anything was copied from there.
    beside: Vec<u8>,
    used: bool,
}

impl Saver {
    /// Keeps a checkpoint; returns when it is durable, with where it lies. None when the parent is no longer what its values
    /// were compared with: nothing was kept, and the whole values are needed.
    pub async fn put(&self, key: &ThreadKey, new: &NewCheckpoint) -> Result<Option<Spot>> {
        let mut slot = self.slot(key).await;
        let mut tries = 0;
        loop {
            let outcome = self.try_put(key, &mut slot, new).await;
            if let Ok(Some(spot)) = outcome {
                return Ok(Some(spot));
            }
            *slot = None;
            match outcome {
                Err(Error::Conflict(_)) if tries < TRIES => {}
                // Whoever pruned the thread put another session in the place of the one that was known.
                Err(Error::NotFound { .. }) if tries < GONE_TRIES => {}
                Err(Error::Conflict(_)) => {
                    return Err(Error::Busy { what: format!("keeping checkpoint {}", new.id), waited_ms: 0 });
                }
                outcome => return outcome,
            }
            tries += 1;
        }
    }

    async fn try_put(&self, key: &ThreadKey, slot: &mut Option<View>, new: &NewCheckpoint) -> Result<Option<Spot>> {
        let view = self.open(key, slot).await?;
        let is_late = view.newest.as_ref().is_some_and(|(newest, _)| new.id <= newest.greatest);
        let id = mark_id(view.session, &new.id);
        if is_late && self.store.backend().mark(self.store.workspace(), id).await?.is_some() {
            *slot = None;
            return Box::pin(self.put_again(key, new)).await;
        }
        let mut base = self.base(view, new).await?;
        let compared = base.mark.map(|mark| Spot { session: view.session, mark });
        if !new.is_whole() && (compared.is_none() || compared != new.compared) {
            return Ok(None);
        }
        let mut making = Making::default();
        if base.fork.is_none() {
            view.sources.iter().for_each(|(_, bytes)| making.beside.extend_from_slice(bytes));
        }
        let pending = if base.fork.is_none() { std::mem::take(&mut view.pending) } else { HashMap::new() };
        let mut plain = |name: &str, word: &str, bytes: &[u8]| {
            typed(&mut making, base.values.get(name), name, Form::Typed(word.to_owned()), bytes.into());
        };
        plain(SKELETON, &new.skeleton.0, &new.skeleton.1);
        plain(METADATA, "json", &new.metadata);
        for (name, value) in &new.values {
            match value {
                NewValue::Same => {
                    let Some(known) = base.values.get(name) else { return Ok(None) };
                    same(&mut making, name, known.clone());
                }
                NewValue::Typed(word, bytes) => {
                    let bytes = Arc::clone(bytes);
                    typed(&mut making, base.values.get(name), name, Form::Typed(word.clone()), bytes);
                }
                NewValue::List(parts) => {
                    if self.list_value(&mut making, &mut base, &pending, name, parts).await?.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
        let early: Vec<u64> = match (view.strays.get(&new.id), base.fork) {
            (Some(places), None) if places.iter().all(|(line, _)| *line == view.timeline) => {
                places.iter().map(|(_, seq)| *seq).collect()
            }
            _ => Vec::new(),
        };
        let mut strays = None;
        if !early.is_empty() {
            let mut left = view.strays.clone();
            left.remove(&new.id);
            strays = Some(left);
        } else if view.recovered || base.fork.is_some() && !view.strays.is_empty() {
            strays = Some(view.strays.clone());
        }
        let record = Record {
            id: new.id.clone(),
            parent: new.parent.clone(),
            greatest: base.greatest.clone().max(new.id.clone()),
            early,
            sources: if making.used { view.sources.iter().map(|(seq, _)| *seq).collect() } else { Vec::new() },
            values: std::mem::take(&mut making.values),
        };
        let mut append = Append::new().after(view.timeline, view.length);
        for message in std::mem::take(&mut making.messages) {
            append = append.message(message);
        }
        if let Some(strays) = &strays {
            let before = match base.fork {
                None => view.writer.state().await?,
                Some(at) => self.store.state_at(at).await?,
            };
            append = append.state(with_strays(before, strays)?);
        }
        let mark = NewMark {
            id: Some(id),
            extra: Map::from_iter([(FIELD.to_owned(), Value::String(to_text(&record.encode())))]),
            ..NewMark::new(Trigger::Step).label(new.id.clone())
        };
        let append = append.mark(mark);
        let receipt = match base.fork {
            None => view.writer.append(append).await?,
            Some(at) => Box::pin(view.writer.restore_with(at, append)).await?,
        };
        if let Some(strays) = strays {
            (view.strays, view.recovered) = (strays, false);
        }
        settle(view, base, making, record, &receipt);
        self.bound(key, view);
        Ok(view.newest.as_ref().map(|(_, mark)| Spot { session: view.session, mark: *mark }))
    }

    /// The same id again takes the old one's place, and gets its writes.
    async fn put_again(&self, key: &ThreadKey, new: &NewCheckpoint) -> Result<Option<Spot>> {
        if !new.is_whole() {
            return Ok(None);
        }
        let change = Change { instead: Some(new), ..Change::default() };
        Box::pin(self.rebuild(key, &change)).await?;
        if let Some(session) = self.resolve(key).await?
            && let Some((_, mark)) = self.record(session, &new.id).await?
        {
            return Ok(Some(Spot { session, mark: mark.at }));
        }
        // Whoever deleted it was quicker.
        Err(milepost_store::Conflict::Exists { what: "checkpoint", id: new.id.clone() }.into())
    }

    /// What a checkpoint is compared with, and where it goes.
    async fn base(&self, view: &mut View, new: &NewCheckpoint) -> Result<Base> {
        if let Some((newest, mark)) = &view.newest
            && new.parent.as_ref() == Some(&newest.id)
        {
            return Ok(Base {
                values: std::mem::take(&mut view.values),
                counts: view.counts.clone(),
                items: std::mem::take(&mut view.items),
                mark: Some(*mark),
                fork: None,
                at: Some(Position { timeline: view.timeline, seq: Seq(view.length.saturating_sub(1)) }),
                greatest: newest.greatest.clone(),
            });
        }
        let bare = |view: &View| Base {
            values: HashMap::new(),
            counts: view.counts.clone(),
            items: Items::default(),
            mark: None,
            fork: None,
            at: None,
            greatest: view.newest.as_ref().map(|(newest, _)| newest.greatest.clone()).unwrap_or_default(),
        };
        // Without a parent, or with one that is gone, it stands by itself at the end.
        let Some(parent) = &new.parent else { return Ok(bare(view)) };
        let Some((record, mark)) = Box::pin(self.record(view.session, parent)).await? else { return Ok(bare(view)) };
        Ok(Base {
            values: Box::pin(self.values(&record, mark.at)).await?,
            counts: mark.checkpoint.counts.clone(),
            items: Items::default(),
            mark: Some(mark.at),
            fork: Some(mark.at),
            at: Some(mark.at),
            greatest: record.greatest,
        })
    }

    /// A list: of messages where it can be, else whole. None when the parent does not have what it refers to.
    async fn list_value(
        &self,
        making: &mut Making,
        base: &mut Base,
        pending: &HashMap<u128, (Channel, u64)>,
        name: &str,
        parts: &[Part],
    ) -> Result<Option<()>> {
        let known = base.values.get(name).cloned();
        let old = match &known {
            Some(Known { form: Form::List, bytes, .. }) => Some(Runs::decode(bytes)?),
            _ => None,
        };
        let new_items = || parts.iter().filter_map(|part| if let Part::New(item) = part { Some(item) } else { None });
        let is_fresh = known.as_ref().is_none_or(|known| {
            known.form == Form::List || msgpack::items(&known.bytes).is_some_and(|items| items.is_empty())
        });
        // What was written for this step and is there already is a message.
        let hashes: Vec<u128> = new_items().map(|item| xxh3_128(item)).collect();
        let own = channel_of(name);
        let is_there = |hash: &u128| {
            pending.get(hash).is_some_and(|(channel, number)| Some(channel) == own.as_ref() && *number != INLINE)
        };
        let messages: Option<Vec<Option<Message>>> = new_items()
            .zip(&hashes)
            .map(|(item, hash)| if is_there(hash) { Some(None) } else { to_message(item).map(Some) })
            .collect();
        let (Some(channel), true, Some(messages), false) = (own.clone(), is_fresh, messages, parts.is_empty()) else {
            let whole = Box::pin(self.whole(base, name, known.as_ref(), old.as_ref(), parts)).await?;
            let Some(whole) = whole else { return Ok(None) };
            typed(making, known.as_ref(), name, Form::Typed("msgpack".to_owned()), whole.into());
            return Ok(Some(()));
        };
        let old = old.unwrap_or_default();
        // Whoever compared nothing gives every item: those that are there already are found by their bytes.
        let is_compared = parts.iter().any(|part| matches!(part, Part::Kept { .. })) || old.len() == 0;
        let stored = match is_compared {
            true => Vec::new(),
            false => {
                let total = base.total(&channel);
                Box::pin(self.list_items(&mut base.items, base.at, &channel, total, &old)).await?
            }
        };
        let places: HashMap<u128, u64> =
            stored.iter().zip(old.numbers()).map(|(item, number)| (xxh3_128(item), number)).collect();
        let mut runs = Runs::default();
        let (mut place, mut count) = (0usize, base.counts.get(&channel).copied().unwrap_or(0));
        count += making.added.iter().filter(|(other, ..)| *other == channel).count() as u64;
        let mut messages = messages.into_iter().zip(hashes);
        let (mut was_pending, mut found_pending) = (false, false);
        for part in parts {
            match part {
                Part::Kept { from, to } => {
                    if *to as u64 > old.len() || from > to {
                        return Ok(None);
                    }
                    for (start, length) in old.part(*from as u64, *to as u64).0 {
                        runs.push(start, length);
                    }
                    place += to - from;
                }
                Part::New(item) => {
                    let Some((message, hash)) = messages.next() else { return Ok(None) };
                    let here = stored.get(place).is_some_and(|old| **old == **item);
                    let found = match here {
                        true => old.numbers().nth(place),
                        false => places.get(&hash).copied(),
                    };
                    let waiting = pending.get(&hash);
                    was_pending |= !pending.is_empty();
                    found_pending |= waiting.is_some();
                    let waiting = waiting.filter(|(other, _)| *other == channel).map(|(_, number)| *number);
                    match found.or(waiting.filter(|number| *number != INLINE)) {
                        Some(number) => runs.push(number, 1),
                        None => {
                            let Some(message) = message else { return Ok(None) };
                            making.messages.push(message.in_channel(channel.clone()));
                            making.added.push((channel.clone(), count, Arc::from(item.as_slice())));
                            runs.push(count, 1);
                            count += 1;
                        }
                    }
                    place += 1;
                }
            }
        }
        if was_pending {
            making.adopted.insert(name.to_owned(), found_pending);
        }
        typed(making, known.as_ref(), name, Form::List, runs.encode().into());
        Ok(Some(()))
    }

    /// A list that is kept whole. None as above.
    async fn whole(
        &self,
        base: &mut Base,
        name: &str,
        known: Option<&Known>,
        old: Option<&Runs>,
        parts: &[Part],
    ) -> Result<Option<Vec<u8>>> {
        let needs_old = parts.iter().any(|part| matches!(part, Part::Kept { .. }));
        let kept: Vec<Arc<[u8]>> = match (needs_old, known, old) {
            (false, ..) => Vec::new(),
            (true, _, Some(runs)) => {
                let Some(channel) = channel_of(name) else { return Ok(None) };
                let total = base.total(&channel);
                self.list_items(&mut base.items, base.at, &channel, total, runs).await?
            }
            (true, Some(known), None) => {
                let is_open = matches!(&known.form, Form::Typed(word) if word == "msgpack");
                let items = msgpack::items(&known.bytes).filter(|_| is_open);
                let Some(items) = items else { return Ok(None) };
                items.into_iter().map(Arc::from).collect()
            }
            (true, None, None) => return Ok(None),
        };
        let mut items: Vec<&[u8]> = Vec::new();
        for part in parts {
            match part {
                Part::Kept { from, to } => {
                    let Some(kept) = kept.get(*from..*to) else { return Ok(None) };
                    items.extend(kept.iter().map(AsRef::as_ref));
                }
                Part::New(item) => items.push(item),
            }
        }
        Ok(Some(msgpack::array(items.len(), items.into_iter())))
    }

    /// Keeps the writes of a task; returns when they are durable.
    pub async fn put_writes(&self, key: &ThreadKey, new: &NewWrites) -> Result<()> {
        if new.writes.is_empty() {
            return Ok(());
        }
        let mut slot = self.slot(key).await;
        for tries in 0.. {
            let outcome = self.try_put_writes(key, &mut slot, new).await;
            let Err(error) = outcome else { return Ok(()) };
            *slot = None;
            match error {
                Error::Conflict(_) if tries < TRIES => {}
                // Whoever pruned the thread put another session in the place of the one that was known.
                Error::NotFound { .. } if tries < GONE_TRIES => {}
                Error::Conflict(_) => {
                    return Err(Error::Busy {
                        what: format!("keeping writes for checkpoint {}", new.checkpoint),
                        waited_ms: 0,
                    });
                }
                error => return Err(error),
            }
        }
        Ok(())
    }

    async fn try_put_writes(&self, key: &ThreadKey, slot: &mut Option<View>, new: &NewWrites) -> Result<()> {
        let view = self.open(key, slot).await?;
        let is_newest = view.direct && view.newest.as_ref().is_some_and(|(newest, _)| newest.id == new.checkpoint);
        let mut messages = Vec::new();
        let mut added: Vec<(Channel, u64, Arc<[u8]>)> = Vec::new();
        let mut pending = Vec::new();
        let mut writes = Vec::new();
        for write in &new.writes {
            let mut form = Form::Typed(write.word.clone());
            let mut bytes = write.bytes.clone();
            let items = if write.word == "msgpack" { msgpack::items(&write.bytes) } else { None };
            if let (true, Some(items), Some(channel)) = (is_newest, items, channel_of(&write.channel)) {
                let said: Option<Vec<Message>> = items.iter().map(|item| to_message(item)).collect();
                let before = view.adopted.get(&write.channel).copied();
                // What has no id yet gets one, and comes back as another.
                let adopts = before != Some(false)
                    && items.iter().all(|item| msgpack::is_named(item).unwrap_or(before == Some(true)));
                match said {
                    Some(said) if !said.is_empty() && adopts => {
                        let before = added.iter().filter(|(other, ..)| *other == channel).count() as u64;
                        let from = view.counts.get(&channel).copied().unwrap_or(0) + before;
                        for (number, (item, message)) in items.iter().zip(said).enumerate() {
                            messages.push(message.in_channel(channel.clone()));
                            added.push((channel.clone(), from + number as u64, Arc::from(*item)));
                            pending.push((xxh3_128(item), (channel.clone(), from + number as u64)));
                        }
                        let mut runs = Runs::default();
                        runs.push(from, items.len() as u64);
                        (form, bytes) = (Form::List, runs.encode());
                    }
                    // Remembered to find out whether messages come back as they were written.
                    Some(_) => pending.extend(items.iter().map(|item| (xxh3_128(item), (channel.clone(), INLINE)))),
                    None => {}
                }
            }
            writes.push(Write { index: write.index, channel: write.channel.clone(), form, bytes });
        }
        let record =
            Writes { checkpoint: None, task: new.task.clone(), path: new.path.clone(), replace: new.replace, writes };
        // What follows its checkpoint's mark need not name it.
        let data = match is_newest {
            true => json!({ "writes": to_text(&record.encode()) }),
            false => json!({ "checkpoint": new.checkpoint, "writes": to_text(&record.encode()) }),
        };
        let mut append = Append::new().after(view.timeline, view.length);
        for message in messages {
            append = append.message(message);
        }
        append = append.event(Event::new(WRITES, data));
        let mut strays = None;
        if !is_newest {
            let mut all = view.strays.clone();
            all.entry(new.checkpoint.clone()).or_default().push((view.timeline, view.length));
            append = append.state(with_strays(view.writer.state().await?, &all)?);
            strays = Some(all);
        }
        let event = view.length + added.len() as u64;
        let receipt = view.writer.append(append).await?;
        view.length = receipt.length;
        if is_newest {
            let beside = record.beside().collect::<Vec<_>>().concat();
            view.sources.push((event, beside));
        }
        if let Some(strays) = strays {
            (view.strays, view.recovered) = (strays, false);
        }
        for (channel, number, item) in added {
            *view.counts.entry(channel.clone()).or_default() += 1;
            view.items.remember(&channel, number, item);
        }
        view.pending.extend(pending);
        self.bound(key, view);
        Ok(())
    }
}

/// Stands for a message that was written, but not as a message of the session.
const INLINE: u64 = u64::MAX;

fn same(making: &mut Making, name: &str, known: Known) {
    let recipe = match known.bytes.len() <= SHORT {
        true => Recipe { form: known.form.clone(), chain: Vec::new(), own: Some(known.bytes.to_vec()) },
        false => Recipe { form: known.form.clone(), chain: known.chain.clone(), own: None },
    };
    let is_own = recipe.own.is_some();
    let known = if is_own { Known { chain: Vec::new(), changes: 0, ..known } } else { known };
    making.values.insert(name.to_owned(), recipe);
    making.known.insert(name.to_owned(), (known, is_own));
}

/// A value as it is to be stored: whole, or as a change of what the parent has.
fn typed(making: &mut Making, known: Option<&Known>, name: &str, form: Form, bytes: Arc<[u8]>) {
    let known = known.filter(|known| known.form == form && bytes.len() > SHORT);
    if let Some(known) = known {
        if Arc::ptr_eq(&known.bytes, &bytes) || known.bytes == bytes {
            return same(making, name, known.clone());
        }
        let (change, used) = delta::diff(&known.bytes, &making.beside, &bytes);
        let changes = known.changes + change.len();
        if known.chain.len() < MAX_CHAIN && change.len() * 2 < bytes.len() && changes < bytes.len().max(1024) {
            let next = Known { form: form.clone(), bytes, chain: known.chain.clone(), changes };
            making.values.insert(name.to_owned(), Recipe { form, chain: known.chain.clone(), own: Some(change) });
            making.known.insert(name.to_owned(), (next, true));
            making.used |= used;
            return;
        }
    }
    making.values.insert(name.to_owned(), Recipe { form: form.clone(), chain: Vec::new(), own: Some(bytes.to_vec()) });
    let next = Known { form, bytes, chain: Vec::new(), changes: 0 };
    making.known.insert(name.to_owned(), (next, true));
}

/// What is known after a checkpoint was stored.
fn settle(view: &mut View, base: Base, making: Making, record: Record, receipt: &Receipt) {
    let seq = receipt.length - 1;
    view.timeline = receipt.first.timeline;
    view.length = receipt.length;
    view.counts = base.counts;
    view.items = base.items;
    for (channel, number, item) in making.added {
        *view.counts.entry(channel.clone()).or_default() += 1;
        view.items.remember(&channel, number, item);
    }
    let known = making.known.into_iter().map(|(name, (mut known, is_own))| {
        if is_own {
            known.chain.push(seq);
        }
        (name, known)
    });
    view.values = known.collect();
    view.direct = true;
    view.pending.clear();
    view.sources.clear();
    view.adopted.extend(making.adopted);
    view.newest = Some((record, Position { timeline: view.timeline, seq: Seq(seq) }));
}
