//! Who follows whom: messages recorded twice, and links between messages that do not hold.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use milepost_model::{Block, Message};
use serde_json::{Map, Value};

use super::{Item, Links, Log, RepairKind, short};

const ID_KEYS: [&str; 2] = ["uuid", "id"];
const PARENT_KEYS: [&str; 3] = ["parentUuid", "parentId", "parent_id"];

fn field<'a>(extra: &'a Map<String, Value>, keys: &[&'static str]) -> Option<(&'static str, &'a str)> {
    keys.iter().find_map(|key| match extra.get(*key) {
        Some(Value::String(id)) if !id.is_empty() => Some((*key, id.as_str())),
        _ => None,
    })
}

fn id(extra: &Map<String, Value>) -> Option<&str> {
    field(extra, &ID_KEYS).map(|(_, id)| id)
}

/// Which messages are seen, by index. All of them, unless links are followed and there are some.
pub(super) fn order(messages: &[Message], links: Links, log: &mut Log) -> Vec<usize> {
    let all = 0..messages.len();
    if links == Links::Check || !messages.iter().any(|m| field(&m.extra, &PARENT_KEYS).is_some()) {
        return all.collect();
    }
    let mut by_id: HashMap<&str, usize> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        if let Some(id) = id(&message.extra) {
            by_id.entry(id).or_insert(index);
        }
    }
    let mut path = HashSet::new();
    let mut at = messages.len().checked_sub(1);
    while let Some(index) = at {
        if !path.insert(index) {
            break;
        }
        let extra = messages.get(index).map(|message| &message.extra);
        // Without a link the order of the log is the link.
        at = match extra.and_then(|extra| field(extra, &PARENT_KEYS)) {
            Some((_, parent)) => by_id.get(parent).copied().or(index.checked_sub(1)),
            None if extra.is_some_and(|extra| PARENT_KEYS.iter().any(|key| extra.contains_key(*key))) => None,
            None => index.checked_sub(1),
        };
    }
    all.filter(|index| {
        let on_path = path.contains(index);
        if !on_path {
            log.add(RepairKind::OtherBranch, Some(*index), "it is on a branch that was left: not shown");
        }
        on_path
    })
    .collect()
}

/// Leaves out messages recorded twice and cuts links that do not hold.
pub(super) fn mend(items: &mut Vec<Item>, log: &mut Log) {
    duplicates(items, log);
    parents(items, log);
}

fn duplicates(items: &mut Vec<Item>, log: &mut Log) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut out: Vec<Item> = Vec::with_capacity(items.len());
    for mut item in items.drain(..) {
        let Some(id) = id(&item.extra).map(str::to_owned) else {
            out.push(item);
            continue;
        };
        match seen.entry(id) {
            Entry::Vacant(free) => {
                free.insert(out.len());
                out.push(item);
            }
            Entry::Occupied(taken) => {
                match out.get_mut(*taken.get()) {
                    Some(first) if grows(first, &item) => {
                        log.add(
                        RepairKind::DuplicateMessage,
                        first.source,
                        format!("it is the beginning of a message recorded again with the id {}: the whole one is shown", short(taken.key())),
                    );
                        let mut extra = std::mem::take(&mut first.extra);
                        extra.append(&mut item.extra);
                        item.extra = extra;
                        *first = item;
                    }
                    Some(first) if grows(&item, first) => {
                        log.add(
                            RepairKind::DuplicateMessage,
                            item.source,
                            format!("it was recorded before with the id {}: shown once", short(taken.key())),
                        );
                    }
                    _ => {
                        log.add(
                            RepairKind::SharedId,
                            item.source,
                            format!(
                                "another message has the id {} and another content: both are shown",
                                short(taken.key())
                            ),
                        );
                        ID_KEYS.iter().for_each(|key| drop(item.extra.remove(*key)));
                        out.push(item);
                    }
                }
            }
        }
    }
    *items = out;
}

