//! LangGraph's checkpointer: what is quick about it. Its methods' meaning is in `milepost/langgraph.py`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use milepost_langgraph::{
    Found, FoundValue, Import, Listing, NewCheckpoint, NewValue, NewWrite, NewWrites, Part, Spot, ThreadKey, arrays,
};
use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde_json::Value;

use crate::convert::to_json;
use crate::engine::{Engine, Place};
use crate::entries::{Entries, Looked};
use crate::message::Forms;
use crate::run::run;
use crate::snapshot::Snapshots;

/// So many threads' newest values are remembered, and about so many bytes of them. Those of the newest are, whatever they are:
/// whoever works with a thread has them anyway.
const REMEMBERED: usize = 128;
const REMEMBERED_BYTES: usize = 64 << 20;

/// The values that a checkpoint had when it was last seen, to tell what changed since.
struct Seen {
    checkpoint: String,
    /// Where it lies; none until it does.
    spot: Option<Spot>,
    versions: Py<PyDict>,
    /// Its channels, and what is no list of them: in the same order.
    names: Vec<String>,
    plain: Snapshots,
    /// About how large each of them is: so many bytes the serializer made of it.
    sizes: Vec<usize>,
    lists: HashMap<String, Snapshots>,
    dicts: HashMap<String, Entries>,
    written: Written,
}

/// Items of lists that tasks wrote for the next checkpoint, as the serializer wrote them: those that come back in it as they
/// were need not be serialised once more.
#[derive(Default)]
struct Written {
    items: Snapshots,
    bytes: Vec<Vec<u8>>,
    total: usize,
}

/// So many items that were written are remembered, and so many bytes of them.
const WRITTEN_ITEMS: usize = 64;
const WRITTEN_BYTES: usize = 1 << 20;

impl Written {
    /// Serialises a value that was written; the items of a list are remembered.
    fn dumps(&mut self, serializer: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<(String, Vec<u8>)> {
        let list = value.cast_exact::<PyList>().ok().filter(|list| list.len() <= WRITTEN_ITEMS);
        let Some(list) = list else {
            let (word, bytes) = dumps(serializer, value)?;
            return Ok((word, bytes.as_bytes().to_vec()));
        };
        // Looked at first: what someone changes meanwhile is not what it was.
        let mut items = Snapshots::default();
        list.iter().for_each(|item| items.push(&item));
        let (word, written) = dumps(serializer, value)?;
        let bytes = written.as_bytes();
        if let Some(cut) = arrays::items(bytes)
            && word == "msgpack"
            && cut.len() == items.len()
            && items.are_of(list)
        {
            let total = bytes.len();
            drop(self.join(Self { items, bytes: cut.into_iter().map(<[u8]>::to_vec).collect(), total }));
        }
        Ok((word, bytes.to_vec()))
    }

    /// Adds what another task wrote, if there is room for it; else gives it back.
    fn join(&mut self, other: Self) -> Option<Self> {
        if self.bytes.len() + other.bytes.len() > WRITTEN_ITEMS || self.total + other.total > WRITTEN_BYTES {
            return Some(other);
        }
        self.items.append(other.items);
        self.bytes.extend(other.bytes);
        self.total += other.total;
        None
    }

    /// The place of an object that is still what it was when it was written.
    fn find(&self, object: &Bound<'_, PyAny>) -> Option<usize> {
        (0..self.bytes.len()).find(|at| self.items.is_still(*at, object))
    }
}

/// What was seen of threads.
#[derive(Default)]
struct Threads {
    seen: HashMap<(String, String), (u64, Seen)>,
    bytes: usize,
    /// Counts up whenever something was seen.
    times: u64,
}

impl Threads {
    fn remove(&mut self, key: &(String, String)) -> Option<Seen> {
        let (_, seen) = self.seen.remove(key)?;
        self.bytes -= seen.bytes();
        Some(seen)
    }

