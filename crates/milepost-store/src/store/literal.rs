//! One text that is taken out of others, however it is written there.
//!
//! A tool prints JSON, a message holds what it printed: in there a line feed, a quote, a backslash or a letter beyond ASCII
//! is written as an escape, and once more for every JSON that holds the one before. So a text is also read as its escapes
//! mean it, and what stands for the secret there goes. Other encodings (base64, percent signs) are texts of their own.

use std::ops::Range;

use memchr::memmem::Finder;

/// So many times escapes are read for what they mean.
const MAX_DEPTH: usize = 4;
/// So often a replacement is put in; where it makes the secret anew with what stands beside it, nothing is put there.
const MAX_ROUNDS: usize = 16;

/// A secret, and what is put in its place.
pub(super) struct Literal {
    secret: Finder<'static>,
    /// The same where each byte of it was taken for a character, as adapters store bytes and as happens by mistake, and what is
    /// put there; none when that is no other text.
    latin: Option<(Finder<'static>, String)>,
    /// What is put in its place, as it is written below so many JSON texts.
    instead: [String; MAX_DEPTH + 1],
}

impl Literal {
    pub fn new(secret: &str, instead: &str) -> Self {
        let mut forms = [const { String::new() }; MAX_DEPTH + 1];
        let mut form = instead.to_owned();
        for slot in &mut forms {
            let next = escaped(&form);
            *slot = std::mem::replace(&mut form, next);
        }
        let as_latin = |text: &str| text.bytes().map(char::from).collect::<String>();
        let latin = (!secret.is_ascii()).then(|| (Finder::new(&as_latin(secret)).into_owned(), as_latin(instead)));
        Self { secret: Finder::new(secret).into_owned(), latin, instead: forms }
    }

    /// A text without the secret; none when it is not in there.
    pub fn erase(&self, text: &str) -> Option<String> {
        let mut clean: Option<String> = None;
        for round in 0.. {
            let now = clean.as_deref().unwrap_or(text);
            let Some((instead, ranges)) = self.find(now) else { break };
            let instead = if round < MAX_ROUNDS { instead } else { "" };
            let mut next = String::with_capacity(now.len());
            let mut end = 0;
            for range in ranges {
                next.push_str(&now[end..range.start]);
                next.push_str(instead);
                end = range.end;
            }
            next.push_str(&now[end..]);
            clean = Some(next);
        }
        clean
    }

    /// Where it stands, and what is put there; below the fewest JSON texts first.
    fn find(&self, text: &str) -> Option<(&str, Vec<Range<usize>>)> {
        let plain = |secret: &Finder<'_>| -> Vec<_> {
            secret.find_iter(text.as_bytes()).map(|at| at..at + secret.needle().len()).collect()
        };
        let as_it_is = std::iter::once((&self.secret, &self.instead[0]));
        for (secret, instead) in as_it_is.chain(self.latin.as_ref().map(|(secret, instead)| (secret, instead))) {
            let ranges = plain(secret);
            if !ranges.is_empty() {
                return Some((instead, ranges));
            }
        }
        let length = self.secret.needle().len();
        let mut view = View::of(text)?;
        for instead in &self.instead[1..] {
            let found = self.secret.find_iter(view.text.as_bytes());
            let ranges: Vec<_> = found.map(|at| view.starts[at]..view.starts[at + length]).collect();
            if !ranges.is_empty() {
                return Some((instead, ranges));
            }
            view = view.deeper()?;
        }
        None
    }
}

/// A text as its escapes mean it, with where each byte of it begins in what it was read from.
struct View {
    text: String,
    /// One more than there are bytes: the last is the end.
    starts: Vec<usize>,
}

impl View {
    /// None when nothing is escaped.
    fn of(text: &str) -> Option<Self> {
        let mut view = Self { text: String::new(), starts: Vec::new() };
        let (mut at, mut found) = (0, false);
        while let Some(next) = memchr::memchr(b'\\', &text.as_bytes()[at..]).map(|next| at + next) {
            view.push(&text[at..next], at);
            let (meant, length) = escape(&text[next..]).unwrap_or(('\\', 1));
            found |= length > 1;
            view.text.push(meant);
            view.starts.resize(view.text.len(), next);
            at = next + length;
        }
        if !found {
            return None;
        }
        view.push(&text[at..], at);
        view.starts.push(text.len());
        Some(view)
    }

    fn push(&mut self, part: &str, at: usize) {
        self.text.push_str(part);
        self.starts.extend(at..at + part.len());
    }

    /// The same once more.
    fn deeper(&self) -> Option<Self> {
        let mut view = Self::of(&self.text)?;
        for start in &mut view.starts {
            *start = self.starts[*start];
        }
        Some(view)
    }
}

/// What an escape of JSON at the beginning of a text means, and how long it is.
fn escape(text: &str) -> Option<(char, usize)> {
    let meant = match text.as_bytes().get(1)? {
        letter @ (b'"' | b'\\' | b'/') => char::from(*letter),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode(text),
        _ => return None,
    };
    Some((meant, 2))
}

/// `\u00e4`, or two of them for a letter that needs two.
fn unicode(text: &str) -> Option<(char, usize)> {
    let unit = |from: usize| {
        let digits = text.get(from..from + 6)?.strip_prefix("\\u")?;
        digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let first = unit(0)?;
    if let Some(letter) = char::from_u32(u32::from(first)) {
        return Some((letter, 6));
    }
    let letter = char::decode_utf16([first, unit(6)?]).next()?.ok()?;
    Some((letter, 12))
}

/// A text as it is written inside of a JSON text.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
