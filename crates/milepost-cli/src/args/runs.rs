//! Graphs and plans: checked, drawn, run and gone on with.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::Keyed;

#[derive(Debug, Subcommand)]
pub enum Graph {
    /// Find everything that is wrong with a graph's or a plan's file, each mistake with its line and column
    #[command(after_help = "Exit codes: 0 nothing is wrong, 2 there are mistakes, 3 there is no such file.")]
    Check {
        /// The file: YAML, TOML or JSON; - for the input
        file: PathBuf,
    },
    /// Draw a graph as a Mermaid flowchart
    Draw {
        /// The file: YAML, TOML or JSON; - for the input
        file: PathBuf,
    },
    /// Write the JSON schema of graphs and plans, for editors
    Schema,
}

/// How a run ends, for `--help`.
pub const ENDS: &str = "Exit codes:
    0  the run is completed
   10  it is paused: a step failed for good, a loop or a budget is at its limit
   11  it waits for a time, a limit or a person
   12  it is uncertain whether a step had its effect: say --done or --again
  130  it was stopped, and is paused; a second Ctrl-C does not wait
  Others are in `milepost --help`.

Progress goes to the error output, what the run gives to the output. With
--json every event is a line of JSON, and so is the end.";

const RUN_EXAMPLES: &str = "Examples:
  milepost run examples/research.yaml --input topic=\"B-trees\"
  milepost run plan.yaml --model anthropic/claude-sonnet-5
  milepost run plan.yaml --json | jq -c 'select(.event == \"end\")'
";

#[derive(Debug, ClapArgs)]
#[command(after_help = format!("{RUN_EXAMPLES}\n{ENDS}"))]
pub struct Run {
    /// The graph's or the plan's file: YAML, TOML or JSON; - for the input
    pub file: PathBuf,
    /// A value of the shared memory, over the file's: KEY=VALUE, JSON or a text
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub input: Vec<String>,
    /// Run it in this session, which has no run yet, instead of a new one
    #[arg(long, value_name = "ID", conflicts_with_all = ["title", "project", "agent", "feature", "task", "stage"])]
    pub session: Option<String>,
    /// The new session's title; the graph's name by default
    #[arg(long)]
    pub title: Option<String>,
    #[command(flatten)]
    pub keyed: Keyed,
    /// Where the new session's policy differs: triggers.edge_transition=true
    #[arg(long = "policy", value_name = "KEY=VALUE", conflicts_with = "session")]
    pub policy: Vec<String>,
    #[command(flatten)]
    pub budgets: Budgets,
    #[command(flatten)]
    pub how: HowToRun,
}

/// What a session may cost.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub struct Budgets {
    /// The most tokens that the session may use, sent and received; then it pauses. `none` for no limit
    #[arg(long, value_name = "NUMBER", value_parser = tokens)]
    pub budget_tokens: Option<Limit<u64>>,
    /// The most dollars that the session may cost; then it pauses. `none` for no limit
    #[arg(long, value_name = "DOLLARS", value_parser = dollars)]
    pub budget_usd: Option<Limit<f64>>,
}

/// A limit that was given, or that there is to be none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limit<T>(pub Option<T>);

fn tokens(text: &str) -> Result<Limit<u64>, &'static str> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let number = text.parse().ok().filter(|number| *number > 0);
    number.map(|number| Limit(Some(number))).ok_or("give a whole number from 1 on, or none")
}

fn dollars(text: &str) -> Result<Limit<f64>, &'static str> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let number = text.trim_start_matches('$').parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.map(|number| Limit(Some(number))).ok_or("give a number above 0, such as 2.50, or none")
}

/// What holds for a run's beginning and for its going on.
#[derive(Debug, ClapArgs)]
pub struct HowToRun {
    /// The model to ask: PROVIDER/MODEL, or a name of the configuration's `models` [env: MILEPOST_MODEL]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Wait out timers and limits of at most so long; longer ones end the command, and `milepost work` or
    /// `milepost resume` goes on
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub patience: u64,
}

fn duration(text: &str) -> Result<u64, &'static str> {
    milepost_run::graph::parse_duration_ms(text).ok_or("give a length of time, such as 500ms, 20s or 1h30m")
}

const RESUME_EXAMPLES: &str = "Examples:
  milepost resume last
  milepost resume 4k2m9x1q --set memory.retries=3
  milepost resume 4k2m9x1q --dry-run             what will it cost?
  milepost resume 4k2m9x1q --budget-tokens 50000
  milepost resume 4k2m9x1q --graph plan.yaml     with the file as it is now
  milepost resume 4k2m9x1q --done send_mail      it happened
  milepost resume 4k2m9x1q --again send_mail     it did not: run it again

Steps that are done are skipped, what failed is tried again, loops go on in
mid-round. What going on will cost is said first, as far as what was recorded
tells. When the run cannot go on with a file, the nearest checkpoint from which
it can is named. A session without a run is gone on with by `milepost chat --session`
or `milepost sessions resume`.
";

