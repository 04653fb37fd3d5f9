//! The command line as it is typed.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

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

/// What sessions are found by.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct Keyed {
    /// The project it is about
    #[arg(long)]
    pub project: Option<String>,
    /// The kind of agent that works on it
    #[arg(long)]
    pub agent: Option<String>,
    /// The feature it is part of
    #[arg(long)]
    pub feature: Option<String>,
    /// The task it works on
    #[arg(long)]
    pub task: Option<String>,
    /// The stage of the task: planning, in_dev, in_qa, …
    #[arg(long)]
    pub stage: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// Begin a session; its id is written
    New(New),
    /// List sessions, last active first
    #[command(visible_alias = "ls")]
    List(List),
    /// Show one session
    Show {
        /// The session
        session: String,
    },
    /// List the checkpoints of a session
    Checkpoints(Checkpoints),
    /// Show one checkpoint
    Inspect {
        /// The session
        session: String,
        /// The checkpoint: an id, a part of it, a label, a time, or `latest`
        checkpoint: String,
        /// With the whole state
        #[arg(long, visible_alias = "memory")]
        state: bool,
    },
    /// Go on with a session, at its end or from a checkpoint
    Resume(Resume),
    /// Take a checkpoint and set the status to paused
    Pause {
        /// The session
        session: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Take the last checkpoint and set the status to completed
    Complete {
        /// The session
        session: String,
    },
    /// Begin a session that shares everything up to a checkpoint of another; nothing is copied
    Branch(Branch),
    /// Set a session back to a checkpoint, in place; what came after stays reachable
    Restore {
        /// The session
        session: String,
        /// The checkpoint: an id, a part of it, a label, a time, or `latest`
        checkpoint: String,
        /// Only say what would be left behind
        #[arg(long)]
        dry_run: bool,
    },
    /// Compare two checkpoints: SESSION, SESSION@CHECKPOINT, or a checkpoint's id
    Diff {
        /// The first
        a: String,
        /// The second
        b: String,
    },
    /// Search all conversations: words, "phrases", prefixes*
    Search(Search),
    /// Summarise the older part of a conversation for requests; the messages stay
    Compact(Compact),
    /// Undo the last compaction
    Uncompact {
        /// The session
        session: String,
    },
    /// Move a session to cheaper storage; it comes back when it is resumed or shown
    Archive(Archive),
    /// Bring an archived session back
    Unarchive {
        /// The session
        session: String,
    },
    /// Put sessions, or one checkpoint, into the trash
    Trash {
        /// The sessions
        #[arg(required = true)]
        sessions: Vec<String>,
        /// Only this checkpoint of the session
        #[arg(long)]
        checkpoint: Option<String>,
    },
    /// Take sessions, or one checkpoint, out of the trash
    Untrash {
        /// The sessions
        #[arg(required = true)]
        sessions: Vec<String>,
        /// Only this checkpoint of the session: its id
        #[arg(long)]
        checkpoint: Option<String>,
    },
    /// Remove a session for good
    Delete(Delete),
    /// Write a session out: as a bundle, for reading, or for other tools
    Export(Export),
    /// Bring a session in: a bundle, a chat, or another tool's files
    Import(Import),
    /// Give a session another title
    Rename {
        /// The session
        session: String,
        /// The title
        title: String,
    },
    /// Add and remove tags: +urgent -draft; other flags go before the session
    Tag {
        /// The session
        session: String,
        /// +tag to add (a word alone adds too), -tag to remove
        #[arg(required = true, allow_hyphen_values = true)]
        tags: Vec<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub struct New {
    /// What it is called
    #[arg(long)]
    pub title: Option<String>,
    #[command(flatten)]
    pub keys: Keyed,
    /// A word to find it by; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// A value of the state to begin with: memory.step=1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Where its policy differs: every_messages=5
    #[arg(long = "policy", value_name = "KEY=VALUE")]
    pub policy: Vec<String>,
    /// Of the project of the working directory, with what is known of it: structure, CLAUDE.md, commits, tasks
    #[arg(long, conflicts_with = "project")]
    pub here: bool,
    /// If there is an open session of this project, feature, task, stage and agent, give that one
    #[arg(long, conflicts_with = "policy")]
    pub reuse: bool,
}

#[derive(Debug, ClapArgs)]
pub struct List {
    #[command(flatten)]
    pub keys: Keyed,
    /// With this status; may be given several times
    #[arg(long, value_enum)]
    pub status: Vec<StatusName>,
    /// Only those that can go on
    #[arg(long, conflicts_with = "status")]
    pub resumable: bool,
    /// With this tag
    #[arg(long)]
    pub tag: Option<String>,
    /// Those in the trash
    #[arg(long)]
    pub trashed: bool,
    /// Those that were archived
    #[arg(long, conflicts_with = "trashed")]
    pub archived: bool,
    /// Last active at or after: a time, or 2h, 3d
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Newest first instead of last active first
    #[arg(long)]
    pub by_creation: bool,
    /// At most so many
    #[arg(long, short = 'n', default_value_t = 20, value_parser = at_least_one)]
    pub limit: usize,
    /// All of them
    #[arg(long, short = 'a')]
    pub all: bool,
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

/// A status, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusName {
    Active,
    Paused,
    Waiting,
    Completed,
    Failed,
    Cancelled,
}

#[derive(Debug, ClapArgs)]
pub struct Checkpoints {
    /// The session
    pub session: String,
    /// Only of this trigger; may be given several times
    #[arg(long = "type", value_name = "TRIGGER", visible_alias = "trigger")]
    pub triggers: Vec<String>,
    /// Only clean ones
    #[arg(long)]
    pub clean: bool,
    /// Only those that can be resumed from
    #[arg(long)]
    pub resumable: bool,
    /// Those in the trash
    #[arg(long)]
    pub trashed: bool,
    /// At most so many
    #[arg(long, short = 'n', default_value_t = 50, value_parser = at_least_one)]
    pub limit: usize,
}

#[derive(Debug, ClapArgs)]
pub struct Resume {
    /// The session
    pub session: String,
    /// From this checkpoint instead of its end: an id, a label, or a time
    #[arg(long, value_name = "CHECKPOINT")]
    pub checkpoint: Option<String>,
    /// A value of the state to set first; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Take it even if someone else holds it
    #[arg(long)]
    pub take_over: bool,
    /// Go on with a session that was completed
    #[arg(long)]
    pub reopen: bool,
    /// Only say what it would go on from
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Branch {
    /// The session
    pub session: String,
    /// The checkpoint: an id, a part of it, a label, or a time
    #[arg(long, default_value = "latest")]
    pub checkpoint: String,
    /// What the branch is called
    #[arg(long)]
    pub title: Option<String>,
    /// A value of the state to set first; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub struct Search {
    /// What to look for
    #[arg(required = true)]
    pub text: Vec<String>,
    /// Anywhere, also inside of words; reads every message
    #[arg(long)]
    pub substring: bool,
    /// Only in this session
    #[arg(long)]
    pub session: Option<String>,
    /// Only in this project
    #[arg(long)]
    pub project: Option<String>,
    /// Only of this kind of agent
    #[arg(long)]
    pub agent: Option<String>,
    /// Only of this role: user, assistant, system, tool
    #[arg(long, value_parser = role)]
    pub role: Option<String>,
    /// Only at or after: a time, or 2h, 3d
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only before
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// At most so many
    #[arg(long, short = 'n', default_value_t = 20, value_parser = at_least_one)]
    pub limit: usize,
    /// So many messages before and after each hit
    #[arg(long, short = 'C', default_value_t = 2)]
    pub context: usize,
}

#[derive(Debug, ClapArgs)]
pub struct Compact {
    /// The session
    pub session: String,
    /// A fact that the summary must keep; may be given several times
    #[arg(long = "pin", value_name = "FACT")]
    pub pins: Vec<String>,
    /// Keep so many of the last messages out of the summary
    #[arg(long, default_value_t = 10)]
    pub keep: usize,
    /// Only show the summary
    #[arg(long)]
    pub dry_run: bool,
    /// Show the messages that the summary in force stands for, and change nothing
    #[arg(long, conflicts_with = "dry_run")]
    pub dropped: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Archive {
    /// The session
    pub session: String,
    /// The store to move it to
    #[arg(long, value_name = "URL")]
    pub to: String,
}

#[derive(Debug, ClapArgs)]
pub struct Delete {
    /// The session
    pub session: String,
    /// Keep what its branches share with it, hidden
    #[arg(long, conflicts_with = "cascade")]
    pub keep_branches: bool,
    /// Delete its branches too
    #[arg(long)]
    pub cascade: bool,
    /// Only say what would be deleted
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Everything, verifiable, to be imported again
    Bundle,
    /// For reading
    Markdown,
    /// One message a line
    Jsonl,
    /// chat, checkpoint, context and agent-description files
    Files,
    /// checkpoints/… and sessions/…, as in a bucket
    Tree,
    /// .checkpoints/… of a working directory
    Task,
    /// One JSON document of checkpoints of a plan
    Plan,
    /// A feature's worktree directory
    Feature,
    /// A session directory of a graph
    Graph,
    /// A SQLite file with tables sessions, messages, checkpoints
    Sqlite,
}

#[derive(Debug, ClapArgs)]
pub struct Export {
    /// The session
    pub session: String,
    /// The file or directory to write; the output when none (bundle, markdown and jsonl)
    #[arg(long, short)]
    pub output: Option<PathBuf>,
    /// In which form
    #[arg(long, short, value_enum, default_value = "bundle")]
    pub format: Format,
    /// Write over what is there
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Import {
    /// The file or directory; what it is is found out
    pub path: PathBuf,
    /// Give new ids instead of keeping those in the bundle
    #[arg(long)]
    pub new_ids: bool,
    /// What the session is called
    #[arg(long)]
    pub title: Option<String>,
    #[command(flatten)]
    pub keys: Keyed,
    /// Only check it
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum Messages {
    /// Add a message
    Add {
        /// The session
        session: String,
        /// The text; read from the input when it is - or left out
        text: Option<String>,
        /// Who says it: user, assistant, system, tool
        #[arg(long, default_value = "user", value_parser = role)]
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

#[derive(Debug, ClapArgs)]
pub struct Stats {
    /// Only this session
    pub session: Option<String>,
    /// Messages, tokens, money, triggers and failures instead of space
    #[arg(long)]
    pub usage: bool,
    #[command(flatten)]
    pub keys: Keyed,
    /// With --usage: only sessions active at or after
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub struct Prune {
    /// Only this session
    pub session: Option<String>,
    /// Keep the newest so many
    #[arg(long)]
    pub keep: Option<u32>,
    /// Keep those of the last so many days
    #[arg(long)]
    pub days: Option<u32>,
    /// Keep clean ones only
    #[arg(long)]
    pub clean_only: bool,
    /// Also erase what has lain in the trash long enough
    #[arg(long)]
    pub purge: bool,
    /// Only say what would be pruned and freed
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Verify {
    /// Only this session
    pub session: Option<String>,
    /// Derive the search index once more and compare it
    #[arg(long, conflicts_with = "session")]
    pub deep: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Doctor {
    /// Only this session
    pub session: Option<String>,
    /// By whose rules a history is judged
    #[arg(long, value_enum, default_value = "anthropic")]
    pub rules: RulesName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RulesName {
    Anthropic,
    Openai,
}

#[derive(Debug, ClapArgs)]
pub struct Redact {
    /// The secret; read from the input when it is - or left out, so that it is in no history of a shell
    pub secret: Option<String>,
    /// Find secrets by the rules in force instead: the built-in ones and the configuration's
    #[arg(long, conflicts_with = "secret")]
    pub known: bool,
    /// What to put in its place
    #[arg(long, default_value = "[redacted]")]
    pub instead: String,
    /// Why, for the record
    #[arg(long, default_value = "a secret was found")]
    pub why: String,
    /// Only say where it is
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Migrate {
    /// The store to copy from; it stays as it is
    pub from: String,
    /// The store to copy to
    pub to: String,
}

#[derive(Debug, ClapArgs)]
pub struct Copy {
    /// The session
    pub session: String,
    /// The other store
    pub url: String,
}

#[derive(Debug, ClapArgs)]
pub struct Sql {
    /// The statement; read from the input when it is left out
    pub statement: Option<String>,
    /// Only this session
    #[arg(long)]
    pub session: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Config {
    /// Look for mistakes, all of them
    Check {
        /// The file; the one in use when none
        file: Option<PathBuf>,
    },
    /// Show every setting, and where it came from
    Show {
        /// Only settings whose name has this in it
        part: Option<String>,
        /// Only what is not a default
        #[arg(long)]
        changed: bool,
    },
    /// Write the path of the file in use
    Path,
}

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Make a master key (or a signing key: they look the same)
    New {
        /// The file to write it to, for this user alone; the output when none
        #[arg(long, short)]
        output: Option<PathBuf>,
    },
    /// Say which key the workspace is encrypted with
    Show,
    /// Wrap the workspace's key with another master key
    Rotate {
        /// The file with the new master key
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        /// Also make a new data key and encrypt everything anew
        #[arg(long)]
        data: bool,
    },
    /// Destroy a session's key: what it holds can never be read again
    Shred {
        /// The session
        session: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Sign a session's head, to be kept elsewhere
    Sign {
        /// The session
        session: String,
        /// The file with the signing key: 32 bytes in hex, as `keys new` makes them
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// Check a session against a head that was signed
    Check {
        /// The file with the signed head
        head: PathBuf,
        /// The public key in hex; the one in the head when none
        #[arg(long, value_name = "HEX")]
        key: Option<String>,
    },
}
