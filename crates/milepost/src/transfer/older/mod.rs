//! Older files.
