//! Every tool call has exactly one result, right after the turn that made it.
//!
//! First calls and results are matched by id and place ([`matched`]), so that an id used twice does
//! not mix two calls up; then each result is put where the providers want it ([`place`]).

use std::collections::{HashMap, HashSet, VecDeque};

use milepost_model::{Block, Channel, Role};
use serde_json::{Map, Value};

use super::ids::CallIds;
use super::{Item, Log, Orphans, RepairKind, Rules, short, tidy};

/// The items with every call answered and every result in its place.
pub(super) fn pair(items: Vec<Item>, rules: &Rules, log: &mut Log) -> Vec<Item> {
    let mut items = place(matched(items, rules, log), log);
    tidy::turns(&mut items, rules.dialect, log);
    items
}

/// Where a block stands: item and block.
type Place = (usize, usize);

struct Call {
    at: Place,
    /// Its id in the view, when that is not its own.
    renamed: Option<String>,
    result: Option<Place>,
}

/// The calls and results of a conversation, matched.
#[derive(Default)]
struct Matches {
    calls: Vec<Call>,
    /// Calls that wait for a result: by id, then by item, oldest first.
    open: HashMap<String, Vec<(usize, VecDeque<usize>)>>,
    /// Ids that had a result.
    answered: HashSet<String>,
    /// Results that came without a call before them.
    early: HashMap<String, Vec<Place>>,
    duplicate_calls: HashSet<Place>,
    duplicate_results: HashSet<Place>,
}

impl Matches {
    fn of(items: &[Item]) -> Self {
        let mut found = Self::default();
        for (item_at, item) in items.iter().enumerate() {
            for (block_at, block) in item.blocks.iter().enumerate() {
                match block {
                    Block::ToolCall { id, name, input, .. } => {
                        found.call(items, (item_at, block_at), id, (name, input));
                    }
                    Block::ToolResult { call_id, .. } => found.result((item_at, block_at), call_id),
                    _ => {}
                }
            }
        }
        found.take_early(items);
        found
    }

    fn call(&mut self, items: &[Item], at: Place, id: &str, what: (&String, &Value)) {
        let groups = self.open.entry(id.to_owned()).or_default();
        let twin = groups.last().and_then(|(_, waiting)| waiting.back()).and_then(|call| self.calls.get(*call));
        if !id.is_empty() && twin.is_some_and(|twin| said(items, twin.at) == Some(what)) {
            self.duplicate_calls.insert(at);
            return;
        }
        let index = self.calls.len();
        self.calls.push(Call { at, renamed: None, result: None });
        match groups.last_mut() {
            Some((item, waiting)) if *item == at.0 => waiting.push_back(index),
            _ => groups.push((at.0, VecDeque::from([index]))),
        }
    }

    /// A result answers the newest message that waits for one under its id.
    fn result(&mut self, at: Place, id: &str) {
        let groups = self.open.get_mut(id);
        let waiting = groups.and_then(|groups| {
            let call = groups.last_mut()?.1.pop_front();
            groups.pop_if(|(_, waiting)| waiting.is_empty());
            call
        });
        if let Some(call) = waiting.and_then(|call| self.calls.get_mut(call)) {
            call.result = Some(at);
            self.answered.insert(id.to_owned());
        } else if self.answered.contains(id) {
            self.duplicate_results.insert(at);
        } else {
            self.early.entry(id.to_owned()).or_default().push(at);
        }
    }

    /// A result written just before its call is still its result. One from further back is not:
    /// some models use an id again.
    fn take_early(&mut self, items: &[Item]) {
        for call in self.calls.iter_mut().filter(|call| call.result.is_none()) {
            let Some(Block::ToolCall { id, .. }) = block(items, call.at) else { continue };
            let Some(early) = self.early.get_mut(id) else { continue };
            let near = |at: &Place| at.0 == call.at.0 || at.0 + 1 == call.at.0;
            if early.last().is_some_and(near) {
                call.result = early.pop();
            }
        }
    }
}

fn block(items: &[Item], at: Place) -> Option<&Block> {
    items.get(at.0).and_then(|item| item.blocks.get(at.1))
}

fn block_mut(items: &mut [Item], at: Place) -> Option<&mut Block> {
    items.get_mut(at.0).and_then(|item| item.blocks.get_mut(at.1))
}

fn said(items: &[Item], at: Place) -> Option<(&String, &Value)> {
    match block(items, at) {
        Some(Block::ToolCall { name, input, .. }) => Some((name, input)),
        _ => None,
    }
}

