use milepost_context::compact::Summary;
use milepost_context::history::{Dialect, check};
use milepost_context::request::{
    AgentDescription, Context, DEFAULT_BUDGET, RESERVED_FOR_PROMPT, RequestError, RequestParts, build_messages,
    build_request, context_parts, estimate_request_size,
};
use milepost_context::tokens::Tokenizer;
use milepost_model::{Block, Message, Role};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

fn parts() -> RequestParts {
    RequestParts {
        agent: AgentDescription::built_in("dev").unwrap(),
        context: Context::Structured(json!({
            "sessionId": "s", "tokens": 12, "type": "dev-task",
            "project": {"structure": "src/\n  main.rs", "claudeMd": "Use tabs.", "recentCommits": ["abc Fix"]},
            "task": {"title": "Login", "description": "Make it work", "dependencies": []},
        })),
        summary: Some(Summary {
            version: 2,
            completed_items: strings(&["wrote the form"]),
            pending_items: strings(&["wire it up"]),
            decisions: strings(&["no cookies"]),
            blockers: strings(&["no test account"]),
            ..Summary::default()
        }),
        messages: vec![Message::new(Role::User, "first words"), Message::new(Role::Assistant, "second words")],
        user_prompt: "go on".into(),
        ..RequestParts::default()
    }
}

#[test]
fn the_parts_stand_in_their_order() {
    let request = build_request(&parts(), DEFAULT_BUDGET, &Tokenizer::default()).unwrap();
    let places: Vec<usize> = [
        "# Role",
        "# Instructions",
        "# Context",
        "Login",
        "Use tabs.",
        "main.rs",
        "# Work progress",
        "wrote the form",
        "wire it up",
        "no cookies",
        "no test account",
        "# Recent conversation",
        "user: first words",
        "assistant: second words",
    ]
    .iter()
    .map(|part| request.system_prompt.find(part).unwrap_or_else(|| panic!("{part} in {}", request.system_prompt)))
    .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(request.user_prompt, "go on");
    assert_eq!(request.left_out, []);
    let json = serde_json::to_value(&request).unwrap();
    assert!(json["systemPrompt"].is_string() && json["userPrompt"].is_string() && json["totalTokens"].is_number());
    assert!(!request.system_prompt.contains("sessionId"));
}

#[test]
fn what_does_not_fit_is_shed_in_the_stated_order() {
    let tokenizer = Tokenizer::default();
    let mut parts = parts();
    parts.messages[0] = Message::new(Role::User, format!("first words {}", "and more ".repeat(200)));
    let whole = build_request(&parts, DEFAULT_BUDGET, &tokenizer).unwrap();
    let mut stages = Vec::new();
    for budget in (0..=whole.total_tokens).rev() {
        let Ok(request) = build_request(&parts, budget, &tokenizer) else { break };
        assert!(request.total_tokens <= budget);
        let has = |part: &str| request.system_prompt.contains(part);
        let stage = [
            has("first words"),
            has("second words"),
            has("main.rs"),
            has("Login"),
            has("wrote the form"),
            has("wire it up"),
        ];
        if stages.last() != Some(&stage) {
            stages.push(stage);
        }
    }
    assert_eq!(stages.first(), Some(&[true; 6]));
    assert_eq!(stages.last(), Some(&[false; 6]));
    assert_eq!(stages.get(1), Some(&[false, true, true, true, true, true]), "the oldest message goes first");
    for [first, second, structure, task, done, to_do] in stages {
        assert!(first <= second && structure <= task && done <= to_do, "the less worthy goes first");
        assert!((task || structure) <= done, "the context goes before the work progress");
    }
}

#[test]
fn work_progress_is_shed_item_by_item_and_pinned_facts_last() {
    let tokenizer = Tokenizer::default();
    let mut parts = RequestParts { context: Context::None, messages: Vec::new(), ..parts() };
    let items = ["an old item", "a new item", "no cookies", "no test account", "wire it up", "the port is 8443"];
    parts.summary = Some(Summary {
        completed_items: strings(&items[..2]),
        decisions: strings(&items[2..3]),
        blockers: strings(&items[3..4]),
        pending_items: strings(&items[4..5]),
        pinned_facts: strings(&items[5..]),
        ..Summary::default()
    });
    let whole = build_request(&parts, DEFAULT_BUDGET, &tokenizer).unwrap();
    let mut left = Vec::new();
    for budget in (0..=whole.total_tokens).rev() {
        let Ok(request) = build_request(&parts, budget, &tokenizer) else { break };
        let shown: Vec<&str> = items.into_iter().filter(|item| request.system_prompt.contains(item)).collect();
        let told: usize =
            request.left_out.iter().filter_map(|left| left.what.split(' ').next()?.parse::<usize>().ok()).sum();
        assert_eq!(shown.len() + told, items.len(), "{:?}", request.left_out);
        left.push(shown);
    }
    left.dedup();
    let expected: Vec<Vec<&str>> = (0..=items.len()).map(|from| items[from..].to_vec()).collect();
    assert_eq!(left, expected);
}

