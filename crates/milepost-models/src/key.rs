//! A provider's key: in memory only, never shown.

use std::fmt;

use zeroize::Zeroizing;

use crate::error::Error;

/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 4096;

/// A provider's key. It cannot be printed or stored, and is wiped from memory when it is dropped.
#[derive(Clone)]
pub struct Key(Zeroizing<String>);

impl Key {
    /// Checks and takes a key. `from` says where it came from, for the error; the key itself is never in it.
    pub fn new(key: impl Into<String>, from: &str) -> Result<Self, Error> {
        let raw = Zeroizing::new(key.into());
        let key = raw.trim();
        let usable = !key.is_empty() && key.len() <= MAX_KEY_BYTES && key.bytes().all(|byte| byte.is_ascii_graphic());
        if !usable {
            let why = format!(
                "the key is empty, longer than {MAX_KEY_BYTES} bytes, or has a character that no key has (a space, a line break)"
            );
            return Err(Error::config(from, why, "set it to the key alone"));
        }
        Ok(Self(Zeroizing::new(key.to_owned())))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// The text without this key, should a server have repeated it.
    pub(crate) fn scrub(&self, text: &str) -> String {
        text.replace(self.expose(), "[key]")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key([hidden])")
    }
}
