//! One session as one file.
//!
//! A bundle is lines of JSON, packed with zstd. The first says what it is, the last how it ends; between them are the
//! session's timelines, each followed by its entries, and blobs before the first entry that needs them. Every line ends
//! with a BLAKE3 hash of itself and all before it, so that what is changed, cut, swapped or doubled is found at the first
//! line where it is so. The end may be signed with Ed25519: a chain alone shows accidents and careless hands, a signature
//! also shows whoever made the chain anew.
//!
//! The same session gives the same bytes, from whatever store it comes.

mod format;
mod read;
mod write;

pub use read::{Checked, check_bundle, import_bundle};
pub use write::{BundleOptions, Exported, export_bundle};
