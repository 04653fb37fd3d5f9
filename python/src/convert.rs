//! JSON to Python's objects and back.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};

/// Deeper values are refused, as a parser would.
const MAX_DEPTH: usize = 128;

/// A JSON value as Python's own objects.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(truth) => PyBool::new(py, *truth).to_owned().into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => whole.into_pyobject(py)?.into_any(),
            (None, Some(whole)) => whole.into_pyobject(py)?.into_any(),
            (None, None) => PyFloat::new(py, number.as_f64().unwrap_or(f64::NAN)).into_any(),
        },
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            list.into_any()
        }
        Value::Object(map) => {
            let dict = PyDict::new(py);
            for (key, value) in map {
                dict.set_item(key, to_python(py, value)?)?;
            }
            dict.into_any()
        }
    })
}

/// What a Python object is as JSON. What has no exact form in JSON is refused.
pub(crate) fn to_json(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    json_at(value, 0)
}

/// An object of JSON, or an error that says what it was to be.
pub(crate) fn to_object(what: &str, value: &Bound<'_, PyAny>) -> PyResult<Map<String, Value>> {
    match to_json(value)? {
        Value::Object(map) => Ok(map),
        _ => Err(PyTypeError::new_err(format!("{what} must be a dict with str keys"))),
    }
}

fn json_at(value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(PyValueError::new_err(format!("a value is nested deeper than {MAX_DEPTH} levels: flatten it")));
    }
    if value.is_none() {
        Ok(Value::Null)
    } else if let Ok(text) = value.cast::<PyString>() {
        Ok(Value::String(text.to_str()?.to_owned()))
    } else if let Ok(truth) = value.cast::<PyBool>() {
        Ok(Value::Bool(truth.is_true()))
    } else if value.is_instance_of::<PyInt>() {
        let whole = value.extract::<i64>().map(Number::from);
        let whole = whole.or_else(|_| value.extract::<u64>().map(Number::from));
        whole
            .map(Value::Number)
            .map_err(|_| PyValueError::new_err("an int does not fit into 64 bits: store it as a str"))
    } else if let Ok(float) = value.cast::<PyFloat>() {
        let number = Number::from_f64(float.value());
        number.map(Value::Number).ok_or_else(|| {
            PyValueError::new_err("a float is not finite, which JSON cannot say: store it as a str or None")
        })
    } else if let Ok(dict) = value.cast::<PyDict>() {
        let mut map = Map::new();
        for (key, value) in dict.iter() {
            let key = key.cast::<PyString>().map_err(|_| PyTypeError::new_err("a dict's keys must be str"))?;
            map.insert(key.to_str()?.to_owned(), json_at(&value, depth + 1)?);
        }
        Ok(Value::Object(map))
    } else if let Ok(list) = value.cast::<PyList>() {
        list.iter().map(|item| json_at(&item, depth + 1)).collect::<PyResult<_>>().map(Value::Array)
    } else if let Ok(tuple) = value.cast::<PyTuple>() {
        tuple.iter().map(|item| json_at(&item, depth + 1)).collect::<PyResult<_>>().map(Value::Array)
    } else {
        Err(PyTypeError::new_err(format!(
            "{} has no form in JSON: give dict, list, str, int, float, bool or None",
            value.get_type().name()?
        )))
    }
}
