//! JSON read with every value that it has: whole numbers that no number here can hold become texts, and what nests deeper
//! than the usual parser goes is read as deep as a state may be.

use std::borrow::Cow;

use milepost_model::delta::MAX_DEPTH;
use serde_json::{Map, Value};

use crate::point::too_large;

/// A document, and a note when something in it is not as it was written.
pub(super) fn read(content: &[u8]) -> Result<(Value, Option<String>), serde_json::Error> {
    let exact = || std::str::from_utf8(content).map_or(Cow::Borrowed(""), quoted);
    let note =
        || format!("whole numbers beyond {} to {} are kept as texts, since they would be rounded", i64::MIN, u64::MAX);
    match serde_json::from_slice::<Value>(content) {
        // What is parsed is UTF-8.
        Ok(value) => match exact() {
            Cow::Borrowed(_) => Ok((value, None)),
            Cow::Owned(exact) => Ok((serde_json::from_str(&exact)?, Some(note()))),
        },
        Err(error) if error.to_string().starts_with("recursion limit exceeded") => {
            let exact = exact();
            let mut deep = Deep { text: &exact, at: 0 };
            let value = deep.value(0).filter(|_| deep.rest().is_empty()).ok_or(error)?;
            Ok((value, matches!(exact, Cow::Owned(_)).then(note)))
        }
        Err(error) => Err(error),
    }
}

/// JSON with quotes around the whole numbers that would be rounded.
fn quoted(json: &str) -> Cow<'_, str> {
    let Some(mut number) = too_large(json) else { return Cow::Borrowed(json) };
    let (mut out, mut rest) = (String::with_capacity(json.len() + 2), json);
    loop {
        let at = number.as_ptr() as usize - rest.as_ptr() as usize;
        out.push_str(&rest[..at]);
        out.push('"');
        out.push_str(number);
        out.push('"');
        rest = &rest[at + number.len()..];
        match too_large(rest) {
            Some(next) => number = next,
            None => return Cow::Owned(out + rest),
        }
    }
}

/// A reader that goes deeper.
struct Deep<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Deep<'a> {
    fn rest(&mut self) -> &'a str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let begins = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.at = self.text.len() - begins.len();
        begins
    }

    fn takes(&mut self, sign: char) -> bool {
        let is_there = self.rest().starts_with(sign);
        self.at += usize::from(is_there);
        is_there
    }

    /// What is neither a list nor an object.
    fn plain<T: serde::de::DeserializeOwned>(&mut self) -> Option<T> {
        let mut values = serde_json::Deserializer::from_str(self.rest()).into_iter::<T>();
        let value = values.next()?.ok()?;
        self.at += values.byte_offset();
        Some(value)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > 2 * MAX_DEPTH {
            return None;
        }
        if self.takes('[') {
            let mut items = Vec::new();
            while !self.takes(']') {
                if !items.is_empty() && !self.takes(',') {
                    return None;
                }
                items.push(self.value(depth + 1)?);
            }
            return Some(Value::Array(items));
        }
        if self.takes('{') {
            let mut map = Map::new();
            while !self.takes('}') {
                if !map.is_empty() && !self.takes(',') {
                    return None;
                }
                let key = self.plain::<String>()?;
                if !self.takes(':') {
                    return None;
                }
                map.insert(key, self.value(depth + 1)?);
            }
            return Some(Value::Object(map));
        }
        self.plain()
    }
}
