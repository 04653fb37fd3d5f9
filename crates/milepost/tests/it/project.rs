//! Tests of the configuration and of projects, through the public face.

mod artifacts;
mod config;
mod config_files;
mod context;
mod policy;
mod projects;
mod support;
