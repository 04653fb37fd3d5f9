//! Calls of tools in every usual shape, and what was said and spent, each counted once.

use serde_json::{Value, json};

use crate::support::{Place, Ran, number, text};
use crate::tour_store::KEY;

fn add(place: &Place, id: &str, message: Value) {
    let ran = place.run(&["messages", "add", id, "--from-json", &message.to_string()]);
    assert_eq!(ran.code, 0, "{message}: {ran:?}");
}

/// A call of the tool `search` for otters, as each of the usual tools writes it.
fn shapes() -> Vec<Value> {
    let arguments = json!({ "q": "otters" });
    vec![
        json!({ "role": "assistant", "content": [{ "type": "tool_call", "id": "c1", "name": "search", "input": arguments }] }),
        json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "c2", "name": "search", "input": arguments }] }),
        json!({ "role": "assistant", "content": null, "tool_calls": [
            { "id": "c3", "type": "function", "function": { "name": "search", "arguments": arguments.to_string() } },
        ] }),
        json!({ "role": "assistant", "content": "", "toolCalls": [{ "id": "c4", "name": "search", "input": arguments }] }),
        json!({ "role": "assistant", "content": "", "toolCalls": [{ "name": "search", "arguments": arguments }] }),
        json!({ "role": "assistant", "content": "", "function_call": { "name": "search", "arguments": arguments.to_string() } }),
    ]
}

#[test]
fn calls_of_tools_are_counted_and_shown_in_every_shape() {
    let place = Place::new();
    for shape in shapes() {
        let id = place.session("Calls", &["Look for otters"]);
        add(&place, &id, shape.clone());
        let figures = place.json(&["stats", &id, "--usage"]);
        assert_eq!((number(&figures, "/toolCallsCount"), number(&figures, "/byTool/search")), (1, 1), "{shape}");
        let said = r#"[calls search {"q":"otters"}]"#;
        for args in [&["messages", "list", &id][..], &["sessions", "show", &id]] {
            let shown = place.ok(args);
            assert!(shown.contains(said), "{shape}: {shown}");
        }
        let document = place.ok(&["sessions", "export", &id, "--format", "markdown"]);
        assert!(document.contains("<summary>Tool call: search</summary>"), "{shape}: {document}");
        assert!(document.contains("\"q\": \"otters\"") && !document.contains("tool_use"), "{shape}: {document}");
    }
}

/// A message that only calls a tool makes the others no shorter, and has a length of its own.
#[test]
fn the_average_length_is_that_of_texts() {
    let place = Place::new();
    for (number_of, shape) in shapes().into_iter().enumerate() {
        let id = place.session("Lengths", &["ten chars.", "ten chars too, and ten"]);
        add(&place, &id, shape.clone());
        add(
            &place,
            &id,
            json!({ "role": "tool", "tool_call_id": format!("c{}", number_of + 1), "content": "three otters!" }),
        );
        let figures = place.json(&["stats", &id, "--usage"]);
        let counts = (number(&figures, "/totalMessages"), number(&figures, "/messagesWithText"));
        assert_eq!(counts, (4, 2), "{shape}");
        assert_eq!(figures["averageMessageLength"], json!(16.0), "{shape}");
        // `search` and `otters`, on two lines; `three otters!`.
        assert_eq!(figures["averageToolLength"], json!(13.0), "{shape}");
        let shown = place.ok(&["stats", &id, "--usage"]);
        assert!(shown.contains("16 characters of text, in the 2 that have any"), "{shown}");
        assert!(shown.contains("1, 0 failed; 13 characters in the average call or result"), "{shown}");
    }
}

#[test]
fn results_of_tools_are_shown_in_every_shape() {
    let place = Place::new();
    let results = [
        json!({ "role": "user", "content": [{ "type": "tool_result", "call_id": "c1", "content": "three otters" }] }),
        json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c1", "content": [{ "type": "text", "text": "three otters" }] }] }),
        json!({ "role": "tool", "tool_call_id": "c1", "content": "three otters" }),
        json!({ "role": "user", "content": "", "toolResults": [{ "callId": "c1", "content": "three otters" }] }),
    ];
    for result in results {
        let id = place.session("Results", &[]);
        add(&place, &id, result.clone());
        let shown = place.ok(&["messages", "list", &id]);
        assert!(shown.contains("three otters") && !shown.contains("tool_use_id"), "{result}: {shown}");
        let document = place.ok(&["sessions", "export", &id, "--format", "markdown"]);
        assert!(document.contains("<summary>Tool result</summary>") && document.contains("three otters"), "{document}");
    }
}

