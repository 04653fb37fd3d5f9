//! What is small but refused: empty blocks, thoughts without a signature, arguments that are not an
//! object, a conversation that begins with the assistant.

use std::collections::HashSet;

use milepost_model::{Block, Role};
use serde_json::{Map, Value, json};

use super::{Dialect, Item, Log, RepairKind, ids, short};

/// What stands before a conversation that begins with the assistant.
const OPENING: &str = "(The conversation goes on from an earlier point.)";

/// Leaves out blocks that say nothing and mends calls, message by message.
pub(super) fn blocks(items: &mut Vec<Item>, dialect: Dialect, log: &mut Log) {
    for item in items.iter_mut() {
        let source = item.source;
        let assistant = item.is_assistant();
        let mut had_empty = false;
        item.blocks.retain(|block| match block {
            Block::Text { text, .. } => {
                let keep = !text.trim().is_empty();
                had_empty |= !keep;
                keep
            }
            Block::Thinking { extra, .. } if dialect == Dialect::Anthropic => {
                let signed = matches!(extra.get("signature"), Some(Value::String(s)) if !s.is_empty());
                if !(signed && assistant) {
                    log.add(
                        RepairKind::UnsignedThinking,
                        source,
                        "it holds a thought without the provider's signature, which the provider refuses: left out",
                    );
                }
                signed && assistant
            }
            _ => true,
        });
        if had_empty && !item.blocks.is_empty() {
            log.add(RepairKind::EmptyBlock, source, "it holds a text without a word: left out");
        }
        for block in &mut item.blocks {
            match block {
                Block::ToolCall { .. } if !assistant => {
                    let text = call_as_text(block);
                    log.add(
                        RepairKind::MisplacedCall,
                        source,
                        format!("{} calls a tool, which only the assistant can: shown as text", item.role),
                    );
                    *block = Block::text(text);
                }
                Block::ToolCall { id, name, input, .. } => {
                    // OpenAI writes an object as a text: nothing is wrong with it.
                    if let Value::String(text) = input
                        && let Ok(Value::Object(object)) = serde_json::from_str(text)
                    {
                        *input = Value::Object(object);
                    }
                    if let Some(object) = object(input) {
                        log.add(
                            RepairKind::WrappedInput,
                            source,
                            format!("the arguments of call {} are not an object: shown as one", short(id)),
                        );
                        *input = Value::Object(object);
                    }
                    if let Some(fit) = ids::tool_name(name, dialect) {
                        log.add(
                            RepairKind::RenamedTool,
                            source,
                            format!("{} is no name for a tool: shown as {fit}", short(name)),
                        );
                        *name = fit;
                    }
                }
                _ => {}
            }
        }
    }
    drop_empty(items, log);
}

/// Leaves out messages without content.
pub(super) fn drop_empty(items: &mut Vec<Item>, log: &mut Log) {
    items.retain(|item| {
        if item.blocks.is_empty() {
            log.add(RepairKind::EmptyMessage, item.source, "nothing of it is left to show: left out");
        }
        !item.blocks.is_empty()
    });
}

fn call_as_text(block: &Block) -> String {
    match block {
        Block::ToolCall { name, input, .. } => format!("[call of {name}] {input}"),
        _ => String::new(),
    }
}

/// The object that stands for arguments that are none; nothing when they are one.
fn object(input: &mut Value) -> Option<Map<String, Value>> {
    let wrap = |value: Value| Map::from_iter([("input".to_owned(), value)]);
    match input {
        Value::Object(_) => None,
        Value::Null => Some(Map::new()),
        Value::String(text) if text.trim().is_empty() => Some(Map::new()),
        other => Some(wrap(other.take())),
    }
}

