//! Tests of the configuration and of projects, through the public face.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod artifacts;
mod config;
mod config_files;
mod context;
mod policy;
mod projects;
mod support;
