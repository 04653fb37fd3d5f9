//! Which project a directory belongs to.
//!
//! A repository is known by its root commits, so that a clone, a worktree, a rename or a move loses nothing. A plain directory is known
//! by its path, and by what the file system calls it: its device and number with the moment when it was made, which no other directory
//! has after it. So one that was renamed or moved within a file system is the same, and a copy of it is another; one that was
//! copied to another file system is linked anew. Nothing is ever written into the directory. Names and paths are kept
//! without the secrets in them: a directory is recognised by the hash of its path.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use milepost_model::{Id, Session, SessionId, Timestamp};
use milepost_store::SessionQuery;
use serde::{Deserialize, Serialize};

use super::git::{self, Repository};
use super::keep::{Projects, apart, short};
use crate::{Error, Result};

const PROJECT: &str = "project";
/// Ids that are made here begin so.
const MADE: &str = "prj_";
const PATH: &str = "project-path";
const ROOT: &str = "project-root";
const DIRECTORY: &str = "project-directory";
/// So many directories of a project are remembered; the one longest unused is forgotten first.
pub const MAX_PATHS: usize = 64;
/// The longest name of a project, in characters.
const MAX_NAME_CHARS: usize = 120;

/// Names a project. Sessions carry it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectId(String);

impl ProjectId {
    /// The longest id, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Checks and takes an id.
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        let is_ok = !id.is_empty()
            && id.len() <= Self::MAX_BYTES
            && id.trim().len() == id.len()
            && !id.chars().any(char::is_control);
        if !is_ok {
            let shown: String = id.chars().take(40).collect();
            let why = format!("an id has 1 to {} bytes, no control characters and no space around it", Self::MAX_BYTES);
            return Err(Error::refused(format!("the project {shown:?}"), why, "use another id"));
        }
        Ok(Self(id))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an id has the form of those that are made here, and are no person's words.
    pub(crate) fn is_made(id: &str) -> bool {
        id.strip_prefix(MADE).is_some_and(|rest| format!("{}{rest}", SessionId::PREFIX).parse::<SessionId>().is_ok())
    }
}

impl TryFrom<String> for ProjectId {
    type Error = Error;
    fn try_from(id: String) -> Result<Self> {
        Self::new(id)
    }
}

impl From<ProjectId> for String {
    fn from(id: ProjectId) -> String {
        id.0
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What sessions are about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    /// Its id.
    pub id: ProjectId,
    /// What it is called.
    pub name: String,
    /// The root commits of its repository; empty for a plain directory.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub root_commits: BTreeSet<String>,
    /// Directories that it was seen in, the last one last.
    #[serde(default)]
    pub paths: Vec<String>,
    /// When it was first seen.
    pub created: Timestamp,
}

impl Project {
    /// The smallest root commit.
    pub fn root_commit(&self) -> Option<&str> {
        self.root_commits.first().map(String::as_str)
    }
}

/// How a directory's project was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownBy {
    /// By a root commit of its repository.
    RootCommit,
    /// By its path.
    Path,
    /// It is the directory that the project had, renamed or moved.
    Directory,
    /// It was not: the project is new.
    New,
}

/// The project of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identified {
    /// The project.
    pub project: Project,
    /// How it was known.
    pub by: KnownBy,
    /// What kept the root commit from being read, when something did.
    pub note: Option<String>,
}

/// A directory as it was found.
struct Place {
    /// The top of the repository, or the directory itself, without links.
    path: PathBuf,
    repository: Repository,
    /// What the file system calls a plain directory.
    directory: Option<String>,
}

impl Place {
    fn read(dir: &Path) -> Result<Self> {
        let fail = |error| Error::file(format!("looking for the project of {}", dir.display()), error);
        let dir = dir.canonicalize().map_err(fail)?;
        if !dir.is_dir() {
            return Err(fail(std::io::Error::other("it is not a directory")));
        }
        let repository = Repository::of(&dir);
        let path = match &repository {
            Repository::Found { top, .. } => top.canonicalize().unwrap_or_else(|_| top.clone()),
            _ => dir,
        };
        let directory = match &repository {
            Repository::None => name_of(&path),
            _ => None,
        };
        Ok(Self { path, repository, directory })
    }
}

