//! Messages of LangChain's classes, made again without their checks where there is nothing to check.
//!
//! The serializer makes every message by its class, which checks each field; for a long thread that is most of the time that
//! reading it takes. A message that has nothing but texts in it is like every other of the same form, but for those texts. The
//! first of a form is made by the serializer. What it became is remembered, if one that is made from that is equal to it; the
//! others are made from that. Whatever is not so plain is the serializer's.
#![expect(
    unsafe_code,
    reason = "a message's own class would check what is set, and a call of Python's costs more than setting"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use milepost_langgraph::arrays::{self, Plain};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PySet, PyString, PyTuple, PyType};

/// So many forms are remembered.
const MAX_FORMS: usize = 256;

/// What a field of a message is.
enum Field {
    /// The text with this number.
    Text(usize),
    Dict,
    List,
}

/// How a message of a form is made.
struct Pattern {
    class: Py<PyType>,
    /// All of its fields, in order, with what is in every message of the form.
    same: Py<PyDict>,
    /// Those that each message has its own of.
    fields: Vec<(Py<PyAny>, Field)>,
    /// The names of the fields that were given.
    given: Py<PyAny>,
    has_extra: bool,
}

/// What is known of forms: how their messages are made, or that the serializer makes them.
#[derive(Default)]
pub(crate) struct Forms(Mutex<HashMap<Vec<u8>, Option<Arc<Pattern>>>>);

impl Forms {
    /// The objects of items, in order. `loads` is the serializer's; with `quick`, it is LangGraph's own.
    pub fn read<'py>(
        &self,
        py: Python<'py>,
        items: &[Arc<[u8]>],
        loads: &Bound<'py, PyAny>,
        quick: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let _still = Still::begin(py, items.len())?;
        let mut out: Vec<Option<Bound<'py, PyAny>>> = Vec::with_capacity(items.len());
        let mut left = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let plain = if quick { arrays::plain(item) } else { None };
            let Some(plain) = plain else {
                left.push(number);
                out.push(None);
                continue;
            };
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&plain.form).cloned();
            let made = match known {
                Some(Some(pattern)) => Some(pattern.make(py, &plain)?),
                Some(None) => None,
                None => {
                    let object = load(py, &[item], loads)?.get_item(0)?;
                    self.learn(&object, plain)?;
                    Some(object)
                }
            };
            if made.is_none() {
                left.push(number);
            }
            out.push(made);
        }
        if !left.is_empty() {
            let some: Vec<&Arc<[u8]>> = left.iter().map(|number| &items[*number]).collect();
            for (number, object) in left.iter().zip(load(py, &some, loads)?.iter()) {
                out[*number] = Some(object);
            }
        }
        PyList::new(py, out.into_iter().flatten())
    }

    fn learn(&self, object: &Bound<'_, PyAny>, plain: Plain<'_>) -> PyResult<()> {
        let py = object.py();
        let pattern = match Pattern::of(object, &plain) {
            Some(pattern) if pattern.make(py, &plain)?.eq(object)? => Some(Arc::new(pattern)),
            _ => None,
        };
        let mut forms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = if forms.len() >= MAX_FORMS { std::mem::take(&mut *forms) } else { HashMap::new() };
        forms.insert(plain.form, pattern);
        drop(forms);
        drop(forgotten);
        Ok(())
    }
}

/// The interpreter's search for garbage rests while this lives: everything that is made here stays, and looking through it again
/// and again takes a fourth of the time.
struct Still<'py>(Option<Bound<'py, PyAny>>);

/// Fewer objects than this are not worth it.
const MANY: usize = 256;

impl<'py> Still<'py> {
    fn begin(py: Python<'py>, objects: usize) -> PyResult<Self> {
        let gc = py.import(intern!(py, "gc"))?;
        if objects < MANY || !gc.call_method0(intern!(py, "isenabled"))?.is_truthy()? {
            return Ok(Self(None));
        }
        gc.call_method0(intern!(py, "disable"))?;
        Ok(Self(Some(gc.into_any())))
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        if let Some(gc) = &self.0 {
            // Nothing in it can fail.
            drop(gc.call_method0(intern!(gc.py(), "enable")));
        }
    }
}

/// What the serializer makes of items.
fn load<'py>(py: Python<'py>, items: &[&Arc<[u8]>], loads: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let array = arrays::array(items.iter().map(AsRef::as_ref));
    Ok(loads.call1((("msgpack", PyBytes::new(py, &array)),))?.cast_into::<PyList>()?)
}

