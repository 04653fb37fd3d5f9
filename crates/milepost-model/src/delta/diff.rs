//! Comparing two documents.
//!
//! Near linear in their size. What could take longer (items compared more than once in nested lists) is paid from a
//! budget; when that is used up the rest is replaced whole, which is larger but as right.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::align::{Gap, gaps};
use super::value::{Digest, encoded_len, entries, measure, same_number, write_value};
use super::{Delta, DeltaError, Edit, EditKind, ListEdits, MAX_DEPTH, Node};

/// Work that any comparison may spend, in values looked at: some tens of milliseconds.
const FREE_WORK: usize = 4_000_000;

/// Work per value of the two documents on top of that.
const WORK_PER_VALUE: usize = 8;

/// A tree of changes may be this many bytes larger than the value it leads to: it says more about what changed.
const SLACK_BYTES: usize = 16;

/// Shorter strings are set whole even if only their middle changed.
const SPLICE_STR_MIN_BYTES: usize = 64;

/// Fields of objects above this depth are first looked at for being the same at all.
const LOOK_TWICE_DEPTH: usize = 2;

impl Delta {
    /// The change that leads from one document to the other, exactly.
    ///
    /// Fails only with [`DeltaError::TooDeep`]: where the two differ or are compared, they must not nest too deep.
    pub fn diff(before: &Value, after: &Value) -> Result<Self, DeltaError> {
        let mut differ =
            Differ { work: FREE_WORK, more_work: Some((before, after)), digest: Digest::default(), is_too_deep: false };
        let found = differ.diff(before, after, 0);
        if differ.is_too_deep {
            return Err(DeltaError::TooDeep);
        }
        Ok(Self { steps: found.map(|found| found.node).into_iter().collect() })
    }
}

/// A change and about how many bytes it takes.
struct Found {
    node: Node,
    cost: usize,
}

struct Differ<'a> {
    work: usize,
    /// The documents, until the budget was made to fit their size.
    more_work: Option<(&'a Value, &'a Value)>,
    digest: Digest,
    /// One of the documents is deeper than allowed, where it was looked at.
    is_too_deep: bool,
}

