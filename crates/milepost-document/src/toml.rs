//! TOML as the same tree.

use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::limits::Limits;
use crate::node::{Data, Inside, Node};
use crate::origin::{Diagnostic, Origin};

/// Where the lines of a text begin, to turn bytes into lines and columns.
struct Lines<'a> {
    path: Arc<Path>,
    text: &'a str,
    starts: Vec<usize>,
}

impl Lines<'_> {
    fn line_and_column(&self, byte: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|start| *start <= byte);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = self.text.get(start..byte).map_or(0, |before| before.chars().count());
        (line, before + 1)
    }

    fn at(&self, byte: usize) -> Origin {
        let (line, column) = self.line_and_column(byte);
        Origin::File { path: Arc::clone(&self.path), line, column }
    }
}

/// Reads a text that keeps to the limit of its size.
pub(crate) fn parse(path: Arc<Path>, text: &str, limits: &Limits, found: &mut Vec<Diagnostic>) -> Option<Node> {
    let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let lines = Lines { path, text, starts };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let at = lines.at(error.span().map_or(0, |span| span.start));
            let why = format!("this is not TOML: {}", error.message());
            found.push(Diagnostic::error(&at, "", why, "look at the brackets, equals signs and quotes there"));
            return None;
        }
    };
    let mut reader = Reader { lines, limits, values: 0, found };
    let origin = Origin::File { path: Arc::clone(&reader.lines.path), line: 0, column: 0 };
    Some(Node { origin, data: reader.table(table.get_ref(), 1)? })
}

struct Reader<'a> {
    lines: Lines<'a>,
    limits: &'a Limits,
    values: usize,
    found: &'a mut Vec<Diagnostic>,
}

impl Reader<'_> {
    fn fail(&mut self, byte: usize, why: String, instead: &str) {
        let at = self.lines.at(byte);
        self.found.push(Diagnostic::error(&at, "", why, instead));
    }

    fn table(&mut self, table: &DeTable<'_>, depth: usize) -> Option<Data> {
        // The parser gives tables by name; people expect the order of the file.
        let mut items: Vec<_> = table.iter().collect();
        items.sort_by_key(|(key, _)| key.span().start);
        let mut out = Vec::with_capacity(items.len());
        for (key, value) in items {
            let node = self.value(value, depth + 1)?;
            out.push((key.get_ref().to_string(), self.lines.at(key.span().start), node));
        }
        Some(Data::Map(out))
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, depth: usize) -> Option<Node> {
        let start = value.span().start;
        self.values += 1;
        if depth > self.limits.depth.at {
            let why = format!("the values lie deeper than the limit {}", self.limits.depth);
            self.fail(start, why, "nothing that is known lies that deep: remove it");
            return None;
        }
        if self.values > self.limits.values.at {
            let why = format!("there are more values than the limit {}", self.limits.values);
            self.fail(start, why, "write fewer values");
            return None;
        }
        let plain = |text: String| Data::Text { text, quoted: false, inside: None };
        let data = match value.get_ref() {
            DeValue::String(text) => {
                Data::Text { text: text.to_string(), quoted: true, inside: self.inside(start, text) }
            }
            DeValue::Integer(number) => {
                let digits = number.as_str().replace('_', "");
                match i128::from_str_radix(&digits, number.radix()) {
                    Ok(number) => plain(number.to_string()),
                    Err(_) => plain(digits),
                }
            }
            DeValue::Float(number) => plain(number.as_str().replace('_', "")),
            DeValue::Boolean(flag) => plain(flag.to_string()),
            DeValue::Datetime(time) => Data::Text { text: time.to_string(), quoted: true, inside: None },
            DeValue::Array(items) => {
                let mut out = Vec::with_capacity(items.len());
                for item in items.iter() {
                    out.push(self.value(item, depth + 1)?);
                }
                Data::List(out)
            }
            DeValue::Table(table) => self.table(table, depth)?,
        };
        Some(Node { origin: self.lines.at(start), data })
    }

    /// Where the characters of a text stand, when each stands there as it is.
    fn inside(&self, start: usize, text: &str) -> Option<Inside> {
        let source = self.lines.text.get(start..)?;
        let quotes = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quotes| source.starts_with(quotes))?;
        let mut begin = start + quotes.len();
        if quotes.len() == 3 {
            // A line break right after the quotes does not belong to the text.
            let rest = self.lines.text.get(begin..)?;
            begin += ["\r\n", "\n"].into_iter().find(|end| rest.starts_with(end)).map_or(0, str::len);
        }
        self.lines.text.get(begin..)?.starts_with(text).then(|| {
            let (line, column) = self.lines.line_and_column(begin);
            Inside { line, column, indent: 1 }
        })
    }
}
