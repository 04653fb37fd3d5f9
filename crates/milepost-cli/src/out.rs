//! What a person sees: tables that fit the terminal, colours where there is one; and JSON for machines.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use milepost::Timestamp;
use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::errors::{Failed, NobodyReads};

/// Colours, or none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Styles {
    on: bool,
}

macro_rules! styles {
    ($($name:ident = $code:literal,)*) => {
        impl Styles {
            $(pub fn $name(self, text: &str) -> String {
                if self.on { format!(concat!("\x1b[", $code, "m{}\x1b[0m"), text) } else { text.to_owned() }
            })*
        }
    };
}

styles! {
    bold = "1",
    dim = "2",
    error = "1;31",
    bad = "31",
    good = "32",
    warn = "33",
    info = "36",
}

/// When to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// In a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Styles {
    pub fn new(color: Color, is_terminal: bool) -> Self {
        let on = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        Self { on }
    }
}

/// Where a command writes.
pub struct Out {
    pub json: bool,
    pub exact: bool,
    pub styles: Styles,
    pub now: Timestamp,
    quiet: bool,
    is_terminal: bool,
    width: usize,
}

/// Lines are no wider where there is no terminal.
const PIPED_WIDTH: usize = 1000;

impl Out {
    pub fn new(json: bool, exact: bool, quiet: bool, color: Color) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let width = match terminal_size::terminal_size() {
            Some((width, _)) if is_terminal => usize::from(width.0),
            _ => columns.unwrap_or(PIPED_WIDTH),
        };
        let styles = Styles::new(color, is_terminal);
        Self { json, exact, quiet, styles, now: Timestamp(0), is_terminal, width: width.max(40) }
    }

    /// A line. When its reader went away, the command ends in silence.
    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        let mut out = std::io::stdout().lock();
        written(writeln!(out, "{}", text.as_ref()))
    }

    /// Bytes as they are.
    pub fn bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        written(out.write_all(bytes).and_then(|()| out.flush()))
    }

    /// A text as it is for programs, and without control characters for a terminal.
    pub fn text(&self, text: &str) -> Result<()> {
        if self.is_terminal { self.line(safe(text)) } else { self.line(text) }
    }

    /// Why there is no result: also with `--quiet`, not with `--json`.
    pub fn reason(&self, text: impl AsRef<str>) {
        if !self.json {
            let _ = writeln!(std::io::stderr().lock(), "{}", text.as_ref());
        }
    }

    /// Something that is said besides the result; not with `--quiet` or `--json`.
    pub fn note(&self, text: impl AsRef<str>) {
        if !self.quiet && !self.json {
            let _ = writeln!(std::io::stderr().lock(), "{}", text.as_ref());
        }
    }

    /// The result for machines.
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        self.line(escaped(&serde_json::to_string_pretty(value)?))
    }

    /// The same on one line, where there are many results.
    pub fn json_line(&self, value: &impl Serialize) -> Result<()> {
        self.line(escaped(&serde_json::to_string(value)?))
    }

    /// A time as a person reads it.
    pub fn time(&self, time: Timestamp) -> String {
        if self.exact { time.to_string() } else { milepost::relative(time, self.now) }
    }

    /// A table that fits the terminal: columns with nothing in them are left out, those that may go go, those that may
    /// shrink give way. Where that is not enough, a row is written as lines.
    pub fn table(&self, table: Table<'_>) -> Result<()> {
        let mut columns = table.columns(self.width);
        let mut widths = table.widths(&columns);
        let mut last = table.last.iter();
        while !fit(&mut widths, table.shrink, self.width) {
            let Some(at) = last.next() else { return self.tall(&table) };
            columns.retain(|column| column != at);
            widths = table.widths(&columns);
        }
        let line = |cells: &[String]| {
            let last = columns.last().copied();
            let cells = columns.iter().map(|at| {
                let cell = clip(cells.get(*at).map_or("", String::as_str), widths[*at]);
                let pad = if Some(*at) == last { 0 } else { widths[*at].saturating_sub(visible_width(&cell)) };
                format!("{cell}{}", " ".repeat(pad))
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        if !table.head.is_empty() {
            let head: Vec<String> = table.head.iter().map(|cell| (*cell).to_owned()).collect();
            self.line(self.styles.dim(&line(&head)))?;
        }
        table.rows.iter().try_for_each(|row| self.line(line(row)))
    }

    /// A table whose rows are too wide, one value below the other.
    fn tall(&self, table: &Table<'_>) -> Result<()> {
        for (number, row) in table.rows.iter().enumerate() {
            if number > 0 {
                self.line("")?;
            }
            // A table without titles has its names in the first column.
            let (names, values) = match (table.head, row.split_first()) {
                ([], Some((name, values))) => (vec![name.as_str()], values),
                (head, _) => (head.to_vec(), row.as_slice()),
            };
            let facts = names.into_iter().chain(std::iter::repeat("")).zip(values.iter().cloned());
            let is_said = |(_, value): &(&str, String)| table.tall || !value.is_empty();
            self.facts(&facts.filter(is_said).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Names and values below each other.
    pub fn facts(&self, facts: &[(&str, String)]) -> Result<()> {
        let width = facts.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        for (name, value) in facts {
            let name = format!("{name}{}", " ".repeat(width - name.width()));
            // What is coloured is short. Where nobody said how wide it may be, a value stays on its line.
            let room = self.width.saturating_sub(width + GAP);
            let lines = match self.width < PIPED_WIDTH && !value.contains(['\x1b', '\n']) {
                true => wrap(value, room),
                false => vec![value.clone()],
            };
            for (number, line) in lines.iter().enumerate() {
                let name = if number == 0 { self.styles.dim(&name) } else { " ".repeat(width) };
                self.line(format!("{name}  {line}").trim_end())?;
            }
        }
        Ok(())
    }

    /// Whether a person looks at the output.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// The width of the terminal.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// What a write to the output came to.
fn written(outcome: std::io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        Err(error) => Err(Failed::output(error).into()),
        Ok(()) => Ok(()),
    }
}

/// Rows and columns for people.
#[derive(Debug, Clone, Default)]
pub struct Table<'a> {
    /// The columns' titles; none for rows alone.
    pub head: &'a [&'a str],
    /// As many cells in each as there are columns.
    pub rows: Vec<Vec<String>>,
    /// Columns that may be narrowed.
    pub shrink: &'a [usize],
    /// Columns that may go where there is little room, the first first.
    pub drop: &'a [usize],
    /// Columns that go only where the others have no room at all, the first first.
    pub last: &'a [usize],
    /// Every column stays, also one with nothing in it.
    pub tall: bool,
}

impl Table<'_> {
    /// A column that may shrink has this width or its own before others go.
    const COMFORTABLE: usize = 24;

    /// The columns that are written.
    fn columns(&self, room: usize) -> Vec<usize> {
        let is_empty = |at: &usize| self.rows.iter().all(|row| row.get(*at).is_none_or(String::is_empty));
        let mut columns: Vec<usize> = (0..self.count()).filter(|at| self.tall || !is_empty(at)).collect();
        for at in self.drop {
            let widths = self.widths(&columns);
            let least =
                |at: usize| if self.shrink.contains(&at) { widths[at].min(Self::COMFORTABLE) } else { widths[at] };
            let total: usize = columns.iter().map(|at| least(*at) + GAP).sum();
            if total <= room + GAP {
                break;
            }
            columns.retain(|column| column != at);
        }
        columns
    }

    fn count(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0).max(self.head.len())
    }

    /// The widths of these columns; the others have none.
    fn widths(&self, columns: &[usize]) -> Vec<usize> {
        let mut widths = vec![0; self.count()];
        for at in columns {
            let cells = self.rows.iter().map(|row| row.get(*at).map_or(0, |cell| visible_width(cell)));
            widths[*at] = cells.chain(self.head.get(*at).map(|title| title.width())).max().unwrap_or(0);
        }
        widths
    }
}

/// Between two columns.
const GAP: usize = 2;

/// Narrows columns until their sum fits, the widest first, none below eight. Whether it fits now.
fn fit(widths: &mut [usize], shrink: &[usize], room: usize) -> bool {
    const NARROWEST: usize = 8;
    let gaps = GAP * widths.iter().filter(|width| **width > 0).count().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > room {
        let Some(widest) = shrink.iter().copied().filter(|at| widths[*at] > NARROWEST).max_by_key(|at| widths[*at])
        else {
            return false;
        };
        widths[widest] -= 1;
    }
    true
}

/// The width of a text without its colours.
fn visible_width(text: &str) -> usize {
    let mut width = 0;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c == '\x1b' {
            rest.by_ref().find(|c| *c == 'm');
        } else {
            width += c.width().unwrap_or(0);
        }
    }
    width
}

