//! What a secret is.

use std::collections::HashMap;
use std::fmt;

use milepost_model::Policy;
use regex::{Regex, RegexBuilder};

use super::{Redactor, VaultKey, scan::Scanner};

/// The longest pattern of a user, in bytes.
pub const MAX_PATTERN_BYTES: usize = 4096;
/// The most memory one compiled pattern of a user may take, in bytes.
pub const MAX_COMPILED_BYTES: usize = 2 * 1024 * 1024;
/// The longest name of a kind, in bytes.
pub const MAX_KIND_BYTES: usize = 32;

/// Keys whose value is a secret, besides those that a policy names. Case, `_`, `-`, `.` and spaces
/// do not matter.
pub const DEFAULT_KEYS: [&str; 23] = [
    "api_key",
    "api_secret",
    "x_api_key",
    "credentials",
    "access_token",
    "access_key",
    "auth_token",
    "authorization",
    "proxy_authorization",
    "bearer_token",
    "client_secret",
    "cookie",
    "set_cookie",
    "id_token",
    "passphrase",
    "passwd",
    "password",
    "private_key",
    "refresh_token",
    "secret",
    "secret_access_key",
    "secret_key",
    "session_token",
];

/// Why a rule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// The name of a kind has another form.
    #[error("{0:?} is no kind of secret: use 1 to {MAX_KIND_BYTES} lower-case letters, digits and -")]
    Kind(String),
    /// A pattern does not compile, or is too large.
    #[error("the pattern {name:?} cannot be used: {why}; mend it (look-around and back-references are not supported)")]
    Pattern {
        /// The pattern's name.
        name: String,
        /// What is wrong.
        why: String,
    },
}

/// How a key is matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyRule {
    /// Named by the user: whatever its value is.
    Named,
    /// Named by the user, and one of the defaults: the same, but in texts its value must look like one.
    NamedDefault,
    /// One of the defaults: a value that may be a secret.
    Default,
}

/// What a secret is: named keys, well-known forms, patterns of your own, and what is none.
#[derive(Clone)]
pub struct Rules {
    pub(super) keys: HashMap<String, KeyRule>,
    /// The keys of the user, in the usual spellings.
    pub(super) spellings: Vec<String>,
    pub(super) well_known: bool,
    pub(super) patterns: Vec<(String, Regex)>,
    pub(super) allowed: Vec<Regex>,
    pub(super) vault: Option<VaultKey>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("keys", &self.keys.len())
            .field("well_known", &self.well_known)
            .field("patterns", &self.patterns.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("allowed", &self.allowed.len())
            .field("vault", &self.vault.is_some())
            .finish()
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::new()
    }
}

impl Rules {
    /// The default keys and the well-known forms.
    pub fn new() -> Self {
        let keys = DEFAULT_KEYS.iter().map(|key| (normal(key), KeyRule::Default)).collect();
        Self { keys, ..Self::none() }.with_well_known(true)
    }

    /// Nothing is a secret.
    pub fn none() -> Self {
        Self {
            keys: HashMap::new(),
            spellings: Vec::new(),
            well_known: false,
            patterns: Vec::new(),
            allowed: Vec::new(),
            vault: None,
        }
    }

    /// The default rules, and the keys that a policy leaves out.
    pub fn from_policy(policy: &Policy) -> Self {
        Self::new().keys(&policy.exclude_keys)
    }

    /// These keys too: their value is a secret, whatever it is.
    #[must_use]
    pub fn keys<S: AsRef<str>>(mut self, keys: impl IntoIterator<Item = S>) -> Self {
        for key in keys {
            let given = key.as_ref();
            let key = normal(given);
            if !key.is_empty() {
                let default = DEFAULT_KEYS.iter().any(|usual| normal(usual) == key);
                self.keys.insert(key, if default { KeyRule::NamedDefault } else { KeyRule::Named });
                self.spellings
                    .extend(["_", "-", "."].map(|dash| given.to_lowercase().replace(['_', '-', '.', ' '], dash)));
            }
        }
        self
    }

    fn with_well_known(mut self, on: bool) -> Self {
        self.well_known = on;
        self
    }

    /// The well-known forms are not looked for.
    #[must_use]
    pub fn without_well_known(self) -> Self {
        self.with_well_known(false)
    }

    /// What a regular expression matches is a secret of this kind. With a group called `secret`
    /// only that group is.
    pub fn pattern(mut self, kind: &str, pattern: &str) -> Result<Self, RulesError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if kind.is_empty() || kind.len() > MAX_KIND_BYTES || !kind.bytes().all(plain) {
            return Err(RulesError::Kind(kind.chars().take(64).collect()));
        }
        self.patterns.push((kind.to_owned(), compile(kind, pattern)?));
        Ok(self)
    }

    /// A text that this regular expression matches is no secret, whatever else says so. Named keys
    /// are not affected.
    pub fn allow(mut self, pattern: &str) -> Result<Self, RulesError> {
        self.allowed.push(compile("allow", pattern)?);
        Ok(self)
    }

    /// Tokens get an id, so that what was taken out can be put back.
    #[must_use]
    pub fn vault(mut self, key: VaultKey) -> Self {
        self.vault = Some(key);
        self
    }

    /// Ready to use.
    pub fn build(self) -> Redactor {
        let scanner = Scanner::new(&self);
        Redactor { rules: self, scanner }
    }

    /// How a key of an object is matched, if it is.
    pub(super) fn key(&self, key: &str) -> Option<KeyRule> {
        self.keys.get(&normal(key)).copied()
    }
}

fn compile(name: &str, pattern: &str) -> Result<Regex, RulesError> {
    let refuse = |why: String| RulesError::Pattern { name: name.to_owned(), why };
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(refuse(format!("it has {} bytes, the limit is {MAX_PATTERN_BYTES}", pattern.len())));
    }
    let regex = RegexBuilder::new(pattern)
        .size_limit(MAX_COMPILED_BYTES)
        .build()
        .map_err(|error| refuse(error.to_string().lines().last().unwrap_or_default().to_owned()))?;
    if regex.is_match("") {
        return Err(refuse("it matches the empty text".to_owned()));
    }
    Ok(regex)
}

/// A key without what does not matter.
pub(super) fn normal(key: &str) -> String {
    let matters = |c: &char| !matches!(c, '_' | '-' | '.' | ' ');
    if key.is_ascii() {
        let mut normal = String::with_capacity(key.len());
        normal.extend(key.chars().filter(matters).map(|c| c.to_ascii_lowercase()));
        return normal;
    }
    key.chars().filter(matters).flat_map(char::to_lowercase).collect()
}