#[derive(Debug, ClapArgs)]
#[command(after_help = format!("{RESUME_EXAMPLES}\n{ENDS}"))]
pub struct ResumeRun {
    /// The session
    pub session: String,
    /// Set a value of the state first: memory.retries=3
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Go on from this checkpoint: an id, a part of it, a label, a time, or `latest`
    #[arg(long, value_name = "CHECKPOINT")]
    pub checkpoint: Option<String>,
    /// Go on with this file instead of the graph that the run was begun with
    #[arg(long, value_name = "FILE")]
    pub graph: Option<PathBuf>,
    /// Where the policy differs until the run ends again: triggers.node_start=false
    #[arg(long = "policy", value_name = "KEY=VALUE")]
    pub policy: Vec<String>,
    /// An uncertain step had its effect, and gave this (nothing by default)
    #[arg(long, value_name = "STEP[=VALUE]")]
    pub done: Vec<String>,
    /// An uncertain step had no effect, or may have it twice: run it again. So is one that is another now, as it is now, and one that waits for a
    /// limit, at once
    #[arg(long, value_name = "STEP")]
    pub again: Vec<String>,
    /// Let happen again what happened after the checkpoint, though it may not be repeated by itself
    #[arg(long)]
    pub repeat_effects: bool,
    /// Take the session even if someone else holds it
    #[arg(long)]
    pub take_over: bool,
    /// Go on with a session that was completed
    #[arg(long)]
    pub reopen: bool,
    /// Only say what changed and what going on will cost; run nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub budgets: Budgets,
    #[command(flatten)]
    pub how: HowToRun,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  milepost steps last            each step: where it is, how long it took, what it gave
  milepost steps last --all      every attempt, question, wait and limit, as they came
  milepost steps last --json     with keys and whole outputs

Turns and calls of an agent, rounds of checks and nodes of a graph inside are lines
of their own: research/turn_1.1.search, mend/round_2.test, sub/publish. Their names
are what `answer`, `resume --done` and `resume --again` take.")]
pub struct Steps {
    /// The session
    pub session: String,
    /// Every attempt of every round, as the log has it
    #[arg(long)]
    pub all: bool,
}

const ANSWER_EXAMPLES: &str = "Examples:
  milepost answer last colour blue
  milepost answer last colour blue --round 2    before it is asked again
  milepost answer last colour red --change      no, red
  milepost answer last agent/turn_1.1.ask yes   what an agent asks

The first answer wins, unless --change says otherwise. The run goes on by `milepost resume`, or by itself where
`milepost work` runs.";

#[derive(Debug, ClapArgs)]
#[command(after_help = ANSWER_EXAMPLES)]
pub struct Answer {
    /// The session
    pub session: String,
    /// The node that asks; NODE/STEP inside of another
    pub node: String,
    /// The answer
    pub value: String,
    #[command(flatten)]
    pub who: Answering,
}

const APPROVE_EXAMPLES: &str = "Examples:
  milepost approve last publish
  milepost approve last publish --deny
  milepost approve last publish --change        it was denied: yes after all

A run pauses where it was denied, and every resume pauses there again until the
answer is changed, or the step is run again on a branch (`milepost run-again`).";

#[derive(Debug, ClapArgs)]
#[command(after_help = APPROVE_EXAMPLES)]
pub struct Approve {
    /// The session
    pub session: String,
    /// The node that asks; NODE/STEP inside of another
    pub node: String,
    /// Say no
    #[arg(long)]
    pub deny: bool,
    #[command(flatten)]
    pub who: Answering,
}

/// Which question, and who answers it.
#[derive(Debug, ClapArgs)]
pub struct Answering {
    /// The round of the node's loop, from 1, as `milepost steps` counts; the one it is in by default
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub round: Option<u32>,
    /// Answer anew, in place of the answer that was given; not when the run has gone on with it
    #[arg(long)]
    pub change: bool,
    /// Who answers; you by default
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "Several may run on one store: each wake-up is fired by one of them. Ctrl-C
pauses what runs, with grace, and ends; a second one does not wait.

A conversation whose model cannot be reached is asked again later, eight times in
about ten minutes; then it is paused with the reason, as a run is whose attempts end.
So is what cannot be gone on with: no key, a damaged state.

With --until-idle timers and limits are waited for, however long they are. What could
not be gone on with is not: each is tried when it is due, and told with the reason and
the time of its next try, for which nobody waits. Nor is what somebody else works on.")]
pub struct Work {
    /// Go on with what is due now, then end
    #[arg(long, conflicts_with = "until_idle")]
    pub once: bool,
    /// End when nothing is due any more, now or later; what was tried in vain is told and not waited for
    #[arg(long)]
    pub until_idle: bool,
    /// How many runs go on at the same time
    #[arg(long, value_name = "NUMBER", default_value = "4", value_parser = super::at_least_one)]
    pub parallel: usize,
    #[command(flatten)]
    pub how: HowToRun,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "It uses a scripted model and a store of its own in a temporary directory, or the
one that --store names. Your configuration plays no part.")]
pub struct Demo {
    /// Leave the directory, to look around in it
    #[arg(long)]
    pub keep: bool,
}
