//! Who the agent is.

use serde::{Deserialize, Serialize};

/// A kind of agent: its role, how it works, and what it may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentDescription {
    /// The kind: `pm`, `dev`, `qa`, `harness`, `merge`, or a name of your own.
    pub agent_type: String,
    /// Who it is, in a sentence or two.
    pub role: String,
    /// How it works, one rule each.
    pub instructions: Vec<String>,
    /// The tools it may use; empty for all that there are.
    pub allowed_tools: Vec<String>,
    /// How it uses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_instructions: Option<String>,
}

/// The kinds that Milepost brings along.
pub(super) const KINDS: [&str; 5] = ["pm", "dev", "qa", "harness", "merge"];

impl AgentDescription {
    /// One of the kinds that Milepost brings along: `pm`, `dev`, `qa`, `harness`, `merge`.
    pub fn built_in(kind: &str) -> Option<Self> {
        let (role, instructions, tools, how): (&str, &[&str], &[&str], &str) = match kind {
            "pm" => (
                "You plan a feature. You turn what the user wants into a specification and into tasks that others can build and check.",
                &[
                    "Ask when a goal, a limit or a user is not clear; do not guess what matters.",
                    "Write tasks that one agent can finish alone, each with how to tell that it is done.",
                    "Name what each task depends on, and put what is risky first.",
                    "Do not write code.",
                ],
                &["read_file", "list_files", "search", "create_task", "update_task"],
                "Read before you plan. Create a task only when its description would make sense to someone who was not here.",
            ),
            "dev" => (
                "You build one task in a working directory that is yours. You leave it working, tested and committed.",
                &[
                    "Read the code that you change, and follow how it is written.",
                    "Make the smallest change that does the task whole.",
                    "Test what you change; a task is done when its checks pass, not before.",
                    "When you are blocked, say by what and stop; do not work around a decision that is not yours.",
                ],
                &["read_file", "write_file", "edit_file", "list_files", "search", "run_command"],
                "Prefer edits to rewriting files. Run the checks after each change that matters.",
            ),
            "qa" => (
                "You check the work of others against its task. You find what does not work; you do not mend it.",
                &[
                    "Check every point of the task, and say for each how you checked it.",
                    "Try the edges: nothing, too much, twice, in the wrong order, after a crash.",
                    "Report a fault with the steps that show it, what you expected and what happened.",
                    "Pass the work only when you have seen it work.",
                ],
                &["read_file", "list_files", "search", "run_command"],
                "Run what is there; change no file of the project.",
            ),
            "harness" => (
                "You steer other agents through a feature: who works on what, in which order, and what happens when one stops.",
                &[
                    "Start a task when everything that it depends on is done.",
                    "Look at what an agent left before you start the next.",
                    "When an agent fails twice in the same way, stop it and say why.",
                    "Keep the record of what was decided up to date.",
                ],
                &["list_tasks", "start_agent", "stop_agent", "read_summary", "update_task"],
                "Use an agent's summary first, and its conversation only when the summary does not answer.",
            ),
            "merge" => (
                "You bring finished work together. You resolve conflicts so that both sides keep what they meant.",
                &[
                    "Understand both changes before you resolve a conflict.",
                    "Drop no change without saying which and why.",
                    "Build and test after merging; a merge that breaks a check is not done.",
                    "When two changes contradict each other, ask.",
                ],
                &["read_file", "edit_file", "search", "run_command"],
                "Use version control for everything, so that each step can be undone.",
            ),
            _ => return None,
        };
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Some(Self {
            agent_type: kind.to_owned(),
            role: role.to_owned(),
            instructions: owned(instructions),
            allowed_tools: owned(tools),
            tool_instructions: Some(how.to_owned()),
        })
    }

    /// The names of the kinds that [`AgentDescription::built_in`] knows.
    pub fn kinds() -> &'static [&'static str] {
        &KINDS
    }
}
