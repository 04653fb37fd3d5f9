//! Where in a shell's line a value is filled in, and how it has to be written there to stay the text that it is.
//!
//! The line is read as a POSIX shell reads it, as far as quotes, substitutions and comments go. Where that does not tell
//! for sure how a place is quoted, nothing is filled in.

use super::expression::Mistake;

/// Around the number of a value that is filled in later. No text has these: Unicode keeps them for uses like this one.
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

/// Words that mean something to a shell where a command begins.
const RESERVED: &[&str] = &[
    "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for", "in", "function",
    "select", "time", "coproc",
];

/// What stands for a value until the whole line is known.
pub(super) fn mark(number: usize) -> String {
    format!("{OPEN}{number}{CLOSE}")
}

/// Whether a text has what stands for a value in it.
pub(super) fn has_mark(text: &str) -> bool {
    text.contains([OPEN, CLOSE])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    Single,
    Double,
    Comment,
    /// `$(…)`, with so many brackets open in it.
    Command(usize),
    /// `${…}`.
    Braces,
    /// `$((…))`, with so many brackets open.
    Sum(usize),
    /// `` `…` ``.
    Ticks,
}

/// What came last, as far as it changes what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Last {
    #[default]
    Other,
    Dollar,
    /// A name after a `$`, which more letters would make longer.
    Name,
    /// `$(`.
    DollarOpen,
    /// `(`.
    Open,
    Less,
}

/// How far a line was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Line {
    inside: Vec<Inside>,
    last: Last,
    /// The character before, for what may stand in front of a word without quotes.
    before: Option<char>,
    /// A backslash waits for its character.
    escaped: bool,
    /// Whether a word has begun.
    in_word: bool,
    /// The letters of that word, as long as it may be a reserved one.
    word: String,
    /// Why nobody can tell any more how what follows is quoted.
    lost: Option<&'static str>,
}

impl Line {
    fn push(&mut self, c: char) {
        if self.lost.is_some() {
            return;
        }
        if self.escaped {
            self.escaped = false;
            // The shell takes a line's end away together with the backslash before it.
            if c != '\n' {
                self.begin_word('\\');
                (self.last, self.before) = (Last::Other, Some('\\'));
            }
            return;
        }
        let last = std::mem::take(&mut self.last);
        match self.inside.last().copied() {
            Some(Inside::Single) if c == '\'' => self.leave(),
            Some(Inside::Single) => {}
            Some(Inside::Comment) if c == '\n' => {
                self.inside.pop();
                self.end_word();
            }
            Some(Inside::Comment) => {}
            Some(Inside::Double) => self.in_double(c, last),
            Some(Inside::Braces) => match c {
                '}' => self.leave(),
                '\'' | '"' | '\\' | '`' | '$' | '{' => self.lost = Some("after a ${…} with quotes or more in it"),
                _ => {}
            },
            Some(Inside::Ticks) => match c {
                '`' => self.leave(),
                '\'' | '"' | '\\' => self.lost = Some("after `…` with quotes in it"),
                _ => {}
            },
            Some(Inside::Sum(open)) => self.in_sum(c, open, last),
            None | Some(Inside::Command(_)) => self.in_plain(c, last),
        }
        self.before = Some(c);
    }

    fn begin_word(&mut self, c: char) {
        self.in_word = true;
        if self.word.len() < 8 {
            self.word.push(c);
        }
    }

    fn end_word(&mut self) {
        let is_case = self.word == "case" && matches!(self.inside.last(), Some(Inside::Command(_) | Inside::Sum(_)));
        if is_case {
            self.lost = Some("after a case inside of $(…)");
        }
        self.in_word = false;
        self.word.clear();
    }

    fn enter(&mut self, inside: Inside) {
        self.begin_word('"');
        self.inside.push(inside);
        if let Inside::Command(_) = inside {
            self.in_word = false;
            self.word.clear();
        }
    }

