//! A session as a document for reading.
//!
//! What was said cannot change the document around it: text stands in quotes, line by line, with HTML, images and link
//! definitions made plain; everything else stands in fences longer than any inside.

use std::fmt::Write as _;
use std::io::Write;

use milepost_model::{Block, Body, Checkpoint, Message, Seq, Session, SessionId, Timestamp};
use milepost_store::Store;
use serde_json::Value;

use crate::error::{Error, Result};

/// So many entries are read at a time.
const PAGE: u64 = 256;

/// Writes a session as Markdown: what it is, and everything up to its head in order.
pub async fn markdown<W: Write + Send>(store: &Store, session: SessionId, mut writer: W) -> Result<()> {
    let io = |error: std::io::Error| Error::file(format!("writing session {session} as Markdown"), error);
    let shown = store.session(session).await?;
    let mut out = front(&shown);
    let mut from = Seq(0);
    loop {
        let to = Seq(from.0 + PAGE);
        let page = store.entries(session, from, to).await?;
        if page.is_empty() {
            break;
        }
        for entry in page {
            match entry.body {
                Some(Body::Message(message)) => push_message(&mut out, entry.time, &message),
                Some(Body::Mark(mark)) => push_mark(&mut out, entry.time, &mark),
                Some(Body::Event(event)) if ["restored", "branched"].contains(&event.kind.as_str()) => {
                    let _ = writeln!(out, "*{} here, {}*\n", event.kind, readable(entry.time));
                }
                _ => {}
            }
        }
        writer.write_all(out.as_bytes()).map_err(io)?;
        out.clear();
        from = to;
    }
    writer.write_all(out.as_bytes()).and_then(|()| writer.flush()).map_err(io)
}

fn readable(time: Timestamp) -> String {
    let text = time.to_string();
    format!("{} UTC", text.get(..19).unwrap_or(&text).replacen('T', " ", 1))
}

fn front(session: &Session) -> String {
    let title = session.title.as_deref().map(inline).filter(|title| !title.is_empty());
    let mut out = format!("# {}\n\n| | |\n|---|---|\n", title.unwrap_or_else(|| "Session".to_owned()));
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(out, "| {name} | {value} |");
        }
    };
    row("Session", Some(format!("`{}`", session.id)));
    row("Status", Some(session.status.to_string()));
    for (name, text) in [
        ("Project", &session.project),
        ("Agent", &session.agent),
        ("Feature", &session.feature),
        ("Task", &session.task),
        ("Stage", &session.stage),
        ("Error", &session.error),
    ] {
        row(name, text.as_deref().map(inline));
    }
    let tags = session.tags.iter().map(|tag| inline(tag)).collect::<Vec<_>>().join(", ");
    row("Tags", Some(tags).filter(|tags| !tags.is_empty()));
    row("Began", Some(readable(session.created)));
    row("Last active", Some(readable(session.active)));
    row("Messages", Some(session.messages().to_string()));
    row("Checkpoints", Some(session.checkpoints.to_string()));
    out.push('\n');
    out
}

fn push_mark(out: &mut String, time: Timestamp, mark: &Checkpoint) {
    let _ = write!(out, "---\n\n**Checkpoint {}** · {}", mark.number, inline(mark.trigger.as_str()));
    if let Some(label) = &mark.label {
        let _ = write!(out, " · *{}*", inline(label));
    }
    let _ = writeln!(out, " · {} · `{}`\n", readable(time), mark.id);
    if let Some(description) = mark.description.as_deref().filter(|text| !text.trim().is_empty()) {
        push_quote(out, description);
    }
    out.push_str("---\n\n");
}

fn push_message(out: &mut String, time: Timestamp, message: &Message) {
    let role = inline(message.role.as_str());
    let mut letters = role.chars();
    let role: String = letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default();
    let _ = write!(out, "## {role}");
    if !message.channel.is_main() {
        let _ = write!(out, " in {}", inline(message.channel.as_str()));
    }
    let _ = writeln!(out, " · {}\n", readable(time));
    milepost_context::history::blocks(message).iter().for_each(|block| push_block(out, block));
}

