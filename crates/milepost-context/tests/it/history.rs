use milepost_context::history::{Dialect, Links, Orphans, RepairKind, Rules, View, check, heal_json, heal_text, view};
use milepost_model::{Block, Message, Role};
use serde_json::{Map, Value, json};

const BOTH: [Dialect; 2] = [Dialect::Anthropic, Dialect::OpenAi];

fn user(text: &str) -> Message {
    Message::new(Role::User, text)
}

fn says(text: &str) -> Message {
    Message::new(Role::Assistant, text)
}

fn calls(ids: &[&str]) -> Message {
    Message::blocks(Role::Assistant, ids.iter().map(|id| Block::tool_call(*id, "ls", json!({"path": id}))).collect())
}

fn results(ids: &[&str]) -> Message {
    Message::blocks(Role::User, ids.iter().map(|id| Block::tool_result(*id, json!(format!("did {id}")))).collect())
}

fn with(mut message: Message, fields: Value) -> Message {
    let Value::Object(fields) = fields else { panic!("an object") };
    message.extra.extend(fields);
    message
}

/// The view, after making sure that the provider would take it.
fn valid(record: &[Message], dialect: Dialect) -> View {
    let view = view(record, dialect);
    assert_eq!(check(&view.to_wire().messages, dialect), [], "{view:#?}");
    view
}

fn kinds(view: &View) -> Vec<RepairKind> {
    view.repairs.iter().map(|repair| repair.kind).collect()
}

fn messages(view: View) -> Vec<Message> {
    view.into_messages()
}

#[test]
fn a_whole_conversation_is_shown_as_it_is() {
    let record = [
        Message::new(Role::System, "Be brief."),
        user("List both."),
        calls(&["a", "b"]),
        results(&["a", "b"]),
        says("Done."),
        user("Thanks."),
    ];
    for dialect in BOTH {
        let view = valid(&record, dialect);
        assert_eq!(view.repairs, []);
        assert_eq!(messages(view), record);
    }
}

#[test]
fn a_turn_recorded_block_by_block_is_one_turn() {
    let record =
        [user("go"), says("Looking."), calls(&["a"]), calls(&["b"]), results(&["a"]), results(&["b"]), says("ok")];
    for dialect in BOTH {
        let view = valid(&record, dialect);
        assert_eq!(view.repairs, []);
        assert_eq!(view.messages.len(), record.len());
    }
    let wire = view(&record, Dialect::Anthropic).to_wire();
    assert_eq!(wire.messages.len(), 4);
    assert_eq!(wire.messages[1]["content"].as_array().unwrap().len(), 3);
}

#[test]
fn a_call_without_a_result_is_answered_as_interrupted() {
    for dialect in BOTH {
        let view = valid(&[user("go"), calls(&["a", "b"]), results(&["b"]), user("and?")], dialect);
        assert_eq!(kinds(&view), [RepairKind::MissingResult]);
        assert_eq!(view.repairs[0].source, Some(1));
        assert_eq!(view.repairs[0].to_string(), "message 1: call \"a\" has no result: shown as interrupted");
        let Block::ToolResult { call_id, is_error, content, .. } = blocks(&view, 2)[0].clone() else { panic!() };
        assert_eq!((call_id.as_str(), is_error), ("a", true));
        assert!(content.as_str().unwrap().starts_with("interrupted:"));
        assert_eq!(view.messages[2].source, None);
    }
}

fn blocks(view: &View, at: usize) -> &[Block] {
    match &view.messages[at].message.content {
        milepost_model::Content::Blocks(blocks) => blocks,
        milepost_model::Content::Text(_) => panic!("plain text"),
    }
}

#[test]
fn a_result_without_a_call_is_left_out_or_shown_as_text() {
    let record = [results(&["gone"]), user("go on")];
    for dialect in BOTH {
        let view = valid(&record, dialect);
        assert_eq!(kinds(&view), [RepairKind::OrphanResult]);
        assert_eq!(messages(view), [user("go on")]);

        let rules = Rules { orphans: Orphans::AsText, ..Rules::new(dialect) };
        let shown = rules.view(&record);
        assert_eq!(check(&shown.to_wire().messages, dialect), []);
        assert!(shown.messages[0].message.text().contains("did gone"));
    }
}

#[test]
fn a_late_result_is_shown_right_after_its_call() {
    for dialect in BOTH {
        let record = [user("go"), calls(&["a"]), user("hurry"), says("Yes."), results(&["a"]), says("Done.")];
        let view = valid(&record, dialect);
        assert_eq!(kinds(&view), [RepairKind::MovedResult]);
        assert_eq!(
            messages(view),
            [user("go"), calls(&["a"]), results(&["a"]), user("hurry"), says("Yes."), says("Done.")]
        );
    }
}

