//! Runs once more: a step on a branch, recorded sessions against a graph, and what a branch found brought home.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs};

use super::runs::{Budgets, ENDS, HowToRun};

const RUN_AGAIN_EXAMPLES: &str = "Examples:
  milepost run-again last draft --input prompt=\"In three sentences\"
  milepost run-again 4k2m9x1q check --round 1

What came before the step is shared, what ran beside it is taken over as it was
done, what follows it runs anew, on a branch of its own; the session is left
alone. Effects that happen again so are named. `milepost merge-back` brings home
what the branch found.
";

#[derive(Debug, ClapArgs)]
#[command(after_help = format!("{RUN_AGAIN_EXAMPLES}\n{ENDS}"))]
pub struct RunAgain {
    /// The session
    pub session: String,
    /// The step to begin with
    pub step: String,
    /// A parameter of the step, in place of the graph's: KEY=VALUE, JSON or a text
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub input: Vec<String>,
    /// The round of the step's loop, from 1, as `milepost steps` counts; the last one by default
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub round: Option<u32>,
    /// Go on with this file instead of the graph that the run was begun with
    #[arg(long, value_name = "FILE")]
    pub graph: Option<PathBuf>,
    /// What the branch is called
    #[arg(long)]
    pub title: Option<String>,
    /// Let happen again what ran beside the step, is not over, and so cannot be taken over
    #[arg(long)]
    pub repeat_effects: bool,
    #[command(flatten)]
    pub budgets: Budgets,
    #[command(flatten)]
    pub how: HowToRun,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  milepost verify-replay plan.yaml
  milepost verify-replay plan.yaml 4k2m9x1q last --json

Every recorded decision is made again with the file as it is now, and what was
begun is compared with what is there. Nothing is run and nothing is changed.

Exit codes: 0 every session fits, 1 some do not, 2 the file has mistakes, 3 what
was named is not there.")]
pub struct VerifyReplay {
    /// The graph's or the plan's file: YAML, TOML or JSON; - for the input
    pub file: PathBuf,
    /// The sessions; all with a run of a graph of that name by default
    pub sessions: Vec<String>,
}

#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["memory", "output", "summary"])))]
#[command(override_usage = "milepost merge-back [OPTIONS] <BRANCH> <--memory|--output|--summary>")]
#[command(after_help = "Examples:
  milepost merge-back last --output draft --summary \"Shorter is better\"
  milepost merge-back 4k2m9x1q --memory score --memory sources

Memory keys go into the memory of the session that the branch came from, outputs
into its state at `merged`, and a message says so. The same again does nothing.")]
pub struct MergeBack {
    /// The branch
    pub branch: String,
    /// A key of its memory; may be given several times
    #[arg(long, value_name = "KEY")]
    pub memory: Vec<String>,
    /// What a node gave; may be given several times
    #[arg(long, value_name = "NODE")]
    pub output: Vec<String>,
    /// What it found, in words
    #[arg(long, value_name = "TEXT")]
    pub summary: Option<String>,
}