/// The beginning of a text that fits, with an ellipsis when it is cut.
pub fn clip(text: &str, room: usize) -> String {
    if visible_width(text) <= room {
        return text.to_owned();
    }
    let (mut out, mut width, mut colored) = (String::new(), 0, false);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c == '\x1b' {
            out.push(c);
            out.extend(rest.by_ref().take_while(|c| *c != 'm'));
            out.push('m');
            colored = true;
            continue;
        }
        let more = c.width().unwrap_or(0);
        if width + more > room.saturating_sub(1) {
            break;
        }
        width += more;
        out.push(c);
    }
    out.push('…');
    if colored {
        out.push_str("\x1b[0m");
    }
    out
}

/// A text without colours in lines that fit, broken at spaces where there are some. Lines after the first are indented.
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    const INDENT: usize = 4;
    // In less than this nothing can be read.
    let room = room.max(2 * INDENT);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let mut word = word.to_owned();
        loop {
            let gap = usize::from(!line.trim().is_empty());
            if line.width() + gap + word.width() <= room {
                line.extend(std::iter::repeat_n(' ', gap));
                line += &word;
                break;
            }
            if line.trim().is_empty() {
                // It is longer than a line.
                let mut end = 0;
                for (at, c) in word.char_indices() {
                    if line.width() + word[..at].width() + c.width().unwrap_or(0) > room && at > 0 {
                        break;
                    }
                    end = at + c.len_utf8();
                }
                let rest = word.split_off(end);
                line += &word;
                word = rest;
            }
            lines.push(std::mem::replace(&mut line, " ".repeat(INDENT)));
        }
    }
    if !line.trim().is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// Characters by which a stored text could move the cursor, change colours, or show letters in another order than they have.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text on one line and without control characters, so that nothing stored can move the cursor.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { ' ' } else { c }).collect()
}

