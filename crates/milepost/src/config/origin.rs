//! Where a setting came from, and what is wrong with one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::Error;

/// Where a setting came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A place in the configuration file. Lines and columns count from 1.
    File {
        /// The file.
        path: Arc<Path>,
        /// The line; 0 for the file as a whole.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag of the command, or a value set by the program.
    Flag(String),
    /// It follows from another setting.
    From(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line: 0, .. } => write!(f, "{}", path.display()),
            Origin::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Origin::Variable(name) => write!(f, "variable {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
            Origin::From(key) => write!(f, "follows from {key}"),
        }
    }
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can be used, but probably does not do what was meant.
    Warning,
}

/// Something found in a configuration: where, what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where.
    pub origin: Origin,
    /// Which setting; empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub why: String,
    /// What to do.
    pub instead: String,
}

impl Diagnostic {
    pub(super) fn error(
        origin: &Origin,
        key: impl Into<String>,
        why: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Error,
            origin: origin.clone(),
            key: key.into(),
            why: why.into(),
            instead: instead.into(),
        }
    }

    pub(super) fn warning(
        origin: &Origin,
        key: impl Into<String>,
        why: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, ..Self::error(origin, key, why, instead) }
    }

    /// What is wrong, with the setting's name in front when there is one.
    fn told(&self) -> String {
        let is_named = matches!(&self.origin, Origin::Flag(name) if *name == self.key);
        if self.key.is_empty() || is_named { self.why.clone() } else { format!("{}: {}", self.key, self.why) }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.origin, self.told(), self.instead)
    }
}

/// The first error as an error of the engine, saying how many more there are; none when there is no error.
pub(super) fn first_error(found: &[Diagnostic]) -> Option<Error> {
    let mut errors = found.iter().filter(|one| one.severity == Severity::Error);
    let first = errors.next()?;
    let instead = match errors.count() {
        0 => first.instead.clone(),
        more => format!("{} (and {more} more: `milepost config check` lists them all)", first.instead),
    };
    Some(Error::Config { place: first.origin.to_string(), why: first.told(), instead })
}
