//! The engine through its public face. One binary; a test below checks that no file is forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::large_futures)]

mod anew;
mod archives;
mod chapters;
mod engine;
mod erasing;
mod keep;
mod project;
mod promises;
mod resume;
mod rules;
mod search;
mod servers;
mod support;
mod transfer;

#[path = "../../../../tests/no_file_is_forgotten.rs"]
mod no_file_is_forgotten;
