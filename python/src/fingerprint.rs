//! Whether an object is still what it was, without serialising it.
//!
//! A fingerprint is made of everything that an object holds, down to its texts and numbers. It is cheap because Python keeps a
//! text's hash with the text. What cannot be looked into has none, and counts as changed.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// Larger and deeper objects have no fingerprint.
const MAX_PARTS: usize = 8192;
const MAX_DEPTH: usize = 32;

/// A fingerprint; none when the object cannot be looked into.
pub(crate) fn fingerprint(object: &Bound<'_, PyAny>) -> Option<u64> {
    let mut state = State { hash: 0x9e37_79b9_7f4a_7c15, left: MAX_PARTS };
    state.add(object, 0)?;
    Some(state.hash)
}

struct State {
    hash: u64,
    left: usize,
}

impl State {
    fn mix(&mut self, part: u64) {
        self.hash = (self.hash ^ part).wrapping_mul(0x517c_c1b7_2722_0a95).rotate_left(23);
    }

    fn add(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        if depth > MAX_DEPTH {
            return None;
        }
        if object.is_exact_instance_of::<PyString>() {
            self.mix(object.hash().ok()?.cast_unsigned() as u64);
        } else if object.is_none() {
            self.mix(1);
        } else if let Ok(dict) = object.cast_exact::<PyDict>() {
            return self.dict(dict, depth);
        } else if let Ok(list) = object.cast_exact::<PyList>() {
            self.mix(0x11 ^ list.len() as u64);
            for item in list.iter() {
                self.add(&item, depth + 1)?;
            }
        } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            self.mix(0x12 ^ tuple.len() as u64);
            for item in tuple.iter() {
                self.add(&item, depth + 1)?;
            }
        } else if object.is_exact_instance_of::<PyBool>()
            || object.is_exact_instance_of::<PyInt>()
            || object.is_exact_instance_of::<PyFloat>()
            || object.is_exact_instance_of::<PyBytes>()
        {
            self.mix(object.get_type().as_ptr() as u64);
            self.mix(object.hash().ok()?.cast_unsigned() as u64);
        } else {
            return self.other(object, depth);
        }
        Some(())
    }

    fn dict(&mut self, dict: &Bound<'_, PyDict>, depth: usize) -> Option<()> {
        self.mix(0x10 ^ dict.len() as u64);
        for (key, value) in dict.iter() {
            self.mix(key.hash().ok()?.cast_unsigned() as u64);
            self.add(&value, depth + 1)?;
        }
        Some(())
    }

    /// An object with fields, or a value that never changes.
    fn other(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> Option<()> {
        let py = object.py();
        self.mix(object.get_type().as_ptr() as u64);
        match object.getattr(intern!(py, "__dict__")) {
            Ok(fields) => {
                self.dict(fields.cast_exact::<PyDict>().ok()?, depth)?;
                if let Ok(extra) = object.getattr(intern!(py, "__pydantic_extra__"))
                    && let Ok(extra) = extra.cast_exact::<PyDict>()
                {
                    self.dict(extra, depth)?;
                }
                Some(())
            }
            Err(_) => {
                self.mix(object.hash().ok()?.cast_unsigned() as u64);
                Some(())
            }
        }
    }
}
