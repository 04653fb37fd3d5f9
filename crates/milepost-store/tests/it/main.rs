//! The store's tests through its public face, against real files and real processes. One binary; a
//! test below checks that no file is forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::large_futures)]
#![allow(clippy::disallowed_methods, reason = "the tests watch real processes and real time")]

mod bad_days;
mod blocking;
mod changes;
mod child;
mod conformance;
mod flips;
mod golden;
mod harness;
mod hybrid;
mod import;
mod keep;
mod keys;
mod kills;
mod linear;
mod migrate;
mod model;
mod nodes;
mod object;
mod object_model;
mod postgres;
mod power;
mod processes;
mod redact;
mod search;
mod support;
mod verify;
mod writer;

#[path = "../../../../tests/no_file_is_forgotten.rs"]
mod no_file_is_forgotten;
