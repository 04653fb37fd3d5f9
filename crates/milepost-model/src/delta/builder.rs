//! Deltas by hand, for a caller that knows what it changed and need not compare.

use serde_json::Value;

use super::path::{IntoPath, PathPart, StatePath};
use super::value::{discard, measure};
use super::{Delta, DeltaError, Edit, EditKind, ListEdits, MAX_DEPTH, Node};

/// Collects changes in the order they are made; each sees the ones before it.
///
/// A mistake in a path is reported by [`DeltaBuilder::build`]. A change that does nothing (no items appended) is left out.
///
/// ```
/// use milepost_model::delta::Delta;
/// use serde_json::json;
///
/// let delta = Delta::builder()
///     .set("/agent/status", "running")
///     .append("/memory/recent", ["src/lib.rs"])
///     .remove("/agent/blocked_by")
///     .build()?;
///
/// let mut state = json!({"agent": {"blocked_by": "ci"}, "memory": {"recent": []}});
/// delta.apply(&mut state)?;
/// assert_eq!(state, json!({"agent": {"status": "running"}, "memory": {"recent": ["src/lib.rs"]}}));
/// # Ok::<(), milepost_model::delta::DeltaError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct DeltaBuilder {
    delta: Delta,
    error: Option<DeltaError>,
}

impl Delta {
    /// Starts an empty delta.
    pub fn builder() -> DeltaBuilder {
        DeltaBuilder::default()
    }
}

impl DeltaBuilder {
    /// Sets a value. Objects on the way that do not exist are created; a position equal to a list's length appends.
    pub fn set(self, path: impl IntoPath, value: impl Into<Value>) -> Self {
        let value = value.into();
        self.push(path, |path| {
            let value = fitting(value, path.parts().len())?;
            Ok((path, Node::Set(value)))
        })
    }

    /// Removes an object's key or a list's item, which must exist.
    pub fn remove(self, path: impl IntoPath) -> Self {
        self.push(path, |path| match path.clone().split_last() {
            None => Err(DeltaError::InvalidPath {
                path: String::new(),
                reason: "the root cannot be removed, set it to null",
            }),
            Some((_, PathPart::Key(_))) => Ok((path, Node::Remove)),
            Some((list, PathPart::Index(at))) => Ok((list, splice(at, 1, Vec::new()))),
        })
    }

    /// Adds items at the end of a list.
    pub fn append<V: Into<Value>>(self, path: impl IntoPath, items: impl IntoIterator<Item = V>) -> Self {
        let append: Vec<Value> = items.into_iter().map(Into::into).collect();
        if append.is_empty() {
            return self.check(path);
        }
        self.push(path, |path| {
            let append = all_fitting(append, path.parts().len() + 1)?;
            Ok((path, Node::List(ListEdits { edits: Vec::new(), append })))
        })
    }

    /// Replaces `delete` items at position `at` of a list.
    pub fn splice<V: Into<Value>>(
        self,
        path: impl IntoPath,
        at: usize,
        delete: usize,
        insert: impl IntoIterator<Item = V>,
    ) -> Self {
        let insert: Vec<Value> = insert.into_iter().map(Into::into).collect();
        if delete == 0 && insert.is_empty() {
            return self.check(path);
        }
        self.push(path, |path| {
            let insert = all_fitting(insert, path.parts().len() + 1)?;
            Ok((path, splice(at, delete, insert)))
        })
    }

    /// Adds text at the end of a string.
    pub fn append_str(self, path: impl IntoPath, text: &str) -> Self {
        if text.is_empty() {
            return self.check(path);
        }
        self.push(path, |path| Ok((path, Node::AppendStr(text.to_owned()))))
    }

    /// Replaces `delete` bytes at byte `at` of a string; both ends must lie between characters.
    pub fn splice_str(self, path: impl IntoPath, at: usize, delete: usize, insert: &str) -> Self {
        if delete == 0 && insert.is_empty() {
            return self.check(path);
        }
        self.push(path, |path| Ok((path, Node::SpliceStr { at, delete, insert: insert.to_owned() })))
    }

