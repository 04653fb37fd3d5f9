//! Whether an object is still what it was, without serialising it.
//!
//! A snapshot holds on to everything that an object is made of, down to its texts and numbers. Those never change, and while
//! they are held nothing else can be where they are: an object is what it was if it still has the same parts in the same
//! places. That is a look at a few pointers for each message, which counts, because every message of a thread is looked at for
//! every checkpoint. What cannot be looked into has no snapshot, and counts as changed.
//!
//! Where dictionaries tell versions ([`versions`]), one that has the version that it had has what it had: then only those of its
//! parts are looked at that can change themselves, which for most messages are none.
#![expect(unsafe_code, reason = "pointers are compared where they lie: counting references costs more than comparing")]

use std::ptr;
use std::slice::Iter;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

/// Larger and deeper objects have no snapshot.
const MAX_PARTS: usize = 8192;
const MAX_DEPTH: usize = 32;

/// How a part is to be looked at: one of these, above them how many parts it has itself, and above those a version.
const LEAF: u64 = 0;
const DICT: u64 = 1;
const LIST: u64 = 2;
const TUPLE: u64 = 3;
/// An object with a dictionary of its fields, and with fields beyond those of its class if it has a part more.
const FIELDS: u64 = 4;
/// One that cannot be looked into.
const CLOSED: u64 = 5;
/// A dictionary that tells its version. Its parts are those that can change.
const VERSIONED: u64 = 6;
const KIND_BITS: u32 = 3;
const COUNT_BITS: u32 = 14;
const BELOW_VERSION: u64 = (1 << (KIND_BITS + COUNT_BITS)) - 1;

/// What the items of a list were made of when they were looked at. All of them lie one behind the other: they are walked
/// through from the first to the last, and what lies apart is waited for.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// Each item, and behind it its parts in the order in which they are come upon. Kept alive.
    parts: Vec<Py<PyAny>>,
    /// What each part is.
    kinds: Vec<u64>,
    /// Where each item begins.
    starts: Vec<usize>,
}

impl Snapshots {
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// The parts of an item.
    fn range(&self, at: usize) -> std::ops::Range<usize> {
        let end = self.starts.get(at + 1).copied().unwrap_or(self.parts.len());
        self.starts.get(at).copied().unwrap_or(end)..end
    }

    /// Takes an item's snapshot.
    pub fn push(&mut self, object: &Bound<'_, PyAny>) {
        let start = self.parts.len();
        self.starts.push(start);
        let mut taken = Taken { parts: &mut self.parts, kinds: &mut self.kinds, start };
        if taken.add(object, 0).is_none() {
            self.parts.truncate(start);
            self.kinds.truncate(start);
            self.starts.pop();
            self.push_closed(object);
        }
    }

    /// Takes another snapshot in the place of one.
    pub fn replace(&mut self, at: usize, object: &Bound<'_, PyAny>) {
        let behind = self.split_off(at + 1);
        let gone = self.split_off(at);
        self.push(object);
        self.append(behind);
        drop(gone);
    }

    /// Adds an item of others.
    pub fn push_again(&mut self, py: Python<'_>, others: &Self, at: usize) {
        let range = others.range(at);
        self.starts.push(self.parts.len());
        self.parts.extend(others.parts[range.clone()].iter().map(|part| part.clone_ref(py)));
        self.kinds.extend_from_slice(&others.kinds[range]);
    }

    /// Adds all of others' items.
    pub fn append(&mut self, mut others: Self) {
        let begin = self.parts.len();
        self.starts.extend(others.starts.iter().map(|start| begin + start));
        self.parts.append(&mut others.parts);
        self.kinds.append(&mut others.kinds);
    }

    /// Keeps the first items, and gives the others.
    pub fn split_off(&mut self, at: usize) -> Self {
        let begin = self.range(at).start;
        let mut starts = self.starts.split_off(at);
        starts.iter_mut().for_each(|start| *start -= begin);
        Self { parts: self.parts.split_off(begin), kinds: self.kinds.split_off(begin), starts }
    }

    /// An item's object.
    pub fn root(&self, at: usize) -> *mut ffi::PyObject {
        self.parts.get(self.range(at).start).map_or(ptr::null_mut(), Py::as_ptr)
    }

