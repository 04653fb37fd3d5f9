//! What the command line says of words that it does not know.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};

use crate::args::Args;
use crate::errors::{Failed, report};
use crate::out::{Color, Styles};

/// The arguments of this process; ends it when they make no sense.
pub fn parse() -> Args {
    Args::try_parse_from(flags_first(std::env::args_os().collect())).unwrap_or_else(|mut error| {
        suggest_elsewhere(&mut error);
        if !error.use_stderr() || !asks_for_json(std::env::args_os().skip(1)) {
            error.exit()
        }
        let command = command_of(std::env::args().skip(1));
        let told = format!("`{command}` cannot be read: {}; see `{command} --help`", in_short(&error));
        let told = Failed::usage(told, vec![("help", format!("{command} --help"))]);
        report(&told.into(), true, true, Styles::new(Color::Never, false), &[]);
        std::process::exit(USAGE)
    })
}

/// What is wrong, without its heading, how the command is used and where there is help, which are for people.
fn in_short(error: &clap::Error) -> String {
    // What would be answered with the whole help lacks its command.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a subcommand is missing".to_owned();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = text.split("\n\nUsage:").next().unwrap_or(text);
    let text = text.split("\n\nFor more information").next().unwrap_or(text);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The command that is meant, as far as its words are known.
fn command_of(args: impl Iterator<Item = String>) -> String {
    let program = Args::command();
    let (mut path, mut at) = (program.get_name().to_owned(), &program);
    for word in args.take_while(|arg| arg != "--").filter(|arg| !arg.starts_with('-')) {
        if let Some(inner) = at.find_subcommand(&word) {
            (path, at) = (format!("{path} {}", inner.get_name()), inner);
        }
    }
    path
}

/// `sessions tag ID +a -b --json`: what begins with one hyphen is a tag there, so that nothing after it is taken for a flag. The
/// flags that every command has are brought before the tags.
fn flags_first(args: Vec<OsString>) -> Vec<OsString> {
    let is_tag = |pair: &[OsString]| (pair[0] == "sessions" || pair[0] == "session") && pair[1] == "tag";
    let Some(at) = args.windows(2).position(is_tag) else { return args };
    let program = Args::command();
    let (mut first, mut rest) = (args, Vec::new());
    let mut after = first.split_off(at + 2).into_iter();
    while let Some(arg) = after.next() {
        if arg == "--" {
            rest.push(arg);
            rest.extend(after.by_ref());
            break;
        }
        let text = arg.to_string_lossy().into_owned();
        let (name, has_value) = text.split_once('=').map_or((&*text, false), |(name, _)| (name, true));
        let name = name.strip_prefix("--");
        let known = program.get_arguments().find(|flag| name.is_some() && flag.get_long() == name);
        match known {
            Some(flag) => {
                first.push(arg);
                if flag.get_action().takes_values() && !has_value {
                    first.extend(after.next());
                }
            }
            None if name == Some("help") => first.push(arg),
            None => rest.push(arg),
        }
    }
    first.extend(rest);
    first
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