    fn leave(&mut self) {
        self.inside.pop();
        self.begin_word('"');
    }

    fn in_double(&mut self, c: char, last: Last) {
        match c {
            '"' => self.leave(),
            '\\' => (self.escaped, self.last) = (true, last),
            '`' => self.enter(Inside::Ticks),
            '$' => self.last = Last::Dollar,
            '(' if last == Last::Dollar => {
                self.enter(Inside::Command(0));
                self.last = Last::DollarOpen;
            }
            '{' if last == Last::Dollar => self.enter(Inside::Braces),
            c => self.name(c, last),
        }
    }

    fn in_sum(&mut self, c: char, open: usize, last: Last) {
        let now = match c {
            '(' if last != Last::Dollar => open + 1,
            ')' => open.saturating_sub(1),
            '$' => {
                self.last = Last::Dollar;
                open
            }
            '(' | '{' | '\'' | '"' | '\\' | '`' => {
                self.lost = Some("after a $((…)) with quotes or more in it");
                open
            }
            c if c.is_ascii_alphanumeric() => {
                self.begin_word(c);
                open
            }
            _ => {
                self.end_word();
                open
            }
        };
        if now == 0 {
            self.leave();
        } else if let Some(top) = self.inside.last_mut() {
            *top = Inside::Sum(now);
        }
    }

    fn in_plain(&mut self, c: char, last: Last) {
        match c {
            '\'' if last == Last::Dollar => self.lost = Some("after a $'…', which shells read differently"),
            '\'' => self.enter(Inside::Single),
            '"' => self.enter(Inside::Double),
            '`' => self.enter(Inside::Ticks),
            '\\' => (self.escaped, self.last) = (true, last),
            '$' => {
                self.begin_word(c);
                self.last = Last::Dollar;
            }
            '{' if last == Last::Dollar => self.enter(Inside::Braces),
            '(' if last == Last::Dollar => {
                self.enter(Inside::Command(0));
                self.last = Last::DollarOpen;
            }
            '(' if last == Last::DollarOpen => {
                if let Some(top) = self.inside.last_mut() {
                    *top = Inside::Sum(2);
                }
            }
            '(' if last == Last::Open => self.lost = Some("after ((, which shells read differently"),
            '(' => {
                self.end_word();
                if let Some(Inside::Command(open)) = self.inside.last_mut() {
                    *open += 1;
                }
                self.last = Last::Open;
            }
            ')' => {
                self.end_word();
                match self.inside.last_mut() {
                    Some(Inside::Command(0)) => self.leave(),
                    Some(Inside::Command(open)) => *open -= 1,
                    _ => {}
                }
            }
            '<' if last == Last::Less => self.lost = Some("in or after a here-document"),
            '<' => {
                self.end_word();
                self.last = Last::Less;
            }
            '#' if !self.in_word => self.inside.push(Inside::Comment),
            ';' | '&' | '|' | '>' | ' ' | '\t' | '\n' => self.end_word(),
            c => {
                self.begin_word(c);
                self.name(c, last);
            }
        }
    }

    fn name(&mut self, c: char, last: Last) {
        let goes_on = matches!(last, Last::Dollar | Last::Name) && (c.is_ascii_alphanumeric() || c == '_');
        if goes_on {
            self.last = Last::Name;
        }
    }

