//! Sessions: begin, list, show, resume, branch, rewind, compare, end, bring in and out.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use milepost::Status;

use super::{at_least_one, role};

/// What sessions are found by.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct Keyed {
    /// The project it is about: its id, or for what is there its name
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
    #[command(after_help = "This marks the session as active, for whoever works on it next. The steps of a
run are gone on with by `milepost resume`, a conversation by `milepost chat
--session`.")]
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
    /// Search all conversations: words, "phrases", prefixes*; exits with 0 also when nothing is found
    Search(Search),
    /// Summarise the older part of a conversation for requests; the messages stay
    Compact(Compact),
    /// Show the summary in force
    Summary {
        /// The session
        session: String,
        /// For an agent of this kind: refused unless the setting summaries.readers lets it read this one
        #[arg(long = "as", value_name = "AGENT")]
        reader: Option<String>,
    },
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
        /// Do not bring it back: only forget where it is, because the archive is gone. What is there stays there
        #[arg(long)]
        forget: bool,
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
        /// Every checkpoint of the session that is in the trash; undoes `prune ID --all`
        #[arg(long, conflicts_with = "checkpoint")]
        checkpoints: bool,
    },
    /// Remove a session for good
    Delete(Delete),
    /// Write a session out: as a bundle, for reading, or for other tools
    #[command(after_help = "Imported again, tree, task, plan, files, feature and graph hold what they held:
every value of a tree of another tool comes out as it came in. Fields are added:
ids, triggers, and the times of messages that had none. Not in them: what came
after the last checkpoint (task, plan: messages too), conversations (plan), older
checkpoints, title, project and tags (files, feature), title, agent and tags
(plan), and variables that are not encrypted (task). session-index.json is made
anew, and files below parts/ (graph) have names of their own. Only a bundle holds
everything.")]
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
    /// If there is an open session of this project, feature, task and stage, and of this agent if one is named, give that
    /// one
    #[arg(long, conflicts_with = "policy")]
    pub reuse: bool,
}

#[derive(Debug, ClapArgs)]
pub struct List {
    #[command(flatten)]
    pub keys: Keyed,
    /// With this status; may be given several times
    #[arg(long, value_parser = statuses())]
    pub status: Vec<Status>,
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

/// The statuses that there are, by their names.
fn statuses() -> impl TypedValueParser<Value = Status> {
    let named = |name: String| Status::ALL.into_iter().find(|status| status.as_str() == name).ok_or("no such status");
    PossibleValuesParser::new(Status::ALL.map(Status::as_str)).try_map(named)
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
    /// Fail when nothing of it is whole, neither its end nor any checkpoint, instead of going on with a new session that
    /// has the messages that are
    #[arg(long)]
    pub no_fresh: bool,
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
    /// Anywhere, also inside of words and beyond the first MiB of a message, up to which texts are indexed; reads every
    /// message
    #[arg(long)]
    pub substring: bool,
    /// Only in this session
    #[arg(long)]
    pub session: Option<String>,
    /// Only in this project: its id or its name
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
    /// Let this model write the summary: PROVIDER/MODEL, or a name of the configuration's `models`; it is made of what was
    /// said by default
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["dry_run", "dropped"])]
    pub model: Option<String>,
    /// Only show the summary
    #[arg(long)]
    pub dry_run: bool,
    /// Show all messages that the summary in force stands for, by the compaction that dropped them; changes nothing
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
    /// Only say what would be moved
    #[arg(long)]
    pub dry_run: bool,
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