fn spend(place: &Place, id: &str, said: &str, cost: f64) {
    let usage = json!({ "input_tokens": 10, "output_tokens": 5, "costUsd": cost });
    add(place, id, json!({ "role": "assistant", "content": said, "usage": usage }));
}

/// Messages, tokens and thousandths of dollars.
fn spent(figures: &Value, at: &str) -> (u64, u64, u64) {
    let cost = figures.pointer(&format!("{at}/usage/costUsd")).and_then(Value::as_f64).unwrap();
    let tokens =
        number(figures, &format!("{at}/usage/inputTokens")) + number(figures, &format!("{at}/usage/outputTokens"));
    (number(figures, &format!("{at}/totalMessages")), tokens, (cost * 1000.0).round() as u64)
}

#[test]
fn what_was_said_and_spent_counts_once_where_it_was_written() {
    let place = Place::new();
    let id = place.session("Trunk", &[]);
    spend(&place, &id, "one", 0.5);
    let mark = place.ok(&["checkpoint", &id, "--label", "fork"]);
    spend(&place, &id, "left behind", 0.25);
    place.ok(&["sessions", "restore", &id, &mark]);
    spend(&place, &id, "instead", 0.125);
    let branches: Vec<String> = (0..3).map(|_| place.ok(&["sessions", "branch", &id, "--checkpoint", &mark])).collect();
    spend(&place, &branches[0], "on the branch", 1.0);
    let all = place.json(&["stats", "--usage"]);
    assert_eq!(spent(&all, "/total"), (4, 60, 1875), "{all:#}");
    let days: f64 = all["days"].as_array().unwrap().iter().map(|day| day["usage"]["costUsd"].as_f64().unwrap()).sum();
    assert!((days - 1.875).abs() < 1e-9, "{all:#}");
    let trunk = place.json(&["stats", &id, "--usage"]);
    assert_eq!((spent(&trunk, ""), number(&trunk, "/leftMessages")), ((3, 45, 875), 1), "{trunk:#}");
    let branch = place.json(&["stats", &branches[0], "--usage"]);
    assert_eq!((spent(&branch, ""), number(&branch, "/sharedMessages")), ((1, 15, 1000), 1), "{branch:#}");
    assert_eq!(spent(&place.json(&["stats", &branches[1], "--usage"]), ""), (0, 0, 0));
    // A branch that was away stands by itself, with a copy of what it shares.
    let archive = format!("sqlite:{}", place.file("archive.db").display());
    place.ok(&["sessions", "archive", &branches[0], "--to", &archive]);
    place.ok(&["sessions", "unarchive", &branches[0]]);
    assert_eq!(spent(&place.json(&["stats", "--usage"]), "/total"), (4, 60, 1875));
    let shown = place.ok(&["stats", &id, "--usage"]);
    assert!(shown.contains("1 of them left behind by restores") && shown.contains("$0.2500 of it left"), "{shown}");
}

