//! Recording a child and making the images that a power cut could have left.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::faults::recorder_library;
use super::replay::{Content, Disk};
use super::rng::Rng;
use super::trace::{Op, Ops, parse};

/// One power cut. The same trace and the same cut give the same image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    /// How many operations of the trace had happened.
    pub point: usize,
    /// Chooses which unsure changes are kept.
    pub seed: u64,
}

/// What is known of an image besides its files.
#[derive(Debug)]
pub struct Image {
    /// The whole lines that the child had written to standard output strictly before the cut.
    pub acks: Vec<String>,
    /// Which unsure changes were kept, for the message of a failing test.
    pub story: String,
}

/// A recorded run of a child. Clones make images side by side.
#[derive(Debug, Clone)]
pub struct Trace {
    ops: Ops,
    status: ExitStatus,
    before: Vec<(String, Vec<u8>)>,
    disk: Disk,
}

/// A directory in memory if there is one: fsync costs nothing there and thousands of images do not wear a disk.
pub fn fast_dir() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Runs `command` to its end and records what it does to `dir`, into the file `trace` outside of `dir`.
///
/// Standard output goes into the trace alone. The rest is as in [`Recording`].
pub fn record(dir: &Path, trace: &Path, command: &mut Command) -> io::Result<Trace> {
    Recording::start(dir, trace, command.stdout(Stdio::null()))?.finish()
}

/// A child that runs under the recorder, for tests that talk to it, kill it, or switch its faults.
#[derive(Debug)]
pub struct Recording {
    /// The child, with the streams that the caller set.
    pub child: Child,
    dir: PathBuf,
    trace: PathBuf,
    before: Vec<Entry>,
}

impl Recording {
    /// Starts `command`. What `dir` holds now counts as durable.
    pub fn start(dir: &Path, trace: &Path, command: &mut Command) -> io::Result<Self> {
        let before = read_tree(dir)?;
        match fs::remove_file(trace) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let child = command
            .env("LD_PRELOAD", recorder_library())
            .env("MILEPOST_RECORD_DIR", dir)
            .env("MILEPOST_RECORD_TRACE", trace)
            .spawn()?;
        Ok(Self { child, dir: dir.to_owned(), trace: trace.to_owned(), before })
    }

    /// Waits for the child's end and reads the trace.
    ///
    /// The child may have failed or been killed: see [`Trace::status`]. If it ended by itself, the replayed trace is
    /// compared with the real files and a difference is an error: the recorder has missed a change. (A killed child
    /// may have done a last change without its record.)
    pub fn finish(mut self) -> io::Result<Trace> {
        let status = self.child.wait()?;
        let known: Vec<(u64, String)> = self.before.iter().map(|entry| (entry.ino, entry.name.clone())).collect();
        let before: Vec<(String, Vec<u8>)> = self.before.into_iter().map(|entry| (entry.name, entry.content)).collect();
        let ops = parse(fs::read(&self.trace)?, &known)?;
        let disk = Disk::new(&before, ops.first_names.len());
        let recorded = Trace { ops, status, before, disk };
        if status.signal().is_none() {
            recorded.verify(&self.dir)?;
        }
        Ok(recorded)
    }
}

impl Trace {
    /// How the child ended.
    pub fn status(&self) -> ExitStatus {
        self.status
    }

    /// How many operations there are. A cut may be at any point from 0 to this.
    pub fn len(&self) -> usize {
        self.ops.list.len()
    }

    /// Every whole line the child wrote to standard output.
    pub fn acks(&self) -> Vec<String> {
        self.disk_at_end().acks
    }

    /// How many syncs of files and directories succeeded.
    pub fn sync_count(&self) -> usize {
        self.ops.list.iter().filter(|op| matches!(op, Op::SyncEnd { ok: true, .. })).count()
    }

    /// The offsets of all writes, in order, to files whose first name ends with `suffix`.
    ///
    /// Offset 0 of a `-wal` file is its header: each such write after the first is a restart of the log.
    pub fn write_offsets(&self, suffix: &str) -> Vec<u64> {
        let of = |op: &Op| match op {
            Op::Write { file, offset, .. } if self.ops.first_names[file.0].ends_with(suffix) => Some(*offset),
            _ => None,
        };
        self.ops.list.iter().filter_map(of).collect()
    }