    /// Gives what is too much, to be let go of: what was seen longest ago.
    fn excess(&mut self) -> Vec<Seen> {
        let mut gone = Vec::new();
        while self.seen.len() > REMEMBERED || (self.bytes > REMEMBERED_BYTES && self.seen.len() > 1) {
            let oldest = self.seen.iter().min_by_key(|(_, (time, _))| *time).map(|(key, _)| key.clone());
            gone.extend(oldest.and_then(|key| self.remove(&key)));
        }
        gone
    }
}

type All = Arc<Mutex<Threads>>;

/// Keeps LangGraph's threads in a store.
#[pyclass(frozen, module = "milepost._milepost")]
pub(crate) struct LangGraph {
    place: Arc<Place>,
    seen: All,
    forms: Arc<Forms>,
    /// The places of writes to LangGraph's own channels.
    places: Py<PyDict>,
}

/// Where a call is about: thread, namespace, and a checkpoint if one is named.
fn about<'py>(config: &Bound<'py, PyAny>) -> PyResult<(String, String, Option<Bound<'py, PyAny>>)> {
    let py = config.py();
    let configurable = config.get_item(intern!(py, "configurable"))?;
    let thread = configurable.get_item(intern!(py, "thread_id"))?.str()?.extract()?;
    let get = |name: &Bound<'py, PyString>| configurable.call_method1(intern!(py, "get"), (name,));
    let namespace = get(intern!(py, "checkpoint_ns"))?;
    let namespace = if namespace.is_truthy()? { namespace.extract()? } else { String::new() };
    Ok((thread, namespace, Some(get(intern!(py, "checkpoint_id"))?).filter(|id| !id.is_none())))
}

/// An object of JSON as text, when it has nothing in it that Python's encoder would write in a way of its own.
fn plain_json(value: &Bound<'_, PyAny>, depth: usize, out: &mut Vec<u8>) -> Option<()> {
    const MAX_DEPTH: usize = 16;
    if depth > MAX_DEPTH {
        return None;
    }
    let mut items = |all: &mut dyn Iterator<Item = Bound<'_, PyAny>>| {
        out.push(b'[');
        for (number, item) in all.enumerate() {
            if number > 0 {
                out.push(b',');
            }
            plain_json(&item, depth + 1, out)?;
        }
        out.push(b']');
        Some(())
    };
    if let Ok(text) = value.cast_exact::<PyString>() {
        serde_json::to_writer(out, text.to_str().ok()?).ok()
    } else if value.is_none() {
        out.extend_from_slice(b"null");
        Some(())
    } else if let Ok(truth) = value.cast_exact::<PyBool>() {
        out.extend_from_slice(if truth.is_true() { b"true" } else { b"false" });
        Some(())
    } else if value.is_exact_instance_of::<PyInt>() {
        serde_json::to_writer(out, &value.extract::<i64>().ok()?).ok()
    } else if let Ok(list) = value.cast_exact::<PyList>() {
        items(&mut list.iter())
    } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
        items(&mut tuple.iter())
    } else if let Ok(dict) = value.cast_exact::<PyDict>() {
        out.push(b'{');
        for (number, (key, value)) in dict.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            serde_json::to_writer(&mut *out, key.cast_exact::<PyString>().ok()?.to_str().ok()?).ok()?;
            out.push(b':');
            plain_json(&value, depth + 1, out)?;
        }
        out.push(b'}');
        Some(())
    } else {
        None
    }
}

/// Metadata as JSON, as Python's encoder writes it; what is no text of Unicode is left out of it.
fn metadata_json(metadata: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut out = Vec::new();
    if plain_json(metadata, 0, &mut out).is_some() {
        return Ok(out);
    }
    let encode = metadata.py().import("milepost.langgraph")?.getattr("_to_json")?;
    encode.call1((metadata,))?.call_method1("encode", ("utf-8", "ignore"))?.extract()
}

/// What was seen last of a thread is taken out to be worked with: nobody holds the lock while objects are made or let go, since
/// that can run code of Python's, which may come here again.
fn take(seen: &All, key: &(String, String)) -> Option<Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
}

fn remember(seen: &All, key: (String, String), new: Seen) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let replaced = seen.remove(&key);
    seen.times += 1;
    seen.bytes += new.bytes();
    let time = seen.times;
    seen.seen.insert(key, (time, new));
    let forgotten = seen.excess();
    drop(seen);
    drop((forgotten, replaced));
}

