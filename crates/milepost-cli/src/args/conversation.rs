//! What is said and known in a session: messages, state, checkpoints.

use clap::{Args as ClapArgs, Subcommand};

use super::known_role;

#[derive(Debug, Subcommand)]
pub enum Messages {
    /// Add a message
    Add {
        /// The session
        session: String,
        /// The text; read from the input when it is - or left out
        text: Option<String>,
        /// Who says it: user, assistant, system, tool, developer, function
        #[arg(long, default_value = "user", value_parser = known_role)]
        role: String,
        /// The message is JSON: {"role": …, "content": …}, or one a line
        #[arg(long = "from-json")]
        from_json: bool,
        /// Which conversation of the session
        #[arg(long)]
        channel: Option<String>,
    },
    /// List messages
    List {
        /// The session
        session: String,
        /// The last so many
        #[arg(long, short = 'n', default_value_t = 20)]
        last: usize,
        /// All of them
        #[arg(long, short = 'a')]
        all: bool,
        /// Which conversation of the session
        #[arg(long)]
        channel: Option<String>,
        /// Up to this checkpoint
        #[arg(long)]
        checkpoint: Option<String>,
        /// Put secrets from the vault back
        #[arg(long)]
        reveal: bool,
    },
    /// Show the last messages, and new ones as they come
    Tail {
        /// The session
        session: String,
        /// Begin with the last so many
        #[arg(long, short = 'n', default_value_t = 10)]
        last: usize,
        /// Stop after the last one instead of waiting for more
        #[arg(long)]
        no_follow: bool,
        /// Put secrets from the vault back
        #[arg(long)]
        reveal: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum State {
    /// Read the state, or a part of it
    Get {
        /// The session
        session: String,
        /// A path: memory.step or /memory/step
        path: Option<String>,
        /// At this checkpoint
        #[arg(long)]
        checkpoint: Option<String>,
        /// Put secrets from the vault back
        #[arg(long)]
        reveal: bool,
    },
    /// Set values
    Set {
        /// The session
        session: String,
        /// KEY=VALUE: a path, and JSON or a text
        #[arg(required = true, value_name = "KEY=VALUE")]
        values: Vec<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub struct Checkpoint {
    /// The session
    pub session: String,
    /// A short name; labelled checkpoints are not pruned
    #[arg(long)]
    pub label: Option<String>,
    /// What is going on
    #[arg(long)]
    pub description: Option<String>,
    /// Why: manual, milestone, safe_point, …
    #[arg(long = "type", value_name = "TRIGGER", default_value = "manual", visible_alias = "trigger")]
    pub trigger: String,
}
