//! A dictionary that is serialised entry by entry: what is still what it was is not serialised again.
//!
//! The serializer writes a dictionary as a map, one entry behind the other, and each as it would by itself. So those that
//! changed are serialised as a dictionary of their own, and the others' bytes are taken from what was made of them before. That
//! holds for LangGraph's own serializer; others may look at all entries together, and are given all of them.

use std::sync::Arc;

use milepost_langgraph::maps;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::langgraph::dumps;
use crate::snapshot::{Snapshots, entries_of};

/// The serializer's word for MessagePack.
const WORD: &str = "msgpack";
/// So far ahead an entry is looked for when others before it are gone.
const AHEAD: usize = 16;

/// So many snapshots are replaced where they are, which moves all behind them; with more, all are put together anew.
const FEW: usize = 8;

type Entry<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// A dictionary's entries as they were when it was serialised.
#[derive(Default)]
pub(crate) struct Entries {
    /// The keys, which are texts. Kept alive: nothing else can be where they are.
    keys: Vec<Py<PyAny>>,
    values: Snapshots,
    /// What the serializer made of all of them.
    bytes: Arc<[u8]>,
    /// Where each begins in it, and where the last ends.
    cuts: Vec<usize>,
}

impl Entries {
    /// How much is remembered.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether an object is a dictionary with these entries, and none is known to have changed: one that cannot be looked into may have.
    pub fn may_be_all(&self, object: &Bound<'_, PyAny>) -> bool {
        let Ok(dict) = object.cast_exact::<PyDict>() else { return false };
        let found = entries_of(dict);
        let is_same = |(at, (key, value)): (usize, &Entry<'_>)| {
            self.is_key(at, key) && self.values.root(at) == value.as_ptr() && self.values.may_be(at, value)
        };
        found.len() == self.keys.len() && found.iter().enumerate().all(is_same)
    }

    fn is_key(&self, at: usize, key: &Bound<'_, PyAny>) -> bool {
        self.keys.get(at).is_some_and(|known| known.as_ptr() == key.as_ptr())
    }

    /// Where an entry with this key is, from a place on.
    fn find(&self, key: &Bound<'_, PyAny>, from: usize) -> Option<usize> {
        (from..self.keys.len().min(from + AHEAD)).find(|at| self.is_key(*at, key))
    }
}

/// A dictionary that was looked at, and is to be serialised.
pub(crate) struct Looked<'py> {
    dict: Bound<'py, PyDict>,
    found: Vec<Entry<'py>>,
    /// For each the one of the old that it still is.
    same: Vec<Option<usize>>,
    values: Snapshots,
    old: Entries,
}

impl<'py> Looked<'py> {
    /// Looks at a dictionary, beside what is known of it. None when it is not serialised entry by entry: it has other keys than
    /// texts.
    pub fn at(dict: &Bound<'py, PyDict>, old: Option<Entries>) -> Option<Self> {
        let py = dict.py();
        let found = entries_of(dict);
        if found.iter().any(|(key, _)| !key.is_exact_instance_of::<PyString>()) {
            return None;
        }
        let mut old = old.unwrap_or_default();
        let (mut next, mut is_in_place) = (0, found.len() == old.keys.len());
        let mut same = Vec::with_capacity(found.len());
        for (at, (key, value)) in found.iter().enumerate() {
            let known = old.find(key, next);
            is_in_place &= known == Some(at);
            next = known.map_or(next, |known| known + 1);
            same.push(known.filter(|known| old.values.is_still(*known, value)));
        }
        let changed = found.iter().enumerate().filter(|(at, _)| same[*at].is_none());
        let mut values = Snapshots::default();
        if is_in_place && changed.clone().nth(FEW).is_none() {
            values = std::mem::take(&mut old.values);
            changed.for_each(|(at, (_, value))| values.replace(at, value));
        } else {
            for ((_, value), same) in found.iter().zip(&same) {
                match same {
                    Some(known) => values.push_again(py, &old.values, *known),
                    None => values.push(value),
                }
            }
        }
        Some(Self { dict: dict.clone(), found, same, values, old })
    }

    /// Whether anything of it is known already.
    fn is_known(&self) -> bool {
        self.same.iter().any(Option::is_some)
    }

    /// Serialises it: the serializer's word and the bytes, and what is known of it then, if it can be taken apart. `plain` gets its
    /// snapshot, before it is serialised: what someone changes meanwhile is not what it was.
    pub fn dumps(
        self,
        serializer: &Bound<'py, PyAny>,
        plain: &mut Snapshots,
    ) -> PyResult<(String, Arc<[u8]>, Option<Entries>)> {
        let is_known = self.is_known();
        if !is_known {
            plain.push(&self.dict);
        }
        // Of what was looked at, also when that is everything.
        let (word, written) = dumps(serializer, self.changed()?.as_any())?;
        let joined = if word == WORD { self.join(written.as_bytes()) } else { None };
        match joined.filter(|(bytes, _)| is_known || bytes == written.as_bytes()) {
            Some((bytes, cuts)) => {
                if is_known {
                    plain.push_closed(&self.dict);
                }
                let bytes: Arc<[u8]> = bytes.into();
                let keys = self.found.into_iter().map(|(key, _)| key.unbind()).collect();
                let entries = Entries { keys, values: self.values, bytes: Arc::clone(&bytes), cuts };
                Ok((word, bytes, Some(entries)))
            }
            None if is_known => {
                plain.push(&self.dict);
                let (word, bytes) = dumps(serializer, &self.dict)?;
                Ok((word, bytes.as_bytes().into(), None))
            }
            None => Ok((word, written.as_bytes().into(), None)),
        }
    }

    /// A dictionary of what changed.
    fn changed(&self) -> PyResult<Bound<'py, PyDict>> {
        let changed = PyDict::new(self.dict.py());
        for ((key, value), same) in self.found.iter().zip(&self.same) {
            if same.is_none() {
                changed.set_item(key, value)?;
            }
        }
        Ok(changed)
    }

    /// What the serializer makes of all entries, given what it made of those that changed; and where each begins. None when that
    /// is not what is expected of it.
    fn join(&self, written: &[u8]) -> Option<(Vec<u8>, Vec<usize>)> {
        let mut new = maps::entries(written)?.into_iter();
        let mut bytes = Vec::with_capacity(self.old.bytes.len() + written.len());
        bytes.extend_from_slice(&maps::head(self.found.len()));
        let mut cuts = Vec::with_capacity(self.found.len() + 1);
        for ((key, _), same) in self.found.iter().zip(&self.same) {
            cuts.push(bytes.len());
            match same {
                Some(at) => bytes.extend_from_slice(&self.old.bytes[self.old.cuts[*at]..self.old.cuts[at + 1]]),
                None => {
                    let (word, entry) = new.next()?;
                    let is_key = key.cast::<PyString>().ok()?.to_str().is_ok_and(|key| word == Some(key));
                    bytes.extend_from_slice(is_key.then_some(entry)?);
                }
            }
        }
        cuts.push(bytes.len());
        new.next().is_none().then_some((bytes, cuts))
    }
}
