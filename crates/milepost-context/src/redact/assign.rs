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
use super::rules::{KeyRule, normal};
use super::scan::is_word;

/// Words that a name of a secret holds, in lower case.
pub(super) const WORDS: [&str; 22] = [
    "_pass",
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
const ABOUT: [&str; 35] = [
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
    "stdin",
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

/// Tokens that only say where a list goes on.
const BOOKMARKS: [&str; 4] = ["pagetoken", "nexttoken", "continuationtoken", "synctoken"];

/// Whether a name, as [`normal`] has it, is about a secret, or about tokens that are none.
fn is_about(full: &str) -> bool {
    ABOUT.iter().chain(&BOOKMARKS).any(|about| full.ends_with(about)) || full.contains("tokeniz")
}

/// Whose a password is that a name calls `pass`: a pass of a compiler has another name before it.
const OWNERS: [&str; 17] = [
    "db", "database", "user", "admin", "root", "mysql", "pg", "postgres", "redis", "mongo", "smtp", "mail", "ftp",
    "ssh", "ldap", "proxy", "http",
];

/// Whether a name says `pass` for a password: `DB_PASS`, `smtp_pass`, `dbPass`.
fn is_pass(name: &str) -> bool {
    let full = normal(name);
    let Some(owner) = full.strip_suffix("pass") else { return false };
    is_variable(name) && name.ends_with("_PASS") || OWNERS.iter().any(|known| owner.ends_with(known))
}

/// Whether a name is written as an environment variable's.
fn is_variable(name: &str) -> bool {
    name.bytes().any(|b| b.is_ascii_uppercase()) && !name.bytes().any(|b| b.is_ascii_lowercase())
}

/// Endings of keys of objects whose value is a secret also when it is a word.
const ENDINGS: [&str; 8] =
    ["password", "passwd", "secret", "apikey", "accesskey", "secretkey", "privatekey", "accesstoken"];

/// Whether a text that stands under this key of an object is a secret. It is judged as the same assignment in a text
/// is; an object also says where its names begin and end, so that shorter ones count.
pub(super) fn is_secret_under(key: &str, value: &str) -> bool {
    if value.len() < 6 || value.len() > MAX_ASSIGNED_BYTES || value.contains(char::is_whitespace) {
        return false;
    }
    let full = normal(key);
    if is_placeholder(value) {
        return false;
    }
    if ENDINGS.iter().any(|ending| full.ends_with(ending)) {
        return value.len() >= 8;
    }
    if is_about(&full) || is_date(value) {
        return false;
    }
    let has = |word: &str| full.contains(word);
    if has("passw") || has("passphrase") || has("pwd") || full == "pass" || is_pass(key) {
        return could_be_password(value, Notation::Quoted)
            || is_variable(key) && could_be_plain(value, &full, Notation::Quoted);
    }
    let last = last_part(key);
    let is_named = WORDS.iter().any(|word| !word.starts_with('_') && has(word))
        || matches!(last.as_str(), "auth" | "bearer" | "jwt");
    // What connects may be an address without a secret: one with a password is found in it.
    let connects = full.ends_with("connectionstring") || last == "dsn";
    match () {
        () if is_named => could_be_key(value, Notation::Quoted),
        () if connects => value.bytes().all(is_base64) && could_be_key(value, Notation::Quoted),
        // Keys of maps, caches and lists are hashes, ids and words: only what mixes everything is none of them.
        () if full == "key" || is_variable(key) && last == "key" && !has("public") => {
            let shape = shape(value);
            shape.upper > 0 && shape.lower > 0 && shape.digits > 0 && could_be_key(value, Notation::Code)
        }
        () => false,
    }
}

fn is_base64(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'-' | b'+' | b'/' | b'=')
}

/// Whether a value begins with a date: tokens are made and end at one.
fn is_date(value: &str) -> bool {
    let digit = |at: usize| value.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let dash = |at: usize| value.as_bytes().get(at) == Some(&b'-');
    [0, 1, 2, 3, 5, 6, 8, 9].into_iter().all(digit) && dash(4) && dash(7)
}

/// The last word of a name, in lower case: `auth` of `npm_auth`, `NPM-AUTH` and `npmAuth`.
fn last_part(key: &str) -> String {
    let tail = key.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let bytes = tail.as_bytes();
    let begin = (1..bytes.len())
        .rev()
        .find(|at| matches!(bytes.get(at - 1..=*at), Some([a, b]) if a.is_ascii_lowercase() && b.is_ascii_uppercase()));
    tail.get(begin.unwrap_or(0)..).unwrap_or_default().to_ascii_lowercase()
}

/// The notation around a value, as it is read after a name's word.
struct Assignment {
    /// Where the rest of the name ends.
    name_end: usize,
    /// White space before the sign, and after it.
    spaced: (bool, bool),
    sign: &'static str,
    value: Range<usize>,
    quoted: bool,
}

/// The sign of a long flag whose value is the next word.
const NEXT_WORD: &str = "";

/// Reads `rest-of-name"  =  "value"` from `at`. With `holds_and`, a value without quotes may hold `&`; with `is_flag`, it may be
/// the next word.
fn read(bytes: &[u8], at: usize, holds_and: bool, is_flag: bool) -> Option<Assignment> {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(b'\n');
    let run = |from: usize, most: usize, fits: fn(u8) -> bool| {
        let tail = bytes.get(from..).unwrap_or_default();
        from + tail.iter().take(most).take_while(|b| fits(**b)).count()
    };
    let blank = |b: u8| matches!(b, b' ' | b'\t');
    let quote = |b: u8| matches!(b, b'"' | b'\'' | b'`');
    let name_end = run(at, 40, |b| is_word(b) || matches!(b, b'-' | b'.'));
    // The name's closing quote, as in JSON, in JSON inside of a string, and in `x["name"]`.
    let mut next = name_end;
    if byte(next) == b'\\' && quote(byte(next + 1)) {
        next += 2;
    } else if quote(byte(next)) {
        next += 1;
    }
    if byte(next) == b']' {
        next += 1;
    }
    let sign_at = run(next, 8, blank);
    let sign = match (byte(sign_at), byte(sign_at + 1)) {
        (b':', b'=') => ":=",
        (b'=', b'>') => "=>",
        (b'=', b'=') => return None,
        (b'=', _) => "=",
        (b':', _) => ":",
        (next, _) if is_flag && sign_at > name_end && next != b'-' => NEXT_WORD,
        _ => return None,
    };
    let after = sign_at + sign.len();
    let from = run(after, 8, blank);
    let spaced = (sign_at > next, from > after);
    // A string's prefix: r"…", b"…".
    let open = run(from, 2, |b| matches!(b, b'r' | b'b' | b'u' | b'f'));
    let open = if quote(byte(open)) { open } else { from };
    let made = |value: Range<usize>, quoted| Some(Assignment { name_end, spaced, sign, value, quoted });
    match (byte(open), byte(open + 1)) {
        (mark @ (b'"' | b'\'' | b'`'), _) => {
            let end = closing(bytes, open + 1, mark)?;
            made(open + 1..end, true)
        }
        (b'\\', b'"') => {
            let end = mark_at(bytes, open + 2, b"\\\"")?;
            made(open + 2..end, true)
        }
        _ => {
            let mut end = run(from, MAX_ASSIGNED_BYTES, is_bare);
            while holds_and && end - from < MAX_ASSIGNED_BYTES && is_and_in_value(bytes, end) {
                end = run(end + 1, MAX_ASSIGNED_BYTES, is_bare);
            }
            made(from..run(end, 2, |b| b == b'='), false)
        }
    }
    .filter(|assignment| !assignment.value.is_empty())
}

fn is_bare(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !byte.is_ascii_control() && !br#""'`,;&<>(){}[]\=|"#.contains(&byte)
}

/// Whether an `&` belongs to the value that it stands in: no field of a query follows, and it is no sign of a shell's or
/// of a page's.
fn is_and_in_value(bytes: &[u8], at: usize) -> bool {
    let Some([b'&', rest @ ..]) = bytes.get(at..) else { return false };
    let name =
        rest.iter().take(64).take_while(|b| is_word(**b) || matches!(b, b'-' | b'.' | b'%' | b'[' | b']')).count();
    rest.first().is_some_and(|b| is_bare(*b)) && rest.get(name) != Some(&b'=') && !rest.starts_with(b"amp;")
}

/// Where a quoted value ends: at its mark, on the same line, not after a backslash.
fn closing(bytes: &[u8], from: usize, mark: u8) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in bytes.iter().enumerate().skip(from).take(MAX_ASSIGNED_BYTES) {
        match *byte {
            b'\n' | b'\r' => return None,
            _ if escaped => escaped = false,
            b'\\' if mark != b'`' => escaped = true,
            byte if byte == mark => return Some(at),
            _ => {}
        }
    }
    None
}