    /// Whether an object is an item, and still what it was.
    pub fn is_still(&self, at: usize, object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object lives, and whoever has it has the interpreter.
        unsafe { self.walk(at).is_same(object.as_ptr()) }
    }

    /// A way through the snapshots from an item on.
    fn walk(&self, at: usize) -> Walk<'_> {
        let start = self.range(at).start;
        Walk { parts: self.parts[start..].iter(), kinds: self.kinds[start..].iter() }
    }

    /// How many of the first items of a list are still what they were.
    pub fn front(&self, list: &Bound<'_, PyList>) -> usize {
        let mut walk = self.walk(0);
        let is_same = |at: &usize| {
            // SAFETY: the place is within the list; what lies there lives as long as the list is not changed, and nothing
            // that runs here changes it. An item that is the same was walked through to its end.
            unsafe { walk.is_same(ffi::PyList_GetItem(list.as_ptr(), at.cast_signed())) }
        };
        (0..self.len().min(list.len())).take_while(is_same).count()
    }

    /// Whether an object is an item and not known to have changed: one that cannot be looked into may have.
    pub fn may_be(&self, at: usize, object: &Bound<'_, PyAny>) -> bool {
        self.is_closed(at) || self.is_still(at, object)
    }

    fn is_closed(&self, at: usize) -> bool {
        self.kinds.get(self.range(at).start).is_none_or(|kind| *kind == CLOSED)
    }

    /// The same of all objects of a list.
    pub fn may_be_all(&self, list: &Bound<'_, PyList>) -> bool {
        let front = self.front(list);
        let is_same = |at: usize| {
            let object = list.get_item(at);
            object.is_ok_and(|object| self.root(at) == object.as_ptr() && self.may_be(at, &object))
        };
        list.len() == self.len() && (front..self.len()).all(is_same)
    }

    /// Adds an item that is not looked into.
    pub fn push_closed(&mut self, object: &Bound<'_, PyAny>) {
        self.starts.push(self.parts.len());
        self.parts.push(object.clone().unbind());
        self.kinds.push(CLOSED);
    }

    /// Whether these are the objects of a list, whatever became of them.
    pub fn are_of(&self, list: &Bound<'_, PyList>) -> bool {
        let is_same = |at: usize| {
            // SAFETY: as above.
            unsafe { self.root(at) == ffi::PyList_GetItem(list.as_ptr(), at.cast_signed()) }
        };
        list.len() == self.len() && (0..self.len()).all(is_same)
    }

    /// Copies of the objects that share nothing that can change, with snapshots of them. None when one of them changed, or is
    /// something else than a dictionary of texts and numbers: others may come back changed from the serializer.
    pub fn copies<'py>(&self, py: Python<'py>) -> Option<(Vec<Bound<'py, PyAny>>, Self)> {
        let mut copies = Vec::with_capacity(self.len());
        let (mut parts, mut kinds) = (Vec::with_capacity(self.parts.len()), self.kinds.clone());
        for at in 0..self.len() {
            let range = self.range(at);
            let object = self.parts.get(range.start)?.bind(py);
            let dict = object.cast_exact::<PyDict>().ok()?;
            let parts_are_fixed = self.parts[range.clone()].iter().skip(1).all(|part| is_fixed(part.bind(py)));
            let can_be_written =
                |text: &Bound<'_, PyAny>| text.cast_exact::<PyString>().map_or(true, |text| text.to_str().is_ok());
            if !parts_are_fixed
                || !self.is_still(at, object)
                || !dict.iter().all(|(key, value)| can_be_written(&key) && can_be_written(&value))
            {
                return None;
            }
            let copy = dict.copy().ok()?;
            if let (Some(version), Some(kind)) = (version(&copy), kinds.get_mut(range.start)) {
                *kind = *kind & BELOW_VERSION | version;
            }
            let copy = copy.into_any();
            parts.push(copy.clone().unbind());
            parts.extend(self.parts[range].iter().skip(1).map(|part| part.clone_ref(py)));
            copies.push(copy);
        }
        Some((copies, Self { parts, kinds, starts: self.starts.clone() }))
    }
}

