//! What reaches a terminal, and what reaches a pipe: colours, widths, control characters, questions, readers that go away.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{Place, Ran};

/// A terminal with a command in it.
pub struct Terminal {
    screen: File,
    child: Child,
}

impl Terminal {
    pub fn run(place: &Place, columns: u16, args: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        tcsetwinsize(&theirs, Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let side = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
        let mut command = place.command(args);
        let child = command.env_remove("COLUMNS").stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
        Self { screen: File::from(ours), child }
    }

    pub fn type_in(&mut self, text: &str) {
        self.screen.write_all(text.as_bytes()).unwrap();
    }

    /// Everything that was shown, and how it ended.
    pub fn end(mut self) -> (String, i32) {
        let mut shown = Vec::new();
        let mut part = [0; 4096];
        // When the last one who may write is gone, the terminal has an error and no end.
        while let Ok(count) = self.screen.read(&mut part) {
            if count == 0 {
                break;
            }
            shown.extend_from_slice(&part[..count]);
        }
        (String::from_utf8(shown).unwrap(), self.child.wait().unwrap().code().unwrap_or(-1))
    }
}

fn shown(place: &Place, columns: u16, args: &[&str]) -> String {
    let (text, code) = Terminal::run(place, columns, args).end();
    assert_eq!(code, 0, "{args:?}: {text}");
    text
}

/// A line that went over the end of the terminal's could not be taken away, nor one to whose end the terminal adds `^C`.
#[test]
fn how_far_something_is_fits_the_terminal_and_is_gone_when_it_is_interrupted() {
    let place = Place::new();
    place.session("Here", &["one"]);
    let endless = "with recursive r(x) as (select 1 union all select x + 1 from r) select count(*) from r";
    let mut terminal = Terminal::run(&place, 20, &["sql", endless]);
    let (mut shown, mut part) = (String::new(), [0; 4096]);
    while !shown.contains(" s") && !shown.contains('…') {
        let count = terminal.screen.read(&mut part).unwrap();
        shown.push_str(std::str::from_utf8(&part[..count]).unwrap());
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&terminal.child), rustix::process::Signal::INT)
        .unwrap();
    let (rest, code) = terminal.end();
    shown.push_str(&rest);
    assert_eq!(code, 130, "{shown:?}");
    let (progress, error) = shown.split_once("error:").unwrap_or_else(|| panic!("{shown:?}"));
    assert!(progress.contains("reading session") && error.contains("interrupted"), "{shown:?}");
    let lines: Vec<&str> = progress.split("\r\x1b[K").map(|line| line.trim_end_matches("\x1b[1;31m")).collect();
    assert!(lines.iter().all(|line| line.chars().filter(|c| !c.is_control()).count() <= 17), "{lines:?}");
    assert!(progress.contains("\r\x1b[K") && lines.last().is_some_and(|line| !line.contains("reading")), "{lines:?}");
}

#[test]
fn colours_are_for_terminals_unless_one_says_otherwise() {
    let place = Place::new();
    place.session("Here", &["one"]);
    let commands: [&[&str]; 6] = [
        &["sessions", "list"],
        &["sessions", "show", "last"],
        &["messages", "list", "last"],
        &["stats", "--usage"],
        &["config", "show"],
        &["verify"],
    ];
    for args in commands {
        assert!(shown(&place, 80, args).contains("\u{1b}["), "{args:?} has no colours in a terminal");
        assert!(!shown(&place, 80, &[args, &["--color", "never"]].concat()).contains('\u{1b}'), "{args:?}");
        let ran = place.run(args);
        assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{args:?} has colours in a pipe");
        assert!(place.run(&[args, &["--color", "always"]].concat()).out.contains("\u{1b}["), "{args:?}");
    }
    assert!(!place.run(&["sessions", "show", "zzzzzzzz"]).err.contains('\u{1b}'));
    let mut command = place.command(["sessions", "list"]);
    assert!(!Ran::of(command.env("NO_COLOR", "1").output().unwrap()).out.contains('\u{1b}'));
}

/// How wide a line is without its colours.
fn width(line: &str) -> usize {
    let plain = regex::Regex::new("\u{1b}\\[[0-9;]*[mK]").unwrap().replace_all(line, "").into_owned();
    unicode_width::UnicodeWidthStr::width(plain.trim_end_matches('\r'))
}

#[test]
fn settings_are_whole_however_narrow_the_terminal_is() {
    let place = Place::new();
    place.write("milepost.yaml", format!("redaction:\n  patterns: ['{}']\n", "secret-[0-9]+-".repeat(20)));
    for columns in [200, 80, 60, 40] {
        let text = shown(&place, columns, &["config", "show", "--color", "never"]);
        assert!(text.lines().all(|line| width(line) <= columns.into()), "at {columns}:\n{text}");
        assert!(!text.contains('…'), "at {columns}:\n{text}");
        let squeezed: String = text.split_whitespace().collect();
        assert!(squeezed.contains(&"secret-[0-9]+-".repeat(20)), "at {columns}:\n{text}");
    }
}