/// Where `mark` stands on the same line.
fn mark_at(bytes: &[u8], from: usize, mark: &[u8; 2]) -> Option<usize> {
    let line = bytes.get(from..)?;
    let line = line.get(..line.len().min(MAX_ASSIGNED_BYTES))?;
    let at = line.windows(2).position(|pair| pair == mark || pair.first() == Some(&b'\n'))?;
    (line.get(at) != Some(&b'\n')).then_some(from + at)
}

#[allow(clippy::expect_used, reason = "the pattern is a constant that a test compiles")]
static TOKEN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\[redacted:[a-z0-9-]{1,32}(?::[0-9a-f]{12})?\]").expect("a valid pattern"));

/// Where tokens of earlier redactions stand.
pub(super) fn tokens(text: &str) -> Vec<Range<usize>> {
    if text.contains("[redacted:") { TOKEN.find_iter(text).map(|token| token.range()).collect() } else { Vec::new() }
}

/// The first token of a redaction in a text: something was taken out there.
pub fn token(text: &str) -> Option<&str> {
    tokens(text).into_iter().next().and_then(|token| text.get(token))
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
    let begin = name_start(text, start);
    // A password may hold a sign that separates the fields of a query.
    let is_chosen = ["_pass", "pass", "pwd"].iter().any(|word| {
        text.get(start..end).is_some_and(|own| own.get(..word.len()).is_some_and(|own| own.eq_ignore_ascii_case(word)))
    });
    let is_flag = text.get(begin..).is_some_and(|name| name.starts_with("--"));
    let found = read(text.as_bytes(), end, is_chosen && !is_field(text, begin), is_flag)?;
    let name = text.get(begin..found.name_end)?;
    let (from, to) = (found.value.start, found.value.end);
    let value = text.get(from..to)?;
    // What an earlier redaction left is judged by what else there is.
    let value = TOKEN.replace_all(value, "");
    let value = value.as_ref();
    if is_placeholder(value) || value.len() < 4 && to - from > value.len() {
        return None;
    }
    let full = normal(name);
    let notation = Notation::of(text, begin, &found);
    // A name of the user's own is enough; the usual ones stand in too many programs.
    let named = match keys.get(&full) {
        Some(KeyRule::Named) => notation != Notation::Code,
        Some(KeyRule::NamedDefault) => could_be_password(value, notation),
        Some(KeyRule::Default) | None => false,
    };
    if named {
        return Some((from, to, "named"));
    }
    if is_about(&full) {
        return None;
    }
    let named = ["passw", "pwd", "passphrase"].iter().any(|word| full.contains(word));
    let password = named || is_pass(name);
    if !password && text.get(start..end).is_some_and(|word| word.eq_ignore_ascii_case("_pass")) {
        return None;
    }
    let random = if password { could_be_password(value, notation) } else { could_be_key(value, notation) };
    // In the environment and on a command line a password stands as it is, however plain.
    let plain = password && is_outside_code(text, begin, name) && found.sign != NEXT_WORD;
    let plain = plain && could_be_plain(value, &full, notation);
    if !random && !plain {
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
    fn of(text: &str, begin: usize, found: &Assignment) -> Self {
        if found.quoted {
            return Notation::Quoted;
        }
        let (sign, end) = (found.sign, found.value.end);
        let bytes = text.as_bytes();
        let next = bytes.get(end).copied().unwrap_or(b'\n');
        let ends_line = matches!(next, b'\n' | b'\r');
        // A header in quotes, as a command line has it: -H "X-Api-Key: …".
        if sign == ":" && is_in_quotes(bytes, begin, end) {
            return Notation::Quoted;
        }
        if sign == NEXT_WORD && !matches!(next, b'(' | b'[' | b'{' | b'<' | b',' | b';') {
            return Notation::Env;
        }
        // A call, an index, a member: not a value but a way to one.
        if matches!(next, b'(' | b'[' | b'{' | b'<' | b'"' | b'\'' | b'`' | b'\\') {
            return Notation::Code;
        }
        if sign == "=" && found.spaced == (false, false) {
            if next == b';' && is_in_list(bytes, begin, end) {
                return Notation::Env;
            }
            return if matches!(next, b',' | b')' | b';' | b'}') { Notation::Code } else { Notation::Env };
        }
        let line_start =
            bytes.get(..begin).unwrap_or_default().iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let indent = bytes.get(line_start..begin).unwrap_or_default();
        let alone = indent.iter().rev().take(64).all(|b| matches!(b, b' ' | b'\t' | b'-' | b'"' | b'\''));
        if sign == ":" && ends_line && alone && begin - line_start <= 64 { Notation::Line } else { Notation::Code }
    }
}

/// Whether a name and its value stand in quotes together, also in ones that are escaped.
fn is_in_quotes(bytes: &[u8], begin: usize, end: usize) -> bool {
    let before = bytes.get(..begin).unwrap_or_default();
    let after = bytes.get(end..).unwrap_or_default();
    match (before, after) {
        ([.., b'\\', open], [b'\\', close, ..]) => open == close && matches!(open, b'"' | b'\''),
        ([.., open], [close, ..]) => open == close && matches!(open, b'"' | b'\''),
        _ => false,
    }
}

/// Whether an assignment that ends with a semicolon is one of several on a line without spaces around their signs, as in
/// `Server=db;User Id=sa;Password=…;Database=d`.
fn is_in_list(bytes: &[u8], begin: usize, end: usize) -> bool {
    let is_name = |b: &&u8| is_word(**b) || matches!(b, b' ' | b'-' | b'.');
    let before = bytes.get(begin.saturating_sub(64)..begin).unwrap_or_default();
    let after = bytes.get(end + 1..).unwrap_or_default();
    let follows = before.iter().rev().find(|b| **b != b' ') == Some(&b';');
    let name = after.iter().take(64).take_while(is_name).count();
    follows
        || (name > 0 && after.get(name) == Some(&b'=') && after.get(name + 1).is_some_and(|b| !b.is_ascii_whitespace()))
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
    if value.len() < 6 || value.contains(char::is_whitespace) || is_place(value) || is_path(value) {
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

/// Whether a name is an environment variable's, a long flag's, or a field's of a query.
fn is_outside_code(text: &str, begin: usize, name: &str) -> bool {
    is_variable(name) || name.starts_with("--") || is_field(text, begin)
}

/// Whether a name is a field's of a query.
fn is_field(text: &str, begin: usize) -> bool {
    matches!(begin.checked_sub(1).and_then(|at| text.as_bytes().get(at)), Some(b'?' | b'&'))
}

/// Whether a value is the place of a file.
fn is_place(value: &str) -> bool {
    let has_drive = matches!(value.as_bytes(), [drive, b':', b'\\' | b'/', ..] if drive.is_ascii_alphabetic());
    has_drive || ["/", "./", "../", "~/"].iter().any(|root| value.starts_with(root))
}

/// Words that stand where a password could, and say something about it.
const SAYINGS: [&str; 16] = [
    "true",
    "false",
    "null",
    "none",
    "undefined",
    "required",
    "optional",
    "prompt",
    "string",
    "password",
    "secret",
    "hidden",
    "masked",
    "redacted",
    "disabled",
    "enabled",
];

/// A password that is a word.
fn could_be_plain(value: &str, name: &str, notation: Notation) -> bool {
    let said = normal(value);
    notation != Notation::Code
        && value.len() >= 6
        && !value.contains(char::is_whitespace)
        && !is_place(value)
        && !is_path(value)
        && !SAYINGS.contains(&said.as_str())
        && !name.contains(&said)
        && value.bytes().any(is_word)
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
    let mixed = mixed && (scattered || notation != Notation::Code);
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
