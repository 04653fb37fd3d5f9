//! Writing files below one directory, and nowhere else.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use milepost_store::private;
use serde::Serialize;

use crate::config::Compression;
use crate::error::{Error, Result};

/// The longest name of a file, in bytes.
const MAX_NAME: usize = 120;
/// A file that several exports share is not longer than this.
const MAX_SHARED: u64 = 64 << 20;
/// Names that Windows keeps for devices.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "com", "lpt"];

/// A name that came from outside as the name of a file: no separators, no dots in front, nothing that a system takes for
/// something else. A name that had to be changed ends with a hash of what it was, so that two never meet.
pub fn safe_name(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | '+');
    let mut safe: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    safe.truncate(safe.floor_char_boundary(MAX_NAME));
    let stem = safe.split('.').next().unwrap_or_default().trim_end_matches(|c: char| c.is_ascii_digit()).to_lowercase();
    let is_odd = safe.is_empty() || safe.starts_with('.') || safe.ends_with('.') || DEVICES.contains(&stem.as_str());
    if safe == name && !is_odd {
        return safe;
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    format!("{}-{}", if is_odd { format!("_{}", safe.trim_matches('.')) } else { safe }, &hash[..8])
}

/// What becomes of files that are where an export is to be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Present {
    /// They stay, and nothing is exported. The index of a project's sessions is no such file: it is written anew.
    #[default]
    Refuse,
    /// They are written over.
    Replace,
}

/// A directory that files are written below. A link in it is never followed.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    written: Vec<PathBuf>,
    present: Present,
    /// Nobody else may read what is written, also where others could read the file before.
    is_private: bool,
    /// Checkpoints larger than this are packed.
    pack_above: u64,
}

impl Folder {
    pub fn open(root: &Path, present: Present) -> Result<Self> {
        private::create_dir_all(root).map_err(|error| Error::file(format!("making {}", root.display()), error))?;
        Ok(Self { root: root.to_owned(), written: Vec::new(), present, is_private: false, pack_above: u64::MAX })
    }

    /// What an encrypted workspace held is for its user alone.
    pub fn private(mut self, is_private: bool) -> Self {
        self.is_private = is_private;
        self
    }

    /// Refuses a file that is there; what was written before it goes again.
    fn must_be_new(&mut self, path: &Path) -> Result<()> {
        let is_own = || self.written.iter().any(|written| written == path);
        if self.present == Present::Replace || fs::symlink_metadata(path).is_err() || is_own() {
            return Ok(());
        }
        for written in self.written.drain(..) {
            // All of them are new: nothing was written over.
            let _ = fs::remove_file(written);
        }
        Err(Error::refused(
            format!("writing {}", path.display()),
            "a file is there already",
            "name another directory, or say --force to write over it; nothing was exported",
        ))
    }

    /// Packs checkpoints that are large.
    pub fn packing(mut self, how: &Compression) -> Self {
        self.pack_above = if how.enabled { how.threshold_bytes } else { u64::MAX };
        self
    }

    /// Writes a checkpoint; a large one is packed. Returns the name that it got.
    pub fn checkpoint(&mut self, parts: &[&str], value: &impl Serialize) -> Result<String> {
        let text = pretty(value)?;
        let [below @ .., name] = parts else { return Ok(String::new()) };
        let (name, other) = match text.len() as u64 > self.pack_above {
            true => (format!("{name}.gz"), (*name).to_owned()),
            false => ((*name).to_owned(), format!("{name}.gz")),
        };
        let content = if name.ends_with(".gz") { pack(&text)? } else { text };
        // What an earlier export left under the other name is the same checkpoint once more.
        let left = self.place(&[below, &[other.as_str()]].concat())?;
        self.must_be_new(&left)?;
        self.write(&[below, &[name.as_str()]].concat(), &content)?;
        if fs::symlink_metadata(&left).is_ok_and(|found| found.is_file()) {
            fs::remove_file(&left).map_err(|error| Error::file(format!("replacing {}", left.display()), error))?;
        }
        Ok(name)
    }

    /// What was written.
    pub fn finish(self) -> Vec<PathBuf> {
        self.written
    }

    /// The place of a file, with the directories to it. Each part is one name.
    fn place(&self, parts: &[&str]) -> Result<PathBuf> {
        let mut path = self.root.clone();
        for (number, part) in parts.iter().enumerate() {
            if part.is_empty() || *part == "." || *part == ".." || part.contains(['/', '\\', '\0']) {
                return Err(Error::refused(format!("writing {part:?}"), "it is not the name of a file", "rename it"));
            }
            path.push(part);
            if number + 1 < parts.len() {
                make_dir(&path)?;
            }
        }
        Ok(path)
    }

