//! What the machine counts for this process. Where it counts nothing (not Linux), there is no number.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Processor time of all threads that live.
pub fn cpu_time() -> Option<Duration> {
    let mut sum_ns = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        sum_ns += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(Duration::from_nanos(sum_ns))
}

/// Bytes handed to `write` and its kin so far.
pub fn written_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar: "))?.parse().ok()
}

/// Bytes of all files in a directory.
pub fn bytes_in(dir: &Path) -> std::io::Result<u64> {
    fs::read_dir(dir)?.map(|file| Ok(file?.metadata()?.len())).sum()
}
