//! Applying a delta: all of it, or nothing.
//!
//! Every change returns the change that undoes it, with the old values moved into it rather than copied. When a later
//! change does not fit, what was done is undone with those.

use std::mem;

use serde_json::{Map, Value};

use super::value::{discard, type_name};
use super::{Delta, DeltaError, Edit, EditKind, ListEdits, Misfit, Node};

impl Delta {
    /// Applies the delta. On an error the document is as it was.
    ///
    /// Costs what the delta touches, not what the document holds, except that two or more splices of one list cost its length.
    pub fn apply(&self, document: &mut Value) -> Result<(), DeltaError> {
        self.clone().apply_once(document)
    }

    /// As [`Delta::apply`], for a delta that is not needed any more: its values are moved, not copied.
    pub fn apply_once(self, document: &mut Value) -> Result<(), DeltaError> {
        let mut done = Vec::with_capacity(self.steps.len());
        for step in self.steps {
            match apply_node(step, document) {
                Ok(undo) => done.push(undo),
                Err(error) => {
                    for undo in done.into_iter().rev() {
                        revert(undo, document);
                    }
                    return Err(error);
                }
            }
        }
        done.into_iter().for_each(discard_node);
        Ok(())
    }
}

/// Applies a change and returns the one that undoes it. On an error nothing is changed.
fn apply_node(node: Node, slot: &mut Value) -> Result<Node, DeltaError> {
    match node {
        Node::Set(value) => Ok(Node::Set(mem::replace(slot, value))),
        Node::Remove => Err(DeltaError::here(Misfit::Missing)),
        Node::Fields(fields) => match slot {
            Value::Object(map) => apply_fields(fields, map),
            other => Err(wrong_type("an object", other)),
        },
        Node::List(list) => match slot {
            Value::Array(items) => apply_list(list, items),
            other => Err(wrong_type("a list", other)),
        },
        Node::AppendStr(more) => match slot {
            Value::String(text) => {
                let undo = Node::SpliceStr { at: text.len(), delete: more.len(), insert: String::new() };
                text.push_str(&more);
                Ok(undo)
            }
            other => Err(wrong_type("a string", other)),
        },
        Node::SpliceStr { at, delete, insert } => match slot {
            Value::String(text) => splice_str(text, at, delete, &insert),
            other => Err(wrong_type("a string", other)),
        },
    }
}

/// Applies an undo. It fits by construction, so there is no error to report.
fn revert(undo: Node, slot: &mut Value) {
    let undone = apply_node(undo, slot);
    debug_assert!(undone.is_ok(), "an undo did not fit: {undone:?}");
}

fn wrong_type(expected: &'static str, found: &Value) -> DeltaError {
    DeltaError::here(Misfit::WrongType { expected, found: type_name(found) })
}

fn out_of_range(at: usize, len: usize) -> DeltaError {
    DeltaError::here(Misfit::OutOfRange { at, len })
}

fn splice_str(text: &mut String, at: usize, delete: usize, insert: &str) -> Result<Node, DeltaError> {
    let end = at.saturating_add(delete);
    let Some(removed) = text.get(at..end).map(str::to_owned) else {
        return Err(out_of_range(if text.is_char_boundary(at) { end } else { at }, text.len()));
    };
    text.replace_range(at..end, insert);
    Ok(Node::SpliceStr { at, delete: insert.len(), insert: removed })
}

fn apply_fields(fields: Vec<(String, Node)>, map: &mut Map<String, Value>) -> Result<Node, DeltaError> {
    let mut done = Vec::with_capacity(fields.len());
    for (key, node) in fields {
        match apply_field(&key, node, map) {
            Ok(undo) => done.push((key, undo)),
            Err(error) => {
                for (key, undo) in done {
                    let undone = apply_field(&key, undo, map);
                    debug_assert!(undone.is_ok(), "an undo did not fit: {undone:?}");
                }
                return Err(error.inside(key.into()));
            }
        }
    }
    Ok(Node::Fields(done))
}

fn apply_field(key: &str, node: Node, map: &mut Map<String, Value>) -> Result<Node, DeltaError> {
    if let Node::Remove = node {
        return map.remove(key).map(Node::Set).ok_or_else(|| DeltaError::here(Misfit::Missing));
    }
    match map.get_mut(key) {
        Some(value) => apply_node(node, value),
        None => {
            map.insert(key.to_owned(), create(node)?);
            Ok(Node::Remove)
        }
    }
}

/// The value that a change makes where nothing was.
fn create(node: Node) -> Result<Value, DeltaError> {
    match node {
        Node::Set(value) => Ok(value),
        Node::Fields(fields) => fields
            .into_iter()
            .map(|(key, node)| match create(node) {
                Ok(value) => Ok((key, value)),
                Err(error) => Err(error.inside(key.into())),
            })
            .collect::<Result<_, _>>()
            .map(Value::Object),
        Node::Remove | Node::List(_) | Node::AppendStr(_) | Node::SpliceStr { .. } => {
            Err(DeltaError::here(Misfit::Missing))
        }
    }
}

