//! Late redaction of artifacts: their contents and names, and what crashes left of them.

use std::collections::{BTreeMap, HashSet};

use milepost_model::{Id, SessionId};
use milepost_store::{Conflict, Redacted, Redactor, StoredRecord};

use super::artifact::{Artifact, HEAD, PART, Version, check_artifact_name, is_plain};
use super::keep::{MAX_TRIES, Projects, decode};
use crate::{Error, Result};

/// So many records are read at once; a part has up to 256 KiB.
const PAGE: usize = 64;

/// Artifacts as they are named, and whether that is all of them.
#[derive(Default)]
struct Heads {
    artifacts: Vec<(String, Artifact)>,
    damaged: Vec<String>,
}

impl Heads {
    fn versions(&self) -> impl Iterator<Item = (&String, &Artifact, &Version)> {
        self.artifacts.iter().flat_map(|(key, found)| found.versions.iter().map(move |version| (key, found, version)))
    }

    fn named(&self) -> HashSet<&str> {
        self.versions().map(|(_, _, version)| version.parts.as_str()).collect()
    }
}

/// A content that no artifact names.
struct Unnamed {
    parts: String,
    keys: Vec<String>,
    content: Vec<u8>,
}

impl Projects {
    /// Erases what is found in artifacts, of every owner. Contents count as records, and so do names. Those that are damaged are
    /// passed over and named.
    pub(crate) async fn redact_artifacts(&self, redactor: &Redactor, dry_run: bool) -> Result<Redacted> {
        let mut found = Redacted::default();
        let heads = self.heads(redactor).await?;
        // Before anything is replaced: what an earlier one left is known by what names its successor.
        self.redact_unnamed(&heads, redactor, dry_run, &mut found).await?;
        // A new name that was half given: two artifacts have the same parts.
        let mut contents: BTreeMap<&str, (&Artifact, &Version, Vec<&str>)> = BTreeMap::new();
        for (key, artifact, version) in heads.versions() {
            contents.entry(&version.parts).or_insert((artifact, version, Vec::new())).2.push(key);
        }
        for (artifact, version, keys) in contents.into_values() {
            let content = match self.content(version).await {
                Err(error @ Error::Store(milepost_store::Error::Corrupt { .. })) => {
                    let name = redactor.clean(&artifact.name).unwrap_or_else(|| artifact.name.clone());
                    found.damaged.push(format!("the artifact {name:?} in version {}: {error}", version.number));
                    continue;
                }
                content => content?,
            };
            let Some(clean) = redactor.clean_bytes(&content) else { continue };
            found.records += 1;
            if !dry_run {
                self.replace(&keys, version, &clean).await?;
            }
        }
        for (key, artifact) in &heads.artifacts {
            let Some(clean) = redactor.clean(&artifact.name) else { continue };
            found.records += 1;
            if !dry_run {
                self.rename_artifact(key, &clean, redactor).await?;
            }
        }
        found.damaged.extend(heads.damaged);
        Ok(found)
    }

    async fn heads(&self, redactor: &Redactor) -> Result<Heads> {
        let (mut heads, mut after) = (Heads::default(), None);
        loop {
            let page = self.store.records_past_damage(HEAD, after.as_deref(), PAGE).await?;
            let is_full = page.len() == PAGE;
            after = page.last().map(|(key, _)| key.clone());
            for (key, record) in page {
                let read = record.map_err(Error::from).and_then(|record| decode::<Artifact>(HEAD, &record.value));
                match read {
                    Ok(artifact) => heads.artifacts.push((key, artifact)),
                    Err(error) => {
                        let why = error.to_string();
                        heads.damaged.push(format!("an artifact: {}", redactor.clean(&why).unwrap_or(why)));
                    }
                }
            }
            if !is_full {
                return Ok(heads);
            }
        }
    }

    /// Puts a clean content in the place of another, wherever that is named.
    async fn replace(&self, keys: &[&str], version: &Version, clean: &[u8]) -> Result<()> {
        let Some(first) = keys.first() else { return Ok(()) };
        let parts = self.put_parts(first, clean).await?;
        let hash = blake3::hash(clean).to_hex().to_string();
        for key in keys {
            self.change(HEAD, key, |found: Option<Artifact>| {
                let Some(mut found) = found else { return Ok((None, ())) };
                for held in found.versions.iter_mut().filter(|held| held.parts == version.parts) {
                    (held.hash, held.bytes, held.parts) = (hash.clone(), clean.len() as u64, parts.clone());
                    held.replaced = Some(version.parts.clone());
                }
                Ok((Some(found), ()))
            })
            .await?;
        }
        self.remove_parts(version).await
    }

