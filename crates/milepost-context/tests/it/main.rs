//! The crate through its public face.

mod history;
mod history_laws;
mod redact;
mod tokens;
