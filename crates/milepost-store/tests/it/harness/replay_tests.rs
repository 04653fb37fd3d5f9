//! The disk model against small traces made by hand.

use std::collections::BTreeSet;

use super::replay::Disk;
use super::rng::Rng;
use super::trace::{FileId, Op, Ops, Target};

const A: FileId = FileId(0);

fn ops(bytes: Vec<u8>, list: Vec<Op>) -> Ops {
    Ops { bytes, list, first_names: vec!["a".to_owned()] }
}

fn sync(token: u64, ok: bool) -> [Op; 2] {
    [Op::SyncBegin { token }, Op::SyncEnd { token, target: Target::File(A), ok }]
}

/// Every content of `a` that many cuts at the end of `ops` leave, on a disk that held `before`.
fn outcomes(ops: &Ops, before: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut disk = Disk::new(&[("a".to_owned(), before.to_vec())], 1);
    disk.advance(ops, ops.list.len());
    (0..2_000).map(|seed| disk.cut(&mut Rng::new(seed), &ops.bytes).0.remove("a").unwrap()).collect()
}

fn all(contents: &[&[u8]]) -> BTreeSet<Vec<u8>> {
    contents.iter().map(|content| content.to_vec()).collect()
}

#[test]
fn writes_without_a_sync_come_in_any_combination() {
    let write = |offset, bytes| Op::Write { file: A, offset, bytes };
    let ops = ops(b"XY".to_vec(), vec![write(0, 0..1), write(1, 1..2)]);
    assert_eq!(outcomes(&ops, b"--"), all(&[b"--", b"X-", b"-Y", b"XY"]));
}

#[test]
fn a_write_past_the_end_may_leave_zeros() {
    let ops = ops(b"X".to_vec(), vec![Op::Write { file: A, offset: 1, bytes: 0..1 }]);
    assert_eq!(outcomes(&ops, b"-"), all(&[b"-", b"-\0", b"-X"]));
}

#[test]
fn a_write_tears_only_between_sectors_of_the_file() {
    let ops = ops(vec![1; 600], vec![Op::Write { file: A, offset: 300, bytes: 0..600 }]);
    let piece = |first: u8, second: u8| [vec![0; 300], vec![first; 212], vec![second; 388]].concat();
    let expected = BTreeSet::from([piece(0, 0), piece(0, 1), piece(1, 0), piece(1, 1)]);
    assert_eq!(outcomes(&ops, &[0; 900]), expected);
}

#[test]
fn a_sync_covers_what_came_before_it_began() {
    let write = |offset, bytes| Op::Write { file: A, offset, bytes };
    let [begin, end] = sync(1, true);
    let ops = ops(b"XY".to_vec(), vec![write(0, 0..1), begin, write(1, 1..2), end]);
    assert_eq!(outcomes(&ops, b"--"), all(&[b"X-", b"XY"]));
}

#[test]
fn a_later_sync_does_not_heal_a_failed_one() {
    let mut list = vec![Op::Write { file: A, offset: 0, bytes: 0..3 }];
    list.extend(sync(1, false));
    list.push(Op::Write { file: A, offset: 1, bytes: 3..4 });
    list.extend(sync(2, true));
    let ops = ops(b"XXXY".to_vec(), list);
    assert_eq!(outcomes(&ops, b"---"), all(&[b"-Y-", b"XY-", b"-YX", b"XYX"]));
}

#[test]
fn a_truncation_without_a_sync_goes_either_way() {
    let ops = ops(Vec::new(), vec![Op::Size { file: A, size: 1 }]);
    assert_eq!(outcomes(&ops, b"abc"), all(&[b"a", b"abc"]));
}

#[test]
fn names_need_a_sync_of_their_directory() {
    let link = |name: &str| Op::Link { name: name.to_owned(), file: A };
    let mut list = vec![link("sub/b")];
    list.extend(sync(1, true));
    list.extend([Op::SyncBegin { token: 2 }, Op::SyncEnd { token: 2, target: Target::Dir(String::new()), ok: true }]);
    list.extend([link("c"), Op::Unlink { name: "a".to_owned() }]);
    let ops = ops(Vec::new(), list);
    let mut disk = Disk::new(&[("a".to_owned(), Vec::new())], 1);
    disk.advance(&ops, ops.list.len());
    let names = |seed| disk.cut(&mut Rng::new(seed), &[]).0.into_keys().collect::<Vec<_>>().join(" ");
    let seen: BTreeSet<String> = (0..500).map(names).collect();
    let expected = ["a", "a c", "c", "a sub/b", "a c sub/b", "c sub/b"];
    assert_eq!(seen, expected.map(str::to_owned).into());
}

#[test]
fn only_whole_lines_are_acknowledged() {
    let ops = ops(b"one\ntwo\nthr".to_vec(), vec![Op::Ack { bytes: 0..6 }, Op::Ack { bytes: 6..11 }]);
    let mut disk = Disk::new(&[], 0);
    disk.advance(&ops, 1);
    assert_eq!(disk.acks, ["one"]);
    disk.advance(&ops, 2);
    assert_eq!(disk.acks, ["one", "two"]);
}
