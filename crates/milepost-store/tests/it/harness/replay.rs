//! The model of a disk: what a power cut may leave.
//!
//! It is meant to be at least as cruel as ext4 in any of its data modes:
//!
//! * A write or a size change is sure to be there only after an fsync or fdatasync of its file that began after it and
//!   returned success. Until then each one may be there or not, in any combination: later ones without earlier ones.
//! * A write can be torn. Each 512-byte sector of the file it touches arrives or does not, on its own.
//! * A write past the end may have moved the end without its bytes, which then read as zeros.
//! * Names (creation, link, rename, unlink) are sure only after an fsync of the *directory*; syncing the file is not
//!   enough. On ext4 it would be: this is the stricter reading of POSIX, and portable programs must bear it. Names in
//!   one directory arrive in order, as in every journaling file system, so a cut keeps a prefix of those not yet synced.
//! * A failed fsync is final for what it should have covered. Linux marks such pages clean, so a later fsync that
//!   succeeds does not save them: these writes stay in doubt until the same bytes are written again and synced.
//!
//! Kept simple: directories themselves are always there once a name in them is; owners, modes and times are not kept.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::rng::Rng;
use super::trace::{FileId, Op, Ops, Target};

const SECTOR_BYTES: u64 = 512;

#[derive(Debug, Clone)]
enum Change {
    Write { offset: u64, bytes: Range<usize> },
    Size(u64),
    Extend(u64),
}

#[derive(Debug, Clone)]
struct Pending {
    /// Index of the operation; orders changes and tells what a sync covers.
    at: usize,
    change: Change,
    /// A sync that covered it has failed.
    in_doubt: bool,
}

#[derive(Debug, Clone, Default)]
struct File {
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Debug, Clone)]
enum Naming {
    Link { name: String, file: FileId },
    Unlink { name: String },
    Rename { from: String, to: String, file: FileId },
}

/// The disk after some number of operations: what is sure, and what is not.
#[derive(Debug, Clone)]
pub struct Disk {
    /// How many operations have happened.
    pub position: usize,
    /// Whole lines of standard output so far.
    pub acks: Vec<String>,
    partial_line: Vec<u8>,
    files: Vec<File>,
    names: BTreeMap<String, FileId>,
    pending_names: Vec<(usize, Naming)>,
    syncs_under_way: HashMap<u64, usize>,
}

/// A directory's files by name, as a cut may leave them.
pub type Content = BTreeMap<String, Vec<u8>>;

impl Disk {
    /// A disk that holds `files` for sure; they are the first [`FileId`]s, in order.
    pub fn new(files: &[(String, Vec<u8>)], file_count: usize) -> Self {
        let mut all: Vec<File> =
            files.iter().map(|(_, durable)| File { durable: durable.clone(), pending: Vec::new() }).collect();
        all.resize_with(file_count, File::default);
        Self {
            position: 0,
            acks: Vec::new(),
            partial_line: Vec::new(),
            files: all,
            names: files.iter().enumerate().map(|(id, (name, _))| (name.clone(), FileId(id))).collect(),
            pending_names: Vec::new(),
            syncs_under_way: HashMap::new(),
        }
    }

    /// Lets operations happen until `point` of them have.
    pub fn advance(&mut self, ops: &Ops, point: usize) {
        while self.position < point {
            self.step(ops);
            self.position += 1;
        }
    }

    fn step(&mut self, ops: &Ops) {
        match ops.list[self.position].clone() {
            Op::Write { file, offset, bytes } => self.change(file, Change::Write { offset, bytes }),
            Op::Size { file, size } => self.change(file, Change::Size(size)),
            Op::Extend { file, size } => self.change(file, Change::Extend(size)),
            Op::Link { name, file } => self.pending_names.push((self.position, Naming::Link { name, file })),
            Op::Unlink { name } => self.pending_names.push((self.position, Naming::Unlink { name })),
            Op::Rename { from, to, file } => {
                self.pending_names.push((self.position, Naming::Rename { from, to, file }));
            }
            Op::SyncBegin { token } => {
                self.syncs_under_way.insert(token, self.position);
            }
            Op::SyncEnd { token, target, ok } => {
                let began = self.syncs_under_way.remove(&token).expect("a sync ends that began");
                match target {
                    Target::File(file) if ok => self.files[file.0].commit(began, &ops.bytes),
                    Target::File(file) => self.files[file.0].doubt(began),
                    Target::Dir(dir) if ok => self.commit_names(&dir, began),
                    Target::Dir(_) => {}
                }
            }
            Op::Ack { bytes } => self.acknowledge(&ops.bytes[bytes]),
        }
    }