fn push_block(out: &mut String, block: &Block) {
    match block {
        Block::Text { text, .. } => push_quote(out, text),
        Block::Thinking { text, .. } => push_details(out, "Thinking", "text", text),
        Block::ToolCall { name, input, .. } => push_details(out, &format!("Tool call: {name}"), "json", &pretty(input)),
        Block::ToolResult { content, is_error, .. } => {
            let title = if *is_error { "Tool result: failed" } else { "Tool result" };
            match content {
                Value::String(text) => push_details(out, title, "text", text),
                other => push_details(out, title, "json", &pretty(other)),
            }
        }
        Block::Image { source, .. } => {
            let _ = writeln!(out, "*(a picture: {})*\n", inline(&picture(source)));
        }
        Block::Unknown(value) => {
            let kind = value.get("type").and_then(Value::as_str).unwrap_or("a block");
            push_details(out, kind, "json", &pretty(value));
        }
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// What is known of a picture without showing it.
fn picture(source: &Value) -> String {
    let text = |key: &str| source.get(key).and_then(Value::as_str);
    let kind = text("media_type").or_else(|| text("type")).unwrap_or("of an unknown kind");
    match (text("url"), text("data")) {
        (Some(url), _) => format!("{kind}, {url}"),
        (None, Some(data)) => format!("{kind}, about {} bytes", data.len() / 4 * 3),
        (None, None) => kind.to_owned(),
    }
}

fn push_details(out: &mut String, title: &str, language: &str, content: &str) {
    let content = clean(content);
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let title = html(&one_line(title));
    let _ =
        writeln!(out, "<details><summary>{title}</summary>\n\n{fence}{language}\n{content}\n{fence}\n\n</details>\n");
}

/// Text as a quote: nothing in it reaches beyond it.
fn push_quote(out: &mut String, text: &str) {
    let text = clean(text);
    let mut fence: Option<(char, usize)> = None;
    for line in text.lines() {
        let run = |c: char| line.chars().take_while(|next| *next == c).count();
        match fence {
            Some((c, length)) => {
                let inner = line.trim_start_matches(' ');
                let ends = line.len() - inner.len() < 4
                    && inner.chars().take_while(|next| *next == c).count() >= length
                    && inner.trim_end().chars().all(|next| next == c);
                let _ = writeln!(out, "> {line}");
                if ends {
                    fence = None;
                }
            }
            // Only a fence at the very beginning of a line belongs to the quote itself, whatever list came before it.
            None if run('`') >= 3 && !line.trim_start_matches('`').contains('`') => {
                fence = Some(('`', run('`')));
                let _ = writeln!(out, "> {line}");
            }
            None if run('~') >= 3 => {
                fence = Some(('~', run('~')));
                let _ = writeln!(out, "> {line}");
            }
            None => {
                let _ = writeln!(out, "> {}", quoted_line(line));
            }
        }
    }
    out.push('\n');
}

/// A line without what could reach beyond its paragraph: tags, pictures, definitions of links, code that does not end.
fn quoted_line(line: &str) -> String {
    let mut out = String::with_capacity(line.len() + 8);
    let mut rest = line;
    if line.trim_start().starts_with('[') && line.contains("]:") {
        let indent = line.len() - line.trim_start().len();
        out.push_str(&line[..indent]);
        out.push('\\');
        rest = &line[indent..];
        out.push('[');
        rest = rest.strip_prefix('[').unwrap_or(rest);
    }
    while let Some(c) = rest.chars().next() {
        match c {
            '\\' => {
                let next = rest[1..].chars().next().filter(char::is_ascii_punctuation);
                match next {
                    // An escaped tag would be one again after a second reading.
                    Some('<') => out.push_str("&lt;"),
                    Some(next) => out.extend(['\\', next]),
                    None => out.push('\\'),
                }
                rest = &rest[1 + next.map_or(0, char::len_utf8)..];
            }
            '`' => {
                let run = rest.len() - rest.trim_start_matches('`').len();
                match code_end(&rest[run..], run) {
                    Some(end) => {
                        out.push_str(&rest[..run + end]);
                        rest = &rest[run + end..];
                    }
                    None => {
                        (0..run).for_each(|_| out.push_str("\\`"));
                        rest = &rest[run..];
                    }
                }
            }
            '<' => {
                out.push_str("&lt;");
                rest = &rest[1..];
            }
            '!' if rest[1..].starts_with('[') => {
                out.push_str("\\![");
                rest = &rest[2..];
            }
            other => {
                out.push(other);
                rest = &rest[other.len_utf8()..];
            }
        }
    }
    out
}

/// Where a code span that began with `run` backticks ends, with its end.
fn code_end(text: &str, run: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let start = at + found;
        let length = text[start..].len() - text[start..].trim_start_matches('`').len();
        at = start + length;
        if length == run {
            return Some(at);
        }
    }
    None
}

/// Whether it changes how the text around it is read and is not read itself: a control character, or one of those that
/// turn the direction of a line.
fn is_control(c: char) -> bool {
    let turns =
        |c| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns(c)
}

/// Control characters are shown as what they are: nothing to read.
fn clean(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars().map(|c| if is_control(c) && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

fn one_line(text: &str) -> String {
    const MAX: usize = 200;
    let text = clean(text);
    let words = text.split(|c: char| c.is_whitespace() || c == '\u{fffd}').filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.chars().count() > MAX {
        true => line.chars().take(MAX).chain("…".chars()).collect(),
        false => line,
    }
}

fn html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Text within a line of the document's own.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for c in one_line(text).chars() {
        if "\\`*_[]<>|~&$#!".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quote(text: &str) -> String {
        let mut out = String::new();
        push_quote(&mut out, text);
        out
    }

    #[test]
    fn text_stays_within_its_quote() {
        assert_eq!(quote("# head\n---\n</details>"), "> # head\n> ---\n> &lt;/details>\n\n");
        assert_eq!(quote("use `Vec<u8>` or <b>"), "> use `Vec<u8>` or &lt;b>\n\n");
        assert_eq!(quote("`\n` <script> `"), "> \\`\n> ` <script> `\n\n");
        assert_eq!(quote("```\n<b>\n```\n<b>"), "> ```\n> <b>\n> ```\n> &lt;b>\n\n");
        assert_eq!(quote("- a\n  ```\n  <b>\nfoo <script>"), "> - a\n>   \\`\\`\\`\n>   &lt;b>\n> foo &lt;script>\n\n");
        assert_eq!(quote("[a]: http://x"), "> \\[a]: http://x\n\n");
        assert_eq!(quote("![a](http://x)"), "> \\![a](http://x)\n\n");
        assert_eq!(quote("\\<b>"), "> &lt;b>\n\n");
        assert_eq!(quote("a\r\nb\u{0}"), "> a\n> b\u{fffd}\n\n");
    }

    #[test]
    fn a_fence_is_longer_than_any_inside() {
        let mut out = String::new();
        push_details(&mut out, "x</summary>\n<b>", "text", "````\n</details>");
        assert!(out.starts_with("<details><summary>x&lt;/summary&gt; &lt;b&gt;</summary>\n\n`````text\n````\n"));
    }
}
