//! What is in the store already, found out before anything is written.

use std::collections::{HashMap, HashSet};

use milepost_model::{Session, SessionId};
use milepost_store::{Claim, Conflict, DeleteMode, SessionQuery, Store};
use serde_json::Value;

use super::builder::{Builder, IMPORTED_HASH};
use crate::error::{Error, Result};
use crate::transfer::written::IMPORTED_ID;
use crate::transfer::{Ids, ImportOptions, Imported};

/// Sessions that were imported before.
#[derive(Debug, Default)]
pub(super) struct Known {
    own: HashSet<SessionId>,
    /// By what they were called, and what they were made of.
    named: HashMap<(String, String), SessionId>,
}

impl Known {
    /// Finds those that were imported before. Refused when an id is taken by something else.
    pub async fn find(store: &Store, built: &[Builder], options: &ImportOptions) -> Result<Self> {
        let mut known = Self::default();
        let mut met = HashSet::new();
        for builder in built {
            let Some(id) = builder.own_id(options) else { continue };
            if !met.insert(id) {
                return Err(Error::import(options.name(), format!("two sessions in it have the id {id}")));
            }
            match store.session(id).await {
                // One that is hidden is an import that was not finished.
                Ok(found) if found.hidden => {}
                Ok(found) if extra(&found, IMPORTED_HASH) == Some(&builder.hash()) => drop(known.own.insert(id)),
                Ok(_) => return Err(Error::Store(Conflict::Exists { what: "session", id: id.to_string() }.into())),
                Err(milepost_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if options.ids == Ids::Preserve && met.len() < built.len() {
            known.named = named(store).await?;
        }
        Ok(known)
    }

    /// The session that was made of the same before.
    pub fn get(&self, builder: &Builder, options: &ImportOptions) -> Option<SessionId> {
        match builder.own_id(options) {
            Some(own) => self.own.get(&own).copied(),
            None if self.named.is_empty() => None,
            None => self.named.get(&(builder.imported_id()?, builder.hash())).copied(),
        }
    }
}

fn extra<'a>(session: &'a Session, key: &str) -> Option<&'a str> {
    session.extra.get(key).and_then(Value::as_str)
}

async fn named(store: &Store) -> Result<HashMap<(String, String), SessionId>> {
    let (mut named, mut query) = (HashMap::new(), SessionQuery::default());
    loop {
        let page = store.sessions(&query).await?;
        for session in &page.sessions {
            if let (Some(name), Some(hash)) = (extra(session, IMPORTED_ID), extra(session, IMPORTED_HASH)) {
                named.insert((name.to_owned(), hash.to_owned()), session.id);
            }
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(named),
        }
    }
}

/// A session that is not imported again.
pub(super) async fn left_alone(store: &Store, session: SessionId, builder: Builder) -> Result<Imported> {
    let shown = store.session(session).await?;
    Ok(Imported {
        session,
        original: builder.original,
        entries: 0,
        messages: shown.messages(),
        checkpoints: shown.checkpoints,
        notes: vec!["it was imported before and is left as it is; import it with new ids to have it twice".to_owned()],
    })
}

/// Removes what was written before something was refused.
pub(super) async fn take_back(
    store: &Store,
    written: &[SessionId],
    claim: &Claim,
    options: &ImportOptions,
    refused: &Error,
) -> Result<()> {
    for (number, id) in written.iter().enumerate() {
        if let Err(error) = store.delete(*id, DeleteMode::Refuse, claim, false).await {
            let left: Vec<String> = written[number..].iter().map(ToString::to_string).collect();
            return Err(Error::refused(
                format!("importing {}", options.name()),
                format!("{refused}; what came before it could not be removed again: {error}"),
                format!("delete {}, then import it again", left.join(", ")),
            ));
        }
    }
    Ok(())
}