/// In place changes first, while positions are still the old ones; then splices, all at once; then the new end.
fn apply_list(list: ListEdits, items: &mut Vec<Value>) -> Result<Node, DeltaError> {
    let len = items.len();
    check_splices(&list, len)?;

    let mut done: Vec<Edit> = Vec::with_capacity(list.edits.len() + 1);
    let mut splices = Vec::new();
    for Edit { at, kind } in list.edits {
        match kind {
            EditKind::Splice { delete, insert } => {
                done.push(Edit { at, kind: EditKind::Splice { delete: insert.len(), insert: Vec::new() } });
                splices.push(Splice { at, delete, insert });
            }
            EditKind::Change(node) => match apply_item(at, node, items) {
                Ok(Some(undo)) => done.push(Edit { at, kind: EditKind::Change(undo) }),
                Ok(None) => {}
                Err(error) => {
                    items.truncate(len);
                    revert_items(done, items);
                    return Err(error.inside(at.into()));
                }
            },
        }
    }
    let created = items.len() - len;
    finish_undo(&mut done, splice_all(items, splices));
    let grown_from = items.len() - created;
    items.extend(list.append);
    if items.len() > grown_from {
        let kind = EditKind::Splice { delete: items.len() - grown_from, insert: Vec::new() };
        done.push(Edit { at: grown_from, kind });
    }
    Ok(Node::List(ListEdits { edits: done, append: Vec::new() }))
}

fn check_splices(list: &ListEdits, len: usize) -> Result<(), DeltaError> {
    for edit in &list.edits {
        if let EditKind::Splice { delete, .. } = edit.kind {
            let end = edit.at.saturating_add(delete);
            if end > len {
                return Err(out_of_range(end, len));
            }
        }
    }
    Ok(())
}

/// Changes an item; `None` when that added it at the end.
fn apply_item(at: usize, node: Node, items: &mut Vec<Value>) -> Result<Option<Node>, DeltaError> {
    let len = items.len();
    match items.get_mut(at) {
        Some(item) => apply_node(node, item).map(Some),
        None if at == len => {
            items.push(create(node)?);
            Ok(None)
        }
        None => Err(out_of_range(at, len)),
    }
}

/// Undoes in place changes of a list in which nothing was spliced yet.
fn revert_items(done: Vec<Edit>, items: &mut [Value]) {
    for Edit { at, kind } in done {
        if let (EditKind::Change(undo), Some(item)) = (kind, items.get_mut(at)) {
            revert(undo, item);
        }
    }
}

/// Gives the removed items to the undos of their splices, and moves all undos to where their items are now.
fn finish_undo(done: &mut [Edit], removed: Vec<Vec<Value>>) {
    let mut removed = removed.into_iter();
    let (mut added, mut gone) = (0, 0);
    for edit in done {
        edit.at = edit.at + added - gone;
        if let EditKind::Splice { delete, insert } = &mut edit.kind {
            *insert = removed.next().unwrap_or_default();
            added += *delete;
            gone += insert.len();
        }
    }
}

/// Items of a list to be replaced by others.
pub(crate) struct Splice<T> {
    pub(crate) at: usize,
    pub(crate) delete: usize,
    pub(crate) insert: Vec<T>,
}

/// Does all splices, which ascend, do not overlap and lie inside the list; returns what each removed. One is done in
/// place; more rebuild the list once, as moving its tail for each could take quadratic time.
pub(crate) fn splice_all<T>(items: &mut Vec<T>, mut splices: Vec<Splice<T>>) -> Vec<Vec<T>> {
    if splices.len() <= 1 {
        let one = splices.pop().into_iter();
        return one.map(|splice| items.splice(splice.at..splice.at + splice.delete, splice.insert).collect()).collect();
    }
    let mut rest = mem::take(items).into_iter();
    let mut position = 0;
    let mut removed = Vec::with_capacity(splices.len());
    for splice in splices {
        items.extend(rest.by_ref().take(splice.at.saturating_sub(position)));
        removed.push(rest.by_ref().take(splice.delete).collect());
        items.extend(splice.insert);
        position = splice.at + splice.delete;
    }
    items.extend(rest);
    removed
}

/// Drops the old values of an undo, however deep they are.
fn discard_node(node: Node) {
    match node {
        Node::Set(value) => discard(value),
        Node::Fields(fields) => fields.into_iter().for_each(|(_, node)| discard_node(node)),
        Node::List(list) => {
            for edit in list.edits {
                match edit.kind {
                    EditKind::Change(node) => discard_node(node),
                    EditKind::Splice { insert, .. } => insert.into_iter().for_each(discard),
                }
            }
        }
        Node::Remove | Node::AppendStr(_) | Node::SpliceStr { .. } => {}
    }
}
