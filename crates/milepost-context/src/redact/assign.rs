//! Values that are assigned to a name which says that they are secret: `SECRET_KEY = "…"`,
//! `api_key: …`, `"password": "…"`, `?token=…`.
//!
//! A name is not enough: code is full of `token = next_token()` and `password: string`. The value
//! has to look like one, the more so the less the notation says that it is one.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::MAX_ASSIGNED_BYTES;
use super::rules::{DEFAULT_KEYS, KeyRule, normal};
use super::scan::is_word;

/// Words that a name of a secret holds, in lower case.
pub(super) const WORDS: [&str; 21] = [
    "passw",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "apikey",
    "api_key",
    "api-key",
    "accesskey",
    "access_key",
    "access-key",
    "authkey",
    "auth_key",
    "privatekey",
    "private_key",
    "signingkey",
    "signing_key",
    "encryptionkey",
    "encryption_key",
    "credential",
];

/// Endings of names that are about a secret but do not hold it.
const ABOUT: [&str; 34] = [
    "name",
    "names",
    "id",
    "ids",
    "count",
    "counts",
    "type",
    "types",
    "url",
    "uri",
    "path",
    "file",
    "dir",
    "field",
    "label",
    "length",
    "limit",
    "size",
    "expiry",
    "expires",
    "expiresin",
    "expiresat",
    "ttl",
    "version",
    "arn",
    "ref",
    "hint",
    "policy",
    "prompt",
    "tokens",
    "index",
    "pos",
    "usage",
    "budget",
];

const MARKS: [&str; 14] = [
    "example",
    "changeme",
    "change_me",
    "change-me",
    "placeholder",
    "your_",
    "your-",
    "xxxx",
    "****",
    "....",
    "${",
    "$(",
    "{{",
    "%(",
];

#[allow(clippy::expect_used, reason = "the pattern is a constant that a test compiles")]
static ASSIGNMENT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        // The rest of the name, its closing quote, the sign.
        r#"^(?<rest>[0-9A-Za-z_.-]{0,40})(?:\\?["'`]\]?|\])?(?<space>[ \t]{0,8})(?<sign>:=|=>|=|:)(?<gap>[ \t]{0,8})"#,
        r#"(?:(?<raw>[rbuf]{0,2})(?:"(?<double>(?:[^"\\\r\n]|\\[^\r\n])+)""#,
        r#"|'(?<single>(?:[^'\\\r\n]|\\[^\r\n])+)'"#,
        r#"|`(?<back>[^`\r\n]+)`"#,
        r#"|\\"(?<escaped>(?:[^"\\\r\n]|\\[^"\r\n])+)\\")"#,
        r#"|(?<bare>[^\s"'`,;&<>(){}\[\]\\=|]+={0,2}))"#,
    ))
    .expect("a valid pattern")
});

#[allow(clippy::expect_used, reason = "the pattern is a constant that a test compiles")]
static TOKEN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\[redacted:[a-z0-9-]{1,32}(?::[0-9a-f]{12})?\]").expect("a valid pattern"));

/// Where tokens of earlier redactions stand.
pub(super) fn tokens(text: &str) -> Vec<Range<usize>> {
    if text.contains("[redacted:") { TOKEN.find_iter(text).map(|token| token.range()).collect() } else { Vec::new() }
}

/// Whether a text is nothing but tokens of earlier redactions.
pub(super) fn is_token(text: &str) -> bool {
    text.starts_with("[redacted:") && TOKEN.replace_all(text, "").trim().is_empty()
}

/// Whether a text stands for a secret that someone is to fill in.
pub(super) fn is_placeholder(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    MARKS.iter().any(|mark| lower.contains(mark)) || text.starts_with(['<', '$', '%']) || is_token(text)
}

/// A value that is assigned to the name around `word_at..word_end`: where it is, and its kind.
pub(super) fn assigned(
    text: &str,
    word: (usize, usize),
    keys: &HashMap<String, KeyRule>,
) -> Option<(usize, usize, &'static str)> {
    let (start, end) = word;
    let window_end = text.floor_char_boundary(end.saturating_add(MAX_ASSIGNED_BYTES + 128).min(text.len()));
    let found = ASSIGNMENT.captures(text.get(end..window_end)?)?;
    let part = |name: &str| found.name(name).map_or("", |part| part.as_str());
    let begin = name_start(text, start);
    let name = format!("{}{}", text.get(begin..end)?, part("rest"));
    let quoted = ["double", "single", "back", "escaped"].iter().find_map(|group| found.name(group));
    let value = quoted.or_else(|| found.name("bare"))?;
    let (from, to) = (end + value.start(), end + value.end());
    // What an earlier redaction left is judged by what else there is.
    let value = TOKEN.replace_all(value.as_str(), "");
    let value = value.as_ref();
    if is_placeholder(value) || value.len() < 4 && to - from > value.len() {
        return None;
    }
    let full = normal(&name);
    let named = keys.get(&full) == Some(&KeyRule::Named);
    let notation = Notation::of(text, begin, to, quoted.is_some(), part("sign"), part("gap"), part("space"));
    // A name of the user's own is enough; the usual ones stand in too many programs.
    let usual = DEFAULT_KEYS.iter().any(|key| normal(key) == full);
    if named && notation != Notation::Code && (!usual || could_be_password(value, notation)) {
        return Some((from, to, "named"));
    }
    if ABOUT.iter().any(|about| full.ends_with(about)) {
        return None;
    }
    let password = ["passw", "pwd", "passphrase"].iter().any(|word| full.contains(word));
    let random = if password { could_be_password(value, notation) } else { could_be_key(value, notation) };
    if !random {
        return None;
    }
    let kind = match () {
        () if full.ends_with("secretaccesskey") && value.len() == 40 => "aws-secret-key",
        () if password => "password",
        () => "secret",
    };
    Some((from, to, kind))
}

