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

/// A text without the accents of Greek and Cyrillic letters, which SQLite's rules for words leave on: ΕΛΛΑΔΑ is Ελλάδα, and
/// елка ёлка. It takes off those of Latin letters itself.
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
    if !text.bytes().any(|byte| byte >= 0xCD) || !text.chars().any(is_accented) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_accented(c) {
            true => decompose_canonical(c, |part| out.extend((!is_combining_mark(part)).then_some(part))),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A text as it is, and as it is written with small letters that share their capitals: ς and σ, ß and ss. An index may have any
/// of them.
#[cfg_attr(not(any(feature = "sqlite", feature = "postgres")), expect(dead_code, reason = "only those have an index"))]
pub(crate) fn spellings(text: &str) -> Vec<String> {
    let small = text.to_lowercase();
    let inner = small.replace('ς', "σ");
    let mut last = String::with_capacity(inner.len());
    let mut letters = inner.chars().peekable();
    let mut is_within = false;
    while let Some(c) = letters.next() {
        let is_end = letters.peek().is_none_or(|next| !next.is_alphanumeric());
        last.push(if c == 'σ' && is_within && is_end { 'ς' } else { c });
        is_within = c.is_alphanumeric();
    }
    let mut all = vec![text.to_owned()];
    for other in [inner, last, small.replace('ß', "ss"), small.replace("ss", "ß")] {
        if other != small && !all.contains(&other) {
            all.push(other);
        }
    }
    all
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
    fn greek_and_cyrillic_letters_lose_their_accents() {
        assert_eq!(bare("Ελλάδα ΐ ᾧ ёлка й ї"), "Ελλαδα ι ω елка и і");
        for same in ["", "naïve café", "Москва", "한국어", "数据库"] {
            assert!(matches!(bare(same), Cow::Borrowed(_)), "{same}");
        }
    }
}
