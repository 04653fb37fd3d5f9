//! From settings to what a store is opened with.

use std::path::Path;

use milepost_document::{Diagnostic, Origin};
use milepost_store::{KeyOptions, MarkKey, MasterKey, Options};

use super::settings::{KeySettings, KeySource, Settings};
use crate::{Error, Result};

/// How the environment is read.
type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The name under which keys lie in the operating system's keychain.
pub const KEYCHAIN_SERVICE: &str = "milepost";

impl Settings {
    /// What the store is opened with. Keys are read from where they are kept; the environment only through `lookup`.
    pub fn options(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Options> {
        let mut options = Options::default();
        options.workspace = self.workspace.clone();
        options.blobs = self.blobs.as_ref().map(|url| url.expose().to_owned());
        options.durability = self.durability;
        options.keys = self.keys(lookup)?;
        Ok(options)
    }

    /// The keys, from where they are kept.
    pub fn keys(&self, lookup: &dyn Fn(&str) -> Option<String>) -> Result<KeyOptions> {
        let mut keys = KeyOptions::default();
        if self.encryption.enabled {
            keys.master = Some(read(&self.encryption, "encryption", self.workspace.as_str(), lookup)?);
        }
        if self.signing.enabled {
            let account = format!("{}/marks", self.workspace);
            let key = read(&self.signing, "signing", &account, lookup)?;
            keys.marks = Some(MarkKey::parse(&key.to_hex())?);
        }
        Ok(keys)
    }
}

impl Settings {
    /// What is wrong with the keys that these settings ask for: where they are to be there is none, or something needs one
    /// that is not used. Without the environment (`lookup`), what only it can tell is not judged.
    pub(super) fn check_keys(&self, lookup: Option<&Lookup<'_>>) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        let origin = |path: &str| {
            let path: Vec<String> = path.split('.').map(str::to_owned).collect();
            self.origins.get(&path).cloned().unwrap_or(Origin::Default)
        };
        if self.redaction.vault && !self.encryption.enabled {
            let why = "the vault keeps secrets encrypted, but encryption is not used";
            let instead = "set encryption.enabled and a key, or set redaction.vault to false";
            found.push(match lookup {
                Some(_) => Diagnostic::error(&origin("redaction.vault"), "redaction.vault", why, instead),
                // A key in the environment turns encryption on.
                None => Diagnostic::warning(&origin("redaction.vault"), "redaction.vault", why, instead),
            });
        }
        let none = |_: &str| None;
        let account = |section| match section {
            "signing" => format!("{}/marks", self.workspace),
            _ => self.workspace.to_string(),
        };
        for (section, key) in [("encryption", &self.encryption), ("signing", &self.signing)] {
            if !key.enabled || (key.source == KeySource::Variable && lookup.is_none()) {
                continue;
            }
            let Err(error) = read(key, section, &account(section), lookup.unwrap_or(&none)) else { continue };
            let named = ["key_file", "key_source", "enabled"].map(|name| format!("{section}.{name}"));
            let at = named.iter().find(|name| origin(name) != Origin::Default).unwrap_or(&named[2]);
            let (why, instead) = match error {
                Error::ConfigKey { why, instead, .. } => (why, instead),
                other => {
                    (other.to_string(), format!("make one with `milepost keys new`, or set {section}.enabled to false"))
                }
            };
            found.push(Diagnostic::error(&origin(at), at.clone(), why, instead));
        }
        found
    }
}

fn read(key: &KeySettings, section: &str, account: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<MasterKey> {
    let missing =
        |why: String, instead: String| Error::ConfigKey { place: format!("{section}.key_source"), why, instead };
    match key.source {
        KeySource::Variable => match lookup(&key.variable).filter(|text| !text.is_empty()) {
            Some(text) => MasterKey::parse(&text).map_err(|_| {
                let why = format!("the variable {} does not hold a key", key.variable);
                missing(why, "set it to 32 random bytes, as 64 hex digits or base64".to_owned())
            }),
            None => {
                let why = format!("the variable {} is not set", key.variable);
                Err(missing(why, format!("set it, or set {section}.enabled to false")))
            }
        },
        KeySource::File => Ok(MasterKey::from_file(key.file.as_deref().unwrap_or(Path::new("")))?),
        KeySource::Keychain => from_keychain(section, account),
    }
}

#[cfg(feature = "keychain")]
fn from_keychain(section: &str, account: &str) -> Result<MasterKey> {
    MasterKey::from_keychain(KEYCHAIN_SERVICE, account)?.ok_or_else(|| Error::ConfigKey {
        place: format!("{section}.key_source"),
        why: format!("the keychain has no key {account:?} of {KEYCHAIN_SERVICE:?}"),
        instead: "put one there, or keep the key in a file or a variable".to_owned(),
    })
}

#[cfg(not(feature = "keychain"))]
fn from_keychain(section: &str, account: &str) -> Result<MasterKey> {
    Err(Error::ConfigKey {
        place: format!("{section}.key_source"),
        why: format!(
            "the key {account:?} is in the keychain, but this program was built without the feature `keychain`"
        ),
        instead: "keep the key in a file or a variable".to_owned(),
    })
}