#[test]
fn tables_fit_the_terminal() {
    let place = Place::new();
    let title = "A very long title about 日本語 and everything else that one could think of in a whole week";
    let project = "a-project-with-a-rather-long-name";
    let id =
        place.ok(&["sessions", "new", "--title", title, "--project", project, "--agent", "a-kind-of-agent-of-its-own"]);
    place.ok(&["messages", "add", &id, &"many words ".repeat(40)]);
    place.ok(&["checkpoint", &id, "--label", "a"]);
    place.ok(&["state", "set", &id, &format!("memory.text={}", "long ".repeat(50))]);
    place.ok(&["checkpoint", &id, "--label", &"a label that does not end ".repeat(5)]);
    for columns in [80, 60] {
        for args in [
            &["sessions", "list"][..],
            &["sessions", "list", "--exact"],
            &["sessions", "show", &id],
            &["sessions", "checkpoints", &id],
            &["sessions", "diff", &format!("{id}@a"), &id],
            &["sessions", "search", "words"],
            &["stats"],
            &["stats", "--usage"],
            &["sql", "select id, title, status, project_id from sessions"],
            &["config", "show"],
        ] {
            let text = shown(&place, columns, args);
            for line in text.lines() {
                assert!(width(line) <= columns.into(), "{args:?} at {columns}: {line:?}\n{text}");
            }
        }
    }
    for line in shown(&place, 80, &["config", "show"]).lines() {
        assert!(width(line) <= 80, "{line:?}");
    }
    let list = shown(&place, 80, &["sessions", "list", "--color", "never"]);
    assert!(list.contains("A very long title"), "the title is cut too short:\n{list}");
}

#[test]
fn nothing_that_was_stored_acts_on_the_terminal() {
    let place = Place::new();
    let evil = "a\u{1b}]0;taken\u{7}\u{1b}[2J\u{9b}31m\u{202e}b\rc\u{8}";
    let id = place.ok(&["sessions", "new", "--title", evil, "--project", evil, "--agent", evil, "--tag", evil]);
    place.ok(&["messages", "add", &id, evil, "--role", "assistant"]);
    place.ok(&["messages", "add", &id, &format!("find me {evil}")]);
    place.ok(&["checkpoint", &id, "--label", evil, "--description", evil]);
    place.ok(&["state", "set", &id, &format!("memory.text={evil}")]);
    place.ok(&["checkpoint", &id]);
    let first = format!("{id}@{evil}");
    for args in [
        &["sessions", "list"][..],
        &["sessions", "list", "--json"],
        &["sessions", "show", &id],
        &["sessions", "show", &id, "--json"],
        &["sessions", "checkpoints", &id],
        &["sessions", "inspect", &id, "latest", "--state"],
        &["sessions", "diff", &first, &id],
        &["sessions", "search", "find"],
        &["sessions", "resume", &id],
        &["sessions", "resume", &id, "--dry-run"],
        &["sessions", "tag", &id, "+more"],
        &["messages", "list", &id],
        &["messages", "list", &id, "--json"],
        &["messages", "tail", &id, "--no-follow"],
        &["state", "get", &id],
        &["state", "get", &id, "memory.text"],
        &["sql", "select title, tags from sessions"],
        &["stats"],
        &["stats", "--usage"],
        &["sessions", "restore", &id, evil, "--dry-run"],
        &["sessions", "export", &id, "--format", "markdown"],
    ] {
        let text = shown(&place, 120, &[&["--color", "never"], args].concat()).replace("\r\n", "\n");
        let is_bad = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        assert!(!text.contains(is_bad), "{args:?}: {text:?}");
    }
    let (text, code) = Terminal::run(&place, 80, &["sessions", "export", &id]).end();
    assert!(code == 2 && text.contains("not for a terminal"), "{text:?}");
    let (text, code) = Terminal::run(&place, 80, &["sessions", "show", evil, "--color", "never"]).end();
    assert!(code == 3 && !text.contains('\u{1b}'), "{text:?}");
    // For programs a text is what it was.
    assert_eq!(place.ok(&["state", "get", &id, "memory.text"]), evil);
    assert_eq!(place.texts(&id)[0], evil);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_in_silence() {
    let place = Place::new();
    place.session("Here", &["one"]);
    for args in [
        &["sessions", "list"][..],
        &["sessions", "list", "--json"],
        &["messages", "list", "last"],
        &["messages", "tail", "last", "--no-follow"],
        &["sessions", "export", "last"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ] {
        let mut child = place.command(args).spawn().unwrap();
        drop(child.stdout.take());
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_is_full_is_an_error() {
    let place = Place::new();
    place.session("Here", &["one"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ran = Ran::of(place.command(["sessions", "list"]).stdout(full).output().unwrap());
    assert_eq!(ran.code, 1);
    assert!(ran.err.starts_with("error: writing the output failed: No space left"), "{}", ran.err);
}

#[test]
fn questions_are_asked_and_only_yes_is_yes() {
    let place = Place::new();
    let id = place.session("Precious", &["one"]);
    for (answer, code) in [("n\n", 2), ("\n", 2), ("\u{4}", 2), ("maybe\n", 2), ("yes\n", 0)] {
        let mut terminal = Terminal::run(&place, 80, &["sessions", "delete", &id]);
        terminal.type_in(answer);
        let (text, ended) = terminal.end();
        assert!(text.contains("Delete session") && text.contains("Precious"), "{text}");
        assert_eq!(ended, code, "{answer:?}: {text}");
        let is_there = !place.json(&["sessions", "list"])["sessions"].as_array().unwrap().is_empty();
        assert_eq!(is_there, code != 0, "{answer:?}");
    }
}

#[test]
fn a_message_can_be_typed_in_a_terminal() {
    let place = Place::new();
    let id = place.session("Typed", &[]);
    let mut terminal = Terminal::run(&place, 80, &["messages", "add", &id]);
    terminal.type_in("hello\nthere\n\u{4}");
    let (text, code) = terminal.end();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Ctrl-D"), "{text}");
    assert_eq!(place.texts(&id), ["hello\nthere"]);
}
