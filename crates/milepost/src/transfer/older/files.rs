//! Reading files of unknown origin, within limits.

use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::exact;
use super::kept_files::{Beside, of_hosted};
use crate::error::{Error, Result};
use crate::transfer::{FREE_BYTES, ImportOptions};

/// How deep a directory is looked into.
const MAX_DEPTH: usize = 8;

/// What a directory holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Files that may hold something.
    pub files: Vec<PathBuf>,
    /// Directories of a graph's session.
    pub graphs: Vec<PathBuf>,
    /// What lies beside sessions.
    pub beside: Vec<Beside>,
}

fn read_error(path: &Path, error: std::io::Error) -> Error {
    Error::reading(format!("reading {}", path.display()), &error)
}

pub(super) fn is_bundle(path: &Path) -> Result<bool> {
    let mut magic = [0u8; 4];
    // Opening a pipe waits for whoever writes into it.
    if !fs::metadata(path).map_err(|error| read_error(path, error))?.is_file() {
        let why = "it is neither a file nor a directory";
        return Err(Error::import(path.display().to_string(), why));
    }
    let mut file = fs::File::open(path).map_err(|error| read_error(path, error))?;
    Ok(file.read_exact(&mut magic).is_ok() && magic == [0x28, 0xb5, 0x2f, 0xfd])
}

/// A file's name without what says its form.
pub(super) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = name.strip_suffix(".gz").unwrap_or(&name);
    let stem = stem.strip_suffix(".jsonl").or_else(|| stem.strip_suffix(".json")).unwrap_or(stem);
    // The log of a session's directory is called like every other.
    match (stem, path.parent().and_then(Path::file_name)) {
        ("conversation", Some(parent)) => parent.to_string_lossy().into_owned(),
        _ => stem.to_owned(),
    }
}

/// Looks through a directory. Links are not followed.
pub(super) fn walk(root: &Path, options: &ImportOptions) -> Result<Found> {
    let mut found = Found::default();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((dir, depth)) = open.pop() {
        if dir.join("checkpoints").join("index.json").is_file() {
            found.graphs.push(dir);
            continue;
        }
        let mut below: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&dir).map_err(|error| read_error(&dir, error))? {
            below.push(entry.map_err(|error| read_error(&dir, error))?.path());
        }
        below.sort();
        for path in below {
            let about = fs::symlink_metadata(&path).map_err(|error| read_error(&path, error))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if about.is_dir() && depth < MAX_DEPTH {
                open.push((path, depth + 1));
            } else if let Some(beside) = of_hosted(root, &path).filter(|_| about.is_file()) {
                found.beside.push(beside);
            } else if about.is_file() && [".json", ".jsonl", ".json.gz"].iter().any(|end| name.ends_with(end)) {
                found.files.push(path);
            }
            let count = (found.files.len() + found.beside.len() + open.len()) as u64;
            let max = options.limits.max_files;
            if count > max {
                let why = format!("it has more than {max} files, the limit max_files");
                return Err(Error::import(options.name(), why));
            }
        }
    }
    found.files.sort();
    found.graphs.sort();
    Ok(found)
}

/// What a content held.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// The JSON documents.
    pub found: Vec<Value>,
    /// What could not be taken over as it was.
    pub notes: Vec<String>,
}

pub(super) fn read(path: &Path, options: &ImportOptions) -> Result<Documents> {
    let file = fs::File::open(path).map_err(|error| read_error(path, error))?;
    let mut content = Vec::new();
    let max = options.limits.max_file_bytes;
    file.take(max.saturating_add(1)).read_to_end(&mut content).map_err(|error| read_error(path, error))?;
    // A log in which nothing was said yet.
    if content.trim_ascii().is_empty() && path.extension().is_some_and(|end| end == "jsonl") {
        return Ok(Documents::default());
    }
    let named = ImportOptions { from: Some(path.display().to_string()), ..options.clone() };
    parse(&content, &named)
}

