//! What a person sees: tables that fit the terminal, colours where there is one; and JSON for machines.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use milepost::Timestamp;
use serde::Serialize;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

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
        Self { json, exact, quiet, styles: Styles::new(color, is_terminal), now: Timestamp(0), width: width.max(40) }
    }

    /// A line. A reader that went away ends the command in silence.
    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match writeln!(out, "{}", text.as_ref()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
            other => Ok(other?),
        }
    }

    /// Bytes as they are.
    pub fn bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
            other => Ok(other?),
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
        self.line(serde_json::to_string_pretty(value)?)
    }

    /// A time as a person reads it.
    pub fn time(&self, time: Timestamp) -> String {
        if self.exact { time.to_string() } else { milepost::relative(time, self.now) }
    }

    /// A table. The columns that may shrink give way until it fits.
    pub fn table(&self, head: &[&str], rows: &[Vec<String>], shrink: &[usize]) -> Result<()> {
        let mut widths: Vec<usize> = head.iter().map(|cell| cell.width()).collect();
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(visible_width(cell));
            }
        }
        fit(&mut widths, shrink, self.width);
        let line = |cells: Vec<String>| {
            let last = cells.len().saturating_sub(1);
            let cells = cells.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
                let cell = clip(cell, *width);
                let pad = if at == last { 0 } else { width.saturating_sub(visible_width(&cell)) };
                format!("{cell}{}", " ".repeat(pad))
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
        self.line(self.styles.dim(&line(head)))?;
        for row in rows {
            self.line(line(row.clone()))?;
        }
        Ok(())
    }

    /// Names and values below each other.
    pub fn facts(&self, facts: &[(&str, String)]) -> Result<()> {
        let width = facts.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        for (name, value) in facts {
            let name = format!("{name}{}", " ".repeat(width - name.width()));
            self.line(format!("{}  {value}", self.styles.dim(&name)))?;
        }
        Ok(())
    }

    /// The width of the terminal.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// Narrows columns until their sum fits, the widest first, none below eight.
fn fit(widths: &mut [usize], shrink: &[usize], room: usize) {
    const NARROWEST: usize = 8;
    let gaps = 2 * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > room {
        let Some(widest) = shrink.iter().copied().filter(|at| widths[*at] > NARROWEST).max_by_key(|at| widths[*at])
        else {
            return;
        };
        widths[widest] -= 1;
    }
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

/// A text on one line and without control characters, so that nothing stored can move the cursor.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text of several lines without control characters other than line ends and tabs.
pub fn safe(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
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
        fit(&mut widths, &[1, 2], 60);
        assert_eq!(widths.iter().sum::<usize>() + 4, 60);
        assert_eq!(widths[0], 10);
        let mut hopeless = [50, 50];
        fit(&mut hopeless, &[1], 40);
        assert_eq!(hopeless, [50, 8]);
    }

    #[test]
    fn clipping_counts_what_is_seen() {
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip("日本語", 4), "日…");
        assert_eq!(visible_width(&clip("\x1b[31mabcdef\x1b[0m", 3)), 3);
        assert_eq!(plain("a\x1b[2Jb\nc"), "a [2Jb c");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([bytes(0), bytes(1023), bytes(1024), bytes(5 << 20)], ["0 B", "1023 B", "1.0 KiB", "5.0 MiB"]);
    }
}
