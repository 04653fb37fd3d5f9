//! A command in a process group of its own: it sees only the variables that it is allowed, its output is limited, and
//! when it has to end, all of the group does.

use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::{numbers, pairs, text, texts};
use crate::run::action::{Action, Failed, Step};

/// The variables that every command sees.
const ALWAYS: &[&str] = &["PATH", "HOME", "LANG", "TMPDIR"];
/// How much of each stream is kept unless the node says otherwise (1 MiB).
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// How long a command may take to end when it is asked to, in milliseconds.
const GRACE_MS: u64 = 3000;

pub(super) struct Shell;

/// Ends a whole process group when it is dropped.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            // The group may be gone, which is what is wanted.
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn command(step: &Step) -> Result<Command, Failed> {
    let parameters = &step.parameters;
    let mut command = match text(parameters, "command") {
        Some(line) => {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").arg(line);
            command
        }
        None => {
            let argv = texts(parameters, "argv");
            let Some((program, arguments)) = argv.split_first() else {
                return Err(Failed::Fatal("argv is empty".to_owned()));
            };
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
    };
    command.env_clear();
    for name in ALWAYS.iter().map(|name| (*name).to_owned()).chain(texts(parameters, "env")) {
        if let Some(value) = std::env::var_os(&name) {
            command.env(name, value);
        }
    }
    command.envs(pairs(parameters, "set"));
    command.env("MILEPOST_IDEMPOTENCY_KEY", &step.key);
    command.env("MILEPOST_SESSION", step.session.to_string());
    command.env("MILEPOST_NODE", &step.node);
    command.env("MILEPOST_ATTEMPT", step.attempt.to_string());
    if let Some(directory) = text(parameters, "cwd") {
        command.current_dir(directory);
    }
    command.stdin(if text(parameters, "stdin").is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Reads a stream to its end and keeps the beginning of it.
async fn keep(mut stream: impl AsyncRead + Unpin, limit: usize, step: &Step) -> (Vec<u8>, bool) {
    let (mut kept, mut truncated) = (Vec::new(), false);
    let mut part = [0u8; 8192];
    while let Ok(count) = stream.read(&mut part).await {
        if count == 0 {
            break;
        }
        step.progress();
        let room = limit.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&part[..room]);
        truncated |= room < count;
    }
    (kept, truncated)
}

#[async_trait]
impl Action for Shell {
    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let mut command = command(&step)?;
        let started = command.spawn();
        let mut child = started.map_err(|error| Failed::Fatal(format!("the command cannot be started: {error}")))?;
        let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
        let limit = step.parameters.get("max_output_bytes").and_then(Value::as_u64).unwrap_or(MAX_OUTPUT_BYTES);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (stdout, stderr, stdin) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
        let feed = async {
            if let (Some(mut stdin), Some(input)) = (stdin, text(&step.parameters, "stdin")) {
                // A command that does not read its input is no failure.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let read = async {
            let out = async {
                match stdout {
                    Some(stdout) => keep(stdout, limit, &step).await,
                    None => Default::default(),
                }
            };
            let err = async {
                match stderr {
                    Some(stderr) => keep(stderr, limit, &step).await,
                    None => Default::default(),
                }
            };
            let (out, err, ()) = tokio::join!(out, err, feed);
            (out, err, child.wait().await)
        };
        tokio::pin!(read);
        let ((stdout, cut_out), (stderr, cut_err), status) = tokio::select! {
            read = &mut read => read,
            () = step.cancel.cancelled() => {
                group.signal(Signal::TERM);
                // Whatever of the group is left after its grace ends with it.
                let _ = tokio::time::timeout(Duration::from_millis(GRACE_MS), &mut read).await;
                return Err(Failed::Transient("it was told to end".to_owned()));
            }
        };
        let status = status.map_err(|error| Failed::Transient(format!("its end was missed: {error}")))?;
        let (stdout, stderr) =
            (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
        let ok = numbers(&step.parameters, "ok").unwrap_or_else(|| vec![0]);
        match status.code() {
            Some(code) if u64::try_from(code).is_ok_and(|code| ok.contains(&code)) => {
                let value = parsed(text(&step.parameters, "parse"), &stdout)?;
                let truncated = cut_out || cut_err;
                Ok(json!({"code": code, "stdout": stdout, "stderr": stderr, "truncated": truncated, "value": value}))
            }
            Some(code) => Err(Failed::Transient(format!("it ended with code {code}{}", last_words(&stderr)))),
            None => Err(Failed::Transient(format!("it was ended by a signal{}", last_words(&stderr)))),
        }
    }
}

fn parsed(how: Option<&str>, stdout: &str) -> Result<Value, Failed> {
    match how {
        Some("json") => {
            serde_json::from_str(stdout).map_err(|error| Failed::Transient(format!("its output is not JSON: {error}")))
        }
        Some("lines") => Ok(stdout.lines().map(Value::from).collect()),
        Some(_) => Ok(Value::from(stdout)),
        None => Ok(Value::Null),
    }
}

fn last_words(stderr: &str) -> String {
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let last: String = last.chars().filter(|c| !c.is_control()).take(300).collect();
    if last.is_empty() { String::new() } else { format!(": {last}") }
}
