//! State hashes: the frozen definition, and that what is kept up to date equals what is computed from scratch.
#![allow(clippy::unwrap_used)]

use milepost_model::delta::{DeltaBuilder, PathPart, encode_value};
use milepost_model::{Delta, HashedState, hash_value};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// ---- the definition, written down a second time ----

fn by_the_book(value: &Value, depth: usize) -> [u8; 32] {
    let canonical = &encode_value(value)[1..];
    let input = match value {
        Value::Array(_) | Value::Object(_) if depth >= 4 => [&[4], canonical].concat(),
        Value::Array(items) => {
            let mut chain: [u8; 32] = blake3::hash(&[5]).into();
            for item in items {
                let pair = [chain, by_the_book(item, depth + 1)].concat();
                chain = blake3::keyed_hash(b"milepost state hash list chain 1", &pair).into();
            }
            [&[2], (items.len() as u64).to_le_bytes().as_slice(), &chain].concat()
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let mut input = vec![3];
            for key in keys {
                assert!(key.len() < 128, "one byte of varint is all this knows");
                input.push(key.len() as u8);
                input.extend(key.as_bytes());
                input.extend(by_the_book(&map[key], depth + 1));
            }
            input
        }
        _ => [&[1], canonical].concat(),
    };
    blake3::hash(&input).into()
}

fn sample() -> Value {
    json!({
        "context": {"task": "write tests", "role": null, "é": "composed"},
        "memory": {"recent": ["a.rs", "b.rs"], "deep": {"three": {"four": {"flat": [1, 2.5, -3]}, "list": []}}},
        "metrics": [0, -0.0, 1, 1.0, u64::MAX, i64::MIN, 1e308, true],
    })
}

#[test]
fn the_hash_is_frozen() {
    let golden = [
        (json!(null), "687376c930d7020a32f04c396fc2e5eab49cd09a738fa03d573033416a6a47ce"),
        (json!({}), "e1e0e81d6ea39b0cf8b86ffd440921011f57400cbc3f76a8a171906a9b8d7505"),
        (json!([]), "6cd297bf657eb903f0633f9dc1b558ecd18292f1efafb7b8809e40d987e23bcf"),
        (json!(""), "4710ab209b0cbbae1cf5d2f8e27eef24852e9b637bac1ef2fabb3857ac78a3f1"),
        (json!(0), "83498d5e618a23d07455a35fea896781dd3fdfb87fbbd88be5ab487d546a4f10"),
        (json!([null]), "a10db246a1484ce545f8cdeab407b147116c51576dd23a08657021088bcaca0a"),
        (json!([[[[[]]]]]), "136785baa1b11a716b9c9d2a057c3230537b8e70c2794f15f91754461bd08ec1"),
        (
            json!({"a": {"b": {"c": {"d": {"e": 1}}}}}),
            "0b780c01dc85bfd34896b819afabe3371e7f295c2b748056357032788151da54",
        ),
        (json!("x".repeat(200_000)), "f731964776966b6f33438a0812ee5e6dc8d52175394441560ff0b2d5790d0d04"),
        (sample(), "1246c29986272ba7d1c076a6bbc22ab47f9cb21d358b7461936618d4c14e93d2"),
    ];
    for (value, hash) in golden {
        assert_eq!(hash_value(&value), by_the_book(&value, 0), "{value:.60}");
        assert_eq!(hex(&hash_value(&value)), hash, "{value:.60}");
    }
}

#[test]
fn different_states_have_different_hashes() {
    let values = [
        json!(null),
        json!({}),
        json!([]),
        json!(""),
        json!(0),
        json!(0.0),
        json!(-0.0),
        json!(1),
        json!(1.0),
        json!("1"),
        json!(false),
        json!([[]]),
        json!([null]),
        json!([[], []]),
        json!([[[]]]),
        json!({"": null}),
        json!({"a": 1, "b": 2}),
        json!({"a": 2, "b": 1}),
        json!({"ab": 1}),
        json!({"é": 1}),
        json!({"e\u{301}": 1}),
        json!([1, 2]),
        json!([2, 1]),
        json!([[1], 2]),
        json!([[1, 2]]),
    ];
    let mut hashes: Vec<_> = values.iter().map(hash_value).collect();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), values.len());
}

