//! A long run of base64 in a payload (a picture, a document) is stored as the bytes that it stands for: a quarter less,
//! and undone many times faster than what zstd makes of the letters.
//!
//! `varint length of what lies before the run ‖ varint bytes of the run ‖ before ‖ the run's bytes ‖ after`

use base64_simd::STANDARD;

use super::varint;

/// A shorter run is left to zstd, which has a dictionary for what is small.
const RUN_MIN: usize = 4 << 10;
/// How far into a string its base64 may begin: behind the front of a data URL.
const FRONT_MAX: usize = 128;

/// The payload with its run turned into bytes; none when it has no run that makes up most of it.
pub(super) fn fold(plain: &[u8]) -> Option<Vec<u8>> {
    if plain.len() < RUN_MIN {
        return None;
    }
    let (from, to) = longest_string(plain);
    let front = &plain[from..to.min(from + FRONT_MAX)];
    let from = front.iter().rposition(|byte| *byte == b',').map_or(from, |comma| from + comma + 1);
    let run = &plain[from..to];
    if run.len() < RUN_MIN.max(plain.len() / 2) {
        return None;
    }
    let bytes: Vec<u8> = STANDARD.decode_type(run).ok()?;
    // What was written must come back to the letter, whatever a decoder lets pass.
    if STANDARD.encode_type::<Vec<u8>>(&bytes) != run {
        return None;
    }
    let mut out = Vec::with_capacity(plain.len() - run.len() + bytes.len() + 10);
    varint::push(&mut out, from as u64);
    varint::push(&mut out, bytes.len() as u64);
    out.extend_from_slice(&plain[..from]);
    out.extend_from_slice(&bytes);
    out.extend_from_slice(&plain[to..]);
    Some(out)
}

/// Undoes [`fold`]; none when it is not what that makes, or more than `max_len` bytes.
pub(super) fn unfold(mut folded: &[u8], max_len: u64) -> Option<Vec<u8>> {
    let before = usize::try_from(varint::pull(&mut folded)?).ok()?;
    let bytes = usize::try_from(varint::pull(&mut folded)?).ok()?;
    let (before, rest) = folded.split_at_checked(before)?;
    let (bytes, after) = rest.split_at_checked(bytes)?;
    let length = before.len() + STANDARD.encoded_length(bytes.len()) + after.len();
    if length as u64 > max_len {
        return None;
    }
    let mut plain = Vec::with_capacity(length);
    plain.extend_from_slice(before);
    STANDARD.encode_append(bytes, &mut plain);
    plain.extend_from_slice(after);
    Some(plain)
}

/// The longest stretch without a quotation mark: in JSON, what lies between two of them.
fn longest_string(plain: &[u8]) -> (usize, usize) {
    let ends = memchr::memchr_iter(b'"', plain).chain([plain.len()]);
    let mut from = 0;
    let mut longest = (0, 0);
    for to in ends {
        if to - from > longest.1 - longest.0 {
            longest = (from, to);
        }
        from = to + 1;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(bytes: usize) -> String {
        let bytes: Vec<u8> = (0..bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        STANDARD.encode_type(&bytes)
    }

    #[test]
    fn a_picture_is_stored_as_its_bytes() {
        for bytes in [6000, 6001, 6002, 60_000] {
            let run = letters(bytes);
            for plain in [
                run.clone(),
                format!(r#"{{"type":"image","source":{{"data":"{run}","media_type":"image/png"}}}}"#),
                format!(r#"{{"url":"data:image/png;base64,{run}"}}"#),
            ] {
                let folded = fold(plain.as_bytes()).unwrap();
                assert!(folded.len() <= plain.len() - run.len() + bytes + 10);
                assert_eq!(unfold(&folded, u64::MAX).unwrap(), plain.as_bytes());
                assert_eq!(unfold(&folded, plain.len() as u64 - 1), None);
            }
        }
    }

    #[test]
    fn what_would_not_come_back_to_the_letter_is_left() {
        let run = letters(6001);
        let inner = run.trim_end_matches('=');
        let last = run.len() - 3;
        let mut loose = run.clone().into_bytes();
        // The last letter's low bits stand for nothing.
        loose[last] = if loose[last] == b'A' { b'B' } else { loose[last] + 1 };
        let url_safe = run.replace('+', "-").replace('/', "_");
        let wrapped = format!("{}\n{}", &run[..4000], &run[4000..]);
        for plain in [inner.as_bytes(), &loose, url_safe.as_bytes(), wrapped.as_bytes(), &[b'x'; 5001], &[]] {
            assert_eq!(fold(plain), None);
        }
        assert_eq!(fold(format!("{} {run}", "word ".repeat(3000)).as_bytes()), None, "most of it is something else");
    }

    #[test]
    fn anything_else_does_not_unfold() {
        let folded = fold(letters(6000).as_bytes()).unwrap();
        for cut in [0, 1, 2, 10] {
            assert_eq!(unfold(&folded[..cut], u64::MAX), None);
        }
        assert_eq!(unfold(&[0xff; 32], u64::MAX), None);
    }
}
