//! The groups of figures that `scripts/bench` runs, each a module that prints its figures as they come.

pub mod backends;
pub mod engine;
pub mod runner;
pub mod store;