/// What tells a directory from every other of this machine, also after a move; none where the file system does not know when it
/// was made: the number of a directory that is gone is given to the next.
#[cfg(unix)]
fn name_of(dir: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(dir).ok()?;
    let made = found.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos();
    (made > 0).then(|| format!("{}:{}:{made}", found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn name_of(_: &Path) -> Option<String> {
    None
}

/// What is known of a directory.
#[derive(Default)]
struct Looked {
    found: Option<Identified>,
    /// The root commits of its repository.
    roots: BTreeSet<String>,
    /// The project that was there before, when another is there now.
    stale: Option<ProjectId>,
    note: Option<String>,
}

impl Looked {
    fn found(found: Identified) -> Self {
        Self { found: Some(found), ..Self::default() }
    }
}

impl Projects {
    /// The project of a directory; a new one when it is not known. A directory inside of a repository belongs to the
    /// repository's project.
    pub async fn identify(&self, dir: &Path) -> Result<Identified> {
        let (place, looked) = self.look(dir).await?;
        let Looked { found, roots, stale, note } = looked;
        if let Some(found) = found {
            return Ok(found);
        }
        let path_key = self.path_key(&place.path);
        if let Some(id) = stale {
            self.remove(PATH, &path_key).await?;
            self.forget_path(&id, &place.path).await?;
        }
        let project = self.begin(&path_key, &place.path, &roots).await?;
        self.note_directory(&place, &project.id).await?;
        Ok(Identified { project, by: KnownBy::New, note })
    }

    /// The project of a directory, if it is known: none is begun.
    pub async fn known(&self, dir: &Path) -> Result<Option<Identified>> {
        Ok(self.look(dir).await?.1.found)
    }

    async fn look(&self, dir: &Path) -> Result<(Place, Looked)> {
        let dir = dir.to_owned();
        let place = apart("looking for a project", move || Place::read(&dir)).await??;
        let looked = self.look_in(&place).await?;
        Ok((place, looked))
    }

    async fn look_in(&self, place: &Place) -> Result<Looked> {
        let path_key = self.path_key(&place.path);
        let by_path = self.get::<ProjectId>(PATH, &path_key).await?;
        let (is_repository, is_shallow, note) = match &place.repository {
            Repository::Found { shallow: true, .. } => {
                (true, true, Some("the clone is shallow: without its root commit it is known by its path".to_owned()))
            }
            Repository::Found { .. } => (true, false, None),
            Repository::Unreadable(why) => (false, false, Some(format!("the repository cannot be read: {why}"))),
            Repository::None => (false, false, None),
        };
        if let Some(id) = &by_path {
            let project = self.ensure(id, &place.path, &BTreeSet::new()).await?;
            let trusts_path = !is_repository || is_shallow || self.is_same(&project, &place.path).await?;
            if trusts_path {
                self.note_directory(place, id).await?;
                let by = if is_repository && !is_shallow { KnownBy::RootCommit } else { KnownBy::Path };
                return Ok(Looked::found(Identified { project, by, note }));
            }
        }
        if let Some(project) = self.moved_here(place, &path_key).await? {
            return Ok(Looked::found(Identified { project, by: KnownBy::Directory, note }));
        }
        let roots = match is_repository && !is_shallow {
            true => self.roots(&place.path).await?,
            false => BTreeSet::new(),
        };
        for root in &roots {
            if let Some(id) = self.get::<ProjectId>(ROOT, &self.root_key(root)).await? {
                self.claim_path(&path_key, &id, by_path.as_ref(), &place.path).await?;
                let project = self.ensure(&id, &place.path, &roots).await?;
                return Ok(Looked::found(Identified { project, by: KnownBy::RootCommit, note }));
            }
        }
        // A plain directory in which a repository was begun, or one whose history has no commit yet.
        if let Some(id) = &by_path {
            let project = self.project(id).await?;
            if project.root_commits.is_empty() {
                let project = self.adopt(id, &place.path, &roots).await?;
                return Ok(Looked::found(Identified { project, by: KnownBy::Path, note }));
            }
        }
        Ok(Looked { found: None, roots, stale: by_path, note })
    }

    /// The project of a plain directory that has another path now.
    async fn moved_here(&self, place: &Place, path_key: &str) -> Result<Option<Project>> {
        let Some(name) = &place.directory else { return Ok(None) };
        let Some(id) = self.get::<ProjectId>(DIRECTORY, &self.directory_key(name)).await? else { return Ok(None) };
        let Some(before) = self.get::<Project>(PROJECT, &self.project_key(&id)).await? else { return Ok(None) };
        // A repository that has lost its history is no longer what it was known by.
        if !before.root_commits.is_empty() {
            return Ok(None);
        }
        // What is made where it was is another.
        for path in before.paths.iter().map(Path::new).filter(|path| !path.exists()) {
            let key = self.path_key(path);
            if self.get::<ProjectId>(PATH, &key).await?.as_ref() == Some(&id) {
                self.remove(PATH, &key).await?;
            }
        }
        self.point(PATH, path_key, &id).await?;
        Ok(Some(self.ensure(&id, &place.path, &BTreeSet::new()).await?))
    }

    /// Remembers what the file system calls a project's directory.
    async fn note_directory(&self, place: &Place, id: &ProjectId) -> Result<()> {
        if let Some(name) = &place.directory {
            self.point(DIRECTORY, &self.directory_key(name), id).await?;
        }
        Ok(())
    }

    /// Says that a directory belongs to a project, whatever it belonged to before. For directories that were renamed,
    /// and for repositories that were begun anew.
    pub async fn link(&self, id: &ProjectId, dir: &Path) -> Result<Project> {
        self.project(id).await?;
        let dir = dir.to_owned();
        let place = apart("linking a project", move || Place::read(&dir)).await??;
        let roots = match &place.repository {
            Repository::Found { shallow: false, .. } => self.roots(&place.path).await?,
            _ => BTreeSet::new(),
        };
        for root in &roots {
            let before = self.point(ROOT, &self.root_key(root), id).await?;
            if let Some(before) = before.filter(|before| before != id) {
                self.edit(&before, |project| project.root_commits.retain(|known| known != root)).await?;
            }
        }
        let before = self.point(PATH, &self.path_key(&place.path), id).await?;
        if let Some(before) = before.filter(|before| before != id) {
            self.forget_path(&before, &place.path).await?;
        }
        self.note_directory(&place, id).await?;
        self.ensure(id, &place.path, &roots).await
    }

    /// A project by its id.
    pub async fn project(&self, id: &ProjectId) -> Result<Project> {
        let found = self.get(PROJECT, &self.project_key(id)).await?;
        found.ok_or_else(|| milepost_store::Error::NotFound { what: "project", id: id.to_string() }.into())
    }

    /// A project with an id of the caller's own; made when it is not there.
    pub async fn open_project(&self, id: &ProjectId, name: &str) -> Result<Project> {
        let fresh = self.fresh(id.clone(), &self.clean(name).await?);
        self.change(PROJECT, &self.project_key(id), move |found: Option<Project>| match found {
            Some(found) => Ok((None, found)),
            None => Ok((Some(fresh.clone()), fresh.clone())),
        })
        .await
    }

    /// Gives a project another name.
    pub async fn rename(&self, id: &ProjectId, name: &str) -> Result<Project> {
        let name = clean_name(&self.clean(name).await?);
        if name.is_empty() {
            return Err(Error::refused(format!("renaming project {id}"), "the name is empty", "give it a name"));
        }
        self.project(id).await?;
        self.edit(id, |project| project.name.clone_from(&name)).await?;
        self.project(id).await
    }

    /// Every project, by name.
    pub async fn all(&self) -> Result<Vec<Project>> {
        let mut found: Vec<Project> = self.scan(PROJECT, "").await?.into_iter().map(|(_, project)| project).collect();
        found.sort_by(|a: &Project, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok(found)
    }

    /// The sessions of a project, last written first.
    pub async fn sessions(&self, id: &ProjectId, query: &SessionQuery) -> Result<milepost_store::SessionPage> {
        let query = SessionQuery { project: Some(id.as_str().to_owned()), ..query.clone() };
        Ok(self.store.sessions(&query).await?)
    }

    /// The index of a project's sessions: all of them, a row each, as the file `session-index.json` holds it. A project that
    /// only its sessions name is called by its id.
    pub async fn index(&self, id: &ProjectId) -> Result<SessionIndex> {
        let project = self.project(id).await;
        let mut sessions = Vec::new();
        let mut query = SessionQuery::default();
        loop {
            let page = self.sessions(id, &query).await?;
            sessions.extend(page.sessions.iter().map(IndexRow::of));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        let project_name = match project {
            Err(Error::Store(milepost_store::Error::NotFound { .. })) if !sessions.is_empty() => id.to_string(),
            project => project?.name,
        };
        Ok(SessionIndex { project_id: id.clone(), project_name, sessions })
    }

    async fn is_same(&self, project: &Project, path: &Path) -> Result<bool> {
        if project.root_commits.is_empty() {
            return Ok(false);
        }
        let (path, roots) = (path.to_owned(), project.root_commits.iter().cloned().collect::<Vec<_>>());
        apart("asking git", move || git::has_any(&path, &roots)).await
    }

    async fn roots(&self, top: &Path) -> Result<BTreeSet<String>> {
        let top = top.to_owned();
        Ok(apart("asking git", move || git::roots(&top)).await?.into_iter().collect())
    }

    /// A project that was not known. The path or the root commit is claimed first, so that of two that begin at once one wins.
    async fn begin(&self, path_key: &str, path: &Path, roots: &BTreeSet<String>) -> Result<Project> {
        let id = match roots.first() {
            // The same repository has the same project in every store.
            Some(root) => ProjectId(format!("{MADE}{}", short(session_like(root)))),
            None => ProjectId(format!("{MADE}{}", self.fresh_id())),
        };
        let claim = |found: Option<ProjectId>| match found {
            Some(found) => Ok((None, found)),
            None => Ok((Some(id.clone()), id.clone())),
        };
        let id = match roots.first() {
            Some(root) => self.change(ROOT, &self.root_key(root), claim).await?,
            None => self.change(PATH, path_key, claim).await?,
        };
        self.point(PATH, path_key, &id).await?;
        self.adopt(&id, path, roots).await
    }

    /// Makes a repository's root commits known as this project's.
    async fn adopt(&self, id: &ProjectId, path: &Path, roots: &BTreeSet<String>) -> Result<Project> {
        for root in roots {
            let key = self.root_key(root);
            self.change(ROOT, &key, |found: Option<ProjectId>| match found {
                Some(_) => Ok((None, ())),
                None => Ok((Some(id.clone()), ())),
            })
            .await?;
        }
        self.ensure(id, path, roots).await
    }

    /// The project as it is, with this path as its newest and with these roots; made when a crash kept it from being made.
    async fn ensure(&self, id: &ProjectId, path: &Path, roots: &BTreeSet<String>) -> Result<Project> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let fresh = self.fresh(id.clone(), &self.clean(&name).await?);
        let full = path.to_string_lossy().into_owned();
        let path = self.clean(&full).await?;
        self.change(PROJECT, &self.project_key(id), move |found: Option<Project>| {
            let before = found.clone();
            let mut project = found.unwrap_or_else(|| fresh.clone());
            if path != full {
                // A program of before may have kept them as they are.
                project.paths.retain(|known| *known != full);
                if project.name == clean_name(&name) {
                    project.name.clone_from(&fresh.name);
                }
            }
            if project.paths.last() != Some(&path) {
                project.paths.retain(|known| *known != path);
                project.paths.push(path.clone());
                let over = project.paths.len().saturating_sub(MAX_PATHS);
                project.paths.drain(..over);
            }
            project.root_commits.extend(roots.iter().cloned());
            let is_changed = before.as_ref() != Some(&project);
            Ok((is_changed.then(|| project.clone()), project))
        })
        .await
    }

    async fn claim_path(&self, key: &str, id: &ProjectId, before: Option<&ProjectId>, path: &Path) -> Result<()> {
        if before == Some(id) {
            return Ok(());
        }
        if let Some(before) = self.point(PATH, key, id).await?.filter(|before| before != id) {
            self.forget_path(&before, path).await?;
        }
        Ok(())
    }

    /// Lets a record point at a project. Returns what it pointed at.
    async fn point(&self, kind: &str, key: &str, id: &ProjectId) -> Result<Option<ProjectId>> {
        self.change(kind, key, |found: Option<ProjectId>| match found {
            Some(found) if found == *id => Ok((None, Some(found))),
            found => Ok((Some(id.clone()), found)),
        })
        .await
    }

    async fn forget_path(&self, id: &ProjectId, path: &Path) -> Result<()> {
        let full = path.to_string_lossy().into_owned();
        let path = self.clean(&full).await?;
        self.edit(id, |project| project.paths.retain(|known| *known != path && *known != full)).await
    }

    /// Changes a project that is there.
    async fn edit(&self, id: &ProjectId, mut change: impl FnMut(&mut Project)) -> Result<()> {
        self.change(PROJECT, &self.project_key(id), |found: Option<Project>| {
            let Some(mut project) = found else { return Ok((None, ())) };
            change(&mut project);
            Ok((Some(project), ()))
        })
        .await
    }

    fn fresh(&self, id: ProjectId, name: &str) -> Project {
        let name = match clean_name(name) {
            name if name.is_empty() => id.to_string(),
            name => name,
        };
        Project { id, name, root_commits: BTreeSet::new(), paths: Vec::new(), created: self.store.source().now() }
    }

    pub(super) fn project_key(&self, id: &ProjectId) -> String {
        self.token("project", id.as_str().as_bytes())
    }

    fn path_key(&self, path: &Path) -> String {
        self.token("path", path.as_os_str().as_encoded_bytes())
    }

    fn directory_key(&self, name: &str) -> String {
        self.token("directory", name.as_bytes())
    }

    fn root_key(&self, root: &str) -> String {
        self.token("root", root.as_bytes())
    }
}

/// An id's bits, made of a root commit.
fn session_like(root: &str) -> SessionId {
    let hash = blake3::derive_key("milepost 2026 project of a root commit", root.as_bytes());
    let mut bits = [0; 16];
    bits.copy_from_slice(&hash[..16]);
    SessionId::from_bytes(bits)
}

/// A name without what could disturb a terminal or a page, and not too long.
fn clean_name(name: &str) -> String {
    let plain: String = name.chars().filter(|c| !c.is_control()).take(MAX_NAME_CHARS).collect();
    plain.trim().to_owned()
}

/// The index of a project's sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionIndex {
    /// The project.
    pub project_id: ProjectId,
    /// What it is called.
    pub project_name: String,
    /// Its sessions, last written first.
    pub sessions: Vec<IndexRow>,
}

/// A session in an index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexRow {
    /// The session.
    pub session_id: SessionId,
    /// How it is doing.
    pub status: milepost_model::Status,
    /// What it is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The kind of agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_type: Option<String>,
    /// The feature it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_id: Option<String>,
    /// The task it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The state of that task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// How many messages it has.
    pub message_count: u64,
    /// When it began (RFC 3339).
    pub created_at: String,
    /// When it was last written (RFC 3339).
    pub last_active_at: String,
}

impl IndexRow {
    fn of(session: &Session) -> Self {
        Self {
            session_id: session.id,
            status: session.status,
            title: session.title.clone(),
            agent_type: session.agent.clone(),
            feature_id: session.feature.clone(),
            task_id: session.task.clone(),
            state: session.stage.clone(),
            message_count: session.messages(),
            created_at: session.created.to_string(),
            last_active_at: session.active.to_string(),
        }
    }
}
