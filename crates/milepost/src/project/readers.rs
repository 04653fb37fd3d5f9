//! Which agents may read the summaries of which others.

use crate::config::Summaries;

/// Whether an agent of one kind may read the summary of a session of another. Its own kind it may always read. A kind
/// without a rule reads no other; `*` in a rule is every kind, also that of a session whose kind is not known.
pub fn may_read(reader: &str, session_agent: Option<&str>, summaries: &Summaries) -> bool {
    if session_agent == Some(reader) && !reader.is_empty() {
        return true;
    }
    let Some(of) = summaries.readers.get(reader) else { return false };
    of.contains("*") || session_agent.is_some_and(|agent| of.contains(agent))
}