impl Pattern {
    /// None when the object is not made of just what was given.
    fn of(object: &Bound<'_, PyAny>, plain: &Plain<'_>) -> Option<Self> {
        let py = object.py();
        let dict = object.getattr(intern!(py, "__dict__")).ok()?.cast_into_exact::<PyDict>().ok()?;
        let given = object.getattr(intern!(py, "__pydantic_fields_set__")).ok()?.cast_into_exact::<PySet>().ok()?;
        let extra = object.getattr(intern!(py, "__pydantic_extra__")).ok()?;
        let has_extra = !extra.is_none();
        if (has_extra && !extra.cast_exact::<PyDict>().ok()?.is_empty())
            || !object.getattr(intern!(py, "__pydantic_private__")).ok()?.is_none()
            || dict.len() != plain.fields.len()
            || given.len() != plain.fields.len()
            || !plain.fields.iter().all(|name| given.contains(*name).unwrap_or(false))
        {
            return None;
        }
        let same = dict.copy().ok()?;
        let mut fields = Vec::with_capacity(dict.len());
        for (name, value) in dict.iter() {
            let known: String = name.extract().ok()?;
            if !plain.fields.contains(&known.as_str()) {
                return None;
            }
            let field = match plain.texts.iter().position(|(field, _)| *field == known) {
                Some(number) => {
                    let text: String = value.cast_exact::<PyString>().ok()?.extract().ok()?;
                    if text != plain.texts[number].1 {
                        return None;
                    }
                    Field::Text(number)
                }
                None if value.cast_exact::<PyDict>().is_ok_and(PyDictMethods::is_empty) => Field::Dict,
                None if value.cast_exact::<PyList>().is_ok_and(PyListMethods::is_empty) => Field::List,
                None if value.is_none()
                    || value.is_exact_instance_of::<PyString>()
                    || value.is_exact_instance_of::<PyBool>()
                    || value.is_exact_instance_of::<PyInt>() =>
                {
                    continue;
                }
                None => return None,
            };
            same.set_item(&name, py.None()).ok()?;
            fields.push((name.unbind(), field));
        }
        let class = object.get_type().unbind();
        Some(Self { class, same: same.unbind(), fields, given: given.into_any().unbind(), has_extra })
    }

    fn make<'py>(&self, py: Python<'py>, plain: &Plain<'_>) -> PyResult<Bound<'py, PyAny>> {
        let dict = self.same.bind(py).copy()?;
        for (name, field) in &self.fields {
            match field {
                Field::Text(number) => dict.set_item(name, plain.texts.get(*number).map(|(_, text)| *text))?,
                Field::Dict => dict.set_item(name, PyDict::new(py))?,
                Field::List => dict.set_item(name, PyList::empty(py))?,
            }
        }
        let object = bare(self.class.bind(py))?;
        let extra = if self.has_extra { PyDict::new(py).into_any() } else { py.None().into_bound(py) };
        // SAFETY: what is given lives, and a new reference to a copy is given.
        let given = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PySet_New(self.given.as_ptr()))? };
        set(&object, intern!(py, "__dict__"), &dict)?;
        set(&object, intern!(py, "__pydantic_fields_set__"), &given)?;
        set(&object, intern!(py, "__pydantic_extra__"), &extra)?;
        set(&object, intern!(py, "__pydantic_private__"), py.None().bind(py))?;
        Ok(object)
    }
}

/// An object of a class without anything in it: what `cls.__new__(cls)` gives.
fn bare<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    let py = class.py();
    // SAFETY: the class lives. What it has in this place is of this type, or nothing.
    let new: Option<ffi::newfunc> =
        unsafe { std::mem::transmute(ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_new)) };
    match new {
        // SAFETY: it is called as the interpreter calls it, and gives a new reference or an exception.
        Some(new) => unsafe {
            let nothing = PyTuple::empty(py);
            Bound::from_owned_ptr_or_err(py, new(class.as_type_ptr(), nothing.as_ptr(), std::ptr::null_mut()))
        },
        None => class.call_method1(intern!(py, "__new__"), (class,)),
    }
}

/// Sets an attribute as `object.__setattr__` does, whatever the object's class says to that.
fn set(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    // SAFETY: all three live, and whoever has them has the interpreter.
    match unsafe { ffi::PyObject_GenericSetAttr(object.as_ptr(), name.as_ptr(), value.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(object.py())),
    }
}
