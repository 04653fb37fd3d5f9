//! Tests of the configuration and of projects, through the public face.

mod config;
mod config_files;
