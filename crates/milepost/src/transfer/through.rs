//! Imports in the name of an engine: by its rules of what a secret is.

use std::io::{Read, Seek};
use std::path::Path;

use super::{ImportOptions, Imported, OnProgress, import_bundle, older};
use crate::engine::{EngineOptions, Milepost};
use crate::error::Result;

impl Milepost {
    /// Imports a file that an older tool left behind, or every session that is found in a directory. Secrets are taken
    /// out of all of it before anything is stored. See [`older::import_path`]; a bundle is taken as
    /// [`Milepost::import_bundle`] takes it.
    pub async fn import_older(&self, path: &Path, options: &ImportOptions) -> Result<Vec<Imported>> {
        self.import_older_with(path, options, &mut |_| {}).await
    }

    /// The same, telling how far it is: the entries of the session that is being written. Nothing is told while files are read.
    pub async fn import_older_with(
        &self,
        path: &Path,
        options: &ImportOptions,
        progress: OnProgress<'_>,
    ) -> Result<Vec<Imported>> {
        let (options, claim) = (self.importing(options), self.claim());
        Box::pin(older::import_path_with(self.store(), path, &options, &claim, progress)).await
    }

    /// What [`Milepost::import_older`] would make of a file or a directory. All of it is done, in memory; nothing is stored.
    /// A session that was imported before is counted without entries, as an import would leave it alone.
    pub async fn check_older(&self, path: &Path, options: &ImportOptions) -> Result<Vec<Imported>> {
        let mut plain = milepost_store::Options::default();
        plain.workspace = self.store().workspace().clone();
        let scratch = milepost_store::Store::open("memory:", plain).await?;
        // Secrets are looked for by this engine's rules; what is found is gone with the scratch.
        let rules = EngineOptions { redaction: self.redaction().rules(), ..EngineOptions::default() };
        let there = Milepost::on(scratch.clone(), rules).await?;
        let options = ImportOptions { engine: Some(there), known_in: Some(self.store().clone()), ..options.clone() };
        let made = Box::pin(older::import_path(&scratch, path, &options, &self.claim())).await;
        scratch.close().await?;
        made
    }

    /// Imports what a file's content says, without its secrets. See [`older::import_bytes`].
    pub async fn import_older_bytes(
        &self,
        name: &str,
        content: &[u8],
        options: &ImportOptions,
    ) -> Result<Vec<Imported>> {
        Box::pin(older::import_bytes(self.store(), name, content, &self.importing(options), &self.claim())).await
    }

    /// Imports a bundle, entry by entry as it is: its hashes and its signature stay what they are. What looks like a secret
    /// in its messages, states and events is told in [`Imported::notes`], and left there. Blobs are not looked into.
    pub async fn import_bundle<R: Read + Seek + Send>(
        &self,
        reader: R,
        options: &ImportOptions,
        progress: OnProgress<'_>,
    ) -> Result<Imported> {
        Box::pin(import_bundle(self.store(), reader, &self.importing(options), &self.claim(), progress)).await
    }

    fn importing(&self, options: &ImportOptions) -> ImportOptions {
        ImportOptions { engine: Some(self.clone()), ..options.clone() }
    }
}
