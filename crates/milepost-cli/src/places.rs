//! Where stores are, as far as it can be known before they are opened.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::errors::{Failed, OnFile};
use crate::out::{plain, shell_word};

/// The file or directory of a store that is on this machine.
fn path(url: &str) -> Option<PathBuf> {
    let sqlite = url.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path));
    let path = sqlite.or_else(|| url.strip_prefix("file://"))?;
    let path = path.split('?').next().unwrap_or(path);
    // A name that is written in another way than it is on the disk is left to whoever opens it.
    (!path.is_empty() && !path.contains('%')).then(|| PathBuf::from(path))
}

/// The SQLite file that is named by its URL or its path; none for a store of another kind.
pub fn sqlite_file(given: &str) -> Option<PathBuf> {
    match given.contains(':') && !Path::new(given).exists() {
        true => path(given).filter(|_| given.starts_with("sqlite:")),
        false => (!given.is_empty()).then(|| PathBuf::from(given)),
    }
}

/// The same store, named so that it is found from any directory.
pub fn absolute(url: &str) -> Result<String> {
    let Some(path) = url.strip_prefix("sqlite:").filter(|path| !path.is_empty()) else { return Ok(url.to_owned()) };
    let path = std::path::absolute(path).on_file("asking for the working directory")?;
    Ok(path.to_str().map_or_else(|| url.to_owned(), |path| format!("sqlite:{path}")))
}

/// Sees that a store can be made there: the directory of the default store is made on first use, one that was named must be
/// there, so that a slip of the pen makes no second store.
pub fn prepare(url: &str) -> Result<()> {
    match missing_directory(url)? {
        Some(parent) => Ok(milepost::store::private::create_dir_all(&parent)
            .on_file(format!("making the directory {}", parent.display()))?),
        None => Ok(()),
    }
}

/// The directory that is to be made before a store can be; refused where none can be.
pub fn missing_directory(url: &str) -> Result<Option<PathBuf>> {
    let Some(path) = path(url) else { return Ok(None) };
    if let Some(why) = unusable(url, &path).filter(|why| *why == NO_DATABASE) {
        let what = format!("opening the store {}: {why}; rescue what is in it, or name another store", plain(url));
        return Err(Failed::damaged_with(what, vec![("rescue", rescue(&path))]).into());
    }
    if let Some(why) = unusable(url, &path) {
        return Err(Failed::unreachable(format!("opening the store {}: {why}; name another store", plain(url))).into());
    }
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(None) };
    if path.exists() || parent.is_dir() {
        return Ok(None);
    }
    if url.starts_with("sqlite:") && parent.ends_with("milepost") {
        return Ok(Some(parent.to_owned()));
    }
    let (url, parent) = (plain(url), parent.display());
    Err(Failed::unreachable(format!(
        "opening the store {url}: there is no directory {parent}; make it, or name another store"
    ))
    .into())
}

/// Why what is there is no store.
fn unusable(url: &str, path: &Path) -> Option<&'static str> {
    let is_file_expected = url.starts_with("sqlite:");
    if path.exists() && path.is_dir() == is_file_expected {
        return Some(if is_file_expected { "it is a directory" } else { "it is not a directory" });
    }
    let mut begins = [0; MAGIC.len()];
    let is_other = is_file_expected
        && File::open(path).and_then(|mut file| file.read_exact(&mut begins)).is_ok()
        && begins != *MAGIC;
    is_other.then_some(NO_DATABASE)
}

const NO_DATABASE: &str = "the file is no database, or its beginning is damaged";

/// The command that rescues what is whole in a file.
fn rescue(file: &Path) -> String {
    let to = with_end(file, ".rescued");
    format!("milepost salvage {} {}", shell_word(&file.to_string_lossy()), shell_word(&to.to_string_lossy()))
}

/// What a store that could not be opened for its damage is told with: the command that rescues what is whole.
pub fn rescue_of(url: &str) -> Option<String> {
    sqlite_file(url).filter(|file| file.is_file()).map(|file| rescue(&file))
}

/// How a SQLite file begins.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Files that SQLite keeps beside a database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Whether a file is the store, or a part of it.
pub fn is_store(url: &str, file: &Path) -> bool {
    let Some(name) = url.strip_prefix("sqlite:") else {
        let directory = path(url).and_then(|path| path.canonicalize().ok());
        return directory.zip(whole(file)).is_some_and(|(directory, file)| file.starts_with(directory));
    };
    let name = Path::new(name.strip_prefix("//").unwrap_or(name));
    // The files beside are named after the database itself, not after a link to it.
    let Some(database) = whole(name) else { return false };
    is_same(&database, file) || BESIDE.iter().any(|end| is_same(&with_end(&database, end), file))
}

/// Whether a file is a database that some program has open, or did not close.
pub fn is_database_in_use(file: &Path) -> bool {
    ["-wal", "-journal"].iter().any(|end| with_end(&whole(file).unwrap_or_else(|| file.to_owned()), end).exists())
}

fn with_end(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// Where a file is, or would be.
fn whole(file: &Path) -> Option<PathBuf> {
    file.canonicalize().ok().or_else(|| {
        let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(parent.canonicalize().ok()?.join(file.file_name()?))
    })
}

/// Whether two names are of one file, also when it has several.
fn is_same(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    if let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) {
        use std::os::unix::fs::MetadataExt;
        return (a.dev(), a.ino()) == (b.dev(), b.ino());
    }
    whole(a).is_some_and(|a| whole(b) == Some(a))
}

/// Whether a store is there; one that is not on this machine may be.
pub fn exists(url: &str) -> bool {
    path(url).is_none_or(|path| path.exists())
}

/// Whether two URLs name one place, as far as it can be known before it is opened.
pub fn is_same_place(a: &str, b: &str) -> bool {
    let scheme = |url: &str| url.split(':').next().map(str::to_owned);
    match (path(a), path(b)) {
        (Some(x), Some(y)) => scheme(a) == scheme(b) && is_same(&x, &y),
        _ => a.trim_end_matches('/') == b.trim_end_matches('/'),
    }
}

/// Sees that there is a store to read from.
pub fn must_exist(url: &str) -> Result<()> {
    match path(url).as_deref().map(Path::exists) {
        Some(false) => {
            let url = plain(url);
            Err(Failed::unreachable(format!("opening the store {url}: nothing is there; check the path")).into())
        }
        _ => Ok(()),
    }
}
