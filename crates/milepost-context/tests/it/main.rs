//! The crate through its public face.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod compact;
mod history;
mod history_laws;
mod redact;
mod request;
mod tokens;

#[path = "../../../../tests/no_file_is_forgotten.rs"]
mod no_file_is_forgotten;
