//! Errors for people (what failed, why, what to do now) and for machines (a code, and the same as JSON).

use std::io::Write;
use std::process::ExitCode;

use milepost::Error;
use milepost::store::Error as StoreError;
use serde_json::json;

use crate::out::Styles;

/// What the exit codes mean, for `--help`.
pub const EXIT_CODES: &str = "Exit codes:
  0  done
  1  something went wrong
  2  the command line is wrong
  3  what was named is not there, or is ambiguous
  4  someone else holds it, or wrote first
  5  stored data are damaged
  6  a key is missing, wrong or destroyed
  7  the store cannot be reached, is full, locked or read-only
130  interrupted";

/// What was asked on the command line makes no sense.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Stopped by the person.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted: what was acknowledged is stored, the rest is not; run the command again to go on")
    }
}

impl std::error::Error for Interrupted {}

fn code(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        return 2;
    }
    if error.is::<Interrupted>() {
        return 130;
    }
    match error.downcast_ref::<Error>() {
        Some(Error::Ambiguous { .. }) => 3,
        Some(Error::Store(error)) => match error {
            StoreError::NotFound { .. } => 3,
            StoreError::Conflict(_) | StoreError::Held { .. } | StoreError::Fenced { .. } => 4,
            StoreError::Corrupt { .. } | StoreError::Pruned { .. } => 5,
            StoreError::Key(_) => 6,
            StoreError::NoSpace { .. }
            | StoreError::ReadOnly { .. }
            | StoreError::Io { .. }
            | StoreError::Busy { .. }
            | StoreError::Unavailable { .. } => 7,
            StoreError::Invalid { .. } => 2,
            _ => 1,
        },
        _ => 1,
    }
}

/// A word for the kind of error, for machines.
fn kind(code: u8) -> &'static str {
    match code {
        2 => "usage",
        3 => "not_found",
        4 => "conflict",
        5 => "damaged",
        6 => "key",
        7 => "unavailable",
        130 => "interrupted",
        _ => "error",
    }
}

/// Says what went wrong, on the error output.
pub fn report(error: &anyhow::Error, json: bool, styles: Styles) -> ExitCode {
    let code = code(error);
    let mut err = std::io::stderr().lock();
    let text = format!("{error:#}");
    // When the error output is gone there is nobody to tell.
    let _ = match json {
        true => writeln!(err, "{}", json!({ "error": { "kind": kind(code), "message": text } })),
        false => writeln!(err, "{} {text}", styles.error("error:")),
    };
    ExitCode::from(code)
}
