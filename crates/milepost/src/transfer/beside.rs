//! What belongs to a session and lies beside its log: its artifacts with all their versions, and the agent log.

use std::collections::VecDeque;

use milepost_model::SessionId;
use milepost_store::Store;

use crate::error::{Error, Result};
use crate::project::{Artifact, BroughtArtifact, LogLine, Owner, Projects, Version};

/// Lines of a log that travel together.
const LINES: usize = 256;

/// A piece of what lies beside a session.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Beside {
    /// A version of an artifact.
    Artifact(BroughtArtifact),
    /// Lines of the log, and the number of the first.
    Log(u64, Vec<LogLine>),
}

impl Beside {
    /// What it is, for a person.
    pub fn what(&self) -> String {
        match self {
            Beside::Artifact(artifact) => format!("version {} of artifact {:?}", artifact.number, artifact.name),
            Beside::Log(from, _) => format!("line {from} of the log"),
        }
    }
}

/// Reads what lies beside a session, piece by piece.
pub(super) struct BesideReader {
    /// None where nothing was ever kept.
    projects: Option<Projects>,
    owner: Owner,
    versions: VecDeque<(Artifact, u64)>,
    next_line: u64,
}

impl BesideReader {
    pub async fn new(store: &Store, session: SessionId) -> Result<Self> {
        let (projects, owner) = (Projects::open_if_any(store).await?, Owner::Session(session));
        let mut versions = VecDeque::new();
        if let Some(projects) = &projects {
            for artifact in projects.artifacts(&owner).await? {
                versions.extend(artifact.versions.iter().map(|version| (artifact.clone(), version.number)));
            }
        }
        Ok(Self { projects, owner, versions, next_line: 0 })
    }

    /// Whether there is nothing.
    pub async fn is_empty(&self) -> Result<bool> {
        match &self.projects {
            Some(projects) => Ok(self.versions.is_empty() && projects.log_length(&self.owner).await? == 0),
            None => Ok(true),
        }
    }

    pub async fn next(&mut self) -> Result<Option<Beside>> {
        let Some(projects) = &self.projects else { return Ok(None) };
        if let Some((artifact, number)) = self.versions.pop_front() {
            let Artifact { name, kind, versions, .. } = artifact;
            let (_, content) = projects.artifact(&self.owner, &name, Some(number)).await?;
            let version = versions.into_iter().find(|version| version.number == number);
            return Ok(version.map(|version| {
                let (created, session, template) = (version.created, version.session, version.template);
                Beside::Artifact(BroughtArtifact { name, kind, number, created, session, template, content })
            }));
        }
        let lines = projects.log_lines(&self.owner, self.next_line, LINES).await?;
        let from = self.next_line;
        self.next_line += lines.len() as u64;
        Ok((!lines.is_empty()).then_some(Beside::Log(from, lines)))
    }
}

/// Puts what lay beside a session beside another, or beside itself in another store.
pub(super) struct BesideWriter {
    projects: Projects,
    original: SessionId,
    session: SessionId,
}

impl BesideWriter {
    pub async fn new(store: &Store, original: SessionId, session: SessionId) -> Result<Self> {
        Ok(Self { projects: Projects::open(store).await?, original, session })
    }

    pub async fn take(&self, piece: Beside) -> Result<()> {
        let owner = Owner::Session(self.session);
        match piece {
            Beside::Artifact(mut artifact) => {
                if artifact.session == Some(self.original) {
                    artifact.session = Some(self.session);
                }
                self.projects.bring_artifact(&owner, artifact).await
            }
            Beside::Log(from, lines) => self.projects.bring_log(&owner, from, &lines).await,
        }
    }

    /// Leaves nothing behind.
    pub async fn discard(self) -> Result<()> {
        self.projects.forget(&Owner::Session(self.session)).await
    }
}

/// What lies beside the copy of a session in another store, and not beside the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OnlyThere {
    Nothing,
    /// In words.
    Something(String),
    /// What is left of something that was redacted there: here it is whole.
    Redacted,
}

/// Looks for what lies beside a copy only. What differs is the same where it was redacted here, and not there.
pub(super) async fn only_there(from: &Store, to: &Store, session: SessionId) -> Result<OnlyThere> {
    let (own, copy) = (Lying::of(from, session).await?, Lying::of(to, session).await?);
    for artifact in &copy.artifacts {
        let renamed = || own.renamed(artifact, &copy);
        let held = own.named(&artifact.name).or_else(renamed);
        if held.is_some_and(|held| held.name != artifact.name && artifact.renamed) {
            return Ok(OnlyThere::Redacted);
        }
        let held = held.filter(|held| held.name == artifact.name || held.renamed);
        let versions = held.map(|held| held.versions.as_slice()).unwrap_or_default();
        for version in &artifact.versions {
            // The oldest go when there are too many.
            if versions.first().is_some_and(|first| version.number < first.number) {
                continue;
            }
            match versions.iter().find(|own| is_of_one(own, version)) {
                Some(own) if own.hash == version.hash || own.is_redacted() && !version.is_redacted() => {}
                Some(_) if version.is_redacted() => return Ok(OnlyThere::Redacted),
                _ => return Ok(OnlyThere::Something(version_name(version.number, &artifact.name))),
            }
        }
    }
    let is_cleaned = |one: &LogLine, other: &LogLine| one.at == other.at && one.redacted && !other.redacted;
    let differs = |copy: &LogLine, own: &LogLine| own.text != copy.text || own.at != copy.at;
    if copy.first_line(&own, |copy, own| differs(copy, own) && is_cleaned(copy, own)).await?.is_some() {
        return Ok(OnlyThere::Redacted);
    }
    let line = match copy.first_line(&own, |copy, own| differs(copy, own) && !is_cleaned(own, copy)).await? {
        None if copy.lines > own.lines => Some(own.lines),
        found => found,
    };
    Ok(line.map_or(OnlyThere::Nothing, |line| OnlyThere::Something(line_name(line))))
}

