//! Rescuing what is whole from a store's file that SQLite refuses. What a newer program wrote is left to that one: rows of a
//! form that nobody here knows would be lost in silence.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use milepost_store::Store;
use milepost_store::backend::Depth;
use milepost_store::sqlite::{Salvaged, salvage};

use crate::error::{Error, Result};

/// Brings what is whole in a damaged file into a new one, which is to be reindexed. The damaged file is only read.
pub fn rescue(damaged: &Path, into: &Path) -> Result<Salvaged> {
    let found = salvage(damaged, into)?;
    let (Some(theirs), Some(ours)) = (Form::of(damaged), Form::of(into)) else { return Ok(found) };
    // A number beside a wrong name is damage.
    if theirs.application != ours.application || theirs.version <= ours.version {
        return Ok(found);
    }
    // What is half of it is worse than nothing; who made the name for it removes what this cannot.
    let _ = std::fs::remove_file(into);
    Err(Error::refused(
        format!("rescuing {}", damaged.display()),
        format!(
            "it was written by a newer Milepost: its format has version {}, this program knows up to {}",
            theirs.version, ours.version
        ),
        "use a newer one; nothing was written",
    ))
}

/// Whether a store is damaged below its entries, so that what is whole in it is only reached by a rescue. Reads all of it.
pub async fn needs_rescue(store: &Store) -> bool {
    match store.backend().check(Depth::Usual).await {
        Ok(found) => found.iter().any(|finding| !finding.derived),
        Err(error) => error.is_damage(),
    }
}

/// What a file says of its form.
struct Form {
    version: u32,
    application: u32,
}

impl Form {
    /// Read from the header of SQLite's format, as the file may not open. None when it has none.
    fn of(file: &Path) -> Option<Self> {
        let mut header = [0; 100];
        File::open(file).and_then(|mut file| file.read_exact(&mut header)).ok()?;
        let number = |at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
        Some(Self { version: number(60)?, application: number(68)? })
    }
}
