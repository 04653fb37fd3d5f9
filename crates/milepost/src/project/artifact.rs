//! Artifacts: what a project or a session has made, with its content and its older versions.

use std::fmt;

use milepost_model::{SessionId, Timestamp};
use serde::{Deserialize, Serialize};

use super::keep::{Projects, damaged};
use super::registry::ProjectId;
use super::template;
use crate::{Error, Result};

pub(super) const HEAD: &str = "artifact";
pub(super) const PART: &str = "artifact-part";
/// The largest artifact (8 MiB).
pub const MAX_ARTIFACT_BYTES: usize = 8 << 20;
/// So many versions of an artifact are kept; the oldest go first (100).
pub const MAX_ARTIFACT_VERSIONS: usize = 100;
/// The longest name of an artifact (255 bytes).
pub const MAX_ARTIFACT_NAME_BYTES: usize = 255;
/// Contents are kept in parts of this size.
const PART_BYTES: usize = 256 << 10;

/// Whom artifacts and log lines belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// A project.
    Project(ProjectId),
    /// A session.
    Session(SessionId),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Project(id) => write!(f, "project {id}"),
            Owner::Session(id) => write!(f, "session {id}"),
        }
    }
}

/// What an artifact is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// Something that was made.
    #[default]
    Document,
    /// Something from which others are made.
    Template,
}

/// An artifact, without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its name: a relative path.
    pub name: String,
    /// What it is for.
    pub kind: ArtifactKind,
    /// Its versions, oldest first; never empty.
    pub versions: Vec<Version>,
    /// It had another name, of which something was erased.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) renamed: bool,
}

/// A version of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Its number, counted from 1.
    pub number: u64,
    /// When it was stored.
    pub created: Timestamp,
    /// How many bytes it has.
    pub bytes: u64,
    /// The BLAKE3 hash of its content, in hex.
    pub hash: String,
    /// The session that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The template it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Where its parts lie.
    pub(super) parts: String,
    /// Where those lay that had something in them that was erased: whenever that is interrupted, the next knows what to remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replaced: Option<String>,
}

impl Version {
    /// Whether something was erased of it here.
    pub(crate) fn is_redacted(&self) -> bool {
        self.replaced.is_some()
    }
}

/// An artifact to be stored.
#[derive(Debug, Clone, Default)]
pub struct NewArtifact {
    /// What it is for.
    pub kind: ArtifactKind,
    /// The session that made it.
    pub session: Option<SessionId>,
    /// The template it was made from.
    pub template: Option<String>,
}

/// A version of an artifact on its way from another store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BroughtArtifact {
    pub name: String,
    pub kind: ArtifactKind,
    pub number: u64,
    pub created: Timestamp,
    pub session: Option<SessionId>,
    pub template: Option<String>,
    pub content: Vec<u8>,
}

/// What storing an artifact did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The version that holds the content now. When nothing changed, the one that was there.
    pub version: Version,
    /// Versions that went, because there were more than [`MAX_ARTIFACT_VERSIONS`].
    pub dropped: Vec<u64>,
}

/// Checks a name: a relative path whose parts are plain names on every system.
pub fn check_artifact_name(name: &str) -> Result<()> {
    let is_fine =
        |part: &str| !part.is_empty() && part.trim() == part && !part.ends_with('.') && part.chars().all(is_plain);
    if name.len() <= MAX_ARTIFACT_NAME_BYTES && name.split('/').all(is_fine) {
        return Ok(());
    }
    let shown: String = name.chars().take(60).collect();
    let why = format!(
        "a name is a relative path of at most {MAX_ARTIFACT_NAME_BYTES} bytes (MAX_ARTIFACT_NAME_BYTES), without . and .. and without \\ : * ? \" < > |"
    );
    Err(Error::refused(format!("the artifact {shown:?}"), why, "use a name such as docs/foundation.md"))
}

