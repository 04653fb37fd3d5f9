//! Expressions and templates when they run.

use milepost_run::graph::{Expression, Quote, check, render};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn expression(text: &str) -> Expression {
    let file = json!({"nodes": {"a": {"action": "mine"}}, "memory": {"n": null, "text": "x", "list": [1]}, "outputs": {"o": text}});
    let checked = check("g.json".as_ref(), &file.to_string(), &["mine"]);
    checked.graph.unwrap_or_else(|| panic!("{:?}", checked.found)).outputs.remove(0).1
}

fn names(memory: Value) -> Map<String, Value> {
    json!({"memory": memory, "outputs": {}, "session": "s"}).as_object().unwrap().clone()
}

fn evaluate(text: &str, memory: Value) -> Result<Value, String> {
    expression(text).evaluate(&names(memory))
}

#[test]
fn numbers_are_numbers_whatever_their_sign_or_point() {
    for n in [json!(-3), json!(0), json!(3), json!(2.5), json!(9_007_199_254_740_993i64)] {
        assert_eq!(evaluate("memory.n", json!({"n": n})).unwrap(), n);
        assert_eq!(evaluate("memory.n < 1000000000000000000", json!({"n": n})).unwrap(), json!(true), "{n}");
        assert_eq!(evaluate("memory.n == 3", json!({"n": n})).unwrap(), json!(n == json!(3)), "{n}");
    }
    assert_eq!(evaluate("memory.n + 1", json!({"n": 41})).unwrap(), json!(42));
    assert_eq!(evaluate("memory.list.map(x, x * 2)", json!({"list": [1, 2]})).unwrap(), json!([2, 4]));
    assert_eq!(
        evaluate("{'a': memory.text, 'b': [null, true]}", json!({"text": "x"})).unwrap(),
        json!({"a": "x", "b": [null, true]})
    );
}

#[test]
fn what_cannot_be_evaluated_says_why() {
    assert_eq!(evaluate("memory.n > 3", json!({})).unwrap_err(), "No such key: n");
    assert!(evaluate("memory.n > 3", json!({"n": "text"})).unwrap_err().contains("no matching overload"));
    assert!(evaluate("memory.n / 0", json!({"n": 1})).is_err());
    assert_eq!(
        expression("memory.n").holds(&names(json!({"n": 1}))).unwrap_err(),
        "it gives a number, not true or false"
    );
    assert!(expression("memory.n").holds(&names(json!({"n": true}))).unwrap());
}

#[test]
fn templates_fill_in_and_say_what_is_missing() {
    let names = names(json!({"topic": "logs", "list": ["a", "b"]}));
    assert_eq!(render("about {{ memory.topic | upper }}\n", &names, Quote::Plain).unwrap(), "about LOGS\n");
    assert_eq!(render("plain } text", &names, Quote::Plain).unwrap(), "plain } text");
    assert_eq!(
        render("{{ memory | tojson }}", &names, Quote::Plain).unwrap(),
        r#"{"list": ["a", "b"], "topic": "logs"}"#
    );
    assert!(render("{{ memory.nothing }}", &names, Quote::Plain).unwrap_err().contains("memory.nothing is not there"));
    assert!(
        render("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}", &names, Quote::Plain)
            .unwrap_err()
            .contains("MAX_TEMPLATE_FUEL")
    );
}

#[test]
fn what_is_filled_into_a_command_stays_one_word() {
    let names = names(json!({"file": "a b; rm -rf $HOME 'x'", "flag": "-l"}));
    assert_eq!(render("cat {{ memory.file }}", &names, Quote::Shell).unwrap(), r"cat 'a b; rm -rf $HOME '\''x'\'''");
    assert_eq!(render("ls {{ memory.flag }}", &names, Quote::Shell).unwrap(), "ls -l");
    assert_eq!(render("sh -c {{ memory.flag | safe }}", &names, Quote::Shell).unwrap(), "sh -c -l");
}

proptest! {
    /// A shell gives back exactly the text that was filled in.
    #[test]
    fn a_shell_reads_back_what_was_filled_in(text in "[^\0]{0,40}") {
        let names = names(json!({"text": text}));
        let line = render("printf %s {{ memory.text }}", &names, Quote::Shell).map_err(TestCaseError::fail)?;
        let given = std::process::Command::new("sh").arg("-c").arg(&line).output().unwrap();
        prop_assert_eq!(String::from_utf8_lossy(&given.stdout), text);
    }

    #[test]
    fn no_text_makes_the_check_fail_otherwise_than_by_saying_so(when in "\\PC{0,60}", command in "[{}%a-z.| ]{0,60}") {
        let file = json!({
            "nodes": {"a": {"action": "shell", "with": {"command": command}}, "b": {"action": "set", "with": {"x": {"cel": when}}}},
            "edges": [{"from": "a", "to": "b", "when": when}],
        });
        let checked = check("g.json".as_ref(), &file.to_string(), &[]);
        prop_assert_eq!(checked.graph.is_none(), checked.errors().next().is_some());
    }
}

/// JSON has one kind of number.
#[test]
fn whole_and_real_numbers_mix() {
    let given = |text: &str| evaluate(text, json!({"n": 7.5, "list": [1, 2.5]}));
    for (text, wanted) in [
        ("memory.n + 1", json!(8.5)),
        ("1 + memory.n", json!(8.5)),
        ("memory.list[0] * 2.0", json!(2.0)),
        ("memory.n - memory.list[0]", json!(6.5)),
        ("3 / memory.n", json!(0.4)),
        ("memory.n % 2", json!(1.5)),
        ("memory.list.map(x, x + 1)", json!([2, 3.5])),
        ("memory.list.filter(x, x * 2 > 2.5).size() + 0.5", json!(1.5)),
        ("[1] + [2.5]", json!([1, 2.5])),
        ("'a' + 'b'", json!("ab")),
        ("-(memory.n + 1) < 0 && memory.list[0] == 1.0 && memory.n < 8", json!(true)),
        ("1.0 in memory.list && 1 in memory.list", json!(true)),
        ("memory.list[0] + 1", json!(2)),
        ("7 / 2", json!(3)),
        ("{'a': memory.n + 1}", json!({"a": 8.5})),
        ("has(memory.n) ? memory.n * 2 : 0", json!(15.0)),
        ("int(memory.n + 1)", json!(8)),
    ] {
        assert_eq!(given(text), Ok(wanted), "{text}");
    }
    assert!(given("memory.n % 0").is_err());
    assert!(given("memory.n / 0").is_err());
    assert!(evaluate("memory.n + 1", json!({"n": "a"})).is_err());
}
