//! Errors for people (what failed, why, what to do now) and for machines (a code, and the same as JSON).

use std::io::Write;
use std::process::ExitCode;

use milepost::Error;
use milepost::store::{Conflict, Error as StoreError};
use serde_json::{Map, Value, json};

use crate::out::{Styles, escaped, safe, short};

/// What the exit codes mean, for `--help`.
pub const EXIT_CODES: &str = "Exit codes:
    0  done
    1  it went wrong, or cannot be done
    2  the command line or the configuration is wrong
    3  what was named is not there, or is ambiguous
    4  someone else holds it, or wrote first
    5  stored data are damaged
    6  a key is missing, wrong or destroyed
    7  the store cannot be reached, is full, locked or read-only
   10  a run is paused: it cannot go on by itself
   11  a run waits for a time or a person
   12  a run has steps of which nobody knows whether they had their effect
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

/// What the command line itself knows to be wrong, with its exit code.
#[derive(Debug)]
pub struct Failed {
    code: u8,
    /// A word for machines, where the code alone says too little.
    kind: Option<&'static str>,
    text: String,
    ways: Vec<(&'static str, String)>,
}

impl Failed {
    /// What was named is not there.
    pub fn missing(text: impl Into<String>) -> Self {
        Self { code: 3, kind: None, text: text.into(), ways: Vec::new() }
    }

