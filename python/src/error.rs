//! Errors of the engine as Python's exceptions: one class for each kind, with its parts as attributes.

use milepost::Error;
use milepost::store::{Conflict, Error as StoreError, KeyError};
use pyo3::prelude::*;

/// What can go wrong in a call.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The engine said so.
    Engine(Error),
    /// It was opened by another process.
    Forked {
        /// What was opened.
        what: String,
        /// The process that did.
        process: u32,
    },
}

/// The result of every call.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Engine(error.into())
    }
}

/// The class of an error, its message, and its parts.
fn describe(failure: &Failure) -> (&'static str, String, Vec<(&'static str, String)>) {
    let error = match failure {
        Failure::Engine(error) => error,
        Failure::Forked { what, process } => {
            let message = format!(
                "{what} belongs to process {process}, this is process {}: open it in this process",
                std::process::id()
            );
            return ("Forked", message, vec![("what", what.clone())]);
        }
    };
    let message = error.to_string();
    let text = |text: &dyn ToString| text.to_string();
    let (class, parts) = match error {
        Error::Store(error) => match error {
            StoreError::NotFound { what, id } => ("NotFound", vec![("what", text(what)), ("id", id.clone())]),
            StoreError::Conflict(conflict) => {
                let kind = match conflict {
                    Conflict::Length { .. } | Conflict::NotHead { .. } => "head",
                    Conflict::Record { .. } => "record",
                    Conflict::Exists { .. } => "exists",
                    Conflict::Branches { .. } => "branches",
                };
                ("Conflict", vec![("what", text(&kind))])
            }
            StoreError::Held { session, holder, until, .. } => {
                ("Held", vec![("session", text(session)), ("holder", holder.clone()), ("until", text(until))])
            }
            StoreError::Fenced { session, holder, .. } => {
                ("Fenced", vec![("session", text(session)), ("holder", holder.clone())])
            }
            StoreError::Invalid { what, why } => ("Invalid", vec![("what", what.clone()), ("why", why.clone())]),
            StoreError::TooLarge { what, limit, .. } => {
                ("TooLarge", vec![("what", what.clone()), ("limit", text(limit))])
            }
            StoreError::Corrupt { what, why } => ("Corrupt", vec![("what", what.clone()), ("why", why.clone())]),
            StoreError::Pruned { at, .. } => ("Pruned", vec![("what", text(at))]),
            StoreError::Key(KeyError::Shredded { session }) => ("Key", vec![("session", text(session))]),
            StoreError::Key(_) => ("Key", Vec::new()),
            StoreError::Newer { what, .. } => ("Newer", vec![("what", what.clone())]),
            StoreError::NoSpace { what } => ("NoSpace", vec![("what", what.clone())]),
            StoreError::ReadOnly { what } => ("ReadOnly", vec![("what", what.clone())]),
            StoreError::ClockBack { session, .. } => ("ClockBack", vec![("session", text(session))]),
            StoreError::Io { what, why } => ("Io", vec![("what", what.clone()), ("why", why.clone())]),
            StoreError::Busy { what, .. } => ("Busy", vec![("what", what.clone())]),
            StoreError::Unavailable { what, why } => {
                ("Unavailable", vec![("what", what.clone()), ("why", why.clone())])
            }
            StoreError::Unsupported { what, .. } => ("Unsupported", vec![("what", text(what))]),
            StoreError::Closed => ("Closed", Vec::new()),
            _ => ("Error", Vec::new()),
        },
        Error::Ambiguous { given, .. } => ("Ambiguous", vec![("what", given.clone())]),
        Error::NotResumable { session, why, .. } => {
            ("NotResumable", vec![("session", text(session)), ("why", why.clone())])
        }
        Error::Refused { what, why, instead } | Error::Malformed { what, why, instead } => {
            ("Refused", vec![("what", what.clone()), ("why", why.clone()), ("instead", instead.clone())])
        }
        Error::NoCheckpoint { given, .. } => ("NotFound", vec![("what", text(&"checkpoint")), ("id", given.clone())]),
        Error::OtherSession { checkpoint, owner, .. } => {
            ("Refused", vec![("what", text(checkpoint)), ("session", text(owner))])
        }
        Error::Apart { session, why, .. } => ("Refused", vec![("session", text(session)), ("why", why.clone())]),
        Error::NothingWhole { session, why } => ("Corrupt", vec![("what", text(session)), ("why", why.clone())]),
        Error::Completed { session } => {
            let instead = text(&"branch from one of its checkpoints, or reopen it");
            ("Refused", vec![("what", text(session)), ("why", text(&"it is completed")), ("instead", instead)])
        }
        Error::NoFile { what } => ("File", vec![("what", what.clone())]),
        Error::Config { place, why, instead } | Error::ConfigKey { place, why, instead } => {
            ("Config", vec![("what", place.clone()), ("why", why.clone()), ("instead", instead.clone())])
        }
        Error::Import { from, why } => ("Import", vec![("what", from.clone()), ("why", why.clone())]),
        Error::File { what, why } => ("File", vec![("what", what.clone()), ("why", why.clone())]),
        _ => ("Error", Vec::new()),
    };
    (class, message, parts)
}

/// The exception for a failure.
pub(crate) fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let (class, message, parts) = describe(failure);
        let value = py.import("milepost.errors")?.getattr(class)?.call1((message,))?;
        for (name, part) in parts {
            value.setattr(name, part)?;
        }
        Ok(PyErr::from_value(value))
    };
    make().unwrap_or_else(|error| error)
}
