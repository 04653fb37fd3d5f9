//! Texts that were torn or hold what no text should: NUL, runs of replacement characters, lone
//! surrogates, terminal control sequences.

use std::borrow::Cow;

use milepost_model::Block;
use serde_json::Value;

use super::{Item, Log, RepairKind};

/// The text without NUL and with runs of U+FFFD made one; with `strip_ansi` also without terminal
/// control sequences and the other control characters except tab, line feed and carriage return.
/// Borrowed when there is nothing to heal.
pub fn heal_text(text: &str, strip_ansi: bool) -> Cow<'_, str> {
    let sick = text.contains('\0')
        || text.contains("\u{fffd}\u{fffd}")
        || strip_ansi && text.bytes().any(|b| b < 0x20 && !matches!(b, b'\t' | b'\n' | b'\r') || b == 0x7f);
    if !sick {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\0' => {}
            '\u{fffd}' if out.ends_with('\u{fffd}') => {}
            '\u{1b}' if strip_ansi => skip_sequence(&mut chars),
            '\t' | '\n' | '\r' => out.push(c),
            c if strip_ansi && c.is_ascii_control() => {}
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Skips what follows an escape character: a control sequence, a string sequence, or one character.
fn skip_sequence(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.peek() {
        Some('[') => {
            chars.next();
            while let Some(c) = chars.peek().copied() {
                if !(' '..='~').contains(&c) {
                    return;
                }
                chars.next();
                if ('@'..='~').contains(&c) {
                    return;
                }
            }
        }
        Some(']' | 'P' | '_' | '^' | 'X') => {
            chars.next();
            while let Some(c) = chars.peek().copied() {
                if c == '\n' {
                    return;
                }
                chars.next();
                if c == '\u{7}' {
                    return;
                }
                if c == '\u{1b}' {
                    if chars.peek() == Some(&'\\') {
                        chars.next();
                    }
                    return;
                }
            }
        }
        Some(' '..='~') => {
            chars.next();
        }
        _ => {}
    }
}

/// JSON text that a strict parser refuses for lone surrogate escapes (`\ud83d` without its other
/// half) or raw control characters inside strings, made acceptable: the first become U+FFFD, the
/// second are escaped. Nothing else changes; text that is not JSON for another reason stays so.
pub fn heal_json(json: &str) -> Cow<'_, str> {
    let bytes = json.as_bytes();
    let mut out = String::new();
    let mut kept = 0;
    let mut at = 0;
    let mut in_string = false;
    while let Some(&byte) = bytes.get(at) {
        let (instead, len): (Cow<'_, str>, usize) = match byte {
            b'"' => {
                in_string = !in_string;
                at += 1;
                continue;
            }
            b'\\' if in_string => match escape(bytes, at) {
                Escape::Lone => (Cow::Borrowed("\\ufffd"), 6),
                Escape::Fine(len) => {
                    at += len;
                    continue;
                }
            },
            0..=0x1f if in_string => (Cow::Owned(format!("\\u{byte:04x}")), 1),
            _ => {
                at += 1;
                continue;
            }
        };
        out.push_str(json.get(kept..at).unwrap_or_default());
        out.push_str(&instead);
        at += len;
        kept = at;
    }
    if kept == 0 {
        return Cow::Borrowed(json);
    }
    out.push_str(json.get(kept..).unwrap_or_default());
    Cow::Owned(out)
}

enum Escape {
    Fine(usize),
    Lone,
}

fn escape(bytes: &[u8], at: usize) -> Escape {
    match unit(bytes, at) {
        Some(0xd800..=0xdbff) => match unit(bytes, at + 6) {
            Some(0xdc00..=0xdfff) => Escape::Fine(12),
            _ => Escape::Lone,
        },
        Some(0xdc00..=0xdfff) => Escape::Lone,
        Some(_) => Escape::Fine(6),
        None => Escape::Fine(2),
    }
}

/// The UTF-16 unit that a `\uXXXX` at `at` names.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0u16, |unit, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some(unit << 4 | digit as u16)
    })
}

/// Heals every text of the items. Thoughts stay as they are: their signature covers them.
pub(super) fn items(items: &mut [Item], strip_ansi: bool, log: &mut Log) {
    for item in items {
        let mut healed = false;
        for block in &mut item.blocks {
            match block {
                Block::Text { text, .. } => healed |= string(text, strip_ansi),
                Block::ToolCall { input, .. } => healed |= value(input, strip_ansi),
                Block::ToolResult { content, .. } => healed |= value(content, strip_ansi),
                Block::Unknown(_) | Block::Thinking { .. } | Block::Image { .. } => {}
            }
        }
        if healed {
            log.add(
                RepairKind::HealedText,
                item.source,
                "its text holds NUL, a run of replacement characters or terminal sequences: shown without them",
            );
        }
    }
}

fn string(text: &mut String, strip_ansi: bool) -> bool {
    match heal_text(text, strip_ansi) {
        Cow::Borrowed(_) => false,
        Cow::Owned(healed) => {
            *text = healed;
            true
        }
    }
}

fn value(root: &mut Value, strip_ansi: bool) -> bool {
    let mut healed = false;
    let mut stack = vec![root];
    while let Some(value) = stack.pop() {
        match value {
            Value::String(text) => healed |= string(text, strip_ansi),
            Value::Array(items) => stack.extend(items),
            Value::Object(map) => stack.extend(map.values_mut()),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    healed
}
