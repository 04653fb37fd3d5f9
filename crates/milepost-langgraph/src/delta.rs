//! How one value becomes the next, byte by byte: copies out of the old one and of what was written for it, and what is new.

use milepost_store::Error;

use crate::bytes::{In, Out, damaged};

/// Pieces shorter than this are not looked for.
const BLOCK: usize = 16;

/// Where pieces are, by a hash that costs little: whoever chooses the bytes can make a change larger, and pays for it. Of
/// several with the same hash the first is there.
struct Places {
    /// Places, one more each: nothing is there where it is 0.
    all: Vec<u32>,
    shift: u32,
}

impl Places {
    fn of(bytes: usize) -> Self {
        // At least twice as many as there are pieces.
        let bits = (bytes / BLOCK * 2).next_power_of_two().trailing_zeros().max(4);
        Self { all: vec![0; 1 << bits], shift: u64::BITS - bits }
    }

    fn slot(&self, block: &[u8; BLOCK]) -> usize {
        let word = u128::from_le_bytes(*block);
        (((word ^ word >> 64) as u64 ^ SEED).wrapping_mul(SEED) >> self.shift) as usize
    }

    fn add(&mut self, block: &[u8; BLOCK], place: usize) {
        let slot = self.slot(block);
        if let (Some(known @ 0), Ok(place)) = (self.all.get_mut(slot), u32::try_from(place + 1)) {
            *known = place;
        }
    }

    fn find(&self, block: &[u8; BLOCK]) -> Option<usize> {
        self.all.get(self.slot(block)).and_then(|place| place.checked_sub(1)).map(|place| place as usize)
    }
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// What must be done to the old bytes to get the new ones. `beside` are bytes that whoever applies it has, too; whether they
/// were used is told.
pub(crate) fn diff(old: &[u8], beside: &[u8], new: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Out::default();
    out.number(new.len() as u64);
    let front = front_of(old, new);
    let back = back_of(&old[front..], &new[front..]);
    copy(&mut out, 0, front);
    let (old_end, new_end) = (old.len() - back, new.len() - back);
    let used = middle(&mut out, old, front..old_end, beside, &new[front..new_end]);
    copy(&mut out, old_end, back);
    (out.0, used)
}

/// So many bytes are compared at once where two values are alike.
const STEP: usize = 64;

/// Without a call for each step, which would take longer than comparing.
fn is_same((a, b): &(&[u8; STEP], &[u8; STEP])) -> bool {
    a.iter().zip(*b).fold(0, |differ, (a, b)| differ | a ^ b) == 0
}

/// How much two begin with alike.
fn front_of(a: &[u8], b: &[u8]) -> usize {
    let steps = a.as_chunks::<STEP>().0.iter().zip(b.as_chunks::<STEP>().0).take_while(is_same).count();
    let at = steps * STEP;
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

/// How much two end with alike.
fn back_of(a: &[u8], b: &[u8]) -> usize {
    let (all_a, all_b) = (a.as_rchunks::<STEP>().1, b.as_rchunks::<STEP>().1);
    let steps = all_a.iter().rev().zip(all_b.iter().rev()).take_while(is_same).count();
    let (a, b) = (&a[..a.len() - steps * STEP], &b[..b.len() - steps * STEP]);
    steps * STEP + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
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
    let mut known = Places::of(range.len() + beside.len());
    for (at, block) in beside.as_chunks().0.iter().enumerate() {
        known.add(block, old.len() + at * BLOCK);
    }
    for (at, block) in old[range.clone()].as_chunks().0.iter().enumerate() {
        known.add(block, range.start + at * BLOCK);
    }
    let (mut at, mut begun, mut used) = (0, 0, false);
    while let Some(block) = new[at..].first_chunk() {
        let found = known.find(block).map(|place| match place.checked_sub(old.len()) {
            Some(place) => (beside, place, true),
            None => (old, place, false),
        });
        let Some((from, found, is_beside)) = found.filter(|(from, place, _)| from[*place..].starts_with(block)) else {
            at += 1;
            continue;
        };
        let offset = if is_beside { old.len() } else { 0 };
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
            let longer = [&old[..], &old, &new, &old].concat();
            for (old, new) in [(&old, &new), (&old, &mixed), (&mixed, &longer), (&longer, &mixed)] {
                let (delta, _) = diff(old, &beside, new);
                proptest::prop_assert_eq!(&apply(old, &beside, &delta).unwrap(), new);
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
