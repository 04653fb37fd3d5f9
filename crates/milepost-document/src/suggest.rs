//! "Did you mean …": the name nearest to one that is unknown.

/// The name among these that was probably meant.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing is quadratic in length; nothing that long is a misspelt name.
    let given: String = given.chars().take(64).collect();
    let far = (given.chars().count() / 3).max(1) + 1;
    names
        .into_iter()
        .map(|name| (strsim::osa_distance(&given, name), name))
        .filter(|(distance, name)| *distance < far.max(2) || is_part(&given, name))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

fn is_part(given: &str, name: &str) -> bool {
    given.len() >= 4 && (name.contains(given) || given.contains(name) && name.len() >= 4)
}

/// A path as people write it; a name with a dot stands in quotes.
pub fn show(path: &[String]) -> String {
    let quoted = path.iter().map(|part| match part.contains(['.', '"', '\n', ' ']) {
        true => format!("{part:?}"),
        false => part.clone(),
    });
    quoted.collect::<Vec<_>>().join(".")
}
