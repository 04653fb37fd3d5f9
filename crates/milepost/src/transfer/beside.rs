//! What belongs to a session and lies beside its log: its artifacts with all their versions, and the agent log.

use std::collections::VecDeque;

use milepost_model::SessionId;
use milepost_store::Store;

use crate::error::Result;
use crate::project::{Artifact, BroughtArtifact, LogLine, Owner, Projects};

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
            let Artifact { name, kind, versions } = artifact;
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
