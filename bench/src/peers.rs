//! Peers in other languages: run as a child process, given the workload as a file, answering in JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::saver::Load;

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
        let mut command = command(&self.python, "langgraph_sqlite.py", shape, &self.workload);
        let all = answer(command.arg("--dir").arg(dir))?;
        let disk_bytes = all["disk_bytes"].as_u64().ok_or("the peer printed no disk_bytes")?;
        Ok(PeerRun { total_s: number(&all, "total_s")?, disk_bytes, all })
    }
}

/// LangGraph's `PostgresSaver`, in a Python that has it installed.
#[derive(Debug, Clone)]
pub struct LanggraphPostgres {
    python: PathBuf,
    workload: PathBuf,
}

impl LanggraphPostgres {
    /// A peer that runs in `python` on the workload file `workload`.
    pub fn new(python: &Path, workload: &Path) -> Self {
        Self { python: python.to_owned(), workload: workload.to_owned() }
    }

    /// One session saves the whole workload into the empty database at `url`: seconds of all saves and the close, and
    /// everything that the peer printed.
    pub fn save(&self, shape: Shape, url: &str) -> Result<(f64, Value)> {
        let mut command = command(&self.python, "langgraph_postgres.py", shape, &self.workload);
        let all = answer(command.args(["--url", url]))?;
        Ok((number(&all, "total_s")? + number(&all, "close_s")?, all))
    }

    /// Many sessions save at once, each with a connection of its own, into the empty database at `url`: saves a second,
    /// and everything that the peer printed.
    pub fn save_at_once(&self, shape: Shape, url: &str, load: Load) -> Result<(f64, Value)> {
        let mut command = command(&self.python, "langgraph_postgres.py", shape, &self.workload);
        command.args(["--url", url, "--sessions", &load.sessions.to_string()]);
        command.args(["--warm-up-s", &load.warm_up.as_secs_f64().to_string()]);
        command.args(["--measured-s", &load.measured.as_secs_f64().to_string()]);
        let all = answer(&mut command)?;
        Ok((number(&all, "saves_per_s")?, all))
    }
}

/// What running a chain of nodes measured.
#[derive(Debug)]
pub struct ChainRun {
    /// From the first node to the last.
    pub seconds: f64,
    /// Everything that the peer printed, versions included.
    pub all: Value,
}

/// LangGraph runs a chain of nodes that do nothing, with its `SqliteSaver`, in a new database below `dir`. `durability`
/// is its own word: `async` is its default, `sync` waits for each checkpoint.
pub fn chain(python: &Path, steps: usize, dir: &Path, durability: &str) -> Result<ChainRun> {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/langgraph_chain.py"));
    command.args(["--steps", &steps.to_string(), "--durability", durability, "--dir"]).arg(dir);
    let all = answer(&mut command)?;
    Ok(ChainRun { seconds: number(&all, "seconds")?, all })
}

fn command(python: &Path, script: &str, shape: Shape, workload: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(script));
    command.args(["--shape", shape.name(), "--workload"]).arg(workload);
    command
}

/// Runs a peer to its end; what it printed.
fn answer(command: &mut Command) -> Result<Value> {
    let output = command
        .output()
        .map_err(|e| format!("cannot start {:?}: {e}; run scripts/bench, which installs it", command.get_program()))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} ended with {}: {stderr}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn number(all: &Value, name: &str) -> Result<f64> {
    Ok(all[name].as_f64().ok_or_else(|| format!("the peer printed no {name}"))?)
}
