//! Limits as providers tell them: `retry-after`, the headers of Anthropic and OpenAI, and their messages.

use milepost_model::{Timestamp, parse_time};

use crate::answer::Told;
use crate::limits::{DEFAULT_LIMIT_MS, MAX_LIMIT_MS, MIN_LIMIT_MS};

/// A response's headers, by name in lower case.
pub(crate) trait Headers {
    fn get(&self, name: &str) -> Option<&str>;
}

/// The kinds of limits that Anthropic counts.
const ANTHROPIC: [[&str; 2]; 4] = [
    ["anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"],
    ["anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"],
    ["anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"],
    ["anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"],
];
/// The kinds of limits that OpenAI counts, and servers like it.
const OPEN_AI: [[&str; 2]; 3] = [
    ["x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    ["x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    ["x-ratelimit-remaining", "x-ratelimit-reset"],
];

/// When to ask again, after a refusal, and who said so.
pub(crate) fn until(headers: &dyn Headers, message: &str, now: Timestamp) -> (Timestamp, Told) {
    let (until, told) = retry_after(headers, now)
        .or_else(|| exhausted(headers, now))
        .or_else(|| in_message(message, now).map(|until| (until, Told::Provider("message"))))
        .unwrap_or((now.plus_ms(DEFAULT_LIMIT_MS), Told::Nobody));
    (Timestamp(until.0.clamp(now.plus_ms(MIN_LIMIT_MS).0, now.plus_ms(MAX_LIMIT_MS).0)), told)
}

/// What `retry-after-ms` or `retry-after` says: seconds, or a date.
pub(crate) fn retry_after(headers: &dyn Headers, now: Timestamp) -> Option<(Timestamp, Told)> {
    let ms = headers.get("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok());
    if let Some(at) = ms.and_then(|ms| after(now, ms)) {
        return Some((at, Told::Provider("retry-after-ms")));
    }
    let text = headers.get("retry-after")?.trim();
    let at = match text.parse::<f64>() {
        Ok(seconds) => after(now, seconds * 1000.0),
        Err(_) => http_date(text).or_else(|| parse_time(text)),
    };
    Some((at?, Told::Provider("retry-after")))
}

/// The latest moment at which a limit that is used up begins anew.
pub(crate) fn exhausted(headers: &dyn Headers, now: Timestamp) -> Option<(Timestamp, Told)> {
    let all = ANTHROPIC.iter().chain(&OPEN_AI);
    let used_up = all.filter(|[remaining, _]| {
        headers.get(remaining).and_then(|text| text.trim().parse::<f64>().ok()).is_some_and(|left| left <= 0.0)
    });
    let told = used_up.filter_map(|[_, reset]| Some((moment(headers.get(reset)?, now)?, Told::Provider(reset))));
    told.max_by_key(|(at, _)| *at)
}

/// `after_ms` from now; none when that is no time.
fn after(now: Timestamp, ms: f64) -> Option<Timestamp> {
    (ms.is_finite() && ms >= 0.0).then(|| now.plus_ms(ms.min(MAX_LIMIT_MS as f64).ceil() as i64))
}

/// A reset: a date, seconds since 1970, seconds from now, or `6m0s`.
fn moment(text: &str, now: Timestamp) -> Option<Timestamp> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(epoch) if epoch > 1_000_000_000_000.0 => Some(Timestamp(epoch as i64)),
        Ok(epoch) if epoch > 1_000_000_000.0 => Some(Timestamp((epoch * 1000.0) as i64)),
        Ok(seconds) => after(now, seconds * 1000.0),
        Err(_) => duration_ms(text)
            .and_then(|ms| after(now, ms))
            .or_else(|| parse_time(text).filter(|_| text.contains('-')))
            .or_else(|| http_date(text)),
    }
}

/// `1h2m3.5s`, `20ms`.
fn duration_ms(text: &str) -> Option<f64> {
    let (mut rest, mut all) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = rest.split_at(digits);
        let word = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let factor = match unit.get(..word)? {
            "ms" => 1.0,
            "s" => 1000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            "d" => 86_400_000.0,
            _ => return None,
        };
        all += number.parse::<f64>().ok()? * factor;
        rest = unit.get(word..)?;
    }
    (!text.is_empty()).then_some(all)
}