    /// The points where a promise changes hands: just before and just after each sync, each acknowledgement and each
    /// change of a name, and both ends.
    pub fn crash_points(&self) -> Vec<usize> {
        let mut points = vec![0, self.len()];
        for (index, op) in self.ops.list.iter().enumerate() {
            if !matches!(op, Op::Write { .. } | Op::Size { .. } | Op::Extend { .. }) {
                points.extend([index, index + 1]);
            }
        }
        points.sort_unstable();
        points.dedup();
        points
    }

    /// `count` cuts in order of time: three in four at [`Self::crash_points`], spread evenly, the rest anywhere.
    pub fn cuts(&self, count: usize, seed: u64) -> Vec<Cut> {
        let points = self.crash_points();
        let mut rng = Rng::new(seed);
        let mut cuts: Vec<Cut> = (0..count)
            .map(|i| {
                let anywhere = rng.below(self.len() + 1);
                let point = if i % 4 == 3 { anywhere } else { points[i * points.len() / count] };
                Cut { point, seed: rng.next() }
            })
            .collect();
        cuts.sort_unstable();
        cuts
    }

    /// Writes into `to` what the disk may hold after `cut`, and nothing else: `to` is emptied first.
    ///
    /// Cheap when cuts come in order of time; going back starts again from the first operation.
    pub fn image(&mut self, cut: Cut, to: &Path) -> io::Result<Image> {
        if cut.point < self.disk.position {
            self.disk = Disk::new(&self.before, self.ops.first_names.len());
        }
        self.disk.advance(&self.ops, cut.point.min(self.len()));
        let (content, story) = self.disk.cut(&mut Rng::new(cut.seed), &self.ops.bytes);
        write_tree(to, &content)?;
        Ok(Image { acks: self.disk.acks.clone(), story })
    }

    /// Compares the whole replayed trace with the files in `dir`, byte by byte.
    pub fn verify(&self, dir: &Path) -> io::Result<()> {
        let replayed = self.disk_at_end().live(&self.ops.bytes);
        let real: Content = read_tree(dir)?.into_iter().map(|entry| (entry.name, entry.content)).collect();
        let names = |content: &Content| content.keys().cloned().collect::<Vec<_>>();
        if names(&replayed) != names(&real) {
            return Err(missed(format!("files {:?} replayed, {:?} real", names(&replayed), names(&real))));
        }
        for (name, content) in &real {
            let other = &replayed[name];
            if content != other {
                let at = content.iter().zip(other).position(|(a, b)| a != b).unwrap_or(content.len().min(other.len()));
                let sizes = (other.len(), content.len());
                return Err(missed(format!("{name} differs from byte {at} on (replayed, real sizes: {sizes:?})")));
            }
        }
        Ok(())
    }

    fn disk_at_end(&self) -> Disk {
        let mut disk = Disk::new(&self.before, self.ops.first_names.len());
        disk.advance(&self.ops, self.len());
        disk
    }
}

fn missed(what: String) -> io::Error {
    io::Error::other(format!("the recorder missed a change: {what}; see recorder.c for what it cannot see"))
}

#[derive(Debug)]
struct Entry {
    name: String,
    ino: u64,
    content: Vec<u8>,
}

/// Every regular file under `dir` but `-shm`, sorted by name.
fn read_tree(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder)? {
            let item = item?;
            let path = item.path();
            let kind = item.file_type()?;
            let name = path.strip_prefix(dir).map_err(io::Error::other)?.to_string_lossy().into_owned();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && !name.ends_with("-shm") {
                entries.push(Entry { name, ino: item.metadata()?.ino(), content: fs::read(&path)? });
            }
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn write_tree(dir: &Path, content: &Content) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(dir)?,
    }
    for (name, bytes) in content {
        let path = dir.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, bytes)?;
    }
    Ok(())
}