    /// A value, written so that it is the text that it is, here; or why it cannot be.
    fn value(&mut self, text: &str, next: Option<char>) -> Result<String, &'static str> {
        if let Some(why) = self.lost {
            return Err(why);
        }
        if self.escaped {
            return Err("right after a backslash");
        }
        let last = std::mem::take(&mut self.last);
        let written = match self.inside.last() {
            Some(Inside::Single) => text.replace('\'', "'\\''"),
            // The quotes end before it, so that it does not become part of a name.
            Some(Inside::Double) if last != Last::Other => format!("\"{}\"", quoted(text)),
            Some(Inside::Double) => {
                let special = |c: char| matches!(c, '"' | '$' | '`' | '\\');
                text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
            }
            Some(Inside::Comment) => text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
            Some(Inside::Braces) => return Err("inside of ${…}"),
            Some(Inside::Sum(_)) => return Err("inside of $((…))"),
            Some(Inside::Ticks) => return Err("inside of `…`"),
            None | Some(Inside::Command(_)) if last == Last::Dollar => return Err("right after a $"),
            None | Some(Inside::Command(_)) => {
                let joins = |c: char| matches!(c, '/' | '.' | ':' | ',' | '-' | '@');
                let begins = !self.in_word || self.before.is_some_and(|c| joins(c) || c == '=');
                let ends = next.is_none_or(|c| joins(c) || matches!(c, ' ' | '\t' | '\n' | ';' | '&' | '|' | ')'));
                let is_plain = begins && ends && last != Last::Name && is_plain(text);
                self.begin_word('"');
                if is_plain { text.to_owned() } else { quoted(text) }
            }
        };
        self.before = Some('\'');
        Ok(written)
    }
}

/// Whether a text is a word of its own without quotes.
fn is_plain(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/' | b':' | b'@');
    !text.is_empty() && text.bytes().all(is_word) && !RESERVED.contains(&text)
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A line with its values filled in where their marks are.
pub(super) fn fill(line: &str, values: &[String]) -> Result<String, String> {
    let mut read = Line::default();
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if c != OPEN {
            read.push(c);
            out.push(c);
            rest = rest.get(c.len_utf8()..).unwrap_or_default();
            continue;
        }
        let number = rest.get(OPEN.len_utf8()..).and_then(|rest| rest.split_once(CLOSE));
        let value = number.and_then(|(number, _)| values.get(number.parse::<usize>().ok()?));
        let (Some((_, after)), Some(value)) = (number, value) else {
            return Err("what was put together for it was changed afterwards".to_owned());
        };
        if value.contains('\0') {
            return Err("a value has the character NUL in it, which no command can be given".to_owned());
        }
        let next = after.chars().next();
        out.push_str(&read.value(value, next).map_err(|place| format!("{}; {INSTEAD}", refused(place)))?);
        rest = after;
    }
    Ok(out)
}

fn refused(place: &str) -> String {
    format!("a value stands {place}, where nothing keeps it one word")
}

/// What works everywhere.
const INSTEAD: &str = "give it in set: as a variable and write \"$NAME\" there, or use argv: instead of command:";

/// A part of a template.
enum Part<'t> {
    Text(&'t str),
    /// What stands between `{{` and `}}`.
    Value(&'t str),
    /// What stands between `{%` and `%}`.
    Tag(&'t str),
}

/// The parts of a template that parses, each with where it begins.
fn parts(text: &str) -> Vec<(usize, Part<'_>)> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let open = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min();
        let Some(open) = open else {
            all.push((at, Part::Text(rest)));
            break;
        };
        if open > 0 {
            all.push((at, Part::Text(rest.get(..open).unwrap_or_default())));
        }
        let inner = rest.get(open + 2..).unwrap_or_default();
        let kind = rest.as_bytes().get(open + 1).copied().unwrap_or_default();
        let close = match kind {
            b'#' => inner.find("#}").unwrap_or(inner.len()),
            b'{' => end(inner, "}}"),
            _ => end(inner, "%}"),
        };
        let body = inner.get(..close).unwrap_or_default().trim_matches(['-', '+']).trim();
        let mut next = at + open + 2 + close + 2;
        match kind {
            b'{' => all.push((at + open, Part::Value(body))),
            b'%' if body == "raw" => {
                let rest = text.get(next..).unwrap_or_default();
                let raw = rest.match_indices("{%").find(|(at, _)| {
                    let tag = rest.get(at + 2..).unwrap_or_default();
                    tag.trim_start_matches(['-', '+']).trim_start().starts_with("endraw")
                });
                let length = raw.map_or(rest.len(), |(length, _)| length);
                all.push((next, Part::Text(rest.get(..length).unwrap_or_default())));
                next += length;
            }
            b'%' => all.push((at + open, Part::Tag(body))),
            _ => {}
        }
        at = next;
    }
    all
}

/// Where a bracket closes, outside of texts in quotes.
fn end(inner: &str, close: &str) -> usize {
    let mut quote = None;
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(chars.next()),
            (Some(own), c) if own == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if inner.get(at..).is_some_and(|rest| rest.starts_with(close)) => return at,
            (None, _) => {}
        }
    }
    inner.len()
}

