//! Durable sessions for AI agents.

mod error;
pub mod transfer;

pub use error::{Error, Result};
pub use milepost_context as context;
pub use milepost_model as model;
pub use milepost_store as store;
