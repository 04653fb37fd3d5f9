//! The vocabulary through its public face: names, forms, round trips.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use milepost_model::{
    BatchId, Block, Channel, CheckpointId, Content, Id, ManualClock, Message, OwnerId, Policy, Role, Session,
    SessionId, SessionPatch, Source, State, Status, TimelineId, Timestamp, Trigger, WorkspaceId,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn source() -> Source {
    Source::seeded(7, Arc::new(ManualClock::new(Timestamp(1_767_225_600_000))))
}

#[test]
fn ids_read_back_sort_by_time_and_say_what_they_name() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_767_225_600_000)));
    let source = Source::seeded(7, Arc::clone(&clock));
    let first: SessionId = source.id();
    clock.advance_ms(1);
    let second: SessionId = source.id();
    assert!(first < second && first.to_string() < second.to_string() && first.to_bytes() < second.to_bytes());
    assert_eq!(first.unix_ms(), 1_767_225_600_000);
    assert_eq!(first.to_string().parse::<SessionId>().unwrap(), first);
    assert_eq!(SessionId::from_bytes(first.to_bytes()), first);
    assert_eq!(serde_json::from_value::<SessionId>(json!(first)).unwrap(), first);
    let prefixes = [SessionId::PREFIX, TimelineId::PREFIX, CheckpointId::PREFIX, BatchId::PREFIX, OwnerId::PREFIX];
    assert_eq!(prefixes, ["ses_", "tml_", "ckp_", "bat_", "own_"]);
    let error = first.to_string().parse::<CheckpointId>().unwrap_err().to_string();
    assert!(error.contains("checkpoint id") && error.contains("ckp_") && error.contains(&first.to_string()), "{error}");
}

#[test]
fn an_id_is_never_a_path_or_a_query() {
    let good = source().id::<SessionId>().to_string();
    let long = "x".repeat(100_000);
    let tricks = [
        "",
        "ses_",
        "..",
        "../../etc/passwd",
        "ses_../../../../../../../../x",
        "/",
        "ses_\0",
        &good.to_uppercase(),
        &long,
        "ses_0123456789abcdefghjkmnpqrI",
        "ses_80000000000000000000000000",
        &format!("{good}/x"),
        &format!(" {good}"),
        &format!("{good}\n"),
        "ses_' OR 1=1 --",
        "ses_é1234567890123456789012345",
    ];
    for text in tricks {
        let error = text.parse::<SessionId>().unwrap_err().to_string();
        assert!(error.len() < 400, "an error repeats {} bytes", error.len());
    }
    for name in ["", ".", "..", "a/b", "a\\b", "A", "é", "a b", "a\0", "-a", "_a", &"a".repeat(65)] {
        assert!(WorkspaceId::new(name).is_err(), "{name:?} was taken");
        assert!(serde_json::from_value::<WorkspaceId>(json!(name)).is_err());
    }
    for name in ["a", "0", "my-team_2", &"a".repeat(64)] {
        assert_eq!(WorkspaceId::new(name).unwrap().as_str(), name);
    }
}

