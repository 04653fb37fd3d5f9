//! What a person saw, command after command, with everything that differs from run to run replaced: ids by numbers in the
//! order in which they are seen, times, sizes, holders and the scratch place by words.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::support::{Place, Ran};

macro_rules! pattern {
    ($name:ident, $text:literal) => {
        static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($text).unwrap());
    };
}

pattern!(ID, r"(ses|ckp|tml|prj)_[0-9a-hjkmnp-tv-z]{26}\b");
pattern!(SHORT, r"\b[0-9a-hjkmnp-tv-z]{8}\b");
pattern!(TIME, r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z");
pattern!(DAY, r"\b20\d\d-\d\d-\d\d\b( \d\d:\d\d:\d\d UTC)?");
pattern!(LONG, r"\b\d+:\d\d:\d\d\b");
pattern!(AGO, r"\bjust now\b|\b\d+ (second|minute)s? ago\b");
pattern!(SIZE, r"\b\d+(\.\d+)? ([KMG]iB|B)\b");
pattern!(SPAN, r"\b\d+(\.\d+)? (ms|s)\b");
pattern!(KEY, r"\b[0-9a-f]{8}([0-9a-f]{24})?\b");
pattern!(HOLDER, r"milepost on \S+ \(process [^)]*\)");
pattern!(GAPS, r"(\S)  +");

/// A transcript of one place.
pub struct Transcript<'a> {
    place: &'a Place,
    text: String,
    /// Ids by their ends.
    known: BTreeMap<String, String>,
    /// Ids with what stands for them.
    named: BTreeMap<String, String>,
}

impl<'a> Transcript<'a> {
    pub fn new(place: &'a Place) -> Self {
        Self { place, text: String::new(), known: BTreeMap::new(), named: BTreeMap::new() }
    }

    /// Runs a command and notes what is seen.
    pub fn run(&mut self, args: &[&str]) -> Ran {
        let ran = self.place.run(args);
        self.note(args, &ran);
        ran
    }

    /// The same with something on the input.
    pub fn run_with(&mut self, args: &[&str], input: &str) -> Ran {
        let ran = self.place.run_with(args, input.as_bytes());
        self.note(args, &ran);
        ran
    }

    /// Notes what a command came to.
    pub fn note(&mut self, args: &[&str], ran: &Ran) {
        let word = |arg: &&str| match arg.is_empty() || arg.contains(|c: char| c.is_whitespace() || "\"'*|".contains(c))
        {
            true => format!("'{arg}'"),
            false => (*arg).to_owned(),
        };
        let line = args.iter().map(word).collect::<Vec<_>>().join(" ");
        let mut text = format!("$ milepost {line}\n{}", ran.out);
        for line in ran.err.lines() {
            text.push_str(&format!("! {line}\n"));
        }
        if ran.code != 0 {
            text.push_str(&format!("[exit {}]\n", ran.code));
        }
        let clean = self.clean(&text);
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(&clean);
    }

    /// Everything so far.
    pub fn end(self) -> String {
        self.text
    }

    fn clean(&mut self, text: &str) -> String {
        let text = text.replace(&*self.place.path().to_string_lossy(), "[place]");
        let text = HOLDER.replace_all(&text, "[holder]");
        let text = TIME.replace_all(&text, "[time]");
        let text = DAY.replace_all(&text, "[day]");
        let text = LONG.replace_all(&text, "[duration]");
        let text = AGO.replace_all(&text, "[ago]");
        let text = SIZE.replace_all(&text, "[size]");
        let text = SPAN.replace_all(&text, "[span]");
        let text = self.number_ids(&text);
        // What stands for an id has leading zeros.
        let text = KEY.replace_all(&text, |found: &Captures<'_>| match found[0].starts_with("00000") {
            true => found[0].to_owned(),
            false => "[key]".to_owned(),
        });
        // Columns move with the widths of what was replaced.
        let lines = text.lines().map(|line| format!("{}\n", GAPS.replace_all(line, "$1  ").trim_end()));
        lines.collect()
    }

    fn number_ids(&mut self, text: &str) -> String {
        for found in ID.find_iter(text) {
            self.learn(found.as_str());
        }
        let is_unknown = |found: &str| !self.known.contains_key(found);
        if SHORT.find_iter(text).any(|found| is_unknown(found.as_str())) {
            self.look_around();
        }
        let mut pieces = String::new();
        let mut at = 0;
        // Long and short ids in the order in which they are seen.
        let mut places: Vec<(usize, usize, String)> = Vec::new();
        for found in ID.find_iter(text) {
            places.push((found.start(), found.end(), found.as_str().to_owned()));
        }
        for found in SHORT.find_iter(text) {
            if let Some(id) = self.known.get(found.as_str()) {
                places.push((found.start(), found.end(), id.clone()));
            }
        }
        places.sort();
        for (start, end, id) in places {
            let name = self.name(&id);
            pieces.push_str(&text[at..start]);
            let is_short = end - start == 8;
            pieces.push_str(if is_short { &name[name.len() - 8..] } else { &name });
            at = end;
        }
        pieces.push_str(&text[at..]);
        pieces
    }

    fn learn(&mut self, id: &str) {
        self.known.insert(id[id.len() - 8..].to_owned(), id.to_owned());
    }

    /// What stands for an id: as long as it is, with a number instead of chance.
    fn name(&mut self, id: &str) -> String {
        let kind = &id[..3];
        let number = self.named.keys().filter(|known| known.starts_with(kind)).count() + 1;
        let fresh = format!("{kind}_{number:026}");
        self.named.entry(id.to_owned()).or_insert(fresh).clone()
    }

    /// Learns the ids of everything in the store, for where only their ends are shown.
    fn look_around(&mut self) {
        let mut ids = Vec::new();
        for which in [&["--all"][..], &["--all", "--trashed"]] {
            let ran = self.place.run(&[&["sessions", "list", "--json"], which].concat());
            ids.extend(ID.find_iter(&ran.out).map(|found| found.as_str().to_owned()));
        }
        for session in ids.iter().filter(|id| id.starts_with("ses_")).cloned().collect::<Vec<_>>() {
            for which in [&[][..], &["--trashed"]] {
                let ran = self.place.run(&[&["sessions", "checkpoints", &session, "--json"], which].concat());
                ids.extend(ID.captures_iter(&ran.out).map(|found: Captures<'_>| found[0].to_owned()));
            }
        }
        ids.iter().for_each(|id| self.learn(id));
    }
}

/// Compares what was seen with what was seen before.
macro_rules! assert_seen {
    ($name:literal, $seen:expr) => {
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!($name, $seen);
        });
    };
}
pub(crate) use assert_seen;
