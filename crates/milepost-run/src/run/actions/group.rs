//! A process group of one's own: a program sees only the variables that it is allowed, and when it has to end, all that it
//! started does too.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{pairs, text, texts};
use crate::run::action::Step;

/// The variables that every program sees.
const ALWAYS: &[&str] = &["PATH", "HOME", "LANG", "TMPDIR"];

/// Ends a whole process group when it is dropped.
pub(super) struct Group(Option<Pid>);

impl Group {
    pub fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
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
    command.env("MILEPOST_IDEMPOTENCY_KEY", &step.key);
    command.env("MILEPOST_SESSION", step.session.to_string());
    command.env("MILEPOST_NODE", &step.node);
    command.env("MILEPOST_ATTEMPT", step.attempt.to_string());
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
}
