//! What the command line says of words that it does not know.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};

use crate::args::Args;
use crate::errors::{Usage, report};
use crate::out::{Color, Styles};

/// The arguments of this process; ends it when they make no sense.
pub fn parse() -> Args {
    Args::try_parse().unwrap_or_else(|mut error| {
        suggest_elsewhere(&mut error);
        if !error.use_stderr() || !asks_for_json(std::env::args_os().skip(1)) {
            error.exit()
        }
        // Without its heading and how the command is used, which are for people.
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let text = text.split("\n\nUsage:").next().unwrap_or(text);
        let told: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        report(&Usage(told.join("; ")).into(), true, true, Styles::new(Color::Never, false));
        std::process::exit(USAGE)
    })
}

/// The exit code of a command line that makes no sense.
const USAGE: i32 = 2;

/// Whether a command line that cannot be read asks for JSON all the same.
fn asks_for_json(mut args: impl Iterator<Item = OsString>) -> bool {
    // What stands after -- is no flag.
    args.by_ref().take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// Many look for `search` where `sessions search` is: tells where a command of such a name is, when there is none here.
fn suggest_elsewhere(error: &mut clap::Error) {
    let given = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(given))) => given.to_lowercase(),
        _ => return,
    };
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return;
    }
    let program = Args::command();
    let is_near = |command: &&Command| strsim::osa_distance(&given, command.get_name()) <= given.len() / 4;
    let found = |outer: &Command| -> Vec<String> {
        outer
            .get_subcommands()
            .filter(is_near)
            .map(|inner| format!("{} {}", outer.get_name(), inner.get_name()))
            .collect()
    };
    let names: Vec<String> = program.get_subcommands().filter(|outer| !outer.is_hide_set()).flat_map(found).collect();
    if names.is_empty() {
        return;
    }
    let tip = |name: String| StyledStr::from(format!("there is `{} {name}`", program.get_name()));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(names.into_iter().map(tip).collect()));
}
