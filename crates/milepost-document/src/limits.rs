//! How large a document may be. Whoever reads one says so, and gives each limit its name.

use std::fmt;

/// A limit and what it is called, so that an error can name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The name.
    pub name: &'static str,
    /// The greatest value that is still allowed.
    pub at: usize,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.name, self.at)
    }
}

/// The limits of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Its size in bytes.
    pub bytes: Limit,
    /// How deep its values may lie.
    pub depth: Limit,
    /// How many values it may have, with the copies that aliases make.
    pub values: Limit,
}
