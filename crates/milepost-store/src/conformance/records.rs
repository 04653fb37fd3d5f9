//! Rules of records: compared and set, listed by key and by due time.

use milepost_model::Timestamp;

use super::scene::*;
use super::{Outcome, Place};
use crate::backend::*;
use crate::error::{Conflict, Error};

fn key(kind: &str, key: &str) -> RecordKey {
    RecordKey { kind: kind.to_owned(), key: key.to_owned() }
}

fn record(kind: &str, name: &str, version: u64, due: Option<i64>) -> Record {
    Record { key: key(kind, name), version, due: due.map(Timestamp), value: format!("{name} {version}").into_bytes() }
}

/// A record is written and removed only by whoever knows its version.
pub async fn records_are_compared_and_set(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    let (name, workspace) = (key("token", "a"), scene.workspace.clone());
    let conflict = |outcome: crate::Result<()>| matches!(outcome, Err(Error::Conflict(Conflict::Record { .. })));
    same!(scene.backend.record(&workspace, name.clone()).await?, None, "a record that is not there");
    let early = scene.backend.put_record(&workspace, record("token", "a", 2, None), Some(1)).await;
    ensure!(conflict(early), "a record that is not there was replaced");
    let early = scene.backend.delete_record(&workspace, name.clone(), 1).await;
    ensure!(conflict(early), "a record that is not there was removed");

    let first = Record { value: vec![0, 255, 0, 10], ..record("token", "a", 7, Some(-5)) };
    scene.backend.put_record(&workspace, first.clone(), None).await?;
    let again = scene.backend.put_record(&workspace, record("token", "a", 8, None), None).await;
    ensure!(conflict(again), "a record that is there was made again");
    scene.reopen().await?;
    same!(scene.backend.record(&workspace, name.clone()).await?, Some(first), "the record after reopening");

    let second = record("token", "a", u64::MAX - 1, None);
    scene.backend.put_record(&workspace, second.clone(), Some(7)).await?;
    for stale in [7, 8, 0] {
        let late = scene.backend.put_record(&workspace, record("token", "a", 9, None), Some(stale)).await;
        ensure!(conflict(late), "a write over version {stale} was taken");
        let late = scene.backend.delete_record(&workspace, name.clone(), stale).await;
        ensure!(conflict(late), "a removal of version {stale} was taken");
    }
    same!(scene.backend.record(&workspace, name.clone()).await?, Some(second), "the record after late writes");
    scene.backend.delete_record(&workspace, name.clone(), u64::MAX - 1).await?;
    same!(scene.backend.record(&workspace, name.clone()).await?, None, "the record after its removal");
    scene.backend.put_record(&workspace, record("token", "a", 10, None), None).await?;
    same!(scene.backend.record(&workspace, key("setting", "a")).await?, None, "the same key of another kind");
    Ok(())
}