/// What is in a dictionary. Nothing runs meanwhile that could change it.
pub(crate) fn entries_of<'py>(dict: &Bound<'py, PyDict>) -> Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let (py, mut found) = (dict.py(), Vec::with_capacity(dict.len()));
    let (mut at, mut key, mut value) = (0, ptr::null_mut(), ptr::null_mut());
    // SAFETY: it is a dictionary that lives, and what it lends is held at once.
    unsafe {
        while ffi::PyDict_Next(dict.as_ptr(), &mut at, &mut key, &mut value) != 0 {
            found.push((Bound::from_borrowed_ptr(py, key), Bound::from_borrowed_ptr(py, value)));
        }
    }
    found
}

/// A snapshot in the making.
struct Taken<'a> {
    parts: &'a mut Vec<Py<PyAny>>,
    kinds: &'a mut Vec<u64>,
    start: usize,
}

impl Taken<'_> {
    fn push(&mut self, object: &Bound<'_, PyAny>, kind: u64, parts: usize) -> Option<()> {
        if self.parts.len() - self.start >= MAX_PARTS {
            return None;
        }
        self.parts.push(object.clone().unbind());
        self.kinds.push(kind | u64::try_from(parts).ok().filter(|parts| *parts < 1 << COUNT_BITS)? << KIND_BITS);
        Some(())
    }

    fn versioned(&mut self, dict: &Bound<'_, PyDict>, version: u64, depth: usize) -> Option<()> {
        let place = self.kinds.len();
        self.push(dict, VERSIONED | version, 0)?;
        let (mut count, mut at, mut key, mut value) = (0, 0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: it is a dictionary that lives, and what it lends is held before anything can happen to it. One that is
        // changed meanwhile has another version from then on.
        while unsafe { ffi::PyDict_Next(dict.as_ptr(), &mut at, &mut key, &mut value) } != 0 {
            // SAFETY: the same.
            let (is_key_fine, is_value_fine) = unsafe { (is_leaf(key), is_leaf(value)) };
            if !is_key_fine {
                return None;
            }
            if !is_value_fine {
                // SAFETY: the same.
                let value = unsafe { Bound::from_borrowed_ptr(dict.py(), value) };
                self.add(&value, depth + 1)?;
                count += 1;
            }
        }
        // No more than there are parts at most.
        *self.kinds.get_mut(place)? |= count << KIND_BITS;
        Some(())
    }

    fn add(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        if let Ok(dict) = object.cast_exact::<PyDict>() {
            if let Some(version) = version(dict) {
                return self.versioned(dict, version, depth);
            }
            self.push(object, DICT, dict.len())?;
            for (key, value) in dict.iter() {
                if !is_fixed(&key) {
                    return None;
                }
                self.push(&key, LEAF, 0)?;
                self.add(&value, depth + 1)?;
            }
        } else if let Ok(list) = object.cast_exact::<PyList>() {
            self.push(object, LIST, list.len())?;
            for item in list.iter() {
                self.add(&item, depth + 1)?;
            }
        } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            self.push(object, TUPLE, tuple.len())?;
            for item in tuple.iter() {
                self.add(&item, depth + 1)?;
            }
        } else if is_fixed(object) {
            self.push(object, LEAF, 0)?;
        } else {
            return self.other(object, depth);
        }
        Some(())
    }

    /// An object with fields, or a value that never changes.
    fn other(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> Option<()> {
        let py = object.py();
        let class = class_of(&object.get_type());
        match class {
            Class::Leaf => return self.push(object, LEAF, 0),
            Class::Enum => {
                let value = object.getattr(intern!(py, "value")).ok()?;
                return if is_fixed(&value) { self.push(object, LEAF, 0) } else { None };
            }
            Class::Closed => return None,
            Class::Plain | Class::Model => {}
        }
        let fields = object.getattr(intern!(py, "__dict__")).ok()?.cast_into_exact::<PyDict>().ok()?;
        let extra = match class {
            Class::Model => object.getattr(intern!(py, "__pydantic_extra__")).ok()?.cast_into_exact::<PyDict>().ok(),
            _ => None,
        };
        self.push(object, FIELDS, usize::from(extra.is_some()))?;
        self.add(&fields, depth + 1)?;
        extra.map_or(Some(()), |extra| self.add(&extra, depth + 1))
    }
}