/// Refuses to bring what lies beside a session to a copy where something else has its place, before anything is changed. Which
/// of the two was redacted is told nowhere.
pub(super) async fn check_carried(from: &Store, to: &Store, session: SessionId) -> Result<()> {
    let (own, copy) = (Lying::of(from, session).await?, Lying::of(to, session).await?);
    let refuse = |what: String, why: &str| {
        let instead = "if one of the two was redacted, redact the same in the other store; else remove one of them, or delete the copy; then copy again";
        Err(Error::refused(format!("copying {what} of session {session}"), why, instead))
    };
    for artifact in &own.artifacts {
        let Some(there) = copy.named(&artifact.name) else { continue };
        let is_other = |version: &&Version| {
            there.versions.iter().any(|there| there.number == version.number && there.hash != version.hash)
        };
        if let Some(version) = artifact.versions.iter().find(is_other) {
            let what = version_name(version.number, &artifact.name);
            return refuse(what, "it is another one in the copy");
        }
    }
    for artifact in &copy.artifacts {
        if let Some(renamed) = own.renamed(artifact, &copy).filter(|_| own.named(&artifact.name).is_none()) {
            let why = format!("it has the name {:?} in the copy", artifact.name);
            return refuse(format!("artifact {:?}", renamed.name), &why);
        }
    }
    match own.first_line(&copy, |own, copy| (own.at, &own.text) != (copy.at, &copy.text)).await? {
        Some(line) => refuse(line_name(line), "it is another one in the copy"),
        None => Ok(()),
    }
}

fn version_name(number: u64, artifact: &str) -> String {
    format!("version {number} of artifact {artifact:?}")
}

fn line_name(index: u64) -> String {
    format!("line {} of its log", index + 1)
}

/// Whether two are the same version, whatever is in them now.
fn is_of_one(one: &Version, other: &Version) -> bool {
    (one.number, one.created) == (other.number, other.created)
}

/// What lies beside a session in a store.
struct Lying {
    /// None where nothing was ever kept.
    projects: Option<Projects>,
    owner: Owner,
    artifacts: Vec<Artifact>,
    /// Lines of the log.
    lines: u64,
}

impl Lying {
    async fn of(store: &Store, session: SessionId) -> Result<Self> {
        let (projects, owner) = (Projects::open_if_any(store).await?, Owner::Session(session));
        let (artifacts, lines) = match &projects {
            Some(projects) => (projects.artifacts(&owner).await?, projects.log_length(&owner).await?),
            None => (Vec::new(), 0),
        };
        Ok(Self { projects, owner, artifacts, lines })
    }

    fn named(&self, name: &str) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.name == name)
    }

    /// An artifact of a copy as it is called here: one that the copy does not have by that name, and with the same versions.
    fn renamed(&self, artifact: &Artifact, copy: &Lying) -> Option<&Artifact> {
        let is_same = |own: &&Artifact| {
            let is_held = |version: &Version| artifact.versions.iter().any(|there| is_of_one(version, there));
            copy.named(&own.name).is_none() && own.versions.iter().any(is_held)
        };
        self.artifacts.iter().find(is_same)
    }

    async fn lines(&self, from: u64) -> Result<Vec<LogLine>> {
        match &self.projects {
            Some(projects) => projects.log_lines(&self.owner, from, LINES).await,
            None => Ok(Vec::new()),
        }
    }

    /// The first line that both have and that differs, by its index.
    async fn first_line(&self, other: &Lying, differs: impl Fn(&LogLine, &LogLine) -> bool) -> Result<Option<u64>> {
        let mut next = 0;
        while next < self.lines.min(other.lines) {
            let (one, two) = (self.lines(next).await?, other.lines(next).await?);
            let both = one.len().min(two.len());
            if let Some(at) = one.iter().zip(&two).position(|(one, two)| differs(one, two)) {
                return Ok(Some(next + at as u64));
            }
            if both == 0 {
                break;
            }
            next += both as u64;
        }
        Ok(None)
    }
}

/// Brings everything that lies beside a session into another store. What is there already stays.
pub(super) async fn carry(from: &Store, to: &Store, original: SessionId, session: SessionId) -> Result<()> {
    let mut reader = BesideReader::new(from, original).await?;
    if reader.is_empty().await? {
        return Ok(());
    }
    let writer = BesideWriter::new(to, original, session).await?;
    while let Some(piece) = reader.next().await? {
        writer.take(piece).await?;
    }
    Ok(())
}
