//! Files that must not outlive the command unless they are whole: they go when they are dropped, and also when the command
//! ends at once.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;

static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes everything that is still there, for who cannot wait.
pub fn clear() {
    all().drain(..).for_each(|path| remove(&path));
}

fn remove(path: &Path) {
    // Mostly it is gone already: there is nobody to tell.
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    // What SQLite keeps beside a database that was not closed.
    for end in ["-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(end);
        let _ = std::fs::remove_file(beside);
    }
}

/// A file or directory that goes when it is no longer needed.
pub struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> Self {
        all().push(path.clone());
        Self(path)
    }

    /// The place beside a file where it is written until it is whole. Nothing is there yet.
    pub fn beside(file: &Path) -> Result<Self> {
        let mut name = file.as_os_str().to_owned();
        name.push(format!(".{}.part", chance()?));
        Ok(Self::new(PathBuf::from(name)))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Gives the file the mode of the one that it is to replace, if there is one.
    pub fn take_mode_of(&self, name: &Path) -> Result<()> {
        let Ok(found) = std::fs::metadata(name) else { return Ok(()) };
        Ok(std::fs::set_permissions(&self.0, found.permissions())
            .map_err(|error| milepost::Error::file(format!("writing {}", name.display()), error))?)
    }

    /// Gives a whole file its name. What had the name before goes only now.
    pub fn keep(self, name: &Path) -> Result<()> {
        std::fs::rename(&self.0, name)
            .map_err(|error| milepost::Error::file(format!("naming {}", name.display()), error))?;
        let parent = name.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Not every system can; the file itself is durable.
        let _ = std::fs::File::open(parent).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        all().retain(|path| *path != self.0);
        remove(&self.0);
    }
}

/// A part of a name that nobody else has.
fn chance() -> Result<String> {
    let mut bytes = [0u8; 8];
    milepost::store::system_source().map_err(milepost::Error::from)?.fill(&mut bytes);
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}
