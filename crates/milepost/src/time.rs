//! Times as people read them.

use milepost_model::Timestamp;
pub use milepost_model::parse_time;

/// How long ago something was, in words: `just now`, `5 minutes ago`, `in 2 hours`.
pub fn relative(then: Timestamp, now: Timestamp) -> String {
    let ms = now.0.saturating_sub(then.0);
    let seconds = ms.unsigned_abs() / 1000;
    let (count, unit) = match seconds {
        0..5 => return "just now".to_owned(),
        5..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        86_400..2_592_000 => (seconds / 86_400, "day"),
        2_592_000..31_536_000 => (seconds / 2_592_000, "month"),
        _ => (seconds / 31_536_000, "year"),
    };
    let plural = if count == 1 { "" } else { "s" };
    if ms < 0 { format!("in {count} {unit}{plural}") } else { format!("{count} {unit}{plural} ago") }
}
