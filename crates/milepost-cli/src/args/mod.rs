//! The command line as it is typed: what stands before every command here, each group of commands in a file of its own.

mod again;
mod chat;
mod conversation;
mod import;
mod projects;
mod runs;
mod sessions;
mod store;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

pub use again::{MergeBack, RunAgain, VerifyReplay};
pub use chat::Chat;
pub use conversation::{Checkpoint, Messages, State};
pub use import::{Foreign, Langgraph};
pub use projects::{Artifacts, Projects, Whose};
pub use runs::{Answer, Answering, Approve, Budgets, Demo, Graph, HowToRun, ResumeRun, Run, Steps, Work};
pub use sessions::{
    Archive, Branch, Checkpoints, Compact, Delete, Export, Format, Import, Keyed, List, New, Resume, Search, Sessions,
};
pub use store::{
    Config, Copy, Doctor, ExportAll, Keys, Migrate, Prune, Redact, RulesName, Salvage, Sql, Stats, Verify,
};

use milepost_models::Cancel;

use crate::app::OnInterrupt;
use crate::errors::EXIT_CODES;
use crate::out::Color;

const ABOUT: &str = "Durable sessions for AI agents: resume, rewind, compare and branch from any checkpoint.

A session's messages, state and checkpoints are kept in a durable log.

Sessions are named by their id, by a part of it that is unique (its end is best), or by `last` for the one written last. \
Checkpoints are named by their id, a part of it, a label, a time (the newest taken by then, else the first), or `latest`.";

const EXAMPLES: &str = "Examples:
  milepost chat --model anthropic/claude-sonnet-5
  milepost run examples/research.yaml --input topic=\"B-trees\"
  milepost resume last
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
    /// Wait so many seconds for whoever holds the session; resume does not wait unless told to [default: 5]
    #[arg(long, global = true, value_name = "SECONDS", hide_short_help = true, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub wait: Option<u64>,
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
    /// List and show what sessions are about, and say which directory belongs to it
    #[command(subcommand, visible_alias = "project")]
    Projects(Projects),
    /// Keep what was made, with its content and older versions, and make more from templates
    #[command(subcommand, visible_alias = "artifact")]
    Artifacts(Artifacts),
    /// See a run killed in the middle, and go on: takes a few seconds, needs nothing
    Demo(Demo),
    /// Talk with a model; nothing that was said is lost
    Chat(Chat),
    /// Run a graph or a plan, step by durable step
    Run(Run),
    /// Go on with a run: skip what is done, try again what failed
    Resume(ResumeRun),
    /// Show the steps of a run: what was done, under which key, and what came of it
    Steps(Steps),
    /// Answer a question that a run asks, or will ask
    Answer(Answer),
    /// Say yes, or with --deny no, to what a run asks for
    Approve(Approve),
    /// Run a step again with other input, and what follows it, on a branch
    RunAgain(RunAgain),
    /// Bring what a branch found to the session that it came from
    MergeBack(MergeBack),
    /// Check recorded runs against a graph as it is now: do they still fit?
    VerifyReplay(VerifyReplay),
    /// Go on with runs and conversations whose timer, limit or answer has come
    Work(Work),
    /// Check, draw and describe graphs and plans
    #[command(subcommand)]
    Graph(Graph),
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
    /// Rescue what is whole in a damaged SQLite store into a new one; the damaged file is only read
    #[command(after_help = "Every page is searched for entries of the log, past the file's own structure, with
