use milepost_context::tokens::{IMAGE_TOKENS, MESSAGE_OVERHEAD, PIECE_BYTES, Tokenizer};
use milepost_model::{Block, Message, Role};
use proptest::prelude::*;
use serde_json::{Map, json};

#[test]
fn counts_are_those_of_the_public_vocabularies() {
    // Counted once with an independent implementation of the same vocabularies.
    for (text, o200k, cl100k) in [
        ("", 0, 0),
        ("Hello, world!", 4, 4),
        ("fn main() { println!(\"hi\"); }", 9, 9),
        ("日本語のテキスト", 6, 8),
        ("   \n\n  x", 3, 3),
        ("naïve café — 3.14159 / 1,000,000", 17, 17),
        ("'twas I'll don't WE'RE", 7, 8),
        ("{\"key\": [1, 2, null], \"päth\": \"C:\\\\x\"}", 20, 21),
        ("🙂👨\u{200d}👩\u{200d}👧 done", 10, 16),
        ("<|endoftext|>", 7, 7),
    ] {
        assert_eq!(Tokenizer::for_model("gpt-5").count_text(text), o200k, "{text:?}");
        assert_eq!(Tokenizer::for_model("gpt-4").count_text(text), cl100k, "{text:?}");
    }
}

#[test]
fn a_model_s_name_says_how_it_is_counted() {
    for (model, vocabulary, exact) in [
        ("gpt-5-mini", "o200k_base", true),
        ("GPT-4o-2024-08-06", "o200k_base", true),
        ("openai/gpt-4.1", "o200k_base", true),
        ("gpt-4-turbo", "cl100k_base", true),
        ("claude-opus-4-1", "o200k_base", false),
        ("anthropic/claude-3-haiku", "o200k_base", false),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", "o200k_base", false),
        ("a-model-of-tomorrow", "o200k_base", false),
        ("", "o200k_base", false),
        ("://", "o200k_base", false),
    ] {
        let tokenizer = Tokenizer::for_model(model);
        assert_eq!((tokenizer.vocabulary(), tokenizer.is_exact()), (vocabulary, exact), "{model}");
    }
}

#[test]
fn an_estimate_is_above_its_vocabulary() {
    let text = "An estimate has to be on the safe side of the budget.".repeat(40);
    let exact = Tokenizer::default().count_text(&text);
    assert_eq!(Tokenizer::for_model("claude-x").count_text(&text), (exact * 135).div_ceil(100));
    assert_eq!(Tokenizer::for_model("unknown").count_text(&text), (exact * 120).div_ceil(100));
}

#[test]
fn a_huge_text_of_one_character_is_counted() {
    let tokenizer = Tokenizer::default();
    for c in ["a", " ", "=", "é", "\n", "🙂"] {
        let small = tokenizer.count_text(&c.repeat(PIECE_BYTES / c.len()));
        let large = tokenizer.count_text(&c.repeat(1_048_576 / c.len()));
        let pieces = 1_048_576 / PIECE_BYTES;
        assert!(large.abs_diff(small * pieces) <= pieces * 3, "{c:?}: {small} × {pieces} is not about {large}");
    }
}

#[test]
fn cutting_prose_changes_no_count() {
    let prose =
        "The quick brown fox jumps over 13 lazy dogs; it's a pity, isn't it?\n\n  let x = y + 1;\n".repeat(2000);
    let lines: usize = Tokenizer::default().count_text(&prose);
    let one = Tokenizer::default().count_text(&prose[..prose.len() / 2000]);
    assert_eq!(lines, one * 2000);
}

#[test]
fn counting_stops_at_the_limit() {
    let tokenizer = Tokenizer::default();
    let text = "word ".repeat(100_000);
    assert_eq!(tokenizer.count_up_to(&text, 100), None);
    assert_eq!(tokenizer.count_up_to("three small words", 3), Some(3));
}

#[test]
fn a_message_costs_its_content_and_what_is_around_it() {
    let tokenizer = Tokenizer::default();
    assert_eq!(tokenizer.count_message(&Message::new(Role::User, "Hello, world!")), 4 + MESSAGE_OVERHEAD);
    let call = Message::blocks(Role::Assistant, vec![Block::tool_call("c1", "ls", json!({"path": "src"}))]);
    assert!(tokenizer.count_message(&call) > MESSAGE_OVERHEAD + 8);
    let data = "iVBORw0KGgo".repeat(10_000);
    let picture = Block::Image { source: json!({"media_type": "image/png", "data": data}), extra: Map::new() };
    let result = Block::tool_result("c1", json!([{"type": "image", "source": {"data": data}}]));
    for block in [picture, result] {
        let tokens = tokenizer.count_message(&Message::blocks(Role::User, vec![block]));
        assert!((IMAGE_TOKENS..IMAGE_TOKENS + 40).contains(&tokens));
    }
    // Calls and results that stand beside the content.
    for name in ["tool_calls", "toolCalls", "tool_results", "toolResults"] {
        let mut beside = Message::new(Role::Assistant, "");
        beside.extra.insert(name.into(), json!([{"id": "c1", "arguments": "word ".repeat(100)}]));
        assert!(tokenizer.count_message(&beside) > 100, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counting_is_total_and_bounded_by_the_bytes(text in any::<String>()) {
        let tokens = Tokenizer::default().count_text(&text);
        prop_assert!(tokens <= text.len());
        prop_assert_eq!(tokens == 0, text.is_empty());
    }
}
