//! A command in a process group of its own: it sees only the variables that it is allowed, its output is limited, and
//! when it has to end, all of the group does.

use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;

use super::group::{Group, confine};
use super::{numbers, text, texts};
use crate::run::action::{Action, After, Failed, Step};
use crate::run::turn::MAX_OUTPUT_BYTES as MAX_GIVEN_BYTES;

/// How much of each stream is kept unless the node says otherwise (1 MiB).
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// How long a command may take to end when it is asked to, in milliseconds.
const GRACE_MS: u64 = 3000;
/// How long what a command left running may hold its streams open, in milliseconds.
const LINGER_MS: u64 = 500;

pub(super) struct Shell;

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
    confine(&mut command, parameters, step);
    command.stdin(if text(parameters, "stdin").is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// What is kept of a stream.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Kept {
    /// Reads a stream to its end and keeps the beginning of it.
    async fn read(&mut self, stream: Option<impl AsyncRead + Unpin>, limit: usize, step: &Step) {
        let Some(mut stream) = stream else { return };
        let mut part = [0u8; 8192];
        while let Ok(count) = stream.read(&mut part).await {
            if count == 0 {
                break;
            }
            step.progress();
            let room = limit.saturating_sub(self.bytes.len()).min(count);
            self.bytes.extend_from_slice(&part[..room]);
            self.is_cut |= room < count;
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[async_trait]
impl Action for Shell {
    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let mut command = command(&step)?;
        let started = command.spawn();
        let mut child = started.map_err(|error| Failed::Fatal(format!("the command cannot be started: {error}")))?;
        let group = Group::of(&child);
        let limit = step.parameters.get("max_output_bytes").and_then(Value::as_u64).unwrap_or(MAX_OUTPUT_BYTES);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (stdout, stderr, stdin) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
        let (mut out, mut err) = (Kept::default(), Kept::default());
        let feed = async {
            if let (Some(mut stdin), Some(input)) = (stdin, text(&step.parameters, "stdin")) {
                // A command that does not read its input is no failure.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let read = async {
            let streams = async { tokio::join!(out.read(stdout, limit, &step), err.read(stderr, limit, &step), feed) };
            tokio::pin!(streams);
            tokio::select! {
                _ = &mut streams => child.wait().await,
                status = child.wait() => {
                    // What it left running may hold its streams open for ever, and ends with it.
                    for _ in 0..2 {
                        if timeout(Duration::from_millis(LINGER_MS), &mut streams).await.is_ok() {
                            break;
                        }
                        group.signal(Signal::KILL);
                    }
                    status
                }
            }
        };
        let status = {
            tokio::pin!(read);
            tokio::select! {
                status = &mut read => status,
                () = step.cancel.cancelled() => {
                    group.signal(Signal::TERM);
                    // Whatever of the group is left after its grace ends with it.
                    let _ = timeout(Duration::from_millis(GRACE_MS), &mut read).await;
                    // How far it came, nobody knows.
                    return Err(Failed::Uncertain("it was told to end".to_owned()));
                }
            }
        };
        let status = status.map_err(|error| Failed::Transient(format!("its end was missed: {error}")))?;
        let (stdout, stderr) = (out.text(), err.text());
        let ok = numbers(&step.parameters, "ok").unwrap_or_else(|| vec![0]);
        let truncated = out.is_cut || err.is_cut;
        match status.code() {
            Some(code) if u64::try_from(code).is_ok_and(|code| ok.contains(&code)) => {
                let (value, why) = match parsed(text(&step.parameters, "parse"), &stdout) {
                    Ok(value) => (value, None),
                    Err(why) => (Value::Null, Some(why)),
                };
                let given =
                    json!({"code": code, "stdout": stdout, "stderr": stderr, "truncated": truncated, "value": value});
                match why {
                    None => Ok(given),
                    // What it was for, it did.
                    Some(why) => {
                        let output = Some(given).filter(|given| given.to_string().len() <= MAX_GIVEN_BYTES);
                        Err(Failed::AfterEffect(Box::new(After { why, output, ..After::default() })))
                    }
                }
            }
            Some(code) => {
                let why = format!("it ended with code {code}{}", last_words(&stderr));
                let gave = json!({"code": code, "stdout": stdout, "stderr": stderr, "truncated": truncated});
                Err(Failed::Said { why, gave })
            }
            // It could not say how far it came.
            None => Err(Failed::Uncertain(format!("it was ended by a signal{}", last_words(&stderr)))),
        }
    }
}

fn parsed(how: Option<&str>, stdout: &str) -> Result<Value, String> {
    match how {
        Some("json") => serde_json::from_str(stdout).map_err(|error| format!("its output is not JSON: {error}")),
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
