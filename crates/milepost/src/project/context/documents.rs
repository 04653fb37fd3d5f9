//! Documents of a directory: found by name, read up to a limit, remembered by size, time and hash.

use std::fs::Metadata;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::ContextLimits;

/// So many entries of a directory are looked at for names.
const MAX_NAMES: usize = 10_000;

/// A document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Where it is, relative to the directory.
    pub path: String,
    /// What it says. When it was cut, the last line says so.
    pub text: String,
    /// How many bytes the whole has.
    pub bytes: u64,
    /// Whether it was cut.
    pub truncated: bool,
}

/// A file as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStamp {
    /// Where it is, relative to the directory.
    pub path: String,
    /// How many bytes it has.
    pub len: u64,
    /// When it was last changed, in milliseconds since 1970.
    pub mtime: i64,
    /// The BLAKE3 hash of what was read of it, in hex; empty when it may not be read.
    pub hash: String,
}

/// What a document is for, and the names it may have; the first one that is there is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    names: &'static [&'static str],
    /// The beginning of names in `docs/`, in lower case.
    docs: Option<&'static str>,
}

pub(super) const ROLES: [Role; 5] = [
    Role { names: &["CLAUDE.md", ".claude/CLAUDE.md"], docs: None },
    Role { names: &["PROJECT.md"], docs: None },
    Role { names: &["README.md", "README"], docs: None },
    Role { names: &["spec.md", "SPEC.md"], docs: Some("spec") },
    Role { names: &["tasks.md", "TASKS.md", "TODO.md"], docs: Some("tasks") },
];

/// The directories that may hold `*/task.json`.
pub(super) const NODES: [&str; 2] = ["nodes", ".dagent/nodes"];

impl Role {
    /// The file for it, relative to the directory.
    pub fn find(self, dir: &Path) -> Option<PathBuf> {
        let mut names = self.names.iter().map(PathBuf::from);
        names.find(|name| inside(dir, name).is_some()).or_else(|| {
            let begin = self.docs?;
            let mut found: Vec<_> = children(dir, Path::new("docs"))
                .into_iter()
                .filter(|name| name.to_string_lossy().to_lowercase().starts_with(begin))
                .map(|name| Path::new("docs").join(name))
                .filter(|path| path.extension().is_some_and(|end| end == "md" || end == "txt"))
                .filter(|path| inside(dir, path).is_some())
                .collect();
            found.sort();
            found.into_iter().next()
        })
    }
}

/// Every file that would be read now, relative to the directory.
pub(super) fn candidates(dir: &Path, limits: &ContextLimits) -> Vec<PathBuf> {
    let documents = ROLES.iter().filter_map(|role| role.find(dir));
    documents.chain(task_files(dir, limits)).collect()
}

/// The tasks' files, by name.
pub(super) fn task_files(dir: &Path, limits: &ContextLimits) -> Vec<PathBuf> {
    let mut found: Vec<_> = NODES
        .iter()
        .flat_map(|nodes| children(dir, Path::new(nodes)).into_iter().map(move |task| Path::new(nodes).join(task)))
        .map(|task| task.join("task.json"))
        .filter(|path| inside(dir, path).is_some())
        .collect();
    found.sort();
    found.truncate(limits.max_tasks);
    found
}

fn children(dir: &Path, below: &Path) -> Vec<std::ffi::OsString> {
    // A directory that is a link may lead anywhere.
    let is_own = dir.join(below).canonicalize().is_ok_and(|path| path.starts_with(dir));
    let entries = is_own.then(|| std::fs::read_dir(dir.join(below)).ok()).flatten();
    entries.into_iter().flatten().take(MAX_NAMES).flatten().map(|entry| entry.file_name()).collect()
}

/// The file at a path, when it is a file and lies in the directory, links followed.
pub(super) fn inside(dir: &Path, path: &Path) -> Option<(PathBuf, Metadata)> {
    let whole = dir.join(path).canonicalize().ok().filter(|whole| whole.starts_with(dir))?;
    let metadata = std::fs::symlink_metadata(&whole).ok().filter(Metadata::is_file)?;
    Some((whole, metadata))
}

pub(super) fn mtime(metadata: &Metadata) -> i64 {
    let Ok(time) = metadata.modified() else { return 0 };
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    }
}

/// The bytes of a file up to the limit, and how it is now.
pub(super) fn read(dir: &Path, path: &Path, limit: usize) -> Option<(Vec<u8>, SourceStamp)> {
    let (whole, metadata) = inside(dir, path)?;
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(whole);
    let read = opened.and_then(|file| file.take(limit as u64).read_to_end(&mut bytes));
    let hash = read.map_or(String::new(), |_| blake3::hash(&bytes).to_hex().to_string());
    let stamp = SourceStamp { path: shown(path), len: metadata.len(), mtime: mtime(&metadata), hash };
    Some((bytes, stamp))
}

pub(super) fn shown(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "/")
}

/// Reads the documents of a directory, and remembers what it read and what it left out.
pub(super) struct Reading<'a> {
    pub dir: &'a Path,
    pub limits: &'a ContextLimits,
    pub sources: Vec<SourceStamp>,
    pub notes: Vec<String>,
}

impl<'a> Reading<'a> {
    pub fn new(dir: &'a Path, limits: &'a ContextLimits) -> Self {
        Self { dir, limits, sources: Vec::new(), notes: Vec::new() }
    }

    pub fn document(&mut self, role: Role) -> Option<Document> {
        let path = role.find(self.dir)?;
        self.text(&path)
    }

    /// A file's text; none when it is not text.
    pub fn text(&mut self, path: &Path) -> Option<Document> {
        let limit = self.limits.max_document_bytes;
        let (mut bytes, stamp) = read(self.dir, path, limit)?;
        let (name, len, is_read) = (stamp.path.clone(), stamp.len, !stamp.hash.is_empty());
        self.sources.push(stamp);
        if !is_read {
            self.notes.push(format!("{name} may not be read and was left out"));
            return None;
        }
        let truncated = len > bytes.len() as u64;
        if truncated {
            // A cut may go through a character.
            let whole = bytes.utf8_chunks().map(|chunk| chunk.valid().len()).next().unwrap_or(0);
            if bytes.len() - whole < 4 {
                bytes.truncate(whole);
            }
        }
        let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        let Some(mut text) = text else {
            self.notes.push(format!("{name} is not text and was left out"));
            return None;
        };
        if truncated {
            let note = format!("cut after {} of {len} bytes (max_document_bytes)", text.len());
            self.notes.push(format!("{name} was {note}"));
            text.push_str(&format!("\n… ({note})\n"));
        }
        Some(Document { path: name, text, bytes: len, truncated })
    }
}