    fn change(&mut self, file: FileId, change: Change) {
        self.files[file.0].pending.push(Pending { at: self.position, change, in_doubt: false });
    }

    fn acknowledge(&mut self, bytes: &[u8]) {
        self.partial_line.extend_from_slice(bytes);
        while let Some(end) = self.partial_line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial_line.drain(..=end).collect();
            self.acks.push(String::from_utf8_lossy(&line[..end]).into_owned());
        }
    }

    fn commit_names(&mut self, dir: &str, before: usize) {
        let pending = std::mem::take(&mut self.pending_names);
        for (at, naming) in pending {
            if at < before && naming.dir() == dir {
                naming.apply(&mut self.names);
            } else {
                self.pending_names.push((at, naming));
            }
        }
    }

    /// Everything that happened, as the running program sees it.
    pub fn live(&self, trace: &[u8]) -> Content {
        let mut names = self.names.clone();
        for (_, naming) in &self.pending_names {
            naming.apply(&mut names);
        }
        self.read(&names, |_, file| file.survive(Mercy::All, &mut Rng::new(0), trace))
    }

    /// What one power cut leaves now, and a line that says which unsure changes it kept.
    pub fn cut(&self, rng: &mut Rng, trace: &[u8]) -> (Content, String) {
        let names = self.cut_names(rng);
        let mut story = format!("{} of {} names changed in doubt", names.1, self.pending_names.len());
        let content = self.read(&names.0, |name, file| {
            let mercy = Mercy::pick(rng);
            if !file.pending.is_empty() {
                story.push_str(&format!("; {name}: {mercy:?} of {} changes", file.pending.len()));
            }
            file.survive(mercy, rng, trace)
        });
        (content, story)
    }

    fn read(&self, names: &BTreeMap<String, FileId>, mut survive: impl FnMut(&str, &File) -> Vec<u8>) -> Content {
        names.iter().map(|(name, id)| (name.clone(), survive(name, &self.files[id.0]))).collect()
    }

    /// A prefix of the unsure names of each directory: none, all, or some.
    fn cut_names(&self, rng: &mut Rng) -> (BTreeMap<String, FileId>, usize) {
        let mut per_dir: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, naming) in &self.pending_names {
            *per_dir.entry(naming.dir()).or_default() += 1;
        }
        for count in per_dir.values_mut() {
            *count = match rng.below(3) {
                0 => 0,
                1 => *count,
                _ => rng.below(*count + 1),
            };
        }
        let mut names = self.names.clone();
        let mut kept = 0;
        for (_, naming) in &self.pending_names {
            let left = per_dir.get_mut(naming.dir()).expect("counted above");
            if *left > 0 {
                *left -= 1;
                kept += 1;
                naming.apply(&mut names);
            }
        }
        (names, kept)
    }
}

impl Naming {
    /// The directory whose fsync makes it durable. A rename is one step, and belongs to where it leads.
    fn dir(&self) -> &str {
        let (Self::Link { name, .. } | Self::Unlink { name } | Self::Rename { to: name, .. }) = self;
        name.rsplit_once('/').map_or("", |(dir, _)| dir)
    }

    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            Self::Link { name, file } => {
                names.insert(name.clone(), *file);
            }
            Self::Unlink { name } => {
                names.remove(name);
            }
            Self::Rename { from, to, file } => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
        }
    }
}

impl File {
    /// A sync that began at `before` has succeeded.
    fn commit(&mut self, before: usize, trace: &[u8]) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.at >= before || pending.in_doubt {
                self.pending.push(pending);
                continue;
            }
            // A change that is sure outlives the doubt about what it overwrites. Doubtful changes further on in the
            // list are later than this one and stay.
            self.pending = self.pending.drain(..).flat_map(|older| older.without(&pending.change)).collect();
            pending.change.apply(&mut self.durable, trace);
        }
    }

    /// A sync that began at `before` has failed. Sizes are metadata and stay merely unsure.
    fn doubt(&mut self, before: usize) {
        for pending in &mut self.pending {
            pending.in_doubt |= pending.at < before && matches!(pending.change, Change::Write { .. });
        }
    }

    /// The content after a cut that treats the unsure changes with `mercy`.
    fn survive(&self, mercy: Mercy, rng: &mut Rng, trace: &[u8]) -> Vec<u8> {
        let mut content = self.durable.clone();
        let chosen = rng.below(self.pending.len());
        let density = [1, 4, 7][rng.below(3)];
        let grow_without_bytes = mercy != Mercy::All && rng.chance(4);
        for (index, pending) in self.pending.iter().enumerate() {
            match mercy.fate(index, self.pending.len(), chosen, density, rng) {
                Fate::Kept => pending.change.apply(&mut content, trace),
                Fate::Lost => {}
                Fate::Torn => pending.change.apply_torn(&mut content, trace, density, rng),
            }
            if grow_without_bytes && rng.chance(4) {
                grow(&mut content, pending.change.end());
            }
        }
        content
    }
}

