//! What a person typed, as terms; and whether a text has them.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use milepost_store::words::{as_its_capital, is_unspaced, spaced};

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

    /// Whether some of it is in a script with vowel signs, at which an index would cut its words.
    pub fn has_vowel_signs(&self) -> bool {
        self.terms.iter().any(|term| term.text.chars().any(has_vowel_signs))
    }

    /// Whether some of it is a sign, which no index has.
    pub fn has_signs(&self) -> bool {
        self.terms.iter().any(|term| term.text.chars().any(is_sign))
    }

    /// Whether an index may find more than it should: one that takes letters apart finds 한 where 하 is looked for.
    pub fn finds_too_much(&self) -> bool {
        self.terms.iter().any(|term| term.prefix && term.text.chars().any(|c| matches!(c, '가'..='힣')))
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
    let mut out = String::with_capacity(text.len());
    for c in text.nfd().filter(|c| !is_accent(*c)).flat_map(char::to_lowercase).nfc() {
        match as_its_capital(c) {
            Some(same) => out.push_str(same),
            None => out.push(c),
        }
    }
    out
}

/// Whether a mark may be left out in writing: accents of Latin, Greek and Cyrillic, points of Hebrew and Arabic, and what chooses between
/// pictures of a sign. Other marks make another word: without them パパ would be ハハ, and दिन (day) दान (gift).
fn is_accent(c: char) -> bool {
    matches!(u32::from(c),
        0x0300..=0x036F | 0x0483..=0x0489 | 0x0591..=0x05C7 | 0x0610..=0x061A | 0x064B..=0x065F | 0x0670 | 0x06D6..=0x06ED
        | 0x08D3..=0x08FF | 0x1AB0..=0x1AFF | 0x1DC0..=0x1DFF | 0x20D0..=0x20FF | 0xFE00..=0xFE0F | 0xFE20..=0xFE2F
        | 0xE0100..=0xE01EF)
        && is_combining_mark(c)
}

/// Whether a letter is of a script that separates its words and writes vowels as marks: those of India, Nepal, Tibet, Indonesia and the
/// Philippines. An index of words cuts them there.
fn has_vowel_signs(c: char) -> bool {
    matches!(u32::from(c),
        0x0900..=0x0DFF | 0x0F00..=0x0FFF | 0x1700..=0x177F | 0x1900..=0x194F | 0x1A00..=0x1AAF | 0x1B00..=0x1C4F
        | 0xA800..=0xA82F | 0xA880..=0xA8FF | 0xA930..=0xA9DF | 0xAA00..=0xAA5F | 0xAAE0..=0xAAFF | 0xABC0..=0xABFF
        | 0x11000..=0x11FFF)
}

fn words(text: &str) -> Vec<String> {
    fold(&spaced(text))
        .split(|c: char| !c.is_alphanumeric() && !is_combining_mark(c))
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
    fn vowel_signs_make_other_words() {
        for (text, is_there) in [("वह दिन था", true), ("उसने दान किया", false), ("यह दीन है", false), ("दिनांक", false)]
        {
            assert_eq!(count("दिन", text).is_some(), is_there, "{text}");
        }
        assert_eq!(count("दिन*", "दिनांक"), Some(1));
        assert_eq!(count("दु*", "हिन्दी में पाठ"), None);
        assert_eq!(count("हिन्दी", "हिन्दी में पाठ"), Some(1));
        assert_eq!(count("हिन", "हिन्दी में पाठ"), None);
        assert_eq!(count("ปู", "ปีใหม่"), None);
        assert_eq!(count("ปู", "มีปูในทะเล"), Some(1));
        assert_eq!(count("שלום", "שָׁלוֹם"), Some(1));
        assert_eq!(count("كتاب", "كِتَاب"), Some(1));
        let substring = |wanted: &str, text: &str| {
            let query = SearchQuery { substring: true, ..SearchQuery::new(wanted) };
            Terms::parse(&query).unwrap().matches(text)
        };
        assert_eq!(substring("दिन", "उसने दान किया"), None);
        assert_eq!(substring("दिन", "दिनांक"), Some(1));
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
    fn letters_that_share_a_capital_are_the_same() {
        let substring = |wanted: &str, text: &str| {
            let query = SearchQuery { substring: true, ..SearchQuery::new(wanted) };
            Terms::parse(&query).unwrap().matches(text)
        };
        let same = [
            ["Οδυσσευς", "ΟΔΥΣΣΕΥΣ"],
            ["σίσυφος", "ΣΊΣΥΦΟΣ"],
            ["HAUPTSTRASSE", "Hauptstraße"],
            ["HAUPTSTRAẞE", "hauptstrasse"],
        ];
        for [one, other] in same {
            for (wanted, text) in [(one, other), (other, one)] {
                assert_eq!(count(wanted, text), Some(1), "{wanted} {text}");
                assert_eq!(substring(wanted, &format!("x{text}x")), Some(1), "{wanted} {text}");
            }
        }
        assert_eq!(count("Οδυσσευς", "ΟΔΥΣΣΕΥ"), None);
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