#[test]
fn the_prompt_is_never_cut() {
    let tokenizer = Tokenizer::default();
    let long = RequestParts { user_prompt: "word ".repeat(500), ..parts() };
    let error = build_request(&long, 400, &tokenizer).unwrap_err();
    let RequestError::TooLarge { what, budget, .. } = &error;
    assert_eq!((*what, *budget), ("the user's prompt", 400));
    assert!(error.to_string().contains("the limit budget is 400"));
    let RequestError::TooLarge { what, .. } = build_request(&parts(), 30, &tokenizer).unwrap_err();
    assert_eq!(what, "the agent's description with the user's prompt");
}

#[test]
fn only_the_last_messages_are_shown() {
    let messages = (0..80).map(|i| Message::new(Role::User, format!("message number {i}."))).collect();
    let request = build_request(&RequestParts { messages, ..parts() }, DEFAULT_BUDGET, &Tokenizer::default()).unwrap();
    assert!(!request.system_prompt.contains("number 29.") && request.system_prompt.contains("number 30."));
    assert_eq!(request.left_out[0].what, "30 older messages");
}

#[test]
fn a_long_context_is_cut_at_a_line() {
    let text: String = (0..5000).map(|i| format!("line {i} of the context\n")).collect();
    let parts = RequestParts { context: Context::Text(text), messages: vec![], ..parts() };
    let request = build_request(&parts, 2_000, &Tokenizer::default()).unwrap();
    assert!(request.total_tokens <= 2_000 && request.total_tokens > 1_700, "{}", request.total_tokens);
    assert!(request.system_prompt.contains("line 100 of the context\n") && request.system_prompt.contains("… (cut)"));
    assert!(request.left_out.iter().any(|left| left.what == "context: context"));
}

#[test]
fn a_huge_context_leaves_room_for_the_newest_messages() {
    let parts = RequestParts { context: Context::Text("line of context\n".repeat(20_000)), ..parts() };
    let request = build_request(&parts, 2_000, &Tokenizer::default()).unwrap();
    assert!(request.system_prompt.contains("second words"));
    let request = build_messages(&parts, Dialect::Anthropic, 2_000, &Tokenizer::default()).unwrap();
    assert!(request.view.messages.iter().any(|seen| seen.message.text() == "second words"));
}

#[test]
fn an_estimate_keeps_room_for_the_prompt() {
    let tokenizer = Tokenizer::default();
    let request =
        build_request(&RequestParts { user_prompt: String::new(), ..parts() }, DEFAULT_BUDGET, &tokenizer).unwrap();
    assert_eq!(estimate_request_size(&parts(), &tokenizer), request.total_tokens + RESERVED_FOR_PROMPT);
    let reserved = RequestParts { reserve_tokens: 25_000, ..parts() };
    assert_eq!(estimate_request_size(&reserved, &tokenizer), request.total_tokens + 25_000);
}

#[test]
fn the_kinds_of_agents_are_there() {
    for kind in ["pm", "dev", "qa", "harness", "merge"] {
        let agent = AgentDescription::built_in(kind).unwrap();
        assert_eq!(agent.agent_type, kind);
        assert!(!agent.role.is_empty() && !agent.instructions.is_empty() && !agent.allowed_tools.is_empty());
        let json = serde_json::to_value(&agent).unwrap();
        assert!(
            json["agentType"].is_string() && json["allowedTools"].is_array() && json["toolInstructions"].is_string()
        );
    }
    assert_eq!(AgentDescription::kinds().len(), 5);
    assert_eq!(AgentDescription::built_in("other"), None);
}

#[test]
fn the_most_important_part_of_a_context_comes_first() {
    let names: Vec<String> = context_parts(&parts().context).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["type", "task", "project.claudeMd", "project.recentCommits", "project.structure"]);
    assert_eq!(context_parts(&Context::Structured(Value::Null)), []);
}

