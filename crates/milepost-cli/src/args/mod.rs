//! The command line as it is typed: what stands before every command here, each group of commands in a file of its own.

mod conversation;
mod sessions;
mod store;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

pub use conversation::{Checkpoint, Messages, State};
pub use sessions::{
    Archive, Branch, Checkpoints, Compact, Delete, Export, Format, Import, Keyed, List, New, Resume, Search, Sessions,
};
pub use store::{Config, Copy, Doctor, Keys, Migrate, Prune, Redact, RulesName, Sql, Stats, Verify};

use crate::errors::EXIT_CODES;
use crate::out::Color;

const ABOUT: &str = "Durable sessions for AI agents: resume, rewind, compare and branch from any checkpoint.

A session's messages, state and checkpoints are kept in a durable log.

Sessions are named by their id, by a part of it that is unique (its end is best), or by `last` for the one written last. \
Checkpoints are named by their id, a part of it, a label, a time, or `latest`.";

const EXAMPLES: &str = "Examples:
  milepost sessions new --title \"Three papers\"
  milepost messages add last --role user \"Find three papers on write-ahead logs\"
  milepost checkpoint last --label \"before the risky part\"
  milepost sessions list --status failed
  milepost sessions resume 4k2m9x1q --set memory.retries=3
  milepost sessions diff last@\"before the risky part\" last
  milepost sessions search '\"write-ahead log\" fsync*'

Stores:
  --store URL, else MILEPOST_STORE, else the configuration's, else
  sqlite:$XDG_DATA_HOME/milepost/milepost.db. A URL is one of
  sqlite:PATH, postgres://…, s3://BUCKET/PREFIX, file:///DIR.
";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "milepost", bin_name = "milepost", version, about = ABOUT, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n{EXIT_CODES}"))]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 110)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "For every command")]
pub struct Global {
    /// Where sessions are kept: sqlite:PATH, postgres://…, s3://…, file:///… [env: MILEPOST_STORE]
    #[arg(long, global = true, value_name = "URL")]
    pub store: Option<String>,
    /// Whose sessions [env: MILEPOST_WORKSPACE]
    #[arg(long, global = true, value_name = "NAME")]
    pub workspace: Option<String>,
    /// The configuration file, instead of looking for milepost.yaml [env: MILEPOST_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write JSON, for machines
    #[arg(long, global = true)]
    pub json: bool,
    /// Write exact times instead of relative ones
    #[arg(long, global = true)]
    pub exact: bool,
    /// Write nothing but results and errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = false)]
    pub color: Color,
    /// Append a line of JSON for every checkpoint made, failed, pruned or restored to this file
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub log: Option<PathBuf>,
    /// Open a store whose write-ahead log is damaged, without what lies after the damage
    #[arg(long, global = true, hide_short_help = true)]
    pub accept_damage: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Begin, list, show, resume, branch, rewind, compare and end sessions
    #[command(subcommand, visible_alias = "session")]
    Sessions(Sessions),
    /// Add, list and follow messages
    #[command(subcommand, visible_alias = "message")]
    Messages(Messages),
    /// Read and change a session's state
    #[command(subcommand)]
    State(State),
    /// Take a checkpoint of a session
    Checkpoint(Checkpoint),
    /// Show what uses the space and what pruning would free, or with --usage what was spent
    Stats(Stats),
    /// Put old checkpoints into the trash, and erase what has lain there long enough
    Prune(Prune),
    /// Check every entry, hash and signature
    Verify(Verify),
    /// Rebuild lists, keyframes and the search index from the log
    Reindex {
        /// Only this session
        session: Option<String>,
    },
    /// Find what is wrong with histories and the store, and say what to do; changes nothing
    Doctor(Doctor),
    /// Erase a secret from everything already stored; the chain stays whole
    Redact(Redact),
    /// Copy everything of the workspace to another store, and compare
    Migrate(Migrate),
    /// Copy the whole store to a file while it is in use
    Backup {
        /// The file to write
        file: PathBuf,
    },
    /// Copy a session to another store; done again, only what is new goes over
    Push(Copy),
    /// Copy a session from another store
    Pull(Copy),
    /// Ask in SQL: tables sessions, messages, checkpoints; changes nothing
    Sql(Sql),
    /// Look at the configuration
    #[command(subcommand)]
    Config(Config),
    /// Make and rotate keys, sign and check heads
    #[command(subcommand)]
    Keys(Keys),
    /// Write completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages, one for each command
    Man {
        /// The directory to write them into; without it, the main page goes to the output
        directory: Option<PathBuf>,
    },
}

impl Command {
    /// Whether it changes nothing in the store.
    pub fn only_reads(&self) -> bool {
        use Sessions::{Checkpoints, Diff, Export, Inspect, List, Search, Show};
        match self {
            Command::Sessions(command) => {
                matches!(
                    command,
                    Checkpoints(_) | Diff { .. } | Export(_) | Inspect { .. } | List(_) | Search(_) | Show { .. }
                )
            }
            Command::Messages(command) => !matches!(command, Messages::Add { .. }),
            Command::State(command) => matches!(command, State::Get { .. }),
            Command::Keys(command) => !matches!(command, Keys::Rotate { .. } | Keys::Shred { .. }),
            Command::Stats(_)
            | Command::Verify(_)
            | Command::Doctor(_)
            | Command::Backup { .. }
            | Command::Sql(_)
            | Command::Config(_)
            | Command::Completions { .. }
            | Command::Man { .. } => true,
            _ => false,
        }
    }

    /// Whether it goes on until it is interrupted.
    pub fn is_endless(&self) -> bool {
        matches!(self, Command::Messages(Messages::Tail { no_follow: false, .. }))
    }
}

fn at_least_one(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("give a whole number from 1 on")
}

/// The longest role.
const MAX_ROLE_CHARS: usize = 64;

fn role(text: &str) -> Result<String, String> {
    let is_right = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
    match (1..=MAX_ROLE_CHARS).contains(&text.len()) && text.bytes().all(is_right) {
        true => Ok(text.to_owned()),
        false => Err(format!("a role has 1 to {MAX_ROLE_CHARS} characters of a-z, 0-9, _ and -")),
    }
}
