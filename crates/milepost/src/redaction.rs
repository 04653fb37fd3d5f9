//! What never reaches the store in clear, and the vault from which an authorised resume gets it back.
//!
//! Redaction happens before anything is hashed or written. With a vault (an encrypted workspace only) the secrets
//! themselves are kept as sealed records under the ids that their tokens name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use milepost_context::redact::{Found, Redactor, Rules, VaultKey, restore};
use milepost_model::{Event, Message, Resumable, SessionPatch, State, WorkspaceId};
use milepost_store::{NewMark, Store, StoredMessage, is_own_event};
use serde_json::Value;

use crate::engine::Milepost;
use crate::error::{Error, Result};

/// A secret that was taken out.
pub(crate) type Secret = Found;

/// Records of the vault: one for each secret, and the key that their ids are made with.
const VAULT: &str = "vault";
/// Fields of sessions that only the store sets.
const OWN_FIELDS: [&str; 2] = ["hidden", "trashed"];
const VAULT_KEY: (&str, &str) = ("vault-key", "current");

/// Takes secrets out of everything that is to be stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct Redaction {
    lazy: Option<Arc<Lazy>>,
}

/// The patterns are compiled when something is first to be stored: whoever only reads does not wait for that.
#[derive(Debug)]
struct Lazy {
    rules: Rules,
    redactor: OnceLock<Redactor>,
}

impl Redaction {
    /// By rules; without any, only what stands under the named keys is taken out.
    pub async fn new(rules: Option<Rules>, keys: &BTreeSet<String>, vault: bool, store: &Store) -> Result<Self> {
        let rules = rules.unwrap_or_else(Rules::none).keys(keys);
        let rules = if vault { rules.vault(vault_key(store).await?) } else { rules };
        Ok(Self { lazy: Some(Arc::new(Lazy { rules, redactor: OnceLock::new() })) })
    }

    /// The rules, with the named keys.
    pub fn rules(&self) -> Option<Rules> {
        self.lazy.as_ref().map(|lazy| lazy.rules.clone())
    }

