//! A process group of one's own: a program sees only the variables that it is allowed, and when it has to end, all that it
//! started does too.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use milepost::config::STEP_VARIABLES;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{pairs, text, texts};
use crate::run::action::Step;

/// The variables that every program sees.
const ALWAYS: &[&str] = &["PATH", "HOME", "LANG", "TMPDIR"];

/// The process groups that this program has started and not ended.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Ends every command and server that runs in this program started, with all that they started, at once. For whoever is about to
/// leave and does not wait: what ignores a request to end would live on.
pub fn end_commands() {
    for pid in RUNNING.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        // The group may be gone, which is what is wanted.
        let _ = kill_process_group(*pid, Signal::KILL);
    }
}

/// Ends a whole process group when it is dropped.
pub(super) struct Group(Option<Pid>);

impl Group {
    pub fn of(child: &Child) -> Self {
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).extend(pid);
        Self(pid)
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            // The group may be gone, which is what is wanted.
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|pid| Some(*pid) != self.0);
    }
}

/// Gives a program its environment, its directory and a group of its own.
pub(super) fn confine(command: &mut Command, parameters: &Value, step: &Step) {
    command.env_clear();
    for name in ALWAYS.iter().map(|name| (*name).to_owned()).chain(texts(parameters, "env")) {
        if let Some(value) = std::env::var_os(&name) {
            command.env(name, value);
        }
    }
    command.envs(pairs(parameters, "set"));
    let told = [step.key.to_string(), step.session.to_string(), step.node.to_string(), step.attempt.to_string()];
    command.envs(STEP_VARIABLES.into_iter().zip(told));
    let own = text(parameters, "cwd").map(Path::new);
    let directory = match (&step.parts.directory, own) {
        (Some(base), Some(own)) => Some(base.join(own)),
        (Some(base), None) => Some(base.to_path_buf()),
        (None, own) => own.map(Path::to_path_buf),
    };
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.process_group(0).kill_on_drop(true);
    end_with_this_program(command);
}

/// Whoever goes on with a run whose process was killed would run the command beside the first one: so it ends with the process. What
/// it has started itself is not reached.
#[cfg(target_os = "linux")]
fn end_with_this_program(command: &mut Command) {
    let parent = rustix::process::getpid();
    let ends = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have been killed before that was said.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(std::io::Error::other("the program that started it is gone")),
        }
    };
    #[allow(
        unsafe_code,
        reason = "there is no other way; both are plain system calls, which may stand between fork and exec"
    )]
    // SAFETY: `ends` allocates nothing but on its way out, takes no lock, and calls only what is safe in a signal handler.
    unsafe {
        command.pre_exec(ends);
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with_this_program(_: &mut Command) {}
