//! Talking with a model.

use clap::Args as ClapArgs;

use super::Budgets;

const EXAMPLES: &str = "Examples:
  milepost chat                               ask whether to go on with the last
  milepost chat --session last                go on
  milepost chat \"What is a B-tree?\"           one question, one answer
  git log -5 --format=%s | milepost chat --system \"Explain each line\"

In the conversation, /help lists what can be said: /undo, /retry, /branch,
/history, /save, /compact, /cost, /quit. A line that ends with \\ goes on in
the next one. Ctrl-C stops an answer, and keeps what had arrived.

On a pipe, every line is a message and every answer goes to the output; the
first one that fails ends it. Exit codes: 10 the session's budget is used up, 11
the model is at a limit; others are in `milepost --help`.";

#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Chat {
    /// One message; its answer is written, and that is all
    pub message: Option<String>,
    /// Go on with this session
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Begin a new one without asking
    #[arg(long, conflicts_with = "session")]
    pub new: bool,
    /// The new session's title; the beginning of the first message by default
    #[arg(long, conflicts_with = "session")]
    pub title: Option<String>,
    /// What a new session's model is told to be
    #[arg(long, value_name = "TEXT", conflicts_with = "session")]
    pub system: Option<String>,
    /// The model to ask: PROVIDER/MODEL, or a name of the configuration's `models` [env: MILEPOST_MODEL]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The most tokens of an answer
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    #[command(flatten)]
    pub budgets: Budgets,
    /// Do not let the model greet with where things were left
    #[arg(long)]
    pub no_greeting: bool,
    /// Take the session even if someone else holds it
    #[arg(long, requires = "session")]
    pub take_over: bool,
}
