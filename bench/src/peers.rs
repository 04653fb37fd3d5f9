//! Peers in other languages: run as a child process, given the workload as a file, answering in JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Result;

/// How LangGraph's saver is made to store messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Every checkpoint holds all messages: the default.
    Full,
    /// Messages in a `DeltaChannel`: writes, and a snapshot now and then.
    Delta,
}

impl Shape {
    /// As the peer's command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Full => "full",
            Shape::Delta => "delta",
        }
    }
}

/// LangGraph's `SqliteSaver`, in a Python that has it installed.
#[derive(Debug, Clone)]
pub struct LanggraphSqlite {
    python: PathBuf,
    workload: PathBuf,
}

/// What one run of the peer measured.
#[derive(Debug)]
pub struct PeerRun {
    /// All saves together.
    pub total_s: f64,
    /// Bytes of the database and its side files after closing.
    pub disk_bytes: u64,
    /// Everything that the peer printed, versions included.
    pub all: Value,
}

impl LanggraphSqlite {
    /// A peer that runs in `python` on the workload file `workload`.
    pub fn new(python: &Path, workload: &Path) -> Self {
        Self { python: python.to_owned(), workload: workload.to_owned() }
    }

    /// Run once, in a new database below `dir`.
    pub fn run(&self, shape: Shape, dir: &Path) -> Result<PeerRun> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/langgraph_sqlite.py");
        let output = Command::new(&self.python)
            .arg(&script)
            .args(["--shape", shape.name(), "--workload"])
            .arg(&self.workload)
            .arg("--dir")
            .arg(dir)
            .output()
            .map_err(|e| {
                format!("cannot start {}: {e}; run scripts/bench, which installs it", self.python.display())
            })?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} ended with {}: {stderr}", script.display(), output.status).into());
        }
        let all: Value = serde_json::from_slice(&output.stdout)?;
        let total_s = all["total_s"].as_f64().ok_or("the peer printed no total_s")?;
        let disk_bytes = all["disk_bytes"].as_u64().ok_or("the peer printed no disk_bytes")?;
        Ok(PeerRun { total_s, disk_bytes, all })
    }
}
