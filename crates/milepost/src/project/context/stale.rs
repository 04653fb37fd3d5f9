//! Whether what was collected is still so.

use std::path::Path;

use super::documents::{self, SourceStamp};
use super::{Context, structure};
use crate::project::git;

/// A file that was changed so shortly before it was read may change again without its time showing it.
const RACY_MS: i64 = 2000;

/// Sizes and times are compared first; what is read again is only what differs, or was changed just before it was read.
pub(super) fn is_stale(context: &Context, dir: &Path) -> bool {
    let now = documents::candidates(dir, &context.limits);
    let same_files = now.len() == context.sources.len()
        && now.iter().zip(&context.sources).all(|(path, then)| documents::shown(path) == then.path);
    !same_files
        || context.sources.iter().any(|then| has_changed(then, context, dir))
        || git::head(dir) != context.head
        || structure::read(dir, &context.limits) != context.structure
}

fn has_changed(then: &SourceStamp, context: &Context, dir: &Path) -> bool {
    let path = Path::new(&then.path);
    let Some((_, metadata)) = documents::inside(dir, path) else { return true };
    if metadata.len() != then.len {
        return true;
    }
    let mtime = documents::mtime(&metadata);
    if mtime == then.mtime && mtime < context.updated.unix_ms() - RACY_MS {
        return false;
    }
    let read = documents::read(dir, path, context.limits.max_document_bytes);
    // A file that may not be read, then and now, has the same empty hash.
    read.is_none_or(|(_, now)| now.hash != then.hash)
}
