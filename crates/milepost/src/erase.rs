//! Late redaction: a secret that was stored is erased from everything, also from the archives that are known.

mod own;

use std::collections::BTreeMap;

use milepost_model::SessionId;
use milepost_store::{Redacted, Redactor, Store};

use crate::engine::{EngineOptions, Milepost};
use crate::error::{Error, Result};

/// What erasing did, or would do.
#[derive(Debug, Clone, Default)]
pub struct Erased {
    /// In this store.
    pub here: Redacted,
    /// In each archive that has a copy of a session.
    pub archives: Vec<ErasedArchive>,
}

/// What erasing did in an archive, or would do.
#[derive(Debug, Clone)]
pub struct ErasedArchive {
    /// Where it is.
    pub url: String,
    /// Sessions of which it has a copy, as far as this store knows.
    pub sessions: Vec<SessionId>,
    /// What was found; or why the archive could not be reached, and may still hold it.
    pub outcome: std::result::Result<Redacted, String>,
}

impl Erased {
    /// Whether it was found nowhere, in whatever could be reached and read.
    pub fn is_nothing(&self) -> bool {
        self.places().all(|(_, found)| is_nothing(found))
    }

    /// What was found here and in every archive that could be reached, with where an archive is.
    pub fn places(&self) -> impl Iterator<Item = (Option<&str>, &Redacted)> {
        let there =
            self.archives.iter().filter_map(|archive| Some((archive.url.as_str(), archive.outcome.as_ref().ok()?)));
        std::iter::once((None, &self.here)).chain(there.map(|(url, found)| (Some(url), found)))
    }

    /// Archives that could not be reached, and why.
    pub fn unreached(&self) -> impl Iterator<Item = (&ErasedArchive, &str)> {
        self.archives.iter().filter_map(|archive| Some((archive, archive.outcome.as_ref().err()?.as_str())))
    }
}

fn is_nothing(found: &Redacted) -> bool {
    found.sessions.is_empty()
        && found.entries == 0
        && found.checkpoints == 0
        && found.records == 0
        && found.records_left == 0
        && found.blobs.is_empty()
}

impl Milepost {
    /// Looks for one text and puts another in its place, which may be no secret itself.
    pub fn redactor(&self, secret: &str, instead: &str) -> Result<Redactor> {
        if self.redaction().text(instead) != instead {
            let why = "it looks like a secret itself, and would be stored in its place";
            return Err(Error::malformed("the replacement", why, "use another, such as [redacted]"));
        }
        Ok(Redactor::literal(secret, instead)?)
    }

    /// Erases what is found from everything in the workspace: messages, states, events, records, artifacts; and from the
    /// archives that have a copy of one of its sessions, as far as `open` reaches them. The chains stay whole. What adapters
    /// keep, `adapters` erases from a store before, by rules of their own; the sessions in which they leave something are
    /// passed over. With `dry_run` it only counts, and so do they.
    pub async fn redact(
        &self,
        redactor: &Redactor,
        why: &str,
        dry_run: bool,
        open: impl AsyncFn(&str) -> std::result::Result<Store, String>,
        adapters: impl AsyncFn(&Store) -> milepost_store::Result<Redacted>,
    ) -> Result<Erased> {
        // The reason stays for good.
        let why = &*self.redaction().text(why);
        let mut places: BTreeMap<String, Vec<SessionId>> = BTreeMap::new();
        for copy in self.archive_copies().await? {
            places.entry(copy.url).or_default().push(copy.session_id);
        }
        let here = self.redact_here(redactor, why, dry_run, &adapters).await?;
        let mut archives = Vec::new();
        for (url, sessions) in places {
            let outcome = match open(&url).await {
                Ok(store) => {
                    redact_there(store, redactor, why, dry_run, &adapters).await.map_err(|error| error.finding())
                }
                Err(why) => Err(why),
            };
            archives.push(ErasedArchive { url, sessions, outcome });
        }
        Ok(Erased { here, archives })
    }

    async fn redact_here(
        &self,
        redactor: &Redactor,
        why: &str,
        dry_run: bool,
        adapters: &impl AsyncFn(&Store) -> milepost_store::Result<Redacted>,
    ) -> Result<Redacted> {
        let of_adapters = adapters(self.store()).await?;
        // Whole artifacts first: their parts are records, and a part alone has no hash.
        let artifacts = match crate::project::Projects::open_if_any(self.store()).await? {
            Some(projects) => projects.redact_artifacts(redactor, dry_run).await?,
            None => Redacted::default(),
        };
        let redactor = redactor.clone().with_records(own::of_record).with_fields(own::of_field);
        let mut redacted = self.store().redact(&redactor, why, &self.claim(), dry_run).await?;
        redacted.records += artifacts.records;
        redacted.records_left += artifacts.records_left;
        redacted.damaged.extend(artifacts.damaged);
        redacted.join(of_adapters, dry_run);
        Ok(redacted)
    }
}

async fn redact_there(
    store: Store,
    redactor: &Redactor,
    why: &str,
    dry_run: bool,
    adapters: &impl AsyncFn(&Store) -> milepost_store::Result<Redacted>,
) -> Result<Redacted> {
    let there = Milepost::on(store.clone(), EngineOptions::default()).await?;
    let outcome = there.redact_here(redactor, why, dry_run, adapters).await;
    store.close().await?;
    outcome
}