    /// Writes a file whole, or not at all.
    pub fn write(&mut self, parts: &[&str], content: &[u8]) -> Result<()> {
        let path = self.place(parts)?;
        self.must_be_new(&path)?;
        self.put(path, content)
    }

    /// Writes a file that several exports share, over what an earlier one wrote.
    pub fn shared(&mut self, parts: &[&str], value: &impl Serialize) -> Result<()> {
        let path = self.place(parts)?;
        let mut begins = String::new();
        let found = fs::File::open(&path).and_then(|file| file.take(MAX_SHARED).read_to_string(&mut begins));
        let is_ours = found.is_ok()
            && serde_json::from_str::<serde_json::Value>(&begins).is_ok_and(|found| found.get("projectId").is_some());
        if !is_ours {
            self.must_be_new(&path)?;
        }
        self.put(path, &pretty(value)?)
    }

    fn put(&mut self, path: PathBuf, content: &[u8]) -> Result<()> {
        let what = || format!("writing {}", path.display());
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Err(Error::file(what(), "a directory has that name"));
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        // One that was left over, or a link that someone put there.
        if fs::symlink_metadata(&part).is_ok() {
            fs::remove_file(&part).map_err(|error| Error::file(what(), error))?;
        }
        let mut file = private::create_new(&part).map_err(|error| Error::file(what(), error))?;
        // A file that is written over keeps its mode, as its owner chose it.
        if let Some(found) = fs::symlink_metadata(&path).ok().filter(|found| found.is_file() && !self.is_private) {
            file.set_permissions(found.permissions()).map_err(|error| Error::file(what(), error))?;
        }
        file.write_all(content).and_then(|()| file.sync_all()).map_err(|error| Error::file(what(), error))?;
        fs::rename(&part, &path).map_err(|error| Error::file(what(), error))?;
        self.written.push(path);
        Ok(())
    }

    /// Writes JSON as a person reads it.
    pub fn json(&mut self, parts: &[&str], value: &impl Serialize) -> Result<()> {
        self.write(parts, &pretty(value)?)
    }

    /// Makes a link to a file beside it; a copy where there are no links, and of a file that is packed.
    pub fn link(&mut self, parts: &[&str], to: &str, value: &impl Serialize) -> Result<()> {
        let path = self.place(parts)?;
        self.must_be_new(&path)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::file(format!("replacing {}", path.display()), error));
            }
            _ => {}
        }
        #[cfg(unix)]
        if !to.ends_with(".gz") && std::os::unix::fs::symlink(to, &path).is_ok() {
            self.written.push(path);
            return Ok(());
        }
        let _ = to;
        self.json(parts, value)
    }
}

fn pretty(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| Error::file("writing JSON", error))?;
    text.push(b'\n');
    Ok(text)
}

fn pack(text: &[u8]) -> Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(text).and_then(|()| packed.finish()).map_err(|error| Error::file("packing a checkpoint", error))
}

fn make_dir(path: &Path) -> Result<()> {
    let what = || format!("making {}", path.display());
    match private::create_dir(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::file(what(), error)),
    }
    let found = fs::symlink_metadata(path).map_err(|error| Error::file(what(), error))?;
    match found.is_dir() {
        true => Ok(()),
        false => {
            Err(Error::file(what(), "something that is not a directory has that name, and links are not followed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_become_plain_ones() {
        for name in [
            "..",
            ".",
            "",
            "/etc/passwd",
            "../../x",
            "a/b",
            "a\\b",
            "\0",
            "con",
            "NUL.txt",
            ".ssh",
            "x.",
            "ü/..",
            "com1",
        ] {
            let safe = safe_name(name);
            assert!(
                !safe.contains(['/', '\\', '\0']) && !safe.starts_with('.') && !safe.is_empty(),
                "{name:?}: {safe}"
            );
            assert_ne!(safe, name);
            assert_eq!(safe_name(&safe), safe, "{safe}");
        }
        assert_eq!(safe_name("ses_01kdvdna0033tftnnejey8qkx3"), "ses_01kdvdna0033tftnnejey8qkx3");
        assert_ne!(safe_name("a/b"), safe_name("a_b"));
        assert!(safe_name(&"x".repeat(5000)).len() < 140);
    }
}