    /// The delta, or the first mistake.
    pub fn build(self) -> Result<Delta, DeltaError> {
        match self.error {
            None => Ok(self.delta),
            Some(error) => Err(error),
        }
    }

    fn check(mut self, path: impl IntoPath) -> Self {
        if let Err(error) = path.into_path() {
            self.error.get_or_insert(error);
        }
        self
    }

    fn push(
        mut self,
        path: impl IntoPath,
        change: impl FnOnce(StatePath) -> Result<(StatePath, Node), DeltaError>,
    ) -> Self {
        match path.into_path().and_then(check_length).and_then(change) {
            Ok((path, node)) => self.add(path.parts(), node),
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
        self
    }

    fn add(&mut self, path: &[PathPart], node: Node) {
        let node = match self.delta.steps.last_mut() {
            Some(step) => merge(step, path, node),
            None => Some(node),
        };
        if let Some(node) = node {
            self.delta.steps.push(wrap(path, node));
        }
    }
}

fn splice(at: usize, delete: usize, insert: Vec<Value>) -> Node {
    let kind = EditKind::Splice { delete, insert };
    Node::List(ListEdits { edits: vec![Edit { at, kind }], append: Vec::new() })
}

fn check_length(path: StatePath) -> Result<StatePath, DeltaError> {
    // A list's items and a string's text sit one below the path.
    if path.parts().len() < MAX_DEPTH { Ok(path) } else { Err(DeltaError::TooDeep) }
}

/// The value, if a document may hold it `depth` levels down.
fn fitting(value: Value, depth: usize) -> Result<Value, DeltaError> {
    match measure(&value, depth) {
        Ok(_) => Ok(value),
        Err(error) => {
            discard(value);
            Err(error)
        }
    }
}

fn all_fitting(items: Vec<Value>, depth: usize) -> Result<Vec<Value>, DeltaError> {
    match items.iter().try_for_each(|item| measure(item, depth).map(|_| ())) {
        Ok(()) => Ok(items),
        Err(error) => {
            items.into_iter().for_each(discard);
            Err(error)
        }
    }
}

/// The tree that makes one change at a path.
fn wrap(path: &[PathPart], node: Node) -> Node {
    path.iter().rev().fold(node, |node, part| match part {
        PathPart::Key(key) => Node::Fields(vec![(key.clone(), node)]),
        PathPart::Index(at) => {
            let edit = Edit { at: *at, kind: EditKind::Change(node) };
            Node::List(ListEdits { edits: vec![edit], append: Vec::new() })
        }
    })
}

/// Puts a change into an existing tree if doing both at once is the same as one after the other; gives it back if not.
fn merge(tree: &mut Node, path: &[PathPart], node: Node) -> Option<Node> {
    match (tree, path) {
        (Node::Fields(fields), [PathPart::Key(key), rest @ ..]) => {
            match fields.binary_search_by(|(field, _)| field.as_str().cmp(key)) {
                Ok(found) => return fields.get_mut(found).and_then(|(_, field)| merge(field, rest, node)),
                Err(place) => fields.insert(place, (key.clone(), wrap(rest, node))),
            }
        }
        (Node::List(list), [PathPart::Index(at), rest @ ..]) if list.append.is_empty() => {
            match list.edits.last_mut() {
                Some(Edit { at: last, kind: EditKind::Change(item) }) if *last == *at => {
                    return merge(item, rest, node);
                }
                Some(Edit { at: last, kind: EditKind::Change(_) }) if *last < *at => {}
                _ => return Some(node),
            }
            list.edits.push(Edit { at: *at, kind: EditKind::Change(wrap(rest, node)) });
        }
        (tree, []) => return merge_here(tree, node),
        _ => return Some(node),
    }
    None
}

/// Merges two changes of the same value.
fn merge_here(tree: &mut Node, node: Node) -> Option<Node> {
    match (tree, node) {
        (Node::Set(old), Node::Set(new)) => *old = new,
        (Node::AppendStr(text), Node::AppendStr(more)) => text.push_str(&more),
        (Node::List(list), Node::List(more)) if more.edits.is_empty() => list.append.extend(more.append),
        (_, node) => return Some(node),
    }
    None
}
