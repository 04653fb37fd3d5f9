//! The tree of files, as a text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ignore::WalkBuilder;
use serde::{Deserialize, Serialize};

use super::ContextLimits;

/// The tree of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Structure {
    /// A line for each entry, indented by its depth; directories end in `/`, links in `@`.
    pub text: String,
    /// Whether something was left out because of a limit. The text says where.
    pub truncated: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Directory,
    File,
    Link,
}

/// Reads the tree. What `.gitignore` names is left out, and so are hidden files; links are not followed.
pub(super) fn read(dir: &Path, limits: &ContextLimits) -> Structure {
    let mut walk = WalkBuilder::new(dir);
    walk.follow_links(false).max_depth(Some(limits.max_depth)).require_git(false).git_global(false).ignore(false);
    let mut children: BTreeMap<PathBuf, BTreeMap<String, Kind>> = BTreeMap::new();
    let mut visited = 0;
    for entry in walk.build().flatten().filter(|entry| entry.depth() > 0) {
        visited += 1;
        if visited > limits.max_visited {
            break;
        }
        let Some(parent) = entry.path().parent() else { continue };
        let kind = match entry.file_type() {
            Some(kind) if kind.is_dir() => Kind::Directory,
            Some(kind) if kind.is_symlink() => Kind::Link,
            _ => Kind::File,
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        children.entry(parent.to_owned()).or_default().insert(name, kind);
    }
    let mut tree = Tree { children, limits, lines: Vec::new(), truncated: visited > limits.max_visited };
    if tree.truncated {
        tree.lines.push(format!("… (only {} entries were looked at: max_visited)", limits.max_visited));
    }
    tree.add(dir, 0);
    let mut text = tree.lines.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    Structure { text, truncated: tree.truncated }
}

struct Tree<'a> {
    children: BTreeMap<PathBuf, BTreeMap<String, Kind>>,
    limits: &'a ContextLimits,
    lines: Vec<String>,
    truncated: bool,
}

impl Tree<'_> {
    /// Adds what lies in a directory. It goes no deeper than the limit of the walk.
    fn add(&mut self, dir: &Path, depth: usize) {
        let Some(entries) = self.children.remove(dir) else { return };
        let count = entries.len();
        for (shown, (name, kind)) in entries.into_iter().enumerate() {
            let indent = "  ".repeat(depth);
            let is_full = self.lines.len() >= self.limits.max_entries;
            if is_full || shown >= self.limits.max_entries_per_directory {
                self.truncated = true;
                self.lines.push(format!("{indent}… ({} more)", count - shown));
                return;
            }
            // A name may hold line breaks made to look like other lines.
            let plain: String = name
                .chars()
                .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
                .collect();
            match kind {
                Kind::Directory => {
                    self.lines.push(format!("{indent}{plain}/"));
                    self.add(&dir.join(&name), depth + 1);
                }
                Kind::File => self.lines.push(format!("{indent}{plain}")),
                Kind::Link => self.lines.push(format!("{indent}{plain}@")),
            }
        }
    }
}
