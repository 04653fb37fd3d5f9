//! Files and directories for this user alone: what agents say is private. What is there already keeps its mode.

use std::fs::{DirBuilder, File};
use std::io::Result;
use std::path::Path;

/// Makes a file that is not there yet, for this user alone (mode 0600).
pub fn create_new(path: &Path) -> Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes an empty file unless one is there. What SQLite puts beside a database gets the database's mode.
#[cfg(feature = "sqlite")]
pub(crate) fn create_if_missing(path: &Path) -> Result<()> {
    match create_new(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Makes a directory, and those that lead to it, for this user alone (mode 0700).
pub fn create_dir_all(path: &Path) -> Result<()> {
    builder().recursive(true).create(path)
}

/// Makes one directory for this user alone; an error when it is there.
pub fn create_dir(path: &Path) -> Result<()> {
    builder().create(path)
}

fn builder() -> DirBuilder {
    #[cfg_attr(not(unix), allow(unused_mut, reason = "other systems have no modes"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}