/// The JSON documents of a content: one, or one a line.
pub(super) fn parse(content: &[u8], options: &ImportOptions) -> Result<Documents> {
    let refuse = |why: String| Error::import(options.name(), why);
    let too_large =
        || refuse(format!("it is larger than {} bytes, the limit max_file_bytes", options.limits.max_file_bytes));
    if content.len() as u64 > options.limits.max_file_bytes {
        return Err(too_large());
    }
    let unpacked = match content {
        [0x1f, 0x8b, ..] => {
            let max = options.limits.max_file_bytes;
            let by_ratio = (content.len() as u64).saturating_mul(options.limits.max_ratio).max(FREE_BYTES);
            let mut out = Vec::new();
            let mut unpacker = flate2::read::MultiGzDecoder::new(content).take(max.min(by_ratio).saturating_add(1));
            unpacker.read_to_end(&mut out).map_err(|error| refuse(format!("it cannot be unpacked: {error}")))?;
            if out.len() as u64 > max {
                return Err(too_large());
            }
            if out.len() as u64 > by_ratio {
                return Err(refuse(format!(
                    "it unpacks to more than {} times its size, the limit max_ratio",
                    options.limits.max_ratio
                )));
            }
            out
        }
        _ => Vec::new(),
    };
    let content = if unpacked.is_empty() { content } else { &unpacked };
    let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    if content.iter().take(1024).any(|byte| *byte == 0) {
        return Err(refuse("it is binary, and no form that is known here".to_owned()));
    }
    match exact::read(content) {
        Ok((value, notes)) => Ok(Documents { found: vec![value], notes: notes.into_iter().collect() }),
        Err(whole) if let Some((value, note)) = healed(content, &whole) => {
            Ok(Documents { found: vec![value], notes: note.into_iter().chain([HEALED.to_owned()]).collect() })
        }
        Err(whole) => lines(content, options)
            .map_err(|why| refuse(format!("it is neither JSON ({whole}) nor JSON lines ({why})"))),
    }
}

const HEALED: &str = "it held half a character (a lone surrogate) or a bare control character, which JSON does not allow: \
                      U+FFFD stands for the first, the second is kept";

/// A document that only half characters and bare control characters keep from being JSON.
fn healed(content: &[u8], error: &serde_json::Error) -> Option<(Value, Option<String>)> {
    // Several documents, or the end of one that was cut off: nothing to heal.
    if error.is_eof() || error.to_string().starts_with("trailing characters") {
        return None;
    }
    let text = std::str::from_utf8(content).ok()?;
    match milepost_context::history::heal_json(text) {
        Cow::Owned(healed) => exact::read(healed.as_bytes()).ok(),
        Cow::Borrowed(_) => None,
    }
}

fn lines(content: &[u8], options: &ImportOptions) -> Result<Documents, String> {
    let mut found = Vec::new();
    let mut notes = Vec::new();
    let all: Vec<&[u8]> = content.split(|byte| *byte == b'\n').collect();
    let last = all.iter().rposition(|line| !line.trim_ascii().is_empty()).unwrap_or(0);
    for (number, line) in all.into_iter().enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        if line.len() as u64 > options.limits.max_line_bytes {
            return Err(format!("line {} is longer than max_line_bytes", number + 1));
        }
        match exact::read(line) {
            Ok((value, note)) if value.is_object() => {
                found.push(value);
                notes.extend(note.map(|note| format!("line {}: {note}", number + 1)));
            }
            Ok(_) => return Err(format!("line {} is no object", number + 1)),
            // A log that was being written ends in the middle of a line.
            Err(error) if number == last && number > 0 && error.is_eof() => {
                notes.push(format!(
                    "its last line, {}, ends in the middle: {} bytes of it were left out",
                    number + 1,
                    line.len()
                ));
            }
            Err(error) if let Some((value, note)) = healed(line, &error).filter(|(value, _)| value.is_object()) => {
                found.push(value);
                notes.extend(note.map(|note| format!("line {}: {note}", number + 1)));
                notes.push(format!("line {}: {HEALED}", number + 1));
            }
            Err(error) => {
                // The place it names is counted within the line.
                let (text, column) = (error.to_string(), error.column());
                let why = text.rsplit_once(" at line ").map_or(&*text, |(why, _)| why);
                return Err(format!("line {}, column {column}: {why}", number + 1));
            }
        }
        if found.len() as u64 > options.limits.max_messages {
            return Err(format!("it has more than {} lines, the limit max_messages", options.limits.max_messages));
        }
    }
    match found.is_empty() {
        true => Err("it is empty".to_owned()),
        false => {
            let more = notes.len().saturating_sub(MAX_NOTES);
            notes.truncate(MAX_NOTES);
            notes.extend((more > 0).then(|| format!("{more} more lines held such things")));
            Ok(Documents { found, notes })
        }
    }
}

/// So many lines are named one by one.
const MAX_NOTES: usize = 10;
