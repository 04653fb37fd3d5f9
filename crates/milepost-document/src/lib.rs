//! YAML and TOML texts as trees in which every value knows its line and column.
//!
//! [`read`] turns a text into a [`Node`]; plain values stay texts, because what they mean is decided by what they are
//! for (`workspace: no` is a workspace called "no"). Whatever is wrong becomes a [`Diagnostic`]: where, what, and what
//! to do. Size, depth and the copies that aliases make are limited. Whoever reads settings, graphs or scripts builds on
//! this, so that mistakes are told in one way everywhere. JSON is read as the YAML that it is.
//!
//! ```
//! use milepost_document::{Format, Limit, Limits, read};
//!
//! let limit = |name, at| Limit { name, at };
//! let limits = Limits { bytes: limit("BYTES", 1000), depth: limit("DEPTH", 8), values: limit("VALUES", 100) };
//! let mut found = Vec::new();
//! let tree = read("graph.yaml".as_ref(), "name: tour\nlimit: 3\n", Format::Yaml, &limits, &mut found).unwrap();
//! assert_eq!(tree.to_json(), serde_json::json!({"name": "tour", "limit": 3}));
//! assert_eq!(tree.get("limit").unwrap().origin.to_string(), "graph.yaml:2:8");
//! ```

mod limits;
mod node;
mod origin;
mod reader;
mod suggest;
mod toml;
mod yaml;

use std::path::Path;
use std::sync::Arc;

pub use limits::{Limit, Limits};
pub use node::{Data, Inside, Node};
pub use origin::{Diagnostic, Origin, Severity};
pub use reader::{Reader, parse_duration_ms, show_duration};
pub use suggest::{nearest, show};

/// In which language a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2, and so JSON.
    Yaml,
    /// TOML 1.1.
    Toml,
}

impl Format {
    /// By a file's name: TOML when it ends so, else YAML.
    pub fn of(path: &Path) -> Self {
        match path.extension().is_some_and(|end| end.eq_ignore_ascii_case("toml")) {
            true => Format::Toml,
            false => Format::Yaml,
        }
    }
}

/// Reads a text. What is wrong is added to `found`; when the text does not parse or passes a limit there is no tree.
/// `path` only names the text in what is found.
pub fn read(path: &Path, text: &str, format: Format, limits: &Limits, found: &mut Vec<Diagnostic>) -> Option<Node> {
    let path: Arc<Path> = path.into();
    if text.len() > limits.bytes.at {
        let whole = Origin::File { path, line: 0, column: 0 };
        let why = format!("it has {} bytes, the limit {} is {}", text.len(), limits.bytes.name, limits.bytes.at);
        found.push(Diagnostic::error(&whole, "", why, "keep long texts in files of their own, and name those"));
        return None;
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match format {
        Format::Yaml => yaml::parse(path, text, limits, found),
        Format::Toml => toml::parse(path, text, limits, found),
    }
}