/// Leaves out of each turn of the assistant what may not stand where it stands: a provider's own
/// tool call or result alone, and thoughts with nothing after them.
pub(super) fn turns(items: &mut Vec<Item>, dialect: Dialect, log: &mut Log) {
    if dialect == Dialect::OpenAi {
        return;
    }
    let mut start = 0;
    while start < items.len() {
        let end = start + items.iter().skip(start).take_while(|item| item.is_assistant()).count();
        if let Some(turn) = items.get_mut(start..end) {
            server_tools(turn, log);
            trailing_thoughts(turn, log);
        }
        start = end + 1;
    }
    drop_empty(items, log);
}

fn kind_of(block: &Block) -> &str {
    match block {
        Block::Unknown(value) => value.get("type").and_then(Value::as_str).unwrap_or_default(),
        _ => "",
    }
}

/// What a provider's own tool block is: a call with its id, or the result for an id.
fn server_tool(block: &Block) -> Option<(ServerTool, String)> {
    let Block::Unknown(value) = block else { return None };
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    match kind_of(block) {
        "server_tool_use" | "mcp_tool_use" => Some((ServerTool::Call, text("id"))),
        kind if kind.ends_with("_tool_result") => Some((ServerTool::Result, text("tool_use_id"))),
        _ => None,
    }
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum ServerTool {
    Call,
    Result,
}

fn server_tools(turn: &mut [Item], log: &mut Log) {
    let mut called = HashSet::new();
    let mut paired = HashSet::new();
    for block in turn.iter().flat_map(|item| &item.blocks) {
        match server_tool(block) {
            Some((ServerTool::Call, id)) if !id.is_empty() => {
                called.insert(id);
            }
            Some((ServerTool::Result, id)) if called.contains(&id) => {
                paired.insert(id);
            }
            _ => {}
        }
    }
    let mut kept = HashSet::new();
    for item in turn {
        let source = item.source;
        item.blocks.retain(|block| {
            let Some((what, id)) = server_tool(block) else { return true };
            let in_order = what == ServerTool::Call || kept.contains(&(true, id.clone()));
            let keep = paired.contains(&id) && in_order && kept.insert((what == ServerTool::Call, id));
            if !keep {
                log.add(
                    RepairKind::UnpairedServerTool,
                    source,
                    "it holds a call or a result of the provider's own tool without its counterpart: left out",
                );
            }
            keep
        });
    }
}

fn trailing_thoughts(turn: &mut [Item], log: &mut Log) {
    for item in turn.iter_mut().rev() {
        while item
            .blocks
            .pop_if(|block| matches!(block, Block::Thinking { .. }) || kind_of(block) == "redacted_thinking")
            .is_some()
        {
            log.add(
                RepairKind::TrailingThinking,
                item.source,
                "it ends with a thought, which the provider refuses: left out",
            );
        }
        if !item.blocks.is_empty() {
            return;
        }
    }
}

/// Makes the first and the last message acceptable.
pub(super) fn edges(items: &mut Vec<Item>, dialect: Dialect, log: &mut Log) {
    if dialect == Dialect::OpenAi {
        return;
    }
    let trimmed = items.last_mut().filter(|last| last.is_assistant()).and_then(|last| {
        let source = last.source;
        match last.blocks.last_mut() {
            Some(Block::Text { text, .. }) if text.ends_with(char::is_whitespace) => {
                text.truncate(text.trim_end().len());
                Some(source)
            }
            _ => None,
        }
    });
    if let Some(source) = trimmed {
        log.add(RepairKind::TrailingSpace, source, "the last answer ends with white space: shown without it");
    }
    let Some(first) = items.iter().position(|item| item.role != Role::System) else { return };
    if let Some(item) = items.get(first).filter(|item| item.is_assistant()) {
        log.add(
            RepairKind::NoOpening,
            item.source,
            "the conversation begins with the assistant: a line of the user is put before it",
        );
        let mut opening = Item::new(None, Role::User, vec![Block::text(OPENING)], item.channel.clone());
        opening.plain = true;
        items.insert(first, opening);
    }
}

/// The content of a result that was never recorded.
pub(super) fn interrupted() -> Value {
    json!("interrupted: no result of this call was recorded; it may or may not have run")
}