fn word(tag: &str) -> &str {
    tag.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// A block whose text is put together before it stands in the line: how that is quoted, nobody can tell.
fn gathers(tag: &str) -> bool {
    match word(tag) {
        "macro" | "call" | "filter" | "block" | "import" | "include" | "extends" | "from" => true,
        "set" => !tag.contains('='),
        _ => false,
    }
}

/// What a template for a line of the shell must not have, wherever a run's values lead it.
pub(super) fn forbidden(text: &str) -> Option<Mistake> {
    let mistake = |at: usize, why: String, instead: &str| {
        let before = text.get(..at).unwrap_or_default();
        let column = before.chars().rev().take_while(|c| *c != '\n').count();
        Mistake { line: before.matches('\n').count(), column, why, instead: instead.to_owned() }
    };
    if let Some(at) = text.find([OPEN, CLOSE]) {
        let why = "it has the character U+FDD0 or U+FDD1, which no text has".to_owned();
        return Some(mistake(at, why, "remove it"));
    }
    parts(text).into_iter().find_map(|(at, part)| match part {
        Part::Tag(tag) if gathers(tag) => {
            let why = format!("{{% {} %}} puts a text together before it stands in the command", word(tag));
            Some(mistake(at, why, "compute it in a set node of its own, and fill that in"))
        }
        _ => None,
    })
}

/// Finds values that stand where nothing keeps them one word.
pub(super) fn check(text: &str) -> Vec<Mistake> {
    if let Some(mistake) = forbidden(text) {
        return vec![mistake];
    }
    let all = parts(text);
    let mut found = Vec::new();
    let mut line = Line::default();
    let mut blocks: Vec<Line> = Vec::new();
    for (number, (at, part)) in all.iter().enumerate() {
        match part {
            Part::Text(text) => text.chars().for_each(|c| line.push(c)),
            // As it is: nobody knows what it is.
            Part::Value(value) if value.rsplit('|').next().is_some_and(|last| last.trim() == "safe") => {}
            Part::Value(_) => {
                let next = all.get(number + 1).and_then(|(_, part)| match part {
                    Part::Text(text) => text.chars().next(),
                    _ => Some('{'),
                });
                if let Err(place) = line.value("x", next) {
                    let before = text.get(..*at).unwrap_or_default();
                    let column = before.chars().rev().take_while(|c| *c != '\n').count();
                    let line = before.matches('\n').count();
                    found.push(Mistake { line, column, why: refused(place), instead: INSTEAD.to_owned() });
                }
            }
            Part::Tag(tag) => {
                let differs = |line: &Line, begun: &Line| line.inside != begun.inside || line.escaped != begun.escaped;
                let lost = Some("after a block of {% … %} in which quotes begin or end");
                match word(tag) {
                    "if" | "for" => blocks.push(line.clone()),
                    "else" | "elif" | "endif" | "endfor" => {
                        let Some(begun) = blocks.last_mut() else { continue };
                        if line.lost.is_none() && differs(&line, begun) {
                            begun.lost = lost;
                            line.lost = lost;
                        }
                        if tag.starts_with("end") {
                            blocks.pop();
                        } else {
                            line = begun.clone();
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    found
}
