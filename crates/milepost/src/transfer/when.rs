//! Times as other tools write them.

use milepost_model::Timestamp;
use serde_json::Value;

/// The latest time that is believed: the year 9999.
const MAX_MS: i64 = 253_402_300_799_999;
/// Numbers below this are seconds, those from it on milliseconds: it is the year 5138 in seconds, 1973 in milliseconds.
const SECONDS_BELOW: f64 = 100_000_000_000.0;

/// A time in any form that is common: RFC 3339, seconds or milliseconds since 1970. None when it is none of them.
pub(super) fn parse_time(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => parse_text(text),
        Value::Number(number) => {
            let number = number.as_f64().filter(|number| *number > 0.0)?;
            let ms = if number < SECONDS_BELOW { number * 1000.0 } else { number };
            (ms <= MAX_MS as f64).then_some(Timestamp(ms.round() as i64))
        }
        _ => None,
    }
}

/// `YYYY-MM-DD[T ]HH:MM[:SS[.fraction]][Z|±HH[:]MM]`; without a zone it is UTC.
pub(super) fn parse_text(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if !text.is_ascii() || text.len() > 64 {
        return None;
    }
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00:00Z"));
    let mut parts = date.split('-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() || !(1..=12).contains(&month) || !(1970..=9999).contains(&year) {
        return None;
    }
    let zone_at = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = time.split_at(zone_at);
    let offset_min = offset(zone)?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = clock.split(':').map(number);
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    let days = days_before(year, month)? + day - 1;
    let fits =
        parts.next().is_none() && hour < 24 && minute < 60 && second < 61 && day >= 1 && day <= month_days(year, month);
    if !fits || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ms: String = fraction.chars().chain("000".chars()).take(3).collect();
    let minutes = (days * 24 + hour) * 60 + minute - offset_min;
    let total = (minutes * 60 + second) * 1000 + ms.parse::<i64>().ok()?;
    (0..=MAX_MS).contains(&total).then_some(Timestamp(total))
}

fn number(text: &str) -> Option<i64> {
    let is_digits = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "" | "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let digits = rest.replacen(':', "", 1);
    let (hours, minutes) = digits.split_at_checked(2)?;
    let minutes = if minutes.is_empty() { 0 } else { number(minutes)? };
    let hours = number(hours)?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970 to the first of a month.
fn days_before(year: i64, month: i64) -> Option<i64> {
    let before = year - 1;
    let to_year = before * 365 + before / 4 - before / 100 + before / 400 - 719_162;
    Some(to_year + (1..month).map(|month| month_days(year, month)).sum::<i64>())
}

/// A time as part of a file's name: `-` for `:` and `.`.
pub(super) fn file_time(time: Timestamp) -> String {
    time.to_string().replace([':', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_of_all_common_forms_are_read() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
            ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123),
            ("2023-11-14 22:13:20", 1_700_000_000_000),
            ("2023-11-15T00:13:20+02:00", 1_700_000_000_000),
            ("2023-11-14T20:13:20-0200", 1_700_000_000_000),
            ("2000-02-29T00:00:00Z", 951_782_400_000),
            ("2024-01-01", 1_704_067_200_000),
        ] {
            assert_eq!(parse_text(text), Some(Timestamp(ms)), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2023-02-29T00:00:00Z",
            "2023-13-01",
            "2023-11-14T25:00:00Z",
            "١٩٧٠-01-01",
            "-1-1-1",
            "2023-11-14T22:13:20+xx",
        ] {
            assert_eq!(parse_text(text), None, "{text}");
        }
        assert_eq!(parse_time(&json!(1_700_000_000)), Some(Timestamp(1_700_000_000_000)));
        assert_eq!(parse_time(&json!(1_700_000_000_123i64)), Some(Timestamp(1_700_000_000_123)));
        assert_eq!(parse_time(&json!(1_700_000_000.5)), Some(Timestamp(1_700_000_000_500)));
        assert_eq!(parse_time(&json!(1e300)), None);
        assert_eq!(parse_time(&json!(-5)), None);
    }

    #[test]
    fn every_time_that_is_written_is_read_again() {
        for ms in (0..4_000_000_000_000).step_by(86_399_999_977 / 50) {
            assert_eq!(parse_text(&Timestamp(ms).to_string()), Some(Timestamp(ms)));
        }
    }
}
