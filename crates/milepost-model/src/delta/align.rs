//! Which items of two lists are the same ones.

use std::collections::HashMap;
use std::iter;
use std::ops::Range;

/// A stretch of two lists between items that they share; one of the two may be empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) before: Range<usize>,
    pub(super) after: Range<usize>,
}

/// A fingerprint of an item.
pub(super) type Print = [u8; 32];

/// Matches two lists item by item and returns what lies between the matches, in order.
///
/// The n-th appearance of an item in one list is paired with the n-th in the other; the longest chain of pairs that keeps
/// the order is kept, and then grows into its neighbours. Not always the smallest difference, but always `n log n`.
pub(super) fn gaps(before: &[Print], after: &[Print]) -> Vec<Gap> {
    let end = (before.len(), after.len());
    let mut gaps = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (x, y) in longest_chain(&pairs(before, after)).into_iter().chain(iter::once(end)) {
        let (a, b) = (&before[i..x], &after[j..y]);
        let head = common(a.iter(), b.iter());
        let tail = common(a[head..].iter().rev(), b[head..].iter().rev());
        let gap = Gap { before: i + head..x - tail, after: j + head..y - tail };
        if !gap.before.is_empty() || !gap.after.is_empty() {
            gaps.push(gap);
        }
        (i, j) = (x + 1, y + 1);
    }
    gaps
}

fn common<'a>(a: impl Iterator<Item = &'a Print>, b: impl Iterator<Item = &'a Print>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

/// Positions of equal items, ascending in the first list.
fn pairs(before: &[Print], after: &[Print]) -> Vec<(usize, usize)> {
    let mut places: HashMap<&Print, Vec<usize>> = HashMap::with_capacity(after.len());
    for (j, print) in after.iter().enumerate().rev() {
        places.entry(print).or_default().push(j);
    }
    let paired = before.iter().enumerate().filter_map(|(i, print)| Some((i, places.get_mut(print)?.pop()?)));
    paired.collect()
}

/// The longest subsequence that ascends in the second position too: patience sorting.
fn longest_chain(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // For each length, the pair that ends a chain of that length earliest; and for each pair, the one before it.
    let mut ends: Vec<usize> = Vec::new();
    let mut previous: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (n, (_, j)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|&end| pairs[end].1 < *j);
        previous.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        match ends.get_mut(length) {
            Some(end) => *end = n,
            None => ends.push(n),
        }
    }
    let mut chain: Vec<_> = iter::successors(ends.last().copied(), |&n| previous[n]).map(|n| pairs[n]).collect();
    chain.reverse();
    chain
}