/// `Wed, 21 Oct 2026 07:28:00 GMT`.
fn http_date(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let (day, month, year, clock) = (words.next()?, words.next()?, words.next()?, words.next()?);
    if words.next()? != "GMT" {
        return None;
    }
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    parse_time(&format!("{year}-{month:02}-{day}T{clock}Z"))
}

/// `… try again in 6m0s.`, `… try again in 20 seconds`.
fn in_message(message: &str, now: Timestamp) -> Option<Timestamp> {
    let (_, rest) = message.split_once("try again in ")?;
    let mut words = rest.split_whitespace();
    let first = words.next()?.trim_end_matches(['.', ',']);
    if let Some(ms) = duration_ms(first) {
        return after(now, ms);
    }
    let unit = match words.next()?.trim_end_matches(['.', ',']).trim_end_matches('s') {
        "second" => 1000.0,
        "minute" => 60_000.0,
        "hour" => 3_600_000.0,
        _ => return None,
    };
    after(now, first.parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Map(&'static [(&'static str, &'static str)]);
    impl Headers for Map {
        fn get(&self, name: &str) -> Option<&str> {
            self.0.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
        }
    }

    const NOW: Timestamp = Timestamp(1_792_000_000_000);

    fn seconds(headers: &'static [(&'static str, &'static str)], message: &str) -> (i64, Told) {
        let (at, told) = until(&Map(headers), message, NOW);
        ((at.0 - NOW.0) / 1000, told)
    }

    #[test]
    fn a_limit_ends_when_the_provider_says() {
        use Told::{Nobody, Provider};
        assert_eq!(seconds(&[("retry-after", "30")], ""), (30, Provider("retry-after")));
        assert_eq!(seconds(&[("retry-after-ms", "1500"), ("retry-after", "9")], ""), (1, Provider("retry-after-ms")));
        assert_eq!(seconds(&[("retry-after", "Wed, 14 Oct 2026 17:48:00 GMT")], ""), (80, Provider("retry-after")));
        assert_eq!(
            seconds(
                &[
                    ("anthropic-ratelimit-requests-remaining", "3"),
                    ("anthropic-ratelimit-requests-reset", "2026-10-14T19:00:00Z"),
                    ("anthropic-ratelimit-tokens-remaining", "0"),
                    ("anthropic-ratelimit-tokens-reset", "2026-10-14T17:48:00Z"),
                ],
                ""
            ),
            (80, Provider("anthropic-ratelimit-tokens-reset"))
        );
        assert_eq!(
            seconds(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "6m0s")], ""),
            (360, Provider("x-ratelimit-reset-tokens"))
        );
        assert_eq!(
            seconds(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792000007")], ""),
            (7, Provider("x-ratelimit-reset"))
        );
        assert_eq!(seconds(&[], "Rate limit reached. Please try again in 1m2.5s. Visit"), (62, Provider("message")));
        assert_eq!(seconds(&[], "try again in 20 seconds."), (20, Provider("message")));
        assert_eq!(seconds(&[], "slow down"), (60, Nobody));
    }

    #[test]
    fn nonsense_is_no_limit_and_no_limit_is_endless() {
        for nonsense in ["-5", "NaN", "inf", "soon", "", "99 bottles", "1x", "Wed, 99 Oct 2026 07:28:00 GMT"] {
            let own: &'static [(&str, &str)] = Box::leak(Box::new([("retry-after", nonsense)]));
            assert_eq!(seconds(own, ""), (60, Told::Nobody), "{nonsense}");
        }
        assert_eq!(seconds(&[("retry-after", "1e300")], "").0, MAX_LIMIT_MS / 1000);
        // One that is over, or that is none, lasts a moment: whoever asks again at once is limited again.
        assert_eq!(seconds(&[("retry-after", "Wed, 14 Oct 2015 17:28:00 GMT")], "").0, MIN_LIMIT_MS / 1000);
        assert_eq!(seconds(&[("retry-after", "0")], "").0, MIN_LIMIT_MS / 1000);
    }
}
