//! Durable sessions for AI agents.

pub mod config;
mod error;
pub mod project;

pub use error::{Error, Result};
pub use milepost_context as context;
pub use milepost_model as model;
pub use milepost_store as store;
