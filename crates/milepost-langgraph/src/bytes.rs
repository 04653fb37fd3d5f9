//! The small binary forms of this crate: numbers, texts, and bytes as a text for places that hold only texts.

use base64_simd::STANDARD;
use milepost_store::Error;

/// Writes the parts of a record one after the other.
#[derive(Default)]
pub(crate) struct Out(pub Vec<u8>);

impl Out {
    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Numbers that go up, as their distances.
    pub fn rising(&mut self, numbers: &[u64]) {
        self.number(numbers.len() as u64);
        let mut before = 0;
        for number in numbers {
            self.number(number.saturating_sub(before));
            before = *number;
        }
    }
}

/// Reads what [`Out`] wrote. Safe on any bytes: whatever does not fit is damage.
pub(crate) struct In<'a>(pub &'a [u8]);

pub(crate) fn damaged(what: &str) -> Error {
    Error::Corrupt { what: what.to_owned(), why: "it is not of the form that LangGraph's adapter writes".to_owned() }
}

impl<'a> In<'a> {
    pub fn byte(&mut self) -> Result<u8, Error> {
        let (first, rest) = self.0.split_first().ok_or_else(|| damaged("a record"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn number(&mut self) -> Result<u64, Error> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged("a number"))
    }

    /// How many things follow, each of at least one byte.
    pub fn count(&mut self) -> Result<usize, Error> {
        let count = self.number()?;
        usize::try_from(count).ok().filter(|count| *count <= self.0.len()).ok_or_else(|| damaged("a count"))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let length = self.count()?;
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(taken)
    }

    pub fn text(&mut self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.bytes()?).map_err(|_| damaged("a text"))
    }

    pub fn rising(&mut self) -> Result<Vec<u64>, Error> {
        let count = self.count()?;
        let mut before = 0u64;
        (0..count)
            .map(|_| {
                before = before.checked_add(self.number()?).ok_or_else(|| damaged("a number"))?;
                Ok(before)
            })
            .collect()
    }
}

/// So many bytes are looked at together: most of them are words.
const PIECE: usize = 16;

/// Bytes as a text: each byte a character, which leaves words readable for compression, or base64 where that is shorter.
pub(crate) fn to_text(bytes: &[u8]) -> String {
    let plain = bytes.len() + bytes.iter().map(|byte| usize::from(byte >> 7)).sum::<usize>();
    if plain > bytes.len() / 3 * 4 + 16 {
        let mut text = String::from("b");
        STANDARD.encode_append(bytes, &mut text);
        return text;
    }
    let mut text = Vec::with_capacity(plain + 1);
    text.push(b'l');
    for piece in bytes.chunks(PIECE) {
        if piece.is_ascii() {
            text.extend_from_slice(piece);
            continue;
        }
        for byte in piece {
            match byte {
                0..0x80 => text.push(*byte),
                _ => text.extend([0xc0 | byte >> 6, 0x80 | byte & 0x3f]),
            }
        }
    }
    String::from_utf8(text).unwrap_or_default()
}

/// Undoes [`to_text`].
pub(crate) fn from_text(text: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(text.len());
    append_text(text, &mut bytes)?;
    Ok(bytes)
}

/// The same behind other bytes.
pub(crate) fn append_text(text: &str, bytes: &mut Vec<u8>) -> Result<(), Error> {
    let bad = || damaged("a text of bytes");
    match text.split_at_checked(1).ok_or_else(bad)? {
        ("l", rest) => append_characters(rest.as_bytes(), bytes).ok_or_else(bad),
        ("b", rest) => STANDARD.decode_append(rest, bytes).map_err(|_| bad()),
        _ => Err(bad()),
    }
}

/// The bytes that characters stand for, each one; none when one of them stands for none.
fn append_characters(text: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
    let mut rest = text;
    while let Some(first) = rest.first() {
        rest = match first {
            0..0x80 => {
                let words = rest.iter().position(|byte| !byte.is_ascii()).unwrap_or(rest.len());
                let (words, rest) = rest.split_at(words);
                bytes.extend_from_slice(words);
                rest
            }
            // Two bytes of UTF-8 for one: the last two bits of the first are the first two.
            0xc2 | 0xc3 => {
                bytes.push(first << 6 | rest.get(1)? & 0x3f);
                &rest[2..]
            }
            _ => return None,
        };
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::{from_text, to_text};

    proptest::proptest! {
        #[test]
        fn any_bytes_come_back_from_their_text(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), words in "[ -~]{0,60}") {
            for bytes in [bytes.clone(), words.clone().into_bytes(), [words.as_bytes(), &bytes[..bytes.len().min(9)], words.as_bytes()].concat()] {
                proptest::prop_assert_eq!(&from_text(&to_text(&bytes)).unwrap(), &bytes);
            }
        }

        #[test]
        fn any_text_is_refused_or_read(text in "[lb]\\PC{0,60}") {
            let read = from_text(&text);
            let is_latin = text.chars().all(|c| u32::from(c) < 0x100);
            if text.starts_with('l') {
                proptest::prop_assert_eq!(read.is_ok(), is_latin);
            }
        }
    }
}
