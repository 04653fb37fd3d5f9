//! Redaction: what never reaches the store in clear.
//!
//! [`Rules`] say what a secret is; they become a [`Redactor`], which takes secrets out of texts,
//! JSON values, messages and states before they are written. Three things are found:
//!
//! - the value under a **named key**, whole, at any depth of a JSON value (`api_key`, `apiKey` and
//!   `API-KEY` are one name);
//! - the **well-known forms** of secrets in any text, keys of objects included: the tokens of cloud
//!   providers, forges, model providers and payment services, private keys, JSON web tokens,
//!   passwords in URLs, `Authorization` headers, and random values that are assigned to a name such
//!   as `SECRET_KEY`, in a text or as the key of an object (`{"GITHUB_TOKEN": "…"}`, also
//!   `{"name": "GITHUB_TOKEN", "value": "…"}`);
//! - what **your own patterns** match.
//!
//! A secret becomes `[redacted:KIND]` or, when a vault's key is given, `[redacted:KIND:ID]`: the id
//! is a keyed hash, so that one secret always has one token and the token tells nothing. What was
//! found is handed back as [`Found`], for an encrypted vault; [`restore()`] puts it back.
//!
//! Redacting twice is the same as redacting once. The time is linear in the size of the text: about
//! 400 MB a second on clean prose, and on one core.
//!
//! What is not found: a secret without a well-known form in plain prose ("the password is
//! swordfish"), and one whose name says nothing. Name such keys, or add a pattern.
//!
//! ```
//! use milepost_context::redact::{Rules, VaultKey, restore};
//! use serde_json::json;
//!
//! let redactor = Rules::new().vault(VaultKey::new([7; 32])).build();
//! let mut value = json!({"login": {"apiKey": "k-1"}, "note": "db is postgres://app:s3cr3t@db/main"});
//! let before = value.clone();
//! let found = redactor.value(&mut value);
//! assert_eq!(found.len(), 2);
//! assert!(!value.to_string().contains("s3cr3t"));
//!
//! restore(&mut value, |_, id| found.iter().find(|f| f.id.as_deref() == Some(id)).map(|f| f.secret().to_owned()));
//! assert_eq!(value, before);
//! ```

mod assign;
mod builtin;
mod restore;
mod rules;
mod scan;
mod walk;

use std::fmt;

use milepost_model::{Message, State};
use serde_json::Value;
use zeroize::{Zeroize, Zeroizing};

pub use assign::token;
pub use restore::{restore, restore_message, restore_text};
pub use rules::{DEFAULT_KEYS, Rules, RulesError};

/// How deep a value is looked at, so that a stack suffices; what lies deeper is replaced whole. Nothing that is stored
/// comes near it: a state may nest 256 levels, messages and events less, and deeper ones are refused.
pub const MAX_DEPTH: usize = 1024;

/// The longest value of an assignment in a text that is looked at, in bytes.
pub const MAX_ASSIGNED_BYTES: usize = 16 * 1024;

/// How often a text with secrets is looked at again.
pub(crate) const MAX_ROUNDS: usize = 8;

/// The kind of what stood under a named key of an object. Its secret is the value's JSON.
pub const KEY_KIND: &str = "key";

/// The key that tokens' ids are made with. Wiped when dropped.
#[derive(Clone)]
pub struct VaultKey([u8; 32]);

impl VaultKey {
    /// Takes the bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The id of a secret: 12 hexadecimal digits of a keyed hash.
    fn id(&self, kind: &str, secret: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(kind.as_bytes()).update(b"\0").update(secret.as_bytes());
        hasher.finalize().to_hex().chars().take(12).collect()
    }
}

impl Drop for VaultKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for VaultKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VaultKey")
    }
}

/// A secret that was taken out. Wiped when dropped; never printed.
#[derive(Clone)]
pub struct Found {
    /// What kind of secret.
    pub kind: String,
    /// Its id in the token, when there is a vault.
    pub id: Option<String>,
    /// Where it was: a JSON pointer, empty for the whole.
    pub place: String,
    secret: Zeroizing<String>,
}

impl Found {
    /// The secret itself. For kind [`KEY_KIND`] the JSON of the value.
    pub fn secret(&self) -> &str {
        &self.secret
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found")
            .field("kind", &self.kind)
            .field("id", &self.id)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// Takes secrets out. Made by [`Rules::build`]; cheap to share behind an `Arc`.
pub struct Redactor {
    rules: Rules,
    scanner: scan::Scanner,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Redactor {
    /// The text without its secrets, and the secrets; none when it has none.
    pub fn text(&self, text: &str) -> Option<(String, Vec<Found>)> {
        let mut found = Vec::new();
        let clean = self.clean(text, &|| String::new(), &mut found)?;
        Some((clean, found))
    }

    /// Takes the secrets out of a JSON value.
    pub fn value(&self, value: &mut Value) -> Vec<Found> {
        walk::Walk::new(self).value(value)
    }

    /// Takes the secrets out of a state.
    pub fn state(&self, state: &mut State) -> Vec<Found> {
        let mut value = std::mem::take(state).into_value();
        let found = self.value(&mut value);
        // An object stays one.
        *state = State::try_from(value).unwrap_or_default();
        found
    }

    /// Takes the secrets out of everything that a message holds. A thought that held one loses the
    /// provider's signature, which no longer fits it.
    pub fn message(&self, message: &mut Message) -> Vec<Found> {
        walk::Walk::new(self).message(message)
    }

    /// The token that stands for a secret.
    fn token(&self, kind: &str, secret: &str) -> (String, Option<String>) {
        match &self.rules.vault {
            Some(key) => {
                let id = key.id(kind, secret);
                (format!("[redacted:{kind}:{id}]"), Some(id))
            }
            None => (format!("[redacted:{kind}]"), None),
        }
    }

    /// The text without its secrets. It is looked at again until there are none: what stood beside a
    /// secret can be one once that is gone.
    fn clean(&self, text: &str, place: &dyn Fn() -> String, found: &mut Vec<Found>) -> Option<String> {
        let mut clean = self.clean_once(text, place, found)?;
        for _ in 0..MAX_ROUNDS {
            match self.clean_once(&clean, place, found) {
                Some(cleaner) => clean = cleaner,
                None => break,
            }
        }
        Some(clean)
    }

    fn clean_once(&self, text: &str, place: &dyn Fn() -> String, found: &mut Vec<Found>) -> Option<String> {
        let spans = self.scanner.scan(text);
        if spans.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for span in spans {
            let secret = text.get(span.start..span.end).unwrap_or_default();
            let (token, id) = self.token(&span.kind, secret);
            out.push_str(text.get(at..span.start).unwrap_or_default());
            out.push_str(&token);
            at = span.end;
            found.push(Found {
                kind: span.kind.into_owned(),
                id,
                place: place(),
                secret: Zeroizing::new(secret.to_owned()),
            });
        }
        out.push_str(text.get(at..).unwrap_or_default());
        Some(out)
    }
}
