//! Where in a document a change happens.

use std::fmt;
use std::str::FromStr;

use super::DeltaError;

/// One step from a container to something inside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathPart {
    /// A key of an object.
    Key(String),
    /// A position in a list.
    Index(usize),
}

impl From<&str> for PathPart {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<String> for PathPart {
    fn from(key: String) -> Self {
        Self::Key(key)
    }
}

impl From<usize> for PathPart {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// A place in a document, from its root.
///
/// Shown as a JSON pointer. Parsing a pointer takes a part that is a plain number (`0`, `17`) for a position in a list;
/// for an object whose keys are numbers, build the path with [`StatePath::key`].
///
/// ```
/// use milepost_model::delta::StatePath;
///
/// let path = StatePath::root().key("memory").key("recent").index(2);
/// assert_eq!(path.to_string(), "/memory/recent/2");
/// assert_eq!("/memory/recent/2".parse(), Ok(path));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatePath(Vec<PathPart>);

impl StatePath {
    /// The whole document.
    pub fn root() -> Self {
        Self::default()
    }

    /// The value under `key` of the object here.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.0.push(PathPart::Key(key.into()));
        self
    }

    /// The item at `index` of the list here.
    #[must_use]
    pub fn index(mut self, index: usize) -> Self {
        self.0.push(PathPart::Index(index));
        self
    }

    /// The steps from the root.
    pub fn parts(&self) -> &[PathPart] {
        &self.0
    }

    pub(super) fn push_front(&mut self, part: PathPart) {
        self.0.insert(0, part);
    }

    pub(super) fn split_last(mut self) -> Option<(Self, PathPart)> {
        let last = self.0.pop()?;
        Some((self, last))
    }

    /// For a sentence to a person: the root has no text of its own.
    pub(super) fn shown(&self) -> String {
        if self.0.is_empty() { "the root".to_owned() } else { format!("`{self}`") }
    }
}

impl fmt::Display for StatePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                PathPart::Key(key) => write!(f, "/{}", key.replace('~', "~0").replace('/', "~1"))?,
                PathPart::Index(index) => write!(f, "/{index}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for StatePath {
    type Err = DeltaError;

    fn from_str(pointer: &str) -> Result<Self, DeltaError> {
        let invalid = |reason| DeltaError::InvalidPath { path: pointer.to_owned(), reason };
        if pointer.is_empty() {
            return Ok(Self::root());
        }
        let rest = pointer.strip_prefix('/').ok_or_else(|| invalid("a JSON pointer starts with `/`"))?;
        rest.split('/')
            .map(|token| parse_token(token).ok_or_else(|| invalid("`~` must be written `~0`, and `/` in a key `~1`")))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// `None` when a `~` escapes nothing.
fn parse_token(token: &str) -> Option<PathPart> {
    let plain_number = token == "0" || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
    if plain_number && let Ok(index) = token.parse() {
        return Some(PathPart::Index(index));
    }
    let mut key = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(char) = chars.next() {
        key.push(match char {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            char => char,
        });
    }
    Some(PathPart::Key(key))
}

/// Anything a caller may name a place with: a JSON pointer, parts, or a [`StatePath`].
pub trait IntoPath {
    /// The path, or [`DeltaError::InvalidPath`].
    fn into_path(self) -> Result<StatePath, DeltaError>;
}

impl IntoPath for StatePath {
    fn into_path(self) -> Result<StatePath, DeltaError> {
        Ok(self)
    }
}

impl IntoPath for &StatePath {
    fn into_path(self) -> Result<StatePath, DeltaError> {
        Ok(self.clone())
    }
}

/// A JSON pointer.
impl IntoPath for &str {
    fn into_path(self) -> Result<StatePath, DeltaError> {
        self.parse()
    }
}

impl IntoPath for Vec<PathPart> {
    fn into_path(self) -> Result<StatePath, DeltaError> {
        Ok(StatePath(self))
    }
}

impl IntoPath for &[PathPart] {
    fn into_path(self) -> Result<StatePath, DeltaError> {
        Ok(StatePath(self.to_vec()))
    }
}

/// Keys (`["memory", "recent"]`), positions, or [`PathPart`]s.
impl<P: Into<PathPart>, const N: usize> IntoPath for [P; N] {
    fn into_path(self) -> Result<StatePath, DeltaError> {
        Ok(StatePath(self.into_iter().map(Into::into).collect()))
    }
}
