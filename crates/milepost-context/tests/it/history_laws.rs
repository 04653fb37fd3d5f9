//! Laws of views, tried on histories broken at random.

use milepost_context::history::{Dialect, Links, Orphans, Rules, check, heal_json};
use milepost_model::{Block, Message, Role};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z ]{1,8}",
        1 => Just(String::new()),
        1 => Just(" \n".to_owned()),
        1 => Just("nul\0 \u{fffd}\u{fffd} \u{1b}[1m end ".to_owned()),
    ]
}

fn id() -> impl Strategy<Value = String> {
    prop_oneof![6 => "[abc]", 1 => Just("a_2".to_owned()), 1 => Just("bad id!".to_owned()), 1 => Just(String::new()), 1 => Just("l".repeat(80))]
}

fn json_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"path": "x"})),
        Just(json!({})),
        Just(Value::Null),
        text().prop_map(Value::String),
        Just(json!([{"type": "text", "text": "t"}, {"type": "text", "text": " "}])),
        Just(
            json!([{"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}, {"type": "odd"}])
        ),
        Just(json!([{"type": "image", "source": {"type": "blob"}}])),
        Just(json!([1, 2])),
        Just(json!("{\"a\": 1}")),
    ]
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        3 => text().prop_map(Block::text),
        4 => (id(), prop_oneof![Just("ls"), Just("rm file"), Just("")], json_value())
            .prop_map(|(id, name, input)| Block::tool_call(id, name, input)),
        4 => (id(), json_value(), any::<bool>()).prop_map(|(call_id, content, is_error)| Block::ToolResult {
            call_id, content, is_error, extra: Map::new()
        }),
        1 => (text(), any::<bool>()).prop_map(|(text, signed)| Block::Thinking {
            text,
            extra: signed.then(|| ("signature".to_owned(), json!("s"))).into_iter().collect(),
        }),
        1 => prop_oneof![Just(json!("https://example.org/a.png")), Just(json!({"blob": 1}))]
            .prop_map(|source| Block::Image { source, extra: Map::new() }),
        1 => prop_oneof![
            Just(json!({"type": "redacted_thinking", "data": "x"})),
            Just(json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}})),
            Just(json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []})),
            Just(json!({"type": "tool_use", "id": "a", "name": "ls", "input": {}})),
            Just(json!({"type": "tool_result", "tool_use_id": "a"})),
            Just(json!({"type": "document"})),
            Just(json!({"type": "", "text": ""})),
            Just(json!(7)),
        ]
        .prop_map(Block::from),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let role = prop_oneof![
        4 => Just(Role::User),
        5 => Just(Role::Assistant),
        1 => Just(Role::System),
        1 => Just(Role::Tool),
        1 => Just(Role::Other("narrator".into())),
    ];
    let content = prop_oneof![text().prop_map(Ok), prop::collection::vec(block(), 0..4).prop_map(Err),];
    let link = prop::option::of("[mno]");
    (role, content, link.clone(), link).prop_map(|(role, content, id, parent)| {
        let mut message = match content {
            Ok(text) => Message::new(role, text),
            Err(blocks) => Message::blocks(role, blocks),
        };
        message.extra.extend(id.map(|id| ("uuid".to_owned(), json!(id))));
        message.extra.extend(parent.map(|id| ("parentUuid".to_owned(), json!(id))));
        message
    })
}

fn rules() -> impl Strategy<Value = Rules> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(anthropic, as_text, strip_ansi)| Rules {
        dialect: if anthropic { Dialect::Anthropic } else { Dialect::OpenAi },
        orphans: if as_text { Orphans::AsText } else { Orphans::Drop },
        links: Links::Check,
        strip_ansi,
    })
}

/// A turn as a healthy agent leaves it.
fn healthy() -> impl Strategy<Value = Vec<Message>> {
    prop::collection::vec(("[a-z]{1,6}", 0usize..3, any::<bool>()), 0..12).prop_map(|turns| {
        let mut record = Vec::new();
        for (turn, (text, calls, split)) in turns.into_iter().enumerate() {
            record.push(Message::new(Role::User, text.clone()));
            let ids: Vec<String> = (0..calls).map(|call| format!("t{turn}c{call}")).collect();
            let call = |id: &String| Block::tool_call(id.as_str(), "ls", json!({"path": text}));
            let result = |id: &String| Block::tool_result(id.as_str(), json!(text));
            if split {
                record.extend(ids.iter().map(|id| Message::blocks(Role::Assistant, vec![call(id)])));
                record.extend(ids.iter().map(|id| Message::blocks(Role::User, vec![result(id)])));
            } else if !ids.is_empty() {
                record.push(Message::blocks(Role::Assistant, ids.iter().map(call).collect()));
                record.push(Message::blocks(Role::User, ids.iter().map(result).collect()));
            }
            record.push(Message::new(Role::Assistant, text));
        }
        record
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_broken_the_provider_takes_the_view(record in prop::collection::vec(message(), 0..14), rules in rules()) {
        let view = rules.view(&record);
        let wire = view.to_wire();
        prop_assert_eq!(check(&wire.messages, rules.dialect), vec![], "{:#?}", wire);
        prop_assert_eq!(&view, &rules.view(&record));
    }

    #[test]
    fn a_view_of_a_view_changes_nothing(record in prop::collection::vec(message(), 0..14), rules in rules()) {
        let once = rules.view(&record).into_messages();
        let again = rules.view(&once);
        prop_assert_eq!(&again.repairs, &vec![]);
        prop_assert_eq!(again.into_messages(), once);
    }

    #[test]
    fn following_links_keeps_the_view_valid(record in prop::collection::vec(message(), 0..14), rules in rules()) {
        let rules = Rules { links: Links::Follow, ..rules };
        let view = rules.view(&record);
        prop_assert_eq!(check(&view.to_wire().messages, rules.dialect), vec![]);
    }

    #[test]
    fn a_healthy_history_is_kept_whole(record in healthy(), rules in rules()) {
        let view = rules.view(&record);
        prop_assert_eq!(&view.repairs, &vec![]);
        prop_assert_eq!(view.into_messages(), record);
    }

    #[test]
    fn a_healthy_history_cut_anywhere_keeps_every_message_that_is_whole(record in healthy(), from in 0usize..40, to in 0usize..40, rules in rules()) {
        let (from, to) = (from.min(record.len()), to.min(record.len()));
        let Some(window) = record.get(from.min(to)..from.max(to)) else { return Ok(()) };
        let view = rules.view(window);
        prop_assert_eq!(check(&view.to_wire().messages, rules.dialect), vec![]);
        let shown = view.clone().into_messages();
        let texts = |all: &[Message]| all.iter().filter(|m| matches!(m.content, milepost_model::Content::Text(_))).count();
        let opening = usize::from(view.repairs.iter().any(|r| r.kind == milepost_context::history::RepairKind::NoOpening));
        let as_text = texts(&shown) - opening;
        prop_assert!(as_text >= texts(window));
        for message in window.iter().filter(|m| m.tool_calls() > 0) {
            prop_assert!(shown.contains(message));
        }
    }

    #[test]
    fn healed_json_parses(text in "([a-z\"\\\\]|\\\\ud83d|\\\\ude00|\\\\n){0,12}") {
        let _ = heal_json(&text);
        let inner = text.replace(['"'], "").replace("\\\\", "");
        let json = format!("{{\"role\":\"user\",\"content\":{}}}", json!(inner));
        prop_assert_eq!(heal_json(&json), json.as_str());
    }
}