/// What the objects of a class are.
#[derive(Clone, Copy)]
enum Class {
    /// They never change.
    Leaf,
    /// They are what their value is.
    Enum,
    /// All that they have is in their dictionary.
    Plain,
    /// The same, of pydantic's models, which have slots besides.
    Model,
    /// They may have what cannot be seen.
    Closed,
}

/// So many classes are remembered.
const MAX_CLASSES: usize = 64;

fn class_of(class: &Bound<'_, PyType>) -> Class {
    // They are held: no other can be where one is. A graph has few: looking at each is quicker than a table.
    static KNOWN: Mutex<Vec<(Py<PyType>, Class)>> = Mutex::new(Vec::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = known().iter().find(|(known, _)| known.is(class)) {
        return *found;
    }
    let found = look_at(class).unwrap_or(Class::Closed);
    let mut all = known();
    let forgotten = if all.len() >= MAX_CLASSES { std::mem::take(&mut *all) } else { Vec::new() };
    all.push((class.clone().unbind(), found));
    drop(all);
    // Not while the lock is held: it may run code of Python's.
    drop(forgotten);
    found
}

/// Types whose objects never change, by their modules.
const LEAVES: [(&str, &[&str]); 8] = [
    ("builtins", &["complex", "range"]),
    ("datetime", &["datetime", "date", "time", "timedelta", "timezone"]),
    ("uuid", &["UUID"]),
    ("decimal", &["Decimal"]),
    ("fractions", &["Fraction"]),
    ("pathlib", &["PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath"]),
    ("ipaddress", &["IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network", "IPv4Interface", "IPv6Interface"]),
    ("zoneinfo", &["ZoneInfo"]),
];

fn look_at(class: &Bound<'_, PyType>) -> PyResult<Class> {
    let py = class.py();
    let (module, name) = (class.module()?, class.qualname()?);
    let (module, name) = (module.to_str()?, name.to_str()?);
    // In the newest versions, a module of its own is behind the public one.
    let is_named = |(place, names): &(&str, &[&str])| {
        let is_place = module == *place || module.strip_prefix(*place).is_some_and(|rest| rest.starts_with('.'));
        is_place && names.contains(&name)
    };
    // Anybody's class can have that name: it must be the one that the module gives.
    if let Some((place, _)) = LEAVES.iter().find(|leaves| is_named(leaves)) {
        return Ok(if py.import(*place)?.getattr(name)?.is(class) { Class::Leaf } else { Class::Closed });
    }
    if class.is_subclass(&py.import("enum")?.getattr("Enum")?)? {
        return Ok(Class::Enum);
    }
    // Whatever an object has beyond its head lies in so many bytes: the places of its dictionary and of weak references,
    // where they are not before it, and slots.
    let number = |name: &str| class.getattr(name)?.extract::<isize>();
    let word = isize::try_from(size_of::<usize>())?;
    let bare = py.import("builtins")?.getattr("object")?.getattr("__basicsize__")?.extract::<isize>()?;
    let offsets = [number("__dictoffset__")?, number("__weakrefoffset__")?];
    let places = offsets.iter().filter(|offset| **offset > 0).count();
    let slots = number("__basicsize__")? - bare - isize::try_from(places)? * word;
    if number("__itemsize__")? != 0 || offsets[0] == 0 {
        return Ok(Class::Closed);
    }
    if slots == 0 {
        return Ok(Class::Plain);
    }
    // What a model has besides: which fields were given, those beyond its class's, and private ones. Those may still be told
    // by a field that is computed.
    let has_slots = class.hasattr("__pydantic_extra__")? && class.hasattr("__pydantic_private__")? && slots == 3 * word;
    let is_model = has_slots && class.getattr("__private_attributes__")?.len()? == 0;
    Ok(if is_model { Class::Model } else { Class::Closed })
}

/// Whether an object never changes and has no parts.
fn is_fixed(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: it lives.
    unsafe { is_leaf(object.as_ptr()) }
}

/// # Safety
/// The pointer is to a living object.
unsafe fn is_leaf(object: *mut ffi::PyObject) -> bool {
    // SAFETY: as the caller says; the types live as long as the interpreter.
    unsafe {
        let class = ffi::Py_TYPE(object);
        class == &raw mut ffi::PyUnicode_Type
            || class == &raw mut ffi::PyLong_Type
            || class == &raw mut ffi::PyFloat_Type
            || class == &raw mut ffi::PyBool_Type
            || class == &raw mut ffi::PyBytes_Type
            || object == ffi::Py_None()
    }
}

/// Objects lie anywhere, and after a wait for the disk far from the processor: they are sent for so many before they are come to.
const AHEAD: usize = 16;

/// Has the memory of an object brought near.
#[inline(always)]
fn fetch(object: *mut ffi::PyObject) {
    // SAFETY: it is only a hint: whatever lies there, nothing is read.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(object.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = object;
}

/// A way through snapshots beside the objects.
struct Walk<'a> {
    parts: Iter<'a, Py<PyAny>>,
    kinds: Iter<'a, u64>,
}