/// Forgets what was seen of any thread: it may be gone, or have become something else.
fn forget(seen: &All) {
    let forgotten = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    drop(forgotten);
}

/// Keeps what was written for the checkpoint after the one that was seen last.
fn note(seen: &All, key: &(String, String), checkpoint: &str, written: Written) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let total = written.total;
    let left = match seen.seen.get_mut(key).filter(|(_, known)| known.checkpoint == checkpoint) {
        Some((_, known)) => known.written.join(written),
        None => Some(written),
    };
    if left.is_none() {
        seen.bytes += total;
    }
    drop(seen);
    drop(left);
}

/// Where a checkpoint lies, for whoever gives it back.
#[pyclass(frozen)]
struct Lies {
    spot: Spot,
    /// The sizes of its values.
    sizes: Vec<usize>,
}

/// About how large a value is, and at least as large as it is, if its parent's is known.
fn size(value: &NewValue, before: usize) -> usize {
    match value {
        NewValue::Same => before,
        NewValue::Typed(_, bytes) => bytes.len(),
        NewValue::List(parts) => {
            let is_kept = parts.iter().any(|part| matches!(part, Part::Kept { .. }));
            let new = parts.iter().map(|part| if let Part::New(item) = part { item.len() } else { 0 });
            new.sum::<usize>() + if is_kept { before } else { 0 }
        }
    }
}

/// What the serializer makes of an object: its word and the bytes.
pub(crate) fn dumps<'py>(
    dumps: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<(String, Bound<'py, PyBytes>)> {
    let (word, bytes): (String, Bound<'py, PyAny>) = dumps.call1((value,))?.extract()?;
    let bytes = match bytes.cast_into::<PyBytes>() {
        Ok(bytes) => bytes,
        Err(other) => PyBytes::new(value.py(), &other.into_inner().extract::<Vec<u8>>()?),
    };
    Ok((word, bytes))
}

/// A list against what it was: which items are still there, and what the others are.
fn compare(
    list: &Bound<'_, PyList>,
    mut old: Snapshots,
    written: &Written,
    serializer: &Bound<'_, PyAny>,
) -> PyResult<Option<(Vec<Part>, Snapshots)>> {
    let py = list.py();
    let length = list.len();
    let front = old.front(list);
    let longest = length.min(old.len()) - front;
    let mut back = 0;
    while back < longest && old.is_still(old.len() - back - 1, &list.get_item(length - back - 1)?) {
        back += 1;
    }
    // What is at the front stays where it is: most often that is everything.
    let (kept, rest) = (old.len(), old.split_off(front));
    let mut items = old;
    let middle = rest.len() - back;
    let between: HashMap<usize, usize> = (0..middle).map(|at| (rest.root(at) as usize, at)).collect();
    let (new, mut missing) = (PyList::empty(py), Vec::new());
    let mut parts = Vec::new();
    if front > 0 {
        parts.push(Part::Kept { from: 0, to: front });
    }
    for at in front..length - back {
        let object = list.get_item(at)?;
        let known = between.get(&(object.as_ptr() as usize)).filter(|known| rest.is_still(**known, &object));
        match known {
            Some(known) => {
                items.push_again(py, &rest, *known);
                parts.push(Part::Kept { from: front + known, to: front + known + 1 });
            }
            None => match written.find(&object) {
                Some(place) => {
                    items.push_again(py, &written.items, place);
                    parts.push(Part::New(written.bytes[place].clone()));
                }
                None => {
                    new.append(&object)?;
                    items.push(&object);
                    missing.push(parts.len());
                    parts.push(Part::New(Vec::new()));
                }
            },
        }
    }
    if back > 0 {
        parts.push(Part::Kept { from: kept - back, to: kept });
        (middle..rest.len()).for_each(|at| items.push_again(py, &rest, at));
    }
    if parts.is_empty() {
        // Only the serializer knows how it writes a list without items.
        return Ok(None);
    }
    if !new.is_empty() {
        let (word, bytes) = dumps(serializer, &new)?;
        let Some(cut) = arrays::items(bytes.as_bytes()).filter(|cut| word == "msgpack" && cut.len() == new.len())
        else {
            return Ok(None);
        };
        missing.into_iter().zip(cut).for_each(|(place, item)| parts[place] = Part::New(item.to_vec()));
    }
    Ok(Some((parts, items)))
}

impl Seen {
    fn bytes(&self) -> usize {
        let of_dicts: usize = self.dicts.values().map(Entries::bytes).sum();
        self.written.total + of_dicts + self.sizes.iter().sum::<usize>()
    }

    /// The place of a channel.
    fn place(&self, channel: &str) -> Option<(&Self, usize)> {
        Some((self, self.names.iter().position(|name| name == channel)?))
    }

    /// Whether a channel's version is what it was.
    fn is_unchanged(&self, channel: &str, versions: &Bound<'_, PyDict>) -> PyResult<bool> {
        match (self.versions.bind(versions.py()).get_item(channel)?, versions.get_item(channel)?) {
            (Some(before), Some(now)) => before.eq(&now),
            _ => Ok(false),
        }
    }

    /// Copies of the items that a list had, if they are still what they were: quicker than to read them.
    fn copies<'py>(&mut self, py: Python<'py>, channel: &str, length: usize) -> Option<Bound<'py, PyList>> {
        let old = self.lists.get_mut(channel).filter(|old| old.len() == length)?;
        let (copies, next) = old.copies(py)?;
        *old = next;
        PyList::new(py, copies).ok()
    }
}