    /// Removes parts that no artifact names, as a crash leaves them: those that were replaced, and those that are so old that
    /// nobody can be about to name them. All of them: a secret may lie across two, of which one is gone already.
    async fn redact_unnamed(
        &self,
        heads: &Heads,
        redactor: &Redactor,
        dry_run: bool,
        found: &mut Redacted,
    ) -> Result<()> {
        let named = heads.named();
        let replaced: HashSet<&str> = heads.versions().filter_map(|(_, _, held)| held.replaced.as_deref()).collect();
        let before = self.store.source().now().plus_ms(-self.store.blob_grace_ms());
        let mut idle = Vec::new();
        let mut look = |unnamed: Unnamed| {
            let is_old = made(&unnamed.parts).is_some_and(|made| made.unix_ms() < before.unix_ms());
            // One that cannot be read may name them.
            let goes = heads.damaged.is_empty() && (is_old || replaced.contains(unnamed.parts.as_str()));
            match (redactor.clean_bytes(&unnamed.content).is_some(), goes) {
                (true, true) => found.records += 1,
                (true, false) => found.records_left += 1,
                (false, _) => {}
            }
            if goes {
                idle.push((unnamed.parts, unnamed.keys));
            }
        };
        let (mut after, mut unnamed) = (None::<String>, None::<Unnamed>);
        loop {
            let page = self.store.records_past_damage(PART, after.as_deref(), PAGE).await?;
            let is_full = page.len() == PAGE;
            after = page.last().map(|(key, _)| key.clone());
            for (key, record) in page {
                let parts = key.rsplit_once('/').map_or(key.as_str(), |(parts, _)| parts).to_owned();
                if named.contains(parts.as_str()) {
                    continue;
                }
                if unnamed.as_ref().is_none_or(|unnamed| unnamed.parts != parts) {
                    let next = Unnamed { parts, keys: Vec::new(), content: Vec::new() };
                    unnamed.replace(next).into_iter().for_each(&mut look);
                }
                if let Some(unnamed) = &mut unnamed {
                    unnamed.keys.push(key);
                    // One that cannot be read goes with the others.
                    unnamed.content.extend(record.map(|StoredRecord { value, .. }| value).unwrap_or_default());
                }
            }
            if !is_full {
                break;
            }
        }
        unnamed.into_iter().for_each(look);
        if dry_run || idle.is_empty() {
            return Ok(());
        }
        // One that got another name meanwhile was perhaps not seen under either.
        let again = self.heads(redactor).await?;
        let named = again.named();
        for (parts, keys) in idle {
            if !again.damaged.is_empty() || named.contains(parts.as_str()) {
                continue;
            }
            for key in keys {
                self.remove(PART, &key).await?;
            }
        }
        Ok(())
    }

    /// Gives an artifact another name, with a number where that is taken. What was put in a secret's place may not be a name.
    async fn rename_artifact(&self, key: &str, name: &str, redactor: &Redactor) -> Result<()> {
        let plain = |c: char| if is_plain(c) || c == '/' { c } else { '-' };
        let mut name: String = name.chars().map(plain).collect();
        if check_artifact_name(&name).is_err() || redactor.clean(&name).is_some() {
            name = "redacted".to_owned();
        }
        for _ in 0..MAX_TRIES {
            let Some(found) = self.store.record(HEAD, key).await? else { return Ok(()) };
            self.put_renamed(key, &name, decode(HEAD, &found.value)?).await?;
            match self.store.delete_record(HEAD, key, found.version).await {
                // Something was put under the old name: it goes along.
                Err(milepost_store::Error::Conflict(Conflict::Record { .. })) => {}
                outcome => return Ok(outcome?),
            }
        }
        Err(Error::Store(Conflict::Record { key: format!("of kind {HEAD}") }.into()))
    }

    /// Puts an artifact under a name that is free, or that it got already before its old one could be removed.
    async fn put_renamed(&self, key: &str, name: &str, artifact: Artifact) -> Result<()> {
        let owner = key.split_once('/').map_or(key, |(owner, _)| owner);
        for round in 1u64.. {
            let name = if round == 1 { name.to_owned() } else { format!("{name} {round}") };
            let renamed = format!("{owner}/{}", self.token("artifact", name.as_bytes()));
            if renamed == key {
                continue;
            }
            let put = |found: Option<Artifact>| {
                Ok(match found {
                    None => (Some(Artifact { name: name.clone(), renamed: true, ..artifact.clone() }), true),
                    Some(found) if found.shares_with(&artifact) => (Some(found.joined(&artifact)), true),
                    Some(_) => (None, false),
                })
            };
            if self.change(HEAD, &renamed, put).await? {
                break;
            }
        }
        Ok(())
    }
}

impl Artifact {
    fn shares_with(&self, other: &Self) -> bool {
        self.versions.iter().any(|held| other.versions.iter().any(|version| version.parts == held.parts))
    }

    /// The same with the versions that another has besides. One whose number is taken gets the next.
    fn joined(mut self, other: &Self) -> Self {
        for version in &other.versions {
            if self.versions.iter().any(|held| held.parts == version.parts) {
                continue;
            }
            let is_taken = self.versions.iter().any(|held| held.number == version.number);
            let next = self.versions.last().map_or(1, |last| last.number + 1);
            self.versions.push(Version { number: if is_taken { next } else { version.number }, ..version.clone() });
            self.versions.sort_by_key(|version| version.number);
        }
        self
    }
}

/// What says when parts were put.
fn made(parts: &str) -> Option<SessionId> {
    let (_, id) = parts.rsplit_once('/')?;
    format!("{}{id}", SessionId::PREFIX).parse().ok()
}
