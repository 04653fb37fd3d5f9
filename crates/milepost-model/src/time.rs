//! Times as people write them.

use crate::Timestamp;

/// Milliseconds in a day.
const DAY_MS: i64 = 86_400_000;

/// A moment: RFC 3339 (`2026-11-16T10:00:00Z`, with an offset or without seconds too), a day (`2026-11-16`), or
/// milliseconds since 1970. None when it is nothing of these.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(Timestamp);
    }
    let (date, rest) = text.split_at_checked(10)?;
    let day = parse_day(date)?;
    if rest.is_empty() {
        return Some(Timestamp(day * DAY_MS));
    }
    let clock = rest.strip_prefix(['T', 't', ' '])?;
    let (clock, offset_ms) = split_offset(clock)?;
    Some(Timestamp(day * DAY_MS + parse_clock(clock)? - offset_ms))
}

fn number(text: &str, max: i64) -> Option<i64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|value| plain && *value <= max)
}

/// Days since 1970 of `YYYY-MM-DD`.
fn parse_day(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || year.len() != 4 || month.len() != 2 || day.len() != 2 {
        return None;
    }
    let (year, month, day) = (number(year, 9999)?, number(month, 12)?, number(day, 31)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if month < 1 || day < 1 || day > days_in_month {
        return None;
    }
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// Splits `HH:MM:SS` from `Z`, `+HH:MM` or nothing.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    if let Some(clock) = text.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let Some(at) = text.rfind(['+', '-']) else { return Some((text, 0)) };
    let (clock, offset) = text.split_at(at);
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = offset[1..].split_once(':').or_else(|| offset[1..].split_at_checked(2))?;
    let minutes = if minutes.is_empty() { 0 } else { number(minutes, 59)? };
    Some((clock, sign * (number(hours, 23)? * 60 + minutes) * 60_000))
}

fn parse_clock(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':');
    let (hours, minutes) = (number(parts.next()?, 23)?, number(parts.next()?, 59)?);
    let ms = match parts.next() {
        None => 0,
        Some(seconds) => {
            let (whole, part) = seconds.split_once(['.', ',']).unwrap_or((seconds, "0"));
            let digits: String = part.chars().chain("000".chars()).take(3).collect();
            if !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            number(whole, 60)? * 1000 + number(&digits, 999)?
        }
    };
    Some((hours * 60 + minutes) * 60_000 + ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for ms in [0, 1, 951_782_400_000, 1_709_164_800_123, 1_767_225_600_000, 253_402_300_799_999] {
            let time = Timestamp(ms);
            assert_eq!(parse_time(&time.to_string()), Some(time), "{time}");
        }
        let noon = parse_time("2026-11-16T12:00:00Z").unwrap();
        for same in [
            "2026-11-16 12:00",
            "2026-11-16T13:00:00+01:00",
            "2026-11-16T12:00:00.000Z",
            "2026-11-16T07:30-0430",
            "2026-11-16T14:00+02",
        ] {
            assert_eq!(parse_time(same), Some(noon), "{same}");
        }
        for wrong in ["", "latest", "2026-02-30", "2026-13-01", "2026-11-16T25:00", "2026-11-16X", "1234", "🦀🦀🦀🦀"]
        {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
    }
}
