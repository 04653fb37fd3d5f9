//! Deltas: the law `apply(diff(a, b), a) == b`, the bytes, the builder, and the limits.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::thread;

use milepost_model::delta::{
    Change, Delta, DeltaBuilder, DeltaError, MAX_DEPTH, Misfit, PathPart, StatePath, check_depth, decode_value,
    encode_value,
};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

// ---- documents ----

/// Keys that are easily taken for one another.
const KEYS: &[&str] =
    &["", "a", "a ", "A", "b", "a/b", "~", "~0", "é", "e\u{301}", "\0", "0", "1", "key", "日本", "\u{10ffff}"];

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..200).prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        prop::sample::select(vec![
            json!(i64::MIN),
            json!(i64::MAX),
            json!(u64::MAX),
            json!(1e308),
            json!(5e-324),
            json!(-0.0),
            json!(0.0),
            json!(0),
            json!(1),
            json!(1.0),
            json!(-1),
            json!(127),
            json!(128),
            json!(f64::MAX),
            json!(f64::MIN_POSITIVE),
        ]),
        prop::sample::select(KEYS).prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        (0_usize..300, any::<char>()).prop_map(|(n, c)| Value::from(format!("{}{c}", "long text, ä ".repeat(n / 13)))),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![4 => prop::sample::select(KEYS).prop_map(str::to_owned), 1 => "\\PC{0,6}"]
}

fn document() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(6, 120, 12, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..12).prop_map(Value::Array),
            vec((key(), inner), 0..12).prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// Random numbers that choose one edit and where it goes.
type Choice = (u32, Vec<u32>, Value);

fn choices() -> impl Strategy<Value = Vec<Choice>> {
    vec((any::<u32>(), vec(any::<u32>(), 0..6), document()), 0..6)
}

/// Edits a document somewhere inside.
fn edit(document: &mut Value, (kind, way, new): &Choice) {
    let pick = *kind as usize / 8;
    if let [step, rest @ ..] = way.as_slice() {
        let step = *step as usize;
        let child = match document {
            Value::Array(items) if !items.is_empty() => {
                let at = step % items.len();
                items.get_mut(at)
            }
            Value::Object(map) if !map.is_empty() => {
                let at = step % map.len();
                map.values_mut().nth(at)
            }
            _ => None,
        };
        if let Some(child) = child {
            return edit(child, &(*kind, rest.to_vec(), new.clone()));
        }
    }
    match document {
        Value::Array(items) => edit_list(items, *kind, pick, new),
        Value::Object(map) if kind % 3 == 0 && !map.is_empty() => {
            let key = map.keys().nth(pick % map.len()).unwrap().clone();
            map.remove(&key);
        }
        Value::Object(map) => {
            map.insert(KEYS[pick % KEYS.len()].to_owned(), new.clone());
        }
        Value::String(text) => {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let start = places[pick % places.len()];
            let end = places[(pick % places.len() + *kind as usize % 3).min(places.len() - 1)];
            text.replace_range(start..end, if kind % 2 == 0 { "ö" } else { "" });
        }
        other => *other = new.clone(),
    }
}

fn edit_list(items: &mut Vec<Value>, kind: u32, pick: usize, new: &Value) {
    let at = pick % (items.len() + 1);
    match kind % 8 {
        0 => items.push(new.clone()),
        1 => items.insert(at, new.clone()),
        2 => items.extend(items.clone()),
        3 if at < items.len() => items[at] = new.clone(),
        4 if at < items.len() => drop(items.remove(at)),
        5 => items.rotate_left(at),
        6 => items.reverse(),
        _ => items.truncate(at),
    }
}

/// Exact equality, unlike that of `Value` for floats.
fn assert_same(a: &Value, b: &Value) {
    assert!(encode_value(a) == encode_value(b), "{a}\nis not\n{b}");
}

fn assert_leads(before: &Value, after: &Value) -> Delta {
    let delta = Delta::diff(before, after).unwrap();
    let mut state = before.clone();
    delta.apply(&mut state).unwrap();
    assert_same(&state, after);

    let bytes = delta.encode();
    assert_eq!(Delta::decode(&bytes).unwrap(), delta);
    assert!(bytes.len() <= encode_value(after).len() + 24, "{} bytes for {after}", bytes.len());
    assert_eq!(delta.is_empty(), encode_value(before) == encode_value(after));
    delta
}

