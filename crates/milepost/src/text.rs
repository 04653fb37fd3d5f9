//! Small ways to write things for people and machines.

use milepost_model::Timestamp;
use serde::Serializer;

/// A time as text, for JSON that others read.
pub(crate) fn time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}
