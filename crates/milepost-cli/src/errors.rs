//! Errors for people (what failed, why, what to do now) and for machines (a code, and the same as JSON).

use std::io::Write;
use std::process::ExitCode;

use milepost::Error;
use milepost::store::{Conflict, Error as StoreError};
use serde_json::{Map, Value, json};

use crate::out::{Styles, escaped, safe, shell_word, short};

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

    /// The same, with commands that find what is there.
    pub fn missing_with(text: impl Into<String>, ways: Vec<(&'static str, String)>) -> Self {
        Self { code: 3, kind: None, text: text.into(), ways }
    }

    /// The system did not let it happen, and no path is to blame.
    pub fn system(what: &str, why: impl std::fmt::Display) -> Self {
        let text = format!("{what} failed: {why}; see what the system allows (`ulimit -a`), and try again");
        Self { code: 1, kind: None, text, ways: Vec::new() }
    }

    /// What was found could not be written to the output.
    pub fn output(why: std::io::Error) -> Self {
        let text = format!("writing the output failed: {why}; see that there is room where it goes, and run it again");
        Self { code: 1, kind: None, text, ways: Vec::new() }
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

    /// The command line makes no sense, and something tells how it would: commands, each with what it does.
    pub fn usage(text: impl Into<String>, ways: Vec<(&'static str, String)>) -> Self {
        Self { code: 2, kind: None, text: text.into(), ways }
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

/// What the system said of a file, in three parts.
pub trait OnFile<T> {
    /// What was being done, with the path.
    fn on_file(self, what: impl Into<String>) -> Result<T, Error>;
    /// The same for a file that has to be there.
    fn on_reading(self, what: impl Into<String>) -> Result<T, Error>;
}

impl<T> OnFile<T> for std::io::Result<T> {
    fn on_file(self, what: impl Into<String>) -> Result<T, Error> {
        self.map_err(|error| Error::file(what, error))
    }

    fn on_reading(self, what: impl Into<String>) -> Result<T, Error> {
        self.map_err(|error| Error::reading(what, &error))
    }
}

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
    of_engine(error).as_ref().map_or(1, code_of)
}

fn code_of(error: &Error) -> u8 {
    match error {
        Error::Partly { error, .. } => code_of(error),
        Error::Ambiguous { .. } | Error::NoCheckpoint { .. } | Error::OtherSession { .. } | Error::NoFile { .. } => 3,
        Error::Malformed { .. } | Error::Config { .. } => 2,
        Error::ConfigKey { .. } => 6,
        Error::NothingWhole { .. } => 5,
        Error::Store(error) => match error {
            error if is_long_name(error) => 2,
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

/// What the engine or the store said.
fn of_engine(error: &anyhow::Error) -> Option<Error> {
    let of_store = || error.downcast_ref::<StoreError>().cloned().map(Error::from);
    error.downcast_ref::<Error>().cloned().or_else(of_store)
}

/// Whether a short text that a person gave is too long: a title, a tag, a label.
fn is_long_name(error: &StoreError) -> bool {
    matches!(error, StoreError::TooLarge { limit: "max_name_bytes" | "max_key_bytes", .. })
}

/// Commands that help, each with what it does.
fn ways_on(error: &anyhow::Error) -> Vec<(&'static str, String)> {
    if let Some(failed) = error.downcast_ref::<Failed>() {
        return failed.ways.clone();
    }
    let error = match of_engine(error) {
        Some(Error::Ambiguous { candidates, .. }) => {
            let is_one = |prefix: &str| candidates.iter().any(|id| id.starts_with(prefix));
            return match () {
                () if is_one("ses_") => vec![("list", "milepost sessions list --all".to_owned())],
                () if is_one("prj_") => vec![("list", "milepost projects list".to_owned())],
                () => Vec::new(),
            };
        }
        Some(Error::NoCheckpoint { session, .. }) => {
            return vec![("list", format!("milepost sessions checkpoints {}", short(session)))];
        }
        Some(Error::OtherSession { owner, session, .. }) => {
            let list = |id| format!("milepost sessions checkpoints {}", short(id));
            return vec![("list", list(session)), ("list of that session", list(owner))];
        }
        Some(Error::Completed { session }) => {
            let id = short(session);
            return vec![
                ("branch", format!("milepost sessions branch {id}")),
                ("reopen", format!("milepost sessions resume {id} --reopen")),
            ];
        }
        Some(Error::NothingWhole { session, .. }) => {
            return vec![("begin anew", format!("milepost sessions resume {}", short(session)))];
        }
        Some(Error::Store(error)) => error,
        _ => return Vec::new(),
    };
    match &error {
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
        StoreError::NotFound { what: "checkpoint", .. } => vec![("list", "milepost sessions list --all".to_owned())],
        StoreError::NotFound { what: "checkpoint of session", id } => {
            vec![("take one", format!("milepost checkpoint {}", short(id)))]
        }
        StoreError::NotFound { what: "project", .. } => vec![("list", "milepost projects list".to_owned())],
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
    match of_engine(error) {
        Some(Error::Store(error @ StoreError::TooLarge { .. })) if is_long_name(&error) => {
            let StoreError::TooLarge { what, size, max, limit } = error else { return error.to_string() };
            format!("{what} has {size} bytes, the limit {limit} is {max}: nothing was stored; give a shorter one")
        }
        Some(Error::Store(StoreError::Io { what, why })) if only_reads => {
            format!("{what} failed: {why}; run the command again: what was acknowledged is stored")
        }
        Some(Error::Store(StoreError::Io { what, why })) => format!(
            "{what} failed: {why}; what was acknowledged is stored, this may or may not be: look, and run the command again if it is not"
        ),
        _ => format!("{error:#}"),
    }
}

/// The same command on the store that was named by flags, as (flag, value): what is named otherwise stays as it is.
fn on_the_same(command: String, flags: &[(&str, String)]) -> String {
    // A rescue is of files.
    if command.starts_with("milepost salvage ") {
        return command;
    }
    let missing = flags.iter().filter(|(flag, _)| !command.contains(&format!(" {flag} ")));
    let missing: String = missing.map(|(flag, value)| format!(" {flag} {}", shell_word(value))).collect();
    command + &missing
}

/// Says what went wrong, on the error output. Commands that help are named with the flags that say where.
pub fn report(
    error: &anyhow::Error,
    json: bool,
    only_reads: bool,
    styles: Styles,
    flags: &[(&str, String)],
) -> ExitCode {
    let code = code(error);
    let kind = error.downcast_ref::<Failed>().and_then(|failed| failed.kind).unwrap_or_else(|| kind(code));
    let mut err = std::io::stderr().lock();
    let text = safe(&text(error, only_reads));
    let ways = ways_on(error).into_iter().map(|(name, command)| (name, on_the_same(command, flags)));
    let ways: Vec<_> = ways.collect();
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

/// What is wrong, without what to do about it, where the store said so.
pub fn finding(error: &anyhow::Error) -> String {
    of_engine(error).map_or_else(|| format!("{error:#}"), |error| error.finding())
}

#[cfg(test)]
mod tests {
    use super::*;
    use milepost::config::Url;

    #[test]
    fn commands_that_are_named_tell_no_password_and_keep_what_they_name() {
        let store = |url: &str| vec![("--store", Url::new(url).to_type())];
        let on = |command: &str, flags: &[(&str, String)]| on_the_same(command.to_owned(), flags);
        let list = "milepost sessions list --all";
        assert_eq!(on(list, &store("sqlite:my file.db")), format!("{list} --store 'sqlite:my file.db'"));
        assert_eq!(
            on(list, &store("postgres://me@h/d?schema=x")),
            format!("{list} --store 'postgres://me@h/d?schema=x'")
        );
        for url in ["postgres://me:hunter2@h/d", "postgres://me@h/d?password=hunter2"] {
            let named = on(list, &store(url));
            assert!(named.contains(" --store ") && !named.contains("hunter2"), "{named}");
        }
        let other = "milepost sessions list --all --store sqlite:other.db";
        assert_eq!(on(other, &store("sqlite:own.db")), other);
        assert_eq!(on("milepost salvage a b", &store("sqlite:own.db")), "milepost salvage a b");
    }

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
