//! Who holds a session: this process in words, and whether another one that held it still lives.
//!
//! A process that was killed leaves its lease behind. Where its words say that it ran on this machine, since the same
//! start and among the same processes, and it is gone, nobody has to wait for the lease to end.

/// This process, in words that another one can check.
pub fn this_process() -> String {
    let who = format!("milepost on {} (process {}", host(), std::process::id());
    match era() {
        Some(era) => format!("{who}, {era})"),
        None => format!("{who})"),
    }
}

/// Whether a holder was a process of this machine that is gone. In doubt it is not.
pub fn is_gone(holder: &str) -> bool {
    let begins = format!("milepost on {} (process ", host());
    let Some((pid, era_then)) = holder.strip_prefix(&begins).and_then(|rest| rest.strip_suffix(')')?.split_once(", "))
    else {
        return false;
    };
    let Ok(pid) = pid.parse::<u32>() else { return false };
    era().is_some_and(|era| era == era_then) && is_over(pid)
}

/// Whether there is no such process, or nothing is left of it but that nobody has asked how it ended: where nobody does, as in
/// many containers, that is for ever.
fn is_over(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        // What comes before is its name, in which anything may stand.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['Z', 'X'])),
    }
}

/// Since when, and among which, process ids mean the same: the machine's start and the namespace. Unknown where there is
/// no such file.
fn era() -> Option<String> {
    let start = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let namespace: String = namespace.to_str()?.chars().filter(char::is_ascii_digit).collect();
    Some(format!("start {}, space {namespace}", start.trim().get(..8)?))
}

/// The machine's name.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "this machine".to_owned())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn only_a_process_of_this_machine_that_ended_is_gone() {
        assert!(!is_gone(&this_process()));
        assert!(!is_gone("a test"));
        if let Some(era) = era() {
            // No process has the largest number.
            let pid = u32::MAX;
            assert!(is_gone(&format!("milepost on {} (process {pid}, {era})", host())));
            assert!(!is_gone(&format!("milepost on elsewhere (process {pid}, {era})")));
            assert!(!is_gone(&format!("milepost on {} (process {pid}, start 00000000, space 1)", host())));
            assert!(!is_gone(&format!("milepost on {} (process {pid})", host())));
        }
    }

    #[test]
    fn a_process_that_was_killed_is_gone_before_anybody_asks_how_it_ended() {
        let Some(era) = era() else { return };
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let holder = format!("milepost on {} (process {}, {era})", host(), child.id());
        assert!(!is_gone(&holder));
        child.kill().unwrap();
        let pid = Pid::from_child(&child);
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert!(std::path::Path::new(&format!("/proc/{}", child.id())).exists(), "nobody has asked yet");
        assert!(is_gone(&holder));
        child.wait().unwrap();
    }
}