impl Differ<'_> {
    /// Takes from the budget; false when it is used up.
    fn spend(&mut self, work: usize) -> bool {
        if work >= self.work
            && let Some((before, after)) = self.more_work.take()
        {
            let values = measure(before, 0).and_then(|before| Ok(before + measure(after, 0)?));
            self.is_too_deep |= values.is_err();
            self.work += WORK_PER_VALUE * values.unwrap_or(0);
        }
        self.work = self.work.saturating_sub(work);
        self.work > 0
    }

    /// The whole new value, unless it is too deep.
    fn set(&mut self, after: &Value, depth: usize) -> Option<Found> {
        if measure(after, depth).is_err() {
            self.is_too_deep = true;
            return None;
        }
        Some(Found { node: Node::Set(after.clone()), cost: 1 + encoded_len(after, usize::MAX) })
    }

    /// `None` when the two are the same.
    fn diff(&mut self, before: &Value, after: &Value, depth: usize) -> Option<Found> {
        let is_container = before.is_array() || before.is_object();
        if is_container && depth >= MAX_DEPTH {
            self.is_too_deep = true;
        }
        if self.is_too_deep {
            return None;
        }
        if !self.spend(1) {
            return self.set(after, depth);
        }
        let found = match (before, after) {
            (Value::Object(before), Value::Object(after)) => self.diff_objects(before, after, depth)?,
            (Value::Array(before), Value::Array(after)) => self.diff_lists(before, after, depth)?,
            (Value::String(before), Value::String(after)) => return diff_strings(before, after),
            _ if same_scalar(before, after) => return None,
            _ => return self.set(after, depth),
        };
        if self.is_larger(&found, after) { self.set(after, depth) } else { Some(found) }
    }

    /// Whether a tree of changes takes more room than the value it leads to. Asked again on every level above it, so
    /// it is paid for.
    fn is_larger(&mut self, found: &Found, after: &Value) -> bool {
        // Counting stops where the tree is known to be the smaller one.
        self.spend(found.cost / 16) && encoded_len(after, found.cost) + SLACK_BYTES < found.cost
    }

    fn diff_objects(&mut self, before: &Map<String, Value>, after: &Map<String, Value>, depth: usize) -> Option<Found> {
        let mut fields = Vec::new();
        let mut cost = 3;
        let (mut olds, mut news) = (entries(before).peekable(), entries(after).peekable());
        loop {
            let order = match (olds.peek(), news.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((old, _)), Some((new, _))) => old.cmp(new),
            };
            let old = olds.next_if(|_| order.is_le());
            let new = news.next_if(|_| order.is_ge());
            let found = match (old, new) {
                // Most of a state is as it was, and most changes lie near its top: there it pays to look twice.
                (Some((_, old)), Some((_, new))) if depth < LOOK_TWICE_DEPTH && identical(old, new, depth + 1) => None,
                (Some((_, old)), Some((_, new))) => self.diff(old, new, depth + 1),
                (_, Some((_, new))) => self.set(new, depth + 1),
                (_, None) => Some(Found { node: Node::Remove, cost: 1 }),
            };
            if let (Some((key, _)), Some(found)) = (old.or(new), found) {
                cost += 2 + key.len() + found.cost;
                fields.push((key.clone(), found.node));
            }
        }
        if fields.is_empty() { None } else { Some(Found { node: Node::Fields(fields), cost }) }
    }

    fn diff_lists(&mut self, before: &[Value], after: &[Value], depth: usize) -> Option<Found> {
        // Lists are compared, digested and copied in ways that recurse by themselves.
        let items = before.iter().chain(after);
        if items.filter(|item| item.is_array() || item.is_object()).any(|item| measure(item, depth + 1).is_err()) {
            self.is_too_deep = true;
            return None;
        }
        let head = before.iter().zip(after).take_while(|(old, new)| self.same(old, new)).count();
        let (old, new) = (&before[head..], &after[head..]);
        // With as many old as new items the first two would meet again, and they are known to differ.
        let limit = if old.len() == new.len() { old.len().saturating_sub(1) } else { usize::MAX };
        let ends = old.iter().rev().zip(new.iter().rev()).take(limit);
        let tail = ends.take_while(|(old, new)| self.same(old, new)).count();
        let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);

        let mut script = Script { list: ListEdits::default(), cost: 4 };
        for gap in self.align(old, new) {
            let at = head + gap.before.start;
            let is_end = tail == 0 && gap.before.end == old.len();
            self.diff_gap((at, is_end, depth), &old[gap.before], &new[gap.after], &mut script);
        }
        script.finish()
    }

    /// Matches what is left of two lists item by item; one gap when that is pointless or too much work.
    fn align(&mut self, old: &[Value], new: &[Value]) -> Vec<Gap> {
        let whole = || vec![Gap { before: 0..old.len(), after: 0..new.len() }];
        if old.is_empty() || new.is_empty() || (old.len() == 1 && new.len() == 1) {
            return whole();
        }
        match (self.prints(old), self.prints(new)) {
            (Some(old), Some(new)) => gaps(&old, &new),
            _ => whole(),
        }
    }

    fn prints(&mut self, items: &[Value]) -> Option<Vec<[u8; 32]>> {
        let print = |item| {
            write_value(item, &mut self.digest);
            let (print, bytes) = self.digest.finish();
            self.spend(8 + bytes / 16).then_some(print)
        };
        items.iter().map(print).collect()
    }

    /// Items between matches: as many old as new ones are the same items, changed; else only those that look it.
    fn diff_gap(&mut self, place: (usize, bool, usize), old: &[Value], new: &[Value], script: &mut Script) {
        let (at, is_end, depth) = place;
        let mut paired = 0;
        for (old_item, new_item) in old.iter().zip(new) {
            let found = self.diff(old_item, new_item, depth + 1);
            if old.len() != new.len() && !found.as_ref().is_none_or(|found| is_small_change(found, new_item)) {
                break;
            }
            if let Some(found) = found {
                script.change(at + paired, found);
            }
            paired += 1;
        }
        script.replace(at + paired, is_end, old.len() - paired, &new[paired..]);
    }

    /// Exact equality; false, too, when the work for it is used up.
    fn same(&mut self, a: &Value, b: &Value) -> bool {
        if !self.spend(1) {
            return false;
        }
        match (a, b) {
            (Value::String(a), Value::String(b)) => a.len() == b.len() && self.spend(a.len() / 64) && a == b,
            (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.same(a, b)),
            (Value::Object(a), Value::Object(b)) => a.len() == b.len() && self.same_fields(a, b),
            _ => same_scalar(a, b),
        }
    }

    /// Of objects with as many keys: walks them side by side, and looks a key up only where their order differs.
    fn same_fields(&mut self, a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
        a.iter().zip(b).all(|((key, a), (other, beside))| {
            let b = if key == other { Some(beside) } else { b.get(key) };
            b.is_some_and(|b| self.same(a, b))
        })
    }
}

