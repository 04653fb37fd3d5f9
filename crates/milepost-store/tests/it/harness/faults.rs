//! Builds the recorder and makes a child's disk fail.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A request that fails, counted from 1 in each process, over the regular files under the recorded directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// This fsync or fdatasync fails with EIO.
    Fsync(u64),
    /// This one and all after it.
    FsyncFrom(u64),
    /// This write or allocation fails with ENOSPC.
    WriteNoSpace(u64),
    /// This one and all after it: the disk stays full.
    WriteNoSpaceFrom(u64),
    /// This write or allocation fails with EIO.
    WriteEio(u64),
    /// This one and all after it.
    WriteEioFrom(u64),
    /// The WAL is synced as `synchronous=NORMAL` would have it: not by commits.
    WalNormal,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fsync(n) => write!(f, "fsync:{n}"),
            Self::FsyncFrom(n) => write!(f, "fsync:{n}+"),
            Self::WriteNoSpace(n) => write!(f, "write:{n}"),
            Self::WriteNoSpaceFrom(n) => write!(f, "write:{n}+"),
            Self::WriteEio(n) => write!(f, "write-eio:{n}"),
            Self::WriteEioFrom(n) => write!(f, "write-eio:{n}+"),
            Self::WalNormal => write!(f, "wal-normal:1+"),
        }
    }
}

impl Fault {
    /// Makes `command` meet this fault when it runs under the recorder.
    pub fn arm(self, command: &mut Command) {
        command.env("MILEPOST_FAULT", self.to_string());
    }
}

/// Faults that a test turns on and off while the child runs.
#[derive(Debug)]
pub struct FaultSwitch {
    path: PathBuf,
}

impl FaultSwitch {
    /// A switch kept in the file `path`, off. The file must be outside the recorded directory.
    pub fn new(path: &Path) -> io::Result<Self> {
        let switch = Self { path: path.to_owned() };
        switch.off()?;
        Ok(switch)
    }

    /// Makes `command` obey this switch when it runs under the recorder.
    pub fn arm(&self, command: &mut Command) {
        command.env("MILEPOST_FAULT_FILE", &self.path);
    }

    /// From the child's next write or sync on these faults hold, counted from there. They replace earlier ones.
    pub fn on(&self, faults: &[Fault]) -> io::Result<()> {
        let spec: Vec<String> = faults.iter().map(Fault::to_string).collect();
        self.replace(&spec.join(","))
    }

    /// No more faults.
    pub fn off(&self) -> io::Result<()> {
        self.replace("")
    }

    /// By rename: the recorder must never read half a line, and tells versions apart by their inode.
    fn replace(&self, spec: &str) -> io::Result<()> {
        let next = self.path.with_extension("next");
        fs::write(&next, spec)?;
        fs::rename(&next, &self.path)
    }
}

/// The recorder as a shared library, for LD_PRELOAD. Compiled with `cc` on first use in a test process.
pub fn recorder_library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build().expect("the recorder builds: is a C compiler installed as `cc`?"))
}

fn build() -> io::Result<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(dir)?;
    // Test processes may build at the same time: each under its own name, then one rename.
    let id = std::process::id();
    let (source, mine) = (dir.join(format!("recorder-{id}.c")), dir.join(format!("recorder-{id}.so")));
    let library = dir.join("librecorder.so");
    fs::write(&source, include_str!("recorder.c"))?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-pthread", "-o"]).arg(&mine).arg(&source);
    let status = cc.status()?;
    fs::remove_file(&source)?;
    if !status.success() {
        return Err(io::Error::other(format!("{cc:?}: {status}")));
    }
    fs::rename(&mine, &library)?;
    Ok(library)
}
