//! Where a value came from, and what is wrong with one.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A place in a file. Lines and columns count from 1.
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
    /// The file cannot be used.
    Error,
    /// It can be used, but probably does not do what was meant.
    Warning,
}

/// Something found in a file, or a setting: where, what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where.
    pub origin: Origin,
    /// Which value; empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub why: String,
    /// What to do.
    pub instead: String,
}

impl Diagnostic {
    /// Something that cannot be used.
    pub fn error(origin: &Origin, key: impl Into<String>, why: impl Into<String>, instead: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            origin: origin.clone(),
            key: key.into(),
            why: why.into(),
            instead: instead.into(),
        }
    }

    /// Something that can be used, but is probably not what was meant.
    pub fn warning(
        origin: &Origin,
        key: impl Into<String>,
        why: impl Into<String>,
        instead: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, ..Self::error(origin, key, why, instead) }
    }

    /// What is wrong, with the value's name in front when there is one.
    pub fn told(&self) -> String {
        let is_named = matches!(&self.origin, Origin::Flag(name) if *name == self.key);
        if self.key.is_empty() || is_named { self.why.clone() } else { format!("{}: {}", self.key, self.why) }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.origin, self.told(), self.instead)
    }
}