/// A text of several lines without control characters other than line ends and tabs.
pub fn safe(text: &str) -> String {
    text.chars().filter(|c| !is_unsafe(*c) || matches!(c, '\n' | '\t')).collect()
}

/// JSON in which no character is left that a terminal would act on.
pub fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unsafe(c) && c != '\n' {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

/// A time in whole minutes, in words.
pub fn minutes(ms: i64) -> String {
    count(ms.unsigned_abs().div_ceil(60_000), "minute")
}

/// So many of something, in words.
pub fn count(count: impl TryInto<u64>, what: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        _ => format!("{count} {what}s"),
    }
}

/// Bytes as a person reads them.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A word as a shell reads it as one.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The end of an id, which is enough to name it.
pub fn short(id: impl ToString) -> String {
    let text = id.to_string();
    text.get(text.len().saturating_sub(8)..).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_give_way_where_they_may() {
        let mut widths = [10, 40, 30];
        assert!(fit(&mut widths, &[1, 2], 60));
        assert_eq!(widths.iter().sum::<usize>() + 4, 60);
        assert_eq!(widths[0], 10);
        let mut hopeless = [50, 50];
        assert!(!fit(&mut hopeless, &[1], 40));
        assert_eq!(hopeless, [50, 8]);
    }

    #[test]
    fn columns_go_when_they_are_empty_or_others_need_the_room() {
        let rows = vec![vec!["a".repeat(20), String::new(), "b".repeat(20), "c".repeat(60)]];
        let table = Table { head: &["A", "B", "C", "D"], rows, shrink: &[3], drop: &[2], ..Table::default() };
        assert_eq!(table.columns(200), [0, 2, 3]);
        assert_eq!(table.columns(68), [0, 2, 3]);
        assert_eq!(table.columns(67), [0, 3]);
        assert_eq!(Table { tall: true, drop: &[], ..table }.columns(67), [0, 1, 2, 3]);
    }

    #[test]
    fn nothing_stored_moves_the_cursor() {
        assert_eq!(plain("a\x1b[2Jb\nc\u{202e}d"), "a [2Jb c d");
        assert_eq!(safe("a\x1b[2Jb\n\tc\u{9b}d"), "a[2Jb\n\tcd");
        assert_eq!(escaped("{\n\"a\": \"\u{9b}2J\u{202e}\"}"), "{\n\"a\": \"\\u009b2J\\u202e\"}");
    }

    #[test]
    fn counts_are_in_words() {
        let words = [count(0u64, "session"), count(1u32, "session"), count(2usize, "entry")];
        assert_eq!(words, ["0 sessions", "1 session", "2 entries"]);
    }

    #[test]
    fn clipping_counts_what_is_seen() {
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip("日本語", 4), "日…");
        assert_eq!(visible_width(&clip("\x1b[31mabcdef\x1b[0m", 3)), 3);
    }

    #[test]
    fn wrapping_fits_and_loses_nothing() {
        for text in
            ["", "one", "a few words that go on and on", &"x".repeat(90), "key: 日本語日本語日本語日本語 and more"]
        {
            for room in [10, 17, 40, 200] {
                let lines = wrap(text, room);
                assert!(lines.iter().all(|line| line.width() <= room), "{room}: {lines:?}");
                let squeeze = |text: &str| text.replace(' ', "");
                assert_eq!(squeeze(&lines.concat()), squeeze(text));
            }
        }
        assert_eq!(wrap("a few words", 9), ["a few", "    words"]);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([bytes(0), bytes(1023), bytes(1024), bytes(5 << 20)], ["0 B", "1023 B", "1.0 KiB", "5.0 MiB"]);
    }
}
