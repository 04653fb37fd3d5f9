//! Policies and changes to them.

use std::collections::{BTreeMap, BTreeSet};

use milepost::config::policy_patch;
use milepost::model::{Policy, PolicyPatch, Smart, Trigger};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn a_policy_stored_by_an_older_version_is_readable() {
    let old = json!({
        "enabled": true, "every_messages": 4, "every_seconds": 300, "every_iterations": 0, "off": ["step"], "on": [],
        "exclude_keys": ["api_key"],
        "retention": {"max_checkpoints": 7, "max_age_days": 30, "trash_days": 7, "clean_only": false},
    });
    let policy: Policy = serde_json::from_value(old).unwrap();
    assert_eq!((policy.every_messages, policy.retention.max_checkpoints), (4, 7));
    assert!(policy.asynchronous && policy.include.memory && policy.retention.prune_every_nodes == 10);
    assert!(!policy.takes(&Trigger::Step));
}

#[test]
fn smart_triggers_look_for_slow_risky_and_large() {
    let smart = Smart::default();
    assert!(smart.is_slow(30_001) && !smart.is_slow(30_000));
    assert!(smart.is_risky("api") && !smart.is_risky("think"));
    assert!(smart.is_large_change(11) && !smart.is_large_change(10));
    let never = Smart { slow_node_ms: 0, changed_keys: 0, risky_kinds: BTreeSet::new() };
    assert!(!never.is_slow(u64::MAX) && !never.is_large_change(usize::MAX) && !never.is_risky("api"));
}

fn patches() -> impl Strategy<Value = PolicyPatch> {
    let trigger = prop::sample::select(Trigger::KNOWN.to_vec());
    let triggers = prop::collection::btree_map(trigger, any::<bool>(), 0..6);
    let numbers = (any::<Option<bool>>(), any::<Option<u32>>(), prop::option::of(1..1000u32), any::<Option<bool>>());
    let keys = prop::collection::btree_set("[a-c]", 0..3);
    (triggers, numbers, keys, prop::option::of(prop::collection::btree_set("[a-c]", 0..3))).prop_map(
        |(triggers, (enabled, every_messages, max_checkpoints, include_files), exclude_keys, risky_kinds)| {
            PolicyPatch {
                enabled,
                every_messages,
                max_checkpoints,
                include_files,
                risky_kinds,
                triggers,
                exclude_keys,
                ..PolicyPatch::default()
            }
        },
    )
}

proptest! {
    #[test]
    fn one_change_after_another_is_the_same_as_both_in_one(base in patches(), a in patches(), b in patches(), c in patches()) {
        let policy = Policy::default().with(&base);
        prop_assert_eq!(policy.with(&a).with(&b), policy.with(&a.clone().then(b.clone())));
        prop_assert_eq!(a.clone().then(b.clone()).then(c.clone()), a.clone().then(b.then(c)));
        prop_assert_eq!(policy.with(&a).with(&a), policy.with(&a));
        prop_assert_eq!(policy.with(&PolicyPatch::default()), policy.clone());
        prop_assert!(policy.with(&a).exclude_keys.is_superset(&policy.exclude_keys));
    }

    #[test]
    fn a_change_says_of_a_trigger_what_it_takes(base in patches(), patch in patches()) {
        let policy = Policy { enabled: true, every_messages: 1, ..Policy::default().with(&base) };
        let patch = PolicyPatch { enabled: None, every_messages: None, ..patch };
        let after = policy.with(&patch);
        let wanted: BTreeMap<_, _> = patch.triggers.iter().filter(|(trigger, _)| **trigger != Trigger::Manual).collect();
        for (trigger, takes) in wanted {
            prop_assert_eq!(after.takes(trigger), *takes, "{}", trigger);
        }
    }

    #[test]
    fn a_stored_change_reads_back(patch in patches()) {
        prop_assert_eq!(policy_patch(&serde_json::to_value(&patch).unwrap()).unwrap(), patch);
    }
}
