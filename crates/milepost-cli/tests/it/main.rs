//! The command line's tests: the real binary, run in scratch places, and what a person or a program gets to see of it. One
//! binary; a test below checks that no file is forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::large_futures)]
#![allow(clippy::disallowed_methods, reason = "the tests watch real processes and real time")]

mod advice;
mod again;
mod bad_input;
mod bad_stores;
mod care;
mod chats;
mod clearing;
mod crash;
mod demo;
mod ends;
mod erasing;
mod figures;
mod flags;
mod graphs;
mod imported;
mod lists;
mod lost_secrets;
mod meant;
mod moments;
mod privacy;
mod rescue;
mod rules;
mod runs;
mod safe_files;
mod small_terminals;
mod support;
mod terminal;
mod tour;
mod tour_projects;
mod tour_runs;
mod tour_sessions;
mod tour_store;
mod tour_transfer;
mod transcript;
mod unfinished;

#[path = "../../../../tests/no_file_is_forgotten.rs"]
mod no_file_is_forgotten;