/// Records of one kind are listed in the order of their keys' bytes, a page at a time.
pub async fn records_are_listed_by_key(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let mut names = vec!["a", "B", "é", "a b", "a/b", "zz", "%", "_", "ab", "a\u{10ffff}", "Z", "10", "9", "\u{5d0}"];
    for (number, name) in names.iter().enumerate() {
        let put = record("node", name, number as u64 + 1, (number % 2 == 0).then_some(5));
        scene.backend.put_record(&scene.workspace, put, None).await?;
        let other = record("token", name, number as u64 + 100, None);
        scene.backend.put_record(&scene.workspace, other, None).await?;
    }
    names.sort_unstable();
    for limit in [1, 2, 5, 14, usize::MAX] {
        let mut found: Vec<Record> = Vec::new();
        loop {
            let after = found.last().map(|record| record.key.key.clone());
            let scan = RecordScan { kind: "node".into(), order: RecordOrder::Key { after }, limit };
            let page = scene.backend.scan_records(&scene.workspace, scan).await?;
            ensure!(page.len() <= limit, "a page of {limit} has {} records", page.len());
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        same!(found.iter().map(|r| r.key.key.as_str()).collect::<Vec<_>>(), names, "all pages of {limit}");
        ensure!(found.iter().all(|record| record.key.kind == "node"), "a record of another kind was listed");
    }
    let scan = RecordScan { kind: "node".into(), order: RecordOrder::Key { after: Some("a c".into()) }, limit: 2 };
    let found = scene.backend.scan_records(&scene.workspace, scan).await?;
    let found: Vec<&str> = found.iter().map(|record| record.key.key.as_str()).collect();
    same!(found, ["a/b", "ab"], "what comes after a key that is not there");
    let scan = RecordScan { kind: "none".into(), order: RecordOrder::Key { after: None }, limit: 2 };
    same!(scene.backend.scan_records(&scene.workspace, scan).await?, [], "a kind that is not there");
    Ok(())
}

/// Records that are due are listed oldest first, ties by key, a page at a time; those without a due time never.
pub async fn records_are_listed_by_due_time(place: &dyn Place) -> Outcome {
    let scene = Scene::new(place).await?;
    let dues = [
        ("a", Some(30)),
        ("b", Some(10)),
        ("c", Some(20)),
        ("d", Some(20)),
        ("e", None),
        ("f", Some(20)),
        ("g", Some(-40)),
        ("h", Some(i64::MAX)),
        ("i", Some(0)),
        ("j", Some(10)),
    ];
    for (number, (name, due)) in dues.iter().rev().enumerate() {
        let put = record("wake-up", name, number as u64 + 1, *due);
        scene.backend.put_record(&scene.workspace, put, None).await?;
    }
    scene.backend.put_record(&scene.workspace, record("token", "x", 1, Some(15)), None).await?;
    for until in [i64::MIN, -40, 9, 10, 20, 29, 30, i64::MAX] {
        let mut expected: Vec<(i64, &str)> = dues.iter().filter_map(|(name, due)| Some(((*due)?, *name))).collect();
        expected.retain(|(due, _)| *due <= until);
        expected.sort_unstable();
        for limit in [1, 2, 3, usize::MAX] {
            let mut found: Vec<(i64, String)> = Vec::new();
            loop {
                let after = found.last().map(|(due, key)| (Timestamp(*due), key.clone()));
                let order = RecordOrder::Due { until: Timestamp(until), after };
                let scan = RecordScan { kind: "wake-up".into(), order, limit };
                let page = scene.backend.scan_records(&scene.workspace, scan).await?;
                ensure!(page.len() <= limit, "a page of {limit} has {} records", page.len());
                if page.is_empty() {
                    break;
                }
                found.extend(page.into_iter().map(|record| (record.due.map_or(0, |due| due.0), record.key.key)));
            }
            let found: Vec<(i64, &str)> = found.iter().map(|(due, key)| (*due, key.as_str())).collect();
            same!(found, expected, "what is due until {until} in pages of {limit}");
        }
    }
    // A record that was put off is found at its new time only.
    scene.backend.put_record(&scene.workspace, record("wake-up", "b", 99, Some(25)), Some(9)).await?;
    let order = RecordOrder::Due { until: Timestamp(20), after: Some((Timestamp(0), "i".into())) };
    let scan = RecordScan { kind: "wake-up".into(), order, limit: 9 };
    let found = scene.backend.scan_records(&scene.workspace, scan).await?;
    let found: Vec<&str> = found.iter().map(|record| record.key.key.as_str()).collect();
    same!(found, ["j", "c", "d", "f"], "what is due after one was put off");
    Ok(())
}

/// The kinds of records that are there are listed, each once, in order.
pub async fn record_kinds_are_listed(place: &dyn Place) -> Outcome {
    let mut scene = Scene::new(place).await?;
    same!(scene.backend.record_kinds(&scene.workspace).await?, Vec::<String>::new(), "an empty place");
    for (kind, name) in [("wake-up", "a"), ("token", "a"), ("wake-up", "b"), ("node", "c")] {
        scene.backend.put_record(&scene.workspace, record(kind, name, 1, None), None).await?;
    }
    scene.backend.delete_record(&scene.workspace, key("node", "c"), 1).await?;
    scene.reopen().await?;
    same!(scene.backend.record_kinds(&scene.workspace).await?, ["token", "wake-up"], "the kinds");
    Ok(())
}
