//! How one value becomes the next, byte by byte: copies out of the old one and of what was written for it, and what is new.

use std::collections::HashMap;

use milepost_store::Error;

use crate::bytes::{In, Out, damaged};

/// Pieces shorter than this are not looked for.
const BLOCK: usize = 16;

/// What must be done to the old bytes to get the new ones. `beside` are bytes that whoever applies it has, too; whether they
/// were used is told.
pub(crate) fn diff(old: &[u8], beside: &[u8], new: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Out::default();
    out.number(new.len() as u64);
    let front = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let longest = old.len().min(new.len()) - front;
    let back = old.iter().rev().zip(new.iter().rev()).take(longest).take_while(|(a, b)| a == b).count();
    copy(&mut out, 0, front);
    let (old_end, new_end) = (old.len() - back, new.len() - back);
    let used = middle(&mut out, old, front..old_end, beside, &new[front..new_end]);
    copy(&mut out, old_end, back);
    (out.0, used)
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
fn middle(out: &mut Out, old: &[u8], range: std::ops::Range<usize>, beside: &[u8], new: &[u8]) -> bool {
    if new.len() < 2 * BLOCK || range.len() + beside.len() < BLOCK {
        insert(out, new);
        return false;
    }
    let mut known: HashMap<&[u8], (usize, bool)> = HashMap::with_capacity((range.len() + beside.len()) / BLOCK);
    for (at, block) in beside.chunks_exact(BLOCK).enumerate() {
        known.entry(block).or_insert((at * BLOCK, true));
    }
    for (at, block) in old[range.clone()].chunks_exact(BLOCK).enumerate() {
        known.entry(block).or_insert((range.start + at * BLOCK, false));
    }
    let (mut at, mut begun, mut used) = (0, 0, false);
    while at + BLOCK <= new.len() {
        let Some(&(found, is_beside)) = known.get(&new[at..at + BLOCK]) else {
            at += 1;
            continue;
        };
        let (from, offset) = if is_beside { (beside, old.len()) } else { (old, 0) };
        let before = from[..found].iter().rev().zip(new[begun..at].iter().rev()).take_while(|(a, b)| a == b).count();
        let length = from[found..].iter().zip(&new[at..]).take_while(|(a, b)| a == b).count();
        insert(out, &new[begun..at - before]);
        copy(out, offset + found - before, length + before);
        used |= is_beside;
        at += length;
        begun = at;
    }
    insert(out, &new[begun..]);
    used
}

/// Does what [`diff`] said.
pub(crate) fn apply(old: &[u8], beside: &[u8], delta: &[u8]) -> Result<Vec<u8>, Error> {
    let bad = || damaged("a change of a value");
    let mut delta = In(delta);
    let length = usize::try_from(delta.number()?).ok().filter(|length| *length <= 1 << 30).ok_or_else(bad)?;
    let mut new = Vec::with_capacity(length.min(old.len() + beside.len() + delta.0.len()));
    while !delta.0.is_empty() {
        let head = delta.number()?;
        let count = usize::try_from(head >> 1).map_err(|_| bad())?;
        let piece = if head & 1 == 1 {
            let (piece, rest) = delta.0.split_at_checked(count).ok_or_else(bad)?;
            delta.0 = rest;
            piece
        } else {
            let from = usize::try_from(delta.number()?).map_err(|_| bad())?;
            let (place, from) = match from.checked_sub(old.len()) {
                Some(from) => (beside, from),
                None => (old, from),
            };
            place.get(from..from.checked_add(count).ok_or_else(bad)?).ok_or_else(bad)?
        };
        new.extend_from_slice(piece);
        if new.len() > length {
            return Err(bad());
        }
    }
    if new.len() == length { Ok(new) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::{apply, diff};

    proptest::proptest! {
        #[test]
        fn a_change_that_is_applied_gives_the_new_value(
            old in proptest::collection::vec(0u8..4, 0..200),
            beside in proptest::collection::vec(0u8..4, 0..100),
            new in proptest::collection::vec(0u8..4, 0..200),
            keep in 0usize..200,
        ) {
            let mixed = [&old[..keep.min(old.len())], &beside, &new].concat();
            for new in [&new, &mixed] {
                let (delta, _) = diff(&old, &beside, new);
                proptest::prop_assert_eq!(&apply(&old, &beside, &delta).unwrap(), new);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_applied(
            old in proptest::collection::vec(0u8..=255, 0..50),
            delta in proptest::collection::vec(0u8..=255, 0..50),
        ) {
            drop(apply(&old, &old, &delta));
        }
    }
}