#[test]
fn results_come_before_what_the_user_says_with_them() {
    let mixed = Message::blocks(Role::User, vec![Block::text("here"), Block::tool_result("a", json!("did a"))]);
    for dialect in BOTH {
        let view = valid(&[user("go"), calls(&["a"]), mixed.clone()], dialect);
        assert_eq!(kinds(&view), [RepairKind::MovedResult]);
        assert!(matches!(blocks(&view, 2), [Block::ToolResult { .. }, Block::Text { .. }]));
    }
}

#[test]
fn an_id_used_again_does_not_mix_two_calls_up() {
    let record = [user("go"), calls(&["a"]), results(&["a"]), calls(&["a"]), results(&["a"]), says("ok")];
    for dialect in BOTH {
        let view = valid(&record, dialect);
        assert_eq!(kinds(&view), [RepairKind::RenamedCall]);
        assert_eq!(view.messages.len(), record.len());
        let Block::ToolCall { id, .. } = &blocks(&view, 3)[0] else { panic!() };
        let Block::ToolResult { call_id, .. } = &blocks(&view, 4)[0] else { panic!() };
        assert_eq!(id, call_id);
        assert_ne!(id, "a");
    }
}

#[test]
fn a_new_id_never_takes_one_that_a_later_call_has() {
    let record = [
        user("go"),
        calls(&["a"]),
        results(&["a"]),
        calls(&["a"]),
        results(&["a"]),
        calls(&["a_2"]),
        results(&["a_2"]),
    ];
    let view = valid(&record, Dialect::Anthropic);
    assert_eq!(view.messages[5].message, record[5]);
}

#[test]
fn what_was_recorded_twice_is_shown_once() {
    let twice = with(user("go"), json!({"uuid": "m1"}));
    let record = [twice.clone(), twice.clone(), calls(&["a"]), calls(&["a"]), results(&["a"]), results(&["a"])];
    for dialect in BOTH {
        let view = valid(&record, dialect);
        assert_eq!(
            kinds(&view),
            [RepairKind::DuplicateMessage, RepairKind::DuplicateCall, RepairKind::DuplicateResult]
        );
        assert_eq!(messages(view), [twice.clone(), calls(&["a"]), results(&["a"])]);
    }
}

#[test]
fn a_message_that_grew_under_one_id_is_shown_whole() {
    let part = with(says("The answ"), json!({"id": "m2"}));
    let whole = with(says("The answer is 42."), json!({"id": "m2"}));
    let view = valid(&[user("q"), part, whole.clone()], Dialect::OpenAi);
    assert_eq!(kinds(&view), [RepairKind::DuplicateMessage]);
    assert_eq!(messages(view), [user("q"), whole]);
}

#[test]
fn different_messages_under_one_id_are_both_shown() {
    let record = [with(user("one"), json!({"id": "x"})), with(user("two"), json!({"id": "x"}))];
    let view = valid(&record, Dialect::OpenAi);
    assert_eq!(kinds(&view), [RepairKind::SharedId]);
    assert_eq!(view.messages.len(), 2);
}

#[test]
fn links_that_do_not_hold_are_cut_and_the_order_of_the_log_is_kept() {
    let linked = |text: &str, id: &str, parent: &str| with(user(text), json!({"uuid": id, "parentUuid": parent}));
    let record = [
        linked("window start", "a", "outside"),
        linked("fine", "b", "a"),
        linked("nowhere", "c", "missing"),
        linked("itself", "d", "d"),
        linked("later", "e", "f"),
        linked("loop", "f", "e"),
    ];
    let view = valid(&record, Dialect::OpenAi);
    assert_eq!(view.messages.len(), 6);
    let found: Vec<_> = view.repairs.iter().map(|r| (r.source, r.kind)).collect();
    assert_eq!(
        found,
        [(Some(2), RepairKind::BrokenParent), (Some(3), RepairKind::Cycle), (Some(4), RepairKind::Cycle)]
    );
    assert_eq!(view.messages[0].message, record[0]);
    assert_eq!(view.messages[3].message.extra["parentUuid"], Value::Null);
}

#[test]
fn following_links_leaves_other_branches_out() {
    let linked = |text: &str, id: &str, parent: &str| with(user(text), json!({"uuid": id, "parentUuid": parent}));
    let record = [
        with(user("root"), json!({"uuid": "a", "parentUuid": null})),
        linked("left", "b", "a"),
        linked("right", "c", "a"),
    ];
    let rules = Rules { links: Links::Follow, ..Rules::new(Dialect::OpenAi) };
    let view = rules.view(&record);
    assert_eq!(kinds(&view), [RepairKind::OtherBranch]);
    assert_eq!(messages(view), [record[0].clone(), record[2].clone()]);
    let knot = [linked("x", "a", "b"), linked("y", "b", "a")];
    assert_eq!(rules.view(&knot).messages.len(), 2);
}