    /// It cannot be done, but something else can: commands, each with what it does.
    pub fn with_ways(text: impl Into<String>, ways: Vec<(&'static str, String)>) -> Self {
        Self { code: 1, kind: None, text: text.into(), ways }
    }

    /// The same, with a word of its own for machines.
    #[must_use]
    pub fn of_kind(mut self, kind: &'static str) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Somebody else holds the session, which `again` takes over.
    pub fn held(error: &StoreError, session: impl std::fmt::Display, again: String) -> Self {
        Self {
            code: 4,
            kind: None,
            text: Error::from(error.clone()).to_string(),
            ways: ways_of_held(&short(session), again),
        }
    }

    /// Whether what was named is not there.
    pub fn is_missing(&self) -> bool {
        self.code == 3
    }

    /// Not all that was asked for could be read.
    pub fn damaged(text: impl Into<String>) -> Self {
        Self { code: 5, kind: None, text: text.into(), ways: Vec::new() }
    }

    /// The store is damaged, and something can be done: commands, each with what it does.
    pub fn damaged_with(text: impl Into<String>, ways: Vec<(&'static str, String)>) -> Self {
        Self { code: 5, kind: None, text: text.into(), ways }
    }

    /// The store cannot be reached.
    pub fn unreachable(text: impl Into<String>) -> Self {
        Self { code: 7, kind: None, text: text.into(), ways: Vec::new() }
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failed {}

/// Stopped by the person.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted: what was acknowledged is stored, the rest is not; run the command again to go on")
    }
}

impl std::error::Error for Interrupted {}

/// Whoever read the output went away.
#[derive(Debug)]
pub struct NobodyReads;

impl std::fmt::Display for NobodyReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for NobodyReads {}

/// The exit code of a command that was interrupted.
pub const INTERRUPTED: u8 = 130;

fn code(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        return 2;
    }
    if error.is::<Interrupted>() {
        return INTERRUPTED;
    }
    if let Some(failed) = error.downcast_ref::<Failed>() {
        return failed.code;
    }
    match error.downcast_ref::<Error>() {
        Some(Error::Ambiguous { .. }) => 3,
        // A checkpoint of another session.
        Some(Error::Refused { what, .. }) if what.starts_with("checkpoint ") => 3,
        // What was typed as a label can be none.
        Some(Error::Refused { what, .. }) if what.starts_with("the label ") => 2,
        Some(Error::Config { place, .. }) if place.contains(".key") => 6,
        Some(Error::Config { .. }) => 2,
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

/// Commands that help, each with what it does.
fn ways_on(error: &anyhow::Error) -> Vec<(&'static str, String)> {
    if let Some(failed) = error.downcast_ref::<Failed>() {
        return failed.ways.clone();
    }
    let error = match error.downcast_ref::<Error>() {
        Some(Error::Ambiguous { candidates, .. }) => {
            let is_one = |prefix: &str| candidates.iter().any(|id| id.starts_with(prefix));
            return match () {
                () if is_one("ses_") => vec![("list", "milepost sessions list --all".to_owned())],
                () if is_one("prj_") => vec![("list", "milepost projects list".to_owned())],
                () => Vec::new(),
            };
        }
        Some(Error::Store(error)) => error,
        _ => return Vec::new(),
    };
    match error {
        StoreError::Conflict(Conflict::Exists { what: "session", id }) => vec![
            ("open", format!("milepost sessions show {}", short(id))),
            ("copy", "milepost sessions import PATH --new-ids".to_owned()),
        ],
        StoreError::Held { session, .. } => {
            let id = short(session);
            ways_of_held(&id, format!("milepost sessions resume {id} --take-over"))
        }
        StoreError::Conflict(Conflict::Branches { session, .. }) => {
            let id = short(session);
            vec![
                ("keep branches", format!("milepost sessions delete {id} --keep-branches")),
                ("cascade", format!("milepost sessions delete {id} --cascade")),
            ]
        }
        StoreError::NotFound { what: "session", .. } => vec![("list", "milepost sessions list --all".to_owned())],
        // `"a label" of ses_…`
        StoreError::NotFound { what: "checkpoint", id } => match id.rsplit_once(" of ses_") {
            Some((_, session)) => vec![("list", format!("milepost sessions checkpoints {}", short(session)))],
            None => Vec::new(),
        },
        StoreError::NotFound { what: "archived session", .. } => {
            vec![("list", "milepost sessions list --archived".to_owned())]
        }
        _ => Vec::new(),
    }
}

/// What can be done with a session that somebody else holds.
fn ways_of_held(id: &str, take_over: String) -> Vec<(&'static str, String)> {
    vec![
        ("attach", format!("milepost messages tail {id}")),
        ("branch", format!("milepost sessions branch {id}")),
        ("take over", take_over),
    ]
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
        INTERRUPTED => "interrupted",
        _ => "error",
    }
}

/// What went wrong, in words for a person: programs send a batch again by its id, people run a command again.
fn text(error: &anyhow::Error, only_reads: bool) -> String {
    match error.downcast_ref::<Error>() {
        Some(Error::Store(StoreError::Io { what, why })) if only_reads => {
            format!("{what} failed: {why}; run the command again: what was acknowledged is stored")
        }
        Some(Error::Store(StoreError::Io { what, why })) => format!(
            "{what} failed: {why}; what was acknowledged is stored, this may or may not be: look, and run the command again if it is not"
        ),
        _ => format!("{error:#}"),
    }
}

/// Says what went wrong, on the error output.
pub fn report(error: &anyhow::Error, json: bool, only_reads: bool, styles: Styles) -> ExitCode {
    let code = code(error);
    let kind = error.downcast_ref::<Failed>().and_then(|failed| failed.kind).unwrap_or_else(|| kind(code));
    let mut err = std::io::stderr().lock();
    let text = safe(&text(error, only_reads));
    let ways = ways_on(error);
    // When the error output is gone there is nobody to tell.
    let _ = match json {
        true => {
            let ways: Map<String, Value> =
                ways.into_iter().map(|(name, command)| (name.to_owned(), command.into())).collect();
            writeln!(
                err,
                "{}",
                escaped(&json!({ "error": { "kind": kind, "message": text, "try": ways } }).to_string())
            )
        }
        false => {
            let width = ways.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            let ways: String = ways.iter().map(|(name, command)| format!("\n  {name:width$}  {command}")).collect();
            writeln!(err, "{} {text}{ways}", styles.error("error:"))
        }
    };
    ExitCode::from(code)
}

/// What is damaged, without the advice that ends the message where it stands alone.
pub fn without_advice(text: &str) -> &str {
    text.split("; run verify").next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_of_batch_ids() {
        let error = || StoreError::Io { what: "reading the log".into(), why: "disk I/O error".into() };
        for (only_reads, says) in [(true, "run the command again: what"), (false, "this may or may not be: look")] {
            let text = text(&Error::from(error()).into(), only_reads);
            assert!(text.starts_with("reading the log failed: disk I/O error; ") && text.contains(says), "{text}");
            assert!(!text.contains("batch"), "{text}");
        }
        assert_eq!(code(&Error::from(error()).into()), 7);
    }
}
