//! What is asked of a repository, through the `git` program.
//!
//! A repository is foreign input: its configuration may name programs to run. So nothing is asked that runs a hook, a
//! pager, a file monitor, a signature check or a fetch; answers are bounded, and so is the time.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long one question may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The longest answer that is read.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// So many root commits are looked at.
pub(super) const MAX_ROOTS: usize = 64;

/// Variables that would point git at another repository, or at other settings.
const FOREIGN: &[&str] = &[
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_GRAFT_FILE",
    "GIT_SHALLOW_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_EXTERNAL_DIFF",
    "GIT_TRACE",
    "GIT_TRACE2",
    "GIT_TRACE2_EVENT",
    "GIT_PAGER",
];

/// Settings of the repository that could run a program.
const HARMLESS: &[&str] = &[
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "log.showSignature=false",
    "protocol.allow=never",
    "maintenance.auto=false",
    "gc.auto=0",
];

/// A commit as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// Its hash.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub time: i64,
    /// Who made it.
    pub author: String,
    /// The first line of its message.
    pub subject: String,
}

/// What is known about the repository of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Repository {
    /// There is none.
    None,
    /// There is one, but git does not read it, for this reason.
    Unreadable(String),
    /// There is one.
    Found {
        /// Its top directory.
        top: PathBuf,
        /// Its history is cut off, so that its root commit is not there.
        shallow: bool,
    },
}

impl Repository {
    /// Looks for the repository that a directory lies in.
    pub fn of(dir: &Path) -> Self {
        match ask(dir, &["rev-parse", "--show-toplevel", "--is-shallow-repository"]) {
            Ok(answer) => {
                // A path may have line breaks in it; the last line is the other answer.
                let answer = answer.strip_suffix(b"\n").unwrap_or(&answer);
                let Some(end) = answer.iter().rposition(|&byte| byte == b'\n') else { return Repository::None };
                Repository::Found { top: path_of(&answer[..end]), shallow: &answer[end + 1..] == b"true" }
            }
            Err(Refusal::NotInstalled) => {
                let is_there = dir.ancestors().any(|dir| dir.join(".git").exists());
                match is_there {
                    true => Repository::Unreadable("the program git is not installed".to_owned()),
                    false => Repository::None,
                }
            }
            Err(Refusal::Failed(why)) if why.contains("not a git repository") || why.contains("work tree") => {
                Repository::None
            }
            Err(Refusal::Failed(why)) => Repository::Unreadable(why),
        }
    }
}

#[cfg(unix)]
fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}

#[cfg(not(unix))]
fn path_of(bytes: &[u8]) -> PathBuf {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// Whether this is the full name of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The commits without parents that lead to where the repository is now, smallest first; none before the first commit.
pub(super) fn roots(top: &Path) -> Vec<String> {
    let answer = ask(top, &["rev-list", "--max-parents=0", "HEAD"]).unwrap_or_default();
    let mut roots: Vec<String> =
        String::from_utf8_lossy(&answer).lines().filter(|line| is_commit(line)).map(str::to_owned).collect();
    roots.sort();
    roots.truncate(MAX_ROOTS);
    roots
}

/// Whether one of these commits is in the repository.
pub(super) fn has_any(top: &Path, commits: &[String]) -> bool {
    let commits = commits.iter().filter(|commit| is_commit(commit)).take(MAX_ROOTS);
    commits.into_iter().any(|commit| ask(top, &["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_ok())
}

/// The commit that the repository is at.
pub(super) fn head(dir: &Path) -> Option<String> {
    let answer = ask(dir, &["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).ok()?;
    let text = String::from_utf8_lossy(&answer).trim().to_owned();
    is_commit(&text).then_some(text)
}

/// The newest commits, newest first; for a directory inside of the repository, those that touched it.
pub(super) fn log(dir: &Path, limit: usize) -> Vec<Commit> {
    let count = format!("--max-count={limit}");
    let form = "--format=%H%x1f%ct%x1f%an%x1f%s";
    let mut question = vec!["log", "-z", &count, form, "--no-decorate", "--no-color", "HEAD", "--"];
    let is_below = ask(dir, &["rev-parse", "--show-prefix"]).is_ok_and(|prefix| !prefix.trim_ascii().is_empty());
    if is_below {
        question.push(".");
    }
    let answer = ask(dir, &question);
    let answer = answer.unwrap_or_default();
    let commits = answer.split(|&byte| byte == 0).filter_map(|line| {
        let line = String::from_utf8_lossy(line);
        let mut parts = line.splitn(4, '\u{1f}');
        let (id, time, author, subject) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let short = |text: &str| text.chars().filter(|c| !c.is_control()).take(200).collect();
        let id = id.trim();
        is_commit(id).then(|| Commit {
            id: id.to_owned(),
            time: time.parse().unwrap_or(0),
            author: short(author),
            subject: short(subject),
        })
    });
    commits.take(limit).collect()
}

enum Refusal {
    NotInstalled,
    Failed(String),
}

/// Asks git one question in a directory.
fn ask(dir: &Path, question: &[&str]) -> Result<Vec<u8>, Refusal> {
    let mut command = Command::new("git");
    command.current_dir(dir).args(["--no-pager", "--no-optional-locks", "--no-replace-objects"]);
    for setting in HARMLESS {
        command.args(["-c", setting]);
    }
    command.args(question).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in FOREIGN {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0").env("GIT_NO_LAZY_FETCH", "1");
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound if dir.is_dir() => Refusal::NotInstalled,
        _ => Refusal::Failed(format!("git cannot be run: {error}")),
    })?;
    // Both answers are read on threads of their own, so that a full pipe never stops git and a silent git never stops us.
    let (send, answers) = mpsc::channel();
    let mut readers = 0;
    let pipes = [child.stdout.take().map(Pipe::Out), child.stderr.take().map(Pipe::Err)];
    for pipe in pipes.into_iter().flatten() {
        let send = send.clone();
        let reader = std::thread::Builder::new().name("milepost-git".to_owned());
        if reader.spawn(move || drop(send.send(pipe.read()))).is_ok() {
            readers += 1;
        }
    }
    let (mut out, mut err) = (Vec::new(), Vec::new());
    for _ in 0..readers {
        match answers.recv_timeout(TIMEOUT) {
            Ok((true, bytes)) => out = bytes,
            Ok((false, bytes)) => err = bytes,
            Err(_) => {
                drop(child.kill());
                drop(child.wait());
                return Err(Refusal::Failed(format!("git did not answer within {} s", TIMEOUT.as_secs())));
            }
        }
    }
    match child.wait() {
        Ok(status) if status.success() && readers == 2 => Ok(out),
        Ok(_) => {
            let told = String::from_utf8_lossy(&err);
            let first = told.lines().next().unwrap_or("git failed").trim_start_matches("fatal: ");
            Err(Refusal::Failed(first.chars().filter(|c| !c.is_control()).take(300).collect()))
        }
        Err(error) => Err(Refusal::Failed(format!("git cannot be waited for: {error}"))),
    }
}

enum Pipe {
    Out(std::process::ChildStdout),
    Err(std::process::ChildStderr),
}

impl Pipe {
    /// What came through it, up to the limit; whether it is the answer and not the complaint.
    fn read(self) -> (bool, Vec<u8>) {
        let mut bytes = Vec::new();
        let is_out = matches!(self, Pipe::Out(_));
        // What did not come counts as not said.
        let _read = match self {
            Pipe::Out(pipe) => pipe.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes),
            Pipe::Err(pipe) => pipe.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes),
        };
        (is_out, bytes)
    }
}
