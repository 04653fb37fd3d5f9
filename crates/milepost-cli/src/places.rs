//! Where stores are, as far as it can be known before they are opened.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::errors::Unreachable;

/// The file or directory of a store that is on this machine.
fn path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:").or_else(|| url.strip_prefix("file://"))?;
    let path = path.split('?').next().unwrap_or(path);
    (!path.is_empty()).then(|| PathBuf::from(path))
}

/// Sees that a store can be made there: the directory of the default store is made on first use, one that was named must be
/// there, so that a slip of the pen makes no second store.
pub fn prepare(url: &str) -> Result<()> {
    let Some(path) = path(url) else { return Ok(()) };
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    if path.exists() || parent.is_dir() {
        return Ok(());
    }
    if url.starts_with("sqlite:") && parent.ends_with("milepost") {
        return std::fs::create_dir_all(parent).with_context(|| format!("making the directory {}", parent.display()));
    }
    let (url, parent) = (crate::out::plain(url), parent.display());
    Err(Unreachable(format!("opening the store {url}: there is no directory {parent}; make it, or name another store")).into())
}

/// Sees that there is a store to read from.
pub fn must_exist(url: &str) -> Result<()> {
    match path(url).as_deref().map(Path::exists) {
        Some(false) => {
            let url = crate::out::plain(url);
            Err(Unreachable(format!("opening the store {url}: there is nothing; check the path")).into())
        }
        _ => Ok(()),
    }
}