impl Walk<'_> {
    /// # Safety
    /// The pointer is to a living object, and the caller has the interpreter. No code of Python's own runs in here: nothing
    /// changes while it is looked at.
    #[inline(always)]
    unsafe fn is_same(&mut self, object: *mut ffi::PyObject) -> bool {
        let (Some(part), Some(kind)) = (self.parts.next(), self.kinds.next()) else { return false };
        if let Some(ahead) = self.parts.as_slice().get(AHEAD) {
            fetch(ahead.as_ptr());
        }
        // SAFETY: it is the same object, of which the caller says that it lives.
        part.as_ptr() == object
            && (*kind == LEAF
                || (*kind & BELOW_VERSION == VERSIONED && unsafe { read_version(object) } == *kind & !BELOW_VERSION)
                || unsafe { self.has_same_parts(object, *kind) })
    }

    /// # Safety
    /// As above, of an object that the snapshot holds.
    #[inline(never)]
    unsafe fn has_same_parts(&mut self, object: *mut ffi::PyObject, kind: u64) -> bool {
        let count = (kind >> KIND_BITS & ((1 << COUNT_BITS) - 1)) as isize;
        // SAFETY: the part is what the snapshot says, since an object's type does not change in these; it lives, because
        // the snapshot holds it, and so do its items, because it holds them.
        unsafe {
            match kind & ((1 << KIND_BITS) - 1) {
                VERSIONED => read_version(object) == kind & !BELOW_VERSION && (0..count).all(|_| self.is_next_same()),
                DICT => self.is_same_dict(object, count),
                LIST => {
                    ffi::PyList_Size(object) == count
                        && (0..count).all(|at| self.is_same(ffi::PyList_GetItem(object, at)))
                }
                TUPLE => (0..count).all(|at| self.is_same(ffi::PyTuple_GetItem(object, at))),
                FIELDS => self.has_same_fields(object, count > 0),
                _ => false,
            }
        }
    }

    /// # Safety
    /// As above, of a dictionary.
    unsafe fn is_same_dict(&mut self, dict: *mut ffi::PyObject, count: isize) -> bool {
        // SAFETY: as the caller says; keys and values are lent by the dictionary, which nothing changes meanwhile.
        unsafe {
            if ffi::PyDict_Size(dict) != count {
                return false;
            }
            let (mut at, mut key, mut value) = (0, ptr::null_mut(), ptr::null_mut());
            (0..count).all(|_| {
                ffi::PyDict_Next(dict, &mut at, &mut key, &mut value) != 0 && self.is_same(key) && self.is_same(value)
            })
        }
    }

    /// # Safety
    /// As above, of an object with fields.
    unsafe fn has_same_fields(&mut self, object: *mut ffi::PyObject, has_extra: bool) -> bool {
        // SAFETY: the fields are given as a reference of our own, which is given back. Those beyond the class's are looked
        // at where they were: whatever replaces that dictionary replaces the fields, too.
        unsafe {
            let fields = ffi::PyObject_GenericGetDict(object, ptr::null_mut());
            if fields.is_null() {
                ffi::PyErr_Clear();
                return false;
            }
            let is_same = self.is_same(fields);
            ffi::Py_DecRef(fields);
            is_same && (!has_extra || self.is_next_same())
        }
    }

    /// Whether a part is still what it was, wherever it is.
    ///
    /// # Safety
    /// As above.
    unsafe fn is_next_same(&mut self) -> bool {
        // SAFETY: the snapshot holds it.
        self.parts.as_slice().first().is_some_and(|part| unsafe { self.is_same(part.as_ptr()) })
    }
}