what was committed to the log beside it (FILE-wal). An entry counts when its
checksum fits; a timeline is kept up to its first missing entry. No program may
be writing to the file meanwhile. Afterwards look at the new store with `milepost
verify --store sqlite:TO`, and use it in place of the old one.")]
    Salvage(Salvage),
    /// Find what is wrong with histories and the store, and say what to do; changes nothing
    Doctor(Doctor),
    /// Erase a secret from everything already stored; the chain stays whole
    Redact(Redact),
    /// Copy everything of the workspace to another store, and compare
    Migrate(Migrate),
    /// Bring over sessions that other programs keep
    #[command(subcommand)]
    Import(Foreign),
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
    #[command(after_help = store::sql_help())]
    Sql(Sql),
    /// Write sessions into a SQLite file with the tables that `sql` has; `sessions export` has other forms
    Export(ExportAll),
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
        use Sessions::{Checkpoints, Diff, Export, Inspect, List, Search, Show, Summary};
        match self {
            Command::Sessions(command) => {
                matches!(
                    command,
                    Checkpoints(_)
                        | Diff { .. }
                        | Export(_)
                        | Inspect { .. }
                        | List(_)
                        | Search(_)
                        | Show { .. }
                        | Summary { .. }
                )
            }
            Command::Messages(command) => !matches!(command, Messages::Add { .. }),
            Command::State(command) => matches!(command, State::Get { .. }),
            Command::Projects(command) => matches!(command, Projects::List | Projects::Show { .. }),
            Command::Artifacts(command) => matches!(command, Artifacts::List { .. } | Artifacts::Show { .. }),
            Command::Keys(command) => !matches!(command, Keys::Rotate { .. } | Keys::Shred { .. }),
            Command::Graph(_)
            | Command::Steps(_)
            | Command::VerifyReplay(_)
            | Command::Stats(_)
            | Command::Verify(_)
            | Command::Doctor(_)
            | Command::Backup { .. }
            | Command::Sql(_)
            | Command::Export(_)
            | Command::Config(_)
            | Command::Completions { .. }
            | Command::Man { .. } => true,
            _ => false,
        }
    }

    /// What becomes of it when a person stops it.
    pub fn on_interrupt(&self, cancel: &Cancel) -> OnInterrupt {
        match self {
            Command::Run(_) | Command::Resume(_) | Command::RunAgain(_) | Command::Work(_) => {
                OnInterrupt::Tell(cancel.clone())
            }
            Command::Chat(_) => OnInterrupt::Own,
            _ => OnInterrupt::Leave,
        }
    }

    /// Whether there has to be a store already: what reads, and what writes to sessions that are there, makes none.
    pub fn needs_store(&self) -> bool {
        match self {
            Command::Sessions(command) => !matches!(command, Sessions::New(_) | Sessions::Import(_)),
            Command::Keys(command) => !matches!(command, Keys::New { .. }),
            Command::Resume(_)
            | Command::VerifyReplay(_)
            | Command::Steps(_)
            | Command::Answer(_)
            | Command::Approve(_)
            | Command::Messages(_)
            | Command::State(_)
            | Command::Checkpoint(_)
            | Command::Projects(_)
            | Command::Artifacts(_)
            | Command::Stats(_)
            | Command::Prune(_)
            | Command::Verify(_)
            | Command::Reindex { .. }
            | Command::Doctor(_)
            | Command::Redact(_)
            | Command::Backup { .. }
            | Command::Push(_)
            | Command::Sql(_)
            | Command::Export(_) => true,
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

/// Roles that are known: of the usual APIs, and of those that have more.
const ROLES: [&str; 6] = ["user", "assistant", "system", "tool", "developer", "function"];

/// A role that is known, for what is added by hand.
fn known_role(text: &str) -> Result<String, String> {
    if ROLES.contains(&text) {
        return Ok(text.to_owned());
    }
    // Comparing is quadratic in length; nothing that long is a misspelt role.
    let given: String = text.chars().take(MAX_ROLE_CHARS).flat_map(char::to_lowercase).collect();
    let near = ROLES.iter().map(|role| (strsim::osa_distance(&given, role), role)).min();
    let hint = match near {
        Some((distance, near)) if distance <= (given.len() / 3).max(1) => format!("did you mean {near}? Else "),
        _ => String::new(),
    };
    Err(format!("{hint}use one of {}; any other role goes with --from-json", ROLES.join(", ")))
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