fn pairs<'py>(py: Python<'py>, found: &Found) -> PyResult<Bound<'py, PyList>> {
    let writes = PyList::empty(py);
    for write in &found.writes {
        writes.append((&write.task, &write.channel, &write.word, PyBytes::new(py, &write.bytes)))?;
    }
    Ok(writes)
}

/// The items of all lists, each once, and for every list where its items are among them.
fn pooled(all: &[Found]) -> (Vec<Arc<[u8]>>, Vec<Vec<usize>>) {
    let (mut pool, mut known) = (Vec::new(), HashMap::<*const u8, usize>::new());
    let mut places: Vec<Vec<usize>> = Vec::new();
    // Most items stand where they stand in the list of the same channel that was looked at last.
    let mut last = HashMap::new();
    for (channel, value) in all.iter().flat_map(|found| &found.values) {
        let FoundValue::List(items) = value else { continue };
        let before = last.insert(channel.as_str(), (items.as_slice(), places.len()));
        let place_of = |(number, item): (usize, &Arc<[u8]>)| {
            let same = before.filter(|(items, _)| items.get(number).is_some_and(|other| Arc::ptr_eq(item, other)));
            match same {
                Some((_, list)) => places[list][number],
                None => *known.entry(item.as_ptr()).or_insert_with(|| {
                    pool.push(Arc::clone(item));
                    pool.len() - 1
                }),
            }
        };
        let found = items.iter().enumerate().map(place_of).collect();
        places.push(found);
    }
    (pool, places)
}

/// `(thread, namespace, id, parent, (word, skeleton), metadata, values, writes)`, and where it lies.
fn tuple<'py>(
    py: Python<'py>,
    found: &Found,
    values: Bound<'py, PyAny>,
    lies: Option<Lies>,
) -> PyResult<Bound<'py, PyAny>> {
    let skeleton = (&found.skeleton.0, PyBytes::new(py, &found.skeleton.1));
    let parts = (
        &found.key.thread,
        &found.key.namespace,
        &found.id,
        &found.parent,
        skeleton,
        PyBytes::new(py, &found.metadata),
        values,
        pairs(py, found)?,
        lies,
    );
    Ok(parts.into_pyobject(py)?.into_any())
}

#[pymethods]
impl LangGraph {
    #[new]
    fn new(engine: &Bound<'_, Engine>, places: Py<PyDict>) -> Self {
        Self { place: Arc::clone(&engine.get().place), seen: All::default(), forms: Arc::default(), places }
    }

    /// Forgets what was seen.
    fn forget(&self) {
        forget(&self.seen);
    }

