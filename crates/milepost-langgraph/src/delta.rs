//! How one value becomes the next, byte by byte: copies out of the old one, and what is new.

use std::collections::HashMap;

use milepost_store::Error;

use crate::bytes::{In, Out, damaged};

/// Pieces shorter than this are not looked for.
const BLOCK: usize = 16;

/// What must be done to the old bytes to get the new ones.
pub(crate) fn diff(old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut out = Out::default();
    out.number(new.len() as u64);
    let front = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let longest = old.len().min(new.len()) - front;
    let back = old.iter().rev().zip(new.iter().rev()).take(longest).take_while(|(a, b)| a == b).count();
    copy(&mut out, 0, front);
    let (old_end, new_end) = (old.len() - back, new.len() - back);
    middle(&mut out, old, front..old_end, &new[front..new_end]);
    copy(&mut out, old_end, back);
    out.0
}

fn copy(out: &mut Out, from: usize, length: usize) {
    if length > 0 {
        out.number((length as u64) << 1);
        out.number(from as u64);
    }
}

fn insert(out: &mut Out, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.number((bytes.len() as u64) << 1 | 1);
        out.0.extend_from_slice(bytes);
    }
}

/// The part between what both begin and end with: several places may have changed.
fn middle(out: &mut Out, old: &[u8], range: std::ops::Range<usize>, new: &[u8]) {
    if range.len() < BLOCK || new.len() < 2 * BLOCK {
        return insert(out, new);
    }
    let mut known: HashMap<&[u8], usize> = HashMap::with_capacity(range.len() / BLOCK);
    let mut at = range.start;
    while at + BLOCK <= range.end {
        known.entry(&old[at..at + BLOCK]).or_insert(at);
        at += BLOCK;
    }
    let (mut at, mut begun) = (0, 0);
    while at + BLOCK <= new.len() {
        let Some(&found) = known.get(&new[at..at + BLOCK]) else {
            at += 1;
            continue;
        };
        let before = old[..found].iter().rev().zip(new[begun..at].iter().rev()).take_while(|(a, b)| a == b).count();
        let length = old[found..].iter().zip(&new[at..]).take_while(|(a, b)| a == b).count();
        insert(out, &new[begun..at - before]);
        copy(out, found - before, length + before);
        at += length;
        begun = at;
    }
    insert(out, &new[begun..]);
}

/// Does what [`diff`] said.
pub(crate) fn apply(old: &[u8], delta: &[u8]) -> Result<Vec<u8>, Error> {
    let bad = || damaged("a change of a value");
    let mut delta = In(delta);
    let length = usize::try_from(delta.number()?).ok().filter(|length| *length <= 1 << 30).ok_or_else(bad)?;
    let mut new = Vec::with_capacity(length.min(old.len() + delta.0.len()));
    while !delta.0.is_empty() {
        let head = delta.number()?;
        let count = usize::try_from(head >> 1).map_err(|_| bad())?;
        let piece = if head & 1 == 1 {
            let (piece, rest) = delta.0.split_at_checked(count).ok_or_else(bad)?;
            delta.0 = rest;
            piece
        } else {
            let from = usize::try_from(delta.number()?).map_err(|_| bad())?;
            old.get(from..from.checked_add(count).ok_or_else(bad)?).ok_or_else(bad)?
        };
        new.extend_from_slice(piece);
        if new.len() > length {
            return Err(bad());
        }
    }
    if new.len() == length { Ok(new) } else { Err(bad()) }
}
