//! What a person typed, as terms; and whether a text has them.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use milepost_store::words::{is_unspaced, spaced};

use super::SearchQuery;
use crate::error::{Error, Result};

/// Something that a text must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    /// A word, or several for a phrase.
    pub text: String,
    /// Words that begin like the last one are found too.
    pub prefix: bool,
    words: Vec<String>,
}

/// Everything that a text must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Terms {
    pub terms: Vec<Term>,
    /// For substrings: the whole text, folded.
    substring: Option<String>,
}

/// A search may have so many terms.
const MAX_TERMS: usize = 64;

impl Terms {
    pub fn parse(query: &SearchQuery) -> Result<Self> {
        let text = query.text.trim();
        let refuse = |why: String, instead: &str| Error::malformed("searching", why, instead);
        if text.len() > SearchQuery::MAX_BYTES {
            let why = format!("the text has {} bytes, the limit MAX_BYTES is {}", text.len(), SearchQuery::MAX_BYTES);
            return Err(refuse(why, "search for less"));
        }
        if query.substring {
            if text.is_empty() {
                return Err(refuse("there is nothing to look for".into(), "give a text"));
            }
            return Ok(Self { terms: Vec::new(), substring: Some(fold(text)) });
        }
        let mut terms = Vec::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if next.is_whitespace() {
                rest = rest.trim_start();
                continue;
            }
            let (part, after) = match rest.strip_prefix('"') {
                // A quote that is not closed goes to the end.
                Some(inner) => inner.split_once('"').unwrap_or((inner, "")),
                None => rest.split_at(rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len())),
            };
            let (star, after) = match after.strip_prefix('*') {
                Some(after) => (true, after),
                None => (part.ends_with('*'), after),
            };
            rest = after;
            let words = words(part);
            if !words.is_empty() || part.chars().any(is_sign) {
                terms.push(Term { text: part.trim_end_matches('*').to_owned(), prefix: star, words });
            }
        }
        if terms.is_empty() {
            return Err(refuse(
                format!("{text:?} has no word to look for"),
                "give a word, or search for the text as a substring",
            ));
        }
        if terms.len() > MAX_TERMS {
            return Err(refuse(
                format!("there are {} terms, at most {MAX_TERMS} are taken", terms.len()),
                "search for less",
            ));
        }
        Ok(Self { terms, substring: None })
    }

    /// Whether some of it is in a script that does not separate words, so that an index of words would miss it.
    pub fn has_unspaced(&self) -> bool {
        self.terms.iter().any(|term| term.text.chars().any(is_unspaced))
    }

    /// Whether some of it is a sign, which no index has.
    pub fn has_signs(&self) -> bool {
        self.terms.iter().any(|term| term.text.chars().any(is_sign))
    }

    /// How often a text has what is looked for; none when something is missing.
    pub fn matches(&self, text: &str) -> Option<u64> {
        if let Some(wanted) = &self.substring {
            let count = fold(text).matches(wanted.as_str()).count() as u64;
            return (count > 0).then_some(count);
        }
        let has = words(text);
        let mut total = 0;
        for term in &self.terms {
            let count = match term.text.chars().any(|c| is_unspaced(c) || is_sign(c)) {
                true => fold(text).matches(fold(&term.text).as_str()).count(),
                false => term.count(&has),
            };
            if count == 0 {
                return None;
            }
            total += count as u64;
        }
        Some(total)
    }
}

impl Term {
    fn count(&self, has: &[String]) -> usize {
        let Some((last, first)) = self.words.split_last() else { return 0 };
        has.windows(self.words.len())
            .filter(|window| {
                let Some((end, begin)) = window.split_last() else { return false };
                begin == first && if self.prefix { end.starts_with(last.as_str()) } else { end == last }
            })
            .count()
    }
}

/// Without case and accents.
fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    // Voicing marks are no accents: without them パパ would be ハハ.
    let is_accent = |c: char| is_combining_mark(c) && !matches!(c, '\u{3099}' | '\u{309a}');
    text.nfd().filter(|c| !is_accent(*c)).flat_map(char::to_lowercase).nfc().collect()
}

fn words(text: &str) -> Vec<String> {
    fold(&spaced(text))
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether a sign stands for something by itself: an arrow, a symbol, an emoji. No index of words has it.
fn is_sign(c: char) -> bool {
    !c.is_alphanumeric()
        && matches!(u32::from(c), 0x20A0..=0x20CF | 0x2100..=0x214F | 0x2190..=0x2BFF | 0x1F000..=0x1FBFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(query: &str, text: &str) -> Option<u64> {
        Terms::parse(&SearchQuery::new(query)).unwrap().matches(text)
    }

    #[test]
    fn words_phrases_and_prefixes_are_told_apart() {
        assert_eq!(count("quick fox", "The quick brown fox"), Some(2));
        assert_eq!(count("\"quick fox\"", "The quick brown fox"), None);
        assert_eq!(count("\"quick brown\"", "The Quick, Brown fox"), Some(1));
        assert_eq!(count("bro*", "The quick brown fox"), Some(1));
        assert_eq!(count("bro", "The quick brown fox"), None);
        assert_eq!(count("\"quick bro\"*", "The quick brown fox"), Some(1));
        assert_eq!(count("cafe", "Un café, s'il vous plaît"), Some(1));
        assert_eq!(count("東京", "明日は東京へ行く"), Some(1));
        assert_eq!(count("\"never closed", "it was never closed"), Some(1));
    }

    #[test]
    fn words_inside_of_scripts_without_spaces_are_words() {
        let text = "我们使用PostgreSQL数据库和SQLite";
        assert_eq!(count("PostgreSQL", text), Some(1));
        assert_eq!(count("sqlite", text), Some(1));
        assert_eq!(count("sql", text), None);
        assert_eq!(count("postgre*", text), Some(1));
        assert_eq!(count("数据库 PostgreSQL", text), Some(2));
    }

    #[test]
    fn voicing_marks_and_signs_count() {
        assert_eq!(count("ハハ", "パパとママ"), None);
        assert_eq!(count("パパ", "ハ\u{309a}ハ\u{309a}とママ"), Some(1));
        assert_eq!(count("🚀", "deployed 🚀 at last"), Some(1));
        assert_eq!(count("deployed 🚀", "deployed at last"), None);
        assert_eq!(count("❤", "with ❤\u{fe0f}"), Some(1));
    }

    #[test]
    fn substrings_are_found_inside_of_words() {
        let query = |text: &str| Terms::parse(&SearchQuery { substring: true, ..SearchQuery::new(text) }).unwrap();
        assert_eq!(query("rown f").matches("The quick BROWN fox"), Some(1));
        assert_eq!(query("ÉTÉ").matches("L'ete dernier"), Some(1));
        assert_eq!(query("zebra").matches("The quick brown fox"), None);
    }

    #[test]
    fn nothing_to_look_for_is_refused() {
        for text in ["", "   ", "*", "\"\"", "?!"] {
            assert!(Terms::parse(&SearchQuery::new(text)).is_err(), "{text:?}");
        }
        assert!(Terms::parse(&SearchQuery::new("a ".repeat(100))).is_err());
        assert!(Terms::parse(&SearchQuery::new("a".repeat(5000))).is_err());
    }
}