/// Leaves out what is recorded twice or answers nothing, and gives every call an id of its own.
fn matched(mut items: Vec<Item>, rules: &Rules, log: &mut Log) -> Vec<Item> {
    let mut found = Matches::of(&items);
    rename(&mut items, &mut found.calls, rules, log);
    let used: HashSet<Place> = found.calls.iter().filter_map(|call| call.result).collect();
    for (item_at, item) in items.iter_mut().enumerate() {
        let source = item.source;
        let mut blocks = Vec::with_capacity(item.blocks.len());
        for (block_at, block) in item.blocks.drain(..).enumerate() {
            let at = (item_at, block_at);
            match block {
                Block::ToolCall { id, .. } if found.duplicate_calls.contains(&at) => log.add(
                    RepairKind::DuplicateCall,
                    source,
                    format!("call {} was recorded twice: shown once", short(&id)),
                ),
                Block::ToolResult { call_id, .. } if found.duplicate_results.contains(&at) => log.add(
                    RepairKind::DuplicateResult,
                    source,
                    format!("call {} has a result already: this one is left out", short(&call_id)),
                ),
                Block::ToolResult { call_id, content, is_error, .. } if !used.contains(&at) => {
                    blocks.extend(orphan(source, &call_id, content, is_error, rules.orphans, log));
                }
                block => blocks.push(block),
            }
        }
        item.blocks = blocks;
    }
    items.retain(|item| !item.blocks.is_empty());
    items
}

fn orphan(
    source: Option<usize>,
    call_id: &str,
    content: Value,
    is_error: bool,
    orphans: Orphans,
    log: &mut Log,
) -> Option<Block> {
    let what = match orphans {
        Orphans::Drop => "left out",
        Orphans::AsText => "shown as text",
    };
    log.add(
        RepairKind::OrphanResult,
        source,
        format!("it holds the result of call {}, which is not there: {what}", short(call_id)),
    );
    let text = match content {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => super::wire::plain_text(&other),
    };
    let label = if is_error { "error of an earlier tool call" } else { "result of an earlier tool call" };
    (orphans == Orphans::AsText && !text.trim().is_empty()).then(|| Block::text(format!("[{label}]\n{text}")))
}

/// Gives each call an id that the provider takes and no other call has, and its result the same.
fn rename(items: &mut [Item], calls: &mut [Call], rules: &Rules, log: &mut Log) {
    let mut ids = CallIds::new(rules.dialect);
    let own = |items: &[Item], call: &Call| match block(items, call.at) {
        Some(Block::ToolCall { id, .. }) => id.clone(),
        _ => String::new(),
    };
    // Those that may keep theirs come first, so that no new id takes an old one away.
    let kept: Vec<bool> = calls.iter().map(|call| ids.keep(&own(items, call))).collect();
    for (call, _) in calls.iter_mut().zip(kept).filter(|(_, kept)| !kept) {
        let old = own(items, call);
        let fresh = ids.like(&old);
        let source = items.get(call.at.0).and_then(|item| item.source);
        log.add(
            RepairKind::RenamedCall,
            source,
            format!("the id {} of a call is used before or not allowed: shown as {fresh}", short(&old)),
        );
        call.renamed = Some(fresh);
    }
    for call in calls.iter() {
        let Some(fresh) = &call.renamed else { continue };
        if let Some(Block::ToolCall { id, .. }) = block_mut(items, call.at) {
            id.clone_from(fresh);
        }
        if let Some(Block::ToolResult { call_id, .. }) = call.result.and_then(|at| block_mut(items, at)) {
            call_id.clone_from(fresh);
        }
    }
}

/// The ids of the calls in a turn of the assistant, in order.
fn calls_of(turn: &[Item]) -> Vec<String> {
    turn.iter()
        .flat_map(|item| &item.blocks)
        .filter_map(|block| match block {
            Block::ToolCall { id, .. } => Some(id.clone()),
            _ => None,
        })
        .collect()
}

fn is_result(block: &Block) -> bool {
    matches!(block, Block::ToolResult { .. })
}

fn answers(block: &Block, calls: &HashSet<String>) -> bool {
    matches!(block, Block::ToolResult { call_id, .. } if calls.contains(call_id))
}