#[test]
fn empty_things_are_left_out() {
    let record = [
        user("hi"),
        says("  \n"),
        Message::blocks(Role::User, vec![]),
        Message::blocks(Role::Assistant, vec![Block::text(""), Block::text("yes")]),
    ];
    for dialect in BOTH {
        let view = valid(&record, dialect);
        assert_eq!(kinds(&view), [RepairKind::EmptyMessage, RepairKind::EmptyMessage, RepairKind::EmptyBlock]);
        assert_eq!(view.messages.len(), 2);
    }
}

#[test]
fn thoughts_follow_the_provider_s_rules() {
    let thought = |text: &str, signature: Option<&str>| Block::Thinking {
        text: text.into(),
        extra: signature.map(|s| ("signature".to_owned(), json!(s))).into_iter().collect(),
    };
    let record = [
        user("think"),
        Message::blocks(Role::Assistant, vec![thought("a", Some("sig")), Block::tool_call("c", "ls", json!({}))]),
        results(&["c"]),
        Message::blocks(
            Role::Assistant,
            vec![thought("unsigned", None), Block::text("so"), thought("end", Some("sig"))],
        ),
    ];
    let view = valid(&record, Dialect::Anthropic);
    assert_eq!(kinds(&view), [RepairKind::UnsignedThinking, RepairKind::TrailingThinking]);
    assert_eq!(view.messages[1].message, record[1]);
    assert_eq!(
        view.to_wire().messages[1]["content"][0],
        json!({"type": "thinking", "thinking": "a", "signature": "sig"})
    );
    assert_eq!(valid(&record, Dialect::OpenAi).repairs, []);
}

#[test]
fn a_conversation_that_begins_with_the_assistant_gets_an_opening() {
    let record = [Message::new(Role::System, "s"), says("Hello.  "), user("hi"), says("bye \n")];
    let view = valid(&record, Dialect::Anthropic);
    assert_eq!(kinds(&view), [RepairKind::NoOpening, RepairKind::TrailingSpace]);
    let wire = view.to_wire();
    assert_eq!(wire.system.as_deref(), Some("s"));
    assert_eq!(wire.messages[3]["content"], "bye");
    assert_eq!(valid(&record, Dialect::OpenAi).repairs, []);
}

#[test]
fn the_forms_of_other_providers_are_read() {
    let openai = [
        user("go"),
        with(
            says(""),
            json!({"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{\"path\":\".\"}"}}]}),
        ),
        with(Message::new(Role::Tool, "a.txt"), json!({"tool_call_id": "c1"})),
    ];
    let view_a = valid(&openai, Dialect::Anthropic);
    let wire = view_a.to_wire();
    assert_eq!(
        wire.messages[1]["content"][0],
        json!({"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "."}})
    );
    assert_eq!(wire.messages[2]["content"][0], json!({"type": "tool_result", "tool_use_id": "c1", "content": "a.txt"}));

    let raw: Vec<Message> = serde_json::from_value(json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "ls", "input": {"path": "."}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a.txt"}]}]},
    ]))
    .unwrap();
    let back = valid(&raw, Dialect::Anthropic);
    assert_eq!(back.repairs, []);
    let expected = json!(raw);
    assert_eq!(Value::Array(back.to_wire().messages), expected);
    let wire = valid(&raw, Dialect::OpenAi).to_wire();
    assert_eq!(wire.messages[2], json!({"role": "tool", "tool_call_id": "c1", "content": "a.txt"}));

    let own = [with(
        says("on it"),
        json!({"toolCalls": [{"id": "x", "name": "ls", "input": {}}], "toolResults": [{"id": "x", "output": "fine"}]}),
    )];
    let view = valid(&own, Dialect::OpenAi);
    assert_eq!(view.to_wire().messages[1]["content"], "fine");
}

#[test]
fn a_picture_goes_where_each_provider_takes_one() {
    let image = json!({"type": "base64", "media_type": "image/png", "data": "QUJD"});
    let record = [
        Message::blocks(Role::User, vec![Block::Image { source: image.clone(), extra: Map::new() }]),
        calls(&["c"]),
        Message::blocks(
            Role::User,
            vec![Block::tool_result(
                "c",
                json!([{"type": "text", "text": "shot"}, {"type": "image", "source": image}]),
            )],
        ),
    ];
    let wire = valid(&record, Dialect::Anthropic).to_wire().messages;
    assert_eq!(wire[0]["content"][0]["source"], image);
    assert_eq!(wire[2]["content"][0]["content"][1]["type"], "image");
    let wire = valid(&record, Dialect::OpenAi).to_wire().messages;
    assert_eq!(wire[0]["content"][0]["image_url"]["url"], "data:image/png;base64,QUJD");
    assert_eq!(wire[2]["content"], "shot\n[image]");
    assert_eq!(wire[3]["content"][1]["type"], "image_url");
}