#[test]
fn a_state_of_any_depth_has_a_hash() {
    let mut deep = (0..10_000).fold(json!(1), |inner, _| Value::Array(vec![inner]));
    assert_eq!(hash_value(&deep), hash_value(&deep));
    Delta::builder().set("", 1).build().unwrap().apply(&mut deep).unwrap();
}

#[test]
fn a_hashed_state_can_be_shared_and_cloned() {
    fn assert_traits<T: Clone + Send + Sync + 'static>() {}
    assert_traits::<HashedState>();
    let mut state = HashedState::new(sample());
    state.hash();
    let mut copy = state.clone();
    copy.apply(&Delta::builder().set("/metrics/0", 1).build().unwrap()).unwrap();
    assert_eq!(state.hash(), hash_value(&sample()));
    assert_eq!(copy.hash(), hash_value(copy.value()));
}

#[test]
fn replacing_gives_the_old_state_back() {
    let mut state = HashedState::new(sample());
    state.hash();
    assert_eq!(state.replace(json!([1])), sample());
    assert_eq!(state.hash(), hash_value(&json!([1])));
    assert_eq!(state.into_value(), json!([1]));
}

#[test]
fn every_change_to_a_long_list_is_seen() {
    let mut state = HashedState::new(json!({"l": (0..1000).collect::<Vec<u32>>()}));
    let list = |b: DeltaBuilder, n: usize| match n % 6 {
        0 => b.append("/l", [n, n + 1]),
        1 => b.set(["l".into(), PathPart::Index(n * 37 % 1000)], n),
        2 => b.splice("/l", n * 61 % 1000, 1, [n]),
        3 => b.splice("/l", n * 13 % 900, 3, [0; 0]).append("/l", [n]),
        4 => b.splice("/l", 64 * (n % 15), 0, [n, n]),
        _ => b.set("/l/990", json!({"n": n})).set("/l/991", n).append("/l", [n]),
    };
    for n in 0..60 {
        state.apply(&list(Delta::builder(), n).build().unwrap()).unwrap();
        if n % 3 != 1 {
            assert_eq!(state.hash(), hash_value(state.value()), "after change {n}");
        }
    }
}

// ---- any sequence of deltas ----

const KEYS: &[&str] = &["", "a", "b", "a/b", "é"];

#[test]
fn every_field_that_comes_or_goes_is_seen() {
    let mut state = HashedState::new(json!({"nodes": {}}));
    state.hash();
    for number in 0..200_u32 {
        // In no order, some long, some at the very beginning and end; now and then one goes, changes, or many come at once.
        let name = format!("n{:x}{}", number.wrapping_mul(2_654_435_761) >> 20, "x".repeat((number % 7) as usize * 30));
        let mut delta = Delta::builder().set(&*format!("/nodes/{name}"), json!({"status": number}));
        if number % 11 == 0 {
            delta = delta.set(&*format!("/nodes/{name}~0"), number).set("/nodes/", number);
        }
        if number % 40 == 0 {
            delta = (0..20).fold(delta, |delta, more| delta.set(&*format!("/nodes/many {number} {more}"), more));
        }
        state.apply(&delta.build().unwrap()).unwrap();
        if number % 3 == 0 {
            state.apply(&Delta::builder().set(&*format!("/nodes/{name}"), number).build().unwrap()).unwrap();
        }
        if number % 17 == 0 {
            state.apply(&Delta::builder().remove(&*format!("/nodes/{name}")).build().unwrap()).unwrap();
        }
        assert_eq!(hex(&state.hash()), hex(&hash_value(state.value())), "after {name}");
    }
}

