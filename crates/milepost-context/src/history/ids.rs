//! Ids and names that the provider takes.

use std::collections::{HashMap, HashSet};

use super::Dialect;

/// Whether every character may stand in a call's id or a tool's name.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// A tool's name that the provider takes: the same when it is one.
pub(super) fn tool_name(name: &str, dialect: Dialect) -> Option<String> {
    let max = dialect.max_tool_name();
    if is_plain(name) && name.len() <= max {
        return None;
    }
    let plain = plain(name, max);
    Some(if plain.is_empty() { "tool".to_owned() } else { plain })
}

/// `text` with every other character as `_`, at most `max` long.
fn plain(text: &str, max: usize) -> String {
    text.chars().take(max).map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

/// Gives out ids, each once.
pub(super) struct CallIds {
    max: usize,
    used: HashSet<String>,
    rounds: HashMap<String, u64>,
}

impl CallIds {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { max: dialect.max_call_id(), used: HashSet::new(), rounds: HashMap::new() }
    }

    /// Keeps an id for the call that has it now, when it may keep it.
    pub(super) fn keep(&mut self, id: &str) -> bool {
        is_plain(id) && id.len() <= self.max && self.used.insert(id.to_owned())
    }

    /// An id like `id` that no one has.
    pub(super) fn like(&mut self, id: &str) -> String {
        let base = plain(id, self.max.saturating_sub(12));
        let base = if base.is_empty() { "call".to_owned() } else { base };
        let round = self.rounds.entry(base.clone()).or_insert(1);
        loop {
            *round += 1;
            let fresh = format!("{base}_{round}");
            if self.used.insert(fresh.clone()) {
                return fresh;
            }
        }
    }
}
