//! "Did you mean …": the name nearest to one that is unknown.

pub(super) use milepost_document::{nearest, show};

use super::schema::{self, Field};

/// Words that people look for in a section, and the setting elsewhere that is meant.
const ALSO_CALLED: [(&str, &str, &str); 5] = [
    ("redaction", "keys", "policy.exclude_memory_keys"),
    ("redaction", "exclude", "policy.exclude_memory_keys"),
    ("redaction", "exclude_keys", "policy.exclude_memory_keys"),
    ("redaction", "fields", "policy.exclude_memory_keys"),
    ("redaction", "names", "policy.exclude_memory_keys"),
];

/// What to write instead of a key that this section does not have.
pub(super) fn for_key(given: &str, at: &[String], section: &'static [&'static [Field]]) -> String {
    let snake = schema::snake(given);
    let here = section.iter().copied().flatten();
    let names = here.clone().flat_map(|field| std::iter::once(field.name).chain(field.also.iter().copied()));
    // The same key, exactly, in another section is a better guess than one that only looks alike here.
    let same = schema::settings().into_iter().filter(|(_, field)| field.name == snake && field.to.is_none());
    let elsewhere = same.min_by_key(|(path, _)| path.len());
    let section_name = at.last().map(String::as_str).unwrap_or_default();
    if let Some((_, _, path)) = ALSO_CALLED.iter().find(|(of, name, _)| *of == section_name && *name == snake) {
        return format!("it belongs elsewhere: did you mean {path}?");
    }
    if let Some((path, _)) = elsewhere {
        return format!("it belongs elsewhere: did you mean {}?", path.join("."));
    }
    match nearest(&snake, names) {
        Some(name) => format!("did you mean {}?", join(at, name)),
        None => {
            let known: Vec<_> = here.map(|field| field.name).collect();
            format!("remove it; what is known here: {}", known.join(", "))
        }
    }
}

/// A path as people write it.
pub(super) fn join(at: &[String], name: &str) -> String {
    let mut out = show(at);
    if !out.is_empty() {
        out.push('.');
    }
    out.push_str(name);
    out
}
