//! Processes to kill, starve and race: the test binary runs itself again, with a [`Job`] in its environment.
//!
//! A child tells on standard output, line by line, what the store acknowledged ([`told::Told`] reads it). Lines that
//! are not ours (libtest prints some) are ignored by whoever listens.

pub mod told;
pub mod work;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use milepost_store::{Options, Store};
use serde::{Deserialize, Serialize};

const JOB: &str = "MILEPOST_TEST_JOB";

/// What a child is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub store: PathBuf,
    pub seed: u64,
    pub what: What,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum What {
    /// Work on sessions as agents do.
    Work(work::Plan),
    /// Run these jobs one after the other, each in a process of its own.
    Lives(Vec<Life>),
    /// See `processes.rs`.
    Contend(crate::processes::Contend),
    /// See `linear.rs`.
    TakePart(crate::linear::Part),
    /// See `nodes.rs`.
    Node(crate::nodes::Node),
    /// See `migrate.rs`.
    Travel(crate::migrate::Trip),
}

/// One process of [`What::Lives`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Life {
    pub job: Job,
    /// A fault that it meets, as the recorder reads it.
    pub fault: Option<String>,
    /// It is killed when it says a line that begins so.
    pub killed_at: Option<String>,
}

/// The command that does a job. Its standard output is piped unless the caller changes that.
pub fn command(job: &Job) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child::run", "--nocapture", "--test-threads=1"])
        .env(JOB, serde_json::to_string(job).unwrap())
        .env_remove("MILEPOST_FAULT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// What the children do; without a job it is a test of nothing.
#[test]
fn run() {
    let Ok(job) = std::env::var(JOB) else { return };
    // libtest began a line of its own.
    say("");
    let job: Job = serde_json::from_str(&job).unwrap();
    match job.what.clone() {
        What::Work(plan) => runtime().block_on(work::run(&job, &plan)),
        What::Lives(lives) => lives.iter().for_each(live),
        What::Node(node) => runtime().block_on(crate::nodes::work(&job, &node)),
        What::Travel(trip) => runtime().block_on(crate::migrate::travel(&trip)),
        What::Contend(part) => runtime().block_on(crate::processes::contend(&job, &part)),
        What::TakePart(part) => runtime().block_on(crate::linear::take_part(&job, &part)),
    }
    say("done");
}

fn live(life: &Life) {
    let mut command = command(&life.job);
    if let Some(fault) = &life.fault {
        command.env("MILEPOST_FAULT", fault);
    }
    let mut voice = Voice::of(command.spawn().unwrap());
    while let Some(line) = voice.next_line(Duration::from_secs(60)) {
        say(&line);
        if life.killed_at.as_ref().is_some_and(|at| line.starts_with(at)) {
            voice.child.kill().unwrap();
        }
    }
    voice.child.wait().unwrap();
}

/// A runtime with two threads, so that tasks really run at once.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Says one line, in one write.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// Opens a store with the machine's own clock and randomness.
pub async fn open(path: &Path, options: Options) -> milepost_store::Result<Store> {
    Store::open(&format!("sqlite:{}", path.display()), options).await
}

/// A child and the whole lines that it says.
pub struct Voice {
    pub child: Child,
    /// Every line so far.
    pub heard: Vec<String>,
    lines: Receiver<String>,
}

impl Voice {
    pub fn of(mut child: Child) -> Self {
        let output = child.stdout.take().unwrap();
        Self { child, heard: Vec::new(), lines: listen(output) }
    }

    /// The next line, none at the end. A child that is silent for too long is hung: that fails the test.
    pub fn next_line(&mut self, patience: Duration) -> Option<String> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                self.heard.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("the child said nothing for {patience:?}");
            }
        }
    }

    /// Waits for a line that begins so.
    pub fn wait_for(&mut self, start: &str) -> String {
        while let Some(line) = self.next_line(Duration::from_secs(60)) {
            if line.starts_with(start) {
                return line;
            }
        }
        panic!("the child ended before it said {start:?}");
    }

    /// Listens until the child ends by itself, and returns everything it said.
    pub fn finish(&mut self) -> &[String] {
        while self.next_line(Duration::from_secs(120)).is_some() {}
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the child ended with {status}: {:?}", self.heard.last());
        &self.heard
    }

    /// Kills with SIGKILL and returns everything that was said.
    pub fn kill(&mut self) -> &[String] {
        use std::os::unix::process::ExitStatusExt;
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        while self.next_line(Duration::from_secs(60)).is_some() {}
        assert_eq!(status.signal(), Some(9), "the child ended before it was killed: {:?}", self.heard.last());
        &self.heard
    }
}

impl Drop for Voice {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A killed child's last line may be cut: only whole ones count.
fn listen(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while output.read_line(&mut line).is_ok_and(|n| n > 0) && line.ends_with('\n') {
            if sender.send(line.trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}
