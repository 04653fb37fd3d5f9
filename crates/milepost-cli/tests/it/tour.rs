//! Every command once for people and once for programs. What people see is compared with what they saw before; a command
//! that is in `--help` and not in the tour fails the test.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::Place;
use crate::transcript::{Transcript, assert_seen};
use crate::{tour_projects, tour_runs, tour_sessions, tour_store, tour_transfer};

/// A walk through some commands in one place.
pub struct Tour<'a> {
    pub place: &'a Place,
    transcript: Transcript<'a>,
    people: BTreeSet<String>,
    programs: BTreeSet<String>,
}

/// Commands with commands below them.
const GROUPS: [&str; 9] =
    ["sessions", "messages", "state", "projects", "artifacts", "config", "keys", "graph", "import"];

fn path(args: &[&str]) -> String {
    let words = if GROUPS.contains(&args[0]) { 2 } else { 1 };
    args[..words].join(" ")
}

impl<'a> Tour<'a> {
    fn new(place: &'a Place) -> Self {
        Self { place, transcript: Transcript::new(place), people: BTreeSet::new(), programs: BTreeSet::new() }
    }

    /// Runs a command as a person does; it must succeed. What it wrote.
    pub fn person(&mut self, args: &[&str]) -> String {
        self.person_with(args, "")
    }

    /// The same with something on the input.
    pub fn person_with(&mut self, args: &[&str], input: &str) -> String {
        let ran = self.transcript.run_with(args, input);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        self.people.insert(path(args));
        ran.out.trim_end().to_owned()
    }

    /// Runs a command as a person does that ends with this code.
    pub fn person_to(&mut self, code: i32, args: &[&str]) -> String {
        let ran = self.transcript.run(args);
        assert_eq!(ran.code, code, "{args:?}: {}{}", ran.out, ran.err);
        self.people.insert(path(args));
        ran.out.trim_end().to_owned()
    }

    /// Runs a command as a program does that writes a line of JSON for everything that happens. The lines.
    pub fn program_lines(&mut self, args: &[&str]) -> Vec<Value> {
        self.programs.insert(path(args));
        let ran = self.place.run(&[&["--json"], args].concat());
        ran.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    /// Runs a command as a person does whose output is too long, or too much of chance, for the transcript.
    pub fn person_apart(&mut self, args: &[&str]) -> String {
        self.people.insert(path(args));
        self.place.ok(args)
    }

    /// Runs a command as a program does; it must succeed. What it wrote.
    pub fn program(&mut self, args: &[&str]) -> Value {
        self.programs.insert(path(args));
        self.place.json(args)
    }

    /// The same for commands that write what they make even to programs.
    pub fn program_apart(&mut self, args: &[&str]) -> String {
        self.programs.insert(path(args));
        self.place.ok(&[args, &["--json"]].concat())
    }
}

/// The commands that `--help` lists, with those below them.
fn listed(place: &Place, above: &[&str]) -> BTreeSet<String> {
    let help = place.ok(&[above, &["--help"]].concat());
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let names: Vec<&str> = commands.filter(is_name).filter_map(|line| line.split_whitespace().next()).collect();
    let mut all = BTreeSet::new();
    for name in names.into_iter().filter(|name| *name != "help") {
        let here = [above, &[name]].concat();
        let below = listed(place, &here);
        if below.is_empty() {
            all.insert(here.join(" "));
        }
        all.extend(below);
    }
    all
}

#[test]
fn every_command_does_what_its_help_says_for_people_and_programs() {
    let walk = |part: fn(&mut Tour<'_>)| {
        let place = Place::new();
        let mut tour = Tour::new(&place);
        part(&mut tour);
        (tour.transcript.end(), tour.people, tour.programs)
    };
    let parts: [fn(&mut Tour<'_>); 7] = [
        tour_sessions::life,
        tour_sessions::points,
        tour_store::care,
        tour_store::settings_and_keys,
        tour_transfer::transfers,
        tour_runs::runs,
        tour_projects::projects,
    ];
    let walks: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || walk(part))).into_iter().collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let all = listed(&Place::new(), &[]);
    assert!(all.len() > 45, "the help is not read right: {all:?}");
    let people: BTreeSet<String> = walks.iter().flat_map(|walk| walk.1.clone()).collect();
    let programs: BTreeSet<String> = walks.iter().flat_map(|walk| walk.2.clone()).collect();
    assert_eq!(all.difference(&people).collect::<Vec<_>>(), Vec::<&String>::new(), "not shown to people");
    assert_eq!(all.difference(&programs).collect::<Vec<_>>(), Vec::<&String>::new(), "not run with --json");
    assert_seen!("tour_life", &walks[0].0);
    assert_seen!("tour_points", &walks[1].0);
    assert_seen!("tour_care", &walks[2].0);
    assert_seen!("tour_settings_and_keys", &walks[3].0);
    assert_seen!("tour_transfers", &walks[4].0);
    assert_seen!("tour_runs", &walks[5].0);
    assert_seen!("tour_projects", &walks[6].0);
}

#[test]
fn help_fits_eighty_columns_and_says_what_the_exit_codes_mean() {
    let place = Place::new();
    let mut pages = vec![Vec::new()];
    pages.extend(listed(&place, &[]).iter().map(|path| path.split(' ').map(str::to_owned).collect::<Vec<_>>()));
    let mut text = String::new();
    for page in pages {
        let mut command = place.command(&page);
        let output = command.arg("--help").env("COLUMNS", "80").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{page:?}: {line}");
        }
        // What every command has is shown once.
        let help = if page.is_empty() { help.as_str() } else { help.split("For every command:").next().unwrap() };
        text.push_str(&format!("## milepost {}\n\n{}\n\n", page.join(" "), help.trim_end()));
    }
    assert!(text.contains("Exit codes:"));
    let clean: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    assert_seen!("help", clean);
}
