//! Sessions on their way out of a store and into one: bundles, copies between stores, files for people and other tools, and
//! the files that older tools left behind.
//!
//! A **bundle** ([`export_bundle`], [`import_bundle`]) is one session in one file with its artifacts and its log, lossless and tamper-evident. A **copy**
//! ([`copy_session`]) is the same from store to store, and brings over only what is new when it is made again. **Exports**
//! ([`export`]) are read by people and by other tools; **older files** ([`older`]) are found out by their content and become
//! sessions. Nothing here knows how a store keeps its bytes.
//!
//! What other tools wrote was never looked at for secrets: [`Milepost::import_older`] takes them out before anything is
//! stored, like everything else that the engine writes. A bundle and a copy stay what they were, entry by entry, because
//! they come from a store that was written so; [`Milepost::import_bundle`] looks through a bundle all the same, and says in
//! [`Imported::notes`] when something in it looks like a secret. The functions that take a [`Store`](milepost_store::Store)
//! neither take out nor look.

mod beside;
mod bundle;
mod copy;
pub mod export;
mod incoming;
mod names;
pub mod older;
mod outgoing;
mod succeed;
mod suspects;
mod through;
mod triggers;
mod when;
mod written;

pub use bundle::{BundleOptions, Checked, Exported, check_bundle, export_bundle, import_bundle};
pub use copy::{Copied, copy_session};
pub(crate) use names::derived;
pub use outgoing::origin;
pub(crate) use succeed::{Succession, succession};

use milepost_model::SessionId;
use milepost_store::ed25519_dalek::VerifyingKey;

use crate::engine::Milepost;

/// Where a checkpoint keeps the id that it had where it was imported from, if it could not keep it as its own.
pub(crate) const ORIGINAL_ID: &str = "original_id";

/// Whether what is imported keeps its ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ids {
    /// The session, its timelines and its checkpoints keep their ids. Refused when one of them is there already.
    #[default]
    Preserve,
    /// Everything gets a new id; ids that events name are changed along.
    Remap,
}

/// How a session is imported.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Whether ids are kept.
    pub ids: Ids,
    /// Only a bundle that was signed with this key is taken.
    pub signed_by: Option<VerifyingKey>,
    /// What is refused for its size.
    pub limits: ImportLimits,
    /// What the import is called in errors: a file's name, most often.
    pub from: Option<String>,
    /// The project that sessions made from older files belong to.
    pub project: Option<String>,
    /// Whose rules say what a secret is; nothing is looked at without one.
    pub(crate) engine: Option<Milepost>,
    /// Where to look for what was imported before, when not where it goes.
    pub(crate) known_in: Option<milepost_store::Store>,
}

impl ImportOptions {
    pub(crate) fn name(&self) -> String {
        self.from.clone().unwrap_or_else(|| "the import".to_owned())
    }
}

/// Sizes beyond which an import is refused. Each has an error that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportLimits {
    /// Bytes of a bundle once it is unpacked (64 GiB).
    pub max_bundle_bytes: u64,
    /// The longest line of a bundle or of a JSONL file (96 MiB: the largest entry or blob with its frame).
    pub max_line_bytes: u64,
    /// How many times its packed size a bundle or a gzip file may have once it is unpacked, beyond the first 64 MiB (1,000).
    pub max_ratio: u64,
    /// The largest JSON file of an older form, unpacked (256 MiB).
    pub max_file_bytes: u64,
    /// Messages of one session made from older files (1,000,000).
    pub max_messages: u64,
    /// Files read of one directory (10,000).
    pub max_files: u64,
}

impl Default for ImportLimits {
    fn default() -> Self {
        Self {
            max_bundle_bytes: 64 << 30,
            max_line_bytes: 96 << 20,
            max_ratio: 1000,
            max_file_bytes: 256 << 20,
            max_messages: 1_000_000,
            max_files: 10_000,
        }
    }
}

/// So many bytes may come out of a packed file however small it is.
pub(crate) const FREE_BYTES: u64 = 64 << 20;

/// How far a transfer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Entries done.
    pub entries: u64,
    /// Entries there are.
    pub entries_total: u64,
}

/// Told how far a transfer is.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// What an import made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The session.
    pub session: SessionId,
    /// What it was called where it came from.
    pub original: String,
    /// Entries that were added; none when the same was imported before.
    pub entries: u64,
    /// Messages up to its head.
    pub messages: u64,
    /// Checkpoints up to its head.
    pub checkpoints: u64,
    /// What could not be taken over as it was, in words.
    pub notes: Vec<String>,
}
