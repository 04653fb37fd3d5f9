//! What can happen to a store, at random. Numbers in an operation pick among what is there.

use milepost_store::DeleteMode;
use proptest::collection::vec;
use proptest::prelude::*;

/// Picks one of what is there.
pub type Pick = u16;

#[derive(Debug, Clone)]
pub enum Op {
    Create {
        title: u8,
    },
    Append {
        session: Pick,
        items: Vec<Item>,
    },
    /// Appends that arrive at once.
    Together {
        session: Pick,
        appends: Vec<Vec<Item>>,
    },
    /// An append that was acknowledged before is sent again.
    Resend {
        session: Pick,
        which: Pick,
    },
    Patch {
        session: Pick,
        title: u8,
    },
    /// A blob, and the event that names it.
    File {
        session: Pick,
        seed: u8,
    },
    Branch {
        session: Pick,
        at: Pick,
    },
    Restore {
        session: Pick,
        at: Pick,
    },
    Prune {
        session: Pick,
        max: u8,
        clean_only: bool,
        max_age_days: u8,
    },
    TrashMark {
        session: Pick,
        mark: Pick,
    },
    UntrashMark {
        session: Pick,
        mark: Pick,
    },
    Purge {
        session: Pick,
        older_ms: u16,
    },
    Trash {
        session: Pick,
    },
    Untrash {
        session: Pick,
    },
    Delete {
        session: Pick,
        mode: DeleteMode,
    },
    EmptyTrash {
        days: u8,
    },
    Collect,
    Reopen,
    Advance {
        ms: i32,
    },
    TakeOver {
        session: Pick,
    },
    Release {
        session: Pick,
    },
    Redact {
        word: u8,
    },
    Reindex,
    Check {
        at: Vec<Pick>,
    },
}

#[derive(Debug, Clone)]
pub enum Item {
    Message {
        words: Vec<u8>,
        channel: u8,
        large: bool,
    },
    /// A whole state, with one thing changed.
    State(Change),
    /// What changed, by a caller who knows.
    Delta(Change),
    Mark {
        trigger: u8,
        label: Option<u8>,
        clean: bool,
        resumable: bool,
    },
    Event,
    /// A change that does not fit: the whole append is refused.
    Misfit,
}

#[derive(Debug, Clone)]
pub enum Change {
    Nothing,
    Set(u8, Vec<u8>),
    Long(u8),
    Remove(u8),
    Push(u8, Vec<u8>),
    Clear,
}

/// Words that messages and states are made of; the first few are looked for by redactions.
pub const WORDS: [&str; 12] = [
    "hunter2",
    "tango",
    "quartz",
    "linker",
    "cache",
    "build",
    "\u{1f9ed}",
    "\u{5e9}\u{5dc}",
    "O'Brien",
    "a\0b",
    "",
    "x\ny",
];

pub fn text(words: &[u8]) -> String {
    words.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect::<Vec<_>>().join(" ")
}

/// Text that does not compress, the same for the same seed.
pub fn noise(seed: u8, len: usize) -> String {
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'!' + (state >> 32) as u8 % 90)
    };
    std::iter::repeat_with(&mut next).take(len).collect()
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => Just(Change::Nothing),
        4 => (0..4u8, vec(any::<u8>(), 0..6)).prop_map(|(key, words)| Change::Set(key, words)),
        3 => any::<u8>().prop_map(Change::Long),
        1 => (0..4u8).prop_map(Change::Remove),
        2 => (any::<u8>(), vec(any::<u8>(), 0..4)).prop_map(|(n, words)| Change::Push(n, words)),
        1 => Just(Change::Clear),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    let message = (vec(any::<u8>(), 0..6), 0..4u8, prop::bool::weighted(0.05));
    let mark = (0..5u8, prop::option::weighted(0.2, 0..3u8), prop::bool::weighted(0.8), prop::bool::weighted(0.8));
    prop_oneof![
        5 => message.prop_map(|(words, channel, large)| Item::Message { words, channel, large }),
        3 => change().prop_map(Item::State),
        3 => change().prop_map(Item::Delta),
        6 => mark.prop_map(|(trigger, label, clean, resumable)| Item::Mark { trigger, label, clean, resumable }),
        1 => Just(Item::Event),
    ]
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    prop_oneof![
        20 => vec(item(), 1..8),
        1 => vec(item(), 0..3).prop_map(|mut items| { items.push(Item::Misfit); items }),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let pick = any::<Pick>;
    let mode = prop_oneof![Just(DeleteMode::Refuse), Just(DeleteMode::KeepBranches), Just(DeleteMode::Cascade)];
    let ms = prop_oneof![5 => 0..40_000i32, 2 => Just(4_000_000), 1 => Just(90_000_000), 1 => -20_000..0i32];
    prop_oneof![
        3 => any::<u8>().prop_map(|title| Op::Create { title }),
        24 => (pick(), items()).prop_map(|(session, items)| Op::Append { session, items }),
        3 => (pick(), vec(items(), 2..4)).prop_map(|(session, appends)| Op::Together { session, appends }),
        2 => (pick(), pick()).prop_map(|(session, which)| Op::Resend { session, which }),
        1 => (pick(), any::<u8>()).prop_map(|(session, title)| Op::Patch { session, title }),
        2 => (pick(), any::<u8>()).prop_map(|(session, seed)| Op::File { session, seed }),
        5 => (pick(), pick()).prop_map(|(session, at)| Op::Branch { session, at }),
        6 => (pick(), pick()).prop_map(|(session, at)| Op::Restore { session, at }),
        4 => (pick(), 0..6u8, any::<bool>(), 0..2u8)
            .prop_map(|(session, max, clean_only, max_age_days)| Op::Prune { session, max, clean_only, max_age_days }),
        2 => (pick(), pick()).prop_map(|(session, mark)| Op::TrashMark { session, mark }),
        2 => (pick(), pick()).prop_map(|(session, mark)| Op::UntrashMark { session, mark }),
        5 => (pick(), 0..2000u16).prop_map(|(session, older_ms)| Op::Purge { session, older_ms }),
        1 => pick().prop_map(|session| Op::Trash { session }),
        1 => pick().prop_map(|session| Op::Untrash { session }),
        2 => (pick(), mode).prop_map(|(session, mode)| Op::Delete { session, mode }),
        1 => (0..2u8).prop_map(|days| Op::EmptyTrash { days }),
        2 => Just(Op::Collect),
        2 => Just(Op::Reopen),
        5 => ms.prop_map(|ms| Op::Advance { ms }),
        2 => pick().prop_map(|session| Op::TakeOver { session }),
        2 => pick().prop_map(|session| Op::Release { session }),
        1 => (0..3u8).prop_map(|word| Op::Redact { word }),
        1 => Just(Op::Reindex),
        4 => vec(pick(), 3).prop_map(|at| Op::Check { at }),
    ]
}