fn shown(delta: &Delta) -> Vec<String> {
    delta.changes().map(|(path, change)| format!("{path} {change:?}")).collect()
}

// ---- the law ----

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn diff_leads_from_any_document_to_any_other(before in document(), after in document()) {
        assert_leads(&before, &after);
    }

    #[test]
    fn diff_leads_to_an_edited_document_and_back(before in document(), choices in choices()) {
        let mut after = before.clone();
        choices.iter().for_each(|choice| edit(&mut after, choice));
        assert_leads(&before, &after);
        assert_leads(&after, &before);
    }

    #[test]
    fn diff_leads_between_lists_with_repeats(before in vec(0_u8..6, 0..60), after in vec(0_u8..6, 0..60)) {
        assert_leads(&json!(before), &json!(after));
    }

    #[test]
    fn values_survive_encoding(value in document()) {
        assert_same(&decode_value(&encode_value(&value)).unwrap(), &value);
    }

    #[test]
    fn decoding_survives_random_bytes(mut bytes in vec(any::<u8>(), 0..200)) {
        decode_hostile(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        decode_hostile(&bytes);
    }

    #[test]
    fn decoding_survives_damage(
        before in document(), choices in choices(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..4), 1..4),
    ) {
        let mut after = before.clone();
        choices.iter().for_each(|choice| edit(&mut after, choice));
        let mut delta = Delta::diff(&before, &after).unwrap().encode();
        let mut value = encode_value(&after);
        for bytes in [&mut delta, &mut value] {
            for (at, byte, kind) in &damage {
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = *byte,
                    1 => bytes[at] ^= 1 << (byte % 8),
                    2 => bytes.insert(at, *byte),
                    _ => bytes.truncate(at.max(1)),
                }
            }
        }
        decode_hostile(&value);
        if let Some(delta) = decode_hostile(&delta) {
            let mut state = before.clone();
            if delta.apply(&mut state).is_err() {
                assert_same(&state, &before);
            }
        }
    }

    #[test]
    fn a_failed_apply_changes_nothing(document in document(), other in document(), choices in choices()) {
        let mut after = other.clone();
        choices.iter().for_each(|choice| edit(&mut after, choice));
        let mut state = document.clone();
        if Delta::diff(&other, &after).unwrap().apply(&mut state).is_err() {
            assert_same(&state, &document);
        }
    }
}

/// Whatever decodes has just that one encoding.
fn decode_hostile(bytes: &[u8]) -> Option<Delta> {
    if let Ok(value) = decode_value(bytes) {
        assert_eq!(encode_value(&value), bytes);
    }
    let delta = Delta::decode(bytes).ok()?;
    assert_eq!(delta.encode(), bytes);
    let _ = delta.changes().count();
    Some(delta)
}

#[test]
fn numbers_are_compared_exactly() {
    for (a, b) in
        [(json!(0.0), json!(-0.0)), (json!(1), json!(1.0)), (json!(0), json!(-0.0)), (json!(u64::MAX), json!(-1))]
    {
        assert!(!assert_leads(&a, &b).is_empty());
        assert!(!assert_leads(&json!([a, 0]), &json!([b, 0])).is_empty());
        assert!(!assert_leads(&json!({"n": a}), &json!({"n": b})).is_empty());
    }
}

// ---- what a diff looks like ----

