//! A delta as bytes: [`DELTA_VERSION`], the number of steps, the steps.
//!
//! A step is a tree of nodes, so that changes beside each other share the path to them:
//!
//! | first byte | node | then |
//! |---|---|---|
//! | `01` | set | the value (see `value.rs`) |
//! | `02` | remove | |
//! | `03` | fields | varint count, then by ascending key: varint length, UTF-8, node |
//! | `04` | list | varint count, then edits: varint distance from the end of the one before, node or splice; then the items appended: varint count, values |
//! | `05` | append to a string | varint length, UTF-8 |
//! | `06` | splice of a string | varint position, varint deleted bytes, varint length, UTF-8 |
//! | `07` | splice, only in a list | varint deleted items, varint count, values |

use serde_json::Value;

use super::read::{PREALLOCATE_ITEMS, Reader};
use super::value::{write_str, write_value, write_varint};
use super::{Delta, DeltaError, Edit, EditKind, ListEdits, Node};

/// First byte of what [`Delta::encode`] writes.
pub const DELTA_VERSION: u8 = 1;

const SET: u8 = 0x01;
const REMOVE: u8 = 0x02;
const FIELDS: u8 = 0x03;
const LIST: u8 = 0x04;
const APPEND_STR: u8 = 0x05;
const SPLICE_STR: u8 = 0x06;
const SPLICE: u8 = 0x07;

impl Delta {
    /// The delta as bytes. The same delta always gives the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![DELTA_VERSION];
        write_varint(self.steps.len() as u64, &mut out);
        for step in &self.steps {
            write_node(step, &mut out);
        }
        out
    }

    /// Reads what [`Delta::encode`] wrote. Safe on any bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DeltaError> {
        let mut reader = Reader::new(bytes);
        reader.version(DELTA_VERSION)?;
        let count = reader.count()?;
        let mut steps = Vec::with_capacity(count.min(PREALLOCATE_ITEMS));
        for _ in 0..count {
            steps.push(read_node(&mut reader, 0)?);
        }
        reader.end()?;
        Ok(Self { steps })
    }
}

fn write_node(node: &Node, out: &mut Vec<u8>) {
    match node {
        Node::Set(value) => {
            out.push(SET);
            write_value(value, out);
        }
        Node::Remove => out.push(REMOVE),
        Node::Fields(fields) => {
            out.push(FIELDS);
            write_varint(fields.len() as u64, out);
            for (key, node) in fields {
                write_str(key, out);
                write_node(node, out);
            }
        }
        Node::List(list) => {
            out.push(LIST);
            write_list(list, out);
        }
        Node::AppendStr(text) => {
            out.push(APPEND_STR);
            write_str(text, out);
        }
        Node::SpliceStr { at, delete, insert } => {
            out.push(SPLICE_STR);
            write_varint(*at as u64, out);
            write_varint(*delete as u64, out);
            write_str(insert, out);
        }
    }
}

fn write_list(list: &ListEdits, out: &mut Vec<u8>) {
    write_varint(list.edits.len() as u64, out);
    let mut position = 0;
    for edit in &list.edits {
        write_varint((edit.at - position) as u64, out);
        match &edit.kind {
            EditKind::Change(node) => write_node(node, out),
            EditKind::Splice { delete, insert } => {
                out.push(SPLICE);
                write_varint(*delete as u64, out);
                write_values(insert, out);
            }
        }
        position = edit.end();
    }
    write_values(&list.append, out);
}

fn write_values(values: &[Value], out: &mut Vec<u8>) {
    write_varint(values.len() as u64, out);
    for value in values {
        write_value(value, out);
    }
}

/// A node `depth` levels below the root, where a removal makes no sense.
fn read_node(reader: &mut Reader<'_>, depth: usize) -> Result<Node, DeltaError> {
    let tag = reader.byte()?;
    read_tagged(reader, tag, depth)
}

fn read_tagged(reader: &mut Reader<'_>, tag: u8, depth: usize) -> Result<Node, DeltaError> {
    match tag {
        FIELDS => read_fields(reader, depth).map(Node::Fields),
        LIST => read_list(reader, depth).map(Node::List),
        _ => read_leaf(reader, tag, depth),
    }
}

fn read_leaf(reader: &mut Reader<'_>, tag: u8, depth: usize) -> Result<Node, DeltaError> {
    Ok(match tag {
        SET => Node::Set(reader.value(depth)?),
        APPEND_STR => match reader.str()? {
            "" => return Err(reader.malformed("a change that does nothing")),
            text => Node::AppendStr(text.to_owned()),
        },
        SPLICE_STR => {
            let (at, delete) = (reader.position()?, reader.position()?);
            Node::SpliceStr { at, delete, insert: reader.str()?.to_owned() }
        }
        _ => return Err(reader.malformed("not the start of a change")),
    })
}

fn read_fields(reader: &mut Reader<'_>, depth: usize) -> Result<Vec<(String, Node)>, DeltaError> {
    reader.enter(depth)?;
    let count = reader.count()?;
    if count == 0 {
        return Err(reader.malformed("a change that does nothing"));
    }
    let mut fields = Vec::with_capacity(count.min(PREALLOCATE_ITEMS));
    let mut previous = None;
    for _ in 0..count {
        let key = reader.key(previous)?;
        let node = match reader.byte()? {
            REMOVE => Node::Remove,
            tag => read_tagged(reader, tag, depth + 1)?,
        };
        fields.push((key.to_owned(), node));
        previous = Some(key);
    }
    Ok(fields)
}

fn read_list(reader: &mut Reader<'_>, depth: usize) -> Result<ListEdits, DeltaError> {
    reader.enter(depth)?;
    let count = reader.count()?;
    let mut edits = Vec::with_capacity(count.min(PREALLOCATE_ITEMS));
    let mut position = 0;
    for _ in 0..count {
        let edit = Edit { at: read_place(reader, position)?, kind: read_edit(reader, depth)? };
        position = edit.end();
        edits.push(edit);
    }
    let append = reader.values(depth)?;
    if edits.is_empty() && append.is_empty() {
        return Err(reader.malformed("a change that does nothing"));
    }
    Ok(ListEdits { edits, append })
}

/// Where an edit is, given where the one before ended.
fn read_place(reader: &mut Reader<'_>, position: usize) -> Result<usize, DeltaError> {
    let distance = reader.position()?;
    position.checked_add(distance).ok_or_else(|| reader.malformed("a position above this machine's"))
}

fn read_edit(reader: &mut Reader<'_>, depth: usize) -> Result<EditKind, DeltaError> {
    match reader.byte()? {
        SPLICE => read_splice(reader, depth),
        tag => read_tagged(reader, tag, depth + 1).map(EditKind::Change),
    }
}

fn read_splice(reader: &mut Reader<'_>, depth: usize) -> Result<EditKind, DeltaError> {
    let delete = reader.position()?;
    Ok(EditKind::Splice { delete, insert: reader.values(depth)? })
}

impl Edit {
    /// The first old position after the ones it is about.
    fn end(&self) -> usize {
        self.at.saturating_add(match &self.kind {
            EditKind::Change(_) => 1,
            EditKind::Splice { delete, .. } => *delete,
        })
    }
}
