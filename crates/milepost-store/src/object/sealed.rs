//! What is sealed of a log: a base (everything up to a number, folded) and segments (steps as they were written).
//!
//! Segments grow like the digits of a number: a new one takes the ones before it in as long as they are small beside it, so
//! that every step is written again a number of times that grows with the logarithm of their number, and few segments are to be read.

use super::bucket::Listed;
use super::names;

/// A segment is left alone by those after it when it is so many times as long as they are.
const RATIO: u64 = 8;
/// A log is read from no more segments than these, while they are not full.
const MAX_SEGMENTS: usize = 4;
/// A segment of so many bytes is full: it is never written again.
const FULL_BYTES: u64 = 64 << 20;

/// A base, or a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sealed {
    /// The number of its first step; none for a base, which has everything.
    pub first: Option<u64>,
    /// The number of its last step.
    pub last: u64,
    /// By the clock of whoever sealed it.
    pub sealed_ms: i64,
    pub name: String,
    pub bytes: u64,
}

impl Sealed {
    pub fn is_base(&self) -> bool {
        self.first.is_none()
    }
}

/// The bases and segments among keys.
pub(super) fn sealed(listed: &[Listed]) -> Vec<Sealed> {
    let parse = |found: &Listed| {
        let (first, last, sealed_ms) = names::sealed_of(&found.name)?;
        Some(Sealed { first, last, sealed_ms, name: found.name.clone(), bytes: found.bytes })
    };
    listed.iter().filter_map(parse).collect()
}

/// The sealed boundary: the greatest number that is sealed.
pub(super) fn boundary(sealed: &[Sealed]) -> Option<u64> {
    sealed.iter().map(|sealed| sealed.last).max()
}

/// Sealed objects that together hold every step from the first on: the newest base, and segments after it.
#[derive(Debug, Clone, Default)]
pub(super) struct Chain(Vec<Sealed>);

impl Chain {
    /// The fewest that reach furthest.
    pub fn of(sealed: &[Sealed]) -> Self {
        let base = sealed.iter().filter(|sealed| sealed.is_base()).max_by_key(|base| (base.last, base.sealed_ms));
        let mut chain = Self(base.cloned().into_iter().collect());
        loop {
            let end = chain.end();
            let goes_on = |sealed: &&Sealed| sealed.first.is_some_and(|first| first <= end) && sealed.last >= end;
            match sealed.iter().filter(goes_on).max_by_key(|sealed| (sealed.last, sealed.sealed_ms)) {
                Some(next) => chain.0.push(next.clone()),
                None => return chain,
            }
        }
    }

    /// The number after the last that is sealed.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |sealed| sealed.last + 1)
    }

    pub fn base(&self) -> Option<&Sealed> {
        self.0.first().filter(|sealed| sealed.is_base())
    }

    /// How many steps lie above the base.
    pub fn steps_in_segments(&self) -> u64 {
        self.end() - self.base().map_or(0, |base| base.last + 1)
    }

    pub fn contains(&self, sealed: &Sealed) -> bool {
        self.0.contains(sealed)
    }

    /// What has to be read by whoever knows the steps before a number: the base, if it is of use, and segments.
    pub fn after(&self, next: u64) -> &[Sealed] {
        let from = self.0.iter().position(|sealed| sealed.last >= next).unwrap_or(self.0.len());
        &self.0[from..]
    }

    /// The segments that the next one takes in, when it is to end before a number.
    pub fn taken_in(&self, end: u64) -> &[Sealed] {
        let segments = &self.0[usize::from(self.base().is_some())..];
        let mut from = segments.len();
        while let Some(last) = from.checked_sub(1).map(|at| &segments[at]) {
            let Some(first) = last.first else { break };
            let (own, after) = (last.last + 1 - first, end - (last.last + 1));
            let is_small = own < RATIO * after || from > MAX_SEGMENTS;
            if !is_small || last.bytes >= FULL_BYTES {
                break;
            }
            from -= 1;
        }
        &segments[from..]
    }

    /// Puts a sealed object at the end, in place of what it holds.
    pub fn push(&mut self, sealed: Sealed) {
        match sealed.first {
            None => self.0.retain(|old| old.last > sealed.last && !old.is_base()),
            Some(first) => self.0.retain(|old| old.is_base() || old.first.is_none_or(|old| old < first)),
        }
        let at = if sealed.is_base() { 0 } else { self.0.len() };
        self.0.insert(at, sealed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(first: u64, last: u64) -> Sealed {
        Sealed { first: Some(first), last, sealed_ms: 0, name: String::new(), bytes: last - first }
    }

    #[test]
    fn steps_are_written_again_logarithmically_often_and_lie_in_few_segments() {
        let mut chain = Chain::default();
        let mut written = 0;
        for end in (4..=100_000).step_by(4) {
            let taken = chain.taken_in(end);
            let first = taken.first().map_or(chain.end(), |sealed| sealed.first.unwrap());
            written += end - first;
            chain.push(segment(first, end - 1));
            assert_eq!(chain.end(), end);
            assert!(chain.after(0).len() <= MAX_SEGMENTS + 1, "{chain:?}");
            if end == 5_000 || end == 100_000 {
                let often = written as f64 / end as f64;
                println!("{end} steps: each was written {often:.1} times more");
                assert!(often < 30.0, "{often}");
            }
        }
    }

    #[test]
    fn what_is_chosen_holds_everything() {
        let base = Sealed { first: None, last: 9, sealed_ms: 5, name: String::new(), bytes: 0 };
        let all = [segment(0, 3), segment(4, 11), base, segment(12, 15), segment(10, 30), segment(31, 33)];
        let chain = Chain::of(&all);
        assert_eq!(chain.after(0), [all[2].clone(), all[4].clone(), all[5].clone()]);
        assert_eq!(chain.after(20), [all[4].clone(), all[5].clone()]);
        assert_eq!(chain.end(), 34);
        // A gap ends it.
        assert_eq!(Chain::of(&[segment(0, 3), segment(5, 9)]).end(), 4);
    }
}