#[test]
fn an_item_changed_in_place_is_a_nested_change() {
    let item = |n: i32, state: &str| json!({"id": n, "state": state, "text": "some words that stay the same"});
    let before = json!([item(1, "open"), item(2, "open"), item(3, "open"), item(4, "open")]);
    let after = json!([item(1, "open"), item(2, "done"), item(3, "open"), item(4, "done")]);
    assert_eq!(
        shown(&assert_leads(&before, &after)),
        [r#"/1/state Set(String("done"))"#, r#"/3/state Set(String("done"))"#]
    );
}

#[test]
fn a_sliding_list_is_a_removal_and_an_append() {
    let window = |from: usize| Value::from((from..from + 200).map(|n| format!("src/file_{n}.rs")).collect::<Vec<_>>());
    let delta = assert_leads(&window(0), &window(2));
    assert_eq!(
        shown(&delta),
        [
            " Splice { at: 0, delete: 2, insert: [] }",
            r#" Append([String("src/file_200.rs"), String("src/file_201.rs")])"#
        ]
    );
}

#[test]
fn a_moved_item_leaves_the_others_alone() {
    let before = Value::from((0..1000).map(|n| format!("line number {n}")).collect::<Vec<_>>());
    let mut after = before.clone();
    let items = after.as_array_mut().unwrap();
    let moved = items.remove(10);
    items.insert(900, moved);
    assert!(assert_leads(&before, &after).encode().len() < 50);
}

#[test]
fn a_last_message_that_grows_while_another_follows_is_an_append_to_it() {
    let before = json!([{"role": "assistant", "text": "The first part of a long answer, as it came in."}]);
    let after = json!([{"role": "assistant", "text": "The first part of a long answer, as it came in. And more."}, {"role": "user"}]);
    assert_eq!(
        shown(&assert_leads(&before, &after)),
        [r#"/0/text AppendStr(" And more.")"#, r#" Append([Object {"role": String("user")}])"#]
    );
}

#[test]
fn a_small_edit_of_a_long_string_is_a_splice_between_characters() {
    let text = "Größe und Maß, ein langer Text. ".repeat(40);
    let at = text.match_indices("ß").nth(20).unwrap().0;
    let edited = format!("{}ä{}", &text[..at], &text[at + "ß".len()..]);
    let delta = assert_leads(&json!({ "text": text }), &json!({ "text": edited }));
    assert!(delta.encode().len() < 24, "{:?}", shown(&delta));
    assert!(matches!(delta.changes().next(), Some((_, Change::SpliceStr { .. }))));

    // `ä` and `ö` share their first byte.
    assert_leads(&json!(format!("{}ä", "x".repeat(100))), &json!(format!("{}ö", "x".repeat(100))));
    assert_leads(&json!(format!("ä{}", "x".repeat(100))), &json!(format!("Ĥ{}", "x".repeat(100))));
}

#[test]
fn one_changed_key_of_a_large_object_costs_its_value_and_path() {
    let mut before: Map<String, Value> = (0..40).map(|n| (format!("key_{n:02}"), json!("x".repeat(500)))).collect();
    let after_value = json!("y".repeat(500));
    let old = Value::Object(before.clone());
    before.insert("key_17".to_owned(), after_value.clone());
    let delta = assert_leads(&old, &Value::Object(before));
    assert!(delta.encode().len() <= encode_value(&after_value).len() + "key_17".len() + 8);
}

#[test]
fn appending_to_a_long_list_costs_the_new_items() {
    let before = Value::from((0..10_000).map(|n| json!({"id": n, "text": "an item"})).collect::<Vec<_>>());
    let mut after = before.clone();
    let new = [json!({"id": 10_000, "text": "new"}), json!({"id": 10_001, "text": "new"})];
    after.as_array_mut().unwrap().extend(new.clone());
    let delta = assert_leads(&before, &after);
    assert!(delta.encode().len() <= encode_value(&json!(new)).len() + 8);
}

#[test]
fn hostile_lists_are_compared_in_bounded_time() {
    // Nested lists whose only difference is at the bottom, below large equal parts.
    let nested = |end: &str| (0..MAX_DEPTH - 1).fold(json!(end), |inner, n| json!([vec![n; 200], inner, "tail"]));
    assert_leads(&nested("a"), &nested("b"));
    let reversed: Vec<u32> = (0..50_000).rev().collect();
    assert_leads(&json!((0..50_000).collect::<Vec<u32>>()), &json!(reversed));
    let same = |n: usize| Value::from(vec![json!({"a": [1, 2, 3]}); n]);
    assert_leads(&same(20_000), &same(19_000));
}

// ---- depth ----

fn nested(depth: usize, end: Value) -> Value {
    (0..depth).fold(end, |inner, n| {
        if n % 2 == 0 { Value::Array(vec![inner]) } else { Value::Object(Map::from_iter([("k".to_owned(), inner)])) }
    })
}

fn in_small_stack(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(test).unwrap().join().unwrap();
}

#[test]
fn documents_up_to_the_depth_limit_work() {
    in_small_stack(|| {
        // Each level has something that stays, so that a change at the bottom is worth the way down.
        let padded = |end: i32| {
            (0..MAX_DEPTH).fold(json!(end), |inner, n| {
                if n % 2 == 0 { json!([inner, "what stays"]) } else { json!({"k": inner, "other": "what stays"}) }
            })
        };
        let delta = assert_leads(&padded(1), &padded(2));
        assert_eq!(delta.changes().next().unwrap().0.parts().len(), MAX_DEPTH);

        let before = nested(MAX_DEPTH, json!(1));
        assert_leads(&before, &nested(MAX_DEPTH, json!(2)));
        assert_leads(&before, &json!(null));
        assert_leads(&json!(null), &before);
        assert_same(&decode_value(&encode_value(&before)).unwrap(), &before);
        assert!(format!("{delta:?}").contains("Set"));

        // Fails at the very bottom, after changes on every level.
        let mut builder = Delta::builder();
        for depth in 1..200 {
            builder =
                builder.set(vec![PathPart::from("k"); depth].into_iter().chain(["x".into()]).collect::<Vec<_>>(), 1);
        }
        let bottom = vec![PathPart::from("k"); 200];
        let chain = (0..200).fold(json!(0), |inner, _| json!({ "k": inner }));
        let mut state = chain.clone();
        let error = builder.append_str(bottom, "x").build().unwrap().apply(&mut state).unwrap_err();
        assert!(error.to_string().contains("/k/k/k"), "{error}");
        assert_same(&state, &chain);
    });
}

#[test]
fn deeper_documents_are_refused_without_overflow() {
    in_small_stack(|| {
        for depth in [MAX_DEPTH + 1, 10_000] {
            let mut deep = nested(depth, json!(1));
            assert_eq!(check_depth(&deep), Err(DeltaError::TooDeep));
            assert_eq!(Delta::diff(&json!(1), &deep), Err(DeltaError::TooDeep));
            assert_eq!(Delta::diff(&deep, &deep), Err(DeltaError::TooDeep));
            // What is replaced is not looked into.
            assert!(Delta::diff(&deep, &json!(1)).is_ok());
            assert_eq!(decode_value(&encode_value(&deep)), Err(DeltaError::TooDeep));
            let too_deep = [
                Delta::builder().set("/a", nested(depth, json!(1))),
                Delta::builder().append("/a", [nested(depth, json!(1))]),
                Delta::builder().splice("/a", 0, 0, [nested(depth, json!(1))]),
                Delta::builder().set(vec![PathPart::from("a"); depth], 1),
            ];
            for builder in too_deep {
                assert_eq!(builder.build(), Err(DeltaError::TooDeep));
            }
            // Replacing a deep document drops it, which must not recurse either.
            Delta::builder().set("", 1).build().unwrap().apply(&mut deep).unwrap();
            assert_eq!(deep, json!(1));
        }
    });
}

#[test]
fn deep_or_huge_encodings_are_refused() {
    let mut lists = vec![1, 1];
    lists.extend([4, 1, 0].repeat(100_000));
    assert_eq!(Delta::decode(&lists), Err(DeltaError::TooDeep));
    let mut fields = vec![1, 1];
    fields.extend([3, 1, 0].repeat(100_000));
    assert_eq!(Delta::decode(&fields), Err(DeltaError::TooDeep));
    let mut values = vec![1];
    values.extend([7, 1].repeat(100_000));
    assert_eq!(decode_value(&values), Err(DeltaError::TooDeep));

    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    for tag in [6, 7, 8] {
        let bytes = [&[1, tag], huge.as_slice()].concat();
        assert!(matches!(decode_value(&bytes), Err(DeltaError::Malformed { .. })), "{tag}");
    }
    for tag in [3, 4, 5, 6] {
        let bytes = [&[1, 1, tag], huge.as_slice()].concat();
        assert!(matches!(Delta::decode(&bytes), Err(DeltaError::Malformed { .. })), "{tag}");
    }
    let bytes = [&[1], huge.as_slice()].concat();
    assert!(matches!(Delta::decode(&bytes), Err(DeltaError::Malformed { .. })));
}

#[test]
fn a_position_beyond_the_list_is_an_error_not_a_panic() {
    let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let change = [&[1, 1, 4, 1], max.as_slice(), &[1, 0, 0]].concat();
    let splice = [&[1, 1, 4, 1, 1, 7], max.as_slice(), &[0, 0]].concat();
    for bytes in [change, splice] {
        let delta = Delta::decode(&bytes).unwrap();
        assert_eq!(delta.encode(), bytes);
        assert!(matches!(delta.apply(&mut json!([1, 2])), Err(DeltaError::DoesNotFit { .. })));
    }
    let text = [&[1, 1, 6], max.as_slice(), max.as_slice(), &[0]].concat();
    assert!(Delta::decode(&text).unwrap().apply(&mut json!("text")).is_err());
}

// ---- the bytes, frozen ----

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_encoding_of_values_is_frozen() {
    let golden = [
        (json!(null), "0100"),
        (json!(false), "0101"),
        (json!(true), "0102"),
        (json!(0), "0180"),
        (json!(127), "01ff"),
        (json!(128), "01038001"),
        (json!(u64::MAX), "0103ffffffffffffffffff01"),
        (json!(-1), "010400"),
        (json!(i64::MIN), "0104ffffffffffffffff7f"),
        (json!(-0.0), "01050000000000000080"),
        (json!(1.5), "0105000000000000f83f"),
        (json!(""), "0140"),
        (json!("hé"), "014368c3a9"),
        (json!([]), "010700"),
        (json!({}), "010800"),
        (json!([1, [null]]), "01070281070100"),
        (json!({"b": 1, "a": {"": "x"}}), "01080201610801004178016281"),
    ];
    for (value, bytes) in golden {
        assert_eq!(hex(&encode_value(&value)), bytes, "{value}");
    }
    let long = encode_value(&json!("x".repeat(64)));
    assert_eq!((hex(&long[..3]), long.len()), ("010640".to_owned(), 67));
}

#[test]
fn the_encoding_of_deltas_is_frozen() {
    let golden = [
        (Delta::default(), "0100"),
        (Delta::builder().set("", 7).build().unwrap(), "01010187"),
        (
            Delta::builder().set("/b", true).remove("/a").append_str("/c/d", "hi").build().unwrap(),
            "010103030161020162010201630301016405026869",
        ),
        (
            Delta::builder().set("/1", 1).set("/4/x", 2).append("", [3]).build().unwrap(),
            "01010402010181020301017801820183",
        ),
        (Delta::builder().splice("", 300, 2, ["a"]).build().unwrap(), "01010401ac02070201416100"),
        (Delta::builder().splice_str("", 1, 2, "é").build().unwrap(), "010106010202c3a9"),
        (Delta::builder().splice("", 0, 1, [0; 0]).set("/0", 1).build().unwrap(), "010204010007010000040100018100"),
    ];
    for (delta, bytes) in golden {
        assert_eq!(hex(&delta.encode()), bytes, "{delta:?}");
        assert_eq!(Delta::decode(&delta.encode()).unwrap(), delta);
    }
}

#[test]
fn only_canonical_bytes_decode() {
    let bad_values: [(&[u8], &str); 11] = [
        (&[1], "end too early"),
        (&[1, 0, 0], "after the end"),
        (&[1, 0x03, 5], "long form"),
        (&[1, 0x06, 1, b'x'], "long form"),
        (&[1, 0x03, 0x80, 0x81, 0x00], "longer than"),
        (&[1, 0x05, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f], "JSON does not have"),
        (&[1, 0x08, 2, 1, b'b', 0, 1, b'a', 0], "out of order"),
        (&[1, 0x08, 2, 1, b'a', 0, 1, b'a', 0], "out of order"),
        (&[1, 0x41, 0xff], "UTF-8"),
        (&[1, 0x09], "start of a value"),
        (&[1, 0x04, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "below 64 bits"),
    ];
    for (bytes, reason) in bad_values {
        let error = decode_value(bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{bytes:?}: {error}");
    }
    let bad_deltas: [(&[u8], &str); 7] = [
        (&[], "end too early"),
        (&[1, 1, 2], "start of a change"),
        (&[1, 1, 7, 0, 0], "start of a change"),
        (&[1, 1, 3, 0], "does nothing"),
        (&[1, 1, 4, 0, 0], "does nothing"),
        (&[1, 1, 5, 0], "does nothing"),
        (&[1, 1, 4, 1, 0, 2, 0], "start of a change"),
    ];
    for (bytes, reason) in bad_deltas {
        let error = Delta::decode(bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{bytes:?}: {error}");
    }
    assert_eq!(Delta::decode(&[9]), Err(DeltaError::UnknownVersion { found: 9 }));
    assert_eq!(decode_value(&[0, 0]), Err(DeltaError::UnknownVersion { found: 0 }));
}

// ---- the builder ----

fn built(before: Value, build: impl FnOnce(DeltaBuilder) -> DeltaBuilder) -> Value {
    let delta = build(Delta::builder()).build().unwrap();
    assert_eq!(Delta::decode(&delta.encode()).unwrap(), delta);
    let mut state = before;
    delta.apply(&mut state).unwrap();
    state
}

fn refused(before: Value, build: impl FnOnce(DeltaBuilder) -> DeltaBuilder) -> (String, Misfit) {
    let delta = build(Delta::builder()).build().unwrap();
    let mut state = before.clone();
    let error = delta.apply(&mut state).unwrap_err();
    assert_same(&state, &before);
    match error {
        DeltaError::DoesNotFit { path, why } => (path.to_string(), why),
        other => panic!("{other}"),
    }
}

#[test]
fn setting_creates_missing_objects_and_appends_at_the_end_of_a_list() {
    assert_eq!(built(json!({}), |b| b.set("/a/b/c", 1)), json!({"a": {"b": {"c": 1}}}));
    assert_eq!(built(json!([1]), |b| b.set("/1", 2).set("/2/x", 3)), json!([1, 2, {"x": 3}]));
    assert_eq!(built(json!({"l": [[]]}), |b| b.set("/l/0/0", 1)), json!({"l": [[1]]}));
    assert_eq!(built(json!(1), |b| b.set("", "all")), json!("all"));
}

#[test]
fn changes_see_the_ones_before_them() {
    let state = json!({"l": [1, 2, 3], "s": "ab"});
    assert_eq!(built(state.clone(), |b| b.splice("/l", 0, 1, [0; 0]).set("/l/0", 9)), json!({"l": [9, 3], "s": "ab"}));
    assert_eq!(
        built(state.clone(), |b| b.append("/l", [4]).append("/l", [5]).set("/l/4", 6)),
        json!({"l": [1, 2, 3, 4, 6], "s": "ab"})
    );
    assert_eq!(
        built(state.clone(), |b| b.remove("/l/2").remove("/l/0").append("/l", [7])),
        json!({"l": [2, 7], "s": "ab"})
    );
    assert_eq!(
        built(state.clone(), |b| b.append_str("/s", "c").append_str("/s", "d").splice_str("/s", 0, 1, "x")),
        json!({"l": [1, 2, 3], "s": "xbcd"})
    );
    assert_eq!(
        built(state.clone(), |b| b.set("/x", json!({})).set("/x/y", 1).set("/x", 2).remove("/l")),
        json!({"s": "ab", "x": 2})
    );
    assert_eq!(built(state, |b| b.set("/l/2", 5).set("/l/1", 4).set("/l/1", 6)), json!({"l": [1, 6, 5], "s": "ab"}));
}

#[test]
fn changes_beside_each_other_share_their_path() {
    let path = |key: &str| StatePath::root().key("a_long_section_name").key("another_long_name").key(key);
    let delta = Delta::builder().set(path("x"), 1).set(path("y"), 2).remove(path("z")).build().unwrap();
    assert_eq!(delta.encode().len(), 57);
    assert_eq!(delta.changes().count(), 3);
}

#[test]
fn paths_are_pointers_parts_or_built() {
    let state = json!({"a/b": {"~": [1]}});
    let expected = json!({"a/b": {"~": [2]}});
    let parts = [PathPart::from("a/b"), "~".into(), 0.into()];
    assert_eq!(built(state.clone(), |b| b.set("/a~1b/~0/0", 2)), expected);
    assert_eq!(built(state.clone(), |b| b.set(parts.as_slice(), 2)), expected);
    assert_eq!(built(state.clone(), |b| b.set(parts.clone(), 2)), expected);
    assert_eq!(built(state, |b| b.set(["a/b", "~"], json!([2]))), expected);
    assert_eq!(built(json!({"0": 1}), |b| b.set(StatePath::root().key("0"), 2)), json!({"0": 2}));
    assert_eq!("/01/x".parse(), Ok(StatePath::root().key("01").key("x")));
    assert_eq!("/".parse(), Ok(StatePath::root().key("")));
}

#[test]
fn a_wrong_path_is_reported_when_building() {
    for (builder, reason) in [
        (Delta::builder().set("memory", 1), "starts with"),
        (Delta::builder().append("/~2", [1]), "`~`"),
        (Delta::builder().append("x", [0; 0]), "starts with"),
        (Delta::builder().remove("").set("/a", 1), "root"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(&error, DeltaError::InvalidPath { .. }) && error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn what_does_nothing_is_left_out() {
    let builder = Delta::builder()
        .append("/a", [0; 0])
        .append_str("/b", "")
        .splice("/c", 3, 0, [0; 0])
        .splice_str("/d", 1, 0, "");
    assert!(builder.build().unwrap().is_empty());
}

#[test]
fn a_change_that_does_not_fit_names_its_place() {
    let state = json!({"o": {"l": [1, "ä"]}, "n": null});
    let missing = |path: &str| (path.to_owned(), Misfit::Missing);
    let out_of_range = |path: &str, at, len| (path.to_owned(), Misfit::OutOfRange { at, len });
    let wrong = |path: &str, expected, found| (path.to_owned(), Misfit::WrongType { expected, found });
    assert_eq!(refused(state.clone(), |b| b.remove("/o/x")), missing("/o/x"));
    assert_eq!(refused(state.clone(), |b| b.set("/a", 1).append("/o/x/y", [1])), missing("/o/x/y"));
    assert_eq!(refused(state.clone(), |b| b.set("/o/l/3", 1)), out_of_range("/o/l/3", 3, 2));
    assert_eq!(refused(state.clone(), |b| b.remove("/o/l/2")), out_of_range("/o/l", 3, 2));
    assert_eq!(refused(state.clone(), |b| b.splice_str("/o/l/1", 1, 1, "")), out_of_range("/o/l/1", 1, 2));
    assert_eq!(refused(state.clone(), |b| b.set("/n/x", 1)), wrong("/n", "an object", "null"));
    assert_eq!(refused(state.clone(), |b| b.set("/o/0", 1)), wrong("/o", "a list", "an object"));
    assert_eq!(refused(state.clone(), |b| b.append_str("/o/l/0", "x")), wrong("/o/l/0", "a string", "a number"));

    // Late failures: everything before them is undone.
    assert_eq!(
        refused(state.clone(), |b| b.set("/o/l/0", 2).set("/o/l/2", 3).set("/o/l/5", 4)),
        out_of_range("/o/l/5", 5, 3)
    );
    let steps = |b: DeltaBuilder| {
        b.splice("/o/l", 0, 1, [7, 8])
            .set("/o/l/0", 5)
            .append("/o/l", [1])
            .append_str("/o/l/2", "x")
            .remove("/n")
            .set("/o/l/4", 1)
    };
    assert_eq!(refused(state.clone(), |b| steps(b).remove("/n")), missing("/n"));
    let error = steps(Delta::builder()).remove("/n").build().unwrap().apply(&mut state.clone()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot apply the change at `/n`: nothing is there; the delta belongs to another state, apply it to the state it was made from"
    );
}

#[test]
fn many_splices_of_a_list_are_undone_when_something_beside_it_fails() {
    let long = "a string long enough to be appended to";
    let before = json!({"l": (0..40).collect::<Vec<u8>>(), "z": long});
    let mut after = before.clone();
    let items = after["l"].as_array_mut().unwrap();
    items.drain(3..5);
    items[7] = json!("changed");
    items.splice(12..12, [json!(100), json!(101), json!(102)]);
    items.remove(30);
    items.insert(35, json!(103));
    items.push(json!(104));
    after["z"] = json!(format!("{long}."));
    let delta = assert_leads(&before, &after);
    assert!(delta.changes().count() >= 7, "{:?}", shown(&delta));

    let mut other = before.clone();
    other["z"] = json!(1);
    let mut state = other.clone();
    delta.apply(&mut state).unwrap_err();
    assert_same(&state, &other);
}