#[test]
fn what_cannot_be_read_does_not_stop_the_counting() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("MILEPOST_ENCRYPTION_ENABLED", "true").env("MILEPOST_KEY", KEY);
        Ran::of(command.output().unwrap())
    };
    let ids: Vec<String> = (0..2).map(|_| run(&["sessions", "new"]).out.trim().to_owned()).collect();
    ids.iter().for_each(|id| assert_eq!(run(&["messages", "add", id, "hello"]).code, 0));
    assert_eq!(run(&["keys", "shred", &ids[0], "--yes"]).code, 0);
    let ran = run(&["--json", "stats", "--usage"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let all: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((number(&all, "/total/totalMessages"), text(&all, "/uncounted/0/0")), (1, ids[0].as_str()), "{all:#}");
}

#[test]
fn cost_and_triggers_are_told_day_by_day() {
    let place = Place::new();
    let id = place.session("Spent", &[]);
    let usage = json!({
        "prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": { "cached_tokens": 64 }, "costUsd": 0.5,
    });
    add(&place, &id, json!({ "role": "assistant", "content": "done", "usage": usage }));
    place.ok(&["checkpoint", &id, "--label", "paid"]);
    let all = place.json(&["stats", "--usage"]);
    let days = all["days"].as_array().unwrap();
    let triggers = |name: &str| -> u64 { days.iter().map(|day| day["byTrigger"][name].as_u64().unwrap_or(0)).sum() };
    assert_eq!((triggers("initial"), triggers("manual")), (1, 1), "{all:#}");
    assert_eq!(number(&all, "/total/usage/cachedTokens"), 64);
    let shown = place.ok(&["stats", "--usage"]);
    assert!(
        shown.contains("cost a day") && shown.contains("$0.5000") && shown.contains("checkpoints a day"),
        "{shown}"
    );
}

#[test]
fn the_space_of_one_session_is_its_own_and_pruning_goes_by_its_policy() {
    let place = Place::new();
    let other = place.session("Other", &["one", "two", "three"]);
    let id = place.ok(&["sessions", "new", "--policy", "max_checkpoints=1", "--policy", "prune_after_node_count=0"]);
    place.ok(&["messages", "add", &id, "only one"]);
    (0..3).for_each(|_| drop(place.ok(&["checkpoint", &id, "--type", "interval"])));
    let shown = place.ok(&["stats", &id]);
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{shown}"));
    assert!(line("messages").ends_with(" in 1") && line("marks").ends_with(" in 4"), "{shown}");
    let figures = place.json(&["stats", &id]);
    assert_eq!(text(&figures, "/sessionId"), id);
    assert!(number(&figures, "/prunableBytes") > 0, "{figures:#}");
    assert_eq!(number(&figures, "/prunableBytes"), number(&place.json(&["stats"]), "/prunableBytes"));
    assert_eq!(number(&place.json(&["stats", &other]), "/prunableBytes"), 0);
    let gone = format!("ses_{}", "0".repeat(26));
    assert_eq!(place.run(&["stats", &gone]).code, 3);
}

#[test]
fn tokens_that_were_written_to_a_cache_or_read_from_it_count() {
    let place = Place::new();
    let id = place.session("Cached", &[]);
    let usage = json!({
        "input_tokens": 10, "cache_creation_input_tokens": 1000, "cache_read_input_tokens": 5000, "output_tokens": 5,
    });
    add(&place, &id, json!({ "role": "assistant", "content": "done", "usage": usage }));
    let all = place.json(&["stats", "--usage"]);
    let part = |name: &str| number(&all, &format!("/total/usage/{name}"));
    assert_eq!((part("inputTokens"), part("outputTokens")), (6010, 5));
    assert_eq!((part("cachedTokens"), part("cacheWriteTokens")), (5000, 1000));
    let shown = place.ok(&["stats", "--usage", &id]);
    assert!(shown.contains("6010 in, 5 out, 5000 cached, 1000 written to the cache"), "{shown}");
}

#[test]
fn a_comparison_tells_what_each_side_cost_since_they_part() {
    let place = Place::new();
    let id = place.session("Trunk", &[]);
    let say = |session: &str, tokens: u64, cost: f64| {
        let usage = json!({ "input_tokens": 10 * tokens, "output_tokens": tokens });
        let message = json!({ "role": "assistant", "content": "an answer", "usage": usage, "costUsd": cost });
        let ran = place.run_with(&["messages", "add", session, "--from-json", "-"], message.to_string().as_bytes());
        assert_eq!(ran.code, 0, "{ran:?}");
    };
    say(&id, 1000, 8.0);
    place.ok(&["checkpoint", &id, "--label", "fork"]);
    let branch = place.ok(&["sessions", "branch", &id]);
    let branch = branch.split_whitespace().next().unwrap();
    say(&id, 3, 0.25);
    say(branch, 5, 0.5);
    say(branch, 2, 1.0);
    for session in [&id, branch] {
        place.ok(&["checkpoint", session, "--label", "end"]);
    }
    let (a, b) = (format!("{id}@end"), format!("{branch}@end"));
    let diff = place.json(&["sessions", "diff", &a, &b]);
    let of =
        |side: &str| (number(&diff, &format!("/{side}/inputTokens")), number(&diff, &format!("/{side}/outputTokens")));
    assert_eq!((of("usageA"), of("usageB")), ((30, 3), (70, 7)));
    assert_eq!((&diff["usageA"]["costUsd"], &diff["usageB"]["costUsd"]), (&json!(0.25), &json!(1.5)));
    let shown = place.ok(&["sessions", "diff", &a, &b]);
    let line = shown.lines().find(|line| line.starts_with("cost since they part")).unwrap_or_else(|| panic!("{shown}"));
    assert!(line.contains("0.25") && line.contains("1.50"), "{line}");
}