/// Whether `later` says all that `earlier` says, from the beginning.
fn grows(earlier: &Item, later: &Item) -> bool {
    if earlier.role != later.role || earlier.channel != later.channel || earlier.blocks.len() > later.blocks.len() {
        return false;
    }
    let last = earlier.blocks.len().wrapping_sub(1);
    earlier.blocks.iter().zip(&later.blocks).enumerate().all(|(index, pair)| match pair {
        (Block::Text { text: short, .. }, Block::Text { text: long, .. }) if index == last => long.starts_with(short),
        (a, b) => a == b,
    })
}

fn parents(items: &mut [Item], log: &mut Log) {
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Some(id) = id(&item.extra) {
            places.entry(id.to_owned()).or_insert(place);
        }
    }
    let mut linked_before = false;
    let parent_of: Vec<Option<usize>> = items
        .iter()
        .map(|item| field(&item.extra, &PARENT_KEYS).and_then(|(_, parent)| places.get(parent).copied()))
        .collect();
    let on_cycle = cycles(&parent_of);
    for (place, item) in items.iter_mut().enumerate() {
        let Some((key, parent)) = field(&item.extra, &PARENT_KEYS).map(|(key, id)| (key, id.to_owned())) else {
            linked_before |= id(&item.extra).is_some();
            continue;
        };
        let first = !std::mem::replace(&mut linked_before, true);
        let (kind, why) = match parent_of.get(place).copied().flatten() {
            Some(at) if at < place => continue,
            Some(_) if on_cycle.get(place) == Some(&true) => (RepairKind::Cycle, "leads back to itself"),
            Some(_) => (RepairKind::BrokenParent, "comes after it"),
            // The first message of a window hangs on one outside of it.
            None if first => continue,
            None => (RepairKind::BrokenParent, "is not there"),
        };
        item.extra.insert(key.to_owned(), Value::Null);
        log.add(
            kind,
            item.source,
            format!("the message it names as the one before, {}, {why}: the order of the log is used", short(&parent)),
        );
    }
}

/// What each message names as the one before it, by id. Taken before any message is left out.
pub(super) fn links(items: &[Item]) -> HashMap<String, Option<String>> {
    let link = |item: &Item| {
        let parent = field(&item.extra, &PARENT_KEYS).map(|(_, parent)| parent.to_owned());
        id(&item.extra).map(|id| (id.to_owned(), parent))
    };
    items.iter().filter_map(link).collect()
}

/// Links what follows a message that is not shown to the nearest one before that is.
pub(super) fn relink(items: &mut [Item], mut links: HashMap<String, Option<String>>) {
    let shown: HashSet<String> = items.iter().filter_map(|item| id(&item.extra).map(str::to_owned)).collect();
    for item in items {
        let Some((key, parent)) = field(&item.extra, &PARENT_KEYS).map(|(key, id)| (key, id.to_owned())) else {
            continue;
        };
        if shown.contains(&parent) || !links.contains_key(&parent) {
            continue;
        }
        let mut walked = Vec::new();
        let mut at = Some(parent);
        while let Some(id) = at.take_if(|id| !shown.contains(id)) {
            at = links.get(&id).cloned().flatten();
            walked.push(id);
        }
        for id in walked {
            links.insert(id, at.clone());
        }
        item.extra.insert(key.to_owned(), at.map_or(Value::Null, Value::String));
    }
}

/// Which places lie on a cycle of links.
fn cycles(parent_of: &[Option<usize>]) -> Vec<bool> {
    // 0: not seen; n: seen in walk n.
    let mut walk_of = vec![0usize; parent_of.len()];
    let mut on_cycle = vec![false; parent_of.len()];
    for start in 0..parent_of.len() {
        let walk = start + 1;
        let mut at = Some(start);
        while let Some(place) = at {
            match walk_of.get_mut(place) {
                Some(seen @ 0) => *seen = walk,
                Some(seen) if *seen == walk => {
                    let mut round = place;
                    while let Some(mark) = on_cycle.get_mut(round).filter(|mark| !**mark) {
                        *mark = true;
                        round = parent_of.get(round).copied().flatten().unwrap_or(round);
                    }
                    break;
                }
                _ => break,
            }
            at = parent_of.get(place).copied().flatten();
        }
    }
    on_cycle
}