fn document() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(json!(null)),
        any::<i8>().prop_map(Value::from),
        Just(json!(-0.0)),
        Just(json!(0.0)),
        "[a-z]{0,4}".prop_map(Value::from),
        Just(json!("a long string that is worth a splice when only a little of its middle changes")),
    ];
    scalar.prop_recursive(7, 80, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            vec((prop::sample::select(KEYS), inner), 0..5).prop_map(|entries| Value::Object(
                entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>()
            )),
        ]
    })
}

#[derive(Clone, Debug)]
enum Step {
    /// Becomes another document, by comparing.
    Become(Value),
    /// Built by hand; each change goes to a place that mostly exists. Some fail.
    Build(Vec<(u8, Vec<u8>, Value)>),
    Hash,
    Replace(Value),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => document().prop_map(Step::Become),
        8 => vec((any::<u8>(), vec(any::<u8>(), 0..6), document()), 1..5).prop_map(Step::Build),
        4 => Just(Step::Hash),
        1 => document().prop_map(Step::Replace),
    ]
}

/// Follows random numbers down a document; the last may leave it.
fn path_in(mut value: &Value, way: &[u8]) -> Vec<PathPart> {
    let mut path = Vec::new();
    for step in way {
        let step = usize::from(*step);
        let part = match value {
            Value::Array(items) => PathPart::Index(step % (items.len() + 1)),
            _ => PathPart::from(KEYS[step % KEYS.len()]),
        };
        path.push(part.clone());
        let child = match part {
            PathPart::Index(at) => value.get(at),
            PathPart::Key(key) => value.get(key),
        };
        match child {
            Some(child) => value = child,
            None => break,
        }
    }
    path
}

fn build(value: &Value, changes: &[(u8, Vec<u8>, Value)]) -> Delta {
    let mut builder = Delta::builder();
    for (kind, way, new) in changes {
        let path = path_in(value, way);
        let at = usize::from(*kind) / 8 % 5;
        builder = match kind % 8 {
            0 if !path.is_empty() => builder.remove(path),
            1 => builder.append(path, [new.clone(), json!(1)]),
            2 => builder.splice(path, at, at % 3, [new.clone()]),
            3 => builder.append_str(path, "more"),
            4 => builder.splice_str(path, at, 1, "x"),
            _ => builder.set(path, new.clone()),
        };
    }
    builder.build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(600) })]

    #[test]
    fn the_kept_hash_is_the_hash_from_scratch(start in document(), steps in vec(step(), 1..12)) {
        let mut state = HashedState::new(start);
        for step in steps {
            let before = encode_value(state.value());
            match step {
                Step::Become(next) => {
                    state.apply(&Delta::diff(state.value(), &next).unwrap()).unwrap();
                    prop_assert_eq!(encode_value(state.value()), encode_value(&next));
                }
                Step::Build(changes) => {
                    let delta = build(state.value(), &changes);
                    let mut plain = state.value().clone();
                    let applied = delta.apply(&mut plain);
                    let mut once = state.clone();
                    prop_assert_eq!(&state.apply(&delta), &applied);
                    prop_assert_eq!(&once.apply_once(delta), &applied);
                    prop_assert_eq!(encode_value(once.value()), encode_value(&plain));
                    prop_assert_eq!(once.hash(), hash_value(once.value()));
                    prop_assert_eq!(encode_value(state.value()), encode_value(&plain));
                    if applied.is_err() {
                        prop_assert_eq!(encode_value(state.value()), before);
                    }
                }
                Step::Hash => prop_assert_eq!(state.hash(), hash_value(state.value())),
                Step::Replace(next) => drop(state.replace(next)),
            }
        }
        prop_assert_eq!(state.hash(), hash_value(state.value()));
        prop_assert_eq!(state.hash(), by_the_book(state.value(), 0));
    }
}
