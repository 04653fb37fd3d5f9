//! Where words begin and end for a search, whoever keeps the index.

use std::borrow::Cow;

/// Whether a letter is of a script that does not separate its words: Han, Hiragana, Katakana, Thai, Lao, Khmer, Burmese.
/// An index of words has runs of them as one word, so that they are looked for by reading.
pub fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c),
        0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0x3005..=0x3007 | 0x3040..=0x30FF | 0x31F0..=0x31FF
        | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0xFF66..=0xFF9F | 0x20000..=0x3FFFF)
}

/// A text with a space wherever a script that separates words stands beside one that does not: `使用PostgreSQL数据库` has
/// a word in it.
pub fn spaced(text: &str) -> Cow<'_, str> {
    // No letter of such a script has a smaller first byte.
    if !text.bytes().any(|byte| byte >= 0xE0) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    let (mut copied, mut last) = (0, None);
    for (at, c) in text.char_indices() {
        let kind = c.is_alphanumeric().then(|| is_unspaced(c));
        if let (Some(before), Some(now)) = (last, kind)
            && before != now
        {
            out.push_str(text.get(copied..at).unwrap_or_default());
            out.push(' ');
            copied = at;
        }
        // An accent or a voicing mark belongs to the letter before it.
        if kind.is_some() || !matches!(c, '\u{300}'..='\u{36f}' | '\u{3099}' | '\u{309a}') {
            last = kind;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// A small letter that shares its capital with others, as those are written: ΟΔΟΣ is οδος, STRASSE is Straße.
pub fn as_its_capital(c: char) -> Option<&'static str> {
    match c {
        'ς' => Some("σ"),
        'ß' | 'ẞ' => Some("ss"),
        _ => None,
    }
}

/// A text as an index by SQLite's rules for words gets it. They leave the accents of Greek and Cyrillic letters on (ΕΛΛΑΔΑ is
/// Ελλάδα, and елка ёлка; those of Latin letters they take off themselves), and know nothing of letters that share a capital.
#[cfg(feature = "sqlite")]
pub fn bare(text: &str) -> Cow<'_, str> {
    use unicode_normalization::char::{decompose_canonical, is_combining_mark};
    let is_accented = |c: char| {
        let mut is_accented = false;
        if matches!(u32::from(c), 0x0370..=0x052F | 0x1F00..=0x1FFF) {
            decompose_canonical(c, |part| is_accented |= is_combining_mark(part));
        }
        is_accented
    };
    // No such letter has a smaller first byte.
    let may_change = text.bytes().any(|byte| byte >= 0xC3);
    if !may_change || !text.chars().any(|c| as_its_capital(c).is_some() || is_accented(c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match as_its_capital(c) {
            Some(same) => out.push_str(same),
            None if is_accented(c) => {
                decompose_canonical(c, |part| out.extend((!is_combining_mark(part)).then_some(part)));
            }
            None => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// So many spellings of a word are looked for at most.
#[cfg(feature = "postgres")]
const MAX_SPELLINGS: usize = 64;

/// A word in small letters in every way to write it with small letters that share a capital, for an index that has words as
/// they were written: ς for σ and ß for ss, in any place. Those at the end of a word that has very many of them come first. Of
/// a beginning of words the last s may be the first half of an ß.
#[cfg(feature = "postgres")]
pub(crate) fn spellings(word: &str, is_beginning: bool) -> Vec<String> {
    let mut letters = Vec::with_capacity(word.len());
    for c in word.chars() {
        match as_its_capital(c) {
            Some(same) => letters.extend(same.chars()),
            None => letters.push(c),
        }
    }
    // What can follow the letter that is looked at, and what can follow the one after it.
    let (mut after, mut later) = (vec![String::new()], Vec::new());
    for (at, c) in letters.iter().enumerate().rev() {
        let before =
            |letter: char, rest: &[String]| rest.iter().map(|rest| format!("{letter}{rest}")).collect::<Vec<_>>();
        let mut all = before(*c, &after);
        match (c, letters.get(at + 1)) {
            ('σ', _) => all.extend(before('ς', &after)),
            ('s', Some('s')) => all.extend(before('ß', &later)),
            ('s', None) if is_beginning => all.push("ß".to_owned()),
            _ => {}
        }
        all.truncate(MAX_SPELLINGS);
        later = std::mem::replace(&mut after, all);
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_where_the_script_changes() {
        assert_eq!(spaced("我们使用PostgreSQL数据库和SQLite3"), "我们使用 PostgreSQL 数据库和 SQLite3");
        assert_eq!(spaced("v2版"), "v2 版");
        for same in ["", "plain text", "naïve café", "数据库", "Привет мир", "か\u{3099}き"] {
            assert!(matches!(spaced(same), Cow::Borrowed(_)), "{same}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn letters_are_written_in_one_way() {
        assert_eq!(bare("Ελλάδα ΐ ᾧ ёлка й ї"), "Ελλαδα ι ω елка и і");
        assert_eq!(bare("Straße STRAẞE ὁδός"), "Strasse STRAssE οδοσ");
        for same in ["", "naïve café", "Москва", "한국어", "数据库"] {
            assert!(matches!(bare(same), Cow::Borrowed(_)), "{same}");
        }
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn words_are_looked_for_in_every_spelling() {
        assert_eq!(spellings("word", true), ["word"]);
        assert_eq!(spellings("straße", false), ["strasse", "straße"]);
        assert_eq!(spellings("stras", true), ["stras", "straß"]);
        assert_eq!(spellings("stras", false), ["stras"]);
        assert_eq!(spellings("sss", false), ["sss", "sß", "ßs"]);
        assert_eq!(spellings("οδος", false), ["οδοσ", "οδος"]);
        assert_eq!(spellings(&"ss".repeat(200), true).len(), MAX_SPELLINGS);
    }
}
