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

/// A time as text; none when it is before 1970.
pub(super) fn parse_text(text: &str) -> Option<Timestamp> {
    crate::time::parse_time(text).filter(|time| (0..=MAX_MS).contains(&time.0))
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
