//! The store as a whole: its care, its keys, its settings, and other stores.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use milepost::transfer::export::sqlite_tables;

use super::Keyed;
use crate::out::wrap;

/// What the figures of --usage are, for the help.
const FIGURES: &str = "With --usage: every message is counted once, where it was written. The average
length is that of the texts of messages that have any; calls and results of
tools have an average of their own.";

#[derive(Debug, ClapArgs)]
#[command(after_help = FIGURES)]
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
    /// Every checkpoint of the session, also labelled ones and the newest; its messages and its state stay
    #[arg(long, requires = "session", conflicts_with_all = ["keep", "days", "clean_only"])]
    pub all: bool,
    /// Also erase what has lain in the trash long enough, and what was kept hidden for branches that are gone
    #[arg(long)]
    pub purge: bool,
    /// Only say what would be pruned and freed
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask before erasing
    #[arg(long, short)]
    pub yes: bool,
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
    ///
    /// It is also found where JSON escapes it. In base64, or with percent signs, it is another text: erase that as well.
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
pub struct Salvage {
    /// The damaged SQLite file, or its sqlite:PATH; it is only read
    pub from: String,
    /// The new store's file, or its sqlite:PATH; nothing may be there yet
    pub to: String,
    /// Only say what would be rescued
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, ClapArgs)]
pub struct Copy {
    /// The session
    pub session: String,
    /// The other store
    pub url: String,
    /// Make a second session with new ids, also when it is there: for one that went on in both stores
    #[arg(long)]
    pub new_ids: bool,
}

/// The tables that can be asked, and how.
pub fn sql_help() -> String {
    let table = |(name, columns): (&str, Vec<&str>)| {
        let lines = wrap(&format!("{name}: {}", columns.join(", ")), HELP_WIDTH);
        lines.into_iter().map(|line| format!("  {line}\n")).collect::<String>()
    };
    let tables: String = sqlite_tables().map(|(name, columns)| table((name, columns.collect()))).collect();
    format!(
        "Tables:\n{tables}
Examples:
  milepost sql \"select id, title from sessions order by last_active_at desc limit 5\"
  milepost sql \"select role, count(*) from messages group by role\"
  milepost sql \"select label, json_extract(state_json, '$.memory') from checkpoints\""
    )
}

/// The width of a list in a help text.
const HELP_WIDTH: usize = 72;

#[derive(Debug, ClapArgs)]
pub struct Sql {
    /// The statement; read from the input when it is left out
    pub statement: Option<String>,
    /// Only this session
    #[arg(long)]
    pub session: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub struct ExportAll {
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub sqlite: PathBuf,
    /// Only these sessions; all when none is named
    pub sessions: Vec<String>,
    /// Write over what is there
    #[arg(long)]
    pub force: bool,
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
        /// Only say what would be lost
        #[arg(long)]
        dry_run: bool,
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