/// Where the name begins that a word is part of.
fn name_start(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(at.saturating_sub(64)..at).unwrap_or_default();
    let own = before.iter().rev().take_while(|b| is_word(**b) || matches!(b, b'-' | b'.')).count();
    at - own
}

/// How an assignment is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    /// The value stands in quotes.
    Quoted,
    /// `NAME=value`, without spaces: an environment file, a command line, a query.
    Env,
    /// `name: value` on a line of its own.
    Line,
    /// Something else without quotes: a program's text.
    Code,
}

impl Notation {
    fn of(text: &str, begin: usize, end: usize, quoted: bool, sign: &str, gap: &str, space: &str) -> Self {
        if quoted {
            return Notation::Quoted;
        }
        let bytes = text.as_bytes();
        let next = bytes.get(end).copied().unwrap_or(b'\n');
        let ends_line = matches!(next, b'\n' | b'\r');
        // A call, an index, a member: not a value but a way to one.
        if matches!(next, b'(' | b'[' | b'{' | b'<' | b'"' | b'\'' | b'`' | b'\\') {
            return Notation::Code;
        }
        if sign == "=" && gap.is_empty() && space.is_empty() {
            return if matches!(next, b',' | b')' | b';' | b'}') { Notation::Code } else { Notation::Env };
        }
        let line_start =
            bytes.get(..begin).unwrap_or_default().iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let indent = bytes.get(line_start..begin).unwrap_or_default();
        let alone = indent.iter().rev().take(64).all(|b| matches!(b, b' ' | b'\t' | b'-' | b'"' | b'\''));
        if sign == ":" && ends_line && alone && begin - line_start <= 64 { Notation::Line } else { Notation::Code }
    }
}

struct Shape {
    digits: usize,
    upper: usize,
    lower: usize,
    other: usize,
    /// How often a digit, a capital or a small letter follows one of another kind.
    switches: usize,
    entropy: f64,
}

fn shape(value: &str) -> Shape {
    let mut counts = [0u32; 256];
    let mut shape = Shape { digits: 0, upper: 0, lower: 0, other: 0, switches: 0, entropy: 0.0 };
    let mut last = 0;
    for byte in value.bytes() {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count += 1;
        }
        let (class, count) = match byte {
            b'0'..=b'9' => (1, &mut shape.digits),
            b'A'..=b'Z' => (2, &mut shape.upper),
            b'a'..=b'z' => (3, &mut shape.lower),
            _ => (0, &mut shape.other),
        };
        *count += 1;
        if class != 0 && last != 0 && class != last {
            shape.switches += 1;
        }
        last = class;
    }
    let length = value.len() as f64;
    for count in counts.into_iter().filter(|count| *count > 0) {
        let share = f64::from(count) / length;
        shape.entropy -= share * share.log2();
    }
    shape
}

/// A path of identifiers, such as `self.config.secret_2`.
fn is_path(value: &str) -> bool {
    value.contains(['.', '/', ':'])
        && value.split(['.', '/', ':']).all(|part| {
            !part.starts_with(|c: char| c.is_ascii_digit()) && part.bytes().all(is_word) && shape(part).entropy < 3.6
        })
}

fn could_be_password(value: &str, notation: Notation) -> bool {
    let place = ["/", "./", "../", "~/"].iter().any(|root| value.starts_with(root));
    if value.len() < 6 || value.contains(char::is_whitespace) || place || is_path(value) {
        return false;
    }
    let shape = shape(value);
    let letters = shape.upper + shape.lower;
    match notation {
        Notation::Code => false,
        // Two kinds of characters, or long and random; `password_field` is a name.
        Notation::Quoted | Notation::Env | Notation::Line => {
            let odd = value.bytes().any(|b| !is_word(b) && !matches!(b, b'-' | b'.' | b'/' | b':'));
            let mixed = letters > 0 && (shape.digits > 0 || odd);
            mixed && shape.entropy >= 2.2
        }
    }
}

fn could_be_key(value: &str, notation: Notation) -> bool {
    if value.contains(char::is_whitespace) || is_path(value) || !value.is_ascii() {
        return false;
    }
    let shape = shape(value);
    let letters = shape.upper + shape.lower;
    let (least, entropy) = match notation {
        Notation::Quoted => (12, 3.0),
        Notation::Env => (12, 3.0),
        Notation::Line => (16, 3.2),
        Notation::Code => (24, 3.8),
    };
    let scattered = value.len() >= 20 && shape.switches * 3 >= value.len();
    let mixed = letters > 0 && (shape.digits >= 2 || scattered) && shape.other * 3 <= value.len();
    value.len() >= least && mixed && shape.entropy >= entropy && !is_words(value)
}

/// Words joined by dashes, underscores or dots, such as `prod-db-secret-01`.
fn is_words(value: &str) -> bool {
    let parts: Vec<&str> = value.split(['-', '_', '.', '/', ':', '@']).filter(|part| !part.is_empty()).collect();
    let plain = |part: &&str| {
        let letters = part.bytes().filter(u8::is_ascii_alphabetic).count();
        let switches = part
            .as_bytes()
            .windows(2)
            .filter(|pair| matches!(pair, [a, b] if a.is_ascii_digit() != b.is_ascii_digit()))
            .count();
        part.len() <= 14 && (letters == part.len() || letters == 0 && part.len() <= 6 || switches <= 1)
    };
    parts.len() >= 2 && parts.iter().all(plain)
}