/// Whether a character can stand in the name of a file anywhere.
pub(super) fn is_plain(c: char) -> bool {
    !(c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|'))
}

fn check_size(name: &str, bytes: usize) -> Result<()> {
    if bytes <= MAX_ARTIFACT_BYTES {
        return Ok(());
    }
    let why = format!("it has {bytes} bytes, the limit MAX_ARTIFACT_BYTES is {MAX_ARTIFACT_BYTES}");
    Err(Error::refused(
        format!("the artifact {name:?}"),
        why,
        "split it, or keep it as a file of the working directory",
    ))
}

impl Projects {
    /// Stores an artifact. What was there stays as an older version; the same content again is no new version.
    pub async fn put_artifact(&self, owner: &Owner, name: &str, content: &[u8], new: NewArtifact) -> Result<Stored> {
        check_artifact_name(name)?;
        check_size(name, content.len())?;
        if let Some(clean) = self.redacted(name).await? {
            let why = "its name looks like a secret, and a name is kept as it is";
            return Err(Error::refused(format!("the artifact {clean:?}"), why, "give it another name"));
        }
        let clean = self.redacted_bytes(content).await?;
        let content = clean.as_deref().unwrap_or(content);
        check_size(name, content.len())?;
        let hash = blake3::hash(content).to_hex().to_string();
        let key = self.artifact_key(owner, name);
        if let Some(found) = self.get::<Artifact>(HEAD, &key).await? {
            let newest = found.versions.last().ok_or_else(|| damaged("an artifact"))?;
            if newest.hash == hash && found.kind == new.kind {
                return Ok(Stored { version: newest.clone(), dropped: Vec::new() });
            }
        }
        let parts = self.put_parts(&key, content).await?;
        let created = self.store.source().now();
        let bytes = content.len() as u64;
        let NewArtifact { kind, session, template } = new;
        let (version, gone) = self
            .change(HEAD, &key, |found: Option<Artifact>| {
                let mut artifact = found.unwrap_or_else(|| Artifact {
                    name: name.to_owned(),
                    kind,
                    versions: Vec::new(),
                    renamed: false,
                });
                let number = artifact.versions.last().map_or(1, |last| last.number + 1);
                let (hash, template, parts) = (hash.clone(), template.clone(), parts.clone());
                let version = Version { number, created, bytes, hash, session, template, parts, replaced: None };
                artifact.kind = kind;
                artifact.versions.push(version.clone());
                let over = artifact.versions.len().saturating_sub(MAX_ARTIFACT_VERSIONS);
                let gone: Vec<Version> = artifact.versions.drain(..over).collect();
                Ok((Some(artifact), (version, gone)))
            })
            .await?;
        for old in &gone {
            self.remove_parts(old).await?;
        }
        Ok(Stored { version, dropped: gone.iter().map(|old| old.number).collect() })
    }

    /// An artifact and the content of its newest version, or of the one with this number.
    pub async fn artifact(&self, owner: &Owner, name: &str, number: Option<u64>) -> Result<(Artifact, Vec<u8>)> {
        check_artifact_name(name)?;
        let not_found = |id: String| Error::Store(milepost_store::Error::NotFound { what: "artifact", id });
        let found: Option<Artifact> = self.get(HEAD, &self.artifact_key(owner, name)).await?;
        let found = found.ok_or_else(|| not_found(format!("{name:?} of {owner}")))?;
        let version = match number {
            None => found.versions.last(),
            Some(number) => found.versions.iter().find(|version| version.number == number),
        };
        let version = version.ok_or_else(|| {
            let kept: Vec<_> = found.versions.iter().map(|version| version.number.to_string()).collect();
            not_found(format!("{name:?} of {owner} in that version (kept: {})", kept.join(", ")))
        })?;
        let content = self.content(version).await?;
        Ok((found, content))
    }

    /// The artifacts of a project or a session, by name.
    pub async fn artifacts(&self, owner: &Owner) -> Result<Vec<Artifact>> {
        let found = self.scan::<Artifact>(HEAD, &format!("{}/", self.owner_key(owner))).await?;
        let mut found: Vec<Artifact> = found.into_iter().map(|(_, artifact)| artifact).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Makes an artifact of a template: an artifact of the same owner, or of the project that is named.
    pub async fn make_artifact(
        &self,
        owner: &Owner,
        name: &str,
        template: (&Owner, &str),
        values: &std::collections::BTreeMap<String, String>,
    ) -> Result<Stored> {
        let (found, content) = self.artifact(template.0, template.1, None).await?;
        if found.kind != ArtifactKind::Template {
            let why = "it is a document, not a template";
            return Err(Error::refused(
                format!("making {name:?} of {:?}", found.name),
                why,
                "store it as a template first",
            ));
        }
        let text = String::from_utf8(content).map_err(|_| {
            Error::refused(format!("the template {:?}", found.name), "it is not UTF-8", "store it as text")
        })?;
        let made = template::fill(&found.name, &text, values)?;
        let new = NewArtifact { template: Some(found.name), ..NewArtifact::default() };
        self.put_artifact(owner, name, made.as_bytes(), new).await
    }

    /// Removes an artifact with all its versions.
    pub async fn remove_artifact(&self, owner: &Owner, name: &str) -> Result<()> {
        let (found, _) = self.artifact(owner, name, None).await?;
        self.remove(HEAD, &self.artifact_key(owner, name)).await?;
        for version in &found.versions {
            self.remove_parts(version).await?;
        }
        Ok(())
    }

    /// Removes every artifact and the log of a project or a session, as when it is deleted. Also what a crash left of
    /// artifacts that were never whole.
    pub async fn forget(&self, owner: &Owner) -> Result<()> {
        let prefix = format!("{}/", self.owner_key(owner));
        for kind in [HEAD, PART] {
            loop {
                let page = self.store.records(kind, Some(&prefix), 256).await?;
                let own: Vec<_> = page.into_iter().take_while(|record| record.key.starts_with(&prefix)).collect();
                if own.is_empty() {
                    break;
                }
                for record in own {
                    self.remove(kind, &record.key).await?;
                }
            }
        }
        self.forget_log(owner).await
    }

    /// Stores a content in parts, under a name of its own: whoever then sees the version sees all of it.
    pub(super) async fn put_parts(&self, key: &str, content: &[u8]) -> Result<String> {
        let parts = format!("{key}/{}", self.fresh_id());
        for (number, part) in content.chunks(PART_BYTES).enumerate() {
            self.store.put_record(PART, &format!("{parts}/{number:04}"), None, None, part).await?;
        }
        Ok(parts)
    }

    /// Takes a version over from elsewhere, as it was there: its number, its time, who made it. One that is here already
    /// stays; refused when another has its number.
    pub(crate) async fn bring_artifact(&self, owner: &Owner, brought: BroughtArtifact) -> Result<()> {
        let BroughtArtifact { name, kind, number, created, session, template, content } = brought;
        check_artifact_name(&name)?;
        check_size(&name, content.len())?;
        let key = self.artifact_key(owner, &name);
        let hash = blake3::hash(&content).to_hex().to_string();
        let found = self.get::<Artifact>(HEAD, &key).await?;
        let there = found.iter().flat_map(|found| &found.versions).find(|version| version.number == number);
        if let Some(there) = there {
            if there.hash == hash {
                return Ok(());
            }
            let why = format!("version {number} of it is another one here");
            return Err(Error::refused(
                format!("bringing the artifact {name:?} of {owner}"),
                why,
                "remove it here first",
            ));
        }
        let parts = self.put_parts(&key, &content).await?;
        let version =
            Version { number, created, bytes: content.len() as u64, hash, session, template, parts, replaced: None };
        let gone = self
            .change(HEAD, &key, |found: Option<Artifact>| {
                let mut artifact = found.unwrap_or_else(|| Artifact {
                    name: name.clone(),
                    kind,
                    versions: Vec::new(),
                    renamed: false,
                });
                artifact.versions.push(version.clone());
                artifact.versions.sort_by_key(|version| version.number);
                let over = artifact.versions.len().saturating_sub(MAX_ARTIFACT_VERSIONS);
                let gone: Vec<Version> = artifact.versions.drain(..over).collect();
                Ok((Some(artifact), gone))
            })
            .await?;
        for old in &gone {
            self.remove_parts(old).await?;
        }
        Ok(())
    }

    pub(super) async fn content(&self, version: &Version) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let count = (version.bytes as usize).min(MAX_ARTIFACT_BYTES).div_ceil(PART_BYTES);
        for number in 0..count {
            let part = self.store.record(PART, &format!("{}/{number:04}", version.parts)).await?;
            content.extend(part.ok_or_else(|| damaged("an artifact"))?.value);
        }
        match blake3::hash(&content).to_hex().as_str() == version.hash {
            true => Ok(content),
            false => Err(damaged("an artifact")),
        }
    }

    pub(super) async fn remove_parts(&self, version: &Version) -> Result<()> {
        let count = (version.bytes as usize).min(MAX_ARTIFACT_BYTES).div_ceil(PART_BYTES);
        for number in 0..count {
            self.remove(PART, &format!("{}/{number:04}", version.parts)).await?;
        }
        Ok(())
    }

    pub(super) fn owner_key(&self, owner: &Owner) -> String {
        match owner {
            Owner::Project(id) => self.token("owner-project", id.as_str().as_bytes()),
            Owner::Session(id) => self.token("owner-session", &id.to_bytes()),
        }
    }

    fn artifact_key(&self, owner: &Owner, name: &str) -> String {
        format!("{}/{}", self.owner_key(owner), self.token("artifact", name.as_bytes()))
    }
}