/// Puts each result right after the turn that made its call. Ids are unique by now.
fn place(mut items: Vec<Item>, log: &mut Log) -> Vec<Item> {
    let turns = turns(&items);
    let mut in_place: HashSet<String> = HashSet::new();
    for (_, end, calls) in turns.iter().filter(|(_, _, calls)| !calls.is_empty()) {
        settle(&mut items, *end, &calls.iter().cloned().collect(), &mut in_place, log);
    }
    let mut moved = lift(&mut items, &in_place);
    let mut out = Vec::with_capacity(items.len());
    let mut items = items.into_iter();
    let mut at = 0;
    for (start, end, calls) in turns {
        out.extend(items.by_ref().take(start - at).filter_map(settled));
        let first = out.len();
        out.extend(items.by_ref().take(end - start).filter_map(settled));
        at = end;
        let turn = out.get(first..).unwrap_or_default();
        let channel = turn.first().map_or(Channel::MAIN, |item| item.channel.clone());
        let source_of: HashMap<String, Option<usize>> = turn
            .iter()
            .flat_map(|item| calls_of(std::slice::from_ref(item)).into_iter().map(|id| (id, item.source)))
            .collect();
        let mut results: Vec<Item> = Vec::new();
        for id in calls.iter().filter(|id| !in_place.contains(*id)) {
            let (source, block) = match moved.remove(id) {
                Some((source, block)) => {
                    log.add(
                        RepairKind::MovedResult,
                        source,
                        format!("the result of call {} does not stand right after it: shown there", short(id)),
                    );
                    (source, block)
                }
                None => {
                    log.add(
                        RepairKind::MissingResult,
                        source_of.get(id).copied().flatten(),
                        format!("call {} has no result: shown as interrupted", short(id)),
                    );
                    (None, missing(id))
                }
            };
            match results.last_mut() {
                Some(last) if last.source == source => last.blocks.push(block),
                _ => results.push(Item::new(source, Role::User, vec![block], channel.clone())),
            }
        }
        out.extend(results);
    }
    out.extend(items.filter_map(settled));
    out
}

/// The turns of the assistant: from, to, and the calls.
fn turns(items: &[Item]) -> Vec<(usize, usize, Vec<String>)> {
    let mut turns = Vec::new();
    let mut start = 0;
    while start < items.len() {
        let end = start + items.iter().skip(start).take_while(|item| item.is_assistant()).count();
        if end > start {
            turns.push((start, end, calls_of(items.get(start..end).unwrap_or_default())));
        }
        start = end.max(start) + 1;
    }
    turns
}

/// Finds the results that already stand right after a turn; puts them first in their message.
fn settle(items: &mut [Item], end: usize, calls: &HashSet<String>, in_place: &mut HashSet<String>, log: &mut Log) {
    for item in items.iter_mut().skip(end) {
        if matches!(item.role, Role::Assistant | Role::System) {
            return;
        }
        let first_other = item.blocks.iter().position(|block| !is_result(block));
        let last_own = item.blocks.iter().rposition(|block| answers(block, calls));
        if let Some(first_other) = first_other
            && last_own.is_some_and(|last| last > first_other)
        {
            item.blocks.sort_by_key(|block| !answers(block, calls));
            log.add(
                RepairKind::MovedResult,
                item.source,
                "it says something before the results of the calls: shown after them",
            );
        }
        for block in &item.blocks {
            if let Block::ToolResult { call_id, .. } = block
                && calls.contains(call_id)
            {
                in_place.insert(call_id.clone());
            }
        }
        if first_other.is_some() {
            return;
        }
    }
}

/// Takes out every result that does not stand where it should.
fn lift(items: &mut [Item], in_place: &HashSet<String>) -> HashMap<String, (Option<usize>, Block)> {
    let mut moved = HashMap::new();
    for item in items {
        let source = item.source;
        for block in std::mem::take(&mut item.blocks) {
            match block {
                Block::ToolResult { ref call_id, .. } if !in_place.contains(call_id) => {
                    moved.insert(call_id.clone(), (source, block));
                }
                block => item.blocks.push(block),
            }
        }
    }
    moved
}

/// The item as it is shown; none when everything of it was moved.
fn settled(mut item: Item) -> Option<Item> {
    if item.role == Role::Tool && !item.blocks.iter().any(is_result) {
        item.role = Role::User;
    }
    (!item.blocks.is_empty()).then_some(item)
}

fn missing(id: &str) -> Block {
    Block::ToolResult { call_id: id.to_owned(), content: tidy::interrupted(), is_error: true, extra: Map::new() }
}
