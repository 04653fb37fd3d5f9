//! The first thing to try: a run that is killed in the middle, and goes on.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use crate::app::{App, apart};
use crate::args::Demo;
use crate::errors::{Failed, OnFile};
use crate::out::{Styles, count};
use crate::scratch::Scratch;

const PLAN: &str = include_str!("../../demo/research.yaml");
const SCRIPT: &str = include_str!("../../demo/model.yaml");
/// Nothing of the person's own configuration plays a part.
const CONFIG: &str = "model: scripted/model.yaml\n";
/// The step in which the process is killed.
const FATAL: &str = "summarise";

/// How long the model speaks before that.
const IN_THE_MIDDLE_MS: u64 = 500;

const UNREAD: &str = "reading what the run writes";

/// Where the demo takes place.
struct Scene {
    directory: PathBuf,
    store: String,
    styles: Styles,
    is_told: bool,
}

pub async fn run(app: &mut App, args: Demo) -> Result<ExitCode> {
    // It goes when the demo is over, also when somebody stops it.
    let scratch = match args.keep {
        true => None,
        false => Some(Scratch::beside(&std::env::temp_dir().join("milepost-demo"))?),
    };
    let directory = match &scratch {
        Some(scratch) => scratch.path().to_owned(),
        None => std::env::temp_dir().join(format!("milepost-demo-{}", std::process::id())),
    };
    make(&directory)?;
    let store = match app.store_flag() {
        Some(_) => app.settings()?.store.expose().to_owned(),
        None => format!("sqlite:{}", directory.join("milepost.db").display()),
    };
    let scene = Scene { directory, store, styles: app.out.styles, is_told: !app.out.json };
    let keep = args.keep;
    let told = apart(move || scene.play(keep)).await?;
    if app.out.json {
        app.out.json(&told)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A directory that only this person may look into.
fn make(path: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    Ok(builder.create(path).on_file(format!("making the directory {}", path.display()))?)
}

impl Scene {
    fn say(&self, text: &str) -> Result<()> {
        if self.is_told {
            use std::io::Write;
            writeln!(std::io::stdout().lock(), "{text}").map_err(Failed::output)?;
        }
        Ok(())
    }

    /// This program again, with the scene as its world.
    fn command(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().on_file("finding this program")?);
        command.args(args).current_dir(&self.directory).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("MILEPOST_")) {
                command.env_remove(name);
            }
        }
        command.env("MILEPOST_CONFIG", self.directory.join("milepost.yaml")).env("MILEPOST_STORE", &self.store);
        Ok(command)
    }

    /// Runs a command as a person would, and shows it.
    fn show(&self, args: &[&str]) -> Result<()> {
        self.say(&format!("\n{} milepost {}", self.styles.dim("$"), args.join(" ")))?;
        let mut command = self.command(args)?;
        if !self.is_told {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        } else {
            // Both in the order in which they are written.
            #[cfg(unix)]
            command.stderr(std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned()?);
        }
        let status = command.status().map_err(|error| Failed::system("running milepost", error))?;
        match status.success() {
            true => Ok(()),
            false => Err(anyhow!("`milepost {}` ended with {status}; report this", args.join(" "))),
        }
    }

    fn play(&self, keep: bool) -> Result<Value> {
        for (name, text) in [("research.yaml", PLAN), ("model.yaml", SCRIPT), ("milepost.yaml", CONFIG)] {
            std::fs::write(self.directory.join(name), text).on_file(format!("writing {name}"))?;
        }
        self.say(&format!("1. A research agent with five steps is run by a process of its own, on {}.", self.store))?;
        self.say(&format!("\n{} milepost run research.yaml", self.styles.dim("$")))?;
        let (id, status) = self.run_until_killed()?;
        self.say(&format!("   … and is killed with SIGKILL while {FATAL} is half said ({status})."))?;
        let before = effects(&self.directory)?;
        self.say("\n2. What is left of it: every step that was done, and one that was begun.")?;
        self.show(&["steps", &id])?;
        self.say("\n3. Another process goes on. What is done is skipped.")?;
        self.show(&["resume", &id])?;
        self.say("\n4. The whole story, from the log.")?;
        self.show(&["steps", &id, "--all"])?;
        let after = effects(&self.directory)?;
        let twice: Vec<&String> = after.iter().filter(|(_, times)| **times != 1).map(|(step, _)| step).collect();
        if !twice.is_empty() {
            return Err(anyhow!("these steps did not happen once: {twice:?}; report this"));
        }
        self.say("\n5. How often each step really happened, counted in the file that they write to:\n")?;
        for (step, times) in &after {
            let when = if before.contains_key(step) { "before the kill" } else { "after it" };
            self.say(&format!("   {step:<11} {times} time, {when}"))?;
        }
        let all = count(after.len(), "effect");
        self.say(&format!("\n   {} {all}, none twice. {FATAL}, a question to a", self.styles.good("✓")))?;
        self.say("   model, was asked again under the key it had, because its answer never arrived.")?;
        if keep {
            let directory = self.directory.display();
            self.say(&format!("\nLook around: cd {directory}; export MILEPOST_STORE={}", self.store))?;
        }
        self.say("\nNext: milepost run --help, milepost chat --help, milepost --help.")?;
        Ok(json!({
            "sessionId": id, "killed": status, "effects": after, "effectsBeforeKill": before, "ranTwice": twice,
        }))
    }

    /// Runs the plan until the fatal step has begun, and kills the process. The session, and how the process ended.
    fn run_until_killed(&self) -> Result<(String, String)> {
        let mut child = self
            .command(&["--json", "run", "research.yaml"])?
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| Failed::system("running milepost", error))?;
        let out = child.stdout.take().ok_or_else(|| Failed::system(UNREAD, "it has no output"))?;
        let mut id = None;
        for line in BufReader::new(out).lines() {
            let event: Value = serde_json::from_str(&line.on_file(UNREAD)?)
                .map_err(|error| anyhow!("{UNREAD} failed: {error}; report this"))?;
            let text = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
            id = id.or_else(|| event.get("sessionId").and_then(Value::as_str).map(str::to_owned));
            match text("event") {
                "step_outcome" => self.say(&format!("   {:<11} done", text("node")))?,
                "step_intent" if text("node") == FATAL => {
                    self.say(&format!("   {FATAL:<11} started"))?;
                    // In the middle of the answer, which takes about a second.
                    let (_tell, told) = std::sync::mpsc::channel::<()>();
                    let _ = told.recv_timeout(std::time::Duration::from_millis(IN_THE_MIDDLE_MS));
                    child.kill().map_err(|error| Failed::system("killing the run", error))?;
                    break;
                }
                _ => {}
            }
        }
        let status = child.wait().map_err(|error| Failed::system("waiting for the run", error))?;
        let id = id.ok_or_else(|| anyhow!("the run ended with {status} before it began; report this"))?;
        Ok((id, status.to_string()))
    }
}

/// How often each step wrote that it happened.
fn effects(directory: &Path) -> Result<BTreeMap<String, u32>> {
    let text = std::fs::read_to_string(directory.join("effects.log")).on_file("reading effects.log")?;
    let mut times = BTreeMap::new();
    for line in text.lines() {
        let step = line.split(' ').next().unwrap_or_default();
        *times.entry(step.to_owned()).or_insert(0) += 1;
    }
    Ok(times)
}