#[test]
fn all_kinds_of_blocks_survive_with_what_nobody_knows() {
    let json = json!({
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me look.", "cache_control": {"type": "ephemeral"}},
            {"type": "thinking", "text": "hm", "signature": "abc"},
            {"type": "tool_call", "id": "t1", "name": "read", "input": {"path": "a.rs"}},
            {"type": "tool_result", "call_id": "t1", "content": [1, null, "x"], "is_error": true, "took_ms": 4},
            {"type": "image", "source": {"url": "https://example.org/a.png"}},
            {"type": "hologram", "depth": 3},
            "just a string",
            {"type": "text", "text": 5}
        ],
        "channel": "reviewer",
        "id": "msg_1",
        "usage": {"input_tokens": 18446744073709551615u64, "cost": 0.25}
    });
    let message: Message = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&message).unwrap(), json);
    let Content::Blocks(blocks) = &message.content else { panic!("not blocks") };
    assert!(matches!(&blocks[2], Block::ToolCall { name, .. } if name == "read"));
    assert!(matches!(&blocks[3], Block::ToolResult { is_error: true, .. }));
    assert!(matches!(&blocks[5], Block::Unknown(_)) && matches!(&blocks[7], Block::Unknown(_)));
    assert_eq!(message.channel.as_str(), "reviewer");
    assert_eq!(message.tool_calls(), 1);
    let text = message.text();
    for word in ["Let me look.", "hm", "read", "a.rs", "x"] {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

#[test]
fn a_message_from_outside_is_read_or_refused_with_the_place() {
    for (json, why) in [
        (r#"{"role":"user","content":"\ud800"}"#, "hex escape"),
        (r#"{"role":"user","content":"a"} x"#, "trailing"),
        (r#"{"role":"user"}"#, "content"),
        (r#"{"role":7,"content":"a"}"#, "invalid type"),
        (r#"{"role":"user","content":5}"#, "content must be a text or a list of blocks"),
        (r#"{"role":"user","content":"a","channel":""}"#, "channel"),
        ("", "EOF"),
    ] {
        let error = Message::from_json(json.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{json}: {error}");
    }
    let message = Message::from_json(br#"{"role":"user","content":"nul \u0000 is text"}"#).unwrap();
    assert_eq!(message.text(), "nul \0 is text");
}

#[test]
fn channels_have_names() {
    assert!(Channel::MAIN.is_main() && Channel::new("main").unwrap().is_main());
    for name in ["", "a\nb", "a\0", &"x".repeat(129)] {
        assert!(Channel::new(name).is_err(), "{name:?} was taken");
    }
    assert_eq!(Message::new(Role::User, "a").in_channel(Channel::new("qa").unwrap()).channel.as_str(), "qa");
}

#[test]
fn triggers_statuses_and_roles_keep_their_words() {
    for trigger in Trigger::KNOWN {
        assert_eq!(Trigger::from(trigger.as_str().to_owned()), *trigger);
    }
    assert_eq!(Trigger::from("campaign_created".to_owned()), Trigger::Other("campaign_created".into()));
    let kept: Vec<&str> = Trigger::KNOWN.iter().filter(|t| t.is_kept()).map(Trigger::as_str).collect();
    assert_eq!(kept, ["manual", "milestone", "phase_complete"]);
    for status in Status::ALL {
        assert_eq!(Status::from_name(status.as_str()), Some(status));
        assert_eq!(serde_json::to_value(status).unwrap(), json!(status.as_str()));
    }
    assert_eq!(Status::from_name("Active"), None);
    for name in ["user", "assistant", "system", "tool", "narrator"] {
        assert_eq!(Role::from(name.to_owned()).as_str(), name);
    }
}

#[test]
fn the_policy_has_the_documented_defaults() {
    let policy = Policy::default();
    assert_eq!((policy.every_messages, policy.every_seconds, policy.every_iterations), (10, 300, 0));
    let keep = &policy.retention;
    assert_eq!((keep.max_checkpoints, keep.max_age_days, keep.trash_days, keep.clean_only), (100, 30, 7, false));
    let off = [Trigger::EdgeTransition, Trigger::LoopIteration, Trigger::Smart];
    for trigger in Trigger::KNOWN {
        assert_eq!(policy.takes(trigger), !off.contains(trigger), "{trigger}");
    }
    let disabled = Policy { enabled: false, ..Policy::default() };
    assert!(disabled.takes(&Trigger::Manual) && !disabled.takes(&Trigger::Step));
    let turned: Policy =
        serde_json::from_value(json!({"on": ["smart"], "off": ["step"], "every_iterations": 3})).unwrap();
    assert!(turned.takes(&Trigger::Smart) && !turned.takes(&Trigger::Step) && turned.takes(&Trigger::LoopIteration));
    assert!(serde_json::from_value::<Policy>(json!({"every_mesages": 3})).is_err(), "a misspelt key was taken");
}

#[test]
fn a_patch_sets_and_removes_and_keeps_what_it_does_not_know() {
    let source = source();
    let mut session = Session::new(source.id(), source.id(), source.now());
    let patch = SessionPatch::new()
        .title("Fix the build")
        .project("milepost")
        .tags(["urgent", "ci"])
        .status(Status::Waiting)
        .with("pinned", json!({"by": "me"}));
    session.patch(&patch);
    assert_eq!(session.title.as_deref(), Some("Fix the build"));
    assert_eq!(session.tags.iter().map(String::as_str).collect::<Vec<_>>(), ["ci", "urgent"]);
    assert_eq!((session.status, &session.extra["pinned"]), (Status::Waiting, &json!({"by": "me"})));
    let json = serde_json::to_value(&session).unwrap();
    assert_eq!(serde_json::from_value::<Session>(json).unwrap(), session);
    session.patch(&SessionPatch::new().with("title", Value::Null).with("pinned", Value::Null));
    assert_eq!((session.title, session.extra.len()), (None, 0));
}

#[test]
fn a_state_is_an_object_of_sections() {
    for value in [json!(null), json!(1), json!("x"), json!([1]), json!(true)] {
        let error = State::try_from(value).unwrap_err().to_string();
        assert!(error.contains("JSON object") && error.contains("memory"), "{error}");
    }
    let mut state: State = json!({"memory": {"a/b": {"~": [10, 20]}}, "my own": 1}).try_into().unwrap();
    assert_eq!(state.pointer("/memory/a~1b/~0/1"), Some(&json!(20)));
    assert_eq!(state.pointer("/my own"), Some(&json!(1)));
    assert_eq!((state.pointer("memory"), state.pointer("/nothing/here")), (None, None));
    *state.section_mut("agent") = json!({"pid": 1});
    assert_eq!(state.section("agent"), Some(&json!({"pid": 1})));
    assert_eq!(Value::from(state)["my own"], json!(1));
}

/// Any JSON of moderate size.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-z_]{0,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Objects that look like blocks, more or less.
fn any_block() -> impl Strategy<Value = Value> {
    let kinds = prop_oneof![
        Just("text"),
        Just("tool_call"),
        Just("tool_result"),
        Just("image"),
        Just("thinking"),
        Just("tool_use"),
        Just("")
    ];
    let fields = prop_oneof![
        Just("text"),
        Just("id"),
        Just("name"),
        Just("input"),
        Just("call_id"),
        Just("content"),
        Just("is_error"),
        Just("source"),
        Just("other")
    ];
    let values = prop_oneof![any_json(), "[a-z]{0,5}".prop_map(Value::from), any::<bool>().prop_map(Value::from)];
    (kinds, proptest::collection::btree_map(fields, values, 0..6)).prop_map(|(kind, fields)| {
        let mut map: Map<String, Value> = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        map.insert("type".into(), Value::from(kind));
        Value::Object(map)
    })
}

proptest! {
    #[test]
    fn whatever_parses_as_a_message_comes_back_as_it_was(
        role in "[a-z]{0,10}",
        content in prop_oneof![
            ".{0,40}".prop_map(Value::from),
            proptest::collection::vec(prop_oneof![any_block(), any_json()], 0..5).prop_map(Value::from),
        ],
        extra in proptest::collection::btree_map("[a-z_]{1,8}", any_json(), 0..4),
    ) {
        let mut map: Map<String, Value> = extra.into_iter().filter(|(key, _)| key != "channel").collect();
        map.insert("role".into(), Value::from(role));
        map.insert("content".into(), content);
        let json = Value::Object(map);
        let message: Message = serde_json::from_value(json.clone()).unwrap();
        prop_assert_eq!(&serde_json::to_value(&message).unwrap(), &json);
        let bytes = serde_json::to_vec(&message).unwrap();
        prop_assert_eq!(Message::from_json(&bytes).unwrap(), message);
    }

    #[test]
    fn any_text_is_an_id_or_an_error(text in ".{0,40}") {
        if let Ok(id) = text.parse::<SessionId>() {
            prop_assert_eq!(id.to_string(), text);
        }
    }
}