/// Whether dictionaries are asked for their versions: not known yet, no, yes.
static ASKED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Looks into dictionaries from now on, as where they tell no versions; or only if they tell none, which is so from the start.
#[pyfunction]
pub(crate) fn look_into_dicts(always: bool) {
    ASKED.store(if always { NO } else { UNKNOWN }, Ordering::Relaxed);
}

/// The version of a dictionary, at its place in a kind. None where they tell none.
fn version(dict: &Bound<'_, PyDict>) -> Option<u64> {
    let mut asked = ASKED.load(Ordering::Relaxed);
    if asked == UNKNOWN {
        asked = if tells_versions(dict.py()).unwrap_or(false) { YES } else { NO };
        ASKED.store(asked, Ordering::Relaxed);
    }
    // SAFETY: it lives, and dictionaries were seen to have their versions there.
    (asked == YES).then(|| unsafe { read_version(dict.as_ptr()) })
}

/// # Safety
/// The pointer is to a living dictionary of an interpreter that keeps versions there.
unsafe fn read_version(dict: *mut ffi::PyObject) -> u64 {
    // SAFETY: as the caller says. In some interpreters the lowest bits are for something else, which changes with nothing.
    unsafe { dict.cast::<u64>().add(VERSION_WORD).read() << (KIND_BITS + COUNT_BITS) }
}

/// A dictionary begins with two words that every object has and the count of its items; then comes the version.
const COUNT_WORD: usize = 2;
const VERSION_WORD: usize = 3;

/// Whether dictionaries have a number that no other has or had, and that is another after every change. CPython up to 3.12 has
/// it; 3.13 forgets it for some changes, and later ones do not have it. Where it is said to be, it is looked for.
fn tells_versions(py: Python<'_>) -> PyResult<bool> {
    let is_python = py.import("sys")?.getattr("implementation")?.getattr("name")?.eq("cpython")?;
    let version = py.version_info();
    let has_versions = is_python && matches!((version.major, version.minor), (3, 10..=12));
    if !has_versions || size_of::<usize>() != size_of::<u64>() {
        return Ok(false);
    }
    let class = py.get_type::<PyType>().call1(("Fields", PyTuple::empty(py), PyDict::new(py)))?;
    let object = class.call0()?;
    object.setattr("first", 1)?;
    let fields = object.getattr("__dict__")?.cast_into_exact::<PyDict>()?;
    let new = || PyList::empty(py);
    let changes: [&dyn Fn() -> PyResult<()>; 9] = [
        &|| fields.set_item("second", new()),
        &|| fields.set_item("second", new()),
        &|| fields.set_item("third", new()),
        &|| object.setattr("first", new()),
        &|| object.setattr("fourth", new()),
        &|| object.delattr("fourth"),
        &|| fields.del_item("third"),
        &|| fields.call_method1("update", ([("second", new())],)).map(drop),
        &|| fields.call_method0("clear").map(drop),
    ];
    let mut seen = Vec::new();
    for change in changes {
        for dict in [&fields, &PyDict::new(py)] {
            // SAFETY: it lives, and is longer than this in every one of these interpreters.
            seen.push(unsafe { dict.as_ptr().cast::<u64>().add(VERSION_WORD).read() });
        }
        change()?;
        // SAFETY: the same.
        if unsafe { fields.as_ptr().cast::<usize>().add(COUNT_WORD).read() } != fields.len() {
            return Ok(false);
        }
    }
    seen.sort_unstable();
    Ok(seen.windows(2).all(|pair| pair[0] != pair[1]))
}
