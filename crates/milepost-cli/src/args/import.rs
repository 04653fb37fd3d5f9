//! Sessions that other programs keep.

use clap::{Args as ClapArgs, Subcommand};

/// Where from.
#[derive(Debug, Subcommand)]
pub enum Foreign {
    /// Bring over the threads of LangGraph's SqliteSaver or PostgresSaver, every checkpoint and write as it is
    ///
    /// Each thread becomes a session, and each namespace of a subgraph one of its own. Graphs go on with them through
    /// milepost.langgraph.MilepostSaver. The old store is only read; done again, only what is new comes over.
    #[command(after_help = "Examples:
  milepost import langgraph --from sqlite:checkpoints.db --dry-run
  milepost import langgraph --from postgres://me@db.example.com/agents --thread 42")]
    Langgraph(Langgraph),
}

#[derive(Debug, ClapArgs)]
pub struct Langgraph {
    /// Where LangGraph keeps its threads: sqlite:PATH or postgres://…
    #[arg(long, value_name = "URL")]
    pub from: String,
    /// Only this thread; can be given again
    #[arg(long, value_name = "ID")]
    pub thread: Vec<String>,
    /// Only say what would come over
    #[arg(long)]
    pub dry_run: bool,
}