#[test]
fn messages_form_has_a_valid_window() {
    let tokenizer = Tokenizer::default();
    let mut messages = vec![Message::new(Role::User, "start")];
    for i in 0..30 {
        messages.push(Message::blocks(
            Role::Assistant,
            vec![Block::tool_call(format!("c{i}"), "read", json!({"path": "x"}))],
        ));
        messages
            .push(Message::blocks(Role::User, vec![Block::tool_result(format!("c{i}"), json!("content ".repeat(20)))]));
    }
    let parts = RequestParts { messages, ..parts() };
    for budget in [400, 700, 1200, 5000] {
        for dialect in [Dialect::Anthropic, Dialect::OpenAi] {
            let request = build_messages(&parts, dialect, budget, &tokenizer).unwrap();
            assert!(request.total_tokens <= budget);
            let wire = request.view.to_wire();
            assert_eq!(check(&wire.messages, dialect), []);
            assert!(wire.messages.last().unwrap().to_string().contains("go on"));
            assert!(!request.system_prompt.contains("Recent conversation"));
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-zA-Z ,.\n]{0,60}", 1 => any::<String>(), 1 => "[\0\u{1}\u{fffd}\u{fdd0}🦀é]{0,40}", 1 => "[ =\n]{0,200}", 1 => "(word ){0,300}"]
}

fn some_parts() -> impl Strategy<Value = RequestParts> {
    let list = || prop::collection::vec(text(), 0..4);
    let context = prop_oneof![
        Just(Context::None),
        text().prop_map(Context::Text),
        (text(), text(), list()).prop_map(|(a, b, c)| Context::Structured(
            json!({"task": a, "project": {"structure": b, "recentCommits": c}, "x": [[{"y": a}]]})
        )),
    ];
    let summary = prop::option::of((list(), list(), list(), list(), list()).prop_map(
        |(completed_items, pending_items, decisions, blockers, pinned_facts)| Summary {
            completed_items,
            pending_items,
            decisions,
            blockers,
            pinned_facts,
            ..Summary::default()
        },
    ));
    let agent = (text(), list(), list()).prop_map(|(role, instructions, allowed_tools)| AgentDescription {
        role,
        instructions,
        allowed_tools,
        ..AgentDescription::default()
    });
    let message = (any::<bool>(), text(), 0usize..9).prop_map(|(user, text, kind)| match kind {
        2 => {
            let picture = Block::Image { source: json!({"media_type": "image/png", "data": text}), extra: Map::new() };
            Message::blocks(Role::User, vec![Block::text(text), picture])
        }
        3 => Message::blocks(Role::Assistant, vec![Block::from(json!({"type": "document", "title": text}))]),
        4 => {
            let mut beside = Message::new(Role::Assistant, text.as_str());
            beside.extra.insert("toolCalls".into(), json!([{"id": text, "name": "t", "arguments": {"a": text}}]));
            beside.extra.insert("toolResults".into(), json!([{"callId": text, "output": text}]));
            beside
        }
        0 => Message::blocks(Role::Assistant, vec![Block::tool_call(text.as_str(), "t", json!({"a": text}))]),
        1 => Message::blocks(Role::User, vec![Block::tool_result(text.as_str(), json!(text))]),
        _ => Message::new(if user { Role::User } else { Role::Assistant }, text),
    });
    (agent, context, summary, prop::collection::vec(message, 0..8), 0usize..10, text()).prop_map(
        |(agent, context, summary, messages, last_messages, user_prompt)| RequestParts {
            agent,
            context,
            summary,
            messages,
            last_messages,
            user_prompt,
            ..RequestParts::default()
        },
    )
}

fn tokenizer() -> impl Strategy<Value = Tokenizer> {
    prop_oneof![Just(Tokenizer::default()), Just(Tokenizer::for_model("claude-x"))]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_request_is_never_over_its_budget(parts in some_parts(), budget in 0usize..1500, tokenizer in tokenizer()) {
        let built = build_request(&parts, budget, &tokenizer);
        prop_assert_eq!(&built, &build_request(&parts, budget, &tokenizer));
        if let Ok(request) = built {
            let counted = tokenizer.count_text(&request.system_prompt) + tokenizer.count_text(&request.user_prompt);
            prop_assert!(counted <= request.total_tokens && request.total_tokens <= budget);
            prop_assert_eq!(request.user_prompt, parts.user_prompt);
        }
    }

    #[test]
    fn a_request_of_messages_is_never_over_its_budget_and_valid(parts in some_parts(), budget in 0usize..4000, anthropic in any::<bool>(), tokenizer in tokenizer()) {
        let dialect = if anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
        if let Ok(request) = build_messages(&parts, dialect, budget, &tokenizer) {
            let messages = tokenizer.count_messages(request.view.messages.iter().map(|seen| &seen.message));
            prop_assert!(tokenizer.count_text(&request.system_prompt) + messages <= request.total_tokens);
            prop_assert!(request.total_tokens <= budget, "{} > {}", request.total_tokens, budget);
            prop_assert_eq!(check(&request.view.to_wire().messages, dialect), vec![]);
        }
    }

    /// The errors say how much is needed; with exactly that there is a request, and it keeps to it.
    #[test]
    fn the_least_budget_is_enough_and_kept(parts in some_parts(), more in 0usize..12, anthropic in any::<bool>(), tokenizer in tokenizer()) {
        let dialect = if anthropic { Dialect::Anthropic } else { Dialect::OpenAi };
        let mut least = 0;
        while let Err(RequestError::TooLarge { tokens, .. }) = build_request(&parts, least, &tokenizer) {
            prop_assert!(tokens > least, "{tokens} is no more than {least}");
            least = tokens;
        }
        let budget = least + more;
        let request = build_request(&parts, budget, &tokenizer).unwrap();
        prop_assert!(request.total_tokens <= budget);
        let request = build_messages(&parts, dialect, budget, &tokenizer).unwrap();
        prop_assert!(request.total_tokens <= budget, "{} > {}", request.total_tokens, budget);
        prop_assert_eq!(check(&request.view.to_wire().messages, dialect), vec![]);
    }

    #[test]
    fn with_room_for_all_nothing_is_left_out(parts in some_parts()) {
        let parts = RequestParts { last_messages: parts.messages.len(), ..parts };
        let request = build_request(&parts, 1_000_000, &Tokenizer::default()).unwrap();
        prop_assert_eq!(request.left_out, vec![]);
    }
}
