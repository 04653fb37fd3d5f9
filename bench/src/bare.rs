//! The floor under every durable save: append 4 KiB to a file and `fdatasync` it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of one append.
pub const APPEND_BYTES: usize = 4096;

/// A file that grows by 4 KiB at a time, each made durable before the call returns.
///
/// Saves are compared with appends made between them, so that both see the same disk.
#[derive(Debug)]
pub struct BareAppender {
    file: File,
    block: Vec<u8>,
    appends: u64,
}

impl BareAppender {
    /// Start an empty file in `dir`, which should lie on the disk that the saves go to.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(dir.join("bare"))?;
        file.sync_all()?;
        Ok(Self { file, block: vec![0xa5; APPEND_BYTES], appends: 0 })
    }

    /// Append one block; how long the write and the sync took.
    pub fn append(&mut self) -> io::Result<Duration> {
        self.appends += 1;
        // Each block differs, lest a clever disk store it once.
        self.block[..8].copy_from_slice(&self.appends.to_le_bytes());
        let start = Instant::now();
        self.file.write_all(&self.block)?;
        self.file.sync_data()?;
        Ok(start.elapsed())
    }
}
