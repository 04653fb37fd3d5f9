//! What a document reads as, where its values stand, and what is refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use milepost_document::{
    Data, Diagnostic, Format, Limit, Limits, Node, Origin, Reader, nearest, parse_duration_ms, read, show_duration,
};
use proptest::prelude::*;
use serde_json::json;

const LIMITS: Limits = Limits {
    bytes: Limit { name: "MAX_BYTES", at: 4096 },
    depth: Limit { name: "MAX_DEPTH", at: 8 },
    values: Limit { name: "MAX_VALUES", at: 64 },
};

fn tree(text: &str, format: Format) -> Result<Node, Vec<Diagnostic>> {
    let mut found = Vec::new();
    let tree = read("f".as_ref(), text, format, &LIMITS, &mut found);
    match tree {
        Some(tree) if found.is_empty() => Ok(tree),
        _ => Err(found),
    }
}

fn told(text: &str, format: Format) -> String {
    let found = tree(text, format).unwrap_err();
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

const YAML: &str = "name: tour\ncount: 3\nratio: -1.5e3\nyes: true\nword: no\nquoted: \"3\"\nhex: 0x1F\nnone: ~\nlist: [1, two]\nbelow:\n  text: |\n    first\n    second\n";
const TOML: &str = "name = \"tour\"\ncount = 3\nratio = -1.5e3\nyes = true\nword = \"no\"\nquoted = \"3\"\nhex = 0x1F\nlist = [1, \"two\"]\n\n[below]\ntext = '''\nfirst\nsecond\n'''\n";

#[test]
fn yaml_and_toml_read_as_the_same_values_in_the_order_of_the_file() {
    let yaml = tree(YAML, Format::Yaml).unwrap();
    let toml = tree(TOML, Format::Toml).unwrap();
    let mut wanted = json!({
        "name": "tour", "count": 3, "ratio": -1500.0, "yes": true, "word": "no", "quoted": "3", "hex": 31,
        "list": [1, "two"], "below": {"text": "first\nsecond\n"}, "none": null
    });
    assert_eq!(yaml.to_json(), wanted);
    wanted.as_object_mut().unwrap().remove("none");
    assert_eq!(toml.to_json(), wanted);
    let Data::Map(items) = &toml.data else { panic!("{toml:?}") };
    let names: Vec<_> = items.iter().map(|(key, _, _)| key.as_str()).collect();
    assert_eq!(names, ["name", "count", "ratio", "yes", "word", "quoted", "hex", "list", "below"]);
}

/// The line and column of a character of a text, looked up in the file, is that character.
#[test]
fn a_character_of_a_text_is_found_in_the_file() {
    let yaml = "a: plain text\nb: 'single quoted'\nc: \"double quoted\"\nd:\n  e: |\n\n    x\n      deep\n    ünd z\n";
    let toml = "a = \"basic\"\nb = 'literal'\n[t]\nc = \"\"\"\nmore\nthan one\n\"\"\"\nd = '''now ünd\nthen'''\n";
    let mut seen = 0;
    for (text, format) in [(yaml, Format::Yaml), (toml, Format::Toml)] {
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        let mut open = vec![tree(text, format).unwrap()];
        while let Some(node) = open.pop() {
            match &node.data {
                Data::Map(items) => open.extend(items.iter().map(|(_, _, node)| node.clone())),
                Data::Text { text, .. } => {
                    for (line, content) in text.lines().enumerate() {
                        for (column, c) in content.chars().enumerate() {
                            let Origin::File { line, column, .. } = node.place(line, column) else { panic!() };
                            assert_eq!(lines[line - 1].get(column - 1), Some(&c), "{text:?} at {line}:{column}");
                            seen += 1;
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(seen > 80, "{seen}");
}

#[test]
fn a_text_that_reads_otherwise_than_it_is_written_has_the_place_of_the_whole() {
    let yaml = tree("a: >\n  one\n  two\nb: plain\n  over two lines\n", Format::Yaml).unwrap();
    assert_eq!(yaml.get("a").unwrap().place(0, 5).to_string(), "f:2:3");
    assert_eq!(yaml.get("b").unwrap().place(0, 9).to_string(), "f:4:4");
    let toml = tree("a = \"with \\t escape\"\n", Format::Toml).unwrap();
    assert_eq!(toml.get("a").unwrap().place(0, 9).to_string(), "f:1:5");
}

#[test]
fn what_does_not_parse_is_told_with_its_place() {
    assert!(told("a: [1, 2\nb: 3\n", Format::Yaml).starts_with("f:2:"), "{}", told("a: [1, 2\nb: 3\n", Format::Yaml));
    assert!(told("a = [1,\nb 3\n", Format::Toml).starts_with("f:2:"), "{}", told("a = [1,\nb 3\n", Format::Toml));
    assert!(told("a = 1\na = 2\n", Format::Toml).starts_with("f:2:1: this is not TOML: "));
    assert_eq!(
        told("a: 1\na: 2\n", Format::Yaml),
        "f:2:1: the key \"a\" stands here a second time; the first is at f:1:1; keep one of them"
    );
    assert!(told("a: 1\n---\nb: 2\n", Format::Yaml).contains("a second document begins here"));
    assert!(told("a: !mine 1\n", Format::Yaml).contains("means nothing here"));
}

#[test]
fn what_is_too_large_names_its_limit() {
    let big = format!("a: {}", "x".repeat(5000));
    for format in [Format::Yaml, Format::Toml] {
        assert!(told(&big, format).contains("the limit MAX_BYTES is 4096"));
    }
    let deep = format!("a: {}{}", "[".repeat(20), "]".repeat(20));
    assert!(told(&deep, Format::Yaml).contains("the limit MAX_DEPTH, 8"), "{}", told(&deep, Format::Yaml));
    let deep = format!("a = {}{}", "[".repeat(20), "]".repeat(20));
    assert!(told(&deep, Format::Toml).contains("the limit MAX_DEPTH, 8"), "{}", told(&deep, Format::Toml));
    let many = format!("[{}]", "1,".repeat(100));
    assert!(told(&format!("a: {many}"), Format::Yaml).contains("the limit MAX_VALUES, 64"));
    assert!(told(&format!("a = {many}"), Format::Toml).contains("the limit MAX_VALUES, 64"));
    let bomb = "a: &a [1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b]\n";
    assert!(told(bomb, Format::Yaml).contains("with what aliases copy"));
    let deepest = format!("a = {}{}", "[".repeat(2000), "]".repeat(2000));
    assert!(!told(&deepest, Format::Toml).is_empty());
    assert!(!told(&deepest.replace('=', ":"), Format::Yaml).is_empty());
}

#[test]
fn the_nearest_name_is_suggested_and_no_stranger() {
    assert_eq!(nearest("retires", ["retry", "retries", "timeout"]), Some("retries"));
    assert_eq!(nearest("zebra", ["retry", "retries", "timeout"]), None);
}

#[test]
fn lengths_of_time_are_read_with_their_units() {
    for (text, ms) in
        [("500ms", 500), ("20s", 20_000), ("1h30m", 5_400_000), ("1.5h", 5_400_000), ("2d 3s", 172_803_000)]
    {
        assert_eq!(parse_duration_ms(text), Some(ms), "{text}");
    }
    for wrong in ["", "5", "s", "5 s", "1x", "-5s", "1..5s", "1e9s", "999999999999999999d", "NaNs"] {
        assert_eq!(parse_duration_ms(wrong), None, "{wrong}");
    }
    let mut reader = Reader::default();
    let node = tree("t: 5\nu: 3w\nv: 2d\n", Format::Yaml).unwrap();
    for key in ["t", "u", "v"] {
        assert_eq!(reader.duration_ms(node.get(key).unwrap(), key, 86_400_000), None);
    }
    let told: Vec<String> = reader.found.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "f:1:4: t: \"5\" is not a length of time; write a unit too, such as 5s or 5ms",
            "f:2:4: u: \"3w\" is not a length of time; write a number and a unit, such as 500ms, 20s, 5m, 1h30m or 2d",
            "f:3:4: v: \"2d\" is longer than 1d; write a shorter time",
        ]
    );
}

proptest! {
    #[test]
    fn lengths_of_time_read_as_they_are_shown(ms in 0u64..9_000_000_000_000) {
        prop_assert_eq!(parse_duration_ms(&show_duration(ms)), Some(ms));
    }

    #[test]
    fn no_text_makes_reading_fail_otherwise_than_by_saying_so(text in "[\\PC\n\t]{0,200}") {
        for format in [Format::Yaml, Format::Toml] {
            let mut found = Vec::new();
            let tree = read("f".as_ref(), &text, format, &LIMITS, &mut found);
            prop_assert!(tree.is_some() || !found.is_empty());
        }
    }

    #[test]
    fn values_survive_being_written_as_json(keys in proptest::collection::vec("[a-z\"\\\\ é]{1,6}", 0..5), number in any::<i64>(), text in "\\PC{0,12}") {
        let value: serde_json::Map<_, _> = keys.into_iter().map(|key| (key, json!([number, &text, null, true]))).collect();
        let value = serde_json::Value::Object(value);
        let read = tree(&value.to_string(), Format::Yaml).map_err(|found| TestCaseError::fail(format!("{found:?}")))?;
        prop_assert_eq!(read.to_json(), value);
    }
}