impl Pending {
    /// What of this is left unsure once `newer` is sure.
    fn without(self, newer: &Change) -> Vec<Self> {
        let Change::Write { offset, ref bytes } = self.change else {
            return vec![self];
        };
        let end = offset + bytes.len() as u64;
        let (cut_start, cut_end) = match newer {
            Change::Write { offset, bytes } => (*offset, offset + bytes.len() as u64),
            Change::Size(size) => (*size, u64::MAX),
            Change::Extend(_) => return vec![self],
        };
        let piece = |from: u64, to: u64| {
            let range = bytes.start + (from - offset) as usize..bytes.start + (to - offset) as usize;
            (from < to).then(|| Self { change: Change::Write { offset: from, bytes: range }, ..self.clone() })
        };
        let before = piece(offset, end.min(cut_start).max(offset));
        let after = piece(offset.max(cut_end).min(end), end);
        before.into_iter().chain(after).collect()
    }
}

impl Change {
    fn apply(&self, content: &mut Vec<u8>, trace: &[u8]) {
        match self {
            Self::Write { offset, bytes } => put(content, *offset, &trace[bytes.clone()]),
            Self::Size(size) => content.resize(*size as usize, 0),
            Self::Extend(size) => grow(content, *size),
        }
    }

    /// Each sector on its own; a size change is there or not.
    fn apply_torn(&self, content: &mut Vec<u8>, trace: &[u8], density: usize, rng: &mut Rng) {
        let Self::Write { offset, bytes } = self else {
            if rng.chance(density) {
                self.apply(content, trace);
            }
            return;
        };
        let data = &trace[bytes.clone()];
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let room = (SECTOR_BYTES - at % SECTOR_BYTES) as usize;
            let end = data.len().min(done + room);
            if rng.chance(density) {
                put(content, at, &data[done..end]);
            }
            done = end;
        }
    }

    /// How far the file reaches, at the least, once this has happened; 0 for a size set (it may have gone down).
    fn end(&self) -> u64 {
        match self {
            Self::Write { offset, bytes } => offset + bytes.len() as u64,
            Self::Size(_) => 0,
            Self::Extend(size) => *size,
        }
    }
}

fn grow(content: &mut Vec<u8>, size: u64) {
    if content.len() < size as usize {
        content.resize(size as usize, 0);
    }
}

fn put(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = offset as usize;
    grow(content, offset + bytes.len() as u64);
    content[start..start + bytes.len()].copy_from_slice(bytes);
}

/// What a cut does to the unsure changes of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mercy {
    None,
    All,
    AllButFirst,
    AllButLast,
    AllButOne,
    OnlyLast,
    Prefix,
    Suffix,
    Some,
    TornLast,
    TornOne,
    Torn,
}

enum Fate {
    Kept,
    Lost,
    Torn,
}

impl Mercy {
    /// None, All and Torn are twice as likely as the others.
    fn pick(rng: &mut Rng) -> Self {
        const CHOICES: [Mercy; 15] = [
            Mercy::None,
            Mercy::None,
            Mercy::All,
            Mercy::All,
            Mercy::AllButFirst,
            Mercy::AllButLast,
            Mercy::AllButOne,
            Mercy::OnlyLast,
            Mercy::Prefix,
            Mercy::Suffix,
            Mercy::Some,
            Mercy::TornLast,
            Mercy::TornOne,
            Mercy::Torn,
            Mercy::Torn,
        ];
        CHOICES[rng.below(CHOICES.len())]
    }

    /// The fate of change `index` of `count`, where `chosen` is one picked for the whole file.
    fn fate(self, index: usize, count: usize, chosen: usize, density: usize, rng: &mut Rng) -> Fate {
        let last = index + 1 == count;
        let kept = match self {
            Self::None => false,
            Self::All => true,
            Self::AllButFirst => index > 0,
            Self::AllButLast => !last,
            Self::AllButOne => index != chosen,
            Self::OnlyLast => last,
            Self::Prefix => index < chosen,
            Self::Suffix => index > chosen,
            Self::Some => rng.chance(density),
            Self::TornLast if last => return Fate::Torn,
            Self::TornOne if index == chosen => return Fate::Torn,
            Self::TornLast | Self::TornOne => true,
            Self::Torn => return Fate::Torn,
        };
        if kept { Fate::Kept } else { Fate::Lost }
    }
}