#[test]
fn ids_names_and_arguments_are_made_acceptable() {
    let long = "x".repeat(100);
    let record = [
        user("go"),
        Message::blocks(
            Role::Assistant,
            vec![
                Block::tool_call("functions.ls:0", "my tool", json!("{\"a\": 1}")),
                Block::tool_call(long.as_str(), "ls", json!("{\"torn\": ")),
                Block::tool_call("", "", Value::Null),
            ],
        ),
        results(&["functions.ls:0", &long, ""]),
    ];
    for dialect in BOTH {
        let view = valid(&record, dialect);
        let count = |kind| kinds(&view).iter().filter(|k| **k == kind).count();
        assert_eq!(count(RepairKind::RenamedCall), 3);
        assert_eq!(count(RepairKind::RenamedTool), 2);
        // The first is an object in a text, as OpenAI writes it.
        assert_eq!(count(RepairKind::WrappedInput), 2);
        assert_eq!(count(RepairKind::MissingResult) + count(RepairKind::OrphanResult), 0);
        let Block::ToolCall { input, .. } = &blocks(&view, 1)[0] else { panic!() };
        assert_eq!(*input, json!({"a": 1}));
    }
}

#[test]
fn texts_are_healed() {
    assert_eq!(heal_text("a\0b\u{fffd}\u{fffd}\u{fffd}c", false), "ab\u{fffd}c");
    assert_eq!(heal_text("\u{1b}[31mred\u{1b}[0m \u{1b}]0;title\u{7}x\u{8}\ty", true), "red x\ty");
    assert_eq!(heal_text("\u{1b}[31mred", false), "\u{1b}[31mred");
    assert!(matches!(heal_text("fine \u{fffd} text", true), std::borrow::Cow::Borrowed(_)));
    let view = valid(&[user("a\0b")], Dialect::Anthropic);
    assert_eq!(kinds(&view), [RepairKind::HealedText]);
    assert_eq!(view.messages[0].message.text(), "ab");
}

#[test]
fn json_with_lone_surrogates_parses_after_healing() {
    for (sick, text) in [
        (r#"{"role":"user","content":"x \ud83d"}"#, "x \u{fffd}"),
        (r#"{"role":"user","content":"\ude00 \ud83d\ude00 \\ud83d"}"#, "\u{fffd} 😀 \\ud83d"),
        ("{\"role\":\"user\",\"content\":\"a\u{0}b\nc\"}", "a\0b\nc"),
    ] {
        assert!(Message::from_json(sick.as_bytes()).is_err());
        let message = Message::from_json(heal_json(sick).as_bytes()).unwrap();
        assert_eq!(message.text(), text);
    }
    assert!(matches!(heal_json(r#"{"a":"\ud83d\ude00"}"#), std::borrow::Cow::Borrowed(_)));
}

#[test]
fn the_check_knows_a_bad_request() {
    for (bad, dialect) in [
        (json!([{"role": "assistant", "content": "x"}]), Dialect::Anthropic),
        (json!([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]), Dialect::Anthropic),
        (json!([{"role": "user", "content": ""}]), Dialect::Anthropic),
        (
            json!([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}]),
            Dialect::Anthropic,
        ),
        (
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "n", "input": {}}]}]),
            Dialect::Anthropic,
        ),
        (
            json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": "s"}]}]),
            Dialect::Anthropic,
        ),
        (json!([{"role": "tool", "tool_call_id": "a", "content": "x"}]), Dialect::OpenAi),
        (json!([{"role": "assistant", "content": null}]), Dialect::OpenAi),
        (
            json!([{"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "n", "arguments": "{}"}}]}, {"role": "user", "content": "x"}]),
            Dialect::OpenAi,
        ),
    ] {
        assert!(!check(bad.as_array().unwrap(), dialect).is_empty(), "{bad}");
    }
}

#[test]
fn a_hundred_thousand_broken_messages_take_no_more_than_they_should() {
    let record: Vec<Message> = (0..100_000).map(|i| if i % 2 == 0 { calls(&["same"]) } else { user("x") }).collect();
    let view = view(&record, Dialect::OpenAi);
    assert_eq!(check(&view.to_wire().messages, Dialect::OpenAi), []);
}