    /// The same with further named keys.
    pub fn with_keys<'a>(&self, keys: impl IntoIterator<Item = &'a String>) -> Self {
        let keys: Vec<&String> = keys.into_iter().collect();
        match &self.lazy {
            Some(lazy) if !keys.is_empty() => {
                let rules = lazy.rules.clone().keys(keys);
                Self { lazy: Some(Arc::new(Lazy { rules, redactor: OnceLock::new() })) }
            }
            _ => self.clone(),
        }
    }

    /// Every text of a checkpoint. Nothing of it is kept in a vault.
    pub fn mark(&self, mark: NewMark) -> NewMark {
        let mut extra = Value::Object(mark.extra);
        self.value(&mut extra);
        NewMark {
            label: mark.label.map(|label| self.text(&label)),
            description: mark.description.map(|text| self.text(&text)),
            resumable: match mark.resumable {
                Resumable::No(why) => Resumable::No(self.text(&why)),
                Resumable::Yes => Resumable::Yes,
            },
            extra: extra.as_object().cloned().unwrap_or_default(),
            ..mark
        }
    }

    fn redactor(&self) -> Option<&Redactor> {
        self.lazy.as_ref().map(|lazy| lazy.redactor.get_or_init(|| lazy.rules.clone().build()))
    }

    pub fn message(&self, message: &mut Message) -> Vec<Secret> {
        self.redactor().map(|redactor| redactor.message(message)).unwrap_or_default()
    }

    pub fn state(&self, state: &mut State) -> Vec<Secret> {
        self.redactor().map(|redactor| redactor.state(state)).unwrap_or_default()
    }

    pub fn value(&self, value: &mut Value) -> Vec<Secret> {
        self.redactor().map(|redactor| redactor.value(value)).unwrap_or_default()
    }

    /// An event's data. Refused when only the store says such things in its log.
    pub fn event(&self, event: &mut Event) -> Result<Vec<Secret>> {
        if is_own_event(event) {
            let what = format!("an event of the kind {:?}", event.kind);
            let why = "the store says with it what became of the session or its log: give it another kind".to_owned();
            return Err(milepost_store::Error::Invalid { what, why }.into());
        }
        let mut data = Value::Object(std::mem::take(&mut event.data));
        let found = self.value(&mut data);
        if let Value::Object(data) = data {
            event.data = data;
        }
        Ok(found)
    }

    /// What a list shows is redacted for good: no vault keeps it.
    pub fn patch(&self, patch: &mut SessionPatch) -> Result<()> {
        if let Some(name) = OWN_FIELDS.iter().find(|name| patch.0.contains_key(**name)) {
            let why =
                "the store says with it that a session was deleted or put in the trash: use another name, or `trash`";
            let (what, why) = (format!("a session's {name}"), why.to_owned());
            return Err(milepost_store::Error::Invalid { what, why }.into());
        }
        let mut value = Value::Object(std::mem::take(&mut patch.0));
        self.value(&mut value);
        if let Value::Object(map) = value {
            patch.0 = map;
        }
        Ok(())
    }

    /// The bytes of a file without its secrets, and the secrets; none when there are none. What is not UTF-8 is looked at as
    /// Latin-1, in which every byte is a character, and comes out as the same bytes.
    pub fn bytes(&self, content: &[u8]) -> Option<(Vec<u8>, Vec<Secret>)> {
        let redactor = self.redactor()?;
        if let Ok(text) = std::str::from_utf8(content) {
            return redactor.text(text).map(|(clean, found)| (clean.into_bytes(), found));
        }
        let latin: String = content.iter().map(|byte| char::from(*byte)).collect();
        let (clean, found) = redactor.text(&latin)?;
        let mut bytes = Vec::with_capacity(content.len());
        for c in clean.chars() {
            // What stands for a secret may have a name of the user's.
            match u8::try_from(c) {
                Ok(byte) => bytes.push(byte),
                Err(_) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        Some((bytes, found))
    }

    pub fn text(&self, text: &str) -> String {
        let clean = self.redactor().and_then(|redactor| redactor.text(text));
        clean.map_or_else(|| text.to_owned(), |(clean, _)| clean)
    }
}

/// A vault needs an encrypted workspace.
pub(crate) fn no_vault(workspace: &WorkspaceId) -> Error {
    Error::refused(
        "keeping secrets in a vault",
        format!("workspace {workspace} is not encrypted"),
        "make a workspace with a master key, or turn the vault off",
    )
}

async fn vault_key(store: &Store) -> Result<VaultKey> {
    if !store.is_encrypted() {
        return Err(no_vault(store.workspace()));
    }
    let (kind, name) = VAULT_KEY;
    let read = async || -> Result<Option<VaultKey>> {
        let Some(record) = store.record(kind, name).await? else { return Ok(None) };
        let bytes: [u8; 32] = record
            .value
            .try_into()
            .map_err(|_| Error::refused("opening the vault", "its key does not have 32 bytes", "verify the store"))?;
        Ok(Some(VaultKey::new(bytes)))
    };
    if let Some(key) = read().await? {
        return Ok(key);
    }
    let mut bytes = [0; 32];
    store.source().fill(&mut bytes);
    match store.put_record(kind, name, None, None, &bytes).await {
        Ok(_) => Ok(VaultKey::new(bytes)),
        // Another process was first.
        Err(milepost_store::Error::Conflict(_)) => {
            read().await?.ok_or_else(|| Error::refused("opening the vault", "its key came and went", "try again"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Puts secrets into the vault. Those without an id have none to go into.
pub(crate) async fn keep(engine: &Milepost, found: Vec<Secret>) -> Result<()> {
    for secret in found {
        let Some(id) = &secret.id else { continue };
        match engine.store().put_record(VAULT, id, None, None, secret.secret().as_bytes()).await {
            // The same secret has the same id.
            Ok(_) | Err(milepost_store::Error::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Milepost {
    /// A value with its secrets put back, for someone who may see them. What is not in the vault stays a token.
    pub async fn reveal(&self, mut value: Value) -> Result<Value> {
        let mut wanted = Vec::new();
        restore(&mut value, |_, id| {
            wanted.push(id.to_owned());
            None
        });
        let mut known = BTreeMap::new();
        for id in wanted {
            if let Some(record) = self.store().record(VAULT, &id).await?
                && let Ok(secret) = String::from_utf8(record.value)
            {
                known.insert(id, secret);
            }
        }
        restore(&mut value, |_, id| known.get(id).cloned());
        Ok(value)
    }

    /// Messages with their secrets put back, for someone who may see them.
    pub async fn reveal_messages(&self, messages: Vec<StoredMessage>) -> Result<Vec<StoredMessage>> {
        let mut revealed = Vec::with_capacity(messages.len());
        for stored in messages {
            let odd = |error| Error::file(format!("revealing the message at {}", stored.at), error);
            let value = serde_json::to_value(&stored.message).map_err(odd)?;
            let message = serde_json::from_value(self.reveal(value).await?).map_err(odd)?;
            // Where it was said is no part of it as JSON.
            revealed.push(StoredMessage { message: Message { channel: stored.message.channel, ..message }, ..stored });
        }
        Ok(revealed)
    }
}
