//! Golden files of the format on disk.

use milepost_model::{Block, Channel, Message, Role};
use serde_json::{Map, Value, json};

/// Messages of every kind, with fields and blocks that Milepost does not know.
pub fn messages() -> Vec<Message> {
    let extra = |value: Value| match value {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let mut odd = Message::new(Role::Other("critic".into()), "custom role");
    odd.extra = extra(json!({"name": "c", "usage": {"tokens": 12}, "nothing": null}));
    vec![
        Message::new(Role::System, "You are a careful assistant."),
        Message::new(Role::User, "Grüße, 世界 🦀 \"quoted\" \\ \n\t\u{1}"),
        Message::new(Role::User, ""),
        Message::new(Role::User, "nul \0 inside"),
        Message::blocks(Role::Assistant, Vec::new()),
        Message::blocks(
            Role::Assistant,
            vec![
                Block::Thinking { text: "Let me look.".into(), extra: extra(json!({"signature": "c2ln"})) },
                Block::Text { text: "I will read the file.".into(), extra: extra(json!({"citations": [1]})) },
                Block::tool_call("call_1", "read_file", json!({"path": "src/lib.rs", "lines": [1, 20]})),
            ],
        ),
        Message::blocks(
            Role::Tool,
            vec![Block::ToolResult {
                call_id: "call_1".into(),
                content: json!([{"type": "text", "text": "pub fn main() {}"}]),
                is_error: true,
                extra: extra(json!({"took_ms": 12.5})),
            }],
        ),
        Message::blocks(
            Role::User,
            vec![
                Block::text("text first"),
                Block::Image { source: json!({"type": "url", "url": "https://example.org/a.png"}), extra: Map::new() },
            ],
        ),
        Message::blocks(
            Role::Assistant,
            vec![
                Block::from(json!({"type": "server_tool_use", "id": "x", "input": {"deep": [[["y"]]]}})),
                Block::from(json!("not even an object")),
                Block::from(json!({"type": "text", "text": 7})),
            ],
        ),
        Message::new(Role::Assistant, "in a side channel").in_channel(Channel::new("node/plan").unwrap()),
        odd,
    ]
}