    /// Keeps a checkpoint, and gives the configuration that names it: none when its parent is no longer what was seen. Then
    /// `strict` is needed. `is_own`: the serializer is LangGraph's own.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn put<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        serializer: Bound<'py, PyAny>,
        is_own: bool,
        config: Bound<'py, PyAny>,
        checkpoint: Bound<'py, PyMapping>,
        metadata: Bound<'py, PyAny>,
        new_versions: Option<Bound<'py, PyDict>>,
        strict: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (thread, namespace, parent) = about(&config)?;
        let parent: Option<String> = parent.map(|id| id.extract()).transpose()?;
        let skeleton = PyDict::new(py);
        skeleton.update(&checkpoint)?;
        let values = checkpoint.get_item(intern!(py, "channel_values"))?.cast_into::<PyDict>()?;
        skeleton.del_item(intern!(py, "channel_values"))?;
        let id: String = checkpoint.get_item(intern!(py, "id"))?.extract()?;
        let versions = match skeleton.get_item(intern!(py, "channel_versions"))? {
            Some(versions) if versions.is_truthy()? => versions.cast_into::<PyDict>()?.copy()?,
            _ => PyDict::new(py),
        };
        let new_versions = new_versions.unwrap_or_else(|| PyDict::new(py));
        let metadata = metadata_json(&metadata)?;
        let name = (thread.clone(), namespace.clone());
        let mut new_values = Vec::with_capacity(values.len());
        // Taken out: what was seen is replaced by what is put, or forgotten when that fails.
        let mut seen = take(&self.seen, &name).filter(|seen| !strict && Some(&seen.checkpoint) == parent.as_ref());
        let mut next = Seen {
            checkpoint: id.clone(),
            spot: None,
            versions: versions.clone().unbind(),
            names: Vec::with_capacity(values.len()),
            plain: Snapshots::default(),
            sizes: Vec::new(),
            lists: HashMap::new(),
            dicts: HashMap::new(),
            written: Written::default(),
        };
        let written = seen.as_mut().map(|seen| std::mem::take(&mut seen.written)).unwrap_or_default();
        for (channel, value) in values.iter() {
            let channel: String = channel.extract()?;
            let old = seen.as_mut().and_then(|seen| seen.lists.remove(&channel));
            let entries = seen.as_mut().and_then(|seen| seen.dicts.remove(&channel));
            let place = seen.as_ref().and_then(|seen| seen.place(&channel));
            let before = match place {
                Some((seen, _)) if new_versions.contains(&channel)? || !seen.is_unchanged(&channel, &versions)? => None,
                place => place,
            };
            let new = match (value.cast_exact::<PyList>(), before) {
                // Nobody says that it is new; somebody may still have changed it where it is.
                (Ok(list), Some(_)) if old.as_ref().is_none_or(|old| old.may_be_all(list)) => {
                    next.plain.push_closed(&value);
                    next.lists.extend(old.map(|old| (channel.clone(), old)));
                    NewValue::Same
                }
                (Err(_), Some((seen, place)))
                    if seen.plain.is_still(place, &value)
                        || seen.plain.may_be(place, &value)
                            && entries.as_ref().is_none_or(|entries| entries.may_be_all(&value)) =>
                {
                    next.plain.push_again(py, &seen.plain, place);
                    next.dicts.extend(entries.map(|entries| (channel.clone(), entries)));
                    NewValue::Same
                }
                (Ok(list), _) => {
                    next.plain.push_closed(&value);
                    match compare(list, old.unwrap_or_default(), &written, &serializer)? {
                        Some((parts, items)) => {
                            next.lists.insert(channel.clone(), items);
                            NewValue::List(parts)
                        }
                        None => {
                            let (word, bytes) = dumps(&serializer, &value)?;
                            NewValue::Typed(word, bytes.as_bytes().into())
                        }
                    }
                }
                (Err(_), _) => {
                    let dict = value.cast_exact::<PyDict>().ok().filter(|_| is_own && !strict);
                    let (word, bytes, entries) = match dict.and_then(|dict| Looked::at(dict, entries)) {
                        Some(looked) => looked.dumps(&serializer, &mut next.plain)?,
                        None => {
                            // Looked at first: what someone changes meanwhile is not what it was.
                            next.plain.push(&value);
                            let (word, bytes) = dumps(&serializer, &value)?;
                            (word, bytes.as_bytes().into(), None)
                        }
                    };
                    next.dicts.extend(entries.map(|entries| (channel.clone(), entries)));
                    NewValue::Typed(word, bytes)
                }
            };
            let before = place.map_or(0, |(seen, place)| seen.sizes[place]);
            next.sizes.push(size(&new, before));
            next.names.push(channel.clone());
            new_values.push((channel, new));
        }
        let (word, bytes) = dumps(&serializer, &skeleton)?;
        let skeleton = (word, bytes.as_bytes().to_vec());
        let key = ThreadKey::new(thread, namespace);
        let compared = seen.and_then(|seen| seen.spot);
        let new = NewCheckpoint { id, parent, compared, skeleton, metadata, values: new_values };
        let place = Arc::clone(&self.place);
        let seen = Arc::clone(&self.seen);
        let work = async move { Ok(place.saver().await?.put(&key, &new).await?) };
        run(py, event_loop.as_ref(), work, move |py, spot| {
            if spot.is_none() {
                return Ok(py.None());
            }
            let (config, configurable) = (PyDict::new(py), PyDict::new(py));
            configurable.set_item(intern!(py, "thread_id"), &name.0)?;
            configurable.set_item(intern!(py, "checkpoint_ns"), &name.1)?;
            configurable.set_item(intern!(py, "checkpoint_id"), &next.checkpoint)?;
            config.set_item(intern!(py, "configurable"), configurable)?;
            remember(&seen, name, Seen { spot, ..next });
            Ok(config.into_any().unbind())
        })
    }

    /// Keeps the writes of a task: `(channel, value)` each.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn put_writes<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        serializer: Bound<'py, PyAny>,
        config: Bound<'py, PyAny>,
        writes: Bound<'py, PyAny>,
        task: String,
        path: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (thread, namespace, checkpoint) = about(&config)?;
        let checkpoint: String = match checkpoint {
            Some(checkpoint) => checkpoint.str()?.extract()?,
            None => return Err(PyKeyError::new_err("checkpoint_id")),
        };
        let mut all = Vec::new();
        let mut written = Written::default();
        let places = self.places.bind(py);
        // Those to LangGraph's own channels are replaced, if there are no others among them.
        let mut replace = true;
        for (index, write) in (0i64..).zip(writes.try_iter()?) {
            let write = write?;
            let (channel, value) = (write.get_item(0)?, write.get_item(1)?);
            let place = places.get_item(&channel)?;
            replace &= place.is_some();
            let index = place.map_or(Ok(index), |place| place.extract())?;
            let (word, bytes) = written.dumps(&serializer, &value)?;
            all.push(NewWrite { index, channel: channel.extract()?, word, bytes });
        }
        if !written.bytes.is_empty() {
            note(&self.seen, &(thread.clone(), namespace.clone()), &checkpoint, written);
        }
        let key = ThreadKey::new(thread, namespace);
        let new = NewWrites { checkpoint, task, path, replace, writes: all };
        let place = Arc::clone(&self.place);
        let work = async move { Ok(place.saver().await?.put_writes(&key, &new).await?) };
        run(py, event_loop.as_ref(), work, |py, ()| Ok(py.None()))
    }

    /// One checkpoint, or the newest: its values as `(channel, word, bytes)`, or made where there is no word.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        loads: Bound<'py, PyAny>,
        quick: bool,
        thread: String,
        namespace: String,
        id: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, key) = (Arc::clone(&self.place), ThreadKey::new(thread, namespace));
        let (seen, forms, loads) = (Arc::clone(&self.seen), Arc::clone(&self.forms), loads.unbind());
        let work = async move { Ok(place.saver().await?.get(&key, id.as_deref()).await?) };
        run(py, event_loop.as_ref(), work, move |py, found| {
            let Some(mut found) = found else { return Ok(py.None()) };
            let name = (found.key.thread.clone(), found.key.namespace.clone());
            let mut known = take(&seen, &name);
            let values = PyList::empty(py);
            let sizes = found.values.iter().map(|(_, value)| match value {
                FoundValue::Typed(_, bytes) => bytes.len(),
                FoundValue::List(items) => items.iter().map(|item| item.len()).sum(),
            });
            let lies = Lies { spot: found.spot, sizes: sizes.collect() };
            for (channel, value) in std::mem::take(&mut found.values) {
                // Another serializer may change anything.
                let known = known.as_mut().filter(|known| quick && known.spot == Some(found.spot));
                match value {
                    FoundValue::Typed(word, bytes) => values.append((channel, word, PyBytes::new(py, &bytes)))?,
                    FoundValue::List(items) => {
                        let list = match known.and_then(|known| known.copies(py, &channel, items.len())) {
                            Some(list) => list,
                            None => forms.read(py, &items, loads.bind(py), quick)?,
                        };
                        values.append((channel, py.None(), list))?;
                    }
                }
            }
            if let Some(known) = known {
                remember(&seen, name, known);
            }
            Ok(tuple(py, &found, values.into_any(), Some(lies))?.unbind())
        })
    }

    /// Takes note of what was given out, to recognise it when it comes back: the values as they were found, and the checkpoint
    /// that was made with them. What lies within the checkpoint itself is no value that another can refer to.
    fn given(
        &self,
        thread: String,
        namespace: String,
        id: String,
        lies: &Bound<'_, Lies>,
        found: &Bound<'_, PyList>,
        checkpoint: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let (Some(values), Some(versions)) =
            (checkpoint.get_item("channel_values")?, checkpoint.get_item("channel_versions")?)
        else {
            return Ok(());
        };
        let (values, Lies { spot, sizes }) = (values.cast::<PyDict>()?, lies.get());
        let versions = versions.cast::<PyDict>()?.copy()?.unbind();
        let name = (thread, namespace);
        let mut before = take(&self.seen, &name).filter(|before| before.spot == Some(*spot));
        let mut seen = Seen {
            checkpoint: id,
            spot: Some(*spot),
            versions,
            names: Vec::with_capacity(found.len()),
            plain: Snapshots::default(),
            sizes: Vec::new(),
            lists: HashMap::new(),
            dicts: HashMap::new(),
            written: Written::default(),
        };
        for (found, size) in found.iter().zip(sizes) {
            let (channel, word, _): (String, Option<String>, Bound<'_, PyAny>) = found.extract()?;
            let Some(value) = values.get_item(&channel)? else { continue };
            // The items of what was written otherwise cannot be referred to.
            if let (Ok(list), None | Some("msgpack")) = (value.cast_exact::<PyList>(), word.as_deref()) {
                // Copies that were made of what was seen have been looked at.
                let known = before.as_mut().and_then(|before| before.lists.remove(&channel));
                let known = known.filter(|known| known.are_of(list));
                let items = known.unwrap_or_else(|| {
                    let mut items = Snapshots::default();
                    list.iter().for_each(|item| items.push(&item));
                    items
                });
                seen.lists.insert(channel.clone(), items);
            }
            match value.is_exact_instance_of::<PyList>() {
                true => seen.plain.push_closed(&value),
                false => seen.plain.push(&value),
            }
            seen.names.push(channel);
            seen.sizes.push(*size);
        }
        remember(&self.seen, name, seen);
        Ok(())
    }

    /// Checkpoints; lists are made, of items that those of several checkpoints share.
    #[expect(clippy::too_many_arguments, reason = "each is one of the caller's own")]
    fn list<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        loads: Bound<'py, PyAny>,
        quick: bool,
        thread: Option<String>,
        namespace: Option<String>,
        id: Option<String>,
        before: Option<String>,
        limit: Option<usize>,
        filter: Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Value::Object(filter) = to_json(&filter)? else { return Ok(PyTuple::empty(py).into_any()) };
        let filter = filter.into_iter().collect();
        let listing = Listing { thread, namespace, id, before, filter, limit };
        let (place, forms, loads) = (Arc::clone(&self.place), Arc::clone(&self.forms), loads.unbind());
        let work = async move { Ok(place.saver().await?.list(&listing).await?) };
        run(py, event_loop.as_ref(), work, move |py, mut all| {
            let (pool, places) = pooled(&all);
            let pool = forms.read(py, &pool, loads.bind(py), quick)?;
            let out = PyList::empty(py);
            let mut places = places.into_iter();
            for found in &mut all {
                let values = PyList::empty(py);
                for (channel, value) in std::mem::take(&mut found.values) {
                    match value {
                        FoundValue::Typed(word, bytes) => values.append((channel, word, PyBytes::new(py, &bytes)))?,
                        FoundValue::List(_) => {
                            let made = places.next().into_iter().flatten();
                            let made = made.map(|place| pool.get_item(place)).collect::<PyResult<Vec<_>>>()?;
                            values.append((channel, py.None(), PyList::new(py, made)?))?;
                        }
                    }
                }
                out.append(tuple(py, found, values.into_any(), None)?)?;
            }
            Ok(out.into_any().unbind())
        })
    }

    /// The session of a thread's namespace; none when there is none.
    fn session<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        thread: String,
        namespace: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, key) = (Arc::clone(&self.place), ThreadKey::new(thread, namespace));
        let work = async move { Ok(place.saver().await?.session(&key).await?) };
        run(py, event_loop.as_ref(), work, |py, id| {
            Ok(id.map(|id| id.to_string()).into_pyobject(py)?.into_any().unbind())
        })
    }

    /// What channels were given on the way to a checkpoint: channel, seed, writes.
    fn history<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        thread: String,
        namespace: String,
        id: Option<String>,
        channels: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (place, key) = (Arc::clone(&self.place), ThreadKey::new(thread, namespace));
        let work = async move { Ok(place.saver().await?.history(&key, id.as_deref(), &channels).await?) };
        run(py, event_loop.as_ref(), work, |py, all| {
            let out = PyList::empty(py);
            for (channel, history) in all {
                let seed = history.seed.map(|(word, bytes)| (word, PyBytes::new(py, &bytes).unbind()));
                let writes = PyList::empty(py);
                for write in history.writes {
                    writes.append((write.task, write.channel, write.word, PyBytes::new(py, &write.bytes)))?;
                }
                out.append((channel, seed, writes))?;
            }
            Ok(out.into_any().unbind())
        })
    }

    /// Brings threads over from one of LangGraph's own checkpointers: how many threads, new and known checkpoints, writes; and
    /// threads of which something was left out.
    fn import_threads<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        from: String,
        threads: Vec<String>,
        dry_run: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        let import = Import { from, threads, dry_run };
        let work = async move { Ok(place.saver().await?.import(&import, &mut |_| {}).await?) };
        run(py, event_loop.as_ref(), work, |py, done| {
            let told = (done.threads, done.checkpoints, done.known, done.writes, PyTuple::new(py, done.left_out)?);
            Ok(told.into_pyobject(py)?.into_any().unbind())
        })
    }

    fn delete_thread<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        thread: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        forget(&self.seen);
        let work = async move { Ok(place.saver().await?.delete_thread(&thread).await?) };
        run(py, event_loop.as_ref(), work, |py, ()| Ok(py.None()))
    }

    fn delete_for_runs<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        runs: Vec<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        forget(&self.seen);
        let work = async move { Ok(place.saver().await?.delete_for_runs(&runs).await?) };
        run(py, event_loop.as_ref(), work, |py, ()| Ok(py.None()))
    }

    fn keep_latest<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        thread: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        forget(&self.seen);
        let work = async move { Ok(place.saver().await?.keep_latest(&thread).await?) };
        run(py, event_loop.as_ref(), work, |py, ()| Ok(py.None()))
    }

    fn copy_thread<'py>(
        &self,
        py: Python<'py>,
        event_loop: Option<Bound<'py, PyAny>>,
        from: String,
        to: String,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = Arc::clone(&self.place);
        forget(&self.seen);
        let work = async move { Ok(place.saver().await?.copy_thread(&from, &to).await?) };
        run(py, event_loop.as_ref(), work, |py, ()| Ok(py.None()))
    }
}