/// The changes to a list as they are found, in order.
struct Script {
    list: ListEdits,
    cost: usize,
}

impl Script {
    fn change(&mut self, at: usize, found: Found) {
        self.cost += 2 + found.cost;
        self.list.edits.push(Edit { at, kind: EditKind::Change(found.node) });
    }

    fn replace(&mut self, at: usize, is_end: bool, delete: usize, insert: &[Value]) {
        if delete == 0 && insert.is_empty() {
            return;
        }
        self.cost += insert.iter().map(|item| encoded_len(item, usize::MAX)).sum::<usize>();
        if delete == 0 && is_end {
            self.list.append = insert.to_vec();
        } else {
            self.cost += 5;
            self.list.edits.push(Edit { at, kind: EditKind::Splice { delete, insert: insert.to_vec() } });
        }
    }

    fn finish(self) -> Option<Found> {
        let is_empty = self.list.edits.is_empty() && self.list.append.is_empty();
        if is_empty { None } else { Some(Found { node: Node::List(self.list), cost: self.cost }) }
    }
}

/// Whether most of the new item was there before: then it is the old one, changed.
fn is_small_change(found: &Found, new: &Value) -> bool {
    !matches!(found.node, Node::Set(_)) && encoded_len(new, 2 * found.cost) >= 2 * found.cost
}

/// Whether two values are the same, as fast as that can be told. Says no, too, to what is too deep, or in another order.
fn identical(a: &Value, b: &Value, depth: usize) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && depth < MAX_DEPTH && a.iter().zip(b).all(|(a, b)| identical(a, b, depth + 1))
        }
        (Value::Object(a), Value::Object(b)) => {
            let mut pairs = a.iter().zip(b);
            a.len() == b.len()
                && depth < MAX_DEPTH
                && pairs.all(|((key, a), (other, b))| key == other && identical(a, b, depth + 1))
        }
        _ => same_scalar(a, b),
    }
}

fn same_scalar(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Number(a), Value::Number(b)) => same_number(a, b),
        (Value::String(a), Value::String(b)) => a == b,
        _ => false,
    }
}

/// One changed stretch of a string: an append, a splice when it pays, or the whole.
fn diff_strings(before: &str, after: &str) -> Option<Found> {
    if before == after {
        return None;
    }
    let whole = after.len() + 3;
    let head = common_prefix(before, after);
    let (old, new) = (&before[head..], &after[head..]);
    if old.is_empty() && new.len() + 2 < whole - 2 {
        return Some(Found { node: Node::AppendStr(new.to_owned()), cost: new.len() + 2 });
    }
    let tail = common_suffix(old, new);
    let (delete, insert) = (old.len() - tail, &new[..new.len() - tail]);
    let cost = insert.len() + 7;
    if before.len().max(after.len()) >= SPLICE_STR_MIN_BYTES && 2 * cost < whole {
        return Some(Found { node: Node::SpliceStr { at: head, delete, insert: insert.to_owned() }, cost });
    }
    Some(Found { node: Node::Set(after.into()), cost: whole })
}

/// Length of what both start with, in whole characters.
fn common_prefix(a: &str, b: &str) -> usize {
    let bytes = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=bytes).rev().find(|&len| a.is_char_boundary(len) && b.is_char_boundary(len)).unwrap_or(0)
}

/// Length of what both end with, in whole characters.
fn common_suffix(a: &str, b: &str) -> usize {
    let bytes = a.bytes().rev().zip(b.bytes().rev()).take_while(|(a, b)| a == b).count();
    let is_boundary = |len: usize| a.is_char_boundary(a.len() - len) && b.is_char_boundary(b.len() - len);
    (0..=bytes).rev().find(|&len| is_boundary(len)).unwrap_or(0)
}
